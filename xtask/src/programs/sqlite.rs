//! SQLite under a transaction load from two processes, and its own integrity check.

use super::{Place, child};
use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

pub fn wal(place: &Place) -> Result<String, String> {
    load(place, "wal")
}

pub fn journal(place: &Place) -> Result<String, String> {
    load(place, "delete")
}

/// Many transactions from two processes at once: inserts, updates, and removals that cancel out.
fn load(place: &Place, mode: &str) -> Result<String, String> {
    let database = place.dir.join("test.db");
    let transactions = place.amount(4000, 300);
    let sql = |script: &str| {
        let file = place.outside.join("script.sql");
        std::fs::write(&file, script).map_err(|e| e.to_string())?;
        let mut c = Command::new("sqlite3");
        c.arg("-bail").arg(&database).arg(format!(".read {}", file.display()));
        place.run(&mut c)
    };
    let made = sql(&format!(
        "PRAGMA page_size=4096; PRAGMA journal_mode={mode};
         CREATE TABLE t(id INTEGER PRIMARY KEY, writer INT, body BLOB, sum INT);
         CREATE INDEX t_sum ON t(sum); CREATE TABLE counts(writer INT PRIMARY KEY, n INT);
         INSERT INTO counts VALUES (0, 0), (1, 0);"
    ))?;
    if made.trim() != mode {
        return Err(format!("journal mode is {}, not {mode}", made.trim()));
    }
    let script = |writer: u64| {
        let mut s = String::from(".timeout 60000\nPRAGMA synchronous=FULL;\nPRAGMA cache_size=100;\n");
        for i in 0..transactions {
            // A String takes all that is written to it.
            let _ = writeln!(
                s,
                "BEGIN IMMEDIATE; INSERT INTO t(writer, body, sum) VALUES ({writer}, randomblob({}), {i}), \
                 ({writer}, randomblob(40), {i}); DELETE FROM t WHERE id = (SELECT min(id) FROM t WHERE writer = {writer}); \
                 UPDATE counts SET n = n + 1 WHERE writer = {writer}; {};",
                20 + i * 37 % 3000,
                if i % 10 == 9 { "ROLLBACK" } else { "COMMIT" },
            );
        }
        s
    };
    let scratch = place.outside.join("second");
    std::fs::create_dir_all(&scratch).map_err(|e| e.to_string())?;
    let second = scratch.join("script.sql");
    std::fs::write(&second, script(1)).map_err(|e| e.to_string())?;
    std::thread::scope(|s| {
        let other = s.spawn(|| {
            let mut c = Command::new("sqlite3");
            c.arg("-bail").arg(&database).arg(format!(".read {}", second.display()));
            child::succeed(&mut c, &scratch, Duration::from_secs(place.amount(1200, 300)))
        });
        let first = sql(&script(0));
        let other = other.join().unwrap_or_else(|_| Err("the second writer panicked".into()));
        first.and(other)
    })?;
    let answer =
        sql("PRAGMA integrity_check; SELECT n FROM counts ORDER BY writer; SELECT count(*) FROM t;")?;
    // Of ten transactions nine stay, each with one row more.
    let stay = transactions - transactions / 10;
    let expected = format!("ok\n{stay}\n{stay}\n{}\n", 2 * stay);
    if answer != expected {
        return Err(format!("integrity check and counts say {answer:?}, expected {expected:?}"));
    }
    Ok(format!("2 writers, {transactions} transactions each; integrity_check ok"))
}
