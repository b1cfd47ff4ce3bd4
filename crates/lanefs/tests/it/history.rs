//! What earlier systems got wrong, where the crash simulator is not the place to see it.
//! docs/TESTING.md has the whole list.

use crate::{errno, options};
use lanefs::{Cred, Fs, MountOptions, OpenOptions, Volume};
use lanefs_store::device::{Device, Log, MemoryDevice, MemoryImage, Payload, Recorder, RecordingDevice};
use lanefs_store::{FormatOptions, Store};
use lanefs_sync::random::Rng;
use std::sync::Arc;

type Recording = Arc<RecordingDevice<MemoryDevice>>;

/// A fresh volume on a recorded device.
fn recorded(mib: u64, format: &FormatOptions, options: &MountOptions) -> (Fs, Recording) {
    let dev = Arc::new(Recorder::new().wrap(MemoryDevice::new(mib << 20).unwrap()));
    let d: Arc<dyn Device> = dev.clone();
    Store::format(std::slice::from_ref(&d), format).unwrap();
    (Volume::open_devices(vec![d], options).unwrap().as_user(Cred::root()), dev)
}

fn small_segments() -> FormatOptions {
    FormatOptions { segment_blocks: 16, mlogs: 4, ..Default::default() }
}

/// What is there after a crash now, opened with `options`.
fn crashed(dev: &Recording, options: &MountOptions) -> Fs {
    let image = MemoryImage::capture(dev.inner()).unwrap();
    let d: Arc<dyn Device> = Arc::new(image.fork().unwrap());
    Volume::open_devices(vec![d], options).unwrap().as_user(Cred::root())
}

/// How many slots and how many other blocks were written, and how many flushes were made, since the
/// log was taken last.
fn cost(log: &Log) -> (usize, u64, usize) {
    let (mut slots, mut blocks) = (0, 0);
    for w in &log.writes {
        if let Payload::Bytes(b) = &w.payload {
            if b.starts_with(b"LFSLOT") { slots += 1 } else { blocks += b.len() as u64 / 4096 }
        }
    }
    (slots, blocks, log.flushes.len())
}

/// Max's published code lost what was fsynced in a log other than the first, and could not be
/// mounted with another number of them.
#[test]
fn after_a_crash_another_number_of_logs_finds_what_all_logs_held() {
    for (before, after) in [(4, 1), (1, 4), (4, 3), (2, 0)] {
        let (fs, dev) = recorded(64, &small_segments(), &MountOptions { mlogs: before, ..options() });
        std::thread::scope(|s| {
            for t in 0..6 {
                let fs = &fs;
                s.spawn(move || {
                    for i in 0..10 {
                        let f = fs.create(&*format!("/f{t}-{i}")).unwrap();
                        f.write_all_at(&vec![t as u8 + 1; 100 + i * 3000], 0).unwrap();
                        f.sync_all().unwrap();
                    }
                });
            }
        });
        let fs = crashed(&dev, &MountOptions { mlogs: after, ..options() });
        for (t, i) in (0..6).flat_map(|t| (0..10).map(move |i| (t, i))) {
            assert_eq!(fs.read(&*format!("/f{t}-{i}")).unwrap(), vec![t as u8 + 1; 100 + i * 3000]);
        }
        // And on: what the other logs held is not overwritten before a checkpoint, nor forgotten
        // after it.
        let f = fs.create("/more").unwrap();
        f.write_all_at(&[9; 50_000], 0).unwrap();
        f.sync_all().unwrap();
        fs.volume().checkpoint().unwrap();
        assert_eq!(fs.read("/f5-9").unwrap(), vec![6; 27_100]);
        assert_eq!(fs.read("/more").unwrap(), [9; 50_000]);
    }
}

/// ScaleFS could not commit a transaction larger than a block of its journal.
#[test]
fn a_transaction_larger_than_a_batch_and_than_a_segment_is_there_whole() {
    let (fs, dev) = recorded(64, &small_segments(), &options());
    let name = |i: usize| format!("/{i:04}{}", "n".repeat(200));
    // Half a megabyte of names in one epoch; a segment has 64 KiB, a batch less.
    for i in 0..2000 {
        fs.create(&*name(i)).unwrap();
    }
    fs.volume().sync().unwrap();
    let c = crashed(&dev, &options());
    assert!((0..2000).all(|i| c.stat(&*name(i)).is_ok()));
    drop(c);
    // And attributes of one inode that no batch holds, in one fsync.
    let f = fs.create("/f").unwrap();
    for i in 0..15 {
        fs.setxattr("/f", format!("user.{i}").as_bytes(), &vec![i as u8; 8000], 0).unwrap();
    }
    f.sync_all().unwrap();
    let c = crashed(&dev, &options());
    for i in 0..15 {
        assert_eq!(c.getxattr("/f", format!("user.{i}").as_bytes()).unwrap(), vec![i as u8; 8000]);
    }
}

/// F2FS turns an fsync of a directory, of a file with several names or of a renamed one into a
/// checkpoint, with stalls of seconds.
#[test]
fn no_fsync_is_a_checkpoint() {
    let (fs, dev) = recorded(64, &small_segments(), &options());
    fs.mkdir("/d", 0o755).unwrap();
    fs.mkdir("/e", 0o755).unwrap();
    for i in 0..500 {
        fs.write(&*format!("/d/{i}"), [1; 5000]).unwrap();
    }
    fs.volume().sync().unwrap();
    fs.volume().checkpoint().unwrap();
    let fsync = |path: &str| fs.open(path, &OpenOptions::new()).unwrap().sync_all().unwrap();
    let check = |what: &str, work: &dyn Fn()| {
        dev.recorder().take_log();
        work();
        let (slots, blocks, flushes) = cost(&dev.recorder().take_log());
        assert!(
            slots == 0 && flushes == 1 && (1..=4).contains(&blocks),
            "{what}: {slots} {blocks} {flushes}"
        );
    };
    check("of a directory", &|| {
        fs.create("/d/new").unwrap();
        fsync("/d");
    });
    check("of a file with two names", &|| {
        fs.link("/d/1", "/e/1").unwrap();
        fsync("/e/1");
    });
    check("of a renamed file", &|| {
        fs.rename("/d/2", "/e/2").unwrap();
        fsync("/e/2");
    });
    check("of a file renamed over another", &|| {
        fs.rename("/d/3", "/d/4").unwrap();
        fsync("/d/4");
    });
    check("of a directory that lost a name", &|| {
        fs.unlink("/d/5").unwrap();
        fsync("/d");
    });
    check("of a removed directory's parent", &|| {
        fs.mkdir("/d/sub", 0o755).unwrap();
        fs.rmdir("/d/sub").unwrap();
        fs.create("/d/last").unwrap();
        fsync("/d");
    });
    // The move of a directory is an epoch commit: one trip and one flush as well, besides that of
    // the directory itself.
    dev.recorder().take_log();
    fs.mkdir("/d/sub", 0o755).unwrap();
    fs.rename("/d/sub", "/e/sub").unwrap();
    fsync("/e");
    let (slots, _, flushes) = cost(&dev.recorder().take_log());
    assert!(slots == 0 && flushes <= 2, "{slots} {flushes}");
}

/// bcachefs hung at 90 % full, and its cleaner looped and ate what was free.
#[test]
fn overwriting_goes_on_at_90_percent() {
    let (fs, dev) =
        recorded(16, &FormatOptions { segment_blocks: 16, mlogs: 1, ..Default::default() }, &options());
    let blocks = fs.statfs().unwrap().free / 10 * 9;
    let f = fs.create("/data").unwrap();
    let mut last = vec![0u8; blocks as usize];
    let mut rng = Rng::new(1);
    for i in 0..blocks * 6 {
        let x = rng.bits();
        let b = if i < blocks { i } else { (x >> 33) % blocks };
        f.write_all_at(&[i as u8; 4096], b * 4096).unwrap();
        last[b as usize] = i as u8;
        if i % 100 == 99 {
            f.sync_all().unwrap();
        }
    }
    // What is free has not shrunk, and what was promised is there.
    f.sync_all().unwrap();
    fs.volume().checkpoint().unwrap();
    let free = fs.statfs().unwrap().free;
    assert!(free * 10 >= blocks, "{free} of {blocks}");
    let c = crashed(&dev, &options());
    let bytes = c.read("/data").unwrap();
    for (page, v) in bytes.chunks(4096).zip(&last) {
        assert!(page.iter().all(|b| b == v));
    }
}

/// XFS's per-core counters fall together near the end of the space. Here exactly what statfs calls
/// free can be written, from however many threads, and every byte accepted is there after a crash.
#[test]
fn the_last_block_can_be_written_and_not_one_more() {
    let (fs, dev) =
        recorded(16, &FormatOptions { segment_blocks: 16, mlogs: 1, ..Default::default() }, &options());
    let files: Vec<_> = (0..4).map(|t| fs.create(&*format!("/f{t}")).unwrap()).collect();
    fs.volume().sync().unwrap();
    fs.volume().checkpoint().unwrap();
    let free = fs.statfs().unwrap().free;
    let written: u64 = std::thread::scope(|s| {
        let all: Vec<_> = files
            .iter()
            .map(|f| {
                s.spawn(move || {
                    let mut n = 0;
                    loop {
                        match f.write_at(&[7; 4096], n * 4096) {
                            Ok(4096) => n += 1,
                            other => {
                                assert_eq!(errno(other), libc::ENOSPC);
                                return n;
                            }
                        }
                    }
                })
            })
            .collect();
        all.into_iter().map(|t| t.join().unwrap()).sum()
    });
    let left = fs.statfs().unwrap().free;
    assert!(written + left >= free && written <= free, "{written} written, {left} of {free} left");
    assert!(left <= 8, "{left} of {free} left, but refused");
    files.iter().for_each(|f| f.sync_all().unwrap());
    let c = crashed(&dev, &options());
    let found: u64 = (0..4).map(|t| c.stat(&*format!("/f{t}")).unwrap().size / 4096).sum();
    assert_eq!(found, written);
}

/// ScaleFS spent 25 KB on each log of each inode that a core touched; a lane of LaneFS is one log
/// for all inodes.
#[test]
fn an_operation_leaves_little_in_the_log() {
    let (fs, dev) = recorded(64, &small_segments(), &options());
    for i in 0..100 {
        fs.mkdir(&*format!("/d{i}"), 0o755).unwrap();
    }
    fs.volume().sync().unwrap();
    dev.recorder().take_log();
    // One name in each of a hundred directories: as many logs as there.
    for i in 0..100 {
        fs.create(&*format!("/d{i}/f")).unwrap();
    }
    fs.volume().sync().unwrap();
    let committed = || -> usize {
        let log = dev.recorder().take_log();
        let commits = log.writes.iter().filter_map(|w| match &w.payload {
            Payload::Bytes(b) if b.starts_with(b"LFSn\x08") && b[68] == 2 => Some(b.len()),
            _ => None,
        });
        commits.sum()
    };
    let bytes = committed();
    assert!((8_000..40_000).contains(&bytes), "{bytes} bytes for 100 operations");
    // What ends an epoch as it began leaves nothing of the way it went.
    for _ in 0..500 {
        fs.rename("/d0/f", "/d0/g").unwrap();
        fs.rename("/d0/g", "/d0/f").unwrap();
    }
    fs.create("/d0/g").unwrap();
    fs.volume().sync().unwrap();
    let bytes = committed();
    assert!((1..=4096).contains(&bytes), "{bytes} bytes for 1000 renames and a name");
}

/// Max's published code takes the log of every block from a counter that all cores share. Here a
/// thread's fsyncs go to one log, one behind the other.
#[test]
fn the_fsyncs_of_a_thread_stay_in_one_log() {
    let (fs, dev) = recorded(64, &small_segments(), &MountOptions { mlogs: 4, ..options() });
    let f = fs.create("/f").unwrap();
    f.sync_all().unwrap();
    dev.recorder().take_log();
    for i in 0..8u8 {
        f.write_all_at(&[i; 4096], 0).unwrap();
        f.sync_all().unwrap();
    }
    let log = dev.recorder().take_log();
    let batch = |w: &&lanefs_store::device::WriteRecord| matches!(&w.payload, Payload::Bytes(b) if b.starts_with(b"LFSn\x08"));
    let batches: Vec<u64> = log.writes.iter().filter(batch).map(|w| w.offset / (16 * 4096)).collect();
    let segments: std::collections::BTreeSet<u64> = batches.iter().copied().collect();
    assert!(batches.len() == 8 && segments.len() <= 2, "{batches:?}");
}
