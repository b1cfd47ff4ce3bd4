//! The inode table: inode number -> inode block, or pack and slot, for many readers and writers at
//! once.
//!
//! Leaves (chunks of 128 numbers) lie in shards, each chunk under a lock of its own, so that lanes,
//! which own whole chunks, never meet here. The levels above are one radix tree under one lock that
//! is taken only to find a leaf that is not in memory, and by the write-out.
//!
//! Invariants:
//!  T1  a chunk in memory is authoritative; the tree above knows only what was last written of it;
//!  T2  a dirty chunk stays in memory; a chunk is clean only after the tree refers to what was
//!      written of it;
//!  T3  no lock is held over I/O but that of who writes chunks, which only checkpoints take; locks
//!      are taken in the order that one, shard, chunk, tree, and no two of a kind at once;
//!  T4  a pack is in use as long as an entry of its chunk names it. Nobody counts: who changes an
//!      entry is told, under the chunk's lock, which block no other entry names any more, and frees
//!      it.

use crate::api::ChunkUsage;
use crate::error::{Result, StoreError};
use crate::tree::block_io::{BlockSink, BlockSource, Owner};
use crate::tree::radix::{Found, Radix, Tree};
use crossbeam_utils::CachePadded;
use lanefs_format::map_node::{FANOUT_BITS, KEY_END, PENDING};
use lanefs_format::pack::SLOTS_MAX;
use lanefs_format::table_node::{self, ENTRIES, TableEntry};
use lanefs_format::{Block, BlockRef, INOS_PER_CHUNK, Ino};
use lanefs_sync::lock::Mutex;
use lanefs_sync::parallel;
use std::collections::HashMap;
use std::sync::Arc;

/// A power of two; enough that two lanes' chunks seldom share a shard's line.
const SHARDS: usize = 256;
const _: () = assert!(SHARDS.is_power_of_two());

struct Leaf {
    entries: [TableEntry; ENTRIES],
    dirty: bool,
}

/// Returns how many dirty chunks are encoded before the first of them is written, by several
/// threads if there are so many: most of it is the first touch of their blocks' memory.
fn together() -> usize {
    if cfg!(test) { 4 } else { parallel::share_from(512, 4) }
}

type Chunk = Arc<CachePadded<Mutex<Leaf>>>;
type Shard = CachePadded<Mutex<HashMap<u64, Chunk>>>;

/// A chunk, in memory for as long as this lives: setting its entries cannot fail.
pub struct Held {
    chunk: Chunk,
}

impl Held {
    /// Returns all entries.
    pub fn entries(&self) -> [TableEntry; ENTRIES] {
        self.chunk.lock().entries
    }

    /// Sets the entry of `ino`. Returns the block that is free now (T4), if there is one.
    pub fn set(&self, ino: Ino, entry: TableEntry) -> BlockRef {
        debug_assert!(entry.block.addr != PENDING, "a block has an address before the table names it");
        let mut leaf = self.chunk.lock();
        leaf.dirty = true;
        let old = std::mem::replace(&mut leaf.entries[ino.slot()], entry);
        if leaf.names(&old) { BlockRef::NONE } else { old.block }
    }

    /// Makes the entries of these numbers of the chunk name a pack, in the order of its slots: each
    /// with its generation. `freed` gets the blocks that are free now (T4).
    pub fn set_pack(
        &self,
        pack: BlockRef,
        members: impl Iterator<Item = (u8, u32)>,
        epoch: u64,
        freed: &mut Vec<BlockRef>,
    ) {
        debug_assert!(!pack.is_none() && pack.addr != PENDING, "a pack that lies nowhere");
        let mut leaf = self.chunk.lock();
        leaf.dirty = true;
        let mut left: Vec<TableEntry> = Vec::new();
        for (slot, (number, generation)) in (1..).zip(members) {
            debug_assert!(usize::from(slot) <= SLOTS_MAX, "slot {slot} of a pack");
            let new = TableEntry { block: pack, slot, generation, epoch };
            let old = std::mem::replace(&mut leaf.entries[usize::from(number)], new);
            note_left(&mut left, old);
        }
        leaf.find_unnamed(left, freed);
    }

    /// Frees these numbers of the chunk, each of whose next uses has the generation beside it.
    /// `freed` gets the blocks that are free now (T4): the chunk is searched once for each block,
    /// not for each number.
    pub fn clear_all(
        &self,
        numbers: impl Iterator<Item = (Ino, u32)>,
        epoch: u64,
        freed: &mut Vec<BlockRef>,
    ) {
        let mut leaf = self.chunk.lock();
        leaf.dirty = true;
        let mut left: Vec<TableEntry> = Vec::new();
        for (ino, next) in numbers {
            let new = TableEntry { generation: next, epoch, ..TableEntry::default() };
            let old = std::mem::replace(&mut leaf.entries[ino.slot()], new);
            debug_assert!(!old.block.is_none(), "number {ino} was free before");
            note_left(&mut left, old);
        }
        leaf.find_unnamed(left, freed);
    }
}

/// Notes an entry that names nothing any more, unless the last one noted named the same block.
fn note_left(left: &mut Vec<TableEntry>, old: TableEntry) {
    if !old.block.is_none() && left.last().is_none_or(|l| l.block != old.block) {
        left.push(old);
    }
}

impl Leaf {
    /// Returns whether an entry names the block that `old`, which was one, named.
    fn names(&self, old: &TableEntry) -> bool {
        old.slot != 0 && self.entries.iter().any(|e| e.block.addr == old.block.addr)
    }

    /// Adds to `freed` the blocks that some entries named which are gone, and that none names now.
    fn find_unnamed(&self, mut left: Vec<TableEntry>, freed: &mut Vec<BlockRef>) {
        left.sort_unstable_by_key(|l| l.block.addr);
        left.dedup_by_key(|l| l.block.addr);
        freed.extend(left.iter().filter(|old| !self.names(old)).map(|old| old.block));
    }
}

/// The next part of the table, for those who go on past damage.
pub enum ChunkStep {
    /// This chunk.
    Chunk(u64),
    /// These chunks, if they exist, are out of reach.
    Lost(std::ops::Range<u64>, StoreError),
    /// Nothing.
    End,
}

/// See the module's head.
pub struct InodeTable {
    shards: Box<[Shard]>,
    /// On lines of its own: a checkpoint writes it, and the store has beside it what every fsync
    /// reads.
    tree: CachePadded<Mutex<Radix>>,
    /// Held by who writes chunks: several threads of a checkpoint may come to it.
    writing: Mutex<()>,
}

impl InodeTable {
    /// Returns a table without any number in use.
    pub fn new() -> InodeTable {
        InodeTable::with_tree(Radix::new(Tree::Table))
    }

    /// Returns the table on disk under `root`; height 0 is the empty one. The height counts the
    /// levels above the leaves.
    pub fn open(root: BlockRef, height: u8) -> Result<InodeTable> {
        let tree = Radix::open(Tree::Table, root, height).ok_or_else(|| StoreError::Corrupt {
            addr: root.addr,
            what: "inode table node",
            why: format!("no table has a root of height {height} here"),
        })?;
        Ok(InodeTable::with_tree(tree))
    }

    fn with_tree(tree: Radix) -> InodeTable {
        let shards = (0..SHARDS).map(|_| CachePadded::new(Mutex::new(HashMap::new()))).collect();
        InodeTable { shards, tree: CachePadded::new(Mutex::new(tree)), writing: Mutex::new(()) }
    }

    /// Returns root and height as last written.
    pub fn root(&self) -> (BlockRef, u8) {
        self.tree.lock().root()
    }

    fn shard(&self, chunk: u64) -> &Mutex<HashMap<u64, Chunk>> {
        &self.shards[chunk as usize % SHARDS]
    }

    /// Asks the tree, reading what it misses without its lock.
    fn ask<T>(
        &self,
        source: &(impl BlockSource + ?Sized),
        mut f: impl FnMut(&Radix) -> Found<T>,
    ) -> Result<T> {
        loop {
            let wanted = match f(&self.tree.lock()) {
                Found::Here(t) => return Ok(t),
                Found::Missing(w) => w,
            };
            let block = source.read(wanted.r, wanted.what)?;
            self.tree.lock().install(&wanted, &block)?;
        }
    }

    /// Returns the chunk, read if need be. With `make`, one that never existed is made; else the
    /// answer is `None`.
    fn chunk(&self, chunk: u64, make: bool, source: &(impl BlockSource + ?Sized)) -> Result<Option<Chunk>> {
        loop {
            if let Some(c) = self.shard(chunk).lock().get(&chunk) {
                return Ok(Some(c.clone()));
            }
            if chunk >= KEY_END {
                return if make {
                    Err(StoreError::Invalid(format!("inode chunk {chunk} is beyond the table")))
                } else {
                    Ok(None)
                };
            }
            let r = self.ask(source, |t| t.get(chunk))?;
            let entries = if !r.is_none() {
                table_node::decode(&*source.read(r, "inode table node")?, r.addr, chunk)?
            } else if make {
                [TableEntry::default(); ENTRIES]
            } else {
                return Ok(None);
            };
            let new = Arc::new(CachePadded::new(Mutex::new(Leaf { entries, dirty: false })));
            let mut shard = self.shard(chunk).lock();
            if let Some(c) = shard.get(&chunk) {
                return Ok(Some(c.clone())); // T1: someone was faster
            }
            // It may have come, been written and been evicted since the tree was asked: then what
            // was read is old. The shard's lock keeps it from happening again, because eviction and
            // creation take it.
            match self.tree.lock().get(chunk) {
                Found::Here(now) if now == r => {}
                _ => continue,
            }
            shard.insert(chunk, new.clone());
            return Ok(Some(new));
        }
    }

    /// Returns the entry of `ino`.
    pub fn lookup(&self, ino: Ino, source: &(impl BlockSource + ?Sized)) -> Result<TableEntry> {
        Ok(match self.chunk(ino.chunk(), false, source)? {
            Some(c) => c.lock().entries[ino.slot()],
            None => TableEntry::default(),
        })
    }

    /// Brings a chunk into memory, and keeps it there.
    pub fn hold(&self, chunk: u64, source: &(impl BlockSource + ?Sized)) -> Result<Held> {
        let beyond = || StoreError::Invalid(format!("inode chunk {chunk} is beyond the table"));
        let held = self.chunk(chunk, true, source)?.ok_or_else(beyond)?;
        debug_assert!(Arc::strong_count(&held) > 1, "the table has chunk {chunk}, too (T1)");
        Ok(Held { chunk: held })
    }

    /// Brings a chunk into memory that has been used before, and keeps it there; `None` if it has
    /// not.
    pub fn find(&self, chunk: u64, source: &(impl BlockSource + ?Sized)) -> Result<Option<Held>> {
        Ok(self.chunk(chunk, false, source)?.map(|chunk| Held { chunk }))
    }

    /// Sets the entry of `ino`. Returns the block that is free now (T4), if there is one.
    pub fn set(&self, ino: Ino, entry: TableEntry, source: &(impl BlockSource + ?Sized)) -> Result<BlockRef> {
        Ok(self.hold(ino.chunk(), source)?.set(ino, entry))
    }

    /// Frees the number; its next use has the generation `next`. Returns the block that is free now
    /// (T4), if there is one.
    pub fn clear(
        &self,
        ino: Ino,
        next: u32,
        epoch: u64,
        source: &(impl BlockSource + ?Sized),
    ) -> Result<BlockRef> {
        self.set(ino, TableEntry { generation: next, epoch, ..TableEntry::default() }, source)
    }

    /// Returns which numbers of a chunk are in use, and the generations of their present or next
    /// use.
    pub fn chunk_usage(&self, chunk: u64, source: &(impl BlockSource + ?Sized)) -> Result<ChunkUsage> {
        let mut usage = ChunkUsage { used: 0, generations: [0; ENTRIES] };
        if let Some(c) = self.chunk(chunk, false, source)? {
            for (slot, e) in c.lock().entries.iter().enumerate() {
                usage.used |= u128::from(!e.block.is_none()) << slot;
                usage.generations[slot] = e.generation;
            }
        }
        Ok(usage)
    }

    /// Returns the first chunk at or after `from` that has ever been used and written.
    pub fn next_chunk(&self, from: u64, source: &(impl BlockSource + ?Sized)) -> Result<Option<u64>> {
        let next = self.ask(source, |t| t.next_used(from))?;
        debug_assert!(next.is_none_or(|c| c >= from && c < KEY_END), "chunk {next:?} from {from} on");
        Ok(next)
    }

    /// Returns the entries of one chunk.
    pub fn chunk_entries(
        &self,
        chunk: u64,
        source: &(impl BlockSource + ?Sized),
    ) -> Result<[TableEntry; ENTRIES]> {
        let c = self.chunk(chunk, false, source)?;
        Ok(c.map_or([TableEntry::default(); ENTRIES], |c| c.lock().entries))
    }

    /// Returns the chunks in memory, written or not.
    pub fn chunks_in_memory(&self) -> Vec<u64> {
        self.shards.iter().flat_map(|s| s.lock().keys().copied().collect::<Vec<_>>()).collect()
    }

    /// Returns the next chunk at or after `from`, or the range of chunks that a node which cannot
    /// be read would describe.
    pub fn next_chunk_or_gap(&self, from: u64, source: &(impl BlockSource + ?Sized)) -> ChunkStep {
        loop {
            let wanted = match self.tree.lock().next_used(from) {
                Found::Here(Some(c)) => return ChunkStep::Chunk(c),
                Found::Here(None) => return ChunkStep::End,
                Found::Missing(w) => w,
            };
            let read = source
                .read(wanted.r, wanted.what)
                .and_then(|block| self.tree.lock().install(&wanted, &block));
            if let Err(e) = read {
                let bits = FANOUT_BITS * (u32::from(wanted.level) + 1);
                let lost = from.max(wanted.index << bits)..(wanted.index + 1) << bits;
                debug_assert!(lost.start < lost.end, "who goes on behind {lost:?} gets no further");
                return ChunkStep::Lost(lost, e);
            }
        }
    }

    /// Calls `f` with every number in use, in order, as far as written out; what only memory knows
    /// is not seen.
    pub fn for_each(
        &self,
        source: &(impl BlockSource + ?Sized),
        f: &mut dyn FnMut(Ino, TableEntry) -> Result<()>,
    ) -> Result<()> {
        let mut from = 0;
        while let Some(chunk) = self.next_chunk(from, source)? {
            if let Some(c) = self.chunk(chunk, false, source)? {
                let entries = c.lock().entries;
                for (slot, e) in entries.iter().enumerate().filter(|(_, e)| !e.block.is_none()) {
                    f(Ino(chunk * INOS_PER_CHUNK + slot as u64), *e)?;
                }
            }
            from = chunk + 1;
        }
        Ok(())
    }

    /// Writes what is dirty and returns the new root. Changes may go on meanwhile: they are in this
    /// root or dirty for the next. One at a time.
    pub fn write_out(&self, sink: &mut dyn BlockSink) -> Result<(BlockRef, u8)> {
        let _one = self.writing.lock();
        self.write_chunks(sink)?;
        // Writes are queued, not waited for, so this holds the lock over encoding only.
        self.tree.lock().write_out(sink)
    }

    /// Writes the dirty chunks, the first part of [`InodeTable::write_out`], and lets them go, for
    /// who changes more of them than the `most` bytes that memory is to hold: they are clean
    /// afterwards, and only the tree in memory refers to what was written.
    pub fn shed(&self, most: usize, sink: &mut dyn BlockSink) -> Result<()> {
        if self.memory() <= most {
            return Ok(());
        }
        let _one = self.writing.lock();
        // Another thread may have done it.
        if self.memory() > most {
            self.write_chunks(sink)?;
            self.evict_clean();
        }
        Ok(())
    }

    /// Writes the dirty chunks; the caller holds `writing`.
    fn write_chunks(&self, sink: &mut dyn BlockSink) -> Result<()> {
        debug_assert!(self.writing.is_locked(), "a chunk that two write is that of the slower one");
        let mut dirty: Vec<(u64, Chunk)> = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            // The copy of the Arc keeps the chunk from being evicted until the tree knows it (T2).
            dirty.extend(shard.iter().filter(|(_, c)| c.lock().dirty).map(|(n, c)| (*n, c.clone())));
        }
        dirty.sort_unstable_by_key(|d| d.0);
        debug_assert!(dirty.is_sorted_by(|a, b| a.0 < b.0), "a chunk is in memory twice (T1)");
        for some in dirty.chunks(together()) {
            let mut blocks = encode_all(some, sink.threads()).into_iter();
            for (at, (n, chunk)) in some.iter().enumerate() {
                let Some(block) = blocks.next() else { break };
                let written = self.write_chunk(*n, block, sink).and_then(|()| sink.flush_if_full());
                debug_assert!(Arc::strong_count(chunk) > 1, "chunk {n} was evicted meanwhile (T2)");
                if let Err(e) = written {
                    // Once too often, if it was the last step that failed.
                    some[at..].iter().for_each(|(_, c)| c.lock().dirty = true);
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    /// Writes the block of a chunk, and has the tree refer to it.
    fn write_chunk(&self, n: u64, block: Box<Block>, sink: &mut dyn BlockSink) -> Result<()> {
        debug_assert!(self.writing.is_locked(), "a chunk that two write is that of the slower one");
        let r = sink.write(Owner::Table { level: 0, index: n }, block)?;
        // The tree does not know it: nobody would free it.
        let old = self.set_leaf(n, r, sink).inspect_err(|_| sink.free(r.addr))?;
        if !old.is_none() {
            sink.free(old.addr);
        }
        Ok(())
    }

    /// Sets the place of leaf `n` in the tree. Reading the tree's nodes first keeps I/O out of its
    /// lock.
    fn set_leaf(&self, n: u64, r: BlockRef, source: &dyn BlockSink) -> Result<BlockRef> {
        loop {
            let mut tree = self.tree.lock();
            let Some(w) = tree.missing_for(n) else {
                let old = tree.set(n, r, source)?;
                debug_assert!(tree.is_dirty(), "the tree on disk does not know of chunk {n} (T2)");
                return Ok(old);
            };
            drop(tree);
            let b = source.read(w.r, w.what)?;
            self.tree.lock().install(&w, &b)?;
        }
    }

    /// Returns where the node is on disk now, for the cleaner. None if it is not.
    pub fn node_ref(&self, level: u8, index: u64, source: &(impl BlockSource + ?Sized)) -> Result<BlockRef> {
        match level {
            0 if index >= KEY_END => Ok(BlockRef::NONE),
            0 => self.ask(source, |t| t.get(index)),
            _ => self.ask(source, |t| t.node_ref(level, index)),
        }
    }

    /// Makes the next write-out write a node anew. False if there is no such node.
    pub fn rewrite_node(&self, level: u8, index: u64, source: &(impl BlockSource + ?Sized)) -> Result<bool> {
        if level == 0 {
            let found = self.chunk(index, false, source)?;
            return Ok(found.is_some_and(|c| {
                c.lock().dirty = true;
                true
            }));
        }
        // Brings the way to the node into memory first, so that the lock is not held over I/O.
        if self.ask(source, |t| t.node_ref(level, index))?.is_none() {
            return Ok(false);
        }
        self.tree.lock().rewrite_node(level, index, source)
    }

    /// Drops clean chunks nobody is using, and clean nodes.
    pub fn evict_clean(&self) {
        for shard in &self.shards {
            shard.lock().retain(|_, c| Arc::strong_count(c) > 1 || c.lock().dirty);
        }
        self.tree.lock().evict_clean();
    }

    /// Returns the number of bytes of memory, about.
    pub fn memory(&self) -> usize {
        let chunks: usize = self.shards.iter().map(|s| s.lock().len()).sum();
        chunks * (size_of::<Leaf>() + 64) + self.tree.lock().memory(u64::MAX)
    }
}

/// Encodes dirty chunks, which count as clean from then on: the caller makes them dirty again if
/// their blocks are not written.
fn encode_all(dirty: &[(u64, Chunk)], threads: usize) -> Vec<Box<Block>> {
    debug_assert!(threads > 0, "work for nobody");
    let encode = |(n, chunk): &(u64, Chunk)| {
        let mut leaf = chunk.lock();
        leaf.dirty = false;
        table_node::encode(*n, &leaf.entries)
    };
    if dirty.len() < together() {
        return dirty.iter().map(encode).collect();
    }
    let shares = dirty.chunks(dirty.len().div_ceil(threads)).collect();
    let encoded =
        parallel::map(shares, |share: &[(u64, Chunk)]| share.iter().map(encode).collect::<Vec<_>>());
    let blocks: Vec<_> = encoded.into_iter().flatten().collect();
    debug_assert_eq!(blocks.len(), dirty.len(), "a block for each chunk");
    blocks
}

impl Default for InodeTable {
    fn default() -> Self {
        InodeTable::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{MemLog, SharedLog};
    use lanefs_format::BlockAddr;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn r(n: u64) -> BlockRef {
        BlockRef { addr: BlockAddr(n), crc: n as u32 }
    }

    fn own(block: BlockRef, generation: u32, epoch: u64) -> TableEntry {
        TableEntry { block, slot: 0, generation, epoch }
    }

    /// A pack that lost an inode was freed, with the others in it.
    #[test]
    fn a_pack_is_free_when_the_last_entry_leaves_it() {
        let log = MemLog::default();
        let t = InodeTable::new();
        let held = t.hold(0, &log).unwrap();
        let mut freed = Vec::new();
        held.set_pack(r(50), [(1, 10), (2, 20), (9, 90)].into_iter(), 3, &mut freed);
        held.set(Ino(4), own(r(60), 1, 3));
        assert!(freed.is_empty());
        let e = t.lookup(Ino(9), &log).unwrap();
        assert_eq!(e, TableEntry { block: r(50), slot: 3, generation: 90, epoch: 3 });
        assert_eq!(t.clear(Ino(1), 11, 4, &log).unwrap(), BlockRef::NONE);
        held.set_pack(r(51), [(2, 20), (4, 1)].into_iter(), 5, &mut freed);
        assert_eq!(freed, [r(60)], "the pack has inode 9 still");
        assert_eq!(held.set(Ino(9), own(r(52), 90, 5)), r(50));
        freed.clear();
        held.set_pack(r(53), [(2, 20), (4, 1), (9, 90)].into_iter(), 6, &mut freed);
        assert_eq!(freed, [r(51), r(52)]);
    }

    /// Files of two packs by turns, of which one has another file still: what was noted last is no
    /// sign that a block was not noted before.
    #[test]
    fn numbers_that_are_freed_together_free_each_pack_once_and_none_that_is_named() {
        let log = MemLog::default();
        let t = InodeTable::new();
        let held = t.hold(0, &log).unwrap();
        let mut freed = Vec::new();
        held.set_pack(r(50), [(1, 10), (3, 30), (5, 50), (9, 90)].into_iter(), 3, &mut freed);
        held.set_pack(r(51), [(2, 20), (4, 40), (6, 60)].into_iter(), 3, &mut freed);
        held.clear_all((1..=6).map(|n| (Ino(n), 10 * n as u32 + 1)), 4, &mut freed);
        assert_eq!(freed, [r(51)], "the other pack has inode 9 still");
        let free = TableEntry { generation: 31, epoch: 4, ..TableEntry::default() };
        assert_eq!(t.lookup(Ino(3), &log).unwrap(), free);
        assert_eq!(t.chunk_usage(0, &log).unwrap().used, 1 << 9);
        freed.clear();
        held.clear_all([(Ino(9), 91)].into_iter(), 5, &mut freed);
        assert_eq!(freed, [r(50)]);
        assert!(t.find(1, &log).unwrap().is_none(), "a look at a chunk does not make it");
    }

    #[test]
    fn numbers_keep_their_generation_across_uses_and_reloads() {
        let mut log = MemLog::default();
        let t = InodeTable::new();
        assert_eq!(t.lookup(Ino(1), &log).unwrap(), TableEntry::default());
        for ino in [1u64, 16, 127, 128, 40_000, 1 << 40] {
            assert!(t.set(Ino(ino), own(r(ino), 1, 3), &log).unwrap().is_none());
        }
        assert_eq!(t.clear(Ino(16), 2, 4, &log).unwrap(), r(16));
        let (root, height) = t.write_out(&mut log).unwrap();
        let t = InodeTable::open(root, height).unwrap();
        assert_eq!(t.lookup(Ino(128), &log).unwrap().block, r(128));
        assert_eq!(t.lookup(Ino(16), &log).unwrap().generation, 2);
        assert_eq!(t.lookup(Ino(u64::MAX), &log).unwrap(), TableEntry::default());
        let u = t.chunk_usage(0, &log).unwrap();
        assert_eq!((u.used, u.generations[16], u.generations[5]), (1 << 1 | 1 << 127, 2, 0));
        assert_eq!(t.next_chunk(2, &log).unwrap(), Some(40_000 / 128));
        let mut all = Vec::new();
        t.for_each(&log, &mut |ino, _| {
            all.push(ino.0);
            Ok(())
        })
        .unwrap();
        assert_eq!(all, [1, 127, 128, 40_000, 1 << 40]);
        assert!(t.set(Ino(u64::MAX), own(r(1), 0, 0), &log).is_err());
    }

    #[test]
    fn a_rewrite_moves_nodes_and_leaks_none() {
        let mut log = MemLog::default();
        let t = InodeTable::new();
        for c in 0..300 {
            t.set(Ino(c * 128), own(r(1 << 40 | c), 1, 1), &log).unwrap();
        }
        t.write_out(&mut log).unwrap();
        let n = log.blocks.len();
        assert_eq!(n, 300 + 2 + 1);
        t.evict_clean();
        assert_eq!(t.memory(), 0);
        for (level, index) in [(0, 7), (1, 1), (2, 0)] {
            let old = t.node_ref(level, index, &log).unwrap();
            assert!(log.blocks.contains_key(&old.addr));
            assert!(t.rewrite_node(level, index, &log).unwrap());
            t.write_out(&mut log).unwrap();
            let new = t.node_ref(level, index, &log).unwrap();
            assert_ne!(old, new);
            assert!(!log.blocks.contains_key(&old.addr));
            assert_eq!(log.blocks.len(), n);
        }
        assert!(!t.rewrite_node(0, 5000, &log).unwrap() && !t.rewrite_node(3, 0, &log).unwrap());
        let addr = t.node_ref(0, 9, &log).unwrap().addr;
        t.evict_clean();
        log.blocks.get_mut(&addr).unwrap().1.0[3000] ^= 1;
        assert!(matches!(t.lookup(Ino(9 * 128), &log), Err(StoreError::Corrupt { .. })));
    }

    #[test]
    fn more_chunks_than_memory_holds_can_be_written_bit_by_bit() {
        let mut log = MemLog::default();
        let t = InodeTable::new();
        for c in 0..2000 {
            t.set(Ino(c * 128), own(r(1 << 40 | c), 1, 1), &log).unwrap();
            if c % 100 == 99 {
                t.shed(0, &mut log).unwrap();
                t.evict_clean();
                assert!(t.memory() < 200 * 4096, "{}", t.memory());
            }
        }
        let (root, height) = t.write_out(&mut log).unwrap();
        assert_eq!((log.most_queued, log.blocks.len()), (8 + 1, 2000 + 8 + 1), "each once");
        let t = InodeTable::open(root, height).unwrap();
        for c in 0..2000 {
            assert_eq!(t.lookup(Ino(c * 128), &log).unwrap().block, r(1 << 40 | c));
        }
    }

    /// Writers, readers, eviction and write-outs at once: what a writer set is what it and the disk
    /// have.
    #[test]
    fn threads_and_write_outs_lose_nothing() {
        let log = SharedLog::default();
        let t = InodeTable::new();
        let stop = AtomicBool::new(false);
        let rounds = 400u64;
        std::thread::scope(|s| {
            let writers: Vec<_> = (0..4u64)
                .map(|w| {
                    let (t, log) = (&t, log.clone());
                    s.spawn(move || {
                        for i in 1..=rounds {
                            for slot in 0..6 {
                                // Chunks 0..3 are shared by all writers, their slots are not.
                                let ino = Ino((i + slot) % 3 * 128 + w * 32 + slot);
                                let want = r((w * 1_000_000 + i * 10 + slot) | 1 << 50);
                                t.set(ino, own(want, i as u32, i), &log).unwrap();
                                assert_eq!(t.lookup(ino, &log).unwrap().block, want);
                            }
                        }
                    })
                })
                .collect();
            let (t, mut sink, stop) = (&t, log.clone(), &stop);
            let other = s.spawn(move || {
                // Relaxed: only ends the loop.
                while !stop.load(Ordering::Relaxed) {
                    t.write_out(&mut sink).unwrap();
                    t.evict_clean();
                }
            });
            for w in writers {
                w.join().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            other.join().unwrap();
        });
        let (root, height) = t.write_out(&mut log.clone()).unwrap();
        let again = InodeTable::open(root, height).unwrap();
        for ino in 0..3 * 128 {
            assert_eq!(again.lookup(Ino(ino), &log).unwrap(), t.lookup(Ino(ino), &log).unwrap());
        }
        log.end_grace();
        assert_eq!(log.0.lock().blocks.len(), 4, "three leaves and a root");
    }
}
