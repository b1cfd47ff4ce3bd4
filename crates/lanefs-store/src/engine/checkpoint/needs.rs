//! The blocks that a fold and its checkpoint may need, before anything is done: if there are fewer,
//! space is freed first, since a fold halfway would be worse than a late one.

use crate::engine::checkpoint::Checkpoints;
use crate::engine::fold::{PIECES, part, shared_from, shares};
use crate::engine::maintenance::Maintenance;
use crate::engine::ordered::Run;
use crate::engine::plan::{KeyChange, NewInode, Plan};
use crate::inodes::cache::CachedInode;
use crate::log::space::{PARTS_OF_BLOCK, parts_of_inode};
use lanefs_format::dir_bucket::ENTRY_HEADER;
use lanefs_format::inode::XATTR_PER_BLOCK;
use lanefs_format::table_node::{ENTRIES, TableEntry};
use lanefs_format::{BLOCK_SIZE, INLINE_MAX, Ino};
use lanefs_sync::parallel;
use std::cell::OnceCell;
use std::sync::Arc;

/// Blocks for a group whatever it does: an inode, a bucket and a leaf of a table.
const EACH: u64 = 3;
/// Blocks of the roots and upper nodes of the tables.
const UPPER: u64 = 16;

/// What a fold may need, counted when somebody asks for it first: it looks at each change.
#[derive(Default)]
pub(super) struct Needs {
    /// Blocks for the plan, without copies.
    blocks: OnceCell<u64>,
}

impl Checkpoints<'_> {
    /// Returns whether there are fewer free blocks than the fold of `plan` and its checkpoint may
    /// need. (What is dirtied now is not its business.) `needs`: those of this plan.
    pub(super) fn is_short_of_space(&self, m: &Maintenance, plan: &Plan<'_>, needs: &Needs) -> bool {
        let size = u64::from(self.log.segments.geometry.segment_blocks);
        let free = u64::from(self.log.segments.free_count()) * size;
        let copies = self.log.metadata_copies();
        let nodes = self.log.space.blocks_of_dirty_nodes() / copies + UPPER;
        let others = 2 * (m.changed.len() + m.deferred.len()) as u64 + nodes;
        // What follows looks at each change and at the directories; mostly this is enough.
        if free >= copies * (EACH * plan.groups + others) {
            return false;
        }
        let blocks = *needs.blocks.get_or_init(|| self.blocks_of(plan));
        debug_assert!(plan.is_empty() || blocks > 0, "a fold of {} groups writes nothing", plan.groups);
        free < copies * (blocks + others) && free < copies * (blocks + self.blocks_of_changed(m) + nodes)
    }

    /// Returns the blocks that the inodes may take which are to be written already.
    fn blocks_of_changed(&self, m: &Maintenance) -> u64 {
        let threads = if m.changed.len() < shared_from() { 1 } else { self.log.threads() };
        let shares = m.changed.chunks(m.changed.len().div_ceil(threads).max(1)).collect();
        // One that has a block of its own may have others to write, too.
        let parts = |c: &Arc<CachedInode>| match c.lock().state.inline_bytes() {
            Some(bytes) => parts_of_inode(self.inodes.packed, false, bytes),
            None => 2 * PARTS_OF_BLOCK,
        };
        let needs = parallel::map(shares, |share: &[Arc<CachedInode>]| {
            let mut inos: Vec<Ino> = share.iter().map(|c| c.ino).collect();
            inos.sort_unstable();
            (share.iter().map(parts).sum::<u64>(), chunks(inos.into_iter()))
        });
        let blocks = needs.iter().map(|n| n.0).sum::<u64>().div_ceil(PARTS_OF_BLOCK);
        debug_assert!(blocks <= 2 * m.changed.len() as u64, "{blocks} blocks for {}", m.changed.len());
        let chunks: u64 = needs.iter().map(|n| n.1).sum();
        2 * m.deferred.len() as u64 + blocks + chunks + leaves(chunks)
    }

    /// Returns the blocks that the fold of a plan may write, without copies. Many changes are
    /// looked at by several threads.
    fn blocks_of(&self, plan: &Plan<'_>) -> u64 {
        let threads =
            if plan.changes.len() + plan.news.len() < shared_from() { 1 } else { self.log.threads() };
        let dirs: Vec<_> = plan.by_dir().collect();
        let shares = shares(&dirs, |d| d.len(), plan.changes.len().div_ceil(threads));
        let changes = parallel::map(shares, |dirs| {
            let names: u64 = dirs.iter().map(|changes| self.blocks_of_names(*changes)).sum();
            let (parts, chunks) = self.needs_of_named(plan, dirs);
            (names, parts, chunks)
        });
        let each = plan.news.len().div_ceil(threads).max(1);
        let from = (0..plan.news.len()).step_by(each);
        let shares = from.map(|from| plan.news.all().range(from..plan.news.len().min(from + each))).collect();
        let news = parallel::map(shares, |news: Run<'_, NewInode<'_>>| self.needs_of_news(news));
        let news = news.into_iter().fold(News::default(), |a, b| News {
            blocks: a.blocks + b.blocks,
            parts: a.parts + b.parts,
            chunks: a.chunks + b.chunks,
        });
        // Of each chunk the last pack may have one inode.
        let named = changes.iter().map(|c| c.1 + c.2 * PARTS_OF_BLOCK).sum::<u64>().div_ceil(PARTS_OF_BLOCK);
        let others = plan.rights.len() as u64 + 2 * plan.parents.len() as u64 + named;
        let blocks = changes.iter().map(|c| c.0).sum::<u64>() + news.blocks + others;
        let few = (plan.rights.len() + plan.parents.len() + dirs.len()) as u64;
        let named = changes.iter().map(|c| c.2).sum::<u64>();
        let chunks = news.chunks + chunks(plan.dead.iter().map(|d| d.0)) + named + few;
        blocks + news.parts.div_ceil(PARTS_OF_BLOCK) + leaves(chunks)
    }

    /// Returns the parts of blocks of the inodes that a name of some directories comes to or is
    /// taken from, and that are neither new nor dead, and the number of their chunks.
    fn needs_of_named(&self, plan: &Plan<'_>, dirs: &[Run<'_, KeyChange<'_>>]) -> (u64, u64) {
        let of_dirs = dirs.iter().flat_map(|changes| changes.iter());
        // Where no inode has another name than that of its making none comes to any.
        let given = |c: &KeyChange<'_>| c.new.filter(|_| plan.given > 0).map(|n| n.0);
        let of_change = |c: &KeyChange<'_>| [Some(c.old).filter(|ino| !ino.is_none()), given(c)];
        let mut named: Vec<Ino> = of_dirs.flat_map(of_change).flatten().collect();
        named.sort_unstable();
        named.dedup();
        let first = named.first().map_or(0, |ino| plan.dead.partition_point(|d| d.0 < *ino));
        let mut dead = plan.dead[first..].iter().map(|d| d.0).peekable();
        named.retain(|ino| {
            while dead.next_if(|d| d < ino).is_some() {}
            dead.peek() != Some(ino)
        });
        let parts = |entry: &TableEntry| match entry {
            // It is new.
            entry if entry.block.is_none() => 0,
            // A pack holds two of the largest.
            entry if entry.slot != 0 => PARTS_OF_BLOCK / 2,
            _ => PARTS_OF_BLOCK,
        };
        let of_chunk = |inos: &[Ino]| match self.inodes.table.find(inos[0].chunk(), &self.log.io) {
            Ok(Some(chunk)) => {
                let entries = chunk.entries();
                inos.iter().map(|ino| parts(&entries[ino.slot()])).sum()
            }
            Ok(None) => 0,
            // It says nothing: the fold gets it.
            Err(_) => inos.len() as u64 * PARTS_OF_BLOCK,
        };
        let parts = named.chunk_by(|a, b| a.chunk() == b.chunk()).map(of_chunk).sum();
        debug_assert!(parts <= named.len() as u64 * PARTS_OF_BLOCK, "{parts} parts of {}", named.len());
        (parts, chunks(named.into_iter()))
    }

    /// Returns what some new inodes need.
    fn needs_of_news(&self, news: Run<'_, NewInode<'_>>) -> News {
        let mut n = News { chunks: chunks(news.iter().map(|n| n.ino)), ..News::default() };
        for b in news.iter() {
            let is_dir = b.mode & libc::S_IFMT == libc::S_IFDIR;
            n.parts += parts_of_inode(self.inodes.packed, is_dir, b.target.len() + b.xattrs.len());
            n.blocks += u64::from(b.target.len() > INLINE_MAX);
            n.blocks += b.xattrs.len().div_ceil(XATTR_PER_BLOCK) as u64;
        }
        debug_assert!(n.chunks <= news.len() as u64, "{} chunks of {} inodes", n.chunks, news.len());
        n
    }

    /// Returns the blocks that changes of one directory may write: its inode, its buckets, a leaf
    /// of its map for each hundred of these. Each change writes a bucket at most, and all of them
    /// those that are there and what the new names fill.
    fn blocks_of_names(&self, changes: Run<'_, KeyChange<'_>>) -> u64 {
        let Some(first) = changes.first() else { return 0 };
        let each = changes.len() as u64;
        let bytes: usize =
            changes.iter().filter(|c| c.new.is_some()).map(|c| ENTRY_HEADER + c.name.len()).sum();
        let buckets = match each {
            1 => 1,
            // An error says nothing: the fold gets it.
            _ => match self.inodes.get(first.dir, &self.log.io) {
                Ok(Some(dir)) => dir.lock().state.mapped_pages() + 2 * bytes.div_ceil(BLOCK_SIZE) as u64 + 1,
                Ok(None) => 2 * bytes.div_ceil(BLOCK_SIZE) as u64 + 1,
                Err(_) => each,
            },
        };
        let buckets = buckets.min(each + bytes.div_ceil(BLOCK_SIZE) as u64);
        // What a large one is split to before, and what is merged behind that.
        let parts = if changes.len() >= part() { 2 * PIECES * self.log.threads() } else { 0 };
        2 + buckets + buckets / 64 + parts as u64
    }
}

/// What new inodes need.
#[derive(Default)]
struct News {
    blocks: u64,
    /// Parts of blocks ([`parts_of_inode`]).
    parts: u64,
    /// Chunks of the inode table.
    chunks: u64,
}

/// Returns the number of chunks of the inode table in which inodes are, of a sorted list.
pub(super) fn chunks(inos: impl Iterator<Item = Ino>) -> u64 {
    let mut last = None;
    inos.filter(|i| last.replace(i.chunk()) != Some(i.chunk())).count() as u64
}

/// Returns the blocks of the inode table for so many of its chunks: a leaf for each, and the nodes
/// above.
fn leaves(chunks: u64) -> u64 {
    chunks + chunks / (ENTRIES as u64 / 2)
}
