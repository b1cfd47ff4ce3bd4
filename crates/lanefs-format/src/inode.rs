//! The inode block: a 4 KiB block of an inode's own, with as much of the file in it as fits. (What
//! needs little of that may share a block: see `pack`.)
//!
//! ```text
//! inode := header[64] fixed[192] xattrs map tail zero*
//! xattrs := the encoded attributes if they take at most XATTR_INLINE bytes, else (addr:u64 crc:u32)[xattr_blocks]
//! map    := (page:u64 addr:u64 crc:u32)[map_count] if map_form is INLINE, else nothing
//! tail   := bytes of page `tail_page`, from its start; the rest of that page is zeros
//! xattr block := header[64] bytes[4032], index n holds bytes from n * 4032 on
//! ```
//!
//! A directory that is small enough has its only bucket (page 1) as its tail.

use crate::error::{FormatError, Result};
use crate::header::{BlockKind, HEADER_LEN, expect_header, put_header};
use crate::map_node::{KEY_END, MAX_HEIGHT, PENDING};
use crate::prealloc::{PREALLOC_LEN, Prealloc};
use crate::types::{
    Attrs, BLOCK_SIZE, Block, BlockAddr, BlockRef, COUNTER_END, FileKind, INLINE_MAX, Ino, MAX_FILE_SIZE,
    PAGES_END, XATTR_BLOB_MAX, inode_flags,
};
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes for attributes, inline map and tail.
pub const INODE_ROOM: usize = BLOCK_SIZE - HEADER_LEN - size_of::<Fixed>();
/// Extended attributes of up to this many bytes lie in the inode block.
pub const XATTR_INLINE: usize = INODE_ROOM - INLINE_MAX;
/// Bytes of extended attributes in one block of their own.
pub const XATTR_PER_BLOCK: usize = BLOCK_SIZE - HEADER_LEN;
/// Bytes of one entry of an inline map.
pub const MAP_ENTRY: usize = 20;
/// Bytes of one reference.
const REF: usize = 12;

const FORM_INLINE: u8 = 0;
const FORM_TREE: u8 = 1;

/// The part of an inode block that every inode has.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Fixed {
    mode: U32,
    uid: U32,
    gid: U32,
    flags: U32,
    rdev: U64,
    size: U64,
    atime: I64,
    mtime: I64,
    ctime: I64,
    btime: I64,
    generation: U32,
    nlink: U32,
    parent: U64,
    version: U64,
    map_form: u8,
    map_height: u8,
    dir_depth: u8,
    zero: [u8; 5],
    map_pages: U64,
    root_addr: U64,
    root_crc: U32,
    map_count: U16,
    tail_len: U16,
    tail_page: U64,
    xattr_len: U32,
    xattr_blocks: U16,
    zero2: U16,
    dir_entries: U64,
    dir_subdirs: U64,
    prealloc: [u8; PREALLOC_LEN],
    unwritten: U64,
}

const _: () = assert!(size_of::<Fixed>() == 192);
const _: () = assert!(XATTR_BLOB_MAX.div_ceil(XATTR_PER_BLOCK) * REF <= XATTR_INLINE);
const _: () = assert!(XATTR_BLOB_MAX.div_ceil(XATTR_PER_BLOCK) <= u16::MAX as usize);
const _: () = assert!(REF < MAP_ENTRY && FORM_INLINE != FORM_TREE);
const _: () = assert!(INODE_ROOM + 256 == BLOCK_SIZE && INLINE_MAX < INODE_ROOM);

/// The figures of a directory's folded entries, as its inode has them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DirShape {
    /// The most cookie bits any bucket is split by.
    pub depth: u8,
    /// Folded entries.
    pub entries: u64,
    /// Folded entries that name directories.
    pub subdirs: u64,
}

/// The place of the extended attributes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the line of each variant names its fields
pub enum XattrPlace {
    /// In the inode block.
    Inline(Vec<u8>),
    /// `len` bytes in blocks of their own.
    Blocks { len: u32, refs: Vec<BlockRef> },
}

/// The map as an inode block holds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MapImage {
    /// All of it, by page.
    Inline(Vec<(u64, BlockRef)>),
    /// A tree.
    Tree {
        /// Its root.
        root: BlockRef,
        /// Its levels, 1 or more.
        height: u8,
        /// Pages it maps.
        pages: u64,
    },
}

/// An inode block, unpacked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InodeBlock {
    /// Attributes.
    pub attrs: Attrs,
    /// Folded names.
    pub nlink: u32,
    /// A directory's parent; otherwise where the inode was made.
    pub parent: Ino,
    /// The last update it carries; later ones are greater.
    pub version: u64,
    /// The directory's entries, if it is one.
    pub dir: DirShape,
    /// Extended attributes.
    pub xattrs: XattrPlace,
    /// The map.
    pub map: MapImage,
    /// A page kept here, and its bytes up to the last that is not zero padding.
    pub tail: Option<(u64, Vec<u8>)>,
    /// Pages for which space is kept.
    pub prealloc: Prealloc,
    /// The number of these that have no block.
    pub unwritten: u64,
}

impl InodeBlock {
    /// Checks, in debug builds, that every part has the form that a decoder asks for. What an inode
    /// counts of itself is not looked at: an older image may have it wrong.
    fn check_invariants(&self) {
        match &self.xattrs {
            XattrPlace::Inline(b) => {
                debug_assert!(b.len() <= XATTR_INLINE, "{} bytes beside a tail", b.len())
            }
            XattrPlace::Blocks { len, refs } => {
                debug_assert!(*len as usize <= XATTR_BLOB_MAX, "{len} bytes of extended attributes");
                debug_assert_eq!(refs.len(), (*len as usize).div_ceil(XATTR_PER_BLOCK), "{len} bytes");
                debug_assert!(!refs.is_empty(), "no attributes take no blocks");
            }
        }
        match &self.map {
            MapImage::Inline(v) => debug_assert!(v.is_sorted_by(|a, b| a.0 < b.0), "a map out of order"),
            MapImage::Tree { root, height, .. } => {
                debug_assert!((1..=MAX_HEIGHT).contains(height), "a map of height {height}");
                debug_assert!(!root.is_none() && root.addr != PENDING, "a map whose root was not written");
            }
        }
        if let Some((page, bytes)) = &self.tail {
            debug_assert!(!bytes.is_empty(), "page {page} is no tail: nothing is in it");
            debug_assert!(bytes.len() <= INLINE_MAX, "a tail of {} bytes", bytes.len());
        }
    }
}

#[inline]
fn put_ref(out: &mut Vec<u8>, r: BlockRef) {
    debug_assert!(!r.is_none(), "a hole is not written down");
    debug_assert!(r.addr != PENDING, "a child without an address reached the disk");
    out.extend_from_slice(&r.addr.0.to_le_bytes());
    out.extend_from_slice(&r.crc.to_le_bytes());
}

#[inline]
fn get_ref(b: &[u8]) -> Option<BlockRef> {
    let addr = u64::from_le_bytes(b.get(..8)?.try_into().ok()?);
    let crc = u32::from_le_bytes(b.get(8..12)?.try_into().ok()?);
    let r = BlockRef { addr: BlockAddr(addr), crc };
    (!r.is_none() && r.addr != PENDING).then_some(r)
}

/// Returns the bytes that attributes take in the inode block.
#[inline]
fn xattr_len(xattrs: &XattrPlace) -> usize {
    match xattrs {
        XattrPlace::Inline(b) => b.len(),
        XattrPlace::Blocks { refs, .. } => refs.len() * REF,
    }
}

/// Returns how many bytes are left for inline map entries beside these attributes and this tail.
#[inline]
pub fn map_room(xattrs: &XattrPlace, tail: usize) -> usize {
    let x = xattr_len(xattrs);
    debug_assert!(x <= XATTR_INLINE, "{x} bytes of attributes in an inode block");
    debug_assert!(tail <= INLINE_MAX, "a tail of {tail} bytes");
    INODE_ROOM.saturating_sub(x + tail)
}

/// Returns the part that every inode has. `None` if a count in it is more than it can say.
pub(crate) fn fixed_of(i: &InodeBlock) -> Option<Fixed> {
    i.check_invariants();
    let mut f = Fixed::new_zeroed();
    f.mode = U32::new(i.attrs.mode);
    f.uid = U32::new(i.attrs.uid);
    f.gid = U32::new(i.attrs.gid);
    f.flags = U32::new(i.attrs.flags);
    f.rdev = U64::new(i.attrs.rdev);
    f.size = U64::new(i.attrs.size);
    f.atime = I64::new(i.attrs.atime);
    f.mtime = I64::new(i.attrs.mtime);
    f.ctime = I64::new(i.attrs.ctime);
    f.btime = I64::new(i.attrs.btime);
    f.generation = U32::new(i.attrs.generation);
    f.nlink = U32::new(i.nlink);
    f.parent = U64::new(i.parent.0);
    f.version = U64::new(i.version);
    f.dir_depth = i.dir.depth;
    f.dir_entries = U64::new(i.dir.entries);
    f.dir_subdirs = U64::new(i.dir.subdirs);
    match &i.xattrs {
        XattrPlace::Inline(b) => f.xattr_len = U32::new(b.len() as u32),
        XattrPlace::Blocks { len, refs } => {
            f.xattr_len = U32::new(*len);
            f.xattr_blocks = U16::new(refs.len() as u16);
        }
    }
    match &i.map {
        MapImage::Inline(v) => {
            f.map_form = FORM_INLINE;
            f.map_count = U16::new(u16::try_from(v.len()).ok()?);
            f.map_pages = U64::new(v.len() as u64);
        }
        MapImage::Tree { root, height, pages } => {
            f.map_form = FORM_TREE;
            f.map_height = *height;
            f.map_pages = U64::new(*pages);
            f.root_addr = U64::new(root.addr.0);
            f.root_crc = U32::new(root.crc);
        }
    }
    f.prealloc = i.prealloc.encode();
    f.unwritten = U64::new(i.unwritten);
    if let Some((page, bytes)) = &i.tail {
        f.tail_page = U64::new(*page);
        f.tail_len = U16::new(u16::try_from(bytes.len()).ok()?);
    }
    Some(f)
}

/// Returns the length of what [`put_rest`] appends.
pub(crate) fn rest_len(i: &InodeBlock) -> usize {
    let map = if let MapImage::Inline(v) = &i.map { v.len() * MAP_ENTRY } else { 0 };
    let tail = i.tail.as_ref().map_or(0, |t| t.1.len());
    debug_assert!(tail <= INLINE_MAX, "a tail of {tail} bytes");
    xattr_len(&i.xattrs) + map + tail
}

/// Appends attributes, inline map entries and tail.
pub(crate) fn put_rest(out: &mut Vec<u8>, i: &InodeBlock) {
    let before = out.len();
    match &i.xattrs {
        XattrPlace::Inline(b) => out.extend_from_slice(b),
        XattrPlace::Blocks { refs, .. } => refs.iter().for_each(|r| put_ref(out, *r)),
    }
    if let MapImage::Inline(v) = &i.map {
        for (page, r) in v {
            out.extend_from_slice(&page.to_le_bytes());
            put_ref(out, *r);
        }
    }
    if let Some((_, bytes)) = &i.tail {
        out.extend_from_slice(bytes);
    }
    debug_assert_eq!(out.len() - before, rest_len(i), "more or less than it takes was written");
}

/// Packs an inode into a block whose header is still to be sealed. `None` if it does not fit.
pub fn encode(ino: Ino, i: &InodeBlock) -> Option<Box<Block>> {
    let f = fixed_of(i)?;
    if rest_len(i) > INODE_ROOM {
        return None;
    }
    let mut var = Vec::with_capacity(INODE_ROOM);
    put_rest(&mut var, i);
    let mut b = Block::zeroed();
    put_header(&mut b, BlockKind::Inode, 0, ino, 0);
    let at = HEADER_LEN + size_of::<Fixed>();
    b.0[HEADER_LEN..at].copy_from_slice(f.as_bytes());
    b.0[at..at + var.len()].copy_from_slice(&var);
    Some(b)
}

/// The bytes of an inode that are not decoded yet, and where they were read.
struct Rest<'a> {
    bytes: &'a [u8],
    addr: BlockAddr,
    what: &'static str,
}

impl<'a> Rest<'a> {
    fn bad(&self, why: String) -> FormatError {
        FormatError { addr: self.addr, what: self.what, why }
    }

    /// Takes the next `n` bytes.
    fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8]> {
        let (taken, rest) = self
            .bytes
            .split_at_checked(n)
            .ok_or_else(|| self.bad(format!("{what} of {n} bytes overrun it")))?;
        self.bytes = rest;
        Ok(taken)
    }

    /// Takes the extended attributes, or where they are.
    fn xattrs(&mut self, f: &Fixed) -> Result<XattrPlace> {
        let (len, n) = (f.xattr_len.get() as usize, usize::from(f.xattr_blocks.get()));
        if n == 0 {
            if len > XATTR_INLINE {
                return Err(self.bad(format!("{len} bytes of extended attributes without blocks")));
            }
            return Ok(XattrPlace::Inline(self.take(len, "extended attributes")?.to_vec()));
        }
        if len > XATTR_BLOB_MAX || n != len.div_ceil(XATTR_PER_BLOCK) {
            return Err(self.bad(format!("{len} bytes of extended attributes in {n} blocks")));
        }
        let refs = (self.take(n * REF, "attribute references")?.chunks_exact(REF))
            .map(|b| get_ref(b).ok_or_else(|| self.bad("attribute reference without address".into())))
            .collect::<Result<Vec<_>>>()?;
        Ok(XattrPlace::Blocks { len: len as u32, refs })
    }

    /// Takes the map, whose pages are below `pages_end`.
    fn map(&mut self, f: &Fixed, pages_end: u64) -> Result<MapImage> {
        let count = usize::from(f.map_count.get());
        if f.map_form != FORM_INLINE && count != 0 {
            return Err(self.bad(format!("{count} inline map entries in map form {}", f.map_form)));
        }
        match f.map_form {
            FORM_INLINE => {
                let mut v: Vec<(u64, BlockRef)> = Vec::with_capacity(count);
                for e in self.take(count * MAP_ENTRY, "map entries")?.chunks_exact(MAP_ENTRY) {
                    let page = e.first_chunk().map_or(u64::MAX, |b| u64::from_le_bytes(*b));
                    let r =
                        get_ref(&e[8..]).ok_or_else(|| self.bad(format!("page {page} without address")))?;
                    if page >= pages_end || v.last().is_some_and(|l| l.0 >= page) {
                        return Err(self.bad(format!("map entry for page {page} is out of order")));
                    }
                    v.push((page, r));
                }
                Ok(MapImage::Inline(v))
            }
            FORM_TREE => {
                let root = BlockRef { addr: BlockAddr(f.root_addr.get()), crc: f.root_crc.get() };
                if root.is_none() || root.addr == PENDING || !(1..=MAX_HEIGHT).contains(&f.map_height) {
                    return Err(self.bad(format!("map root {} of height {}", root.addr, f.map_height)));
                }
                Ok(MapImage::Tree { root, height: f.map_height, pages: f.map_pages.get() })
            }
            form => Err(self.bad(format!("unknown map form {form}"))),
        }
    }

    /// Takes the tail, whose page is below `pages_end`.
    fn tail(&mut self, f: &Fixed, pages_end: u64) -> Result<Option<(u64, Vec<u8>)>> {
        let (page, n) = (f.tail_page.get(), usize::from(f.tail_len.get()));
        if n == 0 {
            return Ok(None);
        }
        if n > INLINE_MAX || page >= pages_end {
            return Err(self.bad(format!("tail of {n} bytes at page {page}")));
        }
        Ok(Some((page, self.take(n, "tail")?.to_vec())))
    }
}

/// Unpacks the inode block of `ino`.
pub fn decode(block: &Block, addr: BlockAddr, ino: Ino) -> Result<InodeBlock> {
    expect_header(block, addr, BlockKind::Inode, 0, ino, 0)?;
    let at = HEADER_LEN + size_of::<Fixed>();
    let f = Fixed::read_from_bytes(&block.0[HEADER_LEN..at]).map_err(|_| FormatError {
        addr,
        what: "inode block",
        why: "cut short".into(),
    })?;
    Ok(decode_parts(&f, &block.0[at..], addr, "inode block")?.0)
}

/// Unpacks an inode of its fixed part and the bytes behind that. Returns how many of them it does
/// not take, too.
pub(crate) fn decode_parts(
    f: &Fixed,
    bytes: &[u8],
    addr: BlockAddr,
    what: &'static str,
) -> Result<(InodeBlock, usize)> {
    let bad = |why: String| FormatError { addr, what, why };
    let kind = FileKind::from_mode(f.mode.get())
        .ok_or_else(|| bad(format!("mode {:o} names no kind of file", f.mode.get())))?;
    if f.zero != [0; 5] || f.zero2.get() != 0 {
        return Err(bad("reserved bytes are not zero".into()));
    }

    if f.size.get() > MAX_FILE_SIZE || f.version.get() >= COUNTER_END {
        return Err(bad(format!("size {} and version {}", f.size, f.version)));
    }
    if f.flags.get() & !inode_flags::ALL != 0 {
        return Err(bad(format!("unknown flags {:#x}", f.flags)));
    }
    let pages_end = if kind == FileKind::Dir { KEY_END } else { PAGES_END };

    let mut rest = Rest { bytes, addr, what };
    let xattrs = rest.xattrs(f)?;
    let map = rest.map(f, pages_end)?;
    let tail = rest.tail(f, pages_end)?;
    if let (MapImage::Inline(v), Some((page, _))) = (&map, &tail)
        && v.binary_search_by_key(page, |e| e.0).is_ok()
    {
        return Err(bad(format!("page {page} is both mapped and the tail")));
    }
    if kind != FileKind::Dir && (f.dir_depth != 0 || f.dir_entries.get() != 0 || f.dir_subdirs.get() != 0) {
        return Err(bad("directory fields in something else".into()));
    }
    let prealloc = Prealloc::decode(&f.prealloc)
        .filter(|p| p.is_empty() || f.mode.get() & libc::S_IFMT == libc::S_IFREG)
        .filter(|p| p.is_empty() == (f.unwritten.get() == 0) && f.unwritten.get() <= p.pages())
        .ok_or_else(|| bad(format!("preallocated pages, {} of them not written", f.unwritten)))?;
    if f.dir_depth > 55 || f.dir_subdirs.get() > f.dir_entries.get() {
        return Err(bad(format!("directory depth {}", f.dir_depth)));
    }

    let inode = InodeBlock {
        attrs: Attrs {
            mode: f.mode.get(),
            uid: f.uid.get(),
            gid: f.gid.get(),
            flags: f.flags.get(),
            rdev: f.rdev.get(),
            size: f.size.get(),
            atime: f.atime.get(),
            mtime: f.mtime.get(),
            ctime: f.ctime.get(),
            btime: f.btime.get(),
            generation: f.generation.get(),
        },
        nlink: f.nlink.get(),
        parent: Ino(f.parent.get()),
        version: f.version.get(),
        dir: DirShape { depth: f.dir_depth, entries: f.dir_entries.get(), subdirs: f.dir_subdirs.get() },
        xattrs,
        map,
        tail,
        prealloc,
        unwritten: f.unwritten.get(),
    };
    Ok((inode, rest.bytes.len()))
}

/// Packs block `index` of an inode's extended attributes.
pub fn encode_xattr_block(ino: Ino, index: u64, bytes: &[u8]) -> Box<Block> {
    debug_assert!((1..=XATTR_PER_BLOCK).contains(&bytes.len()), "{} bytes for one block", bytes.len());
    debug_assert!(index < XATTR_BLOB_MAX.div_ceil(XATTR_PER_BLOCK) as u64, "block {index} of attributes");
    let mut b = Block::zeroed();
    put_header(&mut b, BlockKind::Xattr, 0, ino, index);
    let n = bytes.len().min(XATTR_PER_BLOCK);
    b.0[HEADER_LEN..HEADER_LEN + n].copy_from_slice(&bytes[..n]);
    b
}

/// Returns the bytes of block `index` of an inode's extended attributes.
pub fn decode_xattr_block(block: &Block, addr: BlockAddr, ino: Ino, index: u64) -> Result<&[u8]> {
    expect_header(block, addr, BlockKind::Xattr, 0, ino, index)?;
    Ok(&block.0[HEADER_LEN..])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> InodeBlock {
        InodeBlock {
            attrs: Attrs {
                mode: libc::S_IFREG | 0o640,
                uid: 1,
                gid: 2,
                flags: inode_flags::APPEND | inode_flags::NODUMP,
                rdev: 0,
                size: 4096 * 9 + 100,
                atime: -1,
                mtime: 2,
                ctime: 3,
                btime: 4,
                generation: 7,
            },
            nlink: 2,
            parent: Ino(1),
            version: 5,
            dir: DirShape::default(),
            xattrs: XattrPlace::Inline(b"user.a=b".to_vec()),
            map: MapImage::Inline(
                (0..9).map(|p| (p, BlockRef { addr: BlockAddr(100 + p), crc: 9 })).collect(),
            ),
            tail: Some((9, vec![5; 100])),
            prealloc: Prealloc::NONE.with(4..30).with(40..44),
            unwritten: 25,
        }
    }

    #[test]
    fn inodes_survive_the_trip() {
        let a = BlockAddr(77);
        let mut i = sample();
        let b = encode(Ino(20), &i).unwrap();
        assert_eq!(decode(&b, a, Ino(20)).unwrap(), i);
        assert!(decode(&b, a, Ino(21)).is_err());
        let refs = (0..33).map(|n| BlockRef { addr: BlockAddr(500 + n), crc: 1 }).collect();
        i.xattrs = XattrPlace::Blocks { len: XATTR_BLOB_MAX as u32, refs };
        i.tail = Some((9, vec![6; INLINE_MAX]));
        assert!(encode(Ino(20), &i).is_none(), "nine entries do not fit beside the largest tail");
        i.map = MapImage::Tree { root: BlockRef { addr: BlockAddr(8), crc: 3 }, height: 2, pages: 1000 };
        assert_eq!(decode(&encode(Ino(20), &i).unwrap(), a, Ino(20)).unwrap(), i);
    }

    #[test]
    fn flags_that_nobody_knows_are_refused() {
        for bit in 0..32 {
            let mut i = sample();
            i.attrs.flags = 1 << bit;
            let known = inode_flags::ALL & 1 << bit != 0;
            assert_eq!(decode(&encode(Ino(20), &i).unwrap(), BlockAddr(77), Ino(20)).is_ok(), known, "{bit}");
        }
    }

    #[test]
    fn no_change_of_a_byte_makes_the_decoder_panic() {
        let b = encode(Ino(20), &sample()).unwrap();
        for at in 0..700 {
            for v in [0u8, 1, 0x7f, 0x80, 0xff] {
                let mut c = b.clone();
                c.0[at] = v;
                let _ = decode(&c, BlockAddr(77), Ino(20));
            }
        }
    }
}
