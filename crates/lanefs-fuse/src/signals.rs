//! Signals that end a mount, taken by one thread instead of a handler.

use std::io;

/// The signals that ask a serving process to end: SIGTERM, SIGINT and SIGHUP.
pub struct Signals {
    set: libc::sigset_t,
}

/// Blocks SIGTERM, SIGINT and SIGHUP in this thread and all it starts later, so that
/// [`Signals::wait`] gets them. To be called before any thread is started.
///
/// # Errors
/// Of pthread_sigmask.
pub fn block_signals() -> io::Result<Signals> {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set, sigaddset takes an initialised set and valid signal
    // numbers, and pthread_sigmask reads it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        let set = set.assume_init();
        match libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) {
            0 => Ok(Signals { set }),
            e => Err(io::Error::from_raw_os_error(e)),
        }
    }
}

impl Signals {
    /// Waits for one of the signals and returns its number.
    pub fn wait(&self) -> i32 {
        loop {
            let mut signal = 0;
            // SAFETY: both pointers are to live variables, and the set is initialised.
            if unsafe { libc::sigwait(&self.set, &mut signal) } == 0 {
                debug_assert!([libc::SIGTERM, libc::SIGINT, libc::SIGHUP].contains(&signal));
                return signal;
            }
        }
    }
}
