//! From damaged devices to a volume that is up, and from the findings of the checks to a volume
//! that is sound.

use super::careful::{Careful, Unread};
use super::copies::report_copy;
use super::marks::{Marked, Marks};
use super::overlay::Overlay;
use super::scan::{self, Scan};
use super::usage::{compare_usage, mark_summaries};
use super::walk::{Salvage, Walk, Walker};
use super::{FsckOptions, FsckReport, OnProgress, Phase, Progress, What, miscounted};
use crate::api::{OpenOptions, OpenReport};
use crate::device::{Device, WriteReq};
use crate::engine::maintenance::Maintenance;
use crate::engine::{Engine, Parts};
use crate::error::{Result, StoreError};
use crate::inodes::cache::InodeEntry;
use crate::log::io::Io;
use crate::log::segment::{Geometry, SegmentTable};
use crate::log::slots::check_ages;
use crate::log::superblocks::{find_superblock, order_by};
use crate::log::usage_table::UsageTable;
use crate::recovery::Recovery;
use crate::tree::block_io::{BlockSource, Owner};
use crate::tree::inode_state::InodeState;
use crate::tree::inode_table::{ChunkStep, InodeTable};
use lanefs_format::orphans;
use lanefs_format::record::{Effect, encode_group};
use lanefs_format::slot::Slot;
use lanefs_format::superblock::{Superblock, UnverifiedSuperblock};
use lanefs_format::table_node::TableEntry;
use lanefs_format::{
    Attrs, BLOCK_SHIFT, Block, BlockAddr, BlockRef, FileKind, INOS_PER_CHUNK, Ino, ROOT_INO, Version,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Everything that the steps share.
pub(super) struct Job<'a> {
    pub o: &'a FsckOptions,
    pub progress: OnProgress<'a>,
    devices: Vec<Arc<dyn Device>>,
    /// The same without the care: for reading file data.
    bare: Vec<Arc<dyn Device>>,
    unread: Arc<Unread>,
    pub sb: Superblock,
    geometry: Geometry,
}

/// Checks and repairs the volume on `devices`, which are all written to if the options ask for
/// that. It is looked at and repaired up to `rounds` times.
pub(super) fn run(
    devices: Vec<Arc<dyn Device>>,
    o: &FsckOptions,
    progress: OnProgress<'_>,
    rounds: usize,
    report: &mut FsckReport,
) -> Result<()> {
    let scanned = |done, total| progress(Progress { phase: Phase::Scan, done, total });
    let (found, sb) = order_by(devices, |d| find_superblock(d, &scanned))?;
    let unread = Arc::new(Unread::default());
    let over =
        |d: Arc<dyn Device>| -> Arc<dyn Device> { if o.repair { d } else { Arc::new(Overlay::new(d)) } };
    let bare: Vec<Arc<dyn Device>> = found.into_iter().map(over).collect();
    let careful = |d: &Arc<dyn Device>| Careful::new(d.clone(), unread.clone(), o.give_up_unreadable);
    let devices: Vec<Arc<dyn Device>> = bare.iter().map(|d| Arc::new(careful(d)) as _).collect();
    if o.repair && sb.read_only() {
        let why = "it has features that this version of LaneFS does not know: repair it with the newer one";
        return Err(StoreError::ReadOnly { why: why.into() });
    }
    let bad_superblocks = superblocks(&devices, &sb, report)?;
    let blocks: Vec<u64> = sb.devices.iter().map(|d| d.blocks).collect();
    let geometry = Geometry::new(&sb.layout, &blocks).with_copies(sb.metadata_copies());
    debug_assert_eq!(devices.len(), sb.devices.len(), "the volume has other devices");
    debug_assert!(
        bad_superblocks.iter().all(|(d, at, _)| *at < devices[*d].size() >> BLOCK_SHIFT),
        "a superblock would be written behind its device's end"
    );
    let job = Job { o, progress, devices, bare, unread, sb, geometry };
    let brought_up = job.bring_up(false, report);
    job.unread.check()?;
    let engine = match brought_up {
        Err(e @ (StoreError::Corrupt { .. } | StoreError::BadInode { .. } | StoreError::Invalid(_))) => {
            let remedy = "what was not in a checkpoint yet is given up";
            report.add("log", format!("cannot be replayed: {}", e.without_advice()), remedy, true);
            job.bring_up(true, report)?
        }
        other => other?,
    };
    for (d, at, b) in bad_superblocks {
        job.devices[d].write(&[WriteReq { offset: at << BLOCK_SHIFT, data: &b.0 }])?;
        job.devices[d].flush()?;
    }
    job.repair_live(&engine, rounds, report)?;
    job.unread.check()?;
    engine.close()
}

/// Returns all copies of every device's superblock: those that are bad, by device and block, and
/// what is to be written there.
fn superblocks(
    devices: &[Arc<dyn Device>],
    first: &Superblock,
    report: &mut FsckReport,
) -> Result<Vec<(usize, u64, Box<Block>)>> {
    let mut bad = Vec::new();
    for (i, d) in devices.iter().enumerate() {
        let sb = Superblock { device_index: i as u8, ..first.clone() };
        let blocks = d.size() >> BLOCK_SHIFT;
        for at in sb.places() {
            let mut b = Block::zeroed();
            let read = d.read(&mut [crate::device::ReadReq { offset: at << BLOCK_SHIFT, data: &mut b.0 }]);
            let verified = read.and_then(|()| {
                UnverifiedSuperblock(b).verify(at, blocks).map_err(|e| StoreError::superblock(d.name(), &e))
            });
            let Err(e) = verified else { continue };
            let which = match at {
                0 => "superblock",
                _ if at == sb.device().blocks => "copy of the superblock at its end",
                _ => "copy of the superblock",
            };
            report.add(format!("{}: {which}", d.name()), &e, "it is written again from another", true);
            bad.push((i, at, sb.encode(at).map_err(|e| StoreError::superblock(d.name(), &e))?));
        }
    }
    Ok(bad)
}

impl Job<'_> {
    pub(super) fn threads(&self) -> usize {
        match self.o.threads {
            0 => lanefs_sync::parallel::processors(),
            n => n,
        }
    }

    /// Returns the newest slot, and where it lies.
    fn slot(&self, io: &Io, report: &mut FsckReport) -> Option<(Slot, usize)> {
        let mut good = Vec::new();
        let mut bad = Vec::new();
        for (i, addr) in (0..2).flat_map(|i| self.sb.slot_places(i).into_iter().map(move |a| (i, a))) {
            let mut b = Block::zeroed();
            let mut read = || -> Result<Slot> {
                io.read_raw(addr, &mut b.0, "checkpoint slot")?;
                Ok(Slot::decode(&b, addr, self.sb.volume)?)
            };
            // What was read wrong once is no reason to go back to the other slot.
            let slot = match read() {
                Err(e) if !e.is_of_device() => read(),
                slot => slot,
            };
            match slot {
                Ok(s) => good.push((s, i)),
                Err(e) => bad.push((addr, e, b.0.iter().all(|&x| x == 0))),
            }
        }
        good.sort_by_key(|g| std::cmp::Reverse(g.0.generation));
        // A slot never written is empty, and one that a crash tore is as it has to be.
        let expected = good.first().is_some_and(|g| !g.0.clean);
        for (addr, e, empty) in &bad {
            if good.is_empty() || e.is_of_device() || !(*empty || expected) {
                let remedy = if good.is_empty() {
                    "inodes and the log are looked for in all blocks"
                } else {
                    "another one is used, and this one is written again"
                };
                report.add(format!("checkpoint slot in block {}", addr.block()), e, remedy, true);
            }
        }
        good.into_iter().next()
    }

    /// Returns an engine on marks that were counted, with what is damaged replaced; its log
    /// replayed unless `no_log`.
    fn bring_up(&self, no_log: bool, report: &mut FsckReport) -> Result<Engine> {
        report.metadata_copies = self.sb.metadata_copies();
        let io = Io::new(self.devices.clone(), 16 << 20, false).of(&self.sb);
        let found = self.slot(&io, report);
        // Without it another one would be gone by, or none.
        self.unread.check()?;
        let usable = found.is_some();
        let (mut slot, index) =
            found.unwrap_or_else(|| (Slot { volume: self.sb.volume, ..Slot::default() }, 1));
        if usable {
            check_ages(&self.sb, &io, &slot)?;
        }
        report.was_closed = slot.clean;
        slot.clean |= no_log;

        let mut leave_alone = Vec::new();
        let table = self.table(&io, &mut slot, usable, &mut leave_alone, report)?;
        self.unread.check()?;
        let (segments, mut usage) = self.usage_table(&io, &slot, usable, report);
        let mut walk = self.walk(&io, &table, false, usage.is_none(), slot.inodes, report);
        walk.leave_alone.append(&mut leave_alone);
        slot.orphans = self.orphans(&io, slot.orphans, &walk.marks, report);
        if let Some(u) = &mut usage {
            mark_summaries(u, &io, &walk.marks, report);
        }
        // What is not there because it cannot be read would be missed from here on.
        self.unread.check()?;
        debug_assert_eq!(
            io.queue_len(),
            0,
            "something has an address before all blocks in use are marked (2)"
        );
        let counted = usage.is_some();
        let mut usage = usage.unwrap_or_else(|| UsageTable::new(segments.len()));
        compare_usage(&segments, &mut usage, &walk.marks, counted.then_some(&mut *report), &mut |_| ());

        set_counts(&mut slot, &walk, usable, report);
        let engine = Engine::new(Parts {
            devices: self.devices.clone(),
            superblock: self.sb.clone(),
            segments,
            inodes: table,
            maintenance: Maintenance::new(slot, index, usage),
            options: OpenOptions { lanes: 1, accept_loss: true, ..OpenOptions::default() },
        });
        engine.log.io.suspect_all(io.take_suspects());
        for a in &walk.leave_alone {
            engine.log.segments.touch_addr(*a, 1);
        }
        if let Some(l) = engine.log.mlogs.first() {
            l.note_older(std::mem::take(&mut walk.owners));
        }
        let groups = self.replace(&engine, walk, report)?;
        (self.progress)(Progress { phase: Phase::Recovery, done: 0, total: 1 });
        let mut opened = OpenReport::default();
        Recovery { engine: &engine }.bring_up(&mut opened, vec![groups])?;
        report.not_arrived = opened.batches_dropped;
        if opened.lost > 0 {
            let what =
                format!("{} batches, epochs or checkpoints that were acknowledged are missing", opened.lost);
            report.add("log", what, "what they held is given up", true);
        }
        (self.progress)(Progress { phase: Phase::Recovery, done: 1, total: 1 });
        Ok(engine)
    }

    /// Returns the usage table of a slot, and the segments that it has marked; none if it cannot be
    /// used, and then nothing is marked.
    fn usage_table(
        &self,
        io: &Io,
        slot: &Slot,
        usable: bool,
        report: &mut FsckReport,
    ) -> (SegmentTable, Option<UsageTable>) {
        let segments = SegmentTable::new(self.geometry.clone());
        let usage = match UsageTable::load(slot.usage, &segments, io) {
            Ok(u) if usable => u,
            Ok(_) => return (segments, None),
            Err(e) => {
                report.add("usage table", &e, "it is counted anew", true);
                return (SegmentTable::new(self.geometry.clone()), None);
            }
        };
        for (r, owner) in usage.blocks() {
            if matches!(owner, Owner::Usage { .. }) && !r.is_none() {
                report_copy(io, "usage table".into(), r, report);
            }
        }
        (segments, Some(usage))
    }

    pub(super) fn walk(
        &self,
        io: &Io,
        table: &InodeTable,
        read_data: bool,
        want_owners: bool,
        total: u64,
        report: &mut FsckReport,
    ) -> Walk {
        let threads = self.threads();
        let progress = self.progress;
        let bare = &Io::new(self.bare.clone(), 0, true);
        Walker { io, bare, table, read_data, want_owners, threads, total, progress }
            .run(self.geometry.clone(), report)
    }

    /// Returns the inode table; parts that cannot be read are filled from a scan of all blocks.
    fn table(
        &self,
        io: &Io,
        slot: &mut Slot,
        usable: bool,
        leave_alone: &mut Vec<BlockAddr>,
        report: &mut FsckReport,
    ) -> Result<InodeTable> {
        let mut good: BTreeMap<u64, Vec<(Ino, TableEntry)>> = BTreeMap::new();
        let mut lost: Vec<Range<u64>> = Vec::new();
        if usable {
            let table = match InodeTable::open(slot.table.r, slot.table.level) {
                Ok(t) => t,
                Err(e) => {
                    report.add("inode table", &e, "inodes are looked for in all blocks", true);
                    lost.push(0..u64::MAX);
                    InodeTable::new()
                }
            };
            let mut from = 0;
            loop {
                let (range, e) = match table.next_chunk_or_gap(from, io) {
                    ChunkStep::End => break,
                    ChunkStep::Chunk(c) => match table.chunk_entries(c, io) {
                        Ok(e) => {
                            let ino = |s: usize| Ino(c * INOS_PER_CHUNK + s as u64);
                            good.insert(c, e.iter().enumerate().map(|(s, e)| (ino(s), *e)).collect());
                            from = c + 1;
                            continue;
                        }
                        Err(e) => (c..c + 1, e),
                    },
                    ChunkStep::Lost(r, e) => (r, e),
                };
                let last = range.end.saturating_mul(INOS_PER_CHUNK) - 1;
                let what = What::of(format_args!("inodes {} to {last}", range.start * INOS_PER_CHUNK), &e);
                report.add("inode table", what, "these inodes are looked for in all blocks", true);
                debug_assert!(range.start >= from && range.end > from, "chunks {range:?} from {from} on");
                from = range.end;
                lost.push(range);
            }
            if lost.is_empty() {
                return Ok(table);
            }
            self.unread.check()?;
            let mut level = 0;
            while level <= slot.table.level {
                for c in good.keys() {
                    let at = table.node_ref(level, c >> (8 * u32::from(level)), io);
                    leave_alone.extend(at.ok().filter(|r| !r.is_none()).map(|r| r.addr));
                }
                level += 1;
            }
        } else {
            lost.push(0..u64::MAX);
        }
        debug_assert!(lost.is_sorted_by(|a, b| a.end <= b.start), "parts that are lost overlap: {lost:?}");
        let v = &self.sb.volume.0;
        let volume = u64::from_le_bytes([v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]]);
        let scan: Scan = scan::run(io, &self.geometry, volume, self.threads(), self.progress);
        if !usable {
            slot.mount = scan.last.mount;
            slot.folded_epoch = scan.folded();
            slot.last_ts = u64::try_from(lanefs_sync::coarse_realtime_ns()).unwrap_or(0);
            slot.next_seq = 1 << 40;
        }
        let table = InodeTable::new();
        let found = scan.entries(io, |c| lost.iter().any(|r| r.contains(&c)));
        for (ino, e) in good.into_values().flatten().chain(found) {
            if e != TableEntry::default() {
                table.set(ino, e, io)?;
            }
        }
        Ok(table)
    }

    /// Returns the list of inodes without names; marks its blocks. Cut off where it cannot be read.
    fn orphans(&self, io: &Io, first: BlockRef, marks: &Marks, report: &mut FsckReport) -> BlockRef {
        let (mut next, mut index) = (first, 0);
        while !next.is_none() {
            let marked = marks.mark_node(next.addr);
            let read =
                io.read(next, "orphan list").and_then(|b| Ok(orphans::decode_orphans(&b, next.addr, index)?));
            match read {
                Ok((_, after)) if marked == Marked::First => {
                    report_copy(io, "orphan list".into(), next, report);
                    (next, index) = (after, index + 1);
                }
                Ok(_) => {
                    let what = format!("block {} belongs to something else too", next.addr);
                    report.add("orphan list", what, "it is made anew", true);
                    return BlockRef::NONE;
                }
                Err(e) => {
                    report.add("orphan list", &e, "it is made anew", true);
                    return BlockRef::NONE;
                }
            }
        }
        first
    }

    /// Puts what could be saved in the place of what is damaged, in memory. Returns the groups that
    /// give salvaged directories their entries: older than any, so that the log's changes come on
    /// top.
    fn replace(&self, engine: &Engine, walk: Walk, report: &mut FsckReport) -> Result<Vec<u8>> {
        let mut groups = Vec::new();
        for (ino, e) in &walk.lost {
            engine.inodes.table.clear(*ino, e.generation.wrapping_add(1), e.epoch, &engine.log.io)?;
        }
        for (ino, i) in &walk.inodes {
            let e = engine.inodes.table.lookup(*ino, &engine.log.io)?;
            if e.generation != i.generation {
                let e = TableEntry { generation: i.generation, ..e };
                engine.inodes.table.set(*ino, e, &engine.log.io)?;
            }
        }
        let root = walk.inodes.get(&ROOT_INO).map(|i| i.kind);
        for Salvage { state, entries } in walk.salvaged {
            let dir = state.ino();
            if dir == ROOT_INO && root != Some(FileKind::Dir) {
                continue; // A new one takes its place.
            }
            self.put(engine, state)?;
            for e in entries {
                let Some(v) = version(groups.len()) else { break };
                let set = Effect::Set {
                    dir,
                    cookie: e.cookie,
                    name: &e.name,
                    ino: e.ino,
                    old: Ino::NONE,
                    kind: e.kind,
                };
                encode_group(&mut groups, v, &[set]);
            }
        }
        if root != Some(FileKind::Dir) {
            report.add(
                "root directory",
                "cannot be read",
                "a new one is made; all names go to lost+found",
                true,
            );
            let e = engine.inodes.table.lookup(ROOT_INO, &engine.log.io)?;
            if !e.block.is_none() {
                engine.inodes.table.clear(ROOT_INO, e.generation, e.epoch, &engine.log.io)?;
            }
            let mut state = InodeState::new(ROOT_INO, dir_attrs(0o755, 0), ROOT_INO);
            state.set_names(1);
            self.put(engine, state)?;
            // What was there in its place was counted.
            engine.totals.inodes.fetch_add(u64::from(root.is_none()), Relaxed);
        }
        Ok(groups)
    }

    /// Makes `state` the inode's state, to be written by the next checkpoint.
    fn put(&self, engine: &Engine, state: InodeState) -> Result<()> {
        let ino = state.ino();
        debug_assert!(
            state.block().is_none() && state.is_dirty(),
            "inode {ino} is made anew, and written anew"
        );
        debug_assert!(!engine.inodes.cache.has(ino), "inode {ino} is in memory as it was");
        let mut state = Some(state);
        let inode =
            engine.inodes.cache.get_or_load(ino, || Ok(state.take().map(|s| InodeEntry::new(s, true))))?;
        if let Some(inode) = inode {
            let mut i = inode.lock();
            i.charge_unwritten(&engine.log.space, 0);
            engine.inodes.cache.list_dirty(&inode, &mut i);
        }
        Ok(())
    }
}

/// Sets the counts of a slot to those of a walk; reports those that were wrong, if it is one that
/// was on a device.
fn set_counts(slot: &mut Slot, walk: &Walk, usable: bool, report: &mut FsckReport) {
    let inodes = walk.inodes.len() as u64;
    if usable && slot.inodes != inodes + walk.lost.len() as u64 {
        let what = format!("counts {} inodes; there are {inodes}", slot.inodes);
        report.add("checkpoint slot", what, "the count is set", true);
    }
    slot.inodes = inodes;
    let whole = walk.lost.is_empty() && walk.salvaged.is_empty() && walk.lost_chunks.is_empty();
    if usable && whole && slot.unwritten != walk.unwritten {
        report.add("checkpoint slot", miscounted(slot.unwritten, walk.unwritten), "the count is set", true);
    }
    slot.unwritten = walk.unwritten;
    let next = walk.inodes.last_key_value().map_or(1, |(i, _)| i.chunk() + 1);
    if slot.next_chunk < next {
        let (first, used) = (slot.next_chunk, next - 1);
        let what = format!("says that chunks from {first} on are unused; chunk {used} is used");
        if usable {
            report.add("checkpoint slot", what, "it is set", true);
        }
        slot.next_chunk = next;
    }
    debug_assert!(
        walk.inodes.keys().all(|i| i.chunk() < slot.next_chunk),
        "a number in use would be given out again"
    );
}

/// Returns a version below all others, by the length of what precedes.
fn version(n: usize) -> Option<Version> {
    Some(Version { epoch: 0, ts: u64::try_from(n).ok()?, lane: 0 })
}

pub(super) fn dir_attrs(mode: u32, generation: u32) -> Attrs {
    let now = lanefs_sync::coarse_realtime_ns();
    Attrs {
        mode: libc::S_IFDIR | mode,
        uid: 0,
        gid: 0,
        flags: 0,
        rdev: 0,
        size: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        generation,
    }
}
