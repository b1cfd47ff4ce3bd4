//! The walk: every block below the inode table, read and verified once, by several threads; what
//! could not be read; and which block belongs to whom.
//!
//! The atomics here are Relaxed: they hand out work and count, and the threads that add to them are
//! joined before anybody goes by the sums.

use super::copies::{AGAIN, bad_copy, report_copy};
use super::mapped::{after, fetch, next_mapped};
use super::marks::{Marked, Marks};
use super::{FsckReport, OnProgress, Phase, Place, Progress, What, miscounted};
use crate::error::{FILE_DATA, StoreError};
use crate::log::io::Io;
use crate::log::segment::Geometry;
use crate::tree::block_io::BlockSource;
use crate::tree::inode_state::{InodeState, read_xattrs};
use crate::tree::inode_table::{ChunkStep, InodeTable};
use crate::tree::radix::Found;
use lanefs_format::BucketEntry;
use lanefs_format::checksum;
use lanefs_format::dir_bucket::{self, BucketId, COOKIE_MAX, entries};
use lanefs_format::header::BlockKind;
use lanefs_format::inode::DirShape;
use lanefs_format::summary::DataOwner;
use lanefs_format::table_node::TableEntry;
use lanefs_format::{Block, BlockAddr, BlockRef, FileKind, INOS_PER_CHUNK, Ino};
use lanefs_sync::lock::Mutex;
use lanefs_sync::parallel::in_parallel;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Blocks read at once.
pub(super) const AT_ONCE: usize = 64;

/// Facts of an inode.
pub(super) struct InodeInfo {
    pub kind: FileKind,
    pub generation: u32,
    /// The number of names that the inode has by its own count.
    pub nlink: u32,
    pub parent: Ino,
    /// The number of names that directories have for it. Written by the threads that look at names:
    /// see the head of [`super::names`].
    pub names: AtomicU32,
}

/// The readable part of an inode that is damaged.
pub(super) struct Salvage {
    pub state: InodeState,
    /// A directory's entries.
    pub entries: Vec<BucketEntry>,
}

/// The findings of a walk.
pub(super) struct Walk {
    pub marks: Marks,
    pub inodes: BTreeMap<Ino, InodeInfo>,
    /// Preallocated pages without a block, as those inodes count them that can be used as they are.
    pub unwritten: u64,
    /// Inodes in the table whose inode block cannot be used.
    pub lost: Vec<(Ino, TableEntry)>,
    pub salvaged: Vec<Salvage>,
    /// Chunks whose part of the table cannot be read.
    pub lost_chunks: Vec<Range<u64>>,
    /// Pages whose block something else refers to too.
    pub shared: Vec<(Ino, u64, BlockAddr)>,
    /// Owners of data blocks, if they were asked for.
    pub owners: Vec<(BlockAddr, DataOwner)>,
    /// Blocks of damaged structures: not referred to any more, and not to be written over yet.
    pub leave_alone: Vec<BlockAddr>,
}

pub(super) struct Walker<'a> {
    pub io: &'a Io,
    /// For file data: a block of it that cannot be read is reported, and nothing follows from it.
    pub bare: &'a Io,
    pub table: &'a InodeTable,
    pub read_data: bool,
    pub want_owners: bool,
    pub threads: usize,
    pub total: u64,
    pub progress: OnProgress<'a>,
}

pub(super) struct Shared<'a> {
    pub w: &'a Walker<'a>,
    out: Mutex<(&'a mut Walk, &'a mut FsckReport)>,
    pub marks: &'a Marks,
    done: AtomicU64,
    data: AtomicU64,
    nodes: AtomicU64,
}

impl Walker<'_> {
    pub fn run(&self, geometry: Geometry, report: &mut FsckReport) -> Walk {
        let mut walk = Walk {
            marks: Marks::new(geometry.clone()),
            inodes: BTreeMap::new(),
            unwritten: 0,
            lost: Vec::new(),
            salvaged: Vec::new(),
            lost_chunks: Vec::new(),
            shared: Vec::new(),
            owners: Vec::new(),
            leave_alone: Vec::new(),
        };
        let marks = Marks::new(geometry);
        let chunks = self.chunks(&mut walk, &marks, report);
        let shared = Shared {
            w: self,
            out: Mutex::new((&mut walk, report)),
            marks: &marks,
            done: AtomicU64::new(0),
            data: AtomicU64::new(0),
            nodes: AtomicU64::new(0),
        };
        debug_assert!(chunks.is_sorted_by(|a, b| a < b), "a chunk is looked at twice");
        in_parallel(self.threads, chunks.len(), |i| shared.chunk(chunks[i]));
        let (data, nodes) = (shared.data.into_inner(), shared.nodes.into_inner());
        report.data_blocks += data;
        report.node_blocks += nodes;
        walk.marks = marks;
        walk.lost.sort_unstable_by_key(|l| l.0);
        walk.salvaged.sort_unstable_by_key(|s| s.state.ino());
        walk.shared.sort_unstable();
        debug_assert!(
            walk.lost.iter().all(|l| !walk.inodes.contains_key(&l.0)),
            "an inode is lost and found"
        );
        debug_assert!(
            walk.salvaged.iter().all(|s| walk.inodes.contains_key(&s.state.ino())),
            "an inode was salvaged that nobody knows"
        );
        debug_assert!(
            walk.salvaged.is_sorted_by(|a, b| a.state.ino() < b.state.ino()),
            "an inode was salvaged twice"
        );
        walk
    }

    /// Returns the chunks of the table; marks the table's nodes.
    fn chunks(&self, walk: &mut Walk, marks: &Marks, report: &mut FsckReport) -> Vec<u64> {
        let (mut chunks, mut from) = (Vec::new(), 0);
        let mut nodes = BTreeMap::new();
        loop {
            match self.table.next_chunk_or_gap(from, self.io) {
                ChunkStep::End => break,
                ChunkStep::Chunk(c) => {
                    chunks.push(c);
                    for level in 0..=self.table.root().1 {
                        let at = self.table.node_ref(level, c >> (8 * u32::from(level)), self.io);
                        nodes.extend(at.ok().filter(|r| !r.is_none()).map(|r| (r.addr, r)));
                    }
                    from = c + 1;
                }
                ChunkStep::Lost(range, e) => {
                    lost_chunks(report, &range, &e);
                    from = range.end;
                    walk.lost_chunks.push(range);
                }
            }
        }
        // A table made of what a scan found is not written yet.
        chunks.extend(self.table.chunks_in_memory());
        chunks.sort_unstable();
        chunks.dedup();
        report.node_blocks += nodes.len() as u64;
        for (a, r) in nodes {
            report_copy(self.io, "inode table".into(), r, report);
            if marks.mark_node(a) != Marked::First {
                report.add(
                    "inode table",
                    format!("block {a} is referred to twice or lies outside the log"),
                    "the table is rewritten",
                    false,
                );
            }
        }
        chunks
    }
}

fn lost_chunks(report: &mut FsckReport, range: &Range<u64>, e: &StoreError) {
    let (a, b) = (range.start * INOS_PER_CHUNK, range.end.saturating_mul(INOS_PER_CHUNK) - 1);
    report.add(
        "inode table",
        What::of(format_args!("the part for inodes {a} to {b} cannot be read"), e),
        "these inodes are looked for in all blocks",
        true,
    );
}

impl Shared<'_> {
    pub fn report(&self, place: Place, what: impl Into<What>, remedy: &str, repairable: bool) {
        self.out.lock().1.add(place, what, remedy, repairable);
    }

    /// Reports a bad copy of a block that was read: see [`report_copy`].
    fn copy(&self, ino: Ino, part: &str, r: BlockRef) {
        if let Some(what) = bad_copy(self.w.io, r) {
            self.report(Place::of_inode(ino, part), what, AGAIN, true);
        }
    }

    fn chunk(&self, chunk: u64) {
        let entries = match self.w.table.chunk_entries(chunk, self.w.io) {
            Ok(e) => e,
            Err(e) => {
                let mut out = self.out.lock();
                lost_chunks(out.1, &(chunk..chunk + 1), &e);
                out.0.lost_chunks.push(chunk..chunk + 1);
                return;
            }
        };
        let used: Vec<(usize, &TableEntry)> =
            entries.iter().enumerate().filter(|(_, e)| !e.block.is_none()).collect();
        let mut packs: Vec<Pack> = Vec::new();
        let own: Vec<BlockRef> = used.iter().filter(|u| u.1.slot == 0).map(|u| u.1.block).collect();
        let blocks = self.w.io.read_ahead(&own);
        let mut next = 0;
        for (number, e) in used {
            let ino = Ino(chunk * INOS_PER_CHUNK + number as u64);
            if e.slot == 0 {
                self.inode(ino, *e, self.marks.mark_node(e.block.addr), blocks.as_ref().map(|b| &b[next]));
                next += 1;
            } else {
                let at = packs.iter().position(|p| p.r == e.block).unwrap_or_else(|| {
                    packs.push(self.pack(chunk, e.block));
                    packs.len() - 1
                });
                let p = &mut packs[at];
                p.used |= self.inode(ino, *e, p.marked, p.block.as_deref());
            }
            let done = self.done.fetch_add(1, Relaxed) + 1;
            if done.is_multiple_of(256) {
                (self.w.progress)(Progress { phase: Phase::Inodes, done, total: self.w.total });
            }
        }
        for p in packs.iter().filter(|p| !p.used && p.marked == Marked::First) {
            self.marks.unmark_node(p.r.addr);
            self.out.lock().0.leave_alone.push(p.r.addr);
        }
    }

    /// Marks and reads a pack of a chunk.
    fn pack(&self, chunk: u64, r: BlockRef) -> Pack {
        let marked = self.marks.mark_node(r.addr);
        // If it cannot be read, whoever is in it will have the error.
        let block = self.w.io.read(r, BlockKind::Pack.name()).ok();
        if block.is_some() && marked == Marked::First {
            self.nodes.fetch_add(1, Relaxed);
            if let Some(what) = bad_copy(self.w.io, r) {
                let text = format!("pack of inodes of chunk {chunk}");
                self.report(Place::from(text), what, AGAIN, true);
            }
        }
        Pack { r, marked, block, used: false }
    }

    /// Looks at an inode. `marked`: what became of the mark of its block. `ahead`: the block, if it
    /// was read already; not verified. Returns whether it goes on to lie there.
    fn inode(&self, ino: Ino, entry: TableEntry, marked: Marked, ahead: Option<&Block>) -> bool {
        let what = |w: &str| Place::of_inode(ino, w);
        let own = entry.slot == 0;
        let part = if own { BlockKind::Inode.name() } else { BlockKind::Pack.name() };
        let lost = |why: What| {
            self.report(what(part), why, "its names are removed, its data is given up", true);
            self.out.lock().0.lost.push((ino, entry));
            false
        };
        match marked {
            Marked::First => {}
            Marked::Again => {
                return lost(format!("block {} belongs to something else too", entry.block.addr).into());
            }
            Marked::Outside => {
                return lost(format!("block {} lies outside the log", entry.block.addr).into());
            }
        }
        let ahead = ahead.filter(|b| checksum::matches(entry.block, &b.0));
        let loaded = match ahead {
            Some(b) => InodeState::from_block(ino, &entry, b),
            None => InodeState::load(ino, &entry, self.w.io),
        };
        let mut state = match loaded {
            Ok(s) => s,
            Err(e) => {
                if own {
                    self.marks.unmark_node(entry.block.addr);
                    self.out.lock().0.leave_alone.push(entry.block.addr);
                }
                return lost(What::from(&e));
            }
        };
        if own {
            self.copy(ino, "inode block", entry.block);
            self.nodes.fetch_add(1, Relaxed);
        }
        let Some(kind) = state.attrs().kind() else { return lost("it names no kind of file".into()) };
        if state.attrs().generation != entry.generation {
            let why = format!("generation {} instead of {}", state.attrs().generation, entry.generation);
            self.report(what("inode table"), why, "the table is set to the inode's", true);
        }
        let nodes = if own { vec![entry.block.addr] } else { Vec::new() };
        let mut visit = Visit { nodes, ..Visit::default() };
        self.xattrs(&state, &mut visit);
        self.map(&mut state, kind, &mut visit);
        if kind == FileKind::Dir {
            self.directory(&mut state, &mut visit);
        }
        let info = InodeInfo {
            kind,
            generation: state.attrs().generation,
            nlink: state.names(),
            parent: state.parent(),
            names: AtomicU32::new(0),
        };
        let damaged = visit.damage.is_some();
        let salvage = visit.damage.take().map(|why| {
            self.report(
                what("map"),
                why,
                "what can be read is kept; the rest becomes holes or loses its names",
                true,
            );
            self.salvage(&state, &entry, kind, &visit)
        });
        let mut out = self.out.lock();
        out.0.shared.append(&mut visit.shared);
        out.0.owners.append(&mut visit.owners);
        if damaged {
            visit.nodes.iter().for_each(|a| self.marks.unmark_node(*a));
            out.0.leave_alone.append(&mut visit.nodes);
        } else {
            out.0.unwritten = out.0.unwritten.saturating_add(state.unwritten());
        }
        out.0.inodes.insert(ino, info);
        out.0.salvaged.extend(salvage);
        !damaged
    }

    fn xattrs(&self, state: &InodeState, v: &mut Visit) {
        let Err((len, refs)) = state.xattrs() else { return };
        for r in refs {
            match self.marks.mark_node(r.addr) {
                Marked::First => v.nodes.push(r.addr),
                _ => v.damaged(format!("extended attributes in block {}, which is not theirs", r.addr)),
            }
        }
        match read_xattrs(state.ino(), len, refs, self.w.io) {
            Ok(blob) => {
                refs.iter().for_each(|r| self.copy(state.ino(), "extended attributes", *r));
                v.xattrs = Some(blob);
            }
            Err(e) => v.damaged(What::of("extended attributes", &e)),
        }
        self.nodes.fetch_add(refs.len() as u64, Relaxed);
    }

    /// Reads the map, node by node, and what it maps.
    fn map(&self, state: &mut InodeState, kind: FileKind, v: &mut Visit) {
        let mut refs: Vec<(u64, BlockRef)> = Vec::with_capacity(AT_ONCE);
        let ino = state.ino();
        let mut seen = HashSet::new();
        let mut page = 0;
        let (mut count, mut fetched, mut unwritten) = (0, 0, state.prealloc().pages());
        loop {
            match next_mapped(state, page) {
                Found::Here(None) => break,
                Found::Missing(w) => {
                    let mut first = false;
                    if !seen.insert(w.r.addr) {
                        // Nodes are dropped as the walk goes on, and those on the way are read
                        // again.
                    } else if self.marks.mark_node(w.r.addr) == Marked::First {
                        v.nodes.push(w.r.addr);
                        first = true;
                        self.nodes.fetch_add(1, Relaxed);
                    } else {
                        v.damaged(format!("map node in block {}, which is not its own", w.r.addr));
                        page = after(&w);
                        continue;
                    }
                    fetched += 1;
                    if fetched % 512 == 0 {
                        // What is asked for may be taken only with the way to it in memory: ask
                        // again, from the root.
                        state.evict_clean();
                        continue;
                    }
                    match fetch(state, self.w.io, &w) {
                        Ok(()) if first => self.copy(ino, "map", w.r),
                        Ok(()) => {}
                        Err(e) => {
                            v.damaged(&e);
                            page = after(&w);
                        }
                    }
                }
                Found::Here(Some((p, r))) => {
                    page = p + 1;
                    unwritten -= u64::from(state.prealloc().contains(p));
                    count += u64::from(self.page(ino, kind, (p, r), &mut refs, v));
                    if refs.len() == AT_ONCE {
                        self.verify(ino, &mut refs);
                    }
                }
            }
        }
        self.verify(ino, &mut refs);
        if v.damage.is_none() && count != state.mapped_pages() {
            v.damaged(format!("{count} pages are mapped, {} are counted", state.mapped_pages()));
        }
        if v.damage.is_none() && unwritten != state.unwritten() {
            v.damaged(miscounted(state.unwritten(), unwritten));
        }
    }

    /// Marks the block of a page, and takes note of it: data in `refs`. Returns whether it is one
    /// that the page can keep.
    fn page(
        &self,
        ino: Ino,
        kind: FileKind,
        (page, r): (u64, BlockRef),
        refs: &mut Vec<(u64, BlockRef)>,
        v: &mut Visit,
    ) -> bool {
        let marked = match kind {
            FileKind::Dir => self.marks.mark_node(r.addr),
            _ => self.marks.mark(r.addr),
        };
        match marked {
            Marked::First if kind == FileKind::Dir => {
                v.nodes.push(r.addr);
                v.buckets.push((page, r));
            }
            Marked::First => {
                if self.w.want_owners {
                    v.owners.push((r.addr, DataOwner { ino, page }));
                }
                refs.push((page, r));
            }
            Marked::Again if kind != FileKind::Dir => {
                self.report(
                    Place::of_inode(ino, format_args!("page {page}")),
                    format!("block {} belongs to something else too", r.addr),
                    "the page is copied to a block of its own, or a hole if it cannot be read",
                    true,
                );
                v.shared.push((ino, page, r.addr));
            }
            _ => {
                v.damaged(format!("page {page} in block {}, which is not its own", r.addr));
                return false;
            }
        }
        true
    }

    fn verify(&self, ino: Ino, refs: &mut Vec<(u64, BlockRef)>) {
        debug_assert!(refs.len() <= AT_ONCE, "{} blocks are read at once", refs.len());
        debug_assert!(refs.is_sorted_by(|a, b| a.0 < b.0), "a page of inode {ino} is read twice");
        if self.w.read_data && !refs.is_empty() {
            let mut blocks: Vec<Box<Block>> = refs.iter().map(|_| Block::zeroed()).collect();
            let mut reqs: Vec<(BlockAddr, &mut Block)> =
                refs.iter().zip(&mut blocks).map(|(r, b)| (r.1.addr, &mut **b)).collect();
            let all = self.w.bare.read_blocks(&mut reqs, FILE_DATA);
            for (i, (page, r)) in refs.iter().enumerate() {
                let one = match &all {
                    Ok(()) => Ok(()),
                    Err(_) => self.w.bare.read_blocks(&mut reqs[i..=i], FILE_DATA),
                };
                let why = match one {
                    Err(e) => What::from(&e),
                    Ok(()) if checksum::matches(*r, &reqs[i].1.0) => continue,
                    // Once more: it may have been read wrong once.
                    Ok(()) => match self.w.bare.read_blocks(&mut reqs[i..=i], FILE_DATA) {
                        Err(e) => What::from(&e),
                        Ok(()) if checksum::matches(*r, &reqs[i].1.0) => continue,
                        Ok(()) => format!("block {} has a wrong checksum", r.addr).into(),
                    },
                };
                let remedy =
                    "reading it stays an error: restore the file from a backup, or write the page anew";
                self.report(Place::of_inode(ino, format_args!("page {page}")), why, remedy, false);
            }
            self.data.fetch_add(refs.len() as u64, Relaxed);
        }
        refs.clear();
    }

    /// Reads all buckets and checks that they cover every cookie once.
    fn directory(&self, state: &mut InodeState, v: &mut Visit) {
        let mut ids = Vec::new();
        let mut counts = DirShape::default();
        let mut take = |id: BucketId, bytes: &[u8]| {
            ids.push(id);
            for e in entries(bytes) {
                counts.entries += 1;
                counts.subdirs += u64::from(e.kind == FileKind::Dir);
            }
        };
        if let Some((page, body)) = state.tail() {
            match BucketId::from_page(page)
                .map(|id| (id, dir_bucket::check_body(body, state.block().addr, id)))
            {
                Some((id, Ok(bytes))) => take(id, bytes),
                Some((_, Err(e))) => v.damaged(&e),
                None => v.damaged(format!("inline bucket at page {page}")),
            }
        }
        for some in v.buckets.clone().chunks(AT_ONCE) {
            let blocks = self.w.io.read_ahead(&some.iter().map(|b| b.1).collect::<Vec<_>>());
            for (i, &(page, r)) in some.iter().enumerate() {
                let Some(id) = BucketId::from_page(page) else {
                    v.damaged(format!("bucket at page {page}"));
                    continue;
                };
                let ahead = blocks.as_ref().map(|b| &b[i]).filter(|b| checksum::matches(r, &b.0));
                let alone = match ahead {
                    Some(_) => None,
                    None => match self.w.io.read(r, "directory bucket") {
                        Ok(b) => Some(b),
                        Err(e) => {
                            v.damaged(&e);
                            continue;
                        }
                    },
                };
                let Some(block) = ahead.or(alone.as_deref()) else { continue };
                match dir_bucket::decode(block, r.addr, state.ino(), id) {
                    Ok(bytes) => {
                        take(id, bytes);
                        self.copy(state.ino(), "directory bucket", r);
                    }
                    Err(e) => v.damaged(&e),
                }
            }
        }
        self.nodes.fetch_add(v.buckets.len() as u64, Relaxed);
        ids.sort_unstable_by_key(|i| i.low());
        let mut next = 0;
        for id in &ids {
            if id.low() != next {
                v.damaged(format!("no bucket, or two, at cookie {next:#x}"));
                break;
            }
            next = id.high() + 1;
        }
        if !ids.is_empty() && next != COOKIE_MAX + 1 {
            v.damaged(format!("no bucket, or two, at cookie {next:#x}"));
        }
        let shape = state.dir();
        if ids.iter().any(|i| i.depth > shape.depth) {
            v.damaged("a bucket is deeper than the inode says");
        }
        if v.damage.is_none() && (counts.entries, counts.subdirs) != (shape.entries, shape.subdirs) {
            v.damaged(format!(
                "{} entries, {} of them directories, instead of {} and {}",
                counts.entries, counts.subdirs, shape.entries, shape.subdirs
            ));
        }
    }
}

/// A pack, while the inodes of its chunk are looked at.
struct Pack {
    r: BlockRef,
    marked: Marked,
    block: Option<Box<Block>>,
    /// An inode goes on to lie in it.
    used: bool,
}

/// The parts of one inode that were seen.
#[derive(Default)]
pub(super) struct Visit {
    /// Its node blocks.
    nodes: Vec<BlockAddr>,
    pub buckets: Vec<(u64, BlockRef)>,
    owners: Vec<(BlockAddr, DataOwner)>,
    shared: Vec<(Ino, u64, BlockAddr)>,
    pub xattrs: Option<Vec<u8>>,
    /// Why it has to be salvaged.
    damage: Option<What>,
}

impl Visit {
    fn damaged(&mut self, why: impl Into<What>) {
        self.damage.get_or_insert_with(|| why.into());
    }
}
