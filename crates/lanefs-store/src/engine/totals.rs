//! The figures of the volume as a whole that each slot has, in memory.

use lanefs_format::slot::Slot;
use lanefs_sync::CachePadded;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// Counts and floors that a checkpoint writes into its slot. They are written by the holder of the
/// maintenance lock alone (a checkpoint's fold, recovery, a repair), which orders them between
/// holders; who else asks wants a figure, and goes by nothing beside it. So all is Relaxed.
pub(crate) struct Totals {
    /// See [`crate::Store::folded_epoch`].
    pub folded: AtomicU64,
    /// The highest timestamp that was folded: a floor for the next mount.
    pub last_ts: AtomicU64,
    /// Chunks from this one on have never been used: a floor for the next mount.
    pub next_chunk: AtomicU64,
    /// Inodes in use.
    pub inodes: CachePadded<AtomicU64>,
    /// Preallocated pages without a block, in the inode blocks on disk.
    pub unwritten: CachePadded<AtomicI64>,
    /// What checkpoints there were since the volume was opened, for reports.
    pub checkpoints: CachePadded<Checkpointed>,
}

/// The checkpoints since the volume was opened.
#[derive(Default)]
pub(crate) struct Checkpointed {
    /// Those that folded.
    pub folding: AtomicU64,
    /// Those that did not: they free segments.
    pub in_place: AtomicU64,
    /// Those that failed.
    pub failed: AtomicU64,
    /// Nanoseconds that all of them took, the longest, and the last.
    pub nanos: AtomicU64,
    pub longest: AtomicU64,
    pub last: AtomicU64,
}

impl Checkpointed {
    /// Counts one that took so long. The caller holds the maintenance lock.
    pub fn count(&self, folds: bool, done: bool, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let which = match (done, folds) {
            (false, _) => &self.failed,
            (true, true) => &self.folding,
            (true, false) => &self.in_place,
        };
        which.fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
        self.longest.fetch_max(nanos, Ordering::Relaxed);
        self.last.store(nanos, Ordering::Relaxed);
        debug_assert!(self.longest.load(Ordering::Relaxed) >= nanos, "a longer one than the longest");
    }
}

impl Totals {
    /// Takes the figures of a slot.
    pub fn new(slot: &Slot) -> Totals {
        Totals {
            folded: AtomicU64::new(slot.folded_epoch),
            last_ts: AtomicU64::new(slot.last_ts),
            next_chunk: AtomicU64::new(slot.next_chunk),
            inodes: CachePadded::new(AtomicU64::new(slot.inodes)),
            unwritten: CachePadded::new(AtomicI64::new(slot.unwritten as i64)),
            checkpoints: CachePadded::default(),
        }
    }

    /// Returns the number of inodes in use. A damaged volume may have counted fewer than it frees.
    pub fn inodes(&self) -> u64 {
        (self.inodes.load(Ordering::Relaxed) as i64).max(0) as u64
    }

    /// Returns the number of preallocated pages without a block. A damaged volume may have counted
    /// fewer than it writes or frees.
    pub fn unwritten(&self) -> u64 {
        // Relaxed: only the holder of the maintenance lock changes it.
        self.unwritten.load(Ordering::Relaxed).max(0) as u64
    }
}
