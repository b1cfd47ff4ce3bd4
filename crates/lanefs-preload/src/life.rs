//! The start of the program, and its end.

use crate::calls::{process, standard, streams, working_dir};
use crate::raw::sys;
use crate::settings::settings;
use crate::{environment, report, route, stderr, volume};
use std::ffi::c_int;

/// Runs when the program has called all its handlers and destructors.
extern "C" fn last() {
    // SAFETY: NULL stands for all streams.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    volume::close();
}

/// Runs before the program begins.
extern "C" fn start() {
    let Some(settings) = settings() else { return };
    route::begin(settings);
    // It is true for this program's start alone.
    environment::set("LANEFS_CWD", None);
    stderr::keep(settings.report);
    if settings.report {
        report::begin();
    }
    let _ = standard::MAKE.set(streams::make_standard);
    if let Some(mount) = &settings.mount {
        if volume::begin_served().is_err() {
            // SAFETY: ends the process; nothing of the program has run.
            unsafe { sys!(libc::SYS_exit_group, 1) };
        }
        if let Some(dir) = &settings.cwd {
            // Where it cannot be entered, relative paths of children name nothing.
            working_dir::into_mount(dir);
        }
        process::tell_children(settings, mount);
    }
    if let Some(handed) = std::env::var_os("LANEFS_FDS") {
        environment::set("LANEFS_FDS", None);
        process::take_over(&handed.to_string_lossy());
    }
    unsafe extern "C" {
        fn __cxa_at_quick_exit(f: extern "C" fn(*mut libc::c_void), dso: *mut libc::c_void) -> c_int;
    }
    extern "C" fn at_quick_exit(_: *mut libc::c_void) {
        volume::close();
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
