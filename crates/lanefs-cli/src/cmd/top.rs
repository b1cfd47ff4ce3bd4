//! `lanefs top`

use super::stat;
use crate::failure::{Failure, Outcome, written};
use crate::figures::{Figures, dir_of};
use crate::mounted;
use crate::terminal::Terminal;
use lanefs_fuse::report::MountReport;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Show live what a mounted volume does
///
/// Each second: requests by kind with their latencies, memory, segments, logs, what is written. End
/// it with q or Ctrl-C. Where standard output is no terminal, what would be drawn is written below
/// what was before. Requests are timed meanwhile, if root runs it, or who mounted the volume.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// End after so many times
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// The same as --count 1
    #[arg(long, conflicts_with = "count")]
    pub once: bool,
    /// Seconds between two
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub interval: u64,
    /// A directory of a mounted volume, or its image
    #[arg(value_name = "DIR|IMAGE")]
    pub volume: PathBuf,
}

/// The time for which requests go on being timed when nobody asks any more.
const AFTER: u64 = 3;

/// Shows.
pub fn run(args: &Args) -> Outcome {
    let images = [args.volume.clone()];
    let Some(dir) = dir_of(&images)? else {
        return Err(Failure::new(format_args!(
            "{}: is not mounted; `lanefs stat` shows what is on it",
            args.volume.display()
        )));
    };
    let watched = args.interval + AFTER;
    // Asked before the terminal is touched: most errors are found here.
    let mut before = (mounted::report(&dir, watched)?, Instant::now());
    let terminal = Terminal::take()?;
    let mut left = if args.once { Some(1) } else { args.count };
    while left != Some(0) {
        let pause = Duration::from_secs(args.interval);
        match &terminal {
            Some(t) if t.is_ended_within(pause) => break,
            Some(_) => {}
            None => std::thread::sleep(pause),
        }
        let now = (mounted::report(&dir, watched)?, Instant::now());
        let lines = frame(&images, &dir, (&before.0, &now.0), (now.1 - before.1).as_secs_f64());
        match &terminal {
            Some(t) => t.draw(&lines)?,
            None => written(writeln!(std::io::stdout().lock(), "{}\n", lines.join("\n")))?,
        }
        before = now;
        left = left.map(|n| n - 1);
    }
    Ok(0)
}

/// Returns the lines about what was done between two reports, `seconds` apart.
fn frame(
    images: &[PathBuf],
    dir: &Path,
    (before, now): (&MountReport, &MountReport),
    seconds: f64,
) -> Vec<String> {
    let requests = now.requests_since(before);
    let (w, b) = (&now.volume.store.written, &before.volume.store.written);
    let rate = |now: u64, then: u64| {
        crate::size::show((now.saturating_sub(then) as f64 / seconds.max(1e-3)) as u64) + "/s"
    };
    let device = format!(
        "{}: data {}, log {}, tree {}, moved {}",
        rate(w.total_bytes, b.total_bytes),
        rate(w.data_bytes, b.data_bytes),
        rate(w.log_bytes, b.log_bytes),
        rate(w.tree_bytes, b.tree_bytes),
        rate(w.moved_bytes, b.moved_bytes)
    );
    let figures = Figures::of_mount(images, dir, now.clone());
    let named = stat::lines(&figures).into_iter().chain([("now", device)]);
    let mut lines: Vec<String> = named.map(|(name, value)| format!("{name:<12}{value}")).collect();
    lines.push(String::new());
    lines.extend(stat::requests(&requests, Some(seconds)));
    lines
}
