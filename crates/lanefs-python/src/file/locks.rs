//! Advisory locks, in the words of the module `fcntl`.
//!
//! A wait in the main thread asks again and again, so that Ctrl-C ends it; a wait in another
//! thread, which no signal reaches, is one call of the library, and refused (EDEADLK) where it
//! would be in a circle.

use crate::answer::{Failure, Outcome, outside};
use lanefs::locks::Lock;
use pyo3::prelude::*;
use std::ops::Range;
use std::time::Duration;

/// Returns the kind of lock that is asked for, `None` to give it back, and whether to wait.
fn asked(operation: i32) -> Outcome<(Option<Lock>, bool)> {
    let kind = match operation & !libc::LOCK_NB {
        libc::LOCK_SH => Some(Lock::Shared),
        libc::LOCK_EX => Some(Lock::Exclusive),
        libc::LOCK_UN => None,
        _ => return Err(Failure::invalid("LOCK_SH, LOCK_EX or LOCK_UN, with or without LOCK_NB")),
    };
    Ok((kind, operation & libc::LOCK_NB == 0))
}

/// Returns whether signals are answered by this thread.
fn is_main_thread() -> bool {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::gettid() == libc::getpid() }
}

/// Takes a lock; `take` does it, waiting or not.
fn take(py: Python<'_>, wait: bool, take: impl Fn(bool) -> lanefs::Result<()> + Sync) -> Outcome<()> {
    let patient = wait && !is_main_thread();
    let mut pause = Duration::from_micros(50);
    loop {
        match outside(py, || take(patient)) {
            Err(Failure::Library(e)) if wait && e.errno() == libc::EAGAIN => {}
            done => return done,
        }
        py.check_signals()?;
        py.detach(|| std::thread::sleep(pause));
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Locks the whole file, or unlocks it.
pub(super) fn flock(py: Python<'_>, file: &lanefs::File, operation: i32) -> Outcome<()> {
    match asked(operation)? {
        (None, _) => outside(py, || {
            file.unlock();
            Ok(())
        }),
        (Some(kind), wait) => take(py, wait, |wait| file.lock(kind, wait)),
    }
}

/// Locks a range of bytes, given by length, start and whence, or unlocks it.
pub(super) fn lockf(py: Python<'_>, file: &lanefs::File, cmd: i32, range: (i64, i64, i32)) -> Outcome<()> {
    let (kind, wait) = asked(cmd)?;
    let range = absolute(py, file, range)?;
    match kind {
        None => outside(py, || {
            file.unlock_range(range);
            Ok(())
        }),
        Some(kind) => take(py, wait, |wait| file.lock_range(range.clone(), kind, wait)),
    }
}

/// Returns a range as the library has it. A length below zero means the bytes before.
fn absolute(py: Python<'_>, file: &lanefs::File, range: (i64, i64, i32)) -> Outcome<Range<u64>> {
    let (len, start, whence) = range;
    let base = match whence {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => outside(py, || file.lseek(0, libc::SEEK_CUR))?,
        libc::SEEK_END => outside(py, || Ok(file.stat()?.size))?,
        _ => return Err(Failure::invalid("SEEK_SET, SEEK_CUR or SEEK_END")),
    };
    let add = |to: u64, by: i64| {
        to.checked_add_signed(by).ok_or_else(|| Failure::invalid("the range begins before the file"))
    };
    let at = add(base, start)?;
    Ok(match len {
        0 => at..u64::MAX,
        len if len < 0 => add(at, len)?..at,
        len => at..add(at, len)?,
    })
}
