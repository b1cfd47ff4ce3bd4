//! From memory to the store: writing inodes back, fsync, epoch commits, checkpoints, and the
//! threads that do it unasked.
//!
//! How things travel. Namespace groups: in an fsync's batch (the closure) or in their epoch's
//! commit. Attributes, xattrs and pages: in an `InodeUpdate`, each inode captured consistently;
//! durable at once for an fsync, else at the next checkpoint.
//!
//! Locks, outermost first: closing, syncing, checkpointing, the reaper's, an inode's sync_lock, an
//! inode's writeback lock (memfs::data), the backlog, a lane. A seal happens with the backlog's
//! lock held and no lane; no lock of an inode is taken under it, and no checkpoint or commit made
//! under a lock of an inode. A checkpoint's seal takes the backlog's lock with the store's own
//! checkpoint lock held: so space for a commit is freed before it is taken, never under it. Locks
//! of several inodes are held by `together` alone, which tries each.
//!
//! Each file calls those above it in this list, and none below:
//!
//! ```text
//! unsynced    what was written back and is not durable
//! host        what is written where the host of an image has little space
//! piece       some pages and the attributes of an inode, as the store takes them
//! stream      a file of which much is dirty, in pieces, by helpers
//! capture     one inode, in rounds
//! together    small inodes, many as one transaction
//! replaced    files that were renamed over others, before a seal
//! commit      an epoch is sealed, placed, written, published
//! names       the epoch that an fsync of an ordered volume waits for
//! reaper      inodes end
//! checkpoint  what is committed is folded
//! writeback   inodes, some and all, with what may have to be done first
//! closure     the names that go with an fsync of a relaxed volume
//! fsync       fsync(2) and fdatasync(2)
//! ahead       files that grow are written while they grow
//! reclaim     clean inodes and names leave memory
//! free        what was removed counts as free
//! background  the threads that do all of that unasked
//! service     what operations ask for, what the frame pool asks for, and the end
//! ```

pub(crate) mod ahead;
pub(crate) mod background;
pub(crate) mod capture;
pub(crate) mod checkpoint;
pub(crate) mod closure;
pub(crate) mod commit;
mod ending;
pub(crate) mod fold;
pub(crate) mod free;
pub(crate) mod fsync;
pub(crate) mod host;
#[cfg(test)]
mod host_tests;
pub(crate) mod names;
mod piece;
pub(crate) mod reaper;
pub(crate) mod reclaim;
pub(crate) mod replaced;

pub(crate) mod service;
mod stream;
#[cfg(test)]
pub(crate) mod testing;
mod together;
#[cfg(test)]
mod undone_tests;
pub(crate) mod unsynced;
mod worker;
pub(crate) mod writeback;

use crate::core::Core;
use ahead::Ahead;
use background::Background;
use checkpoint::Thinned;
use crossbeam_utils::CachePadded;
use lanefs_format::Ino;
use lanefs_store::OpenReport;
use lanefs_sync::lock::Mutex;
use reaper::Reaper;
use reclaim::Reclaim;
use std::collections::HashMap;
use std::ops::Deref;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use unsynced::FlushQueue;

/// A predicate of somebody outside: whether an inode is still known there.
pub(crate) type Keeper = Box<dyn Fn(Ino) -> bool + Send + Sync>;
/// Returns inodes of a front end: see `Volume::write_gathered`.
pub(crate) type Gathered = Box<dyn Fn() -> Vec<Ino> + Send + Sync>;
/// Waits for what was written to ranges of a file and is still being handed over: see
/// [`crate::Volume::await_handed_over`].
pub type AwaitHandedOver = Arc<dyn Fn(Ino, &[Range<u64>]) + Send + Sync>;

/// The part of a volume that brings its changes to its store. It owns the core, and is one to
/// whoever needs no more.
pub(crate) struct Persist {
    core: Core,
    /// One checkpoint at a time; and the directories that lost names which the last one had not
    /// folded.
    pub checkpointing: CachePadded<Mutex<HashMap<Ino, Thinned>>>,
    /// Inodes to be written back, and those that are not durable.
    pub flush: CachePadded<Mutex<FlushQueue>>,
    /// One close at a time: another must not take the first one's end for an error.
    closing: CachePadded<Mutex<()>>,
    /// One sync(2) at a time.
    syncing: CachePadded<Mutex<()>>,
    /// Inodes that end. One round at a time, but for the time in which it waits.
    pub reaper: CachePadded<Mutex<Reaper>>,
    /// The time that goes into freeing for those who ask how much is free; held by the one who does
    /// it, and nobody waits for it. In a line of its own, written by each who asks.
    for_askers: CachePadded<Mutex<free::ForAskers>>,
    /// Inodes that leave memory. One round at a time.
    pub reclaim: CachePadded<Mutex<Reclaim>>,
    /// The report of opening the volume.
    pub report: OpenReport,
    /// When that was, and the last epoch that was committed then.
    pub opened: Instant,
    pub opened_epoch: u64,
    /// Pages written back in one transaction.
    pub round_pages: usize,
    /// The background threads, and what wakes them.
    pub background: Arc<Background>,
    /// The files that grow, and the thread that writes them.
    pub ahead: Arc<Ahead>,
    /// A file with much content has no name and is open, or was at the reaper's last round. Written
    /// by the reaper, when that changes, read by each close; alone in its line. Relaxed: a hint
    /// whether to look.
    pub keeps_much: CachePadded<AtomicBool>,
    /// Whether a front end still knows an inode without a name; asked by the reaper only.
    pub keeper: CachePadded<Mutex<Option<Keeper>>>,
    /// The open files of which a kernel gathers writes; asked by the folder only.
    pub gathered: CachePadded<Mutex<Option<Gathered>>>,
    /// Waits for what is handed over of files with gaps; asked by who makes one durable only.
    pub handed_over: CachePadded<Mutex<Option<AwaitHandedOver>>>,
}

impl Persist {
    /// Puts it around the core of a volume that was opened just now, with segments of
    /// `segment_blocks` blocks.
    pub fn new(core: Core, report: OpenReport, segment_blocks: u32) -> Persist {
        debug_assert!(segment_blocks > 0, "a round writes no page");
        Persist {
            opened: Instant::now(),
            opened_epoch: core.journal.committed(),
            core,
            checkpointing: Default::default(),
            flush: Default::default(),
            closing: Default::default(),
            syncing: Default::default(),
            reaper: Default::default(),
            for_askers: Default::default(),
            reclaim: Default::default(),
            report,
            round_pages: (segment_blocks as usize * 2).min(piece::MAX_PAGES),
            background: Arc::default(),
            ahead: Arc::default(),
            keeps_much: Default::default(),
            keeper: Default::default(),
            gathered: Default::default(),
            handed_over: Default::default(),
        }
    }
}

impl Persist {
    /// Ends the background threads and waits for them.
    pub fn stop_threads(&self) {
        self.background.stop();
        self.ahead.stop();
    }
}

impl Deref for Persist {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        &self.core
    }
}
