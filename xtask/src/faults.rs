//! `cargo xtask faults`: plants the faults of `lab/faults` in a copy of the source, compiles the
//! checkers from the copy, and has them look for each.

use crate::lab::{QUICK, TAKING_TURNS};
use crate::programs::volume::target;
use crate::run::{cargo, root, run};
use lanefs_lab_faults::copy;

/// Looks for all faults whose names contain the first argument; with `--schedules` for one of those
/// that only threads show, the rest being arguments of `schedules`.
pub fn main(arguments: &[&str]) -> Result<(), String> {
    match arguments {
        ["--schedules", name, rest @ ..] => in_copy(
            TAKING_TURNS,
            &["schedules", "--planted", name],
            if rest.is_empty() { RUNS } else { rest },
        ),
        [name, rest @ ..] if !name.starts_with('-') => crash(name, rest),
        rest => crash("", rest),
    }
}

/// The number of schedules that are tried if nothing is said: both faults of threads show within a
/// few hundred.
const RUNS: &[&str] = &["--runs", "20000"];

fn crash(name: &str, rest: &[&str]) -> Result<(), String> {
    in_copy(QUICK, &["crash", "--only", &format!("planted LaneFS: {name}")], rest)
}

/// Brings the copy up to date, and calls `lanefs-lab` of it. It is compiled beside what is built of
/// the source, whose programs keep their places.
fn in_copy(build: &[&str], arguments: &[&str], rest: &[&str]) -> Result<(), String> {
    let mut tree = copy::read(&root()).map_err(|e| format!("the source: {e}"))?;
    copy::plant(&mut tree)?;
    let folder = target().join("faults");
    let source = folder.join("source");
    copy::write(&tree, &source).map_err(|e| format!("{}: {e}", source.display()))?;
    let manifest = source.join("Cargo.toml");
    let mut c = cargo(&["run", "--quiet", "--manifest-path"]);
    c.arg(manifest).args(build).args(["--"]).args(arguments).args(rest);
    run(c.env("CARGO_TARGET_DIR", folder.join("build")))
}
