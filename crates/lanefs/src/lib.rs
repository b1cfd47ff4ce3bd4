//! LaneFS: a multicore log-structured file system as a library.

pub mod cred;
pub mod error;
pub mod file;
pub mod fs;
#[allow(dead_code, unused_imports)] // until the rooms above use all of it
mod memfs;
pub mod node;
pub mod stat;
pub mod volume;

pub use cred::Cred;
pub use error::{Error, Result};
pub use file::File;
pub use fs::{Fs, OpenOptions};
pub use lanefs_store::{FileKind, Ino};
pub use stat::{DirEntry, SetAttr, SetTime, Stat, StatFs};
pub use volume::{MountOptions, Volume};
