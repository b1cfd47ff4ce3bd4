//! Reading everything, to find what the medium has lost before somebody needs it.
//!
//! A scrub goes through the tree of the last checkpoint in steps: structures of the volume, then
//! inode by inode every node, attribute and data block below it, each compared with the sum that
//! its parent holds. The store goes on working meanwhile.
//!
//! 1. Blocks are read from the medium, past every cache. What waits in the queue has not been
//!    written and is passed over.
//! 2. What the last checkpoint refers to is not overwritten before a newer one is durable
//!    (docs/SPEC.md, section 16). So a wrong sum is damage exactly if the inode table still names
//!    the same block for the inode after the read; otherwise the inode is read again.
//! 3. Of a block of the tree that has a copy (`copies`) both are read. If one of them is bad, it is
//!    no damage but repaired.
//! 4. What was written since the last checkpoint is not looked at; who wants that makes a
//!    checkpoint first. A volume that was recovered in memory, to be read only, cannot have one:
//!    there the inodes that recovery changed are looked at as they are in memory.

use super::{after, next_mapped};
use crate::device::ReadReq;
use crate::engine::Engine;
use crate::engine::maintenance::Maintenance;
use crate::error::{FILE_DATA, Result, StoreError};
use crate::log::io::Io;
use crate::tree::block_io::BlockSource;
use crate::tree::inode_state::InodeState;
use crate::tree::inode_table::ChunkStep;
use crate::tree::radix::Found;
use lanefs_format::checksum;
use lanefs_format::header::BlockKind;
use lanefs_format::orphans;
use lanefs_format::slot::Slot;
use lanefs_format::superblock::{Superblock, UnverifiedSuperblock};
use lanefs_format::table_node::TableEntry;
use lanefs_format::{BLOCK_SHIFT, Block, BlockAddr, BlockRef, INOS_PER_CHUNK, Ino};
use lanefs_sync::lock::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Data blocks read at once.
const AT_ONCE: usize = 64;
/// So often an inode that changes while it is read is read again; then it is left to the next
/// scrub.
const TRIES: usize = 4;

/// The place that a scrub has come to. The default is the beginning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct ScrubCursor {
    /// The inode to go on with; 0 for the beginning.
    pub ino: u64,
    /// The page of it.
    pub page: u64,
}

/// A block whose bytes are not what they should be, or that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScrubDamage {
    /// The file or directory it belongs to; none for structures of the volume.
    pub ino: Ino,
    /// The page of a file's content.
    pub page: Option<u64>,
    /// Its device,
    pub device: u8,
    /// and the block of that.
    pub block: u64,
    /// The structure and the problem with it.
    pub what: String,
}

/// The findings of one step of a scrub.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ScrubStep {
    /// The place at which the next step begins; `None` at the end.
    pub next: Option<ScrubCursor>,
    /// Blocks of file data compared.
    pub data_blocks: u64,
    /// Blocks of structures compared.
    pub node_blocks: u64,
    /// Blocks that are damaged.
    pub damage: Vec<ScrubDamage>,
    /// Blocks that were damaged, and are written again from their copies.
    pub repaired: Vec<ScrubDamage>,
}

impl ScrubStep {
    fn blocks(&self) -> u64 {
        self.data_blocks + self.node_blocks
    }
    fn add(&mut self, ino: Ino, page: Option<u64>, block: BlockAddr, what: String) {
        let device = block.device() as u8;
        self.damage.push(ScrubDamage { ino, page, device, block: block.block(), what });
    }
}

/// The medium itself, and behind it what is not there yet.
struct Medium<'a> {
    io: Io,
    engine: &'a Engine,
    /// The pack that was read last: what lies beside an inode is mostly the next.
    pack: Mutex<Option<(BlockRef, Box<Block>)>>,
}

impl Medium<'_> {
    /// Reads an inode. Returns whether its block was read for it, too.
    fn read_inode(&self, ino: Ino, at: &TableEntry) -> (bool, Result<InodeState>) {
        if at.slot == 0 {
            return (true, InodeState::load(ino, at, self));
        }
        let mut last = self.pack.lock();
        let is_first = last.as_ref().is_none_or(|l| l.0 != at.block);
        if is_first {
            match self.read(at.block, BlockKind::Pack.name()) {
                Ok(b) => *last = Some((at.block, b)),
                Err(e) => return (true, Err(e)),
            }
        }
        let Some((_, block)) = &*last else { return (true, InodeState::load(ino, at, self)) };
        (is_first, InodeState::from_block(ino, at, block))
    }

    /// Reads file data: it has no copy.
    fn read_data(&self, r: BlockRef, what: &'static str) -> Result<Box<Block>> {
        match self.io.read(r, what) {
            Err(e) if self.engine.log.io.is_queued(r) => self.engine.log.io.read(r, what).map_err(|_| e),
            done => done,
        }
    }
}

impl BlockSource for Medium<'_> {
    fn read(&self, r: BlockRef, what: &'static str) -> Result<Box<Block>> {
        let b = self.read_data(r, what)?;
        if !self.engine.log.io.is_queued(r) {
            let _ = self.io.bad_copy(r, what); // Remembered for the end of the step.
        }
        Ok(b)
    }
}

/// Scrubs an open volume.
pub(crate) struct Scrub<'a>(pub &'a Engine);

impl Scrub<'_> {
    /// Returns an error after the end: reads go on after an error of a write, but not then.
    fn check_open(&self) -> Result<()> {
        // Relaxed: a device that is read a little later does no harm.
        if self.0.log.sections.closing.load(Ordering::Relaxed) { Err(StoreError::Closed) } else { Ok(()) }
    }

    /// Compares about `budget` blocks with their sums, from `from` on.
    ///
    /// # Errors
    /// If the store is closed or was stopped. Damage is no error.
    pub fn scrub(&self, from: ScrubCursor, budget: u64) -> Result<ScrubStep> {
        self.check_open()?;
        let (mut step, medium) = loop {
            let (superblock, devices) = (self.0.superblock(), self.0.log.io.devices());
            let io = Io::new(devices.to_vec(), 0, true).of(&superblock);
            let medium = Medium { io, engine: self.0, pack: Mutex::new(None) };
            let step = self.scrub_on(&medium, from, budget)?;
            let are_the_same = Arc::ptr_eq(&superblock, &self.0.superblock())
                && devices.len() == self.0.log.io.devices().len();
            // Else a block may lie on a device that came meanwhile, or was asked of one that went.
            if step.damage.is_empty() || are_the_same {
                break (step, medium);
            }
            self.check_open()?;
        };
        debug_assert!(step.next.is_none_or(|n| n > from), "a scrub from {from:?} goes on at {:?}", step.next);
        debug_assert_eq!(medium.io.queue_len(), 0, "who only reads has queued blocks");
        let bad = medium.io.take_suspects();
        if bad.is_empty() {
            return Ok(step);
        }
        self.0.log.io.suspect_all(bad);
        let healed = {
            let mut m = self.0.maintenance.lock();
            self.check_open()?;
            self.0.cleaner().heal(&mut m)
        };
        if !self.0.log.read_only {
            self.0.log.io.flush(healed.iter().fold(0, |m, h| m | 1 << h.at.device()))?;
        }
        for h in healed {
            let (device, block) = (h.at.device() as u8, h.at.block());
            let done = if self.0.log.read_only {
                "the other copy is used"
            } else {
                "written again from the other copy"
            };
            let what = format!("{}, one of two copies: {}; {done}", h.what, h.why);
            let one = ScrubDamage { ino: h.ino, page: None, device, block, what };
            if self.0.log.read_only { step.damage.push(one) } else { step.repaired.push(one) }
        }
        Ok(step)
    }

    fn scrub_on(&self, medium: &Medium<'_>, from: ScrubCursor, budget: u64) -> Result<ScrubStep> {
        let mut step = ScrubStep::default();
        if from.ino == 0 {
            self.scrub_volume(medium, &mut step);
        }
        let mut at = from;
        let mut last = None;
        let replayed = if self.0.log.read_only { self.0.inodes.cache.dirty_inos() } else { BTreeSet::new() };
        loop {
            let in_memory = replayed.range(Ino(at.ino)..).next().map(|i| i.chunk());
            let chunk = match self.0.inodes.table.next_chunk_or_gap(Ino(at.ino).chunk(), &self.0.log.io) {
                ChunkStep::End => match in_memory {
                    Some(c) => c,
                    None => return Ok(step),
                },
                ChunkStep::Lost(range, e) => {
                    step.add(Ino::NONE, None, BlockAddr::NONE, format!("inode table: {e}"));
                    at = ScrubCursor { ino: range.end.saturating_mul(INOS_PER_CHUNK), page: 0 };
                    continue;
                }
                ChunkStep::Chunk(c) => in_memory.map_or(c, |m| m.min(c)),
            };
            if chunk != Ino(at.ino).chunk() {
                at = ScrubCursor { ino: chunk * INOS_PER_CHUNK, page: 0 };
            }
            self.scrub_table(chunk, last, medium, &mut step);
            last = Some(chunk);
            let end = (chunk + 1) * INOS_PER_CHUNK;
            let entries = match self.0.inodes.table.chunk_entries(chunk, &self.0.log.io) {
                Ok(e) => e,
                Err(e) => {
                    step.add(Ino::NONE, None, BlockAddr::NONE, format!("inode table: {e}"));
                    at = ScrubCursor { ino: end, page: 0 };
                    continue;
                }
            };
            while at.ino < end {
                let ino = Ino(at.ino);
                let e = entries[ino.slot()];
                if replayed.contains(&ino) {
                    self.scrub_replayed(ino, medium, &mut step)?;
                    at = ScrubCursor { ino: at.ino + 1, page: 0 };
                } else if !e.block.is_none()
                    && let Some(page) = self.scrub_inode(ino, e, at.page, budget, medium, &mut step)?
                {
                    at.page = page;
                } else {
                    at = ScrubCursor { ino: at.ino + 1, page: 0 };
                }
                if step.blocks() >= budget {
                    step.next = Some(at);
                    return Ok(step);
                }
            }
        }
    }

    /// Scrubs superblocks, slots, usage table, summaries, orphans.
    fn scrub_volume(&self, medium: &Medium<'_>, step: &mut ScrubStep) {
        // Usage table and summaries.
        let wanted = |m: &Maintenance| -> Vec<BlockRef> {
            m.usage.blocks().into_iter().map(|b| b.0).filter(|r| self.is_block(*r)).collect()
        };
        let refs = {
            // No checkpoint meanwhile, and no change of the superblock.
            let m = self.0.maintenance.lock();
            self.scrub_superblocks(step);
            self.scrub_slots(medium, step);
            self.scrub_orphans(&m, medium, step);
            wanted(&m)
        };
        step.node_blocks += refs.len() as u64;
        let bad: Vec<_> = refs.into_iter().filter(|r| medium.read(*r, "usage table").is_err()).collect();
        if bad.is_empty() {
            return;
        }
        let m = self.0.maintenance.lock();
        let still: std::collections::HashSet<BlockAddr> = wanted(&m).iter().map(|r| r.addr).collect();
        for r in bad.into_iter().filter(|r| still.contains(&r.addr)) {
            if let Err(e) = medium.read(r, "usage table") {
                step.add(Ino::NONE, None, r.addr, e.to_string());
            }
        }
    }

    fn scrub_superblocks(&self, step: &mut ScrubStep) {
        for (d, device) in self.0.log.io.devices().iter().enumerate() {
            let superblock = Superblock { device_index: d as u8, ..(*self.0.superblock()).clone() };
            for at in superblock.places() {
                let mut b = Block::zeroed();
                let read = device.read(&mut [ReadReq { offset: at << BLOCK_SHIFT, data: &mut b.0 }]);
                let blocks = device.size() >> BLOCK_SHIFT;
                let why = match read {
                    Err(e) => Some(e.to_string()),
                    Ok(()) => UnverifiedSuperblock(b)
                        .verify(at, blocks)
                        .err()
                        .map(|e| StoreError::superblock(device.name(), &e).to_string()),
                };
                step.node_blocks += 1;
                if let Some(why) = why {
                    let name = if at == 0 { "superblock" } else { "copy of the superblock" };
                    step.add(Ino::NONE, None, BlockAddr::new(d as u8, at), format!("{name}: {why}"));
                }
            }
        }
    }

    fn scrub_slots(&self, medium: &Medium<'_>, step: &mut ScrubStep) {
        for addr in (0..2).flat_map(|i| self.0.superblock().slot_places(i)) {
            let mut b = Block::zeroed();
            let read = medium.io.read_raw(addr, &mut b.0, "checkpoint slot");
            step.node_blocks += 1;
            // Of a new volume one slot was never written.
            if read.is_ok() && b.0.iter().all(|x| *x == 0) {
                continue;
            }
            if let Err(e) = read.and_then(|()| Ok(Slot::decode(&b, addr, self.0.log.volume)?)) {
                step.add(Ino::NONE, None, addr, e.to_string());
            }
        }
    }

    fn scrub_orphans(&self, m: &Maintenance, medium: &Medium<'_>, step: &mut ScrubStep) {
        let (mut next, mut index) = (m.slot.orphans, 0);
        while !next.is_none() {
            step.node_blocks += 1;
            let read = medium
                .read(next, "orphan list")
                .and_then(|b| Ok(orphans::decode_orphans(&b, next.addr, index)?));
            match read {
                Ok((_, after)) => (next, index) = (after, index + 1),
                Err(e) => return step.add(Ino::NONE, None, next.addr, e.to_string()),
            }
        }
    }

    /// Scrubs the nodes of the inode table above `chunk`, as far as the chunk `last` was not below
    /// them too.
    fn scrub_table(&self, chunk: u64, last: Option<u64>, medium: &Medium<'_>, step: &mut ScrubStep) {
        for level in 0..=self.0.inodes.table.root().1 {
            let index = |c: u64| c.checked_shr(8 * u32::from(level)).unwrap_or(0);
            if last.is_some_and(|l| index(l) == index(chunk)) {
                continue;
            }
            let node = || self.0.inodes.table.node_ref(level, index(chunk), &self.0.log.io).ok();
            let Some(r) = node().filter(|r| self.is_block(*r)) else { continue };
            step.node_blocks += 1;
            let Err(e) = medium.read(r, "inode table node") else { continue };
            if node() == Some(r) {
                step.add(Ino::NONE, None, r.addr, e.to_string());
            }
        }
    }

    /// Returns whether a reference can lead to a block at all: changed nodes have none yet.
    fn is_block(&self, r: BlockRef) -> bool {
        self.0.log.segments.geometry.locate(r.addr).is_some()
    }

    /// Scrubs an inode as recovery made it in memory: every block it refers to that lies on the
    /// medium.
    fn scrub_replayed(&self, ino: Ino, medium: &Medium<'_>, step: &mut ScrubStep) -> Result<()> {
        let Some(inode) = self.0.inodes.get(ino, &self.0.log.io)? else { return Ok(()) };
        let mut inner = inode.lock();
        if inner.gone || !inner.folded {
            return Ok(()); // No name leads to it.
        }
        step.node_blocks += 1;
        visit_state(ino, &mut inner.state, 0, u64::MAX, medium, step);
        Ok(())
    }

    /// Scrubs one inode from `page` on; returns the page to go on with if the budget was used up.
    fn scrub_inode(
        &self,
        ino: Ino,
        entry: TableEntry,
        page: u64,
        budget: u64,
        medium: &Medium<'_>,
        step: &mut ScrubStep,
    ) -> Result<Option<u64>> {
        let mut at = entry;
        for _ in 0..TRIES {
            let mut part = ScrubStep::default();
            let left = budget.saturating_sub(step.blocks()).max(1);
            let next = visit(ino, &at, page, left, medium, &mut part);
            let now =
                if part.damage.is_empty() { at } else { self.0.inodes.table.lookup(ino, &self.0.log.io)? };
            if now.block == at.block {
                step.data_blocks += part.data_blocks;
                step.node_blocks += part.node_blocks;
                step.damage.append(&mut part.damage);
                return Ok(next);
            }
            at = now;
            if at.block.is_none() {
                return Ok(None);
            }
        }
        Ok(None)
    }
}

/// Compares everything below an inode block; returns the page to go on with.
fn visit(
    ino: Ino,
    at: &TableEntry,
    from: u64,
    budget: u64,
    medium: &Medium<'_>,
    step: &mut ScrubStep,
) -> Option<u64> {
    let (is_first, read) = medium.read_inode(ino, at);
    step.node_blocks += u64::from(is_first);
    let mut state = match read {
        Ok(s) => s,
        Err(e) => {
            step.add(ino, None, at.block.addr, e.to_string());
            return None;
        }
    };
    visit_state(ino, &mut state, from, budget, medium, step)
}

/// Compares everything below an inode whose block is in memory; returns the page to go on with.
fn visit_state(
    ino: Ino,
    state: &mut InodeState,
    from: u64,
    budget: u64,
    medium: &Medium<'_>,
    step: &mut ScrubStep,
) -> Option<u64> {
    if let (0, Err((_, refs))) = (from, state.xattrs()) {
        for r in refs {
            step.node_blocks += 1;
            if let Err(e) = medium.read(*r, "extended attribute block") {
                step.add(ino, None, r.addr, e.to_string());
            }
        }
    }
    let mut page = from;
    let mut some: Vec<(u64, BlockRef)> = Vec::with_capacity(AT_ONCE);
    let next = loop {
        match next_mapped(state, page) {
            Found::Here(None) => break None,
            Found::Missing(w) => {
                step.node_blocks += 1;
                let done = medium.read(w.r, w.what).and_then(|b| state.install(&w, &b));
                if let Err(e) = done {
                    step.add(ino, None, w.r.addr, e.to_string());
                    page = after(&w);
                }
            }
            Found::Here(Some((p, r))) => {
                page = p + 1;
                some.push((p, r));
                if some.len() == AT_ONCE {
                    compare(ino, state, &mut some, medium, step);
                    // Of a large map only the part that is read stays in memory.
                    state.evict_clean();
                    if step.blocks() >= budget {
                        break Some(page);
                    }
                }
            }
        }
    };
    compare(ino, state, &mut some, medium, step);
    debug_assert!(next.is_none_or(|n| n > from), "page {from} of inode {ino} is compared for ever");
    next
}

fn compare(
    ino: Ino,
    state: &InodeState,
    some: &mut Vec<(u64, BlockRef)>,
    medium: &Medium<'_>,
    step: &mut ScrubStep,
) {
    debug_assert!(some.len() <= AT_ONCE, "{} blocks are read at once", some.len());
    debug_assert!(some.is_sorted_by(|a, b| a.0 < b.0), "a page of inode {ino} is compared twice");
    let is_dir = state.is_dir();
    let refs: Vec<BlockRef> = some.iter().map(|s| s.1).collect();
    // Of buckets with copies both are read.
    let ahead = if is_dir { None } else { medium.io.read_ahead(&refs) };
    for (i, (page, r)) in some.drain(..).enumerate() {
        if is_dir {
            step.node_blocks += 1
        } else {
            step.data_blocks += 1
        }
        if ahead.as_ref().is_some_and(|b| checksum::matches(r, &b[i].0)) {
            continue;
        }
        let read = match is_dir {
            true => medium.read(r, "directory bucket"),
            false => medium.read_data(r, FILE_DATA),
        };
        if let Err(e) = read {
            step.add(ino, (!is_dir).then_some(page), r.addr, e.to_string());
        }
    }
}
