//! The end of files that a lane made and removed in the epoch that still runs: the lane ends them
//! itself. (All others: `persist::reaper`.)
//!
//! 1. Who takes the last name of such a file puts it on a list of the lane, if nothing but the
//!    groups of its making and of its removal was logged of it, and nothing of it changed: the
//!    store has not heard of it.
//! 2. The lane stages what is on the list. When everybody is gone who was pinned then, whoever
//!    found a file by its name has given it up or holds an open slot.
//! 3. Then the lane passes over those that are open, marks the others FREED, and reads all open
//!    slots again. An opener takes its slot, then looks for FREED: either it sees the mark and
//!    gives up, or the lane sees the slot. As in the reaper's rounds.
//! 4. Both groups of a file are voided, under the lane's lock. That fails once the epoch has ended,
//!    or a closure may have one of them.
//! 5. Of a file whose groups are void nothing is anywhere: no end is logged, its number can be
//!    given out at once, with its next generation, and what was promised for it is the lane's
//!    again, until the epoch ends.
//! 6. What could not be ended so goes on the list of orphans.
//!
//! So a file that lives for a moment costs nothing behind its lane: no commit, no fold, no inode
//! number, no line that another lane writes, but for the grace of each 128 files.

use crate::core::Core;
use crate::memfs::Inode;
use crate::memfs::inode::{DIRTY, ENDED, FREED, HAS_XATTRS, QUEUED, STORED, SYNCING, UNSYNCED, XATTR_DIRTY};
use crate::oplog::buffer::SoleGroup;
use crate::oplog::lane::Orphan;
use crate::oplog::short_lived::ShortLife;
use crossbeam_epoch::Guard;
use lanefs_sync::lock::MutexGuard;
use std::sync::atomic::Ordering::{Release, SeqCst};

/// Marks of a file that is not as it was made.
const CHANGED: u32 = DIRTY | QUEUED | UNSYNCED | XATTR_DIRTY | SYNCING | STORED | HAS_XATTRS;

/// Returns whether a file is as it was made: it has no content, and the store has not heard of it.
pub(super) fn is_as_made(inode: &Inode) -> bool {
    inode.data().is_some_and(|d| d.size() == 0 && d.blocks() == 0)
        && !inode.has_dirty()
        && !inode.has(CHANGED)
}

/// Ends files of the calling thread's lane whose grace has passed, and stages others. The caller
/// holds no lock.
#[cold]
pub(super) fn end_some(core: &Core, guard: &Guard) {
    let lane = core.journal.log_lane();
    let (due, grace) = {
        let mut log = core.journal.lanes.lock(lane);
        (log.short_lived.take_due(), log.short_lived.stage())
    };
    if let Some(grace) = grace {
        guard.defer(move || grace.store(true, Release));
    }
    if due.is_empty() {
        // Turns the collector: a grace is two turns.
        guard.flush();
    } else {
        end(core, lane, due, guard);
    }
}

/// Ends files of a lane whose grace has passed.
fn end(core: &Core, lane: usize, due: Vec<ShortLife>, guard: &Guard) {
    let mut marked = Vec::with_capacity(due.len());
    let mut others = Vec::new();
    let open = core.journal.open_inodes();
    for file in due {
        let Some(inode) = core.memfs.inodes.get(file.ino, guard) else {
            debug_assert!(false, "inode {} has ended, and the lane was to end it", file.ino);
            continue;
        };
        // What is open all the time is never marked: its number never leads nowhere.
        let is_ours = !open.contains(&file.ino.0)
            && inode.nlink.load(SeqCst) == 0
            && is_as_made(inode)
            && !core.is_known_outside();
        if is_ours && inode.life.fetch_or(FREED, SeqCst) & FREED == 0 {
            marked.push((inode, file));
        } else {
            others.push(file);
        }
    }
    // Behind the marks (3).
    let open = core.journal.open_inodes();
    let mut ended: Vec<(&Inode, MutexGuard<'_, ()>, ShortLife)> = Vec::with_capacity(marked.len());
    {
        let mut log = core.journal.lanes.lock(lane);
        let promise = &core.journal.lanes.shared(core.journal.lanes.mine()).promise;
        for (inode, file) in marked {
            let not_written = inode.sync_lock.try_lock();
            let made = inode.sole_group().place().filter(|made| made.0 == lane);
            let removed = file.removal.place();
            let is_unknown =
                !open.contains(&inode.ino.0) && inode.nlink.load(SeqCst) == 0 && is_as_made(inode);
            match (not_written.filter(|_| is_unknown), made, removed) {
                (Some(not_written), Some((_, made)), Some((_, removed)))
                    if log.void_both(inode.born, made, removed) =>
                {
                    inode.set_sole_group(SoleGroup::VOID);
                    inode.set(ENDED);
                    promise.give_back(u64::from(file.promised));
                    ended.push((inode, not_written, file));
                }
                _ => {
                    inode.clear(FREED);
                    others.push(file);
                }
            }
        }
        log.orphans.extend(others.into_iter().map(|f| Orphan { ino: f.ino, removal: f.removal }));
    }
    for (inode, ..) in &ended {
        debug_assert!(inode.sync_lock.is_locked(), "inode {} may be written back", inode.ino);
        inode.drop_stamps();
        core.memfs.inodes.remove(inode, guard);
        core.journal.count_inodes(-1);
    }
    // Only now: whoever gets a number finds its place free.
    let mut log = core.journal.lanes.lock(lane);
    for (inode, _, _) in &ended {
        let next = inode.generation.wrapping_add(1);
        if !core.journal.numbers.put_back_to_bitmap(inode.ino, next) {
            log.numbers.put_back(inode.ino, next);
        }
    }
}
