//! How calls enter the library, and what becomes of their failures: an `OSError` with the errno,
//! the message of the library and the names of the files, or the exception that `os` and `io` have
//! for an argument that cannot be.

use crate::path::PathArg;
use lanefs::{Error, StoreError};
use lanefs_sync::fork;
use libc::c_int;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a call failed.
pub(crate) enum Failure {
    /// As the library told it.
    Library(Error),
    /// An errno, and the reason in words.
    Errno(c_int, String),
    /// The file or the volume was closed before: `ValueError`, as of files of `io`.
    Closed(&'static str),
    /// An exception that was raised meanwhile.
    Raised(PyErr),
}

/// A result of what is done for a call.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        Failure::Library(e)
    }
}

impl From<PyErr> for Failure {
    fn from(e: PyErr) -> Failure {
        Failure::Raised(e)
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Failure {
        Failure::Errno(Error::errno_of(&e).unwrap_or(libc::EIO), e.to_string())
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        match failure.told() {
            Ok((errno, text)) => PyOSError::new_err((errno, text)),
            Err(e) => e,
        }
    }
}

/// Returns what the system says of an errno.
fn describe(errno: c_int) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_string()
}

impl Failure {
    /// Returns an argument that the system call refuses with EINVAL.
    pub(crate) fn invalid(what: &str) -> Failure {
        Failure::Errno(libc::EINVAL, what.into())
    }

    /// Returns errno and message of an `OSError`, or another exception.
    fn told(self) -> Result<(c_int, String), PyErr> {
        match self {
            Failure::Library(Error::Posix(errno)) => Ok((errno, describe(errno))),
            // Who writes Python makes it in Python.
            Failure::Library(Error::Store(e @ StoreError::NoImage { .. })) => {
                Ok((e.errno(), format!("{}; make it with lanefs.format(PATH, SIZE)", e.without_advice())))
            }
            Failure::Library(e) => Ok((e.errno(), e.to_string())),
            Failure::Errno(errno, text) => Ok((errno, text)),
            Failure::Closed(what) => Err(PyValueError::new_err(what)),
            Failure::Raised(e) => Err(e),
        }
    }

    /// Returns the exception of a call on a path, or on two.
    pub(crate) fn of_paths(self, path: &PathArg<'_>, other: Option<&PathArg<'_>>) -> PyErr {
        match (self.told(), other) {
            (Err(e), _) => e,
            (Ok((errno, text)), None) => PyOSError::new_err((errno, text, path.given().clone().unbind())),
            (Ok((errno, text)), Some(other)) => {
                let names = (path.given().clone().unbind(), other.given().clone().unbind());
                PyOSError::new_err((errno, text, names.0, None::<i32>, names.1))
            }
        }
    }
}

/// Names the files of an outcome that is a failure.
pub(crate) trait At<T> {
    /// The call was on one path.
    fn at(self, path: &PathArg<'_>) -> PyResult<T>;
    /// The call was on two paths.
    fn at_both(self, path: &PathArg<'_>, other: &PathArg<'_>) -> PyResult<T>;
}

impl<T> At<T> for Outcome<T> {
    fn at(self, path: &PathArg<'_>) -> PyResult<T> {
        self.map_err(|failure| failure.of_paths(path, None))
    }

    fn at_both(self, path: &PathArg<'_>, other: &PathArg<'_>) -> PyResult<T> {
        self.map_err(|failure| failure.of_paths(path, Some(other)))
    }
}

/// Refuses a call of the child of a fork: EIO.
#[inline]
pub(crate) fn refuse_children() -> Outcome<()> {
    match fork::is_child() {
        false => Ok(()),
        true => Err(Failure::Errno(
            libc::EIO,
            "a volume is its parent's after a fork: use it there, or start processes by 'spawn'".into(),
        )),
    }
}

/// Calls the library, with the lock of the interpreter released. A panic, which would be a fault of
/// LaneFS, is EIO.
#[inline]
pub(crate) fn outside<R: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> lanefs::Result<R> + Send,
) -> Outcome<R> {
    match py.detach(|| catch_unwind(AssertUnwindSafe(call))) {
        Ok(result) => Ok(result?),
        Err(_) => Err(Failure::Errno(
            libc::EIO,
            "LaneFS itself failed; standard error has where. Close the volume: what was synced is found when it is opened again".into(),
        )),
    }
}
