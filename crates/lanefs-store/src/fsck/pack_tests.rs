//! Damaged packs: whoever lies in one is lost with it, and nobody else; and packs are found without
//! a table.

use super::tests::{DIRS, FILES, Volume, check_on, fold, group, lookup, new, place, set, unreadable};
use super::{FsckOptions, check};
use crate::api::{InodeUpdate, Transaction};
use crate::device::{Device, MemoryDevice};
use lanefs_format::header::{self, BlockKind, verify_sealed};
use lanefs_format::table_node::{self, ENTRIES, TableEntry};
use lanefs_format::{BLOCK_SIZE, Block, BlockAddr, FileKind, INOS_PER_CHUNK, Ino, checksum, pack};
use std::sync::Arc;

fn block(v: &Volume, at: u64) -> Box<Block> {
    let mut b = Block::zeroed();
    v.device.peek(at * BLOCK_SIZE as u64, &mut b.0).unwrap();
    b
}

/// The block of the youngest pack that has the inode, and who else is there.
fn pack_of(v: &Volume, ino: u64) -> (u64, Vec<(Ino, u8)>) {
    let bytes = v.device.to_vec();
    let mut found = Vec::new();
    for at in 0..bytes.len() as u64 / BLOCK_SIZE as u64 {
        let b = block(v, at);
        let Some((BlockKind::Pack, h)) = verify_sealed(&b, BlockAddr(at)) else { continue };
        let p = pack::decode(&b, BlockAddr(at), h.index.get()).unwrap();
        let inodes: Vec<(Ino, u8)> = p.inodes().collect();
        if inodes.iter().any(|i| i.0 == Ino(ino)) {
            found.push(((h.mount.get(), h.epoch.get(), h.sequence.get()), at, inodes));
        }
    }
    let (_, at, inodes) = found.into_iter().max_by_key(|f| f.0).expect("the inode is in a pack");
    (at, inodes)
}

/// The entries of the youngest leaf of the table with the inode, and where it lies.
fn leaf_of(v: &Volume, ino: u64) -> (u64, [TableEntry; ENTRIES]) {
    let chunk = ino / INOS_PER_CHUNK;
    let at = v.find(BlockKind::Table, |level, _, index| (level, index) == (0, chunk));
    (at, table_node::decode(&block(v, at), BlockAddr(at), chunk).unwrap())
}

#[test]
fn whoever_lies_in_an_unreadable_pack_loses_its_names_and_nobody_else() {
    let mut v = Volume::new();
    let (at, inodes) = pack_of(&v, 1010);
    assert!(inodes.len() > 20, "{inodes:?}");
    let used = leaf_of(&v, 1010).1;
    let lost: Vec<u64> =
        inodes.iter().map(|i| i.0.0).filter(|i| used[*i as usize % 128].block.addr.0 == at).collect();
    assert!(lost.contains(&1010));
    v.device.poke(at * BLOCK_SIZE as u64 + 100, &[0xff]).unwrap();
    let told: Vec<String> = lost.iter().map(|i| format!("inode {i}: pack of inodes")).collect();
    let names = lost.iter().map(|i| format!("names inode {i}"));
    let told: Vec<String> = told.into_iter().chain(names).collect();
    let r = v.heal(&told.iter().map(|t| &t[..]).collect::<Vec<_>>());
    assert_eq!(r.inodes, 1 + DIRS + FILES - lost.len() as u64);
    v.with(|s| {
        for n in 0..FILES {
            let there = lookup(s, 200, format!("file{n}").as_bytes()).is_some();
            assert_eq!(there, !lost.contains(&(1000 + n)), "file{n}");
        }
        assert_eq!(s.audit().unwrap().problems, [""; 0]);
    });
}

#[test]
fn a_pack_that_the_device_does_not_read_is_not_taken_for_damage() {
    let v = Volume::new();
    let (at, _) = pack_of(&v, 1010);
    let range = at * BLOCK_SIZE as u64..(at + 1) * BLOCK_SIZE as u64;
    let repair = FsckOptions { repair: true, ..FsckOptions::default() };
    let before = v.device.to_vec();
    assert!(check_on(unreadable(&v, 0, range.clone()), repair.clone()).is_err());
    let r = check_on(unreadable(&v, 0, range.clone()), FsckOptions::default()).unwrap();
    assert!(r.left() > 0 && r.problems.iter().all(|p| !p.repairable), "{:#?}", r.problems);
    assert!(before == v.device.to_vec());
    let r = check_on(unreadable(&v, 1, range), repair).unwrap();
    assert!(r.is_clean(), "read once more, it was there: {:#?}", r.problems);
}

/// Without a slot, and then without a leaf of the table.
#[test]
fn inodes_in_packs_are_found_without_a_table() {
    let mut v = Volume::new();
    let end = v.device.size() / BLOCK_SIZE as u64;
    for slot in [1, 2, end - 2, end - 1] {
        v.device.poke(slot * BLOCK_SIZE as u64, &[0xff; 64]).unwrap();
    }
    let r = v.heal(&["checkpoint slot in block 1:"]);
    assert_eq!((r.inodes, r.names), (1 + DIRS + FILES, DIRS + FILES));
    let (at, _) = leaf_of(&v, 1010);
    v.device.poke(at * BLOCK_SIZE as u64 + 500, &[0x55]).unwrap();
    let r = v.heal(&["inode table: inodes 896 to 1023"]);
    assert_eq!((r.inodes, r.names), (1 + DIRS + FILES, DIRS + FILES));
    v.with(|s| {
        for n in 0..FILES {
            assert_eq!(lookup(s, 200, format!("file{n}").as_bytes()), Some(Ino(1000 + n)));
        }
        assert_eq!(s.audit().unwrap().problems, [""; 0]);
    });
}

/// What becomes of an entry; the second one is that of the root directory.
type Change = fn(TableEntry, TableEntry) -> TableEntry;

/// Entries of the table that name a slot of another inode, one that is not there, or the block of
/// somebody else. All sums are right: a program wrote this.
#[test]
fn entries_that_name_wrong_slots_are_damage_of_their_inodes() {
    for (what, change) in [
        ("which is that of number", (|e, _| TableEntry { slot: e.slot + 1, ..e }) as Change),
        ("there is none", |e, _| TableEntry { slot: 46, ..e }),
        ("holds pack of inodes", |e, _| TableEntry { slot: 0, ..e }),
        ("belongs to something else too", |e, root| TableEntry { block: root.block, ..e }),
    ] {
        let mut v = Volume::new();
        let (root, files) = (leaf_of(&v, 1).1[1], leaf_of(&v, 1011).1);
        let victim = files.iter().position(|e| e.slot != 0).unwrap();
        v.with(|s| {
            let ino = Ino(1011 / 128 * 128 + victim as u64);
            let e = s.engine.inodes.table.lookup(ino, &s.engine.log.io).unwrap();
            s.engine.inodes.table.set(ino, change(e, root), &s.engine.log.io).unwrap();
        });
        let r = v.check(false);
        assert!(r.problems.iter().any(|p| p.what.contains(what)), "{what}: {:#?}", r.problems);
        let r = v.check(true);
        assert_eq!(r.left(), 0, "{what}: {:#?}", r.problems);
        let r = v.check(false);
        assert!(r.is_clean(), "{what}: {:#?}", r.problems);
        // Whoever lay beside it is there still.
        assert!(r.inodes >= DIRS + FILES, "{what}: {} inodes", r.inodes);
    }
}

/// Packs whose bytes are all possible, and whose sums are right: an error or an inode, and never a
/// panic; and a repair leaves nothing.
#[test]
fn packs_that_were_made_wrong_are_damage_and_no_panic() {
    let v = Volume::new();
    let image = v.device.to_vec();
    let (at, inodes) = pack_of(&v, 1011);
    let chunk = inodes[0].0.0 / INOS_PER_CHUNK;
    let mut seed = 0x2545_f491_4f6c_dd1du64;
    for round in 0..60 {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let device = Arc::new(MemoryDevice::from_bytes(&image).unwrap());
        let (leaf_at, mut entries) = leaf_of(&v, chunk * INOS_PER_CHUNK);
        let mut b = block(&v, at);
        let offset = [64, 65, 66, 68, 69, 72, 73][round % 7]
            + if round < 28 { 0 } else { (seed >> 8) as usize % 3000 };
        b.0[offset] ^= 1 << (seed % 8);
        let stamp = |b: &Block| {
            let h = header::read_header(b);
            let (mount, epoch) = (h.mount.get(), h.epoch.get());
            header::Stamp { mount, epoch, sequence: h.sequence.get(), volume: h.volume.get() }
        };
        let born = stamp(&b);
        header::seal(&mut b, BlockAddr(at), born);
        let r = checksum::reference(BlockAddr(at), &b);
        entries.iter_mut().filter(|e| e.block.addr == r.addr).for_each(|e| e.block = r);
        let mut leaf = table_node::encode(chunk, &entries);
        header::seal(&mut leaf, BlockAddr(leaf_at), stamp(&block(&v, leaf_at)));
        device.poke(at * BLOCK_SIZE as u64, &b.0).unwrap();
        device.poke(leaf_at * BLOCK_SIZE as u64, &leaf.0).unwrap();
        // Nothing above the leaf has the new sum: it is found by a scan.
        let d: Vec<Arc<dyn Device>> = vec![device];
        let repair = FsckOptions { repair: true, threads: 1, ..FsckOptions::default() };
        check(d.clone(), &repair, &|_| ()).unwrap();
        let r = check(d, &FsckOptions { threads: 1, ..FsckOptions::default() }, &|_| ()).unwrap();
        assert!(r.is_clean(), "round {round}: {:#?}", r.problems);
    }
}

/// A file in a pack whose map is damaged is made anew, and those beside it stay where they are.
#[test]
fn what_can_be_read_of_an_inode_in_a_pack_is_kept() {
    let mut v = Volume::new();
    v.with(|s| {
        let u = |ino, xattrs| InodeUpdate {
            ino: Ino(ino),
            attrs: super::tests::attrs(libc::S_IFREG | 0o644, 0),
            rights_logged: false,
            size_only: false,
            xattrs,
            pages: Vec::new(),
            reserved: 0,
            more: false,
            life: Default::default(),
        };
        let inodes = vec![u(1011, Some(vec![9; 5000]))];
        s.submit(Transaction { inodes, ..Transaction::default() }).unwrap();
        fold(
            s,
            50,
            vec![group(50, &[new(5000, 200, libc::S_IFREG), set(200, b"more", 5000, FileKind::File)])],
        );
    });
    let at = place(&v, BlockKind::Xattr, |_, ino, index| (ino, index) == (1011, 1));
    v.device.poke(at.start + 100, &[0xff]).unwrap();
    v.heal(&["inode 1011: map: extended attributes"]);
    v.with(|s| {
        assert!((0..FILES).all(|n| lookup(s, 200, format!("file{n}").as_bytes()) == Some(Ino(1000 + n))));
        assert_eq!(s.audit().unwrap().problems, [""; 0]);
    });
}
