//! The segment usage table and the summaries that hang on it.

use crate::error::{Result, StoreError};
use crate::log::segment::{SegId, SegmentTable, State};
use crate::log::summaries::{NO_PARTS, Summaries};
use crate::tree::block_io::{BlockSink, BlockSource, Owner};
use crate::tree::radix::{Found, Radix, Tree};
use lanefs_format::map_node::MAX_HEIGHT;
use lanefs_format::slot::Root;
use lanefs_format::summary::{self, DataOwner, SUMMARY_SPAN};
use lanefs_format::usage_node::{self, SEGMENTS_PER_LEAF, SUMMARIES, SegmentUsage};
use lanefs_format::{BlockAddr, BlockRef};
use std::collections::{BTreeMap, BTreeSet};

/// So many summaries that are written anew are read together: on a full volume a checkpoint has
/// some of nearly every segment.
const TOGETHER: usize = 256;

/// The table as memory holds it; the marks themselves are in [`SegmentTable`].
pub(crate) struct UsageTable {
    tree: Radix,
    /// Leaves whose marks changed since they were written.
    pub dirty: BTreeSet<u64>,
    /// Where the summaries are.
    summaries: Summaries,
    /// The number of segments that the table has.
    segments: u32,
    /// Summary blocks to be written anew though nothing in them changed.
    again: BTreeSet<(SegId, usize)>,
    /// Owners of data blocks that no summary has yet.
    pub owners: Vec<(BlockAddr, DataOwner)>,
}

/// Reads a summary, twice if need be: for one that could not be read once the owners of its
/// segment's blocks would not be known any more.
fn read_summary(source: &impl BlockSource, r: BlockRef, seg: SegId, part: usize) -> Result<Vec<DataOwner>> {
    // It is read once: either it is written anew, or its segment is emptied.
    let read = || source.read_once(r, "segment summary");
    let block = read().or_else(|_| read())?;
    Ok(summary::decode_summary(&block, r.addr, u64::from(seg), part)?)
}

/// Returns the leaf of the usage table that describes a segment.
pub(crate) fn leaf_of(seg: SegId) -> u64 {
    u64::from(seg) / SEGMENTS_PER_LEAF as u64
}

/// The sink to which a checkpoint writes the usage table. Its own blocks change its content, so the
/// sink takes note of leaves that have to be written while it is.
pub(crate) trait TableSink: BlockSink {
    /// Notes that a leaf has to be written.
    fn touch_leaf(&mut self, leaf: u64);
    /// Takes the first of the leaves that have to be written.
    fn next_leaf(&mut self) -> Option<u64>;
    /// Frees a summary: its space was never anybody's (see `space.rs`).
    fn free_summary(&mut self, addr: BlockAddr);
}

impl UsageTable {
    pub fn new(segments: u32) -> UsageTable {
        UsageTable {
            tree: Radix::new(Tree::Usage),
            dirty: BTreeSet::new(),
            summaries: Summaries::default(),
            segments,
            again: BTreeSet::new(),
            owners: Vec::new(),
        }
    }

    /// Notes that there are so many segments now. New ones have no summaries, nor have those that
    /// are gone.
    pub fn set_segments(&mut self, segments: u32) {
        let gone = leaf_of(segments.saturating_sub(1)) + 1..leaf_of(self.segments.saturating_sub(1)) + 1;
        self.dirty.extend(gone);
        debug_assert!(self.summaries.iter().all(|s| s.0 < segments), "summaries of segments that are gone");
        self.again.retain(|a| a.0 < segments);
        self.segments = segments;
    }

    /// Returns whether a segment from `from` on has a summary.
    pub fn has_summaries_from(&self, from: SegId) -> bool {
        self.summaries.iter().any(|s| s.0 >= from)
    }

    /// Reads the whole table and marks the blocks that it names: live and in the tree; its own
    /// blocks live.
    pub fn load(root: Root, segments: &SegmentTable, source: &impl BlockSource) -> Result<UsageTable> {
        let corrupt =
            |why: &str| StoreError::Corrupt { addr: root.r.addr, what: "usage table node", why: why.into() };
        let mut u = UsageTable::new(segments.len());
        u.tree = Radix::open(Tree::Usage, root.r, root.level).ok_or_else(|| corrupt("impossible root"))?;
        let mut leaves = Vec::new();
        u.tree.for_each(source, &mut |leaf, r| {
            leaves.push((leaf, r));
            Ok(())
        })?;
        debug_assert!(leaves.is_sorted_by(|a, b| a.0 < b.0), "leaves come in their order, each once");
        let mut own = BTreeSet::new();
        for (leaf, r) in leaves {
            let block = source.read(r, "usage table node")?;
            let segs = usage_node::decode_leaf(&block, r.addr, leaf, segments.geometry.segment_blocks)?;
            own.insert(r.addr);
            for level in 1..=root.level {
                if let Found::Here(n) = u.tree.node_ref(level, leaf >> (8 * u32::from(level))) {
                    own.insert(n.addr);
                }
            }
            for (i, s) in segs.iter().enumerate() {
                u.apply(segments, leaf * SEGMENTS_PER_LEAF as u64 + i as u64, s)
                    .ok_or_else(|| corrupt("marks outside the log"))?;
            }
        }
        own.remove(&BlockAddr::NONE);
        own.iter().for_each(|a| {
            // A segment with nothing but blocks of the table has no marks there, and is paired.
            if let Some((seg, _)) = segments.geometry.locate(*a) {
                segments.set_paired(seg, true);
            }
            segments.set_live(*a);
        });
        u.check_invariants(segments);
        Ok(u)
    }

    /// Checks, in debug builds, that the table has as many segments as the log, and that what is to
    /// be written is there.
    fn check_invariants(&self, segments: &SegmentTable) {
        debug_assert_eq!(self.segments, segments.len(), "summaries of other segments");
        debug_assert!(self.again.last().is_none_or(|a| a.0 < segments.len()), "{:?}", self.again.last());
    }

    fn apply(&mut self, segments: &SegmentTable, seg: u64, s: &SegmentUsage) -> Option<()> {
        if *s == SegmentUsage::default() {
            return Some(());
        }
        let seg = SegId::try_from(seg).ok().filter(|&s| s < segments.len())?;
        if segments.info(seg).state == State::Reserved {
            return None;
        }
        segments.describe(seg, s.written, s.heat);
        segments.set_paired(seg, s.paired);
        if s.summaries.iter().any(|r| !r.is_none()) {
            self.summaries[seg as usize] = s.summaries;
        }
        for i in 0..segments.geometry.segment_blocks {
            if s.bits[i as usize / 64] >> (i % 64) & 1 == 1 {
                segments.correct(seg, i, true);
            }
        }
        Some(())
    }

    /// Writes the owners of data blocks into the summaries of their segments, and drops the
    /// summaries of empty ones.
    pub fn write_summaries(&mut self, segments: &SegmentTable, sink: &mut impl TableSink) -> Result<()> {
        self.check_invariants(segments);
        let owners = std::mem::take(&mut self.owners);
        let mut parts: BTreeMap<(SegId, usize), Vec<(usize, DataOwner)>> = BTreeMap::new();
        for (addr, owner) in owners {
            if !segments.is_live(addr) {
                continue;
            }
            let Some((seg, i)) = segments.geometry.locate(addr) else { continue };
            let i = i as usize;
            debug_assert!(i / SUMMARY_SPAN < SUMMARIES, "block {i} is in no part of a summary");
            parts.entry((seg, i / SUMMARY_SPAN)).or_default().push((i % SUMMARY_SPAN, owner));
        }
        for which in std::mem::take(&mut self.again) {
            parts.entry(which).or_default();
        }
        for n in 0.. {
            if n % TOGETHER == 0 {
                let next = parts.keys().take(TOGETHER).map(|&(seg, part)| self.summaries[seg as usize][part]);
                sink.expect(&next.filter(|r| !r.is_none()).collect::<Vec<_>>());
            }
            let Some((which, new)) = parts.pop_first() else { break };
            if let Err(e) = self.write_summary(which, &new, sink) {
                // For the next attempt: without its summary a segment cannot be cleaned.
                parts.insert(which, new);
                self.again.extend(parts.keys());
                for ((seg, part), list) in parts {
                    let at = |i: usize| segments.geometry.addr(seg, (part * SUMMARY_SPAN + i) as u32);
                    self.owners.extend(list.into_iter().map(|(i, o)| (at(i), o)));
                }
                return Err(e);
            }
            sink.flush_if_full()?;
        }
        for seg in segments.emptied() {
            if !self.summaries.has(seg) {
                continue;
            }
            let i = segments.info(seg);
            if i.live == 0 && i.tree == 0 && matches!(i.state, State::Free | State::Full) {
                for r in self.summaries.take(seg) {
                    if !r.is_none() {
                        sink.free_summary(r.addr);
                    }
                }
                sink.touch_leaf(leaf_of(seg));
            }
        }
        debug_assert!(self.owners.is_empty() && self.again.is_empty(), "owners that no summary has");
        Ok(())
    }

    fn write_summary(
        &mut self,
        (seg, part): (SegId, usize),
        new: &[(usize, DataOwner)],
        sink: &mut impl TableSink,
    ) -> Result<()> {
        debug_assert!(new.iter().all(|(i, _)| *i < SUMMARY_SPAN), "an owner of another part");
        let old = self.summaries[seg as usize][part];
        let mut all = vec![DataOwner::default(); SUMMARY_SPAN];
        if !old.is_none() {
            // A summary is a hint: one that cannot be read is begun anew.
            if let Ok(o) = read_summary(&*sink, old, seg, part) {
                all = o;
            }
        }
        debug_assert_eq!(all.len(), SUMMARY_SPAN, "a summary read is as long as one written");
        new.iter().for_each(|&(i, o)| all[i] = o);
        let block = summary::encode_summary(u64::from(seg), part, &all);
        let owner = Owner::Summary { segment: u64::from(seg), part: part as u8 };
        let written = sink.write(owner, block)?;
        debug_assert_ne!(written.addr, old.addr, "a summary is written over itself");
        self.summaries[seg as usize][part] = written;
        if !old.is_none() {
            sink.free_summary(old.addr);
        }
        sink.touch_leaf(leaf_of(seg));
        Ok(())
    }

    /// Writes the dirty leaves and the nodes above them. Returns the new root.
    pub fn write_out(&mut self, segments: &SegmentTable, sink: &mut impl TableSink) -> Result<Root> {
        while let Some(leaf) = sink.next_leaf() {
            if let Err(e) = self.write_leaf(segments, leaf, sink) {
                sink.touch_leaf(leaf); // Still to be written, as those behind it are.
                return Err(e);
            }
            sink.flush_if_full()?;
        }
        let (r, level) = self.tree.write_out(sink)?;
        debug_assert!(level <= MAX_HEIGHT, "a table of {level} levels");
        self.check_invariants(segments);
        Ok(Root { r, level })
    }

    fn write_leaf(&mut self, segments: &SegmentTable, leaf: u64, sink: &mut impl TableSink) -> Result<()> {
        let first = leaf * SEGMENTS_PER_LEAF as u64;
        if first >= u64::from(segments.len()) {
            // Those that it described are gone.
            let old = self.tree.set(leaf, BlockRef::NONE, &*sink)?;
            if !old.is_none() {
                sink.free(old.addr);
            }
            return Ok(());
        }
        let segs: Vec<SegmentUsage> = (first..first + SEGMENTS_PER_LEAF as u64)
            .map(|s| SegId::try_from(s).ok().filter(|&s| s < segments.len()))
            .map(|s| s.map_or_else(SegmentUsage::default, |s| self.describe(segments, s)))
            .collect();
        let block = usage_node::encode_leaf(leaf, &segs);
        let r = sink.write(Owner::Usage { level: 0, index: leaf }, block)?;
        match self.tree.set(leaf, r, &*sink) {
            Ok(old) if !old.is_none() => {
                debug_assert_ne!(old.addr, r.addr, "a leaf is written over itself");
                sink.free(old.addr);
            }
            Ok(_) => {}
            Err(e) => {
                sink.free(r.addr);
                return Err(e);
            }
        }
        Ok(())
    }

    fn describe(&self, segments: &SegmentTable, seg: SegId) -> SegmentUsage {
        let i = segments.info(seg);
        let mut s = SegmentUsage { summaries: self.summaries[seg as usize], ..Default::default() };
        segments.tree_bits(seg, &mut s.bits);
        // Only who holds the maintenance lock changes marks of the tree, and so who asks here.
        debug_assert_eq!(s.live(), i.tree, "marks of segment {seg}, and how many there are");
        if i.tree > 0 {
            (s.written, s.heat, s.paired) = (i.written, i.heat, segments.is_paired(seg));
        }
        s
    }

    /// Returns all summaries: segment, part, block.
    pub fn summaries(&self) -> Vec<(SegId, usize, BlockRef)> {
        self.summaries.iter().collect()
    }

    /// Returns how many blocks hold summaries.
    pub fn summary_blocks(&self, segments: &SegmentTable) -> u64 {
        let all = self.summaries();
        all.iter()
            .filter(|(_, _, r)| segments.is_live(r.addr))
            .map(|(_, _, r)| segments.blocks_at(r.addr))
            .sum()
    }

    /// Forgets a summary that cannot be used.
    pub fn drop_summary(&mut self, seg: SegId, part: usize) {
        if self.summaries.has(seg) {
            if let Some(r) = self.summaries[seg as usize].get_mut(part) {
                *r = BlockRef::NONE;
            }
            self.dirty.insert(leaf_of(seg));
        }
    }

    /// Returns the owners of a segment's data blocks, as far as known; inode 0 where nothing is.
    pub fn owners(&self, segments: &SegmentTable, seg: SegId, source: &impl BlockSource) -> Vec<DataOwner> {
        let mut all = vec![DataOwner::default(); segments.geometry.segment_blocks as usize];
        for (part, r) in self.summaries[seg as usize].iter().enumerate() {
            if r.is_none() {
                continue;
            }
            if let Ok(o) = read_summary(source, *r, seg, part) {
                for (i, o) in o.into_iter().enumerate() {
                    if let Some(x) = all.get_mut(part * SUMMARY_SPAN + i) {
                        *x = o;
                    }
                }
            }
        }
        all
    }

    /// Returns every block of the table and of the summaries. All nodes of the table are in memory.
    pub fn blocks(&self) -> Vec<(BlockRef, Owner)> {
        let mut out = Vec::new();
        let mut nodes = BTreeSet::new();
        let mut leaf = 0;
        while let Found::Here(Some(l)) = self.tree.next_used(leaf) {
            if let Found::Here(r) = self.tree.get(l) {
                out.push((r, Owner::Usage { level: 0, index: l }));
            }
            nodes.extend((1..=self.tree.root().1).map(|level| (level, l >> (8 * u32::from(level)))));
            leaf = l + 1;
        }
        for (level, index) in nodes {
            if let Found::Here(r) = self.tree.node_ref(level, index) {
                out.push((r, Owner::Usage { level, index }));
            }
        }
        let owner = |seg, part| Owner::Summary { segment: u64::from(seg), part: part as u8 };
        out.extend(self.summaries.iter().map(|(seg, part, r)| (r, owner(seg, part))));
        out
    }

    /// Has the next checkpoint write a node anew, whose block the cleaner wants. Returns false if
    /// it is not there.
    pub fn rewrite(
        &mut self,
        level: u8,
        index: u64,
        at: BlockAddr,
        source: &impl BlockSource,
    ) -> Result<bool> {
        if level == 0 {
            let current = matches!(self.tree.get(index), Found::Here(r) if r.addr == at);
            if current {
                self.dirty.insert(index);
            }
            return Ok(current);
        }
        match self.tree.node_ref(level, index) {
            Found::Here(r) if r.addr == at => self.tree.rewrite_node(level, index, source),
            _ => Ok(false),
        }
    }

    /// Returns the reference of a node, if the way to it is in memory.
    pub fn node(&self, level: u8, index: u64) -> BlockRef {
        let found = if level == 0 { self.tree.get(index) } else { self.tree.node_ref(level, index) };
        if let Found::Here(r) = found { r } else { BlockRef::NONE }
    }

    /// Returns the reference of a summary block.
    pub fn summary(&self, segment: u64, part: u8) -> BlockRef {
        let parts = usize::try_from(segment).map_or(&NO_PARTS, |seg| &self.summaries[seg]);
        parts.get(usize::from(part)).copied().unwrap_or_default()
    }

    /// Does the same for a summary block.
    pub fn rewrite_summary(&mut self, segment: u64, part: u8, at: BlockAddr) -> bool {
        let Ok(seg) = SegId::try_from(segment) else { return false };
        let here = !at.is_none() && self.summary(segment, part).addr == at;
        if here {
            self.again.insert((seg, usize::from(part)));
        }
        here
    }
}
