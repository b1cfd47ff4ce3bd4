//! Volumes: opening and closing them, and everything by path.

use crate::answer::{At, Failure, Outcome, outside, refuse_children};
use crate::attrs::{Times, owner, set_times, stat_result, statvfs_result};
use crate::buffer::Source;
use crate::dir::ScanDir;
use crate::file::{File, rest, size};
use crate::path::{PathArg, name};
use crate::view::{Shared, View};
use lanefs::{FileKind, Fs, OpenOptions};
use lanefs_sync::fork;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An open volume as one user sees it: the part of `lanefs.Volume` that calls the library. The
/// class in Python builds on it.
#[pyclass(frozen, subclass, module = "lanefs._lanefs")]
pub(crate) struct Volume {
    view: Arc<View>,
    /// The view of a user: closing it leaves the volume open.
    of_user: bool,
}

impl Volume {
    /// Calls the library, for the user of this view.
    #[inline]
    fn run<R: Send>(&self, py: Python<'_>, call: impl FnOnce(&Fs) -> lanefs::Result<R> + Send) -> Outcome<R> {
        self.view.run(py, call)
    }

    /// Returns the kind of what a path leads to; `None` if there is nothing, or a part of the path
    /// cannot be passed, as the functions of `os.path` have it.
    fn kind(&self, py: Python<'_>, path: &PathArg<'_>, follow: bool) -> PyResult<Option<FileKind>> {
        let bytes = path.bytes();
        match self.run(py, |fs| if follow { fs.stat(bytes) } else { fs.lstat(bytes) }) {
            Ok(stat) => Ok(Some(stat.kind)),
            Err(Failure::Library(lanefs::Error::Posix(errno))) if errno != libc::EIO => Ok(None),
            Err(e) => Err(e.of_paths(path, None)),
        }
    }
}

/// Returns names as `str` or `bytes`.
fn names<'py>(
    py: Python<'py>,
    all: impl IntoIterator<Item = impl AsRef<[u8]>>,
    as_bytes: bool,
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for one in all {
        list.append(name(py, one.as_ref(), as_bytes)?)?;
    }
    Ok(list)
}

#[pymethods]
impl Volume {
    /// Open a volume: of `images` (paths of the host), or of `memory` bytes; or make a view of
    /// another one for a user (uid, gid, groups).
    #[new]
    #[pyo3(signature = (images, options, umask, *, memory = None, of = None, user = None))]
    fn new(
        py: Python<'_>,
        images: Vec<OsString>,
        options: Vec<(String, Option<String>)>,
        umask: u32,
        memory: Option<u64>,
        of: Option<Py<Volume>>,
        user: Option<(u32, u32, Vec<u32>)>,
    ) -> PyResult<Volume> {
        refuse_children()?;
        let shared = match &of {
            Some(of) => Arc::clone(of.get().view.shared()),
            None => {
                let images: Vec<PathBuf> = images.into_iter().map(PathBuf::from).collect();
                fork::watch();
                Shared::open(py, &images, &options, memory)?
            }
        };
        let view = Arc::new(View::new(shared, user, umask));
        Ok(Volume { view, of_user: of.is_some() })
    }

    /// Close the volume, or this view of it.
    fn _close(&self, py: Python<'_>) -> PyResult<()> {
        if !self.view.end() {
            return Ok(());
        }
        refuse_children()?;
        if self.of_user {
            return Ok(());
        }
        let shared = Arc::clone(self.view.shared());
        Ok(outside(py, move || shared.close())?)
    }

    /// Whether the volume, or this view of it, was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.view.is_closed()
    }

    /// The name for people.
    #[getter]
    fn label(&self) -> PyResult<String> {
        refuse_children()?;
        Ok(self.view.shared().volume.info().label)
    }

    /// The identity of the volume.
    #[getter]
    fn _uuid<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        refuse_children()?;
        Ok(PyBytes::new(py, &self.view.shared().volume.info().uuid))
    }

    /// Whether it was opened for reading only.
    #[getter]
    fn read_only(&self) -> bool {
        self.view.shared().read_only
    }

    /// The permission bits that are taken from the mode of what is made.
    #[getter]
    fn umask(&self) -> u32 {
        self.view.umask()
    }

    /// Make durable all that returned before: content, attributes and names of the whole volume.
    ///
    /// EIO, ENOSPC: nothing is promised of what was not durable before.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.run(py, |fs| fs.volume().sync())?)
    }

    /// Return the sizes of the volume as `os.statvfs_result`, in blocks of 4096 bytes.
    fn statvfs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        statvfs_result(py, &self.run(py, Fs::statfs)?, self.view.shared().read_only)
    }

    /// Serve a FUSE mount of the volume at the directory `mountpoint` of the host, from threads of
    /// this process, until `unmount` or the end of the volume: others use the files by system calls
    /// meanwhile, and either sees at once what the other does. Root mounts by itself, others by
    /// fusermount3.
    ///
    /// EBUSY: it is mounted already. Else what mounting answers, as the message has it.
    fn serve_mount(&self, py: Python<'_>, mountpoint: PathArg<'_>) -> PyResult<()> {
        self.run(py, |_| Ok(()))?;
        let dir = Path::new(OsStr::from_bytes(mountpoint.bytes()));
        let shared = Arc::clone(self.view.shared());
        py.detach(|| shared.serve_mount(dir)).at(&mountpoint)
    }

    /// Unmount what `serve_mount` has mounted, whoever uses it. The volume stays open.
    ///
    /// EINVAL: it is not mounted.
    fn unmount(&self, py: Python<'_>) -> PyResult<()> {
        refuse_children()?;
        let shared = Arc::clone(self.view.shared());
        Ok(py.detach(move || shared.unmount())?)
    }

    /// Open a file for `io`, which has none of directories.
    fn _open(&self, py: Python<'_>, path: PathArg<'_>, flags: i32, mode: u32) -> PyResult<File> {
        let (bytes, options) = (path.bytes(), OpenOptions { flags, mode });
        let call = |fs: &Fs| {
            let file = fs.open(bytes, &options)?;
            match options.flags & libc::O_ACCMODE == libc::O_RDONLY && file.stat()?.kind.is_dir() {
                true => Err(lanefs::Error::Posix(libc::EISDIR)),
                false => Ok(Arc::new(file)),
            }
        };
        let file = self.run(py, call).at(&path)?;
        Ok(File::new(file, Arc::clone(&self.view), path.given().clone().unbind()))
    }

    /// Open a file as `os.open` does, with its flags, and return the `File`: O_RDONLY, O_WRONLY,
    /// O_RDWR, O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_NOFOLLOW, O_DIRECTORY, O_TMPFILE, O_SYNC,
    /// O_DSYNC, O_DIRECT, O_NOATIME. `mode` is that of a file that is made, less the umask.
    ///
    /// A name that is made is durable with `File.fsync`, `fsync` of its directory, or `sync`;
    /// before that a crash may take it, whole. FileNotFoundError, FileExistsError (O_EXCL),
    /// IsADirectoryError, NotADirectoryError, PermissionError; ELOOP, EROFS, ENOSPC.
    #[pyo3(signature = (path, flags = 0, mode = 0o666))]
    fn open_raw(&self, py: Python<'_>, path: PathArg<'_>, flags: i32, mode: u32) -> PyResult<File> {
        if flags & libc::O_ACCMODE == libc::O_ACCMODE {
            let what = "O_RDONLY, O_WRONLY or O_RDWR, no two of them";
            return Err(Failure::invalid(what).of_paths(&path, None));
        }
        let (bytes, options) = (path.bytes(), OpenOptions { flags, mode });
        let file = self.run(py, |fs| fs.open(bytes, &options).map(Arc::new)).at(&path)?;
        Ok(File::new(file, Arc::clone(&self.view), path.given().clone().unbind()))
    }

    /// Return the whole content of a file.
    fn read_bytes<'py>(&self, py: Python<'py>, path: PathArg<'_>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = path.bytes();
        let options = OpenOptions { flags: libc::O_RDONLY, mode: 0 };
        let file = self.run(py, |fs| fs.open(bytes, &options)).at(&path)?;
        rest(py, &file).at(&path)
    }

    /// Replace the whole content of a file, which is made if it is not there; return how many
    /// bytes.
    ///
    /// Not durable by itself, and not in one step: a crash may leave the file shorter. To replace a
    /// file safely write another one, and `replace` it.
    fn write_bytes(&self, py: Python<'_>, path: PathArg<'_>, data: Source<'_>) -> PyResult<usize> {
        let (bytes, content) = (path.bytes(), data.bytes());
        self.run(py, |fs| fs.write(bytes, content)).at(&path)?;
        Ok(content.len())
    }

    /// Return the attributes of what a path leads to, as an `os.stat_result`.
    ///
    /// `st_dev` tells volumes apart. FileNotFoundError, NotADirectoryError, PermissionError, ELOOP.
    #[pyo3(signature = (path, *, follow_symlinks = true))]
    fn stat<'py>(
        &self,
        py: Python<'py>,
        path: PathArg<'_>,
        follow_symlinks: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let bytes = path.bytes();
        let call = |fs: &Fs| if follow_symlinks { fs.stat(bytes) } else { fs.lstat(bytes) };
        stat_result(py, &self.run(py, call).at(&path)?, self.view.device())
    }

    /// Return the attributes of what a path names: of a symbolic link its own.
    fn lstat<'py>(&self, py: Python<'py>, path: PathArg<'_>) -> PyResult<Bound<'py, PyAny>> {
        self.stat(py, path, false)
    }

    /// Return whether a path leads to something; False also where it cannot be followed.
    fn exists(&self, py: Python<'_>, path: PathArg<'_>) -> PyResult<bool> {
        Ok(self.kind(py, &path, true)?.is_some())
    }

    /// Return whether a path names something, a symbolic link to nothing included.
    fn lexists(&self, py: Python<'_>, path: PathArg<'_>) -> PyResult<bool> {
        Ok(self.kind(py, &path, false)?.is_some())
    }

    /// Return whether a path leads to a regular file.
    fn isfile(&self, py: Python<'_>, path: PathArg<'_>) -> PyResult<bool> {
        Ok(self.kind(py, &path, true)? == Some(FileKind::File))
    }

    /// Return whether a path leads to a directory.
    fn isdir(&self, py: Python<'_>, path: PathArg<'_>) -> PyResult<bool> {
        Ok(self.kind(py, &path, true)? == Some(FileKind::Dir))
    }

    /// Return whether a path names a symbolic link.
    fn islink(&self, py: Python<'_>, path: PathArg<'_>) -> PyResult<bool> {
        Ok(self.kind(py, &path, false)? == Some(FileKind::Symlink))
    }

    /// Return whether the user of this volume may do what `mode` says: os.R_OK, os.W_OK, os.X_OK,
    /// os.F_OK.
    fn access(&self, py: Python<'_>, path: PathArg<'_>, mode: i32) -> PyResult<bool> {
        let bytes = path.bytes();
        match self.run(py, |fs| fs.access(bytes, mode)) {
            Ok(()) => Ok(true),
            Err(Failure::Library(lanefs::Error::Posix(errno))) if errno != libc::EIO => Ok(false),
            Err(e) => Err(e.of_paths(&path, None)),
        }
    }

    /// Return the names in a directory, without '.' and '..', in no order that means anything;
    /// `bytes` if the path is.
    #[pyo3(signature = (path = None))]
    fn listdir<'py>(&self, py: Python<'py>, path: Option<PathArg<'_>>) -> PyResult<Bound<'py, PyList>> {
        let (bytes, as_bytes) = path.as_ref().map_or((&b"/"[..], false), |p| (p.bytes(), p.is_bytes()));
        let call = |fs: &Fs| {
            fs.read_dir(bytes)?
                .map(|entry| Ok(Box::<[u8]>::from(entry?.name().as_bytes())))
                .collect::<lanefs::Result<Vec<_>>>()
        };
        let found = self.run(py, call);
        let found = match &path {
            Some(path) => found.at(path)?,
            None => found?,
        };
        names(py, found, as_bytes)
    }

    /// Return an iterator of the entries of a directory, as `os.scandir`.
    #[pyo3(signature = (path = None))]
    fn scandir(&self, py: Python<'_>, path: Option<PathArg<'_>>) -> PyResult<ScanDir> {
        let path = match path {
            Some(path) => path,
            None => PyString::intern(py, "/").extract()?,
        };
        ScanDir::begin(py, &self.view, &path)
    }

    /// Make a directory. Durable as every name: with an fsync of it or of what is made in it, of
    /// the directory above, or `sync`. FileExistsError, FileNotFoundError, PermissionError, ENOSPC.
    #[pyo3(signature = (path, mode = 0o777))]
    fn mkdir(&self, py: Python<'_>, path: PathArg<'_>, mode: u32) -> PyResult<()> {
        let bytes = path.bytes();
        self.run(py, |fs| fs.mkdir(bytes, mode)).at(&path)
    }

    /// Remove an empty directory. ENOTEMPTY, NotADirectoryError, FileNotFoundError,
    /// PermissionError.
    fn rmdir(&self, py: Python<'_>, path: PathArg<'_>) -> PyResult<()> {
        let bytes = path.bytes();
        self.run(py, |fs| fs.rmdir(bytes)).at(&path)
    }

    /// Remove a directory with all that is in it, from the leaves up; a symbolic link is removed
    /// and not followed. Each removal is an operation of its own: after an error or a crash a part
    /// may be gone.
    fn rmtree(&self, py: Python<'_>, path: PathArg<'_>) -> PyResult<()> {
        let bytes = path.bytes();
        self.run(py, |fs| fs.remove_dir_all(bytes)).at(&path)
    }

    /// Remove a name of a file. A file without names lives until its last `File` is closed. After a
    /// crash the name is there or not; it is gone for good after an fsync of the directory, or
    /// `sync`.
    fn unlink(&self, py: Python<'_>, path: PathArg<'_>) -> PyResult<()> {
        let bytes = path.bytes();
        self.run(py, |fs| fs.unlink(bytes)).at(&path)
    }

    /// Do what `unlink` does.
    fn remove(&self, py: Python<'_>, path: PathArg<'_>) -> PyResult<()> {
        self.unlink(py, path)
    }

    /// Rename, replacing what `dst` names, in one step. `flags`: 0, or 1 (RENAME_NOREPLACE) or 2
    /// (RENAME_EXCHANGE) of renameat2(2).
    ///
    /// After a crash it is there whole or not at all, and what replaced a file has its content,
    /// without any fsync. FileNotFoundError, FileExistsError (RENAME_NOREPLACE), IsADirectoryError,
    /// NotADirectoryError, PermissionError, ENOTEMPTY, EINVAL, ENOSPC.
    #[pyo3(signature = (src, dst, *, flags = 0))]
    fn rename(&self, py: Python<'_>, src: PathArg<'_>, dst: PathArg<'_>, flags: u32) -> PyResult<()> {
        let (old, new) = (src.bytes(), dst.bytes());
        self.run(py, |fs| fs.rename2(old, new, flags)).at_both(&src, &dst)
    }

    /// Do what `rename` does.
    fn replace(&self, py: Python<'_>, src: PathArg<'_>, dst: PathArg<'_>) -> PyResult<()> {
        self.rename(py, src, dst, 0)
    }

    /// Copy the content and the permission bits of a file to another, which is made or emptied
    /// first; return how many bytes.
    fn copyfile(&self, py: Python<'_>, src: PathArg<'_>, dst: PathArg<'_>) -> PyResult<u64> {
        let (from, to) = (src.bytes(), dst.bytes());
        self.run(py, |fs| fs.copy(from, to)).at_both(&src, &dst)
    }

    /// Give a file another name; a symbolic link at `src` is not followed.
    fn link(&self, py: Python<'_>, src: PathArg<'_>, dst: PathArg<'_>) -> PyResult<()> {
        let (old, new) = (src.bytes(), dst.bytes());
        self.run(py, |fs| fs.link(old, new)).at_both(&src, &dst)
    }

    /// Make a symbolic link `dst` to `src`, which need not exist.
    fn symlink(&self, py: Python<'_>, src: PathArg<'_>, dst: PathArg<'_>) -> PyResult<()> {
        let (target, new) = (src.bytes(), dst.bytes());
        self.run(py, |fs| fs.symlink(target, new)).at_both(&src, &dst)
    }

    /// Return the target of a symbolic link, `bytes` if the path is. EINVAL: it is none.
    fn readlink<'py>(&self, py: Python<'py>, path: PathArg<'_>) -> PyResult<Bound<'py, PyAny>> {
        let bytes = path.bytes();
        name(py, &self.run(py, |fs| fs.readlink(bytes)).at(&path)?, path.is_bytes())
    }

    /// Set the permission bits. Durable with an fsync of the file, or `sync`.
    fn chmod(&self, py: Python<'_>, path: PathArg<'_>, mode: u32) -> PyResult<()> {
        let bytes = path.bytes();
        self.run(py, |fs| fs.chmod(bytes, mode)).at(&path)
    }

    /// Set owner and group; -1 leaves one as it is. Durable as `chmod`.
    #[pyo3(signature = (path, uid, gid, *, follow_symlinks = true))]
    fn chown(
        &self,
        py: Python<'_>,
        path: PathArg<'_>,
        uid: i64,
        gid: i64,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let (bytes, uid, gid) = (path.bytes(), owner(uid)?, owner(gid)?);
        self.run(py, |fs| fs.chown(bytes, uid, gid, follow_symlinks)).at(&path)
    }

    /// Set the times of last access and last change: `times` in seconds, or `ns` in nanoseconds;
    /// default: now. Durable as `chmod`.
    #[pyo3(signature = (path, times = None, *, ns = None, follow_symlinks = true))]
    fn utime(
        &self,
        py: Python<'_>,
        path: PathArg<'_>,
        times: Option<Times<'_>>,
        ns: Option<Times<'_>>,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let (bytes, (atime, mtime)) = (path.bytes(), set_times(times, ns)?);
        self.run(py, |fs| fs.set_times(bytes, atime, mtime, follow_symlinks)).at(&path)
    }

    /// Set the size in bytes. After a crash it is there whole or not at all.
    fn truncate(&self, py: Python<'_>, path: PathArg<'_>, length: i64) -> PyResult<()> {
        let bytes = path.bytes();
        size(length).and_then(|length| self.run(py, |fs| fs.truncate(bytes, length))).at(&path)
    }

    /// Return the value of an extended attribute; symbolic links are followed. ENODATA: there is
    /// none.
    fn getxattr<'py>(
        &self,
        py: Python<'py>,
        path: PathArg<'_>,
        attribute: PathArg<'_>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (bytes, attribute) = (path.bytes(), attribute.bytes());
        let value = self.run(py, |fs| fs.getxattr(bytes, attribute)).at(&path)?;
        Ok(PyBytes::new(py, &value))
    }

    /// Set an extended attribute; `flags`: 0, os.XATTR_CREATE or os.XATTR_REPLACE. After a crash
    /// all of an inode's extended attributes are those of one instant. Durable as `chmod`.
    #[pyo3(signature = (path, attribute, value, flags = 0))]
    fn setxattr(
        &self,
        py: Python<'_>,
        path: PathArg<'_>,
        attribute: PathArg<'_>,
        value: Source<'_>,
        flags: i32,
    ) -> PyResult<()> {
        let (bytes, attribute, value) = (path.bytes(), attribute.bytes(), value.bytes());
        self.run(py, |fs| fs.setxattr(bytes, attribute, value, flags)).at(&path)
    }

    /// Return the names of the extended attributes.
    fn listxattr<'py>(&self, py: Python<'py>, path: PathArg<'_>) -> PyResult<Bound<'py, PyList>> {
        let bytes = path.bytes();
        // Names of attributes are `str`, as `os.listxattr` has them.
        names(py, self.run(py, |fs| fs.listxattr(bytes)).at(&path)?, false)
    }

    /// Remove an extended attribute. ENODATA: there is none.
    fn removexattr(&self, py: Python<'_>, path: PathArg<'_>, attribute: PathArg<'_>) -> PyResult<()> {
        let (bytes, attribute) = (path.bytes(), attribute.bytes());
        self.run(py, |fs| fs.removexattr(bytes, attribute)).at(&path)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "cannot pickle 'lanefs.Volume' object: one process has a volume open; others reach it by serve_mount",
        ))
    }
}
