//! `cargo xtask crash [--long] [--seed N] --json FILE`: builds and runs the crash simulator of `lanefs-check`.

use crate::run::{cargo, run};

/// Builds the simulator with the release profile and hands its arguments on. Its exit status is the result.
pub fn simulate(arguments: &[&str]) -> Result<(), String> {
    let build = ["run", "--quiet", "--release", "-p", "lanefs-check", "--bin", "lanefs-crash", "--"];
    run(cargo(&build).args(arguments))
}
