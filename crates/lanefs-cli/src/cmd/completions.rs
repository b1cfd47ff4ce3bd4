//! `lanefs completions`

use crate::failure::{Outcome, written};
use clap::Command;
use clap_complete::Shell;
use std::io::Write;

/// Write the completion script of a shell to standard output
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Which shell
    pub shell: Shell,
}

/// Writes it, of the whole command.
pub fn run(args: &Args, mut whole: Command) -> Outcome {
    // Into memory first: the generator panics where a reader goes away.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut whole, "lanefs", &mut script);
    written(std::io::stdout().lock().write_all(&script))?;
    Ok(0)
}
