use crate::explore;
use lanefs_sync::changes::{Changes, CounterOf};
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use std::sync::Arc;

/// Two things, each of which is changed once at most.
struct Things {
    changes: Changes,
    values: [AtomicU64; 2],
}

impl Things {
    fn new() -> Things {
        Things { changes: Changes::new(), values: [AtomicU64::new(0), AtomicU64::new(0)] }
    }

    fn sum(&self) -> Option<u64> {
        self.changes.sum((0..2).map(CounterOf::thing))
    }

    fn look(&self) -> [u64; 2] {
        [0, 1].map(|i| self.values[i].load(Ordering::Acquire))
    }

    fn change(&self, i: usize) {
        let _change = self.changes.begin(i as u64);
        self.values[i].store(1, Ordering::Release);
    }

    /// The mistake: it begins behind its first step.
    fn change_first(&self, i: usize) {
        self.values[i].store(1, Ordering::Release);
        drop(self.changes.begin(i as u64));
    }

    /// Another one: it ends before its last step.
    fn end_first(&self, i: usize) {
        drop(self.changes.begin(i as u64));
        self.values[i].store(1, Ordering::Release);
    }
}

/// What was remembered is not believed once another look has shown something later.
fn what_was_seen_is_so_still(change: fn(&Things, usize)) {
    explore(3, move || {
        let things = Arc::new(Things::new());
        let writers: Vec<_> = (0..2)
            .map(|i| {
                let things = things.clone();
                thread::spawn(move || change(&things, i))
            })
            .collect();
        if let Some(sum) = things.sum() {
            let remembered = things.look();
            let later = things.look();
            if things.sum() == Some(sum) {
                assert_eq!(remembered, later, "something old was believed");
            }
            writers.into_iter().for_each(|w| w.join().unwrap());
            if things.sum() == Some(sum) {
                assert_eq!(remembered, [1, 1], "something old was believed");
            }
        }
    });
}

#[test]
fn what_was_remembered_is_believed_only_while_it_is_so() {
    what_was_seen_is_so_still(Things::change);
}

#[test]
#[should_panic(expected = "something old was believed")]
fn a_change_that_begins_behind_its_first_step_is_caught() {
    what_was_seen_is_so_still(Things::change_first);
}

#[test]
#[should_panic(expected = "something old was believed")]
fn a_change_that_ends_before_its_last_step_is_caught() {
    what_was_seen_is_so_still(Things::end_first);
}
