//! `lanefs fsck`

use crate::failure::{Failure, Outcome};
use std::path::PathBuf;

/// Exit code: the check could not be run.
const COULD_NOT_RUN: i32 = 8;

/// Check a volume, and repair what can be
///
/// Exit code: 0 clean, 1 errors were repaired, 4 errors are left, 8 the check could not be run.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Repair what can be repaired
    #[arg(long)]
    pub repair: bool,
    /// Write the report as JSON
    #[arg(long)]
    pub json: bool,
    /// The volume's images or block devices
    #[arg(required = true, value_name = "IMAGE")]
    pub images: Vec<PathBuf>,
}

/// Checks.
pub fn run(args: &Args) -> Outcome {
    let _ = args;
    Err(Failure::new("the checker is not built in").code(COULD_NOT_RUN))
}
