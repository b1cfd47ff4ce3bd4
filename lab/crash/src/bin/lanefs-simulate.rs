//! `cargo xtask simulate --runs N [--seed N] [--jobs N] [--minutes N] --json FILE`: deterministic
//! simulation with faults. Exit status 1 if a promise was broken.

use lanefs_lab_crash::simulate::{Choice, Report, run_as};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

struct Options {
    runs: u64,
    seed: u64,
    jobs: usize,
    /// Stop then, with what was done.
    minutes: Option<u64>,
    choice: Choice,
    json: Option<String>,
}

fn options() -> Result<Options, String> {
    let mut o =
        Options { runs: 1000, seed: 1, jobs: 1, minutes: None, choice: Choice::default(), json: None };
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        if a == "--only-lies" {
            o.choice.only_lies = true;
            continue;
        }
        if a == "--only-misreads" {
            o.choice.only_misreads = true;
            continue;
        }
        let value = args.next().ok_or(format!("{a} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{value:?} is not a number"));
        match a.as_str() {
            "--runs" => o.runs = number()?,
            "--seed" => o.seed = number()?,
            "--jobs" => o.jobs = number()?.max(1) as usize,
            "--minutes" => o.minutes = Some(number()?),
            "--json" => o.json = Some(value),
            _ => return Err(format!("unknown argument {a:?}")),
        }
    }
    Ok(o)
}

/// The seed of run `n`: the first is the seed given, so that a failing one can be run alone.
fn seed_of(first: u64, n: u64) -> u64 {
    first.wrapping_add(n)
}

fn work(o: &Options) -> Result<bool, String> {
    std::panic::set_hook(Box::new(|_| ()));
    let start = std::time::Instant::now();
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let end = o.minutes.map(|m| start + std::time::Duration::from_secs(m * 60));
    let total: Mutex<(Report, Vec<String>)> = Mutex::default();
    std::thread::scope(|s| {
        for _ in 0..o.jobs {
            s.spawn(|| {
                loop {
                    // Relaxed: only a ticket.
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= o.runs || end.is_some_and(|e| std::time::Instant::now() >= e) {
                        return;
                    }
                    let seed = seed_of(o.seed, n);
                    let r = run_as(seed, o.choice);
                    // Relaxed: read when the threads are gone.
                    done.fetch_add(1, Ordering::Relaxed);
                    let mut t = total.lock().unwrap_or_else(PoisonError::into_inner);
                    t.0.operations += r.operations;
                    for (k, v) in r.faults {
                        *t.0.faults.entry(k).or_default() += v;
                    }
                    for (k, v) in r.runs {
                        *t.0.runs.entry(k).or_default() += v;
                    }
                    if o.runs == 1 {
                        r.transcript.iter().for_each(|s| eprintln!("{s}"));
                    }
                    for v in r.violations {
                        eprintln!("VIOLATION with --runs 1 --seed {seed}: {v}");
                        t.1.push(format!("seed {seed}: {v}"));
                    }
                }
            });
        }
    });
    let (report, violations) = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    let faults: BTreeMap<_, _> = report.faults;
    let json = serde_json::json!({
        "runs": done.into_inner(),
        "operations": report.operations,
        "faults": faults,
        "of_these": report.runs,
        "violations": violations.len(),
        "failures": violations,
        "seconds": start.elapsed().as_secs_f64(),
        "seed": o.seed,
    });
    let text = serde_json::to_string_pretty(&json).map_err(|e| e.to_string())?;
    match &o.json {
        Some(file) => std::fs::write(file, text + "\n").map_err(|e| format!("{file}: {e}"))?,
        None => println!("{text}"),
    }
    Ok(violations.is_empty())
}

fn main() -> ExitCode {
    match options().and_then(|o| work(&o)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!(
                "lanefs-simulate: {e}\nusage: lanefs-simulate --runs N [--seed N] [--jobs N] [--minutes N] [--only-lies] [--only-misreads] [--json FILE]"
            );
            ExitCode::from(2)
        }
    }
}
