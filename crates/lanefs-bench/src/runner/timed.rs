//! The timed loop. Compiled once per workload and kind of target, so `operate` is inlined into it.
//!
//! An operation may take 100 ns and reading the clock 20, so only a sample of the operations is
//! timed: about every sixteenth while they are fast, every one when they are slow. The distance
//! varies randomly, or a workload with a period of its own would be sampled at one phase of it. The
//! deadline is looked at with the same readings.

use super::Plan;
use super::control::{Control, Round};
use super::sustained::{self, Seconds, Span};
use super::tally::{Counts, Tally, histogram};
use crate::clock::{Clock, clock};
use crate::cost::{Traffic, allocated};
use crate::error::{Context, Op, Res};
use crate::processors::Meter;
use crate::rng::Rng;
use crate::target::Target;
use crate::workload::{Cx, Workload};
use hdrhistogram::Histogram;

/// Nanoseconds from which on every operation is timed.
const SLOW_NS: f64 = 2000.0;

/// Operates until the deadline, or until the stock is empty.
#[inline(never)]
fn round<T: Target, W: Workload<T>>(
    worker: &mut W,
    target: &T,
    control: &Control,
    clock: &Clock,
    deadline: u64,
    rng: &mut Rng,
    latencies: &mut Histogram<u64>,
) -> Op<Counts> {
    let slow = (SLOW_NS * clock.per_ns) as u64;
    let (mut ops, mut units, mut skip) = (0u64, 0u64, 0u64);
    let ended = 'round: loop {
        for _ in 0..skip {
            let done = worker.operate(target)?;
            if done == 0 {
                control.end_round();
                break 'round clock.now();
            }
            ops += 1;
            units += u64::from(done);
        }
        let before = clock.now();
        let done = worker.operate(target)?;
        let after = clock.now();
        if done == 0 {
            control.end_round();
            break before;
        }
        ops += 1;
        units += u64::from(done);
        let took = (after - before).saturating_sub(clock.overhead);
        latencies.saturating_record(clock.ns(took).max(1));
        if after >= deadline || control.round_over() {
            break after;
        }
        skip = if took > slow { 0 } else { 8 + (rng.draw() & 15) };
    };
    Ok(Counts { ops, units, ended })
}

/// Operates without a clock, a deadline or a sample: the function whose instructions
/// `lanefs-bench cost --instructions` counts. Returns how many were done; fewer than asked when the
/// stock is empty.
#[inline(never)]
fn counted_round<T: Target, W: Workload<T>>(worker: &mut W, target: &T, ops: u64) -> Op<u64> {
    for done in 0..ops {
        if worker.operate(target)? == 0 {
            return Ok(done);
        }
    }
    Ok(ops)
}

/// Runs a worker for so many operations, after a quarter as many that nobody counts.
pub fn counted<T: Target, W: Workload<T>>(cx: &Cx<'_, T>, mut worker: W, ops: u64) -> Res<Tally> {
    let mut warm = 0;
    while warm < ops.div_ceil(4) {
        if worker.operate(cx.target).at("warming up")? == 0 {
            worker.refill(cx)?;
        }
        warm += 1;
    }
    worker.refill(cx)?;
    let mut done = 0;
    while done < ops {
        let some = counted_round(&mut worker, cx.target, ops - done).at("counting")?;
        debug_assert!(some <= ops - done, "more was done than was asked for");
        if some == 0 {
            worker.refill(cx)?;
        }
        done += some;
    }
    worker.finish(cx)?;
    Ok(Tally { ops, units: ops, seconds: 1.0, latencies: vec![(1, 1)], ..Tally::default() })
}

/// Adds what a round cost beside time.
fn add_costs(
    tally: &mut Tally,
    allocated_before: Option<(u64, u64)>,
    traffic_before: Option<Traffic>,
    traffic_now: Option<Traffic>,
) {
    if let (Some(before), Some(now)) = (allocated_before, allocated()) {
        let sum = tally.allocated.unwrap_or_default();
        debug_assert!(now.0 >= before.0 && now.1 >= before.1, "counts only grow");
        tally.allocated = Some((sum.0 + now.0 - before.0, sum.1 + now.1 - before.1));
    }
    if let (Some(before), Some(now)) = (traffic_before, traffic_now) {
        let (sum, more) = (tally.traffic.unwrap_or_default(), now.since(before));
        tally.traffic = Some((sum.0 + more.bytes, sum.1 + more.writes, sum.2 + more.flushes));
    }
}

/// Returns the processor time of this thread, in nanoseconds.
fn cpu_time() -> i64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    t.tv_sec * 1_000_000_000 + t.tv_nsec
}

/// Runs a worker, round after round. In a sustained run everything that was begun is done before a
/// round, and all that the round caused is done when it ends.
pub fn live<T: Target, W: Workload<T>>(
    cx: &Cx<'_, T>,
    control: &Control,
    id: usize,
    plan: &Plan,
    span: &Span,
) -> Res<Tally> {
    let clock = clock();
    let mut worker = W::prepare(cx, id)?;
    let mut rng = Rng::new(id as u64 + 77);
    let mut scrap = histogram();
    let mut latencies = histogram();
    let mut tally = Tally::default();
    let mut seconds = Seconds::default();
    let mut meter = Meter::new(&span.helpers, id, plan.processes);
    let mut ended = None;
    let quiesce = || {
        if plan.sustained {
            span.quiesce(cx.target, control);
        }
    };
    loop {
        if ended.is_some() {
            worker.refill(cx)?;
        }
        // Nobody refills any more, and nobody works yet: what is read now is of the round alone.
        control.gather(quiesce).map_err(|_| span.failure())?;
        meter.prepare();
        let (deadline, measured) = match control.meet(ended).map_err(|_| span.failure())? {
            Round::Warm { deadline } => (deadline, false),
            Round::Measured { deadline } => (deadline, true),
            Round::End => break,
        };
        let (allocated, traffic) = (allocated(), cx.target.traffic());
        meter.begin();
        let (started, cpu_started) = (clock.now(), cpu_time());
        let into = if measured { &mut latencies } else { &mut scrap };
        let counts = if plan.sustained {
            let mut unmeasured = Seconds::default();
            let by_second = if measured { &mut seconds } else { &mut unmeasured };
            sustained::round(&mut worker, cx.target, (control, deadline), &mut rng, into, by_second)
        } else {
            round(&mut worker, cx.target, control, clock, deadline, &mut rng, into)
        };
        let counts = counts.at(format!("worker {id}"))?;
        debug_assert!(counts.units >= counts.ops, "an operation that is done has a unit at least");
        let cpu = (cpu_time() - cpu_started) as f64 / 1e9;
        let mut end = counts.ended;
        if plan.sustained {
            control.gather(quiesce).map_err(|_| span.failure())?;
            end = span.ended();
        }
        if measured {
            tally.ops += counts.ops;
            tally.units += counts.units;
            tally.cpu_seconds += cpu;
            add_costs(&mut tally, allocated, traffic.filter(|_| id == 0), cx.target.traffic());
            tally.cpu_seconds_all += meter.seconds();
            let span = end.saturating_sub(started);
            tally.seconds += clock.seconds(span);
            seconds.before += span;
        }
        ended = Some(end);
    }
    worker.finish(cx)?;
    debug_assert!(!plan.sustained || seconds.units.iter().sum::<u64>() == tally.units);
    tally.per_second = seconds.units;
    tally.latencies =
        latencies.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value())).collect();
    Ok(tally)
}
