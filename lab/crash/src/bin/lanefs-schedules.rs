//! `cargo xtask schedules --runs N [--seed N] [--jobs N] [--minutes N] [--canary NAME] [--json FILE]`:
//! threads in orders drawn from seeds. Exit status 1 if a promise was broken; with `--canary` a
//! mistake is planted, and the status is 1 if it was not found.
//!
//! Each job is a process of its own: schedules of one process share what the library keeps per
//! process.

use lanefs_lab_crash::schedule::run;
use lanefs_sync::canary::{Canary, plant_everywhere};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

struct Options {
    runs: u64,
    seed: u64,
    jobs: u64,
    /// Which job this process is.
    child: Option<u64>,
    twice: bool,
    canary: Option<String>,
    json: Option<String>,
    /// Stop then, with what was done.
    minutes: Option<u64>,
}

fn options() -> Result<Options, String> {
    let mut o = Options {
        runs: 1000,
        seed: 0,
        jobs: 1,
        child: None,
        twice: false,
        canary: None,
        json: None,
        minutes: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        match a.as_str() {
            "--twice" => o.twice = true,
            _ => {
                let value = args.next().ok_or(format!("{a} needs a value"))?;
                let number = || value.parse::<u64>().map_err(|_| format!("{value:?} is not a number"));
                match a.as_str() {
                    "--runs" => o.runs = number()?,
                    "--seed" => o.seed = number()?,
                    "--jobs" => o.jobs = number()?.max(1),
                    "--minutes" => o.minutes = Some(number()?),
                    "--child" => o.child = Some(number()?),
                    "--canary" => o.canary = Some(value),
                    "--json" => o.json = Some(value),
                    _ => return Err(format!("unknown argument {a:?}")),
                }
            }
        }
    }
    Ok(o)
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
    if let Some(name) = &o.canary {
        let c = Canary::ALL.into_iter().chain(Canary::OF_THREADS).find(|c| format!("{c:?}") == *name);
        plant_everywhere(Some(c.ok_or(format!("no canary is called {name}"))?));
    }
    let (mut steps, mut switches, mut crashes, mut differ, mut many) = (0, 0, 0, 0, 0);
    let (mut late, mut overtaken) = (0, 0);
    let mut out = std::io::stdout();
    let mut say =
        |line: String| writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|e| e.to_string());
    let end = o.minutes.map(|m| Instant::now() + Duration::from_secs(m * 60));
    for n in 0..o.runs {
        let seed = o.seed.wrapping_add(n);
        let r = run(seed);
        steps += r.counts.steps;
        switches += r.counts.switches;
        crashes += r.crashes;
        many += u64::from(r.mlogs > 1);
        late += r.late;
        overtaken += r.overtaken;
        if o.twice && run(seed).counts != r.counts {
            differ += 1;
            say(format!("differs {seed}"))?;
        }
        if let Some(v) = r.violation {
            say(format!("found seed {seed}: {}", v.replace('\n', " ")))?;
            if o.canary.is_some() {
                break;
            }
        }
        let over = end.is_some_and(|e| Instant::now() >= e);
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
    let me = std::env::current_exe().map_err(|e| e.to_string())?;
    let share = o.runs.div_ceil(o.jobs);
    let mut jobs = Vec::new();
    for j in 0..o.jobs {
        let runs = share.min(o.runs.saturating_sub(j * share));
        let mut c = Command::new(&me);
        c.args(["--child", &j.to_string(), "--runs", &runs.to_string()]);
        c.args(["--seed", &(o.seed + j * share).to_string()]);
        c.args(o.twice.then_some("--twice"));
        if let Some(name) = &o.canary {
            c.args(["--canary", name]);
        }
        if let Some(m) = o.minutes {
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
        "violations": found.len(), "failures": found, "seconds": seconds, "seed": o.seed,
        "per_second": sums[0] as f64 / seconds, "canary": o.canary,
    });
    let text = serde_json::to_string_pretty(&json).map_err(|e| e.to_string())?;
    match &o.json {
        Some(file) => std::fs::write(file, text + "\n").map_err(|e| format!("{file}: {e}"))?,
        None => println!("{text}"),
    }
    Ok(found.is_empty() != o.canary.is_some())
}

fn main() -> ExitCode {
    match options().and_then(|o| match o.child {
        Some(job) => child(&o, job),
        None => work(&o),
    }) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            let usage = "lanefs-schedules --runs N [--seed N] [--jobs N] [--minutes N] [--twice] [--canary NAME] [--json FILE]";
            eprintln!("lanefs-schedules: {e}\nusage: {usage}");
            ExitCode::from(2)
        }
    }
}
