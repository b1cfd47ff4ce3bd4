//! Bringing folded buckets into memory, and letting clean leaves go.

use super::entry::{Entry, FANOUT, Head, Leaf, Table, range_of, slot};
use super::{Dir, split};
use crossbeam_epoch::Guard;
use lanefs_format::{FileKind, Ino};
use lanefs_sync::partial;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// A bucket as the store has it: the cookies it covers and its entries in cookie order.
pub(crate) struct Bucket<'a> {
    pub lowest: u64,
    pub highest: u64,
    pub entries: &'a [(u64, Ino, FileKind, &'a [u8])],
}

impl Dir {
    /// Returns the stamp to pass to [`Dir::install`]; it is taken before the store is read.
    pub fn load_stamp(&self) -> u32 {
        self.generation.load(SeqCst)
    }

    /// Puts a bucket into every leaf that lies within it, splitting leaves that cover more than it
    /// does. Leaves from which something was taken since `stamp` are left out. Returns whether that
    /// of `cookie` is whole now, else the store must be read again; and the bytes that came into
    /// memory.
    pub fn install(&self, cookie: u64, bucket: &Bucket<'_>, stamp: u32, guard: &Guard) -> (bool, usize) {
        debug_assert!((bucket.lowest..=bucket.highest).contains(&cookie), "the bucket of another cookie");
        debug_assert!(bucket.entries.is_sorted_by_key(|e| e.0));
        // First make the leaf around `cookie` small enough, then fill leaf by leaf.
        loop {
            let l = self.lock(cookie, guard);
            let (lo, hi) = range_of(cookie, l.level());
            if (lo < bucket.lowest || hi > bucket.highest) && l.level() + 2 < super::entry::MAX_LEVELS {
                split(l.leaf(), l.level());
                continue;
            }
            break;
        }
        let mut at = bucket.lowest;
        let (mut whole, mut bytes) = (false, 0);
        while at <= bucket.highest {
            let l = self.lock(at, guard);
            let (lo, hi) = range_of(at, l.level());
            debug_assert!(hi >= at, "the walk stands still");
            let fits = lo >= bucket.lowest && hi <= bucket.highest;
            if fits && !l.is_complete() && l.nothing_taken_since(stamp) {
                let first = bucket.entries.partition_point(|e| e.0 < lo);
                for &(c, ino, kind, name) in bucket.entries[first..].iter().take_while(|e| e.0 <= hi) {
                    if l.find(c, name).is_none() {
                        bytes += Entry::bytes(name.len());
                        l.insert(Entry::new(c, name, ino, kind, 0, 0, 0));
                    }
                }
                l.leaf().set_complete(true);
            }
            whole |= (lo..=hi).contains(&cookie) && l.is_complete();
            if hi >= bucket.highest {
                break;
            }
            at = hi + 1;
        }
        (whole, bytes)
    }

    /// Returns the bytes of the names in memory, about: long ones count as short.
    pub fn name_bytes(&self) -> usize {
        let mut n = 0;
        self.each_leaf(&mut |leaf, _, _| {
            n += usize::from(leaf.count.load(Relaxed));
            true
        });
        n * Entry::bytes(0)
    }

    /// Evicts clean leaves; returns bytes freed. Called by the reclaimer.
    pub fn evict_clean(&self, folded: u64, guard: &Guard) -> usize {
        self.evict_from(0, usize::MAX, folded, guard).0
    }

    /// Evicts clean leaves of about `want` bytes, and goes on behind them the next time: what is in
    /// use all the time, and grew larger than memory, must not stay for that.
    pub fn evict_some(&self, want: usize, folded: u64, guard: &Guard) -> usize {
        let mut freed = 0;
        for _ in 0..2 {
            let from = u64::from(self.hand.load(Relaxed)) << 32;
            let (n, next) = self.evict_from(from, want - freed, folded, guard);
            freed += n;
            self.hand.store((next >> 32) as u32, Relaxed);
            debug_assert!(next == 0 || next > from, "the hand stands still");
            if freed >= want || next != 0 {
                break;
            }
        }
        freed
    }

    /// Evicts clean leaves from cookie `at` on until `want` bytes are free; returns how many are,
    /// and where to go on: 0 at the end.
    fn evict_from(&self, mut at: u64, want: usize, folded: u64, guard: &Guard) -> (usize, u64) {
        debug_assert!(at < 1 << 63);
        let mut freed = 0;
        let Some(root) = self.root() else { return (0, 0) };
        while at < 1 << 63 {
            let (leaf, level) = Dir::leaf_below(root, at);
            let (_, hi) = range_of(at, level);
            // An empty leaf that is known to be so only keeps its table.
            let worth =
                matches!(leaf.head(), Head::Chain(p) if !p.is_null() || level > 0 && leaf.is_complete());
            // Whatever changed since the last fold keeps all of its leaf.
            if worth && leaf.epoch.load(Relaxed) <= folded && leaf.lock.try_lock() {
                let again = self.leaf(at);
                if std::ptr::eq(again.0, leaf) {
                    let l = self.adopt(leaf, level, guard);
                    freed += l.evict(folded);
                } else {
                    leaf.lock.unlock();
                }
            }
            self.take_out_ending(root, at, level, folded, guard);
            at = hi + 1;
            if freed >= want {
                break;
            }
        }
        (freed, if at < 1 << 63 { at } else { 0 })
    }

    /// Takes out the table of which the leaf of `at` at `level` is the last, and those above that
    /// end there, as far as nothing is lost with them.
    pub(super) fn take_out_ending(&self, root: &Table, at: u64, level: u32, folded: u64, guard: &Guard) {
        debug_assert!(level < super::entry::MAX_LEVELS);
        let mut above = level;
        while above > 0 && slot(at, above) == FANOUT - 1 && self.take_out(root, at, above - 1, folded, guard)
        {
            above -= 1;
        }
    }

    /// Takes the table below the leaf of `cookie` at `level` out of the directory, if nothing is
    /// lost with it. Waits for nobody.
    fn take_out(&self, root: &Table, cookie: u64, level: u32, folded: u64, guard: &Guard) -> bool {
        let mut table = root;
        for l in 0..level {
            let Head::Table(t) = table.leaves[slot(cookie, l)].head() else { return false };
            // SAFETY: as in `leaf_below`.
            table = unsafe { &*t };
        }
        let above = &table.leaves[slot(cookie, level)];
        let Head::Table(below) = above.head() else { return false };
        // SAFETY: as in `leaf_below`.
        let leaves = unsafe { &(*below).leaves };
        // The leaf above can make the claim of all of them, or none.
        let agree = || leaves.iter().all(|l| l.is_complete() == leaves[0].is_complete());
        let idle = || leaves.iter().all(|l| l.is_idle(folded)) && agree();
        if !idle() || !above.lock.try_lock() {
            return false;
        }
        let locked = leaves.iter().take_while(|l| l.lock.try_lock()).count();
        // If the leaf above still has the table, it is itself in use: a table with a table below is
        // not taken out.
        let ours = matches!(above.head(), Head::Table(t) if std::ptr::eq(t, below));
        let out = ours && locked == FANOUT && idle();
        if out {
            let most = |f: &dyn Fn(&Leaf) -> u64| leaves.iter().map(f).max().unwrap_or(0);
            above.last_ts.fetch_max(most(&|l| l.last_ts.load(Relaxed)), Relaxed);
            above.epoch.fetch_max(most(&|l| l.epoch.load(Relaxed)), SeqCst);
            let purged = leaves.iter().fold(0, |lanes, l| lanes | l.purged_lanes.load(Relaxed));
            above.purged_lanes.store(purged, Relaxed);
            let split = above.split_seq.load(Relaxed);
            partial::begin_taking(&above.split_seq);
            above.count.store(0, Relaxed);
            above.set_complete(leaves[0].is_complete());
            leaves.iter().for_each(Leaf::set_gone);
            above.set_chain(std::ptr::null_mut());
            // The split left the sequence one generation ahead: that of now, if nothing was taken
            // since.
            let taken = Some(self.taken()).filter(|seq| *seq != split).unwrap_or_else(|| self.taken());
            partial::end_taking(&above.split_seq, taken);
            above.check_invariants(level);
        }
        leaves[..locked].iter().for_each(|l| l.lock.unlock());
        above.lock.unlock();
        if out {
            // SAFETY: no walk from the root comes to it any more, and it came from Box::into_raw in
            // `split`; who is there yet is pinned.
            unsafe { guard.defer_unchecked(move || drop(Box::from_raw(below))) };
        }
        out
    }

    /// Returns whether every entry is clean, so that the whole directory may leave memory.
    pub fn is_clean(&self, folded: u64, guard: &Guard) -> bool {
        let _ = guard;
        self.each_leaf(&mut |leaf, _, _| leaf.epoch.load(Relaxed) <= folded)
    }
}
