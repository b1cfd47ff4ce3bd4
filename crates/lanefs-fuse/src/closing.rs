//! The end of a mount: what the kernel holds is written back, and the volume is closed.

use crate::aside::Aside;
use lanefs::{Ino, Result, Volume};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The progress of a mount on its way to being cut off from who uses it: what the kernel holds is
/// written back, and no more is taken.
///
/// All atomics are SeqCst: they are used once for a mount, or once for a request of a mount
/// that ends, so a weaker order would gain nothing. `begun` and `writes` need one common order:
/// [`Closing::begin`] stores `begun`, has pages written back and loads `writes`; who serves a WRITE
/// loads `begun` and adds to `writes` before its answer, for which the kernel waits in between. So
/// a round that finds `writes` as it was has met no WRITE but those that came before `begun`, and
/// these the round itself waited for.
#[derive(Default)]
pub(crate) struct Closing {
    /// Whether the end has begun. Stored by [`Closing::begin`], loaded by who serves requests.
    begun: AtomicBool,
    /// Requests with pages of the kernel's cache since then. Added to by who serves them, loaded by
    /// [`Closing::begin`].
    writes: AtomicU64,
    /// Whether something that the kernel had accepted could not be written. Stored by who serves
    /// requests, loaded when they have ended (by [`Closing::has_lost`]).
    lost: AtomicBool,
    /// Whether the volume is being closed, or was. Stored by [`Closing::close`], loaded by who may
    /// give up waiting for that.
    closes: AtomicBool,
    /// The result of closing the volume, until somebody has asked.
    closed: Mutex<Option<Result<()>>>,
    /// Whether the volume is another's to close.
    stays_open: bool,
}

impl Closing {
    /// Makes it, for a volume that is another's to close if `stays_open`.
    pub(crate) fn new(stays_open: bool) -> Closing {
        Closing { stays_open, ..Closing::default() }
    }

    /// Has the kernel hand over all that it holds of the inodes that `written` returns, until it
    /// holds nothing; no program's write is taken meanwhile, nor does a page come back into its
    /// cache. Called by a thread that serves no requests.
    pub(crate) fn begin(&self, written: impl Fn() -> Vec<Ino>, aside: &Aside) {
        self.begun.store(true, Ordering::SeqCst);
        loop {
            let before = self.writes.load(Ordering::SeqCst);
            for ino in written() {
                // The attributes first: from then on a write(2) asks, and is refused.
                aside.attributes_changed(ino);
                aside.flush_kernel_pages(ino);
            }
            let after = self.writes.load(Ordering::SeqCst);
            debug_assert!(after >= before, "a count that only grows");
            if after == before {
                return;
            }
        }
    }

    /// Returns whether the end has begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::SeqCst)
    }

    /// Takes note of pages of the kernel's cache, of which all were written if `whole`.
    pub(crate) fn count_write(&self, whole: bool) {
        if self.has_begun() {
            self.writes.fetch_add(1, Ordering::SeqCst);
            if !whole {
                self.lost.store(true, Ordering::SeqCst);
            }
        }
    }

    /// Returns whether something that the kernel had accepted could not be written.
    pub(crate) fn has_lost(&self) -> bool {
        let lost = self.lost.load(Ordering::SeqCst);
        debug_assert!(!lost || self.has_begun(), "before the end a program hears of its lost write");
        lost
    }

    /// Closes the volume, unless that is another's business.
    pub(crate) fn close(&self, volume: &Volume) {
        if self.stays_open {
            return;
        }
        self.closes.store(true, Ordering::SeqCst);
        debug_assert!(!self.stays_open, "it is another's to close");
        let mut closed = self.closed.lock().unwrap_or_else(|e| e.into_inner());
        let result = volume.close();
        // Only the first time does something.
        closed.get_or_insert(result);
    }

    /// Returns whether the volume is being closed, or was.
    pub(crate) fn closes(&self) -> bool {
        self.closes.load(Ordering::SeqCst)
    }

    /// Closes the volume if that has not been done, and returns how it went.
    pub(crate) fn end(&self, volume: &Volume) -> Result<()> {
        self.close(volume);
        self.closed.lock().unwrap_or_else(|e| e.into_inner()).take().unwrap_or(Ok(()))
    }
}
