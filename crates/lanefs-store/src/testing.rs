//! A log in memory, for testing the structures without an engine; and short words for those who
//! test with one.

use crate::api::{InodeUpdate, Life, PageRead};
use crate::error::{Result, StoreError};
use crate::log::heat::Heat;
use crate::log::segment::{SegId, State};
use crate::store::Store;
use crate::tree::block_io::{BlockSink, BlockSource, Owner};
use lanefs_format::checksum;
use lanefs_format::header::{self, Stamp};
use lanefs_format::record::{Effect, encode_group};
use lanefs_format::{Attrs, BLOCK_SIZE, Block, BlockAddr, BlockRef, FileKind, Ino, ROOT_INO, Version};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// Blocks by address; each write goes to a new one.
#[derive(Default)]
pub struct MemLog {
    pub blocks: HashMap<BlockAddr, (Owner, Box<Block>)>,
    pub next: u64,
    pub reads: Cell<u64>,
    pub writes: u64,
    /// Blocks written since the writer last let them go, and the most there ever were.
    pub queued: u64,
    pub most_queued: u64,
    /// The number of blocks expected each time.
    pub expected: RefCell<Vec<usize>>,
}

impl BlockSource for MemLog {
    fn read(&self, r: BlockRef, what: &'static str) -> Result<Box<Block>> {
        self.reads.set(self.reads.get() + 1);
        let bad = |why: &str| StoreError::Corrupt { addr: r.addr, what, why: why.into() };
        let (_, b) = self.blocks.get(&r.addr).ok_or_else(|| bad("not in the log"))?;
        if !checksum::matches(r, &b.0) {
            return Err(bad("checksum"));
        }
        Ok(b.clone())
    }
    fn expect(&self, refs: &[BlockRef]) {
        self.expected.borrow_mut().push(refs.len());
    }
}

impl BlockSink for MemLog {
    fn write(&mut self, owner: Owner, mut block: Box<Block>) -> Result<BlockRef> {
        self.next += 1;
        self.writes += 1;
        self.queued += 1;
        self.most_queued = self.most_queued.max(self.queued);
        let addr = BlockAddr(self.next);
        if !matches!(owner, Owner::Data { .. }) {
            header::seal(&mut block, addr, Stamp { sequence: self.next, ..Stamp::default() });
        }
        let r = checksum::reference(addr, &block);
        self.blocks.insert(addr, (owner, block));
        Ok(r)
    }
    fn free(&mut self, addr: BlockAddr) {
        assert!(self.blocks.remove(&addr).is_some(), "double free of {addr}");
    }
    fn flush_if_full(&mut self) -> Result<()> {
        self.queued = 0;
        Ok(())
    }
}

impl MemLog {
    /// Writes a page of file data filled with `byte`.
    pub fn data(&mut self, ino: crate::Ino, page: u64, byte: u8) -> BlockRef {
        let mut b = Block::zeroed();
        b.0.fill(byte);
        self.write(Owner::Data { ino, page }, b).unwrap()
    }
}

/// A [`MemLog`] for several threads. As in the real log, a block that was freed can still be read
/// for a while.
#[derive(Default, Clone)]
pub struct SharedLog(
    pub std::sync::Arc<lanefs_sync::lock::Mutex<MemLog>>,
    std::sync::Arc<lanefs_sync::lock::Mutex<Vec<BlockAddr>>>,
);

impl SharedLog {
    /// Ends the time in which freed blocks can be read.
    pub fn end_grace(&self) {
        let mut log = self.0.lock();
        self.1.lock().drain(..).for_each(|a| log.free(a));
    }
}

impl BlockSource for SharedLog {
    fn read(&self, r: BlockRef, what: &'static str) -> Result<Box<Block>> {
        self.0.lock().read(r, what)
    }
}

impl BlockSink for SharedLog {
    fn write(&mut self, owner: Owner, block: Box<Block>) -> Result<BlockRef> {
        self.0.lock().write(owner, block)
    }
    fn free(&mut self, addr: BlockAddr) {
        self.1.lock().push(addr);
    }
    fn threads(&self) -> usize {
        2
    }
}

/// Returns the group that makes file `ino`, with a name in the root directory.
pub fn file(epoch: u64, ino: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let new = Effect::New {
        ino: Ino(ino),
        parent: ROOT_INO,
        generation: 0,
        mode: libc::S_IFREG | 0o600,
        uid: 0,
        gid: 0,
        rdev: 0,
        time: 1,
        target: b"",
        logged: false,
    };
    let name = format!("f{ino}");
    encode_group(&mut out, Version { epoch, ts: ino, lane: 0 }, &[new, named(ino, name.as_bytes())]);
    out
}

/// Returns the effect that gives file `ino` a name in the root directory.
pub fn named(ino: u64, name: &[u8]) -> Effect<'_> {
    let spread = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let cookie = name.iter().fold(0, spread) >> 4 << 3;
    Effect::Set { dir: ROOT_INO, cookie, name, ino: Ino(ino), old: Ino::NONE, kind: FileKind::File }
}

/// Returns a page whose bytes are all the same.
pub fn page(byte: u8) -> Box<Block> {
    Box::new(Block([byte; BLOCK_SIZE]))
}

/// Returns an update of file `ino` of so many pages, of which these are new.
pub fn update(ino: u64, size: u64, pages: Vec<(u64, Box<Block>)>) -> InodeUpdate {
    let attrs = Attrs {
        mode: libc::S_IFREG | 0o600,
        uid: 0,
        gid: 0,
        flags: 0,
        rdev: 0,
        size: size * BLOCK_SIZE as u64,
        atime: 1,
        mtime: 1,
        ctime: 1,
        btime: 1,
        generation: 0,
    };
    InodeUpdate {
        ino: Ino(ino),
        attrs,
        rights_logged: false,
        size_only: false,
        xattrs: None,
        pages: pages.into_iter().map(|(page, block)| (page, block.into())).collect(),
        reserved: 0,
        more: false,
        life: Life::Usual,
    }
}

/// Returns the first byte of a page; `None` of a hole.
pub fn first_byte(s: &Store, ino: u64, page: u64) -> Option<u8> {
    let mut block = Block::zeroed();
    let mut reads = [PageRead { block: &mut block, hole: false }];
    s.read_pages(Ino(ino), page, &mut reads).unwrap();
    let hole = reads[0].hole;
    (!hole).then_some(block.0[0])
}

/// Takes all space but for `k` blocks of the tree's, if there is more. The segments taken are to be
/// released.
pub fn leave(s: &Store, k: u32) -> Vec<SegId> {
    let claim =
        || (0..s.engine.log.segments.devices()).find_map(|d| s.engine.log.segments.claim(d, State::Chain, 0));
    let mut claimed: Vec<SegId> = std::iter::from_fn(claim).collect();
    let take =
        |m: &crate::log::mlog::Mlog, heat| m.alloc(&s.engine.log.segments, heat, 1, 1, true, &mut Vec::new());
    for m in &s.engine.log.mlogs {
        for heat in [Heat::Bucket, Heat::Warm, Heat::Cold, Heat::Node] {
            while take(m, heat).is_ok() {}
        }
    }
    let g = &s.engine.log.segments.geometry;
    let size = if g.copies == 2 { g.half() } else { g.segment_blocks };
    let segments = k.div_ceil(size).min(claimed.len() as u32);
    claimed.drain(..segments as usize).for_each(|seg| s.engine.log.segments.release(seg));
    (k..segments * size).for_each(|_| take(&s.engine.log.mlogs[0], Heat::Node).unwrap());
    claimed
}

/// Waits until it is so: what is waited for happens on its own, however loaded the machine is.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{what}: never");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
