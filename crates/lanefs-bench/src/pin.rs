//! The processors that workers run on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns the processors this process may use, in order.
pub fn allowed() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&c| set.is_set(c)).collect(),
        Err(_) => vec![0],
    }
}

/// Pins the calling thread to `cpus`. A failure only costs steadiness, so it is ignored.
pub fn pin(cpus: &[usize]) {
    debug_assert!(!cpus.is_empty() && cpus.iter().all(|c| *c < CpuSet::MAX_CPU));
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    let _ = sched_setaffinity(None, &set);
}
