//! A bucket of a directory: its entries whose cookies share a prefix.
//!
//! ```text
//! body   := count:u16 len:u16 entry*                  `len` bytes of entries, by ascending cookie
//! entry  := cookie:u64 ino:u64 kind:u8 name_len:u8 name[name_len]
//! bucket := header[64] body zero*                     header.index is the page
//! ```
//!
//! The bucket for the first `l` of a cookie's 63 bits being `prefix` is page `(1 << l) + prefix` of
//! the directory's map. A directory has either no bucket, or one for every cookie: the buckets'
//! ranges cover all cookies and do not overlap. The bucket with l = 0 (page 1) lies in the inode
//! block as its tail, as a body, if it fits.

use crate::error::{FormatError, Result};
use crate::header::{BlockKind, HEADER_LEN, expect_header, put_header};
use crate::map_node::KEY_END;
use crate::types::{BLOCK_SIZE, Block, BlockAddr, BucketEntry, FileKind, INLINE_MAX, Ino, NAME_MAX};

/// Bytes before the first entry of a body.
pub const BODY_HEADER: usize = 4;
/// Bytes of an entry without its name.
pub const ENTRY_HEADER: usize = 18;
/// Bytes of entries in a bucket block.
pub const BUCKET_ROOM: usize = BLOCK_SIZE - HEADER_LEN - BODY_HEADER;
/// Bytes of entries in an inode block.
pub const INLINE_ROOM: usize = INLINE_MAX - BODY_HEADER;
/// Bits of a cookie.
pub const COOKIE_BITS: u32 = 63;
/// The highest cookie.
pub const COOKIE_MAX: u64 = (1 << COOKIE_BITS) - 1;
/// Low bits that tell entries with the same hash apart.
pub const COLLISION_BITS: u32 = 3;
/// The most cookie bits a bucket can be split by: pages end at 2^56.
pub const DEPTH_MAX: u8 = 55;

const _: () = assert!(BUCKET_ROOM <= u16::MAX as usize && INLINE_ROOM < BUCKET_ROOM);
const _: () = assert!(KEY_END == 1 << (DEPTH_MAX as u32 + 1), "every bucket has a page of the map");
const _: () = assert!(
    BUCKET_ROOM >= (ENTRY_HEADER + NAME_MAX) << COLLISION_BITS,
    "all names with one hash fit a bucket, so that splitting ends"
);

/// The identity of a bucket: the first `depth` bits of its cookies are `prefix`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BucketId {
    /// The number of bits.
    pub depth: u8,
    /// Their value.
    pub prefix: u64,
}

impl BucketId {
    /// The one bucket for all cookies.
    pub const ROOT: BucketId = BucketId { depth: 0, prefix: 0 };

    /// Returns the bucket at `depth` that would hold `cookie`.
    #[inline]
    pub const fn of(cookie: u64, depth: u8) -> BucketId {
        debug_assert!(depth <= DEPTH_MAX, "a bucket deeper than any");
        BucketId { depth, prefix: cookie >> (COOKIE_BITS - depth as u32) }
    }
    /// Returns its page in the directory's map.
    #[inline]
    pub const fn page(self) -> u64 {
        (1 << self.depth) + self.prefix
    }
    /// Returns the bucket with this page; page 0 is none.
    #[inline]
    pub const fn from_page(page: u64) -> Option<BucketId> {
        let Some(depth) = page.checked_ilog2() else { return None };
        if depth > DEPTH_MAX as u32 {
            return None;
        }
        let id = BucketId { depth: depth as u8, prefix: page - (1 << depth) };
        debug_assert!(id.page() == page && id.prefix >> depth == 0, "a page is one bucket's");
        Some(id)
    }
    /// Returns the lowest cookie it covers.
    #[inline]
    pub const fn low(self) -> u64 {
        self.prefix << (COOKIE_BITS - self.depth as u32)
    }
    /// Returns the highest cookie it covers.
    #[inline]
    pub const fn high(self) -> u64 {
        self.low() + ((1 << (COOKIE_BITS - self.depth as u32)) - 1)
    }
    /// Returns the bucket it would be merged with.
    #[inline]
    pub const fn sibling(self) -> BucketId {
        debug_assert!(self.depth > 0, "the bucket for all cookies has no sibling");
        BucketId { depth: self.depth, prefix: self.prefix ^ 1 }
    }
    /// Returns the bucket that it and its sibling would merge to; the root's is itself.
    #[inline]
    pub const fn parent(self) -> BucketId {
        if self.depth == 0 { self } else { BucketId { depth: self.depth - 1, prefix: self.prefix >> 1 } }
    }
    /// Returns the buckets that it splits into.
    #[inline]
    pub const fn children(self) -> [BucketId; 2] {
        debug_assert!(self.depth < DEPTH_MAX, "a bucket that cannot be split");
        let depth = self.depth + 1;
        [BucketId { depth, prefix: self.prefix << 1 }, BucketId { depth, prefix: self.prefix << 1 | 1 }]
    }
}

/// An entry as it lies in a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryRef<'a> {
    /// Its place in hash order.
    pub cookie: u64,
    /// The inode it names.
    pub ino: Ino,
    /// The kind of that inode.
    pub kind: FileKind,
    /// Its name.
    pub name: &'a [u8],
}

impl EntryRef<'_> {
    /// Appends the entry to a body's entries.
    #[inline]
    pub fn put(&self, out: &mut Vec<u8>) {
        debug_assert!((1..=NAME_MAX).contains(&self.name.len()), "a name of {} bytes", self.name.len());
        debug_assert!(!self.ino.is_none(), "an entry names an inode");
        out.extend_from_slice(&self.cookie.to_le_bytes());
        out.extend_from_slice(&self.ino.0.to_le_bytes());
        out.extend_from_slice(&[self.kind as u8, self.name.len() as u8]);
        out.extend_from_slice(self.name);
    }
    /// Returns the entry with a name of its own.
    pub fn to_owned(&self) -> BucketEntry {
        BucketEntry { cookie: self.cookie, ino: self.ino, kind: self.kind, name: self.name.into() }
    }
}

/// Returns whether an operation could have made this name.
#[inline]
pub fn name_is_valid(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len())
        && name != b"."
        && name != b".."
        && !name.iter().any(|b| *b == 0 || *b == b'/')
}

/// Returns the entry at the start of `b` and the bytes after it. `None` if it is malformed.
#[inline]
fn split_entry(b: &[u8]) -> Option<(EntryRef<'_>, &[u8])> {
    let (h, rest) = b.split_at_checked(ENTRY_HEADER)?;
    let (name, rest) = rest.split_at_checked(usize::from(h[17]))?;
    let cookie = u64::from_le_bytes(*h.first_chunk()?);
    let ino = Ino(u64::from_le_bytes(*h[8..].first_chunk()?));
    let kind = FileKind::from_u8(h[16])?;
    Some((EntryRef { cookie, ino, kind, name }, rest))
}

/// Returns the entries of bytes that [`check_body`] or [`EntryRef::put`] vouch for; ends at the
/// first malformed one.
pub fn entries(bytes: &[u8]) -> impl Iterator<Item = EntryRef<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (e, r) = split_entry(rest)?;
        rest = r;
        Some(e)
    })
}

/// Checks a body that should hold the entries of bucket `id` and returns the bytes of its entries.
pub fn check_body(body: &[u8], addr: BlockAddr, id: BucketId) -> Result<&[u8]> {
    let bad = |why: String| Err(FormatError { addr, what: BlockKind::Bucket.name(), why });
    let Some((&[c0, c1, l0, l1], rest)) = body.split_first_chunk::<BODY_HEADER>() else {
        return bad("cut short".into());
    };
    let count = u16::from_le_bytes([c0, c1]);
    let len = usize::from(u16::from_le_bytes([l0, l1]));
    let Some(bytes) = rest.get(..len) else {
        return bad(format!("{len} bytes of entries in {}", rest.len()));
    };
    let (mut rest, mut n, mut next) = (bytes, 0u16, id.low());
    while !rest.is_empty() {
        let Some((e, r)) = split_entry(rest) else {
            return bad(format!("entry {n} is malformed"));
        };
        if !name_is_valid(e.name) || e.ino.is_none() {
            return bad(format!("entry {n} has an impossible name or inode number"));
        }
        if e.cookie < next || e.cookie > id.high() {
            return bad(format!("entry {n} with cookie {:#x} is out of order", e.cookie));
        }
        next = e.cookie + 1;
        n += 1;
        rest = r;
    }
    if n != count {
        return bad(format!("{n} entries instead of {count}"));
    }
    Ok(bytes)
}

/// Returns a body around the bytes of entries.
pub fn body(entry_bytes: &[u8]) -> Vec<u8> {
    let lengths = || entries(entry_bytes).map(|e| ENTRY_HEADER + e.name.len());
    debug_assert_eq!(lengths().sum::<usize>(), entry_bytes.len(), "bytes that are not entries");
    debug_assert!(entries(entry_bytes).is_sorted_by_key(|e| e.cookie), "entries out of order");
    debug_assert!(entry_bytes.len() <= BUCKET_ROOM, "{} bytes of entries", entry_bytes.len());
    let mut out = Vec::with_capacity(BODY_HEADER + entry_bytes.len());
    out.extend_from_slice(&(entries(entry_bytes).count() as u16).to_le_bytes());
    out.extend_from_slice(&(entry_bytes.len() as u16).to_le_bytes());
    out.extend_from_slice(entry_bytes);
    out
}

/// Packs a bucket into a block whose header is still to be sealed. At most [`BUCKET_ROOM`] bytes of
/// entries.
pub fn encode(dir: Ino, id: BucketId, entry_bytes: &[u8]) -> Option<Box<Block>> {
    if entry_bytes.len() > BUCKET_ROOM {
        return None;
    }
    debug_assert!(id.depth <= DEPTH_MAX, "{id:?} has no page");
    let mut b = Block::zeroed();
    put_header(&mut b, BlockKind::Bucket, 0, dir, id.page());
    let body = body(entry_bytes);
    b.0[HEADER_LEN..HEADER_LEN + body.len()].copy_from_slice(&body);
    Some(b)
}

/// Returns the bytes of the entries of bucket `id` of directory `dir`, all checked.
pub fn decode(block: &Block, addr: BlockAddr, dir: Ino, id: BucketId) -> Result<&[u8]> {
    expect_header(block, addr, BlockKind::Bucket, 0, dir, id.page())?;
    check_body(&block.0[HEADER_LEN..], addr, id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(id: BucketId) -> Vec<u8> {
        let mut bytes = Vec::new();
        for n in 0..40u64 {
            let name = format!("name{n}");
            let kind = if n % 2 == 0 { FileKind::File } else { FileKind::Dir };
            EntryRef { cookie: id.low() + n * 9, ino: Ino(n + 16), kind, name: name.as_bytes() }
                .put(&mut bytes);
        }
        bytes
    }

    #[test]
    fn ids_pages_and_ranges_agree() {
        assert_eq!(BucketId::ROOT.page(), 1);
        assert_eq!((BucketId::ROOT.low(), BucketId::ROOT.high()), (0, COOKIE_MAX));
        let id = BucketId::of(COOKIE_MAX, DEPTH_MAX);
        assert_eq!(id.page(), (1 << 56) - 1);
        assert_eq!(id.high(), COOKIE_MAX);
        for page in [1, 2, 3, 700, (1 << 56) - 1] {
            let id = BucketId::from_page(page).unwrap();
            assert_eq!(id.page(), page);
            assert_eq!(BucketId::of(id.low(), id.depth), id);
            assert_eq!(BucketId::of(id.high(), id.depth), id);
            if id.depth < DEPTH_MAX {
                let [a, b] = id.children();
                assert_eq!((a.low(), a.high() + 1, b.high()), (id.low(), b.low(), id.high()));
                assert_eq!((a.sibling(), b.parent()), (b, id));
            }
        }
        assert!(BucketId::from_page(0).is_none() && BucketId::from_page(1 << 56).is_none());
    }

    #[test]
    fn buckets_survive_the_trip_and_belong_to_their_place() {
        let id = BucketId { depth: 3, prefix: 5 };
        let bytes = sample(id);
        let b = encode(Ino(20), id, &bytes).unwrap();
        assert_eq!(decode(&b, BlockAddr(9), Ino(20), id).unwrap(), bytes);
        assert_eq!(entries(&bytes).count(), 40);
        assert!(decode(&b, BlockAddr(9), Ino(21), id).is_err());
        assert!(decode(&b, BlockAddr(9), Ino(20), id.sibling()).is_err());
        // The right header does not help entries of another range.
        let wrong = encode(Ino(20), id.sibling(), &bytes).unwrap();
        assert!(decode(&wrong, BlockAddr(9), Ino(20), id.sibling()).is_err());
        assert!(encode(Ino(20), id, &vec![0; BUCKET_ROOM + 1]).is_none());
    }

    #[test]
    fn no_change_of_a_byte_makes_the_decoder_panic() {
        let id = BucketId { depth: 3, prefix: 5 };
        let b = encode(Ino(20), id, &sample(id)).unwrap();
        for at in 0..BLOCK_SIZE {
            for v in [0u8, 1, 0x7f, 0xff] {
                let mut c = b.clone();
                c.0[at] = v;
                if let Ok(bytes) = decode(&c, BlockAddr(9), Ino(20), id) {
                    assert_eq!(
                        entries(bytes).map(|e| ENTRY_HEADER + e.name.len()).sum::<usize>(),
                        bytes.len()
                    );
                }
            }
        }
        for cut in 0..200 {
            let _ = check_body(&body(&sample(id))[..cut], BlockAddr(9), id);
        }
    }
}
