//! What a page of a file takes of the volume's space before it becomes dirty (D7).

use super::frame::{DIRTY, HOLE, KEPT, LENT, PageGuard, STORED, WRITEBACK};
use super::run::Run;
use super::write::InHand;
use super::{DataCtx, FileData, PAGE};
use crate::error::{Error, Result};
use std::ops::{ControlFlow, Range};

/// The error for a page that has space of its own and is not written for now: what full volumes
/// lend to such pages is lent to others, until these are written back.
pub const SPACE_LENT: Error = Error::Posix(libc::EAGAIN);

impl FileData {
    /// Returns the mark with which a locked page that is not dirty becomes so without a promise
    /// (D7), 0 if it takes one. `whole`: it will be written to its end.
    pub(super) fn own_space(&self, ctx: &DataCtx<'_>, page: &PageGuard<'_>, whole: bool) -> u32 {
        if self.is_kept(ctx, page, whole) {
            KEPT
        } else if self.is_lent(ctx, page) {
            LENT
        } else {
            0
        }
    }

    /// Returns whether the block of a locked page is the one that is kept for it. Not of one in
    /// which the file ends: see [`FileData::is_lent`].
    fn is_kept(&self, ctx: &DataCtx<'_>, page: &PageGuard<'_>, whole: bool) -> bool {
        debug_assert!(!page.has(KEPT), "it was asked before");
        if !self.may_keep() || page.has(WRITEBACK) {
            return false;
        }
        let inside = whole || (page.page() + 1) * PAGE as u64 <= self.size();
        inside && ctx.store.keeps(ctx.ino, page.page())
    }

    /// Gives the promise of a dirty page back that was written bit by bit, to its end now, and for
    /// which a block is kept.
    pub(super) fn give_promise_back(&self, ctx: &DataCtx<'_>, page: &PageGuard<'_>) {
        debug_assert!(page.has(DIRTY), "a clean page has no promise");
        if !page.has(LENT | KEPT) && self.is_kept(ctx, page, true) {
            page.set(KEPT);
            ctx.store.unreserve(ctx.lane, 1);
        }
    }

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
    /// Returns the mark of [`FileData::own_space`]: the way to its block is in memory now.
    #[cold]
    pub(super) fn reserve_own(&self, ctx: &DataCtx<'_>, page: &PageGuard<'_>, whole: bool) -> Result<u32> {
        debug_assert!(!page.has(DIRTY), "page {} has what it needs", page.page());
        // What cannot be read is refused for want of space.
        match ctx.store.has_space(ctx.ino, page.page()) {
            Ok(true) => match self.own_space(ctx, page, whole) {
                0 if ctx.store.reserve_rewrite(ctx.lane) => Ok(0),
                0 => Err(SPACE_LENT),
                mark => Ok(mark),
            },
            _ => Err(Error::Posix(libc::ENOSPC)),
        }
    }

    /// Returns how many of these pages have no space: no block, no promise, and none is kept for
    /// them. What others do meanwhile may be missed.
    pub fn without_space(&self, ctx: &DataCtx<'_>, pages: Range<u64>) -> Result<u64> {
        debug_assert!(pages.start <= pages.end, "{pages:?}");
        let mut promised = 0;
        let _ = self.each_page(pages.clone(), false, &crossbeam_epoch::pin(), &mut |_, desc| {
            promised += u64::from(desc.state() & (DIRTY | HOLE) == DIRTY | HOLE);
            ControlFlow::Continue(())
        });
        let all = pages.end - pages.start;
        Ok(all.saturating_sub(ctx.store.space_in(ctx.ino, pages)? + promised))
    }

    /// Reserves for the pages of a run that are not dirty. If there is not enough for all, the run
    /// is cut to its first page; if there is nothing for that, the error is returned.
    pub(super) fn reserve_run(&self, ctx: &DataCtx<'_>, run: &mut Run<'_>, hand: &mut InHand) -> Result<()> {
        if self.may_keep() || ctx.store.lends() {
            for (n, page) in run.pages.iter().enumerate().filter(|(_, p)| !p.has(DIRTY)) {
                match self.own_space(ctx, page, true) {
                    LENT => run.lent |= 1 << n,
                    KEPT => run.kept |= 1 << n,
                    _ => {}
                }
            }
        }
        debug_assert_eq!(run.lent & run.kept, 0, "a page has a block, or one is kept for it");
        loop {
            let clean = run.pages.iter().filter(|p| !p.has(DIRTY)).count() as u64;
            let clean = clean - u64::from((run.lent | run.kept).count_ones());
            let more = clean.saturating_sub(hand.blocks);
            if more == 0 || ctx.store.reserve(ctx.lane, more) {
                hand.blocks -= clean - more;
                return Ok(());
            }
            if let [page] = &run.pages[..] {
                debug_assert!(hand.blocks == 0, "a block is in hand");
                let own = self.reserve_own(ctx, page, true)?;
                (run.lent, run.kept) = (u64::from(own == LENT), u64::from(own == KEPT));
                return Ok(());
            }
            while run.pages.len() > 1 {
                run.undo_last(ctx, &mut hand.frames);
            }
        }
    }

    /// Marks the pages of a run that have become dirty without a promise.
    pub(super) fn mark_own(&self, ctx: &DataCtx<'_>, run: &Run<'_>) {
        debug_assert!((run.lent | run.kept) >> run.pages.len() == 0, "of {} pages", run.pages.len());
        if run.lent | run.kept == 0 {
            return;
        }
        for (n, page) in run.pages.iter().enumerate() {
            page.set((LENT * (run.lent >> n & 1) as u32) | (KEPT * (run.kept >> n & 1) as u32));
        }
        if run.lent != 0 {
            ctx.pool.count_lent(ctx.lane, run.lent.count_ones().into());
        }
    }
}
