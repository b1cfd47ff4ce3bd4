//! Batches and chain blocks: all that lies in the node head of an mlog, and so all that recovery
//! rolls forward.
//!
//! ```text
//! segment := chain batch*                       unused and torn blocks may lie between batches
//! chain   := header(64, kind Chain) fixed       where the mlog goes on after this segment
//! batch   := header(64, kind Batch) fixed bytes one or more whole blocks; the rest of the last one is zeros
//! fixed   := crc:u32 kind:u8 zero:3 mount:u64 seq:u64 id:u64 epoch:u64 previous:u64 a:u64 b:u64 c:u64 prior:u64 acked:u64 slot:u64
//! ```
//!
//! 1. A batch's bytes are one piece of a *message*; pieces `part` of `parts` with the same `id`
//!    make the message, which is valid only if all pieces are. (a = part << 32 | parts, b = length
//!    of the piece, c = share << 32 | shares.)
//! 2. A message is an fsync (groups and inode updates, see [`Message`]) or one share of an epoch
//!    commit (what every mlog had durable, and groups); an epoch is complete when all its shares
//!    are valid. `previous` is the non-empty epoch committed before it.
//! 3. `crc` covers all blocks of the batch but its own header and itself, seeded with the address
//!    and with `context`: mount generation, chain sequence and a secret of the volume. Old content
//!    of a reused segment, or file data that looks like a batch, therefore never verifies.
//! 4. `prior` is the place (sequence << 16 | block in the segment) of the batch before this one in
//!    the mlog, 0 for the first of a mount; `acked` that of the last batch up to which all were
//!    flushed when this one got its place; `slot` the generation of the slot in force then. So what
//!    a device acknowledged and does not have shows as soon as a later batch is there.
//! 5. Nothing is trusted before the sum was checked, and every length is checked even then.

use crate::checksum::pieces_crc;
use crate::header::{self, BlockKind, HEADER_LEN, Stamp};
use crate::map_node::PENDING;
use crate::prealloc::{PREALLOC_LEN, Prealloc};
use crate::superblock::MAX_MLOGS;
use crate::types::{
    Attrs, BLOCK_SIZE, Block, BlockAddr, BlockRef, COUNTER_END, FileKind, INLINE_MAX, Ino, MAX_FILE_SIZE,
    PAGES_END, XATTR_BLOB_MAX, inode_flags,
};
use std::ops::Range;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const FIXED_LEN: usize = 96;
/// Bytes of a batch's first block that carry no message bytes.
pub const BATCH_HEADER: usize = HEADER_LEN + FIXED_LEN;

/// The kind of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum BatchKind {
    /// Groups and inode updates of one fsync.
    Fsync = 1,
    /// A share of an epoch commit.
    Commit = 2,
}

/// The part of the checksum's seed of a chain segment's blocks beside their address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Context {
    /// Mount generation.
    pub mount: u64,
    /// The segment's chain sequence.
    pub seq: u64,
    /// The volume's secret: its hash key folded to a word.
    pub secret: u64,
}

impl Context {
    #[inline]
    fn extra(self) -> u64 {
        let x = self.seq ^ self.mount.rotate_left(40) ^ self.secret;
        x.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ (x >> 32)
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Fixed {
    crc: U32,
    kind: u8,
    zero: [u8; 3],
    mount: U64,
    seq: U64,
    id: U64,
    epoch: U64,
    previous: U64,
    a: U64,
    b: U64,
    c: U64,
    prior: U64,
    acked: U64,
    slot: U64,
}

const _: () = assert!(size_of::<Fixed>() == FIXED_LEN);

/// A batch's own words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchHead {
    /// Fsync or commit.
    pub kind: BatchKind,
    /// The message: unique within the mount.
    pub id: u64,
    /// The epoch committed; for an fsync the epoch it was written in.
    pub epoch: u64,
    /// The non-empty epoch committed before.
    pub previous: u64,
    /// The number of the piece in the message, from 0.
    pub part: u32,
    /// The number of pieces.
    pub parts: u32,
    /// The number of the share in the epoch, from 0.
    pub share: u32,
    /// The number of shares.
    pub shares: u32,
    /// Place of the batch before it in its mlog; 0 for none in this mount.
    pub prior: u64,
    /// Place of the last batch of the mlog up to which all were durable before this one was
    /// written.
    pub acked: u64,
    /// Generation of the slot that was in force when it was written.
    pub slot: u64,
}

/// A segment's link to the next of its chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChainLink {
    /// First block of the segment that follows.
    pub successor: BlockAddr,
    /// The sequence it will have.
    pub successor_seq: u64,
}

/// Returns how many blocks a batch of `len` message bytes takes.
#[inline]
pub const fn blocks_for(len: usize) -> usize {
    let blocks = (BATCH_HEADER + len).div_ceil(BLOCK_SIZE);
    debug_assert!(len <= room_in(blocks), "a message that its blocks do not hold");
    blocks
}

/// Returns the most message bytes that a batch of `blocks` blocks holds.
#[inline]
pub const fn room_in(blocks: usize) -> usize {
    debug_assert!(blocks > 0, "a batch has a first block");
    blocks * BLOCK_SIZE - BATCH_HEADER
}

fn finish(blocks: &mut [Block], kind: BlockKind, mut f: Fixed, addr: BlockAddr, ctx: Context, stamp: Stamp) {
    debug_assert!(ctx.seq > 0, "a segment of a chain has a sequence");
    debug_assert!(addr.block() + blocks.len() as u64 <= 1 << 56, "a batch beyond the end of every device");
    f.mount = ctx.mount.into();
    f.seq = ctx.seq.into();
    f.crc = U32::ZERO;
    blocks[0].0[HEADER_LEN..HEADER_LEN + FIXED_LEN].copy_from_slice(f.as_bytes());
    let crc = pieces_crc(addr, ctx.extra(), &[&blocks.as_bytes()[HEADER_LEN + 4..]]);
    blocks[0].0[HEADER_LEN..HEADER_LEN + 4].copy_from_slice(&crc.to_le_bytes());
    header::put_header(&mut blocks[0], kind, 0, Ino::NONE, ctx.seq);
    header::seal(&mut blocks[0], addr, stamp);
}

/// Fills `blocks` (zeroed, exactly [`blocks_for`] of them) with one batch at `addr`, whose bytes
/// are those of `pieces`.
pub fn encode_batch(
    blocks: &mut [Block],
    head: &BatchHead,
    pieces: &[&[u8]],
    addr: BlockAddr,
    ctx: Context,
    stamp: Stamp,
) {
    let len = pieces.iter().map(|p| p.len()).sum::<usize>();
    debug_assert_eq!(blocks.len(), blocks_for(len));
    let (first, rest) = blocks.as_bytes().split_at(BATCH_HEADER + len);
    debug_assert_eq!(first[..BATCH_HEADER], [0; BATCH_HEADER], "a batch is encoded into a used block");
    debug_assert_eq!(rest, &[0; BLOCK_SIZE][..rest.len()], "a batch ends in something else than zeros");
    debug_assert!(len > 0, "a message has a head");
    debug_assert!(head.part < head.parts, "piece {} of {}", head.part, head.parts);
    debug_assert!(head.share < head.shares, "share {} of {}", head.share, head.shares);
    debug_assert!(head.acked <= head.prior, "durable up to {:#x}, behind {:#x}", head.acked, head.prior);
    let mut at = BATCH_HEADER;
    for p in pieces {
        blocks.as_mut_bytes()[at..at + p.len()].copy_from_slice(p);
        at += p.len();
    }
    let f = Fixed {
        crc: U32::ZERO,
        kind: head.kind as u8,
        zero: [0; 3],
        mount: U64::ZERO,
        seq: U64::ZERO,
        id: head.id.into(),
        epoch: head.epoch.into(),
        previous: head.previous.into(),
        a: (u64::from(head.part) << 32 | u64::from(head.parts)).into(),
        b: (len as u64).into(),
        c: (u64::from(head.share) << 32 | u64::from(head.shares)).into(),
        prior: head.prior.into(),
        acked: head.acked.into(),
        slot: head.slot.into(),
    };
    finish(blocks, BlockKind::Batch, f, addr, ctx, stamp);
}

/// Returns the chain block at `addr`, the first block of its segment.
pub fn encode_chain(link: ChainLink, addr: BlockAddr, ctx: Context, stamp: Stamp) -> Box<Block> {
    debug_assert!(link.successor_seq > ctx.seq, "sequences grow along a chain");
    debug_assert!(!link.successor.is_none() && link.successor != addr, "a chain goes on elsewhere");
    let mut b = Block::zeroed();
    let f = Fixed {
        crc: U32::ZERO,
        kind: 0,
        zero: [0; 3],
        mount: U64::ZERO,
        seq: U64::ZERO,
        id: U64::ZERO,
        epoch: U64::ZERO,
        previous: U64::ZERO,
        a: link.successor.0.into(),
        b: link.successor_seq.into(),
        c: U64::ZERO,
        prior: U64::ZERO,
        acked: U64::ZERO,
        slot: U64::ZERO,
    };
    finish(std::slice::from_mut(&mut *b), BlockKind::Chain, f, addr, ctx, stamp);
    b
}

fn fixed_of(blocks: &[Block], kind: BlockKind, ctx: Context) -> Option<Fixed> {
    let first = blocks.first()?;
    let h = header::read_header(first);
    if h.magic.get() != header::NODE_MAGIC || h.kind != kind as u8 {
        return None;
    }
    let mut bytes = [0u8; FIXED_LEN];
    bytes.copy_from_slice(&first.0[HEADER_LEN..HEADER_LEN + FIXED_LEN]);
    let f: Fixed = zerocopy::transmute!(bytes);
    (f.mount.get() == ctx.mount && f.seq.get() == ctx.seq).then_some(f)
}

/// Decodes the batch that starts with `blocks[0]`, which was read from `addr`: its words, its bytes
/// and how many blocks it takes. `None` if there is no valid batch of this chain segment.
pub fn decode_batch(
    blocks: &[Block],
    addr: BlockAddr,
    ctx: Context,
) -> Option<(BatchHead, Range<usize>, usize)> {
    let f = fixed_of(blocks, BlockKind::Batch, ctx)?;
    let len = usize::try_from(f.b.get()).ok().filter(|&l| l <= blocks.len() * BLOCK_SIZE)?;
    let n = blocks_for(len);
    let all = blocks.get(..n)?.as_bytes();
    let sum = pieces_crc(addr, ctx.extra(), &[&all[HEADER_LEN + 4..]]);
    if sum != f.crc.get() {
        return None;
    }
    let kind = match f.kind {
        1 => BatchKind::Fsync,
        2 => BatchKind::Commit,
        _ => return None,
    };
    let (a, c) = (f.a.get(), f.c.get());
    let head = BatchHead {
        kind,
        id: f.id.get(),
        epoch: f.epoch.get(),
        previous: f.previous.get(),
        part: (a >> 32) as u32,
        parts: a as u32,
        share: (c >> 32) as u32,
        shares: c as u32,
        prior: f.prior.get(),
        acked: f.acked.get(),
        slot: f.slot.get(),
    };
    debug_assert!(BATCH_HEADER + len <= all.len(), "the message lies in the blocks that were summed");
    let counted = head.id.max(head.epoch).max(head.previous) < COUNTER_END;
    (counted && head.part < head.parts).then_some((head, BATCH_HEADER..BATCH_HEADER + len, n))
}

/// Decodes the chain block that was read from `addr`.
pub fn decode_chain(block: &Block, addr: BlockAddr, ctx: Context) -> Option<ChainLink> {
    let f = fixed_of(std::slice::from_ref(block), BlockKind::Chain, ctx)?;
    let sum = pieces_crc(addr, ctx.extra(), &[&block.0[HEADER_LEN + 4..]]);
    (sum == f.crc.get() && f.b.get() < COUNTER_END)
        .then_some(ChainLink { successor: BlockAddr(f.a.get()), successor_seq: f.b.get() })
}

/// Returns the bytes of a run of blocks, for slicing a decoded batch out of what was read.
#[inline]
pub fn bytes_of(blocks: &[Block]) -> &[u8] {
    blocks.as_bytes()
}

/// A change of a file's tail, the bytes kept in its inode block.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum TailUpdate {
    /// As it was.
    #[default]
    Same,
    /// There is none.
    None,
    /// These bytes are the start of page `page`; the rest of the page is zeros.
    #[allow(missing_docs)] // named in the line above
    Set { page: u64, bytes: Vec<u8> },
}

/// A run of pages and where they lie: page + i is at addr + i with sum `crcs[i]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// First page.
    pub page: u64,
    /// Its block.
    pub addr: BlockAddr,
    /// One sum per page.
    pub crcs: Vec<u32>,
}

/// One inode's new state in a message: all that the tree of the last checkpoint does not have yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InodeRecord {
    /// The inode's number.
    pub ino: Ino,
    /// Orders the updates of this inode.
    pub version: u64,
    /// Attributes; `generation` tells uses of the number apart.
    pub attrs: Attrs,
    /// Extended attributes if they changed.
    pub xattrs: Option<Vec<u8>>,
    /// The tail.
    pub tail: TailUpdate,
    /// Pages that became holes; applied before `runs`.
    pub unmaps: Vec<Range<u64>>,
    /// Pages that were written.
    pub runs: Vec<Run>,
    /// The pages for which space is kept, if that changed or there are any.
    pub prealloc: Option<Prealloc>,
}

impl InodeRecord {
    /// Returns whether it holds all of the inode's content, whatever records came before it.
    #[inline]
    pub fn is_whole(&self) -> bool {
        let dir = self.attrs.kind() == Some(FileKind::Dir);
        self.unmaps.first() == Some(&(0..u64::MAX)) && (dir || self.tail != TailUpdate::Same)
    }
}

/// A message of the fsync kind, decoded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Message {
    /// Record groups.
    pub groups: Vec<u8>,
    /// Inode updates.
    pub inodes: Vec<InodeRecord>,
}

const HAS_XATTRS: u32 = 1;
const TAIL_NONE: u32 = 2;
const TAIL_SET: u32 = 4;
const HAS_PREALLOC: u32 = 8;
const RECORD_FIXED: usize = 8 + 8 + 4 + 4 + 4 * 4 + 6 * 8 + 4 * 4 + 8;
const _: () =
    assert!(HAS_XATTRS | TAIL_NONE | TAIL_SET | HAS_PREALLOC == 15, "each flag is a bit of its own");

/// Appends the start of a message that carries `groups` and `inodes` inode records.
pub fn put_message_head(out: &mut Vec<u8>, groups: &[u8], inodes: usize) {
    debug_assert!(out.is_empty(), "the head of a message is its start");
    debug_assert!(u32::try_from(groups.len().max(inodes)).is_ok(), "a length does not fit its field");
    out.extend_from_slice(&(groups.len() as u32).to_le_bytes());
    out.extend_from_slice(&(inodes as u32).to_le_bytes());
    out.extend_from_slice(groups);
}

/// Starts a share of an epoch commit: the place of the last batch of each mlog up to which all were
/// durable.
pub fn put_share_head(out: &mut Vec<u8>, acked: &[u64]) {
    debug_assert!(out.is_empty(), "the head of a share is its start");
    out.extend_from_slice(&(acked.len() as u32).to_le_bytes());
    acked.iter().for_each(|a| out.extend_from_slice(&a.to_le_bytes()));
}

/// Takes a share of an epoch commit apart: what was durable, by mlog, and the groups. `None` if
/// that is impossible.
pub fn decode_share(bytes: &[u8]) -> Option<(Vec<u64>, &[u8])> {
    let mut r = Reader(bytes);
    let mlogs = r.u32()? as usize;
    if mlogs > MAX_MLOGS as usize {
        return None;
    }
    let acked = (0..mlogs).map(|_| r.u64()).collect::<Option<Vec<_>>>()?;
    Some((acked, r.0))
}

/// Appends one inode record.
pub fn put_inode(out: &mut Vec<u8>, r: &InodeRecord) {
    r.check_invariants();
    let start = out.len();
    let (tail_flag, tail_page, tail): (u32, u64, &[u8]) = match &r.tail {
        TailUpdate::Same => (0, 0, &[]),
        TailUpdate::None => (TAIL_NONE, 0, &[]),
        TailUpdate::Set { page, bytes } => (TAIL_SET, *page, bytes),
    };
    let flags = tail_flag
        | if r.xattrs.is_some() { HAS_XATTRS } else { 0 }
        | if r.prealloc.is_some() { HAS_PREALLOC } else { 0 };
    let xattrs = r.xattrs.as_deref().unwrap_or_default();
    let a = &r.attrs;
    for v in [r.ino.0, r.version] {
        out.extend_from_slice(&v.to_le_bytes());
    }
    for v in [a.generation, flags, a.mode, a.uid, a.gid, a.flags] {
        out.extend_from_slice(&v.to_le_bytes());
    }
    for v in [a.rdev, a.size, a.atime as u64, a.mtime as u64, a.ctime as u64, a.btime as u64] {
        out.extend_from_slice(&v.to_le_bytes());
    }
    for n in [r.unmaps.len(), r.runs.len(), xattrs.len(), tail.len()] {
        out.extend_from_slice(&(n as u32).to_le_bytes());
    }
    out.extend_from_slice(&tail_page.to_le_bytes());
    if let Some(p) = &r.prealloc {
        out.extend_from_slice(&p.encode());
    }
    for u in &r.unmaps {
        out.extend_from_slice(&u.start.to_le_bytes());
        out.extend_from_slice(&u.end.to_le_bytes());
    }
    for run in &r.runs {
        out.extend_from_slice(&run.page.to_le_bytes());
        out.extend_from_slice(&run.addr.0.to_le_bytes());
        out.extend_from_slice(&(run.crcs.len() as u32).to_le_bytes());
        for c in &run.crcs {
            out.extend_from_slice(&c.to_le_bytes());
        }
    }
    out.extend_from_slice(xattrs);
    out.extend_from_slice(tail);
    debug_assert_eq!(out.len() - start, r.encoded_len());
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    #[inline]
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (a, b) = self.0.split_at_checked(n)?;
        self.0 = b;
        Some(a)
    }
    #[inline]
    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }
    #[inline]
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
}

/// Decodes an fsync message; `None` if a length or a value in it is impossible.
pub fn decode_message(bytes: &[u8]) -> Option<Message> {
    let mut r = Reader(bytes);
    let groups = r.u32()? as usize;
    let inodes = r.u32()? as usize;
    let groups = r.take(groups)?.to_vec();
    if inodes > bytes.len() / RECORD_FIXED {
        return None;
    }
    let inodes = (0..inodes).map(|_| inode_record(&mut r)).collect::<Option<Vec<_>>>()?;
    r.0.is_empty().then_some(Message { groups, inodes })
}

fn inode_record(r: &mut Reader<'_>) -> Option<InodeRecord> {
    let ino = Ino(r.u64()?);
    let version = r.u64()?;
    let generation = r.u32()?;
    let flags = r.u32()?;
    let attrs = Attrs {
        generation,
        mode: r.u32()?,
        uid: r.u32()?,
        gid: r.u32()?,
        flags: r.u32()?,
        rdev: r.u64()?,
        size: r.u64()?,
        atime: r.u64()? as i64,
        mtime: r.u64()? as i64,
        ctime: r.u64()? as i64,
        btime: r.u64()? as i64,
    };
    let (unmaps, runs, xattr_len, tail_len) =
        (r.u32()? as usize, r.u32()? as usize, r.u32()? as usize, r.u32()? as usize);
    let page = r.u64()?;
    let prealloc = match flags & HAS_PREALLOC {
        0 => None,
        _ => {
            let p = Prealloc::decode(r.take(PREALLOC_LEN)?.first_chunk()?)?;
            Some(p).filter(|p| p.is_empty() || attrs.mode & libc::S_IFMT == libc::S_IFREG).map(Some)?
        }
    };
    if ino.is_none()
        || version >= COUNTER_END
        || attrs.kind().is_none()
        || attrs.size > MAX_FILE_SIZE
        || attrs.flags & !inode_flags::ALL != 0
        || (flags & TAIL_SET != 0 && page >= PAGES_END)
        || flags & !(HAS_XATTRS | TAIL_NONE | TAIL_SET | HAS_PREALLOC) != 0
        || xattr_len > XATTR_BLOB_MAX
        || tail_len > INLINE_MAX
        || unmaps > r.0.len() / 16
        || runs > r.0.len() / 20
    {
        return None;
    }
    let unmaps = (0..unmaps)
        .map(|_| Some(r.u64()?..r.u64()?).filter(|u| u.start < u.end))
        .collect::<Option<Vec<_>>>()?;
    let runs = (0..runs)
        .map(|_| {
            let (page, addr, n) = (r.u64()?, BlockAddr(r.u64()?), r.u32()? as usize);
            let crcs = r.take(n.checked_mul(4)?)?;
            let crcs: Vec<u32> =
                crcs.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
            let end = page.checked_add(n as u64)?;
            (n > 0 && end <= PAGES_END && !addr.is_none() && addr.block().checked_add(n as u64)? < 1 << 56)
                .then_some(Run { page, addr, crcs })
        })
        .collect::<Option<Vec<_>>>()?;
    let xattrs = r.take(xattr_len)?;
    let bytes = r.take(tail_len)?.to_vec();
    let tail = match flags & (TAIL_NONE | TAIL_SET) {
        0 => TailUpdate::Same,
        TAIL_NONE => TailUpdate::None,
        TAIL_SET => TailUpdate::Set { page, bytes },
        _ => return None,
    };
    let xattrs = (flags & HAS_XATTRS != 0).then(|| xattrs.to_vec());
    Some(InodeRecord { ino, version, attrs, xattrs, tail, unmaps, runs, prealloc })
}

impl InodeRecord {
    /// Checks, in debug builds, what a decoder would refuse and no caller of the store decides:
    /// ranges and runs that are none, and parts that are too long.
    fn check_invariants(&self) {
        debug_assert!(self.unmaps.iter().all(|u| u.start < u.end), "an empty range: {:?}", self.unmaps);
        debug_assert!(self.runs.iter().all(|run| !run.crcs.is_empty()), "a run of no pages");
        debug_assert!(self.runs.iter().all(|run| !run.addr.is_none()), "a run of holes");
        let xattrs = self.xattrs.as_ref().map_or(0, Vec::len);
        debug_assert!(xattrs <= XATTR_BLOB_MAX, "{xattrs} bytes of extended attributes");
        if let TailUpdate::Set { bytes, .. } = &self.tail {
            debug_assert!(bytes.len() <= INLINE_MAX, "a tail of {} bytes", bytes.len());
        }
    }

    /// Returns the number of bytes that the record takes in a message.
    fn encoded_len(&self) -> usize {
        let prealloc = if self.prealloc.is_some() { PREALLOC_LEN } else { 0 };
        let runs: usize = self.runs.iter().map(|run| 20 + 4 * run.crcs.len()).sum();
        let tail = if let TailUpdate::Set { bytes, .. } = &self.tail { bytes.len() } else { 0 };
        let xattrs = self.xattrs.as_ref().map_or(0, Vec::len);
        RECORD_FIXED + prealloc + 16 * self.unmaps.len() + runs + xattrs + tail
    }

    /// Returns every page written, with the reference of its block.
    pub fn pages(&self) -> impl Iterator<Item = (u64, BlockRef)> + '_ {
        self.runs.iter().flat_map(|run| {
            run.crcs
                .iter()
                .enumerate()
                .map(|(i, &crc)| (run.page + i as u64, BlockRef { addr: run.addr.plus(i as u64), crc }))
        })
    }

    /// Adds one page, extending the last run where it can.
    #[inline]
    pub fn push_page(&mut self, page: u64, r: BlockRef) {
        debug_assert!(!r.is_none() && r.addr != PENDING, "page {page} of inode {} has no block", self.ino);
        if let Some(last) = self.runs.last_mut() {
            let n = last.crcs.len() as u64;
            if last.page + n == page && last.addr.plus(n) == r.addr {
                last.crcs.push(r.crc);
                return;
            }
        }
        self.runs.push(Run { page, addr: r.addr, crcs: vec![r.crc] });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CTX: Context = Context { mount: 3, seq: 17, secret: 0xfeed };

    fn record(ino: u64) -> InodeRecord {
        let attrs = Attrs {
            mode: 0o100644,
            uid: 1,
            gid: 2,
            flags: 0,
            rdev: 0,
            size: 12345,
            atime: -1,
            mtime: 2,
            ctime: 3,
            btime: 4,
            generation: 6,
        };
        let mut r = InodeRecord {
            ino: Ino(ino),
            version: 8,
            attrs,
            xattrs: Some(b"user.x=1".to_vec()),
            tail: TailUpdate::Set { page: 3, bytes: b"tail".to_vec() },
            unmaps: vec![5..9, 20..u64::MAX],
            runs: Vec::new(),
            prealloc: Some(Prealloc::NONE.with(3..90).with(200..300)),
        };
        for p in [0, 1, 2, 7] {
            r.push_page(p, BlockRef { addr: BlockAddr(1000 + p), crc: p as u32 });
        }
        r
    }

    fn message() -> Vec<u8> {
        let mut out = Vec::new();
        put_message_head(&mut out, b"groups", 2);
        put_inode(&mut out, &record(20));
        put_inode(
            &mut out,
            &InodeRecord { xattrs: None, tail: TailUpdate::None, prealloc: None, ..record(21) },
        );
        out
    }

    #[test]
    fn messages_come_back_and_truncations_do_not() {
        let m = message();
        let got = decode_message(&m).unwrap();
        assert_eq!(got.groups, b"groups");
        assert_eq!(got.inodes[0], record(20));
        assert_eq!(got.inodes[0].runs.len(), 2);
        assert_eq!(got.inodes[1].tail, TailUpdate::None);
        assert_eq!(got.inodes[0].pages().count(), 4);
        for cut in 0..m.len() {
            assert!(decode_message(&m[..cut]).is_none(), "cut at {cut}");
        }
    }

    #[test]
    fn batches_verify_only_in_their_place_and_chain() {
        let bytes: Vec<u8> = (0..9000u32).map(|i| i as u8).collect();
        let n = blocks_for(bytes.len());
        assert_eq!(n, 3);
        let mut blocks = vec![Block([0; BLOCK_SIZE]); n];
        let head = BatchHead {
            kind: BatchKind::Commit,
            id: 5,
            epoch: 9,
            previous: 7,
            part: 1,
            parts: 2,
            share: 0,
            shares: 3,
            prior: 17 << 16 | 3,
            acked: 16 << 16 | 9,
            slot: 4,
        };
        let addr = BlockAddr::new(1, 4096);
        encode_batch(&mut blocks, &head, &[&bytes], addr, CTX, Stamp::default());
        let (h, range, used) = decode_batch(&blocks, addr, CTX).unwrap();
        assert_eq!((h, used), (head, n));
        assert_eq!(&bytes_of(&blocks)[range], &bytes[..]);
        assert!(decode_batch(&blocks, addr.plus(1), CTX).is_none());
        assert!(decode_batch(&blocks[..2], addr, CTX).is_none());
        for other in [Context { mount: 4, ..CTX }, Context { seq: 18, ..CTX }, Context { secret: 1, ..CTX }] {
            assert!(decode_batch(&blocks, addr, other).is_none());
        }
        for at in (HEADER_LEN..n * BLOCK_SIZE).step_by(13) {
            let (b, o) = (at / BLOCK_SIZE, at % BLOCK_SIZE);
            blocks[b].0[o] ^= 1;
            assert!(decode_batch(&blocks, addr, CTX).is_none(), "byte {at}");
            blocks[b].0[o] ^= 1;
        }
    }

    #[test]
    fn chain_blocks_verify_only_in_their_chain() {
        let link = ChainLink { successor: BlockAddr::new(0, 512), successor_seq: 18 };
        let at = BlockAddr::new(0, 1024);
        let b = encode_chain(link, at, CTX, Stamp::default());
        assert_eq!(decode_chain(&b, at, CTX), Some(link));
        assert_eq!(decode_chain(&b, at.plus(1), CTX), None);
        assert_eq!(decode_chain(&b, at, Context { seq: 1, ..CTX }), None);
        assert!(decode_batch(std::slice::from_ref(&*b), at, CTX).is_none());
    }
}
