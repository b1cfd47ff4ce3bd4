//! One page frame's descriptor: a cache line of its own, type-stable for as long as the pool lives.

use lanefs_format::Ino;
use lanefs_sync::SeqWord;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The content is newer than the store's. Holds one block of the store's reservation, but for
/// [`LENT`] and [`KEPT`].
pub(super) const DIRTY: u32 = 1;
/// An image of the content is on its way to the store; its reservation travels with it.
pub(super) const WRITEBACK: u32 = 2;
/// The store is believed to hold nothing for this page; if it is dirty, it was added to the file's
/// count of blocks.
pub(super) const HOLE: u32 = 4;

/// The frame was left behind by a file that was dropped: free, and in no list.
pub(super) const LOST: u32 = 8;
/// Whoever wrote the page keeps it as well (a kernel's cache above): it leaves memory as soon as it
/// is clean.
pub(super) const ONCE: u32 = 16;

/// The store's block holds bytes behind the end of the file that this page does not: see
/// [`super::FileData::zero_tail`].
pub(super) const BEHIND: u32 = 32;

/// Dirty, and counts as a leaf of its own: it was noted in a lane's stamp in place of a mark in the
/// tree, or it is lost and stands for its leaf.
pub(super) const NOTED: u32 = 64;

/// Dirty without a reservation: the store has a block of this page, which it gets back for the one
/// that it writes.
pub(super) const LENT: u32 = 128;
/// The same of the image that is on its way.
pub(super) const IMAGE_LENT: u32 = 256;

/// Dirty without a reservation: the page is preallocated, and its block is the one that is kept for
/// it. Never beside [`LENT`].
pub(super) const KEPT: u32 = 1024;
/// The same of the image that is on its way.
pub(super) const IMAGE_KEPT: u32 = 2048;

/// The store has a block of this page for certain: it was written back as a whole, or is on its
/// way, and nothing was taken from the store since. Spares a look into the file's map.
pub(super) const STORED: u32 = 512;

/// The image that is on its way is the frame itself: its bytes stay as they are. Who writes the
/// page puts another frame in its place (`stable.rs`); then this one is no file's, and goes back
/// to the pool when the image is gone.
pub(super) const STABLE: u32 = 4096;

/// The bits that say something of an image on its way.
const OF_IMAGE: u32 = IMAGE_LENT | IMAGE_KEPT | STABLE;

/// All state bits.
const ALL: u32 = DIRTY | WRITEBACK | HOLE | LOST | ONCE | BEHIND | NOTED | LENT | STORED | KEPT | OF_IMAGE;

const _: () = assert!(ALL.count_ones() == 13, "a bit for each");

/// Pages a file can have: offsets up to 8 EiB.
pub(super) const MAX_PAGES: u64 = 1 << 51;

/// A place in a page tree that points to a frame: a slot of a leaf, or the root of a one-page file.
pub(super) type Slot = AtomicUsize;

/// Everything about one frame but its bytes. All zero means free, so fresh anonymous memory needs
/// no setup.
///
/// Writers: `seq` whoever locks the page; `state`, `ino`, `page`, `slot` only the holder of that
/// lock; `referenced` anybody (a hint).
#[repr(C, align(64))]
pub(super) struct Desc {
    seq: SeqWord,
    state: AtomicU32,
    ino: AtomicU64,
    page: AtomicU64,
    slot: AtomicPtr<Slot>,
    referenced: AtomicU8,
}

const _: () = assert!(std::mem::size_of::<Desc>() == 64);

impl Desc {
    /// Returns the sequence to validate against; `None` while somebody holds the page.
    pub(super) fn begin_read(&self) -> Option<u32> {
        self.seq.begin_read()
    }

    /// Returns whether nobody locked the page since `seq` was taken.
    pub(super) fn validate(&self, seq: u32) -> bool {
        self.seq.validate(seq)
    }

    /// Locks the frame if it holds page `page` of `ino`, and waits for it only as long as it does:
    /// what was found in a tree may be another page by the time that its lock is free, of which
    /// the holder waits for one that the caller has (see "Locks" of this directory).
    #[inline]
    pub(super) fn lock_as(&self, ino: Ino, page: u64) -> Option<PageGuard<'_>> {
        debug_assert!(!ino.is_none() && page < MAX_PAGES, "page {page} of {ino}");
        if !self.seq.lock_while(|| self.is(ino, page)) {
            return None;
        }
        let guard = PageGuard { desc: self, changed: true };
        if self.is(ino, page) {
            return Some(guard);
        }
        guard.unchanged();
        None
    }

    /// Locks the frame, whatever it holds, parking if somebody else has it. For who holds no page,
    /// or has taken it out of the pool: others that have its lock then found it before that, and
    /// let go of it at once.
    pub(super) fn lock(&self) -> PageGuard<'_> {
        self.seq.lock();
        PageGuard { desc: self, changed: true }
    }

    /// Locks the page if nobody holds it.
    pub(super) fn try_lock(&self) -> Option<PageGuard<'_>> {
        self.seq.try_lock().then(|| PageGuard { desc: self, changed: true })
    }

    /// Returns whether the frame holds page `page` of `ino`. Exact under the lock; without it, only
    /// together with a validated sequence.
    pub(super) fn is(&self, ino: Ino, page: u64) -> bool {
        // Relaxed: ordered by the lock, or checked again by validate().
        self.ino.load(Ordering::Relaxed) == ino.0 && self.page.load(Ordering::Relaxed) == page
    }

    /// Returns whether another frame of the same pool lies behind this one in memory.
    pub(super) fn is_before(&self, next: &Desc) -> bool {
        // Descriptors lie as their frames do.
        std::ptr::eq(std::ptr::from_ref(self).wrapping_add(1), next)
    }

    /// Returns whether it belongs to no file. A hint without the lock.
    pub(super) fn is_free(&self) -> bool {
        self.ino.load(Ordering::Relaxed) == 0 // Relaxed: a hint, or ordered by the lock
    }

    /// Returns the state bits. Exact under the lock, a hint without it.
    pub(super) fn state(&self) -> u32 {
        self.state.load(Ordering::Relaxed) // Relaxed: a hint, or ordered by the lock
    }

    /// Points the frame back to another slot. For who holds its lock.
    pub(super) fn move_slot(&self, slot: *const Slot) {
        debug_assert!(self.seq.is_locked(), "a frame's place changes under its page lock");
        self.slot.store(slot.cast_mut(), Ordering::Relaxed); // Relaxed: read only under the lock
    }

    /// Checks what holds of a locked frame when it is let go (D3, `tree.rs` 2).
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        debug_assert!(self.seq.is_locked(), "others may change it meanwhile");
        // Relaxed, all of them: read under the lock.
        let (state, slot) = (self.state(), self.slot.load(Ordering::Relaxed));
        debug_assert_eq!(state & !ALL, 0, "state {state:#x}");
        debug_assert!(state & (DIRTY | NOTED) != NOTED, "a clean page counts as a leaf");
        debug_assert!(
            state & DIRTY != 0 || state & (LENT | KEPT) == 0,
            "a clean page lacks a promise: {state:#x}"
        );
        debug_assert!(state & (LENT | KEPT) != LENT | KEPT, "it has a block, or one is kept for it");
        debug_assert!(state & (HOLE | STORED) != HOLE | STORED, "the store has it, and has nothing");
        debug_assert!(
            state & WRITEBACK != 0 || self.is_free() || state & OF_IMAGE == 0,
            "marks of an image that is not there: {state:#x}"
        );
        debug_assert!(state & STABLE == 0 || state & DIRTY == 0, "bytes that stay were written: {state:#x}");
        if self.is_free() {
            debug_assert!(slot.is_null(), "a frame of no file is in a tree");
            debug_assert_eq!(self.page.load(Ordering::Relaxed), 0, "a page of no file");
            let left = if state & LOST != 0 { ALL & !(HOLE | ONCE | BEHIND) } else { STABLE };
            debug_assert_eq!(state & !left, 0, "state {state:#x} of a frame of no file");
        } else {
            debug_assert_eq!(state & LOST, 0, "a lost frame has a file");
            debug_assert!(!slot.is_null(), "attached to nothing");
            debug_assert!(self.page.load(Ordering::Relaxed) < MAX_PAGES);
            // SAFETY: the frame is attached and its page locked, so its slot is alive (tree.rs, 2).
            let word = unsafe { (*slot).load(Ordering::Relaxed) };
            debug_assert_eq!(word, std::ptr::from_ref(self).addr(), "its slot leads to another frame");
        }
    }

    /// Remembers that the page was used; tested first, so that reading a hot page writes nothing.
    pub(super) fn touch(&self) {
        // Relaxed: a hint for the clock.
        if self.referenced.load(Ordering::Relaxed) == 0 {
            self.referenced.store(1, Ordering::Relaxed);
        }
    }

    /// Forgets that the page was used; returns whether it had been.
    pub(super) fn take_touch(&self) -> bool {
        // Relaxed: a hint for the clock; a lost touch costs at worst one load from the store.
        if self.referenced.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.referenced.store(0, Ordering::Relaxed);
        true
    }
}

/// A locked page. Unlocks when dropped, which also shows optimistic readers that the content may
/// have changed.
pub(super) struct PageGuard<'a> {
    desc: &'a Desc,
    changed: bool,
}

impl<'a> PageGuard<'a> {
    pub(super) fn desc(&self) -> &'a Desc {
        self.desc
    }

    /// Unlocks a page whose bytes and owner were left alone: readers under way need not repeat.
    pub(super) fn unchanged(mut self) {
        self.changed = false;
    }

    pub(super) fn page(&self) -> u64 {
        self.desc.page.load(Ordering::Relaxed) // Relaxed: only written under the lock, which is ours
    }

    pub(super) fn slot(&self) -> *mut Slot {
        self.desc.slot.load(Ordering::Relaxed) // Relaxed: as above
    }

    pub(super) fn set_slot(&self, slot: *const Slot) {
        self.desc.move_slot(slot);
    }

    /// Gives the frame its owner. It becomes reachable when its address is stored in a slot.
    pub(super) fn assign(&self, ino: Ino, page: u64) {
        debug_assert!(self.desc.seq.is_locked(), "an owner changes under the page lock");
        debug_assert!(ino.is_none() || self.desc.is_free(), "it has a file already");
        debug_assert!(page < MAX_PAGES);
        // Relaxed, all of them: published by the unlock (Release) and by the slot's store.
        self.desc.ino.store(ino.0, Ordering::Relaxed);
        self.desc.page.store(page, Ordering::Relaxed);
        self.desc.state.store(0, Ordering::Relaxed);
        self.desc.referenced.store(0, Ordering::Relaxed);
    }

    /// Takes the owner away. The caller has emptied the slot, or never filled it.
    pub(super) fn clear(&self) {
        self.assign(Ino::NONE, 0);
        self.set_slot(std::ptr::null());
    }

    pub(super) fn set(&self, bits: u32) {
        debug_assert_eq!(bits & !ALL, 0, "state {bits:#x}");
        debug_assert!(
            bits == STABLE || (bits & LOST != 0) == self.desc.is_free(),
            "only a lost frame has no file, or one whose image is on its way"
        );
        // Relaxed load and store: only the lock's holder writes `state`.
        self.desc.state.store(self.desc.state() | bits, Ordering::Relaxed);
    }

    pub(super) fn reset(&self, bits: u32) {
        debug_assert_eq!(bits & !ALL, 0, "state {bits:#x}");
        debug_assert!(!self.desc.is_free(), "the page is no file's any more");
        self.desc.state.store(self.desc.state() & !bits, Ordering::Relaxed); // Relaxed: as in set()
    }

    pub(super) fn has(&self, bits: u32) -> bool {
        self.desc.state() & bits != 0
    }
}

impl Drop for PageGuard<'_> {
    fn drop(&mut self) {
        if cfg!(debug_assertions) && !std::thread::panicking() {
            self.desc.check_invariants();
        }
        if self.changed {
            self.desc.seq.unlock();
        } else {
            self.desc.seq.unlock_unchanged();
        }
    }
}
