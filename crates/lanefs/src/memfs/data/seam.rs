//! What file data needs from below: the seam between cached pages and the store.

use super::pool::FramePool;
use crate::memfs::stamps::Stamps;
use lanefs_format::{Attrs, Ino};
use std::ops::Range;

pub use lanefs_store::Result as StoreResult;
pub use lanefs_store::{Cut, PageRead};

/// The part of the store that file data calls. No call may lead back into the same file's data.
pub trait PageStore: Sync {
    /// Fills each block, from page `first` on. A page never written, or unmapped since, is zeros
    /// and says `hole`.
    fn read_pages(&self, ino: Ino, first: u64, pages: &mut [PageRead<'_>]) -> StoreResult<()>;
    /// These pages are holes from now on.
    fn unmap(&self, lane: usize, ino: Ino, pages: Range<u64>, cut: Option<&Cut<'_>>) -> StoreResult<()>;
    /// Promises room for `blocks` more blocks; never blocks for long.
    fn reserve(&self, lane: usize, blocks: u64) -> bool;
    /// Promises room for a page that has a block, or is preallocated: also on a full volume, but
    /// not for very many before they are written back.
    fn reserve_rewrite(&self, lane: usize) -> bool;
    /// Gives a promise back.
    fn unreserve(&self, lane: usize, blocks: u64);
    /// Keeps room for these pages until they are written or become holes; returns for how many
    /// more. `None` if the volume cannot.
    fn preallocate(
        &self,
        lane: usize,
        ino: Ino,
        pages: Range<u64>,
        attrs: &dyn Fn() -> Attrs,
    ) -> StoreResult<Option<u64>>;
    /// Whether the page has a block or is preallocated.
    fn has_room(&self, ino: Ino, page: u64) -> StoreResult<bool>;
    /// How many of these pages do.
    fn room_in(&self, ino: Ino, pages: Range<u64>) -> StoreResult<u64>;
    /// The first stored page at or after `page`.
    fn next_data(&self, ino: Ino, page: u64) -> StoreResult<Option<u64>>;
    /// The first page at or after `page` that is not stored.
    fn next_hole(&self, ino: Ino, page: u64) -> StoreResult<Option<u64>>;
}

/// What every call on a file's data is made with.
#[derive(Clone, Copy)]
pub struct DataCtx<'a> {
    /// The volume's frames.
    pub pool: &'a FramePool,
    /// Where pages come from.
    pub store: &'a dyn PageStore,
    /// The file. The same for every call on one [`super::FileData`]; never [`Ino::NONE`].
    pub ino: Ino,
    /// The caller's lane.
    pub lane: usize,
    /// Pages that a write brings into memory leave it when they have been written back, as with
    /// Linux's RWF_DONTCACHE.
    pub once: bool,
    /// Where other lanes than the file's home note pages that became dirty, and whether this one
    /// does.
    pub stamps: Option<(&'a Stamps, bool)>,
}
