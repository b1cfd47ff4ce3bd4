//! A volume is made where another one was, and nothing of the other is ever taken for it.
//!
//! The story: the copy of the superblock lies where the segments' size puts it. A new volume with
//! other segments left the older copy where it was, in a block that nothing overwrites; and whoever
//! looked for the copy after block 0 had gone bad met the older one first, and went by it.
//! `fsck --repair` would have written it into block 0.

use crate::common::*;
use lanefs_store::device::{Crash, Device, Fate, MemoryDevice, MemoryImage, Recorder};
use lanefs_store::*;
use std::sync::Arc;

fn make(d: &Arc<MemoryDevice>, id: u8, segment_blocks: u32) {
    let o = FormatOptions {
        uuid: Some([id; 16]),
        time: Some(i64::from(id)),
        segment_blocks,
        force: true,
        ..format_options()
    };
    Store::format(&[d.clone() as Dev], &o).unwrap();
}

/// Which volume opens.
fn who(d: &Arc<MemoryDevice>) -> [u8; 16] {
    let (s, _) = open(&(d.clone() as Dev));
    let id = s.info().uuid;
    s.shutdown();
    id
}

fn uuid_of(id: u8) -> [u8; 16] {
    let d = Arc::new(MemoryDevice::new(32 << 20).unwrap());
    make(&d, id, 16);
    who(&d)
}

#[test]
fn a_lost_superblock_is_not_replaced_by_that_of_an_older_volume() {
    let d = Arc::new(MemoryDevice::new(32 << 20).unwrap());
    make(&d, 5, 16);
    make(&d, 6, 64);
    d.poke(0, &[0; 4096]).unwrap();
    assert_eq!(who(&d), uuid_of(6));
}

#[test]
fn of_several_copies_the_newest_counts() {
    let d = Arc::new(MemoryDevice::new(32 << 20).unwrap());
    make(&d, 5, 16);
    let older = d.to_vec()[15 * 4096..16 * 4096].to_vec();
    make(&d, 6, 64);
    d.poke(15 * 4096, &older).unwrap();
    d.poke(0, &[0; 4096]).unwrap();
    assert_eq!(who(&d), uuid_of(6));
}

#[test]
fn a_volume_with_a_bad_superblock_is_not_made_over_unasked() {
    let d = Arc::new(MemoryDevice::new(32 << 20).unwrap());
    make(&d, 5, 16);
    d.poke(0, &[0; 4096]).unwrap();
    assert!(Store::format(&[d.clone() as Dev], &format_options()).is_err());
    assert_eq!(who(&d), uuid_of(5));
}

#[test]
fn what_cannot_be_made_leaves_what_was_there() {
    let d: Arc<dyn Device> = Arc::new(MemoryDevice::new(32 << 20).unwrap());
    Store::format(std::slice::from_ref(&d), &FormatOptions::default()).unwrap();
    let uuid = Store::open(vec![d.clone()], &OpenOptions::default()).unwrap().0.info().uuid;
    let o = || FormatOptions { force: true, ..FormatOptions::default() };
    for wrong in [
        FormatOptions { mlogs: 129, ..o() },
        FormatOptions { mlogs: 1000, ..o() },
        FormatOptions { label: "a\tb".into(), ..o() },
        FormatOptions { uuid: Some([0; 16]), ..o() },
        FormatOptions { segment_blocks: 48, ..o() },
    ] {
        let refused = Store::format(std::slice::from_ref(&d), &wrong);
        assert!(refused.is_err(), "{wrong:?}");
        let (s, _) = Store::open(vec![d.clone()], &OpenOptions::default()).unwrap();
        assert_eq!(s.info().uuid, uuid, "{wrong:?}");
    }
    let many = Store::format(&vec![d.clone(); 65], &o()).map_err(|e| e.errno());
    assert_eq!(many, Err(libc::EINVAL));
    Store::format(std::slice::from_ref(&d), &FormatOptions { mlogs: 128, ..o() }).unwrap();
}

/// Wherever the power fails while a volume is made over another: as long as the other opens, all of
/// it is there.
#[test]
fn a_volume_that_is_half_made_over_is_whole_or_none() {
    const PAGES: u64 = 100;
    let d = Arc::new(MemoryDevice::new(10 << 20).unwrap());
    // One before that has left a copy of its superblock, which has to go first.
    make(&d, 4, 16);
    let older = d.to_vec()[15 * 4096..16 * 4096].to_vec();
    make(&d, 5, 32);
    d.poke(15 * 4096, &older).unwrap();
    let (s, _) = open(&(d.clone() as Dev));
    let (last, epoch) = (s.info().uuid, s.info().last_epoch + 1);
    let g = group(epoch, 1, &[new_file(20), set(b"a", 20, 0)]);
    let pages = (0..PAGES).map(|p| (p, page(p))).collect();
    s.submit(tx(true, g, vec![update(20, PAGES * 4096, pages)])).unwrap();
    drop(s);
    let base = MemoryImage::capture(&*d).unwrap();
    let recorder = Recorder::new();
    let over: Dev = Arc::new(recorder.wrap(base.fork().unwrap()));
    let o = FormatOptions { force: true, segment_blocks: 32, uuid: Some([6; 16]), ..format_options() };
    Store::format(&[over], &o).unwrap();
    let log = recorder.log();
    let (mut old, mut new) = (0, 0);
    for at in 0..=log.now {
        let crash = Crash::new(&log, at);
        let bases = std::slice::from_ref(&base);
        let states = [
            crash.build(bases, |_, _| Fate::Lost),
            crash.build(bases, |_, _| Fate::Whole),
            crash.build_random(bases, at),
        ];
        for left in states {
            let left: Dev = Arc::new(left.unwrap().remove(0));
            let Ok((s, _)) = Store::open(vec![left], &OpenOptions::default()) else { continue };
            if s.info().uuid != last {
                new += 1;
                assert_eq!((s.space().inodes, lookup(&s, b"a")), (1, None), "at {at} of {}", log.now);
                continue;
            }
            old += 1;
            assert_eq!(lookup(&s, b"a"), Some(Ino(20)), "at {at} of {}", log.now);
            for p in 0..PAGES {
                let whole = read(&s, 20, p).is_some_and(|b| b.0 == page(p).0);
                assert!(whole, "at {at} of {}: page {p} of the last volume", log.now);
            }
        }
    }
    assert!(old > 3 && new > 0, "{old} times the last volume, {new} times the new one");
}
