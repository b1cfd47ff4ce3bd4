//! The standard streams of the C library, on numbers that have become the volume's.
//!
//! A stream that the program has had from the start makes system calls that no hook sees. When its
//! number becomes one of the volume, the variable is given another stream in its place, whose
//! functions serve what the number refers to, now and later.

use crate::volume;
use libc::FILE;
use std::ffi::c_int;
use std::sync::OnceLock;

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
    fn __fpending(stream: *mut FILE) -> usize;
    fn __fpurge(stream: *mut FILE);
    fn __flbf(stream: *mut FILE) -> c_int;
}

/// Makes a stream on a number, for reading or for writing.
pub type Make = fn(c_int, bool) -> *mut FILE;
/// What makes streams, which knows this module and not the other way round.
pub static MAKE: OnceLock<Make> = OnceLock::new();

/// Where a stream of the GNU C library keeps what was not written yet.
const UNWRITTEN_AT: usize = 32;
/// A stream that was replaced; one for each number. Only its variable's thread writes it.
static REPLACED: [std::sync::atomic::AtomicBool; 3] =
    [const { std::sync::atomic::AtomicBool::new(false) }; 3];

/// Replaces the stream of a number that has become the volume's.
pub fn redirected(fd: c_int) {
    let (Some(place), Some(make)) = (usize::try_from(fd).ok().and_then(|i| REPLACED.get(i)), MAKE.get())
    else {
        return;
    };
    // A child of the volume's owner keeps what it has.
    if !volume::is_owner() || place.swap(true, std::sync::atomic::Ordering::Relaxed) {
        return;
    }
    // SAFETY: the variables are the C library's, which a program may set; a stream has what is not
    // written between its two pointers, and that many bytes.
    unsafe {
        let old = match fd {
            0 => stdin,
            1 => stdout,
            _ => stderr,
        };
        if old.is_null() || libc::fileno(old) != fd {
            return;
        }
        let new = make(fd, fd == 0);
        if new.is_null() {
            return;
        }
        let pending = if fd == 0 { 0 } else { __fpending(old) };
        if fd == 2 {
            libc::setvbuf(new, std::ptr::null_mut(), libc::_IONBF, 0);
        } else if __flbf(old) != 0 {
            libc::setvbuf(new, std::ptr::null_mut(), libc::_IOLBF, 1024);
        }
        if pending > 0 {
            libc::fwrite(*old.byte_add(UNWRITTEN_AT).cast(), 1, pending, new);
        }
        __fpurge(old);
        match fd {
            0 => stdin = new,
            1 => stdout = new,
            _ => stderr = new,
        }
    }
}
