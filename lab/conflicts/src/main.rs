//! The checks of `lab/conflicts`: `lanefs-lab-conflicts CHECK [options]`, which `cargo xtask CHECK`
//! builds with instrumentation and calls. Exit status 1 if the ratchet is broken, 2 if the check
//! could not be run.

use clap::{Parser, Subcommand};
use lanefs_lab_conflicts::{coherence, conflicts};
use lanefs_lab_model::harness;
use std::process::ExitCode;

/// Look which lines operations share
#[derive(Debug, Parser)]
#[command(name = "lanefs-lab-conflicts")]
struct Arguments {
    #[command(subcommand)]
    check: Check,
}

#[derive(Debug, Subcommand)]
enum Check {
    /// Operations that commute share no cache line
    Conflicts(conflicts::drive::Options),
    /// Predict how FxMark's workloads scale
    Coherence(coherence::drive::Options),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().check {
        Check::Conflicts(o) => {
            conflicts::drive::prefer_small_pages();
            conflicts::drive::main(&o)
        }
        Check::Coherence(o) => coherence::drive::main(&o).map(|()| true),
    };
    harness::status("lanefs-lab-conflicts", done)
}
