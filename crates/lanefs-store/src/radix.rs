//! A copy-on-write radix tree from keys to blocks: the map of a file, and the upper part of the inode table.
//!
//! Nodes lie in one flat table by (level, index), so a lookup whose leaf is in memory costs one probe, and any
//! clean node can be dropped at any time. A node that is not in memory is asked for ([`Found::Missing`]) instead
//! of being read here, so that callers read without holding their lock.
//!
//! Invariants:
//!  R1  a dirty node's ancestors are in memory and dirty;
//!  R2  the reference of a node lies in its parent (the root's in `root`): what is on disk, or PENDING if no copy
//!      of it has been written yet; a PENDING node is in memory and dirty;
//!  R3  no node is empty: one that becomes so is taken out of its parent, and its block is freed;
//!  R4  height 0 is the empty tree; a tree of height h covers the keys below 256^h.

use crate::block_io::{BlockSink, BlockSource, Owner};
use crate::error::{Result, StoreError};
use crate::format::header::BlockKind;
use crate::format::map_node::{self, FANOUT, FANOUT_BITS, PENDING, Slots};
use crate::types::{Block, BlockAddr, BlockRef, Ino};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

/// The most levels a tree can have: keys below 2^56.
pub const MAX_HEIGHT: u8 = 7;
/// Keys at and above this cannot be mapped.
pub const KEY_END: u64 = 1 << (FANOUT_BITS * MAX_HEIGHT as u32);

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
    /// Where it is.
    pub r: BlockRef,
    /// What to call it in messages.
    pub what: &'static str,
}

/// What a radix tree belongs to: says how its nodes are marked on disk.
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

/// Spreads a node's key with one multiplication.
#[derive(Default, Clone)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u64(u64::from(b));
        }
    }
    fn write_u64(&mut self, v: u64) {
        let x = (self.0 ^ v).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = x ^ (x >> 32);
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
    nodes: HashMap<u64, Box<Node>, BuildHasherDefault<KeyHasher>>,
    /// Node blocks that nothing points at any more; given to the sink at the next write-out.
    freed: Vec<BlockAddr>,
}

/// Where a walk towards a key ended.
enum Walk<'a> {
    Leaf(&'a Slots),
    /// Nothing is mapped from the key up to here, exclusive.
    Gap(u64),
}

enum Cleared {
    Nothing,
    Some,
    All,
}

fn key_of(level: u8, index: u64) -> u64 {
    u64::from(level) << 56 | index
}
fn index_of(key: u64, level: u8) -> u64 {
    key.checked_shr(FANOUT_BITS * (u32::from(level) + 1)).unwrap_or(0)
}
fn slot_of(key: u64, level: u8) -> usize {
    (key >> (FANOUT_BITS * u32::from(level))) as usize % FANOUT
}

impl Radix {
    /// An empty tree.
    pub fn new(of: Tree) -> Radix {
        Radix { of, height: 0, root: BlockRef::NONE, nodes: HashMap::default(), freed: Vec::new() }
    }

    /// A tree on disk. `None` if no tree has such a root.
    pub fn open(of: Tree, root: BlockRef, height: u8) -> Option<Radix> {
        let fits = height <= MAX_HEIGHT && root.is_none() == (height == 0) && root.addr != PENDING;
        fits.then(|| Radix { root, height, ..Radix::new(of) })
    }

    /// Root and height as last written.
    pub fn root(&self) -> (BlockRef, u8) {
        (self.root, self.height)
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.height == 0
    }

    /// Whether a write-out has anything to do.
    pub fn is_dirty(&self) -> bool {
        // R1: a dirty node makes the root dirty; an empty tree may have blocks to free.
        !self.freed.is_empty()
            || self.height > 0 && self.node(self.height - 1, 0).is_some_and(|root| root.dirty)
    }

    /// Bytes of memory, about.
    pub fn memory(&self) -> usize {
        self.nodes.len() * (size_of::<Node>() + 32) + self.freed.capacity() * 8
    }

    fn node(&self, level: u8, index: u64) -> Option<&Node> {
        self.nodes.get(&key_of(level, index)).map(|n| &**n)
    }

    fn end(&self) -> u64 {
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
        if level == 0 {
            return Found::Here(Walk::Leaf(&n.slots));
        }
        let r = n.slots.get(slot_of(key, level));
        if r.is_none() {
            let span = 1u64 << (FANOUT_BITS * u32::from(level));
            return Found::Here(Walk::Gap((key | (span - 1)) + 1));
        }
        // `n` is the lowest node in memory on the way, so the child is not.
        Found::Missing(self.wanted(level - 1, index_of(key, level - 1), r))
    }

    fn wanted(&self, level: u8, index: u64, r: BlockRef) -> Wanted {
        Wanted { level, index, r, what: self.of.kind().name() }
    }

    /// Takes a node that was asked for. Ignored if it has come meanwhile or is not the current one any more.
    pub fn install(&mut self, w: &Wanted, block: &Block) -> Result<()> {
        if self.reference(w.level, w.index) != Some(w.r) || self.node(w.level, w.index).is_some() {
            return Ok(());
        }
        let of = self.of;
        let slots = map_node::decode(block, w.r.addr, of.kind(), of.disk_level(w.level), of.ino(), w.index)?;
        self.nodes.insert(key_of(w.level, w.index), Box::new(Node { slots, dirty: false }));
        Ok(())
    }

    /// The reference held of a node by its parent, if the parent is in memory.
    fn reference(&self, level: u8, index: u64) -> Option<BlockRef> {
        if level + 1 == self.height {
            return (index == 0).then_some(self.root);
        }
        let parent = self.node(level + 1, index >> FANOUT_BITS)?;
        Some(parent.slots.get(index as usize % FANOUT))
    }

    /// What `key` is mapped to; none for a hole.
    pub fn get(&self, key: u64) -> Found<BlockRef> {
        self.walk(key).map(|w| match w {
            Walk::Leaf(slots) => slots.get(slot_of(key, 0)),
            Walk::Gap(_) => BlockRef::NONE,
        })
    }

    /// The first mapped key at or after `from`.
    pub fn next_used(&self, from: u64) -> Found<Option<u64>> {
        let mut key = from;
        while key < self.end() {
            match self.walk(key) {
                Found::Missing(w) => return Found::Missing(w),
                Found::Here(Walk::Gap(end)) => key = end,
                Found::Here(Walk::Leaf(slots)) => match slots.next_used(slot_of(key, 0)) {
                    Some(s) => return Found::Here(Some(key & !(FANOUT as u64 - 1) | s as u64)),
                    None => key = (key | (FANOUT as u64 - 1)) + 1,
                },
            }
        }
        Found::Here(None)
    }

    /// The first key at or after `from` that is not mapped.
    pub fn next_hole(&self, from: u64) -> Found<u64> {
        let mut key = from;
        loop {
            match self.walk(key) {
                Found::Missing(w) => return Found::Missing(w),
                Found::Here(Walk::Gap(_)) => return Found::Here(key),
                Found::Here(Walk::Leaf(slots)) => match slots.next_hole(slot_of(key, 0)) {
                    Some(s) => return Found::Here(key & !(FANOUT as u64 - 1) | s as u64),
                    None => key = (key | (FANOUT as u64 - 1)) + 1,
                },
            }
        }
    }

    /// The node that [`Radix::set`] of `key` would have to read, if any: lets callers read it without a lock.
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

    fn load(
        &mut self,
        level: u8,
        index: u64,
        r: BlockRef,
        source: &(impl BlockSource + ?Sized),
    ) -> Result<()> {
        if self.node(level, index).is_none() {
            let w = self.wanted(level, index, r);
            let block = source.read(r, w.what)?;
            let of = self.of;
            let slots = map_node::decode(&block, r.addr, of.kind(), of.disk_level(level), of.ino(), index)?;
            self.nodes.insert(key_of(level, index), Box::new(Node { slots, dirty: false }));
        }
        Ok(())
    }

    /// Brings the whole way to `key` down to `to` into memory and makes it dirty. With `create`, missing nodes
    /// are made; without, the answer is false if there is no such node.
    fn dirty_path(
        &mut self,
        key: u64,
        to: u8,
        create: bool,
        source: &(impl BlockSource + ?Sized),
    ) -> Result<bool> {
        if self.node(to, index_of(key, to)).is_some_and(|n| n.dirty) {
            return Ok(true); // R1
        }
        // First read, then change, so that an error leaves R1 in force.
        let mut r = self.root;
        for level in (to..self.height).rev() {
            if r.is_none() {
                break;
            }
            let index = index_of(key, level);
            self.load(level, index, r, source)?;
            if level > to {
                r = self.node(level, index).map_or(BlockRef::NONE, |n| n.slots.get(slot_of(key, level)));
            }
        }
        if r.is_none() && !create {
            return Ok(false);
        }
        for level in (to..self.height).rev() {
            let n = self
                .nodes
                .entry(key_of(level, index_of(key, level)))
                .or_insert_with(|| Box::new(Node { slots: Slots::empty(), dirty: true }));
            n.dirty = true;
            if level > to && n.slots.get(slot_of(key, level)).is_none() {
                n.slots.set(slot_of(key, level), BlockRef { addr: PENDING, crc: 0 }); // R2
            }
        }
        Ok(true)
    }

    /// Puts new roots on top until `key` is covered.
    fn grow(&mut self, key: u64) -> Result<()> {
        if key >= KEY_END {
            return Err(StoreError::Invalid(format!("page {key} is beyond what a map can hold")));
        }
        while key >= self.end() {
            let level = self.height;
            let mut slots = Slots::empty();
            if level > 0 {
                if self.node(level - 1, 0).is_some_and(|n| n.slots.used() == 0) {
                    // An empty root made by this very loop: raise it instead of stacking another on it.
                    self.nodes.remove(&key_of(level - 1, 0));
                } else {
                    slots.set(0, self.root);
                }
            }
            self.nodes.insert(key_of(level, 0), Box::new(Node { slots, dirty: true }));
            self.root = BlockRef { addr: PENDING, crc: 0 };
            self.height += 1;
        }
        Ok(())
    }

    /// Maps `key` to `r` (none: to nothing) and returns what it was mapped to.
    pub fn set(&mut self, key: u64, r: BlockRef, source: &(impl BlockSource + ?Sized)) -> Result<BlockRef> {
        if r.is_none() {
            if key >= self.end() || !self.dirty_path(key, 0, false, source)? {
                return Ok(BlockRef::NONE);
            }
        } else {
            self.grow(key)?;
            self.dirty_path(key, 0, true, source)?;
        }
        let Some(leaf) = self.nodes.get_mut(&key_of(0, index_of(key, 0))) else {
            return Ok(BlockRef::NONE);
        };
        let old = leaf.slots.set(slot_of(key, 0), r);
        if leaf.slots.used() == 0 {
            self.remove_empty(key);
        }
        Ok(old)
    }

    /// R3, from the leaf of `key` up.
    fn remove_empty(&mut self, key: u64) {
        for level in 0..self.height {
            let at = key_of(level, index_of(key, level));
            if self.nodes.get(&at).is_some_and(|n| n.slots.used() > 0) {
                return;
            }
            self.nodes.remove(&at);
            let old = match self.nodes.get_mut(&key_of(level + 1, index_of(key, level + 1))) {
                Some(parent) if level + 1 < self.height => {
                    parent.slots.set(slot_of(key, level + 1), BlockRef::NONE)
                }
                _ => std::mem::take(&mut self.root),
            };
            self.free_node(old);
        }
        self.height = 0;
    }

    fn free_node(&mut self, r: BlockRef) {
        if !r.is_none() && r.addr != PENDING {
            self.freed.push(r.addr);
        }
    }

    /// Unmaps a range and tells each address that was mapped. Returns how many there were.
    pub fn clear_range(
        &mut self,
        keys: Range<u64>,
        source: &(impl BlockSource + ?Sized),
        freed: &mut dyn FnMut(u64, BlockRef),
    ) -> Result<u64> {
        let keys = keys.start..keys.end.min(self.end());
        if keys.is_empty() {
            return Ok(0);
        }
        let mut n = 0;
        let top = self.height - 1;
        self.load(top, 0, self.root, source)?;
        let cleared = self.clear_in(top, 0, &keys, source, &mut |k, r| {
            n += 1;
            freed(k, r);
        })?;
        if matches!(cleared, Cleared::All) {
            self.nodes.remove(&key_of(top, 0));
            let old = std::mem::take(&mut self.root);
            self.free_node(old);
            self.height = 0;
        }
        Ok(n)
    }

    /// Clears within one node, which is in memory. After an error the ways to all changed nodes are dirty (R1).
    fn clear_in(
        &mut self,
        level: u8,
        index: u64,
        keys: &Range<u64>,
        source: &(impl BlockSource + ?Sized),
        freed: &mut dyn FnMut(u64, BlockRef),
    ) -> Result<Cleared> {
        let at = key_of(level, index);
        let span = 1u64 << (FANOUT_BITS * u32::from(level));
        let base = index << (FANOUT_BITS * (u32::from(level) + 1));
        let first = (keys.start.max(base) - base) / span;
        let last = (keys.end - 1).min(base + (span - 1) + span * (FANOUT as u64 - 1)) - base;
        let mut changed = false;
        let mut failed = None;
        for slot in first as usize..=(last / span) as usize {
            let r = self.nodes.get(&at).map_or(BlockRef::NONE, |n| n.slots.get(slot));
            if r.is_none() {
                continue;
            }
            let mut gone = level == 0;
            if level > 0 {
                let child = index << FANOUT_BITS | slot as u64;
                let sub = self
                    .load(level - 1, child, r, source)
                    .and_then(|()| self.clear_in(level - 1, child, keys, source, freed));
                match sub {
                    Ok(Cleared::Nothing) => {}
                    Ok(Cleared::Some) => changed = true,
                    Ok(Cleared::All) => {
                        self.nodes.remove(&key_of(level - 1, child));
                        gone = true;
                    }
                    Err(e) => {
                        // The child may have changed before it failed.
                        changed |= self.node(level - 1, child).is_some_and(|n| n.dirty);
                        failed = Some(e);
                    }
                }
            }
            if gone {
                changed = true;
                if let Some(n) = self.nodes.get_mut(&at) {
                    n.slots.set(slot, BlockRef::NONE);
                }
                if level == 0 { freed(base + slot as u64, r) } else { self.free_node(r) }
            }
            if failed.is_some() {
                break;
            }
        }
        let mut all = false;
        if let Some(n) = self.nodes.get_mut(&at) {
            n.dirty |= changed;
            all = n.slots.used() == 0;
        }
        match failed {
            Some(e) => Err(e),
            None if all => Ok(Cleared::All),
            None if changed => Ok(Cleared::Some),
            None => Ok(Cleared::Nothing),
        }
    }

    /// The reference of the node at a *disk* level, for "is this block still in use?"; none if there is none.
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

    /// Makes the next write-out write a node anew, if it exists (the cleaner wants its block).
    pub fn rewrite_node(
        &mut self,
        disk_level: u8,
        index: u64,
        source: &(impl BlockSource + ?Sized),
    ) -> Result<bool> {
        let Some(level) = disk_level.checked_sub(self.of.disk_level(0)) else { return Ok(false) };
        if level >= self.height || index >= KEY_END >> (FANOUT_BITS * (u32::from(level) + 1)) {
            return Ok(false);
        }
        let key = index << (FANOUT_BITS * (u32::from(level) + 1));
        Ok(key < self.end() && self.dirty_path(key, level, false, source)?)
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
                    if let Found::Here(r) = self.get(k) {
                        f(k, r)?;
                    }
                    key = k + 1;
                }
            }
        }
    }

    /// Writes all dirty nodes, children before parents, frees the blocks they were in, and returns the new root.
    pub fn write_out(&mut self, sink: &mut dyn BlockSink) -> Result<(BlockRef, u8)> {
        self.lower();
        let mut dirty: Vec<(u8, u64)> = (self.nodes.iter())
            .filter(|(_, n)| n.dirty)
            .map(|(k, _)| ((k >> 56) as u8, k & (KEY_END - 1)))
            .collect();
        dirty.sort_unstable();
        for (level, index) in dirty {
            let of = self.of;
            let Some(n) = self.nodes.get(&key_of(level, index)) else { continue };
            let block = map_node::encode(of.kind(), of.disk_level(level), of.ino(), index, &n.slots);
            let new = sink.write(of.owner(level, index), block)?;
            let old = match self.nodes.get_mut(&key_of(level + 1, index >> FANOUT_BITS)) {
                Some(parent) if level + 1 < self.height => parent.slots.set(index as usize % FANOUT, new),
                _ => std::mem::replace(&mut self.root, new),
            };
            self.free_node(old);
            if let Some(n) = self.nodes.get_mut(&key_of(level, index)) {
                n.dirty = false;
            }
        }
        for a in self.freed.drain(..) {
            sink.free(a);
        }
        Ok((self.root, self.height))
    }

    /// Takes off dirty roots that only lead to slot 0.
    fn lower(&mut self) {
        while self.height > 1 {
            let at = key_of(self.height - 1, 0);
            match self.nodes.get(&at) {
                Some(n) if n.dirty && n.slots.used() == 1 && n.slots.next_used(0) == Some(0) => {
                    let child = n.slots.get(0);
                    self.nodes.remove(&at);
                    let old = std::mem::replace(&mut self.root, child);
                    self.free_node(old);
                    self.height -= 1;
                }
                _ => return,
            }
        }
    }

    /// Drops all clean nodes from memory.
    pub fn evict_clean(&mut self) {
        self.nodes.retain(|_, n| n.dirty);
        self.nodes.shrink_to_fit();
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
