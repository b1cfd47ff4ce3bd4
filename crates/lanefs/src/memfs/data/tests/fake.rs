//! A store in memory, and the writeback a file system would do.

use super::super::*;
use lanefs_format::{Attrs, Block, Ino};
use lanefs_store::StoreError;
use lanefs_sync::lock::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

pub const INO: Ino = Ino(77);

/// Nothing is said beside; this store keeps no attributes.
pub const NO_CUT: Cut<'static> = Cut { size: None, time: None, attrs: &|| unreachable!() };

pub struct FakeStore {
    pub pages: Mutex<BTreeMap<(u64, u64), Box<Block>>>,
    pub free: AtomicI64,
    pub reserved: AtomicI64,
    pub reads: AtomicU64,
    pub fail_reads: AtomicBool,
    /// Preallocated pages without a block.
    pub kept: Mutex<BTreeSet<(u64, u64)>>,
}

impl FakeStore {
    pub fn new(free: i64) -> FakeStore {
        FakeStore {
            pages: Mutex::new(BTreeMap::new()),
            free: AtomicI64::new(free),
            reserved: AtomicI64::new(0),
            reads: AtomicU64::new(0),
            fail_reads: AtomicBool::new(false),
            kept: Mutex::new(BTreeSet::new()),
        }
    }

    /// What a submitted transaction does.
    pub fn submit(&self, ino: Ino, captured: Captured) -> Taken {
        let mut map = self.pages.lock();
        self.reserved.fetch_sub(captured.promises() as i64, Ordering::SeqCst);
        self.free.fetch_sub(captured.lent as i64, Ordering::SeqCst);
        for (page, block) in captured.pages {
            let kept = self.kept.lock().remove(&(ino.0, page));
            if map.insert((ino.0, page), Box::new(block.clone())).is_some() || kept {
                self.free.fetch_add(1, Ordering::SeqCst);
            }
        }
        captured.taken
    }
}

impl PageStore for FakeStore {
    fn read_pages(&self, ino: Ino, first: u64, pages: &mut [PageRead<'_>]) -> StoreResult<()> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        if self.fail_reads.load(Ordering::SeqCst) {
            return Err(StoreError::BadInode { ino, why: "told to fail".into() });
        }
        for (i, read) in pages.iter_mut().enumerate() {
            match self.pages.lock().get(&(ino.0, first + i as u64)) {
                Some(block) => {
                    read.block.0.copy_from_slice(&block.0);
                    read.hole = false;
                }
                None => {
                    read.block.0.fill(0);
                    read.hole = !self.kept.lock().contains(&(ino.0, first + i as u64));
                }
            }
            std::thread::yield_now(); // invites races between the pages of one load
        }
        Ok(())
    }
    fn unmap(&self, _lane: usize, ino: Ino, pages: Range<u64>, _cut: Option<&Cut<'_>>) -> StoreResult<()> {
        let mut map = self.pages.lock();
        let gone: Vec<_> = map.range((ino.0, pages.start)..(ino.0, pages.end)).map(|(k, _)| *k).collect();
        for key in gone {
            map.remove(&key);
            self.free.fetch_add(1, Ordering::SeqCst);
        }
        self.kept.lock().retain(|k| {
            let stays = k.0 != ino.0 || !pages.contains(&k.1);
            self.free.fetch_add(i64::from(!stays), Ordering::SeqCst);
            stays
        });
        Ok(())
    }
    fn reserve(&self, _lane: usize, blocks: u64) -> bool {
        let ok = self
            .free
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |f| {
                (f >= blocks as i64).then(|| f - blocks as i64)
            })
            .is_ok();
        if ok {
            self.reserved.fetch_add(blocks as i64, Ordering::SeqCst);
        }
        ok
    }
    fn reserve_rewrite(&self, lane: usize) -> bool {
        if self.reserve(lane, 1) {
            return true;
        }
        let left = self.free.load(Ordering::SeqCst) > -4;
        if left {
            self.free.fetch_sub(1, Ordering::SeqCst);
            self.reserved.fetch_add(1, Ordering::SeqCst);
        }
        left
    }
    fn lends(&self) -> bool {
        // Now and then, so that each test has pages of both kinds.
        self.free.load(Ordering::SeqCst) / 8 % 2 == 0
    }
    fn has_block(&self, ino: Ino, page: u64) -> bool {
        self.pages.lock().contains_key(&(ino.0, page))
    }
    fn keeps(&self, ino: Ino, page: u64) -> bool {
        self.kept.lock().contains(&(ino.0, page))
    }
    fn unreserve(&self, _lane: usize, blocks: u64) {
        self.reserved.fetch_sub(blocks as i64, Ordering::SeqCst);
        self.free.fetch_add(blocks as i64, Ordering::SeqCst);
    }
    fn preallocate(
        &self,
        _lane: usize,
        ino: Ino,
        pages: Range<u64>,
        _attrs: &dyn Fn() -> Attrs,
    ) -> StoreResult<Option<u64>> {
        let map = self.pages.lock();
        let mut kept = self.kept.lock();
        let new: Vec<_> =
            pages.map(|p| (ino.0, p)).filter(|k| !map.contains_key(k) && !kept.contains(k)).collect();
        if self.free.load(Ordering::SeqCst) < new.len() as i64 {
            return Err(StoreError::NoSpace);
        }
        self.free.fetch_sub(new.len() as i64, Ordering::SeqCst);
        kept.extend(&new);
        Ok(Some(new.len() as u64))
    }
    fn has_space(&self, ino: Ino, page: u64) -> StoreResult<bool> {
        Ok(self.space_in(ino, page..page + 1)? == 1)
    }
    fn space_in(&self, ino: Ino, pages: Range<u64>) -> StoreResult<u64> {
        let range = (ino.0, pages.start)..(ino.0, pages.end);
        Ok((self.pages.lock().range(range.clone()).count() + self.kept.lock().range(range).count()) as u64)
    }
    fn next_data(&self, ino: Ino, page: u64) -> StoreResult<Option<u64>> {
        Ok(self.pages.lock().range((ino.0, page)..(ino.0 + 1, 0)).next().map(|(k, _)| k.1))
    }
    fn next_hole(&self, ino: Ino, page: u64) -> StoreResult<Option<u64>> {
        let map = self.pages.lock();
        let mut at = page;
        while map.contains_key(&(ino.0, at)) {
            at += 1;
        }
        Ok(Some(at))
    }
}

/// A pool, a store and some files: the little of a volume that file data needs.
pub struct World {
    pub pool: FramePool,
    pub store: FakeStore,
    pub files: Box<[FileData]>,
    pub fail_submit: AtomicBool,
    /// Done once, when a throttled writer asks for writeback: at that moment it holds no lock.
    pub meanwhile: Mutex<Option<Meanwhile>>,
}

pub type Meanwhile = Box<dyn FnOnce(&World) + Send>;

struct Driver(Weak<World>);

impl Writeback for Driver {
    fn wake(&self) {}
    fn write_back(&self, want: usize) -> usize {
        let Some(world) = self.0.upgrade() else { return 0 };
        let meanwhile = world.meanwhile.lock().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile(&world);
        }
        let mut done = 0;
        for file in 0..world.files.len() {
            if done < want {
                done += world.write_back(file, want - done, false).unwrap_or(0);
            }
        }
        done
    }
}

impl World {
    pub fn new(frames: usize, files: usize, blocks: i64) -> Arc<World> {
        let world = Arc::new(World {
            pool: FramePool::new(frames as u64 * 4096).unwrap(),
            store: FakeStore::new(blocks),
            // SAFETY: in a boxed slice, so they stay where they are.
            files: (0..files).map(|_| unsafe { FileData::new(0, 0, 0) }).collect(),
            fail_submit: AtomicBool::new(false),
            meanwhile: Mutex::new(None),
        });
        world.pool.set_writeback(Arc::new(Driver(Arc::downgrade(&world))));
        world
    }

    /// Every other file has a cache above it.
    pub fn ctx(&self, file: usize, lane: usize) -> DataCtx<'_> {
        DataCtx {
            pool: &self.pool,
            store: &self.store,
            ino: Ino(INO.0 + file as u64),
            lane,
            once: file % 2 == 1,
            any_order: false,
            stamps: None,
        }
    }

    /// Writes a file back as a file system would; `None` if somebody else is at it.
    pub fn write_back(&self, file: usize, max: usize, wait: bool) -> Option<usize> {
        let data = &self.files[file];
        let ctx = self.ctx(file, 0);
        let wb = if wait { data.lock_writeback() } else { data.try_lock_writeback()? };
        let size = data.size();
        let captured = data.capture(&ctx, &wb, max, 0..u64::MAX, size);
        assert_eq!(captured.skipped, 0);
        let pages = captured.taken.count();
        assert!(captured.taken.numbers().is_sorted() && pages <= max);
        let ok = !self.fail_submit.load(Ordering::SeqCst);
        let taken = if ok {
            for (page, block) in &captured.pages {
                let inside = size.saturating_sub(page * 4096).min(4096) as usize;
                assert!(inside > 0 && block.0[inside..].iter().all(|&b| b == 0), "D6");
            }
            self.store.submit(ctx.ino, captured)
        } else {
            captured.give_up()
        };
        data.finish(&ctx, &wb, taken, ok);
        Some(pages)
    }

    /// What must hold when nothing is under way.
    pub fn check(&self) {
        let dirty: usize = self.files.iter().map(|f| f.dirty_pages()).sum();
        assert_eq!(self.pool.dirty_frames(), dirty, "the pool's count of dirty frames");
        let lent = self.pool.lent_frames();
        assert!((0..=dirty as i64).contains(&lent), "{lent} of {dirty} pages without a promise");
        let kept: usize = self.files.iter().map(|f| f.kept_pages()).sum();
        assert_eq!(self.store.reserved.load(Ordering::SeqCst), dirty as i64 - lent - kept as i64, "D7");
        let mut leaves = 0;
        for (n, file) in self.files.iter().enumerate() {
            assert!(file.has_dirty() || file.dirty_pages() == 0);
            let ino = Ino(INO.0 + n as u64);
            leaves += file.check_tree(ino);
            for page in file.stored_pages() {
                assert!(self.store.has_block(ino, page), "page {page} of {ino} has no block");
            }
        }
        assert_eq!(self.pool.dirty_leaves(), leaves, "the pool's count of leaves with dirty pages");
    }
}
