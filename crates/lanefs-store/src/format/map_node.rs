//! A node of a radix tree with 256 children: the maps of files, and the inner levels of the inode table.
//!
//! ```text
//! node := header[64] (addr:u64 crc:u32)[256] zero[960]
//! ```
//!
//! Slot `s` of the node with index `i` at level `l` covers the keys whose bits from `8*l` up are `i << 8 | s`.
//! Slots of a level-0 node refer to what the tree maps to, those of higher nodes to nodes one level below. An
//! address of zero is a hole; its sum is zero too.

use crate::error::{Result, StoreError};
use crate::format::header::{BlockKind, HEADER_LEN, expect_header, put_header};
use crate::types::{BLOCK_SIZE, Block, BlockAddr, BlockRef, Ino};

/// Slots of a node.
pub const FANOUT: usize = 256;
/// log2 of [`FANOUT`].
pub const FANOUT_BITS: u32 = 8;
/// The most levels a tree can have: keys below 2^56.
pub const MAX_HEIGHT: u8 = 7;
/// Keys at and above this cannot be mapped.
pub const KEY_END: u64 = 1 << (FANOUT_BITS * MAX_HEIGHT as u32);
/// Bytes of one slot.
const SLOT: usize = 12;
/// In memory only: the child exists and has not been given an address yet. Never on disk.
pub(crate) const PENDING: BlockAddr = BlockAddr(u64::MAX);

const _: () = assert!(HEADER_LEN + FANOUT * SLOT <= BLOCK_SIZE);

/// The slots of a node, unpacked. Addresses and sums lie apart so that no byte is lost to padding.
#[derive(Clone)]
pub struct Slots {
    addr: [u64; FANOUT],
    crc: [u32; FANOUT],
    used: u16,
}

impl Slots {
    /// No slot in use.
    pub fn empty() -> Slots {
        Slots { addr: [0; FANOUT], crc: [0; FANOUT], used: 0 }
    }

    /// The reference in `slot`, none for a hole.
    #[inline]
    pub fn get(&self, slot: usize) -> BlockRef {
        BlockRef { addr: BlockAddr(self.addr[slot]), crc: self.crc[slot] }
    }

    /// Replaces the reference in `slot` and returns the one before.
    pub fn set(&mut self, slot: usize, r: BlockRef) -> BlockRef {
        let old = self.get(slot);
        self.addr[slot] = r.addr.0;
        self.crc[slot] = if r.is_none() { 0 } else { r.crc };
        self.used += u16::from(!r.is_none());
        self.used -= u16::from(!old.is_none());
        old
    }

    /// Slots in use.
    pub fn used(&self) -> usize {
        usize::from(self.used)
    }

    /// The first slot from `from` on that is in use.
    pub fn next_used(&self, from: usize) -> Option<usize> {
        (from..FANOUT).find(|&s| self.addr[s] != 0)
    }

    /// The first slot from `from` on that is a hole.
    pub fn next_hole(&self, from: usize) -> Option<usize> {
        (from..FANOUT).find(|&s| self.addr[s] == 0)
    }
}

/// Packs a node into a block whose header is still to be sealed.
pub fn encode(kind: BlockKind, level: u8, ino: Ino, index: u64, slots: &Slots) -> Box<Block> {
    let mut b = Block::zeroed();
    put_header(&mut b, kind, level, ino, index);
    for (s, out) in b.0[HEADER_LEN..].chunks_exact_mut(SLOT).take(FANOUT).enumerate() {
        debug_assert!(slots.addr[s] != PENDING.0, "a child without an address reached the disk");
        out[..8].copy_from_slice(&slots.addr[s].to_le_bytes());
        out[8..].copy_from_slice(&slots.crc[s].to_le_bytes());
    }
    b
}

/// Unpacks the node that was asked for.
pub fn decode(
    block: &Block,
    addr: BlockAddr,
    kind: BlockKind,
    level: u8,
    ino: Ino,
    index: u64,
) -> Result<Slots> {
    expect_header(block, addr, kind, level, ino, index)?;
    let mut slots = Slots::empty();
    for (s, b) in block.0[HEADER_LEN..].chunks_exact(SLOT).take(FANOUT).enumerate() {
        let a = u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
        let c = u32::from_le_bytes([b[8], b[9], b[10], b[11]]);
        if a == PENDING.0 || (a == 0 && c != 0) {
            let why = format!("slot {s} holds address {a:#x} with sum {c:#x}");
            return Err(StoreError::Corrupt { addr, what: kind.name(), why });
        }
        slots.addr[s] = a;
        slots.crc[s] = c;
        slots.used += u16::from(a != 0);
    }
    Ok(slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_survive_the_trip_and_reject_nonsense() {
        let mut s = Slots::empty();
        for i in (0..FANOUT).step_by(3) {
            s.set(i, BlockRef { addr: BlockAddr::new(2, 1000 + i as u64), crc: i as u32 });
        }
        s.set(3, BlockRef::NONE);
        let b = encode(BlockKind::Map, 1, Ino(20), 7, &s);
        let back = decode(&b, BlockAddr(5), BlockKind::Map, 1, Ino(20), 7).unwrap();
        assert_eq!((back.addr, back.crc, back.used()), (s.addr, s.crc, s.used()));
        assert_eq!(s.used(), 85);
        assert_eq!((s.next_used(1), s.next_hole(0), s.next_used(256)), (Some(6), Some(1), None));

        let mut bad = b.clone();
        bad.0[HEADER_LEN + 12 + 8] = 1; // a sum without an address
        assert!(decode(&bad, BlockAddr(5), BlockKind::Map, 1, Ino(20), 7).is_err());
        let mut bad = b.clone();
        bad.0[HEADER_LEN..HEADER_LEN + 8].fill(0xff);
        assert!(decode(&bad, BlockAddr(5), BlockKind::Map, 1, Ino(20), 7).is_err());
        assert!(decode(&b, BlockAddr(5), BlockKind::Map, 1, Ino(20), 8).is_err());
    }
}
