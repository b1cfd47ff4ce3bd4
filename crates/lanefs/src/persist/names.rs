//! The names that an fsync of an ordered volume waits for, and the epoch it may have to seal for
//! them (`persist::fsync`, 3 and 4).

use super::Persist;
use super::capture::PendingNames;
use super::commit::{self, Begun};
use super::fold;
use super::piece::{self, RIDES};
use super::replaced::{self, ReplacedFlushed};
use crate::error::Result;
use crate::memfs::Inode;
use crate::ops::rights::{hold_rights, is_pending};
use lanefs_store::{StoreError, Transaction};
use std::cell::Cell;
use std::sync::atomic::Ordering::Acquire;

/// The names that an fsync of an ordered volume waits for.
pub(crate) struct Names<'v> {
    persist: &'v Persist,
    /// They belong to this epoch or an earlier one.
    target: u64,
    /// The announcement of the seal, for a target that had not been sealed.
    replaced: ReplacedFlushed<'v>,
    /// The last pages of a large inode went ahead.
    ahead: Cell<bool>,
}

impl<'v> Names<'v> {
    /// Begins to wait for the names up to an epoch: frees what its seal needs.
    pub(super) fn new(persist: &'v Persist, target: u64) -> Result<Names<'v>> {
        debug_assert!(target <= persist.journal.epochs.current(), "epoch {target} is to come");
        debug_assert!(persist.is_ordered(), "an fsync of a relaxed volume takes a closure");
        persist.store.watch_metadata(persist.journal.lanes.mine())?;
        let mut replaced = replaced::flush_replaced(persist)?;
        if !commit::free_space_for_epoch(persist, &replaced, false)? {
            drop(replaced);
            fold::fold_for_space(persist)?;
            replaced = replaced::flush_replaced(persist)?;
        }
        Ok(Names { persist, target, replaced, ahead: Cell::new(false) })
    }

    /// Seals the target and gives it its places; returns `None` if somebody has.
    fn begin(
        &self,
        with: Option<&mut Transaction>,
    ) -> Option<(Begun<'v>, lanefs_store::Result<Option<u64>>)> {
        let mut backlog = commit::lock_commit(self.persist);
        let is_open = self.persist.journal.epochs.current() <= self.target || backlog.sealed.is_some();
        is_open.then(|| commit::begin_commit(self.persist, &mut backlog, &self.replaced, with))
    }

    /// Waits until the names are durable; seals them if nobody has.
    pub(super) fn finish(self) -> Result<()> {
        let (persist, target) = (self.persist, self.target);
        if let Some((begun, sealed)) = self.begin(None) {
            begun.finish();
            drop(self);
            match sealed {
                // Space has to be freed first, or more to be flushed, and without a lock.
                Err(StoreError::NoSpace) | Ok(None) => return commit::seal_and_commit(persist).map(drop),
                r => r?,
            };
        }
        Ok(commit::wait_committed(persist, target)?)
    }
}

impl PendingNames for Names<'_> {
    /// Returns whether another round comes behind the last pages of a large inode. Once: where
    /// others write faster than the device takes it the next last round is as large.
    fn takes_a_round_more(&self) -> bool {
        !self.ahead.replace(true)
    }

    /// Makes a transaction durable, and begins the epoch with it (3), unless somebody has (4).
    fn submit(&self, mut t: Transaction) -> Result<()> {
        debug_assert!(t.durable && t.groups.is_empty(), "it shares the flush of the epoch, not its batch");
        let small = t.inodes.iter().map(|u| u.pages.len()).sum::<usize>() <= RIDES;
        if small && let Some((begun, _)) = self.begin(Some(&mut t)) {
            match begun.finish() {
                // It is tried again by itself, which frees space. The epoch too, if it has found
                // none.
                None | Some(Err(StoreError::NoSpace)) => {}
                Some(r) => return Ok(r?),
            }
        }
        piece::submit_one(self.persist, t)
    }
}

/// Waits until the inode's rights as they are now are committed. The caller holds no lock of an
/// inode.
pub(crate) fn commit_rights(persist: &Persist, inode: &Inode) -> Result<()> {
    // Acquire: pairs with the Release of the change, which had logged the rights before.
    let epoch = inode.rights_epoch.load(Acquire);
    if persist.journal.committed() >= epoch {
        return Ok(persist.store.healthy()?);
    }
    Names::new(persist, epoch)?.finish()
}

/// Runs `f`, which captures the inode, until its rights are committed.
pub(crate) fn with_rights_committed<T>(
    persist: &Persist,
    inode: &Inode,
    f: impl Fn() -> Result<T>,
) -> Result<T> {
    let mut held = None;
    loop {
        match f() {
            Err(e) if is_pending(&e) => {
                held.get_or_insert_with(|| hold_rights(inode));
                commit_rights(persist, inode)?;
            }
            r => return r,
        }
    }
}
