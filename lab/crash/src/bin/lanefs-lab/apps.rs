//! `cargo xtask apps`: applications under power loss.

use clap::Args;
use lanefs::Order;
use lanefs_lab_crash::apps::judge::{Findings, judge};
use lanefs_lab_crash::apps::record::{Setting, record};
use lanefs_lab_crash::apps::states::Plan;
use lanefs_lab_crash::apps::{APPS, App, peers};
use lanefs_lab_model::generate::Rng;
use lanefs_lab_model::harness::{Deadline, Jobs, Limit, Output, Seed};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The command line.
#[derive(Debug, Args)]
pub struct Options {
    /// Rounds of each application and of all together
    #[arg(long, value_name = "N", default_value_t = 1)]
    rounds: u64,
    /// This application; may be given several times
    #[arg(long, value_name = "NAME", value_parser = known_app)]
    only: Vec<String>,
    /// In which order changes of names reach the medium
    #[arg(long, default_value = "ordered", value_parser = order)]
    order: Order,
    /// States of a recording
    #[arg(long, value_name = "N", default_value_t = 400)]
    states: usize,
    /// Rounds on ext4 and XFS
    #[arg(long, value_name = "N", default_value_t = 0)]
    peers: u64,
    /// Keep the first broken content of each application here
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    #[command(flatten)]
    seed: Seed,
    #[command(flatten)]
    jobs: Jobs,
    #[command(flatten)]
    limit: Limit,
    #[command(flatten)]
    output: Output,
}

impl Options {
    fn ordered(&self) -> bool {
        self.order == Order::Ordered
    }
}

fn known_app(name: &str) -> Result<String, String> {
    if APPS.iter().any(|app| app.name == name) {
        return Ok(name.into());
    }
    let names: Vec<_> = APPS.iter().map(|app| app.name).collect();
    Err(format!("none of {}", names.join(" ")))
}

/// The order that a word on the command line names.
pub fn order(word: &str) -> Result<Order, String> {
    match word {
        "ordered" => Ok(Order::Ordered),
        "relaxed" => Ok(Order::Relaxed),
        _ => Err("neither ordered nor relaxed".into()),
    }
}

/// The applications asked for that are installed. In CI all of them must be.
fn installed(o: &Options) -> Result<Vec<&'static App>, String> {
    let mut apps = Vec::new();
    for app in APPS.iter().filter(|a| o.only.is_empty() || o.only.iter().any(|n| n == a.name)) {
        match app.missing() {
            None => apps.push(app),
            Some(what) if std::env::var_os("CI").is_some() => {
                return Err(format!("{}: {what} is not installed", app.name));
            }
            Some(what) => eprintln!("{}: skipped, {what} is not installed", app.name),
        }
    }
    Ok(apps)
}

/// Everything of one kind of file system, by application.
#[derive(Default)]
struct Row {
    looked: u64,
    wrong: u64,
    first: Vec<String>,
}

impl Row {
    fn tell(&mut self, what: String) {
        self.wrong += 1;
        if self.first.len() < 5 {
            self.first.push(what);
        }
    }
    fn json(&self) -> Value {
        json!({ "judged": self.looked, "wrong": self.wrong, "first": self.first })
    }
}

/// The groups of applications that share a volume in a round: each alone, and all of them together.
fn groups(apps: &[&'static App]) -> Vec<Vec<&'static App>> {
    let mut groups: Vec<Vec<_>> = apps.iter().map(|a| vec![*a]).collect();
    if apps.len() > 1 {
        groups.push(apps.to_vec());
    }
    groups
}

fn setting(rng: &mut Rng, order: Order) -> Setting {
    let interval = *rng.pick(&[50, 300, 1000, 5000]);
    Setting {
        size: *rng.pick(&[64, 96, 128]) << 20,
        interval: Duration::from_millis(interval),
        writeback: !rng.one_in(4),
        order,
    }
}

fn keep(o: &Options, app: &str, findings: &Findings) -> Result<(), String> {
    let Some(dir) = &o.keep else { return Ok(()) };
    let path = dir.join(format!("{app}.img"));
    if let Some(wrong) = findings.wrong.get(app).and_then(|w| w.first())
        && !path.exists()
    {
        std::fs::write(&path, wrong.image.to_vec()).map_err(|e| format!("{}: {e}", path.display()))?;
        eprintln!("{}: {}", path.display(), wrong.state);
    }
    Ok(())
}

/// Runs the check.
pub fn work(o: &Options) -> Result<bool, String> {
    let start = Instant::now();
    let end = o.limit.from_now();
    let apps = installed(o)?;
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    let (mut recordings, mut states, mut flushes) = (0, 0, 0);
    let mut broken = 0;
    'rounds: for round in 0..o.rounds {
        for (n, group) in groups(&apps).into_iter().enumerate() {
            if end.is_over() {
                break 'rounds;
            }
            let seed = o.seed.seed.wrapping_add(round) ^ (n as u64) << 32;
            let mut rng = Rng::new(seed);
            let setting = setting(&mut rng, o.order);
            let recording = record(&group, &setting, seed)?;
            let plan = Plan::new(&recording, o.states, &mut rng);
            let findings = judge(&recording, &group, &plan, o.jobs.get())?;
            recordings += 1;
            states += findings.states;
            flushes += recording.log.flushes.len();
            for (app, looked) in &findings.looked {
                rows.entry(app).or_default().looked += looked;
            }
            for (app, all) in &findings.wrong {
                let held = o.ordered() || !APPS.iter().any(|a| a.name == *app && a.ordered);
                for wrong in all {
                    broken += u64::from(held);
                    let told = format!("round {round}, {setting:?}, {}: {}", wrong.state, wrong.why);
                    rows.entry(app).or_default().tell(told);
                }
                let word = if held { "VIOLATION" } else { "relies on order" };
                eprintln!("{word}: {app}: {} of {} states: {}", all.len(), findings.states, all[0].why);
                keep(o, app, &findings)?;
            }
        }
    }
    let controls = control(o, &apps, end)?;
    let by_app: BTreeMap<_, _> = rows.iter().map(|(app, row)| (app, row.json())).collect();
    let json = json!({
        "order": if o.ordered() { "ordered" } else { "relaxed" },
        "recordings": recordings,
        "flushes": flushes,
        "states": states,
        "apps": by_app,
        "peers": controls,
        "violations": broken,
        "seconds": start.elapsed().as_secs_f64(),
        "seed": o.seed.seed,
    });
    o.output.write(&json)?;
    Ok(broken == 0)
}

/// The same on ext4 and XFS, so many rounds of each application.
fn control(o: &Options, apps: &[&'static App], end: Deadline) -> Result<Value, String> {
    let mut all = BTreeMap::new();
    for peer in peers::PEERS {
        let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
        for round in 0..o.peers {
            for app in apps {
                if end.is_over() {
                    break;
                }
                let wrong = peers::round(app, peer, o.seed.seed.wrapping_add(round))?;
                let row = rows.entry(app.name).or_default();
                row.looked += 1;
                if let Some(why) = wrong {
                    eprintln!("control: {} on {}: {why}", app.name, peer.0);
                    row.tell(format!("round {round}: {why}"));
                }
            }
        }
        let by_app: BTreeMap<_, _> = rows.iter().map(|(app, row)| (*app, row.json())).collect();
        all.insert(peer.0, by_app);
    }
    Ok(json!(all))
}
