//! An inode's page -> block map: a short sorted list inside the inode block, or a radix tree
//! ([`crate::tree::radix`]).
//!
//! A file that was written front to back needs 20 bytes per page while it fits the inode block;
//! beyond [`INLINE_PAGES`] pages, or when the inode block has no space, the entries move to a tree,
//! and back when few are left. Both forms cost only what is mapped.

use crate::error::{Result, StoreError};
use crate::tree::block_io::{BlockSink, BlockSource};
use crate::tree::radix::{Found, Radix, Tree, Wanted};
use lanefs_format::map_node::KEY_END;
use lanefs_format::{Block, BlockAddr, BlockRef, Ino};
use std::collections::BTreeMap;
use std::ops::Range;

/// The most pages the inline form holds.
pub const INLINE_PAGES: usize = 100;
/// A tree with this many pages or fewer goes back to the inline form when it is written.
const INLINE_AGAIN: u64 = 32;
// Else one page more or less would change the form each time.
const _: () = assert!(INLINE_AGAIN < INLINE_PAGES as u64);

enum Form {
    Inline(Vec<(u64, BlockRef)>),
    Tree(Radix),
}

/// An inode's map.
pub struct Map {
    ino: Ino,
    pages: u64,
    form: Form,
}

/// The form in which a map is stored in its inode block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapShape<'a> {
    /// All entries, by page.
    Inline(&'a [(u64, BlockRef)]),
    /// The root of a tree, its height and the pages mapped.
    Tree(BlockRef, u8, u64),
}

impl Map {
    /// Returns a map with nothing in it.
    pub fn new(ino: Ino) -> Map {
        Map { ino, pages: 0, form: Form::Inline(Vec::new()) }
    }

    /// Returns the map of the entries in an inode block, which ascend.
    pub fn from_inline(ino: Ino, entries: Vec<(u64, BlockRef)>) -> Map {
        Map { ino, pages: entries.len() as u64, form: Form::Inline(entries) }
    }

    /// Returns the map below the root in an inode block; `None` if no tree has such a root.
    pub fn from_root(ino: Ino, root: BlockRef, height: u8, pages: u64) -> Option<Map> {
        let tree = Radix::open(Tree::Map(ino), root, height)?;
        (!tree.is_empty()).then_some(Map { ino, pages, form: Form::Tree(tree) })
    }

    /// Returns the number of pages that are mapped.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns what the inode block has to hold. Of a tree this is what was last written.
    pub fn shape(&self) -> MapShape<'_> {
        match &self.form {
            Form::Inline(v) => MapShape::Inline(v),
            Form::Tree(t) => MapShape::Tree(t.root().0, t.root().1, self.pages),
        }
    }

    /// Returns the number of nodes that no block has been written for. (Entries in the inode may
    /// need some when that is written.)
    pub fn pending_nodes(&self) -> u64 {
        match &self.form {
            Form::Inline(_) => 0,
            Form::Tree(t) => t.pending_nodes(),
        }
    }

    /// Returns the number of nodes that a write-out writes. (Entries in the inode may need some
    /// more when that is written.)
    pub fn dirty_nodes(&self) -> u64 {
        match &self.form {
            Form::Inline(_) => 0,
            Form::Tree(t) => t.dirty_nodes(),
        }
    }

    /// Returns the number of bytes of memory, about.
    pub fn memory(&self) -> usize {
        match &self.form {
            Form::Inline(v) => v.capacity() * size_of::<(u64, BlockRef)>(),
            Form::Tree(t) => t.memory(self.pages),
        }
    }

    /// Returns what `page` is mapped to; none for a hole.
    pub fn get(&self, page: u64) -> Found<BlockRef> {
        match &self.form {
            Form::Inline(v) => Found::Here(match v.binary_search_by_key(&page, |e| e.0) {
                Ok(i) => v[i].1,
                Err(_) => BlockRef::NONE,
            }),
            Form::Tree(t) => t.get(page),
        }
    }

    /// Returns the first mapped page at or after `page`.
    pub fn next_data(&self, page: u64) -> Found<Option<u64>> {
        match &self.form {
            Form::Inline(v) => Found::Here(v.get(v.partition_point(|e| e.0 < page)).map(|e| e.0)),
            Form::Tree(t) => t.next_used(page),
        }
    }

    /// Returns the first page at or after `page` that is not mapped.
    pub fn next_hole(&self, page: u64) -> Found<u64> {
        match &self.form {
            Form::Inline(v) => {
                let mut hole = page;
                for e in &v[v.partition_point(|e| e.0 < page)..] {
                    if e.0 != hole {
                        break;
                    }
                    hole += 1;
                }
                Found::Here(hole)
            }
            Form::Tree(t) => t.next_hole(page),
        }
    }

    /// Takes a node that was asked for.
    pub fn install(&mut self, w: &Wanted, block: &Block) -> Result<()> {
        match &mut self.form {
            Form::Inline(_) => Ok(()), // the tree is gone meanwhile
            Form::Tree(t) => t.install(w, block),
        }
    }

    /// Returns the node that mapping `page` would have to read, if any.
    pub fn missing_for(&self, page: u64) -> Option<Wanted> {
        match &self.form {
            Form::Inline(_) => None,
            Form::Tree(t) => t.missing_for(page),
        }
    }

    /// Maps `page` (none: unmaps it) and returns what was there.
    pub fn set(&mut self, page: u64, r: BlockRef, source: &(impl BlockSource + ?Sized)) -> Result<BlockRef> {
        if page >= KEY_END {
            return Err(StoreError::Invalid(format!("page {page} is beyond what a map can hold")));
        }
        let old = match &mut self.form {
            Form::Tree(t) => t.set(page, r, source)?,
            Form::Inline(v) => match v.binary_search_by_key(&page, |e| e.0) {
                Ok(i) if r.is_none() => v.remove(i).1,
                Ok(i) => std::mem::replace(&mut v[i].1, r),
                Err(_) if r.is_none() => BlockRef::NONE,
                Err(_) if v.len() >= INLINE_PAGES => {
                    self.into_tree(source)?;
                    return self.set(page, r, source);
                }
                Err(i) => {
                    v.insert(i, (page, r));
                    BlockRef::NONE
                }
            },
        };
        self.pages += u64::from(!r.is_none());
        self.pages = self.pages.saturating_sub(u64::from(!old.is_none()));
        self.check_invariants();
        debug_assert!(
            matches!(self.get(page), Found::Here(now) if now.addr == r.addr),
            "page {page} is mapped as it was set"
        );
        Ok(old)
    }

    /// Checks, in debug builds, the inline form: its entries ascend, each has a block, and there
    /// are as many as are counted. (What a tree on disk counts is only believed as far as it
    /// agrees.)
    fn check_invariants(&self) {
        let Form::Inline(v) = &self.form else { return };
        debug_assert_eq!(v.len() as u64, self.pages, "inline entries of inode {}", self.ino);
        debug_assert!(v.is_sorted_by(|a, b| a.0 < b.0), "entries of inode {} out of order", self.ino);
        debug_assert!(
            v.iter().all(|(page, r)| *page < KEY_END && !r.is_none()),
            "inode {} maps a page that cannot be, or to nothing",
            self.ino
        );
    }

    /// Unmaps a range; `freed` gets every block that was mapped. Returns how many there were.
    pub fn unmap(
        &mut self,
        pages: Range<u64>,
        source: &(impl BlockSource + ?Sized),
        freed: &mut dyn FnMut(u64, BlockRef),
    ) -> Result<u64> {
        let mut n = 0;
        let r = match &mut self.form {
            Form::Inline(v) => {
                let from = v.partition_point(|e| e.0 < pages.start);
                let to = v.partition_point(|e| e.0 < pages.end).max(from);
                for (page, r) in v.drain(from..to) {
                    n += 1;
                    freed(page, r);
                }
                Ok(n)
            }
            Form::Tree(t) => t.clear_range(pages, source, &mut |page, r| {
                n += 1;
                freed(page, r);
            }),
        };
        // What was unmapped before an error stays unmapped, and is counted.
        self.pages = self.pages.saturating_sub(n);
        self.check_invariants();
        debug_assert!(
            r.as_ref().map_or(true, |all| *all == n),
            "{r:?} pages were unmapped, {n} were handed over"
        );
        r
    }

    /// Calls `f` with every mapped page, in order.
    pub fn for_each(
        &mut self,
        source: &(impl BlockSource + ?Sized),
        f: &mut dyn FnMut(u64, BlockRef) -> Result<()>,
    ) -> Result<()> {
        match &mut self.form {
            Form::Inline(v) => v.iter().try_for_each(|&(page, r)| f(page, r)),
            Form::Tree(t) => t.for_each(source, f),
        }
    }

    /// Turns the inline form into a tree: the inode block has no space for it.
    pub fn into_tree(&mut self, source: &(impl BlockSource + ?Sized)) -> Result<()> {
        if let Form::Inline(v) = &mut self.form
            && !v.is_empty()
        {
            let mut tree = Radix::new(Tree::Map(self.ino));
            for &(page, r) in v.iter() {
                let old = tree.set(page, r, source)?;
                debug_assert!(old.is_none(), "page {page} of inode {} was mapped twice", self.ino);
            }
            debug_assert!(tree.is_dirty(), "a tree made of entries is not on disk yet");
            self.form = Form::Tree(tree);
        }
        Ok(())
    }

    /// Writes dirty nodes, frees the old ones; `most` is how many entries the inode block can hold.
    /// Afterwards [`Map::shape`] is what the inode block has to hold.
    pub fn write_out(&mut self, sink: &mut dyn BlockSink, most: usize) -> Result<()> {
        if matches!(&self.form, Form::Inline(v) if v.len() > most) {
            self.into_tree(&*sink)?;
        }
        if let Form::Tree(t) = &mut self.form {
            if self.pages <= INLINE_AGAIN.min(most as u64) {
                let mut entries = Vec::new();
                t.for_each(&*sink, &mut |page, r| {
                    entries.push((page, r));
                    Ok(())
                })?;
                // The count in the inode block is only believed as far as the entries agree.
                self.pages = entries.len() as u64;
                if entries.len() <= most.min(INLINE_PAGES) {
                    t.clear_range(0..KEY_END, &*sink, &mut |_, _| ())?;
                    t.write_out(sink)?;
                    debug_assert!(t.is_empty(), "pages are left in a tree that is given up");
                    self.form = Form::Inline(entries);
                    self.check_invariants();
                    return Ok(());
                }
            }
            t.write_out(sink)?;
        }
        debug_assert!(!self.is_dirty(), "the map of inode {} was written", self.ino);
        debug_assert!(
            !matches!(&self.form, Form::Inline(v) if v.len() > most),
            "the entries of inode {} do not fit its block",
            self.ino
        );
        Ok(())
    }

    /// Writes some dirty leaves of the tree form ahead of [`Map::write_out`]; see
    /// [`Radix::write_leaves`].
    pub fn write_leaves(&mut self, sink: &mut dyn BlockSink, from: &mut u64, max: usize) -> Result<bool> {
        match &mut self.form {
            Form::Tree(t) if self.pages > max as u64 => t.write_leaves(sink, from, max),
            _ => Ok(false),
        }
    }

    /// Frees every block of the map, data and nodes, and leaves it empty.
    pub fn destroy(&mut self, sink: &mut dyn BlockSink) -> Result<u64> {
        /// Pages unmapped at a time, so that the list of their blocks stays small.
        const STEP: u64 = 1 << 20;
        let (mut n, mut page) = (0, 0);
        loop {
            match self.next_data(page) {
                Found::Here(None) => break,
                Found::Here(Some(p)) => {
                    let mut data: Vec<BlockAddr> = Vec::new();
                    page = p.saturating_add(STEP);
                    let r = self.unmap(p..page, &*sink, &mut |_, r| data.push(r.addr));
                    debug_assert!(data.len() as u64 <= STEP, "{} blocks of {STEP} pages", data.len());
                    debug_assert!(!data.is_empty() || r.is_err(), "page {p} was mapped");
                    for a in data {
                        sink.free(a);
                    }
                    n += r?;
                }
                Found::Missing(w) => {
                    let block = sink.read(w.r, w.what)?;
                    self.install(&w, &block)?;
                }
            }
        }
        if let Form::Tree(t) = &mut self.form {
            t.write_out(sink)?;
        }
        self.pages = 0;
        self.form = Form::Inline(Vec::new());
        Ok(n)
    }

    /// Returns whether a write-out has nodes to write or free.
    pub fn is_dirty(&self) -> bool {
        match &self.form {
            Form::Inline(_) => false,
            Form::Tree(t) => t.is_dirty(),
        }
    }

    /// Returns where a node of the map is on disk; none if it is not.
    pub fn node_ref(&self, level: u8, index: u64) -> Found<BlockRef> {
        match &self.form {
            Form::Inline(_) => Found::Here(BlockRef::NONE),
            Form::Tree(t) => t.node_ref(level, index),
        }
    }

    /// Makes the next write-out write a node anew.
    pub fn rewrite_node(
        &mut self,
        level: u8,
        index: u64,
        source: &(impl BlockSource + ?Sized),
    ) -> Result<bool> {
        match &mut self.form {
            Form::Inline(_) => Ok(false),
            Form::Tree(t) => t.rewrite_node(level, index, source),
        }
    }

    /// Drops clean nodes from memory.
    pub fn evict_clean(&mut self) {
        if let Form::Tree(t) = &mut self.form {
            t.evict_clean();
        }
    }
}

/// So many pages are taken out one by one.
const FEW: usize = 8;

/// Changes of a map: first the ranges become holes, then the pages are mapped.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct MapDelta {
    /// Ranges that became holes.
    pub unmaps: Vec<Range<u64>>,
    /// Pages that were written.
    pub sets: BTreeMap<u64, BlockRef>,
}

impl MapDelta {
    /// Returns whether there is nothing to apply.
    pub fn is_empty(&self) -> bool {
        self.unmaps.is_empty() && self.sets.is_empty()
    }

    /// Makes holes of these pages.
    pub fn unmap(&mut self, pages: Range<u64>) {
        debug_assert!(pages.start < pages.end, "no page is in {pages:?}");
        let gone = pages.clone();
        // A file that is cut page by page loses one at a time: no need to take the tree apart.
        if self.sets.range(pages.clone()).nth(FEW).is_some() {
            let mut rest = self.sets.split_off(&pages.start);
            self.sets.append(&mut rest.split_off(&pages.end));
        } else {
            while let Some((&page, _)) = self.sets.range(pages.clone()).next() {
                self.sets.remove(&page);
            }
        }
        match self.unmaps.last_mut() {
            Some(last) if last.start <= pages.end && pages.start <= last.end => {
                *last = last.start.min(pages.start)..last.end.max(pages.end);
            }
            _ => self.unmaps.push(pages),
        }
        debug_assert!(self.sets.range(gone.clone()).next().is_none(), "a hole of {gone:?} is mapped");
        debug_assert!(
            self.unmaps.last().is_some_and(|u| u.start <= gone.start && gone.end <= u.end),
            "{gone:?} is not among what becomes holes"
        );
    }

    /// Adds `later`, which comes behind this.
    pub fn append(&mut self, later: MapDelta) {
        if self.is_empty() {
            *self = later;
            return;
        }
        for r in later.unmaps {
            self.unmap(r);
        }
        self.sets.extend(later.sets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::MemLog;
    use crate::tree::block_io::Owner;
    use crate::tree::radix::resolve;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, HashSet};

    const INO: Ino = Ino(33);

    #[derive(Clone, Debug)]
    enum Op {
        Set(u64),
        Clear(u64),
        Unmap(u64, u64),
        NextData(u64),
        NextHole(u64),
        Evict,
        WriteOut,
        Rewrite(u8, u64),
    }

    fn page() -> impl Strategy<Value = u64> {
        prop_oneof![
            4 => 0..300u64,
            3 => (0..5u64).prop_map(|n| n * 65536 + 250),
            2 => (0..56u32).prop_map(|s| (1u64 << s) - 1),
            1 => (0..56u32).prop_map(|s| 1u64 << s),
        ]
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            10 => page().prop_map(Op::Set),
            3 => page().prop_map(Op::Clear),
            2 => (page(), page()).prop_map(|(a, b)| Op::Unmap(a.min(b), a.max(b))),
            3 => page().prop_map(Op::NextData),
            3 => page().prop_map(Op::NextHole),
            1 => Just(Op::Evict),
            1 => Just(Op::WriteOut),
            1 => (0..3u8, 0..4u64).prop_map(|(l, i)| Op::Rewrite(l, i)),
        ]
    }

    fn ask<T>(m: &mut Map, log: &MemLog, f: impl FnMut(&Map) -> Found<T>) -> T {
        resolve(m, log, f, |m, w, b| m.install(w, b)).unwrap()
    }

    fn reload(m: &Map) -> Map {
        match m.shape() {
            MapShape::Inline(v) => Map::from_inline(INO, v.to_vec()),
            MapShape::Tree(r, h, n) => Map::from_root(INO, r, h, n).unwrap(),
        }
    }

    /// Node blocks that a fresh walk of the map reads: all that may be in the log beside the data.
    fn nodes_reachable(m: &Map, log: &MemLog) -> HashSet<BlockAddr> {
        let mut seen = HashSet::new();
        let mut fresh = reload(m);
        let mut page = 0;
        loop {
            match fresh.next_data(page) {
                Found::Missing(w) => {
                    seen.insert(w.r.addr);
                    let b = log.read(w.r, w.what).unwrap();
                    fresh.install(&w, &b).unwrap();
                }
                Found::Here(Some(p)) => page = p + 1,
                Found::Here(None) => return seen,
            }
        }
    }

    fn check(ops: Vec<Op>, most: usize) {
        let mut log = MemLog::default();
        let mut map = Map::new(INO);
        let mut model: BTreeMap<u64, BlockRef> = BTreeMap::new();
        for o in ops {
            match o {
                Op::Set(p) => {
                    let r = log.data(INO, p, 1);
                    let old = map.set(p, r, &log).unwrap();
                    assert_eq!(old, model.insert(p, r).unwrap_or_default());
                    if !old.is_none() {
                        log.free(old.addr);
                    }
                }
                Op::Clear(p) => {
                    let old = map.set(p, BlockRef::NONE, &log).unwrap();
                    assert_eq!(old, model.remove(&p).unwrap_or_default());
                    if !old.is_none() {
                        log.free(old.addr);
                    }
                }
                Op::Unmap(a, b) => {
                    let mut gone = Vec::new();
                    map.unmap(a..b, &log, &mut |p, r| gone.push((p, r))).unwrap();
                    let want: Vec<_> = model.range(a..b).map(|(p, r)| (*p, *r)).collect();
                    assert_eq!(gone, want);
                    for (p, r) in gone {
                        model.remove(&p);
                        log.free(r.addr);
                    }
                }
                Op::NextData(p) => {
                    let want = model.range(p..).next().map(|e| *e.0);
                    assert_eq!(ask(&mut map, &log, |m| m.next_data(p)), want);
                }
                Op::NextHole(p) => {
                    let want = (p..).find(|p| !model.contains_key(p)).unwrap();
                    assert_eq!(ask(&mut map, &log, |m| m.next_hole(p)), want);
                }
                Op::Evict => map.evict_clean(),
                Op::Rewrite(l, i) => {
                    let there = !ask(&mut map, &log, |m| m.node_ref(l, i)).is_none();
                    let found = map.rewrite_node(l, i, &log).unwrap();
                    assert!(found || !there);
                }
                Op::WriteOut => {
                    map.write_out(&mut log, most).unwrap();
                    assert!(!map.is_dirty());
                    let data = log.blocks.values().filter(|b| matches!(b.0, Owner::Data { .. })).count();
                    assert_eq!(data, model.len());
                    // Every node block in the log is reachable: nothing leaked, nothing freed too
                    // early.
                    assert_eq!(nodes_reachable(&map, &log).len() + data, log.blocks.len());
                    let mut all = Vec::new();
                    let mut again = reload(&map);
                    again
                        .for_each(&log, &mut |p, r| {
                            all.push((p, r));
                            Ok(())
                        })
                        .unwrap();
                    assert!(all.into_iter().eq(model.iter().map(|(p, r)| (*p, *r))));
                    assert_eq!(again.pages(), model.len() as u64);
                    map = again;
                }
            }
            assert_eq!(map.pages(), model.len() as u64);
        }
        for (p, r) in &model {
            assert_eq!(ask(&mut map, &log, |m| m.get(*p)), *r);
        }
        map.write_out(&mut log, most).unwrap();
        let mut map = reload(&map);
        map.destroy(&mut log).unwrap();
        assert!(log.blocks.is_empty(), "destroy leaves nothing behind");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
        #[test]
        fn behaves_like_a_sorted_map(ops in prop::collection::vec(op(), 1..400), most in 0..100usize) {
            check(ops, most);
        }
    }

    #[test]
    fn a_long_file_and_back() {
        let mut log = MemLog::default();
        let mut map = Map::new(INO);
        for p in 0..100_000 {
            map.set(p, BlockRef { addr: BlockAddr(1 << 40 | p), crc: p as u32 }, &log).unwrap();
        }
        map.write_out(&mut log, 100).unwrap();
        assert_eq!(log.blocks.len(), 391 + 2 + 1);
        let mut map = reload(&map);
        // A cold lookup reads one node per level.
        log.reads.set(0);
        assert_eq!(ask(&mut map, &log, |m| m.get(77_777)).crc, 77_777);
        assert_eq!(log.reads.get(), 3);
        // One changed page rewrites one way.
        let before = log.writes;
        map.set(5, BlockRef { addr: BlockAddr(1 << 41), crc: 0 }, &log).unwrap();
        map.write_out(&mut log, 100).unwrap();
        assert_eq!(log.writes - before, 3);
        assert_eq!(log.blocks.len(), 394);
        map.unmap(10..u64::MAX, &log, &mut |_, _| ()).unwrap();
        map.write_out(&mut log, 100).unwrap();
        assert!(matches!(map.shape(), MapShape::Inline(v) if v.len() == 10));
        assert!(log.blocks.is_empty());
    }

    #[test]
    fn a_flipped_byte_of_a_node_is_corruption() {
        let mut log = MemLog::default();
        let mut map = Map::new(INO);
        for p in 0..200 {
            map.set(p, BlockRef { addr: BlockAddr(1 << 40 | p), crc: 1 }, &log).unwrap();
        }
        map.write_out(&mut log, 0).unwrap();
        let addr = *log.blocks.keys().next().unwrap();
        for at in 0..crate::BLOCK_SIZE {
            log.blocks.get_mut(&addr).unwrap().1.0[at] ^= 0x10;
            let mut m = reload(&map);
            assert!(matches!(
                m.set(7, BlockRef::NONE, &log),
                Err(StoreError::Corrupt { addr: a, what: "map node", .. }) if a == addr
            ));
            log.blocks.get_mut(&addr).unwrap().1.0[at] ^= 0x10;
        }
    }

    #[test]
    fn an_error_half_way_through_an_unmap_leaves_a_map_that_can_be_written() {
        let mut log = MemLog::default();
        let mut map = Map::new(INO);
        for p in 0..1000 {
            map.set(p, BlockRef { addr: BlockAddr(1 << 40 | p), crc: 1 }, &log).unwrap();
        }
        map.write_out(&mut log, 0).unwrap();
        let Found::Here(third) = map.node_ref(0, 2) else { panic!() };
        map.evict_clean();
        let lost = log.blocks.remove(&third.addr).unwrap();
        let mut n = 0;
        map.unmap(0..1000, &log, &mut |_, _| n += 1).unwrap_err();
        assert_eq!((n, map.pages()), (512, 488));
        map.write_out(&mut log, 0).unwrap();
        log.blocks.insert(third.addr, lost);
        let mut map = reload(&map);
        assert!(ask(&mut map, &log, |m| m.get(511)).is_none());
        assert_eq!(ask(&mut map, &log, |m| m.get(512)).crc, 1);
        assert_eq!(ask(&mut map, &log, |m| m.next_data(0)), Some(512));
    }
}
