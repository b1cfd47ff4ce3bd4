//! `cargo xtask crash`: crashes LaneFS in every way the fault model knows, and says whether a
//! promise was broken, or a planted fault was not found.

use clap::Args;
use lanefs::Order;
use lanefs_lab_crash::crash::concurrent::run_threads;
use lanefs_lab_crash::crash::medium::run_medium;
use lanefs_lab_crash::crash::planted::hunt_all;
use lanefs_lab_crash::crash::states::Levels;
use lanefs_lab_crash::crash::system::{LaneFs, System};
use lanefs_lab_crash::crash::{Config, Counts, Failure, run, workloads};
use lanefs_lab_model::generate::shrink;
use lanefs_lab_model::harness::{Jobs, Limit, Output, Seed};
use lanefs_lab_model::scenario::{Scenario, known, small};
use lanefs_sync::clock::Clock;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The command line.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// The long version
    #[arg(long)]
    long: bool,
    /// Few states of each workload, and a failure as it was found
    #[arg(long)]
    quick: bool,
    /// A handful of states, at answers only, and no crash within recovery
    #[arg(long)]
    brief: bool,
    /// Families whose name begins so. The scripts of planted faults are families only when they
    /// are asked for (`script`); `planted` plants all of them, `planted NAME` those with NAME in
    /// their names
    #[arg(long, value_name = "FAMILY")]
    only: Option<String>,
    /// Go on, without --minutes as long as it takes, until so many distinct states were recovered;
    /// the families share the states then, not the time
    #[arg(long, value_name = "N")]
    states: Option<u64>,
    /// Of each family only these workloads
    #[arg(long = "workload", value_name = "N[..M]", value_parser = numbers)]
    workloads: Option<Range<usize>>,
    /// All in this order, where else workloads take turns: ordered or relaxed
    #[arg(long, value_parser = super::apps::order)]
    order: Option<Order>,
    /// Stop a family at so many failures
    #[arg(long = "failures", value_name = "N", default_value_t = 20)]
    keep_going: usize,
    #[command(flatten)]
    seed: Seed,
    #[command(flatten)]
    jobs: Jobs,
    #[command(flatten)]
    limit: Limit,
    #[command(flatten)]
    output: Output,
}

fn numbers(word: &str) -> Result<Range<usize>, String> {
    let number = |s: &str| s.parse::<usize>().map_err(|e| e.to_string());
    let (from, to) = word.split_once("..").unwrap_or((word, ""));
    let from = number(from)?;
    Ok(from..if to.is_empty() { from + 1 } else { number(to)? })
}

/// The way in which a workload is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Crashes of one thread's run.
    Crash,
    /// Crashes of three threads' run; the scenario's seed makes their steps.
    Threads,
    /// Damage to single blocks of a volume at rest.
    Medium,
}

/// A group of workloads with one configuration.
struct Family {
    name: String,
    kind: Kind,
    scenarios: Box<dyn Iterator<Item = Result<Scenario, String>> + Send>,
    config: Config,
    system: LaneFs,
    /// Its share of the time; 0: as long as it takes.
    share: f64,
}

/// LaneFS with another clock: correctness must not depend on it (O12).
fn with_clock(clock: Clock) -> LaneFs {
    let mut system = LaneFs::default();
    system.mount.clock = Some(std::sync::Arc::new(clock));
    system
}

fn families(o: &Options) -> Result<Vec<Family>, String> {
    let config = match (o.long, o.quick, o.brief) {
        (true, ..) => Config::LONG,
        (.., true) => Config { levels: Levels::BRIEF, nested: 0, ..Config::SHORT },
        (_, true, _) => Config { levels: Levels::QUICK, nested: 7, limit: 1500, ..Config::SHORT },
        _ => Config::SHORT,
    };
    let many = if o.long || o.brief || o.states.is_some() { usize::MAX } else { 100_000 };
    let seed = o.seed.seed;
    let family = |name: &str, scenarios, config, share| Family {
        name: name.into(),
        kind: Kind::Crash,
        scenarios,
        config,
        system: LaneFs::default(),
        share,
    };
    type Scenarios = Box<dyn Iterator<Item = Result<Scenario, String>> + Send>;
    let examples = || Ok::<Scenarios, String>(Box::new(known()?.into_iter().map(Ok)));
    let random = |from: u64| -> Scenarios {
        Box::new((0..many as u64).map(move |s| Ok(workloads::random(from + seed * 1_000_003 + s, 50))))
    };
    let two = Config { devices: 2, ..config };
    let mut shares = LaneFs::default();
    shares.mount.commit_part = 1;
    let mut copies = LaneFs::default();
    copies.format.metadata_copies = 2;
    let mut at_once = LaneFs::default();
    at_once.mount.end_together = 1;
    let threads = Config { limit: config.limit / 10, nested: 0, ..config };
    // What is large is folded, written out and recovered by several threads; `work` has small be
    // large.
    let mut helped = LaneFs::default();
    helped.mount.threads = 3;
    let two_logs = Config { blocks: 2048, ..config };
    let mut all = vec![
        family("known", examples()?, config, 0.0),
        family("seq-1", Box::new(workloads::seq1()), config, 0.0),
        // So small that the log comes back to where it was, and the cleaner has to move what lives.
        family(
            "small device",
            Box::new(small()?.into_iter().map(Ok)),
            Config { blocks: 384, limit: config.limit / 2, ..config },
            0.0,
        ),
        family("known, two devices", examples()?, two, 1.0),
        Family {
            system: with_clock(Clock::lamport()),
            ..family("known, Lamport clock", examples()?, config, 0.5)
        },
        Family {
            system: with_clock(Clock::adversarial(seed)),
            ..family("known, a clock that jumps", examples()?, config, 0.5)
        },
        Family {
            system: LaneFs { threads: 2, ..LaneFs::default() },
            // Large enough for two mlogs.
            ..family("known, two lanes by turns", examples()?, two_logs, 1.0)
        },
        Family {
            system: shares,
            // Likewise.
            ..family("known, epochs in shares", examples()?, two_logs, 0.5)
        },
        Family { system: helped.clone(), ..family("known, helping threads", examples()?, two_logs, 0.5) },
        Family { system: at_once.clone(), ..family("known, ends at once", examples()?, config, 0.5) },
        Family {
            system: copies.clone(),
            ..family("known, two copies of the tree", examples()?, config, 0.5)
        },
        Family {
            system: copies.clone(),
            ..family(
                "small device, two copies",
                Box::new(small()?.into_iter().map(Ok)),
                Config { blocks: 512, limit: config.limit / 2, ..config },
                0.5,
            )
        },
        Family { kind: Kind::Medium, ..family("medium", random(7 << 40), config, 0.5) },
        Family {
            kind: Kind::Medium,
            system: copies,
            ..family("medium, two copies", random(8 << 40), config, 0.25)
        },
        family("random", random(0), config, 1.0),
        Family { system: helped, ..family("random, helping threads", random(11 << 40), two_logs, 1.0) },
        Family { system: at_once.clone(), ..family("random, ends at once", random(10 << 40), config, 0.5) },
        Family { kind: Kind::Threads, system: at_once, ..family("threads", random(9 << 40), threads, 1.0) },
        family("seq-2", Box::new(workloads::seq2_all(seed).take(many)), config, 1.5),
        family("seq-3", Box::new(workloads::seq3_sample(seed, many)), config, 0.5),
    ];
    if o.only.as_ref().is_some_and(|f| f.starts_with("script")) {
        all = Vec::new();
        for s in lanefs_lab_crash::crash::planted::scripts()? {
            let setup = s.config.setup;
            let scenarios = Box::new(s.scenarios.into_iter().map(move |s| Ok(Scenario { setup, ..s })));
            let config = Config { blocks: s.config.blocks, ..config };
            all.push(Family {
                system: s.system,
                ..family(&format!("script {}", s.fault), scenarios, config, 0.0)
            });
        }
    }
    if let Some(n) = &o.workloads {
        for f in &mut all {
            let whole = std::mem::replace(&mut f.scenarios, Box::new(std::iter::empty()));
            f.scenarios = Box::new(whole.skip(n.start).take(n.len()));
        }
    }
    Ok(all)
}

#[derive(Default)]
struct Results {
    workloads: BTreeMap<String, u64>,
    counts: Counts,
    failures: Vec<(String, Box<Failure>)>,
    violations: u64,
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When a family has had its share.
#[derive(Clone, Copy, Default)]
struct Until {
    time: Option<Instant>,
    states: Option<u64>,
}

impl Until {
    fn is_over(&self, results: &Mutex<Results>) -> bool {
        self.time.is_some_and(|t| Instant::now() >= t)
            || self.states.is_some_and(|n| lock(results).counts.distinct >= n)
    }
}

/// Runs a family on all threads until it is done or has had its share.
fn run_family(family: Family, o: &Options, until: Until, results: &Mutex<Results>) {
    let Family { name, kind, scenarios, config, system, .. } = family;
    let queue = Mutex::new(scenarios.enumerate());
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        for _ in 0..o.jobs.get() {
            s.spawn(|| {
                let mut made = false;
                // One workload whatever the time is: no family is left out. Relaxed: a hint to stop
                // soon.
                while !(stop.load(Ordering::Relaxed) || made && until.is_over(results)) {
                    made = true;
                    let Some((nth, next)) = lock(&queue).next() else { return };
                    let scenario = match next {
                        Ok(s) => s,
                        Err(e) => {
                            eprintln!("{name}: {e}");
                            lock(results).violations += 1;
                            return;
                        }
                    };
                    let mut counts = Counts::default();
                    let steps = &scenario.steps;
                    let config = Config { setup: scenario.setup, ..config };
                    // By turns, unless one was asked for.
                    let by_turns = if nth % 2 == 0 { Order::Ordered } else { Order::Relaxed };
                    let mut system = system.clone();
                    system.mount.order =
                        o.order.unwrap_or(if name == "known" { system.mount.order } else { by_turns });
                    let failed = match kind {
                        Kind::Crash => run(&system, steps, &config, &mut counts).err(),
                        // The superblock and the slots lie in the first segment.
                        Kind::Medium => {
                            run_medium(&system, steps, &config, 16, 400, o.seed.seed, &mut counts).err()
                        }
                        Kind::Threads => {
                            let seed = scenario
                                .name
                                .bytes()
                                .fold(o.seed.seed, |h, b| h.wrapping_mul(31) + u64::from(b));
                            run_threads(&system, &workloads::threads(seed, 3, 25), &config, &mut counts).err()
                        }
                    };
                    let shrinks = kind == Kind::Crash && !o.quick;
                    let failed = failed.map(|f| if shrinks { smaller(&system, f, &config) } else { f });
                    let mut r = lock(results);
                    *r.workloads.entry(name.clone()).or_default() += 1;
                    r.counts += counts;
                    if let Some(f) = failed {
                        r.violations += 1;
                        eprintln!("VIOLATION in {name}, {}:\n{f}", scenario.name);
                        r.failures.push((format!("{name}: {}", scenario.name), f));
                        if r.failures.len() >= o.keep_going.max(1) {
                            stop.store(true, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
}

/// Leaves out steps for at most a minute while the same rule stays broken.
fn smaller(system: &dyn System, failure: Box<Failure>, config: &Config) -> Box<Failure> {
    let end = Instant::now() + Duration::from_secs(60);
    let mut best = failure;
    let steps = best.steps.clone();
    let config = &Config { setup: 0, ..*config };
    shrink(&steps, |t| {
        if Instant::now() > end {
            return false;
        }
        match run(system, t, config, &mut Counts::default()) {
            Err(f) if f.violation.rule == best.violation.rule => {
                best = f;
                true
            }
            _ => false,
        }
    });
    best
}

/// Each recovery maps a small cache; clearing two megabytes for its first page would cost more than
/// the recovery.
fn without_huge_pages() {
    // SAFETY: no pointer is passed; the call changes how this process's memory is backed, nothing
    // else.
    if unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) } != 0 {
        eprintln!("huge pages stay on");
    }
}

/// Runs the check.
pub fn work(o: &Options) -> Result<bool, String> {
    // A panic of what is checked is a violation, reported as such.
    std::panic::set_hook(Box::new(|p| {
        if std::thread::current().name().is_some_and(|n| n == "main") {
            eprintln!("{p}");
        }
    }));
    without_huge_pages();
    // Volumes with helping threads are small, too.
    lanefs_sync::parallel::share_early();
    let start = Instant::now();
    let minutes = match (o.limit.minutes, o.states) {
        (None, Some(_)) => None,
        (m, _) => Some(m.unwrap_or(if o.long { 600 } else { 8 })),
    };
    let results = Mutex::new(Results::default());
    let chosen: Vec<Family> = families(o)?
        .into_iter()
        .filter(|f| o.only.as_ref().is_none_or(|n| f.name.starts_with(n.as_str())))
        .collect();
    let shares: f64 = chosen.iter().map(|f| f.share).sum();
    let mut left = shares;
    for f in chosen {
        // What one family leaves over goes to the next ones.
        let mut until = Until::default();
        if f.share > 0.0 {
            let part = f.share / left;
            until.time = minutes.map(|m| {
                let rest = Duration::from_secs(m * 60).saturating_sub(start.elapsed());
                Instant::now() + rest.mul_f64(part)
            });
            let done = lock(&results).counts.distinct;
            until.states = o.states.map(|n| done + (n.saturating_sub(done) as f64 * part).ceil() as u64);
        }
        left -= f.share;
        let name = f.name.clone();
        run_family(f, o, until, &results);
        let r = lock(&results);
        eprintln!(
            "{name}: {} workloads; so far {} states, {} recoveries, {} checks, {} fscks, {} segments cleaned, {} reused, {} violations, {:.0} s",
            r.workloads.get(&name).copied().unwrap_or(0),
            r.counts.distinct,
            r.counts.recovered,
            r.counts.checks,
            r.counts.fscks,
            r.counts.cleaned,
            r.counts.reused,
            r.violations,
            start.elapsed().as_secs_f64()
        );
    }
    let hunted = match o.only.as_deref() {
        None | Some("planted") => Some(""),
        Some(family) => family.strip_prefix("planted "),
    };
    let planted = if let Some(name) = hunted { hunt_all(o.jobs.get(), name)? } else { BTreeMap::new() };
    let r = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    let failures: Vec<_> = r
        .failures
        .iter()
        .map(|(w, f)| serde_json::json!({"workload": w, "failure": f.to_string()}))
        .collect();
    let json = serde_json::json!({
        "workloads": r.workloads,
        "states": r.counts.distinct,
        "recovered": r.counts.recovered,
        "checks": r.counts.checks,
        "fscks": r.counts.fscks,
        "segments_cleaned": r.counts.cleaned,
        "segments_reused": r.counts.reused,
        "violations": r.violations,
        "planted": planted,
        "failures": failures,
        "seconds": start.elapsed().as_secs(),
        "seed": o.seed.seed,
    });
    o.output.write(&json)?;
    Ok(r.violations == 0 && planted.values().all(|c| *c))
}
