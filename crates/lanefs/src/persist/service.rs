//! The services that operations ask for ([`Persistence`]) and those that the frame pool asks for,
//! and the end of a volume.

use super::capture::{self, For, With};
use super::{Persist, ahead, checkpoint, ending, free, host, names, reaper, replaced, writeback};
use crate::core::Persistence;
use crate::error::{Error, Result};
use crate::memfs::Inode;
use crate::memfs::data::Writeback;
use std::sync::{Arc, Weak};

impl Persistence for Persist {
    fn free_space(&self) -> bool {
        free::free_space(self)
    }

    fn has_ended(&self) -> bool {
        self.reaper.lock().has_unfolded()
    }

    fn fold_log(&self) -> Result<()> {
        checkpoint::checkpoint(self).map(drop)
    }

    fn write_back_all(&self) -> Result<()> {
        writeback::write_back_all(self, false)
    }

    fn has_grown(&self, inode: &Inode, wait: bool) {
        ahead::has_grown(self, inode, wait);
    }

    fn write_attributes(&self, inode: &Inode) -> Result<()> {
        names::with_rights_committed(self, inode, || {
            let lock = inode.sync_lock.lock();
            capture::write_back_held(self, inode, &lock, For::Later, With::Nothing, 0).map(drop)
        })
    }

    fn flush_renamed(&self, inode: &Inode) -> Result<()> {
        replaced::flush_renamed_inode(self, inode)
    }

    fn flush_before_rename(&self, inode: &Inode) -> Result<()> {
        names::with_rights_committed(self, inode, || replaced::flush_renamed_inode(self, inode))
    }

    fn commit_rights(&self, inode: &Inode) -> Result<()> {
        names::commit_rights(self, inode)
    }

    fn wake(&self) {
        self.background.wake();
    }

    fn end_soon(&self) {
        self.background.end_soon();
    }

    fn wait_for_round(&self) -> bool {
        self.background.is_running() && {
            self.background.wake_and_wait();
            true
        }
    }
}

/// The callback of the frame pool for when much is dirty.
struct Pressure(Weak<Persist>);

impl Writeback for Pressure {
    fn wake(&self) {
        if let Some(persist) = self.0.upgrade() {
            persist.background.wake();
        }
    }

    fn write_back(&self, want: usize) -> usize {
        self.0.upgrade().map_or(0, |persist| writeback::write_back_for_writer(&persist, want))
    }
}

/// Offers the services to operations and to the frame pool. Once, when the volume is opened.
pub(crate) fn serve(persist: &Arc<Persist>) {
    debug_assert_eq!(Arc::strong_count(persist), 1, "nobody uses the volume yet");
    let weak: Weak<Persist> = Arc::downgrade(persist);
    persist.set_persistence(weak.clone());
    persist.memfs.frames.set_writeback(Arc::new(Pressure(weak.clone())));
    persist.store.count_groups(Box::new(move || {
        weak.upgrade().map_or(0, |persist| persist.memfs.frames.groups_without_nodes())
    }));
}

/// Ends the volume: what can be freed is, everything is written back, and the last checkpoint has
/// the clean mark. After an error it has ended as by a crash.
pub(crate) fn close(persist: &Persist) -> Result<()> {
    if persist.is_inherited() {
        return Err(Error::Posix(libc::EIO));
    }
    let _one = persist.closing.lock();
    if persist.is_stopped() {
        persist.store.release();
        return Ok(());
    }
    persist.store.about_to_close();
    persist.stop_threads();
    debug_assert!(!persist.background.is_running(), "the thread would go on with a closed volume");
    let r = if persist.options.read_only {
        Ok(Ok(()))
    } else {
        // A file that cannot be written holds back neither the others nor the names; the caller
        // gets the error at the end.
        let mut content = reaper::reap(persist, true);
        if persist.store.is_host_short() {
            // What was deleted may give the host as much as it needs.
            content = content.and_then(|n| host::put_off(checkpoint::checkpoint(persist)).map(|_| n));
            content = content.and_then(|n| Ok(persist.store.wait_for_host(None).map(|()| n)?));
        }
        // Whoever has no patience unmounts all the same.
        let fold = || host::however_long(persist, || checkpoint::checkpoint(persist));
        while matches!(content, Ok(1..)) && ending::fills_the_log(persist) {
            content = fold().and_then(|_| reaper::reap(persist, true));
        }
        let content = content.and(host::however_long(persist, || writeback::write_back_last(persist)));
        fold().map(|_| content)
    };
    persist.stop();
    debug_assert!(persist.is_stopped() && persist.writable().is_err(), "calls are refused from here on");
    let closed = match r.flatten() {
        Ok(()) => persist.store.close().map_err(Error::from),
        // Also where content alone is lost that was accepted: the clean mark says that nothing is,
        // and whoever unmounts goes by it. All else is in the checkpoint.
        Err(e) => {
            persist.store.shutdown();
            Err(e)
        }
    };
    persist.store.release();
    closed
}

impl Drop for Persist {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        if let Err(e) = close(self) {
            tracing::error!(
                "closing the volume failed: {e}; what was synced is safe and will be recovered at the next mount"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{MountOptions, OpenOptions, Volume};
    use lanefs_store::device::{Device, Fault, FaultyDevice, Kind, MemoryDevice, Plan, When};
    use lanefs_store::{FormatOptions, Store};
    use std::sync::Arc;

    /// Its content was lost, and whoever unmounted was told that all was well.
    #[test]
    fn a_volume_that_lost_content_is_not_marked_as_closed() {
        let mut failed = 0;
        for times in 0..6 {
            let device = Arc::new(FaultyDevice::new(MemoryDevice::new(64 << 20).unwrap(), Plan::none()));
            let d: Arc<dyn Device> = device.clone();
            Store::format(std::slice::from_ref(&d), &FormatOptions::default()).unwrap();
            let options = MountOptions { background: false, ..MountOptions::default() };
            let open = || Volume::open_devices(vec![d.clone()], &options).unwrap();
            let v = open();
            v.fs().write("/file", vec![1; 8 << 20]).unwrap();
            v.close().unwrap();
            drop(v);
            let v = open();
            let file = v.fs().open("/file", OpenOptions::new().write(true)).unwrap();
            v.sync().unwrap();
            file.write_at(&[2; 4096], 1 << 20).unwrap();
            // The way to its block is not in memory, and cannot be read.
            let often = When { times, ..When::default() };
            device.set_plan(Plan::none().rule(Kind::Read, often, Fault::Error(libc::EIO)));
            let closed = v.close();
            device.set_plan(Plan::none());
            assert_eq!(Store::was_closed(vec![d.clone()]).unwrap(), closed.is_ok(), "{times}: {closed:?}");
            drop((file, v));
            let read = open().fs().read("/file").unwrap();
            let is_there = read[1 << 20..(1 << 20) + 4096] == [2; 4096];
            assert!(is_there || closed.is_err(), "{times}: it was lost");
            assert_eq!(read.len(), 8 << 20);
            failed += usize::from(!is_there);
        }
        assert!(failed > 0, "nothing was ever lost");
    }
}
