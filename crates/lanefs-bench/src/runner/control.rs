//! The meeting place of a cell's workers: they start and stop together, across threads and
//! processes.
//!
//! Definitions. A *round* is a span in which all workers operate. A *meeting* is where all workers
//! wait for each other between two rounds; the last to arrive is the *leader* of that meeting.
//!
//! 1. Only the leader writes the fields below `arrived`, and only while all others wait: their
//!    plain Relaxed accesses are ordered by `generation` (Release by the leader, Acquire by those
//!    who wait).
//! 2. A round has one start and one deadline, both in ticks of the shared clock; a worker begins at
//!    the start, not when it happened to wake up.
//! 3. `round_over` is written at most once per round and polled by all: the line stays shared until
//!    then.
//! 4. `abort` ends everything: every wait watches it.

use crate::clock::clock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The next round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// Not counted.
    Warm { deadline: u64 },
    /// Counted.
    Measured { deadline: u64 },
    /// There is none.
    End,
}

/// The end of everything: somebody failed, or the user asked for it.
#[derive(Debug)]
pub struct Aborted;

/// A word on its own line, so that polling one does not disturb another.
#[repr(align(128))]
struct Line<T>(T);

const WARM: u32 = 0;
const MEASURED: u32 = 1;
const END: u32 = 2;

/// The meeting place.
pub struct Control {
    workers: u32,
    warm_ticks: u64,
    measured_ticks: u64,
    wall_ticks: u64,
    /// 1 when everything is to end (rule 4). Stored by anybody, loaded by all. Relaxed: it carries
    /// nothing but itself.
    abort: Line<AtomicU32>,
    /// 1 when the round is over before its deadline (rule 3). Stored by a worker whose stock is
    /// empty, and back to 0 by the leader; loaded by all. Relaxed: it carries nothing but itself,
    /// and `generation` orders the leader's store before the next round.
    round_over: Line<AtomicU32>,
    /// The number of meetings held. Stored by the leader (Release, which publishes the fields below
    /// `arrived`); loaded by those who wait (Acquire, its partner).
    generation: Line<AtomicU32>,
    /// The workers that have arrived at the meeting. Added to by all (AcqRel: the last to arrive
    /// sees what everybody did before arriving); set to 0 by the leader (Relaxed: nobody adds
    /// before it has seen the next `generation`).
    arrived: Line<AtomicU32>,
    /// The kind of the round. This and the fields below follow rule 1: Relaxed.
    phase: AtomicU32,
    /// The start of the round, in ticks; 0 before the first.
    start: AtomicU64,
    /// The end of the round, in ticks.
    deadline: AtomicU64,
    /// When the last worker ended the round. Raised by all before they arrive: the leader's
    /// increment of `arrived` acquires what theirs released.
    ended: AtomicU64,
    /// Ticks of warm rounds so far.
    warm_done: AtomicU64,
    /// Ticks of measured rounds so far.
    measured_done: AtomicU64,
    /// The time of the first meeting.
    first_start: AtomicU64,
}

impl Control {
    /// Makes a place for this many workers, and rounds of these spans in seconds.
    pub fn new(workers: usize, warm: f64, measured: f64) -> Control {
        debug_assert!(workers > 0 && u32::try_from(workers).is_ok());
        Control {
            workers: workers as u32,
            warm_ticks: clock().ticks(warm),
            measured_ticks: clock().ticks(measured),
            // Refilling may take longer than the rounds; there is a limit to patience.
            wall_ticks: clock().ticks(20.0 + 10.0 * (warm + measured)),
            abort: Line(AtomicU32::new(0)),
            round_over: Line(AtomicU32::new(0)),
            generation: Line(AtomicU32::new(0)),
            arrived: Line(AtomicU32::new(0)),
            phase: AtomicU32::new(WARM),
            start: AtomicU64::new(0),
            deadline: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            warm_done: AtomicU64::new(0),
            measured_done: AtomicU64::new(0),
            first_start: AtomicU64::new(0),
        }
    }

    /// Ends everything.
    pub fn abort(&self) {
        self.abort.0.store(1, Ordering::Relaxed);
    }

    /// Returns whether everything is to end.
    pub fn aborted(&self) -> bool {
        self.abort.0.load(Ordering::Relaxed) != 0
    }

    /// Ends the round for all: the caller's stock is empty.
    pub fn end_round(&self) {
        if self.round_over.0.load(Ordering::Relaxed) == 0 {
            self.round_over.0.store(1, Ordering::Relaxed);
        }
    }

    /// Returns whether the round is over before its deadline.
    #[inline]
    pub fn round_over(&self) -> bool {
        (self.round_over.0.load(Ordering::Relaxed) | self.abort.0.load(Ordering::Relaxed)) != 0
    }

    /// Waits for all workers, and for what the last one to arrive does while all wait.
    pub fn gather(&self, lead: impl FnOnce()) -> Result<(), Aborted> {
        // Acquire: nobody can start a new generation before the caller arrived, so this is the
        // meeting's own.
        let generation = self.generation.0.load(Ordering::Acquire);
        let arrived = self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1;
        debug_assert!(arrived <= self.workers, "somebody came twice to one meeting");
        if arrived == self.workers {
            lead();
            self.arrived.0.store(0, Ordering::Relaxed);
            self.generation.0.store(generation.wrapping_add(1), Ordering::Release);
        } else {
            let mut turns = 0u32;
            while self.generation.0.load(Ordering::Acquire) == generation {
                if self.aborted() {
                    return Err(Aborted);
                }
                turns += 1;
                if turns < 2000 {
                    std::thread::yield_now();
                } else {
                    std::thread::sleep(std::time::Duration::from_micros(50));
                }
            }
        }
        Ok(())
    }

    /// Waits for all workers and returns the next round, at its start. `ended` is when the caller's
    /// last round ended.
    pub fn meet(&self, ended: Option<u64>) -> Result<Round, Aborted> {
        if let Some(ticks) = ended {
            self.ended.fetch_max(ticks, Ordering::Relaxed);
        }
        self.gather(|| self.lead())?;
        let phase = self.phase.load(Ordering::Relaxed);
        if phase != END && self.aborted() {
            return Err(Aborted);
        }
        let deadline = self.deadline.load(Ordering::Relaxed);
        let round = match phase {
            WARM => Round::Warm { deadline },
            MEASURED => Round::Measured { deadline },
            _ => return Ok(Round::End),
        };
        let start = self.start.load(Ordering::Relaxed);
        debug_assert!(0 < start && start <= deadline, "a round without a time");
        while clock().now() < start {
            std::hint::spin_loop();
        }
        Ok(round)
    }

    /// Accounts for the round that ended and plans the next, while all wait for the leader.
    fn lead(&self) {
        let r = Ordering::Relaxed;
        let now = clock().now();
        let start = self.start.load(r);
        let span = self.ended.load(r).saturating_sub(start);
        if start == 0 {
            self.first_start.store(now, r);
        } else if self.phase.load(r) == WARM {
            self.warm_done.fetch_add(span, r);
        } else {
            self.measured_done.fetch_add(span, r);
        }
        debug_assert!(now >= self.first_start.load(r), "the clock went back");
        let late = now - self.first_start.load(r) > self.wall_ticks;
        let (warm, measured) = (self.warm_done.load(r), self.measured_done.load(r));
        let (phase, left) = if warm < self.warm_ticks && !late {
            (WARM, self.warm_ticks - warm)
        } else if measured < self.measured_ticks && (!late || measured == 0) {
            (MEASURED, self.measured_ticks - measured)
        } else {
            (END, 0)
        };
        debug_assert!(phase >= self.phase.load(r), "warm rounds come first, and nothing behind the end");
        debug_assert_eq!(left == 0, phase == END, "a round without time");
        // Longer than a waiter's sleep, so that all are awake and spinning when the round starts.
        let start = now + clock().ticks(250e-6);
        self.phase.store(phase, r);
        self.start.store(start, r);
        self.deadline.store(start + left, r);
        self.ended.store(0, r);
        self.round_over.0.store(0, r);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// Nobody is in round r + 1 before all have ended round r, and all see the same rounds.
    #[test]
    fn all_rounds_are_common() {
        let control = Control::new(4, 0.002, 0.01);
        let ended_rounds = AtomicUsize::new(0);
        let rounds: Vec<usize> = std::thread::scope(|s| {
            let handles: Vec<_> = (0..4u64)
                .map(|id| {
                    let (control, ended_rounds) = (&control, &ended_rounds);
                    s.spawn(move || {
                        let (mut ended, mut round) = (None, 0);
                        while control.meet(ended).unwrap() != Round::End {
                            assert!(ended_rounds.load(Ordering::SeqCst) >= 4 * round);
                            let until = clock().now() + clock().ticks(0.000_2 * (id + 1) as f64);
                            while clock().now() < until {}
                            control.end_round();
                            ended_rounds.fetch_add(1, Ordering::SeqCst);
                            ended = Some(clock().now());
                            round += 1;
                        }
                        round
                    })
                })
                .collect();
            handles.into_iter().map(|h| h.join().unwrap()).collect()
        });
        assert!(rounds[0] >= 2 && rounds.iter().all(|&r| r == rounds[0]), "{rounds:?}");
    }

    #[test]
    fn an_abort_frees_those_who_wait() {
        let control = Control::new(2, 0.0, 1.0);
        std::thread::scope(|s| {
            let waiter = s.spawn(|| control.meet(None).is_err());
            control.abort();
            assert!(waiter.join().unwrap());
        });
    }
}
