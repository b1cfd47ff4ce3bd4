//! Running a program that may serve a mount of its own, and that must not hang for ever.
//!
//! A process that ends while one of its threads waits for an answer of its own mount never comes to
//! its end: that thread waits for a request which nobody serves any more, the descriptor of
//! /dev/fuse is closed with the last thread only, and whoever waits for the process waits with it.
//! A report of ThreadSanitizer ends a program in this way, at any place. So this one looks at the
//! program from outside, and cuts the connection by the file `abort` of fusectl:
//!
//! 1. when a thread of the program was killed and has not ended for [`GRACE`]: every program that
//!    ends kills its other threads;
//! 2. when the program has taken longer than it may: then it is killed first;
//! 3. when the program has ended and left a mount behind, which nobody must walk into.
//!
//! The mounts are found in /proc/self/mountinfo, for every call on one of them could hang.

use crate::run::root;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// The time that a killed thread gets to end by itself.
const GRACE: Duration = Duration::from_secs(2);

/// The time that a program gets to end once its connections were cut.
const LAST: Duration = Duration::from_secs(60);

/// Where fusectl is mounted.
const CONTROL: &str = "/sys/fs/fuse/connections";

/// Runs a command in the workspace for at most `limit`; `dir` is the directory below which it may
/// mount. Nothing is mounted there afterwards.
pub fn run(what: &mut Command, dir: &Path, limit: Duration) -> Result<(), String> {
    let line = format!("{what:?}").replace('"', "");
    eprintln!("+ {line}");
    let dir = dir.canonicalize().map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut child = what.current_dir(root()).spawn().map_err(|e| format!("{line}: {e}"))?;
    let ended = watch(&mut child, &dir, limit);
    let cut = cut(&dir);
    match ended.and_then(|s| cut.map(|()| s)) {
        Ok(s) if s.success() => Ok(()),
        Ok(s) => Err(format!("{line}: {s}")),
        Err(e) => Err(format!("{line}: {e}")),
    }
}

/// Waits for the end of a program, and sees to it that it comes.
fn watch(child: &mut Child, dir: &Path, limit: Duration) -> Result<ExitStatus, String> {
    let begun = Instant::now();
    let (mut dying, mut killed) = (None, false);
    loop {
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(_)) if killed => return Err(format!("not done after {} s", limit.as_secs())),
            Ok(Some(status)) => return Ok(status),
            Err(e) => return Err(e.to_string()),
        }
        dying = if is_dying(child.id()) { dying.or_else(|| Some(Instant::now())) } else { None };
        if dying.is_some_and(|since| since.elapsed() > GRACE) {
            cut(dir)?;
        }
        if begun.elapsed() > limit && !killed {
            child.kill().map_err(|e| e.to_string())?;
            killed = true;
        }
        if begun.elapsed() > limit + LAST {
            return Err("it does not end, though it was killed and its mounts were cut".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns whether a thread of a process was killed and has not ended yet.
fn is_dying(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|t| std::fs::read_to_string(t.path().join("status")).ok()).any(|s| has_kill_pending(&s))
}

/// Returns whether a thread, by its `status` in /proc, has a SIGKILL that it has not acted on.
fn has_kill_pending(status: &str) -> bool {
    let kill = 1u64 << (libc::SIGKILL - 1);
    let sets = status.lines().filter_map(|l| l.strip_prefix("SigPnd:").or(l.strip_prefix("ShdPnd:")));
    sets.filter_map(|set| u64::from_str_radix(set.trim(), 16).ok()).any(|set| set & kill != 0)
}

/// Cuts the connections of all FUSE mounts at a directory or below it, and unmounts them.
fn cut(dir: &Path) -> Result<(), String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").map_err(|e| format!("mountinfo: {e}"))?;
    for (place, connection) in mounts(&table).filter(|(place, _)| place.starts_with(dir)) {
        if !Path::new(CONTROL).join(connection.to_string()).exists() {
            let _ = Command::new("mount").args(["-t", "fusectl", "none", CONTROL]).status();
        }
        // One that has ended already has no file, and needs none.
        let abort = format!("{CONTROL}/{connection}/abort");
        let cut = std::fs::write(&abort, "1");
        let lazily = Command::new("umount").arg("-l").arg(&place).status();
        if !lazily.is_ok_and(|s| s.success()) {
            return Err(format!("{} is mounted ({abort}: {cut:?})", place.display()));
        }
        eprintln!("{}: its connection was cut", place.display());
    }
    Ok(())
}

/// Returns the places of FUSE mounts in a table of mounts, and the numbers of their connections.
fn mounts(table: &str) -> impl Iterator<Item = (PathBuf, u64)> {
    table.lines().filter_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        if !back.starts_with("fuse ") && !back.starts_with("fuse.") && !back.starts_with("fuseblk ") {
            return None;
        }
        let fields: Vec<&str> = front.split(' ').collect();
        let (major, minor) = fields.get(2)?.split_once(':')?;
        // As the kernel itself writes the two numbers in one.
        let number = major.parse::<u64>().ok()? << 20 | minor.parse::<u64>().ok()?;
        Some((PathBuf::from(fields.get(4)?.replace("\\040", " ")), number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that mounts at the directory it is given and ends, by itself or never, while a
    /// thread of it waits for the mount.
    const DIES: &str = include_str!("watched/dies.c");

    /// Returns the program and a directory, unless this user may not mount.
    fn program() -> Option<(tempfile::TempDir, PathBuf, PathBuf)> {
        let is_root =
            std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
        if !is_root || !Path::new("/dev/fuse").exists() {
            eprintln!("needs root and /dev/fuse: not tested");
            return None;
        }
        let work = tempfile::tempdir().unwrap();
        let (source, to, dir) =
            (work.path().join("dies.c"), work.path().join("dies"), work.path().join("a mount"));
        std::fs::write(&source, DIES).unwrap();
        std::fs::create_dir(&dir).unwrap();
        let compiled = Command::new("cc").args(["-pthread", "-o"]).arg(&to).arg(&source).status().unwrap();
        assert!(compiled.success());
        Some((work, to, dir))
    }

    fn is_mounted(dir: &Path) -> bool {
        mounts(&std::fs::read_to_string("/proc/self/mountinfo").unwrap()).any(|(place, _)| place == dir)
    }

    /// It hung for ever: so did whoever waited for it.
    #[test]
    fn a_program_that_dies_while_it_waits_for_its_own_mount_is_ended() {
        let Some((_work, program, dir)) = program() else { return };
        let limit = Duration::from_secs(600);
        let begun = Instant::now();
        let said = run(Command::new(&program).arg(&dir).arg("dies"), &dir, limit).unwrap_err();
        assert!(said.contains("exit status: 66") && begun.elapsed() < limit, "{said}");
        assert!(!is_mounted(&dir));
    }

    #[test]
    fn a_program_that_takes_too_long_is_ended() {
        let Some((_work, program, dir)) = program() else { return };
        let limit = Duration::from_secs(1);
        let said = run(Command::new(&program).arg(&dir).arg("waits"), &dir, limit).unwrap_err();
        assert!(said.contains("not done after 1 s"), "{said}");
        assert!(!is_mounted(&dir));
    }

    #[test]
    fn the_kernels_tables_are_read() {
        let table = "36 25 0:31 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n\
            90 25 0:58 / /tmp/a\\040b rw,nosuid - fuse.lanefs x rw,user_id=0\n\
            91 25 1:2 / /c rw - fuse x rw\n92 25 0:60 / /ctl rw - fusectl none rw\n";
        let found: Vec<_> = mounts(table).collect();
        assert_eq!(found, [("/tmp/a b".into(), 58), ("/c".into(), 1 << 20 | 2)]);
        assert!(has_kill_pending("Name:\tx\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
        assert!(has_kill_pending("SigPnd:\t0\nShdPnd:\t0000000000000101\n"));
        assert!(!has_kill_pending("SigPnd:\t0000000000004000\nShdPnd:\t0\nSigBlk:\t0000000000000100\n"));
    }
}
