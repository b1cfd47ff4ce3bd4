//! A device that reads once more what could not be read, and takes no write after a place that
//! could not be read twice: what is behind it may be well, and would be given up for a cable.

use crate::device::{Device, ReadReq, WriteReq};
use crate::error::{Result, StoreError};
use lanefs_format::BLOCK_SIZE;
use lanefs_sync::lock::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The places that cannot be read, on any device: by its name and the offset of the block.
#[derive(Default, Debug)]
pub struct Unread(Mutex<BTreeMap<(String, u64), StoreError>>);

impl Unread {
    /// Returns an error if there is such a place.
    pub fn check(&self) -> Result<()> {
        self.0.lock().first_key_value().map_or(Ok(()), |(_, e)| Err(e.clone()))
    }
}

/// A device whose places that cannot be read are noted.
#[derive(Debug)]
pub struct Careful {
    base: Arc<dyn Device>,
    unread: Arc<Unread>,
    /// They are given up: noted nowhere.
    give_up: bool,
}

impl Careful {
    pub fn new(base: Arc<dyn Device>, unread: Arc<Unread>, give_up: bool) -> Careful {
        Careful { base, unread, give_up }
    }
}

impl Device for Careful {
    fn size(&self) -> u64 {
        self.base.size()
    }
    fn name(&self) -> &str {
        self.base.name()
    }
    fn read(&self, reqs: &mut [ReadReq<'_>]) -> Result<()> {
        match self.base.read(reqs) {
            Err(e) if e.is_of_device() => {}
            other => return other,
        }
        let mut first = Ok(());
        for r in reqs {
            debug_assert!(
                r.offset.is_multiple_of(BLOCK_SIZE as u64) && r.data.len().is_multiple_of(BLOCK_SIZE),
                "a part of a block is read: another part of it may be excused"
            );
            // Block by block: of each it is known then whether it can be read, and a copy may
            // excuse one that cannot.
            for (n, data) in r.data.chunks_mut(BLOCK_SIZE).enumerate() {
                let offset = r.offset + (n * BLOCK_SIZE) as u64;
                if let Err(e) = self.base.read(&mut [ReadReq { offset, data }]) {
                    if e.is_of_device() && !self.give_up {
                        self.unread.0.lock().entry((self.name().into(), offset)).or_insert_with(|| e.clone());
                    }
                    first = first.and(Err(e));
                }
            }
        }
        first
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> Result<()> {
        self.unread.check()?;
        debug_assert!(reqs.iter().all(|r| r.offset.is_multiple_of(BLOCK_SIZE as u64)), "a part of a block");
        self.base.write(reqs)
    }
    fn flush(&self) -> Result<()> {
        self.base.flush()
    }
    fn needs_flush(&self) -> bool {
        self.base.needs_flush()
    }
    fn excuse(&self, offset: u64) {
        self.unread.0.lock().remove(&(self.name().into(), offset));
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.unread.check()?;
        self.base.discard(offset, len)
    }
}
