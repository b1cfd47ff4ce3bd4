//! The state that checkpoints, the cleaner and a repair keep from one to the next.

use crate::api::CleanReport;
use crate::engine::plan::NewInode;
use crate::inodes::cache::CachedInode;
use crate::log::usage_table::UsageTable;
use lanefs_format::inode::{DirShape, InodeBlock, MapImage, XattrPlace};
use lanefs_format::prealloc::Prealloc;
use lanefs_format::slot::Slot;
use lanefs_format::{Block, BlockRef, Ino, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Packs that are to be elsewhere, by chunk, with what they hold.
pub(crate) type Moving = BTreeMap<u64, Vec<(BlockRef, Box<Block>)>>;

/// State that only the holder of the maintenance lock touches.
pub(crate) struct Maintenance {
    /// The slot in force.
    pub slot: Slot,
    /// Its place: 0 or 1.
    pub slot_index: usize,
    pub usage: UsageTable,
    /// Inodes without names, not dead.
    pub orphans: BTreeSet<Ino>,
    pub orphan_blocks: Vec<BlockRef>,
    pub orphans_changed: bool,
    /// Inodes to be written out: what was dirtied before the position, and what the fold changed.
    /// Some twice.
    pub changed: Vec<Arc<CachedInode>>,
    /// Files that a fold has put off (`deferred`).
    pub deferred: Deferred,
    /// Packs that the cleaner wants to be elsewhere, by chunk, with what they hold. The next
    /// capture writes what is still in use of them.
    pub moving: Moving,
    /// Inodes that this checkpoint cannot write out, because their NEW is not folded.
    pub waiting: Vec<Arc<CachedInode>>,
    /// The number of these at the last one.
    pub waited: usize,
    /// Inodes written out since the slot in force.
    pub captured: Vec<Arc<CachedInode>>,
    /// Blocks of inodes that ended, which count as free when a slot is written.
    pub ended: u64,
    /// Messages that were carried over (4) and are written, but not known to be flushed: the mlog
    /// and the last place of each.
    pub carried: Vec<(usize, u64)>,
    /// Numbers freed by folds since the slot in force.
    pub freed: Vec<(Ino, u32)>,
    /// The last durable checkpoint's number.
    pub durable: u64,
    /// Segments with live blocks whose owners the cleaner cannot find.
    pub stuck: BTreeSet<u32>,
    /// The store is being opened: nobody has it yet.
    pub opening: bool,
    /// The next position is the last one: the store closes.
    pub closing: bool,
    /// The slot of that position is durable.
    pub closed: bool,
    /// The work of the cleaner since the store was opened.
    pub cleaned: CleanReport,
}

impl Maintenance {
    pub fn new(slot: Slot, slot_index: usize, usage: UsageTable) -> Maintenance {
        Maintenance {
            slot,
            slot_index,
            usage,
            orphans: BTreeSet::new(),
            orphan_blocks: Vec::new(),
            orphans_changed: false,
            changed: Vec::new(),
            deferred: Deferred::default(),
            moving: BTreeMap::new(),
            waiting: Vec::new(),
            waited: 0,
            captured: Vec::new(),
            ended: 0,
            carried: Vec::new(),
            freed: Vec::new(),
            durable: 0,
            stuck: BTreeSet::new(),
            opening: true,
            closing: false,
            closed: false,
            cleaned: CleanReport::default(),
        }
    }

    /// Checks, in debug builds, what holds whenever the maintenance lock is taken or let go of.
    pub fn check_invariants(&self) {
        debug_assert!(self.slot_index < 2, "slot {} is in force", self.slot_index);
        debug_assert!(self.closing || !self.closed, "the store is closed, and was not closing");
        debug_assert!(
            self.deferred.next().is_none_or(|b| b.names > 0),
            "a file without names was put off: it would be no orphan"
        );
        debug_assert!(
            self.orphan_blocks.iter().all(|r| !r.is_none()),
            "a block of the list of orphans lies nowhere"
        );
    }
}

/// Files that a fold has put off. They lie in the lists that the threads of the fold made, for a
/// copy would be as long as all the rest of that step.
#[derive(Default)]
pub(crate) struct Deferred {
    /// In each the first one is the last, and so are the lists. None is empty.
    lists: Vec<Vec<DeferredInode>>,
}

impl Deferred {
    /// Puts lists before what is there. In each the first file is the last, and so are the lists.
    pub fn push(&mut self, lists: impl Iterator<Item = Vec<DeferredInode>>) {
        self.lists.extend(lists.filter(|l| !l.is_empty()));
        self.check_order();
    }

    /// Takes out the lists, the first one last.
    pub fn take_lists(&mut self) -> Vec<Vec<DeferredInode>> {
        self.check_order();
        std::mem::take(&mut self.lists)
    }

    pub fn len(&self) -> usize {
        self.lists.iter().map(Vec::len).sum()
    }

    /// Returns the file that comes next.
    pub fn next(&self) -> Option<DeferredInode> {
        self.lists.last().and_then(|l| l.last()).copied()
    }

    /// Takes out the file that comes next.
    pub fn pop(&mut self) -> Option<DeferredInode> {
        let list = self.lists.last_mut()?;
        let popped = list.pop();
        debug_assert!(popped.is_some(), "a list of no files");
        if list.is_empty() {
            self.lists.pop();
        }
        popped
    }

    fn check_order(&self) {
        let all = || self.lists.iter().flatten();
        debug_assert!(all().zip(all().skip(1)).all(|(a, b)| a.ino > b.ino), "twice, or out of order");
    }
}

/// A file that a fold makes later, and of which nothing else is known (`deferred`).
#[derive(Clone, Copy)]
pub(crate) struct DeferredInode {
    pub ino: Ino,
    parent: Ino,
    time: i64,
    pub generation: u32,
    mode: u32,
    uid: u32,
    gid: u32,
    /// Names it has after the fold, if it had none before.
    pub names: u32,
    logged: bool,
}

impl DeferredInode {
    pub fn new(b: &NewInode<'_>, names: u32) -> DeferredInode {
        debug_assert!(names > 0, "inode {} has no name: it is put on the list of orphans", b.ino);
        debug_assert!(
            b.target.is_empty() && b.xattrs.is_empty() && b.mode & libc::S_IFMT == libc::S_IFREG,
            "more is known of inode {} than is kept",
            b.ino
        );
        let NewInode { ino, parent, time, generation, mode, uid, gid, logged, .. } = *b;
        DeferredInode { ino, parent, time, generation, mode, uid, gid, names, logged }
    }

    /// Returns its inode as it is written.
    pub fn image(&self) -> InodeBlock {
        InodeBlock {
            attrs: self.new_inode().attrs(),
            nlink: self.names,
            parent: self.parent,
            version: 0,
            dir: DirShape::default(),
            xattrs: XattrPlace::Inline(Vec::new()),
            map: MapImage::Inline(Vec::new()),
            tail: None,
            prealloc: Prealloc::NONE,
            unwritten: 0,
        }
    }

    pub fn new_inode(&self) -> NewInode<'static> {
        let DeferredInode { ino, parent, time, generation, mode, uid, gid, logged, .. } = *self;
        let (rdev, target, xattrs, version) = (0, &b""[..], &b""[..], Version::default());
        NewInode { ino, parent, generation, mode, uid, gid, rdev, time, target, xattrs, logged, version }
    }
}
