//! `lanefs bench run`: workloads on given targets.

use crate::error::Res;
use crate::machine::Machine;
use crate::matrix::{Cells, command_line, matrix_to, now};
use crate::registry::select;
use crate::results::ResultsFile;
use crate::target::TargetSpec;
use std::path::PathBuf;

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// A directory, a LaneFS image, or `mem:[SIZE][,lanes=N][,mlogs=N][,cache=SIZE]`, with what
    /// `ablate` takes out added in the same way (rps=shared, cells=one, oplog=one, counter=one,
    /// ids=scan, full=lanes, paths=walk); may be given several times. NAME=TARGET gives it a name.
    #[arg(long, required = true)]
    pub target: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs)] // what is flattened has its own
    pub cells: Cells,
    /// Write the results here.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
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
