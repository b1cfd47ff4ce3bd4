//! Pressure: segments running out, log to recover, memory held; and how the store frees space when
//! it is short.

use crate::api::{InodeUpdate, Pressure};
use crate::engine::Engine;
use crate::engine::maintenance::Maintenance;
use crate::error::{Result, StoreError};
use crate::log::mlog::Mlog;
use lanefs_format::map_node::{FANOUT_BITS, MAX_HEIGHT};
use lanefs_format::summary::SUMMARY_SPAN;
use std::sync::atomic::Ordering;

/// Pages or inodes of a transaction before which it is looked whether too much is dirty.
const MANY: u64 = 16;
/// Blocks of a checkpoint that is tried with any reserve.
const SMALL: u64 = 32;

/// What somebody found no space for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Need {
    /// So many blocks of users' data, which slack does for as well.
    Data(u64),
    /// So many blocks of batches, or of what a fold writes: of segments.
    Segments(u64),
}

/// Returns the nodes that pages of an inode make dirty, at most: those of the two lowest levels of
/// its map, and a few above.
fn nodes_for(u: &InodeUpdate) -> u64 {
    let nodes_at = |bits: u32| {
        let changes = u.pages.windows(2).filter(|w| w[0].0 >> bits != w[1].0 >> bits);
        1 + changes.count() as u64
    };
    let nodes = match u.pages.len() {
        0 => 0,
        _ => nodes_at(FANOUT_BITS) + nodes_at(2 * FANOUT_BITS),
    };
    debug_assert!(nodes <= 2 * u.pages.len() as u64, "{nodes} nodes for {} pages", u.pages.len());
    nodes
}

impl Engine {
    /// Returns what a background thread acts on.
    pub fn pressure(&self) -> Pressure {
        self.pressure_of(self.log.segments.pending_free().into())
    }

    /// Returns the same where it is known how many segments the next checkpoint will free.
    pub(crate) fn pressure_of(&self, pending_segments: u64) -> Pressure {
        let blocks: u64 = self.log.mlogs.iter().map(Mlog::appended).sum();
        let free = u64::from(self.log.segments.free_count());
        let kept = u64::from(self.log.segments.reserved_segments());
        // What is unfolded goes with the next fold: twice of it would have the cleaner work for
        // nothing.
        let low_water = kept * 2 - u64::from(self.log.segments.reserved_for_unfolded()).min(kept);
        let slack = &self.log.segments.slack;
        // Data has slack, or makes some. What lives is moved for the sake of nodes alone, and where
        // there is a list worth a checkpoint not before too few are free for who takes from it.
        let few = match u64::from(slack.kept()) {
            0 => kept,
            n => u64::from(self.log.segments.least_for_slack()) + n.div_ceil(2),
        };
        let few = low_water.min(few);
        let (checkpoint_below, clean_below, clean_to) = if slack.gives_way() {
            (low_water, low_water, 2 * low_water)
        } else if slack.is_on() {
            (few, few, few)
        } else {
            // The next checkpoint lists slack: to move what lives before it would be for nothing.
            (low_water, few, few)
        };
        debug_assert!(clean_below <= checkpoint_below && checkpoint_below <= low_water, "{few} are few");
        Pressure {
            log_bytes: blocks << lanefs_format::BLOCK_SHIFT,
            free_segments: free,
            pending_segments,
            segments: u64::from(self.log.segments.usable()),
            low_water,
            checkpoint_below,
            clean_below,
            clean_to,
            urgent: free <= kept || self.metadata_pressure(),
        }
    }

    /// Returns whether what a checkpoint writes finds space in the reserve of a host that is short:
    /// else it would wait for the host in the middle, and the removals behind it as well. `ends`:
    /// blocks of inodes whose end it folds, of which it writes nothing. An estimate.
    pub fn fits_reserve(&self, ends: u64) -> bool {
        // Each kind of block claims a segment of its own.
        let blocks = self.log.io.reserve_blocks() / 2;
        self.checkpoint_blocks(ends) <= blocks.max(SMALL)
    }

    /// Returns how many blocks a checkpoint would write now, behind so many `ends`. An estimate.
    pub(crate) fn checkpoint_blocks(&self, ends: u64) -> u64 {
        let t = &self.log.segments;
        let summaries: u64 = self.log.mlogs.iter().map(|l| l.summaries_to_write(t)).sum();
        let span = u64::from(t.geometry.segment_blocks).min(SUMMARY_SPAN as u64);
        let inodes = self.inodes.cache.dirty() as u64 * self.log.metadata_copies();
        debug_assert!(span > 0, "a segment without a block");
        summaries.saturating_sub(ends / span) + inodes
    }

    /// Returns whether so many inodes and nodes of their maps are dirty that a checkpoint may
    /// outgrow what is free for it.
    pub(crate) fn metadata_pressure(&self) -> bool {
        self.metadata_pressure_with(0, 0)
    }

    /// Returns the same for what a caller is about to do: it takes so many blocks, and makes so
    /// many nodes dirty.
    fn metadata_pressure_with(&self, blocks: u64, nodes: u64) -> bool {
        let free = self.log.free_segment_blocks();
        let copies = self.log.metadata_copies();
        let each = 8 * copies;
        // Twice: before these are written others make nodes dirty, and take segments.
        let nodes = self.log.space.blocks_of_dirty_nodes() + nodes * copies;
        let more = if nodes > 0 { 2 * nodes + blocks } else { 0 };
        if each * self.inodes.cache.dirty_at_most() as u64 + more <= free {
            return false;
        }
        // Relaxed: what the store's own checkpoint could not write out does not count again.
        let dirty = self.inodes.cache.dirty().saturating_sub(self.dirty_floor.load(Ordering::Relaxed));
        each * dirty as u64 + more > free
    }

    /// Returns whether inodes wait for the fold of their NEW, which a checkpoint of the store's own
    /// carries along.
    pub(crate) fn waits_for_fold(&self) -> bool {
        self.dirty_floor.load(Ordering::Relaxed) > 0 // Relaxed: as in `metadata_pressure`.
    }

    /// Looks at that now and then, and makes a checkpoint: see [`crate::Store::watch_metadata`].
    pub fn watch_metadata(&self, lane: usize) -> Result<()> {
        self.watch_metadata_for(lane, &[])
    }

    /// Does the same for who is about to write these inodes: of many pages it looks each time.
    pub(crate) fn watch_metadata_for(&self, lane: usize, inodes: &[InodeUpdate]) -> Result<()> {
        let begun = self.log.sections.begun(lane);
        let pages = inodes.iter().map(|u| u.pages.len()).sum::<usize>() as u64;
        if begun % 32 != 31 && pages.max(inodes.len() as u64) < MANY {
            return Ok(());
        }
        self.relieve_metadata(pages, inodes.iter().map(nodes_for).sum())
    }

    /// Makes a checkpoint if many nodes are dirty: see [`crate::Store::watch_nodes`].
    pub fn watch_nodes(&self) -> Result<()> {
        if self.log.space.has_dirty_nodes() {
            self.relieve_metadata(0, 2 * u64::from(MAX_HEIGHT))?;
        }
        Ok(())
    }

    /// Makes a checkpoint if many inodes and nodes are dirty, or will be, and keeps space back for
    /// the fold. Whether there is space for that says nothing of what the caller needs.
    fn relieve_metadata(&self, blocks: u64, nodes: u64) -> Result<()> {
        match self.try_to_relieve(blocks, nodes) {
            Err(StoreError::NoSpace) => Ok(()),
            done => done,
        }
    }

    fn try_to_relieve(&self, blocks: u64, nodes: u64) -> Result<()> {
        if self.unfolded.reserve_space(&self.log) > 0 {
            self.keep_space()?;
        }
        if self.metadata_pressure_with(blocks, nodes) {
            let Some(mut m) = self.try_maintenance() else { return self.log.io.check() };
            self.checkpoints().in_place(&mut m)?;
            self.clean_behind(&mut m)?;
        }
        Ok(())
    }

    /// Cleans until more segments are free than are kept back, or for a few rounds, or as long as
    /// it gets anywhere where few are left: a checkpoint takes segments and gives back only those
    /// in which nothing lives. So many of them in a row, of inodes that lie here and there, would
    /// use up what is kept back, and then there is no space for another one.
    fn clean_behind(&self, m: &mut Maintenance) -> Result<()> {
        let kept = u64::from(self.log.segments.reserved_segments());
        self.clean_rounds(m, 4, || kept, |free| free > kept)?;
        self.clean_rounds(m, 12, || kept, |free| free > kept / 2)
    }

    /// Cleans, and makes a checkpoint behind each round, until so many segments are free that it
    /// `is_enough`, for so many rounds at most, and no longer than it gets anywhere. A round has
    /// two more than `least` free.
    fn clean_rounds(
        &self,
        m: &mut Maintenance,
        rounds: u32,
        least: impl Fn() -> u64,
        is_enough: impl Fn(u64) -> bool,
    ) -> Result<()> {
        debug_assert!(rounds > 0, "nothing would be cleaned");
        for _ in 0..rounds {
            if is_enough(self.log.segments.free_count().into()) {
                break;
            }
            let done = self.cleaner().clean_until(m, least() + 2, true)?;
            self.checkpoints().in_place(m)?;
            if done.segments == 0 && done.moved == 0 && done.marked == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Keeps space back for the fold, and cleans if it is not there. In the seal of a checkpoint
    /// nothing is cleaned: the checkpoint looks by itself.
    pub(crate) fn keep_space(&self) -> Result<()> {
        let unfolded = self.unfolded.reserve_space(&self.log);
        if self.unfolded.waits_long(&self.log.segments) {
            return Ok(()); // Each round would carry all of it over.
        }
        if self.log.segments.free_count()
            <= unfolded + self.log.segments.reserved_segments().saturating_sub(unfolded) / 2
        {
            self.free_space(Need::Segments(0), unfolded > 0)?;
        }
        Ok(())
    }

    /// Frees space for someone who found none for `need`. With `hard` the cleaner works as long as
    /// it gets anywhere.
    pub(crate) fn free_space(&self, need: Need, hard: bool) -> Result<()> {
        // Relaxed, here and below: only a hint whether another has made a checkpoint meanwhile.
        let seen = self.log.slot_in_force.load(Ordering::Relaxed);
        self.free_space_since(seen, need, hard).map(drop)
    }

    /// Does so for someone who found none when the slot `seen` was in force. Those who find none at
    /// the same time wait for each other here: for all of them there is one checkpoint, if what it
    /// gave is enough when it is their turn. Returns whether this one was made by this call.
    pub(crate) fn free_space_since(&self, seen: u64, need: Need, hard: bool) -> Result<bool> {
        let Some(mut m) = self.try_maintenance() else { return self.log.io.check().map(|()| true) };
        let least = |s: &Engine| {
            let t = &s.log.segments;
            match need {
                // Slack takes no segment.
                Need::Data(blocks) if t.slack.kept() > 0 && t.slack.blocks() >= blocks => {
                    u64::from(t.least_for_slack())
                }
                Need::Data(blocks) | Need::Segments(blocks) => {
                    let segments = blocks.div_ceil(u64::from(t.geometry.segment_blocks));
                    u64::from(t.reserved_segments()) + 1 + segments
                }
            }
        };
        let is_enough = |free| free > least(self);
        if self.log.slot_in_force.load(Ordering::Relaxed) != seen
            && is_enough(self.log.segments.free_count().into())
        {
            return Ok(false);
        }
        self.checkpoints().in_place(&mut m)?;
        self.clean_rounds(&mut m, if hard { 16 } else { 4 }, || least(self), is_enough)?;
        Ok(true)
    }
}
