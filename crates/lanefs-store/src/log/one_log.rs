//! One log for all (Max 4.3, "turns back to the single logging"): where hardly anything is free,
//! one mlog takes the blocks of all lanes.
//!
//! Each mlog keeps segments open for its heads, and until they are filled what they have left is
//! nobody else's. On a volume with space that is the price of logs that share nothing. On a full
//! one it is a large part of all that is free, and whoever needs blocks has the cleaner move what
//! lives, or makes a checkpoint for the few dead blocks that there are.
//!
//! 1. The rule is looked at behind each checkpoint, and when the volume is opened. It sets in when
//!    users can fill less than a twentieth of what they could fill of an empty volume, and ends
//!    when they can fill a quarter more than that: a volume at the bound does not change all the
//!    time. Nothing of it is on disk. A volume with fewer than four free segments for each log is
//!    opened with it, however much lies free in others: with all its logs its checkpoints would not
//!    find one for each kind of block of the tree.
//! 2. It is about blocks that are in no batch: data that users write, what the cleaner moves, and
//!    the blocks of the tree. Whoever refers to a block names its address, so which mlog has given
//!    it out means nothing later: not to recovery, which has the checksum of each in the batch, not
//!    to the cleaner, which asks the owner, and not to a flush, which goes to the devices that were
//!    written to.
//! 3. Batches stay where they are. The chain of each log begins where the slot says, so each has a
//!    head and a successor whether it is written to or not: nothing would be gained, and lanes
//!    would wait for each other in every fsync.
//! 4. When it sets in, the mlog that takes all also takes over the segments that the others have
//!    open, and fills them before it claims one. So no block of theirs is lost, and none is closed
//!    with space in it that could not be listed as slack before the next checkpoint, or, where
//!    nodes lie, not at all. When it ends the others get those back that it has not come to, each
//!    another one of what one head fills, and fill them before they claim any. So a volume at the
//!    bound has no more segments open each time.
//! 5. Which mlog that is makes no difference. It is the last one: a volume that one thread writes
//!    to has its batches in the first. While the rule is in force it claims each segment on the
//!    device that has most free ones. A log for each device was the other way. It would save a
//!    flush where an fsync has data on one device and its batch on another, but have as many heads
//!    open as there are devices, and end on a device that is full beside one that is not.
//! 6. The word is written while no transaction is in its section ([`Sections::rps`]), and by the
//!    holder of the maintenance lock, under which the cleaner and checkpoints read it: a
//!    transaction gets its blocks before the change or behind it, and no head is opened that the
//!    rule has taken. Whoever reads it takes no lock for that, and writes nothing.
//!
//! [`Sections::rps`]: crate::log::section::Sections::rps

use crate::log::Log;
use crate::log::mlog::Mlog;
use crate::log::segment::SegmentTable;
use lanefs_sync::CachePadded;
use lanefs_sync::ablation::{Switch, Technique};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// The rule's state: see the head of the file.
pub(crate) struct OneLog {
    /// Whether the rule is in force: 1 or 0. On a line of its own, which every transaction with
    /// data reads. Written where the rule sets in or ends, and at no other time (6). Relaxed: the
    /// RPS and the maintenance lock order it.
    in_force: CachePadded<AtomicU32>,
    switch: Switch,
}

impl OneLog {
    /// Returns the state of a volume that is being opened.
    pub fn new() -> OneLog {
        OneLog { in_force: CachePadded::new(AtomicU32::new(0)), switch: Switch::of(Technique::OneLog) }
    }

    /// Returns whether one mlog takes the blocks of all lanes.
    pub fn is_in_force(&self) -> bool {
        self.in_force.load(Relaxed) != 0
    }

    /// Returns whether it should, of a volume that users can fill with `free` more blocks of
    /// `total` (1).
    fn is_wanted(&self, free: i64, total: u64) -> bool {
        let few = total / 20;
        let bound = few + if self.is_in_force() { few / 4 } else { 0 };
        !self.switch.off() && free < bound.cast_signed()
    }
}

impl SegmentTable {
    /// Returns the device that has most free segments.
    pub fn device_with_most(&self) -> usize {
        debug_assert!(self.devices() > 0, "a volume lies on a device");
        match self.devices() {
            1 => 0,
            n => (0..n).max_by_key(|d| self.pools()[*d].lock().len()).unwrap_or(0),
        }
    }
}

impl Log {
    /// Returns the mlog that takes blocks which are in no batch, of lane or inode or segment number
    /// `n`. In a reader section, or under the maintenance lock.
    pub fn mlog_of_blocks(&self, n: u64) -> &Mlog {
        let last = self.mlogs.len() - 1;
        let own = (n % self.mlogs.len() as u64) as usize;
        &self.mlogs[if self.one_log.is_in_force() { last } else { own }]
    }

    /// Returns whether a volume that is being opened has too few segments for all its logs: two for
    /// the chain of each, and two for its blocks of the tree.
    pub fn has_few_segments(&self) -> bool {
        debug_assert!(!self.mlogs.is_empty(), "a volume without a log");
        self.segments.free_count() < 4 * self.mlogs.len() as u32
    }

    /// Looks at the rule for a volume that is being opened: behind that it is looked at again (1).
    pub fn look_at_rule_first(&self) {
        debug_assert!(!self.one_log.is_in_force(), "it was opened before");
        match self.has_few_segments() && self.mlogs.len() > 1 {
            true => self.set_rule(true),
            false => self.look_at_rule(),
        }
    }

    /// Looks whether the rule sets in or ends (1). Under the maintenance lock, outside of a reader
    /// section.
    pub fn look_at_rule(&self) {
        let [others @ .., _] = &self.mlogs[..] else { return };
        let total = self.space.total();
        let now = self.one_log.is_in_force();
        let wanted = !others.is_empty() && self.one_log.is_wanted(self.space.free_about(total / 10), total);
        if wanted != now {
            self.set_rule(wanted);
        }
    }

    /// Has the rule set in or end.
    fn set_rule(&self, wanted: bool) {
        let [others @ .., last] = &self.mlogs[..] else { return };
        {
            let _writer = self.sections.rps.write();
            // Relaxed: the RPS orders it for who reads it in a section, the maintenance lock for
            // all others (6).
            self.one_log.in_force.store(u32::from(wanted), Relaxed);
            last.set_takes_all(wanted);
            if wanted {
                others.iter().for_each(|m| last.take_over(m.give_heads()));
            } else {
                let back = others.iter().cycle().zip(last.give_begun());
                back.for_each(|(m, head)| m.take_over([head]));
            }
        }
        debug_assert!(!wanted || others.iter().all(|m| m.has_no_heads()), "a head is open for nobody (4)");
        tracing::debug!("one log for all: {wanted}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At the bound itself it stays as it is.
    #[test]
    fn it_ends_later_than_it_sets_in() {
        let rule = OneLog::new();
        assert!(!rule.is_wanted(50, 1000) && rule.is_wanted(49, 1000) && rule.is_wanted(-9, 1000));
        rule.in_force.store(1, Relaxed);
        assert!(rule.is_wanted(50, 1000) && rule.is_wanted(61, 1000) && !rule.is_wanted(62, 1000));
        assert!(size_of::<CachePadded<AtomicU32>>() >= 64 && align_of::<OneLog>() >= 64);
    }
}
