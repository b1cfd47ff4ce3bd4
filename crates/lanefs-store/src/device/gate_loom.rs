//! The gate's protocol, from the same source, on loom's primitives: all interleavings.

mod gate_sync {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
    pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};
    pub(super) const SPIN: bool = false;
    pub(super) fn max_spinners() -> usize {
        0
    }
    pub(super) fn spin_until(_: impl Fn() -> bool) -> bool {
        false
    }
}

#[allow(dead_code)]
#[allow(clippy::duplicate_mod)] // on purpose: the shipped source on other primitives
#[path = "gate.rs"]
mod gate;

use gate::Gate;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::{Relaxed, SeqCst};

struct Model {
    gate: Gate<u32>,
    answered: AtomicU64,
    durable: AtomicU64,
}

/// `fail_at`: the flush with this number fails.
fn explore(threads: u64, times: u32, fail_at: u64) {
    let mut b = loom::model::Builder::new();
    b.preemption_bound = Some(3);
    b.check(move || {
        let m =
            Arc::new(Model { gate: Gate::new(), answered: AtomicU64::new(0), durable: AtomicU64::new(0) });
        let flushes = Arc::new(AtomicU64::new(0));
        let run = move |m: &Model, flushes: &AtomicU64, t: u64| {
            for _ in 0..times {
                m.answered.fetch_or(1 << t, Relaxed); // the gate must order it
                let r = m.gate.run(
                    || {
                        let n = flushes.fetch_add(1, SeqCst) + 1;
                        let covered = m.answered.load(Relaxed);
                        loom::thread::yield_now();
                        if n >= fail_at {
                            assert_eq!(n, fail_at, "a flush after a failed one");
                            return Err(7);
                        }
                        m.durable.fetch_or(covered, Relaxed);
                        Ok(())
                    },
                    || 8,
                );
                match r {
                    Ok(()) => assert_ne!(m.durable.load(Relaxed) & 1 << t, 0, "not covered"),
                    Err(e) => assert_eq!((e, flushes.load(SeqCst)), (7, fail_at)),
                }
            }
        };
        let others: Vec<_> = (1..threads)
            .map(|t| {
                let (m, flushes) = (m.clone(), flushes.clone());
                loom::thread::spawn(move || run(&m, &flushes, t))
            })
            .collect();
        run(&m, &flushes, 0);
        for o in others {
            o.join().unwrap();
        }
    });
}

#[test]
fn three_callers() {
    explore(3, 1, u64::MAX);
}

#[test]
fn two_callers_twice() {
    explore(2, 2, u64::MAX);
}

#[test]
fn three_callers_and_a_failure() {
    explore(3, 1, 1);
    explore(3, 1, 2);
}
