//! Epochs that are committed and not folded: the store has them until a fold, and a checkpoint
//! without one writes them again.

use lanefs_sync::{Canary, planted};
use std::sync::Arc;

/// Bytes up to which neighbouring epochs are written again as one.
const RANGE: usize = 1 << 20;
/// An epoch that is committed, or about to be, and not folded.
pub(crate) struct Pending {
    pub epoch: u64,
    pub previous: u64,
    /// The shares' bytes; who committed the epoch has the same ones.
    pub shares: Vec<Arc<Vec<u8>>>,
    /// Inodes that it makes and a later epoch ended.
    pub cancelled: u64,
}

pub(crate) struct Commits {
    /// The last epoch that was not empty.
    pub previous: u64,
    pub pending: Vec<Pending>,
}

impl Commits {
    pub fn new(folded: u64) -> Commits {
        Commits { previous: folded, pending: Vec::new() }
    }

    /// The epochs behind `folded` as a checkpoint without their fold writes them again: neighbours
    /// that are small as one epoch, which has the number of the last and names what the first one
    /// named. Recovery takes it for all of them (9).
    pub fn ranges(&self, folded: u64) -> Vec<Pending> {
        let size = |p: &Pending| p.shares.iter().map(|s| s.len()).sum::<usize>();
        let mut left = &self.pending[self.pending.partition_point(|p| p.epoch <= folded)..];
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
                        many.iter().flat_map(|p| p.shares.iter()).map(|s| s.as_slice()).collect();
                    vec![Arc::new(parts.concat())]
                }
            };
            let named = if planted(Canary::RangeMisnamed) { last } else { first };
            out.push(Pending { epoch: last.epoch, previous: named.previous, shares, cancelled: 0 });
        }
        out
    }

    /// Takes out what is folded up to an epoch.
    pub fn take_folded(&mut self, folded: u64) -> Vec<Pending> {
        let (kept, done) = self.pending.drain(..).partition(|p| p.epoch > folded);
        self.pending = kept;
        done
    }
}
