//! The processes that run `programs.py`: one that works, one that judges.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Debian's own, which has Debian's modules.
pub const PYTHON: &str = "/usr/bin/python3";

const SCRIPT: &str = include_str!("programs.py");

/// The time for which a worker or a judge may be silent.
const PATIENCE: Duration = Duration::from_secs(120);

/// A temporary directory, gone when it is dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new one, in memory if there is a file system in memory.
    pub fn new(what: &str) -> Result<Scratch, String> {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        // Relaxed: only uniqueness counts.
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = base.join(format!("lanefs-apps-{}-{what}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        Ok(Scratch(dir))
    }
    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
    /// A directory in it, made if need be.
    pub fn dir(&self, name: &str) -> Result<PathBuf, String> {
        let dir = self.0.join(name);
        std::fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        Ok(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process of the script; ended when it is dropped.
#[derive(Debug)]
struct Process {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    errors: PathBuf,
}

impl Process {
    fn start(arguments: &[&str], scratch: &Path) -> Result<Process, String> {
        let io = |e: std::io::Error| format!("{PYTHON}: {e}");
        let script = scratch.join("programs.py");
        std::fs::write(&script, SCRIPT).map_err(io)?;
        let errors = scratch.join("errors");
        let mut command = Command::new(PYTHON);
        command.arg("-I").arg(&script).args(arguments).current_dir(scratch);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(std::fs::File::create(&errors).map_err(io)?);
        let mut child = command.spawn().map_err(io)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a process without pipes".into());
        };
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Process { child, input, lines, errors })
    }

    /// The next line; `None` at the end of the output.
    fn line(&mut self) -> Result<Option<String>, String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => Err(format!("silent for {} s", PATIENCE.as_secs())),
        }
    }

    /// Waits for the end; an error says what the process said.
    fn end(mut self) -> Result<(), String> {
        let status = self.child.wait().map_err(|e| e.to_string())?;
        if status.success() {
            return Ok(());
        }
        let said = std::fs::read(&self.errors).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let last: Vec<&str> = said.lines().rev().take(3).collect();
        Err(format!("{status}: {}", last.into_iter().rev().collect::<Vec<_>>().join(" | ")))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The promises that an application had at some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Promised {
    /// Its preparation is durable.
    pub ready: bool,
    /// The last step that was acknowledged.
    pub acknowledged: u64,
    /// The last step that was begun.
    pub begun: u64,
}

impl Promised {
    /// Takes in a line of a worker.
    pub fn hear(&mut self, line: &str) -> Result<(), String> {
        let number = |n: &str| n.parse().map_err(|_| format!("{line:?}: no number"));
        match line.split_once(' ').unwrap_or((line, "")) {
            ("ready", _) => self.ready = true,
            ("begin", n) => self.begun = number(n)?,
            ("ack", n) => self.acknowledged = number(n)?,
            _ => return Err(format!("{line:?}: no word of a worker")),
        }
        Ok(())
    }
}

/// Runs an application in `dir`; `note` is told each line before the worker goes on.
pub fn work(
    name: &str,
    dir: &Path,
    scratch: &Path,
    (steps, seed): (u64, u64),
    note: &mut dyn FnMut(&str),
) -> Result<(), String> {
    let (dir, place) = (dir.to_string_lossy(), scratch.to_string_lossy());
    let arguments = ["work", name, &dir, &place, &steps.to_string(), &seed.to_string()];
    let mut process = Process::start(&arguments, scratch)?;
    while let Some(line) = process.line()? {
        note(&line);
        // A worker that is gone shows by the end of its output.
        let _ = process.input.write_all(b"\n");
    }
    process.end().map_err(|e| format!("{name}: {e}"))
}

/// A process that judges directories of one application.
#[derive(Debug)]
pub struct Judge(Process);

impl Judge {
    /// Starts one.
    pub fn start(name: &str, scratch: &Path) -> Result<Judge, String> {
        let place = scratch.to_string_lossy();
        Ok(Judge(Process::start(&["judge", name, &place], scratch)?))
    }

    /// Asks whether the directory holds what was promised; returns the last step found, or what is
    /// wrong. The outer error is of the judge.
    pub fn ask(&mut self, dir: &Path, promised: &Promised) -> Result<Result<u64, String>, String> {
        let line = format!("{} {} {}\n", dir.display(), promised.acknowledged, promised.begun);
        self.0.input.write_all(line.as_bytes()).map_err(|e| format!("judge: {e}"))?;
        let answer = self.0.line()?.ok_or("the judge ended")?;
        match answer.split_once(' ') {
            Some(("ok", step)) => step.parse().map(Ok).map_err(|e| format!("judge: {answer:?}: {e}")),
            Some(("bad", why)) => Ok(Err(why.to_string())),
            _ => Err(format!("judge: {answer:?}")),
        }
    }
}
