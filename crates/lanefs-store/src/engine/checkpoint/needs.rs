//! The blocks that a fold and its checkpoint may need, before anything is done: if there are fewer,
//! space is freed first, since a fold halfway would be worse than a late one.

use crate::engine::checkpoint::Checkpoints;
use crate::engine::maintenance::Maintenance;
use crate::engine::ordered::Run;
use crate::engine::plan::{KeyChange, Plan};
use crate::log::space::{PARTS_OF_BLOCK, parts_of_inode};
use lanefs_format::dir_bucket::ENTRY_HEADER;
use lanefs_format::inode::XATTR_PER_BLOCK;
use lanefs_format::table_node::ENTRIES;
use lanefs_format::{BLOCK_SIZE, INLINE_MAX, Ino};

/// Blocks for a group whatever it does: an inode, a bucket and a leaf of a table.
const EACH: u64 = 3;
/// Blocks of the roots and upper nodes of the tables.
const UPPER: u64 = 16;

impl Checkpoints<'_> {
    /// Returns whether there are fewer free blocks than the fold of `plan` and its checkpoint may
    /// need. (What is dirtied now is not its business.)
    pub(super) fn is_short_of_space(&self, m: &Maintenance, plan: &Plan<'_>) -> bool {
        let size = u64::from(self.log.segments.geometry.segment_blocks);
        let free = u64::from(self.log.segments.free_count()) * size;
        let copies = self.log.metadata_copies();
        let nodes = self.log.space.blocks_of_dirty_nodes() / copies;
        let others = 2 * (m.changed.len() + m.deferred.len()) as u64 + nodes + UPPER;
        // What follows looks at each change and at the directories; mostly this is enough.
        if free >= copies * (EACH * plan.groups + others) {
            return false;
        }
        let needs = self.blocks_of(plan);
        debug_assert!(plan.is_empty() || needs > 0, "a fold of {} groups writes nothing", plan.groups);
        free < copies * (needs + others)
    }

    /// Returns the blocks that the fold of a plan may write, without copies.
    fn blocks_of(&self, plan: &Plan<'_>) -> u64 {
        let names: u64 = plan.by_dir().map(|changes| self.blocks_of_names(changes)).sum();
        let mut parts = 0;
        let mut blocks = plan.rights.len() as u64 + 2 * plan.parents.len() as u64;
        for n in plan.news.iter() {
            let is_dir = n.mode & libc::S_IFMT == libc::S_IFDIR;
            parts += parts_of_inode(self.inodes.packed, is_dir, n.target.len() + n.xattrs.len());
            blocks += u64::from(n.target.len() > INLINE_MAX);
            blocks += n.xattrs.len().div_ceil(XATTR_PER_BLOCK) as u64;
        }
        // Inodes that a name comes to or is taken from, and that are neither new nor dead.
        let mut losing: Vec<Ino> = plan.changes.iter().map(|c| c.old).filter(|i| !i.is_none()).collect();
        losing.sort_unstable();
        let mut dead = plan.dead.iter().map(|d| d.0).peekable();
        blocks += plan.given;
        for ino in losing {
            while dead.next_if(|d| *d < ino).is_some() {}
            blocks += u64::from(dead.peek() != Some(&ino));
        }
        // A leaf of the inode table for each chunk.
        let chunks = |inos: &mut dyn Iterator<Item = Ino>| -> u64 {
            let mut last = None;
            inos.filter(|i| last.replace(i.chunk()) != Some(i.chunk())).count() as u64
        };
        let leaves = chunks(&mut plan.news.iter().map(|n| n.ino))
            + chunks(&mut plan.dead.iter().map(|d| d.0))
            + blocks;
        names + blocks + parts.div_ceil(PARTS_OF_BLOCK) + leaves + leaves / (ENTRIES as u64 / 2)
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
        2 + buckets + buckets / 64
    }
}
