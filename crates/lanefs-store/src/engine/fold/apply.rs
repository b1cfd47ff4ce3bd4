//! Applying a fold's plan ([`crate::engine::fold`]): record groups become inodes, directory
//! entries and link counts. Only checkpoints do it, on the in-memory state that they write out
//! next.
//!
//! 1. A change replaces what the folded directory has, not what the record remembers. So
//!    the link deltas are names after minus names before (O8), and folding the same groups again
//!    changes nothing (O11).
//! 2. Order: NEW, then RIGHTS, then entries, then link counts, PARENT, DEAD; so a NEW that comes
//!    with its first name is found, and a removed directory's entries still take their links along.
//!    DEAD of an inode that loses its last name in the same fold follows that directly, so that its
//!    memory is given back before the next one's is taken: a fold may remove a hundred thousand.
//!    Most of them are not even brought into memory (`dying`).
//! 3. DEAD of an inode that still has names is refused: it would leave a name without an inode.
//! 4. An inode without names that is not dead is on the orphan list. Being there is all that the
//!    checkpoint records of its last name: the block is not written for it, or the removal of all
//!    files of a full volume would need as much space again (see `Capture::capture`). The count in
//!    the block of an inode on the list is therefore not asked.
//! 5. What a fold changes goes on the checkpoint's own list, not on the lists of what calls dirty.

use crate::engine::maintenance::{DeferredInode, Maintenance};
use crate::engine::ordered::Run;
use crate::engine::plan::{KeyChange, NewInode, Plan, RightsChange};
use crate::engine::sink::Sink;
use crate::engine::sorted;
use crate::engine::totals::Totals;
use crate::error::{Result, StoreError};
use crate::inodes::Inodes;
use crate::inodes::block_set::BlockSet;
use crate::inodes::cache::{CachedInode, InodeEntry, Logged};
use crate::log::Log;
use crate::tree::block_io::{BlockSink, Owner};
use crate::tree::directory::{self, Change};
use crate::tree::inode_state::padded;
use lanefs_format::dir_bucket::BucketId;
use lanefs_format::xattrs;
use lanefs_format::{Attrs, INLINE_MAX, INOS_PER_CHUNK, Ino, ROOT_INO, XATTR_BLOB_MAX};
use lanefs_sync::lock::Mutex;
use lanefs_sync::parallel;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Inodes whose blocks a fold reads together: one after the other they are a trip to the device
/// each.
pub(super) const TOGETHER: usize = 256;
/// Returns how many inodes, or changes of names or of link counts, are worth several threads.
pub(crate) fn shared_from() -> usize {
    if cfg!(test) { 2 } else { parallel::share_from(1 << 15, 2) }
}

/// Returns how many changes of a directory are worth a thread.
pub(crate) fn part() -> usize {
    if cfg!(test) { 64 } else { parallel::share_from(1 << 13, 4) }
}
/// Pieces of work for each of several threads: one that gets less of a processor does fewer.
pub(crate) const PIECES: usize = 4;

/// Applies folds to the inodes in memory.
#[derive(Clone, Copy)]
pub(crate) struct Fold<'a> {
    pub log: &'a Log,
    pub inodes: &'a Inodes,
    pub totals: &'a Totals,
}

impl Fold<'_> {
    /// Folds what is planned. An error may leave the fold half done in memory, with links not
    /// counted: it is sticky, and the volume is that of the last slot and the log.
    pub(crate) fn fold(&self, m: &mut Maintenance, plan: Plan<'_>, sink: &mut Sink<'_>) -> Result<()> {
        self.fold_deferred(m, sink)?;
        debug_assert!(
            m.deferred.next().is_none(),
            "an earlier fold's files are not made, and may be changed now"
        );
        self.apply_plan(m, plan, sink).inspect_err(|e| self.log.io.fail(e))
    }

    fn apply_plan(&self, m: &mut Maintenance, mut plan: Plan<'_>, sink: &mut Sink<'_>) -> Result<()> {
        // Relaxed: a floor for the next mount.
        self.totals.last_ts.fetch_max(plan.last_ts, Ordering::Relaxed);
        let others = self.fold_news(m, &plan, sink)?;
        for (n, r) in plan.rights.iter().enumerate() {
            if n % TOGETHER == 0 {
                self.inodes.expect(plan.rights[n..].iter().take(TOGETHER).map(|r| r.ino), &self.log.io)?;
            }
            self.fold_rights(m, r)?;
            self.inodes.evict_or_flush(n, sink)?;
        }
        let links = self.fold_names(m, &plan, sink)?;
        self.log.space.note_taken_out(plan.taken_out);
        // What is done with goes before more comes.
        drop(std::mem::take(&mut plan.changes));
        let (made, links) = self.put_off(m, &plan, &others, &links);
        for &at in &made {
            if let Some(b) = plan.news.get(at) {
                m.changed.extend(self.fold_new(b, sink)?);
            }
        }
        let ended = self.fold_all_links(m, &plan, links, sink)?;
        for b in others.iter().chain(&made).filter_map(|at| plan.news.get(*at)) {
            if let Some(inode) = self.folded_inode(b.ino)?
                && inode.lock().state.names() == 0
            {
                m.orphans_changed |= m.orphans.insert(b.ino);
            }
        }
        for &(ino, parent) in &plan.parents {
            if let Some(inode) = self.folded_inode(ino)? {
                inode.lock().state.set_parent(parent);
                m.changed.push(inode);
            }
        }
        if let Some((ino, _)) = plan.dead.last() {
            // Relaxed: a floor for the next mount.
            self.totals.next_chunk.fetch_max(ino.chunk() + 1, Ordering::Relaxed);
        }
        let mut left = plan.dead.iter().zip(&ended).filter(|d| !d.1).map(|d| *d.0).peekable();
        while left.peek().is_some() {
            let together: SmallVec<[(Ino, u32); TOGETHER]> = left.by_ref().take(TOGETHER).collect();
            self.inodes.expect(together.iter().map(|d| d.0), &self.log.io)?;
            for (n, (ino, generation)) in together.into_iter().enumerate() {
                self.fold_death(m, ino, generation, sink)?;
                self.inodes.evict_or_flush(n, sink)?;
            }
        }
        Ok(())
    }

    /// Makes the new inodes of which more is known than that they were made; returns which they
    /// are. The rest is left for [`Fold::put_off`].
    fn fold_news(&self, m: &mut Maintenance, plan: &Plan<'_>, sink: &mut Sink<'_>) -> Result<Vec<usize>> {
        let number = plan.news.len();
        if let Some(last) = plan.news.get(number.saturating_sub(1)) {
            // Relaxed: a floor for the next mount.
            self.totals.next_chunk.fetch_max(last.ino.chunk() + 1, Ordering::Relaxed);
        }
        let threads = self.threads_for(number);
        let each = number.div_ceil(threads).max(1);
        let shares: Vec<_> = (0..number).step_by(each).map(|from| from..number.min(from + each)).collect();
        let parts = parallel::map(shares, |share| {
            let news = share.clone().zip(plan.news.all().range(share).iter());
            news.filter(|b| !self.is_bare(plan, b.1)).map(|b| b.0).collect::<Vec<_>>()
        });
        let others = parts.concat();
        debug_assert!(others.is_sorted_by(|a, b| a < b), "an inode is looked at twice");
        let threads = self.threads_for(others.len());
        let pieces = if threads > 1 { PIECES * threads } else { 1 };
        let shares = others.chunks(others.len().div_ceil(pieces).max(1)).collect();
        let beside = &*sink;
        let parts = parallel::map_with(threads, shares, |share: &[usize]| {
            let (mut made, mut dirty) = (Vec::with_capacity(share.len()), BTreeSet::new());
            let mut sink = beside.beside(&mut dirty);
            let r = share.iter().filter_map(|at| plan.news.get(*at)).try_for_each(|b| {
                made.extend(self.fold_new(b, &mut sink)?);
                sink.flush_if_full()
            });
            (r, made, dirty)
        });
        let mut result = Ok(());
        for (r, mut made, dirty) in parts {
            m.changed.append(&mut made);
            sink.take_leaves(dirty);
            result = result.and(r);
        }
        result.map(|()| others)
    }

    /// Returns how many threads so many changes are worth.
    fn threads_for(&self, changes: usize) -> usize {
        if changes < shared_from() { 1 } else { self.log.threads() }
    }

    /// Puts off those of the files of which nothing else is known (all but `others`) that have
    /// names, with these. Returns which are to be made now, since they have none, and the sums of
    /// the names that the other inodes have gained or lost: none is 0. `links`: sorted lists of
    /// these.
    fn put_off(
        &self,
        m: &mut Maintenance,
        plan: &Plan<'_>,
        others: &[usize],
        links: &[Vec<(Ino, i64)>],
    ) -> (Vec<usize>, Vec<(Ino, i64)>) {
        let lens: Vec<usize> = links.iter().map(Vec::len).collect();
        let threads = self.threads_for(lens.iter().sum::<usize>() + plan.news.len());
        // Who writes them has whole chunks.
        let first_of_chunk = |list: usize, at: usize| Ino(links[list][at].0.chunk() * INOS_PER_CHUNK);
        let pieces = if threads > 1 { PIECES * threads } else { 1 };
        let cuts = sorted::cuts(&lens, first_of_chunk, pieces);
        let is_before = |at: usize, cut: &Ino| plan.news.get(at).is_some_and(|b| b.ino < *cut);
        let news = sorted::ranges(plan.news.len(), &cuts, is_before);
        let shares: Vec<_> = sorted::pieces(links, &cuts, |l| l.0).into_iter().zip(news).collect();
        let mut parts = parallel::map_with(threads, shares, |(links, news)| {
            PutOff::of(plan, others, news, sums(&sorted::merged(&links, |l| l.0)))
        });
        let (mut made, mut left) = (Vec::new(), Vec::new());
        let before = m.deferred.len();
        debug_assert_eq!(before, 0, "files that an earlier fold put off come first");
        m.deferred.push(parts.iter_mut().rev().map(|p| std::mem::take(&mut p.deferred)));
        for mut part in parts {
            made.append(&mut part.made);
            left.append(&mut part.links);
        }
        debug_assert_eq!(
            m.deferred.len() + made.len() + others.len(),
            plan.news.len(),
            "each is one of these"
        );
        debug_assert!(left.is_sorted_by(|a, b| a.0 < b.0), "links of one inode are counted twice");
        (made, left)
    }

    fn folded_inode(&self, ino: Ino) -> Result<Option<Arc<CachedInode>>> {
        Ok(self.inodes.get(ino, &self.log.io)?.filter(|c| {
            let i = c.lock();
            i.folded && !i.gone
        }))
    }

    /// Makes an inode; `None` if that was folded before.
    pub(crate) fn fold_new(&self, b: &NewInode<'_>, sink: &mut Sink<'_>) -> Result<Option<Arc<CachedInode>>> {
        let ino = b.ino;
        let e = self.inodes.table.lookup(ino, &self.log.io)?;
        if !e.block.is_none() || e.generation > b.generation {
            return Ok(None); // Or even dead since.
        }
        let inode = self.inodes.get_or_new(ino, &b.attrs(), &self.log.io)?;
        let mut guard = inode.lock();
        let i = &mut *guard;
        if !make(i, b) {
            return Ok(None);
        }
        // Those of an update are newer than the inode itself.
        if !b.xattrs.is_empty() && !i.state.has_new_xattrs() {
            i.state.set_xattrs(b.xattrs.to_vec())?;
            i.xattrs = Logged::No;
        }
        let empty = i.state.tail().is_none() && i.state.mapped_pages() == 0;
        if !b.target.is_empty() && empty {
            if b.target.len() <= INLINE_MAX {
                let _ = i.state.set_tail(0, b.target.to_vec(), &self.log.io)?;
                i.tail = Logged::No;
            } else {
                let r = sink.write(Owner::Data { ino, page: 0 }, padded(b.target))?;
                i.state.set_page(0, r, &self.log.io)?;
            }
        }
        debug_assert!(i.state.block().is_none(), "inode {ino} is on disk, and the table does not have it");
        let is_bare = b.target.is_empty() && b.xattrs.is_empty();
        if empty && is_bare && b.mode & libc::S_IFMT == libc::S_IFREG {
            self.inodes.cache.note_made(ino);
        }
        drop(guard);
        self.totals.inodes.fetch_add(1, Ordering::Relaxed);
        Ok(Some(inode))
    }

    /// Sets mode, owner and ACLs, in the order of names: whatever a record of the inode had of
    /// them, which may be of a later epoch (that is folded after this one) but of none that a crash
    /// may take.
    fn fold_rights(&self, m: &mut Maintenance, r: &RightsChange<'_>) -> Result<()> {
        let Some(inode) = self.folded_inode(r.ino)? else { return Ok(()) };
        let mut i = inode.lock();
        let now = i.state.attrs();
        if now.generation != r.generation || (now.mode ^ r.mode) & libc::S_IFMT != 0 {
            return Ok(());
        }
        i.state.set_rights(r.mode, r.uid, r.gid);
        if let Some(acls) = r.acls {
            let had = i.state.xattr_bytes(&self.log.io)?;
            let all = xattrs::with_rights(&had, acls).ok_or_else(|| StoreError::BadInode {
                ino: r.ino,
                why: "its extended attributes are malformed".into(),
            })?;
            if all.len() > XATTR_BLOB_MAX {
                // Its others were made more since, or were more before.
                tracing::warn!("the ACLs of inode {} do not fit beside its other attributes", r.ino);
            } else if all != had {
                i.state.set_xattrs(all)?;
                i.xattrs = Logged::No;
            }
        }
        drop(i);
        m.changed.push(inode);
        Ok(())
    }

    /// Folds the changes of all directories, many of them with several threads: no two have one
    /// directory. What is changed is listed in the order of the plan, whoever did it. Returns the
    /// names that inodes gained or lost, in sorted lists.
    fn fold_names(
        &self,
        m: &mut Maintenance,
        plan: &Plan<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<Vec<Vec<(Ino, i64)>>> {
        let threads = self.threads_for(plan.changes.len());
        let mut parts = Vec::new();
        for changes in plan.by_dir() {
            self.cut_dir(changes, threads, sink, &mut parts)?;
        }
        let pieces = if threads > 1 { PIECES * threads } else { 1 };
        let shares = shares(&parts, |p| p.changes.len(), plan.changes.len().div_ceil(pieces));
        let beside = &*sink;
        // Each thread goes on with a list of its own.
        let lists = Mutex::new(Vec::new());
        let done = parallel::map_with(threads, shares, |share| {
            let (mut changed, mut dirty) = (Vec::new(), BTreeSet::new());
            let mut links = lists.lock().pop().unwrap_or_default();
            let r = self.fold_dirs(&mut changed, share, &mut beside.beside(&mut dirty), &mut links);
            lists.lock().push(links);
            (r, changed, dirty)
        });
        let mut all = Ok(());
        for (r, mut changed, dirty) in done {
            m.changed.append(&mut changed);
            sink.take_leaves(dirty);
            all = all.and(r);
        }
        all?;
        for (at, part) in parts.iter().enumerate().filter(|p| p.1.floor > 0) {
            let next = parts.get(at + 1);
            if next.is_none_or(|p| p.dir() != part.dir())
                && let Some(inode) = self.folded_inode(part.dir())?
            {
                directory::join(&*inode, sink, part.floor)?;
            }
        }
        let lists = lists.into_inner();
        debug_assert!(lists.len() <= threads, "{} threads were to be {threads}", lists.len());
        Ok(parallel::map(lists, |mut links: Vec<(Ino, i64)>| {
            links.sort_unstable_by_key(|l| l.0);
            links
        }))
    }

    /// Appends the changes of a directory to `parts`: those of one with many in several.
    fn cut_dir<'p, 'a>(
        &self,
        changes: Run<'p, KeyChange<'a>>,
        threads: usize,
        sink: &mut Sink<'_>,
        parts: &mut Vec<DirPart<'p, 'a>>,
    ) -> Result<()> {
        let pieces = if threads > 1 { (PIECES * threads).min(changes.len() / part()) } else { 1 };
        let floor = pieces.max(1).ilog2() as u8;
        let Some(dir) = changes.first().map(|c| c.dir).filter(|_| floor > 0) else {
            parts.push(DirPart { changes, floor: 0 });
            return Ok(());
        };
        let Some(inode) = self.folded_inode(dir)?.filter(|i| i.lock().state.is_dir()) else {
            parts.push(DirPart { changes, floor: 0 });
            return Ok(());
        };
        directory::split(&*inode, sink, floor)?;
        let cuts: Vec<u64> = (1..1 << floor).map(|prefix| BucketId { depth: floor, prefix }.low()).collect();
        let is_before = |at: usize, cut: &u64| changes.get(at).is_some_and(|c| c.cookie < *cut);
        let ranges = sorted::ranges(changes.len(), &cuts, is_before);
        let ranges = ranges.into_iter().filter(|r| !r.is_empty());
        parts.extend(ranges.map(|r| DirPart { changes: changes.range(r), floor }));
        Ok(())
    }

    fn fold_dirs(
        &self,
        changed: &mut Vec<Arc<CachedInode>>,
        dirs: &[DirPart<'_, '_>],
        sink: &mut Sink<'_>,
        links: &mut Vec<(Ino, i64)>,
    ) -> Result<()> {
        debug_assert!(!dirs.is_empty(), "a share of nothing");
        for part in dirs {
            self.fold_entries(changed, part, sink, links)?;
            sink.flush_if_full()?;
        }
        Ok(())
    }

    fn fold_entries(
        &self,
        changed: &mut Vec<Arc<CachedInode>>,
        &DirPart { changes, floor }: &DirPart<'_, '_>,
        sink: &mut Sink<'_>,
        links: &mut Vec<(Ino, i64)>,
    ) -> Result<()> {
        let Some(dir) = changes.first().map(|c| c.dir) else { return Ok(()) };
        debug_assert!(changes.iter().all(|c| c.dir == dir), "changes of two directories");
        let Some(inode) = self.folded_inode(dir)? else {
            tracing::warn!("{} changes of directory {dir}, which does not exist", changes.len());
            return Ok(());
        };
        let changes = changes.iter_with(|c| c.name).map(|c| {
            let (ino, kind) = c.new.unwrap_or((Ino::NONE, c.kind));
            Change { cookie: c.cookie, name: c.name, ino, kind }
        });
        let mut on = |f: directory::Folded| {
            links.extend(f.old.map(|o| (o.0, -1)));
            links.extend(f.new.map(|n| (n.0, 1)));
        };
        let r = directory::fold_dir(&*inode, sink, changes, floor, &mut on);
        changed.push(inode);
        r
    }

    pub(crate) fn fold_links(&self, m: &mut Maintenance, ino: Ino, delta: i64) -> Result<()> {
        if delta == 0 {
            return Ok(());
        }
        let Some(inode) = self.folded_inode(ino)? else {
            tracing::warn!("link count of inode {ino} changes by {delta}, but it does not exist");
            return Ok(());
        };
        let mut i = inode.lock();
        let had = if m.orphans.contains(&ino) { 0 } else { i.state.names() };
        let names = (i64::from(had) + delta).clamp(0, i64::from(u32::MAX)) as u32;
        i.state.set_names(names);
        m.changed.push(inode.clone());
        m.orphans_changed |= if names == 0 { m.orphans.insert(ino) } else { m.orphans.remove(&ino) };
        debug_assert_eq!(names == 0, m.orphans.contains(&ino), "inode {ino} has {names} names (4)");
        Ok(())
    }

    pub(super) fn fold_death(
        &self,
        m: &mut Maintenance,
        ino: Ino,
        generation: u32,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let e = self.inodes.table.lookup(ino, &self.log.io)?;
        if e.block.is_none() && e.generation > generation || ino == ROOT_INO {
            return Ok(()); // Dead before.
        }
        if let Some(inode) = self.inodes.get(ino, &self.log.io)? {
            {
                let i = inode.lock();
                if i.gone || i.state.attrs().generation != generation {
                    return Ok(());
                }
                if i.folded && i.state.names() > 0 && !m.orphans.contains(&ino) {
                    tracing::warn!("inode {ino} is said to be dead, but it has {} names", i.state.names());
                    return Ok(());
                }
            }
            if self.end_in_memory(&inode, sink)? {
                // Relaxed: only the holder of the maintenance lock changes it.
                self.totals.inodes.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.free_number(&mut m.freed, ino, generation, sink)?;
        m.orphans_changed |= m.orphans.remove(&ino);
        Ok(())
    }

    /// Ends an inode in memory; returns whether it was folded.
    pub(super) fn end_in_memory(&self, inode: &CachedInode, sink: &mut Sink<'_>) -> Result<bool> {
        let folded = {
            let mut guard = inode.lock();
            let i = &mut *guard;
            // Tree marks of what memory gave up already; what is fresh has none and loses its live
            // mark below.
            i.clear_live_marks(&self.log.segments);
            i.died.drain(..).for_each(|a| sink.unmark(a));
            i.fresh = BlockSet::default();
            sink.end(|sink| i.state.destroy(sink))?;
            let less = std::mem::take(&mut i.own_charged).cast_signed()
                - i.unwritten_and_nodes_change(&self.log.space);
            debug_assert!(less >= 0, "inode {} needs {less} blocks less where it ends", inode.ino);
            sink.give_back(less.max(0).unsigned_abs());
            // Noted as given back already, and durable with the inode's end.
            sink.add_ended(i.freed_later.take());
            debug_assert_eq!(i.state.unwritten(), 0, "inode {} still has space kept for it", inode.ino);
            i.gone = true;
            i.folded
        };
        self.inodes.cache.remove(inode.ino);
        Ok(folded)
    }

    /// Lets the number of an inode be given out again.
    pub(super) fn free_number(
        &self,
        freed: &mut Vec<(Ino, u32)>,
        ino: Ino,
        generation: u32,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let next = generation.wrapping_add(1);
        // Relaxed: for stamps and reports.
        let epoch = self.log.epoch.load(Ordering::Relaxed);
        let free = self.inodes.table.clear(ino, next, epoch, &self.log.io)?;
        if !free.is_none() {
            sink.end(|sink| sink.free(free.addr));
        }
        freed.push((ino, next));
        Ok(())
    }
}

/// Changes of a directory, or of some of its buckets.
struct DirPart<'p, 'a> {
    changes: Run<'p, KeyChange<'a>>,
    /// The depth of the bucket whose changes these are; 0 if they are all of the directory.
    floor: u8,
}

impl DirPart<'_, '_> {
    fn dir(&self) -> Ino {
        self.changes.first().map_or(Ino::NONE, |c| c.dir)
    }
}

/// Divides directories, or parts of them, among threads, about `each` changes for one: `number` is
/// how many one has. There is one share at least, unless there is no directory.
pub(crate) fn shares<T>(dirs: &[T], number: impl Fn(&T) -> usize, each: usize) -> Vec<&[T]> {
    let mut shares = Vec::new();
    if dirs.is_empty() {
        return shares;
    }
    let (mut first, mut taken) = (0, 0);
    for (n, dir) in dirs.iter().enumerate() {
        taken += number(dir);
        if taken >= each && n + 1 < dirs.len() {
            shares.push(&dirs[first..=n]);
            (first, taken) = (n + 1, 0);
        }
    }
    shares.push(&dirs[first..]);
    debug_assert_eq!(shares.iter().map(|s| s.len()).sum::<usize>(), dirs.len(), "each has its thread");
    shares
}

/// Returns the sum for each inode, by number, of the names that it gained or lost.
fn sums(links: &[(Ino, i64)]) -> Vec<(Ino, i64)> {
    debug_assert!(links.is_sorted_by_key(|l| l.0), "links are out of order");
    let mut sums = Vec::with_capacity(links.len());
    sums.extend(links.chunk_by(|a, b| a.0 == b.0).map(|of| (of[0].0, of.iter().map(|l| l.1).sum::<i64>())));
    sums
}

/// A thread's part of [`Fold::put_off`].
struct PutOff {
    /// The first one last.
    deferred: Vec<DeferredInode>,
    made: Vec<usize>,
    links: Vec<(Ino, i64)>,
}

impl PutOff {
    /// Looks at the new inodes at these places, but for `others`, and at the sums of links of the
    /// same numbers.
    fn of(plan: &Plan<'_>, others: &[usize], news: Range<usize>, mut links: Vec<(Ino, i64)>) -> PutOff {
        let (mut deferred, mut made) = (Vec::with_capacity(news.len()), Vec::new());
        let mut others = others[others.partition_point(|at| *at < news.start)..].iter().peekable();
        let mut next = 0;
        for (at, b) in news.clone().zip(plan.news.all().range(news).iter()) {
            if others.next_if_eq(&&at).is_some() {
                continue;
            }
            next += links[next..].iter().take_while(|l| l.0 < b.ino).count();
            let own = links.get_mut(next).filter(|l| l.0 == b.ino && l.1 > 0);
            match own.and_then(|l| Some((u32::try_from(l.1).ok()?, l))) {
                Some((names, l)) => {
                    // None is left to be folded.
                    l.1 = 0;
                    deferred.push(DeferredInode::new(b, names));
                }
                None => made.push(at),
            }
        }
        // Of a fold that makes files few are left, and nobody looks for them among the others.
        links.retain(|l| l.1 != 0);
        debug_assert!(deferred.is_sorted_by(|a, b| a.ino < b.ino), "a file is put off twice");
        deferred.reverse();
        PutOff { deferred, made, links }
    }
}

impl NewInode<'_> {
    /// Returns what it is born with.
    pub(crate) fn attrs(&self) -> Attrs {
        Attrs {
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            flags: 0,
            rdev: self.rdev,
            size: self.target.len() as u64,
            atime: self.time,
            mtime: self.time,
            ctime: self.time,
            btime: self.time,
            generation: self.generation,
        }
    }
}

/// Gives an inode that was not folded what its NEW says, beside what updates have said. False if it
/// was folded before.
pub(super) fn make(i: &mut InodeEntry, b: &NewInode<'_>) -> bool {
    if i.folded || i.gone {
        return false;
    }
    if i.state.version() == 0 {
        i.state.apply_attrs(&b.attrs(), 0);
    } else if b.logged {
        // Those of a record may be of an epoch that is not folded, or that a crash has taken.
        i.state.set_rights(b.mode, b.uid, b.gid);
    }
    i.state.set_parent(b.parent);
    i.folded = true;
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::api::{FoldInput, FormatOptions, OpenOptions};
    use crate::device::{Device, MemoryDevice};
    use crate::engine::plan::plan;
    use lanefs_format::record::{Effect, encode_group};
    use lanefs_format::{FileKind, Version};

    fn groups(epoch: u64, effects: impl Fn(Ino, &[u8], u64) -> Vec<u8>) -> Vec<u8> {
        (0..50).flat_map(|n| effects(Ino(1000 + n), format!("file{n}").as_bytes(), epoch)).collect()
    }

    fn group(epoch: u64, effects: &[Effect<'_>]) -> Vec<u8> {
        let mut out = Vec::new();
        encode_group(&mut out, Version { epoch, ts: epoch, lane: 0 }, effects);
        out
    }

    #[test]
    fn what_a_fold_removes_does_not_wait_in_memory_for_the_capture() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20).unwrap());
        Store::format(std::slice::from_ref(&device), &FormatOptions::default()).unwrap();
        let (s, _) = Store::open(vec![device], &OpenOptions::default()).unwrap();
        let (dir, old, kind, generation) = (ROOT_INO, Ino::NONE, FileKind::File, 0);
        let made = groups(5, |ino, name, epoch| {
            let (mode, uid, gid, rdev, time, target) = (libc::S_IFREG, 0, 0, 0, 1, &b""[..]);
            let new = Effect::New {
                ino,
                parent: dir,
                generation,
                mode,
                uid,
                gid,
                rdev,
                time,
                target,
                logged: false,
            };
            let cookie = name[4..].iter().fold(0, |c, b| c << 8 | u64::from(*b));
            group(epoch, &[new, Effect::Set { dir, cookie, name, ino, old, kind }])
        });
        s.checkpoint(|| Ok(FoldInput { epoch: 5, groups: vec![made.into()] })).unwrap();
        let removed = groups(6, |ino, name, epoch| {
            let cookie = name[4..].iter().fold(0, |c, b| c << 8 | u64::from(*b));
            group(
                epoch,
                &[Effect::Clr { dir, cookie, name, old: ino, kind }, Effect::Dead { ino, generation }],
            )
        });
        let mut m = s.engine.maintenance.lock();
        let mut dirty = Default::default();
        let mut sink = Sink::new(&s.engine.log, &s.engine.totals, &mut dirty);
        s.engine.fold().fold(&mut m, plan([&removed[..]], 1).unwrap(), &mut sink).unwrap();
        assert_eq!(m.freed.len(), 50);
        let kept: Vec<Ino> = m.changed.iter().map(|c| c.ino).collect();
        assert_eq!(kept, [ROOT_INO]);
    }
}
