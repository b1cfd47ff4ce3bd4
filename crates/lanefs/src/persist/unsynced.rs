//! Inodes that were written back and are not durable: their pages went to the store without a flush
//! and without a batch that recovery could find. They are clean, and yet `sync` has to make them
//! durable (SEMANTICS F2).
//!
//! 1. An inode that gets such a write is in `unsynced` from before the write until a checkpoint
//!    that began after it, or a durable write of the inode, is done. While it is there its inode is
//!    marked UNSYNCED and stays in memory.
//! 2. The value is [`UNDER_WAY`] while the write lasts (under the inode's sync_lock), then the
//!    number of that moment; a checkpoint covers the numbers below its own.
//! 3. An inode leaves the dirty queue for a writeback and enters `unsynced` in one step: who looks
//!    at both under the lock sees it in one.

use crate::memfs::Inode;
use crate::memfs::inode::UNSYNCED;
use crate::persist::Persist;
use crossbeam_epoch::Guard;
use lanefs_format::Ino;
use lanefs_sync::lock::MutexGuard;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Instant;

/// A write of the inode is under way.
const UNDER_WAY: u64 = u64::MAX;

/// Dirty inodes taken from the lanes, oldest first; and those that were written back since the last
/// checkpoint.
#[derive(Default)]
pub(crate) struct FlushQueue {
    /// Dirty inodes, and since when they are known to be.
    pub queue: VecDeque<(Instant, Ino)>,
    /// See 1 and 2.
    unsynced: BTreeMap<Ino, u64>,
    /// Writes that have ended.
    now: u64,
}

impl FlushQueue {
    /// Notes that a write of this inode begins (the caller holds its sync_lock).
    pub fn begins(&mut self, inode: &Inode) {
        debug_assert!(inode.sync_lock.is_locked(), "two writes of inode {} may be under way", inode.ino);
        self.unsynced.insert(inode.ino, UNDER_WAY);
        inode.set(UNSYNCED);
        debug_assert!(inode.has(UNSYNCED), "1: the reclaimer must not take it out of memory");
        self.check_invariants(inode.ino);
    }

    /// Notes that it ended, well or not.
    pub fn ended(&mut self, ino: Ino) {
        self.now += 1;
        let was = self.unsynced.insert(ino, self.now);
        debug_assert_eq!(was, Some(UNDER_WAY), "a write of inode {ino} ended that did not begin");
        self.check_invariants(ino);
    }

    /// Notes that a durable write of the inode is done (the caller holds its sync_lock still).
    pub fn durable(&mut self, ino: Ino) {
        self.unsynced.remove(&ino);
        self.check_invariants(ino);
    }

    /// Returns all inodes that are not durable.
    pub fn unsynced(&self) -> Vec<Ino> {
        self.unsynced.keys().copied().collect()
    }

    /// Returns how many inodes are not durable.
    pub fn written(&self) -> usize {
        self.unsynced.len()
    }

    /// Has these inodes written as if they were dirty since `since`, if they are for a shorter
    /// time.
    pub fn hasten(&mut self, inodes: &HashSet<Ino>, since: Instant) {
        for (at, _) in self.queue.iter_mut().filter(|(_, ino)| inodes.contains(ino)) {
            *at = since.min(*at);
        }
        // Those of one age in the order in which they came: nearly all are in order.
        self.queue.make_contiguous().sort_by_key(|(at, _)| *at);
        debug_assert!(self.queue.iter().is_sorted_by_key(|d| d.0), "the oldest is not first");
    }

    /// Returns the moment up to which a checkpoint that begins now covers writes.
    pub fn moment(&self) -> u64 {
        self.now
    }

    /// Checks what holds of the moments, and of an inode that was touched.
    fn check_invariants(&self, ino: Ino) {
        debug_assert!(!ino.is_none(), "no inode was written");
        debug_assert!(self.now < UNDER_WAY, "no moment is that of a write under way");
        let at = self.unsynced.get(&ino).copied();
        debug_assert!(at.is_none_or(|at| at == UNDER_WAY || at <= self.now), "2: {at:?} is to come");
        debug_assert!(at != Some(0), "a write ended before the first");
    }
}

/// Takes the next inode to write back from the queue, with its lock, among `turns` entries; what
/// others hold goes to the end, and what an fsync has written meanwhile is passed over.
pub(crate) fn next_to_write<'g>(
    persist: &Persist,
    turns: &mut usize,
    guard: &'g Guard,
) -> Option<(&'g Inode, MutexGuard<'g, ()>)> {
    let mut q = persist.flush.lock();
    while *turns > 0 {
        *turns -= 1;
        let (since, ino) = q.queue.pop_front()?;
        let Some(inode) = persist.memfs.inodes.get(ino, guard) else { continue };
        match inode.sync_lock.try_lock() {
            Some(l) => {
                // Before its marks are looked at: a change that comes later lists it again.
                inode.unlist();
                if !inode.is_to_write() {
                    continue;
                }
                q.begins(inode);
                return Some((inode, l));
            }
            None => q.queue.push_back((since, ino)),
        }
    }
    None
}

/// Notes that a checkpoint which began at `moment` is durable, and with it what was written back
/// before.
pub(crate) fn checkpoint_covers(persist: &Persist, moment: u64, guard: &Guard) {
    let mut q = persist.flush.lock();
    debug_assert!(moment <= q.now, "the checkpoint began in the future");
    q.unsynced.retain(|ino, at| {
        let stays = *at > moment;
        if !stays && let Some(inode) = persist.memfs.inodes.get(*ino, guard) {
            inode.clear(UNSYNCED);
        }
        stays
    });
}

#[cfg(test)]
mod tests {
    use super::checkpoint_covers;
    use crate::memfs::inode::UNSYNCED;
    use crate::persist::writeback;
    use crate::{MountOptions, Volume};
    use lanefs_format::Ino;
    use lanefs_store::device::{Device, MemoryDevice};
    use lanefs_store::{FormatOptions, Store};
    use std::sync::Arc;

    fn volume() -> Volume {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(32 << 20).unwrap());
        Store::format(std::slice::from_ref(&device), &FormatOptions::default()).unwrap();
        let options = MountOptions { background: false, ..MountOptions::default() };
        Volume::open_devices(vec![device], &options).unwrap()
    }

    /// A file written back, not durably, after all its inode had was made durable.
    fn written_back(v: &Volume, name: &str) -> Ino {
        let fs = v.fs();
        fs.write(name, b"1").unwrap();
        v.sync().unwrap();
        fs.write(name, b"22").unwrap();
        writeback::write_back_some(&v.0.persist, 1000).unwrap();
        fs.stat(name).unwrap().ino
    }

    fn is_marked(v: &Volume, ino: Ino) -> bool {
        v.0.persist.memfs.inodes.get(ino, &crossbeam_epoch::pin()).unwrap().has(UNSYNCED)
    }

    /// Else its inode could not leave memory, and the next sync would write what is durable.
    #[test]
    fn a_checkpoint_syncs_what_was_written_back_before() {
        let v = volume();
        let inner = &v.0.persist;
        for name in ["/a", "/b", "/c"] {
            let ino = written_back(&v, name);
            assert_eq!(inner.flush.lock().unsynced(), [ino]);
            assert!(is_marked(&v, ino));
            v.checkpoint().unwrap();
            assert_eq!(inner.flush.lock().written(), 0);
            assert!(!is_marked(&v, ino));
        }
        let ino = written_back(&v, "/d");
        v.sync().unwrap();
        assert_eq!(inner.flush.lock().written(), 0);
        assert!(!is_marked(&v, ino));
    }

    /// A file that is written back while a checkpoint is made may not be in it.
    #[test]
    fn a_checkpoint_syncs_nothing_that_came_after_it_began() {
        let v = volume();
        let inner = &v.0.persist;
        let first = written_back(&v, "/a");
        let moment = inner.flush.lock().moment();
        let ino = written_back(&v, "/b");
        checkpoint_covers(inner, moment, &crossbeam_epoch::pin());
        assert_eq!(inner.flush.lock().unsynced(), [ino]);
        assert!(is_marked(&v, ino) && !is_marked(&v, first));
        // A write under way is in no checkpoint.
        let inodes = crossbeam_epoch::pin();
        let inode = inner.memfs.inodes.get(first, &inodes).unwrap();
        let _writing = inode.sync_lock.lock();
        inner.flush.lock().begins(inode);
        let moment = inner.flush.lock().moment();
        checkpoint_covers(inner, moment, &inodes);
        assert_eq!(inner.flush.lock().unsynced(), [first]);
        assert!(is_marked(&v, first));
    }
}
