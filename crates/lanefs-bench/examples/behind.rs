//! How long the work behind the lanes takes when nothing else is done, with one processor and with
//! several.
//!
//!     behind [--work WORK] [--files N] [--size MIB] [--image PATH]
//!            [--processors 1,2] [--repeats N] [--sync]
//!
//! Two lanes log what WORK names (create, unlink, rename, replace or write), of N files (default
//! 1,000,000), on a volume in memory (default 6144 MiB) or in an image. Nothing is committed,
//! written back or folded meanwhile. Then this process keeps to so many processors, and one round
//! of all background work is timed: what ended is reaped, pages are written, the epoch is committed
//! and folded; with `--sync` what sync(2) does. `cpu` is the processor time of all threads in it;
//! `at` is when that was, for `perf record -k CLOCK_MONOTONIC` and `perf report --time`. Of the
//! processors that this was started with (`taskset`) the first ones are used: two of these programs
//! at a time, on one each, show what two processors give that share no work.
//!
//! Before the clock starts another process touches memory that this one may need: a virtual machine
//! that gives free memory back to its host pays some 8 us for each page that it touches first, and
//! that would be half of what is measured.

use lanefs::{Cred, MountOptions, Volume};
use lanefs_store::device::{Device, FileDevice, MemoryDevice, WriteReq};
use lanefs_store::{FormatOptions, Store};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Failure = Box<dyn std::error::Error>;

/// What can be logged.
const WORKS: [&str; 5] = ["create", "unlink", "rename", "replace", "write"];
/// Set for the process that only touches so many MiB of memory.
const TOUCH: &str = "BEHIND_TOUCH";
/// Bytes of memory that the work behind a file takes, about.
const EACH: u64 = 2048;
/// The same for a file with content.
const EACH_WRITTEN: u64 = 12288;
/// Threads that log, each in a directory of its own.
const LANES: u64 = 2;

struct Args {
    work: String,
    files: u64,
    size: u64,
    image: Option<String>,
    sync: bool,
}

fn main() -> Result<(), Failure> {
    if let Ok(mib) = std::env::var(TOUCH) {
        touch_memory(mib.parse()?);
        return Ok(());
    }
    let (mut processors, mut repeats) = (vec![1, 2], 3);
    let mut of = Args { work: "create".into(), files: 1_000_000, size: 6144, image: None, sync: false };
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        let mut value = || args.next().ok_or(format!("{a} takes a value"));
        match a.as_str() {
            "--work" => of.work = value()?,
            "--files" => of.files = value()?.parse()?,
            "--size" => of.size = value()?.parse()?,
            "--image" => of.image = Some(value()?),
            "--sync" => of.sync = true,
            "--repeats" => repeats = value()?.parse()?,
            "--processors" => {
                processors = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?;
            }
            other => return Err(format!("{other}: not an option").into()),
        }
    }
    if !WORKS.contains(&of.work.as_str()) || of.files < LANES || repeats == 0 || processors.is_empty() {
        return Err(format!("--work is one of {}, of {LANES} files and more", WORKS.join(", ")).into());
    }
    if of.image.as_ref().is_some_and(|path| std::path::Path::new(path).exists()) {
        return Err("the image is there already, and would be removed in the end: name another".into());
    }
    let allowed = allowed()?;
    let mut took = vec![Vec::new(); processors.len()];
    for turn in 0..repeats {
        for (at, &n) in processors.iter().enumerate() {
            let took_now = round(&of, &allowed, n);
            if let Some(path) = &of.image {
                let _ = std::fs::remove_file(path);
            }
            let Took { at: begun, time, cpu } = took_now?;
            println!(
                "{} {n} processors, turn {turn}: {:.0} ns each, {:.0} cpu, at {:.6},{:.6}",
                of.work,
                time.as_nanos() as f64 / of.files as f64,
                cpu.as_nanos() as f64 / of.files as f64,
                begun.as_secs_f64(),
                (begun + time).as_secs_f64()
            );
            took[at].push(time);
        }
    }
    took.iter_mut().for_each(|t| t.sort_unstable());
    for (n, times) in processors.iter().zip(&took) {
        let (first, this) = (took[0][repeats / 2], times[repeats / 2]);
        println!(
            "{n} processors: {this:.2?} (median), {:.2} times as fast as {}",
            first.as_secs_f64() / this.as_secs_f64(),
            processors[0]
        );
    }
    Ok(())
}

/// What a round took.
struct Took {
    /// When it began, by the monotonic clock.
    at: Duration,
    time: Duration,
    cpu: Duration,
}

/// Makes a volume with work that waits, and does it.
fn round(of: &Args, allowed: &[usize], processors: usize) -> Result<Took, Failure> {
    keep_to(allowed, LANES as usize)?;
    let device: Arc<dyn Device> = match &of.image {
        Some(path) => Arc::new(FileDevice::create(path, of.size << 20)?),
        None => Arc::new(MemoryDevice::new(of.size << 20)?),
    };
    // Memory that the system has never given out is cleared at the first touch.
    touch(&*device)?;
    Store::format(std::slice::from_ref(&device), &FormatOptions::for_caller())?;
    // Nothing is done before it is asked for, and then by as many threads as there are processors.
    let options = MountOptions {
        background: false,
        threads: processors,
        cache_size: 8 << 30,
        ..MountOptions::default()
    };
    let volume = Volume::open_devices(vec![device], &options)?;
    if of.work != "create" && of.work != "write" {
        each(&volume, of.files, |fs, name| fs.create(name).map(drop))?;
        volume.tick()?;
        volume.tick()?;
    }
    each(&volume, of.files, |fs, name| match of.work.as_str() {
        "unlink" => fs.unlink(name),
        "rename" => fs.rename(name, format!("{name}.new")),
        "replace" => {
            let new = format!("{name}.new");
            fs.write(&*new, [7; 4096])?;
            fs.rename(&*new, name)
        }
        "write" => fs.write(name, [7; 4096]),
        _ => fs.create(name).map(drop),
    })?;
    let is_written = of.work == "replace" || of.work == "write";
    let mib = (of.files * if is_written { EACH_WRITTEN } else { EACH }) >> 20;
    let touched =
        std::process::Command::new(std::env::current_exe()?).env(TOUCH, mib.to_string()).status()?;
    if !touched.success() {
        return Err(format!("{mib} MiB of memory could not be touched").into());
    }
    keep_to(allowed, processors)?;
    let (at, before) = (clock(ClockId::Monotonic), clock(ClockId::ProcessCPUTime));
    match of.sync {
        true => volume.sync()?,
        false => volume.tick()?,
    }
    let (end, after) = (clock(ClockId::Monotonic), clock(ClockId::ProcessCPUTime));
    let took = Took { at, time: end - at, cpu: after - before };
    volume.close()?;
    Ok(took)
}

/// Calls `f` with the name of each file, from a thread for each lane.
fn each(
    volume: &Volume,
    files: u64,
    f: impl Fn(&lanefs::Fs, &str) -> lanefs::Result<()> + Sync,
) -> Result<(), Failure> {
    std::thread::scope(|s| {
        let lane = |lane: u64| {
            let fs = volume.as_user(Cred::root());
            match fs.mkdir(format!("{lane}"), 0o755) {
                Err(e) if e.errno() != libc::EEXIST => return Err(e),
                _ => {}
            }
            (0..files / LANES).try_for_each(|n| f(&fs, &format!("{lane}/{n:012}")))
        };
        let threads: Vec<_> = (0..LANES).map(|n| s.spawn(move || lane(n))).collect();
        threads
            .into_iter()
            .try_for_each(|t| t.join().map_err(|_| "a lane's thread panicked")?.map_err(Failure::from))
    })
}

/// Writes a device once.
fn touch(device: &dyn Device) -> Result<(), Failure> {
    let zeros = vec![0; 4 << 20];
    for offset in (0..device.size()).step_by(zeros.len()) {
        let len = zeros.len().min((device.size() - offset) as usize);
        device.write(&[WriteReq { offset, data: &zeros[..len] }])?;
    }
    Ok(())
}

/// Touches so much memory: the system has it from its host when this process has ended.
fn touch_memory(mib: usize) {
    let mut memory = vec![0u8; mib << 20];
    memory.chunks_mut(4096).for_each(|page| page[0] = 1);
    std::hint::black_box(memory);
}

/// Has all threads of this process that start from now on, and this one, keep to the first `n`
/// processors.
fn keep_to(allowed: &[usize], n: usize) -> Result<(), Failure> {
    let mut set = CpuSet::new();
    allowed.iter().take(n).for_each(|cpu| set.set(*cpu));
    Ok(sched_setaffinity(None, &set)?)
}

/// Returns the processors that this process may use.
fn allowed() -> Result<Vec<usize>, Failure> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Returns what a clock shows.
fn clock(id: ClockId) -> Duration {
    let t = clock_gettime(id);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}
