//! `cargo xtask crash`, `simulate`, `apps`, `fuzz`, `oom` and `schedules`: build `lanefs-lab` for
//! the check and call it. Its exit status is the result.

use crate::run::{cargo, run};
use std::process::Command;

/// Two profiles and the features of `lab/crash`. The first checks quickly; the second checks every
/// assertion and every overflow too.
pub const QUICK: &[&str] = &["--release", "-p", "lanefs-lab-crash", "--features", "simulated-time"];
const ASSERTING: &[&str] = &["--profile", "fuzz", "-p", "lanefs-lab-crash"];
pub const TAKING_TURNS: &[&str] = &["--profile", "fuzz", "-p", "lanefs-lab-crash", "--features", "schedule"];

/// Builds the checker and hands it a check's arguments.
pub fn check(name: &str, arguments: &[&str]) -> Result<(), String> {
    let build = match name {
        "crash" | "simulate" | "apps" => QUICK,
        "schedules" => TAKING_TURNS,
        _ => ASSERTING,
    };
    run(cargo(&["run", "--quiet"]).args(build).args(["--", name]).args(arguments))
}

/// Damaged images, and bytes for every decoder; with `--sanitizer address` every access to memory
/// is checked, and with `--store` beside it the tests of lanefs-store are run so, in place of the
/// fuzzer.
pub fn fuzz(arguments: &[&str]) -> Result<(), String> {
    match arguments {
        ["--sanitizer", which, "--store", rest @ ..] => {
            let tests = ["test", "-p", "lanefs-store", "--lib", "--test", "it"];
            run(sanitized(which, &tests)?.arg("--").args(rest))
        }
        ["--sanitizer", which, rest @ ..] => {
            run(sanitized(which, &["run", "--quiet"])?.args(ASSERTING).args(["--", "fuzz"]).args(rest))
        }
        rest => check("fuzz", rest),
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
    c.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address --cfg lanefs_asan");
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
