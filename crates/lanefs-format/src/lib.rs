//! The on-disk format of LaneFS: pure encoding and decoding, no I/O. docs/SPEC.md describes every
//! byte.
//!
//! Each module holds one structure of a volume. The names that they share, such as block addresses
//! and inode numbers, are those of this module.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod batch;
pub mod checksum;
pub mod dir_bucket;
mod error;
pub mod header;
pub mod inode;
pub mod map_node;
pub mod name_hash;
pub mod orphans;
pub mod pack;
pub mod prealloc;
pub mod record;
pub mod slot;
pub mod summary;
pub mod superblock;
pub mod table_node;
mod types;
pub mod usage_node;
pub mod xattrs;

#[cfg(test)]
mod layout_tests;
#[cfg(test)]
mod limit_tests;

pub use error::{FormatError, Result};
pub use types::*;
