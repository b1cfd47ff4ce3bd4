//! The frames that are free and in no lane's cache.
//!
//! They are kept by *groups*: the 64 frames of one piece of 256 KiB, a bit each, as many as a leaf
//! of a file's tree has slots. Who needs many frames gets them side by side, so that what is
//! written and read at once lies in memory as it does in the file, and one copy moves it; who
//! needs few gets them from groups that are broken already. A group is whole again when its last
//! frame comes back.
//!
//! 1. A bit is set exactly while its frame is in the stock; `count` is the number of set bits.
//! 2. A group of which all bits are set is in `whole`, one of which some are in `broken`. Either
//!    list may also have groups for which that is over: they are dropped when their turn comes. No
//!    group is twice in one list.
//! 3. Groups from `fresh` on were never given out. Their bits are not set.
//! 4. The bits of the group from which single frames are taken, `open`, are apart, beside the
//!    counts: who takes or gives a few frames mostly writes one line.

use super::FrameNo;

/// Frames of a group.
pub(super) const GROUP: usize = 64;
/// So many broken groups are searched for frames side by side.
const LOOKED_AT: usize = 4;

const _: () = assert!(GROUP == u64::BITS as usize, "a bit for each frame");

/// Groups, each at most once.
#[derive(Default)]
struct Groups {
    list: Vec<u32>,
    listed: Vec<bool>,
}

impl Groups {
    fn push(&mut self, group: usize) {
        if group >= self.listed.len() {
            self.listed.resize(group + 1, false);
        }
        if !std::mem::replace(&mut self.listed[group], true) {
            self.list.push(group as u32);
        }
        debug_assert!(self.list.len() <= self.listed.len(), "a group is listed twice (2)");
    }

    fn pop(&mut self) -> Option<usize> {
        let group = self.list.pop()? as usize;
        debug_assert!(self.listed[group], "group {group} was listed twice (2)");
        self.listed[group] = false;
        Some(group)
    }
}

/// See the head of the file.
#[repr(C)]
pub(super) struct Stock {
    count: usize,
    fresh: usize,
    frames: usize,
    open: usize,
    open_bits: u64,
    free: Vec<u64>,
    whole: Groups,
    broken: Groups,
}

/// Returns where so many bits of a word are set side by side, if they are anywhere.
fn side_by_side(word: u64, want: usize) -> Option<u32> {
    debug_assert!((1..=GROUP).contains(&want), "{want} frames of one group");
    let (mut starts, mut have) = (word, 1);
    while have < want {
        let step = have.min(want - have);
        starts &= starts >> step;
        have += step;
    }
    (starts != 0).then(|| starts.trailing_zeros())
}

/// Returns a word with so many bits set.
fn ones(n: usize) -> u64 {
    debug_assert!(n <= GROUP, "{n} bits of a word");
    if n == GROUP { u64::MAX } else { (1 << n) - 1 }
}

impl Stock {
    /// Returns the stock of a pool of `frames` frames, all fresh.
    pub(super) fn new(frames: usize) -> Stock {
        let (whole, broken) = (Groups::default(), Groups::default());
        // No group is open.
        Stock { count: 0, fresh: 0, frames, open: usize::MAX, open_bits: 0, free: Vec::new(), whole, broken }
    }

    /// Returns the number of frames that were ever given out, or might have been.
    pub(super) fn used(&self) -> usize {
        self.fresh
    }

    /// Returns the number of frames in the stock and of those that are fresh.
    pub(super) fn free(&self) -> usize {
        self.count + self.frames - self.fresh
    }

    /// Checks, in debug builds, what the numbers say of each other.
    fn check_invariants(&self) {
        debug_assert!(self.fresh <= self.frames, "{} of {} given out", self.fresh, self.frames);
        debug_assert!(self.count <= self.fresh, "a frame is free twice (1)");
        debug_assert_eq!(self.free.len(), self.fresh.div_ceil(GROUP), "a word for each group (3)");
        debug_assert!(self.free.get(self.open).is_none_or(|bits| *bits == 0), "its bits are apart (4)");
    }

    /// Puts a frame into the stock.
    pub(super) fn put(&mut self, frame: FrameNo) {
        let (group, bit) = (frame as usize / GROUP, 1 << (frame as usize % GROUP));
        debug_assert!((frame as usize) < self.fresh, "frame {frame} was never given out");
        self.count += 1;
        if group == self.open {
            debug_assert!(self.open_bits & bit == 0, "frame {frame} is free twice (1)");
            self.open_bits |= bit;
            return;
        }
        debug_assert!(self.free[group] & bit == 0, "frame {frame} is free twice (1)");
        self.free[group] |= bit;
        self.list(group);
    }

    /// Puts a group into the list in which it has to be.
    #[inline]
    fn list(&mut self, group: usize) {
        match self.free[group] {
            u64::MAX => self.whole.push(group),
            0 => {}
            _ => self.broken.push(group),
        }
        self.check_invariants();
    }

    /// Adds the next fresh group; false if there is none.
    fn add_fresh(&mut self) -> bool {
        let n = GROUP.min(self.frames - self.fresh);
        if n == 0 {
            return false;
        }
        let group = self.fresh / GROUP;
        self.free.push(ones(n));
        self.fresh += n;
        self.count += n;
        self.list(group);
        true
    }

    /// Takes frames of a group, which are free.
    fn take(&mut self, group: usize, bits: u64) {
        debug_assert!(bits != 0 && self.free[group] & bits == bits, "frames that are not free (1)");
        debug_assert_ne!(group, self.open, "its bits are apart (4)");
        self.free[group] &= !bits;
        self.count -= bits.count_ones() as usize;
        self.list(group);
    }

    /// Takes up to `want` frames that lie side by side; returns the first and how many. `None` if
    /// no group has as many, though there may be single ones.
    pub(super) fn take_run(&mut self, want: usize) -> Option<(FrameNo, usize)> {
        let want = want.min(GROUP);
        let broken = self.broken.list.iter().rev().take(LOOKED_AT);
        let found = broken
            .map(|g| *g as usize)
            .filter(|g| self.free[*g] != u64::MAX)
            .find_map(|g| Some((g, side_by_side(self.free[g], want)?)));
        if let Some((group, at)) = found {
            self.take(group, ones(want) << at);
            return Some(((group * GROUP) as FrameNo + at, want));
        }
        if let Some(group) = self.next_whole() {
            self.take(group, ones(want));
            return Some(((group * GROUP) as FrameNo, want));
        }
        // What was used before need not be cleared by the system.
        if self.count >= want || !self.add_fresh() {
            return None;
        }
        let group = self.next_whole()?;
        self.take(group, ones(want));
        Some(((group * GROUP) as FrameNo, want))
    }

    /// Takes the next broken group off its list.
    fn next_broken(&mut self) -> Option<usize> {
        loop {
            let group = self.broken.pop()?;
            if !matches!(self.free[group], 0 | u64::MAX) {
                return Some(group);
            }
        }
    }

    /// Takes the next whole group off its list.
    fn next_whole(&mut self) -> Option<usize> {
        loop {
            let group = self.whole.pop()?;
            if self.free[group] == u64::MAX {
                return Some(group);
            }
        }
    }

    /// Takes up to `want` frames as they come, lowest first within a group.
    pub(super) fn take_some(&mut self, want: usize, mut out: impl FnMut(FrameNo)) {
        let mut left = want;
        while left > 0 {
            if self.open_bits == 0 && !self.open_next() {
                break;
            }
            let first = (self.open * GROUP) as FrameNo;
            let n = left.min(self.open_bits.count_ones() as usize);
            for _ in 0..n {
                out(first + self.open_bits.trailing_zeros());
                self.open_bits &= self.open_bits - 1;
            }
            self.count -= n;
            left -= n;
        }
        self.check_invariants();
    }

    /// Opens another group for single frames, the old one having none left; false if there is
    /// none.
    #[cold]
    fn open_next(&mut self) -> bool {
        debug_assert_eq!(self.open_bits, 0, "frames of group {} are left", self.open);
        loop {
            if let Some(group) = self.next_broken().or_else(|| self.next_whole()) {
                self.open = group;
                self.open_bits = std::mem::take(&mut self.free[group]);
                return true;
            }
            if !self.add_fresh() {
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanefs_sync::random::Rng;
    use std::collections::HashSet;

    #[test]
    fn bits_side_by_side_are_found() {
        assert_eq!(side_by_side(u64::MAX, 64), Some(0));
        assert_eq!(side_by_side(u64::MAX - 1, 64), None);
        assert_eq!(side_by_side(u64::MAX - 1, 63), Some(1));
        assert_eq!(side_by_side(0b0111_0110, 3), Some(4));
        assert_eq!(side_by_side(0b0111_0110, 4), None);
        assert_eq!(side_by_side(0, 1), None);
    }

    #[test]
    fn what_is_whole_is_not_broken_for_single_frames() {
        let mut s = Stock::new(4 * GROUP);
        let (a, n) = s.take_run(GROUP).unwrap();
        let (b, m) = s.take_run(GROUP).unwrap();
        assert_eq!((n, m, s.free()), (GROUP, GROUP, 2 * GROUP));
        (0..GROUP as u32).for_each(|i| s.put(b + i));
        s.put(a + 3);
        s.put(a + 5);
        let mut few = Vec::new();
        s.take_some(1, |f| few.push(f));
        assert!(few[0] >= b || few[0] == a + 3 || few[0] == a + 5);
        // Sixty-four side by side are there still, of one group or of another.
        assert_eq!(s.take_run(GROUP).map(|r| r.1), Some(GROUP));
    }

    /// Takes and puts at random: no frame is given out twice, and none is lost.
    #[test]
    fn each_frame_is_free_or_taken() {
        for frames in [1usize, 63, 64, 200, 1000] {
            let mut rng = Rng::new(frames as u64);
            let mut s = Stock::new(frames);
            let mut taken: Vec<FrameNo> = Vec::new();
            for _ in 0..3000 {
                match rng.below(3) {
                    0 => {
                        let want = 1 + rng.below(64) as usize;
                        if let Some((first, n)) = s.take_run(want) {
                            assert!(n <= want && first as usize / GROUP == (first as usize + n - 1) / GROUP);
                            taken.extend(first..first + n as u32);
                        }
                    }
                    1 => s.take_some(1 + rng.below(40) as usize, |f| taken.push(f)),
                    _ => {
                        for _ in 0..rng.below(100) {
                            if taken.is_empty() {
                                break;
                            }
                            let at = rng.below(taken.len() as u64) as usize;
                            s.put(taken.swap_remove(at));
                        }
                    }
                }
                let apart: HashSet<FrameNo> = taken.iter().copied().collect();
                assert_eq!(apart.len(), taken.len(), "a frame was given out twice");
                assert_eq!(s.free() + taken.len(), frames, "a frame was lost");
                assert!(s.broken.list.len() <= frames.div_ceil(GROUP) && s.whole.list.len() <= frames);
            }
            s.take_some(frames, |f| taken.push(f));
            assert_eq!((taken.len(), s.free()), (frames, 0));
        }
    }
}
