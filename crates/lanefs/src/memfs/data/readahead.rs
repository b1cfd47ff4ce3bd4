//! A guess at how far a stream of reads goes on.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The largest number of pages read in one go.
pub(super) const MAX_WINDOW: u32 = 256;
const FIRST_WINDOW: u32 = 4;

const _: () = assert!(FIRST_WINDOW < MAX_WINDOW);

/// One open file's guess at what is read next. Written only on a miss, by who reads.
///
/// Relaxed throughout: hints; two threads on one handle may only guess badly.
#[derive(Debug, Default)]
pub struct ReadAhead {
    next: AtomicU64,
    window: AtomicU32,
}

impl ReadAhead {
    /// Makes the guess of a file of which nothing was read yet: a read that starts at the file's
    /// start counts as the start of a stream.
    pub const fn new() -> ReadAhead {
        ReadAhead { next: AtomicU64::new(0), window: AtomicU32::new(0) }
    }

    /// Notes a miss at `page`, with `wanted` pages of the request still to come; returns how many
    /// pages to load. A miss where the last window ended (or little behind it: pages that were
    /// cached already) doubles the window.
    pub(super) fn on_miss(&self, page: u64, wanted: u64) -> u64 {
        debug_assert!(wanted > 0, "the page that is missing is wanted");
        let (next, window) = (self.next.load(Ordering::Relaxed), self.window.load(Ordering::Relaxed));
        debug_assert!(window <= MAX_WINDOW);
        let streaming = page >= next && page - next <= window as u64;
        let window = if streaming { (window * 2).clamp(FIRST_WINDOW, MAX_WINDOW) } else { 0 };
        self.window.store(window, Ordering::Relaxed);
        let pages = wanted.clamp(1, MAX_WINDOW as u64).max(window as u64);
        self.next.store(page + pages, Ordering::Relaxed);
        debug_assert!((1..=u64::from(MAX_WINDOW)).contains(&pages));
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_widen_and_jumps_do_not() {
        let ra = ReadAhead::new();
        assert_eq!(ra.on_miss(0, 1), 4);
        assert_eq!(ra.on_miss(4, 1), 8);
        assert_eq!(ra.on_miss(12, 1), 16);
        assert_eq!(ra.on_miss(1000, 1), 1, "a jump");
        assert_eq!(ra.on_miss(5, 3), 3, "a jump back");
        assert_eq!(ra.on_miss(8, 1), 4, "a new stream");
        for _ in 0..10 {
            let at = ra.next.load(Ordering::Relaxed);
            ra.on_miss(at, 1);
        }
        assert_eq!(ra.window.load(Ordering::Relaxed), MAX_WINDOW);
    }
}
