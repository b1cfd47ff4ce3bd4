//! Deterministic simulation: a whole volume on a simulated device with a simulated clock,
//! everything that happens from one seed. A seed that fails, fails again in the same way: two runs
//! of it have the same fingerprint of every request and every answer.
//!
//! One thread does everything. What the background thread would do (write back, commit, checkpoint,
//! reap, clean) is done by explicit steps among the program's calls, at moments that the seed
//! picks; threads of the operating system would not be repeatable. Crashes of several threads are
//! `crash::concurrent`'s.
//!
//! # A run
//!
//! 1. A history of calls on a small volume (so small that it fills up), beside the model, while the
//!    device fails as `device.rs` says.
//! 2. A call that fails although the model's does not: with ENOSPC it changed nothing, unless it
//!    writes data; else nobody knows. Then `sync` is tried: if it answers, all that was answered
//!    before must be durable.
//! 3. The process dies or the power goes, perhaps several times, also within recoveries.
//! 4. A recovery without faults. Runs without lies: the oracle judges what is found, fsck must find
//!    nothing wrong. Runs with lies: what can be read without an error was written there, and the
//!    tree hangs together.
//!
//! In a third of the runs the devices of the volume change meanwhile: see `members`.
//!
//! # Rules beside those of docs/SEMANTICS.md
//!
//! - E2: an fsync, fdatasync or sync during which a write or a flush failed does not answer with
//!   success.
//! - E4: ENOSPC is told by the call that wants room, never by a call that makes durable what was
//!   accepted.

pub mod device;
mod judge;
mod members;

use crate::crash::image::{BLOCK, Image};
use crate::crash::medium::{Readings, read_what_can_be};
use crate::crash::system::{LaneFs, Live};
use crate::crash::{find_new, formatted, plain};
use device::{Rates, SimDevice};
use lanefs::Order;
use lanefs::Volume;
use lanefs_lab_model::generate::{Generator, Profile, Rng};
use lanefs_lab_model::model::{Change, Model};
use lanefs_lab_model::op::{Op, Outcome, Tagged, Who};
use lanefs_lab_model::oracle::{History, Violation, broken};
use lanefs_lab_model::target::{Identities, agree, on_directory};
use lanefs_store::device::Device;
use lanefs_sync::clock::Clock;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The results of a run.
#[derive(Clone, Default, Debug)]
pub struct Report {
    /// Calls made.
    pub operations: u64,
    /// The faults that were made on purpose.
    pub faults: BTreeMap<&'static str, u64>,
    /// The number of runs of each kind, and how many on devices that lie were judged in full, in
    /// part, or not because nothing could be opened.
    pub runs: BTreeMap<&'static str, u64>,
    /// The results that should not have been.
    pub violations: Vec<String>,
    /// A fingerprint of every request and answer.
    pub trace: u64,
    /// The calls and their answers, for people; only if it ended badly.
    pub transcript: Vec<String>,
}

/// The sizes with which a volume is made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Shape {
    /// Blocks of all devices: small volumes fill up.
    blocks: usize,
    /// mlogs, for which there must be room.
    mlogs: usize,
    devices: usize,
    /// The number of copies of the tree's blocks on them.
    copies: u32,
}

/// Bytes of pages that the smallest budget of memory has room for: half of what 4 MiB leave behind
/// buffers and tables (`MountOptions::cache_size`).
const PAGES: u64 = (4 << 20) * 3 / 8 / 2;

const SHAPES: [Shape; 8] = [
    Shape { blocks: 384, mlogs: 1, devices: 1, copies: 1 },
    Shape { blocks: 512, mlogs: 1, devices: 1, copies: 1 },
    Shape { blocks: 1024, mlogs: 1, devices: 1, copies: 1 },
    Shape { blocks: 2048, mlogs: 2, devices: 1, copies: 1 },
    Shape { blocks: 2048, mlogs: 2, devices: 2, copies: 1 },
    Shape { blocks: 512, mlogs: 1, devices: 1, copies: 2 },
    Shape { blocks: 1024, mlogs: 1, devices: 1, copies: 2 },
    Shape { blocks: 2048, mlogs: 2, devices: 2, copies: 2 },
];

fn system(shape: Shape, seed: u64) -> LaneFs {
    let mut s = LaneFs::default();
    // Every third seed: no other choice goes by that.
    s.mount.order = if seed.is_multiple_of(3) { Order::Relaxed } else { Order::Ordered };
    s.mount.clock = Some(Arc::new(Clock::lamport()));
    // By half of the seeds, whatever they choose else.
    s.mount.end_together = usize::from((seed / 2).is_multiple_of(2));
    s.format.mlogs = shape.mlogs as u32;
    s.format.metadata_copies = shape.copies;
    if shape.mlogs > 1 {
        // One thread makes all calls, and its lane has one mlog: epochs take the other too, in
        // shares of one group.
        s.mount.commit_part = 1;
    }
    s
}

/// A formatted volume of this shape, made once.
fn fresh(shape: Shape) -> Result<Vec<Image>, Violation> {
    type Key = (Shape, Option<u32>);
    static MADE: OnceLock<Mutex<BTreeMap<Key, Vec<Image>>>> = OnceLock::new();
    let mut made = MADE.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    // With a fault planted what is on the medium may be another thing.
    let key = (shape, lanefs_lab_faults::planted_now().map(|f| f as u32));
    if let Some(i) = made.get(&key) {
        return Ok(i.clone());
    }
    let system = system(shape, 0);
    let images = formatted(&system, shape.blocks / shape.devices, shape.devices)?;
    let volume = Volume::open_devices(plain(&images), &system.mount)
        .map_err(|e| broken("R1", format!("a fresh volume: {e}")))?;
    let has = volume.info();
    volume.shutdown();
    let is = (has.mlogs, has.devices, has.metadata_copies);
    if is != (shape.mlogs, shape.devices, shape.copies) {
        return Err(broken("answer", format!("a volume made as {shape:?} has {has:?}")));
    }
    made.insert(key, images.clone());
    Ok(images)
}

/// Sets the clock of a simulation for step `n`, when answers were `late` by so many nanoseconds
/// together.
fn set_time(n: u64, late: u64) {
    #[cfg(feature = "simulated-time")]
    lanefs_sync::clock::simulate_time(Some(1_600_000_000_000_000_000 + n as i64 * 4_000_000 + late as i64));
    let _ = (n, late);
}

fn real_time() {
    #[cfg(feature = "simulated-time")]
    lanefs_sync::clock::simulate_time(None);
}

/// One simulation.
struct Run {
    rng: Rng,
    report: Report,
    /// All that there are, also those that are no device of the volume any more.
    devices: Vec<Arc<SimDevice>>,
    /// Those of the volume; or, where nobody knows, one of these.
    members: Vec<members::Members>,
    /// The chances by which the devices of the volume change; of their own, so that a seed does
    /// otherwise what it did.
    changes: Rng,
    /// Whether programs change ACLs and file capabilities: by every fifth seed, and no other choice
    /// goes by that.
    rights: bool,
    /// How the devices break now.
    rates_now: Rates,
    shape: Shape,
    system: LaneFs,
    lies: bool,
    /// A device that was replaced did not give all.
    lost: bool,
    only_misreads: bool,
    crashes: u64,
    /// The trees that could be read after recoveries under fire.
    readings: Vec<Readings>,
    /// Lies of each device that the transcript tells already.
    told: Vec<usize>,
    transcript: Vec<(String, Outcome)>,
}

/// Which runs to make, and how they are judged.
#[derive(Clone, Copy, Default, Debug)]
pub struct Choice {
    /// Only runs whose device lies.
    pub only_lies: bool,
    /// Only runs whose device does not lie, and nothing else goes wrong than that much is read
    /// wrong once.
    pub only_misreads: bool,
    /// On the smallest volumes, which are full soonest.
    pub smallest: bool,
}

/// Runs one seed.
pub fn run(seed: u64) -> Report {
    run_as(seed, Choice::default())
}

/// Runs one seed, judged as `choice` says; a seed that it leaves out reports no operation.
pub fn run_as(seed: u64, choice: Choice) -> Report {
    let mut rng = Rng::new(seed);
    let shape = if choice.smallest { SHAPES[0] } else { *rng.pick(&SHAPES) };
    let images = match fresh(shape) {
        Ok(i) => i,
        Err(v) => return Report { violations: vec![v.to_string()], ..Report::default() },
    };
    // Each has chances of its own: a volume writes to all of its devices at once, so that nothing
    // may depend on which comes first.
    let size = shape.blocks / shape.devices;
    let made = images.into_iter().enumerate();
    let devices: Vec<_> = made.map(|(n, i)| Arc::new(SimDevice::new(i, size, rng.bits(), n))).collect();
    let lies = rng.one_in(4);
    if choice.only_lies && !lies || choice.only_misreads && lies {
        return Report::default();
    }
    let mut run = Run {
        rng,
        report: Report::default(),
        told: vec![0; shape.devices],
        members: vec![devices.clone()],
        devices,
        changes: Rng::new(!seed),
        rights: seed.is_multiple_of(5),
        rates_now: Rates::default(),
        shape,
        system: system(shape, seed),
        lies,
        lost: false,
        only_misreads: choice.only_misreads,
        crashes: 0,
        readings: Vec::new(),
        transcript: Vec::new(),
    };
    run.count("all");
    if shape.mlogs > 1 {
        run.count("more than one mlog");
    }
    if shape.devices > 1 {
        run.count("more than one device");
    }
    if lies {
        run.count("on devices that lie");
    }
    set_time(0, 0);
    let done = catch_unwind(AssertUnwindSafe(|| run.go()));
    real_time();
    match done {
        Ok(Ok(())) => {}
        Ok(Err(v)) => run.report.violations.push(v.to_string()),
        Err(p) => {
            let text = p.downcast_ref::<String>().cloned();
            let text = text.or_else(|| p.downcast_ref::<&str>().map(|s| (*s).into())).unwrap_or_default();
            run.report.violations.push(format!("panic: {text}"));
        }
    }
    if !run.report.violations.is_empty() {
        run.report.transcript = run.transcript.iter().map(|(op, got)| format!("{op} -> {got:?}")).collect();
    }
    for (faults, trace) in run.devices.iter().map(|d| d.report()).collect::<Vec<_>>() {
        for (k, n) in faults {
            *run.report.faults.entry(k).or_default() += n;
        }
        run.note(trace);
    }
    run.report
}

/// The end of a history.
struct Ended {
    history: History,
    /// Steps answered, and called.
    moment: (usize, usize),
}

/// What is made before a history, and is a part of it.
struct Before<'a> {
    live: &'a mut dyn Live,
    model: &'a mut Model,
    history: &'a mut History,
    ids: &'a mut Identities,
}

impl Before<'_> {
    /// Makes a call. Returns false if it failed: then it is no part of the history.
    fn call(&mut self, op: Op) -> bool {
        let mut trial = self.model.clone();
        let want = trial.apply(Who::Root, &op);
        let changes = trial.take_changes();
        let got = self.live.call(Who::Root, &op);
        if got != want && !matches!((&want, &got), (Outcome::Attr(_), Outcome::Attr(_))) {
            return false;
        }
        *self.model = trial;
        for c in &changes {
            if let Change::New { id, .. } = c {
                find_new(self.live, self.model, self.ids, &op, *id);
            }
        }
        self.history.steps.push(op.into());
        self.history.changes.push(changes);
        true
    }
}

impl Run {
    fn note(&mut self, word: u64) {
        self.report.trace = (self.report.trace.rotate_left(9) ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
    }

    fn count(&mut self, runs: &'static str) {
        *self.report.runs.entry(runs).or_default() += 1;
    }

    /// Returns the devices with which the volume was opened last.
    fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.members.first().into_iter().flatten().map(|d| d.clone() as Arc<dyn Device>).collect()
    }

    fn set_rates(&mut self, rates: Rates) {
        self.rates_now = rates;
        self.devices.iter().for_each(|d| d.set_rates(rates));
    }

    /// Errors of writes and flushes so far.
    fn errors(&self) -> u64 {
        self.devices.iter().map(|d| d.errors()).sum()
    }

    fn rates(&mut self) -> Rates {
        if self.only_misreads {
            return Rates { misread: 2 + self.rng.below(30), ..Rates::default() };
        }
        let lies = self.lies;
        let mut some = |often: u64| if self.rng.one_in(3) { 0 } else { often + self.rng.below(often * 8) };
        if lies {
            return Rates { lies: 20 + some(20), slow: some(8), ..Rates::default() };
        }
        let (read, write, flush) = (some(60), some(100), some(40));
        let mut rates = Rates { read, write, flush, misread: some(30), slow: some(8), ..Rates::default() };
        if self.rng.one_in(2) {
            rates.cut = 1 + self.rng.below(150);
        }
        if self.rng.one_in(3) {
            (rates.read, rates.write, rates.flush) = (0, 0, 0);
        }
        rates
    }

    fn go(&mut self) -> Result<(), Violation> {
        let ended = self.history()?;
        self.crash();
        if self.lies && self.rng.one_in(2) {
            self.devices.iter().for_each(|d| d.lead_astray());
            self.tell_lies();
        }
        let rounds = self.rng.below(3);
        for _ in 0..rounds {
            // Recovery under fire: it may fail, or come up; it must not take anything away.
            let rates = self.rates();
            self.set_rates(if self.lies { Rates::default() } else { rates });
            if let Ok(mut live) = self.open() {
                if !self.lies {
                    self.readings.push(read_what_can_be(&mut *live));
                    self.count("looked at after a recovery under fire");
                }
                live.kill();
            }
            self.tell_lies();
            self.crash();
        }
        self.set_rates(Rates::default());
        if self.lies || self.lost { self.judge_lies(&ended) } else { self.judge(&ended) }
    }

    /// The clock stands at step `n`, and behind all that was waited for.
    fn set_time(&self, n: u64) {
        set_time(n, self.devices.iter().map(|d| d.late()).sum());
    }

    /// Puts into the transcript what the devices lied about since the last time.
    fn tell_lies(&mut self) {
        for (d, told) in self.devices.iter().zip(&mut self.told) {
            let lied = d.lies();
            for l in &lied[(*told).min(lied.len())..] {
                self.transcript.push((format!("    the device lies: {l}"), Outcome::Done));
            }
            *told = lied.len();
        }
    }

    fn crash(&mut self) {
        self.crashes += 1;
        self.set_time(10_000 * self.crashes);
        if self.rng.one_in(3) {
            self.devices.iter().for_each(|d| d.process_death());
        } else {
            self.devices.iter().for_each(|d| d.power_loss());
        }
    }

    /// Step 1 and 2.
    fn history(&mut self) -> Result<Ended, Violation> {
        let mut live = self.open().map_err(|e| broken("R1", format!("a fresh volume: {e}")))?;
        let len = 10 + self.rng.below(60) as usize;
        // Half of the histories read as well: what they are told must be right, or an error.
        let changes_only = self.rng.one_in(2);
        let profile = Profile { changes_only, rights: self.rights, ..Profile::CRASH };
        let steps = Generator::new(self.rng.bits(), profile).history(len);
        let mut model = Model::new();
        let mut ids = Identities::default();
        let mut history = History::default();
        find_new(
            &mut *live,
            &model,
            &mut ids,
            &Op::Lstat { path: "/".into() },
            lanefs_lab_model::model::ROOT,
        );
        let is_filled = self.rng.one_in(3);
        let mut before = Before { live: &mut *live, model: &mut model, history: &mut history, ids: &mut ids };
        if is_filled {
            self.fill(&mut before)?;
        }
        let mut changes = self.changes_of(len);
        if !is_filled && !changes.is_empty() {
            self.use_the_end(&mut before)?;
        }
        let mut rates = self.rates();
        if !changes.is_empty() {
            // What is read wrong once while it is copied stays wrong, and nobody can tell.
            rates.misread = 0;
        }
        self.set_rates(rates);
        let mut moment = None;
        for (i, step) in steps.iter().enumerate() {
            self.set_time(i as u64 + 1);
            if changes.pop_if(|at| *at == i).is_some() && !self.change_devices(&mut *live)? {
                break;
            }
            let mut trial = model.clone();
            let want = trial.apply(step.who, &step.op);
            let changes = trial.take_changes();
            if matches!(step.op, Op::Lseek { fd, .. } if on_directory(&model, fd)) {
                // Where a directory's handle may be moved to is each file system's own business.
                continue;
            }
            let persists = changes.iter().any(|c| matches!(c, Change::Persist(_)));
            let errors = self.errors();
            let got = live.call(step.who, &step.op);
            self.report.operations += 1;
            self.transcript.push((format!("{i:3} {:?}", step.op), got.clone()));
            self.tell_lies();
            self.note(match &got {
                Outcome::Fail(e) => *e as u64,
                Outcome::Count(n) => n + 1000,
                _ => 7,
            });
            let failed = matches!(got, Outcome::Fail(_));
            let short = matches!((&want, &got), (Outcome::Count(w), Outcome::Count(g)) if g < w);
            let (step, trial, want, changes, short) = match (&want, &got) {
                // A write that found room for a part is a shorter write.
                (Outcome::Count(w), Outcome::Count(g)) if g < w && *g > 0 => {
                    *self.report.faults.entry("ENOSPC").or_default() += 1;
                    let (mut less, mut trial) = (step.clone(), model.clone());
                    if let Op::Write { data, .. } | Op::Pwrite { data, .. } = &mut less.op {
                        data.len = *g as u32;
                    }
                    let want = trial.apply(less.who, &less.op);
                    let changes = trial.take_changes();
                    (less, trial, want, changes, false)
                }
                _ => (step.clone(), trial, want, changes, short),
            };
            let step = &step;
            if matches!(want, Outcome::Fail(_)) && failed {
                continue;
            }
            if persists && !failed && self.errors() > errors {
                return Err(broken(
                    "E2",
                    format!("{:?} met an error of the device and answered {got:?}", step.op),
                ));
            }
            if self.lies && matches!(step.op, Op::Remount) {
                // Closing and opening is as a crash is: a slot that the device swallowed takes the
                // volume back to the one before, and nobody can know.
                history.steps.push(step.clone());
                history.changes.push(Vec::new());
                moment = Some((0, history.steps.len()));
                break;
            }
            if reads(&step.op) && (failed || is_cut(&want, &got)) {
                // It changed nothing. Where the next read goes on after a part of one nobody knows.
                if failed {
                    continue;
                }
                break;
            }
            if !failed && !short {
                if !self.lies || !matches!(got, Outcome::Bytes(_)) {
                    agree(&model, &mut ids, step, &want, &got)
                        .map_err(|e| broken("answer", format!("step {i} {:?}: {e}", step.op)))?;
                }
                model = trial;
                for c in &changes {
                    if let Change::New { id, .. } = c {
                        find_new(&mut *live, &model, &mut ids, &step.op, *id);
                    }
                }
                history.steps.push(step.clone());
                history.changes.push(changes);
                continue;
            }
            let full = matches!(got, Outcome::Fail(libc::ENOSPC));
            if full || short {
                *self.report.faults.entry("ENOSPC").or_default() += 1;
            }
            let is_data = matches!(
                step.op,
                Op::Write { .. }
                    | Op::Pwrite { .. }
                    | Op::Truncate { .. }
                    | Op::Ftruncate { .. }
                    | Op::Fallocate { .. }
            );
            if full && persists && !is_data {
                return Err(broken("E4", format!("{:?} found no room for what had been accepted", step.op)));
            }
            if full && !is_data {
                continue;
            }
            // Nobody knows what this call did. What was answered before it can still be made
            // durable.
            let n = history.steps.len();
            let mut answered = n;
            let errors = self.errors();
            let synced = live.call(Who::Root, &Op::Sync);
            self.transcript.push(("    sync".into(), synced.clone()));
            if matches!(synced, Outcome::Done) {
                if self.errors() > errors {
                    return Err(broken("E2", "sync met an error of the device and answered".into()));
                }
                model.apply(Who::Root, &Op::Sync);
                history.steps.push(Op::Sync.into());
                history.changes.push(model.take_changes());
                answered += 1;
                // A second write of a range that was accepted in part is in the interval either
                // way.
            }
            model.apply(step.who, &step.op);
            history.steps.push(step.clone());
            history.changes.push(model.take_changes());
            moment = Some((answered, history.steps.len()));
            break;
        }
        if live.cleaned() > 0 {
            self.count("cleaned segments");
        }
        live.kill();
        let n = history.steps.len();
        history.ids = ids;
        Ok(Ended { moment: moment.unwrap_or((n, n)), history })
    }

    /// Fills the volume with one file but for a few blocks, all of it durable. On the largest
    /// volume that takes more page frames than the cache has. In half of the cases there are files
    /// of islands in a sea of holes, of which each has nodes of the map for itself; then they are
    /// written over, which must not be refused, and not found to lack space later.
    fn fill(&mut self, before: &mut Before<'_>) -> Result<(), Violation> {
        const CHUNK: u64 = 32 << 10;
        /// Files of islands, each no longer than what is read at once where it is judged.
        const SEAS: u64 = 8;
        const READ_MAX: u64 = 15 << 20;
        *self.report.faults.entry("volume filled").or_default() += 1;
        let mut offset = 0;
        let mut call = |op: Op, may_fail: bool| match before.call(op.clone()) {
            false if !may_fail => Err(broken("E4", format!("filling: {op:?} failed"))),
            done => Ok(done),
        };
        let flags = libc::O_RDWR | libc::O_CREAT;
        let island = |n: u64, tag: u64| Op::Pwrite {
            fd: 101 + (n % SEAS) as u8,
            offset: (n / SEAS) << 20,
            data: Tagged { tag: 5000 + tag as u32, len: BLOCK as u32 },
        };
        let most = SEAS * (READ_MAX >> 20);
        let wanted =
            if self.rng.one_in(2) { self.rng.below((self.shape.blocks as u64 / 12).min(most)) } else { 0 };
        let seas = (0..SEAS.min(wanted)).map(|n| 101 + n as u8);
        for fd in seas.clone() {
            call(Op::Open { fd, path: format!("/sea{fd}").as_str().into(), flags, mode: 0o600 }, false)?;
        }
        let mut islands = 0;
        while islands < wanted && call(island(islands, islands), true)? {
            islands += 1;
        }
        call(Op::Sync, false)?;
        call(Op::Open { fd: 100, path: "/fill".into(), flags, mode: 0o600 }, false)?;
        let data = |offset: u64| Tagged { tag: 2000 + (offset / CHUNK) as u32, len: CHUNK as u32 };
        while call(Op::Pwrite { fd: 100, offset, data: data(offset) }, true)? {
            offset += CHUNK;
            if offset > (self.shape.blocks * BLOCK) as u64 {
                return Err(broken("E4", format!("{offset} bytes were accepted: more than the device has")));
            }
        }
        if offset > PAGES {
            *self.report.faults.entry("more written than the budget has page frames").or_default() += 1;
        }
        let spare = 4096 * self.rng.below(24);
        call(Op::Ftruncate { fd: 100, size: offset.saturating_sub(spare) }, false)?;
        call(Op::Sync, false)?;
        if islands > 0 {
            for n in 0..3 * islands {
                call(island(self.rng.below(islands), 1000 + n), false)?;
            }
            call(Op::Sync, false)?;
            // Nor does what is left of a page need space that somebody has to have.
            for n in 0..islands {
                let (fd, offset) = (101 + (n % SEAS) as u8, ((n / SEAS) << 20) + 100);
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                call(Op::Fallocate { fd, mode, offset, len: 200 }, false)?;
            }
            call(Op::Sync, false)?;
            *self.report.faults.entry("islands written over on a full volume").or_default() += 1;
        }
        for fd in seas.chain([100]) {
            call(Op::Close { fd }, false)?;
        }
        Ok(())
    }
}

/// Returns whether a call only reads.
fn reads(op: &Op) -> bool {
    matches!(
        op,
        Op::Read { .. }
            | Op::Pread { .. }
            | Op::Lseek { .. }
            | Op::Lstat { .. }
            | Op::Stat { .. }
            | Op::Fstat { .. }
            | Op::Readdir { .. }
            | Op::Readlink { .. }
            | Op::Access { .. }
            | Op::Getxattr { .. }
            | Op::Listxattr { .. }
    )
}

/// Returns whether a read returned a part of what it should have, and that rightly.
fn is_cut(want: &Outcome, got: &Outcome) -> bool {
    matches!((want, got), (Outcome::Bytes(w), Outcome::Bytes(g)) if g.len() < w.len() && w.starts_with(g))
}
