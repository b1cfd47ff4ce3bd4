//! The lanes that threads sit in.
//!
//! A thread takes a lane of a set at its first use and gives it back when it exits. The first to
//! come to a free lane is its **owner**; when every lane has an owner, further threads
//! are **guests** in the lane with the fewest threads. Owning matters only to protocols that save
//! an atomic by it (the reader pass-through semaphore): everything else must be right with any
//! number of threads in a lane, because it locks.
//!
//! Invariants:
//! 1. At every instant a lane has at most one owner.
//! 2. A thread that takes a lane over happens after everything its former owner did before it
//!    exited (both go through the table's mutex), so what owners write with plain stores is handed
//!    on.
//! 3. A thread keeps its seat in a set until it exits; the numbers of sets are never reused, so a
//!    cached seat never names another set.
//!
//! The look-up is a thread-local array of a few recently used seats, initialised at compile time
//! and without a destructor, so it costs two loads and a compare. In the last moments of a thread,
//! when its seats are given back already (other thread-local destructors may still run), it is a
//! guest of lane 0.

use crate::primitive::{Mutex, per_thread};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The largest number of lanes of a set.
pub const MAX_LANES: usize = 128;

/// A thread's place in a set of lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The lane's index.
    pub lane: usize,
    /// Whether no other thread is the lane's owner.
    pub owner: bool,
}

/// A set of lanes, with the threads that sit in them.
#[derive(Debug)]
pub struct LaneIds {
    serial: u64,
    lanes: usize,
    table: Mutex<Vec<Occupancy>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Occupancy {
    owned: bool,
    guests: u32,
}

#[derive(Clone, Copy)]
struct Cached {
    serial: u64,
    lane: u32,
    owner: bool,
}

const CACHED: usize = 4;
/// No set has this number.
const NOBODY: u64 = 0;
const NOTHING: Cached = Cached { serial: NOBODY, lane: 0, owner: false };

const _: () = assert!(MAX_LANES <= u32::MAX as usize, "a lane fits in a cached seat");

struct Holding {
    serial: u64,
    set: Weak<LaneIds>,
    seat: Seat,
}

/// Seats of one thread, given back on drop.
struct Holdings(RefCell<Vec<Holding>>);

per_thread! {
    static CACHE: [Cell<Cached>; CACHED] = const { [const { Cell::new(NOTHING) }; CACHED] };
}

per_thread! {
    static HOLDINGS: Holdings = const { Holdings(RefCell::new(Vec::new())) };
}

impl Drop for Holdings {
    fn drop(&mut self) {
        // First forget the cached seats, so that nothing later in this thread's exit believes to be
        // an owner.
        let _ = CACHE.try_with(|cache| cache.iter().for_each(|entry| entry.set(NOTHING)));
        for holding in self.0.get_mut().drain(..) {
            if let Some(set) = holding.set.upgrade() {
                set.give_back(holding.seat);
            }
        }
    }
}

impl LaneIds {
    /// Makes a set of `lanes` lanes, at least 1 and at most [`MAX_LANES`].
    ///
    /// # Panics
    /// If the number is out of range.
    pub fn new(lanes: usize) -> Arc<Self> {
        assert!((1..=MAX_LANES).contains(&lanes), "1 to {MAX_LANES} lanes, not {lanes}");
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed: the numbers only have to differ.
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        debug_assert_ne!(serial, NOBODY, "an empty cache entry would name the set (3)");
        Arc::new(Self { serial, lanes, table: Mutex::new(vec![Occupancy::default(); lanes]) })
    }

    /// Returns the number of lanes.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.lanes
    }

    /// Returns the calling thread's lane, taken now if this is its first use of the set.
    #[inline]
    pub fn mine(self: &Arc<Self>) -> usize {
        self.seat().lane
    }

    /// Returns the calling thread's lane and whether it owns it.
    #[inline]
    pub fn seat(self: &Arc<Self>) -> Seat {
        let cached = CACHE.try_with(|cache| cache[self.serial as usize % CACHED].get()).unwrap_or(NOTHING);
        if cached.serial == self.serial {
            debug_assert!((cached.lane as usize) < self.lanes, "a seat of another set (3)");
            return Seat { lane: cached.lane as usize, owner: cached.owner };
        }
        self.seat_slow()
    }

    #[cold]
    fn seat_slow(self: &Arc<Self>) -> Seat {
        let seat = HOLDINGS.try_with(|holdings| {
            let mut held = holdings.0.borrow_mut();
            if let Some(holding) = held.iter().find(|holding| holding.serial == self.serial) {
                debug_assert!(
                    std::ptr::eq(holding.set.as_ptr(), &raw const **self),
                    "numbers are unique (3)"
                );
                return holding.seat;
            }
            // Rare enough to sweep out the sets that are gone.
            held.retain(|holding| holding.set.strong_count() > 0);
            let seat = self.take();
            debug_assert!(seat.lane < self.lanes);
            held.push(Holding { serial: self.serial, set: Arc::downgrade(self), seat });
            seat
        });
        let Ok(seat) = seat else {
            return Seat { lane: 0, owner: false };
        };
        let entry = Cached { serial: self.serial, lane: seat.lane as u32, owner: seat.owner };
        let _ = CACHE.try_with(|cache| cache[self.serial as usize % CACHED].set(entry));
        seat
    }

    fn take(&self) -> Seat {
        let mut table = self.table.lock();
        // An empty lane, else one without owner, else the one with the fewest guests; the lowest of
        // equals, so that a pool of short-lived threads keeps to few lanes.
        let choice = table.iter().enumerate().min_by_key(|(_, lane)| (lane.owned, lane.guests));
        let lane = choice.map_or(0, |(lane, _)| lane);
        debug_assert!(
            !table[lane].owned || table.iter().all(|lane| lane.owned),
            "a lane is free to be owned"
        );
        let occupancy = &mut table[lane];
        let owner = !occupancy.owned;
        if owner {
            occupancy.owned = true;
        } else {
            occupancy.guests += 1;
        }
        Seat { lane, owner }
    }

    fn give_back(&self, seat: Seat) {
        let occupancy = &mut self.table.lock()[seat.lane];
        if seat.owner {
            debug_assert!(occupancy.owned, "lane {} has lost its owner before (1)", seat.lane);
            occupancy.owned = false;
        } else {
            debug_assert!(occupancy.guests > 0, "lane {} has no guest", seat.lane);
            occupancy.guests -= 1;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn a_thread_keeps_its_seat_and_gives_it_back() {
        let ids = LaneIds::new(4);
        let first = ids.seat();
        assert_eq!(first, Seat { lane: 0, owner: true });
        assert_eq!(ids.seat(), first);
        for _ in 0..10 {
            let ids = ids.clone();
            let seat = std::thread::spawn(move || ids.seat()).join().unwrap();
            assert_eq!(seat, Seat { lane: 1, owner: true }, "the lane of a thread that left is free again");
        }
    }

    #[test]
    fn more_threads_than_lanes_share_and_only_one_owns() {
        let ids = LaneIds::new(2);
        let barrier = Arc::new(Barrier::new(7));
        let threads: Vec<_> = (0..7)
            .map(|_| {
                let (ids, barrier) = (ids.clone(), barrier.clone());
                std::thread::spawn(move || {
                    let seat = ids.seat();
                    barrier.wait();
                    assert_eq!(ids.seat(), seat);
                    seat
                })
            })
            .collect();
        let seats: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        for lane in 0..2 {
            assert_eq!(seats.iter().filter(|seat| seat.lane == lane && seat.owner).count(), 1);
            assert!(seats.iter().filter(|seat| seat.lane == lane).count() >= 3);
        }
        assert!(ids.table.lock().iter().all(|lane| !lane.owned && lane.guests == 0));
    }

    #[test]
    fn many_sets_at_once_do_not_mix_up_seats() {
        let sets: Vec<_> = (0..20).map(|_| LaneIds::new(3)).collect();
        let other = {
            let sets = sets[..10].to_vec();
            let barrier = Arc::new(Barrier::new(2));
            let theirs = barrier.clone();
            let thread = std::thread::spawn(move || {
                sets.iter().for_each(|set| assert_eq!(set.mine(), 0));
                theirs.wait();
                theirs.wait();
            });
            barrier.wait();
            (thread, barrier)
        };
        for _ in 0..3 {
            for (number, set) in sets.iter().enumerate() {
                assert_eq!(set.mine(), usize::from(number < 10));
            }
        }
        other.1.wait();
        other.0.join().unwrap();
    }
}
