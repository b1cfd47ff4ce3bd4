//! The crash simulator: runs a workload on a recording device, makes every state that the medium
//! may have after a crash, recovers each, and asks the oracle.
//!
//! Per state: recover and look (`oracle::observe`); let fsck check what recovery left, its free
//! space included; compare with docs/SEMANTICS.md for every moment of the program at which the
//! medium may have that state; and for one in so many states go on: crash at each step of recovery
//! itself and recover again (R1), crash right after it and find the same again (R3), then use the
//! volume, crash, and find that what was used is there and that nothing lies behind the ends of
//! files (F4).

pub mod concurrent;
pub mod device_faults;
pub mod image;
pub mod medium;
pub mod planted;
pub mod states;
pub mod system;
pub mod toy;
pub mod workloads;

use image::{CowDevice, Image};
use lanefs_lab_model::model::{Change, Model, ROOT};
use lanefs_lab_model::op::{Name, Op, Outcome, Step, Tagged, Who};
use lanefs_lab_model::oracle::{History, Observed, Oracle, Violation, broken, observe};
use lanefs_lab_model::target::{Identities, Pair, Target};
use lanefs_store::device::{Device, Log, Payload, Recorder};
use states::{Levels, State, WHAT_WAS_ANSWERED, enumerate};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
pub use system::{Live, System};

/// The settings with which a workload is run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Blocks of each device.
    pub blocks: usize,
    /// Devices.
    pub devices: usize,
    /// Which states.
    pub levels: Levels,
    /// One in so many distinct states is crashed again during and after recovery, and what is there
    /// at the end; 0: none.
    pub nested: u64,
    /// Stop at so many distinct states of one workload.
    pub limit: u64,
    /// Steps at the start that only prepare: no crash before they are done.
    pub setup: usize,
}

impl Config {
    /// A small device and every level, for runs of minutes.
    pub const SHORT: Config =
        Config { blocks: 1024, devices: 1, levels: Levels::SHORT, nested: 16, limit: 20_000, setup: 0 };
    /// As short, with more of everything.
    pub const LONG: Config =
        Config { blocks: 1024, devices: 1, levels: Levels::LONG, nested: 4, limit: 200_000, setup: 0 };
}

/// The counts of a run.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Distinct contents of the medium within a workload.
    pub states: u64,
    /// Contents that no workload of this process had before.
    pub distinct: u64,
    /// Recoveries, those of states within states included.
    pub recovered: u64,
    /// Questions to the oracle.
    pub checks: u64,
    /// Recovered volumes that were checked by fsck.
    pub fscks: u64,
    /// Segments that the cleaner emptied while workloads ran.
    pub cleaned: u64,
    /// Segments that were written a second time while workloads ran.
    pub reused: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, o: Counts) {
        self.states += o.states;
        self.distinct += o.distinct;
        self.recovered += o.recovered;
        self.checks += o.checks;
        self.fscks += o.fscks;
        self.cleaned += o.cleaned;
        self.reused += o.reused;
    }
}

/// The contents that were had before, in shards.
static SEEN: [Mutex<BTreeSet<u64>>; 64] = [const { Mutex::new(BTreeSet::new()) }; 64];

impl Counts {
    /// Counts a content of the medium, by its hash.
    fn state(&mut self, hash: u64) {
        self.states += 1;
        let mut seen = SEEN[hash as usize % SEEN.len()].lock().unwrap_or_else(PoisonError::into_inner);
        self.distinct += u64::from(seen.insert(hash));
    }
}

/// A broken promise, and how to see it again.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The rule and what was found.
    pub violation: Violation,
    /// The state of the medium, in words.
    pub state: String,
    /// Steps answered and called at the crash.
    pub moment: (usize, usize),
    /// The workload.
    pub steps: Vec<Step>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.violation)?;
        writeln!(f, "  {}; {} steps answered, {} called", self.state, self.moment.0, self.moment.1)?;
        for (i, s) in self.steps.iter().enumerate() {
            writeln!(f, "  {i:3} {:?}", s.op)?;
        }
        Ok(())
    }
}

fn failure(violation: Violation, state: &str, moment: (usize, usize), steps: &[Step]) -> Box<Failure> {
    Box::new(Failure { violation, state: state.into(), moment, steps: steps.to_vec() })
}

/// The text of a panic.
pub(crate) fn guarded<R>(f: impl FnOnce() -> Result<R, Violation>) -> Result<R, Violation> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|p| {
        let text = p
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| p.downcast_ref::<&str>().map(|s| (*s).into()))
            .unwrap_or_default();
        Err(broken("panic", text))
    })
}

/// Some path of an inode in the model.
fn path_of(model: &Model, id: u64) -> Option<Name> {
    let mut parts = Vec::new();
    let mut at = id;
    while at != ROOT {
        let (dir, name, _) = model.entries().find(|e| e.2 == at)?;
        parts.push(name.0.clone());
        at = dir;
    }
    let mut path = Vec::new();
    for p in parts.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(p);
    }
    Some(Name(path))
}

/// A call that tells the identity of an inode that `op` made.
fn way_to(model: &Model, op: &Op, id: u64) -> Option<Op> {
    if id == ROOT {
        return Some(Op::Lstat { path: "/".into() });
    }
    match (op, path_of(model, id)) {
        (Op::Open { fd, .. }, _) => Some(Op::Fstat { fd: *fd }),
        (_, Some(path)) => Some(Op::Lstat { path }),
        _ => None,
    }
}

/// Learns the identity of an inode that `op` made, if the target tells.
pub fn find_new(t: &mut dyn Target, model: &Model, ids: &mut Identities, op: &Op, id: u64) {
    let Some(op) = way_to(model, op, id) else { return };
    if let Outcome::Attr(a) = t.call(Who::Root, &op) {
        // A second identity of one inode shows when the tree is compared.
        let _ = ids.pair(model, id, a.id.0, Some(a.id.1));
    }
}

/// The effects of one caller's steps, and the instants at which each was called and answered.
pub(crate) struct Driven {
    pub(crate) history: History,
    pub(crate) called_at: Vec<u64>,
    pub(crate) answered_at: Vec<u64>,
}

/// Runs steps beside the model, noting in the recorder when each was called and answered. `Err`: at
/// which step, and what.
pub(crate) fn drive<T: Target>(
    pair: &mut Pair<T>,
    steps: &[Step],
    recorder: &Recorder,
) -> Result<Driven, (usize, Violation)> {
    // Which error comes first is another test's business.
    pair.exact_errors = false;
    let mut d = Driven { history: History::default(), called_at: Vec::new(), answered_at: Vec::new() };
    let look = |p: &mut Pair<T>, op: Op| {
        let r = p.step(&op.into()).map(|_| ()).map_err(|e| broken("answer", e));
        p.model.take_changes();
        r
    };
    look(pair, Op::Lstat { path: "/".into() }).map_err(|v| (0, v))?;
    for (i, step) in steps.iter().enumerate() {
        d.called_at.push(recorder.mark(""));
        let r = guarded(|| pair.step(step).map_err(|e| broken("answer", e)));
        d.answered_at.push(recorder.mark(""));
        r.map_err(|v| (i, v))?;
        let changes = pair.model.take_changes();
        for c in &changes {
            let Change::New { id, .. } = c else { continue };
            let Some(op) = way_to(&pair.model, &step.op, *id) else { continue };
            look(pair, op).map_err(|v| (i, v))?;
        }
        d.history.steps.push(step.clone());
        d.history.changes.push(changes);
    }
    d.history.ids = pair.ids.clone();
    Ok(d)
}

/// The recording of a run.
struct Recorded {
    driven: Driven,
    log: Log,
    bases: Vec<Image>,
}

/// Freshly formatted devices.
pub fn formatted(system: &dyn System, blocks: usize, devices: usize) -> Result<Vec<Image>, Violation> {
    let fresh: Vec<Arc<CowDevice>> =
        (0..devices).map(|_| Arc::new(CowDevice::new(Image::zeros(blocks)))).collect();
    let devices: Vec<Arc<dyn Device>> = fresh.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    guarded(|| system.format(&devices).map_err(|e| broken("answer", format!("format: {e}"))))?;
    Ok(fresh.iter().map(|d| d.image()).collect())
}

pub(crate) fn recorded(recorder: &Arc<Recorder>, images: &[Image]) -> Vec<Arc<dyn Device>> {
    let one = |i: &Image| Arc::new(recorder.wrap(CowDevice::new(i.clone()))) as Arc<dyn Device>;
    images.iter().map(one).collect()
}

/// Returns the number of times that the log came back to a segment: no block of one is written
/// again before it does.
fn reused(log: &Log) -> u64 {
    let mut written: HashMap<(usize, usize), u64> = HashMap::new();
    for w in &log.writes {
        let Payload::Bytes(b) = &w.payload else { continue };
        for i in 0..b.len() / image::BLOCK {
            *written.entry((w.device, w.offset as usize / image::BLOCK + i)).or_default() += 1;
        }
    }
    let mut most: HashMap<(usize, usize), u64> = HashMap::new();
    for ((device, block), n) in written {
        let at = most.entry((device, block / system::SEGMENT)).or_default();
        *at = n.max(*at);
    }
    // The first holds the superblock and the slots.
    most.into_iter().filter(|m| m.0.1 > 0).map(|m| m.1 - 1).sum()
}

/// Runs the steps on a fresh volume, beside the model, and records what reaches the devices.
fn record(
    system: &dyn System,
    steps: &[Step],
    config: &Config,
    counts: &mut Counts,
) -> Result<Recorded, Box<Failure>> {
    let fail = |v: Violation, at: usize| failure(v, "running", (at, at + 1), steps);
    let bases = formatted(system, config.blocks, config.devices).map_err(|v| fail(v, 0))?;
    let recorder = Recorder::new();
    let devices = recorded(&recorder, &bases);
    let live = guarded(|| system.open(devices).map_err(|e| broken("answer", format!("open: {e}"))));
    let mut pair = Pair::new(LiveTarget(live.map_err(|v| fail(v, 0))?));
    let driven = drive(&mut pair, steps, &recorder).map_err(|(i, v)| fail(v, i))?;
    let log = recorder.log();
    counts.cleaned += pair.target.0.cleaned();
    counts.reused += reused(&log);
    pair.target.0.kill();
    Ok(Recorded { driven, log, bases })
}

struct LiveTarget(Box<dyn Live>);

impl Target for LiveTarget {
    fn call(&mut self, who: Who, op: &Op) -> Outcome {
        self.0.call(who, op)
    }
}

pub(crate) fn plain(images: &[Image]) -> Vec<Arc<dyn Device>> {
    images.iter().map(|i| Arc::new(CowDevice::new(i.clone())) as Arc<dyn Device>).collect()
}

/// Checks a recovered volume that was not closed, as fsck does without repairing: what recovery
/// wrote must be whole without its log too, and of its blocks exactly those in use that something
/// refers to (C5).
pub(crate) fn checked(
    system: &dyn System,
    devices: Vec<Arc<dyn Device>>,
    counts: &mut Counts,
) -> Result<(), Violation> {
    guarded(|| match system.fsck(devices) {
        Some(r) => {
            counts.fscks += 1;
            r.map_err(|what| broken("fsck", format!("after recovery: {what}")))
        }
        None => Ok(()),
    })
}

/// Opens a crashed volume and looks at all of it.
fn opened(
    system: &dyn System,
    devices: Vec<Arc<dyn Device>>,
    counts: &mut Counts,
) -> Result<Observed, Violation> {
    counts.recovered += 1;
    guarded(|| {
        let mut live = system.open(devices).map_err(|e| broken("R1", format!("recovery failed: {e}")))?;
        let seen = observe(&mut *live);
        live.kill();
        seen
    })
}

/// The same, and fsck must find nothing wrong with what recovery left.
fn recover(system: &dyn System, images: &[Image], counts: &mut Counts) -> Result<Observed, Violation> {
    let devices = plain(images);
    let seen = opened(system, devices.clone(), counts)?;
    checked(system, devices, counts)?;
    Ok(seen)
}

/// Runs a workload and checks every state. The first broken promise ends it.
pub fn run(
    system: &dyn System,
    steps: &[Step],
    config: &Config,
    counts: &mut Counts,
) -> Result<(), Box<Failure>> {
    let rec = record(system, steps, config, counts)?;
    let oracle = Oracle::new(&rec.driven.history, system.order());
    let mut seen: HashMap<u64, Arc<Result<Observed, Violation>>> = HashMap::new();
    let mut asked: HashSet<(u64, usize, usize)> = HashSet::new();
    let mut ended: HashSet<u64> = HashSet::new();
    let mut failed = None;
    let before = counts.states;
    let answers = &rec.driven.answered_at;
    let from = config.setup.checked_sub(1).and_then(|i| answers.get(i)).map_or(0, |a| *a);
    enumerate(&rec.log, &rec.bases, answers, from, &config.levels, &mut |state: State| {
        let hash = state.hash();
        let moment = (
            rec.driven.answered_at.iter().take_while(|a| **a < state.at).count(),
            rec.driven.called_at.iter().take_while(|a| **a < state.at).count(),
        );
        if !asked.insert((hash, moment.0, moment.1)) {
            return true;
        }
        let is_new = !seen.contains_key(&hash);
        if is_new {
            counts.state(hash);
            seen.insert(hash, Arc::new(recover(system, &state.devices, counts)));
        }
        counts.checks += 1;
        let found = seen[&hash].clone();
        let verdict = match &*found {
            Ok(o) => oracle.check(moment.0, moment.1, o),
            Err(v) => Err(v.clone()),
        };
        // Always at the end, with all there: what a workload left behind shows there if at all.
        let end = answers.last().is_some_and(|a| state.at >= *a) && state.how == WHAT_WAS_ANSWERED;
        let again_now = is_new && counts.states.is_multiple_of(config.nested) || end && ended.insert(hash);
        let verdict = verdict.and_then(|()| match &*found {
            Ok(o) if config.nested > 0 && again_now => {
                again(system, &state, o, counts, &|o| oracle.check(moment.0, moment.1, o))
            }
            _ => Ok(()),
        });
        if let Err(v) = verdict {
            failed = Some(failure(v, &format!("crash at event {}, {}", state.at, state.how), moment, steps));
            return false;
        }
        counts.states - before < config.limit
    });
    failed.map_or(Ok(()), Err)
}

/// Crashes during recovery, right after it, and after some use.
fn again(
    system: &dyn System,
    state: &State,
    first: &Observed,
    counts: &mut Counts,
    allowed: &dyn Fn(&Observed) -> Result<(), Violation>,
) -> Result<(), Violation> {
    again_from(system, state, &state.devices, &[], first, counts, allowed)?;
    // The same if only the process died: what recovery reads may still be in a cache, and be gone
    // when the power goes.
    match &state.cached {
        Some((durable, cached)) => again_from(system, state, durable, cached, first, counts, allowed)
            .map_err(|v| broken(v.rule, format!("after the death of the process: {}", v.what))),
        None => Ok(()),
    }
}

/// As [`again`], on devices that hold `durable` and have `cached` in their caches.
fn again_from(
    system: &dyn System,
    state: &State,
    durable: &[Image],
    cached: &[(usize, usize, Arc<image::Shared>)],
    first: &Observed,
    counts: &mut Counts,
    allowed: &dyn Fn(&Observed) -> Result<(), Violation>,
) -> Result<(), Violation> {
    let recorder = Recorder::new();
    let devices = recorded(&recorder, durable);
    for (device, block, bytes) in cached {
        let offset = (*block * image::BLOCK) as u64;
        devices[*device]
            .write(&[lanefs_store::device::WriteReq { offset, data: bytes.bytes() }])
            .map_err(|e| broken("R1", format!("the cache: {e}")))?;
    }
    counts.recovered += 1;
    let (opened, used, probed) = guarded(|| {
        let mut live = system.open(devices).map_err(|e| broken("R1", format!("second recovery: {e}")))?;
        let opened = recorder.mark("");
        let probe = probe(&mut *live, first)?;
        let used = recorder.mark("");
        live.kill();
        Ok((opened, used, probe))
    })?;
    let log = recorder.log();
    // R1: a crash at any step of recovery.
    let mut inside = log.clone();
    inside.now = opened;
    inside.writes.retain(|w| w.issued < opened);
    inside.flushes.retain(|f| f.issued < opened);
    let few = Levels { all_subsets: 4, samples: 4, tears: 1, pairs: 12, each: true, seed: state.at };
    let mut result = Ok(());
    let mut hashes = HashSet::new();
    enumerate(&inside, durable, &[], 0, &few, &mut |s| {
        if !hashes.insert(s.hash()) {
            return true;
        }
        counts.state(s.hash());
        result = recover(system, &s.devices, counts).and_then(|o| allowed(&o)).map_err(|v| Violation {
            rule: v.rule,
            what: format!("after a crash during recovery ({}): {}", s.how, v.what),
        });
        result.is_ok()
    });
    result?;
    // R3 and use: only what is durable by then, and everything.
    for (at, want) in [(opened, None), (used, Some(&probed))] {
        let crash = lanefs_store::device::Crash::new(&log, at);
        for everything in [false, true] {
            let mut images = durable.to_vec();
            let pending: &[usize] = if everything { crash.pending() } else { &[] };
            let mut writes: Vec<usize> = crash.durable().iter().chain(pending).copied().collect();
            writes.sort_unstable();
            states::apply_whole(&log, &writes, &mut images);
            let o = recover(system, &images, counts)?;
            let what = if everything { "with all writes" } else { "with what was flushed" };
            match want {
                None if o.without_times() != first.without_times() => {
                    let d = first.difference(&o);
                    return Err(broken(
                        "R3",
                        format!("a crash right behind recovery {what} shows another tree: {d}"),
                    ));
                }
                Some(p) => check_probe(first, p, &o).map_err(|v| {
                    broken(v.rule, format!("after recovery, use and a crash {what}: {}", v.what))
                })?,
                _ => {}
            }
        }
    }
    Ok(())
}

const PROBE: &str = "/probe after the crash";

/// Uses a recovered volume: looks behind the end of each file, makes a file, fsyncs it. Answers its
/// bytes.
fn probe(live: &mut dyn Live, first: &Observed) -> Result<Vec<u8>, Violation> {
    let mut ask = |op: Op| match live.call(Who::Root, &op) {
        Outcome::Fail(e) => Err(broken(
            "R1",
            format!("{op:?} failed with {} after recovery", lanefs_lab_model::op::errno_name(e)),
        )),
        o => Ok(o),
    };
    for f in first.inodes.values().filter(|f| f.mode & libc::S_IFMT == libc::S_IFREG) {
        ask(Op::Open { fd: 251, path: f.path.clone(), flags: libc::O_RDWR, mode: 0 })?;
        ask(Op::Ftruncate { fd: 251, size: f.size + 5000 })?;
        let Outcome::Bytes(b) = ask(Op::Pread { fd: 251, offset: f.size, len: 5000 })? else { continue };
        if b.len() != 5000 || b.iter().any(|x| *x != 0) {
            return Err(broken("F4", format!("{:?} shows old bytes behind its end of {}", f.path, f.size)));
        }
        ask(Op::Ftruncate { fd: 251, size: f.size })?;
        ask(Op::Close { fd: 251 })?;
    }
    let data = Tagged { tag: 0x00ff_fff0, len: 6000 };
    ask(Op::Open { fd: 251, path: PROBE.into(), flags: libc::O_RDWR | libc::O_CREAT, mode: 0o600 })?;
    ask(Op::Pwrite { fd: 251, offset: 0, data })?;
    ask(Op::Fsync { fd: 251 })?;
    ask(Op::Close { fd: 251 })?;
    Ok(data.bytes(0))
}

/// The tree must be as before, with the probe's file.
fn check_probe(first: &Observed, bytes: &[u8], found: &Observed) -> Result<(), Violation> {
    let mut o = found.without_times();
    let probe =
        o.take(PROBE).ok_or_else(|| broken("C3", "the file fsynced after recovery is gone".into()))?;
    if probe.bytes != bytes {
        return Err(broken("F2", "the file fsynced after recovery has other bytes".into()));
    }
    let want = first.without_times();
    if o != want {
        return Err(broken("R3", format!("the tree changed: {}", want.difference(&o))));
    }
    Ok(())
}
