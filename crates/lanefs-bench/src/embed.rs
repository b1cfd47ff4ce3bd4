//! `lanefs bench embed`: engines that keep their files on a LaneFS volume in their own process,
//! beside the same engines on file systems of the kernel, as their users run them.
//!
//! SQLite: the stock shell `sqlite3` reads a script of transactions; on a LaneFS volume it loads
//! `lanefs_sqlite.so` (docs/SQLITE.md) first. The time is SQLite's own clock around the
//! transactions, so neither the start of the shell nor opening a volume is in it. Peers take turns.
//!
//! Python: embed/python.rs. RocksDB: embed/rocksdb.rs.

mod python;
mod rocksdb;

use crate::compare::{Ground, Medium, Peer, Place, Skipped, Undo};
use crate::error::{Context, Failure, Res, say};
use crate::machine::Machine;
use crate::matrix::{command_line, now};
use crate::results::median;
use crate::units::{human, parse_size};
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Arguments of `embed`.
#[derive(Debug, clap::Args)]
pub struct EmbedArgs {
    /// What the peers' devices are made of.
    #[arg(long, value_enum, default_value = "mem")]
    pub medium: Medium,
    /// Who takes part.
    #[arg(long, value_delimiter = ',', default_value = "tmpfs,ext4,xfs,lanefs,lanefs-mount")]
    pub peers: Vec<String>,
    /// The engines that run.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "sqlite,python,rocksdb")]
    pub engines: Vec<Engine>,
    /// Transactions of each of SQLite's loads, and synced writes of RocksDB's.
    #[arg(long, default_value_t = 4000)]
    pub transactions: u32,
    /// Files of each of Python's loads.
    #[arg(long, default_value_t = 100_000)]
    pub files: u32,
    /// What RocksDB's clients put in all.
    #[arg(long, default_value = "4G", value_name = "SIZE")]
    pub written: String,
    /// How often each load runs on each peer; the median counts.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Size of each peer's device.
    #[arg(long, default_value = "3G", value_name = "SIZE")]
    pub size: String,
    /// Where images are made with `--medium disk`.
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    pub images: PathBuf,
    /// The `lanefs` command, for the mount [default: beside this program].
    #[arg(long, value_name = "PROGRAM")]
    pub lanefs: Option<PathBuf>,
    /// SQLite's extension [default: liblanefs_sqlite.so beside this program].
    #[arg(long, value_name = "FILE")]
    pub extension: Option<PathBuf>,
    /// The interpreter that has the module `lanefs`.
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    pub python: PathBuf,
    /// RocksDB's library [default: librocksdb_lanefs.so beside this program].
    #[arg(long, value_name = "FILE")]
    pub plugin: Option<PathBuf>,
    /// Write the results here.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// An engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Engine {
    /// Transactions of its shell.
    Sqlite,
    /// Files that its programs make.
    Python,
    /// Its `db_bench`.
    Rocksdb,
}

/// A load.
struct Load {
    name: &'static str,
    /// The mode of SQLite's journal, and how it syncs.
    journal: &'static str,
    synchronous: &'static str,
}

const LOADS: &[Load] = &[
    Load { name: "sqlite-wal", journal: "wal", synchronous: "FULL" },
    Load { name: "sqlite-rollback", journal: "delete", synchronous: "FULL" },
    Load { name: "sqlite-wal-normal", journal: "wal", synchronous: "NORMAL" },
];

/// The place where a peer's database is made.
enum Home {
    Dir(PathBuf),
    Image(PathBuf),
}

/// A row of the results.
#[derive(Debug, Serialize)]
struct Row {
    load: String,
    peer: String,
    /// Or files, or operations.
    transactions: u64,
    /// Of each round.
    seconds: Vec<f64>,
    /// Processor time of each round; RocksDB's is that of everybody who works for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    processor_seconds: Vec<f64>,
    /// Transactions a second, by the median.
    rate: f64,
}

/// The file of results.
#[derive(Debug, Serialize)]
struct Results {
    format: u32,
    command: String,
    started: u64,
    medium: String,
    machine: Machine,
    rows: Vec<Row>,
}

/// Does it all and returns the exit status.
pub fn run(args: &EmbedArgs) -> Res<i32> {
    let peers = args.peers.iter().map(|p| Peer::parse(p)).collect::<Res<Vec<_>>>()?;
    if args.rounds == 0 || args.transactions == 0 {
        return Err(Failure::new("no rounds or no transactions: nothing would be measured"));
    }
    if peers.iter().any(|p| p.mounts()) && !rustix::process::geteuid().is_root() {
        return Err(Failure::new("making and mounting file systems takes root; without it: --peers lanefs"));
    }
    if args.engines.contains(&Engine::Rocksdb) {
        rocksdb::check(args, peers.contains(&Peer::Lanefs))?;
    }
    let mut undo = Undo::new()?;
    let outcome = embed(args, &peers, &mut undo);
    let complaints = undo.all();
    for complaint in &complaints {
        eprintln!("lanefs-bench: {complaint}");
    }
    match outcome {
        Err(e) if e.interrupted => Ok(130),
        Ok(()) => Ok(if complaints.is_empty() { 0 } else { 2 }),
        Err(e) => Err(e),
    }
}

/// Makes the peers, runs the loads and prints the table.
fn embed(args: &EmbedArgs, peers: &[Peer], undo: &mut Undo) -> Res<()> {
    let mut ground = Ground::new(
        &Place { medium: args.medium, images: &args.images, size: parse_size(&args.size)? },
        args.lanefs.clone(),
        peers.iter().any(|p| p.mounts()),
        undo,
    )?;
    ground.zeroed = args.medium == Medium::Disk;
    ground.written = args.medium == Medium::Mem && args.engines.contains(&Engine::Rocksdb);
    let mut machine = Machine::here();
    machine.note_version("sqlite3", "--version");
    machine.note_version("db_bench", "--version");
    let mut homes: Vec<(String, Home)> = Vec::new();
    for &peer in peers {
        let name = peer.name().to_string();
        if peer == Peer::Lanefs {
            let image = ground.lanefs_image(&name, undo)?;
            ground.write_once(&image)?;
            homes.push((name, Home::Image(image)));
            continue;
        }
        match ground.make(peer, undo)? {
            Ok(named) => homes.push((named.name.clone(), Home::Dir(ground.base.join(named.name)))),
            Err(Skipped(why)) => say(format_args!("skipped {why}"))?,
        }
    }
    let mut rows = Vec::new();
    if args.engines.contains(&Engine::Sqlite) {
        let script = ground.base.join("script.sql");
        undo.file(&script)?;
        rows = sqlite_rows(args, &homes, &script)?;
    }
    if args.engines.contains(&Engine::Python) {
        let script = ground.base.join("create.py");
        undo.file(&script)?;
        rows.extend(python::rows(args, &homes, &script)?);
    }
    if args.engines.contains(&Engine::Rocksdb) {
        rows.extend(rocksdb::rows(args, &homes)?);
    }
    print(&rows)?;
    if let Some(path) = &args.json {
        let results = Results {
            format: 1,
            command: command_line(),
            started: now(),
            medium: format!("{:?}", args.medium).to_lowercase(),
            machine,
            rows,
        };
        std::fs::write(path, serde_json::to_vec_pretty(&results).at(path.display())?).at(path.display())?;
    }
    Ok(())
}

/// Runs SQLite's loads on all peers, by turns.
fn sqlite_rows(args: &EmbedArgs, homes: &[(String, Home)], script: &Path) -> Res<Vec<Row>> {
    let mut rows = Vec::new();
    for load in LOADS {
        let mut seconds = vec![Vec::new(); homes.len()];
        for round in 0..args.rounds {
            for ((_, home), seconds) in homes.iter().zip(&mut seconds) {
                if crate::interrupt::requested() {
                    return Err(Failure::interrupted());
                }
                let database = format!("{}-{round}.db", load.name);
                std::fs::write(script, statements(args, load, home, &database)?).at(script.display())?;
                seconds.push(transactions(script)?);
            }
        }
        for ((peer, _), seconds) in homes.iter().zip(seconds) {
            let rate = f64::from(args.transactions) / median(&seconds);
            rows.push(Row {
                load: load.name.to_string(),
                peer: peer.clone(),
                transactions: args.transactions.into(),
                seconds,
                processor_seconds: Vec::new(),
                rate,
            });
        }
    }
    Ok(rows)
}

/// Returns the script of a load.
fn statements(args: &EmbedArgs, load: &Load, home: &Home, database: &str) -> Res<String> {
    let mut s = String::from(".bail on\n");
    // A String takes all that is written to it.
    let _ = match home {
        Home::Dir(dir) => writeln!(s, ".open {}", dir.join(database).display()),
        Home::Image(image) => {
            let extension = extension(args)?;
            let _ = writeln!(s, ".load {}", extension.with_extension("").display());
            writeln!(s, ".open 'file:{database}?vfs=lanefs&volume={}'", image.display())
        }
    };
    const CLOCK: &str = "SELECT 'at ' || CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER);";
    let _ = writeln!(
        s,
        "PRAGMA journal_mode={}; PRAGMA synchronous={};\n\
         CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, body BLOB); CREATE INDEX t_k ON t(k);\n{CLOCK}",
        load.journal, load.synchronous
    );
    for i in 1..=args.transactions {
        let _ = writeln!(
            s,
            "BEGIN; INSERT INTO t VALUES ({i}, {}, randomblob(200)); UPDATE t SET body = randomblob(200) WHERE id = {}; COMMIT;",
            u64::from(i) * 7919 % u64::from(args.transactions),
            i / 2 + 1
        );
    }
    let _ = writeln!(s, "{CLOCK}\nSELECT 'rows ' || count(*) FROM t; PRAGMA integrity_check;");
    Ok(s)
}

/// Returns SQLite's extension.
fn extension(args: &EmbedArgs) -> Res<PathBuf> {
    let beside = || Some(std::env::current_exe().ok()?.parent()?.join("liblanefs_sqlite.so"));
    let path = args.extension.clone().or_else(beside).unwrap_or_default();
    if path.is_file() {
        return Ok(path);
    }
    Err(Failure::new(format!(
        "{}: there is none: `cargo build --release -p lanefs-sqlite` makes it, --extension says where it is",
        path.display()
    )))
}

/// Has the shell read a script; returns the seconds between its two clocks.
fn transactions(script: &Path) -> Res<f64> {
    let mut shell = Command::new("sqlite3");
    shell.args(["-batch", ":memory:"]).arg(format!(".read {}", script.display()));
    let out = shell.output().at("running sqlite3, of the package of that name")?;
    let text = String::from_utf8_lossy(&out.stdout);
    let told = || format!("sqlite3: {}{text}", String::from_utf8_lossy(&out.stderr));
    if !out.status.success() || !text.lines().any(|l| l == "ok") {
        return Err(Failure::new(told()));
    }
    let clocks: Vec<f64> = text.lines().filter_map(|l| l.strip_prefix("at ")?.parse().ok()).collect();
    match clocks[..] {
        [begun, ended] if ended > begun => Ok((ended - begun) / 1000.0),
        _ => Err(Failure::new(format!("{}: too few transactions to be timed", told()))),
    }
}

/// Prints the rates, and what they are of ext4's; where it was measured the processor time per
/// operation, too.
fn print(rows: &[Row]) -> Res<()> {
    say(format_args!(
        "{:<28} {:<14} {:>14} {:>8} {:>14} {:>8}",
        "load", "peer", "a second", "of ext4", "processor us", "of ext4"
    ))?;
    let processor = |r: &Row| match r.processor_seconds.is_empty() {
        true => None,
        false => Some(median(&r.processor_seconds) / r.transactions.max(1) as f64 * 1e6),
    };
    for row in rows {
        let ext4 = rows.iter().find(|r| r.load == row.load && r.peer == "ext4");
        let or_dash = |n: Option<f64>| n.map_or("-".to_string(), |n| format!("{n:.2}"));
        say(format_args!(
            "{:<28} {:<14} {:>14} {:>8} {:>14} {:>8}",
            row.load,
            row.peer,
            human(row.rate),
            or_dash(ext4.map(|e| row.rate / e.rate)),
            or_dash(processor(row)),
            or_dash(ext4.and_then(|e| Some(processor(row)? / processor(e)?)))
        ))?;
    }
    Ok(())
}
