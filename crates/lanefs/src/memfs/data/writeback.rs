//! Taking images of dirty pages for the store.
//!
//! One writeback of a file at a time, under its writeback lock:
//!
//! ```text
//! let wb = data.lock_writeback();
//! let size = data.size();                        // with the other attributes
//! let captured = data.capture(&ctx, &wb, max, range, size);
//! let ok = store.submit(.. captured.pages, attrs with `size`, reserved: captured.promises() ..).is_ok();
//! data.finish(&ctx, &wb, captured.taken, ok);
//! ```
//!
//! Who holds the lock must not write to a file nor wait for a frame. Reads and writes of this very
//! file go on meanwhile.

use super::frame::{
    BEHIND, DIRTY, HOLE, IMAGE_KEPT, IMAGE_LENT, KEPT, LENT, ONCE, PageGuard, STABLE, STORED, WRITEBACK,
};
use super::stable::Taken;
use super::tree::{self, MAX_PAGES};
use super::{DataCtx, FileData, PAGE};
use crossbeam_epoch as epoch;
use lanefs_format::Block;
use lanefs_store::PageImage;
use lanefs_sync::copy_racy;
use lanefs_sync::lock::MutexGuard;
use std::mem::MaybeUninit;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::Ordering;

/// The right to write a file back; see the head of the file.
pub struct WritebackGuard<'a> {
    lock: MutexGuard<'a, ()>,
}

impl WritebackGuard<'_> {
    /// Returns whether this is the right to write `data` back: for who asserts that.
    pub(super) fn is_of(&self, data: &FileData) -> bool {
        std::ptr::eq(MutexGuard::mutex(&self.lock), &data.writeback_lock)
    }
}

/// As long as this lives nobody makes the file longer or shorter.
pub struct SizeGuard<'a> {
    _lock: MutexGuard<'a, ()>,
}

/// The pages that a capture found.
#[derive(Debug, Default)]
pub struct Captured {
    /// Page numbers, ascending, with an image each, which does not change.
    pub pages: Vec<(u64, PageImage)>,
    /// The same pages, for [`FileData::finish`].
    pub taken: Taken,
    /// There were more dirty pages in the range than asked for.
    pub more: bool,
    /// Dirty pages that were left out: the last one, perhaps, if it has bytes behind the size and
    /// there is no second block for these (D7). It is to be captured with the size lock held.
    pub skipped: usize,
    /// Pages whose images take no promise along: the store has a block of each, which it gets back.
    pub lent: usize,
}

impl Captured {
    /// Returns the number of blocks that were promised for the pages.
    pub fn promises(&self) -> usize {
        self.pages.len() - self.lent
    }

    /// Lets go of the images: for what the store was not handed.
    pub fn give_up(self) -> Taken {
        debug_assert_eq!(self.pages.len(), self.taken.count(), "a page that is not finished");
        self.taken
    }
}

enum Image {
    /// An image, and whether it takes no promise along.
    Taken(PageImage, bool),
    NotDirty,
    NoSpace,
}

impl FileData {
    /// Waits for who makes the file longer or shorter, and keeps others out. A capture of the size
    /// that the file has meanwhile leaves no page out (D5). Before [`FileData::lock_writeback`].
    pub fn lock_size(&self) -> SizeGuard<'_> {
        SizeGuard { _lock: self.size_lock.lock() }
    }

    /// Waits for a writeback under way and keeps others out.
    pub fn lock_writeback(&self) -> WritebackGuard<'_> {
        WritebackGuard { lock: self.writeback_lock.lock() }
    }

    /// Takes the right to write the file back, if nobody has it.
    pub fn try_lock_writeback(&self) -> Option<WritebackGuard<'_>> {
        self.writeback_lock.try_lock().map(|lock| WritebackGuard { lock })
    }

    /// Returns a number that changes whenever the file is made shorter. Who goes over a file in
    /// several rounds, and gives the lock back between them, begins anew when it has changed: the
    /// file may have grown again since, over pages that are behind that one.
    pub fn cuts(&self, writeback: &WritebackGuard<'_>) -> u32 {
        debug_assert!(writeback.is_of(self), "the lock of another file");
        self.cuts.load(Ordering::Relaxed) // Relaxed: the lock carries it
    }

    /// Copies up to `max` dirty pages of `range` that lie inside `size`, the size that will be
    /// stored with them (D6). Each image takes one block of reservation along, if its page had it.
    pub fn capture(
        &self,
        ctx: &DataCtx<'_>,
        writeback: &WritebackGuard<'_>,
        max: usize,
        range: Range<u64>,
        size: u64,
    ) -> Captured {
        debug_assert!(writeback.is_of(self), "the lock of another file");
        let mut out = Captured::default();
        let pin = epoch::pin();
        let range = range.start..range.end.min(super::pages_of(size));
        let mut found = Vec::new();
        let _ = self.each_page(range, true, &pin, &mut |page, desc| {
            if found.len() == max {
                out.more = true;
                return ControlFlow::Break(());
            }
            found.push((page, ctx.pool.number(desc)));
            ControlFlow::Continue(())
        });
        out.pages.reserve_exact(found.len());
        out.taken.pages.reserve_exact(found.len());
        for (page, frame) in found {
            let inside = size.saturating_sub(page * PAGE as u64).min(PAGE as u64) as usize;
            debug_assert!(inside > 0, "an image of a page behind the end (D6)");
            let copy = (inside < PAGE).then(Box::<Block>::new_uninit); // before the lock
            let found = ctx.pool.desc(frame).lock_as(ctx.ino, page);
            // It may have got another frame, or be gone.
            let Some(guard) = found.or_else(|| self.lock_page(ctx.ino, page, &pin)) else { continue };
            match self.capture_page(ctx, guard, inside, copy, &mut out.taken) {
                Image::Taken(image, lent) => {
                    out.pages.push((page, image));
                    out.lent += usize::from(lent);
                }
                Image::NotDirty => {}
                Image::NoSpace => out.skipped += 1,
            }
        }
        self.propagate_dirty(&pin);
        // The store knows nothing of them yet: each may need a node still.
        if !out.pages.is_empty() {
            ctx.pool.count_dirty_leaves(ctx.lane, out.pages.len() as i64);
        }
        debug_assert!(out.pages.len() + out.skipped <= max, "more than were asked for");
        debug_assert!(out.pages.is_sorted_by(|a, b| a.0 < b.0), "each page once, in order");
        debug_assert!(out.pages.iter().map(|p| p.0).eq(out.taken.numbers()), "one of them is not finished");
        debug_assert!(out.pages.iter().all(|p| p.0 < super::pages_of(size)), "a page behind the end (D6)");
        out
    }

    /// Takes the image of a locked page, of which so many bytes lie inside the size that goes with
    /// it. `copy`: memory for it, if it is to be a copy.
    fn capture_page(
        &self,
        ctx: &DataCtx<'_>,
        guard: PageGuard<'_>,
        inside: usize,
        copy: Option<Box<MaybeUninit<Block>>>,
        taken: &mut Taken,
    ) -> Image {
        debug_assert_eq!(copy.is_some(), inside < PAGE, "a page in part is copied");
        let page = guard.page();
        if !guard.has(DIRTY) || guard.has(WRITEBACK) {
            guard.unchanged();
            return Image::NotDirty;
        }
        // An extending write may have put bytes behind the size that goes with this image: they
        // stay for the next round, with a block of their own (D7).
        let extending = inside < PAGE && !super::read::is_zero(ctx, &guard, inside, PAGE);
        if extending && !ctx.store.reserve(ctx.lane, 1) {
            guard.unchanged();
            return Image::NoSpace;
        }
        // O15: cleared before the copy. (Under the page lock no write can come between; the order
        // is kept all the same.)
        if !extending {
            guard.reset(DIRTY);
            self.unmark_dirty(ctx, &guard);
        }
        // An image that may go into the inode has a promise; the page goes on without one.
        let stays = if extending { KEPT } else { 0 };
        let own = match (guard.has(LENT), guard.has(KEPT & !stays)) {
            (true, _) => IMAGE_LENT,
            (_, true) => IMAGE_KEPT,
            _ => 0,
        };
        guard.reset(HOLE | BEHIND | LENT | STORED | KEPT & !stays);
        // The end of a file may go into its inode.
        let stored = if inside == PAGE { STORED } else { 0 };
        guard.set(WRITEBACK | stored | own);
        debug_assert_eq!(guard.has(DIRTY), extending, "the mark is cleared before the copy (O15)");
        let Some(mut image) = copy else {
            let image = taken.give_out(ctx.pool, &guard);
            guard.unchanged();
            return Image::Taken(image, own != 0);
        };
        // SAFETY: a page is a block; the image is ours, and no writer has the page while we hold
        // its lock.
        unsafe { copy_racy(ctx.pool.bytes(guard.desc()), image.as_mut_ptr().cast(), PAGE) };
        guard.unchanged();
        // SAFETY: all PAGE bytes were written just now.
        let mut image = unsafe { image.assume_init() };
        image.0[inside..].fill(0);
        taken.pages.push((page, None));
        Image::Taken(image.into(), own != 0)
    }

    /// Takes note of what became of captured pages: `ok` if the store has them now. If not, they
    /// are dirty again, with the reservations they took along (the store must not have used them
    /// up). The images are gone.
    ///
    /// # Panics
    /// If one is not: the store would look at bytes that others write.
    pub fn finish(&self, ctx: &DataCtx<'_>, writeback: &WritebackGuard<'_>, taken: Taken, ok: bool) {
        debug_assert!(writeback.is_of(self), "the lock of another file");
        let Taken { pages, mut hold } = taken;
        debug_assert!(pages.is_sorted_by(|a, b| a.0 < b.0), "each page once, in order");
        // From here on the frames are written again.
        assert!(hold.is_over(), "the store looks at images of what it has answered");
        let pin = epoch::pin();
        let (mut clean, mut spare, mut done, mut lent) = (0, 0, 0, 0);
        let mut gone = None;
        for &(page, image) in &pages {
            let stays = image.and_then(|image| ctx.pool.desc(image).lock_as(ctx.ino, page));
            if let Some(image) = image
                && stays.is_none()
            {
                ctx.pool.give_displaced(ctx.lane, image);
            }
            let Some(guard) = stays.or_else(|| self.lock_page(ctx.ino, page, &pin)) else { continue };
            if guard.has(WRITEBACK) {
                let (image_lent, image_kept) = (guard.has(IMAGE_LENT), guard.has(IMAGE_KEPT));
                guard.reset(WRITEBACK | IMAGE_LENT | IMAGE_KEPT | STABLE | if ok { 0 } else { STORED });
                done += 1;
                if guard.has(DIRTY) {
                    debug_assert!(!guard.has(LENT), "dirtied beside its image without a promise");
                    debug_assert!(!guard.has(KEPT) || !image_kept, "what is kept for it is its image's");
                    lent += i64::from(image_lent);
                    spare += u64::from(!ok && !image_lent && !image_kept); // it took a reservation of its own
                } else if ok {
                    clean += 1;
                    lent += i64::from(image_lent);
                    if guard.has(ONCE) {
                        let frame = ctx.pool.number(guard.desc());
                        tree::detach(&guard);
                        drop(guard);
                        ctx.pool.give(ctx.lane, frame);
                        gone = Some(gone.map_or(page, |g: Range<u64>| g.start.min(page))..page + 1);
                        continue;
                    }
                } else {
                    let kept = if image_kept { KEPT } else { 0 };
                    guard.set(DIRTY | kept | if image_lent { LENT } else { 0 });
                    self.mark_dirty(ctx, &guard);
                }
            }
            guard.unchanged();
        }
        drop(pin);
        debug_assert!(clean >= 0 && clean as usize + spare as usize <= pages.len());
        if let Some(range) = gone {
            self.prune(range);
        }
        if clean > 0 {
            ctx.pool.count_dirty(ctx.lane, -clean);
        }
        if done > 0 {
            ctx.pool.count_dirty_leaves(ctx.lane, -done);
        }
        if lent > 0 {
            ctx.pool.count_lent(ctx.lane, -lent);
        }
        if spare > 0 {
            ctx.store.unreserve(ctx.lane, spare);
        }
    }

    /// Puts the mark of a page, which was noted elsewhere as dirty, into the tree, if it is dirty
    /// still.
    pub fn remark(&self, ctx: &DataCtx<'_>, page: u64) {
        if let Some(guard) = self.lock_page(ctx.ino, page, &epoch::pin()) {
            if guard.has(DIRTY) {
                self.mark_dirty(ctx, &guard);
            }
            guard.unchanged();
        }
    }

    /// Returns whether so many pages are dirty: walks the tree until it has found them.
    pub fn has_dirty_pages(&self, most: usize) -> bool {
        debug_assert!(most > 0, "so many always are");
        let mut left = most;
        let found = self.each_page(0..MAX_PAGES, true, &epoch::pin(), &mut |_, _| {
            left = left.saturating_sub(1);
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        found.is_break()
    }

    /// Returns how many pages from page `from` on are dirty, `most` at most: walks the tree until
    /// it has found these.
    pub fn dirty_pages_from(&self, from: u64, most: usize) -> usize {
        debug_assert!(most > 0, "none is asked for");
        let mut count = 0;
        let _ = self.each_page(from..MAX_PAGES, true, &epoch::pin(), &mut |_, _| {
            count += 1;
            if count == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        count
    }

    /// Returns how many pages are dirty without a promise, since a block is kept for them.
    #[cfg(test)]
    pub fn kept_pages(&self) -> usize {
        let mut count = 0;
        let _ = self.each_page(0..MAX_PAGES, true, &epoch::pin(), &mut |_, desc| {
            count += usize::from(desc.state() & KEPT != 0);
            ControlFlow::Continue(())
        });
        count
    }

    /// Returns the pages of which the store has a block for certain.
    #[cfg(test)]
    pub fn stored_pages(&self) -> Vec<u64> {
        let mut pages = Vec::new();
        let _ = self.each_page(0..MAX_PAGES, false, &epoch::pin(), &mut |page, desc| {
            pages.extend((desc.state() & (STORED | WRITEBACK) == STORED).then_some(page));
            ControlFlow::Continue(())
        });
        pages
    }

    /// Returns how many pages are dirty: walks the tree.
    #[cfg(test)]
    pub fn dirty_pages(&self) -> usize {
        let mut count = 0;
        let _ = self.each_page(0..MAX_PAGES, true, &epoch::pin(), &mut |_, _| {
            count += 1;
            ControlFlow::Continue(())
        });
        count
    }
}
