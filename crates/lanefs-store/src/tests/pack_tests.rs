//! Packs: inodes that share blocks, while they are made, changed, moved and removed.

use crate::api::{FoldInput, FormatOptions, InodeUpdate, OpenOptions, Transaction};
use crate::device::{Device, MemoryDevice};
use crate::store::Store;
use crate::testing::{file, first_byte, named, page, update};
use lanefs_format::pack::SLOTS_MAX;
use lanefs_format::record::{Effect, encode_group};
use lanefs_format::table_node::TableEntry;
use lanefs_format::{Block, BlockAddr, FileKind, INOS_PER_CHUNK, Ino, ROOT_INO, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const FIRST: u64 = 10 * INOS_PER_CHUNK;

fn made(packed_inodes: bool, copies: u32) -> (Arc<Store>, Arc<dyn Device>) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(16 << 20).unwrap());
    let (segment_blocks, metadata_copies) = (32, copies);
    let o = FormatOptions { segment_blocks, mlogs: 1, metadata_copies, packed_inodes, ..Default::default() };
    Store::format(std::slice::from_ref(&device), &o).unwrap();
    (Store::open(vec![device.clone()], &OpenOptions::default()).unwrap().0, device)
}

fn fold(s: &Store, groups: Vec<u8>) {
    let epoch = s.folded_epoch() + 1;
    s.checkpoint(|| Ok(FoldInput { epoch, groups: vec![groups.into()] })).unwrap();
}

fn make(s: &Store, inos: impl Iterator<Item = u64>) {
    let e = s.folded_epoch() + 1;
    fold(s, inos.flat_map(|ino| file(e, ino)).collect());
}

/// The group that removes file `ino`.
fn remove(epoch: u64, ino: u64, generation: u32) -> Vec<u8> {
    let name = format!("f{ino}");
    let Effect::Set { dir, cookie, name, .. } = named(ino, name.as_bytes()) else { unreachable!() };
    let clr = Effect::Clr { dir, cookie, name, old: Ino(ino), kind: FileKind::File };
    let mut out = Vec::new();
    let dead = Effect::Dead { ino: Ino(ino), generation };
    encode_group(&mut out, Version { epoch, ts: 1 << 20 | ino, lane: 0 }, &[clr, dead]);
    out
}

fn entry(s: &Store, ino: u64) -> TableEntry {
    s.engine.inodes.table.lookup(Ino(ino), &s.engine.log.io).unwrap()
}

/// The packs of a chunk, with how many inodes each has.
fn packs(s: &Store, chunk: u64) -> BTreeMap<BlockAddr, usize> {
    let mut all = BTreeMap::new();
    for e in s.engine.inodes.table.chunk_entries(chunk, &s.engine.log.io).unwrap() {
        if e.slot != 0 {
            *all.entry(e.block.addr).or_default() += 1;
        }
    }
    all
}

fn submit(s: &Store, u: InodeUpdate) {
    s.submit(Transaction { inodes: vec![u], ..Transaction::default() }).unwrap();
}

fn sound(s: &Store) {
    assert_eq!(s.audit().unwrap().problems, [""; 0]);
}

#[test]
fn empty_files_share_blocks_and_a_volume_without_packs_has_none() {
    for packed in [true, false] {
        let (s, d) = made(packed, 1);
        let before = s.audit().unwrap().blocks;
        make(&s, FIRST..FIRST + 256);
        let blocks = s.audit().unwrap().blocks - before;
        let used: BTreeSet<BlockAddr> = (FIRST..FIRST + 256).map(|i| entry(&s, i).block.addr).collect();
        assert_eq!(used.len(), if packed { 6 } else { 256 });
        // The buckets of the root and a few nodes of tables are all there is beside.
        assert!(blocks < used.len() as u64 + 16, "{blocks}");
        // A link with a short target, and one with a long one, are as files are.
        let link = |ino: u64, target: &[u8]| {
            let (generation, mode, uid, gid, rdev, time) = (0, libc::S_IFLNK | 0o777, 0, 0, 0, 1);
            let (ino, parent, logged) = (Ino(ino), ROOT_INO, false);
            let new = Effect::New { ino, parent, generation, mode, uid, gid, rdev, time, target, logged };
            let mut out = Vec::new();
            let name = format!("f{}", ino.0);
            let version = Version { epoch: s.folded_epoch() + 1, ts: ino.0, lane: 0 };
            encode_group(&mut out, version, &[new, named(ino.0, name.as_bytes())]);
            out
        };
        fold(&s, [link(FIRST + 300, b"target"), link(FIRST + 301, &[b'x'; 3000])].concat());
        let slots = [300, 301].map(|n| entry(&s, FIRST + n).slot != 0);
        assert_eq!(slots, [packed, false]);
        sound(&s);
        s.close().unwrap();
        drop(s);
        let (s, _) = Store::open(vec![d], &OpenOptions::default()).unwrap();
        sound(&s);
        assert_eq!(packs(&s, FIRST / INOS_PER_CHUNK).is_empty(), !packed);
        for ino in FIRST..FIRST + 256 {
            let i = s.load_inode(Ino(ino)).unwrap().unwrap();
            assert_eq!((i.nlink, i.parent, i.attrs.mode), (1, ROOT_INO, libc::S_IFREG | 0o600));
        }
        let read = |n: u64| first_byte(&s, FIRST + n, 0);
        assert_eq!((read(300), read(301)), (Some(b't'), Some(b'x')));
    }
}

#[test]
fn an_inode_that_is_written_anew_takes_its_neighbours_along() {
    let (s, _) = made(true, 1);
    make(&s, FIRST..FIRST + 128);
    let chunk = FIRST / INOS_PER_CHUNK;
    assert_eq!(packs(&s, chunk).into_values().collect::<Vec<_>>(), [46, 46, 36]);
    for round in 0..30u64 {
        let live = s.audit().unwrap().blocks;
        let ino = FIRST + round * 53 % 128;
        let mut u = update(ino, 0, Vec::new());
        u.attrs.uid = 1000 + round as u32;
        submit(&s, u);
        make(&s, std::iter::empty());
        sound(&s);
        assert_eq!((packs(&s, chunk).len(), s.audit().unwrap().blocks), (3, live), "round {round}");
        assert_eq!(s.load_inode(Ino(ino)).unwrap().unwrap().attrs.uid, 1000 + round as u32);
    }
}

/// Files one after the other, each with a checkpoint of its own, lie together all the same.
#[test]
fn what_is_made_later_fills_the_pack_that_is_not_full() {
    let (s, _) = made(true, 1);
    for n in 0..128 {
        make(&s, std::iter::once(FIRST + n));
        let all = packs(&s, FIRST / INOS_PER_CHUNK);
        assert_eq!(all.values().sum::<usize>() as u64, n + 1);
        assert!(all.len() <= (n as usize + 1).div_ceil(SLOTS_MAX) + 1, "{n}: {all:?}");
    }
    sound(&s);
}

/// A pack was free as soon as one of its inodes was.
#[test]
fn a_pack_lives_as_long_as_an_inode_in_it_and_removing_writes_none() {
    let (s, d) = made(true, 1);
    make(&s, FIRST..FIRST + 46);
    let at = entry(&s, FIRST).block.addr;
    for n in 0..46 {
        assert_eq!(packs(&s, FIRST / INOS_PER_CHUNK), BTreeMap::from([(at, 46 - n)]));
        assert!(s.engine.log.segments.is_live(at));
        let e = s.folded_epoch() + 1;
        fold(&s, remove(e, FIRST + n as u64, 0));
        sound(&s);
    }
    assert!(!s.engine.log.segments.is_live(at));
    s.close().unwrap();
    drop(s);
    let (s, _) = Store::open(vec![d], &OpenOptions::default()).unwrap();
    sound(&s);
}

#[test]
fn the_cleaner_moves_what_is_left_of_a_pack() {
    for copies in [1, 2] {
        let (s, d) = made(true, copies);
        make(&s, FIRST..FIRST + 46);
        let e = s.folded_epoch() + 1;
        let gone = |n: &u64| n.is_multiple_of(3);
        fold(&s, (0..46).filter(gone).flat_map(|n| remove(e, FIRST + n, 0)).collect());
        // One that has changed since, and one that is only known to be in memory.
        let mut u = update(FIRST + 1, 0, Vec::new());
        u.attrs.uid = 77;
        s.load_inode(Ino(FIRST + 2)).unwrap();
        let r = entry(&s, FIRST + 1).block;
        {
            let mut m = s.engine.maintenance.lock();
            for _ in 0..2 {
                let b = s.engine.log.io.fetch_at(r, r.addr, "pack").unwrap();
                assert!(matches!(s.engine.cleaner().mark_node(&mut m, r.addr, b), Ok(Some(None))));
            }
            assert_eq!(m.moving.values().map(Vec::len).sum::<usize>(), 1);
        }
        submit(&s, u);
        make(&s, std::iter::empty());
        assert!(!s.engine.log.segments.is_live(r.addr), "it is where it was");
        assert!(s.engine.maintenance.lock().moving.is_empty());
        assert_eq!(packs(&s, FIRST / INOS_PER_CHUNK).into_values().collect::<Vec<_>>(), [30]);
        sound(&s);
        s.close().unwrap();
        drop(s);
        let (s, _) = Store::open(vec![d], &OpenOptions::default()).unwrap();
        for n in 0..46 {
            let i = s.load_inode(Ino(FIRST + n)).unwrap();
            assert_eq!(i.map(|i| i.attrs.uid), (!gone(&n)).then_some(if n == 1 { 77 } else { 0 }), "{n}");
        }
        sound(&s);
    }
}

/// The content of a file in [`histories_of_packs`].
#[derive(Clone, Default, PartialEq, Debug)]
struct Content {
    generation: u32,
    uid: u32,
    /// Bytes, all the same; a page of its own if there are many.
    bytes: u64,
    byte: u8,
    xattrs: usize,
}

/// Everything at once, by chance: files are made, written, given attributes and removed, segments
/// are cleaned, and the volume is closed, or not, and opened again.
#[test]
fn histories_of_packs() {
    for seed in 1..=6u64 {
        let copies = 1 + (seed % 2) as u32;
        let (mut s, d) = made(true, copies);
        let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut below = |n: u64| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 20) % n
        };
        let mut files: BTreeMap<u64, Content> = BTreeMap::new();
        let mut generations: BTreeMap<u64, u32> = BTreeMap::new();
        let mut shared = 0;
        for step in 0..120u64 {
            let e = s.folded_epoch() + 1;
            let mut groups = Vec::new();
            for _ in 0..below(40) {
                let ino = FIRST + below(200);
                let generation = generations.get(&ino).copied().unwrap_or(0);
                if generation == 0 && !files.contains_key(&ino) {
                    groups.extend(file(e, ino));
                    files.insert(ino, Content::default());
                } else if files.contains_key(&ino) && below(4) == 0 {
                    groups.extend(remove(e, ino, generation));
                    files.remove(&ino);
                    generations.insert(ino, generation + 1);
                }
            }
            fold(&s, groups);
            for _ in 0..below(12) {
                let Some((&ino, _)) = files.range(FIRST + below(200)..).next() else { continue };
                let f = files.get_mut(&ino).unwrap();
                f.uid = below(1000) as u32;
                let mut u = update(ino, 0, Vec::new());
                if below(2) == 0 {
                    (f.bytes, f.byte) = ([1, 60, 700, 2500, 3900][below(5) as usize], below(255) as u8 + 1);
                    let mut b = Block::zeroed();
                    b.0[..f.bytes as usize].fill(f.byte);
                    u.pages.push((0, b.into()));
                }
                if below(3) == 0 {
                    f.xattrs = [0, 20, 430, 5000][below(4) as usize];
                    u.xattrs = Some(vec![9; f.xattrs]);
                }
                (u.attrs.uid, u.attrs.size) = (f.uid, f.bytes);
                submit(&s, u);
            }
            match below(10) {
                0 => drop(s.clean(u64::from(s.engine.log.segments.free_count()) + 3).unwrap()),
                1 => {
                    s.close().unwrap();
                    drop(s);
                    s = Store::open(vec![d.clone()], &OpenOptions::default()).unwrap().0;
                }
                2 => s.engine.checkpoints().in_place(&mut s.engine.maintenance.lock()).unwrap(),
                _ => make(&s, std::iter::empty()),
            }
            sound(&s);
            if step % 8 != 7 {
                continue;
            }
            for ino in FIRST..FIRST + 200 {
                let i = s.load_inode(Ino(ino)).unwrap();
                let Some(f) = files.get(&ino) else {
                    assert!(i.is_none(), "seed {seed}, step {step}: inode {ino}");
                    continue;
                };
                let i = i.unwrap();
                assert_eq!((i.attrs.uid, i.attrs.size), (f.uid, f.bytes), "seed {seed}, step {step}: {ino}");
                assert_eq!(i.xattrs.len(), f.xattrs, "seed {seed}, step {step}: inode {ino}");
                assert_eq!(first_byte(&s, ino, 0), (f.bytes > 0).then_some(f.byte), "seed {seed}: {ino}");
            }
            shared += packs(&s, FIRST / INOS_PER_CHUNK).values().filter(|n| **n > 1).count();
        }
        assert!(shared > 10, "seed {seed}: {shared} packs of several inodes");
    }
}

/// A tail is promised a block. When it is the store's, and the inode lies in a pack, somebody else
/// was promised the same block before the checkpoint took it.
#[test]
fn a_tail_keeps_the_block_that_it_was_promised() {
    let (s, _) = made(true, 1);
    make(&s, FIRST..FIRST + 46);
    let free = || s.engine.log.space.free_exact();
    let before = free();
    assert!(s.reserve(0, 1));
    let mut end = page(7);
    end.0[3000..].fill(0);
    let mut u = update(FIRST + 3, 0, vec![(0, end)]);
    u.attrs.size = 3000;
    u.reserved = 1;
    submit(&s, u);
    assert_eq!(free(), before - 1, "promised to somebody else");
    sound(&s);
    make(&s, std::iter::empty());
    assert_eq!((free(), entry(&s, FIRST + 3).slot), (before - 1, 0), "a block of its own, charged once");
    sound(&s);
}

/// A fold brought every file that it removed into memory, from the pack which it shared with
/// others.
#[test]
fn of_removed_files_none_comes_into_memory() {
    let (s, _) = made(true, 1);
    make(&s, FIRST..FIRST + 300);
    let link = named(FIRST + 3, b"link");
    let mut linked = Vec::new();
    let epoch = s.folded_epoch() + 1;
    encode_group(&mut linked, Version { epoch, ts: 5, lane: 0 }, &[link]);
    fold(&s, linked);
    submit(&s, update(FIRST + 4, 2, vec![]));
    let e = s.folded_epoch() + 1;
    // One of another generation, one that has another name, one that is in memory.
    let of = |ino: u64| remove(e, ino, u32::from(ino == FIRST + 7) * 5);
    {
        let plan = (FIRST..FIRST + 200).flat_map(of).collect::<Vec<u8>>();
        let plan = crate::engine::plan::plan([&plan[..]], 1).unwrap();
        let mut m = s.engine.maintenance.lock();
        let mut dirty = Default::default();
        let mut sink = crate::engine::sink::Sink::new(&s.engine.log, &s.engine.totals, &mut dirty);
        let before = (0..200).filter(|n| s.engine.inodes.cache.has(Ino(FIRST + n))).count();
        s.engine.fold().fold(&mut m, plan, &mut sink).unwrap();
        m.usage.dirty.append(&mut dirty);
        let after: Vec<u64> = (0..200).filter(|n| s.engine.inodes.cache.has(Ino(FIRST + n))).collect();
        assert!(before <= 2 && after.iter().all(|n| [3, 7].contains(n)), "{before}, {after:?}");
        let orphans: Vec<_> = m.orphans.iter().copied().collect();
        assert_eq!((m.freed.len(), orphans), (198, vec![Ino(FIRST + 7)]));
    }
    assert_eq!(s.space().inodes, 1 + 102);
    fold(&s, Vec::new());
    sound(&s);
    let names = |ino: u64| s.load_inode(Ino(ino)).unwrap().map(|i| i.nlink);
    assert_eq!((names(FIRST + 3), names(FIRST + 7), names(FIRST + 8)), (Some(1), Some(0), None));
    assert_eq!((names(FIRST + 250), entry(&s, FIRST + 4).block.is_none()), (Some(1), true));
}
