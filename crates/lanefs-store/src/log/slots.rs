//! The checkpoint slots: their places, how they are read (`engine::checkpoint` writes them), and
//! how old the members of a volume of several devices are.
//!
//! 1. A slot has a copy at the end of the first device, if the superblock has one; both are written
//!    together, and count once the flush that follows is answered. Of the places the valid slot
//!    with the highest generation is the volume.
//! 2. A checkpoint writes one slot and flushes: the commit point. Then it writes the same once more
//!    into the other slot, its *twin*, with the next generation and without a flush. So an older
//!    tree, whose blocks may be in use again, is on the medium only while a checkpoint is under
//!    way, and one damaged slot costs nothing.
//! 3. A mount and a close flush the twin. So a slot that marks the volume as closed is never beside
//!    one of a later mount whose operations were acknowledged: if that one were lost, the other
//!    would be believed, and they would be gone without a word.
//! 4. On the other devices the places of the slots hold *stamps*: copies of a slot that bear the
//!    mount. The first is written before the first slot of a mount and flushed with the tree below
//!    it, the second behind that slot, before anything is acknowledged. So the first is never below
//!    the volume's mount and the second never above, unless one of the devices is a copy from an
//!    earlier time.

use crate::device::Device;
use crate::error::{Result, StoreError};
use crate::log::io::Io;
use lanefs_format::slot::Slot;
use lanefs_format::superblock::{Superblock, Uuid};
use lanefs_format::{Block, BlockAddr};
use std::sync::Arc;

/// Slots that verify, the newest first, each with its number; and why another one does not.
pub(crate) type Slots = (Vec<(Slot, usize)>, Option<StoreError>);

/// Returns the slot at `addr`; what was read wrong once is read again.
pub(crate) fn read_slot(io: &Io, addr: BlockAddr, volume: Uuid) -> Result<Slot> {
    let read = || {
        let mut b = Block::zeroed();
        io.read_raw(addr, &mut b.0, "checkpoint slot")?;
        Ok(Slot::decode(&b, addr, volume)?)
    };
    read().or_else(|_| read())
}

/// Reads both slots.
pub(crate) fn read_slots(sb: &Superblock, io: &Io) -> Result<Slots> {
    let mut slots = Vec::new();
    let mut error = None;
    for i in 0..2 {
        let (mut good, mut bad, mut unread) = (0, None, None);
        for addr in sb.slot_places(i) {
            match read_slot(io, addr, sb.volume) {
                Ok(s) => {
                    slots.push((s, i));
                    good += 1;
                }
                Err(e @ StoreError::Io { .. }) => unread = Some(e),
                Err(e) => bad = Some(e),
            }
        }
        match unread {
            // A slot that could not be read may be the newer one. To go on from the other would
            // lose what was acknowledged since, for good, when the device only stumbled. Its copy,
            // if it is whole, was flushed together with it.
            Some(e) if good == 0 => return Err(e),
            _ => error = bad.or(error),
        }
    }
    debug_assert!(slots.iter().all(|(s, i)| *i < 2 && s.volume == sb.volume), "slots of another volume");
    slots.sort_by_key(|(s, _)| std::cmp::Reverse(s.generation));
    Ok((slots, error))
}

/// Checks that none of the devices is a copy from an earlier time (4).
pub(crate) fn check_ages(sb: &Superblock, io: &Io, slot: &Slot) -> Result<()> {
    let older = |d: &Arc<dyn Device>, at: u64, others: u64| {
        let why = format!(
            "is older than the volume's other devices: it was last in use at mount {at}, they were at mount {others}; \
             it may be a copy that was restored. Give the present one, or copies of all devices from one time"
        );
        Err(StoreError::NotAVolume { device: d.name().into(), why })
    };
    debug_assert_eq!(io.devices().len(), sb.devices.len(), "all devices of the volume are there");
    for d in 1..sb.devices.len() {
        let stamp = |i: usize| read_slot(io, sb.stamp_place(d, i), sb.volume).ok().map(|s| s.mount);
        // One that cannot be read is no proof; a volume that was never open for writing has none.
        if let Some(m) = stamp(0).filter(|m| *m < slot.mount) {
            return older(&io.devices()[d], m, slot.mount);
        }
        if let Some(m) = stamp(1).filter(|m| *m > slot.mount) {
            return older(&io.devices()[0], slot.mount, m);
        }
    }
    Ok(())
}
