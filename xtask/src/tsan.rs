//! `cargo xtask tsan`: the threaded tests, and programs in C, under ThreadSanitizer, with a
//! standard library that is instrumented too. See docs/TESTING.md.

use crate::c_library;
use crate::run::{cargo, root, run};
use crate::watched;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

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

/// Examples of crates/lanefs-c with the arguments that they are given; `DIR` stands for an empty
/// directory.
const PROGRAMS: &[(&str, &[&str])] =
    &[("threads", &[]), ("tour", &[]), ("fsx", &["DIR/fsx.lane", "1000", "1"]), ("served", &["DIR"])];

/// The time that a program in C may take; the longest takes some ten seconds.
const LIMIT: Duration = Duration::from_secs(600);

/// Runs them, or with arguments those of them whose names contain one; `c` stands for the programs
/// in C. The first report fails its test.
pub fn main(filters: &[&str]) -> Result<(), String> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from).join("tsan");
    if filters != ["c"] {
        for (package, kind, own) in TESTS {
            let mut c = instrumented(&["test", "--quiet", "-p", package], &target);
            c.args(*kind).arg("--").args(if filters.is_empty() { own } else { filters });
            run(c.env("TSAN_OPTIONS", options()))?;
        }
    }
    if filters.is_empty() || filters == ["c"] { programs(&target) } else { Ok(()) }
}

/// Returns a command of cargo that instruments what it builds.
fn instrumented(arguments: &[&str], target: &Path) -> Command {
    let mut c = cargo(arguments);
    c.args(["-Zbuild-std", "--target", TARGET]);
    c.env("RUSTC_BOOTSTRAP", "1")
        .env(
            "RUSTFLAGS",
            "-Zsanitizer=thread --cfg lanefs_tsan --cfg crossbeam_sanitize --cfg crossbeam_sanitize_thread",
        )
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
    c
}

fn options() -> String {
    let suppressions = root().join("lab/tsan.supp");
    format!("halt_on_error=1 second_deadlock_stack=1 suppressions={}", suppressions.display())
}

/// Runs the programs in C. The two compilers call one runtime, the one that comes with Rust's.
fn programs(target: &Path) -> Result<(), String> {
    run(&mut instrumented(&["build", "--quiet", "-p", "lanefs-c"], target))?;
    let (archive, out) = (target.join(TARGET).join("debug/liblanefs_c.a"), target.join("c"));
    let told = |e: std::io::Error| format!("{}: {e}", out.display());
    std::fs::create_dir_all(&out).map_err(told)?;
    c_library::header(&out.join("lanefs.h"))?;
    let runtime = runtime()?;
    for (name, arguments) in PROGRAMS {
        let source = root().join(format!("crates/lanefs-c/examples/{name}.c"));
        let (object, program) = (out.join(format!("{name}.o")), out.join(name));
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-g", "-O1", "-pthread", "-fsanitize=thread", "-c", "-o"]).arg(&object);
        run(cc.arg("-I").arg(&out).arg(source))?;
        let mut cc = Command::new("cc");
        cc.args(["-pthread", "-o"]).arg(&program).arg(&object).arg(&archive);
        cc.arg("-Wl,--whole-archive").arg(&runtime).arg("-Wl,--no-whole-archive");
        run(cc.args(c_library::NEEDS))?;
        let dir = out.join("run");
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).map_err(told)?;
        let dir = dir.display().to_string();
        let mut c = Command::new(&program);
        c.args(arguments.iter().map(|a| a.replace("DIR", &dir))).env("TSAN_OPTIONS", options());
        watched::run(&mut c, Path::new(&dir), LIMIT)?;
    }
    std::fs::remove_dir_all(out.join("run")).map_err(told)
}

/// Returns the sanitizer's runtime.
fn runtime() -> Result<PathBuf, String> {
    let asked = Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).output();
    let asked = asked.map_err(|e| format!("rustc: {e}"))?;
    let dir = PathBuf::from(String::from_utf8_lossy(&asked.stdout).trim());
    let files = std::fs::read_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut names = files.flatten().map(|f| f.path());
    let found = names.find(|p| p.file_name().is_some_and(|n| n.to_string_lossy().ends_with("_rt.tsan.a")));
    found.ok_or_else(|| format!("{}: no runtime of ThreadSanitizer", dir.display()))
}
