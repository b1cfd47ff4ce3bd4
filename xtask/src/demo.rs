//! `cargo xtask demo`: shows what LaneFS promises. The server of a mount is killed, and what was
//! fsynced is there; files are made faster than on tmpfs. All that it makes is removed again.

use crate::run::{cargo, need, root, run};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// The text that is shown before anything is done.
const BEFORE: &str = "\
This demo needs Linux with FUSE (/dev/fuse and fusermount3, of the package fuse3), git, 2 GiB of
memory and 2 GiB below the directory for temporary files. As root it installs fuse3 and git where
they are missing; else it says so and ends. It builds lanefs as released (some minutes the first
time), and then takes one to two minutes. Nothing is installed of LaneFS itself, and what is made is
removed again.";

/// Files that the promise is shown with, and bytes of each.
const FILES: usize = 200;
const BYTES: usize = 10_000;

/// Ends, unmounts and removes what the demo made, also when it fails.
struct Scene {
    dir: PathBuf,
    lanefs: PathBuf,
    server: Option<Child>,
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

    /// Mounts with a server that is a child of this process, so that it can be killed.
    fn mount(&mut self, args: &[&str]) -> Result<(), String> {
        let mut serve = self.lanefs(&["mount", "--foreground"]);
        serve.args(args).arg(self.image()).arg(self.mountpoint());
        eprintln!("+ {}", format!("{serve:?} &").replace('"', ""));
        self.server = Some(serve.spawn().map_err(|e| format!("{}: {e}", self.lanefs.display()))?);
        let begun = Instant::now();
        while !is_mounted(&self.mountpoint()) {
            if let Some(ended) = self.server.as_mut().and_then(|s| s.try_wait().ok()).flatten() {
                return Err(format!("the server ended: {ended}"));
            }
            if begun.elapsed() > Duration::from_secs(60) {
                return Err("the mount did not come within a minute".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn unmount(&mut self) -> Result<(), String> {
        run(self.lanefs(&["umount"]).arg(self.mountpoint()))?;
        match self.server.take().map(|mut s| s.wait()) {
            Some(Ok(status)) if !status.success() => Err(format!("the server ended: {status}")),
            Some(Err(e)) => Err(format!("the server: {e}")),
            _ => Ok(()),
        }
    }

    /// Ends the server as a crash does: it gets no chance to write anything.
    fn kill(&mut self) -> Result<(), String> {
        let mut server = self.server.take().ok_or("no server")?;
        eprintln!("+ kill -9 {}", server.id());
        server.kill().and_then(|()| server.wait()).map_err(|e| format!("kill: {e}"))?;
        // The kernel keeps the mount of a dead server until somebody takes it away.
        run(Command::new("umount").arg("-l").arg(self.mountpoint()))
            .or_else(|_| run(Command::new("fusermount3").arg("-uz").arg(self.mountpoint())))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let mnt = self.mountpoint();
        if let Some(mut server) = self.server.take() {
            let _ = self.lanefs(&["umount"]).arg(&mnt).status();
            let _ = server.kill();
            let _ = server.wait();
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

/// Returns the content of the n-th file.
fn content(n: usize) -> Vec<u8> {
    (0..BYTES).map(|i| (i * (n + 1) % 251) as u8).collect()
}

/// Makes files, and syncs each before the next.
fn write_and_sync(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    for n in 0..FILES {
        let mut file = std::fs::File::create(dir.join(format!("{n}.new")))?;
        file.write_all(&content(n))?;
        file.sync_all()?;
        std::fs::rename(dir.join(format!("{n}.new")), dir.join(n.to_string()))?;
    }
    std::fs::File::open(dir)?.sync_all()
}

fn look(dir: &Path) -> Result<(), String> {
    for n in 0..FILES {
        let path = dir.join(n.to_string());
        match std::fs::read(&path) {
            Ok(found) if found == content(n) => {}
            Ok(_) => return Err(format!("{}: is not what was synced", path.display())),
            Err(e) => return Err(format!("{}: {e}", path.display())),
        }
    }
    Ok(())
}

/// The demo.
pub fn run_demo() -> Result<(), String> {
    println!("{BEFORE}");
    need(&[("fusermount3", "fuse3"), ("git", "git")])?;
    say("Building lanefs");
    run(&mut cargo(&["build", "--release", "--package", "lanefs-cli"]))?;
    let begun = Instant::now();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let dir = std::env::temp_dir().join(format!("lanefs-demo-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("mnt")).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut s = Scene { dir, lanefs: target.join("release/lanefs"), server: None };
    let (mnt, image) = (s.mountpoint(), s.image());

    say("One command makes a volume of 1 GiB and mounts it");
    s.mount(&["--create", "--size", "1G"])?;
    run(Command::new("df").args(["-hT"]).arg(&mnt))?;

    say(&format!("The first promise. {FILES} files are written, synced and renamed; the server is killed"));
    write_and_sync(&mnt.join("synced")).map_err(|e| e.to_string())?;
    s.kill()?;

    say("Mounted again, every file that an fsync acknowledged is there, byte for byte");
    s.mount(&[])?;
    look(&mnt.join("synced"))?;
    println!("{FILES} of {FILES} files");

    say("Real work: a clone of this repository, checked by git");
    let clone = mnt.join("clone");
    run(Command::new("git").args(["clone", "--quiet", "--no-hardlinks"]).arg(root()).arg(&clone))?;
    run(Command::new("git").arg("-C").arg(&clone).args(["fsck", "--full", "--no-dangling"]))?;

    say("Unmounted, the volume is checked: every checksum, every link count");
    s.unmount()?;
    run(s.lanefs(&["fsck"]).arg(&image))?;

    say("The second promise. Files made a second: LaneFS in a program, beside tmpfs; 1 and 2 threads");
    let mut bench = s.lanefs(&["bench", "run", "--workloads", "MWCL,MWCM", "--workers", "1,2"]);
    bench.args(["--seconds", "1", "--repeats", "3", "--target", "lanefs=mem:1G"]);
    match tempfile_in(Path::new("/dev/shm")) {
        Some(tmpfs) => {
            let ran = run(bench.arg("--target").arg(format!("tmpfs={}", tmpfs.display())));
            let _ = std::fs::remove_dir_all(&tmpfs);
            ran?;
        }
        None => {
            println!("/dev/shm cannot be written: LaneFS alone");
            run(&mut bench)?;
        }
    }
    say(&format!("Done in {} s; the volume is removed again", begun.elapsed().as_secs()));
    Ok(())
}

/// A new directory in a file system in memory, if there is one.
fn tempfile_in(memory: &Path) -> Option<PathBuf> {
    let dir = memory.join(format!("lanefs-demo-{}", std::process::id()));
    std::fs::create_dir(&dir).ok().map(|()| dir)
}
