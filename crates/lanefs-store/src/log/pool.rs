//! The free segments of a device: those with old content, which the device may be told of, apart
//! from the others, so that neither is looked for.

use crate::log::geometry::SegId;
use std::collections::{HashSet, VecDeque};

/// See the head of the file.
#[derive(Default)]
pub(crate) struct Pool {
    /// Segments without content: never written, or discarded.
    clean: VecDeque<SegId>,
    /// Segments with old content, in the order in which they were freed.
    stale: VecDeque<SegId>,
}

impl Pool {
    pub fn len(&self) -> usize {
        self.clean.len() + self.stale.len()
    }

    /// Returns all of them.
    pub fn all(&self) -> impl Iterator<Item = SegId> + '_ {
        self.clean.iter().chain(&self.stale).copied()
    }

    /// Puts a segment in.
    pub fn put(&mut self, seg: SegId, is_stale: bool) {
        let queue = if is_stale { &mut self.stale } else { &mut self.clean };
        debug_assert!(queue.back() != Some(&seg), "segment {seg} is put in twice");
        queue.push_back(seg);
    }

    /// Takes one: that with old content which was freed last, if there is any. What lies below it,
    /// memory or blocks of a sparse image, is there already, and what was never written stays so:
    /// an image grows no larger than it has to.
    pub fn pop(&mut self) -> Option<SegId> {
        self.stale.pop_back().or_else(|| self.clean.pop_front())
    }

    /// Takes at most `most` of those with old content, the first ones, as long as they are `old`.
    /// Half of all that are free stays for others.
    pub fn take_stale(&mut self, most: usize, old: impl Fn(SegId) -> bool) -> Vec<SegId> {
        let most = most.min(self.len() / 2);
        let n = self.stale.iter().take(most).take_while(|s| old(**s)).count();
        debug_assert!(n <= most, "{n} of {most} segments");
        self.stale.drain(..n).collect()
    }

    /// Takes at most `most`, those with old content first, then the others up to one that is
    /// `done`. Half of all that are free stays for others.
    pub fn take_idle(&mut self, most: usize, done: &HashSet<SegId>) -> Vec<SegId> {
        let most = most.min(self.len() / 2);
        let stale = self.stale.len().min(most);
        let mut taken: Vec<SegId> = self.stale.drain(..stale).collect();
        let n = self.clean.iter().take(most - stale).take_while(|s| !done.contains(s)).count();
        taken.extend(self.clean.drain(..n));
        debug_assert!(taken.len() <= most, "{taken:?} of at most {most} segments");
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::Pool;

    /// A sparse image with little in it grew to its full size, segment after segment.
    #[test]
    fn what_was_freed_last_is_used_first_and_what_was_never_used_last() {
        let mut pool = Pool::default();
        (0..4).for_each(|seg| pool.put(seg, false));
        assert_eq!(pool.pop(), Some(0));
        assert_eq!(pool.pop(), Some(1));
        pool.put(1, true);
        pool.put(0, true);
        assert_eq!([pool.pop(), pool.pop(), pool.pop()], [Some(0), Some(1), Some(2)]);
        pool.put(2, true);
        pool.put(0, true);
        // The oldest is discarded, and then as good as new.
        assert_eq!(pool.take_stale(1, |_| true), [2]);
        pool.put(2, false);
        assert_eq!([pool.pop(), pool.pop(), pool.pop(), pool.pop()], [Some(0), Some(3), Some(2), None]);
    }
}
