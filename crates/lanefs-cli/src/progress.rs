//! Progress bars for long work: on stderr, and only if that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// A bar that counts bytes.
pub fn bytes(total: u64, what: &str) -> ProgressBar {
    bar(total, "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}", what)
}

/// A line that counts items of an unknown number.
pub fn items(what: &str) -> ProgressBar {
    bar(0, "{spinner} {msg} {human_pos} {per_sec}", what)
}

fn bar(total: u64, template: &str, what: &str) -> ProgressBar {
    let target = match std::io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr_with_hz(10),
        false => ProgressDrawTarget::hidden(),
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target((total > 0).then_some(total), target)
        .with_style(style)
        .with_message(what.to_string())
}
