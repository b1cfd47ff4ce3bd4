//! Open slots: which inodes are held open, kept in the opener's lane so that `open` writes no line
//! of the file.

use lanefs_format::Ino;
use lanefs_sync::CachePadded;
use lanefs_sync::lock::{Mutex, RwLock};
use std::collections::HashSet;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};

const CHUNK: usize = 256;

/// A lane's open slots. Any thread may read or clear a slot; mostly the lane's own thread fills
/// them.
///
/// A slot is taken by a SeqCst compare-exchange: see [`OpenSlots::take`]. Its partner is the SeqCst
/// load in [`OpenSlots::collect`], which also finds, by the Release of `give_back`, what was done
/// to the inode before it was closed. The looks for a free slot are Relaxed: hints.
///
/// Only slots below `most` were ever taken: who reads all slots of all lanes, most of which have no
/// thread, looks at few. It is raised before a slot is taken (SeqCst), and who finds it high enough
/// finds it by an Acquire load; so whoever reads it (SeqCst) before it was raised came before the
/// slot was taken, and what he marked before that is seen by the taker's recheck.
pub(crate) struct OpenSlots {
    first: Box<First>,
    /// More slots, added when the first are all taken. The lock is taken for writing only to add a
    /// chunk.
    more: RwLock<Vec<[AtomicU64; CHUNK]>>,
    /// The slot at which the search for a free one begins. Relaxed: a hint, any value is right.
    hint: AtomicUsize,
    /// Slots of `first` from this one on were never taken. Beside `hint`.
    most: AtomicUsize,
}

/// The slots that most lanes do with, and on lines of its own what the others need beside.
#[repr(C)]
struct First {
    slots: [AtomicU64; CHUNK],
    /// The numbers of those of `more` that are free: a lane may have a million files open, and who
    /// opens one more is not to look at all. Whoever takes a number out has the slot to itself.
    spare: CachePadded<Mutex<Vec<usize>>>,
}

fn chunk() -> [AtomicU64; CHUNK] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

/// Frees a slot for who took it.
fn free(slot: &AtomicU64) {
    // Relaxed: nobody else writes a slot that is taken.
    debug_assert_ne!(slot.load(Relaxed), 0, "a slot is given back once");
    slot.store(0, Release);
}

impl OpenSlots {
    pub fn new() -> OpenSlots {
        OpenSlots {
            first: Box::new(First { slots: chunk(), spare: CachePadded::new(Mutex::new(Vec::new())) }),
            more: RwLock::new(Vec::new()),
            hint: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        }
    }

    /// Takes a slot for `ino`; returns its number. SeqCst: ordered before the caller's recheck that
    /// the inode still lives, against the reaper that marks it and then reads the slots.
    pub fn take(&self, ino: Ino) -> usize {
        debug_assert!(!ino.is_none(), "0 is a free slot");
        let hint = self.hint.load(Relaxed);
        for i in 0..CHUNK {
            let n = (hint + i) % CHUNK;
            if self.first.slots[n].load(Relaxed) != 0 {
                continue;
            }
            if self.most.load(Acquire) <= n {
                self.most.fetch_max(n + 1, SeqCst);
            }
            if self.first.slots[n].compare_exchange(0, ino.0, SeqCst, Relaxed).is_ok() {
                self.hint.store((n + 1) % CHUNK, Relaxed);
                return n;
            }
        }
        let n = self.spare_slot();
        let more = self.more.read();
        let slot = &more[n / CHUNK - 1][n % CHUNK];
        let taken = slot.compare_exchange(0, ino.0, SeqCst, Relaxed);
        debug_assert!(taken.is_ok(), "slot {n} was spare, and {taken:?} has it");
        n
    }

    /// Returns the number of a slot behind the first ones, for the caller alone.
    #[cold]
    fn spare_slot(&self) -> usize {
        let mut spare = self.first.spare.lock();
        if let Some(n) = spare.pop() {
            return n;
        }
        let mut more = self.more.write();
        more.push(chunk());
        let first = more.len() * CHUNK;
        debug_assert!(u32::try_from(first + CHUNK).is_ok(), "a handle has no number for slot {first}");
        // The lowest comes first.
        spare.extend((first + 1..first + CHUNK).rev());
        first
    }

    /// Gives a slot back.
    pub fn give_back(&self, slot: usize) {
        if slot < CHUNK {
            free(&self.first.slots[slot]);
            self.hint.store(slot, Relaxed);
            return;
        }
        let more = self.more.read();
        debug_assert!(slot / CHUNK <= more.len(), "slot {slot} was never given out");
        if let Some(c) = more.get(slot / CHUNK - 1) {
            free(&c[slot % CHUNK]);
            drop(more);
            self.first.spare.lock().push(slot);
        }
    }

    /// Adds every open inode to `out`.
    pub fn collect<S: std::hash::BuildHasher>(&self, out: &mut HashSet<u64, S>) {
        let most = self.most.load(SeqCst).min(CHUNK);
        out.extend(self.first.slots[..most].iter().map(|s| s.load(SeqCst)).filter(|v| *v != 0));
        for c in self.more.read().iter() {
            out.extend(c.iter().map(|s| s.load(SeqCst)).filter(|v| *v != 0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_slots_that_are_taken_are_found() {
        let slots = OpenSlots::new();
        let found = || {
            let mut found = HashSet::new();
            slots.collect(&mut found);
            found.len()
        };
        assert_eq!(found(), 0);
        let taken: Vec<usize> = (1..=700).map(|n| slots.take(Ino(n))).collect();
        assert_eq!(found(), 700);
        taken[..350].iter().for_each(|n| slots.give_back(*n));
        assert_eq!(found(), 350);
        taken[350..].iter().for_each(|n| slots.give_back(*n));
        slots.take(Ino(1));
        assert_eq!(found(), 1);
    }

    /// Who opens one more looked at all that were open: a million took hours.
    #[test]
    fn a_lane_has_very_many_files_open() {
        const MANY: usize = 1_000_000;
        let slots = OpenSlots::new();
        let mut taken: Vec<usize> = (1..=MANY as u64).map(|n| slots.take(Ino(n))).collect();
        for slot in &mut taken {
            slots.give_back(*slot);
            *slot = slots.take(Ino(1));
        }
        let have = slots.more.read().len() * CHUNK + CHUNK;
        assert!(have < MANY + 2 * CHUNK, "{have} slots for {MANY}");
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), MANY);
        taken.into_iter().for_each(|n| slots.give_back(n));
        let mut found = HashSet::new();
        slots.collect(&mut found);
        assert_eq!((found.len(), slots.first.spare.lock().len()), (0, have - CHUNK));
    }
}
