//! Test suites of others, from the registry: `pjdfstest`, what POSIX asks of names, modes, owners
//! and times, and `fsx`, random operations on one file. Each is built once, below the target
//! directory.

use super::volume::target;
use super::{Place, child};
use crate::run::{cargo, has, run};
use std::path::PathBuf;
use std::time::Duration;

/// Tests of pjdfstest that fail for a reason that is known: its name, and the reason.
pub const EXPECTED: &[(&str, &str)] = &[];

/// A program of the registry, installed if need be.
fn tool(name: &str, version: &str) -> Result<PathBuf, String> {
    let root = target().join("tools");
    let path = root.join("bin").join(name);
    // The version is part of the mark, so that another one is built anew.
    let mark = root.join(format!("{name}-{version}"));
    if !path.is_file() || !mark.is_file() {
        let install = ["install", "--quiet", "--locked", "--debug", "--force", "--version", version, name];
        run(cargo(&install).arg("--root").arg(&root))?;
        std::fs::write(&mark, "").map_err(|e| format!("{}: {e}", mark.display()))?;
    }
    Ok(path)
}

/// All tests of pjdfstest that need no second mount of the volume. It says which failed; a test
/// that is expected to fail and passes is a failure too, so that the list stays true.
pub fn pjdfstest(place: &Place) -> Result<String, String> {
    if !has("/usr/include/sys/acl.h") {
        return Err("install libacl1-dev first".into());
    }
    let program = tool("pjdfstest", "0.2.2")?;
    let names: Vec<String> = EXPECTED.iter().map(|(name, _)| format!("{name:?}")).collect();
    let config = format!(
        "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nstat_st_birthtime = {{}}\nutime_now = {{}}\nutimensat = {{}}\n\
         [settings]\nnaptime = 0.02\nallow_remount = false\nexpected_failures = [{}]\n\
         [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n",
        names.join(", ")
    );
    let file = place.outside.join("pjdfstest.toml");
    std::fs::write(&file, config).map_err(|e| format!("{}: {e}", file.display()))?;
    let mut c = std::process::Command::new(program);
    c.arg("-c").arg(&file).arg("-p").arg(&place.dir).arg("-s").arg(std::env::temp_dir());
    let out = child::output(&mut c, &place.outside, Duration::from_secs(900))?;
    let summary = out.text.lines().rfind(|l| l.contains("total")).unwrap_or_default().to_string();
    if out.status.success() && summary.contains("total") {
        return Ok(summary);
    }
    let bad = |l: &&str| l.contains("FAILED") || l.contains("UNEXPECTEDLY");
    let failed: Vec<&str> = out.text.lines().filter(bad).collect();
    Err(format!("{}; {summary}\n{}", out.status, failed.join("\n")))
}

/// The ways in which fsx is asked to work: as it does by itself with everything added, and with
/// many short operations near the file's end.
const WAYS: &[&str] = &[
    "flen = 262144\n",
    "flen = 20000\n[opsize]\nmax = 3000\n",
    "flen = 1048576\nnomsyncafterwrite = true\n[opsize]\nmin = 512\nmax = 131072\n",
];

const WEIGHTS: &str = "[weights]\nclose_open = 1\nread = 10\nwrite = 10\nmapread = 10\nmapwrite = 10\ninvalidate = 1\ntruncate = 4\n\
                       fsync = 1\nfdatasync = 1\nposix_fallocate = 2\npunch_hole = 2\nsendfile = 2\nposix_fadvise = 1\ncopy_file_range = 2\n";

pub fn fsx(place: &Place) -> Result<String, String> {
    let program = tool("fsx", "0.3.2")?;
    let ops = place.amount(100_000, 2_000);
    for (n, way) in WAYS.iter().enumerate() {
        let config = place.outside.join(format!("fsx{n}.toml"));
        // Top-level keys come before the tables.
        std::fs::write(&config, format!("{way}{WEIGHTS}"))
            .map_err(|e| format!("{}: {e}", config.display()))?;
        for seed in 1..=place.amount(4, 1) {
            let mut c = std::process::Command::new(&program);
            c.arg("-f").arg(&config).args(["-N", &ops.to_string(), "-S", &seed.to_string()]);
            c.arg("-P").arg(&place.outside).arg(place.dir.join(format!("file{n}-{seed}")));
            place.run(&mut c)?;
        }
    }
    Ok(format!("{} ways, {ops} operations each", WAYS.len()))
}
