//! `cargo xtask mutants [--jobs N] [--sample N] [--seed N] [--minutes N] [--longest N] [--judges PART,..] [--only PART] [--out FILE] FILE..`:
//! a mistake in every line, one at a time; which do the tests find? All mistakes are compiled into
//! one copy of the workspace, asleep, so that each costs a run of the tests that come by it and no
//! build. What is found is written to FILE at once, and a later run goes on from there: also with
//! tests that are new. The mistakes come in an order drawn from the seed, so that a run that was
//! stopped is a sample.

mod judge;
mod ledger;
mod plant;
mod trial;

use ledger::Ledger;
use plant::Mutant;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What is mutated unless files are named: the rooms where a mistake loses data.
const ROOMS: [&str; 13] = [
    "crates/lanefs-store/src/recovery/make.rs",
    "crates/lanefs-store/src/recovery/mod.rs",
    "crates/lanefs-store/src/recovery/scan.rs",
    "crates/lanefs-store/src/recovery/verify.rs",
    "crates/lanefs-store/src/log/mlog.rs",
    "crates/lanefs-store/src/engine/commit.rs",
    "crates/lanefs-store/src/engine/transaction.rs",
    "crates/lanefs/src/writeback/capture.rs",
    "crates/lanefs/src/writeback/checkpoint.rs",
    "crates/lanefs/src/writeback/closure.rs",
    "crates/lanefs/src/writeback/commit.rs",
    "crates/lanefs/src/writeback/fsync.rs",
    "crates/lanefs/src/writeback/unsynced.rs",
];

/// What the copy's lanefs-sync says when it is asked whether a mistake is awake.
const AWAKE: &str = r#"
/// The mistake that is made: its number is in LANEFS_MUTANT.
fn awake() -> usize {
    static AWAKE: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *AWAKE.get_or_init(|| std::env::var("LANEFS_MUTANT").ok().and_then(|s| s.parse().ok()).unwrap_or(0))
}

/// Notes in LANEFS_MUTANTS_REACHED, once, that this mistake would make a difference.
fn makes_a_difference(id: usize) {
    use std::io::Write;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};
    static REACHED: OnceLock<Option<std::fs::File>> = OnceLock::new();
    static SEEN: [AtomicBool; 8192] = [const { AtomicBool::new(false) }; 8192];
    if !SEEN[id].load(Ordering::Relaxed) && !SEEN[id].swap(true, Ordering::Relaxed) {
        let file = REACHED.get_or_init(|| {
            let path = std::env::var_os("LANEFS_MUTANTS_REACHED")?;
            std::fs::OpenOptions::new().append(true).create(true).open(path).ok()
        });
        if let Some(mut f) = file.as_ref() {
            let _ = f.write_all(format!("{id}\n").as_bytes());
        }
    }
}

/// Whether this mistake is made.
pub fn mutated(id: usize) -> bool {
    if awake() == 0 {
        makes_a_difference(id);
    }
    awake() == id
}

/// A condition that this mistake makes another.
pub fn changed(id: usize, other: bool, is: bool) -> bool {
    if awake() == 0 && other != is {
        makes_a_difference(id);
    }
    if awake() == id { other } else { is }
}
"#;

struct Options {
    jobs: usize,
    sample: Option<usize>,
    seed: u64,
    minutes: Option<usize>,
    /// What takes more seconds of a processor without a mistake is no judge.
    longest: usize,
    /// Parts of the names of the judges to ask; none, all.
    judges: Vec<String>,
    only: Option<String>,
    out: Option<String>,
    files: Vec<String>,
}

fn options(arguments: &[&str]) -> Result<Options, String> {
    let (sample, minutes, only, out) = (None, None, None, None);
    let mut o = Options {
        jobs: 1,
        sample,
        seed: 1,
        minutes,
        longest: 20,
        judges: Vec::new(),
        only,
        out,
        files: Vec::new(),
    };
    let mut all = arguments.iter();
    while let Some(a) = all.next() {
        let mut value = || all.next().ok_or(format!("{a} needs a value"));
        let number = |s: &&str| s.parse::<usize>().map_err(|_| format!("{s:?} is not a number"));
        match *a {
            "--jobs" => o.jobs = number(value()?)?.max(1),
            "--sample" => o.sample = Some(number(value()?)?),
            "--seed" => o.seed = number(value()?)? as u64,
            "--minutes" => o.minutes = Some(number(value()?)?),
            "--longest" => o.longest = number(value()?)?.max(1),
            "--judges" => o.judges = value()?.split(',').map(String::from).collect(),
            "--only" => o.only = Some((*value()?).into()),
            "--out" => o.out = Some((*value()?).into()),
            f if f.ends_with(".rs") => o.files.push(f.into()),
            _ => return Err(format!("unknown argument {a:?}")),
        }
    }
    if o.files.is_empty() {
        o.files = ROOMS.map(String::from).to_vec();
    }
    Ok(o)
}

/// Writes what is not there yet: what did not change keeps its time, so that it is not built again.
fn put(at: &Path, bytes: &[u8]) -> Result<(), String> {
    if std::fs::read(at).is_ok_and(|b| b == bytes) {
        return Ok(());
    }
    let made = at.parent().map_or(Ok(()), std::fs::create_dir_all);
    made.and_then(|()| std::fs::write(at, bytes)).map_err(|e| format!("{}: {e}", at.display()))
}

/// Copies what git knows of the workspace, but for `files`, where mistakes are planted.
fn copy(root: &Path, to: &Path, files: &[String]) -> Result<(), String> {
    let list =
        Command::new("git").args(["ls-files", "-z"]).current_dir(root).output().map_err(|e| e.to_string())?;
    for name in list.stdout.split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let name = String::from_utf8_lossy(name).into_owned();
        let Ok(mut bytes) = std::fs::read(root.join(&name)) else { continue };
        if files.contains(&name) {
            continue;
        }
        if name == "crates/lanefs-sync/src/lib.rs" {
            bytes.extend_from_slice(AWAKE.as_bytes());
        }
        put(&to.join(&name), &bytes)?;
    }
    Ok(())
}

/// The files with all mistakes but some, and the mistakes.
fn plant_all(texts: &[(String, String)], without: &BTreeSet<usize>) -> (Vec<String>, Vec<Mutant>) {
    let (mut files, mut all) = (Vec::new(), Vec::new());
    let mut next = 1;
    for (f, text) in texts {
        let (planted, mutants, after) = plant::plant(f, text, next, without);
        files.push(planted);
        next = after;
        all.extend(mutants);
    }
    (files, all)
}

/// Plants, and takes out what does not compile, until it does.
fn prepare(
    to: &Path,
    texts: &[(String, String)],
    ledger: &mut Ledger,
) -> Result<(Vec<Mutant>, Vec<judge::Judge>), String> {
    let mut without = ledger.without.clone().unwrap_or_default();
    for _ in 0..12 {
        let (files, mutants) = plant_all(texts, &without);
        for ((name, _), text) in texts.iter().zip(files) {
            put(&to.join(name), text.as_bytes())?;
        }
        let errors = judge::check(to)?;
        if errors.is_empty() {
            ledger.leave_out(&without)?;
            eprintln!("{} mistakes; {} more do not compile", mutants.len(), without.len());
            return Ok((mutants, judge::build(to)?));
        }
        let before = without.len();
        for (file, line) in &errors {
            // What is wrong shows at times a few lines below.
            let near = |lines: usize| {
                let at = |m: &&Mutant| m.file == *file && m.line <= *line && m.line + lines >= *line;
                mutants.iter().filter(at).map(|m| m.id).collect::<Vec<_>>()
            };
            let here = near(0);
            without.extend(if here.is_empty() { near(8) } else { here });
        }
        if without.len() == before {
            return Err(format!("does not compile at {errors:?}"));
        }
    }
    Err("still does not compile".into())
}

/// See above.
pub fn main(arguments: &[&str]) -> Result<(), String> {
    let o = options(arguments)?;
    let end = o.minutes.map(|m| Instant::now() + Duration::from_secs(m as u64 * 60));
    let to: PathBuf = std::env::temp_dir().join("lanefs-mutants");
    let root = crate::run::root();
    copy(&root, &to, &o.files)?;
    let read = |f: &String| {
        let text = std::fs::read_to_string(root.join(f)).map_err(|e| format!("{f}: {e}"))?;
        Ok::<_, String>((f.clone(), text))
    };
    let texts = o.files.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let (_, all) = plant_all(&texts, &BTreeSet::new());
    let path = o.out.as_ref().map_or_else(|| to.join("ledger"), PathBuf::from);
    let mut ledger = Ledger::open(&path, &all)?;
    let (mut mutants, found) = prepare(&to, &texts, &mut ledger)?;
    let mut judges = Vec::new();
    let asked =
        |j: &judge::Judge| o.judges.is_empty() || o.judges.iter().any(|p| j.name.contains(p.as_str()));
    for mut j in found.into_iter().filter(asked) {
        if let Some(n) = ledger.number(&mut j, &to, o.longest as u64)? {
            judges.push((n, j));
        }
    }
    let seconds: f64 = judges.iter().map(|j| j.1.seconds).sum();
    eprintln!("{} judges, {seconds:.0} s without a mistake", judges.len());
    if let Some(part) = &o.only {
        mutants.retain(|m| m.place().contains(part.as_str()) || m.id.to_string() == *part);
    }
    let rank = |m: &Mutant| (m.id as u64).wrapping_add(o.seed << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7;
    mutants.sort_by_key(rank);
    mutants.truncate(o.sample.unwrap_or(usize::MAX));
    let ledger = Mutex::new(ledger);
    let trial = trial::Trial { mutants: &mutants, judges: &judges, end };
    trial.run(&ledger, o.jobs)?;
    let ledger = ledger.into_inner().unwrap_or_else(PoisonError::into_inner);
    let left = trial.survivors(&ledger);
    for (m, what) in &left {
        println!("{}\t{}\t{}\t{what}", m.id, m.place(), m.what);
    }
    eprintln!("{} mistakes, {} not found; {}", mutants.len(), left.len(), path.display());
    Ok(())
}
