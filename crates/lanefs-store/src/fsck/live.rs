//! Repairing a volume that is up: names, link counts, marks, in rounds, until nothing is left to
//! repair.

use super::entry::{Fix, Name};
use super::marks::Marks;
use super::names::{self, LOST_FOUND, Walked};
use super::repair::{Job, dir_attrs};
use super::usage::{compare_usage, mark_summaries};
use super::walk::Walk;
use super::{FsckReport, Phase, Place, Progress, miscounted, paths};
use crate::api::{FoldInput, InodeUpdate, PageRead, Transaction};
use crate::engine::Engine;
use crate::engine::checkpoint::Seal;
use crate::engine::maintenance::Maintenance;
use crate::error::Result;
use lanefs_format::dir_bucket::COOKIE_MAX;
use lanefs_format::name_hash::name_hash;
use lanefs_format::record::{Effect, encode_group};
use lanefs_format::{Block, BlockAddr, FileKind, INOS_PER_CHUNK, Ino, ROOT_INO, Version};
use std::sync::atomic::Ordering::Relaxed;

/// Each round's repairs may bring more to light: a directory found again has entries.
pub(super) const ROUNDS: usize = 6;

impl Job<'_> {
    /// Looks at the volume that is up, and repairs what does not fit, until everything does, or
    /// until it has repaired `rounds` times and still finds something: then it reports that, as
    /// nothing that can be repaired.
    pub(super) fn repair_live(&self, engine: &Engine, rounds: usize, report: &mut FsckReport) -> Result<()> {
        for round in 0..=rounds {
            let mut again = FsckReport::default();
            let (total, known) = {
                let m = engine.maintenance.lock();
                (m.slot.inodes, m.orphans.clone())
            };
            // Data is read of what recovery made, all of it: of the checkpoint alone some is not in
            // the files any more, and what only the log refers to would be missed.
            let read_data = round == 0 && self.o.read_data;
            let walk = self.walk(&engine.log.io, &engine.inodes.table, read_data, false, total, &mut again);
            if round == 0 {
                report.data_blocks += again.data_blocks;
                report.node_blocks = report.node_blocks.max(again.node_blocks);
            }
            for p in again.problems.drain(..) {
                // What the first walk could not repair is there again; what recovery brought cannot
                // be repaired here.
                let shared = p.what.contains("something else");
                let place = Place { ino: Ino(p.inode), text: p.structure };
                report.add(place, p.what, &p.remedy, p.repairable && shared);
            }
            self.copy_shared(engine, &walk)?;
            let walked = Walked { walk: &walk, table: &engine.inodes.table, io: &engine.log.io };
            let names = names::check(walked, &known, self.sb.hash_key, self.threads(), self.progress, report);
            paths::name_problems(walked, report);
            let mut m = engine.maintenance.lock();
            let mut todo = names.fixes.len() + walk.shared.len();
            let named: Vec<Ino> = known
                .iter()
                .copied()
                .filter(|i| walk.inodes.get(i).is_none_or(|x| x.names.load(Relaxed) > 0))
                .collect();
            for ino in named {
                report.add(
                    "orphan list",
                    format!("inode {ino} has a name"),
                    "it is taken off the list",
                    true,
                );
                m.orphans_changed |= m.orphans.remove(&ino);
                todo += 1;
            }
            todo += self.usage(engine, &mut m, &walk.marks, report);
            todo += self.unwritten(engine, &walk, report);
            debug_assert!(todo == 0 || !report.problems.is_empty(), "something is repaired and not reported");
            // A volume that this version only reads is not repaired, nor is a copy in memory: what
            // was found is told.
            if todo == 0 || engine.log.read_only {
                return Ok(());
            }
            if round == rounds {
                let what = format!("{todo} things do not fit after {rounds} rounds of repair");
                report.add("volume", what, "save what can be read, and repair once more", false);
                return Ok(());
            }
            (self.progress)(Progress { phase: Phase::Repair, done: 0, total: todo as u64 });
            let groups = self.groups(engine, &mut m, names)?;
            let epoch = m.slot.folded_epoch;
            engine.checkpoints().run(
                &mut m,
                Some(|| Ok(FoldInput { epoch, groups: vec![groups.into()] })),
                Seal::Behind,
            )?;
            m.freed.clear();
            (self.progress)(Progress { phase: Phase::Repair, done: todo as u64, total: todo as u64 });
        }
        Ok(())
    }

    /// Compares the marks that the tree should have with those it has. Returns how many segments
    /// differ.
    fn usage(&self, engine: &Engine, m: &mut Maintenance, marks: &Marks, report: &mut FsckReport) -> usize {
        for a in &m.orphan_blocks {
            marks.mark_node(a.addr);
        }
        mark_summaries(&mut m.usage, &engine.log.io, marks, report);
        compare_usage(&engine.log.segments, &mut m.usage, marks, Some(report), &mut |n| match n {
            1.. => engine.log.space.charge(0, n.unsigned_abs()),
            _ => engine.log.space.credit(0, n.unsigned_abs()),
        })
    }

    /// Sets the number of preallocated pages without a block, which the next checkpoint records.
    /// Returns whether it was wrong.
    fn unwritten(&self, engine: &Engine, walk: &Walk, report: &mut FsckReport) -> usize {
        let counted = engine.totals.unwritten();
        // What is damaged was reported, and is not among those of the walk.
        if counted == walk.unwritten || !walk.salvaged.is_empty() || !walk.lost.is_empty() {
            return 0;
        }
        report.add("checkpoint slot", miscounted(counted, walk.unwritten), "the count is set", true);
        engine.totals.unwritten.store(walk.unwritten as i64, Relaxed);
        match walk.unwritten.checked_sub(counted) {
            Some(more) => engine.log.space.charge(0, more),
            None => engine.log.space.credit(0, counted - walk.unwritten),
        }
        1
    }

    /// Gives pages that share a block with something else a copy of their own. What cannot be read
    /// becomes a hole: left as it is, it would take the block away from its other owner some day.
    fn copy_shared(&self, engine: &Engine, walk: &Walk) -> Result<()> {
        for &(ino, page, addr) in &walk.shared {
            let mut block = Block::zeroed();
            let mut read = [PageRead { block: &mut block, hole: false }];
            let Some(image) = engine.inodes.image(ino, &engine.log.io)? else { continue };
            if engine.read_pages(ino, page, &mut read).is_err() {
                engine.inodes.unmap(&engine.log, 0, ino, page..page + 1, None)?;
                self.keep_live(engine, ino, addr)?;
                continue;
            }
            let update = InodeUpdate {
                ino,
                attrs: image.attrs,
                rights_logged: false,
                size_only: false,
                xattrs: None,
                pages: vec![(page, block.into())],
                reserved: 0,
                more: false,
                life: Default::default(),
            };
            engine.run_transaction(Transaction { inodes: vec![update], ..Transaction::default() }, || {})?;
            self.keep_live(engine, ino, addr)?;
        }
        Ok(())
    }

    /// Keeps a block in use that an inode has given up, and that something else still refers to: it
    /// loses its mark, and gets it again at once. The next round marks it in the tree.
    fn keep_live(&self, engine: &Engine, ino: Ino, addr: BlockAddr) -> Result<()> {
        // Else the checkpoint would take the mark, and the segment could become free with it.
        if let Some(inode) = engine.inodes.get(ino, &engine.log.io)? {
            inode.lock().clear_live_marks(&engine.log.segments);
        }
        if engine.log.segments.set_live(addr) {
            engine.log.space.charge(0, 1); // As was given back for the page.
        }
        Ok(())
    }

    /// Returns the fixes as record groups; those that no record can state are made directly.
    fn groups(&self, engine: &Engine, m: &mut Maintenance, names: names::Names) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        // One timestamp per group: of two fixes of one name the later wins.
        let mut ts = engine.totals.last_ts.load(Relaxed);
        let epoch = m.slot.folded_epoch;
        let mut put = |effects: &[Effect<'_>]| {
            ts += 1;
            encode_group(&mut out, Version { epoch, ts, lane: 0 }, effects);
        };
        let needs_home = names.fixes.iter().any(|f| matches!(f, Fix::Reconnect(..)));
        let home = match names.lost_found {
            Some(ino) => ino,
            None if !needs_home => Ino::NONE,
            None => {
                let (ino, effects) = self.new_lost_found(engine)?;
                put(&effects);
                ino
            }
        };
        debug_assert!(!needs_home || !home.is_none(), "what has no name gets one nowhere");
        for fix in &names.fixes {
            match fix {
                Fix::Names(ino, n) => {
                    if let Some(inode) = engine.inodes.get(*ino, &engine.log.io)? {
                        let mut i = inode.lock();
                        i.state.set_names(*n);
                        engine.inodes.cache.list_dirty(&inode, &mut i);
                    }
                }
                Fix::Remove(Name { dir, cookie, name, ino }, kind) => {
                    put(&[Effect::Clr { dir: *dir, cookie: *cookie, name, old: *ino, kind: *kind }]);
                }
                Fix::Move(Name { dir, cookie, name, ino }, kind, to, real) => put(&[
                    Effect::Clr { dir: *dir, cookie: *cookie, name, old: *ino, kind: *kind },
                    Effect::Set { dir: *dir, cookie: *to, name, ino: *ino, old: Ino::NONE, kind: *real },
                ]),
                // The old name is given as none, or by the record nothing would change.
                Fix::Kind(Name { dir, cookie, name, ino }, kind) => put(&[Effect::Set {
                    dir: *dir,
                    cookie: *cookie,
                    name,
                    ino: *ino,
                    old: Ino::NONE,
                    kind: *kind,
                }]),
                Fix::Parent(ino, parent) => put(&[Effect::Parent { ino: *ino, parent: *parent }]),
                Fix::Reconnect(ino, kind) => {
                    let name = format!("inode-{ino}").into_bytes();
                    let cookie = self.cookie(&name);
                    put(&[Effect::Set {
                        dir: home,
                        cookie,
                        name: &name,
                        ino: *ino,
                        old: Ino::NONE,
                        kind: *kind,
                    }]);
                    if *kind == FileKind::Dir {
                        put(&[Effect::Parent { ino: *ino, parent: home }]);
                    }
                }
                Fix::Free(ino, generation) => put(&[Effect::Dead { ino: *ino, generation: *generation }]),
            }
        }
        Ok(out)
    }

    /// Returns a number for lost+found, and the effects that make it.
    fn new_lost_found(&self, engine: &Engine) -> Result<(Ino, [Effect<'static>; 2])> {
        let ino = Ino(engine.totals.next_chunk.load(Relaxed).max(1) * INOS_PER_CHUNK);
        let attrs = dir_attrs(0o700, engine.inodes.table.lookup(ino, &engine.log.io)?.generation);
        let new = Effect::New {
            ino,
            parent: ROOT_INO,
            generation: attrs.generation,
            mode: attrs.mode,
            uid: 0,
            gid: 0,
            rdev: 0,
            time: attrs.btime,
            target: b"",
            logged: false,
        };
        let named = Effect::Set {
            dir: ROOT_INO,
            cookie: self.cookie(LOST_FOUND),
            name: LOST_FOUND,
            ino,
            old: Ino::NONE,
            kind: FileKind::Dir,
        };
        Ok((ino, [new, named]))
    }

    /// Returns the cookie of a name that no collision is known for.
    fn cookie(&self, name: &[u8]) -> u64 {
        name_hash(self.sb.hash_key, name) & COOKIE_MAX
    }
}
