//! Memory of metadata: how much is in use, and how callers are held back while it is too much.

use super::{Core, space};
use crate::memfs::Inode;
use lanefs_format::record::GROUP_MAX;
use std::sync::atomic::Ordering;

/// Groups logged and not committed after which a commit is due, or an eighth of the metadata's
/// share of the budget: what an epoch holds is absorbed in one go, out of the processor's cache if
/// it is more.
const COMMIT_BYTES: usize = 8 << 20;
/// The memory of an inode on average, in bytes: itself, its place in the table, a share of its
/// directory's tables.
pub(crate) const INODE_COST: usize = 514;

const _: () = assert!(INODE_COST >= size_of::<Inode>() + size_of::<usize>(), "and its place in the table");
const _: () = assert!(COMMIT_BYTES >= 16 * GROUP_MAX, "an epoch holds more than a few groups");

/// Returns the bytes of names in memory, about: not less than there are.
pub(crate) fn name_bytes(core: &Core) -> i64 {
    // Relaxed: a statistic.
    let gone = core.journal.names_removed() + core.budget.names_gone.load(Ordering::Relaxed);
    core.journal.names_brought() - gone
}

/// Returns the bytes of inodes, names, logged groups and what the store keeps of inodes, about.
pub(crate) fn meta_bytes(core: &Core) -> u64 {
    (core.journal.inodes_in_memory().max(0) * INODE_COST as i64 + name_bytes(core).max(0)) as u64
        + (core.journal.log_bytes() + core.store.memory()) as u64
}

/// Returns whether metadata exceeds its share.
pub(crate) fn meta_is_over(core: &Core) -> bool {
    meta_bytes(core) > core.budget.meta_limit
}

/// Returns whether metadata will exceed its share soon, if more comes: a fold that begins only then
/// has all callers wait for it.
pub(crate) fn meta_is_near(core: &Core) -> bool {
    meta_bytes(core) > core.budget.meta_limit - core.budget.meta_limit / 4
}

/// Returns the bytes that stay in memory until what is logged was folded: a group of a new file has
/// some 120 bytes, its inode and its name have some 600.
pub(crate) fn held_by_log(core: &Core) -> usize {
    core.journal.log_bytes() * 6
}

/// Returns whether so much is logged that a commit is due. What the lanes void, or are
/// about to, counts only where it is much more: a commit would write what no crash has to bring
/// back.
pub(crate) fn is_commit_due(core: &Core) -> bool {
    let most = COMMIT_BYTES.min((core.budget.meta_limit / 8) as usize);
    debug_assert!(most > 0, "each group would be a commit");
    let log = core.journal.open_log();
    log.bytes > most && (log.bytes - log.void.min(log.bytes) > most || log.bytes > 4 * most)
}

/// Notes whether creators have to wait. Called by the background before and after the work that
/// frees memory, and by creators now and then.
pub(crate) fn update_throttle(core: &Core) {
    // Relaxed: who reads it late waits a moment later.
    core.budget.tight.store(is_tight(core), Ordering::Relaxed);
}

/// Returns whether metadata exceeds its share by much.
pub(crate) fn is_tight(core: &Core) -> bool {
    meta_bytes(core) > core.budget.meta_limit + core.budget.meta_limit / 8
}

/// Returns whether callers wait: one relaxed load of a line that is written on change only.
#[inline]
pub(crate) fn callers_wait(core: &Core) -> bool {
    core.budget.tight.load(Ordering::Relaxed) // Relaxed: as in `update_throttle`
}

/// Holds a caller that may bring names and inodes into memory back while metadata exceeds its
/// share by much. The caller holds no lock and no guard.
#[inline]
pub(crate) fn wait_for_memory(core: &Core) {
    if callers_wait(core)
        && let Some(persistence) = core.persistence()
    {
        persistence.wait_for_round();
    }
}

/// Does what [`wait_for_memory`] does, for a caller that logs a change, and looks now and then how
/// much memory there is.
pub(crate) fn slow_down_meta(core: &Core) {
    wait_for_memory(core);
    let lane = core.journal.lanes.shared(core.journal.lanes.mine());
    // Relaxed: a hint of the lane's own threads.
    if lane.look.load(Ordering::Relaxed) {
        // A fast one would outrun the background, which looks a few times a second and whose
        // checkpoints take a while.
        lane.look.store(false, Ordering::Relaxed);
        if meta_is_over(core) || is_commit_due(core) {
            update_throttle(core);
            core.wake_persistence();
        }
        if space::log_needs_fold(core) {
            space::fold_log(core);
        }
    }
}
