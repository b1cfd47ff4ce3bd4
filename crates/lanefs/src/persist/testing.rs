//! Volumes on a device on which something else happens in the middle of a write, for tests of what
//! two calls do to each other.

use crate::{MountOptions, Order, Volume};
use lanefs_store::device::{Device, HookedDevice, Kind, MemoryDevice, MemoryImage};
use lanefs_store::{FormatOptions, Store};
use std::sync::Arc;

/// A device of which the next write is done when something else was.
pub(crate) struct Meanwhile(Arc<HookedDevice<MemoryDevice>>);

impl Meanwhile {
    /// Calls `f` before the next write, in the thread that writes.
    pub fn at_write(&self, f: impl FnOnce() + Send + 'static) {
        self.0.before(Kind::Write, || {
            f();
            Ok(())
        });
    }

    /// Opens the volume as it is on the medium now.
    pub fn after_crash(&self) -> Volume {
        let left = MemoryImage::capture(self.0.inner()).unwrap().fork().unwrap();
        Volume::open_devices(vec![Arc::new(left)], &options()).unwrap()
    }
}

fn options() -> MountOptions {
    MountOptions { background: false, lanes: 4, ..MountOptions::default() }
}

/// Makes a volume of small segments, without a background, of `mib` MiB.
pub(crate) fn volume(mib: u64) -> (Volume, Arc<Meanwhile>) {
    volume_in(Order::Ordered, mib)
}

/// Makes one whose names become durable in this order.
pub(crate) fn volume_in(order: Order, mib: u64) -> (Volume, Arc<Meanwhile>) {
    let device = Arc::new(HookedDevice::new(MemoryDevice::new(mib << 20).unwrap()));
    let d: Arc<dyn Device> = device.clone();
    let format = FormatOptions { segment_blocks: 16, mlogs: 1, ..FormatOptions::default() };
    Store::format(std::slice::from_ref(&d), &format).unwrap();
    let options = MountOptions { order, ..options() };
    (Volume::open_devices(vec![d], &options).unwrap(), Arc::new(Meanwhile(device)))
}

/// Tries what a moment's grace must be enough for until it is, a few times: the other tests of this
/// process use the same epochs, and one that is kept from running keeps them from passing.
pub(crate) fn undisturbed(what: fn() -> Result<(), String>) {
    let mut last = String::new();
    for _ in 0..20 {
        match what() {
            Ok(()) => return,
            Err(why) => last = why,
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("each of 20 times: {last}");
}
