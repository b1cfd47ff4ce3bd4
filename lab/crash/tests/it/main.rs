//! One binary for all tests of this crate.

mod born;
mod crash;
mod epochs;
mod fuzz;
mod mkfs;
mod oom;
mod repair;
mod simulate;
