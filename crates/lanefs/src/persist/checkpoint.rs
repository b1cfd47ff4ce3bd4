//! Checkpoints, seen from above: seal, hand the store what is to be folded, and let go of what was.

use crate::error::Result;
use crate::memfs::Inode;
use crate::persist::Persist;
use crate::persist::commit;
use crate::persist::fold::{Ends, Held, fold};
use crate::persist::replaced;
use lanefs_format::Ino;
use lanefs_store::StoreError;
use std::collections::HashMap;

/// A directory with so many leaves in use is remembered when it has been gone over.
const LARGE: u64 = 64;

/// The state of a directory that lost names.
#[derive(Default)]
pub(crate) struct Thinned {
    /// Names that it lost since it was gone over.
    lost: u64,
    /// Leaves that were in use then.
    leaves: u64,
}

/// Makes a checkpoint: everything committed so far is folded; recovery starts there from now on.
/// Returns how many promises of blocks and inode numbers it gave back.
pub(crate) fn checkpoint(persist: &Persist) -> Result<u64> {
    let mut thinned = persist.checkpointing.lock();
    let _held = Held::new();
    let mut tried = false;
    loop {
        let mut stale = false;
        match try_checkpoint(persist, &mut stale) {
            Err(_) if stale => {}
            // Its epoch is sealed and found no space in the log. In the seal none can be freed.
            Err(e)
                if !tried && e.errno() == libc::ENOSPC && persist.journal.backlog.lock().sealed.is_some() =>
            {
                commit::seal_and_commit(persist)?;
                tried = true;
            }
            r => {
                if r.is_ok() {
                    tidy(persist, &mut thinned);
                }
                return r;
            }
        }
    }
}

/// Drops what is left in memory of names that are gone, and that the store does not have any
/// more either; returns how many leaves were looked at. A directory is gone over when it has
/// lost half as many names as it had leaves then: else one name would cost a walk through all.
fn tidy(persist: &Persist, thinned: &mut HashMap<Ino, Thinned>) -> usize {
    debug_assert!(persist.checkpointing.is_locked(), "a checkpoint may fold more meanwhile");
    for (dir, names) in std::mem::take(&mut persist.journal.backlog.lock().thinned) {
        debug_assert!(names > 0, "directory {dir} lost nothing");
        thinned.entry(dir).or_default().lost += names;
    }
    let folded = persist.journal.folded();
    let mut looked_at = 0;
    thinned.retain(|ino, t| {
        if t.lost * 2 < t.leaves {
            return true;
        }
        // One for each: see `write_back_some`.
        let guard = crossbeam_epoch::pin();
        // Its mark of use stays as it is.
        let Some(dir) = persist.memfs.inodes.peek(*ino, &guard).and_then(Inode::dir) else { return false };
        let done = dir.tidy(folded, &guard);
        debug_assert!(done.in_use <= done.looked_at as u64, "{done:?} of directory {ino}");
        persist.budget.count_names_gone(done.freed);
        looked_at += done.looked_at;
        // What is not folded is there the next time, as lost.
        *t = Thinned { lost: done.left, leaves: done.in_use };
        done.left > 0 || done.in_use > LARGE
    });
    thinned.shrink_to(thinned.len() * 2);
    looked_at
}

/// Tries to make a checkpoint. `stale`: it failed because a lane came into use between what has to
/// be done before the seal and the seal.
fn try_checkpoint(persist: &Persist, stale: &mut bool) -> Result<u64> {
    debug_assert!(persist.checkpointing.is_locked(), "one checkpoint at a time");
    let replaced = replaced::flush_replaced(persist)?;
    commit::free_space_for_epoch(persist, &replaced, false)?;
    fold(persist, Ends::Behind, || {
        let epoch = commit::commit_with(persist, &replaced, |backlog, epoch| backlog.handed = epoch)?;
        epoch.ok_or_else(|| {
            *stale = true;
            StoreError::Invalid("a lane came into use; the checkpoint begins again".into())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{tidy, try_checkpoint};
    use crate::core::memory;
    use crate::persist::{reaper, reclaim};
    use crate::{MountOptions, OpenOptions, Volume};
    use lanefs_format::Ino;
    use lanefs_store::device::{Device, FaultyDevice, MemoryDevice, MemoryImage, Plan};
    use lanefs_store::{FormatOptions, Store};
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Relaxed;

    /// A small volume of small segments, on a device that can be made to fail.
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

    /// One name of a large directory that was removed cost a walk through all of it, in each
    /// checkpoint: 330 ms for a million.
    #[test]
    fn a_large_directory_is_gone_over_when_it_has_lost_much() {
        let v = Volume::in_memory(256 << 20).unwrap();
        let (fs, inner) = (v.as_user(crate::Cred::root()), &v.0.persist);
        let name = |n: usize| format!("/d/{n:05}");
        fs.mkdir("/d", 0o755).unwrap();
        (0..8000).for_each(|n| drop(fs.create(name(n)).unwrap()));
        v.checkpoint().unwrap();
        // The background has nothing to do with it.
        let tidy = |names: std::ops::Range<usize>| {
            names.for_each(|n| fs.unlink(name(n)).unwrap());
            let mut thinned = inner.checkpointing.lock();
            try_checkpoint(inner, &mut false).unwrap();
            tidy(inner, &mut thinned)
        };
        let first = tidy(0..1);
        assert!(first > 1000, "{first} leaves, of which nothing was known");
        assert_eq!((1..20).map(|n| tidy(n..n + 1)).sum::<usize>(), 0);
        assert!(tidy(20..7998) >= first / 2);
        // Small as it is now, it is gone over each time.
        assert!(tidy(7998..7999) > 0 && tidy(7999..8000) > 0);
        assert!(inner.checkpointing.lock().is_empty());
    }

    /// An epoch that is larger than what is free, on a volume on which a checkpoint frees space.
    #[test]
    fn space_is_freed_for_an_epoch_of_any_size() {
        let (v, faulty, options) = volume();
        let fs = v.fs();
        fs.write("/big", vec![1; 4 << 20]).unwrap();
        v.sync().unwrap();
        v.checkpoint().unwrap();
        let big = fs.open("/big", OpenOptions::new().write(true)).unwrap();
        let mut page = 0;
        let p = loop {
            let p = v.0.persist.store.pressure();
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

    /// A volume in memory, and another that goes on with what it left.
    fn in_memory() -> (Volume, Arc<MemoryDevice>) {
        let dev = Arc::new(MemoryDevice::new(64 << 20).unwrap());
        let device: Arc<dyn Device> = dev.clone();
        Store::format(std::slice::from_ref(&device), &FormatOptions::default()).unwrap();
        (reopen(&dev), dev)
    }

    fn reopen(dev: &Arc<MemoryDevice>) -> Volume {
        let options = MountOptions { background: false, ..MountOptions::default() };
        Volume::open_devices(vec![dev.clone()], &options).unwrap()
    }

    /// Makes so many files, whose names begin like this, and returns their inode numbers. Their
    /// epoch ends, so the lane leaves their ends to the reaper.
    fn make(v: &Volume, name: &str, files: usize) -> Vec<Ino> {
        let fs = v.fs();
        let path = |n| format!("/{name}{n}");
        (0..files).for_each(|n| fs.write(&*path(n), b"").unwrap());
        v.sync().unwrap();
        (0..files).map(|n| fs.stat(&*path(n)).unwrap().ino).collect()
    }

    /// Removes them, and waits until each has got its end. Other tests may hold back the collector
    /// for a while.
    fn remove(v: &Volume, name: &str, files: usize) {
        (0..files).for_each(|n| v.fs().unlink(&*format!("/{name}{n}")).unwrap());
        let mut reaped = 0;
        while reaped < files {
            reaped += reaper::reap(&v.0.persist, true).unwrap();
        }
    }

    /// Else nothing that was changed since the volume was opened could ever leave memory.
    #[test]
    fn what_a_checkpoint_folded_may_leave_memory() {
        let (v, _) = in_memory();
        let (fs, inner) = (v.fs(), &v.0.persist);
        fs.mkdir("/d", 0o755).unwrap();
        fs.write("/d/f", b"").unwrap();
        let guard = crossbeam_epoch::pin();
        let inode = |path: &str| inner.memfs.inodes.get(fs.stat(path).unwrap().ino, &guard).unwrap();
        let is_folded = || {
            let (d, f) = (inode("/d"), inode("/d/f"));
            let folded = inner.journal.folded();
            [d, f].iter().all(|c| c.epoch.load(Relaxed) <= folded)
                && d.dir().unwrap().is_clean(folded, &guard)
        };
        v.sync().unwrap();
        assert!(!is_folded(), "it is committed only");
        v.checkpoint().unwrap();
        assert!(is_folded());
    }

    /// A directory held on to each name that it ever lost, until memory was short.
    #[test]
    fn names_that_are_gone_leave_memory_with_the_checkpoint() {
        let (v, _) = in_memory();
        let (fs, inner) = (v.fs(), &v.0.persist);
        fs.mkdir("/d", 0o755).unwrap();
        let before = memory::name_bytes(inner);
        let here = |n| format!("/d/{n}");
        for n in 0..1000 {
            fs.create(here(n)).unwrap();
        }
        v.checkpoint().unwrap();
        (0..998).for_each(|n| fs.unlink(here(n)).unwrap());
        fs.rename(here(998), "/there").unwrap();
        let held = memory::name_bytes(inner);
        v.sync().unwrap();
        assert_eq!(memory::name_bytes(inner), held, "they are committed only");
        v.checkpoint().unwrap();
        assert!(memory::name_bytes(inner) - before < 1000, "{} bytes", memory::name_bytes(inner) - before);
        let guard = crossbeam_epoch::pin();
        let inode = inner.memfs.inodes.get(fs.stat("/d").unwrap().ino, &guard).unwrap();
        assert_eq!(inode.dir().unwrap().name_bytes(), crate::memfs::dir::Entry::bytes(0));
        assert!(fs.stat(here(999)).is_ok() && fs.stat(here(5)).is_err() && fs.stat("/there").is_ok());
    }

    /// Else the inode table grew for ever.
    #[test]
    fn numbers_of_files_that_are_gone_are_given_out_again() {
        let (v, _) = in_memory();
        let first = make(&v, "a", 300);
        remove(&v, "a", 300);
        v.checkpoint().unwrap();
        let again = make(&v, "b", 300);
        assert!(first.iter().any(|ino| again.contains(ino)), "{} to {}", first[0], again[299]);
    }

    /// Else it grew with every mount.
    #[test]
    fn numbers_that_an_earlier_mount_left_free_are_given_out() {
        let (v, dev) = in_memory();
        let earlier = make(&v, "a", 300);
        remove(&v, "a", 300);
        v.close().unwrap();
        drop(v);
        let v = reopen(&dev);
        // The first checkpoint looks for them.
        v.checkpoint().unwrap();
        let now = make(&v, "b", 300);
        assert!(now.iter().any(|ino| earlier.contains(ino)), "{} to {}", now[0], now[299]);
    }

    /// Until a number's end is folded it answers ESTALE; then it is another file's, also where that
    /// one has to be loaded.
    #[test]
    fn a_file_with_the_number_of_one_that_is_gone_can_leave_memory_and_come_back() {
        let (v, _) = in_memory();
        let inner = &v.0.persist;
        let first = make(&v, "a", 300);
        remove(&v, "a", 300);
        assert_eq!(inner.memfs.dead.lock().len(), 300);
        v.checkpoint().unwrap();
        let again = make(&v, "b", 300);
        let ino = *again.iter().find(|ino| first.contains(ino)).unwrap();
        v.sync().unwrap();
        v.checkpoint().unwrap();
        let epoch = inner.memfs.inodes.peek(ino, &crossbeam_epoch::pin()).unwrap().epoch.load(Relaxed);
        assert!(epoch <= inner.journal.folded(), "it could never leave memory");
        while inner.memfs.inodes.peek(ino, &crossbeam_epoch::pin()).is_some() {
            reclaim::reclaim_inodes(inner);
        }
        assert_eq!(v.node_stat(ino).unwrap().ino, ino);
    }
}
