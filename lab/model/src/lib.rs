//! What LaneFS is checked against: operations, a reference model and its oracle, scenarios and
//! random histories that run on any target. Nothing of the product depends on this crate.

pub mod generate;
pub mod model;
pub mod op;
pub mod oracle;
pub mod scenario;
pub mod target;
