//! LaneFS: a multicore log-structured file system as a library.
//!
//! ```
//! use lanefs::{OpenOptions, Volume};
//!
//! let volume = Volume::in_memory(256 << 20)?; // or Volume::open(&["disk.lane"], &MountOptions::default())?
//! let fs = volume.fs();
//! fs.mkdir_all("/mail/new", 0o755)?;
//! let file = fs.open("/mail/new/1", OpenOptions::new().write(true).create_new(true))?;
//! file.write_all_at(b"hello", 0)?;
//! file.sync_all()?; // the content, the name and its directories are durable now
//! assert_eq!(fs.read("/mail/new/1")?, b"hello");
//! # Ok::<(), lanefs::Error>(())
//! ```

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
pub mod scrub;
pub mod stat;
pub mod volume;
mod writeback;

pub use cred::Cred;
pub use error::{Error, Result};
pub use file::File;
pub use fs::{Fs, OpenOptions};
pub use lanefs_store::{FileKind, Ino, ScrubCursor, ScrubDamage, ScrubStep};
pub use lanefs_sync::on_wait;
pub use stat::{DirEntry, SetAttr, SetTime, Stat, StatFs};
pub use volume::{MountOptions, Volume};
