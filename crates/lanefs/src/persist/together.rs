//! Small inodes that are written back together: one transaction of the store, whose pages lie side
//! by side and go to the device as one request, with one flush if it is durable. A tree of small
//! files, written one after the other, is a request for each of them, and a flush.
//!
//! 1. Who collects holds several sync_locks, and waits for no other lock of an inode meanwhile:
//!    each is tried. What cannot be taken so, is large, or needs something done first is left to
//!    the caller, who writes it by itself when it holds none of the others.
//! 2. Where the transaction fails all of them are dirty as before, and their locks are free. The
//!    caller writes each by itself then: that frees space, and finds the one that fails.

use crate::memfs::Inode;
use crate::memfs::data::{FileData, Taken};
use crate::memfs::inode::{DATASYNC, ENDED, SYNCING, UNSYNCED, XATTR_DIRTY};
use crate::ops::rights;
use crate::persist::Persist;
use crate::persist::capture;
use crate::persist::host::UNSEEN;
use crate::persist::piece::{self, Writing};
use lanefs_format::BLOCK_SIZE;
use lanefs_store::{InodeUpdate, Transaction};
use lanefs_sync::lock::MutexGuard;
use lanefs_sync::parallel;
use std::sync::atomic::Ordering;

/// Inodes in one transaction, at most.
const MEMBERS: usize = 128;
/// Bytes of attributes and ends of files that go into one message of the log, at most: as many as
/// one inode may have.
const BYTES: usize = 64 << 10;

/// Returns how many inodes are worth several threads.
fn shared_from() -> usize {
    if cfg!(test) { 16 } else { parallel::share_from(2048, 2) }
}

/// Returns how many threads so many inodes are worth.
pub(super) fn threads_for(persist: &Persist, inodes: usize) -> usize {
    if inodes < shared_from() { 1 } else { persist.store.threads() }
}

/// What a writeback has taken of an inode.
struct Member<'g> {
    inode: &'g Inode,
    lock: MutexGuard<'g, ()>,
    /// The marks it had.
    was: u32,
    /// A piece of it was missing, and may be on its way.
    has_gap: bool,
    /// Renames over files that its content is owed to.
    owed: u32,
    file: Option<Content<'g>>,
}

/// The writeback of a file, and the pages that were captured.
type Content<'g> = (Writing<'g>, Taken);

/// Inodes that are about to be written back as one transaction.
pub(super) struct Together<'g> {
    persist: &'g Persist,
    durable: bool,
    /// Renames over files wait for the content.
    renamed: bool,
    members: Vec<Member<'g>>,
    updates: Vec<InodeUpdate>,
    pages: usize,
    bytes: usize,
}

/// What became of them.
pub(super) struct Written<'g> {
    /// Pages that the store has.
    pub pages: usize,
    /// All that are written.
    pub done: Vec<&'g Inode>,
    /// All that are not, and are to be written each by itself.
    pub left: Vec<&'g Inode>,
}

impl<'g> Together<'g> {
    /// Begins to collect. `durable`: all that is taken is durable when it is written.
    pub fn new(persist: &'g Persist, durable: bool) -> Together<'g> {
        let (members, updates) = (Vec::new(), Vec::new());
        Together { persist, durable, renamed: false, members, updates, pages: 0, bytes: 0 }
    }

    /// Begins to collect files that were renamed over others: all that is taken is durable when it
    /// is written, and no rename that came before has to wait for it any more.
    pub fn of_renamed(persist: &'g Persist) -> Together<'g> {
        Together { renamed: true, ..Together::new(persist, true) }
    }

    /// Returns whether no more should be added.
    pub fn is_full(&self) -> bool {
        let most = self.persist.round_pages;
        debug_assert!(self.pages <= most, "{} pages in one round", self.pages);
        self.members.len() >= MEMBERS || self.bytes >= BYTES || self.pages + self.small() + UNSEEN > most
    }

    /// Returns whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the most pages of an inode that is small.
    fn small(&self) -> usize {
        piece::RIDES.min(self.persist.round_pages / 4)
    }

    /// Captures an inode, if it is small and nothing has to be done first (1); else gives its lock
    /// back, and it is as it was.
    pub fn add(&mut self, inode: &'g Inode, lock: MutexGuard<'g, ()>) -> Result<(), MutexGuard<'g, ()>> {
        debug_assert!(inode.sync_lock.is_locked(), "the lock that is handed over is another inode's");
        debug_assert!(!self.is_full(), "the caller writes what there is first");
        debug_assert!(self.members.iter().all(|m| m.inode.ino != inode.ino), "an inode twice");
        if !self.is_simple(inode) {
            return Err(lock);
        }
        debug_assert!(!inode.has(SYNCING), "another writeback of inode {} is under way", inode.ino);
        // Acquire: the content that each of them is about was written before it was counted.
        let owed = if self.renamed { inode.owed.load(Ordering::Acquire) } else { 0 };
        // Before any mark goes: see `Inode::is_synced`.
        inode.set(SYNCING);
        if !self.durable {
            self.persist.flush.lock().begins(inode);
        }
        let was = capture::take_marks(self.persist, inode, self.durable, false);
        let has_gap = inode.data().is_some_and(FileData::has_gap);
        match self.capture(inode, was) {
            Some((update, file)) => {
                let end = (update.attrs.size % BLOCK_SIZE as u64) as usize;
                self.bytes += update.xattrs.as_ref().map_or(0, Vec::len);
                self.bytes += if update.pages.is_empty() { 0 } else { end };
                self.pages += update.pages.len();
                self.updates.push(update);
                self.members.push(Member { inode, lock, was, has_gap, owed, file });
                Ok(())
            }
            None => {
                capture::give_marks_back(self.persist, inode, was);
                if !self.durable {
                    self.persist.flush.lock().ended(inode.ino);
                }
                inode.clear(SYNCING);
                Err(lock)
            }
        }
    }

    /// Returns whether an inode is small, and written in one round with nothing to wait for.
    fn is_simple(&self, inode: &Inode) -> bool {
        let is_small = |data: &FileData| {
            let most = self.small() + 1;
            // Where the whole file is small its tree need not be walked.
            let few = data.size() <= (self.small() * BLOCK_SIZE) as u64;
            !data.has_gap() && (few || data.dirty_pages_from(0, most) < most)
        };
        !inode.has(ENDED)
            // Each round asks for its pages there.
            && !self.persist.store.counts_admissions()
            && inode.data().is_none_or(is_small)
    }

    /// Captures all of an inode, whose marks were taken. `None`: not in one round, or something has
    /// to be done first; nothing is captured then.
    fn capture(&self, inode: &'g Inode, was: u32) -> Option<(InodeUpdate, Option<Content<'g>>)> {
        let xattrs = (was & XATTR_DIRTY != 0).then(|| piece::encoded_xattrs(inode)).flatten();
        let Some(data) = inode.data() else {
            let update = capture::attributes_of(self.persist, inode, xattrs);
            return (!rights::rights_pending(self.persist, inode)).then_some((update, None));
        };
        let file = Writing::try_begin(self.persist, inode, data)?;
        let most = self.small() + UNSEEN;
        let Ok(captured) = file.capture(most, 0) else {
            file.failed();
            return None;
        };
        if captured.more || captured.skipped > 0 {
            file.give_up(captured);
            file.failed();
            return None;
        }
        debug_assert!(captured.pages.len() <= most, "{} pages, {most} wanted", captured.pages.len());
        let (update, taken) = file.update(xattrs, captured);
        Some((update, Some((file, taken))))
    }

    /// Writes what was added.
    pub fn write(self) -> Written<'g> {
        let Together { persist, durable, members, updates, pages, .. } = self;
        debug_assert_eq!(members.len(), updates.len(), "an update for each inode");
        let mut written = Written { pages: 0, done: Vec::new(), left: Vec::new() };
        if members.is_empty() {
            return written;
        }
        let lane = persist.journal.lanes.mine();
        let t = Transaction { lane, durable, groups: Vec::new(), inodes: updates, folds: true };
        let ok = persist.check_alive().is_ok_and(|()| persist.store.submit(t).is_ok());
        let mut locks = Vec::with_capacity(members.len());
        let mut unsynced = Vec::with_capacity(members.len());
        for Member { inode, lock, was, has_gap, owed, file } in members {
            if let Some((file, taken)) = file {
                if !ok {
                    file.failed();
                }
                file.finish(taken, ok);
            }
            match ok {
                // What lies behind it is still to be written (`memfs::data`, G4 of `gaps`).
                true if has_gap => persist.journal.dirty_inode(inode, DATASYNC),
                // Its marks may have been taken with those of pages that were captured.
                true if inode.has_dirty() => persist.journal.dirty_inode(inode, 0),
                true => {}
                false => capture::give_marks_back(persist, inode, was),
            }
            unsynced.push(was & UNSYNCED != 0);
            match ok {
                true => {
                    inode.pay(owed);
                    written.done.push(inode);
                }
                false => written.left.push(inode),
            }
            locks.push((inode, lock));
        }
        {
            let mut flush = persist.flush.lock();
            for ((inode, _), was_unsynced) in locks.iter().zip(unsynced) {
                match durable {
                    true if ok && was_unsynced => flush.durable(inode.ino),
                    true => {}
                    false => flush.ended(inode.ino),
                }
            }
        }
        for (inode, lock) in locks {
            inode.clear(SYNCING);
            drop(lock);
        }
        written.pages = if ok { pages } else { 0 };
        debug_assert!(written.done.is_empty() || written.left.is_empty(), "one transaction, in part");
        written
    }
}

#[cfg(test)]
mod tests {
    use crate::persist::{commit, writeback};
    use crate::{Fs, MountOptions, OpenOptions, Volume};
    use lanefs_store::device::{Device, Fault, FaultyDevice, Kind, MemoryDevice, MemoryImage, Plan, When};
    use lanefs_store::{FormatOptions, Store};
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    type Counting = Arc<FaultyDevice<MemoryDevice>>;

    fn options() -> MountOptions {
        MountOptions { background: false, ..MountOptions::default() }
    }

    /// A volume on a device that counts requests.
    fn volume() -> (Volume, Counting) {
        let device = Arc::new(FaultyDevice::new(MemoryDevice::new(64 << 20).unwrap(), Plan::none()));
        let d: Arc<dyn Device> = device.clone();
        Store::format(std::slice::from_ref(&d), &FormatOptions::default()).unwrap();
        (Volume::open_devices(vec![d], &options()).unwrap(), device)
    }

    fn after_crash(device: &Counting) -> Fs {
        let left = MemoryImage::capture(device.inner()).unwrap().fork().unwrap();
        Volume::open_devices(vec![Arc::new(left)], &options()).unwrap().fs()
    }

    /// Returns the pieces that `f` writes, each of blocks that lie side by side in memory, and the
    /// flushes that it asks for.
    fn asked_for(device: &Counting, f: impl FnOnce()) -> (u64, u64) {
        let counts = || device.requests();
        let before = counts();
        f();
        let of = |kind: Kind| counts()[kind as usize] - before[kind as usize];
        (of(Kind::Write), of(Kind::Flush))
    }

    /// Each was a write, a batch and a flush: some 300 us on a disk.
    #[test]
    fn a_sync_of_many_small_files_has_few_flushes() {
        let (v, device) = volume();
        let fs = v.fs();
        let content = |n: u64| vec![n as u8; 1000 + n as usize * 40];
        (0..300).for_each(|n| fs.write(format!("/{n}"), content(n)).unwrap());
        let (writes, flushes) = asked_for(&device, || v.sync().unwrap());
        assert!(writes < 500 && flushes < 16, "{writes} writes, {flushes} flushes");
        // Attributes alone, and extended ones.
        (0..300).for_each(|n| fs.chmod(format!("/{n}"), 0o600 + n % 8).unwrap());
        (0..10).for_each(|n| fs.setxattr(format!("/{n}"), b"user.a", &[7; 2000], 0).unwrap());
        let (writes, flushes) = asked_for(&device, || v.sync().unwrap());
        assert!(writes < 60 && flushes < 12, "{writes} writes, {flushes} flushes");
        let left = after_crash(&device);
        for n in 0..300 {
            assert_eq!(left.read(format!("/{n}")).unwrap(), content(n));
            assert_eq!(left.stat(format!("/{n}")).unwrap().mode & 0o7777, 0o600 + n as u32 % 8);
        }
        assert_eq!(left.getxattr("/9", b"user.a").unwrap(), [7; 2000]);
    }

    /// The next commit, and each rename that came meanwhile, waited for a flush for each of them.
    #[test]
    fn many_small_files_that_are_renamed_over_others_have_few_flushes() {
        let (v, device) = volume();
        let fs = v.fs();
        (0..200).for_each(|n| fs.write(format!("/{n}"), b"old").unwrap());
        v.sync().unwrap();
        for n in 0..200 {
            fs.write("/new", [n as u8; 3000]).unwrap();
            fs.rename("/new", format!("/{n}")).unwrap();
        }
        let persist = &v.0.persist;
        let (writes, flushes) = asked_for(&device, || assert!(commit::seal_and_commit(persist).unwrap() > 0));
        assert!(writes < 260 && flushes < 12, "{writes} writes, {flushes} flushes");
        let left = after_crash(&device);
        (0..200).for_each(|n| assert_eq!(left.read(format!("/{n}")).unwrap(), [n as u8; 3000]));
        // Nobody waits for them any more.
        let guard = crossbeam_epoch::pin();
        let ino = |n| fs.stat(format!("/{n}")).unwrap().ino;
        let is_owed = |n| persist.memfs.inodes.get(ino(n), &guard).unwrap().owed.load(Ordering::Relaxed) > 0;
        assert!(!(0..200).any(is_owed));
    }

    /// Many inodes are shared out to threads. What one of them cannot write is the caller's error,
    /// and holds back nobody else.
    #[test]
    fn threads_that_share_a_sync_write_all_that_can_be_written() {
        let device = Arc::new(FaultyDevice::new(MemoryDevice::new(128 << 20).unwrap(), Plan::none()));
        let dev: Arc<dyn Device> = device.clone();
        Store::format(std::slice::from_ref(&dev), &FormatOptions::default()).unwrap();
        let open = || {
            let options = MountOptions { threads: 3, ..options() };
            Volume::open_devices(vec![dev.clone()], &options).unwrap()
        };
        let (v, name) = (open(), |n: usize| format!("/{n}"));
        // Too many pieces for the inode's own block.
        let bad = v.fs().create("/bad").unwrap();
        (0..2000).for_each(|n| bad.write_all_at(b"x", n * 8192).unwrap());
        drop(bad);
        v.close().unwrap();
        let v = open();
        let fs = v.fs();
        assert!(v.0.persist.store.threads() > 1, "nobody shares anything");
        let content = |n: usize| vec![n as u8 | 1; if n.is_multiple_of(50) { 300_000 } else { 17 * n }];
        let write = |names: std::ops::Range<usize>| {
            names.for_each(|n| fs.write(name(n), content(n)).unwrap());
        };
        write(0..200);
        v.sync().unwrap();
        // Behind the end: a write before it would look in the map whether the page is a hole.
        let bad = fs.open("/bad", OpenOptions::new().write(true)).unwrap();
        bad.write_all_at(&[1; 4096], 2000 * 8192).unwrap();
        write(200..400);
        let often = When { times: 4, ..When::default() };
        device.set_plan(Plan::none().rule(Kind::Read, often, Fault::Error(libc::EIO)));
        assert_eq!(v.sync().unwrap_err().errno(), libc::EIO);
        device.set_plan(Plan::none());
        let left = after_crash(&device);
        (0..400).for_each(|n| assert!(left.read(name(n)).unwrap() == content(n), "file {n}"));
        v.sync().unwrap();
        // The same without a flush for each, and a checkpoint behind it.
        (0..400).for_each(|n| fs.write(name(n), content(n + 1)).unwrap());
        writeback::collect_dirty(&v.0.persist);
        assert!(writeback::write_back_first(&v.0.persist, 800, 100_000).unwrap() >= 800);
        v.checkpoint().unwrap();
        let left = after_crash(&device);
        (0..400).for_each(|n| assert!(left.read(name(n)).unwrap() == content(n + 1), "file {n}, again"));
    }

    /// A file that somebody writes is written when it is free, and the others are not held up.
    #[test]
    fn a_file_whose_lock_is_held_is_left_to_be_written_by_itself() {
        let (v, device) = volume();
        let (fs, persist) = (v.fs(), &v.0.persist);
        (0..20).for_each(|n| fs.write(format!("/{n}"), [7; 4096]).unwrap());
        let guard = crossbeam_epoch::pin();
        let busy = persist.memfs.inodes.get(fs.stat("/5").unwrap().ino, &guard).unwrap();
        let lock = busy.sync_lock.lock();
        assert_eq!(writeback::write_back_some(persist, 1000).unwrap(), 19);
        assert!(busy.has_dirty());
        drop(lock);
        v.sync().unwrap();
        assert!(!busy.has_dirty());
        (0..20).for_each(|n| assert_eq!(after_crash(&device).read(format!("/{n}")).unwrap(), [7; 4096]));
    }
}
