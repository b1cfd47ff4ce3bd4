//! Looking for inodes without a tree: every block of the log is tried for a sealed inode block,
//! pack of inodes or table node.
//!
//! An inode block alone does not show whether the inode still exists: it stays behind when the
//! inode is deleted, until the block is used again, and so does the slot of a pack. The youngest
//! copy of its chunk's table node decides about those older than itself; for the others, and where
//! there is none, the youngest inode block or slot counts, and what was deleted may come back
//! without a name.
//!
//! The atomics here are Relaxed: they hand out work and count, and the threads that add to them are
//! joined before anybody goes by the sums.

use super::{OnProgress, Phase, Progress};
use crate::log::io::Io;
use crate::log::segment::Geometry;
use crate::tree::block_io::BlockSource;
use lanefs_format::checksum;
use lanefs_format::header::{BlockKind, Stamp, verify_sealed};
use lanefs_format::inode;
use lanefs_format::map_node::KEY_END;
use lanefs_format::pack;
use lanefs_format::table_node::{self, ENTRIES, TableEntry};
use lanefs_format::{BLOCK_SIZE, Block, BlockRef, INOS_PER_CHUNK, Ino};
use lanefs_sync::lock::Mutex;
use lanefs_sync::parallel::in_parallel;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Default)]
pub(super) struct Scan {
    /// The youngest inode block or slot of each number, as the table would have it.
    inodes: HashMap<Ino, (Stamp, TableEntry)>,
    /// The youngest table node of each chunk.
    chunks: HashMap<u64, (Stamp, Box<[TableEntry; ENTRIES]>)>,
    /// The youngest mount, and epoch in it, that any block was written in.
    pub last: Stamp,
}

/// Scans all segments of volume `volume` (the first 8 bytes of its uuid).
pub(super) fn run(io: &Io, g: &Geometry, volume: u64, threads: usize, progress: OnProgress<'_>) -> Scan {
    let all = Mutex::new(Scan::default());
    let done = AtomicU64::new(0);
    in_parallel(threads, g.total() as usize, |seg| {
        let mut found = Scan::default();
        found.segment(io, g, seg as u32, volume);
        all.lock().merge(found);
        let done = done.fetch_add(1, Relaxed) + 1;
        progress(Progress { phase: Phase::Scan, done, total: u64::from(g.total()) });
    });
    debug_assert_eq!(done.into_inner(), u64::from(g.total()), "each segment is looked at once");
    all.into_inner()
}

impl Scan {
    fn segment(&mut self, io: &Io, g: &Geometry, seg: u32, volume: u64) {
        let n = g.segment_blocks as usize;
        let mut blocks = vec![Block([0; BLOCK_SIZE]); n];
        let mut reqs: Vec<_> =
            blocks.iter_mut().enumerate().map(|(i, b)| (g.addr(seg, i as u32), b)).collect();
        if g.locate(g.addr(seg, 0)).is_none() {
            return; // Superblocks and slots.
        }
        if io.read_blocks(&mut reqs, "scan for inodes").is_err() {
            // Some block of it cannot be read: one by one.
            for r in &mut reqs {
                if io.read_blocks(std::slice::from_mut(r), "scan for inodes").is_err() {
                    r.1.0.fill(0);
                }
            }
        }
        for (i, b) in blocks.iter().enumerate() {
            let addr = g.addr(seg, i as u32);
            // A block, or its copy where that is damaged.
            let copy = (g.copies == 2).then(|| blocks.get(i + n / 2)).flatten().filter(|_| i < n / 2);
            let sealed = |b: &'_ Block| verify_sealed(b, addr);
            let Some((b, (kind, h))) =
                [Some(b), copy].into_iter().flatten().find_map(|b| Some((b, sealed(b)?)))
            else {
                continue;
            };
            if h.volume.get() != volume {
                continue;
            }
            let stamp =
                Stamp { mount: h.mount.get(), epoch: h.epoch.get(), sequence: h.sequence.get(), volume };
            self.last = self.last.max(stamp);
            match kind {
                BlockKind::Inode => {
                    let ino = Ino(h.ino.get());
                    if ino.chunk() < KEY_END
                        && let Ok(d) = inode::decode(b, addr, ino)
                    {
                        self.inode(ino, (stamp, checksum::reference(addr, b)), 0, d.attrs.generation);
                    }
                }
                BlockKind::Pack if h.index.get() < KEY_END => {
                    let Ok(p) = pack::decode(b, addr, h.index.get()) else { continue };
                    let block = checksum::reference(addr, b);
                    for (ino, slot) in p.inodes() {
                        if let Ok(d) = p.inode(ino, slot) {
                            self.inode(ino, (stamp, block), slot, d.attrs.generation);
                        }
                    }
                }
                BlockKind::Table if h.level == 0 && h.index.get() < KEY_END => {
                    if let Ok(e) = table_node::decode(b, addr, h.index.get()) {
                        self.chunk(h.index.get(), (stamp, Box::new(e)));
                    }
                }
                _ => {}
            }
        }
    }

    fn inode(&mut self, ino: Ino, (stamp, block): (Stamp, BlockRef), slot: u8, generation: u32) {
        self.younger(ino, (stamp, TableEntry { block, slot, generation, epoch: stamp.epoch }));
    }

    fn younger(&mut self, ino: Ino, new: (Stamp, TableEntry)) {
        let at = self.inodes.entry(ino).or_insert(new);
        if at.0 < new.0 {
            *at = new;
        }
    }

    fn chunk(&mut self, chunk: u64, new: (Stamp, Box<[TableEntry; ENTRIES]>)) {
        match self.chunks.get(&chunk) {
            Some(old) if old.0 >= new.0 => {}
            _ => drop(self.chunks.insert(chunk, new)),
        }
    }

    fn merge(&mut self, other: Scan) {
        self.last = self.last.max(other.last);
        other.inodes.into_iter().for_each(|(i, n)| self.younger(i, n));
        other.chunks.into_iter().for_each(|(c, n)| self.chunk(c, n));
    }

    /// Returns the epoch up to which all was folded, as far as the inode table knows.
    pub fn folded(&self) -> u64 {
        let used = self.chunks.values().flat_map(|c| c.1.iter()).filter(|e| !e.block.is_none());
        used.map(|e| e.epoch).max().unwrap_or(0)
    }

    /// Returns the best that is known of the inodes of the chunks that `wanted` accepts: the
    /// entries that the table should have.
    pub fn entries(&self, io: &Io, wanted: impl Fn(u64) -> bool) -> Vec<(Ino, TableEntry)> {
        let mut out = Vec::new();
        for (chunk, (stamp, entries)) in self.chunks.iter().filter(|c| wanted(*c.0)) {
            for (slot, e) in entries.iter().enumerate() {
                let ino = Ino(chunk * INOS_PER_CHUNK + slot as u64);
                let own = self.inodes.get(&ino).copied();
                // An inode block that is younger than the table node was made after it.
                let later = own.filter(|o| o.0 > *stamp);
                let there = || io.read(e.block, "scan for inodes").is_ok();
                let best = match (later, own) {
                    (Some(l), _) => l.1,
                    (None, Some(o)) if !e.block.is_none() && !there() => o.1,
                    _ => *e, // If its block cannot be read, the walk reports it.
                };
                if best != TableEntry::default() {
                    out.push((ino, best));
                }
            }
        }
        for (ino, (_, entry)) in &self.inodes {
            if wanted(ino.chunk()) && !self.chunks.contains_key(&ino.chunk()) {
                out.push((*ino, *entry));
            }
        }
        out.sort_unstable_by_key(|e| e.0);
        debug_assert!(out.is_sorted_by(|a, b| a.0 < b.0), "two entries of one inode");
        out
    }
}
