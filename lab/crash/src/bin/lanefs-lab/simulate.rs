//! `cargo xtask simulate`: deterministic simulation with faults.

use clap::Args;
use lanefs_lab_crash::simulate::{Choice, Report, run_as};
use lanefs_lab_model::harness::{Jobs, Limit, Output, Seed};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The command line.
#[derive(Debug, Args)]
pub struct Options {
    /// Runs to make; of one alone it is printed what was called and answered
    #[arg(long, value_name = "N", default_value_t = 1000)]
    runs: u64,
    /// Only runs whose device lies
    #[arg(long)]
    only_lies: bool,
    /// Only runs whose device does not lie, but reads wrong once
    #[arg(long)]
    only_misreads: bool,
    #[command(flatten)]
    seed: Seed,
    #[command(flatten)]
    jobs: Jobs,
    #[command(flatten)]
    limit: Limit,
    #[command(flatten)]
    output: Output,
}

/// The seed of run `n`: the first is the seed given, so that a failing one can be run alone.
fn seed_of(first: u64, n: u64) -> u64 {
    first.wrapping_add(n)
}

/// Runs the check.
pub fn work(o: &Options) -> Result<bool, String> {
    let choice = Choice { only_lies: o.only_lies, only_misreads: o.only_misreads, ..Choice::default() };
    std::panic::set_hook(Box::new(|_| ()));
    let start = std::time::Instant::now();
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let end = o.limit.from_now();
    let total: Mutex<(Report, Vec<String>)> = Mutex::default();
    std::thread::scope(|s| {
        for _ in 0..o.jobs.get() {
            s.spawn(|| {
                loop {
                    // Relaxed: only a ticket.
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= o.runs || end.is_over() {
                        return;
                    }
                    let seed = seed_of(o.seed.seed, n);
                    let r = run_as(seed, choice);
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
        "seed": o.seed.seed,
    });
    o.output.write(&json)?;
    Ok(violations.is_empty())
}
