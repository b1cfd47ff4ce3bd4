//! The attributes of files and volumes.

use lanefs_format::{FileKind, Ino};

/// All that `stat(2)` returns, times in nanoseconds since 1970 ([`crate::times`]: beyond 2225 in
/// seconds).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Inode number.
    pub ino: Ino,
    /// Distinguishes successive uses of one inode number.
    pub generation: u32,
    /// Kind of file.
    pub kind: FileKind,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of names. Directories: 2 + subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number as `dev_t`, for device nodes; else 0.
    pub rdev: u64,
    /// Bytes: of a file its content, of a symbolic link its target, of a directory 4096.
    pub size: u64,
    /// 512-byte units in use, dirty pages included.
    pub blocks: u64,
    /// Last access (relatime).
    pub atime: i64,
    /// Last change of the content.
    pub mtime: i64,
    /// Last change of the inode.
    pub ctime: i64,
    /// When the inode was made.
    pub btime: i64,
}

/// All that `statfs(2)` returns; all sizes in blocks of 4096 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatFs {
    /// Blocks users can fill in all.
    pub blocks: u64,
    /// Blocks free for root.
    pub free: u64,
    /// Blocks free for users: the last of a volume is left to root, a five hundred and twelfth of
    /// it and at most 64 MiB.
    pub available: u64,
    /// Inodes in all (an upper bound: inodes are made on demand).
    pub files: u64,
    /// Inodes that can still be made.
    pub files_free: u64,
    /// The longest name, in bytes.
    pub name_max: u32,
    /// Volume identity, for `f_fsid`.
    pub fsid: u64,
}

/// One entry of a directory listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeEntry<'a> {
    /// Inode number.
    pub ino: Ino,
    /// Kind of file.
    pub kind: FileKind,
    /// Its name, without `/` or NUL.
    pub name: &'a [u8],
    /// Pass this to go on behind this entry. Stable while the entry lives, also across a remount.
    pub cookie: u64,
}

/// The attributes that a new inode has from the start: mode and extended attributes, which become
/// durable together with its name.
#[derive(Clone, Copy, Debug)]
pub struct NewInodeAttrs<'a> {
    /// Permission bits; of special files the type too.
    pub mode: u32,
    /// Names and values. The library checks no ACL against the mode.
    pub xattrs: &'a [(&'a [u8], &'a [u8])],
}

impl From<u32> for NewInodeAttrs<'_> {
    fn from(mode: u32) -> Self {
        NewInodeAttrs { mode, xattrs: &[] }
    }
}

/// A time to set, as in `utimensat(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The time of the call.
    Now,
    /// Nanoseconds since 1970, as [`crate::times`] has them.
    At(i64),
}

/// A change of attributes, by [`crate::Volume::node_setattr`] and [`crate::File::set_attr`]; `None`
/// leaves a field alone.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct SetAttr {
    /// Permission bits, 07777 (type bits are ignored).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes: truncate or extend.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Time of change to store, in nanoseconds since 1970, instead of the time of the call: for a
    /// front end whose kernel keeps a file's times while it caches writes. Set alone, it changes
    /// nothing else.
    pub ctime: Option<i64>,
    /// Clear setuid and setgid, as a write by an ordinary user does (KILLPRIV_V2).
    pub kill_priv: bool,
    /// Who has them cleared is not in the file's group, nor privileged: setgid goes even where the
    /// group may not execute. For a front end that knows; of others the credential tells.
    pub kill_sgid: bool,
}
