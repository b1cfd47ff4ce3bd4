//! Changes of the superblock: another label, a larger device.
//!
//! ```text
//! 1  longer     the image file is made longer; a block device is asked for its size
//! 2  far        the superblock's copy at the device's end and, of a device that grows, those of
//!               both slots; flush
//! 3  near       its copy in the reserved segments; flush
//! 4  block 0    of all devices, the first one last; flush                <- the commit point
//! 5  use        only now memory knows of the new segments
//! ```
//!
//! 1. Until step 4 is durable the old superblock is in force, and the volume refers to nothing
//!    behind its end. Old trees and old logs are good under the new one: it adds segments, and
//!    changes neither the numbers nor the places of those there were. So a power loss at any moment
//!    leaves one or the other, and each opens.
//! 2. If block 0 is torn, the near copy counts, which is the new one by then. If it is lost later,
//!    though step 4 was never reached, the near copy may have more than block 0 had: no harm, for
//!    the reason above.
//! 3. Of a device that grows the new copies do not lie where the old ones do. Those stay good until
//!    step 4, and are overwritten behind it: they lie in what is a part of the log from then on.
//! 4. The label is that of the first device's superblock, and so are the devices and their sizes:
//!    what the others say of these counts for nothing (`recovery::superblock`, 1).
//! 5. All of it happens under the maintenance lock: no checkpoint writes a slot meanwhile.

use crate::api::Grown;
use crate::device::{Device, WriteReq};
use crate::engine::Engine;
use crate::engine::maintenance::Maintenance;
use crate::error::{Result, StoreError};
use crate::log::io::Write;
use crate::log::slots::read_slot;
use lanefs_format::superblock::{DeviceEntry, Superblock};
use lanefs_format::{BLOCK_SHIFT, Block, BlockAddr};
use std::sync::Arc;

fn invalid<T>(device: &dyn Device, why: impl std::fmt::Display) -> Result<T> {
    Err(StoreError::Invalid(format!("{}: {why}", device.name())))
}

/// Writes blocks of a device. An error is none of the log: nothing that is in force was
/// overwritten.
fn put(device: &dyn Device, blocks: &[(u64, Box<Block>)]) -> Result<()> {
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
                        "the volume has {before} bytes and cannot be made smaller; make a new one of {b} bytes and copy the files"
                    ),
                );
            }
            Some(b) if b > before && b < least => {
                return invalid(
                    &**device,
                    format_args!("{b} bytes would add no segment; give at least {least}"),
                );
            }
            _ => {}
        }
        device.lengthen(bytes.unwrap_or(0))?;
        let size = bytes.unwrap_or(device.size());
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
        // 5.
        self.0.log.segments.grow(blocks);
        m.usage.grow(self.0.log.segments.len());
        let usable = self.0.log.segments.geometry.usable();
        self.0.log.segments.set_reserved_segments(
            crate::log::space::segments_held_back(usable, self.0.log.mlogs.len()) * 3 / 5,
        );
        self.0.log.space.grow(usable);
        debug_assert_eq!(
            self.0.log.segments.geometry.log_segments(devices.len() - 1).len() as u64,
            old.layout.segments(blocks) - u64::from(old.layout.reserved_segments),
            "segments in use"
        );
        Ok(Grown { before, after: (blocks + far) << BLOCK_SHIFT })
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

    fn check_changeable(&self, m: &Maintenance) -> Result<()> {
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

    /// Does steps 2 to 4. `copies`: of the slots, on the first device.
    fn replace_superblock(&self, new: Superblock, copies: &[(u64, Box<Block>)]) -> Result<()> {
        let devices = self.0.log.io.devices();
        debug_assert_eq!(new.devices.len(), devices.len(), "the superblock names other devices");
        debug_assert!(new.volume == self.0.log.volume, "the superblock of another volume");
        debug_assert!(
            self.0.superblock().devices.iter().zip(&new.devices).all(|(old, new)| old.blocks <= new.blocks),
            "a device would become smaller, with what lies at its end"
        );
        let of = |d: usize| Superblock { device_index: d as u8, ..new.clone() };
        let encode =
            |d: usize, at: u64| of(d).encode(at).map_err(|e| StoreError::superblock(devices[d].name(), &e));
        let near = new.layout.copy_block();
        for (d, device) in devices.iter().enumerate() {
            let sb = of(d);
            let far = sb.places().into_iter().filter(|at| *at != 0 && *at != near);
            let mut blocks = far.map(|at| Ok((at, encode(d, at)?))).collect::<Result<Vec<_>>>()?;
            if d == 0 {
                blocks.extend(copies.iter().cloned());
            }
            put(&**device, &blocks)?;
        }
        self.0.log.io.flush(self.0.log.io.all())?;
        for (d, device) in devices.iter().enumerate() {
            put(&**device, &[(near, encode(d, near)?)])?;
        }
        self.0.log.io.flush(self.0.log.io.all())?;
        for d in (0..devices.len()).rev() {
            // Sticky from here on: it is not known which of the two is in force after an error.
            let block = encode(d, 0)?;
            self.0.log.io.write_roots(&[Write { addr: BlockAddr::new(d as u8, 0), data: &block.0 }])?;
            self.0.log.io.flush(1 << d)?; // Of the first device: the commit point.
        }
        *self.0.superblock.lock() = Arc::new(new);
        Ok(())
    }
}
