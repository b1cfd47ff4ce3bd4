//! What a device acknowledged and lost shows at the next opening, as soon as anything written later
//! is there.
//!
//! The story: on devices that swallow single writes, three of 45,000 simulated runs came back with
//! a tree that never was: a batch, or the slot of a checkpoint, was gone, and later batches were
//! applied without it. Each batch names what was durable before it now.

use crate::common::*;
use lanefs_store::device::{Log, MemoryDevice, Payload, Recorder};
use lanefs_store::*;
use std::sync::Arc;

/// The offsets of the blocks that begin like this, each once, in the order they were written.
fn blocks_like(log: &Log, first: usize, begin: &[u8]) -> Vec<u64> {
    let mut out: Vec<u64> = Vec::new();
    for w in &log.writes[first..] {
        let Payload::Bytes(b) = &w.payload else { continue };
        for (i, block) in b.chunks(4096).enumerate().filter(|(_, b)| b.starts_with(begin)) {
            let at = w.offset + i as u64 * 4096;
            assert!(block.len() == 4096 && !out.contains(&at));
            out.push(at);
        }
    }
    out
}

/// A file with a page, made durable with its name.
fn fsync_new(s: &Store, ino: u64, epoch: u64) {
    let name = format!("file {ino}");
    let g = group(epoch, ino, &[new_file(ino), set(name.as_bytes(), ino, 0)]);
    s.submit(tx(true, g, vec![update(ino, 4096, vec![(0, page(ino))])])).unwrap();
}

/// The device with one block zeroed.
fn without(bytes: &[u8], at: u64) -> Vec<Dev> {
    let d = MemoryDevice::from_bytes(bytes).unwrap();
    d.poke(at, &[0; 4096]).unwrap();
    vec![Arc::new(d)]
}

fn open_lossy(d: Vec<Dev>) -> OpenReport {
    Store::open(d, &OpenOptions { accept_loss: true, ..OpenOptions::default() }).unwrap().1
}

#[test]
fn a_batch_that_was_acknowledged_and_is_not_there_is_an_error() {
    let recorder = Recorder::new();
    let d = Arc::new(recorder.wrap(MemoryDevice::new(4 << 20).unwrap()));
    Store::format(&[d.clone() as Dev], &format_options()).unwrap();
    let (s, _) = Store::open(vec![d.clone() as Dev], &OpenOptions::default()).unwrap();
    let first = recorder.log().writes.len();
    let epoch = s.info().last_epoch + 1;
    // More than one segment of batches, and an epoch among them.
    for ino in 20..30 {
        fsync_new(&s, ino, epoch);
    }
    let g = group(epoch, 50, &[new_file(30), set(b"of an epoch", 30, 0)]);
    s.commit_epoch(epoch, vec![(0, g)]).unwrap();
    for ino in 31..40 {
        fsync_new(&s, ino, epoch + 1);
    }
    let image = d.inner().to_vec();
    s.shutdown();
    let batches = blocks_like(&recorder.log(), first, b"LFSn\x08");
    assert_eq!(batches.len(), 20);
    let (last, others) = batches.split_last().unwrap();
    // Nobody can know of the last one.
    let r = Store::open(without(&image, *last), &OpenOptions::default()).unwrap().1;
    assert_eq!(r.lost, 0);
    for &at in others {
        let e = Store::open(without(&image, at), &OpenOptions::default()).map(|_| ()).unwrap_err();
        assert!(matches!(&e, StoreError::Corrupt { addr, what: "log", .. } if addr.offset() == at), "{e}");
        assert_eq!(open_lossy(without(&image, at)).lost, 1);
    }
}

/// A device that lost the last fsyncs of one mlog while another went on was believed: only the
/// batches of the same mlog told of them.
#[test]
fn the_last_batches_of_one_mlog_are_missed_when_an_epoch_was_committed_in_another() {
    let recorder = Recorder::new();
    let d = Arc::new(recorder.wrap(MemoryDevice::new(8 << 20).unwrap()));
    Store::format(&[d.clone() as Dev], &FormatOptions { mlogs: 2, ..format_options() }).unwrap();
    let (s, _) =
        Store::open(vec![d.clone() as Dev], &OpenOptions { mlogs: 2, ..OpenOptions::default() }).unwrap();
    assert_eq!(s.info().mlogs, 2);
    let first = recorder.log().writes.len();
    let epoch = s.info().last_epoch + 1;
    for ino in 20..23 {
        // Lane 1 writes to the second mlog.
        let g = group(epoch, ino, &[new_file(ino), set(format!("file {ino}").as_bytes(), ino, 0)]);
        let update = update(ino, 4096, vec![(0, page(ino))]);
        s.submit(Transaction { lane: 1, ..tx(true, g, vec![update]) }).unwrap();
    }
    let others = blocks_like(&recorder.log(), first, b"LFSn\x08");
    assert_eq!(others.len(), 3);
    let silent = d.inner().to_vec();
    let g = group(epoch, 50, &[new_file(30), set(b"of an epoch", 30, 0)]);
    s.commit_epoch(epoch, vec![(0, g)]).unwrap();
    let image = d.inner().to_vec();
    s.shutdown();
    let last = *others.last().unwrap();
    // Before the epoch nobody could know of the last one.
    assert_eq!(Store::open(without(&silent, last), &OpenOptions::default()).unwrap().1.lost, 0);
    let r = Store::open(without(&image, image.len() as u64 - 4096), &OpenOptions::default()).unwrap().1;
    assert_eq!((r.lost, r.batches), (0, 4));
    for at in others {
        let e = Store::open(without(&image, at), &OpenOptions::default()).map(|_| ()).unwrap_err();
        assert!(matches!(&e, StoreError::Corrupt { addr, what: "log", .. } if addr.offset() == at), "{e}");
        assert_eq!(open_lossy(without(&image, at)).lost, 1);
    }
}

/// An epoch of which one share is gone, and only a later fsync of the other mlog tells that it was
/// whole.
#[test]
fn an_epoch_of_which_a_share_is_not_there_is_an_error() {
    let recorder = Recorder::new();
    let d = Arc::new(recorder.wrap(MemoryDevice::new(8 << 20).unwrap()));
    Store::format(&[d.clone() as Dev], &FormatOptions { mlogs: 2, ..format_options() }).unwrap();
    let (s, _) =
        Store::open(vec![d.clone() as Dev], &OpenOptions { mlogs: 2, ..OpenOptions::default() }).unwrap();
    let first = recorder.log().writes.len();
    let epoch = s.info().last_epoch + 1;
    let share = |ino: u64| {
        let name = format!("file {ino}");
        group(epoch, ino, &[new_file(ino), set(name.as_bytes(), ino, 0)])
    };
    s.commit_epoch(epoch, vec![(0, share(20)), (1, share(21))]).unwrap();
    let shares = blocks_like(&recorder.log(), first, b"LFSn\x08");
    assert_eq!(shares.len(), 2);
    let silent = d.inner().to_vec();
    fsync_new(&s, 30, epoch + 1);
    let image = d.inner().to_vec();
    s.shutdown();
    for at in shares {
        // Before the fsync it may never have been whole.
        assert_eq!(Store::open(without(&silent, at), &OpenOptions::default()).unwrap().1.lost, 0);
        let e = Store::open(without(&image, at), &OpenOptions::default()).map(|_| ()).unwrap_err();
        assert!(matches!(&e, StoreError::Corrupt { what: "log", .. }), "{e}");
        assert!(open_lossy(without(&image, at)).lost > 0);
    }
}

/// An epoch builds on the one before: who accepts the loss of one loses those behind it too, or
/// would have a tree that never was.
#[test]
fn behind_an_epoch_that_was_lost_none_is_applied() {
    let recorder = Recorder::new();
    let d = Arc::new(recorder.wrap(MemoryDevice::new(4 << 20).unwrap()));
    Store::format(&[d.clone() as Dev], &format_options()).unwrap();
    let (s, _) = Store::open(vec![d.clone() as Dev], &OpenOptions::default()).unwrap();
    let first = recorder.log().writes.len();
    let e = s.info().last_epoch;
    for n in 1..=3 {
        let name = format!("file {n}");
        let g = group(e + n, n, &[new_file(20 + n), set(name.as_bytes(), 20 + n, 0)]);
        s.commit_epoch(e + n, vec![(0, g)]).unwrap();
    }
    let image = d.inner().to_vec();
    s.shutdown();
    let epochs = blocks_like(&recorder.log(), first, b"LFSn\x08");
    assert_eq!(epochs.len(), 3);
    for (before, at) in epochs.into_iter().enumerate() {
        let o = OpenOptions { accept_loss: true, ..OpenOptions::default() };
        let (s, r) = Store::open(without(&image, at), &o).unwrap();
        assert_eq!(r.epoch, e + before as u64);
        let there: Vec<_> =
            (1..=3).filter(|n| lookup(&s, format!("file {n}").as_bytes()).is_some()).collect();
        assert_eq!(there, (1..=before).collect::<Vec<_>>());
    }
}

/// What one lane wrote to a device, not durably, is durable when another lane's fsync of the same
/// file has another device.
#[test]
fn an_fsync_flushes_the_devices_of_what_other_lanes_wrote() {
    use lanefs_store::device::{Crash, Fate, MemoryImage};
    let recorder = Recorder::new();
    let devices: Vec<Dev> =
        (0..2).map(|_| Arc::new(recorder.wrap(MemoryDevice::new(4 << 20).unwrap())) as Dev).collect();
    let empty = MemoryImage::capture(&MemoryDevice::new(4 << 20).unwrap()).unwrap();
    Store::format(&devices, &FormatOptions { mlogs: 2, ..format_options() }).unwrap();
    let (s, _) = Store::open(devices, &OpenOptions { mlogs: 2, ..OpenOptions::default() }).unwrap();
    let epoch = s.info().last_epoch + 1;
    fsync_new(&s, 20, epoch);
    for round in 0..3 {
        let first = recorder.log().writes.len();
        let pages = vec![(1, page(round + 100)), (2, page(round + 200))];
        s.submit(Transaction { lane: 1, ..tx(false, Vec::new(), vec![update(20, 3 * 4096, pages)]) })
            .unwrap();
        let there = recorder.log().writes[first..].iter().map(|w| w.device).collect::<Vec<_>>();
        s.submit(tx(true, Vec::new(), vec![update(20, 3 * 4096, Vec::new())])).unwrap();
        let log = recorder.log();
        assert!(there.iter().all(|d| *d != log.writes.last().unwrap().device), "both are on one device");
        let crash = Crash::new(&log, log.now);
        let left = crash.build(&[empty.clone(), empty.clone()], |_, _| Fate::Lost).unwrap();
        let left: Vec<Dev> = left.into_iter().map(|d| Arc::new(d) as Dev).collect();
        let (s, r) = Store::open(left, &OpenOptions { mlogs: 2, ..OpenOptions::default() }).unwrap();
        assert_eq!(r.batches_dropped, 0);
        for (at, seed) in [(0, 20), (1, round + 100), (2, round + 200)] {
            assert!(read(&s, 20, at).is_some_and(|b| b.0 == page(seed).0), "round {round}, page {at}");
        }
    }
}

#[test]
fn a_checkpoint_that_was_acknowledged_and_is_not_there_is_an_error() {
    let recorder = Recorder::new();
    let d = Arc::new(recorder.wrap(MemoryDevice::new(4 << 20).unwrap()));
    Store::format(&[d.clone() as Dev], &format_options()).unwrap();
    let (s, _) = Store::open(vec![d.clone() as Dev], &OpenOptions::default()).unwrap();
    let epoch = s.info().last_epoch + 1;
    let first = recorder.log().writes.len();
    let before = d.inner().to_vec();
    let g = group(epoch, 1, &[new_file(20), set(b"a", 20, 0)]);
    fold(&s, epoch, vec![g]);
    let at = blocks_like(&recorder.log(), first, b"LFSLOT");
    assert_eq!(at.len(), 4); // Both slots, and the copy of each.
    let without = |image: &[u8]| -> Vec<Dev> {
        let d = MemoryDevice::from_bytes(image).unwrap();
        at.iter().for_each(|&at| d.poke(at, &before[at as usize..][..4096]).unwrap());
        vec![Arc::new(d)]
    };
    // Nothing says that there was a newer one.
    let image = d.inner().to_vec();
    let r = Store::open(without(&image), &OpenOptions::default()).unwrap().1;
    assert_eq!(r.lost, 0);
    // A batch behind it does.
    fsync_new(&s, 21, epoch + 1);
    let image = d.inner().to_vec();
    s.shutdown();
    assert!(Store::open(without(&image), &OpenOptions::default()).is_err());
    assert_eq!(open_lossy(without(&image)).lost, 1);
}

#[test]
fn the_batches_of_a_mount_whose_slots_were_lost_are_never_believed() {
    let recorder = Recorder::new();
    let d = Arc::new(recorder.wrap(MemoryDevice::new(4 << 20).unwrap()));
    Store::format(&[d.clone() as Dev], &format_options()).unwrap();
    let before = d.inner().to_vec();
    let life = |first: u64| {
        let (s, _) = Store::open(vec![d.clone() as Dev], &OpenOptions::default()).unwrap();
        let epoch = s.info().last_epoch + 1;
        for ino in first..first + 3 {
            fsync_new(&s, ino, epoch);
        }
        s.shutdown();
    };
    life(20);
    // The slots of that mount are taken back; what it wrote besides stays.
    let end = (before.len() / 4096) as u64;
    for at in [1, 2, end - 2, end - 1] {
        d.inner().poke(at * 4096, &before[at as usize * 4096..][..4096]).unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(20));
    let (s, _) = Store::open(vec![d.clone() as Dev], &OpenOptions::default()).unwrap();
    fsync_new(&s, 40, s.info().last_epoch + 1);
    s.shutdown();
    let (s, r) = Store::open(vec![d as Dev], &OpenOptions::default()).unwrap();
    assert_eq!(r.batches, 1, "{r:?}");
    assert!(lookup(&s, b"file 40").is_some() && lookup(&s, b"file 21").is_none());
}
