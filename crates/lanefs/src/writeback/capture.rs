//! Capturing one inode and handing it to the store.

use super::fsync::{Names, RIDES};
use super::rights::{RIGHTS_PENDING, is_pending};
use crate::error::{Result, posix};
use crate::memfs::Cell;
use crate::memfs::cell::{DATASYNC, DIRTY, ENDED, QUEUED, STORED, SYNCING, UNSYNCED, XATTR_DIRTY};
use crate::memfs::dir::Dir;
use crate::volume::Inner;
use lanefs_format::{Attrs, FileKind, Ino};
use lanefs_store::{InodeUpdate, Transaction};
use lanefs_sync::lock::MutexGuard;
use lanefs_sync::{Canary, planted};

/// The most pages captured at once; fewer where segments are small, so that a round needs few of
/// them free.
pub(crate) const MAX_PAGES: usize = 1024;

/// What an inode is written back for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum For {
    /// Room, or age: it becomes durable with the next checkpoint.
    Later,
    /// fsync or sync: all of it is durable when the writeback is done.
    Sync,
    /// fdatasync: the content and the size are. The other attributes are left as the store has
    /// them, if it has them, and so they are not looked at: a chmod beside an fdatasync shares
    /// nothing with it. Their marks stay.
    DataSync,
}

/// What becomes durable together with an inode.
#[derive(Clone, Copy)]
pub(crate) enum With<'a> {
    /// The inode alone.
    Nothing,
    /// These groups, encoded, in its batch.
    Groups(&'a [u8]),
    /// The running epoch, whose places are given with those of its batch, if it is small.
    Names(&'a Names<'a>),
}

impl For {
    fn is_durable(self) -> bool {
        self != For::Later
    }
}

impl Inner {
    /// Puts a cell on this lane's dirty list unless it is on some lane's.
    #[inline]
    pub(crate) fn dirty_cell(&self, cell: &Cell, flags: u32) {
        let all = DIRTY | QUEUED | flags;
        if cell.flags.load(std::sync::atomic::Ordering::Relaxed) & all == all {
            return;
        }
        // Marked under the lane's lock, which collect_dirty takes: who finds the mark and then
        // collects finds the entry.
        let mut log = self.lanes.lock(self.log_lane());
        if cell.set(all) & QUEUED == 0 {
            log.dirty.push(cell.ino);
        }
    }

    /// Writes an inode back: attributes, xattrs and up to `max` dirty pages (in rounds), with
    /// `groups` in the last batch, under the cell's sync_lock, which it gives back. Returns pages
    /// written. On failure everything is dirty again, and the error is recorded for every open
    /// handle; ENOSPC only if somebody waits for it.
    pub(crate) fn write_back_cell<'c>(
        &self,
        cell: &'c Cell,
        mut l: MutexGuard<'c, ()>,
        what_for: For,
        with: With<'_>,
        max: usize,
    ) -> Result<usize> {
        let mut r = self.write_back_held(cell, &l, what_for, with, max);
        let mut held = None;
        while r.as_ref().is_err_and(is_pending) {
            // Not with the lock: the seal may wait for it.
            drop(l);
            held.get_or_insert_with(|| self.hold_rights(cell));
            self.commit_rights(cell)?;
            l = cell.sync_lock.lock();
            r = self.write_back_held(cell, &l, what_for, with, max);
        }
        if r.as_ref().is_err_and(|e| e.errno() == libc::ENOSPC) {
            // What was made since the last fold is carried along by every checkpoint of the store's
            // own, and cannot be cleaned: fold it, and try once more. Not with the lock: a
            // checkpoint may wait for it.
            drop(l);
            self.checkpoint()?;
            l = cell.sync_lock.lock();
            r = self.write_back_held(cell, &l, what_for, with, max);
        }
        drop(held);
        // For want of room nothing is lost: it is dirty, and whoever syncs it writes it, or hears
        // of it then.
        let is_told = |e: &crate::Error| what_for.is_durable() || e.errno() != libc::ENOSPC;
        if let (Err(e), FileKind::File) = (&r, cell.kind)
            && is_told(e)
        {
            cell.errors.record(e.errno());
        }
        drop(l);
        r
    }

    /// As [`Inner::write_back_cell`], once, for a caller that holds the cell's sync_lock and hears
    /// of ENOSPC itself.
    ///
    /// Of the rounds of a durable write only the last has a batch and a flush: its batch names the
    /// pages of all, and its flush covers them. Until then the inode is under way in `unsynced`, as
    /// in a write that is not durable.
    pub(crate) fn write_back_held(
        &self,
        cell: &Cell,
        _sync_lock: &MutexGuard<'_, ()>,
        what_for: For,
        with: With<'_>,
        max: usize,
    ) -> Result<usize> {
        if cell.has(ENDED) {
            // The store may have folded its end: it would take it for a new inode.
            self.flush.lock().durable(cell.ino);
            return Ok(0);
        }
        // Before any mark goes: see `Cell::is_synced`.
        cell.set(SYNCING);
        let durable = what_for.is_durable();
        // Of what the store does not know yet all attributes are told.
        let data_only = what_for == For::DataSync && cell.data().is_some() && cell.has(STORED);
        debug_assert!(!durable || max == usize::MAX, "the last round would be missing");
        let mut under_way = !durable;
        if under_way {
            self.flush.lock().begins(cell);
        }
        let (mut written, mut owed) = (0, false);
        if let Some(data) = cell.data().filter(|d| self.is_worth_streaming(d, max)) {
            if !under_way {
                self.flush.lock().begins(cell);
                under_way = true;
            }
            match self.stream_out(cell, data, data_only, max) {
                Ok(n) => written = n,
                Err(e) => {
                    self.dirty_cell(cell, 0);
                    self.flush.lock().ended(cell.ino);
                    cell.clear(SYNCING);
                    return Err(e);
                }
            }
        }
        // Once over the file: what is written behind it meanwhile is not owed to this call.
        let mut from = 0;
        let r = loop {
            // Cleared before anything is captured: what changes from here on makes the cell dirty
            // again (O15).
            let marks = DIRTY | XATTR_DIRTY | DATASYNC | if durable { UNSYNCED } else { 0 };
            let mut was = cell.take_marks(marks, data_only);
            if cell.dir().is_some_and(Dir::take_changed) {
                was |= DIRTY;
            }
            owed |= durable && was & UNSYNCED != 0;
            let most = max.saturating_sub(written).min(self.round_pages);
            let scope = (durable, data_only);
            match self.capture_round(cell, scope, &mut under_way, was, with, (&mut from, most)) {
                Ok((pages, more)) => {
                    written += pages;
                    if !more || written >= max {
                        break Ok(written);
                    }
                }
                Err(e) => {
                    self.dirty_cell(cell, DIRTY | was & (XATTR_DIRTY | DATASYNC | UNSYNCED));
                    break Err(e);
                }
            }
        };
        if from > 0 && cell.has_dirty() {
            // Its marks may have been taken with those of pages that were captured.
            self.dirty_cell(cell, 0);
        }
        if !durable || under_way && r.is_err() {
            self.flush.lock().ended(cell.ino);
        } else if owed && r.is_ok() {
            self.flush.lock().durable(cell.ino);
        }
        cell.clear(SYNCING);
        r
    }

    /// One update of one inode, durable or not, of all attributes or only the size, with up to
    /// `max` pages from page `from` on, which moves behind them; says how many pages went and
    /// whether dirty ones are left there. `under_way`: the inode is in `unsynced` for this write.
    fn capture_round(
        &self,
        cell: &Cell,
        (durable, data_only): (bool, bool),
        under_way: &mut bool,
        was: u32,
        with: With<'_>,
        (from, max): (&mut u64, usize),
    ) -> Result<(usize, bool)> {
        let xattrs = (was & XATTR_DIRTY != 0).then(|| self.encoded_xattrs(cell)).flatten();
        let ctx = self.data_ctx(cell);
        let Some(data) = cell.data() else {
            let attrs = cell.attrs();
            let u = InodeUpdate {
                ino: cell.ino,
                attrs,
                size_only: false,
                xattrs,
                pages: Vec::new(),
                reserved: 0,
            };
            if self.rights_pending(cell) {
                return Err(RIGHTS_PENDING);
            }
            self.submit_with(durable, u, with)?;
            return Ok((0, false));
        };
        let round = data.lock_writeback();
        let was_stored = data_only || cell.set(STORED) & STORED != 0;
        let attrs = if data_only {
            Attrs { mode: cell.kind.mode_bits(), size: data.size(), ..Attrs::default() }
        } else {
            cell.attrs()
        };
        let mut captured = data.capture(&ctx, &round, max, *from..u64::MAX, attrs.size);
        if planted(Canary::PagesSkipped) {
            captured.pages.truncate(1);
        }
        if self.rights_pending(cell) {
            let numbers: Vec<u64> = captured.pages.iter().map(|p| p.0).collect();
            data.finish(&ctx, &round, &numbers, false);
            if !was_stored {
                cell.clear(STORED);
            }
            return Err(RIGHTS_PENDING);
        }
        let n = captured.pages.len();
        // What is large does not ride with names: its pages go ahead, unflushed, and the batch that
        // names them rides.
        let more =
            captured.more || n > RIDES && matches!(with, With::Names(names) if names.takes_a_round_more());
        let durable = durable && !more;
        if !durable && !*under_way {
            self.flush.lock().begins(cell);
            *under_way = true;
        }
        let numbers: Vec<u64> = captured.pages.iter().map(|p| p.0).collect();
        // But for the page in which the file ends: it must not be missing where a later round makes
        // the file longer (SEMANTICS F3).
        *from = numbers
            .last()
            .map_or(*from, |p| (p + 1).min(attrs.size / lanefs_format::BLOCK_SIZE as u64).max(*from));
        // Names go with the last round: none of the data may be missing when they count.
        let with = if more { With::Nothing } else { with };
        let u = InodeUpdate {
            ino: cell.ino,
            attrs,
            size_only: data_only,
            xattrs,
            pages: captured.pages,
            reserved: n as u32,
        };
        let r = self.submit_with(durable, u, with);
        if r.is_err() && !was_stored {
            cell.clear(STORED);
        }
        data.finish(&ctx, &round, &numbers, r.is_ok());
        if captured.skipped > 0 && r.is_ok() {
            // The rest stays dirty; whoever asked for durability must hear of it.
            self.dirty_cell(cell, 0);
            return posix(libc::ENOSPC);
        }
        r.map(|()| (n, more))
    }

    /// The extended attributes as they are now, if there are any.
    pub(super) fn encoded_xattrs(&self, cell: &Cell) -> Option<Vec<u8>> {
        let _l = cell.xattrs.lock();
        cell.xattrs.get(&crossbeam_epoch::pin()).map(|x| x.encoded().to_vec())
    }

    /// Hands the update of an inode to the store, and what becomes durable with it.
    fn submit_with(&self, durable: bool, update: InodeUpdate, with: With<'_>) -> Result<()> {
        let groups = if let With::Groups(g) = with { g.to_vec() } else { Vec::new() };
        let t = Transaction { lane: self.lanes.mine(), durable, groups, inodes: vec![update] };
        match with {
            With::Names(names) if durable => names.submit(t),
            _ => self.submit_one(t),
        }
    }

    /// Hands a transaction to the store.
    pub(super) fn submit_one(&self, t: Transaction) -> Result<()> {
        self.check_alive()?;
        self.store.submit(t)?;
        Ok(())
    }

    /// Writes back about `want` dirty pages for a writer that found too many; skips cells that
    /// others are writing.
    pub(crate) fn write_back_some(&self, want: usize) -> usize {
        self.collect_dirty();
        let mut done = 0;
        // As many as are queued now: what is put back must not make this loop forever.
        let mut turns = self.flush.lock().queue.len();
        while done < want {
            // One for each: thousands of writes would hold back all that others let go meanwhile.
            let guard = crossbeam_epoch::pin();
            let Some((cell, l)) = self.next_to_write(&mut turns, &guard) else { break };
            cell.unlist();
            match self.write_back_cell(cell, l, For::Later, With::Nothing, want.max(64)) {
                Ok(n) => done += n,
                Err(e) => tracing::warn!("writing inode {} back failed: {e}", cell.ino),
            }
            cell.give_back();
            if cell.has_dirty() {
                self.dirty_cell(cell, 0);
            }
        }
        done
    }

    /// Moves the lanes' dirty lists into the flush queue.
    pub(crate) fn collect_dirty(&self) {
        let now = std::time::Instant::now();
        let mut q = self.flush.lock();
        for lane in 0..self.lanes.len() {
            let list = std::mem::take(&mut self.lanes.lock(lane).dirty);
            q.queue.extend(list.into_iter().map(|i| (now, i)));
        }
    }

    /// Writes back every inode that is dirty now. `durable`: each survives a crash when this
    /// returns, and so does what was written back before.
    pub(crate) fn write_back_all(&self, durable: bool) -> Result<()> {
        // Later calls find what this one took from the queue durable, not under way.
        let _one = self.syncing.lock();
        self.collect_dirty();
        let list: Vec<Ino> = {
            let mut q = self.flush.lock();
            let mut list: Vec<Ino> = q.queue.drain(..).map(|d| d.1).collect();
            if durable && !planted(Canary::SyncForgetsWritten) {
                list.extend(q.unsynced());
            }
            list
        };
        let mut first = None;
        for (i, &ino) in list.iter().enumerate() {
            let guard = crossbeam_epoch::pin();
            let Some(cell) = self.cells.get(ino, &guard) else { continue };
            let l = cell.sync_lock.lock();
            cell.unlist();
            let has_pages = cell.has_dirty();
            if cell.nlink.load(std::sync::atomic::Ordering::Relaxed) == 0 && !durable {
                // Nobody will see it again unless it is held open; then its owner's fsync or the
                // pool's pressure writes it.
                if has_pages {
                    self.dirty_cell(cell, 0);
                }
                continue;
            }
            let changed = cell.dir().is_some_and(Dir::has_changed);
            if !has_pages && !changed && !cell.has(DIRTY | XATTR_DIRTY | DATASYNC | UNSYNCED) {
                continue;
            }
            let what_for = if durable { For::Sync } else { For::Later };
            match self.write_back_cell(cell, l, what_for, With::Nothing, usize::MAX) {
                Ok(_) => cell.give_back(),
                Err(e) => {
                    first.get_or_insert(e);
                    if self.check_alive().is_err() {
                        let now = std::time::Instant::now();
                        self.flush.lock().queue.extend(list[i..].iter().map(|ino| (now, *ino)));
                        break;
                    }
                }
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// sync(2): every dirty inode, then the epoch.
    pub(crate) fn sync_all(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        // A file that cannot be written holds back neither the others nor the names; whoever called
        // hears of it.
        let content = self.write_back_all(true);
        if !planted(Canary::SyncWithoutCommit) {
            self.seal_and_commit()?;
        }
        content
    }

    /// EFBIG, EINVAL or nothing for a range of a file.
    pub(crate) fn check_range(offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= lanefs_format::MAX_FILE_SIZE => Ok(()),
            _ => posix(libc::EFBIG),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::writeback::testing::volume;
    use crate::{MountOptions, Volume};
    use lanefs_store::device::{Device, MemoryDevice};
    use lanefs_store::{FormatOptions, Store, Transaction};
    use std::sync::{Arc, mpsc};

    /// A call that was let in before hears what all calls hear from then on.
    #[test]
    fn what_comes_too_late_to_a_volume_that_stopped_fails_with_eio() {
        let stops: [fn(&Volume); 2] = [|v| v.close().unwrap(), |v| v.shutdown()];
        for stop in stops {
            let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(32 << 20).unwrap());
            Store::format(std::slice::from_ref(&device), &FormatOptions::default()).unwrap();
            let options = MountOptions { background: false, ..MountOptions::default() };
            let v = Volume::open_devices(vec![device], &options).unwrap();
            let late = || Transaction { durable: true, ..Transaction::default() };
            v.0.inner.submit_one(late()).unwrap();
            stop(&v);
            assert_eq!(v.0.inner.submit_one(late()).unwrap_err().errno(), libc::EIO);
        }
    }

    /// Between the fold of its end and the end of the checkpoint a file's cell is in memory still,
    /// dirty as it was. What is handed to the store then is an update of an inode that it does not
    /// know: it kept it for the next with that number.
    #[test]
    fn a_file_whose_end_is_being_folded_is_not_written_back() {
        let (v, device) = volume(64);
        let (inner, fs) = (v.0.inner.clone(), v.fs());
        (0..20).for_each(|n| fs.write(format!("/{n}"), b"content").unwrap());
        v.sync().unwrap();
        for n in 0..10 {
            fs.write(format!("/{n}"), b"more content").unwrap();
            fs.unlink(format!("/{n}")).unwrap();
        }
        assert_eq!(inner.reap(true).unwrap(), 10);
        inner.seal_and_commit().unwrap();
        let (did, done) = mpsc::channel();
        let volume = inner.clone();
        // The first write is that of the tree.
        device.at_write(move || {
            assert!(volume.store.folded_epoch() >= volume.committed());
            did.send(volume.sync_all()).unwrap();
        });
        inner.checkpoint().unwrap();
        done.recv().unwrap().unwrap();
        let waits = inner.store.dirty_memory();
        assert!(
            waits < 2048,
            "{waits}: the store waits for the making of what is gone, not for the root directory alone"
        );
        let crashed = device.after_crash();
        assert!((0..20).all(|n| crashed.fs().stat(format!("/{n}")).is_ok() == (n >= 10)));
    }

    /// Its grace had passed, and the round that was to end it came when a sync had captured it.
    #[test]
    fn a_file_that_is_being_written_back_ends_in_the_next_round() {
        let (v, device) = volume(64);
        let (inner, fs) = (v.0.inner.clone(), v.fs());
        fs.write("/a", b"content").unwrap();
        v.sync().unwrap();
        fs.write("/a", b"more content").unwrap();
        fs.unlink("/a").unwrap();
        inner.reap(false).unwrap();
        while !inner.reaper.lock().is_due() {
            crossbeam_epoch::pin().flush();
        }
        let (did, done) = mpsc::channel();
        let volume = inner.clone();
        device.at_write(move || did.send(volume.reap(false).unwrap()).unwrap());
        v.sync().unwrap();
        assert_eq!(done.recv().unwrap(), 0, "an update of it is on its way to the store");
        assert_eq!(inner.reap(true).unwrap(), 1);
    }
}
