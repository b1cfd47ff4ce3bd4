//! `cargo xtask test`: everything that must pass before a change lands.

use crate::run::{cargo, need, run};
use crate::{apps, crash, fuzz, programs};

/// What the tests call beside cargo.
const PROGRAMS: &[(&str, &str)] = &[
    ("fusermount3", "fuse3"),
    ("setfattr", "attr"),
    ("rsync", "rsync"),
    ("sqlite3", "sqlite3"),
    ("git", "git"),
    ("rustfmt", "rustfmt"),
    ("valgrind", "valgrind"),
];

/// Runs all steps; stops at the first that fails.
pub fn all() -> Result<(), String> {
    need(PROGRAMS)?;
    need(apps::PROGRAMS)?;
    run(&mut cargo(&["fmt", "--all", "--check"]))?;
    run(&mut cargo(&["xtask", "tidy"]))?;
    run(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    run(cargo(&["doc", "--workspace", "--no-deps", "--quiet"]).env("RUSTDOCFLAGS", "-D warnings"))?;
    run(cargo(&[
        "test",
        "--release",
        "--package",
        "lanefs-sync",
        "--test",
        "loom",
        "--target-dir",
        "target/loom",
    ])
    .env("RUSTFLAGS", "--cfg loom"))?;
    crate::conflicts::sample()?;
    crate::cost::check(&[])?;
    run(&mut cargo(&["test", "--workspace", "--no-fail-fast"]))?;
    // On a mount of the command that the tests have just built.
    let lanefs = programs::volume::target().join("debug/lanefs");
    run(cargo(&["xtask", "programs", "--quick", "pjdfstest", "fsx-rs"]).env("LANEFS", lanefs))?;
    checkers()
}

/// LaneFS itself under the checkers, each a part of what it can do: see docs/TESTING.md. What they count goes to the output.
fn checkers() -> Result<(), String> {
    // What must come out the same twice needs a simulated clock and threads that take turns.
    let features = ["test", "-p", "lanefs-check", "--features", "schedule", "--lib", "--test", "it", "--"];
    run(cargo(&features).args(["schedule::turn", "simulate::a_seed_runs_the_same_way_twice"]))?;
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get()).to_string();
    crash::checker("lanefs-crash", &["--minutes", "3", "--jobs", "2"])?;
    crash::checker("lanefs-simulate", &["--runs", "2000", "--jobs", &cores])?;
    fuzz::schedules(&["--runs", "2000", "--jobs", &cores])?;
    // So many, not so long: what is tried must not depend on how fast the machine is.
    fuzz::fuzz(&["--cases", "4000", "--seconds", "600"])?;
    crash::checker("lanefs-apps", &["--order", "ordered", "--states", "150"])?;
    fuzz::oom(&["--jobs", &cores])
}
