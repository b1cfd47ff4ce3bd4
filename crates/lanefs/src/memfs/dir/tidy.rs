//! Taking out of memory what a fold has made superfluous: tombstones, and the tables that they were
//! the last to need.

use super::Dir;
use super::entry::{Entry, Head, range_of};
use crossbeam_epoch::Guard;
use std::sync::atomic::Ordering::*;

impl Dir {
    /// Drops tombstones whose epoch has been folded, and the tables that are empty then. Waits for
    /// nobody. Returns the bytes freed, and whether a tombstone stays. Called after a checkpoint,
    /// of directories that lost names: else a directory would keep all names it ever had.
    pub fn tidy(&self, folded: u64, guard: &Guard) -> (usize, bool) {
        let (mut freed, mut left) = (0, false);
        let Some(root) = self.root() else { return (0, false) };
        let mut at = 0;
        while at < 1 << 63 {
            let (leaf, level) = Dir::leaf_below(root, at);
            let (_, hi) = range_of(at, level);
            let (mut clean, mut dirty) = (0, 0);
            if let Head::Chain(mut p) = leaf.head() {
                // SAFETY: as in `lookup`.
                while let Some(e) = unsafe { p.as_ref() } {
                    if e.target().is_none() {
                        *if e.epoch.load(Relaxed) <= folded { &mut clean } else { &mut dirty } += 1;
                    }
                    p = e.next.load(Acquire);
                }
            }
            left |= dirty > 0;
            if clean > 0 {
                if leaf.lock.try_lock() {
                    let l = self.adopt(leaf, level, guard);
                    // A leaf that was split or taken out meanwhile has no chain.
                    freed += l.purge(folded) * Entry::bytes(0);
                } else {
                    left = true;
                }
            }
            self.take_out_ending(root, at, level, folded, guard);
            at = hi + 1;
        }
        (freed, left)
    }
}
