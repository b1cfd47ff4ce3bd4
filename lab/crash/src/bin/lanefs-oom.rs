//! `cargo xtask oom`: memory that runs out at every step, see the module `oom`. Exit status 1
//! if a promise was broken.

use lanefs_lab_crash::oom::faults::{Failing, Fault, no_thread};
use lanefs_lab_crash::oom::{self, Counts, Options, PlantedFault, Report};
use std::ffi::c_void;
use std::process::ExitCode;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Failing = Failing;

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    Start,
    *mut c_void,
) -> libc::c_int;

/// Stands in for the C library's, in this program: a thread that is not to be started is one for
/// which there is no memory.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> libc::c_int {
    /// Found once; whoever finds it finds the same. Relaxed: nothing else goes with it.
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    if no_thread() {
        return libc::EAGAIN;
    }
    let mut real = REAL.load(Relaxed);
    if real.is_null() {
        // SAFETY: the name is a string that ends with zero.
        real = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()) };
        if real.is_null() {
            return libc::ENOSYS;
        }
        REAL.store(real, Relaxed);
    }
    // SAFETY: not null, so the next definition of pthread_create, whose type this is.
    let real = unsafe { std::mem::transmute::<*mut c_void, Create>(real) };
    // SAFETY: the caller's obligations are the same.
    unsafe { real(thread, attributes, start, argument) }
}

const USAGE: &str = "usage: lanefs-oom [--long | --sample N] [--only STAGE] [--fault once|for-good|thread|threads|space] [--at N] [--jobs N] \
     [--patience SECONDS] [--plant swallow|panic|hang|crash|told] [--dir DIR] [--json FILE]";

struct Arguments {
    options: Options,
    child: Option<String>,
    json: Option<String>,
}

fn arguments() -> Result<Arguments, String> {
    let mut a = Arguments { options: Options::default(), child: None, json: None };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let o = &mut a.options;
        if arg == "--long" {
            o.long = true;
            continue;
        }
        let value = args.next().ok_or(format!("{arg} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{value:?} is not a number"));
        let odd = || format!("{arg} {value:?} is not known");
        match arg.as_str() {
            "--sample" => o.sample = number()?.max(1),
            "--only" => o.only = Some(value),
            "--fault" => o.fault = Some(Fault::named(&value).ok_or_else(odd)?),
            "--at" => o.at = Some(number()?),
            "--jobs" => o.jobs = number()?.max(1) as usize,
            "--patience" => o.patience = Duration::from_secs(number()?),
            "--plant" => {
                o.plant = Some(PlantedFault::ALL.into_iter().find(|p| p.name() == value).ok_or_else(odd)?);
            }
            "--dir" => o.dir = value.into(),
            "--json" => a.json = Some(value),
            "--child" => a.child = Some(value),
            _ => return Err(format!("unknown argument {arg:?}")),
        }
    }
    Ok(a)
}

fn print(report: &Report) {
    let line = |name: &str, c: &Counts| {
        println!(
            "{name:<20} {:>7} {:>7} {:>7} {:>8} {:>9} {:>9} {:>11} {:>10}",
            c.allocations, c.threads, c.steps, c.aborted, c.answered, c.finished, c.not_reached, c.violations
        );
    };
    println!(
        "{:<20} {:>7} {:>7} {:>7} {:>8} {:>9} {:>9} {:>11} {:>10}",
        "stage", "allocs", "threads", "steps", "aborted", "answered", "finished", "not reached", "violations"
    );
    report.stages.iter().for_each(|(name, c)| line(name, c));
    line("all", &report.all);
    println!("{:.0} s", report.seconds);
}

fn work(a: &Arguments) -> Result<bool, String> {
    let o = &a.options;
    if let Some(name) = &a.child {
        let fault = o.fault.unwrap_or(Fault::Nothing);
        return oom::child(name, &o.dir, fault, o.at.unwrap_or(0), o.plant).map(|()| true);
    }
    let report = oom::run(o)?;
    print(&report);
    if let Some(file) = &a.json {
        let text = serde_json::to_string_pretty(&report).map_err(|e| e.to_string())?;
        std::fs::write(file, text + "\n").map_err(|e| format!("{file}: {e}"))?;
    }
    Ok(report.found.is_empty())
}

fn main() -> ExitCode {
    let said = match arguments().map(|a| work(&a)) {
        Ok(Ok(true)) => return ExitCode::SUCCESS,
        Ok(Ok(false)) => return ExitCode::FAILURE,
        Ok(Err(e)) => e,
        Err(e) => format!("{e}\n{USAGE}"),
    };
    eprintln!("lanefs-oom: {said}");
    ExitCode::from(2)
}
