//! Inode numbers: lanes own whole inode-table chunks (Max 4.5; the optimistic and heuristic scans
//! of the F2FS unlink paper).
//!
//! A lane gives out numbers of its own chunk, lowest free bit first from a cursor, and writes no
//! shared line. A lane that runs dry takes a chunk with free numbers from the pool by try-lock; if
//! the pool is busy or empty it takes a chunk that was never used. A number comes back only after
//! the checkpoint that made its end durable (O13, O16).
//!
//! What earlier mounts left free is found by a scan, when the volume is opened and at checkpoints.
//! It goes from the last chunk down: a program that makes files and removes them leaves the newest
//! numbers, and would take new ones at each mount, for which the inode table grows.

use lanefs_format::{INOS_PER_CHUNK, Ino};
use lanefs_sync::ablation::{Switch, Technique};
use lanefs_sync::lock::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Free numbers of one chunk, with the generation each will have.
#[derive(Clone)]
pub(crate) struct Chunk {
    base: u64,
    /// A set bit is a free number.
    free: u128,
    generations: Option<Box<[u32; INOS_PER_CHUNK as usize]>>,
}

impl Chunk {
    /// Takes a free number at or after bit `from`, else before it; returns it with its generation.
    fn take(&mut self, from: u32) -> Option<(Ino, u32)> {
        debug_assert!(u64::from(from) < INOS_PER_CHUNK);
        self.check_invariants();
        let ahead = self.free >> from << from;
        let bit = if ahead != 0 {
            ahead.trailing_zeros()
        } else if self.free != 0 {
            self.free.trailing_zeros()
        } else {
            return None;
        };
        self.free &= !(1u128 << bit);
        let generation = self.generations.as_ref().map_or(1, |g| g[bit as usize].max(1));
        Some((Ino(self.base + u64::from(bit)), generation))
    }

    /// Puts back a number that is free again, with its next generation.
    fn put(&mut self, ino: Ino, generation: u32) {
        self.set_free(ino);
        self.generations.get_or_insert_with(|| Box::new([1; INOS_PER_CHUNK as usize]))[ino.slot()] =
            generation;
    }

    /// Makes a number free that was taken.
    fn set_free(&mut self, ino: Ino) {
        self.check_invariants();
        debug_assert_eq!(ino.chunk(), self.base / INOS_PER_CHUNK, "a number of another chunk");
        let bit = 1u128 << ino.slot();
        debug_assert_eq!(self.free & bit, 0, "inode number {} is free already", ino.0);
        self.free |= bit;
    }

    /// Checks what holds of any chunk.
    fn check_invariants(&self) {
        debug_assert_eq!(self.base % INOS_PER_CHUNK, 0, "chunks are aligned");
    }
}

const _: () = assert!(INOS_PER_CHUNK == u128::BITS as u64, "a bit for each number");

/// The numbers that a lane holds.
#[derive(Default)]
pub(crate) struct NumberCache {
    chunk: Option<Chunk>,
    cursor: u32,
    /// Numbers of the lane's earlier chunks that came back.
    spare: Vec<Chunk>,
}

impl NumberCache {
    /// Takes the next number; returns it with its generation, `None` when the lane is dry.
    pub fn take(&mut self) -> Option<(Ino, u32)> {
        let taken = match self.chunk.as_mut().and_then(|c| c.take(self.cursor)) {
            Some(taken) => taken,
            None => self.take_spare()?,
        };
        self.cursor = taken.0.slot() as u32;
        debug_assert!(self.chunk.as_ref().is_some_and(|c| c.free >> self.cursor & 1 == 0), "given out twice");
        Some(taken)
    }

    /// Gives back a number that was taken and not used.
    pub fn give_back(&mut self, ino: Ino) {
        if let Some(c) = self.chunk.as_mut()
            && ino.chunk() == c.base / INOS_PER_CHUNK
        {
            c.set_free(ino);
        }
    }

    /// Goes on with a chunk of which numbers came back.
    #[cold]
    fn take_spare(&mut self) -> Option<(Ino, u32)> {
        let c = self.spare.pop()?;
        self.refill(c);
        self.chunk.as_mut()?.take(0)
    }

    /// Puts back the number of an inode that was never logged, with its next generation.
    pub fn put_back(&mut self, ino: Ino, generation: u32) {
        debug_assert!(!ino.is_none());
        let base = ino.chunk() * INOS_PER_CHUNK;
        let own = self.chunk.iter_mut().chain(self.spare.iter_mut().rev()).find(|c| c.base == base);
        match own {
            Some(c) => c.put(ino, generation),
            None => {
                let mut c = Chunk { base, free: 0, generations: None };
                c.put(ino, generation);
                self.spare.push(c);
            }
        }
    }

    /// Gives a dry lane another chunk.
    pub fn refill(&mut self, c: Chunk) {
        debug_assert!(self.chunk.as_ref().is_none_or(|c| c.free == 0), "numbers would be lost");
        debug_assert_ne!(c.free, 0, "the lane would be dry at once");
        c.check_invariants();
        self.chunk = Some(c);
        self.cursor = 0;
    }
}

/// The volume's supply of chunks.
pub(crate) struct Numbers {
    /// The first chunk never used. Written by lanes that are dry, once per 128 creates. Relaxed:
    /// the numbers only have to differ.
    next_chunk: AtomicU64,
    /// Chunks below were used by earlier mounts: the scan's business.
    scan_limit: u64,
    pool: Mutex<Pool>,
    one_bitmap: Switch,
    /// All numbers ever handed to this mount, in place of the lanes' chunks, when those are taken
    /// out.
    bitmap: Mutex<Vec<Chunk>>,
}

#[derive(Default)]
struct Pool {
    ready: VecDeque<Chunk>,
    /// Freed numbers by chunk, until there are enough to be worth handing out.
    partial: HashMap<u64, Chunk>,
    /// The scan for free numbers left by earlier mounts has yet to look at the chunks below this.
    scan: u64,
}

/// Freed numbers that make a chunk worth handing out again.
const WORTH: u32 = 32;

impl Numbers {
    pub fn new(next_chunk: u64) -> Numbers {
        let next_chunk = next_chunk.max(1);
        Numbers {
            next_chunk: AtomicU64::new(next_chunk),
            scan_limit: next_chunk,
            pool: Mutex::new(Pool { scan: next_chunk, ..Pool::default() }),
            one_bitmap: Switch::of(Technique::LaneNumbers),
            bitmap: Mutex::default(),
        }
    }

    /// Returns a chunk for a lane that is dry. Never waits (optimistic scan).
    pub fn supply(&self) -> Chunk {
        if let Some(mut pool) = self.pool.try_lock()
            && let Some(c) = pool.ready.pop_front()
        {
            debug_assert!(c.free.count_ones() >= WORTH, "not worth handing out");
            return c;
        }
        let n = self.next_chunk.fetch_add(1, Relaxed);
        debug_assert!(n >= self.scan_limit, "chunk {n} is the scan's business");
        Chunk { base: n * INOS_PER_CHUNK, free: u128::MAX, generations: None }
    }

    /// Takes, where lanes have no numbers of their own, the first free one of all, found from the
    /// start.
    #[inline]
    pub fn take_from_start(&self) -> Option<(Ino, u32)> {
        if self.one_bitmap.off() { Some(self.scan_from_start()) } else { None }
    }

    fn scan_from_start(&self) -> (Ino, u32) {
        let mut bitmap = self.bitmap.lock();
        loop {
            if let Some(found) = bitmap.iter_mut().find_map(|c| c.take(0)) {
                return found;
            }
            bitmap.push(self.supply());
        }
    }

    /// Gives back a number that was taken from the start and not used; false if lanes have numbers
    /// of their own.
    #[inline]
    pub fn give_back_to_bitmap(&self, ino: Ino) -> bool {
        self.one_bitmap.off() && self.bitmap_has_again(ino, None)
    }

    /// Gives back, where lanes have no numbers of their own, the number of an inode that was never
    /// logged, with its next generation; false if they have.
    #[inline]
    pub fn put_back_to_bitmap(&self, ino: Ino, generation: u32) -> bool {
        self.one_bitmap.off() && self.bitmap_has_again(ino, Some(generation))
    }

    fn bitmap_has_again(&self, ino: Ino, generation: Option<u32>) -> bool {
        let mut bitmap = self.bitmap.lock();
        let Some(c) = bitmap.iter_mut().find(|c| c.base / INOS_PER_CHUNK == ino.chunk()) else {
            return false;
        };
        match generation {
            Some(generation) => c.put(ino, generation),
            None => c.set_free(ino),
        }
        true
    }

    /// Takes back numbers that became free, each with its next generation. Like the scan, called
    /// only by the holder of the checkpoint lock, so that no number is both found and freed: a
    /// chunk that the scan has yet to reach is left to it.
    pub fn freed(&self, list: &[(Ino, u32)]) {
        let mut pool = self.pool.lock();
        for &(ino, generation) in list {
            if ino.chunk() < pool.scan {
                continue;
            }
            if self.one_bitmap.off() && self.bitmap_has_again(ino, Some(generation)) {
                continue;
            }
            let base = ino.chunk() * INOS_PER_CHUNK;
            let c = pool.partial.entry(base).or_insert_with(|| Chunk { base, free: 0, generations: None });
            debug_assert_eq!(c.base, base);
            c.put(ino, generation);
        }
        // All of a chunk together, not each time that there are enough.
        let Pool { ready, partial, .. } = &mut *pool;
        ready.extend(partial.extract_if(|_, c| c.free.count_ones() >= WORTH).map(|c| c.1));
        partial.shrink_to(partial.len() * 2);
    }

    /// Returns the next chunk of earlier mounts to look at for free numbers; `None` when the pool
    /// has `most` chunks or all were seen.
    pub fn scan_next(&self, most: usize) -> Option<u64> {
        let mut pool = self.pool.lock();
        if pool.ready.len() >= most || pool.scan == 0 {
            return None;
        }
        pool.scan -= 1;
        debug_assert!(pool.scan < self.scan_limit);
        Some(pool.scan)
    }

    /// Adds what a scan found: free numbers of a chunk that no lane holds. Returns whether they are
    /// worth handing out.
    pub fn found(&self, chunk: u64, used: u128, generations: &[u32; INOS_PER_CHUNK as usize]) -> bool {
        debug_assert!(chunk < self.scan_limit, "the scan goes no further than earlier mounts did");
        let free = !used & if chunk == 0 { !0u128 << 16 } else { !0 };
        let is_worth = free.count_ones() >= WORTH;
        if is_worth {
            let generations = Some(Box::new(*generations));
            self.pool.lock().ready.push_back(Chunk { base: chunk * INOS_PER_CHUNK, free, generations });
        }
        is_worth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each part of a chunk that was large enough was a chunk of its own, with its own list of 128
    /// generations.
    #[test]
    fn numbers_of_one_chunk_that_are_freed_together_are_one_chunk_again() {
        let numbers = Numbers::new(1);
        let freed: Vec<_> = (0..3 * INOS_PER_CHUNK).map(|n| (Ino(9 * INOS_PER_CHUNK + n), 2)).collect();
        numbers.freed(&freed);
        let pool = numbers.pool.lock();
        assert_eq!((pool.ready.len(), pool.partial.len()), (3, 0));
        assert!(pool.ready.iter().all(|c| c.free == u128::MAX));
    }

    /// Else a lane that makes and removes files would take a new chunk for each 128 of them.
    #[test]
    fn a_lane_gives_out_again_what_came_back() {
        let (numbers, mut lane) = (Numbers::new(1), NumberCache::default());
        let take = |lane: &mut NumberCache| {
            lane.take().unwrap_or_else(|| {
                lane.refill(numbers.supply());
                lane.take().unwrap()
            })
        };
        let first: Vec<_> = (0..300).map(|_| take(&mut lane)).collect();
        first[..200].iter().for_each(|(ino, generation)| lane.put_back(*ino, generation + 1));
        // What is left of the chunk at hand first, then what came back, each number once.
        let again: Vec<_> = (0..84 + 200).map(|_| take(&mut lane)).collect();
        assert!(again[..84].iter().all(|n| n.1 == 1 && n.0.chunk() == 3), "{again:?}");
        let mut back = again[84..].to_vec();
        back.sort_unstable();
        let expected: Vec<_> = first[..200].iter().map(|n| (n.0, 2)).collect();
        assert_eq!(back, expected);
        assert_eq!(take(&mut lane).0.chunk(), 4);
    }

    /// F2FS asks for free numbers under a mutex: who scans for them, or frees, stalls whoever makes
    /// files. A lane that runs dry passes by (if it waited, this test would wait for ever).
    #[test]
    fn a_dry_lane_does_not_wait_for_whoever_has_the_pool() {
        let numbers = Numbers::new(7);
        numbers.found(3, 0, &[9; INOS_PER_CHUNK as usize]);
        let busy = numbers.pool.lock();
        let mut lane = NumberCache::default();
        lane.refill(numbers.supply());
        assert_eq!(lane.take(), Some((Ino(7 * INOS_PER_CHUNK), 1)));
        drop(busy);
        let mut lane = NumberCache::default();
        lane.refill(numbers.supply());
        assert_eq!(lane.take(), Some((Ino(3 * INOS_PER_CHUNK), 9)));
    }
}
