//! Commands and programs that wait for space on the host of an image say so, and when they go on.

use crate::common::*;
use crate::host_full::{fill, make_host, remove_fillers};
use crate::run::library;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// An image on an ext4 in a file, which is full. Nothing of it outlives the test.
struct FullHost(TempDir);

impl FullHost {
    /// `None` where this user may not mount.
    fn new() -> Option<FullHost> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("only root mounts: not tested");
            return None;
        }
        let it = FullHost(tempfile::tempdir().unwrap());
        make_host(it.0.path());
        fill(&it.path("host"));
        Some(it)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs a command that waits, makes space when it says so, and returns what it said afterwards.
    #[track_caller]
    fn waits(&self, arguments: &[&str]) -> String {
        let mut child = Command::new("timeout")
            .args(["-s", "KILL", "60", LANEFS])
            .args(arguments)
            .env("LANEFS_PRELOAD", library())
            .current_dir(self.0.path())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut says = BufReader::new(child.stderr.take().unwrap());
        let mut first = String::new();
        says.read_line(&mut first).unwrap();
        let told = first.starts_with("lanefs")
            && first.contains("waiting for space on the host")
            && first.contains(self.path("host").to_str().unwrap())
            && first.contains("Free ");
        assert!(told, "{first}");
        assert_eq!(child.try_wait().unwrap(), None, "it waits");
        remove_fillers(&self.path("host"));
        let rest: Vec<String> = says.lines().map(Result::unwrap).collect();
        assert!(child.wait().unwrap().success(), "{rest:?}");
        rest.join("\n")
    }
}

impl Drop for FullHost {
    fn drop(&mut self) {
        // The loop device goes with the mount.
        let _ = Command::new("umount").arg("-l").arg(self.path("host")).output();
    }
}

/// It waited without a word.
#[test]
fn a_command_that_waits_for_the_host_says_so() {
    let Some(host) = FullHost::new() else { return };
    std::fs::write(host.path("source"), vec![7; 64 << 10]).unwrap();
    // It waits when it is being closed, and may end before it knows that there is space for more.
    host.waits(&["cp", "source", "host/v.lane:/f"]);
    assert_eq!(lanefs_in(host.0.path(), &["fsck", "host/v.lane"]).ok().code, 0);
}

/// So did a program that the library is preloaded into.
#[test]
fn a_program_that_waits_for_the_host_says_so() {
    let Some(host) = FullHost::new() else { return };
    let dd = "dd if=/dev/zero of=/host-told/f bs=64k count=1 conv=fsync status=none";
    let run = ["run", "host/v.lane:/host-told", "--"];
    let rest = host.waits(&run.into_iter().chain(dd.split(' ')).collect::<Vec<_>>());
    assert!(rest.contains("lanefs run: ") && rest.contains("space on the host again"), "{rest}");
    assert_eq!(lanefs_in(host.0.path(), &["fsck", "host/v.lane"]).ok().code, 0);
}
