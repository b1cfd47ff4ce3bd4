//! The lock word of a lane: spin briefly, then sleep on a futex.
//!
//! States: `FREE`, `HELD` (nobody sleeps), `CONTENDED` (somebody may sleep).
//!
//! 1. Only `FREE -> HELD` and `FREE -> CONTENDED` take the lock; only the holder writes `FREE`.
//! 2. Who goes to sleep has put `CONTENDED` there first, and sleeps only while the word still holds
//!    it.
//! 3. Who has slept takes the lock as `CONTENDED`, because others may still sleep; the price is at
//!    most one needless wake.
//!
//! From 2 and 3: when a thread sleeps, the word is `CONTENDED` or a wake is on its way to it. So no
//! wake is lost. Uncontended: one compare-exchange to lock, one swap to unlock.

use crate::primitive::{FutexWord, Ordering, SPINS, spin_loop};
use crate::schedule::step;

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// A mutex word without content. See the essay at the head of the file.
#[derive(Debug)]
pub struct RawLock {
    /// Written by who locks (Acquire) and unlocks (Release), each the partner of the other.
    word: FutexWord,
}

impl Default for RawLock {
    fn default() -> Self {
        Self::new()
    }
}

impl RawLock {
    /// Makes a free lock.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { word: FutexWord::new(FREE) }
    }

    /// Makes a free lock.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { word: FutexWord::new(FREE) }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> bool {
        // Acquire: pairs with the Release in `unlock`, so the holder sees all that earlier holders
        // did.
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock, waiting for it.
    #[inline]
    pub fn lock(&self) {
        step();
        if !self.try_lock() {
            self.lock_slow();
        }
    }

    /// Returns whether somebody holds the lock: for who asserts that it does.
    #[inline]
    pub fn is_locked(&self) -> bool {
        // Relaxed: the holder reads its own store.
        self.word.load(Ordering::Relaxed) != FREE
    }

    #[cold]
    fn lock_slow(&self) {
        for _ in 0..SPINS {
            // Relaxed: only a hint; `try_lock` acquires.
            match self.word.load(Ordering::Relaxed) {
                FREE if self.try_lock() => return,
                CONTENDED => break,
                _ => spin_loop(),
            }
        }
        // Acquire: as in `try_lock` for the case that the word was free.
        while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
            self.word.wait(CONTENDED);
        }
        debug_assert!(self.is_locked(), "only the holder frees it (1)");
    }

    /// Gives the lock back. Only its holder may call this.
    #[inline]
    pub fn unlock(&self) {
        // Release: pairs with the Acquire of the next holder.
        let before = self.word.swap(FREE, Ordering::Release);
        debug_assert_ne!(before, FREE, "unlocked a lock that nobody holds");
        debug_assert!(before == HELD || before == CONTENDED, "{before} is no state");
        if before == CONTENDED {
            self.word.wake_one();
        }
    }
}
