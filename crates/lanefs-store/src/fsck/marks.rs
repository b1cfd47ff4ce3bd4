//! Marks of the blocks of the log that have been seen.

use crate::log::segment::{Geometry, SegId};
use lanefs_format::BlockAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// One bit per block of the log.
pub(super) struct Marks {
    pub geometry: Geometry,
    words: usize,
    /// Written by all threads of a walk. Relaxed: each bit is its own fact (which of two threads
    /// was the first, the read-modify-write decides), and threads are joined before all bits are
    /// looked at.
    bits: Vec<AtomicU64>,
    /// Segments that hold blocks of the tree, if these have copies. As `bits`; only ever set.
    paired: Vec<AtomicBool>,
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
        let bits = (0..geometry.total() as usize * words).map(|_| AtomicU64::new(0)).collect();
        let paired = (0..geometry.total()).map(|_| AtomicBool::new(false)).collect();
        debug_assert!(words * 64 >= geometry.segment_blocks as usize, "{words} words of a segment's marks");
        Marks { geometry, words, bits, paired }
    }
    pub fn mark(&self, addr: BlockAddr) -> Marked {
        let Some((seg, i)) = self.geometry.locate(addr) else { return Marked::Outside };
        let bit = 1u64 << (i % 64);
        let was = self.bits[seg as usize * self.words + i as usize / 64].fetch_or(bit, Relaxed);
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
        self.paired[seg as usize].store(true, Relaxed);
        match (self.mark(addr), self.mark(addr.plus(u64::from(half)))) {
            (Marked::First, Marked::First) => Marked::First,
            _ => Marked::Again,
        }
    }
    /// Takes the marks of a block of the tree.
    pub fn unmark_node(&self, addr: BlockAddr) {
        if let Some((seg, i)) = self.geometry.locate(addr) {
            let one = |i: u32| {
                let word = &self.bits[seg as usize * self.words + i as usize / 64];
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
        self.paired[seg as usize].load(Relaxed)
    }
    pub fn word(&self, seg: SegId, w: usize) -> u64 {
        debug_assert!(w < self.words, "word {w} of {}", self.words);
        self.bits[seg as usize * self.words + w].load(Relaxed)
    }
    pub fn words(&self) -> usize {
        self.words
    }
}
