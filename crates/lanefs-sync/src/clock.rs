//! Time: a clock for the order of operations, and the coarse wall clock for the times of files.
//!
//! **No correctness rests on the clock** (obligation O12). A timestamp only has to lie above the
//! `last_ts` of the keys it writes; the clock keeps it near real time. So the kinds below include
//! two that are wrong on purpose, and the tests of the crates above run with all of them.

use crate::random::{GOLDEN, mix};
use std::sync::atomic::{AtomicU64, Ordering};

/// A source of timestamps. On lines of its own, wherever it is allocated: every call reads which
/// kind it is.
#[derive(Debug)]
#[repr(align(128))]
pub struct Clock(Kind);

/// Private, so that a `Tsc` exists only where the processor was asked.
#[derive(Debug)]
enum Kind {
    Tsc,
    Generic,
    Lamport,
    /// The state of its generator. Written by every call, Relaxed: only the values' variety
    /// matters.
    Adversarial(AtomicU64),
}

impl Clock {
    /// Returns the best clock of this machine: its counter where that is invariant, else the
    /// system's.
    pub fn detect() -> Self {
        Self::tsc().unwrap_or(Self::generic())
    }

    /// Returns the processor's counter in its own ticks, if it ticks at one rate in every power
    /// state.
    pub fn tsc() -> Option<Self> {
        counter::is_invariant().then_some(Self(Kind::Tsc))
    }

    /// Returns the system's monotonic clock, in nanoseconds.
    pub const fn generic() -> Self {
        Self(Kind::Generic)
    }

    /// Returns the clock that stands still at zero: only the floors order operations.
    pub const fn lamport() -> Self {
        Self(Kind::Lamport)
    }

    /// Returns the clock that jumps about, back as often as forth: reproducible from its seed.
    pub const fn adversarial(seed: u64) -> Self {
        Self(Kind::Adversarial(AtomicU64::new(seed)))
    }

    /// Returns the time, in the clock's own unit.
    #[inline]
    pub fn now(&self) -> u64 {
        match &self.0 {
            Kind::Tsc => counter::read(),
            Kind::Generic => clock_ns(libc::CLOCK_MONOTONIC) as u64,
            Kind::Lamport => 0,
            Kind::Adversarial(state) => mix(state.fetch_add(GOLDEN, Ordering::Relaxed)) >> 24,
        }
    }
}

#[cfg(feature = "simulated-time")]
std::thread_local! {
    static SIMULATED: std::cell::Cell<Option<i64>> = const { std::cell::Cell::new(None) };
}

/// Sets what [`coarse_realtime_ns`] answers in this thread; `None` for the truth again.
#[cfg(feature = "simulated-time")]
pub fn simulate_time(now: Option<i64>) {
    SIMULATED.with(|t| t.set(now));
}

/// Nanoseconds since 1970 as of the last timer tick: what files are stamped with. No system call.
#[inline]
pub fn coarse_realtime_ns() -> i64 {
    #[cfg(feature = "simulated-time")]
    if let Some(t) = SIMULATED.with(std::cell::Cell::get) {
        return t;
    }
    clock_ns(libc::CLOCK_REALTIME_COARSE)
}

#[inline]
fn clock_ns(id: libc::clockid_t) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live timespec. The clocks named in this file exist on every Linux, so the
    // call cannot fail; if it did, `time` would be zero, a legal answer (O12).
    unsafe { libc::clock_gettime(id, &raw mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

#[cfg(target_arch = "x86_64")]
mod counter {
    use std::arch::x86_64::{__cpuid, __rdtscp, _mm_lfence};

    /// Reads the counter: RDTSCP waits for all before it, LFENCE holds back all behind it.
    #[inline]
    pub fn read() -> u64 {
        let mut processor = 0;
        // SAFETY: `Clock::tsc` makes a `Kind::Tsc` only after `is_invariant` found RDTSCP; LFENCE
        // is part of x86_64.
        unsafe {
            let ticks = __rdtscp(&raw mut processor);
            _mm_lfence();
            ticks
        }
    }

    pub fn is_invariant() -> bool {
        if __cpuid(0x8000_0000).eax < 0x8000_0007 {
            return false;
        }
        let has_rdtscp = __cpuid(0x8000_0001).edx & (1 << 27) != 0;
        let invariant = __cpuid(0x8000_0007).edx & (1 << 8) != 0;
        has_rdtscp && invariant
    }
}

#[cfg(target_arch = "aarch64")]
mod counter {
    /// Reads the virtual counter, after everything before it.
    #[inline]
    pub fn read() -> u64 {
        let ticks: u64;
        // SAFETY: Linux lets user space read CNTVCT_EL0; the instructions touch no memory.
        unsafe { std::arch::asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks, options(nostack)) };
        ticks
    }

    pub fn is_invariant() -> bool {
        true
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod counter {
    #[inline]
    pub fn read() -> u64 {
        super::clock_ns(libc::CLOCK_MONOTONIC) as u64
    }

    pub fn is_invariant() -> bool {
        false
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_honest_clocks_go_forward() {
        for clock in [Clock::detect(), Clock::generic()] {
            let mut last = 0;
            for _ in 0..10_000 {
                let now = clock.now();
                assert!(now >= last && now > 0);
                last = now;
            }
        }
    }

    #[test]
    fn the_others_do_not() {
        assert_eq!(Clock::lamport().now(), 0);
        let (one, same) = (Clock::adversarial(7), Clock::adversarial(7));
        let times: Vec<_> = (0..100).map(|_| one.now()).collect();
        assert_eq!(times, (0..100).map(|_| same.now()).collect::<Vec<_>>());
        assert!(times.windows(2).filter(|pair| pair[1] < pair[0]).count() > 20);
        assert!(times.iter().all(|time| *time < 1 << 40));
    }

    #[test]
    fn the_coarse_clock_is_the_wall_clock() {
        let exact =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as i64;
        assert!((coarse_realtime_ns() - exact).abs() < 1_000_000_000);
    }
}
