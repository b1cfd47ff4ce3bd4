//! Memory that callers own: whatever has the buffer protocol, without a copy.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::mem::MaybeUninit;

/// The bytes of an object, which keeps them where they are until this is dropped.
pub(crate) struct View<'py> {
    /// Not given back for `bytes`, of which none is taken.
    view: MaybeUninit<ffi::Py_buffer>,
    taken: bool,
    start: *mut u8,
    len: usize,
    /// The interpreter is held where this is made and dropped.
    _object: Bound<'py, PyAny>,
}

impl<'py> View<'py> {
    /// Takes the bytes of an object; with `flags` of `PyBUF_WRITABLE` only those that may be
    /// changed.
    fn take(object: Borrowed<'_, 'py, PyAny>, flags: std::ffi::c_int) -> PyResult<View<'py>> {
        let mut view = MaybeUninit::<ffi::Py_buffer>::uninit();
        // SAFETY: an object and memory for a view, which is filled if the result is 0.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: filled just now.
        let (start, len) = unsafe { ((*view.as_ptr()).buf.cast(), (*view.as_ptr()).len) };
        let len = usize::try_from(len)?;
        Ok(View { view, taken: true, start, len, _object: object.to_owned() })
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        if self.taken {
            // SAFETY: taken by `take`, and given back once.
            unsafe { ffi::PyBuffer_Release(self.view.as_mut_ptr()) };
        }
    }
}

/// Bytes to be written: `bytes`, `bytearray`, `memoryview`, `array.array`, `mmap`, NumPy's arrays.
pub(crate) struct Source<'py>(View<'py>);

impl Source<'_> {
    /// Returns the bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.0.len == 0 {
            return &[];
        }
        debug_assert!(!self.0.start.is_null(), "{} bytes at NULL", self.0.len);
        // SAFETY: `len` bytes that stay while the view is held. A program that changes them in
        // another thread meanwhile writes some of either, as with `os.write`: they are only copied.
        unsafe { std::slice::from_raw_parts(self.0.start, self.0.len) }
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Source<'py> {
    type Error = PyErr;

    #[inline]
    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Source<'py>> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            let place = bytes.as_bytes();
            let (start, len) = (place.as_ptr().cast_mut(), place.len());
            let view = MaybeUninit::uninit();
            return Ok(Source(View { view, taken: false, start, len, _object: object.to_owned() }));
        }
        View::take(object, ffi::PyBUF_SIMPLE).map(Source)
    }
}

/// Bytes to be filled: `bytearray`, a writable `memoryview`, and so on.
pub(crate) struct Target<'py>(View<'py>);

impl Target<'_> {
    /// Returns the bytes, for one call.
    #[inline]
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        if self.0.len == 0 {
            return &mut [];
        }
        debug_assert!(!self.0.start.is_null(), "{} bytes at NULL", self.0.len);
        // SAFETY: `len` bytes that may be changed and stay while the view is held. A program that
        // uses them in another thread meanwhile finds some of either, as with `os.readv`.
        unsafe { std::slice::from_raw_parts_mut(self.0.start, self.0.len) }
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Target<'py> {
    type Error = PyErr;

    #[inline]
    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Target<'py>> {
        View::take(object, ffi::PyBUF_WRITABLE).map(Target)
    }
}

/// Makes `bytes` of at most `len`, which `fill` fills from the start; it returns how many those
/// are.
pub(crate) fn filled<'py, E: From<PyErr>>(
    py: Python<'py>,
    len: usize,
    fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
) -> Result<Bound<'py, PyBytes>, E> {
    if len == 0 {
        fill(&mut [])?;
        return Ok(PyBytes::new(py, &[]));
    }
    let size = ffi::Py_ssize_t::try_from(len).map_err(PyErr::from)?;
    // SAFETY: the result is new `bytes` of that length which nobody else knows, or NULL with an
    // exception.
    let made =
        unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(std::ptr::null(), size)) }?;
    let start: *mut u8 = {
        // SAFETY: `bytes`, as made above.
        unsafe { ffi::PyBytes_AsString(made.as_ptr()) }.cast()
    };
    // SAFETY: `len` bytes of its own. What is in them is written before it is read: the library
    // only fills them.
    let n = fill(unsafe { std::slice::from_raw_parts_mut(start, len) })?;
    debug_assert!(n <= len, "{n} bytes in {len}");
    // SAFETY: the `n` bytes that were filled.
    let part = unsafe { std::slice::from_raw_parts(start, n) };
    match n == len {
        // SAFETY: made as `bytes`.
        true => Ok(unsafe { made.cast_into_unchecked() }),
        // Behind the end, mostly: what is copied is short.
        false => Ok(PyBytes::new(py, part)),
    }
}
