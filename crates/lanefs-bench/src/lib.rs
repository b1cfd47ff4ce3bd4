//! `lanefs bench`: FxMark's nineteen microbenchmarks and the workloads of the papers LaneFS grew
//! from, on any mounted file system (by system calls) and on a LaneFS volume in this process.
//!
//! The modules, top down: [`cli`] reads the command line; [`paper`] runs and draws the figures of
//! the papers; [`guest`] runs a command in a virtual machine; [`report`] draws the results of runs;
//! [`embed`] runs SQLite and RocksDB on a volume in their own process; [`space`] runs file systems
//! that are nearly full; [`compare`] makes, mounts and removes the peers; [`matrix`] runs all cells
//! of a run and fills the results file; [`registry`] lists the workloads, compiled for each kind of
//! target; [`runner`] runs one cell (one workload, one target, one number of workers) and counts;
//! [`workload`] holds one small file per workload; [`target`] is what a workload runs on.

#![deny(missing_docs)]

pub mod ablation;
pub mod cli;
pub mod clock;
pub mod compare;
pub mod cost;
pub mod embed;
pub mod error;
pub mod guest;
pub mod interrupt;
pub mod machine;
pub mod matrix;
pub mod name;
pub mod paper;
pub mod pin;
pub mod processors;
pub mod ratios;
pub mod registry;
pub mod report;
pub mod results;
pub mod rng;
pub mod runner;
pub mod space;
pub mod target;
pub mod units;
pub mod workload;

pub use error::{Errno, Failure};
