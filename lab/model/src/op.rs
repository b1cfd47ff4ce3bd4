//! The calls of a file system as values, and what they answer. One vocabulary for the model, for
//! every target and for the oracle.

use lanefs::Cred;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A path or a name: bytes, shown as text where they are.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Name(pub Vec<u8>);

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.len() > 60 {
            return write!(f, "\"{}...({} bytes)\"", self.0[..12].escape_ascii(), self.0.len());
        }
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}
impl From<&str> for Name {
    fn from(s: &str) -> Name {
        Name(s.as_bytes().to_vec())
    }
}
impl From<String> for Name {
    fn from(s: String) -> Name {
        Name(s.into_bytes())
    }
}
impl From<&[u8]> for Name {
    fn from(s: &[u8]) -> Name {
        Name(s.to_vec())
    }
}

/// The user who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum Who {
    /// uid 0.
    #[default]
    Root,
    /// uid 1000, gid 1000, also in group 2000.
    Alice,
    /// uid 1001, gid 1001, also in group 2000.
    Bob,
    /// uid 1002, gid 1002, in no other group.
    Carol,
}

impl Who {
    /// Everybody.
    pub const ALL: [Who; 4] = [Who::Root, Who::Alice, Who::Bob, Who::Carol];
    /// The credential.
    pub fn cred(self) -> Cred {
        match self {
            Who::Root => Cred::root(),
            Who::Alice => Cred::user(1000, 1000, &[2000]),
            Who::Bob => Cred::user(1001, 1001, &[2000]),
            Who::Carol => Cred::user(1002, 1002, &[]),
        }
    }
}

/// The bytes that a write writes: `len` bytes that show the write's tag and the place they belong
/// to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Tagged {
    /// Unique per write in a workload.
    pub tag: u32,
    /// Bytes.
    pub len: u32,
}

impl Tagged {
    /// The byte of write `tag` at `offset` of a file. Never zero, so that a byte is either
    /// unwritten or somebody's.
    pub fn byte(tag: u32, offset: u64) -> u8 {
        let mut z = (u64::from(tag) << 40) ^ offset ^ 0x9e37_79b9_7f4a_7c15;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z >> 32) % 255) as u8 + 1
    }
    /// The bytes of this write when it lands at `offset`.
    pub fn bytes(self, offset: u64) -> Vec<u8> {
        // Eight at a time: under instrumentation each store is a call.
        let mut out = Vec::with_capacity(self.len as usize + 8);
        for i in (0..u64::from(self.len)).step_by(8) {
            let word = (0..8).fold(0, |w, n| w | u64::from(Self::byte(self.tag, offset + i + n)) << (8 * n));
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.truncate(self.len as usize);
        out
    }
}

/// The attribute that holds the access ACL: of a [`Tagged`] value it is set to what [`acl_of`]
/// makes of that.
pub const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// The attribute that holds the capabilities a program runs with.
pub const CAPABILITY: &[u8] = b"security.capability";

/// The permissions of an ACL: of the owner, the group class (its mask, where it has one) and
/// others; and of a user that it names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AclPerms {
    /// Those that the mode shows.
    pub shown: [u32; 3],
    /// Whether it names a user: otherwise it says no more than the mode.
    pub names: bool,
}

/// Returns the ACL that stands for a value, as bytes and what it says; `None` for an empty value,
/// which takes the ACL away.
pub fn acl_of(value: Tagged) -> Option<(Vec<u8>, AclPerms)> {
    if value.len == 0 {
        return None;
    }
    let part = |shift: u32| (value.tag >> shift) & 7;
    let (owner, group, others, names) = (part(0), part(3), part(6), !value.tag.is_multiple_of(3));
    let none = u32::MAX;
    let entries: &[(u16, u32, u32)] = match names {
        true => {
            &[(1, owner, none), (2, group, 1001), (4, 0, none), (0x10, group, none), (0x20, others, none)]
        }
        false => &[(1, owner, none), (4, group, none), (0x20, others, none)],
    };
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend((*perm as u16).to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    Some((bytes, AclPerms { shown: [owner, group, others], names }))
}

/// Changes the permissions that the mode shows in an ACL with a named user, as [`acl_of`] makes it.
pub fn chmod_acl(bytes: &mut [u8], mode: u32) {
    assert_eq!(bytes.len(), 4 + 5 * 8, "an ACL with a named user");
    for (entry, perm) in [(0, mode >> 6), (3, mode >> 3), (4, mode)] {
        bytes[4 + entry * 8 + 2] = (perm & 7) as u8;
    }
}

/// An open handle's place in the table of a run; small, chosen by whoever writes the sequence.
pub type Fd = u8;

/// A time for [`Op::Utimens`]: leave it, the time of the call, or nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum When {
    /// UTIME_OMIT.
    Keep,
    /// UTIME_NOW.
    Now,
    /// Nanoseconds since 1970.
    At(i64),
}

/// One call.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum Op {
    /// open(2); the handle goes to slot `fd`, which must be free.
    Open { fd: Fd, path: Name, flags: i32, mode: u32 },
    /// close(2).
    Close { fd: Fd },
    /// mkdir(2).
    Mkdir { path: Name, mode: u32 },
    /// mknod(2).
    Mknod { path: Name, mode: u32 },
    /// rmdir(2).
    Rmdir { path: Name },
    /// unlink(2).
    Unlink { path: Name },
    /// link(2).
    Link { old: Name, new: Name },
    /// linkat(2) of an open handle: gives an O_TMPFILE a name.
    LinkFd { fd: Fd, new: Name },
    /// symlink(2).
    Symlink { target: Name, path: Name },
    /// readlink(2).
    Readlink { path: Name },
    /// renameat2(2).
    Rename { old: Name, new: Name, flags: u32 },
    /// Opens, reads and closes a directory.
    Readdir { path: Name },
    /// stat(2).
    Stat { path: Name },
    /// lstat(2).
    Lstat { path: Name },
    /// fstat(2).
    Fstat { fd: Fd },
    /// chmod(2).
    Chmod { path: Name, mode: u32 },
    /// chown(2), or lchown.
    Chown { path: Name, uid: Option<u32>, gid: Option<u32>, follow: bool },
    /// utimensat(2).
    Utimens { path: Name, atime: When, mtime: When },
    /// truncate(2).
    Truncate { path: Name, size: u64 },
    /// ftruncate(2).
    Ftruncate { fd: Fd, size: u64 },
    /// read(2).
    Read { fd: Fd, len: u32 },
    /// write(2); with O_APPEND at the end.
    Write { fd: Fd, data: Tagged },
    /// pread(2).
    Pread { fd: Fd, offset: u64, len: u32 },
    /// pwrite(2).
    Pwrite { fd: Fd, offset: u64, data: Tagged },
    /// fallocate(2).
    Fallocate { fd: Fd, mode: i32, offset: u64, len: u64 },
    /// lseek(2).
    Lseek { fd: Fd, offset: i64, whence: i32 },
    /// fsync(2), of a file or a directory.
    Fsync { fd: Fd },
    /// fdatasync(2).
    Fdatasync { fd: Fd },
    /// Opens a directory, fsyncs it, closes it.
    FsyncDir { path: Name },
    /// Opens any file for reading, fsyncs it, closes it.
    FsyncPath { path: Name },
    /// syncfs(2).
    Sync,
    /// setxattr(2); the value is `len` bytes made of `tag`.
    Setxattr { path: Name, name: Name, value: Tagged, flags: i32 },
    /// getxattr(2).
    Getxattr { path: Name, name: Name },
    /// listxattr(2).
    Listxattr { path: Name },
    /// removexattr(2).
    Removexattr { path: Name, name: Name },
    /// faccessat(2) with AT_EACCESS.
    Access { path: Name, mask: i32 },
    /// One round of background work. Promises nothing; a no-op on targets that have none.
    Tick,
    /// A checkpoint. Promises nothing; a no-op on targets that have none.
    Checkpoint,
    /// A clean unmount and a mount. All handles must be closed. A no-op on targets that can't.
    Remount,
}

/// A call and its caller.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Step {
    /// The user who calls.
    pub who: Who,
    /// The call.
    pub op: Op,
}

impl From<Op> for Step {
    fn from(op: Op) -> Step {
        Step { who: Who::Root, op }
    }
}

/// The kind of a file, as the type bits of `st_mode` shifted right by 12.
pub type Kind = u8;

/// The identity of an inode. The model answers its own numbers; a target its inode number and
/// generation.
pub type Identity = (u64, u32);

/// The answer of stat, without the fields that no rule fixes. `None`: not to be compared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Which inode.
    pub id: Identity,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of names; directories 2 + subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes; `None` for directories.
    pub size: Option<u64>,
    /// Nanoseconds since 1970, where a call fixed it.
    pub atime: Option<i64>,
    /// Nanoseconds since 1970, where a call fixed it.
    pub mtime: Option<i64>,
}

/// The answer of a call.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Success without a value.
    Done,
    /// An errno.
    Fail(i32),
    /// A number: bytes written, an offset.
    Count(u64),
    /// Bytes: read, readlink, getxattr.
    Bytes(Vec<u8>),
    /// stat.
    Attr(Attributes),
    /// A listing without `.` and `..`: name to kind and identity (`None` where the target doesn't
    /// tell).
    List(BTreeMap<Name, (Kind, u64)>),
    /// listxattr.
    Keys(BTreeSet<Name>),
    /// The target has no such call.
    Unsupported,
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Done => f.write_str("ok"),
            Outcome::Fail(e) => f.write_str(&errno_name(*e)),
            Outcome::Count(n) => write!(f, "{n}"),
            Outcome::Bytes(b) if b.len() <= 16 => write!(f, "{} bytes {b:02x?}", b.len()),
            Outcome::Bytes(b) => {
                let (mut runs, mut at) = (Vec::new(), 0);
                while at < b.len() {
                    let zero = b[at] == 0;
                    let n = b[at..].iter().take_while(|x| (**x == 0) == zero).count();
                    runs.push(format!("{}{}", n, if zero { " zero" } else { " set" }));
                    at += n;
                }
                write!(f, "{} bytes [{}] {:02x?}..", b.len(), runs.join(", "), &b[..8])
            }
            Outcome::Attr(a) => write!(f, "{a:?}"),
            Outcome::List(l) => write!(f, "{l:?}"),
            Outcome::Keys(k) => write!(f, "{k:?}"),
            Outcome::Unsupported => f.write_str("unsupported"),
        }
    }
}

/// The name of an errno, as far as the model uses it.
pub fn errno_name(e: i32) -> String {
    let known = [
        (libc::EPERM, "EPERM"),
        (libc::ENOENT, "ENOENT"),
        (libc::EIO, "EIO"),
        (libc::ENXIO, "ENXIO"),
        (libc::E2BIG, "E2BIG"),
        (libc::EBADF, "EBADF"),
        (libc::EACCES, "EACCES"),
        (libc::EBUSY, "EBUSY"),
        (libc::EEXIST, "EEXIST"),
        (libc::ENOTDIR, "ENOTDIR"),
        (libc::EISDIR, "EISDIR"),
        (libc::EINVAL, "EINVAL"),
        (libc::EFBIG, "EFBIG"),
        (libc::ENOSPC, "ENOSPC"),
        (libc::EROFS, "EROFS"),
        (libc::EMLINK, "EMLINK"),
        (libc::ERANGE, "ERANGE"),
        (libc::ENAMETOOLONG, "ENAMETOOLONG"),
        (libc::ENOTEMPTY, "ENOTEMPTY"),
        (libc::ELOOP, "ELOOP"),
        (libc::ENODATA, "ENODATA"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (libc::ENOSYS, "ENOSYS"),
        (libc::ESTALE, "ESTALE"),
        (libc::EUCLEAN, "EUCLEAN"),
    ];
    known.iter().find(|k| k.0 == e).map_or(format!("errno {e}"), |k| k.1.to_string())
}
