//! `cargo xtask cost`: what FxMark's operations cost apart from time, held to
//! crates/lanefs-bench/cost.ratchet.json: allocations, bytes and flushes of the device,
//! instructions (by valgrind), cache lines that pass between cores (by the coherence model).

use crate::conflicts;
use crate::run::{cargo, need, root, run};
use std::path::PathBuf;
use std::process::Command;

/// Lanes of the coherence model: enough that what they share shows, few enough to be quick.
const LANES: &str = "8";

/// Runs of the coherence model, a few seconds each.
const RUNS: usize = 3;

/// Counts and compares; with `--json FILE` also writes what was counted.
pub fn check(arguments: &[&str]) -> Result<(), String> {
    need(&[("valgrind", "valgrind")])?;
    // Several, for the least of each: a round of the memory collector falls into the operations
    // that are looked at, or not.
    let file =
        |n: usize| std::env::temp_dir().join(format!("lanefs-transfers-{}-{n}.json", std::process::id()));
    let transfers: Vec<PathBuf> = (0..RUNS).map(file).collect();
    let done = transfers_to(&transfers).and_then(|()| count(&transfers, arguments));
    for f in &transfers {
        let _ = std::fs::remove_file(f);
    }
    done
}

fn transfers_to(files: &[PathBuf]) -> Result<(), String> {
    let program = conflicts::build()?;
    files.iter().try_for_each(|file| {
        run(Command::new(&program)
            .args(["coherence", "--lanes", LANES, "--json"])
            .arg(file)
            .stdout(std::process::Stdio::null()))
    })
}

fn count(transfers: &[PathBuf], arguments: &[&str]) -> Result<(), String> {
    let bench = ["run", "--quiet", "--release", "-p", "lanefs-bench", "--", "cost", "--workloads", "all"];
    let cells = ["--seconds", "0.05", "--warmup", "0.01", "--repeats", "1", "--size", "1G", "--instructions"];
    let kept = root().join("crates/lanefs-bench/cost.ratchet.json");
    let mut c = cargo(&bench);
    c.args(cells).arg("--against").arg(kept);
    transfers.iter().for_each(|f| {
        c.arg("--transfers").arg(f);
    });
    // Counts do not depend on how the linker is told to work, and this is run often.
    c.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    run(c.args(arguments.iter().map(|a| conflicts::absolute(a)).collect::<Vec<PathBuf>>()))
}
