//! The seam between the structures that live in the log (inode table, maps, directories) and the
//! log itself: structures ask for blocks and hand over blocks, and never see a segment.

use crate::error::Result;
use lanefs_format::{Block, BlockAddr, BlockRef, Ino};

/// The owner of a block: the answer to the cleaner's question "who points here".
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // the line of each variant names its fields
pub enum Owner {
    /// Page `page` of a file's data.
    Data { ino: Ino, page: u64 },
    /// The bucket at `page` of a directory's map. A node block, but mapped like data.
    Bucket { ino: Ino, page: u64 },
    /// An inode block.
    Inode { ino: Ino },
    /// A pack of inodes of a chunk.
    Pack { chunk: u64 },
    /// Node `index` at `level` of an inode's map (level 0 maps pages).
    Map { ino: Ino, level: u8, index: u64 },
    /// Block `index` of an inode's extended attributes.
    Xattr { ino: Ino, index: u64 },
    /// Node `index` at `level` of the inode table (level 0 holds entries).
    Table { level: u8, index: u64 },
    /// Node `index` at `level` of the usage table.
    Usage { level: u8, index: u64 },
    /// Block `index` of the list of unlinked inodes still in use at a checkpoint.
    Orphans { index: u64 },
    /// Part `part` of the summary of a segment.
    Summary { segment: u64, part: u8 },
}

/// Reads blocks. Every block is verified against the reference its parent holds before it is
/// returned.
pub trait BlockSource {
    /// Reads one verified block; `what` names the structure in the error.
    fn read(&self, r: BlockRef, what: &'static str) -> Result<Box<Block>>;

    /// As [`BlockSource::read`], for a block whose content the caller keeps in a form of its own:
    /// no cache keeps it too.
    fn read_once(&self, r: BlockRef, what: &'static str) -> Result<Box<Block>> {
        self.read(r, what)
    }

    /// Brings blocks that will be read next nearer together, as far as there is space for them. An
    /// error is left to the read.
    fn expect(&self, _: &[BlockRef]) {}
}

/// Takes blocks during a checkpoint or a writeback: allocates an address in the log, queues the
/// write, and accounts the new block as live. The write is complete before the checkpoint's commit
/// point.
pub trait BlockSink: BlockSource {
    /// Gives `block` an address in the log and queues its write. Data owners go to a data head, all
    /// others to the cold node head, with their block header (see `lanefs_format::header`)
    /// completed and sealed by the sink.
    fn write(&mut self, owner: Owner, block: Box<Block>) -> Result<BlockRef>;
    /// Frees the block at `addr`: it is no longer referenced. Its space is reused only after the
    /// next checkpoint (O13).
    fn free(&mut self, addr: BlockAddr);
    /// Counts so many more of the preallocated pages of all inodes on disk as being without a
    /// block.
    fn count_unwritten(&mut self, _more: i64) {}
    /// Returns how many threads work that grows with the number of files may be done by.
    fn threads(&self) -> usize {
        1
    }
    /// Writes what is queued, if it is much. Called now and then by who writes many blocks, where
    /// no lock is held.
    fn flush_if_full(&mut self) -> Result<()> {
        Ok(())
    }
}
