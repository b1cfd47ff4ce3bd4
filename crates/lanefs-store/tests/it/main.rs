//! The store as the layer above sees it: one binary for all integration tests.

mod basics;
mod change;
mod closing;
mod common;
mod crash;
mod devices;
mod faults;
mod full;
mod lost;
mod metadata_copies;
mod mkfs;
#[allow(dead_code)]
mod model;
mod recovery;
mod replace;
mod room;
mod slots;
mod unreadable;
