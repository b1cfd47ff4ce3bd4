//! Points at which threads meet, and a scheduler may decide which of them goes on.
//!
//! Before a thread acts on a lock, a sequence word or a fence pair it calls [`step`]; where it
//! would wait for another thread it calls [`blocked`], and looks again if that answers true.
//! Threads that a scheduler has taken in hand (`direct`) hand over their turn there: only one of
//! them runs at a time, so what they do follows from the scheduler's choices alone, and can be
//! repeated. All other threads, and every program without the feature `schedule`, wait and spin as
//! always.

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
