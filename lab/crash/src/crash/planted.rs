//! Faults planted on purpose, and whether they are found: in the toy file system, in the devices,
//! in the model of the protocol, and, in a program compiled from the copy that `cargo xtask faults`
//! makes, in LaneFS itself. A checker that finds none of them proves nothing.

use super::device_faults::{DeviceFault, OnFaultyDevice};
use super::states::Levels;
use super::system::{LaneFs, System};
use super::toy::{Bug, Toy};
use super::{Config, Counts, run};
use crate::epochs::{self, Fault};
use lanefs_lab_faults::Fault as Library;
use lanefs_lab_model::op::Op;
use lanefs_lab_model::scenario::{Scenario, known, script};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time for which a fault may stay hidden.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Overwriting one file on a small device, with something else that was made durable before.
const CARRY: &[&str] = &["creat /k 100; fsync /k; creat /a 60000; fsync /a; \
     write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a;  \
     write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a;  \
     write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a;  \
     write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a;  \
     write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a;  \
     write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a"];

/// The same, with several epochs that such a checkpoint writes again.
const RANGE: &[&str] = &[
    "creat /k 100; fsync /k; creat /l 100; fsync /l; mkdir /d; creat /d/m 100; fsync /d/m; creat /a 60000; fsync /a; \
     write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a;  \
     write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a;  \
     write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a;  \
     write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a;  \
     write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a;  \
     write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a; write /a 0 60000; fsync /a",
];

/// A truncation that nobody made durable, and then so much overwriting that all segments are used
/// again.
const OVERWRITE: &[&str] = &["creat /a 300000; sync; ckpt; trunc /a 0; creat /b 60000; fsync /b; \
     write /b 0 60000; fsync /b; write /b 0 60000; fsync /b; write /b 0 60000; fsync /b; write /b 0 60000; fsync /b;  \
     write /b 0 60000; fsync /b; write /b 0 60000; fsync /b; write /b 0 60000; fsync /b; write /b 0 60000; fsync /b;  \
     write /b 0 60000; fsync /b; write /b 0 60000; fsync /b; write /b 0 60000; fsync /b; write /b 0 60000; fsync /b;  \
     write /b 0 60000; fsync /b; write /b 0 60000; fsync /b; write /b 0 60000; fsync /b; write /b 0 60000; fsync /b;  \
     write /b 0 60000; fsync /b; write /b 0 60000; fsync /b; write /b 0 60000; fsync /b; write /b 0 60000; fsync /b;  \
     write /b 0 60000; fsync /b; write /b 0 60000; fsync /b; write /b 0 60000; fsync /b; write /b 0 60000; fsync /b"];

/// Files whose pages lie beside the batches of their fsyncs; the checkpoint passes these. Then all
/// segments are claimed by turns.
const OVERWRITE_PIECES: &[&str] = &["creat /z 3000000; creat /a 8192; fsync /a; creat /b 8192; fsync /b; \
     creat /c 8192; fsync /c; creat /d 8192; fsync /d; creat /e 8192; fsync /e; ckpt; \
     write /z 0 3000000; sync; ckpt; write /z 0 3000000; sync; ckpt; write /z 0 3000000; sync; ckpt; \
     write /a 0 100; fsync /a"];

/// A volume of two logs that becomes full, so that one takes the blocks of both, and has space
/// again: then each goes on where it was. What was written meanwhile must not be written over.
const FULL_AND_AGAIN: &[&str] = &["creat /a 60000; creat /b 60000; fsync /b; creat /c 5900000; ckpt; \
     write /b 0 60000; fsync /b; ckpt; unlink /c; tick; ckpt; ckpt; \
     write /a 0 60000; fsync /a; creat /d 60000; fsync /d; write /a 0 60000; fsync /a; ckpt; \
     creat /e 60000; sync; write /a 0 60000; sync"];

/// One fault.
enum Planted {
    Toy(Bug),
    Device(DeviceFault),
    Model(Fault),
    Library(Library),
}

impl Planted {
    fn all() -> Vec<(String, Planted)> {
        let mut v: Vec<(String, Planted)> = Vec::new();
        v.extend(Bug::ALL.map(|b| (format!("toy: {b:?}"), Planted::Toy(b))));
        v.extend(DeviceFault::ALL.map(|l| (format!("device: {l:?}"), Planted::Device(l))));
        v.extend(Fault::ALL.map(|m| (format!("protocol: {m:?}"), Planted::Model(m))));
        if lanefs_lab_faults::IN_THIS_PROGRAM {
            v.extend(Library::ALL.map(|f| (format!("LaneFS: {f:?}"), Planted::Library(f))));
        }
        v
    }

    /// By what it was found.
    fn is_found(&self) -> Result<Option<String>, String> {
        let end = Instant::now() + LIMIT;
        Ok(match self {
            Planted::Toy(b) => {
                let mut examples = known()?;
                examples.retain(|e| e.steps.iter().all(|s| s.op != Op::Remount));
                any(&Toy::new(*b), &examples, &Config { blocks: 64, ..Config::SHORT }, end)
            }
            Planted::Device(fault) => any(
                &OnFaultyDevice { system: LaneFs::default(), fault: *fault },
                &known()?,
                &Config::SHORT,
                end,
            ),
            Planted::Model(m) => epochs::hunt(*m, 200_000).map(|(why, _)| why),
            Planted::Library(c) => {
                lanefs_lab_faults::plant(Some(*c));
                let found = library(*c);
                lanefs_lab_faults::plant(None);
                found?
            }
        })
    }
}

/// Looks at all examples a little, then closer, until one fails: which, and what rule it breaks.
fn any(system: &dyn System, examples: &[Scenario], config: &Config, end: Instant) -> Option<String> {
    let rounds = [
        Config { levels: Levels::QUICK, nested: 0, limit: 1500, ..*config },
        Config { levels: Levels::QUICK, nested: 7, limit: 1500, ..*config },
        Config { nested: 3, limit: 4000, ..*config },
    ];
    rounds.iter().find_map(|config| {
        let in_time = |_: &&Scenario| Instant::now() < end;
        examples.iter().take_while(in_time).find_map(|e| {
            let f = run(system, &e.steps, config, &mut Counts::default()).err()?;
            Some(format!("{}: {}", e.name, f.violation.rule))
        })
    })
}

/// The way in which a fault in LaneFS is looked for.
struct Look {
    scripts: &'static [&'static str],
    config: Config,
    system: LaneFs,
    with: With,
}

/// The checks that are run beside the scripts.
#[derive(PartialEq, Eq)]
enum With {
    Examples,
    Medium,
    Simulation,
    /// Simulations on devices that only read wrong.
    Misreads,
    /// Simulations on devices of all kinds, which come and go.
    Devices,
}

/// Returns the way in which a fault is looked for: scripts for it, then the known examples and
/// random histories.
fn look_for(fault: Library) -> Look {
    use lanefs_lab_faults::Fault as C;
    use lanefs_sync::clock::Clock;
    let mut l = Look { scripts: &[], config: Config::SHORT, system: LaneFs::default(), with: With::Examples };
    if matches!(fault, C::NoClosure | C::NoParent | C::NoChildren | C::MoveInFsync | C::NoEpochFilter) {
        l.system.mount.order = lanefs::Order::Relaxed;
    }
    match fault {
        C::EarlyReuse => (l.scripts, l.config.blocks) = (OVERWRITE, 384),
        // On a small one no data lies beside a batch.
        C::DataInLogFreed => (l.scripts, l.config.blocks, l.config.setup) = (OVERWRITE_PIECES, 2048, 20),
        // Only what is there when the volume has space again. (A large file is made in many steps.)
        C::HeadsShared => (l.scripts, l.config.blocks, l.config.setup) = (FULL_AND_AGAIN, 2048, 30),
        C::CarriesNothing => (l.scripts, l.config.blocks) = (CARRY, 384),
        C::EpochWithGap => {
            // Every group a part of its own, so that each of the two mlogs gets a share of each
            // epoch.
            (l.system.mount.commit_part, l.config.blocks) = (1, 2048);
            l.scripts = &[
                "mkdir /a; creat /a/f; mkdir /a/b; creat /a/b/g; rename /a/f /f; creat /a/b/h; rename /a/b/g /g; sync",
            ];
        }
        C::ClockAlone => {
            (l.system.threads, l.config.blocks) = (2, 2048);
            l.system.mount.clock = Some(std::sync::Arc::new(Clock::adversarial(7)));
            l.scripts = &[
                "creat /a 10; rename /a /b; creat /a 20; rename /b /c; rename /a /b; creat /a 30; rename /c /a; sync; rename /a /c; rename /b /a; sync",
            ];
        }
        C::PathRemembered => {
            l.scripts = &[
                "mkdir /d; mkdir /d/f; creat /d/f/a 10; creat /d/f/b 10; unlink /d/f/a; rename /d/f /e; unlink /d/f/b",
            ];
        }
        C::SplitRename => l.scripts = &["creat /a 10; sync; rename /a /b; sync"],
        C::LinkKept => {
            l.scripts = &["creat /a 10; link /a /c; creat /b 20; ckpt; rename /b /a; ckpt; fsync /c"]
        }
        C::PagesSkipped => {
            l.scripts = &[
                "creat /a 9000; sync; creat /b 9000; write /a 0 9000; sync; write /a 4096 4096; fsync /a; write /a 0 100; fsync /a",
            ];
        }
        C::TogetherInPart | C::TogetherUnflushed => {
            l.scripts = &["creat /a 9000; creat /b 9000; creat /c 300; sync"]
        }
        C::SizeAhead => l.scripts = &["creat /a 5000; sync; append /a 20000; setxattr /a user.a 9000; ckpt"],
        C::NumberReused => {
            l.scripts = &[
                "creat /a 5000; fsync /a; unlink /a; creat /b 3000; fsync /b; tick; creat /c 100; fsync /c; ckpt",
            ]
        }
        C::NoClosure => {
            l.scripts = &[
                "creat /a 100; sync; rename /a /b; creat /a 200; sync; rename /a /b; rename /b /c; creat /b 7; fsync /b; sync",
            ];
        }
        C::NoParent => l.scripts = &["mkdir /a; mkdir /a/b; creat /a/b/f 500; fsync /a/b/f"],
        C::NoChildren => {
            l.scripts = &["mkdir /d; mkdir /e; creat /d/a 10; sync; rename /d/a /e/a; rmdir /d; fsyncdir /"];
        }
        C::MoveInFsync => {
            l.scripts = &[
                "mkdir /a; mkdir /b; mkdir /b/c; sync; creat /x 10; rename /b/c /a/c; fsyncdir /a",
                "mkdir /a; mkdir /b; mkdir /b/c; sync; rename /b/c /a/c; rename /a /b/a; creat /b/a/c/f 10; fsync /b/a/c/f",
            ];
        }
        C::NamesForgotten => {
            l.scripts = &["creat /a 100; fsync /a; link /a /b; fsync /b; rename /a /c; fsync /c"]
        }
        C::OldVersionWins => {
            l.scripts = &["creat /a 9000; fsync /a; write /a 0 100; fsync /a; write /a 4096 4096; fsync /a"]
        }
        C::SyncForgetsWritten => {
            // Only what is there when all is answered.
            l.config.setup = 10;
            (l.scripts, l.config.blocks) =
                (&["creat /a 600000; creat /b 900000; creat /c 900000; sync"], 4096);
        }
        C::RenameWithoutContent => {
            l.scripts = &["creat /a 9000; sync; creat /t 8000; rename /t /a; fsyncdir /"]
        }
        C::RecoveryWithoutFlush => {
            l.scripts = &["creat /a 5000; fsync /a; mkdir /d; rename /a /d/a; fsync /d/a"]
        }
        C::PendingUnseen => l.scripts = &["creat /a 10; sync; rename /a /b; creat /c 10; fsync /c"],
        C::RightsAhead => {
            l.scripts = &[
                "creat /a 9000; sync; mkdir /d; chmod /a 600; write /a 0 4096; fdatasync /a; mkdir /e; chmod /a 640; fsync /a",
            ]
        }
        // One of three ACLs says no more than the mode.
        C::AclApart => {
            l.scripts = &["creat /a 10; chmod /a 600; sync; setfacl /a 1; setfacl /a 2; mkdir /d; fsyncdir /"]
        }
        C::CapabilityNotLogged => {
            l.scripts = &["creat /a 10; setxattr /a security.capability 20; mkdir /d; fsyncdir /"]
        }
        C::RightsNotLogged => l.scripts = &["creat /a 10; sync; chmod /a 600; mkdir /d; fsyncdir /"],
        C::VoidedAmongOthers => {
            l.scripts = &["creat /a 10; rename /a /b; unlink /b; tick; sync; ckpt; creat /b 10; sync; ckpt"]
        }
        C::WrittenVoided => {
            // An ordered volume commits the epoch.
            l.system.mount.order = lanefs::Order::Relaxed;
            l.system.mount.end_together = 1;
            l.scripts =
                &["creat /a 0; fsyncdir /; unlink /a; creat /x 0; unlink /x; creat /y 0; unlink /y; \
                 creat /z 0; unlink /z; creat /b 0; fsync /b; creat /c 0; fsync /c; fsyncdir /"];
        }
        C::PackFreed => {
            l.scripts =
                &["creat /a 0; creat /b 0; creat /c 0; ckpt; unlink /a; tick; ckpt; creat /d 0; ckpt; sync"]
        }
        C::WrongSlot => l.scripts = &["creat /a 0; creat /b 0; ckpt"],
        C::EndedUnseen => {
            l.scripts = &[
                "creat /a 0; creat /b 0; ckpt; write /a 0 9000; fsync /a; unlink /a; tick; ckpt; creat /c 0; ckpt; sync",
            ]
        }
        C::RangeMisnamed => (l.scripts, l.config.blocks) = (RANGE, 384),
        C::FlushErrorHidden | C::WriteErrorHidden | C::SpaceWithoutEnd => l.with = With::Simulation,
        C::NeighbourUnchecked | C::CopyInPart | C::ReplacedUnnamed | C::GoesInUse => l.with = With::Devices,
        C::UncheckedBlock => l.with = With::Medium,
        C::ChecksumWithoutAddress => l.with = With::Misreads,
        _ => {}
    }
    l
}

/// The scripts that show a fault, and what they are run with.
pub struct Scripts {
    /// The fault.
    pub fault: String,
    /// Its scripts.
    pub scenarios: Vec<Scenario>,
    /// The settings with which they are run.
    pub config: Config,
    /// On what.
    pub system: LaneFs,
}

/// The scripts of all faults in LaneFS that have some; nothing is planted.
pub fn scripts() -> Result<Vec<Scripts>, String> {
    let mut all = Vec::new();
    for fault in Library::ALL {
        let Look { scripts, config, system, .. } = look_for(fault);
        let mut scenarios = Vec::new();
        for (i, text) in scripts.iter().enumerate() {
            scenarios.push(Scenario { name: format!("script {i}"), steps: script(text)?, setup: 0 });
        }
        if !scenarios.is_empty() {
            all.push(Scripts { fault: format!("{fault:?}"), scenarios, config, system });
        }
    }
    Ok(all)
}

/// Runs until something is found, at most [`LIMIT`]: by what.
fn library(fault: Library) -> Result<Option<String>, String> {
    use super::{medium::run_medium, workloads};
    use crate::simulate::Choice;
    let l = look_for(fault);
    let end = Instant::now() + LIMIT;
    let in_time = |_: &u64| Instant::now() < end;
    match l.with {
        With::Simulation | With::Misreads | With::Devices => Ok((0..).take_while(in_time).find_map(|seed| {
            // A volume without an end takes long to fill if it is large.
            let (only_misreads, smallest) = (l.with == With::Misreads, l.with == With::Simulation);
            let r = crate::simulate::run_as(seed, Choice { only_misreads, smallest, ..Choice::default() });
            r.violations.first().map(|v| format!("simulation, seed {seed}: {}", rule_of(v)))
        })),
        With::Medium => Ok((0..).take_while(in_time).find_map(|seed| {
            let s = workloads::random(seed, 50);
            let r = run_medium(&l.system, &s.steps, &l.config, 16, 400, seed, &mut Counts::default());
            r.err().map(|f| format!("damage to the medium, seed {seed}: {}", f.violation.rule))
        })),
        With::Examples => {
            let mut examples: Vec<Scenario> = Vec::new();
            for (i, t) in l.scripts.iter().enumerate() {
                examples.push(Scenario { name: format!("script {i}"), steps: script(t)?, setup: 0 });
            }
            // Again for a while: graces of the whole process wait for what the other hunts are in
            // the middle of, and with them what a script needs to happen.
            let again = Instant::now() + LIMIT / 4;
            while !examples.is_empty() && Instant::now() < again {
                if let Some(found) = any(&l.system, &examples, &l.config, end) {
                    return Ok(Some(found));
                }
            }
            examples = known()?;
            examples.extend((0..40).map(|s| workloads::random(s, 50)));
            Ok(any(&l.system, &examples, &l.config, end))
        }
    }
}

/// The number of the rule that a violation quotes first.
fn rule_of(violation: &str) -> &str {
    violation.split(':').next().unwrap_or_default()
}

/// Tries all faults with `part` in their names; which were found.
pub fn hunt_all(jobs: usize, part: &str) -> Result<BTreeMap<String, bool>, String> {
    let done = Mutex::new(BTreeMap::new());
    let failed = Mutex::new(None);
    if part.starts_with("LaneFS") && !lanefs_lab_faults::IN_THIS_PROGRAM {
        return Err("LaneFS is compiled without faults here: call `cargo xtask faults`".into());
    }
    let mut all = Planted::all();
    all.retain(|p| p.0.contains(part));
    let next = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for _ in 0..jobs {
            s.spawn(|| {
                // Relaxed: only a ticket.
                while let Some((name, planted)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let began = Instant::now();
                    match planted.is_found() {
                        Ok(by) => {
                            let seconds = began.elapsed().as_secs_f64();
                            let found = by.is_some() && began.elapsed() < LIMIT;
                            match by {
                                Some(by) => eprintln!("planted {name}: found in {seconds:.1} s by {by}"),
                                None => eprintln!("planted {name}: NOT FOUND in {seconds:.1} s"),
                            }
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
