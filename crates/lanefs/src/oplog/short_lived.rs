//! Files that a lane made and removed in one epoch, until they are ended (`ops::short_lived`).

use super::buffer::SoleGroup;
use lanefs_format::Ino;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Acquire};

/// Files that are ended together, at the least, unless the options have another number.
const TOGETHER: usize = 128;
/// Files after which the lane looks again whether a grace has passed.
const LOOK: usize = 64;
/// Files that one call ends at most.
const MOST: usize = 256;

/// Bytes of the groups that make and remove a file with a short name, about.
const GROUPS: usize = 192;

const _: () = assert!(TOGETHER.is_multiple_of(LOOK) && TOGETHER <= MOST, "what waits is looked at");

/// A file that its lane made and removed in one epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortLife {
    pub ino: Ino,
    /// The lane's group that took its name. The inode knows the one that made it.
    pub removal: SoleGroup,
    /// Bytes that were promised for the file and its name.
    pub promised: u32,
}

/// The files of a lane that wait for their end. Under the lane's lock.
pub(crate) struct ShortLived {
    /// Files that are ended together, at the least.
    together: usize,
    /// Files after which it is looked again whether a grace has passed.
    look: usize,
    /// Removed since the last ones were staged.
    waiting: Vec<ShortLife>,
    /// Waiting for their grace, or ended in parts since it passed.
    staged: Vec<ShortLife>,
    /// The grace of what is staged: stored by the collector with Release once nobody is pinned any
    /// more who was when it was staged, and loaded with Acquire: what they did is seen then.
    grace: Option<Arc<AtomicBool>>,
    /// Nothing was removed since the reaper looked last.
    rests: bool,
}

impl ShortLived {
    /// Makes an empty list, of which so many files are ended together; 0 for the default.
    pub fn new(together: usize) -> ShortLived {
        let together = if together == 0 { TOGETHER } else { together.min(MOST) };
        ShortLived {
            together,
            look: LOOK.min(together),
            waiting: Vec::new(),
            staged: Vec::new(),
            grace: None,
            rests: false,
        }
    }

    /// Adds a file that was removed just now. Returns whether it is time to end some.
    #[inline]
    pub fn add(&mut self, file: ShortLife) -> bool {
        debug_assert!(file.removal.is_known(), "the group that removed inode {} is needed", file.ino);
        self.waiting.push(file);
        self.rests = false;
        self.waiting.len() >= self.together && self.waiting.len().is_multiple_of(self.look)
    }

    /// Returns the bytes of the groups that are about to be voided, about.
    pub fn bytes(&self) -> usize {
        (self.staged.len() + self.waiting.len()) * GROUPS
    }

    /// Takes some files whose grace has passed.
    pub fn take_due(&mut self) -> Vec<ShortLife> {
        self.check_invariants();
        if !self.grace.as_ref().is_some_and(|g| g.load(Acquire)) {
            return Vec::new();
        }
        let some = self.staged.split_off(self.staged.len().saturating_sub(MOST));
        if self.staged.is_empty() {
            self.grace = None;
        }
        some
    }

    /// Stages what waits, unless something is staged. Returns what the collector has to set once
    /// nobody is pinned any more who is now.
    pub fn stage(&mut self) -> Option<Arc<AtomicBool>> {
        self.check_invariants();
        if self.grace.is_some() || self.waiting.len() < self.together {
            return None;
        }
        std::mem::swap(&mut self.staged, &mut self.waiting);
        let grace = Arc::new(AtomicBool::new(false));
        self.grace = Some(grace.clone());
        Some(grace)
    }

    /// Gives all files up to the reaper. `rested`: only if none was removed since the last time.
    pub fn give_up(&mut self, rested: bool) -> Vec<ShortLife> {
        let rests = std::mem::replace(&mut self.rests, true);
        if rested && !rests {
            return Vec::new();
        }
        self.grace = None;
        let mut all = std::mem::take(&mut self.staged);
        all.append(&mut self.waiting);
        self.check_invariants();
        all
    }

    /// Checks that only what is staged waits for a grace.
    fn check_invariants(&self) {
        debug_assert_eq!(self.staged.is_empty(), self.grace.is_none(), "{} staged", self.staged.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Release;

    fn file(n: u64) -> ShortLife {
        ShortLife { ino: Ino(n), removal: SoleGroup::at(0, n), promised: 1 }
    }

    #[test]
    fn files_are_ended_behind_the_grace_they_were_staged_for() {
        let mut s = ShortLived::new(0);
        let due: Vec<u64> = (0..200).filter(|n| s.add(file(*n))).collect();
        assert_eq!(due, [127, 191]);
        let grace = s.stage().unwrap();
        assert!(!s.add(file(200)), "it waits for the next grace");
        assert!(s.take_due().is_empty(), "somebody may have found them by name");
        assert!(s.stage().is_none(), "others are staged");
        grace.store(true, Release);
        assert_eq!(s.take_due().len(), 200);
        assert!(s.take_due().is_empty());
        (0..300).for_each(|n| _ = s.add(file(n)));
        s.stage().unwrap().store(true, Release);
        assert_eq!((s.take_due().len(), s.take_due().len(), s.take_due().len()), (256, 45, 0));
    }

    /// A lane whose thread rests would keep them.
    #[test]
    fn the_reaper_gets_what_a_lane_leaves() {
        let mut s = ShortLived::new(0);
        s.add(file(1));
        assert!(s.give_up(true).is_empty(), "the lane has only begun");
        s.add(file(2));
        assert!(s.give_up(true).is_empty(), "the lane goes on");
        assert_eq!(s.give_up(true).iter().map(|f| f.ino.0).collect::<Vec<_>>(), [1, 2]);
        (0..200).for_each(|n| _ = s.add(file(n)));
        s.stage().unwrap();
        s.add(file(200));
        assert_eq!(s.give_up(false).len(), 201);
    }
}
