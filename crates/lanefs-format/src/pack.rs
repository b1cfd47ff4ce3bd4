//! A pack: small inodes of one chunk of 128 numbers, many to a block.
//!
//! ```text
//! pack := header[64] count:u16 len:u16 slot[count] zero*             `len` bytes of slots, by rising number
//! slot := number:u8 words:u24 len:u16 word[..] rest[len]             a word for each bit of `words`, from the lowest
//! ```
//!
//! `number` is the inode's in its chunk. The words are those of 8 bytes of the fixed part of an
//! inode block that are not zero, and some always ([`ALWAYS`]): so what chmod, chown, link, rename,
//! truncate and the times change changes no length, and a pack of which only that changed fits into
//! a block again. `rest` is what follows the fixed part in an inode block: attributes, map entries,
//! tail. Directories and files with a map of nodes lie in blocks of their own.

use crate::error::{FormatError, Result};
use crate::header::{BlockKind, HEADER_LEN, expect_header, put_header};
use crate::inode::{Fixed, InodeBlock, MapImage, XATTR_INLINE, decode_parts, fixed_of, put_rest, rest_len};
use crate::types::{BLOCK_SIZE, Block, BlockAddr, FileKind, INOS_PER_CHUNK, Ino};
use zerocopy::{FromZeros, IntoBytes};

/// Bytes for slots in a pack.
pub const PACK_SPACE: usize = BLOCK_SIZE - HEADER_LEN - 4;
/// Bytes of a slot before its words.
pub const SLOT_HEADER: usize = 6;
/// The longest slot: two of them fit into a pack.
pub const PACKED_MAX: usize = 2000;
/// The most slots of a pack.
pub const SLOTS_MAX: usize = PACK_SPACE / SLOT_MIN;
/// The words that every slot has: mode and owner, flags, size, times, generation and link count,
/// parent, version.
pub const ALWAYS: u32 = 0x7fb;

const WORD: usize = 8;
const WORDS: usize = size_of::<Fixed>() / WORD;
/// The shortest slot: that of an empty file.
pub const SLOT_MIN: usize = SLOT_HEADER + WORD * ALWAYS.count_ones() as usize;
const WHAT: &str = BlockKind::Pack.name();

const _: () = assert!(WORDS * WORD == size_of::<Fixed>() && WORDS == 24, "three bytes tell of all words");
const _: () = assert!(2 * PACKED_MAX <= PACK_SPACE && SLOTS_MAX <= u8::MAX as usize);
const _: () = assert!(SLOT_HEADER + size_of::<Fixed>() + XATTR_INLINE <= PACKED_MAX, "short attributes fit");

/// Returns the words of a fixed part that a slot has to have.
fn words_of(f: &Fixed) -> u32 {
    let words = f.as_bytes().chunks_exact(WORD).enumerate();
    let words = words.fold(ALWAYS, |m, (n, w)| m | u32::from(w != [0; WORD]) << n);
    debug_assert!(words >> WORDS == 0, "words {words:#x} of {WORDS}");
    words
}

/// Appends the slot of an inode. False, and nothing appended, if it has to have a block of its own.
pub fn put_slot(out: &mut Vec<u8>, ino: Ino, i: &InodeBlock) -> bool {
    if i.attrs.kind().is_none_or(|k| k == FileKind::Dir) || matches!(i.map, MapImage::Tree { .. }) {
        return false;
    }
    let rest = rest_len(i);
    if SLOT_MIN + rest > PACKED_MAX {
        return false;
    }
    let Some(f) = fixed_of(i) else { return false };
    let words = words_of(&f);
    let len = SLOT_HEADER + WORD * words.count_ones() as usize + rest;
    if len > PACKED_MAX {
        return false;
    }
    let before = out.len();
    out.reserve(len);
    out.push(ino.slot() as u8);
    out.extend_from_slice(&words.to_le_bytes()[..3]);
    out.extend_from_slice(&(rest as u16).to_le_bytes());
    for (n, w) in f.as_bytes().chunks_exact(WORD).enumerate() {
        if words >> n & 1 == 1 {
            out.extend_from_slice(w);
        }
    }
    put_rest(out, i);
    debug_assert_eq!(out.len() - before, len, "the slot of inode {ino} is not as long as was counted");
    true
}

/// Returns a pack of slots, in the order of their numbers, whose header is still to be sealed.
pub fn encode<'a>(chunk: u64, slots: impl Iterator<Item = &'a [u8]>) -> Box<Block> {
    let mut b = Block::zeroed();
    put_header(&mut b, BlockKind::Pack, 0, Ino::NONE, chunk);
    let start = HEADER_LEN + 4;
    let (mut at, mut count, mut last) = (start, 0u16, None);
    for s in slots {
        debug_assert!((SLOT_MIN..=PACKED_MAX).contains(&s.len()), "a slot of {} bytes", s.len());
        debug_assert!(last < s.first().copied(), "number {:?} behind {last:?}", s.first());
        last = s.first().copied();
        b.0[at..at + s.len()].copy_from_slice(s);
        at += s.len();
        count += 1;
    }
    debug_assert!(count > 0, "a pack of nothing");
    b.0[HEADER_LEN..HEADER_LEN + 2].copy_from_slice(&count.to_le_bytes());
    b.0[HEADER_LEN + 2..start].copy_from_slice(&((at - start) as u16).to_le_bytes());
    b
}

/// The slots of a pack, in the order in which they lie there. Whoever reads one has looked at the
/// bounds of all.
#[derive(Debug)]
pub struct Slots<'a> {
    chunk: u64,
    addr: BlockAddr,
    slots: Vec<&'a [u8]>,
}

/// The slots of a pack that were not looked at yet.
struct Walk<'a> {
    addr: BlockAddr,
    count: usize,
    rest: &'a [u8],
    /// Slots looked at, and the number of the last.
    done: usize,
    last: Option<u8>,
}

impl<'a> Walk<'a> {
    /// Begins with the pack of `chunk`.
    fn new(block: &'a Block, addr: BlockAddr, chunk: u64) -> Result<Walk<'a>> {
        expect_header(block, addr, BlockKind::Pack, 0, Ino::NONE, chunk)?;
        let b = &block.0[HEADER_LEN..];
        let (count, len) = (u16_at(b, 0), u16_at(b, 2));
        let w = Walk { addr, count, rest: &[], done: 0, last: None };
        if !(1..=SLOTS_MAX).contains(&count) || len > PACK_SPACE {
            return Err(w.bad(format!("{count} slots in {len} bytes")));
        }
        Ok(Walk { rest: &b[4..4 + len], ..w })
    }

    fn bad(&self, why: String) -> FormatError {
        FormatError { addr: self.addr, what: WHAT, why }
    }

    /// Returns the next slot.
    fn next(&mut self) -> Result<&'a [u8]> {
        let n = self.done;
        let head = self.rest.first_chunk().ok_or_else(|| self.bad(format!("slot {n} overruns it")))?;
        let words = words_in(head);
        let len = SLOT_HEADER + WORD * words.count_ones() as usize + u16_at(head, 4);
        if words & ALWAYS != ALWAYS || len > PACKED_MAX || len > self.rest.len() {
            return Err(self.bad(format!("slot {n} of {len} bytes, with the words {words:#x}")));
        }
        if u64::from(head[0]) >= INOS_PER_CHUNK || self.last.is_some_and(|l| l >= head[0]) {
            return Err(self.bad(format!("slot {n} has number {}, out of order", head[0])));
        }
        debug_assert!(n < self.count, "slot {n} of {}", self.count);
        let (slot, after) = self.rest.split_at(len);
        (self.done, self.last, self.rest) = (n + 1, Some(head[0]), after);
        Ok(slot)
    }
}

fn u16_at(b: &[u8], i: usize) -> usize {
    usize::from(u16::from_le_bytes([b[i], b[i + 1]]))
}

/// Returns the words that a slot has.
fn words_in(head: &[u8; SLOT_HEADER]) -> u32 {
    u32::from_le_bytes([head[1], head[2], head[3], 0])
}

/// Reads the pack of `chunk`.
pub fn decode(block: &Block, addr: BlockAddr, chunk: u64) -> Result<Slots<'_>> {
    let mut walk = Walk::new(block, addr, chunk)?;
    let slots = (0..walk.count).map(|_| walk.next()).collect::<Result<Vec<_>>>()?;
    if !walk.rest.is_empty() {
        return Err(walk.bad(format!("{} bytes behind the last slot", walk.rest.len())));
    }
    debug_assert!(slots.len() <= SLOTS_MAX, "{} slots", slots.len());
    Ok(Slots { chunk, addr, slots })
}

/// Unpacks the inode in the slot that an entry of the inode table names. What lies behind it is not
/// looked at.
pub fn decode_inode(block: &Block, addr: BlockAddr, ino: Ino, slot: u8) -> Result<InodeBlock> {
    let mut walk = Walk::new(block, addr, ino.chunk())?;
    if !(1..=walk.count).contains(&usize::from(slot)) {
        return Err(walk.bad(format!("inode {ino} in slot {slot}: there is none")));
    }
    for _ in 1..slot {
        walk.next()?;
    }
    let bytes = walk.next()?;
    debug_assert_eq!(walk.done, usize::from(slot), "slot {slot} was not reached");
    unpack(bytes_of(bytes, addr, ino, slot)?, addr, ino)
}

/// Returns the bytes of a slot, if it is that of `ino`.
fn bytes_of(slot: &[u8], addr: BlockAddr, ino: Ino, n: u8) -> Result<&[u8]> {
    if usize::from(slot[0]) != ino.slot() {
        let why = format!("inode {ino} in slot {n}, which is that of number {}", slot[0]);
        return Err(FormatError { addr, what: WHAT, why });
    }
    Ok(slot)
}

/// Unpacks the inode in a slot.
fn unpack(slot: &[u8], addr: BlockAddr, ino: Ino) -> Result<InodeBlock> {
    let bad = |why: &str| FormatError { addr, what: WHAT, why: format!("inode {ino}: {why}") };
    debug_assert!(usize::from(slot[0]) == ino.slot(), "the slot of another inode than {ino}");
    let (head, mut rest) = slot.split_first_chunk().ok_or_else(|| bad("cut short"))?;
    let words = words_in(head);
    let mut f = Fixed::new_zeroed();
    for (n, to) in f.as_mut_bytes().chunks_exact_mut(WORD).enumerate().filter(|(n, _)| words >> n & 1 == 1) {
        let (word, after) = rest.split_at_checked(WORD).ok_or_else(|| bad("cut short"))?;
        if ALWAYS >> n & 1 == 0 && word == [0; WORD] {
            return Err(bad("a word that is zero takes space"));
        }
        to.copy_from_slice(word);
        rest = after;
    }
    let (inode, left) = decode_parts(&f, rest, addr, WHAT)?;
    if left > 0 {
        return Err(bad("bytes that belong to nothing"));
    }
    if inode.attrs.kind() == Some(FileKind::Dir) || matches!(inode.map, MapImage::Tree { .. }) {
        return Err(bad("a directory, or a map of nodes"));
    }
    Ok(inode)
}

impl<'a> Slots<'a> {
    /// Returns the inodes: the number of each, and what stands for its place in an entry of the
    /// inode table.
    pub fn inodes(&self) -> impl Iterator<Item = (Ino, u8)> + '_ {
        // No chunk of a volume has such a number that this matters.
        let first = self.chunk.wrapping_mul(INOS_PER_CHUNK);
        (1..).zip(&self.slots).map(move |(n, s)| (Ino(first + u64::from(s[0])), n))
    }

    /// Returns the bytes of the slot that an entry of the inode table names, if it is that of
    /// `ino`.
    pub fn bytes(&self, ino: Ino, slot: u8) -> Result<&'a [u8]> {
        let there = self.slots.get(usize::from(slot).wrapping_sub(1)).filter(|_| ino.chunk() == self.chunk);
        let bad = || format!("inode {ino} in slot {slot}: there is none");
        let s = there.ok_or_else(|| FormatError { addr: self.addr, what: WHAT, why: bad() })?;
        bytes_of(s, self.addr, ino, slot)
    }

    /// Unpacks the inode in that slot.
    pub fn inode(&self, ino: Ino, slot: u8) -> Result<InodeBlock> {
        unpack(self.bytes(ino, slot)?, self.addr, ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::{DirShape, XattrPlace, tests::sample};
    use crate::types::{Attrs, BlockRef};

    const CHUNK: u64 = 3;
    const AT: BlockAddr = BlockAddr(77);

    fn ino(n: u64) -> Ino {
        Ino(CHUNK * INOS_PER_CHUNK + n)
    }

    fn empty() -> InodeBlock {
        let attrs = Attrs { mode: libc::S_IFREG | 0o600, size: 0, generation: 1, ..sample().attrs };
        let (xattrs, map) = (XattrPlace::Inline(Vec::new()), MapImage::Inline(Vec::new()));
        let prealloc = crate::prealloc::Prealloc::NONE;
        InodeBlock { attrs, xattrs, map, tail: None, prealloc, unwritten: 0, ..sample() }
    }

    fn pack(all: &[(u64, InodeBlock)]) -> Box<Block> {
        let slots: Vec<Vec<u8>> = all
            .iter()
            .map(|(n, i)| {
                let mut out = Vec::new();
                assert!(put_slot(&mut out, ino(*n), i));
                out
            })
            .collect();
        encode(CHUNK, slots.iter().map(|s| &s[..]))
    }

    #[test]
    fn inodes_survive_the_trip() {
        let all = [(0, empty()), (5, sample()), (127, empty())];
        let b = pack(&all);
        let slots = decode(&b, AT, CHUNK).unwrap();
        assert_eq!(slots.inodes().collect::<Vec<_>>(), [(ino(0), 1), (ino(5), 2), (ino(127), 3)]);
        for (n, (number, i)) in all.iter().enumerate() {
            let slot = n as u8 + 1;
            assert_eq!(slots.inode(ino(*number), slot).unwrap(), *i);
            assert_eq!(decode_inode(&b, AT, ino(*number), slot).unwrap(), *i);
            for (wrong, at) in
                [(*number + 1, slot), (*number, slot + 1), (*number, slot.wrapping_sub(2)), (*number, 0)]
            {
                assert!(slots.inode(ino(wrong), at).is_err(), "{wrong} in {at}");
                assert!(decode_inode(&b, AT, ino(wrong), at).is_err(), "{wrong} in {at}");
            }
            assert!(slots.inode(Ino(*number), slot).is_err(), "of another chunk");
        }
        assert!(decode(&b, AT, CHUNK + 1).is_err());
    }

    #[test]
    fn forty_six_empty_files_fill_a_pack() {
        let b = pack(&(0..SLOTS_MAX as u64).map(|n| (n, empty())).collect::<Vec<_>>());
        assert_eq!((decode(&b, AT, CHUNK).unwrap().inodes().count(), SLOT_MIN, SLOTS_MAX), (46, 86, 46));
    }

    /// What changes without asking for space takes none.
    #[test]
    fn attributes_of_all_kinds_have_one_length() {
        let (mut least, mut most) = (Vec::new(), Vec::new());
        let mut i = empty();
        put_slot(&mut most, ino(1), &i);
        i.attrs = Attrs { mode: libc::S_IFREG, ..Attrs::default() };
        (i.nlink, i.version, i.parent) = (0, 0, Ino(0));
        put_slot(&mut least, ino(1), &i);
        assert_eq!((least.len(), most.len()), (SLOT_MIN, SLOT_MIN));
    }

    #[test]
    fn what_is_large_has_a_block_of_its_own() {
        let mut out = Vec::new();
        let dir = InodeBlock { attrs: Attrs { mode: libc::S_IFDIR, ..empty().attrs }, ..empty() };
        let root = BlockRef { addr: BlockAddr(8), crc: 3 };
        let tree = InodeBlock { map: MapImage::Tree { root, height: 1, pages: 4 }, ..empty() };
        let tail = |n: usize| InodeBlock { tail: Some((0, vec![1; n])), ..empty() };
        // A tail at page 0 adds the word with its length.
        let fits = PACKED_MAX - SLOT_MIN - 8;
        for large in [dir, tree, tail(fits + 1)] {
            assert!(!put_slot(&mut out, ino(1), &large) && out.is_empty());
        }
        assert!(put_slot(&mut out, ino(1), &tail(fits)) && out.len() == PACKED_MAX);
        out.clear();
        let attributes = XattrPlace::Inline(vec![7; XATTR_INLINE]);
        let dir = DirShape::default();
        assert!(put_slot(&mut out, ino(1), &InodeBlock { xattrs: attributes, dir, ..empty() }));
    }

    #[test]
    fn every_inode_is_there_once_and_every_byte_belongs_to_one() {
        let b = pack(&[(4, empty()), (9, empty())]);
        let second = HEADER_LEN + 4 + SLOT_MIN;
        let refused = [
            (HEADER_LEN, 0),        // no slots
            (HEADER_LEN, 1),        // bytes behind the last
            (HEADER_LEN, 3),        // more than there are bytes for
            (HEADER_LEN + 2, 2),    // fewer bytes
            (HEADER_LEN + 3, 0xff), // more than a block holds
            (second, 4),            // one number twice
            (second, 3),            // out of order
            (second, 128),          // of no chunk
            (second + 1, 0xf3),     // without a word that all have
            (second + 3, 0x80),     // with one more word than there are bytes for
            (second + 5, 0x10),     // longer than a slot can be
            (5, 1),                 // of a level
            (16, 1),                // of an inode
        ];
        for (at, v) in refused {
            let mut c = b.clone();
            c.0[at] = v;
            assert!(decode(&c, AT, CHUNK).is_err(), "{v} at {at}");
        }
        // A word less, whose bytes are then the rest's, and belong to nothing.
        let mut c = b.clone();
        c.0[second + 4] = 8;
        c.0[HEADER_LEN + 2..HEADER_LEN + 4].copy_from_slice(&(2 * SLOT_MIN as u16 + 8).to_le_bytes());
        assert!(decode(&c, AT, CHUNK).unwrap().inode(ino(9), 2).is_err());
        // A word more, which is zero.
        c.0[second + 4] = 0;
        c.0[second + 1] |= 4;
        assert!(decode(&c, AT, CHUNK).unwrap().inode(ino(9), 2).is_err());
    }

    #[test]
    fn no_change_of_a_byte_makes_the_decoder_panic() {
        let b = pack(&[(4, sample()), (9, empty()), (10, sample())]);
        for at in 0..1500 {
            for v in [0u8, 1, 0x7f, 0x80, 0xff] {
                let mut c = b.clone();
                c.0[at] = v;
                let _ = decode_inode(&c, AT, ino(9), 2);
                let Ok(slots) = decode(&c, AT, CHUNK) else { continue };
                for (ino, slot) in slots.inodes() {
                    let _ = slots.inode(ino, slot);
                }
            }
        }
    }
}
