//! The command: runs, predicts, reports.

use super::directory::Costs;
use super::predict::{Hot, Point, predict};
use super::{report, workloads};
use crate::conflicts::drive::name;
use crate::conflicts::overlap::Conflict;
use crate::conflicts::symbol::Symbols;
use lanefs_bench::results::ResultsFile;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Lines told of each point.
const HOTTEST: usize = 6;
/// Nanoseconds of a unit's own work if nobody measured it.
const UNKNOWN_WORK_NS: f64 = 500.0;

/// What was asked for.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Numbers of lanes.
    pub lanes: Vec<usize>,
    /// Names of workloads; empty: all.
    pub workloads: Vec<String>,
    /// Results of `lanefs-bench run --workers 1,2`.
    pub measured: Option<PathBuf>,
    /// Where the JSON goes.
    pub json: Option<PathBuf>,
    /// Where the page goes.
    pub html: Option<PathBuf>,
    /// The machine.
    pub costs: Costs,
    /// For the order of turns.
    pub seed: u64,
}

impl Options {
    /// From the command line.
    pub fn parse(args: &[String]) -> Result<Options, String> {
        let lanes = (0..8).map(|n| 1 << n).collect();
        let mut o = Options { lanes, seed: 1, ..Options::default() };
        let mut it = args.iter();
        while let Some(a) = it.next() {
            let v = it.next().ok_or(format!("{a} needs a value"))?;
            let bad = |e: &dyn std::fmt::Display| format!("{a} {v}: {e}");
            let ns = || v.parse::<f64>().map_err(|e| bad(&e));
            match a.as_str() {
                "--lanes" => {
                    o.lanes = v.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|e| bad(&e))?;
                    if o.lanes.iter().any(|n| !(1..=127).contains(n) && *n != 128) {
                        return Err(bad(&"1 to 128"));
                    }
                }
                "--workloads" => o.workloads = v.split(',').map(str::to_uppercase).collect(),
                "--measured" => o.measured = Some(v.into()),
                "--json" => o.json = Some(v.into()),
                "--html" => o.html = Some(v.into()),
                "--near" => o.costs.near_ns = ns()?,
                "--far" => o.costs.far_ns = ns()?,
                "--socket" => o.costs.socket = v.parse::<usize>().map_err(|e| bad(&e))?.max(1),
                "--seed" => o.seed = v.parse().map_err(|e| bad(&e))?,
                _ => return Err(format!("unknown argument {a:?}")),
            }
        }
        Ok(o)
    }
}

/// What was measured of a workload.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Measured {
    /// Processor time of a unit on one core, nanoseconds.
    pub work_ns: f64,
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
    /// What it does.
    pub about: String,
    /// What was measured, if somebody did.
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
    /// What it is.
    pub note: &'static str,
    /// The machine assumed.
    pub costs: Costs,
    /// The workloads.
    pub curves: Vec<Curve>,
    /// What could not be run.
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
            (r.workload.to_uppercase(), Measured { work_ns, speed_up_2, speed_up_2_cpu })
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
            match e.run(lanes, &o.costs, o.seed) {
                Ok(run) => {
                    let mut p = point(&run, lanes, &mut symbols);
                    predict(&mut p, m.map_or(UNKNOWN_WORK_NS, |m| m.work_ns));
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
    let write = |path: &PathBuf, text: String| {
        std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
    };
    if let Some(path) = &o.json {
        write(path, serde_json::to_string_pretty(&out).map_err(|e| e.to_string())?)?;
    }
    if let Some(path) = &o.html {
        write(path, report::html(&out))?;
    }
    if out.failures.is_empty() { Ok(()) } else { Err(out.failures.join("\n")) }
}
