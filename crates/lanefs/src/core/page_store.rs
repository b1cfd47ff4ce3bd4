//! The store as file data sees it.

use super::Core;
use crate::memfs::Inode;
use crate::memfs::data::{Cut, DataCtx, PageRead, PageStore, StoreResult};
use lanefs_format::{Attrs, Ino, PAGES_END};
use lanefs_store::{Claimant, Store};
use std::ops::Range;

/// The seam's side of the store, for pages of somebody ([`USERS`], [`ROOTS`], [`ACCEPTED`]).
#[repr(transparent)]
pub(crate) struct Pages<const WHOSE: u8>(Store);

/// Pages that an ordinary user writes, who leaves the last of a volume to root.
const USERS: u8 = 0;
/// Pages of root; also those of which none are added.
const ROOTS: u8 = 1;
/// Pages that somebody has accepted already, which get their space while the host of an image has
/// none (7 of `space`).
const ACCEPTED: u8 = 2;

const _: () = assert!(
    size_of::<Pages<USERS>>() == size_of::<Store>() && align_of::<Pages<USERS>>() == align_of::<Store>()
);

impl<const WHOSE: u8> Pages<WHOSE> {
    const CLAIMANT: Claimant = if WHOSE == USERS { Claimant::User } else { Claimant::Root };

    /// Sees a store as a source of pages.
    fn of(store: &Store) -> &Pages<WHOSE> {
        // SAFETY: `Pages` is a transparent wrapper of `Store`.
        unsafe { &*std::ptr::from_ref(store).cast::<Pages<WHOSE>>() }
    }
}

/// Checks a range of pages that file data hands over.
fn check_pages(ino: Ino, pages: &Range<u64>) {
    debug_assert!(!ino.is_none(), "pages of no inode");
    debug_assert!(pages.start <= pages.end, "pages {pages:?} of inode {ino}");
    debug_assert!(pages.end <= PAGES_END, "pages {pages:?} lie behind the largest file");
}

impl<const WHOSE: u8> PageStore for Pages<WHOSE> {
    fn read_pages(&self, ino: Ino, first: u64, pages: &mut [PageRead<'_>]) -> StoreResult<()> {
        debug_assert!(!pages.is_empty(), "nothing is to be read");
        check_pages(ino, &(first..first + pages.len() as u64));
        self.0.read_pages(ino, first, pages)
    }
    fn unmap(&self, lane: usize, ino: Ino, pages: Range<u64>, cut: Option<&Cut<'_>>) -> StoreResult<()> {
        check_pages(ino, &pages);
        self.0.unmap(lane, ino, pages, cut)
    }
    fn zero(&self, lane: usize, ino: Ino, pages: Range<u64>, cut: &Cut<'_>) -> StoreResult<()> {
        check_pages(ino, &pages);
        match self.0.has_preallocation() {
            true => self.0.zero(lane, ino, pages, cut, Self::CLAIMANT),
            false => self.0.unmap(lane, ino, pages, Some(cut)),
        }
    }
    fn reserve(&self, lane: usize, blocks: u64) -> bool {
        debug_assert!(blocks <= PAGES_END, "{blocks} blocks for one call");
        let there = match WHOSE {
            ACCEPTED => self.0.reserve_accepted(lane, blocks),
            _ => self.0.reserve_for(lane, blocks, Self::CLAIMANT),
        };
        there || blocks == 1 && self.0.reserve_last_page(lane)
    }
    fn reserve_rewrite(&self, lane: usize) -> bool {
        self.0.reserve_rewrite(lane)
    }
    fn lends(&self) -> bool {
        self.0.lends()
    }
    fn has_block(&self, ino: Ino, page: u64) -> bool {
        check_pages(ino, &(page..page + 1));
        self.0.has_block(ino, page)
    }
    fn keeps(&self, ino: Ino, page: u64) -> bool {
        check_pages(ino, &(page..page + 1));
        self.0.keeps(ino, page)
    }
    fn has_space_for_maps(&self, leaves: u64) -> bool {
        self.0.has_space_for_maps(leaves)
    }
    fn unreserve(&self, lane: usize, blocks: u64) {
        debug_assert!(blocks <= PAGES_END, "{blocks} blocks of one call");
        self.0.unreserve(lane, blocks);
    }
    fn preallocate(
        &self,
        lane: usize,
        ino: Ino,
        pages: Range<u64>,
        attrs: &dyn Fn() -> Attrs,
    ) -> StoreResult<Option<u64>> {
        check_pages(ino, &pages);
        if !self.0.has_preallocation() {
            return Ok(None);
        }
        self.0.preallocate(lane, ino, pages, attrs, Self::CLAIMANT).map(Some)
    }
    fn kept_between(&self, ino: Ino, pages: &Range<u64>) -> StoreResult<u64> {
        check_pages(ino, pages);
        match self.0.has_preallocation() {
            true => self.0.kept_between(ino, pages),
            false => Ok(0),
        }
    }
    fn has_space(&self, ino: Ino, page: u64) -> StoreResult<bool> {
        self.0.has_room(ino, page)
    }
    fn space_in(&self, ino: Ino, pages: Range<u64>) -> StoreResult<u64> {
        check_pages(ino, &pages);
        self.0.room_in(ino, pages)
    }
    fn next_data(&self, ino: Ino, page: u64) -> StoreResult<Option<u64>> {
        let next = self.0.next_data(ino, page)?;
        debug_assert!(next.is_none_or(|n| n >= page), "{next:?} lies before page {page}");
        Ok(next)
    }
    fn next_hole(&self, ino: Ino, page: u64) -> StoreResult<Option<u64>> {
        let next = self.0.next_hole(ino, page)?;
        debug_assert!(next.is_none_or(|n| n >= page), "{next:?} lies before page {page}");
        Ok(next)
    }
}

/// Returns the context with which a call on this file's data is made that adds nothing to it.
#[inline]
pub(crate) fn data_ctx<'a>(core: &'a Core, inode: &'a Inode) -> DataCtx<'a> {
    ctx_with(core, inode, Pages::<ROOTS>::of(&core.store))
}

/// Returns the same for a call that may add pages, which this claimant pays.
#[inline]
pub(crate) fn data_ctx_of<'a>(core: &'a Core, inode: &'a Inode, who: Claimant) -> DataCtx<'a> {
    match who {
        Claimant::User => ctx_with(core, inode, Pages::<USERS>::of(&core.store)),
        Claimant::Root => data_ctx(core, inode),
    }
}

/// Returns the same for pages that somebody has accepted already.
pub(crate) fn accepted_data_ctx<'a>(core: &'a Core, inode: &'a Inode) -> DataCtx<'a> {
    ctx_with(core, inode, Pages::<ACCEPTED>::of(&core.store))
}

#[inline]
fn ctx_with<'a>(core: &'a Core, inode: &'a Inode, store: &'a dyn PageStore) -> DataCtx<'a> {
    let lane = core.journal.lanes.mine();
    debug_assert!(inode.data().is_some(), "inode {} is no file", inode.ino);
    DataCtx {
        pool: &core.memfs.frames,
        store,
        ino: inode.ino,
        lane,
        once: false,
        any_order: false,
        stamps: Some(inode.page_stamps(lane)),
    }
}
