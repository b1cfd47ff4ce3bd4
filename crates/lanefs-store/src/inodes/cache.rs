//! The inodes the store holds in memory, each under its own lock.
//!
//! 1. There is at most one [`CachedInode`] per inode number in the cache, and whoever changes an
//!    inode does so under the lock of the one that is in the cache (`gone` means that one is not
//!    any more: look again).
//! 2. An inode leaves the cache only when nothing in it is unwritten ([`InodeCache::forget`]) or
//!    when it is dead.
//! 3. Locks of several inodes are taken in the order of their numbers; a thread inside a reader
//!    section of the RPS takes none.
//! 4. `fresh` and `died` are the difference between the data blocks that memory refers to and those
//!    the tree refers to: a block is in `fresh` from when the inode gets it until a checkpoint
//!    captures it; `died` holds blocks of the tree that memory has given up. A block that dies
//!    while fresh is in neither.
//! 5. Who has changed the inode table asks whether the inode is in memory, and tells a load under
//!    way that it must begin again. Where the shard has no inode and no load ([`Population`]) it
//!    takes no lock: a load is counted before it reads the table, and the table was changed before
//!    the count is read, with a full fence on both sides. So either the load is counted by then, or
//!    it reads what was changed. A fold of files that nobody has opened asks twice a file.
//! 6. What a call gives up keeps its live mark until a checkpoint captures the inode (or somebody
//!    needs the marks to be exact): `dead` has it meanwhile. So calls that free blocks of one
//!    segment, of different files, share nothing; and the segment would not become free earlier,
//!    because only checkpoints release segments.

use crate::error::Result;
use crate::inodes::block_set::BlockSet;
use crate::log::segment::SegmentTable;
use crate::log::space::FreedLater;
use crate::tree::directory::StateLock;
use crate::tree::inode_state::InodeState;
use lanefs_format::{BlockAddr, Ino};
use lanefs_sync::CachePadded;
use lanefs_sync::ablation::{Switch, Technique};
use lanefs_sync::hash::WordMap;
use lanefs_sync::lock::{Condvar, Mutex, MutexGuard};
use lanefs_sync::random::spread;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicUsize, fence};

/// The way that a part of an inode has gone: whether it still has to go into a batch.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Logged {
    /// The log or the durable tree has it.
    #[default]
    Yes,
    /// A checkpoint has captured it, but its slot is not durable yet.
    Sealed,
    /// Only memory has it.
    No,
}

impl Logged {
    pub fn seal(&mut self) {
        if *self == Logged::No {
            *self = Logged::Sealed;
        }
    }
    pub fn checkpoint_done(&mut self) {
        if *self == Logged::Sealed {
            *self = Logged::Yes;
        }
    }
}

/// The state of a cached inode, under its lock. See the module's head.
pub(crate) struct InodeEntry {
    pub state: InodeState,
    /// The inode table has it. Otherwise its NEW is not folded yet, and updates wait here for it.
    pub folded: bool,
    /// Not in the map any more.
    pub gone: bool,
    pub fresh: BlockSet,
    pub died: Vec<BlockAddr>,
    /// Given up, and still marked live (6).
    dead: Vec<BlockAddr>,
    pub xattrs: Logged,
    pub tail: Logged,
    /// On a dirty list.
    pub listed: bool,
    next_ticket: u64,
    writing: Vec<u64>,
    committing: Vec<u64>,
    /// Bytes of the map's tree as they are counted in `Shard::weight`.
    counted_weight: usize,
    /// Preallocated pages without a block for which space is charged.
    charged: u64,
    /// Blocks that are charged for nodes of the map which have none yet.
    pub map_charged: u64,
    /// Dirty nodes of the map as [`Space`](crate::log::space::Space) counts them.
    pub nodes_counted: u64,
    /// Blocks that are charged because it lies in a pack, or was never written, and may not fit
    /// into a pack (any more): until it is written.
    pub own_charged: u64,
    /// Blocks that were cut off it and do not count as free yet.
    pub freed_later: FreedLater,
}

impl InodeEntry {
    pub fn new(state: InodeState, folded: bool) -> InodeEntry {
        InodeEntry {
            charged: state.unwritten_on_disk(),
            state,
            folded,
            gone: false,
            fresh: BlockSet::default(),
            died: Vec::new(),
            dead: Vec::new(),
            xattrs: Logged::Yes,
            tail: Logged::Yes,
            listed: false,
            next_ticket: 0,
            writing: Vec::new(),
            committing: Vec::new(),
            counted_weight: 0,
            map_charged: 0,
            nodes_counted: 0,
            own_charged: 0,
            freed_later: FreedLater::default(),
        }
    }

    /// Adds a data block to this inode, and marks it live.
    pub fn add_block(&mut self, segments: &SegmentTable, addr: BlockAddr) {
        debug_assert!(!self.gone, "block {addr} goes to an inode that nobody finds");
        debug_assert!(!addr.is_none(), "a hole is no block");
        segments.set_live(addr);
        self.fresh.insert(addr);
    }

    /// Takes a data block from this inode, which does not refer to it any more. Its live mark goes
    /// later (6).
    pub fn drop_block(&mut self, segments: &SegmentTable, addr: BlockAddr) {
        debug_assert!(!self.gone, "block {addr} is taken from an inode that nobody finds");
        debug_assert!(self.dead.len() < DEAD_MAX, "{} blocks wait for their marks to go", self.dead.len());
        if !self.fresh.remove(addr) {
            self.died.push(addr);
        }
        self.dead.push(addr);
        if self.dead.len() >= DEAD_MAX {
            self.clear_live_marks(segments);
        }
    }

    /// Does as [`InodeEntry::drop_block`], for those who read the marks next.
    pub fn drop_block_now(&mut self, segments: &SegmentTable, addr: BlockAddr) {
        self.drop_block(segments, addr);
        self.clear_live_marks(segments);
    }

    /// Returns the pages that came to be preallocated and without a block since the last call, less
    /// those that ceased to be.
    pub fn unwritten_change(&mut self) -> i64 {
        let now = self.state.unwritten();
        now.wrapping_sub(std::mem::replace(&mut self.charged, now)) as i64
    }

    /// Returns how many blocks have to be charged, now that it got a tail: it may need a block of
    /// its own, of `copies` copies, and lies in a pack, or was never written and has been promised
    /// a part of a block in a volume with packs. What the tail was promised pays for it.
    pub fn charge_own(&mut self, copies: u64, packs: bool) -> u64 {
        let has_part = self.state.is_packed() || packs && self.state.block().is_none();
        if !has_part || self.own_charged > 0 {
            return 0;
        }
        debug_assert!(self.state.tail().is_some() && self.state.is_dirty(), "who pays for it?");
        self.own_charged = copies;
        copies
    }

    /// Takes the live marks of what was given up.
    pub fn clear_live_marks(&mut self, segments: &SegmentTable) {
        self.dead.drain(..).for_each(|a| {
            segments.clear_live(a);
        });
    }

    /// Returns whether there is nothing that a crash or forgetting would lose.
    pub fn is_clean(&self) -> bool {
        self.folded
            && !self.state.is_dirty()
            && !self.state.has_delta()
            && self.fresh.is_empty()
            && self.died.is_empty()
            && self.dead.is_empty()
            && self.xattrs == Logged::Yes
            && self.tail == Logged::Yes
            && self.writing.is_empty()
            && self.committing.is_empty()
            && self.freed_later.is_empty()
    }

    /// Checks, in debug builds, that tickets are in order, and that a file has no more blocks that
    /// the tree lacks than it has pages (of a directory's the fold may have given some up).
    pub fn check_invariants(&self) {
        debug_assert!(self.writing.is_sorted() && self.committing.is_sorted(), "tickets out of order");
        debug_assert!(self.dead.len() < DEAD_MAX, "{} blocks wait for their marks to go", self.dead.len());
        debug_assert_eq!(self.charged, self.state.unwritten(), "unwritten pages that are not charged");
        let last = self.writing.last().max(self.committing.last());
        debug_assert!(last.is_none_or(|&t| t < self.next_ticket), "a ticket that was not given");
        let (fresh, pages) = (self.fresh.len() as u64, self.state.mapped_pages());
        debug_assert!(self.state.is_dir() || fresh <= pages, "{fresh} fresh blocks of {pages} pages");
    }

    /// Begins a submission that changes this inode. Returns a ticket, which orders it among the
    /// inode's submissions.
    pub fn begin(&mut self, durable: bool) -> u64 {
        let t = self.next_ticket;
        self.next_ticket += 1;
        debug_assert!(!self.gone, "a submission to an inode that nobody finds");
        debug_assert!(self.writing.last().max(self.committing.last()).is_none_or(|&last| last < t));
        self.writing.push(t);
        if durable {
            self.committing.push(t);
        }
        t
    }
}

/// An inode in memory.
pub(crate) struct CachedInode {
    pub ino: Ino,
    entry: Mutex<InodeEntry>,
    done: Condvar,
}

impl CachedInode {
    /// Locks its state.
    pub fn lock(&self) -> MutexGuard<'_, InodeEntry> {
        self.entry.lock()
    }

    /// Notes that the data of submission `ticket` was answered (or failed, which is sticky).
    pub fn written(&self, ticket: u64) {
        let begun = |i: &InodeEntry| i.writing.contains(&ticket);
        debug_assert!(begun(&self.entry.lock()), "submission {ticket} was answered before, or never began");
        self.entry.lock().writing.retain(|&t| t != ticket);
        self.done.notify_all();
    }

    /// Notes that submission `ticket` is durable, or failed.
    pub fn committed(&self, ticket: u64) {
        debug_assert!(ticket < self.entry.lock().next_ticket, "submission {ticket} never began");
        self.entry.lock().committing.retain(|&t| t != ticket);
        self.done.notify_all();
    }

    /// Waits until the data of all submissions before `ticket` was answered: its batch may refer to
    /// it.
    pub fn wait_written(&self, ticket: u64) {
        let mut i = self.entry.lock();
        debug_assert!(ticket < i.next_ticket, "submission {ticket} never began");
        while i.writing.iter().any(|&t| t < ticket) {
            self.done.wait(&mut i);
        }
    }

    /// Waits until the durable submissions before `ticket` are: its batch builds on theirs.
    pub fn wait_committed(&self, ticket: u64) {
        let mut i = self.entry.lock();
        debug_assert!(ticket < i.next_ticket, "submission {ticket} never began");
        while i.committing.iter().any(|&t| t < ticket) {
            self.done.wait(&mut i);
        }
    }

    /// Returns whether a submission waits for an earlier one. It looks again, and goes on waiting.
    #[cfg(test)]
    pub fn is_waited_for(&self) -> bool {
        self.done.notify_all() > 0
    }
}

impl StateLock for CachedInode {
    fn with<T>(&self, f: impl FnOnce(&mut InodeState) -> T) -> T {
        f(&mut self.lock().state)
    }
}

/// So many that what a fold looks up rarely shares a shard with what calls look up.
const SHARDS: usize = 256;
const _: () = assert!(SHARDS.is_power_of_two(), "a shard is some bits of a number");
/// So many blocks of one inode wait for their marks to be taken, at most.
const DEAD_MAX: usize = 1024;
/// Bytes that a cached inode takes on average: itself, its place in the map, and a short tail or a
/// few mapped pages.
const INODE_BYTES: usize = size_of::<CachedInode>() + 256;

/// Marks an inode as gone if it is clean and only the map has it. Under the shard's lock.
fn try_evict(c: &Arc<CachedInode>) -> bool {
    // One count, the map's: anybody else who holds it is about to use it.
    Arc::strong_count(c) == 1
        && c.entry.try_lock().is_some_and(|mut i| {
            debug_assert!(!i.gone, "inode {} is in the map, and says that it is not", c.ino);
            i.gone = i.is_clean() && !i.listed;
            i.gone
        })
}

/// Returns whether the inode has neither pages nor a tail nor attributes beside it. Under the
/// shard's lock.
fn is_empty(c: &Arc<CachedInode>) -> bool {
    c.entry.try_lock().is_some_and(|i| i.state.tail().is_none() && i.state.mapped_pages() == 0)
}

/// Drops what is clean of a map's tree, unless somebody is at it; returns what is left, in bytes.
/// Under the shard's lock.
fn evict_clean_nodes(c: &Arc<CachedInode>) -> usize {
    let Some(mut i) = c.entry.try_lock() else { return 0 };
    if i.counted_weight > 0 {
        i.state.evict_clean();
        i.counted_weight = i.state.map_memory();
    }
    i.counted_weight
}

#[derive(Default)]
struct Shard {
    inodes: WordMap<Arc<CachedInode>>,
    /// Grows when an inode is taken out, or is written without being here: a load that began before
    /// must begin again.
    removals: u64,
    dirty: Vec<Arc<CachedInode>>,
    /// Bytes of the trees of large maps. What is small is in `INODE_BYTES`.
    weight: usize,
    /// Loads that have not ended (5).
    loading: usize,
}

/// What a shard holds, for those who ask without its lock. Apart from the lock, which every look-up
/// takes; written under it, when inodes come and go and when loads begin and end.
#[derive(Default)]
struct Population {
    /// [`Shard::bytes`]. Relaxed: a figure, which hands over nothing.
    bytes: AtomicUsize,
    /// Inodes and loads (5). Relaxed beside the fences of who loads and who asks.
    count: AtomicUsize,
}

/// The map of all inodes.
pub(crate) struct InodeCache {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    populations: Box<[CachePadded<Population>]>,
    /// Inodes on the dirty lists, by steps of [`STEP`] a shard. Written under the shard's lock when
    /// its list grows by a step, and zeroed by who takes the lists. Relaxed: for a look that need
    /// not be exact.
    listed: CachePadded<AtomicUsize>,
    /// Files that folds made since the last checkpoint. Written by checkpoints alone, and apart
    /// from the shards: those that lie beside one of these are left in peace.
    made: CachePadded<Mutex<Vec<Ino>>>,
    one_group: Switch,
}

/// So many inodes of a shard are listed before the common count moves.
const STEP: usize = 8;

impl InodeCache {
    pub fn new() -> InodeCache {
        InodeCache {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            populations: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            listed: CachePadded::default(),
            made: CachePadded::default(),
            one_group: Switch::of(Technique::CellGroups),
        }
    }

    fn number(&self, ino: Ino) -> usize {
        if self.one_group.off() {
            return 0;
        }
        // The upper bits of a product depend on all: the first numbers of all chunks are in use,
        // and must not lie in the same shards.
        (spread(ino.0) >> 32) as usize % SHARDS
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[self.number(ino)]
    }

    /// Notes what the shard of `ino` holds now, under its lock.
    fn note(&self, ino: Ino, s: &Shard) {
        self.populations[self.number(ino)].note(s);
    }

    /// Returns whether the shard of `ino` has no inode, and whatever is being loaded there will see
    /// what the caller wrote before (5).
    fn is_nobody_there(&self, ino: Ino) -> bool {
        fence(SeqCst);
        // Relaxed: ordered by the fence, and by the one of `begin_load`.
        self.populations[self.number(ino)].count.load(Relaxed) == 0
    }

    /// Returns the inode; if it is not in memory, counts a load that the caller begins, and returns
    /// the shard's count of removals.
    fn begin_load(&self, ino: Ino) -> std::result::Result<Arc<CachedInode>, u64> {
        let mut s = self.shard(ino).lock();
        if let Some(c) = s.inodes.get(&ino.0) {
            return Ok(c.clone());
        }
        s.loading += 1;
        self.note(ino, &s);
        // (5): the count is seen before the table is read.
        fence(SeqCst);
        debug_assert!(!s.inodes.contains_key(&ino.0), "inode {ino} is in the cache, and is loaded");
        Err(s.removals)
    }

    /// Ends a load that [`InodeCache::begin_load`] counted: returns the inode, which is in the
    /// cache now, `None` if there is none, and an error if it must begin again.
    fn end_load(
        &self,
        ino: Ino,
        removals: u64,
        found: Option<InodeEntry>,
    ) -> std::result::Result<Option<Arc<CachedInode>>, BeginAgain> {
        let mut s = self.shard(ino).lock();
        debug_assert!(s.removals >= removals, "removals are counted, none is forgotten");
        debug_assert!(s.loading > 0, "a load ends that was not counted");
        s.loading -= 1;
        let there = s.inodes.get(&ino.0).cloned();
        let known = s.removals == removals;
        let result = match (there, found) {
            (Some(c), Some(_)) => Ok(Some(c)),
            _ if !known => Err(BeginAgain),
            (there, None) => Ok(there),
            (None, Some(entry)) => {
                let c = Arc::new(CachedInode { ino, entry: Mutex::new(entry), done: Condvar::new() });
                s.inodes.insert(ino.0, c.clone());
                Ok(Some(c))
            }
        };
        self.note(ino, &s);
        result
    }

    /// Returns the inode `ino`; `load` reads it if it is not in memory. `None` if `load` finds no
    /// such inode.
    pub fn get_or_load(
        &self,
        ino: Ino,
        mut load: impl FnMut() -> Result<Option<InodeEntry>>,
    ) -> Result<Option<Arc<CachedInode>>> {
        loop {
            let removals = match self.begin_load(ino) {
                Ok(c) => return Ok(Some(c)),
                Err(removals) => removals,
            };
            // A load that unwinds stays counted: those who ask take the lock from then on.
            let loaded = load();
            if let Ok(Some(e)) = &loaded {
                debug_assert_eq!(e.state.ino(), ino, "another inode was read");
                debug_assert!(!e.gone && !e.listed && e.next_ticket == 0, "inode {ino} was in use");
            }
            let (found, failed) = match loaded {
                Ok(found) => (found, None),
                Err(e) => (None, Some(e)),
            };
            let ended = self.end_load(ino, removals, found);
            if let Some(e) = failed {
                return Err(e);
            }
            if let Ok(inode) = ended {
                return Ok(inode);
            }
        }
    }

    /// Puts an inode on the dirty list, once; under the inode's lock.
    pub fn list_dirty(&self, inode: &Arc<CachedInode>, inner: &mut InodeEntry) {
        if !inner.listed {
            inner.listed = true;
            let mut s = self.shard(inode.ino).lock();
            // (1): else its change would be in an inode that nobody finds.
            debug_assert!(
                inner.gone || s.inodes.get(&inode.ino.0).is_some_and(|c| Arc::ptr_eq(c, inode)),
                "inode {} is not the one in the cache",
                inode.ino
            );
            s.dirty.push(inode.clone());
            if s.dirty.len().is_multiple_of(STEP) {
                // Relaxed, here and below: for a look that need not be exact.
                self.listed.fetch_add(STEP, Relaxed);
            }
        }
    }

    /// Puts inodes on the dirty lists whose turn is over, whatever became of them.
    pub fn list_again(&self, inodes: &[Arc<CachedInode>]) {
        for c in inodes {
            let mut i = c.lock();
            i.listed = false;
            if !i.gone {
                self.list_dirty(c, &mut i);
            }
        }
    }

    /// Takes all dirty lists. Whoever takes an inode from here clears `listed`.
    pub fn take_dirty(&self) -> Vec<Arc<CachedInode>> {
        let mut all = Vec::new();
        self.listed.store(0, Relaxed);
        for s in &self.shards {
            all.append(&mut s.lock().dirty);
        }
        all
    }

    /// Returns the inodes on the dirty lists, in order; they stay there.
    pub fn dirty_inos(&self) -> BTreeSet<Ino> {
        let of = |s: &CachePadded<Mutex<Shard>>| s.lock().dirty.iter().map(|c| c.ino).collect::<Vec<_>>();
        self.shards.iter().flat_map(of).collect()
    }

    /// Makes the live marks exact: see the head of this file, 6. Who gives up a block lists its
    /// inode before it lets go of it.
    pub fn clear_live_marks(&self, segments: &SegmentTable) {
        for s in &self.shards {
            let listed = s.lock().dirty.clone();
            listed.iter().for_each(|c| c.lock().clear_live_marks(segments));
        }
    }

    /// Returns a number that the inodes on the dirty lists do not exceed: by one load, where
    /// [`InodeCache::dirty`] locks every shard.
    pub fn dirty_at_most(&self) -> usize {
        self.listed.load(Relaxed) + SHARDS * (STEP - 1)
    }

    /// Returns how many inodes are on the dirty lists.
    pub fn dirty(&self) -> usize {
        self.shards.iter().map(|s| s.lock().dirty.len()).sum()
    }

    /// Returns the memory of all inodes, in bytes, about.
    pub fn memory(&self) -> usize {
        self.populations.iter().map(|p| p.bytes.load(Relaxed)).sum()
    }

    /// Returns the memory of those on the dirty lists, about.
    pub fn dirty_memory(&self) -> usize {
        let of = |s: &CachePadded<Mutex<Shard>>| {
            let s = s.lock();
            // After a shrinking the large maps are mostly those that have to be written.
            s.dirty.len() * INODE_BYTES + if s.dirty.is_empty() { 0 } else { s.weight }
        };
        self.shards.iter().map(of).sum()
    }

    /// Counts anew what the inode's map takes; writes nothing shared while it is small or about as
    /// it was.
    pub fn update_weight(&self, ino: Ino, inner: &mut InodeEntry) {
        let now = inner.state.map_memory();
        if now.abs_diff(inner.counted_weight) > INODE_BYTES && !inner.gone {
            let mut s = self.shard(ino).lock();
            debug_assert!(s.inodes.contains_key(&ino.0), "inode {ino} is weighed, and is not there");
            s.weight = (s.weight + now).saturating_sub(inner.counted_weight);
            inner.counted_weight = now;
            self.note(ino, &s);
        }
    }

    /// Drops inodes that are clean and in nobody's hands, where there are more than `keep` bytes of
    /// them.
    pub fn shrink(&self, keep: usize) {
        for (s, population) in self.shards.iter().zip(&self.populations) {
            if population.bytes.load(Relaxed) <= keep / SHARDS {
                continue;
            }
            let mut s = s.lock();
            let before = s.inodes.len();
            let mut weight = 0;
            s.inodes.retain(|_, c| {
                let gone = try_evict(c);
                if !gone {
                    weight += evict_clean_nodes(c);
                }
                !gone
            });
            s.weight = weight;
            s.removals += u64::from(s.inodes.len() != before);
            population.note(&s);
            s.check_invariants();
        }
    }

    /// Returns the inode if it is in memory.
    pub fn cached(&self, ino: Ino) -> Option<Arc<CachedInode>> {
        self.shard(ino).lock().inodes.get(&ino.0).cloned()
    }

    /// Returns whether the inode is in memory.
    pub fn has(&self, ino: Ino) -> bool {
        !self.is_nobody_there(ino) && self.shard(ino).lock().inodes.contains_key(&ino.0)
    }

    /// Returns the inode if it is in memory, which a checkpoint has written without it. If not, who
    /// looks for it in the table meanwhile looks again.
    pub fn note_written(&self, ino: Ino) -> Option<Arc<CachedInode>> {
        if self.is_nobody_there(ino) {
            return None;
        }
        let mut s = self.shard(ino).lock();
        let there = s.inodes.get(&ino.0).cloned();
        s.removals += u64::from(there.is_none());
        there
    }

    /// Notes that a fold makes this file.
    pub fn note_made(&self, ino: Ino) {
        self.made.lock().push(ino);
    }

    /// Drops the inodes of files that a fold made and that have no content: nobody asked for them,
    /// they are on the medium now, and their inode is read again when they are written to. At the
    /// end of a checkpoint.
    pub fn evict_made(&self) {
        let made = std::mem::take(&mut *self.made.lock());
        for ino in made {
            let mut s = self.shard(ino).lock();
            if s.inodes.get(&ino.0).is_some_and(|c| is_empty(c) && try_evict(c)) {
                s.take(ino);
                self.note(ino, &s);
            }
        }
    }

    /// Drops `ino` if it is clean and nobody else holds it.
    pub fn forget(&self, ino: Ino) {
        let mut s = self.shard(ino).lock();
        if s.inodes.get(&ino.0).is_some_and(try_evict) {
            s.take(ino);
            self.note(ino, &s);
        }
    }

    /// Takes a dead inode out of the map; the caller has set `gone` under its lock.
    pub fn remove(&self, ino: Ino) {
        let mut s = self.shard(ino).lock();
        debug_assert!(
            s.inodes.get(&ino.0).is_none_or(|c| c.entry.try_lock().is_none_or(|i| i.gone)),
            "inode {ino} leaves the map before those who hold it can see that it is gone"
        );
        s.take(ino);
        self.note(ino, &s);
    }
}

/// A load began before something was written or taken out.
struct BeginAgain;

impl Population {
    /// Notes what the shard holds now, under its lock.
    fn note(&self, s: &Shard) {
        debug_assert!(s.loading < usize::MAX / 2, "more loads end than begin");
        // Relaxed: see the fields.
        self.bytes.store(s.bytes(), Relaxed);
        self.count.store(s.inodes.len() + s.loading, Relaxed);
    }
}

impl Shard {
    /// Checks, in debug builds, that every inode lies where its number leads to, and that trees are
    /// counted only where there are inodes.
    fn check_invariants(&self) {
        debug_assert!(self.inodes.iter().all(|(ino, inode)| inode.ino.0 == *ino));
        debug_assert!(self.weight == 0 || !self.inodes.is_empty());
    }

    /// Returns what its inodes take, about.
    fn bytes(&self) -> usize {
        self.inodes.len() * INODE_BYTES + self.weight
    }

    fn take(&mut self, ino: Ino) {
        if let Some(c) = self.inodes.remove(&ino.0) {
            self.removals += 1;
            // Whoever removes a dead inode holds its lock; what it takes is then counted
            // until the next shrinking.
            self.weight -= c.entry.try_lock().map_or(0, |i| i.counted_weight).min(self.weight);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanefs_format::Attrs;

    fn inner(ino: u64) -> InodeEntry {
        let attrs = Attrs { mode: libc::S_IFREG | 0o644, generation: 1, ..Attrs::default() };
        InodeEntry::new(InodeState::new(Ino(ino), attrs, Ino(1)), true)
    }

    #[test]
    fn one_cell_per_inode_and_none_forgotten_while_dirty() {
        let inodes = InodeCache::new();
        let a = inodes.get_or_load(Ino(20), || Ok(Some(inner(20)))).unwrap().unwrap();
        let b = inodes.get_or_load(Ino(20), || panic!("loaded twice")).unwrap().unwrap();
        assert!(Arc::ptr_eq(&a, &b));
        drop(b);
        inodes.list_dirty(&a, &mut a.lock());
        inodes.list_dirty(&a, &mut a.lock());
        assert_eq!(inodes.dirty(), 1);
        drop(a);
        inodes.forget(Ino(20));
        inodes.shrink(0);
        assert_eq!(inodes.memory(), INODE_BYTES);
        inodes.get_or_load(Ino(20), || panic!("loaded twice")).unwrap().unwrap().lock().gone = true;
        inodes.remove(Ino(20));
        assert_eq!(inodes.memory(), 0);
        assert!(inodes.get_or_load(Ino(20), || Ok(None)).unwrap().is_none());
        // A clean one goes, unless somebody holds it.
        let clean = || {
            let mut i = inner(21);
            i.state.write_out(&mut crate::testing::MemLog::default()).unwrap();
            i.state.checkpoint_done();
            Ok(Some(i))
        };
        let held = inodes.get_or_load(Ino(21), clean).unwrap().unwrap();
        assert!(held.lock().is_clean());
        inodes.shrink(0);
        assert_eq!(inodes.memory(), INODE_BYTES);
        drop(held);
        inodes.shrink(0);
        assert_eq!(inodes.memory(), 0);
    }

    #[test]
    fn who_loads_what_is_written_meanwhile_loads_it_again() {
        let inodes = InodeCache::new();
        let mut loads = 0;
        let got = inodes.get_or_load(Ino(20), || {
            loads += 1;
            if loads == 1 {
                assert!(inodes.note_written(Ino(20)).is_none(), "nobody has it yet");
                return Ok(None);
            }
            Ok(Some(inner(20)))
        });
        assert!(got.unwrap().is_some() && loads == 2 && inodes.has(Ino(20)));
        assert!(inodes.note_written(Ino(20)).is_some());
        // A load that fails is none that has to be told.
        assert!(inodes.get_or_load(Ino(21), || Err(crate::error::StoreError::Closed)).is_err());
        assert!(!inodes.has(Ino(21)) && inodes.is_nobody_there(Ino(21)));
        // Neither is one of what is not there, nor what left the cache.
        assert!(inodes.get_or_load(Ino(21), || Ok(None)).unwrap().is_none());
        assert!(inodes.is_nobody_there(Ino(21)) && !inodes.is_nobody_there(Ino(20)));
        inodes.cached(Ino(20)).unwrap().lock().gone = true;
        inodes.remove(Ino(20));
        assert!(inodes.is_nobody_there(Ino(20)));
    }

    /// Of a load beside a write of the table one sees the other (5).
    #[test]
    fn a_load_beside_a_write_finds_what_was_written_or_is_told() {
        let inodes = InodeCache::new();
        let start = std::sync::Barrier::new(2);
        let table = AtomicUsize::new(0);
        for round in 1..=20_000 {
            let (seen, told) = std::thread::scope(|s| {
                let reader = s.spawn(|| {
                    start.wait();
                    let mut seen = 0;
                    let got = inodes.get_or_load(Ino(20), || {
                        seen = table.load(Relaxed);
                        Ok(Some(inner(20)))
                    });
                    assert!(got.unwrap().is_some());
                    seen
                });
                start.wait();
                table.store(round, Relaxed);
                let told = inodes.note_written(Ino(20)).is_some();
                (reader.join().unwrap(), told)
            });
            assert!(seen == round || told, "round {round}: what was written is not seen");
            inodes.cached(Ino(20)).unwrap().lock().gone = true;
            inodes.remove(Ino(20));
        }
    }

    #[test]
    fn later_submissions_wait_for_earlier_ones() {
        let inodes = InodeCache::new();
        let c = inodes.get_or_load(Ino(20), || Ok(Some(inner(20)))).unwrap().unwrap();
        let (a, b) = {
            let mut i = c.lock();
            (i.begin(true), i.begin(true))
        };
        c.wait_written(a);
        std::thread::scope(|s| {
            let t = s.spawn(|| {
                c.wait_written(b);
                c.wait_committed(b);
                c.lock().committing.clone()
            });
            c.written(a);
            c.committed(a);
            assert_eq!(t.join().unwrap(), [b]);
        });
    }
}
