//! A device on which something else happens in the middle of a write, for tests of what two calls do to each other.

use crate::{MountOptions, Volume};
use lanefs_store::device::{Device, MemoryDevice, MemoryImage, ReadReq, WriteReq};
use lanefs_store::{FormatOptions, Result, Store};
use std::sync::{Arc, Mutex, PoisonError};

type Hook = Mutex<Option<Box<dyn FnOnce() + Send>>>;

/// A device of which the next write is done when something else was.
pub(super) struct Meanwhile(MemoryDevice, Hook);

impl Meanwhile {
    /// Calls `f` before the next write, in the thread that writes.
    pub fn at_write(&self, f: impl FnOnce() + Send + 'static) {
        *self.1.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(f));
    }

    /// The volume as it is on the medium now.
    pub fn after_crash(&self) -> Volume {
        let left = MemoryImage::capture(&self.0).unwrap().fork().unwrap();
        Volume::open_devices(vec![Arc::new(left)], &options()).unwrap()
    }
}

impl std::fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Device for Meanwhile {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn name(&self) -> &str {
        self.0.name()
    }
    fn read(&self, reqs: &mut [ReadReq<'_>]) -> Result<()> {
        self.0.read(reqs)
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> Result<()> {
        let hook = self.1.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(hook) = hook {
            hook();
        }
        self.0.write(reqs)
    }
    fn flush(&self) -> Result<()> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.0.discard(offset, len)
    }
}

fn options() -> MountOptions {
    MountOptions { background: false, lanes: 4, ..MountOptions::default() }
}

/// A new volume of small segments, without a background, of `mib` MiB.
pub(super) fn volume(mib: u64) -> (Volume, Arc<Meanwhile>) {
    let device = Arc::new(Meanwhile(MemoryDevice::new(mib << 20).unwrap(), Hook::default()));
    let d: Arc<dyn Device> = device.clone();
    let format = FormatOptions { segment_blocks: 16, mlogs: 1, ..FormatOptions::default() };
    Store::format(std::slice::from_ref(&d), &format).unwrap();
    (Volume::open_devices(vec![d], &options()).unwrap(), device)
}
