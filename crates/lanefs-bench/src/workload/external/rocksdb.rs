//! rocksdb: RocksDB's `db_bench overwrite` with 8 KiB values (Max, table 4 and section 5.2): four
//! clients in one database, and as many threads that flush and compact as there are workers, on as
//! many processors. One operation of ours is one run of the program over all keys in random order;
//! the rate is `db_bench`'s own operations by the time of the whole run, opening and closing
//! included.

use crate::error::{Context, Failure, Op, Res};
use crate::target::Target;
use crate::workload::{Cx, Info, Workload};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The workload's name and description.
pub const INFO: Info =
    Info { name: "rocksdb", about: "RocksDB: db_bench overwrite, values of 8 KiB", unit: "values" };

/// Keys of the database.
const KEYS: u64 = 20_000;
/// Threads that put keys.
const CLIENTS: u64 = 4;

/// The one worker.
pub struct Rocksdb {
    place: PathBuf,
    /// Keys that each client puts in a run.
    puts: u64,
    jobs: usize,
    turn: u64,
}

impl Rocksdb {
    /// Runs `what`: `clients` threads, of which each puts `puts` keys.
    fn bench(&self, what: &str, clients: u64, puts: u64, existing: bool) -> Res<()> {
        let out = Command::new("db_bench")
            .arg(format!("--db={}", self.place.display()))
            .arg(format!("--benchmarks={what}"))
            .arg(format!("--use_existing_db={existing}"))
            .arg(format!("--threads={clients}"))
            .arg(format!("--num={}", self.puts * CLIENTS))
            .arg(format!("--writes={puts}"))
            .arg(format!("--max_background_jobs={}", self.jobs))
            .arg(format!("--seed={}", self.turn + 1))
            .args(["--value_size=8192", "--compression_type=none"])
            .stdin(Stdio::null())
            .output()
            .at("running db_bench (Debian: rocksdb-tools)")?;
        let told = String::from_utf8_lossy(&out.stdout);
        let count = format!("{} operations;", clients * puts);
        if out.status.success() && told.lines().any(|l| l.contains(what) && l.contains(&count)) {
            return Ok(());
        }
        Err(Failure::new(format!("db_bench {what}: {} {}", out.status, String::from_utf8_lossy(&out.stderr))))
    }
}

impl<T: Target> Workload<T> for Rocksdb {
    const ALONE: bool = true;

    fn prepare(cx: &Cx<'_, T>, _: usize) -> Res<Self> {
        let Some(place) = cx.target.place() else {
            return Err(Failure::new("db_bench is a program: it runs on mounted file systems only"));
        };
        let puts = cx.params.scaled(KEYS / CLIENTS, 125);
        let worker = Rocksdb { place: place.join("db"), puts, jobs: cx.workers, turn: 0 };
        worker.bench("fillseq", 1, puts * CLIENTS, false)?;
        Ok(worker)
    }

    fn operate(&mut self, _: &T) -> Op<u32> {
        self.turn += 1;
        match self.bench("overwrite", CLIENTS, self.puts, true) {
            Ok(()) => Ok((self.puts * CLIENTS) as u32),
            Err(e) => {
                eprintln!("{e}");
                Err(crate::Errno(libc::EIO))
            }
        }
    }
}
