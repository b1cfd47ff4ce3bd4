//! The 64 bytes at the start of every node block: all blocks but file data.
//!
//! The tree itself needs none of it (each parent holds address and sum of each child). The header
//! exists so that `fsck` can find node blocks without any parent, tell whose they are and which of
//! two copies is newer, and so that a decoder can check that it was handed the block it asked for.
//!
//! `crc` is the block's own sum, computed with that field zero and seeded with the address. It is
//! completed, with the birth marks, by whoever gives the block its address: see [`seal`].

use crate::checksum::{block_crc, pieces_crc};
use crate::error::{FormatError, Result};
use crate::types::{BLOCK_SIZE, Block, BlockAddr, COUNTER_END, Ino};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a block header.
pub const HEADER_LEN: usize = 64;
/// "LFSn" in little-endian order.
pub const NODE_MAGIC: u32 = u32::from_le_bytes(*b"LFSn");
/// Byte offset of the header's own checksum.
const CRC_AT: usize = 12;

/// The kind of a node block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum BlockKind {
    /// An inode block.
    Inode = 1,
    /// A node of a file's map.
    Map = 2,
    /// A node of the inode table.
    Table = 3,
    /// A bucket of a directory.
    Bucket = 4,
    /// A block of extended attributes.
    Xattr = 5,
    /// A node of the segment usage table.
    Usage = 6,
    /// A block of the orphan list.
    Orphans = 7,
    /// The first block of a batch.
    Batch = 8,
    /// A segment's link to its successor.
    Chain = 9,
    /// A segment's summary.
    Summary = 10,
    /// Small inodes of one chunk.
    Pack = 11,
}

impl BlockKind {
    /// Returns the kind that the byte on disk stands for.
    #[inline]
    pub const fn from_u8(v: u8) -> Option<BlockKind> {
        Some(match v {
            1 => BlockKind::Inode,
            2 => BlockKind::Map,
            3 => BlockKind::Table,
            4 => BlockKind::Bucket,
            5 => BlockKind::Xattr,
            6 => BlockKind::Usage,
            7 => BlockKind::Orphans,
            8 => BlockKind::Batch,
            9 => BlockKind::Chain,
            10 => BlockKind::Summary,
            11 => BlockKind::Pack,
            _ => return None,
        })
    }

    /// Returns whether its blocks belong to an inode each: those of the others belong to the
    /// volume.
    #[inline]
    pub const fn is_of_inode(self) -> bool {
        matches!(self, BlockKind::Inode | BlockKind::Map | BlockKind::Bucket | BlockKind::Xattr)
    }

    /// Returns its name in messages.
    #[inline]
    pub const fn name(self) -> &'static str {
        match self {
            BlockKind::Inode => "inode block",
            BlockKind::Map => "map node",
            BlockKind::Table => "inode table node",
            BlockKind::Bucket => "directory bucket",
            BlockKind::Xattr => "extended attribute block",
            BlockKind::Usage => "usage table node",
            BlockKind::Orphans => "orphan list",
            BlockKind::Batch => "batch header",
            BlockKind::Chain => "segment chain block",
            BlockKind::Summary => "segment summary",
            BlockKind::Pack => "pack of inodes",
        }
    }
}

/// The header as it lies in a block.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BlockHeader {
    /// [`NODE_MAGIC`].
    pub magic: U32,
    /// A [`BlockKind`].
    pub kind: u8,
    /// Level in its tree; 0 holds the leaves' references.
    pub level: u8,
    /// None defined; zero.
    pub flags: U16,
    /// Branch of the volume; zero, the only one there is.
    pub branch: U32,
    /// The block's own sum.
    pub crc: U32,
    /// Owning inode, or zero.
    pub ino: U64,
    /// Place within the owner's structure.
    pub index: U64,
    /// Epoch in which this copy was written.
    pub epoch: U64,
    /// Orders copies of one structure within one mount and epoch.
    pub sequence: U64,
    /// First 8 bytes of the volume's uuid.
    pub volume: U64,
    /// Mount generation in which this copy was written.
    pub mount: U64,
}

const _: () = assert!(size_of::<BlockHeader>() == HEADER_LEN);
const _: () = assert!(std::mem::offset_of!(BlockHeader, crc) == CRC_AT);

/// Birth marks of a block, known to whoever gives it its address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Stamp {
    /// Mount generation.
    pub mount: u64,
    /// Epoch.
    pub epoch: u64,
    /// Orders copies of one structure within the epoch; any growing number will do.
    pub sequence: u64,
    /// First 8 bytes of the volume's uuid, little-endian. Last, so that stamps of one volume
    /// compare by age.
    pub volume: u64,
}

/// Writes a header without birth marks and checksum to the start of `block`.
pub fn put_header(block: &mut Block, kind: BlockKind, level: u8, ino: Ino, index: u64) {
    debug_assert_eq!(kind.is_of_inode(), !ino.is_none(), "a {} of inode {ino}", kind.name());
    debug_assert_eq!(block.0[..HEADER_LEN], [0; HEADER_LEN], "something lies where the header goes");
    let h = BlockHeader {
        magic: U32::new(NODE_MAGIC),
        kind: kind as u8,
        level,
        flags: U16::ZERO,
        branch: U32::ZERO,
        crc: U32::ZERO,
        ino: U64::new(ino.0),
        index: U64::new(index),
        epoch: U64::ZERO,
        sequence: U64::ZERO,
        volume: U64::ZERO,
        mount: U64::ZERO,
    };
    block.0[..HEADER_LEN].copy_from_slice(h.as_bytes());
}

/// Completes a block's header for its place at `addr`: birth marks, then its own checksum.
pub fn seal(block: &mut Block, addr: BlockAddr, stamp: Stamp) {
    let mut h = read_header(block);
    debug_assert_eq!(h.magic.get(), NODE_MAGIC, "a block is sealed that has no header");
    debug_assert!(BlockKind::from_u8(h.kind).is_some(), "a header of kind {}", h.kind);
    debug_assert!(!addr.is_none(), "a node block is sealed for no address");
    h.epoch = U64::new(stamp.epoch);
    h.sequence = U64::new(stamp.sequence);
    h.volume = U64::new(stamp.volume);
    h.mount = U64::new(stamp.mount);
    h.crc = U32::ZERO;
    block.0[..HEADER_LEN].copy_from_slice(h.as_bytes());
    let crc = block_crc(addr, &block.0);
    block.0[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Returns the header's bytes, not yet believed.
#[inline]
pub fn read_header(block: &Block) -> BlockHeader {
    let mut h = [0u8; HEADER_LEN];
    h.copy_from_slice(&block.0[..HEADER_LEN]);
    zerocopy::transmute!(h)
}

/// Returns whether the counters of a header are some that a volume can reach.
fn can_count(h: &BlockHeader) -> bool {
    h.mount.get().max(h.epoch.get()).max(h.sequence.get()) < COUNTER_END
}

/// Returns the header, if the block is a sealed node block of a known kind for this very address.
/// For scans that have no parent to ask.
pub fn verify_sealed(block: &Block, addr: BlockAddr) -> Option<(BlockKind, BlockHeader)> {
    let h = read_header(block);
    if h.magic.get() != NODE_MAGIC {
        return None;
    }
    let kind = BlockKind::from_u8(h.kind)?;
    if !can_count(&h) {
        return None;
    }
    let crc = pieces_crc(addr, 0, &[&block.0[..CRC_AT], &[0; 4], &block.0[CRC_AT + 4..BLOCK_SIZE]]);
    (crc == h.crc.get()).then_some((kind, h))
}

/// Checks that `block`, read from `addr`, is the node asked for. Its bytes were verified against
/// the parent's reference before; this catches a parent that points at the wrong node.
pub fn expect_header(
    block: &Block,
    addr: BlockAddr,
    kind: BlockKind,
    level: u8,
    ino: Ino,
    index: u64,
) -> Result<BlockHeader> {
    let h = read_header(block);
    let bad = |why: String| Err(FormatError { addr, what: kind.name(), why });
    if h.magic.get() != NODE_MAGIC {
        return bad(format!("magic {:#010x} instead of {NODE_MAGIC:#010x}", h.magic.get()));
    }
    if h.kind != kind as u8 {
        return bad(format!(
            "holds {}",
            BlockKind::from_u8(h.kind).map_or("an unknown kind", BlockKind::name)
        ));
    }
    if h.flags.get() != 0 || h.branch.get() != 0 {
        return bad(format!("unknown flags {:#x} or branch {}", h.flags.get(), h.branch.get()));
    }
    if !can_count(&h) {
        return bad(format!(
            "mount {}, epoch {} or sequence {} is beyond any volume's",
            h.mount.get(),
            h.epoch.get(),
            h.sequence.get()
        ));
    }
    if (h.level, h.ino.get(), h.index.get()) != (level, ino.0, index) {
        return bad(format!(
            "belongs to inode {} level {} index {}, but inode {ino} level {level} index {index} points here",
            h.ino.get(),
            h.level,
            h.index.get()
        ));
    }
    Ok(h)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed() -> Box<Block> {
        let mut b = Block::zeroed();
        b.0[100..110].fill(7);
        put_header(&mut b, BlockKind::Map, 2, Ino(44), 9);
        seal(&mut b, BlockAddr(1234), Stamp { mount: 3, epoch: 8, sequence: 5, volume: 0xabc });
        b
    }

    #[test]
    fn sealed_blocks_verify_only_where_they_belong() {
        let b = sealed();
        let (k, h) = verify_sealed(&b, BlockAddr(1234)).unwrap();
        assert_eq!((k, h.level, h.ino.get(), h.index.get()), (BlockKind::Map, 2, 44, 9));
        assert_eq!((h.mount.get(), h.epoch.get(), h.sequence.get(), h.volume.get()), (3, 8, 5, 0xabc));
        assert!(verify_sealed(&b, BlockAddr(1235)).is_none());
        expect_header(&b, BlockAddr(1234), BlockKind::Map, 2, Ino(44), 9).unwrap();
        for (kind, level, ino, index) in [
            (BlockKind::Table, 2, 44, 9),
            (BlockKind::Map, 1, 44, 9),
            (BlockKind::Map, 2, 45, 9),
            (BlockKind::Map, 2, 44, 8),
        ] {
            let e = expect_header(&b, BlockAddr(1234), kind, level, Ino(ino), index);
            assert!(matches!(e, Err(FormatError { .. })));
        }
    }

    #[test]
    fn every_flipped_byte_of_a_sealed_block_shows() {
        let mut b = sealed();
        for at in 0..BLOCK_SIZE {
            b.0[at] ^= 0x40;
            assert!(verify_sealed(&b, BlockAddr(1234)).is_none(), "byte {at}");
            b.0[at] ^= 0x40;
        }
    }
}
