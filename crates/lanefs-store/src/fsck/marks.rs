//! Marks of the blocks of the log that have been seen.

use crate::log::segment::{Geometry, SegId};
use lanefs_format::BlockAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Segments of a group: a GiB with the usual ones.
const GROUP: usize = 512;

/// The marks of a group of segments.
struct Group {
    /// Written by all threads of a walk. Relaxed: each bit is its own fact (which of two threads
    /// was the first, the read-modify-write decides), and threads are joined before all bits are
    /// looked at.
    bits: Box<[AtomicU64]>,
    /// A bit for each segment that holds blocks of the tree, if these have copies. As `bits`; only
    /// ever set.
    paired: [AtomicU64; GROUP / 64],
}

/// One bit per block of the log. A group's are made when the first of its blocks is marked: a
/// volume of a PiB has 32 GiB of bits, and little in it.
pub(super) struct Marks {
    pub geometry: Geometry,
    words: usize,
    /// Each is made once, by whoever marks first; the cell orders that. Boxed: 16 bytes for a GiB
    /// in which nothing is.
    groups: Box<[OnceLock<Box<Group>>]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Marked {
    First,
    Again,
    Outside,
}

impl Marks {
    pub fn new(geometry: Geometry) -> Marks {
        let words = (geometry.segment_blocks as usize).div_ceil(64);
        let groups = (geometry.total() as usize).div_ceil(GROUP);
        debug_assert!(words * 64 >= geometry.segment_blocks as usize, "{words} words of a segment's marks");
        Marks { geometry, words, groups: (0..groups).map(|_| OnceLock::new()).collect() }
    }
    /// Returns the group of a segment, to be written.
    fn group(&self, seg: SegId) -> &Group {
        debug_assert!(seg < self.geometry.total(), "segment {seg} is none of the log");
        self.groups[seg as usize / GROUP].get_or_init(|| {
            Box::new(Group {
                bits: (0..GROUP * self.words).map(|_| AtomicU64::new(0)).collect(),
                paired: Default::default(),
            })
        })
    }
    /// Returns a word of a segment in its group.
    fn place(&self, seg: SegId, w: usize) -> usize {
        debug_assert!(w < self.words, "word {w} of {}", self.words);
        seg as usize % GROUP * self.words + w
    }
    /// Returns the segments of all groups in which something was marked, in order.
    pub fn touched(&self) -> impl Iterator<Item = SegId> + '_ {
        let there = self.groups.iter().enumerate().filter(|(_, g)| g.get().is_some());
        let total = self.geometry.total();
        there.flat_map(move |(n, _)| {
            let first = (n * GROUP) as SegId;
            first..first.saturating_add(GROUP as SegId).min(total)
        })
    }
    pub fn mark(&self, addr: BlockAddr) -> Marked {
        let Some((seg, i)) = self.geometry.locate(addr) else { return Marked::Outside };
        let bit = 1u64 << (i % 64);
        let was = self.group(seg).bits[self.place(seg, i as usize / 64)].fetch_or(bit, Relaxed);
        if was & bit == 0 { Marked::First } else { Marked::Again }
    }
    /// Does as [`Marks::mark`], for a block of the tree: with its copy, if there is one.
    pub fn mark_node(&self, addr: BlockAddr) -> Marked {
        let Some((seg, i)) = self.geometry.locate(addr) else { return Marked::Outside };
        if self.geometry.copies < 2 {
            return self.mark(addr);
        }
        let half = self.geometry.half();
        if i >= half {
            return Marked::Outside; // Where copies lie.
        }
        let in_group = seg as usize % GROUP;
        self.group(seg).paired[in_group / 64].fetch_or(1 << (in_group % 64), Relaxed);
        match (self.mark(addr), self.mark(addr.plus(u64::from(half)))) {
            (Marked::First, Marked::First) => Marked::First,
            _ => Marked::Again,
        }
    }
    /// Takes the marks of a block of the tree.
    pub fn unmark_node(&self, addr: BlockAddr) {
        if let Some((seg, i)) = self.geometry.locate(addr) {
            let one = |i: u32| {
                let word = &self.group(seg).bits[self.place(seg, i as usize / 64)];
                let was = word.fetch_and(!(1u64 << (i % 64)), Relaxed);
                debug_assert!(was >> (i % 64) & 1 == 1, "block {i} of segment {seg} has no mark");
            };
            debug_assert!(
                self.geometry.copies < 2 || i < self.geometry.half() && self.is_paired(seg),
                "block {i} of segment {seg} was marked as one of the tree"
            );
            one(i);
            if self.geometry.copies == 2 && i < self.geometry.half() {
                one(i + self.geometry.half());
            }
        }
    }
    /// Returns whether blocks of the tree with copies were marked in a segment.
    pub fn is_paired(&self, seg: SegId) -> bool {
        let in_group = seg as usize % GROUP;
        let group = self.groups[seg as usize / GROUP].get();
        group.is_some_and(|g| g.paired[in_group / 64].load(Relaxed) >> (in_group % 64) & 1 == 1)
    }
    pub fn word(&self, seg: SegId, w: usize) -> u64 {
        let group = self.groups[seg as usize / GROUP].get();
        group.map_or(0, |g| g.bits[self.place(seg, w)].load(Relaxed))
    }
    pub fn words(&self) -> usize {
        self.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanefs_format::superblock::Layout;

    /// All bits were there at once: 32 GiB for a volume of a PiB, however little was in it.
    #[test]
    fn groups_are_made_where_something_is_marked() {
        let layout = Layout::new(512, 1).unwrap();
        let total = 1u64 << 38; // Blocks of a PiB.
        let geometry = Geometry::new(&layout, &[total]);
        let marks = Marks::new(geometry.clone());
        assert!(marks.touched().next().is_none());
        let (first, last) = (BlockAddr(total / 2 + 5), BlockAddr(total - 3));
        assert_eq!((marks.mark(first), marks.mark(first)), (Marked::First, Marked::Again));
        assert_eq!(marks.mark_node(last), Marked::First);
        assert_eq!(marks.mark(BlockAddr(total + 5)), Marked::Outside);
        let touched: Vec<SegId> = marks.touched().collect();
        assert_eq!(touched.len(), 2 * GROUP, "two groups, and no more");
        for addr in [first, last] {
            let (seg, i) = geometry.locate(addr).unwrap();
            assert!(touched.contains(&seg));
            assert_eq!(marks.word(seg, i as usize / 64), 1 << (i % 64));
        }
        assert_eq!((marks.word(1, 0), marks.is_paired(1)), (0, false), "nothing is made by looking");
        marks.unmark_node(last);
        assert_eq!((marks.touched().count(), marks.mark(last)), (2 * GROUP, Marked::First));
    }
}
