//! A leaf of the inode table: one chunk of 128 inode numbers. Its inner nodes are radix nodes (see
//! `map_node`).
//!
//! ```text
//! leaf  := header[64] entry[128] zero[448]
//! entry := addr:u64 epoch:u64 crc:u32 generation:u32 slot:u32           28 bytes
//! ```
//!
//! `addr` and `crc` refer to the block with the inode, its own if `slot` is 0 and otherwise a pack
//! (see `pack`), of which it has slot `slot` - 1; an address of zero means that the number is free.
//! `generation` is that of the present use, or of the next one if the number is free. `epoch` is
//! the fold that last changed the entry.

use crate::error::{FormatError, Result};
use crate::header::{BlockKind, HEADER_LEN, expect_header, put_header};
use crate::map_node::PENDING;
use crate::pack::SLOTS_MAX;
use crate::types::{BLOCK_SIZE, Block, BlockAddr, BlockRef, COUNTER_END, INOS_PER_CHUNK, Ino};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Entries of a leaf.
pub const ENTRIES: usize = INOS_PER_CHUNK as usize;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    addr: U64,
    epoch: U64,
    crc: U32,
    generation: U32,
    slot: U32,
}

const _: () = assert!(size_of::<Raw>() == 28);
const _: () = assert!(HEADER_LEN + ENTRIES * size_of::<Raw>() <= BLOCK_SIZE);

/// The entry of one inode number.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TableEntry {
    /// The block it lies in; none if the number is free.
    pub block: BlockRef,
    /// 0 if that is a block of its own; otherwise the block is a pack, and this one more than its
    /// place in there.
    pub slot: u8,
    /// The generation of its present or, if free, next use.
    pub generation: u32,
    /// The fold that last changed this entry.
    pub epoch: u64,
}

/// Packs a chunk into a block whose header is still to be sealed.
pub fn encode(chunk: u64, entries: &[TableEntry; ENTRIES]) -> Box<Block> {
    let mut b = Block::zeroed();
    put_header(&mut b, BlockKind::Table, 0, Ino::NONE, chunk);
    let mut raw = <[Raw; ENTRIES]>::new_zeroed();
    for (r, e) in raw.iter_mut().zip(entries) {
        debug_assert!(e.block.addr != PENDING, "an inode without an address reached the disk");
        debug_assert!(!e.block.is_none() || e.block.crc == 0, "a free number has a checksum");
        debug_assert!(usize::from(e.slot) <= SLOTS_MAX, "slot {} of a pack", e.slot);
        debug_assert!(!e.block.is_none() || e.slot == 0, "a free number has a slot");
        r.addr = U64::new(e.block.addr.0);
        r.crc = U32::new(e.block.crc);
        r.generation = U32::new(e.generation);
        r.epoch = U64::new(e.epoch);
        r.slot = U32::new(e.slot.into());
    }
    let bytes = raw.as_bytes();
    b.0[HEADER_LEN..HEADER_LEN + bytes.len()].copy_from_slice(bytes);
    b
}

/// Unpacks the leaf of `chunk`.
pub fn decode(block: &Block, addr: BlockAddr, chunk: u64) -> Result<[TableEntry; ENTRIES]> {
    expect_header(block, addr, BlockKind::Table, 0, Ino::NONE, chunk)?;
    let bad = |why: String| FormatError { addr, what: "inode table node", why };
    let end = HEADER_LEN + size_of::<[Raw; ENTRIES]>();
    let raw =
        <[Raw; ENTRIES]>::read_from_bytes(&block.0[HEADER_LEN..end]).map_err(|_| bad("cut short".into()))?;
    let mut entries = [TableEntry::default(); ENTRIES];
    for (slot, (e, r)) in entries.iter_mut().zip(&raw).enumerate() {
        let block = BlockRef { addr: BlockAddr(r.addr.get()), crc: r.crc.get() };
        let n = r.slot.get();
        if n as usize > SLOTS_MAX
            || (block.is_none() && n != 0)
            || r.epoch.get() >= COUNTER_END
            || block.addr == PENDING
            || (block.is_none() && block.crc != 0)
        {
            return Err(bad(format!("entry {slot} holds address {} and slot {n}", block.addr)));
        }
        *e = TableEntry { block, slot: n as u8, generation: r.generation.get(), epoch: r.epoch.get() };
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_survive_the_trip_and_reject_nonsense() {
        let mut e = [TableEntry::default(); ENTRIES];
        let block = BlockRef { addr: BlockAddr::new(1, 9), crc: 5 };
        e[3] = TableEntry { block, slot: 0, generation: 2, epoch: 8 };
        e[4] = TableEntry { block, slot: SLOTS_MAX as u8, generation: 0, epoch: 8 };
        e[127].generation = 77;
        let b = encode(6, &e);
        assert_eq!(decode(&b, BlockAddr(1), 6).unwrap(), e);
        assert!(decode(&b, BlockAddr(1), 7).is_err());
        let slot = |n: usize| HEADER_LEN + 28 * n + 24;
        for (at, v) in [(slot(0), 1), (slot(3), SLOTS_MAX as u8 + 1), (slot(3) + 1, 1)] {
            let mut bad = b.clone();
            bad.0[at] = v;
            assert!(decode(&bad, BlockAddr(1), 6).is_err(), "{at}");
        }
        for at in 0..BLOCK_SIZE {
            let mut c = b.clone();
            c.0[at] ^= 0xff;
            let _ = decode(&c, BlockAddr(1), 6);
        }
    }
}
