use crate::explore;
use lanefs_sync::{LaneIds, Rps};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// What the semaphore guards: loom reports an access that is not excluded or not ordered.
struct Guarded {
    rps: Rps,
    value: UnsafeCell<u32>,
}

// SAFETY: `value` is written only inside `rps.write()` and read only inside `rps.read()`; that this
// suffices is what is tested.
unsafe impl Sync for Guarded {}
// SAFETY: as above.
unsafe impl Send for Guarded {}

impl Guarded {
    fn new(lanes: usize) -> Arc<Self> {
        Arc::new(Self { rps: Rps::new(LaneIds::new(lanes)), value: UnsafeCell::new(0) })
    }

    fn read(&self) -> u32 {
        let _inside = self.rps.read();
        // SAFETY: inside as a reader.
        self.value.with(|value| unsafe { *value })
    }

    fn write(&self) {
        let _inside = self.rps.write();
        // SAFETY: inside as the writer.
        self.value.with_mut(|value| unsafe { *value += 1 });
    }

    fn spawn(self: &Arc<Self>, act: impl Fn(&Self) + Send + 'static) -> thread::JoinHandle<()> {
        let this = self.clone();
        thread::spawn(move || act(&this))
    }
}

#[test]
fn a_writer_excludes_a_reader_and_both_get_in() {
    explore(4, || {
        let guarded = Guarded::new(2);
        let reader = guarded.spawn(|guarded| {
            let first = guarded.read();
            assert!(guarded.read() >= first);
        });
        guarded.write();
        reader.join().unwrap();
        assert_eq!(guarded.read(), 1);
    });
}

/// The last of two readers wakes the writer; neither leaves it to the other.
#[test]
fn no_wakeup_is_lost_between_two_readers() {
    explore(2, || {
        let guarded = Guarded::new(2);
        let readers = [0, 1].map(|_| guarded.spawn(|guarded| _ = guarded.read()));
        guarded.write();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

/// Owner and guest in the same lane.
#[test]
fn a_shared_lane_counts_both() {
    explore(2, || {
        let guarded = Guarded::new(1);
        let readers = [0, 1].map(|_| guarded.spawn(|guarded| _ = guarded.read()));
        guarded.write();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

#[test]
fn two_writers_exclude_each_other_and_a_reader() {
    explore(2, || {
        let guarded = Guarded::new(3);
        let writer = guarded.spawn(Guarded::write);
        let reader = guarded.spawn(|guarded| _ = guarded.read());
        guarded.write();
        writer.join().unwrap();
        reader.join().unwrap();
        assert_eq!(guarded.read(), 2);
    });
}

/// A nested read does not wait for a writer that waits for the outer one. The main thread owns the
/// only lane, or is a guest in it.
#[test]
fn nested_reads_do_not_deadlock() {
    for nested_is_owner in [true, false] {
        explore(3, move || {
            let guarded = Guarded::new(1);
            let nested = |guarded: &Guarded| {
                let outer = guarded.rps.read();
                let value = guarded.read();
                drop(outer);
                assert!(value <= 1);
            };
            if nested_is_owner {
                drop(guarded.rps.read());
                let writer = guarded.spawn(Guarded::write);
                nested(&guarded);
                writer.join().unwrap();
            } else {
                drop(guarded.rps.read());
                let reader = guarded.spawn(nested);
                guarded.write();
                reader.join().unwrap();
            }
        });
    }
}

/// A lane's next owner goes on with the counts of the last.
#[test]
fn a_lane_is_handed_on() {
    explore(3, || {
        let guarded = Guarded::new(2);
        let writer = guarded.spawn(Guarded::write);
        for _ in 0..2 {
            guarded.spawn(|guarded| _ = guarded.read()).join().unwrap();
        }
        writer.join().unwrap();
    });
}
