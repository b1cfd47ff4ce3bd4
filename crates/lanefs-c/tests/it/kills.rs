//! Kills of a program in C while it writes: what it said to be durable is there, and the volume is
//! whole.

use crate::programs::{compile, example};
use lanefs::{MountOptions, Volume};
use lanefs_store::device::{Device, FileDevice};
use lanefs_store::fsck::check;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Names that take turns in the program.
const NAMES: u64 = 50;

#[test]
fn a_program_that_is_killed_loses_nothing_that_it_synced() {
    let kills = std::env::var("LANEFS_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(24);
    let dir = tempfile::tempdir().unwrap();
    let (image, program) = (dir.path().join("ledger.lane"), compile(&example("ledger"), true));
    let mut acknowledged: Vec<u64> = Vec::new();
    for kill in 0..kills {
        let next = acknowledged.last().map_or(0, |n| n + 1);
        let mut child =
            Command::new(&program).arg(&image).arg(next.to_string()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let before = acknowledged.len();
        for line in lines.take(1 + kill * 7 % 61) {
            acknowledged.push(line.unwrap().parse().unwrap());
        }
        child.kill().unwrap();
        let ended = child.wait().unwrap();
        assert!(!ended.success() && acknowledged.len() > before, "kill {kill}: it ended by itself, {ended}");
        // Recovery, then the tree, then the ledger: a record that was begun may be there, or not.
        let options = MountOptions { cache_size: 16 << 20, ..Default::default() };
        let opened = Volume::open(&[&image], &options).unwrap();
        let (fs, last) = (opened.fs(), *acknowledged.last().unwrap());
        let log = fs.read_to_string("log").unwrap();
        let mut lines = log.lines().map(|l| l.strip_prefix("record ").unwrap().parse::<u64>().unwrap());
        for n in &acknowledged {
            assert!(lines.any(|l| l == *n), "kill {kill}: {n} is not in the log, or not in its place");
        }
        for n in last.saturating_sub(NAMES - 1)..=last {
            let found = fs.read_to_string(format!("record-{}", n % NAMES)).unwrap();
            let newer = format!("record {}\n", n + NAMES);
            assert!(found == format!("record {n}\n") || found == newer, "kill {kill}: {n} is {found:?}");
        }
        opened.close().unwrap();
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(&image, true).unwrap());
        assert!(check(vec![device], &Default::default(), &|_| {}).unwrap().is_clean(), "kill {kill}");
    }
}
