//! The store's one error type. Every message names the structure and what to do; every variant has
//! one errno.

use lanefs_format::superblock::SuperblockError;
use lanefs_format::{BlockAddr, FormatError, Ino};

/// An error of the store.
#[derive(Debug, Clone, thiserror::Error)]
#[allow(missing_docs)] // the message of each variant says what its fields are
pub enum StoreError {
    /// The device refused a read, a write or a flush: EIO, or ENOSPC where the file system under an
    /// image is full. `offset` is in bytes.
    #[error(
        "{device}: {what} at byte {offset} failed: {message}; {}", advice(*.errno)
    )]
    Io { device: String, what: &'static str, offset: u64, message: String, errno: i32 },
    /// A block's checksum, header or content is wrong: EIO.
    #[error("block {addr} ({what}): {why}; {}", way_back(what))]
    Corrupt { addr: BlockAddr, what: &'static str, why: String },
    /// An inode's structures contradict each other: EUCLEAN.
    #[error("inode {ino}: {why}; run `lanefs fsck --repair` on the unmounted image")]
    BadInode { ino: Ino, why: String },
    /// The system would not open or make the image: its answer, such as ENOENT, EACCES, EEXIST.
    #[error("{device}: {why}")]
    NotOpened { device: String, why: String, errno: i32 },
    /// There is no image yet: it does not exist (ENOENT), or is an empty file (EINVAL).
    #[error("{device}: {why}; make it with `lanefs mkfs --size SIZE`")]
    NoImage { device: String, why: &'static str, errno: i32 },
    /// The image is no LaneFS volume, or not one this version can open: EINVAL.
    #[error("{device}: {why}")]
    NotAVolume { device: String, why: String },
    /// The image or device is shorter than its volume: EINVAL.
    #[error("{device}: {why}")]
    TooShort { device: String, why: String },
    /// Another process has the image open: EBUSY. `pid` is 0 if it is not known which.
    #[error("{device}: {}", holder(*.pid))]
    InUse { device: String, pid: i32 },
    /// No space is left: ENOSPC.
    #[error(
        "no space left on the volume; delete files, or make it larger (`lanefs grow`, `lanefs device add`)"
    )]
    NoSpace,
    /// The file system that holds an image has no space, and who waited for it may wait no longer:
    /// ENOSPC. Nothing is lost; the same call succeeds when there is space.
    #[error("{0}")]
    HostFull(String),
    /// What lives does not fit into what a smaller volume would have: ENOSPC.
    #[error("{0}")]
    TooSmall(String),
    /// The volume was opened for reading only: EROFS.
    #[error("the volume was opened for reading only")]
    OpenedReadOnly,
    /// A device error put the volume in read-only mode: EROFS.
    #[error("the volume went read-only after: {why}; unmount it, run `lanefs fsck`, and mount it again")]
    ReadOnly { why: String },
    /// The volume was closed, or is being closed and takes nothing more: EIO.
    #[error("the volume is closed")]
    Closed,
    /// The caller asked for something impossible: EINVAL.
    #[error("{0}")]
    Invalid(String),
}

/// Returns who has an image open, for a message.
fn holder(pid: i32) -> String {
    match u32::try_from(pid) == Ok(std::process::id()) {
        true => "is open in this process already; was it named twice?".into(),
        false => format!(
            "in use by process {pid}; unmount it there first, or use its files through a mount that this process serves"
        ),
    }
}

/// The way in which the content of file data is called in messages.
pub(crate) const FILE_DATA: &str = "file data";

/// Returns what is to be done about a damaged block. Of file data there is one copy.
fn way_back(what: &str) -> &'static str {
    debug_assert!(!what.is_empty(), "a block of nothing");
    match what {
        FILE_DATA => "it is there once: write the file anew, or restore it from a backup",
        _ => "run `lanefs fsck --repair` on the unmounted image, or restore it from a backup",
    }
}

/// Returns what to do about an error of a device.
fn advice(errno: i32) -> &'static str {
    match errno {
        libc::ENOSPC | libc::EDQUOT => {
            "the file system that holds the image is full, not the volume: free space there, and try again"
        }
        _ => "check the device and its cables, then run `lanefs fsck`",
    }
}

impl From<FormatError> for StoreError {
    fn from(e: FormatError) -> StoreError {
        StoreError::Corrupt { addr: e.addr, what: e.what, why: e.why }
    }
}

impl StoreError {
    /// Returns the error for a superblock that is none, or none this version can open, on the
    /// device named.
    pub fn superblock(device: &str, error: &SuperblockError) -> StoreError {
        let (device, why) = (device.into(), error.to_string());
        match error {
            SuperblockError::Truncated { .. } => StoreError::TooShort { device, why },
            _ => StoreError::NotAVolume { device, why },
        }
    }

    /// Returns whether the device did not do what it was asked. An offset beyond its end is no such
    /// error: who named it is wrong.
    pub(crate) fn is_of_device(&self) -> bool {
        matches!(self, StoreError::Io { errno, .. } if *errno != libc::EINVAL)
    }

    /// Returns whether a device's host had no space for a write: see `device::host`.
    pub(crate) fn is_of_full_host(&self) -> bool {
        matches!(self, StoreError::Io { errno: libc::ENOSPC | libc::EDQUOT, .. })
    }

    /// Returns the message without what to do about the error: for callers that give their own
    /// advice.
    pub fn without_advice(&self) -> String {
        match self {
            StoreError::Corrupt { addr, what, why } => format!("block {addr} ({what}): {why}"),
            StoreError::BadInode { ino, why } => format!("inode {ino}: {why}"),
            StoreError::Io { device, what, offset, message, .. } => {
                format!("{device}: {what} at byte {offset} failed: {message}")
            }
            StoreError::NoImage { device, why, .. } => format!("{device}: {why}"),
            StoreError::NotAVolume { device, why } => {
                let advice = why.find("; run `lanefs fsck").or(why.find("; if it was one, `lanefs fsck"));
                format!("{device}: {}", &why[..advice.unwrap_or(why.len())])
            }
            e => e.to_string(),
        }
    }

    /// Returns the errno a caller of a system call would see.
    pub fn errno(&self) -> i32 {
        match self {
            StoreError::Io { errno: libc::ENOSPC | libc::EDQUOT, .. } => libc::ENOSPC,
            StoreError::Io { .. } | StoreError::Corrupt { .. } | StoreError::Closed => libc::EIO,
            StoreError::BadInode { .. } => libc::EUCLEAN,
            StoreError::NotOpened { errno, .. } | StoreError::NoImage { errno, .. } => *errno,
            StoreError::NotAVolume { .. } | StoreError::TooShort { .. } => libc::EINVAL,
            StoreError::InUse { .. } => libc::EBUSY,
            StoreError::NoSpace | StoreError::HostFull(_) | StoreError::TooSmall(_) => libc::ENOSPC,
            StoreError::OpenedReadOnly | StoreError::ReadOnly { .. } => libc::EROFS,
            StoreError::Invalid(_) => libc::EINVAL,
        }
    }
}

/// A result of the store.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;
