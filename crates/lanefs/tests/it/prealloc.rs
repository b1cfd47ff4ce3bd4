//! Room that was preallocated is the file's, whatever happens beside.

use crate::{after_crash, errno, reopen, root};
use lanefs::{Cred, File, Fs, MountOptions, OpenOptions, Volume};
use lanefs_store::device::{Device, HookedDevice, Kind, MemoryDevice};
use lanefs_store::{FormatOptions, Store};
use std::sync::Arc;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;

/// Makes files until nothing more fits.
fn fill_up(fs: &Fs) {
    let f = fs.open("/rest", OpenOptions::new().write(true).create(true)).unwrap();
    let (mut at, mut piece) = (f.stat().unwrap().size, 1 << 20);
    while piece >= PAGE as usize {
        match f.write_at(&vec![1; piece], at) {
            Ok(n) => at += n as u64,
            Err(e) => {
                assert_eq!(e.errno(), libc::ENOSPC);
                piece /= 2;
            }
        }
    }
    assert_eq!(errno(f.write_at(&[1; 4096], at + 100 * PAGE)), libc::ENOSPC);
}

fn open(fs: &Fs, path: &str) -> File {
    fs.open(path, OpenOptions::new().read(true).write(true)).unwrap()
}

/// Writes a whole file, a part at a time, and says so if it could not.
fn write_whole(f: &File, size: u64, byte: u8) {
    let mut at = 0;
    while at < size {
        let part = vec![byte; (300_000).min((size - at) as usize)];
        at += f.write_at(&part, at).unwrap_or_else(|e| panic!("{byte} at {at}: {e}")) as u64;
    }
}

fn free(fs: &Fs) -> u64 {
    fs.volume().sync().unwrap();
    fs.volume().checkpoint().unwrap();
    fs.volume().statfs().unwrap().free
}

fn blocks(f: &File) -> u64 {
    f.stat().unwrap().blocks
}

#[test]
fn what_was_preallocated_can_be_written_and_written_again_on_a_full_volume() {
    let (fs, dev) = root(96);
    let size = 24 * MIB;
    let f = fs.create("/f").unwrap();
    f.allocate(0, 0, size).unwrap();
    assert_eq!((f.stat().unwrap().size, blocks(&f)), (size, size / 512));
    fill_up(&fs);
    for byte in [7, 8, 9] {
        write_whole(&f, size, byte);
        f.sync_all().unwrap_or_else(|e| panic!("{byte}: {e}"));
        assert_eq!(blocks(&f), size / 512);
    }
    assert!(after_crash(&dev).read("/f").unwrap() == vec![9; size as usize]);
    // So can what was written without having been preallocated.
    let rest = open(&fs, "/rest");
    let long = rest.stat().unwrap().size / PAGE * PAGE;
    write_whole(&rest, long, 5);
    rest.sync_all().unwrap();
    drop((f, rest));
    let fs = reopen(fs, &dev);
    assert!(fs.read("/f").unwrap() == vec![9; size as usize]);
    assert!(fs.read("/rest").unwrap()[..long as usize] == vec![5; long as usize]);
}

#[test]
fn what_was_synced_has_its_room_after_a_crash_and_after_a_close() {
    let (fs, dev) = root(64);
    let (f, g, size) = (fs.create("/f").unwrap(), fs.create("/g").unwrap(), 8 * MIB);
    f.allocate(0, 0, size).unwrap();
    f.write_at(&[1; 10 * 4096], 100 * PAGE).unwrap();
    f.sync_all().unwrap();
    g.write_at(&[1; 100], 0).unwrap();
    g.allocate(KEEP, 0, size).unwrap();
    g.sync_data().unwrap();
    let has_room = |fs: Fs| {
        assert_eq!(fs.stat("/f").unwrap().blocks, size / 512);
        assert_eq!((fs.stat("/g").unwrap().size, fs.stat("/g").unwrap().blocks), (100, size / 512));
        fill_up(&fs);
        for path in ["/f", "/g"] {
            write_whole(&open(&fs, path), size, 3);
            open(&fs, path).sync_all().unwrap();
        }
        fs.volume().close().unwrap();
    };
    has_room(after_crash(&dev));
    drop((f, g));
    has_room(reopen(fs, &dev));
    assert!(after_crash(&dev).read("/g").unwrap() == vec![3; size as usize]);
}

#[test]
fn room_comes_back_from_holes_truncations_and_removed_files() {
    let (fs, _dev) = root(64);
    let f = fs.create("/f").unwrap();
    let before = free(&fs);
    let near = |want: u64, what: &str| {
        let now = free(&fs);
        assert!(now.abs_diff(want) < 64, "{what}: {now} free, not {want}");
    };
    f.allocate(KEEP, 0, 16 * MIB).unwrap();
    near(before - 4096, "preallocated");
    assert_eq!((f.stat().unwrap().size, blocks(&f)), (0, 16 * MIB / 512));
    // Again is no more.
    f.allocate(0, MIB, 4 * MIB).unwrap();
    assert_eq!((f.stat().unwrap().size, blocks(&f)), (5 * MIB, 16 * MIB / 512));
    near(before - 4096, "twice");
    f.allocate(PUNCH, MIB, 2 * MIB).unwrap();
    near(before - 3584, "with a hole");
    assert_eq!(blocks(&f), 14 * MIB / 512);
    write_whole(&f, 4 * MIB, 1);
    near(before - 4096, "with the hole filled");
    f.allocate(libc::FALLOC_FL_ZERO_RANGE, 0, 2 * MIB).unwrap();
    near(before - 4096, "with zeros");
    assert!(fs.read("/f").unwrap()[..3 * MIB as usize].iter().take(2 * MIB as usize).all(|b| *b == 0));
    f.set_len(MIB).unwrap();
    near(before - 256, "truncated");
    assert_eq!(blocks(&f), MIB / 512);
    f.allocate(KEEP, 0, 16 * MIB).unwrap();
    drop(f);
    fs.unlink("/f").unwrap();
    near(before, "removed");
}

#[test]
fn what_is_more_than_there_is_room_for_is_refused_and_keeps_nothing() {
    let (fs, _dev) = root(32);
    let f = fs.create("/f").unwrap();
    let before = free(&fs);
    for len in [before * PAGE + PAGE, 1 << 40, i64::MAX as u64 - 4096] {
        assert_eq!(errno(f.allocate(0, 0, len)), libc::ENOSPC);
        assert_eq!((f.stat().unwrap().size, blocks(&f)), (0, 0));
    }
    assert!(free(&fs).abs_diff(before) < 8);
    f.allocate(0, 0, before * PAGE * 9 / 10).unwrap();
    assert_eq!(errno(fs.create("/g").unwrap().allocate(0, 0, before * PAGE / 5)), libc::ENOSPC);
}

/// A sparse file has more preallocated ranges than its inode can tell of.
/// What lay there was gone, and the call failed.
#[test]
fn zeros_for_which_there_is_no_space_leave_what_was_there() {
    let (fs, dev) = root(64);
    let f = fs.open("/f", OpenOptions::new().read(true).write(true).create(true)).unwrap();
    write_whole(&f, MIB + 100, 7);
    f.sync_all().unwrap();
    let there = blocks(&f);
    for mode in [libc::FALLOC_FL_ZERO_RANGE, libc::FALLOC_FL_ZERO_RANGE | KEEP] {
        assert_eq!(errno(f.allocate(mode, 0, 5 << 30)), libc::ENOSPC);
        assert_eq!((blocks(&f), f.stat().unwrap().size), (there, MIB + 100));
    }
    assert!(reopen(fs, &dev).read("/f").unwrap() == vec![7; MIB as usize + 100]);
}

#[test]
fn many_ranges_keep_their_room() {
    let (fs, dev) = root(64);
    let f = fs.create("/f").unwrap();
    for n in 0..20 {
        f.allocate(0, n * 40 * PAGE, 10 * PAGE).unwrap();
    }
    let most = blocks(&f);
    assert!(most >= 200 * 8, "{most}");
    f.sync_all().unwrap();
    assert_eq!(after_crash(&dev).stat("/f").unwrap().blocks, most);
    fill_up(&fs);
    for n in 0..20 {
        assert_eq!(f.write_at(&[n as u8; 40_960], n * 40 * PAGE).unwrap(), 40_960);
    }
    f.sync_all().unwrap();
    // Written all over it is a file as any other: holes give their room back.
    fs.unlink("/rest").unwrap();
    let g = fs.create("/g").unwrap();
    g.allocate(0, 0, 100 * PAGE).unwrap();
    write_whole(&g, 100 * PAGE, 1);
    g.sync_all().unwrap();
    for n in (0..100).step_by(2) {
        g.allocate(PUNCH, n * PAGE, PAGE).unwrap();
    }
    g.sync_all().unwrap();
    assert_eq!(blocks(&g), 50 * 8);
}

/// What was preallocated behind the end is given back as programs do that grow into it: RocksDB
/// sets the size that the file has, and makes a hole behind the end. Also of a file with holes that
/// was read from the volume, whose blocks are no more than its size needs.
#[test]
fn room_behind_the_end_comes_back() {
    let (fs, dev) = root(64);
    let f = fs.create("/f").unwrap();
    f.write_at(&[1; 4096], 9 * PAGE).unwrap();
    f.sync_all().unwrap();
    let before = free(&fs);
    let behind = || {
        let f = open(&fs, "/f");
        f.allocate(KEEP, 10 * PAGE, 5 * PAGE).unwrap();
        assert_eq!((f.stat().unwrap().size, blocks(&f)), (10 * PAGE, 6 * 8));
        assert!(free(&fs) <= before - 5);
        f
    };
    behind().set_len(10 * PAGE).unwrap();
    assert_eq!((blocks(&f), free(&fs)), (8, before));
    behind().allocate(PUNCH, 10 * PAGE, 5 * PAGE).unwrap();
    assert_eq!((blocks(&f), free(&fs)), (8, before));
    behind().allocate(PUNCH, 12 * PAGE, i64::MAX as u64 / 2).unwrap();
    assert_eq!((f.stat().unwrap().size, blocks(&f)), (10 * PAGE, 3 * 8));
    f.sync_all().unwrap();
    drop(f);
    let crashed = after_crash(&dev);
    assert_eq!(crashed.stat("/f").unwrap().blocks, 3 * 8);
    open(&crashed, "/f").set_len(10 * PAGE).unwrap();
    assert_eq!((crashed.stat("/f").unwrap().blocks, free(&crashed)), (8, before));
}

/// Three ranges of one page, a gibibyte apart, took two gibibytes: a file has two ranges, and what
/// lay between them was kept as well.
#[test]
fn what_is_preallocated_far_apart_takes_no_more_than_was_asked_for() {
    const GIB: u64 = 1 << 30;
    const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
    let (fs, dev) = root(32);
    let f = fs.open("/f", OpenOptions::new().read(true).write(true).create(true)).unwrap();
    f.set_len(8 * GIB).unwrap();
    let blocks = |f: &File| f.stat().unwrap().blocks;
    for n in 0..6 {
        f.allocate(if n % 2 == 0 { 0 } else { ZERO | KEEP }, n * GIB, 4096).unwrap();
        assert_eq!(blocks(&f), (n + 1) * 8, "after {n}");
    }
    // What is there stays, and pages around it get their space.
    f.write_all_at(&[7; 5000], 6 * GIB).unwrap();
    f.allocate(0, 6 * GIB - 8192, 24576).unwrap();
    assert_eq!(blocks(&f), (6 + 6) * 8);
    let read = |f: &File, at: u64, len: usize| {
        let mut is = vec![1; len];
        f.read_exact_at(&mut is, at).unwrap();
        is
    };
    assert_eq!(read(&f, 6 * GIB, 5001), [&[7; 5000][..], &[0]].concat());
    // Zeros come over it, to the byte.
    f.allocate(ZERO, 6 * GIB + 100, 4800).unwrap();
    assert_eq!(read(&f, 6 * GIB, 5001), [&[7; 100][..], &[0; 4800], &[7; 100], &[0]].concat());
    // Behind the end it grows, or the range is kept there as ever.
    f.allocate(0, 9 * GIB, 4096).unwrap();
    assert_eq!((f.stat().unwrap().size, blocks(&f)), (9 * GIB + 4096, (6 + 6 + 1) * 8));
    // Not more than there is, and then nothing is changed.
    let size = f.stat().unwrap().size;
    assert_eq!(f.allocate(0, 10 * GIB, 64 << 20).unwrap_err().errno(), libc::ENOSPC);
    assert_eq!((f.stat().unwrap().size, blocks(&f)), (size, (6 + 6 + 1) * 8));
    f.sync_all().unwrap();
    drop(f);
    let left = after_crash(&dev);
    let f = left.open("/f", OpenOptions::new().read(true)).unwrap();
    assert_eq!((f.stat().unwrap().size, blocks(&f)), (size, (6 + 6 + 1) * 8));
    assert_eq!(read(&f, 6 * GIB, 5001), [&[7; 100][..], &[0; 4800], &[7; 100], &[0]].concat());
    assert_eq!(read(&f, 3 * GIB, 4096), [0; 4096]);
}

/// A page that is on its way to the store has its space, and something in it, though it was a hole.
#[test]
fn what_is_being_written_is_left_alone_by_who_preallocates_far_apart() {
    const GIB: u64 = 1 << 30;
    let device = Arc::new(HookedDevice::new(MemoryDevice::new(32 << 20).unwrap()));
    let d: Arc<dyn Device> = device.clone();
    Store::format(std::slice::from_ref(&d), &FormatOptions::default()).unwrap();
    let options = MountOptions { background: false, ..MountOptions::default() };
    let fs = Volume::open_devices(vec![d], &options).unwrap().as_user(Cred::root());
    let open = |fs: &Fs| fs.open("/f", OpenOptions::new().read(true).write(true).create(true)).unwrap();
    let f = open(&fs);
    f.set_len(8 * GIB).unwrap();
    f.allocate(0, 0, PAGE).unwrap();
    f.allocate(0, 3 * GIB, PAGE).unwrap();
    f.sync_all().unwrap();
    f.write_all_at(&[7; 4096], 6 * GIB).unwrap();
    let theirs = fs.clone();
    device.before(Kind::Write, move || {
        let midway = move || open(&theirs).allocate(0, 6 * GIB, 2 * PAGE).unwrap();
        std::thread::spawn(midway).join().expect("what is done midway succeeds");
        Ok(())
    });
    f.sync_all().unwrap();
    assert!(device.is_done(Kind::Write), "it was written midway");
    f.sync_all().unwrap();
    assert_eq!(f.stat().unwrap().blocks, 4 * 8);
    let mut is = [1; 8192];
    f.read_exact_at(&mut is, 6 * GIB).unwrap();
    assert_eq!(is[..], [[7; 4096], [0; 4096]].concat());
}

/// What is written with zeros for want of a range may be more than memory takes. Nobody knew that
/// the file was dirty before the call was done, so nobody wrote it back: each page waited for two
/// seconds, and so did everybody who wrote anything.
#[test]
fn more_is_preallocated_far_apart_than_memory_takes() {
    const GIB: u64 = 1 << 30;
    const PAGES: u64 = 1024;
    let d: Arc<dyn Device> = Arc::new(MemoryDevice::new(32 << 20).unwrap());
    Store::format(std::slice::from_ref(&d), &FormatOptions::default()).unwrap();
    let options = MountOptions { frames: 64, ..MountOptions::default() };
    let fs = Volume::open_devices(vec![d], &options).unwrap().as_user(Cred::root());
    for mode in [0, libc::FALLOC_FL_ZERO_RANGE] {
        let f = fs.open("/f", OpenOptions::new().read(true).write(true).create(true)).unwrap();
        f.set_len(8 * GIB).unwrap();
        f.allocate(0, 0, PAGE).unwrap();
        f.allocate(0, 3 * GIB, PAGE).unwrap();
        f.write_all_at(&[7; 4096], 6 * GIB).unwrap();
        fs.volume().sync().unwrap();
        let begun = std::time::Instant::now();
        f.allocate(mode, 6 * GIB, PAGES * PAGE).unwrap();
        // Two seconds for each page would be half an hour.
        assert!(begun.elapsed().as_secs() < 200, "each page waits");
        assert_eq!(f.stat().unwrap().blocks, (2 + PAGES) * 8);
        let mut is = [1; 4096];
        f.read_exact_at(&mut is, 6 * GIB).unwrap();
        assert_eq!(is, [if mode == 0 { 7 } else { 0 }; 4096]);
        fs.unlink("/f").unwrap();
    }
}

/// It was refused on a full volume, and had zeroed the range.
#[test]
fn a_range_of_a_file_is_zeroed_on_a_full_volume() {
    for keep in [0, libc::FALLOC_FL_KEEP_SIZE] {
        for synced in [true, false] {
            let (fs, dev) = root(24);
            let f = fs.create("/f").unwrap();
            let f = {
                drop(f);
                open(&fs, "/f")
            };
            write_whole(&f, 1 << 20, 7);
            if synced {
                fs.volume().sync().unwrap();
                fs.volume().checkpoint().unwrap();
            }
            fill_up(&fs);
            let (from, len) = (100 + 16 * 4096, 300_000);
            f.allocate(libc::FALLOC_FL_ZERO_RANGE | keep, from, len).unwrap();
            let mut wanted = vec![7; 1 << 20];
            wanted[from as usize..(from + len) as usize].fill(0);
            assert!(fs.read("/f").unwrap() == wanted, "{keep}, {synced}");
            // The space is the file's: it is written again, and found after a crash.
            assert_eq!(f.write_at(&[8; 100_000], 20 * 4096).unwrap(), 100_000);
            wanted[20 * 4096..20 * 4096 + 100_000].fill(8);
            f.sync_all().unwrap();
            assert!(after_crash(&dev).read("/f").unwrap() == wanted, "{keep}, {synced}, after a crash");
            assert!(reopen(fs, &dev).read("/f").unwrap() == wanted, "{keep}, {synced}, reopened");
        }
    }
}
