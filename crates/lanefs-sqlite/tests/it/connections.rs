//! Connections of one process: journals, locks, several databases, a volume that the program lends.

use crate::linked::{make_known, open, open_in, value};
use lanefs::Volume;
use rusqlite::{Connection, ErrorCode, TransactionBehavior};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A volume in memory, lent by a name of its own.
struct Lent {
    name: String,
    volume: Volume,
}

impl Lent {
    fn new() -> Lent {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("lent-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let volume = Volume::in_memory(64 << 20).unwrap();
        assert!(lanefs_sqlite::register(&name, &volume));
        make_known();
        Lent { name, volume }
    }

    fn open(&self, file: &str) -> Connection {
        open(&format!("{file}?volume={}", self.name)).unwrap()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // Not if the test has failed with a database open.
        assert!(lanefs_sqlite::unregister(&self.name) || std::thread::panicking());
    }
}

fn code(e: &rusqlite::Error) -> Option<ErrorCode> {
    e.sqlite_error_code()
}

const MODES: [&str; 5] = ["wal", "delete", "truncate", "persist", "memory"];

#[test]
fn every_kind_of_journal_commits_and_rolls_back() {
    let lent = Lent::new();
    for mode in MODES {
        let c = lent.open(&format!("{mode}.db"));
        assert_eq!(value(&c, &format!("PRAGMA journal_mode={mode}")), mode);
        c.execute_batch("CREATE TABLE t(id INTEGER PRIMARY KEY, body BLOB)").unwrap();
        // A small cache: pages are written before the commit, and a rollback reads the journal.
        c.execute_batch("PRAGMA cache_size=10; PRAGMA synchronous=FULL").unwrap();
        for i in 0..40 {
            let end = if i % 4 == 3 { "ROLLBACK" } else { "COMMIT" };
            let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 30) \
                        INSERT INTO t(body) SELECT randomblob(2000) FROM n";
            c.execute_batch(&format!("BEGIN; {fill}; {end}")).unwrap();
        }
        assert_eq!(value(&c, "SELECT count(*) FROM t"), "900", "{mode}");
        assert_eq!(value(&c, "PRAGMA integrity_check"), "ok", "{mode}");
        drop(c);
        let c = lent.open(&format!("{mode}.db"));
        assert_eq!(value(&c, "SELECT count(*) FROM t"), "900", "{mode}");
        c.execute_batch("VACUUM").unwrap();
        assert_eq!(value(&c, "PRAGMA integrity_check"), "ok", "{mode}");
    }
    // What SQLite removes when the last connection closes is gone.
    let left: Vec<_> = lent.volume.fs().read_dir("/").unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!left.iter().any(|n| n.to_string_lossy().ends_with("-wal")), "{left:?}");
}

#[test]
fn who_writes_keeps_others_out_and_readers_are_let_finish() {
    let lent = Lent::new();
    let (a, b) = (lent.open("app.db"), lent.open("app.db"));
    for c in [&a, &b] {
        c.busy_timeout(Duration::ZERO).unwrap();
    }
    a.execute_batch("PRAGMA journal_mode=delete; CREATE TABLE t(x); INSERT INTO t VALUES (1)").unwrap();
    a.execute_batch("BEGIN IMMEDIATE; INSERT INTO t VALUES (2)").unwrap();
    assert_eq!(value(&b, "SELECT count(*) FROM t"), "1", "a reader is let in until the commit");
    let busy = b.execute_batch("BEGIN IMMEDIATE").unwrap_err();
    assert_eq!(code(&busy), Some(ErrorCode::DatabaseBusy));
    // A reader holds up the commit, which can be tried again.
    b.execute_batch("BEGIN; SELECT * FROM t").unwrap();
    assert_eq!(code(&a.execute_batch("COMMIT").unwrap_err()), Some(ErrorCode::DatabaseBusy));
    let third = lent.open("app.db");
    third.busy_timeout(Duration::ZERO).unwrap();
    assert!(third.query_row("SELECT count(*) FROM t", [], |_| Ok(())).is_err(), "no new ones meanwhile");
    b.execute_batch("COMMIT").unwrap();
    a.execute_batch("COMMIT").unwrap();
    assert_eq!(value(&third, "SELECT count(*) FROM t"), "2");
    // By another name of the file, too.
    lent.volume.fs().link("app.db", "other-name.db").unwrap();
    a.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let d = lent.open("other-name.db");
    d.busy_timeout(Duration::ZERO).unwrap();
    assert!(d.query_row("SELECT count(*) FROM t", [], |_| Ok(())).is_err());
    a.execute_batch("COMMIT").unwrap();
}

#[test]
fn in_wal_mode_readers_keep_their_snapshot_while_others_write() {
    let lent = Lent::new();
    let (a, b) = (lent.open("app.db"), lent.open("app.db"));
    assert_eq!(value(&a, "PRAGMA journal_mode=wal"), "wal");
    a.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1)").unwrap();
    b.execute_batch("BEGIN").unwrap();
    assert_eq!(value(&b, "SELECT count(*) FROM t"), "1");
    a.execute_batch("INSERT INTO t VALUES (2)").unwrap();
    assert_eq!(value(&b, "SELECT count(*) FROM t"), "1");
    assert_eq!(value(&a, "PRAGMA wal_checkpoint(TRUNCATE)"), "1", "busy: a reader needs the log");
    b.execute_batch("COMMIT").unwrap();
    assert_eq!(value(&b, "SELECT count(*) FROM t"), "2");
    assert_eq!(value(&a, "PRAGMA wal_checkpoint(TRUNCATE)"), "0");
    assert_eq!(lent.volume.fs().stat("app.db-wal").unwrap().size, 0);
}

#[test]
fn threads_with_a_connection_each_lose_no_transaction() {
    let lent = Lent::new();
    for mode in ["wal", "delete"] {
        let name = format!("{mode}.db");
        let c = lent.open(&name);
        assert_eq!(value(&c, &format!("PRAGMA journal_mode={mode}")), mode);
        c.execute_batch("CREATE TABLE n(v INTEGER); INSERT INTO n VALUES (0)").unwrap();
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    let mut c = lent.open(&name);
                    c.busy_timeout(Duration::from_secs(60)).unwrap();
                    for _ in 0..50 {
                        let t = c.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
                        let v: i64 = t.query_row("SELECT v FROM n", [], |r| r.get(0)).unwrap();
                        t.execute("UPDATE n SET v = ?1", [v + 1]).unwrap();
                        t.commit().unwrap();
                    }
                });
            }
        });
        assert_eq!(value(&c, "SELECT v FROM n"), "200", "{mode}");
        assert_eq!(value(&c, "PRAGMA integrity_check"), "ok");
    }
}

/// A transaction over two databases has a journal of its own beside theirs.
#[test]
fn a_transaction_over_two_databases_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.lane");
    let c = open_in(&image, "a.db");
    // No volume is named: the databases of a connection are in the same one.
    c.execute_batch("ATTACH 'sub/b.db' AS b").unwrap_err();
    c.execute_batch(&format!("ATTACH '{}:/b.db' AS b", image.canonicalize().unwrap().display())).unwrap();
    c.execute_batch("CREATE TABLE t(x); CREATE TABLE b.u(x)").unwrap();
    c.execute_batch("BEGIN; INSERT INTO t VALUES (1); INSERT INTO u VALUES (2); COMMIT").unwrap();
    assert_eq!(value(&c, "SELECT t.x + u.x FROM t, u"), "3");
    c.execute_batch("VACUUM INTO 'copy.db'").ok();
    drop(c);
    // With the last connection the volume was closed: it can be opened.
    let volume = Volume::open(&[&image], &Default::default()).unwrap();
    let names: Vec<_> = volume.fs().read_dir("/").unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(names.iter().any(|n| n == "b.db") && !names.iter().any(|n| n.to_string_lossy().contains("-")));
    volume.close().unwrap();
}

#[test]
fn what_cannot_be_is_refused_and_nothing_is_left_open() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.lane");
    let shown = image.display();
    for name in [
        format!("a.db?volume={shown}"),
        format!("a.db?volume={shown}&size=many"),
        format!("a.db?volume={shown}&size=64M&order=sideways"),
        "a.db?volume=/no/such/place.lane&size=64M".to_string(),
    ] {
        let e = open(&name).unwrap_err();
        assert_eq!(code(&e), Some(ErrorCode::CannotOpen), "{name}");
        let _ = std::fs::remove_file(&image);
    }
    drop(open_in(&image, "a.db"));
    // A directory that is not there, a directory in place of a file.
    assert!(open(&format!("no/a.db?volume={shown}")).is_err());
    let c = open(&format!("a.db?volume={shown}&mode=ro")).unwrap();
    assert!(c.execute_batch("CREATE TABLE t(x)").is_err());
    drop(c);
    let c = open(&format!("a.db?volume={shown}&ro=1&mode=ro")).unwrap();
    assert!(c.execute_batch("CREATE TABLE t(x)").is_err());
    drop(c);
    Volume::open(&[&image], &Default::default()).unwrap().close().unwrap();
}

/// A full volume is told as such, and the database stays whole.
#[test]
fn a_full_volume_is_told_and_harms_nothing() {
    let volume = Volume::in_memory(8 << 20).unwrap();
    assert!(lanefs_sqlite::register("small", &volume));
    for mode in ["wal", "delete"] {
        let c = open(&format!("{mode}.db?volume=small")).unwrap();
        value(&c, &format!("PRAGMA journal_mode={mode}"));
        c.execute_batch("CREATE TABLE t(x)").unwrap();
        let full =
            (0..10_000).find_map(|_| c.execute_batch("INSERT INTO t VALUES (randomblob(50000))").err());
        assert_eq!(code(&full.unwrap()), Some(ErrorCode::DiskFull), "{mode}");
        assert_eq!(value(&c, "PRAGMA integrity_check"), "ok");
        drop(c);
        volume.fs().unlink(format!("{mode}.db")).unwrap();
        let _ = volume.fs().unlink(format!("{mode}.db-wal"));
    }
    assert!(lanefs_sqlite::unregister("small"));
}
