//! Segments: which are free, which blocks in them are in use, who writes to them.
//!
//! Each block has two marks. *live*: memory refers to it, or a write under way does. *tree*: the
//! tree of the checkpoint that is being written (or was last written) refers to it. They differ
//! while an inode has changes that were not yet captured by a checkpoint.
//!
//! 1. A block is marked live before anything refers to it, and once; the mark goes when the last
//!    reference in memory goes.
//! 2. Only checkpoints change tree marks, in step with what they capture. The usage table on disk
//!    is the tree marks, except those of its own nodes, which opening finds by reading it.
//! 3. A segment becomes free only after a checkpoint is durable, and only if it is full, has
//!    neither mark, and was last touched (allocated in, or named by a batch) before that
//!    checkpoint's position P. So neither the tree of a slot nor a batch that recovery may read
//!    refers to a free segment (O13).
//! 4. A segment of a chain has marks only where data lies beside its batches (`beside`). When P has
//!    moved past it, it is freed if 3 holds for it, and is full if not
//!    ([`SegmentTable::leave_chain`]).
//! 5. A table grows and shrinks at its end only: segments keep their numbers, and what is there is
//!    not moved. So nobody waits for it, and who sees the larger count finds the new segments. Of
//!    segments that are to go nobody asks anything any more: see `withdrawal`.
//! 6. In a volume that keeps two copies of its tree (see `copies`) some segments are *paired*: they
//!    hold blocks of the tree alone, and the copy of block i is block i + half a segment. Both
//!    carry the same marks, which are set and taken together: nobody else names a copy.
//! 7. A full segment is found by how much of it lives (see `buckets`): only an open, which reads
//!    the whole table, a report and a check look at all segments.
//! 8. Where few segments are free, blocks of full ones are given out again that 3 holds for one by
//!    one: see `slack`.
//! 9. What was never used has no figures (see `figures`) and is in its pool, as a run with what
//!    lies beside it: it is free, and whatever looks at all segments looks at the others.
//!
//! Atomics are relaxed but three: the counts steer, and every decision that frees is made by the
//! one checkpoint under way, after it has waited (with locks, which order memory) for all writers
//! that could have touched. Writers behind its position may fill a segment meanwhile: who sees that
//! it is full must see that it was touched, so [`SegmentTable::close`] releases and
//! [`SegmentTable::info`] acquires. The third is the flag of rule 2 of `buckets`.

use crate::log::buckets::{Buckets, Filed, WHOLE, bucket_of};
pub(crate) use crate::log::figures::State;
pub(super) use crate::log::figures::Which;
use crate::log::figures::{Figures, Meta, Segment};
pub(crate) use crate::log::geometry::{Geometry, SegId};
use crate::log::pool::Pool;
use crate::log::slack::Slack;
use lanefs_format::BlockAddr;
use lanefs_format::superblock::MAX_DEVICES;
use lanefs_format::usage_node::{BITMAP_WORDS, PAIRED};
use lanefs_sync::CachePadded;
use lanefs_sync::lock::{Mutex, MutexGuard};
use std::collections::HashSet;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A volume of fewer segments is small.
const SMALL: u32 = 96;

/// A segment's figures, for choosing victims.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegInfo {
    pub state: State,
    pub live: u32,
    pub tree: u32,
    pub written: u32,
    pub heat: u8,
    pub touched: u64,
}

/// The segments of an open volume: see the head of the file.
pub(crate) struct SegmentTable {
    pub geometry: Geometry,
    /// Words of marks a segment has.
    words: usize,
    pub(super) figures: Figures,
    /// One for each device that there can be.
    pub(super) all_pools: Box<[Mutex<Pool>]>,
    pub(super) counts: CachePadded<Counts>,
    /// The number of marks of the tree. Written, as they are, by checkpoints alone: Relaxed.
    in_tree: CachePadded<AtomicU64>,
    pub(super) buckets: Buckets,
    pub slack: Slack,
}

/// Counts that steer who may take a segment: Relaxed, since whoever finds none in the pools is
/// refused whatever they were.
#[derive(Default)]
pub(super) struct Counts {
    /// The number of free segments, never below those in the pools. Written by whoever takes one
    /// out of a pool or puts one in.
    pub(super) free: AtomicU32,
    /// Free segments that only checkpoints and the cleaner may take. Written when the volume is
    /// opened and when it grows.
    pub(super) reserved_segments: AtomicU32,
    /// Segments claimed for data since P of the last checkpoint, or taken from the list of slack.
    /// Written by whoever claims one, and by the checkpoint.
    pub(super) claimed: AtomicU32,
    /// Segments from here on are withdrawn, if there are so many: see `withdrawal`. Written by the
    /// holder of the maintenance lock, and read by it; by others for figures.
    pub(super) withdrawn: AtomicU32,
    /// Segments that the fold of what is durable will fill. Written behind every commit and fold.
    for_unfolded: AtomicU32,
}

impl SegmentTable {
    /// Makes a table of unmarked segments; [`SegmentTable::fill_pools`] finds the free ones.
    pub fn new(geometry: Geometry) -> SegmentTable {
        let words = (geometry.segment_blocks as usize).div_ceil(64);
        debug_assert!(words <= BITMAP_WORDS, "more marks than the usage table has bits: {words} words");
        let figures = Figures::new(0..geometry.total());
        let all_pools = (0..MAX_DEVICES).map(|_| Mutex::new(Pool::default())).collect();
        SegmentTable {
            words,
            figures,
            all_pools,
            counts: CachePadded::new(Counts { withdrawn: AtomicU32::new(SegId::MAX), ..Counts::default() }),
            in_tree: CachePadded::default(),
            buckets: Buckets::new(),
            slack: Slack::default(),
            geometry,
        }
    }

    pub fn len(&self) -> u32 {
        self.geometry.total()
    }

    /// Returns the pools of the devices that there are.
    pub(super) fn pools(&self) -> &[Mutex<Pool>] {
        &self.all_pools[..self.devices()]
    }

    /// Returns the figures of a segment that is in use, or will be.
    fn meta(&self, seg: SegId) -> &Meta {
        &self.figures.of(seg, &self.geometry).meta
    }

    /// Returns the figures of a segment, if it was ever used.
    fn known(&self, seg: SegId) -> Option<&Meta> {
        self.figures.get(seg).map(|s| &s.meta)
    }

    /// Returns the segments of which there are figures, in order: all that were ever used, and some
    /// that lie beside them.
    pub fn all_known(&self) -> impl Iterator<Item = SegId> + '_ {
        let end = self.len();
        self.figures.known().take_while(move |seg| *seg < end)
    }

    /// Has the opening ask whether a segment is needed, that nothing else may name: see
    /// [`SegmentTable::fill_pools`].
    pub fn give_figures(&self, seg: SegId) {
        debug_assert!(!self.geometry.is_reserved(seg), "segment {seg} holds no log");
        self.meta(seg);
    }

    pub fn devices(&self) -> usize {
        self.geometry.devices()
    }

    /// Returns the number of free segments that only checkpoints and the cleaner may take: a fixed
    /// number, what the next checkpoint needs for the summaries of the segments claimed since the
    /// last, and what it needs to fold what is durable.
    pub fn reserved_segments(&self) -> u32 {
        let summaries = self.summaries_owed() / self.geometry.segment_blocks;
        self.counts.reserved_segments.load(Relaxed) + summaries + self.reserved_for_unfolded()
    }

    /// Returns whether the volume is so small that a segment is a large part of it: then no data
    /// lies beside batches, and nothing is kept back for inodes that wait for their fold.
    pub fn is_small(&self) -> bool {
        self.usable() < SMALL
    }

    /// Returns how many of these do not depend on what is to be folded.
    pub fn always_kept(&self) -> u32 {
        // They may change between the two.
        self.reserved_segments().saturating_sub(self.reserved_for_unfolded())
    }

    /// Returns the blocks that the next checkpoint writes for the summaries of the segments claimed
    /// since the last.
    pub fn summaries_owed(&self) -> u32 {
        let parts = self.geometry.segment_blocks.div_ceil(lanefs_format::summary::SUMMARY_SPAN as u32);
        self.claimed() * parts * self.geometry.copies
    }

    pub fn reserved_for_unfolded(&self) -> u32 {
        self.counts.for_unfolded.load(Relaxed)
    }

    /// Keeps back segments for so many blocks of the next fold.
    pub fn reserve_for_unfolded(&self, blocks: u64) {
        let segments = (blocks / u64::from(self.geometry.segment_blocks)).min(u64::from(self.len())) as u32;
        if segments != self.reserved_for_unfolded() {
            self.counts.for_unfolded.store(segments, Relaxed);
        }
    }

    /// Returns how many segments were claimed for data, or taken from the list of slack, whose
    /// summaries no checkpoint has written.
    pub fn claimed(&self) -> u32 {
        self.counts.claimed.load(Relaxed)
    }

    /// Notes that a checkpoint has written the summaries of the segments that were `claimed` when
    /// its position was recorded. Those claimed since are filled behind it.
    pub fn summarised(&self, claimed: u32) {
        let before = self.counts.claimed.fetch_sub(claimed, Relaxed);
        debug_assert!(before >= claimed, "{claimed} of {before} have a summary");
    }

    pub fn set_reserved_segments(&self, segments: u32) {
        self.counts.reserved_segments.store(segments, Relaxed);
    }

    pub fn free_count(&self) -> u32 {
        self.counts.free.load(Relaxed)
    }

    pub fn info(&self, seg: SegId) -> SegInfo {
        let Some(m) = self.known(seg) else {
            let state = if self.geometry.is_reserved(seg) { State::Reserved } else { State::Free };
            return SegInfo { state, live: 0, tree: 0, written: 0, heat: 0, touched: 0 };
        };
        SegInfo {
            // First, and Acquire, with the Release in `close`: of a full segment the rest is not
            // older than its filling.
            state: State::from_u8(m.state.load(Acquire)),
            live: m.live.load(Relaxed),
            tree: m.tree.load(Relaxed),
            written: m.written.load(Relaxed),
            heat: m.heat.load(Relaxed),
            touched: m.touched.load(Relaxed),
        }
    }

    pub fn describe(&self, seg: SegId, written: u32, heat: u8) {
        let m = self.meta(seg);
        debug_assert_eq!(m.filed.load(Relaxed), 0, "segment {seg} would not be found in its bucket");
        m.written.store(written, Relaxed);
        m.heat.store(heat, Relaxed);
    }

    /// Notes that something new refers to blocks of this segment (invariant 3).
    pub fn touch(&self, seg: SegId, checkpoint: u64) {
        debug_assert!(checkpoint > 0, "the first checkpoint has number 1, and 0 is never");
        let t = &self.meta(seg).touched;
        if t.load(Relaxed) != checkpoint {
            t.fetch_max(checkpoint, Relaxed);
        }
        debug_assert!(t.load(Relaxed) >= checkpoint, "a touch is forgotten");
    }

    pub fn touch_addr(&self, addr: BlockAddr, checkpoint: u64) {
        if let Some((seg, _)) = self.geometry.locate(addr) {
            self.touch(seg, checkpoint);
        }
    }

    /// Sets or takes one mark of a segment, and returns how many changed.
    fn mark_one(&self, s: &Segment, which: Which, i: u32, on: bool) -> u32 {
        debug_assert!(i < self.geometry.segment_blocks, "block {i} of a segment");
        let w = s.word(which, i as usize / 64);
        let bit = 1u64 << (i % 64);
        let was = if on { w.fetch_or(bit, Relaxed) } else { w.fetch_and(!bit, Relaxed) };
        u32::from((was & bit != 0) != on)
    }

    /// Sets or takes the mark of a block, and of its copy (6). Returns the segment, its figures and
    /// how many changed; `None` if the block's own did not.
    fn mark(&self, which: Which, addr: BlockAddr, on: bool) -> Option<(SegId, &Meta, u32)> {
        let (seg, i) = self.geometry.locate(addr)?;
        // What was never used has no mark to take.
        let s = if on { self.figures.of(seg, &self.geometry) } else { self.figures.get(seg)? };
        // Relaxed: as in `is_paired`.
        let is_paired = s.meta.paired.load(Relaxed);
        debug_assert!(
            !is_paired || self.geometry.copies == 2,
            "segment {seg} is paired in a volume without copies"
        );
        let half = self.geometry.half();
        if is_paired && i >= half {
            return None; // A copy; what names one is damaged.
        }
        match self.mark_one(s, which, i, on) {
            0 => None,
            n if is_paired => Some((seg, &s.meta, n + self.mark_one(s, which, i + half, on))),
            n => Some((seg, &s.meta, n)),
        }
    }

    /// Returns whether a segment holds blocks of the tree, each with a copy (6).
    pub fn is_paired(&self, seg: SegId) -> bool {
        // Relaxed: written before anything in the segment has an address, or before others have the
        // store.
        self.known(seg).is_some_and(|m| m.paired.load(Relaxed))
    }

    /// Notes that a segment is paired, or not.
    pub fn set_paired(&self, seg: SegId, paired: bool) {
        if paired || self.known(seg).is_some() {
            self.meta(seg).paired.store(paired && self.geometry.copies == 2, Relaxed);
        }
    }

    /// Returns how many blocks the block at `addr` takes: two if it has a copy.
    pub fn blocks_at(&self, addr: BlockAddr) -> u64 {
        let paired = self.geometry.locate(addr).is_some_and(|(seg, _)| self.is_paired(seg));
        1 + u64::from(paired)
    }

    /// Sets both marks of this very block, as a table on disk or a count has them, or takes them.
    /// Returns how many live ones changed.
    pub fn correct(&self, seg: SegId, i: u32, on: bool) -> u32 {
        let s = self.figures.of(seg, &self.geometry);
        let m = &s.meta;
        let (tree, live) = (self.mark_one(s, Which::Tree, i, on), self.mark_one(s, Which::Live, i, on));
        if on {
            m.tree.fetch_add(tree, Relaxed);
            m.live.fetch_add(live, Relaxed);
            self.in_tree.fetch_add(u64::from(tree), Relaxed);
        } else {
            self.in_tree.fetch_sub(u64::from(tree), Relaxed);
            debug_assert!(m.tree.load(Relaxed) >= tree, "more marks of the tree were taken than set");
            debug_assert!(m.live.load(Relaxed) >= live, "more live marks were taken than set");
            m.tree.fetch_sub(tree, Relaxed);
            m.live.fetch_sub(live, Relaxed);
        }
        debug_assert!(tree <= 1 && live <= 1, "this very block has a mark of each kind");
        if m.filed.load(Relaxed) > 0 {
            self.note(seg);
        }
        live
    }

    /// Marks a block live. Returns false if it was already, or if the address is none of a log
    /// block.
    pub fn set_live(&self, addr: BlockAddr) -> bool {
        let Some((seg, m, n)) = self.mark(Which::Live, addr, true) else { return false };
        let before = m.live.fetch_add(n, Relaxed);
        debug_assert!(before + n <= self.geometry.segment_blocks, "segment {seg}: {before} + {n} live");
        // Written where all had died (8).
        if before == 0 && m.filed.load(Relaxed) > 0 {
            self.note(seg);
        }
        true
    }

    /// Takes that mark away. Returns false if there was none.
    pub fn clear_live(&self, addr: BlockAddr) -> bool {
        let Some((seg, m, n)) = self.mark(Which::Live, addr, false) else { return false };
        // A block is counted before anybody else knows of it, and so before it dies.
        let (before, size) = (m.live.fetch_sub(n, Relaxed), self.geometry.segment_blocks);
        debug_assert!(before >= n, "segment {seg}: fewer live than {n}");
        if bucket_of(before, size) != bucket_of(before - n, size) {
            self.note(seg);
        }
        true
    }

    /// Marks a block as referred to by the tree. Returns the segment, if that changed anything.
    pub fn set_tree(&self, addr: BlockAddr) -> Option<SegId> {
        let (seg, m, n) = self.mark(Which::Tree, addr, true)?;
        let before = m.tree.fetch_add(n, Relaxed);
        debug_assert!(before + n <= self.geometry.segment_blocks, "segment {seg}: {before} in the tree");
        self.in_tree.fetch_add(u64::from(n), Relaxed);
        Some(seg)
    }

    /// Takes that mark away. Returns the segment, if that changed anything.
    pub fn clear_tree(&self, addr: BlockAddr) -> Option<SegId> {
        let (seg, m, n) = self.mark(Which::Tree, addr, false)?;
        let before = m.tree.fetch_sub(n, Relaxed);
        debug_assert!(before >= n, "segment {seg}: {before} in the tree, {n} leave it");
        self.in_tree.fetch_sub(u64::from(n), Relaxed);
        Some(seg)
    }

    pub fn is_live(&self, addr: BlockAddr) -> bool {
        self.geometry
            .locate(addr)
            .is_some_and(|(seg, i)| self.load(Which::Live, seg, i as usize / 64) >> (i % 64) & 1 == 1)
    }

    pub(super) fn word(&self, which: Which, seg: SegId, w: usize) -> &AtomicU64 {
        debug_assert!(w < self.words, "word {w} of {} words of marks", self.words);
        self.figures.of(seg, &self.geometry).word(which, w)
    }

    /// Returns the marks of a word; none of a segment that was never used.
    fn load(&self, which: Which, seg: SegId, w: usize) -> u64 {
        debug_assert!(w < self.words, "word {w} of {} words of marks", self.words);
        self.figures.get(seg).map_or(0, |s| s.word(which, w).load(Relaxed))
    }

    /// Copies out the tree marks of a segment.
    pub fn tree_bits(&self, seg: SegId, out: &mut [u64]) {
        debug_assert!(out.len() >= self.words, "marks of segment {seg} are cut off");
        for (w, o) in out.iter_mut().enumerate().take(self.words) {
            *o = self.load(Which::Tree, seg, w);
        }
    }

    /// Returns the number of blocks that the tree refers to, those of the usage table left out.
    pub fn in_tree(&self) -> u64 {
        self.in_tree.load(Relaxed)
    }

    /// Counts the live blocks of all segments: for an open and for checks.
    pub fn total_live(&self) -> u64 {
        self.all_known().map(|s| u64::from(self.info(s).live)).sum()
    }

    /// Puts every unmarked segment into its device's pool (at open, when nobody else is there),
    /// except those that `keep` names, and the others, which are full, into their buckets. `keep`
    /// is asked only of segments that have figures: what was never used goes into the pool a whole
    /// group at a time.
    pub fn fill_pools(&self, keep: impl Fn(SegId) -> bool) {
        let mut filed = self.review();
        debug_assert_eq!(self.free_count(), 0, "the pools were filled before");
        for (group, has_figures) in self.figures.groups() {
            // A few devices at the most lie in a group.
            for (device, pool) in self.pools().iter().enumerate() {
                let span = self.geometry.log_segments(device);
                let here = group.start.max(span.start)..group.end.min(span.end);
                if here.is_empty() {
                    continue;
                }
                let mut pool = pool.lock();
                if !has_figures {
                    self.counts.free.fetch_add(here.len() as u32, Relaxed);
                    pool.put_unused(here);
                    continue;
                }
                for seg in here {
                    let (m, i) = (self.meta(seg), self.info(seg));
                    if i.live == 0 && i.tree == 0 && !keep(seg) {
                        // It may have summaries.
                        filed.note_freed(seg);
                        self.put(&mut pool, seg, m.stale.load(Relaxed) > 0);
                    } else {
                        m.state.store(State::Full as u8, Relaxed);
                        self.file(&mut filed, seg);
                    }
                }
            }
        }
        drop(filed);
        // What lies below them is not known.
        self.pools().iter().for_each(|p| p.lock().opened(0));
        self.check_invariants();
    }

    /// Notes that a segment may belong to another bucket. Its count was changed, or it was closed.
    pub(super) fn note(&self, seg: SegId) {
        // AcqRel, as in `review`: see the field.
        if !self.meta(seg).noted.swap(true, AcqRel) {
            self.buckets.note(seg);
        }
    }

    /// Puts what was noted where it belongs, and returns the buckets.
    pub(super) fn review(&self) -> MutexGuard<'_, Filed> {
        let mut filed = self.buckets.filed();
        for seg in self.buckets.take_noted() {
            let was_noted = self.meta(seg).noted.swap(false, AcqRel);
            debug_assert!(was_noted, "segment {seg} is on a list and not noted");
            filed.looked_at += 1;
            self.file(&mut filed, seg);
        }
        filed
    }

    /// Puts a segment into the bucket that its figures ask for: none unless it is full.
    fn file(&self, filed: &mut Filed, seg: SegId) {
        let (m, info) = (self.meta(seg), self.info(seg));
        let now = match info.state {
            State::Full => 1 + bucket_of(info.live, self.geometry.segment_blocks),
            _ => 0,
        };
        let before = usize::from(m.filed.load(Relaxed));
        if before == now {
            return;
        }
        if before > 0 {
            filed.take(before - 1, info.written, seg);
        }
        if now > 0 {
            filed.put(now - 1, info.written, seg);
        }
        m.filed.store(now as u8, Relaxed);
    }

    /// Takes the full segment out of its bucket that gives most, or with `by_age` the one with the
    /// best cost and benefit, among those that are `fit`; some live blocks and some dead ones it
    /// has in any case. Whoever has tried it puts it back with [`SegmentTable::file_again`].
    pub fn take_victim(&self, by_age: bool, fit: impl Fn(SegId, &SegInfo) -> bool) -> Option<SegId> {
        /// Segments of a bucket that are looked at: some may not be fit.
        const LOOK: usize = 32;
        // Seldom are none of these fit, and others are. The background can wait until that changes.
        let victim = self.take_victim_of(LOOK, by_age, &fit);
        if by_age { victim } else { victim.or_else(|| self.take_victim_of(usize::MAX, by_age, &fit)) }
    }

    /// Does so among the oldest `most` of each bucket.
    fn take_victim_of(
        &self,
        most: usize,
        by_age: bool,
        fit: &impl Fn(SegId, &SegInfo) -> bool,
    ) -> Option<SegId> {
        let (size, now) = (self.geometry.segment_blocks, crate::log::space::seconds());
        let mut filed = self.review();
        let mut best: Option<(u64, std::cmp::Reverse<SegId>)> = None;
        for bucket in 1..WHOLE {
            if best.is_some() && !by_age {
                break;
            }
            for seg in filed.oldest(bucket, most) {
                let i = self.info(seg);
                if i.state != State::Full || bucket_of(i.live, size) != bucket {
                    self.file(&mut filed, seg);
                } else if fit(seg, &i) {
                    let free = u64::from(size - i.live);
                    // Benefit: space won, for as long as it is likely to stay. Cost: reading and
                    // writing what lives.
                    let age = u64::from(now.saturating_sub(i.written)) + 1;
                    let gain = ((free * age.min(1 << 24)) << 16) / u64::from(size + i.live);
                    best = best.max(Some((if by_age { gain } else { free }, std::cmp::Reverse(seg))));
                }
            }
        }
        let seg = best?.1.0;
        let m = self.meta(seg);
        let bucket = m.filed.swap(0, Relaxed);
        debug_assert!((1..=WHOLE).contains(&usize::from(bucket)), "segment {seg} is in bucket {bucket}");
        filed.take(usize::from(bucket).saturating_sub(1), m.written.load(Relaxed), seg);
        Some(seg)
    }

    /// Puts segments back into their buckets.
    pub fn file_again(&self, segments: impl IntoIterator<Item = SegId>) {
        let mut filed = self.review();
        segments.into_iter().for_each(|seg| self.file(&mut filed, seg));
    }

    /// Returns the segments that may have become empty since the last call: those that are full
    /// and have no live block, and those that were freed, some of them in use again.
    pub fn emptied(&self) -> Vec<SegId> {
        let mut filed = self.review();
        let mut all = filed.take_freed();
        all.extend(filed.oldest(0, usize::MAX));
        all
    }

    /// Returns the number of segments that were looked at, but for opens and checks.
    #[cfg(test)]
    pub fn looked_at(&self) -> u64 {
        self.buckets.filed().looked_at
    }

    /// Returns what takes memory: segments that have figures, and runs of free ones.
    #[cfg(test)]
    pub fn held(&self) -> (usize, usize) {
        (self.all_known().count(), self.pools().iter().map(|p| p.lock().runs().count()).sum())
    }

    /// Checks the table, in debug builds: whatever is in a pool is free, unmarked, of that device,
    /// and in it once, and no segment has more marks than blocks. Others may work meanwhile.
    pub fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        for (device, pool) in self.pools().iter().enumerate() {
            let pool = pool.lock();
            let span = self.geometry.log_segments(device);
            let mut runs: Vec<_> = pool.runs().collect();
            runs.sort_unstable_by_key(|run| run.start);
            assert!(
                runs.is_sorted_by(|a, b| a.end <= b.start),
                "a segment is twice in the pool of device {device}: {runs:?}"
            );
            let ends = runs.first().zip(runs.last()).map(|(a, b)| a.start..b.end);
            let is_own = ends.is_none_or(|all| span.start <= all.start && all.end <= span.end);
            assert!(is_own, "of segments {span:?} of device {device} these are in the pool: {runs:?}");
            assert_eq!(runs.iter().map(|run| run.len()).sum::<usize>(), pool.len(), "{runs:?}");
            // Of those that were never used there is nothing to look at.
            let pooled = |seg: &SegId| {
                runs.get(runs.partition_point(|run| run.end <= *seg)).is_some_and(|run| run.contains(seg))
            };
            for seg in self.all_known().filter(pooled) {
                let info = self.info(seg);
                assert_eq!(
                    (info.state, info.live, info.tree),
                    (State::Free, 0, 0),
                    "segment {seg} in a pool"
                );
            }
        }
        for seg in self.all_known() {
            let info = self.info(seg);
            let most = info.live.max(info.tree);
            assert!(most <= self.geometry.segment_blocks, "segment {seg} has {most} marks");
        }
    }

    /// Makes a full or chain segment free.
    pub fn release(&self, seg: SegId) {
        let m = self.meta(seg);
        debug_assert_ne!(self.info(seg).state, State::Free, "segment {seg} is released twice");
        debug_assert_ne!(self.info(seg).state, State::Reserved, "segment {seg} holds no log");
        debug_assert_eq!((m.live.load(Relaxed), m.tree.load(Relaxed)), (0, 0));
        // Under the mutex of the buckets: else a review puts it back into one.
        let mut filed = self.buckets.filed();
        m.state.store(State::Free as u8, Relaxed);
        self.file(&mut filed, seg);
        filed.note_freed(seg);
        drop(filed);
        self.put(&mut self.all_pools[self.geometry.device(seg)].lock(), seg, m.stale.load(Relaxed) > 0);
    }

    /// Puts a free segment into its pool, and counts it, unless it is withdrawn: whoever takes it
    /// out counts it off, and finds it counted.
    fn put(&self, pool: &mut Pool, seg: SegId, is_stale: bool) {
        if pool.put(seg, is_stale) {
            self.counts.free.fetch_add(1, Relaxed);
        }
    }

    /// Counts segments off that were taken out of a pool. Each was counted before it went in.
    pub(super) fn count_taken(&self, n: usize) {
        let free = self.counts.free.fetch_sub(n as u32, Relaxed);
        debug_assert!(free >= n as u32, "{n} of {free} free segments were taken");
    }

    /// Takes a free segment of `device`.
    pub fn claim(&self, device: usize, state: State, heat: u8) -> Option<SegId> {
        debug_assert!(matches!(state, State::Open | State::Chain), "a segment is claimed as {state:?}");
        debug_assert!(heat < PAIRED, "heat {heat} would say that the segment is paired");
        let seg = self.all_pools[device].lock().pop()?;
        self.count_taken(1);
        debug_assert_eq!(self.info(seg).state, State::Free, "segment {seg} was in a pool");
        debug_assert_eq!(self.geometry.device(seg), device, "segment {seg} was in another's pool");
        let m = self.meta(seg);
        m.state.store(state as u8, Relaxed);
        m.heat.store(heat, Relaxed);
        m.paired.store(false, Relaxed);
        m.written.store(crate::log::space::seconds(), Relaxed);
        m.stale.store(0, Relaxed);
        if state == State::Open {
            self.counts.claimed.fetch_add(1, Relaxed);
        }
        Some(seg)
    }

    /// Returns the checkpoint since which a free segment has had old content; 0 if it has none.
    pub(super) fn stale_since(&self, seg: SegId) -> u64 {
        self.known(seg).map_or(0, |m| m.stale.load(Relaxed))
    }

    /// Notes that a segment about to be released holds old content.
    pub fn mark_stale(&self, seg: SegId, checkpoint: u64) {
        debug_assert_ne!(self.info(seg).state, State::Free, "segment {seg} is marked when it is released");
        debug_assert!(checkpoint > 0, "0 says that there is nothing to discard");
        self.meta(seg).stale.store(checkpoint, Relaxed);
    }

    /// Takes at most `most` segments out of a device's pool that have been free since before
    /// `checkpoint` and were not discarded; [`SegmentTable::put_back`] returns them. Where free
    /// segments are short, none stays free that long.
    pub fn take_stale(&self, device: usize, checkpoint: u64, most: usize) -> Vec<SegId> {
        let mut pool = self.all_pools[device].lock();
        let old = |s: SegId| (1..checkpoint).contains(&self.stale_since(s));
        let taken = pool.take_stale(most, old);
        debug_assert!(taken.iter().all(|s| self.info(*s).state == State::Free), "{taken:?}");
        self.count_taken(taken.len());
        taken
    }

    /// Takes at most `most` segments out of a device's pool, those with old content first, then
    /// those that have been there longest, up to one that `done` names; and no more than half of
    /// them, so that others find some.
    /// [`SegmentTable::put_back`] returns them.
    pub fn take_idle(&self, device: usize, most: usize, done: &HashSet<SegId>) -> Vec<SegId> {
        let mut pool = self.all_pools[device].lock();
        let taken = pool.take_idle(most, done);
        debug_assert!(taken.iter().all(|s| self.info(*s).state == State::Free), "{taken:?}");
        self.count_taken(taken.len());
        taken
    }

    /// Returns segments to their pool: see [`SegmentTable::take_stale`].
    pub fn put_back(&self, device: usize, segments: Vec<SegId>) {
        self.put_back_as(device, segments, 0);
    }

    /// Does so for segments that have old content, or blocks of the host below them, since the
    /// checkpoint `stale`; 0 for neither.
    pub(super) fn put_back_as(&self, device: usize, segments: Vec<SegId>, stale: u64) {
        debug_assert!(device < self.devices(), "device {device} has no pool");
        let is_own = |s: &SegId| self.geometry.device(*s) == device && self.info(*s).state == State::Free;
        debug_assert!(segments.iter().all(is_own), "not out of the pool of device {device}: {segments:?}");
        // What was never used has never been stale.
        let used = |s: &&SegId| stale > 0 || self.known(**s).is_some();
        segments.iter().filter(used).for_each(|&s| self.meta(s).stale.store(stale, Relaxed));
        let mut pool = self.all_pools[device].lock();
        segments.into_iter().for_each(|seg| self.put(&mut pool, seg, stale > 0));
    }

    /// Notes that a head is done with the segment: it is full.
    pub fn close(&self, seg: SegId) {
        debug_assert_eq!(self.info(seg).state, State::Open, "segment {seg} is no head's");
        // Release, with the Acquire in `info`: it was touched before.
        self.meta(seg).state.store(State::Full as u8, Release);
        self.note(seg);
    }

    /// Notes that recovery starts behind a segment of a chain, now that `checkpoint` is durable.
    /// Returns whether it may be released; else it is full, as a head leaves one (4).
    pub fn leave_chain(&self, seg: SegId, checkpoint: u64) -> bool {
        let i = self.info(seg);
        debug_assert_eq!(i.state, State::Chain, "segment {seg} is in no chain");
        debug_assert!(checkpoint > 0, "the first checkpoint has number 1");
        if i.live == 0 && i.tree == 0 && i.touched < checkpoint {
            return true;
        }
        // Release, as in `close`.
        self.meta(seg).state.store(State::Full as u8, Release);
        self.note(seg);
        false
    }

    /// Counts a segment of a chain as one that was claimed for data: it gets its first.
    pub fn count_claimed(&self) {
        self.counts.claimed.fetch_add(1, Relaxed);
    }

    /// Returns the segments that the durable checkpoint `checkpoint` allows to be released (3).
    pub fn dead(&self, checkpoint: u64) -> Vec<SegId> {
        let mut filed = self.review();
        let mut dead = filed.oldest(0, usize::MAX);
        dead.retain(|&seg| {
            let i = self.info(seg);
            if i.state != State::Full || i.live > 0 {
                self.file(&mut filed, seg); // A block was marked behind its close.
                return false;
            }
            i.tree == 0 && i.touched < checkpoint
        });
        // Claimed in this order, what is written together lies together.
        dead.sort_unstable();
        dead
    }

    /// Returns the number of full segments without live blocks: what the next checkpoint will free.
    pub fn pending_free(&self) -> u32 {
        let mut filed = self.review();
        match self.withdrawn().is_empty() {
            true => filed.len(0) as u32,
            // Those that are withdrawn are free for nobody.
            false => {
                filed.oldest(0, usize::MAX).into_iter().filter(|s| !self.is_withdrawn(*s)).count() as u32
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanefs_format::superblock::Layout;
    use std::sync::atomic::AtomicBool;

    fn table() -> SegmentTable {
        let layout = Layout::new(16, 1).unwrap();
        SegmentTable::new(Geometry::new(&layout, &[16 * 4 + 5, 16 * 3]))
    }

    #[test]
    fn addresses_and_segments_agree() {
        let t = table();
        let g = &t.geometry;
        assert_eq!((g.total(), g.usable(), g.reserved), (7, 5, 1));
        for seg in [1, 2, 3, 5, 6] {
            for i in 0..16 {
                assert_eq!(g.locate(g.addr(seg, i)), Some((seg, i)));
            }
        }
        assert_eq!(g.locate(BlockAddr::new(0, 15)), None);
        assert_eq!(g.locate(BlockAddr::new(0, 64)), None);
        assert_eq!(g.locate(BlockAddr::new(1, 48)), None);
        assert_eq!(g.locate(BlockAddr::new(2, 20)), None);
        assert_eq!((g.device(3), g.device(4)), (0, 1));
    }

    #[test]
    fn a_table_that_grew_has_its_new_segments_free_and_the_old_as_they_were() {
        let t = table();
        t.fill_pools(|_| false);
        let s = t.claim(1, State::Open, 1).unwrap();
        let a = t.geometry.addr(s, 3);
        assert!(t.set_live(a));
        for (blocks, total, free) in [(16 * 5 + 3, 9, 6), (16 * 6, 10, 7)] {
            assert_eq!(t.geometry.locate(BlockAddr::new(1, blocks - 4)), None);
            t.grow(blocks);
            assert_eq!((t.len(), t.free_count(), t.geometry.usable()), (total, free, total - 2));
            assert!(t.is_live(a) && t.geometry.locate(a) == Some((s, 3)));
            let last = t.geometry.addr(total - 1, 15);
            assert!(t.set_live(last) && t.is_live(last) && t.clear_live(last));
        }
        let rest: Vec<_> = std::iter::from_fn(|| t.claim(1, State::Open, 0)).collect();
        assert_eq!(rest, [6, 7, 8, 9]);
    }

    #[test]
    fn the_marks_of_a_pair_are_set_and_taken_together() {
        let layout = Layout::new(16, 1).unwrap();
        let t = SegmentTable::new(Geometry::new(&layout, &[16 * 4]).with_copies(2));
        t.fill_pools(|_| false);
        let (pair, single) = (t.claim(0, State::Open, 3).unwrap(), t.claim(0, State::Open, 1).unwrap());
        t.set_paired(pair, true);
        let at = |seg, i| t.geometry.addr(seg, i);
        assert!(t.set_live(at(pair, 3)) && !t.set_live(at(pair, 3)) && t.set_live(at(single, 3)));
        assert_eq!((t.live_blocks(pair), t.live_blocks(single)), (vec![3, 11], vec![3]));
        assert_eq!((t.blocks_at(at(pair, 3)), t.blocks_at(at(single, 3))), (2, 1));
        // Nobody names a copy.
        assert!(!t.set_live(at(pair, 12)) && !t.clear_live(at(pair, 11)) && t.set_live(at(single, 12)));
        assert_eq!((t.set_tree(at(pair, 3)), t.set_tree(at(pair, 3))), (Some(pair), None));
        assert_eq!((t.info(pair).live, t.info(pair).tree, t.total_live()), (2, 2, 4));
        assert!(t.clear_live(at(pair, 3)) && t.clear_tree(at(pair, 3)).is_some());
        assert_eq!((t.info(pair).live, t.info(pair).tree), (0, 0));
        // What is claimed anew is no pair unless its head says so.
        t.close(pair);
        t.release(pair);
        while t.claim(0, State::Open, 1).is_some_and(|s| s != pair) {}
        assert!(!t.is_paired(pair));
    }

    /// A segment was put into its pool before it was counted: who took it meanwhile counted it off
    /// first, and of none that were free there were 2^32 - 1 for a moment.
    #[test]
    fn no_more_segments_are_free_than_there_are() {
        let t = table();
        t.fill_pools(|_| false);
        let claim = || (0..2).find_map(|d| t.claim(d, State::Chain, 0));
        while t.free_count() > 1 {
            claim().unwrap();
        }
        // All want the last one.
        let begin = std::sync::Barrier::new(3);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    begin.wait();
                    for _ in 0..20_000 {
                        let seg = claim();
                        let free = t.free_count();
                        seg.into_iter().for_each(|seg| t.release(seg));
                        assert!(free <= 1, "{free} segments are free");
                    }
                });
            }
        });
        assert_eq!(t.free_count(), 1);
    }

    #[test]
    fn a_segment_is_freed_only_without_marks_and_touches() {
        let t = table();
        t.give_figures(6);
        t.fill_pools(|s| s == 6);
        assert_eq!((t.free_count(), t.info(6).state, t.info(5).state), (4, State::Full, State::Free));
        let s = t.claim(0, State::Open, 1).unwrap();
        let a = t.geometry.addr(s, 3);
        assert!(t.set_live(a) && !t.set_live(a));
        assert_eq!(t.set_tree(a), Some(s));
        t.touch(s, 7);
        t.close(s);
        assert_eq!(t.live_blocks(s), [3]);
        assert!(t.clear_live(a) && !t.clear_live(a));
        assert!(!t.dead(8).contains(&s)); // The tree still refers to it.
        t.clear_tree(a);
        assert!(!t.dead(7).contains(&s)); // Touched after P.
        assert!(t.dead(8).contains(&s));
        t.release(s);
        assert_eq!(t.claim(1, State::Open, 0).unwrap(), 5);
    }

    /// What is listed has neither mark, and lies in full segments that nothing touched.
    #[test]
    fn only_what_nothing_refers_to_is_listed() {
        let t = pool(12, 64);
        let at = |seg, i| t.geometry.addr(seg, i);
        let (old, whole, young, nodes) = (filled(&t, 60), filled(&t, 64), filled(&t, 50), filled(&t, 20));
        t.touch(young, 9);
        t.meta(nodes).heat.store(3, Relaxed);
        let open = t.claim(0, State::Open, 1).unwrap();
        assert!(t.set_live(at(open, 3)));
        assert!(t.set_tree(at(old, 61)).is_some() && t.set_tree(at(old, 5)).is_some());
        assert!(t.clear_live(at(old, 5)) && t.clear_live(at(old, 7)));
        let listed = |checkpoint, most| {
            let list = t.list_slack(checkpoint, most, |_, i| i.heat != 3);
            let runs = |mut l: crate::log::slack::Listed| {
                std::iter::from_fn(move || l.take_run(64)).collect::<Vec<_>>()
            };
            list.into_iter().map(|l| (l.seg, runs(l))).collect::<Vec<_>>()
        };
        // 5 and 61 are the tree's, which a crash leads back to.
        assert_eq!(listed(9, 100), [(old, vec![(7, 1), (60, 1), (62, 2)])]);
        assert_eq!(listed(10, 100).iter().map(|l| l.0).collect::<Vec<_>>(), [young, old]);
        assert_eq!(listed(10, 14).len(), 1);
        assert!(t.list_slack(9, 100, |seg, _| seg == whole).is_empty());
        t.clear_tree(at(old, 5));
        assert_eq!(listed(9, 100), [(old, vec![(5, 1), (7, 1), (60, 1), (62, 2)])]);
        assert!(t.clear_live(at(whole, 9)));
        assert_eq!(listed(9, 100).len(), 2);
    }

    /// Fills a segment and closes it; the first `live` blocks live.
    fn filled(t: &SegmentTable, live: u32) -> SegId {
        filled_before(t, live, 0)
    }

    /// As if it had been claimed so many seconds ago.
    fn filled_before(t: &SegmentTable, live: u32, seconds: u32) -> SegId {
        let seg = t.claim(0, State::Open, 1).unwrap();
        t.describe(seg, crate::log::space::seconds() - seconds, 1);
        (0..live).for_each(|i| assert!(t.set_live(t.geometry.addr(seg, i))));
        t.close(seg);
        seg
    }

    fn pool(segments: u32, blocks: u32) -> SegmentTable {
        let layout = Layout::new(blocks, 1).unwrap();
        let t = SegmentTable::new(Geometry::new(&layout, &[u64::from(blocks * (segments + 1))]));
        t.fill_pools(|_| false);
        t
    }

    /// What is found by buckets is what a look at all segments finds, whatever came between.
    #[test]
    fn buckets_agree_with_the_figures() {
        let t = pool(200, 64);
        let mut rng = lanefs_sync::random::Rng::at(19);
        let mut full = Vec::new();
        for round in 0..3000 {
            match rng.bits() % 8 {
                0 if t.free_count() > 0 => full.push(filled(&t, (rng.bits() % 65) as u32)),
                1..=5 if !full.is_empty() => {
                    let seg = full[rng.bits() as usize % full.len()];
                    (0..rng.bits() % 20).for_each(|_| {
                        t.clear_live(t.geometry.addr(seg, rng.bits() as u32 % 64));
                    });
                }
                // Marked behind the close.
                6 if !full.is_empty() => {
                    let seg = full[rng.bits() as usize % full.len()];
                    t.set_live(t.geometry.addr(seg, rng.bits() as u32 % 64));
                    t.file_again([seg]);
                }
                _ => {
                    let dead = t.dead(1);
                    let empty: Vec<_> = full.iter().copied().filter(|s| t.info(*s).live == 0).collect();
                    let mut sorted = empty.clone();
                    sorted.sort_unstable();
                    assert_eq!((&dead, t.pending_free()), (&sorted, sorted.len() as u32), "round {round}");
                    dead.iter().for_each(|&s| t.release(s));
                    full.retain(|s| !dead.contains(s));
                    assert_eq!(t.pending_free(), 0);
                }
            }
            let partly = |s: &&SegId| (1..64).contains(&t.info(**s).live);
            let least = full.iter().filter(partly).map(|s| t.info(*s).live).min();
            let victim = t.take_victim(false, |_, _| true);
            let live = victim.map(|v| t.info(v).live);
            // Of 64 blocks two are a bucket, and all that are in it here are looked at.
            assert_eq!(live, least, "round {round}");
            // Taken out, it is nobody else's victim.
            if let Some(v) = victim {
                assert_ne!(t.take_victim(false, |_, _| true), Some(v));
                t.file_again(full.iter().copied().filter(|s| t.meta(*s).filed.load(Relaxed) == 0));
                assert_eq!(t.take_victim(false, |seg, _| seg == v), Some(v));
                t.file_again([v]);
            }
        }
        t.check_invariants();
    }

    /// The emptiest is taken when space is short; else age counts as well.
    #[test]
    fn a_victim_is_the_emptiest_or_the_one_that_stays_so() {
        let t = pool(8, 64);
        let (old, new) = (filled_before(&t, 30, 1000), filled(&t, 10));
        let whole = filled(&t, 64);
        assert_eq!(t.take_victim(true, |_, _| true), Some(old));
        assert_eq!(t.take_victim(true, |_, _| true), Some(new));
        assert_eq!(t.take_victim(true, |_, _| true), None);
        t.file_again([old, new]);
        assert_eq!(t.take_victim(false, |_, _| true), Some(new));
        assert_eq!(t.take_victim(false, |seg, _| seg != old), None);
        // What is whole gives nothing, until a block of it dies.
        t.clear_live(t.geometry.addr(whole, 5));
        assert_eq!(t.take_victim(false, |seg, _| seg != old), Some(whole));
    }

    /// What a round looks at does not grow with the volume.
    #[test]
    fn a_large_table_costs_no_more_than_a_small_one() {
        let looked_at = |segments: u32| {
            let t = pool(segments, 16);
            let all: Vec<_> = (0..segments - 100).map(|_| filled(&t, 16)).collect();
            t.pending_free();
            t.emptied();
            let before = t.looked_at();
            // A hundred segments lose blocks, ten of them all.
            for (n, &seg) in all.iter().step_by(all.len() / 100).take(100).enumerate() {
                let dies = if n % 10 == 0 { 16 } else { 7 };
                (0..dies).for_each(|i| assert!(t.clear_live(t.geometry.addr(seg, i))));
            }
            assert_eq!((t.pending_free(), t.dead(1).len()), (10, 10));
            t.dead(1).into_iter().for_each(|seg| t.release(seg));
            let victims = std::iter::from_fn(|| t.take_victim(true, |_, _| true)).count();
            assert_eq!(victims, 90);
            t.emptied();
            t.looked_at() - before
        };
        let (small, large) = (looked_at(300), looked_at(30_000));
        assert_eq!(small, large);
    }

    /// Everything that empties is found, though it is counted down by many at once.
    #[test]
    fn what_many_empty_at_once_is_found() {
        let t = pool(64, 64);
        let all: Vec<_> = (0..64).map(|_| filled(&t, 64)).collect();
        let over = AtomicBool::new(false);
        std::thread::scope(|s| {
            let workers: Vec<_> = (0..4u32)
                .map(|id| {
                    let (t, all) = (&t, &all);
                    s.spawn(move || {
                        for i in (id..64).step_by(4) {
                            all.iter().for_each(|&seg| assert!(t.clear_live(t.geometry.addr(seg, i))));
                        }
                    })
                })
                .collect();
            s.spawn(|| {
                while !over.load(Relaxed) {
                    assert!(t.pending_free() <= 64);
                }
            });
            workers.into_iter().for_each(|w| w.join().unwrap());
            over.store(true, Relaxed);
        });
        assert_eq!((t.pending_free(), t.dead(1).len()), (64, 64));
    }

    /// Whatever has been free for long is discarded, the oldest first, without a look at the rest.
    #[test]
    fn what_is_stale_is_found_and_used_last() {
        let t = pool(10, 16);
        let used: Vec<_> = (0..6).map(|_| filled(&t, 0)).collect();
        for (n, &seg) in used.iter().enumerate() {
            t.mark_stale(seg, 5 + n as u64 / 2);
            t.release(seg);
        }
        assert_eq!(t.take_stale(0, 5, 32), []);
        let stale = t.take_stale(0, 7, 32);
        assert_eq!(stale, used[..4]);
        t.put_back(0, stale);
        assert_eq!(t.take_stale(0, 7, 32), []);
        // Half of what is free, at the most.
        let idle = t.take_idle(0, 32, &HashSet::new());
        assert_eq!((idle.len(), &idle[..2]), (5, &used[4..]));
        t.put_back(0, idle);
        assert_eq!(t.free_count(), 10);
        t.check_invariants();
    }
}
