//! What every test needs: a volume in memory, and short words for transactions and groups.

use lanefs_format::record::{Effect, encode_group};
use lanefs_store::device::{Device, MemoryDevice};
use lanefs_store::*;
use std::sync::Arc;

pub type Dev = Arc<dyn Device>;

pub fn memory(bytes: u64) -> Dev {
    Arc::new(MemoryDevice::new(bytes).unwrap())
}

pub fn format_options() -> FormatOptions {
    FormatOptions {
        segment_blocks: 16,
        mlogs: 1,
        uuid: Some([7; 16]),
        hash_key: Some(HASH_KEY),
        time: Some(1),
        ..Default::default()
    }
}

/// A new volume with segments of 16 blocks.
pub fn fresh(bytes: u64) -> Dev {
    fresh_with(bytes, 1)
}

/// The same with so many copies of its tree.
pub fn fresh_with(bytes: u64, metadata_copies: u32) -> Dev {
    let d = memory(bytes);
    let o = FormatOptions { metadata_copies, ..format_options() };
    Store::format(std::slice::from_ref(&d), &o).unwrap();
    d
}

pub fn open(d: &Dev) -> (Arc<Store>, OpenReport) {
    open_all(std::slice::from_ref(d))
}

pub fn open_all(d: &[Dev]) -> (Arc<Store>, OpenReport) {
    Store::open(d.to_vec(), &OpenOptions::default()).unwrap()
}

pub fn attrs(size: u64) -> Attrs {
    Attrs {
        mode: libc::S_IFREG | 0o644,
        uid: 1,
        gid: 2,
        flags: 0,
        rdev: 0,
        size,
        atime: 1,
        mtime: 2,
        ctime: 3,
        btime: 4,
        generation: 0,
    }
}

/// A page whose bytes follow from `seed`.
pub fn page(seed: u64) -> Box<Block> {
    let mut b = Block::zeroed();
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for c in b.0.chunks_exact_mut(8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        c.copy_from_slice(&x.to_le_bytes());
    }
    b
}

pub fn update(ino: u64, size: u64, pages: Vec<(u64, Box<Block>)>) -> InodeUpdate {
    InodeUpdate {
        ino: Ino(ino),
        attrs: attrs(size),
        rights_logged: false,
        size_only: false,
        xattrs: None,
        pages: pages.into_iter().map(|(page, block)| (page, block.into())).collect(),
        reserved: 0,
        more: false,
        life: Default::default(),
    }
}

pub fn tx(durable: bool, groups: Vec<u8>, inodes: Vec<InodeUpdate>) -> Transaction {
    Transaction { durable, groups, inodes, ..Transaction::default() }
}

pub fn read(s: &Store, ino: u64, page: u64) -> Option<Box<Block>> {
    let mut b = Block::zeroed();
    b.0.fill(0xAA);
    let mut reads = [PageRead { block: &mut b, hole: false }];
    s.read_pages(Ino(ino), page, &mut reads).unwrap();
    let hole = reads[0].hole;
    assert!(!hole || b.0.iter().all(|&x| x == 0));
    (!hole).then_some(b)
}

const HASH_KEY: [u64; 2] = [1, 2];

pub fn cookie(name: &[u8]) -> u64 {
    lanefs_format::name_hash::name_hash(HASH_KEY, name)
}

pub fn new_file(ino: u64) -> Effect<'static> {
    new_kind(ino, libc::S_IFREG | 0o600, b"")
}

pub fn new_kind(ino: u64, mode: u32, target: &'static [u8]) -> Effect<'static> {
    Effect::New {
        ino: Ino(ino),
        parent: ROOT_INO,
        generation: 0,
        mode,
        uid: 0,
        gid: 0,
        rdev: 0,
        time: 5,
        target,
        logged: false,
    }
}

pub fn set(name: &[u8], ino: u64, old: u64) -> Effect<'_> {
    Effect::Set {
        dir: ROOT_INO,
        cookie: cookie(name),
        name,
        ino: Ino(ino),
        old: Ino(old),
        kind: FileKind::File,
    }
}

pub fn clr(name: &[u8], old: u64) -> Effect<'_> {
    Effect::Clr { dir: ROOT_INO, cookie: cookie(name), name, old: Ino(old), kind: FileKind::File }
}

pub fn group(epoch: u64, ts: u64, effects: &[Effect<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_group(&mut out, Version { epoch, ts, lane: 0 }, effects);
    out
}

pub fn fold(s: &Store, epoch: u64, groups: Vec<Vec<u8>>) -> CheckpointDone {
    let groups = groups.into_iter().map(Into::into).collect();
    s.checkpoint(|| Ok(FoldInput { epoch, groups })).unwrap()
}

pub fn lookup(s: &Store, name: &[u8]) -> Option<Ino> {
    let b = s.load_bucket(ROOT_INO, cookie(name)).unwrap();
    b.entries.iter().find(|e| &*e.name == name).map(|e| e.ino)
}
