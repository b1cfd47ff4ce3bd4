//! The journal: the lanes with their logs, the epochs they belong to, and what of them is sealed,
//! committed and folded. (The operations append to it, `persist::commit` empties it.)

use super::backlog::Backlog;
use super::budget::LanePromise;
use crate::memfs::Inode;
use crate::memfs::inode::{DATASYNC, DIRTY, FUTURE, QUEUED, UNSYNCED, XATTR_DIRTY};
use crate::memfs::stamps::Noted;
use crate::oplog::LaneLog;
use crate::oplog::inode_numbers::Numbers;
use crate::oplog::slots::OpenSlots;
use crate::{MountOptions, Order};
use crossbeam_utils::CachePadded;
use lanefs_store::VolumeInfo;
use lanefs_sync::ablation::{Switch, Technique};
use lanefs_sync::epoch::Epochs;
use lanefs_sync::hash::WordSet;
use lanefs_sync::lane_ids::LaneIds;
use lanefs_sync::lanes::Lanes;
use lanefs_sync::lock::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

/// The marks of an inode that a writeback takes off, or that stand for one that is not durable.
const WRITEBACK: u32 = DIRTY | DATASYNC | XATTR_DIRTY | UNSYNCED;

/// The lane's part that others may read: counters on lines of their own.
pub(crate) struct LaneShared {
    pub slots: OpenSlots,
    /// Inodes made less inodes dropped by this lane's threads. Relaxed: a statistic.
    pub inodes: AtomicI64,
    /// Bytes of names brought into memory by this lane's threads. Only grows. Relaxed: a statistic.
    pub names: AtomicI64,
    /// Bytes of names that left memory with their removal by this lane's threads. Only grows: the
    /// reclaimer counts what left otherwise. Relaxed: a statistic.
    pub names_removed: AtomicI64,
    /// A new chunk of the lane's log was begun: time to look how much memory there is. Written by
    /// the lane's threads. Relaxed: a hint.
    pub look: AtomicBool,
    /// The space that names of new groups take from. Written by the lane's threads.
    pub promise: LanePromise,
}

impl LaneShared {
    /// Makes the part of a lane in which nothing happened.
    fn new() -> LaneShared {
        LaneShared {
            slots: OpenSlots::new(),
            inodes: AtomicI64::new(0),
            names: AtomicI64::new(0),
            names_removed: AtomicI64::new(0),
            look: AtomicBool::new(false),
            promise: LanePromise::default(),
        }
    }
}

/// What is logged and not sealed.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct OpenLog {
    /// Bytes of groups.
    pub bytes: usize,
    /// Bytes, about, of those that the lanes have voided, or are about to.
    pub void: usize,
}

/// The lanes and their epochs.
pub(crate) struct Journal {
    pub lanes: Lanes<LaneLog, LaneShared>,
    one_list: Switch,
    pub epochs: Epochs,
    pub numbers: Numbers,
    /// Everything up to this epoch is in the folded directories. Written by checkpoints only, with
    /// Release: who reads it with Acquire, to take names out of memory, finds the folded buckets in
    /// the store.
    folded: CachePadded<AtomicU64>,
    /// Everything up to this epoch that was logged is durable. Written by commits only, under
    /// `backlog`. SeqCst on both sides: who takes from it that an epoch needs no more care has seen
    /// all that was done before that epoch was published, and compares it with `Inode::epoch` and
    /// `Inode::rights_epoch`, which are raised in the same order.
    committed: CachePadded<AtomicU64>,
    /// One seal at a time; what is on its way to the log, and what is committed and waits for the
    /// fold.
    pub backlog: CachePadded<Mutex<Backlog>>,
    /// Operations were made in lanes below this one only. Written under `backlog`, once for each
    /// lane; read by every operation. Release in `take_into_use`, Acquire in `lanes_in_use`.
    in_use: CachePadded<AtomicUsize>,
    /// Wakes those who wait for an epoch. Beside `backlog`.
    pub published: CachePadded<Condvar>,
}

impl Journal {
    /// Makes the journal of a volume that was opened just now. Where names become durable in the
    /// order of the calls, epochs count what is pending.
    pub fn new(ids: Arc<LaneIds>, info: &VolumeInfo, options: &MountOptions) -> Journal {
        let next = info.last_epoch + 1;
        let ordered = options.order == Order::Ordered;
        let log = || LaneLog::new(info.last_ts, options.end_together);
        let journal = Journal {
            lanes: Lanes::with_shared(ids, |_| (log(), LaneShared::new())),
            one_list: Switch::of(Technique::LaneLogs),
            epochs: if ordered { Epochs::with_pending(next) } else { Epochs::new(next) },
            numbers: Numbers::new(info.next_chunk),
            folded: CachePadded::new(AtomicU64::new(info.last_epoch)),
            committed: CachePadded::new(AtomicU64::new(info.last_epoch)),
            backlog: Default::default(),
            // Where all log to one list that is lane 0.
            in_use: CachePadded::new(AtomicUsize::new(1)),
            published: Default::default(),
        };
        journal.check_invariants();
        journal
    }

    /// Checks that of each epoch the steps came in order: it ends, it is committed, it is folded.
    /// Each word only grows, so what is read first is at most what is read later.
    pub fn check_invariants(&self) {
        if cfg!(debug_assertions) {
            let (folded, committed) = (self.folded(), self.committed());
            let (running, in_use) = (self.epochs.current(), self.lanes_in_use());
            debug_assert!(folded <= committed, "epoch {folded} was folded, {committed} is committed");
            debug_assert!(committed < running, "epoch {committed} is committed, {running} is running");
            debug_assert!((1..=self.lanes.len()).contains(&in_use), "{in_use} lanes are in use");
        }
    }

    /// Returns the epoch up to which everything has been folded.
    #[inline]
    pub fn folded(&self) -> u64 {
        self.folded.load(Ordering::Acquire)
    }

    /// Returns the epoch up to which every group is durable.
    #[inline]
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::SeqCst)
    }

    /// Notes that an epoch and all before it are durable. The caller holds `backlog`.
    pub fn set_committed(&self, epoch: u64) {
        debug_assert!(self.backlog.is_locked(), "epochs are published under the backlog's lock");
        let before = self.committed.fetch_max(epoch, Ordering::SeqCst);
        debug_assert!(before < epoch, "epoch {epoch} is published behind {before}");
        self.check_invariants();
    }

    /// Notes that a checkpoint has folded everything up to this epoch.
    pub fn set_folded(&self, epoch: u64) {
        let before = self.folded.fetch_max(epoch, Ordering::Release);
        debug_assert!(before <= epoch, "a checkpoint folded {epoch}, an earlier one {before}");
        self.check_invariants();
    }

    /// Returns the lane whose log the calling thread's operations go to: its own.
    #[inline]
    pub fn log_lane(&self) -> usize {
        if self.one_list.off() { 0 } else { self.lanes.mine() }
    }

    /// Returns the lane below which lanes may hold groups (`persist::commit`, 6).
    #[inline]
    pub fn lanes_in_use(&self) -> usize {
        // Acquire: pairs with the Release in `take_into_use`. Who sees the lane in use because
        // another thread brought a higher one is behind that thread's hold of the backlog, too.
        self.in_use.load(Ordering::Acquire)
    }

    /// Takes a lane into use, before the first operation in it. The caller holds no lane.
    #[cold]
    pub fn take_into_use(&self, lane: usize) {
        debug_assert!(lane < self.lanes.len(), "lane {lane} of {}", self.lanes.len());
        let _no_seal = self.backlog.lock();
        // Release: see `lanes_in_use`.
        self.in_use.fetch_max(lane + 1, Ordering::Release);
        debug_assert!(self.lanes_in_use() > lane, "a seal would miss lane {lane}");
        self.check_invariants();
    }

    /// Counts inodes made or dropped by this thread.
    #[inline]
    pub fn count_inodes(&self, by: i64) {
        debug_assert!(by == 1 || by == -1, "inodes come and go one by one");
        let c = &self.lanes.shared(self.lanes.mine()).inodes;
        // Mostly written by the lane's own thread; a shared lane needs the atomic.
        c.fetch_add(by, Ordering::Relaxed);
    }

    /// Counts bytes of names brought into memory by this thread.
    #[inline(always)]
    pub fn count_names(&self, by: i64) {
        debug_assert!(by > 0, "names that leave are counted by who takes them out");
        self.lanes.shared(self.lanes.mine()).names.fetch_add(by, Ordering::Relaxed);
    }

    /// Counts bytes of names that left memory with their removal by a thread of this lane.
    #[inline(always)]
    pub fn count_names_removed(&self, lane: usize, bytes: usize) {
        if bytes > 0 {
            self.lanes.shared(lane).names_removed.fetch_add(bytes as i64, Ordering::Relaxed);
        }
    }

    /// Returns the bytes of names that left memory with their removal so far.
    pub fn names_removed(&self) -> i64 {
        (0..self.lanes.len()).map(|l| self.lanes.shared(l).names_removed.load(Ordering::Relaxed)).sum()
    }

    /// Returns the bytes of names brought into memory so far.
    pub fn names_brought(&self) -> i64 {
        let all = (0..self.lanes.len()).map(|l| self.lanes.shared(l).names.load(Ordering::Relaxed));
        let brought = all.sum();
        debug_assert!(brought >= 0, "each lane's count only grows");
        brought
    }

    /// Returns the number of inodes in memory, about.
    pub fn inodes_in_memory(&self) -> i64 {
        (0..self.lanes.len()).map(|l| self.lanes.shared(l).inodes.load(Ordering::Relaxed)).sum()
    }

    /// Puts an inode on this lane's dirty list unless it is on some lane's.
    #[inline]
    pub fn dirty_inode(&self, inode: &Inode, flags: u32) {
        debug_assert!(flags & !WRITEBACK == 0, "{flags:#x} stand for nothing that is written back");
        let all = DIRTY | QUEUED | flags;
        if inode.flags.load(Ordering::Relaxed) & all == all {
            return;
        }
        // Marked under the lane's lock, which collect_dirty takes: who finds the mark and then
        // collects finds the entry.
        let mut log = self.lanes.lock(self.log_lane());
        if inode.set(all) & QUEUED == 0 {
            log.dirty.push(inode.ino);
        }
    }

    /// Stores that an inode changed at `now`, with the mtime if its content did, and marks it with
    /// `flags` and as dirty: in the lane's slot, or in the inode where the lane is the inode's
    /// home.
    pub fn changed(&self, inode: &Inode, content: bool, now: i64, flags: u32) {
        debug_assert!(!content || inode.data().is_some(), "only files have content");
        debug_assert!(flags & !WRITEBACK == 0, "{flags:#x} stand for nothing that is written back");
        if !content && flags & DATASYNC != 0 {
            // fdatasync looks at the inode and at the slots of the content.
            self.dirty_inode(inode, DATASYNC);
        }
        let (lane, mtime) = (self.lanes.mine(), content.then_some(now));
        if inode.is_stamped(lane, mtime, now, flags) {
            return;
        }
        if inode.is_striped(lane, content) {
            // Under the lane's lock: see `memfs::stamps`, 3.
            let mut log = self.lanes.lock(lane);
            match inode.stamp(lane, mtime, now, flags) {
                Noted::Yes => return,
                Noted::List => return log.dirty.push(inode.ino),
                Noted::No => {}
            }
        }
        inode.set_times(None, mtime, Some(now));
        if content {
            inode.clear_if_set(FUTURE);
        }
        self.dirty_inode(inode, flags);
    }

    /// Returns every inode that some handle holds open.
    pub fn open_inodes(&self) -> WordSet {
        let mut open = WordSet::default();
        (0..self.lanes.len()).for_each(|l| self.lanes.shared(l).slots.collect(&mut open));
        open
    }

    /// Returns how many inodes are on the lanes' dirty lists.
    pub fn listed_dirty(&self) -> usize {
        (0..self.lanes.len()).map(|l| self.lanes.lock(l).dirty.len()).sum()
    }

    /// Has the lanes let go of what is committed: else those of threads that rest would keep it
    /// until the next seal.
    pub fn let_go_of_committed(&self) {
        self.check_invariants();
        let committed = self.committed();
        (0..self.lanes_in_use()).for_each(|l| self.lanes.lock(l).committed(committed));
    }

    /// Returns the bytes of groups logged and not sealed.
    pub fn open_log_bytes(&self) -> usize {
        self.open_log().bytes
    }

    /// Returns what is logged and not sealed.
    pub fn open_log(&self) -> OpenLog {
        let mut all = OpenLog::default();
        for lane in 0..self.lanes_in_use() {
            let log = self.lanes.lock(lane);
            all.bytes += log.open_bytes();
            all.void += log.void_bytes();
        }
        all
    }

    /// Returns the bytes of groups logged and not folded, which the oplog and the backlog hold in
    /// memory; those of the backlog only if nobody has its lock.
    pub fn log_bytes(&self) -> usize {
        self.open_log_bytes() + self.backlog.try_lock().map_or(0, |b| b.bytes)
    }
}
