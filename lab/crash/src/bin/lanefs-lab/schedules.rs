//! `cargo xtask schedules`: threads in orders drawn from seeds. With `--planted` a fault is
//! planted, and the check fails if it was not found.
//!
//! Each job is a process of its own: schedules of one process share what the library keeps per
//! process.

use clap::Args;
use lanefs_lab_crash::schedule;
use lanefs_lab_faults::{Fault, IN_THIS_PROGRAM, plant_everywhere};
use lanefs_lab_model::harness::{Jobs, Limit, Output, Seed, this_program};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::time::Instant;

/// The command line.
#[derive(Debug, Args)]
pub struct Options {
    /// Schedules to run
    #[arg(long, value_name = "N", default_value_t = 1000)]
    runs: u64,
    /// Run each twice, and tell of those that come out differently
    #[arg(long)]
    twice: bool,
    /// Plant this mistake
    #[arg(long, value_name = "NAME")]
    planted: Option<String>,
    /// Which job this process is
    #[arg(long, hide = true)]
    child: Option<u64>,
    #[command(flatten)]
    seed: Seed,
    #[command(flatten)]
    jobs: Jobs,
    #[command(flatten)]
    limit: Limit,
    #[command(flatten)]
    output: Output,
}

/// Runs the check, or a job of it.
pub fn run(o: &Options) -> Result<bool, String> {
    match o.child {
        Some(job) => child(o, job),
        None => work(o),
    }
}

/// Keeps the process on one processor: only one of its threads runs at a time, and handing over is
/// a switch there, not a call to another.
fn stay(job: u64) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|c| allowed.is_set(*c)).collect();
    let mut one = CpuSet::new();
    if let Some(cpu) = cpus.get(job as usize % cpus.len().max(1)) {
        one.set(*cpu);
        // Best effort: it only saves time.
        let _ = sched_setaffinity(None, &one);
    }
}

/// Runs a job's schedules; a line for each broken promise and for the sums.
fn child(o: &Options, job: u64) -> Result<bool, String> {
    stay(job);
    std::panic::set_hook(Box::new(|_| ()));
    if let Some(name) = &o.planted {
        if !IN_THIS_PROGRAM {
            return Err(
                "LaneFS is compiled without faults here: call `cargo xtask faults --schedules NAME`".into()
            );
        }
        let c = Fault::ALL.into_iter().chain(Fault::OF_THREADS).find(|c| format!("{c:?}") == *name);
        plant_everywhere(Some(c.ok_or(format!("no fault is called {name}"))?));
    }
    let (mut steps, mut switches, mut crashes, mut differ, mut many) = (0, 0, 0, 0, 0);
    let (mut late, mut overtaken) = (0, 0);
    let mut out = std::io::stdout();
    let mut say =
        |line: String| writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|e| e.to_string());
    let end = o.limit.from_now();
    for n in 0..o.runs {
        let seed = o.seed.seed.wrapping_add(n);
        let r = schedule::run(seed);
        steps += r.counts.steps;
        switches += r.counts.switches;
        crashes += r.crashes;
        many += u64::from(r.mlogs > 1);
        late += r.late;
        overtaken += r.overtaken;
        if o.twice && schedule::run(seed).counts != r.counts {
            differ += 1;
            say(format!("differs {seed}"))?;
        }
        if let Some(v) = r.violation {
            say(format!("found seed {seed}: {}", v.replace('\n', " ")))?;
            if o.planted.is_some() {
                break;
            }
        }
        let over = end.is_over();
        if n % 1000 == 999 || n + 1 == o.runs || over {
            say(format!("sum {} {steps} {switches} {crashes} {differ} {many} {late} {overtaken}", n + 1))?;
        }
        if over {
            break;
        }
    }
    Ok(true)
}

struct Job {
    child: Child,
    sums: [u64; 8],
    found: Vec<String>,
}

fn work(o: &Options) -> Result<bool, String> {
    let began = Instant::now();
    let count = o.jobs.get() as u64;
    let share = o.runs.div_ceil(count);
    let mut jobs = Vec::new();
    for j in 0..count {
        let runs = share.min(o.runs.saturating_sub(j * share));
        let mut c = this_program("schedules")?;
        c.args(["--child", &j.to_string(), "--runs", &runs.to_string()]);
        c.args(["--seed", &(o.seed.seed + j * share).to_string()]);
        c.args(o.twice.then_some("--twice"));
        if let Some(name) = &o.planted {
            c.args(["--planted", name]);
        }
        if let Some(m) = o.limit.minutes {
            c.args(["--minutes", &m.to_string()]);
        }
        let child = c.stdout(Stdio::piped()).spawn().map_err(|e| e.to_string())?;
        jobs.push(Job { child, sums: [0; 8], found: Vec::new() });
    }
    let mut ok = true;
    std::thread::scope(|s| {
        for job in &mut jobs {
            s.spawn(move || {
                let Some(pipe) = job.child.stdout.take() else { return };
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    if let Some(sums) = line.strip_prefix("sum ") {
                        let words = sums.split(' ').map(|w| w.parse().unwrap_or(0));
                        job.sums.iter_mut().zip(words).for_each(|(s, w)| *s = w);
                    } else if line.starts_with("differs ") {
                        eprintln!("{line}");
                    } else {
                        eprintln!("VIOLATION {line}");
                        job.found.push(line);
                    }
                }
            });
        }
    });
    let (mut sums, mut found) = ([0; 8], Vec::new());
    for mut j in jobs {
        ok &= j.child.wait().is_ok_and(|s| s.success()) || !j.found.is_empty();
        sums.iter_mut().zip(j.sums).for_each(|(a, b)| *a += b);
        found.append(&mut j.found);
    }
    if !ok {
        return Err("a job died".into());
    }
    let seconds = began.elapsed().as_secs_f64();
    let json = serde_json::json!({
        "schedules": sums[0], "steps": sums[1], "switches": sums[2], "crashes": sums[3], "differed": sums[4],
        "with_several_mlogs": sums[5],
        "faults": { "answered late": sums[6], "overtaken by a later request": sums[7] },
        "violations": found.len(), "failures": found, "seconds": seconds, "seed": o.seed.seed,
        "per_second": sums[0] as f64 / seconds, "planted": o.planted,
    });
    o.output.write(&json)?;
    Ok(found.is_empty() != o.planted.is_some())
}
