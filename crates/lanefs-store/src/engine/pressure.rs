//! What presses: segments running out, log to recover, memory held; and what gives way without a
//! checkpoint.

use crate::api::Pressure;
use crate::error::Result;
use crate::log::mlog::Mlog;
use crate::store::Store;
use lanefs_format::Ino;
use std::sync::atomic::Ordering;

impl Store {
    /// What a background thread acts on.
    pub fn pressure(&self) -> Pressure {
        let blocks: u64 = self.mlogs.iter().map(Mlog::appended).sum();
        let free = u64::from(self.segments.free_count());
        let kept = u64::from(self.segments.reserved_segments());
        Pressure {
            log_bytes: blocks << lanefs_format::BLOCK_SHIFT,
            free_segments: free,
            pending_segments: u64::from(self.segments.pending_free()),
            segments: u64::from(self.segments.geometry.usable()),
            // What is owed goes with the next fold: twice of it would have the cleaner work for
            // nothing.
            low_water: kept * 2 - u64::from(self.segments.owed()).min(kept),
            urgent: free <= kept || self.metadata_pressure(),
        }
    }

    /// Blocks of the segments that are free now.
    pub fn free_segment_blocks(&self) -> u64 {
        u64::from(self.segments.free_count()) * u64::from(self.segments.geometry.segment_blocks)
    }

    /// Whether so many inodes are dirty that a checkpoint may outgrow what is kept back for it.
    pub(crate) fn metadata_pressure(&self) -> bool {
        let room = self.free_segment_blocks();
        let each = 8 * self.metadata_copies();
        if each * self.cache.dirty_at_most() as u64 <= room {
            return false;
        }
        // Relaxed: what the store's own checkpoint could not write out does not count again.
        let dirty = self.cache.dirty().saturating_sub(self.dirty_floor.load(Ordering::Relaxed));
        each * dirty as u64 > room
    }

    /// Looks at that now and then, and makes a checkpoint. Called before a transaction that goes
    /// with an epoch, by whoever holds nothing that a checkpoint needs; the others do it by
    /// themselves.
    pub fn watch_metadata(&self, lane: usize) -> Result<()> {
        let begun = self.begun(lane);
        if begun % 32 != 31 {
            return Ok(());
        }
        if self.note_owed() > 0 {
            self.keep_room()?;
        }
        if self.metadata_pressure() {
            let Some(mut m) = self.try_maintenance() else { return self.io.check() };
            self.checkpoint_in_place(&mut m)?;
        }
        Ok(())
    }

    /// Keeps room back for folding what is durable; returns how many segments.
    pub(crate) fn note_owed(&self) -> u32 {
        // Relaxed: both are estimates, and what is cancelled was owed before.
        let owed: u64 = self.mlogs.iter().map(Mlog::owed).sum();
        let inodes = owed.saturating_sub(self.cancelled.load(Ordering::Relaxed));
        self.segments.reserve_for_unfolded(inodes * self.metadata_copies());
        self.segments.owed()
    }

    /// The same, and cleans if the room is not there. In the seal of a checkpoint nothing is
    /// cleaned: the checkpoint looks by itself.
    pub(crate) fn keep_room(&self) -> Result<()> {
        let owed = self.note_owed();
        if self.segments.free_count() <= owed + self.segments.reserved_segments().saturating_sub(owed) / 2 {
            self.make_room(0, owed > 0)?;
        }
        Ok(())
    }

    /// The error that made the store read-only, if there was one: then nothing may be acknowledged
    /// any more.
    pub fn healthy(&self) -> Result<()> {
        self.io.check()
    }

    /// Whether an error made the store read-only.
    pub fn is_broken(&self) -> bool {
        self.io.is_broken()
    }

    /// Everything up to this epoch is folded in memory, and will be on disk with the next
    /// checkpoint: also what one folded that failed later. It must not be handed over again, with
    /// what came after: changes that take each other back are left out of a fold.
    pub fn folded_epoch(&self) -> u64 {
        // Relaxed: asked in a seal, by the thread that may write it.
        self.folded.load(Ordering::Relaxed)
    }

    /// Memory of inodes and inode table, in bytes, about; not that of the cache of node blocks.
    pub fn memory(&self) -> usize {
        self.cache.memory() + self.inodes.memory()
    }

    /// How much of it a checkpoint has to write before it can leave, about: the inodes that
    /// changed.
    pub fn dirty_memory(&self) -> usize {
        self.cache.dirty_memory()
    }

    /// Gives up what is clean of inodes and inode table, if they take more memory than
    /// `OpenOptions::memory_bytes`.
    pub fn shrink(&self) {
        let half = self.memory_bytes / 2;
        self.cache.evict_made();
        self.cache.shrink(half);
        if self.inodes.memory() > half {
            self.inodes.evict_clean();
        }
    }

    /// Drops the memory of an inode that has nothing unwritten.
    pub fn forget_inode(&self, ino: Ino) {
        self.cache.forget(ino);
    }
}
