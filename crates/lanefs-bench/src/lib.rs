//! `lanefs bench`: FxMark's nineteen microbenchmarks and the workloads of the papers LaneFS grew from, on any
//! mounted file system (by system calls) and on a LaneFS volume in this process.
//!
//! The rooms, top down: [`cli`] reads the command line; [`compare`] makes, mounts and removes the peers;
//! [`runner`] runs one cell (one workload, one target, one number of workers) and counts; [`workload`] holds one
//! small file per workload; [`target`] is what a workload runs on; [`report`] draws what the runs said.

pub mod ablation;
pub mod cli;
pub mod clock;
pub mod compare;
pub mod cost;
pub mod error;
pub mod interrupt;
pub mod machine;
pub mod name;
pub mod pin;
pub mod report;
pub mod results;
pub mod rng;
pub mod runner;
pub mod target;
pub mod workload;

pub use error::{Errno, Failure};
