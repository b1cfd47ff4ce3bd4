//! The end of inodes: when the last name is gone and nobody holds the file open (DESIGN, "Freeing an inode").
//!
//! 1. Whoever takes the last name pushes the inode on its lane's list.
//! 2. A round takes the lists and asks the epoch collector to tell when everybody who was pinned then is gone: whoever found the inode
//!    by its name has by then given it up or holds an open slot.
//! 3. The next round passes over what is held open, marks the other candidates FREED, then reads all open slots again. An opener takes
//!    its slot, then looks for FREED (both SeqCst): either it sees the mark and gives up, or the round sees the slot and takes
//!    the mark back. What is open all the time is never marked: its number never leads nowhere.
//!    A front end that hands out inode numbers may keep an inode in the same way (`Volume::keep_unnamed`).
//! 4. The others get a DEAD group. Their cells stay, marked, until that group is committed: no pending group names them then. The number
//!    answers ESTALE (`Inner::dead`) until it is folded, and only then it can be given out again.

use crate::error::Result;
use crate::memfs::cell::FREED;
use crate::op::Op;
use crate::volume::Inner;
use crossbeam_epoch::Guard;
use lanefs_store::Ino;
use lanefs_store::format::record::Effect;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};

#[derive(Default)]
pub(crate) struct Reaper {
    /// Waiting for their grace to pass.
    staged: Option<(Arc<AtomicBool>, Vec<Ino>)>,
    /// Unlinked and open.
    open: Vec<Ino>,
    /// Freed, by epoch of the DEAD group; not folded yet.
    freed: Vec<(u64, Ino)>,
    /// Those of them whose cells are in memory, because that epoch was not committed when they were looked at last.
    buried: Vec<(u64, Ino)>,
}

impl Reaper {
    /// Takes out what a fold up to `epoch` has ended.
    pub fn take_folded(&mut self, epoch: u64) -> Vec<Ino> {
        let (done, rest) = self.freed.drain(..).partition(|f| f.0 <= epoch);
        self.freed = rest;
        let done: Vec<(u64, Ino)> = done;
        done.into_iter().map(|f| f.1).collect()
    }
}

impl Inner {
    /// One round. `wait`: let the grace pass inside this call (closing, tests).
    pub(crate) fn reap(&self, wait: bool) -> Result<usize> {
        let mut r = self.reaper.lock();
        self.drop_buried(&mut r);
        let mut reaped = 0;
        loop {
            if let Some((done, _)) = &r.staged {
                let done = done.clone();
                let mut turns = 0;
                while !done.load(Acquire) {
                    crossbeam_epoch::pin().flush();
                    if !wait || turns > 20_000 {
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
            // What is held open stays on the list: another look makes sense only while something happens.
            if !wait || !fresh && last == 0 {
                return Ok(reaped);
            }
        }
    }

    /// Drops the cells of freed inodes whose end is committed: create and unlink all day would fill the memory between two checkpoints.
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
            // A link may have been added through an open handle, and a number may be on the list twice.
            let Some(c) = self.cells.get(ino, &guard).filter(|c| c.nlink.load(SeqCst) == 0) else { continue };
            if open.contains(&ino.0) || kept(ino) {
                r.open.push(ino);
            } else if c.life.fetch_or(FREED, SeqCst) & FREED == 0 {
                doomed.push(ino);
            }
        }
        let open = if doomed.is_empty() { open } else { self.open_inodes() };
        let mut n = 0;
        for ino in doomed {
            let Some(cell) = self.cells.get(ino, &guard) else { continue };
            if open.contains(&ino.0) || cell.nlink.load(SeqCst) != 0 || kept(ino) {
                cell.clear(FREED);
                if cell.nlink.load(SeqCst) == 0 {
                    r.open.push(ino);
                }
                continue;
            }
            let epoch = self.log_dead(cell, &guard);
            if let Some(d) = cell.data() {
                d.drop_all(&self.data_ctx(cell));
            }
            cell.drop_stamps();
            self.dead.lock().insert(ino);
            r.freed.push((epoch, ino));
            r.buried.push((epoch, ino));
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
        let v = op.version(0);
        cell.named_by(op.lane, v.epoch);
        op.append(v, &[Effect::Dead { ino: cell.ino, generation: cell.generation }]);
        v.epoch
    }

    /// Frees whatever can be freed before the volume closes.
    pub(crate) fn reap_for_close(&self) -> Result<()> {
        self.reap(true).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use crate::{MountOptions, Volume};
    use lanefs_store::ROOT_INO;

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
}
