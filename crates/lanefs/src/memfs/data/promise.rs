//! What a page of a file takes of the volume's space before it becomes dirty (D7).

use super::frame::{DIRTY, HOLE, LENT, PageGuard, STORED, WRITEBACK};
use super::{DataCtx, FileData, PAGE};
use crate::error::{Error, Result};

/// The error for a page that has space of its own and is not written for now: what full volumes
/// lend to such pages is lent to others, until these are written back.
pub const SPACE_LENT: Error = Error::Posix(libc::EAGAIN);

impl FileData {
    /// Returns whether a locked page that is not dirty becomes so without a promise (D7). Not one
    /// in which the file ends: the store may move it into the inode, which then takes a block.
    pub(super) fn is_lent(&self, ctx: &DataCtx<'_>, page: &PageGuard<'_>) -> bool {
        debug_assert!(!page.has(DIRTY | LENT), "it was asked before");
        ctx.store.lends()
            && !page.has(WRITEBACK | HOLE)
            && (page.page() + 1) * PAGE as u64 <= self.size()
            && (page.has(STORED) || ctx.store.has_block(ctx.ino, page.page()))
    }

    /// Reserves for a page that has space of its own, on a full volume: a block that it will give
    /// back, or one that is kept for it. [`SPACE_LENT`] if others have all that is lent for that.
    /// Returns whether it is dirty without a promise: the way to its block is in memory now.
    #[cold]
    pub(super) fn reserve_own(&self, ctx: &DataCtx<'_>, page: &PageGuard<'_>) -> Result<bool> {
        debug_assert!(!page.has(DIRTY), "page {} has what it needs", page.page());
        // What cannot be read is refused for want of space.
        match ctx.store.has_space(ctx.ino, page.page()) {
            Ok(true) if self.is_lent(ctx, page) => Ok(true),
            Ok(true) if ctx.store.reserve_rewrite(ctx.lane) => Ok(false),
            Ok(true) => Err(SPACE_LENT),
            _ => Err(Error::Posix(libc::ENOSPC)),
        }
    }
}
