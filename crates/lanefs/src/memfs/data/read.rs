//! Reading: optimistic copies of cached pages, and loading of those that are not; or, for who keeps
//! what it reads, nothing but the reading of those.

use super::frame::{BEHIND, DIRTY, Desc, HOLE, PageGuard, WRITEBACK};
use super::pool::Hand;
use super::tree::{self, Refused};
use super::{DataCtx, FileData, PAGE, PageRead, ReadAhead, page_at, pages_of};
use crate::error::{Error, Result};
use crossbeam_epoch as epoch;
use lanefs_format::Block;
use lanefs_sync::{copy_racy, fill_racy};
use smallvec::SmallVec;
use zerocopy::FromBytes;

/// Optimistic tries before a reader takes the page lock.
const TRIES: u32 = 64;

/// The outcome of a load.
pub(super) enum Loaded<'a> {
    /// Attached, locked, with its content.
    Page(PageGuard<'a>),
    /// Somebody else attached it meanwhile.
    Again,
    /// The page is behind the end.
    PastEof,
    /// There was no frame; nothing was done.
    NoFrame,
}

impl FileData {
    /// Reads at `offset`; returns how much, less than asked only at the end of the file. Bytes of
    /// one 4 KiB block are of one instant.
    pub fn read(&self, ctx: &DataCtx<'_>, offset: u64, buf: &mut [u8], ahead: &ReadAhead) -> Result<usize> {
        let size = self.size();
        if offset >= size {
            return Ok(0);
        }
        let len = (buf.len() as u64).min(size - offset) as usize;
        let mut done = 0;
        let mut pin = epoch::pin();
        while done < len {
            let at = offset + done as u64;
            let page = page_at(at);
            let from = at as usize % PAGE;
            let part = (PAGE - from).min(len - done);
            debug_assert!(part > 0 && page_at(at + part as u64 - 1) == page, "a part of one page");
            if part < len - done {
                let run = self.copy_run(ctx, at, &mut buf[done..len], &pin);
                if run > 0 {
                    done += run;
                    continue;
                }
            }
            let dst = &mut buf[done..done + part];
            let hit = self.find(page, &pin).is_some_and(|desc| copy_page(ctx, desc, page, from, dst));
            if !hit {
                let last = page_at(offset + len as u64 - 1);
                pin.repin(); // a load may take long: hold no old pin over it
                let loaded = match self.load(ctx, page, ahead.on_miss(page, last - page + 1)) {
                    Ok(loaded) => loaded,
                    Err(e) if done == 0 => return Err(e),
                    Err(_) => break, // reported when the reader comes back for the rest
                };
                match loaded {
                    Loaded::Page(guard) => {
                        // SAFETY: `from + part` is at most a page; the bytes are ours under the
                        // page lock.
                        unsafe { copy_racy(ctx.pool.bytes(guard.desc()).add(from), dst.as_mut_ptr(), part) };
                    }
                    Loaded::Again => continue,
                    Loaded::PastEof => break,
                    Loaded::NoFrame => match self.read_around(ctx, page, from, dst) {
                        Err(e) if done == 0 => return Err(e),
                        Err(_) => break,
                        Ok(()) => {}
                    },
                }
            }
            done += part;
        }
        debug_assert!(done <= len, "{done} of {len} bytes");
        Ok(self.inside(offset, done))
    }

    /// Copies out of cached pages from offset `at` on, as far as they lie side by side in memory
    /// and in one leaf: one look-up and one copy for all of them. Returns how many bytes, up to the
    /// end of `dst` or of a page; 0 if there is no such run.
    ///
    /// It is the optimistic copy of `copy_page`, of several at once: each page's sequence is taken
    /// before the copy and looked at again behind it, and what is believed ends with the first that
    /// has changed (D2).
    fn copy_run(&self, ctx: &DataCtx<'_>, at: u64, dst: &mut [u8], pin: &epoch::Guard) -> usize {
        let (page, from) = (page_at(at), at as usize % PAGE);
        let Some(places) = self.leaf_from(page, pin) else { return 0 };
        let most = (from + dst.len()).div_ceil(PAGE);
        let mut run: SmallVec<[(&Desc, u32); 64]> = SmallVec::new();
        for (desc, page) in places.iter().take(most).zip(page..) {
            let Some(desc) = desc else { break };
            let Some(seq) = desc.begin_read() else { break };
            let is_beside = run.last().is_none_or(|(last, _)| last.is_before(desc));
            if !is_beside || !desc.is(ctx.ino, page) {
                break;
            }
            run.push((desc, seq));
        }
        if run.len() < 2 {
            return 0;
        }
        let len = (run.len() * PAGE - from).min(dst.len());
        debug_assert!(len > PAGE - from, "{len} bytes of {} pages", run.len());
        // SAFETY: the frames lie side by side and stay mapped, and the bytes end with the last of
        // them; writers use racy copies under the locks; what is copied is validated before it is
        // believed (D2).
        unsafe { copy_racy(ctx.pool.bytes(run[0].0).add(from), dst.as_mut_ptr(), len) };
        let sound = run.iter().take_while(|(desc, seq)| desc.validate(*seq));
        let sound = sound.inspect(|(desc, _)| desc.touch()).count();
        (sound * PAGE).saturating_sub(from).min(len)
    }

    /// Reads as [`FileData::read`] does, if all of it is in memory; `None`, and `buf` holds
    /// anything, if a page is not.
    pub fn read_cached(&self, ctx: &DataCtx<'_>, offset: u64, buf: &mut [u8]) -> Option<usize> {
        let size = self.size();
        let len = (buf.len() as u64).min(size.saturating_sub(offset)) as usize;
        let pin = epoch::pin();
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (page, from) = (page_at(at), at as usize % PAGE);
            let part = (PAGE - from).min(len - done);
            let run = if part < len - done { self.copy_run(ctx, at, &mut buf[done..len], &pin) } else { 0 };
            if run > 0 {
                done += run;
                continue;
            }
            let desc = self.find(page, &pin)?;
            if !copy_page(ctx, desc, page, from, &mut buf[done..done + part]) {
                return None;
            }
            done += part;
        }
        debug_assert_eq!(done, len, "all or nothing");
        Some(self.inside(offset, done))
    }

    /// Returns how much of what was read at `offset` to report: a truncate may have come meanwhile,
    /// and what lies behind the new end is left out.
    fn inside(&self, offset: u64, read: usize) -> usize {
        read.min(self.size().saturating_sub(offset) as usize)
    }

    /// Reads as [`FileData::read`] does, for a reader that keeps what it reads (a kernel's cache
    /// above): pages that memory does not have go from the store into `buf` and no frame is taken.
    /// Whole pages at an aligned address only; else it is a plain read.
    ///
    /// No lock is held over the reading, and nobody looks afterwards: a page that was not attached
    /// when it was looked for equalled what the store had then, so what the store returns later is
    /// what the page held at that instant or at a later one of the call.
    pub fn read_uncached(
        &self,
        ctx: &DataCtx<'_>,
        offset: u64,
        buf: &mut [u8],
        ahead: &ReadAhead,
    ) -> Result<usize> {
        let whole = offset.is_multiple_of(PAGE as u64)
            && buf.len().is_multiple_of(PAGE)
            && buf.as_ptr().addr().is_multiple_of(PAGE);
        if !whole {
            return self.read(ctx, offset, buf, ahead);
        }
        let size = self.size();
        let first = page_at(offset);
        let count = pages_of(size).saturating_sub(first).min((buf.len() / PAGE) as u64) as usize;
        let mut at = 0;
        while at < count {
            let pin = epoch::pin();
            let block = &mut buf[at * PAGE..][..PAGE];
            if let Some(desc) = self.find(first + at as u64, &pin) {
                // Not the page any more: it may have been let go, or replaced.
                at += usize::from(copy_page(ctx, desc, first + at as u64, 0, block));
                continue;
            }
            let run = (at + 1..count).take_while(|n| self.find(first + *n as u64, &pin).is_none()).count();
            drop(pin);
            let part = &mut buf[at * PAGE..][..(run + 1) * PAGE];
            if read_blocks(ctx, first + at as u64, part).is_err() {
                // Something in it is broken: page by page, so that what comes before it is read and
                // the error is reported.
                let n = match self.read(ctx, offset + (at * PAGE) as u64, part, ahead) {
                    Err(e) if at == 0 => return Err(e),
                    n => n.unwrap_or(0),
                };
                return Ok(self.inside(offset, at * PAGE + n));
            }
            at += run + 1;
            debug_assert!(at <= count);
        }
        Ok(self.inside(offset, (count * PAGE).min(size.saturating_sub(offset) as usize)))
    }

    /// Reads a page that no frame could be had for, past the cache.
    #[cold]
    fn read_around(&self, ctx: &DataCtx<'_>, page: u64, from: usize, dst: &mut [u8]) -> Result<()> {
        debug_assert!(from + dst.len() <= PAGE);
        let mut block = Block::zeroed();
        ctx.store.read_pages(ctx.ino, page, &mut [PageRead { block: &mut block, hole: false }])?;
        let pin = epoch::pin();
        match self.lock_page(ctx.ino, page, &pin) {
            // Attached meanwhile: newer than what was read, perhaps.
            Some(guard) => {
                // SAFETY: `from + dst.len()` is at most a page; the bytes are ours under the page
                // lock.
                unsafe { copy_racy(ctx.pool.bytes(guard.desc()).add(from), dst.as_mut_ptr(), dst.len()) };
                guard.unchanged();
            }
            None => dst.copy_from_slice(&block.0[from..from + dst.len()]),
        }
        Ok(())
    }

    /// Attaches and loads up to `count` pages from `first` on, as far as they are not cached,
    /// inside the file and frames are to be had; returns the first one locked. No lock may be held,
    /// but pages below `first`.
    pub(super) fn load<'a>(&self, ctx: &DataCtx<'a>, first: u64, count: u64) -> Result<Loaded<'a>> {
        let end = pages_of(self.size());
        if first >= end {
            return Ok(Loaded::PastEof);
        }
        debug_assert!(count > 0);
        let count = count.min(end - first).min(ctx.pool.unit() as u64);
        let mut hand = Hand::new();
        ctx.pool.try_take_many(ctx.lane, count as usize, &mut hand);
        let loaded = self.load_into(ctx, first, &mut hand);
        ctx.pool.give_all(ctx.lane, &mut hand);
        loaded
    }

    /// Returns how many of the `most` pages behind one that is attached are missing in its leaf,
    /// side by side with it, as of some instant.
    pub(super) fn missing_behind(&self, page: u64, most: usize, pin: &epoch::Guard) -> usize {
        let places = self.leaf_from(page, pin);
        places.map_or(0, |p| p.iter().skip(1).take(most).take_while(Option::is_none).count())
    }

    /// Attaches up to `most` frames of the hand for the pages behind the last of a run of locked
    /// ones; see [`FileData::attach_behind`].
    pub(super) fn attach_hand<'a>(
        &self,
        ctx: &DataCtx<'a>,
        run: &[PageGuard<'a>],
        most: usize,
        past_eof: bool,
        hand: &mut Hand,
    ) -> SmallVec<[PageGuard<'a>; 16]> {
        let Some(last) = run.last().filter(|_| most > 0) else { return SmallVec::new() };
        // In nobody's file: who waits for one of them waits for a page that it held before, and
        // lets go of it at once.
        let mut guards: SmallVec<[PageGuard<'a>; 16]> =
            hand.iter().rev().take(most).map(|f| ctx.pool.desc(*f).lock()).collect();
        let attached = self.attach_behind(ctx.ino, last, &guards, past_eof);
        hand.truncate(hand.len() - attached);
        guards.drain(attached..).for_each(PageGuard::unchanged);
        debug_assert!(guards.iter().zip(last.page() + 1..).all(|(g, page)| g.desc().is(ctx.ino, page)));
        guards
    }

    /// Does as `load`, with frames the caller has in hand; what is left of them stays there.
    pub(super) fn load_into<'a>(&self, ctx: &DataCtx<'a>, first: u64, hand: &mut Hand) -> Result<Loaded<'a>> {
        let mut guards: SmallVec<[PageGuard<'a>; 16]> = SmallVec::new();
        while let Some(&frame) = hand.last() {
            let guard = ctx.pool.desc(frame).lock();
            let page = first + guards.len() as u64;
            let held = page.checked_sub(1).filter(|_| !guards.is_empty());
            match self.attach(ctx, page, &guard, false, held) {
                Ok(()) => {
                    hand.pop();
                    guards.push(guard);
                    let behind = self.missing_behind(page, hand.len(), &epoch::pin());
                    let more = self.attach_hand(ctx, &guards, behind, false, hand);
                    guards.extend(more);
                }
                Err(why) => {
                    guard.unchanged();
                    if !guards.is_empty() {
                        break;
                    }
                    return Ok(match why {
                        Refused::Taken => Loaded::Again,
                        Refused::PastEof => Loaded::PastEof,
                    });
                }
            }
        }
        if guards.is_empty() {
            return Ok(Loaded::NoFrame);
        }
        let mut result = read_into(ctx, first, &guards);
        if result.is_err() && guards.len() > 1 {
            // What was asked for may be sound, and only what was read ahead broken.
            while guards.len() > 1 {
                if let Some(guard) = guards.pop() {
                    drop_loaded(ctx, guard);
                }
            }
            result = read_into(ctx, first, &guards);
        }
        debug_assert!(guards.is_sorted_by(|a, b| a.page() + 1 == b.page()), "a run of pages");
        debug_assert_eq!(guards[0].page(), first, "another page than was asked for");
        if let Err(e) = result {
            for guard in guards {
                drop_loaded(ctx, guard);
            }
            return Err(e);
        }
        let size = self.size();
        let mut locked = guards.into_iter();
        let Some(head) = locked.next() else { return Ok(Loaded::NoFrame) };
        blank_tail(ctx, &head, size);
        locked.for_each(|guard| blank_tail(ctx, &guard, size));
        Ok(Loaded::Page(head))
    }
}

/// Bytes past the end are not let in, should the store have any (D6). The page was locked since
/// before the size was read, so no extending write has put bytes there.
fn blank_tail(ctx: &DataCtx<'_>, guard: &PageGuard<'_>, size: u64) {
    let start = guard.page() * PAGE as u64;
    let inside = size.saturating_sub(start).min(PAGE as u64) as usize;
    debug_assert!(!guard.has(DIRTY | WRITEBACK), "it was loaded just now");
    if inside < PAGE && !is_zero(ctx, guard, inside, PAGE) {
        guard.set(BEHIND);
        // SAFETY: the range ends with the page; the page is locked.
        unsafe { fill_racy(ctx.pool.bytes(guard.desc()).add(inside), 0, PAGE - inside) };
    }
}

/// Reads pages of the store into memory of the caller's: whole pages at an aligned address.
fn read_blocks(ctx: &DataCtx<'_>, first: u64, buf: &mut [u8]) -> Result<()> {
    debug_assert!(buf.len().is_multiple_of(PAGE) && buf.as_ptr().addr().is_multiple_of(PAGE));
    let blocks = <[Block]>::mut_from_bytes(buf).map_err(|_| Error::Posix(libc::EINVAL))?;
    let mut reads: Vec<PageRead<'_>> =
        blocks.iter_mut().map(|block| PageRead { block, hole: false }).collect();
    Ok(ctx.store.read_pages(ctx.ino, first, &mut reads)?)
}

fn drop_loaded(ctx: &DataCtx<'_>, guard: PageGuard<'_>) {
    debug_assert!(!guard.has(DIRTY | WRITEBACK), "it was loaded just now");
    let frame = ctx.pool.number(guard.desc());
    tree::detach(&guard);
    drop(guard);
    ctx.pool.give(ctx.lane, frame);
}

fn read_into(ctx: &DataCtx<'_>, first: u64, guards: &[PageGuard<'_>]) -> Result<()> {
    debug_assert!(guards.iter().zip(first..).all(|(guard, page)| guard.desc().is(ctx.ino, page)));
    let mut reads: SmallVec<[PageRead<'_>; 16]> = guards
        .iter()
        .map(|guard| {
            // SAFETY: the frame is a block, aligned as one, and locked by us, so nobody else writes
            // it. Optimistic readers that still hold an older identity may copy from it; they do so
            // in assembly or with atomics (racy_copy) and throw the copy away, since the lock has
            // changed the sequence (D2).
            let block = unsafe { &mut *ctx.pool.bytes(guard.desc()).cast::<Block>() };
            PageRead { block, hole: false }
        })
        .collect();
    ctx.store.read_pages(ctx.ino, first, &mut reads)?;
    for (read, guard) in reads.iter().zip(guards) {
        if read.hole {
            guard.set(HOLE);
        }
    }
    Ok(())
}

/// Copies out of a cached page; false if the frame no longer holds it.
#[inline]
fn copy_page(ctx: &DataCtx<'_>, desc: &Desc, page: u64, from: usize, dst: &mut [u8]) -> bool {
    debug_assert!(from + dst.len() <= PAGE, "{} bytes at {from}", dst.len());
    // SAFETY: `from + dst.len()` is at most a page, by the caller.
    let src = unsafe { ctx.pool.bytes(desc).add(from) };
    for _ in 0..TRIES {
        let Some(seq) = desc.begin_read() else {
            lanefs_sync::schedule::spin_loop();
            continue;
        };
        if !desc.is(ctx.ino, page) {
            return false;
        }
        // SAFETY: frames stay mapped; writers use racy copies under the lock; the copy is validated
        // before it is believed (D2).
        unsafe { copy_racy(src, dst.as_mut_ptr(), dst.len()) };
        if desc.validate(seq) {
            desc.touch();
            return true;
        }
    }
    copy_locked(ctx, desc, page, src, dst)
}

#[cold]
fn copy_locked(ctx: &DataCtx<'_>, desc: &Desc, page: u64, src: *const u8, dst: &mut [u8]) -> bool {
    let Some(guard) = desc.lock_as(ctx.ino, page) else { return false };
    // SAFETY: as in `copy_page`; the page is locked.
    unsafe { copy_racy(src, dst.as_mut_ptr(), dst.len()) };
    desc.touch();
    guard.unchanged();
    true
}

/// Returns whether a part of a page is zeros; the caller has its lock.
pub(super) fn is_zero(ctx: &DataCtx<'_>, guard: &PageGuard<'_>, from: usize, to: usize) -> bool {
    debug_assert!(from <= to && to <= PAGE, "{from}..{to}");
    // SAFETY: the range lies in the page; its lock is held, so nobody writes it.
    let bytes = unsafe { std::slice::from_raw_parts(ctx.pool.bytes(guard.desc()).add(from), to - from) };
    bytes.iter().all(|&b| b == 0)
}
