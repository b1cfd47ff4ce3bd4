//! Ctrl-C and its relatives: a flag, so that everything made is removed on the way out.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether somebody asked for the end. Stored by the signal handler, loaded by who runs cells.
/// Relaxed: it carries nothing but itself.
static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: libc::c_int) {
    STOP.store(true, Ordering::Relaxed);
}

/// Makes SIGINT, SIGTERM and SIGHUP set the flag instead of ending the process.
pub fn install() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: an all-zero sigaction is a valid one (empty mask, no flags); the handler only
        // stores to an atomic, which is async-signal-safe; the pointers are to live locals or null.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            // Ignored from outside (nohup): stays ignored.
            if libc::sigaction(signal, std::ptr::null(), &mut action) != 0
                || action.sa_sigaction == libc::SIG_IGN
            {
                continue;
            }
            action = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// Returns whether somebody asked for the end.
pub fn requested() -> bool {
    STOP.load(Ordering::Relaxed)
}
