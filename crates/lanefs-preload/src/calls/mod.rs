//! The functions that are replaced, by what they are about.

mod attributes;
mod copies;
mod descriptors;
mod directories;
mod locks;
mod memory;
mod names;
pub mod open;
pub mod process;
mod readiness;
mod refused;
pub mod standard;
mod status;
pub mod streams;
mod system;
mod temporary;
mod transfer;
mod trees;
pub mod working_dir;
