//! An operation's time on its lane.

use crate::error::{Result, posix};
use crate::memfs::cell::{Cell, DATASYNC, DIRTY, FUTURE, QUEUED};
use crate::memfs::dir::Dir;
use crate::memfs::stamps::Noted;
use crate::oplog::LaneLog;
use crate::volume::Inner;
use lanefs_format::record::Effect;
use lanefs_format::{Ino, Version};
use lanefs_sync::lanes::LaneGuard;
use lanefs_sync::{Canary, planted};
use std::sync::atomic::Ordering::Relaxed;

/// One namespace operation on its lane: from locking the lane's log (step 1) to unlocking it (step
/// 7). No I/O while it lives.
pub(crate) struct Op<'v> {
    pub vol: &'v Inner,
    pub lane: usize,
    /// The thread's lane; another than `lane` where all log to one list.
    mine: usize,
    pub log: LaneGuard<'v, LaneLog>,
}

impl<'v> Op<'v> {
    /// Step 1.
    pub fn begin(vol: &'v Inner) -> Op<'v> {
        let (mine, lane) = (vol.lanes.mine(), vol.log_lane());
        if lane >= vol.lanes_in_use() {
            vol.take_into_use(lane);
        }
        let mut log = vol.lanes.lock(lane);
        if log.make_room() || vol.is_small && log.is_time() {
            vol.lanes.shared(mine).look.store(true, Relaxed);
        }
        Op { vol, lane, mine, log }
    }

    /// Steps 3 and 4: the operation's version, above `floor`, the highest timestamp of the keys it
    /// reads or writes. Their locks are held: reading the epoch any earlier could put this
    /// operation before one it depends on.
    pub fn version(&self, floor: u64) -> Version {
        self.version_in(self.vol.epochs.enter(), floor)
    }

    /// As [`Op::version`], for an operation that no fsync has to make durable: nobody waits for it.
    pub fn version_unasked(&self) -> Version {
        self.version_in(self.vol.epochs.current(), 0)
    }

    fn version_in(&self, epoch: u64, floor: u64) -> Version {
        if planted(Canary::ClockAlone) {
            return Version { epoch, ts: self.vol.clock.now(), lane: self.lane as u16 };
        }
        let ts = self.vol.clock.now().max(self.log.last_ts + 1).max(floor + 1);
        Version { epoch, ts, lane: self.lane as u16 }
    }

    /// Step 6, the append.
    pub fn append(&mut self, version: Version, effects: &[Effect<'_>]) {
        let promised = self.vol.take_promised(self.mine);
        if promised > 0 {
            self.log.promise(version.epoch, promised);
        }
        self.log.append(version, effects);
    }

    /// A fresh inode number.
    pub fn number(&mut self) -> Result<(Ino, u32)> {
        loop {
            let number = match self.vol.numbers.take_from_start() {
                None => self.log.numbers.take(),
                found => found,
            };
            if let Some(n) = number {
                return if n.0.0 < crate::memfs::table::MAX_INO { Ok(n) } else { posix(libc::ENOSPC) };
            }
            let c = self.vol.numbers.supply();
            self.log.numbers.refill(c);
        }
    }

    /// Gives back a number that was taken and not used.
    pub fn give_back(&mut self, ino: Ino) {
        if !self.vol.numbers.give_back_to_bitmap(ino) {
            self.log.numbers.give_back(ino);
        }
    }

    /// Puts a directory on this lane's dirty list unless the stripe of `hash` is on some lane's.
    pub fn dirty_dir(&mut self, cell: &Cell, dir: &Dir, hash: u64) {
        if dir.mark_changed(hash) {
            self.log.dirty.push(cell.ino);
        }
    }

    /// Stores that a cell changed at `now` and marks it, as [`Inner::changed`].
    pub fn changed(&mut self, cell: &Cell, now: i64) {
        match cell.stamp(self.lane, None, now, 0) {
            Noted::Yes => {}
            Noted::List => self.log.dirty.push(cell.ino),
            Noted::No => {
                cell.set_times(None, None, Some(now));
                self.dirty(cell, 0);
            }
        }
    }

    /// Puts a cell on this lane's dirty list unless it is on some lane's.
    pub fn dirty(&mut self, cell: &Cell, flags: u32) {
        if cell.set(DIRTY | QUEUED | flags) & QUEUED == 0 {
            self.log.dirty.push(cell.ino);
        }
    }
}

impl Inner {
    /// Stores that a cell changed at `now`, with the mtime if its content did, and marks it with
    /// `flags` and as dirty: in the lane's slot, or in the cell where the lane is the inode's home.
    pub(crate) fn changed(&self, cell: &Cell, content: bool, now: i64, flags: u32) {
        if !content && flags & DATASYNC != 0 {
            // fdatasync looks at the cell and at the slots of the content.
            self.dirty_cell(cell, DATASYNC);
        }
        let (lane, mtime) = (self.lanes.mine(), content.then_some(now));
        if cell.is_stamped(lane, mtime, now, flags) {
            return;
        }
        if cell.is_striped(lane, content) {
            // Under the lane's lock: see `memfs::stamps`, 3.
            let mut log = self.lanes.lock(lane);
            match cell.stamp(lane, mtime, now, flags) {
                Noted::Yes => return,
                Noted::List => return log.dirty.push(cell.ino),
                Noted::No => {}
            }
        }
        cell.set_times(None, mtime, Some(now));
        if content {
            cell.clear_if_set(FUTURE);
        }
        self.dirty_cell(cell, flags);
    }
}
