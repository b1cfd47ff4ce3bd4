//! Faults planted in LaneFS on purpose, so that the checkers of `lab/crash` can be shown to find
//! them. The product knows nothing of them: [`copy`] makes a copy of the workspace's source in
//! which each [`Edit`] has put a question at the line whose loss it imitates, and the checkers are
//! compiled from the copy once (`cargo xtask faults`). Which fault is planted is chosen at run
//! time, so one program tries them all.
//!
//! In the copy the crates of the product depend on this one, which is why it depends on nothing.

pub mod copy;
mod edits;

pub use edits::{EDITS, Edit};

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// Whether this program is compiled from the copy. The copy has `true` here.
pub const IN_THIS_PROGRAM: bool = false;

/// A fault that can be planted. The name says what is left out or done wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// An fsync does not flush.
    FsyncWithoutFlush,
    /// An epoch commit does not flush.
    CommitWithoutFlush,
    /// The mode and owner in an inode's record may be of an epoch that is not committed.
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
    /// A segment of the log is free behind a checkpoint, though data lies in it beside its batches.
    DataInLogFreed,
    /// A log whose open segments another has taken over goes on writing to them.
    HeadsShared,
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
    /// Files that are written back together lose all pages but the first.
    TogetherInPart,
    /// Files that are made durable together are not flushed.
    TogetherUnflushed,
    /// An update with a part of a file's pages has the size of all (F9).
    SizeAhead,
    /// Inode numbers are given out again before their end is durable (O16).
    NumberReused,
    /// More space is promised than there is (O14).
    SpaceWithoutEnd,
    /// A file's making is voided with the removal of its last name, although other groups name it.
    VoidedAmongOthers,
    /// A lane voids groups that an fsync may have written.
    WrittenVoided,
    /// An error of a flush is not passed on.
    FlushErrorHidden,
    /// An error of a write is not passed on.
    WriteErrorHidden,
    /// An fsync believes that no name is pending in the running epoch (C3').
    PendingUnseen,
    /// Epochs that a checkpoint writes again as one name the last of those before them, not the
    /// first's.
    RangeMisnamed,
    /// A pack of inodes is freed though another inode is in it.
    PackFreed,
    /// Entries of the inode table name the slot behind the right one.
    WrongSlot,
    /// An empty file in a pack is ended as its slot says, whatever memory knows of it.
    EndedUnseen,
    /// What lanes remember of a path stays when a directory on it moves.
    PathRemembered,
    /// A look at a leaf asks behind the chain whether it was whole.
    MarkAfterNames,
    /// What was read along with something else is handed out without a look at its sum.
    NeighbourUnchecked,
    /// A device in the place of another does not get what lies in segments that are being filled.
    CopyInPart,
    /// A replaced device stays the one that the volume names.
    ReplacedUnnamed,
    /// A device is made smaller, or removed, although something lies in what goes.
    GoesInUse,
    /// An answer from two names is not checked to be of one moment.
    TwoMoments,
    /// A frame is waited for though it has become another page.
    StaleWait,
    /// A page is written over where its image lies that is on its way.
    ImageWritten,
    /// An ACL and the mode that shows it are two groups, each of the epoch that it reads for
    /// itself.
    AclApart,
    /// A change of file capabilities is no group (C2').
    CapabilityNotLogged,
}

impl Fault {
    /// The faults that a power loss or a faulty device must show.
    pub const ALL: [Fault; 52] = [
        Fault::FsyncWithoutFlush,
        Fault::CommitWithoutFlush,
        Fault::SlotBeforeTree,
        Fault::SlotNotFlushed,
        Fault::RecoveryWithoutFlush,
        Fault::UncheckedBatch,
        Fault::UncheckedBlock,
        Fault::ChecksumWithoutAddress,
        Fault::DataNotChecked,
        Fault::EpochWithGap,
        Fault::NoEpochFilter,
        Fault::EarlyReuse,
        Fault::DataInLogFreed,
        Fault::HeadsShared,
        Fault::LogReused,
        Fault::CarriesNothing,
        Fault::OldVersionWins,
        Fault::NoClosure,
        Fault::NoParent,
        Fault::NoChildren,
        Fault::MoveInFsync,
        Fault::SplitRename,
        Fault::LinkKept,
        Fault::NamesForgotten,
        Fault::SyncWithoutCommit,
        Fault::SyncForgetsWritten,
        Fault::RenameWithoutContent,
        Fault::ClockAlone,
        Fault::PagesSkipped,
        Fault::TogetherInPart,
        Fault::TogetherUnflushed,
        Fault::SizeAhead,
        Fault::NumberReused,
        Fault::SpaceWithoutEnd,
        Fault::VoidedAmongOthers,
        Fault::WrittenVoided,
        Fault::FlushErrorHidden,
        Fault::WriteErrorHidden,
        Fault::PendingUnseen,
        Fault::RangeMisnamed,
        Fault::RightsAhead,
        Fault::RightsNotLogged,
        Fault::AclApart,
        Fault::CapabilityNotLogged,
        Fault::PackFreed,
        Fault::WrongSlot,
        Fault::EndedUnseen,
        Fault::PathRemembered,
        Fault::NeighbourUnchecked,
        Fault::CopyInPart,
        Fault::ReplacedUnnamed,
        Fault::GoesInUse,
    ];

    /// The faults that only threads in an order of their own show: a matter of schedules, not of
    /// crashes.
    pub const OF_THREADS: [Fault; 4] =
        [Fault::MarkAfterNames, Fault::TwoMoments, Fault::StaleWait, Fault::ImageWritten];
}

std::thread_local! {
    static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
}

/// One more than the number of the fault that is planted for all threads; zero for none. Relaxed:
/// it is written before the threads start that read it.
static EVERYWHERE: AtomicU32 = AtomicU32::new(0);

/// Plants a fault for the calling thread, or takes it out again.
pub fn plant(fault: Option<Fault>) {
    PLANTED.with(|p| p.set(fault));
}

/// Returns the fault that is planted for the calling thread.
pub fn planted_now() -> Option<Fault> {
    PLANTED.with(Cell::get)
}

/// Plants a fault for every thread of the process, or takes it out again.
pub fn plant_everywhere(fault: Option<Fault>) {
    EVERYWHERE.store(fault.map_or(0, |f| f as u32 + 1), Ordering::Relaxed);
}

/// Returns whether this fault is planted: the question that the edits put into the copy.
#[inline]
pub fn planted(fault: Fault) -> bool {
    EVERYWHERE.load(Ordering::Relaxed) == fault as u32 + 1 || planted_now() == Some(fault)
}
