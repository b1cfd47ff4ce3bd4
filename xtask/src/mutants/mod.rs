//! `cargo xtask mutants [--jobs N] [--sample N] [--seed N] [--only PART] [--out FILE] FILE..`: a mistake in every line, one at a time; which do
//! the tests find? All mistakes are compiled into one copy of the workspace, asleep, so that each costs a run of the tests and no build.

mod judge;
mod plant;

use plant::Mutant;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is mutated unless files are named: the rooms where a mistake loses data.
const ROOMS: [&str; 12] = [
    "crates/lanefs-store/src/recovery.rs",
    "crates/lanefs-store/src/scan.rs",
    "crates/lanefs-store/src/arrived.rs",
    "crates/lanefs-store/src/mlog.rs",
    "crates/lanefs-store/src/commit.rs",
    "crates/lanefs-store/src/transaction.rs",
    "crates/lanefs/src/writeback/capture.rs",
    "crates/lanefs/src/writeback/checkpoint.rs",
    "crates/lanefs/src/writeback/closure.rs",
    "crates/lanefs/src/writeback/commit.rs",
    "crates/lanefs/src/writeback/fsync.rs",
    "crates/lanefs/src/writeback/unsynced.rs",
];

/// What the copy's lanefs-sync says when it is asked whether a mistake is awake.
const AWAKE: &str = r#"
/// Whether this mistake is made. Which is said by LANEFS_MUTANT; whoever is asked for the first time is noted in LANEFS_MUTANTS_REACHED.
pub fn mutated(id: usize) -> bool {
    use std::io::Write;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};
    static AWAKE: OnceLock<usize> = OnceLock::new();
    static REACHED: OnceLock<Option<std::fs::File>> = OnceLock::new();
    static SEEN: [AtomicBool; 8192] = [const { AtomicBool::new(false) }; 8192];
    let awake = *AWAKE.get_or_init(|| std::env::var("LANEFS_MUTANT").ok().and_then(|s| s.parse().ok()).unwrap_or(0));
    if awake == 0 && !SEEN[id].swap(true, Ordering::Relaxed) {
        let file = REACHED.get_or_init(|| {
            let path = std::env::var_os("LANEFS_MUTANTS_REACHED")?;
            std::fs::OpenOptions::new().append(true).create(true).open(path).ok()
        });
        if let Some(mut f) = file.as_ref() {
            let _ = f.write_all(format!("{id}\n").as_bytes());
        }
    }
    awake == id
}
"#;

struct Options {
    jobs: usize,
    sample: Option<usize>,
    seed: u64,
    out: Option<String>,
    files: Vec<String>,
}

fn options(arguments: &[&str]) -> Result<Options, String> {
    let mut o = Options { jobs: 1, sample: None, seed: 1, out: None, files: Vec::new() };
    let mut all = arguments.iter();
    while let Some(a) = all.next() {
        let mut value = || all.next().ok_or(format!("{a} needs a value"));
        let number = |s: &&str| s.parse::<usize>().map_err(|_| format!("{s:?} is not a number"));
        match *a {
            "--jobs" => o.jobs = number(value()?)?.max(1),
            "--sample" => o.sample = Some(number(value()?)?),
            "--seed" => o.seed = number(value()?)? as u64,
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

/// Copies what git knows of the workspace.
fn copy(root: &Path, to: &Path) -> Result<(), String> {
    let list =
        Command::new("git").args(["ls-files", "-z"]).current_dir(root).output().map_err(|e| e.to_string())?;
    for name in list.stdout.split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let name = String::from_utf8_lossy(name).into_owned();
        let (from, to) = (root.join(&name), to.join(&name));
        let Ok(bytes) = std::fs::read(&from) else { continue };
        // What did not change keeps its time, so that it is not built again.
        if std::fs::read(&to).is_ok_and(|b| b == bytes) {
            continue;
        }
        let made = to.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.and_then(|()| std::fs::write(&to, bytes)).map_err(|e| format!("{}: {e}", to.display()))?;
    }
    Ok(())
}

/// Plants all mistakes in the copy of these files.
fn plant_all(
    to: &Path,
    texts: &[(String, String)],
    without: &BTreeSet<usize>,
) -> Result<Vec<Mutant>, String> {
    let mut all = Vec::new();
    let mut next = 1;
    for (f, text) in texts {
        let (planted, mutants, after) = plant::plant(f, text, next, without);
        std::fs::write(to.join(f), planted).map_err(|e| format!("{f}: {e}"))?;
        next = after;
        all.extend(mutants);
    }
    Ok(all)
}

/// Plants, builds, and takes out what does not compile, until it does.
fn prepare(o: &Options, to: &Path) -> Result<(Vec<Mutant>, Vec<judge::Judge>), String> {
    let root = crate::run::root();
    copy(&root, to)?;
    let sync = to.join("crates/lanefs-sync/src/lib.rs");
    let mut text = std::fs::read_to_string(&sync).map_err(|e| e.to_string())?;
    text.push_str(AWAKE);
    std::fs::write(&sync, text).map_err(|e| e.to_string())?;
    let read = |f: &String| {
        let text = std::fs::read_to_string(to.join(f)).map_err(|e| format!("{f}: {e}"))?;
        Ok::<_, String>((f.clone(), text))
    };
    let texts = o.files.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let mut without = BTreeSet::new();
    for _ in 0..12 {
        let mutants = plant_all(to, &texts, &without)?;
        match judge::build(to)? {
            Ok(judges) => {
                eprintln!("{} mistakes; {} more do not compile", mutants.len(), without.len());
                return Ok((mutants, judges));
            }
            Err(errors) => {
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
        }
    }
    Err("still does not compile".into())
}

/// See above.
pub fn main(arguments: &[&str]) -> Result<(), String> {
    let o = options(arguments)?;
    let to: PathBuf = std::env::temp_dir().join("lanefs-mutants");
    let (mut mutants, mut judges) = prepare(&o, &to)?;
    for j in &mut judges {
        j.first_run(&to)?;
    }
    if let Some(n) = o.sample {
        let rank =
            |m: &Mutant| (m.id as u64).wrapping_add(o.seed << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7;
        mutants.sort_by_key(rank);
        mutants.truncate(n);
        mutants.sort_by_key(|m| m.id);
    }
    let verdicts = judge::judge_all(&mutants, &judges, o.jobs);
    let left = verdicts.iter().filter(|v| !matches!(v.1, judge::Verdict::Found(_))).count();
    let mut text = String::new();
    for (m, verdict) in &verdicts {
        text.push_str(&format!("{}:{}\t{}\t{verdict}\n", m.file, m.line, m.what));
    }
    match &o.out {
        Some(f) => std::fs::write(f, text).map_err(|e| format!("{f}: {e}"))?,
        None => print!("{text}"),
    }
    eprintln!("{} mistakes tried, {left} not found", verdicts.len());
    Ok(())
}
