//! The reference model: a sequential file system in memory, small and plainly right. It answers
//! every [`Op`] as docs/SEMANTICS.md part 1 says, and tells what each call changed ([`Change`]) so
//! that the oracle can say what a crash may leave (part 2).
//!
//! The order in which errors are looked for is that of Linux's VFS; it was compared with ext4 and
//! tmpfs by `tests/it/directory.rs`.

mod attr;
mod data;
mod namespace;
mod path;

use crate::op::{Attributes, Fd, Name, Op, Outcome, Who};
use lanefs::Cred;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) use data::PAGE;
pub use data::{Page, Pages};

/// An inode of the model. Never used twice.
pub type Id = u64;
/// The root directory.
pub const ROOT: Id = 1;
/// A call's errno.
pub type Errno = i32;
pub(crate) type Res<T = Outcome> = Result<T, Errno>;

/// A time: fixed by a call, or by the clock (which the model doesn't predict).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Time {
    /// Set by utimensat.
    Set(i64),
    /// Some reading of the clock.
    Clock,
}

impl Time {
    fn known(self) -> Option<i64> {
        match self {
            Time::Set(t) => Some(t),
            Time::Clock => None,
        }
    }
}

/// The content of an inode.
#[derive(Clone, Debug)]
pub enum Content {
    /// A regular file.
    File(Pages),
    /// A directory.
    Dir {
        /// Its names.
        entries: BTreeMap<Name, Id>,
        /// The directory it is in; itself for the root.
        parent: Id,
    },
    /// A symbolic link's target.
    Symlink(Name),
    /// A pipe, a socket or a device.
    Other,
}

/// An inode.
#[derive(Clone, Debug)]
pub struct Inode {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names (files); directories derive it.
    pub links: u32,
    /// Handles that hold it open.
    pub opens: u32,
    /// Made by O_TMPFILE without O_EXCL and not yet linked.
    pub linkable: bool,
    /// Extended attributes.
    pub xattrs: BTreeMap<Name, Arc<Vec<u8>>>,
    /// Last access.
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Its content.
    pub content: Content,
}

impl Inode {
    /// The type bits, shifted.
    pub fn kind(&self) -> u8 {
        ((self.mode & libc::S_IFMT) >> 12) as u8
    }
    /// Returns whether it is a directory.
    pub fn is_dir(&self) -> bool {
        matches!(self.content, Content::Dir { .. })
    }
    fn is_file(&self) -> bool {
        matches!(self.content, Content::File(_))
    }
    fn is_symlink(&self) -> bool {
        matches!(self.content, Content::Symlink(_))
    }
}

/// An open handle.
#[derive(Clone, Debug)]
pub struct Handle {
    /// The inode that it opens.
    pub id: Id,
    /// Flags of open(2).
    pub flags: i32,
    /// The position at which read and write go on.
    pub cursor: u64,
}

impl Handle {
    fn readable(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_WRONLY
    }
    fn writable(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }
}

/// The changes that an acknowledged call made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Persist {
    /// fsync of an inode: its names, and all of itself.
    Inode(Id),
    /// fdatasync: its names, pages and size.
    Data(Id),
    /// Everything.
    All,
}

/// The attributes that are written back together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttrState {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time where a call fixed it.
    pub mtime: Option<i64>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Name, Arc<Vec<u8>>>,
}

/// One thing a call changed, with its new value.
#[derive(Clone, Debug)]
pub enum Change {
    /// Part of the call's group: an entry names another inode, or none.
    Entry { dir: Id, name: Name, old: Option<Id>, new: Option<Id> },
    /// Part of the group: a new inode. A symbolic link with its target.
    New { id: Id, kind: u8, target: Option<Name> },
    /// Part of the group: a directory has another parent.
    Moved { id: Id },
    /// Mode, owner or extended attributes.
    Attr { id: Id, state: AttrState },
    /// The size; `cut` if pages went with it (truncation).
    Size { id: Id, size: u64, cut: bool },
    /// A page's bytes (`None`: a hole); `cut` if truncation did it.
    Page { id: Id, page: u64, bytes: Option<Arc<Page>>, cut: bool },
    /// The call, once acknowledged, made this durable.
    Persist(Persist),
}

/// Limits of `fs.protected_*` that a kernel adds (SEMANTICS P4).
#[derive(Clone, Copy, Default, Debug)]
pub struct Quirks {
    /// `fs.protected_hardlinks`.
    pub hardlinks: bool,
    /// `fs.protected_symlinks`.
    pub symlinks: bool,
    /// `fs.protected_regular`.
    pub regular: u8,
}

/// The file system.
#[derive(Clone, Debug)]
pub struct Model {
    /// All inodes that have a name or a handle.
    pub inodes: BTreeMap<Id, Inode>,
    /// Open handles.
    pub handles: BTreeMap<Fd, Handle>,
    /// The rules that the kernel in front adds.
    pub quirks: Quirks,
    next: Id,
    changes: Vec<Change>,
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

impl Model {
    /// An empty volume: a root directory, mode 0755, owned by root.
    pub fn new() -> Model {
        let root = Inode {
            mode: libc::S_IFDIR | 0o755,
            uid: 0,
            gid: 0,
            links: 0,
            opens: 0,
            linkable: false,
            xattrs: BTreeMap::new(),
            atime: Time::Clock,
            mtime: Time::Clock,
            content: Content::Dir { entries: BTreeMap::new(), parent: ROOT },
        };
        Model {
            inodes: BTreeMap::from([(ROOT, root)]),
            handles: BTreeMap::new(),
            quirks: Quirks::default(),
            next: ROOT + 1,
            changes: Vec::new(),
        }
    }

    /// Does one call. What it changed is behind [`Model::take_changes`].
    pub fn apply(&mut self, who: Who, op: &Op) -> Outcome {
        let cred = who.cred();
        match self.call(&cred, op) {
            Ok(o) => o,
            Err(e) => {
                self.changes.clear();
                Outcome::Fail(e)
            }
        }
    }

    /// Takes the changes that the calls since the last time made, in order. A failed call changed
    /// nothing.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Returns whether an inode still exists (has a name or a handle).
    pub fn is_live(&self, id: Id) -> bool {
        self.inodes.contains_key(&id)
    }

    fn call(&mut self, c: &Cred, op: &Op) -> Res {
        match op {
            Op::Open { fd, path, flags, mode } => self.open(c, *fd, path, *flags, *mode),
            Op::Close { fd } => self.close(*fd),
            Op::Mkdir { path, mode } => self.make(c, path, libc::S_IFDIR | (mode & 0o1777), None),
            Op::Mknod { path, mode } => self.make(c, path, *mode, None),
            Op::Symlink { target, path } => self.make(c, path, libc::S_IFLNK | 0o777, Some(target)),
            Op::Rmdir { path } => self.rmdir(c, path),
            Op::Unlink { path } => self.unlink(c, path),
            Op::Link { old, new } => self.link(c, old, new),
            Op::LinkFd { fd, new } => self.link_fd(c, *fd, new),
            Op::Readlink { path } => self.readlink(c, path),
            Op::Rename { old, new, flags } => self.rename(c, old, new, *flags),
            Op::Readdir { path } => self.readdir(c, path),
            Op::Stat { path } => self.lookup(c, path, true).and_then(|id| self.stat(id)),
            Op::Lstat { path } => self.lookup(c, path, false).and_then(|id| self.stat(id)),
            Op::Fstat { fd } => self.handle(*fd).map(|h| h.id).and_then(|id| self.stat(id)),
            Op::Chmod { path, mode } => self.chmod(c, path, *mode),
            Op::Chown { path, uid, gid, follow } => self.chown(c, path, *uid, *gid, *follow),
            Op::Utimens { path, atime, mtime } => self.utimens(c, path, *atime, *mtime),
            Op::Truncate { path, size } => self.truncate_path(c, path, *size),
            Op::Ftruncate { fd, size } => self.ftruncate(c, *fd, *size),
            Op::Read { fd, len } => self.read(*fd, None, *len),
            Op::Pread { fd, offset, len } => self.read(*fd, Some(*offset), *len),
            Op::Write { fd, data } => self.write(c, *fd, None, *data),
            Op::Pwrite { fd, offset, data } => self.write(c, *fd, Some(*offset), *data),
            Op::Fallocate { fd, mode, offset, len } => self.fallocate(c, *fd, *mode, *offset, *len),
            Op::Lseek { fd, offset, whence } => self.lseek(*fd, *offset, *whence),
            Op::Fsync { fd } => {
                let id = self.handle(*fd)?.id;
                self.persist(Persist::Inode(id))
            }
            Op::Fdatasync { fd } => {
                let id = self.handle(*fd)?.id;
                self.persist(Persist::Data(id))
            }
            Op::FsyncDir { path } => {
                let id = self.lookup(c, path, true)?;
                if !self.ino(id)?.is_dir() {
                    return Err(libc::ENOTDIR);
                }
                self.permission(c, id, 4)?;
                self.persist(Persist::Inode(id))
            }
            Op::FsyncPath { path } => {
                let id = self.lookup(c, path, true)?;
                self.permission(c, id, 4)?;
                if matches!(self.ino(id)?.content, Content::Other) {
                    return Err(libc::ENXIO);
                }
                self.persist(Persist::Inode(id))
            }
            Op::Sync | Op::Remount => self.persist(Persist::All),
            Op::Setxattr { path, name, value, flags } => self.setxattr(c, path, name, *value, *flags),
            Op::Getxattr { path, name } => self.getxattr(c, path, name),
            Op::Listxattr { path } => self.listxattr(c, path),
            Op::Removexattr { path, name } => self.removexattr(c, path, name),
            Op::Access { path, mask } => {
                if mask & !7 != 0 {
                    return Err(libc::EINVAL);
                }
                let id = self.lookup(c, path, true)?;
                self.permission(c, id, *mask as u32)?;
                Ok(Outcome::Done)
            }
            Op::Tick | Op::Checkpoint => Ok(Outcome::Done),
        }
    }

    fn persist(&mut self, what: Persist) -> Res {
        self.changes.push(Change::Persist(what));
        Ok(Outcome::Done)
    }

    pub(crate) fn ino(&self, id: Id) -> Res<&Inode> {
        self.inodes.get(&id).ok_or(libc::ESTALE)
    }
    fn ino_mut(&mut self, id: Id) -> Res<&mut Inode> {
        self.inodes.get_mut(&id).ok_or(libc::ESTALE)
    }
    fn handle(&self, fd: Fd) -> Res<&Handle> {
        self.handles.get(&fd).ok_or(libc::EBADF)
    }

    fn stat(&self, id: Id) -> Res {
        let n = self.ino(id)?;
        let size = match &n.content {
            Content::File(p) => Some(p.size),
            Content::Symlink(t) => Some(t.0.len() as u64),
            Content::Dir { .. } => None,
            Content::Other => Some(0),
        };
        Ok(Outcome::Attr(Attributes {
            id: (id, 0),
            mode: n.mode,
            nlink: self.nlink(id, n),
            uid: n.uid,
            gid: n.gid,
            size,
            atime: n.atime.known(),
            mtime: n.mtime.known(),
        }))
    }

    /// Directories: 2 + subdirectories, 0 once removed. Others: their names.
    fn nlink(&self, id: Id, n: &Inode) -> u32 {
        match &n.content {
            Content::Dir { .. } if n.links == 0 && id != ROOT => 0,
            Content::Dir { entries, .. } => {
                2 + entries.values().filter(|e| self.inodes.get(e).is_some_and(|i| i.is_dir())).count() as u32
            }
            _ => n.links,
        }
    }

    /// Every entry as (directory, name, inode).
    pub fn entries(&self) -> impl Iterator<Item = (Id, &Name, Id)> {
        self.inodes.iter().flat_map(|(d, n)| {
            let e = match &n.content {
                Content::Dir { entries, .. } => Some(entries),
                _ => None,
            };
            e.into_iter().flatten().map(move |(name, id)| (*d, name, *id))
        })
    }
}
