//! When blocks are durable and when they are free: transactions, epoch commits, checkpoints with
//! their folds, and the cleaner.
//!
//! The files: a transaction's way to disk is in `transaction`, epoch commits in `commit`,
//! checkpoints in `checkpoint` with the fold in `plan` and `fold`, the cleaner in `cleaner`.
//!
//! Locks, in the order they are taken: the maintenance lock (checkpoint, cleaner); inodes by
//! ascending number; a reader section of the RPS; an mlog's mutex. The RPS writer takes none of the
//! others inside.

pub(crate) mod begun;
pub(crate) mod change;
pub(crate) mod checkpoint;
mod cleaner;
pub(crate) mod commit;
mod commits;
mod copies;
pub(crate) mod evacuation;
pub(crate) mod fold;
pub(crate) mod maintenance;
pub(crate) mod ordered;
pub mod plan;
pub(crate) mod pressure;
mod progress;
mod replacement;
mod report;
pub(crate) mod sink;
pub(crate) mod sorted;
mod totals;
mod transaction;

use crate::api::*;
use crate::device::Device;
use crate::error::Result;
use crate::inodes::Inodes;
use crate::log::Log;
use crate::log::segment::SegmentTable;
use crate::tree::inode_table::InodeTable;
use checkpoint::{Checkpoints, Seal};
use cleaner::Cleaner;
use commits::Unfolded;
use fold::Fold;
use lanefs_format::Ino;
use lanefs_format::superblock::Superblock;
use lanefs_sync::CachePadded;
use lanefs_sync::lock::{Mutex, MutexGuard};
use maintenance::Maintenance;
use progress::Changes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use totals::Totals;

/// The parts of an open volume, the lower ones first.
pub(crate) struct Engine {
    pub log: Log,
    pub inodes: Inodes,
    pub totals: Totals,
    pub unfolded: Unfolded,
    /// As it is on the medium. Replaced, under the maintenance lock, when the label or the size
    /// changes. On a line of its own: a checkpoint locks it, and every batch reads what lies beside
    /// it.
    pub superblock: CachePadded<Mutex<Arc<Superblock>>>,
    pub maintenance: CachePadded<Mutex<Maintenance>>,
    pub changes: Changes,
    /// Dirty inodes that the last checkpoint left: their NEW is not folded. Written by the holder
    /// of the maintenance lock, read by every 32nd transaction of a lane and by those that find no
    /// space. Relaxed: a hint, which orders nothing.
    pub dirty_floor: CachePadded<AtomicUsize>,
    /// The thread inside [`Engine::checkpoint`], which may write (its seal) while it holds the
    /// maintenance lock; 0 for none. Written by that thread, under the maintenance lock. Relaxed:
    /// every thread compares it with its own token, which no other thread stores.
    sealer: CachePadded<AtomicUsize>,
    /// Key of the hash that makes cookies of names.
    pub hash_key: [u64; 2],
    /// See `OpenOptions::accept_loss`.
    pub accept_loss: bool,
}

/// The parts of an engine.
pub(crate) struct Parts {
    pub devices: Vec<Arc<dyn Device>>,
    pub superblock: Superblock,
    pub segments: SegmentTable,
    pub inodes: InodeTable,
    pub maintenance: Maintenance,
    pub options: OpenOptions,
}

impl Engine {
    /// Puts the parts together.
    pub fn new(parts: Parts) -> Engine {
        let Parts { devices, superblock, segments, inodes, maintenance, options } = parts;
        maintenance.check_invariants();
        debug_assert!(maintenance.slot.volume == superblock.volume, "the slot of another volume");
        debug_assert_eq!(superblock.devices.len(), devices.len(), "the superblock names other devices");
        debug_assert_eq!(segments.geometry.copies, superblock.metadata_copies(), "copies of the tree");
        let slot = &maintenance.slot;
        Engine {
            log: Log::new(devices, &superblock, segments, slot, &options),
            inodes: Inodes::new(inodes, superblock.has_packed_inodes(), options.memory_bytes),
            totals: Totals::new(slot),
            unfolded: Unfolded::new(slot.folded_epoch),
            hash_key: superblock.hash_key,
            superblock: CachePadded::new(Mutex::new(Arc::new(superblock))),
            maintenance: CachePadded::new(Mutex::new(maintenance)),
            changes: Changes::default(),
            dirty_floor: CachePadded::new(AtomicUsize::new(0)),
            sealer: CachePadded::new(AtomicUsize::new(0)),
            accept_loss: options.accept_loss,
        }
    }

    /// Returns what makes checkpoints, for the holder of the maintenance lock.
    pub fn checkpoints(&self) -> Checkpoints<'_> {
        Checkpoints {
            log: &self.log,
            inodes: &self.inodes,
            totals: &self.totals,
            unfolded: &self.unfolded,
            superblock: &self.superblock,
            dirty_floor: &self.dirty_floor,
        }
    }

    /// Returns what cleans, for the holder of the maintenance lock.
    pub fn cleaner(&self) -> Cleaner<'_> {
        Cleaner { log: &self.log, inodes: &self.inodes }
    }

    /// Returns what folds, for the holder of the maintenance lock.
    pub fn fold(&self) -> Fold<'_> {
        Fold { log: &self.log, inodes: &self.inodes, totals: &self.totals }
    }

    /// Reads pages: see [`crate::Store::read_pages`].
    pub fn read_pages(&self, ino: Ino, first: u64, pages: &mut [PageRead<'_>]) -> Result<()> {
        self.inodes.read_pages(ino, first, pages, &self.log.io, || {
            if let Some(_maintenance) = self.try_maintenance() {
                self.log.sections.drain(|| ());
            }
        })
    }

    /// Returns the superblock as it is on the medium.
    pub fn superblock(&self) -> Arc<Superblock> {
        self.superblock.lock().clone()
    }

    /// Makes a new root; `seal` seals and commits the epoch and hands over what to fold. One at a
    /// time.
    pub fn checkpoint(&self, seal: impl FnOnce() -> Result<FoldInput>, kind: Seal) -> Result<CheckpointDone> {
        debug_assert!(kind != Seal::Last, "that is `close`");
        self.log.check_writable()?;
        let mut m = self.maintenance.lock();
        // Relaxed, here and below: see the field. Whoever had the lock before has set it to 0.
        debug_assert_eq!(self.sealer.load(Ordering::Relaxed), 0, "two checkpoints at once");
        self.sealer.store(lanefs_sync::primitive::thread_token(), Ordering::Relaxed);
        let r = self.checkpoints().run(&mut m, Some(seal), kind);
        self.sealer.store(0, Ordering::Relaxed);
        r
    }

    /// Moves live blocks until the next checkpoint would leave `target_free_segments` free.
    pub fn clean(&self, target_free_segments: u64) -> Result<CleanReport> {
        let mut m = self.maintenance.lock();
        self.log.check_writable()?;
        self.cleaner().clean_until(&mut m, target_free_segments, false)
    }

    /// Makes the final checkpoint, with the clean mark. Everything was folded and submitted before.
    pub fn close(&self) -> Result<()> {
        if self.log.read_only {
            return Ok(());
        }
        let mut m = self.maintenance.lock();
        if !m.closed {
            m.closing = true;
            let none: Option<fn() -> Result<FoldInput>> = None;
            self.checkpoints().run(&mut m, none, Seal::Last)?;
            debug_assert!(
                self.log.sections.closing.load(Ordering::Relaxed),
                "something may come behind the last position"
            );
            self.log.io.flush(1)?; // The slot's twin.
            m.closed = true;
        }
        m.check_invariants();
        Ok(())
    }

    /// Returns whether the caller is the seal of a checkpoint: it cannot wait for space and may use
    /// what is kept back.
    pub fn in_checkpoint(&self) -> bool {
        // Relaxed: only the thread that stored its own token finds it here.
        self.sealer.load(Ordering::Relaxed) == lanefs_sync::primitive::thread_token()
    }

    /// Returns the maintenance lock; `None` if the caller's own thread holds it, or if it cannot be
    /// had for very long.
    pub fn try_maintenance(&self) -> Option<MutexGuard<'_, Maintenance>> {
        if self.in_checkpoint() {
            return None;
        }
        lanefs_sync::lock::try_lock_for(&self.maintenance, Duration::from_secs(10))
    }
}
