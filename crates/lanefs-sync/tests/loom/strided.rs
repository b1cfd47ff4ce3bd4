use crate::explore;
use lanefs_sync::StridedCounter;
use loom::thread;
use std::sync::Arc;

/// A counter over two lanes whose stashes are open, with nothing in the pool and this in the
/// stashes.
fn stashed(first: u64, second: u64) -> Arc<StridedCounter> {
    let counter = StridedCounter::new(64, 2, 4);
    assert!(counter.try_sub(0, 60) && counter.try_sub(0, 4), "the pool is emptied without a gather");
    assert_eq!(counter.estimate(), 0);
    counter.add(0, first);
    counter.add(1, second);
    assert_eq!(counter.estimate(), 0, "all of it is in the stashes");
    Arc::new(counter)
}

/// The trap of emptying stashes one by one: tokens come to a lane that was passed and leave one
/// that is to come. The total never falls below five, so nobody may be refused.
#[test]
fn a_refusal_needs_a_true_shortage() {
    for lane in 0..2 {
        explore(4, move || {
            let counter = stashed(0, 5);
            let other = {
                let counter = counter.clone();
                thread::spawn(move || {
                    counter.add(0, 5);
                    assert!(counter.try_sub(1, 5), "refused with five there");
                })
            };
            assert!(counter.try_sub(lane, 5), "refused with five there");
            other.join().unwrap();
            assert_eq!(counter.exact(), 0);
        });
    }
}

/// Three takers, tokens for two: exactly two get them, whatever stash they lie in.
#[test]
fn no_token_is_granted_twice_and_none_is_missed() {
    explore(3, || {
        let counter = stashed(3, 1);
        let others = [0, 1].map(|lane| {
            let counter = counter.clone();
            thread::spawn(move || u32::from(counter.try_sub(lane, 2)))
        });
        let mut granted = u32::from(counter.try_sub(0, 2));
        granted += others.into_iter().map(|thread| thread.join().unwrap()).sum::<u32>();
        assert_eq!(granted, 2);
        assert_eq!(counter.exact(), 0);
    });
}

/// Closing and opening again while others take and give: the sum stays.
#[test]
fn opening_again_loses_nothing() {
    explore(3, || {
        let counter = stashed(2, 2);
        let other = {
            let counter = counter.clone();
            thread::spawn(move || {
                counter.sub_forced(1, 6);
                counter.add(1, 80);
            })
        };
        counter.add(0, 1);
        let granted = i64::from(counter.try_sub(0, 1));
        other.join().unwrap();
        assert_eq!(counter.exact(), 4 + 1 - granted - 6 + 80);
    });
}

/// O14: at every look, what was granted and what the pool shows do not exceed the capacity.
#[test]
fn the_pool_never_lies_above_the_total() {
    explore(4, || {
        let counter = Arc::new(StridedCounter::new(64, 2, 4));
        let other = {
            let counter = counter.clone();
            thread::spawn(move || {
                assert!(counter.try_sub(1, 3));
                // Seen by the thread that was granted: its own tokens are gone from the pool.
                assert!(counter.estimate() <= 61);
            })
        };
        assert!(counter.try_sub(0, 2));
        assert!(counter.estimate() <= 62);
        other.join().unwrap();
        assert!(counter.estimate() <= 59);
        assert_eq!(counter.exact(), 59);
    });
}
