//! The list of inodes without a name that were in use at a checkpoint: recovery frees them. A chain
//! of blocks, rewritten whole when it changes.

use crate::error::{FormatError, Result};
use crate::header::{self, BlockKind, HEADER_LEN};
use crate::map_node::PENDING;
use crate::types::{BLOCK_SIZE, Block, BlockAddr, BlockRef, Ino};

/// Inode numbers in one block.
pub const ORPHANS_PER_BLOCK: usize = (BLOCK_SIZE - HEADER_LEN - 16) / 8;

/// Returns block `index` of the list; `next` follows it.
pub fn encode_orphans(index: u64, next: BlockRef, inos: &[Ino]) -> Box<Block> {
    debug_assert!((1..=ORPHANS_PER_BLOCK).contains(&inos.len()), "{} numbers for one block", inos.len());
    debug_assert!(next.addr != PENDING, "the list goes on at a block without an address");
    let mut b = Block::zeroed();
    let o = &mut b.0[HEADER_LEN..];
    o[..8].copy_from_slice(&next.addr.0.to_le_bytes());
    o[8..12].copy_from_slice(&next.crc.to_le_bytes());
    o[12..16].copy_from_slice(&(inos.len() as u32).to_le_bytes());
    for (i, e) in inos.iter().zip(o[16..].chunks_exact_mut(8)) {
        e.copy_from_slice(&i.0.to_le_bytes());
    }
    header::put_header(&mut b, BlockKind::Orphans, 0, Ino::NONE, index);
    b
}

/// Decodes block `index`: its numbers and what follows.
pub fn decode_orphans(b: &Block, addr: BlockAddr, index: u64) -> Result<(Vec<Ino>, BlockRef)> {
    header::expect_header(b, addr, BlockKind::Orphans, 0, Ino::NONE, index)?;
    let o = &b.0[HEADER_LEN..];
    let u32_at = |i: usize| u32::from_le_bytes([o[i], o[i + 1], o[i + 2], o[i + 3]]);
    let u64_at = |i: usize| u64::from(u32_at(i)) | u64::from(u32_at(i + 4)) << 32;
    let n = u32_at(12) as usize;
    if n > ORPHANS_PER_BLOCK {
        let why = format!("{n} entries");
        return Err(FormatError { addr, what: BlockKind::Orphans.name(), why });
    }
    let next = BlockRef { addr: BlockAddr(u64_at(0)), crc: u32_at(8) };
    Ok(((0..n).map(|i| Ino(u64_at(16 + i * 8))).collect(), next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_comes_back() {
        let inos: Vec<_> = (0..ORPHANS_PER_BLOCK as u64).map(|i| Ino(i + 20)).collect();
        let next = BlockRef { addr: BlockAddr(44), crc: 3 };
        let b = encode_orphans(2, next, &inos);
        assert_eq!(decode_orphans(&b, BlockAddr(5), 2).unwrap(), (inos, next));
        let mut bad = b.clone();
        bad.0[HEADER_LEN + 15] = 1;
        assert!(decode_orphans(&bad, BlockAddr(5), 2).is_err());
    }
}
