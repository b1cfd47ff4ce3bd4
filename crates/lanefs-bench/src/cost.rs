//! Costs of an operation apart from time: allocations, bytes written to the device, flushes.
//!
//! Counts don't depend on how busy the machine is. Allocations are counted per thread by
//! [`CountingAllocator`], which a program has to install; device traffic by [`CountingDevice`],
//! which lies between a volume and its device.

use lanefs_store::device::{Device, ReadReq, WriteReq};
use mimalloc::MiMalloc;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

thread_local! {
    /// Allocations of this thread and their bytes. Const-initialised and without a destructor, so
    /// that the allocator may touch it at any time of a thread's life.
    static ALLOCATED: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Whether this program counts allocations. Stored by threads that allocate for the first time,
/// loaded by who asks for counts. Relaxed: it only ever goes up and guards nothing.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Bytes allocated and not freed, by threads: each adds to the shard its own number picks, so that
/// counting is no shared write. Relaxed throughout: statistics, which two threads of one shard may
/// add to at once.
static LIVE: [LiveShard; 64] =
    [const { LiveShard { pieces: AtomicI64::new(0), all: AtomicI64::new(0) } }; 64];

#[repr(align(128))]
struct LiveShard {
    pieces: AtomicI64,
    all: AtomicI64,
}

/// The most bytes of a piece: what is larger is a buffer that grows.
pub const PIECE: i64 = 1024;

/// Bytes allocated and not freed in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    /// In pieces of up to [`PIECE`] bytes.
    pub pieces: i64,
    /// In all.
    pub all: i64,
}

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Adds to the bytes that are allocated and not freed.
#[inline]
fn count_live(bytes: i64) {
    // Relaxed: any spread will do.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    SHARD.with(|s| {
        if s.get() == usize::MAX {
            s.set(NEXT.fetch_add(1, Ordering::Relaxed) as usize % LIVE.len());
        }
        let shard = &LIVE[s.get()];
        shard.all.fetch_add(bytes, Ordering::Relaxed);
        if bytes.abs() <= PIECE {
            shard.pieces.fetch_add(bytes, Ordering::Relaxed);
        }
    });
}

/// Returns the bytes allocated and not freed; `None` where nobody counts.
pub fn live() -> Option<Live> {
    let sum = |of: fn(&LiveShard) -> &AtomicI64| LIVE.iter().map(|s| of(s).load(Ordering::Relaxed)).sum();
    INSTALLED.load(Ordering::Relaxed).then(|| Live { pieces: sum(|s| &s.pieces), all: sum(|s| &s.all) })
}

/// mimalloc, which the `lanefs` command has too, counting.
pub struct CountingAllocator;

#[inline]
fn count(bytes: usize) {
    ALLOCATED.with(|c| {
        let (n, b) = c.get();
        if n == 0 {
            INSTALLED.store(true, Ordering::Relaxed);
        }
        c.set((n + 1, b + bytes as u64));
    });
    count_live(bytes as i64);
}

// SAFETY: every call is passed on unchanged to mimalloc, which keeps the contract; the counting
// allocates nothing and cannot unwind.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are those `MiMalloc` asks for.
        unsafe { MiMalloc.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as above.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        count_live(-(layout.size() as i64));
        // SAFETY: as above.
        unsafe { MiMalloc.realloc(at, layout, size) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count_live(-(layout.size() as i64));
        // SAFETY: as above.
        unsafe { MiMalloc.dealloc(at, layout) }
    }
}

/// Returns the allocations of this thread so far and their bytes; `None` where nobody counts.
pub fn allocated() -> Option<(u64, u64)> {
    INSTALLED.load(Ordering::Relaxed).then(|| ALLOCATED.with(Cell::get))
}

/// Traffic of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes written.
    pub bytes: u64,
    /// Submissions of writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
}

impl Traffic {
    /// Returns the traffic since `earlier`.
    pub fn since(self, earlier: Traffic) -> Traffic {
        debug_assert!(self.bytes >= earlier.bytes && self.writes >= earlier.writes, "counts only grow");
        debug_assert!(self.flushes >= earlier.flushes);
        Traffic {
            bytes: self.bytes - earlier.bytes,
            writes: self.writes - earlier.writes,
            flushes: self.flushes - earlier.flushes,
        }
    }
}

/// A device that counts what goes to the one below.
#[derive(Debug)]
pub struct CountingDevice {
    below: Arc<dyn Device>,
    // All three are added to by who writes or flushes, and loaded by who asks. Relaxed: statistics
    // that order nothing.
    bytes: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
}

impl CountingDevice {
    /// Makes a device that counts what goes to `below`.
    pub fn new(below: Arc<dyn Device>) -> CountingDevice {
        let zero = || AtomicU64::new(0);
        CountingDevice { below, bytes: zero(), writes: zero(), flushes: zero() }
    }
    /// Returns the traffic so far.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            bytes: self.bytes.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            flushes: self.flushes.load(Ordering::Relaxed),
        }
    }
}

impl Device for CountingDevice {
    fn size(&self) -> u64 {
        self.below.size()
    }
    fn name(&self) -> &str {
        self.below.name()
    }
    fn read(&self, reqs: &mut [ReadReq<'_>]) -> lanefs_store::Result<()> {
        self.below.read(reqs)
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> lanefs_store::Result<()> {
        let bytes: usize = reqs.iter().map(|r| r.data.len()).sum();
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.below.write(reqs)
    }
    fn flush(&self) -> lanefs_store::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.below.flush()
    }
    fn needs_flush(&self) -> bool {
        self.below.needs_flush()
    }
    fn discard(&self, offset: u64, len: u64) -> lanefs_store::Result<()> {
        self.below.discard(offset, len)
    }
    fn lengthen(&self, bytes: u64) -> lanefs_store::Result<()> {
        self.below.lengthen(bytes)
    }
    fn discards(&self) -> bool {
        self.below.discards()
    }
    fn excuse(&self, offset: u64) {
        self.below.excuse(offset);
    }
    fn release(&self) {
        self.below.release();
    }
}
