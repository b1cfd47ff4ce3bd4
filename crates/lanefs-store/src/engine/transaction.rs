//! A transaction's way to the device: one trip, and one shared flush if it is durable.
//!
//! ```text
//! A  lock the inodes in ino order, with the map nodes in memory that the pages need
//! B  inside a reader section (no I/O, no waiting): give out addresses, change the inodes, take what the batch has to
//!    carry, give the batch its place; leave the section, unlock
//! C  write data and batch in one submission per device
//! D  if durable: wait for older data and links that the batch relies on, flush, wait for older commits of these inodes
//! ```
//!
//! 1. B is atomic against a checkpoint's position P: either the batch lies before P and the inodes'
//!    changes are captured by that checkpoint, or the batch lies behind P.
//! 2. A durable batch carries every change of its inodes that the tree lacks and no older batch
//!    carries ([`InodeState::take_delta`]); a batch that carries the others is older, and D waits
//!    for it. So recovery never needs a batch that may be missing to make sense of one that was
//!    acknowledged.
//! 3. The data a batch refers to was answered before its flush began (D), own or not.
//! 4. If something cannot be read, or nothing can be allocated for the data, nothing has changed;
//!    if nothing for the batch, the data is written and mapped, and the batch follows once there is
//!    space. A caller that gets an error still has its promises.
//! 5. Who finds no space makes a checkpoint and tries again. That checkpoint may find none for
//!    itself, while others give space back that the next one frees. So its error becomes the
//!    transaction's only when the next ones have ended like that as well.
//! 6. Where inodes wait for the fold that makes them, it is the fold that frees space: a checkpoint
//!    of the store's own writes all of them again, and what these records name was touched behind
//!    its position, so no data can be cleaned. One after the other they would use up what is kept
//!    back for the fold. So a caller who folds, and tries again, is told at once, others are behind
//!    the second try.
//! 7. An update was captured some time before its inode is locked. A change of rights may have been
//!    committed and folded meanwhile; nothing would tell any more that the update is the older of
//!    the two, and it would take the change back. So where the log tells of rights
//!    ([`InodeUpdate::rights_logged`]) an update does not: those that were folded stay. What was
//!    not folded yet is in the log, and recovery takes it from there.
//!
//! [`InodeState::take_delta`]: crate::tree::inode_state::InodeState::take_delta

use crate::api::{InodeUpdate, Transaction};
use crate::engine::Engine;
use crate::engine::begun::Begun;
use crate::engine::pressure::Need;
use crate::error::{Result, StoreError};
use crate::inodes::cache::{CachedInode, InodeEntry, Logged};
use crate::log::heat::{ByLife, Runs, addresses};
use crate::log::message::Pending;
use crate::log::message::Placed;
use crate::log::mlog::Mlog;
use crate::page_image::PageImage;
use crate::tree::inode_state::{InodeState, MapDelta, padded, tail_of};
use crate::tree::radix::Wanted;
use lanefs_format::batch::{self, InodeRecord, TailUpdate};
use lanefs_format::checksum;
use lanefs_format::summary::DataOwner;
use lanefs_format::xattrs;
use lanefs_format::{Attrs, BLOCK_SHIFT, BlockRef, FileKind, PAGES_END, XATTR_BLOB_MAX};
use lanefs_sync::lock::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How often a transaction that found no space is tried again.
const TRIES: u32 = 8;
/// How often it is besides, behind checkpoints that others have made meanwhile.
const SHARED: u32 = 64;
/// How many checkpoints may find no space for themselves meanwhile (5). Each of them uses some up.
const FAILED: u32 = 3;

impl Engine {
    /// See [`crate::Store::submit_and`].
    pub(crate) fn run_transaction(&self, mut tx: Transaction, mut begun: impl FnMut()) -> Result<()> {
        self.log.check_writable()?;
        if !tx.durable && !tx.groups.is_empty() {
            return Err(StoreError::Invalid("record groups need a durable transaction".into()));
        }
        tx.inodes.sort_by_key(|u| u.ino);
        if tx.inodes.windows(2).any(|w| w[0].ino == w[1].ino) {
            return Err(StoreError::Invalid("an inode twice in one transaction".into()));
        }
        for u in &tx.inodes {
            if u.xattrs.as_ref().is_some_and(|x| x.len() > XATTR_BLOB_MAX) {
                return Err(StoreError::NoSpace);
            }
            if let Some((page, _)) = u.pages.iter().find(|p| p.0 >= PAGES_END) {
                return Err(StoreError::Invalid(format!("page {page} is beyond what a map can hold")));
            }
        }
        let promised = |tx: &Transaction| tx.inodes.iter().map(|u| u64::from(u.reserved)).sum::<u64>();
        let brought = promised(&tx);
        let r = self.try_until_there_is_space(&mut tx, &mut begun);
        debug_assert!(promised(&tx) <= brought, "promises came that nobody made");
        debug_assert!(r.is_err() || promised(&tx) == 0, "a promise was not taken");
        if r.is_err() {
            self.log.space.keep_promise(tx.lane, brought - promised(&tx));
        }
        r
    }

    fn try_until_there_is_space(&self, tx: &mut Transaction, begun: &mut impl FnMut()) -> Result<()> {
        self.watch_metadata_for(tx.lane, &tx.inodes)?;
        let (mut tries, mut failed, mut shared) = (0, 0, 0);
        loop {
            match self.try_transaction(tx, begun) {
                // 6
                Err(StoreError::NoSpace) if (tx.folds || tries > 1) && self.waits_for_fold() => {
                    return Err(StoreError::NoSpace);
                }
                Err(StoreError::NoSpace) if tries < TRIES => {
                    tries += 1;
                    if tries > 1 {
                        self.log.segments.slack.give_way();
                    }
                    let blocks = tx.inodes.iter().map(|u| u.pages.len() as u64).sum();
                    // Relaxed: see `free_space`.
                    let seen = self.log.slot_in_force.load(Ordering::Relaxed);
                    match self.free_space_since(seen, Need::Data(blocks), tries > 4) {
                        Err(StoreError::NoSpace) if failed + 1 < FAILED => failed += 1,
                        // What others have freed may be gone again: only what this one has tried
                        // counts, but not for ever.
                        Ok(false) if shared < SHARED => (tries, shared) = (tries - 1, shared + 1),
                        done => drop(done?),
                    }
                }
                done => return done,
            }
        }
    }

    /// Makes one attempt. [`StoreError::NoSpace`] means: free space and try again; what was done
    /// already is taken out of `tx`.
    fn try_transaction(&self, tx: &mut Transaction, begun: &mut impl FnMut()) -> Result<()> {
        let transaction = self.begin_transaction(tx, None)?;
        begun();
        transaction.finish().0
    }

    /// Does steps A and B, for a transaction and the shares of an epoch that goes with it, both in
    /// one section. After an error neither was begun. An epoch that has its places is begun,
    /// whatever becomes of the transaction.
    pub(crate) fn begin_transaction(
        &self,
        tx: &mut Transaction,
        epoch: Option<&Pending>,
    ) -> Result<Begun<'_>> {
        let lane = tx.lane;
        let mlog = &self.log.mlogs[lane % self.log.mlogs.len()];
        let inodes = self.inodes_for(&tx.inodes)?;
        let mut guards = self.lock_all(&inodes, &tx.inodes)?;
        self.keep_folded_rights(&mut tx.inodes, &guards)?;
        let section = self.log.sections.enter(lane);
        section.check()?;
        let mut writes = Vec::new();
        let mut placed = Vec::new();
        let mut no_space = None;
        let shares = epoch.map_or(Ok(Vec::new()), |p| self.place_epoch(p, mlog.id))?;
        let beside = Some(mlog).filter(|_| tx.durable && !self.log.one_log.is_in_force());
        match self.change_inodes(lane, beside, &mut tx.inodes, &mut guards, &mut writes) {
            // The epoch has its places: it goes without the transaction, of which nothing was done.
            Err(e) if !shares.is_empty() => no_space = Some(e),
            other => other?,
        }
        if tx.durable && no_space.is_none() {
            match self.place_fsync(mlog.id, &tx.groups, &mut guards) {
                Ok(p) => {
                    // Relaxed: the section orders it, as in `change_inodes`.
                    mlog.keep_groups(&tx.groups, self.log.checkpoint_number.load(Ordering::Relaxed));
                    placed.push(p);
                }
                Err(e) => no_space = Some(e),
            }
        }
        debug_assert!(placed.len() <= 1 && (tx.durable || placed.is_empty()), "a transaction is one message");
        let durable = !placed.is_empty();
        let mut tickets = Vec::with_capacity(inodes.len());
        for (inode, inner) in inodes.iter().zip(&mut guards) {
            self.inodes.cache.list_dirty(inode, inner);
            self.inodes.cache.update_weight(inode.ino, inner);
            inner.check_invariants();
            tickets.push((inode.clone(), inner.begin(durable)));
        }
        debug_assert_eq!(tickets.len(), tx.inodes.len(), "a ticket for each inode");
        let flight = section.leave();
        Ok(Begun { log: &self.log, durable: tx.durable, tickets, writes, placed, shares, no_space, flight })
    }

    /// Gives the updates of inodes whose rights the log tells those that were folded (7). Their
    /// locks are held: no fold comes between this and the update.
    fn keep_folded_rights(
        &self,
        updates: &mut [InodeUpdate],
        guards: &[MutexGuard<'_, InodeEntry>],
    ) -> Result<()> {
        debug_assert_eq!(updates.len(), guards.len(), "the caller has locked the inodes");
        for (u, g) in updates.iter_mut().zip(guards).filter(|(u, g)| u.rights_logged && g.folded) {
            let Attrs { mode, uid, gid, generation, .. } = *g.state.attrs();
            if generation != u.attrs.generation {
                continue;
            }
            debug_assert_eq!((mode ^ u.attrs.mode) & libc::S_IFMT, 0, "inode {} has another kind", u.ino);
            (u.attrs.mode, u.attrs.uid, u.attrs.gid) = (mode, uid, gid);
            let Some(captured) = &u.xattrs else { continue };
            let is_file = u.attrs.kind() == Some(FileKind::File);
            let folded = xattrs::rights(&g.state.xattr_bytes(&self.log.io)?, is_file);
            let all = folded.and_then(|rights| xattrs::with_rights(captured, &rights));
            // What does not fit beside the others, or was never well formed, stays as captured.
            if let Some(all) = all.filter(|all| all.len() <= XATTR_BLOB_MAX) {
                u.xattrs = Some(all);
            }
        }
        Ok(())
    }

    fn inodes_for(&self, updates: &[InodeUpdate]) -> Result<Vec<Arc<CachedInode>>> {
        // A new one has no page yet.
        let get =
            |u: &InodeUpdate| self.inodes.get_or_new(u.ino, &Attrs { size: 0, ..u.attrs }, &self.log.io);
        updates.iter().map(get).collect()
    }

    /// Locks the inodes in their order, with all map nodes in memory that the pages need.
    fn lock_all<'a>(
        &self,
        inodes: &'a [Arc<CachedInode>],
        updates: &[InodeUpdate],
    ) -> Result<Vec<MutexGuard<'a, InodeEntry>>> {
        debug_assert!(inodes.is_sorted_by_key(|inode| inode.ino), "locks are taken in this order");
        loop {
            let guards: Vec<_> = inodes.iter().map(|c| c.lock()).collect();
            if let Some(i) = guards.iter().position(|g| g.gone) {
                let why = format!("inode {} does not exist any more", inodes[i].ino);
                return Err(StoreError::Invalid(why));
            }
            let mut wanted: Vec<(usize, u64, Wanted)> = Vec::new();
            for (n, (i, u)) in guards.iter().zip(updates).enumerate() {
                // The tail that becomes a block is a page of the map too.
                let tail = i.state.tail().filter(|_| Plan::new(u, &i.state).displaced);
                let pages = u.pages.iter().map(|(p, _)| *p).chain(tail.map(|t| t.0));
                wanted.extend(pages.filter_map(|p| Some((n, p, i.state.missing_for(p)?))));
            }
            if wanted.is_empty() {
                debug_assert_eq!(guards.len(), updates.len(), "each inode is locked");
                debug_assert!(
                    updates
                        .iter()
                        .zip(&guards)
                        .all(|(u, g)| !u.size_only || g.folded || g.state.version() > 0),
                    "the store has no attributes of this inode"
                );
                return Ok(guards);
            }
            drop(guards);
            wanted.dedup_by(|a, b| (a.0, &a.2) == (b.0, &b.2));
            for (n, page, w) in wanted {
                self.inodes.read_node(&inodes[n], &w, &self.log.io, |s| s.missing_for(page))?;
            }
        }
    }

    /// Does part B for the inodes: addresses, maps, attributes. Takes the pages out of the updates.
    /// `beside`: the mlog that takes the batch, in front of which few pages go. Without space it
    /// fails before it changes anything; behind that nothing fails, since all nodes are in memory
    /// and what cannot be taken was refused before (4).
    fn change_inodes(
        &self,
        lane: usize,
        beside: Option<&Mlog>,
        updates: &mut [InodeUpdate],
        guards: &mut [MutexGuard<'_, InodeEntry>],
        writes: &mut Vec<(BlockRef, PageImage)>,
    ) -> Result<()> {
        let plans: Vec<Plan> =
            updates.iter().zip(guards.iter()).map(|(u, g)| Plan::new(u, &g.state)).collect();
        debug_assert_eq!(updates.len(), guards.len(), "the caller has locked the inodes");
        debug_assert!(writes.is_empty(), "pages of another transaction");
        let mut wanted = ByLife::<u32>::default();
        updates.iter().zip(&plans).for_each(|(u, plan)| wanted[u.life as usize] += plan.blocks as u32);
        let blocks = wanted.iter().sum::<u32>() as usize;
        let mut runs = ByLife::<Runs>::default();
        let mlog = self.log.mlog_of_blocks(lane as u64);
        // Relaxed: the reader section orders it against the checkpoint that changes it.
        let checkpoint = self.log.checkpoint_number.load(Ordering::Relaxed);
        let (t, urgent) = (&self.log.segments, self.in_checkpoint());
        if !beside.is_some_and(|mlog| mlog.alloc_beside(t, wanted, checkpoint, &mut runs)) {
            mlog.alloc_data(t, wanted, checkpoint, urgent, &mut runs)?;
        }
        let mut addrs = runs.each_ref().map(addresses);
        let mut owners = Vec::with_capacity(blocks);
        let (mut freed, mut promised, mut own) = (0u64, 0u64, 0u64);
        let copies = self.log.metadata_copies();
        let mut each = |u: &mut InodeUpdate, plan: Plan, inner: &mut InodeEntry| -> Result<()> {
            promised += u64::from(std::mem::take(&mut u.reserved));
            let mut put = |inner: &mut InodeEntry, page: u64, block: PageImage| -> Result<()> {
                let addr = addrs[u.life as usize].next().ok_or(StoreError::NoSpace)?;
                let r = checksum::reference(addr, &block);
                let old = inner.state.set_page(page, r, &self.log.io)?;
                inner.add_block(&self.log.segments, addr);
                if let Some(old) = old {
                    inner.drop_block(&self.log.segments, old);
                    freed += 1;
                }
                owners.push((addr, DataOwner { ino: u.ino, page }));
                writes.push((r, block));
                Ok(())
            };
            let tail_was = inner.state.tail_extent();
            let mut tail = None;
            for (page, block) in u.pages.drain(..) {
                match plan.tail {
                    Some((p, n)) if p == page => tail = Some((page, block.0[..n].to_vec())),
                    _ => put(inner, page, block)?,
                }
            }
            debug_assert_eq!(
                tail.is_some(),
                plan.tail.is_some(),
                "the tail of inode {} is a page of it",
                u.ino
            );
            if let Some((page, bytes)) = tail {
                if plan.displaced
                    && let Some((p, b)) = inner.state.tail()
                {
                    // It ends being the tail when its block is mapped, not before: that may fail.
                    let b = padded(b);
                    put(inner, p, b.into())?;
                }
                let change = inner.state.set_tail(page, bytes, &self.log.io)?;
                if let Some(old) = change.freed {
                    inner.drop_block(&self.log.segments, old);
                    freed += 1;
                }
                inner.tail = Logged::No;
            }
            let version = inner.state.version() + 1;
            let attrs = if u.size_only { *inner.state.attrs() } else { u.attrs };
            inner.state.apply_attrs(&Attrs { size: plan.size, ..attrs }, version);
            if plan.tail.is_some() && inner.state.tail().is_some() {
                own += inner.charge_own(copies, self.inodes.packed);
            }
            if tail_was != inner.state.tail_extent() {
                inner.tail = Logged::No; // Also if it is only shorter: it may grow again, by zeros.
            }
            if let Some(x) = u.xattrs.take() {
                inner.state.set_xattrs(x)?;
                inner.xattrs = Logged::No;
            }
            Ok(())
        };
        let r = (updates.iter_mut().zip(plans).zip(&mut *guards))
            .try_for_each(|((u, plan), inner)| each(u, plan, inner));
        debug_assert_eq!(writes.len(), owners.len(), "an owner for each page");
        debug_assert!(r.is_err() || writes.len() == blocks, "{} of {blocks} blocks are used", writes.len());
        debug_assert!(r.is_err() || updates.iter().all(|u| u.pages.is_empty()), "a page was left behind");
        beside.unwrap_or(mlog).note_owners(owners);
        self.log.space.account_write(lane, promised, writes.len() as u64 + own, freed);
        guards.iter_mut().for_each(|g| g.charge_unwritten(&self.log.space, lane));
        // It cannot be, and pages would be missing that somebody may call durable.
        r.inspect_err(|e| self.log.io.fail(e))
    }

    /// Does part B for the batch: takes what it has to carry and gives it a place. If there is
    /// none, nothing was taken.
    fn place_fsync(
        &self,
        mlog: usize,
        groups: &[u8],
        guards: &mut [MutexGuard<'_, InodeEntry>],
    ) -> Result<Placed> {
        let mut bytes = Vec::with_capacity(groups.len() + 256 * guards.len() + 64);
        batch::put_message_head(&mut bytes, groups, guards.len());
        let mut deltas: Vec<(MapDelta, Logged, Logged)> = Vec::with_capacity(guards.len());
        let mut devices = 0;
        let mut failed = None;
        for g in guards.iter_mut() {
            match self.take_record(g) {
                Ok((record, undo)) => {
                    devices |= self.log.touch_record(&record);
                    batch::put_inode(&mut bytes, &record);
                    deltas.push(undo);
                }
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
        }
        debug_assert!(deltas.len() <= guards.len(), "records of inodes that are not locked");
        debug_assert_eq!(failed.is_none(), deltas.len() == guards.len(), "a record for each inode");
        let head = self.log.fsync_head();
        let result = match failed {
            Some(e) => Err(e),
            None => self.log.place(mlog, head, bytes, devices, self.in_checkpoint()),
        };
        if result.is_err() {
            for (g, (delta, tail, xattrs)) in guards.iter_mut().zip(deltas) {
                if !g.state.is_dir() {
                    g.state.restore_delta(delta);
                }
                (g.tail, g.xattrs) = (tail, xattrs);
            }
        }
        result
    }

    /// Returns an inode's record for the next durable batch, and how to take that back.
    fn take_record(&self, i: &mut InodeEntry) -> Result<(InodeRecord, (MapDelta, Logged, Logged))> {
        let xattrs = if i.xattrs == Logged::Yes { None } else { Some(i.state.xattr_bytes(&self.log.io)?) };
        // A directory's buckets are written by folds, and make sense only with the link counts of
        // the same checkpoint.
        let delta = if i.state.is_dir() { MapDelta::default() } else { i.state.take_delta() };
        let tail = i.tail != Logged::Yes && !i.state.is_dir();
        let record = record_of(&i.state, &delta, tail, xattrs);
        let undo = (delta, i.tail, i.xattrs);
        (i.tail, i.xattrs) = (Logged::Yes, Logged::Yes);
        debug_assert_eq!(
            record.pages().count(),
            undo.0.sets.len(),
            "pages of inode {} in its record",
            record.ino
        );
        Ok((record, undo))
    }
}

/// Returns the record of an inode that has the changes `delta`.
pub(crate) fn record_of(
    state: &InodeState,
    delta: &MapDelta,
    tail: bool,
    xattrs: Option<Vec<u8>>,
) -> InodeRecord {
    let mut r = InodeRecord {
        ino: state.ino(),
        version: state.version(),
        attrs: *state.attrs(),
        xattrs,
        tail: match state.tail() {
            _ if !tail => TailUpdate::Same,
            Some((page, bytes)) => TailUpdate::Set { page, bytes: bytes.to_vec() },
            None => TailUpdate::None,
        },
        unmaps: delta.unmaps.clone(),
        runs: Vec::new(),
        prealloc: state.prealloc_logged(),
    };
    delta.sets.iter().for_each(|(page, b)| r.push_page(*page, *b));
    r
}

/// Returns the size that an inode gets by an update: no larger than it grows with pages that are
/// there, until none is missing.
fn size_with(u: &InodeUpdate, state: &InodeState) -> u64 {
    if !u.more {
        return u.attrs.size;
    }
    let end = u.pages.last().map_or(0, |(page, _)| (page + 1) << BLOCK_SHIFT);
    let size = u.attrs.size.min(state.attrs().size.max(end));
    debug_assert!(
        u.pages.last().is_none_or(|(page, _)| page << BLOCK_SHIFT < size),
        "a page behind the size"
    );
    size
}

/// The needs of an update, decided before anything changes.
struct Plan {
    /// The size that the inode gets ([`size_with`]).
    size: u64,
    /// The page that goes into the inode block, and how many bytes of it.
    tail: Option<(u64, usize)>,
    /// The present tail becomes a block.
    displaced: bool,
    /// Data blocks to be given out.
    blocks: usize,
}

impl Plan {
    fn new(u: &InodeUpdate, state: &InodeState) -> Plan {
        let has = |page: u64| u.pages.iter().any(|(p, _)| *p == page);
        let size = size_with(u, state);
        let tail = if u.attrs.kind() == Some(FileKind::Dir) { None } else { tail_of(size) };
        let tail = tail.filter(|t| has(t.0));
        let displaced = match (tail, state.tail()) {
            (Some((new, _)), Some((old, _))) => new != old && !has(old) && size > old << BLOCK_SHIFT,
            _ => false,
        };
        let blocks = u.pages.len() - usize::from(tail.is_some()) + usize::from(displaced);
        debug_assert!(!displaced || tail.is_some(), "nothing displaces the tail of inode {}", u.ino);
        Plan { size, tail, displaced, blocks }
    }
}
