//! A node of a radix tree with 256 children: the maps of files, and the inner levels of the inode
//! table.
//!
//! ```text
//! node := header[64] (addr:u64 crc:u32)[256] zero[960]
//! ```
//!
//! Slot `s` of the node with index `i` at level `l` covers the keys whose bits from `8*l` up are
//! `i << 8 | s`. Slots of a level-0 node refer to what the tree maps to, those of higher nodes to
//! nodes one level below. An address of zero is a hole; its sum is zero too.

use crate::error::{FormatError, Result};
use crate::header::{BlockKind, HEADER_LEN, expect_header, put_header};
use crate::types::{BLOCK_SIZE, Block, BlockAddr, BlockRef, Ino, PAGES_END};
use smallvec::SmallVec;

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
pub const PENDING: BlockAddr = BlockAddr(u64::MAX);

const _: () = assert!(HEADER_LEN + FANOUT * SLOT <= BLOCK_SIZE);
const _: () = assert!(FANOUT == 1 << FANOUT_BITS);
const _: () = assert!(PAGES_END <= KEY_END, "a map can hold every page of a file");

/// The slots of a node, unpacked: a list by slot while few are in use (a file of islands in a sea
/// of holes has one or two in each leaf), else all 256.
#[derive(Clone)]
pub struct Slots(Form);

#[derive(Clone)]
enum Form {
    /// Ascending by slot; none of them is a hole.
    Few(SmallVec<[(u8, BlockRef); 1]>),
    Many(Box<All>),
}

/// Addresses and sums lie apart so that no byte is lost to padding.
#[derive(Clone)]
struct All {
    addr: [u64; FANOUT],
    crc: [u32; FANOUT],
    used: u16,
    /// A bit for each slot in use.
    bits: [u64; FANOUT / 64],
}

impl All {
    #[inline]
    fn set(&mut self, slot: usize, r: BlockRef) {
        debug_assert_eq!(
            self.bits[slot / 64] >> (slot % 64) & 1 == 1,
            self.addr[slot] != 0,
            "slot {slot} is in use by one account, and a hole by the other"
        );
        self.used -= u16::from(self.addr[slot] != 0);
        self.used += u16::from(!r.is_none());
        self.addr[slot] = r.addr.0;
        self.crc[slot] = if r.is_none() { 0 } else { r.crc };
        let bit = 1 << (slot % 64);
        if r.is_none() { self.bits[slot / 64] &= !bit } else { self.bits[slot / 64] |= bit }
    }
}

impl Slots {
    /// The most slots in use that are kept as a list in memory.
    pub const FEW: usize = 16;
    /// Bytes of memory of a node with more.
    pub const WIDE: usize = size_of::<All>();

    /// Returns a node with no slot in use.
    #[inline]
    pub fn empty() -> Slots {
        Slots(Form::Few(SmallVec::new()))
    }

    /// Returns the reference in `slot`, none for a hole.
    #[inline]
    pub fn get(&self, slot: usize) -> BlockRef {
        debug_assert!(slot < FANOUT, "slot {slot} of a node");
        match &self.0 {
            Form::Few(list) => list.iter().find(|e| usize::from(e.0) == slot).map_or(BlockRef::NONE, |e| e.1),
            Form::Many(all) => BlockRef { addr: BlockAddr(all.addr[slot]), crc: all.crc[slot] },
        }
    }

    /// Replaces the reference in `slot`, which is below [`FANOUT`], and returns the one before.
    #[inline]
    pub fn set(&mut self, slot: usize, r: BlockRef) -> BlockRef {
        let old = self.get(slot);
        match &mut self.0 {
            Form::Many(all) => all.set(slot, r),
            Form::Few(list) => {
                let at = list.partition_point(|e| usize::from(e.0) < slot);
                match (old.is_none(), r.is_none()) {
                    (true, true) => {}
                    (false, true) => drop(list.remove(at)),
                    (false, false) => list[at].1 = r,
                    (true, false) if list.len() < Slots::FEW => list.insert(at, (slot as u8, r)),
                    (true, false) => {
                        let mut all = Box::new(All {
                            addr: [0; FANOUT],
                            crc: [0; FANOUT],
                            used: 0,
                            bits: [0; FANOUT / 64],
                        });
                        for (s, r) in list.drain(..) {
                            all.set(usize::from(s), r);
                        }
                        all.set(slot, r);
                        self.0 = Form::Many(all);
                    }
                }
            }
        }
        debug_assert_eq!(self.get(slot).addr, r.addr, "slot {slot} holds what it was given");
        self.check_invariants();
        old
    }

    /// Checks, in debug builds, that a list is short, in order and without holes, and that the
    /// figures of all slots agree.
    fn check_invariants(&self) {
        match &self.0 {
            Form::Few(list) => {
                debug_assert!(list.len() <= Slots::FEW, "a list of {}", list.len());
                debug_assert!(list.is_sorted_by(|a, b| a.0 < b.0), "a list out of order");
                debug_assert!(list.iter().all(|e| !e.1.is_none()), "a hole is in the list");
            }
            Form::Many(all) => {
                let bits: u32 = all.bits.iter().map(|w| w.count_ones()).sum();
                debug_assert_eq!(u32::from(all.used), bits, "slots in use, by their count and their bits");
            }
        }
    }

    /// Returns the number of slots in use.
    #[inline]
    pub fn used(&self) -> usize {
        match &self.0 {
            Form::Few(list) => list.len(),
            Form::Many(all) => usize::from(all.used),
        }
    }

    /// Returns the first slot from `from` on that is in use.
    #[inline]
    pub fn next_used(&self, from: usize) -> Option<usize> {
        debug_assert!(from <= FANOUT, "slot {from} of a node");
        match &self.0 {
            Form::Few(list) => list.iter().map(|e| usize::from(e.0)).find(|s| *s >= from),
            Form::Many(all) => {
                let mut word = from / 64;
                let mut bits = all.bits.get(word)? >> (from % 64) << (from % 64);
                while bits == 0 {
                    word += 1;
                    bits = *all.bits.get(word)?;
                }
                let slot = word * 64 + bits.trailing_zeros() as usize;
                debug_assert!(slot >= from && all.addr[slot] != 0, "slot {slot} behind {from} is a hole");
                Some(slot)
            }
        }
    }

    /// Returns the first slot from `from` on that is a hole.
    #[inline]
    pub fn next_hole(&self, from: usize) -> Option<usize> {
        (from..FANOUT).find(|&s| self.get(s).is_none())
    }
}

/// Packs a node into a block whose header is still to be sealed.
pub fn encode(kind: BlockKind, level: u8, ino: Ino, index: u64, slots: &Slots) -> Box<Block> {
    debug_assert!(matches!(kind, BlockKind::Map | BlockKind::Table | BlockKind::Usage), "{kind:?}");
    debug_assert!(level <= MAX_HEIGHT, "level {level} of a tree");
    debug_assert!(index < KEY_END >> FANOUT_BITS, "node {index:#x} holds keys that there are not");
    let mut b = Block::zeroed();
    put_header(&mut b, kind, level, ino, index);
    let mut from = 0;
    while let Some(s) = slots.next_used(from) {
        let r = slots.get(s);
        debug_assert!(!r.is_none(), "slot {s} is in use and holds nothing");
        debug_assert!(r.addr != PENDING, "a child without an address reached the disk");
        let out = &mut b.0[HEADER_LEN + s * SLOT..][..SLOT];
        out[..8].copy_from_slice(&r.addr.0.to_le_bytes());
        out[8..].copy_from_slice(&r.crc.to_le_bytes());
        from = s + 1;
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
            return Err(FormatError { addr, what: kind.name(), why });
        }
        if a != 0 {
            slots.set(s, BlockRef { addr: BlockAddr(a), crc: c });
        }
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
        assert!((0..FANOUT).all(|i| back.get(i) == s.get(i)) && back.used() == s.used());
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

    #[test]
    fn few_slots_and_many_are_the_same_to_who_asks() {
        let r = |n: usize| BlockRef { addr: BlockAddr(n as u64 + 1), crc: n as u32 };
        let (mut slots, mut model) = (Slots::empty(), [BlockRef::NONE; FANOUT]);
        for i in 0..3000usize {
            // Fills up to some thirty, empties again.
            let slot = i * 37 % 251 % 31 * 8;
            let new = if i / 200 % 2 == 0 || i % 5 == 0 { r(i) } else { BlockRef::NONE };
            assert_eq!(slots.set(slot, new), std::mem::replace(&mut model[slot], new));
            assert_eq!(slots.used(), model.iter().filter(|r| !r.is_none()).count());
            for from in [0, slot, slot + 1, 255, 256] {
                assert_eq!(slots.next_used(from), (from..FANOUT).find(|s| !model[*s].is_none()));
                assert_eq!(slots.next_hole(from), (from..FANOUT).find(|s| model[*s].is_none()));
            }
        }
        assert!((0..FANOUT).all(|s| slots.get(s) == model[s]));
        assert!(matches!(slots.0, Form::Many(_)) && size_of::<Slots>() <= 40);
    }
}
