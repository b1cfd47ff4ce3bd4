//! How a measurement ends, and the memory of the process that holds the volume.

use std::time::Instant;

pub type Failure = Box<dyn std::error::Error>;

/// The memory of a process, as /proc shows it.
pub struct Memory(String);

impl Memory {
    /// Of a process; of this one if none is named.
    pub fn of(pid: Option<u32>) -> Memory {
        Memory(pid.map_or("/proc/self".into(), |p| format!("/proc/{p}")))
    }

    fn mib(&self, key: &str) -> f64 {
        let status = std::fs::read_to_string(format!("{}/status", self.0)).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix(key));
        line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok()).map_or(f64::NAN, |k| k / 1024.0)
    }

    /// A line: how long it took since `start`, for each of `count`, and the memory now and at most
    /// so far.
    pub fn show(&self, what: &str, start: Instant, count: u64) {
        let took = start.elapsed();
        let each = match count {
            0 => String::new(),
            n => format!("{:.2} us each", took.as_secs_f64() * 1e6 / n as f64),
        };
        println!(
            "{what:<26} {:8.1} s  {each:<16} RSS {:6.1} MiB, at most {:6.1} MiB",
            took.as_secs_f64(),
            self.mib("VmRSS:"),
            self.mib("VmHWM:")
        );
    }
}
