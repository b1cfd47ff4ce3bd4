//! What an open volume tells of itself: figures of this moment, and sums since it was opened.
//!
//! Nothing is counted for it on the way of a call (docs/STAT.md has what each figure is, and when
//! it is counted). Who asks takes the locks of the lanes one after the other, for a moment each.

use crate::core::memory;
use crate::persist::Persist;
use lanefs_format::BLOCK_SIZE;
pub use lanefs_store::report::{
    CheckpointsReport, CleanerReport, DevicesReport, MlogReport, SegmentsReport, SpaceReport, StoreReport,
    WrittenReport,
};

/// A volume's figures.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct Report {
    /// Seconds since the volume was opened.
    pub open_seconds: f64,
    /// Pages of files in memory.
    pub cache: CacheReport,
    /// Memory of all but pages.
    pub memory: MemoryReport,
    /// Inodes in memory.
    pub inodes: InodesReport,
    /// Epochs of changes of names.
    pub epochs: EpochsReport,
    /// The store.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub store: StoreReport,
}

/// Pages of files in memory, in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct CacheReport {
    /// What the cache may take.
    pub limit_bytes: u64,
    /// Pages of files that are in it.
    pub used_bytes: u64,
    /// Of these, those that are not written yet, or are being written.
    pub dirty_bytes: u64,
    /// Of these, those that could be dropped.
    pub clean_bytes: u64,
    /// Above so much that is dirty the background writes back.
    pub dirty_background_bytes: u64,
    /// Above so much that is dirty writers wait.
    pub dirty_limit_bytes: u64,
}

/// Memory of inodes, names and the log, in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct MemoryReport {
    /// What it may be before something has to leave.
    pub limit_bytes: u64,
    /// What it is, about.
    pub used_bytes: u64,
    /// Names in memory, about.
    pub name_bytes: u64,
    /// Changes of names that no epoch has taken yet.
    pub log_bytes: u64,
    /// Changes of names that are committed and wait for a checkpoint.
    pub committed_log_bytes: u64,
    /// Whether callers that need more of it wait.
    pub callers_wait: bool,
}

/// The number of inodes in memory in some states.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct InodesReport {
    /// In memory, about.
    pub in_memory: u64,
    /// Open by at least one handle.
    pub open: u64,
    /// To be written back.
    pub dirty: u64,
    /// Written back, and durable with the next checkpoint or sync.
    pub written_not_durable: u64,
}

/// Epochs, by their numbers.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct EpochsReport {
    /// The one that runs.
    pub current: u64,
    /// The last one that is durable.
    pub committed: u64,
    /// The last one that a checkpoint has folded.
    pub folded: u64,
    /// How many were committed since the volume was opened, empty ones included.
    pub commits: u64,
    /// Seconds since the last one ended; none since the volume was opened.
    pub last_commit_seconds: Option<f64>,
}

/// Gathers the figures.
pub(crate) fn report(persist: &Persist) -> Report {
    let journal = &persist.journal;
    let (backlog_bytes, last) = {
        let backlog = journal.backlog.lock();
        backlog.check_invariants();
        (backlog.bytes, backlog.last)
    };
    // Folded first: each of these only grows, and is at most what comes behind it.
    let (folded, committed) = (journal.folded(), journal.committed());
    let current = journal.epochs.current();
    debug_assert!(folded <= committed && committed < current, "{folded}, {committed}, {current}");
    let (queued, written) = {
        let flush = persist.flush.lock();
        (flush.queue.len(), flush.written())
    };
    Report {
        open_seconds: persist.opened.elapsed().as_secs_f64(),
        cache: cache(persist),
        memory: MemoryReport {
            limit_bytes: persist.budget.meta_limit,
            used_bytes: memory::meta_bytes(persist),
            name_bytes: memory::name_bytes(persist).max(0) as u64,
            log_bytes: journal.open_log_bytes() as u64,
            committed_log_bytes: backlog_bytes as u64,
            callers_wait: memory::callers_wait(persist),
        },
        inodes: InodesReport {
            in_memory: journal.inodes_in_memory().max(0) as u64,
            open: journal.open_inodes().len() as u64,
            dirty: (queued + journal.listed_dirty()) as u64,
            written_not_durable: written as u64,
        },
        epochs: EpochsReport {
            current,
            committed,
            folded,
            commits: committed - persist.opened_epoch.min(committed),
            last_commit_seconds: last.map(|at| at.elapsed().as_secs_f64()),
        },
        store: persist.store.report(),
    }
}

fn cache(persist: &Persist) -> CacheReport {
    let frames = &persist.memfs.frames;
    let bytes = |frames: usize| (frames * BLOCK_SIZE) as u64;
    let (all, used) = (frames.frames(), frames.attached_frames());
    // Frames are counted one lane after the other while others take some.
    let dirty = frames.dirty_frames().min(used);
    let (background, hard) = frames.dirty_marks();
    debug_assert!(background < hard && hard < all, "writers wait before anybody writes back");
    CacheReport {
        limit_bytes: bytes(all),
        used_bytes: bytes(used),
        dirty_bytes: bytes(dirty),
        clean_bytes: bytes(used - dirty),
        dirty_background_bytes: bytes(background),
        dirty_limit_bytes: bytes(hard),
    }
}
