//! Waiting for the host of a sparse image, as a caller sees it.
//!
//! What a host with little space cannot take is not begun: whoever would write it gets
//! [`HOST_PENDING`] before it has captured anything, and passes that on to where no lock is held
//! and nothing is announced. There it is waited for (`persist::host`), and all of it is done anew.

use crate::core::Core;
use crate::error::{Error, Result};
use std::time::{Duration, Instant};

/// The answer of whoever would have to wait for space on a host with locks in its hand. It never
/// leaves the library.
pub(crate) const HOST_PENDING: Error = Error::Posix(libc::EALREADY);

/// The wait for what others write where little may be under way at a time.
const MOMENT: Duration = Duration::from_millis(1);

/// Returns whether an error is [`HOST_PENDING`].
pub(crate) fn is_host_pending(e: &Error) -> bool {
    matches!(e, Error::Posix(libc::EALREADY))
}

/// A call's wait for a host, as long as its thread has patience, or for ever. It may come in
/// several parts.
#[derive(Default)]
pub(crate) struct HostWait {
    /// The thread's patience does not count.
    for_ever: bool,
    /// It has begun, and ends then at the latest.
    begun: Option<Option<Instant>>,
}

impl HostWait {
    /// A wait that the caller's patience does not end.
    pub fn for_ever() -> HostWait {
        HostWait { for_ever: true, begun: None }
    }

    fn until(&mut self) -> Option<Instant> {
        let patience = if self.for_ever { None } else { lanefs_sync::patience() };
        *self.begun.get_or_insert_with(|| patience.map(|long| Instant::now() + long))
    }

    /// Waits until no host is short, or for a moment if none is. The caller holds no lock.
    ///
    /// # Errors
    /// ENOSPC: the thread's patience has ended. The volume was stopped meanwhile.
    pub fn wait(&mut self, core: &Core) -> Result<()> {
        debug_assert!(!core.options.read_only, "nothing is written");
        let until = self.until();
        lanefs_sync::about_to_wait();
        if core.store.is_host_short() {
            core.store.wait_for_host(until)?;
        } else {
            lanefs_sync::schedule::sleep(MOMENT);
        }
        debug_assert!(self.begun.is_some(), "nobody knows since when it waits");
        core.check_alive()
    }

    /// Waits for a moment, for a caller that can go on before there is space. Errors as those of
    /// [`HostWait::wait`].
    pub fn pause(&mut self, core: &Core) -> Result<()> {
        debug_assert!(!MOMENT.is_zero(), "it would look all the time");
        lanefs_sync::about_to_wait();
        match self.until() {
            Some(until) if Instant::now() >= until => Ok(core.store.wait_for_host(Some(until))?),
            _ => {
                core.store.look_for_host_space();
                lanefs_sync::schedule::sleep(MOMENT);
                core.check_alive()
            }
        }
    }
}
