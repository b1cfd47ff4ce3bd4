//! An adaptor for tests: requests are handed to it by hand.

use crate::MountConfig;
use crate::adaptor::Adaptor;
use crate::counts::Counts;
use crate::wire::{Agreed, Device};
use lanefs::Volume;
use std::sync::Arc;

/// What a kernel agrees to that has everything but io_uring and files without handles.
pub(crate) const AGREED: Agreed =
    Agreed { writeback: true, stateless: false, setxattr_ext: false, checks_flags: true, rings: false };

/// Makes an adaptor of a volume. The device can be read and written without an error, and no
/// request ever comes from it.
pub(crate) fn adaptor_of(volume: Volume, agreed: Agreed) -> (Adaptor, Arc<Device>) {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null").unwrap();
    let device = Arc::new(Device::from(std::os::fd::OwnedFd::from(null)));
    let told = Some(Arc::clone(&device));
    let counts = Arc::new(Counts::new());
    (Adaptor::new(volume, &MountConfig::default(), agreed, told, counts), device)
}
