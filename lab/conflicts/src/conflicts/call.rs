//! The calls whose pairs are looked at.

/// A call; its arguments are chosen when the pair is explored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[allow(missing_docs)]
pub enum Call {
    Open,
    Create,
    Link,
    Unlink,
    Rename,
    Symlink,
    Readlink,
    Mkdir,
    Rmdir,
    Readdir,
    Stat,
    Chmod,
    Chown,
    Utimens,
    Truncate,
    Setxattr,
    Getxattr,
    Access,
    Fstat,
    Read,
    Write,
    Append,
    Pread,
    Pwrite,
    Ftruncate,
    Lseek,
    Close,
    Fsync,
    Fdatasync,
    FsyncDir,
    Sync,
    /// A checkpoint that is under way: past its seal, stopped at a write, and going on afterwards.
    Checkpoint,
}

use Call::*;

impl Call {
    /// All of them, in the order of the heat map.
    pub const ALL: [Call; 32] = [
        Open, Create, Link, Unlink, Rename, Symlink, Readlink, Mkdir, Rmdir, Readdir, Stat, Chmod, Chown,
        Utimens, Truncate, Setxattr, Getxattr, Access, Fstat, Read, Write, Append, Pread, Pwrite, Ftruncate,
        Lseek, Close, Fsync, Fdatasync, FsyncDir, Sync, Checkpoint,
    ];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Open => "open",
            Create => "create",
            Link => "link",
            Unlink => "unlink",
            Rename => "rename",
            Symlink => "symlink",
            Readlink => "readlink",
            Mkdir => "mkdir",
            Rmdir => "rmdir",
            Readdir => "readdir",
            Stat => "stat",
            Chmod => "chmod",
            Chown => "chown",
            Utimens => "utimens",
            Truncate => "truncate",
            Setxattr => "setxattr",
            Getxattr => "getxattr",
            Access => "access",
            Fstat => "fstat",
            Read => "read",
            Write => "write",
            Append => "append",
            Pread => "pread",
            Pwrite => "pwrite",
            Ftruncate => "ftruncate",
            Lseek => "lseek",
            Close => "close",
            Fsync => "fsync",
            Fdatasync => "fdatasync",
            FsyncDir => "fsyncdir",
            Sync => "sync",
            Checkpoint => "checkpoint",
        }
    }

    /// The call of this name.
    pub fn named(name: &str) -> Option<Call> {
        Call::ALL.into_iter().find(|c| c.name() == name)
    }

    /// All pairs, each once; but a sync and a checkpoint wait for a checkpoint that is under way,
    /// as they should.
    pub fn pairs() -> impl Iterator<Item = (Call, Call)> {
        let n = Call::ALL.len();
        let all = (0..n).flat_map(move |i| (i..n).map(move |j| (Call::ALL[i], Call::ALL[j])));
        all.filter(|p| !matches!(p, (Sync | Checkpoint, Checkpoint)))
    }
}
