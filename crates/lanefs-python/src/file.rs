//! Open files: what a descriptor is to `os`, and a raw file to `io`.

mod lines;
mod locks;

use crate::answer::{Failure, Outcome, outside, refuse_children};
use crate::attrs::{Times, owner, set_times, stat_result};
use crate::buffer::{Source, Target, filled};
use crate::view::View;
use lanefs::{Cred, SetAttr};
use lanefs_sync::fork;
use parking_lot::Mutex;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyType};
use std::io::IoSlice;
use std::sync::Arc;

/// The most that one call reads or writes before signals are looked at.
const AT_ONCE: usize = 64 << 20;

/// An open file, from `Volume.open_raw` or `Volume.open(..., buffering=0)`: a descriptor with the
/// calls of `os` (`pread`, `pwrite`, `fsync`, `fallocate`, ...), and a raw file that `io` can
/// buffer. Every call releases the GIL; threads may share it, and share its position then.
///
/// A closed file answers ValueError, as files of `io` do. Nothing is durable because a file was
/// closed: `fsync` makes it so, and what `fsync` acknowledged survives any crash, its names
/// included.
#[pyclass(frozen, weakref, module = "lanefs")]
pub(crate) struct File {
    /// None once it is closed. Calls that go on meanwhile keep it.
    open: Mutex<Option<Arc<lanefs::File>>>,
    flags: i32,
    /// The user who opened it; keeps the volume open.
    view: Arc<View>,
    /// The path that it was opened by.
    #[pyo3(get)]
    name: Py<PyAny>,
}

impl Drop for File {
    fn drop(&mut self) {
        if fork::is_child() {
            std::mem::forget(self.open.get_mut().take());
        }
    }
}

impl File {
    /// Makes the object of an open file.
    pub(crate) fn new(file: Arc<lanefs::File>, view: Arc<View>, name: Py<PyAny>) -> File {
        File { flags: file.flags(), open: Mutex::new(Some(file)), view, name }
    }

    /// Returns the open file.
    #[inline]
    fn handle(&self) -> Outcome<Arc<lanefs::File>> {
        refuse_children()?;
        self.open.lock().clone().ok_or(Failure::Closed("I/O operation on closed file"))
    }

    /// Calls the library on the open file.
    #[inline]
    fn run<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&lanefs::File) -> lanefs::Result<R> + Send,
    ) -> Outcome<R> {
        let file = self.handle()?;
        self.enter(py, || call(&file))
    }

    /// Calls the library for the open file, and says so where its volume was closed.
    #[inline]
    fn enter<R: Send>(&self, py: Python<'_>, call: impl FnOnce() -> lanefs::Result<R> + Send) -> Outcome<R> {
        outside(py, call).map_err(|failure| match failure {
            Failure::Library(lanefs::Error::Posix(libc::EIO)) if self.view.shared().is_closed() => {
                Failure::Errno(libc::EIO, "the volume of the file was closed".into())
            }
            other => other,
        })
    }

    /// Checks that the file was opened for reading, or for writing, as `io` does it.
    fn require(&self, py: Python<'_>, lacks: i32, what: &str) -> Outcome<()> {
        match self.flags & libc::O_ACCMODE == lacks {
            true => Err(unsupported(py, &format!("File not open for {what}")).into()),
            false => Ok(()),
        }
    }

    /// Changes attributes, as the user who opened the file.
    fn set(&self, py: Python<'_>, set: &SetAttr) -> PyResult<()> {
        let cred: &Cred = self.view.cred();
        self.run(py, |file| file.set_attr(cred, set).map(drop))?;
        Ok(())
    }
}

/// Returns a size or an offset, which is not negative.
pub(crate) fn size(n: i64) -> Outcome<u64> {
    u64::try_from(n).map_err(|_| Failure::invalid("an offset or size is negative"))
}

/// Returns `io.UnsupportedOperation`.
fn unsupported(py: Python<'_>, what: &str) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    match CLASS.import(py, "io", "UnsupportedOperation") {
        Ok(class) => PyErr::from_type(class.clone(), what.to_string()),
        Err(e) => e,
    }
}

/// Reads all from the position to the end, and moves it there.
pub(crate) fn rest<'py>(py: Python<'py>, file: &lanefs::File) -> Outcome<Bound<'py, PyBytes>> {
    let (at, end) = outside(py, || Ok((file.lseek(0, libc::SEEK_CUR)?, file.stat()?.size)))?;
    let expected = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
    let first = filled(py, expected, |buf| -> Outcome<usize> {
        let mut done = 0;
        while done < buf.len() {
            let upto = buf.len().min(done.saturating_add(AT_ONCE));
            match outside(py, || file.read(&mut buf[done..upto]))? {
                0 => break,
                n => done += n,
            }
            py.check_signals()?;
        }
        Ok(done)
    })?;
    // The file may have grown meanwhile.
    let mut more = Vec::new();
    let mut part = [0; 4096];
    loop {
        match outside(py, || file.read(&mut part))? {
            0 if more.is_empty() => return Ok(first),
            0 => return Ok(PyBytes::new(py, &[first.as_bytes(), &more].concat())),
            n => more.extend_from_slice(&part[..n]),
        }
        py.check_signals()?;
    }
}

#[pymethods]
impl File {
    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        // In the child of a fork the lock may be that of a thread which is not there.
        match fork::is_child() {
            true => self.open.try_lock().is_some_and(|open| open.is_none()),
            false => self.open.lock().is_none(),
        }
    }

    /// The mode, as `io.FileIO` has it: 'rb', 'wb', 'rb+', 'ab', 'ab+'.
    #[getter]
    fn mode(&self) -> &'static str {
        match (self.flags & libc::O_ACCMODE, self.flags & libc::O_APPEND != 0) {
            (libc::O_RDWR, true) => "ab+",
            (libc::O_RDWR, false) => "rb+",
            (libc::O_WRONLY, true) => "ab",
            (libc::O_WRONLY, false) => "wb",
            _ => "rb",
        }
    }

    /// The flags it was opened with, of `os`.
    #[getter]
    fn flags(&self) -> i32 {
        self.flags
    }

    /// Close the file, and give back its locks. Makes nothing durable. Closing it again does
    /// nothing.
    fn close(&self, py: Python<'_>) {
        if fork::is_child() {
            return;
        }
        let file = self.open.lock().take();
        py.detach(|| drop(file));
    }

    /// Do nothing: a raw file has no buffer. Makes nothing durable; `fsync` does.
    fn flush(&self) -> PyResult<()> {
        self.handle()?;
        Ok(())
    }

    /// Return whether it was opened for reading.
    fn readable(&self) -> PyResult<bool> {
        self.handle()?;
        Ok(self.flags & libc::O_ACCMODE != libc::O_WRONLY)
    }

    /// Return whether it was opened for writing.
    fn writable(&self) -> PyResult<bool> {
        self.handle()?;
        Ok(self.flags & libc::O_ACCMODE != libc::O_RDONLY)
    }

    /// Return True.
    fn seekable(&self) -> PyResult<bool> {
        self.handle()?;
        Ok(true)
    }

    /// Return False.
    fn isatty(&self) -> PyResult<bool> {
        self.handle()?;
        Ok(false)
    }

    /// Raise io.UnsupportedOperation: there is no descriptor of the kernel behind.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        self.handle()?;
        Err(unsupported(
            py,
            "a file of LaneFS has no descriptor: call its own fsync, pread, flock, ... (or lanefs.fsync)",
        ))
    }

    /// Read at most `size` bytes at the position, and move it; b'' at the end. With -1 as
    /// `readall`.
    #[pyo3(signature = (size = None, /))]
    fn read<'py>(&self, py: Python<'py>, size: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.handle()?;
        self.require(py, libc::O_WRONLY, "reading")?;
        match usize::try_from(size.unwrap_or(-1)) {
            Err(_) => Ok(rest(py, &file)?),
            Ok(n) => {
                let n = fitting(py, &file, n, None)?;
                Ok(filled(py, n, |buf| self.enter(py, || file.read(buf)))?)
            }
        }
    }

    /// Read all from the position to the end.
    fn readall<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.handle()?;
        self.require(py, libc::O_WRONLY, "reading")?;
        Ok(rest(py, &file)?)
    }

    /// Read into a writable buffer at the position, and move it; return how many bytes, 0 at the
    /// end.
    #[pyo3(signature = (buffer, /))]
    fn readinto(&self, py: Python<'_>, mut buffer: Target<'_>) -> PyResult<usize> {
        self.handle()?;
        self.require(py, libc::O_WRONLY, "reading")?;
        let buf = buffer.bytes();
        Ok(self.run(py, |file| file.read(buf))?)
    }

    /// Read at most `n` bytes at an offset, as `os.pread`; the position stays.
    #[pyo3(signature = (n, offset, /))]
    fn pread<'py>(&self, py: Python<'py>, n: i64, offset: i64) -> PyResult<Bound<'py, PyBytes>> {
        let (file, n, offset) = (self.handle()?, size(n)?, size(offset)?);
        let n = fitting(py, &file, usize::try_from(n)?, Some(offset))?;
        Ok(filled(py, n, |buf| self.enter(py, || file.read_at(buf, offset)))?)
    }

    /// Read into writable buffers at an offset, as `os.preadv`; return how many bytes.
    #[pyo3(signature = (buffers, offset, /))]
    fn preadv(&self, py: Python<'_>, mut buffers: Vec<Target<'_>>, offset: i64) -> PyResult<usize> {
        let (file, offset) = (self.handle()?, size(offset)?);
        let mut done = 0;
        // One after the other: they may be the same memory.
        for buffer in &mut buffers {
            let (buf, at) = (buffer.bytes(), offset.saturating_add(done as u64));
            let wanted = buf.len();
            match self.enter(py, || file.read_at(buf, at)) {
                Err(e) if done == 0 => return Err(e.into()),
                Err(_) => break, // it comes again when the rest is read
                Ok(n) => done += n,
            }
            if done as u64 != at - offset + wanted as u64 {
                break;
            }
        }
        Ok(done)
    }

    /// Write at the position (at the end if it was opened to append), and move it; return how many
    /// bytes, fewer only where the volume is full.
    #[pyo3(signature = (buffer, /))]
    fn write(&self, py: Python<'_>, buffer: Source<'_>) -> PyResult<usize> {
        let bytes = buffer.bytes();
        let file = self.handle()?;
        self.require(py, libc::O_RDONLY, "writing")?;
        Ok(self.enter(py, || file.write(bytes))?)
    }

    /// Write at an offset, as `os.pwrite` (at the end if it was opened to append); the position
    /// stays. Return how many bytes.
    #[pyo3(signature = (buffer, offset, /))]
    fn pwrite(&self, py: Python<'_>, buffer: Source<'_>, offset: i64) -> PyResult<usize> {
        let (bytes, offset) = (buffer.bytes(), size(offset)?);
        Ok(self.run(py, |file| file.write_at(bytes, offset))?)
    }

    /// Write several buffers at an offset, as `os.pwritev`; return how many bytes.
    #[pyo3(signature = (buffers, offset, /))]
    fn pwritev(&self, py: Python<'_>, buffers: Vec<Source<'_>>, offset: i64) -> PyResult<usize> {
        let offset = size(offset)?;
        let parts: Vec<_> = buffers.iter().map(|b| IoSlice::new(b.bytes())).collect();
        Ok(self.run(py, |file| file.write_vectored_at(&parts, offset))?)
    }

    /// Write all of several buffers at the position.
    #[pyo3(signature = (lines, /))]
    fn writelines(&self, py: Python<'_>, lines: &Bound<'_, PyAny>) -> PyResult<()> {
        self.handle()?;
        self.require(py, libc::O_RDONLY, "writing")?;
        for line in lines.try_iter()? {
            let line: Source<'_> = line?.extract()?;
            let mut left = line.bytes();
            while !left.is_empty() {
                match self.run(py, |file| file.write(left))? {
                    0 => return Err(Failure::from(lanefs::Error::Posix(libc::ENOSPC)).into()),
                    n => left = &left[n..],
                }
            }
        }
        Ok(())
    }

    /// Move the position, as `os.lseek`, also by `os.SEEK_DATA` and `os.SEEK_HOLE`; return it.
    #[pyo3(signature = (offset, whence = 0, /))]
    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        Ok(self.run(py, |file| file.lseek(offset, whence))?)
    }

    /// Return the position.
    fn tell(&self, py: Python<'_>) -> PyResult<u64> {
        self.seek(py, 0, libc::SEEK_CUR)
    }

    /// Set the size in bytes (default: the position), and return it; the position stays.
    #[pyo3(signature = (size = None, /))]
    fn truncate(&self, py: Python<'_>, size: Option<i64>) -> PyResult<u64> {
        self.handle()?;
        self.require(py, libc::O_RDONLY, "writing")?;
        let to = match size {
            Some(to) => self::size(to)?,
            None => self.tell(py)?,
        };
        self.run(py, |file| file.set_len(to))?;
        Ok(to)
    }

    /// Make content, attributes and names durable, as `os.fsync`: they survive any crash from here
    /// on, and a new file needs no fsync of its directory.
    fn fsync(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.run(py, lanefs::File::sync_all)?)
    }

    /// Make content, size and names durable, as `os.fdatasync`.
    fn fdatasync(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.run(py, lanefs::File::sync_data)?)
    }

    /// Return the attributes, as `os.fstat`.
    fn stat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        stat_result(py, &self.run(py, lanefs::File::stat)?, self.view.device())
    }

    /// Allocate, punch or zero a range, as fallocate(2); `mode` is 0 or the kernel's bits.
    #[pyo3(signature = (mode, offset, length, /))]
    fn fallocate(&self, py: Python<'_>, mode: i32, offset: i64, length: i64) -> PyResult<()> {
        let (offset, length) = (size(offset)?, size(length)?);
        Ok(self.run(py, |file| file.allocate(mode, offset, length))?)
    }

    /// Copy at most `count` bytes from an offset of this file to one of `dst`, as
    /// `os.copy_file_range` with both offsets; return how many.
    #[pyo3(signature = (dst, count, offset_src, offset_dst, /))]
    fn copy_file_range(
        &self,
        py: Python<'_>,
        dst: &Bound<'_, File>,
        count: i64,
        offset_src: i64,
        offset_dst: i64,
    ) -> PyResult<u64> {
        let to = dst.get().handle()?;
        let (count, from, at) = (size(count)?, size(offset_src)?, size(offset_dst)?);
        Ok(self.run(py, |file| file.copy_range_to(from, &to, at, count))?)
    }

    /// Set the permission bits, as `os.fchmod`.
    fn chmod(&self, py: Python<'_>, mode: u32) -> PyResult<()> {
        self.set(py, &SetAttr { mode: Some(mode), ..Default::default() })
    }

    /// Set owner and group, as `os.fchown`; -1 leaves one as it is.
    fn chown(&self, py: Python<'_>, uid: i64, gid: i64) -> PyResult<()> {
        self.set(py, &SetAttr { uid: owner(uid)?, gid: owner(gid)?, ..Default::default() })
    }

    /// Set the times, as `os.utime` of a descriptor: of the last access and the last change, in
    /// seconds, or as `ns` in nanoseconds; default: now.
    #[pyo3(signature = (times = None, *, ns = None))]
    fn utime(&self, py: Python<'_>, times: Option<Times<'_>>, ns: Option<Times<'_>>) -> PyResult<()> {
        let (atime, mtime) = set_times(times, ns)?;
        self.set(py, &SetAttr { atime, mtime, ..Default::default() })
    }

    /// Take an advisory lock of the whole file, as `fcntl.flock`, or give it back: LOCK_SH,
    /// LOCK_EX, LOCK_UN, with LOCK_NB BlockingIOError instead of waiting. The lock is this
    /// object's, and stops nobody but others of this process that ask for it.
    #[pyo3(signature = (operation, /))]
    fn flock(&self, py: Python<'_>, operation: i32) -> PyResult<()> {
        let file = self.handle()?;
        Ok(locks::flock(py, &file, operation)?)
    }

    /// Take an advisory lock of a range of bytes, as `fcntl.lockf`: `len` bytes (0: all that
    /// follow) from `start`, counted from `whence`. The lock is this object's, not the process's.
    #[pyo3(signature = (cmd, len = 0, start = 0, whence = 0, /))]
    fn lockf(&self, py: Python<'_>, cmd: i32, len: i64, start: i64, whence: i32) -> PyResult<()> {
        let file = self.handle()?;
        Ok(locks::lockf(py, &file, cmd, (len, start, whence))?)
    }

    /// Read up to the end of a line, or `size` bytes; b'' at the end of the file.
    #[pyo3(signature = (size = None, /))]
    fn readline<'py>(&self, py: Python<'py>, size: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.handle()?;
        self.require(py, libc::O_WRONLY, "reading")?;
        Ok(PyBytes::new(py, &lines::next(py, &file, size.unwrap_or(-1))?))
    }

    /// Read lines until the end, or until they have `hint` bytes together.
    #[pyo3(signature = (hint = None, /))]
    fn readlines<'py>(&self, py: Python<'py>, hint: Option<i64>) -> PyResult<Bound<'py, PyList>> {
        let (list, mut bytes) = (PyList::empty(py), 0);
        loop {
            let line = self.readline(py, None)?;
            let n = line.as_bytes().len();
            if n == 0 {
                return Ok(list);
            }
            list.append(line)?;
            bytes += n;
            if hint.is_some_and(|hint| hint > 0 && bytes as u64 >= hint as u64) {
                return Ok(list);
            }
        }
    }

    fn __iter__(this: Py<Self>) -> PyResult<Py<Self>> {
        this.get().handle()?;
        Ok(this)
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let line = self.readline(py, None)?;
        Ok((!line.as_bytes().is_empty()).then_some(line))
    }

    fn __enter__(this: Py<Self>) -> PyResult<Py<Self>> {
        this.get().handle()?;
        Ok(this)
    }

    fn __exit__(&self, py: Python<'_>, _kind: Py<PyAny>, _value: Py<PyAny>, _traceback: Py<PyAny>) {
        self.close(py);
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        if self.closed() {
            return Ok("<lanefs.File [closed]>".into());
        }
        Ok(format!("<lanefs.File name={} mode='{}'>", self.name.bind(py).repr()?, self.mode()))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("cannot pickle 'lanefs.File' object: give its path to others"))
    }
}

/// Cuts a size down to what can be read from the position, or from `offset`: nobody needs memory
/// for what is not there.
fn fitting(py: Python<'_>, file: &lanefs::File, n: usize, offset: Option<u64>) -> Outcome<usize> {
    if n <= 1 << 16 {
        return Ok(n);
    }
    let (at, end) = outside(py, || {
        let at = offset.map_or_else(|| file.lseek(0, libc::SEEK_CUR), Ok)?;
        Ok((at, file.stat()?.size))
    })?;
    let left = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
    // Behind the end the call is made all the same, for what it answers.
    Ok(n.min(left.max(1)))
}
