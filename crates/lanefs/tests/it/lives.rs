//! Files of which it is said how long they will live.

use crate::ahead::recorded;
use crate::options;
use lanefs::{File, OpenOptions, WriteLife};
use lanefs_store::device::{MemoryDevice, Payload, RecordingDevice};
use std::collections::BTreeSet;

/// Bytes of a segment of these volumes.
const SEGMENT: u64 = 64 * 4096;

/// Returns the segments to which blocks of this byte were written from `since` on.
fn segments(dev: &RecordingDevice<MemoryDevice>, byte: u8, since: usize) -> BTreeSet<u64> {
    let log = dev.recorder().log();
    let mut found = BTreeSet::new();
    for w in &log.writes[since..] {
        let Payload::Bytes(bytes) = &w.payload else { continue };
        for (n, block) in bytes.chunks(4096).enumerate() {
            if block.iter().all(|b| *b == byte) {
                found.insert((w.offset + n as u64 * 4096) / SEGMENT);
            }
        }
    }
    found
}

/// Pages of a turn: the few of a smaller fsync lie in the log, whatever is said of them.
const PAGES: u64 = 20;

/// Writes to both files in turns, the pages of each turn durable before the next.
fn write_in_turns(a: (&File, u8), b: (&File, u8), turns: u64) {
    for turn in 0..turns {
        for (file, byte) in [a, b] {
            file.write_all_at(&[byte; PAGES as usize * 4096], turn * PAGES * 4096).unwrap();
            file.sync_data().unwrap();
        }
    }
}

/// What is said of a file decides beside what it lies. Nobody has said anything: beside what was
/// written with it.
#[test]
fn files_that_die_at_different_times_lie_apart() {
    let (fs, dev) = recorded(&options());
    let (a, b) = (fs.create("/a").unwrap(), fs.create("/b").unwrap());
    let written = || dev.recorder().log().writes.len();
    let since = written();
    write_in_turns((&a, 1), (&b, 2), 8);
    let (of_a, of_b) = (segments(&dev, 1, since), segments(&dev, 2, since));
    assert!(of_a.intersection(&of_b).count() >= 2, "nothing was said: {of_a:?} and {of_b:?}");
    for (n, (first, second)) in [
        (WriteLife::Short, WriteLife::NotSet),
        (WriteLife::Extreme, WriteLife::Medium),
        (WriteLife::Short, WriteLife::Long),
    ]
    .into_iter()
    .enumerate()
    {
        a.set_write_life(first);
        b.set_write_life(second);
        let (since, bytes) = (written(), (10 + 2 * n as u8, 11 + 2 * n as u8));
        write_in_turns((&a, bytes.0), (&b, bytes.1), 8);
        let (of_a, of_b) = (segments(&dev, bytes.0, since), segments(&dev, bytes.1, since));
        assert!(of_a.len() >= 2 && of_b.len() >= 2, "{of_a:?} and {of_b:?}");
        assert!(of_a.is_disjoint(&of_b), "{first:?} in {of_a:?}, {second:?} in {of_b:?}");
    }
}

/// It is said of the file, not of a handle; a crash or a close forgets it.
#[test]
fn a_life_is_the_files_and_is_not_durable() {
    let (fs, dev) = crate::root(64);
    let file = fs.create("/f").unwrap();
    assert_eq!(file.write_life(), WriteLife::NotSet);
    let numbers = (0..6).map(|n| WriteLife::from_hint(n).unwrap());
    for (n, life) in numbers.enumerate() {
        assert_eq!(life.hint(), n as u64);
        file.set_write_life(life);
        let other = fs.open("/f", OpenOptions::new().read(true)).unwrap();
        assert_eq!((file.write_life(), other.write_life()), (life, life));
        // The marks beside it are as they were: what is written is durable when asked.
        file.write_all_at(&[n as u8; 5000], n as u64 * 5000).unwrap();
        file.sync_all().unwrap();
    }
    assert_eq!(WriteLife::from_hint(6), None);
    assert_eq!(fs.create("/g").unwrap().write_life(), WriteLife::NotSet);
    let left = crate::after_crash(&dev);
    assert_eq!(left.stat("/f").unwrap().size, 30_000);
    assert_eq!(left.open("/f", OpenOptions::new().read(true)).unwrap().write_life(), WriteLife::NotSet);
    drop(file);
    let fs = crate::reopen(fs, &dev);
    let file = fs.open("/f", OpenOptions::new().read(true)).unwrap();
    assert_eq!(file.write_life(), WriteLife::NotSet);
}
