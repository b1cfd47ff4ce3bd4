//! Runs one cell: one workload on one target with one number of workers.

mod cell;
mod control;
mod shared_memory;
mod sustained;
mod tally;
mod timed;

pub use cell::run;
pub use tally::{CellOutcome, Tally, merge};

/// How a cell is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many workers.
    pub workers: usize,
    /// Timed seconds.
    pub seconds: f64,
    /// Seconds of the same work before that, not counted.
    pub warmup: f64,
    /// Workers are processes instead of threads (directory targets only).
    pub processes: bool,
    /// Exactly so many operations and no clock: for a profiler that counts.
    pub ops: Option<u64>,
    /// The rounds are long, and the clock runs until all that they caused is done.
    pub sustained: bool,
    /// What may be set for the workload.
    pub params: crate::workload::Params,
}
