//! Running tests of which one may hang, and showing where it does.
//!
//! A test whose threads wait for each other says nothing, and what runs it ends it some day without
//! a word. So the tests get longer than they ever need, and then the stacks of all their threads
//! are printed before they are killed.

use crate::run::{need, root};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Runs a command in the workspace for at most `limit`. Of one that takes longer the stacks of its
/// programs are printed, and it is killed.
pub fn run(what: &mut Command, limit: Duration) -> Result<(), String> {
    let line = format!("{what:?}").replace('"', "");
    eprintln!("+ {line}");
    let mut child = what.current_dir(root()).spawn().map_err(|e| format!("{line}: {e}"))?;
    let begun = Instant::now();
    while begun.elapsed() < limit {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(Duration::from_millis(50)),
            Ok(Some(s)) if s.success() => return Ok(()),
            Ok(Some(s)) => return Err(format!("{line}: {s}")),
            Err(e) => return Err(format!("{line}: {e}")),
        }
    }
    show_and_kill(&mut child);
    Err(format!("{line}: not done after {} s", limit.as_secs()))
}

/// Prints where the threads of a command and of all that it has started are, and ends these.
fn show_and_kill(child: &mut Child) {
    let all = with_children(child.id());
    if let Err(e) = need(&[("gdb", "gdb")]) {
        eprintln!("no stacks are shown: {e}");
    }
    for pid in all.iter().filter(|pid| is_test(**pid)) {
        eprintln!("== process {pid}: {:?}", program(*pid));
        let mut gdb = Command::new("gdb");
        gdb.args(["-p", &pid.to_string(), "-batch", "-ex", "thread apply all bt 24"]);
        let _ = gdb.stdin(Stdio::null()).status();
    }
    for pid in all {
        let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
    }
    let _ = child.wait();
}

fn program(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// Returns whether a process runs a test that cargo has built.
fn is_test(pid: u32) -> bool {
    program(pid).is_some_and(|p| p.parent().is_some_and(|dir| dir.ends_with("deps")))
}

/// Returns a process and all that come from it, parents first.
fn with_children(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut at = 0;
    while let Some(pid) = all.get(at) {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let lists = tasks.filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok());
        let found: Vec<u32> = lists
            .flat_map(|l| l.split_whitespace().filter_map(|n| n.parse().ok()).collect::<Vec<_>>())
            .collect();
        all.extend(found);
        at += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_is_ended_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let pids = dir.path().join("pids");
        let script = format!("sleep 1000 & echo $! > {}; wait", pids.display());
        let begun = Instant::now();
        let said = run(Command::new("sh").args(["-c", &script]), Duration::from_secs(1)).unwrap_err();
        assert!(said.contains("not done after 1 s"), "{said}");
        assert!(begun.elapsed() < Duration::from_secs(600), "it was waited for");
        let child: u32 = std::fs::read_to_string(pids).unwrap().trim().parse().unwrap();
        let is_there = || {
            let state = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            !state.is_empty() && !state.contains(") Z")
        };
        while is_there() {
            assert!(begun.elapsed() < Duration::from_secs(600), "its child goes on");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(run(&mut Command::new("true"), Duration::from_secs(60)).is_ok());
        assert!(run(&mut Command::new("false"), Duration::from_secs(60)).is_err());
    }
}
