use crate::explore;
use lanefs_sync::{Epochs, Lanes};
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use std::sync::Arc;

type Log = Vec<u64>;

/// What the operations below need of epochs, so that planted mistakes run through the same checks.
trait Seals: Send + Sync + 'static {
    fn new() -> Self;
    fn current(&self) -> u64;
    /// Seals, and returns the sealed epoch with how many operations of it were taken.
    fn seal(&self, lanes: &Lanes<Log>) -> (u64, usize);
}

fn take(log: &mut Log, sealed: u64) -> usize {
    assert!(log.iter().all(|epoch| *epoch >= sealed), "an operation of an epoch that was taken before");
    let before = log.len();
    log.retain(|epoch| *epoch != sealed);
    before - log.len()
}

impl Seals for Epochs {
    fn new() -> Self {
        Epochs::with_pending(1)
    }
    fn current(&self) -> u64 {
        Epochs::enter(self)
    }
    fn seal(&self, lanes: &Lanes<Log>) -> (u64, usize) {
        let mut taken = 0;
        let sealed = Epochs::seal(self, lanes, lanes.len(), |_, log, sealed| taken += take(log, sealed));
        (sealed, taken)
    }
}

/// Planted mistake: the epoch ends only after the lanes were taken.
struct TakesFirst(AtomicU64);

impl Seals for TakesFirst {
    fn new() -> Self {
        Self(AtomicU64::new(0))
    }
    fn current(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
    fn seal(&self, lanes: &Lanes<Log>) -> (u64, usize) {
        let sealed = self.0.load(Ordering::Relaxed);
        let taken = (0..lanes.len()).map(|lane| take(&mut lanes.lock(lane), sealed)).sum();
        self.0.store(sealed + 1, Ordering::Release);
        (sealed, taken)
    }
}

/// (a): every operation is taken by the seal of its own epoch, none is appended behind it.
fn nothing_is_left_behind<E: Seals>() {
    explore(4, || {
        let lanes = Arc::new(Lanes::new(2, |_| Log::new()));
        let epochs = Arc::new(E::new());
        let threads: Vec<_> = (0..2)
            .map(|lane| {
                let (lanes, epochs) = (lanes.clone(), epochs.clone());
                thread::spawn(move || {
                    let mut log = lanes.lock(lane);
                    let epoch = epochs.current();
                    log.push(epoch);
                })
            })
            .collect();
        let (first, mut taken) = epochs.seal(&lanes);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let (second, rest) = epochs.seal(&lanes);
        taken += rest;
        assert_eq!((second - first, taken), (1, 2));
    });
}

#[test]
fn a_seal_leaves_nothing_behind() {
    nothing_is_left_behind::<Epochs>();
}

#[test]
#[should_panic(expected = "an operation of an epoch that was taken before")]
fn a_seal_that_takes_before_it_ends_the_epoch_is_caught() {
    nothing_is_left_behind::<TakesFirst>();
}

/// (b): an operation that follows another on a key is of no earlier epoch.
fn keys_never_go_back(epoch_under_the_key: bool) {
    explore(3, move || {
        let lanes = Arc::new(Lanes::new(2, |_| Log::new()));
        // A key is a lock and the epoch of its last change.
        let key = Arc::new(Lanes::new(1, |_| 0u64));
        let epochs = Arc::new(Epochs::new(0));
        let threads: Vec<_> = (0..2)
            .map(|lane| {
                let (lanes, key, epochs) = (lanes.clone(), key.clone(), epochs.clone());
                thread::spawn(move || {
                    let mut log = lanes.lock(lane);
                    let early = if epoch_under_the_key { None } else { Some(epochs.enter()) };
                    let mut last = key.lock(0);
                    let epoch = early.unwrap_or_else(|| epochs.enter());
                    assert!(epoch >= *last, "a dependency on a later epoch");
                    *last = epoch;
                    log.push(epoch);
                })
            })
            .collect();
        Seals::seal(&*epochs, &lanes);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn no_operation_depends_on_a_later_epoch() {
    keys_never_go_back(true);
}

#[test]
#[should_panic(expected = "a dependency on a later epoch")]
fn reading_the_epoch_before_the_key_is_locked_is_caught() {
    keys_never_go_back(false);
}

/// (8): who begins after an operation returned is told of its epoch, or of a later one; a quiet
/// volume is told of none.
fn nothing_pending_is_never_false(set_before_the_unlock: bool) {
    explore(4, move || {
        let lanes = Arc::new(Lanes::new(1, |_| Log::new()));
        let epochs = Arc::new(Epochs::with_pending(1));
        let returned = Arc::new(AtomicU64::new(0));
        let operation = {
            let (lanes, epochs, returned) = (lanes.clone(), epochs.clone(), returned.clone());
            thread::spawn(move || {
                let mut log = lanes.lock(0);
                let epoch = if set_before_the_unlock { epochs.enter() } else { epochs.current() };
                log.push(epoch);
                drop(log);
                returned.store(epoch, Ordering::Release);
                if !set_before_the_unlock {
                    epochs.enter();
                }
            })
        };
        let sealer = {
            let (lanes, epochs) = (lanes.clone(), epochs.clone());
            thread::spawn(move || {
                Seals::seal(&*epochs, &lanes);
            })
        };
        let before = returned.load(Ordering::Acquire);
        assert!(epochs.pending() >= before, "an operation that returned is not pending");
        operation.join().unwrap();
        sealer.join().unwrap();
    });
}

#[test]
fn what_returned_is_pending() {
    nothing_pending_is_never_false(true);
}

#[test]
#[should_panic(expected = "an operation that returned is not pending")]
fn an_operation_that_tells_of_itself_too_late_is_caught() {
    nothing_pending_is_never_false(false);
}

/// Seals from two threads end one epoch each.
#[test]
fn one_seal_at_a_time() {
    explore(4, || {
        let lanes = Arc::new(Lanes::new(1, |_| Log::new()));
        let epochs = Arc::new(Epochs::new(0));
        let other = {
            let (lanes, epochs) = (lanes.clone(), epochs.clone());
            thread::spawn(move || Seals::seal(&*epochs, &lanes).0)
        };
        let mine = Seals::seal(&*epochs, &lanes).0;
        let theirs = other.join().unwrap();
        assert_eq!((mine.min(theirs), mine.max(theirs), epochs.current()), (0, 1, 2));
    });
}
