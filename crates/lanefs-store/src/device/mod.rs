//! The devices that a volume is stored on.

mod crash;
mod faulty;
mod file;
mod flush_gate;
mod gate;
#[cfg(test)]
mod gate_loom;
mod gate_sync;
mod hooked;
mod host;
mod lock;
mod memory;
mod mirror;
mod new_image;
mod recording;
mod ring;
mod thin;

pub use crash::{Crash, Fate, SECTOR, subsets};
pub use faulty::{Fault, FaultyDevice, Fired, Kind, Plan, Rule, When};
pub use file::{FileDevice, FileOptions, STANDS_FOR};
pub use flush_gate::FlushGate;
pub use hooked::HookedDevice;
pub(crate) use host::{HostSpace, PAUSE, longer};
pub use lock::ImageLock;
pub use memory::{MemoryDevice, MemoryImage};
pub(crate) use mirror::MirrorDevice;
pub use new_image::NewImage;
pub use recording::{
    Counters, FlushRecord, Log, Mark, Payload, ReadRecord, Recorder, RecordingDevice, WriteRecord, thread_id,
};
pub use thin::ThinDevice;

use crate::error::{Result, StoreError};
use lanefs_format::BLOCK_SIZE;

/// One write of a submission: `data` is a multiple of 4 KiB, aligned to 4 KiB in memory and on the
/// device.
#[derive(Clone, Copy, Debug)]
pub struct WriteReq<'a> {
    /// Byte offset on the device.
    pub offset: u64,
    /// The bytes to be written.
    pub data: &'a [u8],
}

/// One read of a submission, aligned like [`WriteReq`].
#[derive(Debug)]
pub struct ReadReq<'a> {
    /// Byte offset on the device.
    pub offset: u64,
    /// The memory that the bytes go to.
    pub data: &'a mut [u8],
}

/// A device: a memory buffer, a file or a block device.
///
/// These things are assumed of the medium: (1) a write that was answered is seen by later reads;
/// (2) it is durable once a flush that was *issued after* that answer has itself been answered; (3)
/// until then any subset of its 512-byte sectors may be on the medium, in any order with other
/// writes; (4) a read may return anything after a fault of the medium: checksums decide, not the
/// device's answer.
pub trait Device: Send + Sync + std::fmt::Debug {
    /// Returns the number of bytes, a multiple of 4 KiB.
    fn size(&self) -> u64;
    /// Returns its name for messages: the path, or `memory`.
    fn name(&self) -> &str;
    /// Performs all reads, in any order, and returns when all are done.
    fn read(&self, reqs: &mut [ReadReq<'_>]) -> Result<()>;
    /// Performs all writes, in any order, and returns when all were answered. One submission: one
    /// trip.
    fn write(&self, reqs: &[WriteReq<'_>]) -> Result<()>;
    /// Makes durable what was answered before this call.
    fn flush(&self) -> Result<()>;
    /// Returns whether a flush does anything. False only where every answered write is already on
    /// the medium.
    fn needs_flush(&self) -> bool {
        true
    }
    /// Tells the device that `len` bytes from `offset` are not needed (hole punch on files). Only a
    /// hint.
    fn discard(&self, offset: u64, len: u64) -> Result<()>;
    /// Makes the medium `bytes` long, durably, if it is shorter and can be made longer, and looks
    /// how long it is now: [`Device::size`] returns that from then on. A medium that has its own
    /// size is not made longer.
    fn lengthen(&self, bytes: u64) -> Result<()> {
        let _ = bytes;
        Ok(())
    }
    /// Makes the medium `bytes` long, durably, if it is longer and can be made shorter, and looks
    /// how long it is now. What lies behind is not needed.
    fn shorten(&self, bytes: u64) -> Result<()> {
        let _ = bytes;
        Ok(())
    }
    /// Returns whether a discard does anything.
    fn discards(&self) -> bool {
        true
    }
    /// Returns the host of a medium that is a sparse file: writes take space of it that others use
    /// too, and discards give it back. See `host`.
    fn host(&self) -> Option<&dyn Host> {
        None
    }
    /// Notes that what could not be read at `offset` is known from elsewhere. For devices that keep
    /// an account of it.
    fn excuse(&self, _offset: u64) {}
    /// Lets go of the medium and its lock, so that others may open it. A request that comes all the
    /// same fails.
    fn release(&self) {}
}

/// The file system that holds a sparse file, as the device in that sees it.
pub trait Host {
    /// Has the host keep space for these bytes of the device, whose content nobody needs: later
    /// writes to them are not refused for want of it.
    fn back(&self, offset: u64, len: u64) -> Result<()>;
    /// Returns the bytes that are free on it, as far as that is known.
    fn free(&self) -> Option<u64>;
    /// Returns where it is mounted, for messages, as far as that is known.
    fn place(&self) -> Option<String>;
}

/// A shared device is a device, so that a test can wrap one and keep a hand on it.
impl<D: Device + ?Sized> Device for std::sync::Arc<D> {
    fn size(&self) -> u64 {
        (**self).size()
    }
    fn name(&self) -> &str {
        (**self).name()
    }
    fn read(&self, reqs: &mut [ReadReq<'_>]) -> Result<()> {
        (**self).read(reqs)
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> Result<()> {
        (**self).write(reqs)
    }
    fn flush(&self) -> Result<()> {
        (**self).flush()
    }
    fn needs_flush(&self) -> bool {
        (**self).needs_flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        (**self).discard(offset, len)
    }
    fn lengthen(&self, bytes: u64) -> Result<()> {
        (**self).lengthen(bytes)
    }
    fn shorten(&self, bytes: u64) -> Result<()> {
        (**self).shorten(bytes)
    }
    fn discards(&self) -> bool {
        (**self).discards()
    }
    fn host(&self) -> Option<&dyn Host> {
        (**self).host()
    }
    fn excuse(&self, offset: u64) {
        (**self).excuse(offset);
    }
    fn release(&self) {
        (**self).release();
    }
}

/// Returns an error of the device `name`.
pub(crate) fn io_error(name: &str, what: &'static str, offset: u64, errno: i32, message: &str) -> StoreError {
    StoreError::Io { device: name.into(), what, offset, message: message.into(), errno }
}

/// Refuses a request that is not in whole blocks or not inside the device: an address read from a
/// damaged image must become an error, never an access.
pub(crate) fn check_range(d: &dyn Device, what: &'static str, offset: u64, len: usize) -> Result<()> {
    let block = BLOCK_SIZE as u64;
    if !offset.is_multiple_of(block) || !(len as u64).is_multiple_of(block) {
        return Err(io_error(d.name(), what, offset, libc::EINVAL, "not in whole blocks"));
    }
    match offset.checked_add(len as u64) {
        Some(end) if end <= d.size() => Ok(()),
        _ => Err(io_error(d.name(), what, offset, libc::EINVAL, "beyond the end of the device")),
    }
}

#[cfg(test)]
pub(crate) mod conformance;
