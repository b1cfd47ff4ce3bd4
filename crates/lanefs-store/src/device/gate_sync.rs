//! The primitives that the gate is built on. The loom tests put loom's in their place, see
//! `gate_tests.rs`.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

pub(super) use std::sync::atomic::{AtomicU64, Ordering};
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};

/// Waiters spin before they park.
pub(super) const SPIN: bool = true;
/// About a fast device's flush: a waiter that sleeps instead is woken later than that by another
/// core.
const SPIN_TIME: Duration = Duration::from_micros(60);

/// Returns how many may spin at once: a core stays free for whoever has work to do.
pub(super) fn max_spinners() -> usize {
    static CORES: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
    *CORES - 1
}

/// Spins until `done`, for a limited time; returns whether it was done.
pub(super) fn spin_until(done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..16 {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > SPIN_TIME {
            return false;
        }
    }
}
