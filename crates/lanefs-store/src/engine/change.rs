//! Changes of the superblock: another label, a larger device, one more; a smaller one, one less.
//! (One in the place of another: `replacement`.)
//!
//! ```text
//! more                                              less
//! 1  longer     the image file, or a block          evacuate   whatever lies behind the new end, or on the
//!               device is asked for its size                   device that goes (`evacuation`)
//! 2  new        all of a device that is added;
//!               flush
//! 3  far        the superblock's copies at the      far        of the device that shrinks; of the first one
//!               devices' ends; of a first device               those of both slots; flush
//!               that grows, those of both slots;
//!               flush
//! 4  near       its copies in the reserved
//!               segments; flush
//! 5  block 0    of all devices, the first one       block 0    of the first device; flush
//!               last; flush
//!               ------------------------------------------------------------ the commit point
//! 6  use        only now memory knows of the        drop       memory knows no more of the old segments
//!               new segments
//! 7                                                 others     near, far and block 0 of all devices; flush
//! 8                                                 let go     the file is cut off, old copies are wiped
//! ```
//!
//! 1. Until step 5 is durable the old superblock is in force. The volume refers to nothing that
//!    only the larger of the two has: not yet, or not any more. Old trees and old logs are good
//!    under both, which name the same segments by the same numbers. So a power loss at any moment
//!    leaves one or the other, and each opens.
//! 2. Whichever copy is believed where block 0 is torn, or lost later: it says no less than what is
//!    in force (`log::superblocks`, 2). For that the order is another one where the volume
//!    becomes smaller. A near copy that said so before block 0 does would be believed when, years
//!    later, block 0 is lost of a volume that had gone on with its old size: what lies behind the
//!    new end would be gone.
//! 3. Of a device that changes its size the new copies at the end do not lie where the old ones do.
//!    Those stay good until step 5. Of one that grows they are overwritten behind it: they lie in
//!    what is a part of the log from then on. Of one that shrinks the new ones lie in what nobody
//!    uses any more, and of two the larger is believed.
//! 4. The label is that of the first device's superblock, and so are the devices and their sizes:
//!    what the others say of these counts for nothing (`log::superblocks`, 1).
//! 5. All of it happens under the maintenance lock: no checkpoint writes a slot meanwhile. Only an
//!    evacuation lets go of it.
//! 6. A device that is added is whole and durable before any other names it, and has an identity of
//!    its own each time. So one whose adding was cut short is a member under none of the two, and
//!    one that was removed is none for as long as it is not added again.

use crate::api::Grown;
use crate::device::{Device, WriteReq};
use crate::engine::Engine;
use crate::engine::evacuation::Evacuation;
use crate::engine::maintenance::Maintenance;
use crate::engine::progress::UnderWay;
use crate::error::{Result, StoreError};
use crate::log::io::Write;
use crate::log::slots::read_slot;
use crate::log::space::SEGMENTS_PER_MLOG;
use crate::log::superblocks::{
    MIN_SEGMENTS, TOO_LARGE, encode_copies, random, refuse_volume, take_away, write_again,
};
use lanefs_format::superblock::{DeviceEntry, MAX_DEVICE_BYTES, MAX_DEVICES, Superblock, Uuid};
use lanefs_format::{BLOCK_SHIFT, Block, BlockAddr};
use std::sync::Arc;

/// The fewest segments that a device adds to a volume.
const LEAST_SEGMENTS: u32 = 4;

pub(super) fn invalid<T>(device: &dyn Device, why: impl std::fmt::Display) -> Result<T> {
    Err(StoreError::Invalid(format!("{}: {why}", device.name())))
}

/// Writes blocks of a device. An error is none of the log: nothing that is in force was
/// overwritten.
pub(super) fn put(device: &dyn Device, blocks: &[(u64, Box<Block>)]) -> Result<()> {
    let writes: Vec<_> =
        blocks.iter().map(|(at, b)| WriteReq { offset: at << BLOCK_SHIFT, data: &b.0 }).collect();
    device.write(&writes)
}

/// Changes the superblock of an open volume.
pub(crate) struct Change<'a>(pub &'a Engine);

impl Change<'_> {
    /// Gives the volume another name for people, of at most 64 bytes: see
    /// [`crate::Store::set_label`].
    pub fn set_label(&self, label: &str) -> Result<()> {
        let m = self.0.maintenance.lock();
        self.check_changeable(&m)?;
        let new = Superblock { label: label.into(), ..(*self.0.superblock()).clone() };
        if new.encode(0).is_err() {
            return Err(StoreError::Invalid(format!(
                "a label has at most 64 bytes and no control characters, not {label:?}"
            )));
        }
        self.replace_superblock(new, &[])
    }

    /// Makes the volume larger: see [`crate::Store::grow`].
    pub fn grow(&self, bytes: Option<u64>) -> Result<Grown> {
        let _one = self.one_at_a_time()?;
        let mut m = self.0.maintenance.lock();
        self.check_changeable(&m)?;
        let old = self.0.superblock();
        let devices = self.0.log.io.devices();
        let (Some(last), Some(device)) = (old.devices.last(), devices.last()) else {
            return Err(StoreError::Invalid("a volume lies on a device".into()));
        };
        let far = old.far_blocks();
        let had = last.blocks;
        let before = (had + far) << BLOCK_SHIFT;
        // A whole segment more, and copies that do not lie on the old ones.
        let least =
            (old.layout.first_block(old.layout.segments(had) + 1).max(had + far) + far) << BLOCK_SHIFT;
        match bytes {
            Some(b) if b < before => {
                return invalid(
                    &**device,
                    format_args!(
                        "cannot be made smaller by this: it has {before} bytes, and `lanefs shrink` does that"
                    ),
                );
            }
            Some(b) if b > before && b < least => {
                return invalid(
                    &**device,
                    format_args!("{b} bytes would add no segment; give at least {least}"),
                );
            }
            Some(b) if b >= MAX_DEVICE_BYTES => return invalid(&**device, TOO_LARGE),
            _ => {}
        }
        device.lengthen(bytes.unwrap_or(0))?;
        let size = bytes.unwrap_or(device.size());
        if size >= MAX_DEVICE_BYTES {
            return invalid(&**device, TOO_LARGE);
        }
        if device.size() < size {
            return invalid(
                &**device,
                format_args!(
                    "has {} bytes, and is not made longer here; do that first, then leave the size out",
                    device.size()
                ),
            );
        }
        if size < least {
            self.refuse_longer_others(&old, devices, least - before)?;
            return Ok(Grown { before, after: before });
        }
        let blocks = (size >> BLOCK_SHIFT) - far;
        // 3.
        assert!(blocks >= had + far, "copies at block {blocks} would lie on those at {had}");
        debug_assert!(old.layout.segments(blocks) > old.layout.segments(had), "no segment would be added");
        let mut new = (*old).clone();
        if let Some(last) = new.devices.last_mut() {
            *last = DeviceEntry { blocks, ..*last };
        }
        // They lie at the end of the first device.
        let slots = if devices.len() == 1 { self.slots_for(&new)? } else { Vec::new() };
        self.replace_superblock(new, &slots)?;
        // 3. Best effort: nobody looks for them any more. Before anything else may be written
        //    there.
        let gone: Vec<_> = (had..had + far).map(|at| (at, Block::zeroed())).collect();
        let _ = put(&**device, &gone);
        // 6.
        self.0.log.segments.grow(blocks);
        self.use_new(&mut m);
        debug_assert_eq!(
            self.0.log.segments.geometry.log_segments(devices.len() - 1).len() as u64,
            old.layout.segments(blocks) - u64::from(old.layout.reserved_segments),
            "segments in use"
        );
        Ok(Grown { before, after: (blocks + far) << BLOCK_SHIFT })
    }

    /// Adds a device behind the others: see [`crate::Store::add_device`].
    pub fn add_device(&self, device: Arc<dyn Device>, force: bool) -> Result<Grown> {
        let _one = self.one_at_a_time()?;
        let mut m = self.0.maintenance.lock();
        self.check_changeable(&m)?;
        let (old, io) = (self.0.superblock(), &self.0.log.io);
        let n = io.devices().len();
        if io.devices().iter().any(|d| Arc::ptr_eq(d, &device)) {
            return invalid(&*device, "is a device of the volume already");
        }
        if n == MAX_DEVICES {
            return invalid(&*device, format_args!("a volume has {MAX_DEVICES} devices at the most"));
        }
        if !force {
            refuse_volume(&*device)?;
        }
        let far = old.far_blocks();
        if device.size() >= MAX_DEVICE_BYTES {
            return invalid(&*device, TOO_LARGE);
        }
        let blocks = (device.size() >> BLOCK_SHIFT).saturating_sub(far);
        let geometry = &self.0.log.segments.geometry;
        let first = geometry.total();
        let least = geometry.reserved + LEAST_SEGMENTS;
        if old.layout.segments(blocks) < u64::from(least) || geometry.end_with_another(blocks) - first < least
        {
            let bytes = (old.layout.first_block(least.into()) + far) << BLOCK_SHIFT;
            return invalid(&*device, format_args!("is too small; a device needs at least {bytes} bytes"));
        }
        let mut new = (*old).clone();
        new.devices.push(DeviceEntry { uuid: Uuid::from_random(random()?), blocks });
        // All of the new device is durable before another one names it (6).
        let own = Superblock { device_index: n as u8, ..new.clone() };
        let encoded = encode_copies(&*device, &own)?;
        take_away(std::slice::from_ref(&device), n, &new)?;
        if old.has_far_copies() {
            let stamp = self.0.checkpoints().stamp(&m);
            let places = (0..2).map(|i| own.stamp_place(n, i));
            put(&*device, &places.map(|at| (at.block(), stamp.encode(at))).collect::<Vec<_>>())?;
        }
        put(&*device, &encoded)?;
        device.flush()?;
        self.replace_superblock(new, &[])?;
        // 6.
        let total = |sb: &Superblock| sb.devices.iter().map(|d| d.blocks + far).sum::<u64>() << BLOCK_SHIFT;
        io.add_device(device);
        self.0.log.segments.add_device(blocks);
        self.use_new(&mut m);
        self.0.log.spread_mlogs();
        io.keep_reserve_of_last();
        debug_assert_eq!(self.0.log.segments.devices(), io.devices().len(), "devices in use");
        Ok(Grown { before: total(&old), after: total(&self.0.superblock()) })
    }

    /// Makes the last device smaller: see [`crate::Store::shrink_device`].
    pub fn shrink(&self, bytes: u64, fold: &dyn Fn() -> Result<()>) -> Result<Grown> {
        let _one = self.one_at_a_time()?;
        self.0.log.check_writable()?;
        let old = self.0.superblock();
        let (log, n) = (&self.0.log, old.devices.len());
        let (Some(last), Some(device)) = (old.devices.last(), log.io.devices().last()) else {
            return Err(StoreError::Invalid("a volume lies on a device".into()));
        };
        let (far, had, t) = (old.far_blocks(), last.blocks, &log.segments);
        let before = (had + far) << BLOCK_SHIFT;
        let span = t.geometry.log_segments(n - 1);
        // A whole segment less, and copies that do not lie on the old ones.
        let most = old.layout.first_block(old.layout.segments(had)) - 1;
        let most = (most.min(had - far) + far) << BLOCK_SHIFT;
        if bytes > most {
            return invalid(
                &**device,
                format_args!("has {before} bytes, and would lose no segment; give at most {most}"),
            );
        }
        let bytes = bytes - bytes % lanefs_format::BLOCK_SIZE as u64;
        let others = t.geometry.usable() - span.len() as u32;
        let least = self.least_usable().max(others + LEAST_SEGMENTS);
        let fewest = u64::from(least - others + old.layout.reserved_segments);
        let smallest = (old.layout.first_block(fewest) + far) << BLOCK_SHIFT;
        let refused = || {
            Err(StoreError::TooSmall(format!(
                "{}: what the volume holds, with what is kept back for itself, needs {smallest} bytes of it; \
                 delete files, or give at least that{}",
                device.name(),
                self.mlogs_matter(least)
            )))
        };
        if bytes < smallest {
            return refused();
        }
        let blocks = (bytes >> BLOCK_SHIFT) - far;
        debug_assert!(blocks + far <= had, "copies at block {blocks} would lie on those at {had}");
        let from = t.geometry.end_with(blocks);
        debug_assert!(span.contains(&from), "segment {from} is none of {span:?}");
        let (mut m, evacuation) = match Evacuation::run(self.0, from, fold) {
            Err(StoreError::NoSpace) => return refused(),
            done => done?,
        };
        let mut new = (*old).clone();
        new.label.clone_from(&self.0.superblock().label);
        if let Some(last) = new.devices.last_mut() {
            *last = DeviceEntry { blocks, ..*last };
        }
        // 3. Those of other devices say less than is in force before step 5.
        let mut copies = if n == 1 { self.slots_for(&new)? } else { Vec::new() };
        let own = Superblock { device_index: (n - 1) as u8, ..new.clone() };
        copies.extend(encode_copies(&**device, &own)?.into_iter().filter(|(at, _)| *at >= blocks));
        let wipe = |at: std::ops::Range<u64>| {
            let gone: Vec<_> = at.map(|at| (at, Block::zeroed())).collect();
            let _ = put(&**device, &gone); // Best effort: the larger copy is believed (3).
        };
        if let Err(e) = put(&**device, &copies).and_then(|()| log.io.flush(log.io.all())) {
            wipe(blocks..blocks + far);
            return Err(e);
        }
        self.commit_smaller(&mut m, &new, evacuation, false)?;
        // 8. Of an image file they are cut off.
        wipe(had..had + far);
        if let Err(e) = device.shorten(bytes) {
            tracing::warn!("{}: stays as long as it was: {e}", device.name());
        }
        Ok(Grown { before, after: (blocks + far) << BLOCK_SHIFT })
    }

    /// Removes the last device: see [`crate::Store::remove_device`].
    pub fn remove_device(&self, fold: &dyn Fn() -> Result<()>) -> Result<Grown> {
        let _one = self.one_at_a_time()?;
        self.0.log.check_writable()?;
        let old = self.0.superblock();
        let (log, t) = (&self.0.log, &self.0.log.segments);
        let [rest @ .., device] = log.io.devices() else {
            return Err(StoreError::Invalid("a volume lies on a device".into()));
        };
        if rest.is_empty() {
            return invalid(
                &**device,
                "is the only device of the volume; its files have to be copied elsewhere",
            );
        }
        let span = t.geometry.log_segments(rest.len());
        let others = t.geometry.usable() - span.len() as u32;
        let least = self.least_usable();
        let refused = || {
            let missing = u64::from(least.saturating_sub(others).max(1)) * log.segment_bytes().0;
            Err(StoreError::TooSmall(format!(
                "{}: what the volume holds, with what is kept back for itself, does not fit into its other \
                 devices: {missing} bytes are missing; delete files, or let it have more{}",
                device.name(),
                self.mlogs_matter(least)
            )))
        };
        if others < least {
            return refused();
        }
        let (mut m, evacuation) = match Evacuation::run(self.0, span.start, fold) {
            Err(StoreError::NoSpace) => return refused(),
            done => done?,
        };
        let mut new = (*old).clone();
        new.label.clone_from(&self.0.superblock().label);
        new.devices.pop();
        self.commit_smaller(&mut m, &new, evacuation, true)?;
        // 8. Nobody takes it for a member.
        let own = Superblock { device_index: rest.len() as u8, ..(*old).clone() };
        let gone: Vec<_> = own.places().into_iter().map(|at| (at, Block::zeroed())).collect();
        if let Err(e) = put(&**device, &gone).and_then(|()| device.flush()) {
            tracing::warn!("{}: was removed, and still says that it is a device of it: {e}", device.name());
        }
        device.release();
        let total = |sb: &Superblock| {
            sb.devices.iter().map(|d| d.blocks + sb.far_blocks()).sum::<u64>() << BLOCK_SHIFT
        };
        Ok(Grown { before: total(&old), after: total(&new) })
    }

    /// Does steps 5 to 7 for a superblock that says less.
    fn commit_smaller(
        &self,
        m: &mut Maintenance,
        new: &Superblock,
        evacuation: Evacuation<'_>,
        device: bool,
    ) -> Result<()> {
        let log = &self.0.log;
        debug_assert_eq!(log.segments.withdrawn_in_use(), 0, "something lies in what goes");
        debug_assert!(new.devices.len() <= log.io.devices().len(), "a device more");
        // Whatever the answer is: the segments may be gone, and with an error nothing is written
        // any more.
        evacuation.succeeded();
        self.write_first(new, 0)?;
        *self.0.superblock.lock() = Arc::new(new.clone());
        log.segments.drop_withdrawn(device);
        m.usage.set_segments(log.segments.len());
        m.stuck.retain(|seg| *seg < log.segments.len());
        if device {
            log.io.remove_device();
            log.spread_mlogs();
        }
        let written = self.write_far(new, &[], None).and_then(|()| self.write_near(new, None));
        // The volume is what block 0 says. But nothing may be let go of that a copy still names.
        written.inspect_err(|e| log.io.fail(e))?;
        (1..new.devices.len()).try_for_each(|d| self.write_first(new, d))
    }

    /// Returns the fewest usable segments that the volume can do with now.
    fn least_usable(&self) -> u32 {
        let log = &self.0.log;
        let used = log.space.least_usable(log.segments.geometry.usable());
        let for_mlogs = if log.mlogs.len() > 1 { SEGMENTS_PER_MLOG * log.mlogs.len() as u32 } else { 0 };
        debug_assert!(used <= log.segments.geometry.usable(), "more is used than there is");
        used.max(for_mlogs).max(MIN_SEGMENTS)
    }

    /// Says so where fewer segments would do for a mount with fewer logs.
    fn mlogs_matter(&self, least: u32) -> String {
        let log = &self.0.log;
        match log.mlogs.len() {
            n if n > 1 && least == SEGMENTS_PER_MLOG * n as u32 => {
                format!(
                    " (it is open with {n} logs; mounted with -o mlogs=1, or as images that are not mounted, it \
                     could be smaller)"
                )
            }
            _ => String::new(),
        }
    }

    /// Returns what keeps others from changing the devices meanwhile.
    pub(super) fn one_at_a_time(&self) -> Result<UnderWay<'_>> {
        self.0.changes.begin().ok_or_else(|| {
            StoreError::Invalid("the volume's devices are being changed; try again when that is done".into())
        })
    }

    /// Lets the rest of the engine know of segments that have come.
    fn use_new(&self, m: &mut Maintenance) {
        let log = &self.0.log;
        m.usage.set_segments(log.segments.len());
        let usable = log.segments.geometry.usable();
        debug_assert!(log.segments.withdrawn().is_empty(), "segments come and go at once");
        log.segments
            .set_reserved_segments(crate::log::space::segments_held_back(usable, log.mlogs.len()) * 3 / 5);
        log.space.grow(usable);
    }

    /// Refuses to find that nothing was to do where another device than the last one was made
    /// longer by at least so many bytes.
    fn refuse_longer_others(&self, old: &Superblock, devices: &[Arc<dyn Device>], least: u64) -> Result<()> {
        let [others @ .., last] = devices else { return Ok(()) };
        for (d, entry) in others.iter().zip(&old.devices) {
            if d.size() >= ((entry.blocks + old.far_blocks()) << BLOCK_SHIFT) + least {
                let why = format_args!(
                    "was made longer; of a volume of {} devices only the last one grows, {}",
                    devices.len(),
                    last.name()
                );
                return invalid(&**d, why);
            }
        }
        Ok(())
    }

    pub(super) fn check_changeable(&self, m: &Maintenance) -> Result<()> {
        self.0.log.check_writable()?;
        if m.closing { Err(StoreError::Closed) } else { Ok(()) }
    }

    /// Returns the copies of the slots for their places under another superblock; zeros where there
    /// is none.
    fn slots_for(&self, new: &Superblock) -> Result<Vec<(u64, Box<Block>)>> {
        let mut copies = Vec::new();
        for i in 0..2 {
            let slot = read_slot(&self.0.log.io, new.layout.slot_addr(i), self.0.log.volume);
            for at in new.slot_places(i).into_iter().skip(1) {
                debug_assert!(at.device() == 0 && at.block() >= new.device().blocks, "a slot's copy at {at}");
                copies.push((at.block(), slot.as_ref().map_or_else(|_| Block::zeroed(), |s| s.encode(at))));
            }
        }
        Ok(copies)
    }

    /// Does steps 3 to 5 for a superblock that says more, on the devices that there are. `copies`:
    /// of the slots, on the first device.
    fn replace_superblock(&self, new: Superblock, copies: &[(u64, Box<Block>)]) -> Result<()> {
        let devices = self.0.log.io.devices();
        let old = self.0.superblock();
        debug_assert!(new.devices.len() >= devices.len(), "the superblock names other devices");
        debug_assert!(new.volume == self.0.log.volume, "the superblock of another volume");
        debug_assert!(
            old.devices.iter().zip(&new.devices).all(|(old, new)| old.blocks <= new.blocks),
            "a device would become smaller, with what lies at its end"
        );
        if let Err(e) = self.write_far(&new, copies, None).and_then(|()| self.write_near(&new, None)) {
            // What was written says more than is in force, and would be believed if block 0 were
            // lost. Best effort, as by an open.
            let _ = write_again(devices, &old);
            return Err(e);
        }
        for d in (0..devices.len()).rev() {
            self.write_first(&new, d)?; // Of the first device: the commit point.
        }
        *self.0.superblock.lock() = Arc::new(new);
        Ok(())
    }

    /// Writes the copies at the ends of the devices but `except`, and those of the slots, and
    /// flushes.
    pub(super) fn write_far(
        &self,
        new: &Superblock,
        copies: &[(u64, Box<Block>)],
        except: Option<usize>,
    ) -> Result<()> {
        let near = new.layout.copy_block();
        debug_assert!(near > 0, "the copy lies behind block 0");
        let devices = self.0.log.io.devices().iter().enumerate();
        for (d, device) in devices.filter(|(d, _)| Some(*d) != except) {
            let mut blocks = encode_copies(&**device, &Superblock { device_index: d as u8, ..new.clone() })?;
            blocks.retain(|(at, _)| *at != 0 && *at != near);
            if d == 0 {
                blocks.extend(copies.iter().cloned());
            }
            put(&**device, &blocks)?;
        }
        self.0.log.io.flush(self.0.log.io.all())
    }

    /// Writes the copies in the reserved segments of the devices but `except`, and flushes.
    pub(super) fn write_near(&self, new: &Superblock, except: Option<usize>) -> Result<()> {
        let near = new.layout.copy_block();
        let devices = self.0.log.io.devices().iter().enumerate();
        for (d, device) in devices.filter(|(d, _)| Some(*d) != except) {
            let mut blocks = encode_copies(&**device, &Superblock { device_index: d as u8, ..new.clone() })?;
            blocks.retain(|(at, _)| *at == near);
            debug_assert_eq!(blocks.len(), 1, "one copy lies there");
            put(&**device, &blocks)?;
        }
        self.0.log.io.flush(self.0.log.io.all())
    }

    /// Writes block 0 of a device, and flushes. An error is sticky: it is not known which of the
    /// two is in force.
    pub(super) fn write_first(&self, new: &Superblock, d: usize) -> Result<()> {
        debug_assert!(d < new.devices.len(), "device {d} is none of the volume");
        let name = self.0.log.io.devices()[d].name();
        let sb = Superblock { device_index: d as u8, ..new.clone() };
        let block = sb.encode(0).map_err(|e| StoreError::superblock(name, &e))?;
        self.0.log.io.write_roots(&[Write { addr: BlockAddr::new(d as u8, 0), data: &block.0 }])?;
        self.0.log.io.flush(1 << d)
    }
}
