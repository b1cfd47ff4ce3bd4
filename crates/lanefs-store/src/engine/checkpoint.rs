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
//! 2. An inode captured after P holds updates behind P too; its version tells recovery which. One
//!    that is dirtied behind P and neither before P nor by the fold is left to the next checkpoint:
//!    its batches lie behind P. So a call on it shares nothing with the checkpoint.
//! 3. Marks in the usage table are those of the captured tree: an inode's births and deaths of data
//!    blocks are applied when it is captured, no sooner.
//! 4. A checkpoint without a fold (the store makes one to free segments) must not forget what is
//!    durable only in batches before P and not folded: it writes these groups, commits and inode
//!    updates again, behind P, before the slot (`carry`).
//! 5. A checkpoint that fails for lack of room, or because something cannot be read, leaves the
//!    last slot in force and can be repeated. Work leaves its list (inodes, leaves of the tables,
//!    summaries) one piece at a time, when it is done and nothing can fail any more; what is left
//!    on a list after an error is what the next checkpoint has to do. If it failed before the fold,
//!    its caller hands over again what it was to fold. Behind the fold that stays folded in memory,
//!    and the next checkpoint of any kind says so in its slot ([`Store::folded_epoch`]): folded
//!    once more, together with later epochs, changes that take each other back would be left out.
//!    An error within the fold is sticky, as is one of a write or a flush.
//! 6. Behind the P of a clean slot nothing is looked for. So the P of a close is the last: the RPS
//!    writer that records it says so, and a transaction or a commit that enters later finds that in
//!    its section and is refused, though it was let in before. (What is carried over goes behind P
//!    too; then the slot is not clean.) Recovery's own clean slot needs no such word: nobody else
//!    has the store.

use crate::api::{CheckpointDone, FoldInput};
use crate::engine::maintenance::Maintenance;
use crate::engine::sink::{QUEUE_MAX, Sink};
use crate::error::{Result, StoreError};
use crate::inodes::cache::CachedInode;
use crate::log::mlog::Mlog;
use crate::store::Store;
use crate::tree::block_io::{BlockSink, Owner};
use lanefs_format::orphans::{self, ORPHANS_PER_BLOCK};
use lanefs_format::record;
use lanefs_format::record::groups_above;
use lanefs_format::slot::{Position, Root, Slot};
use lanefs_format::{BlockAddr, BlockRef, Ino};
use lanefs_sync::{Canary, planted};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most segments of a device discarded after one checkpoint.
const DISCARDS: usize = 32;

/// What steps 3 to 5 made.
struct Built {
    table: Root,
    usage: Root,
    orphans: BlockRef,
    /// Something is durable and still only in batches.
    carried: bool,
}

impl Store {
    /// Makes a checkpoint. Without `seal` nothing is folded.
    pub(crate) fn run_checkpoint(
        &self,
        m: &mut Maintenance,
        seal: Option<impl FnOnce() -> Result<FoldInput>>,
        clean: bool,
    ) -> Result<CheckpointDone> {
        let r = self.try_checkpoint(m, seal, clean);
        // What could not be written out, or was not for an error: for the next one (5).
        m.waited = m.waiting.len();
        let left = [std::mem::take(&mut m.changed), std::mem::take(&mut m.waiting)].concat();
        self.list_again(&left);
        r
    }

    fn try_checkpoint(
        &self,
        m: &mut Maintenance,
        seal: Option<impl FnOnce() -> Result<FoldInput>>,
        clean: bool,
    ) -> Result<CheckpointDone> {
        self.io.check()?;
        if m.closing && !clean {
            return Err(StoreError::Closed); // It waited for the lock while the store was closed.
        }
        self.heal(m);
        // 1. Position.
        let (mut positions, mut appended, mut number) = self.record_position(m);
        // 2. Seal.
        let folding = seal.is_some();
        let input = match seal {
            Some(seal) => seal()?,
            None => FoldInput { epoch: self.folded_epoch(), groups: Vec::new() },
        };
        let mut late = false;
        if folding && m.durable > 0 && self.short_of_room(m, &input) {
            // Folding halfway would be worse than folding late: make room first. The position is
            // then later than the seal, and what lies between is carried over (4).
            self.clean_up_for(m, &input)?;
            (positions, appended, number) = self.record_position(m);
            late = true;
        }
        if input.epoch < self.folded_epoch() {
            let why = format!("fold of epoch {} after {}", input.epoch, self.folded_epoch());
            return Err(StoreError::Invalid(why));
        }
        if clean {
            // Nobody will look behind P, and nothing gets there (6).
            m.changed.append(&mut self.cache.take_dirty());
        }
        let mut dirty = std::mem::take(&mut m.usage.dirty);
        let mut sink = Sink::new(self, &mut dirty);
        let tree = self.build_tree(m, &input, folding, late, &mut sink);
        m.usage.dirty.append(&mut dirty);
        let Built { table, usage, orphans, carried } = match tree {
            Ok(t) => t,
            Err(e) => {
                // What memory refers to must be on the device before it is read.
                self.io.write_queue()?;
                // What was carried over stays in the log. Unless it is known to be durable, nothing
                // behind it ever is. It names data whose writes may be under way.
                if !m.carried.is_empty() {
                    self.drain(|| ());
                    self.io.flush(self.io.all())?;
                    self.carried_is_durable(m);
                }
                return Err(e);
            }
        };
        // 6. Wait.
        self.io.write_queue()?;
        self.drain(|| ());
        let recovering = m.durable == 0;
        let skipped = recovering && planted(Canary::RecoveryWithoutFlush);
        if !skipped && !planted(Canary::SlotBeforeTree) {
            self.io.flush(self.io.all())?;
            self.carried_is_durable(m);
        }
        // 7. The slot.
        let slot = Slot {
            generation: m.slot.generation + 1,
            mount: self.mount.load(Ordering::Relaxed),
            volume: self.volume,
            folded_epoch: input.epoch,
            last_ts: self.last_ts.load(Ordering::Relaxed),
            next_chunk: self.next_chunk.load(Ordering::Relaxed),
            next_seq: self.next_seq.load(Ordering::Relaxed),
            inodes: self.inodes_counted(),
            live_blocks: self.segments.total_live(),
            unwritten: self.unwritten_counted(),
            table,
            usage,
            orphans,
            clean: clean && !carried, // What was carried has to be found again.
            positions,
        };
        self.put_slot(m, slot)?;
        m.durable = number;
        self.after_checkpoint(m, number, &appended);
        let freed = std::mem::take(&mut m.freed);
        self.put_twin(m)?;
        Ok(CheckpointDone { epoch: input.epoch, freed, orphans: m.orphans.len() as u64 })
    }

    /// Step 1: positions, blocks appended so far, and the new checkpoint number.
    fn record_position(&self, m: &mut Maintenance) -> (Vec<Position>, Vec<u64>, u64) {
        let at = {
            let _writer = self.rps.write();
            // Relaxed: readers are ordered by the RPS, here and below. Set again if a close is
            // repeated.
            self.closing.store(m.closing, Ordering::Relaxed);
            let positions = self.mlogs.iter().map(|l| l.position(&self.segments)).collect();
            let appended = self.mlogs.iter().map(Mlog::appended).collect();
            (positions, appended, self.checkpoint_number.fetch_add(1, Ordering::Relaxed) + 1)
        };
        // A transaction lists its inodes inside the section: those before P are here.
        m.changed.append(&mut self.cache.take_dirty());
        at
    }

    /// Puts inodes on the dirty lists whose turn is over, whatever became of them.
    pub(crate) fn list_again(&self, inodes: &[Arc<CachedInode>]) {
        for c in inodes {
            let mut i = c.lock();
            i.listed = false;
            if !i.gone {
                self.cache.list_dirty(c, &mut i);
            }
        }
    }

    /// Blocks that a fold and its checkpoint may need, generously: inode, bucket and table node per
    /// group. (What is dirtied now is not its business.)
    fn fold_needs(&self, m: &Maintenance, input: &FoldInput) -> u64 {
        let groups: usize = input.groups.iter().map(|b| record::groups(b).count()).sum();
        self.metadata_copies() * (3 * groups as u64 + 2 * (m.changed.len() + m.deferred.len()) as u64 + 16)
    }

    fn short_of_room(&self, m: &Maintenance, input: &FoldInput) -> bool {
        let size = u64::from(self.segments.geometry.segment_blocks);
        u64::from(self.segments.free_count()) * size < self.fold_needs(m, input)
    }

    /// Checkpoints in place and cleans until there is room for a fold, or nothing more to be had.
    fn clean_up_for(&self, m: &mut Maintenance, input: &FoldInput) -> Result<()> {
        self.checkpoint_in_place(m)?;
        for _ in 0..16 {
            if !self.short_of_room(m, input) {
                break;
            }
            let target = u64::from(self.segments.free_count()) + 4;
            let r = self.clean_until(m, target, true)?;
            self.checkpoint_in_place(m)?;
            if r.segments == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Steps 3 to 5.
    fn build_tree(
        &self,
        m: &mut Maintenance,
        input: &FoldInput,
        folding: bool,
        late: bool,
        sink: &mut Sink<'_>,
    ) -> Result<Built> {
        if folding {
            self.fold(m, &input.groups, sink)?;
            // Relaxed: for stamps and reports.
            self.epoch.fetch_max(input.epoch, Ordering::Relaxed);
            self.folded.store(input.epoch, Ordering::Relaxed);
        }
        self.capture_all(m, input.epoch, sink)?;
        let carried = if folding && !late || planted(Canary::CarriesNothing) {
            false
        } else {
            self.carry(&mut m.carried, input.epoch, &m.waiting)?
        };
        // 5. Tables.
        let (r, level) = self.inodes.write_out(sink)?;
        let table = Root { r, level };
        let orphans = self.write_orphans(m, sink)?;
        sink.flush_if_full()?;
        m.usage.owners.extend(self.mlogs.iter().flat_map(Mlog::take_owners));
        m.usage.write_summaries(&self.segments, sink)?;
        let usage = m.usage.write_out(&self.segments, sink)?;
        Ok(Built { table, usage, orphans, carried })
    }

    /// Step 4: writes out all files that the fold put off, and all inodes of `m.changed`. One is on
    /// that list until it is written, or is in `m.waiting` (5).
    fn capture_all(&self, m: &mut Maintenance, fold: u64, sink: &mut Sink<'_>) -> Result<()> {
        self.capture_deferred(m, fold, sink)?;
        // Neighbours in the table are neighbours in the log. The first is the last on the list,
        // which is taken from its end.
        m.changed.sort_unstable_by_key(|c| std::cmp::Reverse(c.ino));
        m.changed.dedup_by(|a, b| Arc::ptr_eq(a, b));
        for n in 0.. {
            let Some(inode) = m.changed.last().cloned() else { break };
            self.capture_leaves(&inode, sink)?;
            if !self.capture(m, &inode, fold, sink)? {
                m.waiting.push(inode);
            }
            m.changed.pop();
            self.evict_or_flush(n, sink)?;
        }
        Ok(())
    }

    /// Writes the leaves of a large map in portions that the queue can hold, letting go of the lock
    /// between them. What changes meanwhile is dirty again and goes with [`Store::capture`].
    fn capture_leaves(&self, inode: &CachedInode, sink: &mut Sink<'_>) -> Result<()> {
        // Small segments have small portions, so that small tests see several.
        let g = &self.segments.geometry;
        let portion = (QUEUE_MAX / g.copies as usize).min(g.segment_blocks as usize);
        let mut from = 0;
        loop {
            {
                let mut i = inode.lock();
                if i.gone || !i.folded || !i.state.write_leaves(sink, &mut from, portion)? {
                    return Ok(());
                }
            }
            sink.flush_if_full()?;
        }
    }

    /// Writes one inode out; false if its NEW is not folded yet. One that only lost its last name
    /// is as good as written: it is on the orphan list, and removing files needs no room for their
    /// inodes. Its entry in the inode table says `fold`: with both slots lost that is all that
    /// tells what was folded.
    pub(crate) fn capture(
        &self,
        m: &mut Maintenance,
        inode: &Arc<CachedInode>,
        fold: u64,
        sink: &mut Sink<'_>,
    ) -> Result<bool> {
        let in_table = {
            let i = inode.lock();
            i.folded && !i.gone // Only folds change that.
        };
        // In memory before anything is written: an inode that is written counts as done, so nothing
        // may fail behind that (5).
        let entry = if in_table { Some(self.inodes.hold(inode.ino, &self.io)?) } else { None };
        let mut guard = inode.lock();
        let i = &mut *guard;
        if i.gone {
            return Ok(true);
        }
        i.clear_live_marks(&self.segments);
        let Some(entry) = entry else { return Ok(false) };
        let old = i.state.block();
        if m.orphans.contains(&inode.ino) && !i.state.is_changed() && !old.is_none() {
            i.listed = false;
            return Ok(true);
        }
        let r = i.state.write_out(sink)?;
        if r != old {
            entry.set(r, i.state.attrs().generation, fold);
        }
        // In this order: recovery may unmap a block of the tree and map it again. A bucket that the
        // cleaner moved may have been written anew by the fold since, which has given it up: no
        // tree refers to it.
        i.died.drain(..).for_each(|a| sink.unmark(a));
        i.fresh.drain().map(BlockAddr).filter(|a| self.segments.is_live(*a)).for_each(|a| sink.mark(a));
        i.xattrs.seal();
        i.tail.seal();
        i.listed = false;
        m.captured.push(inode.clone());
        Ok(true)
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
        // Set again if the slot is not written: `m.slot.orphans` would be the old list.
        m.orphans_changed = true;
        Ok(next)
    }

    /// Step 8.
    fn after_checkpoint(&self, m: &mut Maintenance, number: u64, appended: &[u64]) {
        m.orphans_changed = false;
        self.segments.summarised();
        for inode in std::mem::take(&mut m.captured) {
            {
                let mut i = inode.lock();
                i.state.checkpoint_done();
                i.xattrs.checkpoint_done();
                i.tail.checkpoint_done();
            }
        }
        self.shrink();
        let folded = m.slot.folded_epoch;
        {
            let mut c = self.commits.lock();
            c.previous = c.previous.max(folded); // Not before the slot: recovery must know the epoch named.
            let done = c.take_folded(folded);
            self.cancelled.fetch_sub(done.iter().map(|p| p.cancelled).sum(), Ordering::Relaxed);
            for (i, share) in done.iter().flat_map(|p| p.shares.iter().enumerate()) {
                self.mlogs[i % self.mlogs.len()].sub_unfolded(share);
            }
        }
        let mut free = self.segments.dead(number);
        for ((l, p), a) in self.mlogs.iter().zip(&m.slot.positions).zip(appended) {
            l.prune_groups(|g| groups_above(g, folded));
            free.append(&mut l.checkpoint_done(&self.segments, p, *a));
        }
        self.note_owed();
        for seg in free {
            self.segments.soil(seg, number);
            self.segments.release(seg);
        }
        for d in 0..self.segments.devices() {
            let stale = self.segments.take_stale(d, number, DISCARDS);
            for &seg in &stale {
                self.discard(seg);
            }
            self.segments.put_back(d, stale);
        }
    }

    /// Tells the device that a segment's content is not needed; only a hint, so errors do not
    /// matter. The bytes that it was told of.
    fn discard(&self, seg: u32) -> u64 {
        let a = self.segments.geometry.addr(seg, 0);
        let (len, _) = self.segment_bytes();
        match self.io.devices().get(a.device()).map(|d| d.discard(a.offset(), len)) {
            Some(Ok(())) => len,
            Some(Err(e)) => {
                tracing::debug!("discard of segment {seg}: {e}");
                0
            }
            None => 0,
        }
    }

    /// Tells the devices of all free segments in a range, whose bytes are counted through all
    /// devices in order, that their content is not needed, and how many bytes these are; `None` if
    /// no device can take notice. Free is what the last checkpoint does not reach: anybody may
    /// write there. Segments under way are in no pool, so nobody takes one before the device has
    /// been told.
    pub(crate) fn trim_free(&self, range: Range<u64>) -> Result<Option<u64>> {
        if !self.io.devices().iter().any(|d| d.discards()) {
            return Ok(None);
        }
        let (len, _) = self.segment_bytes();
        let inside = |seg: &u32| {
            let first = u64::from(*seg).saturating_mul(len);
            range.start <= first && first.saturating_add(len) <= range.end
        };
        let mut told = 0;
        for device in 0..self.segments.devices() {
            if !self.io.devices().get(device).is_some_and(|d| d.discards()) {
                continue;
            }
            let mut done = HashSet::new();
            loop {
                self.check_writable()?;
                let idle = self.segments.take_idle(device, DISCARDS, &done);
                if idle.is_empty() {
                    break;
                }
                lanefs_sync::about_to_wait();
                told += idle.iter().filter(|s| inside(s)).map(|s| self.discard(*s)).sum::<u64>();
                done.extend(idle.iter().copied());
                self.segments.put_back(device, idle);
            }
        }
        Ok(Some(told))
    }

    // ---- room ----

    /// A checkpoint without a fold: frees segments, keeps everything that is durable durable.
    pub(crate) fn checkpoint_in_place(&self, m: &mut Maintenance) -> Result<()> {
        let none: Option<fn() -> Result<FoldInput>> = None;
        let done = self.run_checkpoint(m, none, false)?;
        m.freed.extend(done.freed);
        // Relaxed: a hint for `watch_metadata`.
        self.dirty_floor.store(m.waited, Ordering::Relaxed);
        Ok(())
    }

    /// Frees segments for someone who found none and wants `blocks`. With `hard` the cleaner works
    /// as long as it gets anywhere.
    pub(crate) fn make_room(&self, blocks: u64, hard: bool) -> Result<()> {
        let before = self.segments.free_count();
        let Some(mut m) = self.try_maintenance() else { return self.io.check() };
        let want = 1 + blocks.div_ceil(u64::from(self.segments.geometry.segment_blocks));
        let enough =
            |s: &Store| u64::from(s.segments.free_count()) > u64::from(s.segments.reserved_segments()) + want;
        if self.segments.free_count() > before && enough(self) {
            return Ok(());
        }
        self.checkpoint_in_place(&mut m)?;
        let rounds = if hard { 16 } else { 4 };
        for _ in 0..rounds {
            if enough(self) {
                return Ok(());
            }
            let target = u64::from(self.segments.reserved_segments()) + want + 2;
            let r = self.clean_until(&mut m, target, true)?;
            self.checkpoint_in_place(&mut m)?;
            if r.segments == 0 && r.moved == 0 && r.marked == 0 {
                break;
            }
        }
        Ok(())
    }
}
