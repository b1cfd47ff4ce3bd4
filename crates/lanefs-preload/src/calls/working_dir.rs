//! The working directory.
//!
//! While it is one of the volume, that of the kernel is a directory which was removed: a relative
//! path that reaches the kernel then names nothing. Where a mount is served at the prefix, it is
//! that directory in the mount.

use super::names::{give, here};
use crate::attributes::errno;
use crate::dispatch::by_spot;
use crate::hook::{answer, hook};
use crate::raw::sys;
use crate::route::{self, Last, Spot, WorkingDir, cwd_is_ours};
use crate::table::{self, Description, is_ours};
use crate::{itself, links, opening, placeholder, served, volume};
use lanefs::{FileKind, Volume};
use std::ffi::{CString, c_char, c_int};
use std::sync::Arc;

/// Goes into a directory of the volume, which has to be searchable.
fn enter(volume: &Volume, dir: Arc<Description>, path: Vec<u8>) -> Result<c_int, c_int> {
    volume.node_access(volume::view(volume).cred(), dir.file.ino(), libc::X_OK).map_err(errno)?;
    // Where the mount is at the prefix, a child begins where this one is.
    if !into_mount(&path) {
        placeholder::leave_host_directory()?;
    }
    route::set_cwd(Some(WorkingDir { path, dir: Some(dir) }));
    Ok(0)
}

/// Has the kernel's working directory be one of the mount, if that is at the prefix: false if it is
/// not, or cannot be entered.
pub fn into_mount(path: &[u8]) -> bool {
    let Some(mount) = served::directory().filter(|m| m.at_prefix) else { return false };
    let Ok(path) = CString::new([&mount.dir, path].concat()) else { return false };
    // SAFETY: the path ends in a NUL.
    unsafe { sys!(libc::SYS_chdir, path.as_ptr()) == 0 }
}

/// Goes into a directory by its path.
fn enter_path(volume: &Volume, spot: &Spot<'_>) -> Result<c_int, c_int> {
    let (path, of_host) = links::canonical(volume, spot)?;
    if of_host {
        // The caller looks for it by its link.
        return Err(libc::ENOENT);
    }
    let fs = volume::view(volume);
    let dir = opening::directory(fs, &path)?;
    enter(volume, Arc::new(dir), path)
}

/// Goes to a directory of the host, and leaves the volume if that succeeds.
fn to_host(result: c_int) -> c_int {
    if result == 0 && cwd_is_ours() {
        route::set_cwd(None);
    }
    result
}

hook! {
    /// Changes the working directory.
    fn chdir(path: *const c_char) -> c_int {
        if let Some(fd) = itself::descriptor((libc::AT_FDCWD, path), 0) { return fchdir(fd); }
        by_spot(&CALL, (libc::AT_FDCWD, path), Last::Follow, enter_path, |_, p| to_host(real(p)))
    }
    /// Changes the working directory to an open one.
    fn fchdir(fd: c_int) -> c_int {
        if !is_ours(fd) { return to_host(real(fd)); }
        answer(volume::serve(&CALL, |volume| {
            let dir = table::get(fd).ok_or(libc::EBADF)?;
            if dir.kind != FileKind::Dir {
                return Err(libc::ENOTDIR);
            }
            let path = links::path_of(volume, &dir)?;
            enter(volume, dir, path)
        }))
    }
    /// Returns the working directory.
    fn getcwd(to: *mut c_char, space: usize) -> *mut c_char {
        match here(&CALL) {
            None => real(to, space),
            Some(_) if space == 0 && !to.is_null() => answer(Err(libc::EINVAL)),
            Some(path) => give(path, to, space),
        }
    }
    /// Returns the working directory, with the check of fortified programs.
    fn __getcwd_chk(to: *mut c_char, space: usize, have: usize) -> *mut c_char {
        if space > have { return real(to, space, have); }
        getcwd(to, space)
    }
    /// Returns the working directory in memory for the caller to free.
    fn get_current_dir_name() -> *mut c_char {
        match here(&CALL) {
            None => real(),
            Some(path) => give(path, std::ptr::null_mut(), 0),
        }
    }
    /// Returns the working directory, in a buffer that is long enough for any.
    fn getwd(to: *mut c_char) -> *mut c_char {
        match here(&CALL) {
            None => real(to),
            Some(path) => give(path, to, libc::PATH_MAX as usize),
        }
    }
    /// Sets the bits that new files lack.
    fn umask(bits: libc::mode_t) -> libc::mode_t {
        let before = real(bits);
        volume::forget_view();
        before
    }
    /// Changes the user; the volume's calls are that user's from then on.
    fn setuid(id: libc::uid_t) -> c_int { let r = real(id); volume::forget_view(); r }
    /// Changes the effective user.
    fn seteuid(id: libc::uid_t) -> c_int { let r = real(id); volume::forget_view(); r }
    /// Changes users.
    fn setreuid(a: libc::uid_t, b: libc::uid_t) -> c_int { let r = real(a, b); volume::forget_view(); r }
    /// Changes users.
    fn setresuid(a: libc::uid_t, b: libc::uid_t, c: libc::uid_t) -> c_int {
        let r = real(a, b, c);
        volume::forget_view();
        r
    }
    /// Changes the group.
    fn setgid(id: libc::gid_t) -> c_int { let r = real(id); volume::forget_view(); r }
    /// Changes the effective group.
    fn setegid(id: libc::gid_t) -> c_int { let r = real(id); volume::forget_view(); r }
    /// Changes groups.
    fn setregid(a: libc::gid_t, b: libc::gid_t) -> c_int { let r = real(a, b); volume::forget_view(); r }
    /// Changes groups.
    fn setresgid(a: libc::gid_t, b: libc::gid_t, c: libc::gid_t) -> c_int {
        let r = real(a, b, c);
        volume::forget_view();
        r
    }
    /// Changes the supplementary groups.
    fn setgroups(count: usize, groups: *const libc::gid_t) -> c_int {
        let r = real(count, groups);
        volume::forget_view();
        r
    }
    /// Changes the supplementary groups to a user's.
    fn initgroups(user: *const c_char, group: libc::gid_t) -> c_int {
        let r = real(user, group);
        volume::forget_view();
        r
    }
}
