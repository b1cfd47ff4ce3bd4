//! Renames over files: the content of the file that moved is durable before the rename is (SEMANTICS F5). Programs that write a new file
//! and rename it over the old one rely on it, with or without fsync.
//!
//! 1. A rename over a regular file puts the moved one on its lane's list, under the lane's lock, with the append.
//! 2. An fsync whose closure holds such a rename makes the moved file durable before it submits the closure.
//! 3. Whoever seals an epoch announces it (`settling`), takes the lists, makes these files durable, and seals then. A rename that finds the
//!    announcement, under its lane's lock, makes its file durable first and retries: so at the seal no list holds a file whose content
//!    is not durable at or after its rename's start.
//! 4. Only where no room can be made for the content does the rename become durable without; the file's handles hear of the error.

use crate::error::Result;
use crate::memfs::Cell;
use crate::memfs::cell::{DATASYNC, UNSYNCED};
use crate::volume::Inner;
use lanefs_store::Ino;
use lanefs_sync::{Canary, planted};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::*;

/// While it lives renames over files write by themselves.
pub(crate) struct Settled<'v>(&'v Inner);

impl Drop for Settled<'_> {
    fn drop(&mut self) {
        self.0.settling.fetch_sub(1, SeqCst);
    }
}

impl Inner {
    /// Whether a seal is about to come, so that a rename over a file has to write the file (3).
    #[inline]
    pub(crate) fn is_settling(&self) -> bool {
        self.settling.load(SeqCst) > 0
    }

    /// Before a seal: makes durable what was renamed over files.
    pub(crate) fn settle_replaced(&self) -> Result<Settled<'_>> {
        self.settling.fetch_add(1, SeqCst);
        let settled = Settled(self);
        let mut moved: BTreeSet<Ino> = BTreeSet::new();
        for lane in 0..self.lanes.len() {
            moved.extend(std::mem::take(&mut self.lanes.lock(lane).replaced));
        }
        let list: Vec<Ino> = moved.into_iter().collect();
        for (i, &ino) in list.iter().enumerate() {
            match self.settle(ino) {
                Err(e) if e.errno() == libc::ENOSPC => {
                    tracing::warn!("no room for the content of inode {ino}, which was renamed over a file");
                }
                Err(e) => {
                    let lane = self.lanes.mine();
                    self.lanes.lock(lane).replaced.extend_from_slice(&list[i..]);
                    return Err(e);
                }
                Ok(()) => {}
            }
        }
        Ok(settled)
    }

    /// Makes the content of a file durable, if it is not.
    pub(crate) fn settle(&self, ino: Ino) -> Result<()> {
        let guard = crossbeam_epoch::pin();
        // What is not in memory was written and covered by a checkpoint.
        let Some(cell) = self.cells.get(ino, &guard) else { return Ok(()) };
        self.settle_cell(cell)
    }

    /// As [`Inner::settle`].
    pub(crate) fn settle_cell(&self, cell: &Cell) -> Result<()> {
        if cell.data().is_none() || planted(Canary::RenameWithoutContent) {
            return Ok(());
        }
        // Waits for an fsync under way, too.
        let l = cell.sync_lock.lock();
        if cell.nlink.load(SeqCst) == 0 || !cell.has_dirty() && !cell.has(DATASYNC | UNSYNCED) {
            return Ok(());
        }
        self.write_back_held(cell, &l, true, &[], usize::MAX).map(drop)
    }
}
