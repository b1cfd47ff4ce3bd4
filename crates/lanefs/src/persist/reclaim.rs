//! Memory: evicting clean names and inodes when they exceed their share of the budget. (Pages look
//! after themselves: memfs::data::reclaim.)
//!
//! An inode leaves memory in two steps. Marked FROZEN, it is still used by whoever finds it, and
//! any use takes the mark off. After a grace in which everybody pinned at the marking is gone, a
//! compare-exchange from FROZEN to EVICTED succeeds only if nobody has touched it since. Loading an
//! inode and evicting one exclude each other (`load_locks`), so a load never brings back what an
//! evicted inode had changed since.

use crate::core::memory::{self, INODE_COST};
use crate::core::page_store;
use crate::memfs::Inode;
use crate::memfs::dir::Dir;
use crate::memfs::inode::{DIRTY, ENDED, EVICTED, FREED, FROZEN, QUEUED, UNSYNCED, USED, XATTR_DIRTY};
use crate::persist::Persist;
use crossbeam_epoch::Guard;
use lanefs_format::{Ino, ROOT_INO};
use lanefs_sync::parallel::in_parallel;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Chunks of the inode table looked at in a round.
const CHUNKS: u64 = 512;

/// The state of the clock that goes round over the inodes.
#[derive(Default)]
pub(crate) struct Reclaim {
    /// The chunk that the hand of the clock points at.
    chunk: u64,
    /// The round that is not over.
    last: Option<Round>,
    /// Bytes of names seen since the hand left the start.
    names: usize,
    /// Bytes of names that had been brought into memory when it left.
    brought: i64,
    /// Bytes let go since the hand left the start.
    let_go: usize,
    /// The hand came round and had found next to nothing: what is in memory waits for a checkpoint.
    /// One changed name keeps all of its leaf.
    pub(super) fruitless: bool,
}

impl Reclaim {
    /// Checks what holds between two rounds.
    fn check_invariants(&self) {
        let is_work = |l: &Round| !l.frozen.is_empty() || l.freed > 0;
        debug_assert!(self.last.as_ref().is_none_or(is_work), "a round waits for nothing");
        debug_assert!(self.chunk > 0 || self.let_go == 0, "the hand is at the start");
        debug_assert!(self.chunk > 0 || self.names == 0, "the hand is at the start");
        debug_assert!(self.brought >= 0, "names were brought into memory: {}", self.brought);
    }
}

/// A round that the next one finishes.
struct Round {
    /// Nobody who was pinned in the round is any more, and what it let go is freed. Stored by the
    /// collector with Release, loaded with Acquire: whatever they did to the inodes is seen.
    done: Arc<AtomicBool>,
    frozen: Vec<Ino>,
    /// Bytes of names let go: they count until they are freed.
    freed: usize,
}

/// Turns of the collector in a round, at most: each frees a few hundred things, and what was marked
/// last is the last in its queue.
const TURNS: usize = 1024;

/// Turns the collector until it has come to `done`; returns false if it has not after so many
/// turns: somebody may be pinned all the time.
fn collect(done: &AtomicBool, turns: usize) -> bool {
    (0..turns).any(|_| {
        crossbeam_epoch::pin().flush();
        done.load(Ordering::Acquire)
    })
}

/// Turns after which what is left is worth several threads.
const FEW_TURNS: usize = 16;

/// Frees what was let go so far, with several threads if it is much, unless somebody is pinned all
/// the time.
pub(super) fn collect_all(threads: usize) {
    debug_assert!(threads > 0, "nobody does it");
    let done = Arc::new(AtomicBool::new(false));
    let signal = done.clone();
    crossbeam_epoch::pin().defer(move || signal.store(true, Ordering::Release));
    if !collect(&done, FEW_TURNS) {
        in_parallel(threads, threads, |_| {
            collect(&done, TURNS);
        });
    }
}

/// Does one round: evicts what was frozen last time, freezes the next candidates. Returns inodes
/// evicted.
pub(crate) fn reclaim_inodes(persist: &Persist) -> usize {
    let mut r = persist.reclaim.lock();
    r.check_invariants();
    let mut evicted = 0;
    if r.last.as_ref().is_some_and(|l| !collect(&l.done, TURNS)) {
        return 0;
    }
    let guard = crossbeam_epoch::pin();
    if let Some(last) = r.last.take() {
        persist.budget.count_names_gone(last.freed);
        let open = persist.journal.open_inodes();
        evicted =
            last.frozen.into_iter().filter(|i| !open.contains(&i.0) && evict(persist, *i, &guard)).count();
    }
    let folded = persist.journal.folded();
    let mut frozen = Vec::new();
    let (mut names, mut freed) = (0, 0);
    r.chunk = persist.memfs.inodes.walk(r.chunk, CHUNKS, &guard, &mut |inode| {
        if evictable(inode, folded, &guard) {
            if inode.has(USED) {
                inode.clear(USED);
            } else {
                inode.set(FROZEN);
                frozen.push(inode.ino);
            }
        }
        if let Some(d) = inode.dir() {
            freed += match inode.ino == ROOT_INO || !inode.has(USED) {
                true => d.evict_clean(folded, &guard),
                false => d.evict_some(d.name_bytes() / 8, folded, &guard),
            };
            names += d.name_bytes();
        }
    });
    r.names += names;
    r.let_go += freed + frozen.len() * INODE_COST;
    if r.chunk == 0 {
        // The hand has seen all of them. What is neither among those it saw nor came meanwhile
        // has left without being counted (tombstones, directories removed).
        let brought = persist.journal.names_brought();
        let came = brought - std::mem::replace(&mut r.brought, brought);
        let most = (std::mem::take(&mut r.names) + freed) as i64 + came;
        debug_assert!(came >= 0, "names that were brought are not taken back");
        persist.budget.count_names_gone((memory::name_bytes(persist) - most).max(0) as usize);
        r.fruitless = std::mem::take(&mut r.let_go) < (persist.budget.meta_limit / 16) as usize;
    }
    if !frozen.is_empty() || freed > 0 {
        let done = Arc::new(AtomicBool::new(false));
        let signal = done.clone();
        guard.defer(move || signal.store(true, Ordering::Release));
        guard.flush();
        debug_assert!(r.last.is_none(), "the last round was not finished");
        r.last = Some(Round { done, frozen, freed });
    }
    r.check_invariants();
    evicted
}

/// Returns whether an inode may leave memory: it is clean, named, folded, and without content in
/// memory that the store does not have.
fn evictable(inode: &Inode, folded: u64, guard: &Guard) -> bool {
    inode.ino != ROOT_INO
        && !inode.has(DIRTY | QUEUED | UNSYNCED | XATTR_DIRTY | FREED | EVICTED | FROZEN)
        // Relaxed: a change meanwhile takes the mark off that is set now, and is seen in the end.
        && inode.nlink.load(Ordering::Relaxed) > 0
        && inode.epoch.load(Ordering::Relaxed) <= folded
        && !inode.has_dirty()
        && inode.dir().is_none_or(|d| !d.has_changed() && d.is_clean(folded, guard))
}

/// Takes an inode out of memory that was frozen, unless somebody has used it since; returns whether
/// it is gone.
fn evict(persist: &Persist, ino: Ino, guard: &Guard) -> bool {
    debug_assert!(ino != ROOT_INO, "every walk begins at the root");
    let _no_load = persist.memfs.load_locks[ino.0 as usize % persist.memfs.load_locks.len()].lock();
    let folded = persist.journal.folded();
    // Not through `get`, which would take the mark off.
    let Some(inode) = persist.memfs.inodes.peek(ino, guard) else { return false };
    // SeqCst: before the looks below, whose makers took the mark off first.
    let f = inode.life.load(Ordering::SeqCst);
    if f & FROZEN == 0 {
        return false;
    }
    // With the lock, no writeback is under way whose failure would leave pages dirty behind our
    // look.
    let still = inode.sync_lock.try_lock();
    let clean = still.is_some()
        && !inode.has_dirty()
        && f & (FREED | EVICTED) == 0
        && !inode.has(DIRTY | QUEUED | UNSYNCED | XATTR_DIRTY)
        && !inode.dir().is_some_and(Dir::has_changed)
        && inode.epoch.load(Ordering::Relaxed) <= folded;
    // Whoever dirties it from here on found it and took the mark off, or holds it open (looked
    // at before).
    if !clean
        || inode.life.compare_exchange(f, f & !FROZEN | EVICTED, Ordering::SeqCst, Ordering::SeqCst).is_err()
    {
        inode.clear(FROZEN);
        return false;
    }
    debug_assert!(f & ENDED == 0, "inode {ino} ended, and its number leads nowhere");
    debug_assert_eq!(inode.owed.load(Ordering::Acquire), 0, "a seal waits for the content of inode {ino}");
    debug_assert_eq!(inode.held.load(Ordering::Acquire), 0, "somebody captures inode {ino}");
    if let Some(d) = inode.data() {
        d.drop_all(&page_store::data_ctx(persist, inode));
    }
    persist.budget.count_names_gone(inode.dir().map_or(0, Dir::name_bytes));
    inode.drop_stamps();
    persist.memfs.inodes.remove(inode, guard);
    persist.journal.count_inodes(-1);
    persist.store.forget_inode(ino);
    true
}

#[cfg(test)]
mod tests {
    use crate::core::memory;
    use crate::persist::{background, reaper};
    use crate::{Cred, MountOptions, Volume};
    use lanefs_store::device::{Device, MemoryDevice};
    use lanefs_store::{FormatOptions, Store};
    use std::sync::Arc;
    use std::time::Duration;

    /// A new name in each of many leaves keeps all names of these leaves, and is little in the log
    /// itself.
    #[test]
    fn names_that_keep_more_than_they_take_do_not_make_others_wait_for_ever() {
        let dev: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20).unwrap());
        Store::format(std::slice::from_ref(&dev), &FormatOptions::default()).unwrap();
        let options = MountOptions { background: false, cache_size: 4 << 20, ..MountOptions::default() };
        let v = Volume::open_devices(vec![dev], &options).unwrap();
        let (fs, inner) = (v.as_user(Cred::root()), &v.0.persist);
        fs.write("/file", b"x").unwrap();
        fs.mkdir("/one", 0o755).unwrap();
        for n in 0..30_000 {
            fs.link("/file", format!("/one/name-{n}").as_str()).unwrap();
            // Tests beside this one may be pinned, and keep for a while what was let go.
            let makes_room = |_| {
                std::thread::sleep(Duration::from_millis(u64::from(memory::is_tight(inner))));
                background::tick(inner, false).is_ok() && !memory::is_tight(inner)
            };
            if n % 100 == 99 && !(0..2000).any(makes_room) {
                panic!(
                    "{n} names: {} bytes are there, {} may be",
                    memory::meta_bytes(inner),
                    inner.budget.meta_limit
                );
            }
        }
    }

    /// The store held the whole inode of every file that a fold had made, and its block in the
    /// cache beside it: three kilobytes for an empty file.
    #[test]
    fn a_file_without_content_takes_next_to_nothing_in_the_store_once_it_is_folded() {
        const FILES: usize = 2000;
        let dev: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20).unwrap());
        Store::format(std::slice::from_ref(&dev), &FormatOptions::default()).unwrap();
        let options = MountOptions { background: false, ..MountOptions::default() };
        let v = Volume::open_devices(vec![dev], &options).unwrap();
        let (fs, inner) = (v.as_user(Cred::root()), &v.0.persist);
        v.checkpoint().unwrap();
        let before = inner.store.memory();
        for n in 0..FILES {
            fs.create(format!("/{n}").as_str()).unwrap();
        }
        v.checkpoint().unwrap();
        let each = inner.store.memory().saturating_sub(before) / FILES;
        assert!(each < 128, "{each} bytes");
        // What was let go is read again.
        fs.write("/7", b"content").unwrap();
        fs.set_times("/8", None, Some(crate::SetTime::At(5)), true).unwrap();
        v.checkpoint().unwrap();
        assert_eq!(fs.read("/7").unwrap(), b"content");
        for n in 0..FILES {
            fs.unlink(format!("/{n}").as_str()).unwrap();
        }
        // The first checkpoint may find some that others still look at.
        for _ in 0..3 {
            reaper::reap(inner, true).unwrap();
            v.checkpoint().unwrap();
        }
        let each = inner.store.memory().saturating_sub(before) / FILES;
        assert!(each < 128, "{each} bytes are left");
    }
}
