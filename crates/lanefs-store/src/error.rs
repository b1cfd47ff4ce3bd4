//! The store's one error type. Every message names the structure and what to do; every variant has one errno.

use crate::types::{BlockAddr, Ino};

/// What went wrong in the store.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The device refused a read, a write or a flush.
    #[error(
        "{device}: {what} at byte {offset} failed: {message}; check the device and its cables, then run `lanefs fsck`"
    )]
    Io { device: String, what: &'static str, offset: u64, message: String, errno: i32 },
    /// A block's checksum, header or content is wrong.
    #[error(
        "block {addr} ({what}): {why}; run `lanefs fsck --repair` on the unmounted image, or restore it from a backup"
    )]
    Corrupt { addr: BlockAddr, what: &'static str, why: String },
    /// An inode's structures contradict each other.
    #[error("inode {ino}: {why}; run `lanefs fsck --repair` on the unmounted image")]
    BadInode { ino: Ino, why: String },
    /// The image is not a LaneFS volume, or not one this version can open.
    #[error("{device}: {why}")]
    NotAVolume { device: String, why: String },
    /// Another process has the image open.
    #[error("{device}: in use by process {pid}; unmount it there first")]
    InUse { device: String, pid: i32 },
    /// No room is left.
    #[error("no space left on the volume; delete files, or make a larger volume")]
    NoSpace,
    /// A device error put the volume in read-only mode.
    #[error("the volume went read-only after: {why}; unmount it, run `lanefs fsck`, and mount it again")]
    ReadOnly { why: String },
    /// The caller asked for something impossible.
    #[error("{0}")]
    Invalid(String),
}

impl StoreError {
    /// The errno a caller of a system call would see.
    pub fn errno(&self) -> i32 {
        match self {
            StoreError::Io { errno, .. } if *errno == libc::ENOSPC => libc::ENOSPC,
            StoreError::Io { .. } | StoreError::Corrupt { .. } => libc::EIO,
            StoreError::BadInode { .. } => libc::EUCLEAN,
            StoreError::NotAVolume { .. } => libc::EINVAL,
            StoreError::InUse { .. } => libc::EBUSY,
            StoreError::NoSpace => libc::ENOSPC,
            StoreError::ReadOnly { .. } => libc::EROFS,
            StoreError::Invalid(_) => libc::EINVAL,
        }
    }
}

/// A result of the store.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;
