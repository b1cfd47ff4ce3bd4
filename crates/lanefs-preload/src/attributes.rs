//! Attributes of files as the C library's structures have them.

use lanefs::{Stat, StatFs, times};
use std::ffi::c_int;

/// The device number that the volume's files have: none that the kernel gives.
const DEVICE: (u32, u32) = (0xfff, 0x1a4e);
/// The type of the file system, as `statfs` gives it: "LANE".
const MAGIC: i64 = 0x4c41_4e45;

/// Fills what stat(2) answers.
pub fn stat(s: &Stat) -> libc::stat {
    // SAFETY: all fields are integers, for which zero is a value.
    let mut out: libc::stat = unsafe { std::mem::zeroed() };
    out.st_dev = libc::makedev(DEVICE.0, DEVICE.1);
    out.st_ino = s.ino.0;
    out.st_nlink = s.nlink.into();
    out.st_mode = s.mode;
    out.st_uid = s.uid;
    out.st_gid = s.gid;
    out.st_rdev = s.rdev;
    out.st_size = s.size as i64;
    out.st_blksize = 4096;
    out.st_blocks = s.blocks as i64;
    let time = |ns| {
        let (seconds, nanos) = times::parts(ns);
        (seconds, i64::from(nanos))
    };
    (out.st_atime, out.st_atime_nsec) = time(s.atime);
    (out.st_mtime, out.st_mtime_nsec) = time(s.mtime);
    (out.st_ctime, out.st_ctime_nsec) = time(s.ctime);
    out
}

/// Fills what statx(2) answers.
pub fn statx(s: &Stat, is_root: bool) -> libc::statx {
    // SAFETY: all fields are integers, for which zero is a value.
    let mut out: libc::statx = unsafe { std::mem::zeroed() };
    out.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    out.stx_blksize = 4096;
    out.stx_nlink = s.nlink;
    out.stx_uid = s.uid;
    out.stx_gid = s.gid;
    out.stx_mode = s.mode as u16;
    out.stx_ino = s.ino.0;
    out.stx_size = s.size;
    out.stx_blocks = s.blocks;
    let time = |ns| {
        let (tv_sec, tv_nsec) = times::parts(ns);
        // SAFETY: all fields are integers, for which zero is a value.
        let mut time: libc::statx_timestamp = unsafe { std::mem::zeroed() };
        (time.tv_sec, time.tv_nsec) = (tv_sec, tv_nsec);
        time
    };
    out.stx_atime = time(s.atime);
    out.stx_btime = time(s.btime);
    out.stx_ctime = time(s.ctime);
    out.stx_mtime = time(s.mtime);
    (out.stx_rdev_major, out.stx_rdev_minor) = (libc::major(s.rdev), libc::minor(s.rdev));
    (out.stx_dev_major, out.stx_dev_minor) = DEVICE;
    out.stx_attributes_mask = libc::STATX_ATTR_MOUNT_ROOT as u64;
    if is_root {
        out.stx_attributes = libc::STATX_ATTR_MOUNT_ROOT as u64;
    }
    out
}

/// Fills what statfs(2) answers.
pub fn statfs(s: &StatFs) -> libc::statfs {
    // SAFETY: all fields are integers, for which zero is a value.
    let mut out: libc::statfs = unsafe { std::mem::zeroed() };
    out.f_type = MAGIC;
    out.f_bsize = 4096;
    out.f_frsize = 4096;
    out.f_blocks = s.blocks;
    out.f_bfree = s.free;
    out.f_bavail = s.available;
    out.f_files = s.files;
    out.f_ffree = s.files_free;
    out.f_namelen = s.name_max.into();
    out
}

/// Fills what statvfs(3) answers.
pub fn statvfs(s: &StatFs) -> libc::statvfs {
    // SAFETY: all fields are integers, for which zero is a value.
    let mut out: libc::statvfs = unsafe { std::mem::zeroed() };
    out.f_bsize = 4096;
    out.f_frsize = 4096;
    out.f_blocks = s.blocks;
    out.f_bfree = s.free;
    out.f_bavail = s.available;
    out.f_files = s.files;
    out.f_ffree = s.files_free;
    out.f_favail = s.files_free;
    out.f_fsid = s.fsid;
    out.f_namemax = s.name_max.into();
    out
}

/// Returns the errno of a call of the library.
pub fn errno(e: lanefs::Error) -> c_int {
    e.errno()
}

/// Writes a value where a caller wants it.
///
/// # Safety
/// `to` is NULL or may be written.
///
/// # Errors
/// EFAULT: NULL.
pub unsafe fn put<T>(to: *mut T, value: T) -> Result<c_int, c_int> {
    if to.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    Ok(0)
}
