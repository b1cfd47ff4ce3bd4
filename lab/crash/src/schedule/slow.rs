//! A device that is slow now and then: a write reaches the medium, or is answered, and a flush is
//! answered, only after other threads had many turns. What they issue meanwhile is answered before
//! it, so that completions come in another order than the requests.
//!
//! One schedule in two has such a device. What a crash leaves is the recorder's to say, which sees
//! when each request was issued and answered.

use crate::crash::image::{CowDevice, Image};
use lanefs_lab_model::generate::Rng;
use lanefs_store::Result;
use lanefs_store::device::{Device, Log, ReadReq, WriteReq};
use std::sync::{Mutex, PoisonError};

/// The device.
#[derive(Debug)]
pub struct Slow {
    inner: CowDevice,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    /// Once in so many requests; 0 for never.
    one_in: u64,
    late: u64,
}

impl Slow {
    /// A device that holds `image`.
    pub fn new(image: Image, seed: u64) -> Slow {
        let mut rng = Rng::new(seed ^ 0x510e);
        let one_in = if rng.one_in(2) { 0 } else { 1 << rng.below(4) };
        Slow { inner: CowDevice::new(image), state: Mutex::new(State { rng, one_in, late: 0 }) }
    }

    /// Requests answered late.
    pub fn late(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).late
    }

    /// Draws the numbers of turns that the others get before a request is done, and before it is
    /// answered.
    fn delays(&self) -> (u64, u64) {
        let mut s = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let one_in = s.one_in;
        // While the volume is opened there are no others.
        if one_in == 0 || !lanefs_sync::schedule::directed() || !s.rng.one_in(one_in) {
            return (0, 0);
        }
        s.late += 1;
        let long = 1 << s.rng.below(10);
        let (before, after) = (s.rng.below(long), s.rng.below(long));
        match s.rng.below(3) {
            0 => (before, 0),
            1 => (0, 1 + after),
            _ => (before, 1 + after),
        }
    }

    fn slowly(&self, f: impl FnOnce() -> Result<()>) -> Result<()> {
        let (before, after) = self.delays();
        (0..before).for_each(|_| lanefs_sync::schedule::yield_now());
        let done = f();
        (0..after).for_each(|_| lanefs_sync::schedule::yield_now());
        done
    }
}

impl Device for Slow {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn read(&self, reqs: &mut [ReadReq<'_>]) -> Result<()> {
        self.inner.read(reqs)
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> Result<()> {
        self.slowly(|| self.inner.write(reqs))
    }
    fn flush(&self) -> Result<()> {
        self.slowly(|| self.inner.flush())
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.discard(offset, len)
    }
}

/// Returns the number of submissions and flushes since `start` that were answered later than one
/// that was issued after them.
pub fn overtaken(log: &Log, start: u64) -> u64 {
    let writes = log.writes.iter().map(|w| (w.issued, w.completed));
    let flushes = log.flushes.iter().map(|f| (f.issued, f.completed));
    let mut all: Vec<(u64, u64)> =
        writes.chain(flushes).filter_map(|(i, c)| Some((i, c?))).filter(|r| r.0 >= start).collect();
    all.sort_unstable();
    all.dedup();
    // From the last issued to the first: the earliest answer among those issued later.
    let mut earliest = u64::MAX;
    let mut n = 0;
    for (_, answered) in all.into_iter().rev() {
        n += u64::from(earliest < answered);
        earliest = earliest.min(answered);
    }
    n
}
