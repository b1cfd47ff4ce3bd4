//! `lanefs bench cost`: what operations cost beside time. Counts, unlike times, can be held to:
//! `--against` makes an earlier file a ratchet.

use super::profile::{instructions, transfers};
use crate::error::{Context, Res, say};
use crate::machine::Machine;
use crate::matrix::{Cells, command_line, matrix, now, write_json};
use crate::registry::select;
use crate::results::{CellResult, ResultsFile};
use crate::target::{Memory, Named, OpenTarget, VolumeTarget};
use crate::units::parse_size;
use std::path::PathBuf;

/// Arguments of `cost`.
#[derive(Debug, clap::Args)]
pub struct CostArgs {
    #[command(flatten)]
    #[allow(missing_docs)] // what is flattened has its own
    pub cells: Cells,
    /// Size of the volume in memory.
    #[arg(long, default_value = "2G", value_name = "SIZE")]
    pub size: String,
    /// Write the counts here.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Fail if a count is worse than in this file of an earlier run.
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,
    /// Count instructions too, by valgrind's callgrind, of so many operations of each workload.
    #[arg(long, value_name = "OPERATIONS", num_args = 0..=1, default_missing_value = "1000")]
    pub instructions: Option<u64>,
    /// Take the transfers of cache lines from a file that `cargo xtask coherence --json` wrote:
    /// those of its largest number of lanes. Of several files the least: what one operation in many
    /// does for the others falls into what is looked at or not.
    #[arg(long, value_name = "FILE")]
    pub transfers: Vec<PathBuf>,
    /// By how many per cent instructions may be more.
    #[arg(long, default_value_t = 3.0)]
    pub instruction_tolerance: f64,
    /// By how many per cent a count may be worse.
    #[arg(long, default_value_t = 10.0)]
    pub tolerance: f64,
}

/// The part of what a count may be worse by from which there is a warning.
const NEAR: f64 = 0.6;

/// Runs it and returns the exit status. `front`: the arguments of this program before a command.
pub fn run(args: &CostArgs, front: &[&str]) -> Res<i32> {
    args.cells.check()?;
    let workloads = select(&args.cells.workloads)?;
    let target =
        OpenTarget::Volume(VolumeTarget::counted(&Memory::new(parse_size(&args.size)?).counted(), false)?);
    let mut targets = [Named { name: "lanefs".to_string(), target, without: Vec::new() }];
    let mut file = ResultsFile {
        format: 1,
        command: command_line(),
        started: now(),
        machine: Machine::here(),
        ..ResultsFile::default()
    };
    matrix(&args.cells, &workloads, &mut targets, &mut file, |_| Ok(()))?;
    if let Some(ops) = args.instructions {
        for r in &mut file.results {
            r.instructions = Some(instructions(&r.workload, ops, front)?);
        }
    }
    for path in &args.transfers {
        let counted = transfers(path)?;
        for r in &mut file.results {
            let known = counted.iter().find(|c| c.0 == r.workload).map(|c| c.1);
            r.transfers = r.transfers.into_iter().chain(known).reduce(f64::min);
        }
    }
    say("")?;
    say(format_args!(
        "{:<16} {:>7} {:>12} {:>12} {:>14} {:>10} {:>10} {:>13} {:>10}",
        "per operation",
        "workers",
        "allocations",
        "bytes",
        "device bytes",
        "writes",
        "flushes",
        "instructions",
        "transfers"
    ))?;
    for r in &file.results {
        let (device, writes, flushes) = r.traffic.unwrap_or_default();
        let shown = |n: Option<f64>, digits: usize| n.map_or("-".to_string(), |n| format!("{n:.digits$}"));
        say(format_args!(
            "{:<16} {:>7} {:>12} {:>12} {device:>14.1} {writes:>10.4} {flushes:>10.4} {:>13} {:>10}",
            r.workload,
            r.workers,
            shown(r.allocated.map(|a| a.0), 3),
            shown(r.allocated.map(|a| a.1), 1),
            shown(r.instructions, 0),
            shown(r.transfers, 2)
        ))?;
    }
    if let Some(path) = &args.json {
        write_json(path, &file)?;
    }
    let mut code = i32::from(!file.failures.is_empty());
    if let Some(path) = &args.against {
        let text = std::fs::read(path).at(path.display())?;
        let earlier: ResultsFile = serde_json::from_slice(&text).at(path.display())?;
        let (worse, near) =
            compare(&file.results, &earlier.results, args.tolerance, args.instruction_tolerance);
        for complaint in &worse {
            say(format_args!("worse: {complaint}"))?;
            code = 1;
        }
        for warning in &near {
            say(format_args!("near the limit: {warning}"))?;
        }
    }
    Ok(code)
}

/// Returns the counts that are worse than they were, and those that have used up most of what they
/// may be worse by: these fail elsewhere by a little noise, and want to be brought down or kept
/// anew.
fn compare(
    now: &[CellResult],
    earlier: &[CellResult],
    tolerance: f64,
    instruction_tolerance: f64,
) -> (Vec<String>, Vec<String>) {
    let (mut complaints, mut warnings) = (Vec::new(), Vec::new());
    for new in now {
        let Some(old) = earlier.iter().find(|o| (&o.workload, o.workers) == (&new.workload, new.workers))
        else {
            continue;
        };
        let counts = |r: &CellResult| {
            // The smallest difference that is no noise: background work falls into some rounds and
            // not into others.
            [
                ("allocations", r.allocated.map(|a| a.0), 0.05, tolerance),
                ("device bytes", r.traffic.map(|t| t.0), 512.0, tolerance),
                ("flushes", r.traffic.map(|t| t.2), 0.05, tolerance),
                ("instructions", r.instructions, 10.0, instruction_tolerance),
                ("transfers of lines", r.transfers, 0.1, tolerance),
            ]
        };
        for ((what, is, noise, tolerance), (_, was, ..)) in counts(new).into_iter().zip(counts(old)) {
            let (Some(is), Some(was)) = (is, was) else { continue };
            let line = || format!("{} x{}: {what} {was:.3} -> {is:.3}", new.workload, new.workers);
            let allowed = was * tolerance / 100.0 + noise;
            if is > was + allowed {
                complaints.push(line());
            } else if is > was + allowed * NEAR {
                warnings.push(line());
            }
        }
    }
    (complaints, warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratchet_holds() {
        let cell = |allocations: f64, bytes: f64| CellResult {
            workload: "MWCL".into(),
            workers: 1,
            allocated: Some((allocations, 0.0)),
            traffic: Some((bytes, 0.0, 0.0)),
            ..CellResult::default()
        };
        let worse = |new: CellResult, old: &[CellResult]| compare(&[new], old, 10.0, 3.0).0.len();
        assert_eq!(worse(cell(2.1, 4096.0), &[cell(2.0, 4096.0)]), 0);
        assert_eq!(worse(cell(3.0, 8192.0), &[cell(2.0, 4096.0)]), 2);
        assert_eq!(worse(cell(3.0, 0.0), &[]), 0);
        let counted =
            |n: f64, t: f64| CellResult { instructions: Some(n), transfers: Some(t), ..cell(0.0, 0.0) };
        assert_eq!(worse(counted(1030.0, 1.0), &[counted(1000.0, 1.0)]), 0);
        assert_eq!(worse(counted(1050.0, 1.3), &[counted(1000.0, 1.0)]), 2);
        assert_eq!(worse(cell(0.0, 0.0), &[counted(1000.0, 1.0)]), 0);
        let near = |n: f64| compare(&[counted(n, 0.0)], &[counted(1000.0, 0.0)], 10.0, 3.0);
        assert_eq!(near(1020.0), (vec![], vec![]));
        assert_eq!(near(1035.0), (vec![], vec!["MWCL x1: instructions 1000.000 -> 1035.000".to_string()]));
        assert_eq!(near(1041.0).0.len(), 1);
    }
}
