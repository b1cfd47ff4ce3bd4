//! The log-structured store of LaneFS: devices, mlogs, inode table, extents, checkpoint, epoch
//! commit, fsync batches, recovery and cleaner. It knows inode numbers and pages, never paths.
//!
//! The folders are its layers, each standing on those before it:
//!
//! 1. `device`: memory, files and block devices.
//! 2. `tree`: the structures on disk, over "read a block" and "write a block".
//! 3. `log`: segments, the mlogs that fill them, and free space.
//! 4. `inodes`: the inodes in memory, and how they are read and changed.
//! 5. `engine`: transactions, epoch commits, checkpoints with their folds, the cleaner.
//! 6. `recovery`: making and opening volumes.
//! 7. `fsck`: checking and repairing them.

#![deny(missing_docs)]

pub mod api;
// The tests of `tests/it` and those beside the code have their model in common.
#[cfg(test)]
#[allow(dead_code)]
#[path = "../tests/it/common.rs"]
mod common;
pub mod device;
mod engine;
pub mod error;
pub mod fsck;
mod groups;
mod inodes;
mod log;
#[cfg(test)]
#[path = "../tests/it/model.rs"]
mod model;
mod page_image;
mod recovery;
pub mod report;
mod store;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod tree;

#[cfg(test)]
extern crate self as lanefs_store;

pub use api::*;
pub use engine::commit::{EpochWrite, EpochWritten};
pub use engine::plan as fold;
pub use error::{Result, StoreError};
pub use fsck::audit::Audit;
pub use fsck::scrub::{ScrubCursor, ScrubDamage, ScrubStep};
pub use groups::Groups;
pub use log::admission::Admitted;
pub use log::space::{Claimant, PARTS_OF_BLOCK};
pub use page_image::PageImage;
pub use report::StoreReport;
// What the signatures here are made of.
pub use lanefs_format::{
    Attrs, BLOCK_SIZE, Block, BlockAddr, BlockRef, BucketEntry, FileKind, Ino, ROOT_INO, Version,
};
pub use store::Store;
