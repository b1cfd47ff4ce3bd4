//! One device in the place of another, while the volume is used: a disk that fails, or is to be
//! given back.
//!
//! ```text
//! 1  wipe       what the new device held that could be taken for a volume; flush
//! 2  both       what is written to the old device is written to the new one too (`MirrorDevice`); the writes that
//!               began before are waited for
//! 3  copy       all of the old device but what is free and its superblocks; flush of both
//! 4  own        the superblock of the new device and its copies, with an identity of its own; flush
//!
//!    of the first device                               of another one
//! 5  gone       the superblock of the old device        others      far, near and block 0 of the other devices, the
//!               and its copies are wiped; flush                     first one last, with a flush after each
//!               ------------------------------------------------------------------------- the commit point
//! 6  new        the new device alone is used; who was on its way to the old one is waited for
//! 7  others     far, near and block 0, as above         gone        as beside it
//! 8  let go     the old device is released
//! ```
//!
//! 1. Addresses stay what they are: the new device has the old one's index, and its number of
//!    blocks. What it has more is unused, until `grow` takes it if it is the last one.
//! 2. From the end of step 3 to step 6 both devices have all that was acknowledged. So before the
//!    commit point a power loss leaves the volume with the old one, behind it with the new one, and
//!    whatever is given of the others, the one that is not a device of the volume is refused: it
//!    has no superblock, or one whose identity the first device does not name.
//!    From right before the commit point on a failure of the new device is one of the volume.
//! 3. What a volume is, its first device says (`log::superblocks`, 1). When that is replaced there
//!    are two of them between steps 4 and 5. Either is whole if the power is lost there. Whichever
//!    is used then, the other one is a copy from an earlier time, and refused beside other devices
//!    of a later one (`log::slots`, 4). A volume on one device has nothing to tell by; that is why
//!    the old one is wiped before the new one alone is written to. If it cannot be wiped it fails
//!    anyhow, and the log says so.
//! 4. What is free when it is its turn to be copied is left out: whoever uses it later writes to
//!    both.
//! 5. A block that the old device does not give is asked for once more when the rest of its segment
//!    is copied, and then it is lost, as before: zeros take its place, which do not have its sum.
//!    Where the tree lies twice it is healed from the other copy.
//! 6. The maintenance lock is held for steps 1 and 2, and from the flush of step 3 on. A label that
//!    is set meanwhile is written to the old device alone, as all superblocks are, and is in the
//!    new one's because that is made in step 4.

use crate::api::Replaced;
use crate::device::{Device, MirrorDevice};
use crate::engine::change::{Change, invalid, put};
use crate::error::{Result, StoreError};
use crate::log::segment::State;
use crate::log::superblocks::{encode_copies, random, refuse_volume, take_away, write_again};
use lanefs_format::superblock::{Superblock, Uuid};
use lanefs_format::{BLOCK_SHIFT, Block};
use std::ops::Range;
use std::sync::Arc;

/// Writes zeros over a superblock and its copies, and flushes.
fn wipe(device: &dyn Device, places: &[u64]) -> Result<()> {
    debug_assert!(places.contains(&0), "block 0 is what says most");
    let gone: Vec<_> = places.iter().map(|at| (*at, Block::zeroed())).collect();
    put(device, &gone).and_then(|()| device.flush())
}

impl Change<'_> {
    /// Puts another device in the place of number `n`: see [`crate::Store::replace_device`].
    pub fn replace_device(
        &self,
        n: usize,
        device: Arc<dyn Device>,
        force: bool,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Replaced> {
        let _one = self.one_at_a_time()?;
        let (log, superblock) = (&self.0.log, self.0.superblock());
        let Some(old) = log.io.devices().get(n).cloned() else {
            return Err(StoreError::Invalid(format!("the volume has no device {n}")));
        };
        if log.io.devices().iter().any(|d| Arc::ptr_eq(d, &device)) {
            return invalid(&*device, "is a device of the volume already");
        }
        let blocks = superblock.devices[n].blocks + superblock.far_blocks();
        if device.size() >> BLOCK_SHIFT < blocks {
            let least = blocks << BLOCK_SHIFT;
            return invalid(
                &*device,
                format_args!("is too small to take the place of {}: it needs {least} bytes", old.name()),
            );
        }
        if !force {
            refuse_volume(&*device)?;
        }
        let places = Superblock { device_index: n as u8, ..(*superblock).clone() }.places();
        let mirror = Arc::new(MirrorDevice::new(old.clone(), device.clone(), places.clone()));
        {
            let m = self.0.maintenance.lock();
            self.check_changeable(&m)?;
            take_away(std::slice::from_ref(&device), n, &superblock)?;
            log.io.replace_device(n, mirror.clone(), false);
            log.sections.drain(|| ());
        }
        let done = self.copy(n, &mirror, blocks, progress).and_then(|done| {
            self.commit_replacement(n, (&old, &device), &mirror, &places)?;
            Ok(done)
        });
        if let Err(e) = done {
            let m = self.0.maintenance.lock();
            // With a sticky error it is not known which of the two is in force.
            if log.check_writable().is_ok() {
                log.io.replace_device(n, old, false);
                log.sections.drain(|| ());
                drop(m);
                if let Err(e) = wipe(&*device, &places) {
                    tracing::warn!("{}: may say that it is a device of the volume: {e}", device.name());
                }
                device.release();
            }
            return Err(e);
        }
        done
    }

    /// Does step 3 but for the flush.
    fn copy(
        &self,
        n: usize,
        mirror: &MirrorDevice,
        blocks: u64,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Replaced> {
        let log = &self.0.log;
        let geometry = &log.segments.geometry;
        let all = blocks << BLOCK_SHIFT;
        let mut done = Replaced { copied: 0, unreadable: 0 };
        let mut copy = |range: Range<u64>| {
            log.check_writable()?;
            for block in mirror.copy(range.clone())? {
                done.unreadable += (mirror.copy(block..block + 1)?.len() as u64) << BLOCK_SHIFT;
            }
            done.copied += (range.end - range.start) << BLOCK_SHIFT;
            self.0.changes.note(range.end << BLOCK_SHIFT, all);
            progress(range.end << BLOCK_SHIFT, all);
            Ok::<(), StoreError>(())
        };
        let segments = geometry.log_segments(n);
        let length = u64::from(geometry.segment_blocks);
        // The reserved segments, those of the log, and what lies behind the last whole one.
        let start = u64::from(geometry.reserved) * length;
        debug_assert!(start <= blocks, "{start} of {blocks} blocks are reserved");
        copy(0..start)?;
        for seg in segments.clone() {
            if log.segments.info(seg).state != State::Free {
                let first = geometry.addr(seg, 0).block();
                copy(first..first + length)?;
            }
        }
        copy(start + segments.len() as u64 * length..blocks)?;
        Ok(done)
    }

    /// Does the flush of step 3, and steps 4 to 8.
    fn commit_replacement(
        &self,
        n: usize,
        (old, device): (&Arc<dyn Device>, &Arc<dyn Device>),
        mirror: &MirrorDevice,
        places: &[u64],
    ) -> Result<()> {
        let log = &self.0.log;
        let m = self.0.maintenance.lock();
        self.check_changeable(&m)?;
        log.io.flush(log.io.all())?;
        mirror.check()?;
        let before = self.0.superblock();
        let mut new = (*before).clone();
        debug_assert_eq!(new.devices.len(), log.io.devices().len(), "devices came or went meanwhile");
        new.devices[n].uuid = Uuid::from_random(random()?);
        let own = Superblock { device_index: n as u8, ..new.clone() };
        put(&**device, &encode_copies(&**device, &own)?)?;
        device.flush()?;
        let others: Vec<usize> = (0..new.devices.len()).rev().filter(|d| *d != n).collect();
        let name_it = || {
            self.write_far(&new, &[], Some(n)).and_then(|()| self.write_near(&new, Some(n)))?;
            others.iter().filter(|d| **d > 0).try_for_each(|d| self.write_first(&new, *d))
        };
        let wipe_old = || {
            if let Err(e) = wipe(&**old, places) {
                tracing::warn!("{}: was replaced, and still says that it is a device of it: {e}", old.name());
            }
        };
        if n == 0 {
            mirror.need_both()?;
            wipe_old();
        } else {
            if let Err(e) = name_it().and_then(|()| mirror.need_both()) {
                let _ = write_again(log.io.devices(), &before);
                return Err(e);
            }
            self.write_first(&new, 0)?;
        }
        // 6.
        *self.0.superblock.lock() = Arc::new(new.clone());
        mirror.retire();
        log.io.replace_device(n, device.clone(), true);
        log.sections.drain(|| ());
        log.io.keep_reserve_of(n);
        if n > 0 {
            wipe_old();
        } else {
            // The volume is what block 0 of the first device says.
            name_it().inspect_err(|e| log.io.fail(e))?;
        }
        old.release();
        Ok(())
    }
}
