//! Runs one cell: one workload on one target with one number of workers.

mod cell;
mod control;
mod shared_memory;
mod sustained;
mod tally;
mod timed;

pub use cell::run;
pub use tally::{CellOutcome, Tally, merge};

/// The parameters of a cell's run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of workers.
    pub workers: usize,
    /// Timed seconds.
    pub seconds: f64,
    /// Seconds of the same work before that, not counted.
    pub warmup: f64,
    /// Whether workers are processes instead of threads (directory targets only).
    pub processes: bool,
    /// Exactly so many operations and no clock: for a profiler that counts.
    pub ops: Option<u64>,
    /// Whether the rounds are long, and the clock runs until all that they caused is done.
    pub sustained: bool,
    /// The parameters of the workload.
    pub params: crate::workload::Params,
}
