//! Lanes: per-thread, cache-line-padded slots, each behind a lock of its own.
//!
//! A lane has two parts, on lines of their own: `T`, reached through the lane's lock, and `S`,
//! shared, reached by anybody at any time and therefore made of atomics. The lock word lies on the
//! first line of `T`, so that a thread in its own lane pulls in one line for both.
//!
//! 1. `T` of lane L is touched only by the holder of L's lock.
//! 2. A lane that is taken over keeps its state: nothing is reset when a thread leaves.
//! 3. A thread may hold several lanes' locks only in ascending order (an fsync's closure), and
//!    never asks for one it holds.
//!
//! **Callers must not do I/O, sleep or wait for another thread while they hold a lane's lock**: it
//! is nearly always held by its own thread, for some hundred nanoseconds, and a seal walks over all
//! of them.

use crate::lane_ids::{LaneIds, Seat};
use crate::primitive::{CachePadded, MutPtr, WatchedCell};
use crate::raw_lock::RawLock;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A set of lanes with content. See the essay at the head of the file.
pub struct Lanes<T, S = ()> {
    ids: Arc<LaneIds>,
    lanes: Box<[Lane<T, S>]>,
}

struct Lane<T, S> {
    locked: CachePadded<Locked<T>>,
    shared: CachePadded<S>,
}

struct Locked<T> {
    lock: RawLock,
    content: WatchedCell<T>,
}

// SAFETY: `T` is reached only through the lane's lock, by one thread at a time (invariant 1), so
// sharing the lanes moves `T` between threads (`T: Send`) but never shares it; `S` is shared as it
// is (`S: Sync`).
unsafe impl<T: Send, S: Send + Sync> Sync for Lanes<T, S> {}
// SAFETY: the lanes own their content; moving them moves it.
unsafe impl<T: Send, S: Send> Send for Lanes<T, S> {}

impl<T> Lanes<T> {
    /// Makes `n` lanes without a shared part; `make` is called with each index.
    ///
    /// # Panics
    /// If `n` is 0 or above [`MAX_LANES`](crate::MAX_LANES).
    pub fn new(n: usize, mut make: impl FnMut(usize) -> T) -> Self {
        Self::with_shared(LaneIds::new(n), |lane| (make(lane), ()))
    }
}

impl<T, S> Lanes<T, S> {
    /// Makes lanes with a shared part each, in the given set of seats: structures that share the
    /// set agree on every thread's lane.
    pub fn with_shared(ids: Arc<LaneIds>, mut make: impl FnMut(usize) -> (T, S)) -> Self {
        debug_assert!((1..=crate::MAX_LANES).contains(&ids.len()));
        let lanes = (0..ids.len())
            .map(|lane| {
                let (locked, shared) = make(lane);
                Lane {
                    locked: CachePadded::new(Locked {
                        lock: RawLock::new(),
                        content: WatchedCell::new(locked),
                    }),
                    shared: CachePadded::new(shared),
                }
            })
            .collect();
        Self { ids, lanes }
    }

    /// Returns the set of seats, to build further structures on.
    pub fn ids(&self) -> &Arc<LaneIds> {
        &self.ids
    }

    /// Returns the number of lanes.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Returns the calling thread's lane; taken at its first use, given back when the thread exits.
    #[inline]
    pub fn mine(&self) -> usize {
        self.ids.mine()
    }

    /// Returns the calling thread's lane and whether it is the lane's owner.
    #[inline]
    pub fn seat(&self) -> Seat {
        let seat = self.ids.seat();
        debug_assert!(seat.lane < self.lanes.len());
        seat
    }

    /// Locks a lane. Not to be held over I/O; see the head of the file for the order between lanes.
    ///
    /// # Panics
    /// If there is no such lane.
    #[inline]
    pub fn lock(&self, lane: usize) -> LaneGuard<'_, T> {
        let locked = &*self.lanes[lane].locked;
        #[cfg(debug_assertions)]
        held::check_order(self.lanes.as_ptr_range(), std::ptr::from_ref(locked).addr());
        locked.lock.lock();
        LaneGuard::of_held(locked)
    }

    /// Locks a lane if it is free.
    ///
    /// # Panics
    /// If there is no such lane.
    #[inline]
    pub fn try_lock(&self, lane: usize) -> Option<LaneGuard<'_, T>> {
        let locked = &*self.lanes[lane].locked;
        locked.lock.try_lock().then(|| LaneGuard::of_held(locked))
    }

    /// Returns the shared part of a lane.
    ///
    /// # Panics
    /// If there is no such lane.
    #[inline]
    pub fn shared(&self, lane: usize) -> &S {
        &self.lanes[lane].shared
    }

    /// Returns the locked part of a lane, by exclusive access to all of them.
    pub fn get_mut(&mut self, lane: usize) -> &mut T {
        let locked = &mut *self.lanes[lane].locked;
        debug_assert!(!locked.lock.is_locked(), "a guard was forgotten");
        locked.content.get_mut()
    }
}

/// A locked lane; dereferences to its content and unlocks on drop.
pub struct LaneGuard<'a, T> {
    locked: &'a Locked<T>,
    content: ManuallyDrop<MutPtr<T>>,
    // A guard that changed threads would be unlocked by somebody who is not in the lane; nothing
    // needs that.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl<'a, T> LaneGuard<'a, T> {
    fn of_held(locked: &'a Locked<T>) -> Self {
        debug_assert!(locked.lock.is_locked(), "a guard is of a lane that is locked");
        #[cfg(debug_assertions)]
        held::add(std::ptr::from_ref(locked).addr());
        let content = ManuallyDrop::new(locked.content.get_mut_ptr());
        Self { locked, content, _not_send: std::marker::PhantomData }
    }
}

impl<T> Deref for LaneGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        debug_assert!(self.locked.lock.is_locked(), "unlocked while a guard lives (1)");
        // SAFETY: this guard holds the lane's lock (invariant 1); the guard is borrowed as long as
        // the reference lives.
        unsafe { self.content.content() }
    }
}

impl<T> DerefMut for LaneGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        debug_assert!(self.locked.lock.is_locked(), "unlocked while a guard lives (1)");
        // SAFETY: as in `deref`, and the guard is borrowed mutably.
        unsafe { self.content.content() }
    }
}

impl<T> Drop for LaneGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: dropped once, here, and not used again: loom must see the access end before the
        // lock is free.
        unsafe { ManuallyDrop::drop(&mut self.content) };
        #[cfg(debug_assertions)]
        held::remove(std::ptr::from_ref(self.locked).addr());
        self.locked.lock.unlock();
    }
}

/// The lanes that this thread has locked, of all sets, by address: for invariant 3.
#[cfg(debug_assertions)]
mod held {
    use crate::primitive::per_thread;
    use std::cell::RefCell;
    use std::ops::Range;

    per_thread! {
        static HELD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    }

    /// Checks that a thread which is about to wait for a lane of a set has only lower ones of it.
    pub fn check_order<L>(set: Range<*const L>, lane: usize) {
        let set = set.start.addr()..set.end.addr();
        debug_assert!(set.contains(&lane), "a lane of another set");
        // A thread that is being torn down is not checked.
        let highest = HELD.try_with(|held| held.borrow().iter().filter(|h| set.contains(h)).max().copied());
        let highest = highest.unwrap_or(None);
        debug_assert_ne!(highest, Some(lane), "a thread asks for a lane that it holds");
        debug_assert!(highest.is_none_or(|h| h < lane), "lanes are locked in ascending order");
    }

    /// Notes a lane that was locked.
    pub fn add(lane: usize) {
        let _ = HELD.try_with(|held| held.borrow_mut().push(lane));
    }

    /// Forgets a lane that is about to be unlocked.
    pub fn remove(lane: usize) {
        let _ = HELD.try_with(|held| held.borrow_mut().retain(|h| *h != lane));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn more_threads_than_lanes_lose_no_update() {
        let lanes = Lanes::new(2, |_| 0u64);
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        *lanes.lock(lanes.mine()) += 1;
                    }
                });
            }
        });
        assert_eq!((0..2).map(|lane| *lanes.lock(lane)).sum::<u64>(), 120_000);
    }

    #[test]
    fn try_lock_sees_a_holder_and_a_lane_keeps_its_state() {
        let lanes = Lanes::with_shared(LaneIds::new(2), |lane| (lane, lane * 10));
        let mut held = lanes.lock(1);
        *held = 7;
        assert!(lanes.try_lock(1).is_none());
        assert!(lanes.try_lock(0).is_some());
        drop(held);
        assert_eq!(*lanes.try_lock(1).unwrap(), 7);
        assert_eq!(*lanes.shared(1), 10);
    }

    #[test]
    fn lanes_lie_on_lines_of_their_own() {
        let lanes = Lanes::with_shared(LaneIds::new(2), |_| (0u8, 0u8));
        let address = |lane: usize| {
            (&*lanes.lock(lane) as *const u8 as usize, lanes.shared(lane) as *const u8 as usize)
        };
        let (first, second) = (address(0), address(1));
        let lines = [first.0, first.1, second.0, second.1].map(|address| address / 128);
        assert_eq!(std::collections::HashSet::from(lines).len(), 4);
    }
}
