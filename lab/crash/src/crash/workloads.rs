//! Workloads: all sequences of one and of two operations over a small tree with each persistence
//! call after each (the manner of CrashMonkey's ACE), and random histories. The known mistakes of
//! others are in [`scenario::KNOWN`](lanefs_lab_model::scenario::KNOWN).

use lanefs_lab_model::generate::{Generator, Profile, Rng};
use lanefs_lab_model::scenario::{Scenario, script};

/// The tree that is there, and durable, before the sequence.
const TREE: &str = "mkdir /A; mkdir /B; creat /foo 5000; creat /A/foo 9000; link /foo /B/ln; setxattr /A/foo user.u 20; sync";

/// One operation of a sequence.
pub fn operations() -> Vec<String> {
    let mut v: Vec<String> = Vec::new();
    let all = ["/foo", "/bar", "/A/foo", "/A/bar", "/B/foo", "/B/ln"];
    for f in ["/bar", "/A/bar", "/B/foo"] {
        v.push(format!("creat {f}"));
        v.push(format!("creat {f} 3000"));
        v.push(format!("creat {f} 6000"));
        v.push(format!("symlink A/foo {f}"));
    }
    for f in ["/foo", "/A/foo", "/B/ln"] {
        v.push(format!("unlink {f}"));
        for g in all {
            if f != g {
                v.push(format!("rename {f} {g}"));
                if !["/foo", "/A/foo", "/B/ln"].contains(&g) {
                    v.push(format!("link {f} {g}"));
                } else if f < g {
                    v.push(format!("exchange {f} {g}"));
                }
            }
        }
    }
    for f in ["/foo", "/A/foo"] {
        for c in [
            "append F 100",
            "append F 5000",
            "write F 0 4096",
            "write F 100 5000",
            "write F 20000 100",
            "trunc F 0",
            "trunc F 100",
            "trunc F 4096",
            "trunc F 30000",
            "punch F 0 4096",
            "punch F 1000 6000",
            "zero F 1000 12000",
            "falloc F 0 20000",
            "grow F 4096 20000",
            "chmod F 4600",
            "utimens F 1234567890123456789",
            "setxattr F user.u 40",
            "setxattr F user.v 300",
            "rmxattr F user.u",
        ] {
            v.push(c.replace('F', f));
        }
    }
    for d in ["/C", "/A/C", "/B/C"] {
        v.push(format!("mkdir {d}"));
    }
    for c in [
        "rename /A /B",
        "rename /A /C",
        "rename /B /A/B",
        "rename /A /B/A",
        "exchange /A /B",
        "exchange /A /foo",
        "whiteout /foo /bar",
        "whiteout /A/foo /foo",
        "whiteout /A /C",
    ] {
        v.push(c.into());
    }
    v.push("unlink /B/ln; rmdir /B".into());
    v.push("unlink /B/ln; rename /A /B".into());
    v.push("tmpfile 1 /A; pwrite 1 0 5000; linkfd 1 /A/bar; close 1".into());
    v.push("open 1 /A/foo; unlink /A/foo; pwrite 1 0 100; fsyncfd 1; close 1".into());
    v.push("creat /t 6000; rename /t /foo".into());
    // What undoes another one of these; alone they fail.
    for c in [
        "unlink /bar",
        "unlink /A/bar",
        "rename /bar /foo",
        "rename /A/bar /A/foo",
        "rename /C /A",
        "rmdir /A/C",
    ] {
        v.push(c.into());
    }
    v
}

/// Calls that make something durable, and what only looks like it.
pub const PERSIST: [&str; 11] = [
    "",
    "sync",
    "fsync /foo",
    "fsync /bar",
    "fsync /A/foo",
    "fsync /A/bar",
    "fdatasync /A/foo",
    "fsyncdir /",
    "fsyncdir /A",
    "fsyncdir /B",
    "ckpt",
];

fn sequence(parts: &[&str]) -> Result<Scenario, String> {
    let body: Vec<&str> = parts.iter().copied().filter(|p| !p.is_empty()).collect();
    let mut steps = script(TREE)?;
    let setup = steps.len();
    steps.extend(script(&format!("{TREE}; {}", body.join("; ")))?.split_off(setup));
    Ok(Scenario { name: body.join("; "), steps, setup })
}

/// Every sequence of one operation and one persistence call.
pub fn seq1() -> impl Iterator<Item = Result<Scenario, String>> {
    operations().into_iter().flat_map(|op| PERSIST.map(|p| sequence(&[&op, p])))
}

/// Returns the number of sequences of two operations.
pub fn seq2_len() -> u64 {
    (operations().len() * PERSIST.len()).pow(2) as u64
}

/// The `n`-th sequence of two operations with a persistence call after each.
pub fn seq2(n: u64) -> Result<Scenario, String> {
    let ops = operations();
    let (o, p) = (ops.len() as u64, PERSIST.len() as u64);
    let at = |k: u64, m: u64| (n / k % m) as usize;
    sequence(&[&ops[at(1, o)], PERSIST[at(o, p)], &ops[at(o * p, o)], PERSIST[at(o * p * o, p)]])
}

/// All sequences of two operations, each once, in an order that `seed` picks: the first ones are a
/// sample, and a part of it goes on where another ended.
pub fn seq2_all(seed: u64) -> impl Iterator<Item = Result<Scenario, String>> {
    let all = seq2_len();
    let mut rng = Rng::new(seed);
    let mut step = rng.below(all) | 1;
    while gcd(step, all) != 1 {
        step += 2;
    }
    let first = rng.below(all);
    (0..all)
        .map(move |n| seq2(((u128::from(n) * u128::from(step) + u128::from(first)) % u128::from(all)) as u64))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A sample of sequences of three.
pub fn seq3_sample(seed: u64, n: usize) -> impl Iterator<Item = Result<Scenario, String>> {
    let mut rng = Rng::new(seed ^ 3);
    let ops = operations();
    (0..n).map(move |_| {
        let mut parts: Vec<&str> = Vec::new();
        for _ in 0..3 {
            parts.push(&ops[rng.below(ops.len() as u64) as usize]);
            parts.push(PERSIST[rng.below(PERSIST.len() as u64) as usize]);
        }
        sequence(&parts)
    })
}

/// A random history of `len` steps.
pub fn random(seed: u64, len: usize) -> Scenario {
    Scenario {
        name: format!("seed {seed}"),
        steps: Generator::new(seed, Profile { rights: seed.is_multiple_of(5), ..Profile::CRASH })
            .history(len),
        setup: 0,
    }
}

/// Random histories for `n` threads, each for a directory of its own.
pub fn threads(seed: u64, n: u64, len: usize) -> Vec<Vec<lanefs_lab_model::op::Step>> {
    let profile = Profile { maintenance: false, ..Profile::CRASH };
    (0..n).map(|t| Generator::new(seed.wrapping_mul(16) + t, profile).history(len)).collect()
}
