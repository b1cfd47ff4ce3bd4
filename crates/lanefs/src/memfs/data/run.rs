//! Consecutive pages that are locked and written together.

use super::frame::{DIRTY, PageGuard, STABLE, WRITEBACK};
use super::pool::Hand;
use super::tree;
use super::{DataCtx, FileData, PAGE};
use lanefs_sync::copy_racy;
use smallvec::SmallVec;

/// The most pages that are locked and written together: their readers wait for the copy.
pub(super) const RUN: usize = 16;
const _: () = assert!(RUN <= u64::BITS as usize, "a bit for each page of a run");

/// Consecutive pages that are locked to be written.
pub(super) struct Run<'g> {
    pub(super) pages: SmallVec<[PageGuard<'g>; RUN]>,
    /// The pages for which a frame was attached, a bit each.
    pub(super) new: u64,
    /// A frame for each page whose bytes are to stay.
    pub(super) spare: Hand,
    /// The pages that become dirty without a promise: that have a block.
    pub(super) lent: u64,
    /// Those for which one is kept.
    pub(super) kept: u64,
}

impl<'g> Run<'g> {
    /// Puts other frames in the place of those whose bytes are to stay.
    pub(super) fn displace(&mut self, data: &FileData, ctx: &DataCtx<'g>) {
        if self.spare.is_empty() {
            return;
        }
        let pages = std::mem::take(&mut self.pages);
        self.pages = pages
            .into_iter()
            .map(|page| match page.has(STABLE).then(|| self.spare.pop()).flatten() {
                Some(frame) => data.displace(ctx, page, frame, false),
                None => page,
            })
            .collect();
        debug_assert!(!self.pages.iter().any(|page| page.has(STABLE)), "an image is written over");
    }

    /// Lets go of the last page, which was not written after all; a frame attached for it goes back
    /// to the hand.
    pub(super) fn undo_last(&mut self, ctx: &DataCtx<'_>, hand: &mut Hand) {
        let Some(guard) = self.pages.pop() else { return };
        self.lent &= !(1 << self.pages.len());
        self.kept &= !(1 << self.pages.len());
        undo(ctx, guard, self.new >> self.pages.len() & 1 == 1, hand);
    }
}

/// Lets go of a page that was not written after all; a frame attached for it goes back to the hand.
pub(super) fn undo(ctx: &DataCtx<'_>, guard: PageGuard<'_>, new: bool, hand: &mut Hand) {
    if !new {
        return guard.unchanged();
    }
    debug_assert!(!guard.has(DIRTY | WRITEBACK), "its block would be lost (D7)");
    let frame = ctx.pool.number(guard.desc());
    tree::detach(&guard);
    drop(guard);
    hand.push(frame);
}

/// Copies into locked pages, all of them: one copy for frames that lie side by side.
pub(super) fn copy_into(ctx: &DataCtx<'_>, pages: &[PageGuard<'_>], mut bytes: &[u8]) {
    debug_assert_eq!(bytes.len(), pages.len() * PAGE, "bytes of {} pages", pages.len());
    for beside in pages.chunk_by(|a, b| a.desc().is_before(b.desc())) {
        let part;
        (part, bytes) = bytes.split_at(bytes.len().min(beside.len() * PAGE));
        // SAFETY: as many bytes as the pages have, which lie side by side and whose locks we hold;
        // optimistic readers validate (D2).
        unsafe { copy_racy(part.as_ptr(), ctx.pool.bytes(beside[0].desc()), part.len()) };
        beside.iter().for_each(|guard| guard.desc().touch());
    }
    debug_assert!(bytes.is_empty(), "{} bytes have no page", bytes.len());
}
