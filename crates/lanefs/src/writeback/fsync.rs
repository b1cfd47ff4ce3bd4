//! fsync(2) and fdatasync(2): one trip, one flush, shared with whoever flushes at the same time.
//!
//! **Ordered volumes.** Names become durable in epochs only, each whole and after all before it
//! (writeback::commit), so those found after a crash are a prefix of the order in which calls
//! returned (SEMANTICS, "Order").
//!
//! 1. The *target* of an fsync is the last epoch that an operation may belong to which returned
//!    before it ([`Epochs::pending`]); that of an fdatasync is the last epoch in which a call named
//!    its file.
//! 2. If the target is committed, the inode goes alone, on the mlog of its lane: two words that are
//!    only read.
//! 3. Else, if nobody has sealed the target, the caller does, and its inode's batch goes with the
//!    epoch: one request, one flush. Of an inode of many pages these are written before: they would
//!    hold up all who wait for names.
//! 4. If somebody has, the inode goes by itself meanwhile, and the caller waits for that epoch.
//! 5. Nobody waits for an epoch with a lock of an inode.
//!
//! **Relaxed volumes.** The closure of the inode travels in its batch (writeback::closure).
//!
//! [`Epochs::pending`]: lanefs_sync::Epochs::pending

use super::closure::{self, Closure};
use super::commit::Begun;
use super::replaced::ReplacedFlushed;
use crate::Order;
use crate::error::Result;
use crate::memfs::Cell as Inode;
use crate::memfs::cell::{DATASYNC, DIRTY, QUEUED, UNSYNCED, XATTR_DIRTY};
use crate::memfs::dir::Dir;
use crate::volume::Inner;
use crate::writeback::capture::{For, With};
use lanefs_store::{StoreError, Transaction};
use lanefs_sync::{Canary, planted};
use std::cell::Cell;
use std::sync::atomic::Ordering::SeqCst;

impl Inner {
    /// Makes durable the content and attributes of `cell` and all names the caller could have seen
    /// (O9). `data_only`: fdatasync, which may leave times behind.
    pub(crate) fn fsync(&self, cell: &Inode, data_only: bool) -> Result<()> {
        self.check_alive()?;
        if self.options.read_only {
            return Ok(());
        }
        if self.options.order == Order::Ordered {
            return self.fsync_ordered(cell, data_only);
        }
        let forgets = planted(Canary::NamesForgotten) && cell.data().is_some_and(|d| !d.has_dirty());
        let closure = if forgets {
            Closure::Groups { bytes: Vec::new(), taken: Vec::new(), replaced: Vec::new() }
        } else {
            let guard = crossbeam_epoch::pin();
            closure::of(self, cell.ino, cell.dir().is_some(), &guard)
        };
        let (groups, taken) = match closure {
            Closure::Groups { bytes, taken, replaced } => {
                // Its own content goes in the batch of the groups.
                for ino in replaced.into_iter().filter(|i| *i != cell.ino) {
                    self.flush_renamed(ino)?;
                }
                (bytes, taken)
            }
            Closure::Commit => {
                self.seal_and_commit()?;
                (Vec::new(), Vec::new())
            }
        };
        self.sync_inode(cell, data_only, With::Groups(&groups))?;
        // After the flush only: what was in flight was not durable for anybody else (closure of
        // DESIGN, last sentence).
        closure::mark_durable(self, &taken);
        Ok(())
    }

    fn fsync_ordered(&self, cell: &Inode, data_only: bool) -> Result<()> {
        let unseen = u64::from(planted(Canary::PendingUnseen));
        let pending = self.epochs.pending().min(self.epochs.current() - unseen);
        let target = match data_only && cell.dir().is_none() {
            // SeqCst, as the closure's: a call that named the file raised it before it returned.
            true => cell.epoch.load(SeqCst).min(pending),
            false => pending,
        };
        let forgets = planted(Canary::NamesForgotten) && cell.data().is_some_and(|d| !d.has_dirty());
        if self.committed() >= target || forgets {
            return self.sync_inode(cell, data_only, With::Nothing);
        }
        let names = Names::new(self, target)?;
        if self.rights_pending(cell) {
            // They go before the inode (writeback::rights).
            names.finish()?;
            return self.sync_inode(cell, data_only, With::Nothing);
        }
        self.sync_inode(cell, data_only, With::Names(&names))?;
        names.finish()
    }

    /// Makes durable what is not of an inode, and names with it; if there is nothing, neither.
    fn sync_inode(&self, cell: &Inode, data_only: bool, with: With<'_>) -> Result<()> {
        let alone = !matches!(with, With::Groups(g) if !g.is_empty());
        let wanted = if data_only { DATASYNC | UNSYNCED } else { DIRTY | XATTR_DIRTY | UNSYNCED | DATASYNC };
        if alone && cell.is_synced(wanted, data_only) {
            return Ok(self.store.healthy()?);
        }
        let l = cell.sync_lock.lock();
        let dirty_data = cell.has_dirty();
        let changed = !data_only && cell.dir().is_some_and(Dir::has_changed);
        if alone && !dirty_data && !cell.wants(wanted, data_only) && !changed {
            return Ok(self.store.healthy()?);
        }
        let what_for = if data_only { For::DataSync } else { For::Sync };
        if !data_only {
            // What is left dirty of the attributes stays on its list.
            cell.clear_if_set(QUEUED);
        }
        let r = self.write_back_cell(cell, l, what_for, with, usize::MAX);
        if cell.has_dirty() {
            self.dirty_cell(cell, 0);
        }
        r.map(drop)
    }
}

/// The most pages of an inode that goes with an epoch.
pub(super) const RIDES: usize = 32;

/// The names that an fsync of an ordered volume waits for.
pub(crate) struct Names<'v> {
    vol: &'v Inner,
    /// They belong to this epoch or an earlier one.
    target: u64,
    /// Where the target had not been sealed.
    replaced: ReplacedFlushed<'v>,
    /// The last pages of a large inode went ahead.
    ahead: Cell<bool>,
}

impl<'v> Names<'v> {
    pub(super) fn new(vol: &'v Inner, target: u64) -> Result<Names<'v>> {
        vol.store.watch_metadata(vol.lanes.mine())?;
        let replaced = vol.flush_replaced()?;
        vol.make_room_for_epoch(&replaced, false)?;
        Ok(Names { vol, target, replaced, ahead: Cell::new(false) })
    }

    /// Whether another round comes behind the last pages of a large inode. Once: where others write
    /// faster than the device takes it the next last round is as large.
    pub fn takes_a_round_more(&self) -> bool {
        !self.ahead.replace(true)
    }

    /// Makes a transaction durable, and begins the epoch with it (3), unless somebody has (4).
    pub fn submit(&self, mut t: Transaction) -> Result<()> {
        let small = t.inodes.iter().map(|u| u.pages.len()).sum::<usize>() <= RIDES;
        if small && let Some((begun, _)) = self.begin(Some(&mut t)) {
            match begun.finish() {
                // It is tried again by itself, which makes room. The epoch too, if it has found
                // none.
                None | Some(Err(StoreError::NoSpace)) => {}
                Some(r) => return Ok(r?),
            }
        }
        self.vol.submit_one(t)
    }

    /// Seals the target and gives it its places; `None` if somebody has.
    fn begin(
        &self,
        with: Option<&mut Transaction>,
    ) -> Option<(Begun<'v>, lanefs_store::Result<Option<u64>>)> {
        let mut backlog = self.vol.lock_commit();
        let is_open = self.vol.epochs.current() <= self.target || backlog.sealed.is_some();
        is_open.then(|| self.vol.begin_commit(&mut backlog, &self.replaced, with))
    }

    /// Waits until the names are durable; seals them if nobody has.
    pub(super) fn finish(self) -> Result<()> {
        let (vol, target) = (self.vol, self.target);
        if let Some((begun, sealed)) = self.begin(None) {
            begun.finish();
            drop(self);
            match sealed {
                // Room has to be made first, or more to be flushed, and without a lock.
                Err(StoreError::NoSpace) | Ok(None) => return vol.seal_and_commit().map(drop),
                r => r?,
            };
        }
        Ok(vol.wait_committed(target)?)
    }
}
