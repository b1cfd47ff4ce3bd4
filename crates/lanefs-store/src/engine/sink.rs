//! The log's side of [`BlockSink`]: the structures hand over their blocks to it during a
//! checkpoint.
//!
//! A block is marked live and in the tree when it gets its address, and loses both marks when it is
//! freed; the leaves of the usage table that this changes are noted. Blocks of the usage table
//! itself are marked live only. Writes are queued in [`Io`], where reads find them, and go out in
//! large submissions.
//!
//! [`Io`]: crate::log::io::Io

use crate::engine::totals::Totals;
use crate::error::Result;
use crate::log::Log;
use crate::log::heat::Heat;
use crate::log::mlog::Mlog;
use crate::log::usage_table::{TableSink, leaf_of};
use crate::tree::block_io::{BlockSink, BlockSource, Owner};
use lanefs_format::checksum;
use lanefs_format::header::seal;
use lanefs_format::summary::DataOwner;
use lanefs_format::{Block, BlockAddr, BlockRef};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Queued blocks are written when there are this many, their copies counted.
pub(crate) const QUEUE_MAX: usize = 512;

/// A sink for one checkpoint.
pub(crate) struct Sink<'a> {
    log: &'a Log,
    totals: &'a Totals,
    /// Leaves of the usage table that have to be written.
    dirty: &'a mut BTreeSet<u64>,
    /// The last one given to a block, for all sinks of the checkpoint. Relaxed: it only counts.
    sequence: Arc<AtomicU64>,
    checkpoint: u64,
    /// What is freed belongs to an inode that ends.
    ends: bool,
    /// The blocks of such inodes, for all sinks of the checkpoint. Relaxed: it only counts.
    ended: Arc<AtomicU64>,
}

impl<'a> Sink<'a> {
    pub fn new(log: &'a Log, totals: &'a Totals, dirty: &'a mut BTreeSet<u64>) -> Sink<'a> {
        // Relaxed: only the holder of the maintenance lock changes it.
        let checkpoint = log.checkpoint_number.load(Ordering::Relaxed);
        debug_assert!(checkpoint > 0 && checkpoint >> 32 == 0, "sequences of checkpoint {checkpoint}");
        let sequence = Arc::new(AtomicU64::new(checkpoint << 32));
        Sink { log, totals, dirty, sequence, checkpoint, ends: false, ended: Arc::default() }
    }

    /// Frees what belongs to an inode that ends: it counts as free when the checkpoint is durable
    /// ([`Sink::take_ended`]).
    pub fn end<T>(&mut self, free: impl FnOnce(&mut Self) -> T) -> T {
        debug_assert!(!self.ends, "an inode that ends within another's end");
        self.ends = true;
        let r = free(self);
        self.ends = false;
        r
    }

    /// Adds blocks that an inode which ends had charged and not used.
    pub fn give_back(&self, blocks: u64) {
        debug_assert!(i64::try_from(blocks).is_ok(), "{blocks} blocks are more than are counted");
        self.log.space.free_later(None, blocks);
        self.add_ended(blocks);
    }

    /// Adds blocks that were given back before, by an inode that ends now.
    pub fn add_ended(&self, blocks: u64) {
        debug_assert!(blocks <= self.log.space.later(), "{blocks} blocks were not given back");
        self.ended.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Returns the blocks of inodes that ended, once.
    pub fn take_ended(&mut self) -> u64 {
        debug_assert!(!self.ends, "an inode ends");
        self.ended.swap(0, Ordering::Relaxed)
    }

    /// Makes another of the same checkpoint, for a thread that works beside this one.
    pub fn beside<'b>(&self, dirty: &'b mut BTreeSet<u64>) -> Sink<'b>
    where
        'a: 'b,
    {
        debug_assert!(dirty.is_empty(), "leaves that nobody of this checkpoint changed");
        Sink { dirty, sequence: self.sequence.clone(), ended: self.ended.clone(), ..*self }
    }

    /// Takes note of the leaves that another has changed.
    pub fn take_leaves(&mut self, mut leaves: BTreeSet<u64>) {
        self.dirty.append(&mut leaves);
    }

    /// Marks `addr` as referred to by the tree.
    pub fn mark(&mut self, addr: BlockAddr) {
        if let Some(seg) = self.log.segments.set_tree(addr) {
            self.dirty.insert(leaf_of(seg));
        }
    }

    /// Takes that mark: the tree does not refer to `addr` any more.
    pub fn unmark(&mut self, addr: BlockAddr) {
        if let Some(seg) = self.log.segments.clear_tree(addr) {
            self.dirty.insert(leaf_of(seg));
        }
    }

    /// Gives the next block of `owner` an address in the log. Until [`Sink::put`] nothing lies
    /// there, and nothing has to.
    pub fn claim(&self, owner: Owner) -> Result<BlockAddr> {
        let (mlog, heat) = self.place(owner);
        let mut runs = Vec::with_capacity(1);
        mlog.alloc(&self.log.segments, heat, 1, self.checkpoint, true, &mut runs)?;
        debug_assert!(matches!(runs[..], [(_, 1)]), "one block was asked for, not {runs:?}");
        Ok(runs.first().map_or(BlockAddr::NONE, |r| r.0))
    }

    /// Queues the block for the address that [`Sink::claim`] gave it.
    pub fn put(&mut self, owner: Owner, addr: BlockAddr, mut block: Box<Block>) -> BlockRef {
        let (mlog, heat) = self.place(owner);
        if let Owner::Data { ino, page } = owner {
            mlog.note_older([(addr, DataOwner { ino, page })]);
        } else {
            let sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
            debug_assert_eq!(sequence >> 32, self.checkpoint, "a sequence of the next checkpoint");
            seal(&mut block, addr, self.log.stamp(sequence));
        }
        let r = checksum::reference(addr, &block);
        let blocks = self.log.segments.blocks_at(addr);
        debug_assert!(
            (blocks == 2) == (heat != Heat::Warm && self.log.segments.geometry.copies == 2),
            "block {addr} of {owner:?} is there {blocks} times"
        );
        let newly = self.log.segments.set_live(addr);
        debug_assert!(newly, "block {addr} of {owner:?} was in use before");
        if !matches!(owner, Owner::Usage { .. }) {
            self.mark(addr);
        }
        if !matches!(owner, Owner::Summary { .. }) {
            self.log.space.charge(0, blocks);
        }
        // An inode in memory is a tenth of its block, and pages have a cache of their own.
        let keep = matches!(
            owner,
            Owner::Bucket { .. } | Owner::Map { .. } | Owner::Table { .. } | Owner::Usage { .. }
        );
        self.log.io.enqueue(r, block, keep, blocks == 2);
        r
    }

    fn place(&self, owner: Owner) -> (&Mlog, Heat) {
        let (spread, heat) = match owner {
            Owner::Data { ino, .. } => (ino.chunk(), Heat::Warm),
            Owner::Bucket { ino, .. } => (ino.chunk(), Heat::Bucket),
            Owner::Inode { ino } | Owner::Map { ino, .. } | Owner::Xattr { ino, .. } => {
                (ino.chunk(), Heat::Node)
            }
            Owner::Pack { chunk } => (chunk, Heat::Node),
            Owner::Table { index, .. } | Owner::Usage { index, .. } => (index, Heat::Node),
            Owner::Orphans { .. } => (0, Heat::Node),
            Owner::Summary { segment, .. } => (segment, Heat::Node),
        };
        (self.log.mlog_of_blocks(spread), heat)
    }
}

impl TableSink for Sink<'_> {
    fn touch_leaf(&mut self, leaf: u64) {
        self.dirty.insert(leaf);
    }

    fn next_leaf(&mut self) -> Option<u64> {
        self.dirty.pop_first()
    }

    fn free_summary(&mut self, addr: BlockAddr) {
        self.log.segments.clear_live(addr);
        self.unmark(addr);
        self.log.io.forget(addr);
    }
}

impl BlockSource for Sink<'_> {
    fn read(&self, r: BlockRef, what: &'static str) -> Result<Box<Block>> {
        self.log.io.read(r, what)
    }
    fn read_once(&self, r: BlockRef, what: &'static str) -> Result<Box<Block>> {
        self.log.io.read_once(r, what)
    }
    fn expect(&self, refs: &[BlockRef]) {
        self.log.io.expect(refs);
    }
}

impl BlockSink for Sink<'_> {
    fn count_unwritten(&mut self, more: i64) {
        // Relaxed: only the threads of a checkpoint write inodes, and it joins them.
        self.totals.unwritten.fetch_add(more, Ordering::Relaxed);
    }

    fn threads(&self) -> usize {
        self.log.threads()
    }

    /// Writes what is queued, if it is much.
    fn flush_if_full(&mut self) -> Result<()> {
        let copies = self.log.segments.geometry.copies as usize;
        let most = QUEUE_MAX / copies;
        if self.log.io.queue_len() >= most { self.log.io.write_queue_of(most) } else { Ok(()) }
    }

    fn write(&mut self, owner: Owner, block: Box<Block>) -> Result<BlockRef> {
        let addr = self.claim(owner)?;
        Ok(self.put(owner, addr, block))
    }

    fn free(&mut self, addr: BlockAddr) {
        let blocks = self.log.segments.blocks_at(addr);
        match self.log.segments.clear_live(addr) {
            true if self.ends => self.give_back(blocks),
            true => self.log.space.credit(0, blocks),
            false => {}
        }
        self.unmark(addr);
        self.log.io.forget(addr);
    }
}
