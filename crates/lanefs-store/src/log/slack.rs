//! Slack: dead blocks of full segments. Where few segments are free, data is written there, and the
//! cleaner need not move what lives beside it.
//!
//! Definitions. Blocks are *listed* when a checkpoint finds that nothing refers to them: the list
//! has segments, and of each a mask of such blocks. An mlog takes a whole segment off the list when
//! it needs blocks, so that two never write the same line of marks for one call, and gives out the
//! blocks of its mask from the lowest. To *let go* is to empty the list and what the mlogs hold of
//! it. What is listed stays full: nobody opens it.
//!
//! 1. A block is listed when a checkpoint k is durable, by the holder of the maintenance lock, if
//!    it has neither mark, and its segment is full, not paired, and was last touched before P of k
//!    (invariant 3 of `segment`, for a block in place of a segment). So neither the tree of k nor a
//!    batch behind P refers to it, nor does memory.
//! 2. Nothing comes to refer to a listed block but by being given it: references begin with an
//!    allocation, and there is no other in a full segment. So it can be given out at any later
//!    time, also while the next checkpoint is written, and after that one failed.
//! 3. The mask is that of the listing. What dies later is not in it: memory gives a block up, and
//!    the next checkpoint takes its mark of the tree, while the slot in force still names it, or a
//!    batch behind P does. This is the rule that a crash would find broken, also for a block that
//!    died without a sync: the old content is what that crash leads back to.
//! 4. Whoever frees segments, or looks for one to empty, lets go first. It takes each mutex that a
//!    block is given out under, and giving out touches the segment there: so it sees all touches.
//!    One with the number of an earlier checkpoint was made in a reader section before P, whose
//!    live marks are seen; any other keeps the segment from being freed or emptied.
//! 5. Only data goes there. Batches and nodes need segments: recovery follows chains, and what a
//!    checkpoint replaces empties the segments of nodes by itself, if no data lies between. So
//!    segments that were claimed for nodes are not listed, and data leaves free segments alone
//!    while there is slack ([`Slack::kept`]).
//! 6. Slack refuses nobody for good. Who finds no space twice has it give way for the next
//!    [`PATIENCE`] checkpoints ([`Slack::give_way`]): data then takes all segments that it may
//!    otherwise.
//! 7. A list is no longer than twice what is free: each block that is overwritten makes nodes dirty
//!    that the next checkpoint writes to free segments. So is each summary of a segment that is
//!    given out of: an mlog takes no more segments off the list than there is space for summaries.
//!    What takes slack takes none of the segments that are kept back for checkpoints. So it goes on
//!    while half of their fixed number are free, with a list no longer than what is free: where a
//!    segment has a dozen dead blocks the cleaner moves 40 segments to have one more, which nobody
//!    would need. Batches take segments until then too. Below that the cleaner works for whoever
//!    waits (`pressure`), and the segments of nodes, of which checkpoints leave most dead, are the
//!    emptiest. A commit that finds too few has as many made free as are kept back, whatever is
//!    listed: what it makes durable the next checkpoint folds, and that takes no slack.
//!    A list that is shorter than a checkpoint is worth keeps no segment, and the cleaner works as
//!    if there were no slack.

use crate::log::geometry::SegId;
use lanefs_format::usage_node::BITMAP_WORDS;
use lanefs_sync::CachePadded;
use lanefs_sync::lock::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// Segments on a list at the most: their masks take 300 KiB.
pub(crate) const MOST: usize = 4096;
/// Checkpoints for which nothing is kept for slack after somebody found no space.
const PATIENCE: u32 = 16;

/// A segment with the blocks of it that may be given out.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub seg: SegId,
    /// The number of blocks in the mask.
    left: u32,
    /// Bit b of word w is block 64 w + b.
    dead: [u64; BITMAP_WORDS],
}

impl Listed {
    /// Makes one of a mask.
    pub fn new(seg: SegId, dead: [u64; BITMAP_WORDS]) -> Listed {
        Listed { seg, left: dead.iter().map(|w| w.count_ones()).sum(), dead }
    }

    pub fn left(&self) -> u32 {
        self.left
    }

    /// Takes the first blocks that lie one behind the other, `most` of them at the most. Returns
    /// the first and how many there are.
    pub fn take_run(&mut self, most: u32) -> Option<(u32, u32)> {
        debug_assert!(most > 0, "a run of no blocks");
        let w = self.dead.iter().position(|w| *w != 0)?;
        let first = self.dead[w].trailing_zeros();
        let n = (self.dead[w] >> first).trailing_ones().min(most);
        let run = (u64::MAX >> (64 - n)) << first;
        debug_assert_eq!(self.dead[w] & run, run, "blocks of segment {} that are not dead", self.seg);
        self.dead[w] &= !run;
        debug_assert!(self.left >= n, "{n} of {} blocks", self.left);
        self.left -= n;
        Some((w as u32 * 64 + first, n))
    }
}

/// The list: see the head of the file.
#[derive(Default)]
pub(crate) struct Slack {
    /// Free segments that data leaves alone beside those kept back for all; 0 if there is no list
    /// worth a checkpoint. Read by every allocation of data. Written by checkpoints, and by whoever
    /// finds no space. Relaxed, as are the two below: they steer.
    kept: CachePadded<AtomicU32>,
    /// Blocks on the list. Written under its mutex.
    blocks: CachePadded<AtomicU32>,
    /// Checkpoints for which nothing is kept. Written as `kept` is.
    given_way: AtomicU32,
    /// The last checkpoint found few segments free. Written by checkpoints.
    wanted: AtomicBool,
    /// There is a list, or mlogs hold what they took of it. Written and read by the holder of the
    /// maintenance lock.
    is_listed: AtomicBool,
    /// What no mlog has taken, the segments with most blocks last.
    list: CachePadded<Mutex<Vec<Listed>>>,
}

impl Slack {
    /// Returns whether few segments were free at the last checkpoint, and nobody found no space of
    /// late.
    pub fn is_on(&self) -> bool {
        self.wanted.load(Relaxed) && !self.gives_way()
    }

    /// Returns whether somebody found no space of late (6).
    pub fn gives_way(&self) -> bool {
        self.given_way.load(Relaxed) > 0
    }

    /// Returns the number of free segments that data leaves alone because there is slack.
    pub fn kept(&self) -> u32 {
        self.kept.load(Relaxed)
    }

    /// Returns whether slack is wanted: a tenth of the segments is free, or hardly more than what
    /// is kept back twice. A list goes on being wanted until a little more than that is free.
    pub fn is_wanted(&self, free: u32, usable: u32, kept_back: u32) -> bool {
        let few = (usable / 10).max(2 * kept_back) + 1;
        let wanted = free <= few + if self.wanted.load(Relaxed) { few / 4 } else { 0 };
        self.wanted.store(wanted, Relaxed);
        wanted
    }

    /// Returns the number of blocks on the list, without what the mlogs hold.
    pub fn blocks(&self) -> u64 {
        u64::from(self.blocks.load(Relaxed))
    }

    /// Replaces the list, which was let go of, by that of a durable checkpoint. Of a list that is
    /// `worth` a checkpoint data leaves `kept` free segments alone.
    pub fn renew(&self, mut new: Vec<Listed>, worth: u64, kept: u32) {
        debug_assert!(new.len() <= MOST && new.iter().all(|l| l.left > 0), "a list of {}", new.len());
        new.reverse();
        let blocks: u64 = new.iter().map(|l| u64::from(l.left)).sum();
        let waits = self.given_way.load(Relaxed);
        self.given_way.store(waits.saturating_sub(1), Relaxed);
        if new.is_empty() {
            return;
        }
        self.is_listed.store(true, Relaxed);
        let mut list = self.list.lock();
        debug_assert!(list.is_empty(), "a list takes the place of one that is in use (4)");
        let keeps = blocks >= worth.max(1) && waits == 0;
        self.kept.store(if keeps { kept } else { 0 }, Relaxed);
        self.blocks.store(blocks as u32, Relaxed);
        *list = new;
    }

    /// Takes the segment with most blocks.
    pub fn take(&self) -> Option<Listed> {
        if self.blocks.load(Relaxed) == 0 {
            return None; // A list that is made now is found by the next call.
        }
        let mut list = self.list.lock();
        let taken = list.pop();
        self.blocks.fetch_sub(taken.as_ref().map_or(0, Listed::left), Relaxed);
        debug_assert!(!list.is_empty() || self.blocks.load(Relaxed) == 0, "blocks of no segment");
        taken
    }

    /// Empties the list. What the mlogs hold is let go of by [`crate::log::Log::let_go_of_slack`]:
    /// returns whether they may hold anything. Where few checkpoints make a list nothing is written
    /// that allocations read.
    pub fn clear(&self) -> bool {
        // The holder of the maintenance lock alone sets it and takes it back.
        if !self.is_listed.load(Relaxed) {
            return false;
        }
        self.is_listed.store(false, Relaxed);
        let mut list = self.list.lock();
        self.blocks.store(0, Relaxed);
        self.kept.store(0, Relaxed);
        list.clear();
        true
    }

    /// Notes that somebody has found no space, slack or not (6).
    pub fn give_way(&self) {
        self.given_way.store(PATIENCE, Relaxed);
        self.kept.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(blocks: &[u32]) -> [u64; BITMAP_WORDS] {
        let mut dead = [0; BITMAP_WORDS];
        blocks.iter().for_each(|b| dead[*b as usize / 64] |= 1 << (b % 64));
        dead
    }

    #[test]
    fn blocks_are_given_out_once_in_runs() {
        let all: Vec<u32> = (60..70).chain([3, 5, 6, 7, 511]).collect();
        let mut l = Listed::new(9, mask(&all));
        assert_eq!(l.left(), 15);
        let runs: Vec<_> = std::iter::from_fn(|| l.take_run(2)).collect();
        assert_eq!(runs[..4], [(3, 1), (5, 2), (7, 1), (60, 2)]);
        let mut given: Vec<u32> = runs.iter().flat_map(|r| r.0..r.0 + r.1).collect();
        given.sort_unstable();
        let mut all = all;
        all.sort_unstable();
        assert_eq!((given, l.left()), (all, 0));
        // A whole word is one run.
        let mut l = Listed::new(9, [u64::MAX; BITMAP_WORDS]);
        assert_eq!((l.take_run(100), l.take_run(7)), (Some((0, 64)), Some((64, 7))));
    }

    #[test]
    fn what_has_most_comes_first_and_a_short_list_keeps_nothing() {
        let s = Slack::default();
        let list = || vec![Listed::new(4, mask(&[1, 2, 3])), Listed::new(7, mask(&[8]))];
        s.renew(list(), 5, 2);
        assert_eq!((s.kept(), s.blocks()), (0, 4));
        s.clear();
        s.renew(list(), 4, 2);
        assert_eq!((s.kept(), s.blocks()), (2, 4));
        assert_eq!(s.take().map(|l| (l.seg, l.left())), Some((4, 3)));
        assert_eq!((s.blocks(), s.take().map(|l| l.seg)), (1, Some(7)));
        assert!(s.take().is_none() && s.blocks() == 0);
        // Who found no space is waited for.
        s.give_way();
        for _ in 0..PATIENCE {
            assert_eq!(s.kept(), 0);
            s.clear();
            s.renew(list(), 1, 2);
        }
        assert_eq!(s.kept(), 0);
        s.clear();
        s.renew(list(), 1, 2);
        assert_eq!((s.kept(), s.blocks()), (2, 4));
    }
}
