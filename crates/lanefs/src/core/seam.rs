//! The requests of operations to what lies above them.

use crate::error::Result;
use crate::memfs::Inode;
use lanefs_format::BLOCK_SIZE;

/// Bytes by which a file grows before it is written ahead (`persist::ahead`).
pub(crate) const STEP: u64 = 4 << 20;

const _: () = assert!(STEP.is_power_of_two() && STEP >= BLOCK_SIZE as u64, "steps of whole pages");

/// Brings changes to the store. The caller of each of these holds no lock and no lane unless its
/// comment allows it, and may wait for a device. It does not wait for the host of an image:
/// [`HOST_PENDING`](super::host::HOST_PENDING).
pub(crate) trait Persistence: Send + Sync {
    /// Makes what was deleted count as free, on a full volume. Returns false if there is no space
    /// even then; true also if something was given back and is gone again already: others take
    /// space while this thread frees it. The caller is not pinned: the grace of what was just
    /// deleted is waited for.
    fn free_space(&self) -> bool;

    /// Returns whether inodes have ended whose blocks the next checkpoint gives back: while one was
    /// made, for example.
    fn has_ended(&self) -> bool;

    /// Makes a checkpoint: what is logged is folded.
    fn fold_log(&self) -> Result<()>;

    /// Writes every dirty inode back, not durably.
    fn write_back_all(&self) -> Result<()>;

    /// Takes note that the end of a file has moved across a multiple of [`STEP`]: it is written
    /// ahead (`persist::ahead`). `wait`: the caller has the pages still, and waits for the file
    /// when that is far behind.
    fn has_grown(&self, inode: &Inode, wait: bool);

    /// Hands an inode's attributes to the store, not durably, once its rights are committed.
    fn write_attributes(&self, inode: &Inode) -> Result<()>;

    /// Makes the content of a file durable that was renamed over another, if it is not.
    fn flush_renamed(&self, inode: &Inode) -> Result<()>;

    /// Does the same for a file that is about to be renamed over another, once its rights are
    /// committed.
    fn flush_before_rename(&self, inode: &Inode) -> Result<()>;

    /// Waits until the inode's rights as they are now are committed. The caller holds no lock of an
    /// inode.
    fn commit_rights(&self, inode: &Inode) -> Result<()>;

    /// Wakes the background thread.
    fn wake(&self);

    /// Wakes the thread that ends inodes: one that has much content has lost its last name.
    fn end_soon(&self);

    /// Wakes the background thread and waits for a round of it, a moment at most. Returns false if
    /// there is none.
    fn wait_for_round(&self) -> bool;
}
