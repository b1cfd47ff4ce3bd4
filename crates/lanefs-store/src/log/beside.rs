//! Data beside its batch: the few pages of an fsync get the blocks of the chain in front of the
//! batch that names them. So both are one request to the device, of one piece, where they would be
//! two in different segments: half of what a small fsync costs.
//!
//! 1. The format knows nothing of it. Recovery looks at each block of a chain by itself, and takes
//!    for a batch only what is sealed with the volume's secret for this place of this mount; what
//!    lies between is passed over, as a batch is that did not arrive. So what users write is never
//!    taken for a batch.
//! 2. Pages go where the chain is, and claim no segment: what does not fit into the segment that is
//!    open, with a block for the batch behind it, goes to the heads of data, and the batch fills
//!    what is left.
//! 3. The segment has a summary from its first page on, which the cleaner needs. When the position
//!    has passed it, it is full as any other if something in it lives
//!    ([`SegmentTable::leave_chain`]).
//! 4. A checkpoint gives back all segments that only batches lie in, which is what frees space
//!    where hardly any is free. So pages go there only while there is plenty, not while one log
//!    takes all blocks (`one_log`), and never on a small volume, of which a segment is a large
//!    part.
//! 5. Blocks of such segments are no slack: half of them are dead at once, and one checkpoint later
//!    the emptiest segments there are, which the cleaner takes first.

use crate::api::Life;
use crate::log::heat::{ByLife, Runs};
use crate::log::mlog::Mlog;
use crate::log::segment::SegmentTable;
use std::sync::atomic::Ordering;

/// The most pages that lie in front of their batch: what is larger is no dearer as two requests.
const MOST: u32 = 16;

impl SegmentTable {
    /// Returns whether so much is free that a chain may hold data (4): an eighth of the volume, and
    /// twice what is kept back.
    fn has_plenty(&self) -> bool {
        let (free, usable) = (self.free_count(), self.usable());
        // There is no list of slack then: that is for when less is free.
        !self.is_small() && free / 2 > self.reserved_segments() && free > usable / 8
    }
}

impl Mlog {
    /// Gives out blocks in front of the next batch for what users wrote, so many of each expected
    /// life. Returns whether it did: if not, nothing was given out.
    pub fn alloc_beside(
        &self,
        t: &SegmentTable,
        wanted: ByLife<u32>,
        checkpoint: u64,
        out: &mut ByLife<Runs>,
    ) -> bool {
        let n: u32 = wanted.iter().sum();
        // What lives long is apart from what a checkpoint leaves dead.
        if n == 0 || n > MOST || wanted[Life::Long as usize] > 0 || !t.has_plenty() {
            return false;
        }
        debug_assert!(checkpoint > 0, "the first checkpoint has number 1");
        let mut h = self.heads.lock();
        let Some(node) = h.node.as_mut().filter(|node| node.next + n < t.geometry.segment_blocks) else {
            return false;
        };
        t.touch(node.seg, checkpoint);
        if !std::mem::replace(&mut node.has_data, true) {
            t.count_claimed();
        }
        for (runs, n) in out.iter_mut().zip(wanted).filter(|w| w.1 > 0) {
            runs.push((t.geometry.addr(node.seg, node.next), n));
            node.next += n;
        }
        // Relaxed: a figure, as it is for batches.
        self.appended.fetch_add(u64::from(n), Ordering::Relaxed);
        // It counts as data with its owner: the sum is right then.
        h.written.log = h.written.log.wrapping_sub(u64::from(n));
        h.check_invariants(t);
        true
    }
}
