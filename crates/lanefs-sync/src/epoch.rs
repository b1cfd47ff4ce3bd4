//! Epochs: the intervals between two seals of the lanes' logs.
//!
//! An operation locks its own lane, then the keys it writes, and only then reads the epoch; it appends to the lane's
//! buffer of that epoch and unlocks keys and lane. A seal stores `EPOCH = e + 1` and then locks each lane in turn and
//! takes what the lane has of epoch e.
//!
//! 1. One seal at a time (`sealing`), so every epoch is taken from all lanes before the next one ends.
//! 2. The epoch is stored before the first lane is locked.
//! 3. Whoever holds lane L after the seal of e has unlocked it reads at least e + 1: the store precedes the seal's unlock
//!    of L, which the next holder acquires. **So nothing is appended to a buffer that was taken** (a).
//! 4. An operation that had locked L before the seal came to it may have read e or e + 1. Either way it appends before it
//!    unlocks L, and the seal, which waits for the lock, takes all of it that is of e. So nothing of e stays behind.
//! 5. If B follows A on a key, B locked the key after A released it, so B's read of the epoch happens after A's, and by
//!    coherence of the one word it returns no smaller value. **So no operation depends on one of a later epoch** (b): a
//!    cut at an epoch has no holes. Reading the epoch before the key's lock breaks this.
//!
//! Operations never stall on a seal but for the instant in which it holds their own lane; `take` should only
//! swap a buffer out.

use crate::lanes::Lanes;
use crate::primitive::{AtomicU64, CachePadded, Mutex, Ordering};

/// The epoch word and its seal. See the essay at the head of the file.
pub struct Epochs {
    current: CachePadded<AtomicU64>,
    sealing: CachePadded<Mutex<()>>,
}

impl Epochs {
    /// Epochs that begin with `start`.
    pub fn new(start: u64) -> Self {
        Self { current: CachePadded::new(AtomicU64::new(start)), sealing: CachePadded::new(Mutex::new(())) }
    }

    /// The running epoch. An operation calls this with its lane and its keys locked (5).
    #[inline]
    pub fn current(&self) -> u64 {
        // The invariants need no more than Relaxed: 3 gets its order from the lane's lock, 5 from the key's. Acquire
        // (free on x86) pairs with the store in `seal`, for those who look without a lock.
        self.current.load(Ordering::Acquire)
    }

    /// Ends the running epoch and takes it from every lane; returns it. `take` gets the lane's index, its content and
    /// the sealed epoch, with the lane locked.
    ///
    /// Waits for a seal under way. The caller must not hold a lane.
    pub fn seal<T, S>(&self, lanes: &Lanes<T, S>, mut take: impl FnMut(usize, &mut T, u64)) -> u64 {
        let _one_at_a_time = self.sealing.lock();
        // Relaxed: only a sealer writes the word, and the mutex orders the sealers.
        let sealed = self.current.load(Ordering::Relaxed);
        // Release: pairs with `current`. That the store precedes the takes (2) is program order; that a lane's next holder
        // sees it is the lane lock's doing (3).
        self.current.store(sealed + 1, Ordering::Release);
        for lane in 0..lanes.len() {
            take(lane, &mut lanes.lock(lane), sealed);
        }
        sealed
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_seal_takes_each_operation_once_in_its_epoch() {
        const EACH: u64 = 30_000;
        let lanes = Lanes::new(3, |_| Vec::<(u64, u64)>::new());
        let epochs = Epochs::new(10);
        let done = AtomicBool::new(false);
        let mut taken = Vec::new();
        let take = |taken: &mut Vec<(u64, u64)>| {
            epochs.seal(&lanes, |_, log, sealed| {
                let (now, later): (Vec<_>, Vec<_>) = log.drain(..).partition(|entry| entry.0 == sealed);
                assert!(later.iter().all(|entry| entry.0 > sealed), "an operation of an epoch taken before");
                taken.extend(now);
                *log = later;
            })
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4u64)
                .map(|worker| {
                    let (lanes, epochs) = (&lanes, &epochs);
                    scope.spawn(move || {
                        for number in 0..EACH {
                            let mut log = lanes.lock(lanes.mine());
                            let epoch = epochs.current();
                            log.push((epoch, worker * EACH + number));
                        }
                    })
                })
                .collect();
            let sealer = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    take(&mut taken);
                }
                take(&mut taken);
            });
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            done.store(true, Ordering::Relaxed);
            sealer.join().unwrap();
        });
        let mut numbers: Vec<_> = taken.iter().map(|entry| entry.1).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..4 * EACH).collect::<Vec<_>>());
        assert!(epochs.current() > 10);
    }
}
