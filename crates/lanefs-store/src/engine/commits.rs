//! Epochs that are committed and not folded: the store has them until a fold, and a checkpoint
//! without one writes them again.

use crate::log::Log;
use crate::log::message::Pending;
use crate::log::mlog::Mlog;
use crate::log::segment::SegmentTable;
use crate::log::space::PARTS_OF_BLOCK;
use lanefs_sync::CachePadded;
use lanefs_sync::lock::Mutex;
use smallvec::smallvec;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes up to which neighbouring epochs are written again as one.
const RANGE: usize = 1 << 20;
pub(crate) struct Commits {
    /// The last epoch that was not empty.
    pub previous: u64,
    pub pending: Vec<Pending>,
}

impl Commits {
    pub fn new(folded: u64) -> Commits {
        Commits { previous: folded, pending: Vec::new() }
    }

    /// Returns the epochs behind `folded` as a checkpoint without their fold writes them again:
    /// neighbours that are small as one epoch, which has the number of the last and names what the
    /// first one named. Recovery takes it for all of them (9).
    pub fn ranges(&self, folded: u64) -> Vec<Pending> {
        let size = |p: &Pending| p.shares.iter().flatten().map(|g| g.len()).sum::<usize>();
        let all = &self.pending[self.pending.partition_point(|p| p.epoch <= folded)..];
        let mut left = all;
        let mut out = Vec::new();
        while let Some(first) = left.first() {
            let mut bytes = size(first);
            let more = left[1..].iter().take_while(|p| {
                bytes += size(p);
                bytes <= RANGE
            });
            let (these, rest) = left.split_at(1 + more.count());
            left = rest;
            let last = &these[these.len() - 1];
            let shares = match these {
                [one] => one.shares.clone(),
                // Copied once: a log may hold as many epochs as it has blocks.
                many => {
                    let parts: Vec<&[u8]> =
                        many.iter().flat_map(|p| p.shares.iter().flatten()).map(|g| &g[..]).collect();
                    vec![smallvec![parts.concat().into()]]
                }
            };
            debug_assert!(first.previous < last.epoch, "epoch {} names {}", last.epoch, first.previous);
            out.push(Pending {
                epoch: last.epoch,
                previous: first.previous,
                shares,
                unfolded: Vec::new(),
                cancelled: 0,
            });
        }
        debug_assert!(out.len() <= all.len(), "{} epochs are written as {}", all.len(), out.len());
        debug_assert_eq!(out.iter().map(size).sum::<usize>(), all.iter().map(size).sum(), "bytes of groups");
        debug_assert_eq!(out.last().map(|p| p.epoch), all.last().map(|p| p.epoch), "the last of all");
        out
    }

    /// Takes out what is folded up to an epoch.
    pub fn take_folded(&mut self, folded: u64) -> Vec<Pending> {
        let (kept, done) = self.pending.drain(..).partition(|p| p.epoch > folded);
        self.pending = kept;
        debug_assert!(self.pending.is_sorted_by(|a, b| a.epoch < b.epoch), "epochs out of order");
        debug_assert!(done.iter().all(|p| p.epoch <= folded), "an epoch behind {folded} is not folded");
        self.check_last();
        done
    }

    /// Checks, in debug builds, that the last epoch came behind those before it, and that no later
    /// one is known.
    pub fn check_last(&self) {
        let Some(last) = self.pending.last() else { return };
        debug_assert!(last.epoch <= self.previous, "epoch {} behind the last, {}", last.epoch, self.previous);
        debug_assert!(!last.shares.is_empty(), "epoch {} is empty, and was committed", last.epoch);
        let two = self.pending.last_chunk();
        debug_assert!(two.is_none_or(|[a, b]| a.epoch < b.epoch), "epoch {} out of order", last.epoch);
    }
}

/// The epochs that are committed and not folded, and the space that is kept back for their fold.
pub(crate) struct Unfolded {
    pub commits: CachePadded<Mutex<Commits>>,
    /// The sum of what is cancelled of them. Written under the lock of `commits`, after a commit
    /// and by checkpoints; read without it by every 32nd transaction of a lane. Relaxed: those take
    /// it for an estimate, and between writers the lock orders it.
    pub cancelled: CachePadded<AtomicU64>,
    /// Blocks that the inodes may need which the last checkpoint left to the next fold: to be
    /// folded, or to be carried over once more. Written by checkpoints, read as `cancelled` is.
    /// Relaxed: an estimate.
    pub waiting: CachePadded<AtomicU64>,
}

impl Unfolded {
    /// Returns the state in which nothing is committed behind this epoch.
    pub fn new(folded: u64) -> Unfolded {
        Unfolded {
            commits: CachePadded::new(Mutex::new(Commits::new(folded))),
            cancelled: CachePadded::new(AtomicU64::new(0)),
            waiting: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// Returns whether what waits is more than half of what is always kept back: then a fold gives
    /// space, and no other checkpoint does.
    pub fn waits_long(&self, t: &SegmentTable) -> bool {
        // Relaxed: an estimate.
        let blocks = self.waiting.load(Ordering::Relaxed);
        blocks > u64::from(t.always_kept() / 2) * u64::from(t.geometry.segment_blocks)
    }

    /// Keeps space back for folding what is durable; returns how many segments.
    pub fn reserve_space(&self, log: &Log) -> u32 {
        // Relaxed: both are estimates, and what is cancelled was unfolded before.
        let unfolded: u64 = log.mlogs.iter().map(Mlog::unfolded).sum();
        let parts = unfolded.saturating_sub(self.cancelled.load(Ordering::Relaxed));
        let waiting = self.waiting.load(Ordering::Relaxed);
        log.segments.reserve_for_unfolded(parts.div_ceil(PARTS_OF_BLOCK) * log.metadata_copies() + waiting);
        log.segments.reserved_for_unfolded()
    }

    /// Takes note that inodes of so many parts of blocks that the groups of `epoch` make were ended
    /// by groups of a later epoch: see [`crate::Store::cancel_unfolded`].
    pub fn cancel(&self, log: &Log, epoch: u64, parts: u64) {
        let mut c = self.commits.lock();
        // In the order of their numbers.
        let Ok(at) = c.pending.binary_search_by_key(&epoch, |p| p.epoch) else { return };
        c.pending[at].cancelled += parts;
        // Relaxed, as what it is taken from: an estimate.
        self.cancelled.fetch_add(parts, Ordering::Relaxed);
        drop(c);
        self.reserve_space(log);
    }
}
