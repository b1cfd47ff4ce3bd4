//! fsync(2) and fdatasync(2): one trip, one flush, shared with whoever flushes at the same time.
//!
//! **Ordered volumes.** Names become durable in epochs only, each whole and after all before it
//! (persist::commit), so those found after a crash are a prefix of the order in which calls
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
//! 6. Nor does anybody wait for a host that has no space with such a lock, or with a seal
//!    announced: all that was begun is undone, and begun anew when there is space (persist::host).
//!
//! **Relaxed volumes.** The closure of the inode travels in its batch (persist::closure).
//!
//! [`Epochs::pending`]: lanefs_sync::Epochs::pending

use super::closure::{self, Closure};
use super::names::Names;
use crate::Order;
use crate::core::host::HOST_PENDING;
use crate::error::Result;
use crate::memfs::Inode;
use crate::memfs::data::FileData;
use crate::memfs::dir::Dir;
use crate::memfs::inode::{DATASYNC, DIRTY, QUEUED, UNSYNCED, XATTR_DIRTY};
use crate::ops::rights;
use crate::persist::Persist;
use crate::persist::capture::{For, With};
use crate::persist::commit;
use crate::persist::host;
use crate::persist::piece;
use crate::persist::replaced;
use crate::persist::writeback;
use std::sync::atomic::Ordering;

/// Makes durable the content and attributes of `inode` and all names the caller could have seen
/// (O9). `data_only`: as fdatasync, which may leave times behind.
pub(crate) fn fsync(persist: &Persist, inode: &Inode, data_only: bool) -> Result<()> {
    persist.check_alive()?;
    if persist.options.read_only {
        return Ok(());
    }
    if inode.data().is_some_and(FileData::has_gap) {
        piece::wait_for_pieces(persist, inode.ino);
    }
    host::when_there_is_space(persist, || try_to_fsync(persist, inode, data_only))
}

/// Tries that. [`HOST_PENDING`]: it is to be done anew when a host has space.
fn try_to_fsync(persist: &Persist, inode: &Inode, data_only: bool) -> Result<()> {
    if persist.options.order == Order::Ordered {
        return fsync_ordered(persist, inode, data_only);
    }
    let closure = {
        let guard = crossbeam_epoch::pin();
        closure::of(persist, inode.ino, inode.dir().is_some(), &guard)
    };
    let (groups, taken) = match closure {
        Closure::Groups { bytes, taken, replaced } => {
            // Its own content goes in the batch of the groups.
            for ino in replaced.into_iter().filter(|i| *i != inode.ino) {
                replaced::flush_renamed(persist, ino)?;
            }
            (bytes, taken)
        }
        Closure::Commit => {
            commit::seal_and_commit(persist)?;
            (Vec::new(), Vec::new())
        }
    };
    sync_inode(persist, inode, data_only, With::Groups(&groups))?;
    // After the flush only: what was in flight was not durable for anybody else (closure of
    // DESIGN, last sentence).
    closure::mark_durable(persist, &taken);
    Ok(())
}

/// Does what [`fsync`] does, on an ordered volume.
fn fsync_ordered(persist: &Persist, inode: &Inode, data_only: bool) -> Result<()> {
    let pending = persist.journal.epochs.pending().min(persist.journal.epochs.current());
    let target = match data_only && inode.dir().is_none() {
        // SeqCst, as the closure's: a call that named the file raised it before it returned.
        true => inode.epoch.load(Ordering::SeqCst).min(pending),
        false => pending,
    };
    debug_assert!(target <= pending, "a call that has not returned is waited for");
    if persist.journal.committed() >= target {
        return sync_inode(persist, inode, data_only, With::Nothing);
    }
    look_at_host(persist)?;
    let names = Names::new(persist, target)?;
    if rights::rights_pending(persist, inode) {
        // They go before the inode (ops::rights).
        names.finish()?;
        return sync_inode(persist, inode, data_only, With::Nothing);
    }
    sync_inode(persist, inode, data_only, With::Names(&names))?;
    names.finish()?;
    debug_assert!(persist.journal.committed() >= target, "names of epoch {target} are pending");
    Ok(())
}

/// Begins nothing while the host of an image is short: what is under way then would take the space
/// with which deletions are committed, and an announced seal would hold up who renames.
#[inline]
fn look_at_host(persist: &Persist) -> Result<()> {
    if persist.store.is_host_short() { Err(HOST_PENDING) } else { Ok(()) }
}

/// Makes durable what is not of an inode, and names with it; if there is nothing, neither.
fn sync_inode(persist: &Persist, inode: &Inode, data_only: bool, with: With<'_>) -> Result<()> {
    let is_ordered = persist.is_ordered();
    debug_assert!(is_ordered || !matches!(with, With::Names(_)), "a relaxed volume waits for no epoch");
    debug_assert!(!is_ordered || !matches!(with, With::Groups(_)), "names out of the order of the calls");
    let alone = !matches!(with, With::Groups(g) if !g.is_empty());
    let wanted = if data_only { DATASYNC | UNSYNCED } else { DIRTY | XATTR_DIRTY | UNSYNCED | DATASYNC };
    if alone && inode.is_synced(wanted, data_only) {
        return Ok(persist.store.healthy()?);
    }
    look_at_host(persist)?;
    let l = inode.sync_lock.lock();
    let dirty_data = inode.has_dirty();
    let changed = !data_only && inode.dir().is_some_and(Dir::has_changed);
    if alone && !dirty_data && !inode.wants(wanted, data_only) && !changed {
        return Ok(persist.store.healthy()?);
    }
    let what_for = if data_only { For::DataSync } else { For::Sync };
    if !data_only {
        // What is left dirty of the attributes stays on its list.
        inode.clear_if_set(QUEUED);
    }
    let r = writeback::write_back_inode(persist, inode, l, what_for, with, usize::MAX);
    if inode.has_dirty() {
        persist.journal.dirty_inode(inode, 0);
    }
    r.map(drop)
}
