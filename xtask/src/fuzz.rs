//! `cargo xtask fuzz`, `cargo xtask oom` and `cargo xtask schedules`: build and run the fuzzer, the
//! failing allocator and the scheduler of `lab/crash`, with every assertion and every overflow
//! check.

use crate::run::{cargo, run};
use std::process::Command;

/// Damaged images, and bytes for every decoder; with `--sanitizer address` every access to memory
/// is checked, and with `--store` beside it the tests of lanefs-store are run so, in place of the
/// fuzzer.
pub fn fuzz(arguments: &[&str]) -> Result<(), String> {
    let bin = ["--profile", "fuzz", "-p", "lanefs-lab-crash", "--bin", "lanefs-fuzz"];
    match arguments {
        ["--sanitizer", which, "--store", rest @ ..] => {
            let tests = ["test", "-p", "lanefs-store", "--lib", "--test", "it"];
            run(sanitized(which, &tests)?.arg("--").args(rest))
        }
        ["--sanitizer", which, rest @ ..] => {
            run(sanitized(which, &["run", "--quiet"])?.args(bin).arg("--").args(rest))
        }
        rest => run(cargo(&["run", "--quiet"]).args(bin).arg("--").args(rest)),
    }
}

/// A build whose every access to memory is checked. The compiler is asked for what it calls
/// unstable, so no other is needed; the target is named, so that build scripts and macros are built
/// as usual.
fn sanitized(which: &str, arguments: &[&str]) -> Result<Command, String> {
    if which != "address" {
        return Err(format!("--sanitizer {which}: only address is known"));
    }
    let mut c = cargo(arguments);
    c.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address");
    c.args(["--target", target()?]);
    Ok(c)
}

fn target() -> Result<&'static str, String> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("x86_64-unknown-linux-gnu"),
        "aarch64" => Ok("aarch64-unknown-linux-gnu"),
        other => Err(format!("no sanitizer for {other}")),
    }
}

/// Memory that runs out at every step, or in a sample of them.
pub fn oom(arguments: &[&str]) -> Result<(), String> {
    let bin = ["run", "--quiet", "--profile", "fuzz", "-p", "lanefs-lab-crash", "--bin", "lanefs-oom", "--"];
    run(cargo(&bin).args(arguments))
}

/// Threads in orders drawn from seeds.
pub fn schedules(arguments: &[&str]) -> Result<(), String> {
    let build = [
        "run",
        "--quiet",
        "--profile",
        "fuzz",
        "-p",
        "lanefs-lab-crash",
        "--features",
        "schedule",
        "--bin",
        "lanefs-schedules",
        "--",
    ];
    run(cargo(&build).args(arguments))
}
