//! A host that has no space for what is written to a sparse image: the write waits and others go
//! on, nothing that was acknowledged is lost, and what is deleted gives space back to the host.

use crate::api::{FoldInput, FormatOptions, OpenOptions, Transaction};
use crate::device::{Device, Fault, FaultyDevice, Kind, MemoryDevice, MemoryImage, Plan, ThinDevice, When};
use crate::error::{Result, StoreError};
use crate::store::Store;
use crate::testing::{file, first_byte, page, until, update};
use std::sync::Arc;

/// Blocks of a segment.
const SEGMENT: u64 = 16;

type Faulty = Arc<FaultyDevice<MemoryDevice>>;
type Thin = Arc<ThinDevice<MemoryDevice>>;

fn opened(device: Arc<dyn Device>) -> Arc<Store> {
    Store::open(vec![device], &OpenOptions::default()).unwrap().0
}

fn made(device: Arc<dyn Device>) -> Arc<Store> {
    let format = FormatOptions { segment_blocks: SEGMENT as u32, mlogs: 1, ..FormatOptions::default() };
    Store::format(std::slice::from_ref(&device), &format).unwrap();
    opened(device)
}

/// A volume with files 20 to 29, on a device that breaks as it is told.
fn faulty() -> (Arc<Store>, Faulty) {
    let d: Faulty = Arc::new(FaultyDevice::new(MemoryDevice::new(16 << 20).unwrap(), Plan::none()));
    let s = made(d.clone());
    make_files(&s);
    (s, d)
}

/// The same on a host that has so many blocks.
fn thin(blocks: u64) -> (Arc<Store>, Thin) {
    let d: Thin = Arc::new(ThinDevice::new(MemoryDevice::new(16 << 20).unwrap(), blocks));
    let s = made(d.clone());
    make_files(&s);
    (s, d)
}

/// The same on two devices, each with a host and an mlog of its own.
fn two_thin() -> (Arc<Store>, Vec<Thin>) {
    let thin: Vec<Thin> =
        (0..2).map(|_| Arc::new(ThinDevice::new(MemoryDevice::new(8 << 20).unwrap(), 2048))).collect();
    let devices: Vec<Arc<dyn Device>> = thin.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    let format = FormatOptions { segment_blocks: SEGMENT as u32, mlogs: 2, ..FormatOptions::default() };
    Store::format(&devices, &format).unwrap();
    let s = Store::open(devices, &OpenOptions::default()).unwrap().0;
    make_files(&s);
    (s, thin)
}

fn make_files(s: &Store) {
    let e = s.info().last_epoch + 1;
    let made: Vec<u8> = (20..30).flat_map(|ino| file(e, ino)).collect();
    s.commit_epoch(e, vec![(0, made.clone())]).unwrap();
    s.checkpoint(|| Ok(FoldInput { epoch: e, groups: vec![made.into()] })).unwrap();
}

/// An fsync of a file of so many pages of this byte.
fn fsync(s: &Store, ino: u64, pages: u64, byte: u8) -> Result<()> {
    let pages_of = (0..pages).map(|p| (p, page(byte))).collect();
    let inodes = vec![update(ino, pages, pages_of)];
    s.submit(Transaction { durable: true, inodes, ..Transaction::default() })
}

fn refuse(d: &Faulty, errno: i32) {
    d.set_plan(Plan::none().rule(Kind::Write, When::default(), Fault::Error(errno)));
}

/// The write was an error that stopped the volume.
#[test]
fn a_write_that_the_host_refuses_waits_and_others_read() {
    for errno in [libc::ENOSPC, libc::EDQUOT] {
        let (s, d) = faulty();
        fsync(&s, 20, 3, 1).unwrap();
        refuse(&d, errno);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| fsync(&s, 21, 3, 2));
            until("it is refused again", || d.fired().len() > 5);
            assert!(!waits.is_finished() && s.is_host_short() && !s.is_broken());
            assert_eq!(s.report().devices.waiting_for_host, 1);
            let trouble = s.report().devices.trouble.unwrap();
            assert!(trouble.contains("memory: waiting for space on the host"), "{trouble}");
            // Who would need space is told so at once, and who reads goes on.
            assert!(!s.reserve(0, 1) && s.reserve_accepted(0, 1));
            assert_eq!((first_byte(&s, 20, 2), first_byte(&s, 22, 0)), (Some(1), None));
            d.set_plan(Plan::none());
            waits.join().unwrap().unwrap();
        });
        assert!(!s.is_host_short() && s.reserve(0, 1) && s.report().devices.trouble.is_none());
        fsync(&s, 22, 3, 3).unwrap();
        let crashed = opened(Arc::new(MemoryImage::capture(d.inner()).unwrap().fork().unwrap()));
        for (ino, byte) in [(20, 1), (21, 2), (22, 3)] {
            assert!((0..3).all(|p| first_byte(&crashed, ino, p) == Some(byte)), "file {ino}");
        }
    }
}

/// Of one submission some requests are taken and one is not.
#[test]
fn a_checkpoint_waits_for_a_block_of_its_tree() {
    let (s, d) = faulty();
    (20..30).for_each(|ino| fsync(&s, ino, 3, ino as u8).unwrap());
    d.set_plan(Plan::none().rule(
        Kind::Write,
        When { nth: 2, times: 20, ..When::default() },
        Fault::Error(libc::ENOSPC),
    ));
    s.checkpoint(|| Ok(FoldInput { epoch: s.info().last_epoch, groups: Vec::new() })).unwrap();
    assert_eq!(d.fired().len(), 20);
    assert!(!s.is_host_short() && !s.is_broken());
    s.audit().unwrap();
    s.close().unwrap();
    let again = opened(Arc::new(MemoryImage::capture(d.inner()).unwrap().fork().unwrap()));
    assert!((20..30).all(|ino| first_byte(&again, ino, 2) == Some(ino as u8)));
}

#[test]
fn what_is_stopped_is_not_waited_for_and_what_was_acknowledged_is_found() {
    let (s, d) = faulty();
    fsync(&s, 20, 3, 1).unwrap();
    refuse(&d, libc::ENOSPC);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| fsync(&s, 21, 3, 2));
        let gate = scope.spawn(|| {
            until("the host is short", || s.is_host_short());
            s.wait_for_host(None)
        });
        until("it waits", || s.report().devices.waiting_for_host > 0);
        s.shutdown();
        assert!(matches!(waits.join().unwrap(), Err(StoreError::ReadOnly { .. })));
        assert!(matches!(gate.join().unwrap(), Err(StoreError::ReadOnly { .. })));
    });
    let crashed = opened(Arc::new(MemoryImage::capture(d.inner()).unwrap().fork().unwrap()));
    assert!((0..3).all(|p| first_byte(&crashed, 20, p) == Some(1)));
}

/// A device that fails is no host without space.
#[test]
fn other_errors_stop_the_volume_as_ever_and_name_the_device() {
    let (s, d) = faulty();
    d.set_plan(Plan::none().nth(Kind::Write, 0, Fault::Error(libc::EIO)));
    assert_eq!(fsync(&s, 20, 3, 1).unwrap_err().errno(), libc::EIO);
    assert!(s.is_broken() && !s.is_host_short());
    let trouble = s.report().devices.trouble.unwrap();
    assert!(trouble.contains("memory: write at byte") && trouble.contains("check the device"), "{trouble}");
    // After a flush that failed the kernel may have forgotten what it was to write.
    let (s, d) = faulty();
    d.set_plan(Plan::none().nth(Kind::Flush, 0, Fault::Error(libc::ENOSPC)));
    assert!(fsync(&s, 20, 3, 1).is_err() && s.is_broken() && !s.is_host_short());
}

/// Who opens a volume is there to act, and was promised nothing.
#[test]
fn an_open_does_not_wait() {
    let (s, d) = faulty();
    fsync(&s, 20, 3, 1).unwrap();
    s.shutdown();
    drop(s);
    let device: Arc<dyn Device> = d.clone();
    refuse(&d, libc::ENOSPC);
    let failed = Store::open(vec![device.clone()], &OpenOptions::default()).unwrap_err();
    assert_eq!(failed.errno(), libc::ENOSPC);
    d.set_plan(Plan::none());
    assert_eq!(first_byte(&opened(device), 20, 2), Some(1));
}

/// A host that is full is outlived by what is kept of it: commits and checkpoints go on without a
/// wait, and what is deleted gives space back.
#[test]
fn what_is_deleted_while_the_host_is_full_gives_it_space() {
    let (s, d) = thin(3000);
    fsync(&s, 20, 40 * SEGMENT, 1).unwrap();
    fsync(&s, 21, 3, 2).unwrap();
    let filler = d.fill();
    assert!(filler > 100, "{filler} blocks");
    // These find no space until some of what is kept is given back, and then need not wait.
    let mut byte = 2;
    while !s.is_host_short() {
        byte += 1;
        fsync(&s, 21, 3, byte).unwrap();
        assert!(byte < 100, "the host is full, and all goes on");
    }
    assert!(!s.reserve(0, 1) && d.refused() > 0);
    assert!(!s.engine.log.io.look_for_space(), "nobody has freed anything");
    assert_eq!(first_byte(&s, 20, 5), Some(1));
    // The large file goes.
    let pages = 0..40 * SEGMENT;
    s.unmap(0, lanefs_format::Ino(20), pages, None).unwrap();
    s.submit(Transaction {
        durable: true,
        inodes: vec![update(20, 0, Vec::new())],
        ..Transaction::default()
    })
    .unwrap();
    let fold = || s.checkpoint(|| Ok(FoldInput { epoch: s.info().last_epoch, groups: Vec::new() }));
    fold().unwrap();
    fold().unwrap();
    assert!(!s.is_host_short(), "the reserve is whole, and the host gave more");
    assert!(d.left() > 30 * SEGMENT, "{} blocks are left on the host", d.left());
    assert!(s.reserve(0, 1));
    fsync(&s, 22, 10 * SEGMENT, 9).unwrap();
    s.audit().unwrap();
    let crashed = opened(Arc::new(MemoryImage::capture(d.inner()).unwrap().fork().unwrap()));
    assert_eq!((first_byte(&crashed, 21, 2), first_byte(&crashed, 22, 10)), (Some(byte), Some(9)));
    assert_eq!(first_byte(&crashed, 20, 5), None);
}

/// Whoever waits goes on as soon as somebody frees something on the host.
#[test]
fn what_waits_for_more_than_is_kept_goes_on_when_there_is_space() {
    let (s, d) = thin(3000);
    d.fill();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| fsync(&s, 20, 30 * SEGMENT, 4));
        until("it waits", || s.report().devices.waiting_for_host > 0);
        d.give(2000);
        waits.join().unwrap().unwrap();
    });
    until("the flag goes", || s.look_for_host_space());
    let crashed = opened(Arc::new(MemoryImage::capture(d.inner()).unwrap().fork().unwrap()));
    assert!((0..30 * SEGMENT).all(|p| first_byte(&crashed, 20, p) == Some(4)));
}

/// An image that lay on the host of an earlier mount had what was free then below it for ever.
#[test]
fn what_an_earlier_mount_left_goes_back_to_a_host_that_is_full() {
    let (s, d) = thin(6000);
    for round in 0..3 {
        fsync(&s, 20, 40 * SEGMENT, round).unwrap();
    }
    s.unmap(0, lanefs_format::Ino(20), 0..40 * SEGMENT, None).unwrap();
    s.submit(Transaction {
        durable: true,
        inodes: vec![update(20, 0, Vec::new())],
        ..Transaction::default()
    })
    .unwrap();
    s.close().unwrap();
    drop(s);
    let s = opened(d.clone());
    d.fill();
    // More than is kept.
    fsync(&s, 21, 20 * SEGMENT, 7).unwrap();
    assert!(d.refused() > 0, "nothing had to be given back");
    // As they are on the medium.
    let crashed = opened(Arc::new(MemoryImage::capture(d.inner()).unwrap().fork().unwrap()));
    assert!((0..20 * SEGMENT).all(|p| first_byte(&crashed, 21, p) == Some(7)));
    s.audit().unwrap();
}

/// Two devices: each is waited for by itself, and a small submission starts no thread.
#[test]
fn of_two_devices_one_may_be_refused() {
    let (s, thin) = two_thin();
    thin[1].fill();
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..2)
            .map(|lane| {
                let s = &s;
                scope.spawn(move || {
                    let ino = 20 + lane as u64;
                    let pages = (0..20 * SEGMENT).map(|p| (p, page(5))).collect();
                    let inodes = vec![update(ino, 20 * SEGMENT, pages)];
                    s.submit(Transaction { lane, durable: true, inodes, ..Transaction::default() })
                })
            })
            .collect();
        until("one waits", || s.report().devices.waiting_for_host > 0);
        thin[1].give(1000);
        all.into_iter().for_each(|t| t.join().unwrap().unwrap());
    });
    until("the flag goes", || s.look_for_host_space());
    assert!((20..22).all(|ino| first_byte(&s, ino, 19 * SEGMENT) == Some(5)));
}

/// It waited for the host in the middle of a round, with a lock for which a label, another change
/// and the checkpoint behind a removed file waited, too.
#[test]
fn what_a_device_holds_is_not_moved_where_there_is_no_space_for_it() {
    let (s, thin) = two_thin();
    for lane in 0..2 {
        let pages = (0..20 * SEGMENT).map(|p| (p, page(5))).collect();
        let inodes = vec![update(20 + lane as u64, 20 * SEGMENT, pages)];
        s.submit(Transaction { lane, durable: true, inodes, ..Transaction::default() }).unwrap();
    }
    // The host of the device that stays is full, and what was kept of it is used up.
    thin[0].fill();
    let mut byte = 0;
    while thin[0].refused() == 0 {
        byte += 1;
        fsync(&s, 22, 3, byte).unwrap();
        assert!(byte < 200, "the host is full, and all goes on");
    }
    let fold = || s.checkpoint(|| Ok(FoldInput { epoch: s.info().last_epoch, groups: Vec::new() })).map(drop);
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| s.remove_device(&fold));
        until("it ends, or waits", || removal.is_finished() || s.report().devices.waiting_for_host > 0);
        let waits = !removal.is_finished();
        if waits {
            thin[0].give(1000);
        }
        let done = removal.join().unwrap();
        assert!(!waits, "it waits for the host with its lock");
        assert!(matches!(&done, Err(StoreError::HostFull(why)) if why.contains("memory")), "{done:?}");
    });
    assert_eq!((first_byte(&s, 21, 19 * SEGMENT), s.info().devices), (Some(5), 2));
    // Logs leave the one that goes by some batches there. Its host has to take these, no more.
    thin[0].give(1000);
    thin[1].fill();
    let full = s.remove_device(&fold);
    assert!(matches!(&full, Err(StoreError::HostFull(_))), "{full:?}");
    thin[1].give(100);
    s.remove_device(&fold).unwrap();
    assert_eq!((first_byte(&s, 21, 19 * SEGMENT), s.info().devices), (Some(5), 1));
    s.audit().unwrap();
}
