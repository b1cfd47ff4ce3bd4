//! Failures of commands: one line for people, one code for scripts.

use std::fmt::Display;

/// A command's result: its exit code.
pub type Outcome = Result<i32, Failure>;

/// Returns a message as it is told: a name in it, which may be a stranger's, changes no terminal.
pub fn plain(message: impl Display) -> String {
    let message = message.to_string();
    if !message.contains(char::is_control) {
        return message;
    }
    let told = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    message.chars().map(told).collect()
}

/// The reason why a command failed.
#[derive(Debug)]
pub struct Failure {
    /// One line: what, why, and what to do. Empty if all has been reported already.
    pub message: String,
    /// The exit code.
    pub code: i32,
}

impl Failure {
    /// Makes a failure with exit code 1.
    pub fn new(message: impl Display) -> Failure {
        Failure { message: plain(message), code: 1 }
    }

    /// Returns the same failure with another exit code.
    pub fn code(mut self, code: i32) -> Failure {
        debug_assert!((0..256).contains(&code), "exit code {code}: it has a byte");
        self.code = code;
        self
    }
}

impl From<lanefs::Error> for Failure {
    fn from(e: lanefs::Error) -> Failure {
        Failure::new(e)
    }
}

impl From<lanefs_format::FormatError> for Failure {
    fn from(e: lanefs_format::FormatError) -> Self {
        lanefs_store::StoreError::from(e).into()
    }
}

impl From<lanefs_store::StoreError> for Failure {
    fn from(e: lanefs_store::StoreError) -> Failure {
        Failure::new(e)
    }
}

/// Returns a message without the "(os error 2)" that the library adds, which helps nobody.
pub fn without_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |text, part| text + part.split_once(')').map_or("", |(_, rest)| rest))
}

/// Returns what to do about an error whose name does not say it.
fn advice(errno: i32) -> &'static str {
    match errno {
        libc::EFBIG => "; see `ulimit -f`, and how long files may be there",
        libc::EAGAIN => "; see `ulimit -u`, `ulimit -v` and how many threads a container allows",
        libc::ENOMEM => "; see `ulimit -v` and what a container allows, or give less by cache_size",
        _ => "",
    }
}

/// Errors that can be given a subject.
pub trait About<T> {
    /// Adds to an error what it was about: it becomes `what: error`.
    fn about(self, what: impl Display) -> Result<T, Failure>;
}

impl<T> About<T> for std::io::Result<T> {
    fn about(self, what: impl Display) -> Result<T, Failure> {
        self.map_err(|e| {
            let text = without_numbers(&e.to_string());
            let advice = e.raw_os_error().map_or("", advice);
            Failure::new(format_args!("{what}: {text}{advice}"))
        })
    }
}

impl<T> About<T> for lanefs::Result<T> {
    fn about(self, what: impl Display) -> Result<T, Failure> {
        self.map_err(|e| match e {
            lanefs::Error::Posix(n) => {
                let text = without_numbers(&std::io::Error::from_raw_os_error(n).to_string());
                Failure::new(format_args!("{what}: {text}{}", advice(n)))
            }
            // The store's message names the device and the structure; the path is what the reader
            // knows.
            e => Failure::new(format_args!("{what}: {e}")),
        })
    }
}

/// Writes to stdout; a reader who has gone ends the command quietly.
pub fn written(result: std::io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => {
            Err(Failure { message: String::new(), code: 0 })
        }
        r => r.about("standard output"),
    }
}

/// Ends a command whose exit code tells what it found: a reader who has gone changes nothing of
/// that, and a report that cannot be written for another reason ends it with `unwritten`.
pub fn found(code: i32, report: std::io::Result<()>, unwritten: i32) -> Outcome {
    debug_assert!((0..256).contains(&code) && unwritten > 0, "exit codes {code} and {unwritten}");
    match written(report) {
        Err(f) if !f.message.is_empty() => Err(f.code(unwritten)),
        _ => Ok(code),
    }
}
