//! Points at which threads meet, and a scheduler may decide which of them goes on.
//!
//! Before a thread acts on a lock, a sequence word or a fence pair it calls [`step`]; where it
//! would wait for another thread it calls [`blocked`], and looks again if that answers true.
//! Threads that a scheduler has taken in hand (`direct`) hand over their turn there: only one of
//! them runs at a time, so what they do follows from the scheduler's choices alone, and can be
//! repeated. All other threads, and every program without the feature `schedule`, wait and spin as
//! always.
//!
//! With the feature `jitter` every thread pauses for a random moment at some of its steps: tests
//! with real threads then meet orders that they seldom take by themselves.

use std::time::Duration;

/// The actions of a scheduler for a thread.
#[cfg(feature = "schedule")]
#[derive(Clone, Copy, Debug)]
pub struct Hooks {
    /// The thread is about to act on something shared.
    pub step: fn(),
    /// The thread cannot go on before another did something.
    pub blocked: fn(),
}

#[cfg(feature = "schedule")]
std::thread_local! {
    static HOOKS: std::cell::Cell<Option<Hooks>> = const { std::cell::Cell::new(None) };
}

/// Takes the calling thread in hand, or lets it go. The hooks must not call back into the library.
#[cfg(feature = "schedule")]
pub fn direct(hooks: Option<Hooks>) {
    HOOKS.with(|h| h.set(hooks));
}

#[cfg(feature = "schedule")]
fn hooks() -> Option<Hooks> {
    // A thread that is being torn down has no scheduler any more.
    HOOKS.try_with(std::cell::Cell::get).ok().flatten()
}

/// Announces that the thread is about to act on something that other threads act on.
#[inline]
pub fn step() {
    #[cfg(feature = "schedule")]
    if let Some(h) = hooks() {
        (h.step)();
    }
    #[cfg(feature = "jitter")]
    jitter();
}

/// Pauses: mostly not at all, sometimes for some instructions or until others have had the
/// processor, seldom for up to 128 us.
#[cfg(feature = "jitter")]
fn jitter() {
    use crate::random::Rng;
    use std::sync::atomic::{AtomicU64, Ordering};
    static THREADS: AtomicU64 = AtomicU64::new(1);
    std::thread_local! {
        // Relaxed: each thread gets a number of its own, whichever.
        static RNG: std::cell::RefCell<Rng> =
            std::cell::RefCell::new(Rng::new(THREADS.fetch_add(1, Ordering::Relaxed)));
    }
    // A thread that is being torn down goes on at once.
    let drawn = RNG.try_with(|rng| rng.borrow_mut().bits()).unwrap_or(u64::MAX);
    let long = drawn >> 40;
    match drawn % 128 {
        0 => std::thread::sleep(Duration::from_micros(long % 128)),
        1..4 => std::thread::yield_now(),
        4..12 => (0..long % 1024).for_each(|_| std::hint::spin_loop()),
        _ => {}
    }
}

/// Announces that the thread cannot go on before another did something. Returns true if others were
/// let run, and it is time to look again; false if the caller has to wait by itself.
#[inline]
pub fn blocked() -> bool {
    #[cfg(feature = "schedule")]
    if let Some(h) = hooks() {
        (h.blocked)();
        return true;
    }
    false
}

/// Returns whether a scheduler has the calling thread in hand.
#[inline]
pub fn directed() -> bool {
    #[cfg(feature = "schedule")]
    return hooks().is_some();
    #[cfg(not(feature = "schedule"))]
    false
}

/// Does as `std::hint::spin_loop`, or hands over the turn.
#[inline]
pub fn spin_loop() {
    if !blocked() {
        std::hint::spin_loop();
    }
}

/// Does as `std::thread::yield_now`, or hands over the turn.
#[inline]
pub fn yield_now() {
    if !blocked() {
        std::thread::yield_now();
    }
}

/// Does as `std::thread::sleep`, or hands over the turn.
#[inline]
pub fn sleep(time: Duration) {
    if !blocked() {
        std::thread::sleep(time);
    }
}
