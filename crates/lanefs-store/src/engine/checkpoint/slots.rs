//! Writing checkpoint slots: see the head of [`crate::log::slots`].

use crate::engine::checkpoint::Checkpoints;
use crate::engine::maintenance::Maintenance;
use crate::error::Result;
use crate::log::io::Write;
use lanefs_format::slot::{Position, Slot};
use lanefs_format::superblock::MAX_MLOGS;
use std::sync::atomic::Ordering;

impl Checkpoints<'_> {
    fn write_slot(&self, slot: &Slot, index: usize) -> Result<()> {
        // What is encoded beyond that would be forgotten, and with it where a log begins.
        assert!((1..=MAX_MLOGS as usize).contains(&slot.positions.len()), "{} logs", slot.positions.len());
        let places = self.superblock.lock().clone().slot_places(index);
        debug_assert!(index < 2 && !places.is_empty(), "slot {index} lies nowhere");
        let blocks: Vec<_> = places.into_iter().map(|addr| (addr, slot.encode(addr))).collect();
        let writes: Vec<_> = blocks.iter().map(|(addr, b)| Write { addr: *addr, data: &b.0 }).collect();
        self.log.io.write_roots(&writes)
    }

    /// Writes a slot and flushes: the commit point of a checkpoint.
    pub(crate) fn put_slot(&self, m: &mut Maintenance, slot: Slot) -> Result<()> {
        debug_assert!(slot.generation > m.slot.generation && slot.folded_epoch >= m.slot.folded_epoch);
        debug_assert!(slot.volume == m.slot.volume && slot.mount >= m.slot.mount, "a slot of another mount");
        debug_assert!(
            slot.last_ts >= m.slot.last_ts && slot.next_seq >= m.slot.next_seq,
            "a counter went back"
        );
        let index = m.slot_index ^ 1;
        self.write_slot(&slot, index)?;
        self.log.io.flush(1)?;
        // The commit point: from here on the new tree is the volume.
        m.slot = slot;
        m.slot_index = index;
        // Relaxed: batches that see it are written behind the flush.
        self.log.slot_in_force.store(m.slot.generation, Ordering::Relaxed);
        Ok(())
    }

    /// Writes the twin of the slot in force (2).
    pub(crate) fn put_twin(&self, m: &mut Maintenance) -> Result<()> {
        let twin = Slot { generation: m.slot.generation + 1, ..m.slot.clone() };
        let index = m.slot_index ^ 1;
        self.write_slot(&twin, index)?;
        m.slot = twin;
        m.slot_index = index;
        Ok(())
    }

    /// Writes stamp `i` on all devices but the first (4).
    pub(crate) fn stamp_members(&self, m: &Maintenance, i: usize) -> Result<()> {
        let superblock = self.superblock.lock().clone();
        if !superblock.has_far_copies() || self.log.io.devices().len() < 2 {
            return Ok(());
        }
        let slot = self.stamp(m);
        let places = (1..self.log.io.devices().len()).map(|d| superblock.stamp_place(d, i));
        let blocks: Vec<_> = places.map(|addr| (addr, slot.encode(addr))).collect();
        let writes: Vec<_> = blocks.iter().map(|(addr, b)| Write { addr: *addr, data: &b.0 }).collect();
        self.log.io.write_roots(&writes)
    }

    /// Returns what is written as a stamp.
    pub(crate) fn stamp(&self, m: &Maintenance) -> Slot {
        // Relaxed: set once, by the thread that opened the volume.
        let mut slot = Slot { mount: self.log.mount.load(Ordering::Relaxed), ..m.slot.clone() };
        if slot.positions.is_empty() {
            slot.positions.push(Position::default());
        }
        debug_assert!(slot.mount >= m.slot.mount, "a stamp of an earlier mount");
        slot
    }
}
