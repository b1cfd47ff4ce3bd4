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

    /// Takes one, of those without content if there is any.
    pub fn pop(&mut self) -> Option<SegId> {
        self.clean.pop_front().or_else(|| self.stale.pop_front())
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
