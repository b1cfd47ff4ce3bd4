//! Threads that run no handler of the program's.
//!
//! A thread begins with the signal mask of the one that starts it. The library's threads belong to
//! a program that may have handlers, which expect to run on its own threads: on a stack as large as
//! they need, and not between two of the library's locks.

use std::marker::PhantomData;

/// The signals that a fault of the thread itself raises: a program that reports crashes sees these.
const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// All signals but those of faults are blocked in this thread until this is dropped: a thread that
/// is started meanwhile takes none, for as long as it lives.
pub struct SignalsBlocked {
    before: libc::sigset_t,
    /// The mask is this thread's.
    _here: PhantomData<*const ()>,
}

impl SignalsBlocked {
    /// Blocks them in this thread.
    pub fn new() -> SignalsBlocked {
        // SAFETY: sigfillset initialises the set that sigdelset changes and pthread_sigmask reads,
        // which writes the other one; zero is a value for both. With a known first argument it does
        // not fail.
        let before = unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            for fault in FAULTS {
                libc::sigdelset(&raw mut all, fault);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            before
        };
        SignalsBlocked { before, _here: PhantomData }
    }
}

impl Default for SignalsBlocked {
    fn default() -> Self {
        SignalsBlocked::new()
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set is what pthread_sigmask wrote in this thread.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether this thread blocks a signal.
    fn blocks(signal: libc::c_int) -> bool {
        // SAFETY: a set is only written, by pthread_sigmask, and read by sigismember.
        unsafe {
            let mut now = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut now);
            libc::sigismember(&raw const now, signal) == 1
        }
    }

    #[test]
    fn threads_that_are_started_meanwhile_block_all_and_this_one_does_not() {
        let all = [libc::SIGINT, libc::SIGALRM, libc::SIGPROF, libc::SIGUSR1, libc::SIGRTMIN()];
        let before = all.map(blocks);
        let guard = SignalsBlocked::new();
        let thread = std::thread::spawn(move || all.map(blocks));
        drop(guard);
        assert_eq!(all.map(blocks), before);
        assert_eq!(thread.join().unwrap(), [true; 5]);
    }
}
