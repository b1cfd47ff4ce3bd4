//! The cells of one run: chosen workloads on several targets, interleaved, and the results file
//! that they fill.

mod progress;

pub use progress::Progress;

use crate::error::{Context, Failure, Res};
use crate::interrupt;
use crate::registry::Entry;
use crate::results::{CellFailure, CellResult, ResultsFile};
use crate::runner::{CellOutcome, Plan};
use crate::target::{Named, OpenTarget};
use crate::workload::Params;
use std::path::{Path, PathBuf};

/// The files that all workers of a sustained run have in stock: as many as fit into 4 GiB of
/// every file system as it is made by default.
const SUSTAINED_STOCK: u64 = 200_000;

/// The choice of cells and their parameters, shared by `run` and `compare`.
#[derive(Clone, Debug, clap::Args)]
pub struct Cells {
    /// Workloads: names, `all` (FxMark's nineteen), `more`, `papers`, `external` (db_bench),
    /// `yardsticks`,
    /// `everything`.
    #[arg(long, value_delimiter = ',', default_value = "all")]
    pub workloads: Vec<String>,
    /// Numbers of workers.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub workers: Vec<usize>,
    /// Timed seconds of each repeat.
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Seconds of warm-up [default: a fifth of --seconds, at most 1].
    #[arg(long)]
    pub warmup: Option<f64>,
    /// Long rounds with a large stock, until everything is done: the last sync and all work of the
    /// background are inside the clock. Ten seconds and more (--seconds) tell what an hour would.
    #[arg(long)]
    pub sustained: bool,
    /// With --sustained: files, or blocks of 4 KiB, that each worker has in stock [default: 200000
    /// divided by the workers].
    #[arg(long, value_name = "N")]
    pub stock: Option<u64>,
    /// Repeats of each cell; the median counts.
    #[arg(long, default_value_t = 3)]
    pub repeats: usize,
    /// Workers are processes (directories only; in-process volumes keep threads).
    #[arg(long)]
    pub processes: bool,
    /// Open data files with O_DIRECT.
    #[arg(long)]
    pub direct: bool,
    /// Multiply the papers' numbers of files by this.
    #[arg(long, default_value_t = 1.0)]
    pub scale: f64,
    /// The loadfile that the dbench workload replays.
    #[arg(long, value_name = "FILE")]
    pub loadfile: Option<PathBuf>,
}

impl Cells {
    /// Refuses what cannot be run.
    pub fn check(&self) -> Res<()> {
        let sane = |s: f64, least: f64| s.is_finite() && s >= least && s <= 86_400.0;
        if !sane(self.seconds, 0.001) || !sane(self.warmup.unwrap_or(0.0), 0.0) {
            return Err("--seconds and --warmup must be between 1 ms and a day".to_string().into());
        }
        if self.workers.iter().any(|&w| w == 0 || w > 1024) || self.repeats == 0 || self.repeats > 1000 {
            return Err("--workers must be 1 to 1024 and --repeats 1 to 1000".to_string().into());
        }
        if self.stock.is_some_and(|n| n < 64) || self.stock.is_some() && !self.sustained {
            return Err("--stock is at least 64, and for --sustained".to_string().into());
        }
        if self.sustained && self.processes {
            return Err("--sustained has worker threads: leave --processes out".to_string().into());
        }
        if !sane(self.scale, 0.000_001) {
            return Err("--scale must be a positive number".to_string().into());
        }
        Ok(())
    }

    /// Makes the plan for this many workers.
    pub fn plan(&self, workers: usize, processes: bool) -> Plan {
        debug_assert!(workers > 0);
        let warmup = if self.sustained { 0.0 } else { (self.seconds / 5.0).min(1.0) };
        let stock = self.sustained.then(|| self.stock.unwrap_or(SUSTAINED_STOCK / workers.max(1) as u64));
        Plan {
            workers,
            seconds: self.seconds,
            warmup: self.warmup.unwrap_or(warmup),
            sustained: self.sustained,
            processes,
            ops: None,
            params: Params { scale: self.scale, stock, loadfile: self.loadfile.clone() },
        }
    }
}

/// Runs everything chosen on all targets, interleaved by workload and repeat, so that whatever else
/// the machine does hits all alike. Calls `finished` after each cell (what is known so far is worth
/// keeping).
pub fn matrix(
    cells: &Cells,
    workloads: &[&Entry],
    targets: &mut [Named],
    file: &mut ResultsFile,
    mut finished: impl FnMut(&ResultsFile) -> Res<()>,
) -> Res<()> {
    debug_assert!(cells.repeats > 0 && !targets.is_empty(), "an argument was not checked");
    let progress = Progress::new(workloads.len() * targets.len() * cells.workers.len() * cells.repeats);
    progress.head()?;
    for entry in workloads {
        for &workers in &cells.workers {
            let mut outcomes: Vec<Vec<CellOutcome>> = targets.iter().map(|_| Vec::new()).collect();
            let mut broken: Vec<Option<String>> = targets.iter().map(|_| None).collect();
            for repeat in 0..cells.repeats {
                // Every other repeat backwards: what a cell leaves behind does not always hit the
                // same one.
                let mut order: Vec<usize> = (0..targets.len()).collect();
                if repeat % 2 == 1 {
                    order.reverse();
                }
                for at in order {
                    if interrupt::requested() {
                        return Err(Failure::interrupted());
                    }
                    progress.now(&format!("{} {} x{workers}", entry.info.name, targets[at].name));
                    let processes = cells.processes && matches!(targets[at].target, OpenTarget::Dir(_));
                    if broken[at].is_none() {
                        match entry.run(&mut targets[at].target, &cells.plan(workers, processes)) {
                            Ok(outcome) => outcomes[at].push(outcome),
                            Err(e) if e.interrupted => return Err(e),
                            Err(e) => broken[at] = Some(e.message),
                        }
                    }
                    progress.step();
                }
            }
            let mut printed = Ok(());
            for (at, target) in targets.iter().enumerate() {
                if let Some(message) = broken[at].take() {
                    printed = printed.and(progress.line(&format!(
                        "{:<16} {:<14} {workers:>7} failed: {message}",
                        entry.info.name, target.name
                    )));
                    let (target, workload) = (target.name.clone(), entry.info.name.to_string());
                    file.failures.push(CellFailure { target, workload, workers, message });
                    continue;
                }
                debug_assert_eq!(outcomes[at].len(), cells.repeats, "each repeat gave one, or a failure");
                let processes = cells.processes && matches!(target.target, OpenTarget::Dir(_));
                let mut result = CellResult {
                    target: target.name.clone(),
                    workload: entry.info.name.to_string(),
                    workers,
                    unit: entry.info.unit.to_string(),
                    mode: if processes { "processes" } else { "threads" }.to_string(),
                    called: target.target.called().to_string(),
                    without: target.without.clone(),
                    direct: cells.direct,
                    seconds: cells.seconds,
                    ..CellResult::from_runs(&outcomes[at])
                };
                result.sustained_ops_per_s = cells.sustained.then_some(result.ops_per_s);
                printed = printed.and(progress.row(&result));
                file.results.push(result);
            }
            // What is known is kept, also when nobody reads of it any more.
            finished(file)?;
            printed?;
        }
    }
    Ok(())
}

/// Runs the matrix, keeps what is finished in a file, and returns the exit status.
pub fn matrix_to(
    cells: &Cells,
    workloads: &[&Entry],
    targets: &mut [Named],
    mut file: ResultsFile,
    json: Option<&Path>,
) -> Res<i32> {
    let done = matrix(cells, workloads, targets, &mut file, |file| match json {
        Some(path) => write_json(path, file),
        None => Ok(()),
    });
    match done {
        Ok(()) => Ok(i32::from(!file.failures.is_empty())),
        Err(e) if e.interrupted => {
            eprintln!("interrupted; what was finished is kept");
            Ok(130)
        }
        Err(e) => Err(e),
    }
}

/// Writes a results file in one go: either the whole is there, or what was there before.
pub fn write_json(path: &Path, file: &impl serde::Serialize) -> Res<()> {
    let text = serde_json::to_vec_pretty(file).at("encoding the results")?;
    let beside = path.with_extension("json.part");
    std::fs::write(&beside, text).at(beside.display())?;
    std::fs::rename(&beside, path).at(path.display())
}

/// Returns the command as it was given.
pub fn command_line() -> String {
    std::env::args().collect::<Vec<_>>().join(" ")
}

/// Returns the seconds since 1970.
pub fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
