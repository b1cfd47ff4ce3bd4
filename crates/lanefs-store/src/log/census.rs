//! Counting the segments, for reports.

use crate::log::segment::{SegmentTable, State};

/// The classes of full segments by how much of them is live.
pub(crate) const TENTHS: usize = 10;

/// The number of segments in each state, for reports.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Census {
    pub free: u64,
    /// Full, and nothing of it live: the next checkpoint frees it, unless the last one needs it.
    pub pending: u64,
    /// A head writes there.
    pub open: u64,
    /// In the chain of a log.
    pub chain: u64,
    /// Full, and up to a tenth live, up to two tenths, and so on.
    pub full: [u64; TENTHS],
    pub live_blocks: u64,
}

impl Census {
    /// Returns the number of all that can hold the log.
    pub fn all(&self) -> u64 {
        self.free + self.pending + self.open + self.chain + self.full.iter().sum::<u64>()
    }
}

impl SegmentTable {
    /// Counts the segments in each state, and the full ones by how much of them is live. Looks at
    /// those that were ever used; all the others are free.
    pub fn census(&self) -> Census {
        let mut census = Census::default();
        let size = u64::from(self.geometry.segment_blocks);
        let mut known = 0u64;
        for seg in self.all_known() {
            let i = self.info(seg);
            known += u64::from(i.state != State::Reserved);
            match i.state {
                State::Free => census.free += 1,
                State::Open => census.open += 1,
                State::Chain => census.chain += 1,
                State::Reserved => {}
                State::Full if i.live == 0 => census.pending += 1,
                State::Full => {
                    let tenth = (u64::from(i.live) * TENTHS as u64).saturating_sub(1) / size;
                    census.full[(tenth as usize).min(TENTHS - 1)] += 1;
                }
            }
            census.live_blocks += u64::from(i.live);
        }
        census.free += u64::from(self.geometry.usable()).saturating_sub(known);
        debug_assert!(census.all() <= u64::from(self.geometry.total()), "{census:?}: more than there are");
        census
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::segment::Geometry;
    use lanefs_format::superblock::Layout;

    /// The bounds belong to the lower class: a whole segment is in the last, one block in the
    /// first.
    #[test]
    fn segments_are_counted_by_state_and_by_tenths() {
        let layout = Layout::new(16, 1).unwrap();
        let t = SegmentTable::new(Geometry::new(&layout, &[16 * 12]));
        t.fill_pools(|_| false);
        let full = |blocks: u32| {
            let seg = t.claim(0, State::Open, 1).unwrap();
            (0..blocks).for_each(|i| assert!(t.set_live(t.geometry.addr(seg, i))));
            t.close(seg);
        };
        [0, 1, 8, 9, 16].into_iter().for_each(full);
        t.claim(0, State::Open, 1).unwrap();
        t.claim(0, State::Chain, 0).unwrap();
        let c = t.census();
        assert_eq!((c.free, c.pending, c.open, c.chain), (4, 1, 1, 1));
        assert_eq!(c.full, [1, 0, 0, 0, 1, 1, 0, 0, 0, 1]);
        assert_eq!((c.live_blocks, c.all()), (34, u64::from(t.geometry.usable())));
    }
}
