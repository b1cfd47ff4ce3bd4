//! Which inodes the kernel knows: each answer that names one counts, and FORGET takes counts back.
//!
//! A file that lost its last name lives on while the kernel knows it: it may be somebody's working
//! directory, or open with O_PATH, of which we learn nothing. It forgets such an inode
//! as soon as the last user is gone.
//!
//! K1 An inode is counted before its answer is sent, and the count is taken back if nobody took the
//!    answer; so the count is never below the kernel's.
//! K2 Counts of 128 neighbours share an allocation, found by a map in a shard. Lanes make inodes in
//!    runs, so threads that work on files of their own take locks of their own. A chunk whose
//!    counts are all zero is dropped.

use lanefs::Ino;
use lanefs_sync::random::spread;
use std::collections::HashMap;
use std::sync::Mutex;

const SHARDS: usize = 256;
const CHUNK: u64 = 128;

// `Known::shard` takes as many bits of a hash.
const _: () = assert!(SHARDS == 1 << (64 - 56));

/// The counts of neighbouring inodes.
struct Chunk {
    counts: [u32; CHUNK as usize],
    /// The number of those that are not zero.
    known: u32,
}

impl Chunk {
    /// Asserts the invariants of a chunk that stands in a shard.
    fn check_invariants(&self) {
        debug_assert!(self.known > 0, "a chunk whose counts are all zero is dropped (K2)");
        debug_assert_eq!(self.known as usize, self.counts.iter().filter(|c| **c != 0).count());
    }
}

/// Chunks by their numbers.
#[repr(align(128))]
#[derive(Default)]
struct Shard(Mutex<HashMap<u64, Box<Chunk>>>);

/// The inodes that the kernel knows.
pub(crate) struct Known(Vec<Shard>);

impl Known {
    /// Makes an empty table.
    pub(crate) fn new() -> Known {
        Known((0..SHARDS).map(|_| Shard::default()).collect())
    }

    /// Locks the shard of a chunk.
    fn shard(&self, chunk: u64) -> std::sync::MutexGuard<'_, HashMap<u64, Box<Chunk>>> {
        let shard = (spread(chunk) >> 56) as usize % SHARDS;
        // A panic while the lock was held left counts that are at most too high.
        self.0[shard].0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Counts an answer that is about to name `ino`.
    pub(crate) fn count(&self, ino: Ino) {
        let mut chunks = self.shard(ino.0 / CHUNK);
        let chunk = chunks
            .entry(ino.0 / CHUNK)
            .or_insert_with(|| Box::new(Chunk { counts: [0; CHUNK as usize], known: 0 }));
        let count = &mut chunk.counts[(ino.0 % CHUNK) as usize];
        chunk.known += u32::from(*count == 0);
        *count = count.saturating_add(1);
        chunk.check_invariants();
    }

    /// Takes back `times` answers that named `ino`: the kernel has forgotten them.
    pub(crate) fn forget(&self, ino: Ino, times: u64) {
        let mut chunks = self.shard(ino.0 / CHUNK);
        let Some(chunk) = chunks.get_mut(&(ino.0 / CHUNK)) else { return };
        let count = &mut chunk.counts[(ino.0 % CHUNK) as usize];
        if *count == 0 {
            return;
        }
        *count = count.saturating_sub(u32::try_from(times).unwrap_or(u32::MAX));
        if *count == 0 {
            chunk.known -= 1;
            if chunk.known == 0 {
                debug_assert!(chunk.counts.iter().all(|c| *c == 0), "a count would be lost");
                chunks.remove(&(ino.0 / CHUNK));
            } else {
                chunk.check_invariants();
            }
        }
    }

    /// Returns whether the kernel may know `ino`.
    pub(crate) fn knows(&self, ino: Ino) -> bool {
        let chunks = self.shard(ino.0 / CHUNK);
        let chunk = chunks.get(&(ino.0 / CHUNK));
        debug_assert!(chunk.is_none_or(|c| (1..=CHUNK as u32).contains(&c.known)));
        chunk.is_some_and(|c| c.counts[(ino.0 % CHUNK) as usize] != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_is_known_until_all_of_it_is_forgotten() {
        let known = Known::new();
        for _ in 0..3 {
            known.count(Ino(1000));
        }
        known.count(Ino(1001));
        known.forget(Ino(1000), 2);
        assert!(known.knows(Ino(1000)) && known.knows(Ino(1001)) && !known.knows(Ino(1002)));
        known.forget(Ino(1000), 1);
        assert!(!known.knows(Ino(1000)) && known.knows(Ino(1001)));
    }

    #[test]
    fn nothing_is_left_of_what_was_forgotten() {
        let known = Known::new();
        (0..10_000).for_each(|i| known.count(Ino(i)));
        (0..10_000).for_each(|i| known.forget(Ino(i), 1));
        known.forget(Ino(5), 1);
        known.forget(Ino(77_777), 9);
        assert!(known.0.iter().all(|s| s.0.lock().unwrap().is_empty()));
    }
}
