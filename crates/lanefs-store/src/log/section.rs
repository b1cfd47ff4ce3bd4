//! The reader section of the store: a transaction gets its places inside, so that each is before,
//! or behind, any checkpoint's position; and the count of those whose writes are not answered yet.

use crate::error::{Result, StoreError};
use lanefs_sync::{CachePadded, LaneIds, MAX_LANES, Rps, RpsReadGuard};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The reader sections of all lanes.
pub(crate) struct Sections {
    pub rps: Rps,
    flights: Box<[CachePadded<Flights>]>,
    /// The index of the counter of `flights` that new transactions use. Written only by the RPS
    /// writer, in [`Sections::drain`]. Relaxed: no reader is inside then, and the RPS orders it
    /// before the next.
    phase: CachePadded<AtomicUsize>,
    /// The last position is recorded: nothing enters behind it. Written by the RPS writer. Relaxed:
    /// the RPS orders it before every section behind that position; who looks outside of one is
    /// refused early, or in its section.
    pub closing: AtomicBool,
}

/// A lane's transactions under way, by phase, and how many it has begun.
#[derive(Default)]
struct Flights {
    /// Transactions that are not over. Written by whoever begins one, Relaxed: inside a section,
    /// which the RPS orders before a drain. And by [`Flight::drop`], Release, whose partner is the
    /// Acquire in [`Sections::drain`]: what was written is answered before the count is seen.
    out: [AtomicI64; 2],
    /// Transactions begun. Written by whoever begins one. Relaxed: it tells only when it is time to
    /// look at something.
    begun: AtomicU64,
}

/// A reader section of the store: allocations inside are all before, or all behind, any
/// checkpoint's position.
pub(crate) struct Section<'a> {
    _reader: RpsReadGuard<'a>,
    flight: Flight<'a>,
    sections: &'a Sections,
}

impl<'a> Section<'a> {
    /// Returns an error behind the position of a close.
    pub fn check(&self) -> Result<()> {
        // Relaxed: it is written by the RPS writer, whose exit orders it before this section.
        if self.sections.closing.load(Ordering::Relaxed) { Err(StoreError::Closed) } else { Ok(()) }
    }
    /// Ends the section; the flight goes on until its writes are answered.
    pub fn leave(self) -> Flight<'a> {
        self.flight
    }
}

/// A transaction whose writes are not answered yet.
pub(crate) struct Flight<'a>(&'a AtomicI64);

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        // Release, with the acquire in `drain`: what was written is answered before the count says
        // so.
        let before = self.0.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "a flight ends that was not counted");
    }
}

impl Sections {
    /// Makes the sections of so many lanes.
    pub fn new(lanes: usize) -> Sections {
        debug_assert!(lanes > 0, "a section is entered on behalf of a lane");
        Sections {
            rps: Rps::new(LaneIds::new(MAX_LANES)),
            flights: (0..lanes).map(|_| CachePadded::new(Flights::default())).collect(),
            phase: CachePadded::new(AtomicUsize::new(0)),
            closing: AtomicBool::new(false),
        }
    }

    /// Enters a reader section on behalf of `lane`.
    pub fn enter(&self, lane: usize) -> Section<'_> {
        let reader = self.rps.read();
        let f = &self.flights[lane % self.flights.len()];
        // Relaxed: the phase changes only while no reader is inside, and the RPS orders the count
        // before a drain.
        let out = &f.out[self.phase.load(Ordering::Relaxed)];
        let before = out.fetch_add(1, Ordering::Relaxed);
        debug_assert!(before >= 0, "more flights have ended than begun");
        f.begun.fetch_add(1, Ordering::Relaxed);
        Section { _reader: reader, flight: Flight(out), sections: self }
    }

    /// Returns how many transactions were begun on behalf of `lane`.
    pub fn begun(&self, lane: usize) -> u64 {
        // Relaxed: a count that says when to look at something.
        self.flights[lane % self.flights.len()].begun.load(Ordering::Relaxed)
    }

    /// Returns how many transactions were begun in all lanes.
    pub fn all_begun(&self) -> u64 {
        debug_assert!(!self.flights.is_empty(), "nobody can begin one");
        (0..self.flights.len()).map(|lane| self.begun(lane)).sum()
    }

    /// Waits until all transactions that entered before this call have their writes answered. `f`
    /// runs while none is inside the section. Only under the maintenance lock.
    pub fn drain(&self, f: impl FnOnce()) {
        let old = {
            let _writer = self.rps.write();
            f();
            // Relaxed, and below: no reader is inside, and the RPS orders them before the next.
            let old = self.phase.load(Ordering::Relaxed);
            debug_assert!(old < 2, "phase {old}");
            debug_assert!(
                self.flights.iter().all(|x| x.out[old ^ 1].load(Ordering::Acquire) == 0),
                "the drain before this one has not waited for all"
            );
            self.phase.store(old ^ 1, Ordering::Relaxed);
            old
        };
        let mut spins = 0u32;
        // Acquire, with the Release of a flight that ends: its writes were answered before.
        while self.flights.iter().any(|x| x.out[old].load(Ordering::Acquire) != 0) {
            spins += 1;
            if spins < 100 {
                lanefs_sync::schedule::yield_now();
            } else {
                lanefs_sync::schedule::sleep(Duration::from_micros(50));
            }
        }
    }
}
