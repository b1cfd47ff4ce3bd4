//! Attributes, by path and of open files; extended ones by path.

use crate::answer::{Failure, Outcome, count, status};
use crate::args::{Out, bytes, bytes_mut, give, handle, offset, text};
use crate::{lanefs_file, lanefs_volume};
use lanefs::{SetAttr, SetTime, Stat, times};
use libc::{c_char, c_int, c_void};

/// `lanefs_utimens`: the time of the call.
pub const LANEFS_TIME_NOW: i64 = 0x3fff_ffff;
/// `lanefs_utimens`: leave it as it is.
pub const LANEFS_TIME_OMIT: i64 = 0x3fff_fffe;
/// Calls on paths: a symbolic link at the end is not followed.
pub const LANEFS_NOFOLLOW: u32 = 1;
/// `lanefs_chown`: leave the user or the group as it is.
pub const LANEFS_ID_OMIT: u32 = u32::MAX;

/// A time: seconds since 1970 and nanoseconds.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lanefs_time {
    /// Seconds; negative before 1970.
    pub sec: i64,
    /// Nanoseconds, counted forward; or `LANEFS_TIME_NOW`, `LANEFS_TIME_OMIT`.
    pub nsec: i64,
}

/// The attributes of a file.
#[repr(C)]
pub struct lanefs_stat {
    /// Inode number.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes in use.
    pub blocks: u64,
    /// Device number of a device, else 0.
    pub rdev: u64,
    /// Kind and permission bits, as `st_mode`.
    pub mode: u32,
    /// The number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Distinguishes successive uses of one inode number.
    pub generation: u32,
    /// Always 0.
    pub reserved: u32,
    /// Last access, as `relatime` has it.
    pub atime: lanefs_time,
    /// Last change of the content.
    pub mtime: lanefs_time,
    /// Last change of the inode.
    pub ctime: lanefs_time,
    /// When it was made.
    pub btime: lanefs_time,
}

/// Returns a time as C has it.
#[inline]
fn time(number: i64) -> lanefs_time {
    let (sec, nsec) = times::parts(number);
    lanefs_time { sec, nsec: nsec.into() }
}

/// Tells attributes as C has them. They are copied once, from where the library has put them: a
/// call is not much longer than moving them again would take.
#[inline]
fn tell(out: Out<lanefs_stat>, found: &lanefs::Result<Stat>) -> Outcome<()> {
    let s = found.as_ref().map_err(|e| Failure::from(e.clone()))?;
    let (atime, mtime) = (time(s.atime), time(s.mtime));
    let (ctime, btime) = (time(s.ctime), time(s.btime));
    let place = out.place();
    // SAFETY: not NULL, and the promise given to `Out::new`.
    unsafe {
        (&raw mut (*place).ino).write(s.ino.0);
        (&raw mut (*place).size).write(s.size);
        (&raw mut (*place).blocks).write(s.blocks);
        (&raw mut (*place).rdev).write(s.rdev);
        (&raw mut (*place).mode).write(s.mode);
        (&raw mut (*place).nlink).write(s.nlink);
        (&raw mut (*place).uid).write(s.uid);
        (&raw mut (*place).gid).write(s.gid);
        (&raw mut (*place).generation).write(s.generation);
        (&raw mut (*place).reserved).write(0);
        (&raw mut (*place).atime).write(atime);
        (&raw mut (*place).mtime).write(mtime);
        (&raw mut (*place).ctime).write(ctime);
        (&raw mut (*place).btime).write(btime);
    }
    Ok(())
}

/// Returns whether symbolic links at the end are followed.
fn follows(flags: u32) -> Outcome<bool> {
    match flags {
        0 => Ok(true),
        LANEFS_NOFOLLOW => Ok(false),
        _ => Err(Failure::Argument(libc::EINVAL, "the only flag is LANEFS_NOFOLLOW")),
    }
}

/// Returns two times as the library has them; NULL: the time of the call.
unsafe fn set_times(times: *const lanefs_time) -> Outcome<(Option<SetTime>, Option<SetTime>)> {
    let one = |t: lanefs_time| match t.nsec {
        LANEFS_TIME_NOW => Ok(Some(SetTime::Now)),
        LANEFS_TIME_OMIT => Ok(None),
        n => match u32::try_from(n) {
            Ok(n) if n < 1_000_000_000 => Ok(Some(SetTime::At(times::number(t.sec, n)))),
            _ => Err(Failure::Argument(libc::EINVAL, "nanoseconds that are none")),
        },
    };
    if times.is_null() {
        return Ok((Some(SetTime::Now), Some(SetTime::Now)));
    }
    // SAFETY: not NULL; the caller's array has two times.
    let (atime, mtime) = unsafe { (*times, *times.add(1)) };
    Ok((one(atime)?, one(mtime)?))
}

/// Returns an owner to be set.
fn owner(id: u32) -> Option<u32> {
    (id != LANEFS_ID_OMIT).then_some(id)
}

/// Tells the attributes of what a path leads to, as stat(2).
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_stat(
    volume: *const lanefs_volume,
    path: *const c_char,
    out: *mut lanefs_stat,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (out, volume, path) = unsafe { (Out::new(out)?, handle(volume)?, text(path)?) };
        tell(out, &volume.fs.stat(path))
    })
}

/// Tells the attributes of what a path names, as lstat(2): of a symbolic link its own.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_lstat(
    volume: *const lanefs_volume,
    path: *const c_char,
    out: *mut lanefs_stat,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (out, volume, path) = unsafe { (Out::new(out)?, handle(volume)?, text(path)?) };
        tell(out, &volume.fs.lstat(path))
    })
}

/// Tells the attributes of an open file, as fstat(2).
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_fstat(file: *const lanefs_file, out: *mut lanefs_stat) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (out, file) = unsafe { (Out::new(out)?, handle(file)?) };
        tell(out, &file.file.stat())
    })
}

/// Checks permissions, as access(2) with `R_OK`, `W_OK`, `X_OK`, for the user of the handle.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_access(
    volume: *const lanefs_volume,
    path: *const c_char,
    mask: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    status(|| Ok(unsafe { handle(volume) }?.fs.access(unsafe { text(path) }?, mask)?))
}

/// Sets the permission bits, as chmod(2).
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_chmod(volume: *const lanefs_volume, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: the caller's promise.
    status(|| Ok(unsafe { handle(volume) }?.fs.chmod(unsafe { text(path) }?, mode)?))
}

/// Sets the permission bits of an open file, as fchmod(2), as the user of `volume`.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_fchmod(
    volume: *const lanefs_volume,
    file: *const lanefs_file,
    mode: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { set(volume, file, &SetAttr { mode: Some(mode), ..SetAttr::default() }) })
}

/// Sets owner and group, as chown(2); `LANEFS_ID_OMIT` leaves one as it is. `flags`: 0 or
/// `LANEFS_NOFOLLOW`.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_chown(
    volume: *const lanefs_volume,
    path: *const c_char,
    uid: u32,
    gid: u32,
    flags: u32,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path) = unsafe { (handle(volume)?, text(path)?) };
        Ok(volume.fs.chown(path, owner(uid), owner(gid), follows(flags)?)?)
    })
}

/// Sets owner and group of an open file, as fchown(2), as the user of `volume`.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_fchown(
    volume: *const lanefs_volume,
    file: *const lanefs_file,
    uid: u32,
    gid: u32,
) -> c_int {
    let change = SetAttr { uid: owner(uid), gid: owner(gid), ..SetAttr::default() };
    // SAFETY: the caller's promise.
    status(|| unsafe { set(volume, file, &change) })
}

/// Sets the times of the last access and of the last change of the content, in this order, as
/// utimensat(2); `times` NULL: both to the present. `flags`: 0 or `LANEFS_NOFOLLOW`.
///
/// # Safety
/// As `lanefs_format`; `times` is NULL or has two.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_utimens(
    volume: *const lanefs_volume,
    path: *const c_char,
    times: *const lanefs_time,
    flags: u32,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path, (atime, mtime)) = unsafe { (handle(volume)?, text(path)?, set_times(times)?) };
        Ok(volume.fs.set_times(path, atime, mtime, follows(flags)?)?)
    })
}

/// Sets the times of an open file, as futimens(3), as the user of `volume`.
///
/// # Safety
/// As `lanefs_utimens`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_futimens(
    volume: *const lanefs_volume,
    file: *const lanefs_file,
    times: *const lanefs_time,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let (atime, mtime) = set_times(times)?;
            set(volume, file, &SetAttr { atime, mtime, ..SetAttr::default() })
        }
    })
}

/// Changes attributes of an open file as the user of a volume.
unsafe fn set(volume: *const lanefs_volume, file: *const lanefs_file, change: &SetAttr) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let (volume, file) = unsafe { (handle(volume)?, handle(file)?) };
    file.file.set_attr(volume.fs.cred(), change)?;
    Ok(())
}

/// Sets the size of what a path leads to, as truncate(2).
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_truncate(
    volume: *const lanefs_volume,
    path: *const c_char,
    size: i64,
) -> c_int {
    // SAFETY: the caller's promise.
    status(|| Ok(unsafe { handle(volume) }?.fs.truncate(unsafe { text(path) }?, offset(size)?)?))
}

/// Puts the value of an extended attribute into `buf`, as getxattr(2), and returns its length; with
/// a `size` of 0 only that.
///
/// ERANGE: the buffer is too small. ENODATA: no such attribute.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_getxattr(
    volume: *const lanefs_volume,
    path: *const c_char,
    name: *const c_char,
    buf: *mut c_void,
    size: usize,
) -> i64 {
    count(|| {
        // SAFETY: the caller's promise.
        let (volume, path, name, buf) =
            unsafe { (handle(volume)?, text(path)?, text(name)?, bytes_mut(buf, size)?) };
        give(&volume.fs.getxattr(path, name)?, buf)
    })
}

/// Sets an extended attribute, as setxattr(2): `flags` is 0, `XATTR_CREATE` or `XATTR_REPLACE`.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_setxattr(
    volume: *const lanefs_volume,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path, name, value) =
            unsafe { (handle(volume)?, text(path)?, text(name)?, bytes(value, size)?) };
        Ok(volume.fs.setxattr(path, name, value, flags)?)
    })
}

/// Puts the names of extended attributes into `buf`, each with a zero behind it, as listxattr(2),
/// and returns the length of all; with a `size` of 0 only that.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_listxattr(
    volume: *const lanefs_volume,
    path: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> i64 {
    count(|| {
        // SAFETY: the caller's promise.
        let (volume, path, buf) =
            unsafe { (handle(volume)?, text(path)?, bytes_mut(buf.cast::<c_void>(), size)?) };
        let names = volume.fs.listxattr(path)?;
        let all: Vec<u8> = names.into_iter().flat_map(|n| n.into_iter().chain([0])).collect();
        give(&all, buf)
    })
}

/// Removes an extended attribute, as removexattr(2).
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_removexattr(
    volume: *const lanefs_volume,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path, name) = unsafe { (handle(volume)?, text(path)?, text(name)?) };
        Ok(volume.fs.removexattr(path, name)?)
    })
}
