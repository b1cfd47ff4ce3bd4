//! The on-disk format: pure encoding and decoding, no I/O. docs/SPEC.md describes every byte.

pub mod checksum;
pub mod header;
pub mod record;
pub mod superblock;
