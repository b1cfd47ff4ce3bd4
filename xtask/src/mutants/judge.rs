//! The tests that judge mistakes: built once, run for each mistake that they reach, stopped at the first failure.

use super::plant::Mutant;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// A program that fails when something is wrong.
pub struct Judge {
    name: String,
    program: PathBuf,
    arguments: Vec<&'static str>,
    directory: PathBuf,
    /// The mistakes it comes by.
    reached: BTreeSet<usize>,
    /// Seconds without a mistake.
    seconds: f64,
}

/// The tests of these packages are judges; so are runs of the checkers.
const PACKAGES: [&str; 2] = ["lanefs-store", "lanefs"];
const CHECKERS: [(&str, &[&str]); 3] = [
    ("lanefs-simulate", &["--runs", "120"]),
    ("lanefs-crash", &["--only", "known, two lanes", "--states", "6000", "--jobs", "1"]),
    ("lanefs-crash", &["--only", "known, epochs", "--states", "6000", "--jobs", "1"]),
];

/// Files and lines of errors.
type Errors = BTreeSet<(String, usize)>;

/// Builds the copy: its judges, or where it does not compile.
pub fn build(at: &Path) -> Result<Result<Vec<Judge>, Errors>, String> {
    let mut judges = Vec::new();
    let features = ["--profile", "fuzz", "--features", "lanefs-check/canaries", "--message-format", "short"];
    let run = |arguments: &[&str]| -> Result<Result<String, Errors>, String> {
        eprintln!("+ cargo {}", arguments.join(" "));
        let mut c = crate::run::cargo(arguments);
        let done = c.args(features).current_dir(at).output().map_err(|e| e.to_string())?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        if done.status.success() {
            return Ok(Ok(said));
        }
        let place = |l: &str| {
            let mut parts = l.splitn(4, ':');
            let (file, line) = (parts.next()?, parts.next()?.parse().ok()?);
            let what = parts.nth(1)?;
            what.trim_start().starts_with("error").then(|| (file.to_string(), line))
        };
        let errors: Errors = said.lines().filter_map(place).collect();
        if errors.is_empty() { Err(said) } else { Ok(Err(errors)) }
    };
    let bins = ["build", "-p", "lanefs-check", "--bin", "lanefs-simulate", "--bin", "lanefs-crash"];
    if let Err(errors) = run(&bins)? {
        return Ok(Err(errors));
    }
    let tests = [
        "test",
        "--no-run",
        "-p",
        "lanefs-check",
        "-p",
        PACKAGES[0],
        "-p",
        PACKAGES[1],
        "--lib",
        "--test",
        "it",
    ];
    let said = match run(&tests)? {
        Ok(said) => said,
        Err(errors) => return Ok(Err(errors)),
    };
    let mut folder = None;
    for l in said.lines().filter(|l| l.trim_start().starts_with("Executable")) {
        let Some(path) = l.split('(').nth(1).and_then(|p| p.strip_suffix(')')) else { continue };
        let program = at.join(path);
        let file = program.file_name().map(|f| f.to_string_lossy().into_owned()).unwrap_or_default();
        folder = program.parent().and_then(Path::parent).map(Path::to_path_buf);
        // Files of one name differ by what is in them; the package shows by the order.
        judges.push((file, program));
    }
    let Some(folder) = folder else { return Err(format!("no tests: {said}")) };
    let judge = |name: &str, program: &Path, arguments: &[&'static str], directory: &str| Judge {
        name: name.into(),
        program: program.into(),
        arguments: arguments.to_vec(),
        directory: at.join(directory),
        reached: BTreeSet::new(),
        seconds: 0.0,
    };
    let mut all = Vec::new();
    for (file, program) in &judges {
        let names = Command::new(program).arg("--list").output().map_err(|e| e.to_string())?;
        let names = String::from_utf8_lossy(&names.stdout).into_owned();
        let own = |word: &str| names.lines().any(|l| l.starts_with(word));
        match file.split('-').next().unwrap_or("") {
            "lanefs_store" => all.push(judge("lanefs-store unit", program, &[], "crates/lanefs-store")),
            "lanefs" => all.push(judge("lanefs unit", program, &[], "crates/lanefs")),
            "it" if own("lost::") => {
                all.insert(0, judge("lanefs-store", program, &[], "crates/lanefs-store"))
            }
            "it" if own("history::") => all.push(judge("lanefs", program, &[], "crates/lanefs")),
            "it" => all.push(judge("repair", program, &["repair::", "directory::"], "crates/lanefs-check")),
            _ => {}
        }
    }
    for (name, arguments) in CHECKERS {
        all.push(judge(name, &folder.join(name), arguments, "."));
    }
    Ok(Ok(all))
}

/// How a run ended.
#[derive(PartialEq, Eq, Debug)]
enum End {
    Good,
    Failed,
    Endless,
}

/// What became of a mistake.
#[derive(PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Found, by which judge.
    Found(String),
    /// No judge minds.
    Survives,
    /// No judge comes by.
    NeverReached,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Found(by) => f.write_str(by),
            Verdict::Survives => f.write_str("SURVIVES"),
            Verdict::NeverReached => f.write_str("NEVER REACHED"),
        }
    }
}

impl Judge {
    fn command(&self, id: usize, cpu: u64) -> Command {
        // Cpu seconds are limited by the shell; what waits for ever is stopped by the clock.
        let mut c = Command::new("sh");
        c.args(["-c", &format!("ulimit -t {cpu}; exec \"$0\" \"$@\"")]).arg(&self.program);
        c.args(&self.arguments).current_dir(&self.directory).env("LANEFS_MUTANT", id.to_string());
        c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        c
    }

    /// Without a mistake: how long it takes, and what it comes by.
    pub fn first_run(&mut self, at: &Path) -> Result<(), String> {
        let list = at.join("reached");
        let _ = std::fs::remove_file(&list);
        let began = Instant::now();
        let mut c = self.command(0, 100_000);
        c.env("LANEFS_MUTANTS_REACHED", &list);
        if follow(c.spawn().map_err(|e| e.to_string())?, Duration::from_secs(3600)) != End::Good {
            return Err(format!("{} fails without a mistake", self.name));
        }
        self.seconds = began.elapsed().as_secs_f64();
        let text = std::fs::read_to_string(&list).unwrap_or_default();
        self.reached = text.lines().filter_map(|l| l.parse().ok()).collect();
        eprintln!("{}: {:.0} s, comes by {} mistakes", self.name, self.seconds, self.reached.len());
        Ok(())
    }

    fn finds(&self, id: usize) -> Option<String> {
        if !self.reached.contains(&id) {
            return None;
        }
        let cpu = 20 + (self.seconds * 6.0) as u64;
        let child = self.command(id, cpu).spawn().ok()?;
        match follow(child, Duration::from_secs(120 + cpu * 4)) {
            End::Good => None,
            End::Failed => Some(self.name.clone()),
            End::Endless => Some(format!("{} (does not end)", self.name)),
        }
    }
}

/// Waits until it ends, at most `limit`; a test that fails ends it.
fn follow(mut child: Child, limit: Duration) -> End {
    let (tell, told) = mpsc::channel();
    if let Some(out) = child.stdout.take() {
        std::thread::spawn(move || {
            for l in BufReader::new(out).lines().map_while(Result::ok) {
                if l.ends_with("FAILED") {
                    let _ = tell.send(());
                }
            }
        });
    }
    let end = Instant::now() + limit;
    let ended = loop {
        if told.recv_timeout(Duration::from_millis(20)).is_ok() {
            break End::Failed;
        }
        match child.try_wait() {
            Ok(Some(s)) if s.success() => return End::Good,
            Ok(Some(_)) | Err(_) => return End::Failed,
            Ok(None) => {}
        }
        if Instant::now() > end {
            break End::Endless;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let _ = child.kill();
    let _ = child.wait();
    ended
}

/// Every mistake before every judge until one finds it.
pub fn judge_all(mutants: &[Mutant], judges: &[Judge], jobs: usize) -> Vec<(Mutant, Verdict)> {
    let next = AtomicUsize::new(0);
    let verdicts = Mutex::new(Vec::new());
    let mut quick: Vec<&Judge> = judges.iter().collect();
    quick.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    std::thread::scope(|s| {
        for _ in 0..jobs {
            s.spawn(|| {
                // Relaxed: only a ticket.
                while let Some(m) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let by = quick.iter().find_map(|j| j.finds(m.id));
                    let reached = quick.iter().any(|j| j.reached.contains(&m.id));
                    let verdict = match by {
                        Some(by) => Verdict::Found(by),
                        None if reached => Verdict::Survives,
                        None => Verdict::NeverReached,
                    };
                    eprintln!("{}:{}\t{}\t{verdict}", m.file, m.line, m.what);
                    verdicts.lock().unwrap_or_else(PoisonError::into_inner).push((m.clone(), verdict));
                }
            });
        }
    });
    let mut v = verdicts.into_inner().unwrap_or_else(PoisonError::into_inner);
    v.sort_by_key(|v| v.0.id);
    v
}
