//! Checkpoints, seen from above: seal, hand the store what is to be folded, and let go of what was.

use crate::error::Result;
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
            let epoch = self.commit_into(&mut backlog, &settled)?;
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

    /// Forgets the inodes whose end has been folded: their numbers may be given out again.
    fn forget_dead(&self, folded: u64) {
        let ended = {
            let mut reaper = self.reaper.lock();
            // What is folded is committed: no cell with one of these numbers is left behind.
            self.drop_buried(&mut reaper);
            reaper.take_folded(folded)
        };
        let mut dead = self.dead.lock();
        for ino in ended {
            dead.remove(&ino);
        }
    }
}
