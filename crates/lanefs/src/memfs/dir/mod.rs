//! Directories in memory: a trie over the cookie (hash order), lock-free to read, locked leaf by
//! leaf to write.
//!
//! Definitions. A *cookie* is 60 bits of the name's keyed hash and 3 bits that distinguish names of
//! one hash; it is the entry's place in the listing, on disk too. A *leaf* covers all cookies with
//! a common prefix; the root's 16 leaves cover 4 bits. A leaf is *complete* when its chain holds
//! every name of its range; otherwise the folded bucket on the store must be asked. An entry is
//! *clean* once the epoch of its last change has been folded.
//!
//! Invariants.
//! 1. A chain changes only under its leaf's lock. Adding is one Release store of the head, removing
//!    one of `next`, changing what a name names one of `target`: each single-key change is atomic
//!    to readers.
//! 2. Entries move between chains (split) or vanish without an operation (eviction) only while
//!    `split_seq` is odd. A reader that found nothing is right only if `split_seq` is even and
//!    unchanged and the leaf was complete before the reader looked at the chain
//!    (`lanefs_sync::partial`, which loom runs).
//! 3. An operation on several keys raises `multi_key` on all its leaves before its first change and
//!    lowers it after its last; a reader that sees it raised waits. So no reader sees a rename half
//!    done.
//! 4. A leaf keeps all it has until its last change is folded: nothing of it is evicted before. So
//!    a complete leaf needs no tombstone of a name that is removed: nobody asks the store for its
//!    range as long as the store may remember the name. In a leaf that is not complete a tombstone
//!    stays until it is clean, unless its name was born in the same epoch (then the folded
//!    directory cannot hold it). When clean names or tombstones are taken out, `generation` moves,
//!    and the new one is left, twice, in the leaf's `split_seq`; the halves of a leaf that splits
//!    inherit it.
//! 5. Names loaded from the store are added to a leaf only if its `split_seq` has no generation
//!    later than that before the read, and never over an entry in memory. (Not: if `generation`
//!    stayed. The reclaimer goes over the leaves of a large directory faster than one bucket is
//!    read.)
//! 6. Entries, and tables but the root, are freed through the epoch collector, so a guard keeps
//!    them readable. A table is taken out when all its leaves are empty and folded, and all
//!    complete or none: with them and the leaf above locked, that leaf gets back what is known of
//!    its range, and each of the sixteen is marked as gone, which whoever finds or locks it later
//!    sees, and walks down again.
//!
//! 7. Below the root, a leaf's filter has the bit of every entry of its chain, and a table's leaves
//!    have theirs before it is published. A bit is set, with Release, before its entry is: who
//!    finds none found no entry at that instant, and the answer is as good as a walk that finds
//!    nothing (invariant 2). Bits of names that are gone stay until the filter is made anew, under
//!    the lock. Only who is about to make a name asks it.
//!
//! Locks are taken in the order (directory inode, leaf address). Who holds a leaf performs no I/O.

mod entry;
mod list;
mod load;
mod locked;
mod moment;
#[cfg(test)]
mod tests;
mod tidy;

pub(crate) use entry::Entry;
use entry::{Head, Leaf, SPLIT_AT, Table, slot};
pub(crate) use list::Step;
pub(crate) use load::Bucket;
pub(crate) use locked::{LockedPair, NotEmpty, Removed};
pub(crate) use moment::Moment;

use super::stamps::NO_TIME;
use crossbeam_epoch::Guard;
pub(crate) use lanefs_format::name_hash::name_hash as hash_name;
use lanefs_format::{FileKind, Ino};
use lanefs_sync::partial::{self, COMPLETE};
use lanefs_sync::primitive::fence;
use lanefs_sync::schedule;
use std::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
};

/// The directory can take names.
pub(crate) const ALIVE: u8 = 0;
/// Somebody is removing it and looks whether it is empty: who wants to add a name waits for the
/// outcome.
pub(crate) const DYING: u8 = 1;
/// Removed: no name can be added (ENOENT).
pub(crate) const DEAD: u8 = 2;

/// The directory index of one inode.
pub(crate) struct Dir {
    /// The root table; of a directory that was not made in this mount null until its first load.
    /// Written once, by compare-exchange: AcqRel, the partner of the Acquire load in `root`.
    root: AtomicPtr<Table>,
    /// See invariants 4 and 5. Written under a leaf lock, where something is taken out only.
    /// SeqCst: the increment in `taken` is the partner of the load in `load_stamp`, so that a stamp
    /// which counts a taking comes with a view of the store that has the fold behind it.
    pub(crate) generation: AtomicU32,
    /// The place at which the eviction of a directory in use goes on: the top half of a cookie.
    /// Written by the reclaimer. Relaxed: any value is right.
    hand: AtomicU32,
    /// [`ALIVE`], [`DYING`] or [`DEAD`]; written by rmdir and rename only. SeqCst: who adds a name
    /// loads it with the leaf locked, who removes the directory stores it before it locks the
    /// leaves to see that they are empty; so one of the two finds what the other did.
    pub(crate) state: AtomicU8,
    /// Whether the directory was made in this mount and nothing of it was evicted: all leaves are
    /// born complete.
    newborn: bool,
}

/// Where a lookup found a name in memory, as addresses; 0 where it did not come so far.
#[derive(Clone, Copy, Default)]
pub(crate) struct At {
    pub leaf: usize,
    pub entry: usize,
}

/// The outcome of a lookup.
pub(crate) enum Found {
    Name(Ino, FileKind),
    Absent,
    /// The leaf is not in memory: load it and look again.
    NotLoaded,
}

/// Spins a little, then yields: for windows of a few hundred nanoseconds that belong to another
/// thread.
pub(crate) fn relax(turn: &mut u32) {
    *turn += 1;
    if *turn < 64 { schedule::spin_loop() } else { schedule::yield_now() }
}

impl Dir {
    pub fn new(newborn: bool) -> Dir {
        Dir {
            // A new directory has its leaves from the start: its first names, made by several lanes
            // at once, share nothing.
            root: AtomicPtr::new(if newborn {
                Box::into_raw(Table::new(COMPLETE))
            } else {
                std::ptr::null_mut()
            }),
            generation: AtomicU32::new(0),
            hand: AtomicU32::new(0),
            state: AtomicU8::new(ALIVE),
            newborn,
        }
    }

    fn root(&self) -> Option<&Table> {
        // SAFETY: set once by `root_or_new` to a leaked Box, freed only by Drop, which has
        // `&mut self`. Acquire pairs with the compare-exchange's Release.
        unsafe { self.root.load(Acquire).as_ref() }
    }

    fn root_or_new(&self) -> &Table {
        if let Some(t) = self.root() {
            return t;
        }
        let fresh = Box::into_raw(Table::new(if self.newborn { COMPLETE } else { 0 }));
        match self.root.compare_exchange(std::ptr::null_mut(), fresh, AcqRel, Acquire) {
            // SAFETY: just published, never freed before Drop.
            Ok(_) => unsafe { &*fresh },
            Err(other) => {
                // SAFETY: `fresh` was not published, so it is ours; `other` was, as above.
                unsafe {
                    drop(Box::from_raw(fresh));
                    &*other
                }
            }
        }
    }

    /// Returns the leaf that covers `cookie`, and the level of its table. The answer may be split
    /// or gone right after: lockers check again. The caller is pinned for as long as it uses the
    /// leaf.
    fn leaf(&self, cookie: u64) -> (&Leaf, u32) {
        Dir::leaf_below(self.root_or_new(), cookie)
    }

    #[inline]
    fn leaf_below(root: &Table, cookie: u64) -> (&Leaf, u32) {
        let mut table = root;
        let mut level = 0;
        loop {
            let leaf = &table.leaves[slot(cookie, level)];
            match leaf.head() {
                Head::Chain(_) => return (leaf, level),
                // SAFETY: the caller is pinned, and a table is freed through the collector
                // (invariant 6).
                Head::Table(t) => table = unsafe { &*t },
                Head::Gone => {
                    (table, level) = (root, 0);
                    schedule::spin_loop();
                    continue;
                }
            }
            level += 1;
            debug_assert!(level < entry::MAX_LEVELS, "a table below the last level");
        }
    }

    /// Looks a name up. `hash` is from `hash_name`. Writes nothing.
    pub fn lookup(&self, hash: u64, name: &[u8], guard: &Guard) -> Found {
        self.lookup_at(hash, name, &mut At::default(), guard)
    }

    /// Looks a name up, and says in which memory it lies.
    #[inline]
    pub fn lookup_at(&self, hash: u64, name: &[u8], at: &mut At, _guard: &Guard) -> Found {
        debug_assert_eq!(hash & ((1 << entry::DISC_BITS) - 1), 0, "a hash, not a cookie");
        let Some(root) = self.root() else {
            return if self.newborn { Found::Absent } else { Found::NotLoaded };
        };
        let mut turn = 0;
        loop {
            let (leaf, _) = Dir::leaf_below(root, hash);
            let Some(look) = leaf.look() else {
                relax(&mut turn);
                continue;
            };
            let Head::Chain(mut p) = leaf.head() else { continue };
            let mut found = None;
            // SAFETY: entries reachable from a chain are freed through the epoch collector only;
            // `_guard` is pinned (invariant 6).
            while let Some(e) = unsafe { p.as_ref() } {
                if e.cookie >> entry::DISC_BITS == hash >> entry::DISC_BITS && e.name.as_slice() == name {
                    found = Some(e);
                    break;
                }
                p = e.next.load(Acquire);
            }
            if let Some(e) = found
                && let Some((ino, kind)) = e.target()
            {
                *at = At { leaf: std::ptr::from_ref(leaf).addr(), entry: std::ptr::from_ref(e).addr() };
                return Found::Name(ino, kind);
            }
            let tombstone = found.is_some();
            if !look.holds(&leaf.split_seq) || !matches!(leaf.head(), Head::Chain(_)) {
                continue;
            }
            return if tombstone || look.is_complete() { Found::Absent } else { Found::NotLoaded };
        }
    }

    /// Returns whether it is known without a walk over a chain that there is no name of this hash,
    /// for who is about to make one. False says nothing.
    #[inline(never)]
    pub fn lacks(&self, hash: u64, _guard: &Guard) -> bool {
        debug_assert_eq!(hash & ((1 << entry::DISC_BITS) - 1), 0, "a hash, not a cookie");
        if self.root().is_none() {
            return false;
        }
        let (leaf, level) = self.leaf(hash);
        // As in `lookup`, but for the chain.
        leaf.look().is_some_and(|look| {
            matches!(leaf.head(), Head::Chain(_))
                && !leaf.may_hold(level, hash)
                && look.holds(&leaf.split_seq)
                && matches!(leaf.head(), Head::Chain(_))
                && look.is_complete()
        })
    }

    /// Calls `f` with every leaf, in cookie order, until it returns false. Of a table that is taken
    /// out meanwhile it may be given the leaves.
    fn each_leaf<'a>(&'a self, f: &mut dyn FnMut(&'a Leaf, u64, u32) -> bool) -> bool {
        fn go<'a>(
            t: &'a Table,
            base: u64,
            level: u32,
            f: &mut dyn FnMut(&'a Leaf, u64, u32) -> bool,
        ) -> bool {
            t.leaves.iter().enumerate().all(|(i, leaf)| {
                let base = base | (i as u64) << (59 - 4 * level);
                match leaf.head() {
                    Head::Chain(_) | Head::Gone => f(leaf, base, level),
                    // SAFETY: as in `leaf_below`.
                    Head::Table(t) => go(unsafe { &*t }, base, level + 1, f),
                }
            })
        }
        self.root().is_none_or(|t| go(t, 0, 0, f))
    }

    /// Returns the lanes of the entry with this cookie, tombstones included, and the leaf's purged
    /// lanes: what a closure needs of a key.
    ///
    /// Only groups behind epoch `committed` are pending; who logged one raised the epochs before it
    /// changed anything.
    pub fn key_lanes(&self, cookie: u64, committed: u64, _guard: &Guard) -> u64 {
        if self.root().is_none() {
            return 0;
        }
        loop {
            let (leaf, _) = self.leaf(cookie);
            let before = leaf.split_seq.load(Acquire);
            let Head::Chain(mut p) = leaf.head() else { continue };
            if before & 1 == 0
                && leaf.epoch.load(SeqCst) <= committed
                && matches!(leaf.head(), Head::Chain(_))
            {
                return 0;
            }
            let mut mask = 0;
            // SAFETY: as in `lookup`.
            while let Some(e) = unsafe { p.as_ref() } {
                if e.cookie == cookie {
                    mask |= e.lanes.load(Relaxed);
                }
                p = e.next.load(Acquire);
            }
            // Behind the walk: who took an entry out that the walk did not meet had noted its lanes
            // before.
            mask |= leaf.purged_lanes.load(Relaxed);
            fence(Acquire);
            if before & 1 == 0 && leaf.split_seq.load(Relaxed) == before {
                return mask;
            }
            schedule::spin_loop();
        }
    }

    /// Returns the latest change of the directory's content (coarse clock), [`NO_TIME`] if none in
    /// this mount.
    pub fn mtime(&self) -> i64 {
        let stripes = self.root().into_iter().flat_map(|t| &t.leaves);
        stripes.map(|l| l.mtime.load(Relaxed)).max().unwrap_or(NO_TIME)
    }

    /// Returns the number of subdirectories gained since the inode was made or loaded.
    pub fn subdirs(&self) -> i32 {
        self.root().map_or(0, |t| t.leaves.iter().map(|l| l.subdirs.load(Relaxed)).sum())
    }

    /// Moves the stripe of `cookie` to `time` and its subdirectory count by `subdirs`.
    pub fn note_change(&self, cookie: u64, time: i64, subdirs: i32) {
        debug_assert!((-1..=1).contains(&subdirs), "one name changed, not {subdirs}");
        debug_assert_ne!(time, NO_TIME);
        let stripe = &self.root_or_new().leaves[slot(cookie, 0)];
        if stripe.mtime.load(Relaxed) < time {
            stripe.mtime.fetch_max(time, Relaxed);
        }
        if subdirs != 0 {
            stripe.subdirs.fetch_add(subdirs, Relaxed);
        }
    }

    /// Returns the root leaf whose range holds `cookie`.
    fn stripe(&self, cookie: u64) -> &Leaf {
        &self.root_or_new().leaves[slot(cookie, 0)]
    }

    /// Notes that lane `lane` logs a group in `epoch` with key `cookie` (before the group is
    /// appended; the key is locked).
    pub fn named_by(&self, cookie: u64, lane: usize, epoch: u64) {
        debug_assert!(lane < lanefs_sync::MAX_LANES);
        let (stripe, bit) = (self.stripe(cookie), 1u64 << (lane & 63));
        if stripe.mask.load(Relaxed) & bit == 0 {
            stripe.mask.fetch_or(bit, SeqCst);
        }
        if stripe.epoch.load(Relaxed) < epoch {
            stripe.epoch.fetch_max(epoch, SeqCst);
        }
        debug_assert_ne!(stripe.mask.load(Relaxed) & bit, 0, "a closure would pass the lane by");
    }

    /// Returns the lanes (modulo 64) that may hold a group with a key in this directory that is
    /// pending: of an epoch behind `committed`.
    pub fn lanes_behind(&self, committed: u64) -> u64 {
        let Some(t) = self.root() else { return 0 };
        // SeqCst: the epoch first; who raised it had set its bit before.
        let pending = t.leaves.iter().filter(|l| l.epoch.load(SeqCst) > committed);
        pending.fold(0, |mask, l| mask | l.mask.load(SeqCst))
    }

    /// Marks the stripe of `cookie` as changed; returns true if it was not.
    pub fn mark_changed(&self, cookie: u64) -> bool {
        let stripe = self.stripe(cookie);
        stripe.flags.load(Relaxed) & entry::CHANGED == 0
            && stripe.flags.fetch_or(entry::CHANGED, AcqRel) & entry::CHANGED == 0
    }

    /// Returns whether any stripe is marked as changed.
    pub fn has_changed(&self) -> bool {
        self.root().is_some_and(|t| t.leaves.iter().any(|l| l.flags.load(Relaxed) & entry::CHANGED != 0))
    }

    /// Takes the marks off, before what they are about is captured; returns true if there was one.
    pub fn take_changed(&self) -> bool {
        let mut any = false;
        for l in self.root().iter().flat_map(|t| &t.leaves) {
            if l.flags.load(Relaxed) & entry::CHANGED != 0 {
                l.flags.fetch_and(!entry::CHANGED, AcqRel);
                any = true;
            }
        }
        any
    }

    /// Returns whether any name is in memory; a quick no to rmdir.
    pub fn has_names(&self, guard: &Guard) -> bool {
        let _ = guard;
        !self.each_leaf(&mut |leaf, _, _| {
            let Head::Chain(mut p) = leaf.head() else { return true };
            // SAFETY: as in `lookup`.
            while let Some(e) = unsafe { p.as_ref() } {
                if e.target().is_some() {
                    return false;
                }
                p = e.next.load(Acquire);
            }
            true
        })
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        fn free(t: *mut Table) {
            // SAFETY: `&mut self` of the directory: nobody else reads it any more; every table and
            // entry came from a Box and is reachable exactly once.
            unsafe {
                for leaf in &(*t).leaves {
                    match leaf.head() {
                        Head::Table(t) => free(t),
                        Head::Gone => {}
                        Head::Chain(mut p) => {
                            while !p.is_null() {
                                let next = (*p).next.load(Relaxed);
                                drop(Box::from_raw(p));
                                p = next;
                            }
                        }
                    }
                }
                drop(Box::from_raw(t));
            }
        }
        let root = *self.root.get_mut();
        if !root.is_null() {
            free(root);
        }
    }
}

/// Splits a locked leaf into a table of its own.
fn split(leaf: &Leaf, level: u32) {
    debug_assert!(level + 1 < entry::MAX_LEVELS);
    debug_assert!(leaf.lock.is_locked(), "a leaf splits under its lock (1)");
    let Head::Chain(mut p) = leaf.head() else { return };
    let complete = leaf.is_complete();
    let table = Box::into_raw(Table::new(if complete { COMPLETE } else { 0 }));
    // Readers of the chain start over (invariant 2).
    let s = leaf.split_seq.load(Relaxed);
    partial::begin_taking(&leaf.split_seq);
    // SAFETY: `table` is a fresh Box not yet published.
    let t = unsafe { &*table };
    for child in &t.leaves {
        child.last_ts.store(leaf.last_ts.load(Relaxed), Relaxed);
        child.epoch.store(leaf.epoch.load(Relaxed), Relaxed);
        child.purged_lanes.store(leaf.purged_lanes.load(Relaxed), Relaxed);
        child.split_seq.store(s, Relaxed);
    }
    // SAFETY: the leaf is locked, so the chain is ours to relink; entries stay allocated.
    while let Some(e) = unsafe { p.as_ref() } {
        let next = e.next.load(Relaxed);
        let child = &t.leaves[slot(e.cookie, level + 1)];
        let Head::Chain(first) = child.head() else { unreachable!("a fresh table holds chains") };
        e.next.store(first, Release);
        child.note_name(level + 1, e.cookie);
        child.set_chain(p);
        child.count.store(child.count.load(Relaxed) + 1, Relaxed);
        p = next;
    }
    if cfg!(debug_assertions) {
        let moved: u16 = t.leaves.iter().map(|child| child.count.load(Relaxed)).sum();
        debug_assert_eq!(moved, leaf.count.load(Relaxed), "entries were lost in the split");
        t.leaves.iter().for_each(|child| child.check_chain(level + 1));
    }
    debug_assert!(t.leaves.iter().all(|child| child.is_complete() == complete));
    leaf.set_table(table);
    partial::end_taking(&leaf.split_seq, s.wrapping_add(2));
}

/// Returns whether a locked leaf should split before it takes another entry.
fn too_full(leaf: &Leaf, level: u32) -> bool {
    debug_assert!(leaf.lock.is_locked(), "others may add entries meanwhile");
    leaf.count.load(Relaxed) >= SPLIT_AT && level + 1 < entry::MAX_LEVELS
}
