//! The checks of `lab/crash`: `lanefs-lab CHECK [options]`, which `cargo xtask CHECK` builds and
//! calls. Exit status 1 if a promise was broken, 2 if the check could not be run.

mod allocator;
mod apps;
mod crash;
mod fuzz;
mod oom;
#[cfg(feature = "schedule")]
mod schedules;
mod simulate;
// The sanitizer has one of its own.
#[cfg(not(lanefs_asan))]
mod threads;

use clap::{Parser, Subcommand};
use lanefs_lab_model::harness;
use std::process::ExitCode;

/// Check LaneFS against its promises
#[derive(Debug, Parser)]
#[command(name = "lanefs-lab")]
struct Arguments {
    #[command(subcommand)]
    check: Check,
}

#[derive(Debug, Subcommand)]
enum Check {
    /// Applications under power loss, beside ext4 and XFS
    Apps(apps::Options),
    /// Crash and recover in every way that the fault model knows
    Crash(crash::Options),
    /// Damaged images and bytes, one case a seed
    Fuzz(fuzz::Options),
    /// Memory that runs out at every step
    Oom(oom::Arguments),
    /// Threads in orders drawn from seeds
    #[cfg(feature = "schedule")]
    Schedules(schedules::Options),
    /// A volume with faults of its devices, all from one seed
    Simulate(simulate::Options),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().check {
        Check::Apps(o) => apps::work(&o),
        Check::Crash(o) => crash::work(&o),
        Check::Fuzz(o) => fuzz::run(&o),
        Check::Oom(a) => oom::work(&a),
        #[cfg(feature = "schedule")]
        Check::Schedules(o) => schedules::run(&o),
        Check::Simulate(o) => simulate::work(&o),
    };
    harness::status("lanefs-lab", done)
}
