//! Data goes to segments by its expected life (see `Heat`).

use crate::api::{FoldInput, FormatOptions, Life, OpenOptions, Transaction};
use crate::device::{Device, MemoryDevice};
use crate::fsck::{FsckOptions, check};
use crate::log::heat::Heat;
use crate::log::segment::{SegId, State};
use crate::store::Store;
use crate::testing::{file, first_byte, page, update};
use crate::tree::block_io::Owner;
use lanefs_format::Ino;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A volume in which files are made and removed.
struct Lives {
    device: Arc<dyn Device>,
    store: Arc<Store>,
}

impl Lives {
    fn new(mib: u64) -> Lives {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(mib << 20).unwrap());
        let format = FormatOptions { segment_blocks: 64, mlogs: 1, ..FormatOptions::default() };
        Store::format(std::slice::from_ref(&device), &format).unwrap();
        let (store, _) = Store::open(vec![device.clone()], &OpenOptions::default()).unwrap();
        Lives { device, store }
    }

    /// Commits these groups and folds them.
    fn fold(&self, groups: impl Fn(u64) -> Vec<u8>) {
        let epoch = self.store.info().last_epoch.max(self.store.folded_epoch()) + 1;
        self.store.commit_epoch(epoch, vec![(0, groups(epoch))]).unwrap();
        self.store.checkpoint(|| Ok(FoldInput { epoch, groups: vec![groups(epoch).into()] })).unwrap();
    }

    fn checkpoint(&self) {
        let epoch = self.store.folded_epoch();
        self.store.checkpoint(|| Ok(FoldInput { epoch, groups: Vec::new() })).unwrap();
    }

    fn write(&self, ino: u64, pages: std::ops::Range<u64>, life: Life) {
        let (n, size) = ((pages.end - pages.start) as u32, pages.end);
        assert!(self.store.reserve(0, n.into()), "no space is promised for {n} pages");
        let mut u = update(ino, size, pages.map(|p| (p, page(ino as u8))).collect());
        (u.reserved, u.life) = (n, life);
        self.store.submit(Transaction { inodes: vec![u], ..Transaction::default() }).unwrap();
    }

    /// Removes everything that a file has.
    fn cut(&self, ino: u64) {
        self.store.unmap(0, Ino(ino), 0..1 << 20, None).unwrap();
    }

    /// Returns the segments in which pages of a file lie.
    fn segments(&self, ino: u64, pages: u64) -> BTreeSet<SegId> {
        let e = &self.store.engine;
        let inode = e.inodes.get(Ino(ino), &e.log.io).unwrap().unwrap();
        let mut i = inode.lock();
        let mut at = |page| {
            let owner = Owner::Data { ino: Ino(ino), page };
            i.state.resolve(&e.log.io, |s| s.current(owner)).unwrap().addr
        };
        (0..pages).map(|p| e.log.segments.geometry.locate(at(p)).unwrap().0).collect()
    }

    fn heats(&self, segments: &BTreeSet<SegId>) -> BTreeSet<u8> {
        segments.iter().map(|s| self.store.engine.log.segments.info(*s).heat).collect()
    }
}

const FILES: [u64; 3] = [50, 51, 52];

/// Files that die soon lie apart from those that stay. When they are gone their segments are free,
/// and nothing was moved.
#[test]
fn what_dies_together_leaves_whole_segments() {
    let v = Lives::new(64);
    let t = &v.store.engine.log.segments;
    v.fold(|e| FILES.iter().flat_map(|ino| file(e, *ino)).collect());
    // In turns, as by programs that run beside each other.
    for round in 0..100 {
        for (ino, life) in FILES.into_iter().zip(Life::ALL) {
            v.write(ino, round * 7..round * 7 + 7, life);
        }
    }
    v.checkpoint();
    let all = FILES.map(|ino| v.segments(ino, 700));
    let heats = all.each_ref().map(|s| v.heats(s));
    assert_eq!(heats, [Heat::Hot, Heat::Warm, Heat::Cold].map(|heat| BTreeSet::from([heat as u8])));
    assert!(all[0].is_disjoint(&all[1]) && all[0].is_disjoint(&all[2]) && all[1].is_disjoint(&all[2]));
    let full: Vec<_> = all[0].iter().copied().filter(|s| t.info(*s).state == State::Full).collect();
    assert!(full.len() >= 10, "700 blocks in {full:?}");
    v.cut(FILES[0]);
    v.checkpoint();
    v.checkpoint();
    assert!(full.iter().all(|s| t.info(*s).state == State::Free), "something keeps {full:?}");
    let r = v.store.report();
    assert_eq!((r.cleaner.segments, r.cleaner.blocks_moved), (0, 0), "the cleaner had to work");
    // The others are there, also behind another opening, which knows the heats.
    let Lives { device, store } = v;
    store.close().unwrap();
    drop(store);
    let (store, _) = Store::open(vec![device.clone()], &OpenOptions::default()).unwrap();
    let v = Lives { device, store };
    assert_eq!(first_byte(&v.store, FILES[0], 5), None);
    for (ino, heat) in [(FILES[1], Heat::Warm), (FILES[2], Heat::Cold)] {
        assert!((0..700).all(|p| first_byte(&v.store, ino, p) == Some(ino as u8)), "file {ino}");
        assert_eq!(v.heats(&v.segments(ino, 700)), BTreeSet::from([heat as u8]));
    }
    v.store.close().unwrap();
    let r = check(vec![v.device.clone()], &FsckOptions::default(), &|_| ()).unwrap();
    let bad: Vec<_> = r.problems.iter().filter(|p| !p.what.starts_with("lies at cookie")).collect();
    assert!(bad.is_empty(), "{bad:#?}");
}
