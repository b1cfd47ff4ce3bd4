//! `lanefs dump`

use crate::failure::{Failure, Outcome};
use std::path::PathBuf;

/// Show a structure of an image as it is on disk
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    /// What to show
    pub structure: String,
    /// The volume's images or block devices
    #[arg(required = true, value_name = "IMAGE")]
    pub images: Vec<PathBuf>,
}

/// Shows.
pub fn run(args: &Args) -> Outcome {
    let _ = args;
    Err(Failure::new("not built in"))
}
