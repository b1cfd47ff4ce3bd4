//! Mutexes, reader-writer locks and condition variables of the crates above: `parking_lot`'s. With
//! the feature `schedule` the same locks hand over the turn instead of waiting, see
//! [`crate::schedule`].

#[cfg(not(feature = "schedule"))]
pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(feature = "schedule")]
pub use scheduled::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Takes a mutex if that takes no longer than `limit`.
pub fn try_lock_for<T>(mutex: &Mutex<T>, limit: std::time::Duration) -> Option<MutexGuard<'_, T>> {
    #[cfg(not(feature = "schedule"))]
    return mutex.try_lock_for(limit);
    #[cfg(feature = "schedule")]
    {
        let since = std::time::Instant::now();
        loop {
            match mutex.try_lock() {
                None if since.elapsed() < limit => crate::schedule::yield_now(),
                guard => return guard,
            }
        }
    }
}

#[cfg(feature = "schedule")]
mod scheduled {
    use crate::schedule::{blocked, step};
    use parking_lot::lock_api;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    /// A mutex that can be scheduled.
    pub struct RawMutex(parking_lot::RawMutex);

    // SAFETY: the lock is parking_lot's; it is held exactly between a success of its `try_lock` or
    // `lock` and its `unlock`.
    unsafe impl lock_api::RawMutex for RawMutex {
        #[allow(clippy::declare_interior_mutable_const)]
        const INIT: RawMutex = RawMutex(parking_lot::RawMutex::INIT);
        type GuardMarker = <parking_lot::RawMutex as lock_api::RawMutex>::GuardMarker;

        fn lock(&self) {
            step();
            while !self.0.try_lock() {
                if !blocked() {
                    return self.0.lock();
                }
            }
        }

        fn try_lock(&self) -> bool {
            step();
            self.0.try_lock()
        }

        unsafe fn unlock(&self) {
            debug_assert!(self.is_locked(), "nobody holds it");
            // SAFETY: the caller holds the lock.
            unsafe { self.0.unlock() }
        }

        // No step: what only asserts must not change the schedule.
        fn is_locked(&self) -> bool {
            self.0.is_locked()
        }
    }

    /// A reader-writer lock that can be scheduled.
    pub struct RawRwLock(parking_lot::RawRwLock);

    // SAFETY: as for the mutex.
    unsafe impl lock_api::RawRwLock for RawRwLock {
        #[allow(clippy::declare_interior_mutable_const)]
        const INIT: RawRwLock = RawRwLock(parking_lot::RawRwLock::INIT);
        type GuardMarker = <parking_lot::RawRwLock as lock_api::RawRwLock>::GuardMarker;

        fn lock_shared(&self) {
            step();
            while !self.0.try_lock_shared() {
                if !blocked() {
                    return self.0.lock_shared();
                }
            }
        }

        fn try_lock_shared(&self) -> bool {
            step();
            self.0.try_lock_shared()
        }

        unsafe fn unlock_shared(&self) {
            debug_assert!(self.0.is_locked(), "nobody holds it");
            // SAFETY: the caller holds it.
            unsafe { self.0.unlock_shared() }
        }

        fn lock_exclusive(&self) {
            step();
            while !self.0.try_lock_exclusive() {
                if !blocked() {
                    return self.0.lock_exclusive();
                }
            }
        }

        fn try_lock_exclusive(&self) -> bool {
            step();
            self.0.try_lock_exclusive()
        }

        unsafe fn unlock_exclusive(&self) {
            debug_assert!(self.0.is_locked_exclusive(), "nobody holds it");
            // SAFETY: the caller holds it.
            unsafe { self.0.unlock_exclusive() }
        }
    }

    /// See `parking_lot::Mutex`.
    pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;
    /// See `parking_lot::MutexGuard`.
    pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex, T>;
    /// See `parking_lot::RwLock`.
    pub type RwLock<T> = lock_api::RwLock<RawRwLock, T>;
    /// See `parking_lot::RwLockReadGuard`.
    pub type RwLockReadGuard<'a, T> = lock_api::RwLockReadGuard<'a, RawRwLock, T>;
    /// See `parking_lot::RwLockWriteGuard`.
    pub type RwLockWriteGuard<'a, T> = lock_api::RwLockWriteGuard<'a, RawRwLock, T>;

    /// A condition variable whose waits may end early, as callers must expect of any.
    #[derive(Debug, Default)]
    pub struct Condvar {
        /// Counts notifications. Relaxed: the mutex orders what they are about.
        wakes: AtomicU32,
    }

    /// The end of a wait: by its time or before.
    #[derive(Clone, Copy, Debug)]
    pub struct WaitTimeoutResult(bool);

    impl WaitTimeoutResult {
        /// Returns whether the wait ended by its time.
        pub fn timed_out(&self) -> bool {
            self.0
        }
    }

    impl Condvar {
        /// Makes a condition variable that nobody waits on.
        pub const fn new() -> Condvar {
            Condvar { wakes: AtomicU32::new(0) }
        }

        /// Gives the mutex back, waits, and takes it again.
        pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
            self.wait_for(guard, Duration::MAX);
        }

        /// Does the same, for a limited time.
        pub fn wait_for<T: ?Sized>(
            &self,
            guard: &mut MutexGuard<'_, T>,
            limit: Duration,
        ) -> WaitTimeoutResult {
            let before = self.wakes.load(Ordering::Relaxed);
            let since = Instant::now();
            let mut late = false;
            MutexGuard::unlocked(guard, || {
                while !blocked() && self.wakes.load(Ordering::Relaxed) == before {
                    if since.elapsed() >= limit {
                        late = true;
                        return;
                    }
                    std::thread::sleep(Duration::from_micros(50));
                }
            });
            WaitTimeoutResult(late)
        }

        /// Wakes one.
        pub fn notify_one(&self) -> bool {
            self.notify_all() > 0
        }

        /// Wakes all.
        pub fn notify_all(&self) -> usize {
            self.wakes.fetch_add(1, Ordering::Relaxed);
            1
        }
    }
}
