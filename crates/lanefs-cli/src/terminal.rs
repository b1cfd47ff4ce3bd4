//! A terminal that a command draws on: the screen beside the usual one, keys without Enter, and all
//! as it was when the command ends, however it does.

use crate::failure::{About, Failure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{IsTerminal, Read, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// To the other screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// What Ctrl-C gives where it is no signal.
const CTRL_C: u8 = 3;

/// The state to which the terminal goes back; none while it is as it was.
static BEFORE: Mutex<Option<Before>> = Mutex::new(None);

/// The state of the terminal before.
struct Before {
    /// Of standard input, if that is a terminal.
    keys: Option<Termios>,
}

/// A terminal that is drawn on. It is as it was once this is gone.
pub struct Terminal(());

impl Terminal {
    /// Takes the terminal that standard output is; `None` if it is none. Called before any thread
    /// is started.
    pub fn take() -> Result<Option<Terminal>, Failure> {
        if !std::io::stdout().is_terminal() {
            return Ok(None);
        }
        let signals = lanefs_fuse::block_signals().about("cannot wait for signals")?;
        let keys = tcgetattr(std::io::stdin()).ok();
        *lock() = Some(Before { keys: keys.clone() });
        let terminal = Terminal(());
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                let signal = signals.wait();
                restore();
                std::process::exit(128 + signal);
            })
            .about("a thread for signals")?;
        if let Some(mut keys) = keys {
            keys.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
            // Without it keys need Enter, and nothing else is lost.
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &keys);
        }
        put(ENTER)?;
        Ok(Some(terminal))
    }

    /// Draws lines over what was there, as many and as much of each as the screen has.
    pub fn draw(&self, lines: &[String]) -> Result<(), Failure> {
        let size = tcgetwinsize(std::io::stdout()).ok().filter(|s| s.ws_row > 0 && s.ws_col > 0);
        let (rows, columns) = size.map_or((24, 80), |s| (usize::from(s.ws_row), usize::from(s.ws_col)));
        let shown = lines.iter().take(rows).map(|l| l.chars().take(columns).collect::<String>() + "\x1b[K");
        put(&format!("\x1b[H{}\x1b[J", shown.collect::<Vec<_>>().join("\r\n")))
    }

    /// Waits for so long. Returns true if the user wants to end it: q, or Ctrl-C.
    pub fn is_ended_within(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        let mut stdin = std::io::stdin();
        if !stdin.is_terminal() {
            std::thread::sleep(time);
            return false;
        }
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let wait = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let ready = poll(&mut [PollFd::new(&std::io::stdin(), PollFlags::IN)], Some(&wait));
            let mut keys = [0; 64];
            match ready {
                Ok(0) | Err(_) => {}
                Ok(_) => match stdin.read(&mut keys) {
                    // The terminal is gone.
                    Ok(0) | Err(_) => return true,
                    Ok(n) if keys[..n].iter().any(|k| matches!(*k, b'q' | b'Q' | CTRL_C)) => return true,
                    Ok(_) => {}
                },
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

fn lock() -> std::sync::MutexGuard<'static, Option<Before>> {
    // A panic while the lock was held left a whole value.
    BEFORE.lock().unwrap_or_else(|e| e.into_inner())
}

/// Brings the terminal back, once.
fn restore() {
    if let Some(before) = lock().take() {
        let _ = put(LEAVE);
        if let Some(keys) = before.keys {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &keys);
        }
    }
}

fn put(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    crate::failure::written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}
