//! The `lanefs` command. One file per command under `cmd/`; a command's output goes to stdout, and
//! what went wrong to stderr, in one line that names the file and what to do.

mod allocator;
mod cli;
mod cmd;
mod daemon;
mod endpoint;
mod failure;
mod figures;
mod helper;
mod host;
mod image;
mod log;
mod loop_device;
mod metrics;
mod mounted;
mod mountinfo;
mod names;
mod progress;
mod prometheus;
mod size;
mod socket;
mod terminal;

use clap::Parser;
use failure::Failure;

/// Has a write behind the limit of a file's size (`ulimit -f`) fail, where a signal would end the
/// process: what was accepted is still made durable, and a message says what to do.
fn ignore_file_size_signal() {
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

fn main() {
    ignore_file_size_signal();
    let args: Vec<_> = std::env::args_os().collect();
    let result = match helper::named(&args) {
        true => helper::run(&args),
        false => cli::Cli::parse_from(args).run(),
    };
    let code = match result {
        Ok(code) => code,
        Err(failure) => {
            if !failure.message.is_empty() {
                eprintln!("lanefs: {}", failure.message);
            }
            failure.code
        }
    };
    std::process::exit(code);
}
