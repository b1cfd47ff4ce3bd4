//! `cargo xtask fuzz [--seconds N] [--cases N] [--seed N] [--json FILE]`: damaged images and bytes,
//! one case a seed. Exit status 1 if something was found.
//!
//! The cases run in a child of this process: one that hangs or runs out of memory ends the child,
//! and is told by its number.

use lanefs_lab_crash::fuzz::{self, meter::Metered, meter::running};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: Metered = Metered;

/// A case that runs for longer does not end; one that does not run at all for so many of these
/// waits for something that does not come.
const HANG: Duration = Duration::from_secs(60);
const SLEEPS: u32 = 5;

/// So many findings say all.
const MANY: usize = 500;

struct Options {
    seconds: u64,
    cases: u64,
    seed: u64,
    child: bool,
    json: Option<String>,
}

fn options() -> Result<Options, String> {
    let mut o = Options { seconds: 60, cases: u64::MAX, seed: 1, child: false, json: None };
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        if a == "--child" {
            o.child = true;
            continue;
        }
        let value = args.next().ok_or(format!("{a} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{value:?} is not a number"));
        match a.as_str() {
            "--seconds" => o.seconds = number()?,
            "--cases" => o.cases = number()?,
            "--seed" => o.seed = number()?,
            "--json" => o.json = Some(value),
            _ => return Err(format!("unknown argument {a:?}")),
        }
    }
    Ok(o)
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
        let seed = o.seed.wrapping_add(n);
        say(format!("at {seed}"))?;
        if let Err(f) = fuzz::case(seed) {
            many += 1;
            say(format!("found {}", f.to_string().replace('\n', " | ")))?;
        }
    }
    Ok(true)
}

/// How a child ended.
struct Ended {
    /// The next case to run.
    next: u64,
    done: bool,
    lost: Option<String>,
}

/// Runs a child from `seed` on.
fn watch(o: &Options, seed: u64, left: Duration, found: &mut Vec<String>) -> Result<Ended, String> {
    let me = std::env::current_exe().map_err(|e| e.to_string())?;
    let cases = o.cases.saturating_sub(seed.wrapping_sub(o.seed));
    let mut c = Command::new(me)
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
    let (began, mut found, mut seed) = (Instant::now(), Vec::new(), o.seed);
    loop {
        let left = Duration::from_secs(o.seconds).saturating_sub(began.elapsed());
        if found.len() >= MANY || left.is_zero() || seed.wrapping_sub(o.seed) >= o.cases {
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
    let cases = seed.wrapping_sub(o.seed);
    let json = serde_json::json!({
        "cases": cases,
        "seed": o.seed,
        "seconds": began.elapsed().as_secs_f64(),
        "findings": found.len(),
        "found": found,
    });
    let text = serde_json::to_string_pretty(&json).map_err(|e| e.to_string())?;
    match &o.json {
        Some(file) => std::fs::write(file, text + "\n").map_err(|e| format!("{file}: {e}"))?,
        None => println!("{text}"),
    }
    Ok(found.is_empty())
}

fn main() -> ExitCode {
    let done = options().and_then(|o| if o.child { child(&o) } else { work(&o) });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!(
                "lanefs-fuzz: {e}\nusage: lanefs-fuzz [--seconds N] [--cases N] [--seed N] [--json FILE]"
            );
            ExitCode::from(2)
        }
    }
}
