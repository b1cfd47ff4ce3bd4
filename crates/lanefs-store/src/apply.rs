//! Applying a fold's plan ([`crate::fold`]): record groups become inodes, directory entries and link counts. Done only by checkpoints, on the in-memory
//! state that they write out next.
//!
//! 1. What a change replaces is what the folded directory says, not what the record remembers. So the link deltas are names after minus names before (O8), and folding the
//!    same groups again changes nothing (O11).
//! 2. Order: NEW, then entries, then link counts, PARENT, DEAD; so a NEW that comes with its first name is
//!    found, and a removed directory's entries still take their links along.
//! 3. DEAD of an inode that still has names is refused: it would leave a name without an inode.
//! 4. An inode without names that is not dead is on the orphan list.
//! 5. What a fold changes goes on the checkpoint's own list, not on the lists of what calls dirty.

use crate::block_io::{BlockSink, Owner};
use crate::cell::{Cell, Logged};
use crate::checkpoint::Maintenance;
use crate::dir::{self, Change, StateCell};
use crate::error::{Result, StoreError};
use crate::fold::{self, KeyChange, NewInode, Plan};
use crate::inode_state::{InodeState, padded};
use crate::sink::Sink;
use crate::store::Store;
use crate::types::{Attrs, INLINE_MAX, Ino, ROOT_INO};
use lanefs_sync::{Canary, planted};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl StateCell for Cell {
    fn with<T>(&self, f: impl FnOnce(&mut InodeState) -> T) -> T {
        f(&mut self.lock().state)
    }
}

impl Store {
    /// Inodes in use. A damaged volume may have counted fewer than it frees.
    pub(crate) fn inodes_counted(&self) -> u64 {
        (self.inode_count.load(Ordering::Relaxed) as i64).max(0) as u64
    }

    /// Folds all groups of `buffers`. An error may leave the fold half done in memory, with links not counted: it is
    /// sticky, and the volume is what the last slot and the log say.
    pub(crate) fn fold(&self, m: &mut Maintenance, buffers: &[Vec<u8>], sink: &mut Sink<'_>) -> Result<()> {
        let plan = fold::plan(buffers.iter().map(Vec::as_slice), |_| true)?;
        self.apply_plan(m, &plan, sink).inspect_err(|e| self.io.fail(e))
    }

    fn apply_plan(&self, m: &mut Maintenance, plan: &Plan<'_>, sink: &mut Sink<'_>) -> Result<()> {
        // Relaxed: a floor for the next mount.
        self.last_ts.fetch_max(plan.last_ts, Ordering::Relaxed);
        for b in &plan.news {
            self.next_chunk.fetch_max(b.ino.chunk() + 1, Ordering::Relaxed);
            self.fold_birth(m, b, sink)?;
            sink.relieve()?;
        }
        let mut links: HashMap<Ino, i64> = HashMap::new();
        for changes in plan.by_dir() {
            self.fold_entries(m, changes, sink, &mut links)?;
            sink.relieve()?;
        }
        let mut links: Vec<_> = links.into_iter().collect();
        links.sort_unstable();
        for (ino, delta) in links {
            self.fold_links(m, ino, delta)?;
        }
        for b in &plan.news {
            if let Some(cell) = self.folded_cell(b.ino)?
                && cell.lock().state.names() == 0
            {
                m.orphans_changed |= m.orphans.insert(b.ino);
            }
        }
        for &(ino, parent) in &plan.parents {
            if let Some(cell) = self.folded_cell(ino)? {
                cell.lock().state.set_parent(parent);
                m.changed.push(cell);
            }
        }
        for &(ino, generation) in &plan.dead {
            self.next_chunk.fetch_max(ino.chunk() + 1, Ordering::Relaxed);
            self.fold_death(m, ino, generation, sink)?;
            sink.relieve()?;
        }
        Ok(())
    }

    fn folded_cell(&self, ino: Ino) -> Result<Option<Arc<Cell>>> {
        Ok(self.cell(ino)?.filter(|c| {
            let i = c.lock();
            i.folded && !i.gone
        }))
    }

    fn fold_birth(&self, m: &mut Maintenance, b: &NewInode<'_>, sink: &mut Sink<'_>) -> Result<()> {
        let ino = b.ino;
        let e = self.inodes.lookup(ino, &self.io)?;
        if !e.block.is_none() || e.generation > b.generation {
            return Ok(()); // Folded before, or even dead since.
        }
        let attrs = Attrs {
            mode: b.mode,
            uid: b.uid,
            gid: b.gid,
            flags: 0,
            rdev: b.rdev,
            size: b.target.len() as u64,
            atime: b.time,
            mtime: b.time,
            ctime: b.time,
            btime: b.time,
            generation: b.generation,
        };
        let cell = self.cell_or_new(ino, &attrs)?;
        let mut guard = cell.lock();
        let i = &mut *guard;
        if i.folded || i.gone {
            return Ok(());
        }
        if i.state.version() == 0 {
            i.state.apply_attrs(&attrs, 0);
        }
        i.state.set_parent(b.parent);
        let empty = i.state.tail().is_none() && i.state.mapped_pages() == 0;
        if !b.target.is_empty() && empty {
            if b.target.len() <= INLINE_MAX {
                let _ = i.state.set_tail(0, b.target.to_vec(), &self.io)?;
                i.tail = Logged::No;
            } else {
                let r = sink.write(Owner::Data { ino, page: 0 }, padded(b.target))?;
                i.state.set_page(0, r, &self.io)?;
            }
        }
        i.folded = true;
        m.changed.push(cell.clone());
        self.inode_count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn fold_entries(
        &self,
        m: &mut Maintenance,
        changes: &[KeyChange<'_>],
        sink: &mut Sink<'_>,
        links: &mut HashMap<Ino, i64>,
    ) -> Result<()> {
        let Some(dir) = changes.first().map(|c| c.dir) else { return Ok(()) };
        let Some(cell) = self.folded_cell(dir)? else {
            tracing::warn!("{} changes of directory {dir}, which does not exist", changes.len());
            return Ok(());
        };
        let changes = changes.iter().map(|c| {
            let (ino, kind) = c.new.unwrap_or((Ino::NONE, c.kind));
            Change { cookie: c.cookie, name: c.name, ino, kind }
        });
        let mut on = |f: dir::Folded| {
            if let Some((old, _)) = f.old
                && !(f.new.is_some() && planted(Canary::LinkKept))
            {
                *links.entry(old).or_default() -= 1;
            }
            if let Some((new, _)) = f.new {
                *links.entry(new).or_default() += 1;
            }
        };
        let r = dir::fold_dir(&*cell, sink, changes, &mut on);
        m.changed.push(cell);
        r
    }

    fn fold_links(&self, m: &mut Maintenance, ino: Ino, delta: i64) -> Result<()> {
        if delta == 0 {
            return Ok(());
        }
        let Some(cell) = self.folded_cell(ino)? else {
            tracing::warn!("link count of inode {ino} changes by {delta}, but it does not exist");
            return Ok(());
        };
        let mut i = cell.lock();
        let names = (i64::from(i.state.names()) + delta).clamp(0, i64::from(u32::MAX)) as u32;
        i.state.set_names(names);
        m.changed.push(cell.clone());
        m.orphans_changed |= if names == 0 { m.orphans.insert(ino) } else { m.orphans.remove(&ino) };
        Ok(())
    }

    fn fold_death(&self, m: &mut Maintenance, ino: Ino, generation: u32, sink: &mut Sink<'_>) -> Result<()> {
        let e = self.inodes.lookup(ino, &self.io)?;
        if e.block.is_none() && e.generation > generation || ino == ROOT_INO {
            return Ok(()); // Dead before.
        }
        if let Some(cell) = self.cell(ino)? {
            let mut guard = cell.lock();
            let i = &mut *guard;
            if i.gone || i.state.attrs().generation != generation {
                return Ok(());
            }
            if i.folded && i.state.names() > 0 {
                tracing::warn!("inode {ino} is said to be dead, but it has {} names", i.state.names());
                return Ok(());
            }
            // Tree marks of what memory gave up already; what is fresh has none and loses its live mark below.
            i.settle(&self.segments);
            i.died.drain(..).for_each(|a| sink.unmark(a));
            i.fresh.clear();
            i.state.destroy(sink)?;
            i.gone = true;
            if i.folded {
                self.inode_count.fetch_sub(1, Ordering::Relaxed);
            }
            drop(guard);
            self.cells.remove(ino);
        }
        let next = generation.wrapping_add(1);
        self.inodes.clear(ino, next, self.epoch.load(Ordering::Relaxed), &self.io)?;
        m.freed.push((ino, next));
        m.orphans_changed |= m.orphans.remove(&ino);
        Ok(())
    }

    /// See [`Store::load_bucket`].
    pub(crate) fn read_bucket(&self, ino: Ino, cookie: u64) -> Result<crate::api::BucketImage> {
        let cell =
            self.cell(ino)?.ok_or_else(|| StoreError::Invalid(format!("directory {ino} does not exist")))?;
        let mut tries = 0;
        loop {
            match dir::load_bucket(&*cell, &self.io, cookie) {
                // The bucket may have been rewritten and its block reused since the map was asked.
                Err(StoreError::Corrupt { .. }) if tries < 2 => tries += 1,
                other => return other,
            }
        }
    }
}
