//! The progress of a change of the devices, of which there is one at a time.

use crate::report::ChangeReport;
use lanefs_sync::lock::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU64, Ordering};

/// The change that is under way, if any. Relaxed: figures for who looks, which order nothing.
#[derive(Default)]
pub(crate) struct Changes {
    /// Held by who changes the devices or their sizes, though an evacuation lets go of the
    /// maintenance lock. Nobody waits for it.
    one: Mutex<()>,
    done: AtomicU64,
    /// Bytes that it copies or moves; 0 if nothing is under way, or it is not known yet.
    total: AtomicU64,
}

/// A change that is under way.
pub(crate) struct UnderWay<'a> {
    _one: MutexGuard<'a, ()>,
    changes: &'a Changes,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        debug_assert!(self.changes.one.is_locked(), "the figures are of another change");
        self.changes.note(0, 0);
    }
}

impl Changes {
    /// Begins one. `None` if another is under way.
    pub fn begin(&self) -> Option<UnderWay<'_>> {
        Some(UnderWay { _one: self.one.try_lock()?, changes: self })
    }

    /// Notes how many bytes of how many are copied or moved.
    pub fn note(&self, done: u64, total: u64) {
        debug_assert!(done <= total, "{done} of {total} bytes");
        self.done.store(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// Returns how far it is.
    pub fn report(&self) -> Option<ChangeReport> {
        let total = self.total.load(Ordering::Relaxed);
        let done = self.done.load(Ordering::Relaxed).min(total);
        (total > 0).then_some(ChangeReport { done_bytes: done, total_bytes: total })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_under_way_and_its_figures_end_with_it() {
        let changes = Changes::default();
        let one = changes.begin();
        assert!(one.is_some() && changes.begin().is_none() && changes.report().is_none());
        changes.note(3, 7);
        assert_eq!(changes.report(), Some(ChangeReport { done_bytes: 3, total_bytes: 7 }));
        drop(one);
        assert!(changes.report().is_none() && changes.begin().is_some());
    }
}
