//! Locks.
//!
//! A lock of F_SETLK is the process's, and no other process has the volume: it is always to be
//! had, and F_GETLK finds nobody. Those of F_OFD_SETLK and flock are of the open file, and the
//! library's.

use crate::attributes::errno;
use crate::table::Description;
use lanefs::locks::Lock;
use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Takes or gives back the lock of the whole file.
pub fn whole(d: &Description, operation: c_int) -> Result<c_int, c_int> {
    let wait = operation & libc::LOCK_NB == 0;
    let kind = match operation & !libc::LOCK_NB {
        libc::LOCK_SH => Lock::Shared,
        libc::LOCK_EX => Lock::Exclusive,
        libc::LOCK_UN => {
            d.file.unlock();
            return Ok(0);
        }
        _ => return Err(libc::EINVAL),
    };
    d.locked.store(true, Ordering::Relaxed);
    d.file.lock(kind, wait).map(|()| 0).map_err(errno)
}

/// Returns the bytes that a lock is about.
fn bytes(d: &Description, whence: c_int, start: i64, len: i64) -> Result<Range<u64>, c_int> {
    let base = match whence {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => d.file.lseek(0, libc::SEEK_CUR).map_err(errno)? as i64,
        libc::SEEK_END => d.file.stat().map_err(errno)?.size as i64,
        _ => return Err(libc::EINVAL),
    };
    let start = base.checked_add(start).ok_or(libc::EOVERFLOW)?;
    let (from, to) = match len {
        0 => (start, None),
        1.. => (start, Some(start.checked_add(len).ok_or(libc::EOVERFLOW)?)),
        _ => (start.checked_add(len).ok_or(libc::EINVAL)?, Some(start)),
    };
    if from < 0 {
        return Err(libc::EINVAL);
    }
    Ok(from as u64..to.map_or(u64::MAX, |t| t as u64))
}

/// Does what fcntl(2) does with locks on ranges.
pub fn range(d: &Description, command: c_int, lock: &mut libc::flock) -> Result<c_int, c_int> {
    let bytes = bytes(d, lock.l_whence.into(), lock.l_start, lock.l_len)?;
    let kind = match c_int::from(lock.l_type) {
        libc::F_RDLCK => Some(Lock::Shared),
        libc::F_WRLCK => Some(Lock::Exclusive),
        libc::F_UNLCK => None,
        _ => return Err(libc::EINVAL),
    };
    if matches!(command, libc::F_OFD_SETLK | libc::F_OFD_SETLKW | libc::F_OFD_GETLK) && lock.l_pid != 0 {
        return Err(libc::EINVAL);
    }
    if !matches!(command, libc::F_GETLK | libc::F_OFD_GETLK) && kind.is_some() {
        d.locked.store(true, Ordering::Relaxed);
    }
    match command {
        libc::F_GETLK => {
            kind.ok_or(libc::EINVAL)?;
            lock.l_type = libc::F_UNLCK as _;
            Ok(0)
        }
        libc::F_OFD_GETLK => {
            match d.file.test_range(bytes, kind.ok_or(libc::EINVAL)?) {
                None => lock.l_type = libc::F_UNLCK as _,
                Some(held) => {
                    let kind = if held.kind == Lock::Shared { libc::F_RDLCK } else { libc::F_WRLCK };
                    lock.l_type = kind as _;
                    lock.l_whence = libc::SEEK_SET as _;
                    lock.l_start = held.range.start as i64;
                    let ends = held.range.end != u64::MAX;
                    lock.l_len = if ends { (held.range.end - held.range.start) as i64 } else { 0 };
                    lock.l_pid = -1;
                }
            }
            Ok(0)
        }
        libc::F_SETLK | libc::F_SETLKW => {
            let access = d.flags.load(Ordering::Relaxed) & libc::O_ACCMODE;
            match kind {
                Some(Lock::Shared) if access == libc::O_WRONLY => Err(libc::EBADF),
                Some(Lock::Exclusive) if access == libc::O_RDONLY => Err(libc::EBADF),
                _ => Ok(0),
            }
        }
        _ => {
            match kind {
                Some(kind) => {
                    d.file.lock_range(bytes, kind, command == libc::F_OFD_SETLKW).map_err(errno)?;
                }
                None => d.file.unlock_range(bytes),
            }
            Ok(0)
        }
    }
}

/// Does what lockf(3) does.
pub fn from_position(d: &Description, command: c_int, len: i64) -> Result<c_int, c_int> {
    bytes(d, libc::SEEK_CUR, 0, len)?;
    let access = d.flags.load(Ordering::Relaxed) & libc::O_ACCMODE;
    match command {
        libc::F_LOCK | libc::F_TLOCK if access == libc::O_RDONLY => Err(libc::EBADF),
        libc::F_LOCK | libc::F_TLOCK => {
            d.locked.store(true, Ordering::Relaxed);
            Ok(0)
        }
        libc::F_ULOCK | libc::F_TEST => Ok(0),
        _ => Err(libc::EINVAL),
    }
}
