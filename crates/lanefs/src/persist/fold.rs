//! Folds: a checkpoint of the store with what is committed, and what the volume lets go of behind
//! it.

use crate::core::backlog::Committed;
use crate::error::Result;
use crate::persist::Persist;
use crate::persist::reaper;
use crate::persist::unsynced;
use lanefs_store::FoldInput;
use std::cell::Cell;

/// Chunks of earlier mounts looked at for free inode numbers after a checkpoint.
const SCAN: usize = 16;
/// Chunks with free inode numbers that are ready, at the most.
const READY: usize = 64;
/// The same when a volume is opened: a read each, of blocks that lie side by side.
const FIRST: usize = 256;
/// Chunks without a free number after which it is not looked further then.
const FRUITLESS: u32 = 8;

thread_local! {
    /// This thread holds `Persist::checkpointing`.
    static HELD: Cell<bool> = const { Cell::new(false) };
}

/// Says that this thread makes a checkpoint, as long as it lives.
pub(super) struct Held;

impl Held {
    pub fn new() -> Held {
        let before = HELD.replace(true);
        debug_assert!(!before, "a checkpoint within a checkpoint");
        Held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.set(false);
    }
}

/// Folds what is committed, and seals nothing, for who is about to seal and finds no space. The
/// store's own checkpoints do not free as much: what is not folded they write again each time, and
/// the data that it names cannot be cleaned. The caller holds no lock, but may be about to make a
/// checkpoint.
pub(super) fn fold_for_space(persist: &Persist) -> Result<()> {
    let one = (!HELD.get()).then(|| (persist.checkpointing.lock(), Held::new()));
    let committed = || {
        let mut backlog = persist.journal.backlog.lock();
        let epoch = persist.journal.committed();
        backlog.handed = backlog.handed.max(epoch);
        Ok(epoch)
    };
    // What is not folded yet is in the way of less than before: the cleaner gets on.
    let r = fold(persist, Ends::Before, committed);
    let r = r.and_then(|_| Ok(persist.store.free_space_for_epoch(0, true)?));
    drop(one);
    match r {
        // Others may have given some back since.
        Err(e) if e.errno() == libc::ENOSPC => Ok(()),
        done => done,
    }
}

/// Where the last epoch that is folded ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ends {
    /// Behind the position of the checkpoint: in its seal.
    Behind,
    /// Before it: the store carries over what lies between.
    Before,
}

/// Makes a checkpoint that folds the epochs up to the one that `seal` returns, which is committed;
/// returns how many promises of blocks and inode numbers it gave back.
pub(super) fn fold(
    persist: &Persist,
    ends: Ends,
    seal: impl FnOnce() -> lanefs_store::Result<u64>,
) -> Result<u64> {
    debug_assert!(persist.checkpointing.is_locked(), "one checkpoint at a time");
    let moment = persist.flush.lock().moment();
    // What is carried over does not have its blocks yet.
    let attributes = if ends == Ends::Behind { persist.budget.take_xattr_blocks() } else { 0 };
    let input = || {
        let epoch = seal()?;
        debug_assert!(epoch <= persist.journal.committed(), "only what is durable is folded");
        // What a checkpoint folded that failed behind its fold is in the store's memory.
        let folded = persist.store.folded_epoch();
        debug_assert!(folded <= epoch, "epoch {folded} was folded, and {epoch} is handed over");
        let backlog = persist.journal.backlog.lock();
        // Later epochs may be committed by now.
        let waiting = backlog.groups.iter().filter(|c| c.epoch > folded && c.epoch <= epoch);
        Ok(FoldInput { epoch, groups: waiting.flat_map(|c| c.groups.iter().cloned()).collect() })
    };
    let done = match ends {
        Ends::Behind => persist.store.checkpoint(input),
        Ends::Before => persist.store.fold_committed(input),
    };
    let done = done.inspect_err(|_| {
        persist.budget.count_xattr_blocks(attributes);
    })?;
    // Only now: what a checkpoint that failed was to fold is for the next one.
    let folded: Vec<Committed> = persist.journal.backlog.lock().take_folded(done.epoch);
    let promised: u64 = folded.iter().map(|c| c.promised).sum();
    drop(folded);
    unsynced::checkpoint_covers(persist, moment, &crossbeam_epoch::pin());
    persist.journal.set_folded(done.epoch);
    // What creations reserved has been written and charged by the fold.
    persist.store.unreserve_nodes(persist.journal.lanes.mine(), promised);
    forget_dead(persist, done.epoch);
    debug_assert!(done.freed.iter().all(|f| !f.0.is_none()), "a number that is never given out");
    persist.journal.numbers.freed(&done.freed);
    for _ in 0..SCAN {
        if scan_numbers(persist, READY)?.is_none() {
            break;
        }
    }
    Ok(promised + done.freed.len() as u64)
}

/// Looks at a chunk of inode numbers of earlier mounts, unless `most` with free ones are ready or
/// all were seen. Returns whether it has free ones. For who makes checkpoints, and for who opens
/// the volume.
fn scan_numbers(persist: &Persist, most: usize) -> Result<Option<bool>> {
    debug_assert!(most > 0 && !persist.options.read_only, "nobody wants a number");
    let Some(chunk) = persist.journal.numbers.scan_next(most) else { return Ok(None) };
    let u = persist.store.chunk_usage(chunk)?;
    Ok(Some(persist.journal.numbers.found(chunk, u.used, &u.generations)))
}

/// Looks for free inode numbers in a volume that was opened just now: the last ones that were given
/// out, as far as some are free. Opening has folded all and made that durable, so what the table
/// calls free has ended for good (O16). What cannot be read is left to whoever needs it.
pub(crate) fn find_first_numbers(persist: &Persist) {
    debug_assert!(!persist.background.is_running(), "a checkpoint may scan beside this");
    let mut fruitless = 0;
    while fruitless < FRUITLESS
        && let Ok(Some(found)) = scan_numbers(persist, FIRST)
    {
        fruitless = if found { 0 } else { fruitless + 1 };
    }
}

/// Forgets the inodes whose end has been folded: their numbers may be given out again.
fn forget_dead(persist: &Persist, folded: u64) {
    debug_assert!(folded <= persist.journal.committed(), "epoch {folded} is folded, and not durable");
    let ended = {
        let mut reaper = persist.reaper.lock();
        // What is folded is committed: no inode with one of these numbers is left behind.
        reaper::drop_buried(persist, &mut reaper);
        reaper.take_folded(folded)
    };
    let mut dead = persist.memfs.dead.lock();
    for ino in ended {
        let was_there = dead.remove(&ino.0);
        debug_assert!(was_there, "number {ino} was given out before its end was folded");
    }
    let left = dead.len();
    dead.shrink_to(left * 2);
}

#[cfg(test)]
mod tests {
    use crate::persist::testing::volume;

    /// Inodes that share blocks were counted as if each had several of its own: the cleaner moved
    /// what there was, and a dozen checkpoints were made, on a volume with space enough.
    #[test]
    fn many_renames_are_folded_by_one_checkpoint() {
        let (v, _) = volume(256);
        let (fs, persist) = (v.fs(), &v.0.persist);
        let name = |n: usize| format!("/{n}");
        (0..35_000).for_each(|n| drop(fs.create(name(n)).unwrap()));
        v.checkpoint().unwrap();
        // Segments that are worth cleaning.
        fs.write("/large", vec![7; 8 << 20]).unwrap();
        v.sync().unwrap();
        let large = fs.open("/large", crate::OpenOptions::new().write(true)).unwrap();
        (0..1024).for_each(|n| large.write_all_at(&[8; 4096], n * 8192).unwrap());
        v.sync().unwrap();
        v.checkpoint().unwrap();
        (0..35_000).for_each(|n| fs.rename(name(n), format!("/new name {n}")).unwrap());
        let made = || {
            let made = persist.store.report().checkpoints;
            (made.folding, made.in_place)
        };
        let before = made();
        v.checkpoint().unwrap();
        assert_eq!(made(), (before.0 + 1, before.1), "there is space enough");
        assert_eq!(persist.journal.backlog.lock().bytes, 0, "all is folded");
    }
}
