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

const NS: i64 = 1_000_000_000;
/// Seconds after 1970 at which whole seconds begin: in September 2225.
const EDGE_SECONDS: i64 = 8_070_000_000;
/// The first number that counts seconds.
pub const EDGE: i64 = EDGE_SECONDS * NS;

/// The number of a time: seconds since 1970, which may be before it, and nanoseconds, which count
/// forward. What no number can say becomes the nearest that one can.
pub fn number(seconds: i64, nanos: u32) -> i64 {
    let nanos = i64::from(nanos.min(999_999_999));
    if seconds >= EDGE_SECONDS {
        EDGE.saturating_add(seconds - EDGE_SECONDS)
    } else if seconds < -EDGE_SECONDS {
        // The least number stands for no time at all within a volume.
        (-EDGE).saturating_add(seconds.saturating_add(EDGE_SECONDS)).max(i64::MIN + 1)
    } else {
        seconds * NS + nanos
    }
}

/// Seconds since 1970 and nanoseconds of a number.
pub fn parts(number: i64) -> (i64, u32) {
    if number >= EDGE {
        (EDGE_SECONDS + (number - EDGE), 0)
    } else if number < -EDGE {
        (-EDGE_SECONDS + (number + EDGE), 0)
    } else {
        (number.div_euclid(NS), number.rem_euclid(NS) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
