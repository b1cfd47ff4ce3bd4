//! Mistakes on purpose, and whether they are found: in the toy file system, in the devices, in the model of the protocol, and, with
//! the feature `canaries`, in LaneFS itself. A checker that finds none of them proves nothing.

use super::lying::{Lie, Lying};
use super::system::{LaneFs, System};
use super::toy::{Bug, Toy};
use super::{Config, Counts, run};
use crate::epochs::{self, Mistake};
use crate::op::Op;
#[cfg(feature = "canaries")]
use crate::scenario::script;
use crate::scenario::{Scenario, known};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a mistake may stay hidden.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Sequences that bring single mistakes out.
#[cfg(feature = "canaries")]
const EXTRA: &[&str] = &[
    "creat /a 5000; fsync /a; unlink /a; creat /b 3000; fsync /b; tick; creat /c 100; fsync /c; ckpt",
    "creat /a 10; link /a /c; creat /b 20; sync; rename /b /a; ckpt; fsync /c",
    "creat /a 9000; sync; creat /b 9000; write /a 0 9000; sync; write /a 4096 4096; fsync /a; write /a 0 100; fsync /a",
    "mkdir /d; creat /d/a 10; sync; creat /b 10; unlink /d/a; rmdir /d; fsyncdir /",
    "mkdir /d; creat /d/a 10; creat /b 10; sync; rename /d/a /c; rmdir /d; fsyncdir /; ckpt",
    "mkdir /a; mkdir /b; mkdir /b/c; sync; rename /b/c /a/c; rename /a /b/a; creat /b/a/c/f 10; fsync /b/a/c/f",
    "creat /a 60000; fsync /a; ckpt; write /a 0 60000; fsync /a; ckpt; write /a 0 60000; fsync /a; ckpt; write /a 0 60000; fsync /a; ckpt; \
     write /a 0 60000; fsync /a; ckpt; write /a 0 60000; fsync /a",
    "creat /a 100; sync; rename /a /b; creat /a 200; sync; rename /a /b; rename /b /c; creat /b 7; fsync /b; sync",
];

/// One mistake.
enum Planted {
    Toy(Bug),
    Device(Lie),
    Model(Mistake),
    #[cfg(feature = "canaries")]
    Library(lanefs_sync::Canary),
}

impl Planted {
    fn all() -> Vec<(String, Planted)> {
        let mut v: Vec<(String, Planted)> = Vec::new();
        v.extend(Bug::ALL.map(|b| (format!("toy: {b:?}"), Planted::Toy(b))));
        v.extend(Lie::ALL.map(|l| (format!("device: {l:?}"), Planted::Device(l))));
        v.extend(Mistake::ALL.map(|m| (format!("protocol: {m:?}"), Planted::Model(m))));
        #[cfg(feature = "canaries")]
        v.extend(lanefs_sync::Canary::ALL.map(|c| (format!("LaneFS: {c:?}"), Planted::Library(c))));
        v
    }

    fn is_found(&self) -> Result<bool, String> {
        let config = Config { nested: 3, limit: 4000, ..Config::SHORT };
        Ok(match self {
            Planted::Toy(b) => {
                let mut examples = known()?;
                examples.retain(|e| e.steps.iter().all(|s| s.op != Op::Remount));
                any(&Toy::new(*b), &examples, &Config { blocks: 64, ..config })
            }
            Planted::Device(lie) => any(&Lying { system: LaneFs::default(), lie: *lie }, &known()?, &config),
            Planted::Model(m) => epochs::hunt(*m, 200_000).is_some(),
            #[cfg(feature = "canaries")]
            Planted::Library(c) => {
                lanefs_sync::canary::plant(Some(*c));
                let found = library(*c, &config);
                lanefs_sync::canary::plant(None);
                found?
            }
        })
    }
}

fn any(system: &dyn System, examples: &[Scenario], config: &Config) -> bool {
    let end = Instant::now() + LIMIT;
    examples
        .iter()
        .take_while(|_| Instant::now() < end)
        .any(|e| run(system, &e.steps, config, &mut Counts::default()).is_err())
}

/// The crash examples, damage to the medium, simulated faults: until one of them finds something.
#[cfg(feature = "canaries")]
fn library(canary: lanefs_sync::Canary, config: &Config) -> Result<bool, String> {
    use super::{medium::run_medium, workloads};
    use lanefs_sync::{Canary, clock::Clock};
    let mut system = LaneFs::default();
    if canary == Canary::ClockAlone {
        system.mount.clock = Some(std::sync::Arc::new(Clock::adversarial(7)));
    }
    if matches!(canary, Canary::FlushErrorHidden | Canary::WriteErrorHidden | Canary::SpaceWithoutEnd) {
        let end = Instant::now() + LIMIT;
        return Ok((0..)
            .take_while(|_| Instant::now() < end)
            .any(|seed| !crate::simulate::run(seed).violations.is_empty()));
    }
    if matches!(canary, Canary::UncheckedBlock | Canary::UnseededChecksum) {
        let end = Instant::now() + LIMIT;
        return Ok((0..).take_while(|_| Instant::now() < end).any(|seed| {
            let s = workloads::random(seed, 50);
            run_medium(&system, &s.steps, config, 16, 400, seed, &mut Counts::default()).is_err()
        }));
    }
    let extra = EXTRA.iter().map(|t| Ok(Scenario { name: String::new(), steps: script(t)?, setup: 0 }));
    let mut examples: Vec<Scenario> = extra.collect::<Result<_, String>>()?;
    examples.extend(known()?);
    examples.extend((0..40).map(|s| workloads::random(s, 50)));
    Ok(any(&system, &examples, config))
}

/// Tries all mistakes; which were found.
pub fn hunt_all(jobs: usize) -> Result<BTreeMap<String, bool>, String> {
    let done = Mutex::new(BTreeMap::new());
    let failed = Mutex::new(None);
    let all = Planted::all();
    let next = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for _ in 0..jobs {
            s.spawn(|| {
                // Relaxed: only a ticket.
                while let Some((name, planted)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let began = Instant::now();
                    match planted.is_found() {
                        Ok(found) => {
                            let found = found && began.elapsed() < LIMIT;
                            let word = if found { "found" } else { "NOT FOUND" };
                            eprintln!("canary {name}: {word} in {:.1} s", began.elapsed().as_secs_f64());
                            done.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), found);
                        }
                        Err(e) => *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(e),
                    }
                }
            });
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(e) => Err(e),
        None => Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}
