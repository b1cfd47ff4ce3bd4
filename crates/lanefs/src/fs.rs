//! A volume seen with a credential: operations by path.

mod attrs;
mod content;
mod dir;
mod open_options;
mod std_names;

use crate::core::memory;
use crate::core::space;
use crate::error::{Error, Result};
use crate::file::opening;
use crate::ops::create;
use crate::ops::create::Spec;
use crate::ops::link;
use crate::ops::remove;
use crate::ops::resolve;
use crate::ops::resolve::{Last, Resolved, Way};
use crate::ops::{perm, posix, rename};
use crate::{Cred, File, FileKind, Ino, NodeEntry, Stat, StatFs, Volume};
use crossbeam_epoch::{Guard, pin};
pub use dir::{Dir, DirEntry, ReadDir};
use lanefs_format::ROOT_INO;
pub use open_options::OpenOptions;
use std::sync::Arc;

/// A volume seen with a credential. Paths are bytes, separated by `/`; they begin at the volume's
/// root, or in a directory ([`Dir::fs`]) if they are relative. Modes are permission bits; from
/// those of what is made the umask is taken, if one was given ([`Fs::with_umask`]).
///
/// Calls named as in `std::fs` do what these do, and those named as system calls take what these
/// take: modes, flags, bytes.
///
/// Every call on a path may answer the [errors of paths](crate::error#paths) and those of [every
/// call](crate::error#every-call); with the calls stands what is particular to them. What a change
/// promises after a crash: [names](crate#names), [content and
/// attributes](crate#content-and-attributes).
#[derive(Clone, Debug)]
pub struct Fs {
    volume: Volume,
    cred: Cred,
    /// Permission bits.
    umask: u32,
    /// The directory in which relative paths begin; `None`: the root.
    start: Option<Arc<File>>,
}

/// Anything that names a path: `&str`, `&[u8]`, `&Path`.
pub trait AsPath {
    /// Returns the path's bytes.
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
    /// Makes a view of a volume, without a umask, whose paths begin at the root.
    pub(crate) fn new(volume: Volume, cred: Cred) -> Fs {
        Fs { volume, cred, umask: 0, start: None }
    }

    /// Returns the same with relative paths that begin in a directory.
    fn starting_at(&self, dir: Arc<File>) -> Fs {
        Fs { start: Some(dir), ..self.clone() }
    }

    /// Returns the same with another credential; relative paths begin where they did.
    pub fn with_cred(&self, cred: Cred) -> Fs {
        Fs { cred, ..self.clone() }
    }

    /// Returns the same with a umask: these permission bits are taken from the mode of every file,
    /// directory and node that is made by path. Without, modes are those of the call. (The library
    /// inherits no ACL of a directory, so there is none that would stand in place of it.)
    pub fn with_umask(&self, umask: u32) -> Fs {
        Fs { umask: umask & 0o777, ..self.clone() }
    }

    /// Returns the umask; 0 if none was given.
    pub fn umask(&self) -> u32 {
        self.umask
    }

    /// Returns the volume behind.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Returns the credential.
    pub fn cred(&self) -> &Cred {
        &self.cred
    }

    /// Returns where a path begins.
    #[inline]
    fn start_of(&self, path: &[u8]) -> Ino {
        match &self.start {
            Some(dir) if path.first() != Some(&b'/') => {
                debug_assert!(dir.inode().dir().is_some(), "paths begin in inode {}", dir.ino());
                dir.ino()
            }
            _ => ROOT_INO,
        }
    }

    /// Walks a path.
    fn resolve<'p>(&self, path: &'p [u8], last: Last, guard: &Guard) -> Result<Resolved<'p>> {
        let way = Way { start: self.start_of(path), path };
        resolve::resolve(&self.volume.0.persist, &self.cred, &way, last, guard)
    }

    /// Resolves a path that must exist.
    fn find(&self, path: &[u8], follow: bool, guard: &Guard) -> Result<Ino> {
        self.volume.0.persist.check_alive()?;
        let last = if follow { Last::Follow } else { Last::Look };
        let r = self.resolve(path, last, guard)?;
        r.target.map(|t| t.0).ok_or_else(|| r.missing())
    }

    /// Resolves the place of a name that is made, removed or moved. The name is empty for a path
    /// that has none (`/`), and `.` or `..` where the path ends so. A symbolic link at the end is
    /// not followed, not even before a slash. With [`Last::Place`] what the name names now is
    /// looked up only if `must_be_dir`.
    fn place<'p>(&self, path: &'p [u8], last: Last, guard: &Guard) -> Result<Resolved<'p>> {
        self.volume.0.persist.check_alive()?;
        let end = path.iter().rposition(|b| *b != b'/').map_or(path.len(), |i| i + 1);
        let name = path[..end].rsplit(|b| *b == b'/').next().unwrap_or_default();
        if name == b"." || name == b".." {
            let r = self.resolve(path, Last::Follow, guard)?;
            debug_assert!(!r.name.contains(&b'/'), "a walk ends at one component");
            return match r.target {
                None => Err(r.missing()),
                Some((_, FileKind::Dir)) => Ok(Resolved { name: name.into(), ..r }),
                Some(_) => posix(libc::ENOTDIR),
            };
        }
        let must_be_dir = end < path.len();
        let last = if must_be_dir { Last::Look } else { last };
        let r = self.resolve(&path[..end], last, guard)?;
        debug_assert!(!r.must_be_dir || r.name.is_empty(), "the slashes at the end were left out");
        debug_assert!(r.name.is_empty() || *r.name == *name, "another component is the last");
        Ok(Resolved { must_be_dir, ..r })
    }

    /// Does what [`Fs::place`] does, for a name that is needed. `busy`: the error for a path
    /// without one.
    fn named_place<'p>(&self, path: &'p [u8], busy: i32, guard: &Guard) -> Result<Resolved<'p>> {
        let r = self.place(path, Last::Place, guard)?;
        if r.name.is_empty() { posix(busy) } else { Ok(r) }
    }

    /// Opens a file as open(2), with all flags. What is made is owned by the credential, and is
    /// durable as [names](crate#names) are; O_TRUNC as [`Fs::truncate`].
    ///
    /// # Errors
    /// - ENOENT: no such file, and no O_CREAT.
    /// - EEXIST: O_CREAT with O_EXCL, and the name exists.
    /// - EISDIR: a directory, and writing, O_CREAT or O_TRUNC; O_CREAT of a path that ends in `/`,
    ///   `.` or `..`.
    /// - ENOTDIR: O_DIRECTORY or O_TMPFILE, and it is no directory.
    /// - EINVAL: O_CREAT with O_DIRECTORY; O_TMPFILE without writing; a new name with a NUL.
    /// - ELOOP: O_NOFOLLOW without O_PATH, and it is a symbolic link.
    /// - ENXIO: a pipe, a socket or a device, without O_PATH.
    /// - EACCES: the mode forbids reading or writing it; a new file: changing the directory. EPERM:
    ///   O_NOATIME by another than the owner.
    /// - EROFS: writing, O_TRUNC or a new file on a volume opened for reading only.
    /// - ENOSPC: no space for a new file.
    pub fn open(&self, path: impl AsPath, options: &OpenOptions) -> Result<File> {
        let (path, flags) = (path.as_path(), options.chosen());
        match flags & libc::O_CREAT != 0 {
            true => memory::slow_down_meta(&self.volume.0.persist),
            false => memory::wait_for_memory(&self.volume.0.persist),
        }
        space::with_space(&self.volume.0.persist, || self.open_once(path, options))
    }

    /// Opens a file, unless the volume is full.
    fn open_once(&self, path: &[u8], options: &OpenOptions) -> Result<File> {
        let flags = options.chosen();
        debug_assert!(self.umask & !0o777 == 0, "a umask of {:o}", self.umask);
        let guard = pin();
        let opened = &self.volume.0;
        opened.persist.check_alive()?;
        if flags & libc::O_TMPFILE == libc::O_TMPFILE {
            if flags & libc::O_ACCMODE == libc::O_RDONLY {
                return posix(libc::EINVAL);
            }
            let dir = self.find(path, true, &guard)?;
            return self
                .volume
                .node_tmpfile(&self.cred, dir, options.mode & !self.umask, flags & !libc::O_TMPFILE)
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
            let r = self.resolve(path, last, &guard)?;
            match r.target {
                Some(_) if exclusive => return posix(libc::EEXIST),
                Some((_, FileKind::Dir)) if creating => return posix(libc::EISDIR),
                Some((ino, _)) => match opening::open_ino(opened, &self.cred, ino, flags, &guard) {
                    Err(Error::Posix(libc::ESTALE)) => continue,
                    x => return x,
                },
                None if creating && r.must_be_dir => return posix(libc::EISDIR),
                None if creating => {
                    let mode = options.mode & !self.umask;
                    let spec = Spec { kind: FileKind::File, mode, rdev: 0, target: b"", xattrs: b"" };
                    match opening::create_at(
                        opened,
                        &self.cred,
                        (r.parent, &r.name),
                        &spec,
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

    /// Creates or truncates for reading and writing, mode 0666. Errors and crash as [`Fs::open`].
    pub fn create(&self, path: impl AsPath) -> Result<File> {
        self.open(path, OpenOptions::new().read(true).write(true).create(true).truncate(true))
    }

    /// Returns attributes as stat(2): follows symbolic links. Errors: those of
    /// [paths](crate::error#paths).
    pub fn stat(&self, path: impl AsPath) -> Result<Stat> {
        memory::wait_for_memory(&self.volume.0.persist);
        let guard = pin();
        let ino = self.find(path.as_path(), true, &guard)?;
        self.stat_found(ino, &guard)
    }

    /// Returns attributes as lstat(2): does not follow a symbolic link at the end. Errors: those of
    /// [paths](crate::error#paths).
    pub fn lstat(&self, path: impl AsPath) -> Result<Stat> {
        memory::wait_for_memory(&self.volume.0.persist);
        let guard = pin();
        let ino = self.find(path.as_path(), false, &guard)?;
        self.stat_found(ino, &guard)
    }

    /// Returns the attributes of what a path led to.
    fn stat_found(&self, ino: Ino, guard: &Guard) -> Result<Stat> {
        resolve::find(&self.volume.0.persist, ino, guard).map(|c| c.stat()).map_err(gone)
    }

    /// Makes a directory as mkdir(2). Of `mode` the bits 01777 count: setgid comes from the parent
    /// alone. Durable as [names](crate#names) are.
    ///
    /// # Errors
    /// Those of [new names](crate::error#new-names).
    pub fn mkdir(&self, path: impl AsPath, mode: u32) -> Result<()> {
        // As mkdir(2): permission bits and sticky; setgid comes from the parent alone.
        let mode = mode & 0o1777 & !self.umask;
        self.make(path.as_path(), Ok(Spec { kind: FileKind::Dir, mode, rdev: 0, target: b"", xattrs: b"" }))
    }

    /// Makes what is not opened: a directory, a node, a symbolic link. Under one pin from the walk
    /// to the end of the call: a directory that is removed meanwhile keeps its number so long,
    /// which another one could get otherwise.
    fn make(&self, path: &[u8], spec: Result<Spec<'_>>) -> Result<()> {
        let persist = &self.volume.0.persist;
        memory::slow_down_meta(persist);
        space::with_space(persist, || {
            let guard = pin();
            let r = self.named_place(path, libc::EEXIST, &guard)?;
            debug_assert!(!r.parent.is_none(), "a place without a directory");
            let is_dir = spec.as_ref().is_ok_and(|s| s.kind == FileKind::Dir);
            if !is_dir && r.must_be_dir && r.target.is_none() {
                return Err(r.missing());
            }
            // Errors of the path come before those of what is to be made.
            let spec = spec.as_ref().map_err(|e| Error::Posix(e.errno()))?;
            create::make_new(persist, &self.cred, (r.parent, &r.name), spec, &guard).map(drop).map_err(gone)
        })
    }

    /// Makes all missing directories of a path, from the top down. Each is an operation of its own:
    /// after an error or a crash the upper ones may be there without the lower.
    ///
    /// # Errors
    /// Those of [`Fs::mkdir`] without EEXIST. ENOTDIR: the path names something else.
    pub fn mkdir_all(&self, path: impl AsPath, mode: u32) -> Result<()> {
        self.make_all(path.as_path(), mode, libc::ENOTDIR)
    }

    /// Makes all missing directories. `other`: the error if the path names what is no directory.
    fn make_all(&self, path: &[u8], mode: u32, other: i32) -> Result<()> {
        for end in (1..=path.len()).filter(|e| *e == path.len() || path[*e] == b'/') {
            match self.mkdir(&path[..end], mode) {
                Err(e) if e.errno() != libc::EEXIST => return Err(e),
                _ => {}
            }
        }
        match self.stat(path) {
            Ok(found) if found.kind == FileKind::Dir => Ok(()),
            // A symbolic link to nothing has the name.
            Err(e) if e.errno() != libc::ENOENT => Err(e),
            _ => posix(other),
        }
    }

    /// Makes a node as mknod(2): `mode` with the bits of the type (none: a regular file); `rdev` as
    /// `dev_t`, kept for devices only. Durable as [names](crate#names) are.
    ///
    /// # Errors
    /// Those of [new names](crate::error#new-names), and
    /// - EPERM: a directory; a device other than the character device 0/0, by another than the
    ///   superuser.
    /// - EINVAL: a symbolic link, or no type there is.
    pub fn mknod(&self, path: impl AsPath, mode: u32, rdev: u64) -> Result<()> {
        self.make(path.as_path(), Spec::of_node(&self.cred, mode & !self.umask, rdev))
    }

    /// Removes a directory as rmdir(2). Durable as [names](crate#names) are: after a crash the
    /// directory is gone only if all that was done in it before is done too.
    ///
    /// # Errors
    /// Those of [removed names](crate::error#removed-names), and
    /// - ENOTDIR: not a directory.
    /// - ENOTEMPTY: it has names, or the path ends in `..`.
    /// - EINVAL: the path ends in `.`. EBUSY: the root.
    pub fn rmdir(&self, path: impl AsPath) -> Result<()> {
        let persist = &self.volume.0.persist;
        memory::slow_down_meta(persist);
        let guard = pin();
        let r = self.named_place(path.as_path(), libc::EBUSY, &guard)?;
        remove::rmdir(persist, &self.cred, r.parent, &r.name, &guard).map_err(gone)
    }

    /// Removes a name as unlink(2): does not follow a symbolic link. A file without names lives
    /// until its last handle is dropped. Durable as [names](crate#names) are: after a crash the
    /// name is there or not, and what has no name left is gone, open or not.
    ///
    /// # Errors
    /// Those of [removed names](crate::error#removed-names), and EISDIR: a directory.
    pub fn unlink(&self, path: impl AsPath) -> Result<()> {
        let persist = &self.volume.0.persist;
        memory::slow_down_meta(persist);
        let guard = pin();
        let r = self.named_place(path.as_path(), libc::EISDIR, &guard)?;
        if r.must_be_dir {
            return match r.target {
                None => Err(r.missing()),
                Some((_, FileKind::Dir)) => posix(libc::EISDIR),
                Some(_) => posix(libc::ENOTDIR),
            };
        }
        remove::unlink(persist, &self.cred, r.parent, &r.name, &guard).map_err(gone)
    }

    /// Adds a name as link(2): does not follow a symbolic link at `old`. Durable as
    /// [names](crate#names) are: after a crash the new name is there or not, the old one in any
    /// case, and the count of links is that of the names found.
    ///
    /// # Errors
    /// Those of [new names](crate::error#new-names), and
    /// - EPERM: `old` is a directory.
    /// - EMLINK: it has 65,000 names.
    /// - ENOENT: its last name is gone.
    pub fn link(&self, old: impl AsPath, new: impl AsPath) -> Result<()> {
        let persist = &self.volume.0.persist;
        memory::slow_down_meta(persist);
        space::with_space(persist, || self.link_once(old.as_path(), new.as_path()))
    }

    /// Looks the file up by its old name, and links it under the lock of the new one. Of the two
    /// errors, that the old name is gone and that the new one exists, it gives only one that was so
    /// at one moment.
    fn link_once(&self, old: &[u8], new: &[u8]) -> Result<()> {
        let persist = &self.volume.0.persist;
        let guard = pin();
        let mut careful = false;
        let mut turn = 0;
        loop {
            let (a, moment) = if careful {
                // The last name alone: a path's directories are looked up one after the other, as
                // Linux does it.
                let a = self.place(old, Last::Place, &guard)?;
                let b = self.place(new, Last::Place, &guard)?;
                let moment = resolve::watch(persist, &[(a.parent, &a.name), (b.parent, &b.name)], &guard)
                    .map_err(gone)?;
                (Some(a), Some(moment))
            } else {
                (None, None)
            };
            debug_assert_eq!(moment.is_some(), careful, "an answer rests on two moments");
            let ino = match &a {
                Some(a) if a.target.is_none() => {
                    let seen = remove::look_up_name(persist, a.parent, &a.name, &guard).map_err(gone)?;
                    perm::check(seen.pinode, &self.cred, perm::X)?;
                    seen.target.ok_or_else(|| a.missing())?.0.ino
                }
                _ => self.find(old, false, &guard)?,
            };
            let r = self.named_place(new, libc::EEXIST, &guard)?;
            if r.must_be_dir && r.target.is_none() {
                return Err(r.missing());
            }
            // Found by a name, so it needs no handle that keeps it; whether it has one still is
            // looked at under the lock.
            let linked = match resolve::find(persist, ino, &guard) {
                Ok(inode) => link::link(persist, &self.cred, inode, r.parent, &r.name, &guard),
                Err(e) => Err(e),
            };
            match linked.map_err(gone) {
                // The file lost its last name: if another is called so now, that one was meant.
                Err(e) if e.errno() == libc::ENOENT && turn < 1000 => {}
                Err(e) if e.errno() == libc::EEXIST && !moment.is_some_and(|m| m.holds()) => {}
                answer => return answer,
            }
            careful = true;
            crate::memfs::dir::relax(&mut turn);
        }
    }

    /// Gives an open file another name, or an O_TMPFILE its first: `linkat` with AT_EMPTY_PATH.
    /// EXDEV: the file is one of another volume. Other errors and crash as [`File::link_to`].
    pub fn link_file(&self, file: &File, new: impl AsPath) -> Result<()> {
        if !file.is_of(&self.volume.0.persist) {
            return Err(Error::Posix(libc::EXDEV));
        }
        let persist = &self.volume.0.persist;
        memory::slow_down_meta(persist);
        space::with_space(persist, || {
            let guard = pin();
            let r = self.named_place(new.as_path(), libc::EEXIST, &guard)?;
            if r.must_be_dir && r.target.is_none() {
                return Err(r.missing());
            }
            link::link(persist, &self.cred, file.inode(), r.parent, &r.name, &guard).map_err(gone)
        })
    }

    /// Makes a symbolic link as symlink(2): `target` is 1 to 4095 bytes, and need not exist.
    /// Durable as [names](crate#names) are, and always with its target.
    ///
    /// # Errors
    /// Those of [new names](crate::error#new-names), and
    /// - ENOENT: `target` is empty or has a NUL.
    /// - ENAMETOOLONG: `target` is longer than 4095 bytes.
    pub fn symlink(&self, target: impl AsPath, path: impl AsPath) -> Result<()> {
        // As Linux: a target that cannot be is refused before the path is looked at.
        match target.as_path() {
            b"" => return posix(libc::ENOENT),
            t if t.len() > lanefs_format::SYMLINK_MAX => return posix(libc::ENAMETOOLONG),
            _ => {}
        }
        let spec =
            Spec { kind: FileKind::Symlink, mode: 0o777, rdev: 0, target: target.as_path(), xattrs: b"" };
        self.make(path.as_path(), Ok(spec))
    }

    /// Returns the whole target, as readlink(2). EINVAL: not a symbolic link. ESTALE: removed
    /// meanwhile.
    pub fn readlink(&self, path: impl AsPath) -> Result<Vec<u8>> {
        let guard = pin();
        let ino = self.find(path.as_path(), false, &guard)?;
        self.volume.node_readlink(ino)
    }

    /// Renames as rename(2): replaces what `new` names, in one step: there is no moment without it.
    /// Does nothing where both name one inode.
    ///
    /// Durable as [names](crate#names) are. After a crash it is there whole or not at all: the file
    /// has its old name or its new one, never both, never none. If it is there and replaced a
    /// regular file, what moved has the content of the rename's start or a later one, without any
    /// fsync; only where the volume has no space left for the content it may lack it.
    ///
    /// # Errors
    /// - ENOENT: `old` does not exist, or a directory was removed.
    /// - EACCES, EPERM: as with [removed names](crate::error#removed-names), for `old` and what
    ///   `new` names; EACCES also if `new`'s directory may not be changed, or a directory that
    ///   comes to another one may not be written.
    /// - EISDIR: `new` is a directory, `old` is not. ENOTDIR: the other way round; or a path ends
    ///   in `/`, and `old` is no directory.
    /// - ENOTEMPTY: `new` is a directory with names, or has `old` below it.
    /// - EINVAL: `new` lies below `old`; a name has a NUL.
    /// - EBUSY: the root, or a path that ends in `.` or `..`.
    /// - ENOSPC: no space for a name that is longer than the old one and replaces none; or the
    ///   directory has eight names with the hash of `new`. EROFS: the volume was opened for reading
    ///   only.
    /// - EIO: the content had to be made durable first, and could not be.
    pub fn rename(&self, old: impl AsPath, new: impl AsPath) -> Result<()> {
        self.rename2(old, new, 0)
    }

    /// Renames as renameat2(2): `flags` is 0, `RENAME_NOREPLACE`, `RENAME_EXCHANGE`, or
    /// `RENAME_WHITEOUT` with or without `RENAME_NOREPLACE`. A whiteout leaves a character device
    /// 0/0 of the caller in the old place. After a crash an exchange, and a whiteout, is there
    /// whole or not at all. Else as [`Fs::rename`].
    ///
    /// # Errors
    /// Those of [`Fs::rename`] (an exchange: not ENOTEMPTY, EISDIR, nor ENOTDIR for kinds that
    /// differ), and
    /// - EINVAL: other flags, or an exchange with another one; exchange with a directory above.
    /// - ENOSPC: no space for a whiteout.
    /// - EEXIST: `RENAME_NOREPLACE`, and `new` exists.
    /// - ENOENT: `RENAME_EXCHANGE`, and `new` does not exist.
    pub fn rename2(&self, old: impl AsPath, new: impl AsPath, flags: u32) -> Result<()> {
        memory::slow_down_meta(&self.volume.0.persist);
        space::with_space(&self.volume.0.persist, || {
            self.rename_once(old.as_path(), self, new.as_path(), flags)
        })
    }

    /// Renames to a path that begins elsewhere.
    fn rename_to(&self, old: &[u8], to: &Fs, new: &[u8]) -> Result<()> {
        let persist = &self.volume.0.persist;
        if !std::ptr::eq(&**persist, &*to.volume.0.persist) {
            return posix(libc::EXDEV);
        }
        memory::slow_down_meta(persist);
        space::with_space(persist, || self.rename_once(old, to, new, 0))
    }

    /// Renames, unless the volume is full.
    fn rename_once(&self, old: &[u8], to: &Fs, new: &[u8], flags: u32) -> Result<()> {
        let guard = pin();
        rename::check_flags(flags)?;
        let noreplace = flags & libc::RENAME_NOREPLACE != 0;
        // Most renames have nothing odd about them, and find out about their names themselves.
        let (mut a, mut b) = (self.place(old, Last::Place, &guard)?, to.place(new, Last::Place, &guard)?);
        let plain = |r: &Resolved| !r.must_be_dir && r.name.len() <= lanefs_format::NAME_MAX;
        let is_plain = plain(&a) && plain(&b);
        if !is_plain {
            (a, b) = (self.place(old, Last::Look, &guard)?, to.place(new, Last::Look, &guard)?);
        }
        let no_name = |r: &Resolved| matches!(&*r.name, b"" | b"." | b"..");
        if no_name(&a) {
            return posix(libc::EBUSY);
        }
        if no_name(&b) {
            return posix(if noreplace { libc::EEXIST } else { libc::EBUSY });
        }
        debug_assert!(!a.name.is_empty() && !b.name.is_empty(), "both were refused");
        if is_plain {
            return self.rename_found(&a, &b, flags, &guard);
        }
        // A missing name is reported before one that is too long (the other one).
        if a.target.is_none() {
            return Err(a.missing());
        }
        let is_dir = |r: &Resolved| r.target.is_some_and(|t| t.1 == FileKind::Dir);
        let exchange = flags == libc::RENAME_EXCHANGE;
        match b.target {
            None if exchange || b.name.len() > lanefs_format::NAME_MAX => return Err(b.missing()),
            Some(_) if noreplace => return posix(libc::EEXIST),
            Some(_) if exchange && b.must_be_dir && !is_dir(&b) => return posix(libc::ENOTDIR),
            _ => {}
        }
        if !is_dir(&a) && (a.must_be_dir || b.must_be_dir && !exchange) {
            return posix(libc::ENOTDIR);
        }
        self.rename_found(&a, &b, flags, &guard)
    }

    /// Renames between places that were found.
    fn rename_found(&self, a: &Resolved<'_>, b: &Resolved<'_>, flags: u32, guard: &Guard) -> Result<()> {
        rename::rename(
            &self.volume.0.persist,
            &self.cred,
            (a.parent, &a.name),
            (b.parent, &b.name),
            flags,
            guard,
        )
    }

    /// Calls `f` for each entry behind `cookie` (0: from the start; `.` and `..` included) until it
    /// returns false: for a caller that goes on later, or wants the dots. Others take
    /// [`Fs::read_dir`]. What is there throughout is listed once; what comes or goes meanwhile may
    /// be listed.
    ///
    /// # Errors
    /// ENOTDIR: not a directory. EACCES: it may not be read. ESTALE: removed meanwhile.
    pub fn read_dir_from(
        &self,
        path: impl AsPath,
        cookie: u64,
        f: &mut dyn FnMut(NodeEntry<'_>) -> bool,
    ) -> Result<()> {
        // Held open: `f` may take as long as it likes, and the number is nobody else's meanwhile.
        let dir = self.open(path, OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY))?;
        self.volume.node_readdir(dir.ino(), cookie, f)
    }

    /// Returns sizes and counts, as statfs(2), in blocks of 4096 bytes. Errors: those of [every
    /// call](crate::error#every-call).
    pub fn statfs(&self) -> Result<StatFs> {
        self.volume.statfs()
    }
}

/// Turns ESTALE into ENOENT: by path, an inode that vanished after it was found is a name that does
/// not exist.
fn gone(e: Error) -> Error {
    if matches!(e, Error::Posix(libc::ESTALE)) { Error::Posix(libc::ENOENT) } else { e }
}
