//! Step 4 of a checkpoint (checkpoint/mod.rs): inodes are written out.

use super::packs::Packs;
use crate::engine::fold::{Fold, PIECES, shared_from};
use crate::engine::maintenance::{DeferredInode, Maintenance, Moving};
use crate::engine::sink::{QUEUE_MAX, Sink};
use crate::error::Result;
use crate::inodes::Inodes;
use crate::inodes::cache::{CachedInode, InodeEntry};
use crate::log::Log;
use crate::tree::block_io::BlockSink;
use lanefs_format::Ino;
use lanefs_format::pack;
use lanefs_sync::parallel;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Inodes of which packs are read together that others may move out of.
const TOGETHER: usize = 256;
/// Files that were put off and are written before anybody looks at what is queued. A part of 256,
/// after which the table is looked at.
const AT_ONCE: usize = 32;

/// What one of several threads has of the files that were put off.
#[derive(Default)]
struct Share {
    /// The first one last.
    deferred: Vec<DeferredInode>,
    /// Of the chunks of these.
    moving: Moving,
    /// Those that have to be made in memory, the first one first.
    left: Vec<DeferredInode>,
    /// Inodes to be written once more.
    changed: Vec<Arc<CachedInode>>,
}

/// Inodes that a thread writes out, and what becomes of them ([`Maintenance`] has the same lists).
#[derive(Default)]
struct Captured {
    /// The first one last.
    changed: Vec<Arc<CachedInode>>,
    /// Of the chunks of these.
    moving: Moving,
    waiting: Vec<Arc<CachedInode>>,
    captured: Vec<Arc<CachedInode>>,
}

impl Captured {
    fn first_chunk(&self) -> Option<u64> {
        self.changed.last().map(|c| c.ino.chunk())
    }

    fn last_chunk(&self) -> Option<u64> {
        self.changed.first().map(|c| c.ino.chunk())
    }
}

impl Share {
    fn first_chunk(&self) -> Option<u64> {
        self.deferred.last().map(|b| b.ino.chunk())
    }

    fn last_chunk(&self) -> Option<u64> {
        self.deferred.first().map(|b| b.ino.chunk())
    }
}

/// Writes out inodes, those that a fold put off among them.
pub(crate) struct Capture<'a> {
    pub log: &'a Log,
    pub inodes: &'a Inodes,
    pub fold: Fold<'a>,
}

impl Capture<'_> {
    /// Does step 4: writes out all files that the fold put off, and all inodes of `m.changed`. One
    /// is on that list until it is written, or is in `m.waiting` (5).
    pub fn capture_all(&self, m: &mut Maintenance, fold: u64, sink: &mut Sink<'_>) -> Result<()> {
        self.capture_deferred(m, fold, sink)?;
        self.capture_changed(m, fold, sink)?;
        let mut packs = Packs::new(self.inodes, fold);
        let r = self.move_packs(&mut m.moving, &mut packs, sink);
        packs.close(sink);
        debug_assert!(m.deferred.next().is_none(), "files that were put off are not written");
        r
    }

    /// Writes out all inodes of `m.changed`, many of them with several threads, each with chunks
    /// and a sink of its own. What an error keeps from being written stays on the list.
    fn capture_changed(&self, m: &mut Maintenance, fold: u64, sink: &mut Sink<'_>) -> Result<()> {
        // Neighbours in the table are neighbours in the log. The first is the last on the list,
        // which is taken from its end.
        m.changed.sort_unstable_by_key(|c| std::cmp::Reverse(c.ino));
        m.changed.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let threads = if m.changed.len() < shared_from() { 1 } else { self.log.threads() };
        let pieces = if threads > 1 { PIECES * threads } else { 1 };
        let each = m.changed.len().div_ceil(pieces).max(1);
        let mut shares = Vec::new();
        while let Some(at) = m.changed.len().checked_sub(1) {
            let mut from = at.saturating_sub(each - 1);
            let chunk = m.changed[from].ino.chunk();
            while from > 0 && m.changed[from - 1].ino.chunk() == chunk {
                from -= 1;
            }
            let behind = m.moving.split_off(&(chunk + 1));
            let moving = std::mem::replace(&mut m.moving, behind);
            shares.push(Captured { changed: m.changed.split_off(from), moving, ..Captured::default() });
        }
        debug_assert!(
            shares.is_sorted_by(|a, b| a.last_chunk() < b.first_chunk()),
            "two threads have inodes of one chunk"
        );
        let (beside, orphans) = (&*sink, &m.orphans);
        let done = parallel::map_with(threads, shares, |mut share| {
            let mut dirty = BTreeSet::new();
            let mut packs = Packs::new(self.inodes, fold);
            let mut sink = beside.beside(&mut dirty);
            let r = self.capture_list(&mut share, orphans, &mut packs, &mut sink);
            packs.close(&mut sink);
            (r, share, dirty)
        });
        let mut result = Ok(());
        for (r, mut share, dirty) in done {
            sink.take_leaves(dirty);
            m.changed.append(&mut share.changed);
            m.moving.append(&mut share.moving);
            m.waiting.append(&mut share.waiting);
            m.captured.append(&mut share.captured);
            result = result.and(r);
        }
        result
    }

    fn capture_list(
        &self,
        list: &mut Captured,
        orphans: &BTreeSet<Ino>,
        packs: &mut Packs<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        for n in 0.. {
            if n % TOGETHER == 0 {
                let next = list.changed.iter().rev().take(TOGETHER).map(|c| c.ino);
                self.inodes.expect_packs(next, &self.log.io)?;
            }
            let Some(inode) = list.changed.last().cloned() else { break };
            let ino = inode.ino;
            self.capture_leaves(&inode, sink)?;
            if !self.capture(list, orphans, &inode, packs, sink)? {
                list.waiting.push(inode);
            }
            debug_assert!(list.changed.last().is_some_and(|c| c.ino == ino), "inode {ino} was not the last");
            list.changed.pop();
            self.inodes.evict_or_flush(n, sink)?;
        }
        packs.finish(&mut list.moving, sink)
    }

    /// Writes the packs that the cleaner wants to be elsewhere, of whose chunks nothing else was
    /// written.
    fn move_packs(&self, moving: &mut Moving, packs: &mut Packs<'_>, sink: &mut Sink<'_>) -> Result<()> {
        while let Some(&chunk) = moving.keys().next() {
            packs.begin(chunk, moving, sink)?;
            packs.finish(moving, sink)?;
            debug_assert!(!moving.contains_key(&chunk), "a pack of chunk {chunk} was to move");
            sink.flush_if_full()?;
        }
        Ok(())
    }

    /// Makes and writes out all files that were put off.
    pub fn capture_deferred(&self, m: &mut Maintenance, fold: u64, sink: &mut Sink<'_>) -> Result<()> {
        if self.inodes.packed && m.deferred.len() >= shared_from() {
            self.capture_together(m, fold, sink)?;
        }
        let mut packs = Packs::new(self.inodes, fold);
        let r = self.capture_put_off(m, &mut packs, sink);
        packs.close(sink);
        self.look_again(&mut m.changed, &mut packs);
        r
    }

    /// Writes those that were put off with several threads, each with chunks and a sink of its own.
    /// What has to be made in memory stays on the list, and what an error keeps from being written.
    fn capture_together(&self, m: &mut Maintenance, fold: u64, sink: &mut Sink<'_>) -> Result<()> {
        let all = m.deferred.len();
        let mut shares: Vec<Share> = Vec::new();
        for mut deferred in m.deferred.take_lists().into_iter().rev() {
            // What an error left is not cut where chunks begin.
            let first = deferred.last().map(|b| b.ino.chunk());
            if let Some(mut before) = shares.pop_if(|s| s.last_chunk() == first) {
                deferred.append(&mut before.deferred);
                m.moving.append(&mut before.moving);
            }
            let Some(last) = deferred.first() else { continue };
            let behind = m.moving.split_off(&(last.ino.chunk() + 1));
            let moving = std::mem::replace(&mut m.moving, behind);
            shares.push(Share { deferred, moving, ..Share::default() });
        }
        debug_assert!(
            shares.is_sorted_by(|a, b| a.last_chunk() < b.first_chunk()),
            "two threads have inodes of one chunk"
        );
        let beside = &*sink;
        let parts = parallel::map_with(self.log.threads(), shares, |mut share| {
            let mut dirty = BTreeSet::new();
            let r = self.capture_share(&mut share, fold, &mut beside.beside(&mut dirty));
            (r, share, dirty)
        });
        let mut result = Ok(());
        // The list begins with the highest number.
        for (r, mut share, dirty) in parts.into_iter().rev() {
            sink.take_leaves(dirty);
            m.moving.append(&mut share.moving);
            m.changed.append(&mut share.changed);
            share.left.reverse();
            m.deferred.push([share.deferred, share.left].into_iter());
            result = result.and(r);
        }
        debug_assert!(m.deferred.len() <= all, "a file that was not put off is on the list");
        result
    }

    fn capture_share(&self, share: &mut Share, fold: u64, sink: &mut Sink<'_>) -> Result<()> {
        debug_assert!(share.left.is_empty() && share.changed.is_empty(), "a share that was begun");
        let mut packs = Packs::new(self.inodes, fold);
        let mut all = || {
            for n in 0.. {
                let Some(b) = share.deferred.last().copied() else { break };
                packs.begin(b.ino.chunk(), &mut share.moving, sink)?;
                if !packs.put_bare(&b, sink)? {
                    share.left.push(b);
                }
                share.deferred.pop();
                if n % AT_ONCE == AT_ONCE - 1 {
                    self.look_again(&mut share.changed, &mut packs);
                    self.inodes.evict_or_flush(n, sink)?;
                }
            }
            packs.finish(&mut share.moving, sink)
        };
        let r = all();
        packs.close(sink);
        self.look_again(&mut share.changed, &mut packs);
        r
    }

    fn capture_put_off(&self, m: &mut Maintenance, packs: &mut Packs<'_>, sink: &mut Sink<'_>) -> Result<()> {
        for n in 0.. {
            let Some(b) = m.deferred.next() else { break };
            let left = m.deferred.len();
            if self.inodes.packed {
                packs.begin(b.ino.chunk(), &mut m.moving, sink)?;
            }
            if self.inodes.packed && packs.put_bare(&b, sink)? {
                m.deferred.pop();
            } else {
                self.capture_one_put_off(m, packs, sink)?;
            }
            debug_assert_eq!(m.deferred.len(), left - 1, "one file is made at a time");
            if n % AT_ONCE == AT_ONCE - 1 {
                self.look_again(&mut m.changed, packs);
                self.inodes.evict_or_flush(n, sink)?;
            }
        }
        packs.finish(&mut m.moving, sink)?;
        sink.flush_if_full()
    }

    /// Makes and writes out the next of them, as an inode in memory.
    fn capture_one_put_off(
        &self,
        m: &mut Maintenance,
        packs: &mut Packs<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let Some(inode) = self.fold.make_next_deferred(m, sink)? else { return Ok(()) };
        let mut list = Captured { moving: std::mem::take(&mut m.moving), ..Captured::default() };
        let r = self.capture(&mut list, &m.orphans, &inode, packs, sink);
        m.moving = list.moving;
        m.captured.append(&mut list.captured);
        if r? {
            m.changed.pop_if(|c| Arc::ptr_eq(c, &inode));
        }
        let is_bare = {
            let i = inode.lock();
            i.state.version() == 0 && !i.state.is_packed() && i.is_clean()
        };
        if is_bare && m.captured.pop_if(|c| Arc::ptr_eq(c, &inode)).is_some() {
            let ino = inode.ino;
            drop(inode);
            self.inodes.cache.forget(ino);
        }
        Ok(())
    }

    /// Looks for files that are in packs by now, in memory. No inode is locked.
    fn look_again(&self, changed: &mut Vec<Arc<CachedInode>>, packs: &mut Packs<'_>) {
        let mut made = 0;
        while let Some((b, pack)) = packs.next_made() {
            self.fold.wrote_bare(changed, &b, pack);
            made += 1;
        }
        // Relaxed: only the holder of the maintenance lock changes it, and its threads.
        self.fold.totals.inodes.fetch_add(made, Ordering::Relaxed);
    }

    /// Writes the leaves of a large map in portions that the queue can hold, letting go of the lock
    /// between them. What changes meanwhile is dirty again and goes with [`Capture::capture`].
    fn capture_leaves(&self, inode: &CachedInode, sink: &mut Sink<'_>) -> Result<()> {
        // Small segments have small portions, so that small tests see several.
        let g = &self.log.segments.geometry;
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
    /// is as good as written: it is on the orphan list, and removing files needs no space for their
    /// inodes. Its entry in the inode table has the epoch of the fold: with both slots lost that is
    /// all that shows what was folded.
    fn capture(
        &self,
        list: &mut Captured,
        orphans: &BTreeSet<Ino>,
        inode: &Arc<CachedInode>,
        packs: &mut Packs<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<bool> {
        let in_table = {
            let i = inode.lock();
            i.folded && !i.gone // Only folds change that.
        };
        // In memory before anything is written: an inode that is written counts as done, so nothing
        // may fail behind that (5).
        if in_table {
            packs.begin(inode.ino.chunk(), &mut list.moving, sink)?;
        }
        let mut guard = inode.lock();
        let i = &mut *guard;
        if i.gone {
            return Ok(true);
        }
        debug_assert_eq!(i.folded, in_table, "inode {} was folded beside the checkpoint", inode.ino);
        i.clear_live_marks(&self.log.segments);
        if !in_table {
            return Ok(false);
        }
        let never = i.state.block().is_none();
        if orphans.contains(&inode.ino) && !i.state.is_changed() && !never {
            i.listed = false;
            return Ok(true);
        }
        if i.state.is_dirty() || never {
            self.write(inode.ino, i, packs, sink)?;
        }
        // In this order: recovery may unmap a block of the tree and map it again. A bucket that the
        // cleaner moved may have been written anew by the fold since, which has given it up: no
        // tree refers to it.
        i.died.drain(..).for_each(|a| sink.unmark(a));
        i.fresh.take().filter(|a| self.log.segments.is_live(*a)).for_each(|a| sink.mark(a));
        i.xattrs.seal();
        i.tail.seal();
        i.freed_later.seal();
        i.listed = false;
        i.check_invariants();
        list.captured.push(inode.clone());
        Ok(true)
    }

    /// Writes an inode that is folded, to a pack or to a block of its own.
    fn write(&self, ino: Ino, i: &mut InodeEntry, packs: &mut Packs<'_>, sink: &mut Sink<'_>) -> Result<()> {
        let image = i.state.write_parts(sink)?;
        let generation = image.attrs.generation;
        let mut slot = Vec::new();
        if self.inodes.packed && pack::put_slot(&mut slot, ino, &image) {
            packs.make_space(slot.len(), sink)?;
            let block = packs.put(ino, generation, &slot);
            i.state.written(block, true, sink);
        } else {
            let block = i.state.write_own(&image, sink)?;
            packs.set_own(ino, block, generation, sink);
        }
        // The sink has charged what was written.
        self.log.space.credit(0, std::mem::take(&mut i.own_charged));
        i.charge_unwritten(&self.log.space, 0);
        Ok(())
    }
}
