//! `lanefs bench` as a program of its own.

use clap::Parser;

fn main() {
    let code = match lanefs_bench::cli::run(lanefs_bench::cli::Args::parse()) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("lanefs-bench: {e}");
            2
        }
    };
    std::process::exit(code);
}
