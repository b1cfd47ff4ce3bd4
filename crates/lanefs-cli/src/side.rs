//! The two sides of a copy, the host and an image, with the same words.

use crate::failure::{About, Failure};
use crate::image::{self, Place};
use crate::size;
use lanefs::{Cred, FileKind, Fs, OpenOptions, SetTime, Volume};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Which file it is, among all that a copy meets: two names with the same are the same file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id {
    /// The volume's number in this command; 0 is the host.
    volume: usize,
    dev: u64,
    ino: u64,
}

/// What there is to know of a file.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    /// Which file.
    pub id: Id,
    /// Its names.
    pub nlink: u64,
    /// Kind of file.
    pub kind: FileKind,
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Nanoseconds since 1970.
    pub atime: i64,
    /// Nanoseconds since 1970.
    pub mtime: i64,
}

/// An extended attribute: name and value.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// What a copy is given.
#[derive(Clone, Debug)]
pub struct Given {
    /// Owner, if it is not to be who copies.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Permission bits; `None` for what has none, a symbolic link.
    pub mode: Option<u32>,
    /// Times of access and change, in nanoseconds since 1970.
    pub times: Option<(i64, i64)>,
    /// Extended attributes, ACLs among them; those that the copy got from its directory and that are not here go.
    pub xattrs: Option<Vec<Xattr>>,
}

/// What could not be given, and why: the name of an extended attribute.
pub type Refused = Vec<(Vec<u8>, Errno)>;

const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Extended attributes that a copy takes along.
fn is_kept(name: &[u8]) -> bool {
    [&b"user."[..], b"trusted.", b"security."].iter().any(|p| name.starts_with(p)) || ACLS.contains(&name)
}

/// An open file of either side.
pub trait Content {
    /// Where the next data begins, at or behind an offset; `None` if all that is left is a hole.
    fn next_data(&self, offset: u64) -> Result<Option<u64>, Failure>;
    /// Reads at an offset; 0 at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Failure>;
    /// Writes all at an offset.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<(), Failure>;
    /// Sets the size.
    fn set_len(&self, size: u64) -> Result<(), Failure>;
}

/// Where files are copied from or to.
pub trait Side {
    /// A path for messages.
    fn show(&self, path: &Path) -> String;
    /// Attributes; `None` if there is nothing.
    fn stat(&self, path: &Path, follow: bool) -> Result<Option<Meta>, Failure>;
    /// Names in a directory, without `.` and `..`.
    fn list(&self, path: &Path) -> Result<Vec<OsString>, Failure>;
    /// A symbolic link's target.
    fn readlink(&self, path: &Path) -> Result<PathBuf, Failure>;
    /// Opens for reading.
    fn open(&self, path: &Path) -> Result<Box<dyn Content>, Failure>;
    /// Creates or empties a file.
    fn create(&self, path: &Path, mode: u32) -> Result<Box<dyn Content>, Failure>;
    /// Makes a directory, or accepts the one that is there.
    fn mkdir(&self, path: &Path, mode: u32) -> Result<(), Failure>;
    /// Makes a symbolic link.
    fn symlink(&self, target: &Path, path: &Path) -> Result<(), Failure>;
    /// Makes a node of another kind.
    fn mknod(&self, path: &Path, mode: u32, rdev: u64) -> Result<(), Failure>;
    /// Makes another name of a file, in place of what is there.
    fn link(&self, file: &Path, path: &Path) -> Result<(), Failure>;
    /// Extended attributes that a copy takes along.
    fn xattrs(&self, path: &Path) -> Result<Vec<Xattr>, Failure>;
    /// Gives a copy what is its own, and answers what of the extended attributes it cannot have here.
    fn give(&self, path: &Path, given: &Given) -> Result<Refused, Failure>;
}

/// The host's files.
pub struct HostSide;

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
        self.0.set_len(size).about(self.1.display())
    }
}

fn nanos(seconds: i64, nanos: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

fn timespec(ns: i64) -> rustix::fs::Timespec {
    rustix::fs::Timespec { tv_sec: ns.div_euclid(1_000_000_000), tv_nsec: ns.rem_euclid(1_000_000_000) }
}

impl Side for HostSide {
    fn show(&self, path: &Path) -> String {
        path.display().to_string()
    }
    fn stat(&self, path: &Path, follow: bool) -> Result<Option<Meta>, Failure> {
        let meta = if follow { std::fs::metadata(path) } else { std::fs::symlink_metadata(path) };
        let meta = match meta {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            r => r.about(path.display())?,
        };
        let kind = FileKind::from_mode(meta.mode()).ok_or_else(|| {
            Failure::new(format_args!("{}: a kind of file that is not known", path.display()))
        })?;
        Ok(Some(Meta {
            id: Id { volume: 0, dev: meta.dev(), ino: meta.ino() },
            nlink: meta.nlink(),
            kind,
            mode: meta.mode(),
            uid: meta.uid(),
            gid: meta.gid(),
            rdev: meta.rdev(),
            size: meta.size(),
            atime: nanos(meta.atime(), meta.atime_nsec()),
            mtime: nanos(meta.mtime(), meta.mtime_nsec()),
        }))
    }
    fn list(&self, path: &Path) -> Result<Vec<OsString>, Failure> {
        let entries = std::fs::read_dir(path).about(path.display())?;
        entries.map(|e| Ok(e.about(path.display())?.file_name())).collect()
    }
    fn readlink(&self, path: &Path) -> Result<PathBuf, Failure> {
        std::fs::read_link(path).about(path.display())
    }
    fn open(&self, path: &Path) -> Result<Box<dyn Content>, Failure> {
        let file = std::fs::File::open(path).about(path.display())?;
        Ok(Box::new(HostFile(file, path.into())))
    }
    fn create(&self, path: &Path, mode: u32) -> Result<Box<dyn Content>, Failure> {
        let mut options = std::fs::File::options();
        let file = options.write(true).create(true).truncate(true).mode(mode & 0o777).open(path);
        Ok(Box::new(HostFile(file.about(path.display())?, path.into())))
    }
    fn mkdir(&self, path: &Path, _mode: u32) -> Result<(), Failure> {
        match std::fs::create_dir(path) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            r => r.about(path.display()),
        }
    }
    fn symlink(&self, target: &Path, path: &Path) -> Result<(), Failure> {
        std::os::unix::fs::symlink(target, path).about(path.display())
    }
    fn mknod(&self, path: &Path, mode: u32, rdev: u64) -> Result<(), Failure> {
        let kind = rustix::fs::FileType::from_raw_mode(mode);
        let mode = rustix::fs::Mode::from_raw_mode(mode);
        rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, rdev)
            .map_err(std::io::Error::from)
            .about(path.display())
    }
    fn link(&self, file: &Path, path: &Path) -> Result<(), Failure> {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e).about(path.display()),
            _ => {}
        }
        std::fs::hard_link(file, path).about(path.display())
    }
    fn xattrs(&self, path: &Path) -> Result<Vec<Xattr>, Failure> {
        let about = |e: Errno| std::io::Result::<()>::Err(e.into()).about(path.display()).unwrap_err();
        let names = match whole(|b| rustix::fs::llistxattr(path, b)) {
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            r => r.map_err(about)?,
        };
        let mut all = Vec::new();
        for name in names.split(|b| *b == 0).filter(|n| is_kept(n)) {
            match whole(|b| rustix::fs::lgetxattr(path, name, b)) {
                // Gone meanwhile.
                Err(Errno::NODATA) => {}
                r => all.push((name.to_vec(), r.map_err(about)?)),
            }
        }
        Ok(all)
    }
    fn give(&self, path: &Path, given: &Given) -> Result<Refused, Failure> {
        if given.uid.or(given.gid).is_some() {
            std::os::unix::fs::lchown(path, given.uid, given.gid).about(path.display())?;
        }
        let mut refused = Vec::new();
        if let Some(xattrs) = &given.xattrs {
            for name in ACLS.iter().filter(|a| xattrs.iter().all(|(n, _)| n != *a)) {
                // What is not there need not go; a link has none.
                let _ = rustix::fs::lremovexattr(path, *name);
            }
            for (name, value) in xattrs {
                let set = rustix::fs::lsetxattr(path, &name[..], value, rustix::fs::XattrFlags::empty());
                if let Err(e) = set {
                    refused.push((name.clone(), e));
                }
            }
        }
        if let Some(mode) = given.mode {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).about(path.display())?;
        }
        if let Some((atime, mtime)) = given.times {
            let times =
                rustix::fs::Timestamps { last_access: timespec(atime), last_modification: timespec(mtime) };
            rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
                .map_err(std::io::Error::from)
                .about(path.display())?;
        }
        Ok(refused)
    }
}

/// The longest list of extended attributes, and the longest value, that the kernel knows.
const XATTR_MAX: usize = 64 << 10;

fn whole(ask: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = vec![0; XATTR_MAX];
    let n = ask(&mut bytes)?;
    bytes.truncate(n);
    Ok(bytes)
}

/// An image's files.
pub struct ImageSide {
    fs: Fs,
    cred: Cred,
    place: Place,
    number: usize,
}

impl ImageSide {
    /// The files of `volume`, which is the one `place` names, and has this number, from 1, in this command.
    pub fn new(volume: Volume, place: &Place, number: usize) -> ImageSide {
        let cred = image::who();
        ImageSide { fs: volume.as_user(cred.clone()), cred, place: place.clone(), number }
    }
    fn ino(&self, path: &Path) -> Result<lanefs::Ino, Failure> {
        Ok(self.about(path, self.fs.lstat(path))?.ino)
    }
    fn about<T>(&self, path: &Path, result: lanefs::Result<T>) -> Result<T, Failure> {
        result.about(self.show(path))
    }
}

struct ImageFile {
    file: lanefs::File,
    name: String,
    /// Bytes that were free in the volume when the file was opened.
    free: u64,
}

impl Content for ImageFile {
    fn next_data(&self, offset: u64) -> Result<Option<u64>, Failure> {
        match self.file.seek(offset as i64, libc::SEEK_DATA) {
            Err(e) if e.errno() == libc::ENXIO => Ok(None),
            r => r.about(&self.name).map(Some),
        }
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Failure> {
        self.file.read_at(buffer, offset).about(&self.name)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> Result<(), Failure> {
        match self.file.write_all_at(data, offset) {
            Err(e) if e.errno() == libc::ENOSPC => Err(Failure::new(format_args!(
                "{}: no space left: {} were free when its copy began; remove files, or make a larger volume",
                self.name,
                size::show(self.free)
            ))),
            r => r.about(&self.name),
        }
    }
    fn set_len(&self, size: u64) -> Result<(), Failure> {
        self.file.set_len(size).about(&self.name)
    }
}

impl Side for ImageSide {
    fn show(&self, path: &Path) -> String {
        self.place.at(path).show()
    }
    fn stat(&self, path: &Path, follow: bool) -> Result<Option<Meta>, Failure> {
        let stat = if follow { self.fs.stat(path) } else { self.fs.lstat(path) };
        let s = match stat {
            Err(e) if e.errno() == libc::ENOENT => return Ok(None),
            r => self.about(path, r)?,
        };
        Ok(Some(Meta {
            id: Id { volume: self.number, dev: 0, ino: s.ino.0 },
            nlink: u64::from(s.nlink),
            kind: s.kind,
            mode: s.mode,
            uid: s.uid,
            gid: s.gid,
            rdev: s.rdev,
            size: s.size,
            atime: s.atime,
            mtime: s.mtime,
        }))
    }
    fn list(&self, path: &Path) -> Result<Vec<OsString>, Failure> {
        let mut names = Vec::new();
        let listed = self.fs.read_dir(path, 0, &mut |e| {
            if e.name != b"." && e.name != b".." {
                names.push(OsString::from_vec(e.name.to_vec()));
            }
            true
        });
        self.about(path, listed)?;
        Ok(names)
    }
    fn readlink(&self, path: &Path) -> Result<PathBuf, Failure> {
        Ok(PathBuf::from(OsString::from_vec(self.about(path, self.fs.readlink(path))?)))
    }
    fn open(&self, path: &Path) -> Result<Box<dyn Content>, Failure> {
        let options = OpenOptions { flags: libc::O_RDONLY, mode: 0 };
        let file = self.about(path, self.fs.open(path, &options))?;
        let free = self.about(path, self.fs.statfs())?.free * lanefs_store::BLOCK_SIZE as u64;
        Ok(Box::new(ImageFile { file, name: self.show(path), free }))
    }
    fn create(&self, path: &Path, mode: u32) -> Result<Box<dyn Content>, Failure> {
        let options =
            OpenOptions { flags: libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC, mode: mode & 0o777 };
        let file = self.about(path, self.fs.open(path, &options))?;
        let free = self.about(path, self.fs.statfs())?.free * lanefs_store::BLOCK_SIZE as u64;
        Ok(Box::new(ImageFile { file, name: self.show(path), free }))
    }
    fn mkdir(&self, path: &Path, mode: u32) -> Result<(), Failure> {
        match self.fs.mkdir(path, mode & 0o777) {
            Err(e) if e.errno() == libc::EEXIST => match self.stat(path, true)? {
                Some(m) if m.kind == FileKind::Dir => Ok(()),
                _ => self.about(path, Err(e)),
            },
            r => self.about(path, r),
        }
    }
    fn symlink(&self, target: &Path, path: &Path) -> Result<(), Failure> {
        self.about(path, self.fs.symlink(target.as_os_str().as_bytes(), path))
    }
    fn mknod(&self, path: &Path, mode: u32, rdev: u64) -> Result<(), Failure> {
        self.about(path, self.fs.mknod(path, mode, rdev))
    }
    fn link(&self, file: &Path, path: &Path) -> Result<(), Failure> {
        match self.fs.unlink(path) {
            Err(e) if e.errno() != libc::ENOENT => return self.about(path, Err(e)),
            _ => {}
        }
        self.about(path, self.fs.link(file, path))
    }
    fn xattrs(&self, path: &Path) -> Result<Vec<Xattr>, Failure> {
        let (v, ino) = (self.fs.volume(), self.ino(path)?);
        let mut all = Vec::new();
        for name in self.about(path, v.node_listxattr(&self.cred, ino))? {
            if is_kept(&name) {
                let value = self.about(path, v.node_getxattr(&self.cred, ino, &name))?;
                all.push((name, value));
            }
        }
        Ok(all)
    }
    fn give(&self, path: &Path, given: &Given) -> Result<Refused, Failure> {
        if given.uid.or(given.gid).is_some() {
            self.about(path, self.fs.chown(path, given.uid, given.gid, false))?;
        }
        let mut refused = Vec::new();
        if let Some(xattrs) = &given.xattrs {
            let (v, ino) = (self.fs.volume(), self.ino(path)?);
            for name in ACLS.iter().filter(|a| xattrs.iter().all(|(n, _)| n != *a)) {
                // What is not there need not go.
                let _ = v.node_removexattr(&self.cred, ino, name);
            }
            for (name, value) in xattrs {
                if let Err(e) = v.node_setxattr(&self.cred, ino, name, value, 0) {
                    refused.push((name.clone(), Errno::from_raw_os_error(e.errno())));
                }
            }
        }
        if let Some(mode) = given.mode {
            self.about(path, self.fs.chmod(path, mode))?;
        }
        if let Some((atime, mtime)) = given.times {
            let (atime, mtime) = (SetTime::At(atime), SetTime::At(mtime));
            self.about(path, self.fs.set_times(path, Some(atime), Some(mtime), false))?;
        }
        Ok(refused)
    }
}
