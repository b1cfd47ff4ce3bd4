//! The start of the program, and its end.

use crate::calls::{process, standard, streams};
use crate::settings::settings;
use crate::volume::close;
use crate::{report, route};
use std::ffi::c_int;

/// Runs when the program has called all its handlers and destructors.
extern "C" fn last() {
    // SAFETY: NULL stands for all streams.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    close();
}

/// Runs before the program begins.
extern "C" fn start() {
    let Some(settings) = settings() else { return };
    route::begin(settings);
    // SAFETY: no other thread is there yet. It is true for this program's start alone.
    unsafe { libc::unsetenv(c"LANEFS_CWD".as_ptr()) };
    if settings.report {
        report::begin();
    }
    let _ = standard::MAKE.set(streams::make_standard);
    if let Some(handed) = std::env::var_os("LANEFS_FDS") {
        // SAFETY: as above.
        unsafe { libc::unsetenv(c"LANEFS_FDS".as_ptr()) };
        process::take_over(&handed.to_string_lossy());
    }
    unsafe extern "C" {
        fn __cxa_at_quick_exit(f: extern "C" fn(*mut libc::c_void), dso: *mut libc::c_void) -> c_int;
    }
    extern "C" fn at_quick_exit(_: *mut libc::c_void) {
        close();
    }
    // SAFETY: the function is there as long as the process: a preloaded library is never unloaded.
    unsafe { __cxa_at_quick_exit(at_quick_exit, std::ptr::null_mut()) };
}

/// Runs among the destructors of libraries: has [`last`] run behind all of them.
extern "C" fn end() {
    if settings().is_some() {
        // SAFETY: as above.
        unsafe { libc::atexit(last) };
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
