//! Two to four threads on a tiny volume, in an order drawn from a seed, with a crash at a random
//! point.
//!
//! # A schedule
//!
//! 1. *Apart*: each thread works in a directory of its own beside a model of its own, while another
//!    makes rounds of background work and checkpoints. Then the power goes at a random event of the
//!    device, with any part of what was not flushed on the medium; the volume is recovered, and
//!    each thread's oracle judges its directory. What they share is tested: epochs, lanes, logs,
//!    flushes, checkpoints.
//! 2. *Together*: the threads make, link, move, remove, look at and list the same few names, of a
//!    directory that was made a moment before or of one that is still on the medium alone. What
//!    they were answered, and the tree at the end, must be what some order of the calls gives that
//!    keeps each thread's own and that of calls that did not overlap (`together`). Then `sync`,
//!    power loss, recovery: the same tree.
//! 3. *One file*: the threads write, read, cut and punch the same few pages of one file, in memory
//!    for fewer pages than they touch. What was read, and the content at the end, must be what
//!    calls that did not overlap leave to choose from (`one_file`). Then `sync`, power loss,
//!    recovery: the same content.
//!
//! A schedule follows from its seed: as the first of a process it repeats exactly, behind others
//! nearly always (docs/TESTING.md).

mod one_file;
mod slow;
mod together;
pub mod turn;

use crate::crash::concurrent::{Borrowed, HOMES, Prefixed, must_work};
use crate::crash::image::Image;
use crate::crash::system::{LaneFs, System};
use crate::crash::{Driven, drive, formatted, guarded, plain, workloads};
use crate::power::crashed;
use lanefs::Order;
use lanefs::Volume;
use lanefs_lab_model::generate::Rng;
use lanefs_lab_model::op::{Op, Outcome as Answer, Who};
use lanefs_lab_model::oracle::{Oracle, Violation, broken, observe};
use lanefs_lab_model::target::volume::VolumeTarget;
use lanefs_lab_model::target::{Pair, Target};
use lanefs_store::device::{Device, Recorder};
use lanefs_sync::clock::Clock;
use slow::Slow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use turn::{Counts, Turn};

/// Blocks of the volume, and mlogs that a volume of this size has: half of the schedules are on
/// each.
const SIZES: [(usize, usize); 2] = [(384, 1), (2048, 2)];
/// Crashes looked at per schedule.
const CRASHES: u64 = 2;

/// The counts of a schedule, and the violation that it found.
#[derive(Debug)]
pub struct Outcome {
    /// Steps and switches.
    pub counts: Counts,
    /// Recoveries judged.
    pub crashes: u64,
    /// mlogs of the volume; 0 if it did not open.
    pub mlogs: usize,
    /// Writes and flushes that the device answered late.
    pub late: u64,
    /// Writes and flushes answered later than one that was issued after them.
    pub overtaken: u64,
    /// A broken promise.
    pub violation: Option<String>,
}

fn system(seed: u64) -> LaneFs {
    let mut s = LaneFs::default();
    s.format.mlogs = 2;
    s.mount.cache_size = 1 << 20;
    // Every third seed: no other choice goes by that.
    s.mount.order = if seed.is_multiple_of(3) { Order::Relaxed } else { Order::Ordered };
    s.mount.end_together = usize::from((seed / 2).is_multiple_of(2));
    // No clock is promised: half of the schedules have one that only counts, the others one that
    // jumps.
    s.mount.clock =
        Some(Arc::new(if seed.is_multiple_of(2) { Clock::lamport() } else { Clock::adversarial(seed) }));
    s
}

/// Which of [`SIZES`] a schedule takes. Not by the seed's last bit, by which the clock is chosen.
fn size_of(seed: u64) -> usize {
    Rng::new(seed ^ 0x512e).below(SIZES.len() as u64) as usize
}

/// What the threads of a schedule do. See the head of the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Apart,
    Together,
    OneFile,
}

fn kind_of(seed: u64) -> Kind {
    match Rng::new(seed ^ 0x6b1d).below(6) {
        0..3 => Kind::Apart,
        3..5 => Kind::Together,
        _ => Kind::OneFile,
    }
}

/// A closed volume with a directory for each thread, made once for each size.
fn base(size: usize) -> Result<Image, Violation> {
    static MADE: [OnceLock<Result<Image, Violation>>; SIZES.len()] = [const { OnceLock::new() }; SIZES.len()];
    let make = || {
        let system = system(0);
        let device =
            Arc::new(crate::crash::image::CowDevice::new(formatted(&system, SIZES[size].0, 1)?.remove(0)));
        let fail = |e: lanefs::Error| broken("answer", format!("making the volume: {e}"));
        let v = Volume::open_devices(vec![device.clone() as Arc<dyn Device>], &system.mount).map_err(fail)?;
        for h in HOMES {
            v.fs().mkdir(h, 0o755).map_err(fail)?;
        }
        let mut t = VolumeTarget::new(v.clone(), None);
        together::prepare(together::COLD).into_iter().try_for_each(|op| must(&mut t, op).map(drop))?;
        drop(t);
        v.close().map_err(fail)?;
        Ok(device.image())
    };
    MADE[size].get_or_init(make).clone()
}

/// Lets what earlier schedules left behind be freed now: later it would be freed in the middle of
/// another one.
fn free_garbage() {
    for _ in 0..16 {
        crossbeam_epoch::pin().flush();
    }
}

/// Runs one schedule.
pub fn run(seed: u64) -> Outcome {
    free_garbage();
    let mut counts = Counts::default();
    let (mut crashes, mut mlogs, mut late, mut overtaken) = (0, 0, 0, 0);
    let done = guarded(|| {
        let kind = kind_of(seed);
        let (mut system, mut size) = (system(seed), size_of(seed));
        if kind == Kind::OneFile {
            system.mount.frames = one_file::frames(seed);
            size = SIZES.len() - 1;
        }
        let live = open(&system, size, seed)?;
        mlogs = live.volume.info().mlogs;
        let done = match kind {
            Kind::Apart => apart(seed, &live, &mut counts, &mut crashes),
            Kind::Together => together::run(seed, &live, &mut counts, &mut crashes),
            Kind::OneFile => one_file::run(seed, &live, &mut counts, &mut crashes),
        };
        late = live.slow.late();
        overtaken = slow::overtaken(&live.recorder.log(), live.start);
        done
    });
    Outcome { counts, crashes, mlogs, late, overtaken, violation: done.err().map(|v| v.to_string()) }
}

/// A volume on a recording device.
struct Live {
    recorder: Arc<Recorder>,
    slow: Arc<Slow>,
    base: Image,
    volume: Volume,
    start: u64,
}

fn open(system: &LaneFs, size: usize, seed: u64) -> Result<Live, Violation> {
    let base = base(size)?;
    let recorder = Recorder::new();
    let slow = Arc::new(Slow::new(base.clone(), seed));
    let device = Arc::new(recorder.wrap(slow.clone())) as Arc<dyn Device>;
    let volume = Volume::open_devices(vec![device], &system.mount)
        .map_err(|e| broken("answer", format!("open: {e}")))?;
    let (asked, has) = (SIZES[size].1, volume.info().mlogs);
    if asked != has {
        return Err(broken("answer", format!("a volume for {asked} mlogs has {has}")));
    }
    let start = recorder.mark("");
    Ok(Live { recorder, slow, base, volume, start })
}

fn apart(seed: u64, live: &Live, counts: &mut Counts, crashes: &mut u64) -> Result<(), Violation> {
    let mut rng = Rng::new(seed ^ 0x5eed);
    let system = system(seed);
    let n = 2 + rng.below(3) as usize;
    let work = workloads::threads(seed, n as u64, 3 + rng.below(6) as usize);
    let turn = Turn::new(seed, n + 1);
    let running = AtomicUsize::new(n);
    let driven: Vec<Result<Driven, Violation>> = std::thread::scope(|s| {
        let threads: Vec<_> = work
            .iter()
            .zip(HOMES)
            .enumerate()
            .map(|(me, (steps, prefix))| {
                let (turn, running) = (&turn, &running);
                s.spawn(move || {
                    let inner = VolumeTarget::new(live.volume.clone(), None);
                    let mut pair = Pair::new(Prefixed { inner, prefix });
                    let done = turn.run(me, || {
                        let done = drive(&mut pair, steps, &live.recorder);
                        // Relaxed: one thread runs at a time.
                        running.fetch_sub(1, Ordering::Relaxed);
                        done
                    });
                    done.map_err(|(i, v)| broken(v.rule, format!("{prefix} step {i}: {}", v.what)))
                })
            })
            .collect();
        let (turn, running) = (&turn, &running);
        let rounds = rng.below(5);
        let rest = s.spawn(move || turn.run(n, || maintain(&live.volume, running, rounds)));
        let lost = || Err(broken("panic", "a thread died".into()));
        let done = threads.into_iter().map(|t| t.join().unwrap_or_else(|_| lost())).collect();
        // Joined by hand, so that nothing of it goes on in the next schedule.
        match rest.join() {
            Ok(Ok(())) => done,
            Ok(Err(v)) => vec![Err(v)],
            Err(_) => vec![lost()],
        }
    });
    *counts = turn.counts();
    let log = live.recorder.log();
    live.volume.shutdown();
    let driven: Vec<Driven> = driven.into_iter().collect::<Result<_, _>>()?;
    let oracles: Vec<Oracle> = driven.iter().map(|d| Oracle::new(&d.history, system.mount.order)).collect();
    for _ in 0..CRASHES {
        let at = live.start + rng.below(log.now - live.start + 1);
        let (image, how) = crashed(&log, &live.base, at, &mut rng);
        *crashes += 1;
        let mut found = system
            .open(plain(&[image]))
            .map_err(|e| broken("R1", format!("recovery failed, crash at {at}, {how}: {e}")))?;
        for ((oracle, d), prefix) in oracles.iter().zip(&driven).zip(HOMES) {
            let tree = observe(&mut Prefixed { inner: Borrowed(&mut *found), prefix })?;
            let answered = d.answered_at.iter().take_while(|a| **a < at).count();
            let called = d.called_at.iter().take_while(|a| **a < at).count();
            oracle.check(answered, called, &tree).map_err(|v| {
                let steps: Vec<String> = d.history.steps.iter().map(|s| format!("{:?}", s.op)).collect();
                let what = format!(
                    "{prefix} ({answered} answered, {called} called, crash at {at} of {}, {how}): {}; {}",
                    log.now,
                    v.what,
                    steps.join(" | ")
                );
                broken(v.rule, what)
            })?;
        }
        found.kill();
    }
    Ok(())
}

/// Has a thread for each list of calls make these in turn, with what `start` gives it, beside one
/// that does rounds of background work. Returns what `make` did of each.
fn in_turns<C: Sync, T, M: Send>(
    seed: u64,
    live: &Live,
    work: &[Vec<C>],
    rounds: u64,
    counts: &mut Counts,
    start: impl Fn() -> T + Sync,
    make: impl Fn(&mut T, &C) -> Result<M, Violation> + Sync,
) -> Result<Vec<Vec<M>>, Violation> {
    let n = work.len();
    let turn = Turn::new(seed, n + 1);
    let running = AtomicUsize::new(n);
    let made = std::thread::scope(|s| {
        let (turn, running, start, make) = (&turn, &running, &start, &make);
        let threads: Vec<_> = work
            .iter()
            .enumerate()
            .map(|(me, calls)| {
                s.spawn(move || {
                    let mut with = start();
                    turn.run(me, || {
                        let made = calls.iter().map(|call| make(&mut with, call));
                        let made = made.collect::<Result<Vec<M>, Violation>>();
                        // Relaxed: one thread runs at a time.
                        running.fetch_sub(1, Ordering::Relaxed);
                        made
                    })
                })
            })
            .collect();
        let rest = s.spawn(move || turn.run(n, || maintain(&live.volume, running, rounds)));
        let lost = |_| broken("panic", "a thread died".into());
        let made = threads.into_iter().map(|t| t.join().map_err(lost)?).collect::<Result<Vec<_>, _>>();
        rest.join().map_err(lost)??;
        made
    })?;
    *counts = turn.counts();
    Ok(made)
}

/// Does what the background thread would do, and now and then a checkpoint.
fn maintain(volume: &Volume, running: &AtomicUsize, rounds: u64) -> Result<(), Violation> {
    for round in 0..rounds {
        // Relaxed: one thread runs at a time.
        if running.load(Ordering::Relaxed) == 0 {
            break;
        }
        must_work(if round % 2 == 1 { volume.checkpoint() } else { volume.tick() })?;
    }
    Ok(())
}

/// A call whose failure would be a mistake.
fn must(t: &mut dyn Target, op: Op) -> Result<Answer, Violation> {
    match t.call(Who::Root, &op) {
        Answer::Fail(e) => Err(broken("answer", format!("{op:?}: {}", lanefs_lab_model::op::errno_name(e)))),
        o => Ok(o),
    }
}
