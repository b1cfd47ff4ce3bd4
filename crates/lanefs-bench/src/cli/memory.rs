//! `lanefs-bench memory`: the memory that a cached empty file and a small directory take in this
//! process.
//!
//! Counted is what the allocator gives out while they are made, in a volume whose own threads are
//! off: the cell, the entry, their share of the directory's leaves and of the cell table, all of
//! them pieces of at most 1 KiB, and apart from these the buffers that hold the records in the
//! log, which go with the next commit. What the store keeps of inodes and blocks once they are
//! written is a cache with a budget of its own, and not in it.

use crate::cost::{Live, live};
use crate::error::{Context, Failure, Res, say};
use crate::target::{Memory, OpenTarget, TargetSpec};
use std::path::PathBuf;

/// Arguments of `memory`.
#[derive(Debug, clap::Args)]
pub struct MemoryArgs {
    /// Files to make, in one directory; then as many in small ones.
    #[arg(long, default_value_t = 100_000)]
    pub files: usize,
    /// Files in each small directory.
    #[arg(long, default_value_t = 4)]
    pub entries: usize,
    /// Lanes of the volume; 0 for the default.
    #[arg(long, default_value_t = 0)]
    pub lanes: usize,
    /// Write the figures here.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Returns the memory that is allocated.
fn now() -> Res<Live> {
    live().ok_or_else(|| Failure::new("only lanefs-bench counts memory, not `lanefs bench`"))
}

/// Returns the bytes for each of `n` that came between: in pieces, and in all.
fn each(before: Live, after: Live, n: usize) -> (f64, f64) {
    let each = |before: i64, after: i64| (after - before) as f64 / n as f64;
    (each(before.pieces, after.pieces), each(before.all, after.all))
}

/// Runs it and returns the exit status.
pub(super) fn run(args: &MemoryArgs) -> Res<i32> {
    let n = args.files.max(1000);
    let dirs = (n / args.entries.max(1)).max(1);
    // Memory for all of it, so that nothing is let go of.
    let bytes = (n as u64 * 5 * 4096).next_multiple_of(1 << 20).max(256 << 20);
    let memory = Memory { lanes: args.lanes, cache: 8 << 30, background: false, ..Memory::new(bytes) };
    let OpenTarget::Volume(target) = TargetSpec::Memory(memory).open(false)? else {
        return Err(Failure::new("a volume in memory is a volume"));
    };
    let fs = target.volume().fs();
    let make = |dir: &str, count: usize| -> Res<()> {
        fs.mkdir(dir, 0o755).at("mkdir")?;
        for i in 0..count {
            fs.create(format!("{dir}/f{i:08}")).map(drop).at("creating a file")?;
        }
        Ok(())
    };
    make("before", 5000)?;
    let start = now()?;
    make("files", n)?;
    let files = now()?;
    fs.mkdir("dirs", 0o755).at("mkdir")?;
    for d in 0..dirs {
        make(&format!("dirs/d{d:08}"), args.entries)?;
    }
    let all = now()?;
    let file = each(start, files, n);
    let dir = each(files, all, dirs);
    let dir = (dir.0 - args.entries as f64 * file.0, dir.1 - args.entries as f64 * file.1);
    let mib = all.all as f64 / 1_048_576.0;
    say(format_args!(
        "{n} empty files in one directory: {:.0} bytes each, {:.0} with their log records",
        file.0, file.1
    ))?;
    say(format_args!(
        "{dirs} directories of {} files: {:.0} bytes each beside their files, {:.0} with their log records",
        args.entries, dir.0, dir.1
    ))?;
    say(format_args!("the volume: {mib:.1} MiB in all"))?;
    if let Some(path) = &args.json {
        let text = serde_json::json!({
            "files": n, "directories": dirs, "entries": args.entries, "lanes": args.lanes,
            "file_bytes": file.0, "file_bytes_logged": file.1,
            "directory_bytes": dir.0, "directory_bytes_logged": dir.1, "allocated": all.all,
        });
        std::fs::write(path, format!("{text:#}\n")).at(path.display())?;
    }
    Ok(0)
}
