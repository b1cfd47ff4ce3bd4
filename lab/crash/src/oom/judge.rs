//! This module judges what a child left behind: how it ended, what it had told, and what is found
//! in its image files.

use super::faults::Fault;
use super::report::Line;
use super::stage::{self, Kind, Stage, check, must};
use super::{BEGINNING, PlantedFault};
use crate::crash::concurrent::{Borrowed, Prefixed};
use crate::crash::image::Image;
use crate::crash::plain;
use crate::crash::system::{LaneFs, Live, System};
use lanefs::Volume;
use lanefs_lab_model::model::{Change, Model};
use lanefs_lab_model::op::{Op, Tagged, Who};
use lanefs_lab_model::oracle::{History, Observed, Oracle, Violation, broken, observe};
use lanefs_store::device::Device;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, PoisonError};

/// The end of a child.
#[derive(Debug)]
pub struct Ended {
    /// The lines that it told.
    pub lines: Vec<Line>,
    /// The exit status that the kernel reports; `None` if it did not end.
    pub status: Option<ExitStatus>,
    /// The text that it wrote for people.
    pub said: String,
}

/// The end of a run that broke no promise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The process ended at once.
    Aborted,
    /// A call was answered by an error, and the process went on.
    Answered,
    /// As if nothing had failed.
    Finished,
}

type Judged<T> = Result<T, Violation>;

/// The beginning of the message that the library writes when an allocation fails, before it ends
/// the process.
const LAST_WORDS: &str = "memory allocation of ";

/// The message of Rust's library when a new thread gets no stack for its signals.
const NO_STACK: &str = "failed to allocate an alternative stack";

impl Ended {
    /// Returns how it ended, or the promise that it broke if it may not end so.
    pub fn verdict(&self, fault: Fault) -> Judged<Verdict> {
        let said = self.said.trim();
        let Some(status) = self.status else {
            return Err(broken("hang", format!("the process did not end; it said {said:?}")));
        };
        let ended_at_once = status.signal() == Some(libc::SIGABRT);
        for line in &self.lines {
            match line {
                // The library's own end of a thread that has no room to begin: of the whole
                // process, and before the thread does anything.
                Line::Panics(what) if ended_at_once && what.contains(NO_STACK) => {
                    return Ok(Verdict::Aborted);
                }
                Line::Panics(what) => return Err(broken("panic", format!("{what} {said}"))),
                Line::Broken(what) => return Err(broken("told", what.clone())),
                _ => {}
            }
        }
        let errors: Vec<i32> = self
            .lines
            .iter()
            .filter_map(|l| match l {
                Line::Answered(_, _, e) | Line::Whole(e) if *e != 0 => Some(*e),
                _ => None,
            })
            .collect();
        let memory = !matches!(fault, Fault::Thread | Fault::Threads | Fault::Nothing);
        // A kernel without address space for a thread says EAGAIN.
        if errors.first().is_some_and(|e| !matches!(*e, libc::ENOMEM | libc::EAGAIN)) {
            let is_error = |l: &&Line| matches!(l, Line::Answered(_, _, e) | Line::Whole(e) if *e != 0);
            let (at, of) = (self.lines.iter().find(is_error), self.lines.len());
            let before = self.lines.iter().take_while(|l| !is_error(l)).count();
            let what = format!("{errors:?} told, at first {at:?}, line {before} of {of}; it said {said:?}");
            return Err(broken("errno", what));
        }
        match (status.signal(), status.code()) {
            (Some(libc::SIGABRT), _) if memory && said.contains(LAST_WORDS) => Ok(Verdict::Aborted),
            // The C library too ends the process when it has no memory itself, in words of its own.
            (Some(libc::SIGABRT), _) if fault == Fault::Space => Ok(Verdict::Aborted),
            (None, Some(0)) if !self.lines.iter().any(|l| matches!(l, Line::Over(..))) => {
                Err(broken("end", format!("it ended without having told so; it said {said:?}")))
            }
            (None, Some(0)) if !errors.is_empty() => Ok(Verdict::Answered),
            (None, Some(0)) => Ok(Verdict::Finished),
            _ => Err(broken("end", format!("{status}; it said {said:?}"))),
        }
    }

    /// Returns whether something failed that should have; `None` if it ended without having told.
    pub fn reached(&self) -> Option<bool> {
        self.lines.iter().find_map(|l| match l {
            Line::Over(_, _, failed) => Some(*failed > 0),
            _ => None,
        })
    }
}

/// The history of a thread of the program, as the thread told it.
struct Told {
    model: Model,
    history: History,
    /// Steps answered, and called.
    moment: (usize, usize),
    doubted: bool,
}

impl Told {
    /// Goes after thread `t` by what it told.
    fn read(stage: &Stage, t: usize, lines: &[Line]) -> Judged<Told> {
        let mut told =
            Told { model: Model::new(), history: History::default(), moment: (0, 0), doubted: false };
        let op = |i: &usize| stage.work[t].0[*i].op.clone();
        let mut open = None;
        for line in lines {
            match line {
                Line::Called(of, i) if *of == t => open = Some(*i),
                Line::Answered(of, i, 0) if *of == t => {
                    told.step(op(i));
                    told.moment.0 = told.moment.1;
                    open = None;
                }
                Line::Unchanged(of, _) if *of == t => open = None,
                Line::Doubted(of, i, synced) if *of == t => {
                    if *synced == 0 {
                        told.step(Op::Sync);
                        told.moment.0 = told.moment.1;
                    }
                    told.step(op(i));
                    (told.doubted, open) = (true, None);
                }
                Line::Is(of, id, ino, generation) if *of == t => {
                    let paired = told.history.ids.pair(&told.model, *id, *ino, Some(*generation));
                    paired.map_err(|e| broken("R2", e))?;
                }
                Line::Whole(0) if !told.doubted => {
                    told.step(Op::Sync);
                    told.moment.0 = told.moment.1;
                }
                _ => {}
            }
        }
        if let Some(i) = open {
            told.step(op(&i));
        }
        Ok(told)
    }

    fn step(&mut self, op: Op) {
        self.model.apply(Who::Root, &op);
        self.history.steps.push(op.into());
        self.history.changes.push(self.model.take_changes());
        self.moment.1 += 1;
    }

    /// An inode whose making is the last that is known of the process: it may be there, and nobody
    /// was told which it is.
    fn find_last(&mut self, found: &Observed) -> Judged<()> {
        let Some(changes) = self.history.changes.last() else { return Ok(()) };
        for c in changes {
            let Change::New { id, .. } = c else { continue };
            if self.history.ids.of(*id).is_some() {
                continue;
            }
            let known: Vec<_> = self.history.ids.pairs().map(|p| p.1).collect();
            if let Some((ino, generation)) = found.inodes.keys().find(|i| !known.contains(i)) {
                let paired = self.history.ids.pair(&self.model, *id, *ino, Some(*generation));
                paired.map_err(|e| broken("R2", e))?;
            }
        }
        Ok(())
    }
}

fn opened(devices: Vec<Arc<dyn Device>>) -> Judged<Box<dyn Live>> {
    LaneFs::default().open(devices).map_err(|e| broken("R1", format!("it does not open: {e}")))
}

fn clean(devices: Vec<Arc<dyn Device>>) -> Judged<()> {
    match LaneFs::default().fsck(devices) {
        Some(Err(what)) => Err(broken("fsck", what)),
        _ => Ok(()),
    }
}

/// Opens and looks; what recovery left must be whole.
fn seen(images: &[Image]) -> Judged<(Observed, Vec<Arc<dyn Device>>)> {
    let devices = plain(images);
    let mut live = opened(devices.clone())?;
    let found = observe(&mut *live)?;
    live.kill();
    clean(devices.clone())?;
    Ok((found, devices))
}

/// Works on a volume that was recovered; it must be of use, and nothing else changes.
fn used(devices: Vec<Arc<dyn Device>>, before: &Observed) -> Judged<()> {
    let mut live = opened(devices.clone())?;
    let again = observe(&mut *live)?;
    if again != *before {
        return Err(broken("R3", format!("seen again: {}", before.difference(&again))));
    }
    let path = "/after all this";
    let (flags, data) = (libc::O_RDWR | libc::O_CREAT, Tagged { tag: 4000, len: 9000 });
    for op in [
        Op::Open { fd: 200, path: path.into(), flags, mode: 0o600 },
        Op::Pwrite { fd: 200, offset: 0, data },
        Op::Fsync { fd: 200 },
        Op::Close { fd: 200 },
        Op::Remount,
    ] {
        must(&mut *live, op).map_err(|e| broken("R1", format!("used again: {e}")))?;
    }
    let mut after = observe(&mut *live)?;
    if after.take(path).is_none_or(|f| f.bytes != data.bytes(0)) {
        return Err(broken("F2", format!("{path:?}, fsynced, is not what was written")));
    }
    if after.without_times() != before.without_times() {
        return Err(broken("R3", format!("after use: {}", before.difference(&after))));
    }
    live.kill();
    clean(devices)
}

/// The parts of a case that are the same whatever failed.
pub struct Case<'a> {
    /// The stage that was run.
    pub stage: &'a Stage,
    /// The tree that is found if nothing fails.
    pub unchanged: Option<&'a Observed>,
    /// A mistake in the judge.
    pub plant: Option<PlantedFault>,
}

impl Case<'_> {
    /// Checks that the image files hold what they may hold.
    pub fn judge(&self, ended: &Ended, dir: &Path) -> Judged<()> {
        let files = self.stage.files(dir);
        let open = BEGINNING.read().unwrap_or_else(PoisonError::into_inner);
        if self.stage.kind == Kind::Make {
            return self.judge_make(ended, &files);
        }
        let images = files.iter().map(|f| stage::read(f, self.stage.blocks)).collect::<Result<Vec<_>, _>>();
        let images = images.map_err(|e| broken("R1", e))?;
        drop(open);
        match self.stage.kind {
            Kind::Work => self.judge_work(ended, &images),
            Kind::Open | Kind::Check => {
                let (found, devices) = seen(&images)?;
                self.same(&found)?;
                used(devices, &found)
            }
            Kind::Repair => {
                let devices = plain(&images);
                let report = check(devices.clone(), true, 1).map_err(|e| broken("fsck", e))?;
                if report.left() > 0 {
                    return Err(broken("fsck", format!("a repair left {:?}", report.problems)));
                }
                let mut live = opened(devices.clone())?;
                let found = observe(&mut *live)?;
                live.kill();
                self.same(&found)?;
                used(devices, &found)
            }
            Kind::Make | Kind::MakeOver => {
                // The old one whole, the new one whole, or none.
                if let Ok(mut live) = LaneFs::default().open(plain(&images)) {
                    let found = observe(&mut *live)?;
                    live.kill();
                    if found.inodes.len() > 1 {
                        self.same(&found)?;
                    }
                }
                let devices = plain(&images);
                LaneFs::default().format(&devices).map_err(|e| broken("mkfs", e))?;
                self.fresh(devices)
            }
        }
    }

    fn judge_work(&self, ended: &Ended, images: &[Image]) -> Judged<()> {
        let devices = plain(images);
        let mut live = opened(devices.clone())?;
        for t in 0..self.stage.work.len() {
            let mut told = Told::read(self.stage, t, &ended.lines)?;
            let prefix = self.stage.home(t);
            let found = observe(&mut Prefixed { inner: Borrowed(&mut *live), prefix })?;
            told.find_last(&found)?;
            if self.plant == Some(PlantedFault::Told) && told.moment.0 < told.history.steps.len() {
                // As if the last call had been a sync, and answered.
                told.step(Op::Sync);
                told.moment.0 = told.moment.1;
            }
            let (answered, called) = told.moment;
            Oracle::new(&told.history, LaneFs::default().mount.order)
                .check(answered, called, &found)
                .map_err(|v| Violation {
                    rule: v.rule,
                    what: format!("thread {t}, {answered} steps answered, {called} called: {}", v.what),
                })?;
        }
        let found = observe(&mut *live)?;
        live.kill();
        clean(devices.clone())?;
        used(devices, &found)
    }

    /// A volume was made: whole, or not there; and can be made then.
    fn judge_make(&self, ended: &Ended, files: &[PathBuf]) -> Judged<()> {
        let failed = ended.lines.iter().any(|l| matches!(l, Line::Whole(e) if *e != 0));
        if let Some(left) = files.iter().find(|f| failed && f.exists()) {
            return Err(broken("mkfs", format!("it failed and left {}", left.display())));
        }
        let blocks = self.stage.blocks;
        let whole = |f: &PathBuf| std::fs::metadata(f).is_ok_and(|m| m.len() == (blocks * 4096) as u64);
        let read = || files.iter().map(|f| stage::read(f, blocks)).collect::<Result<Vec<_>, _>>();
        if files.iter().all(whole) {
            let images = read().map_err(|e| broken("mkfs", e))?;
            if LaneFs::default().open(plain(&images)).is_ok_and(|l| {
                l.kill();
                true
            }) {
                self.fresh(plain(&images))?;
            }
        }
        for f in files {
            // Those that are not there need not go.
            let _ = std::fs::remove_file(f);
        }
        Volume::create(files, (blocks * 4096) as u64).map_err(|e| broken("mkfs", e.to_string()))?;
        let images = read().map_err(|e| broken("mkfs", e))?;
        self.fresh(plain(&images))
    }

    /// It holds what a new volume holds.
    fn fresh(&self, devices: Vec<Arc<dyn Device>>) -> Judged<()> {
        let mut live = opened(devices.clone())?;
        let found = observe(&mut *live)?;
        live.kill();
        if found.inodes.len() != 1 {
            return Err(broken("mkfs", format!("a new volume holds {} inodes", found.inodes.len())));
        }
        used(devices, &found)
    }

    fn same(&self, found: &Observed) -> Judged<()> {
        match self.unchanged {
            Some(want) if want != found => Err(broken("R3", want.difference(found))),
            _ => Ok(()),
        }
    }
}
