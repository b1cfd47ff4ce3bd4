//! A copy-on-write radix tree from keys to blocks: the map of a file, and the upper part of the
//! inode table.
//!
//! Nodes lie in one flat table by (level, index), so a lookup whose leaf is in memory costs one
//! probe, and any clean node can be dropped at any time. A node that is not in memory is asked for
//! ([`Found::Missing`]) instead of being read here, so that callers read without holding their
//! lock.
//!
//! Changing a tree and writing it is in `update`.
//!
//! Invariants:
//!  R1  a dirty node's ancestors are in memory and dirty;
//!  R2  the reference of a node lies in its parent (the root's in `root`): what is on disk, or
//!      PENDING if no copy of it has been written yet; a PENDING node is in memory and dirty;
//!  R3  no node is empty: one that becomes so is taken out of its parent, and its block is freed;
//!  R4  height 0 is the empty tree; a tree of height h covers the keys below 256^h.

mod update;

use crate::error::Result;
use crate::tree::block_io::{BlockSource, Owner};
use lanefs_format::header::BlockKind;
use lanefs_format::map_node::{self, FANOUT, FANOUT_BITS, KEY_END, MAX_HEIGHT, PENDING, Slots};
use lanefs_format::{Block, BlockAddr, BlockRef, Ino};
use lanefs_sync::hash::WordMap;

/// An answer, or the node that must be read before there is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found<T> {
    /// The answer.
    Here(T),
    /// Read this node, give it to `install`, ask again.
    Missing(Wanted),
}

impl<T> Found<T> {
    /// Changes the answer, if there is one.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Found<U> {
        match self {
            Found::Here(t) => Found::Here(f(t)),
            Found::Missing(w) => Found::Missing(w),
        }
    }
}

/// A node that is not in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Its level in the tree.
    pub level: u8,
    /// Its index at that level.
    pub index: u64,
    /// Its block.
    pub r: BlockRef,
    /// Its name in messages.
    pub what: &'static str,
}

/// The structure that a radix tree belongs to, by which its nodes are marked on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tree {
    /// The map of an inode; leaves refer to data.
    Map(Ino),
    /// The inode table above its chunk nodes: level 0 here is level 1 on disk.
    Table,
    /// The usage table above its nodes: level 0 here is level 1 on disk.
    Usage,
}

impl Tree {
    fn kind(self) -> BlockKind {
        match self {
            Tree::Map(_) => BlockKind::Map,
            Tree::Table => BlockKind::Table,
            Tree::Usage => BlockKind::Usage,
        }
    }
    fn ino(self) -> Ino {
        match self {
            Tree::Map(ino) => ino,
            _ => Ino::NONE,
        }
    }
    fn disk_level(self, level: u8) -> u8 {
        level + u8::from(!matches!(self, Tree::Map(_)))
    }
    fn owner(self, level: u8, index: u64) -> Owner {
        let level = self.disk_level(level);
        match self {
            Tree::Map(ino) => Owner::Map { ino, level, index },
            Tree::Table => Owner::Table { level, index },
            Tree::Usage => Owner::Usage { level, index },
        }
    }
}

struct Node {
    slots: Slots,
    dirty: bool,
}

/// See the module's head.
pub struct Radix {
    of: Tree,
    height: u8,
    root: BlockRef,
    nodes: WordMap<Box<Node>>,
    /// The nodes that are PENDING (R2).
    pending: u64,
    /// The dirty nodes.
    dirty: u64,
    /// Node blocks that nothing points at any more; given to the sink at the next write-out.
    freed: Vec<BlockAddr>,
}

/// The end of a walk towards a key.
enum Walk<'a> {
    Leaf(&'a Slots),
    /// Nothing is mapped from the key up to here, exclusive.
    Gap(u64),
}

fn key_of(level: u8, index: u64) -> u64 {
    debug_assert!(level <= MAX_HEIGHT && index < KEY_END, "node {index} at level {level}");
    u64::from(level) << 56 | index
}
fn index_of(key: u64, level: u8) -> u64 {
    key.checked_shr(FANOUT_BITS * (u32::from(level) + 1)).unwrap_or(0)
}
fn slot_of(key: u64, level: u8) -> usize {
    debug_assert!(level < MAX_HEIGHT, "no node lies at level {level}");
    (key >> (FANOUT_BITS * u32::from(level))) as usize % FANOUT
}

impl Radix {
    /// Returns an empty tree.
    pub fn new(of: Tree) -> Radix {
        let (root, nodes) = (BlockRef::NONE, WordMap::default());
        Radix { of, height: 0, root, nodes, pending: 0, dirty: 0, freed: Vec::new() }
    }

    /// Returns a tree on disk. `None` if no tree has such a root.
    pub fn open(of: Tree, root: BlockRef, height: u8) -> Option<Radix> {
        let fits = height <= MAX_HEIGHT && root.is_none() == (height == 0) && root.addr != PENDING;
        fits.then(|| Radix { root, height, ..Radix::new(of) })
    }

    /// Returns root and height as last written.
    pub fn root(&self) -> (BlockRef, u8) {
        (self.root, self.height)
    }

    /// Returns the number of nodes that no block has been written for.
    pub fn pending_nodes(&self) -> u64 {
        self.pending
    }

    /// Returns the number of nodes that a write-out writes.
    pub fn dirty_nodes(&self) -> u64 {
        self.dirty
    }

    /// Returns whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.height == 0
    }

    /// Returns whether a write-out has anything to do.
    pub fn is_dirty(&self) -> bool {
        // R1: a dirty node makes the root dirty; an empty tree may have blocks to free.
        !self.freed.is_empty()
            || self.height > 0 && self.node(self.height - 1, 0).is_some_and(|root| root.dirty)
    }

    /// Returns the number of bytes of memory, at most, about, if `keys` keys are mapped.
    pub fn memory(&self, keys: u64) -> usize {
        let wide = self.nodes.len().min(keys as usize / Slots::FEW + usize::from(self.height));
        self.nodes.len() * (size_of::<Node>() + 48) + wide * Slots::WIDE + self.freed.capacity() * 8
    }

    fn node(&self, level: u8, index: u64) -> Option<&Node> {
        self.nodes.get(&key_of(level, index)).map(|n| &**n)
    }

    fn end(&self) -> u64 {
        debug_assert!(self.height <= MAX_HEIGHT, "R4: height {}", self.height);
        if self.height == 0 { 0 } else { 1 << (FANOUT_BITS * u32::from(self.height)) }
    }

    /// Goes down towards `key` from the lowest node in memory.
    fn walk(&self, key: u64) -> Found<Walk<'_>> {
        if key >= self.end() {
            return Found::Here(Walk::Gap(u64::MAX));
        }
        let mut level = 0;
        loop {
            if let Some(n) = self.node(level, index_of(key, level)) {
                return self.descend(key, level, n);
            }
            if level + 1 == self.height {
                return Found::Missing(self.wanted(level, 0, self.root));
            }
            level += 1;
        }
    }

    fn descend<'a>(&'a self, key: u64, level: u8, n: &'a Node) -> Found<Walk<'a>> {
        debug_assert!(key < self.end() && level < self.height, "key {key} at level {level}");
        if level == 0 {
            return Found::Here(Walk::Leaf(&n.slots));
        }
        let r = n.slots.get(slot_of(key, level));
        if r.is_none() {
            // As far as this node tells: who looks for what is mapped behind a file's end must not
            // go through all that is not, child by child.
            let bits = FANOUT_BITS * u32::from(level);
            let (below, all) = (slot_of(key, level), (1u64 << (bits + FANOUT_BITS)) - 1);
            let end = match n.slots.next_used(below) {
                Some(s) => key & !all | (s as u64) << bits,
                None => (key | all) + 1,
            };
            debug_assert!(end > key, "a gap of nothing at key {key}");
            return Found::Here(Walk::Gap(end));
        }
        // `n` is the lowest node in memory on the way, so the child is not.
        let child = index_of(key, level - 1);
        debug_assert!(self.node(level - 1, child).is_none(), "a node that is in memory would be read");
        Found::Missing(self.wanted(level - 1, child, r))
    }

    fn wanted(&self, level: u8, index: u64, r: BlockRef) -> Wanted {
        debug_assert!(level < self.height, "level {level} of a tree of height {}", self.height);
        debug_assert!(!r.is_none() && r.addr != PENDING, "R2: node {index} at level {level} is nowhere");
        Wanted { level, index, r, what: self.of.kind().name() }
    }

    /// Takes a node that was asked for. Ignored if it has come meanwhile or is not the current one
    /// any more.
    pub fn install(&mut self, w: &Wanted, block: &Block) -> Result<()> {
        if self.reference(w.level, w.index) != Some(w.r) || self.node(w.level, w.index).is_some() {
            return Ok(());
        }
        let of = self.of;
        let slots = map_node::decode(block, w.r.addr, of.kind(), of.disk_level(w.level), of.ino(), w.index)?;
        self.nodes.insert(key_of(w.level, w.index), Box::new(Node { slots, dirty: false }));
        self.check_node(w.level, w.index);
        Ok(())
    }

    /// Returns the reference held of a node by its parent, if the parent is in memory.
    fn reference(&self, level: u8, index: u64) -> Option<BlockRef> {
        if level + 1 == self.height {
            return (index == 0).then_some(self.root);
        }
        let parent = self.node(level + 1, index >> FANOUT_BITS)?;
        Some(parent.slots.get(index as usize % FANOUT))
    }

    /// Returns what `key` is mapped to; none for a hole.
    pub fn get(&self, key: u64) -> Found<BlockRef> {
        self.walk(key).map(|w| match w {
            Walk::Leaf(slots) => slots.get(slot_of(key, 0)),
            Walk::Gap(_) => BlockRef::NONE,
        })
    }

    /// Returns the first mapped key at or after `from`.
    pub fn next_used(&self, from: u64) -> Found<Option<u64>> {
        let mut key = from;
        while key < self.end() {
            match self.walk(key) {
                Found::Missing(w) => return Found::Missing(w),
                Found::Here(Walk::Gap(end)) => key = end,
                Found::Here(Walk::Leaf(slots)) => match slots.next_used(slot_of(key, 0)) {
                    Some(s) => {
                        let found = key & !(FANOUT as u64 - 1) | s as u64;
                        debug_assert!(found >= from && found < self.end(), "{found} from {from} on");
                        return Found::Here(Some(found));
                    }
                    None => key = (key | (FANOUT as u64 - 1)) + 1,
                },
            }
        }
        Found::Here(None)
    }

    /// Returns the first key at or after `from` that is not mapped.
    pub fn next_hole(&self, from: u64) -> Found<u64> {
        let mut key = from;
        loop {
            match self.walk(key) {
                Found::Missing(w) => return Found::Missing(w),
                Found::Here(Walk::Gap(_)) => return Found::Here(key),
                Found::Here(Walk::Leaf(slots)) => match slots.next_hole(slot_of(key, 0)) {
                    Some(s) => {
                        let hole = key & !(FANOUT as u64 - 1) | s as u64;
                        debug_assert!(hole >= from, "hole {hole} from {from} on");
                        return Found::Here(hole);
                    }
                    None => key = (key | (FANOUT as u64 - 1)) + 1,
                },
            }
        }
    }

    /// Returns the node that [`Radix::set`] of `key` would have to read, if any: lets callers read
    /// it without a lock.
    pub fn missing_for(&self, key: u64) -> Option<Wanted> {
        if key >= self.end() {
            // Growing puts a new root above; nothing is read.
            return None;
        }
        let mut r = self.root;
        for level in (0..self.height).rev() {
            let index = index_of(key, level);
            match self.node(level, index) {
                Some(n) if level > 0 => r = n.slots.get(slot_of(key, level)),
                Some(_) => return None,
                None => return Some(self.wanted(level, index, r)),
            }
            if r.is_none() {
                return None;
            }
        }
        None
    }

    /// Returns the reference of the node at a *disk* level, for "is this block still in use?"; none
    /// if there is none.
    pub fn node_ref(&self, disk_level: u8, index: u64) -> Found<BlockRef> {
        let none = Found::Here(BlockRef::NONE);
        let Some(level) = disk_level.checked_sub(self.of.disk_level(0)) else { return none };
        if level >= self.height || index >= KEY_END >> (FANOUT_BITS * (u32::from(level) + 1)) {
            return none;
        }
        let first_key = index << (FANOUT_BITS * (u32::from(level) + 1));
        if first_key >= self.end() {
            return none;
        }
        let mut r = self.root;
        for l in (level + 1..self.height).rev() {
            let i = index_of(first_key, l);
            match self.node(l, i) {
                Some(n) => r = n.slots.get(slot_of(first_key, l)),
                None => return Found::Missing(self.wanted(l, i, r)),
            }
            if r.is_none() {
                return none;
            }
        }
        Found::Here(if r.addr == PENDING { BlockRef::NONE } else { r })
    }

    /// Calls `f` with every mapped key, in order.
    pub fn for_each(
        &mut self,
        source: &(impl BlockSource + ?Sized),
        f: &mut dyn FnMut(u64, BlockRef) -> Result<()>,
    ) -> Result<()> {
        let mut key = 0;
        loop {
            match self.next_used(key) {
                Found::Here(None) => return Ok(()),
                Found::Missing(w) => {
                    let b = source.read(w.r, w.what)?;
                    self.install(&w, &b)?;
                }
                Found::Here(Some(k)) => {
                    let got = self.get(k);
                    debug_assert!(
                        matches!(got, Found::Here(r) if !r.is_none()),
                        "key {k} is mapped, and its leaf in memory"
                    );
                    if let Found::Here(r) = got {
                        f(k, r)?;
                    }
                    key = k + 1;
                }
            }
        }
    }

    /// Drops all clean nodes from memory.
    pub fn evict_clean(&mut self) {
        self.nodes.retain(|_, n| n.dirty);
        self.nodes.shrink_to_fit();
        self.check_invariants();
    }

    /// Checks, in debug builds, one node if it is in memory: its parent is, and refers to it; and
    /// R1 and R2.
    fn check_node(&self, level: u8, index: u64) {
        if !cfg!(debug_assertions) {
            return;
        }
        let Some(n) = self.node(level, index) else { return };
        debug_assert!(level < self.height, "R4: a node at level {level} of {}", self.height);
        let r = self.reference(level, index);
        debug_assert!(r.is_some(), "the parent of node {index} at level {level} is not in memory");
        let r = r.unwrap_or_default();
        debug_assert!(!r.is_none(), "nothing refers to node {index} at level {level}");
        debug_assert!(n.dirty || r.addr != PENDING, "R2: node {index} at level {level} was not written");
        let parent = self.node(level + 1, index >> FANOUT_BITS);
        debug_assert!(
            !n.dirty || parent.is_none_or(|p| p.dirty),
            "R1: the parent of node {index} at level {level} is clean"
        );
    }

    /// Checks, in debug builds, the nodes on the way to `key`.
    fn check_way(&self, key: u64) {
        if cfg!(debug_assertions) && key < self.end() {
            (0..self.height).for_each(|level| self.check_node(level, index_of(key, level)));
        }
    }

    /// Checks, in debug builds, all nodes in memory: for where all are gone through anyway.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        debug_assert_eq!(self.root.is_none(), self.height == 0, "R4: the root of height {}", self.height);
        debug_assert!(self.height > 0 || self.nodes.is_empty(), "an empty tree has nodes in memory");
        debug_assert!(self.root.addr != PENDING || self.is_dirty(), "R2: the root was never written");
        let pending = |n: &Node| (0..FANOUT).filter(|s| n.slots.get(*s).addr == PENDING).count();
        let above: usize = self.nodes.iter().filter(|n| *n.0 >> 56 > 0).map(|n| pending(n.1)).sum();
        let all = above as u64 + u64::from(self.root.addr == PENDING);
        debug_assert_eq!(self.pending, all, "R2: nodes without a block, as counted and as there are");
        let dirty = self.nodes.values().filter(|n| n.dirty).count() as u64;
        debug_assert_eq!(self.dirty, dirty, "dirty nodes, as counted and as there are");
        for &key in self.nodes.keys() {
            let (level, index) = ((key >> 56) as u8, key & (KEY_END - 1));
            self.check_node(level, index);
            let pending = |n: &Node, slot| n.slots.get(slot).addr == PENDING;
            let child = |slot| self.node(level - 1, index << FANOUT_BITS | slot as u64);
            debug_assert!(
                level == 0
                    || self.node(level, index).is_none_or(|n| {
                        (0..FANOUT).all(|s| !pending(n, s) || child(s).is_some_and(|c| c.dirty))
                    }),
                "R2: a child of node {index} at level {level} was never written, and is lost"
            );
        }
    }
}

/// Asks `ask` until it has an answer, reading and installing what it misses.
pub fn resolve<S, T>(
    state: &mut S,
    source: &(impl BlockSource + ?Sized),
    mut ask: impl FnMut(&S) -> Found<T>,
    mut install: impl FnMut(&mut S, &Wanted, &Block) -> Result<()>,
) -> Result<T> {
    loop {
        match ask(state) {
            Found::Here(t) => return Ok(t),
            Found::Missing(w) => {
                let block = source.read(w.r, w.what)?;
                install(state, &w, &block)?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanefs_format::BlockAddr;

    /// A tree whose nodes are all in memory reads nothing.
    struct Nothing;
    impl BlockSource for Nothing {
        fn read(&self, r: BlockRef, what: &'static str) -> Result<Box<Block>> {
            unreachable!("{what} {} is read", r.addr)
        }
    }

    /// Cutting the end off a file again and again went through all that its map had held: one step
    /// for each node that is not there any more.
    #[test]
    fn a_gap_is_passed_over_at_once() {
        let mut t = Radix::new(Tree::Map(Ino(20)));
        let some = BlockRef { addr: BlockAddr(7), crc: 1 };
        let far = (5 << 16) + (9 << 8) + 3;
        for key in [0, far, 70 << 16] {
            t.set(key, some, &Nothing).unwrap();
        }
        let gap = |key| match t.walk(key) {
            Found::Here(Walk::Gap(end)) => end,
            _ => panic!("key {key} is in no gap"),
        };
        assert_eq!((gap(256), gap(4 << 16)), (1 << 16, 5 << 16));
        assert_eq!((gap(5 << 16), gap(far + 256)), (far & !255, 6 << 16));
        assert_eq!((gap((70 << 16) + 256), gap(71 << 16)), (71 << 16, 1 << 24));
        assert_eq!((gap(6 << 16), gap(1 << 24)), (70 << 16, u64::MAX));
        for (from, found) in [(0, Some(0)), (1, Some(far)), (far + 1, Some(70 << 16)), ((70 << 16) + 1, None)]
        {
            assert!(matches!(t.next_used(from), Found::Here(f) if f == found), "from {from} on");
        }
    }
}
