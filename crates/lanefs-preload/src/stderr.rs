//! The standard error, which a program may have closed when the library has something to say.
//!
//! The commands of coreutils close it in a handler of their exit, before the volume is closed. So a
//! descriptor of the library's own leads there, too: where a report was asked for, and where it is
//! a file or a terminal. Not of a pipe: its reader may wait until all who have it have closed it.

use crate::hook::errno;
use crate::placeholder;
use crate::raw::sys;
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering};

/// The library's own descriptor; -1: none. Written before the program begins. Relaxed.
static KEPT: AtomicI32 = AtomicI32::new(-1);

/// Keeps the standard error that the program begins with.
pub fn keep(report: bool) {
    // SAFETY: fstat writes one struct through the pointer; a number that is open is duplicated.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        if sys!(libc::SYS_fstat, 2, &raw mut stat) != 0 {
            return;
        }
        let is_kept = report || matches!(stat.st_mode & libc::S_IFMT, libc::S_IFCHR | libc::S_IFREG);
        let copy = if is_kept { sys!(libc::SYS_fcntl, 2, libc::F_DUPFD_CLOEXEC, 0) as c_int } else { -1 };
        if copy >= 0 {
            KEPT.store(placeholder::own(copy), Ordering::Relaxed);
        }
    }
}

/// Writes to the standard error that the program has, or began with.
pub fn write(text: &[u8]) {
    let kept = KEPT.load(Ordering::Relaxed);
    if !write_to(2, text) && errno() == libc::EBADF && kept >= 0 {
        write_to(kept, text);
    }
}

/// Writes to the standard error that the program began with.
pub fn write_first(text: &[u8]) {
    let kept = KEPT.load(Ordering::Relaxed);
    write_to(if kept >= 0 { kept } else { 2 }, text);
}

fn write_to(fd: c_int, text: &[u8]) -> bool {
    // SAFETY: the pointer and the length are those of the text.
    unsafe { sys!(libc::SYS_write, fd, text.as_ptr(), text.len()) >= 0 }
}
