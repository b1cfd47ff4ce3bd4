//! The one door to `std` or loom: atomics, fences, a mutex, cells, thread-locals and futex parking.
//!
//! Nothing else in this crate names `std::sync`'s locks or atomics (statics that only number things
//! excepted), so that the loom tests run the code that ships and not a copy of it.
//!
//! **Fences in pairs.** Two calls of [`full_fence`] work together: of two threads that each store,
//! pass it and load the other's word, at least one sees the other's store.

pub use crossbeam_utils::CachePadded;

#[cfg(not(loom))]
mod imp {
    pub use crate::lock::{Mutex, MutexGuard};
    pub use crate::schedule::spin_loop;
    #[cfg(not(lanefs_tsan))]
    pub use std::sync::atomic::fence;
    pub use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};

    /// Stands for the fences, which ThreadSanitizer does not know: here all of them write one word,
    /// one after the other. That orders more than fences do, so a race that only a fence of another
    /// kind would forbid is not reported; loom looks for those.
    #[cfg(lanefs_tsan)]
    pub fn fence(_order: Ordering) {
        // Written by everybody. SeqCst, each the partner of all others: that is what it is for.
        static ALL: AtomicU32 = AtomicU32::new(0);
        ALL.fetch_add(1, Ordering::SeqCst);
    }

    /// A cell whose accesses loom can watch.
    #[derive(Default)]
    pub struct WatchedCell<T>(std::cell::UnsafeCell<T>);

    /// A pointer into a [`WatchedCell`]; while it lives, loom counts the cell as mutably borrowed.
    pub struct MutPtr<T>(*mut T);

    impl<T> WatchedCell<T> {
        /// Makes a cell that holds `value`.
        pub const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        /// Returns a pointer for exclusive use; the caller's lock makes it exclusive.
        #[inline]
        pub fn get_mut_ptr(&self) -> MutPtr<T> {
            MutPtr(self.0.get())
        }

        /// Returns the content, by exclusive access to the cell.
        #[inline]
        pub fn get_mut(&mut self) -> &mut T {
            self.0.get_mut()
        }
    }

    impl<T> MutPtr<T> {
        /// Returns the content.
        ///
        /// # Safety
        /// Nobody else may use the cell while the reference lives.
        #[inline]
        #[allow(clippy::mut_from_ref)]
        pub unsafe fn content(&self) -> &mut T {
            // SAFETY: the pointer comes from a live cell (its owner outlives the lock guard that
            // holds this), and the caller promises to be alone.
            unsafe { &mut *self.0 }
        }
    }

    /// A 32-bit atomic that threads can sleep on. Dereferences to the atomic: the orderings are the
    /// user's. The kernel compares it with what is expected under its own lock.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct FutexWord(AtomicU32);

    impl FutexWord {
        /// Makes a word with this value.
        pub const fn new(value: u32) -> Self {
            Self(AtomicU32::new(value))
        }

        /// Sleeps while the word holds `expected`. May return early; callers loop.
        pub fn wait(&self, expected: u32) {
            self.wait_at_most(expected, None);
        }

        /// Does as `wait`, for a few milliseconds at most.
        pub fn wait_a_moment(&self, expected: u32) {
            self.wait_at_most(expected, Some(&libc::timespec { tv_sec: 0, tv_nsec: 2_000_000 }));
        }

        fn wait_at_most(&self, expected: u32, most: Option<&libc::timespec>) {
            if crate::schedule::blocked() {
                return;
            }
            debug_assert!(most.is_none_or(|t| (0..1_000_000_000).contains(&t.tv_nsec)));
            // SAFETY: the address is that of a live, aligned u32 borrowed for the whole call, and
            // so is the time; a null timeout means "no timeout". Every failure (EAGAIN, EINTR,
            // ETIMEDOUT) is a return the caller must expect anyway.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.0.as_ptr(),
                    libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                    expected,
                    most.map_or(std::ptr::null(), std::ptr::from_ref),
                );
            }
        }

        /// Wakes one sleeper.
        pub fn wake_one(&self) {
            self.wake(1);
        }

        /// Wakes all sleepers.
        pub fn wake_all(&self) {
            self.wake(i32::MAX);
        }

        fn wake(&self, count: i32) {
            debug_assert!(count > 0, "wakes nobody");
            // SAFETY: FUTEX_WAKE does not touch the memory behind the address, it is only a key.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.0.as_ptr(),
                    libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                    count,
                );
            }
        }
    }

    impl std::ops::Deref for FutexWord {
        type Target = AtomicU32;

        #[inline]
        fn deref(&self) -> &AtomicU32 {
            &self.0
        }
    }

    /// Passes one side of a fence pair.
    #[inline]
    pub fn full_fence() {
        crate::schedule::step();
        fence(Ordering::SeqCst);
    }
}

#[cfg(loom)]
mod imp {
    pub use loom::hint::spin_loop;
    pub use loom::sync::MutexGuard;
    pub use loom::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

    /// A mutex without poison.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// Makes a mutex around `value`.
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        /// Locks.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }

    /// A cell whose accesses loom can watch.
    pub struct WatchedCell<T>(loom::cell::UnsafeCell<T>);

    /// A pointer into a [`WatchedCell`]; while it lives, loom counts the cell as mutably borrowed.
    pub struct MutPtr<T>(loom::cell::MutPtr<T>);

    impl<T> WatchedCell<T> {
        /// Makes a cell that holds `value`.
        pub fn new(value: T) -> Self {
            Self(loom::cell::UnsafeCell::new(value))
        }

        /// Returns a pointer for exclusive use; the caller's lock makes it exclusive.
        pub fn get_mut_ptr(&self) -> MutPtr<T> {
            MutPtr(self.0.get_mut())
        }

        /// Returns the content, by exclusive access to the cell.
        pub fn get_mut(&mut self) -> &mut T {
            // SAFETY: `&mut self` proves that nobody else uses the cell, and the result keeps it
            // borrowed.
            self.0.with_mut(|content| unsafe { &mut *content })
        }
    }

    impl<T> MutPtr<T> {
        /// Returns the content.
        ///
        /// # Safety
        /// Nobody else may use the cell while the reference lives.
        #[allow(clippy::mut_from_ref)]
        pub unsafe fn content(&self) -> &mut T {
            // SAFETY: passed on to the caller; loom checks it.
            unsafe { self.0.deref() }
        }
    }

    /// A 32-bit atomic that threads can sleep on. Dereferences to the atomic.
    ///
    /// The gate stands for the kernel's queue lock: the comparison and the falling asleep are one
    /// step against wakes, and a wake that comes before is not remembered. So a lost wakeup shows
    /// as loom's deadlock.
    #[derive(Debug)]
    pub struct FutexWord {
        word: AtomicU32,
        gate: loom::sync::Mutex<()>,
        sleepers: loom::sync::Condvar,
    }

    impl FutexWord {
        /// Makes a word with this value.
        pub fn new(value: u32) -> Self {
            Self {
                word: AtomicU32::new(value),
                gate: loom::sync::Mutex::new(()),
                sleepers: loom::sync::Condvar::new(),
            }
        }

        /// Sleeps while the word holds `expected`. May return early; callers loop.
        pub fn wait(&self, expected: u32) {
            let gate = self.gate.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            // Whoever woke before holds the gate before, so this load sees what it stored.
            if self.word.load(Ordering::Relaxed) == expected {
                drop(self.sleepers.wait(gate));
            }
        }

        /// Does as `wait`: what must not be missed does not depend on the time.
        pub fn wait_a_moment(&self, expected: u32) {
            self.wait(expected);
        }

        /// Wakes one sleeper.
        pub fn wake_one(&self) {
            let _gate = self.gate.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            self.sleepers.notify_one();
        }

        /// Wakes all sleepers.
        pub fn wake_all(&self) {
            let _gate = self.gate.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            self.sleepers.notify_all();
        }
    }

    impl std::ops::Deref for FutexWord {
        type Target = AtomicU32;

        fn deref(&self) -> &AtomicU32 {
            &self.word
        }
    }

    /// Passes one side of a fence pair.
    pub fn full_fence() {
        fence(Ordering::SeqCst);
    }
}

pub use imp::*;

/// A thread-local that starts from a constant: `std`'s, or one that belongs to loom's threads.
macro_rules! per_thread {
    ($(#[$attr:meta])* static $name:ident: $type:ty = const { $init:expr };) => {
        #[cfg(not(loom))]
        std::thread_local! { $(#[$attr])* static $name: $type = const { $init }; }
        #[cfg(loom)]
        loom::thread_local! { $(#[$attr])* static $name: $type = $init; }
    };
}
pub(crate) use per_thread;

/// The number of looks that a waiter takes before it sleeps. A wake across cores costs tens of
/// microseconds, a look a few nanoseconds; the sections waited for here are far shorter than a
/// wake.
#[cfg(not(loom))]
pub const SPINS: u32 = if cfg!(feature = "schedule") { 0 } else { 200 };
/// Loom explores the interleavings itself, spinning only repeats them.
#[cfg(loom)]
pub const SPINS: u32 = 0;

/// Returns a number that no other live thread has, never zero.
pub fn thread_token() -> usize {
    #[cfg(not(loom))]
    {
        std::thread_local!(static TOKEN: u8 = const { 0 });
        let token = TOKEN.with(|token| std::ptr::from_ref(token).addr());
        debug_assert_ne!(token, 0);
        token
    }
    #[cfg(loom)]
    {
        // Not an address, which a thread of the same execution may have had that has ended: loom
        // does not know that the allocator's lock lies between the two.
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(1);
        loom::thread_local! {
            static TOKEN: usize = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
        }
        TOKEN.with(|token| *token)
    }
}
