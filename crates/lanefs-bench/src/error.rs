//! Errors: a bare errno on the timed path, a message everywhere else.

/// What a single operation of a target failed with. Four bytes, so that the timed loop pays nothing
/// for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// The result of one operation of a target.
pub type Op<T> = Result<T, Errno>;

impl From<rustix::io::Errno> for Errno {
    fn from(e: rustix::io::Errno) -> Errno {
        Errno(e.raw_os_error())
    }
}

impl From<lanefs::Error> for Errno {
    fn from(e: lanefs::Error) -> Errno {
        Errno(e.errno())
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

/// Why a run, a set-up or a report failed: what was being done, and the cause.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The whole message.
    pub message: String,
    /// The user asked for the end (Ctrl-C): clean up and leave, nothing is wrong.
    pub interrupted: bool,
    /// The exit status.
    pub code: i32,
}

impl Failure {
    /// A failure with this message.
    pub fn new(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), interrupted: false, code: 2 }
    }
    /// What was asked cannot be had from this program.
    pub fn refused(message: impl Into<String>) -> Failure {
        Failure { code: 1, ..Failure::new(message) }
    }
    /// Whoever read standard output has gone: nothing is wrong, and nothing is to be said.
    pub fn unread() -> Failure {
        Failure { code: 0, ..Failure::new("") }
    }
    /// The user asked for the end.
    pub fn interrupted() -> Failure {
        Failure { message: "interrupted".into(), interrupted: true, code: 130 }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<String> for Failure {
    fn from(message: String) -> Failure {
        Failure::new(message)
    }
}

/// A result outside the timed path.
pub type Res<T> = Result<T, Failure>;

/// A line on standard output. When its reader has gone the command ends, quietly: as an error, so
/// that what was made is removed.
pub fn say(text: impl std::fmt::Display) -> Res<()> {
    use std::io::Write;
    match writeln!(std::io::stdout(), "{text}") {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Err(Failure::unread()),
        r => r.at("standard output"),
    }
}

/// Says what was being done when an error came up.
pub trait Context<T> {
    /// Adds `what` in front of the error.
    fn at(self, what: impl std::fmt::Display) -> Res<T>;
}

impl<T, E: std::fmt::Display> Context<T> for Result<T, E> {
    fn at(self, what: impl std::fmt::Display) -> Res<T> {
        self.map_err(|e| Failure::new(format!("{what}: {e}")))
    }
}
