//! The library's one error type, and its one conversion to errno; and what many calls have in
//! common.
//!
//! # Every call
//!
//! - EIO: the volume was closed or shut down, or is the parent's after a fork; or the device
//!   failed, or what it gave is not what was written, where something had to be read. What does not
//!   match its checksum is named in the log and never served.
//! - EUCLEAN: structures of an inode contradict each other.
//! - EPERM: a change that the flags of an inode forbid, whoever calls
//!   ([`crate::Volume::node_set_flags`]).
//! - EROFS: a change of a volume opened for reading only; or of one on which a write or a flush of
//!   the log failed, until it is opened again. What would make something durable fails with EIO
//!   then.
//!   What was written stays readable.
//! - ENOMEM: a page is needed, and all are dirty and could not be written back for 20 seconds.
//!
//! # Paths
//!
//! Every call on a path may answer:
//!
//! - ENOENT: the path is empty, or names nothing, or a symbolic link on the way does; or a
//!   directory on it was removed.
//! - ENOTDIR: something on the way is no directory; or the path ends in `/` or `/.`, and what it
//!   names is none.
//! - EACCES: a directory on the way may not be searched.
//! - ELOOP: more than 40 symbolic links.
//! - ENAMETOOLONG: a component of more than 255 bytes, or a path of more than 4095.
//!
//! # New names
//!
//! Every call that gives something a name may answer:
//!
//! - EEXIST: the name exists, or is `.`, `..` or the root.
//! - ENOENT: the directory does not exist or was removed; the name is empty; or a path to what is
//!   no directory ends in `/`.
//! - ENAMETOOLONG: more than 255 bytes. EINVAL: a name with a NUL or, by inode number, a `/`.
//! - EACCES: the directory may not be changed.
//! - ENOSPC: no space for the inode or its name.
//! - EROFS: the volume was opened for reading only.
//!
//! # Removed names
//!
//! Every call that takes a name from something may answer:
//!
//! - ENOENT: there is no such name. ENAMETOOLONG: more than 255 bytes. EINVAL: a name with a NUL
//!   or, by inode number, a `/`.
//! - EACCES: the directory may not be changed.
//! - EPERM: it is sticky, and the caller owns neither it nor what the name names.
//! - EROFS: the volume was opened for reading only.

use lanefs_store::StoreError;

/// Why a call failed. [`Error::errno`] is what the system call of the same name would return.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A result POSIX defines: ENOENT, EEXIST, EACCES and so on, as in `libc::E*`.
    #[error("{} (errno {})", describe(*.0), .0)]
    Posix(i32),
    /// The store failed; the message names the structure and what to do.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file ends before the buffer that was to be filled is full: EIO.
    #[error("the file ends before the buffer is full")]
    UnexpectedEnd,
    /// The content, which was to be text, is not UTF-8: EILSEQ.
    #[error("the content is not UTF-8")]
    NotUtf8,
}

impl Error {
    /// Returns the errno of this error, as in `libc::E*`; never 0.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Posix(e) => *e,
            Error::Store(e) => e.errno(),
            Error::UnexpectedEnd => libc::EIO,
            Error::NotUtf8 => libc::EILSEQ,
        }
    }

    /// Returns whether the file system that holds an image is full, not the volume, and the call
    /// was not to wait for that ([`crate::set_patience`]). Nothing is lost; the same call succeeds
    /// when there is space.
    pub fn is_of_full_host(&self) -> bool {
        matches!(self, Error::Store(StoreError::HostFull(_)))
    }

    /// Returns the errno of an error of `std::io` that the library or the system made; `None` for
    /// one that has none.
    pub fn errno_of(e: &std::io::Error) -> Option<i32> {
        let ours = || e.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
        e.raw_os_error().or_else(|| ours().map(Error::errno))
    }
}

/// Returns the text of an errno.
fn describe(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_string()
}

/// The kind is that of the errno. What has a message of its own keeps it, and is found again by
/// `downcast`; all else has the errno as `raw_os_error`. [`Error::errno_of`] finds either.
impl From<Error> for std::io::Error {
    fn from(e: Error) -> Self {
        use std::io::{Error as IoError, ErrorKind};
        match e {
            Error::Posix(n) => IoError::from_raw_os_error(n),
            Error::UnexpectedEnd => IoError::new(ErrorKind::UnexpectedEof, e),
            Error::NotUtf8 => IoError::new(ErrorKind::InvalidData, e),
            Error::Store(_) => IoError::new(IoError::from_raw_os_error(e.errno()).kind(), e),
        }
    }
}

/// A result of the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Returns an error of POSIX, in short.
pub(crate) fn posix<T>(errno: i32) -> Result<T> {
    debug_assert!(errno > 0, "an error without a number");
    Err(Error::Posix(errno))
}
