//! Numbers of devices: 32 bits on the kernel's wire, 64 in `st_rdev`.

/// Converts a device number of the kernel's wire (32 bits) to `st_rdev`.
pub(crate) fn rdev_from_kernel(r: u32) -> u64 {
    let device = libc::makedev((r & 0xf_ff00) >> 8, (r & 0xff) | ((r >> 12) & 0xf_ff00));
    debug_assert_eq!(rdev_to_kernel(device), r, "32 bits fit into 64");
    device
}

/// Converts `st_rdev` to the 32 bits of the kernel's wire.
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
}
