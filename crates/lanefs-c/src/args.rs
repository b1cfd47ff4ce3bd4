//! Arguments of calls: pointers are looked at before anything is done.

use crate::answer::{Failure, Outcome};
use crate::lanefs_file;
use libc::{c_char, c_void};
use std::ffi::CStr;

/// Returns what a handle points to.
///
/// # Safety
/// `NULL`, or a handle that a call of this library has returned and that was not closed.
pub(crate) unsafe fn handle<'a, T>(handle: *const T) -> Outcome<&'a T> {
    // SAFETY: the caller's promise; a handle is only ever read, whoever else has it.
    unsafe { handle.as_ref() }.ok_or(Failure::Argument(libc::EBADF, "the handle is NULL"))
}

/// Returns an open file, for what the kernel asks more for than which file it is: EBADF if it was
/// opened with `O_PATH`. Most calls are told so by the library.
///
/// # Safety
/// As [`handle`].
pub(crate) unsafe fn opened<'a>(file: *const lanefs_file) -> Outcome<&'a lanefs_file> {
    // SAFETY: the caller's promise.
    let file = unsafe { handle(file) }?;
    match file.file.flags() & libc::O_PATH {
        0 => Ok(file),
        _ => Err(Failure::Argument(libc::EBADF, "the handle was opened with O_PATH")),
    }
}

/// Returns the bytes of a text.
///
/// # Safety
/// `NULL`, or a text that ends in a zero and stays as it is during the call.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Outcome<&'a [u8]> {
    if text.is_null() {
        return Err(Failure::Argument(libc::EFAULT, "a path or name is NULL"));
    }
    // SAFETY: not NULL; the caller's promise.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// Returns the bytes of a buffer to be read.
///
/// # Safety
/// `NULL`, or `len` bytes that may be read and that nobody changes during the call.
pub(crate) unsafe fn bytes<'a>(buf: *const c_void, len: usize) -> Outcome<&'a [u8]> {
    match (len, buf.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(Failure::Argument(libc::EFAULT, "the buffer is NULL")),
        (_, false) if isize::try_from(len).is_err() => Err(too_long()),
        // SAFETY: not NULL, no longer than an object can be; the caller's promise.
        (_, false) => Ok(unsafe { std::slice::from_raw_parts(buf.cast(), len) }),
    }
}

/// Returns the bytes of a buffer to be filled.
///
/// # Safety
/// `NULL`, or `len` bytes that may be written and that nobody else uses during the call.
pub(crate) unsafe fn bytes_mut<'a>(buf: *mut c_void, len: usize) -> Outcome<&'a mut [u8]> {
    match (len, buf.is_null()) {
        (0, _) => Ok(&mut []),
        (_, true) => Err(Failure::Argument(libc::EFAULT, "the buffer is NULL")),
        (_, false) if isize::try_from(len).is_err() => Err(too_long()),
        // SAFETY: as above. What is in it is written before it is read: the library only fills it.
        (_, false) => Ok(unsafe { std::slice::from_raw_parts_mut(buf.cast(), len) }),
    }
}

fn too_long() -> Failure {
    Failure::Argument(libc::EINVAL, "the length is no length: a negative number?")
}

/// Puts a result where the caller wants it; refused before anything is done.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Takes the place of a result.
    ///
    /// # Safety
    /// `NULL`, or memory for a `T` that may be written and that nobody else uses during the call.
    pub(crate) unsafe fn new(place: *mut T) -> Outcome<Out<T>> {
        match place.is_null() {
            true => Err(Failure::Argument(libc::EFAULT, "the place of the result is NULL")),
            false => Ok(Out(place)),
        }
    }

    /// Returns the place, for who puts all of the result there piece by piece. It is not NULL, and
    /// the promise given to `new` holds.
    pub(crate) fn place(self) -> *mut T {
        self.0
    }

    /// Puts the result there.
    pub(crate) fn put(self, value: T) {
        // SAFETY: not NULL, and the promise given to `new`.
        unsafe { self.0.write(value) };
    }
}

/// Returns an offset that must not be negative: EINVAL.
pub(crate) fn offset(offset: i64) -> Outcome<u64> {
    u64::try_from(offset).map_err(|_| Failure::Argument(libc::EINVAL, "an offset or size is negative"))
}

/// Copies a value into a buffer as the calls about extended attributes do: with a size of 0 only
/// its length is told, and a buffer that is too small is ERANGE.
pub(crate) fn give(value: &[u8], buf: &mut [u8]) -> Outcome<u64> {
    if !buf.is_empty() {
        let part = buf
            .get_mut(..value.len())
            .ok_or(Failure::Argument(libc::ERANGE, "the buffer is too small; with a size of 0 it is told"))?;
        part.copy_from_slice(value);
    }
    Ok(value.len() as u64)
}
