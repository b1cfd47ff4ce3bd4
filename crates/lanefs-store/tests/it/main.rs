//! The store as the layer above sees it: one binary for all integration tests.

mod basics;
mod common;
mod crash;
mod full;
mod lost;
mod mkfs;
