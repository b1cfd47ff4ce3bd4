//! Keeping space for pages of a file before they are written (`fallocate(2)`).
//!
//! 1. A preallocated page without a block is *unwritten*. Users' space is charged for it as for a
//!    block, from the call that preallocates it until it is written or given up: so it is to be had
//!    when it is written, though every write goes to a new place. A page that is written may bring
//!    a promise of its own ([`crate::log::space`]), which the block takes. Either way the charge
//!    for the unwritten page is given back with it.
//! 2. Which pages those are lies in the inode ([`lanefs_format::prealloc`]), with their number;
//!    each slot has the sum of these numbers, so that opening need not read all inodes. An update
//!    that is replayed counts its pages anew.
//! 3. As with all that is not names, it is durable with the inode's next update: a file that was
//!    synced has its space after a crash.

use crate::error::{Result, StoreError};
use crate::inodes::Inodes;
use crate::inodes::cache::{CachedInode, InodeEntry};
use crate::log::Log;
use crate::log::io::Io;
use crate::log::space::{Claimant, Space};
use crate::tree::inode_state::{InodeState, PageAt};
use crate::tree::radix::Found;
use lanefs_format::prealloc::Prealloc;
use lanefs_format::{Attrs, Ino, PAGES_END};
use std::ops::Range;
use std::sync::Arc;

/// So many pages are looked at under one lock: 4 GiB.
const AT_ONCE: u64 = 1 << 20;

impl Inodes {
    /// Keeps space for these pages, those that have a block excepted: see
    /// [`crate::Store::preallocate`].
    pub fn preallocate(
        &self,
        log: &Log,
        lane: usize,
        ino: Ino,
        pages: Range<u64>,
        attrs: &dyn Fn() -> Attrs,
        who: Claimant,
    ) -> Result<u64> {
        log.check_writable()?;
        if pages.start > pages.end || pages.end > PAGES_END {
            return Err(StoreError::Invalid(format!("pages {pages:?} are beyond what a map can hold")));
        }
        let inode = match self.get(ino, &log.io)? {
            Some(inode) => inode,
            None => self.get_or_new(ino, &Attrs { size: 0, ..attrs() }, &log.io)?,
        };
        let len = pages.end - pages.start;
        // What would fill the volume and fail does not begin.
        if len > AT_ONCE {
            // A damaged map may have a page that is the tail as well, and so more than all.
            let missing = len.saturating_sub(self.ask(&inode, &log.io, |s| s.room_in(&pages))?);
            if !log.space.has_for(who, missing) {
                return Err(StoreError::NoSpace);
            }
        }
        let (mut from, mut more) = (pages.start, 0);
        while from < pages.end {
            let to = pages.end.min(from.saturating_add(AT_ONCE));
            debug_assert!(from < to, "a portion of no pages");
            more += self.preallocate_at_once(log, lane, &inode, from..to, who)?;
            from = to;
        }
        debug_assert_eq!(from, pages.end, "all of the pages, and no others");
        Ok(more)
    }

    fn preallocate_at_once(
        &self,
        log: &Log,
        lane: usize,
        inode: &Arc<CachedInode>,
        pages: Range<u64>,
        who: Claimant,
    ) -> Result<u64> {
        debug_assert!(pages.start < pages.end && pages.end - pages.start <= AT_ONCE, "{pages:?} at once");
        debug_assert!(pages.end <= PAGES_END, "{pages:?} are beyond what a map can hold");
        let unwritten_of = |s: &InodeState, p: &Prealloc| s.without_block(p, &(0..u64::MAX));
        loop {
            let mut guard = inode.lock();
            let inner = &mut *guard;
            if inner.gone {
                return Err(StoreError::Invalid(format!("inode {} does not exist any more", inode.ino)));
            }
            let prealloc = inner.state.prealloc().with(pages.clone());
            let unwritten = match unwritten_of(&inner.state, &prealloc) {
                Found::Here(n) => n,
                Found::Missing(w) => {
                    drop(guard);
                    self.read_node(inode, &w, &log.io, |s| {
                        match unwritten_of(s, &s.prealloc().with(pages.clone())) {
                            Found::Missing(w) => Some(w),
                            Found::Here(_) => None,
                        }
                    })?;
                    continue;
                }
            };
            let more = unwritten.saturating_sub(inner.state.unwritten());
            if more == 0 {
                return Ok(0);
            }
            if !log.space.reserve(lane, more, who) {
                return Err(StoreError::NoSpace);
            }
            inner.state.preallocate(prealloc, unwritten);
            // The reservation becomes the charge.
            let charged = inner.unwritten_change();
            debug_assert_eq!(charged, more as i64, "what is charged is what was reserved");
            debug_assert!(
                unwritten <= prealloc.pages(),
                "{unwritten} unwritten pages of {}",
                prealloc.pages()
            );
            debug_assert_eq!(inner.state.prealloc(), prealloc, "unwritten pages keep their ranges (I3)");
            log.space.account_write(lane, more, more, 0);
            inner.state.next_version();
            self.cache.list_dirty(inode, inner);
            self.cache.update_weight(inode.ino, inner);
            inner.check_invariants();
            return Ok(more);
        }
    }

    /// Returns whether a page has a block or space kept for one: writing it takes nothing from what
    /// is free, but for a while.
    pub fn has_room(&self, ino: Ino, page: u64, io: &Io) -> Result<bool> {
        let Some(inode) = self.get(ino, io)? else { return Ok(false) };
        self.ask(&inode, io, |s: &InodeState| {
            s.lookup(page).map(|at| at != PageAt::Hole || s.prealloc().contains(page))
        })
    }

    /// Returns for how many other pages space would be kept if these were preallocated.
    pub fn kept_between(&self, ino: Ino, pages: &Range<u64>, io: &Io) -> Result<u64> {
        let Some(inode) = self.get(ino, io)? else { return Ok(0) };
        let i = inode.lock();
        debug_assert!(pages.start <= pages.end && pages.end <= PAGES_END, "{pages:?}");
        Ok(i.state.prealloc().between(pages))
    }

    /// Returns whether the page is known to have a block of its own: nothing is read for that.
    pub fn has_block(&self, ino: Ino, page: u64) -> bool {
        let Some(inode) = self.cache.cached(ino) else { return false };
        let i = inode.lock();
        !i.gone && matches!(i.state.lookup(page), Found::Here(PageAt::Block(_)))
    }

    /// Returns whether the page is known to have no block, and one is kept for it: nothing is read
    /// for that.
    pub fn keeps(&self, ino: Ino, page: u64) -> bool {
        debug_assert!(page < PAGES_END, "page {page} is beyond what a map can hold");
        let Some(inode) = self.cache.cached(ino) else { return false };
        let i = inode.lock();
        !i.gone
            && i.state.prealloc().contains(page)
            && matches!(i.state.lookup(page), Found::Here(PageAt::Hole))
    }

    /// Returns whether the inode has preallocated pages, and space for each of its first `pages`,
    /// and for the next one if any behind these are preallocated: see [`crate::Store::is_backed`].
    pub fn is_backed(&self, ino: Ino, pages: u64, io: &Io) -> Result<bool> {
        debug_assert!(pages <= PAGES_END, "{pages} pages are more than a map can hold");
        let Some(inode) = self.get(ino, io)? else { return Ok(false) };
        self.ask(&inode, io, |s| match s.prealloc().ranges().last() {
            Some(last) => {
                let pages = pages + u64::from(last.end > pages);
                s.room_in(&(0..pages)).map(|n| n == pages)
            }
            None => Found::Here(false),
        })
    }

    /// Returns how many of these pages have a block, or space kept for one.
    pub fn room_in(&self, ino: Ino, pages: Range<u64>, io: &Io) -> Result<u64> {
        let Some(inode) = self.get(ino, io)? else { return Ok(0) };
        self.ask(&inode, io, |s| s.room_in(&pages))
    }
}

/// Pages of a file for which a node of its map is not charged before it is written.
const PAGES_A_NODE: u64 = 64;
/// Dirty nodes of an inode's map that nobody counts: an inode that is dirty is counted for as many.
const USUALLY_DIRTY: u64 = 4;

impl InodeEntry {
    /// Charges space for the preallocated pages of an inode that came to have no block, and for
    /// nodes of its map that have none, or gives it back; and counts its dirty nodes. To be called
    /// after each change of its pages, and when its map was written, under its lock.
    ///
    /// A node for [`PAGES_A_NODE`] pages, and a first one, comes out of what is kept back: what is
    /// free can be written to the last block. A file with pages here and there has more nodes.
    pub fn charge_unwritten(&mut self, space: &Space, lane: usize) {
        match self.unwritten_and_nodes_change(space) {
            more @ 1.. => space.charge(lane, more.unsigned_abs()),
            less => space.credit(lane, less.unsigned_abs()),
        }
    }

    /// Returns how many more blocks are to be charged for these than before, for a caller that sees
    /// to it; fewer than none: they are given back.
    pub fn unwritten_and_nodes_change(&mut self, space: &Space) -> i64 {
        debug_assert!(!self.gone || self.state.pending_nodes() == 0, "nodes of an inode that is gone");
        let usual = 1 + self.state.mapped_pages() / PAGES_A_NODE;
        let nodes = self.state.pending_nodes().saturating_sub(usual) * space.copies();
        let more_nodes = nodes.wrapping_sub(std::mem::replace(&mut self.map_charged, nodes)) as i64;
        // Few at a time: the count is one line for all.
        let dirty = match self.state.dirty_nodes() {
            few if few <= USUALLY_DIRTY => 0,
            n => n,
        };
        if dirty == 0 && self.nodes_counted > 0 || dirty.abs_diff(self.nodes_counted) >= USUALLY_DIRTY {
            let before = std::mem::replace(&mut self.nodes_counted, dirty);
            space.count_dirty_nodes(dirty.wrapping_sub(before) as i64);
        }
        self.unwritten_change() + more_nodes
    }
}
