//! `space`: a volume in memory that is nearly full goes through all phases.

use clap::Parser;
use lanefs_bench::cli::{Args, run};
use lanefs_bench::space::SpaceFile;

fn space(args: &[&str]) -> Result<i32, String> {
    let all = ["lanefs-bench", "space"].iter().chain(args);
    run(Args::try_parse_from(all).map_err(|e| e.to_string())?).map_err(|e| e.message)
}

#[test]
fn a_volume_goes_through_all_phases_at_each_level() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("space.json");
    let size = ["--size", "256M", "--passes", "0.2", "--seconds", "0.05", "--sync-every", "64"];
    let levels = ["--fill", "50,85", "--peers", "lanefs", "--json", json.to_str().unwrap()];
    assert_eq!(space(&[size.as_slice(), &levels].concat()), Ok(0));
    let file: SpaceFile = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert!(file.failures.is_empty() && file.skipped.is_empty(), "{:?} {:?}", file.failures, file.skipped);
    let phases: Vec<_> = file.results.iter().map(|r| (r.fill, r.phase.as_str())).collect();
    let all = ["fill", "overwrite", "fileserver", "varmail"];
    assert_eq!(phases, [50.0, 85.0].iter().flat_map(|&f| all.map(|p| (f, p))).collect::<Vec<_>>());
    for r in &file.results {
        assert!(r.ops > 0 && r.ops_per_s > 0.0 && r.max_ns >= r.p999_ns && r.p999_ns >= r.p50_ns, "{r:?}");
        assert!(r.p50_ns > 0 && r.target == "lanefs", "{r:?}");
    }
    let of =
        |fill: f64, phase: &str| file.results.iter().find(|r| r.fill == fill && r.phase == phase).unwrap();
    // All that fills the volume is on its device once, and little more.
    for fill in [50.0, 85.0] {
        let filled = of(fill, "fill");
        assert!((1.0..1.3).contains(&filled.write_amplification), "{filled:?}");
        // As much as was asked, of the 256 MiB and what is kept back of them.
        let share = filled.user_bytes as f64 / f64::from(256 << 20) * 100.0;
        assert!(share > fill * 0.6 && share <= fill, "{share} % of the device, {filled:?}");
        assert_eq!(of(fill, "overwrite").user_bytes, (256 << 20) / 5 / 4096 * 4096);
    }
    // What is overwritten at random in a full volume is cleaned for.
    let (half, full) = (of(50.0, "overwrite"), of(85.0, "overwrite"));
    assert!(half.write_amplification >= 1.0, "{half:?}");
    assert!(full.write_amplification > half.write_amplification, "{half:?} {full:?}");
}

#[test]
fn what_cannot_be_run_is_refused() {
    let refused = [
        (["--fill", "0"], "--fill"),
        (["--fill", "101"], "--fill"),
        (["--workers", "0"], "--workers"),
        (["--passes", "0"], "--passes"),
        (["--peers", "tmpfs"], "--peers"),
        (["--peers", "ntfs"], "no peer"),
        (["--skew", "0"], "--skew"),
        (["--skew", "100"], "--skew"),
        (["--phases", "live"], "there is no live"),
    ];
    for (args, word) in refused {
        let said = space(&args).unwrap_err();
        assert!(said.contains(word), "{args:?}: {said}");
    }
}
