//! `lanefs bench run`: workloads on given targets.

use super::{Cells, Progress, command_line, now, write_json};
use crate::error::{Failure, Res};
use crate::interrupt;
use crate::machine::Machine;
use crate::results::{CellFailure, CellResult, ResultsFile};
use crate::runner::CellOutcome;
use crate::target::{OpenTarget, TargetSpec};
use crate::workload::{Entry, select};
use std::path::{Path, PathBuf};

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// A directory, a LaneFS image, or `mem:[SIZE][,lanes=N][,mlogs=N][,cache=SIZE]`, with what `ablate` takes out added in the same
    /// way (rps=shared, cells=one, oplog=one, counter=one, ids=scan); may be given several times.
    /// NAME=TARGET gives it a name.
    #[arg(long, required = true)]
    pub target: Vec<String>,
    #[command(flatten)]
    pub cells: Cells,
    /// Write the results here.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// A target with the name it has in the results.
pub struct Named {
    /// Its name.
    pub name: String,
    /// It.
    pub target: OpenTarget,
    /// Techniques of LaneFS that are off in it.
    pub without: Vec<String>,
}

/// Runs everything chosen on all targets, interleaved by workload and repeat, so that whatever else the machine
/// does hits all alike. Calls `finished` after each cell (what is known so far is worth keeping).
pub fn matrix(
    cells: &Cells,
    workloads: &[&Entry],
    targets: &mut [Named],
    file: &mut ResultsFile,
    mut finished: impl FnMut(&ResultsFile) -> Res<()>,
) -> Res<()> {
    let progress = Progress::new(workloads.len() * targets.len() * cells.workers.len() * cells.repeats);
    progress.head()?;
    for entry in workloads {
        for &workers in &cells.workers {
            let mut outcomes: Vec<Vec<CellOutcome>> = targets.iter().map(|_| Vec::new()).collect();
            let mut broken: Vec<Option<String>> = targets.iter().map(|_| None).collect();
            for repeat in 0..cells.repeats {
                // Every other repeat backwards: what a cell leaves behind does not always hit the same one.
                let mut order: Vec<usize> = (0..targets.len()).collect();
                if repeat % 2 == 1 {
                    order.reverse();
                }
                for at in order {
                    if interrupt::requested() {
                        return Err(Failure::interrupted());
                    }
                    progress.now(&format!("{} {} x{workers}", entry.info.name, targets[at].name));
                    let processes = cells.processes && matches!(targets[at].target, OpenTarget::Dir(_));
                    if broken[at].is_none() {
                        match entry.run(&mut targets[at].target, &cells.plan(workers, processes)) {
                            Ok(outcome) => outcomes[at].push(outcome),
                            Err(e) if e.interrupted => return Err(e),
                            Err(e) => broken[at] = Some(e.message),
                        }
                    }
                    progress.step();
                }
            }
            let mut told = Ok(());
            for (at, target) in targets.iter().enumerate() {
                if let Some(message) = broken[at].take() {
                    told = told.and(progress.line(&format!(
                        "{:<16} {:<14} {workers:>7} failed: {message}",
                        entry.info.name, target.name
                    )));
                    let (target, workload) = (target.name.clone(), entry.info.name.to_string());
                    file.failures.push(CellFailure { target, workload, workers, message });
                    continue;
                }
                let processes = cells.processes && matches!(target.target, OpenTarget::Dir(_));
                let result = CellResult {
                    target: target.name.clone(),
                    workload: entry.info.name.to_string(),
                    workers,
                    unit: entry.info.unit.to_string(),
                    mode: if processes { "processes" } else { "threads" }.to_string(),
                    without: target.without.clone(),
                    direct: cells.direct,
                    seconds: cells.seconds,
                    ..CellResult::from_runs(&outcomes[at])
                };
                told = told.and(progress.row(&result));
                file.results.push(result);
            }
            // What is known is kept, also when nobody reads of it any more.
            finished(file)?;
            told?;
        }
    }
    Ok(())
}

pub(super) fn run(args: &RunArgs) -> Res<i32> {
    args.cells.check()?;
    let workloads = select(&args.cells.workloads)?;
    let mut machine = Machine::here();
    let mut targets = Vec::new();
    for text in &args.target {
        let (name, text) = match text.split_once('=') {
            Some((name, rest)) if !name.contains(['/', ':']) => (name, rest),
            _ => (text.as_str(), text.as_str()),
        };
        let spec = TargetSpec::parse(text)?;
        if let TargetSpec::Dir(path) | TargetSpec::Image(path, _) = &spec {
            machine.note_mount(path);
        }
        targets.push(spec.named(name, args.cells.direct)?);
    }
    let file =
        ResultsFile { format: 1, command: command_line(), started: now(), machine, ..ResultsFile::default() };
    matrix_to(&args.cells, &workloads, &mut targets, file, args.json.as_deref())
}

/// Runs the matrix, keeps what is finished in a file, and answers the exit status.
pub(super) fn matrix_to(
    cells: &Cells,
    workloads: &[&Entry],
    targets: &mut [Named],
    mut file: ResultsFile,
    json: Option<&Path>,
) -> Res<i32> {
    let done = matrix(cells, workloads, targets, &mut file, |file| match json {
        Some(path) => write_json(path, file),
        None => Ok(()),
    });
    match done {
        Ok(()) => Ok(i32::from(!file.failures.is_empty())),
        Err(e) if e.interrupted => {
            eprintln!("interrupted; what was finished is kept");
            Ok(130)
        }
        Err(e) => Err(e),
    }
}
