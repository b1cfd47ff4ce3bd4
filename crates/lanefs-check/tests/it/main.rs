//! One binary for all tests of this crate.

mod crash;
mod directory;
mod epochs;
mod simulate;
mod volume;
