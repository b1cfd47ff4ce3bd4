//! Holds the format to docs/SPEC.md: all constants in one place, and the bytes of a sample of each
//! structure, put together here from the tables of the document and not from the code's structures.
//! A change of the format shows here as a difference, whether or not it was meant.

use super::batch::{
    BATCH_HEADER, BatchHead, BatchKind, ChainLink, Context, InodeRecord, Run, TailUpdate, encode_batch,
    encode_chain, put_inode, put_message_head,
};
use super::checksum::{block_crc, block_crc_with};
use super::dir_bucket::{self, BucketId, EntryRef};
use super::header::{HEADER_LEN, NODE_MAGIC, Stamp, seal};
use super::inode::{self, DirShape, InodeBlock, MapImage, XattrPlace};
use super::map_node::{self, FANOUT, Slots};
use super::orphans::{ORPHANS_PER_BLOCK, encode_orphans};
use super::pack;
use super::prealloc::Prealloc;
use super::record::{Effect, GROUP_HEADER, GROUP_MAX, NEW_XATTRS_MAX, encode_group};
use super::slot::{Position, Root, SLOT_BLOCKS, SLOT_MAGIC, Slot};
use super::summary::{DataOwner, SUMMARY_SPAN, encode_summary};
use super::superblock::*;
use super::table_node::{self, TableEntry};
use super::usage_node::{self, BITMAP_WORDS, PAIRED, SEGMENTS_PER_LEAF, SUMMARIES, SegmentUsage};
use crate::types::*;

const SPEC: &str = include_str!("../../../docs/SPEC.md");

#[test]
fn all_constants_are_those_of_the_document() {
    let constants: &[(&str, u64)] = &[
        ("BLOCK_SIZE", BLOCK_SIZE as u64),
        ("ROOT_INO", ROOT_INO.0),
        ("FIRST_INO", FIRST_INO.0),
        ("INOS_PER_CHUNK", INOS_PER_CHUNK),
        ("INLINE_MAX", INLINE_MAX as u64),
        ("NAME_MAX", NAME_MAX as u64),
        ("SYMLINK_MAX", SYMLINK_MAX as u64),
        ("LINK_MAX", LINK_MAX.into()),
        ("XATTR_BLOB_MAX", XATTR_BLOB_MAX as u64),
        ("FORMAT_VERSION", FORMAT_VERSION.into()),
        ("MAX_DEVICES", MAX_DEVICES as u64),
        ("MIN_SEGMENT_BLOCKS", MIN_SEGMENT_BLOCKS.into()),
        ("MAX_SEGMENT_BLOCKS", MAX_SEGMENT_BLOCKS.into()),
        ("MAX_RESERVED_SEGMENTS", MAX_RESERVED_SEGMENTS.into()),
        ("FAR_COPIES", FAR_COPIES),
        ("TWO_COPIES", TWO_COPIES),
        ("PREALLOCATION", PREALLOCATION),
        ("PACKED_INODES", PACKED_INODES),
        ("PACK_SPACE", pack::PACK_SPACE as u64),
        ("SLOT_HEADER", pack::SLOT_HEADER as u64),
        ("PACKED_MAX", pack::PACKED_MAX as u64),
        ("SLOTS_MAX", pack::SLOTS_MAX as u64),
        ("ALWAYS", pack::ALWAYS.into()),
        ("PAIRED", PAIRED.into()),
        ("FAR_BLOCKS", FAR_BLOCKS),
        ("MAX_DEVICE_BYTES", MAX_DEVICE_BYTES),
        ("MAX_MLOGS", MAX_MLOGS.into()),
        ("LABEL_MAX", LABEL_MAX as u64),
        ("SLOT_BLOCKS", SLOT_BLOCKS.into()),
        ("HEADER_LEN", HEADER_LEN as u64),
        ("NODE_MAGIC", NODE_MAGIC.into()),
        ("BATCH_HEADER", BATCH_HEADER as u64),
        ("GROUP_HEADER", GROUP_HEADER as u64),
        ("GROUP_MAX", GROUP_MAX as u64),
        ("NEW_XATTRS_MAX", NEW_XATTRS_MAX as u64),
        ("COUNTER_END", COUNTER_END),
        ("PAGES_END", PAGES_END),
        ("INODE_ROOM", inode::INODE_ROOM as u64),
        ("XATTR_INLINE", inode::XATTR_INLINE as u64),
        ("XATTR_PER_BLOCK", inode::XATTR_PER_BLOCK as u64),
        ("MAP_ENTRY", inode::MAP_ENTRY as u64),
        ("FANOUT", FANOUT as u64),
        ("SEGMENTS_PER_LEAF", SEGMENTS_PER_LEAF as u64),
        ("BITMAP_WORDS", BITMAP_WORDS as u64),
        ("SUMMARIES", SUMMARIES as u64),
        ("SUMMARY_SPAN", SUMMARY_SPAN as u64),
        ("BODY_HEADER", dir_bucket::BODY_HEADER as u64),
        ("ENTRY_HEADER", dir_bucket::ENTRY_HEADER as u64),
        ("BUCKET_ROOM", dir_bucket::BUCKET_ROOM as u64),
        ("INLINE_ROOM", dir_bucket::INLINE_ROOM as u64),
        ("COOKIE_BITS", dir_bucket::COOKIE_BITS.into()),
        ("COLLISION_BITS", dir_bucket::COLLISION_BITS.into()),
        ("DEPTH_MAX", dir_bucket::DEPTH_MAX.into()),
        ("IMMUTABLE", inode_flags::IMMUTABLE.into()),
        ("APPEND", inode_flags::APPEND.into()),
        ("NODUMP", inode_flags::NODUMP.into()),
        ("NOATIME", inode_flags::NOATIME.into()),
        ("ORPHANS_PER_BLOCK", ORPHANS_PER_BLOCK as u64),
    ];
    for (name, value) in constants {
        let said = [format!("`{name} = {value}`"), format!("`{name} = {value:#010x}`")];
        assert!(said.iter().any(|s| SPEC.contains(s)), "docs/SPEC.md does not say {}", said[0]);
    }
    // And the document names no constant that is not checked here.
    for said in SPEC.split('`').skip(1).step_by(2) {
        if let Some((name, _)) = said.split_once(" = ")
            && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
        {
            assert!(constants.iter().any(|c| c.0 == name), "{said} is not checked");
        }
    }
}

/// Bytes put together field by field.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn raw(mut self, b: &[u8]) -> Bytes {
        self.0.extend_from_slice(b);
        self
    }
    fn u8(self, v: u8) -> Bytes {
        self.raw(&[v])
    }
    fn u16(self, v: u16) -> Bytes {
        self.raw(&v.to_le_bytes())
    }
    fn u32(self, v: u32) -> Bytes {
        self.raw(&v.to_le_bytes())
    }
    fn u64(self, v: u64) -> Bytes {
        self.raw(&v.to_le_bytes())
    }
    fn u64s(self, v: &[u64]) -> Bytes {
        v.iter().fold(self, |b, &v| b.u64(v))
    }
    /// Zeros up to offset `at`, which may not be behind.
    fn until(mut self, at: usize) -> Bytes {
        assert!(self.0.len() <= at, "{} bytes lie before offset {at}", self.0.len());
        self.0.resize(at, 0);
        self
    }
    /// The header of a node block with birth marks of [`STAMP`], its sum still missing.
    fn header(self, kind: u8, level: u8, ino: u64, index: u64) -> Bytes {
        self.raw(b"LFSn").u8(kind).u8(level).u16(0).u32(0).u32(0).u64s(&[ino, index, 11, 12, 13, 14])
    }
    /// The whole block, its header's sum completed for `addr`.
    fn sealed(self, addr: BlockAddr) -> Vec<u8> {
        let mut b = self.until(BLOCK_SIZE).0;
        let crc = block_crc(addr, &b);
        b[12..16].copy_from_slice(&crc.to_le_bytes());
        b
    }
}

const STAMP: Stamp = Stamp { epoch: 11, sequence: 12, volume: 13, mount: 14 };
const AT: BlockAddr = BlockAddr::new(1, 1000);

fn same(what: &str, got: &[u8], want: &[u8]) {
    let at = got.iter().zip(want).position(|(a, b)| a != b);
    assert_eq!(at, None, "{what}: the byte at this offset differs");
    assert_eq!(got.len(), want.len(), "{what}: length");
}

fn sealed(mut b: Box<Block>) -> Box<Block> {
    seal(&mut b, AT, STAMP);
    b
}

fn refer(addr: u64) -> BlockRef {
    BlockRef { addr: BlockAddr(addr), crc: addr as u32 ^ 0xffff }
}

#[test]
fn checksums() {
    /// Bit by bit, from section 1.
    fn crc32c(state: u32, bytes: &[u8]) -> u32 {
        !bytes.iter().fold(state, |crc, &b| {
            (0..8).fold(crc ^ u32::from(b), |c, _| c >> 1 ^ if c & 1 == 1 { 0x82F6_3B78 } else { 0 })
        })
    }
    let fold = |v: u64| v as u32 ^ ((v >> 32) as u32).wrapping_mul(0x9E37_79B1);
    assert_eq!(crc32c(!0, b"123456789"), 0xE306_9283);
    for addr in [BlockAddr(0), AT, BlockAddr(u64::MAX)] {
        for extra in [0u64, 1, 0xdead_beef_0123_4567] {
            let state = !(fold(addr.0) ^ fold(extra.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
            assert_eq!(block_crc_with(addr, extra, b"some bytes"), crc32c(state, b"some bytes"));
        }
        assert_eq!(block_crc(addr, b"some bytes"), block_crc_with(addr, 0, b"some bytes"));
    }
}

#[test]
fn superblocks() {
    let sb = Superblock {
        features_compatible: 0x11,
        features_read_compatible: 0x12,
        features_incompatible: 0,
        volume: Uuid([5; 16]),
        device_index: 1,
        devices: vec![
            DeviceEntry { uuid: Uuid([6; 16]), blocks: 10_000 },
            DeviceEntry { uuid: Uuid([7; 16]), blocks: 20_000 },
        ],
        layout: Layout::new(64, SLOT_BLOCKS).unwrap(),
        mlogs: 9,
        label: "name".into(),
        hash_key: [0x21, 0x22],
        created: 0x31,
    };
    let mut want = Bytes::default()
        .raw(b"LANEFS\0\x01")
        .u32(2)
        .u32(4096)
        .u64s(&[0x11, 0x12, 0, 63])
        .raw(&[5; 16])
        .u64s(&[0x21, 0x22, 0x31])
        .u32(1)
        .u32(2)
        .u32(64)
        .u32(1)
        .u32(1)
        .u32(9)
        .u64s(&[1, 2])
        .raw(b"name")
        .until(1024)
        .raw(&[6; 16])
        .u64s(&[10_000, 0])
        .raw(&[7; 16])
        .u64s(&[20_000, 0])
        .until(4092);
    let crc = block_crc(BlockAddr(0), &want.0);
    want = want.u32(crc);
    same("superblock", &sb.encode(63).unwrap().0, &want.0);
}

#[test]
fn slots() {
    let slot = Slot {
        generation: 1,
        mount: 2,
        volume: Uuid([5; 16]),
        folded_epoch: 3,
        last_ts: 4,
        next_chunk: 5,
        next_seq: 6,
        inodes: 7,
        live_blocks: 8,
        unwritten: 9,
        table: Root { r: BlockRef { addr: BlockAddr(9), crc: 10 }, level: 11 },
        usage: Root { r: BlockRef { addr: BlockAddr(12), crc: 13 }, level: 14 },
        orphans: BlockRef { addr: BlockAddr(15), crc: 16 },
        clean: true,
        positions: vec![
            Position { segment: BlockAddr(64), used: 17, seq: 18 },
            Position { segment: BlockAddr(128), used: 19, seq: 20 },
        ],
    };
    let at = BlockAddr(2);
    let want = Bytes::default()
        .raw(&SLOT_MAGIC)
        .u64(2)
        .raw(&[5; 16])
        .u64s(&[1, 2, 3, 4, 5, 6, 7, 8])
        .u64(9)
        .u32(10)
        .u32(11)
        .u64(12)
        .u32(13)
        .u32(14)
        .u64(15)
        .u32(16)
        .u32(0)
        .u32(1)
        .u32(2)
        .u64s(&[64, 18])
        .u32(17)
        .u64s(&[128, 20])
        .u32(19)
        .until(2712)
        .u64(9)
        .until(4092);
    assert_eq!(&SLOT_MAGIC, b"LFSLOT\0\x01");
    let crc = block_crc(at, &want.0);
    same("slot", &slot.encode(at).0, &want.u32(crc).0);
}

const CTX: Context = Context { mount: 3, seq: 17, secret: 0xfeed };

/// A link or a batch of one block: the sum of offset 68 on, then the header's.
fn in_chain(kind: u8, b: Bytes) -> Vec<u8> {
    let mut b = b.until(BLOCK_SIZE).0;
    let x: u64 = 17 ^ 3u64.rotate_left(40) ^ 0xfeed;
    let extra = x.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ (x >> 32);
    let crc = block_crc_with(AT, extra, &b[68..]);
    b[64..68].copy_from_slice(&crc.to_le_bytes());
    b[..64].copy_from_slice(&Bytes::default().header(kind, 0, 0, 17).0);
    Bytes(b).sealed(AT)
}

#[test]
fn links_and_batches() {
    let link = ChainLink { successor: BlockAddr(512), successor_seq: 18 };
    let want = Bytes::default().until(68).u32(0).u64s(&[3, 17, 0, 0, 0, 512, 18, 0, 0, 0, 0]);
    same("link", &encode_chain(link, AT, CTX, STAMP).0, &in_chain(9, want));

    let head = BatchHead {
        kind: BatchKind::Commit,
        id: 5,
        epoch: 9,
        previous: 7,
        part: 1,
        parts: 2,
        share: 3,
        shares: 4,
        prior: 11,
        acked: 10,
        slot: 9,
    };
    let mut b = Block::zeroed();
    encode_batch(std::slice::from_mut(&mut *b), &head, &[b"piece"], AT, CTX, STAMP);
    let words = [3, 17, 5, 9, 7, 1 << 32 | 2, 5, 3 << 32 | 4, 11, 10, 9];
    let want = Bytes::default().until(68).u32(2).u64s(&words).raw(b"piece");
    assert_eq!((BatchKind::Fsync as u8, BatchKind::Commit as u8), (1, 2));
    same("batch", &b.0, &in_chain(8, want));
}

fn attrs() -> Attrs {
    Attrs {
        mode: 0o100644,
        uid: 1,
        gid: 2,
        flags: 0xf0,
        rdev: 4,
        size: 5,
        atime: 6,
        mtime: 7,
        ctime: 8,
        btime: 9,
        generation: 10,
    }
}

#[test]
fn messages() {
    let mut got = Vec::new();
    put_message_head(&mut got, b"group", 2);
    let mut r = InodeRecord {
        ino: Ino(20),
        version: 21,
        attrs: attrs(),
        xattrs: Some(b"xat".to_vec()),
        tail: TailUpdate::Set { page: 22, bytes: b"tail!".to_vec() },
        unmaps: vec![23..24, 25..26],
        runs: vec![Run { page: 27, addr: BlockAddr(28), crcs: vec![29, 30] }],
        prealloc: Some(Prealloc::NONE.with(31..33).with(35..37)),
    };
    put_inode(&mut got, &r);
    r = InodeRecord {
        xattrs: None,
        tail: TailUpdate::None,
        unmaps: vec![],
        runs: vec![],
        prealloc: None,
        ..r
    };
    put_inode(&mut got, &r);
    let start = |b: Bytes, flags| {
        b.u64s(&[20, 21]).u32(10).u32(flags).u32(0o100644).u32(1).u32(2).u32(0xf0).u64s(&[4, 5, 6, 7, 8, 9])
    };
    let b = start(Bytes::default().u32(5).u32(2).raw(b"group"), 1 | 4 | 8);
    let b = b.u32(2).u32(1).u32(3).u32(5).u64(22).u64s(&[31, 33, 35, 37]).u64s(&[23, 24, 25, 26]);
    let b = b.u64s(&[27, 28]).u32(2).u32(29).u32(30).raw(b"xat").raw(b"tail!");
    let b = start(b, 2).u32(0).u32(0).u32(0).u32(0).u64(0);
    same("message", &got, &b.0);
}

#[test]
fn records() {
    let v = Version { epoch: 1, ts: 2, lane: 3 };
    let (dir, cookie, name) = (Ino(4), 5, &b"n"[..]);
    let mut got = Vec::new();
    let effects = [
        Effect::Set { dir, cookie, name, ino: Ino(6), old: Ino(7), kind: FileKind::File },
        Effect::Clr { dir, cookie, name, old: Ino(7), kind: FileKind::Dir },
        Effect::New {
            ino: Ino(8),
            parent: Ino(9),
            generation: 10,
            mode: 11,
            uid: 12,
            gid: 13,
            rdev: 14,
            time: 15,
            target: b"to",
            logged: true,
        },
        Effect::Dead { ino: Ino(16), generation: 17 },
        Effect::Parent { ino: Ino(18), parent: Ino(19) },
        Effect::Xattrs { ino: Ino(20), xattrs: b"x" },
        Effect::Rights { ino: Ino(21), generation: 22, mode: 23, uid: 24, gid: 25, acls: Some(b"a") },
        Effect::Rights { ino: Ino(26), generation: 27, mode: 28, uid: 29, gid: 30, acls: None },
    ];
    encode_group(&mut got, v, &effects);
    let head = |b: Bytes, tag, kind, n| b.u8(tag).u8(kind).u16(n);
    let b = Bytes::default().u32(24 + 37 + 29 + 54 + 16 + 20 + 13 + 29 + 28).u16(8).u16(3).u64s(&[1, 2]);
    let b = head(b, 1, 1, 1).u64s(&[4, 5, 6, 7]).raw(b"n");
    let b = head(b, 2, 2, 1).u64s(&[4, 5, 7]).raw(b"n");
    let b = head(b, 3, 1, 2).u64s(&[8, 9, 14, 15]).u32(10).u32(11).u32(12).u32(13).raw(b"to");
    let b = head(b, 4, 0, 0).u64(16).u32(17);
    let b = head(b, 5, 0, 0).u64s(&[18, 19]);
    let b = head(b, 6, 0, 1).u64(20).raw(b"x");
    let b = head(b, 7, 1, 1).u64(21).u32(22).u32(23).u32(24).u32(25).raw(b"a");
    let b = head(b, 7, 0, 0).u64(26).u32(27).u32(28).u32(29).u32(30);
    same("group", &got, &b.0);
    let kinds = [
        FileKind::File,
        FileKind::Dir,
        FileKind::Symlink,
        FileKind::Char,
        FileKind::BlockDev,
        FileKind::Fifo,
        FileKind::Socket,
    ];
    assert!(kinds.iter().zip(1..).all(|(k, n)| *k as u8 == n));
}

#[test]
fn inode_blocks() {
    let mut i = InodeBlock {
        attrs: Attrs { mode: libc::S_IFDIR | 0o755, ..attrs() },
        nlink: 11,
        parent: Ino(12),
        version: 13,
        dir: DirShape { depth: 14, entries: 16, subdirs: 15 },
        xattrs: XattrPlace::Inline(b"xattrs".to_vec()),
        map: MapImage::Inline(vec![(17, refer(18)), (19, refer(20))]),
        tail: Some((21, b"tail".to_vec())),
        prealloc: Prealloc::NONE,
        unwritten: 0,
    };
    let start = || {
        let b = Bytes::default().header(1, 0, 33, 0).u32(0o40755).u32(1).u32(2).u32(0xf0);
        b.u64s(&[4, 5, 6, 7, 8, 9]).u32(10).u32(11).u64s(&[12, 13])
    };
    let b = start().u8(0).u8(0).u8(14).until(160).u64(2).u64(0).u32(0).u16(2).u16(4).u64(21);
    let b = b.u32(6).u16(0).u16(0).u64s(&[16, 15]).until(256).raw(b"xattrs");
    let b = b.u64s(&[17, 18]).u32(18 ^ 0xffff).u64s(&[19, 20]).u32(20 ^ 0xffff).raw(b"tail");
    same("inode", &sealed(inode::encode(Ino(33), &i).unwrap()).0, &b.sealed(AT));

    i.xattrs = XattrPlace::Blocks { len: 5000, refs: vec![refer(40), refer(41)] };
    i.map = MapImage::Tree { root: refer(50), height: 3, pages: 51 };
    i.tail = None;
    let b = start().u8(1).u8(3).u8(14).until(160).u64(51).u64(50).u32(50 ^ 0xffff).u16(0).u16(0).u64(0);
    let b = b.u32(5000).u16(2).u16(0).u64s(&[16, 15]).until(256);
    let b = b.u64(40).u32(40 ^ 0xffff).u64(41).u32(41 ^ 0xffff);
    same("inode with trees", &sealed(inode::encode(Ino(33), &i).unwrap()).0, &b.sealed(AT));

    // Preallocated pages are those of a file.
    i.attrs.mode = libc::S_IFREG | 0o755;
    i.dir = DirShape::default();
    (i.prealloc, i.unwritten) = (Prealloc::NONE.with(60..62).with(64..66), 3);
    let b = Bytes::default().header(1, 0, 33, 0).u32(0o100755).u32(1).u32(2).u32(0xf0);
    let b = b.u64s(&[4, 5, 6, 7, 8, 9]).u32(10).u32(11).u64s(&[12, 13]);
    let b = b.u8(1).u8(3).u8(0).until(160).u64(51).u64(50).u32(50 ^ 0xffff).u16(0).u16(0).u64(0);
    let b = b.u32(5000).u16(2).u16(0).u64s(&[0, 0]).u64s(&[60, 62, 64, 66]).u64(3).until(256);
    let b = b.u64(40).u32(40 ^ 0xffff).u64(41).u32(41 ^ 0xffff);
    same("inode with preallocated pages", &sealed(inode::encode(Ino(33), &i).unwrap()).0, &b.sealed(AT));

    let got = sealed(inode::encode_xattr_block(Ino(33), 2, b"bytes"));
    same("xattr block", &got.0, &Bytes::default().header(5, 0, 33, 2).raw(b"bytes").sealed(AT));
}

#[test]
fn packs() {
    let attrs = Attrs {
        mode: libc::S_IFREG | 0o640,
        uid: 1,
        gid: 2,
        flags: 0xf0,
        rdev: 0,
        size: 5,
        atime: 6,
        mtime: 7,
        ctime: 8,
        btime: 9,
        generation: 10,
    };
    let empty = InodeBlock {
        attrs,
        nlink: 11,
        parent: Ino(12),
        version: 13,
        dir: DirShape::default(),
        xattrs: XattrPlace::Inline(Vec::new()),
        map: MapImage::Inline(Vec::new()),
        tail: None,
        prealloc: Prealloc::NONE,
        unwritten: 0,
    };
    let mut full = empty.clone();
    full.xattrs = XattrPlace::Inline(b"xattrs".to_vec());
    full.map = MapImage::Inline(vec![(2, refer(50))]);
    full.tail = Some((3, b"tail".to_vec()));
    (full.prealloc, full.unwritten) = (Prealloc::NONE.with(60..62), 2);
    let device = InodeBlock { attrs: Attrs { mode: libc::S_IFCHR, rdev: 14, ..attrs }, ..empty.clone() };
    let all: Vec<Vec<u8>> = [(33, empty), (35, full), (127, device)]
        .iter()
        .map(|(n, i)| {
            let mut slot = Vec::new();
            assert!(pack::put_slot(&mut slot, Ino(9 * 128 + n), i));
            slot
        })
        .collect();
    let got = sealed(pack::encode(9, all.iter().map(|s| &s[..])));

    let slot =
        |b: Bytes, number: u8, words: u32, rest: u16| b.u8(number).raw(&words.to_le_bytes()[..3]).u16(rest);
    let first = |b: Bytes, mode: u32| b.u32(mode).u32(1).u32(2).u32(0xf0);
    let others = |b: Bytes| b.u64s(&[5, 6, 7, 8, 9]).u32(10).u32(11).u64s(&[12, 13]);
    let len = 3 * (6 + 80) + (7 * 8 + 6 + 20 + 4) + 8;
    let b = Bytes::default().header(11, 0, 0, 9).u16(3).u16(len);
    let b = others(first(slot(b, 33, 0x7fb, 0), 0o100640));
    // Map pages; map count and tail length; tail page; attributes; first range; unwritten pages.
    let words = 0x7fb | 1 << 12 | 1 << 14 | 1 << 15 | 1 << 16 | 1 << 19 | 1 << 20 | 1 << 23;
    let b = others(first(slot(b, 35, words, 6 + 20 + 4), 0o100640));
    let b = b.u64(1).u32(0).u16(1).u16(4).u64(3).u32(6).u32(0).u64s(&[60, 62, 2]);
    let b = b.raw(b"xattrs").u64(2).u64(50).u32(50 ^ 0xffff).raw(b"tail");
    let b = others(first(slot(b, 127, 0x7ff, 0), 0o020000).u64(14));
    same("pack", &got.0, &b.sealed(AT));
}

#[test]
fn nodes() {
    let mut s = Slots::empty();
    s.set(0, refer(70));
    s.set(255, refer(71));
    let got = sealed(map_node::encode(super::header::BlockKind::Map, 2, Ino(33), 9, &s));
    let b = Bytes::default().header(2, 2, 33, 9).u64(70).u32(70 ^ 0xffff).until(64 + 255 * 12);
    same("map node", &got.0, &b.u64(71).u32(71 ^ 0xffff).sealed(AT));

    let mut entries = [TableEntry::default(); 128];
    entries[126] = TableEntry { block: refer(72), slot: 0, generation: 73, epoch: 74 };
    entries[127] = TableEntry { block: refer(75), slot: 46, generation: 76, epoch: 77 };
    let b = Bytes::default().header(3, 0, 0, 8).until(64 + 126 * 28);
    let b = b.u64s(&[72, 74]).u32(72 ^ 0xffff).u32(73).u32(0);
    let b = b.u64s(&[75, 77]).u32(75 ^ 0xffff).u32(76).u32(46);
    same("table leaf", &sealed(table_node::encode(8, &entries)).0, &b.sealed(AT));

    let mut segments = vec![SegmentUsage::default(); 42];
    segments[41] = SegmentUsage {
        bits: [1, 2, 3, 4, 5, 6, 7, 8],
        summaries: [refer(80), refer(81)],
        written: 82,
        heat: 83,
        paired: true,
    };
    let b = Bytes::default().header(6, 0, 0, 5).until(64 + 41 * 96).u64s(&[1, 2, 3, 4, 5, 6, 7, 8]);
    let b = b.u64(80).u32(80 ^ 0xffff).u64(81).u32(81 ^ 0xffff).u32(82).u8(83 | 128);
    same("usage leaf", &sealed(usage_node::encode_leaf(5, &segments)).0, &b.sealed(AT));

    let owner = |ino, page| DataOwner { ino: Ino(ino), page };
    let got = sealed(encode_summary(7, 1, &[owner(1, 2), owner(3, 4)]));
    let seven = |b: Bytes, v: u64| b.raw(&v.to_le_bytes()[..7]);
    let b = [1, 2, 3, 4].into_iter().fold(Bytes::default().header(10, 1, 0, 7), seven);
    same("summary", &got.0, &b.sealed(AT));

    let got = sealed(encode_orphans(2, refer(95), &[Ino(96), Ino(97)]));
    let b = Bytes::default().header(7, 0, 0, 2).u64(95).u32(95 ^ 0xffff).u32(2).u64s(&[96, 97]);
    same("orphans", &got.0, &b.sealed(AT));
}

#[test]
fn buckets() {
    let id = BucketId { depth: 5, prefix: 9 };
    assert_eq!(id.page(), 32 + 9);
    let cookie = 9 << 58 | 100;
    assert_eq!(BucketId::of(cookie, 5), id);
    let mut entries = Vec::new();
    EntryRef { cookie, ino: Ino(20), kind: FileKind::Dir, name: b"ab" }.put(&mut entries);
    EntryRef { cookie: cookie + 1, ino: Ino(21), kind: FileKind::File, name: b"c" }.put(&mut entries);
    let body = Bytes::default().u16(2).u16(39).u64s(&[cookie, 20]).u8(2).u8(2).raw(b"ab");
    let body = body.u64s(&[cookie + 1, 21]).u8(1).u8(1).raw(b"c").0;
    same("body", &dir_bucket::body(&entries), &body);
    let got = sealed(dir_bucket::encode(Ino(33), id, &entries).unwrap());
    same("bucket", &got.0, &Bytes::default().header(4, 0, 33, 41).raw(&body).sealed(AT));
}
