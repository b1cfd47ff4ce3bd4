//! The epochs that are sealed, or committed and not folded: between the lanes' logs and the store.

use lanefs_format::Ino;
use lanefs_store::{EpochWritten, Groups};
use std::collections::VecDeque;
use std::time::Instant;

/// Committed groups that wait for the fold.
#[derive(Default)]
pub(crate) struct Backlog {
    /// In the order of their epochs. They stay until a checkpoint is done that folded them: one
    /// that fails forgets what it was given.
    pub groups: Vec<Committed>,
    /// The bytes of these groups.
    pub bytes: usize,
    /// Directories that lost names in epochs that are sealed, since the last checkpoint, and how
    /// many; some more than once.
    pub thinned: Vec<(Ino, u64)>,
    /// When the last commit was.
    pub last: Option<Instant>,
    /// Sealed, and without places for lack of space in the log.
    pub sealed: Option<Unfinished>,
    /// Epochs that have their places and are not committed, in the order of their numbers.
    pub in_flight: VecDeque<InFlight>,
    /// A write or a flush of one of them failed: none of them is ever committed.
    pub failed: bool,
    /// The last epoch that a checkpoint was handed, whatever became of it: what was promised up to
    /// there is needed until one is done.
    pub handed: u64,
}

impl Backlog {
    /// Takes up to `n` blocks out of what epoch `born` promised and returns how many it took;
    /// `None` if a checkpoint was handed that epoch, or folded it. A lane promises whole blocks, so
    /// the last inodes of an epoch may have theirs from the one before.
    pub fn unpromise(&mut self, born: u64, n: u64, folded: u64) -> Option<u64> {
        debug_assert!(born > 0, "epoch 0 is folded: what it made had its block");
        self.check_invariants();
        let epoch = |c: &Committed| c.epoch;
        let at =
            self.groups.binary_search_by_key(&born, epoch).ok().filter(|_| born > self.handed.max(folded));
        let c = at.and_then(|i| self.groups.get_mut(i))?;
        let n = n.min(c.promised);
        c.promised -= n;
        Some(n)
    }

    /// Adds an epoch that is committed now, unless there is nothing of it to be folded or given
    /// back.
    pub fn add_committed(&mut self, done: Committed) {
        if !done.groups.is_empty() || done.promised > 0 {
            self.bytes += done.bytes();
            self.groups.push(done);
        }
        self.check_invariants();
    }

    /// Takes out what a checkpoint has folded, which was handed all up to `epoch`.
    pub fn take_folded(&mut self, epoch: u64) -> Vec<Committed> {
        debug_assert!(epoch <= self.handed, "epoch {epoch} was folded without being handed over");
        let n = self.groups.partition_point(|c| c.epoch <= epoch);
        let folded: Vec<_> = self.groups.drain(..n).collect();
        self.bytes -= folded.iter().map(Committed::bytes).sum::<usize>();
        debug_assert_eq!(self.bytes, self.groups.iter().map(Committed::bytes).sum::<usize>());
        debug_assert!(self.groups.iter().all(|c| c.epoch > epoch), "the epochs are not in order");
        self.check_invariants();
        folded
    }

    /// Returns the last epoch that waits for the fold, is in flight, or has no places.
    fn last_epoch(&self) -> u64 {
        let waits = self.groups.last().map_or(0, |c| c.epoch);
        let flies = self.in_flight.back().map_or(0, |f| f.epoch);
        let sealed = self.sealed.as_ref().map_or(0, |s| s.epoch);
        waits.max(flies).max(sealed)
    }

    /// Checks that a new epoch comes behind all that is here.
    pub fn check_next(&self, epoch: u64) {
        debug_assert!(epoch > self.last_epoch(), "epoch {epoch} was sealed after {}", self.last_epoch());
        debug_assert!(epoch > self.handed, "a checkpoint was handed epoch {} before", self.handed);
        debug_assert!(self.sealed.is_none(), "an epoch that found no space goes first");
    }

    /// Checks what holds whenever the lock is free, as far as the ends of the lists show it.
    pub fn check_invariants(&self) {
        if let [.., a, b] = &*self.groups {
            debug_assert!(a.epoch < b.epoch, "epoch {} was committed after {}", b.epoch, a.epoch);
        }
        debug_assert!(!self.groups.is_empty() || self.bytes == 0, "bytes of nothing");
        debug_assert!(self.groups.last().is_none_or(|c| c.bytes() <= self.bytes), "bytes are not counted");
        let (first, last) = (self.in_flight.front(), self.in_flight.back());
        if let (Some(committed), Some(first)) = (self.groups.last(), first) {
            debug_assert!(committed.epoch < first.epoch, "an epoch in flight lies before a committed one");
        }
        if let (Some(last), Some(sealed)) = (last, &self.sealed) {
            debug_assert!(last.epoch < sealed.epoch, "an epoch has its places before an earlier one");
        }
        if let (Some(first), Some(last)) = (first, last) {
            let numbers = last.epoch - first.epoch + 1;
            debug_assert!(self.in_flight.len() as u64 <= numbers, "an epoch is twice in flight");
        }
        debug_assert!(first.is_none_or(|f| f.flushed || f.written.is_none()), "written, and not flushed");
    }
}

/// A committed epoch that waits for the fold.
pub(crate) struct Committed {
    pub epoch: u64,
    /// Encoded; the store has the same ones.
    pub groups: Vec<Groups>,
    /// Blocks that were reserved for the operations behind them (`core::space`): the fold charges
    /// what it writes.
    pub promised: u64,
}

impl Committed {
    /// Returns the bytes of its groups.
    pub fn bytes(&self) -> usize {
        self.groups.iter().map(|g| g.len()).sum()
    }
}

/// An epoch that has its places.
pub(crate) struct InFlight {
    pub epoch: u64,
    pub groups: Vec<Groups>,
    pub promised: u64,
    /// It is on the media, or there is nothing of it to be written.
    pub flushed: bool,
    pub written: Option<EpochWritten>,
}

/// A sealed epoch on its way to the store.
pub(crate) struct Unfinished {
    pub epoch: u64,
    /// Encoded; absorbed, or as the lanes had them.
    pub groups: Vec<Groups>,
    pub promised: u64,
}

impl Unfinished {
    /// Returns the bytes of its groups.
    pub fn bytes(&self) -> usize {
        self.groups.iter().map(|g| g.len()).sum()
    }
}
