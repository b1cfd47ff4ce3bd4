//! `cargo xtask demo`: builds lanefs, makes and mounts a volume, works in it with real files,
//! checks it, and looks again.

use crate::run::{cargo, need, root, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Unmounts and removes what the demo made, also when it fails.
struct Scene {
    dir: PathBuf,
    lanefs: PathBuf,
}

impl Scene {
    fn mountpoint(&self) -> PathBuf {
        self.dir.join("mnt")
    }
    fn image(&self) -> PathBuf {
        self.dir.join("demo.lane")
    }
    fn lanefs(&self, args: &[&str]) -> Command {
        let mut c = Command::new(&self.lanefs);
        c.args(args);
        c
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let mnt = self.mountpoint();
        if is_mounted(&mnt) {
            let _ = self.lanefs(&["umount"]).arg(&mnt).status();
        }
        if is_mounted(&mnt) {
            let _ = Command::new("umount").arg("-l").arg(&mnt).status();
        }
        if !is_mounted(&mnt) {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

fn is_mounted(p: &Path) -> bool {
    std::fs::read_to_string("/proc/self/mounts")
        .is_ok_and(|m| m.lines().any(|l| l.split(' ').nth(1) == p.to_str()))
}

fn say(text: &str) {
    println!("\n== {text}");
}

/// The demo.
pub fn run_demo() -> Result<(), String> {
    need(&[("fusermount3", "fuse3"), ("git", "git")])?;
    say("Building lanefs");
    run(&mut cargo(&["build", "--release", "--package", "lanefs-cli"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let dir = std::env::temp_dir().join(format!("lanefs-demo-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("mnt")).map_err(|e| format!("{}: {e}", dir.display()))?;
    let s = Scene { dir, lanefs: target.join("release/lanefs") };
    let (mnt, image) = (s.mountpoint(), s.image());

    say("One command makes a volume of 1 GiB and mounts it");
    run(s.lanefs(&["mount", "--create", "--size", "1G"]).arg(&image).arg(&mnt))?;
    run(Command::new("df").args(["-hT"]).arg(&mnt))?;

    say("Real work: a clone of this repository, checked by git, and a commit in it");
    let clone = mnt.join("clone");
    run(Command::new("git").args(["clone", "--quiet", "--no-hardlinks"]).arg(root()).arg(&clone))?;
    run(Command::new("git").arg("-C").arg(&clone).args(["fsck", "--full"]))?;
    std::fs::write(clone.join("NOTE"), "written on LaneFS\n").map_err(|e| e.to_string())?;
    run(Command::new("git").arg("-C").arg(&clone).args(["add", "NOTE"]))?;
    run(Command::new("git").arg("-C").arg(&clone).args([
        "-c",
        "user.name=Demo",
        "-c",
        "user.email=demo@example.org",
        "commit",
        "--quiet",
        "-m",
        "A commit",
    ]))?;

    say("Unmounted, the volume is checked: every checksum, every link count");
    run(s.lanefs(&["umount"]).arg(&mnt))?;
    run(s.lanefs(&["fsck"]).arg(&image))?;

    say("Mounted again, git finds everything");
    run(s.lanefs(&["mount"]).arg(&image).arg(&mnt))?;
    run(Command::new("git").arg("-C").arg(&clone).args(["fsck", "--full"]))?;
    run(Command::new("git").arg("-C").arg(&clone).args(["--no-pager", "log", "--oneline", "-3"]))?;
    run(s.lanefs(&["umount"]).arg(&mnt))?;

    say("Without mounting");
    run(s.lanefs(&["info"]).arg(&image))?;
    run(s.lanefs(&["ls", "-l"]).arg(format!("{}:/clone", image.display())))?;
    say("Done; the volume is removed again");
    Ok(())
}
