//! Leaves of the segment usage table: which blocks of each segment the tree refers to, and where
//! the segment's summary is. Each holds [`SEGMENTS_PER_LEAF`] segments; the levels above are a
//! radix tree over leaf numbers.
//!
//! Only what the tree of the checkpoint refers to is marked here, and of that not the blocks of the
//! usage table itself: opening reads all of it and so knows where they are. (Else writing the table
//! would change the table.) Blocks written since the checkpoint are found by recovery.

use crate::error::{FormatError, Result};
use crate::header::{self, BlockKind, HEADER_LEN};
use crate::summary::SUMMARY_SPAN;
use crate::superblock::MAX_SEGMENT_BLOCKS;
use crate::types::{BLOCK_SIZE, Block, BlockAddr, BlockRef, Ino};

/// Segments described by one leaf.
pub const SEGMENTS_PER_LEAF: usize = 42;
/// Words of a segment's bitmap: bits for the largest segment.
pub const BITMAP_WORDS: usize = 8;
/// The most summary blocks a segment needs.
pub const SUMMARIES: usize = 2;

/// The bit beside the heat that means that a segment is paired.
pub const PAIRED: u8 = 128;

const ENTRY: usize = 96;
const REF: usize = 12;
const _: () = assert!(HEADER_LEN + SEGMENTS_PER_LEAF * ENTRY == BLOCK_SIZE);
const _: () = assert!(BITMAP_WORDS * 8 + SUMMARIES * REF + 8 == ENTRY);
const _: () = assert!(MAX_SEGMENT_BLOCKS as usize <= BITMAP_WORDS * 64, "a bit for each block");
const _: () = assert!(MAX_SEGMENT_BLOCKS as usize <= SUMMARIES * SUMMARY_SPAN, "an owner for each block");

/// The entry of one segment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SegmentUsage {
    /// Bit n: the tree refers to block n.
    pub bits: [u64; BITMAP_WORDS],
    /// Owners of its data blocks, by ranges of blocks.
    pub summaries: [BlockRef; SUMMARIES],
    /// Seconds since 1970: when its youngest block was written.
    pub written: u32,
    /// The heat that its content was thought to have; for people and for the cleaner.
    pub heat: u8,
    /// It holds blocks of the tree, each with a copy half a segment behind it.
    pub paired: bool,
}

impl SegmentUsage {
    /// Returns how many blocks the tree refers to.
    #[inline]
    pub fn live(&self) -> u32 {
        self.bits.iter().map(|w| w.count_ones()).sum()
    }
}

fn put_ref(out: &mut [u8], r: BlockRef) {
    out[..8].copy_from_slice(&r.addr.0.to_le_bytes());
    out[8..12].copy_from_slice(&r.crc.to_le_bytes());
}

fn get_u32(b: &[u8]) -> u32 {
    u32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

fn get_u64(b: &[u8]) -> u64 {
    u64::from(get_u32(b)) | u64::from(get_u32(&b[4..])) << 32
}

fn get_ref(b: &[u8]) -> BlockRef {
    BlockRef { addr: BlockAddr(get_u64(b)), crc: get_u32(&b[8..]) }
}

/// Returns leaf `index` with these segments, without birth marks and checksum.
pub fn encode_leaf(index: u64, segments: &[SegmentUsage]) -> Box<Block> {
    debug_assert!(segments.len() <= SEGMENTS_PER_LEAF, "{} segments for one leaf", segments.len());
    let mut b = Block::zeroed();
    for (s, e) in segments.iter().zip(b.0[HEADER_LEN..].chunks_exact_mut(ENTRY)) {
        for (w, o) in s.bits.iter().zip(e.chunks_exact_mut(8)) {
            o.copy_from_slice(&w.to_le_bytes());
        }
        for (i, r) in s.summaries.iter().enumerate() {
            put_ref(&mut e[64 + i * REF..], *r);
        }
        debug_assert_eq!(s.heat & PAIRED, 0, "a heat that would say that the segment is paired");
        e[88..92].copy_from_slice(&s.written.to_le_bytes());
        e[92] = s.heat & !PAIRED | if s.paired { PAIRED } else { 0 };
    }
    header::put_header(&mut b, BlockKind::Usage, 0, Ino::NONE, index);
    b
}

/// Decodes leaf `index`, read from `addr` and verified against its parent. `segment_blocks` bounds
/// the bitmaps.
pub fn decode_leaf(b: &Block, addr: BlockAddr, index: u64, segment_blocks: u32) -> Result<Vec<SegmentUsage>> {
    header::expect_header(b, addr, BlockKind::Usage, 0, Ino::NONE, index)?;
    b.0[HEADER_LEN..]
        .chunks_exact(ENTRY)
        .map(|e| {
            let mut s = SegmentUsage {
                written: get_u32(&e[88..]),
                heat: e[92] & !PAIRED,
                paired: e[92] & PAIRED != 0,
                ..Default::default()
            };
            for (i, w) in s.bits.iter_mut().enumerate() {
                *w = get_u64(&e[i * 8..]);
            }
            for (i, r) in s.summaries.iter_mut().enumerate() {
                *r = get_ref(&e[64 + i * REF..]);
            }
            let beyond =
                (segment_blocks as usize..BITMAP_WORDS * 64).any(|n| s.bits[n / 64] >> (n % 64) & 1 == 1);
            if beyond || e[93..].iter().any(|&z| z != 0) {
                let why = "marks beyond the end of a segment".into();
                return Err(FormatError { addr, what: BlockKind::Usage.name(), why });
            }
            Ok(s)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::{Stamp, seal};

    #[test]
    fn leaves_come_back() {
        let at = BlockAddr(700);
        let mut segs = vec![SegmentUsage::default(); SEGMENTS_PER_LEAF];
        segs[3] = SegmentUsage {
            bits: [1, 2, 3, 4, 5, 6, 7, 8],
            summaries: [BlockRef { addr: BlockAddr(9), crc: 8 }, BlockRef::NONE],
            written: 77,
            heat: 2,
            paired: true,
        };
        assert_eq!(segs[3].live(), 13);
        let mut b = encode_leaf(5, &segs);
        seal(&mut b, at, Stamp::default());
        assert_eq!(decode_leaf(&b, at, 5, 512).unwrap(), segs);
        assert!(decode_leaf(&b, at, 6, 512).is_err());
        assert!(decode_leaf(&b, at, 5, 256).is_err());
    }
}
