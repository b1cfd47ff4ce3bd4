//! The targets that workloads run on: a directory, by system calls, or a LaneFS volume in this
//! process.
//!
//! Workloads are generic over [`Target`] and compiled once for each kind, so a timed loop calls the
//! kernel or the library directly: no vtable, no boxing, no branch on the kind.

mod block;
mod dir;
mod memory;
mod spec;
mod volume;

pub use block::{BLOCK, Block, as_bytes, as_bytes_mut, buffer};
pub use dir::{DirFile, DirTarget};
pub use memory::Memory;
pub use spec::{Named, TargetSpec};
pub use volume::{VolumeFile, VolumeTarget};

use crate::cost::Traffic;
use crate::error::{Op, Res};
use crate::name::Name;
use crate::processors::Helpers;
use std::path::PathBuf;

/// Flags for [`Target::open`], as in `open(2)`.
pub mod flags {
    /// Existing file, reading.
    pub const READ: i32 = libc::O_RDONLY;
    /// Existing file, reading and writing.
    pub const RW: i32 = libc::O_RDWR;
    /// Made if missing.
    pub const CREATE: i32 = libc::O_RDWR | libc::O_CREAT;
    /// Made; it must not exist.
    pub const NEW: i32 = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    /// Existing file, every write at the end.
    pub const APPEND: i32 = libc::O_RDWR | libc::O_APPEND;
    /// Or this in for files whose data the workload is about: O_DIRECT when the run asks for it.
    pub const DATA: i32 = 1 << 30;
}

/// An open file of a target.
pub trait TargetFile: Sync {
    /// Reads at an offset.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Op<usize>;
    /// Writes at an offset.
    fn write_at(&self, buf: &[u8], offset: u64) -> Op<usize>;
    /// Writes at the cursor, or at the end of a file opened for appending.
    fn write(&self, buf: &[u8]) -> Op<usize>;
    /// Moves the cursor to the start.
    fn rewind(&self) -> Op<()>;
    /// Returns the size in bytes.
    fn size(&self) -> Op<u64>;
    /// Sets the size (ftruncate).
    fn set_len(&self, size: u64) -> Op<()>;
    /// Makes data and attributes durable (fsync).
    fn sync(&self) -> Op<()>;
    /// Makes data durable (fdatasync).
    fn sync_data(&self) -> Op<()>;
    /// Says whether what is written to it is short-lived or long-lived (`F_SET_RW_HINT` of fcntl,
    /// with `RWH_WRITE_LIFE_SHORT` and `RWH_WRITE_LIFE_EXTREME`).
    fn set_life(&self, is_short: bool) -> Op<()>;
}

/// A file system as a workload sees it. Paths are relative to the place the cell runs in.
pub trait Target: Sync {
    /// An open file.
    type File: TargetFile;
    /// Returns the beginning of every path of the cell (empty, or a directory and a slash).
    fn prefix(&self) -> &Name;
    /// Opens a file (open(2), mode 0644).
    fn open(&self, path: &Name, flags: i32) -> Op<Self::File>;
    /// Returns the size of a file, from stat(2).
    fn stat(&self, path: &Name) -> Op<u64>;
    /// Makes a directory (mkdir(2), mode 0755).
    fn mkdir(&self, path: &Name) -> Op<()>;
    /// Removes a file (unlink(2)).
    fn unlink(&self, path: &Name) -> Op<()>;
    /// Removes a directory (rmdir(2)).
    fn rmdir(&self, path: &Name) -> Op<()>;
    /// Renames (rename(2)).
    fn rename(&self, old: &Name, new: &Name) -> Op<()>;
    /// Lists a whole directory (open, read to the end, close), without `.` and `..`; returns how
    /// many entries `f` saw.
    fn read_dir(&self, path: &Name, f: impl FnMut(&[u8], bool)) -> Op<u64>;
    /// Makes a directory durable (fsync).
    fn sync_dir(&self, path: &Name) -> Op<()>;
    /// Returns the free blocks that root may use, from statfs(2).
    fn statfs(&self) -> Op<u64>;
    /// Sets both times to now (utimensat(2)).
    fn set_times_now(&self, path: &Name) -> Op<()>;
    /// Returns the traffic of the device so far, if somebody counts.
    fn traffic(&self) -> Option<Traffic>;
    /// Returns whether workers may be processes.
    fn processes(&self) -> bool;
    /// Returns the path of the cell's place for other programs; `None` if only this process sees
    /// it.
    fn place(&self) -> Option<PathBuf> {
        None
    }
    /// Does what earlier calls left to be done: everything is durable, and the background has no
    /// work left, when it returns.
    fn quiesce(&self) -> Res<()>;
    /// Returns who works for the target beside this process.
    fn helpers(&self) -> Helpers;
    /// Opens the place a cell runs in; it must be empty. What earlier cells left to be written or
    /// freed is done first: no cell pays for another.
    fn enter(&mut self) -> Res<()>;
    /// Removes everything the cell left and the place itself.
    fn leave(&mut self) -> Res<()>;
}

/// A target that was opened: one value for the command line's many kinds, matched once per cell.
pub enum OpenTarget {
    /// A directory of a mounted file system.
    Dir(DirTarget),
    /// A volume in this process.
    Volume(VolumeTarget),
}

impl OpenTarget {
    /// Returns how it is called.
    pub fn called(&self) -> &'static str {
        match self {
            OpenTarget::Volume(_) => "in process",
            OpenTarget::Dir(_) => "system calls",
        }
    }
}

/// Removes a tree through a target's own operations.
pub(crate) fn remove_tree<T: Target>(target: &T, path: &Name) -> Op<()> {
    let mut entries: Vec<(Vec<u8>, bool)> = Vec::new();
    target.read_dir(path, |name, dir| entries.push((name.to_vec(), dir)))?;
    for (entry, dir) in entries {
        let mut child = path.clone();
        if !child.is_empty() {
            child.push("/");
        }
        debug_assert!(!entry.is_empty() && entry != b"." && entry != b"..", "it would remove what is above");
        child.push_bytes(&entry);
        if dir {
            remove_tree(target, &child)?;
            target.rmdir(&child)?;
        } else {
            target.unlink(&child)?;
        }
    }
    Ok(())
}
