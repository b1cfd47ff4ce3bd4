//! The inodes in memory, and how they are read and changed there. What is changed is on disk with
//! the inode's next update or the next checkpoint, which the engine makes.

pub(crate) mod block_set;
pub(crate) mod cache;
mod preallocate;
mod reading;
mod unmap;

use crate::error::{Result, StoreError};
use crate::log::io::Io;
use crate::tree::block_io::{BlockSink, BlockSource};
use crate::tree::inode_state::InodeState;
use crate::tree::inode_table::InodeTable;
use cache::{CachedInode, InodeCache, InodeEntry};
use lanefs_format::{Attrs, BlockRef, INOS_PER_CHUNK, Ino};
use lanefs_sync::CachePadded;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The inodes of a volume: where each is on disk, and those in memory.
pub(crate) struct Inodes {
    pub table: InodeTable,
    pub cache: InodeCache,
    /// The volume has packs.
    pub packed: bool,
    /// See `OpenOptions::memory_bytes`.
    memory_bytes: usize,
    /// Chunks of which inodes were read from the device lately, and how many: see
    /// [`Inodes::note_read`]. Each in a line of its own, written by who reads one of its chunks.
    /// Relaxed: what is lost of it is read a little later.
    read: Box<[CachePadded<AtomicU64>]>,
}

/// Chunks that [`Inodes::note_read`] can tell apart.
const READ: usize = 64;
/// Inodes of a chunk that are read by themselves before all of it is.
const ALONE: u64 = 2;

impl Inodes {
    /// Returns the inodes of a table, none of them in memory yet.
    pub fn new(table: InodeTable, packed: bool, memory_bytes: usize) -> Inodes {
        let read = (0..READ).map(|_| CachePadded::default()).collect();
        Inodes { table, cache: InodeCache::new(), packed, memory_bytes, read }
    }

    fn load(&self, ino: Ino, io: &Io) -> Result<Option<InodeEntry>> {
        loop {
            let e = self.table.lookup(ino, io)?;
            if e.block.is_none() {
                return Ok(None);
            }
            if !io.has(e.block) && self.note_read(ino.chunk()) {
                self.expect_chunk(ino.chunk(), io);
            }
            match InodeState::load(ino, &e, io) {
                Ok(state) => {
                    let entry = InodeEntry::new(state, true);
                    debug_assert!(entry.is_clean(), "inode {ino} changed while it was read");
                    return Ok(Some(entry));
                }
                Err(why) if self.table.lookup(ino, io)? == e => return Err(why),
                // Its pack was written anew elsewhere, and something else lies there now.
                Err(_) => {}
            }
        }
    }

    /// Returns an inode; `None` if neither the table nor an update knows it.
    pub fn get(&self, ino: Ino, io: &Io) -> Result<Option<Arc<CachedInode>>> {
        self.cache.get_or_load(ino, || self.load(ino, io))
    }

    /// Returns an inode that is being updated; one whose NEW is not folded yet is made.
    pub fn get_or_new(&self, ino: Ino, attrs: &Attrs, io: &Io) -> Result<Arc<CachedInode>> {
        let inode = self.cache.get_or_load(ino, || {
            Ok(Some(match self.load(ino, io)? {
                Some(i) => i,
                None => InodeEntry::new(InodeState::new(ino, *attrs, Ino::NONE), false),
            }))
        })?;
        inode.ok_or_else(|| StoreError::Invalid(format!("inode {ino} does not exist")))
    }

    /// Notes that an inode of this chunk is read from the device. Returns whether the others of its
    /// chunk had better be read with it: a few were, and of no chunk that is noted in its place
    /// between them. Whoever goes over a directory meets chunks in any order, and one after the
    /// other they are a trip to the device each; among very many files that are read at random no
    /// chunk comes again so soon.
    fn note_read(&self, chunk: u64) -> bool {
        let place = &self.read[chunk as usize % READ];
        let was = place.load(Relaxed);
        let count = if was >> 8 == chunk { was & 0xff } else { 0 };
        debug_assert!(count <= ALONE, "{count} inodes of chunk {chunk} were read by themselves");
        let is_due = count == ALONE;
        place.store(chunk << 8 | if is_due { 0 } else { count + 1 }, Relaxed);
        is_due
    }

    /// Reads the blocks of the inodes of a chunk together that are not in memory.
    fn expect_chunk(&self, chunk: u64, io: &Io) {
        // What cannot be read is found out by who asks for it.
        let Ok(Some(held)) = self.table.find(chunk, io) else { return };
        let entries = held.entries();
        let inos = (0..).map(|slot| Ino(chunk * INOS_PER_CHUNK + slot));
        let absent = entries.iter().zip(inos).filter(|(e, ino)| !e.block.is_none() && !self.cache.has(*ino));
        let mut refs: Vec<BlockRef> = absent.map(|(e, _)| e.block).collect();
        refs.sort_unstable_by_key(|r| r.addr);
        refs.dedup();
        debug_assert!(refs.len() as u64 <= INOS_PER_CHUNK, "{} blocks of chunk {chunk}", refs.len());
        io.expect(&refs);
    }

    /// Reads the blocks of those of these inodes that are not in memory together, for who goes on
    /// to fold them.
    pub fn expect(&self, inos: impl Iterator<Item = Ino>, io: &Io) -> Result<()> {
        let mut refs = Vec::new();
        for ino in inos {
            if !self.cache.has(ino) {
                refs.extend(Some(self.table.lookup(ino, io)?.block).filter(|r| !r.is_none()));
            }
        }
        refs.dedup();
        debug_assert!(refs.iter().all(|r| !r.is_none()), "a free number has no block to be read");
        io.expect(&refs);
        Ok(())
    }

    /// Reads the packs of these inodes together, for who goes on to write them: others that lie
    /// there move along.
    pub fn expect_packs(&self, inos: impl Iterator<Item = Ino>, io: &Io) -> Result<()> {
        if !self.packed {
            return Ok(());
        }
        let mut refs = Vec::new();
        for ino in inos {
            let e = self.table.lookup(ino, io)?;
            if e.slot != 0 && refs.last() != Some(&e.block) {
                refs.push(e.block);
            }
        }
        debug_assert!(refs.iter().all(|r| !r.is_none()), "a free number is in a pack");
        io.expect(&refs);
        Ok(())
    }

    /// Writes what is queued if it is much, and now and then the chunks of the inode table, of
    /// which each inode may have another, if these are much; then lets them go. To be called after
    /// the `n`th of many inodes was folded or captured.
    pub fn evict_or_flush(&self, n: usize, sink: &mut dyn BlockSink) -> Result<()> {
        if n % 256 == 255 {
            self.table.shed(self.memory_bytes / 2, sink)?;
        }
        sink.flush_if_full()
    }

    /// Returns the memory of inodes and inode table, in bytes, about; not that of the cache of node
    /// blocks.
    pub fn memory(&self) -> usize {
        self.cache.memory() + self.table.memory()
    }

    /// Gives up what is clean of inodes and inode table, if they take more memory than
    /// `OpenOptions::memory_bytes`.
    pub fn shrink(&self) {
        let half = self.memory_bytes / 2;
        self.cache.evict_made();
        self.cache.shrink(half);
        if self.table.memory() > half {
            self.table.evict_clean();
        }
    }
}
