//! `cargo xtask jitter`: the tests with threads that pause for a random moment before they act on a
//! lock, a fence or a sequence word. See docs/TESTING.md.

use crate::run::{cargo, root};
use crate::stuck;
use std::path::PathBuf;
use std::time::Duration;

/// The packages whose tests have threads of their own.
const PACKAGES: &[&str] = &["lanefs-sync", "lanefs-store", "lanefs", "lanefs-fuse"];

/// They are some times slower than without.
const LIMIT: Duration = Duration::from_secs(60 * 60);

/// Runs them, or those whose names contain one of the arguments.
pub fn main(filters: &[&str]) -> Result<(), String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from);
    let mut c = cargo(&["test", "--no-fail-fast", "--lib", "--tests", "--features", "lanefs-sync/jitter"]);
    PACKAGES.iter().for_each(|package| {
        c.args(["-p", package]);
    });
    c.arg("--").args(filters).env("CARGO_TARGET_DIR", target.join("jitter"));
    stuck::run(&mut c, LIMIT)
}
