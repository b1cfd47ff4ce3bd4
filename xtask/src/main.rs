//! `cargo xtask tidy`: what a person forgets and the compiler does not say.

mod source;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask tidy\n\n  tidy   check arrows between rooms, file lengths, leftovers, ASCII, SAFETY comments, whitespace";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => run_tidy(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn run_tidy() -> ExitCode {
    // This package lies one level below the workspace.
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let findings = match tidy::check_workspace(package.parent().unwrap_or(package)) {
        Ok(findings) => findings,
        Err(error) => {
            eprintln!("tidy: cannot read the workspace: {error}");
            return ExitCode::from(2);
        }
    };
    for finding in &findings {
        println!("{finding}");
    }
    if findings.is_empty() {
        println!("tidy: nothing to complain about");
        ExitCode::SUCCESS
    } else {
        eprintln!("tidy: {} to mend", findings.len());
        ExitCode::FAILURE
    }
}
