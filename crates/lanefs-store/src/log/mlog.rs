//! An mlog: one of the independent append logs, with its heads and its chain of node segments.
//!
//! The *node head* takes batches, and the few pages of an fsync in front of them (`beside`). Its
//! segments form a chain: the first block of each (the *link*) names the segment that follows,
//! which is chosen when the segment is opened. Other data and checkpoint blocks go to the other
//! heads, by how soon they are expected to die (`data_heads`): a segment whose blocks die together
//! is free by itself, and of any other the cleaner has to move what lives.
//!
//! 1. The mutex covers bump allocation and nothing else; no I/O, no waiting inside. Callers are
//!    inside a reader section of the store's RPS, so a position recorded by the writer divides
//!    allocations into before and after. Who needs places in several mlogs, all or none, holds
//!    their mutexes together, the lowest first ([`Mlog::alloc_each`]).
//! 2. Whoever moves the node head into a segment writes that segment's link together with its
//!    batch.
//! 3. A batch may be acknowledged only after the links of all earlier segments of the chain were
//!    answered and flushed: [`Mlog::wait_links`] before the flush, which covers
//!    [`Mlog::chain_devices`]. Otherwise recovery could not find the way to it.
//! 4. Chain sequences are unique in a mount and grow along a chain.
//! 5. Every batch names the one before it and the last one up to which all were durable
//!    ([`Mlog::made_durable`]) when it got its place, so that recovery knows of a batch that was
//!    acknowledged and is not there.
//! 6. Of the last batch no other does: damaged later, it looks as if it had never arrived. So a log
//!    that has become quiet gets a *mark*, an empty message whose head means that all before it was
//!    durable, once ([`Mlog::wants_mark`]).

use crate::error::{Result, StoreError};
use crate::log::heat::{HEADS, Heat};
use crate::log::listing::Taken;
use crate::log::segment::{SegId, SegmentTable, State};
use crate::log::space::parts_of_inode;
use lanefs_format::BlockAddr;
use lanefs_format::batch::ChainLink;
use lanefs_format::record;
use lanefs_format::slot::Position;
use lanefs_format::summary::{DataOwner, SUMMARY_SPAN};
use lanefs_sync::CachePadded;
use lanefs_sync::lock::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub seg: SegId,
    pub next: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct NodeHead {
    pub seg: SegId,
    pub next: u32,
    seq: u64,
    pub(super) successor: SegId,
    successor_seq: u64,
    /// The link of `seg` has not been handed to a writer yet.
    pub(super) link_due: bool,
    /// There is data in `seg`: it has a summary to come.
    pub has_data: bool,
}

pub(super) struct Heads {
    pub(super) node: Option<NodeHead>,
    pub open: [Option<Head>; HEADS],
    /// Segments that heads of other mlogs had begun, by the number of the head that fills them
    /// (`one_log`, 4).
    pub begun: Vec<(usize, Head)>,
    /// Blocks of all lanes come here (`one_log`).
    pub takes_all: bool,
    /// What was taken from the list of slack and is not used up; the last is the next.
    pub slack: Taken,
    /// Full segments of the chain that recovery may still have to read, oldest first.
    chain: VecDeque<(SegId, u64)>,
    /// Owners of data blocks given out since the last checkpoint.
    owners: Vec<(BlockAddr, DataOwner)>,
    /// What was written here up to the last checkpoint, for reports.
    pub(super) written: Written,
    /// Groups that are durable (or about to be) and not folded, in the order in which they came.
    pending: Vec<Kept>,
    /// The place of the last batch.
    last: u64,
    /// Messages that are not known to be durable together with all before them, oldest first: the
    /// place of the last batch of each, and whether it is durable itself.
    out: VecDeque<(u64, bool)>,
    /// The place of the last batch up to which all are durable.
    acked: u64,
    /// The place of the last batch when somebody last asked whether the log is quiet, and of the
    /// last mark (6).
    seen: u64,
    mark: u64,
}

/// Blocks that went into an mlog since the volume was opened. Counted where something rare happens
/// anyway: at checkpoints, and where a segment is begun.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Written {
    /// Blocks of data that users wrote.
    pub data: u64,
    /// Blocks of batches and links.
    pub log: u64,
}

/// The figures of an mlog, for reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MlogFigures {
    pub written: Written,
    /// Blocks of batches and of data beside them since the last checkpoint.
    pub appended: u64,
    /// Segments of the chain that recovery would read.
    pub chain: usize,
    /// Blocks of all lanes come here (`one_log`).
    pub takes_all: bool,
    /// Segments that are open for heads, and the blocks that they can still take.
    pub heads: usize,
    pub capacity: u64,
}

/// Groups that came between two positions of checkpoints.
struct Kept {
    /// The number of the last position before them.
    checkpoint: u64,
    groups: Vec<u8>,
}

impl Heads {
    /// Returns the node head, and the segments of `n` blocks that batches of these sizes need
    /// beyond those it has.
    fn plan(&self, n: u32, blocks: &[u32]) -> Result<(NodeHead, u32)> {
        let Some(node) = self.node else {
            return Err(StoreError::Invalid("the volume is open for reading only".into()));
        };
        debug_assert!(!blocks.is_empty(), "a message has a batch");
        let (mut next, mut segments) = (node.next, 0);
        for &b in blocks {
            debug_assert!((1..n).contains(&b), "a batch of {b} blocks behind the link of a segment of {n}");
            if next + b > n {
                segments += 1;
                next = 1;
            }
            next += b;
        }
        debug_assert!(next <= n, "the next head is at block {next} of {n}");
        debug_assert!(segments as usize <= blocks.len(), "no batch needs more than a segment");
        Ok((node, segments))
    }

    /// Checks, in debug builds, that the chain grows along its sequences, that its head and the
    /// open heads lie in their segments, and that nothing counts as durable that has no place.
    pub fn check_invariants(&self, t: &SegmentTable) {
        if !cfg!(debug_assertions) {
            return;
        }
        let size = t.geometry.segment_blocks;
        if let Some(node) = self.node {
            assert!((1..=size).contains(&node.next), "the node head is at block {}", node.next);
            assert!(node.seq < node.successor_seq && node.seg != node.successor, "{node:?}");
            assert!(self.chain.back().is_none_or(|last| last.1 < node.seq), "{node:?}");
            let states = [node.seg, node.successor].map(|seg| t.info(seg).state);
            assert_eq!(states, [State::Chain; 2], "{node:?}");
        }
        for head in self.all_heads() {
            assert!(head.next < size && t.info(head.seg).state == State::Open, "{head:?}");
        }
        self.check_order();
    }

    /// Checks, in debug builds, that places are in order, and that what is kept is.
    fn check_order(&self) {
        debug_assert!(self.acked <= self.last, "durable up to {:#x} of {:#x}", self.acked, self.last);
        debug_assert!(self.mark <= self.last && self.seen <= self.last, "more was seen than there is");
        debug_assert!(self.out.back().is_none_or(|out| out.0 == self.last), "the last message is out");
        debug_assert!(self.out.front().is_none_or(|out| out.0 > self.acked), "a durable message is out");
        debug_assert!(
            self.out.front().is_none_or(|out| !out.1),
            "a durable message waits for none before it"
        );
        debug_assert!(!self.out.is_empty() || self.acked == self.last, "nothing is out, and not all durable");
        debug_assert!(self.pending.is_sorted_by(|a, b| a.checkpoint < b.checkpoint), "kept twice");
    }
}

/// Returns a segment of this device, or of the next one that has any.
fn claim_from(device: usize, t: &SegmentTable, state: State, heat: u8) -> Option<SegId> {
    let n = t.devices();
    (0..n).find_map(|i| t.claim((device + i) % n, state, heat))
}

/// Returns the place of a batch: unique in the mount and growing along a chain.
pub(crate) fn place_of(seq: u64, block: u32) -> u64 {
    seq << 16 | u64::from(block)
}

/// The place of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchPlace {
    pub addr: BlockAddr,
    pub seq: u64,
    /// Unique in the mount and growing along the chain: `seq << 16 | block in the segment`.
    pub place: u64,
    /// The place of the batch before it.
    pub prior: u64,
    /// The place of the last batch up to which all are durable.
    pub acked: u64,
    /// The link to be written with it, its address first.
    pub link: Option<(BlockAddr, ChainLink)>,
}

pub(crate) struct Mlog {
    pub id: usize,
    /// Where it takes segments first. Written when devices come or go. Relaxed: where there is none
    /// it takes those of others.
    device: AtomicUsize,
    /// Fold the heads into two: the volume is too small for more open segments.
    pub(super) small: bool,
    pub(super) heads: CachePadded<Mutex<Heads>>,
    links: Mutex<Vec<u64>>,
    link_written: Condvar,
    /// Length of `links`, so that the usual case is one load. Written by whoever gets a place for a
    /// link, and when that is answered: Release in [`Mlog::link_done`], whose partner is the
    /// Acquire in [`Mlog::wait_links`]: a link is answered before the count without it is seen.
    links_out: AtomicUsize,
    /// Devices that hold a segment of the chain since the last checkpoint, one bit each. Written
    /// under the mutex of the heads, by whoever goes on to another segment and by checkpoints.
    /// Relaxed: who reads it has allocated under that mutex, and so sees the bits it needs.
    chain_devices: AtomicU64,
    /// Blocks appended to the node head since the last checkpoint, those of data beside the batches
    /// among them: recovery reads them. Written under that mutex;
    /// Relaxed, since it is a figure for reports and for the decision to make a checkpoint.
    pub(super) appended: AtomicU64,
    /// Parts of blocks ([`parts_of_inode`]) that inodes take which are made by groups that are
    /// durable in this mlog and not folded. Written with every batch and fold; Relaxed, since it is
    /// an estimate.
    unfolded: AtomicU64,
    /// Small inodes share blocks.
    packed: bool,
}

impl Mlog {
    /// Sets whether small inodes share blocks.
    pub fn with_packs(self, packed: bool) -> Mlog {
        Mlog { packed, ..self }
    }

    pub fn new(id: usize, device: usize, small: bool) -> Mlog {
        Mlog {
            id,
            device: device.into(),
            small,
            heads: CachePadded::new(Mutex::new(Heads {
                node: None,
                open: [None; HEADS],
                begun: Vec::new(),
                takes_all: false,
                slack: Taken::default(),
                chain: VecDeque::new(),
                owners: Vec::new(),
                written: Written::default(),
                pending: Vec::new(),
                last: 0,
                out: VecDeque::new(),
                acked: 0,
                seen: 0,
                mark: 0,
            })),
            links: Mutex::new(Vec::new()),
            link_written: Condvar::new(),
            links_out: AtomicUsize::new(0),
            chain_devices: AtomicU64::new(0),
            appended: AtomicU64::new(0),
            unfolded: AtomicU64::new(0),
            packed: false,
        }
    }

    /// Returns the device that the mlog takes segments of first.
    pub fn device(&self) -> usize {
        self.device.load(Ordering::Relaxed) // see the field
    }

    /// Has it take segments of another device first.
    pub fn set_device(&self, device: usize) {
        debug_assert!(device < lanefs_format::superblock::MAX_DEVICES, "there is no device {device}");
        self.device.store(device, Ordering::Relaxed); // see the field
    }

    /// Returns a segment of the mlog's own device, or of any other that has one.
    fn claim(&self, t: &SegmentTable, state: State, heat: u8) -> Option<SegId> {
        claim_from(self.device(), t, state, heat)
    }

    /// Returns a segment for a head of blocks: of the mlog's own device, or of any other that has
    /// one; where it takes the blocks of all lanes, of the device that has most.
    pub(super) fn claim_open(&self, h: &Heads, t: &SegmentTable, heat: u8) -> Option<SegId> {
        let first = if h.takes_all { t.device_with_most() } else { self.device() };
        claim_from(first, t, State::Open, heat)
    }

    /// Opens the node head at the start of a mount.
    pub fn open_node(&self, t: &SegmentTable, next_seq: &AtomicU64) -> Result<()> {
        let mut h = self.heads.lock();
        debug_assert!(h.node.is_none() && h.chain.is_empty(), "the node head is open already");
        let seg = self.claim(t, State::Chain, Heat::Node as u8).ok_or(StoreError::NoSpace)?;
        let successor = self.claim(t, State::Chain, Heat::Node as u8).ok_or(StoreError::NoSpace)?;
        // Relaxed: uniqueness is all that is asked.
        let seq = next_seq.fetch_add(2, Ordering::Relaxed);
        let (successor_seq, link_due, has_data) = (seq + 1, true, false);
        h.node = Some(NodeHead { seg, next: 1, seq, successor, successor_seq, link_due, has_data });
        self.chain_devices.store(1 << t.geometry.device(seg), Ordering::Relaxed);
        h.check_invariants(t);
        Ok(())
    }

    /// Returns where the next batch would go. Called inside the RPS writer section.
    pub fn position(&self, t: &SegmentTable) -> Position {
        match self.heads.lock().node {
            Some(n) => Position { segment: t.geometry.addr(n.seg, 0), used: n.next, seq: n.seq },
            None => Position::default(),
        }
    }

    /// Gives out places for the batches of one message, each of fewer blocks than a segment has:
    /// for all of them or for none.
    pub fn alloc_batches(
        &self,
        t: &SegmentTable,
        next_seq: &AtomicU64,
        blocks: &[u32],
        urgent: bool,
    ) -> Result<Vec<BatchPlace>> {
        let mut h = self.heads.lock();
        let (node, segments) = h.plan(t.geometry.segment_blocks, blocks)?;
        // Where data goes to slack nobody keeps more than this free.
        let least = || if t.slack.is_on() { t.least_for_slack() } else { t.reserved_segments() };
        if segments > 0 && !urgent && t.free_count() < least() + segments {
            return Err(StoreError::NoSpace);
        }
        let claimed = self.claim_chain(t, segments)?;
        Ok(self.give(&mut h, node, t, next_seq, blocks, claimed))
    }

    /// Gives out places for a message in each of the first mlogs, as [`Mlog::alloc_batches`] with
    /// urgency: for all of them or for none.
    pub fn alloc_each(
        mlogs: &[Mlog],
        t: &SegmentTable,
        next_seq: &AtomicU64,
        messages: &[Vec<u32>],
    ) -> Result<Vec<Vec<BatchPlace>>> {
        debug_assert!(messages.len() <= mlogs.len(), "{} messages for {}", messages.len(), mlogs.len());
        debug_assert!(mlogs.is_sorted_by(|a, b| a.id < b.id), "mutexes are taken in this order (1)");
        let mut heads: Vec<_> = mlogs.iter().zip(messages).map(|(m, b)| (m, m.heads.lock(), b)).collect();
        let mut plans: Vec<(NodeHead, VecDeque<SegId>)> = Vec::with_capacity(heads.len());
        for (m, h, blocks) in &heads {
            let plan = h.plan(t.geometry.segment_blocks, blocks);
            match plan.and_then(|(node, segments)| Ok((node, m.claim_chain(t, segments)?))) {
                Ok(p) => plans.push(p),
                Err(e) => {
                    plans.into_iter().flat_map(|p| p.1).for_each(|s| t.release(s));
                    return Err(e);
                }
            }
        }
        let give = heads.iter_mut().zip(plans);
        Ok(give
            .map(|((m, h, blocks), (node, claimed))| m.give(h, node, t, next_seq, blocks, claimed))
            .collect())
    }

    /// Returns so many segments for the chain, or none.
    fn claim_chain(&self, t: &SegmentTable, segments: u32) -> Result<VecDeque<SegId>> {
        let mut claimed = VecDeque::new();
        for _ in 0..segments {
            match self.claim(t, State::Chain, Heat::Node as u8) {
                Some(s) => claimed.push_back(s),
                None => {
                    claimed.into_iter().for_each(|s| t.release(s));
                    return Err(StoreError::NoSpace);
                }
            }
        }
        debug_assert_eq!(claimed.len(), segments as usize, "all of them or none");
        Ok(claimed)
    }

    /// Gives a message its places, in the head and the segments claimed for it.
    fn give(
        &self,
        h: &mut Heads,
        mut node: NodeHead,
        t: &SegmentTable,
        next_seq: &AtomicU64,
        blocks: &[u32],
        mut claimed: VecDeque<SegId>,
    ) -> Vec<BatchPlace> {
        let n = t.geometry.segment_blocks;
        let before = h.last;
        debug_assert!(h.node.is_some_and(|now| (now.seg, now.next) == (node.seg, node.next)), "an old plan");
        let mut places = Vec::with_capacity(blocks.len());
        for &b in blocks {
            debug_assert!(h.last <= place_of(node.seq, node.next), "the head goes back behind {:#x}", h.last);
            if node.next + b > n
                && let Some(after) = claimed.pop_front()
            {
                h.chain.push_back((node.seg, node.seq));
                debug_assert!(!node.link_due, "a segment is left whose link nobody writes (2)");
                node = NodeHead {
                    seg: node.successor,
                    next: 1,
                    seq: node.successor_seq,
                    successor: after,
                    // Relaxed: uniqueness, and growth along the chain by the mutex.
                    successor_seq: next_seq.fetch_add(1, Ordering::Relaxed),
                    link_due: true,
                    has_data: false,
                };
                self.chain_devices.fetch_or(1 << t.geometry.device(node.seg), Ordering::Relaxed);
            }
            let link = node.link_due.then(|| {
                let mut links = self.links.lock();
                debug_assert!(!links.contains(&node.seq), "two write the link of segment {}", node.seq);
                h.written.log = h.written.log.wrapping_add(1);
                links.push(node.seq);
                drop(links);
                // Relaxed: who waits for this link has seen its place, by the mutex of the heads.
                self.links_out.fetch_add(1, Ordering::Relaxed);
                let successor = t.geometry.addr(node.successor, 0);
                (t.geometry.addr(node.seg, 0), ChainLink { successor, successor_seq: node.successor_seq })
            });
            node.link_due = false;
            let (addr, place) = (t.geometry.addr(node.seg, node.next), place_of(node.seq, node.next));
            places.push(BatchPlace { addr, seq: node.seq, place, prior: h.last, acked: h.acked, link });
            h.last = place;
            node.next += b;
            debug_assert!(node.next <= n, "a batch ends at block {} of {n}", node.next);
            // Relaxed: a figure for reports.
            self.appended.fetch_add(u64::from(b), Ordering::Relaxed);
        }
        debug_assert!(claimed.is_empty(), "{} segments were claimed and not used", claimed.len());
        debug_assert_eq!(places.len(), blocks.len(), "a batch has a place");
        debug_assert!(places.iter().all(|p| p.prior < p.place && p.acked <= p.prior), "{places:?} (5)");
        debug_assert!(h.last > before, "places grow along a chain");
        h.node = Some(node);
        let last = h.last;
        h.out.push_back((last, false));
        h.check_invariants(t);
        places
    }

    /// Notes that the message whose last batch has this place is durable.
    pub fn made_durable(&self, place: u64) {
        let mut h = self.heads.lock();
        debug_assert!(place <= h.last, "place {place:#x} was never given");
        if let Some(o) = h.out.iter_mut().find(|o| o.0 == place) {
            o.1 = true;
        } else {
            debug_assert!(place <= h.acked, "at {place:#x} no message ends");
        }
        while let Some(&(place, true)) = h.out.front() {
            debug_assert!(place > h.acked, "{place:#x} is behind {:#x}", h.acked);
            h.acked = place;
            h.out.pop_front();
        }
        h.check_order();
    }

    /// Returns the place of the last batch up to which all are durable.
    pub fn acked(&self) -> u64 {
        self.heads.lock().acked
    }

    /// Returns whether all of the log is durable, nothing was added since the last call, and no
    /// batch bears witness of it (6).
    pub fn wants_mark(&self) -> bool {
        let mut h = self.heads.lock();
        h.check_order();
        let quiet = h.seen == h.last && h.acked == h.last;
        h.seen = h.last;
        quiet && h.last != h.mark && h.node.is_some()
    }

    /// Notes that the batch at this place is a mark.
    pub fn marked(&self, place: u64) {
        let mut h = self.heads.lock();
        debug_assert!(place > h.mark, "{place:#x} is marked, {:#x} was", h.mark);
        h.mark = place;
        h.check_order();
    }

    /// Notes that the link of segment `seq` was answered by the device (or will never be: then the
    /// store is read-only).
    pub fn link_done(&self, seq: u64) {
        let mut links = self.links.lock();
        debug_assert_eq!(links.iter().filter(|s| **s == seq).count(), 1, "the link of segment {seq}");
        links.retain(|&s| s != seq);
        drop(links);
        // Release, with the Acquire in `wait_links`: the link was answered before.
        let out = self.links_out.fetch_sub(1, Ordering::Release);
        debug_assert!(out > 0, "a link was answered that was not counted");
        self.link_written.notify_all();
    }

    /// Waits until the links of all segments before `seq` were answered (3).
    pub fn wait_links(&self, seq: u64) {
        // Acquire, with the Release in `link_done`: no link is out, and all were answered.
        if self.links_out.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut l = self.links.lock();
        while l.iter().any(|&s| s < seq) {
            self.link_written.wait(&mut l);
        }
    }

    /// Returns devices to flush before a batch of this mlog is durable.
    pub fn chain_devices(&self) -> u64 {
        // Relaxed: the caller's own bits were set by the mutex section it allocated in; earlier
        // ones before.
        self.chain_devices.load(Ordering::Relaxed)
    }

    /// Lets go of the slack that was taken from the list.
    pub fn let_go_of_slack(&self, t: &SegmentTable) {
        std::mem::take(&mut self.heads.lock().slack).let_go(t);
    }

    /// Returns the blocks of slack at hand.
    #[cfg(test)]
    pub fn slack(&self) -> u64 {
        self.heads.lock().slack.blocks().into()
    }

    /// Notes the owners of data blocks that users wrote, for the summaries.
    pub fn note_owners(&self, owners: impl IntoIterator<Item = (BlockAddr, DataOwner)>) {
        self.heads.lock().owners.extend(owners);
    }

    /// Notes the owners of data blocks that nobody wrote now: of moved ones, and of those that were
    /// there when the volume was opened.
    pub fn note_older(&self, owners: impl IntoIterator<Item = (BlockAddr, DataOwner)>) {
        let mut h = self.heads.lock();
        let before = h.owners.len();
        h.owners.extend(owners);
        debug_assert!(h.owners.len() >= before, "owners are only added");
        // What is counted off now is counted when the owners are taken: the sum is right then.
        h.written.data = h.written.data.wrapping_sub((h.owners.len() - before) as u64);
    }

    /// Returns how many blocks of summaries the next checkpoint writes for these, about.
    pub fn summaries_to_write(&self, t: &SegmentTable) -> u64 {
        let h = self.heads.lock();
        let (mut count, mut last) = (0, None);
        for (addr, _) in h.owners.iter().filter(|o| t.is_live(o.0)) {
            let part = t.geometry.locate(*addr).map(|(seg, i)| (seg, i as usize / SUMMARY_SPAN));
            count += u64::from(part != last);
            last = part;
        }
        debug_assert!(count <= h.owners.len() as u64, "{count} blocks for fewer owners");
        count
    }

    /// Takes the owners noted so far.
    pub fn take_owners(&self) -> Vec<(BlockAddr, DataOwner)> {
        let mut h = self.heads.lock();
        let owners = std::mem::take(&mut h.owners);
        h.written.data = h.written.data.wrapping_add(owners.len() as u64);
        owners
    }

    /// Returns the figures for a report.
    pub fn figures(&self, t: &SegmentTable) -> MlogFigures {
        let h = self.heads.lock();
        h.check_invariants(t);
        let size = t.geometry.segment_blocks;
        let appended = self.appended();
        let left = |head: &Head| {
            let end = if t.is_paired(head.seg) { t.geometry.half() } else { size };
            u64::from(end.saturating_sub(head.next))
        };
        let node = h.node.map_or(0, |n| u64::from(size - n.next));
        MlogFigures {
            written: Written {
                data: h.written.data.wrapping_add(h.owners.len() as u64),
                log: h.written.log.wrapping_add(appended),
            },
            appended,
            chain: h.chain.len() + usize::from(h.node.is_some()),
            takes_all: h.takes_all,
            heads: h.all_heads().count() + usize::from(h.node.is_some()),
            capacity: node + h.all_heads().map(left).sum::<u64>(),
        }
    }

    /// Keeps groups that a checkpoint without a fold has to carry over; `checkpoint` is the number
    /// of the last position, as a reader section has it.
    pub fn keep_groups(&self, groups: &[u8], checkpoint: u64) {
        if groups.is_empty() {
            return;
        }
        let mut h = self.heads.lock();
        debug_assert!(
            h.pending.last().is_none_or(|last| last.checkpoint <= checkpoint),
            "groups of a position that is over"
        );
        match h.pending.last_mut() {
            Some(last) if last.checkpoint == checkpoint => last.groups.extend_from_slice(groups),
            _ => h.pending.push(Kept { checkpoint, groups: groups.to_vec() }),
        }
        drop(h);
        self.add_unfolded(self.parts_of(groups));
    }

    /// Counts the space of inodes, in parts of blocks ([`Mlog::parts_of`]), that groups make which
    /// are durable here from now on.
    pub fn add_unfolded(&self, parts: u64) {
        // Relaxed, here and below: an estimate, on a line that every batch writes.
        self.unfolded.fetch_add(parts, Ordering::Relaxed);
    }

    /// Takes off that of inodes which were folded.
    pub fn sub_unfolded(&self, parts: u64) {
        self.unfolded.fetch_sub(parts.min(self.unfolded()), Ordering::Relaxed);
    }

    /// Returns the parts of blocks that the inodes take which these groups make. The effect that
    /// makes one is its group's first.
    pub fn parts_of(&self, groups: &[u8]) -> u64 {
        let all = record::groups(groups).map_while(std::result::Result::ok);
        let made = all.filter_map(|g| g.made_inode());
        made.map(|(mode, bytes)| parts_of_inode(self.packed, mode & libc::S_IFMT == libc::S_IFDIR, bytes))
            .sum()
    }

    /// Returns the parts of blocks that the fold of what is durable here will take for new inodes.
    pub fn unfolded(&self) -> u64 {
        self.unfolded.load(Ordering::Relaxed)
    }

    /// Returns a copy of the groups that were kept before the position of this checkpoint.
    pub fn groups_before(&self, checkpoint: u64) -> Vec<u8> {
        let h = self.heads.lock();
        let before = h.pending.iter().filter(|k| k.checkpoint < checkpoint);
        before.flat_map(|k| &k.groups).copied().collect()
    }

    /// Replaces the groups kept by what `keep` leaves of them.
    pub fn prune_groups(&self, keep: impl Fn(&[u8]) -> Vec<u8>) {
        let mut h = self.heads.lock();
        for k in &mut h.pending {
            let kept = keep(&k.groups);
            debug_assert!(kept.len() <= k.groups.len(), "groups are left out, none comes to them");
            self.sub_unfolded(self.parts_of(&k.groups));
            self.add_unfolded(self.parts_of(&kept));
            k.groups = kept;
        }
        h.pending.retain(|k| !k.groups.is_empty());
        h.check_order();
    }

    /// Returns the number of blocks appended since the last checkpoint.
    pub fn appended(&self) -> u64 {
        // Relaxed: a figure for reports.
        self.appended.load(Ordering::Relaxed)
    }

    /// Lets the chain begin at the position of a checkpoint that is durable. Returns its earlier
    /// segments, which may be released.
    pub fn checkpoint_done(&self, t: &SegmentTable, position: &Position, appended: u64) -> Vec<SegId> {
        let mut freed = Vec::new();
        let mut h = self.heads.lock();
        debug_assert!(h.node.is_none_or(|n| position.seq <= n.seq), "{position:?} is ahead of the log");
        while let Some(&(seg, seq)) = h.chain.front() {
            if seq >= position.seq {
                break;
            }
            h.chain.pop_front();
            freed.push(seg);
        }
        let mut mask = h.chain.iter().fold(0u64, |m, (s, _)| m | 1 << t.geometry.device(*s));
        if let Some(n) = h.node {
            mask |= 1 << t.geometry.device(n.seg);
        }
        // Relaxed: written under the mutex; see `chain_devices`.
        self.chain_devices.store(mask, Ordering::Relaxed);
        let passed = appended.min(self.appended());
        self.appended.fetch_sub(passed, Ordering::Relaxed);
        h.written.log = h.written.log.wrapping_add(passed);
        debug_assert!(
            h.node.is_none_or(|n| !freed.contains(&n.seg) && !freed.contains(&n.successor)),
            "the log is being written to {freed:?}"
        );
        debug_assert!(h.chain.front().is_none_or(|c| c.1 >= position.seq), "recovery starts behind it");
        h.check_invariants(t);
        freed
    }

    /// Returns whether a thread waits for a link of another. It looks again, and goes on waiting.
    #[cfg(test)]
    pub fn is_waited_for(&self) -> bool {
        self.link_written.notify_all() > 0
    }

    /// Returns the number of segments that no checkpoint can free while this mlog is as it is:
    /// heads and successors.
    #[cfg(test)]
    pub fn open_segments(&self) -> usize {
        let h = self.heads.lock();
        h.all_heads().count() + if h.node.is_some() { 2 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Life;
    use crate::log::heat::{ByLife, Runs, addresses};
    use crate::log::segment::Geometry;
    use crate::log::space::PARTS_OF_BLOCK;
    use lanefs_format::superblock::Layout;

    fn table() -> SegmentTable {
        let layout = Layout::new(16, 1).unwrap();
        let t = SegmentTable::new(Geometry::new(&layout, &[16 * 20]));
        t.fill_pools(|_| false);
        t
    }

    #[test]
    fn a_chain_goes_on_where_its_links_say() {
        let t = table();
        let seqs = AtomicU64::new(10);
        let m = Mlog::new(0, 0, false);
        let one = |n| m.alloc_batches(&t, &seqs, &[n], true).map(|p| p[0]);
        assert!(one(1).is_err());
        m.open_node(&t, &seqs).unwrap();
        let p = m.position(&t);
        assert_eq!((p.used, p.seq), (1, 10));
        let a = one(10).unwrap();
        let (at, link) = a.link.unwrap();
        assert_eq!((at, a.addr), (p.segment, p.segment.plus(1)));
        assert!(one(5).unwrap().link.is_none());
        let c = one(3).unwrap();
        assert_eq!((c.addr, c.seq), (link.successor.plus(1), link.successor_seq));
        // All pieces of a message or none.
        let free = t.free_count();
        assert!(m.alloc_batches(&t, &seqs, &[15; 40], true).is_err());
        assert_eq!(t.free_count(), free);
        let many = m.alloc_batches(&t, &seqs, &[12, 12, 12], true).unwrap();
        assert_eq!(many.iter().filter(|p| p.link.is_some()).count(), 2);
        many.iter().filter(|p| p.link.is_some()).for_each(|p| m.link_done(p.seq));
        m.link_done(c.seq);
        m.link_done(a.seq);
        m.wait_links(many[2].seq);
        let free = t.free_count();
        for s in m.checkpoint_done(&t, &m.position(&t), m.appended()) {
            t.release(s);
        }
        assert_eq!((t.free_count(), m.appended()), (free + 3, 0));
    }

    /// The log may have gone on to other segments while the checkpoint was made: recovery starts in
    /// the one of the position.
    #[test]
    fn the_segment_of_a_position_is_kept_though_the_log_went_on() {
        let t = table();
        let seqs = AtomicU64::new(10);
        let m = Mlog::new(0, 0, false);
        m.open_node(&t, &seqs).unwrap();
        let fill = || {
            let at = m.alloc_batches(&t, &seqs, &[12, 12], true).unwrap();
            at.iter().filter(|p| p.link.is_some()).for_each(|p| m.link_done(p.seq));
        };
        fill();
        let p = m.position(&t);
        fill();
        let freed = m.checkpoint_done(&t, &p, 0);
        assert!(!freed.is_empty());
        assert!(freed.iter().all(|s| t.geometry.addr(*s, 0) != p.segment), "{freed:?}, position {p:?}");
        assert!(m.checkpoint_done(&t, &p, 0).is_empty());
    }

    #[test]
    fn data_comes_in_runs_and_dry_pools_say_so() {
        let t = table();
        let m = Mlog::new(0, 0, false);
        let mut out = Vec::new();
        m.alloc(&t, Heat::Warm, 40, 1, true, &mut out).unwrap();
        assert_eq!(out.iter().map(|r| r.1).collect::<Vec<_>>(), [16, 16, 8]);
        m.alloc(&t, Heat::Cold, 1, 1, true, &mut out).unwrap();
        assert_eq!(m.open_segments(), 2);
        // All or nothing, and what is kept back is only for the urgent.
        let free = t.free_count();
        assert!(m.alloc(&t, Heat::Bucket, 16 * 40, 1, true, &mut out).is_err());
        t.set_reserved_segments(free - 1);
        assert!(m.alloc(&t, Heat::Bucket, 17, 1, false, &mut out).is_err());
        assert_eq!(t.free_count(), free);
        m.alloc(&t, Heat::Bucket, 17, 1, true, &mut out).unwrap();
        assert_eq!(t.free_count(), free - 2);
    }

    /// The cleaner worked for writers who needed no segment.
    #[test]
    fn slack_is_given_out_while_half_of_what_is_kept_back_is_free() {
        let t = table();
        let m = Mlog::new(0, 0, false);
        let mut out = Vec::new();
        m.alloc(&t, Heat::Warm, 32, 1, true, &mut out).unwrap();
        let segs: Vec<_> = out.iter().filter_map(|r| t.geometry.locate(r.0)).map(|l| l.0).collect();
        segs.iter().for_each(|&seg| assert!(t.set_live(t.geometry.addr(seg, 0))));
        t.slack.renew(t.list_slack(2, 100, |_, _| true), 1, 3);
        let take = |n| m.alloc(&t, Heat::Warm, n, 2, false, &mut Vec::new());
        t.set_reserved_segments(2 * t.free_count() + 2);
        assert!(matches!(take(1), Err(StoreError::NoSpace)), "the next checkpoint has too few");
        t.set_reserved_segments(2 * t.free_count());
        take(20).unwrap();
        assert!(matches!(take(11), Err(StoreError::NoSpace)), "a segment is not to be had for data");
        take(10).unwrap();
    }

    /// What the others had begun is filled before a segment is claimed, which is done on the device
    /// that has most then.
    #[test]
    fn what_was_taken_over_is_filled_first() {
        let layout = Layout::new(16, 1).unwrap();
        let t = SegmentTable::new(Geometry::new(&layout, &[16 * 6, 16 * 12]));
        t.fill_pools(|_| false);
        let (first, last) = (Mlog::new(0, 0, false), Mlog::new(1, 0, false));
        let take = |m: &Mlog, heat, n| {
            let mut out = Vec::new();
            m.alloc(&t, heat, n, 1, true, &mut out).unwrap();
            out.into_iter()
                .filter_map(|r| t.geometry.locate(r.0).map(|l| (l.0, l.1, r.1)))
                .collect::<Vec<_>>()
        };
        let (begun, own) = (take(&first, Heat::Warm, 10)[0].0, take(&last, Heat::Warm, 14)[0].0);
        let nodes = take(&first, Heat::Node, 3)[0].0;
        assert_eq!(t.geometry.device(begun), 0);
        last.set_takes_all(true);
        last.take_over(first.give_heads());
        assert!(first.has_no_heads() && last.open_segments() == 3);
        let free = t.free_count();
        // All or nothing, and what they have left counts.
        t.set_reserved_segments(free);
        assert!(last.alloc(&t, Heat::Warm, 9, 1, false, &mut Vec::new()).is_err());
        last.alloc(&t, Heat::Node, 14, 1, false, &mut Vec::new()).unwrap_err();
        assert_eq!(take(&last, Heat::Warm, 8), [(own, 14, 2), (begun, 10, 6)]);
        assert_eq!(take(&last, Heat::Node, 13), [(nodes, 3, 13)]);
        assert_eq!((t.free_count(), last.open_segments()), (free, 0));
        let more = take(&last, Heat::Warm, 16 * 7);
        let on: Vec<_> = more.iter().map(|r| t.geometry.device(r.0)).collect();
        assert_eq!((on.len(), on.iter().filter(|d| **d == 1).count() >= 6), (7, true), "{on:?}");
        // What it ends with it keeps.
        take(&last, Heat::Cold, 5);
        last.set_takes_all(false);
        assert_eq!(t.geometry.device(take(&last, Heat::Bucket, 1)[0].0), 0);
        assert_eq!((take(&last, Heat::Cold, 1)[0].1, last.open_segments()), (5, 2));
    }

    /// Data goes to slack before it goes to a segment, and leaves segments alone that are kept for
    /// it. What is let go of is not given out.
    #[test]
    fn data_goes_to_slack_first() {
        let t = table();
        let m = Mlog::new(0, 0, false);
        let mut out = Vec::new();
        m.alloc(&t, Heat::Warm, 32, 1, true, &mut out).unwrap();
        let segs: Vec<_> = out.iter().filter_map(|r| t.geometry.locate(r.0)).map(|l| l.0).collect();
        (0..16).for_each(|i| assert!(t.set_live(t.geometry.addr(segs[0], i))));
        (0..16).step_by(2).for_each(|i| assert!(t.set_live(t.geometry.addr(segs[1], i))));
        (0..3).for_each(|i| assert!(t.clear_live(t.geometry.addr(segs[0], i))));
        t.slack.renew(t.list_slack(2, 100, |_, _| true), 1, 3);
        assert_eq!((t.slack.blocks(), t.slack.kept()), (11, 3));
        let take = |heat, n| {
            let mut out = Vec::new();
            let r = m.alloc(&t, heat, n, 2, false, &mut out);
            let at = |(a, n)| t.geometry.locate(a).map(|(seg, i)| (seg, i, n));
            r.map(|()| out.into_iter().filter_map(at).collect::<Vec<_>>())
        };
        assert_eq!(take(Heat::Warm, 2).unwrap(), [(segs[1], 1, 1), (segs[1], 3, 1)]);
        assert_eq!((t.info(segs[1]).touched, t.info(segs[0]).touched), (2, 1));
        assert!(take(Heat::Cold, 16).unwrap().iter().all(|r| !segs.contains(&r.0)));
        // All or nothing: what is at hand stays there.
        t.set_reserved_segments(t.free_count() - 3);
        assert!(matches!(take(Heat::Warm, 10), Err(StoreError::NoSpace)));
        assert!(take(Heat::Warm, 20).is_err(), "there is less");
        assert_eq!((t.slack.blocks(), m.slack()), (0, 9));
        t.slack.give_way();
        let mixed = take(Heat::Warm, 10).unwrap();
        assert_eq!(mixed.iter().filter(|r| segs.contains(&r.0)).map(|r| r.2).sum::<u32>(), 9);
        assert_eq!(t.info(segs[0]).touched, 2);
        t.slack.renew(t.list_slack(3, 100, |_, _| true), 1, 3);
        assert_eq!(take(Heat::Warm, 1).unwrap()[0].0, segs[1]);
        assert!(m.slack() > 0);
        t.slack.clear();
        m.let_go_of_slack(&t);
        assert!(m.slack() == 0 && !segs.contains(&take(Heat::Warm, 1).unwrap()[0].0));
    }

    /// Nothing is refused for what is kept back that needs no new segment; the rest is, unless it
    /// must not wait.
    #[test]
    fn only_new_segments_come_out_of_what_is_kept_back() {
        let t = table();
        let seqs = AtomicU64::new(10);
        let m = Mlog::new(0, 0, false);
        m.open_node(&t, &seqs).unwrap();
        let mut out = Vec::new();
        m.alloc(&t, Heat::Warm, 4, 1, false, &mut out).unwrap();
        // One more than is kept back.
        t.set_reserved_segments(t.free_count() - 1);
        m.alloc_batches(&t, &seqs, &[14], false).unwrap();
        m.alloc_batches(&t, &seqs, &[14], false).unwrap();
        assert_eq!(t.reserved_segments(), t.free_count());
        m.alloc_batches(&t, &seqs, &[1], false).unwrap();
        assert!(m.alloc_batches(&t, &seqs, &[14], false).is_err());
        m.alloc(&t, Heat::Warm, 0, 1, false, &mut out).unwrap();
        m.alloc(&t, Heat::Warm, 12, 1, false, &mut out).unwrap();
        assert!(m.alloc(&t, Heat::Warm, 1, 1, false, &mut out).is_err());
        let free = t.free_count();
        m.alloc_batches(&t, &seqs, &[14], true).unwrap();
        m.alloc(&t, Heat::Warm, 1, 1, true, &mut out).unwrap();
        assert_eq!(t.free_count(), free - 2);
    }

    /// A message that goes on in a segment uses all of it before the next.
    #[test]
    fn a_message_claims_as_many_segments_as_it_uses() {
        let t = table();
        let seqs = AtomicU64::new(10);
        let m = Mlog::new(0, 0, false);
        m.open_node(&t, &seqs).unwrap();
        let free = t.free_count();
        let places = m.alloc_batches(&t, &seqs, &[12, 12, 2], true).unwrap();
        assert_eq!(places.iter().filter(|p| p.link.is_some()).count(), 2);
        assert_eq!(t.free_count(), free - 1);
    }

    /// Else a checkpoint could free the segment, and the next block would close it once more.
    #[test]
    fn a_full_segment_is_no_head_any_more() {
        let t = table();
        let m = Mlog::new(0, 0, false);
        let mut out = Vec::new();
        m.alloc(&t, Heat::Warm, 16, 7, true, &mut out).unwrap();
        assert_eq!(m.open_segments(), 0);
        let seg = t.geometry.locate(out[0].0).unwrap().0;
        assert_eq!((t.info(seg).state, t.info(seg).touched), (State::Full, 7));
        t.release(seg);
        m.alloc(&t, Heat::Warm, 1, 8, true, &mut out).unwrap();
        assert_eq!(m.open_segments(), 1);
        assert_ne!(t.info(seg).state, State::Full);
    }

    #[test]
    fn a_small_volume_has_two_heads_for_data() {
        let t = table();
        let m = Mlog::new(0, 0, true);
        let mut out = Vec::new();
        for heat in [Heat::Bucket, Heat::Warm, Heat::Cold, Heat::Node] {
            m.alloc(&t, heat, 1, 1, true, &mut out).unwrap();
        }
        assert_eq!(m.open_segments(), 2);
    }

    /// Returns the segments of what was given out.
    fn segments_of(t: &SegmentTable, runs: &Runs) -> Vec<SegId> {
        let mut all: Vec<_> =
            addresses(runs).filter_map(|a| t.geometry.locate(a)).map(|(seg, _)| seg).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Lives lie apart, and a segment knows whose it is. On a small volume what dies soon lies
    /// beside what nothing is known of.
    #[test]
    fn data_of_each_life_has_segments_of_its_own() {
        let t = table();
        let m = Mlog::new(0, 0, false);
        let mut out = ByLife::<Runs>::default();
        (0..4).for_each(|_| m.alloc_data(&t, [6, 7, 5], 1, false, &mut out).unwrap());
        let segments = out.each_ref().map(|runs| segments_of(&t, runs));
        let heats = segments.each_ref().map(|s| s.iter().map(|s| t.info(*s).heat).collect::<Vec<_>>());
        assert_eq!(heats, [vec![4, 4], vec![1, 1], vec![2, 2]]);
        assert_eq!(m.open_segments(), 3);
        let (t, m) = (table(), Mlog::new(0, 0, true));
        let mut out = ByLife::<Runs>::default();
        m.alloc_data(&t, [6, 7, 5], 1, false, &mut out).unwrap();
        let [hot, warm, cold] = out.each_ref().map(|runs| segments_of(&t, runs));
        assert!(hot == warm && t.info(hot[0]).heat == Heat::Warm as u8, "{hot:?} and {warm:?}");
        assert!(cold != warm && m.open_segments() == 2, "{cold:?} and {warm:?}");
    }

    /// Three heads do not keep from anybody what one would have had: whatever is wanted, all blocks
    /// of open segments are given out before anybody is refused.
    #[test]
    fn before_a_write_is_refused_all_heads_are_full() {
        for life in Life::ALL {
            let t = table();
            let m = Mlog::new(0, 0, false);
            let mut out = ByLife::<Runs>::default();
            m.alloc_data(&t, [3, 3, 3], 1, false, &mut out).unwrap();
            t.set_reserved_segments(t.free_count());
            let mut wanted = [0; 3];
            wanted[life as usize] = 10;
            // Three segments of 16 blocks have 39 left.
            (0..3).for_each(|_| m.alloc_data(&t, wanted, 1, false, &mut out).unwrap());
            let refused = m.alloc_data(&t, wanted, 1, false, &mut out);
            assert!(matches!(refused, Err(StoreError::NoSpace)), "{life:?}: {refused:?}");
            m.alloc_data(&t, [3, 3, 3], 1, false, &mut out).unwrap();
            assert_eq!(m.open_segments(), 0, "{life:?}");
            assert_eq!(t.free_count(), t.reserved_segments(), "{life:?}");
            let mut all: Vec<_> = out.iter().flat_map(addresses).collect();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), 48, "{life:?}: a block was given out twice");
            // One segment more, for all of them together.
            t.set_reserved_segments(t.free_count() - 1);
            m.alloc_data(&t, [5, 5, 6], 1, false, &mut out).unwrap();
            assert!(m.alloc_data(&t, [1, 0, 0], 1, false, &mut out).is_err(), "{life:?}");
        }
    }

    /// Where there is slack it is used, whatever the life; what dies soon is the last to get it.
    #[test]
    fn slack_is_for_data_of_every_life() {
        let t = table();
        let m = Mlog::new(0, 0, false);
        let mut out = Runs::new();
        m.alloc(&t, Heat::Warm, 16, 1, true, &mut out).unwrap();
        let (full, _) = t.geometry.locate(out[0].0).unwrap();
        (0..8).for_each(|i| assert!(t.set_live(t.geometry.addr(full, i))));
        t.slack.renew(t.list_slack(2, 100, |_, _| true), 1, 1);
        let mut out = ByLife::<Runs>::default();
        m.alloc_data(&t, [2, 0, 2], 2, false, &mut out).unwrap();
        assert_eq!(out.each_ref().map(|runs| segments_of(&t, runs)), [vec![full], vec![], vec![full]]);
        let mut out = ByLife::<Runs>::default();
        m.alloc_data(&t, [3, 1, 2], 2, false, &mut out).unwrap();
        let [hot, warm, cold] = out.each_ref().map(|runs| segments_of(&t, runs));
        assert_eq!((m.slack(), warm, cold), (0, vec![full], vec![full]));
        assert_eq!(hot.len(), 2, "one block of slack and two of a segment, not {hot:?}");
        assert!(hot.contains(&full));
    }

    /// Returns what makes an inode, in an epoch.
    fn birth(epoch: u64) -> Vec<u8> {
        let mut out = Vec::new();
        let new = record::Effect::New {
            ino: lanefs_format::Ino(epoch + 100),
            parent: lanefs_format::ROOT_INO,
            generation: 0,
            mode: libc::S_IFREG,
            uid: 0,
            gid: 0,
            rdev: 0,
            time: 0,
            target: b"",
            logged: false,
        };
        record::encode_group(&mut out, lanefs_format::Version { epoch, ts: epoch, lane: 0 }, &[new]);
        out
    }

    #[test]
    fn what_is_kept_is_unfolded_until_it_is_pruned() {
        let m = Mlog::new(0, 0, false);
        let (first, second) = (birth(5), birth(6));
        m.keep_groups(&[&first[..], &second].concat(), 1);
        assert_eq!(m.unfolded(), 2 * PARTS_OF_BLOCK);
        m.add_unfolded(m.parts_of(&first));
        assert_eq!(m.unfolded(), 3 * PARTS_OF_BLOCK);
        m.sub_unfolded(m.parts_of(&first));
        m.prune_groups(|all| {
            assert_eq!(all.len(), first.len() + second.len());
            second.clone()
        });
        assert_eq!((m.groups_before(2), m.unfolded()), (second.clone(), PARTS_OF_BLOCK));
        // What comes behind a position is not before it.
        m.keep_groups(&first, 2);
        assert_eq!(m.groups_before(2), second);
        assert_eq!(m.groups_before(3), [&second[..], &first].concat());
        m.prune_groups(|_| Vec::new());
        assert_eq!((m.groups_before(3), m.unfolded()), (Vec::new(), 0));
        m.prune_groups(|_| unreachable!("nothing is kept"));
        m.sub_unfolded(m.parts_of(&first));
        assert_eq!(m.unfolded(), 0);
    }

    /// A batch waits for the links of all segments before its own, and of no other.
    #[test]
    fn a_batch_waits_for_the_links_before_it() {
        use std::sync::atomic::AtomicBool;
        let t = table();
        let seqs = AtomicU64::new(10);
        let m = Mlog::new(0, 0, false);
        m.open_node(&t, &seqs).unwrap();
        let places = m.alloc_batches(&t, &seqs, &[12, 12], true).unwrap();
        let (first, second) = (places[0].seq, places[1].seq);
        m.wait_links(first);
        let over = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                m.wait_links(second);
                over.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(std::time::Duration::from_millis(100));
            let early = over.load(Ordering::SeqCst);
            m.link_done(first);
            assert!(!early, "the link of {first} is under way");
        });
        assert!(over.load(Ordering::SeqCst));
        m.link_done(second);
        m.wait_links(second + 1);
    }

    /// The segments that the first mlogs claimed before another found none are free again.
    #[test]
    fn messages_of_which_one_finds_no_room_claim_nothing() {
        let t = table();
        let seqs = AtomicU64::new(10);
        let mlogs = [Mlog::new(0, 0, false), Mlog::new(1, 0, false), Mlog::new(2, 0, false)];
        mlogs.iter().for_each(|m| m.open_node(&t, &seqs).unwrap());
        let positions = || mlogs.iter().map(|m| m.position(&t)).collect::<Vec<_>>();
        let before = (t.free_count(), positions());
        let large = vec![15; t.free_count() as usize];
        let messages = [vec![10, 10], vec![15, 15, 15], large];
        assert!(matches!(Mlog::alloc_each(&mlogs, &t, &seqs, &messages), Err(StoreError::NoSpace)));
        assert_eq!((t.free_count(), positions()), before);
        Mlog::alloc_each(&mlogs, &t, &seqs, &messages[..2]).unwrap();
        assert_eq!(t.free_count(), before.0 - 3);
    }

    /// All devices that hold a segment of the chain are flushed, until a checkpoint lies behind it.
    #[test]
    fn the_devices_of_a_chain_are_known() {
        let layout = Layout::new(16, 1).unwrap();
        let t = SegmentTable::new(Geometry::new(&layout, &[16 * 20, 16 * 20]));
        t.fill_pools(|_| false);
        let seqs = AtomicU64::new(10);
        let m = Mlog::new(0, 1, false);
        let other = Mlog::new(1, 1, false);
        m.open_node(&t, &seqs).unwrap();
        assert_eq!(m.chain_devices(), 0b10);
        // The rest of its own device is taken by others.
        let mut out = Vec::new();
        loop {
            out.clear();
            other.alloc(&t, Heat::Warm, 16, 1, true, &mut out).unwrap();
            if out[0].0.device() == 0 {
                break;
            }
        }
        m.alloc_batches(&t, &seqs, &[14], true).unwrap();
        m.alloc_batches(&t, &seqs, &[14], true).unwrap();
        assert_eq!(m.chain_devices(), 0b10);
        m.alloc_batches(&t, &seqs, &[14], true).unwrap();
        assert_eq!(m.chain_devices(), 0b11);
        let p = m.position(&t);
        assert_eq!(m.checkpoint_done(&t, &p, 0).len(), 2);
        assert_eq!(m.chain_devices(), 0b01);
    }
}
