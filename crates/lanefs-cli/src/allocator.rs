//! The allocator of the command, and the pace at which it gives memory back to the system.

use mimalloc::MiMalloc;
use std::alloc::{GlobalAlloc, Layout};

#[global_allocator]
static ALLOCATOR: Lines = Lines;

/// A line of the processor's cache.
const LINE: usize = 64;

/// mimalloc, asked for whole lines without a word of their alignment.
///
/// With an alignment it looks for more than it needs, so that there is an aligned place within: 448
/// bytes for 384, the size of an inode. Its blocks of whole lines lie on lines as they are,
/// though it does not promise so.
struct Lines;

// SAFETY: every call is passed on to mimalloc, which keeps the contract; what it gives for a size
// alone is given back at once if it is not aligned as asked for, and any block of it may be given
// back or grown in the same way.
unsafe impl GlobalAlloc for Lines {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() == LINE && layout.size().is_multiple_of(LINE) {
            // SAFETY: any size may be asked for.
            let p = unsafe { libmimalloc_sys::mi_malloc(layout.size()) }.cast::<u8>();
            if p.addr().is_multiple_of(LINE) {
                return p;
            }
            // SAFETY: it has just given it, and nobody else has it.
            unsafe { libmimalloc_sys::mi_free(p.cast()) };
        }
        // SAFETY: the caller's.
        unsafe { MiMalloc.alloc(layout) }
    }
    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }
    #[inline]
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { MiMalloc.dealloc(p, layout) }
    }
    #[inline]
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's.
        unsafe { MiMalloc.realloc(p, layout, size) }
    }
}

/// mimalloc's `mi_option_purge_delay`, in milliseconds: it has a number only, the same in its
/// versions 2 and 3.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Gives back what the calling thread has freed, and what of others is free as a whole.
pub fn give_back_now() {
    // SAFETY: it may be called at any time.
    unsafe { libmimalloc_sys::mi_collect(true) };
}

/// Has memory given back soon, for who serves for days within a budget: what is free goes back
/// after 10 ms, not after a second. Making 200,000 files with a budget of 128 MiB took at most 105
/// MiB then, else 150, in the same time but for a twentieth.
pub fn give_back_soon() {
    // SAFETY: it stores a number that the allocator reads; it is called before there is a second
    // thread, as it asks.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, 10) };
}
