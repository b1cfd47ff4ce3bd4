//! Times as one number: nanoseconds since 1970 from 1714 to 2225, seconds beyond.
//!
//! 64 bits of nanoseconds end in 2262, and in 1677 on the other side; programs set times far from
//! there (`touch -d`, archives), and the kernel of a mount shows what they set until it forgets the
//! inode. So the last 36 years on both sides are given up to seconds, of which there are more than
//! anybody can ask for:
//!
//! | number | time |
//! | --- | --- |
//! | from -[`EDGE`] to below [`EDGE`] | so many nanoseconds after 1970 |
//! | [`EDGE`] + n | [`EDGE`] / 10^9 + n seconds after 1970 |
//! | -[`EDGE`] - n, n > 0 | [`EDGE`] / 10^9 + n seconds before 1970 |
//!
//! Later times have greater numbers, so whoever only compares need not know.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const NS: i64 = 1_000_000_000;
/// Seconds after 1970 at which whole seconds begin: in September 2225.
const EDGE_SECONDS: i64 = 8_070_000_000;
/// The first number that counts seconds.
pub const EDGE: i64 = EDGE_SECONDS * NS;

/// Returns the number of a time: seconds since 1970, which may be before it, and nanoseconds, which
/// count forward. A time that has no number becomes the nearest that has one.
pub fn number(seconds: i64, nanos: u32) -> i64 {
    let nanos = i64::from(nanos.min(999_999_999));
    let n = if seconds >= EDGE_SECONDS {
        EDGE.saturating_add(seconds - EDGE_SECONDS)
    } else if seconds < -EDGE_SECONDS {
        // The least number stands for no time at all within a volume.
        (-EDGE).saturating_add(seconds.saturating_add(EDGE_SECONDS)).max(i64::MIN + 1)
    } else {
        seconds * NS + nanos
    };
    debug_assert!(n > i64::MIN, "the least number is no time");
    debug_assert_eq!((-EDGE..EDGE).contains(&n), (-EDGE_SECONDS..EDGE_SECONDS).contains(&seconds));
    n
}

/// Returns seconds since 1970 and nanoseconds of a number.
#[inline]
pub fn parts(number: i64) -> (i64, u32) {
    let (seconds, nanos) = if (0..EDGE).contains(&number) {
        // Nearly all there are. Each stat has four: a division without a sign is one product.
        let (number, ns) = (number.unsigned_abs(), NS.unsigned_abs());
        ((number / ns) as i64, (number % ns) as u32)
    } else if number >= EDGE {
        (EDGE_SECONDS + (number - EDGE), 0)
    } else if number < -EDGE {
        (-EDGE_SECONDS + (number + EDGE), 0)
    } else {
        (number.div_euclid(NS), number.rem_euclid(NS) as u32)
    };
    debug_assert!(i64::from(nanos) < NS, "{nanos} nanoseconds");
    debug_assert_eq!(self::number(seconds, nanos), number.max(i64::MIN + 1), "a time has one number");
    (seconds, nanos)
}

/// Returns the time of a number, as the standard library has it.
pub fn system_time(number: i64) -> SystemTime {
    let (seconds, nanos) = parts(number);
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let whole = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    debug_assert!(whole.is_some(), "{seconds} seconds are no time of this system");
    // All seconds that a number can have are far within those of a `SystemTime`.
    whole.unwrap_or(UNIX_EPOCH) + Duration::from_nanos(nanos.into())
}

/// Returns the number of a time of the standard library.
pub fn from_system_time(time: SystemTime) -> i64 {
    let seconds = |d: Duration| i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => number(seconds(after), after.subsec_nanos()),
        Err(before) => match before.duration() {
            d if d.subsec_nanos() == 0 => number(-seconds(d), 0),
            // Nanoseconds count forward.
            d => number(-seconds(d) - 1, 1_000_000_000 - d.subsec_nanos()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_standard_library_and_back() {
        for n in [i64::MIN + 1, -EDGE - 7, -EDGE, -1_500_000_000, -1, 0, 1, 1_700_000_000_123_456_789] {
            assert_eq!(from_system_time(system_time(n)), n);
        }
        for n in [EDGE - 1, EDGE, EDGE + 9, i64::MAX] {
            assert_eq!(from_system_time(system_time(n)), n);
        }
        assert_eq!(system_time(-1), UNIX_EPOCH - Duration::from_nanos(1));
    }

    #[test]
    fn every_time_has_a_number_and_later_ones_greater() {
        let far = 1 << 59;
        let mut last = i64::MIN;
        for seconds in [
            -far,
            -30_610_224_000,
            -EDGE_SECONDS - 1,
            -EDGE_SECONDS,
            -EDGE_SECONDS + 1,
            -1,
            0,
            1,
            EDGE_SECONDS - 1,
            EDGE_SECONDS,
            EDGE_SECONDS + 1,
            16_299_000_000,
            far,
        ] {
            let n = number(seconds, 0);
            assert!(n > last, "{seconds}");
            assert_eq!(parts(n), (seconds, 0));
            last = n;
        }
        for seconds in [-EDGE_SECONDS, -2, -1, 0, 7, EDGE_SECONDS - 1] {
            for nanos in [1, 800_000_000, 999_999_999] {
                let n = number(seconds, nanos);
                assert_eq!(parts(n), (seconds, nanos));
                assert_eq!(n, seconds * NS + i64::from(nanos));
            }
        }
    }

    #[test]
    fn what_has_no_number_becomes_the_nearest() {
        assert_eq!(number(i64::MAX, 5), i64::MAX);
        assert_eq!(number(i64::MIN, 5), i64::MIN + 1);
        for n in [i64::MIN, i64::MIN + 1, -EDGE, EDGE - 1, EDGE, i64::MAX] {
            let (seconds, nanos) = parts(n);
            assert!(nanos < 1_000_000_000 && number(seconds, nanos) == n.max(i64::MIN + 1), "{n}");
        }
    }
}
