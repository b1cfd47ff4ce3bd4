//! What recovery makes of a log: which slot it goes on from, which messages count, and what it may
//! write over.

use crate::common::*;
use lanefs_format::record::Effect;
use lanefs_store::device::{Crash, Fate, MemoryDevice, MemoryImage, Payload, Recorder};
use lanefs_store::*;
use std::sync::Arc;

/// A volume with two mlogs, opened, and its device.
fn two_mlogs() -> (Arc<Store>, Arc<MemoryDevice>) {
    let d = Arc::new(MemoryDevice::new(8 << 20).unwrap());
    Store::format(&[d.clone() as Dev], &FormatOptions { mlogs: 2, ..format_options() }).unwrap();
    let o = OpenOptions { mlogs: 2, ..OpenOptions::default() };
    let s = Store::open(vec![d.clone() as Dev], &o).unwrap().0;
    assert_eq!(s.info().mlogs, 2);
    (s, d)
}

/// A file with so many pages, made durable with its name by this lane.
fn fsync_new(s: &Store, lane: usize, ino: u64, epoch: u64, pages: u64) {
    let name = format!("file {ino}");
    let g = group(epoch, ino, &[new_file(ino), set(name.as_bytes(), ino, 0)]);
    let pages = (0..pages).map(|n| (n, page(ino + n))).collect();
    s.submit(Transaction { lane, ..tx(true, g, vec![update(ino, 1 << 20, pages)]) }).unwrap();
}

/// The offset of the last block that `pick` takes.
fn find(bytes: &[u8], pick: impl FnMut(&[u8]) -> bool) -> u64 {
    bytes.chunks(BLOCK_SIZE).rposition(pick).unwrap() as u64 * BLOCK_SIZE as u64
}

/// Opening went back to the older slot: what was acknowledged since was lost without a word, and
/// blocks of its tree may be in use again. To go back to what can be read is a repair.
#[test]
fn a_checkpoint_whose_root_directory_is_damaged_is_an_error_of_opening() {
    let m = Arc::new(MemoryDevice::new(4 << 20).unwrap());
    let d: Dev = m.clone();
    Store::format(std::slice::from_ref(&d), &format_options()).unwrap();
    let (s, _) = open(&d);
    let e = s.info().last_epoch + 1;
    fold(&s, e, vec![group(e, 1, &[new_file(20), set(b"first", 20, 0)])]);
    let before = m.to_vec();
    fold(&s, e + 1, vec![group(e + 1, 2, &[new_file(21), set(b"second", 21, 0)])]);
    s.shutdown();
    let after = m.to_vec();
    let is_root = |b: &[u8]| b.starts_with(b"LFSn\x01") && b[16..24] == ROOT_INO.0.to_le_bytes();
    // Both checkpoints wrote it, to a place of its own each.
    let at =
        after.chunks(BLOCK_SIZE).zip(before.chunks(BLOCK_SIZE)).position(|(b, old)| is_root(b) && b != old);
    m.poke(at.unwrap() as u64 * BLOCK_SIZE as u64, &[0; BLOCK_SIZE]).unwrap();
    let e = Store::open(vec![d.clone()], &OpenOptions::default()).map(|_| ()).unwrap_err();
    assert!(matches!(e, StoreError::Corrupt { .. }), "{e}");
    let o = fsck::FsckOptions { repair: true, threads: 1, ..fsck::FsckOptions::default() };
    let report = fsck::check(vec![d.clone()], &o, &|_| ()).unwrap();
    assert!(!report.is_clean() && report.left() == 0, "{:#?}", report.problems);
    let (s, _) = open(&d);
    assert!([20, 21].iter().all(|i| s.load_inode(Ino(*i)).unwrap().is_some()));
}

/// Of each mlog its own batches say what was durable, not those of the first.
#[test]
fn what_the_second_mlog_had_durable_counts_though_its_data_is_damaged_since() {
    let (s, d) = two_mlogs();
    let e = s.info().last_epoch + 1;
    // The batch of each file says that the file before was durable.
    for ino in [20, 40, 60] {
        fsync_new(&s, 1, ino, e, 1);
    }
    s.shutdown();
    let at = find(&d.to_vec(), |b| b == page(20).0);
    d.poke(at, &[0; BLOCK_SIZE]).unwrap();
    let (s, r) = open(&(d as Dev));
    assert_eq!((r.batches, r.batches_dropped, r.lost), (3, 0, 0));
    assert_eq!(lookup(&s, b"file 20"), Some(Ino(20)));
    let mut b = Block::zeroed();
    assert!(s.read_pages(Ino(20), 0, &mut [PageRead { block: &mut b, hole: false }]).is_err());
}

/// It was captured before, and waited for space or for its turn until the change was folded: what
/// it brought was the mode from before, and no group told of the change any more.
#[test]
fn an_update_that_is_older_than_a_folded_change_of_rights_does_not_take_it_back() {
    let acl = |value: &[u8]| {
        let name = b"system.posix_acl_access";
        let head = [&[name.len() as u8][..], &(value.len() as u32).to_le_bytes()].concat();
        [&head[..], name, value].concat()
    };
    let user = [&[6, 1, 0, 0, 0][..], b"user.x", b"1"].concat();
    for (rights_logged, later) in [(true, 0o600), (false, 0o644)] {
        let d = fresh(4 << 20);
        let (s, _) = open(&d);
        let e = s.info().last_epoch + 1;
        fold(&s, e, vec![group(e, 1, &[new_file(20), set(b"f", 20, 0)])]);
        let old = || InodeUpdate {
            attrs: Attrs { mode: libc::S_IFREG | 0o644, ..attrs(4096) },
            rights_logged,
            xattrs: Some([&acl(b"old")[..], &user].concat()),
            ..update(20, 4096, vec![(0, page(1))])
        };
        let (ino, generation, mode, uid, gid) = (Ino(20), 0, libc::S_IFREG | 0o600, 7, 8);
        let list = acl(b"new");
        let rights = Effect::Rights { ino, generation, mode, uid, gid, acls: Some(&list) };
        fold(&s, e + 1, vec![group(e + 1, 2, &[rights])]);
        s.submit(tx(true, Vec::new(), vec![old()])).unwrap();
        s.shutdown();
        let now = open(&d).0.load_inode(ino).unwrap().unwrap();
        assert_eq!(now.attrs.mode & 0o7777, later);
        assert_eq!(now.attrs.size, 4096);
        if rights_logged {
            assert_eq!((now.attrs.uid, now.attrs.gid), (7, 8));
            assert!(now.xattrs == [&acl(b"new")[..], &user].concat(), "{:?}", now.xattrs);
        }
    }
}

/// What is left of it lies in the log, and would count as a part of another epoch of that number.
#[test]
fn the_number_of_an_epoch_of_which_a_share_arrived_is_not_used_again() {
    let (s, d) = two_mlogs();
    let before = d.to_vec();
    let e = s.info().last_epoch + 1;
    let share = |ino: u64| group(e, ino, &[new_file(ino), set(format!("file {ino}").as_bytes(), ino, 0)]);
    s.commit_epoch(e, vec![(0, share(20)), (1, share(21))]).unwrap();
    s.shutdown();
    let after = d.to_vec();
    let is_batch = |b: &[u8]| b.starts_with(b"LFSn\x08");
    let shares: Vec<usize> = (0..after.len())
        .step_by(BLOCK_SIZE)
        .filter(|at| is_batch(&after[*at..]) && !is_batch(&before[*at..]))
        .collect();
    assert_eq!(shares.len(), 2);
    for at in shares {
        let d = MemoryDevice::from_bytes(&after).unwrap();
        d.poke(at as u64, &[0; BLOCK_SIZE]).unwrap();
        let (s, r) = open(&(Arc::new(d) as Dev));
        assert_eq!((r.batches, r.epoch), (1, e - 1), "the epoch is not whole");
        assert_eq!(s.info().last_epoch, e);
    }
}

/// An fsync wrote it, whose groups made nothing: recovery drops it again, and what it had counts
/// for free.
#[test]
fn the_blocks_of_an_inode_that_was_never_born_are_free_again() {
    let d = fresh(4 << 20);
    let (s, _) = open(&d);
    let pages = (0..5).map(|n| (n, page(n))).collect();
    s.submit(tx(true, Vec::new(), vec![update(20, 5 * 4096, pages)])).unwrap();
    s.shutdown();
    let (s, r) = open(&d);
    assert_eq!((r.inode_updates, s.space().inodes), (1, 1));
    assert_eq!(s.audit().unwrap().problems, [""; 0]);
}

/// An fsync came behind the position of the checkpoint that folded the file's end: its data would
/// be the next file's of that number.
#[test]
fn an_update_of_a_file_that_is_gone_does_not_come_back_in_the_next_with_its_number() {
    let d = fresh(4 << 20);
    let (s, _) = open(&d);
    let e = s.info().last_epoch + 1;
    fold(&s, e, vec![group(e, 1, &[new_file(20), set(b"old", 20, 0)])]);
    s.checkpoint(|| {
        s.submit(tx(true, Vec::new(), vec![update(20, 4096, vec![(0, page(1))])])).unwrap();
        let end = group(e + 1, 2, &[clr(b"old", 20), Effect::Dead { ino: Ino(20), generation: 0 }]);
        Ok(FoldInput { epoch: e + 1, groups: vec![end.into()] })
    })
    .unwrap();
    let Effect::New { ino, parent, mode, uid, gid, rdev, time, target, .. } = new_file(20) else { panic!() };
    let new = Effect::New { ino, parent, generation: 1, mode, uid, gid, rdev, time, target, logged: false };
    let next = |n| InodeUpdate {
        attrs: Attrs { generation: 1, ..attrs(4096) },
        ..update(20, 4096, vec![(0, page(n))])
    };
    // Of several updates, so that it is not taken for an older one by its number.
    s.submit(tx(false, Vec::new(), vec![next(2)])).unwrap();
    s.submit(tx(false, Vec::new(), vec![next(3)])).unwrap();
    s.submit(tx(true, group(e + 2, 3, &[new, set(b"new", 20, 0)]), vec![next(4)])).unwrap();
    s.shutdown();
    let (s, r) = open(&d);
    assert_eq!((r.batches, r.inode_updates), (2, 1));
    assert_eq!((lookup(&s, b"old"), lookup(&s, b"new")), (None, Some(Ino(20))));
    assert!(read(&s, 20, 0).unwrap().0 == page(4).0);
    assert_eq!(s.audit().unwrap().problems, [""; 0]);
}

/// A file is made by an fsync in one mlog, and all its pages are written over by one in the other.
/// No page of the first is anybody's then; but the message with the file's name says that it has
/// them, and has to be believed again when the power goes before recovery's slot is there.
#[test]
fn recovery_does_not_write_over_what_a_message_names_though_another_took_its_place() {
    const PAGES: u64 = 60;
    let (s, d) = two_mlogs();
    let e = s.info().last_epoch + 1;
    fsync_new(&s, 1, 20, e, PAGES);
    let over = (0..PAGES).map(|n| (n, page(1000 + n))).collect();
    s.submit(tx(true, Vec::new(), vec![update(20, 1 << 20, over)])).unwrap();
    s.shutdown();
    let image = MemoryImage::capture(&d).unwrap();
    let recorder = Recorder::new();
    let r = open(&(Arc::new(recorder.wrap(image.fork().unwrap())) as Dev)).1;
    assert_eq!((r.batches_dropped, r.inode_updates), (0, 2));
    let log = recorder.log();
    let is_slot = |p: &Payload| matches!(p, Payload::Bytes(b) if b.starts_with(b"LFSLOT"));
    let slot = log.writes.iter().find(|w| is_slot(&w.payload)).unwrap().issued;
    assert!(log.writes.iter().filter(|w| w.issued < slot).count() > 0);
    for at in 0..=slot {
        let left = Crash::new(&log, at).build(std::slice::from_ref(&image), |_, _| Fate::Whole).unwrap();
        let (s, r) = open(&(Arc::new(left.into_iter().next().unwrap()) as Dev));
        assert_eq!(r.batches_dropped, 0, "event {at} of {slot}");
        assert_eq!(lookup(&s, b"file 20"), Some(Ino(20)));
        assert!((0..PAGES).all(|n| read(&s, 20, n).is_some_and(|b| b.0 == page(1000 + n).0)));
    }
}
