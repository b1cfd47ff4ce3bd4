//! Which operations write lines that another one uses, and how far LaneFS would scale with what
//! they share. Nothing of the product depends on this crate.

pub mod coherence;
pub mod conflicts;
