//! Volumes that grow and change their label, and lose power while they do.

use crate::common::*;
use crate::model::{Model, Told};
use lanefs_store::device::{Crash, Device, Fate, FileDevice, MemoryDevice, MemoryImage, Recorder};
use lanefs_store::fsck::{FsckOptions, check};
use lanefs_store::*;
use lanefs_sync::random::Rng;
use std::sync::Arc;

const SMALL: u64 = 2 << 20;
const LARGE: u64 = 5 << 20;

/// A volume of [`SMALL`] bytes at the start of a device of [`LARGE`].
fn roomy() -> Arc<MemoryImage> {
    longer(&fresh(SMALL), LARGE)
}

/// A longer device that begins with all of `d`.
pub fn longer(d: &Dev, to: u64) -> Arc<MemoryImage> {
    let mut bytes = vec![Block([0; BLOCK_SIZE]); d.size() as usize / BLOCK_SIZE];
    let mut reads: Vec<_> = (bytes.iter_mut().enumerate())
        .map(|(i, b)| lanefs_store::device::ReadReq { offset: (i * BLOCK_SIZE) as u64, data: &mut b.0 })
        .collect();
    d.read(&mut reads).unwrap();
    drop(reads);
    let large = MemoryDevice::new(to).unwrap();
    for (i, b) in bytes.iter().enumerate() {
        large.poke((i * BLOCK_SIZE) as u64, &b.0).unwrap();
    }
    MemoryImage::capture(&large).unwrap()
}

pub fn size(s: &Store) -> u64 {
    s.info().total_blocks * BLOCK_SIZE as u64
}

/// Finds nothing wrong, but for superblocks that a power loss tore: a repair writes these anew.
fn fsck(d: &Dev, context: &str) {
    fsck_all(std::slice::from_ref(d), context);
}

pub fn fsck_all(d: &[Dev], context: &str) {
    let o = |repair| FsckOptions { threads: 1, repair, ..FsckOptions::default() };
    let run = |o| check(d.to_vec(), &o, &|_| ()).unwrap_or_else(|e| panic!("{context}: {e}"));
    let report = run(o(false));
    let torn = report.problems.iter().all(|p| p.structure.contains("superblock"));
    assert!(torn, "{context}: {:?}", report.problems);
    if !report.is_clean() {
        assert_eq!(run(o(true)).left(), 0, "{context}");
        assert!(run(o(false)).is_clean(), "{context}");
    }
}

/// Fates that bring out orders: nothing, all, each write alone lost, alone there or torn, and some
/// by chance.
fn fates(pending: usize) -> Vec<Box<dyn Fn(usize) -> Fate>> {
    let mut all: Vec<Box<dyn Fn(usize) -> Fate>> = vec![Box::new(|_| Fate::Lost), Box::new(|_| Fate::Whole)];
    // The first ones, and the last.
    for n in (0..pending).filter(|n| *n < 6 || pending - n <= 3) {
        all.push(Box::new(move |i| if i == n { Fate::Whole } else { Fate::Lost }));
        all.push(Box::new(move |i| if i == n { Fate::Lost } else { Fate::Whole }));
        all.push(Box::new(move |i| if i == n { Fate::Sectors(vec![0b0101_0011]) } else { Fate::Whole }));
    }
    all
}

/// Every state that a power loss between `from` and `to` can leave, each opened by `judge`.
fn each_state(
    base: &Arc<MemoryImage>,
    recorder: &Recorder,
    from: u64,
    to: u64,
    mut judge: impl FnMut(&Crash<'_>, Arc<MemoryImage>, &str),
) {
    let one = std::slice::from_ref(base);
    each_state_of(one, recorder, from, to, |crash, mut images, context| {
        judge(crash, images.remove(0), context);
    });
}

/// The same of several devices.
pub fn each_state_of(
    bases: &[Arc<MemoryImage>],
    recorder: &Recorder,
    from: u64,
    to: u64,
    mut judge: impl FnMut(&Crash<'_>, Vec<Arc<MemoryImage>>, &str),
) {
    let log = recorder.log();
    for at in from..=to {
        let crash = Crash::new(&log, at);
        for (n, fate) in fates(crash.pending().len()).into_iter().enumerate() {
            let images = crash.build(bases, |i, _| fate(i)).unwrap();
            let images = images.iter().map(|d| MemoryImage::capture(d).unwrap()).collect();
            judge(&crash, images, &format!("instant {at} of {from} to {to}, fate {n}"));
        }
    }
}

#[test]
fn a_power_loss_at_any_moment_of_growing_leaves_the_old_size_or_the_new() {
    let base = roomy();
    let recorder = Recorder::new();
    let d: Dev = Arc::new(recorder.wrap(base.fork().unwrap()));
    let (s, _) = open(&d);
    let mut m = Model::new(&s);
    let mut r = Rng::new(7);
    for _ in 0..80 {
        m.step(&s, &mut r, &*recorder).unwrap();
    }
    m.fold(&s, &*recorder).unwrap();
    let from = recorder.log().now;
    assert_eq!(s.grow(None).unwrap(), Grown { before: SMALL, after: LARGE });
    let grown = recorder.log().now;
    assert_eq!(size(&s), LARGE);
    s.audit().unwrap();
    for _ in 0..20 {
        m.step(&s, &mut r, &*recorder).unwrap();
    }
    drop(s);
    let to = recorder.log().now;
    let (mut old, mut new) = (0, 0);
    each_state(&base, &recorder, from, grown + (to - grown).min(24), |crash, image, context| {
        let told = Told::new(crash.marks());
        let d: Dev = Arc::new(image.fork().unwrap());
        fsck(&d, context);
        let (s, _) = open(&d);
        m.check(&s, &told, context);
        match size(&s) {
            SMALL if crash.at() <= grown => old += 1,
            LARGE => new += 1,
            other => panic!("{context}: {other} bytes"),
        }
        // What was cut short can be done again.
        assert_eq!(s.grow(None).unwrap().after, LARGE, "{context}");
        s.close().unwrap();
        drop(s);
        fsck(&d, context);
        // With its first block lost it is what its copy says, which is no less.
        let d = image.fork().unwrap();
        d.poke(0, &[0; BLOCK_SIZE]).unwrap();
        let d: Dev = Arc::new(d);
        let (s, _) = open(&d);
        m.check(&s, &told, &format!("{context}, without the first block"));
    });
    assert!(old > 20 && new > 20, "{old} and {new}");
}

#[test]
fn what_is_written_behind_the_old_end_survives_crashes_and_a_close() {
    let base = roomy();
    for seed in 0..6 {
        let recorder = Recorder::new();
        let d: Dev = Arc::new(recorder.wrap(base.fork().unwrap()));
        let (s, _) = open(&d);
        let mut m = Model::new(&s);
        let mut r = Rng::new(seed);
        let free = s.space().free;
        for n in 0..400 {
            if n == 60 {
                let before = s.space();
                s.grow(Some(LARGE)).unwrap();
                let now = s.space();
                assert!(now.total > before.total + 500 && now.free - before.free == now.total - before.total);
            }
            m.step(&s, &mut r, &*recorder).unwrap();
        }
        assert!(s.space().total > free);
        drop(s);
        let log = recorder.log();
        for n in 0..6 {
            let at = if n == 0 { log.now } else { log.now / 2 + r.below(log.now / 2) };
            let crash = Crash::new(&log, at);
            let told = Told::new(crash.marks());
            let context = format!("seed {seed} instant {at} of {}", log.now);
            let d: Dev = Arc::new(crash.build_random(std::slice::from_ref(&base), n).unwrap().remove(0));
            let (s, _) = open(&d);
            m.check(&s, &told, &context);
            s.close().unwrap();
            drop(s);
            fsck(&d, &context);
        }
    }
}

#[test]
fn a_power_loss_at_any_moment_of_a_new_label_leaves_one_of_the_two() {
    let base = {
        let d = fresh(SMALL);
        let (s, _) = open(&d);
        s.set_label("old").unwrap();
        s.close().unwrap();
        MemoryImage::capture(&*d).unwrap()
    };
    let recorder = Recorder::new();
    let d: Dev = Arc::new(recorder.wrap(base.fork().unwrap()));
    let (s, _) = open(&d);
    let from = recorder.log().now;
    s.set_label("new").unwrap();
    let to = recorder.log().now;
    assert_eq!(s.info().label, "new");
    let (mut old, mut new) = (0, 0);
    each_state(&base, &recorder, from, to, |_, image, context| {
        let d: Dev = Arc::new(image.fork().unwrap());
        fsck(&d, context);
        let (s, _) = open(&d);
        match s.info().label.as_str() {
            "old" => old += 1,
            "new" => new += 1,
            other => panic!("{context}: {other}"),
        }
    });
    assert!(old > 5 && new > 5, "{old} and {new}");
}

#[test]
fn a_label_of_several_devices_is_the_first_ones() {
    let dd = [memory(SMALL), memory(SMALL)];
    Store::format(&dd, &format_options()).unwrap();
    let (s, _) = open_all(&dd);
    s.set_label("both").unwrap();
    s.close().unwrap();
    drop(s);
    assert_eq!(open_all(&dd).0.info().label, "both");
    // A change that was cut short between the two.
    let other = [memory(SMALL), memory(SMALL)];
    Store::format(&other, &FormatOptions { label: "third".into(), ..format_options() }).unwrap();
    let (s, _) = open_all(&[dd[0].clone(), other[1].clone()]);
    assert_eq!(s.info().label, "both");
}

#[test]
fn what_cannot_be_grown_or_named_is_refused_and_nothing_is_changed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v");
    let d: Dev = Arc::new(FileDevice::create(&path, SMALL).unwrap());
    Store::format(std::slice::from_ref(&d), &format_options()).unwrap();
    let (s, _) = open(&d);
    for (bytes, word) in [
        (SMALL - 4096, "cannot be made smaller"),
        (4096, "cannot be made smaller"),
        (SMALL + 4096, "no segment"),
        (1 << 56, "less than 64 PiB"),
        (1 << 62, "less than 64 PiB"),
    ] {
        let e = s.grow(Some(bytes)).unwrap_err().to_string();
        assert!(e.contains(word), "{bytes}: {e}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), SMALL, "made longer for nothing");
    }
    assert!(s.set_label(&"x".repeat(65)).is_err() && s.set_label("a\nb").is_err());
    assert_eq!(s.grow(Some(SMALL)).unwrap(), Grown { before: SMALL, after: SMALL });
    assert_eq!(s.grow(None).unwrap().after, SMALL);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), SMALL);
    assert_eq!(s.grow(Some(LARGE)).unwrap(), Grown { before: SMALL, after: LARGE });
    assert_eq!((std::fs::metadata(&path).unwrap().len(), d.size()), (LARGE, LARGE));
    s.set_label("large").unwrap();
    s.close().unwrap();
    assert!(matches!(s.grow(None), Err(StoreError::Closed)));
    drop(s);
    // A device in memory has its own size.
    let m = fresh(SMALL);
    let (s, _) = open(&m);
    assert!(s.grow(Some(LARGE)).unwrap_err().to_string().contains("leave the size out"));
    drop(s);
    let o = OpenOptions { read_only: true, ..OpenOptions::default() };
    let (s, _) = Store::open(vec![d], &o).unwrap();
    assert_eq!((size(&s), s.info().label.as_str()), (LARGE, "large"));
    assert!(matches!(s.grow(None), Err(StoreError::OpenedReadOnly)));
    assert!(matches!(s.set_label("x"), Err(StoreError::OpenedReadOnly)));
}
