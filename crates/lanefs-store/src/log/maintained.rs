//! What was written for the volume itself, for reports.

use std::sync::atomic::AtomicU64;

/// Blocks written since the volume was opened for the holder of the maintenance lock, for reports.
/// Written by it and the threads that help it. Relaxed: figures, with which no memory is handed
/// over. (What users write is counted by the mlogs.)
#[derive(Default)]
pub(crate) struct Maintained {
    /// Blocks of the tree, with their copies.
    pub tree: AtomicU64,
    /// Slots, stamps and superblocks.
    pub roots: AtomicU64,
    /// Blocks that the cleaner moved, with their copies, and bad copies that were written anew.
    pub moved: AtomicU64,
    /// What the cleaner did: see [`crate::CleanReport`].
    pub emptied: AtomicU64,
    pub data_moved: AtomicU64,
    pub nodes_marked: AtomicU64,
}
