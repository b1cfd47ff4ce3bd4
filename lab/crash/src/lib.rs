//! Checkers of LaneFS that take something away: power, answers of the device, order of threads,
//! intact images, memory. Nothing of the product depends on this crate.

pub mod apps;
pub mod crash;
pub mod epochs;
pub mod fuzz;
pub mod oom;
pub mod power;
#[cfg(feature = "schedule")]
pub mod schedule;
pub mod simulate;
