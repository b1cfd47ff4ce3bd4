//! `cargo xtask conflicts`: builds the conflict checker with the compiler's thread instrumentation
//! and a runtime that records, and runs it. See docs/CONFLICTS.md.

use crate::run::{cargo, root, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The target that the instrumented program is built for; named, so that build scripts and macros
/// are not instrumented.
const TARGET: &str =
    if cfg!(target_arch = "aarch64") { "aarch64-unknown-linux-gnu" } else { "x86_64-unknown-linux-gnu" };

/// Builds and runs; its exit status is the result.
pub fn check(arguments: &[&str]) -> Result<(), String> {
    let program = build()?;
    let ratchet = root().join("lab/conflicts/ratchet.json");
    let mut c = Command::new(program);
    c.args(["conflicts", "--ratchet"]).arg(ratchet).args(arguments.iter().map(|a| absolute(a)));
    run(&mut c)
}

/// Predicts how FxMark's workloads scale. Measures them on one and two cores first, unless results
/// are given with `--measured`.
pub fn coherence(arguments: &[&str]) -> Result<(), String> {
    let program = build()?;
    let mut c = Command::new(program);
    c.arg("coherence").args(arguments.iter().map(|a| absolute(a)));
    if arguments.contains(&"--measured") {
        return run(&mut c);
    }
    let file = std::env::temp_dir().join(format!("lanefs-measured-{}.json", std::process::id()));
    let bench = ["run", "--quiet", "--release", "-p", "lanefs-bench", "--", "run", "--target", "mem:"];
    let cells = ["--workloads", "all", "--workers", "1,2", "--seconds", "0.5", "--repeats", "3", "--json"];
    // What the background takes is known where all that was caused is done.
    let all =
        if arguments.contains(&"--background") { &["--sustained", "--stock", "65536"][..] } else { &[] };
    let done = run(cargo(&bench).args(all).args(cells).arg(&file))
        .and_then(|()| run(c.arg("--measured").arg(&file)));
    let _ = std::fs::remove_file(&file);
    done
}

/// Runs the part of the check that belongs to `cargo xtask test`: a counter that every call writes
/// must be found and named, and a sample must hold the ratchet.
pub fn sample() -> Result<(), String> {
    let program = build()?;
    let found = std::env::temp_dir().join(format!("lanefs-planted-{}.json", std::process::id()));
    let status = Command::new(&program)
        .args(["conflicts", "--pair", "stat,access", "--sample", "4", "--plant", "--json"])
        .arg(&found)
        .stdout(std::process::Stdio::null())
        .status()
        .map_err(|e| format!("{}: {e}", program.display()))?;
    let text = std::fs::read_to_string(&found).unwrap_or_default();
    let _ = std::fs::remove_file(&found);
    if status.success() || !text.contains("\"field\": \"planted.calls\"") {
        return Err("the planted counter was not found: the conflict checker is blind".into());
    }
    check(&["--sample", "2"])
}

/// Paths in the arguments are the caller's, not the workspace's.
pub fn absolute(argument: &str) -> PathBuf {
    let path = Path::new(argument);
    let is_file = path.extension().is_some_and(|e| e == "json" || e == "html");
    if is_file && path.is_relative() {
        return std::env::current_dir().map_or(path.to_path_buf(), |d| d.join(path));
    }
    path.to_path_buf()
}

/// Everything in a target directory of its own, the runtime first: it is C, because the flags below
/// instrument all Rust.
pub fn build() -> Result<PathBuf, String> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from).join("conflicts");
    std::fs::create_dir_all(&target).map_err(|e| format!("{}: {e}", target.display()))?;
    let runtime = target.join("runtime.o");
    let source = root().join("lab/conflicts/trace/runtime.c");
    run(Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-fPIC", "-c", "-o"])
        .arg(&runtime)
        .arg(&source))?;
    let flags = format!(
        "-Zsanitizer=thread -Zexternal-clangrt -Cunsafe-allow-abi-mismatch=sanitizer \
         -Cllvm-args=-tsan-instrument-func-entry-exit=1 --cfg lanefs_trace -Clink-arg={}",
        runtime.display()
    );
    let arguments = ["build", "--quiet", "--release", "-p", "lanefs-lab-conflicts", "--target", TARGET];
    run(cargo(&arguments)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", flags)
        .env("CARGO_TARGET_DIR", &target)
        // Fields and lines are found by it.
        .env("CARGO_PROFILE_RELEASE_DEBUG", "1")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"))?;
    Ok(target.join(TARGET).join("release/lanefs-lab-conflicts"))
}
