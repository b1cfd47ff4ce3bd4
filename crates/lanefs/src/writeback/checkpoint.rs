//! Checkpoints, seen from above: seal, hand the store what is to be folded, and let go of what was.

use super::Committed;
use crate::error::Result;
use crate::volume::Inner;
use lanefs_store::FoldInput;
use std::sync::atomic::Ordering::Relaxed;

/// Chunks of earlier mounts looked at for free inode numbers after a checkpoint.
const SCAN: usize = 16;

impl Inner {
    /// A checkpoint: everything committed so far is folded; recovery starts there from now on. Returns how many promises of blocks
    /// and inode numbers it gave back.
    pub(crate) fn checkpoint(&self) -> Result<u64> {
        let _one = self.checkpointing.lock();
        match self.try_checkpoint() {
            // Its epoch is sealed and found no room in the log. In the seal none can be made.
            Err(e) if e.errno() == libc::ENOSPC && self.commit.lock().sealed.is_some() => {
                self.seal_and_commit()?;
                self.try_checkpoint()
            }
            r => r,
        }
    }

    fn try_checkpoint(&self) -> Result<u64> {
        self.make_room_for_epoch(false)?;
        let settled = self.settle_replaced()?;
        let moment = self.flush.lock().moment();
        let attributes = self.xattr_blocks.swap(0, Relaxed);
        let done = self.store.checkpoint(|| {
            let mut backlog = self.commit.lock();
            let epoch = self.commit_into(&mut backlog, &settled)?;
            // What a checkpoint folded that failed behind its fold is in the store's memory.
            let folded = self.store.folded_epoch();
            let waiting = backlog.groups.iter().filter(|c| c.epoch > folded);
            Ok(FoldInput { epoch, groups: waiting.map(|c| c.groups.clone()).collect() })
        });
        let done = done.inspect_err(|_| {
            self.xattr_blocks.fetch_add(attributes, Relaxed);
        })?;
        drop(settled);
        // Only now: what a checkpoint that failed was to fold is for the next one.
        let folded: Vec<Committed> = {
            let mut backlog = self.commit.lock();
            let n = backlog.groups.partition_point(|c| c.epoch <= done.epoch);
            let folded: Vec<_> = backlog.groups.drain(..n).collect();
            backlog.bytes -= folded.iter().map(|c| c.groups.len()).sum::<usize>();
            folded
        };
        let promised: u64 = folded.iter().map(|c| c.promised).sum();
        drop(folded);
        self.checkpoint_covers(moment, &crossbeam_epoch::pin());
        self.set_folded(done.epoch);
        // What creations reserved has been written and charged by the fold.
        self.store.unreserve(self.lanes.mine(), promised);
        self.forget_dead(done.epoch);
        self.numbers.freed(&done.freed);
        for _ in 0..SCAN {
            let Some(chunk) = self.numbers.scan_next() else { break };
            let u = self.store.chunk_usage(chunk)?;
            self.numbers.found(chunk, u.used, &u.generations);
        }
        Ok(promised + done.freed.len() as u64)
    }

    /// Forgets the inodes whose end has been folded: their numbers may be given out again.
    fn forget_dead(&self, folded: u64) {
        let ended = {
            let mut reaper = self.reaper.lock();
            // What is folded is committed: no cell with one of these numbers is left behind.
            self.drop_buried(&mut reaper);
            reaper.take_folded(folded)
        };
        let mut dead = self.dead.lock();
        for ino in ended {
            dead.remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{MountOptions, OpenOptions, Volume};
    use lanefs_store::device::{Device, FaultyDevice, MemoryDevice, MemoryImage, Plan};
    use lanefs_store::{FormatOptions, Store};
    use std::sync::Arc;

    /// A small volume of small segments, on a device that can be told to fail.
    fn volume() -> (Volume, Arc<FaultyDevice<MemoryDevice>>, MountOptions) {
        let faulty = Arc::new(FaultyDevice::new(MemoryDevice::new(8 << 20).unwrap(), Plan::none()));
        let device: Arc<dyn Device> = faulty.clone();
        let format = FormatOptions { segment_blocks: 16, mlogs: 1, ..FormatOptions::default() };
        Store::format(std::slice::from_ref(&device), &format).unwrap();
        let options = MountOptions { background: false, lanes: 2, ..MountOptions::default() };
        (Volume::open_devices(vec![device], &options).unwrap(), faulty, options)
    }

    /// The volume as it is on the medium.
    fn after_crash(faulty: &FaultyDevice<MemoryDevice>, options: &MountOptions) -> Volume {
        let copy = MemoryImage::capture(faulty.inner()).unwrap().fork().unwrap();
        Volume::open_devices(vec![Arc::new(copy)], options).unwrap()
    }

    /// An epoch that is larger than what is free, on a volume that a checkpoint makes room on.
    #[test]
    fn room_is_made_for_an_epoch_of_any_size() {
        let (v, faulty, options) = volume();
        let fs = v.fs();
        fs.write("/big", &vec![1; 4 << 20]).unwrap();
        v.sync().unwrap();
        v.checkpoint().unwrap();
        let big = fs.open("/big", OpenOptions::new().write(true)).unwrap();
        let mut page = 0;
        let p = loop {
            let p = v.0.inner.store.pressure();
            if p.free_segments <= p.low_water / 2 + 2 {
                break p;
            }
            big.write_all_at(&[2; 4096], page * 4096).unwrap();
            big.sync_all().unwrap();
            page += 1;
        };
        assert!(p.log_bytes > 1 << 20, "{p:?}");
        let links = p.free_segments * 16 + 16;
        for n in 0..links {
            fs.symlink(&*"x".repeat(4000), &*format!("/{n}")).unwrap();
        }
        v.sync().unwrap();
        let fs = after_crash(&faulty, &options).fs();
        assert!((0..links).all(|n| fs.readlink(&*format!("/{n}")).is_ok()));
    }
}
