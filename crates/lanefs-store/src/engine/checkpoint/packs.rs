//! Packs: small inodes are written many to a block (docs/SPEC.md, section 8).
//!
//! Whoever writes inodes goes through the chunks of the inode table in order, and hands over what
//! is small. What it hands over is in the open pack, which is closed when it is full, and when the
//! chunk is done.
//!
//! 1. The open pack has an address from the start, so that nothing can fail when it is closed: an
//!    inode that was handed over counts as written. Whatever happens to the checkpoint, the pack is
//!    closed ([`Packs::close`]).
//! 2. Until then the table has the old entries of its inodes. So these stay in memory: those that
//!    were changed, because the checkpoint holds them, and bare files are not to be found before
//!    the table has them.
//! 3. When an inode is written elsewhere, the others in its old pack move along, copied as they
//!    lie, if all of them fit into the open pack; and so does one more pack of the chunk. So no two
//!    packs of a chunk that was written to fit into one, but for those of which inodes were removed
//!    or got blocks of their own since; and writing an inode anew takes no more blocks than if it
//!    had one of its own. Removing inodes writes nothing: a full volume can do it.
//! 4. A pack that the cleaner wants to be elsewhere moves in any case.
//! 5. A bare file is written without being in memory. An update of it may have come since it was
//!    last looked for, and waits for its being made: so when the table has it, it is looked for
//!    once more, and who looks it up in the table at the same time does so again
//!    ([`InodeCache::note_written`](crate::inodes::cache::InodeCache::note_written)).

use crate::engine::maintenance::{DeferredInode, Moving};
use crate::engine::sink::Sink;
use crate::error::Result;
use crate::inodes::Inodes;
use crate::tree::block_io::{BlockSink, BlockSource, Owner};
use crate::tree::inode_table::Held;
use lanefs_format::header::BlockKind;
use lanefs_format::pack::{self, PACK_SPACE, PACKED_MAX, SLOT_MIN, SLOTS_MAX};
use lanefs_format::table_node::{ENTRIES, TableEntry};
use lanefs_format::{Block, BlockAddr, BlockRef, INOS_PER_CHUNK, Ino};
use std::ops::Range;

/// A pack that is being filled.
struct Open {
    addr: BlockAddr,
    bytes: Vec<u8>,
    /// The number of each slot, the generation of its inode, and its bytes.
    slots: Vec<(u8, u32, Range<usize>)>,
    /// The files among them that are not in memory (5).
    bare: Vec<DeferredInode>,
}

impl Open {
    /// Returns whether so many bytes in so many slots fit behind what is there.
    fn has_space_for(&self, bytes: usize, slots: usize) -> bool {
        self.bytes.len() + bytes <= PACK_SPACE && self.slots.len() + slots <= SLOTS_MAX
    }
}

/// The chunk whose inodes are being written.
struct Current {
    number: u64,
    held: Held,
    /// Its entries; those of inodes in the open pack as they were.
    entries: [TableEntry; ENTRIES],
    /// Inodes that were written, a bit for each.
    written: u128,
    /// Packs that lost some of these.
    left: Vec<BlockAddr>,
}

/// See the head of the file.
pub(crate) struct Packs<'a> {
    inodes: &'a Inodes,
    /// The epoch that is folded.
    fold: u64,
    current: Option<Current>,
    open: Option<Open>,
    /// Bare files that the table has, and that are to be looked for once more (5).
    made: Vec<(DeferredInode, BlockRef)>,
}

impl<'a> Packs<'a> {
    pub fn new(inodes: &'a Inodes, fold: u64) -> Packs<'a> {
        Packs { inodes, fold, current: None, open: None, made: Vec::new() }
    }

    /// Goes on to `chunk`: what comes next is of it. The one before is done. No inode is locked.
    pub fn begin(&mut self, chunk: u64, moving: &mut Moving, sink: &mut Sink<'_>) -> Result<()> {
        if self.current.as_ref().is_some_and(|c| c.number == chunk) {
            return Ok(());
        }
        self.finish(moving, sink)?;
        let held = self.inodes.table.hold(chunk, &*sink)?;
        let entries = held.entries();
        self.current = Some(Current { number: chunk, held, entries, written: 0, left: Vec::new() });
        Ok(())
    }

    /// Returns the table's entry of an inode of the present chunk.
    pub fn entry(&self, ino: Ino) -> TableEntry {
        let c = self.current.as_ref().filter(|c| c.number == ino.chunk());
        debug_assert!(c.is_some(), "inode {ino} is not of the present chunk");
        c.map_or(TableEntry::default(), |c| c.entries[ino.slot()])
    }

    /// Makes sure that the open pack has space for a slot of so many bytes. It is the only step on
    /// an inode's way into a pack that can fail.
    pub fn make_space(&mut self, bytes: usize, sink: &mut Sink<'_>) -> Result<()> {
        debug_assert!(bytes <= PACKED_MAX, "a slot of {bytes} bytes");
        if self.open.as_ref().is_some_and(|o| o.has_space_for(bytes, 1)) {
            return Ok(());
        }
        self.close(sink);
        let Some(c) = &self.current else { return Ok(()) };
        let addr = sink.claim(Owner::Pack { chunk: c.number })?;
        let (bytes, slots) = (Vec::with_capacity(PACK_SPACE), Vec::with_capacity(SLOTS_MAX));
        self.open = Some(Open { addr, bytes, slots, bare: Vec::new() });
        Ok(())
    }

    /// Hands over the slot of an inode, for which there is space. Returns the block where it will
    /// lie, whose sum is not known yet.
    pub fn put(&mut self, ino: Ino, generation: u32, slot: &[u8]) -> BlockRef {
        self.note_written(ino);
        let Some(o) = &mut self.open else { return BlockRef::NONE };
        debug_assert!(o.has_space_for(slot.len(), 1), "no space was made for inode {ino}");
        let at = o.bytes.len();
        o.bytes.extend_from_slice(slot);
        o.slots.push((ino.slot() as u8, generation, at..o.bytes.len()));
        BlockRef { addr: o.addr, crc: 0 }
    }

    /// Writes a file of which nothing is known but that it was made. False if it needs to be made
    /// in memory.
    pub fn put_bare(&mut self, b: &DeferredInode, sink: &mut Sink<'_>) -> Result<bool> {
        let e = self.entry(b.ino);
        if !e.block.is_none() || e.generation > b.generation || self.inodes.cache.has(b.ino) {
            return Ok(false);
        }
        self.make_space(SLOT_MIN, sink)?;
        self.note_written(b.ino);
        let Some(o) = &mut self.open else { return Ok(false) };
        let at = o.bytes.len();
        let fits = pack::put_slot(&mut o.bytes, b.ino, &b.image());
        debug_assert!(fits && o.bytes.len() - at == SLOT_MIN, "an empty file has the shortest slot");
        o.slots.push((b.ino.slot() as u8, b.generation, at..o.bytes.len()));
        o.bare.push(*b);
        Ok(true)
    }

    /// Takes note that an inode of the present chunk has a block of its own now.
    pub fn set_own(&mut self, ino: Ino, block: BlockRef, generation: u32, sink: &mut Sink<'_>) {
        self.note_written(ino);
        let Some(c) = &mut self.current else { return };
        let entry = TableEntry { block, slot: 0, generation, epoch: self.fold };
        c.entries[ino.slot()] = entry;
        let free = c.held.set(ino, entry);
        if !free.is_none() {
            sink.free(free.addr);
        }
    }

    fn note_written(&mut self, ino: Ino) {
        let Some(c) = &mut self.current else { return };
        debug_assert_eq!(c.number, ino.chunk(), "inode {ino} is of another chunk");
        debug_assert!(c.written >> ino.slot() & 1 == 0, "inode {ino} is written twice");
        c.written |= 1 << ino.slot();
        let old = c.entries[ino.slot()];
        if old.slot != 0 && !c.left.contains(&old.block.addr) {
            c.left.push(old.block.addr);
        }
    }

    /// Ends the present chunk: others move into its last pack (3), and what the cleaner wants to
    /// move does (4).
    pub fn finish(&mut self, moving: &mut Moving, sink: &mut Sink<'_>) -> Result<()> {
        let Some(chunk) = self.current.as_ref().map(|c| c.number) else { return Ok(()) };
        while let Some((r, block)) = moving.get(&chunk).and_then(|all| all.last()).cloned() {
            self.move_pack(r, &block, sink)?;
            moving.get_mut(&chunk).map(Vec::pop);
        }
        moving.remove(&chunk);
        self.gather(sink);
        self.close(sink);
        self.current = None;
        Ok(())
    }

    /// Copies all inodes that are still in a pack to the open one, and others behind it.
    fn move_pack(&mut self, r: BlockRef, block: &Block, sink: &mut Sink<'_>) -> Result<()> {
        let Some(c) = &self.current else { return Ok(()) };
        // It was looked at before the cleaner put it on the list.
        let Ok(slots) = pack::decode(block, r.addr, c.number) else { return Ok(()) };
        for (ino, entry) in c.inodes_in(r.addr) {
            let Ok(slot) = slots.bytes(ino, entry.slot) else { continue };
            self.make_space(slot.len(), sink)?;
            self.put(ino, entry.generation, slot);
        }
        Ok(())
    }

    /// Fills the open pack with packs of the chunk that fit into it whole (3).
    fn gather(&mut self, sink: &Sink<'_>) {
        let (Some(c), Some(o)) = (&self.current, &self.open) else { return };
        let mut packs: Vec<(bool, usize, BlockRef)> = Vec::new();
        for (n, e) in c.entries.iter().enumerate().filter(|(_, e)| e.slot != 0) {
            if c.written >> n & 1 == 1 {
                continue;
            }
            match packs.iter_mut().find(|p| p.2 == e.block) {
                Some(p) => p.1 += 1,
                None => packs.push((!c.left.contains(&e.block.addr), 1, e.block)),
            }
        }
        packs.retain(|p| o.has_space_for(p.1 * SLOT_MIN, p.1));
        packs.sort_unstable_by_key(|p| (p.0, p.1, p.2.addr));
        let others = packs.iter().position(|p| p.0).unwrap_or(packs.len());
        packs.truncate(others + 1);
        for (_, _, r) in packs {
            self.gather_one(r, sink);
        }
    }

    fn gather_one(&mut self, r: BlockRef, sink: &Sink<'_>) {
        let (Some(c), Some(o)) = (&self.current, &self.open) else { return };
        let inodes = c.inodes_in(r.addr);
        if !o.has_space_for(inodes.len() * SLOT_MIN, inodes.len()) {
            return;
        }
        // One that cannot be read stays where it is, and who needs an inode of it gets the error.
        let Ok(block) = sink.read(r, BlockKind::Pack.name()) else { return };
        let Ok(old) = pack::decode(&block, r.addr, c.number) else { return };
        let slots: lanefs_format::Result<Vec<&[u8]>> =
            inodes.iter().map(|(ino, e)| old.bytes(*ino, e.slot)).collect();
        let Ok(slots) = slots else { return };
        if o.has_space_for(slots.iter().map(|s| s.len()).sum(), slots.len()) {
            for ((ino, e), slot) in inodes.iter().zip(slots) {
                self.put(*ino, e.generation, slot);
            }
        }
    }

    /// Writes the open pack, if there is one (1).
    pub fn close(&mut self, sink: &mut Sink<'_>) {
        let Some(mut o) = self.open.take() else { return };
        let Some(c) = &mut self.current else { return };
        debug_assert!(!o.slots.is_empty(), "a pack of nothing");
        o.slots.sort_unstable_by_key(|s| s.0);
        let block = pack::encode(c.number, o.slots.iter().map(|s| &o.bytes[s.2.clone()]));
        let r = sink.put(Owner::Pack { chunk: c.number }, o.addr, block);
        let mut freed = Vec::new();
        c.held.set_pack(r, o.slots.iter().map(|s| (s.0, s.1)), self.fold, &mut freed);
        for (slot, (number, generation, _)) in (1..).zip(&o.slots) {
            c.entries[usize::from(*number)] =
                TableEntry { block: r, slot, generation: *generation, epoch: self.fold };
        }
        freed.iter().for_each(|f| sink.free(f.addr));
        self.made.extend(o.bare.into_iter().map(|b| (b, r)));
    }

    /// Takes the next of the bare files that the table has by now (5), and where it lies.
    pub fn next_made(&mut self) -> Option<(DeferredInode, BlockRef)> {
        self.made.pop()
    }
}

impl Current {
    /// Returns the inodes that are in a pack and were not written since, with their entries.
    fn inodes_in(&self, addr: BlockAddr) -> Vec<(Ino, TableEntry)> {
        let first = self.number * INOS_PER_CHUNK;
        let all = self.entries.iter().enumerate();
        all.filter(|(n, e)| e.slot != 0 && e.block.addr == addr && self.written >> n & 1 == 0)
            .map(|(n, e)| (Ino(first + n as u64), *e))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::api::{FormatOptions, OpenOptions};
    use crate::device::{Device, MemoryDevice};
    use crate::engine::plan::plan;
    use crate::testing::file;
    use std::sync::Arc;

    /// An update that came while its file was on the way into a pack waited for ever: nobody looked
    /// for the inode that it had made.
    #[test]
    fn an_update_of_a_file_on_its_way_into_a_pack_is_written_behind_it() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(16 << 20).unwrap());
        Store::format(std::slice::from_ref(&device), &FormatOptions::default()).unwrap();
        let (s, _) = Store::open(vec![device.clone()], &OpenOptions::default()).unwrap();
        let (e, io) = (&s.engine, &s.engine.log.io);
        {
            let mut m = e.maintenance.lock();
            let mut dirty = Default::default();
            let mut sink = Sink::new(&e.log, &e.totals, &mut dirty);
            let made: Vec<u8> = (1024..1034).flat_map(|ino| file(5, ino)).collect();
            e.fold().fold(&mut m, plan([&made[..]], 1).unwrap(), &mut sink).unwrap();
            let mut packs = Packs::new(&e.inodes, 5);
            while let Some(b) = m.deferred.next() {
                packs.begin(b.ino.chunk(), &mut m.moving, &mut sink).unwrap();
                assert!(packs.put_bare(&b, &mut sink).unwrap());
                m.deferred.pop();
            }
            // Nobody finds it in the table yet.
            let attrs = lanefs_format::Attrs { uid: 9, mode: libc::S_IFREG | 0o600, ..Default::default() };
            let inode = e.inodes.get_or_new(Ino(1027), &attrs, io).unwrap();
            assert!(!inode.lock().folded);
            inode.lock().state.apply_attrs(&attrs, 1);
            e.inodes.cache.list_dirty(&inode, &mut inode.lock());
            packs.finish(&mut m.moving, &mut sink).unwrap();
            assert!(!inode.lock().folded);
            while let Some((b, pack)) = packs.next_made() {
                e.fold().wrote_bare(&mut m.changed, &b, pack);
                e.totals.inodes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
            assert!(inode.lock().folded && inode.lock().state.is_packed());
            e.checkpoints().capture().capture_all(&mut m, 5, &mut sink).unwrap();
            assert!(inode.lock().state.block() != e.inodes.table.lookup(Ino(1026), io).unwrap().block);
            assert!(e.inodes.get(Ino(1026), io).unwrap().is_some());
            m.usage.dirty.append(&mut dirty);
        }
        s.close().unwrap();
        drop(s);
        let (s, _) = Store::open(vec![device], &OpenOptions::default()).unwrap();
        let owner = |ino: u64| s.load_inode(Ino(ino)).unwrap().map(|i| (i.attrs.uid, i.nlink));
        assert_eq!((owner(1026), owner(1027)), (Some((0, 1)), Some((9, 1))));
        assert_eq!(s.audit().unwrap().problems, [""; 0]);
    }
}
