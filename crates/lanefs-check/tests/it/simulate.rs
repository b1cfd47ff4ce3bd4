//! Deterministic simulation with faults: a sample. More: `cargo xtask simulate --runs 100000 --json FILE`.

use lanefs_check::simulate::run;

#[test]
fn no_promise_is_broken_under_faults() {
    let runs = std::env::var("LANEFS_RUNS").ok().and_then(|s| s.parse().ok()).unwrap_or(400);
    let mut faults = std::collections::BTreeMap::new();
    for seed in 0..runs {
        let r = run(seed);
        assert!(r.violations.is_empty(), "seed {seed}: {:?}\n{}", r.violations, r.story.join("\n"));
        for (k, n) in r.faults {
            *faults.entry(k).or_insert(0) += n;
        }
    }
    eprintln!("{faults:?}");
    assert!(faults.len() > 8, "too few kinds of faults: {faults:?}");
}

/// The clock of the file system is simulated with the feature only.
#[cfg(feature = "canaries")]
#[test]
fn a_seed_runs_the_same_way_twice() {
    for seed in 0..200 {
        let (a, b) = (run(seed), run(seed));
        assert_eq!((a.trace, a.operations, &a.faults), (b.trace, b.operations, &b.faults), "seed {seed}");
    }
}
