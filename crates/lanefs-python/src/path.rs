//! Paths and names: `str`, `bytes` or `os.PathLike` come in, and what goes out is of the same kind.
//! Names on a volume are bytes. As `str` they are UTF-8, whatever the locale, and bytes that are
//! none are told as `os.fsdecode` does it there ("surrogateescape").

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use std::ffi::CStr;

const ESCAPES: &CStr = c"surrogateescape";

/// A path that was given to a call, without a copy where it is `bytes` or UTF-8.
pub(crate) struct PathArg<'py> {
    /// The `str` or `bytes`.
    given: Bound<'py, PyAny>,
    /// The object that has the bytes; it is never changed, so they stay where they are.
    owner: Bound<'py, PyAny>,
    start: *const u8,
    len: usize,
}

impl<'py> PathArg<'py> {
    /// Returns the path's bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        debug_assert!(!self.start.is_null() && !self.owner.is_none(), "a path without bytes");
        // SAFETY: the bytes of `owner`, an immutable `str` or `bytes` that lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// Returns the path as `str` or `bytes`.
    pub(crate) fn given(&self) -> &Bound<'py, PyAny> {
        &self.given
    }

    /// Returns whether names are to be told as `bytes`.
    pub(crate) fn is_bytes(&self) -> bool {
        self.given.is_instance_of::<PyBytes>()
    }

    /// Takes a `str` or `bytes`.
    fn new(given: Bound<'py, PyAny>) -> PyResult<PathArg<'py>> {
        let (owner, start, len) = match given.cast::<PyString>() {
            Ok(text) => match utf8(text) {
                Some((start, len)) => (given.clone(), start, len),
                None => {
                    let encoded = encode(text)?;
                    let (start, len) = place(encoded.as_bytes());
                    (encoded.into_any(), start, len)
                }
            },
            Err(_) => {
                let (start, len) = place(given.cast::<PyBytes>()?.as_bytes());
                (given.clone(), start, len)
            }
        };
        let path = PathArg { given, owner, start, len };
        match path.bytes().contains(&0) {
            true => Err(PyValueError::new_err("embedded null byte")),
            false => Ok(path),
        }
    }
}

fn place(bytes: &[u8]) -> (*const u8, usize) {
    (bytes.as_ptr(), bytes.len())
}

/// Returns the bytes that a text keeps of itself; none where it has bytes that are no UTF-8.
fn utf8(text: &Bound<'_, PyString>) -> Option<(*const u8, usize)> {
    let mut len = 0;
    // SAFETY: a `str`; the bytes are its own, and live as long as it.
    let start = unsafe { ffi::PyUnicode_AsUTF8AndSize(text.as_ptr(), &mut len) };
    if start.is_null() {
        drop(PyErr::take(text.py()));
        return None;
    }
    Some((start.cast(), usize::try_from(len).ok()?))
}

/// Returns the bytes of a text in which bytes that are no UTF-8 stand as surrogates.
fn encode<'py>(text: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyBytes>> {
    // SAFETY: a `str` and two texts that end in a zero; the result is new, or NULL with an
    // exception.
    let encoded = unsafe {
        let bytes = ffi::PyUnicode_AsEncodedString(text.as_ptr(), c"utf-8".as_ptr(), ESCAPES.as_ptr());
        Bound::from_owned_ptr_or_err(text.py(), bytes)?
    };
    Ok(encoded.cast_into::<PyBytes>()?)
}

impl<'a, 'py> FromPyObject<'a, 'py> for PathArg<'py> {
    type Error = PyErr;

    #[inline]
    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<PathArg<'py>> {
        // SAFETY: an object; the result is a new reference to a `str` or `bytes`, or NULL with an
        // exception.
        let given = unsafe { Bound::from_owned_ptr_or_err(object.py(), ffi::PyOS_FSPath(object.as_ptr())) }?;
        PathArg::new(given)
    }
}

/// Returns a name of the volume as `str` or `bytes`.
pub(crate) fn name<'py>(py: Python<'py>, bytes: &[u8], as_bytes: bool) -> PyResult<Bound<'py, PyAny>> {
    if as_bytes {
        return Ok(PyBytes::new(py, bytes).into_any());
    }
    let len = ffi::Py_ssize_t::try_from(bytes.len())?;
    // SAFETY: `len` bytes, and a text that ends in a zero; the result is new, or NULL with an
    // exception.
    unsafe {
        let text = ffi::PyUnicode_DecodeUTF8(bytes.as_ptr().cast(), len, ESCAPES.as_ptr());
        Bound::from_owned_ptr_or_err(py, text)
    }
}
