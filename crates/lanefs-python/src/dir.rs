//! Directories: what `os.scandir` gives.

use crate::answer::{At, Failure, outside, refuse_children};
use crate::attrs::stat_result;
use crate::path::{PathArg, name};
use crate::view::View;
use lanefs::{FileKind, ReadDir};
use lanefs_sync::fork;
use parking_lot::Mutex;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// The entries of a directory, as `os.scandir` gives them: an iterator of `DirEntry`, without `.`
/// and `..`, in no order that means anything. Threads that share it get each entry once, one or the
/// other. It is a context manager; what it holds goes with `close` or behind the last entry.
#[pyclass(frozen, module = "lanefs")]
pub(crate) struct ScanDir {
    entries: Mutex<Option<ReadDir>>,
    view: Arc<View>,
    dir: Vec<u8>,
    as_bytes: bool,
}

impl Drop for ScanDir {
    fn drop(&mut self) {
        if fork::is_child() {
            std::mem::forget(self.entries.get_mut().take());
        }
    }
}

impl ScanDir {
    /// Begins to list a directory.
    pub(crate) fn begin(py: Python<'_>, view: &Arc<View>, path: &PathArg<'_>) -> PyResult<ScanDir> {
        let bytes = path.bytes();
        let entries = view.run(py, |fs| fs.read_dir(bytes)).at(path)?;
        let (dir, as_bytes) = (bytes.to_vec(), path.is_bytes());
        Ok(ScanDir { entries: Mutex::new(Some(entries)), view: Arc::clone(view), dir, as_bytes })
    }
}

#[pymethods]
impl ScanDir {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<DirEntry>> {
        refuse_children()?;
        let next = outside(py, || {
            let mut entries = self.entries.lock();
            let next = entries.as_mut().and_then(Iterator::next).transpose();
            if !matches!(next, Ok(Some(_))) {
                *entries = None;
            }
            next
        });
        let Some(entry) = next? else { return Ok(None) };
        let mut path = self.dir.clone();
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(entry.name().as_bytes());
        Ok(Some(DirEntry {
            name: name(py, entry.name().as_bytes(), self.as_bytes)?.unbind(),
            full: name(py, &path, self.as_bytes)?.unbind(),
            path,
            kind: entry.file_type(),
            ino: entry.ino().0,
            view: Arc::clone(&self.view),
        }))
    }

    /// Ends the listing. Not an error if it has ended.
    fn close(&self) {
        if !fork::is_child() {
            *self.entries.lock() = None;
        }
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __exit__(&self, _kind: Py<PyAny>, _value: Py<PyAny>, _traceback: Py<PyAny>) {
        self.close();
    }
}

/// An entry of a directory, as `os.DirEntry`: what it is and its inode number are known from the
/// listing, attributes are asked for.
#[pyclass(frozen, module = "lanefs")]
pub(crate) struct DirEntry {
    /// The name of the entry: `bytes` if the directory was given so.
    #[pyo3(get)]
    name: Py<PyAny>,
    full: Py<PyAny>,
    path: Vec<u8>,
    kind: FileKind,
    ino: u64,
    view: Arc<View>,
}

impl DirEntry {
    /// Returns the kind of what the entry names, or leads to; `None` if it leads nowhere.
    fn kind(&self, py: Python<'_>, follow: bool) -> PyResult<Option<FileKind>> {
        if !follow || self.kind != FileKind::Symlink {
            return Ok(Some(self.kind));
        }
        match self.view.run(py, |fs| fs.stat(&self.path)) {
            Ok(stat) => Ok(Some(stat.kind)),
            Err(Failure::Library(e)) if e.errno() == libc::ENOENT => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

#[pymethods]
impl DirEntry {
    /// The path that was listed, and the name behind it.
    #[getter]
    fn path(&self, py: Python<'_>) -> Py<PyAny> {
        self.full.clone_ref(py)
    }

    /// Return the inode number.
    fn inode(&self) -> u64 {
        self.ino
    }

    /// Return whether it is a directory, or a symbolic link to one.
    #[pyo3(signature = (*, follow_symlinks = true))]
    fn is_dir(&self, py: Python<'_>, follow_symlinks: bool) -> PyResult<bool> {
        Ok(self.kind(py, follow_symlinks)? == Some(FileKind::Dir))
    }

    /// Return whether it is a regular file, or a symbolic link to one.
    #[pyo3(signature = (*, follow_symlinks = true))]
    fn is_file(&self, py: Python<'_>, follow_symlinks: bool) -> PyResult<bool> {
        Ok(self.kind(py, follow_symlinks)? == Some(FileKind::File))
    }

    /// Return whether it is a symbolic link.
    fn is_symlink(&self) -> bool {
        self.kind == FileKind::Symlink
    }

    /// Return False: junctions are another system's.
    fn is_junction(&self) -> bool {
        false
    }

    /// Return the attributes of what the name names now, as `Volume.stat`.
    #[pyo3(signature = (*, follow_symlinks = true))]
    fn stat<'py>(&self, py: Python<'py>, follow_symlinks: bool) -> PyResult<Bound<'py, PyAny>> {
        let path: PathArg<'_> = self.full.bind(py).extract()?;
        let bytes = path.bytes();
        let stat = self
            .view
            .run(py, |fs| if follow_symlinks { fs.stat(bytes) } else { fs.lstat(bytes) })
            .at(&path)?;
        stat_result(py, &stat, self.view.device())
    }

    fn __fspath__(&self, py: Python<'_>) -> Py<PyAny> {
        self.full.clone_ref(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<lanefs.DirEntry {}>", self.name.bind(py).repr()?))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("cannot pickle 'lanefs.DirEntry' object: give its path to others"))
    }
}
