//! The free segments of a device: those with old content, which the device may be told of, apart
//! from the others, so that neither is looked for.
//!
//! Below those with old content lie blocks of the host, if the device is a sparse file. Some are
//! kept, and used only when nothing else is left, or when the host is short: see `reserve`.

use crate::log::geometry::SegId;
use std::collections::{HashSet, VecDeque};
use std::ops::Range;

/// See the head of the file.
#[derive(Default)]
pub(crate) struct Pool {
    /// Segments without content: never written, or discarded. Those that were free when the volume
    /// was opened come first, and may have old content of an earlier mount. Those that follow each
    /// other are one run, so that what was never used takes no more memory the more it is.
    clean: VecDeque<Range<SegId>>,
    /// The number of segments in these runs.
    clean_len: usize,
    /// The number of those that were free then and are in the pool still.
    unknown: usize,
    /// Segments with old content, or with none and backed, in the order in which they were freed.
    stale: VecDeque<SegId>,
    /// So many of these are kept.
    kept: usize,
    /// The host is short: what was kept is used first.
    short: bool,
    /// Segments from here on are withdrawn: they are put aside, and nobody takes one.
    withdrawn: Option<SegId>,
    aside: Vec<Range<SegId>>,
}

impl Pool {
    pub fn len(&self) -> usize {
        self.clean_len + self.stale.len()
    }

    /// Returns all of them, in runs.
    pub fn runs(&self) -> impl Iterator<Item = Range<SegId>> + '_ {
        self.clean.iter().cloned().chain(self.stale.iter().map(|seg| *seg..*seg + 1))
    }

    /// Puts a segment in. False if it is withdrawn: then it is aside.
    pub fn put(&mut self, seg: SegId, is_stale: bool) -> bool {
        if self.withdrawn.is_some_and(|from| seg >= from) {
            self.put_aside(seg..seg + 1);
            return false;
        }
        if !is_stale {
            self.put_unused(seg..seg + 1);
            return true;
        }
        debug_assert!(self.stale.back() != Some(&seg), "segment {seg} is put in twice");
        self.stale.push_back(seg);
        true
    }

    fn put_aside(&mut self, run: Range<SegId>) {
        debug_assert!(self.aside.iter().all(|a| !a.contains(&run.start)), "{run:?} is put aside twice");
        match self.aside.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => self.aside.push(run),
        }
    }

    /// Puts aside all segments from `from` on, those that are here now and those that come. Returns
    /// how many are here.
    pub fn withdraw(&mut self, from: SegId) -> usize {
        debug_assert!(self.withdrawn.is_none_or(|before| from <= before), "none comes back like that");
        let before = self.len();
        self.withdrawn = Some(from);
        let (runs, mut unknown) = (std::mem::take(&mut self.clean), self.unknown);
        (self.clean_len, self.unknown) = (0, 0);
        for run in runs {
            let stay = run.start..run.end.min(from).max(run.start);
            let go = stay.end..run.end;
            // Those of which it is not known what they hold come first.
            self.unknown += unknown.min(stay.len());
            unknown = unknown.saturating_sub(run.len());
            if !stay.is_empty() {
                self.put_unused(stay);
            }
            if !go.is_empty() {
                self.put_aside(go);
            }
        }
        for seg in std::mem::take(&mut self.stale) {
            self.put(seg, true);
        }
        debug_assert!(self.unknown <= self.clean_len, "{} of {}", self.unknown, self.clean_len);
        before - self.len()
    }

    /// Returns how many segments are aside.
    pub fn aside(&self) -> usize {
        debug_assert!(self.aside.iter().all(|run| !run.is_empty()), "a run of no segments");
        self.aside.iter().map(|run| run.len()).sum()
    }

    /// Has all be as before they were withdrawn. Returns how many came back.
    pub fn put_back_withdrawn(&mut self, is_stale: impl Fn(SegId) -> bool) -> usize {
        let back = self.aside();
        debug_assert!(back == 0 || self.withdrawn.is_some(), "{back} are aside, and none is withdrawn");
        self.withdrawn = None;
        for seg in std::mem::take(&mut self.aside).into_iter().flatten() {
            self.put(seg, is_stale(seg));
        }
        back
    }

    /// Forgets those that are withdrawn: they are gone.
    pub fn forget_withdrawn(&mut self) {
        self.withdrawn = None;
        self.aside = Vec::new();
    }

    /// Puts segments without content in.
    pub fn put_unused(&mut self, run: Range<SegId>) {
        debug_assert!(!run.is_empty(), "no segment is put in");
        self.clean_len += run.len();
        match self.clean.back_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            last => {
                debug_assert!(last.is_none_or(|l| !l.contains(&run.start)), "{run:?} is put in twice");
                self.clean.push_back(run);
            }
        }
    }

    /// Takes one: that with old content which was freed last, if there is any. What lies below it,
    /// memory or blocks of a sparse image, is there already, and what was never written stays so:
    /// an image grows no larger than it has to.
    pub fn pop(&mut self) -> Option<SegId> {
        match self.short || self.stale.len() > self.kept {
            true => self.stale.pop_back().or_else(|| self.pop_clean()),
            false => self.pop_clean().or_else(|| self.stale.pop_back()),
        }
    }

    /// Takes the first one without content.
    fn pop_clean(&mut self) -> Option<SegId> {
        debug_assert!(self.unknown <= self.clean_len, "{} of {} segments", self.unknown, self.clean_len);
        let first = self.clean.front_mut()?;
        let seg = first.next();
        debug_assert!(seg.is_some(), "a run of no segments");
        if first.start >= first.end {
            self.clean.pop_front();
        }
        let taken = usize::from(seg.is_some());
        self.clean_len -= taken;
        self.unknown = self.unknown.saturating_sub(taken);
        seg
    }

    /// Takes the first so many of those without content.
    fn take_clean(&mut self, n: usize) -> impl Iterator<Item = SegId> + '_ {
        debug_assert!(n <= self.clean_len, "{n} of {} segments", self.clean_len);
        (0..n).map_while(|_| self.pop_clean())
    }

    /// Notes that what is here now was free when the volume was opened, and that so many segments
    /// with blocks of the host below them are to be kept from now on.
    pub fn opened(&mut self, kept: usize) {
        debug_assert!(!self.short, "no host is short while the volume is being opened");
        (self.unknown, self.kept) = (self.clean_len, kept);
    }

    /// Does so for a device that was added to a volume that is open.
    pub fn joined(&mut self, kept: usize, short: bool) {
        debug_assert_eq!(self.stale.len(), 0, "something was freed before it was there");
        self.unknown = self.clean_len;
        (self.kept, self.short) = (kept, short);
    }

    /// Notes that the segments lie on another device now, which may have old content of any of
    /// them and may have none, and how many are to be kept from now on.
    pub fn moved(&mut self, kept: usize) {
        std::mem::take(&mut self.stale).into_iter().for_each(|seg| self.put_unused(seg..seg + 1));
        (self.unknown, self.kept) = (self.clean_len, kept);
        debug_assert_eq!(self.len(), self.clean_len, "all of them are alike");
    }

    /// Has what is kept be used first, or kept.
    pub fn set_short(&mut self, short: bool) {
        self.short = short;
    }

    /// Returns how many backed segments are missing of those that are to be kept.
    pub fn missing(&self) -> usize {
        self.kept.saturating_sub(self.stale.len())
    }

    /// Returns how many have blocks of the host below them, as far as is known, and how many of
    /// these are to be kept.
    pub fn backed(&self) -> (usize, usize) {
        debug_assert!(self.stale.len() <= self.len(), "more have old content than are free");
        (self.stale.len(), self.kept)
    }

    /// Takes one without content, to be backed.
    pub fn take_to_back(&mut self) -> Option<SegId> {
        self.pop_clean()
    }

    /// Takes what is to be discarded for the host's sake: the one with old content that was freed
    /// first, or else at most `most` of which it is not known whether they have any.
    pub fn take_for_host(&mut self, most: usize) -> Vec<SegId> {
        debug_assert!(most > 0, "nothing is wanted");
        match self.stale.pop_front() {
            Some(seg) => vec![seg],
            None => {
                let n = self.unknown.min(most);
                self.take_clean(n).collect()
            }
        }
    }

    /// Takes at most `most` of those with old content, the first ones, as long as they are `old`.
    /// Half of all that are free stays for others, and what is kept.
    pub fn take_stale(&mut self, most: usize, old: impl Fn(SegId) -> bool) -> Vec<SegId> {
        let most = most.min(self.len() / 2).min(self.stale.len().saturating_sub(self.kept));
        let n = self.stale.iter().take(most).take_while(|s| old(**s)).count();
        debug_assert!(n <= most, "{n} of {most} segments");
        self.stale.drain(..n).collect()
    }

    /// Takes at most `most`, those with old content first, then the others up to one that is
    /// `done`. Half of all that are free stays for others, and what is kept.
    pub fn take_idle(&mut self, most: usize, done: &HashSet<SegId>) -> Vec<SegId> {
        let most = most.min(self.len() / 2);
        let stale = self.stale.len().saturating_sub(self.kept).min(most);
        let mut taken: Vec<SegId> = self.stale.drain(..stale).collect();
        let clean = self.clean.iter().cloned().flatten();
        let n = clean.take(most - stale).take_while(|s| !done.contains(s)).count();
        taken.extend(self.take_clean(n));
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
        (0..4).for_each(|seg| assert!(pool.put(seg, false)));
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

    /// A pool of what was never used is as large as one segment, and stays so while it is used up.
    #[test]
    fn what_follows_each_other_is_one_run() {
        let mut pool = Pool::default();
        pool.put_unused(1..1_000_000);
        pool.put_unused(1_000_000..2_000_000);
        pool.opened(0);
        assert_eq!((pool.len(), pool.runs().next()), (1_999_999, Some(1..2_000_000)));
        assert_eq!(pool.runs().count(), 1);
        let taken = pool.take_idle(3, &[].into());
        assert_eq!((pool.pop(), &taken[..]), (Some(4), &[1, 2, 3][..]));
        taken.into_iter().for_each(|seg| assert!(pool.put(seg, false)));
        pool.put(4, true);
        assert_eq!(pool.runs().collect::<Vec<_>>(), [5..2_000_000, 1..4, 4..5]);
        assert_eq!((pool.len(), pool.take_for_host(1)), (1_999_999, vec![4]));
        assert_eq!(pool.take_for_host(2), [5, 6]);
    }

    /// What a full host is to be outlived with was used up like any other segment.
    #[test]
    fn what_is_kept_is_used_last_unless_the_host_is_short() {
        let mut pool = Pool::default();
        (0..6).for_each(|seg| assert!(pool.put(seg, false)));
        pool.opened(2);
        for _ in 0..2 {
            let seg = pool.take_to_back().unwrap();
            pool.put(seg, true);
        }
        assert_eq!((pool.missing(), pool.pop()), (0, Some(2)));
        assert!(pool.take_stale(9, |_| true).is_empty());
        assert_eq!(pool.take_idle(9, &[].into()), [3, 4]);
        [3, 4].into_iter().for_each(|seg| assert!(pool.put(seg, false)));
        pool.put(2, true);
        assert_eq!((pool.pop(), pool.pop()), (Some(2), Some(5)));
        pool.set_short(true);
        assert_eq!((pool.pop(), pool.missing()), (Some(1), 1));
        assert_eq!((pool.take_for_host(9), pool.missing()), (vec![0], 2));
        // What is left was discarded since the volume was opened.
        assert!(pool.take_for_host(9).is_empty());
        assert_eq!([pool.pop(), pool.pop(), pool.pop()], [Some(3), Some(4), None]);
    }

    #[test]
    fn what_is_withdrawn_is_put_aside_and_comes_back() {
        let mut pool = Pool::default();
        pool.put_unused(2..8);
        pool.opened(0);
        pool.put(9, true);
        pool.put(1, true);
        assert_eq!((pool.withdraw(6), pool.len(), pool.aside()), (3, 5, 3));
        assert_eq!((pool.withdraw(4), pool.len(), pool.aside()), (2, 3, 5));
        assert!(!pool.put(8, true) && !pool.put(10, false) && pool.put(0, true));
        assert_eq!([pool.pop(), pool.pop(), pool.pop()], [Some(0), Some(1), Some(2)]);
        assert_eq!((pool.take_for_host(9), pool.pop()), (vec![3], None));
        assert_eq!((pool.put_back_withdrawn(|seg| seg >= 8), pool.len(), pool.aside()), (7, 7, 0));
        assert_eq!((pool.pop(), pool.withdraw(5)), (Some(10), 5));
        pool.forget_withdrawn();
        assert_eq!((pool.pop(), pool.pop()), (Some(4), None));
    }

    #[test]
    fn what_an_earlier_mount_left_is_given_back_once() {
        let mut pool = Pool::default();
        (0..5).for_each(|seg| assert!(pool.put(seg, false)));
        pool.opened(1);
        assert_eq!(pool.pop(), Some(0));
        let taken = pool.take_for_host(3);
        assert_eq!(taken, [1, 2, 3]);
        taken.into_iter().for_each(|seg| assert!(pool.put(seg, false)));
        assert_eq!(pool.take_for_host(3), [4]);
        pool.put(4, false);
        assert!(pool.take_for_host(3).is_empty());
    }
}
