//! `cargo xtask programs [--quick] [NAME..]`: real programs on a mounted volume, each checked by
//! its own means.
//!
//! One volume serves them all, one after the other; at the end it is unmounted and checked by
//! `lanefs fsck`. A program that takes the mount down fails, and the next one gets a new volume.

pub mod child;
mod fio;
pub mod fsx;
mod git;
mod load;
mod sqlite;
mod stress;
mod suites;
mod tree;
pub mod volume;

use crate::run::need;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use volume::Volume;

/// The folders in which a program works, and the amount of its work.
pub struct Place {
    /// A folder of its own in the volume.
    pub dir: PathBuf,
    /// A folder of its own elsewhere.
    pub outside: PathBuf,
    /// Do less.
    pub quick: bool,
}

impl Place {
    /// The first number, or the second when it has to be quick.
    pub fn amount(&self, full: u64, quick: u64) -> u64 {
        if self.quick { quick } else { full }
    }

    /// Runs a program in the volume's folder; anything but success is an error.
    pub fn run(&self, command: &mut Command) -> Result<String, String> {
        command.current_dir(&self.dir);
        child::succeed(command, &self.outside, Duration::from_secs(self.amount(1200, 300)))
    }
}

/// One real program.
pub struct Program {
    pub name: &'static str,
    /// The programs that it calls: pairs of (program, Debian package).
    needs: &'static [(&'static str, &'static str)],
    /// Runs it and checks what it did; says what was done.
    run: fn(&Place) -> Result<String, String>,
}

/// All of them.
pub const PROGRAMS: &[Program] = &[
    Program { name: "git", needs: &[("git", "git")], run: git::run },
    Program { name: "cargo", needs: &[("git", "git"), ("cc", "gcc")], run: load::cargo_build },
    Program { name: "tar", needs: &[("tar", "tar")], run: load::tar },
    Program { name: "rsync", needs: &[("rsync", "rsync")], run: load::rsync },
    Program { name: "sqlite-wal", needs: &[("sqlite3", "sqlite3")], run: sqlite::wal },
    Program { name: "sqlite-journal", needs: &[("sqlite3", "sqlite3")], run: sqlite::journal },
    Program { name: "rocksdb", needs: &[("db_bench", "rocksdb-tools")], run: load::rocksdb },
    Program { name: "fsx", needs: &[], run: fsx::buffered },
    Program { name: "fsx-direct", needs: &[], run: fsx::direct },
    Program { name: "fsx-mmap", needs: &[], run: fsx::mapped },
    Program { name: "fio", needs: &[("fio", "fio")], run: fio::run },
    Program { name: "dbench", needs: &[("dbench", "dbench")], run: load::dbench },
    Program { name: "stress-ng", needs: &[("stress-ng", "stress-ng")], run: stress::run },
];

/// Test suites of others. The kill test does without them: what they leave in the middle says
/// nothing.
const SUITES: &[Program] = &[
    Program {
        name: "pjdfstest",
        needs: &[("/usr/include/sys/acl.h", "libacl1-dev")],
        run: suites::pjdfstest,
    },
    Program { name: "fsx-rs", needs: &[], run: suites::fsx },
];

/// Everything that can be named.
fn known() -> impl Iterator<Item = &'static Program> {
    PROGRAMS.iter().chain(SUITES)
}

/// The command.
pub fn main(arguments: &[&str]) -> Result<(), String> {
    let mut quick = false;
    let mut inside = None;
    let mut names = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match *argument {
            "--quick" => quick = true,
            // For the kill test: work here, mount nothing.
            "--in" => {
                let mut path = || rest.next().map(PathBuf::from).ok_or("--in DIR OUTSIDE");
                inside = Some((path()?, path()?));
            }
            "--list" => {
                known().for_each(|p| println!("{}", p.name));
                return Ok(());
            }
            name if known().any(|p| p.name == name) => names.push(name),
            other => {
                return Err(format!(
                    "programs: {other:?}: not one of {}",
                    known().map(|p| p.name).collect::<Vec<_>>().join(" ")
                ));
            }
        }
    }
    let chosen: Vec<&Program> = known().filter(|p| names.is_empty() || names.contains(&p.name)).collect();
    if let Some((dir, outside)) = inside {
        for program in chosen {
            perform(program, &dir, &outside, quick)?;
        }
        return Ok(());
    }
    let mut needs: Vec<_> = chosen.iter().flat_map(|p| p.needs.iter().copied()).collect();
    needs.push(("fusermount3", "fuse3"));
    needs.sort();
    needs.dedup();
    need(&needs)?;
    run_all(&chosen, quick)
}

/// Runs one program in folders of its own and removes them.
fn perform(program: &Program, mnt: &Path, outside: &Path, quick: bool) -> Result<String, String> {
    let place = Place { dir: mnt.join(program.name), outside: outside.join(program.name), quick };
    for dir in [&place.dir, &place.outside] {
        std::fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    let said = (program.run)(&place)?;
    for dir in [&place.dir, &place.outside] {
        std::fs::remove_dir_all(dir).map_err(|e| format!("removing {}: {e}", dir.display()))?;
    }
    Ok(said)
}

fn run_all(chosen: &[&Program], quick: bool) -> Result<(), String> {
    let lanefs = volume::build()?;
    let size = if quick { "3G" } else { "8G" };
    let mut volume: Option<Volume> = None;
    let mut rows: Vec<(&str, Duration, Result<String, String>)> = Vec::new();
    let show = |name: &str, took: Duration, result: &Result<String, String>| {
        let (word, text) = match result {
            Ok(text) => ("ok", text),
            Err(text) => ("FAILED", text),
        };
        println!("{name:<16} {word:<7} {:>7.1} s  {text}", took.as_secs_f64());
    };
    for program in chosen {
        let start = Instant::now();
        let result = with_volume(&mut volume, &lanefs, size, |v| {
            let said = perform(program, &v.mnt(), &v.outside(), quick);
            match (said, v.alive().and_then(|()| v.complaints())) {
                (Err(e), Err(dead)) => Err(format!("{e}\n{dead}")),
                (Ok(_), Err(dead)) => Err(dead),
                (said, Ok(())) => said,
            }
        });
        if result.is_err() {
            // Nothing of a failure leaks into the next one.
            volume = None;
        }
        show(program.name, start.elapsed(), &result);
        rows.push((program.name, start.elapsed(), result));
    }
    if let Some(mut volume) = volume {
        let start = Instant::now();
        let result =
            volume.umount().and_then(|_| volume.fsck()).map(|()| "unmounted; fsck clean".to_string());
        show("umount, fsck", start.elapsed(), &result);
        rows.push(("umount, fsck", start.elapsed(), result));
    }
    let failed: Vec<&str> = rows.iter().filter(|r| r.2.is_err()).map(|r| r.0).collect();
    println!("\n{} of {} passed", rows.len() - failed.len(), rows.len());
    if failed.is_empty() { Ok(()) } else { Err(format!("programs failed: {}", failed.join(" "))) }
}

/// Calls `work` with a mounted volume, making one if there is none.
fn with_volume(
    volume: &mut Option<Volume>,
    lanefs: &Path,
    size: &str,
    work: impl FnOnce(&mut Volume) -> Result<String, String>,
) -> Result<String, String> {
    let volume = match volume {
        Some(v) => v,
        None => {
            let mut made = Volume::make(lanefs, size, &[])?;
            made.mount()?;
            volume.insert(made)
        }
    };
    work(volume)
}
