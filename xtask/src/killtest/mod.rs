//! `cargo xtask killtest [--rounds N] [--seed S] [--order ordered|relaxed] [NAME.. | small |
//! synced | idle]`: ends the process that serves a mount with `kill -9` at a random moment, over
//! and over. `killtest full [--minutes N] [--seed S]` does it on a volume that is 90 % full
//! (full.rs).
//!
//! A round: a writer that keeps a ledger of what was acknowledged, and one of the real programs,
//! work on the mount; the kill; `umount -l`; `lanefs fsck` must find nothing; the volume is mounted
//! again, now and then killed at once and mounted once more; everything acknowledged must be there
//! with its content, also that of the round before; databases that the program left behind must
//! pass their own checks. Every second round is one on a small volume (small.rs); with "small" all
//! are, with the names of programs none. With "synced" all are on a block device, where syncfs(2)
//! is a promise, and it is the only one that is asked for (synced.rs). With "idle" nothing is asked
//! for, and the mount is left alone (idle.rs).

mod full;
mod idle;
mod ledger;
mod small;
mod synced;
pub mod writer;

use crate::programs::volume::{self, Volume};
use crate::programs::{PROGRAMS, child};
use crate::run::need;
use lanefs_sync::random::Rng;
use ledger::{Checked, Ledger};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The counts of all rounds.
#[derive(Default)]
struct Totals {
    rounds: u64,
    acknowledged: u64,
    checked: Checked,
    databases: u64,
    /// Applications that judged what they found.
    apps: u64,
    /// Applications that lost something because names became durable out of order, where that is
    /// allowed.
    unordered: u64,
    slowest_mount: Duration,
    /// By program: kills while it was at work.
    caught: BTreeMap<&'static str, u64>,
}

impl Totals {
    /// Mounts what a kill in round `n` left, sometimes kills it again at once, and compares it with
    /// what the writers of this round and the one before were told.
    fn recover(&mut self, v: &mut Volume, random: &mut Rng, n: u64) -> Result<(), String> {
        v.fsck()?;
        let mut mounted = v.mount()?;
        if random.one_in(5) {
            v.kill()?;
            v.fsck()?;
            mounted = mounted.max(v.mount()?);
        }
        self.slowest_mount = self.slowest_mount.max(mounted);
        for round in [n, n.wrapping_sub(1)] {
            let folder = v.outside().join(format!("round{round}"));
            if folder.is_dir() {
                self.compare(&Ledger::read(&folder)?, &v.mnt(), round == n)?;
            }
        }
        Ok(())
    }

    /// Compares a volume with what was promised, and counts that if it is `fresh`.
    fn compare(&mut self, ledger: &Ledger, mnt: &Path, fresh: bool) -> Result<(), String> {
        let checked = ledger.check(mnt).map_err(|wrong| {
            format!("{} files are not as acknowledged:\n{}", wrong.len(), child::tail(&wrong.join("\n"), 10))
        })?;
        if fresh {
            self.acknowledged += ledger.acknowledged;
            self.checked.files += checked.files;
            self.checked.bytes += checked.bytes;
            self.checked.removed += checked.removed;
        }
        Ok(())
    }
}

/// The command.
pub fn main(arguments: &[&str]) -> Result<(), String> {
    let (mut rounds, mut seed, mut ordered) = (100, 1, true);
    let (mut only_small, mut only_full, mut only_synced, mut minutes) = (false, false, false, 60);
    let mut only_idle = false;
    let mut names: Vec<&'static str> = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut number = || rest.next().and_then(|n| n.parse().ok()).ok_or(format!("{argument}: a number"));
        match *argument {
            "--rounds" => rounds = number()?,
            "--seed" => seed = number()?,
            "--order" => match rest.next() {
                Some(&"ordered") => ordered = true,
                Some(&"relaxed") => ordered = false,
                _ => return Err("--order ordered or --order relaxed".into()),
            },
            "--minutes" => minutes = number()?,
            "small" => only_small = true,
            "full" => only_full = true,
            "synced" => only_synced = true,
            "idle" => only_idle = true,
            other => match PROGRAMS.iter().find(|p| p.name == other) {
                Some(program) => names.push(program.name),
                None => {
                    return Err(format!("killtest: {other:?}: neither --rounds N, --seed S nor a program"));
                }
            },
        }
    }
    if only_full {
        return full::main(minutes, seed);
    }
    if only_idle {
        return idle::main(rounds, seed);
    }
    if only_synced {
        return synced::main(rounds, ordered, seed);
    }
    let every = if only_small { 1 } else { 2 };
    let with_small = only_small || names.is_empty();
    if names.is_empty() {
        names = PROGRAMS.iter().map(|p| p.name).collect();
    }
    need(&[
        ("fusermount3", "fuse3"),
        ("git", "git"),
        ("rsync", "rsync"),
        ("sqlite3", "sqlite3"),
        ("db_bench", "rocksdb-tools"),
        ("fio", "fio"),
        ("dbench", "dbench"),
        ("stress-ng", "stress-ng"),
    ])?;
    need(crate::apps::PROGRAMS)?;
    let lanefs = volume::build()?;
    let mut small = small::Small::default();
    let mut volume = Volume::make(&lanefs, "4G", &[])?;
    volume.mount()?;
    let mut totals = Totals::default();
    let mut random = Rng::at(seed);
    for n in 0..rounds {
        let start = Instant::now();
        let is_small = with_small && n % every == 0;
        let mut name = if is_small { "small" } else { names[(n / every) as usize % names.len()] };
        let done = if is_small {
            small.round(&lanefs, ordered, &mut random, &mut totals).map(|app| name = app)
        } else {
            round(&mut volume, n, name, &mut random, &mut totals)
        };
        done.map_err(|e| {
            // Kept for whoever looks for the fault: the image as it was found.
            let kept = std::env::temp_dir().join(format!("lanefs-killtest-{seed}-{n}.lane"));
            let Some(volume) = (if is_small { small.volume() } else { Some(&mut volume) }) else {
                return format!("round {n} of seed {seed} ({name}): {e}");
            };
            let _ = volume.kill();
            let copy = |from: &Path, to: &Path| {
                let copied = Command::new("cp").arg("--sparse=always").arg(from).arg(to).status();
                copied.is_ok_and(|s| s.success())
            };
            let mut kept = match copy(&volume.image(), &kept) {
                true => format!("\nimage kept: {}", kept.display()),
                false => String::new(),
            };
            let before = std::env::temp_dir().join(format!("lanefs-killtest-{seed}-{n}-killed.lane"));
            if volume.killed().exists() && copy(&volume.killed(), &before) {
                kept += &format!("\nas the kill left it: {}", before.display());
            }
            format!("round {n} of seed {seed} ({name}): {e}{kept}\n{}", volume.messages())
        })?;
        totals.rounds += 1;
        println!(
            "round {n:>3}  {name:<15} {} {:>5.1} s  {:>7} acknowledged",
            if is_small { "96 MiB" } else { "4 GiB " },
            start.elapsed().as_secs_f64(),
            totals.acknowledged
        );
    }
    volume.umount()?;
    volume.fsck()?;
    small.end()?;
    println!(
        "\n{} rounds: fsck clean after each kill; {} fsyncs acknowledged, {} files ({:.0} MB) found with their content, {} removals kept, \
         {} databases whole; {} applications judged, {} lost their order; slowest mount after a kill {:.0} ms",
        totals.rounds,
        totals.acknowledged,
        totals.checked.files,
        totals.checked.bytes as f64 / 1e6,
        totals.checked.removed,
        totals.databases,
        totals.apps,
        totals.unordered,
        totals.slowest_mount.as_secs_f64() * 1e3,
    );
    let caught: Vec<String> = totals.caught.iter().map(|(name, n)| format!("{name} {n}")).collect();
    println!("killed in the middle of: {}", caught.join(", "));
    Ok(())
}

/// Ends a child and what it started when the round is over.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        child::end_tree(&mut self.0);
    }
}

fn start(arguments: &[&str], paths: &[&Path], log: &Path) -> Result<Running, String> {
    let this = std::env::current_exe().map_err(|e| e.to_string())?;
    let out = std::fs::File::create(log).map_err(|e| format!("{}: {e}", log.display()))?;
    let err = out.try_clone().map_err(|e| e.to_string())?;
    let mut command = Command::new(this);
    command.args(arguments).args(paths).stdin(Stdio::null()).stdout(out).stderr(err);
    command.spawn().map(Running).map_err(|e| e.to_string())
}

fn round(
    v: &mut Volume,
    n: u64,
    name: &'static str,
    random: &mut Rng,
    totals: &mut Totals,
) -> Result<(), String> {
    let io = |e: std::io::Error| e.to_string();
    let (outside, mnt) = (v.outside().join(format!("round{n}")), v.mnt());
    std::fs::create_dir_all(&outside).map_err(io)?;
    // What was removed after the last kill may be back: nobody fsynced the removal.
    let place = mnt.join("programs").join(name);
    if place.exists() {
        std::fs::remove_dir_all(&place).map_err(|e| format!("removing {}: {e}", place.display()))?;
    }
    std::fs::create_dir_all(mnt.join("programs")).map_err(io)?;
    let seed = (random.bits() >> 40).to_string();
    let log = outside.join("program.log");
    let begin = || start(&["programs", "--quick", name, "--in"], &[&mnt.join("programs"), &outside], &log);
    let mut program = begin()?;
    // Programs first prepare what they need outside.
    let began = Instant::now();
    while std::fs::read_dir(&place).map_or(0, Iterator::count) == 0
        && began.elapsed() < Duration::from_secs(20)
    {
        if program.0.try_wait().map_err(io)?.is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let prefix = format!("round{n}");
    let writer_log = outside.join("writer.log");
    let this = outside.clone();
    let mut writer = start(
        &["killtest-writer"],
        &[&mnt, Path::new(&prefix), &this, Path::new("2"), Path::new(&seed)],
        &writer_log,
    )?;
    // A program that is done early begins anew: the kill comes in the middle of its work.
    let (began, moment) = (Instant::now(), Duration::from_millis(50 + random.below(3000)));
    while began.elapsed() < moment {
        if let Some(status) = program.0.try_wait().map_err(io)? {
            if !status.success() {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                return Err(format!("{name} failed before the kill: {status}\n{}", child::tail(&said, 15)));
            }
            program = begin()?;
        }
        std::thread::sleep(Duration::from_millis(5).min(moment.saturating_sub(began.elapsed())));
    }
    if let Some(status) = writer.0.try_wait().map_err(io)? {
        let said = std::fs::read_to_string(&writer_log).unwrap_or_default();
        return Err(format!("the writer ended before the kill: {status}\n{said}"));
    }
    let at_work = program.0.try_wait().map_err(io)?.is_none();
    v.kill()?;
    *totals.caught.entry(name).or_default() += u64::from(at_work);
    // The writer ends by itself: its next call fails. Only then is its ledger complete.
    if child::wait(&mut writer.0, Duration::from_secs(20)).map_err(io)?.is_none() {
        return Err("the writer still runs 20 s after the kill".into());
    }
    let _ = child::wait(&mut program.0, Duration::from_secs(2));
    drop((writer, program));
    totals.recover(v, random, n)?;
    let before = v.outside().join(format!("round{}", n.wrapping_sub(1)));
    totals.databases += databases(&place, &outside)?;
    // What the program and the round before left is removed: also that must work after a crash.
    for gone in [place, before.clone(), mnt.join(format!("round{}", n.wrapping_sub(1)))] {
        if gone.exists() {
            std::fs::remove_dir_all(&gone).map_err(|e| format!("removing {}: {e}", gone.display()))?;
        }
    }
    Ok(())
}

/// Databases that a killed program left must open and be whole.
fn databases(place: &Path, scratch: &Path) -> Result<u64, String> {
    let limit = Duration::from_secs(120);
    let mut whole = 0;
    let sqlite: PathBuf = place.join("test.db");
    if sqlite.metadata().is_ok_and(|m| m.len() > 0) {
        let mut c = Command::new("sqlite3");
        let said = child::succeed(c.arg(&sqlite).arg("PRAGMA integrity_check;"), scratch, limit)?;
        if said.trim() != "ok" {
            return Err(format!("{}: integrity_check says {said}", sqlite.display()));
        }
        whole += 1;
    }
    for name in ["dbfalse", "dbtrue", "sync"] {
        let db = place.join(name);
        if db.join("CURRENT").exists() {
            let mut c = Command::new("db_bench");
            c.args(["--benchmarks=readseq,verifychecksum", "--use_existing_db=1", "--compression_type=none"]);
            let said = child::succeed(c.arg(format!("--db={}", db.display())), scratch, limit)?;
            if let Some(bad) = said.lines().find(|l| l.contains("orruption") || l.contains("rror:")) {
                return Err(format!("{}: {bad}", db.display()));
            }
            whole += 1;
        }
    }
    Ok(whole)
}
