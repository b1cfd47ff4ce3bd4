//! Several threads of the operating system of which one runs at a time: whose turn it is follows
//! from a seed.
//!
//! A thread hands over its turn where lanefs-sync's primitives act (`lanefs_sync::schedule`): with
//! a chance that the seed picks per run where it could go on, always where it would wait. Nothing
//! else makes a thread give up the processor to another of these, so two runs of one seed do the
//! same, as long as what they do depends on nothing outside.
//!
//! A turn belongs to exactly one thread from `start` until all have ended; only its owner changes
//! whose it is.

use lanefs_lab_model::generate::Rng;
use lanefs_sync::schedule::{Hooks, direct};
use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// So many hand-overs without anybody getting on: all wait for each other.
const STUCK: u64 = 200_000;
/// So many steps are no run but a circle.
const ENDLESS: u64 = 20_000_000;

struct State {
    rng: Rng,
    /// A thread gives up its turn one time in so many steps.
    one_in: u64,
    turn: usize,
    alive: Vec<bool>,
    counts: Counts,
    idle: u64,
}

/// The counts of a run.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Points at which a thread could have been stopped.
    pub steps: u64,
    /// Points at which another went on.
    pub switches: u64,
    /// Tells schedules apart.
    pub trace: u64,
}

/// Whose turn it is.
pub struct Turn {
    seed: u64,
    state: Mutex<State>,
    wake: Vec<Condvar>,
}

thread_local! {
    static ME: RefCell<Option<(Arc<Turn>, usize)>> = const { RefCell::new(None) };
}

impl Turn {
    /// For `threads` threads.
    pub fn new(seed: u64, threads: usize) -> Arc<Turn> {
        let mut rng = Rng::new(seed);
        let one_in = 1 << rng.below(7);
        let turn = rng.below(threads as u64) as usize;
        let state =
            State { rng, one_in, turn, alive: vec![true; threads], counts: Counts::default(), idle: 0 };
        Arc::new(Turn {
            seed,
            state: Mutex::new(state),
            wake: (0..threads).map(|_| Condvar::new()).collect(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` as thread `me`: from its first turn on.
    pub fn run<T>(self: &Arc<Turn>, me: usize, f: impl FnOnce() -> T) -> T {
        ME.with(|m| *m.borrow_mut() = Some((self.clone(), me)));
        drop(self.wait(self.lock(), me));
        direct(Some(Hooks { step: || at_point(false), blocked: || at_point(true) }));
        let done = f();
        direct(None);
        ME.with(|m| *m.borrow_mut() = None);
        let mut s = self.lock();
        s.alive[me] = false;
        self.give(&mut s, me);
        let next = s.turn;
        drop(s);
        self.wake[next].notify_one();
        done
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    fn wait<'a>(&'a self, mut s: MutexGuard<'a, State>, me: usize) -> MutexGuard<'a, State> {
        while s.turn != me {
            s = self.wake[me].wait(s).unwrap_or_else(PoisonError::into_inner);
        }
        s
    }

    /// Gives the turn to another live thread, if there is one. The caller wakes it.
    fn give(&self, s: &mut State, me: usize) -> bool {
        let others = (0..s.alive.len()).filter(|&t| t != me && s.alive[t]).count() as u64;
        if others == 0 {
            return false;
        }
        let n = s.rng.below(others) as usize;
        let next = (0..s.alive.len()).filter(|&t| t != me && s.alive[t]).nth(n).unwrap_or(me);
        s.turn = next;
        s.counts.switches += 1;
        s.counts.trace = lanefs_sync::random::spread(
            s.counts.trace.rotate_left(7) ^ s.counts.steps ^ ((next as u64) << 48),
        );
        true
    }

    fn point(&self, me: usize, waits: bool) {
        let mut s = self.lock();
        if waits {
            s.idle += 1;
        } else {
            s.idle = 0;
            s.counts.steps += 1;
        }
        if s.idle > STUCK || s.counts.steps > ENDLESS {
            // The threads hold locks of each other: there is no way back.
            let what = if s.idle > STUCK { "the threads wait for each other" } else { "it does not end" };
            println!("found seed {}: {what}", self.seed);
            std::process::abort();
        }
        let one_in = s.one_in;
        if (waits || s.rng.one_in(one_in)) && self.give(&mut s, me) {
            // Woken without the lock: it would only wait for it.
            let next = s.turn;
            drop(s);
            self.wake[next].notify_one();
            drop(self.wait(self.lock(), me));
        }
    }
}

fn at_point(waits: bool) {
    let me = ME.try_with(|m| m.borrow().clone()).ok().flatten();
    if let Some((turn, me)) = me {
        turn.point(me, waits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanefs_sync::lock::{Condvar as Cv, Mutex as Mx};

    /// Three threads note the order in which they hold a lock; one waits for another's word.
    fn order(seed: u64) -> (Vec<usize>, Counts) {
        let turn = Turn::new(seed, 3);
        let (list, cv) = (Mx::new(Vec::new()), Cv::new());
        std::thread::scope(|s| {
            for me in 0..3 {
                let (turn, list, cv) = (&turn, &list, &cv);
                s.spawn(move || {
                    turn.run(me, || {
                        for _ in 0..4 {
                            list.lock().push(me);
                        }
                        let mut l = list.lock();
                        while me == 0 && l.iter().filter(|x| **x == 1).count() < 4 {
                            cv.wait(&mut l);
                        }
                        l.push(me);
                        cv.notify_all();
                    });
                });
            }
        });
        (list.into_inner(), turn.counts())
    }

    #[test]
    fn a_seed_gives_the_same_order_twice_and_seeds_give_many() {
        let mut seen = std::collections::HashSet::new();
        for seed in 0..200 {
            let (a, b) = (order(seed), order(seed));
            assert_eq!(a, b, "seed {seed}");
            assert_eq!(a.0.len(), 15);
            seen.insert(a.0);
        }
        assert!(seen.len() > 100, "{}", seen.len());
    }
}
