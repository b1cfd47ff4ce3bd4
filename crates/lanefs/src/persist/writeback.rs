//! Writing inodes back: one with all that may have to be done for it first, some because memory is
//! short, and all for sync(2).

use super::capture::{For, With, write_back_held};
use super::names::commit_rights;
use super::together::{Together, threads_for};
use super::{Persist, checkpoint, commit, host, piece, unsynced};
use crate::core::host::{HOST_PENDING, is_host_pending};
use crate::error::Result;
use crate::memfs::Inode;
use crate::memfs::dir::Dir;
use crate::memfs::inode::{FREED, SYNCING, UNSYNCED, XATTR_DIRTY};
use crate::ops::rights::{hold_rights, is_pending};
use lanefs_format::{Attrs, FileKind, Ino};
use lanefs_sync::lock::MutexGuard;
use lanefs_sync::parallel;

/// How often the log is folded for an inode that finds no space.
const FOLDS: usize = 4;

/// Writes an inode back: attributes, xattrs and up to `max` dirty pages (in rounds), with
/// `groups` in the last batch, under the inode's sync_lock, which it gives back. Returns pages
/// written. On failure everything is dirty again, and the error is recorded for every open
/// handle; ENOSPC only if somebody waits for it. Where a host has no space for it now, that is no
/// failure: [`HOST_PENDING`].
pub(crate) fn write_back_inode<'c>(
    persist: &Persist,
    inode: &'c Inode,
    mut l: MutexGuard<'c, ()>,
    what_for: For,
    with: With<'_>,
    max: usize,
) -> Result<usize> {
    debug_assert!(inode.sync_lock.is_locked(), "the lock that is handed over is another inode's");
    let (mut held, mut folds) = (None, 0);
    // In any order: rights may change beside a fold, and space may run out beside a commit.
    let r = loop {
        match write_back_held(persist, inode, &l, what_for, with, max) {
            Err(e) if is_pending(&e) => {
                // Not with the lock: the seal may wait for it.
                drop(l);
                held.get_or_insert_with(|| hold_rights(inode));
                commit_rights(persist, inode)?;
            }
            Err(e) if e.errno() == libc::ENOSPC && folds < FOLDS => {
                folds += 1;
                // What was made since the last fold is carried along by every checkpoint of the
                // store's own, and cannot be cleaned: fold it, and try again; others may make more
                // meanwhile. Not with the lock: a checkpoint may wait for it.
                drop(l);
                match checkpoint::checkpoint(persist) {
                    // It found no space for itself. Others may have given some back since.
                    Err(e) if e.errno() == libc::ENOSPC => {}
                    done => drop(done?),
                }
            }
            r => break r,
        }
        l = inode.sync_lock.lock();
    };
    drop(held);
    debug_assert!(!inode.has(SYNCING), "the writeback of inode {} is not over", inode.ino);
    // For want of space nothing is lost: it is dirty, and whoever syncs it writes it, or gets the
    // error then.
    let is_recorded =
        |e: &crate::Error| !is_host_pending(e) && (what_for.is_durable() || e.errno() != libc::ENOSPC);
    if let (Err(e), FileKind::File) = (&r, inode.kind)
        && is_recorded(e)
    {
        debug_assert!(!is_pending(e), "an error of the writeback alone reaches handles");
        inode.errors.record(e.errno());
    }
    drop(l);
    r
}

/// Writes back about `want` dirty pages; skips inodes that others are writing. Returns how many it
/// wrote, if that were not fewer for want of space on a host ([`HOST_PENDING`]).
pub(crate) fn write_back_some(persist: &Persist, want: usize) -> Result<usize> {
    collect_dirty(persist);
    // As many as are queued now: what is put back must not make this loop forever.
    let turns = persist.flush.lock().queue.len();
    write_back_turns(persist, turns, want)
}

/// Does so with so many inodes of the queue at most.
fn write_back_turns(persist: &Persist, mut turns: usize, want: usize) -> Result<usize> {
    debug_assert!(want > 0, "nothing is wanted");
    let (mut done, mut pending) = (0, None);
    while done < want && pending.is_none() {
        // One for each group: thousands of writes would hold back all that others let go meanwhile.
        let guard = crossbeam_epoch::pin();
        let mut some = Together::new(persist, false);
        let mut alone = None;
        while alone.is_none() && !some.is_full() {
            let Some((inode, l)) = unsynced::next_to_write(persist, &mut turns, &guard) else { break };
            alone = some.add(inode, l).err().map(|l| (inode, l));
        }
        if some.is_empty() && alone.is_none() {
            break;
        }
        let written = some.write();
        done += written.pages;
        written.done.iter().for_each(|inode| inode.give_back());
        let left = written.left.into_iter().map(|inode| (inode, None));
        for (inode, l) in alone.into_iter().map(|(inode, l)| (inode, Some(l))).chain(left) {
            // It is dirty again: who has its lock, or finds it later, writes it.
            let Some(l) = l.or_else(|| inode.sync_lock.try_lock()) else { continue };
            match write_back_inode(persist, inode, l, For::Later, With::Nothing, want.max(64)) {
                Ok(n) => done += n,
                Err(e) if is_host_pending(&e) => pending = Some(e),
                Err(e) => tracing::warn!("writing inode {} back failed: {e}", inode.ino),
            }
            inode.give_back();
            if inode.has_dirty() {
                persist.journal.dirty_inode(inode, 0);
            }
        }
    }
    match pending {
        Some(e) if done == 0 => Err(e),
        _ => Ok(done),
    }
}

/// Does so with the first `inodes` of the queue, and with several threads, where these are many:
/// each writes a share of them and of `want`.
pub(super) fn write_back_first(persist: &Persist, inodes: usize, want: usize) -> Result<usize> {
    let threads = threads_for(persist, inodes);
    debug_assert!(threads > 0 && want > 0, "nobody is to write, or nothing");
    let share = (inodes.div_ceil(threads), want.div_ceil(threads));
    let done = parallel::map(vec![share; threads], |(turns, want)| write_back_turns(persist, turns, want));
    done.into_iter().sum()
}

/// Does so for a writer that found too many dirty pages, and waits where a host has no space for
/// one of them. The caller holds no lock.
pub(crate) fn write_back_for_writer(persist: &Persist, want: usize) -> usize {
    debug_assert!(want > 0, "nothing is wanted");
    host::however_long(persist, || write_back_some(persist, want)).unwrap_or(0)
}

/// Moves the lanes' dirty lists into the flush queue.
pub(crate) fn collect_dirty(persist: &Persist) {
    let now = std::time::Instant::now();
    let mut q = persist.flush.lock();
    for lane in 0..persist.journal.lanes.len() {
        let list = std::mem::take(&mut persist.journal.lanes.lock(lane).dirty);
        q.queue.extend(list.into_iter().map(|i| (now, i)));
    }
}

/// Writes back every inode that is dirty now. `durable`: each survives a crash when this
/// returns, and so does what was written back before. It ends at the first that a host has no space
/// for.
pub(crate) fn write_back_all(persist: &Persist, durable: bool) -> Result<()> {
    write_back_each(persist, durable, durable)
}

/// Writes back every inode that is dirty, where nobody hands over anything any more: the next
/// checkpoint is the last.
pub(super) fn write_back_last(persist: &Persist) -> Result<()> {
    write_back_each(persist, false, true)
}

/// Does what [`write_back_all`] does. `to_the_end`: what lies behind a hole is not held back.
fn write_back_each(persist: &Persist, durable: bool, to_the_end: bool) -> Result<()> {
    // Later calls find what this one took from the queue durable, not under way.
    let _one = persist.syncing.lock();
    debug_assert!(!persist.options.read_only, "nothing becomes dirty");
    collect_dirty(persist);
    let list: Vec<Ino> = {
        let mut q = persist.flush.lock();
        let mut list: Vec<Ino> = q.queue.drain(..).map(|d| d.1).collect();
        if durable {
            list.extend(q.unsynced());
        }
        list
    };
    // Neighbours stay together.
    let share = list.len().div_ceil(threads_for(persist, list.len())).max(1);
    let done = parallel::map(list.chunks(share).collect(), |list| {
        write_back_list(persist, list, durable, to_the_end)
    });
    let pending = done.iter().position(|r| r.as_ref().is_err_and(is_host_pending));
    match pending.or_else(|| done.iter().position(Result::is_err)) {
        Some(at) => done.into_iter().nth(at).unwrap_or(Ok(())),
        None => Ok(()),
    }
}

/// Does so for these.
fn write_back_list(persist: &Persist, list: &[Ino], durable: bool, to_the_end: bool) -> Result<()> {
    let mut first = None;
    let mut at = 0;
    while at < list.len() {
        let (before, guard) = (at, crossbeam_epoch::pin());
        let mut some = Together::new(persist, durable);
        let mut alone: Vec<Ino> = Vec::new();
        while at < list.len() && alone.is_empty() && !some.is_full() {
            let ino = list[at];
            at += 1;
            let Some(inode) = persist.memfs.inodes.get(ino, &guard) else { continue };
            // Not while others are held: see `together`, 1.
            let is_taken = inode
                .sync_lock
                .try_lock()
                .is_some_and(|l| !is_to_write(persist, inode, durable) || some.add(inode, l).is_ok());
            alone.extend((!is_taken).then_some(ino));
        }
        let written = some.write();
        written.done.iter().for_each(|inode| inode.give_back());
        alone.extend(written.left.iter().map(|inode| inode.ino));
        drop(guard);
        for ino in alone {
            if to_the_end {
                piece::wait_for_pieces(persist, ino);
            }
            let guard = crossbeam_epoch::pin();
            let Some(inode) = persist.memfs.inodes.get(ino, &guard) else { continue };
            let l = inode.sync_lock.lock();
            if !is_to_write(persist, inode, durable) {
                continue;
            }
            let what_for = if durable { For::Sync } else { For::Later };
            match write_back_inode(persist, inode, l, what_for, With::Nothing, usize::MAX) {
                Ok(_) => inode.give_back(),
                // Nobody would free space for the sake of that.
                Err(e) if is_host_pending(&e) && to_the_end && !durable && is_only_read(persist, inode) => {}
                Err(e) => {
                    let pending = is_host_pending(&e);
                    if pending {
                        // What failed before is dirty, and fails again.
                        first = Some(e);
                    } else {
                        first.get_or_insert(e);
                    }
                    if pending || persist.check_alive().is_err() {
                        let now = std::time::Instant::now();
                        persist.flush.lock().queue.extend(list[before..].iter().map(|ino| (now, *ino)));
                        return first.map_or(Ok(()), Err);
                    }
                }
            }
        }
    }
    first.map_or(Ok(()), Err)
}

/// Takes note that an inode, whose lock is held, is on no list any more, and returns whether there
/// is something of it to write.
fn is_to_write(persist: &Persist, inode: &Inode, durable: bool) -> bool {
    debug_assert!(inode.sync_lock.is_locked(), "another one may be writing inode {}", inode.ino);
    inode.unlist();
    // Relaxed: a name that comes meanwhile is a later change's.
    if inode.nlink.load(std::sync::atomic::Ordering::Relaxed) == 0 && !durable {
        // Nobody will see it again unless it is held open; then its owner's fsync or the pool's
        // pressure writes it.
        if inode.has_dirty() {
            persist.journal.dirty_inode(inode, 0);
        }
        return false;
    }
    inode.is_to_write() || inode.has(UNSYNCED)
}

/// Returns whether the store has all of an inode but for its access time. The caller holds no lock.
fn is_only_read(persist: &Persist, inode: &Inode) -> bool {
    debug_assert!(!inode.has(FREED), "inode {} has ended", inode.ino);
    let _not_written = inode.sync_lock.lock();
    if inode.has_dirty() || inode.dir().is_some_and(Dir::has_changed) || inode.has(XATTR_DIRTY) {
        return false;
    }
    let now = inode.attrs();
    let has = |stored: Attrs| now == Attrs { atime: now.atime, ..stored };
    // What cannot be read is not known to be there.
    persist.store.load_inode(inode.ino).is_ok_and(|i| i.is_some_and(|i| has(i.attrs)))
}

/// Does what sync(2) does: makes every dirty inode durable, then the epoch.
pub(crate) fn sync_all(persist: &Persist) -> Result<()> {
    if persist.options.read_only {
        return Ok(());
    }
    host::when_there_is_space(persist, || try_to_sync_all(persist))
}

fn try_to_sync_all(persist: &Persist) -> Result<()> {
    debug_assert!(!persist.options.read_only, "nothing becomes dirty");
    if persist.store.is_host_short() {
        return Err(HOST_PENDING);
    }
    // A file that cannot be written holds back neither the others nor the names; the caller gets
    // the error.
    let content = write_back_all(persist, true);
    if let Err(e) = &content
        && is_host_pending(e)
    {
        return content;
    }
    commit::seal_and_commit(persist)?;
    content
}

#[cfg(test)]
mod tests {
    use crate::OpenOptions;
    use crate::persist::testing::{Meanwhile, volume};
    use lanefs_format::{Block, Ino};
    use lanefs_store::{InodeUpdate, StoreError, Transaction};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    /// Calls `f` before each write from now on.
    fn at_each_write(device: &Arc<Meanwhile>, f: Arc<dyn Fn() + Send + Sync>) {
        let again = device.clone();
        device.at_write(move || {
            f();
            at_each_write(&again, f);
        });
    }

    /// An fsync found no space and had the log folded. The rights changed beside that, and what the
    /// writeback says where it has to wait for them, EINPROGRESS, was what the caller got.
    #[test]
    fn a_change_of_rights_beside_a_fold_that_frees_space_is_waited_for() {
        let (v, device) = volume(16);
        let (inner, fs) = (v.0.persist.clone(), v.fs());
        fs.write("/f", b"1").unwrap();
        fs.write("/large", b"1").unwrap();
        v.sync().unwrap();
        v.checkpoint().unwrap();
        let f = fs.open("/f", OpenOptions::new().write(true)).unwrap();
        f.write_all_at(&[7; 100 * 4096], 0).unwrap();
        let large = fs.open("/large", OpenOptions::new().write(true)).unwrap();
        let (ino, attrs) = (large.inode().ino, large.inode().attrs());
        // All other space, without a promise.
        let pages = |n: u64| (n * 16..n * 16 + 16).map(|p| (p, Box::new(Block([1; 4096])).into())).collect();
        let fills = |n: u64| {
            let mut attrs = attrs;
            attrs.size = (n + 1) * 16 * 4096;
            let (size_only, xattrs, pages, reserved, more) = (false, None, pages(n), 0, false);
            let (life, rights_logged) = (Default::default(), true);
            let u = InodeUpdate { ino, attrs, rights_logged, size_only, xattrs, pages, reserved, more, life };
            let inodes = vec![u];
            inner.store.submit(Transaction { inodes, ..Transaction::default() })
        };
        let full = (0..1000).find_map(|n| fills(n).err());
        assert!(matches!(full, Some(StoreError::NoSpace)), "{full:?}");
        let changes = Arc::new(AtomicU32::new(0));
        let (volume, changer, count) = (inner.clone(), v.fs(), changes.clone());
        let change = move || {
            if volume.checkpointing.is_locked() {
                let n = count.fetch_add(1, Relaxed);
                changer.chmod("/f", 0o600 | (n % 8)).unwrap();
                if n == 0 {
                    volume.store.unmap(0, Ino(ino.0), 0..1 << 20, None).unwrap();
                }
            }
        };
        at_each_write(&device, Arc::new(change));
        let r = f.sync_all();
        device.at_write(|| ());
        r.unwrap();
        assert!(changes.load(Relaxed) > 0, "there was space without a fold");
        let left = device.after_crash();
        assert_eq!(left.fs().read("/f").unwrap(), [7; 100 * 4096]);
        assert!(left.fs().stat("/f").unwrap().mode & 0o7770 == 0o600);
        drop(large);
    }
}
