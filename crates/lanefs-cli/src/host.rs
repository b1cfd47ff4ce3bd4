//! The host's files as an endpoint of a copy.
//!
//! The path that the user named is followed through symbolic links. Below it each component is
//! opened by its parent's descriptor and never through a link, so that nothing that appears there
//! meanwhile leads anywhere else. One descriptor of a directory is kept, whatever the depth. What
//! is made is its owner's alone until it has its mode.

use crate::endpoint::{ACLS, Content, CopyAttrs, Endpoint, Id, Meta, Refused, Xattr, is_kept, is_link};
use crate::failure::{About, Failure};
use lanefs::{FileKind, times};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::cell::{OnceCell, RefCell};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

/// The host's files at and below a path that the user named.
pub struct HostEndpoint {
    /// The path that the user named.
    named: PathBuf,
    /// The directory `named`.
    root: OnceCell<Rc<OwnedFd>>,
    /// The directory below `named` that was used last, and its descriptor.
    last: RefCell<Option<(PathBuf, Rc<OwnedFd>)>>,
    /// The file that was created last, and its device and inode.
    created: RefCell<Option<(PathBuf, (u64, u64))>>,
}

/// A path, as it is opened.
enum At<'p> {
    /// It is the user's own, or one that was made of it to look at only.
    Named(&'p Path),
    /// It is below: the directory, and a name in it.
    Below(Rc<OwnedFd>, &'p OsStr),
}

/// An open file of the host, and its name for messages.
struct HostFile(std::fs::File, PathBuf);

impl Content for HostFile {
    fn next_data(&self, offset: u64) -> Result<Option<u64>, Failure> {
        match rustix::fs::seek(&self.0, rustix::fs::SeekFrom::Data(offset)) {
            Ok(at) => Ok(Some(at)),
            Err(Errno::NXIO) => Ok(None),
            // Here nobody knows of holes.
            Err(_) => Ok(Some(offset)),
        }
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Failure> {
        self.0.read_at(buffer, offset).about(self.1.display())
    }
    fn write_at(&self, data: &[u8], offset: u64) -> Result<(), Failure> {
        self.0.write_all_at(data, offset).about(self.1.display())
    }
    fn set_len(&self, size: u64) -> Result<(), Failure> {
        match self.0.metadata().is_ok_and(|m| m.is_file()) {
            true => self.0.set_len(size).about(self.1.display()),
            false => Ok(()),
        }
    }
}

/// Converts a time for the host's calls.
fn timespec(time: i64) -> rustix::fs::Timespec {
    let (seconds, nanos) = times::parts(time);
    debug_assert!(nanos < 1_000_000_000);
    rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanos.into() }
}

/// Returns the file's name for calls that take no descriptor of a file that is not open for
/// anything.
fn by_descriptor(fd: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

impl HostEndpoint {
    /// Makes the endpoint of the files at and below `named`.
    pub fn new(named: &Path) -> HostEndpoint {
        HostEndpoint {
            named: named.into(),
            root: OnceCell::new(),
            last: RefCell::default(),
            created: RefCell::default(),
        }
    }

    /// Returns how a path is opened.
    fn at<'p>(&self, path: &'p Path) -> rustix::io::Result<At<'p>> {
        let below = path.strip_prefix(&self.named).ok();
        let Some((below, name)) = below.and_then(|b| Some((b, b.file_name()?))) else {
            return Ok(At::Named(path));
        };
        Ok(At::Below(self.dir(below.parent().unwrap_or(Path::new("")))?, name))
    }

    /// Returns the directory at a path below the named one.
    fn dir(&self, below: &Path) -> rustix::io::Result<Rc<OwnedFd>> {
        debug_assert!(below.is_relative(), "a path below the named one");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if self.root.get().is_none() {
            let _ = self.root.set(Rc::new(rustix::fs::open(&self.named, flags, Mode::empty())?));
        }
        let mut dir = self.root.get().cloned().ok_or(Errno::BADF)?;
        let mut rest = below;
        if let Some((path, fd)) = &*self.last.borrow()
            && let Ok(further) = below.strip_prefix(path)
        {
            (dir, rest) = (fd.clone(), further);
        }
        for part in rest.components() {
            let Component::Normal(name) = part else { return Err(Errno::INVAL) };
            dir = Rc::new(rustix::fs::openat(&*dir, name, flags | OFlags::NOFOLLOW, Mode::empty())?);
        }
        *self.last.borrow_mut() = Some((below.into(), dir.clone()));
        Ok(dir)
    }

    /// Opens; below the named path no link, and nothing that would wait for somebody else.
    fn open_as(&self, path: &Path, flags: OFlags, mode: u32) -> rustix::io::Result<OwnedFd> {
        let (flags, mode) = (flags | OFlags::CLOEXEC, Mode::from_raw_mode(mode));
        match self.at(path)? {
            At::Named(path) => rustix::fs::open(path, flags, mode),
            At::Below(dir, name) => {
                rustix::fs::openat(&*dir, name, flags | OFlags::NOFOLLOW | OFlags::NONBLOCK, mode)
            }
        }
    }

    /// Returns a descriptor that stands for the file and opens it for nothing.
    fn handle(&self, path: &Path, kind: FileKind) -> rustix::io::Result<OwnedFd> {
        let link = if kind == FileKind::Symlink { OFlags::NOFOLLOW } else { OFlags::empty() };
        let flags = OFlags::PATH | OFlags::CLOEXEC | link;
        match self.at(path)? {
            At::Named(path) => rustix::fs::open(path, flags, Mode::empty()),
            At::Below(dir, name) => rustix::fs::openat(&*dir, name, flags | OFlags::NOFOLLOW, Mode::empty()),
        }
    }

    /// Returns whether a path lies below the named one.
    fn is_below(&self, path: &Path) -> bool {
        path.strip_prefix(&self.named).is_ok_and(|p| p.file_name().is_some())
    }

    fn stat_as(&self, path: &Path, follow: bool) -> rustix::io::Result<Stat> {
        if follow {
            return rustix::fs::stat(path);
        }
        match self.at(path)? {
            At::Named(path) => rustix::fs::lstat(path),
            At::Below(dir, name) => rustix::fs::statat(&*dir, name, AtFlags::SYMLINK_NOFOLLOW),
        }
    }

    /// Makes the failure of a call on `path`, which is to be written or entered.
    fn refused<T>(&self, path: &Path, result: rustix::io::Result<T>) -> Result<T, Failure> {
        result.map_err(|e| {
            let is_a_link = || self.stat_as(path, false).is_ok_and(|s| kind(&s) == Some(FileKind::Symlink));
            match e {
                Errno::LOOP | Errno::NOTDIR | Errno::EXIST if self.is_below(path) && is_a_link() => {
                    is_link(path.display())
                }
                e => about(path, e),
            }
        })
    }
}

/// Makes the failure of a call on a file.
fn about(path: &Path, e: Errno) -> Failure {
    match io::Result::<()>::Err(e.into()).about(path.display()) {
        Err(failure) => failure,
        Ok(()) => Failure::new(path.display()),
    }
}

fn kind(stat: &Stat) -> Option<FileKind> {
    FileKind::from_mode(stat.st_mode)
}

fn id(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

impl Endpoint for HostEndpoint {
    fn show(&self, path: &Path) -> String {
        path.display().to_string()
    }
    fn stat(&self, path: &Path, follow: bool) -> Result<Option<Meta>, Failure> {
        let stat = match self.stat_as(path, follow) {
            Err(Errno::NOENT) => return Ok(None),
            r => r.map_err(|e| about(path, e))?,
        };
        let kind = kind(&stat).ok_or_else(|| {
            Failure::new(format_args!("{}: a kind of file that is not known", path.display()))
        })?;
        Ok(Some(Meta {
            id: Id { volume: 0, dev: stat.st_dev, ino: stat.st_ino },
            nlink: stat.st_nlink,
            kind,
            mode: stat.st_mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            rdev: stat.st_rdev,
            size: stat.st_size as u64,
            atime: times::number(stat.st_atime, stat.st_atime_nsec as u32),
            mtime: times::number(stat.st_mtime, stat.st_mtime_nsec as u32),
        }))
    }
    fn list(&self, path: &Path) -> Result<Vec<OsString>, Failure> {
        let listed = self.open_as(path, OFlags::RDONLY | OFlags::DIRECTORY, 0).and_then(rustix::fs::Dir::new);
        let mut names = Vec::new();
        for entry in self.refused(path, listed)? {
            let entry = entry.map_err(|e| about(path, e))?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name.to_vec()));
            }
        }
        Ok(names)
    }
    fn readlink(&self, path: &Path) -> Result<PathBuf, Failure> {
        let target = self.at(path).and_then(|at| match at {
            At::Named(path) => rustix::fs::readlinkat(CWD, path, Vec::new()),
            At::Below(dir, name) => rustix::fs::readlinkat(&*dir, name, Vec::new()),
        });
        Ok(OsString::from_vec(target.map_err(|e| about(path, e))?.into_bytes()).into())
    }
    fn open(&self, path: &Path) -> Result<Box<dyn Content>, Failure> {
        let file = std::fs::File::from(self.refused(path, self.open_as(path, OFlags::RDONLY, 0))?);
        if self.is_below(path) && !file.metadata().about(path.display())?.is_file() {
            return Err(replaced(path));
        }
        Ok(Box::new(HostFile(file, path.into())))
    }
    fn create(&self, path: &Path, mode: u32) -> Result<Box<dyn Content>, Failure> {
        let file = self.open_as(path, OFlags::WRONLY | OFlags::CREATE, mode & 0o777);
        let file = std::fs::File::from(self.refused(path, file)?);
        let stat = rustix::fs::fstat(&file).map_err(|e| about(path, e))?;
        match kind(&stat) {
            Some(FileKind::File) => {
                // Who could read what was there is not to read what comes.
                if stat.st_mode & 0o777 & !mode != 0 {
                    let narrow = PermissionsExt::from_mode(stat.st_mode & mode & 0o777);
                    file.set_permissions(narrow).about(path.display())?;
                }
                file.set_len(0).about(path.display())?;
            }
            _ if self.is_below(path) => {
                return Err(Failure::new(format_args!(
                    "{}: is there and no regular file; remove it, or copy to another place",
                    path.display()
                )));
            }
            _ => {}
        }
        *self.created.borrow_mut() = Some((path.into(), id(&stat)));
        Ok(Box::new(HostFile(file, path.into())))
    }
    fn mkdir(&self, path: &Path, mode: u32) -> Result<(), Failure> {
        let private = Mode::from_raw_mode(0o700);
        let made = self.at(path).and_then(|at| match at {
            At::Named(path) => rustix::fs::mkdirat(CWD, path, private),
            At::Below(dir, name) => rustix::fs::mkdirat(&*dir, name, private),
        });
        let there = match made {
            Err(Errno::EXIST) => self.stat_as(path, !self.is_below(path)),
            r => return self.refused(path, r),
        };
        match there {
            Ok(stat) if kind(&stat) == Some(FileKind::Dir) => {
                // Who could enter it before is not to see what comes, if it is to be closed to
                // them.
                if stat.st_mode & 0o777 & !mode != 0 {
                    let fd = self.refused(path, self.handle(path, FileKind::Dir))?;
                    let narrow = PermissionsExt::from_mode(stat.st_mode & (mode | 0o700) & 0o7777);
                    std::fs::set_permissions(by_descriptor(&fd), narrow).about(path.display())?;
                }
                Ok(())
            }
            _ => self.refused(path, Err(Errno::EXIST)),
        }
    }
    fn symlink(&self, target: &Path, path: &Path) -> Result<(), Failure> {
        let made = self.at(path).and_then(|at| match at {
            At::Named(path) => rustix::fs::symlinkat(target, CWD, path),
            At::Below(dir, name) => rustix::fs::symlinkat(target, &*dir, name),
        });
        made.map_err(|e| about(path, e))
    }
    fn mknod(&self, path: &Path, mode: u32, rdev: u64) -> Result<(), Failure> {
        let kind = rustix::fs::FileType::from_raw_mode(mode);
        let private = Mode::from_raw_mode(mode & 0o600);
        let made = self.at(path).and_then(|at| match at {
            At::Named(path) => rustix::fs::mknodat(CWD, path, kind, private, rdev),
            At::Below(dir, name) => rustix::fs::mknodat(&*dir, name, kind, private, rdev),
        });
        made.map_err(|e| about(path, e))
    }
    fn link(&self, file: &Path, path: &Path) -> Result<(), Failure> {
        let linked = (|| {
            let (from, to) = (self.at(file)?, self.at(path)?);
            let (from, name) = match &from {
                At::Named(path) => (CWD, path.as_os_str()),
                At::Below(dir, name) => (dir.as_fd(), *name),
            };
            let (to, new) = match &to {
                At::Named(path) => (CWD, path.as_os_str()),
                At::Below(dir, name) => (dir.as_fd(), *name),
            };
            match rustix::fs::unlinkat(to, new, AtFlags::empty()) {
                Err(e) if e != Errno::NOENT => return Err(e),
                _ => {}
            }
            rustix::fs::linkat(from, name, to, new, AtFlags::empty())
        })();
        linked.map_err(|e| about(path, e))
    }
    fn xattrs(&self, path: &Path, kind: FileKind) -> Result<Vec<Xattr>, Failure> {
        let about = |e: Errno| about(path, e);
        let fd = self.handle(path, kind).map_err(about)?;
        let file = by_descriptor(&fd);
        let names = match whole(|b| rustix::fs::listxattr(&file, b)) {
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            r => r.map_err(about)?,
        };
        let mut all = Vec::new();
        for name in names.split(|b| *b == 0).filter(|n| is_kept(n)) {
            match whole(|b| rustix::fs::getxattr(&file, name, b)) {
                // Gone meanwhile.
                Err(Errno::NODATA) => {}
                r => all.push((name.to_vec(), r.map_err(about)?)),
            }
        }
        Ok(all)
    }
    fn set_attrs(&self, path: &Path, attrs: &CopyAttrs) -> Result<Refused, Failure> {
        debug_assert_eq!(attrs.mode.unwrap_or_default() & !0o7777, 0, "permission bits");
        let errno = |e: Errno| about(path, e);
        let fd = self.refused(path, self.handle(path, attrs.kind))?;
        let stat = rustix::fs::fstat(&fd).map_err(errno)?;
        let created = self.created.take().filter(|(at, _)| attrs.kind == FileKind::File && at == path);
        if kind(&stat) != Some(attrs.kind) || created.is_some_and(|(_, which)| which != id(&stat)) {
            // What the user named may be a device that the content was sent to: its attributes are
            // its own.
            return if self.is_below(path) { Err(replaced(path)) } else { Ok(Vec::new()) };
        }
        let file = by_descriptor(&fd);
        if attrs.uid.or(attrs.gid).is_some() {
            let (uid, gid) =
                (attrs.uid.map(rustix::fs::Uid::from_raw), attrs.gid.map(rustix::fs::Gid::from_raw));
            rustix::fs::chownat(&fd, "", uid, gid, AtFlags::EMPTY_PATH).map_err(errno)?;
        }
        let mut refused = Vec::new();
        if let Some(xattrs) = &attrs.xattrs {
            for name in ACLS.iter().filter(|a| xattrs.iter().all(|(n, _)| n != *a)) {
                // What is not there need not go; a link has none.
                let _ = rustix::fs::removexattr(&file, *name);
            }
            for (name, value) in xattrs {
                let set = rustix::fs::setxattr(&file, &name[..], value, rustix::fs::XattrFlags::empty());
                if let Err(e) = set {
                    refused.push((name.clone(), e));
                }
            }
        }
        if let Some(mode) = attrs.mode {
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).about(path.display())?;
        }
        if let Some((atime, mtime)) = attrs.times {
            let times =
                rustix::fs::Timestamps { last_access: timespec(atime), last_modification: timespec(mtime) };
            rustix::fs::utimensat(CWD, &file, &times, AtFlags::empty()).map_err(errno)?;
        }
        Ok(refused)
    }
}

/// Makes the failure of a file that another took the place of.
fn replaced(path: &Path) -> Failure {
    Failure::new(format_args!(
        "{}: somebody put another file there while it was copied; copy again when nobody changes it",
        path.display()
    ))
}

/// The longest list of extended attributes, and the longest value, that the kernel knows.
const XATTR_MAX: usize = 64 << 10;

/// Reads all that `ask` fills in.
fn whole(ask: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = vec![0; XATTR_MAX];
    let n = ask(&mut bytes)?;
    bytes.truncate(n);
    Ok(bytes)
}
