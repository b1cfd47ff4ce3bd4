//! Bringing folded buckets into memory, and letting clean leaves go.

use super::entry::{Entry, Head, range_of};
use super::{Dir, split};
use crossbeam_epoch::Guard;
use lanefs_store::{FileKind, Ino};
use std::sync::atomic::Ordering::*;

/// What the store told of one bucket: the cookies it covers and its entries in cookie order.
pub(crate) struct Bucket<'a> {
    pub lowest: u64,
    pub highest: u64,
    pub entries: &'a [(u64, Ino, FileKind, &'a [u8])],
}

impl Dir {
    /// The stamp to pass to [`Dir::install`]; take it before the store is read.
    pub fn load_stamp(&self) -> u32 {
        self.generation.load(SeqCst)
    }

    /// Puts a bucket into every leaf that lies within it, splitting leaves that cover more than it does; returns the bytes it took. `None` if
    /// something was evicted since `stamp` was taken: read the store again.
    pub fn install(&self, cookie: u64, bucket: &Bucket<'_>, stamp: u32, guard: &Guard) -> Option<usize> {
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
        let mut bytes = 0;
        while at <= bucket.highest {
            let l = self.lock(at, guard);
            if self.generation.load(SeqCst) != stamp {
                return None;
            }
            let (lo, hi) = range_of(at, l.level());
            if lo >= bucket.lowest && hi <= bucket.highest && !l.is_complete() {
                let first = bucket.entries.partition_point(|e| e.0 < lo);
                for &(c, ino, kind, name) in bucket.entries[first..].iter().take_while(|e| e.0 <= hi) {
                    if l.find(c, name).is_none() {
                        bytes += Entry::bytes(name.len());
                        l.insert(Entry::new(c, name, ino, kind, 0, 0, 0));
                    }
                }
                l.leaf().set_complete(true);
            }
            if hi >= bucket.highest {
                break;
            }
            at = hi + 1;
        }
        Some(bytes)
    }

    /// Bytes of the names in memory, about: long ones count as short.
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
        let mut freed = 0;
        let mut at = 0u64;
        if self.root().is_none() {
            return 0;
        }
        while at < 1 << 63 {
            let (leaf, level) = self.leaf(at);
            let (_, hi) = range_of(at, level);
            if matches!(leaf.head(), Head::Chain(p) if !p.is_null()) && leaf.lock.try_lock() {
                let again = self.leaf(at);
                if std::ptr::eq(again.0, leaf) {
                    let l = self.adopt(leaf, level, guard);
                    freed += l.evict(folded);
                } else {
                    leaf.lock.unlock();
                }
            }
            at = hi + 1;
        }
        freed
    }

    /// Whether every entry is clean, so that the whole directory may leave memory.
    pub fn is_clean(&self, folded: u64, guard: &Guard) -> bool {
        let _ = guard;
        self.each_leaf(&mut |leaf, _, _| leaf.epoch.load(Relaxed) <= folded)
    }
}
