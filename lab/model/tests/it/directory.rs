//! The model against the running kernel: random sequences on tmpfs and on whatever holds the
//! temporary directory (ext4 on most machines), every answer compared. This is what makes the model
//! trustworthy.
//!
//! More: `LANEFS_RUNS=20000 cargo test -p lanefs-lab-crash directory`.

use lanefs_lab_model::generate::{Generator, Profile, shrink};
use lanefs_lab_model::op::Step;
use lanefs_lab_model::target::directory::{Directory, kernel_quirks};
use lanefs_lab_model::target::{Pair, run_on};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn run_in(base: &Path, steps: &[Step]) -> Result<(), String> {
    let dir = tempfile::tempdir_in(base).map_err(|e| e.to_string())?;
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).map_err(|e| e.to_string())?;
    let mut pair = Pair::new(Directory::new(dir.path()).map_err(|e| e.to_string())?);
    pair.model.quirks = kernel_quirks();
    run_on(&mut pair, steps)
}

pub fn sequences(base: &Path, profile: Profile, runs: u64, seed: u64) {
    if !Directory::possible() || !base.is_dir() {
        eprintln!("skipped: needs root and {}", base.display());
        return;
    }
    let runs = std::env::var("LANEFS_RUNS").ok().and_then(|s| s.parse().ok()).unwrap_or(runs);
    for s in seed..seed + runs {
        let steps = Generator::new(s, profile).history(80);
        if let Err(first) = run_in(base, &steps) {
            let least = shrink(&steps, |t| run_in(base, t).is_err());
            let why = run_in(base, &least).err().unwrap_or(first);
            let list: Vec<String> = least.iter().map(|s| format!("{s:?}")).collect();
            panic!("seed {s} in {}: {why}\n{}", base.display(), list.join("\n"));
        }
    }
}

#[test]
fn tmpfs_does_what_the_model_says() {
    sequences(Path::new("/dev/shm"), Profile { zero_range: false, ..Profile::POSIX }, 300, 1);
}

#[test]
fn the_file_system_of_the_temporary_directory_does_what_the_model_says() {
    sequences(&std::env::temp_dir(), Profile { sync: false, ..Profile::POSIX }, 300, 1_000_000);
}
