//! Which inodes the kernel knows: each answer that names one counts, and FORGET takes counts back.
//!
//! A file that lost its last name lives on while the kernel knows it: it may be somebody's working
//! directory, or open with O_PATH, of which we learn nothing. It forgets such an inode
//! as soon as the last user is gone.
//!
//! K1 An inode is counted before its answer is sent, and the count is taken back if nobody took the
//!    answer; so the count is never below the kernel's.
//! K2 Where no handle tells who has a file open, a mark stands beside the count: whether the kernel
//!    may have pages of the inode in its cache. It is set before the pages are read or written, and
//!    goes with the count.
//! K3 Counts of 128 neighbours share an allocation, found by a map in a shard. Lanes make inodes in
//!    runs, so threads that work on files of their own take locks of their own. A chunk whose
//!    counts are all zero is dropped.

use lanefs::Ino;
use lanefs_sync::random::spread;
use std::collections::HashMap;
use std::sync::Mutex;

const SHARDS: usize = 256;
const CHUNK: u64 = 128;

const _: () = assert!(CHUNK == u128::BITS as u64, "a bit for each inode of a chunk");
// `Known::shard` takes as many bits of a hash.
const _: () = assert!(SHARDS == 1 << (64 - 56));

/// The counts of neighbouring inodes.
struct Chunk {
    counts: [u32; CHUNK as usize],
    /// The number of those that are not zero.
    known: u32,
    /// A bit for each inode that may be in the kernel's cache (K2).
    cached: u128,
}

impl Chunk {
    /// Asserts the invariants of a chunk that stands in a shard.
    fn check_invariants(&self) {
        debug_assert!(
            (0..CHUNK).all(|n| self.counts[n as usize] != 0 || self.cached & bit(Ino(n)) == 0),
            "a mark goes with its count (K2)"
        );
        debug_assert!(self.known > 0, "a chunk whose counts are all zero is dropped (K3)");
        debug_assert_eq!(self.known as usize, self.counts.iter().filter(|c| **c != 0).count());
    }
}

/// Returns the bit of an inode in its chunk's marks.
fn bit(ino: Ino) -> u128 {
    1 << (ino.0 % CHUNK)
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
            .or_insert_with(|| Box::new(Chunk { counts: [0; CHUNK as usize], known: 0, cached: 0 }));
        let count = &mut chunk.counts[(ino.0 % CHUNK) as usize];
        chunk.known += u32::from(*count == 0);
        *count = count.saturating_add(1);
        chunk.check_invariants();
    }

    /// Takes back `times` answers that named `ino`: the kernel has forgotten them. Returns whether
    /// it does not know the inode any more.
    pub(crate) fn forget(&self, ino: Ino, times: u64) -> bool {
        let mut chunks = self.shard(ino.0 / CHUNK);
        let Some(chunk) = chunks.get_mut(&(ino.0 / CHUNK)) else { return true };
        let count = &mut chunk.counts[(ino.0 % CHUNK) as usize];
        if *count == 0 {
            return true;
        }
        *count = count.saturating_sub(u32::try_from(times).unwrap_or(u32::MAX));
        let gone = *count == 0;
        if gone {
            chunk.cached &= !bit(ino);
            chunk.known -= 1;
            if chunk.known == 0 {
                debug_assert!(chunk.counts.iter().all(|c| *c == 0), "a count would be lost");
                chunks.remove(&(ino.0 / CHUNK));
            } else {
                chunk.check_invariants();
            }
        }
        gone
    }

    /// Takes note that pages of `ino` are about to come into the kernel's cache (K2).
    pub(crate) fn comes_into_cache(&self, ino: Ino) {
        if let Some(chunk) = self.shard(ino.0 / CHUNK).get_mut(&(ino.0 / CHUNK))
            && chunk.counts[(ino.0 % CHUNK) as usize] != 0
        {
            chunk.cached |= bit(ino);
            chunk.check_invariants();
        }
    }

    /// Returns whether pages of `ino` may be in the kernel's cache.
    pub(crate) fn is_cached(&self, ino: Ino) -> bool {
        self.shard(ino.0 / CHUNK).get(&(ino.0 / CHUNK)).is_some_and(|c| c.cached & bit(ino) != 0)
    }

    /// Returns the inodes of which pages may be in the kernel's cache.
    pub(crate) fn cached(&self) -> Vec<Ino> {
        let mut all = Vec::new();
        for shard in &self.0 {
            let chunks = shard.0.lock().unwrap_or_else(|e| e.into_inner());
            for (number, chunk) in chunks.iter() {
                let inodes = (0..CHUNK).map(|n| Ino(number * CHUNK + n));
                all.extend(inodes.filter(|ino| chunk.cached & bit(*ino) != 0));
            }
        }
        all
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
        assert!(!known.forget(Ino(1000), 2));
        assert!(known.knows(Ino(1000)) && known.knows(Ino(1001)) && !known.knows(Ino(1002)));
        assert!(known.forget(Ino(1000), 1));
        assert!(!known.knows(Ino(1000)) && known.knows(Ino(1001)));
    }

    #[test]
    fn a_mark_is_there_until_the_inode_is_forgotten() {
        let known = Known::new();
        known.count(Ino(5));
        known.count(Ino(300));
        [Ino(5), Ino(300), Ino(6)].iter().for_each(|ino| known.comes_into_cache(*ino));
        let mut cached = known.cached();
        cached.sort();
        assert_eq!(cached, [Ino(5), Ino(300)], "the third is not known");
        assert!(known.forget(Ino(5), 1));
        known.count(Ino(5));
        assert!(known.is_cached(Ino(300)) && !known.is_cached(Ino(5)) && !known.is_cached(Ino(7)));
    }

    #[test]
    fn nothing_is_left_of_what_was_forgotten() {
        let known = Known::new();
        (0..10_000).for_each(|i| known.count(Ino(i)));
        (0..10_000).for_each(|i| assert!(known.forget(Ino(i), 1)));
        assert!(known.forget(Ino(5), 1) && known.forget(Ino(77_777), 9), "what is not known is gone");
        assert!(known.0.iter().all(|s| s.0.lock().unwrap().is_empty()));
    }
}
