//! The needs of file data from below: the seam between cached pages and the store.

use super::pool::FramePool;
use crate::memfs::stamps::Stamps;
use lanefs_format::{Attrs, Ino};
use std::ops::Range;

pub use lanefs_store::Result as StoreResult;
pub use lanefs_store::{Cut, PageRead};

/// The part of the store that file data calls. No call may lead back into the same file's data.
pub trait PageStore: Sync {
    /// Fills each block, from page `first` on. A page never written, or unmapped since, is zeros
    /// and has `hole` set.
    fn read_pages(&self, ino: Ino, first: u64, pages: &mut [PageRead<'_>]) -> StoreResult<()>;
    /// Makes these pages holes.
    fn unmap(&self, lane: usize, ino: Ino, pages: Range<u64>, cut: Option<&Cut<'_>>) -> StoreResult<()>;
    /// Makes these pages read as zeros and keeps their space, if the volume can; else they become
    /// holes.
    fn zero(&self, lane: usize, ino: Ino, pages: Range<u64>, cut: &Cut<'_>) -> StoreResult<()> {
        self.unmap(lane, ino, pages, Some(cut))
    }
    /// Promises space for `blocks` more blocks; never blocks for long.
    fn reserve(&self, lane: usize, blocks: u64) -> bool;
    /// Promises space for a page that has a block, or is preallocated: also on a full volume, but
    /// not for very many before they are written back.
    fn reserve_rewrite(&self, lane: usize) -> bool;
    /// Returns whether pages that have a block are to be made dirty without a promise.
    fn lends(&self) -> bool;
    /// Returns whether the page is known to have a block. Reads nothing.
    fn has_block(&self, ino: Ino, page: u64) -> bool;
    /// Returns whether the page is known to have no block, and one is kept for it, which it takes
    /// when it is written. Reads nothing.
    fn keeps(&self, ino: Ino, page: u64) -> bool;
    /// Returns whether so many leaves may have dirty pages: what is free has space for the nodes of
    /// maps that they may need when they are written back, of which nothing is promised.
    fn has_space_for_maps(&self, _leaves: u64) -> bool {
        true
    }
    /// Gives a promise back.
    fn unreserve(&self, lane: usize, blocks: u64);
    /// Keeps space for these pages until they are written or become holes; returns for how many
    /// more. `None` if the volume cannot.
    fn preallocate(
        &self,
        lane: usize,
        ino: Ino,
        pages: Range<u64>,
        attrs: &dyn Fn() -> Attrs,
    ) -> StoreResult<Option<u64>>;
    /// Returns for how many other pages space would be kept if these were preallocated.
    fn kept_between(&self, _ino: Ino, _pages: &Range<u64>) -> StoreResult<u64> {
        Ok(0)
    }
    /// Returns whether the page has a block or is preallocated.
    fn has_space(&self, ino: Ino, page: u64) -> StoreResult<bool>;
    /// Returns how many of these pages do.
    fn space_in(&self, ino: Ino, pages: Range<u64>) -> StoreResult<u64>;
    /// Returns the first stored page at or after `page`.
    fn next_data(&self, ino: Ino, page: u64) -> StoreResult<Option<u64>>;
    /// Returns the first page at or after `page` that is not stored.
    fn next_hole(&self, ino: Ino, page: u64) -> StoreResult<Option<u64>>;
}

/// The context of a call on a file's data.
#[derive(Clone, Copy)]
pub struct DataCtx<'a> {
    /// The volume's frames.
    pub pool: &'a FramePool,
    /// The store that pages come from.
    pub store: &'a dyn PageStore,
    /// The file. The same for every call on one [`super::FileData`]; never [`Ino::NONE`].
    pub ino: Ino,
    /// The caller's lane.
    pub lane: usize,
    /// Pages that a write brings into memory leave it when they have been written back, as with
    /// Linux's RWF_DONTCACHE.
    pub once: bool,
    /// What is written comes from a cache of somebody else, in another order perhaps than it was
    /// written in (`gaps.rs`).
    pub any_order: bool,
    /// The stamps in which other lanes than the file's home note pages that became dirty, and
    /// whether this one does.
    pub stamps: Option<(&'a Stamps, bool)>,
}
