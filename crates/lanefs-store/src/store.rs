//! The store: the one door of the layer above. docs/DESIGN.md "lanefs-store" is its contract.

use crate::api::*;
use crate::device::Device;
use crate::error::{Result, StoreError};
use crate::types::{Attrs, Ino};
use std::ops::Range;
use std::sync::Arc;

/// An open volume's log-structured store.
#[derive(Debug)]
pub struct Store {
    _private: (),
}

fn later<T>() -> Result<T> {
    Err(StoreError::Invalid("not available yet".into()))
}

impl Store {
    /// Makes a new, empty volume on `devices`.
    pub fn format(_devices: &[Arc<dyn Device>], _options: &FormatOptions) -> Result<()> {
        later()
    }
    /// Opens a volume, recovering it first when it was not closed.
    pub fn open(_devices: Vec<Arc<dyn Device>>, _options: &OpenOptions) -> Result<(Arc<Store>, OpenReport)> {
        later()
    }
    /// What is fixed or slow to change.
    pub fn info(&self) -> VolumeInfo {
        VolumeInfo {
            uuid: [0; 16],
            label: String::new(),
            hash_key: [0; 2],
            total_blocks: 0,
            segment_blocks: 0,
            segments: 0,
            mlogs: 0,
            devices: 0,
            mount_generation: 0,
            last_epoch: 0,
            last_ts: 0,
            next_chunk: 0,
            read_only: false,
        }
    }
    /// Room.
    pub fn space(&self) -> SpaceUsage {
        SpaceUsage::default()
    }
    /// An inode's durable and submitted state; `None` if the store does not know it.
    pub fn load_inode(&self, _ino: Ino) -> Result<Option<InodeImage>> {
        later()
    }
    /// Fills each block of `pages`, from page `first` on; every block is verified. A hole is zeros and says so.
    pub fn read_pages(&self, _ino: Ino, _first: u64, _pages: &mut [PageRead<'_>]) -> Result<()> {
        later()
    }
    /// The first page at or after `page` that holds data.
    pub fn next_data(&self, _ino: Ino, _page: u64) -> Result<Option<u64>> {
        later()
    }
    /// The first page at or after `page` that holds none.
    pub fn next_hole(&self, _ino: Ino, _page: u64) -> Result<Option<u64>> {
        later()
    }
    /// The folded bucket of directory `dir` that covers `cookie`.
    pub fn load_bucket(&self, _dir: Ino, _cookie: u64) -> Result<BucketImage> {
        later()
    }
    /// What the inode table says of a chunk of inode numbers.
    pub fn chunk_usage(&self, _chunk: u64) -> Result<ChunkUsage> {
        later()
    }
    /// Promises room for `blocks` pages. True means they can always be written.
    pub fn reserve(&self, _lane: usize, _blocks: u64) -> bool {
        false
    }
    /// Gives a promise back.
    pub fn unreserve(&self, _lane: usize, _blocks: u64) {}
    /// Pages of `ino` that are holes from now on; on disk with the inode's next update.
    pub fn unmap(&self, _ino: Ino, _pages: Range<u64>, _attrs: Option<&Attrs>) -> Result<()> {
        later()
    }
    /// Writes a transaction in one trip; returns when what was promised holds.
    pub fn submit(&self, _tx: Transaction) -> Result<()> {
        later()
    }
    /// Commits an epoch: `parts` are the record groups by lane. Durable when this returns.
    pub fn commit_epoch(&self, _epoch: u64, _parts: Vec<(usize, Vec<u8>)>) -> Result<()> {
        later()
    }
    /// Makes a new root; `seal` seals and commits the epoch and hands over what to fold. One at a time.
    pub fn checkpoint(&self, _seal: impl FnOnce() -> Result<FoldInput>) -> Result<CheckpointDone> {
        later()
    }
    /// Moves live blocks until the next checkpoint would leave `target_free_segments` free.
    pub fn clean(&self, _target_free_segments: u64) -> Result<CleanReport> {
        later()
    }
    /// What a background thread acts on.
    pub fn pressure(&self) -> Pressure {
        Pressure::default()
    }
    /// Drops the memory of an inode that has nothing unwritten.
    pub fn forget_inode(&self, _ino: Ino) {}
    /// Waits for writes under way and holds new ones back until [`Store::unfreeze`].
    pub fn freeze(&self) -> Result<()> {
        later()
    }
    /// Lets writes go on.
    pub fn unfreeze(&self) {}
    /// Stops as a crash would: nothing more reaches a device.
    pub fn shutdown(&self) {}
    /// Final checkpoint with the clean mark. Everything was folded and submitted before.
    pub fn close(&self) -> Result<()> {
        later()
    }
}
