//! What a volume tells of itself, beside what its devices were given.

use crate::options;
use lanefs::report::Report;
use lanefs::{Cred, OpenOptions, Volume};
use lanefs_store::device::{Device, MemoryDevice, Recorder};
use lanefs_store::{FormatOptions, Store};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// A volume on devices that keep an account, and the bytes written when it was about to be opened.
fn recorded(devices: u64, mib: u64, format: FormatOptions) -> (Volume, Arc<Recorder>, u64) {
    let recorder = Recorder::new();
    let one = |_| -> Arc<dyn Device> { Arc::new(recorder.wrap(MemoryDevice::new(mib * MIB).unwrap())) };
    let devices: Vec<_> = (0..devices).map(one).collect();
    Store::format(&devices, &FormatOptions { segment_blocks: 64, ..format }).unwrap();
    let before = recorder.counters().bytes_written;
    (Volume::open_devices(devices, &options()).unwrap(), recorder, before)
}

fn check_sums(r: &Report) {
    let w = &r.store.written;
    assert_eq!(w.total_bytes, w.data_bytes + w.log_bytes + w.tree_bytes + w.moved_bytes + w.root_bytes);
    let of_logs = |f: fn(&lanefs::report::MlogReport) -> u64| r.store.mlogs.iter().map(f).sum::<u64>();
    assert_eq!((of_logs(|m| m.data_bytes), of_logs(|m| m.log_bytes)), (w.data_bytes, w.log_bytes));
    let s = &r.store.segments;
    let all = s.free + s.pending + s.open + s.chain + s.by_utilisation.iter().sum::<u64>();
    assert_eq!((all, s.by_utilisation.len()), (s.total, 10), "{s:?}");
    assert!(r.cache.used_bytes == r.cache.clean_bytes + r.cache.dirty_bytes, "{:?}", r.cache);
}

/// Every byte that the devices were given has a cause, on each kind of volume.
#[test]
fn what_is_written_is_told_to_the_byte() {
    let kinds = [
        (1, FormatOptions { mlogs: 1, ..Default::default() }),
        (1, FormatOptions { mlogs: 2, metadata_copies: 2, ..Default::default() }),
        (2, FormatOptions { mlogs: 3, ..Default::default() }),
    ];
    for (devices, format) in kinds {
        let what = format!("{devices} devices, {} copies", format.metadata_copies);
        let (volume, recorder, before) = recorded(devices, 48 / devices, format);
        let fs = volume.as_user(Cred::root());
        let agree = |when: &str| {
            let report = volume.report().unwrap();
            check_sums(&report);
            let (told, given) =
                (report.store.written.total_bytes, recorder.counters().bytes_written - before);
            assert_eq!(told, given, "{what}, {when}: {:?}", report.store.written);
            report
        };
        let opened = agree("opened").store.written;
        assert_eq!((opened.data_bytes, opened.write_amplification), (0, None));
        let big = fs.open("/big", OpenOptions::new().write(true).create(true)).unwrap();
        for n in 0..300 {
            fs.write(format!("/small-{n}"), b"in its inode").unwrap();
            big.write_all_at(&[n as u8; 4096], n * 4096).unwrap();
        }
        big.sync_all().unwrap();
        let synced = agree("synced").store;
        assert_eq!(synced.written.data_bytes, 300 * 4096);
        assert!(synced.mlogs.iter().any(|m| m.to_recover_bytes > 0), "{:?}", synced.mlogs);
        volume.sync().unwrap();
        volume.checkpoint().unwrap();
        let folded = agree("folded").store;
        assert!(folded.checkpoints.folding > synced.checkpoints.folding, "{:?}", folded.checkpoints);
        assert!(folded.written.tree_bytes > synced.written.tree_bytes && folded.space.inodes >= 301);
        assert!(folded.mlogs.iter().all(|m| m.to_recover_bytes == 0), "{:?}", folded.mlogs);
        // Half of each segment dies, and the cleaner moves the rest.
        let holes = fs.open("/holes", OpenOptions::new().write(true).create(true)).unwrap();
        holes.write_all_at(&vec![1; 12 << 20], 0).unwrap();
        volume.sync().unwrap();
        volume.checkpoint().unwrap();
        for page in (0..12 * 256).step_by(2) {
            holes.write_all_at(&[2; 4096], page * 4096).unwrap();
        }
        volume.sync().unwrap();
        volume.checkpoint().unwrap();
        let worn = agree("overwritten").store;
        assert!(worn.segments.by_utilisation[3..6].iter().sum::<u64>() > 20, "{:?}", worn.segments);
        assert_eq!(worn.written.data_bytes, (300 + 12 * 256 + 6 * 256) * 4096);
        (0..8).for_each(|_| {
            volume.tick().unwrap();
            let p = volume.report().unwrap().store.segments;
            holes.write_all_at(&vec![3; (p.free / 4 * p.segment_bytes) as usize], 0).unwrap();
            volume.sync().unwrap();
        });
        let cleaned = agree("cleaned").store;
        assert_eq!(cleaned.cleaner.segments, volume.cleaned().segments, "{:?}", cleaned.cleaner);
        assert_eq!(cleaned.cleaner.blocks_moved > 0, cleaned.written.moved_bytes > 0);
        assert!(cleaned.written.write_amplification > Some(1.0), "{:?}", cleaned.written);
        volume.close().unwrap();
        assert_eq!(volume.report().unwrap_err().errno(), libc::EIO);
    }
}

/// Memory, inodes and epochs follow what the caller does.
#[test]
fn what_is_in_memory_is_told() {
    let (volume, recorder, _) = recorded(1, 64, FormatOptions::default());
    let fs = volume.as_user(Cred::root());
    fs.stat("/").unwrap();
    let begin = volume.report().unwrap();
    let files: Vec<_> = (0..100).map(|n| fs.create(format!("/{n}")).unwrap()).collect();
    files.iter().for_each(|f| f.write_all_at(&[7; 8192], 0).unwrap());
    let dirty = volume.report().unwrap();
    check_sums(&dirty);
    assert_eq!(dirty.cache.dirty_bytes - begin.cache.dirty_bytes, 100 * 8192, "{:?}", dirty.cache);
    assert_eq!((dirty.inodes.in_memory - begin.inodes.in_memory, dirty.inodes.open), (100, 100));
    assert!(dirty.inodes.dirty >= 100 && dirty.memory.log_bytes > 100 * 32, "{dirty:?}");
    assert!(dirty.store.space.reserved_bytes >= 100 * 8192, "{:?}", dirty.store.space);
    let flushes = recorder.counters().flushes;
    files.iter().for_each(|f| f.sync_all().unwrap());
    drop(files);
    let clean = volume.report().unwrap();
    check_sums(&clean);
    assert_eq!((clean.cache.dirty_bytes, clean.cache.clean_bytes), (0, dirty.cache.used_bytes));
    assert_eq!((clean.inodes.open, clean.memory.log_bytes), (0, 0));
    // One for the names of all, at the least; and one each for those behind it.
    assert!(clean.epochs.commits > begin.epochs.commits && clean.epochs.last_commit_seconds.is_some());
    let devices = |r: &Report| r.store.devices.clone();
    assert_eq!(
        devices(&clean).flushes_issued - devices(&dirty).flushes_issued,
        recorder.counters().flushes - flushes
    );
    assert_eq!(devices(&clean).flushes_asked - devices(&dirty).flushes_asked, 100);
    assert_eq!(clean.epochs.committed + 1, clean.epochs.current);
    assert!(clean.memory.committed_log_bytes > 0 && clean.epochs.folded < clean.epochs.committed);
    volume.checkpoint().unwrap();
    let folded = volume.report().unwrap();
    assert_eq!((folded.memory.committed_log_bytes, folded.epochs.folded), (0, folded.epochs.committed));
    assert!(folded.store.checkpoints.longest_ns >= folded.store.checkpoints.last_ns);
    assert!(folded.store.checkpoints.total_ns >= folded.store.checkpoints.longest_ns);
}
