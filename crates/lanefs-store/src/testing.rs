//! A log in memory, for testing the structures without an engine.

use crate::block_io::{BlockSink, BlockSource, Owner};
use crate::error::{Result, StoreError};
use crate::format::checksum;
use crate::format::header::{self, Stamp};
use crate::types::{Block, BlockAddr, BlockRef};
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
    /// How many blocks were expected each time.
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
    fn relieve(&mut self) -> Result<()> {
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

/// A [`MemLog`] for several threads. As in the real log, a block that was freed can still be read for a while.
#[derive(Default, Clone)]
pub struct SharedLog(
    pub std::sync::Arc<lanefs_sync::lock::Mutex<MemLog>>,
    std::sync::Arc<lanefs_sync::lock::Mutex<Vec<BlockAddr>>>,
);

impl SharedLog {
    /// Ends the time in which freed blocks can be read.
    pub fn settle(&self) {
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
}
