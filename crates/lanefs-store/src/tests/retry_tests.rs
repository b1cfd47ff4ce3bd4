//! Checkpoints that fail once, for want of room or because something could not be read, and are
//! made again: nothing that was acknowledged is forgotten by the second. And checkpoints without a
//! fold, which write again what others have under way.

use crate::api::{FoldInput, FormatOptions, OpenOptions, PageRead, Transaction};
use crate::device::{Device, Fault, FaultyDevice, HookedDevice, Kind, MemoryDevice, MemoryImage, Plan};
use crate::error::{Result, StoreError};
use crate::log::heat::Heat;
use crate::log::segment::State;
use crate::store::Store;
use crate::testing::{file, first_byte, leave, named, page, update};
use lanefs_format::batch::{self, InodeRecord, TailUpdate};
use lanefs_format::record::{Effect, encode_group};
use lanefs_format::{Block, Ino, ROOT_INO, Version};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::time::Duration;

type Hooked = Arc<HookedDevice<MemoryDevice>>;

/// A new volume with segments of 16 blocks and one log.
fn fresh(o: &OpenOptions) -> (Arc<Store>, Hooked) {
    made(true, o)
}

fn made(packed_inodes: bool, o: &OpenOptions) -> (Arc<Store>, Hooked) {
    let d: Hooked = Arc::new(HookedDevice::new(MemoryDevice::new(16 << 20).unwrap()));
    let format = FormatOptions { segment_blocks: 16, mlogs: 1, packed_inodes, ..FormatOptions::default() };
    let devices: Vec<Arc<dyn Device>> = vec![d.clone()];
    Store::format(&devices, &format).unwrap();
    (Store::open(devices, o).unwrap().0, d)
}

fn reopen(d: Arc<dyn Device>) -> Arc<Store> {
    Store::open(vec![d], &OpenOptions::default()).unwrap().0
}

/// Folds files 20 and on.
fn make_files(s: &Store, n: u64) {
    let e = s.info().last_epoch + 1;
    let made: Vec<u8> = (20..20 + n).flat_map(|ino| file(e, ino)).collect();
    s.commit_epoch(e, vec![(0, made.clone())]).unwrap();
    s.checkpoint(|| Ok(FoldInput { epoch: e, groups: vec![made.into()] })).unwrap();
}

/// An fsync of a file of so many pages: of these.
fn fsync(s: &Store, ino: u64, size: u64, pages: Vec<(u64, Box<Block>)>) -> Result<()> {
    s.submit(Transaction { durable: true, inodes: vec![update(ino, size, pages)], ..Transaction::default() })
}

fn in_place(s: &Store) -> Result<()> {
    s.engine.checkpoints().in_place(&mut s.engine.maintenance.lock())
}

/// Fsyncs of so many files and pages; then a checkpoint that finds room for `from` blocks only, is
/// made again, and a reopening; then the same with one block more, until the first succeeds.
fn every_block_is_the_last(packed: bool, files: u64, pages: u64, memory_bytes: usize, from: u32) {
    let content = |ino: u64, p: u64| (ino + p) as u8 | 1;
    for (refused, k) in (from..).enumerate() {
        let (s, d) = made(packed, &OpenOptions { memory_bytes, ..OpenOptions::default() });
        make_files(&s, files);
        for ino in 20..20 + files {
            fsync(&s, ino, pages, (0..pages).map(|p| (p, page(content(ino, p)))).collect()).unwrap();
        }
        let first = {
            let mut m = s.engine.maintenance.lock();
            let claimed = leave(&s, k);
            let r = s.engine.checkpoints().in_place(&mut m);
            claimed.into_iter().for_each(|seg| s.engine.log.segments.release(seg));
            if r.is_err() {
                s.engine.checkpoints().in_place(&mut m).unwrap();
            }
            r
        };
        assert!(matches!(first, Ok(()) | Err(StoreError::NoSpace)), "{first:?}");
        assert_eq!(s.audit().unwrap().problems, [""; 0], "room for {k} blocks");
        drop(s);
        let s = reopen(d);
        for (ino, p) in (20..20 + files).flat_map(|ino| (0..pages).map(move |p| (ino, p))) {
            assert_eq!(
                first_byte(&s, ino, p),
                Some(content(ino, p)),
                "room for {k} blocks: inode {ino} page {p}"
            );
        }
        assert_eq!(s.audit().unwrap().problems, [""; 0], "room for {k} blocks, opened again");
        if first.is_ok() {
            assert!(refused > 5, "{refused}");
            return;
        }
    }
}

/// Leaves of the usage table that were not written were forgotten: the next mount took the blocks
/// that they were to mark for free.
#[test]
fn a_checkpoint_without_room_for_its_tables_leaves_them_to_the_next() {
    every_block_is_the_last(false, 40, 40, 64 << 20, 125);
    every_block_is_the_last(true, 40, 40, 64 << 20, 95);
}

/// With little memory the leaves of the inode table are written among the inodes: those that come
/// behind an error stayed marked as listed, and were never written again.
#[test]
fn a_checkpoint_without_room_in_the_middle_of_its_inodes_leaves_the_rest_to_the_next() {
    every_block_is_the_last(false, 290, 1, 1 << 12, 250);
    every_block_is_the_last(true, 290, 1, 1 << 12, 1);
}

/// A checkpoint that was to free space for a transaction, and found none for itself, ended the
/// transaction with its own error at the first try, though others gave space back meanwhile.
#[test]
fn a_transaction_tries_again_when_a_checkpoint_has_found_no_space_for_itself() {
    let mut refused = Vec::new();
    for k in 1..10 {
        let (s, d) = made(false, &OpenOptions::default());
        make_files(&s, 40);
        (20..60).for_each(|ino| fsync(&s, ino, 1, vec![(0, page(1))]).unwrap());
        let claimed = leave(&s, k);
        let store = s.clone();
        // While the checkpoint writes that for which it has found space.
        d.before(Kind::Write, move || {
            claimed.into_iter().for_each(|seg| store.engine.log.segments.release(seg));
            Ok(())
        });
        let r = fsync(&s, 20, 1, vec![(0, page(2))]);
        assert!(d.is_done(Kind::Write), "the transaction had space without a checkpoint");
        assert_eq!(s.engine.totals.checkpoints.failed.load(Relaxed), 1, "checkpoints without space");
        assert!(matches!(r, Ok(()) | Err(StoreError::NoSpace)), "space for {k} blocks: {r:?}");
        assert_eq!(s.audit().unwrap().problems, [""; 0], "space for {k} blocks");
        if r.is_err() {
            refused.push(k);
            continue;
        }
        drop(s);
        let s = reopen(d);
        let found: Vec<_> = (20..60).map(|ino| first_byte(&s, ino, 0)).collect();
        assert_eq!((found[0], &found[1..]), (Some(2), &[Some(1); 39][..]), "space for {k} blocks");
        assert_eq!(s.audit().unwrap().problems, [""; 0], "space for {k} blocks, opened again");
    }
    assert_eq!(refused, [0; 0], "blocks for which the checkpoint had space");
}

/// Nothing is gained by checkpoints without end where nobody gives anything back.
#[test]
fn a_transaction_gives_up_when_no_checkpoint_finds_space() {
    let (s, _) = made(false, &OpenOptions::default());
    make_files(&s, 40);
    (20..60).for_each(|ino| fsync(&s, ino, 1, vec![(0, page(1))]).unwrap());
    let claimed = leave(&s, 5);
    assert!(matches!(fsync(&s, 20, 1, vec![(0, page(2))]), Err(StoreError::NoSpace)));
    let failed = s.engine.totals.checkpoints.failed.load(Relaxed);
    assert!((2..=4).contains(&failed), "{failed} checkpoints found no space");
    claimed.into_iter().for_each(|seg| s.engine.log.segments.release(seg));
    fsync(&s, 20, 1, vec![(0, page(3))]).unwrap();
    assert_eq!(first_byte(&s, 20, 0), Some(3));
    assert_eq!(s.audit().unwrap().problems, [""; 0]);
}

/// Every 32nd transaction of a lane makes a checkpoint where many inodes are dirty. If that finds
/// no space, the transaction may have all that it needs.
#[test]
fn a_checkpoint_made_ahead_that_finds_no_space_is_not_the_error_of_a_transaction() {
    let (s, _) = made(false, &OpenOptions::default());
    make_files(&s, 40);
    let write = |ino, byte| {
        let inodes = vec![update(ino, 1, vec![(0, page(byte))])];
        s.submit(Transaction { durable: false, inodes, ..Transaction::default() })
    };
    (20..60).for_each(|ino| write(ino, 1).unwrap());
    while s.engine.log.sections.begun(0) % 32 != 31 {
        write(21, 1).unwrap();
    }
    let log = &s.engine.log;
    let mut claimed: Vec<_> = std::iter::from_fn(|| log.segments.claim(0, State::Chain, 0)).collect();
    let m = &log.mlogs[0];
    while m.alloc(&log.segments, Heat::Node, 1, 1, true, &mut Vec::new()).is_ok() {}
    assert!(s.engine.metadata_pressure());
    let r = write(20, 2);
    assert_eq!(s.engine.totals.checkpoints.failed.load(Relaxed), 1, "checkpoints without space");
    r.unwrap();
    claimed.drain(..).for_each(|seg| log.segments.release(seg));
    in_place(&s).unwrap();
    assert_eq!(first_byte(&s, 20, 0), Some(2));
    assert_eq!(s.audit().unwrap().problems, [""; 0]);
}

/// The inode was written out, and counted as done though the table did not know where: an older one
/// of it came back.
#[test]
fn an_inode_whose_place_in_the_table_cannot_be_read_is_written_by_the_next_checkpoint() {
    let (s, d) = fresh(&OpenOptions { cache_bytes: 0, ..OpenOptions::default() });
    make_files(&s, 4);
    let write = |b| fsync(&s, 20, 2, vec![(0, page(b)), (1, page(b))]).unwrap();
    write(1);
    in_place(&s).unwrap();
    write(2);
    s.engine.inodes.table.evict_clean();
    let (device, what, message) = ("d".into(), "read", "told to".into());
    d.before(Kind::Read, || Err(StoreError::Io { device, what, offset: 0, message, errno: libc::EIO }));
    assert!(matches!(in_place(&s), Err(StoreError::Io { .. })));
    s.healthy().unwrap();
    in_place(&s).unwrap();
    assert_eq!(s.audit().unwrap().problems, [""; 0]);
    drop(s);
    let s = reopen(d);
    assert_eq!([0, 1].map(|p| first_byte(&s, 20, p)), [Some(2), Some(2)]);
    assert_eq!(s.audit().unwrap().problems, [""; 0]);
}

/// Makes a checkpoint in place that reads between its position and what it carries over, and calls
/// `f` there.
fn between_position_and_carry(
    s: &Arc<Store>,
    d: &Hooked,
    f: impl FnOnce(&Store) -> Result<()> + Send + 'static,
) {
    // An inode to be written out, whose entry in the table has to be read.
    fsync(s, 21, 1, vec![(0, page(9))]).unwrap();
    s.engine.inodes.table.evict_clean();
    let store = s.clone();
    d.before(Kind::Read, move || f(&store));
    in_place(s).unwrap();
    assert!(d.is_done(Kind::Read));
}

const PAGES: u64 = 20;

/// File 20, made by an fsync and not folded, beside 21, which is.
fn a_file_to_be_carried() -> (Arc<Store>, Hooked) {
    let (s, d) = fresh(&OpenOptions { cache_bytes: 0, ..OpenOptions::default() });
    let e = s.info().last_epoch + 1;
    let other = file(e, 21);
    s.commit_epoch(e, vec![(0, other.clone())]).unwrap();
    s.checkpoint(|| Ok(FoldInput { epoch: e, groups: vec![other.into()] })).unwrap();
    let inodes = vec![update(20, PAGES, (0..PAGES).map(|p| (p, page(p as u8 + 1))).collect())];
    let groups = file(e + 1, 20);
    s.submit(Transaction { durable: true, groups, inodes, ..Transaction::default() }).unwrap();
    (s, d)
}

fn pages_are_whole(d: Hooked) {
    let s = reopen(d);
    for p in 0..PAGES {
        assert_eq!(first_byte(&s, 20, p), Some(p as u8 + 1), "page {p}");
    }
    assert_eq!(s.audit().unwrap().problems, [""; 0]);
}

/// Both records lie behind the position, with one version: recovery took the fsync's, which says of
/// the attributes only, and passed over the other.
#[test]
fn an_fsync_between_position_and_carry_does_not_stand_for_what_is_carried() {
    let (s, d) = a_file_to_be_carried();
    between_position_and_carry(&s, &d, |s| fsync(s, 20, PAGES, Vec::new()));
    drop(s);
    pages_are_whole(d);
}

/// As programs before this one left it.
#[test]
fn of_two_records_of_one_version_the_one_that_says_all_counts() {
    let (s, d) = a_file_to_be_carried();
    between_position_and_carry(&s, &d, |s| {
        let version = s.engine.inodes.get(Ino(20), &s.engine.log.io)?.unwrap().lock().state.version() + 1;
        let attrs = update(20, PAGES, Vec::new()).attrs;
        let (ino, tail, unmaps, runs) = (Ino(20), TailUpdate::Same, Vec::new(), Vec::new());
        let mut bytes = Vec::new();
        batch::put_message_head(&mut bytes, &[], 1);
        let (xattrs, prealloc) = (None, None);
        batch::put_inode(
            &mut bytes,
            &InodeRecord { ino, version, attrs, xattrs, tail, unmaps, runs, prealloc },
        );
        let section = s.engine.log.sections.enter(0);
        let placed = s.engine.log.place(0, s.engine.log.fsync_head(), bytes, 0, true)?;
        let mask = s.engine.log.write_placed([&placed].into_iter())?;
        s.engine.log.links_answered(std::slice::from_ref(&placed));
        drop(section.leave());
        s.engine.log.flush_placed(&[placed], &[], mask)
    });
    drop(s);
    pages_are_whole(d);
}

/// One map node after the other cannot be read, once: the unmapping says so, and has changed
/// nothing.
#[test]
fn an_unmapping_that_cannot_read_the_map_changes_nothing() {
    const FILE: u64 = 3 * 256;
    let (s, d) = fresh(&OpenOptions { cache_bytes: 0, memory_bytes: 0, ..OpenOptions::default() });
    make_files(&s, 1);
    fsync(&s, 20, FILE, (0..FILE).map(|p| (p, page(p as u8 | 1))).collect()).unwrap();
    in_place(&s).unwrap();
    s.close().unwrap();
    drop(s);
    let mut refused = 0;
    for good in 0.. {
        let copy = Arc::new(FaultyDevice::new(snapshot_of(d.inner()), Plan::none()));
        let o = OpenOptions { cache_bytes: 0, ..OpenOptions::default() };
        let s = Store::open(vec![copy.clone()], &o).unwrap().0;
        s.load_inode(Ino(20)).unwrap();
        copy.set_plan(Plan::none().nth(Kind::Read, good, Fault::Error(libc::EIO)));
        let r = s.unmap(0, Ino(20), 10..FILE, None);
        copy.set_plan(Plan::none());
        let was_refused = r.is_err();
        refused += u64::from(was_refused);
        for p in 0..FILE {
            let expected = (was_refused || p < 10).then_some(p as u8 | 1);
            assert_eq!(first_byte(&s, 20, p), expected, "page {p}, {good} reads went well");
        }
        s.unmap(0, Ino(20), 10..FILE, None).unwrap();
        fsync(&s, 20, FILE, Vec::new()).unwrap();
        drop(s);
        let s = reopen(copy);
        assert!((0..FILE).all(|p| first_byte(&s, 20, p).is_some() == (p < 10)));
        if !was_refused {
            assert!(refused >= 3, "{refused}");
            return;
        }
    }
}

/// A file is cut and grows again between two fsyncs: recovery had the bytes back that were cut,
/// since the tail had only become shorter.
#[test]
fn a_tail_that_was_cut_and_grew_again_is_zeros_where_it_grew() {
    let (s, d) = fresh(&OpenOptions::default());
    make_files(&s, 1);
    let sized = |bytes: u64, pages| {
        let mut u = update(20, 0, pages);
        u.attrs.size = bytes;
        s.submit(Transaction { durable: bytes != 50, inodes: vec![u], ..Transaction::default() }).unwrap();
    };
    sized(100, vec![(0, page(7))]);
    sized(50, Vec::new());
    sized(100, Vec::new());
    drop(s);
    let s = reopen(d);
    let mut b = Block::zeroed();
    s.read_pages(Ino(20), 0, &mut [PageRead { block: &mut b, hole: false }]).unwrap();
    assert_eq!((b.0[49], b.0[50], b.0[99]), (7, 0, 0));
}

/// Attributes that nobody can store were refused once, and forgotten when the store tried again by
/// itself.
#[test]
fn attributes_that_are_too_long_are_refused_before_anything_is_taken() {
    let (s, _) = fresh(&OpenOptions::default());
    make_files(&s, 1);
    fsync(&s, 20, 1, vec![(0, page(1))]).unwrap();
    let mut u = update(20, 1, vec![(0, page(2))]);
    u.xattrs = Some(vec![0; lanefs_format::XATTR_BLOB_MAX + 1]);
    let tx = Transaction { durable: true, inodes: vec![u], ..Transaction::default() };
    assert!(matches!(s.submit(tx), Err(StoreError::NoSpace)));
    assert_eq!(first_byte(&s, 20, 0), Some(1));
}

/// What of a device is written, whatever is under way.
fn snapshot(d: &Hooked) -> Arc<MemoryDevice> {
    Arc::new(snapshot_of(d.inner()))
}

fn snapshot_of(d: &MemoryDevice) -> MemoryDevice {
    MemoryImage::capture(d).unwrap().fork().unwrap()
}

/// Runs `call` in a thread of its own, and waits for its end; if it waits for something itself, not
/// for long.
fn try_meanwhile(call: impl FnOnce() -> Result<()> + Send + 'static) {
    let (did, done) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = call();
        let _ = did.send(());
    });
    let _ = done.recv_timeout(Duration::from_millis(500));
}

/// The record named a page whose write was under way, and what was written behind it said that all
/// before was durable.
#[test]
fn what_a_failed_checkpoint_carried_is_durable_only_with_the_data_that_it_names() {
    let (s, d) = a_file_to_be_carried();
    let (store, device) = (s.clone(), d.clone());
    let (did, done) = mpsc::channel();
    // While this write is under way, a checkpoint fails behind what it carried ...
    d.before(Kind::Write, move || {
        let claimed = {
            let mut m = store.engine.maintenance.lock();
            m.orphans_changed = m.orphans.insert(Ino(99));
            leave(&store, 0)
        };
        let s = store.clone();
        try_meanwhile(move || {
            let mut m = s.engine.maintenance.lock();
            let r = s.engine.checkpoints().in_place(&mut m);
            m.orphans.clear();
            claimed.into_iter().for_each(|seg| s.engine.log.segments.release(seg));
            r
        });
        // ... and another call says, in the same log, what was durable before it. Then the power
        // fails.
        let s = store.clone();
        let groups = file(store.info().last_epoch + 1, 22);
        try_meanwhile(move || s.submit(Transaction { durable: true, groups, ..Transaction::default() }));
        did.send(snapshot(&device)).unwrap();
        Ok(())
    });
    let inodes = vec![update(20, PAGES, vec![(0, page(77))])];
    s.submit(Transaction { durable: false, inodes, ..Transaction::default() }).unwrap();
    drop(s);
    let s = reopen(done.recv().unwrap());
    let mut b = Block::zeroed();
    s.read_pages(Ino(20), 0, &mut [PageRead { block: &mut b, hole: false }]).unwrap();
    assert!(b.0[0] == 1 || b.0[0] == 77);
}

/// A file replaced by a rename, and an fsync: names and content in one message. A checkpoint wrote
/// the names again while the message was under way.
#[test]
fn what_is_carried_has_no_names_without_their_content() {
    let (s, d) = fresh(&OpenOptions::default());
    make_files(&s, 2);
    let e = s.info().last_epoch;
    fsync(&s, 20, 1, vec![(0, page(1))]).unwrap();
    let (store, device) = (s.clone(), d.clone());
    let (did, done) = mpsc::channel();
    d.before(Kind::Write, move || {
        try_meanwhile(move || in_place(&store));
        did.send(snapshot(&device)).unwrap();
        Ok(())
    });
    let Effect::Set { dir, cookie, name, kind, .. } = named(20, b"f20") else { unreachable!() };
    let set = Effect::Set { dir, cookie, name, ino: Ino(21), old: Ino(20), kind };
    let Effect::Set { cookie, name, .. } = named(21, b"f21") else { unreachable!() };
    let clr = Effect::Clr { dir, cookie, name, old: Ino(21), kind };
    let mut groups = Vec::new();
    encode_group(&mut groups, Version { epoch: e + 1, ts: 1000, lane: 0 }, &[set, clr]);
    let inodes = vec![update(21, 1, vec![(0, page(2))])];
    s.submit(Transaction { durable: true, groups, inodes, ..Transaction::default() }).unwrap();
    drop(s);
    let s = reopen(done.recv().unwrap());
    let names = s.load_bucket(ROOT_INO, 0).unwrap().entries;
    let ino = names.iter().find(|n| &*n.name == b"f20").unwrap().ino;
    assert_eq!((ino, first_byte(&s, ino.0, 0)), (Ino(20), Some(1)));
}

/// Of what was committed before the position an epoch was folded; behind it lies one that is
/// committed, too, and one of which an fsync logged names. Neither was written again.
#[test]
fn what_lies_behind_the_epoch_that_is_folded_is_carried_over() {
    let (s, d) = fresh(&OpenOptions::default());
    make_files(&s, 2);
    let e = s.info().last_epoch;
    let made: Vec<Vec<u8>> = (1..4).map(|n| file(e + n, 30 + n)).collect();
    for (n, made) in (1..3).zip(&made) {
        s.commit_epoch(e + n, vec![(0, made.clone())]).unwrap();
        fsync(&s, 30 + n, 1, vec![(0, page(n as u8))]).unwrap();
    }
    let (groups, inodes) = (made[2].clone(), vec![update(33, 1, vec![(0, page(3))])]);
    s.submit(Transaction { durable: true, groups, inodes, ..Transaction::default() }).unwrap();
    s.fold_committed(|| Ok(FoldInput { epoch: e + 1, groups: vec![made[0].clone().into()] })).unwrap();
    assert_eq!(s.folded_epoch(), e + 1);
    let again = reopen(snapshot(&d));
    let names = again.load_bucket(ROOT_INO, 0).unwrap().entries;
    for n in 1..4 {
        let ino = 30 + n;
        assert!(names.iter().any(|entry| entry.ino == Ino(ino)), "the name of file {ino}");
        assert_eq!(first_byte(&again, ino, 0), Some(n as u8), "file {ino}");
    }
}
