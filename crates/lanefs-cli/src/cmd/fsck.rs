//! `lanefs fsck`

use crate::failure::{Failure, Outcome, found};
use crate::{mounted, progress};
use indicatif::ProgressBar;
use lanefs_store::device::{Device, FileOptions};
use lanefs_store::fsck::{self, FsckOptions, FsckReport, Phase, Progress};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// Exit codes, as fsck(8) has them.
const REPAIRED: i32 = 1;
const ERRORS_LEFT: i32 = 4;
const COULD_NOT_RUN: i32 = 8;

/// Check a volume, and repair what can be
///
/// Nothing is written without --repair. Exit code: 0 clean, 1 errors were repaired, 4 errors are
/// left, 8 the check could not be run.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Repair what can be repaired
    #[arg(long)]
    pub repair: bool,
    /// Repair in spite of places the device cannot read: what lies there is given up. Without, such
    /// a place ends a repair before it writes
    #[arg(long, requires = "repair")]
    pub give_up_unreadable: bool,
    /// Do not read the content of files, only what describes it
    #[arg(long)]
    pub quick: bool,
    /// Write the report as JSON
    #[arg(long)]
    pub json: bool,
    /// The volume's images or block devices
    #[arg(required = true, value_name = "IMAGE")]
    pub images: Vec<PathBuf>,
}

/// Checks.
pub fn run(args: &Args) -> Outcome {
    let report = check(args).map_err(|f| f.code(COULD_NOT_RUN))?;
    let mut out = std::io::stdout().lock();
    let told = match args.json {
        true => json(&mut out, args, &report),
        false => text(&mut out, args, &report),
    };
    let code = match () {
        () if report.is_clean() => 0,
        () if report.left() == 0 => REPAIRED,
        () => ERRORS_LEFT,
    };
    found(code, told, COULD_NOT_RUN)
}

/// Runs the check.
fn check(args: &Args) -> Result<FsckReport, Failure> {
    let how = FileOptions { read_only: !args.repair, ..FileOptions::default() };
    let devices: Result<Vec<Arc<dyn Device>>, Failure> = args
        .images
        .iter()
        .map(|i| Ok(Arc::new(mounted::device_when_closed(i, &args.images, how)?) as Arc<dyn Device>))
        .collect();
    let options = FsckOptions {
        repair: args.repair,
        read_data: !args.quick,
        give_up_unreadable: args.give_up_unreadable,
        ..FsckOptions::default()
    };
    let bar = progress::items("checking");
    let report = fsck::check(devices?, &options, &|p| show(&bar, p))?;
    bar.finish_and_clear();
    Ok(report)
}

/// Shows the progress.
fn show(bar: &ProgressBar, p: Progress) {
    bar.set_message(match p.phase {
        Phase::Scan => "looking for inodes in all blocks",
        Phase::Inodes => "reading inodes and data",
        Phase::Recovery => "replaying the log",
        Phase::Names => "comparing names",
        Phase::Repair => "repairing",
    });
    bar.set_position(p.done);
    if p.total > 0 {
        progress::set_total(bar, p.total);
    }
}

fn names(args: &Args) -> String {
    args.images.iter().map(|i| i.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn json(out: &mut impl Write, args: &Args, report: &FsckReport) -> std::io::Result<()> {
    let mut value = serde_json::to_value(report).map_err(std::io::Error::other)?;
    value["images"] = args.images.iter().map(|i| i.display().to_string()).collect();
    value["clean"] = report.is_clean().into();
    value["left"] = report.left().into();
    writeln!(out, "{value:#}")
}

fn text(out: &mut impl Write, args: &Args, report: &FsckReport) -> std::io::Result<()> {
    for p in &report.problems {
        let state = match (p.repaired, p.repairable) {
            (true, _) => "repaired",
            (false, true) => "repairable",
            (false, false) => "cannot be repaired",
        };
        if let Some(path) = &p.path {
            write!(out, "{path}: ")?;
        }
        writeln!(out, "{}: {} ({state}: {})", p.structure, p.what, p.remedy)?;
    }
    let images = names(args);
    if !report.was_closed {
        writeln!(out, "{images}: was not closed; its log was replayed before the check")?;
    }
    if report.not_arrived > 0 {
        writeln!(
            out,
            "{images}: {} messages at the end of the log are left out: their data is not there. It had not arrived when the volume went \
             down, so nobody was told that it had; or it was damaged since, which nothing tells apart",
            report.not_arrived
        )?;
    }
    writeln!(
        out,
        "{images}: {} inodes, {} directories, {} names; {} blocks of data and {} of structures read",
        report.inodes, report.directories, report.names, report.data_blocks, report.node_blocks
    )?;
    if report.metadata_copies == 2 {
        writeln!(out, "{images}: two copies of its structures, of which both were read")?;
    }
    match (report.problems.len(), report.left()) {
        (0, _) => writeln!(out, "{images}: clean"),
        (n, 0) => writeln!(out, "{images}: {n} errors, all repaired"),
        (n, left) if args.repair => writeln!(out, "{images}: {n} errors, {left} left"),
        (n, _) if report.problems.iter().any(|p| p.repairable) => {
            writeln!(out, "{images}: {n} errors; run `lanefs fsck --repair` to repair what can be")
        }
        (n, _) => writeln!(out, "{images}: {n} errors that cannot be repaired"),
    }
}
