//! The parts that the checks' command lines have in common: seeds, jobs, minutes, the file for
//! results, and the meaning of the exit status.

use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// The seed with which random choices begin.
#[derive(Clone, Copy, Debug, Args)]
pub struct Seed {
    /// The first seed; a failure names its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// The number of runs at a time.
#[derive(Clone, Copy, Debug, Args)]
pub struct Jobs {
    /// Runs at a time
    #[arg(long, value_name = "N", default_value_t = processors())]
    jobs: usize,
}

impl Default for Jobs {
    fn default() -> Jobs {
        Jobs { jobs: processors() }
    }
}

impl Jobs {
    /// Returns the number, one at least.
    pub fn get(self) -> usize {
        self.jobs.max(1)
    }
}

/// The time that a check may take.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Limit {
    /// Stop after so many minutes, with what was done
    #[arg(long, value_name = "N")]
    pub minutes: Option<u64>,
}

impl Limit {
    /// The end, for what begins now.
    pub fn from_now(self) -> Deadline {
        Deadline(self.minutes.map(|m| Instant::now() + Duration::from_secs(m * 60)))
    }
}

/// A point in time, or none.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// Returns whether it has passed.
    pub fn is_over(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }
}

/// The file that results go to.
#[derive(Clone, Debug, Default, Args)]
pub struct Output {
    /// Write the results here instead of printing them
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Output {
    /// Writes the results to the file, or prints them.
    pub fn write(&self, results: &impl Serialize) -> Result<(), String> {
        if self.json.is_some() {
            return self.write_file(results);
        }
        println!("{}", serde_json::to_string_pretty(results).map_err(|e| e.to_string())?);
        Ok(())
    }

    /// Writes the results to the file, if there is one.
    pub fn write_file(&self, results: &impl Serialize) -> Result<(), String> {
        let Some(file) = &self.json else { return Ok(()) };
        let text = serde_json::to_string_pretty(results).map_err(|e| e.to_string())?;
        std::fs::write(file, text + "\n").map_err(|e| format!("{}: {e}", file.display()))
    }
}

/// Processors that this process may use.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// This program again, for the same check: what a check runs in a process of its own.
pub fn this_program(check: &str) -> Result<Command, String> {
    let mut c = Command::new(std::env::current_exe().map_err(|e| e.to_string())?);
    c.arg(check);
    Ok(c)
}

/// The exit status of a check: 1 if something was found, 2 if it could not be run.
pub fn status(program: &str, done: Result<bool, String>) -> ExitCode {
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{program}: {e}");
            ExitCode::from(2)
        }
    }
}
