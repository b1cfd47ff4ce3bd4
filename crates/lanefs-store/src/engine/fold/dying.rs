//! Link counts, and what dies of them; above all small files that are in packs and not in memory.
//!
//! A fold may remove a million of them, and all there is to be done for an empty one is to free its
//! number: it has no blocks, no promises and no marks. How many names it had is in its slot of the
//! pack, so the pack is read, once for all of its files, and no inode is made of any. The files of
//! a chunk of the inode table end together: the chunk is looked for once, and searched for other
//! names of a pack once for each pack, not for each file.
//!
//! 1. An inode in memory may know more than its slot. So none is passed by: it is looked for in
//!    memory before its slot is, and once more when its number is free. Who has read the table
//!    before that, and was not done then, looks at the table again
//!    ([`InodeCache::note_written`](crate::inodes::cache::InodeCache::note_written)).
//! 2. What has names left, or is of another generation, is left to the way of all inodes, which
//!    refuses it (3 of `apply`).

use super::Fold;
use super::apply::{TOGETHER, shared_from};
use crate::engine::maintenance::Maintenance;
use crate::engine::plan::Plan;
use crate::engine::sink::Sink;
use crate::error::Result;
use crate::log::io::Io;
use crate::tree::block_io::{BlockSink, BlockSource};
use lanefs_format::header::BlockKind;
use lanefs_format::inode::InodeBlock;
use lanefs_format::pack::{self, SLOT_MIN};
use lanefs_format::table_node::TableEntry;
use lanefs_format::{BlockRef, INOS_PER_CHUNK, Ino};
use lanefs_sync::parallel;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// An inode that loses names in the fold in which it dies.
#[derive(Clone, Copy)]
struct Dying {
    ino: Ino,
    generation: u32,
    /// The names that it gains; mostly -1.
    delta: i64,
    /// Where it is among the plan's dead.
    at: usize,
}

/// Files of a chunk that are too few to be worth a request of their own.
const FEW: usize = 16;

/// What the slot of an empty file says.
#[derive(Clone, Copy)]
struct Bare {
    ino: Ino,
    generation: u32,
    names: u32,
}

/// What one of several threads has done to the links that it was given.
#[derive(Default)]
struct EndedShare {
    /// Numbers that are free, with the generation of their next use.
    freed: Vec<(Ino, u32)>,
    /// Which of the plan's dead are done with.
    ended: Vec<usize>,
    /// What is left.
    left: Vec<(Ino, i64)>,
}

/// The pack that was looked at last.
#[derive(Default)]
struct DyingPacks {
    at: BlockRef,
    /// By slot; none for what has more than an empty file.
    slots: Vec<Option<Bare>>,
}

impl DyingPacks {
    /// Returns what the slot says that an entry of the inode table names, if it is that of an empty
    /// file.
    fn bare(&mut self, ino: Ino, entry: &TableEntry, io: &Io) -> Option<Bare> {
        debug_assert!(entry.slot != 0, "inode {ino} is not in a pack");
        if self.at != entry.block {
            self.slots.clear();
            self.at = entry.block;
            // Who reads the inode for itself gets the error.
            let block = io.read(entry.block, BlockKind::Pack.name()).ok()?;
            let slots = pack::decode(&block, entry.block.addr, ino.chunk()).ok()?;
            for (ino, slot) in slots.inodes() {
                let is_short = slots.bytes(ino, slot).is_ok_and(|b| b.len() == SLOT_MIN);
                let inode = if is_short { slots.inode(ino, slot).ok() } else { None };
                let bare = |i: InodeBlock| Bare { ino, generation: i.attrs.generation, names: i.nlink };
                self.slots.push(inode.map(bare));
            }
            debug_assert!(self.slots.len() <= pack::SLOTS_MAX, "{} slots", self.slots.len());
        }
        let bare = self.slots.get(usize::from(entry.slot) - 1).copied().flatten();
        bare.filter(|b| b.ino == ino)
    }
}

impl Fold<'_> {
    /// Folds all link counts, and what dies of them (2 of `apply`). Returns which of the dead are
    /// done with.
    pub(super) fn fold_all_links(
        &self,
        m: &mut Maintenance,
        plan: &Plan<'_>,
        mut links: Vec<(Ino, i64)>,
        sink: &mut Sink<'_>,
    ) -> Result<Vec<bool>> {
        debug_assert!(links.is_sorted_by(|a, b| a.0 < b.0), "links of one inode are counted twice");
        debug_assert!(links.iter().all(|l| l.1 != 0), "a count does not change");
        let mut ended = vec![false; plan.dead.len()];
        links = self.end_together(m, plan, &links, &mut ended, sink)?;
        let mut dead = plan.dead.iter().enumerate().peekable();
        for (n, &(ino, delta)) in links.iter().enumerate() {
            if n % TOGETHER == 0 {
                self.inodes.expect(links[n..].iter().take(TOGETHER).map(|l| l.0), &self.log.io)?;
            }
            while dead.next_if(|d| d.1.0 < ino).is_some() {}
            self.fold_links(m, ino, delta)?;
            if let Some(&(at, &(_, generation))) = dead.peek().filter(|d| d.1.0 == ino) {
                self.fold_death(m, ino, generation, sink)?;
                m.changed.pop_if(|c| c.ino == ino && c.lock().gone);
                ended[at] = true;
            }
            self.inodes.evict_or_flush(n, sink)?;
        }
        Ok(ended)
    }

    /// Ends empty files that are not in memory, with several threads if they are many, each with
    /// chunks of the inode table and a sink of its own. Returns the links that are left.
    fn end_together(
        &self,
        m: &mut Maintenance,
        plan: &Plan<'_>,
        links: &[(Ino, i64)],
        ended: &mut [bool],
        sink: &mut Sink<'_>,
    ) -> Result<Vec<(Ino, i64)>> {
        let threads = if links.len() < shared_from() { 1 } else { self.log.threads() };
        let each = links.len().div_ceil(threads).max(1);
        let mut shares = Vec::new();
        let mut rest = links;
        while !rest.is_empty() {
            let chunk = rest[each.min(rest.len()) - 1].0.chunk();
            let (share, behind) = rest.split_at(rest.partition_point(|l| l.0.chunk() <= chunk));
            shares.push(share);
            rest = behind;
        }
        let (beside, orphans) = (&*sink, &m.orphans);
        let parts = parallel::map(shares, |links| {
            let (mut done, mut dirty) = (EndedShare::default(), BTreeSet::new());
            let r = self.end_share(orphans, plan, links, &mut done, &mut beside.beside(&mut dirty));
            (r, done, dirty)
        });
        let (mut left, mut result) = (Vec::new(), Ok(()));
        for (r, mut done, dirty) in parts {
            sink.take_leaves(dirty);
            m.freed.append(&mut done.freed);
            left.append(&mut done.left);
            done.ended.iter().for_each(|at| ended[*at] = true);
            // Relaxed: only the holder of the maintenance lock changes it.
            self.totals.inodes.fetch_sub(done.ended.len() as u64, Ordering::Relaxed);
            result = result.and(r);
        }
        debug_assert!(left.is_sorted_by(|a, b| a.0 < b.0), "what is left is out of order");
        result.map(|()| left)
    }

    fn end_share(
        &self,
        orphans: &BTreeSet<Ino>,
        plan: &Plan<'_>,
        links: &[(Ino, i64)],
        done: &mut EndedShare,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let Some(first) = links.first() else { return Ok(()) };
        let mut at = plan.dead.partition_point(|d| d.0 < first.0);
        let (mut n, mut asked, mut all) = (0, 0, Vec::with_capacity(INOS_PER_CHUNK as usize));
        for of_chunk in links.chunk_by(|a, b| a.0.chunk() == b.0.chunk()) {
            all.clear();
            // Where few of a chunk end, their packs are read with those of the next chunks.
            if of_chunk.len() < FEW && n >= asked {
                self.inodes.expect(links[n..].iter().take(TOGETHER).map(|l| l.0), &self.log.io)?;
                asked = n + TOGETHER;
            }
            for &(ino, delta) in of_chunk {
                while plan.dead.get(at).is_some_and(|d| d.0 < ino) {
                    at += 1;
                }
                // (1): it may be in memory, and know more than its slot.
                let dying = plan.dead.get(at).filter(|d| d.0 == ino);
                let dying = dying.filter(|_| !orphans.contains(&ino) && !self.inodes.cache.has(ino));
                all.extend(dying.map(|d| Dying { ino, generation: d.1, delta, at }));
            }
            if !all.is_empty() {
                self.end_bare(&mut all, done, sink)?;
            }
            let mut ended = all.iter().map(|d| d.ino).peekable();
            let is_left = |l: &&(Ino, i64)| ended.next_if_eq(&l.0).is_none();
            done.left.extend(of_chunk.iter().filter(is_left));
            // As often as for one after the other: a chunk may have one of them.
            let before = n;
            n += of_chunk.len();
            let is_time = n / TOGETHER > before / TOGETHER;
            self.inodes.evict_or_flush(if is_time { TOGETHER - 1 } else { 0 }, sink)?;
        }
        debug_assert_eq!(done.ended.len() + done.left.len(), links.len(), "each is ended or left");
        Ok(())
    }

    /// Ends those files of a chunk, none of which is in memory, that are empty by their slots; the
    /// others leave the list. Who calls this counts the inodes.
    fn end_bare(&self, all: &mut Vec<Dying>, done: &mut EndedShare, sink: &mut Sink<'_>) -> Result<()> {
        let Some(chunk) = all.first().map(|d| d.ino.chunk()) else { return Ok(()) };
        debug_assert!(all.iter().all(|d| d.ino.chunk() == chunk), "files of several chunks");
        let Some(held) = self.inodes.table.find(chunk, &self.log.io)? else {
            all.clear();
            return Ok(());
        };
        let entries = held.entries();
        let entry = |ino: Ino| &entries[ino.slot()];
        all.retain(|d| entry(d.ino).slot != 0 && entry(d.ino).generation == d.generation);
        let mut refs: Vec<BlockRef> = all.iter().map(|d| entry(d.ino).block).collect();
        refs.dedup();
        self.log.io.expect(&refs);
        let mut packs = DyingPacks::default();
        all.retain(|d| {
            let bare = packs.bare(d.ino, entry(d.ino), &self.log.io);
            bare.is_some_and(|b| b.generation == d.generation && i64::from(b.names) + d.delta <= 0)
        });
        if all.is_empty() {
            return Ok(());
        }
        let next = |d: &Dying| (d.ino, d.generation.wrapping_add(1));
        let mut free = Vec::new();
        // Relaxed: for stamps and reports.
        let epoch = self.log.epoch.load(Ordering::Relaxed);
        held.clear_all(all.iter().map(next), epoch, &mut free);
        sink.end(|sink| free.iter().for_each(|block| sink.free(block.addr)));
        done.freed.extend(all.iter().map(next));
        done.ended.extend(all.iter().map(|d| d.at));
        for d in all {
            // Somebody may have brought it into memory meanwhile (1).
            if let Some(inode) = self.inodes.cache.note_written(d.ino) {
                let folded = self.end_in_memory(&inode, sink)?;
                debug_assert!(folded, "inode {} was in the table, and is not folded", d.ino);
            }
        }
        Ok(())
    }
}
