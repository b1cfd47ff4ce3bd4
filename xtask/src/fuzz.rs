//! `cargo xtask fuzz` and `cargo xtask schedules`: build and run the fuzzer and the scheduler of `lanefs-check`, with every assertion and every
//! overflow check.

use crate::run::{cargo, run};

/// Damaged images, and bytes for every decoder.
pub fn fuzz(arguments: &[&str]) -> Result<(), String> {
    let build = ["run", "--quiet", "--profile", "fuzz", "-p", "lanefs-check", "--bin", "lanefs-fuzz", "--"];
    run(cargo(&build).args(arguments))
}

/// Threads in orders drawn from seeds.
pub fn schedules(arguments: &[&str]) -> Result<(), String> {
    let build = [
        "run",
        "--quiet",
        "--profile",
        "fuzz",
        "-p",
        "lanefs-check",
        "--features",
        "schedule",
        "--bin",
        "lanefs-schedules",
        "--",
    ];
    run(cargo(&build).args(arguments))
}
