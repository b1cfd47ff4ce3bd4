use crate::explore;
use lanefs_sync::{LaneIds, Lanes};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// The lane lock excludes, and wakes whoever sleeps: the cell inside is watched, a lost wakeup
/// deadlocks.
#[test]
fn three_threads_in_one_lane() {
    explore(3, || {
        let lanes = Arc::new(Lanes::new(1, |_| 0));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let lanes = lanes.clone();
                thread::spawn(move || *lanes.lock(0) += 1)
            })
            .collect();
        *lanes.lock(0) += 1;
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*lanes.lock(0), 3);
    });
}

/// Locking again after having slept: the contended state is handed on.
#[test]
fn two_threads_lock_twice() {
    explore(4, || {
        let lanes = Arc::new(Lanes::new(1, |_| 0));
        let other = {
            let lanes = lanes.clone();
            thread::spawn(move || (0..2).for_each(|_| *lanes.lock(0) += 1))
        };
        (0..2).for_each(|_| *lanes.lock(0) += 1);
        other.join().unwrap();
        assert_eq!(*lanes.lock(0), 4);
    });
}

/// A lane has at most one owner at a time, and what an owner wrote plainly is handed on to the
/// next: loom reports an access to the cell that is not ordered after the last.
#[test]
fn one_owner_a_lane() {
    struct Owned(UnsafeCell<u32>);
    // SAFETY: only owners touch the cell; that they never meet is what is tested.
    unsafe impl Sync for Owned {}
    // SAFETY: as above.
    unsafe impl Send for Owned {}

    explore(4, || {
        let ids = LaneIds::new(1);
        let owned = Arc::new(Owned(UnsafeCell::new(0)));
        let visit = |ids: &Arc<LaneIds>, owned: &Owned| {
            let seat = ids.seat();
            assert_eq!(seat, ids.seat());
            if seat.owner {
                // SAFETY: at most one thread owns the lane.
                owned.0.with_mut(|count| unsafe { *count += 1 });
            }
        };
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (ids, owned) = (ids.clone(), owned.clone());
                thread::spawn(move || visit(&ids, &owned))
            })
            .collect();
        visit(&ids, &owned);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
