//! `lanefs man`

use crate::cli::Cli;
use crate::failure::{About, Outcome};
use clap::CommandFactory;
use std::path::PathBuf;

/// Write the man pages of all commands into a directory
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where to write them
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// Writes.
pub fn run(args: &Args) -> Outcome {
    std::fs::create_dir_all(&args.dir).about(args.dir.display())?;
    clap_mangen::generate_to(Cli::command(), &args.dir).about(args.dir.display())?;
    Ok(0)
}
