//! Words of the kernel to words of the library and back. Nothing here can fail or decide.

use crate::wire::Errno;
use lanefs::{Cred, Error};

impl From<Error> for Errno {
    fn from(e: Error) -> Errno {
        if let Error::Store(s) = &e {
            tracing::error!("{s}");
        }
        Errno(e.errno())
    }
}

/// Returns who calls where the kernel has already applied the rules that depend on the caller.
pub(crate) fn root() -> Cred {
    Cred { prechecked: true, ..Cred::root() }
}
