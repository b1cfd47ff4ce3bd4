//! Looking at files: the stat family, access, and the file system's own figures.

use crate::attributes::{self, errno, put};
use crate::dispatch::{by_any_fd, by_path};
use crate::hook::{answer, hook};
use crate::report::Call;
use crate::route::Last;
use crate::table::{Description, is_ours};
use crate::{itself, volume};
use lanefs::{Cred, Fs, Ino, Volume};
use libc::{stat as Stat, statfs as StatFs, statvfs as StatVfs, statx as Statx};
use std::ffi::{CStr, c_char, c_int, c_long, c_uint};

/// The number of the root's inode.
const ROOT: Ino = Ino(1);

/// Looks at a path, or at a descriptor.
///
/// # Safety
/// That of fstatat(2).
unsafe fn look(
    call: &'static Call,
    (dirfd, path): (c_int, *const c_char),
    to: *mut Stat,
    flags: c_int,
    host: impl Fn(c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(fd) = itself::descriptor((dirfd, path), flags) {
            return by_any_fd(call, fd, |_, d| put(to, attributes::stat(&d.file.stat().map_err(errno)?)));
        }
        let keep = flags & libc::AT_SYMLINK_NOFOLLOW != 0;
        let last = if keep { Last::Keep } else { Last::Follow };
        by_path(call, (dirfd, path), last, |fs, p| put(to, attributes::stat(&stat_of(fs, p, keep)?)), host)
    }
}

fn stat_of(fs: &Fs, path: &[u8], keep: bool) -> Result<lanefs::Stat, c_int> {
    if keep { fs.lstat(path) } else { fs.stat(path) }.map_err(errno)
}

/// Checks rights: those of the real user, with whose rights the path is walked too, or those of the
/// effective one.
fn may(fs: &Fs, path: &[u8], mode: c_int, effective: bool, keep: bool) -> Result<c_int, c_int> {
    let wrong = mode & !(libc::R_OK | libc::W_OK | libc::X_OK) != 0;
    if wrong {
        return Err(libc::EINVAL);
    }
    // SAFETY: these calls only return a number.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let same = effective || (uid, gid) == (fs.cred().uid, fs.cred().gid);
    let real = (!same).then(|| fs.with_cred(Cred { uid, gid, ..fs.cred().clone() }));
    let fs = real.as_ref().unwrap_or(fs);
    if keep { fs.laccess(path, mode) } else { fs.access(path, mode) }.map(|()| 0).map_err(errno)
}

/// Checks rights on an open file.
fn may_open(volume: &Volume, d: &Description, mode: c_int) -> Result<c_int, c_int> {
    volume.node_access(volume::view(volume).cred(), d.file.ino(), mode).map(|()| 0).map_err(errno)
}

/// Answers pathconf(3).
fn limit(call: &'static Call, name: c_int) -> Result<c_long, c_int> {
    match name {
        libc::_PC_LINK_MAX => Ok(65_000),
        libc::_PC_NAME_MAX => Ok(255),
        libc::_PC_PATH_MAX => Ok(4096),
        libc::_PC_PIPE_BUF => Ok(4096),
        libc::_PC_NO_TRUNC | libc::_PC_CHOWN_RESTRICTED | libc::_PC_2_SYMLINKS => Ok(1),
        libc::_PC_FILESIZEBITS => Ok(64),
        libc::_PC_SYMLINK_MAX => Ok(4095),
        libc::_PC_REC_INCR_XFER_SIZE
        | libc::_PC_REC_MIN_XFER_SIZE
        | libc::_PC_REC_XFER_ALIGN
        | libc::_PC_ALLOC_SIZE_MIN => Ok(4096),
        _ => Err(call.refuse(libc::EINVAL)),
    }
}

hook! {
    /// Looks at a file.
    fn stat(path: *const c_char, to: *mut Stat) -> c_int {
        look(&CALL, (libc::AT_FDCWD, path), to, 0, |_, p| real(p, to))
    }
    /// Looks at a file.
    fn stat64(path: *const c_char, to: *mut Stat) -> c_int {
        look(&CALL, (libc::AT_FDCWD, path), to, 0, |_, p| real(p, to))
    }
    /// Looks at a link.
    fn lstat(path: *const c_char, to: *mut Stat) -> c_int {
        look(&CALL, (libc::AT_FDCWD, path), to, libc::AT_SYMLINK_NOFOLLOW, |_, p| real(p, to))
    }
    /// Looks at a link.
    fn lstat64(path: *const c_char, to: *mut Stat) -> c_int {
        look(&CALL, (libc::AT_FDCWD, path), to, libc::AT_SYMLINK_NOFOLLOW, |_, p| real(p, to))
    }
    /// Looks at an open file.
    fn fstat(fd: c_int, to: *mut Stat) -> c_int {
        if !is_ours(fd) { return real(fd, to); }
        by_any_fd(&CALL, fd, |_, d| put(to, attributes::stat(&d.file.stat().map_err(errno)?)))
    }
    /// Looks at an open file.
    fn fstat64(fd: c_int, to: *mut Stat) -> c_int {
        if !is_ours(fd) { return real(fd, to); }
        by_any_fd(&CALL, fd, |_, d| put(to, attributes::stat(&d.file.stat().map_err(errno)?)))
    }
    /// Looks at a file beginning at a directory.
    fn fstatat(dirfd: c_int, path: *const c_char, to: *mut Stat, flags: c_int) -> c_int {
        look(&CALL, (dirfd, path), to, flags, |d, p| real(d, p, to, flags))
    }
    /// Looks at a file beginning at a directory.
    fn fstatat64(dirfd: c_int, path: *const c_char, to: *mut Stat, flags: c_int) -> c_int {
        look(&CALL, (dirfd, path), to, flags, |d, p| real(d, p, to, flags))
    }
    /// Looks at a file, for programs of older C libraries.
    fn __xstat(version: c_int, path: *const c_char, to: *mut Stat) -> c_int {
        look(&CALL, (libc::AT_FDCWD, path), to, 0, |_, p| real(version, p, to))
    }
    /// Looks at a file, for programs of older C libraries.
    fn __xstat64(version: c_int, path: *const c_char, to: *mut Stat) -> c_int {
        look(&CALL, (libc::AT_FDCWD, path), to, 0, |_, p| real(version, p, to))
    }
    /// Looks at a link, for programs of older C libraries.
    fn __lxstat(version: c_int, path: *const c_char, to: *mut Stat) -> c_int {
        look(&CALL, (libc::AT_FDCWD, path), to, libc::AT_SYMLINK_NOFOLLOW, |_, p| real(version, p, to))
    }
    /// Looks at a link, for programs of older C libraries.
    fn __lxstat64(version: c_int, path: *const c_char, to: *mut Stat) -> c_int {
        look(&CALL, (libc::AT_FDCWD, path), to, libc::AT_SYMLINK_NOFOLLOW, |_, p| real(version, p, to))
    }
    /// Looks at an open file, for programs of older C libraries.
    fn __fxstat(version: c_int, fd: c_int, to: *mut Stat) -> c_int {
        if !is_ours(fd) { return real(version, fd, to); }
        fstat(fd, to)
    }
    /// Looks at an open file, for programs of older C libraries.
    fn __fxstat64(version: c_int, fd: c_int, to: *mut Stat) -> c_int {
        if !is_ours(fd) { return real(version, fd, to); }
        fstat(fd, to)
    }
    /// Looks at a file beginning at a directory, for programs of older C libraries.
    fn __fxstatat(v: c_int, dirfd: c_int, path: *const c_char, to: *mut Stat, flags: c_int) -> c_int {
        look(&CALL, (dirfd, path), to, flags, |d, p| real(v, d, p, to, flags))
    }
    /// Looks at a file beginning at a directory, for programs of older C libraries.
    fn __fxstatat64(v: c_int, dirfd: c_int, path: *const c_char, to: *mut Stat, flags: c_int) -> c_int {
        look(&CALL, (dirfd, path), to, flags, |d, p| real(v, d, p, to, flags))
    }
    /// Looks at a file, with what newer kernels tell.
    fn statx(dirfd: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut Statx) -> c_int {
        let fill = |s: lanefs::Stat| put(to, attributes::statx(&s, s.ino == ROOT));
        if let Some(fd) = itself::descriptor((dirfd, path), flags) {
            return by_any_fd(&CALL, fd, |_, d| fill(d.file.stat().map_err(errno)?));
        }
        let keep = flags & libc::AT_SYMLINK_NOFOLLOW != 0;
        let last = if keep { Last::Keep } else { Last::Follow };
        by_path(&CALL, (dirfd, path), last, |fs, p| fill(stat_of(fs, p, keep)?),
            |d, p| real(d, p, flags, mask, to))
    }
    /// Checks rights of the real user.
    fn access(path: *const c_char, mode: c_int) -> c_int {
        if let Some(fd) = itself::descriptor((libc::AT_FDCWD, path), 0) {
            return by_any_fd(&CALL, fd, |v, d| may_open(v, d, mode));
        }
        by_path(&CALL, (libc::AT_FDCWD, path), Last::Follow, |fs, p| may(fs, p, mode, false, false),
            |_, p| real(p, mode))
    }
    /// Checks rights of the effective user.
    fn euidaccess(path: *const c_char, mode: c_int) -> c_int {
        if let Some(fd) = itself::descriptor((libc::AT_FDCWD, path), 0) {
            return by_any_fd(&CALL, fd, |v, d| may_open(v, d, mode));
        }
        by_path(&CALL, (libc::AT_FDCWD, path), Last::Follow, |fs, p| may(fs, p, mode, true, false),
            |_, p| real(p, mode))
    }
    /// Checks rights of the effective user.
    fn eaccess(path: *const c_char, mode: c_int) -> c_int {
        if let Some(fd) = itself::descriptor((libc::AT_FDCWD, path), 0) {
            return by_any_fd(&CALL, fd, |v, d| may_open(v, d, mode));
        }
        by_path(&CALL, (libc::AT_FDCWD, path), Last::Follow, |fs, p| may(fs, p, mode, true, false),
            |_, p| real(p, mode))
    }
    /// Checks rights beginning at a directory.
    fn faccessat(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        let (effective, keep) = (flags & libc::AT_EACCESS != 0, flags & libc::AT_SYMLINK_NOFOLLOW != 0);
        if let Some(fd) = itself::descriptor((dirfd, path), flags) {
            return by_any_fd(&CALL, fd, |v, d| may_open(v, d, mode));
        }
        let last = if keep { Last::Keep } else { Last::Follow };
        by_path(&CALL, (dirfd, path), last, |fs, p| may(fs, p, mode, effective, keep),
            |d, p| real(d, p, mode, flags))
    }
    /// Returns the figures of the file system.
    fn statfs(path: *const c_char, to: *mut StatFs) -> c_int {
        by_path(&CALL, (libc::AT_FDCWD, path), Last::Follow, |fs, p| {
            fs.stat(p).map_err(errno)?;
            put(to, attributes::statfs(&fs.statfs().map_err(errno)?))
        }, |_, p| real(p, to))
    }
    /// Returns the figures of the file system.
    fn statfs64(path: *const c_char, to: *mut StatFs) -> c_int {
        statfs(path, to)
    }
    /// Returns the figures of the file system of an open file.
    fn fstatfs(fd: c_int, to: *mut StatFs) -> c_int {
        if !is_ours(fd) { return real(fd, to); }
        by_any_fd(&CALL, fd, |v, _| put(to, attributes::statfs(&v.statfs().map_err(errno)?)))
    }
    /// Returns the figures of the file system of an open file.
    fn fstatfs64(fd: c_int, to: *mut StatFs) -> c_int {
        fstatfs(fd, to)
    }
    /// Returns the figures of the file system.
    fn statvfs(path: *const c_char, to: *mut StatVfs) -> c_int {
        by_path(&CALL, (libc::AT_FDCWD, path), Last::Follow, |fs, p| {
            fs.stat(p).map_err(errno)?;
            put(to, attributes::statvfs(&fs.statfs().map_err(errno)?))
        }, |_, p| real(p, to))
    }
    /// Returns the figures of the file system.
    fn statvfs64(path: *const c_char, to: *mut StatVfs) -> c_int {
        statvfs(path, to)
    }
    /// Returns the figures of the file system of an open file.
    fn fstatvfs(fd: c_int, to: *mut StatVfs) -> c_int {
        if !is_ours(fd) { return real(fd, to); }
        by_any_fd(&CALL, fd, |v, _| put(to, attributes::statvfs(&v.statfs().map_err(errno)?)))
    }
    /// Returns the figures of the file system of an open file.
    fn fstatvfs64(fd: c_int, to: *mut StatVfs) -> c_int {
        fstatvfs(fd, to)
    }
    /// Returns limits.
    fn pathconf(path: *const c_char, name: c_int) -> c_long {
        if path.is_null() { return real(path, name); }
        match crate::route::route(libc::AT_FDCWD, CStr::from_ptr(path)) {
            crate::route::Route::Ours(_) => answer(limit(&CALL, name)),
            _ => real(path, name),
        }
    }
    /// Returns limits of an open file.
    fn fpathconf(fd: c_int, name: c_int) -> c_long {
        if !is_ours(fd) { return real(fd, name); }
        answer(limit(&CALL, name))
    }
}
