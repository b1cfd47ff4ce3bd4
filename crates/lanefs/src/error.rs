//! The library's one error type, and its one conversion to errno.

use lanefs_store::StoreError;

/// Why a call failed. [`Error::errno`] is what the system call of the same name would return.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A result POSIX defines: ENOENT, EEXIST, EACCES and so on.
    #[error("{} (errno {})", describe(*.0), .0)]
    Posix(i32),
    /// The store failed; the message names the structure and what to do.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Error {
    /// The errno of this error, as in `libc::E*`.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Posix(e) => *e,
            Error::Store(e) => e.errno(),
        }
    }
}

fn describe(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_string()
}

impl From<Error> for std::io::Error {
    fn from(e: Error) -> Self {
        match e {
            Error::Posix(n) => std::io::Error::from_raw_os_error(n),
            Error::Store(s) => std::io::Error::new(std::io::Error::from_raw_os_error(s.errno()).kind(), s),
        }
    }
}

/// A result of the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of POSIX, in short.
pub(crate) fn posix<T>(errno: i32) -> Result<T> {
    Err(Error::Posix(errno))
}
