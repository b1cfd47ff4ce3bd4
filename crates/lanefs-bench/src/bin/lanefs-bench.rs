//! `lanefs bench` as a program of its own.

use clap::Parser;

#[global_allocator]
static ALLOCATOR: lanefs_bench::cost::CountingAllocator = lanefs_bench::cost::CountingAllocator;

fn main() {
    let code = match lanefs_bench::cli::run(lanefs_bench::cli::Args::parse()) {
        Ok(code) => code,
        Err(e) => {
            if !e.message.is_empty() {
                eprintln!("lanefs-bench: {e}");
            }
            e.code
        }
    };
    std::process::exit(code);
}
