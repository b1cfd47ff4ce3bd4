//! What LaneFS is checked against: a reference model, scenarios that run on any target, and the
//! crash simulator. Nothing of the product depends on this crate.

pub mod apps;
pub mod coherence;
pub mod conflicts;
pub mod crash;
pub mod epochs;
pub mod fuzz;
pub mod generate;
pub mod model;
pub mod oom;
pub mod op;
pub mod oracle;
pub mod power;
pub mod scenario;
#[cfg(feature = "schedule")]
pub mod schedule;
pub mod simulate;
pub mod target;
