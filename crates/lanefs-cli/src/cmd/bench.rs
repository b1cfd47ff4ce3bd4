//! `lanefs bench`

use crate::failure::{Failure, Outcome};

/// Measure: workloads in the library, on a mount, or on any directory beside it
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// What to measure; `lanefs bench --help` lists it
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    pub args: Vec<String>,
}

/// Measures.
pub fn run(args: &Args) -> Outcome {
    let _ = args;
    Err(Failure::new("not built in"))
}
