//! The state of one inode in memory: its block unpacked, its map, and the changes that are not on
//! disk yet.
//!
//! Nothing here locks, and the questions of the read path do no I/O: they answer or name the node
//! they miss ([`Found`]), so that the engine reads with its lock released. What changes an inode
//! takes a source for the rare node that [`InodeState::missing_for`] was not asked about before.
//!
//! Invariants:
//!  I1  a page is mapped or it is the tail, never both;
//!  I2  `delta` and `sealed` together are what a crash would take from the map: the changes since
//!      the last durable batch, counting only checkpoints whose slot is on disk. A write-out moves
//!      `delta` to `sealed`, and only the checkpoint's end drops `sealed`; a batch written in
//!      between must carry both, because a crash before the slot falls back to the map before the
//!      write-out. A directory has no delta: its map is changed by checkpoints only, and by the
//!      cleaner, which waits for one;
//!  I3  `unwritten` is the number of preallocated pages that are not mapped, and when it is zero no
//!      page is preallocated: where all were written the promise is kept, and a hole made there
//!      later gives its space back.

mod attributes;
mod moving;
mod preallocated;

use crate::error::{Result, StoreError};
use crate::tree::block_io::{BlockSink, BlockSource, Owner};
pub use crate::tree::map::MapDelta;
use crate::tree::map::{Map, MapShape};
use crate::tree::radix::{Found, Wanted};
pub use attributes::read_xattrs;
use lanefs_format::dir_bucket::BucketId;
use lanefs_format::header::BlockKind;
use lanefs_format::inode::{self, DirShape, InodeBlock, MAP_ENTRY, MapImage};
use lanefs_format::inode::{XATTR_INLINE, XATTR_PER_BLOCK, XattrPlace, map_room};
use lanefs_format::map_node::FANOUT;
use lanefs_format::pack;
use lanefs_format::prealloc::Prealloc;
use lanefs_format::table_node::TableEntry;
use lanefs_format::{
    Attrs, BLOCK_SHIFT, BLOCK_SIZE, Block, BlockAddr, BlockRef, FileKind, INLINE_MAX, Ino, SYMLINK_MAX,
    XATTR_BLOB_MAX,
};
use std::ops::Range;

/// The place of a page's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageAt<'a> {
    /// Nowhere: zeros.
    Hole,
    /// In a block of the log.
    Block(BlockRef),
    /// In the inode block: these bytes, then zeros.
    Inline(&'a [u8]),
}

/// The page's block and the tail that were there before, to be freed and to be written.
#[derive(Debug, Default)]
#[must_use = "a displaced tail must be written as a block of its own"]
pub struct TailChange {
    /// The block the page had.
    pub freed: Option<BlockAddr>,
    /// The page that was the tail until now.
    pub displaced: Option<(u64, Box<Block>)>,
}

/// See the module's head.
pub struct InodeState {
    ino: Ino,
    attrs: Attrs,
    nlink: u32,
    parent: Ino,
    version: u64,
    dir: DirShape,
    /// The block that it was read from or written to last, none if it was never written. Of a pack
    /// it may be an old one: the inode table knows.
    block: BlockRef,
    /// That block is a pack.
    packed: bool,
    map: Map,
    tail: Option<(u64, Vec<u8>)>,
    xattrs: XattrPlace,
    /// Attributes too long for the inode block, not written yet. `xattrs` still is what is on disk.
    new_xattrs: Option<Vec<u8>>,
    delta: MapDelta,
    sealed: MapDelta,
    dirty: bool,
    /// It lost its last name since its block was written.
    nameless: bool,
    prealloc: Prealloc,
    /// Preallocated pages that the map does not have (I3).
    unwritten: u64,
    /// The same in the inode block on disk.
    unwritten_on_disk: u64,
    /// The next records have to name the pages that are preallocated: some are, or were since the
    /// inode was read.
    was_preallocated: bool,
}

/// Returns the page and the length of a file's tail, if a file of this size has one that may lie in
/// its inode block.
pub fn tail_of(size: u64) -> Option<(u64, usize)> {
    let len = (size % BLOCK_SIZE as u64) as usize;
    (1..=INLINE_MAX).contains(&len).then_some((size >> BLOCK_SHIFT, len))
}

/// Returns a page made of bytes and zeros.
pub fn padded(bytes: &[u8]) -> Box<Block> {
    let mut b = Block::zeroed();
    let n = bytes.len().min(BLOCK_SIZE);
    b.0[..n].copy_from_slice(&bytes[..n]);
    b
}

impl InodeState {
    /// Returns a new inode without content.
    pub fn new(ino: Ino, attrs: Attrs, parent: Ino) -> InodeState {
        InodeState {
            ino,
            attrs,
            nlink: 0,
            parent,
            version: 0,
            dir: DirShape::default(),
            block: BlockRef::NONE,
            packed: false,
            map: Map::new(ino),
            tail: None,
            xattrs: XattrPlace::Inline(Vec::new()),
            new_xattrs: None,
            delta: MapDelta::default(),
            sealed: MapDelta::default(),
            dirty: true,
            nameless: false,
            prealloc: Prealloc::NONE,
            unwritten: 0,
            unwritten_on_disk: 0,
            was_preallocated: false,
        }
    }

    /// Returns a new symbolic link. A target longer than the inode block can hold goes to the log.
    pub fn new_symlink(
        ino: Ino,
        attrs: Attrs,
        parent: Ino,
        target: &[u8],
        sink: &mut dyn BlockSink,
    ) -> Result<InodeState> {
        if target.len() > SYMLINK_MAX {
            return Err(StoreError::Invalid(format!("a link target of {} bytes", target.len())));
        }
        let mut s = InodeState::new(ino, Attrs { size: target.len() as u64, ..attrs }, parent);
        if target.len() <= INLINE_MAX {
            s.tail = (!target.is_empty()).then(|| (0, target.to_vec()));
        } else {
            let r = sink.write(Owner::Data { ino, page: 0 }, padded(target))?;
            let old = s.set_page(0, r, &*sink)?;
            debug_assert!(old.is_none(), "a new link {ino} has no pages");
        }
        s.check_invariants();
        Ok(s)
    }

    /// Unpacks the inode in the block `block` that its entry in the inode table refers to.
    pub fn from_block(ino: Ino, e: &TableEntry, block: &Block) -> Result<InodeState> {
        let r = e.block;
        let i = match e.slot {
            0 => inode::decode(block, r.addr, ino)?,
            slot => pack::decode_inode(block, r.addr, ino, slot)?,
        };
        let map = match i.map {
            MapImage::Inline(v) => Map::from_inline(ino, v),
            MapImage::Tree { root, height, pages } => {
                Map::from_root(ino, root, height, pages).ok_or_else(|| StoreError::Corrupt {
                    addr: r.addr,
                    what: "inode block",
                    why: format!("map root {} of height {height}", root.addr),
                })?
            }
        };
        Ok(InodeState {
            nlink: i.nlink,
            version: i.version,
            dir: i.dir,
            block: r,
            packed: e.slot != 0,
            map,
            tail: i.tail,
            xattrs: i.xattrs,
            dirty: false,
            nameless: false,
            prealloc: i.prealloc,
            unwritten: i.unwritten,
            unwritten_on_disk: i.unwritten,
            was_preallocated: !i.prealloc.is_empty(),
            ..InodeState::new(ino, i.attrs, i.parent)
        })
    }

    /// Reads an inode. Of a pack others may be read next.
    pub fn load(ino: Ino, e: &TableEntry, source: &(impl BlockSource + ?Sized)) -> Result<InodeState> {
        let block = match e.slot {
            0 => source.read_once(e.block, "inode block")?,
            _ => source.read(e.block, BlockKind::Pack.name())?,
        };
        InodeState::from_block(ino, e, &block)
    }

    // ---- what it is ----

    /// Returns its number.
    pub fn ino(&self) -> Ino {
        self.ino
    }
    /// Returns its attributes.
    pub fn attrs(&self) -> &Attrs {
        &self.attrs
    }
    /// Returns whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.attrs.kind() == Some(FileKind::Dir)
    }
    /// Returns the number of folded names.
    pub fn names(&self) -> u32 {
        self.nlink
    }
    /// Returns what `st_nlink` shows: names, or for a directory 2 plus its subdirectories.
    pub fn nlink_shown(&self) -> u32 {
        if self.is_dir() { u32::try_from(self.dir.subdirs + 2).unwrap_or(u32::MAX) } else { self.nlink }
    }
    /// Returns a directory's parent.
    pub fn parent(&self) -> Ino {
        self.parent
    }
    /// Returns the last update applied.
    pub fn version(&self) -> u64 {
        self.version
    }
    /// Returns what is known of the directory's folded entries.
    pub fn dir(&self) -> DirShape {
        self.dir
    }
    /// Returns the block that it was read from or written to, none if it was never written. A pack
    /// may have been written anew elsewhere since.
    pub fn block(&self) -> BlockRef {
        self.block
    }
    /// Returns whether it lies in a pack.
    pub fn is_packed(&self) -> bool {
        self.packed
    }
    /// Returns the number of pages that have a block of their own.
    pub fn mapped_pages(&self) -> u64 {
        self.map.pages()
    }
    /// Returns the number of nodes of its map that no block has been written for.
    pub fn pending_nodes(&self) -> u64 {
        self.map.pending_nodes()
    }
    /// Returns the number of nodes of its map that the next checkpoint writes.
    pub fn dirty_nodes(&self) -> u64 {
        self.map.dirty_nodes()
    }
    /// Returns the tail: its page and bytes.
    pub fn tail(&self) -> Option<(u64, &[u8])> {
        self.tail.as_ref().map(|(p, b)| (*p, &b[..]))
    }
    /// Returns the tail's page and length.
    pub fn tail_extent(&self) -> Option<(u64, usize)> {
        self.tail.as_ref().map(|(p, b)| (*p, b.len()))
    }
    /// Returns whether a write-out has anything to write.
    pub fn is_dirty(&self) -> bool {
        self.nameless || self.is_changed()
    }
    /// Returns the same, if an inode without names need not be written for having lost them.
    pub fn is_changed(&self) -> bool {
        self.dirty || self.map.is_dirty()
    }
    /// Returns the number of bytes of memory of the map and of what changed in it, about.
    pub fn map_memory(&self) -> usize {
        self.map.memory() + (self.delta.sets.len() + self.sealed.sets.len()) * 40
    }

    /// Returns the number of bytes of memory, about.
    pub fn memory(&self) -> usize {
        size_of::<Self>()
            + self.map_memory()
            + self.tail.as_ref().map_or(0, |t| t.1.capacity())
            + self.new_xattrs.as_ref().map_or(0, Vec::capacity)
            + match &self.xattrs {
                XattrPlace::Inline(b) => b.capacity(),
                XattrPlace::Blocks { refs, .. } => refs.capacity() * 16,
            }
    }

    /// Returns where the bytes of `page` are.
    pub fn lookup(&self, page: u64) -> Found<PageAt<'_>> {
        if let Some((p, bytes)) = &self.tail
            && *p == page
        {
            return Found::Here(PageAt::Inline(bytes));
        }
        self.map.get(page).map(|r| if r.is_none() { PageAt::Hole } else { PageAt::Block(r) })
    }

    /// Returns the first page at or after `page` that holds data.
    pub fn next_data(&self, page: u64) -> Found<Option<u64>> {
        let tail = self.tail.as_ref().map(|t| t.0).filter(|&t| t >= page);
        self.map.next_data(page).map(|m| {
            let first = match (m, tail) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            debug_assert!(first.is_none_or(|p| p >= page), "page {first:?} from {page} on");
            first
        })
    }

    /// Returns the first page at or after `page` that holds none. There always is one, if only past
    /// the end.
    pub fn next_hole(&self, page: u64) -> Found<u64> {
        match (self.map.next_hole(page), &self.tail) {
            (Found::Here(h), Some((t, _))) if h == *t => self.map.next_hole(h + 1),
            (found, _) => found,
        }
    }

    /// Takes a map node that was asked for. Harmless if the map has changed meanwhile.
    pub fn install(&mut self, w: &Wanted, block: &Block) -> Result<()> {
        self.map.install(w, block)
    }

    /// Returns the map node that changing `page` would have to read, if any.
    pub fn missing_for(&self, page: u64) -> Option<Wanted> {
        self.map.missing_for(page)
    }

    /// Returns the first map node that unmapping these pages would have to read, and the page at
    /// which to look on.
    pub fn missing_in(&self, pages: &Range<u64>) -> Option<(Wanted, u64)> {
        let mut from = pages.start;
        while from < pages.end {
            match self.map.next_data(from) {
                Found::Missing(w) => return Some((w, from)),
                Found::Here(Some(p)) if p < pages.end => from = (p | (FANOUT as u64 - 1)) + 1,
                Found::Here(_) => break,
            }
        }
        None
    }

    /// Asks until there is an answer, reading what is missing.
    pub fn resolve<T>(
        &mut self,
        source: &(impl BlockSource + ?Sized),
        ask: impl FnMut(&InodeState) -> Found<T>,
    ) -> Result<T> {
        crate::tree::radix::resolve(self, source, ask, |s, w, b| s.install(w, b))
    }

    // ---- changing it ----

    /// Sets mode and owner.
    pub fn set_rights(&mut self, mode: u32, uid: u32, gid: u32) {
        let new = Attrs { mode, uid, gid, ..self.attrs };
        self.dirty |= new != self.attrs;
        self.attrs = new;
    }

    /// Takes the attributes of an update. A file that became shorter than its tail loses the rest
    /// of it.
    pub fn apply_attrs(&mut self, attrs: &Attrs, version: u64) {
        self.attrs = *attrs;
        self.version = self.version.max(version);
        self.dirty = true;
        if !self.is_dir()
            && let Some((page, bytes)) = &mut self.tail
        {
            let left = attrs.size.saturating_sub(*page << BLOCK_SHIFT);
            bytes.truncate(left.min(BLOCK_SIZE as u64) as usize);
            if bytes.is_empty() {
                self.tail = None;
            }
        }
        debug_assert!(
            self.is_dir()
                || self.tail.as_ref().is_none_or(|(p, b)| (p << BLOCK_SHIFT) + b.len() as u64 <= attrs.size),
            "the tail of inode {} reaches beyond its {} bytes",
            self.ino,
            attrs.size
        );
        self.check_invariants();
    }

    /// Gives the inode's present state a version of its own, for a record that has all of it.
    pub fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.dirty = true;
        self.version
    }

    /// Sets the number of folded names.
    pub fn set_names(&mut self, names: u32) {
        match names {
            0 => self.nameless |= self.nlink > 0,
            n => self.dirty |= self.nlink != n,
        }
        self.nlink = names;
    }

    /// Sets the parent of a directory that has moved.
    pub fn set_parent(&mut self, parent: Ino) {
        self.dirty |= self.parent != parent;
        self.parent = parent;
    }

    /// Sets what is known of a directory's entries, which the fold has changed.
    pub fn set_dir(&mut self, dir: DirShape) {
        self.dirty |= self.dir != dir;
        self.dir = dir;
    }

    /// Maps `page` to a block and returns the block that is free now. Ends the page's being the
    /// tail.
    pub fn set_page(
        &mut self,
        page: u64,
        r: BlockRef,
        source: &(impl BlockSource + ?Sized),
    ) -> Result<Option<BlockAddr>> {
        let old = self.map.set(page, r, source)?;
        if self.tail.as_ref().is_some_and(|t| t.0 == page) {
            self.tail = None; // I1
        }
        if old.is_none() && self.prealloc.contains(page) {
            self.set_unwritten(self.unwritten.saturating_sub(1));
        }
        if !self.is_dir() {
            self.delta.sets.insert(page, r);
        }
        self.dirty = true;
        debug_assert!(self.tail.as_ref().is_none_or(|t| t.0 != page), "I1: page {page} is the tail too");
        self.check_invariants();
        Ok((!old.is_none()).then_some(old.addr))
    }

    /// Keeps the start of `page` in the inode block; trailing zeros need not be given. At most
    /// [`INLINE_MAX`] bytes. The caller writes a displaced tail as a block of its own.
    pub fn set_tail(
        &mut self,
        page: u64,
        bytes: Vec<u8>,
        source: &(impl BlockSource + ?Sized),
    ) -> Result<TailChange> {
        if bytes.len() > INLINE_MAX {
            return Err(StoreError::Invalid(format!("a tail of {} bytes", bytes.len())));
        }
        let old = self.map.set(page, BlockRef::NONE, source)?;
        if !old.is_none() && self.prealloc.contains(page) {
            self.unwritten += 1;
        }
        self.delta.unmap(page..page + 1);
        let displaced = self.tail.take().filter(|t| t.0 != page).map(|(p, b)| (p, padded(&b)));
        self.tail = (!bytes.is_empty()).then_some((page, bytes));
        self.dirty = true;
        debug_assert!(
            matches!(self.map.get(page), Found::Here(r) if r.is_none()),
            "I1: page {page} of inode {} is the tail, and mapped",
            self.ino
        );
        debug_assert!(displaced.as_ref().is_none_or(|d| d.0 != page), "page {page} displaces itself");
        self.check_invariants();
        Ok(TailChange { freed: (!old.is_none()).then_some(old.addr), displaced })
    }

    /// Maps a page of a directory to a bucket, or to none, and returns the block that is free now.
    pub(crate) fn set_bucket(
        &mut self,
        page: u64,
        r: BlockRef,
        source: &(impl BlockSource + ?Sized),
    ) -> Result<Option<BlockAddr>> {
        self.dirty = true;
        let old = self.map.set(page, r, source)?;
        Ok((!old.is_none()).then_some(old.addr))
    }

    /// Keeps the body of a directory's only bucket in the inode block; an empty one means that it
    /// is not there.
    pub(crate) fn set_inline_bucket(&mut self, body: Vec<u8>) {
        self.dirty = true;
        self.tail = (!body.is_empty()).then_some((BucketId::ROOT.page(), body));
        self.check_invariants();
    }

    /// Ends the tail.
    pub fn drop_tail(&mut self) {
        self.dirty |= self.tail.is_some();
        self.tail = None;
    }

    /// Takes note that pages lose what they have, but for the map.
    fn begin_unmap(&mut self, pages: &Range<u64>) {
        if self.tail.as_ref().is_some_and(|t| pages.contains(&t.0)) {
            self.tail = None;
        }
        self.dirty = true;
        if !self.is_dir() {
            self.delta.unmap(pages.clone());
        }
        debug_assert!(
            self.tail.as_ref().is_none_or(|t| !pages.contains(&t.0)),
            "the tail of inode {} is in {pages:?}, which become holes",
            self.ino
        );
    }

    /// Makes holes of a range of pages; `freed` gets the blocks they had.
    pub fn unmap(
        &mut self,
        pages: Range<u64>,
        source: &(impl BlockSource + ?Sized),
        freed: &mut impl Extend<BlockAddr>,
    ) -> Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        self.begin_unmap(&pages);
        if self.prealloc.is_empty() {
            self.map.unmap(pages, source, &mut |_, r| freed.extend([r.addr]))?;
            self.check_invariants();
            return Ok(());
        }
        let left = self.prealloc.without(&pages);
        let mut unmapped = 0;
        let r = self.map.unmap(pages, source, &mut |page, r| {
            unmapped += u64::from(self.prealloc.contains(page));
            freed.extend([r.addr]);
        });
        debug_assert!(left.pages() <= self.prealloc.pages(), "pages came to be preallocated");
        let lost = self.prealloc.pages() - left.pages();
        self.prealloc = left;
        self.set_unwritten((self.unwritten + unmapped).saturating_sub(lost));
        self.check_invariants();
        r.map(|_| ())
    }

    // ---- what is not durable yet ----

    /// Returns whether a crash would lose changes of the map.
    pub fn has_delta(&self) -> bool {
        !self.delta.is_empty() || !self.sealed.is_empty()
    }

    /// Returns the changes of the map that a batch has to carry (I2).
    pub fn delta(&self) -> MapDelta {
        let mut d = self.sealed.clone();
        d.append(self.delta.clone());
        d
    }

    /// Takes the same, for a batch that is going to be durable before anything that builds on it.
    pub fn take_delta(&mut self) -> MapDelta {
        let mut d = std::mem::take(&mut self.sealed);
        d.append(std::mem::take(&mut self.delta));
        d
    }

    /// Takes back what [`InodeState::take_delta`] gave, when the batch was not written. Nothing may
    /// have changed since.
    pub fn restore_delta(&mut self, delta: MapDelta) {
        debug_assert!(!self.has_delta(), "inode {} has changed since its delta was taken", self.ino);
        self.delta = delta;
    }

    /// Drops the changes that the checkpoint wrote out: it is durable.
    pub fn checkpoint_done(&mut self) {
        self.sealed = MapDelta::default();
    }

    // ---- to disk ----

    /// Writes what is dirty but the inode itself: map nodes, attribute blocks; frees the old ones.
    /// Returns the inode as it has to be written, by [`InodeState::write_own`] or into a pack.
    pub fn write_parts(&mut self, sink: &mut dyn BlockSink) -> Result<InodeBlock> {
        self.write_xattrs(sink)?;
        debug_assert!(self.new_xattrs.is_none(), "the attributes of inode {} were written", self.ino);
        let tail = self.tail.as_ref().map_or(0, |t| t.1.len());
        self.map.write_out(sink, map_room(&self.xattrs, tail) / MAP_ENTRY)?;
        Ok(InodeBlock {
            attrs: self.attrs,
            nlink: self.nlink,
            parent: self.parent,
            version: self.version,
            dir: self.dir,
            xattrs: self.xattrs.clone(),
            map: match self.map.shape() {
                MapShape::Inline(v) => MapImage::Inline(v.to_vec()),
                MapShape::Tree(root, height, pages) => MapImage::Tree { root, height, pages },
            },
            tail: self.tail.clone(),
            prealloc: self.prealloc,
            unwritten: self.unwritten,
        })
    }

    /// Writes the inode to a block of its own. The old one is not freed: the inode table knows
    /// where that is, and who else needs it.
    pub fn write_own(&mut self, image: &InodeBlock, sink: &mut dyn BlockSink) -> Result<BlockRef> {
        let block = inode::encode(self.ino, image)
            .ok_or_else(|| StoreError::BadInode { ino: self.ino, why: "its inode block overflows".into() })?;
        let r = sink.write(Owner::Inode { ino: self.ino }, block)?;
        debug_assert!(!r.is_none(), "the sink gives an address in the log");
        self.written(r, false, sink);
        Ok(r)
    }

    /// Takes note that what [`InodeState::write_parts`] returned has its place: a block of its own,
    /// or one in a pack.
    pub fn written(&mut self, block: BlockRef, packed: bool, sink: &mut dyn BlockSink) {
        (self.block, self.packed) = (block, packed);
        sink.count_unwritten(self.unwritten as i64 - self.unwritten_on_disk as i64);
        self.unwritten_on_disk = self.unwritten;
        (self.dirty, self.nameless) = (false, false);
        self.sealed.append(std::mem::take(&mut self.delta)); // I2
        debug_assert!(!self.is_dirty(), "all of inode {} was written", self.ino);
        self.check_invariants();
    }

    /// Takes note that an older state, without content, lies in a pack. What is here is still to be
    /// written.
    pub fn older_is_packed(&mut self, block: BlockRef) {
        debug_assert!(self.block.is_none() && self.dirty, "inode {} is on disk", self.ino);
        (self.block, self.packed) = (block, true);
    }

    /// Writes some dirty leaves of the map ahead of [`InodeState::write_parts`]; see
    /// [`Map::write_leaves`].
    pub fn write_leaves(&mut self, sink: &mut dyn BlockSink, from: &mut u64, max: usize) -> Result<bool> {
        self.map.write_leaves(sink, from, max)
    }

    /// Frees every block of the inode but the one that it lies in, which the inode table frees. The
    /// inode is gone afterwards.
    pub fn destroy(&mut self, sink: &mut dyn BlockSink) -> Result<()> {
        self.map.destroy(sink)?;
        debug_assert!(self.map.pages() == 0 && !self.map.is_dirty(), "inode {} has blocks left", self.ino);
        if let XattrPlace::Blocks { refs, .. } =
            std::mem::replace(&mut self.xattrs, XattrPlace::Inline(Vec::new()))
        {
            refs.iter().for_each(|r| sink.free(r.addr));
        }
        (self.block, self.packed) = (BlockRef::NONE, false);
        self.tail = None;
        self.new_xattrs = None;
        (self.prealloc, self.unwritten) = (Prealloc::NONE, 0);
        sink.count_unwritten(-(std::mem::take(&mut self.unwritten_on_disk) as i64));
        Ok(())
    }

    /// Drops from memory what can be read again.
    pub fn evict_clean(&mut self) {
        self.map.evict_clean();
    }

    /// Calls `f` with every page that has a block, in order.
    pub fn for_each_page(
        &mut self,
        source: &(impl BlockSource + ?Sized),
        f: &mut dyn FnMut(u64, BlockRef) -> Result<()>,
    ) -> Result<()> {
        self.map.for_each(source, f)
    }

    /// Checks, in debug builds, what changes keep and [`inode::decode`] asks of a block: I3, as far
    /// as it does not rest on a count on disk; that the tail, the attributes and their places are
    /// within bounds; I1, of an inline map; and that what was never written is dirty.
    fn check_invariants(&self) {
        let ino = self.ino;
        debug_assert!(self.unwritten > 0 || self.prealloc.is_empty(), "I3: inode {ino} keeps a promise");
        debug_assert!(
            self.prealloc.is_empty() || self.was_preallocated,
            "records of inode {ino} would leave out what is preallocated"
        );
        debug_assert!(
            self.tail.as_ref().is_none_or(|t| (1..=INLINE_MAX).contains(&t.1.len())),
            "the tail of inode {ino} is empty, or does not fit its block"
        );
        debug_assert!(
            match (&self.tail, self.map.shape()) {
                (Some((page, _)), MapShape::Inline(v)) => v.binary_search_by_key(page, |e| e.0).is_err(),
                _ => true,
            },
            "I1: the tail of inode {ino} is mapped too"
        );
        debug_assert!(
            self.new_xattrs.as_ref().is_none_or(|b| b.len() <= XATTR_BLOB_MAX),
            "the attributes of inode {ino} are more than can be written"
        );
        debug_assert!(
            match &self.xattrs {
                XattrPlace::Inline(b) => b.len() <= XATTR_INLINE,
                XattrPlace::Blocks { len, refs } => refs.len() == (*len as usize).div_ceil(XATTR_PER_BLOCK),
            },
            "the attributes of inode {ino} are not where they fit"
        );
        debug_assert!(!self.block.is_none() || self.dirty, "inode {ino} was never written, and is not dirty");
    }
}

/// For tests: inodes with blocks of their own, and nothing else that refers to these.
#[cfg(test)]
impl InodeState {
    /// Writes what is dirty, and frees the old inode block. Returns the inode's block.
    pub fn write_out(&mut self, sink: &mut dyn BlockSink) -> Result<BlockRef> {
        let old = self.block;
        if !self.is_dirty() && !old.is_none() {
            return Ok(old);
        }
        let image = self.write_parts(sink)?;
        let r = self.write_own(&image, sink)?;
        if !old.is_none() {
            sink.free(old.addr);
        }
        Ok(r)
    }

    /// Reads an inode from a block of its own.
    pub fn load_own(ino: Ino, r: BlockRef, source: &(impl BlockSource + ?Sized)) -> Result<InodeState> {
        InodeState::load(ino, &TableEntry { block: r, ..TableEntry::default() }, source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::MemLog;
    use lanefs_format::XATTR_BLOB_MAX;

    const INO: Ino = Ino(40);

    fn attrs(size: u64) -> Attrs {
        Attrs { mode: libc::S_IFREG | 0o644, size, generation: 1, ..Attrs::default() }
    }

    fn here<T>(f: Found<T>) -> T {
        match f {
            Found::Here(t) => t,
            Found::Missing(w) => panic!("missing {w:?}"),
        }
    }

    #[test]
    fn the_tail_rule() {
        assert_eq!(tail_of(0), None);
        assert_eq!(tail_of(1), Some((0, 1)));
        assert_eq!(tail_of(4096), None);
        assert_eq!(tail_of(4096 + 3400), Some((1, 3400)));
        assert_eq!(tail_of(4096 + 3401), None);
    }

    #[test]
    fn a_small_file_is_one_block() {
        let mut log = MemLog::default();
        let mut s = InodeState::new(INO, attrs(0), Ino(1));
        s.set_names(1);
        let t = s.set_tail(0, b"hello".to_vec(), &log).unwrap();
        assert!(t.freed.is_none() && t.displaced.is_none());
        s.apply_attrs(&attrs(5), 3);
        s.set_xattrs(b"abc".to_vec()).unwrap();
        let r = s.write_out(&mut log).unwrap();
        assert_eq!(log.blocks.len(), 1);
        let s = InodeState::load_own(INO, r, &log).unwrap();
        assert_eq!(here(s.lookup(0)), PageAt::Inline(b"hello"));
        assert_eq!((s.names(), s.version(), s.xattrs()), (1, 3, Ok(&b"abc"[..])));
        assert_eq!((here(s.next_data(0)), here(s.next_hole(0))), (Some(0), 1));
        assert!(!s.is_dirty() && !s.has_delta());
    }

    #[test]
    fn a_growing_file_displaces_its_tail_and_a_shrinking_one_cuts_it() {
        let mut log = MemLog::default();
        let mut s = InodeState::new(INO, attrs(100), Ino(1));
        let _ = s.set_tail(0, vec![7; 100], &log).unwrap();
        let t = s.set_tail(2, vec![8; 50], &log).unwrap();
        let (page, block) = t.displaced.unwrap();
        assert_eq!((page, block.0[99], block.0[100]), (0, 7, 0));
        let r = log.write(Owner::Data { ino: INO, page }, block).unwrap();
        assert_eq!(s.set_page(0, r, &log).unwrap(), None);
        assert_eq!(here(s.next_hole(0)), 1);
        assert_eq!(here(s.next_data(1)), Some(2));
        s.apply_attrs(&attrs(2 * 4096 + 10), 2);
        assert_eq!(here(s.lookup(2)), PageAt::Inline(&[8; 10]));
        s.apply_attrs(&attrs(4096), 3);
        assert_eq!(here(s.lookup(2)), PageAt::Hole);
        // A block that becomes the tail is free.
        let t = s.set_tail(0, vec![1], &log).unwrap();
        assert_eq!(t.freed, Some(r.addr));
    }

    #[test]
    fn a_write_out_keeps_the_delta_until_the_checkpoint_is_durable() {
        let mut log = MemLog::default();
        let mut s = InodeState::new(INO, attrs(0), Ino(1));
        for p in 0..3 {
            let r = log.data(INO, p, 1);
            s.set_page(p, r, &log).unwrap();
        }
        s.write_out(&mut log).unwrap();
        let mut freed = Vec::new();
        s.unmap(1..2, &log, &mut freed).unwrap();
        let r = log.data(INO, 7, 1);
        s.set_page(7, r, &log).unwrap();
        let d = s.delta();
        assert_eq!(d.unmaps, vec![1..2]);
        assert_eq!(d.sets.keys().copied().collect::<Vec<_>>(), [0, 2, 7]);
        s.checkpoint_done();
        assert_eq!(s.take_delta().sets.keys().copied().collect::<Vec<_>>(), [7]);
        assert!(!s.has_delta());
    }

    #[test]
    fn long_attributes_and_long_links_take_blocks_and_give_them_back() {
        let mut log = MemLog::default();
        let target = vec![b't'; 4000];
        let mut s = InodeState::new_symlink(INO, attrs(0), Ino(1), &target, &mut log).unwrap();
        assert_eq!(s.attrs().size, 4000);
        let blob: Vec<u8> = (0..XATTR_BLOB_MAX).map(|i| i as u8).collect();
        s.set_xattrs(blob.clone()).unwrap();
        let r = s.write_out(&mut log).unwrap();
        assert_eq!(log.blocks.len(), 1 + 33 + 1);
        let mut s = InodeState::load_own(INO, r, &log).unwrap();
        let (len, refs) = s.xattrs().unwrap_err();
        assert_eq!(read_xattrs(INO, len, refs, &log).unwrap(), blob);
        // The cleaner asks for the second attribute block.
        let second = Owner::Xattr { ino: INO, index: 1 };
        let old = here(s.current(second));
        assert!(s.rewrite(second, &log).unwrap());
        s.write_out(&mut log).unwrap();
        assert!(!log.blocks.contains_key(&old.addr));
        assert_eq!(log.blocks.len(), 1 + 33 + 1);
        assert!(s.set_xattrs(vec![0; XATTR_BLOB_MAX + 1]).is_err());
        let own = s.block();
        s.destroy(&mut log).unwrap();
        log.free(own.addr);
        assert!(log.blocks.is_empty());
    }

    #[test]
    fn a_map_that_does_not_fit_beside_the_tail_becomes_a_tree() {
        let mut log = MemLog::default();
        let mut s = InodeState::new(INO, attrs(50 * 4096 + 3000), Ino(1));
        for p in 0..50 {
            let r = log.data(INO, p, 1);
            s.set_page(p, r, &log).unwrap();
        }
        let _ = s.set_tail(50, vec![1; 3000], &log).unwrap();
        let r = s.write_out(&mut log).unwrap();
        assert_eq!(log.blocks.len(), 50 + 2);
        let mut s = InodeState::load_own(INO, r, &log).unwrap();
        assert!(matches!(s.lookup(49), Found::Missing(_)));
        assert!(matches!(s.resolve(&log, |s| s.map.get(49)).unwrap(), r if !r.is_none()));
        assert_eq!(s.mapped_pages(), 50);
    }
}
