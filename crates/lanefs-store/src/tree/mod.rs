//! The structures on disk, over "read a block" and "write a block" ([`block_io`]): none of them
//! knows where a block goes, nor that there is a log.

pub mod block_io;
pub mod directory;
pub mod inode_state;
pub mod inode_table;
pub mod map;
pub mod radix;
