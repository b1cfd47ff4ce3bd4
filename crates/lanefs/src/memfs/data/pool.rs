//! The volume's page frames: one stretch of address space, 4 KiB each, with a descriptor apiece.
//!
//! 1. Frames and descriptors are type-stable: they stay mapped as long as the pool lives, and the
//!    pool does not give them back to the system while a file still caches a page. So a reader may
//!    look at a frame it no longer has a right to, as long as it validates afterwards.
//! 2. A frame is *fresh* (never given out), *free* (in one lane's cache or the shared stock), *in
//!    hand* (taken by a thread, not reachable from any file) or *attached* (reachable from one slot
//!    of one file, which its descriptor names). It is attached and detached only under its page
//!    lock. One that was displaced while it is an image (`stable.rs`) is in no list, and no file's.
//! 3. A free frame is in exactly one list: only its detacher, or who had it in hand, puts it there.
//! 4. Locks here are leaves: nothing is waited for while one is held.

mod stock;
mod throttle;

use super::frame::{Desc, STABLE};
use crate::error::{Error, Result};
use lanefs_format::BLOCK_SIZE;
use lanefs_sync::lock::Mutex;
use lanefs_sync::prefetch::prefetch_at;
use lanefs_sync::{CachePadded, MAX_LANES};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize};
use stock::Stock;
use throttle::Throttle;
pub use throttle::Writeback;

/// Frames of one huge page: the unit the arena is aligned to.
const CHUNK: usize = 2 << 20;
/// The fewest frames a pool works with.
const MIN_FRAMES: usize = 16;
/// The most free frames a lane keeps for itself.
const LANE_CACHE: usize = 64;
/// Who takes or gives so many frames at once passes the lane's cache by.
const MANY: usize = 16;

/// Bytes of a frame that are asked for ahead: the processor finds out by itself where a copy goes
/// on.
const PREFETCHED: usize = 256;

const _: () = assert!(CHUNK.is_multiple_of(BLOCK_SIZE) && MIN_FRAMES > 0);

/// A frame's number in the pool.
pub(super) type FrameNo = u32;

/// Frames taken out of the pool and not attached yet, for one call.
pub(super) type Hand = SmallVec<[FrameNo; 16]>;

/// A lane's share: free frames of its own, and its shares of the counts of dirty frames and leaves.
#[derive(Default)]
pub(super) struct LaneSlot {
    free: Mutex<Vec<FrameNo>>,
    /// Written by threads of the lane, Relaxed: a share of a count that orders nothing.
    pub(super) dirty: AtomicI64,
    /// Likewise, of leaves with dirty pages.
    pub(super) leaves: AtomicI64,
    /// Likewise, of frames that are dirty without a promise.
    pub(super) lent: AtomicI64,
}

/// All page frames of a volume.
pub struct FramePool {
    map: *mut u8,
    map_len: usize,
    data: *mut u8,
    descs: *mut Desc,
    frames: usize,
    stock: CachePadded<Mutex<Stock>>,
    lanes: Box<[CachePadded<LaneSlot>]>,
    /// The clock's hand. Written by reclaimers, Relaxed: it only spreads them.
    pub(super) hand: CachePadded<AtomicUsize>,
    pub(super) throttle: CachePadded<Throttle>,
    batch: usize,
    /// The bytes of all files that wait behind gaps. Written where writes are handed over out of
    /// their order, under the list of a file; `gaps.rs` says why Relaxed does.
    behind_gaps: Arc<AtomicU64>,
}

// SAFETY: the raw pointers are to memory the pool owns; descriptors are made of atomics, frames are
// accessed only as their descriptors' page locks allow (invariants 1 and 2), and the rest is Sync
// by itself.
unsafe impl Sync for FramePool {}
// SAFETY: nothing in the pool belongs to a thread.
unsafe impl Send for FramePool {}

impl FramePool {
    /// Makes a pool of `budget` bytes of frames. Only address space is taken now; memory follows as
    /// frames are used.
    pub fn new(budget: u64) -> Result<FramePool> {
        let frames = (budget as usize / BLOCK_SIZE).clamp(MIN_FRAMES, FrameNo::MAX as usize / 2);
        let data_len = (frames * BLOCK_SIZE).next_multiple_of(CHUNK);
        let desc_len = (frames * size_of::<Desc>()).next_multiple_of(BLOCK_SIZE);
        let map_len = data_len + CHUNK + desc_len;
        debug_assert!(frames >= MIN_FRAMES && FrameNo::try_from(frames).is_ok());
        // SAFETY: a new anonymous mapping at an address of the kernel's choice disturbs nothing.
        let map = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                map_len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(|e| Error::Posix(e.raw_os_error()))?
        .cast::<u8>();
        // SAFETY: the mapping has CHUNK bytes to spare for aligning its start.
        let data = unsafe { map.add(map.align_offset(CHUNK)) };
        // SAFETY: data + data_len lies at most CHUNK behind map + data_len, so desc_len bytes are
        // left.
        let descs = unsafe { data.add(data_len) }.cast::<Desc>();
        debug_assert!(data.addr().is_multiple_of(CHUNK) && descs.is_aligned());
        debug_assert!(descs.addr() + desc_len <= map.addr() + map_len, "descriptors behind the mapping");
        // SAFETY: the range is part of the mapping made above. It is a hint: a kernel without huge
        // pages may refuse.
        let _ = unsafe { madvise(data.cast(), data_len + desc_len, Advice::LinuxHugepage) };
        Ok(FramePool {
            map,
            map_len,
            data,
            descs,
            frames,
            stock: CachePadded::new(Mutex::new(Stock::new(frames))),
            lanes: (0..MAX_LANES).map(|_| CachePadded::new(LaneSlot::default())).collect(),
            hand: CachePadded::new(AtomicUsize::new(0)),
            throttle: CachePadded::new(Throttle::new(frames)),
            // So that all lanes' caches together hold an eighth of the frames at most.
            batch: (frames / 2048).clamp(1, LANE_CACHE / 2),
            behind_gaps: Arc::default(),
        })
    }

    /// Returns the number of frames in all.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Returns the number of frames that can be had without evicting anything; those in lanes' own
    /// caches are not counted.
    pub fn free_frames(&self) -> usize {
        self.stock.lock().free()
    }

    /// Returns the number of frames that files have, and those that are in hand.
    pub fn attached_frames(&self) -> usize {
        let in_lanes: usize = self.lanes.iter().map(|l| l.free.lock().len()).sum();
        // A frame may have gone from a lane to the stock meanwhile, and be counted twice.
        self.frames.saturating_sub(self.free_frames() + in_lanes)
    }

    /// Returns the count of bytes that wait behind gaps, and how many may.
    pub(super) fn behind_gaps(&self) -> (&Arc<AtomicU64>, u64) {
        (&self.behind_gaps, (self.frames / 8 * BLOCK_SIZE) as u64)
    }

    /// Returns how many pages one call may hold in hand: a unit of a long write or read.
    pub(crate) fn unit(&self) -> usize {
        (self.frames / 16).clamp(2, 256)
    }

    pub(super) fn lane(&self, lane: usize) -> &LaneSlot {
        &self.lanes[lane % self.lanes.len()]
    }

    pub(super) fn lane_slots(&self) -> impl Iterator<Item = &LaneSlot> {
        self.lanes.iter().map(|l| &**l)
    }

    /// Returns a frame's descriptor.
    pub(super) fn desc(&self, frame: FrameNo) -> &Desc {
        debug_assert!((frame as usize) < self.frames);
        // SAFETY: every frame number comes from this pool, hence is below `frames`; descriptors
        // live as long as the pool (invariant 1), and zeroed memory is a valid descriptor: it is
        // made of atomics and a sequence word.
        unsafe { &*self.descs.add(frame as usize) }
    }

    /// Returns the number of the frame that a descriptor of this pool describes.
    pub(super) fn number(&self, desc: &Desc) -> FrameNo {
        let at = (std::ptr::from_ref(desc).addr() - self.descs.addr()) / size_of::<Desc>();
        debug_assert!(at < self.frames, "a descriptor of another pool");
        at as FrameNo
    }

    /// Returns a frame's bytes. The essay of this directory says who may touch them, and how.
    pub(super) fn bytes(&self, desc: &Desc) -> *mut u8 {
        // SAFETY: the number is below `frames`, and `frames` blocks were mapped from `data` on.
        unsafe { self.data.add(self.number(desc) as usize * BLOCK_SIZE) }
    }

    /// Has the first lines of a frame's bytes come nearer that are about to be written. Touches
    /// nothing of the descriptor.
    #[inline]
    pub(super) fn prefetch(&self, desc: &Desc, from: usize, len: usize) {
        debug_assert!(from + len <= BLOCK_SIZE, "{len} bytes from {from} on lie in a frame");
        let bytes = self.bytes(desc).wrapping_add(from);
        (0..len.min(PREFETCHED)).step_by(64).for_each(|at| prefetch_at(bytes.wrapping_add(at)));
    }

    /// Takes a frame without waiting: from the lane's own cache, the shared stock, by evicting
    /// clean pages, or from another lane's cache. `None` if all memory is dirty or in use. May be
    /// called with page locks held.
    pub(super) fn try_take(&self, lane: usize) -> Option<FrameNo> {
        if let Some(frame) = self.lane(lane).free.lock().pop() {
            debug_assert!(self.is_in_no_file(frame), "frame {frame} was free, and in use (3)");
            return Some(frame);
        }
        self.try_take_slow(lane)
    }

    /// Returns whether a frame, which the caller has in hand, is as free ones are.
    fn is_in_no_file(&self, frame: FrameNo) -> bool {
        let desc = self.desc(frame);
        desc.is_free() && desc.state() == 0
    }

    #[cold]
    fn try_take_slow(&self, lane: usize) -> Option<FrameNo> {
        if let Some(frame) = self.refill(lane) {
            return Some(frame);
        }
        self.evict(lane, self.batch);
        if let Some(frame) = self.lane(lane).free.lock().pop() {
            return Some(frame);
        }
        if let Some(frame) = self.refill(lane) {
            return Some(frame);
        }
        self.lanes.iter().find_map(|l| l.free.lock().pop())
    }

    /// Moves a batch from the shared stock to the lane's cache and takes one of it.
    fn refill(&self, lane: usize) -> Option<FrameNo> {
        let mut batch: SmallVec<[FrameNo; LANE_CACHE]> = SmallVec::new();
        self.stock.lock().take_some(self.batch, |frame| batch.push(frame));
        batch.reverse(); // the lowest is taken first
        debug_assert!(batch.len() <= self.batch);
        let frame = batch.pop()?;
        debug_assert!(self.is_in_no_file(frame), "frame {frame} was free, and in use (3)");
        self.lane(lane).free.lock().extend(batch);
        Some(frame)
    }

    /// Puts back a frame that is attached to nothing.
    pub(super) fn give(&self, lane: usize, frame: FrameNo) {
        debug_assert!(self.is_in_no_file(frame), "frame {frame} is in use (3)");
        let overflow: SmallVec<[FrameNo; LANE_CACHE]> = {
            let mut free = self.lane(lane).free.lock();
            free.push(frame);
            if free.len() <= 2 * self.batch {
                return;
            }
            let at = free.len() / 2;
            free.drain(at..).collect()
        };
        self.give_to_stock(&overflow);
    }

    fn give_to_stock(&self, frames: &[FrameNo]) {
        let mut stock = self.stock.lock();
        frames.iter().for_each(|f| stock.put(*f));
    }

    /// Takes up to `want` frames without waiting, as [`FramePool::try_take`] does, and adds them
    /// to `hand`, whose last is to be used first: many side by side.
    #[inline]
    pub(super) fn try_take_many(&self, lane: usize, want: usize, hand: &mut Hand) {
        let end = hand.len() + want;
        if want >= MANY {
            self.take_side_by_side(want, hand);
        }
        while hand.len() < end
            && let Some(frame) = self.try_take(lane)
        {
            hand.push(frame);
        }
        debug_assert!(hand.len() <= end, "more than were asked for");
    }

    /// Takes up to `want` frames out of the stock, side by side as far as they are there.
    fn take_side_by_side(&self, want: usize, hand: &mut Hand) {
        let mut taken: Hand = Hand::new();
        let mut stock = self.stock.lock();
        while want - taken.len() >= MANY
            && let Some((first, n)) = stock.take_run(want - taken.len())
        {
            debug_assert!(n > 0 && taken.len() + n <= want, "{n} frames more than {want}");
            taken.extend(first..first + n as FrameNo);
        }
        if want - taken.len() >= MANY {
            stock.take_some(want - taken.len(), |frame| taken.push(frame));
        }
        drop(stock);
        debug_assert!(taken.iter().all(|f| self.is_in_no_file(*f)), "a frame is in use (3)");
        hand.extend(taken.into_iter().rev());
    }

    /// Puts back what a call took and did not use: many into the stock, where they come to lie side
    /// by side again.
    pub(super) fn give_all(&self, lane: usize, hand: &mut Hand) {
        if hand.len() >= MANY {
            debug_assert!(hand.iter().all(|f| self.is_in_no_file(*f)), "a frame is in use (3)");
            self.give_to_stock(hand);
            hand.clear();
        }
        for frame in hand.drain(..) {
            self.give(lane, frame);
        }
    }

    /// Returns the number of frames that were ever given out.
    pub(super) fn used_frames(&self) -> usize {
        self.stock.lock().used()
    }
}

impl Drop for FramePool {
    fn drop(&mut self) {
        let used = self.stock.get_mut().used();
        debug_assert!(used <= self.frames);
        debug_assert!(
            self.dirty_frames() != 0 || self.dirty_leaves() == 0,
            "{} leaves count, and nothing is dirty",
            self.dirty_leaves()
        );
        let in_use = |desc: &Desc| !desc.is_free() || desc.state() & STABLE != 0;
        if (0..used).any(|f| in_use(self.desc(f as FrameNo))) {
            // A file still caches pages: its drop will look at descriptors (invariant 1). Or the
            // store may look at an image. Keeping the mapping is safe, unmapping it is not.
            tracing::warn!("a page pool was dropped before its files or images; its memory is kept");
            return;
        }
        // SAFETY: the mapping was made by `new` with this length, and no file refers to it any
        // more.
        if let Err(e) = unsafe { munmap(self.map.cast(), self.map_len) } {
            tracing::warn!("cannot unmap the page pool: {e}");
        }
    }
}
