//! The two sides of a copy, the host and an image, with the same words.

use crate::failure::{About, Failure};
use crate::image::Place;
use lanefs::{Cred, FileKind, Fs, OpenOptions, SetTime, Volume};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What a copy carries over.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
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

/// An open file of either side.
pub trait Content {
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
    /// Sets mode; with `all` owner and times too.
    fn set_meta(&self, path: &Path, meta: &Meta, all: bool) -> Result<(), Failure>;
}

/// The host's files.
pub struct HostSide;

struct HostFile(std::fs::File, PathBuf);

impl Content for HostFile {
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
    fn set_meta(&self, path: &Path, meta: &Meta, all: bool) -> Result<(), Failure> {
        if all {
            std::os::unix::fs::lchown(path, Some(meta.uid), Some(meta.gid)).about(path.display())?;
        }
        if meta.kind != FileKind::Symlink {
            let mode = std::fs::Permissions::from_mode(meta.mode & 0o7777);
            std::fs::set_permissions(path, mode).about(path.display())?;
        }
        if all {
            let times = rustix::fs::Timestamps {
                last_access: timespec(meta.atime),
                last_modification: timespec(meta.mtime),
            };
            rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
                .map_err(std::io::Error::from)
                .about(path.display())?;
        }
        Ok(())
    }
}

/// An image's files.
pub struct ImageSide {
    fs: Fs,
    place: Place,
}

impl ImageSide {
    /// The files of `volume`, which is the one `place` names.
    pub fn new(volume: Volume, place: &Place) -> ImageSide {
        ImageSide { fs: volume.as_user(Cred::root()), place: place.clone() }
    }
    fn about<T>(&self, path: &Path, result: lanefs::Result<T>) -> Result<T, Failure> {
        result.about(self.show(path))
    }
}

struct ImageFile(lanefs::File, String);

impl Content for ImageFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Failure> {
        self.0.read_at(buffer, offset).about(&self.1)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> Result<(), Failure> {
        self.0.write_all_at(data, offset).about(&self.1)
    }
    fn set_len(&self, size: u64) -> Result<(), Failure> {
        self.0.set_len(size).about(&self.1)
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
        Ok(Box::new(ImageFile(file, self.show(path))))
    }
    fn create(&self, path: &Path, mode: u32) -> Result<Box<dyn Content>, Failure> {
        let options =
            OpenOptions { flags: libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC, mode: mode & 0o777 };
        let file = self.about(path, self.fs.open(path, &options))?;
        Ok(Box::new(ImageFile(file, self.show(path))))
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
    fn set_meta(&self, path: &Path, meta: &Meta, all: bool) -> Result<(), Failure> {
        if all {
            self.about(path, self.fs.chown(path, Some(meta.uid), Some(meta.gid), false))?;
        }
        if meta.kind != FileKind::Symlink {
            self.about(path, self.fs.chmod(path, meta.mode & 0o7777))?;
        }
        if all {
            let (atime, mtime) = (SetTime::At(meta.atime), SetTime::At(meta.mtime));
            self.about(path, self.fs.set_times(path, Some(atime), Some(mtime), false))?;
        }
        Ok(())
    }
}
