//! Checkpoints, seen from above: seal, hand the store what is to be folded, and let go of what was.

use crate::error::Result;
use crate::memfs::cell::FREED;
use crate::volume::Inner;
use lanefs_store::FoldInput;

/// Chunks of earlier mounts looked at for free inode numbers after a checkpoint.
const SCAN: usize = 16;

impl Inner {
    /// A checkpoint: everything committed so far is folded; recovery starts there from now on. Returns how many promises of blocks
    /// and inode numbers it gave back.
    pub(crate) fn checkpoint(&self) -> Result<u64> {
        let _one = self.checkpointing.lock();
        let mut news = 0;
        let settled = self.settle_replaced()?;
        let moment = self.flush.lock().moment();
        let done = self.store.checkpoint(|| {
            let mut backlog = self.commit.lock();
            let epoch = self.commit_into(&mut backlog)?;
            news = std::mem::take(&mut backlog.news);
            backlog.bytes = 0;
            Ok(FoldInput { epoch, groups: std::mem::take(&mut backlog.groups) })
        })?;
        drop(settled);
        self.checkpoint_covers(moment, &crossbeam_epoch::pin());
        self.set_folded(done.epoch);
        // The inode blocks that creations reserved have been written and charged by the fold.
        self.store.unreserve(self.lanes.mine(), news);
        self.forget_dead(done.epoch);
        self.numbers.freed(&done.freed);
        for _ in 0..SCAN {
            let Some(chunk) = self.numbers.scan_next() else { break };
            let u = self.store.chunk_usage(chunk)?;
            self.numbers.found(chunk, u.used, &u.generations);
        }
        Ok(news + done.freed.len() as u64)
    }

    /// Drops the cells of inodes whose end has been folded.
    fn forget_dead(&self, folded: u64) {
        let guard = crossbeam_epoch::pin();
        for ino in self.reaper.lock().take_folded(folded) {
            if let Some(cell) = self.cells.get(ino, &guard).filter(|c| c.has(FREED)) {
                self.cells.remove(cell, &guard);
                self.count_cells(-1);
            }
            self.dead.lock().remove(&ino);
        }
    }
}
