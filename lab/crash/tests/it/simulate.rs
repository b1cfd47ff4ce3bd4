//! Deterministic simulation with faults: a sample. More:
//! `cargo xtask simulate --runs 100000 --json FILE`.

use lanefs_lab_crash::simulate::run;

/// The faults that 400 runs have some of.
const FAULTS: [&str; 20] = [
    "EIO on read",
    "EIO on write",
    "EIO on flush",
    "ENOSPC",
    "volume filled",
    "more written than the budget has page frames",
    "power loss",
    "power cut within a call",
    "process death",
    "process death within a call",
    "writes reordered",
    "write torn by a crash",
    "blocks of a submission reordered",
    "answered late",
    "read misdirected once",
    "reads misdirected for good",
    "bit flipped in a read",
    "write lost",
    "write misdirected",
    "write torn",
];

#[test]
fn no_promise_is_broken_under_faults() {
    let runs = std::env::var("LANEFS_RUNS").ok().and_then(|s| s.parse().ok()).unwrap_or(400);
    let (mut faults, mut kinds) = (std::collections::BTreeMap::new(), std::collections::BTreeMap::new());
    for seed in 0..runs {
        let r = run(seed);
        assert!(r.violations.is_empty(), "seed {seed}: {:?}\n{}", r.violations, r.transcript.join("\n"));
        for (k, n) in r.faults {
            *faults.entry(k).or_insert(0) += n;
        }
        for (k, n) in r.runs {
            *kinds.entry(k).or_insert(0) += n;
        }
    }
    eprintln!("{faults:?} {kinds:?}");
    for kind in ["more than one mlog", "more than one device", "lies: judged in full", "lies: partly judged"]
    {
        assert!(kinds.contains_key(kind), "no run was {kind}: {kinds:?}");
    }
    for kind in FAULTS {
        assert!(faults.contains_key(kind), "no {kind}: {faults:?}");
    }
}

/// The clock of the file system is simulated with the feature only.
#[cfg(feature = "simulated-time")]
#[test]
fn a_seed_runs_the_same_way_twice() {
    let runs = std::env::var("LANEFS_RUNS").ok().and_then(|s| s.parse().ok()).unwrap_or(200);
    let mut differ = Vec::new();
    for seed in 0..runs {
        let (a, b) = (run(seed), run(seed));
        if (a.trace, a.operations, &a.faults) != (b.trace, b.operations, &b.faults) {
            differ.push(format!("seed {seed}, {:?}", a.runs));
        }
    }
    assert!(differ.is_empty(), "{} seeds: {differ:#?}", differ.len());
}
