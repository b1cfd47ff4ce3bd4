//! The parts of an open volume that its clones and its handles share.

use crate::persist::Persist;
use crossbeam_utils::CachePadded;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Keeps the volume alive for a lane's handles: a reference count per lane, so that `open` on two
/// lanes shares no line.
pub(crate) struct Anchor {
    pub persist: Arc<Persist>,
    /// The anchors of the volume that are left. Written once by each, as it goes; nothing that is
    /// written often lies in its line.
    left: Arc<AtomicUsize>,
}

impl Drop for Anchor {
    fn drop(&mut self) {
        // AcqRel: what users of the other lanes did is done before the volume closes.
        let left = self.left.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(left > 0, "an anchor was not counted");
        // The last user. The background threads hold the volume during their rounds; how many do is
        // not known, so they are counted nowhere. Waiting for them here makes the volume close in
        // this thread.
        // The child of a fork has no threads of the volume.
        if left == 1 && !self.persist.is_inherited() {
            self.persist.stop_threads();
        }
    }
}

/// Makes the anchors of `lanes` lanes.
pub(crate) fn anchors(persist: &Arc<Persist>, lanes: usize) -> Box<[CachePadded<Arc<Anchor>>]> {
    let left = Arc::new(AtomicUsize::new(lanes));
    let anchor = || Arc::new(Anchor { persist: persist.clone(), left: left.clone() });
    (0..lanes).map(|_| CachePadded::new(anchor())).collect()
}

/// The part of a [`Volume`](crate::Volume) that its clones share.
pub(crate) struct Opened {
    pub persist: Arc<Persist>,
    /// One for each lane.
    pub anchors: Box<[CachePadded<Arc<Anchor>>]>,
}

#[cfg(test)]
mod tests {
    use crate::{MountOptions, OpenOptions, Volume};
    use lanefs_store::device::{Device, HookedDevice, Kind, MemoryDevice};
    use lanefs_store::{FormatOptions, Store};
    use std::sync::Arc;
    use std::time::Duration;

    /// Has each write take a millisecond.
    fn slow(device: &Arc<HookedDevice<MemoryDevice>>) {
        let again = device.clone();
        device.before(Kind::Write, move || {
            slow(&again);
            std::thread::sleep(Duration::from_millis(1));
            Ok(())
        });
    }

    /// Both background threads were in their rounds when the last handle went: one of them closed
    /// the volume, sometime later, and who opened it at once found it in use, or not closed.
    #[test]
    fn a_volume_is_closed_when_its_last_handle_is_gone() {
        let options = MountOptions {
            background: true,
            commit_interval: Duration::ZERO,
            dirty_expire: Duration::ZERO,
            ..MountOptions::default()
        };
        let hooked = Arc::new(HookedDevice::new(MemoryDevice::new(64 << 20).unwrap()));
        let device: Arc<dyn Device> = hooked.clone();
        Store::format(std::slice::from_ref(&device), &FormatOptions::default()).unwrap();
        slow(&hooked);
        for round in 0..60 {
            let v = Volume::open_devices(vec![device.clone()], &options).unwrap();
            assert!(v.open_report().clean, "round {round}");
            let fs = v.fs();
            for i in 0..50 {
                fs.write(format!("/{round}-{i}"), [7; 600]).unwrap();
                v.0.persist.background.wake();
            }
            let file = fs.open("/0-0", OpenOptions::new().read(true)).unwrap();
            std::thread::sleep(Duration::from_millis(round % 8));
            v.0.persist.background.wake();
            let weak = Arc::downgrade(&v.0.persist);
            drop(fs);
            drop(v);
            assert!(weak.upgrade().is_some_and(|p| !p.is_stopped()), "a file keeps it open");
            drop(file);
            assert!(weak.upgrade().is_none(), "somebody holds the volume in round {round}");
        }
    }
}
