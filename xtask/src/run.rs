//! Running other programs, and saying what is run.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace's root: this package lies one level below it.
pub fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_path_buf()
}

/// Runs a command in the workspace, its output going where ours goes; an error names it.
pub fn run(what: &mut Command) -> Result<(), String> {
    let line = format!("{what:?}").replace('"', "");
    eprintln!("+ {line}");
    match what.current_dir(root()).status() {
        Ok(s) if s.success() => Ok(()),
        Ok(s) => Err(format!("{line}: {s}")),
        Err(e) => Err(format!("{line}: {e}")),
    }
}

/// `cargo` with these arguments.
pub fn cargo(args: &[&str]) -> Command {
    let mut c = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    c.args(args);
    c
}

/// Returns whether a program is on the path; of a path from the root, whether there is such a file.
pub fn has(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|p| std::env::split_paths(&p).any(|d| d.join(program).is_file()))
}

/// Makes sure that programs are there: pairs of (program, or the path of a file; Debian package).
/// Installs what is missing when that is possible.
pub fn need(programs: &[(&str, &str)]) -> Result<(), String> {
    let missing: Vec<&str> = programs.iter().filter(|p| !has(p.0)).map(|p| p.1).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !has("apt-get") || !rustix_is_root() {
        return Err(format!("install these packages first: {}", missing.join(" ")));
    }
    run(Command::new("apt-get").args(["update", "-qq"]))?;
    let mut c = Command::new("apt-get");
    c.env("DEBIAN_FRONTEND", "noninteractive")
        .args(["install", "-y", "-qq", "--no-install-recommends"])
        .args(missing);
    run(&mut c)
}

fn rustix_is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}
