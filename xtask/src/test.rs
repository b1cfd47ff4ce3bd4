//! `cargo xtask test`: everything that must pass before a change lands.

use crate::run::{cargo, need, run};
use crate::{apps, lab, programs, stuck};
use std::time::{Duration, Instant};

/// The programs that the tests call beside cargo.
const PROGRAMS: &[(&str, &str)] = &[
    ("fusermount3", "fuse3"),
    ("setfattr", "attr"),
    ("rsync", "rsync"),
    ("sqlite3", "sqlite3"),
    ("git", "git"),
    ("rustfmt", "rustfmt"),
    ("python3", "python3"),
    ("strace", "strace"),
    ("cc", "gcc"),
    ("valgrind", "valgrind"),
    ("readelf", "binutils"),
    ("c++", "g++"),
    ("db_bench", "rocksdb-tools"),
    ("/usr/include/rocksdb/file_system.h", "librocksdb-dev"),
];

/// More than twice what the tests take on a busy machine.
const TESTS_END: Duration = Duration::from_secs(40 * 60);

/// The function of one step.
type Step = fn() -> Result<(), String>;

/// The steps, cheap ones first.
const STEPS: &[(&str, Step)] = &[
    ("programs that the tests call", install),
    ("format", || run(&mut cargo(&["fmt", "--all", "--check"]))),
    ("tidy", || run(&mut cargo(&["xtask", "tidy"]))),
    ("lints", || run(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))),
    ("documentation", documentation),
    ("loom", loom),
    ("conflicts", crate::conflicts::sample),
    ("cost", || crate::cost::check(&[])),
    ("tests", || stuck::run(&mut cargo(&["test", "--workspace", "--no-fail-fast"]), TESTS_END)),
    ("the module for Python", || crate::python::test(&[])),
    ("programs on a mount", programs_on_a_mount),
    ("a guest with F2FS", guest),
    ("turns of threads", turns),
    ("crash states", || lab::check("crash", &["--minutes", "3", "--jobs", "2"])),
    ("planted faults", || crate::faults::main(&["--jobs", &cores()])),
    ("simulations", || lab::check("simulate", &["--runs", "2000", "--jobs", &cores()])),
    ("schedules", || lab::check("schedules", &["--runs", "2000", "--jobs", &cores()])),
    // So many, not so long: what is tried must not depend on how fast the machine is.
    ("damaged images", || lab::fuzz(&["--cases", "4000", "--seconds", "600"])),
    ("applications under power loss", || {
        lab::check("apps", &["--order", "ordered", "--states", "150", "--jobs", "1"])
    }),
    ("memory that runs out", || lab::check("oom", &["--jobs", &cores()])),
];

/// Runs all steps, or those from number `from` on; stops at the first that fails. Says which step
/// it is in, and how long each took.
pub fn all(from: &str) -> Result<(), String> {
    let begun = Instant::now();
    let from = from.parse().ok().filter(|n| (1..=STEPS.len()).contains(n));
    let from = from.ok_or_else(|| format!("--from takes a number from 1 to {}", STEPS.len()))?;
    for (i, (name, step)) in STEPS.iter().enumerate().skip(from - 1) {
        println!("== step {} of {}: {name} ({} s so far)", i + 1, STEPS.len(), begun.elapsed().as_secs());
        step().map_err(|e| format!("step {} of {}, {name}: {e}", i + 1, STEPS.len()))?;
    }
    let which = if from > 1 { format!("steps from {from} on") } else { format!("{} steps", STEPS.len()) };
    println!("== all {which} passed in {} s", begun.elapsed().as_secs());
    Ok(())
}

fn cores() -> String {
    std::thread::available_parallelism().map_or(1, |n| n.get()).to_string()
}

fn install() -> Result<(), String> {
    need(PROGRAMS)?;
    need(apps::PROGRAMS)
}

/// The command has the library's name, and must not take the place of its pages.
fn documentation() -> Result<(), String> {
    run(cargo(&["doc", "--workspace", "--no-deps", "--quiet"]).env("RUSTDOCFLAGS", "-D warnings"))?;
    let page = programs::volume::target().join("doc/lanefs/volume/struct.Volume.html");
    if page.is_file() { Ok(()) } else { Err(format!("{}: the library has no pages", page.display())) }
}

fn loom() -> Result<(), String> {
    let test = ["test", "--release", "-p", "lanefs-sync", "--test", "loom", "--target-dir", "target/loom"];
    run(cargo(&test).env("RUSTFLAGS", "--cfg loom"))
}

/// Runs another of these commands with the `lanefs` that the tests have just built.
fn with_built(words: &[&str]) -> Result<(), String> {
    let lanefs = programs::volume::target().join("debug/lanefs");
    run(cargo(&[&["xtask"], words].concat()).env("LANEFS", lanefs))
}

fn programs_on_a_mount() -> Result<(), String> {
    with_built(&["programs", "--quick", "pjdfstest", "fsx-rs"])
}

fn guest() -> Result<(), String> {
    with_built(&["guest"])
}

/// Runs the tests that must come out the same twice. They need a simulated clock and threads that
/// take turns.
fn turns() -> Result<(), String> {
    let features =
        ["test", "-p", "lanefs-lab-crash", "--features", "schedule", "--lib", "--test", "it", "--"];
    run(cargo(&features).args(["schedule::turn", "simulate::a_seed_runs_the_same_way_twice"]))
}
