//! The allocator of the program: the system's, until a check asks for one that counts or fails.

use lanefs_lab_crash::fuzz::meter::Metered;
use lanefs_lab_crash::oom::faults::Failing;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Which allocator answers. All of them pass on to the system's, so memory of one may go back to
/// another.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Counts what is live, and refuses to let it grow without bound.
    Metered = 1,
    /// Fails where it is told to.
    Failing = 2,
}

/// The [`Kind`], or 0. Relaxed: set once, before the check starts threads.
static KIND: AtomicU8 = AtomicU8::new(0);

/// Lets another allocator answer from now on.
pub fn choose(kind: Kind) {
    KIND.store(kind as u8, Relaxed);
}

struct Chosen;

#[global_allocator]
static ALLOCATOR: Chosen = Chosen;

/// Calls a method of the allocator that was chosen.
macro_rules! chosen {
    ($method:ident($($argument:expr),*)) => {
        match KIND.load(Relaxed) {
            // SAFETY: the caller's obligations are the same, and memory of all three is the
            // system's.
            1 => unsafe { Metered.$method($($argument),*) },
            // SAFETY: as above.
            2 => unsafe { Failing.$method($($argument),*) },
            // SAFETY: as above.
            _ => unsafe { System.$method($($argument),*) },
        }
    };
}

// SAFETY: every call is passed on, with the arguments it came with, to one of three allocators that
// all pass it on to the system's or answer null; choosing touches one atomic and allocates nothing.
unsafe impl GlobalAlloc for Chosen {
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        chosen!(alloc(l))
    }
    unsafe fn alloc_zeroed(&self, l: Layout) -> *mut u8 {
        chosen!(alloc_zeroed(l))
    }
    unsafe fn realloc(&self, p: *mut u8, l: Layout, size: usize) -> *mut u8 {
        chosen!(realloc(p, l, size))
    }
    unsafe fn dealloc(&self, p: *mut u8, l: Layout) {
        chosen!(dealloc(p, l))
    }
}
