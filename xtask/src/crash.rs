//! `cargo xtask crash` and `cargo xtask simulate`: build and run the checkers of `lab/crash`.

use crate::run::{cargo, run};

/// Builds a checker with the release profile, with mistakes that can be planted and a clock that
/// can be simulated, and hands its arguments on. Its exit status is the result.
pub fn checker(name: &str, arguments: &[&str]) -> Result<(), String> {
    let build = [
        "run",
        "--quiet",
        "--release",
        "-p",
        "lanefs-lab-crash",
        "--features",
        "canaries",
        "--bin",
        name,
        "--",
    ];
    run(cargo(&build).args(arguments))
}
