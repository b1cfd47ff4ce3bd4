//! Sustained runs: a file system at work for as long as people use it.
//!
//! An ordinary round is short, and what the file system left for later it does while the stock is
//! filled again, off the clock. Here a round is as long as a large stock lasts, and ends when
//! nothing is left to do: the last to end it syncs and waits for the background
//! ([`Target::quiesce`]) with the clock running, and what filling the stock left is done before the
//! clock starts again. The processor time is that of everybody, over the same span.

use super::control::Control;
use super::tally::Counts;
use crate::clock::clock;
use crate::error::{Failure, Op};
use crate::processors::Helpers;
use crate::rng::Rng;
use crate::target::Target;
use crate::workload::Workload;
use hdrhistogram::Histogram;
use std::sync::{Mutex, PoisonError};

/// What the workers of a cell know together of the span that is measured.
pub struct Span {
    /// The processes and threads that work for the target beside them.
    pub helpers: Helpers,
    at: Mutex<At>,
}

#[derive(Default)]
struct At {
    /// When the round was over and all that it had caused was done, in ticks.
    ended: u64,
    failure: Option<Failure>,
}

impl Span {
    /// Makes a span that has not begun.
    pub fn new(helpers: Helpers) -> Span {
        Span { helpers, at: Mutex::default() }
    }

    /// Calls `f` with the state locked.
    fn with<R>(&self, f: impl FnOnce(&mut At) -> R) -> R {
        f(&mut self.at.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has everything done that was begun; for the leader of a meeting.
    pub fn quiesce<T: Target>(&self, target: &T, control: &Control) {
        let quiet = target.quiesce();
        self.with(|at| {
            at.ended = clock().now();
            if let Err(failure) = quiet {
                at.failure = Some(failure);
                control.abort();
            }
        });
    }

    /// Returns when all that the last round caused was done, in ticks.
    pub fn ended(&self) -> u64 {
        self.with(|at| at.ended)
    }

    /// Returns what ended a run before its time.
    pub fn failure(&self) -> Failure {
        self.with(|at| at.failure.take()).unwrap_or_else(Failure::interrupted)
    }
}

/// The units that a worker did, by second.
#[derive(Default)]
pub struct Seconds {
    /// The measured time of earlier rounds, in ticks.
    pub before: u64,
    /// The units of each second; the last one is a part.
    pub units: Vec<u64>,
}

impl Seconds {
    /// Adds units that were done by so many ticks of the round.
    fn add(&mut self, ticks: u64, units: u64) {
        let second = clock().seconds(self.before + ticks) as usize;
        if self.units.len() <= second {
            self.units.resize(second + 1, 0);
        }
        self.units[second] += units;
    }
}

/// Works until the stock is empty or time is up; some operations are timed, as in an ordinary
/// round.
#[inline(never)]
pub fn round<T: Target, W: Workload<T>>(
    worker: &mut W,
    target: &T,
    (control, deadline): (&Control, u64),
    rng: &mut Rng,
    latencies: &mut Histogram<u64>,
    seconds: &mut Seconds,
) -> Op<Counts> {
    let clock = clock();
    let started = clock.now();
    let (mut ops, mut units, mut noted) = (0u64, 0u64, 0u64);
    loop {
        let skip = 8 + (rng.draw() & 15);
        let mut empty = false;
        for _ in 0..skip {
            let done = worker.operate(target)?;
            empty = done == 0;
            if empty {
                break;
            }
            ops += 1;
            units += u64::from(done);
        }
        let before = clock.now();
        let done = if empty { 0 } else { worker.operate(target)? };
        let after = clock.now();
        if done > 0 {
            ops += 1;
            units += u64::from(done);
            let took = (after - before).saturating_sub(clock.overhead);
            latencies.saturating_record(clock.ns(took).max(1));
        }
        seconds.add(after - started, units - noted);
        noted = units;
        // A worker whose stock is empty ends its own round only: the others' work is in the span.
        if done == 0 || after >= deadline || control.aborted() {
            return Ok(Counts { ops, units, ended: after });
        }
    }
}
