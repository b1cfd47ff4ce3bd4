//! Epochs: the intervals between two seals of the lanes' logs.
//!
//! An operation locks its own lane, then the keys it writes, and only then reads the epoch; it
//! appends to the lane's buffer of that epoch and unlocks keys and lane. A seal sets
//! `EPOCH = e + 1` and then locks each lane in turn and takes what the lane has of epoch e.
//!
//! 1. One seal at a time (`sealing`), so every epoch is taken from all lanes before the next one
//!    ends.
//! 2. The epoch is stored before the first lane is locked.
//! 3. Whoever holds lane L after the seal of e has unlocked it reads at least e + 1: the swap
//!    precedes the seal's unlock of L, which the next holder acquires. **So nothing is appended to
//!    a buffer that was taken** (a).
//! 4. An operation that had locked L before the seal came to it may have read e or e + 1. Either
//!    way it appends before it unlocks L, and the seal, which waits for the lock, takes all of it
//!    that is of e. So nothing of e stays behind.
//! 5. If B follows A on a key, B locked the key after A released it, so B's read of the epoch
//!    happens after A's, and by coherence of the one word it returns no smaller value. **So no
//!    operation depends on one of a later epoch** (b): a cut at an epoch has no holes. Reading the
//!    epoch before the key's lock breaks this.
//!
//! Operations never stall on a seal but for the instant in which it holds their own lane; `take`
//! should only swap a buffer out.
//!
//! **Pending.** The lowest bit of the word means that an operation of the running epoch was logged,
//! so that an fsync learns from one load up to which epoch it has to wait for names
//! ([`Epochs::pending`]).
//!
//! 6. The first operation of an epoch sets the bit, by the same atomic step that reads the epoch,
//!    with its lane and its keys locked. The others find it set and write nothing.
//! 7. A seal begins the next epoch with the bit clear, in the step that ends the old one. Nothing
//!    else clears it.
//! 8. **No false "nothing pending"**: an operation of epoch e returned after it had read (e, set).
//!    Who begins after that reads the same value or that of a later epoch, by coherence of the one
//!    word; either way [`Epochs::pending`] is at least e.
//! 9. Operations that nobody waits for (the end of an inode) do not set the bit
//!    ([`Epochs::current`]); a seal takes them like the others. Where nobody asks what is pending
//!    the bit is always set, so that operations never write the line.

use crate::lanes::Lanes;
use crate::primitive::{AtomicU64, CachePadded, Mutex, Ordering};

/// The epoch word and its seal. See the essay at the head of the file.
pub struct Epochs {
    /// The running epoch, shifted left by one, and the bit of 6. Written by each seal and by the
    /// first operation of an epoch.
    current: CachePadded<AtomicU64>,
    sealing: CachePadded<Mutex<()>>,
    /// The bit that each epoch begins with: 1 where nobody asks for it (9).
    first: u64,
}

impl Epochs {
    /// Epochs that begin with `start`, of which nobody asks what is pending.
    pub fn new(start: u64) -> Self {
        Self::of(start, 1)
    }

    /// Epochs that begin with `start` and know whether an operation of the running one was logged.
    pub fn with_pending(start: u64) -> Self {
        Self::of(start, 0)
    }

    fn of(start: u64, first: u64) -> Self {
        debug_assert!(first <= 1, "one bit");
        debug_assert!(start < u64::MAX >> 1, "the word has no space for epoch {start}");
        debug_assert!(first == 1 || start > 0, "`pending` answers with the epoch before the first");
        let word = AtomicU64::new(start << 1 | first);
        Self { current: CachePadded::new(word), sealing: CachePadded::new(Mutex::new(())), first }
    }

    /// Returns the epoch of an operation that others may wait for, which counts as pending from
    /// here on. Called with its lane and its keys locked (5).
    #[inline]
    pub fn enter(&self) -> u64 {
        // Acquire: see `current`. AcqRel: the same, and the bit is one of the word's values (8);
        // its partner is the swap in `seal`.
        let word = self.current.load(Ordering::Acquire);
        let word = if word & 1 == 0 { self.current.fetch_or(1, Ordering::AcqRel) } else { word };
        debug_assert!(word >> 1 > 0, "0 is before every epoch");
        word >> 1
    }

    /// Returns the running epoch. An operation that nobody waits for calls this with its lane and
    /// its keys locked (9).
    #[inline]
    pub fn current(&self) -> u64 {
        // The invariants need no more than Relaxed: 3 gets its order from the lane's lock, 5 from
        // the key's. Acquire (free on x86) pairs with the swap in `seal`, for those who look
        // without a lock.
        self.current.load(Ordering::Acquire) >> 1
    }

    /// Returns the last epoch that an operation which returned before this call may belong to (8).
    #[inline]
    pub fn pending(&self) -> u64 {
        // Acquire: pairs with `enter` and `seal`; that the value is not older than that of an
        // operation which returned before is coherence.
        let word = self.current.load(Ordering::Acquire);
        debug_assert!(word >> 1 > 0);
        (word >> 1) - (!word & 1)
    }

    /// Ends the running epoch and takes it from the first `used` lanes; returns it. `take` gets the
    /// lane's index, its content and the sealed epoch, with the lane locked.
    ///
    /// Waits for a seal under way. The caller must not hold a lane, and sees to it that no
    /// operation of the running epoch is in a lane behind these: a lane comes into use under a lock
    /// that the caller holds.
    pub fn seal<T, S>(
        &self,
        lanes: &Lanes<T, S>,
        used: usize,
        mut take: impl FnMut(usize, &mut T, u64),
    ) -> u64 {
        debug_assert!(used <= lanes.len());
        let _one_at_a_time = self.sealing.lock();
        // Relaxed: only a sealer changes the epoch in the word, and the mutex orders the sealers.
        let sealed = self.current.load(Ordering::Relaxed) >> 1;
        // A swap, not a store, because of operations that set the bit meanwhile; whichever comes
        // first, each of them learns its epoch by the same step (6). AcqRel: pairs with `enter` and
        // `current`. That it precedes the takes (2) is program order; that a lane's next holder
        // sees it is the lane lock's doing (3).
        let old = self.current.swap((sealed + 1) << 1 | self.first, Ordering::AcqRel);
        debug_assert_eq!(old >> 1, sealed, "another seal ended the epoch");
        debug_assert!(old & 1 >= self.first, "the bit was cleared where it is always set (9)");
        for lane in 0..used {
            take(lane, &mut lanes.lock(lane), sealed);
        }
        debug_assert_eq!(self.current(), sealed + 1, "another seal began before this one was done (1)");
        sealed
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn what_is_pending_is_what_returned_and_was_not_sealed() {
        let lanes = Lanes::new(2, |_| ());
        let epochs = Epochs::with_pending(7);
        assert_eq!((epochs.pending(), epochs.current()), (6, 7));
        assert_eq!((epochs.enter(), epochs.pending(), epochs.enter()), (7, 7, 7));
        assert_eq!(epochs.seal(&lanes, lanes.len(), |_, _, _| ()), 7);
        assert_eq!((epochs.pending(), epochs.current()), (7, 8));
        assert_eq!(epochs.seal(&lanes, lanes.len(), |_, _, _| ()), 8);
        assert_eq!(epochs.pending(), 8, "the empty epoch of the seal");
        let careless = Epochs::new(7);
        assert_eq!((careless.pending(), careless.enter(), careless.pending()), (7, 7, 7));
    }

    #[test]
    fn a_seal_takes_each_operation_once_in_its_epoch() {
        const EACH: u64 = 30_000;
        let lanes = Lanes::new(3, |_| Vec::<(u64, u64)>::new());
        let epochs = Epochs::new(10);
        let done = AtomicBool::new(false);
        let mut taken = Vec::new();
        let take = |taken: &mut Vec<(u64, u64)>| {
            epochs.seal(&lanes, lanes.len(), |_, log, sealed| {
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
                            let epoch = epochs.enter();
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
