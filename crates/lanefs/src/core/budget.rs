//! The budgets of a volume: blocks of the device, and bytes of memory for metadata. (Pages have a
//! share of their own: `memfs::data::pool`.)

use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// Blocks of a volume below which lanes look more often how much they log: 64 MiB.
const SMALL: u64 = 1 << 14;

/// The volume's budgets.
pub(crate) struct Budget {
    /// Less than 64 MiB: a few thousand names may be much (`core::space`).
    pub is_small: bool,
    /// Bytes of inodes and names allowed.
    pub meta_limit: u64,
    /// Bytes of names that left memory. Only grows. Written by the reclaimer, under its lock, and
    /// by checkpoints. Relaxed: a statistic, which orders nothing.
    pub names_gone: CachePadded<AtomicI64>,
    /// Blocks of extended attributes handed to the store that no checkpoint has written. Written by
    /// calls that set large ones, and by checkpoints. Relaxed: an estimate, which orders nothing.
    pub xattr_blocks: CachePadded<AtomicU64>,
    /// Metadata exceeds its share: creators wait. Written by the background thread, and by creators
    /// that find it so; read by every call that may bring names into memory. Relaxed: who reads it
    /// late waits a moment later.
    pub(super) tight: CachePadded<AtomicBool>,
}

impl Budget {
    /// Makes the budgets of a volume of `blocks` blocks, with `meta_limit` bytes of memory for
    /// metadata.
    pub fn new(blocks: u64, meta_limit: u64) -> Budget {
        debug_assert!(meta_limit > 0, "creators would wait for ever");
        debug_assert!(meta_limit <= i64::MAX as u64, "bytes of memory are compared with signed counts");
        Budget {
            is_small: blocks < SMALL,
            meta_limit,
            names_gone: Default::default(),
            xattr_blocks: Default::default(),
            tight: Default::default(),
        }
    }

    /// Counts bytes of names that left memory.
    pub fn count_names_gone(&self, bytes: usize) {
        let before = self.names_gone.fetch_add(bytes as i64, Ordering::Relaxed);
        debug_assert!(before >= 0, "more names came than left: {before}");
        debug_assert!(before.checked_add(bytes as i64).is_some(), "{bytes} bytes left memory at once");
    }

    /// Counts blocks of extended attributes that a checkpoint has to write.
    pub fn count_xattr_blocks(&self, blocks: u64) {
        let before = self.xattr_blocks.fetch_add(blocks, Ordering::Relaxed);
        debug_assert!(before.checked_add(blocks).is_some(), "blocks were counted below nothing: {before}");
    }

    /// Takes the count of blocks of extended attributes, for a checkpoint that is to write them.
    pub fn take_xattr_blocks(&self) -> u64 {
        self.xattr_blocks.swap(0, Ordering::Relaxed)
    }
}

/// The space that a lane promised for names and small inodes. On the lane's shared line, written by
/// the lane's threads. Relaxed: counts, mostly of one thread, which hand over no memory; the epoch
/// takes `blocks` under the lane's lock.
#[derive(Default)]
pub(crate) struct LanePromise {
    /// Bytes of promised blocks that nothing has taken. Below nothing for a moment, when two
    /// threads share the lane.
    pub(super) left: AtomicI64,
    /// Blocks promised that no epoch has counted yet.
    pub(super) blocks: AtomicU64,
}

impl LanePromise {
    /// Gives back bytes that were promised in the epoch that runs. The caller holds the lane's
    /// lock.
    pub fn give_back(&self, bytes: u64) {
        // Relaxed: as all of it.
        self.left.fetch_add(bytes as i64, Ordering::Relaxed);
        self.check_invariants();
    }

    /// Forgets, at the end of an epoch, all but a block of what is left: what came back of it was
    /// promised in that epoch, and is given back with it.
    pub fn end_epoch(&self) {
        const MOST: i64 = lanefs_format::BLOCK_SIZE as i64;
        let more = |left: i64| (left > MOST).then_some(MOST);
        // Relaxed: as all of it.
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        self.check_invariants();
    }

    /// Checks that what is left was promised: never is more taken than a few calls at a time may
    /// take, nor more left than blocks can be.
    pub(super) fn check_invariants(&self) {
        // Relaxed: the bounds are far from each value that is there for a moment.
        let left = self.left.load(Ordering::Relaxed);
        debug_assert!(left > -FAR, "{left} bytes are left of what was promised");
        debug_assert!(left < FAR, "{left} bytes are left: more than all devices have");
        debug_assert!(self.blocks.load(Ordering::Relaxed) < FAR as u64, "blocks below nothing");
    }
}

/// No count of a lane comes near it, in bytes.
const FAR: i64 = 1 << 60;
