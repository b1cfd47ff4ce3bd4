//! Messages: groups, inode records or a share of an epoch, in one batch or several, which get their
//! places in an mlog, are encoded, written, and made durable by a flush.

use crate::error::Result;
use crate::log::Log;
use crate::log::io::Write;
use crate::log::mlog::{BatchPlace, Mlog};
use lanefs_format::batch::{self, BatchHead, BatchKind, InodeRecord};
use lanefs_format::superblock::MIN_SEGMENT_BLOCKS;
use lanefs_format::{Block, BlockAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most blocks of one batch; longer messages are split.
const BATCH_MAX: u32 = 32;
const _: () = assert!(BATCH_MAX > 0 && MIN_SEGMENT_BLOCKS > 1, "a batch behind the link of a segment");

/// Messages of so many blocks share the memory that they are encoded into.
const LARGE_MESSAGE: usize = 64;

/// A run of encoded blocks and where it goes.
pub(crate) struct BatchRun {
    pub addr: BlockAddr,
    /// Which of the blocks.
    pub blocks: std::ops::Range<usize>,
}

impl BatchRun {
    /// Returns the request that writes it.
    pub fn of<'b>(&self, blocks: &'b [Block]) -> Write<'b> {
        Write { addr: self.addr, data: batch::bytes_of(&blocks[self.blocks.clone()]) }
    }
}

/// Splits a message of `len` bytes: returns the blocks of each batch and the bytes it takes.
fn pieces(len: usize, segment_blocks: u32) -> Vec<(u32, usize)> {
    debug_assert!(segment_blocks >= MIN_SEGMENT_BLOCKS, "a segment of {segment_blocks} blocks");
    let most = BATCH_MAX.min(segment_blocks - 1);
    let capacity = batch::room_in(most as usize);
    let mut left = len;
    let mut out = Vec::new();
    loop {
        let n = left.min(capacity);
        out.push((batch::blocks_for(n) as u32, n));
        left -= n;
        if left == 0 {
            debug_assert_eq!(out.iter().map(|p| p.1).sum::<usize>(), len, "all bytes are in one piece each");
            debug_assert!(out.iter().all(|p| (1..=most).contains(&p.0)), "{out:?}");
            return out;
        }
    }
}

/// The bytes of a message.
pub(crate) struct Bytes {
    own: Vec<u8>,
    /// The share of an epoch that follows, which its epoch keeps as well.
    share: Option<Arc<Vec<u8>>>,
}

impl From<Vec<u8>> for Bytes {
    fn from(own: Vec<u8>) -> Bytes {
        Bytes { own, share: None }
    }
}

impl Bytes {
    fn len(&self) -> usize {
        self.own.len() + self.share.as_ref().map_or(0, |s| s.len())
    }

    /// Returns the bytes from `at` on, `n` of them, in two pieces of which one may be empty.
    fn range(&self, at: usize, n: usize) -> [&[u8]; 2] {
        debug_assert!(at + n <= self.len(), "bytes {at} to {} of {}", at + n, self.len());
        let own = self.own.len();
        let share: &[u8] = self.share.as_ref().map_or(&[], |s| s);
        let (from, to) = (at.saturating_sub(own), (at + n).saturating_sub(own));
        [&self.own[at.min(own)..(at + n).min(own)], &share[from..to]]
    }
}

/// A message whose batches have their places: ready to be encoded and written.
pub(crate) struct Placed {
    pub mlog: usize,
    pub head: BatchHead,
    pub bytes: Bytes,
    pub places: Vec<BatchPlace>,
    /// Devices that hold what the message refers to.
    pub devices: u64,
}

impl Placed {
    pub fn last_seq(&self) -> u64 {
        self.places.last().map_or(0, |p| p.seq)
    }
    pub fn last_place(&self) -> u64 {
        self.places.last().map_or(0, |p| p.place)
    }
    pub fn link_seqs(&self) -> impl Iterator<Item = u64> + '_ {
        self.places.iter().filter(|p| p.link.is_some()).map(|p| p.seq)
    }
}

/// An epoch that is committed, or about to be, and not folded.
pub(crate) struct Pending {
    pub epoch: u64,
    pub previous: u64,
    /// The shares' bytes; who committed the epoch has the same ones.
    pub shares: Vec<Arc<Vec<u8>>>,
    /// Inodes that it makes and a later epoch ended.
    pub cancelled: u64,
}

impl Log {
    /// Gives a message its places in an mlog. Inside a reader section.
    pub fn place(
        &self,
        mlog: usize,
        head: BatchHead,
        bytes: Vec<u8>,
        devices: u64,
        urgent: bool,
    ) -> Result<Placed> {
        debug_assert!(!bytes.is_empty(), "a message has a head");
        let blocks = self.batches_for(bytes.len());
        let places = self.mlogs[mlog].alloc_batches(&self.segments, &self.next_seq, &blocks, urgent)?;
        Ok(self.placed(mlog, head, bytes.into(), devices, places))
    }

    /// Returns the blocks of each batch of a message of `len` bytes.
    pub fn batches_for(&self, len: usize) -> Vec<u32> {
        pieces(len, self.segments.geometry.segment_blocks).iter().map(|s| s.0).collect()
    }

    /// Returns a message and the places it was given.
    pub fn placed(
        &self,
        mlog: usize,
        mut head: BatchHead,
        bytes: Bytes,
        devices: u64,
        places: Vec<BatchPlace>,
    ) -> Placed {
        debug_assert_eq!(places.len(), self.batches_for(bytes.len()).len(), "each batch has a place");
        debug_assert!(places.is_sorted_by(|a, b| a.place < b.place), "{places:?}");
        debug_assert!(mlog < self.mlogs.len(), "mlog {mlog} of {}", self.mlogs.len());
        head.id = places[0].place;
        // Relaxed: set behind the flush that made the slot durable; an older value claims less.
        head.slot = self.slot_in_force.load(Ordering::Relaxed);
        head.parts = places.len() as u32;
        Placed { mlog, head, bytes, places, devices }
    }

    /// Returns the number of segments that messages of so many bytes fill.
    pub fn segments_for(&self, bytes: u64) -> u64 {
        let n = self.segments.geometry.segment_blocks;
        let most = BATCH_MAX.min(n - 1);
        bytes / (u64::from((n - 1) / most) * batch::room_in(most as usize) as u64)
    }

    /// Appends the blocks of a placed message to `out`, and where they go to `runs`.
    pub fn encode_placed(&self, p: &Placed, out: &mut Vec<Block>, runs: &mut Vec<BatchRun>) {
        let split = pieces(p.bytes.len(), self.segments.geometry.segment_blocks);
        debug_assert_eq!(p.places.len(), split.len(), "it was placed as it is split");
        let links = p.places.iter().filter(|p| p.link.is_some()).count();
        out.reserve_exact(split.iter().map(|s| s.0 as usize).sum::<usize>() + links);
        let mut at = 0;
        for (part, (place, &(blocks, n))) in p.places.iter().zip(&split).enumerate() {
            let ctx = self.context(place.seq);
            let stamp = self.stamp(place.seq);
            if let Some((addr, link)) = place.link {
                runs.push(BatchRun { addr, blocks: out.len()..out.len() + 1 });
                out.push(*batch::encode_chain(link, addr, ctx, stamp));
            }
            let start = out.len();
            out.resize(start + blocks as usize, Block([0; lanefs_format::BLOCK_SIZE]));
            let head = BatchHead { part: part as u32, prior: place.prior, acked: place.acked, ..p.head };
            let bytes = p.bytes.range(at, n);
            batch::encode_batch(&mut out[start..], &head, &bytes, place.addr, ctx, stamp);
            at += n;
            runs.push(BatchRun { addr: place.addr, blocks: start..out.len() });
        }
        debug_assert_eq!(at, p.bytes.len(), "a part of a message is in no batch");
    }

    /// Encodes placed messages into one run of blocks: that of the last call if that is free and
    /// they are large. The caller gives it back ([`Log::keep_blocks`]).
    pub fn encode_all<'p>(
        &self,
        placed: impl Iterator<Item = &'p Placed> + Clone,
    ) -> (Vec<Block>, Vec<BatchRun>) {
        let blocks: usize = placed.clone().map(|p| p.bytes.len() / lanefs_format::BLOCK_SIZE).sum();
        let kept = if blocks >= LARGE_MESSAGE { self.blocks.try_lock() } else { None };
        let mut out = kept.map_or_else(Vec::new, |mut kept| std::mem::take(&mut *kept));
        debug_assert!(out.is_empty(), "what was written is cleared when it is given back");
        let mut runs = Vec::new();
        placed.for_each(|p| self.encode_placed(p, &mut out, &mut runs));
        debug_assert!(runs.iter().all(|r| !r.blocks.is_empty() && r.blocks.end <= out.len()));
        (out, runs)
    }

    /// Writes placed messages, by one submission, and nothing else with them. Returns the devices.
    pub fn write_placed<'p>(&self, placed: impl Iterator<Item = &'p Placed> + Clone) -> Result<u64> {
        let (blocks, runs) = self.encode_all(placed);
        let reqs: Vec<Write<'_>> = runs.iter().map(|r| r.of(&blocks)).collect();
        let written = self.io.write(&reqs);
        drop(reqs);
        self.keep_blocks(blocks);
        written
    }

    /// Keeps the memory of blocks that were written for the next large message: fresh memory has to
    /// be cleared by the system first, which takes as long as all the rest of a commit.
    pub fn keep_blocks(&self, mut blocks: Vec<Block>) {
        if blocks.capacity() >= LARGE_MESSAGE
            && let Some(mut kept) = self.blocks.try_lock()
            && kept.capacity() < blocks.capacity()
        {
            blocks.clear();
            *kept = blocks;
        }
    }

    /// Lets go of the memory that is kept for messages.
    pub fn shrink(&self) {
        if let Some(mut kept) = self.blocks.try_lock() {
            *kept = Vec::new();
        }
    }

    /// Makes durable messages whose blocks were answered: links first, then one flush per device.
    /// Shares of an epoch are flushed too, and count as durable when the epoch is published.
    pub fn flush_placed(&self, placed: &[Placed], shares: &[Placed], also: u64) -> Result<()> {
        let mut mask = also;
        for p in placed.iter().chain(shares) {
            let m = &self.mlogs[p.mlog];
            m.wait_links(p.last_seq());
            debug_assert_ne!(m.chain_devices(), 0, "a log that was written to lies on a device");
            mask |= p.devices | m.chain_devices();
        }
        self.io.flush(mask)?;
        placed.iter().for_each(|p| self.mlogs[p.mlog].made_durable(p.last_place()));
        Ok(())
    }

    pub fn links_answered(&self, placed: &[Placed]) {
        for p in placed {
            p.link_seqs().for_each(|s| self.mlogs[p.mlog].link_done(s));
        }
    }

    pub fn fsync_head(&self) -> BatchHead {
        BatchHead {
            kind: BatchKind::Fsync,
            id: 0,
            // Relaxed: for people who look at the log.
            epoch: self.epoch.load(Ordering::Relaxed),
            previous: 0,
            part: 0,
            parts: 1,
            share: 0,
            shares: 1,
            prior: 0,
            acked: 0,
            slot: 0,
        }
    }

    /// Keeps the segments a record refers to from being freed before the next checkpoint; returns
    /// their devices.
    pub fn touch_record(&self, record: &InodeRecord) -> u64 {
        // Relaxed: the reader section orders it against the checkpoint that changes it.
        let checkpoint = self.checkpoint_number.load(Ordering::Relaxed);
        let size = u64::from(self.segments.geometry.segment_blocks);
        let mut devices = 0;
        for run in &record.runs {
            debug_assert!(!run.crcs.is_empty(), "a run of no pages");
            let n = run.crcs.len() as u64;
            // What was read from a device may name one that there cannot be.
            devices |= 1u64.checked_shl(run.addr.device() as u32).unwrap_or(0);
            let mut i = 0;
            while i < n {
                let a = run.addr.plus(i);
                self.segments.touch_addr(a, checkpoint);
                i += size - a.block() % size;
            }
        }
        devices
    }

    /// Gives the shares of an epoch their places, one mlog each; if there is no space for one of
    /// them, none gets any. Inside a reader section.
    pub fn place_shares(&self, p: &Pending, first: usize) -> Result<Vec<Placed>> {
        debug_assert!(p.previous < p.epoch, "epoch {} behind {}", p.epoch, p.previous);
        debug_assert!((1..=self.mlogs.len()).contains(&p.shares.len()), "{} shares", p.shares.len());
        debug_assert!(p.shares.iter().all(|s| !s.is_empty()), "an empty share is not written");
        debug_assert!(first < self.mlogs.len(), "mlog {first} of {}", self.mlogs.len());
        let n = p.shares.len() as u32;
        let mut start = Vec::new();
        batch::put_share_head(&mut start, &self.mlogs.iter().map(Mlog::acked).collect::<Vec<_>>());
        let bytes = p.shares.iter().map(|share| Bytes { own: start.clone(), share: Some(share.clone()) });
        let bytes: Vec<Bytes> = bytes.collect();
        let blocks: Vec<Vec<u32>> = bytes.iter().map(|b| self.batches_for(b.len())).collect();
        // A single share goes to the mlog of its caller, and beside its transaction: often one
        // request.
        let first = if n == 1 { first } else { 0 };
        let places = Mlog::alloc_each(&self.mlogs[first..], &self.segments, &self.next_seq, &blocks)?;
        let placed = bytes.into_iter().zip(places).enumerate().map(|(i, (bytes, places))| {
            let head = BatchHead {
                kind: BatchKind::Commit,
                id: 0,
                epoch: p.epoch,
                previous: p.previous,
                part: 0,
                parts: 1,
                share: i as u32,
                shares: n,
                prior: 0,
                acked: 0,
                slot: 0,
            };
            self.placed(first + i, head, bytes, 0, places)
        });
        let placed: Vec<Placed> = placed.collect();
        debug_assert_eq!(placed.len(), p.shares.len(), "all shares have places or none has");
        Ok(placed)
    }
}
