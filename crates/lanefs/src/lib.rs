//! LaneFS: a multicore log-structured file system as a library.
//!
//! ```
//! use lanefs::{OpenOptions, Volume};
//!
//! let volume = Volume::in_memory(256 << 20)?; // or Volume::open(&["disk.lane"], &MountOptions::default())?
//! let fs = volume.fs();
//! fs.create_dir_all("mail/new")?;
//! let file = fs.open("mail/new/1", OpenOptions::new().write(true).create_new(true))?;
//! file.write_all_at(b"hello", 0)?;
//! file.sync_all()?; // the content, the name and its directories are durable now
//! assert_eq!(fs.read("mail/new/1")?, b"hello");
//! # Ok::<(), lanefs::Error>(())
//! ```
//!
//! To begin with:
//!
//! - [`Volume`]: `create` makes one in image files, `open` opens it, `in_memory` needs none;
//!   `sync`, `close`, `grow`.
//! - [`Fs`], from [`Volume::fs`]: everything by path, as one user, with the names of `std::fs` and
//!   those of the system calls.
//! - [`Dir`], from [`Fs::open_dir`]: paths that begin in a directory, wherever it is moved.
//! - [`File`], from [`Fs::open`]: reading, writing, `sync_all`, locks; it is `Read`, `Write` and
//!   `Seek`.
//! - [`CreateOptions`] and [`MountOptions`]: how a volume is made, and opened.
//! - [`device`]: what a volume is stored on. [`fsck`]: checking one that is not open.
//! - [`node`]: the same by inode number, for front ends.
//!
//! Results and errno are those of Linux; [`error`] has what calls have in common. Sizes and
//! offsets are bytes, times nanoseconds since 1970, unless the text has it otherwise.
//!
//! # After a crash
//!
//! A crash is a loss of power, of the kernel or of the process. docs/SEMANTICS.md is the whole
//! promise, docs/SAFE-WRITING.md how programs use it; in short:
//!
//! ## Names
//!
//! Each operation on names (create, mkdir, mknod, symlink, link, unlink, rmdir, rename, exchange)
//! is found whole or not at all, and none without the earlier ones it depends on: those of the same
//! name, of the same inode, and those that made its directory. It is durable when, begun after it
//! returned, one of these has returned without an error:
//!
//! - [`File::sync_all`] or [`File::sync_data`] of an inode that it named (so a new file's fsync
//!   keeps its names and new directories above);
//! - the same of the directory whose entry it changed;
//! - [`Volume::sync`], [`Volume::checkpoint`] or [`Volume::close`].
//!
//! ## Content and attributes
//!
//! The size, each page of 4096 bytes, and mode, owner, flags and extended attributes together are
//! each found as some change left them: the last that is known to be durable or a later one. A
//! change of them is durable when, begun after it returned, [`File::sync_all`] of the inode,
//! [`Volume::sync`] or [`Volume::close`] has returned without an error; of pages and size also
//! [`File::sync_data`]. Times go with the attributes. What was cut off is not found unless the old
//! size is, and no byte is found that was not written there.
//!
//! Without any call names are committed about every [`MountOptions::commit_interval`], and pages
//! written when they are [`MountOptions::dirty_expire`] old: a habit, not a promise.
//!
//! With [`Order::Ordered`] mode, owner and ACLs are in the order of names: with a name that is
//! found come the changes of them that returned before it, and with content that is found those
//! that returned before it was written (SEMANTICS C2' and F8).

#![deny(missing_docs)]

pub mod acl;
mod core;
mod create;
pub mod cred;
pub mod device;
mod devices;
pub mod error;
pub mod file;
pub mod fs;
pub mod locks;
mod memfs;
mod metadata;
pub mod node;
mod opened;
mod oplog;
mod ops;
pub mod options;
mod persist;
pub mod report;
pub mod scrub;
pub mod size;
pub mod stat;
pub mod times;
pub mod volume;
mod write_life;

pub use create::CreateOptions;
pub use cred::Cred;
pub use error::{Error, Result};
pub use file::File;
pub use fs::{Dir, DirEntry, Fs, OpenOptions, ReadDir};
pub use lanefs_format::{FileKind, Ino, MAX_FILE_SIZE, inode_flags};
pub use lanefs_store::fsck;
pub use lanefs_store::{
    CleanReport, Grown, OpenReport, Replaced, ScrubCursor, ScrubDamage, ScrubStep, StoreError, VolumeInfo,
};
pub use lanefs_sync::clock::Clock;
pub use lanefs_sync::{on_wait, set_patience};
pub use metadata::{Metadata, Permissions};
pub use options::{MountOptions, Order};
pub use persist::AwaitHandedOver;
pub use report::Report;
pub use stat::{NewInodeAttrs, NodeEntry, SetAttr, SetTime, Stat, StatFs};
pub use volume::Volume;
pub use write_life::WriteLife;
