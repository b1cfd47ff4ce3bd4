//! Errors of background writes, each reported once to every open handle.

use std::sync::atomic::{AtomicU32, Ordering};

const SEEN: u32 = 1 << 12;
const STEP: u32 = SEEN << 1;
const ERRNO: u32 = SEEN - 1;

const _: () = assert!(ERRNO & SEEN == 0 && STEP > SEEN | ERRNO, "errno, mark and count do not overlap");

/// The last error of writing a file back, with a count of errors, as in Linux's `errseq_t`: 12 bits
/// of errno, one bit "somebody has seen this", and a count above. The count moves only when the
/// last error has been seen, so a storm of errors nobody looks at costs one step.
///
/// Written by who fails to write the file back, and by the first handle that looks. AcqRel in
/// `record` is the partner of the Acquire loads of the handles.
#[derive(Debug, Default)]
pub struct ErrSeq(AtomicU32);

impl ErrSeq {
    /// Makes a sequence without an error.
    pub const fn new() -> ErrSeq {
        ErrSeq(AtomicU32::new(0))
    }

    /// Notes that writing back failed with `errno`.
    pub fn record(&self, errno: i32) {
        debug_assert!(errno != 0 && errno.unsigned_abs() <= ERRNO, "{errno} is no errno");
        let errno = (errno.unsigned_abs() & ERRNO).max(1);
        // AcqRel: whoever sees the error sees what led to it.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |old| {
            let count = old & !(ERRNO | SEEN);
            Some(if old & SEEN != 0 { count.wrapping_add(STEP) | errno } else { count | errno })
        });
    }

    /// Returns where a new handle starts. An error nobody has seen yet is still reported to it.
    pub fn sample(&self) -> u32 {
        let now = self.0.load(Ordering::Acquire); // Acquire: pairs with record()
        if now & SEEN == 0 { 0 } else { now }
    }

    /// Returns the error recorded since `since`, if any; moves `since` on, so that each handle
    /// hears of it once.
    pub fn check_and_advance(&self, since: &mut u32) -> Option<i32> {
        let now = self.0.load(Ordering::Acquire); // Acquire: pairs with record()
        if now == *since {
            return None;
        }
        let seen = if now & SEEN == 0 { self.0.fetch_or(SEEN, Ordering::AcqRel) | SEEN } else { now };
        if seen == *since || seen & ERRNO == 0 {
            *since = seen;
            return None;
        }
        debug_assert_ne!(seen & SEEN, 0, "a handle that hears of it marks it");
        *since = seen;
        Some((seen & ERRNO) as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_handle_hears_once() {
        let e = ErrSeq::new();
        let (mut a, mut b) = (e.sample(), e.sample());
        assert_eq!(e.check_and_advance(&mut a), None);
        e.record(libc::EIO);
        assert_eq!(e.check_and_advance(&mut a), Some(libc::EIO));
        assert_eq!(e.check_and_advance(&mut a), None);
        assert_eq!(e.check_and_advance(&mut b), Some(libc::EIO));
        let mut late = e.sample();
        assert_eq!(
            e.check_and_advance(&mut late),
            None,
            "an error already reported is not reported to a new handle"
        );
        e.record(libc::EIO);
        for h in [&mut a, &mut b, &mut late] {
            assert_eq!(e.check_and_advance(h), Some(libc::EIO), "the same errno again is a new error");
            assert_eq!(e.check_and_advance(h), None);
        }
    }

    #[test]
    fn an_unseen_error_is_reported_to_a_new_handle() {
        let e = ErrSeq::new();
        e.record(libc::ENOSPC);
        let mut h = e.sample();
        assert_eq!(e.check_and_advance(&mut h), Some(libc::ENOSPC));
    }
}
