//! Temporary files and directories whose template lies below the prefix.

use super::names::mkdir;
use super::open::openat;
use crate::hook::{answer, errno, hook};
use crate::raw::sys;
use crate::route::{Route, route};
use std::ffi::{CStr, c_char, c_int};

/// The letters of names.
const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

/// Returns whether the template is the volume's.
///
/// # Safety
/// It is NULL or ends in a NUL.
unsafe fn is_ours(template: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    !template.is_null()
        && matches!(route(libc::AT_FDCWD, unsafe { CStr::from_ptr(template) }), Route::Ours(_))
}

/// Fills the six X of a template until `make` succeeds.
///
/// # Safety
/// The template ends in a NUL and may be written.
unsafe fn try_names(template: *mut c_char, suffix: c_int, make: impl Fn(*const c_char) -> c_int) -> c_int {
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(template) }.to_bytes();
    let Some(at) = usize::try_from(suffix).ok().and_then(|s| text.len().checked_sub(s + 6)) else {
        return answer(Err(libc::EINVAL));
    };
    if &text[at..at + 6] != b"XXXXXX" {
        return answer(Err(libc::EINVAL));
    }
    for _ in 0..1000 {
        let mut random = [0u8; 6];
        // SAFETY: the kernel writes six bytes; the place of the X is within the template.
        unsafe {
            sys!(libc::SYS_getrandom, random.as_mut_ptr(), random.len(), 0);
            for (i, byte) in random.iter().enumerate() {
                *template.add(at + i) = LETTERS[usize::from(*byte) % LETTERS.len()] as c_char;
            }
        }
        let made = make(template);
        if made >= 0 || errno() != libc::EEXIST {
            return made;
        }
    }
    answer(Err(libc::EEXIST))
}

/// Makes a file.
///
/// # Safety
/// That of mkostemps(3).
unsafe fn file(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    // SAFETY: the caller's promise.
    unsafe { try_names(template, suffix, |p| openat(libc::AT_FDCWD, p, flags, 0o600)) }
}

hook! {
    /// Makes a temporary file.
    fn mkstemp(template: *mut c_char) -> c_int {
        if is_ours(template) { file(template, 0, 0) } else { real(template) }
    }
    /// Makes a temporary file.
    fn mkstemp64(template: *mut c_char) -> c_int {
        if is_ours(template) { file(template, 0, 0) } else { real(template) }
    }
    /// Makes a temporary file.
    fn mkostemp(template: *mut c_char, flags: c_int) -> c_int {
        if is_ours(template) { file(template, 0, flags) } else { real(template, flags) }
    }
    /// Makes a temporary file.
    fn mkostemp64(template: *mut c_char, flags: c_int) -> c_int {
        if is_ours(template) { file(template, 0, flags) } else { real(template, flags) }
    }
    /// Makes a temporary file.
    fn mkstemps(template: *mut c_char, suffix: c_int) -> c_int {
        if is_ours(template) { file(template, suffix, 0) } else { real(template, suffix) }
    }
    /// Makes a temporary file.
    fn mkstemps64(template: *mut c_char, suffix: c_int) -> c_int {
        if is_ours(template) { file(template, suffix, 0) } else { real(template, suffix) }
    }
    /// Makes a temporary file.
    fn mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
        if is_ours(template) { file(template, suffix, flags) } else { real(template, suffix, flags) }
    }
    /// Makes a temporary file.
    fn mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
        if is_ours(template) { file(template, suffix, flags) } else { real(template, suffix, flags) }
    }
    /// Makes a temporary directory.
    fn mkdtemp(template: *mut c_char) -> *mut c_char {
        if !is_ours(template) { return real(template); }
        match try_names(template, 0, |p| mkdir(p, 0o700)) {
            0 => template,
            _ => std::ptr::null_mut(),
        }
    }
}
