//! The on-disk format: pure encoding and decoding, no I/O. docs/SPEC.md describes every byte.

pub mod batch;
pub mod checksum;
pub mod dir_bucket;
pub mod header;
pub mod inode;
pub mod map_node;
pub mod name_hash;
pub mod orphans;
pub mod prealloc;
pub mod record;
pub mod slot;
pub mod summary;
pub mod superblock;
pub mod table_node;
pub mod usage_node;
pub mod xattrs;

#[cfg(test)]
mod layout_tests;
#[cfg(test)]
mod limit_tests;
