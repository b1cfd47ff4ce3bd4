//! Places for blocks that are in no batch: those of the tree, and those of data, by their heat.
//!
//! What users write goes to one of three heads, by its expected life. Which one is a wish: before a
//! write is refused, the segments that all three have open are filled, whoever opened them. So
//! three heads keep no more space from users than one does. A small volume has one for what dies
//! soon and what nothing is known of, and another for what stays.
//!
//! On a full volume one mlog takes the blocks of all (`one_log`). It has more than one segment for
//! some of its heads then, and fills what others have begun before it claims another.

use crate::api::Life;
use crate::error::{Result, StoreError};
use crate::log::heat::{ByLife, DATA_HEADS, HEADS, Heat, Runs, take_off};
use crate::log::mlog::{Head, Heads, Mlog};
use crate::log::segment::SegmentTable;

impl Heads {
    /// Returns how many blocks a head can still take of the segments that are open for it, which it
    /// fills up to `size`.
    fn rest(&self, slot: usize, size: u32) -> u32 {
        let begun = self.begun.iter().filter(|b| b.0 == slot).map(|b| &b.1);
        let open = self.open[slot].iter().chain(begun);
        let rest = open.map(|head| {
            debug_assert!(head.next < size, "a full segment is open: {head:?}");
            size - head.next
        });
        rest.sum()
    }

    /// Takes a segment for a head that was begun by that of another mlog.
    fn take_begun(&mut self, slot: usize) -> Option<Head> {
        debug_assert!(slot < self.open.len(), "there is no head {slot}");
        let at = self.begun.iter().position(|b| b.0 == slot)?;
        Some(self.begun.swap_remove(at).1)
    }

    /// Returns the segments that are open for blocks.
    pub(super) fn all_heads(&self) -> impl Iterator<Item = &Head> {
        self.open.iter().flatten().chain(self.begun.iter().map(|b| &b.1))
    }
}

impl Mlog {
    /// Notes that blocks of all lanes come here, or no longer (`one_log`).
    pub fn set_takes_all(&self, all: bool) {
        let mut h = self.heads.lock();
        debug_assert_ne!(h.takes_all, all, "mlog {} is told twice", self.id);
        h.takes_all = all;
    }

    /// Takes away the segments that are open for blocks, with the numbers of their heads.
    pub(super) fn give_heads(&self) -> Vec<(usize, Head)> {
        let mut h = self.heads.lock();
        debug_assert!(!h.takes_all, "mlog {} has them for all", self.id);
        let mut given = std::mem::take(&mut h.begun);
        given.extend(h.open.iter_mut().enumerate().filter_map(|(slot, head)| Some((slot, head.take()?))));
        given
    }

    /// Takes away the segments that heads of other mlogs had begun, those of one head together.
    pub(super) fn give_begun(&self) -> Vec<(usize, Head)> {
        let mut begun = std::mem::take(&mut self.heads.lock().begun);
        begun.sort_unstable_by_key(|b| b.0);
        debug_assert!(begun.iter().all(|b| b.0 < HEADS), "there is no such head: {begun:?}");
        begun
    }

    /// Takes over segments that another mlog has given away.
    pub(super) fn take_over(&self, heads: impl IntoIterator<Item = (usize, Head)>) {
        self.heads.lock().begun.extend(heads);
    }

    /// Returns whether no segment is open for blocks.
    pub fn has_no_heads(&self) -> bool {
        self.heads.lock().all_heads().next().is_none()
    }

    /// Returns which head takes blocks of this heat, and whether it fills paired segments. Blocks
    /// of the tree have heads of their own if they have copies: the second half of their segments
    /// is for these.
    fn head_for(&self, t: &SegmentTable, heat: Heat) -> (usize, bool) {
        let paired = t.geometry.copies == 2 && matches!(heat, Heat::Bucket | Heat::Node);
        let slot = match heat {
            _ if !self.small => heat as usize,
            _ if paired => Heat::Node as usize,
            Heat::Cold => Heat::Cold as usize,
            _ => Heat::Warm as usize,
        };
        (slot, paired)
    }

    /// Gives out `n` blocks of the head for `heat` as runs, which are added to `out`. With `urgent`
    /// the segments kept back for checkpoints and the cleaner may be used.
    pub fn alloc(
        &self,
        t: &SegmentTable,
        heat: Heat,
        n: u32,
        checkpoint: u64,
        urgent: bool,
        out: &mut Runs,
    ) -> Result<()> {
        if heat == Heat::Warm {
            let mut runs = [Runs::new(), std::mem::take(out), Runs::new()];
            let r = self.alloc_data(t, [0, n, 0], checkpoint, urgent, &mut runs);
            *out = std::mem::take(&mut runs[Life::Usual as usize]);
            return r;
        }
        let (mut slot, paired) = self.head_for(t, heat);
        let size = if paired { t.geometry.half() } else { t.geometry.segment_blocks };
        let first = out.len();
        let mut h = self.heads.lock();
        debug_assert!(n > 0 && checkpoint > 0, "{n} blocks for checkpoint {checkpoint}");
        let segments = n.saturating_sub(h.rest(slot, size)).div_ceil(size);
        if segments > 0 && t.free_count() < segments + if urgent { 0 } else { t.reserved_segments() } {
            // The last of all: what is open for the other kind of block of the tree.
            let other = match heat {
                Heat::Node if urgent && !paired => Heat::Bucket,
                Heat::Bucket if urgent && !paired => Heat::Node,
                _ => return Err(StoreError::NoSpace),
            };
            slot = self.head_for(t, other).0;
            if h.rest(slot, size) < n {
                return Err(StoreError::NoSpace);
            }
        }
        let mut left = n;
        while left > 0 {
            left -= self.take_run(&mut h, t, heat, slot, left, checkpoint, out)?;
        }
        debug_assert_eq!(out[first..].iter().map(|r| r.1).sum::<u32>(), n, "as many as were asked for");
        h.check_invariants(t);
        Ok(())
    }

    /// Gives out blocks for what users wrote, so many of each expected life, as runs, which are
    /// added to `out`: for all of it or for none. `urgent`: as in [`Mlog::alloc`].
    ///
    /// Data goes to slack first, whatever its life: where there is slack little is free, and
    /// segments are for what cannot go there. What does not find slack goes to the heads, and to
    /// free segments only while there are enough (`slack`, 5). Where there are too few for three
    /// heads, it goes wherever a head has blocks left.
    pub fn alloc_data(
        &self,
        t: &SegmentTable,
        wanted: ByLife<u32>,
        checkpoint: u64,
        urgent: bool,
        out: &mut ByLife<Runs>,
    ) -> Result<()> {
        let size = t.geometry.segment_blocks;
        let slots = Life::ALL.map(|life| self.head_for(t, Heat::of(life)).0);
        let all: u32 = wanted.iter().sum();
        let before: u32 = out.iter().flatten().map(|r| r.1).sum();
        let mut h = self.heads.lock();
        // Only who needs a segment reads how many there are, which checkpoints write.
        let are_free = |segments: u32| {
            let keep = || if urgent { 0 } else { t.reserved_segments() + t.slack.kept() };
            segments == 0 || t.free_count() >= segments + keep()
        };
        let slack = h.slack.reach(t, all, urgent);
        let mut left = wanted;
        let from_slack = take_off(&mut left, slack);
        let missing = |slot| {
            let n: u32 = left.iter().zip(slots).filter(|l| l.1 == slot).map(|l| l.0).sum();
            n.saturating_sub(h.rest(slot, size)).div_ceil(size)
        };
        let is_spread = are_free(DATA_HEADS.into_iter().map(missing).sum());
        let open: u32 = DATA_HEADS.into_iter().map(|slot| h.rest(slot, size)).sum();
        if !is_spread && !are_free((all - slack).saturating_sub(open).div_ceil(size)) {
            return Err(StoreError::NoSpace);
        }
        for life in Life::ALL {
            let (i, heat) = (life as usize, Heat::of(life));
            h.slack.give(t, from_slack[i], checkpoint, &mut out[i]);
            while left[i] > 0 {
                let other = || DATA_HEADS.into_iter().find(|slot| h.rest(*slot, size) > 0);
                let is_full = h.rest(slots[i], size) == 0;
                let slot = if is_full && !is_spread { other().unwrap_or(slots[i]) } else { slots[i] };
                left[i] -= self.take_run(&mut h, t, heat, slot, left[i], checkpoint, &mut out[i])?;
            }
        }
        let given: u32 = out.iter().flatten().map(|r| r.1).sum();
        debug_assert_eq!(given - before, all, "as many as were asked for");
        h.check_invariants(t);
        Ok(())
    }

    /// Takes up to `most` blocks of the segment that a head has open, or of one that is claimed for
    /// it. Returns how many.
    #[expect(clippy::too_many_arguments)]
    fn take_run(
        &self,
        h: &mut Heads,
        t: &SegmentTable,
        heat: Heat,
        slot: usize,
        most: u32,
        checkpoint: u64,
        out: &mut Runs,
    ) -> Result<u32> {
        let (own, paired) = self.head_for(t, heat);
        let size = if paired { t.geometry.half() } else { t.geometry.segment_blocks };
        let begun = h.open[slot].take().or_else(|| h.take_begun(slot));
        let mut head = match begun.filter(|head| head.next < size) {
            Some(head) => head,
            None => {
                debug_assert!(begun.is_none(), "a full segment is open: {begun:?}");
                debug_assert_eq!(slot, own, "a segment is opened by the head that it is for");
                // What shares a head with data of all kinds may be long-lived.
                let heat = if heat == Heat::Hot && self.small { Heat::Warm } else { heat };
                let seg = self.claim_open(h, t, heat as u8).ok_or(StoreError::NoSpace)?;
                t.set_paired(seg, paired);
                Head { seg, next: 0 }
            }
        };
        debug_assert_eq!(t.is_paired(head.seg), paired, "a {heat:?} block in segment {}", head.seg);
        let take = most.min(size - head.next);
        debug_assert!(take > 0, "a run of no blocks");
        t.touch(head.seg, checkpoint);
        out.push((t.geometry.addr(head.seg, head.next), take));
        head.next += take;
        h.open[slot] = Some(head);
        if head.next == size {
            t.close(head.seg);
            h.open[slot] = None;
        }
        Ok(take)
    }
}
