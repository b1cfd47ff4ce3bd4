//! A volume seen with a credential: operations by path.

use crate::error::{Error, Result};
use crate::ops::resolve::{Last, Resolved};
use crate::ops::{perm, posix};
use crate::{Cred, DirEntry, File, FileKind, Ino, SetAttr, SetTime, Stat, StatFs, Volume};
use crossbeam_epoch::{Guard, pin};

/// How a file is opened; like `std::fs::OpenOptions`, with the flags POSIX adds.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Flags of `open(2)`. `O_ACCMODE` in place of an access mode: none was chosen, the file is opened for reading.
    pub flags: i32,
    /// Permission bits of a file that is made (the umask is the caller's business).
    pub mode: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// Nothing chosen: opens an existing file for reading.
    pub fn new() -> OpenOptions {
        OpenOptions { flags: libc::O_ACCMODE, mode: 0o666 }
    }

    /// The flags that `open(2)` would be given.
    pub(crate) fn chosen(&self) -> i32 {
        match self.flags & libc::O_ACCMODE {
            libc::O_ACCMODE => self.flags & !libc::O_ACCMODE | libc::O_RDONLY,
            _ => self.flags,
        }
    }

    fn access(&mut self, read: bool, write: bool) -> &mut Self {
        let m = match (read, write) {
            (true, true) => libc::O_RDWR,
            (false, true) => libc::O_WRONLY,
            (true, false) => libc::O_RDONLY,
            (false, false) => libc::O_ACCMODE,
        };
        self.flags = self.flags & !libc::O_ACCMODE | m;
        self
    }

    fn has_read(&self) -> bool {
        matches!(self.flags & libc::O_ACCMODE, libc::O_RDONLY | libc::O_RDWR)
    }

    fn has_write(&self) -> bool {
        matches!(self.flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR)
    }

    fn flag(&mut self, flag: i32, on: bool) -> &mut Self {
        if on {
            self.flags |= flag
        } else {
            self.flags &= !flag
        }
        self
    }

    /// Allow reading.
    pub fn read(&mut self, on: bool) -> &mut Self {
        let w = self.has_write();
        self.access(on, w)
    }
    /// Allow writing.
    pub fn write(&mut self, on: bool) -> &mut Self {
        let r = self.has_read();
        self.access(r, on)
    }
    /// Every write goes to the end.
    pub fn append(&mut self, on: bool) -> &mut Self {
        if on {
            self.write(true);
        }
        self.flag(libc::O_APPEND, on)
    }
    /// Empty the file when it is opened.
    pub fn truncate(&mut self, on: bool) -> &mut Self {
        self.flag(libc::O_TRUNC, on)
    }
    /// Make the file if it does not exist.
    pub fn create(&mut self, on: bool) -> &mut Self {
        self.flag(libc::O_CREAT, on)
    }
    /// Make the file; EEXIST if it exists. Switched off again, the file is still made if it does not exist.
    pub fn create_new(&mut self, on: bool) -> &mut Self {
        if on {
            self.flags |= libc::O_CREAT;
        }
        self.flag(libc::O_EXCL, on)
    }
    /// Permission bits of a new file. Default 0666.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }
    /// Further flags of `open(2)`: O_TMPFILE, O_SYNC, O_DSYNC, O_NOFOLLOW, O_DIRECTORY, O_DIRECT, O_NOATIME.
    pub fn custom_flags(&mut self, flags: i32) -> &mut Self {
        self.flags |= flags;
        self
    }
}

/// A volume seen with a credential. Paths are bytes, separated by `/`, relative to the volume's root.
#[derive(Clone, Debug)]
pub struct Fs {
    pub(crate) volume: Volume,
    pub(crate) cred: Cred,
}

/// Anything that names a path: `&str`, `&[u8]`, `&Path`.
pub trait AsPath {
    /// The path's bytes.
    fn as_path(&self) -> &[u8];
}
impl AsPath for str {
    fn as_path(&self) -> &[u8] {
        self.as_bytes()
    }
}
impl AsPath for [u8] {
    fn as_path(&self) -> &[u8] {
        self
    }
}
impl AsPath for Vec<u8> {
    fn as_path(&self) -> &[u8] {
        self
    }
}
impl AsPath for String {
    fn as_path(&self) -> &[u8] {
        self.as_bytes()
    }
}
impl AsPath for std::path::Path {
    fn as_path(&self) -> &[u8] {
        std::os::unix::ffi::OsStrExt::as_bytes(self.as_os_str())
    }
}
impl AsPath for std::path::PathBuf {
    fn as_path(&self) -> &[u8] {
        std::os::unix::ffi::OsStrExt::as_bytes(self.as_os_str())
    }
}
impl<T: AsPath + ?Sized> AsPath for &T {
    fn as_path(&self) -> &[u8] {
        (**self).as_path()
    }
}

impl Fs {
    /// The volume behind.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// The credential.
    pub fn cred(&self) -> &Cred {
        &self.cred
    }

    /// Resolves a path that must exist.
    fn find(&self, path: &[u8], follow: bool, guard: &Guard) -> Result<Ino> {
        self.volume.0.inner.check_alive()?;
        let last = if follow { Last::Follow } else { Last::Look };
        let r = self.volume.0.inner.resolve(&self.cred, path, last, guard)?;
        r.target.map(|t| t.0).ok_or_else(|| r.missing())
    }

    /// Resolves the place of a name that is made, removed or moved. The name is empty for a path that has none (`/`), and `.` or `..`
    /// where the path ends so. A symbolic link at the end is not followed, not even before a slash. With [`Last::Place`] what the name
    /// names now is looked up only if `must_be_dir`.
    fn place<'p>(&self, path: &'p [u8], last: Last, guard: &Guard) -> Result<Resolved<'p>> {
        let inner = &self.volume.0.inner;
        inner.check_alive()?;
        let end = path.iter().rposition(|b| *b != b'/').map_or(path.len(), |i| i + 1);
        let name = path[..end].rsplit(|b| *b == b'/').next().unwrap_or_default();
        if name == b"." || name == b".." {
            let r = inner.resolve(&self.cred, path, Last::Follow, guard)?;
            return match r.target {
                None => Err(r.missing()),
                Some((_, FileKind::Dir)) => Ok(Resolved { name: name.into(), ..r }),
                Some(_) => posix(libc::ENOTDIR),
            };
        }
        let must_be_dir = end < path.len();
        let last = if must_be_dir { Last::Look } else { last };
        let r = inner.resolve(&self.cred, &path[..end], last, guard)?;
        Ok(Resolved { must_be_dir, ..r })
    }

    /// As [`Fs::place`], for a name that is needed. `busy`: the error for a path without one.
    fn named_place<'p>(&self, path: &'p [u8], busy: i32, guard: &Guard) -> Result<Resolved<'p>> {
        let r = self.place(path, Last::Place, guard)?;
        if r.name.is_empty() { posix(busy) } else { Ok(r) }
    }

    /// open(2), all flags. ENOENT, EEXIST, EACCES, EISDIR, ENOTDIR, ELOOP, ENOSPC, EROFS; ENXIO for pipes, sockets and devices.
    pub fn open(&self, path: impl AsPath, options: &OpenOptions) -> Result<File> {
        let (path, flags) = (path.as_path(), options.chosen());
        match flags & libc::O_CREAT != 0 {
            true => self.volume.0.inner.slow_down_meta(),
            false => self.volume.0.inner.wait_for_room(),
        }
        self.volume.0.inner.with_room(|| self.open_once(path, options))
    }

    fn open_once(&self, path: &[u8], options: &OpenOptions) -> Result<File> {
        let flags = options.chosen();
        let guard = pin();
        let root = &self.volume.0;
        root.inner.check_alive()?;
        if flags & libc::O_TMPFILE == libc::O_TMPFILE {
            let dir = self.find(path, true, &guard)?;
            return self
                .volume
                .node_tmpfile(&self.cred, dir, options.mode, flags & !libc::O_TMPFILE)
                .map(|r| r.1);
        }
        let creating = flags & libc::O_CREAT != 0;
        if creating {
            if flags & libc::O_DIRECTORY != 0 {
                return posix(libc::EINVAL);
            }
            // A path that can only name a directory names nothing that could be made.
            let last = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
            if matches!(last, b"" | b"." | b"..") {
                let r = self.place(path, Last::Look, &guard)?;
                let no_name = matches!(&*r.name, b"" | b"." | b"..");
                let exclusive = no_name && flags & libc::O_EXCL != 0;
                return posix(if exclusive { libc::EEXIST } else { libc::EISDIR });
            }
        }
        // O_EXCL does not follow a link in the last component, nor does O_NOFOLLOW.
        let exclusive = creating && flags & libc::O_EXCL != 0;
        let last = match flags & libc::O_NOFOLLOW == 0 {
            _ if exclusive => Last::Place,
            true if creating => Last::Create,
            true => Last::Follow,
            false => Last::Look,
        };
        for _ in 0..100 {
            let r = root.inner.resolve(&self.cred, path, last, &guard)?;
            match r.target {
                Some(_) if exclusive => return posix(libc::EEXIST),
                Some((_, FileKind::Dir)) if creating => return posix(libc::EISDIR),
                Some((ino, _)) => match root.open_ino(&self.cred, ino, flags, &guard) {
                    Err(Error::Posix(libc::ESTALE)) => continue,
                    x => return x,
                },
                None if creating && r.must_be_dir => return posix(libc::EISDIR),
                None if creating => {
                    match root.create_at(
                        &self.cred,
                        r.parent,
                        &r.name,
                        options.mode,
                        flags & !libc::O_TRUNC,
                        &guard,
                    ) {
                        // A link appeared at the name: walk again, through it.
                        Err(Error::Posix(libc::ELOOP)) if last.follows() => continue,
                        x => return x.map(|f| f.0),
                    }
                }
                None => return Err(r.missing()),
            }
        }
        posix(libc::ENOENT)
    }

    /// Creates or truncates for reading and writing, mode 0666.
    pub fn create(&self, path: impl AsPath) -> Result<File> {
        self.open(path, OpenOptions::new().read(true).write(true).create(true).truncate(true))
    }

    /// stat(2): follows symbolic links. ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG.
    pub fn stat(&self, path: impl AsPath) -> Result<Stat> {
        self.volume.0.inner.wait_for_room();
        let guard = pin();
        let ino = self.find(path.as_path(), true, &guard)?;
        self.stat_found(ino, &guard)
    }

    /// lstat(2).
    pub fn lstat(&self, path: impl AsPath) -> Result<Stat> {
        self.volume.0.inner.wait_for_room();
        let guard = pin();
        let ino = self.find(path.as_path(), false, &guard)?;
        self.stat_found(ino, &guard)
    }

    fn stat_found(&self, ino: Ino, guard: &Guard) -> Result<Stat> {
        self.volume.0.inner.cell(ino, guard).map(|c| c.stat()).map_err(gone)
    }

    /// mkdir(2). EEXIST, ENOENT, EACCES, ENOSPC.
    pub fn mkdir(&self, path: impl AsPath, mode: u32) -> Result<()> {
        let r = self.named_place(path.as_path(), libc::EEXIST, &pin())?;
        // As mkdir(2): permission bits and sticky; setgid comes from the parent alone.
        self.volume.node_mkdir(&self.cred, r.parent, &r.name, mode & 0o1777).map(drop)
    }

    /// All missing directories of a path.
    pub fn mkdir_all(&self, path: impl AsPath, mode: u32) -> Result<()> {
        let path = path.as_path();
        for end in (1..=path.len()).filter(|e| *e == path.len() || path[*e] == b'/') {
            match self.mkdir(&path[..end], mode) {
                Err(e) if e.errno() != libc::EEXIST => return Err(e),
                _ => {}
            }
        }
        if self.stat(path)?.kind == FileKind::Dir { Ok(()) } else { posix(libc::ENOTDIR) }
    }

    /// mknod(2).
    pub fn mknod(&self, path: impl AsPath, mode: u32, rdev: u64) -> Result<()> {
        let r = self.named_place(path.as_path(), libc::EEXIST, &pin())?;
        if r.must_be_dir && r.target.is_none() {
            return Err(r.missing());
        }
        self.volume.node_mknod(&self.cred, r.parent, &r.name, mode, rdev).map(drop)
    }

    /// rmdir(2). ENOTEMPTY, ENOTDIR, EBUSY for the root.
    pub fn rmdir(&self, path: impl AsPath) -> Result<()> {
        let r = self.named_place(path.as_path(), libc::EBUSY, &pin())?;
        self.volume.node_rmdir(&self.cred, r.parent, &r.name)
    }

    /// unlink(2).
    pub fn unlink(&self, path: impl AsPath) -> Result<()> {
        let r = self.named_place(path.as_path(), libc::EISDIR, &pin())?;
        if r.must_be_dir {
            return match r.target {
                None => Err(r.missing()),
                Some((_, FileKind::Dir)) => posix(libc::EISDIR),
                Some(_) => posix(libc::ENOTDIR),
            };
        }
        self.volume.node_unlink(&self.cred, r.parent, &r.name)
    }

    /// link(2): does not follow a symbolic link at `old`.
    pub fn link(&self, old: impl AsPath, new: impl AsPath) -> Result<()> {
        let guard = pin();
        let ino = self.find(old.as_path(), false, &guard)?;
        let r = self.named_place(new.as_path(), libc::EEXIST, &guard)?;
        if r.must_be_dir && r.target.is_none() {
            return Err(r.missing());
        }
        // Found by a name, so it needs no handle that keeps it; whether it has one still is looked at under the lock.
        let inner = &self.volume.0.inner;
        let cell = inner.cell(ino, &guard).map_err(gone)?;
        inner.link(&self.cred, cell, r.parent, &r.name, &guard).map_err(gone)
    }

    /// Gives an open file another name, or an O_TMPFILE its first: `linkat` with AT_EMPTY_PATH. Errors as [`File::link_to`].
    pub fn link_file(&self, file: &File, new: impl AsPath) -> Result<()> {
        let guard = pin();
        let r = self.named_place(new.as_path(), libc::EEXIST, &guard)?;
        if r.must_be_dir && r.target.is_none() {
            return Err(r.missing());
        }
        file.link_to(&self.cred, r.parent, &r.name)
    }

    /// symlink(2).
    pub fn symlink(&self, target: impl AsPath, path: impl AsPath) -> Result<()> {
        let r = self.named_place(path.as_path(), libc::EEXIST, &pin())?;
        if r.must_be_dir && r.target.is_none() {
            return Err(r.missing());
        }
        self.volume.node_symlink(&self.cred, r.parent, &r.name, target.as_path()).map(drop)
    }

    /// readlink(2).
    pub fn readlink(&self, path: impl AsPath) -> Result<Vec<u8>> {
        let ino = self.find(path.as_path(), false, &pin())?;
        self.volume.node_readlink(ino)
    }

    /// rename(2): replaces what `new` names.
    pub fn rename(&self, old: impl AsPath, new: impl AsPath) -> Result<()> {
        self.rename2(old, new, 0)
    }

    /// renameat2(2) with `RENAME_NOREPLACE` or `RENAME_EXCHANGE`.
    pub fn rename2(&self, old: impl AsPath, new: impl AsPath, flags: u32) -> Result<()> {
        self.volume.0.inner.slow_down_meta();
        let guard = pin();
        if flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) != 0
            || flags == libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE
        {
            return posix(libc::EINVAL);
        }
        let (old, new) = (old.as_path(), new.as_path());
        // Most renames have nothing odd about them, and find out about their names themselves.
        let place = |path| self.place(path, Last::Place, &guard);
        let (mut a, mut b) = (place(old)?, place(new)?);
        let plain = |r: &Resolved| !r.must_be_dir && r.name.len() <= lanefs_store::NAME_MAX;
        let is_plain = flags == 0 && plain(&a) && plain(&b);
        if !is_plain {
            let look = |path| self.place(path, Last::Look, &guard);
            (a, b) = (look(old)?, look(new)?);
        }
        let no_name = |r: &Resolved| matches!(&*r.name, b"" | b"." | b"..");
        if no_name(&a) {
            return posix(libc::EBUSY);
        }
        if no_name(&b) {
            return posix(if flags == libc::RENAME_NOREPLACE { libc::EEXIST } else { libc::EBUSY });
        }
        if is_plain {
            return self.rename_found(&a, &b, flags, &guard);
        }
        // What is missing is said before what is too long (of the other name).
        if a.target.is_none() {
            return Err(a.missing());
        }
        let is_dir = |r: &Resolved| r.target.is_some_and(|t| t.1 == FileKind::Dir);
        let exchange = flags == libc::RENAME_EXCHANGE;
        match b.target {
            None if exchange || b.name.len() > lanefs_store::NAME_MAX => return Err(b.missing()),
            Some(_) if flags == libc::RENAME_NOREPLACE => return posix(libc::EEXIST),
            Some(_) if exchange && b.must_be_dir && !is_dir(&b) => return posix(libc::ENOTDIR),
            _ => {}
        }
        if !is_dir(&a) && (a.must_be_dir || b.must_be_dir && !exchange) {
            return posix(libc::ENOTDIR);
        }
        self.rename_found(&a, &b, flags, &guard)
    }

    fn rename_found(&self, a: &Resolved<'_>, b: &Resolved<'_>, flags: u32, guard: &Guard) -> Result<()> {
        self.volume.0.inner.rename(&self.cred, (a.parent, &a.name), (b.parent, &b.name), flags, guard)
    }

    fn set(&self, path: &[u8], follow: bool, set: &SetAttr) -> Result<()> {
        let ino = self.find(path, follow, &pin())?;
        self.volume.change_attrs(&self.cred, ino, set, &pin()).map(drop).map_err(gone)
    }

    /// chmod(2). EPERM unless owner.
    pub fn chmod(&self, path: impl AsPath, mode: u32) -> Result<()> {
        self.set(path.as_path(), true, &SetAttr { mode: Some(mode), ..Default::default() })
    }

    /// chown(2); `follow` false is lchown.
    pub fn chown(&self, path: impl AsPath, uid: Option<u32>, gid: Option<u32>, follow: bool) -> Result<()> {
        self.set(path.as_path(), follow, &SetAttr { uid, gid, ..Default::default() })
    }

    /// utimensat(2). With nothing to set it does nothing and finds nothing wrong, as the kernel.
    pub fn set_times(
        &self,
        path: impl AsPath,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
        follow: bool,
    ) -> Result<()> {
        if atime.is_none() && mtime.is_none() {
            return self.volume.0.inner.check_alive();
        }
        self.set(path.as_path(), follow, &SetAttr { atime, mtime, ..Default::default() })
    }

    /// truncate(2).
    pub fn truncate(&self, path: impl AsPath, size: u64) -> Result<()> {
        self.set(path.as_path(), true, &SetAttr { size: Some(size), ..Default::default() })
    }

    /// access(2) with `R_OK|W_OK|X_OK`, for this credential.
    pub fn access(&self, path: impl AsPath, mask: i32) -> Result<()> {
        let ino = self.find(path.as_path(), true, &pin())?;
        self.volume.node_access(&self.cred, ino, mask)
    }

    /// Reads a whole file.
    pub fn read(&self, path: impl AsPath) -> Result<Vec<u8>> {
        let f = self.open(path, &OpenOptions::new())?;
        let mut buf = vec![0; f.stat()?.size as usize];
        let mut done = 0;
        loop {
            if done == buf.len() {
                buf.resize(done + 4096, 0);
            }
            match f.read_at(&mut buf[done..], done as u64)? {
                0 => break,
                n => done += n,
            }
        }
        buf.truncate(done);
        Ok(buf)
    }

    /// Replaces a file's content, making it if need be. Not atomic across a crash: for that write another file, sync it and rename.
    pub fn write(&self, path: impl AsPath, data: &[u8]) -> Result<()> {
        self.create(path)?.write_all_at(data, 0)
    }

    /// Calls `f` for each entry behind `cookie` (0: from the start; `.` and `..` included) until it returns false.
    pub fn read_dir(
        &self,
        path: impl AsPath,
        cookie: u64,
        f: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let ino = {
            let guard = pin();
            let ino = self.find(path.as_path(), true, &guard)?;
            let inner = &self.volume.0.inner;
            inner.require_dir(ino, &guard)?;
            perm::check(inner.cell(ino, &guard)?, &self.cred, perm::R)?;
            ino
        };
        self.volume.node_readdir(ino, cookie, f)
    }

    /// getxattr(2).
    pub fn getxattr(&self, path: impl AsPath, name: &[u8]) -> Result<Vec<u8>> {
        let ino = self.find(path.as_path(), true, &pin())?;
        self.volume.node_getxattr(&self.cred, ino, name)
    }

    /// setxattr(2) with `XATTR_CREATE` or `XATTR_REPLACE`.
    pub fn setxattr(&self, path: impl AsPath, name: &[u8], value: &[u8], flags: i32) -> Result<()> {
        let ino = self.find(path.as_path(), true, &pin())?;
        self.volume.node_setxattr(&self.cred, ino, name, value, flags)
    }

    /// listxattr(2).
    pub fn listxattr(&self, path: impl AsPath) -> Result<Vec<Vec<u8>>> {
        let ino = self.find(path.as_path(), true, &pin())?;
        self.volume.node_listxattr(&self.cred, ino)
    }

    /// removexattr(2).
    pub fn removexattr(&self, path: impl AsPath, name: &[u8]) -> Result<()> {
        let ino = self.find(path.as_path(), true, &pin())?;
        self.volume.node_removexattr(&self.cred, ino, name)
    }

    /// statfs(2).
    pub fn statfs(&self) -> Result<StatFs> {
        self.volume.statfs()
    }
}

/// By path, an inode that vanished after it was found is a name that does not exist.
fn gone(e: Error) -> Error {
    if matches!(e, Error::Posix(libc::ESTALE)) { Error::Posix(libc::ENOENT) } else { e }
}
