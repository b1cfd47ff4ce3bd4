//! The parts of an open volume that its clones and its handles share.

use crate::persist::Persist;
use crossbeam_utils::CachePadded;
use std::sync::Arc;

/// Keeps the volume alive for a lane's handles: a reference count per lane, so that `open` on two
/// lanes shares no line.
pub(crate) struct Anchor {
    pub persist: Arc<Persist>,
}

impl Drop for Anchor {
    fn drop(&mut self) {
        // The last user: only the background threads may be left. Waiting for them here makes the
        // volume close in this thread.
        if Arc::strong_count(&self.persist) <= 2 + usize::from(self.persist.ahead.is_busy()) {
            self.persist.stop_threads();
        }
    }
}

/// The part of a [`Volume`](crate::Volume) that its clones share.
pub(crate) struct Opened {
    pub persist: Arc<Persist>,
    /// One for each lane.
    pub anchors: Box<[CachePadded<Arc<Anchor>>]>,
}
