//! Renames over files: the content of the file that moved is durable before the rename is
//! (SEMANTICS F5). Programs that write a new file and rename it over the old one rely on it, with
//! or without fsync.
//!
//! 1. A rename over a regular file puts the moved one on its lane's list, under the lane's lock,
//!    with the append.
//! 2. An fsync whose closure holds such a rename makes the moved file durable before it submits the
//!    closure.
//! 3. Whoever seals an epoch announces it at each lane (`LaneLog::seals_ahead`) as it takes the
//!    lane's list, makes these files durable, and seals then. A rename that finds the announcement,
//!    under its lane's lock, makes its file durable first and retries: so at the seal no list holds
//!    a file whose content is not durable at or after its rename's start. The seal takes the
//!    announcement back as it visits the lane: what comes after is of the next epoch. So a rename
//!    looks at its own lane's line alone, and shares it with a checkpoint only up to the seal. A
//!    lane that came into use behind the announcement does not know of it: then the seal does not
//!    come, and its caller begins again.
//! 4. Several may be about to seal. What one of them took off the lists is not durable before it is
//!    written: until then it is in hand (`LaneLog::in_hand`, under the lane's lock), and who comes
//!    to seal meanwhile makes it durable too, which is to wait for the first.
//! 5. Where the store finds no space for the content, what is committed is folded and it is tried
//!    again. Only where that does not help either, or where it cannot be read, does the rename
//!    become durable without; the file's handles get the error, and nobody else. Behind a file that
//!    folds have not helped the others are tried without, until one finds space: an epoch may hold
//!    a million of them, and each fold is as long as what it looks through.
//! 6. Where the host of an image has no space for the content, now, nothing becomes durable
//!    without: the seal is put off, and what was taken off the lists is on one again
//!    (`persist::host`). As much as half of what is kept for such a time may be used for it.

use crate::core::host::is_host_pending;
use crate::error::Result;
use crate::memfs::Inode;
use crate::ops::rights;
use crate::ops::rights::is_pending;
use crate::persist::Persist;
use crate::persist::capture;
use crate::persist::capture::{For, With};
use crate::persist::fold::fold_for_space;
use crate::persist::piece;
use crate::persist::together::{Together, threads_for};
use lanefs_format::Ino;
use lanefs_sync::parallel;
use std::cell::Cell as Local;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How often what is committed is folded for the content of a file that finds no space.
const FOLDS: u32 = 3;

/// An announced seal: until it has come, or this is dropped, renames over files write by
/// themselves.
pub(crate) struct ReplacedFlushed<'v> {
    persist: &'v Persist,
    /// It was announced at the lanes below this one: those in use then.
    pub lanes: usize,
    /// The lanes' counts are as they were.
    over: Local<bool>,
    /// Bytes of groups that were logged and not sealed when it was announced.
    pub open_bytes: usize,
}

impl ReplacedFlushed<'_> {
    /// Notes that the seal has visited every lane and taken the announcement back there.
    pub(crate) fn sealed(&self) {
        debug_assert!(!self.over.get(), "an announcement is taken back once");
        self.over.set(true);
    }

    /// Returns whether that was so: the caller's epoch is sealed.
    pub(crate) fn is_sealed(&self) -> bool {
        self.over.get()
    }
}

impl Drop for ReplacedFlushed<'_> {
    fn drop(&mut self) {
        if !self.over.get() {
            for lane in 0..self.lanes {
                let mut log = self.persist.journal.lanes.lock(lane);
                debug_assert!(log.seals_ahead > 0, "the seal was not announced at lane {lane}");
                log.seals_ahead -= 1;
            }
        }
    }
}

/// Announces a seal, and makes durable what was renamed over files.
pub(crate) fn flush_replaced(persist: &Persist) -> Result<ReplacedFlushed<'_>> {
    let mut in_hand: Vec<Arc<[Ino]>> = Vec::new();
    let mut taken: Vec<(usize, Arc<[Ino]>)> = Vec::new();
    let mut open_bytes = 0;
    let lanes = persist.journal.lanes_in_use();
    debug_assert!(lanes >= 1, "what cannot be flushed goes back to lane 0");
    for lane in 0..lanes {
        let mut log = persist.journal.lanes.lock(lane);
        log.seals_ahead += 1;
        open_bytes += log.open_bytes();
        // An empty list is not written: two seals would share its line.
        if !log.replaced.is_empty() {
            let list: Arc<[Ino]> = std::mem::take(&mut log.replaced).into();
            log.in_hand.push(list.clone());
            taken.push((lane, list));
        }
        in_hand.extend_from_slice(&log.in_hand);
    }
    let mut moved = in_hand.concat();
    moved.sort_unstable();
    moved.dedup();
    let replaced = ReplacedFlushed { persist, lanes, over: Local::new(false), open_bytes };
    let r = flush_all_renamed(persist, &moved);
    // What went back to a list is there before it is in hand no more.
    for (lane, list) in taken {
        let mut log = persist.journal.lanes.lock(lane);
        let before = log.in_hand.len();
        log.in_hand.retain(|h| !Arc::ptr_eq(h, &list));
        debug_assert_eq!(before, log.in_hand.len() + 1, "4: a list was taken out of another one's hand");
    }
    r.map(|()| replaced)
}

/// Makes the content of these files durable; those that could not be tried go back to a list.
fn flush_all_renamed(persist: &Persist, list: &[Ino]) -> Result<()> {
    debug_assert!(list.is_sorted_by(|a, b| a < b), "a file is flushed twice");
    let list = flush_together(persist, list);
    let mut folds = FOLDS;
    for (i, &ino) in list.iter().enumerate() {
        let r = flush_by_itself(persist, ino, folds);
        folds = match &r {
            Err(e) if e.errno() == libc::ENOSPC => 0,
            Err(_) => folds,
            Ok(()) => FOLDS,
        };
        match r {
            // It had nothing to write: see `ops::rights`, 5.
            Err(e) if is_pending(&e) => {}
            Err(e) if is_host_pending(&e) => {
                put_back(persist, &list[i..]);
                return Err(e);
            }
            Err(e) if e.errno() == libc::ENOSPC => {
                tracing::warn!("no space for the content of inode {ino}, which was renamed over a file");
            }
            // A file whose blocks cannot be read, say: its own handles get the error, and the
            // others go on.
            Err(e) if persist.check_alive().is_ok() && !persist.store.is_broken() => {
                tracing::warn!("the content of inode {ino}, which was renamed over a file: {e}");
            }
            Err(e) => {
                put_back(persist, &list[i..]);
                return Err(e);
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Makes the content of small files durable, with several threads where they are many; returns the
/// others, and those for which that failed.
fn flush_together(persist: &Persist, list: &[Ino]) -> Vec<Ino> {
    debug_assert!(!list.contains(&Ino::NONE), "no file was renamed");
    // Neighbours stay together.
    let share = list.len().div_ceil(threads_for(persist, list.len())).max(1);
    let left = parallel::map(list.chunks(share).collect(), |list| flush_share(persist, list));
    left.concat()
}

/// Does so for these, many with one flush.
fn flush_share(persist: &Persist, list: &[Ino]) -> Vec<Ino> {
    let (mut left, mut list) = (Vec::new(), list.iter().copied());
    while list.len() > 0 {
        let guard = crossbeam_epoch::pin();
        let mut some = Together::of_renamed(persist);
        while !some.is_full()
            && let Some(ino) = list.next()
        {
            // What is not in memory was written and covered by a checkpoint.
            let Some(inode) = persist.memfs.inodes.get(ino, &guard) else { continue };
            let lock = inode.sync_lock.try_lock();
            let lock = lock.filter(|_| inode.data().is_some() && rights::has_to_flush(inode));
            if lock.is_none_or(|lock| some.add(inode, lock).is_err()) {
                left.push(ino);
            }
        }
        left.extend(some.write().left.iter().map(|inode| inode.ino));
    }
    left
}

/// Puts files on a list again whose content is not durable.
fn put_back(persist: &Persist, files: &[Ino]) {
    debug_assert!(!files.is_empty(), "one could not be flushed");
    // Lane 0 is always in use.
    persist.journal.lanes.lock(0).replaced.extend_from_slice(files);
}

/// Makes the content of a file durable, if it is not. The caller holds no lock.
pub(crate) fn flush_renamed(persist: &Persist, ino: Ino) -> Result<()> {
    flush_by_itself(persist, ino, FOLDS)
}

/// Does so, and folds what is committed so often at the most.
fn flush_by_itself(persist: &Persist, ino: Ino, folds: u32) -> Result<()> {
    // First where nothing is pinned.
    piece::wait_for_pieces(persist, ino);
    let guard = crossbeam_epoch::pin();
    // What is not in memory was written and covered by a checkpoint.
    let Some(inode) = persist.memfs.inodes.get(ino, &guard) else { return Ok(()) };
    flush_and_fold(persist, inode, folds)
}

/// Does what [`flush_renamed`] does, for an inode at hand.
pub(crate) fn flush_renamed_inode(persist: &Persist, inode: &Inode) -> Result<()> {
    flush_and_fold(persist, inode, FOLDS)
}

fn flush_and_fold(persist: &Persist, inode: &Inode, folds: u32) -> Result<()> {
    debug_assert!(folds <= FOLDS && inode.data().is_some(), "inode {} is no file", inode.ino);
    for _ in 0..folds {
        match try_to_flush(persist, inode, false) {
            Err(e) if e.errno() == libc::ENOSPC => {}
            done => return done,
        }
        // Where even the fold fails the last try is now: it says to the handles that it is over.
        if let Err(e) = fold_for_space(persist) {
            tracing::warn!("no fold for the content of inode {}: {e}", inode.ino);
            break;
        }
    }
    try_to_flush(persist, inode, true)
}

/// Makes the content durable. Unless it is the `last` try, an error for want of space leaves all as
/// it was; and so does a host without space.
fn try_to_flush(persist: &Persist, inode: &Inode, last: bool) -> Result<()> {
    let Some(data) = inode.data() else { return Ok(()) };
    if data.has_gap() {
        // Of a file that is still being handed over; a caller with an inode at hand may be pinned
        // meanwhile.
        piece::wait_for_pieces(persist, inode.ino);
    }
    // Waits for an fsync under way, too.
    let l = inode.sync_lock.lock();
    // Renames up to here are seen to by this, also where it fails: see 5, and
    // ops::rights.
    // Acquire: the content that each of them is about was written before it was counted.
    let owed = inode.owed.load(Ordering::Acquire);
    let mut r = Ok(());
    if rights::has_to_flush(inode) {
        r = capture::write_back_held(persist, inode, &l, For::Seal, With::Nothing, usize::MAX).map(drop);
    }
    if let Err(e) = &r
        && (!last && e.errno() == libc::ENOSPC || is_host_pending(e))
    {
        return r;
    }
    inode.pay(owed);
    if let Err(e) = &r
        && !is_pending(e)
    {
        inode.errors.record(e.errno());
    }
    r
}

#[cfg(test)]
mod tests {
    use super::flush_replaced;
    use crate::persist::commit;
    use crate::persist::testing::volume;
    use crate::{MountOptions, OpenOptions, Volume};
    use lanefs_format::Block;
    use lanefs_store::device::{Device, MemoryDevice};
    use lanefs_store::{FormatOptions, InodeUpdate, Store, StoreError, Transaction};
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    #[test]
    fn a_seal_takes_its_announcement_back_and_a_rename_before_it_writes_the_file() {
        let options = MountOptions { background: false, lanes: 4, ..MountOptions::default() };
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20).unwrap());
        Store::format(std::slice::from_ref(&device), &FormatOptions::default()).unwrap();
        let v = Volume::open_devices(vec![device], &options).unwrap();
        let (fs, inner) = (v.fs(), &v.0.persist);
        let announced = || {
            (0..inner.journal.lanes_in_use())
                .map(|l| inner.journal.lanes.lock(l).seals_ahead)
                .collect::<Vec<_>>()
        };
        let replace = || {
            fs.write("/old", b"1").unwrap();
            fs.write("/new", b"2").unwrap();
            fs.rename("/new", "/old").unwrap();
            let f = fs.open("/old", OpenOptions::new().read(true)).unwrap();
            f.inode().has_dirty()
        };
        assert!(replace(), "no seal was announced: the content waits");
        let one = flush_replaced(inner).unwrap();
        let two = flush_replaced(inner).unwrap();
        assert_eq!(announced(), vec![2; inner.journal.lanes_in_use()]);
        assert!(!replace(), "the content goes before the rename");
        // A seal of one leaves the other's announcement.
        commit::commit_with(inner, &one, |_, _| ()).unwrap();
        drop(one);
        assert_eq!(announced(), vec![1; inner.journal.lanes_in_use()]);
        assert!(!replace());
        // One that did not come to its seal takes it back itself.
        drop(two);
        assert_eq!(announced(), vec![0; inner.journal.lanes_in_use()]);
        assert!(replace());
        v.checkpoint().unwrap();
        v.sync().unwrap();
        assert_eq!(announced(), vec![0; inner.journal.lanes_in_use()]);
    }

    /// Makes `/new` anew so often, and renames it over a file of a number.
    fn replace_many(v: &Volume, files: u64, content: &[u8]) {
        for n in 0..files {
            v.fs().write("/new", content).unwrap();
            v.fs().rename("/new", format!("/{n}")).unwrap();
        }
    }

    fn checkpoints(v: &Volume) -> u64 {
        let c = v.0.persist.store.report().checkpoints;
        c.folding + c.in_place + c.failed
    }

    /// What waits for its fold was counted as if each file had a block to itself: half of the
    /// volume was free, and nothing was to be had. A checkpoint for each file came of that, each as
    /// long as there were files.
    #[test]
    fn files_that_are_replaced_in_one_epoch_find_the_space_that_there_is() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(512 << 20).unwrap());
        Store::format(std::slice::from_ref(&device), &FormatOptions::default()).unwrap();
        let options = MountOptions { background: false, lanes: 4, ..MountOptions::default() };
        let v = Volume::open_devices(vec![device], &options).unwrap();
        const FILES: u64 = 60_000;
        (0..FILES).for_each(|n| drop(v.fs().create(format!("/{n}")).unwrap()));
        v.sync().unwrap();
        v.checkpoint().unwrap();
        let before = checkpoints(&v);
        replace_many(&v, FILES, &[7; 4096]);
        commit::seal_and_commit(&v.0.persist).unwrap();
        let made = checkpoints(&v) - before;
        assert!(made < 100, "{made} checkpoints");
        (0..FILES).step_by(97).for_each(|n| assert_eq!(v.fs().read(format!("/{n}")).unwrap(), [7; 4096]));
    }

    /// Where folds give no space they are not made for each file.
    #[test]
    fn a_seal_without_space_for_many_files_does_not_fold_for_each() {
        let (v, _device) = volume(64);
        let store = &v.0.persist.store;
        (0..300).for_each(|n| drop(v.fs().create(format!("/{n}")).unwrap()));
        let large = v.fs().create("/large").unwrap();
        v.sync().unwrap();
        v.checkpoint().unwrap();
        replace_many(&v, 300, &[7; 8192]);
        let f = v.fs().open("/7", OpenOptions::new().read(true)).unwrap();
        // All that is free, without a promise.
        let (ino, mut attrs) = (large.inode().ino, large.inode().attrs());
        let full = (0..4000).find_map(|n| {
            attrs.size = (n + 1) * 16 * 4096;
            let pages = (n * 16..n * 16 + 16).map(|p| (p, Box::new(Block([1; 4096])).into())).collect();
            let (size_only, xattrs, reserved, more) = (false, None, 0, false);
            let (life, rights_logged) = (Default::default(), true);
            let u = InodeUpdate { ino, attrs, rights_logged, size_only, xattrs, pages, reserved, more, life };
            store.submit(Transaction { inodes: vec![u], ..Transaction::default() }).err()
        });
        assert!(matches!(full, Some(StoreError::NoSpace)), "{full:?}");
        let folds = || store.report().checkpoints.folding;
        let before = folds();
        commit::seal_and_commit(&v.0.persist).unwrap();
        let made = folds() - before;
        assert!(made > 0 && made < 30, "{made} folds");
        assert_eq!(f.sync_all().map_err(|e| e.errno()), Err(libc::ENOSPC));
        assert_eq!(v.fs().read("/7").unwrap(), [7; 8192]);
    }

    /// The first has taken the file off the list, and is writing it; the second finds the list
    /// empty.
    #[test]
    fn of_two_seals_neither_makes_a_rename_durable_before_the_content() {
        let (v, device) = volume(64);
        let (fs, inner) = (v.fs(), v.0.persist.clone());
        fs.write("/old", b"1").unwrap();
        v.sync().unwrap();
        fs.write("/new", b"2").unwrap();
        fs.rename("/new", "/old").unwrap();
        let before = inner.journal.committed();
        let (did, done) = mpsc::channel();
        let medium = device.clone();
        device.at_write(move || {
            let other = inner.clone();
            let second = std::thread::spawn(move || super::super::commit::seal_and_commit(&other).map(drop));
            // It is announced, and does not come to its seal as long as the first does not go on.
            // That it would is not missed by much.
            let announced = || inner.journal.lanes.lock(0).seals_ahead == 2;
            while !announced() && !second.is_finished() {
                std::thread::yield_now();
            }
            for _ in 0..50 {
                std::thread::sleep(Duration::from_millis(2));
                if inner.journal.committed() > before {
                    break;
                }
            }
            did.send((second, medium.after_crash())).unwrap();
        });
        commit::seal_and_commit(&v.0.persist).unwrap();
        let (second, left) = done.recv().unwrap();
        second.join().unwrap().unwrap();
        assert!((0..4).all(|lane| v.0.persist.journal.lanes.lock(lane).in_hand.is_empty()));
        // The power goes while the first writes; and afterwards.
        for (left, content) in [(left, b"1"), (device.after_crash(), b"2")] {
            assert_eq!(left.fs().read("/old").unwrap(), content);
        }
    }
}
