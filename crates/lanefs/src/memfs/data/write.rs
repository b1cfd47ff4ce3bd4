//! Writing and appending.
//!
//! A write is done in two steps. First, without any lock: be slowed down if much is dirty, take as
//! many frames as pages are missing, load the pages written only in part. Then, page by page, hand
//! over hand: lock or attach, reserve, copy, mark. If the second step finds that the first was not
//! enough (a page was evicted in between, the file shrank), it stops at a page's border, and both
//! are done again for the rest.

use super::frame::{DIRTY, HOLE, LENT, NOTED, ONCE, PageGuard, STABLE, WRITEBACK};
use super::pool::Hand;
use super::run::{RUN, Run, copy_into, undo};
use super::stable::needs_frame;
use super::tree::{self, Refused};
use super::{DataCtx, FileData, PAGE, PageRead, page_at, pages_of};
use crate::error::{Error, Result};
use crossbeam_epoch as epoch;
use lanefs_format::{Block, MAX_FILE_SIZE};
use lanefs_sync::{copy_racy, fill_racy};
use smallvec::smallvec;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The outcome of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Bytes written: fewer than asked if the volume filled up half-way.
    pub bytes: usize,
    /// The file had no dirty page before.
    pub newly_dirty: bool,
    /// The file's size grew, or what the store may get of it.
    pub extended: bool,
}

/// The means that a write has in hand: frames for pages that are missing, and blocks promised to it
/// that no page has taken.
#[derive(Default)]
pub(super) struct InHand {
    pub(super) frames: Hand,
    pub(super) blocks: u64,
}

/// The reason why the second step ended.
enum Stop {
    Done,
    /// The rest lies behind the end of the file: it needs the size lock.
    Shrunk,
    /// A page is missing and no frame is at hand.
    NoFrame,
    Failed(Error),
}

impl FileData {
    /// Writes at `offset`. Fails with ENOSPC if not even one page can be reserved, with EFBIG
    /// behind the largest offset.
    pub fn write(&self, ctx: &DataCtx<'_>, offset: u64, buf: &[u8]) -> Result<Written> {
        let mut out = Written::default();
        if buf.is_empty() {
            return Ok(out);
        }
        if offset >= MAX_FILE_SIZE {
            return Err(Error::Posix(libc::EFBIG));
        }
        if self.overwrite(ctx, offset, buf) {
            out.bytes = buf.len();
            out.extended = ctx.any_order && self.fill_gap(ctx, offset, buf.len());
            return Ok(out);
        }
        let buf = &buf[..(buf.len() as u64).min(MAX_FILE_SIZE - offset) as usize];
        while out.bytes < buf.len() {
            let at = offset + out.bytes as u64;
            let unit = ctx.pool.unit() * PAGE - at as usize % PAGE;
            let part = &buf[out.bytes..buf.len().min(out.bytes + unit)];
            match self.write_unit(ctx, at, part, &mut out) {
                Ok(0) => break,
                Ok(n) => {
                    debug_assert!(n <= part.len(), "{n} of {} bytes", part.len());
                    out.bytes += n;
                }
                Err(e) if out.bytes == 0 => return Err(e),
                Err(_) => break, // reported when the writer comes back for the rest
            }
        }
        Ok(out)
    }

    /// Writes at the end; returns where that was. Appends to one file come one after the other,
    /// each whole, but for one cut short by a full volume or by memory full of dirty pages.
    /// `whole`: where there is no space for all of it nothing is written, and the error is ENOSPC.
    /// (The rest cannot follow later: others append meanwhile.)
    pub fn append(&self, ctx: &DataCtx<'_>, buf: &[u8], whole: bool) -> Result<(u64, Written)> {
        let mut hand = InHand::default();
        let result = self.append_with(ctx, buf, whole, &mut hand);
        hand.give_back(ctx);
        result
    }

    fn append_with(
        &self,
        ctx: &DataCtx<'_>,
        buf: &[u8],
        whole: bool,
        hand: &mut InHand,
    ) -> Result<(u64, Written)> {
        let mut out = Written::default();
        if buf.is_empty() {
            return Ok((self.size(), out));
        }
        self.zero_tail(ctx)?;
        loop {
            self.prepare(ctx, self.size(), buf.len().min(ctx.pool.unit() * PAGE), true, &mut hand.frames)?;
            let lock = self.size_lock.lock();
            let start = self.size();
            if start >= MAX_FILE_SIZE {
                return Err(Error::Posix(libc::EFBIG));
            }
            let buf = &buf[..(buf.len() as u64).min(MAX_FILE_SIZE - start) as usize];
            // As many as may be needed: the first page has a block already if it is dirty. One page
            // is whole anyway.
            let pages = pages_of(start + buf.len() as u64) - page_at(start);
            if whole && pages > 1 && hand.blocks < pages {
                if ctx.store.reserve(ctx.lane, pages - hand.blocks) {
                    hand.blocks = pages;
                } else if ctx.store.space_in(ctx.ino, page_at(start)..page_at(start) + pages)? < pages {
                    return Err(Error::Posix(libc::ENOSPC));
                }
            }
            let (bytes, stop) = self.put(ctx, start, buf, true, hand, &mut out.newly_dirty);
            if bytes > 0 {
                debug_assert!(bytes <= buf.len() && self.size() == start, "the size lock is ours (D4)");
                out.bytes = bytes;
                out.extended = true;
                // Release: the bytes before the size (D4).
                self.size.store(start + bytes as u64, Ordering::Release);
                return Ok((start, out));
            }
            drop(lock);
            if let Stop::Failed(e) = stop {
                return Err(e);
            }
        }
    }

    /// Writes by the shortest way: one page, cached, dirty already, not at the end. Returns false
    /// for everything else, which is left to the long way.
    #[inline]
    fn overwrite(&self, ctx: &DataCtx<'_>, offset: u64, buf: &[u8]) -> bool {
        let (page, from) = (page_at(offset), offset as usize % PAGE);
        if from + buf.len() > PAGE {
            return false;
        }
        let pin = epoch::pin();
        let Some(desc) = self.find(page, &pin) else { return false };
        // The descriptor comes from memory meanwhile.
        ctx.pool.prefetch(desc, from, buf.len());
        let Some(guard) = desc.lock_as(ctx.ino, page) else { return false };
        // The size under the page lock: see "write and truncate".
        if !guard.has(DIRTY) || offset + buf.len() as u64 > self.size() {
            guard.unchanged();
            return false;
        }
        // SAFETY: inside the page, whose lock we hold; optimistic readers validate (D2).
        unsafe { copy_racy(buf.as_ptr(), ctx.pool.bytes(desc).add(from), buf.len()) };
        desc.touch();
        true
    }

    fn write_unit(&self, ctx: &DataCtx<'_>, offset: u64, buf: &[u8], out: &mut Written) -> Result<usize> {
        debug_assert!(
            !buf.is_empty() && offset % PAGE as u64 + buf.len() as u64 <= (ctx.pool.unit() * PAGE) as u64
        );
        let mut hand = InHand::default();
        let result = self.write_with(ctx, offset, buf, &mut hand, out);
        hand.give_back(ctx);
        result
    }

    fn write_with(
        &self,
        ctx: &DataCtx<'_>,
        offset: u64,
        buf: &[u8],
        hand: &mut InHand,
        out: &mut Written,
    ) -> Result<usize> {
        let end = offset + buf.len() as u64;
        let mut done = 0;
        loop {
            let (at, rest) = (offset + done as u64, &buf[done..]);
            let sized = end > self.size();
            if sized {
                self.zero_tail(ctx)?;
            }
            match self.prepare(ctx, at, rest.len(), sized, &mut hand.frames) {
                Err(_) if done > 0 => return Ok(done),
                prepared => prepared?,
            }
            let lock = sized.then(|| self.size_lock.lock());
            let (bytes, stop) = self.put(ctx, at, rest, sized, hand, &mut out.newly_dirty);
            done += bytes;
            debug_assert!(done <= buf.len() && !(sized && matches!(stop, Stop::Shrunk)));
            let size = self.size();
            if lock.is_some() && bytes > 0 && offset + done as u64 > size {
                if ctx.any_order && at > size {
                    self.gaps.open(size..at, ctx.pool.behind_gaps().0);
                }
                self.size.store(offset + done as u64, Ordering::Release); // Release: the bytes before the size (D4)
                out.extended = true;
            }
            drop(lock);
            if ctx.any_order && bytes > 0 {
                out.extended |= self.fill_gap(ctx, at, bytes);
            }
            match stop {
                Stop::Done => return Ok(done),
                Stop::Failed(e) if done == 0 => return Err(e),
                Stop::Failed(_) => return Ok(done),
                Stop::Shrunk | Stop::NoFrame => {}
            }
        }
    }

    /// Takes note of handed-over bytes that are in place; returns whether the store may get a
    /// larger size for them (G1 of `gaps.rs`).
    fn fill_gap(&self, ctx: &DataCtx<'_>, at: u64, len: usize) -> bool {
        self.gaps.fill(at..at + len as u64, ctx.pool.behind_gaps().1)
    }

    /// Takes the first step of a write: no lock is held.
    fn prepare(&self, ctx: &DataCtx<'_>, at: u64, len: usize, sized: bool, hand: &mut Hand) -> Result<()> {
        debug_assert!(len > 0, "nothing is written");
        ctx.pool.slow_down(|leaves| ctx.store.has_space_for_maps(leaves));
        let end = at + len as u64;
        let (first, last) = (page_at(at), page_at(end - 1));
        let pin = epoch::pin();
        let missing = match first == last {
            true => usize::from(needs_frame(self.find(first, &pin))),
            false => self.missing(first..last + 1, &pin),
        };
        if missing == 0 {
            return Ok(());
        }
        drop(pin);
        if ctx.store.lends() && first < pages_of(self.size()) {
            // So that the way to its block is in memory when that is asked for. An error says that
            // it has none.
            let _ = ctx.store.has_space(ctx.ino, first);
        }
        ctx.pool.take(ctx.lane, missing, hand)?;
        let stored = pages_of(self.size());
        if !at.is_multiple_of(PAGE as u64) && first < stored {
            self.preload(ctx, first)?;
        }
        // The last page is overwritten as a whole if nothing of the file lies behind.
        if !end.is_multiple_of(PAGE as u64) && last < stored && last != first && !sized {
            self.preload(ctx, last)?;
        }
        Ok(())
    }

    /// Sees to it that a page is cached, so that it need not be loaded with other pages locked.
    pub(super) fn preload(&self, ctx: &DataCtx<'_>, page: u64) -> Result<()> {
        if self.find(page, &epoch::pin()).is_none() {
            drop(self.load(ctx, page, 1)?);
        }
        Ok(())
    }

    /// Takes the second step: writes page by page and returns how far it came. `sized`: the caller
    /// holds the size lock. Blocks that are promised are taken before others are reserved.
    fn put(
        &self,
        ctx: &DataCtx<'_>,
        at: u64,
        buf: &[u8],
        sized: bool,
        hand: &mut InHand,
        newly_dirty: &mut bool,
    ) -> (usize, Stop) {
        debug_assert!(!sized || self.size_lock.is_locked(), "the caller said that it holds the size lock");
        let pin = epoch::pin();
        let mut before: Option<PageGuard<'_>> = None;
        let mut done = 0;
        while done < buf.len() {
            let offset = at + done as u64;
            let (page, from) = (page_at(offset), offset as usize % PAGE);
            let rest = &buf[done..];
            let held = before.as_ref().map(|b| b.page());
            let (mut guard, new) = match self.lock_page(ctx.ino, page, &pin) {
                Some(guard) => (guard, false),
                None => {
                    let Some(frame) = hand.frames.pop().or_else(|| ctx.pool.try_take(ctx.lane)) else {
                        return (done, Stop::NoFrame);
                    };
                    let guard = ctx.pool.desc(frame).lock();
                    match self.attach(ctx, page, &guard, sized, held) {
                        Ok(()) => {
                            if ctx.once {
                                guard.set(ONCE);
                            }
                            (guard, true)
                        }
                        Err(refused) => {
                            guard.unchanged();
                            hand.frames.push(frame);
                            match refused {
                                Refused::Taken => continue,
                                Refused::PastEof => return (done, Stop::Shrunk),
                            }
                        }
                    }
                }
            };
            debug_assert!(held.is_none_or(|held| held + 1 == page), "pages are locked in ascending order");
            debug_assert!(guard.desc().is(ctx.ino, page), "another page was locked");
            let mut spare = Hand::new();
            if guard.has(STABLE) {
                let Some(frame) = hand.frames.pop().or_else(|| ctx.pool.try_take(ctx.lane)) else {
                    guard.unchanged();
                    return (done, Stop::NoFrame);
                };
                spare.push(frame);
            }
            if from == 0 && rest.len() >= 2 * PAGE {
                let mut run = Run { pages: smallvec![guard], new: u64::from(new), spare, lent: 0, kept: 0 };
                self.extend_run(ctx, &mut run, rest.len() / PAGE, sized, &mut hand.frames, &pin);
                drop(before.take());
                let put = self.put_run(ctx, &mut run, rest, sized, hand, newly_dirty);
                hand.frames.extend(run.spare.drain(..));
                match put {
                    Ok(bytes) => done += bytes,
                    Err(stop) => return (done, stop),
                }
                before = run.pages.pop();
                continue;
            }
            drop(before.take());
            let part = &rest[..rest.len().min(PAGE - from)];
            // The size under the page lock: see "write and truncate".
            if !sized && offset + part.len() as u64 > self.size() {
                undo(ctx, guard, new, &mut hand.frames);
                hand.frames.extend(spare);
                return (done, Stop::Shrunk);
            }
            let (mut own, whole) = (0, part.len() == PAGE);
            if !guard.has(DIRTY) {
                own = self.own_space(ctx, &guard, whole);
                if own != 0 {
                    // Its block is given back for the one that it will get, or is kept for it.
                } else if hand.blocks > 0 {
                    hand.blocks -= 1;
                } else if !ctx.store.reserve(ctx.lane, 1) {
                    match self.reserve_own(ctx, &guard, whole) {
                        Ok(mark) => own = mark,
                        Err(e) => {
                            undo(ctx, guard, new, &mut hand.frames);
                            hand.frames.extend(spare);
                            return (done, Stop::Failed(e));
                        }
                    }
                }
            }
            if new && let Err(e) = self.fill_new(ctx, &guard, from, part.len()) {
                if own == 0 {
                    ctx.store.unreserve(ctx.lane, 1);
                }
                undo(ctx, guard, new, &mut hand.frames);
                return (done, Stop::Failed(e));
            }
            if let Some(frame) = spare.pop() {
                guard = self.displace(ctx, guard, frame, !whole);
            }
            // SAFETY: inside the page, whose lock we hold; optimistic readers validate (D2).
            unsafe { copy_racy(part.as_ptr(), ctx.pool.bytes(guard.desc()).add(from), part.len()) };
            guard.desc().touch();
            if !guard.has(DIRTY) {
                *newly_dirty |= self.set_dirty(ctx, &guard);
                guard.set(own);
                if own == LENT {
                    ctx.pool.count_lent(ctx.lane, 1);
                }
            } else if from + part.len() == PAGE && self.may_keep() {
                self.give_promise_back(ctx, &guard);
            }
            debug_assert!(guard.has(DIRTY), "what was written is not the store's");
            done += part.len();
            before = Some(guard);
        }
        debug_assert_eq!(done, buf.len());
        (done, Stop::Done)
    }

    /// Writes the pages of a run, each as a whole, and returns how many bytes: as far as the file
    /// reaches and blocks can be had. What was not written is let go of.
    fn put_run<'g>(
        &self,
        ctx: &DataCtx<'g>,
        run: &mut Run<'g>,
        bytes: &[u8],
        sized: bool,
        hand: &mut InHand,
        newly_dirty: &mut bool,
    ) -> std::result::Result<usize, Stop> {
        debug_assert!(!run.pages.is_empty() && bytes.len() >= run.pages.len() * PAGE, "pages in part");
        // The size under the page locks: see "write and truncate".
        let first = run.pages[0].page();
        while !sized && (first + run.pages.len() as u64) * PAGE as u64 > self.size() {
            run.undo_last(ctx, &mut hand.frames);
            if run.pages.is_empty() {
                return Err(Stop::Shrunk);
            }
        }
        if let Err(e) = self.reserve_run(ctx, run, hand) {
            run.undo_last(ctx, &mut hand.frames);
            return Err(Stop::Failed(e));
        }
        let new = run.pages.iter().enumerate().filter(|(n, _)| run.new >> n & 1 == 1);
        // Nothing has to be read for a page that is written as a whole, so this does not fail.
        let filled = new.map(|(_, page)| self.fill_new(ctx, page, 0, PAGE)).all(|filled| filled.is_ok());
        debug_assert!(filled, "a page that is written as a whole was read");
        run.displace(self, ctx);
        let part = &bytes[..run.pages.len() * PAGE];
        copy_into(ctx, &run.pages, part);
        *newly_dirty |= self.set_dirty_run(ctx, &run.pages);
        self.mark_own(ctx, run);
        debug_assert!(run.pages.iter().all(|p| p.has(DIRTY)), "what was written is not the store's");
        Ok(part.len())
    }

    /// Returns how many pages of a range need a frame to be written, as of some instant.
    fn missing(&self, range: Range<u64>, pin: &epoch::Guard) -> usize {
        let (mut at, mut missing) = (range.start, 0);
        while at < range.end {
            let most = ((range.end - at) as usize).min(tree::FAN - at as usize % tree::FAN);
            missing += match self.leaf_from(at, pin) {
                Some(places) => places.iter().take(most).filter(|page| needs_frame(*page)).count(),
                None => most - usize::from(at == 0 && !needs_frame(self.find(0, pin))),
            };
            at += most as u64;
        }
        debug_assert!(missing as u64 <= range.end - range.start, "{missing} pages of {range:?}");
        missing
    }

    /// Adds the pages behind the only one of a run, up to `most` in all, as far as they lie in its
    /// leaf: those that are cached and nobody holds, and frames of the hand for those that are
    /// missing. Waits for no page: who waits holds one page only.
    fn extend_run<'g>(
        &self,
        ctx: &DataCtx<'g>,
        run: &mut Run<'g>,
        most: usize,
        sized: bool,
        hand: &mut Hand,
        pin: &'g epoch::Guard,
    ) {
        let Some(first) = run.pages.first().map(|p| p.page()) else { return };
        debug_assert!(run.pages.len() == 1, "the run was extended already");
        let most = most.min(RUN).min(tree::FAN - first as usize % tree::FAN);
        while run.pages.len() < most {
            let (n, page) = (run.pages.len(), first + run.pages.len() as u64);
            if let Some(desc) = self.find(page, pin) {
                let Some(guard) = desc.try_lock() else { break };
                if !desc.is(ctx.ino, page) {
                    guard.unchanged();
                    break;
                }
                if guard.has(STABLE) {
                    let Some(frame) = hand.pop() else {
                        guard.unchanged();
                        break;
                    };
                    run.spare.push(frame);
                }
                run.pages.push(guard);
                continue;
            }
            let missing = 1 + self.missing_behind(page, most - n - 1, pin);
            let new = self.attach_hand(ctx, &run.pages, missing, sized, hand);
            if new.is_empty() {
                break;
            }
            run.new |= ((1 << new.len()) - 1) << n;
            if ctx.once {
                new.iter().for_each(|guard| guard.set(ONCE));
            }
            run.pages.extend(new);
        }
        debug_assert!(run.pages.len() <= most && run.pages.iter().zip(first..).all(|(p, n)| p.page() == n));
    }

    /// Gives a frame that was just attached the content of the file around the `len` bytes at
    /// `from` that will be written.
    fn fill_new(&self, ctx: &DataCtx<'_>, guard: &PageGuard<'_>, from: usize, len: usize) -> Result<()> {
        let start = guard.page() * PAGE as u64;
        let inside = self.size().saturating_sub(start).min(PAGE as u64) as usize;
        debug_assert!(from + len <= PAGE && len > 0, "{len} bytes at {from}");
        debug_assert!(!guard.has(DIRTY | WRITEBACK | HOLE), "it was attached just now");
        let bytes = ctx.pool.bytes(guard.desc());
        if inside == 0 || (from == 0 && len >= inside) {
            // Nothing of the old content stays. Bytes behind the end are zero (D5).
            if len < PAGE {
                // SAFETY: both ranges lie in the page, whose lock we hold.
                unsafe {
                    fill_racy(bytes, 0, from);
                    fill_racy(bytes.add(from + len), 0, PAGE - from - len);
                }
            }
            // Of a file without holes the store has the page, and none behind its end unless space
            // is kept there; of another it is asked.
            let known = if inside == 0 { !self.has_space_behind() } else { !self.is_sparse() };
            let hole = if known {
                inside == 0
            } else {
                !matches!(ctx.store.has_space(ctx.ino, guard.page()), Ok(true))
            };
            if hole {
                guard.set(HOLE);
            }
            return Ok(());
        }
        // SAFETY: the frame is a block; it is locked, and optimistic readers throw away what they
        // copy (as in read.rs).
        let block = unsafe { &mut *bytes.cast::<Block>() };
        let mut read = [PageRead { block, hole: false }];
        ctx.store.read_pages(ctx.ino, guard.page(), &mut read)?;
        if read[0].hole {
            guard.set(HOLE);
        }
        // SAFETY: the range ends with the page.
        unsafe { fill_racy(bytes.add(inside), 0, PAGE - inside) };
        Ok(())
    }

    /// Makes those of some locked pages of one leaf dirty that are not; a block was reserved for
    /// each of these. Returns whether nothing was dirty before.
    fn set_dirty_run(&self, ctx: &DataCtx<'_>, pages: &[PageGuard<'_>]) -> bool {
        let noted = matches!(ctx.stamps, Some((_, true)));
        if noted || pages.len() == 1 {
            let clean = pages.iter().filter(|page| !page.has(DIRTY));
            return clean.fold(false, |newly, page| self.set_dirty(ctx, page) | newly);
        }
        let (mut fresh, mut counted, mut holes) = (0, 0, 0);
        for page in pages.iter().filter(|page| !page.has(DIRTY)) {
            page.set(DIRTY);
            fresh += 1;
            counted += i64::from(!page.has(WRITEBACK));
            holes += u64::from(page.has(HOLE));
        }
        if counted > 0 {
            ctx.pool.count_dirty(ctx.lane, counted);
        }
        if holes > 0 {
            self.add_blocks(holes);
        }
        fresh > 0 && self.mark_dirty_run(ctx, pages)
    }

    /// Makes a locked page dirty that was not; a block was reserved for it. Returns whether nothing
    /// was dirty before.
    pub(super) fn set_dirty(&self, ctx: &DataCtx<'_>, guard: &PageGuard<'_>) -> bool {
        debug_assert!(!guard.has(DIRTY), "it has a block already (D7)");
        debug_assert!(!guard.has(STABLE), "the image on its way is this very frame");
        guard.set(DIRTY);
        if !guard.has(WRITEBACK) {
            ctx.pool.count_dirty(ctx.lane, 1);
        }
        if guard.has(HOLE) {
            self.add_blocks(1);
        }
        match ctx.stamps {
            Some((stamps, true)) if stamps.note_page(ctx.lane, ctx.ino, guard.page()) => {
                guard.set(NOTED);
                ctx.pool.count_dirty_leaves(ctx.lane, 1);
                false
            }
            _ => self.mark_dirty(ctx, guard),
        }
    }
}

impl InHand {
    fn give_back(mut self, ctx: &DataCtx<'_>) {
        if !self.frames.is_empty() {
            ctx.pool.give_all(ctx.lane, &mut self.frames);
        }
        if self.blocks > 0 {
            ctx.store.unreserve(ctx.lane, self.blocks);
        }
    }
}
