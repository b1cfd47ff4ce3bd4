//! An operation's time on its lane.

use crate::core::Core;
use crate::core::space;
use crate::error::{Result, posix};
use crate::memfs::dir::{Dir, Removed};
use crate::memfs::inode::{DIRTY, Inode, QUEUED};
use crate::memfs::stamps::Noted;
use crate::oplog::LaneLog;
use crate::oplog::buffer::SoleGroup;
use lanefs_format::record::Effect;
use lanefs_format::{Ino, Version};
use lanefs_sync::lanes::LaneGuard;
use std::sync::atomic::Ordering::Relaxed;

/// One namespace operation on its lane: from locking the lane's log (step 1) to unlocking it (step
/// 7). No I/O while it lives.
pub(crate) struct Op<'v> {
    pub core: &'v Core,
    pub lane: usize,
    /// The thread's lane; another than `lane` where all log to one list.
    mine: usize,
    pub log: LaneGuard<'v, LaneLog>,
}

impl<'v> Op<'v> {
    /// Begins an operation: step 1.
    pub fn begin(core: &'v Core) -> Op<'v> {
        let (mine, lane) = (core.journal.lanes.mine(), core.journal.log_lane());
        if lane >= core.journal.lanes_in_use() {
            core.journal.take_into_use(lane);
        }
        debug_assert!(lane == mine || lane == 0, "operations log to their own lane, or all to one");
        debug_assert!(lane <= usize::from(u16::MAX), "a version names lane {lane}");
        let mut log = core.journal.lanes.lock(lane);
        if log.make_space() || core.budget.is_small && log.is_time() {
            // Relaxed: a hint of the lane's own threads.
            core.journal.lanes.shared(mine).look.store(true, Relaxed);
        }
        Op { core, lane, mine, log }
    }

    /// Returns the operation's version (steps 3 and 4), above `floor`, the highest timestamp of the
    /// keys it reads or writes. Their locks are held: reading the epoch any earlier could put this
    /// operation before one it depends on.
    pub fn version(&self, floor: u64) -> Version {
        self.version_in(self.core.journal.epochs.enter(), floor)
    }

    /// Does what [`Op::version`] does, for an operation that no fsync has to make durable: nobody
    /// waits for it.
    pub fn version_unasked(&self) -> Version {
        self.version_in(self.core.journal.epochs.current(), 0)
    }

    /// Returns a version of an epoch, behind the lane's last one and above `floor`.
    fn version_in(&self, epoch: u64, floor: u64) -> Version {
        let ts = self.core.clock.now().max(self.log.last_ts + 1).max(floor + 1);
        debug_assert!(ts > self.log.last_ts && ts > floor, "{ts} is not behind what it depends on");
        debug_assert!(epoch > self.core.journal.committed(), "epoch {epoch} cannot be committed");
        Version { epoch, ts, lane: self.lane as u16 }
    }

    /// Appends the operation's group to the lane's log: step 6.
    ///
    /// Returns where it lies.
    pub fn append(&mut self, version: Version, effects: &[Effect<'_>]) -> SoleGroup {
        debug_assert!(!effects.is_empty(), "an operation without effect");
        debug_assert_eq!(usize::from(version.lane), self.lane, "a version of another lane");
        debug_assert!(version.ts > self.log.last_ts, "the lane's timestamps go back");
        debug_assert!(version.epoch > self.core.journal.committed(), "its epoch is durable without it");
        let promised = space::take_promised(self.core, self.mine);
        if promised > 0 {
            self.log.promise(version.epoch, promised);
        }
        let place = self.log.append(version, effects);
        debug_assert_eq!(self.log.last_ts, version.ts);
        SoleGroup::at(self.lane, place)
    }

    /// Notes a change of a name or of rights. `again`: they had changed in the same epoch before.
    #[inline]
    pub fn note_change(&mut self, again: bool) {
        self.log.undoes.changes += usize::from(again);
    }

    /// Notes that a name was removed.
    #[inline]
    pub fn note_removed(&mut self, removed: Removed) {
        self.note_change(removed.again);
        self.core.journal.count_names_removed(self.mine, removed.freed);
    }

    /// Takes a fresh inode number, with its generation.
    pub fn number(&mut self) -> Result<(Ino, u32)> {
        loop {
            let number = match self.core.journal.numbers.take_from_start() {
                None => self.log.numbers.take(),
                found => found,
            };
            if let Some(n) = number {
                self.check_number(n);
                return if n.0.0 < crate::memfs::table::MAX_INO { Ok(n) } else { posix(libc::ENOSPC) };
            }
            let c = self.core.journal.numbers.supply();
            self.log.numbers.refill(c);
        }
    }

    /// Checks that a number that is given out names no inode (`persist::reaper`, 4).
    fn check_number(&self, (ino, generation): (Ino, u32)) {
        let memfs = &self.core.memfs;
        debug_assert!(!ino.is_none() && generation > 0, "number {ino}, generation {generation}");
        debug_assert!(!memfs.dead.lock().contains(&ino.0), "the end of inode {ino} is not folded");
        debug_assert!(memfs.inodes.peek(ino, &crossbeam_epoch::pin()).is_none(), "inode {ino} is in memory");
    }

    /// Gives back a number that was taken and not used.
    pub fn give_back(&mut self, ino: Ino) {
        if !self.core.journal.numbers.give_back_to_bitmap(ino) {
            self.log.numbers.give_back(ino);
        }
    }

    /// Puts a directory on this lane's dirty list unless the stripe of `hash` is on some lane's.
    pub fn dirty_dir(&mut self, inode: &Inode, dir: &Dir, hash: u64) {
        debug_assert!(inode.dir().is_some_and(|d| std::ptr::eq(d, dir)), "another inode's directory");
        if dir.mark_changed(hash) {
            self.log.dirty.push(inode.ino);
        }
    }

    /// Stores that an inode changed at `now` and marks it, as
    /// [`Journal::changed`](crate::core::Journal::changed).
    pub fn changed(&mut self, inode: &Inode, now: i64) {
        match inode.stamp(self.lane, None, now, 0) {
            Noted::Yes => {}
            Noted::List => self.log.dirty.push(inode.ino),
            Noted::No => {
                inode.set_times(None, None, Some(now));
                self.dirty(inode, 0);
            }
        }
    }

    /// Puts an inode on this lane's dirty list unless it is on some lane's.
    pub fn dirty(&mut self, inode: &Inode, flags: u32) {
        if inode.set(DIRTY | QUEUED | flags) & QUEUED == 0 {
            self.log.dirty.push(inode.ino);
        }
    }
}
