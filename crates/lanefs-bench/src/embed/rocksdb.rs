//! RocksDB: the stock `db_bench` (8 KiB values, no compression), on a LaneFS volume by
//! `librocksdb_lanefs.so` (docs/ROCKSDB.md). The rate is its own, and holds neither the filling
//! before nor the closing behind; the processor time is that of the whole program, of the kernel's
//! threads meanwhile, and of a mount's server.

use super::{EmbedArgs, Home, Row};
use crate::error::{Context, Failure, Res, say};
use crate::processors::{Helpers, Meter, children};
use crate::results::median;
use crate::units::parse_size;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of a value.
const VALUE: u64 = 8192;
/// Keys of the database, where as many values are put at least.
const KEYS: u64 = 20_000;
/// Threads that put or get.
const CLIENTS: u64 = 4;
/// Threads that flush and compact.
const JOBS: [u32; 2] = [1, 2];

/// A load, on a database that is made for it.
struct Load {
    /// The benchmark whose rate counts.
    name: &'static str,
    /// What runs before it, in the same process: what is read is in the file system's cache then.
    before: &'static str,
}

const LOADS: &[Load] = &[
    Load { name: "overwrite", before: "fillseq," },
    Load { name: "readrandom", before: "fillseq,waitforcompaction,readseq," },
    Load { name: "readwhilewriting", before: "fillseq,waitforcompaction,readseq," },
    Load { name: "fillsync", before: "" },
];

/// Runs all loads on all peers, by turns.
pub(super) fn rows(args: &EmbedArgs, homes: &[(String, Home)]) -> Res<Vec<Row>> {
    let mut rows = Vec::new();
    for jobs in JOBS {
        // One measurement for each load and home, in each round.
        let mut all = vec![Vec::new(); LOADS.len() * homes.len()];
        for _ in 0..args.rounds {
            for (home, (peer, place)) in homes.iter().enumerate() {
                for (n, load) in LOADS.iter().enumerate() {
                    if crate::interrupt::requested() {
                        return Err(Failure::interrupted());
                    }
                    let bench = Bench { args, place, jobs, load };
                    let told = bench.run().map_err(|e| Failure::new(format!("{peer}: {}", e.message)))?;
                    all[n * homes.len() + home].push(told);
                }
            }
        }
        for (measured, n) in all.chunks(homes.len()).zip(LOADS) {
            for ((peer, _), of_peer) in homes.iter().zip(measured) {
                rows.push(row(format!("rocksdb-{}-{jobs}", n.name), peer, of_peer));
            }
        }
    }
    Ok(rows)
}

/// One measurement.
#[derive(Clone, Copy)]
struct Told {
    operations: u64,
    seconds: f64,
    processor: f64,
}

/// Returns the row of a load on a peer.
fn row(load: String, peer: &str, rounds: &[Told]) -> Row {
    let seconds: Vec<f64> = rounds.iter().map(|t| t.seconds).collect();
    let operations = rounds.first().map_or(0, |t| t.operations);
    Row {
        load,
        peer: peer.to_string(),
        transactions: operations,
        rate: operations as f64 / median(&seconds),
        seconds,
        processor_seconds: rounds.iter().map(|t| t.processor).collect(),
    }
}

/// A run of `db_bench`.
struct Bench<'a> {
    args: &'a EmbedArgs,
    place: &'a Home,
    jobs: u32,
    load: &'a Load,
}

impl Bench<'_> {
    fn command(&self) -> Res<Command> {
        let mut bench = Command::new("db_bench");
        match self.place {
            Home::Dir(dir) => drop(bench.arg(format!("--db={}", dir.join("rocksdb").display()))),
            Home::Image(image) => {
                bench.env("LD_PRELOAD", plugin(self.args)?);
                bench.arg(format!("--fs_uri=lanefs://{}", image.display())).arg("--db=/rocksdb");
            }
        }
        let written = parse_size(&self.args.written)?;
        let (threads, each) = match self.load.name {
            "overwrite" => (CLIENTS, written / VALUE / CLIENTS),
            "fillsync" => (1, u64::from(self.args.transactions)),
            _ => (CLIENTS, written / VALUE / CLIENTS / 2),
        };
        bench
            .arg(format!("--benchmarks={}{}", self.load.before, self.load.name))
            .arg(format!(
                "--num={}",
                if self.load.name == "fillsync" { each } else { KEYS.min(written / VALUE) }
            ))
            .arg(format!("--writes={each}"))
            .arg(format!("--reads={each}"))
            .arg(format!("--threads={threads}"))
            .arg(format!("--max_background_jobs={}", self.jobs))
            .arg(format!("--value_size={VALUE}"))
            .args(["--compression_type=none", "--seed=1"]);
        Ok(bench)
    }

    /// Runs it and returns what it tells.
    fn run(&self) -> Res<Told> {
        let mut bench = self.command()?;
        let helpers = Helpers::of_mount(match self.place {
            Home::Dir(path) | Home::Image(path) => path,
        });
        let mut meter = Meter::new(&helpers, 0, false);
        meter.prepare();
        meter.begin();
        let before = children();
        let out = bench.output().at("running db_bench (Debian: rocksdb-tools)")?;
        let processor = meter.seconds() + (children() - before);
        let text = String::from_utf8_lossy(&out.stdout);
        let told = out.status.success().then(|| result(&text, self.load.name)).flatten();
        let (operations, seconds) = told.ok_or_else(|| {
            let words = String::from_utf8_lossy(&out.stderr);
            let words = words.rsplit('\r').next().unwrap_or_default();
            Failure::new(format!("db_bench {}: {} {words}{text}", self.load.name, out.status))
        })?;
        Ok(Told { operations, seconds, processor })
    }
}

/// Returns the operations and the seconds of a benchmark, of a line like
/// `overwrite    :      96.076 micros/op 39977 ops/sec 13.114 seconds 524288 operations;  312.9 MB/s`.
fn result(told: &str, name: &str) -> Option<(u64, f64)> {
    let line = told.lines().find(|l| l.split(':').next().is_some_and(|n| n.trim() == name))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let before =
        |unit: &str| words.iter().position(|w| *w == unit).and_then(|at| words.get(at.checked_sub(1)?));
    // The seconds have three digits behind the point: a quick run takes none.
    let (operations, rate): (u64, f64) =
        (before("operations;")?.parse().ok()?, before("ops/sec")?.parse().ok()?);
    (operations > 0 && rate > 0.0).then(|| (operations, operations as f64 / rate))
}

/// Returns the library that RocksDB's programs are run with.
fn plugin(args: &EmbedArgs) -> Res<PathBuf> {
    let beside = || Some(std::env::current_exe().ok()?.parent()?.join("librocksdb_lanefs.so"));
    let path = args.plugin.clone().or_else(beside).unwrap_or_default();
    match Path::new(&path).is_file() {
        true => path.canonicalize().at(path.display()),
        false => Err(Failure::new(format!(
            "{}: there is none: `cargo xtask rocksdb-plugin --out DIR` makes it, --plugin says where it is; or --engines sqlite",
            path.display()
        ))),
    }
}

/// Says what RocksDB's programs and library lack, before anything is made.
pub(super) fn check(args: &EmbedArgs, homes_in_process: bool) -> Res<()> {
    if homes_in_process {
        let path = plugin(args)?;
        say(format_args!("RocksDB on volumes by {}", path.display()))?;
    }
    match parse_size(&args.written)? / VALUE / CLIENTS {
        0 => Err(Failure::new("--written: less than a value for each client")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::result;

    #[test]
    fn the_line_of_a_benchmark_is_read() {
        let told = "DB path: [/db]\nfillseq      :       2.004 micros/op 498903 ops/sec 0.401 seconds 200000 operations;   55.2 MB/s\nreadrandom   :       1.908 micros/op 523879 ops/sec 0.382 seconds 200000 operations;   58.0 MB/s (200000 of 200000 found)\n";
        let rounded = |name| result(told, name).map(|(n, seconds)| (n, (seconds * 1e3).round()));
        assert_eq!(rounded("readrandom"), Some((200_000, 382.0)));
        assert_eq!(rounded("fillseq"), Some((200_000, 401.0)));
        let quick = "readrandom : 0.538 micros/op 2124481 ops/sec 0.000 seconds 1024 operations;";
        assert!(result(quick, "readrandom").is_some_and(|r| r.1 > 0.0));
        assert_eq!(result(told, "read"), None);
        assert_eq!(result("fillseq : 1 micros/op", "fillseq"), None);
    }
}
