//! `lanefs bench`

use crate::failure::{Failure, Outcome};

/// Measure: workloads on volumes in this process, on mounts, and on other file systems beside them
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: lanefs_bench::cli::Command,
}

/// Measures.
pub fn run(args: Args) -> Outcome {
    lanefs_bench::cli::run(lanefs_bench::cli::Args { command: args.command })
        .map_err(|e| Failure::new(e).code(2))
}
