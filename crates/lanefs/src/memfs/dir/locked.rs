//! Leaves in the hands of one operation.

use super::entry::{Entry, Head, Leaf};
use super::{Dir, relax, split, too_full};
use crossbeam_epoch::Guard;
use lanefs_format::Ino;
use lanefs_sync::partial;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

/// A locked leaf: the key lock of every name it covers. Unlocks on drop.
pub(crate) struct LockedLeaf<'g> {
    dir: &'g Dir,
    leaf: &'g Leaf,
    level: u32,
    guard: &'g Guard,
}

impl Dir {
    /// Locks the leaf that covers `cookie`.
    pub fn lock<'g>(&'g self, cookie: u64, guard: &'g Guard) -> LockedLeaf<'g> {
        loop {
            let (leaf, level) = self.leaf(cookie);
            leaf.lock.lock();
            if matches!(leaf.head(), Head::Chain(_)) {
                return LockedLeaf { dir: self, leaf, level, guard };
            }
            leaf.lock.unlock();
        }
    }

    /// Takes over a leaf that is already locked, as an operation's.
    pub(super) fn adopt<'g>(&'g self, leaf: &'g Leaf, level: u32, guard: &'g Guard) -> LockedLeaf<'g> {
        debug_assert!(leaf.lock.is_locked(), "the caller has locked it");
        LockedLeaf { dir: self, leaf, level, guard }
    }

    /// Takes the next generation; returns it as `split_seq` has it: for who has just taken
    /// something out of a leaf that the store may remember.
    pub(super) fn taken(&self) -> u32 {
        self.generation.fetch_add(1, SeqCst).wrapping_add(1) << 1
    }

    /// Locks every leaf in turn, never waiting, and checks that it holds no name. `Ok` gives the
    /// highest timestamp seen. The directory must be DYING, so nothing is added behind the check.
    pub fn check_empty(&self, guard: &Guard) -> Result<u64, NotEmpty> {
        debug_assert_eq!(self.state.load(SeqCst), super::DYING, "names may be added behind the check");
        let mut highest = 0;
        let mut verdict = Ok(());
        self.each_leaf(&mut |leaf, _, _| {
            let mut turn = 0;
            while !leaf.lock.try_lock() {
                // Whoever holds it may wait for a leaf that our caller holds; give way after a
                // moment.
                if turn > 200 {
                    verdict = Err(NotEmpty::Busy);
                    return false;
                }
                relax(&mut turn);
            }
            if let Head::Chain(mut p) = leaf.head() {
                if !leaf.is_complete() {
                    verdict = Err(NotEmpty::NotLoaded);
                }
                // SAFETY: chain entries live while `guard` is pinned.
                while let Some(e) = unsafe { p.as_ref() } {
                    if e.target().is_some() {
                        verdict = Err(NotEmpty::HasNames);
                        break;
                    }
                    p = e.next.load(Relaxed);
                }
            } else {
                // Split, or gone with its table.
                verdict = Err(NotEmpty::Busy);
            }
            highest = highest.max(leaf.last_ts.load(Relaxed));
            leaf.lock.unlock();
            verdict.is_ok()
        });
        let _ = guard;
        if self.root().is_none() && !self.newborn {
            return Err(NotEmpty::NotLoaded);
        }
        verdict.map(|()| highest)
    }
}

/// What came of a removal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Removed {
    /// The bytes that left memory: none if a tombstone stays (invariant 4).
    pub freed: usize,
    /// The name had changed in the same epoch before.
    pub again: bool,
}

/// Why a directory may not be removed (yet).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotEmpty {
    HasNames,
    /// Part of it is not in memory.
    NotLoaded,
    /// A leaf was held by somebody who may wait for us.
    Busy,
}

impl<'g> LockedLeaf<'g> {
    /// Returns whether a miss is authoritative.
    pub fn is_complete(&self) -> bool {
        self.leaf.is_complete()
    }

    /// Returns the highest timestamp of any operation on a name of this leaf.
    pub fn last_ts(&self) -> u64 {
        self.leaf.last_ts.load(Relaxed)
    }

    /// Returns the entry of `name`, tombstones included.
    pub fn find(&self, hash: u64, name: &[u8]) -> Option<&'g Entry> {
        let Head::Chain(mut p) = self.leaf.head() else { return None };
        // SAFETY: the leaf is locked and the guard pinned.
        while let Some(e) = unsafe { p.as_ref() } {
            if e.cookie >> 3 == hash >> 3 && e.name.as_slice() == name {
                return Some(e);
            }
            p = e.next.load(Relaxed);
        }
        None
    }

    /// Returns the entry of `name`, tombstones included, and the cookie that the name has or would
    /// get; no cookie when all eight of the hash are taken. One walk over the chain.
    pub fn place(&self, hash: u64, name: &[u8]) -> (Option<&'g Entry>, Option<u64>) {
        debug_assert_eq!(hash & 7, 0, "a hash, not a cookie");
        let mut taken = 0u8;
        let Head::Chain(mut p) = self.leaf.head() else { return (None, None) };
        if !self.leaf.may_hold(self.level, hash) {
            return (None, Some(hash));
        }
        // SAFETY: as in `find`.
        while let Some(e) = unsafe { p.as_ref() } {
            if e.cookie >> 3 == hash >> 3 {
                if e.name.as_slice() == name {
                    return (Some(e), Some(e.cookie));
                }
                taken |= 1 << (e.cookie & 7);
            }
            p = e.next.load(Relaxed);
        }
        (None, (taken != u8::MAX).then(|| hash | u64::from(taken.trailing_ones())))
    }

    /// Makes space for a name: drops clean tombstones, then splits if the leaf is too full. May
    /// move to a child leaf.
    pub fn make_space(self, cookie: u64, folded: impl Fn() -> u64) -> LockedLeaf<'g> {
        if self.leaf.count.load(Relaxed) >= super::SPLIT_AT {
            self.purge(folded());
        }
        if !too_full(self.leaf, self.level) {
            return self;
        }
        let (dir, guard) = (self.dir, self.guard);
        split(self.leaf, self.level);
        drop(self);
        dir.lock(cookie, guard).make_space(cookie, folded)
    }

    /// Adds a name (there must be none, see `find`). `entry` was allocated before the lock was
    /// taken.
    pub fn insert(&self, entry: Box<Entry>) -> &'g Entry {
        debug_assert!(self.find(entry.cookie, entry.name.as_slice()).is_none(), "the name is there");
        let Head::Chain(first) = self.leaf.head() else { unreachable!("a locked leaf holds a chain") };
        entry.next.store(first, Relaxed);
        // Before it is published: who finds no bit finds no entry.
        self.leaf.note_name(self.level, entry.cookie);
        let p = Box::into_raw(entry);
        self.leaf.set_chain(p);
        self.leaf.count.store(self.leaf.count.load(Relaxed) + 1, Relaxed);
        self.leaf.check_chain(self.level);
        // SAFETY: published, freed only through the collector; the guard is pinned.
        unsafe { &*p }
    }

    /// Takes a name away in `epoch`.
    pub fn remove(&self, e: &Entry, epoch: u64, lane: usize) -> Removed {
        debug_assert!(e.target().is_some(), "it is a tombstone already");
        debug_assert!(self.find(e.cookie, e.name.as_slice()).is_some_and(|own| std::ptr::eq(own, e)));
        let again = e.touch(epoch, lane);
        e.set_target(None);
        let mut freed = 0;
        if self.is_complete() || e.born.load(Relaxed) == epoch {
            freed = Entry::bytes(e.name.as_slice().len());
            self.unlink_one(e);
        }
        self.leaf.check_chain(self.level);
        Removed { freed, again }
    }

    /// Notes an operation at (epoch, ts) on a name of this leaf.
    pub fn stamp(&self, epoch: u64, ts: u64) {
        debug_assert!(ts >= self.leaf.last_ts.load(Relaxed), "the version lies above its keys'");
        debug_assert!(epoch >= self.leaf.epoch.load(Relaxed), "the epoch was read before the lock");
        self.leaf.last_ts.store(ts, Relaxed);
        self.leaf.epoch.store(epoch, Relaxed);
    }

    /// Drops tombstones whose epoch has been folded; returns how many.
    pub(super) fn purge(&self, folded: u64) -> usize {
        let n = self.unlink(&mut |e| e.target().is_none() && e.epoch.load(Relaxed) <= folded);
        if n > 0 {
            // A load that read the store before the fold must not bring these names back (invariant
            // 5).
            self.leaf.split_seq.store(self.dir.taken(), Release);
        }
        self.leaf.check_chain(self.level);
        n
    }

    /// Returns whether nothing was taken out of the leaf since `stamp`, see invariant 5.
    pub(super) fn nothing_taken_since(&self, stamp: u32) -> bool {
        // Half of the numbers lie behind a stamp, half before it.
        let behind = self.leaf.split_seq.load(Relaxed).wrapping_sub(stamp << 1) as i32;
        if behind > 0 {
            // Once more, with the generation of now: a leaf that was left alone while half of the
            // numbers passed would look so for ever.
            self.leaf.split_seq.store(self.dir.generation.load(SeqCst) << 1, Release);
        }
        behind <= 0
    }

    /// Drops every entry if all are clean; the leaf must be loaded again to be read. Returns bytes
    /// freed.
    pub fn evict(&self, folded: u64) -> usize {
        let mut bytes = 0;
        let Head::Chain(mut p) = self.leaf.head() else { return 0 };
        // SAFETY: as in `find`.
        while let Some(e) = unsafe { p.as_ref() } {
            if e.epoch.load(Relaxed) > folded {
                return 0;
            }
            bytes += Entry::bytes(e.name.as_slice().len());
            p = e.next.load(Relaxed);
        }
        if self.leaf.epoch.load(Relaxed) > folded {
            return 0;
        }
        partial::begin_taking(&self.leaf.split_seq);
        self.leaf.set_complete(false);
        self.unlink(&mut |_| true);
        self.leaf.purged_lanes.store(0, Relaxed);
        partial::end_taking(&self.leaf.split_seq, self.dir.taken());
        debug_assert_eq!(self.leaf.count.load(Relaxed), 0);
        debug_assert!(!self.leaf.is_complete(), "the store has to be asked now");
        bytes
    }

    /// Unlinks one entry and frees it when no reader can see it.
    fn unlink_one(&self, e: &Entry) {
        debug_assert!(self.leaf.lock.is_locked(), "a chain changes under its lock (1)");
        let Head::Chain(mut p) = self.leaf.head() else { return };
        let mut prev: Option<&Entry> = None;
        // SAFETY: as in `unlink`.
        while let Some(x) = unsafe { p.as_ref() } {
            if std::ptr::eq(x, e) {
                self.take_out(prev, p, x);
                self.leaf.count.store(self.leaf.count.load(Relaxed) - 1, Relaxed);
                return;
            }
            (prev, p) = (Some(x), x.next.load(Relaxed));
        }
        debug_assert!(false, "it is not in the chain");
    }

    /// Takes the entry `e` at `p`, which follows `prev` or is the first, out of the chain. Its
    /// count is left to the caller.
    #[inline]
    fn take_out(&self, prev: Option<&Entry>, p: *mut Entry, e: &Entry) {
        debug_assert!(std::ptr::eq(p, e), "another entry's place");
        let next = e.next.load(Relaxed);
        // Before it is out of the chain: see `Dir::key_lanes`.
        let lanes = self.leaf.purged_lanes.load(Relaxed) | e.lanes.load(Relaxed);
        self.leaf.purged_lanes.store(lanes, Relaxed);
        match prev {
            Some(q) => q.next.store(next, Release),
            None => self.leaf.set_chain(next),
        }
        // SAFETY: `p` came from Box::into_raw, is unreachable now and is handed to the collector
        // once.
        unsafe { self.guard.defer_unchecked(move || drop(Box::from_raw(p))) };
    }

    /// Unlinks the entries `pick` chooses and frees them when no reader can see them.
    fn unlink(&self, pick: &mut dyn FnMut(&Entry) -> bool) -> usize {
        debug_assert!(self.leaf.lock.is_locked(), "a chain changes under its lock (1)");
        let Head::Chain(mut p) = self.leaf.head() else { return 0 };
        let mut prev: Option<&Entry> = None;
        let mut n = 0;
        // SAFETY: the leaf is locked and the guard pinned; an unlinked entry stays readable until
        // the collector frees it.
        while let Some(e) = unsafe { p.as_ref() } {
            let next = e.next.load(Relaxed);
            if pick(e) {
                self.take_out(prev, p, e);
                n += 1;
            } else {
                prev = Some(e);
            }
            p = next;
        }
        debug_assert!(n <= usize::from(self.leaf.count.load(Relaxed)), "more than there were");
        self.leaf.count.store(self.leaf.count.load(Relaxed) - n as u16, Relaxed);
        n
    }

    pub(super) fn leaf(&self) -> &'g Leaf {
        self.leaf
    }

    pub(super) fn level(&self) -> u32 {
        self.level
    }
}

impl Drop for LockedLeaf<'_> {
    fn drop(&mut self) {
        if cfg!(debug_assertions) && !std::thread::panicking() {
            self.leaf.check_invariants(self.level);
        }
        self.leaf.lock.unlock();
    }
}

/// The leaves of an operation on two keys, locked in order; one leaf if both keys share it. Lookups
/// there wait (invariant 3).
pub(crate) struct LockedPair<'g> {
    first: LockedLeaf<'g>,
    second: Option<LockedLeaf<'g>>,
    swapped: bool,
    raised: bool,
}

impl<'g> LockedPair<'g> {
    /// Locks key `a` and key `b`: (directory's inode number, directory, cookie).
    pub fn lock(a: (Ino, &'g Dir, u64), b: (Ino, &'g Dir, u64), guard: &'g Guard) -> LockedPair<'g> {
        loop {
            let (la, _) = a.1.leaf(a.2);
            let (lb, _) = b.1.leaf(b.2);
            if std::ptr::eq(la, lb) {
                let first = a.1.lock(a.2, guard);
                if std::ptr::eq(first.leaf, b.1.leaf(b.2).0) {
                    return LockedPair { first, second: None, swapped: false, raised: false };
                }
                continue;
            }
            let swapped = (b.0, std::ptr::from_ref(lb).addr()) < (a.0, std::ptr::from_ref(la).addr());
            let (x, y, lx, ly) = if swapped { (b, a, lb, la) } else { (a, b, la, lb) };
            let first = x.1.lock(x.2, guard);
            if !std::ptr::eq(first.leaf, lx) {
                continue;
            }
            let second = y.1.lock(y.2, guard);
            if !std::ptr::eq(second.leaf, ly) {
                continue;
            }
            let pair = LockedPair { first, second: Some(second), swapped, raised: false };
            debug_assert!(std::ptr::eq(pair.a().leaf, la) && std::ptr::eq(pair.b().leaf, lb));
            return pair;
        }
    }

    /// Returns the leaf of key `a`.
    pub fn a(&self) -> &LockedLeaf<'g> {
        match &self.second {
            Some(s) if self.swapped => s,
            _ => &self.first,
        }
    }

    /// Returns the leaf of key `b`.
    pub fn b(&self) -> &LockedLeaf<'g> {
        match &self.second {
            Some(s) if !self.swapped => s,
            _ => &self.first,
        }
    }

    /// Makes lookups wait from here to the drop.
    pub fn raise(&mut self) {
        debug_assert!(!self.raised, "it is raised for the whole operation");
        for l in self.leaves() {
            debug_assert_eq!(l.multi_key.load(Relaxed), 0, "another operation has the leaf");
            l.multi_key.store(1, SeqCst);
        }
        self.raised = true;
    }

    fn leaves(&self) -> impl Iterator<Item = &'g Leaf> {
        [Some(self.first.leaf), self.second.as_ref().map(|s| s.leaf)].into_iter().flatten()
    }

    /// Makes space in both leaves. Returns false if one split: the caller starts over with other
    /// leaves.
    pub fn has_space(&self, folded: impl Fn() -> u64) -> bool {
        for l in [Some(&self.first), self.second.as_ref()].into_iter().flatten() {
            if l.leaf.count.load(Relaxed) + 1 >= super::SPLIT_AT {
                l.purge(folded());
            }
            if too_full(l.leaf, l.level) {
                split(l.leaf, l.level);
                return false;
            }
        }
        true
    }
}

impl Drop for LockedPair<'_> {
    fn drop(&mut self) {
        if self.raised {
            for l in self.leaves() {
                debug_assert!(l.lock.is_locked(), "lowered before it is let go (3)");
                l.multi_key.store(0, Release);
            }
        }
    }
}
