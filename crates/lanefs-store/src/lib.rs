//! The log-structured store of LaneFS: devices, mlogs, inode table, extents, checkpoint, epoch
//! commit, fsync batches, recovery and cleaner. It knows inode numbers and pages, never paths.

#![deny(missing_docs)]
// Some are left in `fsck`.
#![allow(clippy::too_many_arguments)]

pub mod api;
mod apply;
mod arrived;
mod audit;
mod begun;
pub mod block_io;
mod carry;
mod cell;
mod change;
mod checkpoint;
mod cleaner;
mod commit;
mod commits;
mod copies;
mod deferred;
// The tests of `tests/it` and those beside the code have their model in common.
#[cfg(test)]
#[allow(dead_code)]
#[path = "../tests/it/common.rs"]
mod common;
pub mod device;
pub mod dir;
pub mod error;
#[cfg(test)]
mod fault_tests;
pub mod fold;
pub mod fsck;
pub mod inode_state;
pub mod inode_table;
mod io;
mod maintenance;
mod make;
pub mod map;
pub mod map_delta;
#[cfg(test)]
mod meanwhile_tests;
mod medium;
mod mlog;
#[cfg(test)]
#[path = "../tests/it/model.rs"]
mod model;
mod placed;
mod preallocate;
mod pressure;
pub mod radix;
mod reading;
mod recovery;
#[cfg(test)]
mod retry_tests;
#[cfg(test)]
mod room_tests;
mod scan;
mod scrub;
mod segment;
mod sink;
mod slots;
mod space;
mod store;
mod superblocks;
#[cfg(test)]
mod testing;
mod transaction;
mod unmap;
mod usage_table;
mod xattr_blocks;

#[cfg(test)]
extern crate self as lanefs_store;

pub use api::*;
pub use audit::Audit;
pub use commit::{EpochWrite, EpochWritten};
pub use error::{Result, StoreError};
// What the signatures here are made of.
pub use lanefs_format::{
    Attrs, BLOCK_SIZE, Block, BlockAddr, BlockRef, BucketEntry, FileKind, Ino, ROOT_INO, Version,
};
pub use scrub::{ScrubCursor, ScrubDamage, ScrubStep};
pub use store::Store;
