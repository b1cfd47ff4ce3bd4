//! Advisory locks: on whole files as `flock(2)` gives, and on ranges of bytes as `fcntl(2)` does
//! with F_OFD_SETLK. They stop nobody but each other, and are gone when the volume is closed. The
//! two kinds do not see each other, as on Linux.
//!
//! **Whose a lock is.** The open [`crate::File`]'s, as with flock and OFD locks: it goes when that
//! handle is dropped or the lock is given back, and two handles of one program exclude each other.
//! POSIX's rule, that closing *any* descriptor of a file drops the process's locks on it, is the
//! one everybody regrets; it is not offered.
//!
//! **Waiting in a circle** for ranges is refused with EDEADLK: a handle waits for those that hold
//! what it wants, and when one of them waits, over whatever others, for the first, nobody would
//! ever go on. (A thread that gives back a lock of a handle for which another thread waits could
//! end it; this is not known, so the wait is refused all the same, as POSIX allows.)
//!
//! L1 A file's locks are in one shard, by a hash of its number; taking, giving back and asking lock
//!    that shard alone.
//! L2 Only who has to wait locks all shards, in order, and looks for a circle: all locks and all
//!    waits stand still then, so a circle is seen by the last who closes it, and none is seen that
//!    is not there.
//! L3 Waits are entered and removed under a shard's lock, so who holds all of them sees each.

use crate::error::{Error, Result};
use lanefs_format::Ino;
use lanefs_sync::lock::{Condvar, Mutex, MutexGuard};
use lanefs_sync::random::spread;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Kinds of advisory lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lock {
    /// Any number of holders.
    Shared,
    /// One holder.
    Exclusive,
}

/// A lock on bytes, as [`crate::File::test_range`] returns it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeLock {
    /// The bytes; an end of `u64::MAX` is that of the file, wherever it comes to be.
    pub range: Range<u64>,
    /// Its kind.
    pub kind: Lock,
}

const SHARDS: usize = 64;

const _: () = assert!(SHARDS == 1 << (u64::BITS - 58), "the bits of a hash that choose one");

/// Holders of the lock on the whole file.
#[derive(Default)]
struct Whole {
    exclusive: Option<u64>,
    /// Each once.
    shared: Vec<u64>,
}

impl Whole {
    /// Returns whether `owner` can have it, given what others hold.
    fn allows(&self, owner: u64, kind: Lock) -> bool {
        self.exclusive.is_none_or(|o| o == owner)
            && (kind == Lock::Shared || self.shared.iter().all(|o| *o == owner))
    }

    /// Gives the owner's lock back, if it has one; returns whether it had.
    fn release(&mut self, owner: u64) -> bool {
        self.check_invariants();
        let before = self.shared.len() + usize::from(self.exclusive.is_some());
        self.shared.retain(|o| *o != owner);
        if self.exclusive == Some(owner) {
            self.exclusive = None;
        }
        let now = self.shared.len() + usize::from(self.exclusive.is_some());
        debug_assert!(before - now <= 1, "an owner held {} locks", before - now);
        now < before
    }

    /// Takes the lock, which `owner` does not hold and nobody keeps it from having.
    fn take(&mut self, owner: u64, kind: Lock) {
        debug_assert!(self.allows(owner, kind), "others hold the lock");
        debug_assert!(!self.shared.contains(&owner) && self.exclusive.is_none(), "it was let go first");
        match kind {
            Lock::Shared => self.shared.push(owner),
            Lock::Exclusive => self.exclusive = Some(owner),
        }
        self.check_invariants();
    }

    /// Checks that nobody shares a lock that somebody has alone.
    fn check_invariants(&self) {
        debug_assert!(self.exclusive.is_none() || self.shared.is_empty(), "it is shared and exclusive");
    }
}

/// A lock on a range, and whose it is.
struct Held {
    owner: u64,
    lock: RangeLock,
}

/// The locks of one file.
#[derive(Default)]
struct FileLocks {
    whole: Whole,
    /// None is empty; of one owner none touches another of the same kind, nor overlaps any; and of
    /// two owners none is in the way of another.
    ranges: Vec<Held>,
}

impl FileLocks {
    /// Returns whether nobody holds anything.
    fn is_empty(&self) -> bool {
        self.whole.exclusive.is_none() && self.whole.shared.is_empty() && self.ranges.is_empty()
    }

    /// Returns the locks of others that keep `owner` from having `want`.
    fn against<'a>(&'a self, owner: u64, want: &'a RangeLock) -> impl Iterator<Item = &'a Held> {
        self.ranges.iter().filter(move |h| {
            h.owner != owner
                && h.lock.range.start < want.range.end
                && want.range.start < h.lock.range.end
                && (h.lock.kind == Lock::Exclusive || want.kind == Lock::Exclusive)
        })
    }

    /// Cuts a range out of what `owner` holds.
    fn cut(&mut self, owner: u64, out: &Range<u64>) {
        debug_assert!(!out.is_empty(), "a cut at {out:?} would halve a lock");
        let mut rest = Vec::new();
        self.ranges.retain_mut(|h| {
            let r = h.lock.range.clone();
            if h.owner != owner || r.end <= out.start || out.end <= r.start {
                return true;
            }
            if r.start < out.start && out.end < r.end {
                let behind = RangeLock { range: out.end..r.end, kind: h.lock.kind };
                rest.push(Held { owner, lock: behind });
            }
            if r.start < out.start {
                h.lock.range.end = out.start;
            } else {
                h.lock.range.start = out.end;
            }
            h.lock.range.start < h.lock.range.end
        });
        debug_assert!(rest.len() <= 1, "several locks of one owner overlap");
        self.ranges.append(&mut rest);
        let overlaps = |h: &Held| h.lock.range.start < out.end && out.start < h.lock.range.end;
        debug_assert!(!self.ranges.iter().any(|h| h.owner == owner && overlaps(h)), "{out:?} is held still");
        debug_assert!(self.ranges.iter().all(|h| !h.lock.range.is_empty()), "a lock on nothing is left");
    }

    /// Gives `owner` a lock in place of what it held there, joined with its neighbours of the same
    /// kind.
    fn give(&mut self, owner: u64, mut lock: RangeLock) {
        debug_assert!(self.against(owner, &lock).next().is_none(), "others hold part of it");
        let wanted = lock.range.clone();
        self.cut(owner, &lock.range);
        self.ranges.retain(|h| {
            let r = &h.lock.range;
            let joins = h.owner == owner
                && h.lock.kind == lock.kind
                && (r.end == lock.range.start || r.start == lock.range.end);
            if joins {
                lock.range = r.start.min(lock.range.start)..r.end.max(lock.range.end);
            }
            !joins
        });
        debug_assert!(lock.range.start <= wanted.start && wanted.end <= lock.range.end, "less than wanted");
        debug_assert!(self.against(owner, &lock).next().is_none(), "its neighbours were the owner's");
        self.ranges.push(Held { owner, lock });
    }
}

/// An owner that waits for a lock.
struct Wait {
    owner: u64,
    ino: Ino,
    want: RangeLock,
}

/// A part of the table: files whose numbers have one hash.
#[derive(Default)]
struct Shard {
    /// Those of which somebody holds a lock, or wanted one.
    files: HashMap<Ino, FileLocks>,
    /// Waits for ranges of this shard's files.
    waits: Vec<Wait>,
}

impl Shard {
    /// Forgets a file of which nobody holds a lock.
    fn drop_if_empty(&mut self, ino: Ino) {
        if self.files.get(&ino).is_some_and(FileLocks::is_empty) {
            self.files.remove(&ino);
        }
    }
}

/// A shard and its lock, on lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct Place {
    shard: Mutex<Shard>,
    released: Condvar,
}

/// The advisory locks of a volume.
pub(crate) struct LockTable(Box<[Place]>);

impl Default for LockTable {
    fn default() -> LockTable {
        LockTable((0..SHARDS).map(|_| Place::default()).collect())
    }
}

/// Returns the shard of a file.
fn shard_of(ino: Ino) -> usize {
    (spread(ino.0) >> 58) as usize % SHARDS
}

impl LockTable {
    /// Returns the place of a file's shard.
    fn place(&self, ino: Ino) -> &Place {
        &self.0[shard_of(ino)]
    }

    /// Takes the lock on the whole file, or turns the owner's into another kind (which, as with
    /// flock, lets go first).
    pub fn lock(&self, ino: Ino, owner: u64, kind: Lock, wait: bool) -> Result<()> {
        let place = self.place(ino);
        let mut shard = place.shard.lock();
        if let Some(f) = shard.files.get_mut(&ino)
            && f.whole.release(owner)
        {
            place.released.notify_all();
        }
        loop {
            let whole = &mut shard.files.entry(ino).or_default().whole;
            if whole.allows(owner, kind) {
                // Another thread that has the handle may have taken one meanwhile.
                if whole.release(owner) {
                    place.released.notify_all();
                }
                whole.take(owner, kind);
                return Ok(());
            }
            if !wait {
                return Err(Error::Posix(libc::EWOULDBLOCK));
            }
            lanefs_sync::about_to_wait();
            place.released.wait(&mut shard);
        }
    }

    /// Gives the owner's lock on the whole file back, if it has one.
    pub fn unlock(&self, ino: Ino, owner: u64) {
        let place = self.place(ino);
        let mut shard = place.shard.lock();
        if let Some(f) = shard.files.get_mut(&ino)
            && f.whole.release(owner)
        {
            place.released.notify_all();
        }
        shard.drop_if_empty(ino);
    }

    /// Takes a lock on bytes in place of what the owner held there.
    pub fn lock_range(&self, ino: Ino, owner: u64, want: &RangeLock, wait: bool) -> Result<()> {
        let place = self.place(ino);
        loop {
            {
                let mut shard = place.shard.lock();
                if shard.files.entry(ino).or_default().against(owner, want).next().is_none() {
                    shard.files.entry(ino).or_default().give(owner, want.clone());
                    // A lock that became a shared one lets others in.
                    place.released.notify_all();
                    return Ok(());
                }
                shard.drop_if_empty(ino);
            }
            if !wait {
                return Err(Error::Posix(libc::EAGAIN));
            }
            lanefs_sync::about_to_wait();
            // L2. With all shards in hand what was in the way may be gone: then the loop takes the
            //     lock.
            let mut all: Vec<MutexGuard<'_, Shard>> = self.0.iter().map(|p| p.shard.lock()).collect();
            let mine = &all[shard_of(ino)];
            if mine.files.get(&ino).is_none_or(|f| f.against(owner, want).next().is_none()) {
                continue;
            }
            if closes_circle(&all, ino, owner, want) {
                return Err(Error::Posix(libc::EDEADLK));
            }
            let mut shard = all.swap_remove(shard_of(ino));
            drop(all);
            shard.waits.push(Wait { owner, ino, want: want.clone() });
            place.released.wait(&mut shard);
            let entered =
                shard.waits.iter().position(|w| w.owner == owner && w.ino == ino && w.want == *want);
            debug_assert!(entered.is_some(), "L3: who waits removes its own wait");
            if let Some(entered) = entered {
                shard.waits.swap_remove(entered);
            }
        }
    }

    /// Gives back what the owner holds of a range.
    pub fn unlock_range(&self, ino: Ino, owner: u64, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        let place = self.place(ino);
        let mut shard = place.shard.lock();
        if let Some(f) = shard.files.get_mut(&ino) {
            f.cut(owner, range);
            place.released.notify_all();
        }
        shard.drop_if_empty(ino);
    }

    /// Returns the first lock, by its start, that keeps `owner` from having `want`.
    pub fn test_range(&self, ino: Ino, owner: u64, want: &RangeLock) -> Option<RangeLock> {
        let shard = self.place(ino).shard.lock();
        shard.files.get(&ino)?.against(owner, want).min_by_key(|h| h.lock.range.start).map(|h| h.lock.clone())
    }
}

/// Returns whether somebody who keeps `owner` from having `want` waits, over whatever others, for
/// `owner`.
fn closes_circle(all: &[MutexGuard<'_, Shard>], ino: Ino, owner: u64, want: &RangeLock) -> bool {
    debug_assert_eq!(all.len(), SHARDS, "L2: others may begin to wait meanwhile");
    let holders = |ino: Ino, owner: u64, want: &RangeLock| -> Vec<u64> {
        let file = all[shard_of(ino)].files.get(&ino);
        file.into_iter().flat_map(|f| f.against(owner, want).map(|h| h.owner)).collect()
    };
    let mut todo = holders(ino, owner, want);
    debug_assert!(!todo.is_empty(), "L2: nobody keeps it from having that");
    debug_assert!(!todo.contains(&owner), "an owner is in its own way");
    let mut seen = HashSet::new();
    while let Some(next) = todo.pop() {
        if next == owner {
            return true;
        }
        if seen.insert(next) {
            for wait in all.iter().flat_map(|s| &s.waits).filter(|w| w.owner == next) {
                todo.extend(holders(wait.ino, wait.owner, &wait.want));
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(7);

    fn held(table: &LockTable) -> Vec<(u64, Range<u64>)> {
        let shard = table.place(INO).shard.lock();
        let all = shard.files.get(&INO).into_iter().flat_map(|f| &f.ranges);
        all.map(|h| (h.owner, h.lock.range.clone())).collect()
    }

    /// A range that ends where it begins cut the lock around it in two, and one that ends before it
    /// begins left two locks of one owner that overlapped.
    #[test]
    fn giving_back_nothing_leaves_locks_as_they_are() {
        let table = LockTable::default();
        let want = RangeLock { range: 0..10, kind: Lock::Exclusive };
        table.lock_range(INO, 1, &want, false).unwrap();
        #[allow(clippy::reversed_empty_ranges)]
        for nothing in [5..5, 7..3] {
            table.unlock_range(INO, 1, &nothing);
            assert_eq!(held(&table), [(1, 0..10)]);
        }
        table.unlock_range(INO, 1, &(3..7));
        assert_eq!(held(&table), [(1, 0..3), (1, 7..10)]);
    }

    /// Two threads that wait with one handle left it with a shared lock and an exclusive one.
    #[test]
    fn a_handle_has_one_lock_on_the_whole_file_however_many_threads_ask() {
        let table = LockTable::default();
        table.lock(INO, 1, Lock::Exclusive, false).unwrap();
        std::thread::scope(|s| {
            for kind in [Lock::Shared, Lock::Exclusive] {
                let table = &table;
                s.spawn(move || table.lock(INO, 2, kind, true).unwrap());
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            table.unlock(INO, 1);
        });
        let shard = table.place(INO).shard.lock();
        let whole = &shard.files[&INO].whole;
        assert_eq!(whole.shared.len() + usize::from(whole.exclusive.is_some()), 1);
    }
}
