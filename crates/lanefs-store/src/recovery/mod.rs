//! Opening volumes (they are made in `make`), and what opening has to do when the volume was not
//! closed.
//!
//! ```text
//! superblocks -> newest slot that verifies -> usage table, inode table; an error if they cannot be read
//! scan      follow each mlog's chain from its position; try every block for a batch
//! verify    drop messages that are not whole, and fsync messages whose data did not reach the medium
//! flush     what was read may still be in a volatile cache: a power loss now must not take it back
//! E         the last committed epoch without a gap
//! replay    inode updates by version; then a checkpoint that folds: groups of committed epochs, and those groups of
//!           fsync messages that are behind E. It leaves the volume as if closed
//! space     where hardly a segment is free: rounds of the cleaner, a checkpoint behind each
//! orphans   a second checkpoint frees inodes without names
//! heads     opened only now that the old log is free; a last checkpoint records where they begin
//! flush     of that slot's twin: see `slots`
//! ```
//!
//! 1. Nothing that the slot or a valid batch needs is overwritten before the recovery's own
//!    checkpoint is durable: segments that the scan or a batch touched are not free until then. So
//!    a crash during recovery changes nothing (O11).
//! 2. Batches of other mounts never verify; the recovery's checkpoint begins a new mount. So the
//!    log is never continued, and no sequence is used twice: they go on from the slot's or from the
//!    clock, whichever is later, because a device that lost the slots of a mount would have the
//!    next one count as that one did, and believe its batches.
//! 3. Data is checked only for updates that the tree does not have: older ones were answered before
//!    the slot, and their blocks may have been freed since.
//! 4. An update replayed is an update submitted: the same inodes, births and deaths; so the
//!    checkpoint that follows needs no special case.

pub(crate) mod make;
pub(crate) mod scan;
mod verify;

use crate::api::{FoldInput, OpenOptions, OpenReport};
use crate::device::Device;
use crate::engine::checkpoint::Seal;
use crate::engine::maintenance::Maintenance;
use crate::engine::plan::plan;
use crate::engine::{Engine, Parts};
use crate::error::{Result, StoreError};
use crate::groups::Groups;
use crate::log::io::Io;
use crate::log::segment::{Geometry, SegmentTable, State};
use crate::log::slots::{check_ages, read_slots};
use crate::log::superblocks::{order_devices, write_again};
use crate::log::usage_table::UsageTable;
use crate::recovery::scan::{FsyncMessage, Scan};
use crate::tree::block_io::BlockSource;
use crate::tree::inode_state::InodeState;
use crate::tree::inode_table::InodeTable;
use lanefs_format::batch::InodeRecord;
use lanefs_format::orphans;
use lanefs_format::record::groups_above;
use lanefs_format::record::{self, Effect};
use lanefs_format::slot::Slot;
use lanefs_format::summary::DataOwner;
use lanefs_format::superblock::Superblock;
use lanefs_format::{BlockAddr, BlockRef, Ino, ROOT_INO, Version};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Returns the tables below a slot, read and verified as far as opening needs them.
fn read_tables(slot: &Slot, sb: &Superblock, io: &Io) -> Result<(SegmentTable, InodeTable, UsageTable)> {
    let blocks: Vec<u64> = sb.devices.iter().map(|d| d.blocks).collect();
    let geometry = Geometry::new(&sb.layout, &blocks).with_copies(sb.metadata_copies());
    let segments = SegmentTable::new(geometry);
    let usage = UsageTable::load(slot.usage, &segments, io)?;
    let inodes = InodeTable::open(slot.table.r, slot.table.level)?;
    let root = inodes.lookup(ROOT_INO, io)?;
    if root.block.is_none() {
        return Err(StoreError::BadInode { ino: ROOT_INO, why: "the root directory is missing".into() });
    }
    InodeState::load(ROOT_INO, &root, io)?;
    Ok((segments, inodes, usage))
}

/// Reads whether the volume on `devices` was closed: see [`crate::Store::was_closed`].
pub(crate) fn was_closed(devices: Vec<Arc<dyn Device>>) -> Result<bool> {
    let (devices, sb) = order_devices(devices)?;
    let (slots, _) = read_slots(&sb, &Io::new(devices, 1 << 20, true))?;
    Ok(slots.first().is_some_and(|(s, _)| s.clean))
}

/// Opens a volume: see [`crate::Store::open`].
pub(crate) fn open(devices: Vec<Arc<dyn Device>>, o: &OpenOptions) -> Result<(Engine, OpenReport)> {
    let began = Instant::now();
    let (devices, sb) = order_devices(devices)?;
    if !o.read_only
        && !sb.read_only()
        && let Err(e) = write_again(&devices, &sb)
    {
        // They say no less than what is in force, so nothing is lost that they are believed.
        tracing::warn!("a superblock of a change that was cut short stays: {e}");
    }
    let io = Io::new(devices.clone(), 1 << 20, true).of(&sb);
    let (slots, error) = read_slots(&sb, &io)?;
    let Some((slot, index)) = slots.into_iter().next() else {
        let none = || StoreError::NotAVolume { device: "volume".into(), why: "no checkpoint".into() };
        return Err(error.unwrap_or_else(none));
    };
    check_ages(&sb, &io, &slot)?;
    // The other slot's tree is older, and what it refers to may be in use again: to go back to it,
    // and lose what was acknowledged since, is left to a repair.
    let (segments, inodes, usage) = read_tables(&slot, &sb, &io)?;
    let mut report = OpenReport { clean: slot.clean, ..OpenReport::default() };
    let engine = Engine::new(Parts {
        devices,
        superblock: sb,
        segments,
        inodes,
        maintenance: Maintenance::new(slot, index, usage),
        options: o.clone(),
    });
    engine.log.io.suspect_all(io.take_suspects());
    debug_assert_eq!(io.queue_len(), 0, "what only looks at a volume has queued blocks");
    Recovery { engine: &engine }.bring_up(&mut report, Vec::new())?;
    report.nanos = began.elapsed().as_nanos() as u64;
    Ok((engine, report))
}

/// Brings a volume up whose tables were read.
pub(crate) struct Recovery<'a> {
    pub engine: &'a Engine,
}

impl Recovery<'_> {
    /// Goes from a slot's tables to a store that accepts transactions. `first` is folded with, and
    /// before, what the log holds.
    pub(crate) fn bring_up(&self, report: &mut OpenReport, first: Vec<Vec<u8>>) -> Result<()> {
        let mut m = self.engine.maintenance.lock();
        let m = &mut *m;
        debug_assert!(m.durable == 0 && m.orphans.is_empty(), "the volume was brought up before");
        self.load_orphans(m)?;
        let mut scan = Scan::default();
        let mut input = FoldInput { epoch: m.slot.folded_epoch, groups: Vec::new() };
        if !m.slot.clean {
            // A slot as it is on a medium has positions; one that was made up has none.
            let lost = m.slot.positions.is_empty();
            scan = if lost {
                Scan::everywhere(&self.engine.log)
            } else {
                Scan::run(&self.engine.log, self.engine.accept_loss, &m.slot)?
            };
            input = self.recover(m, &mut scan, report)?;
        }
        debug_assert!(input.epoch >= m.slot.folded_epoch, "epoch {} was folded before", input.epoch);
        input.groups.extend(first.into_iter().map(Groups::from));
        report.epoch = report.epoch.max(m.slot.folded_epoch);
        self.engine.log.space.charge(
            0,
            self.engine.log.segments.total_live() - m.usage.summary_blocks(&self.engine.log.segments),
        );
        self.engine.log.space.charge(0, m.slot.unwritten);
        scan.chain.iter().for_each(|s| self.engine.log.segments.give_figures(*s));
        let needed = |s| scan.chain.contains(&s) || self.engine.log.segments.info(s).touched > 0;
        self.engine.log.segments.fill_pools(needed);
        debug_assert!(
            scan.chain.iter().all(|s| self.engine.log.segments.info(*s).state != State::Free),
            "a segment that the scan walked through is free (1)"
        );
        if self.engine.log.read_only {
            return self.fold_in_memory(m, &input);
        }
        self.engine.log.look_at_rule_first();
        // Relaxed, here and below: nobody else has the volume yet.
        self.engine.log.mount.store(m.slot.mount + 1, Ordering::Relaxed);
        let clock = lanefs_sync::coarse_realtime_ns().max(0) as u64 >> 20;
        self.engine.log.next_seq.fetch_max(clock, Ordering::Relaxed);
        self.engine.checkpoints().stamp_members(m, 0)?;
        let is_short = self.engine.log.has_few_segments();
        if m.slot.clean && !is_short {
            self.open_heads()?;
            self.engine.checkpoints().run(m, Some(|| Ok(input)), Seal::Behind)?;
            self.free_orphans(m, report)?;
            return self.mounted(m);
        }
        // Space may be short, and what the log holds is free only after this: so heads are opened
        // later, and until then the volume is as good as closed.
        self.engine.checkpoints().run(m, Some(|| Ok(input)), Seal::Last)?;
        self.drop_unfolded();
        if is_short {
            self.make_space(m)?;
        }
        self.free_orphans(m, report)?;
        self.open_heads()?;
        self.engine.checkpoints().in_place(m)?;
        self.mounted(m)
    }

    /// Cleans, for a volume that was left with hardly a free segment, before its logs take theirs.
    /// Behind each round it is as good as closed.
    fn make_space(&self, m: &mut Maintenance) -> Result<()> {
        let enough = 8 * self.engine.log.mlogs.len() as u64;
        debug_assert!(m.durable > 0, "the first checkpoint has freed what it can");
        for _ in 0..16 {
            if u64::from(self.engine.log.segments.free_count()) >= enough {
                break;
            }
            let done = self.engine.cleaner().clean_until(m, enough, true)?;
            let none: Option<fn() -> Result<FoldInput>> = None;
            self.engine.checkpoints().run(m, none, Seal::Last)?;
            if done.segments == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Makes durable what has to be on the medium before anything of this mount is acknowledged:
    /// the twin of its slot, in place of one that is marked clean, and the other devices' stamps.
    fn mounted(&self, m: &mut Maintenance) -> Result<()> {
        debug_assert!(m.durable > 0 && !m.slot.clean, "the slot in force is marked clean");
        debug_assert_eq!(
            m.slot.mount,
            self.engine.log.mount.load(Ordering::Relaxed),
            "the slot of another mount"
        );
        m.opening = false;
        self.engine.log.look_at_rule();
        self.engine.checkpoints().stamp_members(m, 1)?;
        self.engine.log.io.flush(self.engine.log.io.all())
    }

    fn open_heads(&self) -> Result<()> {
        self.engine
            .log
            .mlogs
            .iter()
            .try_for_each(|l| l.open_node(&self.engine.log.segments, &self.engine.log.next_seq))
    }

    fn free_orphans(&self, m: &mut Maintenance, report: &mut OpenReport) -> Result<()> {
        // In a repair an inode may only look nameless: its name lies in a directory that was found
        // in another state than the table. All names are looked at later (`fsck::live`), and who
        // opens the volume next frees what has none.
        if m.orphans.is_empty() || self.engine.accept_loss {
            return Ok(());
        }
        let groups = self.dead_groups(m)?;
        report.orphans_freed = m.orphans.len() as u64;
        let (epoch, clean) = (m.slot.folded_epoch, m.slot.clean);
        self.engine.checkpoints().run(
            m,
            Some(|| Ok(FoldInput { epoch, groups: vec![groups.into()] })),
            if clean { Seal::Last } else { Seal::Behind },
        )?;
        m.freed.clear(); // The inode table has it; nobody held these numbers.
        Ok(())
    }

    fn load_orphans(&self, m: &mut Maintenance) -> Result<()> {
        let mut next = m.slot.orphans;
        let mut index = 0;
        while !next.is_none() {
            let b = self.engine.log.io.read(next, "orphan list")?;
            let (inos, after) = orphans::decode_orphans(&b, next.addr, index)?;
            m.orphans.extend(inos);
            m.orphan_blocks.push(next);
            (next, index) = (after, index + 1);
        }
        Ok(())
    }

    /// Judges what the scan found, replays the inode updates and returns what to fold.
    fn recover(&self, m: &mut Maintenance, scan: &mut Scan, report: &mut OpenReport) -> Result<FoldInput> {
        let folded = m.slot.folded_epoch;
        report.blocks_scanned = scan.blocks;
        report.batches = scan.batches;
        if !self.engine.log.read_only {
            self.engine.log.io.flush(self.engine.log.io.all())?;
        }
        let committed = scan.committed(folded);
        let last = committed.last().map_or(folded, |c| c.0);
        debug_assert!(last >= folded, "epoch {last} was folded before");
        self.count_losses(m, scan, last, report)?;
        let fsyncs = std::mem::take(&mut scan.fsyncs);
        let arrived = self.verify_batch_data(&fsyncs)?;
        debug_assert_eq!(arrived.len(), fsyncs.len(), "an answer for each message");
        let all = fsyncs.len() as u64;
        let mut good: Vec<FsyncMessage> = Vec::with_capacity(fsyncs.len());
        for (msg, arrived) in fsyncs.into_iter().zip(arrived) {
            // What was durable counts even if its data is damaged since: reading that is an error
            // then.
            if arrived || msg.acked { good.push(msg) } else { report.batches_dropped += 1 }
        }
        debug_assert_eq!(good.len() as u64 + report.batches_dropped, all, "a message counts or is dropped");
        report.epoch = last;
        let mut groups: Vec<Vec<u8>> = committed.into_iter().map(|c| c.1).collect();
        let mut seen: HashSet<Version> = HashSet::new();
        let mut behind = Vec::new();
        for msg in &good {
            for g in
                record::groups(&groups_above(&msg.message.groups, last)).map_while(std::result::Result::ok)
            {
                if seen.insert(g.version) {
                    behind.extend_from_slice(g.bytes);
                }
            }
        }
        groups.push(behind);
        // No epoch that any batch named is used again.
        let mut epoch = scan.highest_epoch.max(folded);
        for g in groups.iter().flat_map(|b| record::groups(b)).map_while(std::result::Result::ok) {
            epoch = epoch.max(g.version.epoch);
            report.groups += 1;
        }
        debug_assert!(epoch >= last, "epoch {last} would be used again");
        let mut records: Vec<_> = good.into_iter().flat_map(|g| g.message.inodes).collect();
        if self.engine.accept_loss {
            report.lost += records.iter_mut().map(|r| self.drop_pages_nowhere(r)).sum::<u64>();
        }
        // Of one version there are two only where an older program carried one over: that one has
        // all.
        records.sort_by_key(|r| (r.ino, r.version, !r.is_whole(), r.xattrs.is_none()));
        for r in &records {
            report.inode_updates += u64::from(self.replay(r)?);
        }
        Ok(FoldInput { epoch, groups: groups.into_iter().map(Groups::from).collect() })
    }

    /// Counts what was acknowledged and is missing, with `last` the last committed epoch: an error,
    /// unless losses are accepted.
    fn count_losses(
        &self,
        m: &Maintenance,
        scan: &mut Scan,
        last: u64,
        report: &mut OpenReport,
    ) -> Result<()> {
        // An epoch that was committed for sure, and cannot be put together: it or one before it is
        // lost.
        if last < scan.acked_epoch {
            scan.lost.push((BlockAddr(0), scan.acked_epoch));
        }
        if m.slot.generation < scan.slot {
            // The tree of that slot held what no batch has.
            scan.lost.push((self.engine.superblock().layout.slot_addr(m.slot_index ^ 1), scan.slot));
        }
        report.lost = scan.lost.len() as u64;
        match scan.lost.first().filter(|_| !self.engine.accept_loss) {
            None => Ok(()),
            Some(&(addr, place)) => {
                let why = format!(
                    "{} batches, epochs or checkpoints that were acknowledged are missing; the first is {place:#x}",
                    report.lost
                );
                Err(StoreError::Corrupt { addr, what: "log", why })
            }
        }
    }

    /// Takes out of a record the pages whose addresses are those of no block of the log, and
    /// returns how many these were. Only a repair does: to whoever opens the volume reading such a
    /// page is an error.
    fn drop_pages_nowhere(&self, r: &mut InodeRecord) -> u64 {
        let lies = |b: &BlockRef| self.engine.log.segments.geometry.locate(b.addr).is_some();
        let all = r.pages().count();
        let good: Vec<_> = r.pages().filter(|(_, b)| lies(b)).collect();
        let dropped = all - good.len();
        if dropped > 0 {
            r.runs.clear();
            good.into_iter().for_each(|(page, b)| r.push_page(page, b));
            debug_assert_eq!(r.pages().count(), all - dropped, "pages that stay in the record of {}", r.ino);
        }
        dropped as u64
    }

    /// Returns whether the tree lacks update `version` of this use of the inode number.
    pub(crate) fn is_newer(&self, ino: Ino, generation: u32, version: u64) -> Result<bool> {
        let e = self.engine.inodes.table.lookup(ino, &self.engine.log.io)?;
        if e.block.is_none() {
            // Not yet folded, unless this use of the number is over.
            return Ok(e.generation <= generation);
        }
        let s = InodeState::load(ino, &e, &self.engine.log.io)?;
        Ok(s.attrs().generation == generation && s.version() < version)
    }

    /// Applies one update, if it is news.
    fn replay(&self, r: &InodeRecord) -> Result<bool> {
        use crate::inodes::cache::Logged;
        use lanefs_format::batch::TailUpdate;
        let e = self.engine.inodes.table.lookup(r.ino, &self.engine.log.io)?;
        if e.block.is_none() && e.generation > r.attrs.generation {
            return Ok(false);
        }
        let inode = self.engine.inodes.get_or_new(r.ino, &r.attrs, &self.engine.log.io)?;
        let mut guard = inode.lock();
        let i = &mut *guard;
        let same_use = i.state.attrs().generation == r.attrs.generation;
        if !same_use || i.state.version() >= r.version {
            return Ok(false);
        }
        debug_assert!(!i.gone, "inode {} cannot be found, and is changed", r.ino);
        let mut freed = Vec::new();
        for u in &r.unmaps {
            i.state.unmap(u.clone(), &self.engine.log.io, &mut freed)?;
        }
        for a in freed {
            i.drop_block_now(&self.engine.log.segments, a);
        }
        for (page, b) in r.pages() {
            let old = i.state.set_page(page, b, &self.engine.log.io)?;
            if old == Some(b.addr) {
                continue; // The tree had it already.
            }
            i.add_block(&self.engine.log.segments, b.addr);
            if let Some(old) = old {
                i.drop_block_now(&self.engine.log.segments, old);
            }
        }
        match &r.tail {
            TailUpdate::Same => {}
            TailUpdate::None => i.state.drop_tail(),
            TailUpdate::Set { page, bytes } => {
                // A tail that this one displaces is among the pages.
                let change = i.state.set_tail(*page, bytes.clone(), &self.engine.log.io)?;
                if let Some(old) = change.freed {
                    i.drop_block_now(&self.engine.log.segments, old);
                }
            }
        }
        if let Some(p) = r.prealloc {
            i.state.replay_prealloc(p, &self.engine.log.io)?;
        }
        i.charge_unwritten(&self.engine.log.space, 0);
        let owners = r.pages().map(|(page, b)| (b.addr, DataOwner { ino: r.ino, page }));
        self.engine.log.mlogs[0].note_older(owners);
        i.state.apply_attrs(&r.attrs, r.version);
        debug_assert!(i.state.version() >= r.version, "update {} of inode {} comes again", r.version, r.ino);
        if let Some(x) = &r.xattrs {
            i.state.set_xattrs(x.clone())?;
            i.xattrs = Logged::No;
        }
        if !i.state.is_dir() {
            i.tail = Logged::No;
        }
        i.check_invariants();
        self.engine.inodes.cache.list_dirty(&inode, i);
        Ok(true)
    }

    /// Drops updates of inodes whose NEW did not become durable.
    fn drop_unfolded(&self) {
        for inode in self.engine.inodes.cache.take_dirty() {
            let mut i = inode.lock();
            i.listed = false;
            if i.folded || i.gone {
                if !i.gone && !i.is_clean() {
                    self.engine.inodes.cache.list_dirty(&inode, &mut i);
                }
                continue;
            }
            i.gone = true;
            debug_assert!(
                i.state.block().is_none(),
                "inode {} is on disk, and its NEW is not folded",
                inode.ino
            );
            for a in i.fresh.take() {
                self.engine.log.space.credit(0, self.engine.log.segments.blocks_at(a));
                self.engine.log.segments.clear_live(a);
            }
            self.engine.log.space.credit(0, i.state.unwritten());
            self.engine.inodes.cache.remove(inode.ino);
        }
    }

    /// Returns groups that end all orphans.
    fn dead_groups(&self, m: &Maintenance) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let epoch = m.slot.folded_epoch;
        for &ino in &m.orphans {
            let generation = self.engine.inodes.table.lookup(ino, &self.engine.log.io)?.generation;
            let ts = self.engine.totals.last_ts.load(Ordering::Relaxed);
            record::encode_group(
                &mut out,
                Version { epoch, ts, lane: 0 },
                &[Effect::Dead { ino, generation }],
            );
        }
        debug_assert_eq!(record::groups(&out).count(), m.orphans.len(), "a group for each inode");
        Ok(out)
    }

    /// Recovers a volume that is opened for reading only, in memory: its new blocks stay in the
    /// queue.
    fn fold_in_memory(&self, m: &mut Maintenance, input: &FoldInput) -> Result<()> {
        debug_assert!(self.engine.log.read_only, "a volume that can be written is recovered by a checkpoint");
        let mut dirty = std::mem::take(&mut m.usage.dirty);
        let mut sink = crate::engine::sink::Sink::new(&self.engine.log, &self.engine.totals, &mut dirty);
        let plan = plan(input.groups.iter().map(|g| &g[..]), self.engine.log.threads())?;
        self.engine.fold().fold(m, plan, &mut sink)?;
        self.engine.fold().fold_deferred(m, &mut sink)?;
        self.engine.inodes.cache.list_again(&std::mem::take(&mut m.changed)); // Who scrubs looks for them there.
        self.engine.log.epoch.fetch_max(input.epoch, Ordering::Relaxed);
        debug_assert_eq!(m.durable, 0, "something was written");
        Ok(())
    }
}
