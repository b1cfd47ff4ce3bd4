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
    let args = lanefs_bench::cli::Args { command: args.command, front: &["bench"] };
    lanefs_bench::cli::run(args).map_err(|e| Failure::new(&e).code(e.code))
}
