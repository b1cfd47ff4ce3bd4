//! The coherence model. `cargo xtask coherence` builds it with instrumentation and calls it.

use lanefs_lab_conflicts::coherence::drive::{self, Options};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match Options::parse(&args).and_then(|o| drive::main(&o)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("coherence: {e}");
            ExitCode::FAILURE
        }
    }
}
