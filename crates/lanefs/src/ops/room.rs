//! Room on the volume: what a call promises itself before it begins, and what is done when there is
//! none.
//!
//! 1. A call that makes something is refused before it begins, with ENOSPC, or it can be folded:
//!    the block of a new inode, the bytes of its name, a long target and extended attributes
//!    outside the inode are promised by [`lanefs_store::Store::reserve`], at the call.
//! 2. Names are small. A lane promises a block for several ([`NameRoom`]), half as much again as
//!    they take: what splits is two thirds full.
//! 3. Promised blocks travel with the epoch of the call ([`crate::oplog::LaneLog::promise`]) and
//!    are given back when that is folded: the fold has charged what it wrote. The block of an inode
//!    that ended before is given back when its end is committed (`writeback::reaper`).
//! 4. A change of a name writes a bucket of its directory and an inode anew, and only the next
//!    checkpoint frees the old ones. That comes out of what is kept back for checkpoints, in
//!    recovery too; so before changes that are not folded could need half of the free segments,
//!    there is a checkpoint ([`Inner::log_needs_fold`]). Extended attributes outside the inode
//!    count twice there: an fsync logs them, a checkpoint writes their blocks.
//! 5. All of these are blocks of the tree. In a volume that keeps two copies of it each promise is
//!    of two blocks ([`lanefs_store::Store::reserve_nodes`]); what travels with the epochs is
//!    counted without the copies.

use super::posix;
use crate::error::Result;
use crate::volume::Inner;
use lanefs_format::BLOCK_SIZE;
use lanefs_format::dir_bucket::ENTRY_HEADER;
use lanefs_format::inode::{XATTR_INLINE, XATTR_PER_BLOCK};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU64};

/// Bytes of the oplog for each change of a name, at the least.
const BYTES_A_CHANGE: usize = 64;
/// Blocks that folding one may take: a bucket, an inode whose links are counted, and a leaf of the
/// inode table.
const BLOCKS_A_CHANGE: u64 = 3;
/// How many rounds of the background a caller waits for at most.
const ROUNDS: usize = 20;

/// What a lane promised for names. On the lane's shared line, written by the lane's threads.
#[derive(Default)]
pub(crate) struct NameRoom {
    /// Bytes of promised blocks that no name has taken. Below nothing for a moment, when two
    /// threads share the lane.
    left: AtomicI64,
    /// Blocks promised that no epoch has counted yet.
    blocks: AtomicU64,
}

/// Bytes promised for a name.
const fn bytes_of(name: &[u8]) -> u64 {
    (ENTRY_HEADER + name.len()) as u64 * 3 / 2
}

/// Blocks beside the inode's that extended attributes of so many encoded bytes take.
pub(crate) fn blocks_of_xattrs(bytes: usize) -> u64 {
    if bytes <= XATTR_INLINE { 0 } else { bytes.div_ceil(XATTR_PER_BLOCK) as u64 }
}

impl Inner {
    /// Reserves the block of a new inode. ENOSPC; the caller of the operation tries again when
    /// something was freed (`with_room`).
    pub(crate) fn reserve_inode(&self) -> Result<()> {
        if self.store.reserve_nodes(self.lanes.mine(), 1) { Ok(()) } else { posix(libc::ENOSPC) }
    }

    pub(crate) fn unreserve_inode(&self) {
        self.store.unreserve_nodes(self.lanes.mine(), 1);
    }

    /// Reserves room for a name and `blocks` beside it; told the bytes to give back if nothing
    /// comes of it. ENOSPC.
    pub(crate) fn reserve_name(&self, name: &[u8], blocks: u64) -> Result<u64> {
        self.reserve_bytes(bytes_of(name) + blocks * BLOCK_SIZE as u64)
    }

    /// The same for a name in place of one that goes.
    pub(crate) fn reserve_longer_name(&self, old: &[u8], new: &[u8]) -> Result<u64> {
        self.reserve_bytes(bytes_of(new).saturating_sub(bytes_of(old)))
    }

    /// The same for blocks alone.
    pub(crate) fn reserve_blocks(&self, blocks: u64) -> Result<u64> {
        self.reserve_bytes(blocks * BLOCK_SIZE as u64)
    }

    #[inline]
    fn reserve_bytes(&self, bytes: u64) -> Result<u64> {
        if bytes == 0 {
            return Ok(0);
        }
        let lane = self.lanes.mine();
        let room = &self.lanes.shared(lane).room;
        let left = room.left.fetch_sub(bytes as i64, Relaxed) - bytes as i64;
        if left < 0 { self.reserve_more(lane, bytes, left) } else { Ok(bytes) }
    }

    /// Blocks for what is short, `left` bytes below nothing.
    #[cold]
    fn reserve_more(&self, lane: usize, bytes: u64, left: i64) -> Result<u64> {
        let room = &self.lanes.shared(lane).room;
        let blocks = left.unsigned_abs().div_ceil(BLOCK_SIZE as u64);
        if !self.store.reserve_nodes(lane, blocks) {
            room.left.fetch_add(bytes as i64, Relaxed);
            return posix(libc::ENOSPC);
        }
        room.left.fetch_add((blocks * BLOCK_SIZE as u64) as i64, Relaxed);
        room.blocks.fetch_add(blocks, Relaxed);
        Ok(bytes)
    }

    /// Gives back what `reserve_name` said, to the lane.
    pub(crate) fn unreserve_name(&self, bytes: u64) {
        self.lanes.shared(self.lanes.mine()).room.left.fetch_add(bytes as i64, Relaxed);
    }

    /// Blocks that a lane promised for names since the last time; the caller counts them in its
    /// epoch.
    #[inline]
    pub(crate) fn take_promised(&self, lane: usize) -> u64 {
        let blocks = &self.lanes.shared(lane).room.blocks;
        if blocks.load(Relaxed) == 0 { 0 } else { blocks.swap(0, Relaxed) }
    }

    /// Runs `f`, and again as long as the volume was full and something could be given back, which
    /// others may be faster to take. The caller is not pinned.
    pub(crate) fn with_room<T>(&self, mut f: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 0..100 {
            match f() {
                Err(e) if e.errno() == libc::ENOSPC && self.free_space() => {}
                r => return r,
            }
        }
        f()
    }

    /// The same for an `f` that says false where there was no room: ENOSPC of another cause is not
    /// tried again.
    pub(crate) fn change_with_room(&self, mut f: impl FnMut() -> Result<bool>) -> Result<()> {
        self.with_room(|| match f() {
            Ok(true) => Ok(Ok(())),
            Ok(false) => posix(libc::ENOSPC),
            Err(e) => Ok(Err(e)),
        })?
    }

    /// The volume is full: makes what was deleted count as free. False if there is no room even
    /// then. True also if something was given back and is gone again already: others take room
    /// while this thread makes it. The caller holds no lock and is not pinned: the grace of what
    /// was just deleted is waited for.
    #[cold]
    pub(crate) fn free_space(&self) -> bool {
        let Ok(reaped) = self.reap(true) else { return false };
        // Where most of what is promised was for files that lived for a moment a commit gives it
        // back.
        if reaped > 0
            && self.seal_and_commit().is_ok()
            && self.release_cancelled() * self.store.metadata_copies() > self.store.space().reserved
        {
            return true;
        }
        let Ok(given_back) = self.checkpoint() else { return false };
        reaped > 0 || given_back > 0 || self.store.space().free > 0
    }

    /// Whether what is logged and not folded could need half of the segments that are free (4).
    /// Where a quarter of a volume is free that is not small, commits and the background see to it
    /// in time.
    pub(crate) fn log_needs_fold(&self) -> bool {
        let free = self.store.free_segment_blocks();
        let copies = self.store.metadata_copies();
        let attributes = (1 + copies) * self.xattr_blocks.load(Relaxed);
        if free > self.store.blocks_for_users() / 4 && !self.is_small {
            return attributes > free / 2;
        }
        let changes = (self.log_bytes() / BYTES_A_CHANGE) as u64;
        copies * BLOCKS_A_CHANGE * changes + attributes > free / 2
    }

    /// Waits until the background has folded what presses, or folds it where there is no
    /// background. The caller holds no lock and is not pinned.
    #[cold]
    pub(crate) fn fold_log(&self) {
        for _ in 0..ROUNDS {
            if !self.log_needs_fold() {
                return;
            }
            if self.background.is_running() {
                self.background.wake_and_wait();
            } else if self.checkpoint().is_err() {
                // Whoever syncs hears of it.
                return;
            }
        }
    }
}
