//! The tests that judge mistakes, each alone in a process: built once, run for each mistake that
//! they reach.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A program that fails when something is wrong: one test, or one piece of work of a checker.
pub struct Judge {
    pub name: String,
    program: PathBuf,
    arguments: Vec<String>,
    directory: PathBuf,
    /// The mistakes it comes by.
    pub reached: BTreeSet<usize>,
    /// Seconds of a processor without a mistake.
    pub seconds: f64,
}

/// The tests of these packages are judges. In the words of [`Judge::name`]: what a test of the
/// package is called, and which test only its integration tests have.
const TESTS: [(&str, &str); 3] =
    [("lanefs-store", "lost::"), ("lanefs", "history::"), ("lanefs-lab-crash", "repair::")];

/// Tests that look at something else than LaneFS.
const NOT_JUDGES: [&str; 4] = ["epochs::", "crash::", "directory::model", "toy"];

/// Families of `crash` that are judges, and how many workloads they have.
const FAMILIES: [&str; 3] = ["known, two devices", "known, two lanes", "known, epochs"];
const KNOWN: usize = 34;
/// The canaries that have scripts.
const SCRIPTS: [&str; 16] = [
    "EarlyReuse",
    "CarriesNothing",
    "EpochWithGap",
    "ClockAlone",
    "SplitRename",
    "LinkKept",
    "PagesSkipped",
    "NumberReused",
    "NoClosure",
    "NoParent",
    "NoChildren",
    "MoveInFsync",
    "NamesForgotten",
    "OldVersionWins",
    "SyncForgetsWritten",
    "RenameWithoutContent",
];

/// Files and lines of errors.
pub type Errors = BTreeSet<(String, usize)>;

const FEATURES: [&str; 6] =
    ["--profile", "fuzz", "--features", "lanefs-lab-crash/canaries", "--message-format", "short"];

/// Runs cargo on the copy: what it said, or where it does not compile.
fn compile(at: &Path, arguments: &[&str]) -> Result<Result<String, Errors>, String> {
    eprintln!("+ cargo {}", arguments.join(" "));
    let mut c = crate::run::cargo(arguments);
    // A folder of its own: what else is built meanwhile must not replace the judges.
    c.args(FEATURES).current_dir(at).env("CARGO_TARGET_DIR", at.join("target"));
    let done = c.output().map_err(|e| e.to_string())?;
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
}

/// Where the copy does not compile.
pub fn check(at: &Path) -> Result<Errors, String> {
    let libs = ["check", "-p", "lanefs-lab-crash", "-p", "lanefs-store", "-p", "lanefs", "--lib"];
    Ok(compile(at, &libs)?.err().unwrap_or_default())
}

/// Builds the copy's judges.
pub fn build(at: &Path) -> Result<Vec<Judge>, String> {
    let must = |arguments: &[&str]| {
        compile(at, arguments)?.map_err(|errors| format!("does not compile at {errors:?}"))
    };
    must(&["build", "-p", "lanefs-lab-crash", "--bin", "lanefs-simulate", "--bin", "lanefs-crash"])?;
    let packages: Vec<&str> = TESTS.iter().flat_map(|t| ["-p", t.0]).collect();
    let said = must(&[&["test", "--no-run"], &packages[..], &["--lib", "--test", "it"]].concat())?;
    let mut all = Vec::new();
    let mut folder = PathBuf::new();
    for l in said.lines().filter(|l| l.trim_start().starts_with("Executable")) {
        let Some(path) = l.split('(').nth(1).and_then(|p| p.strip_suffix(')')) else { continue };
        let program = at.join(path);
        folder = program.parent().and_then(Path::parent).map(Path::to_path_buf).unwrap_or_default();
        all.extend(tests_of(&program, at)?);
    }
    let mut checker = |name: String, file: &str, arguments: String| {
        let arguments = arguments.split('|').map(String::from).collect();
        let (reached, seconds) = (BTreeSet::new(), 0.0);
        all.push(Judge {
            name,
            program: folder.join(file),
            arguments,
            directory: at.into(),
            reached,
            seconds,
        });
    };
    for (from, runs) in [(1, 20), (1001, 100), (2001, 400)] {
        checker(format!("simulate {runs}"), "lanefs-simulate", format!("--runs|{runs}|--seed|{from}"));
    }
    let crash = "--quick|--jobs|1|--json|/dev/null|--only";
    for family in FAMILIES {
        for n in 0..KNOWN {
            checker(
                format!("crash {family} {n}"),
                "lanefs-crash",
                format!("{crash}|{family}|--workload|{n}"),
            );
        }
    }
    for canary in SCRIPTS {
        checker(format!("crash script {canary}"), "lanefs-crash", format!("{crash}|script {canary}"));
    }
    Ok(all)
}

/// The tests of a program, each a judge.
fn tests_of(program: &Path, at: &Path) -> Result<Vec<Judge>, String> {
    let list = Command::new(program).args(["--list", "--format", "terse"]).output();
    let list = String::from_utf8_lossy(&list.map_err(|e| e.to_string())?.stdout).into_owned();
    let names: Vec<&str> = list.lines().filter_map(|l| l.strip_suffix(": test")).collect();
    let file = program.file_name().map(|f| f.to_string_lossy().into_owned()).unwrap_or_default();
    let kind = file.split('-').next().unwrap_or_default();
    // The integration tests of all packages have one name.
    let of = |t: &&(&str, &str)| match kind {
        "it" => names.iter().any(|n| n.starts_with(t.1)),
        unit => t.0.replace('-', "_") == unit,
    };
    let Some((package, _)) = TESTS.iter().find(of) else { return Ok(Vec::new()) };
    let judges =
        names.iter().filter(|n| *package != "lanefs-lab-crash" || !NOT_JUDGES.iter().any(|w| n.contains(w)));
    let one = |name: &&str| Judge {
        name: format!("{package} {name}"),
        program: program.into(),
        arguments: vec!["--exact".into(), (*name).into()],
        directory: at.join("crates").join(package),
        reached: BTreeSet::new(),
        seconds: 0.0,
    };
    Ok(judges.map(one).collect())
}

/// How a run ended.
#[derive(PartialEq, Eq, Debug)]
enum End {
    Good,
    Failed,
    Endless,
}

impl Judge {
    fn command(&self, id: usize, cpu: u64) -> Command {
        // Cpu seconds are limited by the shell; what waits for ever is stopped by the clock.
        let mut c = Command::new("sh");
        c.args(["-c", &format!("ulimit -t {cpu}; exec \"$0\" \"$@\"")]).arg(&self.program);
        c.args(&self.arguments).current_dir(&self.directory).env("LANEFS_MUTANT", id.to_string());
        c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        c
    }

    /// Without a mistake: how long it takes, and what it comes by. False if it fails, or takes more
    /// than `longest` seconds.
    pub fn first_run(&mut self, at: &Path, longest: u64) -> Result<bool, String> {
        let list = at.join("reached");
        let _ = std::fs::remove_file(&list);
        let before = ticks("self", true);
        let mut c = self.command(0, longest);
        c.env("LANEFS_MUTANTS_REACHED", &list);
        let end = follow(c.spawn().map_err(|e| e.to_string())?);
        self.seconds = (ticks("self", true) - before) as f64 / 100.0;
        let text = std::fs::read_to_string(&list).unwrap_or_default();
        self.reached = text.lines().filter_map(|l| l.parse().ok()).collect();
        if end != End::Good {
            eprintln!("no judge: {} fails, or takes more than {longest} s, without a mistake", self.name);
        }
        Ok(end == End::Good)
    }

    /// How it ends with mistake `id`, if not well.
    pub fn finds(&self, id: usize) -> Result<Option<String>, String> {
        let cpu = 5 + (self.seconds * 6.0) as u64;
        let child = self.command(id, cpu).spawn().map_err(|e| e.to_string())?;
        Ok(match follow(child) {
            End::Good => None,
            End::Failed => Some(self.name.clone()),
            End::Endless => Some(format!("{} (does not end)", self.name)),
        })
    }
}

/// A process's time on processors in hundredths of seconds, a figure that other load does not
/// change: its own, or that of its children that have ended.
fn ticks(pid: &str, of_children: bool) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which may hold anything: fields 14 and 15, and 16 and 17 for the children.
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    fields.skip(if of_children { 13 } else { 11 }).take(2).filter_map(|f| f.parse::<u64>().ok()).sum()
}

/// Waits until it ends, or takes no time of a processor for a while: then it waits for ever.
fn follow(mut child: Child) -> End {
    const STALLED: Duration = Duration::from_secs(20);
    let pid = child.id().to_string();
    let (mut last, mut since, mut look) = (0, Instant::now(), Instant::now());
    loop {
        match child.try_wait() {
            Ok(Some(s)) if s.success() => return End::Good,
            Ok(Some(_)) | Err(_) => return End::Failed,
            Ok(None) => {}
        }
        if look.elapsed() > Duration::from_secs(1) {
            look = Instant::now();
            let now = ticks(&pid, false);
            if now != last {
                (last, since) = (now, look);
            } else if since.elapsed() > STALLED {
                break;
            }
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    let _ = child.kill();
    let _ = child.wait();
    End::Endless
}
