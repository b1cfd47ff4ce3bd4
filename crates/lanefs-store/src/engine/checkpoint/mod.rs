//! Checkpoints: a new tree on disk and a slot that names it.
//!
//! ```text
//! 1  position   number += 1, positions P of all mlogs, by the RPS writer: every transaction is before or behind P;
//!               the lists of what was dirtied before P
//! 2  seal       the layer above seals and commits its epoch and hands over what to fold (or nothing: see below)
//! 3  fold       records become directory buckets, link counts, inodes
//! 4  capture    every inode dirtied before P is written out, each under its own lock, with its version
//! 5  tables     inode table, orphan list, summaries, usage table
//! 6  wait       for all writes that began before now: captured maps refer to them
//! 7  flush, slot, flush                       <- the commit point
//! 8  free       segments and chain segments that nothing needs any more
//! 9  twin       the same slot once more, in the other place (see `slots`)
//! ```
//!
//! 1. Every batch before P is in the tree or folded or carried over: P is where recovery starts.
//! 2. An inode captured after P holds updates behind P too; its version shows recovery which. One
//!    that is dirtied behind P and neither before P nor by the fold is left to the next checkpoint:
//!    its batches lie behind P. So a call on it shares nothing with the checkpoint.
//! 3. Marks in the usage table are those of the captured tree: an inode's births and deaths of data
//!    blocks are applied when it is captured, no sooner.
//! 4. A checkpoint without a fold (the store makes one to free segments), or with one of what was
//!    committed before P, must not forget what is durable only in batches before P and not folded:
//!    it writes these groups, commits and inode updates again, behind P, before the slot (`carry`).
//! 5. A checkpoint that fails for lack of space, or because something cannot be read, leaves the
//!    last slot in force and can be repeated. Work leaves its list (inodes, leaves of the tables,
//!    summaries) one piece at a time, when it is done and nothing can fail any more; what is left
//!    on a list after an error is what the next checkpoint has to do. If it failed before the fold,
//!    its caller hands over again what it was to fold. Behind the fold that stays folded in memory,
//!    and the next checkpoint of any kind has that in its slot ([`crate::Store::folded_epoch`]):
//!    folded once more, together with later epochs, changes that take each other back would be left
//!    out. An error within the fold is sticky, as is one of a write or a flush.
//! 6. Behind the P of a clean slot nothing is looked for. So the P of a close is the last: the RPS
//!    writer that records it marks it so, and a transaction or a commit that enters later finds
//!    that in its section and is refused, though it was let in before. (What is carried over goes
//!    behind P too; then the slot is not clean.) Recovery's own clean slot needs no such word:
//!    nobody else has the store.

mod capture;
mod carry;
mod needs;
mod packs;
mod slots;

use self::carry::Waiting;
use crate::api::{CheckpointDone, FoldInput};
use crate::engine::cleaner::Cleaner;
use crate::engine::commits::Unfolded;
use crate::engine::fold::Fold;
use crate::engine::maintenance::Maintenance;
use crate::engine::plan::{Plan, plan};
use crate::engine::sink::Sink;
use crate::engine::totals::Totals;
use crate::error::{Result, StoreError};
use crate::inodes::Inodes;
use crate::log::Log;
use crate::log::discard::DISCARDS;
use crate::log::heat::Heat;
use crate::log::mlog::Mlog;
use crate::tree::block_io::{BlockSink, Owner};
use capture::Capture;
use lanefs_format::orphans::{self, ORPHANS_PER_BLOCK};
use lanefs_format::record::groups_above;
use lanefs_format::slot::{Position, Root, Slot};
use lanefs_format::superblock::Superblock;
use lanefs_format::{BlockRef, Ino};
use lanefs_sync::lock::Mutex;
use needs::Needs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// What step 1 records.
struct At {
    positions: Vec<Position>,
    /// Blocks appended to each log so far.
    appended: Vec<u64>,
    /// The checkpoint's number.
    number: u64,
    /// Segments whose summaries this checkpoint will have written: see `SegmentTable::claimed`.
    claimed: u32,
}

/// The tree that steps 3 to 5 made.
struct Built {
    table: Root,
    usage: Root,
    orphans: BlockRef,
    /// Something is durable and still only in batches.
    carried: bool,
}

/// Where what a checkpoint folds ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Seal {
    /// The epoch ends behind the position: all that was done before it is folded.
    Behind,
    /// The epoch had ended before, or nothing is folded: what lies between is carried over (4).
    Before,
    /// Nobody looks behind the position (6).
    Last,
}

/// Makes checkpoints: has all parts of the engine but its locks.
#[derive(Clone, Copy)]
pub(crate) struct Checkpoints<'a> {
    pub log: &'a Log,
    pub inodes: &'a Inodes,
    pub totals: &'a Totals,
    pub unfolded: &'a Unfolded,
    pub superblock: &'a Mutex<Arc<Superblock>>,
    /// See [`crate::engine::Engine`].
    pub dirty_floor: &'a AtomicUsize,
}

impl Checkpoints<'_> {
    /// Makes a checkpoint. Without `seal` nothing is folded.
    pub fn run(
        &self,
        m: &mut Maintenance,
        seal: Option<impl FnOnce() -> Result<FoldInput>>,
        kind: Seal,
    ) -> Result<CheckpointDone> {
        let (folds, begun) = (seal.is_some(), Instant::now());
        let r = self.attempt(m, seal, kind);
        self.totals.checkpoints.count(folds, r.is_ok(), begun.elapsed());
        // What could not be written out, or was not for an error: for the next one (5).
        m.waited = m.waiting.len();
        if r.is_ok() {
            // Relaxed: a hint for who finds no space, and for `watch_metadata`.
            self.dirty_floor.store(m.waited, Ordering::Relaxed);
            let left = match self.log.space.has_dirty_nodes() {
                true => m.waiting.iter().map(|c| c.lock().nodes_counted).sum(),
                false => 0,
            };
            self.log.space.leave_dirty_nodes(left);
            let Waiting { folded, carried } = match self.log.segments.is_small() {
                true => Waiting::default(),
                false => Waiting::of(&m.waiting, self.inodes.packed),
            };
            self.unfolded.waiting.store(folded * self.log.metadata_copies() + carried, Ordering::Relaxed);
            self.unfolded.reserve_space(self.log);
        }
        m.check_invariants();
        let left = [std::mem::take(&mut m.changed), std::mem::take(&mut m.waiting)].concat();
        self.inodes.cache.list_again(&left);
        r
    }

    fn attempt(
        &self,
        m: &mut Maintenance,
        seal: Option<impl FnOnce() -> Result<FoldInput>>,
        kind: Seal,
    ) -> Result<CheckpointDone> {
        let clean = kind == Seal::Last;
        self.log.io.check()?;
        if m.closing && !clean {
            return Err(StoreError::Closed); // It waited for the lock while the store was closed.
        }
        self.cleaner().heal(m);
        // 1. Position.
        let mut at = self.record_position(m);
        // 2. Seal.
        let folding = seal.is_some();
        let input = match seal {
            Some(seal) => seal()?,
            None => FoldInput { epoch: self.totals.folded.load(Ordering::Relaxed), groups: Vec::new() },
        };
        // Relaxed: written under the maintenance lock, which this thread holds.
        let folded = self.totals.folded.load(Ordering::Relaxed);
        if input.epoch < folded {
            let why = format!("fold of epoch {} after {folded}", input.epoch);
            return Err(StoreError::Invalid(why));
        }
        let plan = plan(input.groups.iter().map(|g| &g[..]), self.log.threads())?;
        let mut late = kind == Seal::Before;
        let needs = Needs::default();
        if folding && m.durable > 0 && self.is_short_of_space(m, &plan, &needs) {
            // Folding halfway would be worse than folding late: free space first. The position is
            // then later than the seal, and what lies between is carried over (4).
            self.clean_up_for(m, &plan, &needs)?;
            at = self.record_position(m);
            late = true;
        }
        if clean {
            // Nobody will look behind P, and nothing gets there (6).
            m.changed.append(&mut self.inodes.cache.take_dirty());
        }
        let mut dirty = std::mem::take(&mut m.usage.dirty);
        let mut sink = Sink::new(self.log, self.totals, &mut dirty);
        let plan = folding.then_some(plan);
        let tree = self.build_tree(m, plan, input.epoch, late, &mut sink);
        m.ended += sink.take_ended();
        m.usage.dirty.append(&mut dirty);
        let built = match tree {
            Ok(built) => built,
            Err(e) => return self.leave_readable(m).and(Err(e)),
        };
        let carried = built.carried;
        // 6. Wait.
        self.log.io.write_queue()?;
        self.log.sections.drain(|| ());
        self.log.io.flush(self.log.io.all())?;
        self.carried_is_durable(m);
        // 7. The slot. What was carried has to be found again.
        let At { positions, appended, number, claimed } = at;
        let slot = self.slot(m, input.epoch, built, clean && !carried, positions);
        self.put_slot(m, slot)?;
        debug_assert!(number > m.durable, "position {number} after {}", m.durable);
        m.durable = number;
        self.after_checkpoint(m, number, &appended, claimed);
        let freed = std::mem::take(&mut m.freed);
        self.put_twin(m)?;
        Ok(CheckpointDone { epoch: input.epoch, freed, orphans: m.orphans.len() as u64 })
    }

    /// Leaves a tree that was not finished as memory can go on with it.
    fn leave_readable(&self, m: &mut Maintenance) -> Result<()> {
        // What memory refers to must be on the device before it is read.
        self.log.io.write_queue()?;
        // What was carried over stays in the log. Unless it is known to be durable, nothing behind
        // it ever is. It names data whose writes may be under way.
        if !m.carried.is_empty() {
            self.log.sections.drain(|| ());
            self.log.io.flush(self.log.io.all())?;
            self.carried_is_durable(m);
        }
        Ok(())
    }

    /// Returns the slot that names what was built.
    fn slot(
        &self,
        m: &Maintenance,
        folded_epoch: u64,
        Built { table, usage, orphans, .. }: Built,
        clean: bool,
        positions: Vec<Position>,
    ) -> Slot {
        debug_assert_eq!(positions.len(), self.log.mlogs.len(), "a log begins nowhere");
        debug_assert!(!table.r.is_none() || table.level == 0, "an inode table without a root");
        // Relaxed, what is loaded here: checkpoints alone change it, or whoever was drained.
        Slot {
            generation: m.slot.generation + 1,
            mount: self.log.mount.load(Ordering::Relaxed),
            volume: self.log.volume,
            folded_epoch,
            last_ts: self.totals.last_ts.load(Ordering::Relaxed),
            next_chunk: self.totals.next_chunk.load(Ordering::Relaxed),
            next_seq: self.log.next_seq.load(Ordering::Relaxed),
            inodes: self.totals.inodes(),
            live_blocks: self.log.segments.in_tree(),
            unwritten: self.totals.unwritten(),
            table,
            usage,
            orphans,
            clean,
            positions,
        }
    }

    /// Does step 1.
    fn record_position(&self, m: &mut Maintenance) -> At {
        let at = {
            let _writer = self.log.sections.rps.write();
            // Relaxed: readers are ordered by the RPS, here and below. Set again if a close is
            // repeated.
            self.log.sections.closing.store(m.closing, Ordering::Relaxed);
            let positions: Vec<_> = self.log.mlogs.iter().map(|l| l.position(&self.log.segments)).collect();
            debug_assert!(
                positions.iter().all(|p| p.segment.is_none() == (p.used == 0)),
                "a log begins in no segment, or at its link: {positions:?}"
            );
            At {
                positions,
                appended: self.log.mlogs.iter().map(Mlog::appended).collect(),
                number: self.log.checkpoint_number.fetch_add(1, Ordering::Relaxed) + 1,
                claimed: self.log.segments.claimed(),
            }
        };
        // A transaction lists its inodes inside the section: those before P are here.
        m.changed.append(&mut self.inodes.cache.take_dirty());
        debug_assert!(at.number > m.durable, "the position {} was recorded before", at.number);
        at
    }

    /// Checkpoints in place and cleans until there is space for a fold, or nothing more to be had.
    fn clean_up_for(&self, m: &mut Maintenance, plan: &Plan<'_>, needs: &Needs) -> Result<()> {
        match self.in_place(m) {
            // What waits is too much to be carried: the fold gives space, and nothing else does.
            Err(StoreError::NoSpace) if self.unfolded.waits_long(&self.log.segments) => return Ok(()),
            done => done?,
        }
        for _ in 0..16 {
            if !self.is_short_of_space(m, plan, needs) {
                break;
            }
            let target = u64::from(self.log.segments.free_count()) + 4;
            let r = self.cleaner().clean_until(m, target, true)?;
            self.in_place(m)?;
            if r.segments == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Does steps 3 to 5.
    fn build_tree(
        &self,
        m: &mut Maintenance,
        plan: Option<Plan<'_>>,
        epoch: u64,
        late: bool,
        sink: &mut Sink<'_>,
    ) -> Result<Built> {
        let folding = plan.is_some();
        if let Some(plan) = plan {
            self.fold().fold(m, plan, sink)?;
            // Relaxed: for stamps and reports.
            self.log.epoch.fetch_max(epoch, Ordering::Relaxed);
            self.totals.folded.store(epoch, Ordering::Relaxed);
        }
        self.capture().capture_all(m, epoch, sink)?;
        debug_assert!(m.changed.is_empty(), "an inode is neither written nor waits for its NEW (5)");
        let carried = if folding && !late { false } else { self.carry(&mut m.carried, epoch, &m.waiting)? };
        // 5. Tables.
        let (r, level) = self.inodes.table.write_out(sink)?;
        let table = Root { r, level };
        let orphans = self.write_orphans(m, sink)?;
        sink.flush_if_full()?;
        m.usage.owners.extend(self.log.mlogs.iter().flat_map(Mlog::take_owners));
        m.usage.write_summaries(&self.log.segments, sink)?;
        let usage = m.usage.write_out(&self.log.segments, sink)?;
        Ok(Built { table, usage, orphans, carried })
    }

    fn write_orphans(&self, m: &mut Maintenance, sink: &mut Sink<'_>) -> Result<BlockRef> {
        if !m.orphans_changed {
            return Ok(m.slot.orphans);
        }
        for a in std::mem::take(&mut m.orphan_blocks) {
            sink.free(a.addr);
        }
        let all: Vec<Ino> = m.orphans.iter().copied().collect();
        let mut next = BlockRef::NONE;
        for (index, inos) in all.chunks(ORPHANS_PER_BLOCK).enumerate().rev() {
            let index = index as u64;
            next = sink.write(Owner::Orphans { index }, orphans::encode_orphans(index, next, inos))?;
            m.orphan_blocks.push(next);
        }
        debug_assert_eq!(m.orphan_blocks.len(), all.len().div_ceil(ORPHANS_PER_BLOCK), "blocks of the list");
        // Set again if the slot is not written: `m.slot.orphans` would be the old list.
        m.orphans_changed = true;
        Ok(next)
    }

    /// Does step 8.
    fn after_checkpoint(&self, m: &mut Maintenance, number: u64, appended: &[u64], claimed: u32) {
        debug_assert_eq!(appended.len(), self.log.mlogs.len(), "a figure for each log");
        m.orphans_changed = false;
        self.log.segments.summarised(claimed);
        let mut freed = std::mem::take(&mut m.ended);
        for inode in std::mem::take(&mut m.captured) {
            {
                let mut i = inode.lock();
                i.state.checkpoint_done();
                i.xattrs.checkpoint_done();
                i.tail.checkpoint_done();
                freed += i.freed_later.checkpoint_done();
            }
        }
        self.log.space.freed_for_good(freed);
        self.inodes.shrink();
        let folded = m.slot.folded_epoch;
        {
            let mut c = self.unfolded.commits.lock();
            c.previous = c.previous.max(folded); // Not before the slot: recovery must know the epoch named.
            let done = c.take_folded(folded);
            let cancelled: u64 = done.iter().map(|p| p.cancelled).sum();
            let before = self.unfolded.cancelled.fetch_sub(cancelled, Ordering::Relaxed);
            debug_assert!(before >= cancelled, "{cancelled} of {before} parts were cancelled");
            for p in &done {
                self.log.mlogs.iter().zip(&p.unfolded).for_each(|(l, parts)| l.sub_unfolded(*parts));
            }
        }
        self.log.let_go_of_slack();
        let mut free = self.log.segments.dead(number);
        for ((l, p), a) in self.log.mlogs.iter().zip(&m.slot.positions).zip(appended) {
            l.prune_groups(|g| groups_above(g, folded));
            let mut left = l.checkpoint_done(&self.log.segments, p, *a);
            left.retain(|seg| self.log.segments.leave_chain(*seg, number));
            free.append(&mut left);
        }
        self.unfolded.reserve_space(self.log);
        for seg in free {
            self.log.segments.mark_stale(seg, number);
            self.log.segments.release(seg);
        }
        (0..self.log.segments.devices()).for_each(|d| self.discard_stale(d, number));
        if !m.closing {
            self.log.io.keep_reserve_full();
        }
        if !m.closing && !m.opening {
            self.log.look_at_rule();
        }
        self.list_slack(m, number);
        self.log.segments.check_invariants();
    }

    /// Discards segments of a device that were free before the checkpoint `number`; where its host
    /// is short all that are free, but for those that are kept.
    fn discard_stale(&self, device: usize, number: u64) {
        let low = self.log.io.is_host_low(device);
        let before = if low { u64::MAX } else { number };
        debug_assert!(number > 0, "the first checkpoint has number 1");
        loop {
            let stale = self.log.segments.take_stale(device, before, DISCARDS);
            debug_assert!(stale.len() <= DISCARDS, "{} segments are discarded at once", stale.len());
            let last = !low || stale.is_empty();
            for &seg in &stale {
                self.log.discard(seg);
            }
            self.log.segments.put_back(device, stale);
            if last {
                return;
            }
        }
    }

    /// Lists slack, if few segments are free, now that this checkpoint is durable.
    fn list_slack(&self, m: &Maintenance, number: u64) {
        debug_assert_eq!(m.durable, number, "slack is that of a durable checkpoint");
        let t = &self.log.segments;
        let (usable, size) = (u64::from(t.usable()), u64::from(t.geometry.segment_blocks));
        if m.closing || !t.slack.is_wanted(t.free_count(), t.usable(), t.reserved_segments()) {
            return;
        }
        let times = if t.free_count() > t.reserved_segments() { 2 } else { 1 };
        let most = times * self.log.free_segment_blocks() / self.log.metadata_copies();
        let list = t.list_slack(number, most, |seg, i| i.heat != Heat::Node as u8 && !m.stuck.contains(&seg));
        let worth = (usable * size / 256).min(1 << 14);
        t.slack.renew(list, worth, t.reserved_segments() / 8 + 3);
    }

    /// Makes a checkpoint without a fold: frees segments, keeps everything that is durable durable.
    pub fn in_place(&self, m: &mut Maintenance) -> Result<()> {
        let none: Option<fn() -> Result<FoldInput>> = None;
        let done = self.run(m, none, Seal::Before)?;
        m.freed.extend(done.freed);
        Ok(())
    }

    fn cleaner(&self) -> Cleaner<'_> {
        Cleaner { log: self.log, inodes: self.inodes }
    }

    fn fold(&self) -> Fold<'_> {
        Fold { log: self.log, inodes: self.inodes, totals: self.totals }
    }

    pub(super) fn capture(&self) -> Capture<'_> {
        Capture { log: self.log, inodes: self.inodes, fold: self.fold() }
    }
}
