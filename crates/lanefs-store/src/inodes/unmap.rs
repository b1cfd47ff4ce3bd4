//! Taking pages out of an inode's map. It happens in memory; the disk hears of it with the inode's
//! next update.
//!
//! 1. What cannot be read shows before anything has changed: all map nodes that an unmapping needs
//!    are in memory when it begins, under the inode's lock. Of very large files not all are at a
//!    time; then each was read a moment before.
//! 2. The file's new size goes with the first of its portions, which is unmapped last.

use crate::api::Cut;
use crate::error::{Result, StoreError};
use crate::inodes::Inodes;
use crate::inodes::cache::{CachedInode, Logged};
use crate::log::Log;
use crate::log::space::Claimant;
use crate::tree::inode_state::InodeState;
use crate::tree::radix::Found;
use lanefs_format::{Attrs, BlockAddr, Ino};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// So many map nodes are read for one unmapping, at the most: 12 MiB, for 4 GiB of a file.
const NODES_AT_ONCE: usize = 4096;

impl Inodes {
    /// Takes pages out of an inode: see [`crate::Store::unmap`]. It happens in memory only, so
    /// there is no reader section; the inode's lock orders it.
    pub fn unmap(
        &self,
        log: &Log,
        lane: usize,
        ino: Ino,
        pages: Range<u64>,
        cut: Option<&Cut<'_>>,
    ) -> Result<()> {
        log.check_writable()?;
        let inode = match (self.get(ino, &log.io)?, cut) {
            (None, Some(cut)) => Some(self.get_or_new(ino, &Attrs { size: 0, ..(cut.attrs)() }, &log.io)?),
            (inode, _) => inode,
        };
        // An inode of which nothing was submitted yet has nothing to unmap.
        let Some(inode) = inode else { return Ok(()) };
        let portions = self.unmap_portions(log, &inode, &pages)?;
        for (n, pages) in portions.into_iter().enumerate().rev() {
            self.unmap_at_once(log, lane, &inode, pages, cut.filter(|_| n == 0), None)?;
        }
        Ok(())
    }

    /// Does so, and keeps their space for them: see [`crate::Store::zero`].
    pub fn zero(
        &self,
        log: &Log,
        lane: usize,
        ino: Ino,
        pages: Range<u64>,
        cut: &Cut<'_>,
        who: Claimant,
    ) -> Result<()> {
        log.check_writable()?;
        let inode = match self.get(ino, &log.io)? {
            Some(inode) => inode,
            None => self.get_or_new(ino, &Attrs { size: 0, ..(cut.attrs)() }, &log.io)?,
        };
        let portions = self.unmap_portions(log, &inode, &pages)?;
        for (n, portion) in portions.into_iter().enumerate().rev() {
            let keep = Some((&pages, who));
            self.unmap_at_once(log, lane, &inode, portion, Some(cut).filter(|_| n == 0), keep)?;
        }
        Ok(())
    }

    /// Reads all map nodes that these pages need, so that what cannot be read shows before anything
    /// has changed. They stay in memory unless they are many: then there are several portions, of
    /// which only the first is still to be read when the others are unmapped.
    fn unmap_portions(&self, log: &Log, inode: &CachedInode, pages: &Range<u64>) -> Result<Vec<Range<u64>>> {
        let mut portions = Vec::new();
        let (mut begin, mut from, mut read) = (pages.start, pages.start, 0);
        loop {
            let missing = inode.lock().state.missing_in(&(from..pages.end));
            let Some((w, at)) = missing else { break };
            debug_assert!((from..pages.end).contains(&at), "page {at} was looked at before");
            self.read_node(inode, &w, &log.io, |s| Some(s.missing_in(&(at..pages.end))?.0))?;
            (from, read) = (at, read + 1);
            if read >= NODES_AT_ONCE && at > begin {
                inode.lock().state.evict_clean();
                portions.push(begin..at);
                (begin, read) = (at, 0);
            }
        }
        portions.push(begin..pages.end);
        debug_assert!(portions.first().is_some_and(|p| p.start == pages.start), "{portions:?} of {pages:?}");
        debug_assert!(portions.windows(2).all(|p| p[0].end == p[1].start), "pages between {portions:?}");
        Ok(portions)
    }

    /// Unmaps these pages, or changes nothing. `keep`: the space of these stays the file's, and who
    /// pays for what is kept beside them (`fallocate` keeps two ranges at most).
    fn unmap_at_once(
        &self,
        log: &Log,
        lane: usize,
        inode: &Arc<CachedInode>,
        pages: Range<u64>,
        cut: Option<&Cut<'_>>,
        keep: Option<(&Range<u64>, Claimant)>,
    ) -> Result<()> {
        let to_keep = |s: &InodeState| {
            let prealloc = keep.map(|(pages, _)| s.prealloc().with(pages.clone()))?;
            Some((prealloc, s.without_block(&prealloc, &(0..u64::MAX))))
        };
        let (mut g, kept) = loop {
            let g = inode.lock();
            if g.gone {
                return Err(StoreError::Invalid(format!("inode {} does not exist any more", inode.ino)));
            }
            if let Some((w, at)) = g.state.missing_in(&pages) {
                drop(g);
                self.read_node(inode, &w, &log.io, |s| Some(s.missing_in(&(at..pages.end))?.0))?;
                continue;
            }
            match to_keep(&g.state) {
                None => break (g, None),
                Some((prealloc, Found::Here(unwritten))) => break (g, Some((prealloc, unwritten))),
                Some((_, Found::Missing(w))) => {
                    drop(g);
                    self.read_node(inode, &w, &log.io, |s| match to_keep(s)?.1 {
                        Found::Missing(w) => Some(w),
                        Found::Here(_) => None,
                    })?;
                }
            }
        };
        let inner = &mut *g;
        // What is kept already, or has a block, needs nothing.
        let beside = kept.map_or(0, |(_, unwritten)| unwritten.saturating_sub(inner.state.unwritten()));
        if let Some((_, who)) = keep.filter(|_| beside > 0)
            && !log.space.reserve(lane, beside, who)
        {
            return Err(StoreError::NoSpace);
        }
        let tail_was = inner.state.tail_extent();
        let mut freed: SmallVec<[BlockAddr; 16]> = SmallVec::new();
        let r = match kept {
            None => inner.state.unmap(pages.clone(), &log.io, &mut freed),
            Some(kept) => inner.state.zero(pages.clone(), kept, &log.io, &mut freed),
        };
        debug_assert!(
            inner.state.tail_extent().is_none_or(|tail| !pages.contains(&tail.0)),
            "the tail lies in {pages:?}, which are holes"
        );
        let n = freed.len() as u64;
        freed.into_iter().for_each(|a| inner.drop_block(&log.segments, a));
        if let Some(cut) = cut {
            // Never longer than what was written back: a file that was written, cut and not written
            // back would be found with its size and zeros in place of its content, which it never
            // had (SEMANTICS F3).
            let old = *inner.state.attrs();
            let (mtime, ctime) = (cut.time.unwrap_or(old.mtime), cut.time.unwrap_or(old.ctime));
            let size = cut.size.map_or(old.size, |s| s.min(old.size));
            let version = inner.state.version() + 1;
            inner.state.apply_attrs(&Attrs { size, mtime, ctime, ..old }, version);
            debug_assert_eq!(inner.state.version(), version, "each change has a version of its own");
        }
        if tail_was != inner.state.tail_extent() {
            inner.tail = Logged::No;
        }
        log.space.account_write(lane, beside, beside, 0);
        let more = inner.unwritten_and_nodes_change(&log.space) - (n + beside).cast_signed();
        match more {
            1.. => log.space.charge(lane, more.unsigned_abs()),
            less => {
                inner.freed_later.add(less.unsigned_abs());
                log.space.free_later(Some(lane), less.unsigned_abs());
            }
        }
        self.cache.list_dirty(inode, inner);
        self.cache.update_weight(inode.ino, inner);
        inner.check_invariants();
        drop(g);
        // It cannot be: all nodes were in memory.
        r.inspect_err(|e| log.io.fail(e))
    }
}
