//! Rounds on a small volume, where checkpoints, cleaning and the carrying over of records come
//! every few operations: 96 MiB, names committed and pages written back every second, eight threads
//! that fsync, and one of the applications of `cargo xtask apps` with its own judge.

use super::{Totals, child, start};
use crate::programs::volume::Volume;
use crate::run::root;
use lanefs_sync::random::Rng;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Applications, and whether they rely on names that become durable in order.
pub const APPS: &[(&str, bool)] = &[
    ("git", true),
    ("sqlite-delete", true),
    ("sqlite-wal", false),
    ("git", true),
    ("lmdb", false),
    ("leveldb", false),
    ("maildir", true),
    ("git", true),
    ("sqlite-truncate", false),
    ("editor", true),
    ("vim", false),
    ("dpkg", true),
];

const PYTHON: &str = "/usr/bin/python3";

/// Rounds that one volume lives for.
const ROUNDS: u64 = 12;

fn script() -> PathBuf {
    root().join("lab/crash/src/apps/programs.py")
}

/// The volume of these rounds; a new one every few of them.
#[derive(Default)]
pub struct Small {
    volume: Option<Volume>,
    rounds: u64,
}

impl Small {
    /// One round: work, kill, check, mount, compare. An application that relied on order and was
    /// not `ordered` is counted only.
    pub fn round(
        &mut self,
        lanefs: &Path,
        ordered: bool,
        random: &mut Rng,
        totals: &mut Totals,
    ) -> Result<&'static str, String> {
        if self.rounds.is_multiple_of(ROUNDS) {
            self.end()?;
        }
        let (n, (app, relies)) = (self.rounds, APPS[self.rounds as usize % APPS.len()]);
        self.rounds += 1;
        let v = match &mut self.volume {
            Some(v) => v,
            None => {
                let order = if ordered { "ordered" } else { "relaxed" };
                let options = format!("commit=1,dirty_expire=1,order={order}");
                let mut made = Volume::make(lanefs, "96M", &["-o", &options])?;
                made.mount()?;
                self.volume.insert(made)
            }
        };
        let io = |e: std::io::Error| e.to_string();
        let (mnt, outside) = (v.mnt(), v.outside().join(format!("round{n}")));
        std::fs::create_dir_all(&outside).map_err(io)?;
        let seed = (random.bits() >> 40).to_string();
        let prefix = format!("round{n}");
        let place = mnt.join(format!("app{n}"));
        std::fs::create_dir(&place).map_err(|e| format!("{}: {e}", place.display()))?;
        let words = outside.join("words");
        let mut app_process = begin(app, &place, &outside, &words, &seed)?;
        let this = outside.clone();
        let mut writer = start(
            &["killtest-writer"],
            &[&mnt, Path::new(&prefix), &this, Path::new("8"), Path::new(&seed), Path::new("small")],
            &outside.join("writer.log"),
        )?;
        std::thread::sleep(Duration::from_millis(200 + random.below(3300)));
        let ended = [&mut app_process, &mut writer].map(|p| p.0.try_wait());
        for (who, ended) in [app, "the writer"].into_iter().zip(ended) {
            if let Some(status) = ended.map_err(io)? {
                let said = ["errors", "writer.log"].map(|f| std::fs::read_to_string(outside.join(f)));
                return Err(format!("{who} ended before the kill: {status}: {said:?}"));
            }
        }
        v.kill_server()?;
        // They end while the dead mount is there. Behind the unmount a program that makes its
        // directories itself would work on in the one below it.
        let said = std::fs::read_to_string(&words).unwrap_or_default();
        for (who, process) in [("the writer", &mut writer), (app, &mut app_process)] {
            if child::wait(&mut process.0, Duration::from_secs(30)).map_err(io)?.is_none() {
                let waits = child::waits_for_a_mount(&process.0);
                let stacks = child::end_tree(&mut process.0);
                // A program may try again for ever what fails at once: dpkg was seen to.
                if who == app && !waits {
                    println!("{app} tries on with a dead mount; ended\n{stacks}");
                    continue;
                }
                return Err(format!("{who} still runs 30 s after the kill\n{stacks}"));
            }
        }
        drop((writer, app_process));
        v.kill()?;
        // As the kill left it, before any recovery: for whoever looks at a failure.
        let copied = Command::new("cp").arg("--sparse=always").arg(v.image()).arg(v.killed()).status();
        if !copied.map_err(io)?.success() {
            return Err("the image could not be copied".into());
        }
        totals.recover(v, random, n)?;
        let before = v.outside().join(format!("round{}", n.wrapping_sub(1)));
        match judge(app, &place, &outside, &said) {
            Ok(judged) => totals.apps += u64::from(judged),
            Err(e) if relies && !ordered => {
                println!("relies on order: {app}: {e}");
                totals.unordered += 1;
            }
            Err(e) => return Err(format!("{app}: {e}")),
        }
        for gone in [place, before.clone(), mnt.join(format!("round{}", n.wrapping_sub(1)))] {
            if gone.exists() {
                std::fs::remove_dir_all(&gone).map_err(|e| format!("removing {}: {e}", gone.display()))?;
            }
        }
        Ok(app)
    }

    /// The last volume: unmounted, and clean.
    pub fn end(&mut self) -> Result<(), String> {
        match self.volume.take() {
            Some(mut v) => v.umount().and_then(|_| v.fsck()),
            None => Ok(()),
        }
    }

    /// The volume, for whoever looks at a failure.
    pub fn volume(&mut self) -> Option<&mut Volume> {
        self.volume.as_mut()
    }
}

/// Starts an application at its steps; what it says goes to the file `words`.
fn begin(
    app: &str,
    place: &Path,
    outside: &Path,
    words: &Path,
    seed: &str,
) -> Result<super::Running, String> {
    let io = |e: std::io::Error| format!("{PYTHON}: {e}");
    let mut c = Command::new(PYTHON);
    c.arg("-I").arg(script()).args(["log", app]).arg(place).arg(outside).args(["1000000", seed]).arg(words);
    c.current_dir(outside).stdin(Stdio::null()).stdout(Stdio::null());
    c.stderr(std::fs::File::create(outside.join("errors")).map_err(io)?);
    c.spawn().map(super::Running).map_err(io)
}

/// Shows the application what is left; whether it had been ready.
fn judge(app: &str, place: &Path, outside: &Path, said: &str) -> Result<bool, String> {
    let last = |word: &str| -> u64 {
        let number = |l: &str| l.strip_prefix(word)?.trim().parse().ok();
        said.lines().filter_map(number).next_back().unwrap_or(0)
    };
    if !said.lines().any(|l| l == "ready") {
        return Ok(false);
    }
    let question = outside.join("question");
    let line = format!("{} {} {}\n", place.display(), last("ack "), last("begin "));
    std::fs::write(&question, line).map_err(|e| e.to_string())?;
    let mut c = Command::new(PYTHON);
    c.arg("-I").arg(script()).args(["judge", app]).arg(outside);
    c.stdin(std::fs::File::open(&question).map_err(|e| e.to_string())?);
    let out = c.output().map_err(|e| format!("{PYTHON}: {e}"))?;
    let answer = String::from_utf8_lossy(&out.stdout).trim().to_string();
    if answer.starts_with("ok ") { Ok(true) } else { Err(answer) }
}
