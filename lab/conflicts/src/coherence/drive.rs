//! The command: runs, predicts, reports.

use super::directory::Costs;
use super::predict::{BehindPoint, Hot, Point, Work, predict, predict_behind};
use super::{report, workloads};
use crate::conflicts::drive::name;
use crate::conflicts::overlap::Conflict;
use crate::conflicts::symbol::Symbols;
use clap::Args;
use lanefs_bench::results::ResultsFile;
use lanefs_lab_model::harness::{Output, Seed};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Lines told of each point.
const HOTTEST: usize = 6;
/// Nanoseconds of a unit's own work if nobody measured it.
const UNKNOWN_WORK_NS: f64 = 500.0;

/// The options of the command.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Numbers of lanes, 1 to 128
    #[arg(long, value_delimiter = ',', default_values_t = (0..8).map(|n| 1 << n), value_parser = lanes)]
    pub lanes: Vec<usize>,
    /// Names of workloads, else all
    #[arg(long, value_delimiter = ',', value_parser = |w: &str| Ok::<_, String>(w.to_uppercase()))]
    pub workloads: Vec<String>,
    /// Results of `lanefs-bench run --workers 1,2`
    #[arg(long, value_name = "FILE")]
    pub measured: Option<PathBuf>,
    /// Predict also what there is until the background has done its part; what that takes is in
    /// the results where they are of `--sustained` runs
    #[arg(long)]
    pub background: bool,
    /// The part of the background's work that one thread does
    #[arg(long, value_name = "PART", default_value_t = 0.2, value_parser = part)]
    pub alone: f64,
    /// Write a page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// The machine.
    #[command(flatten)]
    pub costs: Costs,
    /// For the order of turns.
    #[command(flatten)]
    pub seed: Seed,
    /// Results.
    #[command(flatten)]
    pub output: Output,
}

fn part(word: &str) -> Result<f64, String> {
    let part = word.parse().map_err(|e: std::num::ParseFloatError| e.to_string())?;
    if (0.0..=1.0).contains(&part) { Ok(part) } else { Err("0 to 1".into()) }
}

fn lanes(word: &str) -> Result<usize, String> {
    let n = word.parse().map_err(|e: std::num::ParseIntError| e.to_string())?;
    if (1..=128).contains(&n) { Ok(n) } else { Err("1 to 128".into()) }
}

/// The measurements of a workload.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Measured {
    /// Processor time of a unit on one core, nanoseconds.
    pub work_ns: f64,
    /// Processor time of everybody else for it.
    pub behind_ns: f64,
    /// Rate of two workers over that of one.
    pub speed_up_2: Option<f64>,
    /// The same by processor time: twice what a unit takes of it with one worker over what it takes
    /// with two. What else runs on the machine disturbs it less; waiting for each other is not in
    /// it.
    pub speed_up_2_cpu: Option<f64>,
}

/// A workload's curve.
#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    /// Its name.
    pub workload: String,
    /// A line that says for people what it does.
    pub about: String,
    /// The measurements, if somebody made some.
    pub measured: Option<Measured>,
    /// Predicted over measured speed-up of two cores, less one.
    pub error_at_2: Option<f64>,
    /// The same by processor time.
    pub error_at_2_cpu: Option<f64>,
    /// By lanes.
    pub points: Vec<Point>,
}

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub struct Prediction {
    /// A note that says what the figures are.
    pub note: &'static str,
    /// The machine assumed.
    pub costs: Costs,
    /// The workloads.
    pub curves: Vec<Curve>,
    /// The workloads that could not be run, and why.
    pub failures: Vec<String>,
}

fn measured(o: &Options) -> Result<BTreeMap<String, Measured>, String> {
    let Some(path) = &o.measured else { return Ok(BTreeMap::new()) };
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let file: ResultsFile = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
    let rate = |w: &str, n: usize| file.results.iter().find(|r| r.workload == w && r.workers == n);
    let one = file.results.iter().filter(|r| r.workers == 1 && r.ops_per_s > 0.0);
    Ok(one
        .map(|r| {
            let work_ns = if r.cpu_ns > 0.0 { r.cpu_ns } else { 1e9 / r.ops_per_s };
            let two = rate(&r.workload, 2);
            let speed_up_2 = two.map(|two| two.ops_per_s / r.ops_per_s);
            let by_cpu = two.filter(|two| two.cpu_ns > 0.0 && r.cpu_ns > 0.0);
            let speed_up_2_cpu = by_cpu.map(|two| 2.0 * r.cpu_ns / two.cpu_ns);
            let behind_ns = if r.cpu_ns_all > 0.0 { (r.cpu_ns_all - work_ns).max(0.0) } else { 0.0 };
            (r.workload.to_uppercase(), Measured { work_ns, behind_ns, speed_up_2, speed_up_2_cpu })
        })
        .collect())
}

fn point(run: &workloads::Run, lanes: usize, symbols: &mut Symbols) -> Point {
    let per = |n: f64| n / run.units.max(1) as f64;
    let travelled = run.directory.travelled();
    let hot = travelled.iter().filter(|l| l.1.serial > 0).take(HOTTEST).map(|(line, l)| {
        let (field, sites) = match l.cause {
            Some([a, b]) => name(&Conflict { line: *line, bytes: true, a, b }, symbols),
            None => Default::default(),
        };
        Hot { field, transfers: per(l.serial as f64), busy_ns: per(l.busy_ns), sites }
    });
    Point {
        lanes,
        units: run.units,
        hot: hot.collect(),
        transfers: per(travelled.iter().map(|l| l.1.serial).sum::<u64>() as f64),
        copies: per(travelled.iter().map(|l| l.1.copies).sum::<u64>() as f64),
        waits_ns: per(run.directory.waited_ns),
        ..Point::default()
    }
}

/// Returns what a run with the background says.
fn point_behind(run: &workloads::Behind, symbols: &mut Symbols) -> BehindPoint {
    let per = |n: f64| (n / run.units.max(1) as f64).max(0.0);
    let mut lines: Vec<_> = run.lines.iter().filter(|l| l.1.0 > 0.0).collect();
    lines.sort_by(|a, b| b.1.1.total_cmp(&a.1.1).then(a.0.cmp(b.0)));
    let hot = lines.iter().take(HOTTEST).map(|(line, (transfers, busy_ns))| {
        let (field, sites) = match run.causes.get(line) {
            Some(&[a, b]) => name(&Conflict { line: **line, bytes: true, a, b }, symbols),
            None => Default::default(),
        };
        Hot { field, transfers: per(*transfers), busy_ns: per(*busy_ns), sites }
    });
    BehindPoint {
        hot: hot.collect(),
        transfers: per(run.lines.values().map(|l| l.0).sum()),
        waits_ns: per(run.waited_ns),
        background_waits_ns: per(run.background_waited_ns),
        ..BehindPoint::default()
    }
}

/// Lets each thread have a heap of its own, as allocators made for many threads do. The C library
/// shares heaps between threads when there are more than eight for each core of *this* machine, and
/// lanes would pass memory on.
fn separate_heaps() {
    // SAFETY: sets a parameter of the allocator, before any thread is started.
    let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1024) };
}

/// Does what was asked for.
pub fn main(o: &Options) -> Result<(), String> {
    separate_heaps();
    let known = measured(o)?;
    let mut symbols = Symbols::default();
    let note = "a prediction from recorded accesses and assumed costs of a transfer, not a measurement";
    let mut out = Prediction { note, costs: o.costs, curves: Vec::new(), failures: Vec::new() };
    let all = workloads::all();
    let unknown = o.workloads.iter().find(|w| !all.iter().any(|e| e.info.name == **w));
    if let Some(w) = unknown {
        return Err(format!("no workload {w}"));
    }
    for e in all.iter().filter(|e| o.workloads.is_empty() || o.workloads.iter().any(|w| w == e.info.name)) {
        let m = known.get(e.info.name).copied();
        let mut points = Vec::new();
        for &lanes in &o.lanes {
            match e.run(lanes, &o.costs, o.seed.seed) {
                Ok(run) => {
                    let mut p = point(&run, lanes, &mut symbols);
                    let work_ns = m.map_or(UNKNOWN_WORK_NS, |m| m.work_ns);
                    predict(&mut p, work_ns);
                    let behind_ns = m.map_or(0.0, |m| m.behind_ns);
                    let work = Work { work_ns, behind_ns, alone: o.alone };
                    match o.background.then(|| e.run_behind(lanes, &o.costs, o.seed.seed)) {
                        None => {}
                        Some(Ok(run)) => {
                            let mut behind = point_behind(&run, &mut symbols);
                            predict_behind(&mut behind, lanes, work);
                            p.behind = Some(behind);
                        }
                        Some(Err(why)) => {
                            let name = e.info.name;
                            out.failures.push(format!("{name} with {lanes} lanes and the background: {why}"));
                        }
                    }
                    points.push(p);
                }
                Err(why) => out.failures.push(format!("{} with {lanes} lanes: {why}", e.info.name)),
            }
        }
        let two = points.iter().find(|p| p.lanes == 2).map(|p| p.speed_up);
        let error = |real: Option<f64>| real.zip(two).map(|(real, said)| said / real - 1.0);
        let curve = Curve {
            workload: e.info.name.into(),
            about: e.info.about.into(),
            measured: m,
            error_at_2: error(m.and_then(|m| m.speed_up_2)),
            error_at_2_cpu: error(m.and_then(|m| m.speed_up_2_cpu)),
            points,
        };
        report::line(&curve);
        out.curves.push(curve);
    }
    report::summary(&out);
    o.output.write_file(&out)?;
    if let Some(path) = &o.html {
        std::fs::write(path, report::html(&out)).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    if out.failures.is_empty() { Ok(()) } else { Err(out.failures.join("\n")) }
}
