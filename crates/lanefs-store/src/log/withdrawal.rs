//! Segments that come and go at the end of the table, with the size of the last device or with a
//! device. Those that come are free at once. Those that are to go are withdrawn first.
//!
//! 1. From the moment in which they are withdrawn none is claimed: what is free of them is put
//!    aside, and what becomes free later (see `pool`). So the number of those in use only falls.
//!    More can be withdrawn in front of them.
//! 2. Heads that have one open let go of it, full or not, and slack is given out of none
//!    ([`Mlog::close_withdrawn`]). A chain that goes through one goes on behind it
//!    ([`Mlog::leave_withdrawn`]), and checkpoints pass it.
//! 3. When all are aside (invariant 3 of `segment`: none has a mark, and no slot or batch that
//!    recovery may read names one) nothing refers to them, on the devices or in memory, but readers
//!    that come late: these ask again.
//! 4. Then they go from the table, or come back to their pool: nothing else has changed.
//!
//! Withdrawing, taking back and dropping: under the maintenance lock.

use crate::log::figures::Figures;
use crate::log::geometry::SegId;
use crate::log::mlog::Mlog;
use crate::log::segment::{SegmentTable, State};
use lanefs_format::superblock::MAX_DEVICES;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

impl SegmentTable {
    /// Adds the segments that the last device has, now that it has so many blocks, and puts them
    /// into its pool. One thread at a time.
    pub fn grow(&self, blocks: u64) {
        let new = self.len()..self.geometry.end_with(blocks).max(self.len());
        let there = self.make_figures(&new);
        self.geometry.set_end(new.end);
        debug_assert_eq!(self.len(), new.end, "the new segments are the last ones");
        debug_assert!(self.withdrawn().is_empty(), "segments come and go at once");
        self.use_new(new, there);
    }

    /// Adds the segments of a device of so many blocks that comes behind the others, as
    /// [`SegmentTable::grow`] does.
    pub fn add_device(&self, blocks: u64) {
        let new = self.len()..self.geometry.end_with_another(blocks);
        debug_assert!(self.devices() < MAX_DEVICES, "a volume has {MAX_DEVICES} devices at the most");
        let there = self.make_figures(&new);
        self.geometry.add(blocks);
        self.use_new(new, there);
    }

    /// Makes the figures of segments that come behind the others, where they were never there.
    /// Returns the number of those that ever were.
    fn make_figures(&self, new: &Range<SegId>) -> SegId {
        let there = self.figures.end();
        debug_assert!(new.start <= there, "a gap before segment {}", new.start);
        if there < new.end {
            self.figures.add(Figures::new(there..new.end));
        }
        there
    }

    /// Puts new segments of the last device into its pool. Those below `there` were there before.
    fn use_new(&self, new: Range<SegId>, there: SegId) {
        let last = self.devices() - 1;
        for seg in new.start..new.end.min(there) {
            if let Some(s) = self.figures.get(seg) {
                s.renew(self.geometry.is_reserved(seg));
            }
        }
        let log = self.geometry.log_segments(last);
        let new = new.start.max(log.start)..new.end;
        if !new.is_empty() {
            self.counts.free.fetch_add(new.len() as u32, Relaxed);
            self.all_pools[last].lock().put_unused(new);
        }
        self.check_invariants();
    }

    /// Returns the first segment from `from` on below which `n` segments are free; `None` if there
    /// are not so many.
    pub fn end_of_free(&self, from: SegId, n: usize) -> Option<SegId> {
        let (last, others) = self.pools().split_last()?;
        let others: usize = others.iter().map(|pool| pool.lock().len()).sum();
        let mut runs: Vec<_> = last.lock().runs().collect();
        runs.sort_unstable_by_key(|run| run.start);
        let mut need = n.saturating_sub(others);
        debug_assert!(from <= self.len(), "segment {from} of {}", self.len());
        for run in runs {
            if need <= run.len() {
                return Some(from.max(if need == 0 { 0 } else { run.start + need as SegId }));
            }
            need -= run.len();
        }
        (need == 0).then_some(from)
    }

    /// Withdraws the segments from `from` on, of the last device.
    pub fn withdraw(&self, from: SegId) {
        debug_assert!(from <= self.withdrawn().start, "others are withdrawn: {:?}", self.withdrawn());
        debug_assert!(self.geometry.log_segments(self.devices() - 1).start <= from, "segment {from}");
        self.counts.withdrawn.store(from, Relaxed);
        let mut pool = self.all_pools[self.devices() - 1].lock();
        let taken = pool.withdraw(from);
        let before = self.counts.free.fetch_sub(taken as u32, Relaxed);
        debug_assert!(before >= taken as u32, "{taken} of {before} free segments are withdrawn");
    }

    /// Returns the segments that are withdrawn.
    pub fn withdrawn(&self) -> Range<SegId> {
        let end = self.len();
        self.counts.withdrawn.load(Relaxed).min(end)..end
    }

    /// Returns whether a segment is withdrawn.
    pub fn is_withdrawn(&self, seg: SegId) -> bool {
        seg >= self.counts.withdrawn.load(Relaxed)
    }

    /// Returns the number of segments that can hold the log and are not withdrawn.
    pub fn usable(&self) -> u32 {
        let (all, less) = (self.geometry.usable(), self.withdrawn().len() as u32);
        debug_assert!(less <= all, "{less} of {all} segments are withdrawn");
        all - less
    }

    /// Returns the segments that are withdrawn and not aside: in use, or in somebody's hands.
    pub fn withdrawn_in_use(&self) -> u32 {
        let aside = self.all_pools[self.devices() - 1].lock().aside();
        let all = self.withdrawn().len();
        debug_assert!(aside <= all, "{aside} of {all} segments are aside");
        all as u32 - aside as u32
    }

    /// Returns the full ones among them that have live blocks.
    pub fn withdrawn_full(&self) -> Vec<SegId> {
        let full = |seg: &SegId| {
            let i = self.info(*seg);
            i.state == State::Full && i.live > 0
        };
        self.all_known().filter(|seg| self.is_withdrawn(*seg)).filter(full).collect()
    }

    /// Has all that was withdrawn be used again.
    pub fn take_back_withdrawn(&self) {
        let stale = |seg| self.stale_since(seg) > 0;
        let mut pool = self.all_pools[self.devices() - 1].lock();
        let back = pool.put_back_withdrawn(stale);
        self.counts.free.fetch_add(back as u32, Relaxed);
        self.counts.withdrawn.store(SegId::MAX, Relaxed);
        drop(pool);
        self.check_invariants();
    }

    /// Drops the segments that are withdrawn, all of which are aside; with them the last device,
    /// if `device` says so.
    pub fn drop_withdrawn(&self, device: bool) {
        assert_eq!(self.withdrawn_in_use(), 0, "segments are dropped that are in use");
        let end = self.withdrawn().start;
        // Nobody may find one on a list.
        self.review().forget_freed(end);
        self.all_pools[self.devices() - 1].lock().forget_withdrawn();
        self.counts.withdrawn.store(SegId::MAX, Relaxed);
        match device {
            true => self.geometry.remove(),
            false => self.geometry.set_end(end),
        }
        debug_assert!(self.len() <= end, "segments {end} to {} are left", self.len());
        self.check_invariants();
    }
}

impl Mlog {
    /// Lets go of segments that heads have open and that are withdrawn.
    pub fn close_withdrawn(&self, t: &SegmentTable) {
        let mut h = self.heads.lock();
        for head in &mut h.open {
            if let Some(gone) = head.take_if(|head| t.is_withdrawn(head.seg)) {
                t.close(gone.seg);
            }
        }
        h.begun.retain(|(_, head)| {
            debug_assert_eq!(t.info(head.seg).state, State::Open, "{head:?} is no head");
            let stays = !t.is_withdrawn(head.seg);
            if !stays {
                t.close(head.seg);
            }
            stays
        });
        h.check_invariants(t);
    }

    /// Returns whether the log is written to a withdrawn segment, or will be in the next one.
    pub fn is_in_withdrawn(&self, t: &SegmentTable) -> bool {
        let node = self.heads.lock().node;
        node.is_some_and(|n| t.is_withdrawn(n.seg) || t.is_withdrawn(n.successor))
    }

    /// Has the next batch go to the next segment of the chain, if it is or leads to one that is
    /// withdrawn. There is a batch in this one, which has written its link.
    pub fn leave_withdrawn(&self, t: &SegmentTable) {
        let mut h = self.heads.lock();
        if let Some(node) = &mut h.node
            && (t.is_withdrawn(node.seg) || t.is_withdrawn(node.successor))
            && !node.link_due
        {
            node.next = t.geometry.segment_blocks;
        }
        h.check_invariants(t);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::geometry::Geometry;
    use crate::log::heat::Heat;
    use lanefs_format::superblock::Layout;
    use std::sync::atomic::AtomicU64;

    fn table() -> SegmentTable {
        let layout = Layout::new(16, 1).unwrap();
        let t = SegmentTable::new(Geometry::new(&layout, &[16 * 20, 16 * 20]));
        t.fill_pools(|_| false);
        t
    }

    #[test]
    fn what_is_withdrawn_is_claimed_by_nobody_and_can_come_back() {
        let t = table();
        let (all, usable) = (t.free_count(), t.usable());
        let open = t.claim(1, State::Open, 1).unwrap();
        t.withdraw(open);
        assert_eq!((t.usable(), t.withdrawn_in_use()), (usable - 19, 1));
        assert_eq!((t.free_count(), t.claim(1, State::Open, 1)), (19, None));
        assert_eq!([t.end_of_free(21, 19), t.end_of_free(21, 20)], [Some(21), None]);
        assert!(t.set_live(t.geometry.addr(open, 3)));
        t.close(open);
        assert_eq!(t.withdrawn_full(), [open]);
        t.clear_live(t.geometry.addr(open, 3));
        assert_eq!((t.pending_free(), t.dead(1)), (0, vec![open]));
        t.release(open);
        assert_eq!((t.withdrawn_in_use(), t.free_count()), (0, 19));
        t.take_back_withdrawn();
        assert_eq!((t.free_count(), t.usable()), (all, usable));
        assert_eq!([t.end_of_free(21, 19), t.end_of_free(21, 21)], [Some(21), Some(23)]);
        // Gone, and there again, as new.
        t.withdraw(35);
        t.withdraw(30);
        t.drop_withdrawn(false);
        assert_eq!((t.len(), t.free_count()), (30, all - 10));
        t.grow(16 * 25);
        assert_eq!((t.len(), t.free_count()), (45, all + 5));
        let first = t.geometry.log_segments(1).start;
        t.withdraw(first);
        t.drop_withdrawn(true);
        assert_eq!((t.len(), t.devices(), t.free_count()), (20, 1, 19));
        t.grow(16 * 22);
        assert_eq!((t.info(20).state, t.free_count()), (State::Free, 21));
        t.add_device(16 * 3);
        assert_eq!((t.info(22).state, t.len(), t.free_count()), (State::Reserved, 25, 23));
    }

    #[test]
    fn heads_and_chains_move_on() {
        let t = table();
        let (seqs, m) = (AtomicU64::new(7), Mlog::new(0, 1, false));
        let mut out = Vec::new();
        m.open_node(&t, &seqs).unwrap();
        m.alloc(&t, Heat::Cold, 3, 1, true, &mut out).unwrap();
        let first = t.geometry.log_segments(1).start;
        t.withdraw(first);
        m.close_withdrawn(&t);
        assert!(m.has_no_heads() && m.is_in_withdrawn(&t));
        m.leave_withdrawn(&t);
        // Its link is not written: a batch first.
        for left in [2, 1] {
            let at = m.alloc_batches(&t, &seqs, &[1], true).unwrap();
            assert!(at[0].link.is_some() && m.is_in_withdrawn(&t), "{left} are left");
            m.link_done(at[0].seq);
            m.leave_withdrawn(&t);
        }
        let at = m.alloc_batches(&t, &seqs, &[1], true).unwrap();
        assert!(at[0].addr.device() == 0 && !m.is_in_withdrawn(&t));
        m.link_done(at[0].seq);
        let passed = m.checkpoint_done(&t, &m.position(&t), 0);
        assert_eq!(passed.len(), 2);
        assert_eq!((m.chain_devices(), t.withdrawn_in_use()), (1, 3));
    }
}
