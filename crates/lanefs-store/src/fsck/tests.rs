//! Volumes damaged one way at a time: the check says so, the repair puts it right, and a second
//! check finds nothing.

use super::{FsckOptions, FsckReport, check};
use crate::api::*;
use crate::device::{Device, Fault, FaultyDevice, Kind, MemoryDevice, Plan, When};
use crate::inodes::cache::InodeEntry;

use crate::error::{Result, StoreError};
use crate::store::Store;
use lanefs_format::dir_bucket::{self, EntryRef};
use lanefs_format::header::{self, BlockKind, Stamp, verify_sealed};
use lanefs_format::inode;
use lanefs_format::map_node::KEY_END;
use lanefs_format::prealloc::Prealloc;
use lanefs_format::record::{Effect, encode_group};
use lanefs_format::table_node::{self, ENTRIES, TableEntry};
use lanefs_format::*;
use std::sync::Arc;

pub(super) const DIRS: u64 = 4;
pub(super) const FILES: u64 = 300;

fn cookie(name: &[u8]) -> u64 {
    lanefs_format::name_hash::name_hash([1, 2], name)
}

pub(super) fn attrs(mode: u32, size: u64) -> Attrs {
    Attrs {
        mode,
        uid: 0,
        gid: 0,
        flags: 0,
        rdev: 0,
        size,
        atime: 1,
        mtime: 1,
        ctime: 1,
        btime: 1,
        generation: 0,
    }
}

pub(super) fn new(ino: u64, parent: u64, mode: u32) -> Effect<'static> {
    Effect::New {
        ino: Ino(ino),
        parent: Ino(parent),
        generation: 0,
        mode,
        uid: 0,
        gid: 0,
        rdev: 0,
        time: 1,
        target: b"",
        logged: false,
    }
}

pub(super) fn set(dir: u64, name: &[u8], ino: u64, kind: FileKind) -> Effect<'_> {
    Effect::Set { dir: Ino(dir), cookie: cookie(name), name, ino: Ino(ino), old: Ino::NONE, kind }
}

pub(super) fn group(n: u64, effects: &[Effect<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_group(&mut out, Version { epoch: n, ts: n, lane: 0 }, effects);
    out
}

pub(super) struct Volume {
    pub(super) device: Arc<MemoryDevice>,
    epoch: u64,
}

impl Volume {
    /// Four directories in the root; the first has 300 files, of which each tenth has pages, and
    /// one a large map.
    pub(super) fn new() -> Volume {
        Volume::made(true)
    }

    /// The same, each inode in a block of its own.
    fn unpacked() -> Volume {
        Volume::made(false)
    }

    fn made(packed_inodes: bool) -> Volume {
        let device = Arc::new(MemoryDevice::new(64 << 20).unwrap());
        let o = FormatOptions {
            segment_blocks: 64,
            mlogs: 2,
            uuid: Some([7; 16]),
            hash_key: Some([1, 2]),
            time: Some(1),
            packed_inodes,
            ..Default::default()
        };
        let d: Arc<dyn Device> = device.clone();
        Store::format(&[d], &o).unwrap();
        let mut v = Volume { device, epoch: 10 };
        let dirs: Vec<Vec<u8>> = (0..DIRS).map(|i| format!("dir{i}").into_bytes()).collect();
        let files: Vec<Vec<u8>> = (0..FILES).map(|i| format!("file{i}").into_bytes()).collect();
        let mut effects = Vec::new();
        for (i, name) in dirs.iter().enumerate() {
            let ino = 200 + i as u64;
            effects.push(vec![new(ino, 1, libc::S_IFDIR | 0o755), set(1, name, ino, FileKind::Dir)]);
        }
        for (i, name) in files.iter().enumerate() {
            let ino = 1000 + i as u64;
            effects.push(vec![new(ino, 200, libc::S_IFREG | 0o644), set(200, name, ino, FileKind::File)]);
        }
        let groups: Vec<Vec<u8>> = effects.iter().enumerate().map(|(n, e)| group(n as u64, e)).collect();
        v.with(|s| {
            fold(s, 5, groups);
            for i in (0..FILES).step_by(10) {
                let n = if i == 0 { 400 } else { 3 };
                let pages = (0..n).map(|p| (p * (1 + i), page(i * 1000 + p).into())).collect();
                let attrs = attrs(libc::S_IFREG | 0o644, n * (1 + i) * 4096);
                let xattrs = (i == 20).then(|| vec![9; 5000]);
                let u = InodeUpdate {
                    ino: Ino(1000 + i),
                    attrs,
                    rights_logged: false,
                    size_only: false,
                    xattrs,
                    pages,
                    reserved: 0,
                    more: false,
                    life: Default::default(),
                };
                s.submit(Transaction { durable: i % 20 == 0, inodes: vec![u], ..Transaction::default() })
                    .unwrap();
            }
        });
        v.epoch += 1;
        v
    }

    pub(super) fn devices(&self) -> Vec<Arc<dyn Device>> {
        vec![self.device.clone()]
    }

    /// Opens, does `f`, closes.
    pub(super) fn with<T>(&mut self, f: impl FnOnce(&Store) -> T) -> T {
        let (s, _) = Store::open(self.devices(), &OpenOptions::default()).unwrap();
        let t = f(&s);
        s.close().unwrap();
        t
    }

    fn fold(&mut self, effects: &[Effect<'_>]) {
        self.epoch += 1;
        let (e, g) = (self.epoch, group(self.epoch, effects));
        self.with(|s| fold(s, e, vec![g]));
    }

    pub(super) fn check(&self, repair: bool) -> FsckReport {
        let o = FsckOptions { repair, threads: 2, ..FsckOptions::default() };
        check(self.devices(), &o, &|_| ()).unwrap()
    }

    /// Flips a byte of the youngest block of a kind that `pick` wants: level, inode, index.
    pub(super) fn damage(&self, kind: BlockKind, pick: impl Fn(u8, u64, u64) -> bool) {
        let at = self.find(kind, pick) * BLOCK_SIZE as u64 + 100;
        let mut b = [0];
        self.device.peek(at, &mut b).unwrap();
        self.device.poke(at, &[b[0] ^ 0x20]).unwrap();
    }

    /// The youngest such block.
    pub(super) fn find(&self, kind: BlockKind, pick: impl Fn(u8, u64, u64) -> bool) -> u64 {
        let bytes = self.device.to_vec();
        let mut best = None;
        for (n, b) in bytes.chunks_exact(BLOCK_SIZE).enumerate() {
            let mut block = Block::zeroed();
            block.0.copy_from_slice(b);
            if let Some((k, h)) = verify_sealed(&block, BlockAddr(n as u64))
                && k == kind
                && pick(h.level, h.ino.get(), h.index.get())
            {
                let age = (h.mount.get(), h.epoch.get(), h.sequence.get());
                if best.is_none_or(|(a, _)| a < age) {
                    best = Some((age, n));
                }
            }
        }
        best.expect("there is such a block").1 as u64
    }

    /// Checks without repair, which changes nothing; repairs; checks again.
    pub(super) fn heal(&self, expect: &[&str]) -> FsckReport {
        let before = self.device.to_vec();
        let dry = self.check(false);
        assert!(before == self.device.to_vec(), "a check wrote to the device");
        // Sorted: several threads look, and which of them comes first differs.
        let all = |r: &FsckReport| {
            let told = r.problems.iter().map(|p| format!("{}: {}", p.structure, p.what));
            let mut told: Vec<_> = told.collect();
            told.sort();
            told
        };
        for e in expect {
            assert!(all(&dry).iter().any(|p| p.contains(e)), "{e:?} is not among {:#?}", all(&dry));
        }
        assert!(dry.problems.iter().all(|p| !p.repaired));
        let done = self.check(true);
        assert_eq!(all(&done), all(&dry), "a repair met something else than the check");
        assert_eq!(done.left(), 0, "{:#?}", done.problems);
        let after = self.check(false);
        assert!(after.is_clean(), "{:#?}", after.problems);
        after
    }
}

pub(super) fn fold(s: &Store, epoch: u64, groups: Vec<Vec<u8>>) {
    let groups = groups.into_iter().map(Into::into).collect();
    s.checkpoint(|| Ok(FoldInput { epoch, groups })).unwrap();
}

pub(super) fn page(seed: u64) -> Box<Block> {
    let mut b = Block::zeroed();
    for (i, c) in b.0.chunks_exact_mut(8).enumerate() {
        c.copy_from_slice(&(seed.wrapping_mul(31) + i as u64).to_le_bytes());
    }
    b
}

pub(super) fn read(s: &Store, ino: u64, at: u64) -> Result<Box<Block>> {
    let mut b = Block::zeroed();
    s.read_pages(Ino(ino), at, &mut [PageRead { block: &mut b, hole: false }])?;
    Ok(b)
}

pub(super) fn lookup(s: &Store, dir: u64, name: &[u8]) -> Option<Ino> {
    let b = s.load_bucket(Ino(dir), cookie(name)).unwrap();
    b.entries.iter().find(|e| &*e.name == name).map(|e| e.ino)
}

#[test]
fn a_sound_volume_is_clean_and_a_repair_changes_nothing_in_it() {
    let mut v = Volume::new();
    let r = v.check(false);
    assert!(r.is_clean(), "{:#?}", r.problems);
    assert_eq!((r.inodes, r.directories, r.names), (1 + DIRS + FILES, 1 + DIRS, DIRS + FILES));
    assert_eq!(r.data_blocks, 400 + 29 * 3);
    assert!(v.check(true).is_clean() && v.check(false).is_clean());
    v.with(|s| assert_eq!(lookup(s, 200, b"file7"), Some(Ino(1007))));
}

#[test]
fn an_open_volume_is_recovered_in_memory_by_a_check() {
    let v = Volume::new();
    let (s, _) = Store::open(v.devices(), &OpenOptions::default()).unwrap();
    let g = group(50, &[new(5000, 201, libc::S_IFREG), set(201, b"late", 5000, FileKind::File)]);
    let u = InodeUpdate {
        ino: Ino(5000),
        attrs: attrs(libc::S_IFREG, 4096),
        rights_logged: false,
        size_only: false,
        xattrs: None,
        pages: vec![(0, page(1).into())],
        reserved: 0,
        more: false,
        life: Default::default(),
    };
    s.submit(Transaction { durable: true, groups: g, inodes: vec![u], ..Transaction::default() }).unwrap();
    s.shutdown();
    drop(s);
    let before = v.device.to_vec();
    let r = v.check(false);
    assert!(r.is_clean() && !r.was_closed, "{:#?}", r.problems);
    assert_eq!(r.names, DIRS + FILES + 1);
    assert!(before == v.device.to_vec());
}

#[test]
fn entries_that_lead_nowhere_or_elsewhere() {
    let mut v = Volume::new();
    v.fold(&[set(201, b"ghost", 7777, FileKind::File), set(202, b"liar", 1003, FileKind::Symlink)]);
    v.heal(&["\"ghost\": names inode 7777", "\"liar\": says Symlink"]);
    v.with(|s| {
        assert_eq!(lookup(s, 201, b"ghost"), None);
        assert_eq!(lookup(s, 202, b"liar"), Some(Ino(1003)));
        assert_eq!(s.load_inode(Ino(1003)).unwrap().unwrap().nlink, 2);
    });
}

#[test]
fn entries_that_lie_where_their_names_do_not_belong() {
    let mut v = Volume::new();
    let at = |cookie: u64, name: &'static [u8], ino: u64, kind| Effect::Set {
        dir: Ino(200),
        cookie,
        name,
        ino: Ino(ino),
        old: Ino::NONE,
        kind,
    };
    let far = |name: &[u8]| cookie(name) ^ 1 << 40;
    v.fold(&[
        at(far(b"astray"), b"astray", 1003, FileKind::File),
        at(far(b"file7"), b"file7", 1008, FileKind::File),
        at(far(b"liar"), b"liar", 1004, FileKind::Symlink),
        // Another place of the hash is as good.
        at(cookie(b"beside") + 3, b"beside", 1005, FileKind::File),
    ]);
    let r = v.heal(&["\"astray\": lies at cookie", "\"file7\": lies at cookie", "\"liar\": lies at cookie"]);
    assert_eq!(r.names, DIRS + FILES + 3);
    v.with(|s| {
        let found = [&b"astray"[..], b"file7", b"liar", b"beside"].map(|n| lookup(s, 200, n));
        assert_eq!(found, [1003, 1007, 1004, 1005].map(|i| Some(Ino(i))));
        let names = |ino| s.load_inode(Ino(ino)).unwrap().unwrap().nlink;
        assert_eq!([1003, 1007, 1008, 1004].map(names), [2, 1, 1, 2]);
    });
}

#[test]
fn a_name_that_is_there_twice() {
    let mut v = Volume::new();
    let set = |name: &'static [u8], n: u64, ino: u64| Effect::Set {
        dir: Ino(203),
        cookie: cookie(b"double") + n,
        name,
        ino: Ino(ino),
        old: Ino::NONE,
        kind: FileKind::File,
    };
    v.fold(&[set(b"double", 0, 1001), set(b"other", 1, 1002)]);
    v.with(|s| {
        let mut bytes = Vec::new();
        for (n, ino) in [(0, 1001), (1, 1002)] {
            let cookie = cookie(b"double") + n;
            EntryRef { cookie, ino: Ino(ino), kind: FileKind::File, name: b"double" }.put(&mut bytes);
        }
        let inode = s.engine.inodes.get(Ino(203), &s.engine.log.io).unwrap().unwrap();
        let mut i = inode.lock();
        i.state.set_inline_bucket(dir_bucket::body(&bytes));
        s.engine.inodes.cache.list_dirty(&inode, &mut i);
    });
    v.heal(&["\"double\": has the name of another one"]);
    v.with(|s| {
        assert_eq!(lookup(s, 203, b"double"), Some(Ino(1002)));
        let names = |ino| s.load_inode(Ino(ino)).unwrap().unwrap().nlink;
        assert_eq!([1001, 1002].map(names), [1, 2]);
    });
}

#[test]
fn what_is_left_after_the_last_round_is_not_called_repaired() {
    let mut v = Volume::new();
    v.fold(&[set(201, b"ghost", 7777, FileKind::File)]);
    let o = FsckOptions { repair: true, threads: 2, ..FsckOptions::default() };
    for (rounds, sound) in [(0, false), (1, true)] {
        let mut report = FsckReport::default();
        super::repair::run(v.devices(), &o, &|_| (), rounds, &mut report).unwrap();
        assert!(!report.is_clean());
        assert_eq!(report.problems.iter().all(|p| p.repairable), sound, "{:#?}", report.problems);
    }
}

#[test]
fn wrong_link_counts() {
    let mut v = Volume::new();
    v.with(|s| {
        for (ino, n) in [(1001, 7), (1002, 0), (203, 3)] {
            let inode = s.engine.inodes.get(Ino(ino), &s.engine.log.io).unwrap().unwrap();
            let mut i = inode.lock();
            i.state.set_names(n);
            s.engine.inodes.cache.list_dirty(&inode, &mut i);
        }
    });
    v.heal(&["inode 1001: counts 7 names, and has 1", "inode 1002: counts 0", "inode 203: counts 3"]);
}

#[test]
fn directories_with_two_names_wrong_parents_and_circles() {
    let mut v = Volume::new();
    // 202 gets a second name; 203 calls 201 its parent; 201 moves into itself by way of a new
    // directory.
    v.fold(&[
        set(200, b"again", 202, FileKind::Dir),
        Effect::Parent { ino: Ino(203), parent: Ino(201) },
        new(300, 201, libc::S_IFDIR | 0o700),
        set(201, b"below", 300, FileKind::Dir),
    ]);
    v.fold(&[
        Effect::Clr {
            dir: Ino(1),
            cookie: cookie(b"dir1"),
            name: b"dir1",
            old: Ino(201),
            kind: FileKind::Dir,
        },
        set(300, b"above", 201, FileKind::Dir),
        Effect::Parent { ino: Ino(201), parent: Ino(300) },
    ]);
    v.heal(&["\"again\": is another name", "directory 203: calls 201 its parent", "contains itself"]);
    v.with(|s| {
        let home = lookup(s, 1, b"lost+found").unwrap();
        let found =
            [201, 300].iter().filter(|i| lookup(s, home.0, format!("inode-{i}").as_bytes()).is_some());
        assert_eq!(found.count(), 1);
        assert_eq!(s.load_inode(Ino(203)).unwrap().unwrap().parent, Ino(1));
    });
}

#[test]
fn what_has_no_name_comes_to_lost_and_found() {
    let mut v = Volume::new();
    v.with(|s| {
        for (ino, n) in [(6000, 1), (6001, 0)] {
            let attrs = attrs(libc::S_IFREG | 0o600, 0);
            let mut state = crate::tree::inode_state::InodeState::new(Ino(ino), attrs, Ino(1));
            state.set_names(n);
            let mut state = Some(state);
            let inode = s
                .engine
                .inodes
                .cache
                .get_or_load(Ino(ino), || Ok(state.take().map(|s| InodeEntry::new(s, true))));
            let inode = inode.unwrap().unwrap();
            s.engine.inodes.cache.list_dirty(&inode, &mut inode.lock());
        }
    });
    v.heal(&["inode 6000: has no name", "inode 6001: was unlinked"]);
    v.with(|s| {
        let home = lookup(s, 1, b"lost+found").unwrap();
        assert_eq!(lookup(s, home.0, b"inode-6000"), Some(Ino(6000)));
        assert!(s.load_inode(Ino(6001)).unwrap().is_none());
    });
}

#[test]
fn an_unreadable_inode_loses_its_names() {
    let mut v = Volume::unpacked();
    v.damage(BlockKind::Inode, |_, ino, _| ino == 1010);
    v.heal(&["inode 1010: inode block", "\"file10\": names inode 1010"]);
    v.with(|s| {
        assert_eq!(lookup(s, 200, b"file10"), None);
        assert!(read(s, 1020, 0).unwrap().0 == page(20_000).0);
    });
}

/// A volume of which a file has ten preallocated pages, two of them written.
fn preallocated() -> Volume {
    let mut v = Volume::new();
    v.with(|s| {
        assert_eq!(
            s.preallocate(0, Ino(1010), 40..50, &|| unreachable!(), crate::Claimant::Root).unwrap(),
            10
        );
        let pages = vec![(42, page(1).into()), (43, page(2).into())];
        let attrs = attrs(libc::S_IFREG | 0o644, 44 * 4096);
        let u = InodeUpdate {
            ino: Ino(1010),
            attrs,
            rights_logged: false,
            size_only: false,
            xattrs: None,
            pages,
            reserved: 0,
            more: false,
            life: Default::default(),
        };
        let inodes = vec![u];
        s.submit(Transaction { durable: true, inodes, ..Transaction::default() }).unwrap();
        assert_eq!(s.engine.totals.unwritten(), 0);
    });
    assert!(v.check(false).is_clean());
    v
}

#[test]
fn a_slot_that_counts_preallocated_pages_wrong_is_set() {
    let mut v = preallocated();
    v.with(|s| assert_eq!(s.engine.totals.unwritten.swap(3, std::sync::atomic::Ordering::Relaxed), 8));
    v.heal(&["checkpoint slot: 3 preallocated pages without a block are counted; there are 8"]);
    v.with(|s| {
        assert_eq!(s.engine.totals.unwritten(), 8);
        assert!(s.audit().unwrap().problems.is_empty());
    });
}

#[test]
fn an_inode_that_counts_its_preallocated_pages_wrong_is_counted_anew() {
    let mut v = preallocated();
    v.with(|s| {
        let inode = s.engine.inodes.get(Ino(1010), &s.engine.log.io).unwrap().unwrap();
        let mut i = inode.lock();
        let p = i.state.prealloc();
        i.state.preallocate(p, 5);
        i.charge_unwritten(&s.engine.log.space, 0);
        s.engine.inodes.cache.list_dirty(&inode, &mut i);
    });
    v.heal(&["inode 1010: map: 5 preallocated pages without a block are counted; there are 8"]);
    v.with(|s| {
        assert_eq!(s.room_in(Ino(1010), 40..50).unwrap(), 10);
        assert!(read(s, 1010, 43).unwrap().0 == page(2).0);
        assert!(s.audit().unwrap().problems.is_empty());
    });
}

#[test]
fn an_unreadable_map_node_makes_a_hole() {
    let mut v = Volume::new();
    v.damage(BlockKind::Map, |level, ino, index| (level, ino, index) == (0, 1000, 1));
    v.heal(&["inode 1000: map"]);
    v.with(|s| {
        assert!(read(s, 1000, 255).unwrap().0 == page(255).0);
        assert!(read(s, 1000, 256).unwrap().0.iter().all(|b| *b == 0));
    });
}

#[test]
fn an_unreadable_bucket_leaves_its_files_in_lost_and_found() {
    let mut v = Volume::new();
    v.damage(BlockKind::Bucket, |_, ino, _| ino == 200);
    let r = v.heal(&["inode 200: map"]);
    assert_eq!((r.inodes, r.names), (DIRS + FILES + 2, DIRS + FILES + 1));
    v.with(|s| {
        let home = lookup(s, 1, b"lost+found").unwrap();
        let mut lost = 0;
        for i in 0..FILES {
            let named = lookup(s, 200, format!("file{i}").as_bytes());
            let moved = lookup(s, home.0, format!("inode-{}", 1000 + i).as_bytes());
            assert_eq!((named.or(moved), named.is_some()), (Some(Ino(1000 + i)), moved.is_none()));
            lost += u64::from(moved.is_some());
        }
        assert!((1..FILES).contains(&lost), "{lost}");
    });
}

#[test]
fn unreadable_attributes_are_dropped_and_data_is_reported() {
    let mut v = Volume::new();
    v.damage(BlockKind::Xattr, |_, ino, index| (ino, index) == (1020, 1));
    v.heal(&["inode 1020: map: extended attributes"]);
    v.with(|s| assert!(s.load_inode(Ino(1020)).unwrap().unwrap().xattrs.is_empty()));
    // A block of data: found by its content.
    let (bytes, want) = (v.device.to_vec(), page(30_001));
    let at = bytes.chunks_exact(BLOCK_SIZE).position(|b| b == want.0).unwrap();
    v.device.poke((at * BLOCK_SIZE) as u64, &[1, 2, 3]).unwrap();
    for repair in [false, true, false] {
        let r = v.check(repair);
        assert_eq!((r.problems.len(), r.left()), (1, 1), "{:#?}", r.problems);
        assert!(r.problems[0].structure == "inode 1030: page 31" && !r.problems[0].repairable);
    }
    v.with(|s| assert!(read(s, 1030, 31).is_err()));
}

#[test]
fn unreadable_tables_are_counted_and_searched() {
    let mut v = Volume::new();
    v.damage(BlockKind::Usage, |level, _, index| (level, index) == (0, 0));
    v.heal(&["usage table"]);
    v.damage(BlockKind::Table, |level, _, index| (level, index) == (0, 1010 / 128));
    v.heal(&["inode table: inodes 896 to 1023"]);
    v.with(|s| {
        assert!(read(s, 1010, 11).unwrap().0 == page(10_001).0);
        assert_eq!(lookup(s, 200, b"file10"), Some(Ino(1010)));
        // The space is accounted for: it can be written and read again.
        for n in 0..20 {
            let u = InodeUpdate {
                ino: Ino(1040),
                attrs: attrs(libc::S_IFREG, 1 << 20),
                rights_logged: false,
                size_only: false,
                xattrs: None,
                pages: (0..200).map(|p| (p, page(n * 7 + p).into())).collect(),
                reserved: 0,
                more: false,
                life: Default::default(),
            };
            s.submit(Transaction { inodes: vec![u], ..Transaction::default() }).unwrap();
        }
    });
    assert!(v.check(false).is_clean());
}

#[test]
fn wrong_usage_marks() {
    let mut v = Volume::new();
    v.with(|s| {
        let mut m = s.engine.maintenance.lock();
        let used = (0..s.engine.log.segments.len()).filter(|seg| s.engine.log.segments.info(*seg).tree > 3);
        for seg in used.take(2) {
            let i = s.engine.log.segments.live_blocks(seg)[1];
            s.engine.log.segments.clear_tree(s.engine.log.segments.geometry.addr(seg, i));
            m.usage.dirty.insert(crate::log::usage_table::leaf_of(seg));
        }
    });
    v.heal(&["2 blocks in use are marked free"]);
}

#[test]
fn without_any_checkpoint_the_name_space_is_rebuilt() {
    let mut v = Volume::new();
    // A deleted file stays deleted.
    v.fold(&[
        Effect::Clr {
            dir: Ino(200),
            cookie: cookie(b"file50"),
            name: b"file50",
            old: Ino(1050),
            kind: FileKind::File,
        },
        Effect::Dead { ino: Ino(1050), generation: 0 },
    ]);
    let end = (64 << 20) / BLOCK_SIZE as u64;
    for slot in [1, 2, end - 2, end - 1] {
        v.device.poke(slot * BLOCK_SIZE as u64, &[0xff; 64]).unwrap();
    }
    assert!(Store::open(v.devices(), &OpenOptions::default()).is_err());
    let r = v.heal(&["checkpoint slot in block 1:", "checkpoint slot in block 2:"]);
    assert_eq!((r.inodes, r.names), (DIRS + FILES, DIRS + FILES - 1));
    v.with(|s| {
        assert_eq!(lookup(s, 200, b"file50"), None);
        assert!(read(s, 1000, 399).unwrap().0 == page(399).0);
    });
}

/// The file gets blocks of its own. Those of the directory stay in use: they are all that lies in
/// their segment, which must not become free between two rounds of a repair.
#[test]
fn blocks_that_a_file_shares_with_a_directory_are_the_directory_s() {
    let mut v = Volume::new();
    v.with(|s| {
        let io = &s.engine.log.io;
        let get = |ino| s.engine.inodes.get(Ino(ino), io).unwrap().unwrap();
        let mut buckets = Vec::new();
        let mut each = |_, r| {
            buckets.push(r);
            Ok(())
        };
        get(200).lock().state.for_each_page(io, &mut each).unwrap();
        assert!(buckets.len() > 1);
        let file = get(1010);
        let mut i = file.lock();
        for (n, r) in buckets.into_iter().enumerate() {
            assert_eq!(i.state.set_page(n as u64 + 1, r, io).unwrap(), None);
        }
        s.engine.inodes.cache.list_dirty(&file, &mut i);
    });
    v.heal(&["inode 1010: page 1: block"]);
    v.with(|s| {
        assert!((0..FILES).all(|n| lookup(s, 200, format!("file{n}").as_bytes()) == Some(Ino(1000 + n))));
        let problems = s.audit().unwrap().problems;
        assert!(problems.is_empty(), "{problems:#?}");
    });
}

/// Sealed blocks that name inodes no table can have: they were made by nobody, and neither stop a
/// scan nor come back with it.
#[test]
fn a_scan_passes_over_inodes_that_cannot_be() {
    let v = Volume::unpacked();
    let is_file = |_, ino, _| ino == 1010;
    let stamp_of = |at: u64| {
        let mut b = Block::zeroed();
        v.device.peek(at * BLOCK_SIZE as u64, &mut b.0).unwrap();
        let (_, h) = verify_sealed(&b, BlockAddr(at)).unwrap();
        let (mount, epoch, volume) = (h.mount.get(), h.epoch.get(), h.volume.get());
        let stamp = Stamp { mount, epoch, sequence: h.sequence.get() + 1, volume };
        (inode::decode(&b, BlockAddr(at), Ino(1010)).unwrap(), stamp)
    };
    let (image, stamp) = stamp_of(v.find(BlockKind::Inode, is_file));
    let mut entries = [TableEntry::default(); ENTRIES];
    entries[1].generation = 1;
    let bogus = [
        inode::encode(Ino(1 << 63 | 5), &image).unwrap(),
        table_node::encode(1 << 60, &entries),
        table_node::encode(KEY_END, &entries),
    ];
    // The last segments are free.
    let first = (64 << 20) / BLOCK_SIZE as u64 - 200;
    for (n, mut block) in bogus.into_iter().enumerate() {
        let at = first + n as u64;
        header::seal(&mut block, BlockAddr(at), stamp);
        v.device.poke(at * BLOCK_SIZE as u64, &block.0).unwrap();
    }
    let end = (64 << 20) / BLOCK_SIZE as u64;
    for slot in [1, 2, end - 2, end - 1] {
        v.device.poke(slot * BLOCK_SIZE as u64, &[0xff; 64]).unwrap();
    }
    let r = v.heal(&["checkpoint slot in block 1:"]);
    assert_eq!((r.inodes, r.names), (1 + DIRS + FILES, DIRS + FILES));
}

/// A root that is a file, and a damaged one: what can be read of it must not take the place of the
/// new root.
#[test]
fn a_root_that_is_a_damaged_file_is_made_anew() {
    let mut v = Volume::new();
    v.with(|s| {
        let inode = s.engine.inodes.get(Ino(1), &s.engine.log.io).unwrap().unwrap();
        let mut i = inode.lock();
        i.state.set_inline_bucket(Vec::new());
        i.state.set_dir(inode::DirShape::default());
        let version = i.state.version() + 1;
        i.state.apply_attrs(&attrs(libc::S_IFREG | 0o644, 0), version);
        i.state.preallocate(Prealloc::NONE.with(0..10), 5);
        i.unwritten_change();
        s.engine.inodes.cache.list_dirty(&inode, &mut i);
    });
    let r = v.heal(&["inode 1: map: 5 preallocated pages", "root directory: cannot be read"]);
    assert_eq!(r.directories, 1 + DIRS + 1);
    v.with(|s| {
        let home = lookup(s, 1, b"lost+found").unwrap();
        assert_eq!(lookup(s, home.0, b"inode-200"), Some(Ino(200)));
        assert_eq!(lookup(s, 200, b"file7"), Some(Ino(1007)));
    });
}

#[test]
fn superblocks_and_slots_are_repaired_from_their_copies() {
    let mut v = Volume::new();
    v.device.poke(40, &[0xee; 8]).unwrap();
    v.heal(&["memory: superblock"]);
    v.with(|_| ());
    // Closed volumes have two good slots by now; one is lost.
    v.device.poke(BLOCK_SIZE as u64 + 40, &[0xee; 8]).unwrap();
    v.heal(&["checkpoint slot in block 1:"]);
}

/// The place of the youngest block of a kind that `pick` wants.
pub(super) fn place(
    v: &Volume,
    kind: BlockKind,
    pick: impl Fn(u8, u64, u64) -> bool,
) -> std::ops::Range<u64> {
    let at = v.find(kind, pick) * BLOCK_SIZE as u64;
    at..at + BLOCK_SIZE as u64
}

/// The volume's device, of which these bytes cannot be read.
pub(super) fn unreadable(
    v: &Volume,
    times: u64,
    range: std::ops::Range<u64>,
) -> Arc<FaultyDevice<Arc<MemoryDevice>>> {
    let when = When { range: Some(range), times, ..When::default() };
    let plan = Plan::none().rule(Kind::Read, when, Fault::Error(libc::EIO));
    Arc::new(FaultyDevice::new(v.device.clone(), plan))
}

pub(super) fn check_on(d: Arc<dyn Device>, o: FsckOptions) -> Result<FsckReport> {
    check(vec![d], &FsckOptions { threads: 1, ..o }, &|_| ())
}

#[test]
fn what_cannot_be_read_is_not_taken_for_damage() {
    let v = Volume::unpacked();
    let repair = FsckOptions { repair: true, ..FsckOptions::default() };
    let before = v.device.to_vec();
    let places = [
        place(&v, BlockKind::Inode, |_, ino, _| ino == 1010),
        place(&v, BlockKind::Map, |level, ino, index| (level, ino, index) == (0, 1000, 1)),
        place(&v, BlockKind::Bucket, |_, ino, _| ino == 200),
        place(&v, BlockKind::Xattr, |_, ino, index| (ino, index) == (1020, 1)),
        place(&v, BlockKind::Table, |level, _, index| (level, index) == (0, 1010 / 128)),
        place(&v, BlockKind::Usage, |level, _, index| (level, index) == (0, 0)),
        BLOCK_SIZE as u64..2 * BLOCK_SIZE as u64,
        2 * BLOCK_SIZE as u64..3 * BLOCK_SIZE as u64,
        0..BLOCK_SIZE as u64,
    ];
    for at in places {
        let bad = unreadable(&v, 0, at.clone());
        let e = check_on(bad.clone(), repair.clone()).expect_err(&format!("{at:?} was repaired"));
        assert!(matches!(e, StoreError::Io { .. }) && e.to_string().contains("byte"), "{at:?}: {e}");
        let r = check_on(bad, FsckOptions::default()).unwrap();
        assert!(r.left() > 0, "{at:?} is clean");
        for p in &r.problems {
            assert!(!p.repairable && p.what.contains("byte"), "{at:?}: {p:?}");
        }
        assert!(before == v.device.to_vec(), "{at:?} was written to");
    }
}

#[test]
fn what_cannot_be_read_once_is_read_again() {
    let v = Volume::unpacked();
    let at = place(&v, BlockKind::Inode, |_, ino, _| ino == 1010);
    let repair = FsckOptions { repair: true, ..FsckOptions::default() };
    let r = check_on(unreadable(&v, 1, at), repair).unwrap();
    assert!(r.is_clean(), "{:#?}", r.problems);
}

#[test]
fn what_cannot_be_read_is_given_up_if_asked() {
    let mut v = Volume::unpacked();
    let at = place(&v, BlockKind::Inode, |_, ino, _| ino == 1010);
    let o = FsckOptions { repair: true, give_up_unreadable: true, ..FsckOptions::default() };
    let r = check_on(unreadable(&v, 0, at), o).unwrap();
    assert!(!r.is_clean() && r.left() == 0, "{:#?}", r.problems);
    assert!(v.check(false).is_clean());
    v.with(|s| assert_eq!(lookup(s, 200, b"file10"), None));
}

#[test]
fn unreadable_data_is_told_and_nothing_is_done_about_it() {
    let v = Volume::new();
    let (bytes, want) = (v.device.to_vec(), page(30_001));
    let at = bytes.chunks_exact(BLOCK_SIZE).position(|b| b == want.0).unwrap() as u64 * BLOCK_SIZE as u64;
    let repair = FsckOptions { repair: true, ..FsckOptions::default() };
    for o in [FsckOptions::default(), repair] {
        let r = check_on(unreadable(&v, 0, at..at + 1), o).unwrap();
        assert_eq!((r.problems.len(), r.left()), (1, 1), "{:#?}", r.problems);
        assert!(r.problems[0].structure == "inode 1030: page 31" && !r.problems[0].repairable);
    }
    assert!(v.check(false).is_clean());
}

#[test]
fn damage_anywhere_never_makes_a_check_or_a_repair_panic() {
    let v = Volume::new();
    let image = v.device.to_vec();
    let mut x = 88172645463325252u64;
    for round in 0..30 {
        let device = Arc::new(MemoryDevice::from_bytes(&image).unwrap());
        for _ in 0..1 + round % 12 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            // The used part lies at the front.
            let at = x % (12 << 20);
            device.poke(at, &x.to_le_bytes()[..1 + (x >> 60) as usize % 8]).unwrap();
        }
        let v = Volume { device, epoch: 0 };
        let o = FsckOptions { repair: true, threads: 1, ..FsckOptions::default() };
        if check(v.devices(), &o, &|_| ()).is_ok() {
            let r = v.check(false);
            assert!(r.problems.iter().all(|p| !p.repairable), "round {round}: {:#?}", r.problems);
        }
    }
}

/// Names, and the pages of each.
type Contents = Vec<(Vec<u8>, Vec<Vec<u8>>)>;

/// Returns the content of every file of an unclosed volume, read as a mount would; an error if
/// anything cannot be.
fn contents(d: &Arc<MemoryDevice>) -> Result<Contents> {
    let o = OpenOptions { read_only: true, threads: 1, ..OpenOptions::default() };
    let (s, _) = Store::open(vec![d.clone()], &o)?;
    let mut out = Vec::new();
    let (mut at, mut entries) = (0, Vec::new());
    loop {
        let b = s.load_bucket(ROOT_INO, at)?;
        entries.extend(b.entries);
        if b.high >= dir_bucket::COOKIE_MAX {
            break;
        }
        at = b.high + 1;
    }
    for e in entries {
        let Some(image) = s.load_inode(e.ino)? else { continue };
        let pages = (0..image.attrs.size.div_ceil(4096)).map(|p| Ok(read(&s, e.ino.0, p)?.0.to_vec()));
        out.push((e.name.to_vec(), pages.collect::<Result<_>>()?));
    }
    Ok(out)
}

/// Returns what a scrub of the volume as it is finds damaged.
fn scrubbed(d: &Arc<MemoryDevice>) -> Result<usize> {
    let o = OpenOptions { read_only: true, threads: 1, ..OpenOptions::default() };
    let (s, _) = Store::open(vec![d.clone()], &o)?;
    let (mut at, mut found) = (crate::ScrubCursor::default(), 0);
    loop {
        let step = s.scrub(at, 64)?;
        found += step.damage.len();
        match step.next {
            Some(next) => at = next,
            None => return Ok(found),
        }
    }
}

/// A volume that was not closed: files of a checkpoint, files of which only the log knows, and both
/// changed by the log. At its end a mark says that all before it was durable.
fn unclosed() -> Vec<u8> {
    let d = Arc::new(MemoryDevice::new(2 << 20).unwrap());
    let dd: Vec<Arc<dyn Device>> = vec![d.clone()];
    let format = FormatOptions { segment_blocks: 16, mlogs: 1, hash_key: Some([1, 2]), ..Default::default() };
    Store::format(&dd, &format).unwrap();
    let (s, _) = Store::open(dd, &OpenOptions::default()).unwrap();
    let e = s.info().last_epoch + 1;
    let file = |n: u64| format!("f{n}").into_bytes();
    let group = |n: u64, e: u64| {
        let name = file(n);
        let effects = [new(20 + n, 1, libc::S_IFREG | 0o600), set(1, &name, 20 + n, FileKind::File)];
        let mut out = Vec::new();
        encode_group(&mut out, Version { epoch: e, ts: n + 1, lane: 0 }, &effects);
        out
    };
    let write = |n: u64, pages: &[u64], seed: u64, groups: Vec<u8>| {
        let size = 4096 * (pages.last().unwrap() + 1);
        let u = InodeUpdate {
            ino: Ino(20 + n),
            attrs: attrs(libc::S_IFREG | 0o600, size),
            rights_logged: false,
            size_only: false,
            xattrs: None,
            pages: pages.iter().map(|p| (*p, page(seed + p).into())).collect(),
            reserved: 0,
            more: false,
            life: Default::default(),
        };
        s.submit(Transaction { durable: true, groups, inodes: vec![u], ..Transaction::default() }).unwrap();
    };
    let groups: Vec<Vec<u8>> = (0..3).map(|n| group(n, e)).collect();
    fold(&s, e, groups);
    (0..3).for_each(|n| write(n, &[0, 1, 2], 100 * n, Vec::new()));
    fold(&s, e + 1, Vec::new());
    write(0, &[1, 2], 1000, Vec::new());
    for n in 3..20 {
        write(n, &[0, 1], 1000 * n, group(n, e + 3));
    }
    s.commit_epoch(e + 2, vec![(0, group(30, e + 2))]).unwrap();
    write(1, &[1, 2], 3000, Vec::new());
    write(2, &[0, 1, 2], 4000, Vec::new());
    // Written once, when nothing was added between two looks.
    let blocks = || d.to_vec().chunks(BLOCK_SIZE).filter(|b| b.starts_with(b"LFSn\x08")).count();
    let before = blocks();
    let counts = [0; 4].map(|_| {
        s.mark_quiet_logs().unwrap();
        blocks() - before
    });
    assert_eq!(counts, [0, 1, 1, 1]);
    let image = d.to_vec();
    s.shutdown();
    image
}

/// Data that only the log refers to was not looked at, and a link of the log that was gone ended it
/// without a word: the check and the scrub called the volume clean, and files came back with
/// errors, older, or not at all.
#[test]
fn a_volume_that_was_not_closed_is_called_clean_only_if_it_reads_as_if_nothing_were_damaged() {
    let image = unclosed();
    let volume = |at: Option<usize>, how: fn(&mut [u8])| {
        let mut bytes = image.clone();
        if let Some(at) = at {
            how(&mut bytes[at * BLOCK_SIZE..][..BLOCK_SIZE]);
        }
        Arc::new(MemoryDevice::from_bytes(&bytes).unwrap())
    };
    let sound = contents(&volume(None, |_| ())).unwrap();
    assert_eq!(sound.len(), 21);
    assert!(scrubbed(&volume(None, |_| ())).unwrap() == 0);
    let used = |n: &usize| image[n * BLOCK_SIZE..][..BLOCK_SIZE].iter().any(|b| *b != 0);
    let mut found = [0; 2];
    for at in (0..image.len() / BLOCK_SIZE).filter(used) {
        for (how, f) in [|b: &mut [u8]| b[100] ^= 4, |b: &mut [u8]| b.fill(0)].into_iter().enumerate() {
            let d = volume(Some(at), f);
            let o = FsckOptions { threads: 1, ..FsckOptions::default() };
            let report = check(vec![d.clone()], &o, &|_| ());
            let clean = report.as_ref().is_ok_and(FsckReport::is_clean);
            let now = contents(&d);
            let same = now.as_ref().is_ok_and(|n| *n == sound);
            assert!(!clean || same, "block {at} damaged, way {how}: called clean, and {:?}", now.err());
            let scrubbed = scrubbed(&d);
            assert!(
                same || !matches!(scrubbed, Ok(0)),
                "block {at} damaged, way {how}: a scrub found nothing, and {:?}",
                now.err()
            );
            found[how] += usize::from(!clean);
        }
    }
    assert!(found[0] > 60 && found[1] > 60, "{found:?}");
}
