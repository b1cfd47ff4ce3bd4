//! `lanefs-bench memory`: what a cached empty file and a small directory take of this process's memory.
//!
//! Counted is what the allocator gives out while they are made, in a volume whose own threads are off: the cell, the entry, their share of
//! the directory's leaves and of the cell table, and the record in the log, which goes with the next commit. So it is an upper bound. What the
//! store keeps of inodes and blocks once they are written is a cache with a budget of its own, and not in it.

use crate::cost::live_bytes;
use crate::error::{Context, Failure, Res};
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

fn live() -> Res<f64> {
    let bytes =
        live_bytes().ok_or_else(|| Failure::new("only lanefs-bench counts memory, not `lanefs bench`"))?;
    Ok(bytes as f64)
}

/// Runs it and answers the exit status.
pub(super) fn run(args: &MemoryArgs) -> Res<i32> {
    let n = args.files.max(1000);
    let dirs = (n / args.entries.max(1)).max(1);
    // Room for all of it, so that nothing is let go of.
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
    let start = live()?;
    make("files", n)?;
    let files = live()?;
    fs.mkdir("dirs", 0o755).at("mkdir")?;
    for d in 0..dirs {
        make(&format!("dirs/d{d:08}"), args.entries)?;
    }
    let all = live()?;
    let file = (files - start) / n as f64;
    let dir = (all - files) / dirs as f64 - args.entries as f64 * file;
    println!("{n} empty files in one directory: {file:.0} bytes each");
    println!("{dirs} directories of {} files: {dir:.0} bytes each beside their files", args.entries);
    println!("the volume: {:.1} MiB in all", all / 1_048_576.0);
    if let Some(path) = &args.json {
        let text = serde_json::json!({
            "files": n, "directories": dirs, "entries": args.entries, "lanes": args.lanes,
            "file_bytes": file, "directory_bytes": dir, "allocated": all,
        });
        std::fs::write(path, format!("{text:#}\n")).at(path.display())?;
    }
    Ok(0)
}
