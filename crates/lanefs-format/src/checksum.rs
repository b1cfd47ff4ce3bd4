//! CRC32C of a block, seeded with the block's address.
//!
//! The seed makes a block that was written to, or read from, the wrong place fail its check, even
//! if its content is a valid block of the same kind. Two addresses on one device below 2^32 blocks
//! (16 TiB) always have different seeds, and since a CRC is a bijection of its seed for fixed
//! bytes, the same bytes at two such addresses never have the same sum.

use crate::types::{Block, BlockAddr, BlockRef};
use crc_fast::{CrcAlgorithm, Digest};

/// Returns the CRC's start state for a block at `addr`, further varied by `extra` (a batch's chain
/// sequence).
#[inline]
fn seed(addr: BlockAddr, extra: u64) -> u32 {
    // The extra word is spread first, so that (address, extra) and (address + 1, extra - 1) differ.
    !(fold(addr.0) ^ fold(extra.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
}

#[inline]
const fn fold(v: u64) -> u32 {
    (v as u32) ^ ((v >> 32) as u32).wrapping_mul(0x9E37_79B1)
}

/// Returns the CRC32C of `bytes`, as stored at `addr`.
#[inline]
pub fn block_crc(addr: BlockAddr, bytes: &[u8]) -> u32 {
    block_crc_with(addr, 0, bytes)
}

/// Returns the CRC32C of `bytes`, as stored at `addr` in a chain (or another context) numbered
/// `extra`.
#[inline]
pub fn block_crc_with(addr: BlockAddr, extra: u64, bytes: &[u8]) -> u32 {
    let mut d = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(seed(addr, extra)));
    d.update(bytes);
    d.finalize() as u32
}

/// Returns the CRC32C of several pieces in a row, as stored at `addr` in context `extra`.
pub fn pieces_crc(addr: BlockAddr, extra: u64, pieces: &[&[u8]]) -> u32 {
    let mut d = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(seed(addr, extra)));
    for p in pieces {
        d.update(p);
    }
    d.finalize() as u32
}

/// Returns the reference a parent holds of `block` once it lies at `addr`.
#[inline]
pub fn reference(addr: BlockAddr, block: &Block) -> BlockRef {
    debug_assert!(!addr.is_none(), "a block is referred to that has no address");
    BlockRef { addr, crc: block_crc(addr, &block.0) }
}

/// Returns whether `bytes` are what `r` refers to.
#[inline]
pub fn matches(r: BlockRef, bytes: &[u8]) -> bool {
    block_crc(r.addr, bytes) == r.crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_crc32c_for_address_zero() {
        // The seed of address 0 is all ones: the plain CRC32C of the check string.
        assert_eq!(block_crc(BlockAddr(0), b"123456789"), 0xE306_9283);
    }

    #[test]
    fn the_same_bytes_elsewhere_do_not_match() {
        let b = Block::zeroed();
        let r = reference(BlockAddr::new(1, 77), &b);
        assert!(matches(r, &b.0));
        for other in [BlockAddr::new(1, 78), BlockAddr::new(0, 77), BlockAddr::new(2, 77), BlockAddr(0)] {
            assert!(!matches(BlockRef { addr: other, ..r }, &b.0), "{other}");
        }
        assert_ne!(block_crc_with(r.addr, 1, &b.0), block_crc_with(r.addr, 2, &b.0));
    }

    #[test]
    fn pieces_sum_like_the_whole() {
        let a = BlockAddr(9);
        assert_eq!(pieces_crc(a, 5, &[b"ab", b"", b"cde"]), block_crc_with(a, 5, b"abcde"));
    }

    #[test]
    fn every_flipped_bit_shows() {
        let mut b = Block::zeroed();
        b.0[17] = 5;
        let r = reference(BlockAddr(3), &b);
        for byte in 0..b.0.len() {
            b.0[byte] ^= 1 << (byte % 8);
            assert!(!matches(r, &b.0));
            b.0[byte] ^= 1 << (byte % 8);
        }
    }
}
