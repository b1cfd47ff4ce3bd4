//! Data beside its batch: one request, and what becomes of the segments.

use crate::device::{Device, MemoryDevice, Recorder};
use crate::fsck::{FsckOptions, check};
use crate::log::segment::State;
use crate::testing::{file, first_byte, page, update};
use crate::{FoldInput, FormatOptions, OpenOptions, Store, Transaction};
use lanefs_format::BLOCK_SIZE;
use std::sync::Arc;

/// The file that is written.
const INO: u64 = 20;

/// Returns a volume of so many blocks, in segments of 16, with the file, and what records it.
fn volume(blocks: u64) -> (Arc<Store>, Arc<dyn Device>, Arc<Recorder>) {
    let memory = MemoryDevice::new(blocks * BLOCK_SIZE as u64).unwrap();
    let recorder = Arc::new(Recorder::default());
    let device: Arc<dyn Device> = Arc::new(recorder.wrap(Arc::new(memory)));
    let o = FormatOptions { segment_blocks: 16, mlogs: 1, ..FormatOptions::default() };
    Store::format(std::slice::from_ref(&device), &o).unwrap();
    let (s, _) = Store::open(vec![device.clone()], &OpenOptions::default()).unwrap();
    let e = s.info().last_epoch;
    let made = file(e + 1, INO);
    s.commit_epoch(e + 1, vec![(0, made.clone())]).unwrap();
    s.checkpoint(|| Ok(FoldInput { epoch: e + 1, groups: vec![made.into()] })).unwrap();
    (s, device, recorder)
}

/// Writes pages, each with this byte, and makes them durable.
fn fsync(s: &Store, size: u64, pages: std::ops::Range<u64>, byte: u8) {
    let inodes = vec![update(INO, size, pages.map(|p| (p, page(byte))).collect())];
    s.submit(Transaction { durable: true, inodes, ..Transaction::default() }).unwrap();
}

fn checkpoint(s: &Store) {
    let epoch = s.info().last_epoch;
    s.checkpoint(|| Ok(FoldInput { epoch, groups: Vec::new() })).unwrap();
}

/// Returns how many segments are in this state.
fn in_state(s: &Store, state: State) -> usize {
    let t = &s.engine.log.segments;
    (0..t.len()).filter(|seg| t.info(*seg).state == state).count()
}

/// The pages and the batch were two requests, in two segments.
#[test]
fn a_small_fsync_is_one_piece_of_the_device() {
    let (s, _, recorder) = volume(4096);
    let mut split = 0;
    for n in [1, 3, 12, 1, 1, 1, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1] {
        let before = recorder.log().writes.len();
        fsync(&s, 16, 0..n, 7);
        let log = recorder.log();
        let mut pieces: Vec<(u64, u64)> =
            log.writes[before..].iter().map(|w| (w.offset, w.payload.len())).collect();
        let sorted = pieces.is_sorted();
        pieces.dedup_by(|b, a| {
            let joins = a.0 + a.1 == b.0;
            a.1 += if joins { b.1 } else { 0 };
            joins
        });
        // And the link of a segment that was begun.
        let bytes = pieces.iter().map(|p| p.1).sum::<u64>();
        assert!((n + 1..=n + 2).contains(&(bytes / 4096)), "{n} pages: {pieces:?}");
        // Where the segment ends they are two.
        split += usize::from(pieces.len() > 1 || !sorted);
    }
    assert!(split <= 5, "{split} of 18 fsyncs were several pieces");
}

/// What lives in a segment of the log when a checkpoint has passed it keeps it, and it is free when
/// that has died, by a checkpoint or by the cleaner.
#[test]
fn a_segment_of_the_log_with_data_is_full_until_that_dies() {
    let (s, device, _) = volume(4096);
    (0..64).for_each(|p| fsync(&s, 64, p..p + 1, p as u8));
    let chain = in_state(&s, State::Chain);
    assert!(chain >= 8, "64 pages and their batches are in {chain} segments of 16 blocks");
    let full = in_state(&s, State::Full);
    checkpoint(&s);
    let (left, now) = (in_state(&s, State::Chain), in_state(&s, State::Full));
    assert!(left <= 2 && now >= full + 7, "{left} segments of the log, {full} full ones, then {now}");
    (0..64).for_each(|p| assert_eq!(first_byte(&s, INO, p), Some(p as u8)));
    // All die at once.
    let free = s.engine.log.segments.free_count();
    fsync(&s, 64, 0..64, 9);
    checkpoint(&s);
    checkpoint(&s);
    assert!(s.engine.log.segments.free_count() > free, "{} of {free}", s.engine.log.segments.free_count());
    // Every other one dies: the cleaner moves the rest, whose owners it finds.
    (0..64).for_each(|p| fsync(&s, 64, p..p + 1, p as u8));
    checkpoint(&s);
    let free = s.engine.log.segments.free_count();
    (0..64).step_by(2).for_each(|p| fsync(&s, 64, p..p + 1, 1));
    checkpoint(&s);
    let cleaned = s.clean(u64::from(free) + 8).unwrap();
    assert!(cleaned.moved > 0, "{cleaned:?}");
    checkpoint(&s);
    let want = |p: u64| Some(if p.is_multiple_of(2) { 1 } else { p as u8 });
    (0..64).for_each(|p| assert_eq!(first_byte(&s, INO, p), want(p), "page {p}"));
    // After a crash too, of which recovery reads the log again.
    (0..8).for_each(|p| fsync(&s, 64, p..p + 1, 3));
    drop(s);
    let (s, r) = Store::open(vec![device.clone()], &OpenOptions::default()).unwrap();
    assert!(!r.clean);
    (0..64).for_each(|p| assert_eq!(first_byte(&s, INO, p), if p < 8 { Some(3) } else { want(p) }));
    assert!(s.audit().unwrap().problems.is_empty());
    s.close().unwrap();
    drop(s);
    let r = check(vec![device], &FsckOptions::default(), &|_| ()).unwrap();
    // The name lies where `testing::named` puts it.
    let bad: Vec<_> = r.problems.iter().filter(|p| !p.what.starts_with("lies at cookie")).collect();
    assert!(bad.is_empty(), "{bad:#?}");
}

/// Where little is free the log frees all that it took: no data lies in it.
#[test]
fn where_little_is_free_data_goes_elsewhere() {
    let (s, _, _) = volume(4096);
    let t = &s.engine.log.segments;
    t.set_reserved_segments(t.free_count() / 2 + 8);
    (0..64).for_each(|p| fsync(&s, 64, p..p + 1, p as u8));
    let in_log = |s: &Store| {
        let t = &s.engine.log.segments;
        (0..t.len()).filter(|seg| t.info(*seg).state == State::Chain).map(|seg| t.info(seg).live).sum::<u32>()
    };
    assert_eq!(in_log(&s), 0);
    t.set_reserved_segments(2);
    (0..8).for_each(|p| fsync(&s, 64, p..p + 1, p as u8));
    // One may have found the segment full.
    let few = in_log(&s);
    assert!((7..=8).contains(&few), "{few} of 8 pages");
    // What is more than a few pages is two requests anyway.
    fsync(&s, 64, 20..40, 1);
    assert_eq!(in_log(&s), few);
    // A small volume has too few segments.
    let (s, _, _) = volume(1024);
    (0..8).for_each(|p| fsync(&s, 64, p..p + 1, p as u8));
    assert_eq!(in_log(&s), 0);
}
