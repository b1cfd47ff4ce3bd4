//! Sustained runs: a file system at work for as long as people use it.
//!
//! An ordinary round is short, and what the file system left for later it does while the stock is
//! filled again, off the clock. Here a round is as long as a large stock lasts, and ends when
//! nothing is left to do: the last to end it syncs and waits for the background
//! ([`Target::quiesce`]) with the clock running, and what filling the stock left is done before the
//! clock starts again. The processor time is that of everybody, over the same span.

use super::control::{Aborted, Control, Round};
use super::tally::{Tally, histogram};
use super::timed::{add_costs, cpu_time};
use crate::clock::clock;
use crate::cost::allocated;
use crate::error::{Context, Failure, Op, Res};
use crate::processors::{Helpers, Reading};
use crate::rng::Rng;
use crate::target::Target;
use crate::workload::{Cx, Workload};
use hdrhistogram::Histogram;
use std::sync::{Mutex, PoisonError};

/// The span that is measured, as the workers of a cell know it together.
pub struct Span {
    /// Those who work beside them.
    pub helpers: Helpers,
    at: Mutex<At>,
}

#[derive(Default)]
struct At {
    /// The clocks of everybody when the round began.
    began: Reading,
    /// When the round was over and all that it had caused was done, in ticks.
    ended: u64,
    /// Seconds of processor time of everybody so far.
    cpu_seconds: f64,
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
    fn quiesce<T: Target>(&self, target: &T, control: &Control, then: impl FnOnce(&mut At)) {
        let quiet = target.quiesce();
        self.with(|at| {
            if let Err(failure) = quiet {
                at.failure = Some(failure);
                control.abort();
            }
            then(at);
        });
    }

    /// Returns what ended a run before its time.
    fn failure(&self) -> Failure {
        self.with(|at| at.failure.take()).unwrap_or_else(Failure::interrupted)
    }
}

/// The units that a worker did, by second.
struct Seconds {
    /// Measured seconds of earlier rounds, in ticks.
    before: u64,
    units: Vec<u64>,
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
fn round<T: Target, W: Workload<T>>(
    worker: &mut W,
    target: &T,
    (control, deadline): (&Control, u64),
    rng: &mut Rng,
    latencies: &mut Histogram<u64>,
    seconds: &mut Seconds,
) -> Op<(u64, u64)> {
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
            return Ok((ops, units));
        }
    }
}

/// Runs a worker of a sustained run.
pub fn live<T: Target, W: Workload<T>>(
    cx: &Cx<'_, T>,
    control: &Control,
    id: usize,
    span: &Span,
) -> Res<Tally> {
    let clock = clock();
    let mut worker = W::prepare(cx, id)?;
    let mut rng = Rng::new(id as u64 + 77);
    let mut scrap = histogram();
    let mut latencies = histogram();
    let mut tally = Tally::default();
    let mut seconds = Seconds { before: 0, units: Vec::new() };
    let mut ended = None;
    loop {
        if ended.is_some() {
            worker.refill(cx)?;
        }
        let begin = |at: &mut At| at.began = span.helpers.read();
        let met = control.gather(|| span.quiesce(cx.target, control, begin));
        let met = met.and_then(|()| control.meet(ended));
        let (deadline, measured) = match met {
            Ok(Round::Warm { deadline }) => (deadline, false),
            Ok(Round::Measured { deadline }) => (deadline, true),
            Ok(Round::End) => break,
            Err(Aborted) => return Err(span.failure()),
        };
        let (allocated, traffic) = (allocated(), cx.target.traffic());
        let (started, cpu_started) = (clock.now(), cpu_time());
        let mut other = Seconds { before: 0, units: Vec::new() };
        let (into, by_second) =
            if measured { (&mut latencies, &mut seconds) } else { (&mut scrap, &mut other) };
        let round = round(&mut worker, cx.target, (control, deadline), &mut rng, into, by_second);
        let (ops, units) = round.at(format!("worker {id}"))?;
        let cpu = (cpu_time() - cpu_started) as f64 / 1e9;
        let finish = |at: &mut At| {
            at.ended = clock.now();
            if measured {
                at.cpu_seconds += span.helpers.read().since(&at.began) as f64 / 1e9;
            }
        };
        if control.gather(|| span.quiesce(cx.target, control, finish)).is_err() {
            return Err(span.failure());
        }
        let end = span.with(|at| at.ended);
        if measured {
            tally.ops += ops;
            tally.units += units;
            tally.cpu_seconds += cpu;
            add_costs(&mut tally, allocated, traffic.filter(|_| id == 0), cx.target.traffic());
            tally.seconds += clock.seconds(end.saturating_sub(started));
            seconds.before += end.saturating_sub(started);
        }
        ended = Some(end);
    }
    worker.finish(cx)?;
    if id == 0 {
        tally.cpu_seconds_all = span.with(|at| at.cpu_seconds);
    }
    debug_assert_eq!(seconds.units.iter().sum::<u64>(), tally.units, "each unit is in one second");
    tally.per_second = seconds.units;
    tally.latencies =
        latencies.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value())).collect();
    Ok(tally)
}
