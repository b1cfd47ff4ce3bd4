//! A checkpoint slot: one block that names the roots of the tree and the places where recovery
//! starts.
//!
//! There are two, written in turn; the one with the higher generation that verifies is the volume.
//! Writing one is the commit point of a checkpoint. A slot fills one block, so that a torn write
//! leaves a bad checksum and the other slot, untouched.

use crate::checksum::block_crc;
use crate::error::{FormatError, Result};
use crate::map_node::{KEY_END, MAX_HEIGHT, PENDING};
use crate::superblock::{FAR_BLOCKS, MAX_MLOGS, Uuid};
use crate::types::{BLOCK_SIZE, Block, BlockAddr, BlockRef, COUNTER_END};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first eight bytes of a slot.
pub const SLOT_MAGIC: [u8; 8] = *b"LFSLOT\0\x01";
/// Blocks in a slot.
pub const SLOT_BLOCKS: u32 = 1;
/// Flag: the volume was closed; nothing follows the positions.
const CLEAN: u32 = 1;

/// A tree's root: its reference and how many levels of nodes lie below it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Root {
    /// The root node; none for an empty tree.
    pub r: BlockRef,
    /// Its level; 0 if it is a leaf.
    pub level: u8,
}

/// The place at which an mlog's recovery starts: the next block of its node head.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Position {
    /// The first block to try. May be one past the end of its segment.
    pub segment: BlockAddr,
    /// Blocks of that segment that precede the position.
    pub used: u32,
    /// The segment's chain sequence.
    pub seq: u64,
}

/// The content of a slot, verified.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Slot {
    /// Counts checkpoints; the higher one is newer.
    pub generation: u64,
    /// Counts opens for writing; batches of another mount are not this volume's.
    pub mount: u64,
    /// The volume.
    pub volume: Uuid,
    /// Everything up to this epoch is folded.
    pub folded_epoch: u64,
    /// No timestamp on disk is higher.
    pub last_ts: u64,
    /// Inode chunks from this one on are unused.
    pub next_chunk: u64,
    /// No chain sequence is this high.
    pub next_seq: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Blocks the tree refers to.
    pub live_blocks: u64,
    /// Preallocated pages without a block, in all inodes.
    pub unwritten: u64,
    /// The inode table.
    pub table: Root,
    /// The segment usage table.
    pub usage: Root,
    /// The first block of the orphan list.
    pub orphans: BlockRef,
    /// Closed; nothing to recover.
    pub clean: bool,
    /// The place at which each mlog's recovery starts.
    pub positions: Vec<Position>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawRef {
    addr: U64,
    crc: U32,
    level: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawPosition {
    segment: U64,
    seq: U64,
    used: U32,
}

const POSITIONS: usize = MAX_MLOGS as usize;
/// The highest level of a root.
const LEVEL_MAX: u8 = 16;
const _: () = assert!(MAX_HEIGHT <= LEVEL_MAX);
const _: () = assert!(FAR_BLOCKS == 1 + 2 * SLOT_BLOCKS as u64, "a superblock and both slots");

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    own_block: U64,
    volume: [u8; 16],
    generation: U64,
    mount: U64,
    folded_epoch: U64,
    last_ts: U64,
    next_chunk: U64,
    next_seq: U64,
    inodes: U64,
    live_blocks: U64,
    table: RawRef,
    usage: RawRef,
    orphans: RawRef,
    flags: U32,
    mlogs: U32,
    positions: [RawPosition; POSITIONS],
    unwritten: U64,
    zero: [u8; 4092 - 160 - 20 * POSITIONS],
    crc: U32,
}

const _: () = assert!(size_of::<Raw>() == BLOCK_SIZE);
const _: () = assert!(std::mem::offset_of!(Raw, positions) == 152);
const _: () = assert!(std::mem::offset_of!(Raw, unwritten) == 2712);
const _: () = assert!(std::mem::offset_of!(Raw, crc) == 4092);

impl RawRef {
    /// Returns the root that it stands for; `None` if that has more levels than a tree can have.
    fn root(&self) -> Option<Root> {
        let level = u8::try_from(self.level.get()).ok().filter(|level| *level <= LEVEL_MAX)?;
        Some(Root { r: BlockRef { addr: BlockAddr(self.addr.get()), crc: self.crc.get() }, level })
    }
}

fn raw_ref(r: BlockRef, level: u8) -> RawRef {
    RawRef { addr: r.addr.0.into(), crc: r.crc.into(), level: u32::from(level).into() }
}

impl Slot {
    /// Returns the slot's bytes for its place at `addr`. It has 1 to [`MAX_MLOGS`] positions.
    pub fn encode(&self, addr: BlockAddr) -> Box<Block> {
        debug_assert!(!addr.is_none(), "a slot lies behind the superblock");
        debug_assert!((1..=POSITIONS).contains(&self.positions.len()), "{} positions", self.positions.len());
        debug_assert!(self.table.level.max(self.usage.level) <= LEVEL_MAX, "a tree of too many levels");
        debug_assert!(
            [self.table.r, self.usage.r, self.orphans].iter().all(|r| r.addr != PENDING),
            "a slot refers to a block without an address"
        );
        let zero = RawPosition { segment: U64::ZERO, seq: U64::ZERO, used: U32::ZERO };
        let mut positions = [zero; POSITIONS];
        for (raw, p) in positions.iter_mut().zip(&self.positions) {
            *raw = RawPosition { segment: p.segment.0.into(), seq: p.seq.into(), used: p.used.into() };
        }
        let raw = Raw {
            magic: SLOT_MAGIC,
            own_block: addr.0.into(),
            volume: self.volume.0,
            generation: self.generation.into(),
            mount: self.mount.into(),
            folded_epoch: self.folded_epoch.into(),
            last_ts: self.last_ts.into(),
            next_chunk: self.next_chunk.into(),
            next_seq: self.next_seq.into(),
            inodes: self.inodes.into(),
            live_blocks: self.live_blocks.into(),
            table: raw_ref(self.table.r, self.table.level),
            usage: raw_ref(self.usage.r, self.usage.level),
            orphans: raw_ref(self.orphans, 0),
            flags: (if self.clean { CLEAN } else { 0 }).into(),
            mlogs: (self.positions.len().min(POSITIONS) as u32).into(),
            positions,
            unwritten: self.unwritten.into(),
            zero: [0; 4092 - 160 - 20 * POSITIONS],
            crc: U32::ZERO,
        };
        let mut b = Block::zeroed();
        b.0.copy_from_slice(raw.as_bytes());
        let crc = block_crc(addr, &b.0[..BLOCK_SIZE - 4]);
        b.0[BLOCK_SIZE - 4..].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Verifies and decodes the block read from `addr`.
    ///
    /// # Errors
    /// [`FormatError`] for anything that [`Slot::encode`] would not have written there for this
    /// volume.
    pub fn decode(block: &Block, addr: BlockAddr, volume: Uuid) -> Result<Slot> {
        let bad = |why: &str| FormatError { addr, what: "checkpoint slot", why: why.into() };
        let raw = Raw::ref_from_bytes(&block.0).map_err(|_| bad("wrong size"))?;
        if raw.magic != SLOT_MAGIC {
            return Err(bad("no magic number"));
        }
        if raw.crc.get() != block_crc(addr, &block.0[..BLOCK_SIZE - 4]) {
            return Err(bad("checksum"));
        }
        if raw.own_block.get() != addr.0 {
            return Err(bad("written for another place"));
        }
        if raw.volume != volume.0 {
            return Err(bad("belongs to another volume"));
        }
        let mlogs = raw.mlogs.get() as usize;
        if mlogs == 0 || mlogs > POSITIONS {
            return Err(bad("number of mlogs"));
        }
        let flags = raw.flags.get();
        if flags & !CLEAN != 0 {
            return Err(bad("unknown flags"));
        }
        let counters = [
            raw.generation,
            raw.mount,
            raw.folded_epoch,
            raw.last_ts,
            raw.next_seq,
            raw.inodes,
            raw.live_blocks,
            raw.unwritten,
        ];
        let seqs = raw.positions[..mlogs].iter().map(|p| p.seq);
        if counters.into_iter().chain(seqs).any(|c| c.get() >= COUNTER_END) {
            return Err(bad("a count that cannot be"));
        }
        if raw.next_chunk.get() > KEY_END {
            return Err(bad("more inode numbers than there are"));
        }
        let root = |r: &RawRef| r.root().ok_or_else(|| bad("tree level"));
        Ok(Slot {
            generation: raw.generation.get(),
            mount: raw.mount.get(),
            volume,
            folded_epoch: raw.folded_epoch.get(),
            last_ts: raw.last_ts.get(),
            next_chunk: raw.next_chunk.get(),
            next_seq: raw.next_seq.get(),
            inodes: raw.inodes.get(),
            live_blocks: raw.live_blocks.get(),
            unwritten: raw.unwritten.get(),
            table: root(&raw.table)?,
            usage: root(&raw.usage)?,
            orphans: root(&raw.orphans)?.r,
            clean: flags & CLEAN != 0,
            positions: raw.positions[..mlogs]
                .iter()
                .map(|p| Position {
                    segment: BlockAddr(p.segment.get()),
                    used: p.used.get(),
                    seq: p.seq.get(),
                })
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_slot_that_was_written_here_decodes() {
        let volume = Uuid::from_random([3; 16]);
        let slot = Slot {
            generation: 9,
            mount: 2,
            volume,
            folded_epoch: 44,
            last_ts: COUNTER_END - 1,
            next_chunk: 7,
            next_seq: 12,
            inodes: 5,
            live_blocks: 100,
            unwritten: 40,
            table: Root { r: BlockRef { addr: BlockAddr(77), crc: 5 }, level: 2 },
            usage: Root { r: BlockRef { addr: BlockAddr(78), crc: 6 }, level: 1 },
            orphans: BlockRef::NONE,
            clean: true,
            positions: (0..POSITIONS as u64)
                .map(|i| Position { segment: BlockAddr(i * 16), used: i as u32, seq: i })
                .collect(),
        };
        let a = BlockAddr(1);
        let b = slot.encode(a);
        assert_eq!(Slot::decode(&b, a, volume).unwrap(), slot);
        assert!(Slot::decode(&b, BlockAddr(2), volume).is_err());
        assert!(Slot::decode(&b, a, Uuid::from_random([4; 16])).is_err());
        for at in (0..BLOCK_SIZE).step_by(7) {
            let mut c = b.clone();
            c.0[at] ^= 0x10;
            assert!(Slot::decode(&c, a, volume).is_err(), "byte {at}");
        }
    }
}
