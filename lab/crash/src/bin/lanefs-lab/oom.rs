//! `cargo xtask oom`: memory that runs out at every step.

use super::allocator;
use clap::Args;
use lanefs_lab_crash::oom::faults::Fault;
use lanefs_lab_crash::oom::{self, Counts, Options, Report};
use lanefs_lab_model::harness::Output;

/// The command line.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    options: Options,
    /// The process in which something fails: the stage that it runs
    #[arg(long, hide = true)]
    child: Option<String>,
    #[command(flatten)]
    output: Output,
}

fn print(report: &Report) {
    let line = |name: &str, c: &Counts| {
        println!(
            "{name:<20} {:>7} {:>7} {:>7} {:>8} {:>9} {:>9} {:>11} {:>10}",
            c.allocations, c.threads, c.steps, c.aborted, c.answered, c.finished, c.not_reached, c.violations
        );
    };
    println!(
        "{:<20} {:>7} {:>7} {:>7} {:>8} {:>9} {:>9} {:>11} {:>10}",
        "stage", "allocs", "threads", "steps", "aborted", "answered", "finished", "not reached", "violations"
    );
    report.stages.iter().for_each(|(name, c)| line(name, c));
    line("all", &report.all);
    println!("{:.0} s", report.seconds);
}

/// Runs the check, or its child.
pub fn work(a: &Arguments) -> Result<bool, String> {
    allocator::choose(allocator::Kind::Failing);
    let o = &a.options;
    if let Some(name) = &a.child {
        let fault = o.fault.unwrap_or(Fault::Nothing);
        return oom::child(name, &o.dir, fault, o.at.unwrap_or(0), o.plant).map(|()| true);
    }
    let report = oom::run(o)?;
    print(&report);
    a.output.write_file(&report)?;
    Ok(report.found.is_empty())
}
