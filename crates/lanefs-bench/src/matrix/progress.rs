//! The live table: a line per finished cell, below it a bar with the time left.

use crate::error::{Res, say};
use crate::results::CellResult;
use crate::units::{human, span};
use indicatif::{ProgressBar, ProgressStyle};

/// A table that grows, over a progress bar that stays.
pub struct Progress {
    bar: ProgressBar,
    terminal: bool,
}

impl Progress {
    /// Makes a table for this many runs.
    pub fn new(runs: usize) -> Progress {
        let bar = ProgressBar::new(runs as u64);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}  left {eta}") {
            bar.set_style(style);
        }
        let terminal = !bar.is_hidden();
        Progress { bar, terminal }
    }

    /// Prints a line above the bar.
    pub fn line(&self, text: &str) -> Res<()> {
        // Without a terminal indicatif would swallow it.
        if self.terminal {
            self.bar.println(text);
            Ok(())
        } else {
            say(text)
        }
    }

    /// Prints the table's head.
    pub fn head(&self) -> Res<()> {
        self.line(&format!(
            "{:<16} {:<14} {:>7} {:>10} {:>7} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "workload",
            "target",
            "workers",
            "per second",
            "spread",
            "p50",
            "p99",
            "p99.9",
            "cpu",
            "cpu of all"
        ))
    }

    /// Prints a finished cell.
    pub fn row(&self, r: &CellResult) -> Res<()> {
        self.line(&format!(
            "{:<16} {:<14} {:>7} {:>10} {:>6.1}% {:>10} {:>10} {:>10} {:>10} {:>10}",
            r.workload,
            r.target,
            r.workers,
            human(r.ops_per_s),
            r.spread * 100.0,
            span(r.p50_ns),
            span(r.p99_ns),
            span(r.p999_ns),
            span(r.cpu_ns as u64),
            span(r.cpu_ns_all as u64)
        ))
    }

    /// Shows what runs now.
    pub fn now(&self, text: &str) {
        self.bar.set_message(text.to_string());
        self.bar.tick();
    }

    /// Counts a run that is done.
    pub fn step(&self) {
        self.bar.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
