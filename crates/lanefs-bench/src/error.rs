//! Errors: a bare errno on the timed path, a message everywhere else.

/// The error of a single operation of a target. Four bytes, so that the timed loop pays nothing
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

/// The failure of a run, a set-up or a report: what was being done, and the cause.
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
    /// Makes a failure with this message.
    pub fn new(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), interrupted: false, code: 2 }
    }
    /// Makes the failure of a wish that this program cannot fulfil.
    pub fn refused(message: impl Into<String>) -> Failure {
        Failure { code: 1, ..Failure::new(message) }
    }
    /// Makes the failure to write to standard output when its reader has gone: nothing is wrong,
    /// and nothing is printed.
    pub fn unread() -> Failure {
        Failure { code: 0, ..Failure::new("") }
    }
    /// Makes the failure of a run that the user asked to end.
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

/// Prints a line on standard output. When its reader has gone the command ends, quietly: as an
/// error, so that what was made is removed.
pub fn say(text: impl std::fmt::Display) -> Res<()> {
    use std::io::Write;
    match writeln!(std::io::stdout(), "{text}") {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Err(Failure::unread()),
        r => r.at("standard output"),
    }
}

/// Results to which the failure's context can be added.
pub trait Context<T> {
    /// Adds what was being done, `what`, in front of the error.
    fn at(self, what: impl std::fmt::Display) -> Res<T>;
}

impl<T, E: std::fmt::Display> Context<T> for Result<T, E> {
    fn at(self, what: impl std::fmt::Display) -> Res<T> {
        self.map_err(|e| Failure::new(format!("{what}: {e}")))
    }
}
