//! Names: made, removed, linked and moved.

use super::open;
use crate::attributes::errno;
use crate::dispatch::{by_any_fd, by_name, by_path, by_two_paths};
use crate::hook::{answer, hook};
use crate::report::Call;
use crate::route::{self, Last, Route, cwd_is_ours, is_cwd, route};
use crate::settings::settings;
use crate::table::{self, Description, is_ours};
use crate::{itself, links, volume};
use lanefs::{FileKind, Fs};
use libc::{dev_t, mode_t, size_t, ssize_t};
use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::sync::Arc;

const HERE: c_int = libc::AT_FDCWD;

fn unit(result: lanefs::Result<()>) -> Result<c_int, c_int> {
    result.map(|()| 0).map_err(errno)
}

/// Removes a name, whatever it names.
fn remove_any(fs: &Fs, path: &[u8]) -> Result<c_int, c_int> {
    match fs.unlink(path) {
        Err(e) if e.errno() == libc::EISDIR => unit(fs.rmdir(path)),
        result => unit(result),
    }
}

/// Copies the target of a link to where the caller wants it.
///
/// # Safety
/// That of readlink(2).
unsafe fn target(fs: &Fs, path: &[u8], to: *mut c_char, space: size_t) -> Result<ssize_t, c_int> {
    // SAFETY: the caller's promise.
    unsafe { put_target(&fs.readlink(path).map_err(errno)?, to, space) }
}

/// Puts a target where the caller wants it.
///
/// # Safety
/// That of readlink(2).
unsafe fn put_target(target: &[u8], to: *mut c_char, space: size_t) -> Result<ssize_t, c_int> {
    if space == 0 {
        return Err(libc::EINVAL);
    }
    let n = target.len().min(space);
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(target.as_ptr(), to.cast(), n) };
    Ok(n as ssize_t)
}

/// Returns the path of the working directory, if it is one of the volume.
pub fn here(call: &'static Call) -> Option<Result<Vec<u8>, c_int>> {
    if !cwd_is_ours() {
        return None;
    }
    let prefix = settings()?.prefix.clone();
    let known = |path: Vec<u8>| if path == b"/" { prefix.clone() } else { [prefix.clone(), path].concat() };
    // A child whose parent has the volume is told where it was.
    if !open::is_usable() || !volume::is_open() {
        return route::cwd_path().map(|p| Ok(known(p)));
    }
    Some(volume::serve(call, |volume| {
        let dir = links::cwd_dir(volume)?.ok_or(libc::ENOENT)?;
        Ok(known(links::path_of(volume, &dir)?))
    }))
}

/// Returns what the kernel's link shows of a working directory that was removed.
fn was_here() -> Option<Vec<u8>> {
    Some([&settings()?.prefix[..], &route::cwd_path()?, b" (deleted)"].concat())
}

/// Returns where a link of this process in /proc leads, if that is in the volume: the link of a
/// descriptor, or that of the working directory.
fn own_link(call: &'static Call, path: *const c_char) -> Option<Result<Vec<u8>, c_int>> {
    if path.is_null() {
        return None;
    }
    // SAFETY: not NULL; ends in a NUL as all paths do.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if is_cwd(path) {
        return here(call).map(|path| path.or_else(|e| was_here().filter(|_| e == libc::ENOENT).ok_or(e)));
    }
    descriptor_link(path).map(Ok)
}

/// Returns the path of a descriptor of the volume, if the path is that of its link in /proc.
fn descriptor_link(path: &[u8]) -> Option<Vec<u8>> {
    let (fd, rest) = itself::split(path)?;
    // The link of /dev/stdin is the host's own, to one in /proc.
    if !rest.is_empty() || path.starts_with(b"/dev/std") {
        return None;
    }
    let d = table::get(fd)?;
    let mut all = settings()?.prefix.clone();
    all.extend_from_slice(&d.path);
    Some(all)
}

/// What a path resolves to.
enum Resolved {
    /// A path below the prefix, or an errno.
    Ours(Result<Vec<u8>, c_int>),
    /// What the C library is to resolve.
    Host(CString),
}

/// Resolves a path to one without links, `.` and `..`.
///
/// # Safety
/// The path ends in a NUL.
unsafe fn resolved(call: &'static Call, path: *const c_char) -> Resolved {
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(path) };
    // SAFETY: the caller's promise.
    if let Some(fd) = unsafe { itself::descriptor((HERE, path), 0) } {
        let prefix = || settings().map(|s| s.prefix.clone()).ok_or(libc::EIO);
        let of = |d: &Arc<Description>| Ok([prefix()?, d.path.clone()].concat());
        return Resolved::Ours(volume::serve(call, |_| of(&table::get(fd).ok_or(libc::ENOENT)?)));
    }
    if is_cwd(text.to_bytes())
        && let Some(path) = here(call)
    {
        return Resolved::Ours(path);
    }
    let spot = match route(HERE, text) {
        Route::Ours(spot) => spot,
        Route::HostPath(there) => return Resolved::Host(there),
        Route::Host => return Resolved::Host(text.to_owned()),
    };
    let mut out = None;
    let found = volume::serve(call, |volume| {
        let (path, of_host) = by_name(|| links::canonical(volume, &spot))?;
        if of_host {
            out = CString::new(path).ok();
            return Ok(Vec::new());
        }
        let mut all = settings().ok_or(libc::EIO)?.prefix.clone();
        if path != b"/" {
            all.extend_from_slice(&path);
        }
        if all.len() >= libc::PATH_MAX as usize { Err(libc::ENAMETOOLONG) } else { Ok(all) }
    });
    match out {
        Some(there) => Resolved::Host(there),
        None => Resolved::Ours(found),
    }
}

/// Gives a string to the caller, in its buffer or in memory for it to free.
///
/// # Safety
/// That of realpath(3) and getcwd(3): the buffer is NULL, or holds `space` bytes.
pub unsafe fn give(text: Result<Vec<u8>, c_int>, to: *mut c_char, space: usize) -> *mut c_char {
    let text = match text {
        Ok(text) => text,
        Err(errno) => return answer(Err(errno)),
    };
    // SAFETY: the caller's promise; memory from malloc is as long as was asked for.
    unsafe {
        let size = if space == 0 { text.len() + 1 } else { space };
        if text.len() + 1 > size {
            return answer(Err(libc::ERANGE));
        }
        let to = if to.is_null() { libc::malloc(size).cast() } else { to };
        if to.is_null() {
            return answer(Err(libc::ENOMEM));
        }
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), text.len());
        *to.add(text.len()) = 0;
        to
    }
}

/// Gives an open file a name.
///
/// # Safety
/// The path ends in a NUL.
unsafe fn link_open(call: &'static Call, fd: c_int, at: (c_int, *const c_char)) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        by_path(
            call,
            at,
            Last::Keep,
            |fs, p| unit(fs.link_file(&table::get(fd).ok_or(libc::EBADF)?.file, p)),
            |_, _| answer(Err(libc::EXDEV)),
        )
    }
}

/// Links; `follow`: to what the old path leads to.
fn link_to(fs: &Fs, old: &[u8], new: &[u8], follow: bool) -> Result<(), c_int> {
    if !follow {
        return fs.link(old, new).map_err(errno);
    }
    let mut options = lanefs::OpenOptions::new();
    options.custom_flags(libc::O_PATH);
    let file = fs.open(old, &options).map_err(errno)?;
    fs.link_file(&file, new).map_err(errno)
}

hook! {
    /// Makes a directory.
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
        by_path(&CALL, (HERE, path), Last::Keep, |fs, p| unit(fs.mkdir(p, mode)), |_, p| real(p, mode))
    }
    /// Makes a directory beginning at a directory.
    fn mkdirat(dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int {
        by_path(&CALL, (dirfd, path), Last::Keep, |fs, p| unit(fs.mkdir(p, mode)), |d, p| real(d, p, mode))
    }
    /// Removes a directory.
    fn rmdir(path: *const c_char) -> c_int {
        by_path(&CALL, (HERE, path), Last::Keep, |fs, p| unit(fs.rmdir(p)), |_, p| real(p))
    }
    /// Removes a name.
    fn unlink(path: *const c_char) -> c_int {
        by_path(&CALL, (HERE, path), Last::Keep, |fs, p| unit(fs.unlink(p)), |_, p| real(p))
    }
    /// Removes a name beginning at a directory.
    fn unlinkat(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        by_path(&CALL, (dirfd, path), Last::Keep, |fs, p| match flags {
            0 => unit(fs.unlink(p)),
            libc::AT_REMOVEDIR => unit(fs.rmdir(p)),
            _ => Err(libc::EINVAL),
        }, |d, p| real(d, p, flags))
    }
    /// Removes a file or a directory.
    fn remove(path: *const c_char) -> c_int {
        by_path(&CALL, (HERE, path), Last::Keep, remove_any, |_, p| real(p))
    }
    /// Moves.
    fn rename(old: *const c_char, new: *const c_char) -> c_int {
        by_two_paths(&CALL, (HERE, old), (HERE, new), Last::Keep,
            |fs, a, b| fs.rename(a, b).map_err(errno), |a, b| real(a.1, b.1))
    }
    /// Moves beginning at directories.
    fn renameat(from: c_int, old: *const c_char, to: c_int, new: *const c_char) -> c_int {
        by_two_paths(&CALL, (from, old), (to, new), Last::Keep,
            |fs, a, b| fs.rename(a, b).map_err(errno), |a, b| real(a.0, a.1, b.0, b.1))
    }
    /// Moves, exchanges, or moves only if nothing is there.
    fn renameat2(from: c_int, old: *const c_char, to: c_int, new: *const c_char, flags: c_uint) -> c_int {
        by_two_paths(&CALL, (from, old), (to, new), Last::Keep,
            |fs, a, b| fs.rename2(a, b, flags).map_err(errno), |a, b| real(a.0, a.1, b.0, b.1, flags))
    }
    /// Adds a name.
    fn link(old: *const c_char, new: *const c_char) -> c_int {
        by_two_paths(&CALL, (HERE, old), (HERE, new), Last::Keep,
            |fs, a, b| fs.link(a, b).map_err(errno), |a, b| real(a.1, b.1))
    }
    /// Adds a name beginning at directories.
    fn linkat(from: c_int, old: *const c_char, to: c_int, new: *const c_char, flags: c_int) -> c_int {
        let follow = flags & libc::AT_SYMLINK_FOLLOW != 0;
        // By its link programs name a file that was opened with O_TMPFILE.
        let keep = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
        if let Some(fd) = itself::descriptor((from, old), flags | keep) {
            return link_open(&CALL, fd, (to, new));
        }
        let last = if follow { Last::Follow } else { Last::Keep };
        by_two_paths(&CALL, (from, old), (to, new), last, |fs, a, b| link_to(fs, a, b, follow),
            |a, b| real(a.0, a.1, b.0, b.1, flags))
    }
    /// Makes a symbolic link.
    fn symlink(target: *const c_char, path: *const c_char) -> c_int {
        if target.is_null() { return real(target, path); }
        let to = CStr::from_ptr(target).to_bytes();
        by_path(&CALL, (HERE, path), Last::Keep, |fs, p| unit(fs.symlink(to, p)), |_, p| real(target, p))
    }
    /// Makes a symbolic link beginning at a directory.
    fn symlinkat(target: *const c_char, dirfd: c_int, path: *const c_char) -> c_int {
        if target.is_null() { return real(target, dirfd, path); }
        let to = CStr::from_ptr(target).to_bytes();
        by_path(&CALL, (dirfd, path), Last::Keep, |fs, p| unit(fs.symlink(to, p)),
            |d, p| real(target, d, p))
    }
    /// Reads the target of a link.
    fn readlink(path: *const c_char, to: *mut c_char, space: size_t) -> ssize_t {
        if let Some(name) = own_link(&CALL, path) {
            return answer(name.and_then(|name| put_target(&name, to, space)));
        }
        by_path(&CALL, (HERE, path), Last::Keep, |fs, p| target(fs, p, to, space), |_, p| real(p, to, space))
    }
    /// Reads the target of a link beginning at a directory.
    fn readlinkat(dirfd: c_int, path: *const c_char, to: *mut c_char, space: size_t) -> ssize_t {
        // Of a link that is open with O_PATH.
        if !path.is_null() && *path == 0 && is_ours(dirfd) {
            return by_any_fd(&CALL, dirfd, |v, d| match d.kind {
                FileKind::Symlink => put_target(&v.node_readlink(d.file.ino()).map_err(errno)?, to, space),
                _ => Err(libc::ENOENT),
            });
        }
        if let Some(name) = own_link(&CALL, path) {
            return answer(name.and_then(|name| put_target(&name, to, space)));
        }
        by_path(&CALL, (dirfd, path), Last::Keep, |fs, p| target(fs, p, to, space),
            |d, p| real(d, p, to, space))
    }
    /// Reads the target of a link, with the check of fortified programs.
    fn __readlink_chk(path: *const c_char, to: *mut c_char, space: size_t, have: size_t) -> ssize_t {
        if space > have { return real(path, to, space, have); }
        readlink(path, to, space)
    }
    /// Reads the target of a link, with the check of fortified programs.
    fn __readlinkat_chk(d: c_int, path: *const c_char, to: *mut c_char, space: size_t, have: size_t) -> ssize_t {
        if space > have { return real(d, path, to, space, have); }
        readlinkat(d, path, to, space)
    }
    /// Makes a node.
    fn mknod(path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
        by_path(&CALL, (HERE, path), Last::Keep, |fs, p| unit(fs.mknod(p, mode, device)),
            |_, p| real(p, mode, device))
    }
    /// Makes a node beginning at a directory.
    fn mknodat(dirfd: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
        by_path(&CALL, (dirfd, path), Last::Keep, |fs, p| unit(fs.mknod(p, mode, device)),
            |d, p| real(d, p, mode, device))
    }
    /// Makes a node, for programs of older C libraries.
    fn __xmknod(version: c_int, path: *const c_char, mode: mode_t, device: *mut dev_t) -> c_int {
        by_path(&CALL, (HERE, path), Last::Keep, |fs, p| unit(fs.mknod(p, mode, *device)),
            |_, p| real(version, p, mode, device))
    }
    /// Makes a named pipe, which has its name here and cannot be opened.
    fn mkfifo(path: *const c_char, mode: mode_t) -> c_int {
        by_path(&CALL, (HERE, path), Last::Keep, |fs, p| unit(fs.mknod(p, mode & 0o7777 | libc::S_IFIFO, 0)),
            |_, p| real(p, mode))
    }
    /// Makes a named pipe beginning at a directory.
    fn mkfifoat(dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int {
        by_path(&CALL, (dirfd, path), Last::Keep,
            |fs, p| unit(fs.mknod(p, mode & 0o7777 | libc::S_IFIFO, 0)), |d, p| real(d, p, mode))
    }
    /// Resolves a path.
    fn realpath(path: *const c_char, to: *mut c_char) -> *mut c_char {
        if path.is_null() { return real(path, to); }
        match resolved(&CALL, path) {
            Resolved::Ours(text) => give(text, to, 0),
            Resolved::Host(there) => real(there.as_ptr(), to),
        }
    }
    /// Resolves a path, with the check of fortified programs.
    fn __realpath_chk(path: *const c_char, to: *mut c_char, have: size_t) -> *mut c_char {
        if have < libc::PATH_MAX as usize { return real(path, to, have); }
        realpath(path, to)
    }
    /// Resolves a path.
    fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
        realpath(path, std::ptr::null_mut())
    }
}
