//! After a fork: the child has the memory of a volume, but neither its threads nor its rings.
//! Whatever it did there would go to the image behind the parent's back, so every call of a child
//! fails, and what it frees is left alone. A child may open volumes of its own.
//!
//! What vfork(2) or a clone(2) of the caller's own makes is not noticed: libc runs nothing there.

use crate::CachePadded;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of a process that is not known to be a child.
const FIRST: u32 = 1;

/// The number of this process: one more in each child. On a line that nothing else is written to:
/// every call reads it. Relaxed: set by the only thread of a child, before it starts others.
static PROCESS: CachePadded<AtomicU32> = CachePadded::new(AtomicU32::new(FIRST));

/// Runs in the child.
extern "C" fn in_child() {
    PROCESS.fetch_add(1, Ordering::Relaxed);
}

/// Has children know that they are some. Called before a volume is opened.
pub fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which is allowed after a fork.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Returns whether this process has only inherited what was open.
#[inline]
pub fn is_child() -> bool {
    !runs(FIRST)
}

/// The process that made something. Children that it forks later are others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process(u32);

impl Process {
    /// Returns this one. Children are told from it from now on.
    pub fn current() -> Process {
        watch();
        let number = PROCESS.load(Ordering::Relaxed);
        debug_assert!(number > 0, "the number of no process");
        Process(number)
    }

    /// Returns its number, which is not 0.
    pub fn number(self) -> u32 {
        self.0
    }

    /// Returns whether this is the one that runs.
    #[inline]
    pub fn is_current(self) -> bool {
        runs(self.0)
    }
}

/// Returns whether the process of this number is the one that runs.
#[inline]
pub fn runs(number: u32) -> bool {
    number == PROCESS.load(Ordering::Relaxed)
}
