//! Group commit: many threads ask for a flush, few flushes are made.
//!
//! Flushes of one device are made one at a time and numbered from 1. *Begun* counts those
//! issued, *ended* those answered; they differ by one while a flush is out.
//!
//! 1. A caller that asks when `begun = n` *needs* flush `n + 1` or a later one: flush `n` may have
//!    been issued before the caller's writes were answered, and then promises nothing about them
//!    (assumption 2 of the device).
//! 2. Hence at any time the callers inside need either the flush that is out (they asked before it
//!    began) or the one after it. No third group exists, and two places to park are enough, chosen
//!    by the number's lowest bit.
//! 3. Whoever finds no flush out while the one it needs has not begun makes it: it *leads*. The
//!    lock is not held over it.
//! 4. When flush `n` ends, all that need `n` are woken, and one of those that need `n + 1`, to
//!    lead; nobody is called where nobody has parked. Who is woken may find that a newcomer leads
//!    already; then that flush covers it too, and it waits for that one.
//! 5. The first failure is kept and no flush is made after it: every caller whose flush did not
//!    succeed before gets that error. After a failed flush a device may have dropped the writes and
//!    then succeed with the next one.
//! 6. A leader that unwinds fails its flush, so nobody waits for ever.
//!
//! Why a caller's writes are covered: the caller asks under the lock after its writes were
//! answered; the leader counts its flush as begun under the same lock, later (1), and issues it
//! after that.

use lanefs_sync::schedule::{blocked, directed};

use super::gate_sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, SPIN, max_spinners, spin_until};

pub(super) struct Gate<E> {
    state: Mutex<State<E>>,
    /// A copy of `ended` that spinners watch. Written under the lock, by the leader whose flush
    /// ends; the lock orders everything, so watching it is only a hint to take the lock, and
    /// Relaxed is enough on both sides.
    ended: AtomicU64,
    parked: [Condvar; 2],
}

struct State<E> {
    begun: u64,
    out: bool,
    asked: u64,
    spinners: usize,
    /// Callers that are parked, at each place.
    waiting: [usize; 2],
    failed: Option<E>,
}

impl<E> State<E> {
    fn ended(&self) -> u64 {
        self.begun - u64::from(self.out)
    }

    /// Flushes that succeeded. Only the last that ended can have failed (5).
    fn succeeded(&self) -> u64 {
        self.ended() - u64::from(self.failed.is_some())
    }

    /// Checks, in debug builds, the counts by the rules at the head of the file, under the lock.
    fn check_invariants(&self) {
        debug_assert!(!self.out || self.begun > 0, "a flush is out that was not begun");
        debug_assert!(self.begun <= self.asked, "{} flushes for {} callers", self.begun, self.asked);
        debug_assert!(self.failed.is_none() || self.ended() > 0, "no flush has ended, and one failed");
        debug_assert!(self.failed.is_none() || !self.out, "a flush was begun behind one that failed (5)");
    }
}

impl<E: Clone> Gate<E> {
    pub(super) fn new() -> Gate<E> {
        let state = State { begun: 0, out: false, asked: 0, spinners: 0, waiting: [0; 2], failed: None };
        Gate { state: Mutex::new(state), ended: AtomicU64::new(0), parked: [Condvar::new(), Condvar::new()] }
    }

    /// Returns when a flush that began after this call has succeeded. `flush` makes one, if this
    /// caller has to; `unwound` is the error that all get if it panics.
    pub(super) fn run(
        &self,
        flush: impl FnOnce() -> Result<(), E>,
        unwound: impl FnOnce() -> E,
    ) -> Result<(), E> {
        let mut s = self.lock();
        s.asked += 1;
        let need = s.begun + 1;
        loop {
            if s.succeeded() >= need {
                return Ok(());
            }
            if let Some(e) = &s.failed {
                return Err(e.clone());
            }
            if !s.out {
                s.begun += 1;
                s.out = true;
                let n = s.begun;
                debug_assert_eq!(n, need, "who leads makes the flush that it needs (3)");
                s.check_invariants();
                drop(s);
                let mut lead = Lead { gate: self, n, unwound: Some(unwound) };
                let result = flush();
                lead.unwound = None;
                lead.end(result.clone().err());
                return result;
            }
            s = self.wait(s, need);
        }
    }

    /// Waits until a flush has ended, roughly: the caller looks again.
    fn wait<'a>(&'a self, mut s: MutexGuard<'a, State<E>>, need: u64) -> MutexGuard<'a, State<E>> {
        debug_assert!(s.out, "nobody would wake who waits");
        debug_assert!((s.begun..=s.begun + 1).contains(&need), "flush {need} while {} is out (2)", s.begun);
        if directed() {
            drop(s);
            blocked();
            return self.lock();
        }
        if SPIN && s.spinners < max_spinners() {
            let ended = s.ended();
            s.spinners += 1;
            drop(s);
            let moved = spin_until(|| self.ended.load(Ordering::Relaxed) != ended); // see the field
            s = self.lock();
            debug_assert!(s.spinners > 0, "more have stopped to spin than began");
            s.spinners -= 1;
            if moved || s.ended() != ended {
                return s;
            }
        }
        // The lock was held from the look at `ended` to here, so no ending is missed.
        let place = (need % 2) as usize;
        s.waiting[place] += 1;
        s = self.parked[place].wait(s).unwrap_or_else(|e| e.into_inner());
        debug_assert!(s.waiting[place] > 0, "more have stopped to wait than began");
        s.waiting[place] -= 1;
        s
    }

    pub(super) fn asked(&self) -> u64 {
        self.lock().asked
    }

    pub(super) fn issued(&self) -> u64 {
        self.lock().begun
    }

    pub(super) fn failed(&self) -> Option<E> {
        self.lock().failed.clone()
    }

    /// Locks the state. Nothing that can panic runs under the lock, so a poisoned one is as good as
    /// any.
    fn lock(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// The duty of a leader to end its flush (6).
struct Lead<'a, E: Clone, U: FnOnce() -> E> {
    gate: &'a Gate<E>,
    n: u64,
    unwound: Option<U>,
}

impl<E: Clone, U: FnOnce() -> E> Lead<'_, E, U> {
    fn end(&self, error: Option<E>) {
        let failed = error.is_some();
        let mut s = self.gate.lock();
        debug_assert!(s.out && s.begun == self.n, "flush {} ends, {} is out", self.n, s.begun);
        debug_assert!(s.failed.is_none(), "a flush was out behind one that failed (5)");
        s.out = false;
        s.failed = error;
        s.check_invariants();
        self.gate.ended.store(self.n, Ordering::Relaxed); // see the field
        let (own, next) = ((self.n % 2) as usize, ((self.n + 1) % 2) as usize);
        let waiting = s.waiting;
        drop(s);
        // A call to a condition is a system call, whether somebody waits or not.
        if waiting[own] > 0 {
            self.gate.parked[own].notify_all();
        }
        if waiting[next] > 0 {
            let next = &self.gate.parked[next];
            if failed { next.notify_all() } else { next.notify_one() }
        }
    }
}

impl<E: Clone, U: FnOnce() -> E> Drop for Lead<'_, E, U> {
    fn drop(&mut self) {
        if let Some(unwound) = self.unwound.take() {
            self.end(Some(unwound()));
        }
    }
}
