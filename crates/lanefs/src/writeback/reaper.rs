//! The end of inodes: when the last name is gone and nobody holds the file open (DESIGN, "Freeing
//! an inode").
//!
//! 1. Whoever takes the last name pushes the inode on its lane's list.
//! 2. A round takes the lists and asks the epoch collector to tell when everybody who was pinned
//!    then is gone: whoever found the inode by its name has by then given it up or holds an open
//!    slot.
//! 3. The next round passes over what is held open, marks the other candidates FREED, then reads
//!    all open slots again. An opener takes its slot, then looks for FREED (both SeqCst): either it
//!    sees the mark and gives up, or the round sees the slot and takes the mark back. What is open
//!    all the time is never marked: its number never leads nowhere. What is being written back
//!    waits for the next round; what has ended is written back no more ([`ENDED`]), whoever has it
//!    on a list. A front end that hands out inode numbers may keep an inode in the same way
//!    (`Volume::keep_unnamed`).
//! 4. The others get a DEAD group. Their cells stay, marked, until that group is committed: no
//!    pending group names them then. The number answers ESTALE (`Inner::dead`) until it is folded,
//!    and only then it can be given out again.
//! 5. An inode that was made and ended since the last fold never gets a block: when its DEAD is
//!    committed, every fold to come meets both groups. The block that was promised at its making
//!    goes back then, not at the checkpoint: files that live for a moment would fill a small volume
//!    with promises.

use crate::error::Result;
use crate::memfs::cell::{ENDED, FREED};
use crate::op::Op;
use crate::volume::Inner;
use crossbeam_epoch::Guard;
use lanefs_format::Ino;
use lanefs_format::record::Effect;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};

#[derive(Default)]
pub(crate) struct Reaper {
    /// Waiting for their grace to pass.
    staged: Option<(Arc<AtomicBool>, Vec<Ino>)>,
    /// Unlinked and open.
    open: Vec<Ino>,
    /// Freed, by epoch of the DEAD group; not folded yet.
    freed: Vec<(u64, Ino)>,
    /// Those of them whose cells are in memory, because that epoch was not committed when they were
    /// looked at last.
    buried: Vec<(u64, Ino)>,
    /// Of inodes that ended before they were folded, by epoch of the DEAD group and of the group
    /// that made them: how many. Their blocks are promised still.
    cancelled: BTreeMap<(u64, u64), u64>,
    /// Blocks of the inodes in `freed`, about.
    blocks: u64,
    /// When a checkpoint was last made for who asked how much is free, and how long it took.
    asked: Option<(Instant, Duration)>,
}

/// Blocks that are worth a checkpoint when somebody asks how much is free: 1 MiB.
const WORTH: u64 = 256;

impl Reaper {
    /// Takes out what a fold up to `epoch` has ended.
    pub fn take_folded(&mut self, epoch: u64) -> Vec<Ino> {
        let (done, rest) = self.freed.drain(..).partition(|f| f.0 <= epoch);
        self.freed = rest;
        if self.freed.is_empty() {
            self.blocks = 0;
        }
        let done: Vec<(u64, Ino)> = done;
        done.into_iter().map(|f| f.1).collect()
    }

    /// Whether the next round finds the grace passed of what the last one took.
    #[cfg(test)]
    pub fn is_due(&self) -> bool {
        self.staged.as_ref().is_some_and(|s| s.0.load(Acquire))
    }

    /// Notes an inode made in epoch `born` that ended in `epoch`.
    fn note_unmade(&mut self, epoch: u64, born: u64) {
        *self.cancelled.entry((epoch, born)).or_default() += 1;
    }
}

impl Inner {
    /// One round. `wait`: let the grace pass inside this call, and go on as long as more comes
    /// (closing, tests, a volume that is full).
    pub(crate) fn reap(&self, wait: bool) -> Result<usize> {
        if wait { self.reap_rounds(20_000, usize::MAX) } else { self.reap_rounds(0, 1) }
    }

    /// What a checkpoint should not write: files that ended by now, but for their grace. Waits for
    /// that some milliseconds at most.
    pub(crate) fn reap_for_checkpoint(&self) -> Result<usize> {
        self.reap_rounds(150, 2)
    }

    /// Up to `rounds` rounds, each of which looks `patience` times whether the grace has passed: a
    /// hundred times at once, then every 50 us.
    fn reap_rounds(&self, patience: usize, mut rounds: usize) -> Result<usize> {
        let mut r = self.reaper.lock();
        self.drop_buried(&mut r);
        self.give_back_of(&mut r);
        let mut reaped = 0;
        loop {
            if let Some((done, _)) = &r.staged {
                let done = done.clone();
                let mut turns = 0;
                while !done.load(Acquire) {
                    crossbeam_epoch::pin().flush();
                    if turns >= patience {
                        return Ok(reaped);
                    }
                    turns += 1;
                    if turns > 100 {
                        lanefs_sync::schedule::sleep(std::time::Duration::from_micros(50));
                    }
                }
            }
            let mut last = 0;
            if let Some((_, list)) = r.staged.take() {
                last = self.reap_list(&mut r, list)?;
                reaped += last;
            }
            let mut list = std::mem::take(&mut r.open);
            let open_only = list.len();
            for lane in 0..self.lanes.len() {
                list.extend(std::mem::take(&mut self.lanes.lock(lane).orphans).into_iter().map(|o| o.1));
            }
            if list.is_empty() {
                return Ok(reaped);
            }
            let fresh = list.len() > open_only;
            let done = Arc::new(AtomicBool::new(false));
            let signal = done.clone();
            let guard = crossbeam_epoch::pin();
            guard.defer(move || signal.store(true, Release));
            guard.flush();
            drop(guard);
            r.staged = Some((done, list));
            // What is held open stays on the list: another look makes sense only while something
            // happens.
            if patience == 0 || rounds == 0 || !fresh && last == 0 {
                return Ok(reaped);
            }
            rounds -= 1;
        }
    }

    /// Drops the cells of freed inodes whose end is committed: create and unlink all day would fill
    /// the memory between two checkpoints.
    pub(super) fn drop_buried(&self, r: &mut Reaper) {
        let committed = self.committed();
        let guard = crossbeam_epoch::pin();
        r.buried.retain(|&(epoch, ino)| {
            if epoch > committed {
                return true;
            }
            if let Some(cell) = self.cells.get(ino, &guard).filter(|c| c.has(FREED)) {
                self.cells.remove(cell, &guard);
                self.count_cells(-1);
            }
            false
        });
        // As many as were removed at once need not come again.
        r.buried.shrink_to(r.buried.len() * 2);
    }

    /// Gives back the blocks promised to inodes that no fold will meet alive (5), and says how
    /// many. The caller does not hold `commit`.
    pub(crate) fn release_cancelled(&self) -> u64 {
        self.give_back_of(&mut self.reaper.lock())
    }

    fn give_back_of(&self, r: &mut Reaper) -> u64 {
        let rest = r.cancelled.split_off(&(self.committed() + 1, 0));
        let ended = std::mem::replace(&mut r.cancelled, rest);
        if ended.is_empty() {
            return 0;
        }
        let mut backlog = self.commit.lock();
        let mut back = 0;
        for ((epoch, born), n) in ended {
            let n = backlog.unpromise(born, n, self.store.folded_epoch());
            back += n;
            // What an epoch both made and ended was absorbed: it was never owed.
            if n > 0 && epoch > born {
                self.store.cancel_unfolded(born, n);
            }
        }
        drop(backlog);
        if back > 0 {
            self.store.unreserve_nodes(self.lanes.mine(), back);
        }
        back
    }

    /// Every inode some handle holds open.
    fn open_inodes(&self) -> HashSet<u64> {
        let mut open = HashSet::new();
        for lane in 0..self.lanes.len() {
            self.lanes.shared(lane).slots.collect(&mut open);
        }
        open
    }

    fn reap_list(&self, r: &mut Reaper, list: Vec<Ino>) -> Result<usize> {
        let guard = crossbeam_epoch::pin();
        let keeper = self.keeper.lock();
        let kept = |ino: Ino| keeper.as_ref().is_some_and(|keeps| keeps(ino));
        let open = self.open_inodes();
        let mut doomed: Vec<Ino> = Vec::with_capacity(list.len());
        for ino in list {
            // A link may have been added through an open handle, and a number may be on the list
            // twice.
            let Some(c) = self.cells.get(ino, &guard).filter(|c| c.nlink.load(SeqCst) == 0) else { continue };
            if open.contains(&ino.0) || kept(ino) {
                r.open.push(ino);
            } else if c.life.fetch_or(FREED, SeqCst) & FREED == 0 {
                doomed.push(ino);
            }
        }
        let open = if doomed.is_empty() { open } else { self.open_inodes() };
        let folded = self.folded();
        let mut n = 0;
        for ino in doomed {
            let Some(cell) = self.cells.get(ino, &guard) else { continue };
            // Who is writing it back may have captured it before: an update behind the fold of its
            // end would bring its number to life again.
            let not_written = cell.sync_lock.try_lock();
            if open.contains(&ino.0) || cell.nlink.load(SeqCst) != 0 || kept(ino) || not_written.is_none() {
                cell.clear(FREED);
                if cell.nlink.load(SeqCst) == 0 {
                    r.open.push(ino);
                }
                continue;
            }
            let epoch = self.log_dead(cell, &guard);
            cell.set(ENDED);
            drop(not_written);
            r.blocks += cell.stat().blocks / 8;
            if let Some(d) = cell.data() {
                d.drop_all(&self.data_ctx(cell));
            }
            cell.drop_stamps();
            self.dead.lock().insert(ino);
            r.freed.push((epoch, ino));
            r.buried.push((epoch, ino));
            if cell.born > folded {
                r.note_unmade(epoch, cell.born);
            }
            n += 1;
        }
        // A file that got and lost names while it was open is on the list more than once.
        r.open.sort_unstable();
        r.open.dedup();
        Ok(n)
    }

    fn log_dead(&self, cell: &crate::memfs::Cell, _guard: &Guard) -> u64 {
        let mut op = Op::begin(self);
        cell.named_by(op.lane, 0);
        // Whoever asks for durability asks for names: the end of a file that has none is nobody's
        // concern.
        let v = op.version_unasked();
        cell.named_by(op.lane, v.epoch);
        op.append(v, &[Effect::Dead { ino: cell.ino, generation: cell.generation }]);
        v.epoch
    }

    /// Frees what was removed, for who asks how much is free: else its blocks are in use until the
    /// next checkpoint, half a minute perhaps. So that whoever asks all the time does not hold up
    /// others, one tenth of the time goes into this at most.
    pub(crate) fn free_removed(&self) -> Result<()> {
        if self.writable().is_err() {
            return Ok(());
        }
        self.reap_for_checkpoint()?;
        if !self.reaper.lock().open.is_empty() {
            // A front end may be about to learn that nobody knows them any more.
            lanefs_sync::schedule::sleep(Duration::from_millis(4));
            self.reap_for_checkpoint()?;
        }
        let due = {
            let r = self.reaper.lock();
            r.blocks >= WORTH && r.asked.is_none_or(|(at, took)| at.elapsed() >= took * 9)
        };
        if due {
            let began = Instant::now();
            self.checkpoint()?;
            self.reaper.lock().asked = Some((Instant::now(), began.elapsed()));
        }
        Ok(())
    }

    /// Frees whatever can be freed before the volume closes.
    pub(crate) fn reap_for_close(&self) -> Result<()> {
        self.reap(true).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writeback::testing::volume;
    use crate::{MountOptions, Volume};
    use lanefs_format::ROOT_INO;

    #[test]
    fn what_was_removed_leaves_memory_at_the_commit_and_its_number_answers_estale() {
        let options = MountOptions { background: false, ..MountOptions::default() };
        let device: std::sync::Arc<dyn lanefs_store::device::Device> =
            std::sync::Arc::new(lanefs_store::device::MemoryDevice::new(64 << 20).unwrap());
        lanefs_store::Store::format(std::slice::from_ref(&device), &lanefs_store::FormatOptions::default())
            .unwrap();
        let v = Volume::open_devices(vec![device], &options).unwrap();
        let (fs, inner) = (v.fs(), &v.0.inner);
        fs.stat("/").unwrap();
        let before = inner.cells_in_memory();
        let mut numbers = Vec::new();
        for turn in 0..3 {
            for i in 0..100 {
                let name = format!("/{turn}-{i}");
                fs.write(&*name, b"").unwrap();
                numbers.push(fs.stat(&*name).unwrap().ino);
                fs.unlink(&*name).unwrap();
            }
            assert_eq!(inner.cells_in_memory(), before + 100);
            inner.reap(true).unwrap();
            inner.seal_and_commit().unwrap();
            inner.reap(false).unwrap();
            assert_eq!(
                inner.cells_in_memory(),
                before,
                "no checkpoint has been made, but the epoch is committed"
            );
            for ino in &numbers {
                assert_eq!(v.node_stat(*ino).unwrap_err().errno(), libc::ESTALE);
            }
            // The numbers may come again from here on.
            inner.checkpoint().unwrap();
            numbers.clear();
        }
        assert!(v.node_stat(ROOT_INO).is_ok());
    }

    /// A volume, and the blocks promised before anything is made in it: one for names, which stays
    /// promised.
    fn begun(mib: u64) -> (Volume, u64) {
        let (v, _) = volume(mib);
        v.fs().write("/first", b"").unwrap();
        let reserved = v.0.inner.store.space().reserved;
        (v, reserved)
    }

    /// Makes a hundred files beside one that stays, in one epoch, and removes them, in the same or
    /// in the next.
    fn come_and_go(v: &Volume, turn: usize, same_epoch: bool) {
        let (fs, inner) = (v.fs(), &v.0.inner);
        for i in 0..=100 {
            fs.write(format!("/{turn}-{i}"), b"").unwrap();
        }
        if !same_epoch {
            inner.seal_and_commit().unwrap();
        }
        (0..100).for_each(|i| fs.unlink(format!("/{turn}-{i}")).unwrap());
        inner.reap(true).unwrap();
    }

    #[test]
    fn what_is_made_and_removed_before_a_checkpoint_gives_its_block_back_at_the_commit() {
        for same_epoch in [true, false] {
            let (v, before) = begun(64);
            let inner = &v.0.inner;
            let low_water = || inner.store.pressure().low_water;
            let low = low_water();
            for turn in 0..3 {
                come_and_go(&v, turn, same_epoch);
                let stay = before + turn as u64 + 1;
                let promised = inner.store.space().reserved - stay;
                assert!((100..110).contains(&promised), "{promised}: their end is not durable");
                inner.seal_and_commit().unwrap();
                if turn == 0 {
                    let born = inner.reaper.lock().cancelled.keys().next().unwrap().1;
                    inner.reaper.lock().note_unmade(u64::MAX - 1, born);
                }
                assert_eq!(inner.release_cancelled(), 100, "the end of another is not durable");
                inner.reaper.lock().cancelled.clear();
                let promised = inner.store.space().reserved - stay;
                assert!(promised < 10 * (turn as u64 + 1), "{promised}: names alone");
                assert_eq!(low_water(), low, "room is kept back for inodes that are gone");
            }
            // Room for those that stay is kept back all the same.
            (0..64).for_each(|i| drop(v.fs().create(format!("/more{i}")).unwrap()));
            inner.seal_and_commit().unwrap();
            assert_eq!(low_water(), low + 4);
            inner.checkpoint().unwrap();
            let space = inner.store.space();
            assert_eq!((space.reserved, space.inodes), (0, 69));
            assert_eq!(low_water(), low);
        }
    }

    /// It folds the one and not the other: the block is needed.
    #[test]
    fn what_a_checkpoint_was_handed_before_the_end_gives_its_block_back_there() {
        let (v, device) = volume(256);
        let (inner, fs) = (&v.0.inner, v.fs());
        let name = |i: usize| format!("/{i:0>200}");
        // So many buckets that the fold writes some before its end.
        (0..12_000).for_each(|i| drop(fs.create(name(i)).unwrap()));
        let (volume, done) = (inner.clone(), Arc::new(AtomicBool::new(false)));
        inner.seal_and_commit().unwrap();
        let called = done.clone();
        let hook = move || {
            assert!(volume.store.folded_epoch() < volume.committed(), "the fold is done");
            (0..100).for_each(|i| fs.unlink(name(i)).unwrap());
            assert_eq!(volume.reap(true).unwrap(), 100);
            volume.seal_and_commit().unwrap();
            let before = volume.store.space().reserved;
            assert_eq!(volume.release_cancelled(), 0);
            assert_eq!(volume.store.space().reserved, before);
            called.store(true, SeqCst);
        };
        device.at_write(hook);
        inner.checkpoint().unwrap();
        assert!(done.load(SeqCst));
        assert_eq!(inner.store.space().reserved, 0);
        inner.checkpoint().unwrap();
        assert_eq!(inner.store.space().inodes, 11_901);
    }

    /// Each has a number of its own and a block promised; none is ever written.
    #[test]
    fn files_that_live_for_a_moment_do_not_fill_a_volume() {
        let (v, _) = begun(96);
        let (fs, inner) = (v.fs(), &v.0.inner);
        let blocks = inner.store.space().total;
        let before = inner.folded();
        for n in 0..blocks * 3 / 2 {
            fs.write(format!("/{n}"), b"").unwrap();
            fs.unlink(format!("/{n}")).unwrap();
            if n % 512 == 0 {
                inner.reap(true).unwrap();
                inner.seal_and_commit().unwrap();
                inner.release_cancelled();
                assert!(inner.store.space().reserved < 1024 + blocks / 16, "{:?}", inner.store.space());
            }
        }
        assert_eq!(inner.folded(), before, "a checkpoint was made");
    }

    /// Else it writes their inodes, and the next checkpoint frees them.
    #[test]
    fn a_round_of_the_background_folds_no_file_that_is_gone() {
        let (v, _) = begun(64);
        let (fs, inner) = (v.fs(), &v.0.inner);
        inner.checkpoint().unwrap();
        let before = inner.store.space();
        for i in 0..100 {
            fs.write(format!("/{i}"), b"").unwrap();
            fs.unlink(format!("/{i}")).unwrap();
        }
        // It does not wait for long, and other tests are pinned too.
        let mut reaped = 0;
        while reaped < 100 {
            reaped += inner.reap_for_checkpoint().unwrap();
        }
        inner.checkpoint().unwrap();
        assert_eq!(inner.store.space(), before);
    }
}
