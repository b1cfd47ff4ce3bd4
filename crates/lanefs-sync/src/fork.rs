//! After a fork: the child has the memory of a volume, but neither its threads nor its rings.
//! Whatever it did there would go to the image behind the parent's back, so the libraries for other
//! languages fail every call of a child, and leave alone what it frees.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this process is the child of one that had a volume open. Relaxed: set by the only thread
/// of a child, before it starts others.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Runs in the child.
extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Has children know that they are some. Called before a volume is opened.
pub fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only stores to an atomic, which is allowed after a fork.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Returns whether this process has only inherited what was open.
#[inline]
pub fn is_child() -> bool {
    FORKED.load(Ordering::Relaxed)
}
