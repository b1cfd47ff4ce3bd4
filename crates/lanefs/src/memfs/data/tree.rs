//! A file's page tree: page number -> frame, 64 ways a level, and a mask of dirty children in every
//! node.
//!
//! The root is one word: 0 for an empty file; a descriptor's address (height 0) for a file whose
//! only cached page is page 0; else a node's address with the height in the low bits. A tree of
//! height h covers 64^h pages.
//!
//! 1. Slots are filled, and nodes linked and unlinked, only under the tree lock. A slot is emptied,
//!    by `detach`, or led to another frame, by `displace` (`stable.rs`), only under the page lock
//!    of the frame it points to.
//! 2. An attached frame's descriptor points back to its slot; the slot's node stays linked while
//!    any of its slots is full. So who holds the page lock of an attached frame may use its slot
//!    and its node.
//! 3. Whoever looks at nodes otherwise is pinned (crossbeam-epoch); unlinked nodes are freed when
//!    no pin can see them.
//! 4. A tree of height 0 grows by moving page 0 from the root to a leaf, under page 0's lock. Order
//!    of locks: page, then tree. Who must lock page 0 for growing holds no other page: a held page
//!    above 0 means that the tree has a node.
//! 5. Dirty marks. A page's bit in its leaf changes only under its page lock. The bit of a child in
//!    its parent, and the file's own mark above the root, mean that something below *may* be dirty.
//!    To set: first the child, then look at the parent. To clear (only under the writeback lock):
//!    first the parent, then look at the child again and put the parent's bit back if the child has
//!    any. All SeqCst, so that one of the two sees the other (Dekker).
//! 6. Growing sets the old root's parent before the new root is published, with the old root's bit
//!    set: a writer that still saw no parent marked the file, and the writeback comes by the new
//!    root anyway.

pub(super) use super::frame::MAX_PAGES;
use super::frame::{DIRTY, Desc, IMAGE_LENT, LENT, LOST, NOTED, PageGuard, STABLE, Slot, WRITEBACK};
use super::{DataCtx, FileData};
use crossbeam_epoch::{self as epoch, Guard};
use lanefs_format::Ino;
use lanefs_format::map_node::FANOUT;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

const FAN_SHIFT: u32 = 6;
/// Slots of a node; a leaf has so many consecutive pages.
pub(super) const FAN: usize = 1 << FAN_SHIFT;
const TAG: usize = 63;
/// A tree of this height covers them.
const MAX_HEIGHT: usize = 9;

const _: () = assert!(MAX_PAGES <= 1 << (FAN_SHIFT as usize * MAX_HEIGHT), "a page that no tree has");
const _: () = assert!(FANOUT.is_multiple_of(FAN), "the pages of a leaf lie in one node of a map");
const _: () = assert!(MAX_HEIGHT <= TAG && align_of::<Node>() > TAG && align_of::<Desc>() > TAG);

/// An inner node or a leaf. Aligned, so that the root word has bits for the height.
#[repr(C, align(64))]
pub(super) struct Node {
    /// Filled under the tree lock with Release, the partner of the Acquire loads on the way down;
    /// emptied with Release too, the partner of the Acquire load in [`prune_below`].
    slots: [Slot; FAN],
    /// The marks of 5, SeqCst, as `parent` (6).
    mask: AtomicU64,
    parent: AtomicPtr<Node>,
    index: u8,
}

/// Why a frame could not be attached.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Another frame holds the page.
    Taken,
    /// The page lies behind the end of the file.
    PastEof,
}

/// The content of a slot, or of the root.
enum Entry<'g> {
    Empty,
    Page(&'g Desc),
    Node(&'g Node),
}

impl Node {
    fn new(parent: *mut Node, index: u8) -> *mut Node {
        debug_assert!((index as usize) < FAN);
        debug_assert!(!parent.is_null() || index == 0, "a root is the first child when the tree grows");
        Box::into_raw(Box::new(Node {
            slots: [const { AtomicUsize::new(0) }; FAN],
            mask: AtomicU64::new(0),
            parent: AtomicPtr::new(parent),
            index,
        }))
    }

    /// Sets the mark of child `index`; tested first.
    fn mark(&self, index: usize) {
        debug_assert!(index < FAN);
        self.mark_all(1 << index);
    }

    /// Sets the marks of several children; tested first. Returns whether there were none before.
    fn mark_all(&self, bits: u64) -> bool {
        debug_assert!(bits != 0, "no child is marked");
        // SeqCst: see 5.
        self.mask.load(Ordering::SeqCst) & bits != bits && self.mask.fetch_or(bits, Ordering::SeqCst) == 0
    }

    /// Returns what the slots name that lie in a range of pages at least in part, with each slot
    /// and its place; those that are empty are left out. The node begins at page `base`, and each
    /// slot covers `width` pages.
    fn filled(&self, base: u64, width: u64, range: &Range<u64>) -> impl Iterator<Item = Filled<'_>> {
        debug_assert!(width.is_power_of_two() && base.is_multiple_of(width));
        let from = range.start.saturating_sub(base) / width;
        let to = range.end.saturating_sub(base).div_ceil(width).min(FAN as u64);
        let slots = self.slots.get(from as usize..to as usize).unwrap_or_default();
        let mut next = 0;
        std::iter::from_fn(move || {
            // Acquire: pairs with the slot's filling.
            let (skipped, slot, word) = slots[next..].iter().enumerate().find_map(|(n, slot)| {
                let word = slot.load(Ordering::Acquire);
                (word != 0).then_some((n, slot, word))
            })?;
            let index = next + skipped;
            next = index + 1;
            Some((from + index as u64, word, slot))
        })
    }
}

/// A slot's place, what it names, and the slot.
type Filled<'n> = (u64, usize, &'n Slot);

/// The places of consecutive pages in a leaf.
#[derive(Clone, Copy)]
pub(super) struct Places<'g>(&'g [Slot]);

impl<'g> Places<'g> {
    /// Returns the frames attached, place by place.
    pub(super) fn iter(&self) -> impl Iterator<Item = Option<&'g Desc>> + use<'g> {
        // Acquire: pairs with the Release that filled the slot.
        // SAFETY: a leaf's slot.
        self.0.iter().map(|slot| unsafe { desc_of(slot.load(Ordering::Acquire)) })
    }
}

/// Returns the slots of the pages from `page` on in its leaf below a node, if there is one.
#[inline]
fn leaf_below(mut node: &Node, mut height: usize, page: u64) -> Option<&[Slot]> {
    if page >= pages_below(height) {
        return None;
    }
    while height > 1 {
        // Acquire: pairs with the Release that filled the slot.
        let word = node.slots[index_at(page, height)].load(Ordering::Acquire);
        if word == 0 {
            return None;
        }
        // SAFETY: an inner node's slot, read while pinned.
        node = unsafe { node_of(word) };
        height -= 1;
    }
    Some(&node.slots[index_at(page, 1)..])
}

fn pages_below(height: usize) -> u64 {
    debug_assert!(height <= MAX_HEIGHT, "a tree of height {height}");
    1u64 << (FAN_SHIFT * height as u32)
}

fn index_at(page: u64, height: usize) -> usize {
    debug_assert!((1..=MAX_HEIGHT).contains(&height), "a node of height {height}");
    (page >> (FAN_SHIFT * (height as u32 - 1))) as usize & (FAN - 1)
}

/// Returns the descriptor that a slot's word names.
///
/// # Safety
/// The word was read from a leaf's slot, or from a root of height 0, of a file whose pool lives.
unsafe fn desc_of<'g>(word: usize) -> Option<&'g Desc> {
    debug_assert_eq!(word % align_of::<Desc>(), 0, "{word:#x} is no descriptor");
    // SAFETY: such a word is 0 or a descriptor's exposed address, and descriptors live as long as
    // the pool.
    (word != 0).then(|| unsafe { &*std::ptr::with_exposed_provenance::<Desc>(word) })
}

/// Returns the node that a word names.
///
/// # Safety
/// The word was read, while pinned or under the tree lock, from an inner node's slot (tag removed
/// from a root word).
unsafe fn node_of<'g>(word: usize) -> &'g Node {
    debug_assert!(word != 0 && word.is_multiple_of(align_of::<Node>()), "{word:#x} is no node");
    // SAFETY: the node was linked when the word was read; 3 keeps it, or 1 keeps it linked.
    unsafe { &*std::ptr::with_exposed_provenance::<Node>(word) }
}

/// Takes a locked, attached frame out of its file. The bytes may be reused after the unlock.
pub(super) fn detach(page: &PageGuard<'_>) {
    // SAFETY: the frame is attached and its page locked, so its slot is alive (2).
    let slot = unsafe { &*page.slot() };
    debug_assert_eq!(slot.load(Ordering::Relaxed), std::ptr::from_ref(page.desc()).addr(), "not attached");
    // Release: the node may be freed once somebody under the tree lock has seen the empty slot
    // (Acquire in `prune`).
    slot.store(0, Ordering::Release);
    page.clear();
}

impl FileData {
    fn root_entry<'g>(&self, _pin: &'g Guard) -> (Entry<'g>, usize) {
        let word = self.root.load(Ordering::SeqCst); // SeqCst: pairs with growing (6); also Acquire for the content
        // SAFETY: height 0 names a descriptor, any other height a node, read while pinned.
        unsafe {
            match word & TAG {
                0 => (desc_of(word).map_or(Entry::Empty, Entry::Page), 0),
                height => (Entry::Node(node_of(word & !TAG)), height),
            }
        }
    }

    /// Returns the frame attached for `page`, as of some instant: the caller locks it, or
    /// validates, and checks its identity.
    pub(super) fn find<'g>(&self, page: u64, pin: &'g Guard) -> Option<&'g Desc> {
        let (entry, height) = self.root_entry(pin);
        match entry {
            Entry::Empty => None,
            Entry::Page(desc) => (page == 0).then_some(desc),
            Entry::Node(node) => {
                let word = leaf_below(node, height, page)?.first()?.load(Ordering::Acquire);
                // SAFETY: a leaf's slot.
                unsafe { desc_of(word) }
            }
        }
    }

    /// Returns the places of the pages from `page` on in its leaf. Without one all of the pages
    /// that a leaf would have are missing, but for page 0, which the root may hold.
    pub(super) fn leaf_from<'g>(&self, page: u64, pin: &'g Guard) -> Option<Places<'g>> {
        match self.root_entry(pin) {
            (Entry::Node(node), height) => leaf_below(node, height, page).map(Places),
            _ => None,
        }
    }

    /// Returns the attached frame of `page`, locked; `None` if there is none. Parks while somebody
    /// else holds it.
    pub(super) fn lock_page<'g>(&self, ino: Ino, page: u64, pin: &'g Guard) -> Option<PageGuard<'g>> {
        loop {
            let found = self.find(page, pin)?.lock_as(ino, page);
            if found.is_some() {
                return found;
            }
            // Detached, and perhaps reused, while we waited: look again.
        }
    }

    /// Attaches locked frames for the pages behind one that is locked and attached, in its leaf, as
    /// far as these are missing and, unless `past_eof`, lie inside the file. Returns for how many;
    /// the others are left as they were.
    pub(super) fn attach_behind(
        &self,
        ino: Ino,
        last: &PageGuard<'_>,
        frames: &[PageGuard<'_>],
        past_eof: bool,
    ) -> usize {
        debug_assert!(last.desc().is(ino, last.page()), "another file's page");
        debug_assert!(!past_eof || self.size_lock.is_locked(), "who extends holds the size lock");
        let Some(leaf) = self.leaf_of(last) else { return 0 };
        let first = last.page() as usize % FAN + 1;
        let tree = self.tree.lock();
        // Acquire: as in `attach`.
        let end = if past_eof { MAX_PAGES } else { super::pages_of(self.size.load(Ordering::Acquire)) };
        let mut attached = 0;
        for (slot, frame) in leaf.slots[first..].iter().zip(frames) {
            let page = last.page() + 1 + attached as u64;
            if page >= end || slot.load(Ordering::Acquire) != 0 {
                break;
            }
            debug_assert!(frame.desc().is_free() && !frame.has(LOST), "the frame is another page's");
            frame.assign(ino, page);
            frame.set_slot(slot);
            // Release: as in `attach`.
            slot.store(std::ptr::from_ref(frame.desc()).expose_provenance(), Ordering::Release);
            attached += 1;
        }
        drop(tree);
        attached
    }

    /// Attaches a locked frame for `page`. `past_eof` allows pages behind the end (the caller holds
    /// the size lock); `held` is the page the caller has locked already, if any.
    pub(super) fn attach(
        &self,
        ctx: &DataCtx<'_>,
        page: u64,
        frame: &PageGuard<'_>,
        past_eof: bool,
        held: Option<u64>,
    ) -> Result<(), Refused> {
        debug_assert!(page < MAX_PAGES && !ctx.ino.is_none());
        debug_assert!(frame.desc().is_free() && !frame.has(LOST), "the frame is another page's");
        debug_assert!(held.is_none_or(|held| held < page), "pages are locked in ascending order");
        debug_assert!(!past_eof || self.size_lock.is_locked(), "who extends holds the size lock");
        let mut zero: Option<PageGuard<'_>> = None;
        loop {
            let tree = self.tree.lock();
            // Acquire: a truncate stores the size, then passes the tree lock, then detaches: either
            // we see its size here, or it finds what we attach.
            if !past_eof && page >= super::pages_of(self.size.load(Ordering::Acquire)) {
                return Err(Refused::PastEof);
            }
            let word = self.root.load(Ordering::SeqCst);
            if word == 0 && page == 0 {
                frame.assign(ctx.ino, 0);
                frame.set_slot(&self.root);
                self.root.store(std::ptr::from_ref(frame.desc()).expose_provenance(), Ordering::SeqCst);
                return Ok(());
            }
            if word & TAG == 0 && word != 0 {
                if page == 0 {
                    return Err(Refused::Taken);
                }
                // SAFETY: a root of height 0.
                let Some(desc) = (unsafe { desc_of(word) }) else { continue };
                let ours = held == Some(0) || zero.as_ref().is_some_and(|z| std::ptr::eq(z.desc(), desc));
                if !ours {
                    // Page, then tree (4): let go, lock page 0, look again.
                    drop(tree);
                    if let Some(other) = zero.take() {
                        other.unchanged();
                    }
                    zero = desc.lock_as(ctx.ino, 0);
                    continue;
                }
                // If it was detached while we waited for its lock, the root is another word now,
                // and stays so under the tree lock unless it is detached again, which its lock
                // prevents: `desc` is attached here.
            }
            self.grow(ctx, page, word);
            let slot = self.slot_for(page);
            // SAFETY: `slot_for` returned a slot of a node that is linked while we hold the tree
            // lock.
            let slot = unsafe { &*slot };
            if slot.load(Ordering::Acquire) != 0 {
                return Err(Refused::Taken);
            }
            frame.assign(ctx.ino, page);
            frame.set_slot(slot);
            // Release: who finds the frame finds its identity and its lock held.
            slot.store(std::ptr::from_ref(frame.desc()).expose_provenance(), Ordering::Release);
            return Ok(());
        }
    }

    /// Makes the tree high enough for `page`, and at least 1. Under the tree lock, and page 0's if
    /// it is the root.
    fn grow(&self, ctx: &DataCtx<'_>, page: u64, mut word: usize) {
        debug_assert!(self.tree.is_locked() && page < MAX_PAGES);
        let mut height = word & TAG;
        while height == 0 || page >= pages_below(height) {
            let new = Node::new(std::ptr::null_mut(), 0);
            // SAFETY: just made, and not yet published.
            let node = unsafe { &*new };
            if word != 0 {
                // Relaxed: published by the root's store below.
                node.slots[0].store(word & !TAG, Ordering::Relaxed);
                if height == 0 {
                    // SAFETY: a root of height 0; page 0's lock is held by us, here or in our
                    // caller (4), so we may move its back pointer and its state holds still.
                    if let Some(desc) = unsafe { desc_of(word) } {
                        desc.move_slot(&node.slots[0]);
                        // One that is noted gets its mark when the note is looked at.
                        if desc.state() & (DIRTY | NOTED) == DIRTY {
                            node.mask.store(1, Ordering::SeqCst);
                            ctx.pool.count_dirty_leaves(ctx.lane, 1);
                        }
                    }
                } else {
                    node.mask.store(1, Ordering::SeqCst);
                    // SAFETY: the root node, linked under the tree lock.
                    unsafe { node_of(word & !TAG) }.parent.store(new, Ordering::SeqCst); // see 6
                }
            }
            height += 1;
            word = new.expose_provenance() | height;
            self.root.store(word, Ordering::SeqCst);
        }
        debug_assert!((1..=MAX_HEIGHT).contains(&height) && page < pages_below(height));
    }

    /// Returns the leaf slot of `page`, making the nodes on the way. Under the tree lock, in a tree
    /// high enough.
    fn slot_for(&self, page: u64) -> *const Slot {
        let word = self.root.load(Ordering::SeqCst);
        let mut height = word & TAG;
        debug_assert!(self.tree.is_locked() && height > 0 && page < pages_below(height));
        // SAFETY: height is at least 1 after `grow`, and the tree lock keeps nodes linked.
        let mut node = unsafe { node_of(word & !TAG) };
        while height > 1 {
            let index = index_at(page, height);
            let mut child = node.slots[index].load(Ordering::Acquire);
            if child == 0 {
                child = Node::new(std::ptr::from_ref(node).cast_mut(), index as u8).expose_provenance();
                node.slots[index].store(child, Ordering::Release); // Release: the child's content before its address
            }
            // SAFETY: linked, as above.
            node = unsafe { node_of(child) };
            debug_assert_eq!(node.index as usize, index, "a node in the place of another");
            height -= 1;
        }
        &node.slots[index_at(page, 1)]
    }

    /// Returns the leaf that holds a locked, attached page; `None` if the root holds it.
    fn leaf_of<'p>(&self, page: &'p PageGuard<'_>) -> Option<&'p Node> {
        let slot = page.slot().cast_const();
        if std::ptr::eq(slot, &self.root) {
            return None;
        }
        let index = page.page() as usize & (FAN - 1);
        debug_assert!(!slot.is_null(), "the page is not attached");
        // SAFETY: the slot is number `index` of a leaf (`attach`, `grow`), slots are the first
        // field of the node, and the node is alive as long as the page is locked and attached (2).
        // The pointer came from a reference to the whole array's element; its provenance was
        // exposed with the node.
        Some(unsafe { node_of((slot.addr()) - index * size_of::<Slot>()) })
    }

    /// Marks a locked page dirty in the tree, the page's own state being the caller's business.
    /// Returns whether the file had nothing dirty before.
    pub(super) fn mark_dirty(&self, ctx: &DataCtx<'_>, page: &PageGuard<'_>) -> bool {
        debug_assert!(page.has(DIRTY), "a mark without a dirty page");
        let newly = self.mark_in(ctx, self.leaf_of(page), 1 << (page.page() & (FAN as u64 - 1)));
        self.no_note(ctx, page);
        newly
    }

    /// Takes a locked page that counted as a leaf of its own out of the count.
    fn no_note(&self, ctx: &DataCtx<'_>, page: &PageGuard<'_>) {
        debug_assert!(page.desc().is(ctx.ino, page.page()), "another file's page");
        if page.has(NOTED) {
            page.reset(NOTED);
            ctx.pool.count_dirty_leaves(ctx.lane, -1);
        }
    }

    /// Does as `mark_dirty`, for locked pages of one leaf.
    pub(super) fn mark_dirty_run(&self, ctx: &DataCtx<'_>, pages: &[PageGuard<'_>]) -> bool {
        debug_assert!(pages.iter().all(|p| p.has(DIRTY)), "a mark without a dirty page");
        let Some(first) = pages.first() else { return false };
        let leaf = self.leaf_of(first);
        debug_assert!(
            pages.iter().all(|p| self.leaf_of(p).map(std::ptr::from_ref) == leaf.map(std::ptr::from_ref))
        );
        pages.iter().for_each(|p| self.no_note(ctx, p));
        self.mark_in(ctx, leaf, pages.iter().fold(0, |bits, p| bits | 1 << (p.page() & (FAN as u64 - 1))))
    }

    /// Marks pages of a leaf, or the one in the root, and all above them.
    fn mark_in(&self, ctx: &DataCtx<'_>, leaf: Option<&Node>, bits: u64) -> bool {
        if let Some(leaf) = leaf {
            if leaf.mark_all(bits) {
                ctx.pool.count_dirty_leaves(ctx.lane, 1);
            }
            let (mut node, mut index) = (leaf, leaf.index);
            loop {
                let parent = node.parent.load(Ordering::SeqCst); // SeqCst: see 5 and 6
                if parent.is_null() {
                    break;
                }
                // SAFETY: a parent is unlinked only with all below it empty; our page is locked and
                // attached (2).
                node = unsafe { &*parent };
                debug_assert!((index as usize) < FAN && !std::ptr::eq(node, leaf));
                node.mark(index as usize);
                index = node.index;
            }
        }
        // SeqCst: see 5.
        self.dirty.load(Ordering::SeqCst) == 0 && self.dirty.swap(1, Ordering::SeqCst) == 0
    }

    /// Takes a locked page's own mark back. Marks above it may stay.
    pub(super) fn unmark_dirty(&self, ctx: &DataCtx<'_>, page: &PageGuard<'_>) {
        if let Some(leaf) = self.leaf_of(page) {
            let bit = 1 << (page.page() & (FAN as u64 - 1));
            // SeqCst: see 5. Nothing was marked but this page: the leaf has nothing dirty now.
            if leaf.mask.fetch_and(!bit, Ordering::SeqCst) == bit {
                ctx.pool.count_dirty_leaves(ctx.lane, -1);
            }
        }
        self.no_note(ctx, page);
    }

    /// Calls `f` for every attached frame (or only those marked dirty) with a page in `range`, in
    /// ascending order, as of some instant: `f` locks and checks.
    pub(super) fn each_page(
        &self,
        range: Range<u64>,
        dirty_only: bool,
        pin: &Guard,
        f: &mut dyn FnMut(u64, &Desc) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (entry, height) = self.root_entry(pin);
        match entry {
            Entry::Empty => ControlFlow::Continue(()),
            Entry::Page(desc) => {
                if range.contains(&0) && (!dirty_only || desc.state() & DIRTY != 0) {
                    f(0, desc)
                } else {
                    ControlFlow::Continue(())
                }
            }
            Entry::Node(node) => each_below(node, height, 0, &range, dirty_only, f),
        }
    }

    /// Clears the marks that nothing below justifies. Only under the writeback lock.
    pub(super) fn propagate_dirty(&self, pin: &Guard) {
        debug_assert!(self.writeback_lock.is_locked(), "marks are cleared by one thread (5)");
        let (entry, height) = self.root_entry(pin);
        let dirty = |entry: &Entry<'_>| match entry {
            Entry::Empty => false,
            Entry::Page(desc) => desc.state() & DIRTY != 0,
            Entry::Node(node) => node.mask.load(Ordering::SeqCst) != 0,
        };
        if let Entry::Node(node) = entry {
            propagate_dirty_below(node, height);
        }
        // Parent first, then the child again (5). The root may have grown meanwhile: read it anew.
        self.dirty.store(0, Ordering::SeqCst);
        if dirty(&self.root_entry(pin).0) {
            self.dirty.store(1, Ordering::SeqCst);
        }
    }

    /// Unlinks the empty nodes that lie wholly in `range`.
    pub(super) fn prune(&self, range: Range<u64>) {
        let pin = epoch::pin();
        let _tree = self.tree.lock();
        let word = self.root.load(Ordering::SeqCst);
        let height = word & TAG;
        if height != 0 {
            // SAFETY: the root node, under the tree lock.
            let node = unsafe { node_of(word & !TAG) };
            if prune_below(node, height, 0, &range, &pin) {
                self.root.store(0, Ordering::SeqCst);
                // Nothing is attached, and nothing can be without the tree lock: no page can be
                // dirty.
                self.dirty.store(0, Ordering::SeqCst);
                retire(word & !TAG, &pin);
            }
        } else if word == 0 {
            self.dirty.store(0, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
impl FileData {
    /// Checks the whole tree; returns how many leaves have dirty pages. Nothing may be under way,
    /// and no page be noted in stamps.
    pub fn check_tree(&self, ino: Ino) -> i64 {
        let pin = epoch::pin();
        let _tree = self.tree.lock();
        let (entry, height) = self.root_entry(&pin);
        let mut leaves = 0;
        let dirty = match entry {
            Entry::Empty => false,
            Entry::Page(desc) => {
                assert!(desc.is(ino, 0), "another page in the root");
                desc.state() & DIRTY != 0
            }
            Entry::Node(node) => {
                assert!(node.parent.load(Ordering::SeqCst).is_null(), "a root has no parent");
                check_below(node, height, 0, (ino, super::pages_of(self.size())), &mut leaves)
            }
        };
        assert!(!dirty || self.has_dirty(), "the file does not know of its dirty pages (5)");
        leaves
    }
}

/// Checks the tree below a node; returns whether a page there is dirty, and counts such leaves.
#[cfg(test)]
fn check_below(node: &Node, height: usize, base: u64, (ino, end): (Ino, u64), leaves: &mut i64) -> bool {
    let width = pages_below(height - 1);
    let mask = node.mask.load(Ordering::SeqCst);
    let mut any = false;
    for (index, slot) in node.slots.iter().enumerate() {
        let (word, marked) = (slot.load(Ordering::Acquire), mask >> index & 1 == 1);
        let first = base + index as u64 * width;
        let dirty = match (height, word) {
            // SAFETY: a leaf's slot.
            (1, _) => unsafe { desc_of(word) }.is_some_and(|desc| {
                assert!(desc.is(ino, first) && first < end, "page {first} of {end} (D5)");
                desc.state() & DIRTY != 0
            }),
            (_, 0) => false,
            _ => {
                // SAFETY: an inner node's slot that is not empty, under the tree lock.
                let child = unsafe { node_of(word) };
                assert!(std::ptr::eq(child.parent.load(Ordering::SeqCst), node));
                assert_eq!(child.index as usize, index);
                check_below(child, height - 1, first, (ino, end), leaves)
            }
        };
        assert!(marked || !dirty, "a dirty page below {first} that no writeback would find (5)");
        assert!(height > 1 || dirty || !marked, "page {first} is marked, and not dirty");
        any |= dirty;
    }
    *leaves += i64::from(height == 1 && any);
    any
}

fn each_below(
    node: &Node,
    height: usize,
    base: u64,
    range: &Range<u64>,
    dirty_only: bool,
    f: &mut dyn FnMut(u64, &Desc) -> ControlFlow<()>,
) -> ControlFlow<()> {
    debug_assert!(height > 0 && base.is_multiple_of(pages_below(height)), "{base} at height {height}");
    let width = pages_below(height - 1);
    let mask = if dirty_only { node.mask.load(Ordering::SeqCst) } else { u64::MAX };
    for (index, word, _) in node.filled(base, width, range) {
        if mask >> index & 1 == 0 {
            continue;
        }
        let first = base + index * width;
        if height == 1 {
            debug_assert!(range.contains(&first), "page {first} was not asked for");
            // SAFETY: a leaf's slot.
            if let Some(desc) = unsafe { desc_of(word) } {
                f(first, desc)?;
            }
        } else {
            // SAFETY: an inner node's slot; the caller is pinned.
            each_below(unsafe { node_of(word) }, height - 1, first, range, dirty_only, f)?;
        }
    }
    ControlFlow::Continue(())
}

fn propagate_dirty_below(node: &Node, height: usize) {
    if height == 1 {
        return;
    }
    let mut mask = node.mask.load(Ordering::SeqCst);
    while mask != 0 {
        let index = mask.trailing_zeros() as usize;
        mask &= mask - 1;
        let word = node.slots[index].load(Ordering::Acquire);
        let child = (word != 0).then(|| {
            // SAFETY: an inner node's slot; the caller is pinned.
            unsafe { node_of(word) }
        });
        if let Some(child) = child {
            propagate_dirty_below(child, height - 1);
        }
        if child.is_none_or(|c| c.mask.load(Ordering::SeqCst) == 0) {
            node.mask.fetch_and(!(1 << index), Ordering::SeqCst);
            // The child again (5); also one linked only now.
            let word = node.slots[index].load(Ordering::SeqCst);
            // SAFETY: as above.
            if word != 0 && unsafe { node_of(word) }.mask.load(Ordering::SeqCst) != 0 {
                node.mark(index);
            }
        }
    }
}

/// Unlinks the empty children of a node in `range`; returns whether it is empty then. Under the
/// tree lock.
fn prune_below(node: &Node, height: usize, base: u64, range: &Range<u64>, pin: &Guard) -> bool {
    let width = pages_below(height - 1);
    if height > 1 {
        for (index, word, slot) in node.filled(base, width, range) {
            // SAFETY: an inner node's slot, under the tree lock.
            let child = unsafe { node_of(word) };
            if prune_below(child, height - 1, base + index * width, range, pin) {
                slot.store(0, Ordering::SeqCst);
                retire(word, pin);
            }
        }
    }
    // Acquire: pairs with `detach`: the detachers are done with the node.
    let empty = node.slots.iter().all(|slot| slot.load(Ordering::Acquire) == 0);
    debug_assert!(
        !empty || height > 1 || node.mask.load(Ordering::SeqCst) == 0,
        "a leaf without pages has dirty ones: a page was detached with its mark"
    );
    empty
}

/// Frees a node that was just unlinked, when nobody can see it any more.
fn retire(word: usize, pin: &Guard) {
    let node = std::ptr::with_exposed_provenance_mut::<Node>(word);
    debug_assert!(!node.is_null() && node.is_aligned(), "{word:#x} is no node");
    // SAFETY: made by `Node::new`, unlinked just now under the tree lock, hence retired once; who
    // still looks at it is pinned (3).
    unsafe { pin.defer_unchecked(move || drop(Box::from_raw(node))) };
}

/// Frees the nodes below a root at once and detaches what is attached: for the drop of a file
/// nobody can reach.
pub(super) fn free_tree(root: &Slot) {
    let word = root.load(Ordering::Acquire);
    demolish_below(root, word & TAG, &mut false);
}

/// `counts`: the leaf that the slot is in counts among those with dirty pages.
fn demolish_below(slot: &Slot, height: usize, counts: &mut bool) {
    let word = slot.load(Ordering::Acquire) & !TAG;
    if height == 0 {
        abandon(slot, counts);
        return;
    }
    if word == 0 {
        return;
    }
    // SAFETY: nobody else can reach the tree, but reclaimers, who touch only slots of frames they
    // have locked.
    let node = unsafe { node_of(word) };
    let mut counts = height == 1 && node.mask.load(Ordering::SeqCst) != 0;
    for child in &node.slots {
        demolish_below(child, height - 1, &mut counts);
        debug_assert!(height > 1 || child.load(Ordering::Relaxed) == 0, "a frame was left");
    }
    debug_assert!(!counts, "a leaf counts, and none of its pages was dirty");
    // SAFETY: made by `Node::new`; all its slots are empty, so no reclaimer has a frame of it (2).
    drop(unsafe { Box::from_raw(std::ptr::with_exposed_provenance_mut::<Node>(word)) });
}

/// Detaches the frame in a slot, for the clock to find. The first dirty one of a leaf that counts
/// stands for it.
fn abandon(slot: &Slot, counts: &mut bool) {
    // SAFETY: a leaf's slot, or a root of height 0; the pool keeps its memory as long as anything
    // is attached.
    while let Some(desc) = unsafe { desc_of(slot.load(Ordering::Acquire)) } {
        let guard = desc.lock();
        // A reclaimer may have detached it before we had the lock, and another file may own it by
        // now.
        if std::ptr::eq(guard.slot(), slot) {
            // STABLE: whose image nobody has finished is not given out again.
            let kept = DIRTY | WRITEBACK | NOTED | LENT | IMAGE_LENT | STABLE;
            let mut counted = guard.desc().state() & kept;
            if *counts && counted & (DIRTY | NOTED) == DIRTY {
                counted |= NOTED;
                *counts = false;
            }
            detach(&guard);
            guard.set(LOST | counted); // the clock takes it out of the counts
        }
    }
}
