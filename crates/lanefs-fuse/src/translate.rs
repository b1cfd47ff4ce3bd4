//! Words of the kernel to words of the library and back. Nothing here can fail or decide.

use crate::wire::Errno;
use lanefs::{Cred, Error};

const NS: i64 = 1_000_000_000;

impl From<Error> for Errno {
    fn from(e: Error) -> Errno {
        if let Error::Store(s) = &e {
            tracing::error!("{s}");
        }
        Errno(e.errno())
    }
}

/// For calls where the kernel has already applied the rules that depend on the caller.
pub(crate) fn root() -> Cred {
    Cred { prechecked: true, ..Cred::root() }
}

/// Nanoseconds since 1970 of seconds, which may be before it, and nanoseconds, which count forward.
pub(crate) fn nanos(seconds: i64, ns: u32) -> i64 {
    seconds.saturating_mul(NS).saturating_add(ns.into())
}

/// A device number as the kernel's wire carries it (32 bits) to `st_rdev`.
pub(crate) fn rdev_from_kernel(r: u32) -> u64 {
    libc::makedev((r & 0xf_ff00) >> 8, (r & 0xff) | ((r >> 12) & 0xf_ff00))
}

/// `st_rdev` to the 32 bits of the kernel's wire.
pub(crate) fn rdev_to_kernel(r: u64) -> u32 {
    let (major, minor) = (libc::major(r), libc::minor(r));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive() {
        for (major, minor) in [(1, 3), (8, 0), (259, 70_000), (4095, 1_048_575)] {
            let dev = libc::makedev(major, minor);
            assert_eq!(rdev_from_kernel(rdev_to_kernel(dev)), dev, "{major}:{minor}");
        }
    }

    #[test]
    fn times_before_1970_count_forward() {
        assert_eq!(nanos(1, 500_000_000), 1_500_000_000);
        assert_eq!(nanos(-2, 800_000_000), -1_200_000_000);
        assert_eq!(nanos(i64::MAX, 0), i64::MAX);
    }
}
