//! Volumes of which the device cannot read a block: they open if that block is not needed, and
//! never without what was acknowledged.

use crate::common::*;
use lanefs_store::device::{Device, Fault, FaultyDevice, Kind, MemoryDevice, Plan, When};
use lanefs_store::fsck::{self, FsckOptions};
use lanefs_store::*;
use std::sync::Arc;
use std::time::Duration;

const FILES: u64 = 6;

/// A volume that was not closed, with one page of each file, synced one after the other.
fn crashed() -> Vec<u8> {
    crashed_with(FILES)
}

fn crashed_with(files: u64) -> Vec<u8> {
    let m = Arc::new(MemoryDevice::new(2 << 20).unwrap());
    let d: Dev = m.clone();
    Store::format(std::slice::from_ref(&d), &format_options()).unwrap();
    let (s, _) = open(&d);
    let e = s.info().last_epoch + 1;
    for n in 0..files {
        let name = format!("f{n}");
        let births = group(e, n + 1, &[new_file(50 + n), set(name.as_bytes(), 50 + n, 0)]);
        s.submit(tx(true, births, vec![update(50 + n, 8192, vec![(0, page(n)), (1, page(n + 100))])]))
            .unwrap();
    }
    s.shutdown();
    m.to_vec()
}

/// Opens it while `block` cannot be read, so many times (0: never).
fn open_without(bytes: &[u8], block: u64, times: u64, o: &OpenOptions) -> Result<(Arc<Store>, OpenReport)> {
    let range = Some(block * BLOCK_SIZE as u64..(block + 1) * BLOCK_SIZE as u64);
    let plan =
        Plan::none().rule(Kind::Read, When { range, times, ..When::default() }, Fault::Error(libc::EIO));
    let d: Arc<dyn Device> = Arc::new(FaultyDevice::new(MemoryDevice::from_bytes(bytes).unwrap(), plan));
    Store::open(vec![d], o)
}

fn content(s: &Store, ino: u64, at: u64) -> Result<Box<Block>> {
    let mut b = Block::zeroed();
    s.read_pages(Ino(ino), at, &mut [PageRead { block: &mut b, hole: false }])?;
    Ok(b)
}

/// How many pages cannot be read; all others are what they were.
fn errors(s: &Store, what: &str) -> usize {
    let pages = (0..FILES).flat_map(|n| [(n, 0, n), (n, 1, n + 100)]);
    pages
        .filter(|&(n, at, seed)| match content(s, 50 + n, at) {
            Ok(b) => {
                assert!(b.0 == page(seed).0, "{what}: page {at} of file {n}");
                false
            }
            Err(_) => true,
        })
        .count()
}

fn find(bytes: &[u8], content: &[u8]) -> u64 {
    bytes.chunks_exact(BLOCK_SIZE).position(|b| b.starts_with(content)).unwrap() as u64
}

#[test]
fn whatever_block_cannot_be_read_what_was_acknowledged_does_not_vanish() {
    let bytes = crashed();
    let (mut opened, mut refused) = (0, 0);
    for block in 0..(bytes.len() / BLOCK_SIZE) as u64 {
        let what = format!("block {block}");
        match open_without(&bytes, block, 0, &OpenOptions { read_only: true, ..OpenOptions::default() }) {
            Ok((s, r)) => {
                assert!(errors(&s, &what) <= 1 && r.batches_dropped == 0, "{what}");
                opened += 1;
            }
            Err(e) => {
                assert!(matches!(e, StoreError::Io { .. }), "{what}: {e}");
                refused += 1;
            }
        }
        // Once is not for good.
        if let Err(e) = open_without(&bytes, block, 1, &OpenOptions::default())
            .map(|(s, _)| assert_eq!(errors(&s, &what), 0))
        {
            assert!(matches!(e, StoreError::Io { .. }), "{what}: {e}");
        }
    }
    assert!(opened > 400 && refused > 3, "{opened} opened, {refused} refused");
}

/// Opens it while one read that covers `block` has these bytes of something else in it, once, and
/// says that it succeeded.
fn open_after_a_lie(bytes: &[u8], block: u64, fault: Fault) -> Result<(Arc<Store>, OpenReport)> {
    let range = Some(block * BLOCK_SIZE as u64..(block + 1) * BLOCK_SIZE as u64);
    let plan = Plan::none().rule(Kind::Read, When { range, times: 1, ..When::default() }, fault);
    let d: Arc<dyn Device> = Arc::new(FaultyDevice::new(MemoryDevice::from_bytes(bytes).unwrap(), plan));
    Store::open(vec![d], &OpenOptions::default())
}

#[test]
fn what_is_read_wrong_once_while_opening_is_not_taken_for_lost() {
    let bytes = crashed();
    for block in 0..(bytes.len() / BLOCK_SIZE) as u64 {
        for fault in [Fault::Misdirected(1), Fault::Misdirected(-3), Fault::BitFlip(4567)] {
            let what = format!("block {block}, {fault:?}");
            let (s, r) = open_after_a_lie(&bytes, block, fault).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!((errors(&s, &what), r.batches_dropped), (0, 0), "{what}");
        }
    }
}

/// The blocks that link the segments of a log, and its batches: the first read of one, or the
/// second if there is one, is wrong.
#[test]
fn what_is_read_wrong_once_in_a_log_of_several_segments_is_not_taken_for_its_end() {
    let bytes = crashed_with(40);
    let log = bytes.chunks_exact(BLOCK_SIZE).enumerate().filter(|(_, b)| b.starts_with(b"LFSn"));
    let mut tried = 0;
    for (block, _) in log {
        for nth in 0..2 {
            let range = Some((block * BLOCK_SIZE) as u64..((block + 1) * BLOCK_SIZE) as u64);
            let right = When { range: range.clone(), times: nth, ..When::default() };
            let mut plan = Plan::none();
            if nth > 0 {
                plan = plan.rule(Kind::Read, right, Fault::Delay(Duration::ZERO));
            }
            let once = When { range, times: 1, ..When::default() };
            let plan = plan.rule(Kind::Read, once, Fault::Misdirected(2));
            let d: Dev = Arc::new(FaultyDevice::new(MemoryDevice::from_bytes(&bytes).unwrap(), plan));
            let (s, r) = Store::open(vec![d], &OpenOptions::default())
                .unwrap_or_else(|e| panic!("block {block}, read {nth}: {e}"));
            assert_eq!(r.batches_dropped, 0, "block {block}, read {nth}");
            for n in 0..40 {
                assert_eq!(
                    lookup(&s, format!("f{n}").as_bytes()),
                    Some(Ino(50 + n)),
                    "block {block}, read {nth}"
                );
                assert!(content(&s, 50 + n, 0).is_ok_and(|b| b.0 == page(n).0), "block {block}, read {nth}");
            }
            tried += 1;
        }
    }
    assert!(tried > 80, "{tried}");
}

#[test]
fn what_is_read_wrong_once_while_repairing_is_not_taken_for_damage() {
    let bytes = crashed();
    for block in 0..(bytes.len() / BLOCK_SIZE) as u64 {
        for nth in 0..2 {
            let what = format!("block {block}, read {nth}");
            let range = Some(block * BLOCK_SIZE as u64..(block + 1) * BLOCK_SIZE as u64);
            let m = Arc::new(MemoryDevice::from_bytes(&bytes).unwrap());
            // The first read of the block, or the second one, is wrong.
            let right = Plan::none().rule(
                Kind::Read,
                When { range: range.clone(), times: nth, ..When::default() },
                Fault::Delay(Duration::ZERO),
            );
            let right = if nth == 0 { Plan::none() } else { right };
            let wrong = When { range, times: 1, ..When::default() };
            let plan = right.rule(Kind::Read, wrong, Fault::Misdirected(1));
            let d: Arc<dyn Device> = Arc::new(FaultyDevice::new(m.clone(), plan));
            let o = FsckOptions { repair: true, threads: 1, ..FsckOptions::default() };
            fsck::check(vec![d], &o, &|_| ()).unwrap_or_else(|e| panic!("{what}: {e}"));
            let d: Arc<dyn Device> = m;
            let (s, _) = Store::open(vec![d], &OpenOptions::default()).unwrap();
            assert_eq!(errors(&s, &what), 0, "{what}");
        }
    }
}

#[test]
fn the_copy_stands_in_for_a_superblock_that_cannot_be_read() {
    let (s, _) = open_without(&crashed(), 0, 0, &OpenOptions::default()).unwrap();
    assert_eq!(errors(&s, "superblock"), 0);
}

#[test]
fn data_of_an_acknowledged_fsync_that_cannot_be_read_is_an_error_of_the_page_alone() {
    let bytes = crashed();
    // Later batches say that the first fsync was durable; nothing says so of the last.
    let (s, r) = open_without(&bytes, find(&bytes, &page(0).0), 0, &OpenOptions::default()).unwrap();
    assert_eq!((errors(&s, "the first"), r.batches_dropped), (1, 0));
    let last = find(&bytes, &page(FILES - 1).0);
    let e = open_without(&bytes, last, 0, &OpenOptions::default()).err().unwrap();
    assert!(matches!(e, StoreError::Io { .. }), "{e}");
    let lossy = OpenOptions { accept_loss: true, ..OpenOptions::default() };
    assert_eq!(errors(&open_without(&bytes, last, 0, &lossy).unwrap().0, "the last"), 1);
    let (s, _) = open_without(&bytes, last, 2, &OpenOptions::default()).unwrap();
    assert_eq!(errors(&s, "the last, read again"), 0);
}

#[test]
fn a_batch_that_cannot_be_read_is_an_error_and_a_loss_if_asked() {
    let bytes = crashed();
    let lossy = OpenOptions { accept_loss: true, ..OpenOptions::default() };
    let mut lost = 0;
    for block in 0..(bytes.len() / BLOCK_SIZE) as u64 {
        let Err(e) = open_without(&bytes, block, 0, &OpenOptions::default()) else { continue };
        assert!(matches!(e, StoreError::Io { .. }), "block {block}: {e}");
        // Not for a block of the tree below the slot.
        if open_without(&bytes, block, 0, &lossy).is_ok_and(|o| o.1.lost > 0) {
            lost += 1;
            let (s, _) = open_without(&bytes, block, 2, &OpenOptions::default()).unwrap();
            assert_eq!(errors(&s, "read again"), 0);
        }
    }
    assert!(lost >= FILES, "{lost} places where a batch was or may have been");
}

#[test]
fn a_rotten_block_does_not_stop_the_cleaner() {
    let m = Arc::new(MemoryDevice::new(4 << 20).unwrap());
    let d: Dev = m.clone();
    Store::format(std::slice::from_ref(&d), &format_options()).unwrap();
    let (s, _) = open(&d);
    let e = s.info().last_epoch + 1;
    let births = (0..2u64).map(|n| group(e, n + 1, &[new_file(50 + n), set(&[b'a' + n as u8], 50 + n, 0)]));
    fold(&s, e, births.collect());
    let write = |ino: u64, first: u64, salt: u64| {
        let pages = (first..first + 4).map(|p| (p, page(p + salt))).collect();
        s.submit(tx(false, vec![], vec![update(ino, 200 * 4096, pages)])).unwrap();
    };
    // Every segment is shared by both files; then the second moves out.
    for first in (0..200).step_by(4) {
        write(50, first, 0);
        write(51, first, 1000);
    }
    for first in (0..200).step_by(4) {
        write(51, first, 2000);
    }
    fold(&s, e + 1, vec![]);
    let at = find(&m.to_vec(), &page(1).0);
    m.poke(at * BLOCK_SIZE as u64, &[1, 2, 3]).unwrap();
    let (mut emptied, before) = (0, s.pressure().free_segments);
    for n in 0..6 {
        emptied += s.clean(s.pressure().segments).unwrap().segments;
        fold(&s, e + 2 + n, vec![]);
    }
    assert!(emptied > 5 && s.pressure().free_segments > before, "{emptied} emptied of {before}");
    for p in 0..200 {
        assert_eq!(content(&s, 50, p).is_err(), p == 1, "page {p}");
        assert!(content(&s, 51, p).unwrap().0 == page(p + 2000).0, "page {p}");
    }
    // It lies where it lay.
    assert_eq!(m.to_vec()[at as usize * BLOCK_SIZE..][..3], [1, 2, 3]);
    s.close().unwrap();
}
