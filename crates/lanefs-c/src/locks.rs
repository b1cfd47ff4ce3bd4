//! Advisory locks between the handles of a volume, all of which are in this process.

use crate::answer::{Failure, Outcome, status};
use crate::args::{Out, offset, opened};
use crate::lanefs_file;
use lanefs::locks::Lock;
use libc::c_int;
use std::ops::Range;

/// A lock that others may share.
pub const LANEFS_LOCK_SHARED: c_int = 1;
/// A lock that nobody else may have.
pub const LANEFS_LOCK_EXCLUSIVE: c_int = 2;
/// No lock: what the handle has is given back.
pub const LANEFS_UNLOCK: c_int = 0;

/// A lock on a range of bytes.
#[repr(C)]
pub struct lanefs_range_lock {
    /// `LANEFS_LOCK_SHARED` or `LANEFS_LOCK_EXCLUSIVE`; `LANEFS_UNLOCK`: there is none.
    pub kind: c_int,
    /// Always 0.
    pub reserved: c_int,
    /// The first byte.
    pub start: u64,
    /// How many; 0: up to the end, wherever that comes to be.
    pub length: u64,
}

/// Returns a kind of lock; `None` to give it back.
fn kind(kind: c_int) -> Outcome<Option<Lock>> {
    match kind {
        LANEFS_UNLOCK => Ok(None),
        LANEFS_LOCK_SHARED => Ok(Some(Lock::Shared)),
        LANEFS_LOCK_EXCLUSIVE => Ok(Some(Lock::Exclusive)),
        _ => Err(Failure::Argument(libc::EINVAL, "no kind of lock")),
    }
}

/// Returns a range as the library has it.
fn range(start: i64, length: i64) -> Outcome<Range<u64>> {
    let (start, length) = (offset(start)?, offset(length)?);
    Ok(start..if length == 0 { u64::MAX } else { start.saturating_add(length) })
}

/// Takes a lock on the whole file, as flock(2), or gives it back (`LANEFS_UNLOCK`). With `wait` 0
/// EWOULDBLOCK where another handle has it.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_flock(file: *const lanefs_file, kind: c_int, wait: c_int) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (file, kind) = (unsafe { opened(file) }?, self::kind(kind)?);
        match kind {
            None => file.file.unlock(),
            Some(kind) => file.file.lock(kind, wait != 0)?,
        }
        Ok(())
    })
}

/// Takes a lock on `length` bytes from `start` (0: up to the end), as fcntl(2) with `F_OFD_SETLK`,
/// or gives it back (`LANEFS_UNLOCK`). The lock is the handle's, not the process's. With `wait` 0
/// EAGAIN where another handle has part of it; EDEADLK: the wait would be in a circle.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_lock_range(
    file: *const lanefs_file,
    kind: c_int,
    start: i64,
    length: i64,
    wait: c_int,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (file, kind, range) = (unsafe { opened(file) }?, self::kind(kind)?, range(start, length)?);
        match kind {
            None => file.file.unlock_range(range),
            Some(kind) => file.file.lock_range(range, kind, wait != 0)?,
        }
        Ok(())
    })
}

/// Tells the first lock of another handle that keeps this one from having that lock, as fcntl(2)
/// with `F_OFD_GETLK`; its kind is `LANEFS_UNLOCK` if there is none.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_test_range(
    file: *const lanefs_file,
    kind: c_int,
    start: i64,
    length: i64,
    out: *mut lanefs_range_lock,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (out, file) = unsafe { (Out::new(out)?, opened(file)?) };
        let wanted = self::kind(kind)?;
        let wanted = wanted.ok_or(Failure::Argument(libc::EINVAL, "no kind of lock"))?;
        let found = file.file.test_range(range(start, length)?, wanted);
        out.put(match found {
            None => lanefs_range_lock { kind: LANEFS_UNLOCK, reserved: 0, start: 0, length: 0 },
            Some(l) => lanefs_range_lock {
                kind: if l.kind == Lock::Shared { LANEFS_LOCK_SHARED } else { LANEFS_LOCK_EXCLUSIVE },
                reserved: 0,
                start: l.range.start,
                length: if l.range.end == u64::MAX { 0 } else { l.range.end - l.range.start },
            },
        });
        Ok(())
    })
}
