//! stress-ng: its file-system stressors, each alone, with its own verification.

use super::{Place, child};
use std::process::Command;
use std::time::Duration;

/// The stressors that work on files in a folder. Left out are those that test other file systems
/// (procfs, binderfs, sysfs) or need files not their own (bind-mount, verity).
const STRESSORS: &[&str] = &[
    "access",
    "chattr",
    "chdir",
    "chmod",
    "chown",
    "copy-file",
    "dentry",
    "dir",
    "dirdeep",
    "dirmany",
    "dup",
    "fallocate",
    "fcntl",
    "fiemap",
    "file-ioctl",
    "filename",
    "flock",
    "fpunch",
    "fsize",
    "fstat",
    "getdent",
    "handle",
    "hdd",
    "inode-flags",
    "inotify",
    "io",
    "iomix",
    "lease",
    "link",
    "locka",
    "lockf",
    "lockofd",
    "mknod",
    "open",
    "rename",
    "seek",
    "sendfile",
    "splice",
    "symlink",
    "sync-file",
    "touch",
    "utime",
    "xattr",
];

/// Enough for a quick look: one of each kind.
const QUICK: &[&str] = &[
    "copy-file",
    "dentry",
    "dirdeep",
    "fallocate",
    "fpunch",
    "getdent",
    "iomix",
    "link",
    "rename",
    "seek",
    "touch",
    "xattr",
];

/// The exit status of stress-ng when a stressor cannot run here.
const SKIPPED: [i32; 2] = [3, 4];

pub fn run(place: &Place) -> Result<String, String> {
    let seconds = place.amount(8, 1);
    let mut failed = Vec::new();
    let mut skipped = Vec::new();
    let stressors = if place.quick { QUICK } else { STRESSORS };
    for stressor in stressors {
        let mut c = Command::new("stress-ng");
        c.current_dir(&place.dir);
        c.arg(format!("--{stressor}")).arg("2").args(["--verify", "--timeout", &format!("{seconds}s")]);
        c.arg("--temp-path").arg(&place.dir);
        match child::output(&mut c, &place.outside, Duration::from_secs(seconds + 120)) {
            Ok(out) if out.status.success() => {}
            Ok(out) if out.status.code().is_some_and(|c| SKIPPED.contains(&c)) => skipped.push(*stressor),
            Ok(out) => failed.push(format!("{stressor}: {}\n{}", out.status, child::tail(&out.text, 6))),
            Err(e) => failed.push(e),
        }
    }
    if !failed.is_empty() {
        return Err(format!("{} stressors failed:\n{}", failed.len(), failed.join("\n")));
    }
    let mut said = format!("{} stressors of {seconds} s", stressors.len() - skipped.len());
    if !skipped.is_empty() {
        said += &format!("; cannot run here: {}", skipped.join(" "));
    }
    Ok(said)
}
