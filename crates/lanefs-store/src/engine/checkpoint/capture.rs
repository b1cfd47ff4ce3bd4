//! Step 4 of a checkpoint (checkpoint/mod.rs): inodes are written out.

use crate::engine::fold::Fold;
use crate::engine::maintenance::Maintenance;
use crate::engine::sink::{QUEUE_MAX, Sink};
use crate::error::Result;
use crate::inodes::Inodes;
use crate::inodes::cache::CachedInode;
use crate::log::Log;
use crate::tree::block_io::BlockSink;
use lanefs_format::BlockAddr;
use std::sync::Arc;

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
        // Neighbours in the table are neighbours in the log. The first is the last on the list,
        // which is taken from its end.
        m.changed.sort_unstable_by_key(|c| std::cmp::Reverse(c.ino));
        m.changed.dedup_by(|a, b| Arc::ptr_eq(a, b));
        for n in 0.. {
            let Some(inode) = m.changed.last().cloned() else { break };
            let ino = inode.ino;
            self.capture_leaves(&inode, sink)?;
            if !self.capture(m, &inode, fold, sink)? {
                m.waiting.push(inode);
            }
            debug_assert!(m.changed.last().is_some_and(|c| c.ino == ino), "inode {ino} was not the last");
            m.changed.pop();
            self.inodes.evict_or_flush(n, sink)?;
        }
        debug_assert!(m.deferred.is_empty(), "files that were put off are not written");
        Ok(())
    }

    /// Makes and writes out all files that were put off.
    pub fn capture_deferred(&self, m: &mut Maintenance, fold: u64, sink: &mut Sink<'_>) -> Result<()> {
        for n in 0.. {
            if m.deferred.is_empty() {
                break;
            }
            let left = m.deferred.len();
            if let Some(inode) = self.fold.make_next_deferred(m, sink)? {
                if self.capture(m, &inode, fold, sink)? {
                    m.changed.pop_if(|c| Arc::ptr_eq(c, &inode));
                }
                let is_bare = {
                    let i = inode.lock();
                    i.state.version() == 0 && i.is_clean()
                };
                if is_bare && m.captured.pop_if(|c| Arc::ptr_eq(c, &inode)).is_some() {
                    let ino = inode.ino;
                    drop(inode);
                    self.inodes.cache.forget(ino);
                }
            }
            debug_assert_eq!(m.deferred.len(), left - 1, "one file is made at a time");
            self.inodes.evict_or_flush(n, sink)?;
        }
        m.deferred = Vec::new();
        Ok(())
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
    /// inodes. Its entry in the inode table has the epoch `fold`: with both slots lost that is all
    /// that shows what was folded.
    pub fn capture(
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
        let entry = if in_table { Some(self.inodes.table.hold(inode.ino, &self.log.io)?) } else { None };
        let mut guard = inode.lock();
        let i = &mut *guard;
        if i.gone {
            return Ok(true);
        }
        debug_assert_eq!(i.folded, in_table, "inode {} was folded beside the checkpoint", inode.ino);
        i.clear_live_marks(&self.log.segments);
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
        i.fresh.drain().map(BlockAddr).filter(|a| self.log.segments.is_live(*a)).for_each(|a| sink.mark(a));
        i.xattrs.seal();
        i.tail.seal();
        i.listed = false;
        i.check_invariants();
        m.captured.push(inode.clone());
        Ok(true)
    }
}
