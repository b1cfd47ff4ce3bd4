//! Summaries: who owns each data block of a segment, so that the cleaner can ask the owner whether
//! the block is still its. Node blocks have it in their header. A summary is a hint: the owner's
//! map decides.
//!
//! Summaries are written by checkpoints and hang on the usage table, like everything else below the
//! slot; recovery knows the owners of newer blocks from the batches it replays.

use crate::error::Result;
use crate::header::{self, BlockKind, HEADER_LEN};
use crate::types::{BLOCK_SIZE, Block, BlockAddr, Ino};

/// Blocks of a segment covered by one summary block.
pub const SUMMARY_SPAN: usize = 288;
const ENTRY: usize = 14;
const _: () = assert!(HEADER_LEN + SUMMARY_SPAN * ENTRY == BLOCK_SIZE);
/// Inode numbers and pages below this can be summarised: 7 bytes each.
pub const SUMMARY_LIMIT: u64 = 1 << 56;

/// The owner of a data block; inode 0 if the block is none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DataOwner {
    /// The file or directory.
    pub ino: Ino,
    /// Its page.
    pub page: u64,
}

/// Returns summary block `part` of segment `segment`.
pub fn encode_summary(segment: u64, part: usize, owners: &[DataOwner]) -> Box<Block> {
    debug_assert!(u8::try_from(part).is_ok(), "part {part} of a summary");
    debug_assert!(owners.len() <= SUMMARY_SPAN, "{} owners for one block", owners.len());
    let mut b = Block::zeroed();
    for (o, e) in owners.iter().zip(b.0[HEADER_LEN..].chunks_exact_mut(ENTRY)) {
        e[..7].copy_from_slice(&o.ino.0.to_le_bytes()[..7]);
        e[7..].copy_from_slice(&o.page.to_le_bytes()[..7]);
    }
    header::put_header(&mut b, BlockKind::Summary, part as u8, Ino::NONE, segment);
    b
}

/// Decodes a summary block that was verified against its parent.
pub fn decode_summary(b: &Block, addr: BlockAddr, segment: u64, part: usize) -> Result<Vec<DataOwner>> {
    debug_assert!(u8::try_from(part).is_ok(), "part {part} of a summary");
    header::expect_header(b, addr, BlockKind::Summary, part as u8, Ino::NONE, segment)?;
    let word = |e: &[u8]| {
        let mut w = [0u8; 8];
        w[..7].copy_from_slice(e);
        u64::from_le_bytes(w)
    };
    Ok(b.0[HEADER_LEN..]
        .chunks_exact(ENTRY)
        .map(|e| DataOwner { ino: Ino(word(&e[..7])), page: word(&e[7..]) })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_come_back() {
        let owners: Vec<_> = (0..SUMMARY_SPAN as u64)
            .map(|i| DataOwner { ino: Ino(i), page: SUMMARY_LIMIT - 1 - i })
            .collect();
        let b = encode_summary(9, 1, &owners);
        assert_eq!(decode_summary(&b, BlockAddr(5), 9, 1).unwrap(), owners);
        assert!(decode_summary(&b, BlockAddr(5), 9, 0).is_err());
    }
}
