//! Recovery's walk along the chains: every block behind the positions of the slot is tried for a
//! batch. Without a slot every block of the log is.
//!
//! A block that the device cannot read, tried three times, is no batch only where the log shows it:
//! the next batch behind it names the one before, and that is there. Everywhere else (behind the
//! last batch that can be read, or where a batch should be) it may have been acknowledged, and
//! nobody can say; then opening is an error, unless losses are accepted.
//!
//! A block that is nothing that we wrote to its place is read once more: a device that returns
//! something else once, and reports no error, would have the batch there missing, and what
//! recovery then writes would end the log before it.

use crate::error::{Result, StoreError};
use crate::log::Log;
use crate::log::mlog::place_of;
use crate::log::segment::{Geometry, SegId};
use lanefs_format::batch::{self, BatchHead, BatchKind, Context, Message};
use lanefs_format::header::{BlockKind, verify_sealed};
use lanefs_format::slot::Slot;
use lanefs_format::{BLOCK_SIZE, Block, BlockAddr};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

/// A whole fsync message.
pub(crate) struct FsyncMessage {
    pub message: Message,
    /// Its first batch's place.
    id: u64,
    /// A later batch states that it was durable.
    pub acked: bool,
}

/// The shares of one epoch, as the scan found them.
pub(crate) type Shares = BTreeMap<u32, Vec<u8>>;

struct Epoch {
    shares: u32,
    found: Shares,
}

/// The content of the chains.
#[derive(Default)]
pub(crate) struct Scan {
    pub blocks: u64,
    pub batches: u64,
    /// Segments walked through.
    pub chain: HashSet<SegId>,
    /// In the order of their last batches.
    pub fsyncs: Vec<FsyncMessage>,
    pub highest_epoch: u64,
    /// Batches that were durable, as later ones state, and are not there.
    pub lost: Vec<(BlockAddr, u64)>,
    /// The last epoch that was committed, as later batches state.
    pub acked_epoch: u64,
    /// The highest generation of a slot that was durable, as batches state.
    pub slot: u64,
    /// Every epoch up to this one that is there was committed, whatever became of its predecessor.
    known: u64,
    /// By number and by the epoch that it names.
    epochs: BTreeMap<(u64, u64), Epoch>,
    parts: BTreeMap<u64, BTreeMap<u32, Vec<u8>>>,
    /// Of each mlog the highest place up to which all was durable, as shares of epochs in any mlog
    /// state.
    named: Vec<u64>,
}

/// The content of one mlog's chain.
#[derive(Default)]
struct Chain {
    /// Place and prior of each batch.
    links: BTreeMap<u64, u64>,
    /// Place and epoch of each share.
    commits: Vec<(u64, u64)>,
    /// By sequence.
    segments: BTreeMap<u64, SegId>,
    /// The place up to which all was durable.
    acked: u64,
    /// The places that cannot be read, behind the position.
    unreadable: Vec<(u64, StoreError)>,
    /// Its messages are those of the scan from here on.
    first: usize,
    /// The segment it ends in, which has no valid link: its address and sequence, and whether the
    /// link was durable for sure.
    unlinked: Option<(BlockAddr, u64, bool)>,
}

impl Scan {
    /// Walks all chains of a slot.
    pub fn run(log: &Log, accept_loss: bool, slot: &Slot) -> Result<Scan> {
        let mut s = Scan::default();
        let mut chains = Vec::with_capacity(slot.positions.len());
        for p in &slot.positions {
            let (mut addr, mut used, mut seq) = (p.segment, p.used.max(1), p.seq);
            let mut c = Chain { first: s.fsyncs.len(), ..Chain::default() };
            while let Some((seg, 0)) = log.segments.geometry.locate(addr) {
                if !s.chain.insert(seg) {
                    break;
                }
                match s.walk_segment(log, &mut c, seg, used, seq)? {
                    // Sequences grow along a chain, so this ends.
                    Some((next, next_seq)) if next_seq > seq => (addr, used, seq) = (next, 1, next_seq),
                    Some(_) => break,
                    None => {
                        // The link is written with the first batch: one before the position was
                        // flushed before the slot.
                        c.unlinked = Some((addr, seq, seq == p.seq && p.used > 1));
                        break;
                    }
                }
            }
            chains.push(c);
        }
        debug_assert!(chains.is_sorted_by_key(|c| c.first), "messages are in the order of their chains");
        debug_assert_eq!(chains.len(), slot.positions.len(), "a chain for each position");
        let mut end = s.fsyncs.len();
        for (i, (p, c)) in slot.positions.iter().zip(&mut chains).enumerate().rev() {
            c.acked = c.acked.max(s.named.get(i).copied().unwrap_or(0));
            s.look_for_gaps(&log.segments.geometry, c, place_of(p.seq, p.used));
            s.look_at_links(c);
            s.look_at_unreadable(log, accept_loss, c, place_of(p.seq, p.used))?;
            debug_assert!(c.first <= end, "the messages of chain {i} end before they begin");
            s.fsyncs[c.first..end].iter_mut().for_each(|m| m.acked = m.id <= c.acked);
            end = c.first;
            let epochs = c.commits.iter().filter(|e| e.0 <= c.acked).map(|e| e.1);
            s.acked_epoch = s.acked_epoch.max(epochs.max().unwrap_or(0));
        }
        debug_assert_eq!(end, 0, "a message is in no chain");
        s.parts.clear();
        Ok(s)
    }

    /// Looks from the last batch that was durable back to the position: what is missing was
    /// acknowledged and lost.
    fn look_for_gaps(&mut self, g: &Geometry, c: &Chain, from: u64) {
        let mut at = c.acked;
        while at >= from {
            let prior = match c.links.get(&at) {
                Some(prior) => *prior,
                None => {
                    let seg = c.segments.get(&(at >> 16)).copied();
                    self.lost.push((seg.map_or(BlockAddr(0), |s| g.addr(s, at as u32 & 0xffff)), at));
                    // What came before it nobody can say: on with the one before that is there.
                    c.links.range(..at).next_back().map_or(0, |l| *l.0)
                }
            };
            if prior >= at {
                break; // Not written by us.
            }
            at = prior;
        }
    }

    /// Counts a link that was durable and is not there as lost: it may have led to batches that
    /// were durable.
    fn look_at_links(&mut self, c: &Chain) {
        let Some((addr, seq, sure)) = c.unlinked else { return };
        let unread = c.unreadable.iter().any(|u| u.0 == place_of(seq, 0));
        // A batch of the segment that was durable: so was the link, which was flushed before.
        if !unread && (sure || c.acked >= place_of(seq, 1)) {
            self.lost.push((addr, place_of(seq, 0)));
        }
    }

    /// Returns an error if a place that cannot be read may have held a batch; counts a loss where
    /// these are accepted.
    fn look_at_unreadable(&mut self, log: &Log, accept_loss: bool, c: &Chain, from: u64) -> Result<()> {
        for (place, e) in &c.unreadable {
            let before = c.links.range(place + 1..).next().map(|l| *l.1);
            let nothing_here = before.is_some_and(|p| p < from || c.links.contains_key(&p));
            // The first block of a segment names the next one of the chain.
            if nothing_here && place & 0xffff != 0 {
                continue;
            }
            if !accept_loss {
                return Err(e.clone());
            }
            let seg = c.segments.get(&(place >> 16)).copied();
            let g = &log.segments.geometry;
            self.lost.push((seg.map_or(BlockAddr(0), |s| g.addr(s, *place as u32 & 0xffff)), *place));
        }
        Ok(())
    }

    /// Looks for batches of the store's mount in every segment: no position is known. Blocks that
    /// cannot be read are passed over.
    pub fn everywhere(log: &Log) -> Scan {
        let mut s = Scan::default();
        let g = &log.segments.geometry;
        let volume = log.stamp(0).volume;
        let mut found = Vec::new();
        for seg in (0..g.total()).filter(|seg| g.locate(g.addr(*seg, 0)).is_some()) {
            let mut blocks = vec![Block([0; BLOCK_SIZE]); g.segment_blocks as usize];
            for (i, b) in blocks.iter_mut().enumerate() {
                let one = &mut [(g.addr(seg, i as u32), &mut *b)];
                if log.io.read_blocks(one, "search for the log").is_err() {
                    b.0.fill(0);
                }
            }
            s.blocks += blocks.len() as u64;
            for (i, b) in blocks.iter().enumerate() {
                let addr = g.addr(seg, i as u32);
                match verify_sealed(b, addr).filter(|(_, h)| h.volume.get() == volume) {
                    Some((BlockKind::Batch, h)) => {
                        let seq = h.index.get();
                        if let Some((head, range, n)) =
                            batch::decode_batch(&blocks[i..], addr, log.context(seq))
                        {
                            let bytes = batch::bytes_of(&blocks[i..i + n])[range].to_vec();
                            found.push(((seq, i), head, bytes));
                            s.chain.insert(seg);
                        }
                    }
                    Some((BlockKind::Chain, _)) | None => {}
                    // What a checkpoint wrote names an epoch that was committed before.
                    Some((_, h)) => s.known = s.known.max(h.epoch.get()),
                }
            }
        }
        found.sort_unstable_by_key(|f| f.0);
        debug_assert!(s.chain.len() <= found.len(), "a segment without a batch is in the log");
        s.batches = found.len() as u64;
        found.iter().for_each(|(_, head, bytes)| s.take(*head, bytes));
        s.parts.clear();
        s
    }

    fn walk_segment(
        &mut self,
        log: &Log,
        c: &mut Chain,
        seg: SegId,
        used: u32,
        seq: u64,
    ) -> Result<Option<(BlockAddr, u64)>> {
        let g = &log.segments.geometry;
        let n = g.segment_blocks as usize;
        let mut blocks = vec![Block([0; BLOCK_SIZE]); n];
        {
            let mut reqs: Vec<_> =
                blocks.iter_mut().enumerate().map(|(i, b)| (g.addr(seg, i as u32), b)).collect();
            const WHAT: &str = "recovery's scan of the log";
            if log.io.read_blocks(&mut reqs, WHAT).is_err() {
                for (i, r) in reqs.iter_mut().enumerate() {
                    let mut one = || log.io.read_blocks(std::slice::from_mut(r), WHAT);
                    if let Err(e) = one().or_else(|_| one()) {
                        r.1.0.fill(0);
                        if i == 0 || i >= used as usize {
                            c.unreadable.push((place_of(seq, i as u32), e));
                        }
                    }
                }
            }
        }
        self.blocks += n as u64;
        c.segments.insert(seq, seg);
        let ctx = log.context(seq);
        let (mut found, doubtful) = batches(g, seg, &blocks, used, ctx);
        if self.read_again(log, c, (seg, seq), &mut blocks, &doubtful) {
            found = batches(g, seg, &blocks, used, ctx).0;
        }
        for (i, head, range, len) in found {
            self.batches += 1;
            c.links.insert(place_of(seq, i as u32), head.prior);
            c.acked = c.acked.max(head.acked);
            self.slot = self.slot.max(head.slot);
            if head.kind == BatchKind::Commit {
                c.commits.push((place_of(seq, i as u32), head.epoch));
            }
            self.take(head, &batch::bytes_of(&blocks[i..i + len])[range]);
        }
        Ok(batch::decode_chain(&blocks[0], g.addr(seg, 0), ctx).map(|l| (l.successor, l.successor_seq)))
    }

    /// Reads once more what is nothing, since a batch that was read wrong once would be missing;
    /// returns whether something else was read now.
    fn read_again(
        &self,
        log: &Log,
        c: &mut Chain,
        (seg, seq): (SegId, u64),
        blocks: &mut [Block],
        doubtful: &[usize],
    ) -> bool {
        let g = &log.segments.geometry;
        let unread = |i: usize| c.unreadable.iter().any(|u| u.0 == place_of(seq, i as u32));
        let again: Vec<usize> = doubtful.iter().copied().filter(|i| !unread(*i)).collect();
        debug_assert!(again.is_sorted_by(|a, b| a < b) && again.last().is_none_or(|i| *i < blocks.len()));
        let mut now = vec![Block([0; BLOCK_SIZE]); again.len()];
        let mut reqs: Vec<_> = again.iter().zip(&mut now).map(|(i, b)| (g.addr(seg, *i as u32), b)).collect();
        const WHAT: &str = "recovery's second look at the log";
        if log.io.read_blocks(&mut reqs, WHAT).is_err() {
            for (i, r) in again.iter().zip(&mut reqs) {
                let mut one = || log.io.read_blocks(std::slice::from_mut(r), WHAT);
                if let Err(e) = one().or_else(|_| one()) {
                    r.1.0.fill(0);
                    c.unreadable.push((place_of(seq, *i as u32), e));
                }
            }
        }
        drop(reqs);
        let mut other = false;
        for (i, b) in again.into_iter().zip(now) {
            other |= blocks[i].0 != b.0;
            blocks[i] = b;
        }
        other
    }

    /// Takes one batch; when its message is whole, takes that.
    fn take(&mut self, head: BatchHead, bytes: &[u8]) {
        self.highest_epoch = self.highest_epoch.max(head.epoch);
        let whole = if head.parts == 1 {
            bytes.to_vec()
        } else {
            let parts = self.parts.entry(head.id).or_default();
            parts.insert(head.part, bytes.to_vec());
            if parts.len() < head.parts as usize {
                return;
            }
            let parts = self.parts.remove(&head.id).unwrap_or_default();
            parts.into_values().flatten().collect()
        };
        match head.kind {
            BatchKind::Fsync => {
                if let Some(message) = batch::decode_message(&whole) {
                    self.fsyncs.push(FsyncMessage { message, id: head.id, acked: false });
                }
            }
            BatchKind::Commit => {
                let Some((acked, groups)) = batch::decode_share(&whole) else { return };
                self.named.resize(self.named.len().max(acked.len()), 0);
                self.named.iter_mut().zip(acked).for_each(|(n, a)| *n = a.max(*n));
                let e = self
                    .epochs
                    .entry((head.epoch, head.previous))
                    .or_insert_with(|| Epoch { shares: head.shares, found: Shares::new() });
                e.found.insert(head.share, groups.to_vec());
            }
        }
    }

    /// Returns the committed epochs behind `folded`, without a gap, each with its groups. Each
    /// names the one before it. One that was written again together with others (commit.rs, 9)
    /// names what the first of these named.
    pub fn committed(&self, folded: u64) -> Vec<(u64, Vec<u8>)> {
        let mut out: Vec<(u64, Vec<u8>)> = Vec::new();
        let (mut last, mut known) = (folded, self.known);
        for (&(epoch, previous), e) in self.epochs.range((folded.saturating_add(1), 0)..) {
            let whole = e.found.len() >= e.shares as usize;
            if !whole {
                // What was written behind it does not count by what a checkpoint knew.
                known = 0;
            }
            if epoch > last && whole && previous <= last.max(known) {
                out.push((epoch, e.found.values().flatten().copied().collect()));
                last = epoch;
            }
        }
        debug_assert!(out.is_sorted_by(|a, b| a.0 < b.0), "an epoch is committed twice, or out of order");
        debug_assert!(out.first().is_none_or(|e| e.0 > folded), "an epoch is folded and comes again");
        debug_assert!(last <= self.highest_epoch.max(folded), "epoch {last} is named by no batch");
        out
    }
}

/// A batch among the blocks of a segment: where it begins, its words, its bytes, and how many
/// blocks it takes.
type Found = (usize, BatchHead, Range<usize>, usize);

/// Returns the batches of a segment from `used` on, and the blocks there, and at the start, that
/// are nothing that we wrote to that place.
fn batches(g: &Geometry, seg: SegId, blocks: &[Block], used: u32, ctx: Context) -> (Vec<Found>, Vec<usize>) {
    let (mut found, mut doubtful) = (Vec::new(), Vec::new());
    if batch::decode_chain(&blocks[0], g.addr(seg, 0), ctx).is_none() {
        doubtful.push(0);
    }
    let mut i = used as usize;
    while i < blocks.len() {
        let addr = g.addr(seg, i as u32);
        if let Some((head, range, len)) = batch::decode_batch(&blocks[i..], addr, ctx) {
            debug_assert!(len > 0 && i + len <= blocks.len(), "a batch of {len} blocks at block {i}");
            found.push((i, head, range, len));
            i += len;
            continue;
        }
        // A batch of several blocks is sealed by its first alone, so a sealed one may lack the
        // others.
        if verify_sealed(&blocks[i], addr).is_none_or(|(kind, _)| kind == BlockKind::Batch) {
            doubtful.push(i);
        }
        i += 1;
    }
    (found, doubtful)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(s: &mut Scan, epoch: u64, previous: u64, share: u32, shares: u32) {
        let kind = BatchKind::Commit;
        let head = BatchHead {
            kind,
            id: epoch * 10 + u64::from(share),
            epoch,
            previous,
            part: 0,
            parts: 1,
            share,
            shares,
            prior: 0,
            acked: 0,
            slot: 0,
        };
        s.take(head, &[0, 0, 0, 0, epoch as u8]);
    }

    #[test]
    fn committed_is_a_prefix_of_whole_epochs() {
        let mut s = Scan::default();
        share(&mut s, 9, 5, 0, 1);
        share(&mut s, 10, 9, 0, 2);
        share(&mut s, 12, 10, 0, 1);
        share(&mut s, 3, 2, 0, 1);
        let epochs = |s: &Scan, f| s.committed(f).iter().map(|c| c.0).collect::<Vec<_>>();
        assert_eq!(epochs(&s, 5), [9]); // 10 misses a share.
        assert_eq!(epochs(&s, 4), [0u64; 0]); // 5 is missing.
        assert_eq!(epochs(&s, 7), [9]); // 5 was folded.
        share(&mut s, 10, 9, 1, 2);
        assert_eq!(epochs(&s, 5), [9, 10, 12]);
    }

    #[test]
    fn epochs_written_again_as_one_stand_for_all_of_them() {
        let mut s = Scan::default();
        // 6 was before the position, 7 and 8 are behind it; a checkpoint wrote all three again as
        // one.
        share(&mut s, 7, 6, 0, 1);
        share(&mut s, 8, 7, 0, 1);
        share(&mut s, 10, 8, 0, 1);
        let epochs = |s: &Scan, f| s.committed(f).iter().map(|c| c.0).collect::<Vec<_>>();
        assert_eq!(epochs(&s, 5), [0u64; 0]); // 6 is missing.
        share(&mut s, 8, 5, 0, 1);
        assert_eq!(epochs(&s, 5), [8, 10]);
        // 7 was still under way: it is torn, and there all the same.
        s.epochs.get_mut(&(7, 6)).unwrap().found.clear();
        assert_eq!(epochs(&s, 5), [8, 10]);
    }

    #[test]
    fn a_message_needs_all_its_parts() {
        let mut bytes = Vec::new();
        batch::put_message_head(&mut bytes, b"", 0);
        let mut s = Scan::default();
        let head = BatchHead {
            kind: BatchKind::Fsync,
            id: 7,
            epoch: 0,
            previous: 0,
            part: 0,
            parts: 2,
            share: 0,
            shares: 1,
            prior: 0,
            acked: 0,
            slot: 0,
        };
        s.take(BatchHead { part: 1, ..head }, &bytes[3..]);
        assert!(s.fsyncs.is_empty());
        s.take(head, &bytes[..3]);
        assert_eq!(s.fsyncs.len(), 1);
    }
}
