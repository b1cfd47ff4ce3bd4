//! The pages of an inode for which space is kept.

use super::InodeState;
use crate::error::Result;
use crate::tree::block_io::BlockSource;
use crate::tree::radix::Found;
use lanefs_format::BlockAddr;
use lanefs_format::prealloc::Prealloc;
use std::ops::Range;

impl InodeState {
    /// Returns the pages that are preallocated.
    pub fn prealloc(&self) -> Prealloc {
        self.prealloc
    }

    /// Returns how many of these have no block.
    pub fn unwritten(&self) -> u64 {
        self.unwritten
    }

    /// Returns how many have none in the inode block on disk.
    pub(crate) fn unwritten_on_disk(&self) -> u64 {
        self.unwritten_on_disk
    }

    /// Returns what a record has to state of them, if anything.
    pub(crate) fn prealloc_logged(&self) -> Option<Prealloc> {
        self.was_preallocated.then_some(self.prealloc)
    }

    /// Returns the blocks that the file takes or has space for, a tail counting as one.
    pub fn blocks(&self) -> u64 {
        let tail = self.tail.as_ref().is_some_and(|t| !self.prealloc.contains(t.0));
        // What a damaged inode counts may be any number.
        self.map.pages().saturating_add(self.unwritten).saturating_add(tail.into())
    }

    /// Returns how many of these pages have a block of their own.
    pub fn mapped_in(&self, pages: &Range<u64>) -> Found<u64> {
        let (mut n, mut at) = (0, pages.start);
        while at < pages.end {
            let data = match self.map.next_data(at) {
                Found::Missing(w) => return Found::Missing(w),
                Found::Here(data) => data.filter(|d| *d < pages.end),
            };
            let Some(data) = data else { break };
            match self.map.next_hole(data) {
                Found::Missing(w) => return Found::Missing(w),
                Found::Here(hole) => {
                    debug_assert!(
                        at <= data && data < hole,
                        "data at {data}, a hole at {hole}, from {at} on"
                    );
                    (n, at) = (n + hole.min(pages.end) - data, hole);
                }
            }
        }
        debug_assert!(n <= pages.end.saturating_sub(pages.start), "{n} of {pages:?} are mapped");
        Found::Here(n)
    }

    /// Returns how many of these pages have a block or space kept for one.
    pub fn room_in(&self, pages: &Range<u64>) -> Found<u64> {
        let tail = self.tail.as_ref().map(|t| t.0).filter(|t| pages.contains(t));
        let tail = u64::from(tail.is_some_and(|t| !self.prealloc.contains(t)));
        match self.without_block(&self.prealloc, pages) {
            Found::Here(kept) => self.mapped_in(pages).map(|mapped| mapped + kept + tail),
            missing => missing,
        }
    }

    /// Returns how many of these pages are in `prealloc` and have no block.
    pub(crate) fn without_block(&self, prealloc: &Prealloc, pages: &Range<u64>) -> Found<u64> {
        let mut n = 0;
        for r in prealloc.ranges_in(pages) {
            match self.mapped_in(&r) {
                Found::Here(mapped) => n += (r.end - r.start) - mapped,
                missing => return missing,
            }
        }
        debug_assert!(n <= prealloc.pages_in(pages), "{n} of {prealloc:?} have no block");
        Found::Here(n)
    }

    /// Sets the pages that are preallocated, of which so many have no block.
    pub(crate) fn preallocate(&mut self, prealloc: Prealloc, unwritten: u64) {
        debug_assert!(unwritten <= prealloc.pages(), "{unwritten} of {prealloc:?} are not written");
        self.was_preallocated = true;
        self.dirty = true;
        self.prealloc = prealloc;
        self.set_unwritten(unwritten);
        self.check_invariants();
    }

    /// Makes unwritten pages of a range of pages; `freed` gets the blocks they had. `prealloc` are
    /// the pages that are preallocated then, these among them, of which so many have no block now.
    pub(crate) fn zero(
        &mut self,
        pages: Range<u64>,
        (prealloc, unwritten): (Prealloc, u64),
        source: &(impl BlockSource + ?Sized),
        freed: &mut impl Extend<BlockAddr>,
    ) -> Result<()> {
        debug_assert_eq!(prealloc.pages_in(&pages), pages.end - pages.start, "{pages:?} of {prealloc:?}");
        self.begin_unmap(&pages);
        let mut unmapped = 0;
        let r = self.map.unmap(pages, source, &mut |_, r| {
            unmapped += 1;
            freed.extend([r.addr]);
        });
        self.preallocate(prealloc, unwritten + unmapped);
        r.map(|_| ())
    }

    /// Takes the preallocated pages of a record, whose pages are in place.
    pub(crate) fn replay_prealloc(
        &mut self,
        prealloc: Prealloc,
        source: &(impl BlockSource + ?Sized),
    ) -> Result<()> {
        let unwritten = self.resolve(source, |s| s.without_block(&prealloc, &(0..u64::MAX)))?;
        self.preallocate(prealloc, unwritten);
        Ok(())
    }

    /// Sets how many preallocated pages have no block (I3).
    pub(super) fn set_unwritten(&mut self, unwritten: u64) {
        self.unwritten = unwritten;
        if unwritten == 0 {
            self.prealloc = Prealloc::NONE;
        }
    }
}
