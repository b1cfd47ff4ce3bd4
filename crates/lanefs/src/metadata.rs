//! What is told about a file, as `std::fs` tells it.

use crate::stat::SetTime;
use crate::{FileKind, Ino, Stat, times};
use std::time::SystemTime;

/// What is known about a file, at the moment it was asked. [`Metadata::stat`] has the rest of what
/// `stat(2)` tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metadata(Stat);

#[allow(clippy::len_without_is_empty)] // as in `std::fs::Metadata`
impl Metadata {
    /// The kind of file.
    pub fn file_type(&self) -> FileKind {
        self.0.kind
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.0.kind.is_dir()
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.0.kind.is_file()
    }

    /// Whether it is a symbolic link, which only [`crate::Fs::symlink_metadata`] finds.
    pub fn is_symlink(&self) -> bool {
        self.0.kind.is_symlink()
    }

    /// Its size in bytes.
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// Its inode number.
    pub fn ino(&self) -> Ino {
        self.0.ino
    }

    /// Its permission bits.
    pub fn permissions(&self) -> Permissions {
        Permissions::from_mode(self.0.mode)
    }

    /// When the content was last changed.
    pub fn modified(&self) -> SystemTime {
        times::system_time(self.0.mtime)
    }

    /// When it was last read, as `relatime` counts it.
    pub fn accessed(&self) -> SystemTime {
        times::system_time(self.0.atime)
    }

    /// When it was made.
    pub fn created(&self) -> SystemTime {
        times::system_time(self.0.btime)
    }

    /// When anything of the inode was last changed.
    pub fn changed(&self) -> SystemTime {
        times::system_time(self.0.ctime)
    }

    /// All that `stat(2)` tells.
    pub fn stat(&self) -> &Stat {
        &self.0
    }
}

impl From<Stat> for Metadata {
    fn from(stat: Stat) -> Metadata {
        Metadata(stat)
    }
}

/// The permission bits of a file: 07777 of its mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Permissions(u32);

impl Permissions {
    /// The permission bits of a mode; others are left out.
    pub fn from_mode(mode: u32) -> Permissions {
        Permissions(mode & 0o7777)
    }

    /// The bits, 07777.
    pub fn mode(&self) -> u32 {
        self.0
    }

    /// Sets the bits; those beyond 07777 are left out.
    pub fn set_mode(&mut self, mode: u32) {
        *self = Permissions::from_mode(mode);
    }

    /// Whether nobody has the right to write, by the bits.
    pub fn readonly(&self) -> bool {
        self.0 & 0o222 == 0
    }

    /// Takes the right to write from everybody, or gives it to everybody.
    pub fn set_readonly(&mut self, readonly: bool) {
        if readonly {
            self.0 &= !0o222;
        } else {
            self.0 |= 0o222;
        }
    }
}

impl From<SystemTime> for SetTime {
    fn from(time: SystemTime) -> SetTime {
        SetTime::At(times::from_system_time(time))
    }
}
