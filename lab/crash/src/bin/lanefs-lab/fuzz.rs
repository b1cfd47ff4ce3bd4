//! `cargo xtask fuzz`: damaged images and bytes, one case a seed.
//!
//! The cases run in a child of this process: one that hangs or runs out of memory ends the child,
//! and is told by its number.

use super::allocator;
use clap::Args;
use lanefs_lab_crash::fuzz::{self, meter::running};
use lanefs_lab_model::harness::{Output, Seed, this_program};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A case that runs for longer does not end; one that does not run at all for so many of these
/// waits for something that does not come.
const HANG: Duration = Duration::from_secs(60);
const SLEEPS: u32 = 5;

/// So many findings say all.
const MANY: usize = 500;

/// The command line.
#[derive(Debug, Args)]
pub struct Options {
    /// Stop after so long
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Stop after so many cases
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    cases: u64,
    /// The process that runs the cases
    #[arg(long, hide = true)]
    child: bool,
    #[command(flatten)]
    seed: Seed,
    #[command(flatten)]
    output: Output,
}

/// Runs the check, or its child.
pub fn run(o: &Options) -> Result<bool, String> {
    allocator::choose(allocator::Kind::Metered);
    if o.child { child(o) } else { work(o) }
}

/// Runs cases until told to end; a line per finding, and now and then one that says how far it is.
fn child(o: &Options) -> Result<bool, String> {
    fuzz::watch_panics();
    let end = Instant::now() + Duration::from_secs(o.seconds);
    let mut out = std::io::stdout();
    let mut say =
        |line: String| writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|e| e.to_string());
    let mut many = 0;
    for n in 0..o.cases {
        if Instant::now() >= end || many >= MANY {
            break;
        }
        let seed = o.seed.seed.wrapping_add(n);
        say(format!("at {seed}"))?;
        if let Err(f) = fuzz::case(seed) {
            many += 1;
            say(format!("found {}", f.to_string().replace('\n', " | ")))?;
        }
    }
    Ok(true)
}

/// The end of a child.
struct Ended {
    /// The next case to run.
    next: u64,
    done: bool,
    lost: Option<String>,
}

/// Runs a child from `seed` on.
fn watch(o: &Options, seed: u64, left: Duration, found: &mut Vec<String>) -> Result<Ended, String> {
    let cases = o.cases.saturating_sub(seed.wrapping_sub(o.seed.seed));
    let mut c = this_program("fuzz")?
        .args(["--child", "--seconds", &left.as_secs().max(1).to_string()])
        .args(["--cases", &cases.to_string(), "--seed", &seed.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    let (send, lines) = channel();
    let pipe = c.stdout.take().ok_or("no pipe")?;
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    let at = AtomicU64::new(seed);
    let stat = format!("/proc/{}/schedstat", c.id());
    let (mut ran, mut waits) = (running(&stat), 0);
    let hung = loop {
        let line = lines.recv_timeout(HANG);
        if line.is_ok() {
            (ran, waits) = (running(&stat), 0);
        }
        match line {
            Ok(line) => match line.split_once(' ') {
                Some(("at", n)) => at.store(n.parse().unwrap_or(seed), Relaxed),
                Some((_, what)) => {
                    eprintln!("FOUND {what}");
                    found.push(what.into());
                }
                None => {}
            },
            // A busy machine may not have let it run.
            Err(RecvTimeoutError::Timeout)
                if waits < SLEEPS && running(&stat).saturating_sub(ran) < HANG / 2 =>
            {
                waits += 1
            }
            Err(RecvTimeoutError::Timeout) => break true,
            Err(RecvTimeoutError::Disconnected) => break false,
        }
    };
    if hung {
        c.kill().map_err(|e| e.to_string())?;
    }
    let status = c.wait().map_err(|e| e.to_string())?;
    let _ = reader.join();
    let at = at.into_inner();
    let lost = match (hung, status.success()) {
        (true, _) => Some(format!("did not end within {} s", HANG.as_secs())),
        (false, false) => Some(format!("ended the process: {status}")),
        (false, true) => None,
    };
    Ok(Ended { next: at + 1, done: lost.is_none(), lost: lost.map(|l| format!("seed {at}: {l}")) })
}

fn work(o: &Options) -> Result<bool, String> {
    let (began, mut found, mut seed) = (Instant::now(), Vec::new(), o.seed.seed);
    loop {
        let left = Duration::from_secs(o.seconds).saturating_sub(began.elapsed());
        if found.len() >= MANY || left.is_zero() || seed.wrapping_sub(o.seed.seed) >= o.cases {
            break;
        }
        let ended = watch(o, seed, left, &mut found)?;
        seed = ended.next;
        if let Some(l) = ended.lost {
            eprintln!("FOUND {l}");
            found.push(l);
        }
        if ended.done {
            break;
        }
    }
    let cases = seed.wrapping_sub(o.seed.seed);
    let json = serde_json::json!({
        "cases": cases,
        "seed": o.seed.seed,
        "seconds": began.elapsed().as_secs_f64(),
        "findings": found.len(),
        "found": found,
    });
    o.output.write(&json)?;
    Ok(found.is_empty())
}
