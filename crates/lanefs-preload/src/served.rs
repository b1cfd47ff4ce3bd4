//! The mount that the process serves of its volume beside what the program does (`--mount`).
//!
//! V1 It is there before the program begins, and goes before the volume is closed.
//! V2 Where it lies at the prefix itself, the children of the program are the kernel's: below the
//!    prefix they have the mount, whether they are forked or other programs, and those are started
//!    without this library.
//! V3 Making and removing the mount names paths below the prefix. What does so is marked, and asks
//!    the host ([`is_host`]).

use crate::settings::{Mount, settings};
use lanefs::Volume;
use lanefs_fuse::{ServedMount, serve_mount};
use std::cell::Cell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The mount while there is one.
static MOUNT: Mutex<Option<ServedMount>> = Mutex::new(None);
/// Whether there is one. Relaxed: it is made before other threads are, and removed when the program
/// ends or becomes another one.
static UP: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether what this thread calls is the library's own, and the host's.
    static HOST: Cell<bool> = const { Cell::new(false) };
}

/// Calls `f`, whose calls are the host's (V3).
fn as_host<T>(f: impl FnOnce() -> T) -> T {
    let before = HOST.replace(true);
    let result = f();
    HOST.set(before);
    result
}

/// Returns whether this thread is about the mount itself (V3).
pub fn is_host() -> bool {
    HOST.get()
}

/// Serves the mount that was asked for, if one was.
///
/// # Errors
/// Those of mounting.
pub fn begin(volume: &Volume) -> io::Result<()> {
    let Some(Mount { dir, .. }) = settings().and_then(|s| s.mount.as_ref()) else { return Ok(()) };
    let mount = as_host(|| serve_mount(volume, Path::new(OsStr::from_bytes(dir))))?;
    *MOUNT.lock().unwrap_or_else(PoisonError::into_inner) = Some(mount);
    UP.store(true, Ordering::Relaxed);
    Ok(())
}

/// Removes the mount, whoever uses it.
///
/// # Errors
/// Those of the connection.
pub fn end() -> io::Result<()> {
    if !UP.swap(false, Ordering::Relaxed) {
        return Ok(());
    }
    let mount = MOUNT.lock().unwrap_or_else(PoisonError::into_inner).take();
    as_host(|| mount.map_or(Ok(()), ServedMount::unmount))
}

/// Returns the directory of the mount, in this process or a child of it.
pub fn directory() -> Option<&'static Mount> {
    settings()?.mount.as_ref().filter(|_| UP.load(Ordering::Relaxed))
}

/// Returns whether there is a mount, and it lies at the prefix (V2).
pub fn is_at_prefix() -> bool {
    directory().is_some_and(|m| m.at_prefix)
}
