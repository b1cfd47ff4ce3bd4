//! Messages: groups, inode records or a share of an epoch, in one batch or several, which get their
//! places in an mlog, are encoded, written, and made durable by a flush.

use crate::error::Result;
use crate::groups::Share;
use crate::log::Log;
use crate::log::io::Write;
use crate::log::mlog::{BatchPlace, Mlog};
use lanefs_format::batch::{self, BatchHead, BatchKind, InodeRecord};
use lanefs_format::superblock::MIN_SEGMENT_BLOCKS;
use lanefs_format::{Block, BlockAddr};
use lanefs_sync::parallel;
use smallvec::{SmallVec, smallvec};
use std::sync::atomic::Ordering;

/// The most blocks of one batch; longer messages are split.
const BATCH_MAX: u32 = 32;
const _: () = assert!(BATCH_MAX > 0 && MIN_SEGMENT_BLOCKS > 1, "a batch behind the link of a segment");

/// Messages of so many blocks share the memory that they are encoded into.
const LARGE_MESSAGE: usize = 64;

/// Returns how many blocks of messages are worth several threads.
fn shared_from() -> usize {
    if cfg!(test) { 2 } else { parallel::share_from(256, 2) }
}

/// A run of encoded blocks and where it goes.
struct BatchRun {
    addr: BlockAddr,
    /// Which of the blocks.
    blocks: std::ops::Range<usize>,
}

/// Messages as they are written.
pub(crate) struct Encoded {
    /// There may be more of them than there are runs for.
    blocks: Vec<Block>,
    runs: Vec<BatchRun>,
}

impl Encoded {
    /// Returns the requests that write them.
    pub fn writes(&self) -> impl Iterator<Item = Write<'_>> {
        let write =
            |r: &BatchRun| Write { addr: r.addr, data: batch::bytes_of(&self.blocks[r.blocks.clone()]) };
        self.runs.iter().map(write)
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
    share: Share,
}

impl From<Vec<u8>> for Bytes {
    fn from(own: Vec<u8>) -> Bytes {
        Bytes { own, share: Share::new() }
    }
}

impl Bytes {
    fn len(&self) -> usize {
        self.own.len() + self.share.iter().map(|g| g.len()).sum::<usize>()
    }

    /// Returns the bytes from `at` on, `n` of them, in pieces.
    fn range(&self, at: usize, n: usize) -> SmallVec<[&[u8]; 4]> {
        debug_assert!(at + n <= self.len(), "bytes {at} to {} of {}", at + n, self.len());
        let mut first = 0;
        let pieces = std::iter::once(&self.own[..]).chain(self.share.iter().map(|g| &g[..]));
        let pieces = pieces.map(|piece| {
            let within = |place: usize| place.saturating_sub(first).min(piece.len());
            let wanted = within(at)..within(at + n);
            first += piece.len();
            &piece[wanted]
        });
        let pieces: SmallVec<[&[u8]; 4]> = pieces.filter(|p| !p.is_empty()).collect();
        debug_assert_eq!(pieces.iter().map(|p| p.len()).sum::<usize>(), n, "pieces of {n} bytes");
        pieces
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
    pub shares: Vec<Share>,
    /// For each share the parts of blocks that the inodes take which it makes
    /// ([`Mlog::parts_of`]); none where it is only written again.
    pub unfolded: Vec<u64>,
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

    /// Returns the number of blocks that a placed message takes.
    fn blocks_of(&self, p: &Placed) -> usize {
        let split = pieces(p.bytes.len(), self.segments.geometry.segment_blocks);
        debug_assert_eq!(p.places.len(), split.len(), "it was placed as it is split");
        split.iter().map(|s| s.0 as usize).sum::<usize>() + p.link_seqs().count()
    }

    /// Encodes a placed message into blocks of zeros, as many as it takes, and appends to `runs`
    /// where they go; the first of them is number `first` there.
    fn encode_placed(&self, p: &Placed, out: &mut [Block], first: usize, runs: &mut Vec<BatchRun>) {
        let split = pieces(p.bytes.len(), self.segments.geometry.segment_blocks);
        debug_assert_eq!(out.len(), self.blocks_of(p), "as many as it takes");
        let (mut at, mut start) = (0, 0);
        let mut run = |addr, blocks: std::ops::Range<usize>| {
            runs.push(BatchRun { addr, blocks: first + blocks.start..first + blocks.end });
        };
        for (part, (place, &(blocks, n))) in p.places.iter().zip(&split).enumerate() {
            let ctx = self.context(place.seq);
            let stamp = self.stamp(place.seq);
            if let Some((addr, link)) = place.link {
                run(addr, start..start + 1);
                out[start] = *batch::encode_chain(link, addr, ctx, stamp);
                start += 1;
            }
            let end = start + blocks as usize;
            let head = BatchHead { part: part as u32, prior: place.prior, acked: place.acked, ..p.head };
            let bytes = p.bytes.range(at, n);
            batch::encode_batch(&mut out[start..end], &head, &bytes, place.addr, ctx, stamp);
            run(place.addr, start..end);
            (at, start) = (at + n, end);
        }
        debug_assert_eq!(at, p.bytes.len(), "a part of a message is in no batch");
        debug_assert_eq!(start, out.len(), "a block is in no batch");
    }

    /// Encodes placed messages; large ones by several threads. The caller gives the blocks back
    /// ([`Log::keep_blocks`]).
    pub fn encode_all<'p>(&self, placed: impl Iterator<Item = &'p Placed>) -> SmallVec<[Encoded; 1]> {
        let placed: SmallVec<[(&Placed, usize); 2]> = placed.map(|p| (p, self.blocks_of(p))).collect();
        let blocks: usize = placed.iter().map(|p| p.1).sum();
        if blocks < shared_from() {
            return smallvec![self.encode(&placed)];
        }
        debug_assert!(blocks > 0, "messages of no blocks");
        let placed: Vec<_> = placed.chunks(1).collect();
        parallel::map_with(self.threads(), placed, |p| self.encode(p)).into()
    }

    /// Encodes messages, each of which takes so many blocks, into one run of blocks: that of an
    /// earlier call if one is free and they are large.
    fn encode(&self, placed: &[(&Placed, usize)]) -> Encoded {
        let number = placed.iter().map(|p| p.1).sum();
        let kept = if number >= LARGE_MESSAGE { self.blocks.try_lock() } else { None };
        let mut blocks = kept.and_then(|mut kept| kept.pop()).unwrap_or_default();
        let stale = blocks.len().min(number);
        if stale > 0 {
            blocks[..stale].fill(Block([0; lanefs_format::BLOCK_SIZE]));
        }
        if stale < number {
            // Exactly so much memory is asked for.
            blocks.reserve_exact(number - stale);
            blocks.resize(number, Block([0; lanefs_format::BLOCK_SIZE]));
        }
        let (mut runs, mut first) = (Vec::new(), 0);
        for &(p, number) in placed {
            self.encode_placed(p, &mut blocks[first..first + number], first, &mut runs);
            first += number;
        }
        debug_assert_eq!(first, number, "a message is in no block");
        Encoded { blocks, runs }
    }

    /// Writes placed messages, by one submission, and nothing else with them. Returns the devices.
    pub fn write_placed<'p>(&self, placed: impl Iterator<Item = &'p Placed>) -> Result<u64> {
        let encoded = self.encode_all(placed);
        let reqs: Vec<Write<'_>> = encoded.iter().flat_map(Encoded::writes).collect();
        let written = self.io.write(&reqs);
        drop(reqs);
        self.keep_blocks(encoded);
        written
    }

    /// Keeps the memory of blocks that were written for the next large messages: fresh memory has
    /// to be cleared by the system first, which takes as long as all the rest of a commit.
    pub fn keep_blocks(&self, encoded: SmallVec<[Encoded; 1]>) {
        let large = encoded.into_iter().map(|e| e.blocks).filter(|b| b.len() >= LARGE_MESSAGE);
        for blocks in large {
            if let Some(mut kept) = self.blocks.try_lock()
                && kept.len() < self.mlogs.len()
            {
                kept.push(blocks);
            }
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
        let bytes = p.shares.iter().map(|share| Bytes { own: start.clone(), share: share.clone() });
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
