//! The command line: one variant of [`Command`] for each command.

mod ablate;
mod cost;
mod guest;
mod memory;
mod profile;
mod run;

pub use ablate::AblateArgs;
pub use cost::CostArgs;
pub use memory::MemoryArgs;
pub use profile::CountArgs;
pub use run::RunArgs;

use crate::error::{Res, say};
use clap::{Parser, Subcommand};

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

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run workloads on one or more targets.
    Run(RunArgs),
    /// Make LaneFS and its peers on one medium and run them against each other.
    Compare(crate::compare::CompareArgs),
    /// Fill LaneFS and its peers, overwrite them, and run workloads in what is left.
    Space(crate::space::SpaceArgs),
    /// Run SQLite and Python on a volume in their own process, beside them on other file systems.
    Embed(crate::embed::EmbedArgs),
    /// Run LaneFS with its techniques taken out, one by one, beside itself as usual (feature
    /// `ablation`).
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
    /// Run a figure or table of the papers, and draw it beside the paper's own numbers.
    Paper(crate::paper::PaperArgs),
    /// Run one workload for `paper`, and wait.
    #[command(hide = true)]
    PaperCell(crate::paper::CellArgs),
    /// Run one of these commands in a virtual machine with the kernel of a distribution, for peers
    /// that this kernel lacks.
    Guest(crate::guest::GuestArgs),
    /// What the first process of a guest does.
    #[command(hide = true)]
    Inside,
    /// List the workloads.
    List,
}

/// Does what was asked and returns the exit status.
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
        Command::Paper(args) => crate::paper::run(&args, front),
        Command::PaperCell(args) => crate::paper::cell(&args),
        Command::Space(args) => crate::space::run(&args),
        Command::Embed(args) => crate::embed::run(&args),
        Command::Guest(args) => guest::run(&args, front),
        Command::Inside => crate::guest::inside(),
        Command::List => {
            for entry in crate::registry::all() {
                say(format_args!("{:<16} {} ({}/s)", entry.info.name, entry.info.about, entry.info.unit))?;
            }
            Ok(0)
        }
    }
}
