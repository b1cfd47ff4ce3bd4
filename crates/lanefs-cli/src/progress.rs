//! Progress bars for long work: on stderr, and only if that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// Between two looks at something that another thread or process does.
const EVERY: Duration = Duration::from_millis(300);

/// Makes a bar that counts bytes.
pub fn bytes(total: u64, what: &str) -> ProgressBar {
    bar(total, "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}", what)
}

/// Makes a line that counts items of an unknown number.
pub fn items(what: &str) -> ProgressBar {
    bar(0, "{spinner} {msg} {human_pos} {per_sec}", what)
}

/// Gives a line of items their number, now that it is known: then it shows how much is done and the
/// time that is left.
pub fn set_total(line: &ProgressBar, total: u64) {
    if line.length() != Some(total) {
        line.set_length(total);
        line.set_style(style("{msg} {wide_bar} {human_pos}/{human_len} {per_sec} {eta}"));
        line.reset_eta();
    }
}

/// Does `f`, and shows meanwhile how far it is, of which `look` tells every now and then: bytes,
/// and how many in all. A bar comes once that is known.
pub fn watched<T>(what: &str, look: impl Fn() -> Option<(u64, u64)> + Send, f: impl FnOnce() -> T) -> T {
    if !is_shown() {
        return f();
    }
    std::thread::scope(|s| {
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        s.spawn(move || {
            let mut bar = None;
            while is_done.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let Some((moved, total)) = look() else { continue };
                let bar = bar.get_or_insert_with(|| bytes(total, what));
                bar.set_length(total);
                bar.set_position(moved);
            }
            bar.iter().for_each(ProgressBar::finish_and_clear);
        });
        let answer = f();
        drop(done);
        answer
    })
}

/// Returns whether somebody sees it.
pub fn is_shown() -> bool {
    std::io::stderr().is_terminal()
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn bar(total: u64, template: &str, what: &str) -> ProgressBar {
    let target = match is_shown() {
        true => ProgressDrawTarget::stderr_with_hz(10),
        false => ProgressDrawTarget::hidden(),
    };
    ProgressBar::with_draw_target((total > 0).then_some(total), target)
        .with_style(style(template))
        .with_message(what.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::TermLike;
    use std::io::Result;
    use std::sync::{Arc, Mutex};

    /// A terminal that keeps what was last written.
    #[derive(Clone, Debug, Default)]
    struct Screen(Arc<Mutex<String>>);

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            100
        }
        fn move_cursor_up(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> Result<()> {
            Ok(())
        }
        fn flush(&self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_known_number_of_items_shows_how_much_is_done() {
        let screen = Screen::default();
        let line = items("checking");
        line.set_draw_target(ProgressDrawTarget::term_like(Box::new(screen.clone())));
        line.set_position(5);
        line.force_draw();
        assert!(!screen.0.lock().unwrap().contains("/20"), "{screen:?}");
        set_total(&line, 20);
        line.set_position(10);
        line.force_draw();
        assert!(screen.0.lock().unwrap().contains("10/20"), "{screen:?}");
    }
}
