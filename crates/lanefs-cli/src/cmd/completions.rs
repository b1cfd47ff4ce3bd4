//! `lanefs completions`

use crate::cli::Cli;
use crate::failure::Outcome;
use clap::CommandFactory;
use clap_complete::Shell;

/// Write the completion script of a shell to standard output
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Which shell
    pub shell: Shell,
}

/// Writes.
pub fn run(args: &Args) -> Outcome {
    clap_complete::generate(args.shell, &mut Cli::command(), "lanefs", &mut std::io::stdout().lock());
    Ok(0)
}
