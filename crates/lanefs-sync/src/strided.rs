//! The strided counter (ScaleXFS, section 4.4): free space, counted without a shared write.
//!
//! Free space is a number of tokens. Some lie in the **pool**, the others in **stashes**, one a
//! lane on its own line. A lane takes from and gives to its own stash; it fetches a stride at a
//! time from the pool, and brings back what is more than two strides.
//!
//! ScaleXFS counts space in use and keeps its global value at or above the true sum (obligation
//! O14). Here it is the same seen from the other side: space in use is at most `capacity - pool`,
//! because a stash counts as used. So what `try_sub` granted is always there.
//!
//! 1. A token is in exactly one place: granted, in the pool or in one stash. A stash changes by
//!    compare-exchange, the pool under its mutex, and tokens go between them only with the mutex
//!    held.
//! 2. A stash is never negative. The pool is negative only by `sub_forced`, and then every stash is
//!    closed and empty.
//! 3. A stash is **closed** by swapping in a mark, under the mutex, its tokens going to the pool.
//!    All that needs a closed stash goes to the pool instead, waiting for the mutex. Only the
//!    mutex's holder opens a stash.
//! 4. When all stashes are closed, the pool is the true total, at one instant. `try_sub` refuses
//!    only then: **it fails only when the true total is below what was asked**. Merely emptying the
//!    stashes one by one would not do: tokens given back to a lane already passed, and as many
//!    taken from one still to come, would make a total look small that never was.
//! 5. The stride shrinks with the pool: `pool / (8 * lanes)`, at most `max_stride`. Near zero it is
//!    0: then the stashes stay closed, and counting is exact, by the mutex alone. They open again
//!    when the pool has grown to a stride of 4.
//!
//! A gather is not repeated while counting is exact, so a volume that is full fails quickly and
//! writes one line only.
//!
//! Orderings: all Relaxed. Every stash is a single word changed by read-modify-writes, which always
//! act on its newest value, and the pool has its mutex; no memory is handed over by means of the
//! counter.

use crate::primitive::{AtomicI64, CachePadded, Mutex, Ordering};

/// In place of a stash's tokens: closed (3).
const CLOSED: i64 = i64::MIN;
/// The stride at which stashes open again (5).
const OPEN_AT: i64 = 4;

/// The counter. See the essay at the head of the file.
pub struct StridedCounter {
    /// Written by threads of the lane, and by the holder of `pool`, who alone opens and closes (3).
    /// Relaxed: see the head of the file.
    stashes: Box<[CachePadded<AtomicI64>]>,
    max_stride: i64,
    pool: CachePadded<Mutex<Pool>>,
    /// The pool's tokens, for who only wants to look; written with the mutex held. Relaxed: one
    /// word, which orders nothing.
    approx: CachePadded<AtomicI64>,
}

struct Pool {
    tokens: i64,
    open: bool,
}

impl StridedCounter {
    /// Makes a counter with `total` tokens for `lanes` lanes, which fetch at most `max_stride` at a
    /// time.
    pub fn new(total: i64, lanes: usize, max_stride: i64) -> Self {
        debug_assert!(total.unsigned_abs() <= 1 << 62, "no count of blocks");
        let counter = Self {
            stashes: (0..lanes.max(1)).map(|_| CachePadded::new(AtomicI64::new(CLOSED))).collect(),
            max_stride: crate::ablation::stride(max_stride).clamp(0, 1 << 40),
            pool: CachePadded::new(Mutex::new(Pool { tokens: total, open: false })),
            approx: CachePadded::new(AtomicI64::new(total)),
        };
        counter.publish(&mut counter.pool.lock());
        counter
    }

    fn stride(&self, tokens: i64) -> i64 {
        let stride = (tokens / (8 * self.stashes.len() as i64)).clamp(0, self.max_stride);
        debug_assert!(
            stride == 0 || stride * (self.stashes.len() as i64) < tokens,
            "a fetch empties the pool"
        );
        stride
    }

    /// Ends every section that changed the pool: opens the stashes if there is enough again, and
    /// shows the sum.
    fn publish(&self, pool: &mut Pool) {
        if !pool.open && self.stride(pool.tokens) >= OPEN_AT {
            pool.open = true;
            self.stashes.iter().for_each(|stash| stash.store(0, Ordering::Relaxed));
        }
        self.approx.store(pool.tokens, Ordering::Relaxed);
        self.check_invariants(pool);
    }

    /// Checks invariants 2 and 3; `pool` is locked, so no stash is opened or closed meanwhile.
    fn check_invariants(&self, pool: &Pool) {
        // Relaxed: the pool's mutex orders all but what the lanes do, and they keep these.
        debug_assert!(pool.tokens >= 0 || !pool.open, "{} tokens, and stashes are open (2)", pool.tokens);
        debug_assert_eq!(self.approx.load(Ordering::Relaxed), pool.tokens);
        debug_assert!(self.max_stride >= 0);
        if cfg!(debug_assertions) {
            for stash in &self.stashes {
                let tokens = stash.load(Ordering::Relaxed);
                debug_assert_eq!(tokens != CLOSED, pool.open, "one stash is not as the others (3)");
                debug_assert!(tokens == CLOSED || tokens >= 0, "a stash of {tokens} (2)");
            }
        }
    }

    /// Closes all stashes; then the pool is the true total (4).
    fn gather(&self, pool: &mut Pool) {
        if pool.open {
            pool.open = false;
            for stash in &self.stashes {
                let had = stash.swap(CLOSED, Ordering::Relaxed);
                debug_assert!(had >= 0, "a stash was closed without the mutex, or is negative: {had}");
                pool.tokens += had;
            }
        }
    }

    /// Takes `n` tokens; false, and nothing taken, if there are fewer in all.
    ///
    /// # Panics
    /// If there is no such lane.
    #[inline]
    pub fn try_sub(&self, lane: usize, n: u64) -> bool {
        let n = as_signed(n);
        let stash = &self.stashes[lane];
        let mut seen = stash.load(Ordering::Relaxed);
        // A closed stash is below every n, so this covers it.
        while seen >= n {
            match stash.compare_exchange_weak(seen, seen - n, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        self.try_sub_from_pool(stash, n)
    }

    #[cold]
    fn try_sub_from_pool(&self, stash: &AtomicI64, n: i64) -> bool {
        let mut pool = self.pool.lock();
        if pool.tokens < n {
            self.gather(&mut pool);
        }
        let granted = pool.tokens >= n;
        debug_assert!(granted || !pool.open, "refused without knowing the total (4)");
        if granted {
            pool.tokens -= n;
            if pool.open {
                let stride = self.stride(pool.tokens);
                pool.tokens -= stride;
                // Open under the mutex means that nobody closes it meanwhile (3).
                let had = stash.fetch_add(stride, Ordering::Relaxed);
                debug_assert_ne!(had, CLOSED, "tokens would be lost (1)");
            }
        }
        self.publish(&mut pool);
        granted
    }

    /// Gives `n` tokens back.
    ///
    /// # Panics
    /// If there is no such lane.
    #[inline]
    pub fn add(&self, lane: usize, n: u64) {
        let n = as_signed(n);
        let stash = &self.stashes[lane];
        let mut seen = stash.load(Ordering::Relaxed);
        while seen != CLOSED && seen.saturating_add(n) <= 2 * self.max_stride {
            match stash.compare_exchange_weak(seen, seen + n, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
        self.add_to_pool(stash, n);
    }

    #[cold]
    fn add_to_pool(&self, stash: &AtomicI64, n: i64) {
        let mut pool = self.pool.lock();
        debug_assert!(pool.tokens.checked_add(n).is_some(), "{n} tokens to {}", pool.tokens);
        pool.tokens += n;
        if pool.open {
            // Keep a stride in the stash, bring the rest along.
            let mut seen = stash.load(Ordering::Relaxed);
            while seen > self.max_stride {
                match stash.compare_exchange_weak(seen, self.max_stride, Ordering::Relaxed, Ordering::Relaxed)
                {
                    Ok(_) => {
                        pool.tokens += seen - self.max_stride;
                        break;
                    }
                    Err(now) => seen = now,
                }
            }
        }
        self.publish(&mut pool);
    }

    /// Takes `n` tokens whether they are there or not: the total may go below zero, and `try_sub`
    /// fails until it has come up again.
    ///
    /// # Panics
    /// If there is no such lane.
    pub fn sub_forced(&self, lane: usize, n: u64) {
        if !self.try_sub(lane, n) {
            let mut pool = self.pool.lock();
            // Tokens may have come since; the gather finds them (2).
            self.gather(&mut pool);
            debug_assert!(!pool.open, "only a closed pool may go below zero (2)");
            pool.tokens -= as_signed(n);
            self.publish(&mut pool);
        }
    }

    /// Returns the pool as it was lately: a lower bound of what was free, read without a lock.
    #[inline]
    pub fn estimate(&self) -> i64 {
        self.approx.load(Ordering::Relaxed)
    }

    /// Returns the true total at an instant within the call. Empties all stashes, so not for a hot
    /// path.
    pub fn exact(&self) -> i64 {
        let mut pool = self.pool.lock();
        self.gather(&mut pool);
        let total = pool.tokens;
        debug_assert!(!pool.open, "tokens in a stash are not counted (4)");
        self.publish(&mut pool);
        total
    }
}

/// Converts a count. Token counts come from block counts, far below 2^62; one that is not is asked
/// for in vain rather than wrapped.
#[inline]
fn as_signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX).min(i64::MAX / 2)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::random::Rng;

    #[test]
    fn alone_it_is_an_exact_counter() {
        for seed in 0..300 {
            let mut random = Rng::new(seed);
            let lanes = 1 + random.below(5) as usize;
            let mut model = random.below(2_000) as i64;
            let counter = StridedCounter::new(model, lanes, random.below(64) as i64);
            for step in 0..400 {
                let lane = random.below(lanes as u64) as usize;
                let bound = if random.below(8) == 0 { 1_000 } else { 12 };
                let n = random.below(bound);
                match random.below(10) {
                    0..=4 => {
                        let granted = counter.try_sub(lane, n);
                        assert_eq!(granted, model >= n as i64, "seed {seed} step {step}: {n} of {model}");
                        model -= if granted { n as i64 } else { 0 };
                    }
                    5..=7 => {
                        counter.add(lane, n);
                        model += n as i64;
                    }
                    8 => {
                        counter.sub_forced(lane, n);
                        model -= n as i64;
                    }
                    _ => assert_eq!(counter.exact(), model, "seed {seed} step {step}"),
                }
                assert!(
                    counter.estimate() <= model,
                    "seed {seed} step {step}: the pool lies above the total (O14)"
                );
            }
        }
    }

    #[test]
    fn threads_get_every_token_once_and_miss_none() {
        const TOTAL: i64 = 100_003;
        let counter = StridedCounter::new(TOTAL, 4, 64);
        let granted: i64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|lane| {
                    let counter = &counter;
                    scope.spawn(move || {
                        let mut granted = 0;
                        let mut random = Rng::new(lane as u64);
                        // Until even one is refused; giving some back on the way.
                        loop {
                            let n = 1 + random.below(7);
                            if counter.try_sub(lane, n) {
                                granted += n as i64;
                                if random.below(3) == 0 {
                                    counter.add(lane, n);
                                    granted -= n as i64;
                                }
                            } else if !counter.try_sub(lane, 1) {
                                return granted;
                            } else {
                                granted += 1;
                            }
                        }
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(granted + counter.exact(), TOTAL);
        // Whoever stopped last was refused when nobody else held tokens back.
        assert_eq!(counter.exact(), 0);
    }

    #[test]
    fn forced_debt_is_paid_before_anything_is_granted() {
        let counter = StridedCounter::new(10, 2, 8);
        counter.sub_forced(0, 25);
        assert_eq!((counter.exact(), counter.estimate()), (-15, -15));
        counter.add(1, 15);
        assert!(!counter.try_sub(0, 1) && counter.try_sub(0, 0));
        counter.add(1, 1);
        assert!(counter.try_sub(0, 1) && !counter.try_sub(1, 1));
    }

    #[test]
    fn a_huge_request_is_refused_and_harms_nothing() {
        let counter = StridedCounter::new(1 << 40, 2, 64);
        assert!(!counter.try_sub(0, u64::MAX));
        assert_eq!(counter.exact(), 1 << 40);
    }
}
