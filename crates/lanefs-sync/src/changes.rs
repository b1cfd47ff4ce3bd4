//! Counters that tell whether any of some things has changed since.
//!
//! A thing is known by a number; things share a counter by that. Whoever changes one calls
//! [`Changes::begin`] before its first step, and drops what that returned behind the last one.
//! Whoever remembers what several things were asks for their [`Changes::sum`] first, then looks at
//! them, and keeps both: what it saw is so still while the sum is what it was.
//!
//! 1. A counter has two words: how many changes began, and how many ended. Each only grows, and
//!    none ends before it has begun. So if the second one is read first, and the first one is the
//!    same, no change was under way when the second one was read.
//! 2. While a change is under way there is no sum. Else it is that of the changes which began: as
//!    each of them only grows, it is the same only if all are.
//! 3. Who looks behind a sum sees what changes had done that had ended before it (Release when one
//!    ends, Acquire in the sum). A change that began later makes the next sum another one, or none,
//!    for whoever has seen anything of it (it begins before its first step, which others read with
//!    Acquire).
//! 4. So where a later sum is the same, there was a moment, that at which its first counter was
//!    read, at which all was as it had been seen: each of the other counters was the same still
//!    when it was read, later than that.

use crate::primitive::{AtomicU64, CachePadded, Ordering};
use crate::schedule::step;

/// The number of counters: a set of things shares few of them by chance, and the lines of all fit
/// into a processor's first cache.
const COUNTERS: usize = 128;

const _: () = assert!(COUNTERS.is_power_of_two() && COUNTERS <= u8::MAX as usize + 1);

/// The counter of a thing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CounterOf(u8);

impl CounterOf {
    /// Returns the counter of the thing with this number. Numbers that follow each other have
    /// different ones, and so have the first ones of different runs of 128.
    #[inline]
    pub fn thing(number: u64) -> CounterOf {
        CounterOf((number.wrapping_add(number >> 7) % COUNTERS as u64) as u8)
    }

    /// Returns it as a byte, to be kept.
    #[inline]
    pub fn byte(self) -> u8 {
        debug_assert!(usize::from(self.0) < COUNTERS, "there is no counter {}", self.0);
        self.0
    }

    /// Returns the counter that this byte stands for: any does for one.
    #[inline]
    pub fn of_byte(byte: u8) -> CounterOf {
        CounterOf(byte % COUNTERS as u8)
    }
}

#[derive(Debug, Default)]
struct Counter {
    /// Changes that began. RMW by who begins one: Release, so that it is seen before what is
    /// changed; read with Acquire behind `ended`.
    begun: AtomicU64,
    /// Those that ended. RMW by who ends one: Release, the partner of the Acquire in `sum`.
    ended: AtomicU64,
}

/// Counters of changes, each on a line of its own. See the essay at the head of the file.
#[derive(Debug)]
pub struct Changes {
    counters: Box<[CachePadded<Counter>]>,
}

impl Default for Changes {
    fn default() -> Self {
        Self::new()
    }
}

impl Changes {
    /// Makes counters of things that were never changed.
    pub fn new() -> Changes {
        Changes { counters: (0..COUNTERS).map(|_| CachePadded::default()).collect() }
    }

    #[inline]
    fn counter(&self, of: CounterOf) -> &Counter {
        &self.counters[usize::from(of.byte())]
    }

    /// Notes that a thing is about to be changed. It is, until what this returns is dropped.
    #[must_use = "the change ends when this is dropped"]
    pub fn begin(&self, thing: u64) -> Change<'_> {
        let counter = self.counter(CounterOf::thing(thing));
        step();
        // AcqRel: a Release, for who sees what is changed behind it sees this (3); an Acquire, so
        // that nothing of the change comes before it.
        counter.begun.fetch_add(1, Ordering::AcqRel);
        step();
        Change { counter }
    }

    /// Returns the sum over these counters; `None` while one of the things is changed.
    #[inline]
    pub fn sum(&self, of: impl Iterator<Item = CounterOf>) -> Option<u64> {
        let mut sum = 0u64;
        for of in of {
            let counter = self.counter(of);
            // Acquire, both: what follows is read behind them (1, 3).
            let ended = counter.ended.load(Ordering::Acquire);
            step();
            let begun = counter.begun.load(Ordering::Acquire);
            debug_assert!(begun >= ended, "{ended} changes ended, {begun} began");
            if begun != ended {
                return None;
            }
            sum = sum.wrapping_add(begun);
        }
        Some(sum)
    }
}

/// A change that is under way.
#[derive(Debug)]
pub struct Change<'c> {
    counter: &'c Counter,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        step();
        // Release: who reads it sees all that was changed (3).
        let before = self.counter.ended.fetch_add(1, Ordering::Release);
        debug_assert!(before < self.counter.begun.load(Ordering::Relaxed), "a change ended twice");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn sum(c: &Changes, things: &[u64]) -> Option<u64> {
        c.sum(things.iter().map(|t| CounterOf::thing(*t)))
    }

    #[test]
    fn a_sum_is_the_same_until_one_of_its_things_changes() {
        let c = Changes::new();
        let before = sum(&c, &[1, 2, 3]).unwrap();
        drop(c.begin(4));
        assert_eq!(sum(&c, &[1, 2, 3]), Some(before));
        let change = c.begin(2);
        assert_eq!((sum(&c, &[1, 2, 3]), sum(&c, &[1, 3])), (None, Some(0)));
        let another = c.begin(2);
        drop(change);
        assert_eq!(sum(&c, &[2]), None, "another change of it goes on");
        drop(another);
        assert_eq!(sum(&c, &[1, 2, 3]), Some(before + 2));
    }

    #[test]
    fn neighbours_and_first_ones_of_runs_have_counters_of_their_own() {
        let of = |n| CounterOf::thing(n).byte();
        assert!((0..127).all(|n| of(n) != of(n + 1)));
        assert!((0..127).all(|run| of(run * 128 + 1) != of((run + 1) * 128 + 1)));
        assert!((0..1000).all(|n| CounterOf::of_byte(of(n)) == CounterOf::thing(n)));
    }
}
