//! Evacuation: whatever lies in the segments at the end of the table is moved elsewhere, while
//! writers go on, so that the last device can become smaller or be removed.
//!
//! ```text
//! 1  space      users are refused from now on what the smaller volume does not have; ENOSPC if it is in use
//! 2  rounds     a fold by the caller, a checkpoint; then segments are withdrawn, the last ones first, as many as
//!               leave enough free ones before them; heads let go of them, chains leave them, and the cleaner empties
//!               those that are full, as much as there is space for
//! 3  aside      all are withdrawn, and a durable checkpoint has freed the last: the caller drops them (`change`)
//! ```
//!
//! 1. The maintenance lock is held for a round and let go of between two: checkpoints, folds and
//!    the cleaner of others come in between. Transactions wait for none of it but for the moments
//!    in which a checkpoint records its position.
//! 2. From the moment in which a segment is withdrawn nobody claims it (`log::withdrawal`).
//!    Whatever it holds is moved by its owner: data and buckets by the cleaner, at once;
//!    nodes of all kinds, packs, summaries and orphans by the checkpoint behind it, which the
//!    cleaner has told of them. Batches are passed by the position of a checkpoint. So after
//!    another checkpoint all of them are full, and the live blocks in them only become fewer.
//! 3. An inode whose NEW is not folded is carried over by each checkpoint, and what is carried over
//!    names its blocks, which must stay for that. Hence the fold of the caller.
//! 4. On a volume that is full all over what is free may lie in segments that go, and nothing could
//!    be moved if all were withdrawn at once. The cleaner makes space before them meanwhile.
//! 5. A round writes with the maintenance lock held, and a host without space would have it wait
//!    so, with all that waits for the lock and with the checkpoints by which removed files give
//!    their space back. So it is refused, also between two rounds, where a host has not its
//!    reserve, or those of what stays have not, beside it, what is left to be moved and a
//!    checkpoint take.
//! 6. If it does not succeed, all is as before: the segments come back to their pool and the space
//!    to users, and what was moved is where it is.

use crate::engine::Engine;
use crate::engine::maintenance::Maintenance;
use crate::error::{Result, StoreError};
use crate::log::segment::SegId;
use crate::log::space::segments_held_back;
use lanefs_format::BLOCK_SHIFT;
use lanefs_sync::lock::MutexGuard;

/// Rounds that may pass without a block less in what is to be emptied.
const PATIENCE: u32 = 8;

/// An evacuation of the segments from one on, which ends with what it holds.
pub(crate) struct Evacuation<'a> {
    engine: &'a Engine,
    /// The first segment that is to go, and how many can hold the log then.
    from: SegId,
    usable: u32,
    /// The number of devices that have segments before it.
    devices: usize,
    /// It succeeded: the segments are gone, or will be at once.
    done: bool,
}

impl Drop for Evacuation<'_> {
    /// Has all be as before, unless it succeeded (6).
    fn drop(&mut self) {
        if !self.done {
            self.engine.log.segments.take_back_withdrawn();
            self.usable = self.engine.log.segments.usable();
            self.keep_back();
            self.engine.log.space.grow(self.usable);
        }
    }
}

impl<'a> Evacuation<'a> {
    /// Does it for the segments from `from` on. `fold` makes a checkpoint that folds, if the caller
    /// can. Returns with the maintenance lock held, all segments aside, and what takes it back if
    /// the caller does not go on.
    pub fn run(
        engine: &'a Engine,
        from: SegId,
        fold: &dyn Fn() -> Result<()>,
    ) -> Result<(MutexGuard<'a, Maintenance>, Evacuation<'a>)> {
        let t = &engine.log.segments;
        let mut m = engine.maintenance.lock();
        check(engine, &m)?;
        let usable = t.usable() - (t.len() - from);
        if !engine.log.space.shrink(usable) {
            return Err(StoreError::NoSpace);
        }
        let stays = |d: &usize| t.geometry.log_segments(*d).start < from;
        let devices = (0..t.devices()).filter(stays).count().max(1);
        let all = Evacuation { engine, from, usable, devices, done: false };
        all.keep_back();
        let to_move = all.live();
        all.check_hosts()?;
        let (mut least, mut patience) = (u64::MAX, PATIENCE);
        loop {
            drop(m);
            lanefs_sync::about_to_wait();
            let folded = fold();
            // Before anything is taken back, too.
            m = engine.maintenance.lock();
            folded?;
            check(engine, &m)?;
            all.check_hosts()?;
            engine.checkpoints().in_place(&mut m)?;
            all.note_progress(to_move);
            let aside = t.withdrawn().start == from && t.withdrawn_in_use() == 0;
            // The usage table may name a summary of what only this checkpoint has emptied.
            if aside && !m.usage.has_summaries_from(from) {
                return Ok((m, all));
            }
            all.make_space(&mut m)?;
            all.withdraw_some(patience)?;
            // What could not be moved before is tried again.
            m.stuck.retain(|seg| *seg < from);
            engine.cleaner().empty_withdrawn(&mut m)?;
            all.note_progress(to_move);
            let left = all.left(&m);
            patience = if left < least { PATIENCE } else { patience - 1 };
            least = least.min(left);
            if patience == 0 {
                return Err(all.why_not(&m));
            }
        }
    }

    /// Returns an error where a host may have too little for what is left (5).
    fn check_hosts(&self) -> Result<()> {
        debug_assert!(self.devices > 0, "nothing would be left");
        let blocks = self.live() + self.engine.checkpoint_blocks(0);
        self.engine.log.io.must_have(self.devices, blocks)
    }

    /// Withdraws as many segments as leave enough free ones before them. After rounds that led to
    /// nothing fewer are enough.
    fn withdraw_some(&self, patience: u32) -> Result<()> {
        let log = &self.engine.log;
        let t = &log.segments;
        let enough = match 2 * patience > PATIENCE {
            true => t.reserved_segments() as usize + 2 * log.mlogs.len(),
            false => log.mlogs.len() + 1,
        };
        let before = t.withdrawn().start;
        let Some(from) = t.end_of_free(self.from, enough).filter(|from| *from < before) else {
            return Ok(());
        };
        debug_assert!(from >= self.from, "segment {from} stays");
        t.withdraw(from);
        log.let_go_of_slack();
        log.mlogs.iter().for_each(|l| l.close_withdrawn(t));
        self.leave_with_chains()
    }

    /// Notes that the segments go, or are gone.
    pub fn succeeded(mut self) {
        debug_assert!(!self.done, "it ends once");
        self.done = true;
    }

    /// Keeps back as many segments as the volume of this size does.
    fn keep_back(&self) {
        let log = &self.engine.log;
        debug_assert!(self.usable > 0, "nothing would be left");
        let held_back = segments_held_back(self.usable, log.mlogs.len());
        log.segments.set_reserved_segments(held_back * 3 / 5);
    }

    /// Has all logs go on in segments that stay.
    fn leave_with_chains(&self) -> Result<()> {
        let log = &self.engine.log;
        // A batch in the segment that is open, one in its successor, and one behind both.
        for _ in 0..4 {
            let inside: Vec<usize> =
                log.mlogs.iter().filter(|l| l.is_in_withdrawn(&log.segments)).map(|l| l.id).collect();
            if inside.is_empty() {
                return Ok(());
            }
            self.engine.put_marks(&inside, true)?;
            inside.iter().for_each(|id| log.mlogs[*id].leave_withdrawn(&log.segments));
        }
        debug_assert!(false, "a log stays where nobody claims a segment");
        Err(StoreError::NoSpace)
    }

    /// Cleans what stays, if there is too little free to move anything there.
    fn make_space(&self, m: &mut Maintenance) -> Result<()> {
        let (engine, t) = (self.engine, &self.engine.log.segments);
        debug_assert!(m.durable > 0, "no checkpoint was made");
        for _ in 0..16 {
            let least = t.reserved_segments() + 2 * engine.log.mlogs.len() as u32 + 2;
            if t.free_count() >= least {
                break;
            }
            let done = engine.cleaner().clean_until(m, u64::from(least) + 2, true)?;
            engine.checkpoints().in_place(m)?;
            if done.segments == 0 {
                break; // What is kept back is for this too.
            }
        }
        Ok(())
    }

    /// Returns the blocks that live in what is to go.
    fn live(&self) -> u64 {
        let t = &self.engine.log.segments;
        debug_assert!(self.from <= t.len(), "segments that go are there until then");
        (self.from..t.len()).map(|seg| u64::from(t.info(seg).live)).sum()
    }

    /// Notes how far it is, of so many blocks.
    fn note_progress(&self, to_move: u64) {
        // More may have come there meanwhile than was moved.
        let done = to_move.saturating_sub(self.live());
        self.engine.changes.note(done << BLOCK_SHIFT, to_move << BLOCK_SHIFT);
    }

    /// Returns a number that falls with each block that is moved, and each segment that is
    /// withdrawn or freed.
    fn left(&self, m: &Maintenance) -> u64 {
        let t = &self.engine.log.segments;
        debug_assert!(t.withdrawn().start >= self.from, "segments before {} are withdrawn", self.from);
        let live: u64 = t.withdrawn_full().into_iter().map(|seg| u64::from(t.info(seg).live)).sum();
        let summaries = u64::from(m.usage.has_summaries_from(self.from));
        live + summaries + u64::from(t.withdrawn_in_use()) + u64::from(t.withdrawn().start - self.from) * 1024
    }

    /// Returns why it did not get anywhere.
    fn why_not(&self, m: &Maintenance) -> StoreError {
        let t = &self.engine.log.segments;
        match t.withdrawn_full().into_iter().find(|seg| m.stuck.contains(seg)) {
            Some(seg) => StoreError::Invalid(format!(
                "segment {seg} holds blocks that cannot be moved: they cannot be read, or nobody knows whose \
                 they are; run `lanefs scrub`, and `lanefs fsck --repair` on the unmounted image"
            )),
            None => StoreError::NoSpace,
        }
    }
}

/// Returns an error if nothing may be changed.
fn check(engine: &Engine, m: &Maintenance) -> Result<()> {
    engine.log.check_writable()?;
    if m.closing { Err(StoreError::Closed) } else { Ok(()) }
}
