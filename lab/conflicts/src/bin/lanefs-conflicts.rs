//! The conflict checker. `cargo xtask conflicts` builds it with instrumentation and calls it.

use lanefs_lab_conflicts::conflicts::drive::{self, Options};
use std::process::ExitCode;

fn main() -> ExitCode {
    drive::prefer_small_pages();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let options = match Options::parse(&args) {
        Ok(o) => o,
        Err(e) => {
            eprintln!("conflicts: {e}");
            return ExitCode::from(2);
        }
    };
    match drive::main(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("conflicts: {e}");
            ExitCode::from(2)
        }
    }
}
