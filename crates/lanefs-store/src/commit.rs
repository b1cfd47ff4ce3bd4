//! Epoch commits: the record groups of a sealed epoch, spread over the mlogs, and one flush per device.
//!
//! 1. Each mlog gets at most one message, a *share*; a share names how many there are and the non-empty epoch before.
//! 2. Recovery takes an epoch as committed when all its shares are valid and the epoch they name is committed or
//!    folded. So a crash between two shares, or two epochs, leaves a prefix.
//! 3. An epoch without groups is never written, and nothing names it.
//! 4. A share names, for every mlog, the last batch up to which all were flushed. So the loss of the last batches of one mlog shows when
//!    an epoch was committed since, wherever it lies. A batch of an fsync says so of its own mlog only: fsyncs share nothing.
//! 5. The groups are kept in memory until folded: a checkpoint that folds nothing moves the log's start and has to
//!    carry them over.

use crate::error::{Result, StoreError};
use crate::format::batch::{self, BatchHead, BatchKind};
use crate::io::Write;
use crate::mlog::Mlog;
use crate::store::Store;
use crate::transaction::Placed;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An epoch that is committed, or about to be, and not folded.
pub(crate) struct Pending {
    pub epoch: u64,
    pub previous: u64,
    /// The shares' bytes.
    pub shares: Arc<Vec<Vec<u8>>>,
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
}

impl Store {
    /// See [`Store::commit_epoch`].
    pub(crate) fn run_commit(&self, epoch: u64, parts: Vec<(usize, Vec<u8>)>) -> Result<()> {
        self.check_writable()?;
        let mut shares = vec![Vec::new(); self.mlogs.len()];
        for (lane, bytes) in parts {
            shares[lane % self.mlogs.len()].extend_from_slice(&bytes);
        }
        shares.retain(|s| !s.is_empty());
        if self.segments.free_count() <= self.segments.kept_back() / 2 {
            self.make_room(0, false)?; // Nothing happens if this is the seal of a checkpoint.
        }
        let (flight, placed) = {
            let section = loop {
                let section = self.enter(0);
                if !section.frozen() {
                    break section;
                }
                drop(section);
                self.wait_thaw();
                self.check_writable()?;
            };
            let mut c = self.commits.lock();
            if epoch <= c.previous {
                return Err(StoreError::Invalid(format!("epoch {epoch} committed after {}", c.previous)));
            }
            if shares.is_empty() {
                return Ok(());
            }
            let pending = Pending { epoch, previous: c.previous, shares: Arc::new(shares) };
            let placed = self.place_shares(&pending)?;
            c.previous = epoch;
            c.pending.push(pending);
            (section.leave(), placed)
        };
        let batches: Vec<_> = placed.iter().flat_map(|p| self.encode_placed(p)).collect();
        let reqs: Vec<Write<'_>> =
            batches.iter().map(|(addr, b)| Write { addr: *addr, data: batch::bytes_of(b) }).collect();
        let written = self.io.write(&reqs);
        self.links_answered(&placed);
        drop(flight);
        self.flush_placed(&placed, written?)?;
        // Relaxed: for stamps and reports.
        self.epoch.fetch_max(epoch, Ordering::Relaxed);
        Ok(())
    }

    /// Gives the shares of an epoch their places, one mlog each. Inside a reader section.
    pub(crate) fn place_shares(&self, p: &Pending) -> Result<Vec<Placed>> {
        let n = p.shares.len() as u32;
        let mut start = Vec::new();
        batch::put_share_head(&mut start, &self.mlogs.iter().map(Mlog::acked).collect::<Vec<_>>());
        let mut placed = Vec::with_capacity(p.shares.len());
        for (i, bytes) in p.shares.iter().enumerate() {
            let head = BatchHead {
                kind: BatchKind::Commit,
                id: 0,
                epoch: p.epoch,
                previous: p.previous,
                part: 0,
                parts: 1,
                share: i as u32,
                shares: n,
                prior: 0,
                acked: 0,
                slot: 0,
            };
            match self.place(i % self.mlogs.len(), head, [&start[..], bytes].concat(), 0, true) {
                Ok(x) => placed.push(x),
                Err((e, _)) => {
                    // Links taken along must not stay out: nobody else would write them. The log is stuck.
                    self.links_answered(&placed);
                    self.io.fail(&e);
                    return Err(e);
                }
            }
        }
        Ok(placed)
    }
}
