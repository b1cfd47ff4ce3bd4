//! `cargo xtask test`: everything that must pass before a change lands.

use crate::run::{cargo, need, run};

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
    run(&mut cargo(&["test", "--workspace", "--no-fail-fast"]))
}
