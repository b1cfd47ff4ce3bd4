//! Taking pages away: truncate, holes, zeroed and allocated ranges.

use super::frame::{BEHIND, DIRTY, HOLE, IMAGE_LENT, KEPT, LENT, PageGuard, STABLE, STORED, WRITEBACK};
use super::pool::Hand;
use super::read::{Loaded, is_zero};
use super::seam::StoreResult;
use super::tree::{self, MAX_PAGES};
use super::writeback::WritebackGuard;
use super::{Cut, DataCtx, FileData, PAGE, page_at, pages_of};
use crate::error::{Error, Result};
use crossbeam_epoch as epoch;
use lanefs_format::MAX_FILE_SIZE;
use lanefs_sync::fill_racy;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::Ordering;

/// Pages that may lie between preallocated ranges, whatever these have: 1 MiB.
const APART_LEAST: u64 = 256;
/// Pages that are written for want of a range: 1 GiB.
const APART_MOST: u64 = 1 << 18;

impl FileData {
    /// Sets the size. When the file shrinks, `cut` (with the new size) goes to the store with the
    /// unmapping; when it grows, the store is not called. Fails without effect, with ENOSPC if the
    /// last page must be rewritten and very many such pages wait to be written back on a full
    /// volume.
    pub fn truncate(&self, ctx: &DataCtx<'_>, size: u64, cut: Option<&Cut<'_>>) -> Result<()> {
        if size > MAX_FILE_SIZE {
            return Err(Error::Posix(libc::EFBIG));
        }
        let mut hand = Hand::new();
        let result = self.truncate_with(ctx, size, cut, &mut hand);
        ctx.pool.give_all(ctx.lane, &mut hand);
        result
    }

    fn truncate_with(
        &self,
        ctx: &DataCtx<'_>,
        size: u64,
        cut: Option<&Cut<'_>>,
        hand: &mut Hand,
    ) -> Result<()> {
        let partial = !size.is_multiple_of(PAGE as u64);
        let _size_lock = loop {
            self.zero_tail(ctx)?;
            if partial && size < self.size() {
                // All waiting for memory, and usually the load too, before any lock.
                ctx.pool.take(ctx.lane, 1, hand)?;
                self.preload(ctx, page_at(size))?;
            }
            let lock = self.size_lock.lock();
            // Whoever says where the end is has handed over what lies before it (G3 of `gaps.rs`).
            self.gaps.forget_all();
            if size == self.size() {
                return self.give_back_behind(ctx, cut);
            }
            if size > self.size() {
                self.size.store(size, Ordering::Release); // Release: D4
                return Ok(());
            }
            if !partial || !hand.is_empty() {
                break lock;
            }
        };
        let old = self.size();
        debug_assert!(size < old && self.size_lock.is_locked(), "the file shrinks");
        let writeback = self.lock_writeback();
        // Of a file with holes it is not known how many of its blocks lie behind the new end; of
        // another all that do not lie before it.
        let stored = if self.is_sparse() || self.has_space_behind() {
            ctx.store.space_in(ctx.ino, pages_of(size)..MAX_PAGES).unwrap_or(0)
        } else {
            0
        };
        let from = size as usize % PAGE;
        if partial {
            let pin = epoch::pin();
            // Locked until the size is stored, even if there is nothing to blank: a writer inside
            // the old size must not put bytes behind the new one.
            let tail = self.lock_or_load(ctx, page_at(size), hand, &pin)?;
            let tail = tail.ok_or(Error::Posix(libc::EIO))?; // inside the file: the size lock is ours
            debug_assert!(tail.page() == page_at(size) && from > 0, "the page that is cut");
            let blank = !is_zero(ctx, &tail, from, PAGE);
            let reserve = blank && !tail.has(DIRTY);
            if reserve && !ctx.store.reserve_rewrite(ctx.lane) {
                return Err(Error::Posix(libc::ENOSPC));
            }
            if let Err(e) = self.shrink(ctx, size, cut) {
                if reserve {
                    ctx.store.unreserve(ctx.lane, 1);
                }
                return Err(e);
            }
            // It may go into the inode now, which then takes a block beside the one that is kept.
            tail.reset(STORED);
            if tail.has(KEPT) && ctx.store.reserve_rewrite(ctx.lane) {
                tail.reset(KEPT);
            }
            if blank {
                self.blank(ctx, &tail, from, PAGE);
            }
        } else {
            self.shrink(ctx, size, cut)?;
        }
        // Behind the old end there is no page (D5): whoever attaches one there holds the size lock.
        let fresh = self.discard(ctx, pages_of(size)..pages_of(old), &writeback);
        debug_assert!(self.has_no_page_from(pages_of(size)), "a page behind the end (D5)");
        self.take_blocks(stored + fresh);
        // Tested first: a second truncation to the same size reads it. Relaxed: statistics.
        if self.has_space_behind() {
            self.behind.store(0, Ordering::Relaxed);
        }
        self.blocks.fetch_min(pages_of(size), Ordering::Relaxed);
        Ok(())
    }

    /// Gives back what is preallocated behind the end: who sets the size that the file has does not
    /// grow into it any more. With the size lock held.
    fn give_back_behind(&self, ctx: &DataCtx<'_>, cut: Option<&Cut<'_>>) -> Result<()> {
        debug_assert!(self.size_lock.is_locked(), "the end may move");
        if !self.has_space_behind() {
            return Ok(());
        }
        let _writeback = self.lock_writeback();
        let behind = pages_of(self.size())..MAX_PAGES;
        let had = ctx.store.space_in(ctx.ino, behind.clone())?;
        debug_assert!(had <= behind.end - behind.start, "more pages than there are");
        ctx.store.unmap(ctx.lane, ctx.ino, behind, cut)?;
        self.behind.store(0, Ordering::Relaxed); // Relaxed: a statistic
        self.take_blocks(had);
        Ok(())
    }

    fn take_blocks(&self, gone: u64) {
        // Relaxed: a statistic.
        let _ =
            self.blocks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |b| Some(b.saturating_sub(gone)));
    }

    /// Lowers the size and unmaps what lies behind, or does neither. With the size and writeback
    /// locks held.
    fn shrink(&self, ctx: &DataCtx<'_>, size: u64, cut: Option<&Cut<'_>>) -> Result<()> {
        let old = self.size();
        debug_assert!(size < old && self.size_lock.is_locked() && self.writeback_lock.is_locked());
        // First the size, so that nobody reads unmapped pages as zeros inside the file. Release:
        // see "write and truncate", "miss and truncate"; the page's unlock and the tree lock carry
        // it.
        self.size.store(size, Ordering::Release);
        // Relaxed: the writeback lock carries it.
        self.cuts.fetch_add(1, Ordering::Relaxed);
        ctx.store.unmap(ctx.lane, ctx.ino, pages_of(size)..MAX_PAGES, cut).map_err(|e| {
            self.size.store(old, Ordering::Release);
            e.into()
        })
    }

    /// Makes a range read as zeros and gives its whole pages back. The size stays, so `cut` names
    /// none: the file may grow meanwhile.
    pub fn punch_hole(&self, ctx: &DataCtx<'_>, offset: u64, len: u64, cut: Option<&Cut<'_>>) -> Result<()> {
        self.take_out(ctx, offset, len, |pages| ctx.store.unmap(ctx.lane, ctx.ino, pages, cut))
    }

    /// Makes a range read as zeros; `unmap` does so to its whole pages in the store.
    fn take_out(
        &self,
        ctx: &DataCtx<'_>,
        offset: u64,
        len: u64,
        unmap: impl FnOnce(Range<u64>) -> StoreResult<()>,
    ) -> Result<()> {
        let end = offset.saturating_add(len).min(MAX_FILE_SIZE);
        if offset >= end {
            return Ok(());
        }
        let size_lock = loop {
            let size = self.size();
            self.zero_edges(ctx, offset, end, size)?;
            // The size that the edges went by: one that an extending write has raised since would
            // say that the last page was seen to, which was left to go as a whole.
            if end < size {
                break None;
            }
            // Up to the end: the last page goes as a whole, if no extending write is under way that
            // may have put bytes there.
            let lock = self.size_lock.lock();
            if end >= self.size() {
                break Some(lock);
            }
        };
        let size = self.size();
        let first = pages_of(offset);
        // Behind the end there are only preallocated pages.
        let last = match end >= size && size_lock.is_some() {
            true if self.has_space_behind() => page_at(end).max(pages_of(size)),
            true => pages_of(size),
            false => page_at(end),
        };
        if first >= last {
            return Ok(());
        }
        let writeback = self.lock_writeback();
        let had = ctx.store.space_in(ctx.ino, first..last)?;
        unmap(first..last)?;
        // In the middle of preallocated pages the space may stay.
        let stored = had.saturating_sub(ctx.store.space_in(ctx.ino, first..last)?);
        debug_assert!(stored <= last - first, "more pages than there are");
        self.take_blocks(stored + self.discard(ctx, first..last, &writeback));
        Ok(())
    }

    /// Makes a range read as zeros, extending the file unless `keep_size`. Whole pages become
    /// preallocated ones without content. ENOSPC before anything is changed, unless others take
    /// what it gives back meanwhile. `dirtied` as for [`FileData::allocate`].
    pub fn zero_range(
        &self,
        ctx: &DataCtx<'_>,
        offset: u64,
        len: u64,
        keep_size: bool,
        cut: &Cut<'_>,
        dirtied: &dyn Fn(),
    ) -> Result<()> {
        let end = offset.checked_add(len).filter(|&e| e <= MAX_FILE_SIZE).ok_or(Error::Posix(libc::EFBIG))?;
        let pages = page_at(offset)..pages_of(end);
        if self.is_apart(ctx, &pages, end, keep_size)? {
            self.allocate_apart(ctx, pages.clone(), offset, len, dirtied)?;
            return pages.into_iter().try_for_each(|page| {
                let at = page * PAGE as u64;
                let (from, to) = (offset.saturating_sub(at), (end - at).min(PAGE as u64));
                self.zero_part(ctx, page, from as usize, to as usize)?;
                dirtied();
                Ok(())
            });
        }
        // Before anything is lost: where there is no space for it nothing is changed.
        self.allocate(ctx, offset, len, true, cut, dirtied)?;
        // As on other file systems the space stays the file's.
        self.take_out(ctx, offset, len, |pages| ctx.store.zero(ctx.lane, ctx.ino, pages, cut))?;
        self.allocate(ctx, offset, len, keep_size, cut, dirtied)
    }

    /// Preallocates: keeps space for all of the range until it is written or becomes a hole, and
    /// extends the file unless `keep_size`. ENOSPC if there is not as much. On a volume that cannot
    /// keep it, only looks whether there is space at this moment.
    ///
    /// `dirtied` is called behind each page that may have become dirty on the way, without a lock:
    /// they may be more than all that memory takes, and pages of a file that nobody knows to be
    /// dirty are not written back.
    pub fn allocate(
        &self,
        ctx: &DataCtx<'_>,
        offset: u64,
        len: u64,
        keep_size: bool,
        cut: &Cut<'_>,
        dirtied: &dyn Fn(),
    ) -> Result<()> {
        let end = offset.checked_add(len).filter(|&e| e <= MAX_FILE_SIZE).ok_or(Error::Posix(libc::EFBIG))?;
        let pages = page_at(offset)..pages_of(end);
        if self.is_apart(ctx, &pages, end, keep_size)? {
            return self.allocate_apart(ctx, pages, offset, len, dirtied);
        }
        {
            // No page is on its way to the store, which would count it again; and none goes.
            let _writeback = self.lock_writeback();
            match ctx.store.preallocate(ctx.lane, ctx.ino, pages.clone(), cut.attrs)? {
                Some(more) => {
                    self.note_kept();
                    let behind = pages.end.saturating_sub(pages_of(self.size()));
                    self.behind.fetch_max(behind, Ordering::Relaxed); // Relaxed: a statistic
                    self.add_blocks(more);
                    self.take_blocks(self.fill_holes(ctx, pages));
                }
                None => {
                    let missing = pages.end - pages.start - ctx.store.space_in(ctx.ino, pages)?;
                    if !ctx.store.reserve(ctx.lane, missing) {
                        return Err(Error::Posix(libc::ENOSPC));
                    }
                    ctx.store.unreserve(ctx.lane, missing);
                }
            }
        }
        if keep_size { Ok(()) } else { self.extend(ctx, offset, len) }
    }

    /// Returns whether pages, up to the byte `end`, lie so far from what is preallocated that more
    /// would be kept between them than they are, where a file has but two ranges. Behind the end of
    /// a file that stays as long as it is they are kept all the same.
    fn is_apart(&self, ctx: &DataCtx<'_>, pages: &Range<u64>, end: u64, keep_size: bool) -> Result<bool> {
        let len = pages.end - pages.start;
        if len > APART_MOST || keep_size && end > self.size() {
            return Ok(false);
        }
        Ok(ctx.store.kept_between(ctx.ino, pages)? > len.max(APART_LEAST))
    }

    /// Gives pages their space by writing zeros where they are holes, and extends the file to the
    /// end of the range. ENOSPC before anything is changed, unless others take what there is
    /// meanwhile.
    fn allocate_apart(
        &self,
        ctx: &DataCtx<'_>,
        pages: Range<u64>,
        offset: u64,
        len: u64,
        dirtied: &dyn Fn(),
    ) -> Result<()> {
        debug_assert!(pages.start < pages.end && pages.end - pages.start <= APART_MOST, "{pages:?}");
        let missing = (pages.end - pages.start).saturating_sub(ctx.store.space_in(ctx.ino, pages.clone())?);
        if !ctx.store.reserve(ctx.lane, missing) {
            return Err(Error::Posix(libc::ENOSPC));
        }
        ctx.store.unreserve(ctx.lane, missing);
        self.extend(ctx, offset, len)?;
        for page in pages {
            self.fill_hole(ctx, page)?;
            dirtied();
        }
        Ok(())
    }

    /// Makes a page dirty that is a hole: it has the zeros that were read of it, and a block's
    /// space.
    fn fill_hole(&self, ctx: &DataCtx<'_>, page: u64) -> Result<()> {
        if self.find(page, &epoch::pin()).is_none() && ctx.store.has_space(ctx.ino, page)? {
            return Ok(());
        }
        let mut hand = self.hand_for_one(ctx)?;
        let pin = epoch::pin();
        let locked = self.lock_or_load(ctx, page, &mut hand, &pin);
        ctx.pool.give_all(ctx.lane, &mut hand);
        let Some(guard) = locked? else { return Ok(()) };
        debug_assert!(guard.page() == page && guard.desc().is(ctx.ino, page), "another page was locked");
        let is_hole = guard.has(HOLE) && !guard.has(DIRTY);
        if is_hole && !ctx.store.reserve(ctx.lane, 1) {
            guard.unchanged();
            return Err(Error::Posix(libc::ENOSPC));
        }
        if is_hole {
            debug_assert!(is_zero(ctx, &guard, 0, PAGE), "a hole with something in it");
            self.set_dirty(ctx, &guard);
        }
        guard.unchanged();
        Ok(())
    }

    /// Takes the mark of a hole off the cached pages of a range, which were preallocated. Returns
    /// how many of them count as blocks for being dirty.
    fn fill_holes(&self, ctx: &DataCtx<'_>, range: Range<u64>) -> u64 {
        debug_assert!(self.writeback_lock.is_locked(), "an image of a hole may be under way");
        let pin = epoch::pin();
        let mut counted = 0;
        let _ = self.each_page(range, false, &pin, &mut |page, desc| {
            let Some(guard) = desc.lock_as(ctx.ino, page) else { return ControlFlow::Continue(()) };
            if guard.has(HOLE) {
                counted += u64::from(guard.has(DIRTY));
                guard.reset(HOLE);
            }
            guard.unchanged();
            ControlFlow::Continue(())
        });
        counted
    }

    /// Sees to it that bytes which the store may hold behind the end of a file that was found after
    /// a crash (D6) are overwritten with zeros when the file is next written back; until then the
    /// page stays in memory. Called before the size is raised, without a lock. Once is enough: what
    /// this mount cuts off it writes back, or keeps.
    pub(super) fn zero_tail(&self, ctx: &DataCtx<'_>) -> Result<()> {
        // Acquire: who sees it lowered sees the page dirty.
        if !self.tail_unsure.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut hand = self.hand_for_one(ctx)?;
        let zeroed = self.zero_tail_with(ctx, &mut hand);
        ctx.pool.give_all(ctx.lane, &mut hand);
        zeroed
    }

    #[cold]
    fn zero_tail_with(&self, ctx: &DataCtx<'_>, hand: &mut Hand) -> Result<()> {
        let mut size = self.size();
        if !size.is_multiple_of(PAGE as u64) {
            self.preload(ctx, page_at(size))?; // usually the load, before the lock
        }
        let _size_lock = self.size_lock.lock();
        size = self.size();
        if !size.is_multiple_of(PAGE as u64) {
            let pin = epoch::pin();
            if let Some(tail) = self.lock_or_load(ctx, page_at(size), hand, &pin)? {
                if tail.has(BEHIND) && !tail.has(DIRTY) {
                    if !ctx.store.reserve_rewrite(ctx.lane) {
                        tail.unchanged();
                        return Err(Error::Posix(libc::ENOSPC));
                    }
                    self.set_dirty(ctx, &tail);
                }
                debug_assert!(!tail.has(BEHIND) || tail.has(DIRTY), "the zeros reach the store (D6)");
                tail.reset(BEHIND);
                tail.unchanged();
            }
        }
        self.tail_unsure.store(false, Ordering::Release);
        Ok(())
    }

    fn extend(&self, ctx: &DataCtx<'_>, offset: u64, len: u64) -> Result<()> {
        let end = offset.checked_add(len).filter(|&e| e <= MAX_FILE_SIZE).ok_or(Error::Posix(libc::EFBIG))?;
        self.zero_tail(ctx)?;
        let _lock = self.size_lock.lock();
        if end > self.size() {
            self.gaps.forget_all(); // as in `truncate`
            self.size.store(end, Ordering::Release); // Release: D4
        }
        Ok(())
    }

    /// Zeroes what a range covers of its first and its last page, where it covers them only in
    /// part, in a file of `size` bytes.
    fn zero_edges(&self, ctx: &DataCtx<'_>, offset: u64, end: u64, size: u64) -> Result<()> {
        debug_assert!(offset < end && end <= MAX_FILE_SIZE);
        let (first, last) = (page_at(offset), page_at(end));
        let (from, to) = (offset as usize % PAGE, end as usize % PAGE);
        if first == last {
            // A range inside one page, unless it takes the page with it (see `punch_hole`).
            return if from == 0 && end >= size { Ok(()) } else { self.zero_part(ctx, first, from, to) };
        }
        if from != 0 {
            self.zero_part(ctx, first, from, PAGE)?;
        }
        if to != 0 && end < size {
            self.zero_part(ctx, last, 0, to)?;
        }
        Ok(())
    }

    fn zero_part(&self, ctx: &DataCtx<'_>, page: u64, from: usize, to: usize) -> Result<()> {
        debug_assert!(from < to && to <= PAGE, "{from}..{to}");
        let mut hand = self.hand_for_one(ctx)?;
        let zeroed = self.zero_part_with(ctx, page, from..to, &mut hand);
        ctx.pool.give_all(ctx.lane, &mut hand);
        zeroed
    }

    fn zero_part_with(
        &self,
        ctx: &DataCtx<'_>,
        page: u64,
        Range { start: from, end: to }: Range<usize>,
        hand: &mut Hand,
    ) -> Result<()> {
        let pin = epoch::pin();
        let Some(mut guard) = self.lock_or_load(ctx, page, hand, &pin)? else { return Ok(()) };
        if is_zero(ctx, &guard, from, to) {
            guard.unchanged();
            return Ok(());
        }
        // Clean and not zeros, so it is stored.
        if !guard.has(DIRTY) && !ctx.store.reserve_rewrite(ctx.lane) {
            guard.unchanged();
            return Err(Error::Posix(libc::ENOSPC));
        }
        if guard.has(STABLE) {
            // It was attached before: the frame in hand is there still.
            debug_assert_eq!(hand.len(), 1, "a frame for the page");
            if let Some(frame) = hand.pop() {
                guard = self.displace(ctx, guard, frame, true);
            }
        }
        self.blank(ctx, &guard, from, to);
        Ok(())
    }

    /// Takes the frame that a page may need which is to become dirty. No lock is held.
    fn hand_for_one(&self, ctx: &DataCtx<'_>) -> Result<Hand> {
        let mut hand = Hand::new();
        ctx.pool.slow_down(|leaves| ctx.store.has_space_for_maps(leaves));
        ctx.pool.take(ctx.lane, 1, &mut hand)?;
        debug_assert_eq!(hand.len(), 1);
        Ok(hand)
    }

    /// Locks a page, loading it into the frame in hand if it is not cached; `None` if it lies
    /// behind the end.
    fn lock_or_load<'g>(
        &self,
        ctx: &DataCtx<'g>,
        page: u64,
        hand: &mut Hand,
        pin: &'g epoch::Guard,
    ) -> Result<Option<PageGuard<'g>>> {
        loop {
            if let Some(guard) = self.lock_page(ctx.ino, page, pin) {
                return Ok(Some(guard));
            }
            debug_assert!(hand.len() == 1, "a frame for the page, and none for pages behind it");
            match self.load_into(ctx, page, hand)? {
                Loaded::Page(guard) => return Ok(Some(guard)),
                Loaded::PastEof => return Ok(None),
                Loaded::Again => {}
                Loaded::NoFrame => return Err(Error::Posix(libc::ENOMEM)), // the callers bring a frame
            }
        }
    }

    /// Zeroes part of a locked page; a block was reserved if it was not dirty.
    fn blank(&self, ctx: &DataCtx<'_>, guard: &PageGuard<'_>, from: usize, to: usize) {
        debug_assert!(from < to && to <= PAGE, "{from}..{to}");
        debug_assert!(!guard.has(STABLE), "the image on its way is this very frame");
        // SAFETY: the range lies in the page, whose lock is held; optimistic readers validate (D2).
        unsafe { fill_racy(ctx.pool.bytes(guard.desc()).add(from), 0, to - from) };
        if !guard.has(DIRTY) {
            self.set_dirty(ctx, guard);
        }
        debug_assert!(is_zero(ctx, guard, from, to) && guard.has(DIRTY), "the zeros reach the store");
    }

    /// Detaches every page of a range and gives its reservations back. What was attached before the
    /// range was unmapped (or the size lowered) is found: attaching goes through the tree lock.
    /// Returns how many of them the store never had.
    pub(super) fn discard(
        &self,
        ctx: &DataCtx<'_>,
        range: Range<u64>,
        writeback: &WritebackGuard<'_>,
    ) -> u64 {
        debug_assert!(writeback.is_of(self), "the lock of another file");
        drop(self.tree.lock());
        let pin = epoch::pin();
        let (mut dirty, mut counted, mut fresh, mut under_way) = (0, 0, 0, 0);
        let (mut promised, mut lent) = (0, 0);
        let _ = self.each_page(range.clone(), false, &pin, &mut |page, desc| {
            let Some(guard) = desc.lock_as(ctx.ino, page) else { return ControlFlow::Continue(()) };
            if guard.has(DIRTY) {
                dirty += 1;
                promised += u64::from(!guard.has(LENT | KEPT));
                fresh += u64::from(guard.has(HOLE));
                self.unmark_dirty(ctx, &guard);
            }
            if guard.has(DIRTY | WRITEBACK) {
                counted += 1;
            }
            under_way += i64::from(guard.has(WRITEBACK));
            lent += i64::from(guard.has(LENT | IMAGE_LENT));
            let is_image = guard.has(STABLE); // stable.rs, 5
            tree::detach(&guard);
            if is_image {
                guard.set(STABLE);
                return ControlFlow::Continue(());
            }
            drop(guard);
            ctx.pool.give(ctx.lane, ctx.pool.number(desc));
            ControlFlow::Continue(())
        });
        debug_assert!(fresh <= dirty && dirty <= counted as u64, "{fresh} of {dirty} of {counted}");
        if counted > 0 {
            ctx.pool.count_dirty(ctx.lane, -counted);
        }
        if under_way > 0 {
            ctx.pool.count_dirty_leaves(ctx.lane, -under_way);
        }
        if lent > 0 {
            ctx.pool.count_lent(ctx.lane, -lent);
        }
        if promised > 0 {
            ctx.store.unreserve(ctx.lane, promised);
        }
        drop(pin);
        self.prune(range);
        fresh
    }

    /// Returns whether no page is attached from `page` on.
    fn has_no_page_from(&self, page: u64) -> bool {
        let mut none = true;
        let _ = self.each_page(page..MAX_PAGES, false, &epoch::pin(), &mut |_, _| {
            none = false;
            ControlFlow::Break(())
        });
        none
    }

    /// Forgets every cached page, dirty ones included, and gives their reservations back: for an
    /// inode that is freed. No other call on this file may be under way, but a writeback, which is
    /// waited for.
    pub fn drop_all(&self, ctx: &DataCtx<'_>) {
        let writeback = self.lock_writeback();
        // Most files that end by the thousands are empty.
        if !self.is_bare() {
            self.discard(ctx, 0..MAX_PAGES, &writeback);
        }
    }

    /// Returns whether no page is in memory. Nobody is about to attach one: no call on this file is
    /// under way.
    fn is_bare(&self) -> bool {
        let _tree = self.tree.lock();
        // Relaxed, both: pages are attached under the tree lock, and who detached the last one
        // since is done with the file. Where a mark has stayed, `discard` takes it off.
        self.root.load(Ordering::Relaxed) == 0 && self.dirty.load(Ordering::Relaxed) == 0
    }

    /// Forgets the clean pages; returns how many there were.
    #[cfg(test)]
    pub fn evict_clean(&self, ctx: &DataCtx<'_>) -> usize {
        let pin = epoch::pin();
        let mut evicted = 0;
        let _ = self.each_page(0..MAX_PAGES, false, &pin, &mut |page, desc| {
            let Some(guard) = desc.try_lock() else { return ControlFlow::Continue(()) };
            if !desc.is(ctx.ino, page) || guard.has(DIRTY | WRITEBACK) {
                guard.unchanged();
                return ControlFlow::Continue(());
            }
            tree::detach(&guard);
            drop(guard);
            ctx.pool.give(ctx.lane, ctx.pool.number(desc));
            evicted += 1;
            ControlFlow::Continue(())
        });
        drop(pin);
        self.prune(0..MAX_PAGES);
        evicted
    }
}
