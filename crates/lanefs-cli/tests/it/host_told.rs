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

/// It said that the volume was to be made larger.
#[test]
fn a_copy_for_which_the_host_has_no_space_says_what_to_do() {
    let Some(host) = FullHost::new() else { return };
    std::fs::write(host.path("source"), vec![7; 64 << 20]).unwrap();
    let mut child = Command::new("timeout")
        .args(["-s", "KILL", "60", LANEFS, "cp", "source", "host/v.lane:/f"])
        .current_dir(host.0.path())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut says = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    says.read_line(&mut said).unwrap();
    // It is refused, lets go of the source, and writes before it ends what was accepted.
    while has_open(child.id(), "source") {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    remove_fillers(&host.path("host"));
    says.lines().map(Result::unwrap).for_each(|line| said.push_str(&line));
    assert!(!child.wait().unwrap().success());
    assert!(said.contains("make space there, or remove files") && !said.contains("larger volume"), "{said}");
    assert_eq!(lanefs_in(host.0.path(), &["fsck", "host/v.lane"]).ok().code, 0);
}

/// Returns whether a child of this process has a file of this name open.
fn has_open(pid: u32, name: &str) -> bool {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let fds = children.split_whitespace().flat_map(|child| std::fs::read_dir(format!("/proc/{child}/fd")));
    let mut files = fds.flatten().flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok());
    files.any(|file| file.ends_with(name))
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
