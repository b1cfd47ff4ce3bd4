//! Some pages and the attributes of one inode, as the store takes them.

use super::Persist;
use crate::core::page_store;
use crate::error::Result;
use crate::memfs::Inode;
use crate::memfs::data::{Captured, DataCtx, FileData, SYNC_PATIENCE, Taken, WritebackGuard};
use crate::memfs::marks::STORED;
use crate::ops::rights::{self, RIGHTS_PENDING};
use crate::write_life::WriteLife;
use lanefs_format::{Attrs, BLOCK_SIZE, Ino};
use lanefs_store::{InodeUpdate, Life, Transaction};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// The most pages captured at once; fewer where segments are small, so that a round needs few of
/// them free.
pub(crate) const MAX_PAGES: usize = 1024;

/// The most pages of an inode that goes with an epoch.
pub(super) const RIDES: usize = 32;

const _: () = assert!(RIDES < MAX_PAGES, "what rides fits in one round");

/// A file that is written back, under its writeback lock. All of its pieces carry the attributes of
/// one moment: in whatever order the store takes them, the inode ends with these.
pub(super) struct Writing<'a> {
    persist: &'a Persist,
    inode: &'a Inode,
    data: &'a FileData,
    ctx: DataCtx<'a>,
    lock: WritebackGuard<'a>,
    /// Of the attributes the store gets the size alone.
    data_only: bool,
    /// Their size ends where a piece may be missing (`memfs::data`, `gaps`).
    pub attrs: Attrs,
    /// The store knew the inode before.
    pub was_stored: bool,
}

/// How far who goes over a file in several rounds has come. Between two of them anybody may write
/// the file, and cut it.
#[derive(Default)]
pub(super) struct Pass {
    /// The first page of the next round. What is written before it meanwhile is not this pass's
    /// task, unless the file has grown over it.
    pub from: u64,
    cuts: Option<u32>,
}

impl Pass {
    /// Begins anew if the file was made shorter since the last round. It may have grown since, over
    /// pages before `from`: with its size alone they would be found as zeros (SEMANTICS F9).
    pub fn look_for_cuts(&mut self, file: &Writing<'_>) {
        debug_assert!(self.cuts.is_some() || self.from == 0, "a pass begins with the first page");
        if self.cuts.replace(file.cuts()).is_some_and(|before| before != file.cuts()) {
            self.from = 0;
        }
    }
}

impl<'a> Writing<'a> {
    /// Waits for a writeback of the file that is under way, then takes its attributes.
    pub fn begin(persist: &'a Persist, inode: &'a Inode, data: &'a FileData, data_only: bool) -> Writing<'a> {
        Writing::with(persist, inode, data, data_only, data.lock_writeback())
    }

    /// Does that for all attributes, unless a writeback is under way.
    pub fn try_begin(persist: &'a Persist, inode: &'a Inode, data: &'a FileData) -> Option<Writing<'a>> {
        let lock = data.try_lock_writeback()?;
        Some(Writing::with(persist, inode, data, false, lock))
    }

    fn with(
        persist: &'a Persist,
        inode: &'a Inode,
        data: &'a FileData,
        data_only: bool,
        lock: WritebackGuard<'a>,
    ) -> Writing<'a> {
        let ctx = page_store::accepted_data_ctx(persist, inode);
        debug_assert!(inode.sync_lock.is_locked(), "a writeback of inode {} without its lock", inode.ino);
        debug_assert!(inode.data().is_some_and(|d| std::ptr::eq(d, data)), "another file's content");
        let was_stored = data_only || inode.set(STORED) & STORED != 0;
        let attrs = match data_only {
            true => Attrs { mode: inode.kind.mode_bits(), size: data.size_to_store(), ..Attrs::default() },
            false => inode.attrs(),
        };
        // The notes that came since the marks were taken: no page below that size may be missed
        // (SEMANTICS F9). Its writer noted it before it raised the size.
        inode.mark_noted_pages(&ctx);
        debug_assert_eq!(attrs.kind(), Some(inode.kind), "the store takes the kind from the mode");
        Writing { persist, inode, data, ctx, lock, data_only, attrs, was_stored }
    }

    /// Does that and captures up to `max` dirty pages from where `pass` is on, none of them being
    /// left out. Errors as those of [`Writing::capture`]; then nothing has begun.
    pub fn begin_captured(
        persist: &'a Persist,
        inode: &'a Inode,
        data: &'a FileData,
        data_only: bool,
        max: usize,
        pass: &mut Pass,
    ) -> Result<(Writing<'a>, Captured)> {
        let mut begin = || -> Result<(Writing<'a>, Captured)> {
            let file = Writing::begin(persist, inode, data, data_only);
            pass.look_for_cuts(&file);
            let captured = file.capture(max, pass.from).inspect_err(|_| file.failed())?;
            Ok((file, captured))
        };
        let (file, captured) = begin()?;
        if captured.skipped == 0 {
            return Ok((file, captured));
        }
        // Somebody makes the file longer, and no block is left for what lies behind the size: all
        // once more, with the size that comes of it.
        file.give_up(captured);
        file.failed();
        drop(file);
        let _size = data.lock_size();
        // Their starts may lie in the middle of a page that is being filled.
        data.forget_gaps();
        let (file, captured) = begin()?;
        debug_assert_eq!(captured.skipped, 0, "bytes lie behind a size that nobody changes");
        Ok((file, captured))
    }

    /// Captures up to `max` dirty pages from page `from` on. [`RIGHTS_PENDING`]: nothing is
    /// captured, and it is to be done anew when the inode's rights are committed.
    pub fn capture(&self, max: usize, from: u64) -> Result<Captured> {
        let captured = self.data.capture(&self.ctx, &self.lock, max, from..u64::MAX, self.attrs.size);
        self.check_captured(&captured, max);
        if rights::rights_pending(self.persist, self.inode) {
            self.give_up(captured);
            return Err(RIGHTS_PENDING);
        }
        Ok(captured)
    }

    /// Returns a number that changes whenever the file is made shorter.
    pub fn cuts(&self) -> u32 {
        self.data.cuts(&self.lock)
    }

    /// Checks that captured pages are such as the store takes them.
    fn check_captured(&self, captured: &Captured, max: usize) {
        let pages = &captured.pages;
        debug_assert!(pages.len() + captured.skipped <= max, "{} pages, {max} were wanted", pages.len());
        debug_assert!(pages.is_sorted_by(|a, b| a.0 < b.0), "the store takes pages in order");
        let end = self.attrs.size.div_ceil(BLOCK_SIZE as u64);
        debug_assert!(pages.last().is_none_or(|p| p.0 < end), "a page behind the size that goes with it");
    }

    /// Returns the update that hands what was captured to the store, and what is to be finished
    /// behind it.
    pub fn update(&self, xattrs: Option<Vec<u8>>, captured: Captured) -> (InodeUpdate, Taken) {
        let reserved = captured.promises() as u32;
        let Captured { pages, taken, more, skipped, .. } = captured;
        debug_assert!(pages.len() <= MAX_PAGES, "{} pages at once", pages.len());
        let update = InodeUpdate {
            ino: self.inode.ino,
            attrs: self.attrs,
            rights_logged: self.persist.is_ordered(),
            size_only: self.data_only,
            xattrs,
            reserved,
            pages,
            // What was skipped lies behind the others: it is the page in which the file ends.
            more: more || skipped > 0,
            life: life_of(self.inode),
        };
        (update, taken)
    }

    /// Ends the writeback of captured pages, which are dirty again if the store does not have them.
    pub fn finish(&self, taken: Taken, ok: bool) {
        debug_assert!(taken.count() <= MAX_PAGES, "{} pages at once", taken.count());
        self.data.finish(&self.ctx, &self.lock, taken, ok);
    }

    /// Ends the writeback of captured pages that the store was not handed.
    pub fn give_up(&self, captured: Captured) {
        debug_assert!(captured.pages.len() <= MAX_PAGES, "{} pages at once", captured.pages.len());
        self.finish(captured.give_up(), false);
    }

    /// Takes note that the store did not get the inode after all.
    pub fn failed(&self) {
        if !self.was_stored {
            self.inode.clear(STORED);
        }
    }
}

/// Returns the expected life of a file's pages, in the store's words.
fn life_of(inode: &Inode) -> Life {
    match inode.write_life() {
        WriteLife::NotSet | WriteLife::None | WriteLife::Medium => Life::Usual,
        WriteLife::Short => Life::Short,
        WriteLife::Long | WriteLife::Extreme => Life::Long,
    }
}

/// Returns the extended attributes as they are now, if any are in memory.
pub(super) fn encoded_xattrs(inode: &Inode) -> Option<Vec<u8>> {
    let _l = inode.xattrs.lock();
    inode.xattrs.get(&crossbeam_epoch::pin()).map(|x| x.encoded().to_vec())
}

/// Hands a transaction to the store.
pub(super) fn submit_one(persist: &Persist, t: Transaction) -> Result<()> {
    submit_and(persist, t, || {})
}

/// Hands a transaction to the store; `begun` is called when the store has it, maybe before its
/// pages are on the device.
pub(super) fn submit_and(persist: &Persist, t: Transaction, begun: impl FnMut()) -> Result<()> {
    debug_assert!(t.inodes.len() <= 1, "{} inodes: each is written by itself", t.inodes.len());
    debug_assert!(t.durable || t.groups.is_empty(), "names in a batch that is not flushed");
    debug_assert!(t.lane < persist.journal.lanes.len(), "lane {} chooses no log", t.lane);
    persist.check_alive()?;
    persist.store.submit_and(t, begun)?;
    Ok(())
}

/// How long a piece may be late before the front end is asked: most are there by then, and the
/// front end's kernel drops its pages of the range.
const LATE: Duration = Duration::from_millis(1);

/// Waits for pieces of a file that may be on their way, for a caller that is about to make it
/// durable and has no lock; what is missing behind that is a hole (G3 of `memfs::data`, `gaps`).
pub(super) fn wait_for_pieces(persist: &Persist, ino: Ino) {
    let asked = Instant::now();
    let missing = || {
        let guard = crossbeam_epoch::pin();
        let data = persist.memfs.inodes.get(ino, &guard).and_then(Inode::data);
        data.map_or(Vec::new(), |data| data.missing_pieces(asked))
    };
    let come_within = |time: Duration| {
        let mut ranges = missing();
        while !ranges.is_empty() && asked.elapsed() < time {
            lanefs_sync::about_to_wait();
            std::thread::sleep(LATE / 4);
            ranges = missing();
        }
        ranges
    };
    let late = come_within(LATE);
    debug_assert!(late.is_sorted_by(|a, b| a.end < b.start), "gaps out of their order: {late:?}");
    if late.is_empty() {
        return;
    }
    let await_handed_over = persist.handed_over.lock().clone();
    match await_handed_over {
        Some(wait) => {
            // One that panics has waited long enough.
            let _ = catch_unwind(AssertUnwindSafe(|| wait(ino, &late)));
        }
        None => drop(come_within(SYNC_PATIENCE)),
    }
    let guard = crossbeam_epoch::pin();
    if let Some(data) = persist.memfs.inodes.get(ino, &guard).and_then(Inode::data) {
        data.all_handed_over(asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::persist::testing::volume;
    use crate::persist::{checkpoint, commit};
    use crate::{File, Volume};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A request that was late by more than 10 ms left zeros in a file that somebody synced.
    #[test]
    fn who_syncs_waits_until_all_is_handed_over_however_long_that_takes() {
        let (v, device) = volume(64);
        let fs = v.fs();
        let asked = Arc::new(AtomicUsize::new(0));
        let (late, questions) = (fs.clone(), Arc::clone(&asked));
        v.await_handed_over(Some(Arc::new(move |ino, ranges| {
            questions.fetch_add(1, Ordering::SeqCst);
            assert_eq!(ranges, [4096..12_288, 16_384..20_480]);
            std::thread::sleep(Duration::from_millis(30));
            let file = late.open("/log", crate::OpenOptions::new().write(true)).unwrap();
            assert_eq!(file.stat().unwrap().ino, ino);
            // The other one is a hole.
            assert_eq!(file.write_back_at(&[7; 8192], 4096).unwrap(), 8192);
        })));
        let ways: [fn(&Volume, &File); 4] = [
            |_, f| f.sync_all().unwrap(),
            |_, f| f.sync_data().unwrap(),
            |v, _| v.sync().unwrap(),
            |v, _| {
                v.fs().write("/over", b"old").unwrap();
                v.fs().rename("/log", "/over").unwrap();
                v.fs().link("/over", "/log").unwrap();
            },
        ];
        for (n, makes_durable) in ways.into_iter().enumerate() {
            let log = fs.create("/log").unwrap();
            for (at, len) in [(0, 4096), (12_288, 4096), (20_480, 1000)] {
                assert_eq!(log.write_back_at(&vec![7; len], at).unwrap(), len);
            }
            makes_durable(&v, &log);
            commit::seal_and_commit(&v.0.persist).unwrap();
            assert_eq!(asked.load(Ordering::SeqCst), n + 1);
            checkpoint::checkpoint(&v.0.persist).unwrap();
            let found = device.after_crash().fs().read("/log").unwrap();
            assert_eq!(found.len(), 21_480, "case {n}");
            assert!(found[..16_384].iter().chain(&found[20_480..]).all(|b| *b == 7), "case {n}");
            assert!(found[16_384..20_480].iter().all(|b| *b == 0), "case {n}");
            fs.unlink("/log").unwrap();
        }
        v.await_handed_over(None);
    }
}
