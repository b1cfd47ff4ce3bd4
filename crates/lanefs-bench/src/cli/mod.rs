//! The command line: `run`, `compare`, `report`, `list`.

mod ablate;
mod cost;
mod memory;
mod profile;
mod progress;
mod run;

pub use ablate::AblateArgs;
pub use cost::CostArgs;
pub use memory::MemoryArgs;
pub use profile::CountArgs;
pub use progress::{Progress, human, span};
pub use run::{Named, RunArgs, matrix};

use crate::error::{Context, Res, say};
use crate::results::ResultsFile;
use crate::runner::Plan;
use crate::workload::Params;
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};

/// Measure file systems: FxMark's nineteen microbenchmarks and the workloads of the papers.
#[derive(Debug, Parser)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// What this program is given before a command of these: they are commands of another one.
    #[arg(skip)]
    pub front: &'static [&'static str],
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run workloads on one or more targets.
    Run(RunArgs),
    /// Make LaneFS and its peers on one medium and run them against each other.
    Compare(crate::compare::CompareArgs),
    /// Run LaneFS with its techniques taken out, one by one, beside itself as usual (feature `ablation`).
    Ablate(AblateArgs),
    /// Draw results as one HTML page.
    Report(crate::report::ReportArgs),
    /// Count what operations cost beside time, in process: allocations, device traffic.
    Cost(CostArgs),
    /// Do a number of operations of one workload and nothing else that a profiler would count.
    #[command(hide = true)]
    Count(CountArgs),
    /// What files and directories take in memory when everything of them is cached.
    Memory(MemoryArgs),
    /// List the workloads.
    List,
}

/// How cells are run: shared by `run` and `compare`.
#[derive(Clone, Debug, clap::Args)]
pub struct Cells {
    /// Workloads: names, `all` (FxMark's nineteen), `papers`, `external` (db_bench), `yardsticks`, `everything`.
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
        if !sane(self.scale, 0.000_001) {
            return Err("--scale must be a positive number".to_string().into());
        }
        Ok(())
    }

    /// The plan for this many workers.
    pub fn plan(&self, workers: usize, processes: bool) -> Plan {
        Plan {
            workers,
            seconds: self.seconds,
            warmup: self.warmup.unwrap_or((self.seconds / 5.0).min(1.0)),
            processes,
            ops: None,
            params: Params { scale: self.scale, loadfile: self.loadfile.clone() },
        }
    }
}

/// Does what was asked and answers the exit status.
pub fn run(args: Args) -> Res<i32> {
    crate::interrupt::install();
    let front = args.front;
    match args.command {
        Command::Run(args) => run::run(&args),
        Command::Report(args) => crate::report::run(&args),
        Command::Cost(args) => cost::run(&args, front),
        Command::Ablate(args) => ablate::run(&args),
        Command::Count(args) => profile::count(&args),
        Command::Memory(args) => memory::run(&args),
        Command::Compare(args) => crate::compare::run(&args),
        Command::List => {
            for entry in crate::workload::all() {
                say(format_args!("{:<16} {} ({}/s)", entry.info.name, entry.info.about, entry.info.unit))?;
            }
            Ok(0)
        }
    }
}

/// Writes a results file in one go: either the whole is there, or what was there before.
pub fn write_json(path: &Path, file: &ResultsFile) -> Res<()> {
    let text = serde_json::to_vec_pretty(file).at("encoding the results")?;
    let beside = path.with_extension("json.part");
    std::fs::write(&beside, text).at(beside.display())?;
    std::fs::rename(&beside, path).at(path.display())
}

/// The command as it was given.
pub fn command_line() -> String {
    std::env::args().collect::<Vec<_>>().join(" ")
}

/// Seconds since 1970.
pub fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
