//! Operations by inode number, for front ends that keep inode numbers (FUSE). `cred.prechecked` says that
//! permissions were checked by the kernel.
//!
//! All namespace changes become durable with the next epoch commit ([`Volume::sync`], or the timer), or earlier with an fsync that
//! needs them; each is atomic: after a crash it is there whole or not at all, and none is there without those it depends on.

use crate::error::{Error, Result};
use crate::memfs::Cell;
use crate::memfs::cell::LINKABLE;
use crate::ops::create::{Made, Spec};
use crate::ops::{perm, posix};
use crate::{Cred, DirEntry, File, FileKind, Ino, SetAttr, Stat, Volume};
use crossbeam_epoch::{Guard, pin};

impl Volume {
    /// The inode that `name` of `parent` names. ENOENT if none, ENOTDIR, EACCES. `.` and `..` are understood.
    pub fn node_lookup(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<Stat> {
        let inner = &self.0.inner;
        inner.check_alive()?;
        inner.wait_for_room();
        let guard = pin();
        let (cell, dir) = inner.dir_cell(parent, &guard)?;
        perm::check(cell, cred, perm::X)?;
        match name {
            b"." => return Ok(cell.stat()),
            b".." => {
                let up = Ino(cell.parent.load(std::sync::atomic::Ordering::Acquire));
                return Ok(inner.cell(up, &guard)?.stat());
            }
            _ if name.len() > lanefs_store::NAME_MAX => return posix(libc::ENAMETOOLONG),
            _ => {}
        }
        for _ in 0..1000 {
            match inner.lookup(cell, dir, name, &guard)? {
                None => return posix(libc::ENOENT),
                Some((ino, _)) => match inner.cell(ino, &guard) {
                    Ok(c) => return Ok(c.stat()),
                    Err(Error::Posix(libc::ESTALE)) => lanefs_sync::schedule::yield_now(),
                    Err(e) => return Err(e),
                },
            }
        }
        posix(libc::ENOENT)
    }

    /// Attributes. ESTALE if the inode is gone.
    pub fn node_stat(&self, ino: Ino) -> Result<Stat> {
        self.0.inner.check_alive()?;
        Ok(self.0.inner.cell(ino, &pin())?.stat())
    }

    /// Changes attributes and returns the new ones.
    pub fn node_setattr(&self, cred: &Cred, ino: Ino, set: &SetAttr) -> Result<Stat> {
        self.change_attrs(cred, ino, set, &pin()).map(Cell::stat)
    }

    /// The same for those who do not ask for the new ones, which lie on more lines.
    pub(crate) fn change_attrs<'g>(
        &self,
        cred: &Cred,
        ino: Ino,
        set: &SetAttr,
        guard: &'g Guard,
    ) -> Result<&'g Cell> {
        let cell = self.0.inner.cell(ino, guard)?;
        // A slot keeps the inode from being freed under a truncation.
        let _held = set.size.is_some().then(|| self.0.handle(cell, cred, libc::O_RDWR)).transpose()?;
        self.0.inner.set_attr(cred, cell, set, false)?;
        Ok(cell)
    }

    /// Creates (or, without O_EXCL, opens) a regular file.
    pub fn node_create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        mode: u32,
        flags: i32,
    ) -> Result<(Stat, File)> {
        self.0.inner.slow_down_meta();
        let root = &self.0;
        let (f, _) = root.inner.with_room(|| root.create_at(cred, parent, name, mode, flags, &pin()))?;
        Ok((f.cell().stat(), f))
    }

    /// Opens an inode; directories too.
    pub fn node_open(&self, cred: &Cred, ino: Ino, flags: i32) -> Result<File> {
        self.0.open_ino(cred, ino, flags & !(libc::O_CREAT | libc::O_EXCL), &pin())
    }

    /// A file without a name (O_TMPFILE); [`File::link_to`] can give it one.
    pub fn node_tmpfile(&self, cred: &Cred, parent: Ino, mode: u32, flags: i32) -> Result<(Stat, File)> {
        self.0.inner.with_room(|| {
            let guard = pin();
            let cell = self.0.inner.make_unnamed(cred, parent, mode, &guard)?;
            if flags & libc::O_EXCL == 0 {
                cell.set(LINKABLE);
            }
            let f = self.0.handle(cell, cred, flags)?;
            self.0.inner.note_unnamed(cell);
            Ok((cell.stat(), f))
        })
    }

    /// Makes a file of any kind but directory and symbolic link. EEXIST, EINVAL, EPERM.
    pub fn node_mknod(&self, cred: &Cred, parent: Ino, name: &[u8], mode: u32, rdev: u64) -> Result<Stat> {
        let kind = match mode & libc::S_IFMT {
            0 => FileKind::File,
            _ => FileKind::from_mode(mode).ok_or(Error::Posix(libc::EINVAL))?,
        };
        match kind {
            FileKind::Dir => return posix(libc::EPERM),
            FileKind::Symlink => return posix(libc::EINVAL),
            FileKind::Char | FileKind::BlockDev if !cred.is_root() && !cred.prechecked => {
                return posix(libc::EPERM);
            }
            _ => {}
        }
        let rdev = if matches!(kind, FileKind::Char | FileKind::BlockDev) { rdev } else { 0 };
        self.make(cred, parent, name, &Spec { kind, mode, rdev, target: b"" })
    }

    /// Makes a directory.
    pub fn node_mkdir(&self, cred: &Cred, parent: Ino, name: &[u8], mode: u32) -> Result<Stat> {
        self.make(cred, parent, name, &Spec { kind: FileKind::Dir, mode, rdev: 0, target: b"" })
    }

    /// Makes a symbolic link. ENOENT for an empty target, ENAMETOOLONG above 4095 bytes.
    pub fn node_symlink(&self, cred: &Cred, parent: Ino, name: &[u8], target: &[u8]) -> Result<Stat> {
        if target.is_empty() || target.contains(&0) {
            return posix(libc::ENOENT);
        }
        self.make(cred, parent, name, &Spec { kind: FileKind::Symlink, mode: 0o777, rdev: 0, target })
    }

    fn make(&self, cred: &Cred, parent: Ino, name: &[u8], spec: &Spec<'_>) -> Result<Stat> {
        self.0.inner.slow_down_meta();
        let inner = &self.0.inner;
        inner.with_room(|| match inner.make(cred, parent, name, spec, &pin())? {
            Made::New(c) => Ok(c.stat()),
            Made::Exists(..) => posix(libc::EEXIST),
        })
    }

    /// Makes another name for an inode. EEXIST, EMLINK, EPERM for directories, ENOENT if it has no name left.
    pub fn node_link(&self, cred: &Cred, ino: Ino, parent: Ino, name: &[u8]) -> Result<Stat> {
        self.0.inner.slow_down_meta();
        let guard = pin();
        let cell = self.0.inner.cell(ino, &guard)?;
        // The slot keeps an inode without a name from being freed meanwhile.
        let unnamed = cell.nlink.load(std::sync::atomic::Ordering::SeqCst) == 0;
        let _held = unnamed.then(|| self.0.handle(cell, cred, libc::O_RDONLY)).transpose()?;
        self.0.inner.link(cred, cell, parent, name, &guard)?;
        Ok(cell.stat())
    }

    /// Removes a name of a file. ENOENT, EISDIR, EACCES, EPERM. The file lives on while it is open.
    pub fn node_unlink(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        self.0.inner.slow_down_meta();
        self.0.inner.unlink(cred, parent, name, &pin())
    }

    /// Removes an empty directory. ENOENT, ENOTDIR, ENOTEMPTY, EACCES, EPERM.
    pub fn node_rmdir(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        self.0.inner.slow_down_meta();
        self.0.inner.rmdir(cred, parent, name, &pin())
    }

    /// Renames; flags as in renameat2(2): 0, `RENAME_NOREPLACE` or `RENAME_EXCHANGE`. After a crash either the old or the new names are
    /// there, never both and never none.
    pub fn node_rename(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        to: Ino,
        to_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        self.0.inner.slow_down_meta();
        self.0.inner.rename(cred, (parent, name), (to, to_name), flags, &pin())
    }

    /// A symbolic link's target. EINVAL for other kinds.
    pub fn node_readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.0.inner.check_alive()?;
        let guard = pin();
        self.0.inner.link_target(self.0.inner.cell(ino, &guard)?)
    }

    /// Calls `f` for each entry behind `cookie` (0: from the start; `.` and `..` included) until it returns false.
    pub fn node_readdir(&self, ino: Ino, cookie: u64, f: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.0.inner.check_alive()?;
        self.0.inner.read_dir(ino, cookie, f, &mut pin())
    }

    /// getxattr(2); ENODATA if there is none.
    pub fn node_getxattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.0.inner.check_alive()?;
        let guard = pin();
        self.0.inner.get_xattr(cred, self.0.inner.cell(ino, &guard)?, name)
    }

    /// setxattr(2). EEXIST, ENODATA, ENOSPC, E2BIG, EPERM, EOPNOTSUPP.
    pub fn node_setxattr(&self, cred: &Cred, ino: Ino, name: &[u8], value: &[u8], flags: i32) -> Result<()> {
        let guard = pin();
        self.0.inner.set_xattr(cred, self.0.inner.cell(ino, &guard)?, name, value, flags)
    }

    /// listxattr(2): the names.
    pub fn node_listxattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.0.inner.check_alive()?;
        let guard = pin();
        self.0.inner.list_xattrs(cred, self.0.inner.cell(ino, &guard)?)
    }

    /// removexattr(2). ENODATA if there is none.
    pub fn node_removexattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<()> {
        let guard = pin();
        self.0.inner.remove_xattr(cred, self.0.inner.cell(ino, &guard)?, name)
    }

    /// access(2).
    pub fn node_access(&self, cred: &Cred, ino: Ino, mask: i32) -> Result<()> {
        self.0.inner.check_alive()?;
        let guard = pin();
        let cell = self.0.inner.cell(ino, &guard)?;
        if mask & libc::W_OK != 0 && matches!(cell.kind, FileKind::File | FileKind::Dir | FileKind::Symlink) {
            self.0.inner.writable()?;
        }
        perm::check(cell, cred, mask as u32 & 7)
    }

    /// fsync by inode number, of a directory above all: its names are durable when it returns.
    pub fn node_sync(&self, ino: Ino) -> Result<()> {
        let f = {
            let guard = pin();
            self.0.handle(self.0.inner.cell(ino, &guard)?, &Cred::root(), libc::O_RDONLY)?
        };
        f.sync_all()
    }
}
