//! The FUSE mount of LaneFS: an adaptor that translates between the kernel's requests and
//! [`lanefs::Volume`]'s operations by inode number, and decides nothing of its own.
//!
//! The mount is the only writer of its volume, so the kernel may believe what it was answered:
//! names (also names that do not exist), attributes, file pages and directory listings stay cached
//! until the kernel itself changes them. With the writeback cache the kernel also gathers writes
//! and keeps size and times of regular files; an `fsync`, a `close` and an unmount hand all of it
//! over first, so what they promise is what the library promises.
//!
//! A process that uses its volume by itself may serve a mount of it meanwhile ([`serve_mount`]):
//! then the kernel believes and keeps nothing.
//!
//! | what FUSE leaves open | what is done here |
//! | --- | --- |
//! | node id | the inode number, with a keyed hash of it and its generation; it leads to the inode also when the kernel has forgotten it |
//! | permission checks | the kernel's (`default_permissions`); requests arrive prechecked; nobody's where only root enters (`unchecked`) |
//! | locks | the kernel's own |
//! | ACLs | checked by the kernel, inherited and kept in step with the mode by [`lanefs::acl`] |
//! | files without a name | kept while the kernel knows them (`known`) |
//! | `sync`, `syncfs` | passed on by the kernel where a block device is mounted (`fuseblk`), and a promise there |

#![deny(missing_docs)]

pub mod about;
mod adaptor;
#[cfg(test)]
mod adaptor_tests;
mod aside;
mod blocking_hook;
pub mod change;
mod closing;
mod control;
mod counts;
pub mod guest;
mod handles;
mod idle;
mod known;
mod lone_caller;
mod mount;
mod options;
mod passing;
mod reader_pool;
mod readers;
mod renaming;
pub mod report;
mod requests;
mod rings;
pub mod scrub;
mod served;
mod session;
mod signals;
mod space;
mod summary;
mod sync_errors;
mod taking;
mod translate;
mod watchdog;
mod wire;

pub use counts::Requests;
pub use mount::remove_dead_mounts;
pub use options::{BadOption, Handles, Idle, IoUring, MountConfig};
pub use served::{ServedMount, serve_mount};
pub use session::{Session, Unmounter, mount, mount_watched, serve_as_flusher};
pub use signals::{Signals, block_signals};
pub use watchdog::Watchdog;

/// `ioctl` on a file or a directory of the mount: stops the volume as a crash would (root only).
/// The number and the flags are those of XFS's and F2FS's shutdown, so that their tools work: with
/// 0 all is made durable first, with 1 what was committed to, names above all, with 2 nothing.
/// Where the server may not read the caller's memory it takes the flags for 2.
pub const IOC_GOINGDOWN: u32 = 0x8004_587d;
/// `ioctl` on a directory of the mount: writes the process id of the serving process, as a `u32`.
pub const IOC_GETPID: u32 = 0x8004_4c01;
/// `ioctl` on a directory of the mount, of root: discards on the devices what is free, as fstrim(8)
/// asks for. The argument is three `u64`: where to begin, how many bytes (in the answer: how many
/// were discarded), and the shortest range worth it.
pub const IOC_FITRIM: u32 = 0xc018_5879;
/// `ioctl` on a directory of the mount: makes durable all that returned before, for root and
/// whoever serves the mount. The kernel hands over what it has gathered for `syncfs(2)`, which has
/// to come first.
pub const IOC_SYNC: u32 = 0x4c04;

// A command's number states the size of its argument, which the kernel moves by it.
const _: () = assert!(IOC_FITRIM >> 16 & 0x3fff == 3 * 8);
const _: () = assert!(IOC_GETPID >> 16 & 0x3fff == 4 && IOC_GOINGDOWN >> 16 & 0x3fff == 4);
