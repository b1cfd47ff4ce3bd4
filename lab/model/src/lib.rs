//! The means to check LaneFS: operations, a reference model and its oracle, scenarios and random
//! histories that run on any target, and the harness of the checks. Nothing of the product depends
//! on this crate.

pub mod generate;
pub mod harness;
pub mod model;
pub mod op;
pub mod oracle;
pub mod scenario;
pub mod target;
