//! Space: how many blocks users may fill, and the promises made of them.
//!
//! Of the usable segments some are kept back, so that heads, batches, checkpoints and the cleaner
//! always have where to write ([`segments_held_back`]). The rest, in blocks, less what is live,
//! less what is promised, is one strided counter. A promise that succeeded can be written: pages,
//! new inodes, names and large extended attributes have one. What checkpoints need beyond (inodes
//! written anew, maps) is charged by force. Not so the summaries, of which every segment that is
//! filled will have some: their space is left out of the total from the start, or a volume promised
//! to the last block could not be written back (SEMANTICS D7).
//!
//! The atomics here are Relaxed: the counter orders what has to be, and the others are figures that
//! no memory is handed over with.
//!
//! A page that is written over gives its old block back. Where little is free ([`Space::lends`]) it
//! is promised nothing: what it takes for a while comes out of what is kept back, a round of the
//! writeback at a time.
//!
//! A page that is cut or blanked in part is written anew and gives its old block back: it asks for
//! nothing, unless many do at once. So it is promised a block where nothing is free too, up to an
//! eighth of what is kept back: whoever wants to free space on a full volume can
//! ([`Space::reserve_rewrite`]).
//!
//! The last of a volume is left to root ([`Space::left_to_root`]), who has to be able to log in and
//! to look when users have filled it: to others nothing is promised that would leave less.
//!
//! What is cut off files, punched out of them or removed counts as free when a checkpoint has made
//! that durable ([`Space::free_later`]), no sooner: a crash would bring it back, and with it there
//! would be more than the volume holds, if somebody had been promised its space and had synced. Who
//! finds nothing free has a checkpoint made first. A page that is written over, or whose space
//! stays the file's, takes as much as it gives back, and the two are counted together.
//!
//! Names and small inodes share blocks, so removing some of them may free bytes and no block:
//! whoever removes a tenth of the files of a full volume could make none. What folds took out of
//! buckets is therefore remembered ([`Space::note_taken_out`]), and where nothing is free a block
//! is promised for twice its bytes of that, down to a sixteenth of what is kept back
//! ([`Space::reserve_taken_out`]).

use lanefs_format::map_node::FANOUT;
use lanefs_format::summary::SUMMARY_SPAN;
use lanefs_format::superblock::MAX_MLOGS;
use lanefs_sync::ablation::{Switch, Technique};
use lanefs_sync::{CachePadded, StridedCounter};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// Returns seconds since 1970.
pub(crate) fn seconds() -> u32 {
    (lanefs_sync::coarse_realtime_ns() / 1_000_000_000) as u32
}

/// Parts of a block in which inodes that share blocks are counted before they are written.
pub const PARTS_OF_BLOCK: u64 = 16;
/// Bytes that such a part has.
const PART: u64 = lanefs_format::BLOCK_SIZE as u64 / PARTS_OF_BLOCK;
/// An inode with more than so many bytes of its own, a target or attributes, is counted as if it
/// had a block to itself.
const SHARES_BELOW: usize = 512;

/// Returns the parts of a block that are promised for a new inode, in a volume in which inodes
/// share blocks (`packed`) or not: `bytes` are those of its target and its first attributes.
///
/// An empty file takes 86 bytes of a pack and 32 of a leaf of the inode table. A part is twice of
/// that: a lane hands out the numbers of a chunk one after the other, at least 32 of them before it
/// goes on to another, and the packs of a chunk are half full at the least.
pub(crate) fn parts_of_inode(packed: bool, is_dir: bool, bytes: usize) -> u64 {
    if !packed || is_dir || bytes > SHARES_BELOW {
        PARTS_OF_BLOCK
    } else {
        1 + (2 * bytes as u64).div_ceil(PART)
    }
}

/// Segments of which a twentieth is kept back, and a fiftieth of what there is beyond: with the
/// usual segments of 2 MiB 8 GiB. What heads, batches and checkpoints need does not grow with the
/// volume, and slack serves writers where the cleaner would have to move much.
const KEPT_OF: u32 = 4096;

/// Returns the number of segments of `usable` that users cannot fill: 5 % of small volumes, less of
/// large ones, at least the heads of every mlog and twelve for the cleaner and summaries, but on
/// tiny volumes never more than two fifths.
pub(crate) fn segments_held_back(usable: u32, mlogs: usize) -> u32 {
    debug_assert!((1..=MAX_MLOGS as usize).contains(&mlogs), "{mlogs} mlogs");
    let least = 6 * mlogs as u32 + 12;
    let share = usable.min(KEPT_OF) / 20 + usable.saturating_sub(KEPT_OF) / 50;
    let held_back = share.max(least.min(usable * 2 / 5));
    debug_assert!(held_back <= usable, "{held_back} of {usable} segments");
    held_back
}

/// Less than this part of a volume is little.
const SCARCE: u64 = 4;

/// This part of a volume is left to root.
const LEFT: u64 = 512;
/// The blocks that are left to root at the most: 64 MiB.
const LEFT_MOST: u64 = (64 << 20) / lanefs_format::BLOCK_SIZE as u64;
/// While more than this part of a volume is free beside that, nobody counts what nodes of maps may
/// take of it.
const COUNTED: u64 = 16;

/// For whom space is promised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claimant {
    /// An ordinary user, who leaves the last of a volume to root.
    User,
    /// Root; also whoever only hands over what was accepted, or gives more back than is taken.
    Root,
}

/// Usable segments for each mlog, if there are several.
pub(crate) const SEGMENTS_PER_MLOG: u32 = 40;

/// Returns how many mlogs a volume of this size can do with.
pub(crate) fn fitting_mlogs(wanted: usize, usable: u32) -> usize {
    let fitting = wanted.clamp(1, MAX_MLOGS as usize).min((usable / SEGMENTS_PER_MLOG).max(1) as usize);
    debug_assert!((1..=MAX_MLOGS as usize).contains(&fitting), "{fitting} mlogs");
    fitting
}

/// Returns the number of blocks that users can fill of so many usable segments: what is not kept
/// back, less the summaries, of which there are as many copies as of the tree.
fn for_users(usable: u32, segment_blocks: u32, copies: u32, mlogs: usize) -> u64 {
    let size = u64::from(segment_blocks);
    let summaries = u64::from(copies) * size.div_ceil(SUMMARY_SPAN as u64);
    let blocks = u64::from(usable - segments_held_back(usable, mlogs)) * size * size / (size + summaries);
    debug_assert!(blocks <= u64::from(usable) * size, "{blocks} blocks in {usable} segments of {size}");
    blocks
}

fn beyond(usable: u32, segment_blocks: u32, mlogs: usize) -> i64 {
    i64::from(segments_held_back(usable, mlogs)) * i64::from(segment_blocks) / 8
}

/// Dirty nodes of the maps of inodes with more than some of them.
#[derive(Default)]
struct DirtyNodes {
    dirty: AtomicI64,
    /// Of these, what the last checkpoint could not write: their inode's NEW is not folded.
    left: AtomicI64,
}

/// Blocks that an inode gave back and that do not count as free yet: those of changes that no
/// checkpoint has captured, and of those that one has. Of an inode that is changed behind a
/// checkpoint nothing is looked at by it.
#[derive(Default, Debug)]
pub(crate) struct FreedLater {
    new: u64,
    captured: u64,
}

impl FreedLater {
    /// Adds blocks that were given back now.
    pub fn add(&mut self, blocks: u64) {
        debug_assert!(i64::try_from(blocks).is_ok(), "{blocks} blocks are more than are counted");
        self.new += blocks;
    }

    /// Takes note that a checkpoint has captured the inode.
    pub fn seal(&mut self) {
        let before = self.captured;
        self.captured += std::mem::take(&mut self.new);
        debug_assert!(self.captured >= before, "more blocks than there are");
    }

    /// Returns those that the last checkpoint made durable.
    pub fn checkpoint_done(&mut self) -> u64 {
        std::mem::take(&mut self.captured)
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.new + self.captured == 0
    }

    /// Returns all of them, of an inode that ends.
    pub fn take(&mut self) -> u64 {
        let all = std::mem::take(self);
        debug_assert!(self.is_empty(), "they would be given back once more");
        all.new + all.captured
    }
}

/// Counts groups of pages in memory, of which each lies in one node of a map.
pub type Groups = dyn Fn() -> u64 + Send + Sync;

/// The blocks that users may fill: see the head of the file.
pub(crate) struct Space {
    /// Blocks users can fill when nothing is stored. Written when the volume grows, under the
    /// maintenance lock.
    total: AtomicU64,
    free: StridedCounter,
    /// The blocks that [`Space::reserve_rewrite`] goes below nothing at the most. Written when the
    /// volume grows, under the maintenance lock.
    beyond: AtomicI64,
    /// Bytes of names that folds took out of blocks which others share, less those that they put in
    /// and twice those of the blocks that were promised for them. Written by folds, and where
    /// nothing is free.
    taken_out: CachePadded<AtomicI64>,
    /// On a line of its own: written by who makes nodes dirty, several at a time, and by
    /// checkpoints; read by who writes many pages.
    nodes: CachePadded<DirtyNodes>,
    /// Returns how many groups of pages that were promised need a node each that is not there yet.
    /// Set once, when the volume is opened.
    groups: OnceLock<Box<Groups>>,
    segment_blocks: u32,
    copies: u32,
    mlogs: usize,
    lanes: usize,
    /// Blocks promised and not yet written, for reporting. Written by those who act for the lane.
    /// A promise may be given back for another lane: only the sum means anything.
    reserved: Box<[CachePadded<AtomicI64>]>,
    /// Blocks that were given back and did not count as free at once, since the volume was opened;
    /// the last figure is that of checkpoints. Written by those who act for the lane.
    given_back: Box<[CachePadded<AtomicU64>]>,
    /// Those of them that count as free by now. Written by checkpoints.
    freed: CachePadded<AtomicU64>,
}

impl Space {
    /// Makes the space of a volume where nothing is stored. `copies`: how often the tree lies on
    /// the devices, the summaries with it.
    pub fn new(usable: u32, segment_blocks: u32, copies: u32, mlogs: usize, lanes: usize) -> Space {
        let total = for_users(usable, segment_blocks, copies, mlogs);
        debug_assert!(i64::try_from(total).is_ok(), "{total} blocks are more than are counted");
        let lanes = if Switch::of(Technique::StridedCounter).off() { 1 } else { lanes.max(1) };
        Space {
            total: AtomicU64::new(total),
            free: StridedCounter::new(total as i64, lanes, 1024),
            beyond: AtomicI64::new(beyond(usable, segment_blocks, mlogs)),
            taken_out: CachePadded::new(AtomicI64::new(0)),
            nodes: CachePadded::default(),
            groups: OnceLock::new(),
            segment_blocks,
            copies,
            mlogs,
            lanes,
            reserved: (0..lanes).map(|_| CachePadded::new(AtomicI64::new(0))).collect(),
            given_back: (0..=lanes).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
            freed: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// Returns the number of blocks users can fill when nothing is stored.
    pub fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }

    /// Returns whether the maps of so many groups of pages that are not written back yet have
    /// space, if each needs a node for itself and one above: in what is free, and at the least in
    /// what is there in any case ([`beyond`]).
    pub fn has_space_for_maps(&self, groups: u64) -> bool {
        debug_assert!(groups <= i64::MAX as u64 / 2, "{groups} groups of pages in memory");
        let nodes = groups.saturating_mul(self.copies()).cast_signed();
        nodes <= self.beyond.load(Relaxed) || nodes <= self.free.estimate() / 2
    }

    /// Returns how often the tree lies on the devices.
    pub fn copies(&self) -> u64 {
        debug_assert!((1..=2).contains(&self.copies), "{} copies of the tree", self.copies);
        self.copies.into()
    }

    /// Adds the space of a volume that has so many usable segments now, more than before.
    pub fn grow(&self, usable: u32) {
        let total = for_users(usable, self.segment_blocks, self.copies, self.mlogs);
        let before = self.total.swap(total, Relaxed);
        self.beyond.store(beyond(usable, self.segment_blocks, self.mlogs), Relaxed);
        debug_assert!(total >= before, "a larger volume holds less: {total} blocks, {before} before");
        self.credit(0, total.saturating_sub(before));
    }

    /// Takes away the space that a volume with so many usable segments lacks, fewer than before, if
    /// users can do without it. [`Space::grow`] gives it back.
    pub fn shrink(&self, usable: u32) -> bool {
        let total = for_users(usable, self.segment_blocks, self.copies, self.mlogs);
        let taken = self.total().saturating_sub(total);
        debug_assert!(i64::try_from(taken).is_ok(), "{taken} blocks are more than are counted");
        let has = self.free.try_sub(0, taken);
        if has {
            self.total.store(total, Relaxed);
            self.beyond.store(beyond(usable, self.segment_blocks, self.mlogs), Relaxed);
        }
        has
    }

    /// Returns the fewest of `most` usable segments that what is used and promised now fits into.
    pub fn least_usable(&self, most: u32) -> u32 {
        let used = (self.total().cast_signed() - self.free_exact()).max(0).cast_unsigned();
        let holds = |usable| for_users(usable, self.segment_blocks, self.copies, self.mlogs) >= used;
        let (mut least, mut enough) = (0, most);
        while least < enough {
            let half = least.midpoint(enough);
            if holds(half) { enough = half } else { least = half + 1 }
        }
        debug_assert!(least <= most, "{least} of {most} segments");
        least
    }

    /// Returns the blocks that only root is promised.
    pub fn left_to_root(&self) -> u64 {
        let left = (self.total() / LEFT).min(LEFT_MOST);
        debug_assert!(left <= self.total(), "more is left to root than there is");
        left
    }

    /// Has the groups of pages counted that were promised and lie apart.
    pub fn count_groups(&self, groups: Box<Groups>) {
        let first = self.groups.set(groups).is_ok();
        debug_assert!(first, "a volume is opened once");
    }

    /// Returns whether so many blocks are free for a claimant. By one load, unless few are.
    ///
    /// What users were promised will take nodes of maps, too, which are charged when they are
    /// written: they are not to come out of what is left to root.
    pub fn has_for(&self, who: Claimant, blocks: u64) -> bool {
        let Ok(blocks) = i64::try_from(blocks) else { return false };
        if who == Claimant::Root {
            return self.free_about(blocks.cast_unsigned()) >= blocks;
        }
        let left = self.left_to_root().cast_signed();
        debug_assert!(blocks >= 0 && left >= 0, "{blocks} blocks, beside {left}");
        let plenty = (self.total() / COUNTED).cast_signed();
        if self.free.estimate() >= blocks.saturating_add(left + plenty) {
            return true;
        }
        let promised = self.reserved().max(0).cast_unsigned();
        let groups = self.groups.get().map_or(0, |groups| groups()).min(promised);
        let nodes = (promised / FANOUT as u64).max(groups) * self.copies() + self.blocks_of_dirty_nodes();
        self.free.exact() >= blocks.saturating_add(left + nodes.cast_signed())
    }

    /// Promises so many blocks; false, and nothing promised, if there are fewer.
    pub fn reserve(&self, lane: usize, blocks: u64, who: Claimant) -> bool {
        // Several at once may each find the last that is not left to root, and go that much
        // further.
        if who == Claimant::User && !self.has_for(who, blocks) {
            return false;
        }
        let lane = lane % self.lanes;
        let ok = self.free.try_sub(lane, blocks);
        if ok {
            // Relaxed: a lane-local figure for reports.
            self.reserved[lane].fetch_add(blocks as i64, Relaxed);
        }
        ok
    }

    /// Promises a block for a page that is stored and will be written over: see the head of this
    /// file.
    pub fn reserve_rewrite(&self, lane: usize) -> bool {
        if self.reserve(lane, 1, Claimant::Root) {
            return true;
        }
        // Several at once may each find the last one left, and go that much further.
        let left = self.free.exact() > -self.beyond.load(Relaxed);
        if left {
            let lane = lane % self.lanes;
            self.free.sub_forced(lane, 1);
            self.reserved[lane].fetch_add(1, Relaxed);
        }
        left
    }

    /// Counts nodes of a map that became dirty, or were written, if they are fewer than none.
    pub fn count_dirty_nodes(&self, more: i64) {
        let before = self.nodes.dirty.fetch_add(more, Relaxed);
        debug_assert!(before + more >= 0, "{before} nodes were dirty, and {more} more are");
    }

    /// Returns whether there are such nodes.
    pub fn has_dirty_nodes(&self) -> bool {
        self.nodes.dirty.load(Relaxed) > 0
    }

    /// Notes how many of them a checkpoint could not write.
    pub fn leave_dirty_nodes(&self, left: u64) {
        debug_assert!(i64::try_from(left).is_ok(), "{left} nodes in memory");
        if self.nodes.left.load(Relaxed) != left.cast_signed() {
            self.nodes.left.store(left.cast_signed(), Relaxed);
        }
    }

    /// Returns how many blocks the dirty nodes of large maps take when a checkpoint writes them,
    /// without those that the last one could not write.
    pub fn blocks_of_dirty_nodes(&self) -> u64 {
        let nodes = self.nodes.dirty.load(Relaxed) - self.nodes.left.load(Relaxed);
        nodes.max(0).cast_unsigned() * self.copies()
    }

    /// Returns whether little is free, so that a page which has a block of its own, and gives that
    /// back when it is written, is better written over without a promise: what is free is left to
    /// what is new. By one load.
    #[inline]
    pub fn lends(&self) -> bool {
        self.free.estimate() < (self.total() / SCARCE).cast_signed()
    }

    /// Takes note that a fold took so many bytes more of names out of buckets than it put in.
    pub fn note_taken_out(&self, bytes: i64) {
        self.taken_out.update(Relaxed, Relaxed, |now| (now + bytes).max(0));
    }

    /// Promises a block, or so many of them for the copies of one, where nothing is free: see the
    /// head of this file.
    #[cold]
    #[inline(never)]
    pub fn reserve_taken_out(&self, lane: usize, blocks: u64) -> bool {
        let each = 2 * lanefs_format::BLOCK_SIZE as i64;
        if self.taken_out.load(Relaxed) < each || self.free.exact() <= -self.beyond.load(Relaxed) / 2 {
            return false;
        }
        // Several at once may go that much further, as in `reserve_rewrite`.
        self.taken_out.fetch_sub(each, Relaxed);
        let lane = lane % self.lanes;
        self.free.sub_forced(lane, blocks);
        self.reserved[lane].fetch_add(blocks as i64, Relaxed);
        true
    }

    /// Takes back a promise of so many blocks.
    pub fn unreserve(&self, lane: usize, blocks: u64) {
        let lane = lane % self.lanes;
        self.reserved[lane].fetch_sub(blocks as i64, Relaxed);
        self.free.add(lane, blocks);
    }

    /// Accounts a transaction that brought `promised` blocks of promises, allocated `used` and
    /// freed `freed`.
    pub fn account_write(&self, lane: usize, promised: u64, used: u64, freed: u64) {
        let lane = lane % self.lanes;
        if promised > 0 {
            self.reserved[lane].fetch_sub(promised as i64, Relaxed);
        }
        let back = promised + freed;
        if back > used {
            self.free.add(lane, back - used);
        } else if used > back {
            self.free.sub_forced(lane, used - back);
        }
    }

    /// Keeps the promises that a transaction brought: it failed, and will be submitted again.
    pub fn keep_promise(&self, lane: usize, blocks: u64) {
        if blocks > 0 {
            let lane = lane % self.lanes;
            self.reserved[lane].fetch_add(blocks as i64, Relaxed);
            self.free.sub_forced(lane, blocks);
        }
    }

    /// Takes blocks, whether there are so many or not.
    pub fn charge(&self, lane: usize, blocks: u64) {
        if blocks > 0 {
            self.free.sub_forced(lane % self.lanes, blocks);
        }
    }

    /// Gives blocks back.
    pub fn credit(&self, lane: usize, blocks: u64) {
        if blocks > 0 {
            self.free.add(lane % self.lanes, blocks);
        }
    }

    /// Takes note of blocks that were given back and count as free when that is durable: see the
    /// head of this file. The inode that gave them back keeps the same number until then
    /// ([`FreedLater`]). No lane: a checkpoint gives them back.
    pub fn free_later(&self, lane: Option<usize>, blocks: u64) {
        if blocks > 0 {
            let at = lane.map_or(self.lanes, |lane| lane % self.lanes);
            self.given_back[at].fetch_add(blocks, Relaxed);
        }
    }

    /// Returns how many blocks were given back and do not count as free yet.
    pub fn later(&self) -> u64 {
        let freed = self.freed.load(Relaxed);
        self.given_back.iter().map(|l| l.load(Relaxed)).sum::<u64>().saturating_sub(freed)
    }

    /// Counts as free what was given back: it is durable.
    pub fn freed_for_good(&self, blocks: u64) {
        debug_assert!(blocks <= self.later(), "{blocks} blocks were not given back");
        if blocks > 0 {
            self.freed.fetch_add(blocks, Relaxed);
            self.credit(0, blocks);
        }
    }

    /// Returns how many blocks are neither used nor promised; fewer than none if some were charged
    /// that were not there.
    pub fn free_exact(&self) -> i64 {
        self.free.exact()
    }

    /// Returns how many blocks are free: exactly if they may be fewer than `few`, else so many at
    /// the least, and lanes keep what they have at hand.
    pub fn free_about(&self, few: u64) -> i64 {
        debug_assert!(i64::try_from(few).is_ok(), "{few} blocks are few");
        match self.free.estimate() {
            least if least >= few.cast_signed() => least,
            _ => self.free.exact(),
        }
    }

    /// Returns how many blocks are promised and not yet written, about.
    pub fn reserved(&self) -> i64 {
        self.reserved.iter().map(|r| r.load(Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::Claimant::{Root, User};
    use super::*;

    #[test]
    fn promises_are_kept_and_given_back() {
        let s = Space::new(100, 16, 1, 1, 4);
        let total = s.total();
        assert!(total < 1600 && total > 1200);
        assert!(s.reserve(0, total, Root) && !s.reserve(1, 1, Root));
        s.account_write(0, total, 10, 4);
        assert_eq!((s.free_exact(), s.reserved()), (total as i64 - 6, 0));
        s.charge(9, 6);
        s.credit(2, 12);
        assert_eq!(s.free_exact(), total as i64);
        assert!(s.reserve(3, 5, Root));
        s.account_write(3, 5, 4, 0);
        s.keep_promise(3, 5);
        assert_eq!((s.free_exact(), s.reserved()), (total as i64 - 9, 5));
        s.unreserve(3, 5);
        assert_eq!((s.free_exact(), s.reserved()), (total as i64 - 4, 0));
    }

    #[test]
    fn what_a_crash_would_bring_back_is_promised_to_nobody() {
        let s = Space::new(100, 16, 1, 1, 4);
        let total = s.total();
        assert!(s.reserve(0, total, Root));
        s.account_write(0, total, total, 0);
        s.free_later(Some(1), 7);
        s.free_later(Some(6), 5);
        s.free_later(None, 3);
        assert!(!s.reserve(2, 1, Root) && s.later() == 15, "nothing of it is durable");
        s.freed_for_good(12);
        assert!(s.reserve(2, 12, Root) && !s.reserve(2, 1, Root) && s.later() == 3);
        s.freed_for_good(0);
        assert_eq!((s.free_exact(), s.later()), (0, 3), "a checkpoint that did not come to an end");
    }

    #[test]
    fn what_a_smaller_volume_lacks_is_taken_if_nobody_has_it() {
        let s = Space::new(100, 16, 1, 1, 4);
        let total = s.total();
        assert!(s.reserve(0, 500, Root) && !s.shrink(20) && s.total() == total);
        let least = s.least_usable(100);
        assert!(!s.shrink(least - 1) && s.shrink(least) && s.free_exact() < 16);
        assert_eq!(s.least_usable(100), least);
        s.grow(100);
        assert_eq!((s.total(), s.free_exact()), (total, total as i64 - 500));
    }

    #[test]
    fn a_page_that_is_written_anew_goes_a_little_below_nothing() {
        let s = Space::new(100, 16, 1, 1, 4);
        assert!(s.reserve_rewrite(0));
        assert!(s.reserve(0, s.total() - 1, Root) && !s.reserve(0, 1, Root));
        let more = u64::from(segments_held_back(100, 1)) * 16 / 8;
        for n in 0..more {
            assert!(s.reserve_rewrite(n as usize) && !s.reserve(0, 1, Root));
        }
        assert!(!s.reserve_rewrite(1));
        // Written back: each gave a block back.
        s.account_write(2, more, more, more);
        assert!(s.reserve_rewrite(1) && !s.reserve(0, 1, Root));
        assert_eq!(s.free_exact(), -1);
    }

    #[test]
    fn what_was_taken_out_of_shared_blocks_is_promised_again_for_a_while() {
        let s = Space::new(100, 16, 2, 1, 4);
        assert!(s.reserve(0, s.total(), Root) && !s.reserve_taken_out(1, 2));
        s.note_taken_out(-5);
        s.note_taken_out(20_000);
        assert!(s.reserve_taken_out(1, 2) && s.reserve_taken_out(2, 2) && !s.reserve_taken_out(3, 2));
        assert_eq!((s.free_exact(), s.reserved()), (-4, s.total() as i64 + 4));
        s.note_taken_out(1 << 40);
        while s.reserve_taken_out(0, 1) {}
        let most = beyond(100, 16, 1);
        assert!((-most / 2 - 1..=-most / 2).contains(&s.free_exact()), "{} of {most}", s.free_exact());
        assert!(s.reserve_rewrite(0), "whoever wants to free space can");
    }

    #[test]
    fn a_small_inode_is_promised_a_part_of_a_block() {
        assert_eq!(parts_of_inode(true, false, 0), 1);
        assert_eq!(parts_of_inode(true, false, 100), 2);
        assert!(parts_of_inode(true, false, SHARES_BELOW) < PARTS_OF_BLOCK);
        let whole = [(false, false, 0), (true, true, 0), (true, false, SHARES_BELOW + 1)];
        assert!(whole.iter().all(|w| parts_of_inode(w.0, w.1, w.2) == PARTS_OF_BLOCK));
    }

    #[test]
    fn tiny_volumes_keep_most_for_users() {
        assert_eq!(segments_held_back(20, 1), 8);
        assert_eq!(segments_held_back(100, 1), 18);
        assert_eq!(segments_held_back(510, 2), 25);
        assert_eq!(segments_held_back(14_000, 4), 204 + 198);
        assert_eq!(fitting_mlogs(8, 50), 1);
        assert_eq!(fitting_mlogs(8, 4000), 8);
    }

    #[test]
    fn the_last_of_a_volume_is_left_to_root() {
        let s = Space::new(4096, 512, 1, 1, 4);
        let left = s.left_to_root();
        assert_eq!(left, s.total() / LEFT);
        let all = s.total() - left;
        assert!(!s.reserve(0, all + 1, User) && s.reserve(0, all, User));
        // The nodes of their maps are still to come, until they are written.
        assert!(!s.has_for(User, 0));
        s.account_write(0, all, all, 0);
        assert!(s.has_for(User, 0) && !s.has_for(User, 1) && !s.reserve(1, 1, User));
        assert!(s.has_for(Root, left) && s.reserve(2, left - 1, Root) && !s.has_for(User, 0));
        // Pages that give their old blocks back are written as ever.
        assert!(s.reserve_rewrite(3) && !s.has_for(Root, 1));
        s.account_write(2, left, left, all);
        assert!(s.has_for(User, all - left) && !s.has_for(User, all - left + 1));
        // Pages far apart need a node each.
        s.count_groups(Box::new(|| 1000));
        assert!(s.has_for(User, all - left) && s.reserve(0, 2000, User));
        let few = all - left - 3000;
        assert!(s.has_for(User, few) && !s.has_for(User, few + 1));
        assert!(Space::new(1 << 24, 512, 1, 1, 4).left_to_root() == LEFT_MOST);
    }
}
