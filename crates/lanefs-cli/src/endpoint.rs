//! The two endpoints of a copy, the host and an image, with the same words.
//!
//! An endpoint gets the path that the user named. That path is followed through symbolic links;
//! below it nothing is: what lies there was put there by the source of this copy, by an earlier
//! one, or by somebody else, and no link of theirs may lead a copy out of the directory that it is
//! to fill.

use crate::failure::{About, Failure};
use crate::image::{self, Place};
use crate::size;
use lanefs::{Cred, FileKind, Fs, OpenOptions, SetTime, Volume};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The identity of a file among all that a copy meets: two names with the same are the same file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id {
    /// The volume's number in this command; 0 is the host.
    pub(crate) volume: usize,
    pub(crate) dev: u64,
    pub(crate) ino: u64,
}

/// The attributes of a file.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    /// Its identity.
    pub id: Id,
    /// The number of its names.
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

/// The attributes that a copy takes over from its source.
#[derive(Clone, Debug)]
pub struct CopyAttrs {
    /// Kind of the file that was copied.
    pub kind: FileKind,
    /// Owner, if it is not to be who copies.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Permission bits; `None` for what has none, a symbolic link.
    pub mode: Option<u32>,
    /// Times of access and change, in nanoseconds since 1970.
    pub times: Option<(i64, i64)>,
    /// Extended attributes, ACLs among them; those that the copy got from its directory and that
    /// are not here go.
    pub xattrs: Option<Vec<Xattr>>,
}

/// Extended attributes that could not be set: their names, and the reasons.
pub type Refused = Vec<(Vec<u8>, Errno)>;

pub(crate) const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Returns whether a copy takes an extended attribute along.
pub(crate) fn is_kept(name: &[u8]) -> bool {
    [&b"user."[..], b"trusted.", b"security."].iter().any(|p| name.starts_with(p)) || ACLS.contains(&name)
}

/// An open file of either endpoint.
pub trait Content {
    /// Returns where the next data begins, at or behind an offset; `None` if all that is left is a
    /// hole.
    fn next_data(&self, offset: u64) -> Result<Option<u64>, Failure>;
    /// Reads at an offset; 0 at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Failure>;
    /// Writes all at an offset.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<(), Failure>;
    /// Sets the size.
    fn set_len(&self, size: u64) -> Result<(), Failure>;
}

/// A place that files are copied from or to.
pub trait Endpoint {
    /// Formats a path for messages.
    fn show(&self, path: &Path) -> String;
    /// Returns a file's attributes; `None` if there is nothing.
    fn stat(&self, path: &Path, follow: bool) -> Result<Option<Meta>, Failure>;
    /// Returns the names in a directory, without `.` and `..`.
    fn list(&self, path: &Path) -> Result<Vec<OsString>, Failure>;
    /// Returns a symbolic link's target.
    fn readlink(&self, path: &Path) -> Result<PathBuf, Failure>;
    /// Opens for reading.
    fn open(&self, path: &Path) -> Result<Box<dyn Content>, Failure>;
    /// Creates or empties a file.
    fn create(&self, path: &Path, mode: u32) -> Result<Box<dyn Content>, Failure>;
    /// Makes a directory that is its owner's alone until it is given its mode, or accepts the one
    /// that is there.
    fn mkdir(&self, path: &Path, mode: u32) -> Result<(), Failure>;
    /// Makes a symbolic link.
    fn symlink(&self, target: &Path, path: &Path) -> Result<(), Failure>;
    /// Makes a node of another kind.
    fn mknod(&self, path: &Path, mode: u32, rdev: u64) -> Result<(), Failure>;
    /// Makes another name of a file, in place of what is there.
    fn link(&self, file: &Path, path: &Path) -> Result<(), Failure>;
    /// Returns the extended attributes that a copy takes along.
    fn xattrs(&self, path: &Path, kind: FileKind) -> Result<Vec<Xattr>, Failure>;
    /// Sets the attributes of a copy, and returns the extended ones that it cannot have here.
    fn set_attrs(&self, path: &Path, attrs: &CopyAttrs) -> Result<Refused, Failure>;
}

/// Makes the failure of a copy that would write where a symbolic link is.
pub(crate) fn is_link(shown: impl std::fmt::Display) -> Failure {
    Failure::new(format_args!(
        "{shown}: a symbolic link is there, and nothing is written through it; remove it, or copy to another place"
    ))
}

/// An image's files.
pub struct ImageEndpoint {
    fs: Fs,
    cred: Cred,
    place: Place,
    number: usize,
}

impl ImageEndpoint {
    /// Makes the endpoint of the files of `volume`, which is the one `place` names, and has this
    /// number, from 1, in this command.
    pub fn new(volume: Volume, place: &Place, number: usize) -> ImageEndpoint {
        debug_assert_ne!(number, 0, "0 is the host");
        let cred = image::who();
        ImageEndpoint { fs: volume.as_user(cred.clone()), cred, place: place.clone(), number }
    }
    /// Returns the inode at a path.
    fn ino(&self, path: &Path, kind: FileKind) -> Result<lanefs::Ino, Failure> {
        let follow = kind != FileKind::Symlink && self.is_named(path);
        let stat = if follow { self.fs.stat(path) } else { self.fs.lstat(path) };
        Ok(self.about(path, stat)?.ino)
    }
    /// Returns whether this is the path that the user named, which is followed.
    fn is_named(&self, path: &Path) -> bool {
        path == self.place.path
    }
    /// Refuses to go through a symbolic link. Nobody else changes the volume meanwhile.
    fn refuse_link(&self, path: &Path) -> Result<(), Failure> {
        match self.is_named(path) {
            false if self.stat(path, false)?.is_some_and(|m| m.kind == FileKind::Symlink) => {
                Err(is_link(self.show(path)))
            }
            _ => Ok(()),
        }
    }
    fn about<T>(&self, path: &Path, result: lanefs::Result<T>) -> Result<T, Failure> {
        match result {
            Err(e) if is_host_full(self.fs.volume(), &e) => Err(host_full(self.show(path))),
            result => result.about(self.show(path)),
        }
    }
}

/// Returns whether a call failed because the file system that holds an image is full.
fn is_host_full(volume: &Volume, e: &lanefs::Error) -> bool {
    e.errno() == libc::ENOSPC && volume.waits_for_host()
}

/// Makes the failure of a call for which the host of an image has no space.
fn host_full(shown: impl std::fmt::Display) -> Failure {
    Failure::new(format_args!(
        "{shown}: no space left: the file system that holds the image is full, not the volume; make space there, or remove files of the volume"
    ))
}

/// An open file of an image.
struct ImageFile {
    volume: Volume,
    file: lanefs::File,
    name: String,
    /// Bytes that were free in the volume when the file was opened.
    free: u64,
}

impl Content for ImageFile {
    fn next_data(&self, offset: u64) -> Result<Option<u64>, Failure> {
        match self.file.lseek(offset as i64, libc::SEEK_DATA) {
            Err(e) if e.errno() == libc::ENXIO => Ok(None),
            r => r.about(&self.name).map(Some),
        }
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Failure> {
        self.file.read_at(buffer, offset).about(&self.name)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> Result<(), Failure> {
        match self.file.write_all_at(data, offset) {
            Err(e) if is_host_full(&self.volume, &e) => Err(host_full(&self.name)),
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

impl Endpoint for ImageEndpoint {
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
        let listed = self.fs.read_dir_from(path, 0, &mut |e| {
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
        let free = self.about(path, self.fs.statfs())?.free * lanefs_format::BLOCK_SIZE as u64;
        Ok(Box::new(ImageFile { volume: self.fs.volume().clone(), file, name: self.show(path), free }))
    }
    fn create(&self, path: &Path, mode: u32) -> Result<Box<dyn Content>, Failure> {
        self.refuse_link(path)?;
        let options =
            OpenOptions { flags: libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC, mode: mode & 0o777 };
        let file = self.about(path, self.fs.open(path, &options))?;
        let free = self.about(path, self.fs.statfs())?.free * lanefs_format::BLOCK_SIZE as u64;
        Ok(Box::new(ImageFile { volume: self.fs.volume().clone(), file, name: self.show(path), free }))
    }
    fn mkdir(&self, path: &Path, mode: u32) -> Result<(), Failure> {
        self.refuse_link(path)?;
        match self.fs.mkdir(path, mode & 0o777 | 0o700) {
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
    fn xattrs(&self, path: &Path, kind: FileKind) -> Result<Vec<Xattr>, Failure> {
        let (v, ino) = (self.fs.volume(), self.ino(path, kind)?);
        let mut all = Vec::new();
        for name in self.about(path, v.node_listxattr(&self.cred, ino))? {
            if is_kept(&name) {
                let value = self.about(path, v.node_getxattr(&self.cred, ino, &name))?;
                all.push((name, value));
            }
        }
        Ok(all)
    }
    fn set_attrs(&self, path: &Path, attrs: &CopyAttrs) -> Result<Refused, Failure> {
        debug_assert_eq!(attrs.mode.unwrap_or_default() & !0o7777, 0, "permission bits");
        if attrs.uid.or(attrs.gid).is_some() {
            self.about(path, self.fs.chown(path, attrs.uid, attrs.gid, false))?;
        }
        let mut refused = Vec::new();
        if let Some(xattrs) = &attrs.xattrs {
            let (v, ino) = (self.fs.volume(), self.ino(path, attrs.kind)?);
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
        if let Some(mode) = attrs.mode {
            self.about(path, self.fs.chmod(path, mode))?;
        }
        if let Some((atime, mtime)) = attrs.times {
            let (atime, mtime) = (SetTime::At(atime), SetTime::At(mtime));
            self.about(path, self.fs.set_times(path, Some(atime), Some(mtime), false))?;
        }
        Ok(refused)
    }
}
