//! File data: the pages of a file that memory holds, and what reads, writes, truncates and writes
//! them back.
//!
//! # Definitions
//! The *store* is what lies below [`PageStore`]. A page is *attached* when the file's tree leads to
//! a frame that holds it. It is *dirty* when its content is newer than the store's, and *in
//! writeback* while an image of it travels to the store. A page that is neither is *clean* and
//! equals what the store would return.
//!
//! # Locks
//! In this order; each may be held while taking one further right, none while taking one further
//! left:
//!
//! ```text
//! size lock       one per file: writes that extend it, append, truncate. Held over the whole call;
//!                 by a writeback over a capture, where D7 asks for it.
//! writeback lock  one per file: capture..finish of a writeback, and whatever takes pages away. Over I/O.
//! page locks      one per frame (`frame.rs`), ascending by page; who holds two waits only for
//!                 frames in hand or being loaded, and tries the others. A frame that was found as
//!                 a page is waited for only while it is that page: another holder may have it as a
//!                 lower one by then, and wait for the page that the waiter holds.
//! tree lock       one per file: attaching a frame, making and unlinking nodes (`tree.rs`).
//! pool locks      leaves (`pool.rs`).
//! list of gaps    a leaf (`gaps.rs`).
//! ```
//!
//! Frames are asked for, and writers are slowed down, before any of them is taken, for that may
//! call the writeback callback, which takes writeback locks and page locks. With locks held only
//! `FramePool::try_take` is used, which waits for nothing.
//!
//! # Invariants
//! D1. An attached, unlocked frame has its content. Loading happens under the page lock of an
//!     already
//! ```text
//! attached frame, so that a page is loaded by one thread, others wait for it, and nobody can write,
//! write back and evict a page in the time between a load's reading and its attaching (which would bring
//! stale bytes back).
//! ```
//! D2. A frame's bytes are written only under its page lock, with racy copies. A reader copies
//!     without the
//! ```text
//! lock and believes the copy only if the descriptor's sequence and its (inode, page) are unchanged. So a
//! 4 KiB block is never torn.
//! ```
//! D3. A detached frame has no owner (inode 0). Whoever waited for its lock checks the owner, and
//!     looks the
//! ```text
//! page up again: this is the "truncated" mark. Detaching empties the slot before the owner is cleared
//! and before the lock is released.
//! ```
//! D4. `size` changes only under the size lock. It grows after the data is in place (Release), so
//!     that a
//! ```text
//! reader that sees the size (Acquire) finds the bytes, and a read during an append sees all of it or
//! nothing.
//! ```
//! D5. While nobody holds the size lock, no page wholly past the end is attached, and bytes past
//!     the end in
//! ```text
//! the last page are zero.
//! ```
//! D6. No image that `capture` takes holds bytes past the size that travels with it: it gets that
//!     size, leaves out
//! ```text
//! pages behind it, and blanks the rest of the last one. A truncation lowers the store's size at once, and only
//! dirties the page it cuts. So after a crash the last page of a file may hold bytes past its end in the store. A load leaves them
//! out, and before the size of a file that came from the store is raised for the first time, such a page is made dirty
//! (`zero_tail`). Together with D5 an extension never shows stale bytes, whether the page is cached or not, also after a crash.
//! ```
//! D7. Every dirty page holds one block of the store's reservation; a captured image takes it
//!     along, and a
//! ```text
//! page that is dirtied again while in writeback takes another. For a page that a truncate or a hole
//! covers in part the block is asked for so that it is to be had on a full volume too, and so it is for a page
//! that has a block, or is preallocated, if there is no other: it gives one back, or takes the one that is kept for it.
//! A preallocated page without a block, in which the file does not end, becomes dirty without any
//! (KEPT, `frame`): what is kept for it becomes its block. An image of it with a size in the middle of
//! the page, which an extension overtakes, takes a promise all the same: it may go into the inode.
//! Where little is free a page with a block of its own, in which the file does not end, is made
//! dirty without any (LENT, `frame`): the store writes it to another block and has that one back, so
//! however many wait they need no more than what a round of them takes, which is freed by the
//! checkpoint behind it. What is free is left to what is new.
//! The last page may hold bytes behind the size that goes with its image (D6), for which it stays
//! dirty: that takes a second block, which no write has asked for. Where there is none the page is
//! left out, and captured with the size lock held, when no bytes lie behind the size. So no fsync
//! refuses what a write has promised.
//! ```
//! D8. A [`FileData`] does not move while it has pages: frames point back to it.
//!
//! # Races, and what closes them
//! - *Miss and truncate.* A truncate lowers the size, unmaps in the store, passes the tree lock,
//!   then detaches everything behind. An attach checks the size under the tree lock: it comes
//!   before that, and is detached, or after, and is refused. A load that attached before and reads
//!   after holds the page lock, so the detach waits for it. Punching a hole unmaps first as well: a
//!   load attached later reads zeros.
//! - *Write and truncate.* A write inside the file does not take the size lock. It checks, under
//!   each page's lock, that the bytes it is about to write lie inside the size, else it goes on as
//!   an extending write, under the size lock. The truncate lowers the size with the last page
//!   locked, and blanks its rest before it unlocks: a writer that had the page before is blanked,
//!   one that has it after sees the size.
//! - *Write and write.* Pages are locked hand over hand in ascending order, so that of two
//!   overlapping writes one is ahead on every page they share. A write longer than
//!   [`FramePool::unit`](FramePool) pages is ordered unit by unit, and so is one that runs out of
//!   frames half-way.
//!   Pages that are written as a whole are locked and written several at a time, the last of them
//!   being held for the next: the first is waited for, those behind it are taken if nobody has
//!   them.
//! - *Eviction and read.* D2. *Eviction and write*: eviction takes the page lock and looks at the
//!   state under it.
//! - *Writeback and write.* `capture` clears the dirty mark before it takes the image (O15), under
//!   the page lock; a later write marks the page dirty again. An image is the frame itself: a later
//!   write gives the page another one (`stable.rs`). A page in writeback is not captured again
//!   before `finish`, so two images of one page are never under way.
//! - *Writeback and truncate.* The writeback lock: when a truncate unmaps, no image of the file is
//!   under way.
//! - *Hole and extension.* A hole blanks what it covers of the file's last page, or lets the page
//!   go as a whole if the file ends within the hole. It decides by one reading of the size, and in
//!   the latter case looks under the size lock whether that still holds.
//! - *Extensions in another order than they were written in.* `gaps.rs`.
//! - *Extension and writeback.* D6: an extending write in progress has pages behind the size; they
//!   stay dirty for the next round. On a full volume that waits for the write (D7).

mod errseq;
mod frame;
mod gaps;
mod pool;
mod promise;
mod read;
mod readahead;
mod reclaim;
mod run;
mod seam;
mod seek;
mod stable;
#[cfg(test)]
mod tests;
mod tree;
mod truncate;
mod write;
mod writeback;

pub use errseq::ErrSeq;
pub(crate) use gaps::SYNC_PATIENCE;
pub use pool::{FramePool, Writeback};
pub use promise::SPACE_LENT;
pub use readahead::ReadAhead;
pub use seam::{Cut, DataCtx, PageRead, PageStore, StoreResult};
pub use stable::Taken;
#[cfg(test)]
pub(crate) use tests::after_reading_size;
pub use write::Written;
pub use writeback::{Captured, WritebackGuard};

use lanefs_format::{BLOCK_SHIFT, BLOCK_SIZE};
use lanefs_sync::lock::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

const PAGE: usize = BLOCK_SIZE;

/// Returns the number of pages that a file of `size` bytes has, the last one perhaps in part.
fn pages_of(size: u64) -> u64 {
    size.div_ceil(PAGE as u64)
}

fn page_at(offset: u64) -> u64 {
    offset >> BLOCK_SHIFT
}

/// The content of one file as memory knows it. See the head of this file.
///
/// Writers: of `size` and `blocks` as said there; `root` and the nodes below under the tree lock
/// (emptying a slot: under the page's lock); `dirty` whoever dirties a page, tested first.
/// Orderings: `size` by D4, Release and Acquire; `root` and `dirty` SeqCst by `tree.rs`, 5 and 6;
/// `blocks` and `behind` Relaxed, for they are estimates.
///
/// Readers look at the first part; the second lies on the inode's next line.
#[repr(C)]
pub struct FileData {
    size: AtomicU64,
    root: frame::Slot,
    /// Pages that have a block or space kept for one, or will have one when written back. An
    /// estimate.
    blocks: AtomicU64,
    /// At most so many pages behind the end are preallocated. Raised by who preallocates, before
    /// `blocks`; zero after a truncation.
    behind: AtomicU64,
    /// Pieces of it that may be on their way; see `gaps`. Written once, by the first write that is
    /// handed over out of its order.
    gaps: gaps::Gaps,
    /// Pages may be preallocated. Raised behind the call that preallocates. Relaxed: who misses it
    /// takes a promise beside the space that is kept. Here, where writers look anyway: locks lie on
    /// the next line.
    may_keep: AtomicBool,
    apart: [u8; 3],
    /// How often it was made shorter. Written under the writeback lock by who does that, and read
    /// under it. Here, where the size lies, which is written then.
    cuts: AtomicU32,
    dirty: AtomicU32,
    size_lock: Mutex<()>,
    writeback_lock: Mutex<()>,
    tree: Mutex<()>,
    /// Nobody has looked yet whether the store holds bytes behind the end. Lowered under the size
    /// lock, with Release, behind the page's becoming dirty: the partner of the Acquire load in
    /// `zero_tail`.
    tail_unsure: AtomicBool,
}

/// The tag of the inode's body and the first part fill a line.
const _: () = assert!(std::mem::offset_of!(FileData, dirty) == 56 && std::mem::size_of::<FileData>() == 64);

impl FileData {
    /// Makes a file of `size` bytes, all still in the store, of which about `blocks` pages have a
    /// block there or space for one, `behind` of them behind its end.
    ///
    /// # Safety
    /// The value must stay where it is from the first call on it that takes a [`DataCtx`] until it
    /// is dropped (D8).
    pub const unsafe fn new(size: u64, blocks: u64, behind: u64) -> FileData {
        FileData {
            size: AtomicU64::new(size),
            root: AtomicUsize::new(0),
            blocks: AtomicU64::new(blocks),
            behind: AtomicU64::new(behind),
            gaps: gaps::Gaps::new(),
            may_keep: AtomicBool::new(false),
            apart: [0; 3],
            cuts: AtomicU32::new(0),
            dirty: AtomicU32::new(0),
            size_lock: Mutex::new(()),
            writeback_lock: Mutex::new(()),
            tree: Mutex::new(()),
            tail_unsure: AtomicBool::new(!size.is_multiple_of(BLOCK_SIZE as u64)),
        }
    }

    /// Takes note that pages are preallocated.
    pub fn note_kept(&self) {
        self.may_keep.store(true, Ordering::Relaxed); // Relaxed: see the field
    }

    /// Returns whether pages may be preallocated.
    fn may_keep(&self) -> bool {
        self.may_keep.load(Ordering::Relaxed) // Relaxed: see the field
    }

    /// Returns the number of bytes in the file. An append or extending write that returned is
    /// counted, one under way is not.
    pub fn size(&self) -> u64 {
        let size = self.size.load(Ordering::Acquire); // Acquire: D4
        #[cfg(test)]
        tests::size_was_read();
        size
    }

    /// Returns about how many 4 KiB blocks the file takes, dirty and preallocated pages included;
    /// never more than its size and what is preallocated behind it need.
    pub fn blocks(&self) -> u64 {
        // Relaxed: statistics.
        let most = pages_of(self.size()).saturating_add(self.behind.load(Ordering::Relaxed));
        self.blocks.load(Ordering::Relaxed).min(most)
    }

    /// Returns whether it seems to have holes.
    fn is_sparse(&self) -> bool {
        // Relaxed: statistics.
        let blocks = self.blocks.load(Ordering::Relaxed);
        blocks < pages_of(self.size()).saturating_add(self.behind.load(Ordering::Relaxed))
    }

    /// Returns whether pages behind the end may be preallocated.
    pub fn has_space_behind(&self) -> bool {
        self.behind.load(Ordering::Relaxed) > 0 // Relaxed: a statistic
    }

    /// Returns whether a page may be dirty. Exact (but for pages that were truncated: they count
    /// until the next capture) when the caller holds the writeback lock and no write is under way;
    /// without that lock a writeback in progress can hide pages it has not finished.
    pub fn has_dirty(&self) -> bool {
        self.dirty.load(Ordering::SeqCst) != 0 // SeqCst: tree.rs 5
    }

    fn add_blocks(&self, by: u64) {
        debug_assert!(by <= tree::MAX_PAGES, "{by} blocks of one file");
        self.blocks.fetch_add(by, Ordering::Relaxed); // Relaxed: a statistic
    }
}

impl Drop for FileData {
    fn drop(&mut self) {
        // Usually empty: `drop_all` came first. If not, the frames go back to the pool by the
        // clock; reservations are lost.
        tree::free_tree(&self.root);
    }
}
