//! The part of a volume that operations reach: the file system in memory, the journal of the lanes,
//! the budgets of space and memory, and the store. Everything here lies below the operations
//! (`ops`), and those below what brings changes to the store (`persist`).
//!
//! An operation never names what lies above it. What it needs of that (space on a full volume, a
//! file made durable before it is renamed) it asks through [`Persistence`], which the volume sets
//! when it is opened. All of that waits, so none of it is on the way of a call that finds space.

pub(crate) mod backlog;
pub(crate) mod budget;
pub(crate) mod host;
pub(crate) mod journal;
pub(crate) mod memory;
pub(crate) mod page_store;
mod seam;
pub(crate) mod space;

pub(crate) use budget::Budget;
pub(crate) use journal::Journal;
pub(crate) use seam::{Persistence, STEP};

use crate::error::{Error, Result};
use crate::locks::LockTable;
use crate::memfs::MemFs;
use crate::{MountOptions, Order};
use crossbeam_utils::CachePadded;
use lanefs_store::Store;
use lanefs_sync::clock::Clock;
use lanefs_sync::fork::{self, Process};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Closed, or shut down as by a crash: every call fails with EIO. The number of no process.
const STOPPED: u32 = 0;

/// The part of a volume that every operation reaches.
pub(crate) struct Core {
    pub store: Arc<Store>,
    pub options: MountOptions,
    pub clock: Arc<Clock>,
    pub memfs: MemFs,
    pub journal: Journal,
    pub budget: Budget,
    pub locks: CachePadded<LockTable>,
    /// The process whose calls the volume takes, or STOPPED. Written twice in a volume's life.
    /// SeqCst in `stop` and `is_stopped`: of two closes one finds the volume stopped. Relaxed in
    /// `check_alive`: see there.
    runs_in: CachePadded<AtomicU32>,
    /// A front end knows inodes by their numbers: see `Volume::keep_unnamed`. Written when one
    /// comes or goes, read with the ends of files. SeqCst: before the front end finds its first
    /// inode.
    known_outside: CachePadded<AtomicBool>,
    /// Written once, when the volume is opened.
    persistence: OnceLock<Weak<dyn Persistence>>,
}

impl Core {
    /// Makes the core of a volume that was opened just now.
    pub fn new(
        store: Arc<Store>,
        options: MountOptions,
        memfs: MemFs,
        journal: Journal,
        budget: Budget,
    ) -> Core {
        debug_assert!(options.lanes == 0 || journal.lanes.len() <= options.lanes, "more lanes than wanted");
        Core {
            clock: options.clock.clone().unwrap_or_else(|| Arc::new(Clock::detect())),
            store,
            options,
            memfs,
            journal,
            budget,
            locks: Default::default(),
            runs_in: CachePadded::new(AtomicU32::new(Process::current().number())),
            known_outside: Default::default(),
            persistence: OnceLock::new(),
        }
    }

    /// Sets who brings changes to the store. Once, before the first operation.
    pub fn set_persistence(&self, persistence: Weak<dyn Persistence>) {
        let first = self.persistence.set(persistence).is_ok();
        debug_assert!(first, "a volume is opened once");
        debug_assert!(!self.is_stopped(), "it is served from its opening on");
    }

    /// Returns who brings changes to the store; `None` while the volume is being opened, and when
    /// its last handle is gone. Counts a reference that all lanes share, so it is asked where a
    /// call waits anyway.
    #[cold]
    pub fn persistence(&self) -> Option<Arc<dyn Persistence>> {
        self.persistence.get()?.upgrade()
    }

    /// Notes whether a front end knows inodes by their numbers.
    pub fn set_known_outside(&self, known: bool) {
        self.known_outside.store(known, Ordering::SeqCst);
    }

    /// Returns whether a front end may know an inode that has no name and that nobody has open.
    pub fn is_known_outside(&self) -> bool {
        self.known_outside.load(Ordering::SeqCst)
    }

    /// Wakes the thread that frees memory.
    #[cold]
    pub fn wake_persistence(&self) {
        if let Some(persistence) = self.persistence() {
            persistence.wake();
        }
    }

    /// Wakes the thread that ends inodes, for one that has much content.
    #[cold]
    pub fn end_soon(&self) {
        if let Some(persistence) = self.persistence() {
            persistence.end_soon();
        }
    }

    /// Checks that the volume takes calls: EIO once it is closed or shut down, and in the child of
    /// a fork, which has neither its threads nor all that they were doing.
    #[inline]
    pub fn check_alive(&self) -> Result<()> {
        // Relaxed: whoever stops the volume waits for nobody; the store refuses what comes later.
        if fork::runs(self.runs_in.load(Ordering::Relaxed)) { Ok(()) } else { Err(Error::Posix(libc::EIO)) }
    }

    /// Returns whether the volume was closed or shut down.
    pub fn is_stopped(&self) -> bool {
        // SeqCst, as in `stop`: of two closes one finds the volume stopped.
        self.runs_in.load(Ordering::SeqCst) == STOPPED
    }

    /// Returns whether this is a copy of a volume, in the child of a fork: nothing is done to it.
    pub fn is_inherited(&self) -> bool {
        // Relaxed: of a copy nothing is written any more.
        let process = self.runs_in.load(Ordering::Relaxed);
        process != STOPPED && !fork::runs(process)
    }

    /// Has every later call fail with EIO.
    pub fn stop(&self) {
        self.runs_in.store(STOPPED, Ordering::SeqCst);
        debug_assert!(self.check_alive().is_err(), "who stopped it comes too late, too");
    }

    /// Checks that the volume can be changed: EROFS on a read-only one, also one that an error of
    /// its devices made so (SEMANTICS E2); EIO on a stopped one.
    #[inline]
    pub fn writable(&self) -> Result<()> {
        self.check_alive()?;
        if self.options.read_only || self.store.is_broken() { Err(Error::Posix(libc::EROFS)) } else { Ok(()) }
    }

    /// Turns what a call that promises durability answers into EIO on a volume that an error made
    /// read-only (SEMANTICS E2).
    pub fn promised<T>(&self, r: Result<T>) -> Result<T> {
        r.map_err(|e| if self.store.is_broken() { Error::Posix(libc::EIO) } else { e })
    }

    /// Returns whether names become durable in the order of the calls.
    #[inline]
    pub fn is_ordered(&self) -> bool {
        self.options.order == Order::Ordered
    }
}
