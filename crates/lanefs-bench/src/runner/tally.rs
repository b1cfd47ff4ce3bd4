//! The counts of a worker, and the outcome of a cell.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest latency that is recorded as it is: ten minutes.
const LONGEST: u64 = 600_000_000_000;

/// Makes an empty histogram of nanoseconds, two significant digits: small enough to stay out of the
/// way of the caches.
pub fn histogram() -> Histogram<u64> {
    // The bounds are constants that satisfy `new_with_bounds`; the other arm is only there not to
    // panic.
    Histogram::new_with_bounds(1, LONGEST, 2).unwrap_or_else(|_| {
        let mut auto =
            Histogram::new_with_bounds(1, 2, 1).unwrap_or_else(|_| unreachable!("1..2 is a range"));
        auto.auto(true);
        auto
    })
}

/// The counts of one round.
pub(super) struct Counts {
    pub ops: u64,
    pub units: u64,
    /// The end of the round, in ticks.
    pub ended: u64,
}

/// One worker's counts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Operations done in measured rounds.
    pub ops: u64,
    /// Units (see [`crate::workload::Info::unit`]) they were.
    pub units: u64,
    /// Seconds of measured rounds.
    pub seconds: f64,
    /// Seconds of processor time the worker itself used in them.
    pub cpu_seconds: f64,
    /// Allocations of the worker's thread in them and their bytes.
    pub allocated: Option<(u64, u64)>,
    /// Traffic of the device in them, whoever caused it: bytes, writes, flushes. Counted by worker
    /// 0.
    pub traffic: Option<(u64, u64, u64)>,
    /// Sampled latencies: nanoseconds and how often.
    pub latencies: Vec<(u64, u64)>,
    /// Seconds of processor time in the measured rounds that this worker answers for: see
    /// [`Meter`](crate::processors::Meter).
    pub cpu_seconds_all: f64,
    /// Units of each second of measured time, where the run is a sustained one.
    pub per_second: Vec<u64>,
}

/// The outcome of one run of a cell.
#[derive(Clone, Debug, Default)]
pub struct CellOutcome {
    /// Units per second, all workers together.
    pub rate: f64,
    /// Operations done.
    pub ops: u64,
    /// Nanoseconds of the workers' own processor time per unit: what remains true on a busy
    /// machine.
    pub cpu_ns: f64,
    /// Allocations per operation and their bytes, where they are counted.
    pub allocated: Option<(f64, f64)>,
    /// Bytes written to the device, submissions and flushes per operation, where they are counted.
    pub traffic: Option<(f64, f64, f64)>,
    /// Nanoseconds of processor time of everybody per unit.
    pub cpu_ns_all: f64,
    /// Units done in each second, in a sustained run; the last one is a part.
    pub per_second: Vec<u64>,
    /// Each worker's own rate.
    pub per_worker: Vec<f64>,
    /// Sampled latencies of all workers.
    pub latencies: Vec<(u64, u64)>,
}

/// Joins the workers' counts. Each worker's rate is over its own time, so that a start delayed by
/// the scheduler does not count twice.
pub fn merge(tallies: &[Tally]) -> CellOutcome {
    let per_worker: Vec<f64> =
        tallies.iter().map(|t| if t.seconds > 0.0 { t.units as f64 / t.seconds } else { 0.0 }).collect();
    let ops = tallies.iter().map(|t| t.ops).sum::<u64>();
    let per_op = |n: u64| n as f64 / ops.max(1) as f64;
    let allocated = tallies.iter().map(|t| t.allocated).try_fold((0, 0), |sum, one| {
        let one = one?;
        Some((sum.0 + one.0, sum.1 + one.1))
    });
    debug_assert!(tallies.iter().all(|t| t.seconds >= 0.0 && t.cpu_seconds >= 0.0));
    debug_assert!(tallies.iter().skip(1).all(|t| t.traffic.is_none()), "worker 0 counts for all");
    let traffic = tallies.first().and_then(|t| t.traffic);
    let units = tallies.iter().map(|t| t.units).sum::<u64>().max(1) as f64;
    let seconds = tallies.iter().map(|t| t.per_second.len()).max().unwrap_or(0);
    let in_second = |n: usize| tallies.iter().filter_map(|t| t.per_second.get(n)).sum();
    CellOutcome {
        allocated: allocated.map(|(n, bytes)| (per_op(n), per_op(bytes))),
        traffic: traffic.map(|(bytes, writes, flushes)| (per_op(bytes), per_op(writes), per_op(flushes))),
        rate: per_worker.iter().sum(),
        ops,
        cpu_ns: tallies.iter().map(|t| t.cpu_seconds).sum::<f64>() * 1e9 / units,
        cpu_ns_all: tallies.iter().map(|t| t.cpu_seconds_all).sum::<f64>() * 1e9 / units,
        per_second: (0..seconds).map(in_second).collect(),
        per_worker,
        latencies: tallies.iter().flat_map(|t| t.latencies.iter().copied()).collect(),
    }
}
