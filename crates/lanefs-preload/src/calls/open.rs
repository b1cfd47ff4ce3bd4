//! Opening.

use super::standard;
use crate::dispatch::{by_any_fd, by_spot};
use crate::hook::hook;
use crate::report::Call;
use crate::route::{self, Last, Spot, Start};
use crate::table::{self, Description};
use crate::{itself, links, opening, placeholder, served, volume};
use lanefs::{FileKind, Volume};
use std::ffi::{c_char, c_int};
use std::sync::Arc;

/// Opens a path as open(2) does, without a descriptor.
pub fn describe(volume: &Volume, spot: &Spot<'_>, flags: c_int, mode: u32) -> Result<Description, c_int> {
    let mut description = links::with(spot, volume, |fs, path| opening::open(fs, path, flags, mode))?;
    if description.kind == FileKind::Dir {
        // Where it cannot be found, it is looked for by its number when it is needed.
        description.path = links::canonical(volume, spot).map(|p| p.0).unwrap_or_default();
    } else if served::directory().is_some() {
        // By which it is opened through the mount, if a child is to have it.
        description.path = links::absolute(volume, spot).unwrap_or_default();
    } else if spot.start != Start::Root {
        // What its link in /proc shows.
        let mut path = route::path_of_start(&spot.start).unwrap_or_default();
        links::append(&mut path, &spot.path);
        description.path = path;
    }
    Ok(description)
}

/// Gives a description a descriptor.
pub fn number(description: Arc<Description>, at_least: c_int, close_on_exec: bool) -> Result<c_int, c_int> {
    let fd = placeholder::number(at_least, close_on_exec)?;
    table::set(fd, description)?;
    standard::redirected(fd);
    Ok(fd)
}

/// Opens a path below the prefix, or calls the host's function.
///
/// # Safety
/// The path is NULL or ends in a NUL.
pub unsafe fn open_at(
    call: &'static Call,
    at: (c_int, *const c_char),
    flags: c_int,
    mode: u32,
    host: impl Fn(c_int, *const c_char) -> c_int,
) -> c_int {
    let exclusive = flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0;
    let last = if exclusive || flags & libc::O_NOFOLLOW != 0 { Last::Keep } else { Last::Follow };
    let ours = |volume: &Volume, spot: &Spot<'_>| {
        let description = Arc::new(describe(volume, spot, flags, mode)?);
        number(description, 0, flags & libc::O_CLOEXEC != 0)
    };
    // SAFETY: the caller's promise.
    unsafe {
        let keep = if last == Last::Keep && !exclusive { libc::AT_SYMLINK_NOFOLLOW } else { 0 };
        if let Some(fd) = itself::descriptor(at, keep) {
            return by_any_fd(call, fd, |volume, d| {
                let again = opening::again(volume, volume::view(volume), d, flags)?;
                number(Arc::new(again), 0, flags & libc::O_CLOEXEC != 0)
            });
        }
        by_spot(call, at, last, ours, host)
    }
}

hook! {
    /// Opens a file. The mode is read only where open(2) reads it, so its register may hold
    /// anything else.
    fn open(path: *const c_char, flags: c_int, mode: u32) -> c_int {
        open_at(&CALL, (libc::AT_FDCWD, path), flags, mode, |_, p| real(p, flags, mode))
    }
    /// Opens a file.
    fn open64(path: *const c_char, flags: c_int, mode: u32) -> c_int {
        open_at(&CALL, (libc::AT_FDCWD, path), flags, mode, |_, p| real(p, flags, mode))
    }
    /// Opens a file beginning at a directory.
    fn openat(dirfd: c_int, path: *const c_char, flags: c_int, mode: u32) -> c_int {
        open_at(&CALL, (dirfd, path), flags, mode, |d, p| real(d, p, flags, mode))
    }
    /// Opens a file beginning at a directory.
    fn openat64(dirfd: c_int, path: *const c_char, flags: c_int, mode: u32) -> c_int {
        open_at(&CALL, (dirfd, path), flags, mode, |d, p| real(d, p, flags, mode))
    }
    /// Opens a file, with the check of fortified programs.
    fn __open_2(path: *const c_char, flags: c_int) -> c_int {
        open_at(&CALL, (libc::AT_FDCWD, path), flags, 0, |_, p| real(p, flags))
    }
    /// Opens a file, with the check of fortified programs.
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
        open_at(&CALL, (libc::AT_FDCWD, path), flags, 0, |_, p| real(p, flags))
    }
    /// Opens a file, with the check of fortified programs.
    fn __openat_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_at(&CALL, (dirfd, path), flags, 0, |d, p| real(d, p, flags))
    }
    /// Opens a file, with the check of fortified programs.
    fn __openat64_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_at(&CALL, (dirfd, path), flags, 0, |d, p| real(d, p, flags))
    }
    /// Makes or empties a file.
    fn creat(path: *const c_char, mode: u32) -> c_int {
        let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
        open_at(&CALL, (libc::AT_FDCWD, path), flags, mode, |_, p| real(p, mode))
    }
    /// Makes or empties a file.
    fn creat64(path: *const c_char, mode: u32) -> c_int {
        let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
        open_at(&CALL, (libc::AT_FDCWD, path), flags, mode, |_, p| real(p, mode))
    }
}

/// Returns whether the process may use the volume, for calls that need no volume.
pub fn is_usable() -> bool {
    volume::is_owner() && !volume::is_inside()
}
