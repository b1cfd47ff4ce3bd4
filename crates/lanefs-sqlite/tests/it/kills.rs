//! A process that commits and is killed at any moment: every transaction that it acknowledged is
//! there, and the database is whole. `LANEFS_KILLS=100` for more of them.

use crate::linked::{open_in, value};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// The process that is killed: this program, asked to run only this "test". It says the number of
/// each transaction once it is committed.
#[test]
fn committer() {
    let (Some(image), Ok(mode)) = (std::env::var_os("LANEFS_TEST_IMAGE"), std::env::var("LANEFS_TEST_MODE"))
    else {
        return;
    };
    let c = open_in(Path::new(&image), &format!("{mode}.db"));
    assert_eq!(value(&c, &format!("PRAGMA journal_mode={mode}")), mode);
    c.execute_batch(
        "PRAGMA synchronous=FULL; PRAGMA cache_size=20; PRAGMA wal_autocheckpoint=40;
         CREATE TABLE IF NOT EXISTS t(n INTEGER PRIMARY KEY, body BLOB, twice INTEGER);
         CREATE INDEX IF NOT EXISTS t_body ON t(body)",
    )
    .unwrap();
    let mut n: i64 = c.query_row("SELECT ifnull(max(n), 0) FROM t", [], |r| r.get(0)).unwrap();
    let mut out = std::io::stdout();
    loop {
        n += 1;
        let sql = format!(
            "BEGIN IMMEDIATE; INSERT INTO t VALUES ({n}, randomblob({}), {n});
             UPDATE t SET twice = twice + 1, body = randomblob(200) WHERE n > {} - 20;
             UPDATE t SET twice = twice - 1 WHERE n > {} - 20; COMMIT",
            n * 37 % 9000,
            n,
            n
        );
        c.execute_batch(&sql).unwrap();
        writeln!(out, "\ncommitted {n}").and_then(|()| out.flush()).unwrap();
    }
}

struct Committer {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Committer {
    fn start(image: &Path, mode: &str) -> Committer {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kills::committer", "--nocapture"])
            .env("LANEFS_TEST_IMAGE", image)
            .env("LANEFS_TEST_MODE", mode)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Committer { child, lines }
    }

    /// Returns the next number that it says.
    fn next(&mut self) -> Option<i64> {
        self.lines.find_map(|l| l.ok()?.strip_prefix("committed ")?.parse().ok())
    }

    /// Kills it, and returns the last number that it said, if it said one since.
    fn kill(mut self) -> Option<i64> {
        self.child.kill().unwrap();
        let mut last = None;
        while let Some(n) = self.next() {
            last = Some(n);
        }
        self.child.wait().unwrap();
        last
    }
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    let rounds = std::env::var("LANEFS_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(24);
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.lane");
    let mut random = std::process::id() as u64 | 1;
    for round in 0..rounds {
        let mode = ["wal", "delete"][round % 2];
        let mut committer = Committer::start(&image, mode);
        let first = committer.next().expect("it commits");
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let mut acknowledged = first;
        for _ in 0..random % 12 {
            acknowledged = committer.next().expect("it commits");
        }
        // Anywhere in a transaction.
        std::thread::sleep(Duration::from_micros(random % 3000));
        acknowledged = committer.kill().unwrap_or(acknowledged);

        let c = open_in(&image, &format!("{mode}.db"));
        let found: i64 = c.query_row("SELECT max(n) FROM t", [], |r| r.get(0)).unwrap();
        assert!(found >= acknowledged, "round {round}, {mode}: {acknowledged} acknowledged, {found} found");
        assert!(found <= acknowledged + 1, "round {round}, {mode}: {found} found, {acknowledged} said");
        assert_eq!(value(&c, "PRAGMA integrity_check"), "ok", "round {round}, {mode}");
        assert_eq!(
            value(&c, "SELECT count(*) - max(n) FROM t"),
            "0",
            "round {round}, {mode}: one is missing"
        );
        assert_eq!(
            value(&c, "SELECT count(*) FROM t WHERE twice <> n"),
            "0",
            "round {round}, {mode}: a part"
        );
    }
}
