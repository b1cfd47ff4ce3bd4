//! The pages of a file that are preallocated (`fallocate(2)`): space is kept for each of them,
//! whether it has a block yet or not.
//!
//! ```text
//! prealloc := (first:u64 end:u64)[2]    ranges of pages, ascending and apart; what is unused is zero, and last
//! ```
//!
//! 1. There are two ranges at most, so that they fit every inode block whatever else lies in it.
//!    Where more would be needed those two that lie closest become one, and space is kept for the
//!    pages between them too.
//! 2. A range that is cut in its middle where there are two already stays whole: its pages keep
//!    their space. No promise is ever broken for want of a place to write it down.

use crate::types::PAGES_END;
use std::ops::Range;

/// Bytes of an encoded [`Prealloc`].
pub const PREALLOC_LEN: usize = 32;

const RANGES: usize = 2;
const _: () = assert!(RANGES * 16 == PREALLOC_LEN);

/// The preallocated pages of a file: see the module's head.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Prealloc {
    /// First page and end; empty ones last.
    ranges: [(u64, u64); RANGES],
}

impl Prealloc {
    /// Checks, in debug builds, that ranges ascend, lie apart, and that unused ones are last.
    fn check_invariants(&self) {
        let [a, b] = self.ranges;
        let is_unused = |r: (u64, u64)| r == (0, 0);
        debug_assert!(is_unused(a) || a.0 < a.1, "an empty range: {self:?}");
        debug_assert!(is_unused(b) || b.0 < b.1, "an empty range: {self:?}");
        debug_assert!(is_unused(b) || a.1 < b.0, "ranges that touch, or are out of order: {self:?}");
        debug_assert!(!is_unused(a) || is_unused(b), "an unused range lies first: {self:?}");
    }

    /// No page.
    pub const NONE: Prealloc = Prealloc { ranges: [(0, 0); RANGES] };

    /// Returns whether no page is preallocated.
    pub fn is_empty(&self) -> bool {
        self.ranges[0].1 == 0
    }

    /// Returns the ranges, ascending.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        self.ranges.into_iter().filter(|r| r.1 > 0).map(|(a, b)| a..b)
    }

    /// Returns whether a page is preallocated.
    pub fn contains(&self, page: u64) -> bool {
        self.ranges.iter().any(|r| (r.0..r.1).contains(&page))
    }

    /// Returns how many pages are preallocated.
    pub fn pages(&self) -> u64 {
        self.pages_in(&(0..u64::MAX))
    }

    /// Returns how many of these pages are preallocated.
    pub fn pages_in(&self, pages: &Range<u64>) -> u64 {
        self.ranges_in(pages).map(|r| r.end - r.start).sum()
    }

    /// Returns the parts of these pages that are preallocated, ascending.
    pub fn ranges_in(&self, pages: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        let (start, end) = (pages.start, pages.end);
        self.ranges().map(move |r| r.start.max(start)..r.end.min(end)).filter(|r| !r.is_empty())
    }

    /// Returns the same with these pages, and with those between ranges that had to become one (1).
    #[must_use]
    pub fn with(&self, pages: Range<u64>) -> Prealloc {
        if pages.is_empty() {
            return *self;
        }
        let mut all: Vec<(u64, u64)> = self.ranges().map(|r| (r.start, r.end)).collect();
        all.push((pages.start, pages.end));
        all.sort_unstable();
        // Those that touch are one; then the closest, until they fit.
        let gap = |v: &[(u64, u64)], i: usize| v[i + 1].0.saturating_sub(v[i].1);
        while let Some(i) = (1..all.len()).map(|i| i - 1).min_by_key(|&i| gap(&all, i))
            && (all.len() > RANGES || gap(&all, i) == 0)
        {
            let next = all.remove(i + 1);
            all[i].1 = all[i].1.max(next.1);
        }
        let p = Prealloc::of(&all);
        debug_assert_eq!(p.pages_in(&pages), pages.end - pages.start, "a page asked for is left out");
        debug_assert!(p.pages() >= self.pages(), "pages were lost where some were added");
        p
    }

    /// Returns for how many other pages [`Prealloc::with`] keeps space too, because they lie
    /// between ranges that become one (1).
    pub fn between(&self, pages: &Range<u64>) -> u64 {
        let asked = pages.end.saturating_sub(pages.start) - self.pages_in(pages);
        self.with(pages.clone()).pages() - self.pages() - asked
    }

    /// Returns the same without these pages, but for a range that has to stay whole (2).
    #[must_use]
    pub fn without(&self, pages: &Range<u64>) -> Prealloc {
        // A truncation of a file comes by here: nothing is allocated.
        let (mut left, mut n) = ([(0, 0); RANGES * 2], 0);
        for r in self.ranges() {
            let before = (r.start, r.end.min(pages.start));
            let after = (r.start.max(pages.end), r.end);
            for part in [before, after] {
                if part.0 < part.1 {
                    left[n] = part;
                    n += 1;
                }
            }
        }
        debug_assert!(n <= RANGES + 1, "one range is cut in its middle at the most, not {n} parts left");
        let p = if pages.is_empty() || n > RANGES { *self } else { Prealloc::of(&left[..n]) };
        debug_assert!(p.pages() <= self.pages(), "pages came where some were taken away");
        p
    }

    fn of(ranges: &[(u64, u64)]) -> Prealloc {
        debug_assert!(ranges.len() <= RANGES, "{} ranges", ranges.len());
        let mut p = Prealloc::NONE;
        for (to, from) in p.ranges.iter_mut().zip(ranges) {
            *to = *from;
        }
        p.check_invariants();
        p
    }

    /// Returns the bytes of an inode block or of a record.
    pub fn encode(&self) -> [u8; PREALLOC_LEN] {
        let mut out = [0; PREALLOC_LEN];
        let words = self.ranges.iter().flat_map(|r| [r.0, r.1]);
        for (to, word) in out.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Decodes these bytes; `None` if they are no such ranges.
    pub fn decode(bytes: &[u8; PREALLOC_LEN]) -> Option<Prealloc> {
        let mut p = Prealloc::NONE;
        for (r, b) in p.ranges.iter_mut().zip(bytes.chunks_exact(16)) {
            let word = |at: usize| b[at..].first_chunk().map_or(0, |w| u64::from_le_bytes(*w));
            *r = (word(0), word(8));
        }
        let [a, b] = p.ranges;
        let used = |r: (u64, u64)| r.0 < r.1 && r.1 <= PAGES_END;
        let good = if b == (0, 0) { a == (0, 0) || used(a) } else { used(a) && used(b) && a.1 < b.0 };
        good.then_some(p).inspect(Prealloc::check_invariants)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn ranges(p: &Prealloc) -> Vec<(u64, u64)> {
        p.ranges().map(|r| (r.start, r.end)).collect()
    }

    #[test]
    fn what_lies_between_ranges_that_become_one_is_counted() {
        let two = Prealloc::NONE.with(10..20).with(100..110);
        for (pages, between) in
            [(0..5, 5), (20..30, 0), (10..105, 0), (0..0, 0), (1000..1001, 80), (60..70, 30)]
        {
            assert_eq!(two.between(&pages), between, "{pages:?}");
        }
        assert_eq!(Prealloc::NONE.with(10..20).between(&(1 << 40..1 << 41)), 0);
    }

    #[test]
    fn ranges_join_and_part() {
        let p = Prealloc::NONE.with(10..20);
        assert_eq!(ranges(&p.with(20..30)), [(10, 30)]);
        assert_eq!(ranges(&p.with(40..50).with(22..24)), [(10, 24), (40, 50)]);
        assert_eq!(ranges(&p.with(40..50).with(15..45)), [(10, 50)]);
        assert_eq!(ranges(&p.without(&(12..14))), [(10, 12), (14, 20)]);
        assert!(p.without(&(0..u64::MAX)).is_empty() && p.with(5..5) == p);
        // A third cut leaves the range that it is in whole.
        let parts = p.without(&(12..14));
        assert_eq!(parts.without(&(16..17)), parts);
        assert_eq!(ranges(&parts.without(&(10..11))), [(11, 12), (14, 20)]);
        assert_eq!((parts.pages(), parts.pages_in(&(11..15)), parts.contains(12)), (8, 2, false));
    }

    proptest! {
        #[test]
        fn every_page_asked_for_is_kept_and_none_that_was_given_up_comes_back(
            ops in prop::collection::vec((any::<bool>(), 0..60u64, 0..20u64), 1..40)
        ) {
            let mut p = Prealloc::NONE;
            let mut asked: BTreeSet<u64> = BTreeSet::new();
            for (add, at, len) in ops {
                let pages = at..at + len;
                p = if add { p.with(pages.clone()) } else { p.without(&pages) };
                if add {
                    asked.extend(pages);
                } else {
                    asked.retain(|a| !pages.contains(a));
                }
                prop_assert!(asked.iter().all(|a| p.contains(*a)));
                prop_assert_eq!(p.pages(), (0..100).filter(|a| p.contains(*a)).count() as u64);
                prop_assert_eq!(Prealloc::decode(&p.encode()), Some(p));
            }
        }

        #[test]
        fn bytes_that_say_what_cannot_be_are_refused(words in prop::array::uniform4(prop_oneof![0..9u64, any::<u64>()])) {
            let mut bytes = [0; PREALLOC_LEN];
            for (to, w) in bytes.chunks_exact_mut(8).zip(words) {
                to.copy_from_slice(&w.to_le_bytes());
            }
            if let Some(p) = Prealloc::decode(&bytes) {
                prop_assert_eq!(p.encode(), bytes);
                prop_assert!(p.pages() <= PAGES_END);
            }
        }
    }
}
