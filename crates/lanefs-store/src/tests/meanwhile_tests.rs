//! What one call does while a device holds back another's write or flush.

use crate::api::{FoldInput, FormatOptions, OpenOptions, OpenReport, Transaction};
use crate::device::{Device, HookedDevice, Kind, MemoryDevice, MemoryImage};
use crate::error::{Result, StoreError};
use crate::store::Store;
use crate::testing::{file, first_byte, named, page, update};
use lanefs_format::record::encode_group;
use lanefs_format::{Ino, ROOT_INO, Version};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

/// A device whose next write, or next flush, is only done when something else was; if that is an
/// error, it fails with it.
type Meanwhile = HookedDevice<MemoryDevice>;

/// A new volume with a log for each device.
fn volume(n: usize) -> (Arc<Store>, Vec<Arc<Meanwhile>>) {
    let devices: Vec<_> =
        (0..n).map(|_| Arc::new(Meanwhile::new(MemoryDevice::new(16 << 20).unwrap()))).collect();
    let format = FormatOptions { segment_blocks: 16, mlogs: n as u32, ..FormatOptions::default() };
    Store::format(&dynamic(&devices), &format).unwrap();
    let s = open(&devices).0;
    assert_eq!(s.engine.log.mlogs.len(), n);
    (s, devices)
}

fn dynamic(devices: &[Arc<Meanwhile>]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|d| d.clone() as Arc<dyn Device>).collect()
}

fn open(devices: &[Arc<Meanwhile>]) -> (Arc<Store>, OpenReport) {
    Store::open(dynamic(devices), &OpenOptions::default()).unwrap()
}

/// Begins a call in a thread of its own, and comes back when it waits or is over: whether it is
/// over, and the thread.
fn begin(
    call: impl FnOnce() -> Result<()> + Send + 'static,
    waits: impl Fn() -> bool,
) -> (bool, JoinHandle<Result<()>>) {
    let thread = std::thread::spawn(call);
    while !waits() && !thread.is_finished() {
        std::thread::yield_now();
    }
    (thread.is_finished(), thread)
}

/// Recovery finds a segment by the link of the one before it. So what lies behind a link that
/// another call still writes is not acknowledged.
#[test]
fn an_fsync_waits_for_the_link_that_another_writes() {
    let (s, devices) = volume(1);
    let e = s.info().last_epoch;
    assert_eq!(
        s.engine.log.mlogs[0].position(&s.engine.log.segments).used,
        1,
        "the first batch takes the link along"
    );
    // Too long for what the first leaves of the segment.
    let (mut long, mut files) = (Vec::new(), 0);
    while s.engine.log.batches_for(long.len()) != [15] {
        long.extend(file(e + 1, 100 + files));
        files += 1;
    }
    let (did, done) = mpsc::channel();
    let store = s.clone();
    devices[0].before(Kind::Write, move || {
        let other = store.clone();
        let second =
            move || other.submit(Transaction { durable: true, groups: long, ..Transaction::default() });
        did.send(begin(second, || store.engine.log.mlogs[0].is_waited_for())).unwrap();
        Ok(())
    });
    s.submit(Transaction { durable: true, groups: file(e + 1, 20), ..Transaction::default() }).unwrap();
    let (early, second) = done.recv().unwrap();
    assert!(!early, "acknowledged, and recovery could not find it");
    second.join().unwrap().unwrap();
    drop(s);
    assert_eq!(open(&devices).1.groups, files + 1);
}

/// An fsync in one log, on one device, and meanwhile another of the same file in another log. The
/// second has only what the first has not, and comes back after it. Whether the first came back too
/// early, and both answers.
fn two_fsyncs_of_a_file(fails: bool) -> (bool, [Result<()>; 2], Vec<Arc<Meanwhile>>) {
    let (s, devices) = volume(2);
    let e = s.info().last_epoch;
    let fsync = |lane: usize, n: u64| {
        let inodes = vec![update(20, 2, vec![(n, page(n as u8 + 1))])];
        Transaction { lane, durable: true, inodes, ..Transaction::default() }
    };
    s.submit(Transaction { durable: true, groups: file(e + 1, 20), ..Transaction::default() }).unwrap();
    let (did, done) = mpsc::channel();
    let (store, later) = (s.clone(), fsync(0, 1));
    devices[1].before(Kind::Flush, move || {
        let (other, inode) =
            (store.clone(), store.engine.inodes.get(Ino(20), &store.engine.log.io)?.unwrap());
        did.send(begin(move || other.submit(later), || inode.is_waited_for())).unwrap();
        if fails { Err(StoreError::Invalid("a flush that fails".into())) } else { Ok(()) }
    });
    let first = s.submit(fsync(1, 0));
    let (early, second) = done.recv().unwrap();
    let second = second.join().unwrap();
    drop(s);
    (early, [first, second], devices)
}

#[test]
fn an_fsync_waits_for_an_older_one_that_it_builds_on() {
    let (early, answers, devices) = two_fsyncs_of_a_file(false);
    assert!(!early, "acknowledged, and the older one is not durable");
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    let (s, _) = open(&devices);
    assert_eq!([0, 1].map(|p| first_byte(&s, 20, p)), [Some(1), Some(2)]);
}

#[test]
fn an_fsync_fails_if_an_older_one_that_it_builds_on_fails() {
    let (early, answers, _) = two_fsyncs_of_a_file(true);
    assert!(!early, "acknowledged, and the older one is not durable");
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
}

/// A directory's names make sense only with the link counts of the same checkpoint: an fsync of it
/// between a fold and its slot leaves them out.
#[test]
fn an_fsync_of_a_directory_does_not_carry_what_a_checkpoint_folds() {
    let (s, devices) = volume(1);
    let e = s.info().last_epoch;
    let made = file(e + 1, 20);
    s.commit_epoch(e + 1, vec![(0, made.clone())]).unwrap();
    s.checkpoint(|| Ok(FoldInput { epoch: e + 1, groups: vec![made.into()] })).unwrap();
    let mut linked = Vec::new();
    encode_group(&mut linked, Version { epoch: e + 2, ts: 100, lane: 0 }, &[named(20, b"another")]);
    s.commit_epoch(e + 2, vec![(0, linked.clone())]).unwrap();
    let (did, done) = mpsc::channel();
    let (store, device) = (s.clone(), devices[0].clone());
    s.checkpoint(|| {
        // The first write is that of the tree.
        devices[0].before(Kind::Write, move || {
            let mut root = update(ROOT_INO.0, 0, Vec::new());
            root.attrs = store.load_inode(ROOT_INO)?.unwrap().attrs;
            store.submit(Transaction { durable: true, inodes: vec![root], ..Transaction::default() })?;
            did.send(MemoryImage::capture(device.inner())?).unwrap();
            Ok(())
        });
        Ok(FoldInput { epoch: e + 2, groups: vec![linked.into()] })
    })
    .unwrap();
    let left: Arc<dyn Device> = Arc::new(done.recv().unwrap().fork().unwrap());
    let (s, r) = Store::open(vec![left], &OpenOptions::default()).unwrap();
    assert_eq!((r.epoch, r.inode_updates), (e + 2, 1));
    assert_eq!(s.load_bucket(ROOT_INO, 0).unwrap().entries.len(), 2);
    assert_eq!(s.load_inode(Ino(20)).unwrap().unwrap().nlink, 2);
    assert_eq!(s.audit().unwrap().problems, [""; 0]);
}
