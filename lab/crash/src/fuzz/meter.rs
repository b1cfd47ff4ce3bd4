//! Counts the heap, so that an image cannot make it grow without bound. Programs that want the
//! count name [`Metered`] as their allocator; without it the counts stay 0.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

/// Below 0 if more that came before the count began was given back than came since.
static LIVE: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

/// More than this is refused, and the process ends: better than a machine without memory.
const MOST: i64 = 1 << 30;

/// The system's allocator with a count. Relaxed: counts order nothing.
pub struct Metered;

fn grown(by: usize) -> bool {
    let now = LIVE.fetch_add(by as i64, Relaxed) + by as i64;
    PEAK.fetch_max(now, Relaxed);
    now <= MOST
}

// SAFETY: every call is passed on to the system's allocator with the arguments it came with, or
// answered by null, which `GlobalAlloc` allows for any request; counting touches atomics only and
// allocates nothing.
unsafe impl GlobalAlloc for Metered {
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        if !grown(l.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's obligations are the same.
        unsafe { System.alloc(l) }
    }
    unsafe fn alloc_zeroed(&self, l: Layout) -> *mut u8 {
        if !grown(l.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(l) }
    }
    unsafe fn dealloc(&self, p: *mut u8, l: Layout) {
        LIVE.fetch_sub(l.size() as i64, Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(p, l) }
    }
}

/// Begins a measurement; what is live now.
pub fn restart() -> i64 {
    let live = LIVE.load(Relaxed);
    PEAK.store(live, Relaxed);
    live
}

/// The most that was live since.
pub fn peak() -> i64 {
    PEAK.load(Relaxed)
}

/// Time on a processor: of the calling thread.
pub fn cpu_time() -> Duration {
    running("/proc/thread-self/schedstat")
}

/// Time on a processor that a schedstat file of /proc tells; none if it cannot be read.
pub fn running(file: &str) -> Duration {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|w| w.parse().ok()).unwrap_or(0))
}
