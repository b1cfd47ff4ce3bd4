//! `cargo xtask tsan`: the threaded tests under ThreadSanitizer, with a standard library that is
//! instrumented too. See docs/TESTING.md.

use crate::run::{cargo, root, run};
use std::path::PathBuf;

/// The target that the instrumented tests are built for; named, so that build scripts and macros
/// are not instrumented.
const TARGET: &str =
    if cfg!(target_arch = "aarch64") { "aarch64-unknown-linux-gnu" } else { "x86_64-unknown-linux-gnu" };

/// Packages, kinds of tests, and filters: what runs threads against each other without needing
/// anything of the machine.
const TESTS: &[(&str, &[&str], &[&str])] = &[
    ("lanefs-sync", &["--lib"], &[]),
    (
        "lanefs",
        &["--lib"],
        &[
            "memfs::stamps",
            "memfs::dir",
            "memfs::xattr",
            "memfs::data::tests::threads",
            "memfs::data::tests::races",
        ],
    ),
    ("lanefs", &["--test", "it"], &["threads::", "stamps::", "history::"]),
];

/// Runs them, or with arguments those of them whose names contain one; the first report fails its
/// test.
pub fn main(filters: &[&str]) -> Result<(), String> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from).join("tsan");
    let suppressions = root().join("lab/tsan.supp");
    for (package, kind, own) in TESTS {
        let mut c = cargo(&["test", "--quiet", "-Zbuild-std", "--target", TARGET, "-p", package]);
        c.args(*kind).arg("--").args(if filters.is_empty() { own } else { filters });
        c.env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", "-Zsanitizer=thread --cfg lanefs_tsan --cfg crossbeam_sanitize --cfg crossbeam_sanitize_thread")
            .env("CARGO_TARGET_DIR", &target)
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
            .env("TSAN_OPTIONS", format!("halt_on_error=1 second_deadlock_stack=1 suppressions={}", suppressions.display()));
        run(&mut c)?;
    }
    Ok(())
}
