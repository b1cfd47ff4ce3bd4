//! Volumes whose devices come, go and change their size, and that lose power or are written to
//! while they do.

use crate::change::{each_state_of, fsck_all, longer, size};
use crate::common::*;
use crate::model::{Model, Told};
use lanefs_store::device::{Device, FileDevice, MemoryImage, Recorder};
use lanefs_store::report::ChangeReport;
use lanefs_store::*;
use lanefs_sync::random::Rng;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const SMALL: u64 = 2 << 20;
const LARGE: u64 = 4 << 20;

/// A volume on two devices of [`SMALL`] bytes, of which the second one is longer.
fn pair() -> Vec<Arc<MemoryImage>> {
    let dd = [memory(SMALL), memory(SMALL)];
    Store::format(&dd, &format_options()).unwrap();
    vec![longer(&dd[0], SMALL), longer(&dd[1], LARGE)]
}

pub fn fork(images: &[Arc<MemoryImage>]) -> Vec<Dev> {
    images.iter().map(|i| Arc::new(i.fork().unwrap()) as Dev).collect()
}

pub fn recorded(images: &[Arc<MemoryImage>], recorder: &Arc<Recorder>) -> Vec<Dev> {
    images.iter().map(|i| Arc::new(recorder.wrap(i.fork().unwrap())) as Dev).collect()
}

pub fn why<T>(r: Result<T>) -> String {
    r.err().expect("it is refused").to_string()
}

#[test]
fn a_power_loss_while_the_last_of_two_devices_grows_leaves_the_old_size_or_the_new() {
    let bases = pair();
    let recorder = Recorder::new();
    let (s, _) = open_all(&recorded(&bases, &recorder));
    let mut m = Model::new(&s);
    let mut r = Rng::new(3);
    for _ in 0..60 {
        m.step(&s, &mut r, &*recorder).unwrap();
    }
    m.fold(&s, &*recorder).unwrap();
    let (from, before) = (recorder.log().now, s.space());
    assert_eq!(s.grow(None).unwrap(), Grown { before: SMALL, after: LARGE });
    let grown = recorder.log().now;
    assert!(s.space().total > before.total + 300 && size(&s) == SMALL + LARGE);
    s.audit().unwrap();
    for _ in 0..20 {
        m.step(&s, &mut r, &*recorder).unwrap();
    }
    drop(s);
    let to = recorder.log().now.min(grown + 12);
    let (mut old, mut new) = (0, 0);
    each_state_of(&bases, &recorder, from, to, |crash, images, context| {
        let told = Told::new(crash.marks());
        fsck_all(&fork(&images), context);
        let dd = fork(&images);
        let (s, _) = open_all(&dd);
        m.check(&s, &told, context);
        match size(&s) - SMALL {
            SMALL if crash.at() <= grown => old += 1,
            LARGE => new += 1,
            other => panic!("{context}: {other} bytes"),
        }
        s.close().unwrap();
        drop(s);
        fsck_all(&dd, context);
        // With its first block lost a device is what a copy says, which is no less.
        for lost in [0, 1] {
            let dd: Vec<Dev> = images
                .iter()
                .enumerate()
                .map(|(i, image)| {
                    let d = image.fork().unwrap();
                    if i == lost {
                        d.poke(0, &[0; BLOCK_SIZE]).unwrap();
                    }
                    Arc::new(d) as Dev
                })
                .collect();
            m.check(&open_all(&dd).0, &told, &format!("{context}, without the first block of {lost}"));
        }
    });
    assert!(old > 10 && new > 10, "{old} and {new}");
}

/// What a change that was cut short has left on a device says nothing any more once the volume was
/// open for writing.
#[test]
fn copies_of_a_change_that_was_cut_short_are_written_again_by_an_open() {
    let bases = pair();
    let recorder = Recorder::new();
    let (s, _) = open_all(&recorded(&bases, &recorder));
    let from = recorder.log().now;
    s.grow(None).unwrap();
    let to = recorder.log().now;
    drop(s);
    each_state_of(&bases, &recorder, from, to, |_, images, context| {
        let dd = fork(&images);
        let (s, _) = open_all(&dd);
        let size = s.info().total_blocks;
        s.close().unwrap();
        drop(s);
        let images: Vec<_> = dd.iter().map(|d| longer(d, d.size())).collect();
        for d in 0..2 {
            let lost = images[d].fork().unwrap();
            lost.poke(0, &[0; BLOCK_SIZE]).unwrap();
            let mut with = fork(&images);
            with[d] = Arc::new(lost);
            assert_eq!(open_all(&with).0.info().total_blocks, size, "{context}, device {d}");
        }
    });
}

fn bytes(d: &Dev) -> Vec<u8> {
    let mut blocks = vec![Block([0; BLOCK_SIZE]); d.size() as usize / BLOCK_SIZE];
    for (i, b) in blocks.iter_mut().enumerate() {
        let offset = (i * BLOCK_SIZE) as u64;
        d.read(&mut [lanefs_store::device::ReadReq { offset, data: &mut b.0 }]).unwrap();
    }
    blocks.iter().flat_map(|b| b.0).collect()
}

#[test]
fn only_the_last_device_grows_and_what_is_said_names_it() {
    let images = [longer(&memory(SMALL), LARGE), longer(&memory(SMALL), SMALL)];
    let dd: Vec<Dev> = ["first", "second"]
        .iter()
        .zip(&images)
        .map(|(name, i)| Arc::new(i.fork().unwrap().named(*name)) as Dev)
        .collect();
    // The first one is longer than the volume knows.
    let short = [memory(SMALL), memory(SMALL)];
    Store::format(&short, &format_options()).unwrap();
    for (from, to) in short.iter().zip(&dd) {
        for (i, b) in bytes(from).chunks(BLOCK_SIZE).enumerate() {
            let mut block = Block::zeroed();
            block.0.copy_from_slice(b);
            let offset = (i * BLOCK_SIZE) as u64;
            to.write(&[lanefs_store::device::WriteReq { offset, data: &block.0 }]).unwrap();
        }
    }
    let (s, _) = open_all(&dd);
    let said = why(s.grow(None));
    assert!(
        said.contains("first: was made longer") && said.contains("only the last one grows, second"),
        "{said}"
    );
    let said = why(s.grow(Some(LARGE)));
    assert!(said.contains("second") && said.contains("leave the size out"), "{said}");
    assert!(why(s.grow(Some(4096))).contains("cannot be made smaller"));
    assert_eq!(size(&s), 2 * SMALL);
}

#[test]
fn a_device_that_is_missing_is_named() {
    let dd = fork(&pair());
    let said = why(Store::open(vec![dd[0].clone()], &OpenOptions::default()));
    assert!(said.contains("device 1 is missing") && said.contains("-4"), "{said}");
    let said = why(Store::open(vec![dd[1].clone()], &OpenOptions::default()));
    assert!(said.contains("device 0 of the volume is missing"), "{said}");
    let other = fork(&pair());
    let said =
        why(Store::open(vec![dd[0].clone(), dd[1].clone(), other[1].clone()], &OpenOptions::default()));
    assert!(said.contains("given twice"), "{said}");
}

/// Threads that write and sync files of their own till they are told to stop.
pub struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<BTreeMap<(u64, u64), u64>>>,
}

impl Load {
    /// Begins with some thousand pages, in files that are in the tree.
    pub fn start(s: &Arc<Store>, pages: u64) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let inos: Vec<u64> = (0..3).map(|n| 100 + n).collect();
        let effects: Vec<_> =
            inos.iter().flat_map(|ino| [new_file(*ino), set(NAMES[*ino as usize - 100], *ino, 0)]).collect();
        fold(s, 1, vec![group(1, 1, &effects)]);
        let begin = |ino: u64| {
            let (s, stop) = (s.clone(), stop.clone());
            std::thread::spawn(move || {
                let (mut there, mut r) = (BTreeMap::new(), Rng::new(ino));
                let mut write = |at: u64, seed: u64| {
                    let t = tx(true, vec![], vec![update(ino, pages << 12, vec![(at, page(seed))])]);
                    s.submit(t).unwrap();
                    there.insert((ino, at), seed);
                };
                (0..pages).for_each(|at| write(at, ino << 32 | at));
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    write(r.below(pages), ino << 40 | n);
                    if n % 16 == 0 {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                }
                there
            })
        };
        let threads = inos.into_iter().map(begin).collect();
        Load { stop, threads }
    }

    /// Stops them, and returns what must be there.
    pub fn stop(self) -> BTreeMap<(u64, u64), u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    }
}

const NAMES: [&[u8]; 3] = [b"a", b"b", b"c"];

fn compare(s: &Store, there: &BTreeMap<(u64, u64), u64>, context: &str) {
    for ((ino, at), seed) in there {
        assert!(read(s, *ino, *at).is_some_and(|b| b.0 == page(*seed).0), "{context}: page {at} of {ino}");
    }
}

/// Closes, checks, and opens again.
pub fn come_back(s: Arc<Store>, dd: &[Dev], there: &BTreeMap<(u64, u64), u64>) -> Arc<Store> {
    compare(&s, there, "at once");
    s.audit().unwrap();
    s.close().unwrap();
    drop(s);
    fsck_all(dd, "closed");
    let (s, _) = open_all(dd);
    compare(&s, there, "opened again");
    s
}

#[test]
fn a_power_loss_while_a_device_is_added_leaves_the_volume_with_it_or_without() {
    let bases = [longer(&fresh(SMALL), SMALL), MemoryImage::zeros(LARGE).unwrap()];
    let recorder = Recorder::new();
    let dd = recorded(&bases, &recorder);
    let (s, _) = open(&dd[0]);
    let mut m = Model::new(&s);
    let mut r = Rng::new(5);
    for _ in 0..60 {
        m.step(&s, &mut r, &*recorder).unwrap();
    }
    m.fold(&s, &*recorder).unwrap();
    let (from, before) = (recorder.log().now, s.space());
    assert_eq!(s.add_device(dd[1].clone(), false).unwrap(), Grown { before: SMALL, after: SMALL + LARGE });
    let added = recorder.log().now;
    assert!(s.space().total > before.total + 800 && s.info().devices == 2 && size(&s) == SMALL + LARGE);
    s.audit().unwrap();
    for _ in 0..20 {
        m.step(&s, &mut r, &*recorder).unwrap();
    }
    drop(s);
    let to = recorder.log().now.min(added + 16);
    let (mut without, mut with) = (0, 0);
    each_state_of(&bases, &recorder, from, to, |crash, images, context| {
        let told = Told::new(crash.marks());
        let dd = fork(&images);
        let s = match Store::open(vec![dd[0].clone()], &OpenOptions::default()) {
            Ok((s, _)) => {
                without += 1;
                assert!(crash.at() <= added, "{context}: what was added is not there");
                m.check(&s, &told, context);
                let said = why(Store::open(fork(&images), &OpenOptions::default()));
                let known = ["add", "not a LaneFS volume", "is overwritten"];
                assert!(known.iter().any(|k| said.contains(k)), "{context}: {said}");
                s.add_device(dd[1].clone(), true).unwrap();
                s
            }
            Err(e) => {
                with += 1;
                assert!(e.to_string().contains("device 1 is missing"), "{context}: {e}");
                fsck_all(&fork(&images), context);
                open_all(&dd).0
            }
        };
        m.check(&s, &told, context);
        s.close().unwrap();
        drop(s);
        fsck_all(&dd, context);
        m.check(&open_all(&dd).0, &told, context);
    });
    assert!(without > 20 && with > 20, "{without} and {with}");
}

#[test]
fn a_device_is_added_while_threads_write() {
    let dd = [fresh(8 << 20), memory(LARGE), memory(16 << 20)];
    let (s, _) = open(&dd[0]);
    let load = Load::start(&s, 300);
    s.add_device(dd[1].clone(), false).unwrap();
    s.add_device(dd[2].clone(), false).unwrap();
    // More than the first one holds.
    let names: Vec<_> = (0..12u8).map(|n| [b'n', n + 1]).collect();
    let effects = names.iter().flat_map(|name| {
        let ino = 199 + u64::from(name[1]);
        [new_file(ino), set(name, ino, 0)]
    });
    let effects: Vec<_> = effects.collect();
    fold(&s, 2, vec![group(2, 9, &effects)]);
    for n in 0..12 {
        let pages = (0..256).map(|at| (at, page(n << 20 | at))).collect();
        s.submit(tx(true, vec![], vec![update(200 + n, 1 << 20, pages)])).unwrap();
    }
    let mut there = load.stop();
    there.extend((0..12).flat_map(|n| (0..256).map(move |at| ((200 + n, at), n << 20 | at))));
    let s = come_back(s, &dd, &there);
    assert_eq!((s.info().devices, size(&s)), (3, (24 << 20) + LARGE));
}

#[test]
fn what_cannot_be_added_is_refused_and_nothing_is_changed() {
    let (d, other) = (fresh(SMALL), fresh(SMALL));
    let (s, _) = open(&d);
    assert!(why(s.add_device(other.clone(), false)).contains("holds a LaneFS volume"));
    assert!(why(s.add_device(d.clone(), true)).contains("already"));
    assert!(why(s.add_device(memory(64 << 10), false)).contains("too small"));
    assert_eq!((size(&s), s.info().devices), (SMALL, 1));
    open(&other);
    s.add_device(other.clone(), true).unwrap();
    s.close().unwrap();
    drop(s);
    // What it held is gone for good, by whatever name.
    assert!(why(Store::open(vec![other.clone()], &OpenOptions::default())).contains("device 1"));
    let o = OpenOptions { read_only: true, ..OpenOptions::default() };
    let (s, _) = Store::open(vec![d, other], &o).unwrap();
    assert!(matches!(s.add_device(memory(LARGE), false), Err(StoreError::OpenedReadOnly)));
}

fn no_fold() -> Result<()> {
    Ok(())
}

/// A volume of which the last device loses its end, or goes: what is done, and the sizes of the
/// devices before and behind it.
struct Less {
    sizes: &'static [u64],
    copies: u32,
    less: fn(&Store) -> Result<Grown>,
    before: u64,
    after: u64,
}

const MIB: u64 = 1 << 20;

const LESS: [Less; 4] = [
    Less {
        sizes: &[4 * MIB],
        copies: 1,
        less: |s| s.shrink_device(2 * MIB, &no_fold),
        before: 4 * MIB,
        after: 2 * MIB,
    },
    Less {
        sizes: &[2 * MIB, 3 * MIB],
        copies: 2,
        less: |s| s.shrink_device(MIB, &no_fold),
        before: 3 * MIB,
        after: MIB,
    },
    Less {
        sizes: &[3 * MIB, 2 * MIB],
        copies: 1,
        less: |s| s.remove_device(&no_fold),
        before: 5 * MIB,
        after: 3 * MIB,
    },
    Less {
        sizes: &[2 * MIB, MIB, MIB],
        copies: 1,
        less: |s| s.remove_device(&no_fold),
        before: 4 * MIB,
        after: 3 * MIB,
    },
];

impl Less {
    fn format(&self) -> Vec<Arc<MemoryImage>> {
        let dd: Vec<Dev> = self.sizes.iter().map(|s| memory(*s)).collect();
        Store::format(&dd, &FormatOptions { metadata_copies: self.copies, ..format_options() }).unwrap();
        dd.iter().map(|d| longer(d, d.size())).collect()
    }

    /// Bytes of all devices before and behind it.
    fn total(&self) -> (u64, u64) {
        let before = self.sizes.iter().sum();
        (before, before + self.after - self.before)
    }

    /// Opens the volume with the devices that it has, as the answers say.
    fn open(&self, dd: &[Dev], context: &str) -> (Arc<Store>, Vec<Dev>) {
        match Store::open(dd.to_vec(), &OpenOptions::default()) {
            Ok((s, _)) => (s, dd.to_vec()),
            Err(e) => {
                let said = e.to_string();
                assert!(self.total().1 < self.total().0, "{context}: {said}");
                let known = ["is no device of the volume", "not a LaneFS volume", "is overwritten"];
                assert!(known.iter().any(|k| said.contains(k)), "{context}: {said}");
                let dd = dd[..dd.len() - 1].to_vec();
                let opened = Store::open(dd.clone(), &OpenOptions::default());
                (opened.unwrap_or_else(|e| panic!("{context}: {e}")).0, dd)
            }
        }
    }
}

#[test]
fn a_power_loss_while_a_volume_becomes_smaller_leaves_the_old_size_or_the_new() {
    for (which, of) in LESS.iter().enumerate() {
        let bases = of.format();
        let recorder = Recorder::new();
        let (s, _) = open_all(&recorded(&bases, &recorder));
        let mut m = Model::new(&s);
        let mut r = Rng::new(11 + which as u64);
        for _ in 0..120 {
            m.step(&s, &mut r, &*recorder).unwrap();
        }
        m.fold(&s, &*recorder).unwrap();
        // Some of it is in the log alone.
        for _ in 0..10 {
            m.step(&s, &mut r, &*recorder).unwrap();
        }
        let from = recorder.log().now;
        let done = (of.less)(&s).unwrap();
        assert_eq!(done, Grown { before: of.before, after: of.after }, "{which}");
        let smaller = recorder.log().now;
        assert_eq!(size(&s), of.total().1, "{which}");
        for _ in 0..20 {
            m.step(&s, &mut r, &*recorder).unwrap();
        }
        m.fold(&s, &*recorder).unwrap();
        s.audit().unwrap();
        drop(s);
        let to = recorder.log().now.min(smaller + 4);
        let (mut old, mut new) = (0, 0);
        // All instants around the commit, some of the evacuation.
        let step = ((smaller - from) / 10).max(1);
        let log = recorder.log();
        let near = smaller.saturating_sub(18).max(from);
        for at in (from..near).step_by(step as usize).chain(near..=to) {
            each_state_of(&bases, &recorder, at, at, |crash, images, context| {
                let context = &format!("{which}: {context} of {}", log.now);
                let told = Told::new(crash.marks());
                let (s, dd) = of.open(&fork(&images), context);
                m.check(&s, &told, context);
                match size(&s) {
                    n if n == of.total().1 => new += 1,
                    n if n == of.total().0 && crash.at() <= smaller => old += 1,
                    other => panic!("{context}: {other} bytes"),
                }
                s.close().unwrap();
                drop(s);
                fsck_all(&dd, context);
                // It goes on with its size, and with its first block lost nothing is lost.
                let s = open_all(&dd).0;
                m.check(&s, &told, context);
                drop(s);
                let images: Vec<_> = dd.iter().map(|d| longer(d, d.size())).collect();
                let first = images[0].fork().unwrap();
                first.poke(0, &[0; BLOCK_SIZE]).unwrap();
                let mut dd = fork(&images);
                dd[0] = Arc::new(first);
                m.check(&open_all(&dd).0, &told, &format!("{context}, without the first block"));
            });
        }
        assert!(old > 20 && new > 20, "{which}: {old} and {new}");
    }
}

#[test]
fn a_volume_becomes_smaller_and_larger_while_threads_write() {
    let dd = [fresh(16 << 20), memory(8 << 20)];
    let (s, _) = open(&dd[0]);
    let load = Load::start(&s, 400);
    let space = s.space();
    s.add_device(dd[1].clone(), false).unwrap();
    s.remove_device(&no_fold).unwrap();
    let told = std::cell::Cell::new(None);
    let look = || {
        told.set(s.report().devices.change);
        no_fold()
    };
    // So that something lies where it ends: what is written over is written all over the volume.
    while s.report().written.total_bytes < 16 << 20 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let done = s.shrink_device(8 << 20, &look).unwrap();
    assert_eq!(done, Grown { before: 16 << 20, after: 8 << 20 });
    // Before the last round, which frees the last of the tree.
    let far = |c: ChangeReport| c.done_bytes <= c.total_bytes && 2 * c.done_bytes > c.total_bytes;
    assert!(told.get().is_some_and(far), "{told:?}");
    assert!(s.report().devices.change.is_none(), "it is over");
    assert!(s.space().total < space.total / 2);
    s.grow(None).unwrap();
    assert_eq!((size(&s), s.space().total), (16 << 20, space.total));
    s.add_device(memory(8 << 20), false).unwrap();
    s.shrink_device(4 << 20, &no_fold).unwrap();
    s.remove_device(&no_fold).unwrap();
    let there = load.stop();
    let s = come_back(s, &dd[..1], &there);
    assert_eq!(s.space().total, space.total);
    // What was removed belongs to nobody.
    assert!(why(Store::open(vec![dd[1].clone()], &OpenOptions::default())).contains("not a LaneFS volume"));
    s.add_device(dd[1].clone(), false).unwrap();
    come_back(s, &dd, &there);
}

#[test]
fn what_does_not_fit_is_refused_with_the_smallest_size_which_then_is_possible() {
    let d = fresh(8 << 20);
    let (s, _) = open(&d);
    let load = Load::start(&s, 200);
    let there = load.stop();
    let before = s.space();
    let e = s.shrink_device(2 << 20, &no_fold).unwrap_err();
    assert_eq!(e.errno(), libc::ENOSPC, "{e}");
    let said = e.to_string();
    let smallest: u64 = said.split("needs ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!((2 << 20..8 << 20).contains(&smallest), "{said}");
    assert_eq!((s.space(), size(&s)), (before, 8 << 20));
    assert!(why(s.shrink_device(smallest - 4096, &no_fold)).contains("delete files"));
    assert!(why(s.shrink_device(8 << 20, &no_fold)).contains("would lose no segment"));
    assert!(why(s.remove_device(&no_fold)).contains("only device"));
    // What stops it on its way leaves all as it was.
    let stop = || Err(StoreError::Invalid("enough".into()));
    assert!(why(s.shrink_device(smallest, &stop)).contains("enough"));
    assert_eq!((s.space(), s.report().segments.free > 0), (before, true));
    assert_eq!(s.shrink_device(smallest, &no_fold).unwrap().after, smallest);
    let s = come_back(s, std::slice::from_ref(&d), &there);
    assert_eq!(size(&s), smallest);
    s.close().unwrap();
    drop(s);
    let o = OpenOptions { read_only: true, ..OpenOptions::default() };
    let (s, _) = Store::open(vec![d], &o).unwrap();
    assert!(matches!(s.shrink_device(2 << 20, &no_fold), Err(StoreError::OpenedReadOnly)));
    assert!(matches!(s.remove_device(&no_fold), Err(StoreError::OpenedReadOnly)));
}

/// What moves for a smaller volume may be of any kind; then it is filled to the last block and
/// emptied.
#[test]
fn a_volume_that_was_nearly_full_shrinks_by_what_is_deleted() {
    for copies in [1, 2] {
        let d = fresh_with(8 << 20, copies);
        let (s, _) = open(&d);
        let told = Acked::default();
        let mut m = Model::new(&s);
        let mut r = Rng::new(copies.into());
        for _ in 0..900 {
            m.step(&s, &mut r, &told).unwrap();
        }
        m.fold(&s, &told).unwrap();
        for to in [6 << 20, 5 << 20, 4 << 20] {
            match s.shrink_device(to, &no_fold) {
                Ok(done) => assert_eq!(done.after, to),
                Err(e) => assert_eq!(e.errno(), libc::ENOSPC, "{e}"),
            }
            m.check_now(&s, &format!("{copies} copies, {to} bytes"));
            for _ in 0..50 {
                m.step(&s, &mut r, &told).unwrap();
            }
            m.fold(&s, &told).unwrap();
        }
        s.audit().unwrap();
        s.close().unwrap();
        drop(s);
        fsck_all(std::slice::from_ref(&d), "in the end");
        let told = told.0.into_inner().unwrap();
        m.check(&open(&d).0, &Told::new(told.iter().map(String::as_str)), "opened again");
    }
}

/// Keeps what was acknowledged.
#[derive(Default)]
struct Acked(Mutex<Vec<String>>);

impl crate::model::Watch for Acked {
    fn acked(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }
}

#[test]
fn an_image_file_is_cut_off_and_a_removed_one_is_let_go_of() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| -> Dev { Arc::new(FileDevice::create(dir.path().join(name), LARGE).unwrap()) };
    let (a, b) = (file("a"), file("b"));
    Store::format(std::slice::from_ref(&a), &format_options()).unwrap();
    let (s, _) = open(&a);
    s.add_device(b.clone(), false).unwrap();
    let load = Load::start(&s, 60);
    s.shrink_device(SMALL, &no_fold).unwrap();
    let len = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().len();
    assert_eq!((len("a"), len("b"), b.size()), (LARGE, SMALL, SMALL));
    assert_eq!(s.device_names().len(), 2);
    s.remove_device(&no_fold).unwrap();
    // Others may have it.
    FileDevice::open(dir.path().join("b"), false).unwrap();
    s.shrink_device(SMALL, &no_fold).unwrap();
    let there = load.stop();
    assert_eq!(len("a"), SMALL);
    let s = come_back(s, std::slice::from_ref(&a), &there);
    s.grow(Some(LARGE)).unwrap();
    come_back(s, std::slice::from_ref(&a), &there);
}
