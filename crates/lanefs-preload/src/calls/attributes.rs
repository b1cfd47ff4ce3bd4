//! Changing attributes: modes, owners, times, sizes by path, and extended attributes.

use crate::attributes::errno;
use crate::dispatch::{by_any_fd, by_fd, by_path, by_spot};
use crate::hook::hook;
use crate::report::Call;
use crate::route::Last;
use crate::table::is_ours;
use crate::{itself, links, volume};
use lanefs::stat::SetTime;
use lanefs::{Cred, Fs, Ino, SetAttr, Volume, times};
use libc::{gid_t, mode_t, off_t, size_t, ssize_t, timespec, timeval, uid_t, utimbuf};
use std::ffi::{CStr, c_char, c_int, c_void};

const HERE: c_int = libc::AT_FDCWD;
const KEEP: c_int = libc::AT_SYMLINK_NOFOLLOW;

/// Changes attributes of an inode as the program may.
fn change(volume: &Volume, ino: Ino, set: &SetAttr) -> Result<c_int, c_int> {
    volume.node_setattr_and_acl(cred(volume), ino, set).map(|_| 0).map_err(errno)
}

/// Performs a call on the inode that a path names, or on the host. There is one walk: a name that
/// is replaced meanwhile gets no other file changed.
///
/// # Safety
/// The path is NULL or ends in a NUL.
unsafe fn by_inode(
    call: &'static Call,
    at: (c_int, *const c_char),
    last: Last,
    ours: impl Fn(&Volume, Ino) -> Result<c_int, c_int>,
    host: impl Fn(c_int, *const c_char) -> c_int,
) -> c_int {
    let find = |fs: &Fs, p: &[u8]| {
        let found = if last == Last::Keep { fs.lstat(p) } else { fs.stat(p) };
        found.map(|stat| stat.ino).map_err(errno)
    };
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(fd) = itself::descriptor(at, if last == Last::Keep { KEEP } else { 0 }) {
            return by_any_fd(call, fd, |v, d| ours(v, d.file.ino()));
        }
        by_spot(call, at, last, |volume, spot| ours(volume, links::with(spot, volume, find)?), host)
    }
}

fn last(flags: c_int) -> Last {
    if flags & KEEP != 0 { Last::Keep } else { Last::Follow }
}

/// Changes attributes of what a path names, or a descriptor.
///
/// # Safety
/// The path is NULL or ends in a NUL.
unsafe fn change_at(
    call: &'static Call,
    (dirfd, path): (c_int, *const c_char),
    flags: c_int,
    set: &SetAttr,
    host: impl Fn(c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(fd) = itself::descriptor((dirfd, path), flags) {
            return by_any_fd(call, fd, |v, d| change(v, d.file.ino(), set));
        }
        by_inode(call, (dirfd, path), last(flags), |v, ino| change(v, ino, set), host)
    }
}

fn mode(mode: mode_t) -> SetAttr {
    SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() }
}

/// Returns a change of owners; -1 leaves one alone.
fn owner(uid: uid_t, gid: gid_t) -> SetAttr {
    let id = |id: u32| (id != u32::MAX).then_some(id);
    SetAttr { uid: id(uid), gid: id(gid), ..SetAttr::default() }
}

/// Returns a change of times as utimensat(2) takes them.
///
/// # Safety
/// `times` is NULL or two of them.
unsafe fn to_times(times: *const timespec) -> Result<SetAttr, c_int> {
    if times.is_null() {
        return Ok(SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() });
    }
    let one = |t: &timespec| match t.tv_nsec {
        libc::UTIME_NOW => Ok(Some(SetTime::Now)),
        libc::UTIME_OMIT => Ok(None),
        n @ 0..=999_999_999 => Ok(Some(SetTime::At(times::number(t.tv_sec, n as u32)))),
        _ => Err(libc::EINVAL),
    };
    // SAFETY: the caller's promise.
    let (a, m) = unsafe { (&*times, &*times.add(1)) };
    Ok(SetAttr { atime: one(a)?, mtime: one(m)?, ..SetAttr::default() })
}

/// Returns a change of times as utimes(2) takes them.
///
/// # Safety
/// `times` is NULL or two of them.
unsafe fn to_old_times(times: *const timeval) -> Result<SetAttr, c_int> {
    if times.is_null() {
        // SAFETY: NULL is taken.
        return unsafe { to_times(std::ptr::null()) };
    }
    let one = |t: &timeval| match t.tv_usec {
        us @ 0..=999_999 => Ok(Some(SetTime::At(times::number(t.tv_sec, us as u32 * 1000)))),
        _ => Err(libc::EINVAL),
    };
    // SAFETY: the caller's promise.
    let (a, m) = unsafe { (&*times, &*times.add(1)) };
    Ok(SetAttr { atime: one(a)?, mtime: one(m)?, ..SetAttr::default() })
}

/// Sets times of what a path names.
///
/// # Safety
/// The path is NULL or ends in a NUL.
unsafe fn touch(
    call: &'static Call,
    at: (c_int, *const c_char),
    flags: c_int,
    set: Result<SetAttr, c_int>,
    host: impl Fn(c_int, *const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        match set {
            Ok(set) if set.atime.is_none() && set.mtime.is_none() => {
                let look = |fs: &Fs, p: &[u8]| if flags & KEEP != 0 { fs.lstat(p) } else { fs.stat(p) };
                by_path(call, at, last(flags), |fs, p| look(fs, p).map(|_| 0).map_err(errno), host)
            }
            Ok(set) => change_at(call, at, flags, &set, host),
            Err(e) => by_path(call, at, last(flags), |_, _| Err(e), host),
        }
    }
}

/// Gives the caller a list or a value of extended attributes.
///
/// # Safety
/// The buffer holds `space` bytes.
unsafe fn give(value: &[u8], to: *mut c_void, space: size_t) -> Result<ssize_t, c_int> {
    if space > 0 {
        if value.len() > space {
            return Err(libc::ERANGE);
        }
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), to.cast(), value.len()) };
    }
    Ok(value.len() as ssize_t)
}

/// Returns the name of an extended attribute.
///
/// # Safety
/// It is NULL or ends in a NUL.
unsafe fn name<'a>(name: *const c_char) -> Result<&'a [u8], c_int> {
    // SAFETY: the caller's promise.
    if name.is_null() { Err(libc::EFAULT) } else { Ok(unsafe { CStr::from_ptr(name) }.to_bytes()) }
}

/// Gives the caller an extended attribute, which `get` finds by its name.
///
/// # Safety
/// That of getxattr(2).
unsafe fn give_value(
    get: impl FnOnce(&[u8]) -> lanefs::Result<Vec<u8>>,
    key: *const c_char,
    to: *mut c_void,
    space: size_t,
) -> Result<ssize_t, c_int> {
    // SAFETY: the caller's promise.
    unsafe { give(&get(name(key)?).map_err(errno)?, to, space) }
}

/// Has `set` set an extended attribute: its name and its value.
///
/// # Safety
/// That of setxattr(2).
unsafe fn take_value(
    set: impl FnOnce(&[u8], &[u8]) -> lanefs::Result<()>,
    key: *const c_char,
    value: *const c_void,
    len: size_t,
) -> Result<c_int, c_int> {
    if len > 65_536 {
        return Err(libc::E2BIG);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let value = if len == 0 { &[] } else { std::slice::from_raw_parts(value.cast(), len) };
        set(name(key)?, value).map(|()| 0).map_err(errno)
    }
}

/// Returns what sets an attribute of an inode as the program may.
fn set_xattr(volume: &Volume, ino: Ino, flags: c_int) -> impl FnOnce(&[u8], &[u8]) -> lanefs::Result<()> {
    move |key, value| volume.node_setxattr_and_mode(cred(volume), ino, key, value, flags)
}

/// Gives the caller the names of extended attributes.
///
/// # Safety
/// That of listxattr(2).
unsafe fn give_names(
    names: lanefs::Result<Vec<Vec<u8>>>,
    to: *mut c_char,
    space: size_t,
) -> Result<ssize_t, c_int> {
    let names = names.map_err(errno)?;
    let all: Vec<u8> = names.into_iter().flat_map(|n| [n, vec![0]].concat()).collect();
    // SAFETY: the caller's promise.
    unsafe { give(&all, to.cast(), space) }
}

/// Has `remove` remove an extended attribute.
///
/// # Safety
/// That of removexattr(2).
unsafe fn drop_one(
    remove: impl FnOnce(&[u8]) -> lanefs::Result<()>,
    key: *const c_char,
) -> Result<c_int, c_int> {
    // SAFETY: the caller's promise.
    let key = unsafe { name(key)? };
    remove(key).map(|()| 0).map_err(errno)
}

/// Returns the credential that the program has now.
fn cred(volume: &Volume) -> &'static Cred {
    volume::view(volume).cred()
}

hook! {
    /// Sets the mode.
    fn chmod(path: *const c_char, to: mode_t) -> c_int {
        change_at(&CALL, (HERE, path), 0, &mode(to), |_, p| real(p, to))
    }
    /// Sets the mode of an open file.
    fn fchmod(fd: c_int, to: mode_t) -> c_int {
        if !is_ours(fd) { return real(fd, to); }
        by_fd(&CALL, fd, |v, d| change(v, d.file.ino(), &mode(to)))
    }
    /// Sets the mode beginning at a directory.
    fn fchmodat(dirfd: c_int, path: *const c_char, to: mode_t, flags: c_int) -> c_int {
        change_at(&CALL, (dirfd, path), flags, &mode(to), |d, p| real(d, p, to, flags))
    }
    /// Sets the mode of a link, which has none.
    fn lchmod(path: *const c_char, to: mode_t) -> c_int {
        change_at(&CALL, (HERE, path), KEEP, &mode(to), |_, p| real(p, to))
    }
    /// Sets the owner.
    fn chown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
        change_at(&CALL, (HERE, path), 0, &owner(uid, gid), |_, p| real(p, uid, gid))
    }
    /// Sets the owner of a link.
    fn lchown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
        change_at(&CALL, (HERE, path), KEEP, &owner(uid, gid), |_, p| real(p, uid, gid))
    }
    /// Sets the owner of an open file.
    fn fchown(fd: c_int, uid: uid_t, gid: gid_t) -> c_int {
        if !is_ours(fd) { return real(fd, uid, gid); }
        by_fd(&CALL, fd, |v, d| change(v, d.file.ino(), &owner(uid, gid)))
    }
    /// Sets the owner beginning at a directory.
    fn fchownat(dirfd: c_int, path: *const c_char, uid: uid_t, gid: gid_t, flags: c_int) -> c_int {
        change_at(&CALL, (dirfd, path), flags, &owner(uid, gid), |d, p| real(d, p, uid, gid, flags))
    }
    /// Sets times.
    fn utimensat(dirfd: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int {
        if path.is_null() && is_ours(dirfd) {
            return futimens(dirfd, times);
        }
        touch(&CALL, (dirfd, path), flags, to_times(times), |d, p| real(d, p, times, flags))
    }
    /// Sets times of an open file.
    fn futimens(fd: c_int, times: *const timespec) -> c_int {
        if !is_ours(fd) { return real(fd, times); }
        by_fd(&CALL, fd, |v, d| change(v, d.file.ino(), &to_times(times)?))
    }
    /// Sets times of an open file.
    fn futimes(fd: c_int, times: *const timeval) -> c_int {
        if !is_ours(fd) { return real(fd, times); }
        by_fd(&CALL, fd, |v, d| change(v, d.file.ino(), &to_old_times(times)?))
    }
    /// Sets times.
    fn utimes(path: *const c_char, times: *const timeval) -> c_int {
        touch(&CALL, (HERE, path), 0, to_old_times(times), |_, p| real(p, times))
    }
    /// Sets times of a link.
    fn lutimes(path: *const c_char, times: *const timeval) -> c_int {
        touch(&CALL, (HERE, path), KEEP, to_old_times(times), |_, p| real(p, times))
    }
    /// Sets times beginning at a directory.
    fn futimesat(dirfd: c_int, path: *const c_char, times: *const timeval) -> c_int {
        touch(&CALL, (dirfd, path), 0, to_old_times(times), |d, p| real(d, p, times))
    }
    /// Sets times, to the second.
    fn utime(path: *const c_char, times: *const utimbuf) -> c_int {
        let set = match times.as_ref() {
            None => to_times(std::ptr::null()),
            Some(t) => {
                let at = |s| Some(SetTime::At(times::number(s, 0)));
                Ok(SetAttr { atime: at(t.actime), mtime: at(t.modtime), ..SetAttr::default() })
            }
        };
        touch(&CALL, (HERE, path), 0, set, |_, p| real(p, times))
    }
    /// Sets the size.
    fn truncate(path: *const c_char, len: off_t) -> c_int {
        if let Some(fd) = itself::descriptor((HERE, path), 0) {
            return by_any_fd(&CALL, fd, |v, d| {
                let size = Some(u64::try_from(len).map_err(|_| libc::EINVAL)?);
                change(v, d.file.ino(), &SetAttr { size, ..SetAttr::default() })?;
                crate::shared::changed(d.file.ino(), 0..0).map(|()| 0)
            });
        }
        by_path(
            &CALL,
            (HERE, path),
            Last::Follow,
            |fs, p| {
                let size = Some(u64::try_from(len).map_err(|_| libc::EINVAL)?);
                let done = fs.set_attr(p, true, &SetAttr { size, ..SetAttr::default() }).map_err(errno)?;
                match crate::shared::changed(done.ino, 0..0) {
                    // It was done, and the file is gone since.
                    Err(libc::ENOENT | libc::ESTALE) => Ok(0),
                    result => result.map(|()| 0),
                }
            },
            |_, p| real(p, len),
        )
    }
    /// Sets the size.
    fn truncate64(path: *const c_char, len: off_t) -> c_int {
        truncate(path, len)
    }
    /// Reads an extended attribute.
    fn getxattr(path: *const c_char, key: *const c_char, to: *mut c_void, space: size_t) -> ssize_t {
        by_path(&CALL, (HERE, path), Last::Follow,
            |fs, p| give_value(|key| fs.getxattr(p, key), key, to, space), |_, p| real(p, key, to, space))
    }
    /// Reads an extended attribute of a link.
    fn lgetxattr(path: *const c_char, key: *const c_char, to: *mut c_void, space: size_t) -> ssize_t {
        by_path(&CALL, (HERE, path), Last::Keep,
            |fs, p| give_value(|key| fs.lgetxattr(p, key), key, to, space), |_, p| real(p, key, to, space))
    }
    /// Reads an extended attribute of an open file.
    fn fgetxattr(fd: c_int, key: *const c_char, to: *mut c_void, space: size_t) -> ssize_t {
        if !is_ours(fd) { return real(fd, key, to, space); }
        by_fd(&CALL, fd, |v, d| {
            give_value(|key| v.node_getxattr(cred(v), d.file.ino(), key), key, to, space)
        })
    }
    /// Sets an extended attribute.
    fn setxattr(path: *const c_char, key: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int {
        by_inode(&CALL, (HERE, path), Last::Follow,
            |v, ino| take_value(set_xattr(v, ino, flags), key, value, len),
            |_, p| real(p, key, value, len, flags))
    }
    /// Sets an extended attribute of a link.
    fn lsetxattr(path: *const c_char, key: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int {
        by_inode(&CALL, (HERE, path), Last::Keep,
            |v, ino| take_value(set_xattr(v, ino, flags), key, value, len),
            |_, p| real(p, key, value, len, flags))
    }
    /// Sets an extended attribute of an open file.
    fn fsetxattr(fd: c_int, key: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int {
        if !is_ours(fd) { return real(fd, key, value, len, flags); }
        by_fd(&CALL, fd, |v, d| {
            take_value(set_xattr(v, d.file.ino(), flags), key, value, len)
        })
    }
    /// Lists extended attributes.
    fn listxattr(path: *const c_char, to: *mut c_char, space: size_t) -> ssize_t {
        by_path(&CALL, (HERE, path), Last::Follow,
            |fs, p| give_names(fs.listxattr(p), to, space), |_, p| real(p, to, space))
    }
    /// Lists extended attributes of a link.
    fn llistxattr(path: *const c_char, to: *mut c_char, space: size_t) -> ssize_t {
        by_path(&CALL, (HERE, path), Last::Keep,
            |fs, p| give_names(fs.llistxattr(p), to, space), |_, p| real(p, to, space))
    }
    /// Lists extended attributes of an open file.
    fn flistxattr(fd: c_int, to: *mut c_char, space: size_t) -> ssize_t {
        if !is_ours(fd) { return real(fd, to, space); }
        by_fd(&CALL, fd, |v, d| give_names(v.node_listxattr(cred(v), d.file.ino()), to, space))
    }
    /// Removes an extended attribute.
    fn removexattr(path: *const c_char, key: *const c_char) -> c_int {
        by_inode(&CALL, (HERE, path), Last::Follow,
            |v, ino| drop_one(|key| v.node_removexattr(cred(v), ino, key), key), |_, p| real(p, key))
    }
    /// Removes an extended attribute of a link.
    fn lremovexattr(path: *const c_char, key: *const c_char) -> c_int {
        by_inode(&CALL, (HERE, path), Last::Keep,
            |v, ino| drop_one(|key| v.node_removexattr(cred(v), ino, key), key), |_, p| real(p, key))
    }
    /// Removes an extended attribute of an open file.
    fn fremovexattr(fd: c_int, key: *const c_char) -> c_int {
        if !is_ours(fd) { return real(fd, key); }
        by_fd(&CALL, fd, |v, d| drop_one(|key| v.node_removexattr(cred(v), d.file.ino(), key), key))
    }
}
