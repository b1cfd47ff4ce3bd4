//! rocksdb: RocksDB's `db_bench overwrite` with 8 KiB values (Max, section 6.3), a database for each worker. One operation of ours is one run of the
//! program over all keys in random order; the rate is `db_bench`'s own operations by the time of the whole run, opening and closing included.

use crate::error::{Context, Failure, Op, Res};
use crate::target::Target;
use crate::workload::{Cx, Info, Workload};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What it is.
pub const INFO: Info =
    Info { name: "rocksdb", about: "RocksDB: db_bench overwrite, values of 8 KiB", unit: "values" };

/// Keys of a database.
const KEYS: u64 = 20_000;

/// One worker.
pub struct Rocksdb {
    place: PathBuf,
    keys: u64,
    turn: u64,
}

impl Rocksdb {
    fn bench(&self, what: &str, existing: bool) -> Res<()> {
        let out = Command::new("db_bench")
            .arg(format!("--db={}", self.place.display()))
            .arg(format!("--benchmarks={what}"))
            .arg(format!("--use_existing_db={existing}"))
            .arg(format!("--num={}", self.keys))
            .arg(format!("--seed={}", self.turn + 1))
            .args(["--value_size=8192", "--threads=1", "--compression_type=none"])
            .stdin(Stdio::null())
            .output()
            .at("running db_bench (Debian: rocksdb-tools)")?;
        let told = String::from_utf8_lossy(&out.stdout);
        let count = format!("{} operations;", self.keys);
        if out.status.success() && told.lines().any(|l| l.contains(what) && l.contains(&count)) {
            return Ok(());
        }
        Err(Failure::new(format!("db_bench {what}: {} {}", out.status, String::from_utf8_lossy(&out.stderr))))
    }
}

impl<T: Target> Workload<T> for Rocksdb {
    fn prepare(cx: &Cx<'_, T>, id: usize) -> Res<Self> {
        let Some(place) = cx.target.place() else {
            return Err(Failure::new("db_bench is a program: it runs on mounted file systems only"));
        };
        let worker =
            Rocksdb { place: place.join(format!("db{id}")), keys: cx.params.scaled(KEYS, 500), turn: 0 };
        worker.bench("fillseq", false)?;
        Ok(worker)
    }

    fn operate(&mut self, _: &T) -> Op<u32> {
        self.turn += 1;
        match self.bench("overwrite", true) {
            Ok(()) => Ok(self.keys as u32),
            Err(e) => {
                eprintln!("{e}");
                Err(crate::Errno(libc::EIO))
            }
        }
    }
}
