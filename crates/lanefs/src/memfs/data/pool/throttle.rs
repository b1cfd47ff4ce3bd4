//! The count of dirty frames, and what a writer does about it.
//!
//! A frame counts as dirty from when it becomes dirty or captured until it is neither. Each lane
//! counts in a line of its own and hands its sum to the shared count a few at a time, so the shared
//! count is read by every writer and written by few; it is off by less than `step` a lane.
//!
//! Above the *background* mark the writeback is woken. Above the *hard* mark a writer drives the
//! writeback itself until the count has fallen or some time has passed: it holds no lock then, and
//! the callback works in the writer's own thread, so there is nobody it could be waiting for in a
//! circle. A writer that finds no frame at all does the same, and gives up with ENOMEM only after a
//! long time without progress.
//!
//! A page that is written back into a hole may need a node of its file's map, of which nobody is
//! promised anything: files of islands in a sea of holes have as many nodes as pages. So where
//! little is free, little may be dirty: a writer writes back until the nodes of what is dirty have
//! space twice. The store charges nodes as the pages come to it. How many nodes that may be is
//! counted by *leaves* of the page trees that have dirty pages: the pages of such a leaf lie in one
//! node of the map. A page that only a lane's stamp knows of, and one of which an image is on its
//! way to the store, counts as a leaf. A file of one page needs no node and counts nothing. Nor do
//! pages count that are dirty without a promise (LENT): they have a node.

use super::{FramePool, Hand};
use crate::error::{Error, Result};
use lanefs_sync::CachePadded;
use lanefs_sync::lock::{Condvar, Mutex};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The requests of the pool to the file system above.
pub trait Writeback: Send + Sync {
    /// Starts writing back soon, in another thread, for many frames are dirty. Called often: must
    /// be cheap when a writeback is under way already.
    fn wake(&self);
    /// Writes back about `want` dirty frames now, in this thread, and returns for how many `finish`
    /// was called. The caller holds no lock of this directory. Must not wait for a file that
    /// another thread has locked for writeback: skips it; 0 means that there was nothing to do.
    fn write_back(&self, want: usize) -> usize;
}

/// Pages that are written back at once for the sake of their maps.
const MANY_BACK: usize = 256;
/// The longest a writer is held back while others make the dirty count fall too slowly.
const SLOWED: Duration = Duration::from_secs(2);
/// The longest that a writer without a frame hopes for progress.
const GIVE_UP: Duration = Duration::from_secs(20);
/// The longest sleep between two looks.
const NAP: Duration = Duration::from_millis(5);

pub(in crate::memfs::data) struct Throttle {
    /// The lanes' sums of dirty frames, as they hand them over. Relaxed: a count that orders
    /// nothing.
    dirty: CachePadded<AtomicI64>,
    /// Likewise, of leaves with dirty pages.
    leaves: CachePadded<AtomicI64>,
    /// Likewise, of frames that are dirty, or under way, without a promise.
    lent: CachePadded<AtomicI64>,
    background: i64,
    hard: i64,
    step: i64,
    callback: OnceLock<Arc<dyn Writeback>>,
    /// Threads that nap. Written by them, Relaxed: a wake that is missed costs one nap.
    waiting: AtomicUsize,
    gate: Mutex<()>,
    freed: Condvar,
}

impl Throttle {
    pub(in crate::memfs::data) fn new(frames: usize) -> Throttle {
        let throttle = Throttle {
            dirty: CachePadded::new(AtomicI64::new(0)),
            leaves: CachePadded::new(AtomicI64::new(0)),
            lent: CachePadded::new(AtomicI64::new(0)),
            background: (frames / 5) as i64,
            hard: (frames * 2 / 5) as i64,
            step: (frames / 2048).clamp(1, 32) as i64,
            callback: OnceLock::new(),
            waiting: AtomicUsize::new(0),
            gate: Mutex::new(()),
            freed: Condvar::new(),
        };
        debug_assert!(throttle.background < throttle.hard, "writers are slowed before anybody writes back");
        debug_assert!(throttle.step > 0 && throttle.hard < frames as i64);
        throttle
    }

    /// Sleeps until frames were cleaned, or a short while. A wake that is missed costs one nap.
    fn nap(&self) {
        lanefs_sync::about_to_wait();
        self.waiting.fetch_add(1, Ordering::Relaxed); // Relaxed: a missed wake is bounded by the nap
        let mut gate = self.gate.lock();
        self.freed.wait_for(&mut gate, NAP);
        drop(gate);
        let waited = self.waiting.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(waited > 0, "more wakings than naps");
    }

    /// Counts in a lane's share, which goes to the sum of all when it is a step.
    fn count(&self, share: &AtomicI64, all: &AtomicI64, by: i64) {
        debug_assert!(!std::ptr::eq(share, all), "a share of itself");
        // Relaxed: a count that orders nothing; every frame's own state is under its lock.
        if (share.fetch_add(by, Ordering::Relaxed) + by).abs() >= self.step {
            all.fetch_add(share.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn write_back(&self, want: usize) -> usize {
        self.callback.get().map_or(0, |c| c.write_back(want))
    }
}

impl FramePool {
    /// Sets who writes dirty pages back. Once; later calls are ignored.
    pub fn set_writeback(&self, callback: Arc<dyn Writeback>) {
        let _ = self.throttle.callback.set(callback);
    }

    /// Returns the number of frames that are dirty or being written back, exactly if nobody is
    /// changing it.
    pub fn dirty_frames(&self) -> usize {
        let lanes: i64 = self.lane_slots().map(|l| l.dirty.load(Ordering::Relaxed)).sum();
        (self.throttle.dirty.load(Ordering::Relaxed) + lanes).max(0) as usize
    }

    /// Returns the numbers of dirty frames above which the background writes back, and writers
    /// wait.
    pub fn dirty_marks(&self) -> (usize, usize) {
        (self.throttle.background as usize, self.throttle.hard as usize)
    }

    /// Returns whether enough frames are dirty that a background thread should write some back.
    pub fn over_background(&self) -> bool {
        // Relaxed: a statistic.
        self.throttle.dirty.load(Ordering::Relaxed) > self.throttle.background
    }

    /// Counts frames that became dirty (`by` > 0) or clean. May be called with page locks held.
    pub(in crate::memfs::data) fn count_dirty(&self, lane: usize, by: i64) {
        debug_assert!(by != 0 && by.unsigned_abs() <= self.frames() as u64, "{by} frames changed");
        let t = &self.throttle;
        let lane = self.lane(lane);
        // Relaxed: a count that orders nothing; every frame's own state is under its lock.
        let mine = lane.dirty.fetch_add(by, Ordering::Relaxed) + by;
        if mine.abs() < t.step {
            return;
        }
        let moved = lane.dirty.swap(0, Ordering::Relaxed);
        let total = t.dirty.fetch_add(moved, Ordering::Relaxed) + moved;
        if moved > 0 && total > t.background {
            if let Some(c) = t.callback.get() {
                c.wake();
            }
        } else if moved < 0 && t.waiting.load(Ordering::Relaxed) > 0 {
            t.freed.notify_all();
        }
    }

    /// Counts leaves that came to have dirty pages (`by` > 0), or have none any more. May be called
    /// with page locks held.
    pub(in crate::memfs::data) fn count_dirty_leaves(&self, lane: usize, by: i64) {
        debug_assert!(by != 0 && by.unsigned_abs() <= self.frames() as u64, "{by} leaves changed");
        let lane = self.lane(lane);
        self.throttle.count(&lane.leaves, &self.throttle.leaves, by);
    }

    /// Counts frames that are dirty, or under way, without a promise (`by` > 0), or are so no more.
    /// May be called with page locks held.
    pub(in crate::memfs::data) fn count_lent(&self, lane: usize, by: i64) {
        debug_assert!(by != 0 && by.unsigned_abs() <= self.frames() as u64, "{by} frames changed");
        let lane = self.lane(lane);
        self.throttle.count(&lane.lent, &self.throttle.lent, by);
    }

    /// Returns how many frames are dirty, or under way, without a promise; exactly if nobody is
    /// changing it.
    #[cfg(test)]
    pub(in crate::memfs::data) fn lent_frames(&self) -> i64 {
        let lanes: i64 = self.lane_slots().map(|l| l.lent.load(Ordering::Relaxed)).sum();
        self.throttle.lent.load(Ordering::Relaxed) + lanes
    }

    /// Returns how many leaves may need a node that there is not yet, about. A page that is dirty
    /// without a promise has a block, and so its node.
    fn leaves_without_nodes(&self) -> i64 {
        // Relaxed: a statistic.
        self.without_nodes(self.throttle.leaves.load(Ordering::Relaxed))
    }

    /// Returns the same, exactly if nobody is changing it.
    pub fn groups_without_nodes(&self) -> u64 {
        let groups = self.without_nodes(self.dirty_leaves()).max(0).cast_unsigned();
        debug_assert!(groups <= self.frames() as u64 * 2, "{groups} leaves have dirty pages");
        groups
    }

    /// Returns how many of so many leaves may need a node.
    fn without_nodes(&self, leaves: i64) -> i64 {
        let t = &self.throttle;
        // Relaxed: statistics.
        match t.lent.load(Ordering::Relaxed) {
            0 => leaves,
            lent => leaves.min(t.dirty.load(Ordering::Relaxed) - lent),
        }
    }

    /// Returns how many leaves have dirty pages, or stand for such; exactly if nobody is changing
    /// it.
    pub(in crate::memfs::data) fn dirty_leaves(&self) -> i64 {
        let lanes: i64 = self.lane_slots().map(|l| l.leaves.load(Ordering::Relaxed)).sum();
        self.throttle.leaves.load(Ordering::Relaxed) + lanes
    }

    /// Holds a writer back while too much is dirty. `has_space`: whether the maps of so many leaves
    /// have space. The caller holds no lock.
    pub(in crate::memfs::data) fn slow_down(&self, has_space: impl Fn(u64) -> bool) {
        // Relaxed: a statistic.
        let dirty = self.throttle.dirty.load(Ordering::Relaxed);
        debug_assert!(self.throttle.step <= self.throttle.hard, "few pages are many");
        if dirty > self.throttle.hard {
            return self.slow_down_slow();
        }
        let leaves = self.leaves_without_nodes();
        if leaves > self.throttle.step && !has_space(leaves as u64) {
            self.make_space_for_maps(has_space);
        }
    }

    /// Writes back until the maps of what is dirty have space in any case, or others do the rest.
    #[cold]
    fn make_space_for_maps(&self, has_space: impl Fn(u64) -> bool) {
        let end = Instant::now() + SLOWED;
        loop {
            let leaves = self.leaves_without_nodes().max(0) as u64;
            debug_assert!(leaves <= self.frames() as u64 * 2, "{leaves} leaves have dirty pages");
            if has_space(leaves) || self.throttle.write_back(MANY_BACK) == 0 || Instant::now() >= end {
                return;
            }
        }
    }

    #[cold]
    fn slow_down_slow(&self) {
        let t = &self.throttle;
        if t.callback.get().is_none() {
            return;
        }
        let end = Instant::now() + SLOWED;
        let want = (t.hard as usize / 8).clamp(1, 256);
        while t.dirty.load(Ordering::Relaxed) > t.hard && Instant::now() < end {
            if t.write_back(want) == 0 {
                t.nap();
            }
        }
    }

    /// Fills `hand` up to `want` frames, writing back and waiting as needed; all or nothing. The
    /// caller holds no lock.
    pub(in crate::memfs::data) fn take(&self, lane: usize, want: usize, hand: &mut Hand) -> Result<()> {
        debug_assert!(want <= self.unit() + 1, "{want} frames at once: others would get none");
        let mut end = None;
        loop {
            self.try_take_many(lane, want.saturating_sub(hand.len()), hand);
            if hand.len() >= want {
                return Ok(());
            }
            // All back: two writers that each hold half of the last frames must not wait for each
            // other.
            self.give_all(lane, hand);
            let end = *end.get_or_insert_with(|| Instant::now() + GIVE_UP);
            if self.throttle.write_back(want.max(32)) == 0 {
                if self.throttle.callback.get().is_none() || Instant::now() >= end {
                    return Err(Error::Posix(libc::ENOMEM));
                }
                self.throttle.nap();
            }
        }
    }
}
