//! Frames that are written to the device from where they lie.
//!
//! An image of a page that lies wholly inside the file is its frame: nothing is copied. (Linux
//! calls that a stable page.) The bytes stay as they are until the writeback ends, while the file
//! goes on being read and written:
//!
//! 1. `capture` sets STABLE and WRITEBACK under the page lock, clears DIRTY, and gives out a
//!    reference to the bytes. `finish` takes both marks off, under the page lock, when the store
//!    has let go of all references: see [`Hold`].
//! 2. Who finds STABLE under the page lock and is about to change the bytes puts another frame in
//!    the place of this one ([`FileData::displace`]), with its bytes and its marks but STABLE. The
//!    old frame has no owner then and keeps STABLE alone, which keeps it out of all lists; the
//!    `finish` of its image gives it to the pool.
//! 3. So whoever dirties a page has one without STABLE, and a dirty page can be written in place.
//! 4. The frame for that is taken before, as for a page that is missing: a writer holds page locks
//!    and cannot wait for one.
//! 5. What takes pages away holds the writeback lock: there is no such frame then, unless a thread
//!    panicked with its images. Such a frame keeps STABLE, and is lost to the pool. The clock
//!    passes pages in writeback over.
//!
//! The last page of a file, in which bytes lie behind its end, is copied: another size may go with
//! it by then (D6).

use super::frame::{DIRTY, Desc, PageGuard, STABLE, WRITEBACK};
use super::pool::{FrameNo, FramePool};
use super::{DataCtx, FileData, PAGE};
use lanefs_format::Block;
use lanefs_store::PageImage;
use lanefs_sync::copy_racy;
use lanefs_sync::stable::Hold;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// The pages of a capture, and what [`FileData::finish`] has to know of their images.
#[derive(Debug, Default)]
#[must_use = "pages stay in writeback until it is finished"]
pub struct Taken {
    /// Page numbers, ascending, with the frame that is the image, if one is.
    pub(super) pages: Vec<(u64, Option<FrameNo>)>,
    pub(super) hold: Hold,
}

impl Taken {
    /// Returns the numbers of the pages, ascending.
    pub fn numbers(&self) -> impl ExactSizeIterator<Item = u64> + DoubleEndedIterator {
        debug_assert!(self.pages.is_sorted_by(|a, b| a.0 < b.0), "each page once, in order");
        self.pages.iter().map(|p| p.0)
    }

    /// Returns how many there are.
    pub fn count(&self) -> usize {
        self.pages.len()
    }

    /// Gives out the bytes of a locked page, which is to be written back as a whole.
    pub(super) fn give_out(&mut self, pool: &FramePool, page: &PageGuard<'_>) -> PageImage {
        debug_assert!(page.has(WRITEBACK) && !page.has(DIRTY), "its image is not on its way");
        page.set(STABLE);
        self.pages.push((page.page(), Some(pool.number(page.desc()))));
        let bytes = pool.bytes(page.desc()).cast::<Block>();
        debug_assert!(!bytes.is_null() && bytes.is_aligned(), "a frame is a block");
        // SAFETY: a frame is a block of the pool's mapping, which stays while any frame has STABLE.
        // Its bytes are written only under its page lock by who finds no STABLE, and by nobody
        // while it is no file's (2); STABLE goes when the hold is over (1).
        PageImage::Stable(unsafe { self.hold.give_out(NonNull::new_unchecked(bytes)) })
    }
}

/// Returns whether a write of a page needs a frame for it: it is missing, or its bytes are to stay.
/// A hint without the page lock.
pub(super) fn needs_frame(page: Option<&Desc>) -> bool {
    page.is_none_or(|desc| desc.state() & STABLE != 0)
}

impl FileData {
    /// Puts `frame`, which the caller has in hand, in the place of a locked page's whose bytes are
    /// to stay; returns the page, locked. `copied`: with its bytes, else they are to be written as
    /// a whole.
    pub(super) fn displace<'g>(
        &self,
        ctx: &DataCtx<'g>,
        page: PageGuard<'g>,
        frame: FrameNo,
        copied: bool,
    ) -> PageGuard<'g> {
        debug_assert!(page.has(STABLE) && page.has(WRITEBACK) && !page.has(DIRTY), "it may be written");
        debug_assert!(page.desc().is(ctx.ino, page.page()), "another file's page");
        // In hand: who else has found it lets go at once.
        let new = ctx.pool.desc(frame).lock();
        if copied {
            // SAFETY: two frames, both locked, of a block each.
            unsafe { copy_racy(ctx.pool.bytes(page.desc()), ctx.pool.bytes(new.desc()), PAGE) };
        }
        new.assign(ctx.ino, page.page());
        new.set(page.desc().state() & !STABLE);
        new.set_slot(page.slot());
        // SAFETY: the frame is attached and its page locked, so its slot is alive (tree.rs, 2).
        let slot = unsafe { &*page.slot() };
        debug_assert_eq!(
            slot.load(Ordering::Relaxed),
            std::ptr::from_ref(page.desc()).addr(),
            "not attached"
        );
        // SeqCst, and Release: as in `attach`, for the root and for a leaf.
        slot.store(std::ptr::from_ref(new.desc()).expose_provenance(), Ordering::SeqCst);
        page.clear();
        page.set(STABLE);
        new
    }
}

impl FramePool {
    /// Gives back a frame whose image is gone, if it was displaced meanwhile.
    pub(super) fn give_displaced(&self, lane: usize, frame: FrameNo) {
        let guard = self.desc(frame).lock();
        let displaced = guard.desc().is_free() && guard.has(STABLE);
        debug_assert!(displaced, "frame {frame} was displaced, and is another page's");
        if displaced {
            guard.clear();
            drop(guard);
            self.give(lane, frame);
        } else {
            guard.unchanged();
        }
    }
}
