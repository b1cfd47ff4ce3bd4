//! Which blocks of the log have been seen.

use crate::segment::{Geometry, SegId};
use crate::types::BlockAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One bit per block of the log. Atomics are relaxed: each bit is its own fact, and threads are joined before all of
/// them are looked at.
pub(super) struct Marks {
    pub geometry: Geometry,
    words: usize,
    bits: Vec<AtomicU64>,
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
        Marks { geometry, words, bits }
    }
    pub fn mark(&self, addr: BlockAddr) -> Marked {
        let Some((seg, i)) = self.geometry.locate(addr) else { return Marked::Outside };
        let bit = 1u64 << (i % 64);
        let was = self.bits[seg as usize * self.words + i as usize / 64].fetch_or(bit, Relaxed);
        if was & bit == 0 { Marked::First } else { Marked::Again }
    }
    pub fn unmark(&self, addr: BlockAddr) {
        if let Some((seg, i)) = self.geometry.locate(addr) {
            self.bits[seg as usize * self.words + i as usize / 64].fetch_and(!(1u64 << (i % 64)), Relaxed);
        }
    }
    pub fn word(&self, seg: SegId, w: usize) -> u64 {
        self.bits[seg as usize * self.words + w].load(Relaxed)
    }
    pub fn words(&self) -> usize {
        self.words
    }
}
