//! Time for timed loops: the time-stamp counter where it is invariant, the monotonic clock
//! elsewhere.
//!
//! `rdtsc` costs about 20 ns in a virtual machine and 7 ns on bare metal, `clock_gettime` about 30
//! ns, an operation of an in-process file system may cost 100 ns. So only a sample of the
//! operations is timed ([`crate::runner`]), and the cost of a reading, measured here, is taken off
//! each sample.

use std::sync::OnceLock;

/// The relation of ticks to time on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Ticks per nanosecond.
    pub per_ns: f64,
    /// Ticks that pass between two readings with nothing between them.
    pub overhead: u64,
    /// Whether ticks are the processor's counter.
    pub tsc: bool,
}

static CLOCK: OnceLock<Clock> = OnceLock::new();

/// Returns the machine's clock, which is measured once (about 30 ms).
pub fn clock() -> &'static Clock {
    CLOCK.get_or_init(measure)
}

fn monotonic() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn tsc_is_invariant() -> bool {
    cfg!(target_arch = "x86_64")
        && std::fs::read_to_string("/proc/cpuinfo")
            .is_ok_and(|s| s.contains("constant_tsc") && s.contains("nonstop_tsc"))
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn tsc() -> u64 {
    // SAFETY: rdtsc has no memory effect and exists on every x86_64.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn tsc() -> u64 {
    monotonic()
}

fn measure() -> Clock {
    let use_tsc = tsc_is_invariant();
    let mut c = Clock { per_ns: 1.0, overhead: 0, tsc: use_tsc };
    if use_tsc {
        let (n0, t0) = (monotonic(), tsc());
        while monotonic() - n0 < 25_000_000 {
            std::hint::spin_loop();
        }
        let (n1, t1) = (monotonic(), tsc());
        c.per_ns = (t1 - t0) as f64 / (n1 - n0) as f64;
    }
    c.overhead = (0..1000)
        .map(|_| {
            let a = c.now();
            c.now() - a
        })
        .min()
        .unwrap_or(0);
    debug_assert!(c.per_ns > 0.0 && c.per_ns.is_finite(), "{} ticks a nanosecond", c.per_ns);
    c
}

impl Clock {
    /// Returns the time, in ticks.
    #[inline(always)]
    pub fn now(&self) -> u64 {
        if self.tsc { tsc() } else { monotonic() }
    }
    /// Converts ticks to nanoseconds.
    #[inline]
    pub fn ns(&self, ticks: u64) -> u64 {
        (ticks as f64 / self.per_ns) as u64
    }
    /// Converts ticks to seconds.
    pub fn seconds(&self, ticks: u64) -> f64 {
        ticks as f64 / self.per_ns / 1e9
    }
    /// Converts seconds to ticks.
    pub fn ticks(&self, seconds: f64) -> u64 {
        debug_assert!(seconds >= 0.0 && seconds.is_finite(), "{seconds} seconds");
        (seconds * 1e9 * self.per_ns) as u64
    }
}
