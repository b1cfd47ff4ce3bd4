//! Mistakes planted on purpose, so that the checkers of `lab/crash` can be shown to find them.
//! Each stands at the line whose loss it imitates. Without the feature `canaries` [`planted`] is a
//! constant `false`, and nothing of this is in the program; only `lab/crash` asks for the
//! feature.

/// What can be planted. The name says what is left out or done wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Canary {
    /// An fsync does not flush.
    FsyncWithoutFlush,
    /// An epoch commit does not flush.
    CommitWithoutFlush,
    /// What an inode's record tells of its mode and owner may be of an epoch that is not committed.
    RightsAhead,
    /// A change of mode, owner or ACLs is not an operation of the log.
    RightsNotLogged,
    /// A checkpoint writes its slot without flushing the tree first.
    SlotBeforeTree,
    /// A checkpoint frees what the last one needed without flushing its slot.
    SlotNotFlushed,
    /// Recovery does not flush what it read before it builds on it, nor its tree before its slot.
    RecoveryWithoutFlush,
    /// Recovery accepts batches whose checksum is wrong.
    UncheckedBatch,
    /// Blocks of the tree and of files are served without a look at their checksum.
    UncheckedBlock,
    /// Checksums say what a block holds, and not where it lies.
    ChecksumWithoutAddress,
    /// Recovery takes an fsync whose data did not arrive.
    DataNotChecked,
    /// An epoch counts as committed with a share missing or behind a gap (O2).
    EpochWithGap,
    /// Recovery applies an fsync's groups of epochs that are committed, although those were
    /// absorbed.
    NoEpochFilter,
    /// Segments are free at once when their last block dies (O13).
    EarlyReuse,
    /// Recovery writes its checkpoint into segments of the log that it has just read.
    LogReused,
    /// A checkpoint of the store's own forgets what is durable only in the log.
    CarriesNothing,
    /// Pages of an older version win over newer ones in recovery.
    OldVersionWins,
    /// An fsync takes only the groups that name its inode (O4).
    NoClosure,
    /// An fsync leaves out the group that made an entry's directory (O5).
    NoParent,
    /// Removing a directory does not pull what was removed from it (O6).
    NoChildren,
    /// A directory's move to another parent travels in an fsync (O7).
    MoveInFsync,
    /// A rename is two groups, each of the epoch that it reads for itself (O3).
    SplitRename,
    /// A replaced inode keeps its link (O8).
    LinkKept,
    /// An fsync writes no groups for a file that was synced before (O9).
    NamesForgotten,
    /// sync writes the inodes back but does not commit the epoch (O10).
    SyncWithoutCommit,
    /// sync forgets what was written back before it.
    SyncForgetsWritten,
    /// A rename over a file does not wait for the file's content (F5).
    RenameWithoutContent,
    /// A timestamp ignores those of the keys and of the lane; the clock alone decides (O1, O12).
    ClockAlone,
    /// Dirty marks are cleared, and nothing is captured, for pages written since the last fsync
    /// began (O15).
    PagesSkipped,
    /// Inode numbers are given out again before their end is durable (O16).
    NumberReused,
    /// More space is promised than there is (O14).
    SpaceWithoutEnd,
    /// An error of a flush is not passed on.
    FlushErrorHidden,
    /// An error of a write is not passed on.
    WriteErrorHidden,
    /// An fsync believes that no name is pending in the running epoch (C3').
    PendingUnseen,
    /// Epochs that a checkpoint writes again as one name the last of those before them, not the
    /// first's.
    RangeMisnamed,
    /// A look at a leaf asks behind the chain whether it was whole.
    MarkAfterNames,
    /// An answer from two names is not checked to be of one moment.
    TwoMoments,
}

impl Canary {
    /// All that a crash or a fault may show.
    pub const ALL: [Canary; 35] = [
        Canary::FsyncWithoutFlush,
        Canary::CommitWithoutFlush,
        Canary::SlotBeforeTree,
        Canary::SlotNotFlushed,
        Canary::RecoveryWithoutFlush,
        Canary::UncheckedBatch,
        Canary::UncheckedBlock,
        Canary::ChecksumWithoutAddress,
        Canary::DataNotChecked,
        Canary::EpochWithGap,
        Canary::NoEpochFilter,
        Canary::EarlyReuse,
        Canary::LogReused,
        Canary::CarriesNothing,
        Canary::OldVersionWins,
        Canary::NoClosure,
        Canary::NoParent,
        Canary::NoChildren,
        Canary::MoveInFsync,
        Canary::SplitRename,
        Canary::LinkKept,
        Canary::NamesForgotten,
        Canary::SyncWithoutCommit,
        Canary::SyncForgetsWritten,
        Canary::RenameWithoutContent,
        Canary::ClockAlone,
        Canary::PagesSkipped,
        Canary::NumberReused,
        Canary::SpaceWithoutEnd,
        Canary::FlushErrorHidden,
        Canary::WriteErrorHidden,
        Canary::PendingUnseen,
        Canary::RangeMisnamed,
        Canary::RightsAhead,
        Canary::RightsNotLogged,
    ];

    /// Those that only threads in an order of their own show: a matter of schedules, not of
    /// crashes.
    pub const OF_THREADS: [Canary; 2] = [Canary::MarkAfterNames, Canary::TwoMoments];
}

#[cfg(feature = "canaries")]
std::thread_local! {
    static PLANTED: std::cell::Cell<Option<Canary>> = const { std::cell::Cell::new(None) };
}

/// Plants a mistake for the calling thread, or takes it out again.
#[cfg(feature = "canaries")]
pub fn plant(canary: Option<Canary>) {
    PLANTED.with(|p| p.set(canary));
}

/// What is planted for the calling thread.
#[cfg(feature = "canaries")]
pub fn planted_now() -> Option<Canary> {
    PLANTED.with(std::cell::Cell::get)
}

/// One more than the number of the mistake that is planted for all threads. Relaxed: set before
/// they start.
#[cfg(feature = "canaries")]
static EVERYWHERE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// Plants a mistake for every thread of the process, or takes it out again.
#[cfg(feature = "canaries")]
pub fn plant_everywhere(canary: Option<Canary>) {
    EVERYWHERE.store(canary.map_or(0, |c| c as u32 + 1), std::sync::atomic::Ordering::Relaxed);
}

/// Whether this mistake is planted.
#[cfg(feature = "canaries")]
#[inline]
pub fn planted(canary: Canary) -> bool {
    EVERYWHERE.load(std::sync::atomic::Ordering::Relaxed) == canary as u32 + 1
        || PLANTED.with(|p| p.get() == Some(canary))
}

/// Whether this mistake is planted: never, without the feature.
#[cfg(not(feature = "canaries"))]
#[inline(always)]
pub const fn planted(_: Canary) -> bool {
    false
}
