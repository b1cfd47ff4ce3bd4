//! The end of inodes: when the last name is gone and nobody holds the file open (DESIGN, "Freeing
//! an inode").
//!
//! 1. Whoever takes the last name pushes the inode on its lane's list.
//! 2. A round takes the lists and has the epoch collector set a flag when everybody who was pinned
//!    then is gone: whoever found the inode by its name has by then given it up or holds an open
//!    slot.
//! 3. The next round passes over what is held open, marks the other candidates FREED, then reads
//!    all open slots again. An opener takes its slot, then looks for FREED (both SeqCst): either it
//!    sees the mark and gives up, or the round sees the slot and takes the mark back. What is open
//!    all the time is never marked: its number never leads nowhere. What is being written back
//!    waits for the next round; what has ended is written back no more ([`ENDED`]), whoever has it
//!    on a list. A front end that hands out inode numbers may keep an inode in the same way
//!    (`Volume::keep_unnamed`).
//! 4. The others get a DEAD group. Their inodes stay, marked, until that group is committed: no
//!    pending group names them then. The number answers ESTALE (`MemFs::dead`) until it is folded,
//!    and only then it can be given out again.
//!    If an inode was made and lost its only name in one lane and in the epoch that still runs,
//!    both groups are voided before: the log has nothing else of it then. (An empty file of that
//!    kind the lane ends itself, `ops::short_lived`; what a lane leaves of these for a round, or
//!    cannot end so, is taken here.)
//! 5. An inode that was made and ended since the last fold is never written: when its DEAD is
//!    committed, every fold to come meets both groups. What was promised at its making goes back
//!    then, not at the checkpoint: files that live for a moment would fill a small volume with
//!    promises.

use crate::error::Result;
use crate::oplog::buffer::SoleGroup;
use crate::oplog::lane::Orphan;
use crate::ops::remove;
use crate::persist::Persist;
use crate::persist::ending::{EndedShare, EndingRound, drop_ended, fills_the_log};
use lanefs_format::Ino;
use lanefs_store::PARTS_OF_BLOCK;
use lanefs_sync::hash::WordSet;
use lanefs_sync::parallel;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Returns how many inodes that end are worth several threads.
fn shared_from() -> usize {
    if cfg!(test) { 64 } else { parallel::share_from(1 << 13, 2) }
}

/// The inodes that are about to end, and those that ended and are not folded.
#[derive(Default)]
pub(crate) struct Reaper {
    /// Waiting for their grace to pass. The flag is stored by the collector with Release once
    /// whoever was pinned is gone, and loaded with Acquire: what they did is seen then.
    staged: Option<(Arc<AtomicBool>, Vec<Orphan>)>,
    /// Unlinked and open.
    open: Vec<Ino>,
    /// Freed, by epoch of the DEAD group; not folded yet.
    freed: Vec<(u64, Ino)>,
    /// The freed ones whose inodes are in memory, because that epoch was not committed when they
    /// were looked at last; in the order of epochs.
    buried: Vec<(u64, Ino)>,
    /// What inodes that ended before they were folded were promised, in parts of a block, by epoch
    /// of the DEAD group and of the group that made them.
    cancelled: BTreeMap<(u64, u64), u64>,
    /// Blocks of the inodes in `freed`, about.
    blocks: u64,
}

impl Reaper {
    /// Takes out the inodes whose end a fold up to `epoch` has folded.
    pub fn take_folded(&mut self, epoch: u64) -> Vec<Ino> {
        let (done, rest) = self.freed.drain(..).partition(|f| f.0 <= epoch);
        self.freed = rest;
        if self.freed.is_empty() {
            self.blocks = 0;
        }
        let done: Vec<(u64, Ino)> = done;
        debug_assert!(self.buried.iter().all(|b| b.0 > epoch), "what is folded has left memory");
        self.check_invariants();
        done.into_iter().map(|f| f.1).collect()
    }

    /// Returns whether there are unlinked inodes that wait for their grace or for who holds them
    /// open.
    pub fn has_waiting(&self) -> bool {
        self.staged.is_some() || !self.open.is_empty()
    }

    /// Returns whether inodes ended that are not folded.
    pub fn has_unfolded(&self) -> bool {
        !self.freed.is_empty()
    }

    /// Returns the blocks of inodes that ended and are not folded, about.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns whether the next round finds the grace passed of what the last one took.
    #[cfg(test)]
    pub fn is_due(&self) -> bool {
        self.staged.as_ref().is_some_and(|s| s.0.load(Ordering::Acquire))
    }

    /// Notes what a thread has ended, and what it left.
    fn note_ended(&mut self, mut share: EndedShare) {
        debug_assert!(
            share.ended.is_sorted_by_key(|e| e.0),
            "an epoch's ends were logged behind a later one's"
        );
        self.open.append(&mut share.open);
        self.blocks += share.blocks;
        self.freed.extend_from_slice(&share.ended);
        self.buried.append(&mut share.ended);
        // Another thread may have gone on in a later epoch.
        if !self.buried.is_sorted_by_key(|b| b.0) {
            self.buried.sort_by_key(|b| b.0);
        }
        for (of, parts) in share.unmade {
            *self.cancelled.entry(of).or_default() += parts;
        }
    }

    /// Checks what holds between its lists whenever the lock is free.
    fn check_invariants(&self) {
        debug_assert!(self.buried.len() <= self.freed.len(), "an inode in memory is not among the freed");
        debug_assert!(!self.freed.is_empty() || self.blocks == 0, "blocks of nothing: {}", self.blocks);
        debug_assert!(self.staged.as_ref().is_none_or(|s| !s.1.is_empty()), "nothing waits for its grace");
        debug_assert!(self.cancelled.first_key_value().is_none_or(|c| *c.1 > 0), "no inode was cancelled");
    }
}

/// What a round takes of the empty files that lanes made and removed and will end themselves.
#[derive(Clone, Copy)]
enum OfLanes {
    /// None.
    Nothing,
    /// Those of lanes that have rested since the last round.
    Rested,
    /// All.
    All,
}

/// Does one round, and returns how many inodes ended. `wait`: lets the grace pass inside this call,
/// and goes on as long as more comes (closing, tests, a volume that is full).
pub(crate) fn reap(persist: &Persist, wait: bool) -> Result<usize> {
    match wait {
        true => reap_rounds(persist, 20_000, usize::MAX, OfLanes::All),
        false => reap_rounds(persist, 0, 1, OfLanes::Rested),
    }
}

/// Ends what has lost its last name by now, but for its grace: waits for that some milliseconds at
/// most. A large file has frames that others could use, which are in the processor's cache yet.
pub(crate) fn reap_soon(persist: &Persist) -> Result<usize> {
    reap_rounds(persist, 150, 2, OfLanes::Nothing)
}

/// Ends the inodes that a checkpoint should not write: of files that ended by now, but for their
/// grace. Waits for that some milliseconds at most.
pub(crate) fn reap_for_checkpoint(persist: &Persist) -> Result<usize> {
    reap_rounds(persist, 150, 2, OfLanes::All)
}

/// Does up to `rounds` rounds, each of which looks `patience` times whether the grace has passed: a
/// hundred times at once, then every 50 us.
fn reap_rounds(persist: &Persist, patience: usize, mut rounds: usize, of_lanes: OfLanes) -> Result<usize> {
    let mut r = persist.reaper.lock();
    drop_buried(persist, &mut r);
    give_back_of(persist, &mut r);
    let mut reaped = 0;
    loop {
        r.check_invariants();
        let mut turns = 0;
        while let Some((done, _)) = &r.staged
            && !done.load(Ordering::Acquire)
        {
            crossbeam_epoch::pin().flush();
            if turns >= patience {
                return Ok(reaped);
            }
            turns += 1;
            if turns > 100 {
                // Without the lock: whoever else has something to end may take this list meanwhile.
                drop(r);
                lanefs_sync::schedule::sleep(std::time::Duration::from_micros(50));
                r = persist.reaper.lock();
            }
        }
        let mut last = 0;
        if let Some((_, list)) = r.staged.take() {
            let most = list.len();
            last = reap_list(persist, &mut r, &list)?;
            debug_assert!(last <= most, "{last} of {most} inodes ended");
            reaped += last;
        }
        let open = std::mem::take(&mut r.open).into_iter();
        let mut list: Vec<Orphan> = open.map(|ino| Orphan { ino, removal: SoleGroup::NONE }).collect();
        let open_only = list.len();
        for lane in 0..persist.journal.lanes.len() {
            let mut log = persist.journal.lanes.lock(lane);
            let left = match of_lanes {
                OfLanes::Nothing => Vec::new(),
                OfLanes::Rested => log.short_lived.give_up(true),
                OfLanes::All => log.short_lived.give_up(false),
            };
            list.extend(left.into_iter().map(|f| Orphan { ino: f.ino, removal: f.removal }));
            list.append(&mut log.orphans);
        }
        if list.is_empty() {
            return Ok(reaped);
        }
        let fresh = list.len() > open_only;
        let done = Arc::new(AtomicBool::new(false));
        let signal = done.clone();
        let guard = crossbeam_epoch::pin();
        guard.defer(move || signal.store(true, Ordering::Release));
        guard.flush();
        drop(guard);
        debug_assert!(r.staged.is_none() && r.open.is_empty(), "they are in the list that waits now");
        r.staged = Some((done, list));
        // What is held open stays on the list: another look makes sense only while something
        // happens.
        if patience == 0 || rounds == 0 || !fresh && last == 0 || fills_the_log(persist) {
            return Ok(reaped);
        }
        rounds -= 1;
    }
}

/// Drops the inodes of freed inodes whose end is committed: create and unlink all day would fill
/// the memory between two checkpoints.
pub(super) fn drop_buried(persist: &Persist, r: &mut Reaper) {
    let committed = persist.journal.committed();
    debug_assert!(r.buried.is_sorted_by_key(|b| b.0), "an epoch's ends were logged behind a later one's");
    let done = r.buried.partition_point(|b| b.0 <= committed);
    parallel::map(shares(&r.buried[..done], threads_for(persist, done)), |share| drop_ended(persist, share));
    r.buried.drain(..done);
    // As many as were removed at once need not come again.
    r.buried.shrink_to(r.buried.len() * 2);
    r.check_invariants();
}

/// Gives back the blocks promised to inodes that no fold will meet alive (5), and returns how
/// many. The caller does not hold the backlog's lock.
pub(crate) fn release_cancelled(persist: &Persist) -> u64 {
    give_back_of(persist, &mut persist.reaper.lock())
}

/// Does what [`release_cancelled`] does, for a caller that holds the reaper's lock.
fn give_back_of(persist: &Persist, r: &mut Reaper) -> u64 {
    let rest = r.cancelled.split_off(&(persist.journal.committed() + 1, 0));
    let ended = std::mem::replace(&mut r.cancelled, rest);
    if ended.is_empty() {
        return 0;
    }
    let mut backlog = persist.journal.backlog.lock();
    let mut back = 0;
    for ((epoch, born), parts) in ended {
        debug_assert!(epoch <= persist.journal.committed(), "5: the end of epoch {epoch} is not durable");
        let blocks = parts / PARTS_OF_BLOCK;
        let Some(n) = backlog.unpromise(born, blocks, persist.store.folded_epoch()) else { continue };
        debug_assert!(n <= blocks, "{n} blocks for {parts} parts");
        back += n;
        // What an epoch both made and ended was absorbed: no fold would have written it.
        if epoch > born {
            persist.store.cancel_unfolded(born, parts);
        }
    }
    drop(backlog);
    if back > 0 {
        persist.store.unreserve_nodes(persist.journal.lanes.mine(), back);
    }
    back
}

/// Ends those inodes of a list that nobody knows any more, with several threads if they are many;
/// returns how many. The others go on with those that are open.
fn reap_list(persist: &Persist, r: &mut Reaper, list: &[Orphan]) -> Result<usize> {
    debug_assert!(r.staged.is_none(), "another list waits for its grace");
    let keeper = persist.keeper.lock();
    let of_round = EndingRound { persist, open: persist.journal.open_inodes(), keeper: keeper.as_ref() };
    let threads = threads_for(persist, list.len());
    let parts = parallel::map(shares(list, threads), |share| of_round.choose(share));
    let (mut doomed, mut is_open) = (Vec::with_capacity(list.len()), Vec::new());
    for mut part in parts {
        doomed.append(&mut part.0);
        is_open.append(&mut part.1);
    }
    r.open.append(&mut is_open);
    // Who opened one of them meanwhile is seen now (3).
    let open = if doomed.is_empty() { WordSet::default() } else { persist.journal.open_inodes() };
    let of_round = EndingRound { open, ..of_round };
    let ended = parallel::map(shares(&doomed, threads), |share| of_round.end_all(share));
    let number = ended.iter().map(|e| e.ended.len()).sum();
    ended.into_iter().for_each(|e| r.note_ended(e));
    // A file that got and lost names while it was open is on the list more than once.
    r.open.sort_unstable();
    r.open.dedup();
    let guard = crossbeam_epoch::pin();
    let has_much = |ino: &Ino| persist.memfs.inodes.get(*ino, &guard).is_some_and(remove::has_much);
    let keeps_much = r.open.iter().any(has_much);
    if persist.keeps_much.load(Ordering::Relaxed) != keeps_much {
        persist.keeps_much.store(keeps_much, Ordering::Relaxed);
    }
    r.check_invariants();
    Ok(number)
}

/// Returns how many threads so many inodes that end are worth.
fn threads_for(persist: &Persist, inodes: usize) -> usize {
    if inodes < shared_from() { 1 } else { persist.store.threads() }
}

/// Divides a list among threads.
fn shares<T>(list: &[T], threads: usize) -> Vec<&[T]> {
    debug_assert!(threads > 0, "nobody does it");
    list.chunks(list.len().div_ceil(threads).max(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use super::{reap, reap_for_checkpoint, release_cancelled};
    use crate::persist::testing::volume;
    use crate::persist::{checkpoint, commit};
    use crate::{MountOptions, Volume};
    use lanefs_format::ROOT_INO;
    use lanefs_store::device::{Device, MemoryDevice};
    use lanefs_store::{FormatOptions, Store};

    #[test]
    fn several_threads_end_what_nobody_has_open_and_nothing_else() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20).unwrap());
        let format = FormatOptions { mlogs: 4, ..FormatOptions::default() };
        Store::format(std::slice::from_ref(&device), &format).unwrap();
        let options = MountOptions { background: false, lanes: 4, threads: 4, ..MountOptions::default() };
        let v = Volume::open_devices(vec![device], &options).unwrap();
        let (fs, inner) = (v.fs(), &v.0.persist);
        let names: Vec<String> = (0..1000).map(|n| format!("/{n}")).collect();
        assert!(threads_for(inner, names.len()) > 1, "nobody shares anything");
        fs.stat("/").unwrap();
        let before = inner.journal.inodes_in_memory();
        for name in &names {
            fs.write(&**name, name.as_bytes()).unwrap();
        }
        v.sync().unwrap();
        let open: Vec<_> = names
            .iter()
            .step_by(7)
            .map(|name| (name, fs.open(&**name, crate::OpenOptions::new().read(true)).unwrap()))
            .collect();
        names.iter().for_each(|name| fs.unlink(&**name).unwrap());
        assert_eq!(reap(inner, true).unwrap(), names.len() - open.len());
        assert!(inner.reaper.lock().buried.is_sorted_by_key(|b| b.0));
        commit::seal_and_commit(inner).unwrap();
        assert_eq!(reap(inner, true).unwrap(), 0);
        assert_eq!(inner.journal.inodes_in_memory(), before + open.len() as i64);
        for (name, file) in &open {
            let mut bytes = vec![0; name.len()];
            assert_eq!(file.read_at(&mut bytes, 0).unwrap(), name.len());
            assert_eq!(bytes, name.as_bytes(), "{name} is open");
        }
        drop(open);
        reap(inner, true).unwrap();
        checkpoint::checkpoint(inner).unwrap();
        assert_eq!((inner.store.space().inodes, inner.memfs.dead.lock().len()), (1, 0), "the root alone");
    }

    #[test]
    fn what_was_removed_leaves_memory_at_the_commit_and_its_number_answers_estale() {
        let options = MountOptions { background: false, ..MountOptions::default() };
        let device: std::sync::Arc<dyn lanefs_store::device::Device> =
            std::sync::Arc::new(lanefs_store::device::MemoryDevice::new(64 << 20).unwrap());
        lanefs_store::Store::format(std::slice::from_ref(&device), &lanefs_store::FormatOptions::default())
            .unwrap();
        let v = Volume::open_devices(vec![device], &options).unwrap();
        let (fs, inner) = (v.fs(), &v.0.persist);
        fs.stat("/").unwrap();
        let before = inner.journal.inodes_in_memory();
        let mut numbers = Vec::new();
        for turn in 0..3 {
            for i in 0..100 {
                let name = format!("/{turn}-{i}");
                fs.write(&*name, b"").unwrap();
                numbers.push(fs.stat(&*name).unwrap().ino);
                fs.unlink(&*name).unwrap();
            }
            assert_eq!(inner.journal.inodes_in_memory(), before + 100);
            reap(inner, true).unwrap();
            commit::seal_and_commit(inner).unwrap();
            reap(inner, false).unwrap();
            assert_eq!(
                inner.journal.inodes_in_memory(),
                before,
                "no checkpoint has been made, but the epoch is committed"
            );
            for ino in &numbers {
                assert_eq!(v.node_stat(*ino).unwrap_err().errno(), libc::ESTALE);
            }
            // The numbers may come again from here on.
            checkpoint::checkpoint(inner).unwrap();
            numbers.clear();
        }
        assert!(v.node_stat(ROOT_INO).is_ok());
    }

    /// A volume, and the blocks promised before anything is made in it: one for names, which stays
    /// promised.
    fn begun(mib: u64) -> (Volume, u64) {
        let (v, _) = volume(mib);
        v.fs().write("/first", b"").unwrap();
        let reserved = v.0.persist.store.space().reserved;
        (v, reserved)
    }

    /// Makes a hundred directories beside one that stays, in one epoch, and removes them, in the
    /// same or in the next.
    fn come_and_go(v: &Volume, turn: usize, same_epoch: bool) {
        let (fs, inner) = (v.fs(), &v.0.persist);
        for i in 0..=100 {
            fs.mkdir(format!("/{turn}-{i}"), 0o755).unwrap();
        }
        if !same_epoch {
            commit::seal_and_commit(inner).unwrap();
        }
        (0..100).for_each(|i| fs.rmdir(format!("/{turn}-{i}")).unwrap());
        reap(inner, true).unwrap();
    }

    #[test]
    fn what_is_made_and_removed_before_a_checkpoint_gives_its_block_back_at_the_commit() {
        for same_epoch in [true, false] {
            let (v, before) = begun(64);
            let inner = &v.0.persist;
            let low_water = || inner.store.pressure().low_water;
            let low = low_water();
            for turn in 0..3 {
                come_and_go(&v, turn, same_epoch);
                let stay = before + turn as u64 + 1;
                let promised = inner.store.space().reserved - stay;
                assert!((100..110).contains(&promised), "{promised}: their end is not durable");
                commit::seal_and_commit(inner).unwrap();
                if turn == 0 {
                    let born = inner.reaper.lock().cancelled.keys().next().unwrap().1;
                    inner.reaper.lock().cancelled.insert((u64::MAX - 1, born), 1);
                }
                assert_eq!(release_cancelled(inner), 100, "the end of another is not durable");
                inner.reaper.lock().cancelled.clear();
                let promised = inner.store.space().reserved - stay;
                assert!(promised < 10 * (turn as u64 + 1), "{promised}: names alone");
                assert_eq!(low_water(), low, "space is kept back for inodes that are gone");
            }
            // Space for those that stay is kept back all the same.
            (0..64).for_each(|i| v.fs().mkdir(format!("/more{i}"), 0o755).unwrap());
            commit::seal_and_commit(inner).unwrap();
            assert_eq!(low_water(), low + 4);
            checkpoint::checkpoint(inner).unwrap();
            let space = inner.store.space();
            assert_eq!((space.reserved, space.inodes), (0, 69));
            assert_eq!(low_water(), low);
        }
    }

    /// It folds the one and not the other: the block is needed.
    #[test]
    fn what_a_checkpoint_was_handed_before_the_end_gives_its_block_back_there() {
        let (v, device) = volume(256);
        let (inner, fs) = (&v.0.persist, v.fs());
        let name = |i: usize| format!("/{i:0>200}");
        // So many buckets that the fold writes some before its end.
        (0..12_000).for_each(|i| drop(fs.create(name(i)).unwrap()));
        let (volume, done) = (inner.clone(), Arc::new(AtomicBool::new(false)));
        commit::seal_and_commit(inner).unwrap();
        let called = done.clone();
        let hook = move || {
            assert!(volume.store.folded_epoch() < volume.journal.committed(), "the fold is done");
            (0..100).for_each(|i| fs.unlink(name(i)).unwrap());
            assert_eq!(super::reap(&volume, true).unwrap(), 100);
            commit::seal_and_commit(&volume).unwrap();
            let before = volume.store.space().reserved;
            assert_eq!(super::release_cancelled(&volume), 0);
            assert_eq!(volume.store.space().reserved, before);
            called.store(true, Ordering::SeqCst);
        };
        device.at_write(hook);
        checkpoint::checkpoint(inner).unwrap();
        assert!(done.load(Ordering::SeqCst));
        assert_eq!(inner.store.space().reserved, 0);
        checkpoint::checkpoint(inner).unwrap();
        assert_eq!(inner.store.space().inodes, 11_901);
    }

    /// Each has a number of its own and a block promised; none is ever written.
    #[test]
    fn files_that_live_for_a_moment_do_not_fill_a_volume() {
        let (v, _) = begun(96);
        let (fs, inner) = (v.fs(), &v.0.persist);
        let blocks = inner.store.space().total;
        let before = inner.journal.folded();
        for n in 0..blocks * 3 / 2 {
            fs.write(format!("/{n}"), b"").unwrap();
            fs.unlink(format!("/{n}")).unwrap();
            if n % 512 == 0 {
                reap(inner, true).unwrap();
                commit::seal_and_commit(inner).unwrap();
                release_cancelled(inner);
                assert!(inner.store.space().reserved < 1024 + blocks / 16, "{:?}", inner.store.space());
            }
        }
        assert_eq!(inner.journal.folded(), before, "a checkpoint was made");
    }

    /// Else it writes their inodes, and the next checkpoint frees them.
    #[test]
    fn a_round_of_the_background_folds_no_file_that_is_gone() {
        let (v, _) = begun(64);
        let (fs, inner) = (v.fs(), &v.0.persist);
        checkpoint::checkpoint(inner).unwrap();
        let before = inner.store.space();
        for i in 0..100 {
            fs.write(format!("/{i}"), b"").unwrap();
            fs.unlink(format!("/{i}")).unwrap();
        }
        // It does not wait for long, and other tests are pinned too.
        let mut reaped = 0;
        while reaped < 100 {
            reaped += reap_for_checkpoint(inner).unwrap();
        }
        checkpoint::checkpoint(inner).unwrap();
        assert_eq!(inner.store.space(), before);
    }
}
