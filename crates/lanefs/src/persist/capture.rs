//! Capturing one inode and handing it to the store.

use crate::core::page_store::accepted_data_ctx;
use crate::error::Result;
use crate::memfs::Inode;
use crate::memfs::data::FileData;
use crate::memfs::dir::Dir;
use crate::memfs::inode::{DATASYNC, DIRTY, ENDED, PRIVILEGED, STORED, SYNCING, UNSYNCED, XATTR_DIRTY};
use crate::ops::rights::{self, RIGHTS_PENDING};
use crate::persist::Persist;
use crate::persist::host;
use crate::persist::piece::{self, Pass, Writing};
use crate::persist::stream;
use lanefs_store::{InodeUpdate, Life, Transaction};
use lanefs_sync::lock::MutexGuard;

/// The purpose for which an inode is written back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum For {
    /// Free memory, or age: it becomes durable with the next checkpoint.
    Later,
    /// fsync or sync: all of it is durable when the writeback is done.
    Sync,
    /// The same, and a seal waits for it, or a rename that a seal waits for (`persist::replaced`).
    Seal,
    /// fdatasync: the content and the size are. The other attributes are left as the store has
    /// them, if it has them, and so they are not looked at: a chmod beside an fdatasync shares
    /// nothing with it. Their marks stay.
    DataSync,
}

/// An epoch that becomes durable together with an inode.
pub(crate) trait PendingNames {
    /// Returns whether another round comes behind the last pages of a large inode.
    fn takes_a_round_more(&self) -> bool;

    /// Makes a transaction durable, and begins the epoch with it unless somebody has.
    fn submit(&self, t: Transaction) -> Result<()>;
}

/// The names that become durable together with an inode.
#[derive(Clone, Copy)]
pub(crate) enum With<'a> {
    /// The inode alone.
    Nothing,
    /// These groups, encoded, in its batch.
    Groups(&'a [u8]),
    /// The running epoch, whose places are given with those of its batch, if it is small.
    Names(&'a dyn PendingNames),
}

impl For {
    /// Returns whether the inode is to be durable when the writeback is done.
    pub(super) fn is_durable(self) -> bool {
        self != For::Later
    }
}

/// Does what [`write_back_inode`](super::writeback::write_back_inode) does, once, for a caller that
/// holds the inode's sync_lock and handles ENOSPC itself.
///
/// Of the rounds of a durable write only the last has a batch and a flush: its batch names the
/// pages of all, and its flush covers them. Until then the inode is under way in `unsynced`, as
/// in a write that is not durable.
pub(crate) fn write_back_held(
    persist: &Persist,
    inode: &Inode,
    _sync_lock: &MutexGuard<'_, ()>,
    what_for: For,
    with: With<'_>,
    max: usize,
) -> Result<usize> {
    debug_assert!(inode.sync_lock.is_locked(), "the lock that is held is another inode's");
    if inode.has(ENDED) {
        // The store may have folded its end: it would take it for a new inode.
        persist.flush.lock().durable(inode.ino);
        return Ok(0);
    }
    debug_assert!(!inode.has(SYNCING), "another writeback of inode {} is under way", inode.ino);
    // Before any mark goes: see `Inode::is_synced`.
    inode.set(SYNCING);
    let durable = what_for.is_durable();
    debug_assert!(durable || matches!(with, With::Nothing), "no flush would cover the names");
    // The store gets all attributes of what it does not know yet.
    // What gave a program rights goes with what was written behind it.
    // (The marks of attributes may lie with other lanes: they are looked at where it may matter.)
    let attributes = !inode.has(STORED) || inode.has(PRIVILEGED) && inode.has(XATTR_DIRTY);
    let data_only = what_for == For::DataSync && inode.data().is_some() && !attributes;
    debug_assert!(!durable || max == usize::MAX, "the last round would be missing");
    let mut under_way = !durable;
    if under_way {
        persist.flush.lock().begins(inode);
    }
    let (mut written, mut owed, mut kept) = (0, false, false);
    if let Some(data) = inode.data().filter(|d| stream::is_worth_streaming(persist, d, max)) {
        if !under_way {
            persist.flush.lock().begins(inode);
            under_way = true;
        }
        match stream::stream_out(persist, inode, data, data_only, max) {
            Ok(n) => written = n,
            Err(e) => {
                persist.journal.dirty_inode(inode, 0);
                persist.flush.lock().ended(inode.ino);
                inode.clear(SYNCING);
                return Err(e);
            }
        }
    }
    // Once over the file: what is written behind it meanwhile is not this call's task.
    let mut pass = Pass::default();
    let r = loop {
        let most = max.saturating_sub(written).min(persist.round_pages);
        let kind = (durable, what_for == For::Seal);
        let admitted = match host::admit(persist, inode.data(), kind, (pass.from, most)) {
            Ok(admitted) => admitted,
            Err(e) => {
                persist.journal.dirty_inode(inode, 0);
                break Err(e);
            }
        };
        let most = most.min(admitted.pages());
        let was = take_marks(persist, inode, durable, data_only);
        owed |= durable && was & UNSYNCED != 0;
        kept |= inode.data().is_some_and(FileData::has_gap);
        let scope = (durable, data_only);
        match capture_round(persist, inode, scope, &mut under_way, was, with, (&mut pass, most)) {
            Ok((pages, more)) => {
                debug_assert!(pages <= most, "{pages} pages, {most} were wanted");
                written += pages;
                if !more || written >= max {
                    break Ok(written);
                }
            }
            Err(e) => {
                give_marks_back(persist, inode, was);
                break Err(e);
            }
        }
    };
    if pass.from > 0 && inode.has_dirty() {
        // Its marks may have been taken with those of pages that were captured.
        persist.journal.dirty_inode(inode, 0);
    }
    if kept {
        // What lies behind the gap is still to be written (`memfs::data`, G4 of `gaps`).
        persist.journal.dirty_inode(inode, DATASYNC);
    }
    debug_assert!(under_way || durable, "a write that is not durable is under way until it ends");
    if !durable || under_way && r.is_err() {
        persist.flush.lock().ended(inode.ino);
    } else if owed && r.is_ok() {
        persist.flush.lock().durable(inode.ino);
    }
    inode.clear(SYNCING);
    r
}

/// Takes the marks off an inode before anything of it is captured, and returns what was set: what
/// changes from here on makes the inode dirty again (O15). `data_only`: as far as fdatasync asks.
pub(super) fn take_marks(persist: &Persist, inode: &Inode, durable: bool, data_only: bool) -> u32 {
    let marks = DIRTY | XATTR_DIRTY | DATASYNC | if durable { UNSYNCED } else { 0 };
    let was = inode.take_marks(marks, data_only, || accepted_data_ctx(persist, inode));
    was | if inode.dir().is_some_and(Dir::take_changed) { DIRTY } else { 0 }
}

/// Marks an inode dirty again of which nothing was written.
pub(super) fn give_marks_back(persist: &Persist, inode: &Inode, was: u32) {
    debug_assert!(inode.has(SYNCING), "who looks meanwhile takes inode {} for clean", inode.ino);
    persist.journal.dirty_inode(inode, DIRTY | was & (XATTR_DIRTY | DATASYNC | UNSYNCED));
}

/// Returns the update of an inode without content.
pub(super) fn attributes_of(persist: &Persist, inode: &Inode, xattrs: Option<Vec<u8>>) -> InodeUpdate {
    debug_assert!(inode.data().is_none(), "inode {} has pages", inode.ino);
    let (ino, attrs, life, rights_logged) = (inode.ino, inode.attrs(), Life::Usual, persist.is_ordered());
    let (size_only, reserved, more, pages) = (false, 0, false, Vec::new());
    InodeUpdate { ino, attrs, rights_logged, size_only, xattrs, pages, reserved, more, life }
}

/// Hands over one update of one inode, durable or not, of all attributes or only the size, with up
/// to `max` pages from where `pass` is on, which moves behind them; returns how many pages went and
/// whether dirty ones are left there. `under_way`: the inode is in `unsynced` for this write.
fn capture_round(
    persist: &Persist,
    inode: &Inode,
    (durable, data_only): (bool, bool),
    under_way: &mut bool,
    was: u32,
    with: With<'_>,
    (pass, max): (&mut Pass, usize),
) -> Result<(usize, bool)> {
    let xattrs = (was & XATTR_DIRTY != 0).then(|| piece::encoded_xattrs(inode)).flatten();
    let Some(data) = inode.data() else {
        let u = attributes_of(persist, inode, xattrs);
        debug_assert!(!data_only, "fdatasync of what has no content writes all attributes");
        if rights::rights_pending(persist, inode) {
            return Err(RIGHTS_PENDING);
        }
        submit_with(persist, durable, u, with)?;
        return Ok((0, false));
    };
    let (file, captured) = Writing::begin_captured(persist, inode, data, data_only, max, pass)?;
    let n = captured.pages.len();
    // What is large does not ride with names: its pages go ahead, unflushed, and the batch that
    // names them rides.
    let more =
        captured.more || n > piece::RIDES && matches!(with, With::Names(names) if names.takes_a_round_more());
    let durable = durable && !more;
    if !durable && !*under_way {
        persist.flush.lock().begins(inode);
        *under_way = true;
    }
    debug_assert!(durable || *under_way, "`unsynced` does not know of the write");
    let from = &mut pass.from;
    let (first, last) = (captured.taken.numbers().next(), captured.taken.numbers().next_back());
    debug_assert!(first.is_none_or(|p| p >= *from), "page {first:?} from {from} on");
    // But for the page in which the file ends: it must not be missing where a later round makes
    // the file longer (SEMANTICS F3).
    *from =
        last.map_or(*from, |p| (p + 1).min(file.attrs.size / lanefs_format::BLOCK_SIZE as u64).max(*from));
    debug_assert!(first.is_none_or(|p| *from >= p), "the round made no headway");
    // Names go with the last round: none of the data may be missing when they count.
    let with = if more { With::Nothing } else { with };
    let (update, taken) = file.update(xattrs, captured);
    let r = submit_with(persist, durable, update, with);
    if r.is_err() {
        file.failed();
    }
    file.finish(taken, r.is_ok());
    r.map(|()| (n, more))
}

/// Hands the update of an inode to the store, and what becomes durable with it.
fn submit_with(persist: &Persist, durable: bool, update: InodeUpdate, with: With<'_>) -> Result<()> {
    debug_assert!(durable || matches!(with, With::Nothing), "names in a batch that is not flushed");
    let groups = if let With::Groups(g) = with { g.to_vec() } else { Vec::new() };
    let t = Transaction {
        lane: persist.journal.lanes.mine(),
        durable,
        groups,
        inodes: vec![update],
        folds: true,
    };
    match with {
        With::Names(names) if durable => names.submit(t),
        _ => piece::submit_one(persist, t),
    }
}

#[cfg(test)]
mod tests {
    use super::{For, Pass, With, capture_round, take_marks, write_back_held};
    use crate::memfs::data::after_reading_size;
    use crate::memfs::inode::SYNCING;
    use crate::persist::testing::volume;
    use crate::persist::{checkpoint, commit, piece, reaper, writeback};
    use crate::{MountOptions, OpenOptions, Volume};
    use lanefs_store::device::{Device, MemoryDevice};
    use lanefs_store::{FormatOptions, Store, Transaction};
    use std::io::Write as _;
    use std::sync::{Arc, mpsc};

    /// A call that was let in before gets the error that all calls get from then on.
    #[test]
    fn what_comes_too_late_to_a_volume_that_stopped_fails_with_eio() {
        let stops: [fn(&Volume); 2] = [|v| v.close().unwrap(), |v| v.shutdown()];
        for stop in stops {
            let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(32 << 20).unwrap());
            Store::format(std::slice::from_ref(&device), &FormatOptions::default()).unwrap();
            let options = MountOptions { background: false, ..MountOptions::default() };
            let v = Volume::open_devices(vec![device], &options).unwrap();
            let late = || Transaction { durable: true, ..Transaction::default() };
            piece::submit_one(&v.0.persist, late()).unwrap();
            stop(&v);
            assert_eq!(piece::submit_one(&v.0.persist, late()).unwrap_err().errno(), libc::EIO);
        }
    }

    /// Pages go to the device from where they lie: what is written beside that must not be in the
    /// middle of what has a checksum already.
    #[test]
    fn what_is_written_beside_the_device_is_not_in_the_image_on_its_way() {
        for durable in [true, false] {
            let (v, device) = volume(64);
            let fs = v.fs();
            let file = fs.create("/f").unwrap();
            v.sync().unwrap();
            for n in 1..20u8 {
                file.write_all_at(&[n; 40_960], 0).unwrap();
                let beside = fs.open("/f", OpenOptions::new().write(true)).unwrap();
                device.at_write(move || {
                    beside.write_all_at(&[n + 100; 5000], 4000 + 1000 * u64::from(n % 5)).unwrap();
                    beside.write_all_at(&[n + 100; 8192], 20_480).unwrap();
                });
                if durable {
                    file.sync_data().unwrap()
                } else {
                    writeback::write_back_some(&v.0.persist, 100).map(drop).unwrap()
                }
                if !durable {
                    checkpoint::checkpoint(&v.0.persist).unwrap();
                }
                let found = device.after_crash().fs().read("/f").unwrap();
                assert!(found.len() == 40_960 && found.iter().all(|b| *b == n || *b == n + 100), "round {n}");
                assert!(found[30_000..].iter().all(|b| *b == n), "round {n}");
                let now = fs.read("/f").unwrap();
                assert!(now[20_480..28_672].iter().all(|b| *b == n + 100), "round {n}");
            }
        }
    }

    /// An update carried the size that the file had, whatever was captured of its pages: attributes
    /// alone, or a part of what was appended, came into the tree with the checkpoint, and behind
    /// them were zeros.
    #[test]
    fn a_file_grows_with_its_bytes() {
        let (v, device) = volume(64);
        let (inner, fs) = (v.0.persist.clone(), v.fs());
        let found = || {
            checkpoint::checkpoint(&inner).unwrap();
            let bytes = device.after_crash().fs().read("/log").unwrap();
            assert_eq!(bytes.iter().position(|b| *b != 7), None, "zeros in {} bytes", bytes.len());
            bytes.len()
        };
        fs.write("/log", [7; 20_000]).unwrap();
        v.sync().unwrap();
        let mut log = fs.open("/log", OpenOptions::new().append(true)).unwrap();
        log.write_all(&[7; 100_000]).unwrap();
        let guard = crossbeam_epoch::pin();
        let inode = inner.memfs.inodes.get(log.stat().unwrap().ino, &guard).unwrap();
        let write_back = |max| {
            let lock = inode.sync_lock.lock();
            write_back_held(&inner, inode, &lock, For::Later, With::Nothing, max).unwrap()
        };
        assert_eq!((write_back(0), found()), (0, 20_000));
        assert_eq!((write_back(5), found()), (5, 9 * 4096));
        assert_eq!((write_back(usize::MAX), found()), (21, 120_000));
        // What is cut is cut by the first update, however much of the rest is dirty.
        log.write_all_at(&[7; 50_000], 0).unwrap();
        log.set_len(50_001).unwrap();
        log.write_all(&[7; 1]).unwrap();
        log.set_len(50_001).unwrap();
        assert_eq!((write_back(1), found()), (1, 50_001));
    }

    /// Between two rounds over a large file it was cut, and grew again over pages that lie before
    /// the second round: that made the size durable, and a crash showed zeros in place of them.
    #[test]
    fn a_file_that_is_cut_and_grows_between_two_rounds_is_found_with_its_pages() {
        let (v, device) = volume(64);
        let (inner, fs) = (v.0.persist.clone(), v.fs());
        let log = fs.create("/log").unwrap();
        v.sync().unwrap();
        log.write_all_at(&[6; 120_000], 0).unwrap();
        let guard = crossbeam_epoch::pin();
        let inode = inner.memfs.inodes.get(log.stat().unwrap().ino, &guard).unwrap();
        let lock = inode.sync_lock.lock();
        inode.set(SYNCING);
        let (mut pass, mut under_way) = (Pass::default(), false);
        let mut round = |most: usize| {
            let was = take_marks(&inner, inode, true, false);
            let at = (&mut pass, most);
            capture_round(&inner, inode, (true, false), &mut under_way, was, With::Nothing, at).unwrap()
        };
        assert_eq!(round(20), (20, true));
        log.set_len(0).unwrap();
        log.write_all_at(&[7; 50_000], 0).unwrap();
        assert_eq!(round(20), (13, false));
        inode.clear(SYNCING);
        drop(lock);
        let found = device.after_crash().fs().read("/log").unwrap();
        assert_eq!(found.len(), 50_000);
        assert_eq!(found.iter().position(|b| *b != 7), None, "zeros in place of pages");
    }

    /// A kernel hands a growing file over in several requests at a time, and the second of them may
    /// be served first. A commit in between made the size durable that it gave the file, and a
    /// crash showed zeros in place of the first.
    #[test]
    fn a_piece_that_is_handed_over_late_leaves_no_zeros() {
        let (v, device) = volume(64);
        let (inner, fs) = (v.0.persist.clone(), v.fs());
        let found = || {
            super::super::writeback::write_back_all(&inner, false).unwrap();
            checkpoint::checkpoint(&inner).unwrap();
            let bytes = device.after_crash().fs().read("/log").unwrap();
            assert_eq!(bytes.iter().position(|b| *b != 7), None, "zeros in {} bytes", bytes.len());
            bytes.len()
        };
        fs.write("/log", [7; 5000]).unwrap();
        v.sync().unwrap();
        let log = fs.open("/log", OpenOptions::new().write(true)).unwrap();
        log.write_back_at(&[7; 4096], 8192).unwrap();
        // Nobody waits for the file, however late the piece is.
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!((found(), log.stat().unwrap().size), (5000, 12_288));
        log.write_back_at(&[7; 8192], 16_384).unwrap();
        log.write_back_at(&[7; 4096], 4096).unwrap();
        assert_eq!(found(), 12_288);
        log.write_back_at(&[7; 4096], 12_288).unwrap();
        assert_eq!(found(), 24_576);
        // Attributes alone bring no size either.
        log.write_back_at(&[7; 4096], 28_672).unwrap();
        fs.chmod("/log", 0o600).unwrap();
        assert_eq!(found(), 24_576);
        log.write_back_at(&[7; 4096], 24_576).unwrap();
        assert_eq!(found(), 32_768);
    }

    /// What looks like a missing piece may be a hole: whoever syncs the file, renames it over
    /// another or says how long it is has waited for all that came before.
    #[test]
    fn a_hole_is_durable_with_what_lies_behind_it() {
        let (v, device) = volume(64);
        let (inner, fs) = (v.0.persist.clone(), v.fs());
        let sync: fn(&Volume, &crate::File) = |_, f| f.sync_all().unwrap();
        let data: fn(&Volume, &crate::File) = |_, f| f.sync_data().unwrap();
        let all: fn(&Volume, &crate::File) = |v, _| v.sync().unwrap();
        let sized: fn(&Volume, &crate::File) = |v, f| {
            f.set_len(20_480).unwrap();
            super::super::writeback::write_back_all(&v.0.persist, false).unwrap();
        };
        let renamed: fn(&Volume, &crate::File) = |v, _| {
            v.fs().write("/over", b"old").unwrap();
            v.fs().rename("/0", "/over").unwrap();
        };
        for (n, makes_durable) in [sync, data, all, sized, renamed].into_iter().enumerate() {
            for turn in 0..2 {
                let f = fs.create("/0").unwrap();
                f.write_back_at(&[7; 4096], 16_384).unwrap();
                if turn == 1 {
                    // Captured as far as the gap before.
                    super::super::writeback::write_back_all(&inner, false).unwrap();
                }
                makes_durable(&v, &f);
                commit::seal_and_commit(&inner).unwrap();
                checkpoint::checkpoint(&inner).unwrap();
                let name = if n == 4 { "/over" } else { "/0" };
                let found = device.after_crash().fs().read(name).unwrap();
                assert_eq!(found.len(), 20_480, "case {n}, turn {turn}");
                assert!(found[..16_384].iter().all(|b| *b == 0) && found[16_384..] == [7; 4096]);
                v.fs().unlink(name).unwrap();
            }
        }
        let f = fs.create("/0").unwrap();
        f.write_back_at(&[7; 4096], 16_384).unwrap();
        v.close().unwrap();
        assert_eq!(device.after_crash().fs().read("/0").unwrap().len(), 20_480);
    }

    /// A page that another lane than the file's home appended was noted in that lane's slot alone,
    /// and the notes had been taken before the size was read: the capture had the size, and not the
    /// page.
    #[test]
    fn a_page_appended_behind_the_taking_of_the_notes_is_captured_with_the_size() {
        let (v, device) = volume(64);
        let (inner, fs) = (v.0.persist.clone(), v.fs());
        fs.write("/log", [7; 5000]).unwrap();
        v.sync().unwrap();
        let mut log = fs.open("/log", OpenOptions::new().append(true)).unwrap();
        log.write_all(&[7; 4096]).unwrap();
        let guard = crossbeam_epoch::pin();
        let inode = inner.memfs.inodes.get(log.stat().unwrap().ino, &guard).unwrap();
        let held = inode.data().unwrap().lock_writeback();
        std::thread::scope(|s| {
            let captures = s.spawn(|| {
                let lock = inode.sync_lock.lock();
                write_back_held(&inner, inode, &lock, For::Later, With::Nothing, usize::MAX).unwrap()
            });
            while inode.has(super::DIRTY) {
                std::thread::yield_now();
            }
            // One of them is in another lane than the file's home.
            let together = std::sync::Barrier::new(3);
            std::thread::scope(|s| {
                for _ in 0..3 {
                    s.spawn(|| {
                        log.append(&[7; 4096]).unwrap();
                        together.wait();
                    });
                }
            });
            drop(held);
            assert!(captures.join().unwrap() >= 5);
        });
        checkpoint::checkpoint(&inner).unwrap();
        let bytes = device.after_crash().fs().read("/log").unwrap();
        assert_eq!((bytes.iter().position(|b| *b != 7), bytes.len()), (None, 5000 + 4 * 4096));
    }

    /// Where a write made the file longer between the reading of its size and the image of its last
    /// page, that page was to have a second block, which nobody had promised: on a volume without a
    /// free one fsync failed with ENOSPC, though each write had succeeded.
    #[test]
    fn an_extension_beside_an_fsync_takes_no_block_that_was_not_promised() {
        for readings in 1..=2 {
            let (v, device) = volume(16);
            let (inner, fs) = (v.0.persist.clone(), v.fs());
            let mut log = fs.open("/log", OpenOptions::new().append(true).create(true)).unwrap();
            let guard = crossbeam_epoch::pin();
            let inode = inner.memfs.inodes.get(log.stat().unwrap().ino, &guard).unwrap();
            v.sync().unwrap();
            v.checkpoint().unwrap();
            log.write_all(&[7; 5000]).unwrap();
            let mut others = 0;
            while inner.store.reserve(0, 1) {
                others += 1;
            }
            let beside = fs.open("/log", OpenOptions::new().append(true)).unwrap();
            after_reading_size(readings, move || {
                beside.append(&[7; 100]).unwrap();
            });
            let sync = || {
                let lock = inode.sync_lock.lock();
                write_back_held(&inner, inode, &lock, For::Sync, With::Nothing, usize::MAX)
            };
            let r = sync();
            after_reading_size(u32::MAX, || ());
            assert!(r.is_ok(), "longer after {readings} readings of the size: {r:?}");
            let found = device.after_crash().fs().read("/log").unwrap();
            assert!(matches!(found.len(), 5000 | 5100), "{} bytes", found.len());
            assert!(found.iter().all(|b| *b == 7));
            sync().unwrap();
            while log.stat().unwrap().size < 5100 {
                assert!(readings > 1, "nothing came between");
                log.append(&[7; 100]).unwrap();
            }
            sync().unwrap();
            assert_eq!(device.after_crash().fs().read("/log").unwrap(), [7; 5100]);
            assert_eq!(inner.store.space().reserved, others, "promises that no page has");
            inner.store.unreserve(0, others);
        }
    }

    /// What is captured has the rights of its moment. A change of them that is durable and folded
    /// by the time it is handed over must not be undone by it.
    #[test]
    fn a_capture_does_not_undo_a_change_of_rights_that_was_folded_meanwhile() {
        let mut between = 0;
        for readings in 1..7 {
            let (v, device) = volume(64);
            let fs = v.fs();
            fs.write("/f", b"content").unwrap();
            v.sync().unwrap();
            let file = fs.open("/f", OpenOptions::new().write(true)).unwrap();
            file.write_all_at(b"more", 3).unwrap();
            let (beside, of) = (v.clone(), v.0.persist.clone());
            after_reading_size(readings, move || {
                beside.fs().chmod("/f", 0o600).unwrap();
                commit::seal_and_commit(&of).unwrap();
                checkpoint::checkpoint(&of).unwrap();
            });
            let r = file.sync_all();
            after_reading_size(u32::MAX, || ());
            r.unwrap();
            if fs.stat("/f").unwrap().mode & 0o7777 != 0o600 {
                continue;
            }
            between += 1;
            let left = device.after_crash();
            let mode = left.fs().stat("/f").unwrap().mode & 0o7777;
            assert_eq!(mode, 0o600, "changed after {readings} readings of the size");
        }
        assert!(between > 0, "nothing came between");
    }

    /// Between the fold of its end and the end of the checkpoint a file's inode is in memory still,
    /// dirty as it was. What is handed to the store then is an update of an inode that it does not
    /// know: it kept it for the next with that number.
    #[test]
    fn a_file_whose_end_is_being_folded_is_not_written_back() {
        let (v, device) = volume(64);
        let (inner, fs) = (v.0.persist.clone(), v.fs());
        (0..20).for_each(|n| fs.write(format!("/{n}"), b"content").unwrap());
        v.sync().unwrap();
        for n in 0..10 {
            fs.write(format!("/{n}"), b"more content").unwrap();
            fs.unlink(format!("/{n}")).unwrap();
        }
        assert_eq!(reaper::reap(&inner, true).unwrap(), 10);
        commit::seal_and_commit(&inner).unwrap();
        let (did, done) = mpsc::channel();
        let volume = inner.clone();
        // The first write is that of the tree.
        device.at_write(move || {
            assert!(volume.store.folded_epoch() >= volume.journal.committed());
            did.send(writeback::sync_all(&volume)).unwrap();
        });
        checkpoint::checkpoint(&inner).unwrap();
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
        let (inner, fs) = (v.0.persist.clone(), v.fs());
        fs.write("/a", b"content").unwrap();
        v.sync().unwrap();
        fs.write("/a", b"more content").unwrap();
        fs.unlink("/a").unwrap();
        reaper::reap(&inner, false).unwrap();
        while !inner.reaper.lock().is_due() {
            crossbeam_epoch::pin().flush();
        }
        let (did, done) = mpsc::channel();
        let volume = inner.clone();
        device.at_write(move || did.send(reaper::reap(&volume, false).unwrap()).unwrap());
        v.sync().unwrap();
        assert_eq!(done.recv().unwrap(), 0, "an update of it is on its way to the store");
        assert_eq!(reaper::reap(&inner, true).unwrap(), 1);
    }
}
