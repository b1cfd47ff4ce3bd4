//! The store as file data sees it.

use super::Core;
use crate::memfs::Inode;
use crate::memfs::data::{Cut, DataCtx, PageRead, PageStore, StoreResult};
use lanefs_format::{Attrs, Ino};
use lanefs_store::Store;
use std::ops::Range;

/// The seam's side of the store.
#[repr(transparent)]
pub(crate) struct Pages(Store);

impl Pages {
    /// Sees a store as a source of pages.
    fn of(store: &Store) -> &Pages {
        // SAFETY: `Pages` is a transparent wrapper of `Store`.
        unsafe { &*std::ptr::from_ref(store).cast::<Pages>() }
    }
}

impl PageStore for Pages {
    fn read_pages(&self, ino: Ino, first: u64, pages: &mut [PageRead<'_>]) -> StoreResult<()> {
        self.0.read_pages(ino, first, pages)
    }
    fn unmap(&self, lane: usize, ino: Ino, pages: Range<u64>, cut: Option<&Cut<'_>>) -> StoreResult<()> {
        self.0.unmap(lane, ino, pages, cut)
    }
    fn reserve(&self, lane: usize, blocks: u64) -> bool {
        self.0.reserve(lane, blocks)
    }
    fn reserve_rewrite(&self, lane: usize) -> bool {
        self.0.reserve_rewrite(lane)
    }
    fn unreserve(&self, lane: usize, blocks: u64) {
        self.0.unreserve(lane, blocks);
    }
    fn preallocate(
        &self,
        lane: usize,
        ino: Ino,
        pages: Range<u64>,
        attrs: &dyn Fn() -> Attrs,
    ) -> StoreResult<Option<u64>> {
        if !self.0.has_preallocation() {
            return Ok(None);
        }
        self.0.preallocate(lane, ino, pages, attrs).map(Some)
    }
    fn has_room(&self, ino: Ino, page: u64) -> StoreResult<bool> {
        self.0.has_room(ino, page)
    }
    fn room_in(&self, ino: Ino, pages: Range<u64>) -> StoreResult<u64> {
        self.0.room_in(ino, pages)
    }
    fn next_data(&self, ino: Ino, page: u64) -> StoreResult<Option<u64>> {
        self.0.next_data(ino, page)
    }
    fn next_hole(&self, ino: Ino, page: u64) -> StoreResult<Option<u64>> {
        self.0.next_hole(ino, page)
    }
}

/// Returns the context with which a call on this file's data is made.
#[inline]
pub(crate) fn data_ctx<'a>(core: &'a Core, inode: &'a Inode) -> DataCtx<'a> {
    let lane = core.journal.lanes.mine();
    DataCtx {
        pool: &core.memfs.frames,
        store: Pages::of(&core.store),
        ino: inode.ino,
        lane,
        once: false,
        stamps: Some(inode.page_stamps(lane)),
    }
}
