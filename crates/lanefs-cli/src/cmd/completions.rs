//! `lanefs completions`

use crate::failure::Outcome;
use clap::Command;
use clap_complete::Shell;

/// Write the completion script of a shell to standard output
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Which shell
    pub shell: Shell,
}

/// Writes it, of the whole command.
pub fn run(args: &Args, mut whole: Command) -> Outcome {
    clap_complete::generate(args.shell, &mut whole, "lanefs", &mut std::io::stdout().lock());
    Ok(0)
}
