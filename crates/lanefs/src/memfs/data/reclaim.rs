//! Second-chance eviction of clean pages.
//!
//! The clock's hand is one shared counter that reclaimers advance by runs, so each works on
//! descriptors of its own. A page that is free, dirty, being written back or locked is passed over;
//! one that was used since the hand last came by loses that mark and stays. What is left is locked
//! (never waited for), looked at again, detached and freed. A detached page is read again from the
//! store, which is right because a clean page equals what the store holds.

use super::frame::{DIRTY, IMAGE_LENT, LENT, LOST, NOTED, STABLE, WRITEBACK};
use super::pool::{FrameNo, FramePool};
use super::tree;
use std::sync::atomic::Ordering;

/// Descriptors looked at in one claim of the hand.
const RUN: usize = 64;

impl FramePool {
    /// Evicts until `target` frames are free in the shared stock, as far as clean pages go. For a
    /// background thread, so that writers and readers seldom have to evict by themselves. Returns
    /// the number evicted.
    pub fn reclaim(&self, lane: usize, target: usize) -> usize {
        let mut evicted = 0;
        loop {
            let free = self.free_frames();
            if free >= target.min(self.frames()) {
                return evicted;
            }
            let now = self.evict(lane, (target - free).min(RUN));
            debug_assert!(now <= RUN);
            if now == 0 {
                return evicted;
            }
            evicted += now;
        }
    }

    /// Frees up to about `want` frames for `lane`. Looks at each frame at most twice.
    pub(super) fn evict(&self, lane: usize, want: usize) -> usize {
        let used = self.used_frames();
        if used == 0 {
            return 0;
        }
        // Not so long that a small pool is emptied for one frame.
        debug_assert!(used <= self.frames());
        let run = RUN.min(used.div_ceil(16));
        debug_assert!(run > 0, "the hand stands still");
        let (mut evicted, mut seen) = (0, 0);
        while evicted < want && seen < 2 * used + RUN {
            // Relaxed: the counter only spreads the reclaimers.
            let start = self.hand.fetch_add(run, Ordering::Relaxed);
            for at in start..start.wrapping_add(run) {
                evicted += self.evict_one(lane, (at % used) as FrameNo) as usize;
                if evicted == want {
                    break; // the rest of the run keeps its marks until the hand comes by again
                }
            }
            seen += run;
        }
        debug_assert!(evicted <= want, "{evicted} evicted for {want}");
        evicted
    }

    fn evict_one(&self, lane: usize, frame: FrameNo) -> bool {
        let desc = self.desc(frame);
        let state = desc.state();
        let lost = desc.is_free() && state & LOST != 0;
        if !lost && (desc.is_free() || state & (DIRTY | WRITEBACK) != 0 || desc.take_touch()) {
            return false;
        }
        let Some(guard) = desc.try_lock() else { return false };
        if desc.is_free() && guard.has(LOST) {
            if guard.has(DIRTY | WRITEBACK) {
                self.count_dirty(lane, -1);
            }
            let leaves = i64::from(guard.has(NOTED)) + i64::from(guard.has(WRITEBACK));
            if leaves > 0 {
                self.count_dirty_leaves(lane, -leaves);
            }
            if guard.has(LENT | IMAGE_LENT) {
                self.count_lent(lane, -1);
            }
            let is_image = guard.has(STABLE);
            guard.clear();
            if is_image {
                // Nobody says when its image is gone.
                guard.set(STABLE);
                return false;
            }
        } else if desc.is_free() || guard.has(DIRTY | WRITEBACK) {
            guard.unchanged();
            return false;
        } else {
            debug_assert!(!guard.has(DIRTY | WRITEBACK | LOST), "what only memory has is kept");
            tree::detach(&guard);
        }
        debug_assert!(desc.is_free(), "a free frame has no file (D3)");
        drop(guard);
        self.give(lane, frame);
        true
    }
}
