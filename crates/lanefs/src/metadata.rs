//! The attributes of a file, as `std::fs` has them.

use crate::stat::SetTime;
use crate::{FileKind, Ino, Stat, times};
use std::time::SystemTime;

/// The attributes of a file, at the moment they were asked for. [`Metadata::stat`] has all that
/// `stat(2)` returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metadata(Stat);

#[allow(clippy::len_without_is_empty)] // as in `std::fs::Metadata`
impl Metadata {
    /// Returns the kind of file.
    pub fn file_type(&self) -> FileKind {
        self.0.kind
    }

    /// Returns whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.0.kind.is_dir()
    }

    /// Returns whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.0.kind.is_file()
    }

    /// Returns whether it is a symbolic link, which only [`crate::Fs::symlink_metadata`] finds.
    pub fn is_symlink(&self) -> bool {
        self.0.kind.is_symlink()
    }

    /// Returns its size in bytes.
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// Returns its inode number.
    pub fn ino(&self) -> Ino {
        self.0.ino
    }

    /// Returns its permission bits.
    pub fn permissions(&self) -> Permissions {
        Permissions::from_mode(self.0.mode)
    }

    /// Returns when the content was last changed.
    pub fn modified(&self) -> SystemTime {
        times::system_time(self.0.mtime)
    }

    /// Returns when it was last read, as `relatime` counts it.
    pub fn accessed(&self) -> SystemTime {
        times::system_time(self.0.atime)
    }

    /// Returns when it was made.
    pub fn created(&self) -> SystemTime {
        times::system_time(self.0.btime)
    }

    /// Returns when anything of the inode was last changed.
    pub fn changed(&self) -> SystemTime {
        times::system_time(self.0.ctime)
    }

    /// Returns all that `stat(2)` does.
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
    /// Takes the permission bits of a mode; others are left out.
    pub fn from_mode(mode: u32) -> Permissions {
        Permissions(mode & 0o7777)
    }

    /// Returns the bits, 07777.
    pub fn mode(&self) -> u32 {
        self.0
    }

    /// Sets the bits; those beyond 07777 are left out.
    pub fn set_mode(&mut self, mode: u32) {
        *self = Permissions::from_mode(mode);
    }

    /// Returns whether nobody has the right to write, by the bits.
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
        debug_assert_eq!(self.readonly(), readonly, "{:o}", self.0);
    }
}

impl From<SystemTime> for SetTime {
    fn from(time: SystemTime) -> SetTime {
        SetTime::At(times::from_system_time(time))
    }
}
