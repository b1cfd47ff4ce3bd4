//! Numbers of the kernel's FUSE protocol, as in its include/uapi/linux/fuse.h (7.42 and before).

/// Major version of the protocol.
pub const MAJOR: u32 = 7;
/// The newest minor version this side knows.
pub const MINOR: u32 = 42;
/// The oldest it works with: Linux 4.20, whose requests may be a megabyte.
pub const MINOR_LEAST: u32 = 28;
/// The first minor version (Linux 5.14) of which every kernel checks who sets flags of an inode.
pub const MINOR_CHECKS_FLAGS: u32 = 34;
/// From this one on (Linux 6.16) names are valid until the next epoch, and what the kernel found by
/// a file handle is of none: it is never valid to an overlay.
pub const MINOR_EPOCHS: u32 = 44;

/// Bytes before a request's arguments.
pub const IN_HEADER: usize = 40;
/// Bytes before an answer.
pub const OUT_HEADER: usize = 16;

/// The kinds of requests.
pub mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
}

/// Flags of INIT: abilities of the kernel, and of the server.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// The second word of flags is there.
    pub const INIT_EXT: u64 = 1 << 30;
    /// A file that is opened with FOPEN_DIRECT_IO may be mapped, and what is cached of it is
    /// written back before it is read.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// No file handle leads to a file. Without EXPORT_SUPPORT those of inodes that the kernel has
    /// in memory do.
    pub const NO_EXPORT_SUPPORT: u64 = 1 << 38;
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Requests over io_uring: commands, and the fields of an entry's header.
pub mod ring {
    pub const REGISTER: u32 = 1;
    pub const COMMIT_AND_FETCH: u32 = 2;
    /// Bytes of the header. It begins with a request's or an answer's.
    pub const HEADER: usize = 288;
    /// A request's first argument, if it is a struct.
    pub const ARGUMENT: usize = 128;
    pub const ARGUMENT_SIZE: usize = 128;
    pub const COMMIT_ID: usize = 264;
    pub const PAYLOAD_SIZE: usize = 272;
}

/// Flags of SETATTR: the fields that it sets.
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// The user and the group of a request of which the kernel does not state who makes it.
pub const NOBODY_SAID: u32 = u32::MAX;

/// GETATTR and STATX: the handle is set.
pub const GETATTR_FH: u32 = 1;
/// OPEN, CREATE: whoever opens may not keep setuid and setgid when it truncates.
pub const OPEN_KILL_SUIDGID: u32 = 1;
/// OPEN's answer: reads and writes go past the kernel's cache.
pub const FOPEN_DIRECT_IO: u32 = 1 << 0;
/// OPEN's answer: what the kernel has cached of the file stays.
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// OPENDIR's answer: the kernel keeps the listing.
pub const FOPEN_CACHE_DIR: u32 = 1 << 3;
/// OPEN's answer: O_DIRECT writes of one file may run side by side.
pub const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
/// WRITE: pages of the kernel's cache.
pub const WRITE_CACHE: u32 = 1 << 0;
/// WRITE: setuid and setgid go.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// SETXATTR of an access ACL: setgid goes.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// FSYNC: only the data.
pub const FSYNC_FDATASYNC: u32 = 1;
/// IOCTL of a directory.
pub const IOCTL_DIR: u32 = 1 << 4;
/// Notification: drop what is cached of an inode.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// Notification: drop what is believed of a name.
pub const NOTIFY_INVAL_ENTRY: i32 = 3;
/// `ioctl` of /dev/fuse that ties a descriptor to another's connection.
pub const DEV_IOC_CLONE: u64 = 0x8004_e500;
