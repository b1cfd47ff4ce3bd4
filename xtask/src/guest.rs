//! `cargo xtask guest`: `lanefs bench guest`, with Debian's kernel and F2FS in it.
//!
//! QEMU and the `mkfs` commands are installed if they are missing; the kernel is fetched to
//! `target/guest` and only unpacked. The processor is emulated, so that it is the same everywhere.

use crate::programs::child;
use crate::programs::volume;
use crate::run::need;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Who takes part: in memory, on the guest's disk, mounted by the kernel and by FUSE.
const PEERS: &[&str] = &["f2fs", "ext4", "lanefs", "lanefs-mount"];
/// The longest that a guest may take.
const LIMIT: Duration = Duration::from_secs(900);

/// A folder that goes away with this.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The command.
pub fn main() -> Result<(), String> {
    need(&[
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("mkfs.f2fs", "f2fs-tools"),
        ("mkfs.ext4", "e2fsprogs"),
        ("dpkg-deb", "dpkg"),
    ])?;
    let lanefs = volume::build()?;
    let kept = volume::target().join("guest");
    let scratch = Scratch(kept.join(format!("results-{}", std::process::id())));
    std::fs::create_dir_all(&scratch.0).map_err(|e| format!("{}: {e}", scratch.0.display()))?;
    for medium in ["mem", "disk"] {
        compare(&lanefs, &kept, &scratch.0, medium)?;
    }
    refused(&lanefs, &kept, &scratch.0)
}

fn guest(lanefs: &Path, kept: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(lanefs);
    command.args(["bench", "guest", "--emulate", "--memory", "1G", "--disk", "2G", "--"]).args(words);
    command.env("XDG_CACHE_HOME", kept);
    command
}

/// Everybody takes part, and the results are where they were asked for, of the guest's kernel.
fn compare(lanefs: &Path, kept: &Path, dir: &Path, medium: &str) -> Result<(), String> {
    let json = dir.join(format!("{medium}.json"));
    let peers = PEERS.join(",");
    let words = ["compare", "--workloads", "mwcl", "--workers", "1", "--seconds", "0.2", "--repeats", "1"];
    let mut command = guest(lanefs, kept, &words);
    command.args(["--size", "128M", "--fresh", "--medium", medium, "--peers", &peers, "--json"]).arg(&json);
    child::succeed(&mut command, dir, LIMIT)?;
    let text = std::fs::read_to_string(&json).map_err(|e| format!("{}: {e}", json.display()))?;
    for peer in PEERS {
        if !text.contains(&format!("\"target\": \"{peer}\"")) {
            return Err(format!("{}: nothing of {peer}\n{text}", json.display()));
        }
    }
    let own = std::fs::read_to_string("/proc/sys/kernel/version").unwrap_or_default();
    if own.trim().is_empty() || text.contains(own.trim()) {
        return Err(format!("{}: measured on this kernel, not the guest's", json.display()));
    }
    println!("a guest, {medium}: {peers} took part");
    Ok(())
}

/// What fails in the guest fails here, with the guest's words.
fn refused(lanefs: &Path, kept: &Path, dir: &Path) -> Result<(), String> {
    let words = ["compare", "--workloads", "mwcl", "--peers", "nobody"];
    let out = child::output(&mut guest(lanefs, kept, &words), dir, LIMIT)?;
    match out.status.code() {
        Some(2) if out.text.contains("no peer `nobody`") => Ok(()),
        code => Err(format!("a command that fails in a guest: exit status {code:?}\n{}", out.text)),
    }
}
