//! A device whose writes stay in memory: what a repair would do can be tried without doing it.

use crate::device::{Device, ReadReq, WriteReq};
use crate::error::Result;
use lanefs_format::{BLOCK_SHIFT, BLOCK_SIZE, Block};
use lanefs_sync::lock::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

/// A device and the blocks that were written over it.
#[derive(Debug)]
pub struct Overlay {
    base: Arc<dyn Device>,
    written: RwLock<HashMap<u64, Box<Block>>>,
}

impl Overlay {
    /// Returns a device over `base`, which is only read.
    pub fn new(base: Arc<dyn Device>) -> Overlay {
        Overlay { base, written: RwLock::default() }
    }
}

/// Returns whether a request is for whole blocks, as all of the store's are: for assertions.
fn is_of_blocks(offset: u64, len: usize) -> bool {
    offset.is_multiple_of(BLOCK_SIZE as u64) && len.is_multiple_of(BLOCK_SIZE)
}

impl Device for Overlay {
    fn size(&self) -> u64 {
        self.base.size()
    }
    fn name(&self) -> &str {
        self.base.name()
    }
    fn read(&self, reqs: &mut [ReadReq<'_>]) -> Result<()> {
        self.base.read(reqs)?;
        let written = self.written.read();
        if written.is_empty() {
            return Ok(());
        }
        for r in reqs {
            debug_assert!(
                is_of_blocks(r.offset, r.data.len()),
                "{} bytes from {} on",
                r.data.len(),
                r.offset
            );
            for (n, out) in r.data.chunks_exact_mut(BLOCK_SIZE).enumerate() {
                if let Some(b) = written.get(&((r.offset >> BLOCK_SHIFT) + n as u64)) {
                    out.copy_from_slice(&b.0);
                }
            }
        }
        Ok(())
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> Result<()> {
        let mut written = self.written.write();
        for r in reqs {
            debug_assert!(
                is_of_blocks(r.offset, r.data.len()),
                "{} bytes from {} on",
                r.data.len(),
                r.offset
            );
            debug_assert!(
                r.offset + r.data.len() as u64 <= self.base.size(),
                "what is repaired would not fit the device"
            );
            for (n, data) in r.data.chunks_exact(BLOCK_SIZE).enumerate() {
                let b = written.entry((r.offset >> BLOCK_SHIFT) + n as u64).or_insert_with(Block::zeroed);
                b.0.copy_from_slice(data);
            }
        }
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn needs_flush(&self) -> bool {
        false
    }
    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        Ok(())
    }
}
