//! Power loss at every kind of moment, also during recovery, against a model.

use crate::common::*;
use crate::model::{Model, Told, Watch};
use lanefs_store::device::{Crash, Device, MemoryImage, Recorder};
use lanefs_store::*;
use lanefs_sync::random::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Watch for Recorder {
    fn acked(&self, what: String) {
        self.mark(what);
    }
}

fn base(bytes: u64) -> Arc<MemoryImage> {
    MemoryImage::capture(&*fresh(bytes)).unwrap()
}

/// The seeds of a test: `LANEFS_CRASH_ROUNDS` says how many, `LANEFS_CRASH_FIRST` where to begin.
fn seeds(first: u64, rounds: u64) -> std::ops::Range<u64> {
    let env = |name, or| std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(or);
    let first = env("LANEFS_CRASH_FIRST", first);
    first..first + env("LANEFS_CRASH_ROUNDS", rounds)
}

/// One run of `steps` operations, then crashes at `instants` random instants.
fn run(base: &Arc<MemoryImage>, seed: u64, steps: usize, instants: u64) {
    let recorder = Recorder::new();
    let d: Dev = Arc::new(recorder.wrap(base.fork().unwrap()));
    let (s, _) = open(&d);
    let mut m = Model::new(&s);
    let mut r = Rng::new(seed);
    for _ in 0..steps {
        m.step(&s, &mut r, &*recorder).unwrap();
    }
    drop(s);
    let log = recorder.log();
    for n in 0..instants {
        let at = if n == 0 { log.now } else { r.below(log.now + 1) };
        let fate = r.below(1 << 30);
        let crash = Crash::new(&log, at);
        let told = Told::new(crash.marks());
        let context = format!("seed {seed} instant {at} of {} fate {fate}", log.now);
        let image = crash.build_random(std::slice::from_ref(base), fate).unwrap().remove(0);
        let image = MemoryImage::capture(&image).unwrap();
        // Recovery, itself cut short now and then.
        let again = Recorder::new();
        let d: Dev = Arc::new(again.wrap(image.fork().unwrap()));
        let (s, _) = Store::open(vec![d.clone()], &OpenOptions::default())
            .unwrap_or_else(|e| panic!("{context}: {e}"));
        m.check(&s, &told, &context);
        drop(s);
        let (s, _) = open(&d);
        m.check(&s, &told, &format!("{context}, opened twice"));
        drop(s);
        let second = again.log();
        let at = r.below(second.now + 1);
        let crash = Crash::new(&second, at);
        let context = format!("{context}, then recovery at {at} of {}", second.now);
        let d: Dev = Arc::new(crash.build_random(&[image], fate + 1).unwrap().remove(0));
        let (s, _) = Store::open(vec![d.clone()], &OpenOptions::default())
            .unwrap_or_else(|e| panic!("{context}: {e}"));
        m.check(&s, &told, &context);
        s.close().unwrap();
        let (s, report) = open(&d);
        assert!(report.clean);
        m.check(&s, &told, &format!("{context}, closed"));
    }
}

#[test]
fn any_crash_leaves_what_was_acknowledged_and_nothing_else() {
    let base = base(4 << 20);
    for seed in seeds(0, 12) {
        run(&base, seed, 120, 12);
    }
}

#[test]
fn any_crash_of_a_volume_with_two_copies_of_its_tree_leaves_what_was_acknowledged() {
    for (bytes, steps, first) in [(4 << 20, 120, 3000), (2 << 20, 300, 4000)] {
        let base = MemoryImage::capture(&*fresh_with(bytes, 2)).unwrap();
        for seed in seeds(first, 8) {
            run(&base, seed, steps, 8);
        }
    }
}

#[test]
fn the_last_moment_of_long_histories_is_sound_too() {
    let base = base(12 << 20);
    for seed in 1000..1004 {
        run(&base, seed, 1200, 3);
    }
}

#[test]
fn a_nearly_full_volume_that_frees_segments_all_the_time_is_sound_too() {
    let base = base(1_600 << 10);
    for seed in seeds(2000, 8) {
        run(&base, seed, 300, 6);
    }
}

#[test]
fn a_device_error_is_sticky_and_told_to_everyone() {
    use lanefs_store::device::{Fault, FaultyDevice, Kind, MemoryDevice, Plan};
    let inner = base(4 << 20).fork().unwrap();
    let faulty = Arc::new(FaultyDevice::<MemoryDevice>::new(inner, Plan::none()));
    let d: Dev = faulty.clone();
    let (s, _) = open(&d);
    let g = group(1, 1, &[new_file(20), set(b"a", 20, 0)]);
    s.submit(tx(true, g, vec![update(20, 4096, vec![(0, page(1))])])).unwrap();
    faulty.set_plan(Plan::none().nth(Kind::Flush, 0, Fault::Error(libc::EIO)));
    let u = || update(20, 4096, vec![(0, page(2))]);
    assert!(matches!(s.submit(tx(true, vec![], vec![u()])), Err(StoreError::Io { .. })));
    faulty.set_plan(Plan::none());
    for durable in [true, false] {
        assert!(matches!(s.submit(tx(durable, vec![], vec![u()])), Err(StoreError::ReadOnly { .. })));
    }
    assert!(s.checkpoint(|| panic!("sealed")).is_err());
    assert!(s.commit_epoch(9, vec![(0, group(9, 9, &[clr(b"a", 20)]))]).is_err());
    assert!(s.close().is_err());
    assert!(s.info().read_only);
    drop(s);
    let (s, _) = open(&d);
    assert_eq!(lookup(&s, b"a"), Some(Ino(20)));
    assert!(read(&s, 20, 0).is_some());
}

#[test]
fn flipped_bits_are_errors_never_wrong_data() {
    let d = fresh(4 << 20);
    let (s, _) = open(&d);
    let g = group(1, 1, &[new_file(20), set(b"a", 20, 0)]);
    let pages = (0..40).map(|p| (p, page(p))).collect();
    s.submit(tx(true, g.clone(), vec![update(20, 40 * 4096, pages)])).unwrap();
    fold(&s, 1, vec![g]);
    s.close().unwrap();
    drop(s);
    let image = MemoryImage::capture(&*d).unwrap();
    let mut r = Rng::new(5);
    let mut noticed = 0;
    for _ in 0..300 {
        let m = image.fork().unwrap();
        let at = r.below(m.size());
        let mut byte = [0];
        m.peek(at, &mut byte).unwrap();
        m.poke(at, &[byte[0] ^ 1 << r.below(8)]).unwrap();
        let d: Dev = Arc::new(m);
        let o = OpenOptions { read_only: true, ..Default::default() };
        let Ok((s, _)) = Store::open(vec![d], &o) else {
            noticed += 1;
            continue;
        };
        for p in 0..40 {
            let mut b = Block::zeroed();
            let mut reads = [PageRead { block: &mut b, hole: false }];
            match s.read_pages(Ino(20), p, &mut reads) {
                Ok(()) => assert!(!reads[0].hole && b.0 == page(p).0, "byte {at} page {p}"),
                Err(_) => noticed += 1,
            }
        }
    }
    assert!(noticed > 0);
}

/// Threads write durably and not to pages of their own in shared files, while checkpoints and the
/// cleaner run. After a crash each page holds what its thread wrote there last before its last
/// acknowledged durable write, or later.
#[test]
fn threads_in_shared_files_keep_what_was_acknowledged() {
    const THREADS: u64 = 3;
    let base = base(8 << 20);
    let recorder = Recorder::new();
    let d: Dev = Arc::new(recorder.wrap(base.fork().unwrap()));
    let (s, _) = open(&d);
    let e = s.info().last_epoch;
    let g = [
        group(e + 1, 1, &[new_file(50), set(b"a", 50, 0)]),
        group(e + 1, 2, &[new_file(51), set(b"b", 51, 0)]),
    ];
    s.commit_epoch(e + 1, vec![(0, g.concat())]).unwrap();
    fold(&s, e + 1, g.to_vec());
    recorder.mark("begun");
    let seed = |t: u64, op: u64| t << 32 | op;
    let target = |t: u64, op: u64| {
        let mut r = Rng::new(seed(t, op));
        (50 + r.below(2), r.below(8) * THREADS + t, r.below(3) == 0)
    };
    std::thread::scope(|scope| {
        for t in 0..THREADS {
            let (s, recorder) = (&s, &recorder);
            scope.spawn(move || {
                for op in 0..250 {
                    let (ino, p, durable) = target(t, op);
                    let u = update(ino, 32 * 4096, vec![(p, page(seed(t, op)))]);
                    let mut x = tx(durable, vec![], vec![u]);
                    x.lane = (op % 7) as usize;
                    s.submit(x).unwrap();
                    if durable {
                        recorder.mark(format!("{t} {ino} {op}"));
                    }
                }
            });
        }
        for n in 0..12 {
            fold(&s, e + 2 + n, vec![]);
            s.clean(s.pressure().free_segments + 1).unwrap();
        }
    });
    drop(s);
    let log = recorder.log();
    let begun = log.marks.iter().find(|(_, m)| &**m == "begun").unwrap().0;
    let mut r = Rng::new(3);
    for n in 0..60 {
        let at = begun + 1 + r.below(log.now - begun);
        let crash = Crash::new(&log, at);
        let mut acked = BTreeMap::new();
        for mark in crash.marks().filter(|m| *m != "begun") {
            let w: Vec<u64> = mark.split(' ').map(|w| w.parse().unwrap()).collect();
            acked.insert((w[0], w[1]), w[2]);
        }
        let image = crash.build_random(std::slice::from_ref(&base), n).unwrap().remove(0);
        let d: Dev = Arc::new(image);
        let (s, _) = open(&d);
        for (t, ino) in (0..THREADS).flat_map(|t| [(t, 50), (t, 51)]) {
            for p in (0..8).map(|k| k * THREADS + t) {
                let writes: Vec<u64> = (0..250)
                    .filter(|&op| {
                        (ino, p) == {
                            let x = target(t, op);
                            (x.0, x.1)
                        }
                    })
                    .collect();
                // The last that an acknowledged write of this thread to this file covers, and all
                // after it.
                let safe = acked.get(&(t, ino)).and_then(|&a| writes.iter().rposition(|&op| op <= a));
                let got = read(&s, ino, p);
                let fits = match &got {
                    None => safe.is_none(),
                    Some(b) => writes[safe.unwrap_or(0)..].iter().any(|&op| b.0 == page(seed(t, op)).0),
                };
                assert!(fits, "crash {n} at {at}: thread {t} inode {ino} page {p}");
            }
        }
        let a = s.audit().unwrap();
        assert!(a.problems.is_empty(), "{:#?}", a.problems);
    }
}

/// What opening reads may be in a volatile cache still, if the process before died and the machine
/// did not: also the slot that says how the volume was closed. Before a flush nothing may be
/// written into room that is free by that slot alone (O11).
#[test]
fn an_opening_flushes_before_it_writes() {
    use lanefs_store::device::{MemoryDevice, RecordingDevice};
    for closed in [true, false] {
        let dev = Arc::new(RecordingDevice::new(MemoryDevice::new(8 << 20).unwrap()));
        let d: Dev = dev.clone();
        Store::format(std::slice::from_ref(&d), &format_options()).unwrap();
        let (s, _) = open(&d);
        let g = group(1, 1, &[new_file(20), set(b"a", 20, 0)]);
        s.submit(tx(true, g, vec![update(20, 4096, vec![(0, page(5))])])).unwrap();
        drop(s);
        if closed {
            open(&d).0.close().unwrap();
        }
        dev.recorder().take_log();
        let (s, report) = open(&d);
        assert_eq!(report.clean, closed);
        drop(s);
        let log = dev.recorder().take_log();
        let first = log.writes.iter().map(|w| w.issued).min().unwrap();
        let flushed = log.flushes.iter().filter_map(|f| f.completed).min().unwrap();
        assert!(flushed < first, "closed {closed}: written at {first}, flushed at {flushed}");
    }
}
