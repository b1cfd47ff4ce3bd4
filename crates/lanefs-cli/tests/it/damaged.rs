//! The command on images that are damaged behind their checksums, as `cargo xtask fuzz` makes them:
//! it ends, with an exit code, and does not panic. `LANEFS_CASES` makes it longer.

use crate::common::LANEFS;
use lanefs_lab_crash::fuzz::images::mutant;
use lanefs_lab_crash::fuzz::meter::running;
use lanefs_lab_model::generate::Rng;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const STRUCTURES: [&str; 9] =
    ["superblock", "slots", "table", "usage", "orphans", "log", "inode:1", "map:17", "dir:1"];
/// Of a processor; a busy machine may keep it waiting for longer.
const LIMIT: Duration = Duration::from_secs(30);

/// Runs it with 4 GiB of address space at most; what is wrong with how it ended.
fn run(dir: &Path, args: &[&str]) -> Result<(), String> {
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -v 4194304; exec \"$0\" \"$@\"", LANEFS])
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(dir.join("stderr")).unwrap())
        .spawn()
        .unwrap();
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        let ran = running(&format!("/proc/{}/schedstat", child.id()));
        if ran > LIMIT || began.elapsed() > 20 * LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            return Err(format!("{args:?} did not end"));
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let said = std::fs::read_to_string(dir.join("stderr")).unwrap_or_default();
    match status.code() {
        Some(0 | 1 | 4 | 8) if !said.contains("panicked") => Ok(()),
        _ => Err(format!("{args:?} ended with {status}: {said}")),
    }
}

#[test]
fn damaged_images_are_shown_checked_and_repaired_without_a_panic() {
    let cases = std::env::var("LANEFS_CASES").ok().and_then(|s| s.parse().ok()).unwrap_or(12);
    let work = tempfile::tempdir().unwrap();
    for seed in 0..cases {
        let mut rng = Rng::new(seed ^ 0xd0d0);
        let devices = mutant(&mut rng).unwrap();
        let names: Vec<String> = (0..devices.len()).map(|i| format!("{i}.lane")).collect();
        for (name, bytes) in names.iter().zip(&devices) {
            std::fs::write(work.path().join(name), bytes).unwrap();
        }
        let images: Vec<&str> = names.iter().map(String::as_str).collect();
        let some = [*rng.pick(&STRUCTURES), *rng.pick(&STRUCTURES)];
        let block = format!("block:0:{}", rng.below(1100));
        let joined = images.join(",") + ":/";
        let mut calls: Vec<Vec<&str>> = vec![vec!["info"], vec!["info", "--json"], vec!["dump", &block]];
        calls.extend(some.map(|s| vec!["dump", s]));
        calls.push(vec!["dump", "--json", some[0]]);
        calls.push(vec!["scrub"]);
        calls.push(vec!["fsck"]);
        calls.push(vec!["fsck", "--repair"]);
        for c in calls {
            let args = [c.as_slice(), &images].concat();
            run(work.path(), &args).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
        run(work.path(), &["tree", &joined]).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}
