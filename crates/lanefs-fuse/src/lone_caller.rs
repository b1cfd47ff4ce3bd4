//! One thread that makes calls, one after the other: what most programs are to a mount.
//!
//! To wake another processor and to put it to sleep again takes longer than most requests, in a
//! virtual machine several times as long. A call of one thread pays that twice: for the server, and
//! for the caller. So while all requests come from one thread, one thread of the server reads, and
//! before it sleeps it looks for the next request for a moment: by then it mostly is there.
//!
//! L1 Requests are taken for one caller's if two threads of the server, one after the other, have
//!    seen [`RUN`] in a row of it. One request of another caller ends that before it is served.
//!    What the kernel sends by itself does not count.
//! L2 Only the one thread that reads looks ([`crate::reader_pool`]): two would take turns at waking
//!    for nothing, and with several callers those need the processors.
//! L3 Each time that nothing came in the time it is given, twice as many opportunities to look are
//!    passed over, up to [`PASSED_OVER`]; one hit ends that. A thread whose processor others take
//!    meanwhile passes over the most at once.
//! L4 A caller may have several requests under way (libaio, io_uring, read-ahead), which several
//!    threads serve faster than one. Then the next is there at the first look, time after time:
//!    [`AT_ONCE`] in a row end the rule of the one reader, for long.

use std::time::{Duration, Instant};

/// Requests in a row from one thread.
const RUN: u32 = 32;
/// Opportunities to look that are passed over at most.
const PASSED_OVER: u32 = 256;
/// Requests in a row that were there already, which means that several are under way. Of a caller
/// that waits for each that is one which nobody waited for (RELEASE), and the next.
const AT_ONCE: u32 = 8;
/// The time between two looks that means that others had the processor.
const AWAY: Duration = Duration::from_micros(100);

/// What a thread of the server knows of callers, and whether looking was worth it. It has this for
/// itself.
#[derive(Default, Debug)]
pub(crate) struct LoneCaller {
    /// The thread of the last request, as the kernel numbers it; 0: of none.
    last: u32,
    /// Requests of that thread in a row, since a run of it ended.
    run: u32,
    /// Opportunities that are passed over after the next miss.
    after_miss: u32,
    /// Opportunities still to be passed over.
    passed_over: u32,
    /// Requests in a row that were there at the first look.
    at_once: u32,
}

impl LoneCaller {
    /// Takes note of a request of thread `tid` (0: the kernel's own), and returns whether it ends a
    /// run (L1).
    pub(crate) fn comes(&mut self, tid: u32) -> bool {
        debug_assert!(self.run < RUN);
        if tid != 0 {
            self.run = if tid == self.last { self.run + 1 } else { 1 };
            self.last = tid;
        }
        debug_assert!(self.run <= RUN, "a run of {} was not said", self.run);
        let ends = self.run == RUN;
        if ends {
            self.run = 0;
        }
        ends
    }

    /// Returns whether this opportunity to look is taken; called once for each (L3).
    pub(crate) fn is_to_look(&mut self) -> bool {
        debug_assert!(self.passed_over <= PASSED_OVER, "it would never look again");
        let takes = self.passed_over == 0;
        self.passed_over = self.passed_over.saturating_sub(1);
        takes
    }

    /// Returns whether the caller seems to have several requests under way (L4), and forgets it.
    pub(crate) fn has_several_under_way(&mut self) -> bool {
        debug_assert!(self.at_once <= AT_ONCE, "asked after each request");
        let has = self.at_once == AT_ONCE;
        if has {
            self.at_once = 0;
        }
        has
    }

    /// Looks for a request for `long`, and returns whether there was one. `look` returns whether it
    /// found one.
    pub(crate) fn look<E>(
        &mut self,
        long: Duration,
        mut look: impl FnMut() -> Result<bool, E>,
    ) -> Result<bool, E> {
        debug_assert_eq!(self.passed_over, 0, "this opportunity is passed over");
        let begun = Instant::now();
        let mut before = begun;
        if look()? {
            self.after_miss = 0;
            self.at_once += 1;
            return Ok(true);
        }
        self.at_once = 0;
        loop {
            if look()? {
                self.after_miss = 0;
                return Ok(true);
            }
            let now = Instant::now();
            if now - before > AWAY {
                self.after_miss = PASSED_OVER;
            }
            if now - begun > long {
                break;
            }
            before = now;
            (0..20).for_each(|_| std::hint::spin_loop());
        }
        self.passed_over = self.after_miss;
        self.after_miss = (self.after_miss * 2).clamp(1, PASSED_OVER);
        debug_assert!(self.passed_over <= PASSED_OVER);
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_requests_of_one_thread_are_one_callers() {
        let mut l = LoneCaller::default();
        let mut run = |tid| (1..1000).find(|_| l.comes(0) || l.comes(tid));
        assert_eq!([run(7), run(7)], [Some(RUN); 2], "and again: who heard it may have had to wait");
        assert_eq!(run(8), Some(RUN));
        assert!((0..1000).all(|n| !l.comes(n % 2 + 1)), "several");
    }

    #[test]
    fn who_finds_nothing_looks_less_and_less_until_something_comes() {
        let mut l = LoneCaller::default();
        let mut looks = Vec::new();
        for n in 0..2000_u32 {
            if l.is_to_look() {
                looks.push(n);
                assert_eq!(l.look(Duration::ZERO, || Ok::<_, ()>(false)), Ok(false));
            }
        }
        let gaps: Vec<u32> = looks.windows(2).map(|w| w[1] - w[0]).collect();
        assert!(gaps.is_sorted() && gaps.last() == Some(&(PASSED_OVER + 1)), "{gaps:?}");
        while !l.is_to_look() {}
        assert_eq!(l.look(Duration::ZERO, || Ok::<_, ()>(true)), Ok(true));
        assert!(l.is_to_look() && l.is_to_look(), "it looks each time again");
        assert_eq!(l.look(Duration::ZERO, || Err(5)), Err(5));
    }

    #[test]
    fn a_caller_with_many_requests_under_way_is_told_from_one_that_waits() {
        let mut l = LoneCaller::default();
        let mut serve = |n: u32, waits_each: u32| {
            (0..n).any(|n| {
                let mut looks = 0;
                let found = l.look(Duration::from_secs(9), || {
                    looks += 1;
                    Ok::<_, ()>(looks > 1 || n % waits_each != 0)
                });
                assert_eq!(found, Ok(true));
                l.has_several_under_way()
            })
        };
        assert!(!serve(1000, 1) && !serve(1000, 4), "it waits for each, or for all but a few");
        assert!(serve(AT_ONCE + 1, u32::MAX), "it never waits");
        assert!(!serve(AT_ONCE - 1, u32::MAX), "it is said once");
    }
}
