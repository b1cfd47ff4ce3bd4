//! The sequence word of a page descriptor: readers copy without a lock and check afterwards,
//! writers lock.
//!
//! Bit 0 is the lock, bit 1 means that somebody may sleep, the rest is the sequence.
//!
//! 1. Bit 1 is set only together with bit 0: a free word is a pure sequence number (a multiple of
//!    4).
//! 2. Only the holder of bit 0 changes the sequence, and only when it lets go.
//! 3. What the word guards is written only by the holder, with racy copies or relaxed atomics.
//! 4. A reader that saw a free word before its copy and the same word after it has copied no byte
//!    of a later write: had it copied one, then, by the fences in `locked` and `validate`, its
//!    second look would see the lock bit of that write or a later sequence. The sequence returns to
//!    a value after 2^30 writes; a reader does not sleep that long.
//! 5. Who has slept locks with bit 1 set, since others may still sleep (as in `raw_lock`), so no
//!    wake is lost.
//! 6. Who waits only as long as something holds that a holder may change ([`SeqWord::lock_while`])
//!    looks at that again before each sleep, and sleeps a moment at most: the holders that change
//!    it wake one sleeper, as all do, and not each. Who goes away after a sleep wakes another, for
//!    the wake that it had may have been meant for all (5).
//!
//! A page is locked only for a copy of at most 4 KiB, so waiters spin before they sleep.

use crate::primitive::{FutexWord, Ordering, SPINS, fence, spin_loop};
use crate::schedule::step;

const LOCKED: u32 = 1;
const SLEEPERS: u32 = 2;
const STEP: u32 = 4;

const _: () = assert!(LOCKED | SLEEPERS == STEP - 1, "the sequence begins above the two bits");

/// A sequence and a lock in four bytes. See the essay at the head of the file.
#[derive(Debug)]
pub struct SeqWord {
    /// Written by who locks and unlocks. Acquire in `take` and `begin_read`, partner: the Release
    /// swap in `release`. The other loads are Relaxed: they are repeated by a compare-exchange,
    /// come behind a fence, or are the holder's own.
    word: FutexWord,
}

impl Default for SeqWord {
    fn default() -> Self {
        Self::new()
    }
}

impl SeqWord {
    /// Makes a free word.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { word: FutexWord::new(0) }
    }

    /// Makes a free word.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { word: FutexWord::new(0) }
    }

    /// Returns the sequence to check against after a copy; `None` while a writer holds the lock.
    #[inline]
    pub fn begin_read(&self) -> Option<u32> {
        // Acquire: pairs with the Release in `release`, so the copy sees at least what the writers
        // up to this sequence wrote.
        let seen = self.word.load(Ordering::Acquire);
        debug_assert_ne!(seen & (STEP - 1), SLEEPERS, "sleepers of a free word (1)");
        (seen & LOCKED == 0).then_some(seen)
    }

    /// Returns whether somebody holds the lock: for who asserts that it does.
    #[inline]
    pub fn is_locked(&self) -> bool {
        // Relaxed: the holder reads its own store.
        self.word.load(Ordering::Relaxed) & LOCKED != 0
    }

    /// Returns whether nothing was written since `begin_read` returned `seq`.
    #[inline]
    pub fn validate(&self, seq: u32) -> bool {
        debug_assert_eq!(seq % STEP, 0, "not a sequence that begin_read returned");
        step();
        // Acquire fence: pairs with the Release fence in `locked`. A copy that read a byte of a
        // later write then sees that write's lock bit in the load below (4).
        fence(Ordering::Acquire);
        self.word.load(Ordering::Relaxed) == seq
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> bool {
        let seen = self.word.load(Ordering::Relaxed);
        seen & LOCKED == 0 && self.take(seen, LOCKED)
    }

    /// Takes the lock, waiting for it.
    #[inline]
    pub fn lock(&self) {
        step();
        if !self.try_lock() {
            self.lock_slow(None);
        }
    }

    /// Takes the lock, waiting for it as long as `wanted` holds, which is asked without the lock
    /// and where somebody else has it. Returns whether it was taken.
    ///
    /// For who holds another lock meanwhile, and may wait for this one only as long as it is the
    /// one that it meant. To be asked again with the lock: what `wanted` says may be over by then.
    #[inline]
    pub fn lock_while(&self, wanted: impl Fn() -> bool) -> bool {
        step();
        self.try_lock() || self.lock_slow(Some(&wanted))
    }

    #[inline]
    fn take(&self, seen: u32, bits: u32) -> bool {
        debug_assert_eq!(seen % STEP, 0, "only a free word is taken (1)");
        debug_assert!(bits == LOCKED || bits == LOCKED | SLEEPERS, "{bits:#x}");
        // Acquire: pairs with the Release in `release`; the holder sees what earlier holders wrote.
        let taken =
            self.word.compare_exchange(seen, seen | bits, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if taken {
            // Release fence: the lock bit is visible before any byte written under it (4); pairs
            // with `validate`.
            fence(Ordering::Release);
        }
        taken
    }

    #[cold]
    fn lock_slow(&self, wanted: Option<&dyn Fn() -> bool>) -> bool {
        let mut bits = LOCKED;
        let mut spins = SPINS;
        loop {
            let seen = self.word.load(Ordering::Relaxed);
            if seen & LOCKED == 0 {
                if self.take(seen, bits) {
                    return true;
                }
            } else if spins > 0 {
                spins -= 1;
                spin_loop();
            } else if wanted.is_some_and(|wanted| !wanted()) {
                if bits & SLEEPERS != 0 {
                    self.word.wake_one(); // see 6
                }
                return false;
            } else {
                let asleep = seen | SLEEPERS;
                // Relaxed: the bit guards nothing; the wake it asks for orders nothing either.
                if seen == asleep
                    || self.word.compare_exchange(seen, asleep, Ordering::Relaxed, Ordering::Relaxed).is_ok()
                {
                    match wanted {
                        None => self.word.wait(asleep),
                        Some(_) => self.word.wait_a_moment(asleep),
                    }
                    bits = LOCKED | SLEEPERS;
                }
            }
        }
    }

    /// Gives the lock back after a write. Only its holder may call this.
    #[inline]
    pub fn unlock(&self) {
        self.release(STEP);
    }

    /// Gives the lock back after a section that wrote nothing: readers that began before it stay
    /// valid.
    #[inline]
    pub fn unlock_unchanged(&self) {
        self.release(0);
    }

    #[inline]
    fn release(&self, step: u32) {
        debug_assert!(step == 0 || step == STEP, "{step}");
        // Relaxed: the holder alone changes the bits that are kept.
        let held = self.word.load(Ordering::Relaxed);
        debug_assert_ne!(held & LOCKED, 0, "unlocked a sequence word that nobody holds");
        let free = (held & !(LOCKED | SLEEPERS)).wrapping_add(step);
        // Release: pairs with `begin_read` and `take`.
        let before = self.word.swap(free, Ordering::Release);
        debug_assert_eq!(before & !SLEEPERS, held & !SLEEPERS, "another thread let go of it meanwhile (2)");
        if before & SLEEPERS != 0 {
            self.word.wake_one();
        }
    }

    /// Takes the lock for the life of a guard.
    #[inline]
    pub fn guard(&self) -> SeqGuard<'_> {
        self.lock();
        SeqGuard { word: self, unchanged: false }
    }
}

/// A held sequence word; lets go on drop.
#[derive(Debug)]
pub struct SeqGuard<'a> {
    word: &'a SeqWord,
    unchanged: bool,
}

impl SeqGuard<'_> {
    /// Ends a section that wrote nothing, so readers under way need not repeat.
    pub fn unchanged(mut self) {
        self.unchanged = true;
    }
}

impl Drop for SeqGuard<'_> {
    fn drop(&mut self) {
        self.word.release(if self.unchanged { 0 } else { STEP });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::racy_copy::{copy_racy, fill_racy};
    use std::cell::UnsafeCell;
    use std::sync::atomic::AtomicBool;

    struct Page(SeqWord, UnsafeCell<[u8; 4096]>);
    // SAFETY: the content is touched only by racy copies, writers under the word's lock.
    unsafe impl Sync for Page {}

    #[test]
    fn a_validated_copy_is_never_torn() {
        let page = Page(SeqWord::new(), UnsafeCell::new([0; 4096]));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (1..3u8)
                .map(|salt| {
                    let page = &page;
                    scope.spawn(move || {
                        for round in 0..20_000u32 {
                            page.0.lock();
                            // SAFETY: in bounds, and this thread holds the lock.
                            unsafe { fill_racy(page.1.get().cast(), (round as u8).wrapping_mul(salt), 4096) };
                            page.0.unlock();
                        }
                    })
                })
                .collect();
            for _ in 0..2 {
                let (page, stop) = (&page, &stop);
                scope.spawn(move || {
                    let mut copy = [0u8; 4096];
                    let mut valid = 0;
                    while !stop.load(Ordering::Relaxed) || valid == 0 {
                        let Some(seq) = page.0.begin_read() else { continue };
                        // SAFETY: both sides are 4096 bytes; the race is what the racy copy is for.
                        unsafe { copy_racy(page.1.get().cast(), copy.as_mut_ptr(), 4096) };
                        if page.0.validate(seq) {
                            valid += 1;
                            assert!(copy.iter().all(|byte| *byte == copy[0]), "torn");
                        }
                    }
                });
            }
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(page.0.begin_read(), Some(40_000 * STEP));
    }

    #[test]
    fn readers_survive_an_unchanged_section_and_not_a_write() {
        let word = SeqWord::new();
        let seq = word.begin_read().unwrap();
        let guard = word.guard();
        assert!(word.begin_read().is_none() && !word.validate(seq) && !word.try_lock());
        guard.unchanged();
        assert!(word.validate(seq));
        drop(word.guard());
        assert!(!word.validate(seq));
        assert!(word.try_lock());
        word.unlock();
    }

    #[test]
    fn the_word_is_four_bytes() {
        assert_eq!(size_of::<SeqWord>(), 4);
    }
}
