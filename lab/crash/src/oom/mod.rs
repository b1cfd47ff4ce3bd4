//! Memory that runs out at every step. A failed allocation ends a Rust process, and a call that
//! meets one in another way answers ENOMEM; so wherever one fails, the process must answer or end
//! at once, and leave what a death of the process may leave (docs/SEMANTICS.md, part 2).
//!
//! # A run
//!
//! 1. Each *stage* (`stage.rs`) is run once without a failure, by a child process on image files,
//!    to count its allocations and its starts of threads.
//! 2. For each [`Fault`] and each N a child (`child.rs`) is run in which the N-th of these requests
//!    fails, in whatever thread. It tells what it calls and what is answered (`report.rs`), and
//!    goes on as long as it can.
//! 3. The parent judges (`judge.rs`): the child aborted with the message of a failed allocation, or
//!    answered ENOMEM or EAGAIN, or went on as if nothing had been; it did not panic, hang, or end
//!    in another way. What it left opens, passes fsck, is a state that the oracle allows for what
//!    was acknowledged, can be worked on, and is still so when closed and opened again. Stages that
//!    change nothing leave what was there.
//!
//! A thread that cannot be started, and address space that cannot be had, are wants of memory too:
//! [`Fault::Thread`] and [`Fault::Space`].
//!
//! The file under the image forgets nothing when a process dies, so nothing is asked here about
//! power; `crash` does that.

mod child;
pub mod faults;
mod judge;
mod report;
mod stage;

use child::Task;
use clap::{Args, value_parser};
use faults::Fault;
use judge::{Case, Ended, Verdict};
use lanefs_lab_model::harness::{Jobs, this_program};
use lanefs_lab_model::oracle::Observed;
use report::Line;
use serde::Serialize;
use stage::{Kind, Stage};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// A fault of the checker or of what it runs, made on purpose: it must be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlantedFault {
    /// The child answers what makes durable without doing it.
    Swallow,
    /// The child panics.
    Panic,
    /// The child does not end.
    Hang,
    /// The child ends by a fault of the processor.
    Crash,
    /// The oracle is told of one more sync than was called.
    Told,
}

impl PlantedFault {
    /// All.
    pub const ALL: [PlantedFault; 5] = [
        PlantedFault::Swallow,
        PlantedFault::Panic,
        PlantedFault::Hang,
        PlantedFault::Crash,
        PlantedFault::Told,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            PlantedFault::Swallow => "swallow",
            PlantedFault::Panic => "panic",
            PlantedFault::Hang => "hang",
            PlantedFault::Crash => "crash",
            PlantedFault::Told => "told",
        }
    }

    /// The mistake of this name.
    pub fn named(name: &str) -> Result<PlantedFault, String> {
        PlantedFault::ALL.into_iter().find(|p| p.name() == name).ok_or("no such mistake".into())
    }
}

/// The options of the command.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Every request fails once; otherwise a sample
    #[arg(long)]
    pub long: bool,
    /// So many requests of each stage and fault in a sample
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = value_parser!(u64).range(1..))]
    pub sample: u64,
    /// Stages whose name begins so
    #[arg(long, value_name = "STAGE")]
    pub only: Option<String>,
    /// This fault alone: once, for-good, thread, threads or space
    #[arg(long, value_parser = Fault::named)]
    pub fault: Option<Fault>,
    /// This request alone
    #[arg(long, value_name = "N")]
    pub at: Option<u64>,
    /// A mistake that must be found: swallow, panic, hang, crash or told
    #[arg(long, value_parser = PlantedFault::named)]
    pub plant: Option<PlantedFault>,
    /// Children at a time.
    #[command(flatten)]
    pub jobs: Jobs,
    /// A child that is silent for so many seconds does not end: a thousand times what any takes
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub patience: u64,
    /// The directory for the image files
    #[arg(long, default_value_os_t = in_memory())]
    pub dir: PathBuf,
}

fn in_memory() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.into() } else { std::env::temp_dir() }
}

/// The counts of a stage or of all.
#[derive(Clone, Default, Debug, Serialize)]
pub struct Counts {
    /// Allocations of the run in which nothing failed.
    pub allocations: u64,
    /// Threads started in it.
    pub threads: u64,
    /// Runs in which something failed.
    pub steps: u64,
    /// Runs that ended at once.
    pub aborted: u64,
    /// Runs in which a call was answered by an error.
    pub answered: u64,
    /// Runs that went on as if nothing had failed.
    pub finished: u64,
    /// Runs among them in which nothing did.
    pub not_reached: u64,
    /// Broken promises.
    pub violations: u64,
}

impl Counts {
    fn add(&mut self, o: &Counts) {
        self.allocations += o.allocations;
        self.threads += o.threads;
        self.steps += o.steps;
        self.aborted += o.aborted;
        self.answered += o.answered;
        self.finished += o.finished;
        self.not_reached += o.not_reached;
        self.violations += o.violations;
    }
}

/// The results of all stages.
#[derive(Clone, Default, Debug, Serialize)]
pub struct Report {
    /// Of all stages.
    pub all: Counts,
    /// Of each.
    pub stages: BTreeMap<&'static str, Counts>,
    /// The violations, and how to see each again.
    pub found: Vec<String>,
    /// Time.
    pub seconds: f64,
}

/// The most steps of [`faults::SPACE`] that are tried: the last of them leave room for all that a
/// stage asks for.
const SPACES: u64 = 48;

/// Written while a child is begun, read while this process has an image open: between fork and exec
/// a child has the files of all its parent's threads open, and with them their locks.
static BEGINNING: RwLock<()> = RwLock::new(());

/// A directory that goes when this does.
struct Scratch(PathBuf);

impl Scratch {
    fn new(dir: PathBuf) -> Result<Scratch, String> {
        std::fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        Ok(Scratch(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing more can be done about it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Ends and buries a child whatever happens to its parent's work.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A stage, ready to be run.
struct Ready {
    stage: Stage,
    /// Its images, in files.
    base: PathBuf,
    unchanged: Option<Observed>,
    allocations: u64,
    threads: u64,
}

/// The child's side: runs the stage of this name.
pub fn child(
    name: &str,
    dir: &Path,
    fault: Fault,
    n: u64,
    plant: Option<PlantedFault>,
) -> Result<(), String> {
    let stage = stage::all()?.into_iter().find(|s| s.name == name).ok_or(format!("no stage {name:?}"))?;
    child::main(&stage, dir, Task { fault, n, plant })
}

/// The parent's side: runs everything.
pub fn run(o: &Options) -> Result<Report, String> {
    let began = Instant::now();
    let scratch = Scratch::new(o.dir.join(format!("lanefs-oom-{}", std::process::id())))?;
    let mut ready = Vec::new();
    for (i, stage) in stage::all()?.into_iter().enumerate() {
        // A sample comes out the same each time; what two threads do to each other does not.
        let wanted = |only: &String| stage.name.starts_with(only.as_str());
        if o.only.as_ref().map_or(o.long || stage.work.len() < 2, wanted) {
            ready.push(prepared(stage, scratch.0.join(format!("base{i}")), o)?);
        }
    }
    let mut cases = Vec::new();
    for (i, r) in ready.iter().enumerate() {
        for fault in Fault::ALL.into_iter().filter(|f| o.fault.is_none_or(|only| *f == only)) {
            cases.extend(choose(r, fault, o).into_iter().map(|n| (i, fault, n)));
        }
    }
    let next = AtomicUsize::new(0);
    let report = Mutex::new(Report::default());
    for r in &ready {
        let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
        let (allocations, threads) = (r.allocations, r.threads);
        report.stages.insert(r.stage.name, Counts { allocations, threads, ..Counts::default() });
    }
    std::thread::scope(|s| {
        for job in 0..o.jobs.get() {
            let (next, cases, ready, report, scratch) = (&next, &cases, &ready, &report, &scratch);
            s.spawn(move || {
                // Relaxed: hands out numbers.
                while let Some((i, fault, n)) = cases.get(next.fetch_add(1, Relaxed)) {
                    let dir = scratch.0.join(format!("job{job}"));
                    let counts = one(&ready[*i], *fault, *n, &dir, o);
                    let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
                    let counts = counts.unwrap_or_else(|what| {
                        let name = ready[*i].stage.name;
                        let what = format!("--only {name:?} --fault {fault} --at {n}: {what}");
                        eprintln!("VIOLATION {what}");
                        report.found.push(what);
                        Counts { steps: 1, violations: 1, ..Counts::default() }
                    });
                    if let Some(of) = report.stages.get_mut(ready[*i].stage.name) {
                        of.add(&counts);
                    }
                }
            });
        }
    });
    let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.stages.values().for_each(|c| report.all.add(c));
    report.seconds = began.elapsed().as_secs_f64();
    Ok(report)
}

/// Which N of a fault.
fn choose(r: &Ready, fault: Fault, o: &Options) -> Vec<u64> {
    if let Some(n) = o.at {
        return vec![n];
    }
    let all = match fault {
        Fault::Nothing => 0,
        Fault::Once | Fault::ForGood => r.allocations,
        Fault::Thread | Fault::Threads => r.threads,
        Fault::Space => SPACES,
    };
    let some = if o.long { all } else { o.sample.min(all) };
    // Evenly, the first and the last among them; the second of two faults of a kind takes those
    // between.
    let between = u64::from(matches!(fault, Fault::ForGood | Fault::Threads) && some < all);
    (0..some).map(|i| (i * all + between * all / 2) / some).map(|n| n.min(all - 1)).collect()
}

/// Makes the images of a stage, and runs it without a failure.
fn prepared(stage: Stage, base: PathBuf, o: &Options) -> Result<Ready, String> {
    let images = stage.images()?;
    let unchanged = stage.unchanged(&images)?;
    std::fs::create_dir_all(&base).map_err(|e| e.to_string())?;
    if stage.kind != Kind::Make {
        stage::write(&images, stage.blocks, &stage.files(&base))?;
    }
    let mut r = Ready { stage, base, unchanged, allocations: 0, threads: 0 };
    if o.plant.is_some_and(|p| p != PlantedFault::Told) {
        // It would not end as it should; how much there is to fail is no matter.
        (r.allocations, r.threads) = (1000, 1);
        return Ok(r);
    }
    let dir = Scratch::new(r.base.join("run"))?;
    let ended = spawned(&r, Fault::Nothing, 0, &dir.0, o)?;
    let name = r.stage.name;
    let verdict = ended.verdict(Fault::Nothing);
    let judged = verdict.and_then(|v| case(&r, None).judge(&ended, &dir.0).map(|()| v));
    match judged {
        Err(v) => return Err(format!("{name}: without a failure: {v}")),
        Ok(v) if v != Verdict::Finished => return Err(format!("{name}: without a failure: {v:?}")),
        Ok(_) => {}
    }
    for line in &ended.lines {
        if let Line::Over(allocations, threads, _) = line {
            (r.allocations, r.threads) = (*allocations, *threads);
        }
    }
    if r.allocations == 0 {
        return Err(format!("{name}: no allocation was seen"));
    }
    Ok(r)
}

fn case(r: &Ready, plant: Option<PlantedFault>) -> Case<'_> {
    Case { stage: &r.stage, unchanged: r.unchanged.as_ref(), plant }
}

/// One run in which something fails; what it broke.
fn one(r: &Ready, fault: Fault, n: u64, dir: &Path, o: &Options) -> Result<Counts, String> {
    let dir = Scratch::new(dir.into())?;
    let ended = spawned(r, fault, n, &dir.0, o)?;
    let verdict = ended.verdict(fault).map_err(|v| v.to_string())?;
    let told = || ended.said.lines().next().unwrap_or_default().to_string();
    case(r, o.plant).judge(&ended, &dir.0).map_err(|v| format!("{v} ({verdict:?} {})", told()))?;
    let count = |is| u64::from(verdict == is);
    // Of address space nobody counts what was refused.
    let unharmed = fault != Fault::Space && verdict == Verdict::Finished && ended.reached() == Some(false);
    let not_reached = u64::from(unharmed);
    Ok(Counts {
        steps: 1,
        aborted: count(Verdict::Aborted),
        answered: count(Verdict::Answered),
        finished: count(Verdict::Finished),
        not_reached,
        ..Counts::default()
    })
}

/// Runs a child to its end.
fn spawned(r: &Ready, fault: Fault, n: u64, dir: &Path, o: &Options) -> Result<Ended, String> {
    if r.stage.kind != Kind::Make {
        for (from, to) in r.stage.files(&r.base).iter().zip(r.stage.files(dir)) {
            std::fs::copy(from, &to).map_err(|e| format!("{}: {e}", to.display()))?;
        }
    }
    let words = dir.join("said");
    let said = File::create(&words).map_err(|e| format!("{}: {e}", words.display()))?;
    let mut c = this_program("oom")?;
    c.args(["--child", r.stage.name, "--fault", fault.name(), "--at", &n.to_string(), "--dir"]).arg(dir);
    c.args(o.plant.iter().flat_map(|p| ["--plant", p.name()]));
    c.env("RUST_BACKTRACE", "0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(said);
    let begun = {
        let _alone = BEGINNING.write().unwrap_or_else(PoisonError::into_inner);
        c.spawn()
    };
    let mut child = Running(begun.map_err(|e| e.to_string())?);
    let mut text = Vec::new();
    let ends = listen(&mut child.0, &mut text, Duration::from_secs(o.patience))?;
    let status = if ends { Some(child.0.wait().map_err(|e| e.to_string())?) } else { None };
    drop(child);
    let lines = String::from_utf8_lossy(&text).lines().filter_map(Line::read).collect();
    let said = std::fs::read(&words).map_err(|e| format!("{}: {e}", words.display()))?;
    Ok(Ended { lines, status, said: String::from_utf8_lossy(&said).into_owned() })
}

/// Reads what a child tells until it ends. False: it does not.
fn listen(child: &mut Child, text: &mut Vec<u8>, patience: Duration) -> Result<bool, String> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut pipe = child.stdout.take().ok_or("no pipe")?;
    let mut room = [0; 4096];
    let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: 0 };
    loop {
        let mut fds = [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(e.to_string()),
        }
        match pipe.read(&mut room).map_err(|e| e.to_string())? {
            0 => return Ok(true),
            n => text.extend_from_slice(&room[..n]),
        }
    }
}
