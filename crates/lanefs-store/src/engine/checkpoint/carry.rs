//! A checkpoint without a fold carries over: it moves the log's start to P, so what is durable only
//! in batches before P and not folded it writes again behind P, before the slot: groups of fsyncs,
//! committed epochs, updates of inodes whose NEW is not folded.
//!
//! 1. A crash may leave what was carried without the slot, and any part of it. So everything before
//!    P is durable before anything of it is written: names are not found without the content that
//!    their fsync wrote with them.
//! 2. What is carried of an inode is a version of its own. So no two records of an inode behind a
//!    position have the same one, and recovery knows which is later: what is carried has all that
//!    versions before it had, and an fsync beside it is before or behind it.
//! 3. Small epochs are written again as one (`Commits::ranges`): with an epoch for each fsync there
//!    would be as many blocks again as the log gives back.
//! 4. What is carried names data whose writes may be under way. It counts as durable only when
//!    these were answered, and then flushed.
//! 5. More than half of what is always kept back is carried only where that half stays free: else
//!    nothing is written, and a fold still finds space. What inodes that wait for their fold need,
//!    to be folded or to be carried, is kept back beside that ([`Waiting`]), so whoever writes data
//!    finds no space in time, and has them folded. Small volumes carry whatever there is, and keep
//!    nothing back for it.

use crate::engine::checkpoint::Checkpoints;
use crate::engine::checkpoint::needs::chunks;
use crate::engine::maintenance::Maintenance;
use crate::error::{Result, StoreError};
use crate::inodes::cache::CachedInode;
use crate::log::message::Placed;
use crate::log::mlog::Mlog;
use crate::log::section::Flight;
use crate::log::space::{PARTS_OF_BLOCK, parts_of_inode};
use lanefs_format::BLOCK_SIZE;
use lanefs_format::batch::{self, InodeRecord, TailUpdate};
use lanefs_format::record::groups_above;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Carried inode records are packed into messages of about this many bytes.
const CARRY_MESSAGE: usize = 64 << 10;
/// Bytes of a record beside its tail, and for each run of pages.
const RECORD: u64 = 128;
const RUN: u64 = 24;

/// Blocks that inodes may need whose NEW is not folded. Estimates.
#[derive(Default)]
pub(super) struct Waiting {
    /// To be written with their fold.
    pub folded: u64,
    /// To be carried over.
    pub carried: u64,
}

impl Waiting {
    /// `packed`: small inodes share blocks, those of a chunk of the inode table.
    pub fn of(inodes: &[Arc<CachedInode>], packed: bool) -> Waiting {
        let (mut parts, mut bytes, mut inos) = (0, 0, Vec::with_capacity(inodes.len()));
        for inode in inodes {
            let i = inode.lock();
            if i.gone || i.folded {
                continue;
            }
            parts += match i.state.inline_bytes() {
                Some(bytes) => parts_of_inode(packed, false, bytes),
                None => (1 + i.state.pending_nodes()) * PARTS_OF_BLOCK,
            };
            bytes += RECORD + i.state.tail_extent().map_or(0, |t| t.1 as u64) + RUN * i.state.mapped_pages();
            inos.push(inode.ino);
        }
        debug_assert!(parts >= inos.len() as u64, "{parts} parts of {} inodes", inos.len());
        inos.sort_unstable();
        // Of each chunk the last pack may have one inode.
        let folded = parts.div_ceil(PARTS_OF_BLOCK) + chunks(inos.into_iter());
        Waiting { folded, carried: bytes.div_ceil(BLOCK_SIZE as u64) }
    }
}

impl Checkpoints<'_> {
    /// Counts what was carried as durable: all devices were flushed since the last
    /// [`Checkpoints::carry`].
    pub(crate) fn carried_is_durable(&self, m: &mut Maintenance) {
        debug_assert!(m.carried.iter().all(|c| c.1 > 0), "a message without a place was carried over");
        m.carried.drain(..).for_each(|(mlog, place)| self.log.mlogs[mlog].made_durable(place));
    }

    /// Writes again, behind P, what is durable and not folded; returns whether there was anything.
    /// What was written is in `carried`, also after an error.
    pub(crate) fn carry(
        &self,
        carried: &mut Vec<(usize, u64)>,
        folded: u64,
        waiting: &[Arc<CachedInode>],
    ) -> Result<bool> {
        // Relaxed: only the holder of the maintenance lock changes it.
        let number = self.log.checkpoint_number.load(Ordering::Relaxed);
        let kept = |m: &Mlog| groups_above(&m.groups_before(number), folded);
        let groups = || self.log.mlogs.iter().map(|m| (m, kept(m))).filter(|(_, groups)| !groups.is_empty());
        let committed = self.unfolded.commits.lock().pending.iter().any(|p| p.epoch > folded);
        if waiting.is_empty() && !committed && groups().next().is_none() {
            return Ok(false);
        }
        self.leave_space_for_a_fold(waiting)?;
        self.log.sections.drain(|| ());
        self.log.io.flush(self.log.io.all())?;
        let mut placed: Vec<Placed> = Vec::new();
        let mut flights: Vec<Flight<'_>> = Vec::new();
        let run = (|| -> Result<()> {
            for (m, groups) in groups() {
                let mut bytes = Vec::with_capacity(groups.len() + 8);
                batch::put_message_head(&mut bytes, &groups, 0);
                let section = self.log.sections.enter(0);
                let p = self.log.place(m.id, self.log.fsync_head(), bytes, 0, true)?;
                placed.push(p);
                flights.push(section.leave());
            }
            {
                let section = self.log.sections.enter(0);
                let c = self.unfolded.commits.lock();
                for p in c.ranges(folded) {
                    placed.append(&mut self.log.place_shares(&p, 0)?);
                }
                drop(c);
                flights.push(section.leave());
            }
            self.carry_inodes(waiting, &mut placed, &mut flights)
        })();
        debug_assert_eq!(
            self.log.checkpoint_number.load(Ordering::Relaxed),
            number,
            "a position was recorded meanwhile"
        );
        debug_assert!(placed.iter().all(|p| p.last_place() > 0), "a message lies nowhere");
        debug_assert!(
            flights.len() <= placed.len() + 1,
            "{} flights for {} messages",
            flights.len(),
            placed.len()
        );
        // What has a place is written in any case: its links may be part of a chain that others
        // rely on.
        let written = self.log.write_placed(placed.iter());
        self.log.links_answered(&placed);
        written?;
        drop(flights);
        placed.iter().for_each(|p| self.log.mlogs[p.mlog].wait_links(p.last_seq()));
        carried.extend(placed.iter().map(|p| (p.mlog, p.last_place())));
        run.map(|()| !placed.is_empty())
    }

    /// Fails if what is carried of these inodes is more than half of what is always kept back, and
    /// would leave less than that (5).
    fn leave_space_for_a_fold(&self, waiting: &[Arc<CachedInode>]) -> Result<()> {
        let t = &self.log.segments;
        if t.is_small() {
            return Ok(());
        }
        let blocks = Waiting::of(waiting, self.inodes.packed).carried;
        let segments = blocks / u64::from(t.geometry.segment_blocks);
        let half = u64::from(t.always_kept() / 2);
        if segments > half && u64::from(t.free_count()) < segments + half {
            return Err(StoreError::NoSpace);
        }
        Ok(())
    }

    /// Gives the updates of inodes whose NEW is not folded their places behind P. Records are
    /// packed; that an inode may change between its record and the message does not matter:
    /// recovery sorts by version, and what a record refers to was touched behind P.
    fn carry_inodes<'s>(
        &'s self,
        waiting: &[Arc<CachedInode>],
        placed: &mut Vec<Placed>,
        flights: &mut Vec<Flight<'s>>,
    ) -> Result<()> {
        let (mut records, mut count, mut devices) = (Vec::new(), 0, 0);
        for (n, inode) in waiting.iter().enumerate() {
            if let Some(r) = self.whole_record(inode)? {
                devices |= self.log.touch_record(&r);
                batch::put_inode(&mut records, &r);
                count += 1;
            }
            if count > 0 && (records.len() > CARRY_MESSAGE || n + 1 == waiting.len()) {
                let mut bytes = Vec::with_capacity(records.len() + 8);
                batch::put_message_head(&mut bytes, &[], count);
                bytes.append(&mut records);
                let section = self.log.sections.enter(0);
                let mlog = n % self.log.mlogs.len();
                let p = self.log.place(mlog, self.log.fsync_head(), bytes, devices, true)?;
                placed.push(p);
                flights.push(section.leave());
                (count, devices) = (0, 0);
            }
            debug_assert_eq!(count == 0, records.is_empty(), "{count} records are counted");
        }
        debug_assert!(count == 0, "{count} records are in no message");
        Ok(())
    }

    /// Returns all that is known of an inode whose NEW is not folded, as a version of its own (2).
    fn whole_record(&self, inode: &CachedInode) -> Result<Option<InodeRecord>> {
        let mut i = inode.lock();
        if i.gone || i.folded {
            return Ok(None);
        }
        let mut r = InodeRecord {
            ino: inode.ino,
            version: i.state.next_version(),
            attrs: *i.state.attrs(),
            // Otherwise NEW says what they are.
            xattrs: if i.state.has_new_xattrs() { Some(i.state.xattr_bytes(&self.log.io)?) } else { None },
            tail: match i.state.tail() {
                _ if i.state.is_dir() => TailUpdate::Same,
                Some((page, b)) => TailUpdate::Set { page, bytes: b.to_vec() },
                None => TailUpdate::None,
            },
            unmaps: std::iter::once(0..u64::MAX).collect(),
            runs: Vec::new(),
            prealloc: i.state.prealloc_logged(),
        };
        if !i.state.is_dir() {
            i.state.for_each_page(&self.log.io, &mut |page, b| {
                r.push_page(page, b);
                Ok(())
            })?;
        }
        Ok(Some(r))
    }
}
