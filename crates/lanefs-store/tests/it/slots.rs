//! Superblocks and slots: what is left when some of them are gone, and devices that do not belong
//! together.

use crate::common::*;
use lanefs_format::slot::Slot;
use lanefs_format::superblock::{FAR_BLOCKS, Superblock, UnverifiedSuperblock};
use lanefs_store::device::MemoryDevice;
use lanefs_store::fsck::{FsckOptions, FsckReport, check};
use lanefs_store::*;
use std::sync::Arc;

fn superblock(d: &MemoryDevice) -> Superblock {
    let mut b = Block::zeroed();
    d.peek(0, &mut b.0).unwrap();
    UnverifiedSuperblock(b).verify(0, d.to_vec().len() as u64 / 4096).unwrap()
}

/// The slots at all their places: where they lie and what they say.
fn slots(d: &MemoryDevice) -> Vec<(u64, Slot)> {
    let sb = superblock(d);
    let read = |addr: BlockAddr| {
        let mut b = Block::zeroed();
        d.peek(addr.offset(), &mut b.0).unwrap();
        Some((addr.offset(), Slot::decode(&b, addr, sb.volume).ok()?))
    };
    (0..2).flat_map(|i| sb.slot_places(i)).filter_map(read).collect()
}

fn fsync_new(s: &Store, ino: u64) {
    let epoch = s.info().last_epoch + 1;
    let g = group(epoch, ino, &[new_file(ino), set(format!("f{ino}").as_bytes(), ino, 0)]);
    s.submit(tx(true, g, vec![update(ino, 4096, vec![(0, page(ino))])])).unwrap();
}

fn there(s: &Store, inos: std::ops::Range<u64>) -> usize {
    inos.filter(|i| lookup(s, format!("f{i}").as_bytes()).is_some() && read(s, *i, 0).is_some()).count()
}

fn device(bytes: &[u8]) -> (Arc<MemoryDevice>, Vec<Dev>) {
    let d = Arc::new(MemoryDevice::from_bytes(bytes).unwrap());
    (d.clone(), vec![d as Dev])
}

fn fsck(d: &[Dev], repair: bool) -> Result<FsckReport> {
    let o = FsckOptions { repair, threads: 1, ..FsckOptions::default() };
    check(d.to_vec(), &o, &|_| ())
}

/// A slot that says that the volume is closed lay beside the first one of a mount, and was believed
/// when that was damaged or had never arrived: everything that had been synced since was gone, and
/// nothing was said.
#[test]
fn no_damaged_or_lost_slot_takes_what_was_acknowledged_since_the_mount() {
    let (d, dd) = device(&vec![0; 4 << 20]);
    Store::format(&dd, &format_options()).unwrap();
    for life in 0..2 {
        let (s, _) = open_all(&dd);
        let e = s.info().last_epoch + 1;
        fold(&s, e, vec![group(e, 1, &[new_file(20 + life), set(&[life as u8 + 1], 20 + life, 0)])]);
        s.close().unwrap();
    }
    let closed = d.to_vec();
    assert!(slots(&d).len() == 4 && slots(&d).iter().all(|s| s.1.clean));
    for recovered in [false, true] {
        let (s, _) = open_all(&dd);
        let first = if recovered { 60 } else { 30 };
        assert!(slots(&d).iter().all(|x| !x.1.clean && x.1.mount == s.info().mount_generation));
        (first..first + 20).for_each(|ino| fsync_new(&s, ino));
        let image = d.to_vec();
        s.shutdown();
        let all = slots(&d);
        assert_eq!(all.len(), 4);
        // Any one place, both of the newer slot, and both of the older.
        let newest = all.iter().map(|s| s.1.generation).max().unwrap();
        let both = |newer: bool| {
            all.iter().filter(|s| (s.1.generation == newest) == newer).map(|s| s.0).collect::<Vec<_>>()
        };
        let mut cases: Vec<Vec<u64>> = all.iter().map(|s| vec![s.0]).collect();
        cases.extend([both(true), both(false)]);
        for case in cases {
            for old in [None, Some(&closed)] {
                let mut bytes = image.clone();
                for &at in &case {
                    let to = &mut bytes[at as usize..][..4096];
                    match old {
                        None => to[1000] ^= 1,
                        Some(old) => to.copy_from_slice(&old[at as usize..][..4096]),
                    }
                }
                let (s, _) = open_all(&device(&bytes).1);
                assert_eq!(there(&s, first..first + 20), 20, "{case:?} {}", old.is_some());
            }
        }
    }
}

/// All that finds a volume lay in its first two MiB: whoever overwrote them lost it, and
/// `fsck --repair` advised `fsck --repair`.
#[test]
fn the_start_of_a_device_overwritten_is_repaired_from_its_end() {
    let (d, dd) = device(&vec![0; 8 << 20]);
    Store::format(&dd, &FormatOptions { segment_blocks: 64, ..format_options() }).unwrap();
    let reserved = superblock(&d).layout.reserved_blocks() as usize * 4096;
    let (s, _) = open_all(&dd);
    (20..30).for_each(|ino| fsync_new(&s, ino));
    let crashed = d.to_vec();
    s.close().unwrap();
    for image in [d.to_vec(), crashed] {
        for longer in [0, 1 << 20] {
            let mut bytes = image.clone();
            bytes[..reserved].fill(0xe5);
            // Longer than when it was made: the end is not where it was.
            bytes.resize(bytes.len() + longer, 0);
            let (d, dd) = device(&bytes);
            let e = Store::open(dd.clone(), &OpenOptions::default()).map(|_| ()).unwrap_err();
            assert!(e.to_string().contains("fsck --repair"), "{e}");
            let dry = fsck(&dd, false).unwrap();
            assert!(dry.problems.iter().all(|p| p.repairable) && !dry.is_clean(), "{:#?}", dry.problems);
            assert!(d.to_vec() == bytes);
            let done = fsck(&dd, true).unwrap();
            assert!(done.left() == 0, "{:#?}", done.problems);
            assert!(fsck(&dd, false).unwrap().is_clean());
            let (s, _) = open_all(&dd);
            assert_eq!(there(&s, 20..30), 10);
        }
    }
}

#[test]
fn a_repair_that_finds_no_copy_says_so_and_does_not_advise_itself() {
    for bytes in [vec![0; 4 << 20], vec![7; 4 << 20], b"LANEFS\0\x01".repeat(1 << 18)] {
        for repair in [false, true] {
            let e = fsck(&device(&bytes).1, repair).unwrap_err().to_string();
            assert!(e.contains("no copy of one is left") && !e.contains("--repair"), "{e}");
        }
    }
}

/// A volume as it was made before there were copies at the end.
fn without_far_copies() -> (Arc<MemoryDevice>, Vec<Dev>) {
    let (d, dd) = device(&vec![0; 4 << 20]);
    Store::format(&dd, &format_options()).unwrap();
    let old = Superblock { features_read_compatible: 0, ..superblock(&d) };
    for at in old.places() {
        d.poke(at * 4096, &old.encode(at).unwrap().0).unwrap();
    }
    let end = (4 << 20) - FAR_BLOCKS * 4096;
    d.poke(end, &[0; FAR_BLOCKS as usize * 4096]).unwrap();
    (d, dd)
}

#[test]
fn a_volume_without_copies_at_its_end_is_used_as_before() {
    let (d, dd) = without_far_copies();
    for life in 0..3 {
        let (s, _) = open_all(&dd);
        assert_eq!(there(&s, 20..20 + life), life as usize);
        fsync_new(&s, 20 + life);
        if life == 1 { s.shutdown() } else { s.close().unwrap() }
    }
    let audit = open_all(&dd).0.audit().unwrap();
    assert!(audit.problems.is_empty(), "{:#?}", audit.problems);
    assert_eq!(slots(&d).len(), 2);
    let bytes = d.to_vec();
    assert!(bytes[bytes.len() - FAR_BLOCKS as usize * 4096..].iter().all(|b| *b == 0));
}

/// A copy of one device that was put back gave wrong checksums, and the advice to repair: which
/// would have removed what is newer.
#[test]
fn a_device_of_an_earlier_mount_and_one_given_twice_are_named() {
    let blank = vec![0; 4 << 20];
    let (devices, dd): (Vec<_>, Vec<Dev>) =
        (0..3).map(|_| device(&blank)).map(|d| (d.0.clone(), d.0 as Dev)).unzip();
    Store::format(&dd, &format_options()).unwrap();
    let life = |ino: u64, close: bool| {
        let (s, _) = open_all(&dd);
        fsync_new(&s, ino);
        if close {
            s.close().unwrap()
        } else {
            s.shutdown()
        }
        devices.iter().map(|d| d.to_vec()).collect::<Vec<_>>()
    };
    let images: Vec<_> = [true, false, true, true].iter().zip(20..).map(|(c, ino)| life(ino, *c)).collect();
    for (now, before) in images.iter().skip(1).zip(&images) {
        assert_eq!(there(&open_all(&of(now)).0, 20..21), 1);
        for d in 0..3 {
            let mut mixed = now.clone();
            mixed[d] = before[d].clone();
            let names = |e: StoreError| match e {
                StoreError::NotAVolume { device, why } => (device, why),
                e => panic!("{e}"),
            };
            let mixed = of(&mixed);
            let (device, why) =
                names(Store::open(mixed.clone(), &OpenOptions::default()).map(|_| ()).unwrap_err());
            assert!(why.contains("is older") && device == mixed[d].name(), "{device}: {why}");
            let (_, why) = names(fsck(&mixed, true).unwrap_err());
            assert!(why.contains("is older"), "{why}");
        }
    }
    let twice = vec![dd[0].clone(), dd[1].clone(), dd[1].clone()];
    let e = Store::open(twice, &OpenOptions::default()).map(|_| ()).unwrap_err();
    assert!(e.to_string().contains("given twice"), "{e}");
}

fn of(images: &[Vec<u8>]) -> Vec<Dev> {
    let named = |(i, b): (usize, &Vec<u8>)| MemoryDevice::from_bytes(b).unwrap().named(format!("device {i}"));
    images.iter().enumerate().map(named).map(|d| Arc::new(d) as Dev).collect()
}
