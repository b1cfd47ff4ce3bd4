//! A few steps of `cargo xtask oom`, and that it finds what is wrong on purpose: a checker that
//! finds nothing must be able to find something.

use std::process::Command;

/// Exit status, and what was printed.
fn oom(arguments: &[&str]) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    let mut c = Command::new(env!("CARGO_BIN_EXE_lanefs-lab"));
    let done = c.arg("oom").args(arguments).args(["--jobs", "2", "--dir"]).arg(dir.path()).output().unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "something was left behind");
    let text = [done.stdout, done.stderr].concat();
    (done.status.code(), String::from_utf8_lossy(&text).into_owned())
}

fn holds(arguments: &[&str]) {
    let (status, said) = oom(arguments);
    assert_eq!(status, Some(0), "{arguments:?}: {said}");
}

#[test]
fn where_an_allocation_fails_nothing_acknowledged_is_lost() {
    for stage in ["names", "background", "recovery by", "repair", "mkfs"] {
        holds(&["--only", stage, "--sample", "3", "--fault", "once"]);
    }
}

/// The threads that write to several devices, check data that a recovery found and read for fsck
/// were started by a call that panics if there is no memory for one: in the middle of an fsync, or
/// of opening.
#[test]
fn where_a_thread_cannot_be_started_the_others_do_its_work() {
    for stage in ["two devices", "background", "recovery by", "fsck", "repair"] {
        holds(&["--only", stage, "--sample", "100", "--fault", "thread"]);
        holds(&["--only", stage, "--sample", "2", "--fault", "threads"]);
    }
}

fn finds(plant: &str, arguments: &[&str], what: &[&str]) {
    let all = [&["--plant", plant], arguments].concat();
    let (status, said) = oom(&all);
    assert_eq!(status, Some(1), "{all:?}: {said}");
    assert!(what.iter().any(|w| said.contains(w)), "{all:?}: {said}");
}

#[test]
fn what_is_planted_is_found() {
    let lost = [": C3: ", ": F2: "];
    finds("told", &["--only", "content", "--fault", "once", "--sample", "6"], &lost);
    finds("swallow", &["--only", "content", "--fault", "once", "--sample", "6"], &lost);
    // No thread is started in this stage, so nothing fails but what is planted.
    let quiet = ["--only", "names", "--fault", "thread", "--at", "0", "--patience", "5"];
    finds("panic", &quiet, &[": panic: "]);
    finds("hang", &quiet, &[": hang: "]);
    finds("crash", &quiet, &[": end: signal: 11"]);
}
