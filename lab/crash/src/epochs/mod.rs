//! The epoch-lane protocol of docs/DESIGN.md as one whole, explored state by state.
//!
//! # What is modelled
//!
//! Two or three threads with a lane each run programs of create, mkdir, link, unlink, rmdir and
//! rename over three directories (and those they make); a sealer seals epochs, a committer writes
//! and flushes parts, threads call fsync. Every step of the protocol is one atomic transition; all
//! interleavings are explored breadth first, so a counterexample is a shortest one. Every state is
//! also crashed, with every subset of written but not flushed parts and batches surviving.
//!
//! Not modelled: memory ordering (loom's job in lanefs-sync), data, the device.
//!
//! # The steps
//!
//! ```text
//! operation   Lane: lock the own lane's log.  Keys: lock the keys it writes, in order (rmdir: the keys of the directory too).
//!             Note: the sequence of a key it only reads.  Mask: set the lane's bit in keys and inodes.  Epoch: e = EPOCH.
//!             Stamp: ts.  Validate: what was only read has not moved, else retry.  Apply: memory, one group to the buffer of e,
//!             last_ts.  Free: unlock keys and lane
//! seal        Bump: EPOCH = e+1.  Take: for each lane, when its log is free, its buffer of e
//! commit      write the parts; flush them; known once all before are
//! fsync       Scan: of each lane in the masks of what was found, when its log is free, the pending groups of the closure; again until a
//!             pass adds nothing.  Write.  Flush.  Answer: only now are the groups released
//! ```
//!
//! # What must hold after a crash, in every state (the numbers of docs/SEMANTICS.md)
//!
//! - C1: what recovery makes of the surviving records is the replay of a set D of groups in
//!   linearization order.
//! - C2: D is closed. C3: D holds what was acknowledged.
//! - C5: entries name inodes that were made, directories have one name and are reachable, removed
//!   ones are empty; the link counts that follow from the records (O8) equal the names.
//! - And in operation: no group is appended to an epoch that was already taken (O2).
//!
//! [`Fault`] lists what the exploration must catch when it is planted.

mod crash;
mod explore;
pub mod programs;
mod step;

pub use explore::{Exploration, explore, hunt};

/// A key: directory index times two plus name.
pub type Key = u8;
/// An inode; 0 is none.
pub type Ino = u8;

/// Keys of the model.
pub const KEYS: usize = 10;
/// Inodes of the model.
pub const INODES: usize = 16;
/// The directory of each pair of keys: the root, two that exist, and the first inode of threads 0
/// and 1.
pub const DIRS: [Ino; 5] = [1, 2, 3, 6, 9];
/// The inode the `op`-th operation of a thread makes.
pub const fn made_by(thread: u8, op: u8) -> Ino {
    6 + thread * 3 + op
}
/// The directory a key is in.
pub const fn dir_of(key: Key) -> Ino {
    DIRS[key as usize / 2]
}
/// The keys of a directory.
pub fn keys_of(dir: Ino) -> impl Iterator<Item = Key> {
    (0..KEYS as Key).filter(move |k| dir_of(*k) == dir)
}

/// An operation of a program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Makes a file; replaces a file that is there (as creating elsewhere and renaming over it
    /// would).
    Create(Key),
    /// Makes a directory where nothing is.
    Mkdir(Key),
    /// Removes a file's name.
    Unlink(Key),
    /// Removes an empty directory.
    Rmdir(Key),
    /// Moves a file or a directory, over a file or an empty directory.
    Rename(Key, Key),
    /// Gives a file a second name; the first is only read.
    Link(Key, Key),
}

/// A step of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// Lock the own lane's log.
    Lane,
    /// Lock the keys; before them the move lock, if a directory may change its parent.
    Keys,
    /// Note the sequence of what is only read.
    Note,
    /// Set the lane's bit in the masks.
    Mask,
    /// Read EPOCH.
    Epoch,
    /// Choose the timestamp.
    Stamp,
    /// Check what was only read.
    Validate,
    /// Change memory and append the group.
    Apply,
    /// Unlock all.
    Free,
    /// Only in mistakes: unlock the lane before the group is appended.
    EarlyFree,
}

/// The order of docs/DESIGN.md.
pub const STEPS: &[Step] = &[
    Step::Lane,
    Step::Keys,
    Step::Note,
    Step::Mask,
    Step::Epoch,
    Step::Stamp,
    Step::Validate,
    Step::Apply,
    Step::Free,
];

/// A fault of the protocol that is made on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing is wrong.
    None,
    /// M1: the epoch is read before the keys are locked.
    EpochBeforeLocks,
    /// M2: what was only read is checked before the epoch is read.
    ValidateBeforeEpoch,
    /// M3: a lane's groups stop being pending when they are taken by a seal.
    DroppedAtSeal,
    /// M4: the lane is locked only for the append.
    LaneLockedLate,
    /// M5: an fsync writes only the groups that name its inode.
    NoClosure,
    /// M6: the closure does not follow the inode that a group removes a name of.
    NoRemovedInode,
    /// M7: recovery applies the groups of fsyncs after all epochs.
    BatchesLast,
    /// M8: recovery drops a whole batch if one of its groups is committed.
    BatchDropped,
    /// M9: recovery does not filter batches by epoch, although epoch parts are absorbed.
    NoEpochFilter,
    /// M10: create and remove are absorbed in a batch.
    AbsorbedInBatch,
    /// M11: groups are released when their own epoch is flushed, not when all before are.
    ReleasedOutOfOrder,
    /// M12: the next seal starts before all buffers are taken.
    SealTooEarly,
    /// M13: the timestamp ignores the keys' last ones.
    NoTimestampFloor,
    /// M14: an fsync leaves out what another has in flight.
    SkipsInFlight,
    /// M15: the lane's log is unlocked before the append.
    UnlockedBeforeAppend,
    /// M16: the masks are set after the group was appended and the lane unlocked.
    MaskTooLate,
    /// M17: the closure takes only groups of an earlier version.
    OnlyEarlier,
    /// M18: O5 is left out: the group that made an entry's directory is not pulled.
    NoNewOfParent,
    /// M19: O6 is left out: removing a directory does not pull what happened in it.
    NoRmdirRule,
    /// M20: a directory's move to another parent is written by an fsync.
    MovesNotEscalated,
    /// M21: rmdir does not lock the keys of the directory.
    RmdirLocksNothingInside,
    /// M23: directories move to other parents without the move lock.
    NoMoveLock,
    /// M22: an fsync is answered before its flush.
    AnsweredBeforeFlush,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 23] = [
        Fault::EpochBeforeLocks,
        Fault::ValidateBeforeEpoch,
        Fault::DroppedAtSeal,
        Fault::LaneLockedLate,
        Fault::NoClosure,
        Fault::NoRemovedInode,
        Fault::BatchesLast,
        Fault::BatchDropped,
        Fault::NoEpochFilter,
        Fault::AbsorbedInBatch,
        Fault::ReleasedOutOfOrder,
        Fault::SealTooEarly,
        Fault::NoTimestampFloor,
        Fault::SkipsInFlight,
        Fault::UnlockedBeforeAppend,
        Fault::MaskTooLate,
        Fault::OnlyEarlier,
        Fault::NoNewOfParent,
        Fault::NoRmdirRule,
        Fault::MovesNotEscalated,
        Fault::RmdirLocksNothingInside,
        Fault::NoMoveLock,
        Fault::AnsweredBeforeFlush,
    ];

    /// The order of steps.
    fn steps(self) -> &'static [Step] {
        use Step::*;
        match self {
            Fault::EpochBeforeLocks => &[Lane, Epoch, Keys, Note, Mask, Stamp, Validate, Apply, Free],
            Fault::ValidateBeforeEpoch => &[Lane, Keys, Note, Mask, Validate, Epoch, Stamp, Apply, Free],
            Fault::LaneLockedLate => &[Keys, Note, Mask, Epoch, Stamp, Validate, Lane, Apply, Free],
            Fault::UnlockedBeforeAppend => {
                &[Lane, Keys, Note, Mask, Epoch, Stamp, Validate, EarlyFree, Apply, Free]
            }
            Fault::MaskTooLate => &[Lane, Keys, Note, Epoch, Stamp, Validate, Apply, EarlyFree, Mask, Free],
            _ => STEPS,
        }
    }
}

/// The operations that run, and the state in which they begin.
#[derive(Clone, Debug)]
pub struct Program {
    /// The operations of each thread.
    pub threads: Vec<Vec<Op>>,
    /// The inodes that are fsynced, each by a thread of its own, at any moment.
    pub fsyncs: Vec<Ino>,
    /// The number of times that an epoch is sealed.
    pub seals: u8,
    /// The time that each lane's clock always shows: clocks that differ and stand still are the
    /// worst.
    pub clocks: [u8; 3],
    /// The inodes that the keys name at first.
    pub base: [Ino; KEYS],
    /// Name the steps (slow; for the way to a counterexample).
    pub named: bool,
}

impl Program {
    /// Returns whether an inode is a directory: made by mkdir, or one of the first three.
    pub(crate) fn is_dir(&self, ino: Ino) -> bool {
        let made = |(t, p): (usize, &Vec<Op>)| {
            let at = |(i, o): (usize, &Op)| matches!(o, Op::Mkdir(_)) && made_by(t as u8, i as u8) == ino;
            p.iter().enumerate().any(at)
        };
        (1..=3).contains(&ino) || self.threads.iter().enumerate().any(made)
    }
}

/// A directory entry in memory.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Entry {
    /// The thread that holds its lock, plus one.
    owner: u8,
    seq: u8,
    ino: Ino,
    last_ts: u8,
    mask: u8,
}

/// A thread in the middle of an operation.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Thread {
    op: u8,
    step: u8,
    /// Keys locked so far.
    locked: u8,
    epoch: u8,
    ts: u8,
    noted: (u8, Ino),
    group: u8,
    /// Groups that had returned when the operation was called.
    before: Set,
}

/// A lane.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Lane {
    locked: bool,
    last: u8,
    /// Groups by parity of their epoch.
    buffers: [Vec<u8>; 2],
    /// Groups not known to be durable.
    pending: Vec<u8>,
}

/// All effects of one operation. Their order in the state is the linearization order.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Group {
    lane: u8,
    epoch: u8,
    ts: u8,
    /// (key, inode after, inode before).
    effects: Vec<(Key, Ino, Ino)>,
    new: Ino,
    /// A directory it removes or replaces.
    removed: Ino,
    /// A directory changed its parent.
    moved: bool,
    before: Set,
    appended: bool,
    returned: bool,
}

impl Group {
    fn version(&self) -> (u8, u8, u8) {
        (self.epoch, self.ts, self.lane)
    }
    fn names(&self, ino: Ino) -> bool {
        ino != 0 && (self.new == ino || self.effects.iter().any(|e| e.1 == ino || e.2 == ino))
    }
    fn in_dir(&self, dir: Ino) -> bool {
        self.effects.iter().any(|e| dir_of(e.0) == dir)
    }
}

/// A set of groups.
pub(crate) type Set = u16;

/// The sealer: 0 idle, 1 taking.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Sealer {
    taking: bool,
    lane: u8,
    epoch: u8,
    done: u8,
}

/// An epoch that was taken.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Part {
    set: Set,
    /// 0 being taken, 1 taken, 2 written, 3 flushed.
    status: u8,
}

/// A thread that fsyncs.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Fsync {
    /// 0 before, 1 scanning, 2 to write, 3 to flush, 4 to answer, 5 done, 6 waiting for an epoch.
    stage: u8,
    must: Set,
    set: Set,
    lane: u8,
    grew: bool,
    batch: u8,
    wait: u8,
}

/// The batch that an fsync wrote.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Batch {
    set: Set,
    /// 1 written, 2 flushed.
    status: u8,
    must: Set,
    answered: bool,
}

/// All of it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct State {
    epoch: u8,
    entries: [Entry; KEYS],
    masks: [u8; INODES],
    /// The thread that moves a directory to another parent, plus one (O7: one move lock).
    mover: u8,
    threads: Vec<Thread>,
    lanes: Vec<Lane>,
    groups: Vec<Group>,
    sealer: Sealer,
    parts: Vec<Part>,
    known: u8,
    fsyncs: Vec<Fsync>,
    batches: Vec<Batch>,
}
