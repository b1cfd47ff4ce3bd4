//! A writer that is killed at any moment: every record that it called durable is there, and none
//! before it is missing. `LANEFS_KILLS=100` for more of them.

use crate::built::{compile, run, text};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Lets it write, kills it, and returns the last number that it called durable.
fn killed(ledger: &Path, image: &Path, syncs: &str, lines: u64, pause: Duration) -> u64 {
    let mut writer = Command::new(ledger);
    let mut child = writer.arg(image).args(["write", syncs]).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    let number = |line: std::io::Result<String>| line.unwrap().strip_prefix("durable ")?.parse().ok();
    let mut last = 0;
    for _ in 0..lines {
        last = said.next().and_then(number).expect("it goes on until it is killed");
    }
    std::thread::sleep(pause);
    child.kill().unwrap();
    // What it had said before.
    for line in said {
        last = number(line).unwrap_or(last);
    }
    assert!(!child.wait().unwrap().success(), "it was killed");
    last
}

#[test]
fn what_was_called_durable_survives_a_kill() {
    let rounds = std::env::var("LANEFS_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(10);
    let ledger = compile("ledger");
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.lane");
    let mut random = u64::from(std::process::id()) | 1;
    let mut before = 0;
    for round in 0..rounds {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let syncs = ["1", "7", "50"][round % 3];
        let pause = Duration::from_micros(random % 5000);
        let durable = killed(&ledger, &image, syncs, 1 + random % 60, pause);
        let said = text(&run(Command::new(&ledger).arg(&image).arg("check")));
        let found: u64 = said.trim().strip_prefix("found ").and_then(|n| n.parse().ok()).expect("a number");
        assert!(found >= durable && durable > before, "round {round}: {durable} durable, {found} found");
        before = found;
    }
}
