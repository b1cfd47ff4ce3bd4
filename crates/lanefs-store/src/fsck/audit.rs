//! Checks an open store against itself: every block the tree refers to is marked once, and every
//! mark has a reference.

use crate::engine::Engine;
use crate::engine::maintenance::Maintenance;
use crate::error::{Result, StoreError};
use crate::tree::block_io::{BlockSource, Owner};
use lanefs_format::header::BlockKind;
use lanefs_format::pack;
use lanefs_format::summary::DataOwner;
use lanefs_format::table_node::TableEntry;
use lanefs_format::{BlockAddr, BlockRef, Ino};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::Ordering;

/// The findings of an audit.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    /// Inodes in the table.
    pub inodes: u64,
    /// Blocks referred to.
    pub blocks: u64,
    /// The problems, in words. Empty for a sound volume.
    pub problems: Vec<String>,
}

struct Walk<'a> {
    engine: &'a Engine,
    seen: BTreeMap<BlockAddr, Owner>,
    /// Preallocated pages without a block.
    unwritten: u64,
    /// Blocks that are charged for inodes that may need them.
    charged: u64,
    packs: HashSet<BlockAddr>,
    audit: Audit,
}

impl Walk<'_> {
    fn see(&mut self, r: BlockRef, owner: Owner) {
        if r.is_none() {
            return;
        }
        if let Some(other) = self.seen.insert(r.addr, owner) {
            self.audit.problems.push(format!("block {} belongs to {other:?} and to {owner:?}", r.addr));
        }
        if !self.engine.log.segments.is_live(r.addr) {
            self.audit.problems.push(format!("block {} of {owner:?} is not marked as in use", r.addr));
        }
        let (t, node) = (&self.engine.log.segments, !matches!(owner, Owner::Data { .. }));
        let paired = t.geometry.locate(r.addr).is_some_and(|(seg, _)| t.is_paired(seg));
        if paired != (node && t.geometry.copies == 2) {
            let how = if paired { "should have no copy" } else { "has no copy" };
            self.audit.problems.push(format!("block {} of {owner:?} {how}", r.addr));
        }
        if paired && self.engine.log.io.copy_of(r.addr).is_none_or(|c| !t.is_live(c)) {
            self.audit.problems.push(format!("the copy of block {} of {owner:?} is not marked", r.addr));
        }
    }

    fn inode(&mut self, ino: Ino, entry: TableEntry) -> Result<()> {
        let Some(inode) = self.engine.inodes.get(ino, &self.engine.log.io)? else {
            self.audit.problems.push(format!("inode {ino} is in the table but cannot be found"));
            return Ok(());
        };
        let mut i = inode.lock();
        let packed = entry.slot != 0;
        if i.state.is_packed() != packed || !packed && i.state.block() != entry.block {
            self.audit.problems.push(format!("inode {ino}: memory and table disagree about its block"));
        }
        if !packed {
            self.see(entry.block, Owner::Inode { ino });
        } else if self.packs.insert(entry.block.addr) {
            self.see(entry.block, Owner::Pack { chunk: ino.chunk() });
        }
        if packed {
            self.in_pack(ino, entry)?;
        }
        self.charged += i.own_charged + i.map_charged;
        if let Err((_, refs)) = i.state.xattrs() {
            for (index, r) in refs.iter().copied().enumerate() {
                self.see(r, Owner::Xattr { ino, index: index as u64 });
            }
        }
        let mut pages = Vec::new();
        i.state.for_each_page(&self.engine.log.io, &mut |page, r| {
            pages.push((page, r));
            Ok(())
        })?;
        let prealloc = i.state.prealloc();
        let unwritten = prealloc.pages() - pages.iter().filter(|p| prealloc.contains(p.0)).count() as u64;
        if unwritten != i.state.unwritten() {
            let what = format!("inode {ino} counts {} unwritten pages, {unwritten} are", i.state.unwritten());
            self.audit.problems.push(what);
        }
        self.unwritten = self.unwritten.saturating_add(unwritten);
        let mut nodes = BTreeSet::new();
        let dir = i.state.is_dir();
        for (page, r) in pages {
            self.see(r, if dir { Owner::Bucket { ino, page } } else { Owner::Data { ino, page } });
            nodes.extend((0..7u8).map(|level| (level, page >> (8 * (u32::from(level) + 1)))));
        }
        for (level, index) in nodes {
            let owner = Owner::Map { ino, level, index };
            let r = i.state.resolve(&self.engine.log.io, |s| s.current(owner))?;
            self.see(r, owner);
        }
        Ok(())
    }

    /// Checks that the pack has the inode in the slot that the table says.
    fn in_pack(&mut self, ino: Ino, entry: TableEntry) -> Result<()> {
        let block = self.engine.log.io.read(entry.block, BlockKind::Pack.name())?;
        let found =
            pack::decode(&block, entry.block.addr, ino.chunk()).and_then(|p| p.inode(ino, entry.slot));
        match found {
            Err(e) => self.audit.problems.push(format!("inode {ino}: {e}")),
            Ok(i) if i.attrs.generation != entry.generation => {
                let what = format!("generation {} instead of {}", i.attrs.generation, entry.generation);
                self.audit.problems.push(format!("inode {ino} in a pack: {what}"));
            }
            Ok(_) => {}
        }
        Ok(())
    }

    fn tables(&mut self, m: &Maintenance) -> Result<()> {
        let s = self.engine;
        let mut inos = Vec::new();
        s.inodes.table.for_each(&s.log.io, &mut |ino, e| {
            inos.push((ino, e));
            Ok(())
        })?;
        let mut nodes = BTreeSet::new();
        let mut chunk = 0;
        // Also chunks in which nothing is in use any more.
        while let Some(c) = s.inodes.table.next_chunk(chunk, &s.log.io)? {
            nodes.extend((0..8u8).map(|level| (level, c >> (8 * u32::from(level)))));
            chunk = c + 1;
        }
        for (level, index) in nodes {
            let r = s.inodes.table.node_ref(level, index, &s.log.io)?;
            self.see(r, Owner::Table { level, index });
        }
        self.audit.inodes = inos.len() as u64;
        for (ino, entry) in inos {
            self.inode(ino, entry)?;
        }
        for (r, owner) in m.usage.blocks() {
            self.see(r, owner);
        }
        for (index, a) in m.orphan_blocks.iter().enumerate() {
            self.see(*a, Owner::Orphans { index: index as u64 });
        }
        Ok(())
    }
}

impl Walk<'_> {
    /// Checks that the cleaner finds the owner of every data block in the summaries.
    fn summaries(&mut self, m: &Maintenance) {
        let t = &self.engine.log.segments;
        let mut owners = (u32::MAX, Vec::new());
        for (addr, owner) in &self.seen {
            let (Owner::Data { ino, page }, Some((seg, i))) = (*owner, t.geometry.locate(*addr)) else {
                continue;
            };
            if owners.0 != seg {
                owners = (seg, m.usage.owners(t, seg, &self.engine.log.io));
            }
            let known = owners.1[i as usize];
            if known != (DataOwner { ino, page }) {
                self.audit.problems.push(format!("block {addr} of {owner:?} is summarised as {known:?}"));
            }
        }
    }
}

/// Walks the whole tree: see [`crate::Store::audit`].
pub(crate) fn audit(engine: &Engine) -> Result<Audit> {
    let mut m = engine.maintenance.lock();
    if !engine.log.read_only {
        engine.checkpoints().in_place(&mut m)?;
    }
    if engine.inodes.cache.dirty() > 0 && !engine.log.read_only {
        return Err(StoreError::Invalid(
            "inodes wait for their NEW, or something else changes the store".into(),
        ));
    }
    let mut w = Walk {
        engine,
        seen: BTreeMap::new(),
        unwritten: 0,
        charged: 0,
        packs: HashSet::new(),
        audit: Audit::default(),
    };
    w.tables(&m)?;
    if !engine.log.read_only {
        w.summaries(&m);
    }
    let mut audit = w.audit;
    if w.unwritten != engine.totals.unwritten() {
        let what = format!("{} unwritten pages are counted, {} are", engine.totals.unwritten(), w.unwritten);
        audit.problems.push(what);
    }
    audit.blocks = w.seen.keys().map(|a| engine.log.segments.blocks_at(*a)).sum();
    let live = engine.log.segments.total_live();
    if live != audit.blocks {
        audit.problems.push(format!("{live} blocks are marked as in use, {} are", audit.blocks));
    }
    let free = engine.log.space.free_exact() + engine.log.space.reserved() + engine.log.space.later() as i64;
    let expected = engine.log.space.total() as i64 - live as i64 - w.unwritten as i64 - w.charged as i64
        + m.usage.summary_blocks(&engine.log.segments) as i64;
    if free != expected {
        audit.problems.push(format!("{free} blocks are counted as free, but {expected} are"));
    }
    let counted = engine.totals.inodes.load(Ordering::Relaxed);
    if counted != audit.inodes {
        audit.problems.push(format!("{counted} inodes are counted, {} exist", audit.inodes));
    }
    Ok(audit)
}
