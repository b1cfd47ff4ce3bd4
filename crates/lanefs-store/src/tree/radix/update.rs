//! Changing a radix tree, and writing what changed. R1 to R4 are those of [`super`].

use super::{Node, Radix, index_of, key_of, slot_of};
use crate::error::{Result, StoreError};
use crate::tree::block_io::{BlockSink, BlockSource};
use lanefs_format::BlockRef;
use lanefs_format::map_node::{self, FANOUT, FANOUT_BITS, KEY_END, MAX_HEIGHT, PENDING, Slots};
use std::ops::Range;

enum Cleared {
    Nothing,
    Some,
    All,
}

impl Radix {
    fn load(
        &mut self,
        level: u8,
        index: u64,
        r: BlockRef,
        source: &(impl BlockSource + ?Sized),
    ) -> Result<()> {
        debug_assert_eq!(self.reference(level, index), Some(r), "R2: the reference is the parent's");
        if self.node(level, index).is_none() {
            let w = self.wanted(level, index, r);
            let block = source.read(r, w.what)?;
            let of = self.of;
            let slots = map_node::decode(&block, r.addr, of.kind(), of.disk_level(level), of.ino(), index)?;
            self.nodes.insert(key_of(level, index), Box::new(Node { slots, dirty: false }));
        }
        Ok(())
    }

    /// Brings the whole way to `key` down to `to` into memory and makes it dirty. With `create`,
    /// missing nodes are made; without, the answer is false if there is no such node.
    fn dirty_path(
        &mut self,
        key: u64,
        to: u8,
        create: bool,
        source: &(impl BlockSource + ?Sized),
    ) -> Result<bool> {
        if self.node(to, index_of(key, to)).is_some_and(|n| n.dirty) {
            self.check_way(key); // R1
            return Ok(true);
        }
        debug_assert!(
            key < self.end() && to < self.height,
            "key {key}, level {to}: the tree must grow first"
        );
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
                .or_insert_with(|| Box::new(Node { slots: Slots::empty(), dirty: false }));
            self.dirty += u64::from(!std::mem::replace(&mut n.dirty, true));
            if level > to && n.slots.get(slot_of(key, level)).is_none() {
                n.slots.set(slot_of(key, level), BlockRef { addr: PENDING, crc: 0 }); // R2
                self.pending += 1;
            }
        }
        debug_assert!(
            self.node(to, index_of(key, to)).is_some_and(|n| n.dirty),
            "the way ends at a dirty node"
        );
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
            self.pending += 1;
            if level > 0 {
                if self.node(level - 1, 0).is_some_and(|n| n.slots.used() == 0) {
                    // An empty root made by this very loop: raise it instead of stacking another on
                    // it.
                    self.take_out(key_of(level - 1, 0));
                    self.pending -= 1;
                } else {
                    slots.set(0, self.root);
                }
            }
            self.nodes.insert(key_of(level, 0), Box::new(Node { slots, dirty: true }));
            self.dirty += 1;
            self.root = BlockRef { addr: PENDING, crc: 0 };
            self.height += 1;
            debug_assert!(self.height <= MAX_HEIGHT, "R4: key {key} needs height {}", self.height);
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
        self.check_way(key);
        debug_assert!(
            (0..self.height).all(|l| self.node(l, index_of(key, l)).is_none_or(|n| n.slots.used() > 0)),
            "R3: an empty node is left on the way to key {key}"
        );
        Ok(old)
    }

    /// Takes out empty nodes (R3), from the leaf of `key` up.
    fn remove_empty(&mut self, key: u64) {
        debug_assert!(
            self.node(0, index_of(key, 0)).is_some_and(|n| n.dirty),
            "the leaf of key {key} was made dirty before it was emptied"
        );
        for level in 0..self.height {
            let at = key_of(level, index_of(key, level));
            if self.nodes.get(&at).is_some_and(|n| n.slots.used() > 0) {
                return;
            }
            self.take_out(at);
            let old = match self.nodes.get_mut(&key_of(level + 1, index_of(key, level + 1))) {
                Some(parent) if level + 1 < self.height => {
                    parent.slots.set(slot_of(key, level + 1), BlockRef::NONE)
                }
                _ => std::mem::take(&mut self.root),
            };
            self.free_node(old);
        }
        self.height = 0;
        debug_assert!(self.root.is_none() && self.nodes.is_empty(), "R4: nothing is left of an empty tree");
    }

    /// Takes a node out of memory.
    fn take_out(&mut self, at: u64) {
        let node = self.nodes.remove(&at);
        self.dirty -= u64::from(node.is_some_and(|n| n.dirty));
    }

    fn free_node(&mut self, r: BlockRef) {
        match r.addr {
            PENDING => self.pending = self.pending.saturating_sub(1), // R2: it is in memory alone, or was
            _ if r.is_none() => {}
            addr => self.freed.push(addr),
        }
    }

    /// Unmaps a range and hands over each address that was mapped. Returns how many there were.
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
            debug_assert!(keys.contains(&k), "key {k} is not in {keys:?}");
            n += 1;
            freed(k, r);
        });
        self.check_way(keys.start);
        self.check_way(keys.end - 1);
        debug_assert!(n <= keys.end - keys.start, "{n} keys were mapped in {keys:?}");
        if matches!(cleared?, Cleared::All) {
            self.take_out(key_of(top, 0));
            let old = std::mem::take(&mut self.root);
            self.free_node(old);
            self.height = 0;
            debug_assert!(self.nodes.is_empty(), "R4: nothing is left of an empty tree");
        }
        Ok(n)
    }

    /// Clears within one node, which is in memory. After an error the ways to all changed nodes are
    /// dirty (R1).
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
        debug_assert!(self.nodes.contains_key(&at), "node {index} at level {level} was read before");
        debug_assert!(
            keys.start < keys.end && keys.start < base + span * FANOUT as u64 && keys.end > base,
            "{keys:?} has nothing of node {index} at level {level}"
        );
        let first = (keys.start.max(base) - base) / span;
        let last = (keys.end - 1).min(base + (span - 1) + span * (FANOUT as u64 - 1)) - base;
        let mut changed = false;
        let mut failed = None;
        let (mut from, last) = (first as usize, (last / span) as usize);
        debug_assert!(from <= last && last < FANOUT, "slots {from} to {last}");
        while let Some((slot, r)) = self.nodes.get(&at).and_then(|n| {
            let slot = n.slots.next_used(from).filter(|&slot| slot <= last)?;
            Some((slot, n.slots.get(slot)))
        }) {
            from = slot + 1;
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
                        let child = index << FANOUT_BITS | slot as u64;
                        debug_assert!(
                            self.node(level - 1, child).is_some_and(|n| n.slots.used() == 0),
                            "R3: node {child} goes, and something is mapped below it"
                        );
                        self.take_out(key_of(level - 1, child));
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
            self.dirty += u64::from(changed && !n.dirty);
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

    /// Writes dirty leaves of index `*from` and above, `max` at most, and moves `*from` on; returns
    /// whether there were more. The nodes above stay dirty (R1): [`Radix::write_out`] comes after.
    pub fn write_leaves(&mut self, sink: &mut dyn BlockSink, from: &mut u64, max: usize) -> Result<bool> {
        debug_assert!(max > 0, "no leaf may be written at all");
        if self.height < 2 {
            return Ok(false); // The only leaf is the root, whose mark means that there is something to write.
        }
        let mut dirty: Vec<u64> = (self.nodes.iter())
            .filter(|(k, n)| n.dirty && **k >= *from && **k >> 56 == 0)
            .map(|(k, _)| *k)
            .collect();
        let more = dirty.len() > max;
        if more {
            dirty.select_nth_unstable(max);
            dirty.truncate(max);
        }
        dirty.sort_unstable(); // Neighbours in the tree are neighbours in the log.
        for index in dirty {
            debug_assert!(index >= *from, "leaf {index} comes behind leaf {from}");
            self.write_node(sink, 0, index)?;
            *from = index + 1;
            // R1: the nodes above wait for `write_out`.
            debug_assert!(self.is_dirty(), "what was written is known to no tree on disk yet");
        }
        Ok(more)
    }

    /// Writes one node, and notes its address in its parent.
    fn write_node(&mut self, sink: &mut dyn BlockSink, level: u8, index: u64) -> Result<()> {
        let of = self.of;
        let Some(n) = self.nodes.get(&key_of(level, index)) else { return Ok(()) };
        debug_assert!(n.dirty, "node {index} at level {level} would be written twice");
        let block = map_node::encode(of.kind(), of.disk_level(level), of.ino(), index, &n.slots);
        let new = sink.write(of.owner(level, index), block)?;
        debug_assert!(!new.is_none() && new.addr != PENDING, "the sink gives an address in the log");
        let old = match self.nodes.get_mut(&key_of(level + 1, index >> FANOUT_BITS)) {
            Some(parent) if level + 1 < self.height => parent.slots.set(index as usize % FANOUT, new),
            _ => std::mem::replace(&mut self.root, new),
        };
        self.free_node(old);
        if let Some(n) = self.nodes.get_mut(&key_of(level, index)) {
            self.dirty -= u64::from(std::mem::replace(&mut n.dirty, false));
        }
        Ok(())
    }

    /// Writes all dirty nodes, children before parents, frees the blocks they were in, and returns
    /// the new root.
    pub fn write_out(&mut self, sink: &mut dyn BlockSink) -> Result<(BlockRef, u8)> {
        self.lower();
        let mut dirty: Vec<(u8, u64)> = (self.nodes.iter())
            .filter(|(_, n)| n.dirty)
            .map(|(k, _)| ((k >> 56) as u8, k & (KEY_END - 1)))
            .collect();
        dirty.sort_unstable();
        for (level, index) in dirty {
            self.write_node(sink, level, index)?;
        }
        for a in self.freed.drain(..) {
            sink.free(a);
        }
        debug_assert!(!self.is_dirty() && self.root.addr != PENDING, "the root on disk is that of all");
        self.check_invariants();
        Ok((self.root, self.height))
    }

    /// Takes off dirty roots that only lead to slot 0.
    fn lower(&mut self) {
        while self.height > 1 {
            let at = key_of(self.height - 1, 0);
            match self.nodes.get(&at) {
                Some(n) if n.dirty && n.slots.used() == 1 && n.slots.next_used(0) == Some(0) => {
                    let child = n.slots.get(0);
                    self.take_out(at);
                    let old = std::mem::replace(&mut self.root, child);
                    self.free_node(old);
                    self.height -= 1;
                }
                _ => return,
            }
        }
    }
}
