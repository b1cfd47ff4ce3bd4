//! Max table 2: where processor time goes while files are overwritten, made, removed and synced, by
//! the paper's levels. `perf` samples a process of its own; a function belongs to the level of the
//! module it is in. Its inlined callees count as its own, and set-ups and the background are in it.

use crate::error::{Context, Failure, Res, say};
use crate::paper::results::{Drawn, Panel, Point, Series};
use crate::paper::session::Session;
use std::process::{Command, Stdio};

/// The operations of the table and the workloads that do them.
const OPERATIONS: [(&str, &str); 4] =
    [("write", "DWOL"), ("create", "MWCL"), ("unlink", "MWUL"), ("fsync", "DWSL")];

/// Levels, and what the names of their functions hold. The first that fits counts.
const LEVELS: [(&str, &[&str]); 6] = [
    ("benchmark", &["lanefs_bench::", "hdrhistogram", "perf"]),
    (
        "concurrency control",
        &["lanefs_sync::", "parking_lot", "futex", "membarrier", "_raw_spin", "crossbeam_epoch"],
    ),
    ("space and log", &["lanefs_store::", "lanefs_format::", "crc"]),
    ("in-memory structures", &["lanefs::"]),
    ("copying and clearing memory", &["memcpy", "memmove", "memset", "clear_page", "copy_user", "rep_movs"]),
    ("all else", &[""]),
];

/// Returns the shares of each level, of the lines that `perf report` writes: percent, symbol.
fn shares(report: &str) -> [f64; LEVELS.len()] {
    let mut sums = [0.0; LEVELS.len()];
    for line in report.lines().map(str::trim).filter(|l| !l.starts_with('#')) {
        let Some((percent, symbol)) = line.split_once('%') else { continue };
        let Ok(percent) = percent.trim().parse::<f64>() else { continue };
        // A method of an implementation is told as `<type as trait>::method`.
        let symbol = symbol.trim().trim_start_matches("[.]").trim_start_matches("[k]").trim();
        let at = LEVELS.iter().position(|(_, parts)| parts.iter().any(|p| symbol.contains(p)));
        sums[at.unwrap_or(LEVELS.len() - 1)] += percent;
    }
    sums
}

fn perf(args: &[&str]) -> Res<String> {
    let out = Command::new("perf").args(args).stdin(Stdio::null()).output().at("running perf")?;
    if crate::interrupt::requested() {
        return Err(Failure::interrupted());
    }
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    Err(Failure::new(format!("perf {}: {}", args[0], String::from_utf8_lossy(&out.stderr).trim())))
}

/// Runs it.
pub fn run(session: &mut Session<'_>) -> Res<()> {
    if let Err(e) = perf(&["--version"]) {
        session.out.lacks("where time goes", format!("perf is not there: {e}"));
        return Ok(());
    }
    session.out.lacks("set-ups and the background apart", "perf samples the whole process");
    let program = std::env::current_exe().at("finding this program")?;
    let program = program.to_string_lossy();
    let workers = session.workers().last().copied().unwrap_or(1).to_string();
    let (seconds, target) = (session.args.seconds.to_string(), format!("mem:{}", session.size()?));
    let mut bars: Vec<Vec<Point>> = LEVELS.iter().map(|_| Vec::new()).collect();
    for (at, (operation, workload)) in OPERATIONS.into_iter().enumerate() {
        // perf keeps what was in its file before under another name: each has a file of its own.
        let data = format!("lanefs-bench-perf.{}.{operation}", std::process::id());
        let data = std::env::temp_dir().join(data);
        session.undo.file(&data)?;
        let file = data.to_string_lossy();
        let mut record = vec!["record", "-q", "-e", "cpu-clock", "-F", "997", "-o", &file, "--", &program];
        record.extend(session.front);
        record.extend(["run", "--target", &target, "--workloads", workload, "--workers", &workers]);
        record.extend(["--repeats", "1", "--seconds", &seconds]);
        perf(&record)?;
        let report = perf(&["report", "-q", "--stdio", "--no-children", "-F", "overhead,sym", "-i", &file])?;
        let shares = shares(&report);
        // The benchmark's own loop is nobody's cost.
        let all: f64 = shares[1..].iter().sum();
        for (bars, share) in bars.iter_mut().zip(shares) {
            bars.push(Point::bar(at, operation, &[100.0 * share / all.max(1e-9)]));
        }
        say(format_args!("{operation}: done"))?;
    }
    let series = LEVELS.iter().zip(bars).skip(1).map(|((name, _), points)| Series {
        name: name.to_string(),
        how: "perf".to_string(),
        predicted: false,
        points,
    });
    let series = series.collect();
    session.out.panels.push(Panel {
        name: "levels".to_string(),
        title: format!("processor time by level, {workers} worker(s), the benchmark's own left out"),
        drawn: Drawn::Bars,
        x: "operation".to_string(),
        y: "percent".to_string(),
        series,
    });
    session.keep()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_have_levels() {
        let report = "    40.00%  [.] <lanefs_sync::rps::Rps>::read\n    20.50%  [.] lanefs_store::mlog::write\n \
                      10.00%  [k] clear_page_rep\n  9.50%  [.] lanefs::memfs::cell::find\n  20.00%  [k] vfs_read\n";
        assert_eq!(shares(report), [0.0, 40.0, 20.5, 9.5, 10.0, 20.0]);
    }
}
