//! Epoch commits: the record groups of a sealed epoch, spread over the mlogs, and one flush per
//! device.
//!
//! 1. Each mlog gets at most one message, a *share*; a share names how many there are and the
//!    non-empty epoch before.
//! 2. Recovery takes an epoch as committed when all its shares are valid and the epoch they name is
//!    committed or folded. So a crash between two shares, or two epochs, leaves a prefix.
//! 3. An epoch without groups is never written, and nothing names it. One whose groups come to
//!    nothing is written, as a group without effects (`plan::absorb`): an fsync may have logged a
//!    part of it, which recovery would apply for want of the whole.
//! 4. A share names, for every mlog, the last batch up to which all were flushed. So the loss of
//!    the last batches of one mlog shows when an epoch was committed since, wherever it lies. A
//!    batch of an fsync names that of its own mlog only: fsyncs share nothing.
//! 5. What is committed can be folded: the inodes that durable groups make are counted
//!    (`Mlog::unfolded`), segments for them are kept back from data
//!    (`SegmentTable::reserve_for_unfolded`), and cleaned before the commit if there are too few
//!    (10). Recovery has no other space than what is free in whole segments, and cannot clean: the
//!    blocks it needs were promised by `reserve`, but blocks may be free one by one. What the fold
//!    writes beside inodes comes out of what is always kept back. Inodes that a later epoch ended
//!    are counted off ([`crate::Store::cancel_unfolded`]): whoever folds the one epoch folds the
//!    other.
//! 6. The groups are kept in memory until folded: a checkpoint that folds nothing moves the log's
//!    start and has to carry them over.
//! 7. All shares get their places or none does. An epoch that finds no space has left nothing
//!    behind: it can be committed again, and must be before any other.
//! 8. Several epochs may be under way: they get their places in the order of their numbers
//!    ([`crate::Store::begin_epoch`]) and are written and flushed at the same time. One is
//!    *published* when it and all before it are flushed ([`crate::Store::publish_epoch`]), and no
//!    sooner do its shares count as durable in their mlogs: else the loss of an epoch that nobody
//!    was promised would look like the loss of one that was.
//! 9. A checkpoint that writes epochs again writes small neighbours as one (`Commits::ranges`),
//!    which names the epoch before the first. Some of them may stand behind P as well, each by
//!    itself. Recovery goes by what an epoch names, not by its number, and a group that it meets
//!    twice counts once.
//! 10. A commit does not free space and waits for no checkpoint: its caller holds what the seal of
//!     a checkpoint takes. Space is asked for before that ([`crate::Store::free_space_for_epoch`]),
//!     by the size of the epoch.

use crate::api::Transaction;
use crate::engine::Engine;
use crate::engine::begun::Begun;
use crate::engine::pressure::Need;
use crate::error::{Result, StoreError};
use crate::groups::{Groups, Share};
use crate::log::message::{Pending, Placed};
use lanefs_format::batch;
use lanefs_format::record::groups_above;
use lanefs_sync::parallel;
use std::sync::atomic::Ordering;

/// Bytes of groups for each inode that they make, at the least: NEW and the SET of its first name.
const BYTES_A_BIRTH: u64 = 96;

/// Returns how many bytes of an epoch make its shares worth several threads.
fn shared_from() -> usize {
    if cfg!(test) { 1 << 10 } else { parallel::share_from(1 << 20, 1 << 6) }
}

/// An epoch that has its places and is being written, with the transaction that goes with it.
/// Others may be begun meanwhile.
#[must_use = "an epoch that has its places has to be written: those behind it count only with it"]
pub struct EpochWrite<'s> {
    begun: Begun<'s>,
    epoch: u64,
    shares: Vec<Share>,
}

/// An epoch that is on the media, and counts when all before it are.
#[must_use = "it has to be published"]
#[derive(Debug)]
pub struct EpochWritten {
    epoch: u64,
    /// The mlog and the last place of each share.
    shares: Vec<(usize, u64)>,
}

impl std::fmt::Debug for EpochWrite<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EpochWrite").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl EpochWrite<'_> {
    /// Returns its groups, as the store keeps them until they are folded: who keeps these, too,
    /// needs no copy.
    pub fn groups(&self) -> Vec<Groups> {
        self.shares.iter().flatten().cloned().collect()
    }

    /// Writes and flushes it. Returns the results of the transaction that goes with it and of the
    /// epoch.
    pub fn finish(self) -> (Result<()>, Result<EpochWritten>) {
        let (transaction, shares) = self.begun.finish();
        debug_assert!(
            shares.as_ref().map_or(true, |s| s.len() == self.shares.len()),
            "epoch {} has {} shares",
            self.epoch,
            self.shares.len()
        );
        (transaction, shares.map(|shares| EpochWritten { epoch: self.epoch, shares }))
    }
}

impl Engine {
    /// Commits an epoch: see [`crate::Store::commit_epoch`].
    pub fn commit_epoch(&self, epoch: u64, parts: Vec<(usize, Vec<u8>)>) -> Result<()> {
        let parts: Vec<(usize, Groups)> = parts.into_iter().map(|p| (p.0, p.1.into())).collect();
        if let Some(write) = self.begin_epoch(epoch, &parts, None)? {
            self.publish_epoch(write.finish().1?);
        }
        Ok(())
    }

    /// Gives an epoch its places, and with it a transaction, whose groups are empty: see
    /// [`crate::Store::begin_epoch`].
    pub fn begin_epoch(
        &self,
        epoch: u64,
        parts: &[(usize, Groups)],
        with: Option<&mut Transaction>,
    ) -> Result<Option<EpochWrite<'_>>> {
        self.log.check_writable()?;
        let mlogs = self.log.mlogs.len();
        let bytes: usize = parts.iter().map(|p| p.1.len()).sum();
        let share_of = |m: usize| {
            let its = parts.iter().filter(|p| p.0 % mlogs == m).map(|p| &p.1);
            let parts_of_blocks = its.clone().map(|g| self.log.mlogs[m].parts_of(g)).sum();
            (parts_of_blocks, Groups::gathered(its))
        };
        let has_groups = |share: &(u64, Share)| !share.1.is_empty();
        let (unfolded, shares) = match bytes < shared_from() {
            true => (0..mlogs).map(share_of).filter(has_groups).unzip(),
            false => {
                let all = parallel::map_with(self.log.threads(), (0..mlogs).collect(), share_of);
                all.into_iter().filter(has_groups).unzip()
            }
        };
        // Relaxed commits are one at a time; ordered ones hold their caller's lock: nobody else
        // changes it meanwhile.
        let previous = self.unfolded.commits.lock().previous;
        if epoch <= previous {
            return Err(StoreError::Invalid(format!("epoch {epoch} committed after {previous}")));
        }
        let pending = Pending { epoch, previous, shares, unfolded, cancelled: 0 };
        let mut none = Transaction::default();
        let tx = with.unwrap_or(&mut none);
        if pending.shares.is_empty() {
            return Ok(None);
        }
        let begun = self.begin_transaction(tx, Some(&pending))?;
        debug_assert_eq!(begun.shares.len(), pending.shares.len(), "all shares have places, or none (7)");
        Ok(Some(EpochWrite { begun, epoch, shares: pending.shares }))
    }

    /// Writes a mark into each log to which nothing was added since the last call: see
    /// [`crate::Store::mark_quiet_logs`].
    pub fn mark_quiet_logs(&self) -> Result<()> {
        self.log.check_writable()?;
        let quiet: Vec<usize> = self.log.mlogs.iter().filter(|m| m.wants_mark()).map(|m| m.id).collect();
        self.put_marks(&quiet, false)
    }

    /// Writes a mark into each of these logs. Where space is short there is none for one, unless it
    /// is `urgent`: then that is an error.
    pub(crate) fn put_marks(&self, logs: &[usize], urgent: bool) -> Result<()> {
        if logs.is_empty() {
            return Ok(());
        }
        let mut placed: Vec<Placed> = Vec::new();
        let mut refused = Ok(());
        let flight = {
            let section = self.log.sections.enter(0);
            section.check()?;
            for &id in logs {
                let mut bytes = Vec::new();
                batch::put_message_head(&mut bytes, &[], 0);
                let p = match self.log.place(id, self.log.fsync_head(), bytes, 0, urgent) {
                    Ok(p) => p,
                    Err(e) if urgent => {
                        refused = Err(e);
                        break;
                    }
                    Err(_) => continue,
                };
                debug_assert_eq!(p.places.len(), 1, "a mark is a message of one batch");
                self.log.mlogs[id].marked(p.last_place());
                placed.push(p);
            }
            section.leave()
        };
        let (tickets, writes, shares) = Default::default();
        let begun =
            Begun { log: &self.log, durable: true, tickets, writes, placed, shares, no_space: None, flight };
        begun.finish().0.and(refused)
    }

    /// Gives the shares of an epoch their places, from the mlog `first` on, and notes it as
    /// committed but not folded. Inside a reader section.
    pub(crate) fn place_epoch(&self, p: &Pending, first: usize) -> Result<Vec<Placed>> {
        debug_assert!(!p.shares.is_empty(), "epoch {} is empty: nobody names it (3)", p.epoch);
        debug_assert!(p.previous < p.epoch, "epoch {} names {}", p.epoch, p.previous);
        let mut c = self.unfolded.commits.lock();
        debug_assert!(
            p.previous <= c.previous,
            "epoch {} names {}, which is not committed",
            p.epoch,
            p.previous
        );
        let placed = self.log.place_shares(p, first)?;
        debug_assert_eq!(placed.len(), p.shares.len(), "each share has its places (7)");
        debug_assert!(placed.is_sorted_by(|a, b| a.mlog < b.mlog), "two shares in one log (1)");
        debug_assert_eq!(p.unfolded.len(), p.shares.len(), "the inodes of each share are counted");
        self.log.mlogs.iter().zip(&p.unfolded).for_each(|(l, parts)| l.add_unfolded(*parts));
        c.previous = p.epoch;
        c.pending.push(Pending {
            epoch: p.epoch,
            previous: p.previous,
            shares: p.shares.clone(),
            unfolded: p.unfolded.clone(),
            cancelled: 0,
        });
        c.check_last();
        drop(c);
        self.unfolded.reserve_space(&self.log);
        Ok(placed)
    }

    /// Notes that an epoch is durable, and so are all before it.
    pub fn publish_epoch(&self, written: EpochWritten) {
        let EpochWritten { epoch, shares } = written;
        debug_assert!(!shares.is_empty(), "epoch {epoch} is empty: it was never begun (3)");
        shares.iter().for_each(|(mlog, place)| self.log.mlogs[*mlog].made_durable(*place));
        // The epoch has the groups that fsyncs logged of it; kept twice they would count twice.
        self.log.mlogs.iter().for_each(|l| l.prune_groups(|g| groups_above(g, epoch)));
        // Relaxed: for stamps and reports.
        self.log.epoch.fetch_max(epoch, Ordering::Relaxed);
    }

    /// Frees space for the commit of an epoch of about so many bytes, if there is little: see
    /// [`crate::Store::free_space_for_epoch`].
    pub fn free_space_for_epoch(&self, bytes: u64, hard: bool) -> Result<()> {
        self.log.check_writable()?;
        let size = u64::from(self.log.segments.geometry.segment_blocks);
        let segments = self.log.segments_for(bytes);
        // What is to be folded counts too, and what this epoch brings: an inode for so many bytes
        // of it at the most (5).
        let unfolded = self.unfolded.reserve_space(&self.log);
        let brings = bytes / BYTES_A_BIRTH / size;
        // Commits may use half of what is kept back beside that; the rest is for the checkpoint
        // that frees space again.
        let kept = u64::from(self.log.segments.reserved_segments().saturating_sub(unfolded) / 2);
        if hard || u64::from(self.log.segments.free_count()) <= kept + u64::from(unfolded) + brings + segments
        {
            if !hard && self.unfolded.waits_long(&self.log.segments) {
                return Err(StoreError::NoSpace);
            }
            let need = Need::Segments((brings + segments) * size);
            self.free_space(need, hard || unfolded > 0 || brings > 0)?;
        }
        Ok(())
    }
}
