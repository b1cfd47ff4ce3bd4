//! What presses: segments running out, log to recover, memory held; and what gives way without a checkpoint.

use crate::api::Pressure;
use crate::mlog::Mlog;
use crate::store::Store;
use crate::types::Ino;

impl Store {
    /// What a background thread acts on.
    pub fn pressure(&self) -> Pressure {
        let blocks: u64 = self.mlogs.iter().map(Mlog::appended).sum();
        let free = u64::from(self.segments.free_count());
        let kept = u64::from(self.segments.kept_back());
        Pressure {
            log_bytes: blocks << crate::types::BLOCK_SHIFT,
            free_segments: free,
            pending_segments: u64::from(self.segments.pending_free()),
            segments: u64::from(self.segments.geometry.usable()),
            low_water: kept * 2,
            urgent: free <= kept || self.metadata_presses(),
        }
    }

    /// Memory of inodes and inode table, in bytes, about; not that of the cache of node blocks.
    pub fn memory(&self) -> usize {
        self.cells.memory() + self.inodes.memory()
    }

    /// How much of it a checkpoint has to write before it can leave, about: the inodes that changed.
    pub fn unwritten_memory(&self) -> usize {
        self.cells.dirty_memory()
    }

    /// Gives up what is clean of inodes and inode table, if they take more memory than `OpenOptions::memory_bytes`.
    pub fn shrink(&self) {
        let half = self.memory_bytes / 2;
        self.cells.shrink(half);
        if self.inodes.memory() > half {
            self.inodes.evict_clean();
        }
    }

    /// Drops the memory of an inode that has nothing unwritten.
    pub fn forget_inode(&self, ino: Ino) {
        self.cells.forget(ino);
    }
}
