//! Taking out of memory what a fold has made superfluous: tombstones, and the tables that they were
//! the last to need.

use super::Dir;
use super::entry::{Entry, Head, range_of};
use crossbeam_epoch::Guard;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// The outcome of [`Dir::tidy`].
#[derive(Debug, PartialEq, Eq)]
pub struct Tidied {
    /// Bytes freed.
    pub freed: usize,
    /// Tombstones that stay, since they are not folded, and leaves without names of which that is
    /// not folded.
    pub left: u64,
    /// Leaves that hold something still.
    pub in_use: u64,
    /// Leaves looked at.
    pub looked_at: usize,
}

impl Dir {
    /// Drops tombstones whose epoch has been folded, and the tables that are empty then. Waits for
    /// nobody. Called after a checkpoint,
    /// of directories that lost names: else a directory would keep all names it ever had.
    pub fn tidy(&self, folded: u64, guard: &Guard) -> Tidied {
        let mut t = Tidied { freed: 0, left: 0, in_use: 0, looked_at: 0 };
        let Some(root) = self.root() else { return t };
        let mut at = 0;
        while at < 1 << 63 {
            let (leaf, level) = Dir::leaf_below(root, at);
            let (_, hi) = range_of(at, level);
            let (mut clean, mut dirty, mut names) = (0, 0, 0);
            t.looked_at += 1;
            if let Head::Chain(mut p) = leaf.head() {
                // SAFETY: as in `lookup`.
                while let Some(e) = unsafe { p.as_ref() } {
                    let counter = match e.target().is_none() {
                        true if e.epoch.load(Relaxed) <= folded => &mut clean,
                        true => &mut dirty,
                        false => &mut names,
                    };
                    *counter += 1;
                    p = e.next.load(Acquire);
                }
            }
            let is_left = dirty + names + clean == 0 && leaf.epoch.load(Relaxed) > folded;
            t.left += dirty + u64::from(is_left);
            t.in_use += u64::from(dirty + names > 0);
            if clean > 0 {
                if leaf.lock.try_lock() {
                    let l = self.adopt(leaf, level, guard);
                    // A leaf that was split or taken out meanwhile has no chain.
                    t.freed += l.purge(folded) * Entry::bytes(0);
                } else {
                    t.left += clean;
                }
            }
            self.take_out_ending(root, at, level, folded, guard);
            debug_assert!(hi >= at, "the walk stands still");
            at = hi + 1;
        }
        debug_assert!(t.in_use <= t.looked_at as u64, "{t:?}");
        debug_assert!(t.looked_at >= super::entry::FANOUT, "a leaf of the root was passed over");
        t
    }
}
