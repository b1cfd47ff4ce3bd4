//! A LaneFS volume in this process against the model: every answer, the tree at the end, and again
//! after a remount.
//!
//! More: `LANEFS_RUNS=20000 cargo test --release -p lanefs-lab-model volume`.

use lanefs::{MountOptions, Volume};
use lanefs_lab_model::generate::{Generator, Profile, shrink};
use lanefs_lab_model::op::{Op, Step};
use lanefs_lab_model::scenario;
use lanefs_lab_model::target::volume::VolumeTarget;
use lanefs_lab_model::target::{Pair, run_on};
use lanefs_store::device::{Device, MemoryDevice};
use lanefs_store::{FormatOptions, Store};
use proptest::prelude::*;
use std::sync::Arc;

fn mount() -> MountOptions {
    MountOptions { background: false, cache_size: 16 << 20, lanes: 4, ..MountOptions::default() }
}

/// A fresh volume on `devices`, formatted with small segments.
fn target(devices: Vec<Arc<dyn Device>>) -> Result<VolumeTarget, String> {
    format(&devices)?;
    opened(move || Volume::open_devices(devices.clone(), &mount()))
}

fn format(devices: &[Arc<dyn Device>]) -> Result<(), String> {
    let format = FormatOptions { segment_blocks: 64, mlogs: 2, force: true, ..FormatOptions::default() };
    Store::format(devices, &format).map_err(|e| format!("format: {e}"))
}

/// Makes a target of the volume that `open` opens, now and at each remount.
fn opened(open: impl Fn() -> lanefs::Result<Volume> + Send + 'static) -> Result<VolumeTarget, String> {
    let volume = open().map_err(|e| format!("open: {e}"))?;
    let again = move |v: Volume| {
        v.close()?;
        drop(v);
        open()
    };
    Ok(VolumeTarget::new(volume, Some(Box::new(again))))
}

fn memory(devices: usize) -> Result<VolumeTarget, String> {
    let one = || MemoryDevice::new(64 << 20).map(|d| Arc::new(d) as Arc<dyn Device>);
    target((0..devices).map(|_| one()).collect::<Result<_, _>>().map_err(|e| e.to_string())?)
}

/// Runs the steps; then closes all handles, remounts, and compares the whole tree once more.
fn run(steps: &[Step], devices: usize) -> Result<(), String> {
    let mut pair = Pair::new(memory(devices)?);
    pair.openers = Some(Default::default());
    run_on(&mut pair, steps)?;
    let fds: Vec<u8> = pair.model.handles.keys().copied().collect();
    let mut end: Vec<Step> = fds.into_iter().map(|fd| Op::Close { fd }.into()).collect();
    end.extend([Op::Remount.into(), Op::Tick.into(), Op::Checkpoint.into()]);
    run_on(&mut pair, &end).map_err(|e| format!("after the remount: {e}"))?;
    run_on(&mut pair, &[Op::Remount.into()]).map_err(|e| format!("after the second remount: {e}"))
}

fn sequences(profile: Profile, runs: u64, seed: u64, len: usize, devices: usize) {
    let runs = std::env::var("LANEFS_RUNS").ok().and_then(|s| s.parse().ok()).unwrap_or(runs);
    for s in seed..seed + runs {
        let steps = Generator::new(s, profile).history(len);
        if let Err(first) = run(&steps, devices) {
            let least = shrink(&steps, |t| run(t, devices).is_err());
            let why = run(&least, devices).err().unwrap_or(first);
            let list: Vec<String> = least.iter().map(|s| format!("{s:?}")).collect();
            panic!("seed {s}: {why}\n{}", list.join("\n"));
        }
    }
}

#[test]
fn a_volume_does_what_the_model_says() {
    sequences(Profile::POSIX, 150, 1, 80, 1);
}

#[test]
fn a_volume_with_maintenance_between_does_what_the_model_says() {
    sequences(Profile { maintenance: true, ..Profile::POSIX }, 100, 50_000, 120, 1);
}

#[test]
fn a_volume_with_acls_and_capabilities_does_what_the_model_says() {
    sequences(Profile { maintenance: true, rights: true, ..Profile::POSIX }, 100, 70_000, 120, 1);
}

#[test]
fn a_volume_on_two_devices_does_what_the_model_says() {
    sequences(Profile { maintenance: true, ..Profile::POSIX }, 30, 90_000, 80, 2);
}

#[test]
fn known_scenarios_run_plain() {
    for s in scenario::known().unwrap() {
        run(&s.steps, 1).unwrap_or_else(|e| panic!("{}: {e}", s.name));
    }
}

#[test]
fn known_scenarios_run_on_image_files() {
    let dir = tempfile::tempdir().unwrap();
    for (i, s) in scenario::known().unwrap().into_iter().enumerate().step_by(5) {
        let path = dir.path().join(format!("{i}.lane"));
        std::fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
        format(&[Arc::new(lanefs_store::device::FileDevice::open(&path, false).unwrap())]).unwrap();
        // A close lets go of the file: each mount opens it.
        let t =
            opened(move || Volume::open(&[&path], &mount())).unwrap_or_else(|e| panic!("{}: {e}", s.name));
        let mut pair = Pair::new(t);
        run_on(&mut pair, &s.steps).unwrap_or_else(|e| panic!("{}: {e}", s.name));
    }
}

/// For a mount made by hand: `LANEFS_DIR=/mnt cargo test -p lanefs-lab-crash mounted -- --ignored`.
#[test]
#[ignore = "needs LANEFS_DIR, an empty directory of a mounted volume"]
fn a_mounted_volume_does_what_the_model_says() {
    let Some(base) = std::env::var_os("LANEFS_DIR") else { return };
    let profile = Profile { odd_paths: true, ..Profile::POSIX };
    super::directory::sequences(std::path::Path::new(&base), profile, 50, 7_000_000);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..ProptestConfig::default() })]

    /// The same with proptest's own choice of seeds and lengths (the same in every run).
    #[test]
    fn any_history_agrees(seed in any::<u64>(), len in 1usize..60) {
        let steps = Generator::new(seed, Profile { maintenance: true, ..Profile::POSIX }).history(len);
        if let Err(e) = run(&steps, 1) {
            let least = shrink(&steps, |t| run(t, 1).is_err());
            return Err(TestCaseError::fail(format!("{e}\n{least:#?}")));
        }
    }
}
