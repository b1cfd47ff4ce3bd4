//! A directory's folded entries, in buckets by hash order (see [`dir_bucket`]): looking one up, and
//! folding changes into them.
//!
//! Invariants:
//!  B1  a directory's buckets cover every cookie exactly once, or there is none;
//!  B2  a fold touches each bucket once, in cookie order, hands it to the sink before it goes on,
//!      and lets that write what is queued: memory holds two buckets and the sink's queue, however
//!      large the directory is;
//!  B3  the buckets' blocks are written first, then the map changes in one step under the lock:
//!      whoever looks up meanwhile sees each bucket before or after, and B1 always;
//!  B4  several threads may fold changes of one directory, each those below other prefixes of one
//!      depth: no bucket covers two of these ([`split`]), and no thread merges beyond its own.
//!
//! The map changes of a fold are no part of an inode's delta: only a checkpoint makes them durable.

use crate::api::BucketImage;
use crate::error::{Result, StoreError};
use crate::tree::block_io::{BlockSink, BlockSource, Owner};
use crate::tree::inode_state::{InodeState, PageAt};
use crate::tree::radix::{Found, Wanted};
use lanefs_format::dir_bucket::{
    self, BUCKET_ROOM, BucketId, COLLISION_BITS, COOKIE_MAX, DEPTH_MAX, EntryRef, INLINE_ROOM, entries,
};
use lanefs_format::{BlockAddr, BlockRef, FileKind, Ino};
use std::iter::Peekable;

/// Buckets that a fold asks for together.
const AHEAD: usize = 64;
/// A bucket with fewer bytes of entries tries to merge.
const MERGE_BELOW: usize = BUCKET_ROOM / 4;
/// Two buckets merge if they take no more together.
const MERGE_TO: usize = BUCKET_ROOM / 2;
// Else two buckets that merged would be split at the next name, or would try again for ever.
const _: () = assert!(MERGE_BELOW < MERGE_TO && MERGE_TO < BUCKET_ROOM);

/// An inode's state that others use too: locked for a moment at a time, never over I/O.
pub trait StateLock {
    /// Runs `f` with the state locked.
    fn with<T>(&self, f: impl FnOnce(&mut InodeState) -> T) -> T;
}

impl StateLock for lanefs_sync::lock::Mutex<InodeState> {
    fn with<T>(&self, f: impl FnOnce(&mut InodeState) -> T) -> T {
        f(&mut self.lock())
    }
}

/// A state that nobody else uses.
impl StateLock for std::cell::RefCell<InodeState> {
    fn with<T>(&self, f: impl FnOnce(&mut InodeState) -> T) -> T {
        f(&mut self.borrow_mut())
    }
}

/// A change of one entry. A directory's changes come by ascending cookie, at most one per name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change<'a> {
    /// The entry's place in hash order.
    pub cookie: u64,
    /// Its name.
    pub name: &'a [u8],
    /// The inode that it names from now on; none if it is gone.
    pub ino: Ino,
    /// The kind of file that that is (or was).
    pub kind: FileKind,
}

/// The effect of a change: the inode that the name named before, and the one that it names now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Folded {
    /// Before.
    pub old: Option<(Ino, FileKind)>,
    /// Now.
    pub new: Option<(Ino, FileKind)>,
}

/// The place of the bucket for a cookie.
enum At {
    Empty,
    Inline(Vec<u8>),
    Block(BlockRef),
}

/// Asks the state until it answers, reading without its lock.
fn ask<C: StateLock, T>(
    cell: &C,
    source: &(impl BlockSource + ?Sized),
    mut f: impl FnMut(&InodeState) -> Result<Found<T>>,
) -> Result<T> {
    loop {
        let wanted = match cell.with(|s| f(s))? {
            Found::Here(t) => return Ok(t),
            Found::Missing(w) => w,
        };
        fetch(cell, source, &wanted)?;
    }
}

fn fetch<C: StateLock>(cell: &C, source: &(impl BlockSource + ?Sized), w: &Wanted) -> Result<()> {
    let block = source.read(w.r, w.what)?;
    cell.with(|s| s.install(w, &block))
}

/// Finds the bucket for `cookie`: the deepest that is mapped, of which by B1 there is one.
fn locate(s: &InodeState, cookie: u64) -> Result<Found<(BucketId, At)>> {
    debug_assert!(cookie <= COOKIE_MAX, "cookie {cookie:#x} is not that of a name");
    if !s.is_dir() {
        return Err(StoreError::BadInode { ino: s.ino(), why: "not a directory".into() });
    }
    if s.mapped_pages() == 0 && s.tail().is_none() {
        return Ok(Found::Here((BucketId::ROOT, At::Empty)));
    }
    debug_assert!(s.dir().depth <= DEPTH_MAX, "buckets are split by {} bits", s.dir().depth);
    for depth in (0..=s.dir().depth).rev() {
        let id = BucketId::of(cookie, depth);
        match s.lookup(id.page()) {
            Found::Missing(w) => return Ok(Found::Missing(w)),
            Found::Here(PageAt::Hole) => {}
            Found::Here(PageAt::Block(r)) => return Ok(Found::Here((id, At::Block(r)))),
            Found::Here(PageAt::Inline(body)) => {
                let bytes = dir_bucket::check_body(body, s.block().addr, id)?;
                return Ok(Found::Here((id, At::Inline(bytes.to_vec()))));
            }
        }
    }
    Err(StoreError::BadInode { ino: s.ino(), why: format!("no bucket covers cookie {cookie:#x}") })
}

fn read_entries(dir: Ino, id: BucketId, at: At, source: &(impl BlockSource + ?Sized)) -> Result<Vec<u8>> {
    Ok(match at {
        At::Empty => Vec::new(),
        At::Inline(bytes) => bytes,
        At::Block(r) => {
            let block = source.read(r, "directory bucket")?;
            dir_bucket::decode(&block, r.addr, dir, id)?.to_vec()
        }
    })
}

/// Returns the folded bucket that covers `cookie`. The next one starts at its `high + 1`.
pub fn load_bucket<C: StateLock>(
    cell: &C,
    source: &(impl BlockSource + ?Sized),
    cookie: u64,
) -> Result<BucketImage> {
    if cookie > COOKIE_MAX {
        return Err(StoreError::Invalid(format!("cookie {cookie:#x} is out of range")));
    }
    let dir = cell.with(|s| s.ino());
    let (id, at) = ask(cell, source, |s| locate(s, cookie))?;
    debug_assert!(id.low() <= cookie && cookie <= id.high(), "{id:?} does not cover {cookie:#x}");
    let bytes = read_entries(dir, id, at, source)?;
    debug_assert!(entries_fit(id, &bytes), "what was read of {id:?} was checked");
    Ok(BucketImage {
        low: id.low(),
        high: id.high(),
        entries: entries(&bytes).map(|e| e.to_owned()).collect(),
    })
}

/// Returns whether these bytes are entries by ascending cookie, all of them covered by a bucket:
/// for assertions.
fn entries_fit(id: BucketId, bytes: &[u8]) -> bool {
    let len = |e: EntryRef<'_>| dir_bucket::ENTRY_HEADER + e.name.len();
    entries(bytes).map(len).sum::<usize>() == bytes.len()
        && entries(bytes).is_sorted_by(|a, b| a.cookie < b.cookie)
        && entries(bytes).all(|e| id.low() <= e.cookie && e.cookie <= id.high())
}

/// Returns how many cookies a bucket covers.
fn span(id: BucketId) -> u64 {
    id.high() - id.low() + 1
}

/// A bucket that is being folded.
struct Work {
    id: BucketId,
    bytes: Vec<u8>,
    /// Pages that it replaces.
    replaces: Vec<u64>,
}

/// Splits the buckets of a directory that are less deep than `depth`: those at this depth may then
/// be folded beside each other (B4). Afterwards the inode has to be written out.
pub fn split<C: StateLock>(cell: &C, sink: &mut dyn BlockSink, depth: u8) -> Result<()> {
    let mut none = |_| debug_assert!(false, "no entry changes");
    let mut fold = Fold::new(cell, sink, std::iter::empty(), depth, &mut none);
    let mut next = 0;
    while next <= COOKIE_MAX {
        let (id, at) = ask(cell, &*fold.sink, |s| locate(s, next))?;
        debug_assert!(id.low() <= next && next <= id.high(), "{id:?} does not cover {next:#x}");
        if id.depth < depth {
            let bytes = read_entries(fold.dir, id, at, &*fold.sink)?;
            fold.store(Work { id, bytes, replaces: vec![id.page()] })?;
            fold.sink.flush_if_full()?;
        }
        next = BucketId::of(next, id.depth.min(depth)).high() + 1;
    }
    Ok(())
}

/// Merges what little is left in buckets at `depth` or above, where changes were folded into each
/// of these alone.
pub fn join<C: StateLock>(cell: &C, sink: &mut dyn BlockSink, depth: u8) -> Result<()> {
    let mut none = |_| debug_assert!(false, "no entry changes");
    let mut fold = Fold::new(cell, sink, std::iter::empty(), 0, &mut none);
    let mut next = 0;
    while next <= COOKIE_MAX {
        let (id, at) = ask(cell, &*fold.sink, |s| locate(s, next))?;
        debug_assert!(id.low() <= next && next <= id.high(), "{id:?} does not cover {next:#x}");
        if (1..=depth).contains(&id.depth) && read_entries(fold.dir, id, at, &*fold.sink)?.len() < MERGE_BELOW
        {
            fold.bucket(next)?;
            fold.sink.flush_if_full()?;
        }
        next = BucketId::of(next, id.depth.min(depth)).high() + 1;
    }
    Ok(())
}

/// Folds `changes` into a directory; `on` hears what each did. Of the buckets that are `floor` deep
/// no two are merged: others may be folded meanwhile (B4). Afterwards the inode has to be written
/// out.
pub fn fold_dir<'a, C: StateLock>(
    cell: &C,
    sink: &mut dyn BlockSink,
    changes: impl Iterator<Item = Change<'a>> + Clone,
    floor: u8,
    on: &mut dyn FnMut(Folded),
) -> Result<()> {
    debug_assert!(changes.clone().is_sorted_by_key(|c| c.cookie), "changes come by ascending cookie");
    let mut fold = Fold::new(cell, sink, changes, floor, on);
    let dir = fold.dir;
    let mut expected = 0;
    while let Some(first) = fold.changes.peek() {
        let cookie = first.cookie;
        if cookie > COOKIE_MAX {
            let why = format!("a change at cookie {cookie:#x}, which is out of range");
            return Err(StoreError::BadInode { ino: dir, why });
        }
        if cookie >= expected && cell.with(|s| s.is_dir() && s.dir().depth > 0) {
            expected = fold.expect();
        }
        fold.bucket(cookie)?;
        // B2
        let next = fold.changes.peek().map(|c| c.cookie);
        debug_assert!(next.is_none_or(|n| n > cookie), "a change at {cookie:#x} was left behind");
        debug_assert!((fold.entries, fold.subdirs) == (0, 0), "what was counted was stored with the bucket");
        fold.sink.flush_if_full()?;
    }
    Ok(())
}

struct Fold<'a, 'b, C, I: Iterator<Item = Change<'a>> + Clone> {
    cell: &'b C,
    dir: Ino,
    sink: &'b mut dyn BlockSink,
    changes: Peekable<I>,
    /// No bucket is made that is less deep.
    floor: u8,
    on: &'b mut dyn FnMut(Folded),
    /// Changes of the directory's counts since the last step.
    entries: i64,
    subdirs: i64,
}

impl<'a, 'b, C: StateLock, I: Iterator<Item = Change<'a>> + Clone> Fold<'a, 'b, C, I> {
    fn new(
        cell: &'b C,
        sink: &'b mut dyn BlockSink,
        changes: I,
        floor: u8,
        on: &'b mut dyn FnMut(Folded),
    ) -> Self {
        debug_assert!(floor <= DEPTH_MAX, "buckets {floor} deep");
        let dir = cell.with(|s| s.ino());
        Fold { cell, dir, sink, changes: changes.peekable(), floor, on, entries: 0, subdirs: 0 }
    }

    /// Asks for the next buckets together, as far as their places are known; returns the cookie
    /// behind them.
    fn expect(&self) -> u64 {
        let (mut refs, mut behind) = (Vec::new(), 0);
        for c in self.changes.clone().take_while(|c| c.cookie <= COOKIE_MAX) {
            if c.cookie < behind {
                continue;
            }
            match self.cell.with(|s| locate(s, c.cookie)) {
                Ok(Found::Here((id, at))) if refs.len() < AHEAD => {
                    behind = id.high() + 1;
                    refs.extend(if let At::Block(r) = at { Some(r) } else { None });
                }
                _ => break,
            }
        }
        debug_assert!(refs.len() <= AHEAD, "{} buckets are asked for together", refs.len());
        self.sink.expect(&refs);
        behind
    }

    /// Folds the changes of the bucket that covers `cookie`.
    fn bucket(&mut self, cookie: u64) -> Result<()> {
        let (id, at) = ask(self.cell, &*self.sink, |s| locate(s, cookie))?;
        debug_assert!(id.low() <= cookie && cookie <= id.high(), "{id:?} does not cover {cookie:#x}");
        let old = read_entries(self.dir, id, at, &*self.sink)?;
        let bytes = self.merge(&old, id)?;
        let mut work = Work { id, bytes, replaces: vec![id.page()] };
        let mut aside = None;
        debug_assert!(id.depth >= self.floor, "{id:?} covers what others fold (B4)");
        while work.id.depth > self.floor && work.bytes.len() < MERGE_BELOW {
            let sibling = work.id.sibling();
            let at = ask(self.cell, &*self.sink, |s| Ok(s.lookup(sibling.page()).map(block_of)))?;
            let Some(r) = at else { break }; // it is split further
            let old = read_entries(self.dir, sibling, At::Block(r), &*self.sink)?;
            // The left one's changes have been folded already; the right one's come next, and are
            // due now.
            let changed = self.changes.peek().is_some_and(|c| c.cookie <= sibling.high());
            let theirs = if changed { self.merge(&old, sibling)? } else { old };
            if work.bytes.len() + theirs.len() > MERGE_TO {
                if changed {
                    aside = Some(Work { id: sibling, bytes: theirs, replaces: vec![sibling.page()] });
                }
                break;
            }
            work.replaces.push(sibling.page());
            if sibling.prefix & 1 == 1 {
                work.bytes.extend_from_slice(&theirs);
            } else {
                work.bytes.splice(0..0, theirs);
            }
            work.id = work.id.parent();
            debug_assert!(entries_fit(work.id, &work.bytes), "two buckets were put together the wrong way");
        }
        self.store(work)?;
        aside.map_or(Ok(()), |w| self.store(w))
    }

    /// Returns the entries of a bucket with its changes applied; takes these from the stream.
    fn merge(&mut self, old: &[u8], id: BucketId) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(old.len() + 64);
        let mut old = entries(old).peekable();
        let mut group: Vec<EntryRef<'_>> = Vec::new();
        while let Some(c) = self.changes.peek().filter(|c| c.cookie <= id.high()) {
            // All entries with the same hash, and all changes of them: a handful at most.
            let hash = c.cookie >> COLLISION_BITS;
            while let Some(e) = old.next_if(|e| e.cookie >> COLLISION_BITS < hash) {
                e.put(&mut out);
            }
            group.clear();
            while let Some(e) = old.next_if(|e| e.cookie >> COLLISION_BITS == hash) {
                group.push(e);
            }
            debug_assert!(group.len() <= 1 << COLLISION_BITS, "{} entries of one hash", group.len());
            let mut sets: Vec<Change<'a>> = Vec::new();
            while let Some(c) = self.changes.next_if(|c| c.cookie >> COLLISION_BITS == hash) {
                if c.ino.is_none() { self.clear(&mut group, c) } else { sets.push(c) }
            }
            for c in sets {
                self.set(&mut group, c)?;
            }
            group.sort_unstable_by_key(|e| e.cookie);
            group.iter().for_each(|e| e.put(&mut out));
        }
        old.for_each(|e| e.put(&mut out));
        debug_assert!(entries_fit(id, &out), "the entries of {id:?} are out of order, or not its own");
        debug_assert!(
            self.changes.peek().is_none_or(|c| c.cookie > id.high()),
            "a change of {id:?} was not taken"
        );
        Ok(out)
    }

    fn clear(&mut self, group: &mut Vec<EntryRef<'_>>, c: Change<'a>) {
        if let Some(i) = group.iter().position(|e| e.name == c.name) {
            let e = group.remove(i);
            self.report(Folded { old: Some((e.ino, e.kind)), new: None });
        }
    }

    fn set<'e>(&mut self, group: &mut Vec<EntryRef<'e>>, c: Change<'e>) -> Result<()> {
        let new = Some((c.ino, c.kind));
        if let Some(e) = group.iter_mut().find(|e| e.name == c.name) {
            let old = Some((e.ino, e.kind));
            (e.ino, e.kind) = (c.ino, c.kind);
            self.report(Folded { old, new });
            return Ok(());
        }
        // Its cookie is its own, unless a crash kept this name and the removal of another with the
        // same hash was lost; then it gets another of the eight.
        let first = c.cookie >> COLLISION_BITS << COLLISION_BITS;
        let free = |k: &u64| !group.iter().any(|e| e.cookie == *k);
        let cookie = std::iter::once(c.cookie).chain(first..first + (1 << COLLISION_BITS)).find(free);
        let cookie = cookie.ok_or_else(|| StoreError::BadInode {
            ino: self.dir,
            why: format!("more than 8 names with the hash {:#x}", first),
        })?;
        debug_assert_eq!(
            cookie >> COLLISION_BITS,
            c.cookie >> COLLISION_BITS,
            "a name is looked for at the cookies of its hash"
        );
        group.push(EntryRef { cookie, ino: c.ino, kind: c.kind, name: c.name });
        self.report(Folded { old: None, new });
        Ok(())
    }

    fn report(&mut self, f: Folded) {
        let dirs = |x: Option<(Ino, FileKind)>| i64::from(x.is_some_and(|(_, k)| k == FileKind::Dir));
        self.entries += i64::from(f.new.is_some()) - i64::from(f.old.is_some());
        self.subdirs += dirs(f.new) - dirs(f.old);
        if f.old != f.new {
            (self.on)(f);
        }
    }

    /// Writes a bucket, split as often as need be, and puts it into the map (B3).
    fn store(&mut self, work: Work) -> Result<()> {
        let inline = (work.id == BucketId::ROOT && self.floor == 0 && work.bytes.len() <= INLINE_ROOM)
            .then(|| if work.bytes.is_empty() { Vec::new() } else { dir_bucket::body(&work.bytes) });
        let mut placed: Vec<(BucketId, BlockRef)> = Vec::new();
        if inline.is_none() {
            self.write_split(work.id, &work.bytes, &mut placed)?;
        }
        // B1: what comes covers the same cookies as what goes.
        let covers =
            |pages: &mut dyn Iterator<Item = Option<BucketId>>| pages.flatten().map(span).sum::<u64>();
        debug_assert_eq!(
            covers(&mut work.replaces.iter().map(|page| BucketId::from_page(*page))),
            span(work.id),
            "pages {:?} are not {:?}",
            work.replaces,
            work.id
        );
        debug_assert!(
            inline.is_some() || covers(&mut placed.iter().map(|p| Some(p.0))) == span(work.id),
            "{placed:?} does not cover {:?}",
            work.id
        );
        debug_assert!(placed.is_sorted_by(|a, b| a.0.high() < b.0.low()), "{placed:?} overlap");
        for page in work.replaces.iter().copied().chain(placed.iter().map(|p| p.0.page())) {
            while let Some(w) = self.cell.with(|s| s.missing_for(page)) {
                fetch(self.cell, &*self.sink, &w)?;
            }
        }
        let depth = placed.iter().map(|p| p.0.depth).max().unwrap_or(0);
        let (entries, subdirs) = (std::mem::take(&mut self.entries), std::mem::take(&mut self.subdirs));
        let source = &*self.sink;
        let freed = self.cell.with(|s| -> Result<Vec<BlockAddr>> {
            let mut freed = Vec::new();
            for page in work.replaces {
                freed.extend(s.set_bucket(page, BlockRef::NONE, source)?);
            }
            for (id, r) in placed {
                freed.extend(s.set_bucket(id.page(), r, source)?);
            }
            let mut dir = s.dir();
            if work.id == BucketId::ROOT {
                s.set_inline_bucket(inline.unwrap_or_default());
                dir.depth = 0;
            }
            dir.depth = dir.depth.max(depth);
            dir.entries = dir.entries.saturating_add_signed(entries);
            dir.subdirs = dir.subdirs.saturating_add_signed(subdirs);
            debug_assert!(dir.depth <= DEPTH_MAX, "buckets are split by {} bits", dir.depth);
            s.set_dir(dir);
            Ok(freed)
        })?;
        freed.into_iter().for_each(|a| self.sink.free(a));
        Ok(())
    }

    fn write_split(
        &mut self,
        id: BucketId,
        bytes: &[u8],
        placed: &mut Vec<(BucketId, BlockRef)>,
    ) -> Result<()> {
        if id.depth >= self.floor
            && let Some(block) = dir_bucket::encode(self.dir, id, bytes)
        {
            let owner = Owner::Bucket { ino: self.dir, page: id.page() };
            placed.push((id, self.sink.write(owner, block)?));
            return Ok(());
        }
        if id.depth == DEPTH_MAX {
            let why = "too many names share a hash".into();
            return Err(StoreError::BadInode { ino: self.dir, why });
        }
        let [left, right] = id.children();
        let mut at = 0;
        for e in entries(bytes).take_while(|e| e.cookie < right.low()) {
            at += dir_bucket::ENTRY_HEADER + e.name.len();
        }
        let (a, b) = bytes.split_at(at);
        debug_assert!(entries_fit(left, a) && entries_fit(right, b), "{id:?} is split between its halves");
        self.write_split(left, a, placed)?;
        self.write_split(right, b, placed)
    }
}

fn block_of(p: PageAt<'_>) -> Option<BlockRef> {
    match p {
        PageAt::Block(r) => Some(r),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::MemLog;
    use lanefs_format::Attrs;
    use proptest::prelude::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    const DIR: Ino = Ino(30);

    fn new_dir() -> RefCell<InodeState> {
        let attrs = Attrs { mode: libc::S_IFDIR | 0o755, generation: 1, ..Attrs::default() };
        RefCell::new(InodeState::new(DIR, attrs, Ino(1)))
    }

    fn hash(name: &[u8]) -> u64 {
        let mut h = 0xcbf2_9ce4_8422_2325u64;
        for b in name {
            h = (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3);
        }
        h ^= h >> 29;
        (h.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 4) << 3 & COOKIE_MAX
    }

    /// Every bucket in order; checks B1 on the way.
    fn buckets(cell: &RefCell<InodeState>, log: &MemLog) -> Vec<BucketImage> {
        let mut all = Vec::new();
        let mut next = 0;
        while next <= COOKIE_MAX {
            let b = load_bucket(cell, log, next).unwrap();
            assert_eq!(b.low, next);
            next = b.high + 1;
            all.push(b);
        }
        all
    }

    fn reload(cell: &RefCell<InodeState>, log: &mut MemLog) -> RefCell<InodeState> {
        let r = cell.borrow_mut().write_out(log).unwrap();
        cell.borrow_mut().checkpoint_done();
        assert!(!cell.borrow().has_delta());
        RefCell::new(InodeState::load_own(DIR, r, log).unwrap())
    }

    type Names = BTreeMap<Vec<u8>, (u64, Ino, FileKind)>;

    fn apply(
        cell: &RefCell<InodeState>,
        log: &mut MemLog,
        model: &mut Names,
        edits: &BTreeMap<Vec<u8>, Option<(Ino, FileKind)>>,
        hash: impl Fn(&[u8]) -> u64,
    ) {
        apply_in_parts(cell, log, model, edits, hash, 0);
    }

    /// The changes of each bucket at `depth` are folded for themselves.
    fn apply_in_parts(
        cell: &RefCell<InodeState>,
        log: &mut MemLog,
        model: &mut Names,
        edits: &BTreeMap<Vec<u8>, Option<(Ino, FileKind)>>,
        hash: impl Fn(&[u8]) -> u64,
        depth: u8,
    ) {
        let mut changes: Vec<Change<'_>> = edits
            .iter()
            .map(|(name, to)| {
                let (ino, kind) = to.unwrap_or((Ino::NONE, FileKind::File));
                let cookie = model.get(name).map_or_else(|| hash(name), |e| e.0);
                Change { cookie, name, ino, kind }
            })
            .collect();
        changes.sort_by_key(|c| c.cookie);
        let mut told: Vec<Folded> = Vec::new();
        split(cell, log, depth).unwrap();
        let prefix = |c: &Change<'_>| BucketId::of(c.cookie, depth).prefix;
        for part in changes.chunk_by(|a, b| prefix(a) == prefix(b)) {
            fold_dir(cell, log, part.iter().copied(), depth, &mut |f| told.push(f)).unwrap();
        }
        join(cell, log, depth).unwrap();
        let mut want: Vec<Folded> = Vec::new();
        for (name, to) in edits {
            let old = model.remove(name);
            let f = Folded { old: old.map(|o| (o.1, o.2)), new: *to };
            if f.old != f.new {
                want.push(f);
            }
            if let Some((i, k)) = *to {
                model.insert(name.clone(), (old.map_or_else(|| hash(name), |o| o.0), i, k));
            }
        }
        let key = |f: &Folded| format!("{f:?}");
        told.sort_by_key(key);
        want.sort_by_key(key);
        assert_eq!(told, want);
    }

    fn check(cell: &RefCell<InodeState>, log: &MemLog, model: &Names) {
        let mut found: Names = BTreeMap::new();
        let mut last = None;
        for b in buckets(cell, log) {
            for e in b.entries {
                assert!((b.low..=b.high).contains(&e.cookie) && last < Some(e.cookie));
                last = Some(e.cookie);
                assert!(found.insert(e.name.to_vec(), (e.cookie, e.ino, e.kind)).is_none());
            }
        }
        let strip = |n: &Names| n.iter().map(|(k, v)| (k.clone(), (v.1, v.2))).collect::<Vec<_>>();
        assert_eq!(strip(&found), strip(model));
        let d = cell.borrow().dir();
        assert_eq!(d.entries, model.len() as u64);
        assert_eq!(d.subdirs, model.values().filter(|e| e.2 == FileKind::Dir).count() as u64);
    }

    fn edit() -> impl Strategy<Value = (Vec<u8>, Option<(Ino, FileKind)>)> {
        let name = prop_oneof![
            (0..400u32).prop_map(|n| format!("f{n}").into_bytes()),
            (0..40u32).prop_map(|n| format!("{n:0>250}").into_bytes()),
        ];
        let to = prop_oneof![
            2 => (16..60u64).prop_map(|i| Some((Ino(i), if i % 5 == 0 { FileKind::Dir } else { FileKind::File }))),
            1 => Just(None),
        ];
        (name, to)
    }

    fn edits() -> impl Strategy<Value = BTreeMap<Vec<u8>, Option<(Ino, FileKind)>>> {
        prop::collection::vec(edit(), 0..300).prop_map(|v| v.into_iter().collect())
    }

    /// A fold of a large directory once kept every bucket in memory until its last.
    #[test]
    fn a_fold_lets_the_sink_write_after_each_bucket() {
        let (cell, mut log, mut model) = (new_dir(), MemLog::default(), Names::new());
        let name = |n: u32| format!("name-{n}").into_bytes();
        let made: BTreeMap<_, _> = (0..20_000).map(|n| (name(n), Some((Ino(99), FileKind::File)))).collect();
        apply(&cell, &mut log, &mut model, &made, hash);
        let (before, before_reads) = (log.writes, log.reads.get());
        log.most_queued = 0;
        log.expected.take();
        let changed: BTreeMap<_, _> =
            (0..20_000).map(|n| (name(n), Some((Ino(98), FileKind::File)))).collect();
        apply(&cell, &mut log, &mut model, &changed, hash);
        assert!(log.writes - before > 200, "{} buckets", log.writes - before);
        assert!(log.most_queued <= 2, "{}", log.most_queued);
        // All but the siblings of small ones were asked for, many at a time.
        let (reads, told) = (log.reads.get(), log.expected.borrow());
        let all: usize = told.iter().sum();
        assert!(
            all as u64 >= reads - before_reads && told.len() <= all / AHEAD + 1,
            "{reads} reads, {told:?}"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
        #[test]
        fn folds_like_a_map(
            rounds in prop::collection::vec(edits(), 1..8),
            skew in 0..3u32,
            parts in 0..4u8,
        ) {
            let mut log = MemLog::default();
            let mut cell = new_dir();
            let mut model = Names::new();
            // The second hash has many collisions, the third long common prefixes.
            let h = |n: &[u8]| match skew {
                0 => hash(n),
                1 => hash(n) & !0xffff,
                _ => hash(n) >> 30 & !7,
            };
            for (round, edits) in rounds.iter().enumerate() {
                apply_in_parts(&cell, &mut log, &mut model, edits, h, (round as u8 + parts) % 4);
                check(&cell, &log, &model);
                cell = reload(&cell, &mut log);
                check(&cell, &log, &model);
            }
            let all: BTreeMap<_, _> = model.keys().map(|k| (k.clone(), None)).collect();
            apply_in_parts(&cell, &mut log, &mut model, &all, h, parts);
            check(&cell, &log, &model);
            let cell = reload(&cell, &mut log);
            assert_eq!(cell.borrow().mapped_pages(), 0);
            let own = cell.borrow().block();
            cell.borrow_mut().destroy(&mut log).unwrap();
            log.free(own.addr);
            assert!(log.blocks.is_empty());
        }
    }

    #[test]
    fn a_small_directory_is_its_inode_block() {
        let mut log = MemLog::default();
        let cell = new_dir();
        let mut model = Names::new();
        let edits = (0..100).map(|n| (format!("n{n}").into_bytes(), Some((Ino(n + 16), FileKind::File))));
        apply(&cell, &mut log, &mut model, &edits.collect(), hash);
        let cell = reload(&cell, &mut log);
        assert_eq!(log.blocks.len(), 1);
        check(&cell, &log, &model);
    }

    #[test]
    fn a_large_directory_answers_a_cold_lookup_in_a_few_reads() {
        let mut log = MemLog::default();
        let cell = new_dir();
        let mut model = Names::new();
        for round in 0..2 {
            let edits = (0..40_000)
                .map(|n| (format!("file-{round}-{n}").into_bytes(), Some((Ino(n + 16), FileKind::File))));
            apply(&cell, &mut log, &mut model, &edits.collect(), hash);
        }
        let cell = reload(&cell, &mut log);
        let depth = cell.borrow().dir().depth;
        let full = buckets(&cell, &log);
        let cell = reload(&cell, &mut log);
        let (mut most, mut sum) = (0, 0);
        for n in 0..200u64 {
            let name = format!("file-1-{}", n * 199);
            cell.borrow_mut().evict_clean();
            log.reads.set(0);
            let b = load_bucket(&cell, &log, hash(name.as_bytes())).unwrap();
            assert!(b.entries.iter().any(|e| *e.name == *name.as_bytes()));
            most = most.max(log.reads.get());
            sum += log.reads.get();
        }
        println!("depth {depth}, {} buckets, reads {sum}/200 at most {most}", full.len());
        assert!(most <= 12, "{most} reads");
        let fill = 80_000 * 29 / full.len();
        assert!(fill > BUCKET_ROOM / 2, "buckets hold {fill} bytes");
        // Removing most of it gives the blocks back.
        let keep: Vec<_> = model.keys().step_by(1000).cloned().collect();
        let mut gone: BTreeMap<_, _> = model.keys().map(|k| (k.clone(), None)).collect();
        gone.retain(|k, _| !keep.contains(k));
        apply(&cell, &mut log, &mut model, &gone, hash);
        let cell = reload(&cell, &mut log);
        check(&cell, &log, &model);
        assert!(cell.borrow().mapped_pages() < 16, "{} buckets left", cell.borrow().mapped_pages());
    }

    #[test]
    fn a_fold_done_twice_changes_nothing_and_tells_nothing() {
        let mut log = MemLog::default();
        let cell = new_dir();
        let set =
            |n: &'static [u8], i| Change { cookie: hash(n), name: n, ino: Ino(i), kind: FileKind::File };
        let mut changes = [set(b"a", 20), set(b"b", 21), set(b"c", 0)];
        changes.sort_by_key(|c| c.cookie);
        let mut told = 0;
        fold_dir(&cell, &mut log, changes.iter().copied(), 0, &mut |_| told += 1).unwrap();
        assert_eq!(told, 2);
        fold_dir(&cell, &mut log, changes.iter().copied(), 0, &mut |_| told += 1).unwrap();
        assert_eq!(told, 2);
        // The same cookie for two names at once: both are kept, in one bucket.
        let clash = [Change { name: b"z", ..set(b"a", 22) }];
        fold_dir(&cell, &mut log, clash.iter().copied(), 0, &mut |_| told += 1).unwrap();
        assert_eq!((told, cell.borrow().dir().entries), (3, 3));
        let swap = [Change { ino: Ino::NONE, ..clash[0] }, Change { name: b"y", ..clash[0] }];
        fold_dir(&cell, &mut log, swap.iter().copied(), 0, &mut |_| told += 1).unwrap();
        let b = load_bucket(&cell, &log, 0).unwrap();
        let mut names: Vec<_> = b.entries.iter().map(|e| e.name.to_vec()).collect();
        names.sort();
        assert_eq!(names, [b"a".to_vec(), b"b".to_vec(), b"y".to_vec()]);
        assert!(load_bucket(&cell, &log, COOKIE_MAX + 1).is_err());
        assert!(
            fold_dir(&cell, &mut log, [Change { cookie: 1 << 63, ..clash[0] }].into_iter(), 0, &mut |_| ())
                .is_err()
        );
    }

    #[test]
    fn a_missing_bucket_is_an_error_not_an_empty_one() {
        let mut log = MemLog::default();
        let cell = new_dir();
        let mut model = Names::new();
        let edits = (0..1000).map(|n| (format!("n{n}").into_bytes(), Some((Ino(n + 16), FileKind::File))));
        apply(&cell, &mut log, &mut model, &edits.collect(), hash);
        let b = load_bucket(&cell, &log, 0).unwrap();
        let id = (0..64).map(|d| BucketId::of(0, d)).find(|i| i.high() == b.high).unwrap();
        cell.borrow_mut().set_bucket(id.page(), BlockRef::NONE, &log).unwrap();
        assert!(matches!(load_bucket(&cell, &log, 0), Err(StoreError::BadInode { .. })));
    }
}
