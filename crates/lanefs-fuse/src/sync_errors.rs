//! Errors that an fsync has told, where the kernel opens files without a request.
//!
//! The library tells an error of writing a file back to each handle once. Here no handle is known,
//! only the thread that calls fsync. So once it was told, it is told again to each other thread,
//! until the kernel has forgotten the file: rather twice than never.

use crate::wire::Errno;
use lanefs::Ino;
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The error of a file, and the threads that have heard of it.
struct Told {
    error: Errno,
    threads: HashSet<u32>,
}

/// The files of which an fsync has told an error.
#[derive(Default)]
pub(crate) struct SyncErrors {
    /// Whether there ever was one. Stored under the lock of `told`, loaded by who serves an FSYNC
    /// or a FORGET. SeqCst, as a mount seldom has any: who is called after the answer that told the
    /// first one sees it.
    any: AtomicBool,
    told: Mutex<HashMap<Ino, Told>>,
}

impl SyncErrors {
    /// Takes in the result of an fsync that the thread `pid` called, and returns what it is told.
    /// A thread whose number means nothing (0) is one that has not heard.
    pub(crate) fn tell(&self, ino: Ino, pid: u32, result: Result<(), Errno>) -> Result<(), Errno> {
        if result.is_ok() && !self.any.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut told = self.told.lock().unwrap_or_else(|e| e.into_inner());
        match result {
            Err(error) => {
                debug_assert_ne!(error.0, 0, "an error has a number");
                self.any.store(true, Ordering::SeqCst);
                told.insert(ino, Told { error, threads: HashSet::from([pid]) });
                Err(error)
            }
            Ok(()) => told.get_mut(&ino).map_or(Ok(()), |t| match t.threads.insert(pid) || pid == 0 {
                true => Err(t.error),
                false => Ok(()),
            }),
        }
    }

    /// Forgets a file that the kernel has forgotten: nobody has it open.
    pub(crate) fn forget(&self, ino: Ino) {
        if self.any.load(Ordering::SeqCst) {
            self.told.lock().unwrap_or_else(|e| e.into_inner()).remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_hears_of_an_error_until_the_file_is_forgotten() {
        let errors = SyncErrors::default();
        let (file, other, error) = (Ino(5), Ino(6), Errno(libc::EIO));
        assert_eq!(errors.tell(file, 1, Ok(())), Ok(()));
        assert_eq!(errors.tell(file, 1, Err(error)), Err(error));
        // Who has heard may try again; whoever has not hears.
        assert_eq!(errors.tell(file, 1, Ok(())), Ok(()));
        for _ in 0..2 {
            assert_eq!(errors.tell(file, 0, Ok(())), Err(error));
        }
        assert_eq!(errors.tell(file, 2, Ok(())), Err(error));
        assert_eq!(errors.tell(file, 2, Ok(())), Ok(()));
        assert_eq!(errors.tell(other, 3, Ok(())), Ok(()));
        errors.forget(other);
        // Another error is news to all.
        assert_eq!(errors.tell(file, 3, Err(Errno(libc::ENOSPC))), Err(Errno(libc::ENOSPC)));
        assert_eq!(errors.tell(file, 1, Ok(())), Err(Errno(libc::ENOSPC)));
        errors.forget(file);
        assert_eq!(errors.tell(file, 4, Ok(())), Ok(()));
    }
}
