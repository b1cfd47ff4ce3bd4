//! LaneFS: a multicore log-structured file system as a library.

pub mod cred;
pub mod error;
pub mod file;
pub mod fs;
mod handle;
pub mod locks;
#[allow(dead_code, unused_imports)] // until the tests of the rooms above use all of it
mod memfs;
pub mod node;
mod op;
mod oplog;
mod ops;
pub mod stat;
pub mod volume;
mod writeback;

pub use cred::Cred;
pub use error::{Error, Result};
pub use file::File;
pub use fs::{Fs, OpenOptions};
pub use lanefs_store::{FileKind, Ino};
pub use stat::{DirEntry, SetAttr, SetTime, Stat, StatFs};
pub use volume::{MountOptions, Volume};
