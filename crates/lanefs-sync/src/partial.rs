//! Looking, without a lock, at a chain that may hold only a part of what there is.
//!
//! A chain is *complete* when it holds every member of its range; only then does a miss mean that
//! there is none. Whoever writes holds the chain's lock. Members come and go in three ways.
//!
//! 1. An operation adds or removes one member: one Release store. A reader may see it or not.
//! 2. A *loader* adds members that existed all along, with Release stores, and marks the chain
//!    complete after the last of them (Release). It leaves the sequence alone, so that readers who
//!    found what they wanted need not start over.
//! 3. An *eviction* takes members away that go on existing. It makes the sequence odd, takes the
//!    mark off, removes them, and makes the sequence even again.
//!
//! A reader looks at the sequence, then at the mark, then at the chain, then at the sequence again.
//! The mark comes before the chain: a mark that is seen was set behind everything the loader added,
//! so all of that is seen too. A reader that looked at the chain first could see it as it was
//! before a load and the mark as it is behind it, with the same sequence at both looks, and would
//! take a member that exists for absent. What an eviction removes between the mark and the chain
//! shows in the sequence.

use crate::primitive::{AtomicU8, AtomicU32, Ordering, fence};
use crate::schedule::step;

/// The bit of a chain's flags which means that it is complete.
pub const COMPLETE: u8 = 1;

const _: () = assert!(COMPLETE.is_power_of_two());

/// The state that a reader saw before it looked at the chain.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    seq: u32,
    complete: bool,
}

impl Look {
    /// Begins a look; `None` while members vanish or move.
    #[inline(always)]
    pub fn begin(seq: &AtomicU32, flags: &AtomicU8) -> Option<Look> {
        // Acquire: the mark and the chain are read behind it. Pairs with the Release in
        // `end_taking`.
        let seq = seq.load(Ordering::Acquire);
        if seq & 1 == 1 {
            return None;
        }
        step();
        // Acquire: the chain is read behind it. Pairs with the Release in `set_complete`.
        let complete = flags.load(Ordering::Acquire) & COMPLETE != 0;
        Some(Look { seq, complete })
    }

    /// Returns whether a miss means that there is no such member, provided that the look still
    /// holds.
    #[inline(always)]
    pub fn is_complete(self) -> bool {
        self.complete
    }

    /// Returns whether nothing vanished or moved since the look began.
    #[inline(always)]
    pub fn holds(self, seq: &AtomicU32) -> bool {
        step();
        // Acquire fence: pairs with the Release fence in `begin_taking`. Who saw the chain without
        // a member that was taken out sees the odd sequence or a later one.
        fence(Ordering::Acquire);
        seq.load(Ordering::Relaxed) == self.seq
    }
}

/// Makes readers start over, until [`end_taking`] (chain locked).
#[inline]
pub fn begin_taking(seq: &AtomicU32) {
    // Relaxed: only the holder of the lock stores here.
    let now = seq.load(Ordering::Relaxed);
    debug_assert_eq!(now & 1, 0, "members are taken away already");
    seq.store(now | 1, Ordering::Relaxed);
    // Release fence: the odd sequence is seen before anything that happens to the chain. Pairs with
    // `Look::holds`.
    fence(Ordering::Release);
}

/// Lets readers look again, with an even sequence that was not in use before (chain locked).
#[inline]
pub fn end_taking(seq: &AtomicU32, next: u32) {
    debug_assert_eq!(next & 1, 0);
    // Relaxed: this thread's own store.
    debug_assert_eq!(seq.load(Ordering::Relaxed) & 1, 1, "end_taking without begin_taking");
    debug_assert_ne!(seq.load(Ordering::Relaxed), next | 1, "the sequence of before is in use still");
    // Release: pairs with `Look::begin`.
    seq.store(next, Ordering::Release);
}

/// Marks the chain as complete, behind the last member that was added, or as not (chain locked).
#[inline]
pub fn set_complete(flags: &AtomicU8, on: bool) {
    step();
    // Release: pairs with `Look::begin`. A read-modify-write, since others change other flags
    // without the lock; theirs carry the release on.
    if on {
        flags.fetch_or(COMPLETE, Ordering::Release);
    } else {
        flags.fetch_and(!COMPLETE, Ordering::Release);
    }
    // Relaxed: nobody else changes this flag while the chain is locked.
    debug_assert_eq!(flags.load(Ordering::Relaxed) & COMPLETE != 0, on, "another has the chain");
}
