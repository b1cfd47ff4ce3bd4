//! Seal and commit: an epoch's groups of all lanes become durable as one (O2, O10).

use super::replaced::Settled;
use super::{Backlog, Committed, Unfinished};
use crate::oplog::buffer::Sealed;
use crate::volume::Inner;
use lanefs_store::{Result, StoreError, fold};
use std::sync::Arc;
use std::time::Instant;

/// Bytes of one part of a commit, unless the options say otherwise; parts are spread over the mlogs.
const PART: usize = 1 << 20;
/// How often a commit that found no room is tried again.
const TRIES: u32 = 2;

impl Inner {
    /// Seals the running epoch and commits it; returns it. What was logged before the call is durable when it returns.
    pub(crate) fn seal_and_commit(&self) -> crate::Result<u64> {
        let mut tries = 0;
        loop {
            self.make_room_for_epoch(tries > 0)?;
            let settled = self.settle_replaced()?;
            match self.commit_into(&mut self.commit.lock(), &settled) {
                Err(StoreError::NoSpace) if tries < TRIES => tries += 1,
                r => return Ok(r?),
            }
        }
    }

    /// Makes room for what a seal would commit. The caller does not hold `commit`: it may wait for a checkpoint, whose seal takes that. Where
    /// no room is to be had the commit says so, if it needs it.
    pub(super) fn make_room_for_epoch(&self, hard: bool) -> Result<()> {
        let sealed = self.commit.lock().sealed.as_ref().map_or(0, |s| s.groups.len());
        match self.store.make_room_for_epoch((self.open_log_bytes() + sealed) as u64, hard) {
            Err(StoreError::NoSpace) => Ok(()),
            r => r,
        }
    }

    /// The caller has settled what was renamed over files, which the seal takes back. An epoch that was sealed and could not be committed goes first: a call that
    /// failed is never followed by one that succeeds without its groups.
    pub(super) fn commit_into(&self, backlog: &mut Backlog, settled: &Settled<'_>) -> Result<u64> {
        self.store.healthy()?;
        self.finish(backlog)?;
        let mut taken: Vec<(usize, Sealed)> = Vec::new();
        let epoch = self.epochs.seal(&self.lanes, |lane, log, e| {
            log.committed(self.committed());
            log.settling -= 1;
            taken.extend(log.take(e).map(|s| (lane, s)));
        });
        settled.sealed();
        if !taken.is_empty() {
            let mut chunks: Vec<Arc<Vec<u8>>> = Vec::new();
            let mut promised = 0;
            for (_, s) in &taken {
                let b = s.lock();
                chunks.extend_from_slice(b.chunks());
                promised += b.promised;
            }
            let groups = fold::absorb(&chunks.iter().map(|c| c.as_slice()).collect::<Vec<_>>())?;
            drop(chunks);
            backlog.sealed = Some(Unfinished { epoch, groups, promised });
            drop(taken);
            self.finish(backlog)?;
        }
        backlog.last = Some(Instant::now());
        Ok(epoch)
    }

    /// Commits the epoch that is sealed.
    fn finish(&self, backlog: &mut Backlog) -> Result<()> {
        let Some(sealed) = &backlog.sealed else { return Ok(()) };
        if !sealed.groups.is_empty() {
            // The commit point of the epoch is inside: its parts are valid on the medium after the flush.
            let part = Some(self.options.commit_part).filter(|n| *n > 0).unwrap_or(PART);
            self.store.commit_epoch(sealed.epoch, parts(&sealed.groups, part, self.lanes.len()))?;
        }
        let Some(sealed) = backlog.sealed.take() else { return Ok(()) };
        // The lanes let go of their buffers when they are locked next, at the latest by the next seal.
        self.set_committed(sealed.epoch);
        backlog.bytes += sealed.groups.len();
        let Unfinished { epoch, groups, promised } = sealed;
        backlog.groups.push(Committed { epoch, groups: groups.into(), promised });
        Ok(())
    }

    /// Bytes of groups logged and not sealed.
    pub(crate) fn open_log_bytes(&self) -> usize {
        (0..self.lanes.len()).map(|l| self.lanes.lock(l).open_bytes()).sum()
    }

    /// Bytes of groups logged and not folded: what the oplog and the backlog hold in memory.
    pub(crate) fn log_bytes(&self) -> usize {
        self.open_log_bytes() + self.commit.try_lock().map_or(0, |b| b.bytes)
    }
}

/// Cuts encoded groups into parts of at least `part` bytes at group boundaries.
fn parts(bytes: &[u8], part: usize, lanes: usize) -> Vec<(usize, Vec<u8>)> {
    let mut out = Vec::new();
    let mut start = 0;
    let mut at = 0;
    for g in lanefs_store::format::record::groups(bytes).flatten() {
        if at - start >= part {
            out.push((out.len() % lanes, bytes[start..at].to_vec()));
            start = at;
        }
        at += g.bytes.len();
    }
    if at > start {
        out.push((out.len() % lanes, bytes[start..at].to_vec()));
    }
    out
}

#[cfg(test)]
mod tests {
    use crate::{MountOptions, OpenOptions, Volume};
    use lanefs_store::device::{Device, Fault, FaultyDevice, Kind, MemoryDevice, MemoryImage, Plan};
    use lanefs_store::{FormatOptions, Store, StoreError};
    use std::sync::Arc;

    fn volume() -> Volume {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(32 << 20).unwrap());
        Store::format(std::slice::from_ref(&device), &FormatOptions::default()).unwrap();
        let options = MountOptions { background: false, ..MountOptions::default() };
        Volume::open_devices(vec![device], &options).unwrap()
    }

    /// Else memory would seem full of it, and the log would press for good.
    #[test]
    fn what_is_folded_counts_as_log_no_more() {
        let v = volume();
        for round in 0..3 {
            for n in 0..20 {
                v.fs().create(format!("/{round}-{n}")).unwrap();
            }
            let open = v.0.inner.log_bytes();
            assert!(open > 0);
            v.sync().unwrap();
            assert!(v.0.inner.log_bytes() > 0);
            v.checkpoint().unwrap();
            assert_eq!((v.0.inner.log_bytes(), v.0.inner.commit.lock().bytes), (0, 0));
        }
    }

    /// What was promised before may be gone, also where there is nothing to commit.
    #[test]
    fn no_seal_of_a_broken_volume_succeeds() {
        let faulty = Arc::new(FaultyDevice::new(MemoryDevice::new(32 << 20).unwrap(), Plan::none()));
        let device: Arc<dyn Device> = faulty.clone();
        Store::format(std::slice::from_ref(&device), &FormatOptions::default()).unwrap();
        let options = MountOptions { background: false, ..MountOptions::default() };
        let v = Volume::open_devices(vec![device], &options).unwrap();
        let (fs, inner) = (v.fs(), &v.0.inner);
        let f = fs.create("/f").unwrap();
        v.sync().unwrap();
        let settled = inner.settle_replaced().unwrap();
        // Room for the seal was made; then another thread's fsync fails.
        faulty.set_plan(Plan::none().nth(Kind::Flush, 0, Fault::Error(libc::EIO)));
        f.write_all_at(b"x", 0).unwrap();
        assert_eq!(f.sync_all().unwrap_err().errno(), libc::EIO);
        assert_eq!(inner.open_log_bytes(), 0);
        inner.commit_into(&mut inner.commit.lock(), &settled).expect_err("its flush failed");
    }

    /// A seal takes the groups from the lanes: what it could not commit lies in no lane and in no log.
    #[test]
    fn an_epoch_that_found_no_room_is_committed_by_the_next_sync() {
        // So large that nobody looks at the log while there is room.
        let dev = Arc::new(MemoryDevice::new(96 << 20).unwrap());
        let device: Arc<dyn Device> = dev.clone();
        let format = FormatOptions { segment_blocks: 16, mlogs: 1, ..FormatOptions::default() };
        Store::format(std::slice::from_ref(&device), &format).unwrap();
        let options = MountOptions { background: false, lanes: 2, ..MountOptions::default() };
        let v = Volume::open_devices(vec![device], &options).unwrap();
        let (fs, inner) = (v.fs(), &v.0.inner);
        fs.write("/big", &vec![1; 40 << 20]).unwrap();
        v.sync().unwrap();
        v.checkpoint().unwrap();
        // More than there will be free.
        let links = (inner.store.pressure().low_water + 32) * 16;
        for n in 0..links {
            fs.symlink(&*"x".repeat(4000), &*format!("/{n}")).unwrap();
        }
        // A checkpoint would make room: all this is written over.
        let big = fs.open("/big", OpenOptions::new().write(true)).unwrap();
        let (mut now, mut at) = (inner.store.pressure(), 0);
        while now.free_segments > now.low_water / 2 + 16 {
            big.write_all_at(&[2; 16 * 4096], at).unwrap();
            big.sync_data().unwrap();
            (now, at) = (inner.store.pressure(), at + 16 * 4096);
        }
        assert!(inner.open_log_bytes() as u64 > now.free_segments << 16, "{now:?}");
        let settled = inner.settle_replaced().unwrap();
        let r = inner.commit_into(&mut inner.commit.lock(), &settled);
        assert!(matches!(r, Err(StoreError::NoSpace)), "{r:?}");
        fs.symlink("x", "/later").unwrap();
        v.sync().unwrap();
        let copy = MemoryImage::capture(&dev).unwrap().fork().unwrap();
        let fs = Volume::open_devices(vec![Arc::new(copy)], &options).unwrap().fs();
        assert!((0..links).all(|n| fs.readlink(&*format!("/{n}")).is_ok()));
        assert!(fs.readlink("/later").is_ok());
    }

    /// Lanes let go of what was committed at the next seal, also where nobody closes over them.
    #[test]
    fn lanes_keep_the_groups_of_one_commit_at_most() {
        let v = volume();
        let inner = &v.0.inner;
        for n in 0..10 {
            v.fs().create(format!("/{n}")).unwrap();
            inner.seal_and_commit().unwrap();
            for lane in 0..inner.lanes.len() {
                assert!(inner.lanes.lock(lane).sealed.len() <= 1, "commit {n}, lane {lane}");
            }
        }
    }
}
