//! A host that runs out of space: what is known of it, and what becomes of the requests that it
//! refuses.
//!
//! An image is a sparse file. A write to a hole of it takes a block of the file system that holds
//! the image, its *host*, which others fill too; and when nothing is left the host answers ENOSPC,
//! or EDQUOT. That is no fault of the medium: what was written stays written, and the same request
//! succeeds when somebody has deleted something. So it is no reason to stop the volume.
//!
//! 1. A write that is refused so has not been answered. The thread that issued it repeats it, at a
//!    bounded pace ([`PAUSE`]), until it is answered or the store is stopped
//!    (`Io::write_when_there_is_space` of the log). Nobody who waits for it has been told of a
//!    success, nobody is told of a failure, and a batch that lies behind it is not acknowledged
//!    before it. It holds no lock that a reader takes, but those of the file that is written back:
//!    so it is the exception. Whoever is about to write users' data asks before it begins, and
//!    waits without a lock (`log::admission`).
//! 2. All requests of the submission are repeated, one after the other: a write to the same place
//!    with the same bytes does nothing that the first did not.
//! 3. When little is left, and from the first refusal on at the latest, the host counts as *short*
//!    ([`HostSpace::is_short`]). While it is, no space of the volume is promised to anybody
//!    (`Store::reserve`), so callers get ENOSPC where they could still be told of it, and no
//!    transaction with data begins (`log::admission`). What frees space goes on: removing,
//!    truncating, epoch commits, checkpoints. A checkpoint that would need more than is kept is not
//!    made unasked (`Engine::fits_reserve`).
//! 4. These write, too. So that they can, some free segments of a sparse medium are kept *backed*:
//!    blocks of the host lie below them (see `log::reserve`). They are what is written to while
//!    the host is short; and if a request is refused all the same, which is bound to the place that
//!    it has, one of them is given back to the host by a hole punch, and the request repeated: for
//!    one request at a time, since a segment does for many.
//! 5. A checkpoint that ends while the host is short, or nearly so, gives back all free segments
//!    but these. So files that are deleted in the volume free space of the host.
//! 6. The host is no longer short when all requests were answered, the reserve is whole again, the
//!    host gave one segment more, and has as much left as admission wants for a round. Then callers
//!    get space again. No remount is needed.
//! 7. A *flush* that fails for want of space is an error like others, and stops the volume: after
//!    it the kernel may have forgotten which pages it was to write. Local file systems take the
//!    block when the page is written, so they do not answer so; NFS may.
//! 8. Whoever opens a volume is told of the refusal as of any error: nothing was promised yet, and
//!    somebody stands before it who can act. So is a check that repairs.
//!
//! The mount's log has a line when it begins and one when it ends, and `lanefs stat` shows it.

use super::Device;
use lanefs_sync::CachePadded;
use lanefs_sync::lock::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The pause before a refused request is repeated, at first and at the most.
pub(crate) const PAUSE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(2)..=Duration::from_millis(250);

/// Returns the pause behind one.
pub(crate) fn longer(pause: Duration) -> Duration {
    debug_assert!(!pause.is_zero(), "a pause that never grows");
    (pause * 2).clamp(*PAUSE.start(), *PAUSE.end())
}

/// What is known of the hosts of a volume's devices: see the head of the file.
#[derive(Default)]
pub(crate) struct HostSpace {
    /// Invariant 3. Stored under `refusal`, loaded by whoever promises space: on a line of its own,
    /// which nobody writes but when a host fills up or has space again. Relaxed: a promise that is
    /// made or refused a moment late is no worse than one a moment earlier.
    short: CachePadded<AtomicBool>,
    /// The requests that wait. Written by who waits. Relaxed: it is a figure, and
    /// [`HostSpace::has_space_again`] is called again by who finds that it was not yet zero.
    waiting: AtomicUsize,
    refusal: Mutex<Refusal>,
}

/// What to tell of a host that is short.
#[derive(Default)]
struct Refusal {
    since: Option<Instant>,
    /// The device that was refused first, and where its host is mounted.
    device: String,
    host: String,
    /// The bytes that have to be free before the volume goes on.
    wants: u64,
    /// The volume is being closed: nobody deletes files in it any more.
    closing: bool,
}

impl Refusal {
    fn text(&self) -> String {
        let Refusal { device, host, wants, closing, .. } = self;
        debug_assert!(self.since.is_some() && !device.is_empty(), "no host is short");
        let mib = wants.div_ceil(1 << 20).max(1);
        match closing {
            false => format!(
                "{device}: waiting for space on the host: {host} is full. Free {mib} MiB there, or delete \
                 files of the volume; it goes on by itself, and nothing that was written is lost"
            ),
            true => format!(
                "{device}: being closed, and waiting for space on the host: {host} is full. Free {mib} MiB \
                 there; or give up with SIGTERM: what was synced is safe, the rest would be lost"
            ),
        }
    }
}

/// A request that waits.
pub(crate) struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // Relaxed: see the field.
        let before = self.0.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "a request that did not wait has ended waiting");
    }
}

impl HostSpace {
    /// Takes note that the host of a device refused a write (3). The request counts as waiting as
    /// long as the answer lives. `wants`: the bytes that have to be free before the volume goes on.
    pub fn refused(&self, device: &dyn Device, wants: u64) -> Waiting<'_> {
        // Relaxed, here and below: see the fields.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.found_short(device, wants);
        Waiting(&self.waiting)
    }

    /// Takes note that the host of a device has so little left that it would refuse a write soon
    /// (3).
    pub fn found_short(&self, device: &dyn Device, wants: u64) {
        let mut refusal = self.refusal.lock();
        if refusal.since.is_none() {
            refusal.since = Some(Instant::now());
            refusal.device = device.name().into();
            let unknown = || "the file system that holds it".into();
            refusal.host = device.host().and_then(|h| h.place()).unwrap_or_else(unknown);
            refusal.wants = wants;
            tracing::warn!("{}", refusal.text());
        }
        self.short.store(true, Ordering::Relaxed);
        debug_assert!(refusal.since.is_some(), "a host is short, and nobody knows since when");
    }

    /// Returns whether a host has refused a write and has no space again (3).
    #[inline]
    pub fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    /// Returns how many requests wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Takes note that the hosts have space again (6), unless a request was refused meanwhile.
    /// Returns whether they have.
    pub fn has_space_again(&self) -> bool {
        let mut refusal = self.refusal.lock();
        // Who is refused is counted before it takes this lock.
        if self.waiting() > 0 {
            return false;
        }
        let Some(since) = refusal.since.take() else { return true };
        debug_assert!(self.is_short(), "there was space all the time");
        self.short.store(false, Ordering::Relaxed);
        tracing::warn!(
            "{}: there is space on the host again ({}), after {:.1} s; the volume goes on",
            refusal.device,
            refusal.host,
            since.elapsed().as_secs_f64()
        );
        true
    }

    /// Takes note that the volume is being closed; who waits then is told what to do.
    pub fn closing(&self) {
        let mut refusal = self.refusal.lock();
        let told = std::mem::replace(&mut refusal.closing, true);
        debug_assert_eq!(refusal.since.is_some(), self.is_short(), "both are written under the lock");
        if refusal.since.is_some() && !told {
            tracing::warn!("{}", refusal.text());
        }
    }

    /// Returns what to tell of a host that is short.
    pub fn message(&self) -> Option<String> {
        let refusal = self.refusal.lock();
        debug_assert_eq!(refusal.since.is_some(), self.is_short(), "both are written under the lock");
        refusal.since.map(|_| refusal.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MemoryDevice;

    #[test]
    fn it_is_told_once_when_it_begins_and_whoever_closes_is_told_what_to_do() {
        let (host, device) = (HostSpace::default(), MemoryDevice::new(1 << 20).unwrap().named("/v.lane"));
        assert!(!host.is_short() && host.message().is_none());
        let first = host.refused(&device, 5 << 20);
        let second = host.refused(&device, 9 << 20);
        assert!(!host.has_space_again(), "they wait still");
        assert!(host.is_short() && host.waiting() == 2);
        let told = host.message().unwrap();
        assert!(told.contains("/v.lane: waiting for space on the host") && told.contains("5 MiB"), "{told}");
        drop(first);
        drop(second);
        assert!(host.is_short() && host.waiting() == 0);
        host.closing();
        assert!(host.message().unwrap().contains("being closed"));
        assert!(host.has_space_again() && host.has_space_again());
        assert!(!host.is_short() && host.message().is_none());
    }
}
