//! Words of the kernel to words of the library and back. Nothing here can fail or decide.

use crate::wire::Errno;
use lanefs::{Cred, Error, StoreError};

impl From<Error> for Errno {
    fn from(e: Error) -> Errno {
        match &e {
            Error::Store(StoreError::OpenedReadOnly) => tracing::debug!("{e}"),
            Error::Store(s) => tracing::error!("{s}"),
            _ => {}
        }
        Errno(e.errno())
    }
}

/// Returns who calls where the kernel has already applied the rules that depend on the caller.
pub(crate) fn root() -> Cred {
    Cred { prechecked: true, ..Cred::root() }
}
