//! The process in which something fails: one stage, once.
//!
//! The script's thread keeps the model beside the volume, and tells what is called and answered.
//! All of that is exempt: what fails is asked for by the volume, in whatever thread.

use super::PlantedFault;
use super::faults::{Fault, begin, counted, exempt};
use super::report::{Line, tell};
use super::stage::{HOMES, Kind, Stage};
use crate::crash::concurrent::{Borrowed, Prefixed};
use crate::crash::find_new;
use lanefs::{Error, Volume};
use lanefs_lab_model::model::{Change, Model, ROOT};
use lanefs_lab_model::op::{Op, Outcome, Step, Who};
use lanefs_lab_model::target::volume::VolumeTarget;
use lanefs_lab_model::target::{Identities, Pair, Target, agree};
use lanefs_store::device::{Device, FileDevice};
use lanefs_store::fsck::{self, FsckOptions};
use lanefs_store::{FormatOptions, Store};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};

/// The request that fails, and the mistake that is made on purpose.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// The fault.
    pub fault: Fault,
    /// Which request.
    pub n: u64,
    /// A mistake.
    pub plant: Option<PlantedFault>,
}

/// A program's thread: its steps beside a model.
struct Thread<'a, T> {
    t: usize,
    target: Prefixed<T>,
    steps: &'a [Step],
    model: Model,
    ids: Identities,
    plant: Option<PlantedFault>,
}

/// The action behind a step.
#[derive(PartialEq, Eq)]
enum Next {
    Step,
    /// Nobody knows what the last one did, or it did wrong.
    End,
}

impl<T: Target> Thread<'_, T> {
    fn new(t: usize, target: T, stage: &Stage, plant: Option<PlantedFault>) -> Thread<'_, T> {
        let target = Prefixed { inner: target, prefix: stage.home(t) };
        let mut me = Thread {
            t,
            target,
            steps: &stage.work[t].0,
            model: Model::new(),
            ids: Identities::default(),
            plant,
        };
        me.find(&Op::Lstat { path: "/".into() }, ROOT);
        me
    }

    /// Tells which inode of the volume a new one of the model is.
    fn find(&mut self, op: &Op, id: u64) {
        find_new(&mut self.target, &self.model, &mut self.ids, op, id);
        if let Some((ino, generation)) = self.ids.of(id) {
            Line::Is(self.t, id, ino, generation).tell();
        }
    }

    fn run(&mut self, from: usize, to: usize) -> Next {
        for i in from..to {
            self.plant_at(i);
            if self.step(i) == Next::End {
                return Next::End;
            }
        }
        Next::Step
    }

    fn step(&mut self, i: usize) -> Next {
        let step = &self.steps[i];
        let (want, trial, changes) = exempt(|| {
            let mut trial = self.model.clone();
            let want = trial.apply(step.who, &step.op);
            let changes = trial.take_changes();
            Line::Called(self.t, i).tell();
            (want, trial, changes)
        });
        let persists = changes.iter().any(|c| matches!(c, Change::Persist(_)));
        let got = match self.plant {
            Some(PlantedFault::Swallow) if persists => exempt(|| want.clone()),
            _ => self.target.call(step.who, &step.op),
        };
        exempt(|| self.answered(i, want, got, trial, changes))
    }

    fn answered(
        &mut self,
        i: usize,
        want: Outcome,
        got: Outcome,
        trial: Model,
        changes: Vec<Change>,
    ) -> Next {
        let step = &self.steps[i];
        if let (Outcome::Fail(e), false) = (&got, matches!(want, Outcome::Fail(_))) {
            Line::Answered(self.t, i, *e).tell();
            return self.failed(i);
        }
        Line::Answered(self.t, i, 0).tell();
        let agreed = agree(&self.model, &mut self.ids, step, &want, &got);
        self.model = trial;
        if let Err(e) = agreed {
            Line::Broken(format!("answer: {:?}: {e}", step.op)).tell();
            return Next::End;
        }
        for c in &changes {
            if let Change::New { id, .. } = c {
                self.find(&step.op, *id);
            }
        }
        Next::Step
    }

    /// A step was answered by an error. It should have changed nothing; of what writes data, or
    /// closes the volume, nobody knows.
    fn failed(&mut self, i: usize) -> Next {
        let op = &self.steps[i].op;
        let mut pair = Pair::new(Borrowed(&mut self.target));
        (pair.model, pair.ids) = (self.model.clone(), self.ids.clone());
        let same = if *op == Op::Remount { Err("closed".into()) } else { pair.compare_tree() };
        match same {
            Ok(()) => {
                Line::Unchanged(self.t, i).tell();
                return Next::Step;
            }
            Err(e) if !is_doubtful(op) => {
                Line::Broken(format!("answer: {op:?} failed and changed something: {e}")).tell()
            }
            Err(_) => {}
        }
        let synced = match self.target.call(Who::Root, &Op::Sync) {
            Outcome::Fail(e) => e,
            _ => 0,
        };
        Line::Doubted(self.t, i, synced).tell();
        Next::End
    }

    fn plant_at(&self, i: usize) {
        match self.plant {
            _ if i != 5 => {}
            Some(PlantedFault::Panic) => panic!("planted"),
            Some(PlantedFault::Hang) => loop {
                std::thread::park();
            },
            // The first only takes Rust's handler away.
            Some(PlantedFault::Crash) => loop {
                let _ =
                    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::SEGV);
            },
            _ => {}
        }
    }
}

fn is_doubtful(op: &Op) -> bool {
    matches!(
        op,
        Op::Write { .. }
            | Op::Pwrite { .. }
            | Op::Truncate { .. }
            | Op::Ftruncate { .. }
            | Op::Fallocate { .. }
            | Op::Remount
    )
}

fn devices(files: &[PathBuf], read_only: bool) -> lanefs::Result<Vec<Arc<dyn Device>>> {
    files.iter().map(|p| Ok(Arc::new(FileDevice::open(p, read_only)?) as Arc<dyn Device>)).collect()
}

/// Opens a volume, works on it, closes it.
fn work(stage: &Stage, files: &[PathBuf], task: Task) -> Result<lanefs::Result<()>, String> {
    let mount = stage.system().mount;
    let volume = Volume::open(files, &mount).map_err(|e| e.to_string())?;
    if stage.work.len() > 1 {
        let mut t = VolumeTarget::new(volume.clone(), None);
        for op in HOMES.map(|h| Op::Mkdir { path: h.into(), mode: 0o755 }).into_iter().chain([Op::Sync]) {
            if let Outcome::Fail(e) = t.call(Who::Root, &op) {
                return Err(format!("{op:?}: errno {e}"));
            }
        }
        return several(stage, volume, task);
    }
    let again = files.to_vec();
    let remount = move |v: Volume| {
        v.close()?;
        drop(v);
        Volume::open(&again, &mount)
    };
    let mut me = Thread::new(0, VolumeTarget::new(volume, Some(Box::new(remount))), stage, task.plant);
    let (all, setup) = (stage.work[0].0.len(), stage.work[0].1);
    if me.run(0, setup) == Next::End {
        return Err("the steps before the mark failed".into());
    }
    begin(task.fault, task.n)?;
    me.run(setup, all);
    // Where the volume could not be opened again there is none to close.
    let volume = me.target.inner.volume().cloned();
    let closed = volume.and_then(|v| v.close());
    drop(me);
    Ok(closed)
}

/// The same by several threads, each in its directory.
fn several(stage: &Stage, volume: Volume, task: Task) -> Result<lanefs::Result<()>, String> {
    let start = Barrier::new(stage.work.len() + 1);
    std::thread::scope(|s| {
        for t in 0..stage.work.len() {
            let mut me = Thread::new(t, VolumeTarget::new(volume.clone(), None), stage, task.plant);
            let start = &start;
            s.spawn(move || {
                exempt(|| start.wait());
                let all = me.steps.len();
                me.run(0, all);
                exempt(|| drop(me));
            });
        }
        let begun = begin(task.fault, task.n);
        exempt(|| start.wait());
        begun
    })?;
    Ok(volume.close())
}

/// Does what the stage does.
fn stage(stage: &Stage, files: &[PathBuf], task: Task) -> Result<lanefs::Result<()>, String> {
    if stage.kind == Kind::Work {
        return work(stage, files, task);
    }
    let (mount, format) = exempt(|| {
        let system = stage.system();
        (system.mount, FormatOptions { mlogs: 2, ..system.format })
    });
    begin(task.fault, task.n)?;
    let threads = if stage.background { 2 } else { 1 };
    let check = |repair| {
        let o = FsckOptions { repair, threads, ..FsckOptions::default() };
        fsck::check(devices(files, !repair)?, &o, &|_| ()).map(drop).map_err(Error::from)
    };
    Ok(match stage.kind {
        Kind::Work | Kind::Open => Volume::open(files, &mount).and_then(|v| v.close()),
        Kind::Check => check(false),
        Kind::Repair => check(true),
        Kind::Make => Volume::create(files, (stage.blocks * 4096) as u64),
        Kind::MakeOver => devices(files, false).and_then(|d| Store::format(&d, &format).map_err(Error::from)),
    })
}

/// Runs a stage on the image files in `dir`, and tells.
pub fn main(of: &Stage, dir: &Path, task: Task) -> Result<(), String> {
    // Told from the stack: what there is to allocate may be nothing.
    std::panic::set_hook(Box::new(|p| exempt(|| tell(format_args!("panics {p}")))));
    let files = of.files(dir);
    let whole = || {
        let done = stage(of, &files, task)?;
        exempt(|| {
            let (allocations, threads, failed) = counted();
            Line::Whole(done.err().map_or(0, |e| e.errno())).tell();
            Line::Over(allocations, threads, failed).tell();
            // What is dropped behind this is not the volume's.
            std::process::exit(0)
        })
    };
    // On a stack that is mapped already: the first thread's grows, and ends the process where it
    // cannot.
    std::thread::scope(|s| {
        let worker = std::thread::Builder::new().stack_size(8 << 20).spawn_scoped(s, whole);
        worker.map_err(|e| e.to_string())?.join().unwrap_or_else(|_| Err("it panicked".into()))
    })
}
