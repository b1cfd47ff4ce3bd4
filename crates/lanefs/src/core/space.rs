//! Space on the volume: what a call promises itself before it begins, and what is done when there
//! is none.
//!
//! 1. A call that makes something is refused before it begins, with ENOSPC, or it can be folded:
//!    a new inode, the bytes of its name, a long target and extended attributes outside the inode
//!    are promised by [`lanefs_store::Store::reserve`], at the call.
//! 2. Names and most inodes are small. A lane promises a block for several ([`LanePromise`]): of a
//!    name half as much again as it takes, since what splits is two thirds full, and of an inode
//!    what [`lanefs_store::Store::parts_of_inode`] says.
//! 3. Promised blocks travel with the epoch of the call ([`crate::oplog::LaneLog::promise`]) and
//!    are given back when that is folded: the fold has charged what it wrote. What an inode was
//!    promised that ended before is given back when its end is committed (`persist::reaper`).
//! 4. A change of a name writes a bucket of its directory and an inode anew, and only the next
//!    checkpoint frees the old ones. That comes out of what is kept back for checkpoints, in
//!    recovery too; so before changes that are not folded could need half of the free segments,
//!    there is a checkpoint ([`log_needs_fold`]). Extended attributes outside the inode
//!    count twice there: an fsync logs them, a checkpoint writes their blocks. So do long names and
//!    targets, of which a volume may be promised full before any of it is written.
//! 5. All of these are blocks of the tree. In a volume that keeps two copies of it each promise is
//!    of two blocks ([`lanefs_store::Store::reserve_nodes`]); what travels with the epochs is
//!    counted without the copies.
//! 6. Small inodes share blocks, and the fold charges what it wrote: many empty files a block. What
//!    makes an inode larger later is promised by who does it. A page of a file has a promise of its
//!    own; where it lies in the inode the store keeps the block until the inode is written. Short
//!    attributes are promised a block, unless there is plenty of space, and an entry of a map takes
//!    a hundredth of the page that it is for, which is kept back as maps are. Of a file of islands
//!    in a sea of holes each page may have a node of the map: the store charges these when the page
//!    is written back, and where little is free few pages are dirty that may need one
//!    (`memfs::data`, its pool). A page that has a block needs none, and takes no promise there.
//! 7. While the host of a sparse image is short of space ([`lanefs_store::Store::is_host_short`])
//!    nothing new is promised, however much the volume has: ENOSPC at once, without a checkpoint,
//!    which might have to wait. What was accepted before, and what the kernel hands over that it
//!    has accepted, keeps its promise or gets it (`page_store`); it is written when there is space.
//! 8. The last of a volume is left to root ([`Claimant`]): who pays a promise says who it is. What
//!    a lane has promised beyond need, less than a block, is anybody's.

use super::Core;
use crate::error::{Result, posix};
use lanefs_format::BLOCK_SIZE;
use lanefs_format::dir_bucket::ENTRY_HEADER;
use lanefs_format::inode::{XATTR_INLINE, XATTR_PER_BLOCK};
use lanefs_format::{NAME_MAX, XATTR_BLOB_MAX};
use lanefs_store::{Claimant, PARTS_OF_BLOCK};
use std::sync::atomic::Ordering::Relaxed;

/// Bytes of the oplog for each change of a name, at the least.
const BYTES_A_CHANGE: usize = 64;
/// Blocks that folding one may take: a bucket, an inode whose links are counted, and a leaf of the
/// inode table.
const BLOCKS_A_CHANGE: u64 = 3;
/// Free blocks, 8 GiB, up to which a volume keeps a twentieth back.
const LARGE: u64 = 1 << 21;
/// The checkpoints that a caller makes at most because something ended in the middle of the one
/// before.
const MIDWAY: usize = 8;
/// The rounds of the background that a caller waits for at most.
const ROUNDS: usize = 20;
/// Blocks that one call promises itself at most, beside an inode's: attributes, a target and a
/// name.
const MOST: u64 = 2 * (XATTR_BLOB_MAX / XATTR_PER_BLOCK + 3) as u64;

const _: () = assert!(XATTR_INLINE < XATTR_PER_BLOCK && XATTR_PER_BLOCK < BLOCK_SIZE);
const _: () = assert!((ENTRY_HEADER + NAME_MAX) * 3 / 2 < BLOCK_SIZE, "a block holds several names");

/// Returns the bytes promised for a name.
const fn bytes_of(name: &[u8]) -> u64 {
    debug_assert!(name.len() <= NAME_MAX, "a name that was not checked");
    (ENTRY_HEADER + name.len()) as u64 * 3 / 2
}

/// Returns the blocks beside the inode's that extended attributes of so many encoded bytes take.
pub(crate) fn blocks_of_xattrs(bytes: usize) -> u64 {
    let blocks = if bytes <= XATTR_INLINE { 0 } else { bytes.div_ceil(XATTR_PER_BLOCK) as u64 };
    debug_assert!(blocks == 0 || blocks as usize * XATTR_PER_BLOCK >= bytes, "{blocks} hold {bytes} bytes");
    blocks
}

/// What a new inode takes.
#[derive(Clone, Copy)]
pub(crate) struct NewInode {
    pub is_dir: bool,
    /// Bytes in the inode beside what each has: of its target and its attributes.
    pub bytes: usize,
    /// Blocks beside the inode's.
    pub blocks: u64,
}

impl NewInode {
    /// Returns the bytes promised for it.
    #[inline]
    fn promise(self, core: &Core) -> u64 {
        let parts = core.store.parts_of_inode(self.is_dir, self.bytes);
        debug_assert!((1..=PARTS_OF_BLOCK).contains(&parts), "{parts} parts of a block");
        (self.blocks * PARTS_OF_BLOCK + parts) * BLOCK_SIZE as u64 / PARTS_OF_BLOCK
    }
}

/// Returns the bytes promised for a new file without attributes, and its name.
#[inline]
pub(crate) fn bytes_of_file(core: &Core, name: &[u8]) -> u64 {
    bytes_of(name) + NewInode { is_dir: false, bytes: 0, blocks: 0 }.promise(core)
}

/// Reserves space for a new inode and its name, which is empty if it has none; returns the bytes to
/// give back if nothing comes of it. ENOSPC; the caller of the operation tries again when something
/// was freed (`with_space`).
#[inline]
pub(crate) fn reserve_inode(core: &Core, who: Claimant, name: &[u8], inode: NewInode) -> Result<u64> {
    let name = if name.is_empty() { 0 } else { bytes_of(name) };
    reserve_bytes(core, who, name + inode.promise(core))
}

/// Reserves space for a name; returns the bytes to give back if nothing comes of it. ENOSPC.
#[inline]
pub(crate) fn reserve_name(core: &Core, who: Claimant, name: &[u8]) -> Result<u64> {
    debug_assert!(!name.is_empty(), "a name that was not checked");
    reserve_bytes(core, who, bytes_of(name))
}

/// Does the same for a name in place of one that goes.
pub(crate) fn reserve_longer_name(core: &Core, who: Claimant, old: &[u8], new: &[u8]) -> Result<u64> {
    reserve_bytes(core, who, bytes_of(new).saturating_sub(bytes_of(old)))
}

/// Takes bytes of what the lane has promised, and promises more if that is short.
#[inline]
fn reserve_bytes(core: &Core, who: Claimant, bytes: u64) -> Result<u64> {
    debug_assert!(bytes <= MOST * BLOCK_SIZE as u64, "{bytes} bytes for one call");
    if bytes == 0 {
        return Ok(0);
    }
    if core.store.is_host_short() {
        return posix(libc::ENOSPC); // 7
    }
    let lane = core.journal.lanes.mine();
    let promise = &core.journal.lanes.shared(lane).promise;
    promise.check_invariants();
    let left = promise.left.fetch_sub(bytes as i64, Relaxed) - bytes as i64;
    if left < 0 { reserve_more(core, lane, who, bytes, left) } else { Ok(bytes) }
}

/// Reserves blocks for what is short, `left` bytes below nothing.
#[cold]
fn reserve_more(core: &Core, lane: usize, who: Claimant, bytes: u64, left: i64) -> Result<u64> {
    debug_assert!(left < 0, "nothing is short");
    let promise = &core.journal.lanes.shared(lane).promise;
    let blocks = left.unsigned_abs().div_ceil(BLOCK_SIZE as u64);
    let there =
        core.store.reserve_nodes(lane, blocks, who) || blocks == 1 && core.store.reserve_last_node(lane);
    if !there {
        promise.left.fetch_add(bytes as i64, Relaxed);
        promise.check_invariants();
        return posix(libc::ENOSPC);
    }
    promise.left.fetch_add((blocks * BLOCK_SIZE as u64) as i64, Relaxed);
    promise.blocks.fetch_add(blocks, Relaxed);
    promise.check_invariants();
    Ok(bytes)
}

/// Gives the bytes that one of these returned back to the lane.
pub(crate) fn unreserve(core: &Core, bytes: u64) {
    debug_assert!(bytes <= MOST * BLOCK_SIZE as u64, "{bytes} bytes of one call");
    let promise = &core.journal.lanes.shared(core.journal.lanes.mine()).promise;
    promise.left.fetch_add(bytes as i64, Relaxed);
    promise.check_invariants();
}

/// Takes the blocks that a lane promised for names and inodes since the last time; the caller
/// counts them in its epoch.
#[inline]
pub(crate) fn take_promised(core: &Core, lane: usize) -> u64 {
    let blocks = &core.journal.lanes.shared(lane).promise.blocks;
    if blocks.load(Relaxed) == 0 { 0 } else { blocks.swap(0, Relaxed) }
}

/// Runs `f`, and again as long as the volume was full and something could be given back, which
/// others may be faster to take. The caller is not pinned.
pub(crate) fn with_space<T>(core: &Core, mut f: impl FnMut() -> Result<T>) -> Result<T> {
    let mut tries = 0;
    for _ in 0..100 {
        match f() {
            Err(e) if e.errno() == libc::ENOSPC => {
                if !free_space(core) {
                    tries += 1;
                    if !comes_back(core, tries) {
                        return Err(e);
                    }
                }
            }
            r => return r,
        }
    }
    f()
}

/// Does the same for an `f` that returns false where there was no space: ENOSPC of another cause is
/// not tried again.
pub(crate) fn change_with_space(core: &Core, mut f: impl FnMut() -> Result<bool>) -> Result<()> {
    with_space(core, || match f() {
        Ok(true) => Ok(Ok(())),
        Ok(false) => posix(libc::ENOSPC),
        Err(e) => Ok(Err(e)),
    })?
}

/// Returns whether a quarter of a volume is free that is not small.
fn has_plenty(core: &Core) -> bool {
    let (free, all) = (core.store.free_segment_blocks(), core.store.blocks_for_users());
    debug_assert!(all > 0, "a volume for nobody");
    free > all / 4 && !core.budget.is_small
}

/// Returns the blocks to be promised when the extended attributes of an inode grow from so many
/// encoded bytes to so many (6).
pub(crate) fn promise_of_xattrs(core: &Core, from: usize, to: usize) -> u64 {
    debug_assert!(to <= 2 * XATTR_BLOB_MAX, "{to} bytes of extended attributes");
    // By the segments that are free: to know the blocks all lanes would be gathered.
    let is_scarce = || match core.budget.is_small {
        true => core.store.free_segment_blocks() < core.store.blocks_for_users() / 4 * 3,
        false => !has_plenty(core),
    };
    match blocks_of_xattrs(to) {
        0 => u64::from(to > from && is_scarce()),
        blocks => blocks,
    }
}

/// Returns whether what is logged and not folded could need half of the segments that are free (4).
/// As long as a quarter of a volume is free that is not small, commits and the background see to it
/// in time, but for what many calls log within a moment: it is written to the log, and stays there
/// until it is folded, into the blocks that were promised for it and others that are written anew.
/// The log and those may have half of what is free beside all promises.
pub(crate) fn log_needs_fold(core: &Core) -> bool {
    let free = core.store.free_segment_blocks();
    let copies = core.store.metadata_copies();
    debug_assert!(copies >= 1, "the tree lies nowhere");
    // Relaxed: an estimate.
    let attributes = (1 + copies) * core.budget.xattr_blocks.load(Relaxed);
    let log = core.journal.log_bytes();
    let anew = copies * BLOCKS_A_CHANGE * (log / BYTES_A_CHANGE) as u64;
    if has_plenty(core) {
        let logged = (log / BLOCK_SIZE) as u64;
        // A twentieth is promised to nobody, or a fiftieth of what is beyond 8 GiB. Who logs less
        // than half of that looks at no line that others write.
        let part = if free > LARGE { 100 } else { 40 };
        if attributes > free / 2 || logged + anew <= free / part {
            return attributes > free / 2;
        }
        let (promised, beside) = core.store.promised_and_free();
        let used = core.store.blocks_for_users().saturating_sub(promised + beside);
        return logged + anew.min(used) > free.saturating_sub(promised) / 2;
    }
    anew + attributes > free / 2
}

/// Makes what was deleted count as free; see [`Persistence::free_space`](super::Persistence).
#[cold]
pub(crate) fn free_space(core: &Core) -> bool {
    if core.store.is_host_short() {
        return core.store.look_for_host_space(); // 7
    }
    core.persistence().is_some_and(|p| p.free_space())
}

/// Returns whether it is worth to look for space once more, after [`free_space`] has found too
/// little in `tries` attempts: what ended while its checkpoint was made is given back by the next.
#[cold]
pub(crate) fn comes_back(core: &Core, tries: usize) -> bool {
    debug_assert!(tries > 0, "nobody has looked yet");
    tries < MIDWAY && !core.store.is_host_short() && core.persistence().is_some_and(|p| p.has_ended())
}

/// Waits until the background has folded what presses, or folds it where there is no
/// background. The caller holds no lock and is not pinned.
#[cold]
pub(crate) fn fold_log(core: &Core) {
    for _ in 0..ROUNDS {
        let Some(persistence) = core.persistence().filter(|_| log_needs_fold(core)) else { return };
        if !persistence.wait_for_round() && persistence.fold_log().is_err() {
            // Whoever syncs gets the error.
            return;
        }
    }
}
