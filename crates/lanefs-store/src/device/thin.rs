//! A device on a host that has less space than the device is long: a sparse file, for tests.
//!
//! Each block takes space of the host when it is first written, or backed, and gives it back when
//! it is discarded. A write for which nothing is left is refused with ENOSPC, and does nothing.

use super::{Device, Host, ReadReq, WriteReq, check_range, io_error};
use crate::error::Result;
use lanefs_format::BLOCK_SIZE;
use lanefs_sync::lock::Mutex;

/// See the head of the file.
#[derive(Debug)]
pub struct ThinDevice<D> {
    inner: D,
    account: Mutex<Account>,
}

/// The host's account.
#[derive(Debug)]
struct Account {
    /// Which blocks of the device have one of the host below them.
    backed: Vec<bool>,
    /// Blocks that are left.
    left: u64,
    /// Writes that were refused.
    refused: u64,
}

impl Account {
    /// Takes space for these bytes; false, and nothing taken, if there is not as much.
    fn take(&mut self, offset: u64, len: u64) -> bool {
        let blocks = blocks_of(offset, len, self.backed.len());
        let missing = self.backed[blocks.clone()].iter().filter(|b| !**b).count() as u64;
        if missing > self.left {
            return false;
        }
        self.left -= missing;
        debug_assert!(missing <= blocks.len() as u64, "{missing} of {} blocks are missing", blocks.len());
        self.backed[blocks].fill(true);
        true
    }
}

/// Returns the blocks that bytes lie in, of so many.
fn blocks_of(offset: u64, len: u64, all: usize) -> std::ops::Range<usize> {
    let at = |byte: u64| usize::try_from(byte / BLOCK_SIZE as u64).unwrap_or(all).min(all);
    debug_assert!((offset | len).is_multiple_of(BLOCK_SIZE as u64), "{len} bytes from {offset} on");
    at(offset)..at(offset.saturating_add(len))
}

impl<D: Device> ThinDevice<D> {
    /// Puts `inner` on a host with so many blocks left, none of which is below it yet.
    pub fn new(inner: D, left: u64) -> ThinDevice<D> {
        let blocks = usize::try_from(inner.size() / BLOCK_SIZE as u64).unwrap_or(usize::MAX);
        debug_assert!(blocks > 0, "a device without a block");
        ThinDevice { inner, account: Mutex::new(Account { backed: vec![false; blocks], left, refused: 0 }) }
    }

    /// Gives the host so many blocks more.
    pub fn give(&self, blocks: u64) {
        self.account.lock().left += blocks;
    }

    /// Takes all that the host has left, as another of its users would; returns how many blocks
    /// these are.
    pub fn fill(&self) -> u64 {
        std::mem::take(&mut self.account.lock().left)
    }

    /// Returns how many blocks the host has left.
    pub fn left(&self) -> u64 {
        self.account.lock().left
    }

    /// Returns how many writes were refused.
    pub fn refused(&self) -> u64 {
        self.account.lock().refused
    }

    /// Returns the device inside.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Does `f` with the device inside while nobody writes to it: what a power loss at one moment
    /// leaves is not what was read one block after the other while others went on.
    pub fn at_rest<T>(&self, f: impl FnOnce(&D) -> T) -> T {
        let _nobody_writes = self.account.lock();
        f(&self.inner)
    }

    fn no_space(&self, what: &'static str, offset: u64) -> Result<()> {
        Err(io_error(self.name(), what, offset, libc::ENOSPC, "the host is full"))
    }
}

impl<D: Device> Device for ThinDevice<D> {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn read(&self, reqs: &mut [ReadReq<'_>]) -> Result<()> {
        self.inner.read(reqs)
    }

    fn write(&self, reqs: &[WriteReq<'_>]) -> Result<()> {
        let one = |r: &WriteReq<'_>| {
            check_range(self, "write", r.offset, r.data.len())?;
            // The account is kept over the write: a discard must not come between.
            let mut account = self.account.lock();
            if !account.take(r.offset, r.data.len() as u64) {
                account.refused += 1;
                return self.no_space("write", r.offset);
            }
            self.inner.write(std::slice::from_ref(r))
        };
        // Like a real device: the others are performed even if one fails.
        reqs.iter().map(one).fold(Ok(()), Result::and)
    }

    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }

    fn needs_flush(&self) -> bool {
        self.inner.needs_flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let mut account = self.account.lock();
        self.inner.discard(offset, len)?;
        let blocks = blocks_of(offset, len, account.backed.len());
        let gone = account.backed[blocks.clone()].iter().filter(|b| **b).count() as u64;
        debug_assert!(gone <= blocks.len() as u64, "{gone} of {} blocks are given back", blocks.len());
        account.backed[blocks].fill(false);
        account.left += gone;
        Ok(())
    }

    fn host(&self) -> Option<&dyn Host> {
        Some(self)
    }
}

impl<D: Device> Host for ThinDevice<D> {
    fn back(&self, offset: u64, len: u64) -> Result<()> {
        check_range(self, "allocation", offset, usize::try_from(len).unwrap_or(usize::MAX))?;
        let mut account = self.account.lock();
        for block in (offset..offset.saturating_add(len)).step_by(BLOCK_SIZE) {
            // As file systems do it: what was allocated before stays so.
            if !account.take(block, BLOCK_SIZE as u64) {
                return self.no_space("allocation", block);
            }
        }
        Ok(())
    }

    fn free(&self) -> Option<u64> {
        Some(self.left() * BLOCK_SIZE as u64)
    }

    fn place(&self) -> Option<String> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{MemoryDevice, conformance};
    use lanefs_format::Block;

    const B: u64 = BLOCK_SIZE as u64;

    fn device(left: u64) -> ThinDevice<MemoryDevice> {
        ThinDevice::new(MemoryDevice::new(64 * B).unwrap(), left)
    }

    #[test]
    fn with_space_it_behaves_as_a_device() {
        conformance::check(&device(64));
    }

    #[test]
    fn a_block_takes_space_once_and_gives_it_back_when_it_is_discarded() {
        let d = device(3);
        let b = Block([7; BLOCK_SIZE]);
        let write = |block: u64| d.write(&[WriteReq { offset: block * B, data: &b.0 }]);
        write(5).unwrap();
        write(5).unwrap();
        d.back(8 * B, 2 * B).unwrap();
        assert_eq!(d.left(), 0);
        write(9).unwrap();
        assert_eq!(write(10).unwrap_err().errno(), libc::ENOSPC);
        assert_eq!(d.back(8 * B, 3 * B).unwrap_err().errno(), libc::ENOSPC);
        d.discard(8 * B, 8 * B).unwrap();
        assert_eq!((d.left(), d.refused()), (2, 1));
        // What could be allocated is.
        assert!(d.back(8 * B, 3 * B).is_err());
        assert_eq!(d.left(), 0);
        d.discard(8 * B, 8 * B).unwrap();
        write(10).unwrap();
        assert_eq!(d.fill(), 1);
        assert!(write(11).is_err());
        d.give(1);
        write(11).unwrap();
    }
}
