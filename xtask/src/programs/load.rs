//! Programs that need few words: cargo, tar, rsync, RocksDB, dbench.

use super::{Place, tree};
use crate::run::root;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds a crate and runs its tests, offline: a small one from cargo's own sources, and when there
/// is time this project's.
pub fn cargo_build(place: &Place) -> Result<String, String> {
    let crate_dir = registry_crate("strsim")?;
    place.run(Command::new("cp").arg("-r").arg(&crate_dir).arg(place.dir.join("crate")))?;
    let cargo = |dir: &Path, args: &[&str]| {
        let mut c = crate::run::cargo(args);
        c.arg("--offline").arg("--manifest-path").arg(dir.join("Cargo.toml"));
        // Everything cargo writes goes to the volume.
        c.env("CARGO_TARGET_DIR", place.dir.join("target")).env_remove("RUSTFLAGS");
        c
    };
    let dir = place.dir.join("crate");
    place.run(&mut cargo(&dir, &["build", "--release"]))?;
    let mut passed = tests_passed(&place.run(&mut cargo(&dir, &["test"]))?);
    let mut names = crate_dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if !place.quick {
        let clone = place.dir.join("lanefs");
        place.run(Command::new("git").args(["clone", "--quiet"]).arg(root()).arg(&clone))?;
        place.run(&mut cargo(&clone, &["build", "--package", "lanefs-store"]))?;
        passed +=
            tests_passed(&place.run(&mut cargo(&clone, &["test", "--package", "lanefs-sync", "--lib"]))?);
        // Nothing is built twice: the times of files are what cargo wrote.
        let again = place.run(&mut cargo(&clone, &["build", "--package", "lanefs-store"]))?;
        if again.contains("Compiling") {
            return Err(format!("a second build compiled again:\n{again}"));
        }
        names += " and this project";
    }
    if passed == 0 {
        return Err("no test ran".into());
    }
    Ok(format!("{names}: built, {passed} tests passed"))
}

/// The sum of the numbers before "passed" in what cargo test says.
fn tests_passed(text: &str) -> u64 {
    text.lines()
        .filter_map(|l| l.strip_prefix("test result: ok. ")?.split(' ').next()?.parse::<u64>().ok())
        .sum()
}

/// The unpacked source of a crate this project depends on.
fn registry_crate(name: &str) -> Result<PathBuf, String> {
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|h| Path::new(&h).join(".cargo")))
        .ok_or("neither CARGO_HOME nor HOME is set")?;
    let src = home.join("registry/src");
    let registries = std::fs::read_dir(&src).map_err(|e| format!("{}: {e}", src.display()))?;
    registries
        .filter_map(|r| std::fs::read_dir(r.ok()?.path()).ok())
        .flatten()
        .filter_map(|c| Some(c.ok()?.path()))
        .find(|c| c.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&format!("{name}-"))))
        .ok_or_else(|| format!("{}: no {name} in it; build lanefs first", src.display()))
}

/// Packs a tree, unpacks it in the volume, packs it there: the two archives are the same byte for
/// byte.
pub fn tar(place: &Place) -> Result<String, String> {
    let source = place.outside.join("tree");
    let files = place.amount(10_000, 2_000) as usize;
    tree::make(&source, files, 7).map_err(|e| format!("{}: {e}", source.display()))?;
    let pack = |dir: &Path, archive: &Path| {
        let mut c = Command::new("tar");
        c.args(["--create", "--sort=name", "--format=posix", "--xattrs"]);
        c.arg("--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime");
        c.arg("--file").arg(archive).arg("--directory").arg(dir).arg(".");
        place.run(&mut c)
    };
    let first = place.outside.join("first.tar");
    pack(&source, &first)?;
    let (inside, second) = (place.dir.join("tree"), place.dir.join("second.tar"));
    std::fs::create_dir(&inside).map_err(|e| e.to_string())?;
    let mut unpack = Command::new("tar");
    unpack.args(["--extract", "--preserve-permissions", "--file"]).arg(&first);
    place.run(unpack.arg("--directory").arg(&inside))?;
    place.run(Command::new("sync").arg("-f").arg(&inside))?;
    pack(&inside, &second)?;
    // And out again.
    let third = place.outside.join("third");
    std::fs::create_dir(&third).map_err(|e| e.to_string())?;
    let mut unpack = Command::new("tar");
    unpack.args(["--extract", "--preserve-permissions", "--file"]).arg(&second);
    place.run(unpack.arg("--directory").arg(&third))?;
    place.run(Command::new("diff").args(["--recursive", "--no-dereference"]).arg(&source).arg(&third))?;
    let sum = |file: &Path| -> Result<String, String> {
        let text = place.run(Command::new("sha256sum").arg(file))?;
        Ok(text.split(' ').next().unwrap_or_default().to_string())
    };
    let (a, b) = (sum(&first)?, sum(&second)?);
    if a != b {
        return Err(format!("the archives differ: {a} outside, {b} from the volume"));
    }
    Ok(format!("{files} files out and back, sha256 {}", &a[..16.min(a.len())]))
}

/// Copies a tree with checksums; a second run must find nothing to do, in either direction.
pub fn rsync(place: &Place) -> Result<String, String> {
    let source = place.outside.join("tree");
    let files = place.amount(10_000, 2_000) as usize;
    tree::make(&source, files, 8).map_err(|e| format!("{}: {e}", source.display()))?;
    let copy = |from: &Path, to: &Path| {
        let mut c = Command::new("rsync");
        c.args(["--archive", "--hard-links", "--sparse", "--checksum", "--itemize-changes"]);
        c.arg(format!("{}/", from.display())).arg(format!("{}/", to.display()));
        place.run(&mut c)
    };
    let inside = place.dir.join("tree");
    let first = copy(&source, &inside)?;
    if first.lines().count() < files {
        return Err(format!("the first run copied only {} entries", first.lines().count()));
    }
    for (from, to) in [(&source, &inside), (&inside, &source)] {
        let again = copy(from, to)?;
        if !again.trim().is_empty() {
            return Err(format!("a second run found differences:\n{}", super::child::tail(&again, 5)));
        }
    }
    Ok(format!("{files} files; the second run had nothing to do"))
}

/// db_bench: fills, overwrites and reads a RocksDB database, its checksums verified, buffered and
/// with O_DIRECT.
pub fn rocksdb(place: &Place) -> Result<String, String> {
    let keys = place.amount(1_000_000, 40_000);
    let mut said = Vec::new();
    for direct in [false, true] {
        let bench = |benchmarks: &str, more: &[&str]| {
            let mut c = Command::new("db_bench");
            c.arg(format!("--benchmarks={benchmarks}"))
                .arg(format!("--db={}/db{direct}", place.dir.display()));
            c.arg(format!("--num={keys}")).args(["--value_size=100", "--verify_checksum=1", "--seed=1"]);
            c.args(["--compression_type=none", "--write_buffer_size=4194304"]).args(more);
            if direct {
                c.args(["--use_direct_reads=1", "--use_direct_io_for_flush_and_compaction=1"]);
            }
            let text = place.run(&mut c)?;
            let bad = ["Corruption", "orruption:", "IO error", "error:"];
            match text.lines().find(|l| bad.iter().any(|b| l.contains(b))) {
                Some(line) => Err(format!("db_bench {benchmarks}: {line}")),
                None => Ok::<String, String>(text),
            }
        };
        let reads = format!("--reads={}", place.amount(200_000, 20_000));
        bench("fillseq", &[])?;
        bench("overwrite", &["--use_existing_db=1"])?;
        let text = bench("readrandom,verifychecksum,waitforcompaction", &["--use_existing_db=1", &reads])?;
        let found = text.lines().find_map(|l| l.split_once('(')?.1.split_once(" found)").map(|p| p.0));
        let found = found.ok_or("db_bench readrandom does not say how many it found")?;
        let (a, b) = found.split_once(" of ").unwrap_or((found, ""));
        if a != b {
            return Err(format!("db_bench readrandom found {found} keys"));
        }
        said.push(format!("{} {found} found", if direct { "direct" } else { "buffered" }));
    }
    // Small synchronous writes, as a database makes them.
    let mut c = Command::new("db_bench");
    c.args(["--benchmarks=fillsync,verifychecksum", "--sync=1", "--compression_type=none"]);
    c.arg(format!("--num={}", place.amount(5_000, 300)));
    place.run(c.arg(format!("--db={}/sync", place.dir.display())))?;
    Ok(format!("fillseq, overwrite, readrandom of {keys} keys: {}; fillsync", said.join(", ")))
}

/// dbench: its operations fail aloud when a file is not as it was left.
pub fn dbench(place: &Place) -> Result<String, String> {
    let seconds = place.amount(60, 6).to_string();
    let mut c = Command::new("dbench");
    let text = place.run(c.args(["--skip-cleanup", "-t", &seconds, "-D"]).arg(&place.dir).arg("4"));
    // Older versions have no --skip-cleanup.
    let text = match text {
        Err(e) if e.contains("unknown option") => {
            place.run(Command::new("dbench").args(["-t", &seconds, "-D"]).arg(&place.dir).arg("4"))?
        }
        other => other?,
    };
    if let Some(line) =
        text.lines().find(|l| (l.contains("failed") && !l.contains("semaphore")) || l.contains("ERROR"))
    {
        return Err(format!("dbench: {line}"));
    }
    let throughput = text.lines().find(|l| l.starts_with("Throughput")).ok_or("dbench says no throughput")?;
    Ok(format!("4 clients, {seconds} s: {}", throughput.trim()))
}
