//! Seal and commit: an epoch's groups of all lanes become durable as one (O2, O10).
//!
//! ```text
//! flush     what was renamed over files is made durable (persist::replaced); no lock is held
//! seal      under the backlog's lock: the epoch ends, its groups are taken from the lanes, and
//!           absorbed if they undo each other
//! place     under the backlog's lock: its shares get their places in the mlogs, with the batch of
//!           the caller's inode, if there is one
//! write     without a lock: one request and one flush; other epochs are sealed, placed and written
//!           meanwhile
//! publish   under the backlog's lock: of the epochs in flight the first ones that are flushed count
//!           as committed
//! ```
//!
//! 1. Epochs are sealed and get their places in the order of their numbers: both happen under one
//!    hold of the backlog's lock.
//! 2. An epoch counts as committed when it and all before it are flushed. The atomic word
//!    [`Journal::committed`] holds the last of them, and only then do its groups go to the backlog.
//!    So what counts as committed is a prefix, whatever a crash leaves of later ones.
//! 3. An epoch that has its places waits for devices alone: for its own requests, for links of the
//!    chain and for older batches of the inode that goes with it, all of which were submitted.
//!    Therefore whoever holds a lock of the store may wait for it.
//! 4. An epoch that found no space stays sealed, at the head of those without places. It goes
//!    before any other, so a call that failed is never followed by one that succeeds without its
//!    groups.
//! 5. Space is freed before that lock is taken, never under it: that may wait for a checkpoint,
//!    whose seal takes the backlog's lock. Who finds none folds what is committed.
//! 6. Only lanes that are *in use* are looked at ([`Journal::lanes_in_use`]). One comes into use
//!    under the backlog's lock, before its first operation, so none does while an epoch is sealed:
//!    its operations are of the next one.
//! 7. After an error of a write or a flush, or when a thread unwinds in the middle, no epoch from
//!    that one on is ever published, and whoever waits for one gets EIO.

use super::replaced::ReplacedFlushed;
use crate::core::backlog::{Backlog, Committed, InFlight, Unfinished};
use crate::oplog::buffer::{Sealed, Undone};
use crate::oplog::lane::note_lost;
use crate::persist::Persist;
use crate::persist::fold::fold_for_space;
use crate::persist::replaced;
use lanefs_store::{EpochWrite, EpochWritten, Groups, Result, StoreError, Transaction, fold};
use lanefs_sync::lock::MutexGuard;
use smallvec::SmallVec;
use std::time::Instant;

/// Bytes of one part of a commit, unless the options have another number; parts are spread over the
/// mlogs.
const PART: usize = 1 << 20;
/// The number of times that a commit which found no space is tried again.
const TRIES: u32 = 2;
/// The number of looks of a thread that waits for an epoch before it sleeps: some ten microseconds,
/// the time of a flush of fast flash.
const LOOKS: u32 = 400;

/// Epochs that have their places and are to be written by the thread that has this. If it unwinds,
/// none of them ever counts (7).
#[must_use]
pub(super) struct Begun<'v> {
    persist: &'v Persist,
    /// One, or two where an earlier one had found no space.
    writes: SmallVec<[(u64, EpochWrite<'v>); 1]>,
    /// Epochs that were begun, with or without something to write, and are not noted as flushed.
    left: bool,
    /// The transaction goes with the last one.
    with: bool,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if self.left {
            self.persist.store.shutdown();
            self.persist.journal.backlog.lock().failed = true;
            self.persist.journal.published.notify_all();
        }
    }
}

impl Begun<'_> {
    /// Writes them, and publishes what can be. Returns how the transaction went that came with the
    /// last one, if it went. Whoever needs the epoch waits for it then ([`wait_committed`]).
    pub fn finish(mut self) -> Option<Result<()>> {
        debug_assert!(self.left || self.writes.is_empty(), "epochs are written, and none is begun");
        debug_assert!(!self.with || !self.writes.is_empty(), "a transaction goes with an empty epoch");
        debug_assert!(self.writes.len() <= 2, "{} epochs found no space", self.writes.len());
        debug_assert!(self.writes.is_sorted_by(|a, b| a.0 < b.0), "epochs are placed in order");
        if !self.left {
            return None;
        }
        let mut transaction = Ok(());
        let mut done: SmallVec<[(u64, Result<EpochWritten>); 1]> = SmallVec::new();
        for (epoch, write) in std::mem::take(&mut self.writes) {
            let (t, e) = write.finish();
            transaction = t;
            done.push((epoch, e));
        }
        let mut backlog = lock_commit(self.persist);
        for (epoch, written) in done {
            match written {
                Ok(written) => backlog.flushed(epoch, written),
                Err(_) => backlog.failed = true,
            }
        }
        self.left = false;
        publish(self.persist, &mut backlog);
        drop(backlog);
        self.persist.journal.published.notify_all();
        self.with.then_some(transaction)
    }
}

impl Backlog {
    /// Notes that an epoch in flight is on the media.
    fn flushed(&mut self, epoch: u64, written: EpochWritten) {
        let place = self.in_flight.iter_mut().find(|f| f.epoch == epoch);
        debug_assert!(place.is_some(), "epoch {epoch} was written, and is not in flight");
        if let Some(f) = place {
            debug_assert!(!f.flushed && f.written.is_none(), "epoch {epoch} was written twice");
            (f.flushed, f.written) = (true, Some(written));
        }
    }
}

/// Seals the running epoch and commits it; returns it. What was logged before the call is
/// durable when it returns.
pub(crate) fn seal_and_commit(persist: &Persist) -> crate::Result<u64> {
    let mut tries = 0;
    loop {
        let replaced = replaced::flush_replaced(persist)?;
        let folds_first = !free_space_for_epoch(persist, &replaced, tries > 0)?;
        let committed = match folds_first && tries < TRIES {
            true => Err(StoreError::NoSpace),
            false => commit_replaced(persist, &replaced),
        };
        match committed {
            Err(StoreError::NoSpace) if tries < TRIES => {
                drop(replaced);
                fold_for_space(persist)?;
                tries += 1;
            }
            Ok(None) => {}
            Ok(Some(epoch)) => {
                debug_assert!(persist.journal.committed() >= epoch, "it was waited for");
                return Ok(epoch);
            }
            Err(e) => return Err(e.into()),
        }
    }
}

/// Frees space for what a seal would commit. The caller does not hold the backlog's lock (5).
/// False: there is too little, and who can folds what is committed first. Where no space is to be
/// had the commit fails, if it needs it.
pub(super) fn free_space_for_epoch(
    persist: &Persist,
    replaced: &ReplacedFlushed<'_>,
    hard: bool,
) -> Result<bool> {
    let sealed =
        if hard { persist.journal.backlog.lock().sealed.as_ref().map_or(0, Unfinished::bytes) } else { 0 };
    match persist.store.free_space_for_epoch((replaced.open_bytes + sealed) as u64, hard) {
        Err(StoreError::NoSpace) => Ok(!persist.store.waits_long_for_fold()),
        r => r.map(|()| true),
    }
}

/// Seals the running epoch and commits it, for a caller that has flushed what was renamed over
/// files. `None`: it has to do so once more.
fn commit_replaced(persist: &Persist, replaced: &ReplacedFlushed<'_>) -> Result<Option<u64>> {
    commit_with(persist, replaced, |_, _| ())
}

/// Does what [`seal_and_commit`] does, for a caller that has flushed what was renamed over files;
/// may be called by the seal of a checkpoint (3). `sealed` is called under the backlog's lock with
/// the epoch, before it is written. `None`: what was renamed has to be flushed once more.
pub(super) fn commit_with(
    persist: &Persist,
    replaced: &ReplacedFlushed<'_>,
    sealed: impl FnOnce(&mut Backlog, u64),
) -> Result<Option<u64>> {
    let (begun, epoch) = {
        let mut backlog = persist.journal.backlog.lock();
        let (begun, epoch) = begin_commit(persist, &mut backlog, replaced, None);
        if let Ok(Some(epoch)) = epoch {
            sealed(&mut backlog, epoch);
        }
        (begun, epoch)
    };
    debug_assert!(!begun.with, "no transaction was handed over");
    begun.finish();
    let Some(epoch) = epoch? else { return Ok(None) };
    wait_committed(persist, epoch)?;
    Ok(Some(epoch))
}

/// Seals the running epoch and gives it its places, and with it the transaction, if there is
/// one. The caller has flushed what was renamed over files, and lets go of `backlog` before it
/// writes what was begun, which it does after an error too. `None` instead of the epoch: a lane
/// came into use meanwhile, and what was renamed there has to be flushed first.
pub(super) fn begin_commit<'v>(
    persist: &'v Persist,
    backlog: &mut Backlog,
    replaced: &ReplacedFlushed<'_>,
    with: Option<&mut Transaction>,
) -> (Begun<'v>, Result<Option<u64>>) {
    debug_assert!(persist.journal.backlog.is_locked(), "1: epochs are placed in order");
    debug_assert!(replaced.lanes <= persist.journal.lanes_in_use(), "a lane went out of use");
    backlog.check_invariants();
    let mut begun = Begun { persist, writes: SmallVec::new(), left: false, with: false };
    let sealed = (|| {
        persist.store.healthy()?;
        // What found no space goes first (4).
        place(persist, backlog, &mut begun, None)?;
        if replaced.is_sealed() {
            // Tried again: that was it.
            return Ok(Some(persist.journal.epochs.current() - 1));
        }
        if replaced.lanes < persist.journal.lanes_in_use() {
            return Ok(None);
        }
        let epoch = seal(persist, backlog, replaced)?;
        place(persist, backlog, &mut begun, with)?;
        Ok(Some(epoch))
    })();
    backlog.check_invariants();
    debug_assert!(sealed.as_ref().is_err() || backlog.sealed.is_none(), "4: it stays where it failed");
    (begun, sealed)
}

/// Ends the running epoch and takes its groups.
fn seal(persist: &Persist, backlog: &mut Backlog, replaced: &ReplacedFlushed<'_>) -> Result<u64> {
    debug_assert!(!replaced.is_sealed(), "the announcement was for another seal");
    let mut taken: Vec<Sealed> = Vec::new();
    let epoch = persist.journal.epochs.seal(&persist.journal.lanes, replaced.lanes, |lane, log, e| {
        persist.journal.lanes.shared(lane).promise.end_epoch();
        log.committed(persist.journal.committed());
        debug_assert!(log.seals_ahead > 0, "the seal was not announced");
        log.seals_ahead -= 1;
        log.thinned.drain(..).for_each(|lost| note_lost(&mut backlog.thinned, lost));
        taken.extend(log.take(e));
    });
    replaced.sealed();
    backlog.check_next(epoch);
    debug_assert!(epoch > persist.journal.committed(), "epoch {epoch} was committed before it ended");
    debug_assert!(taken.len() <= replaced.lanes, "a lane has two buffers of epoch {epoch}");
    let mut groups: Vec<Groups> = Vec::new();
    let (mut promised, mut undone, mut count) = (0, Undone::default(), 0);
    for s in &taken {
        let b = s.lock();
        debug_assert_eq!(b.epoch, epoch, "a lane gave another epoch's groups");
        count += b.take_part(&mut groups);
        promised += b.promised;
        undone += b.undone;
    }
    if is_worth_absorbing(undone, count) {
        let absorbed = fold::absorb(&groups.iter().map(|g| &g[..]).collect::<Vec<_>>())?;
        groups = vec![absorbed.into()];
    }
    backlog.sealed = Some(Unfinished { epoch, groups, promised });
    backlog.last = Some(Instant::now());
    Ok(epoch)
}

/// Returns whether the groups of an epoch, `count` of them, are absorbed before they are written.
/// All that an epoch both made and ended is: the accounts of promised blocks rest on it
/// (`persist::reaper`, 5). Else it costs more than it saves while few groups go with it.
fn is_worth_absorbing(undone: Undone, count: usize) -> bool {
    debug_assert!(undone.changes <= count * 2, "{undone:?} by {count} groups");
    undone.inodes > 0 || undone.changes > count / 4
}

/// Gives the epoch that is sealed its places, and the transaction, unless the epoch is empty.
fn place<'v>(
    persist: &'v Persist,
    backlog: &mut Backlog,
    begun: &mut Begun<'v>,
    with: Option<&mut Transaction>,
) -> Result<()> {
    let Some(sealed) = &backlog.sealed else { return Ok(()) };
    let write = if sealed.groups.is_empty() {
        None
    } else {
        let part = Some(persist.options.commit_part).filter(|n| *n > 0).unwrap_or(PART);
        let parts = parts(&sealed.groups, part, persist.journal.lanes.len());
        debug_assert_eq!(
            parts.iter().map(|p| p.1.len()).sum::<usize>(),
            sealed.bytes(),
            "groups are left out"
        );
        debug_assert!(with.as_ref().is_none_or(|t| t.durable), "it is flushed with the epoch");
        begun.with = with.is_some();
        persist.store.begin_epoch(sealed.epoch, &parts, with).inspect_err(|_| begun.with = false)?
    };
    let Some(Unfinished { epoch, promised, .. }) = backlog.sealed.take() else { return Ok(()) };
    debug_assert!(write.is_some() || !begun.with, "the transaction was not begun with an empty epoch");
    let flushed = write.is_none();
    // Where the store finds the epoch empty nothing of it is to be folded.
    let groups = write.as_ref().map_or_else(Vec::new, |w| w.groups());
    backlog.in_flight.push_back(InFlight { epoch, groups, promised, flushed, written: None });
    backlog.check_invariants();
    begun.left = true;
    begun.writes.extend(write.map(|w| (epoch, w)));
    Ok(())
}

/// Publishes the epochs that are flushed, and all before them (2).
fn publish(persist: &Persist, backlog: &mut Backlog) {
    while !backlog.failed && backlog.in_flight.front().is_some_and(|f| f.flushed) {
        let Some(f) = backlog.in_flight.pop_front() else { return };
        if let Some(written) = f.written {
            persist.store.publish_epoch(written);
        }
        // The commit point of the epoch for all who wait. The lanes let go of their buffers
        // when they are locked next, at the latest by the next seal.
        persist.journal.set_committed(f.epoch);
        backlog.add_committed(Committed { epoch: f.epoch, groups: f.groups, promised: f.promised });
    }
}

/// Takes the lock under which epochs are sealed, get their places and are published. It is held for
/// a few microseconds, and to be woken takes ten times as long.
pub(super) fn lock_commit(persist: &Persist) -> MutexGuard<'_, Backlog> {
    for _ in 0..LOOKS {
        if let Some(backlog) = persist.journal.backlog.try_lock() {
            return backlog;
        }
        lanefs_sync::schedule::spin_loop();
    }
    persist.journal.backlog.lock()
}

/// Waits until an epoch is committed that has its places, or that somebody else was to give its
/// places.
pub(super) fn wait_committed(persist: &Persist, epoch: u64) -> Result<()> {
    debug_assert!(epoch < persist.journal.epochs.current(), "epoch {epoch} is not sealed");
    for _ in 0..LOOKS {
        if persist.journal.committed() >= epoch {
            return persist.store.healthy();
        }
        lanefs_sync::schedule::spin_loop();
    }
    lanefs_sync::about_to_wait();
    let mut backlog = persist.journal.backlog.lock();
    while persist.journal.committed() < epoch {
        persist.store.healthy()?;
        if backlog.failed {
            return Err(StoreError::Closed);
        }
        persist.journal.published.wait(&mut backlog);
    }
    drop(backlog);
    persist.store.healthy()
}

/// Cuts encoded groups into parts of at least `part` bytes at group boundaries, and deals these out
/// to the lanes. A part may come in several pieces.
fn parts(chunks: &[Groups], part: usize, lanes: usize) -> Vec<(usize, Groups)> {
    debug_assert!(part > 0 && lanes > 0, "parts of {part} bytes for {lanes} lanes");
    let mut out: Vec<(usize, Groups)> = Vec::new();
    let (mut number, mut size) = (0, 0);
    for chunk in chunks {
        let (mut start, mut at) = (0, 0);
        // What fits is not looked into.
        let cut = if size + chunk.len() > part { &chunk[..] } else { &[] };
        for g in lanefs_format::record::groups(cut).flatten() {
            if size + at - start >= part {
                if at > start {
                    out.push((number % lanes, chunk.part(start..at)));
                }
                (start, number, size) = (at, number + 1, 0);
            }
            at += g.bytes.len();
        }
        if start < chunk.len() {
            out.push((number % lanes, chunk.part(start..chunk.len())));
        }
        size += chunk.len() - start;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{commit_replaced, seal_and_commit};
    use crate::persist::background;
    use crate::persist::replaced;
    use crate::{MountOptions, OpenOptions, Volume};
    use lanefs_store::device::{Device, Fault, FaultyDevice, Kind, MemoryDevice, MemoryImage, Plan};
    use lanefs_store::{FormatOptions, Store, StoreError};
    use std::sync::Arc;

    fn volume() -> Volume {
        sized(32 << 20)
    }

    fn sized(bytes: u64) -> Volume {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(bytes).unwrap());
        Store::format(std::slice::from_ref(&device), &FormatOptions::default()).unwrap();
        let options = MountOptions { background: false, ..MountOptions::default() };
        Volume::open_devices(vec![device], &options).unwrap()
    }

    /// Else memory would seem full of it, and the log would press for good.
    #[test]
    fn what_is_folded_counts_as_log_no_more() {
        let v = volume();
        for round in 0..3 {
            for n in 0..20 {
                v.fs().create(format!("/{round}-{n}")).unwrap();
            }
            let open = v.0.persist.journal.log_bytes();
            assert!(open > 0);
            v.sync().unwrap();
            assert!(v.0.persist.journal.log_bytes() > 0);
            v.checkpoint().unwrap();
            assert_eq!((v.0.persist.journal.log_bytes(), v.0.persist.journal.backlog.lock().bytes), (0, 0));
        }
    }

    /// Each change was in memory twice until it was folded, here and in the store.
    #[test]
    fn what_is_committed_is_in_memory_once() {
        let v = volume();
        for n in 0..100 {
            v.fs().create(format!("/{n}")).unwrap();
        }
        v.sync().unwrap();
        let backlog = v.0.persist.journal.backlog.lock();
        let groups: Vec<_> = backlog.groups.iter().flat_map(|c| &c.groups).collect();
        assert!(!groups.is_empty());
        for g in groups {
            // The backlog's and the store's.
            assert_eq!((std::sync::Arc::strong_count(g.buffer()), g.len()), (2, g.buffer().capacity()));
        }
    }

    /// A volume at rest kept what was logged since the last checkpoint for half a minute.
    #[test]
    fn a_quiet_volume_folds_what_is_logged() {
        use super::super::background::{QUIET_AFTER, QUIET_BYTES};
        let v = sized(256 << 20);
        let inner = &v.0.persist;
        let name = "n".repeat(200);
        let mut n = 0;
        while inner.journal.open_log_bytes() <= QUIET_BYTES * 3 / 2 {
            v.fs().create(format!("/{name}{n}")).unwrap();
            n += 1;
        }
        v.sync().unwrap();
        background::tick(inner, false).unwrap();
        let logged = inner.journal.backlog.lock().bytes;
        assert!(logged > QUIET_BYTES, "not yet: {logged}");
        let Some(before) = std::time::Instant::now().checked_sub(QUIET_AFTER * 2) else { return };
        *inner.background.last_checkpoint.lock() = Some(before);
        v.fs().create("/one more").unwrap();
        background::tick(inner, false).unwrap();
        assert!(inner.journal.backlog.lock().bytes >= logged, "somebody is at work");
        v.sync().unwrap();
        background::tick(inner, false).unwrap();
        assert_eq!(inner.journal.backlog.lock().bytes, 0);
    }

    /// Names that were promised before may be gone, also where there is nothing to commit.
    #[test]
    fn no_seal_of_a_broken_volume_succeeds() {
        let faulty = Arc::new(FaultyDevice::new(MemoryDevice::new(32 << 20).unwrap(), Plan::none()));
        let device: Arc<dyn Device> = faulty.clone();
        Store::format(std::slice::from_ref(&device), &FormatOptions::default()).unwrap();
        let options = MountOptions { background: false, ..MountOptions::default() };
        let v = Volume::open_devices(vec![device], &options).unwrap();
        let (fs, inner) = (v.fs(), &v.0.persist);
        let f = fs.create("/f").unwrap();
        v.sync().unwrap();
        let replaced = replaced::flush_replaced(inner).unwrap();
        // Space for the seal was freed; then another thread's fsync fails.
        faulty.set_plan(Plan::none().nth(Kind::Flush, 0, Fault::Error(libc::EIO)));
        f.write_all_at(b"x", 0).unwrap();
        assert_eq!(f.sync_all().unwrap_err().errno(), libc::EIO);
        assert_eq!(inner.journal.open_log_bytes(), 0);
        commit_replaced(inner, &replaced).expect_err("its flush failed");
    }

    /// A seal takes the groups from the lanes: what it could not commit lies in no lane and in no
    /// log.
    #[test]
    fn an_epoch_that_found_no_space_is_committed_by_the_next_sync() {
        // So large that what is logged is little beside what is free.
        let dev = Arc::new(MemoryDevice::new(256 << 20).unwrap());
        let device: Arc<dyn Device> = dev.clone();
        let format = FormatOptions { segment_blocks: 16, mlogs: 1, ..FormatOptions::default() };
        Store::format(std::slice::from_ref(&device), &format).unwrap();
        let options = MountOptions { background: false, lanes: 2, ..MountOptions::default() };
        let v = Volume::open_devices(vec![device], &options).unwrap();
        let (fs, inner) = (v.fs(), &v.0.persist);
        fs.write("/big", vec![1; 40 << 20]).unwrap();
        v.sync().unwrap();
        v.checkpoint().unwrap();
        // More than there will be free.
        let links = 6000;
        for n in 0..links {
            fs.symlink(&*"x".repeat(4000), &*format!("/{n}")).unwrap();
        }
        // A checkpoint would free space: all this is written over.
        let big = fs.open("/big", OpenOptions::new().write(true)).unwrap();
        let (mut now, mut at) = (inner.store.pressure(), 0);
        while now.free_segments > now.low_water / 2 + 16 {
            big.write_all_at(&[2; 16 * 4096], at).unwrap();
            big.sync_data().unwrap();
            (now, at) = (inner.store.pressure(), (at + 16 * 4096) % (40 << 20));
        }
        assert!(inner.journal.open_log_bytes() as u64 > now.free_segments << 16, "{now:?}");
        let replaced = replaced::flush_replaced(inner).unwrap();
        let r = commit_replaced(inner, &replaced);
        assert!(matches!(r, Err(StoreError::NoSpace)), "{r:?}");
        fs.symlink("x", "/later").unwrap();
        v.sync().unwrap();
        let copy = MemoryImage::capture(&dev).unwrap().fork().unwrap();
        let fs = Volume::open_devices(vec![Arc::new(copy)], &options).unwrap().fs();
        assert!((0..links).all(|n| fs.readlink(&*format!("/{n}")).is_ok()));
        assert!(fs.readlink("/later").is_ok());
    }

    /// The lanes of threads that rest kept all of the last epoch until the next one ended.
    #[test]
    fn a_round_of_the_background_leaves_nothing_of_a_commit_in_the_lanes() {
        let v = volume();
        let inner = &v.0.persist;
        for n in 0..100 {
            v.fs().create(format!("/{n}")).unwrap();
        }
        background::tick(inner, true).unwrap();
        assert!((0..inner.journal.lanes.len()).all(|l| inner.journal.lanes.lock(l).sealed.is_empty()));
    }

    /// Lanes let go of what was committed at the next seal, also where nobody closes over them.
    #[test]
    fn lanes_keep_the_groups_of_one_commit_at_most() {
        let v = volume();
        let inner = &v.0.persist;
        for n in 0..10 {
            v.fs().create(format!("/{n}")).unwrap();
            seal_and_commit(inner).unwrap();
            for lane in 0..inner.journal.lanes.len() {
                assert!(inner.journal.lanes.lock(lane).sealed.len() <= 1, "commit {n}, lane {lane}");
            }
        }
    }
}
