//! Where the summaries of segments are, as memory has it: by leaves of the usage table, and none
//! for leaves that name no summary.

use crate::log::geometry::SegId;
use lanefs_format::BlockRef;
use lanefs_format::usage_node::{SEGMENTS_PER_LEAF, SUMMARIES};
use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

/// The summaries of one segment.
type Parts = [BlockRef; SUMMARIES];

/// What a segment has that nobody gave a summary.
pub(super) static NO_PARTS: Parts = [BlockRef::NONE; SUMMARIES];

/// The references of all summaries, by segment: see the head of the file.
#[derive(Default)]
pub(super) struct Summaries(BTreeMap<usize, Box<[Parts; SEGMENTS_PER_LEAF]>>);

/// Returns the leaf that describes a segment, and its place there.
fn place(seg: usize) -> (usize, usize) {
    (seg / SEGMENTS_PER_LEAF, seg % SEGMENTS_PER_LEAF)
}

impl Index<usize> for Summaries {
    type Output = Parts;

    fn index(&self, seg: usize) -> &Parts {
        let (leaf, i) = place(seg);
        self.0.get(&leaf).map_or(&NO_PARTS, |l| &l[i])
    }
}

/// For whoever has a summary to name: others had better look first whether there is any.
impl IndexMut<usize> for Summaries {
    fn index_mut(&mut self, seg: usize) -> &mut Parts {
        let (leaf, i) = place(seg);
        let new = || Box::new([NO_PARTS; SEGMENTS_PER_LEAF]);
        &mut self.0.entry(leaf).or_insert_with(new)[i]
    }
}

impl Summaries {
    /// Returns whether a segment has any summary.
    pub fn has(&self, seg: SegId) -> bool {
        self[seg as usize].iter().any(|r| !r.is_none())
    }

    /// Takes those of a segment.
    pub fn take(&mut self, seg: SegId) -> Parts {
        let (leaf, i) = place(seg as usize);
        let taken = self.0.get_mut(&leaf).map_or(NO_PARTS, |l| std::mem::take(&mut l[i]));
        debug_assert!(!self.has(seg), "summaries of segment {seg} are left");
        taken
    }

    /// Returns all that there are: segment, part, block. In this order.
    pub fn iter(&self) -> impl Iterator<Item = (SegId, usize, BlockRef)> + '_ {
        let segments = self.0.iter().flat_map(|(leaf, l)| {
            let first = (leaf * SEGMENTS_PER_LEAF) as SegId;
            (first..).zip(l.iter())
        });
        segments
            .flat_map(|(seg, parts)| parts.iter().enumerate().map(move |(n, r)| (seg, n, *r)))
            .filter(|s| !s.2.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanefs_format::BlockAddr;

    #[test]
    fn what_nobody_named_is_not_there_and_takes_no_memory() {
        let mut s = Summaries::default();
        let r = |n| BlockRef { addr: BlockAddr::new(0, n), crc: 1 };
        assert!(!s.has(7) && s[4_000_000] == NO_PARTS && s.take(9) == NO_PARTS && s.0.is_empty());
        (s[500_000][1], s[43][0], s[42][0]) = (r(1), r(2), r(3));
        assert_eq!(s.0.len(), 2);
        assert_eq!(s.iter().collect::<Vec<_>>(), [(42, 0, r(3)), (43, 0, r(2)), (500_000, 1, r(1))]);
        assert!(s.has(500_000) && s.take(500_000) == [NO_PARTS[0], r(1)] && !s.has(500_000));
        assert_eq!(s.iter().count(), 2);
    }
}
