//! Kills while a program writes: what it was told to be durable is there.

use crate::volume::{PREFIX, TestVolume, compile};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// Kills, each after another number of records.
fn kills() -> u64 {
    std::env::var("LANEFS_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(40)
}

#[test]
fn a_program_that_is_killed_loses_nothing_that_was_synced() {
    let volume = TestVolume::new();
    let program = compile("ledger", volume.dir.path());
    let (mut next, mut acknowledged) = (0u64, Vec::new());
    for kill in 0..kills() {
        let mut child = volume
            .command(&program)
            .arg(PREFIX)
            .arg(next.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for line in lines.take(1 + (kill * 7 % 23) as usize) {
            acknowledged.push(line.unwrap().parse::<u64>().unwrap());
        }
        child.kill().unwrap();
        let ended = child.wait().unwrap();
        assert!(!ended.success(), "kill {kill}: it ended by itself, {ended}");
        // Numbers that the program may have begun are not used again.
        next = acknowledged.last().map_or(0, |n| n + 1000);
        let opened = volume.open();
        let fs = opened.fs();
        let log = fs.read_to_string("log").unwrap();
        for n in &acknowledged {
            let text = format!("record {n}\n");
            assert_eq!(fs.read_to_string(format!("record-{n}")).unwrap(), text, "kill {kill}");
            assert!(log.contains(&text), "kill {kill}: {text} is not in the log");
        }
        opened.close().unwrap();
    }
    assert!(acknowledged.len() as u64 > kills(), "{} records", acknowledged.len());
}
