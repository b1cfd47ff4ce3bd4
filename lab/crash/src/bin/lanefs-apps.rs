//! `cargo xtask apps [--rounds N] [--only NAME] [--order ordered|relaxed] [--states N] [--seed N] [--jobs N] [--minutes N] [--peers N] [--keep DIR] [--json FILE]`:
//! applications under power loss. Exit status 1 if a promise was broken.

use lanefs::Order;
use lanefs_lab_crash::apps::judge::{Findings, judge};
use lanefs_lab_crash::apps::record::{Setting, record};
use lanefs_lab_crash::apps::states::Plan;
use lanefs_lab_crash::apps::{APPS, App, peers};
use lanefs_lab_model::generate::Rng;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

struct Options {
    rounds: u64,
    only: Vec<String>,
    ordered: bool,
    /// States of a recording.
    states: usize,
    seed: u64,
    jobs: usize,
    minutes: Option<u64>,
    /// Rounds on ext4 and XFS.
    peers: u64,
    /// Where the first broken content of each application is kept.
    keep: Option<PathBuf>,
    json: Option<String>,
}

fn options() -> Result<Options, String> {
    let mut o = Options {
        rounds: 1,
        only: Vec::new(),
        ordered: true,
        states: 400,
        seed: 1,
        jobs: 1,
        minutes: None,
        peers: 0,
        keep: None,
        json: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        let value = args.next().ok_or(format!("{a} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{value:?} is not a number"));
        match a.as_str() {
            "--rounds" => o.rounds = number()?,
            "--only" => {
                if !APPS.iter().any(|app| app.name == value) {
                    let names: Vec<_> = APPS.iter().map(|app| app.name).collect();
                    return Err(format!("{value:?} is none of {}", names.join(" ")));
                }
                o.only.push(value);
            }
            "--order" => {
                o.ordered = match value.as_str() {
                    "ordered" => true,
                    "relaxed" => false,
                    _ => return Err(format!("{value:?} is neither ordered nor relaxed")),
                }
            }
            "--states" => o.states = number()? as usize,
            "--seed" => o.seed = number()?,
            "--jobs" => o.jobs = number()?.max(1) as usize,
            "--minutes" => o.minutes = Some(number()?),
            "--peers" => o.peers = number()?,
            "--keep" => o.keep = Some(value.into()),
            "--json" => o.json = Some(value),
            _ => return Err(format!("unknown argument {a:?}")),
        }
    }
    Ok(o)
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

fn setting(rng: &mut Rng, ordered: bool) -> Setting {
    let interval = *rng.pick(&[50, 300, 1000, 5000]);
    Setting {
        size: *rng.pick(&[64, 96, 128]) << 20,
        interval: Duration::from_millis(interval),
        writeback: !rng.one_in(4),
        order: if ordered { Order::Ordered } else { Order::Relaxed },
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

fn work(o: &Options) -> Result<bool, String> {
    let start = Instant::now();
    let end = o.minutes.map(|m| start + Duration::from_secs(m * 60));
    let late = || end.is_some_and(|e| Instant::now() >= e);
    let apps = installed(o)?;
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    let (mut recordings, mut states, mut flushes) = (0, 0, 0);
    let mut broken = 0;
    'rounds: for round in 0..o.rounds {
        for (n, group) in groups(&apps).into_iter().enumerate() {
            if late() {
                break 'rounds;
            }
            let seed = o.seed.wrapping_add(round) ^ (n as u64) << 32;
            let mut rng = Rng::new(seed);
            let setting = setting(&mut rng, o.ordered);
            let recording = record(&group, &setting, seed)?;
            let plan = Plan::new(&recording, o.states, &mut rng);
            let findings = judge(&recording, &group, &plan, o.jobs)?;
            recordings += 1;
            states += findings.states;
            flushes += recording.log.flushes.len();
            for (app, looked) in &findings.looked {
                rows.entry(app).or_default().looked += looked;
            }
            for (app, all) in &findings.wrong {
                let held = o.ordered || !APPS.iter().any(|a| a.name == *app && a.ordered);
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
    let controls = control(o, &apps, &late)?;
    let by_app: BTreeMap<_, _> = rows.iter().map(|(app, row)| (app, row.json())).collect();
    let json = json!({
        "order": if o.ordered { "ordered" } else { "relaxed" },
        "recordings": recordings,
        "flushes": flushes,
        "states": states,
        "apps": by_app,
        "peers": controls,
        "violations": broken,
        "seconds": start.elapsed().as_secs_f64(),
        "seed": o.seed,
    });
    let text = serde_json::to_string_pretty(&json).map_err(|e| e.to_string())?;
    match &o.json {
        Some(file) => std::fs::write(file, text + "\n").map_err(|e| format!("{file}: {e}"))?,
        None => println!("{text}"),
    }
    Ok(broken == 0)
}

/// The same on ext4 and XFS, so many rounds of each application.
fn control(o: &Options, apps: &[&'static App], late: &dyn Fn() -> bool) -> Result<Value, String> {
    let mut all = BTreeMap::new();
    for peer in peers::PEERS {
        let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
        for round in 0..o.peers {
            for app in apps {
                if late() {
                    break;
                }
                let wrong = peers::round(app, peer, o.seed.wrapping_add(round))?;
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

fn main() -> ExitCode {
    match options().and_then(|o| work(&o)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!(
                "lanefs-apps: {e}\nusage: lanefs-apps [--rounds N] [--only NAME] [--order ordered|relaxed] [--states N] [--seed N] [--jobs N] \
                 [--minutes N] [--peers N] [--keep DIR] [--json FILE]"
            );
            ExitCode::from(2)
        }
    }
}
