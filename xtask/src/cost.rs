//! `cargo xtask cost`: what FxMark's operations cost apart from time, held to crates/lanefs-bench/cost.ratchet.json: allocations, bytes and
//! flushes of the device, instructions (by valgrind), cache lines that pass between cores (by the coherence model).

use crate::conflicts;
use crate::run::{cargo, need, root, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lanes of the coherence model: enough that what they share shows, few enough to be quick.
const LANES: &str = "8";

/// Counts and compares; with `--json FILE` also writes what was counted.
pub fn check(arguments: &[&str]) -> Result<(), String> {
    need(&[("valgrind", "valgrind")])?;
    let transfers = std::env::temp_dir().join(format!("lanefs-transfers-{}.json", std::process::id()));
    let done = transfers_to(&transfers).and_then(|()| count(&transfers, arguments));
    let _ = std::fs::remove_file(&transfers);
    done
}

fn transfers_to(file: &Path) -> Result<(), String> {
    let program = conflicts::build("lanefs-coherence")?;
    run(Command::new(program)
        .args(["--lanes", LANES, "--json"])
        .arg(file)
        .stdout(std::process::Stdio::null()))
}

fn count(transfers: &Path, arguments: &[&str]) -> Result<(), String> {
    let bench = ["run", "--quiet", "--release", "-p", "lanefs-bench", "--", "cost", "--workloads", "all"];
    let cells = ["--seconds", "0.05", "--warmup", "0.01", "--repeats", "1", "--size", "1G", "--instructions"];
    let kept = root().join("crates/lanefs-bench/cost.ratchet.json");
    let mut c = cargo(&bench);
    c.args(cells).arg("--transfers").arg(transfers).arg("--against").arg(kept);
    // Counts do not depend on how the linker is told to work, and this is run often.
    c.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    run(c.args(arguments.iter().map(|a| conflicts::absolute(a)).collect::<Vec<PathBuf>>()))
}
