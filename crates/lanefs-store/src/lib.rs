//! The log-structured store of LaneFS: devices, on-disk format, mlogs, inode table, extents, checkpoint, epoch
//! commit, fsync batches, recovery and cleaner. It knows inode numbers and pages, never paths.

pub mod api;
pub mod block_io;
pub mod device;
pub mod dir;
pub mod error;
pub mod fold;
pub mod format;
pub mod inode_state;
pub mod inode_table;
mod io;
pub mod map;
mod mlog;
pub mod radix;
mod segment;
mod space;
mod store;
#[cfg(test)]
mod testing;
pub mod types;

pub use api::*;
pub use error::{Result, StoreError};
pub use store::Store;
pub use types::*;
