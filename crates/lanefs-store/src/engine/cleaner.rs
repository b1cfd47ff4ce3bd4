//! The cleaner: empties segments that hold little, so that the next checkpoint frees them.
//!
//! 1. A victim is full, and nothing was allocated in it or logged of it since before the last
//!    checkpoint: so all writes to it are answered, and the owners of its data are in its summary.
//!    Nor will anything be: a round lets go of the slack before it looks for one.
//! 2. A block is moved only if its owner, asked under its lock, still points at it: valid *and*
//!    newest. Data goes to the cold head; the copy is on the device before the map names it. Node
//!    blocks are not copied but marked dirty, so that the next checkpoint writes them anew; of a
//!    pack of inodes it copies what is still in use ([`Maintenance::moving`]).
//! 3. A block that cannot be read, or whose owner cannot, stays where it is, and its segment is
//!    left alone until the volume is opened again: a scrub reports it, and the cleaner goes on
//!    with the next victim. Only what keeps it from writing ends a round.
//! 4. The old place is not touched; it is free when a checkpoint that knows the new place is
//!    durable.
//! 5. So each round takes segments before any comes back. It ends while the checkpoint behind it
//!    still has space for the nodes that what was moved changes, beside all others that changed.
//! 6. A round empties as many segments at once as there are logs, with a thread and a cold head
//!    each: what lives in one is read by one submission, and moved while others are. What has to be
//!    noted for the checkpoint, nodes that are to be written anew, is noted by one thread, behind
//!    that. Where there is space for one victim only, or one is wanted, it is emptied alone. A
//!    block lies in one segment and is moved under its owner's lock, so nothing of this needs an
//!    order.

use crate::api::CleanReport;
use crate::engine::maintenance::Maintenance;
use crate::error::{FILE_DATA, Result, StoreError};
use crate::inodes::Inodes;
use crate::log::Log;
use crate::log::heat::{Heat, addresses};
use crate::log::io::Write;
use crate::log::segment::{SegId, SegInfo};
use crate::tree::block_io::{BlockSource, Owner};
use lanefs_format::checksum;
use lanefs_format::header::{self, BlockKind};
use lanefs_format::pack;
use lanefs_format::summary::DataOwner;
use lanefs_format::table_node::TableEntry;
use lanefs_format::{BLOCK_SIZE, Block, BlockAddr, BlockRef, INOS_PER_CHUNK, Ino};
use lanefs_sync::parallel;
use std::sync::atomic::Ordering;

/// A data block of the victim, still in use when it was looked at.
pub(crate) struct Move {
    owner: DataOwner,
    from: BlockRef,
    block: Box<Block>,
    bucket: bool,
}

/// What became of the data of a victim, and what else lives there.
struct Moved {
    moved: u64,
    /// Blocks that stay where they are.
    bad: u64,
    /// Other blocks, with the owner of data that the summary names, and their content if it is
    /// that of a node.
    others: Vec<(DataOwner, BlockAddr, Option<Box<Block>>)>,
}

/// A live block of the victim that is no data.
enum Live {
    Bucket(Move),
    /// A node that the next checkpoint writes anew.
    Marked,
    /// Nobody's any more (it died meanwhile), or nobody's we know.
    Nobodys,
}

/// Empties segments, and moves blocks.
#[derive(Clone, Copy)]
pub(crate) struct Cleaner<'a> {
    pub log: &'a Log,
    pub inodes: &'a Inodes,
}

impl Cleaner<'_> {
    /// Cleans until free segments and those the next checkpoint will free are `target`. In the
    /// foreground the emptiest segment is taken, in the background the one with the best cost and
    /// benefit.
    pub(crate) fn clean_until(
        &self,
        m: &mut Maintenance,
        target: u64,
        foreground: bool,
    ) -> Result<CleanReport> {
        let mut tried = Vec::new();
        let r = self.clean_some(m, target, foreground, &mut tried);
        self.log.segments.file_again(tried.into_iter().filter(|seg| !m.stuck.contains(seg)));
        r
    }

    /// Does it, and lists the victims.
    fn clean_some(
        &self,
        m: &mut Maintenance,
        target: u64,
        foreground: bool,
        tried: &mut Vec<SegId>,
    ) -> Result<CleanReport> {
        let mut report = CleanReport::default();
        self.inodes.cache.clear_live_marks(&self.log.segments);
        let size = self.log.segments.geometry.segment_blocks;
        let owed = u64::from(self.log.segments.summaries_owed());
        let space = self.log.free_segment_blocks().saturating_sub(owed);
        let ready = u64::from(self.log.segments.free_count()) + u64::from(self.log.segments.pending_free());
        // Blocks written by this round and, for node blocks, by the checkpoint after it.
        let mut spent = 0u64;
        loop {
            // Each victim will be free; what lived in it takes space elsewhere. Half of the space
            // there is stays for the checkpoint, beside the summaries that it owes.
            let gained = report.segments;
            if ready + gained >= target + spent.div_ceil(u64::from(size))
                || spent > 0 && (spent + u64::from(size) > space / 2 || self.cleaned_enough(m, &report))
            {
                return Ok(report);
            }
            if tried.is_empty() {
                self.log.let_go_of_slack(); // Else a victim might be written to meanwhile (1).
            }
            let wanted = target + spent.div_ceil(u64::from(size)) - (ready + gained);
            let victims = self.take_victims(m, wanted, foreground, &report, (space / 2, spent), tried);
            if victims.is_empty() {
                return Ok(report);
            }
            for (seg, emptied) in self.empty_segments(m, &victims) {
                let (moved, marked) = emptied?;
                spent += (moved + marked) * self.log.metadata_copies();
                let segments = u64::from(!m.stuck.contains(&seg));
                self.count(m, &mut report, CleanReport { moved, marked, segments });
            }
            debug_assert!(report.segments <= tried.len() as u64, "{} segments of {tried:?}", report.segments);
        }
    }

    /// Takes a victim, and others to be emptied at the same time: no more than are wanted, than
    /// there are threads, and than there is space for, whatever lives in them (5).
    fn take_victims(
        &self,
        m: &Maintenance,
        wanted: u64,
        foreground: bool,
        report: &CleanReport,
        (most, spent): (u64, u64),
        tried: &mut Vec<SegId>,
    ) -> Vec<SegId> {
        let at_once = wanted.min(self.log.threads() as u64) as usize;
        debug_assert!(wanted > 0, "there are enough");
        let size = u64::from(self.log.segments.geometry.segment_blocks);
        let (mut victims, mut lives) = (Vec::with_capacity(at_once), 0u64);
        while victims.len() < at_once.max(1) {
            let with_them = CleanReport { moved: report.moved + lives, ..*report };
            if !victims.is_empty()
                && (spent + lives * self.log.metadata_copies() + size > most
                    || self.cleaned_enough(m, &with_them))
            {
                break;
            }
            let fit = |seg, i: &SegInfo| {
                i.touched < m.durable
                    && !tried.contains(&seg)
                    && !m.stuck.contains(&seg)
                    && !self.log.segments.is_withdrawn(seg)
            };
            let Some(victim) = self.log.segments.take_victim(!foreground, fit) else { break };
            debug_assert!(!tried.contains(&victim), "segment {victim} was emptied in this round");
            lives += u64::from(self.log.segments.info(victim).live);
            tried.push(victim);
            victims.push(victim);
        }
        victims
    }

    /// Counts what was done.
    fn count(&self, m: &mut Maintenance, report: &mut CleanReport, more: CleanReport) {
        for r in [report, &mut m.cleaned] {
            r.moved += more.moved;
            r.marked += more.marked;
            r.segments += more.segments;
        }
        let done = &self.log.io.maintained;
        done.emptied.store(m.cleaned.segments, Ordering::Relaxed);
        done.data_moved.store(m.cleaned.moved, Ordering::Relaxed);
        done.nodes_marked.store(m.cleaned.marked, Ordering::Relaxed);
    }

    /// Empties full segments that are withdrawn, however much of them lives, as long as there is
    /// space for what is moved and for the next checkpoint. Slack was let go of before.
    pub(crate) fn empty_withdrawn(&self, m: &mut Maintenance) -> Result<CleanReport> {
        let mut report = CleanReport::default();
        self.inodes.cache.clear_live_marks(&self.log.segments);
        let size = u64::from(self.log.segments.geometry.segment_blocks);
        let owed = u64::from(self.log.segments.summaries_owed());
        let space = self.log.free_segment_blocks().saturating_sub(owed);
        let mut spent = 0;
        for seg in self.log.segments.withdrawn_full() {
            if self.log.segments.info(seg).touched >= m.durable {
                continue; // The next checkpoint makes it fit (1).
            }
            if spent > 0 && (spent + size > space / 2 || self.cleaned_enough(m, &report)) {
                break;
            }
            for (seg, emptied) in self.empty_segments(m, &[seg]) {
                let (moved, marked) = emptied?;
                spent += (moved + marked) * self.log.metadata_copies();
                let segments = u64::from(!m.stuck.contains(&seg));
                self.count(m, &mut report, CleanReport { moved, marked, segments });
            }
        }
        debug_assert!(spent == 0 || report.moved + report.marked > 0, "nothing was moved");
        Ok(report)
    }

    /// Returns whether the next checkpoint needs the segments that are free, about: for each inode
    /// that changed two blocks, for each block that was moved two nodes that lead to it, the
    /// summaries that it owes, and what it folds. What was cleaned is free only behind that
    /// checkpoint, and others write meanwhile. Inodes that wait for their NEW to be folded are in
    /// what it folds.
    fn cleaned_enough(&self, m: &Maintenance, report: &CleanReport) -> bool {
        let size = u64::from(self.log.segments.geometry.segment_blocks);
        let changed =
            self.inodes.cache.dirty().saturating_sub(m.waited) as u64 + report.moved + report.marked;
        let owed = u64::from(self.log.segments.summaries_owed());
        let folds = u64::from(self.log.segments.reserved_for_unfolded() + 2) * size;
        self.log.free_segment_blocks() < 2 * self.log.metadata_copies() * changed + owed + folds
    }

    /// Moves or marks every live block of some segments; returns how many of each, for each. Their
    /// data is moved by a thread each, to a log each (6); nodes are marked by this one.
    fn empty_segments(&self, m: &mut Maintenance, segments: &[SegId]) -> Vec<(SegId, Result<(u64, u64)>)> {
        let work: Vec<_> = segments
            .iter()
            .zip(u64::from(segments[0])..)
            .map(|(&seg, log)| (seg, m.usage.owners(&self.log.segments, seg, &self.log.io), log))
            .collect();
        let moved = parallel::map(work, |(seg, owners, log)| (seg, self.move_data_of(seg, owners, log)));
        debug_assert_eq!(moved.len(), segments.len(), "a result for each segment");
        let rest =
            |(seg, moved): (SegId, Result<Moved>)| (seg, moved.and_then(|d| self.mark_rest(m, seg, d)));
        moved.into_iter().map(rest).collect()
    }

    /// Moves the data of a segment to a log, and reads what else lives there.
    fn move_data_of(&self, seg: SegId, owners: Vec<DataOwner>, log: u64) -> Result<Moved> {
        let g = &self.log.segments.geometry;
        debug_assert_eq!(owners.len(), g.segment_blocks as usize, "an owner for each block");
        let is_paired = self.log.segments.is_paired(seg);
        // A copy goes with its block.
        let live = self.log.segments.live_blocks(seg).into_iter().filter(|i| !is_paired || *i < g.half());
        let live: Vec<u32> = live.collect();
        let addrs = live.iter().map(|i| g.addr(seg, *i));
        let mut blocks = vec![Block([0; BLOCK_SIZE]); live.len()];
        // All of them in one submission; what that cannot read is read one by one.
        let read = self.log.io.read_scattered(addrs, &mut blocks, "the cleaner's read");
        let block = |n: usize| read.is_ok().then(|| &blocks[n]);
        let (mut moves, mut others, mut bad) = (Vec::new(), Vec::new(), 0);
        for (n, &i) in live.iter().enumerate() {
            let (addr, owner) = (g.addr(seg, i), owners[i as usize]);
            let at = if owner.ino.is_none() { Ok(None) } else { self.mapped_at(owner, addr) };
            let data = at.and_then(|at| at.map(|from| Ok((from, self.data_at(from, block(n))?))).transpose());
            match data {
                Ok(Some((from, block))) => moves.push(Move { owner, from, block, bucket: false }),
                Ok(None) => {
                    let sound = block(n).filter(|b| header::verify_sealed(b, addr).is_some());
                    others.push((owner, addr, sound.map(|b| Box::new(b.clone()))));
                }
                Err(e) => {
                    self.keep_in_place(seg, addr, e)?;
                    bad += 1;
                }
            }
        }
        drop(blocks);
        let (moved, left) = self.move_data(seg, moves, Heat::Cold, log)?;
        Ok(Moved { moved, bad: bad + left, others })
    }

    /// Returns the block of a reference: `block` if it is that, or read by itself.
    fn data_at(&self, from: BlockRef, block: Option<&Block>) -> Result<Box<Block>> {
        match block.filter(|b| checksum::matches(from, &b.0)) {
            Some(b) => Ok(Box::new(b.clone())),
            None => self.log.io.read_once(from, FILE_DATA),
        }
    }

    /// Does the rest of a segment whose data was moved: marks nodes, moves buckets. Returns how
    /// many blocks were moved in all, and how many marked.
    fn mark_rest(&self, m: &mut Maintenance, seg: SegId, data: Moved) -> Result<(u64, u64)> {
        let Moved { moved, mut bad, others } = data;
        let (mut marked, mut lost, mut buckets) = (0, 0, Vec::new());
        for (owner, addr, block) in others {
            match self.look_at(m, owner, addr, block) {
                Ok(Live::Bucket(mv)) => buckets.push(mv),
                Ok(Live::Marked) => marked += 1,
                Ok(Live::Nobodys) => lost += u64::from(self.log.segments.is_live(addr)),
                Err(e) => {
                    self.keep_in_place(seg, addr, e)?;
                    bad += 1;
                }
            }
        }
        // Those that need a copy lie apart from data.
        let copies = self.log.segments.geometry.copies;
        let head = if copies == 2 { Heat::Bucket } else { Heat::Cold };
        let (more, left) = self.move_data(seg, buckets, head, seg.into())?;
        bad += left;
        if lost > 0 {
            tracing::warn!("segment {seg}: {lost} blocks in use by an owner that cannot be found");
        }
        if lost + bad > 0 {
            m.stuck.insert(seg);
        }
        Ok((moved + more, marked))
    }

    /// Returns what a live block of the victim is that was no data of `owner`. `block`: its
    /// content, if that is sound.
    fn look_at(
        &self,
        m: &mut Maintenance,
        owner: DataOwner,
        addr: BlockAddr,
        block: Option<Box<Block>>,
    ) -> Result<Live> {
        let block = block.map_or_else(|| self.node_at(addr), Ok)?;
        Ok(match self.mark_node(m, addr, block)? {
            Some(None) => Live::Marked,
            Some(Some(bucket)) => Live::Bucket(bucket),
            None => {
                if !owner.ino.is_none()
                    && let Some(inode) = self.inodes.get(owner.ino, &self.log.io)?
                {
                    inode.lock().clear_live_marks(&self.log.segments);
                }
                Live::Nobodys
            }
        })
    }

    /// Returns a live block whose header names its owner, from its copy where that is damaged.
    fn node_at(&self, addr: BlockAddr) -> Result<Box<Block>> {
        let what = "the cleaner's read";
        let mut block = Block::zeroed();
        let read = self.log.io.read_raw(addr, &mut block.0, what);
        if read.is_ok() && header::verify_sealed(&block, addr).is_some() {
            return Ok(block);
        }
        if let Some(copy) = self.log.io.copy_of(addr) {
            let mut other = Block::zeroed();
            if self.log.io.read_raw(copy, &mut other.0, what).is_ok()
                && header::verify_sealed(&other, addr).is_some()
            {
                self.log.io.excuse(addr);
                return Ok(other);
            }
        }
        read.map(|()| block)
    }

    /// Leaves a block that cannot be read where it is. Any other error is returned.
    fn keep_in_place(&self, seg: SegId, addr: BlockAddr, e: StoreError) -> Result<()> {
        self.log.io.check()?;
        match e {
            StoreError::Io { .. } | StoreError::Corrupt { .. } | StoreError::BadInode { .. } => {
                tracing::warn!("segment {seg}: block {addr} stays where it is: {e}");
                Ok(())
            }
            e => Err(e),
        }
    }

    /// Returns the reference of a data block, if its owner still points at `addr`.
    fn mapped_at(&self, owner: DataOwner, addr: BlockAddr) -> Result<Option<BlockRef>> {
        let Some(inode) = self.inodes.get(owner.ino, &self.log.io)? else { return Ok(None) };
        let mut i = inode.lock();
        let r =
            i.state.resolve(&self.log.io, |s| s.current(Owner::Data { ino: owner.ino, page: owner.page }))?;
        Ok((r.addr == addr).then_some(r))
    }

    /// Marks a node block, whose header names its owner, for rewriting; a directory's bucket is to
    /// be moved instead. `None` if its owner does not point here.
    pub(crate) fn mark_node(
        &self,
        m: &mut Maintenance,
        addr: BlockAddr,
        block: Box<Block>,
    ) -> Result<Option<Option<Move>>> {
        let Some((kind, h)) = header::verify_sealed(&block, addr) else { return Ok(None) };
        let (ino, level, index) = (Ino(h.ino.get()), h.level, h.index.get());
        let done = |yes: bool| Ok(yes.then_some(None));
        let owner = match kind {
            BlockKind::Inode => Owner::Inode { ino },
            BlockKind::Map => Owner::Map { ino, level, index },
            BlockKind::Xattr => Owner::Xattr { ino, index },
            BlockKind::Bucket => Owner::Bucket { ino, page: index },
            BlockKind::Pack => return done(self.mark_pack(m, index, addr, block)?),
            BlockKind::Table => {
                let here = self.inodes.table.node_ref(level, index, &self.log.io)?.addr == addr;
                return done(here && self.inodes.table.rewrite_node(level, index, &self.log.io)?);
            }
            BlockKind::Usage => return done(m.usage.rewrite(level, index, addr, &self.log.io)?),
            BlockKind::Orphans => {
                let here = m.orphan_blocks.iter().any(|r| r.addr == addr);
                m.orphans_changed |= here;
                return done(here);
            }
            BlockKind::Summary => return done(m.usage.rewrite_summary(index, level, addr)),
            BlockKind::Batch | BlockKind::Chain => return Ok(None),
        };
        let Some(inode) = self.inodes.get(ino, &self.log.io)? else { return Ok(None) };
        let mut guard = inode.lock();
        let i = &mut *guard;
        let r = i.state.resolve(&self.log.io, |s| s.current(owner))?;
        if r.addr != addr || i.gone {
            return Ok(None);
        }
        if let Owner::Bucket { ino, page } = owner {
            return Ok(Some(Some(Move { owner: DataOwner { ino, page }, from: r, block, bucket: true })));
        }
        let found = i.state.rewrite(owner, &self.log.io)?;
        self.inodes.cache.list_dirty(&inode, i);
        done(found)
    }

    /// Puts a pack on the list of what the next checkpoint moves, if an inode of the chunk is in
    /// it.
    fn mark_pack(&self, m: &mut Maintenance, chunk: u64, addr: BlockAddr, block: Box<Block>) -> Result<bool> {
        let entries = self.inodes.table.chunk_entries(chunk, &self.log.io)?;
        let first = chunk.saturating_mul(INOS_PER_CHUNK);
        let inos = (first..).map(Ino).zip(&entries);
        let here: Vec<_> = inos.filter(|(_, e)| e.slot != 0 && e.block.addr == addr).collect();
        let Some((_, TableEntry { block: r, .. })) = here.first().copied() else { return Ok(false) };
        // What cannot be copied stays, with all that is beside it.
        let slots = pack::decode(&block, addr, chunk)?;
        here.iter().try_for_each(|(ino, e)| slots.bytes(*ino, e.slot).map(|_| ()))?;
        if !checksum::matches(*r, &block.0) {
            let why = "it is not the one that the inode table names".into();
            return Err(StoreError::Corrupt { addr, what: BlockKind::Pack.name(), why });
        }
        let list = m.moving.entry(chunk).or_default();
        if !list.iter().any(|l| l.0 == *r) {
            list.push((*r, block));
        }
        Ok(true)
    }

    /// Copies data to a head of the log for `n`, the cold one but for buckets that have copies,
    /// then points the maps there. Returns how many moved, and how many had to stay.
    pub(crate) fn move_data(
        &self,
        seg: SegId,
        mut moves: Vec<Move>,
        head: Heat,
        n: u64,
    ) -> Result<(u64, u64)> {
        if moves.is_empty() {
            return Ok((0, 0));
        }
        debug_assert!(
            head == Heat::Cold || moves.iter().all(|mv| mv.bucket),
            "file data would go where blocks of the tree lie"
        );
        let all = moves.len();
        // Relaxed: only the holder of the maintenance lock changes it.
        let checkpoint = self.log.checkpoint_number.load(Ordering::Relaxed);
        let mut runs = Vec::new();
        let mlog = self.log.mlog_of_blocks(n);
        mlog.alloc(&self.log.segments, head, moves.len() as u32, checkpoint, true, &mut runs)?;
        let to: Vec<BlockRef> = addresses(&runs)
            .zip(&mut moves)
            .map(|(addr, mv)| {
                if mv.bucket {
                    header::seal(&mut mv.block, addr, self.log.stamp(checkpoint << 32));
                }
                checksum::reference(addr, &mv.block)
            })
            .collect();
        assert_eq!(to.len(), all, "a block that is moved has no place");
        let mut writes: Vec<Write<'_>> =
            to.iter().zip(&moves).map(|(r, mv)| Write { addr: r.addr, data: &mv.block.0 }).collect();
        if head == Heat::Bucket {
            let copies = to.iter().zip(&moves).filter_map(|(r, mv)| Some((self.log.io.copy_of(r.addr)?, mv)));
            writes.extend(copies.map(|(addr, mv)| Write { addr, data: &mv.block.0 }));
        }
        self.log.io.write(&writes)?;
        self.log.io.maintained.moved.fetch_add(writes.len() as u64, Ordering::Relaxed);
        let (mut moved, mut left) = (0, 0);
        for (r, mv) in to.iter().zip(&moves) {
            match self.point_at(*r, mv) {
                Ok(yes) => moved += u64::from(yes),
                Err(e) => {
                    self.keep_in_place(seg, mv.from.addr, e)?;
                    left += 1;
                }
            }
        }
        debug_assert!(moved + left <= all as u64, "{moved} blocks moved and {left} stayed, of {all}");
        mlog.note_older(to.iter().zip(&moves).filter(|(_, mv)| !mv.bucket).map(|(r, mv)| (r.addr, mv.owner)));
        Ok((moved, left))
    }

    /// Points a block's owner at its copy, unless it was overwritten meanwhile: then the copy is
    /// nobody's.
    fn point_at(&self, r: BlockRef, mv: &Move) -> Result<bool> {
        let Some(inode) = self.inodes.get(mv.owner.ino, &self.log.io)? else { return Ok(false) };
        let mut guard = inode.lock();
        let i = &mut *guard;
        let page = mv.owner.page;
        let now = i.state.resolve(&self.log.io, |s| s.current(Owner::Data { ino: mv.owner.ino, page }))?;
        if i.gone || now != mv.from {
            return Ok(false);
        }
        if mv.bucket {
            i.state.set_bucket(page, r, &self.log.io)?;
        } else {
            i.state.set_page(page, r, &self.log.io)?;
        }
        i.add_block(&self.log.segments, r.addr);
        i.drop_block_now(&self.log.segments, mv.from.addr);
        debug_assert!(self.log.segments.is_live(r.addr), "the copy in block {} is not in use", r.addr);
        self.inodes.cache.list_dirty(&inode, i);
        Ok(true)
    }
}
