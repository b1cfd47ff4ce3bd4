//! Tests of file data over a store in memory.

mod bench;
mod budget;
mod fake;
mod model;
mod races;
mod threads;
