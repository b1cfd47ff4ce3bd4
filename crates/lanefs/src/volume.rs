//! An open volume: what every operation reaches, and its life from open to close.

use crate::error::{Error, Result};
use crate::memfs::data::FramePool;
use crate::memfs::stamps::Stamps;
use crate::memfs::table::CellTable;
use crate::oplog::LaneLog;
use crate::oplog::inode_numbers::Numbers;
use crate::oplog::slots::OpenSlots;
use crate::ops::room::NameRoom;
use crate::stat::StatFs;
use crate::writeback::background::Background;
use crate::writeback::checkpoint::Thinned;
use crate::writeback::{Backlog, FlushQueue, reaper::Reaper, reclaim::Reclaim};
use crate::{CreateOptions, Cred, Fs, MountOptions, Order};
use crossbeam_utils::CachePadded;
use lanefs_format::Ino;
use lanefs_store::device::{Device, FileDevice, MemoryDevice};
use lanefs_store::{CleanReport, Grown, OpenReport, Store, VolumeInfo};
use lanefs_sync::ablation::{Switch, Technique};
use lanefs_sync::clock::Clock;
use lanefs_sync::epoch::Epochs;
use lanefs_sync::lane_ids::LaneIds;
use lanefs_sync::lanes::Lanes;
use lanefs_sync::lock::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering::*};

/// The lane's part that others may read: counters on lines of their own.
pub(crate) struct LaneShared {
    pub slots: OpenSlots,
    /// Cells made less cells dropped by this lane's threads.
    pub cells: AtomicI64,
    /// Bytes of names brought into memory by this lane's threads. Only grows: the reclaimer counts
    /// what left.
    pub names: AtomicI64,
    /// A new chunk of the lane's log was begun: time to look how much memory there is. Written by
    /// the lane's threads.
    pub look: AtomicBool,
    /// Written by the lane's threads.
    pub room: NameRoom,
}

/// Blocks of a volume below which lanes look more often how much they log: 64 MiB.
const SMALL: u64 = 1 << 14;

/// The volume takes calls.
const RUNNING: u8 = 0;
/// Closed, or shut down as by a crash: every call fails with EIO.
const STOPPED: u8 = 1;

/// What is behind a [`Volume`].
pub(crate) struct Inner {
    pub store: Arc<Store>,
    pub lanes: Lanes<LaneLog, LaneShared>,
    pub one_list: Switch,
    pub epochs: Epochs,
    pub clock: Arc<Clock>,
    pub cells: CellTable,
    /// What lanes change of inodes of which they are not the home.
    pub stamps: Box<Stamps>,
    pub numbers: Numbers,
    pub frames: Arc<FramePool>,
    pub hash_key: [u64; 2],
    /// Less than 64 MiB: a few thousand names may be much (`ops::room`).
    pub is_small: bool,
    pub options: MountOptions,
    /// Everything up to this epoch is in the folded directories. Written by checkpoints only.
    folded: CachePadded<AtomicU64>,
    /// Everything up to this epoch that was logged is durable. Written by commits only.
    committed: CachePadded<AtomicU64>,
    /// RUNNING or STOPPED. Written twice in a volume's life.
    state: CachePadded<AtomicU8>,
    /// Held while a directory changes parents.
    pub move_lock: CachePadded<Mutex<()>>,
    pub locks: CachePadded<crate::locks::LockTable>,
    /// One loader of a cell at a time (by inode number), and no eviction meanwhile.
    pub load_locks: Box<[Mutex<()>]>,
    /// Inodes freed whose end has not been folded: the store still knows them, nobody else may.
    pub dead: CachePadded<Mutex<HashSet<Ino>>>,
    /// One seal at a time; what is on its way to the log, and what is committed and waits for the
    /// fold.
    pub commit: CachePadded<Mutex<Backlog>>,
    /// Operations were made in lanes below this one only. Written under `commit`, once for each
    /// lane; read by every operation.
    in_use: CachePadded<AtomicUsize>,
    /// Wakes those who wait for an epoch. Beside `commit`.
    pub published: CachePadded<Condvar>,
    /// One checkpoint at a time; and the directories that lost names which the last one had not
    /// folded.
    pub checkpointing: CachePadded<Mutex<HashMap<Ino, Thinned>>>,
    pub flush: CachePadded<Mutex<FlushQueue>>,
    /// One close at a time: another must not take the first one's end for an error.
    closing: CachePadded<Mutex<()>>,
    /// One sync(2) at a time.
    pub syncing: CachePadded<Mutex<()>>,
    pub reaper: CachePadded<Mutex<Reaper>>,
    pub reclaim: CachePadded<Mutex<Reclaim>>,
    /// Bytes of names that left memory. Written by the reclaimer, under `reclaim`, and by
    /// checkpoints.
    pub names_gone: CachePadded<AtomicI64>,
    /// Blocks of extended attributes handed to the store that no checkpoint has written. Written by
    /// calls that set large ones.
    pub xattr_blocks: CachePadded<AtomicU64>,
    /// Bytes of cells and names allowed.
    pub meta_budget: u64,
    pub report: OpenReport,
    /// Pages written back in one transaction.
    pub round_pages: usize,
    /// Wakes the background thread.
    pub background: Arc<Background>,
    /// Whether a front end still knows an inode without a name; asked by the reaper only.
    pub keeper: CachePadded<Mutex<Option<Keeper>>>,
}

/// Says whether somebody outside still knows an inode.
pub(crate) type Keeper = Box<dyn Fn(Ino) -> bool + Send + Sync>;

/// An open volume; cheap to clone. When the last clone and the last [`crate::File`] are gone it is
/// closed cleanly; [`Volume::close`] does the same at once and tells how it went. Calls by inode
/// number are in [`crate::node`]; every call that has a result may answer the errors of [every
/// call](crate::error#every-call).
#[derive(Clone)]
pub struct Volume(pub(crate) Arc<Root>);

/// Keeps the volume alive for a lane's handles: a reference count per lane, so that `open` on two
/// lanes shares no line.
pub(crate) struct Anchor {
    pub inner: Arc<Inner>,
}

impl Drop for Anchor {
    fn drop(&mut self) {
        // The last user: only the background threads may be left. Waiting for them here makes the
        // volume close in this thread.
        if Arc::strong_count(&self.inner) <= 2 + usize::from(self.inner.background.ahead.is_busy()) {
            self.inner.background.stop();
        }
    }
}

pub(crate) struct Root {
    pub inner: Arc<Inner>,
    pub anchors: Box<[CachePadded<Arc<Anchor>>]>,
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").field("info", &self.0.inner.store.info()).finish_non_exhaustive()
    }
}

impl Volume {
    /// Makes a new volume in new image files of `size` bytes each (a multiple of 4096), its root
    /// owned by the calling process. [`CreateOptions`] makes others. Errors and crash as
    /// [`CreateOptions::create`].
    pub fn create<P: AsRef<Path>>(images: &[P], size: u64) -> Result<()> {
        CreateOptions::new().create(images, size)
    }

    /// Opens the volume stored in these image files or block devices (one path for most volumes),
    /// recovering it if it was not closed. What recovery decided is durable before any call is
    /// answered, and never taken back.
    ///
    /// # Errors
    /// - EBUSY: another process has it open; the message has its id.
    /// - ENOENT: there is no such file. EACCES, EROFS and others: what the system said to opening
    ///   it.
    /// - EINVAL: no LaneFS volume; a device that is missing or belongs to another one.
    /// - EIO, EUCLEAN: a device failed, or what recovery needs is damaged; the message says what to
    ///   do.
    /// - ENOMEM, EAGAIN: no address space for the cache, or no thread.
    pub fn open<P: AsRef<Path>>(images: &[P], options: &MountOptions) -> Result<Volume> {
        let devices = images
            .iter()
            .map(|p| Ok(Arc::new(FileDevice::open(p.as_ref(), options.read_only)?) as Arc<dyn Device>))
            .collect::<Result<Vec<_>>>()?;
        Volume::open_devices(devices, options)
    }

    /// Opens the volume stored on these devices, in any order. Errors as [`Volume::open`], without
    /// EBUSY: who opened the devices has locked them.
    pub fn open_devices(devices: Vec<Arc<dyn Device>>, options: &MountOptions) -> Result<Volume> {
        let options = options.clone();
        let cache = if options.cache_size == 0 { default_cache() } else { options.cache_size }.max(4 << 20);
        // What is neither page nor name: buffers of a checkpoint, tables of segments, the
        // allocator's slack.
        let cache = cache - (cache / 8 * 5).min(80 << 20) - options.buffers.min(cache / 4);
        let lanes = if options.lanes == 0 {
            lanefs_sync::MAX_LANES
        } else {
            options.lanes.min(lanefs_sync::MAX_LANES)
        };
        let (store, report) = Store::open(
            devices,
            &lanefs_store::OpenOptions {
                read_only: options.read_only,
                mlogs: options.mlogs,
                cache_bytes: (cache / 16) as usize,
                memory_bytes: (cache / 8) as usize,
                lanes,
                accept_loss: false,
                threads: usize::from(!options.background),
            },
        )?;
        let info = store.info();
        let frames = Arc::new(FramePool::new(cache / 2)?);
        let ids = LaneIds::new(lanes);
        let inner = Inner {
            lanes: Lanes::with_shared(ids, |_| {
                (
                    LaneLog::new(info.last_ts),
                    LaneShared {
                        slots: OpenSlots::new(),
                        cells: AtomicI64::new(0),
                        names: AtomicI64::new(0),
                        look: AtomicBool::new(false),
                        room: NameRoom::default(),
                    },
                )
            }),
            one_list: Switch::of(Technique::LaneLogs),
            epochs: match options.order {
                Order::Ordered => Epochs::with_pending(info.last_epoch + 1),
                Order::Relaxed => Epochs::new(info.last_epoch + 1),
            },
            clock: options.clock.clone().unwrap_or_else(|| Arc::new(Clock::detect())),
            cells: CellTable::new(),
            stamps: Box::new(Stamps::new()),
            numbers: Numbers::new(info.next_chunk),
            frames,
            hash_key: info.hash_key,
            is_small: store.space().total < SMALL,
            folded: CachePadded::new(AtomicU64::new(info.last_epoch)),
            committed: CachePadded::new(AtomicU64::new(info.last_epoch)),
            state: CachePadded::new(AtomicU8::new(RUNNING)),
            move_lock: CachePadded::new(Mutex::new(())),
            locks: Default::default(),
            load_locks: (0..64).map(|_| Mutex::new(())).collect(),
            dead: Default::default(),
            commit: Default::default(),
            // Where all log to one list that is lane 0.
            in_use: CachePadded::new(AtomicUsize::new(1)),
            published: Default::default(),
            checkpointing: Default::default(),
            flush: Default::default(),
            closing: CachePadded::new(Mutex::new(())),
            syncing: CachePadded::new(Mutex::new(())),
            reaper: Default::default(),
            reclaim: Default::default(),
            names_gone: Default::default(),
            xattr_blocks: Default::default(),
            meta_budget: cache / 16 * 5,
            report,
            round_pages: (info.segment_blocks as usize * 2).min(crate::writeback::capture::MAX_PAGES),
            background: Arc::default(),
            keeper: Default::default(),
            options,
            store,
        };
        let inner = Arc::new(inner);
        inner.start_background()?;
        let anchors =
            (0..lanes).map(|_| CachePadded::new(Arc::new(Anchor { inner: inner.clone() }))).collect();
        Ok(Volume(Arc::new(Root { inner, anchors })))
    }

    /// A new volume in memory, its root owned by the calling process, gone when it is closed, of
    /// `bytes` bytes with all that it needs for itself.
    ///
    /// # Errors
    /// EINVAL: not a multiple of 4096, or too small. ENOMEM, EAGAIN: as [`Volume::open`].
    pub fn in_memory(bytes: u64) -> Result<Volume> {
        let dev: Arc<dyn Device> = Arc::new(MemoryDevice::new(bytes)?);
        CreateOptions::new().format(std::slice::from_ref(&dev))?;
        Volume::open_devices(vec![dev], &MountOptions::default())
    }

    /// Bytes of memory that cells, names, logged changes and the store's inodes take, about. File
    /// pages are not in it: they have a share of the budget of their own, which is taken when the
    /// volume is opened.
    pub fn memory(&self) -> u64 {
        self.0.inner.meta_bytes()
    }

    /// The volume as this credential may see it.
    pub fn as_user(&self, cred: Cred) -> Fs {
        Fs::new(self.clone(), cred)
    }

    /// The volume as the calling process may see it.
    pub fn fs(&self) -> Fs {
        self.as_user(Cred::current())
    }

    /// Makes durable all that returned before this call: dirty inodes are written, then the epoch
    /// is committed (O10). Does nothing where the volume was opened for reading only.
    ///
    /// # Errors
    /// EIO, ENOSPC: as [`crate::File::sync_all`]; then nothing is promised of what was not durable
    /// before.
    pub fn sync(&self) -> Result<()> {
        let inner = &self.0.inner;
        inner.check_alive()?;
        inner.promised(inner.sync_all())
    }

    /// Sizes and counts, in blocks of 4096 bytes. EIO once the volume is closed. What was removed
    /// and nobody has open counts as free: if that is much, a checkpoint is made first.
    pub fn statfs(&self) -> Result<StatFs> {
        let inner = &self.0.inner;
        inner.check_alive()?;
        if let Err(e) = inner.free_removed() {
            // What cannot be freed is not free; whoever asks is told that much.
            tracing::debug!("freeing what was removed: {e}");
        }
        let s = inner.store.space();
        let id = inner.store.info().uuid;
        let fsid = u64::from_le_bytes([id[0], id[1], id[2], id[3], id[4], id[5], id[6], id[7]]);
        Ok(StatFs {
            blocks: s.total,
            free: s.free,
            files: s.inodes.saturating_add(s.free),
            files_free: s.free,
            name_max: lanefs_format::NAME_MAX as u32,
            fsid,
        })
    }

    /// Bytes that are free at this moment, while what was removed is not all given back: for who
    /// looks often. EIO once the volume is closed.
    pub fn free_now(&self) -> Result<u64> {
        let inner = &self.0.inner;
        inner.check_alive()?;
        Ok(inner.store.space().free * lanefs_format::BLOCK_SIZE as u64)
    }

    /// Whether there is room for so many bytes more at this moment, also after what was deleted was
    /// given back, which may take long. It is kept for nobody. True once the volume is closed: then
    /// calls tell.
    pub fn has_room(&self, bytes: u64) -> bool {
        let inner = &self.0.inner;
        let blocks = bytes.div_ceil(lanefs_format::BLOCK_SIZE as u64);
        let fits = || {
            let lane = inner.lanes.mine();
            let fits = inner.store.reserve(lane, blocks);
            if fits {
                inner.store.unreserve(lane, blocks);
            }
            fits
        };
        inner.check_alive().is_err() || fits() || (inner.free_space() && fits())
    }

    /// Makes the volume larger while it is used, and answers its size in bytes before and now: an
    /// image file is made `bytes` long; without them all of the device is used, which was made
    /// longer before. The room is there when this returns, durably; after a power loss before that
    /// the volume has the old size or the new one.
    ///
    /// # Errors
    /// - EINVAL: the volume is larger than that (none is made smaller), so little more adds
    ///   nothing, the device is not that long, or the volume has several. The message says which.
    /// - EROFS where it was opened for reading only; EIO, ENOSPC: what the device said.
    pub fn grow(&self, bytes: Option<u64>) -> Result<Grown> {
        let inner = &self.0.inner;
        inner.check_alive()?;
        inner.promised(inner.store.grow(bytes).map_err(Error::from))
    }

    /// Gives the volume another name for people, of at most 64 bytes; durable when this returns.
    ///
    /// # Errors
    /// EINVAL: too long, or with control characters. EROFS where the volume was opened for reading
    /// only; EIO.
    pub fn set_label(&self, label: &str) -> Result<()> {
        let inner = &self.0.inner;
        inner.check_alive()?;
        inner.promised(inner.store.set_label(label).map_err(Error::from))
    }

    /// What the store says of the volume; also once it is closed.
    pub fn info(&self) -> VolumeInfo {
        self.0.inner.store.info()
    }

    /// What opening the volume found and did.
    pub fn open_report(&self) -> &OpenReport {
        &self.0.inner.report
    }

    /// One round of background work: reap, write back what is old, commit, checkpoint, clean, as
    /// needed. For who opened without [`MountOptions::background`]. Errors as [`Volume::sync`].
    pub fn tick(&self) -> Result<()> {
        let inner = &self.0.inner;
        inner.check_alive()?;
        inner.promised(inner.tick(true))
    }

    /// A checkpoint now: all operations on names that returned before, and what was written back,
    /// are durable when it returns, and recovery begins there. Dirty content is not written: that
    /// is [`Volume::sync`].
    ///
    /// # Errors
    /// As [`Volume::sync`]; EROFS where the volume was opened for reading only.
    pub fn checkpoint(&self) -> Result<()> {
        let inner = &self.0.inner;
        inner.check_alive()?;
        inner.promised(inner.checkpoint().map(drop))
    }

    /// Tells the devices that what is free is not needed: holes are punched into images, and solid
    /// state disks may use the blocks. After a checkpoint, so that what was removed before counts
    /// as free. `range` is in bytes, counted through all devices in order; only what lies in it
    /// whole, by segments, is told of. Returns how many bytes were.
    ///
    /// # Errors
    /// - EOPNOTSUPP: no device of the volume can discard.
    /// - EINVAL: the range begins behind the last segment or is shorter than a block.
    /// - EROFS: the volume was opened for reading only. And those of [`Volume::checkpoint`].
    pub fn trim(&self, range: std::ops::Range<u64>) -> Result<u64> {
        let inner = &self.0.inner;
        inner.check_alive()?;
        inner.writable()?;
        let (_, all) = inner.store.segment_bytes();
        if range.start >= all || range.end.saturating_sub(range.start) < lanefs_format::BLOCK_SIZE as u64 {
            return Err(Error::Posix(libc::EINVAL));
        }
        self.checkpoint()?;
        inner.store.trim(range)?.ok_or(Error::Posix(libc::EOPNOTSUPP))
    }

    /// Bytes of a segment, the least that is discarded at once.
    pub fn segment_bytes(&self) -> u64 {
        self.0.inner.store.segment_bytes().0
    }

    /// What the cleaner did since the volume was opened.
    pub fn cleaned(&self) -> CleanReport {
        self.0.inner.store.cleaned()
    }

    /// Stops the volume as a crash would: nothing more reaches the device, every call fails with
    /// EIO. What was durable is found when it is opened again.
    pub fn shutdown(&self) {
        self.0.inner.state.store(STOPPED, SeqCst);
        self.0.inner.store.shutdown();
    }

    /// For front ends that hand out inode numbers: an inode without a name and without an open
    /// handle is not freed while `keeps` says true of it. Asked between reaping rounds, never while
    /// a caller waits; `None` keeps nothing. After a crash nobody knows such inodes any more, and
    /// recovery frees them.
    pub fn keep_unnamed(&self, keeps: Option<Box<dyn Fn(Ino) -> bool + Send + Sync>>) {
        *self.0.inner.keeper.lock() = keeps;
    }

    /// Syncs, writes the final checkpoint with the clean mark and releases the devices. Later calls
    /// fail with EIO, but another close does nothing. All that returned before is durable when this
    /// returns.
    ///
    /// # Errors
    /// EIO, ENOSPC: as [`Volume::sync`]. The volume is closed all the same, as by a crash: what was
    /// synced is recovered when it is opened again.
    pub fn close(&self) -> Result<()> {
        let inner = &self.0.inner;
        inner.promised(inner.close())
    }
}

/// A quarter of the machine's memory.
fn default_cache() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram * u64::from(info.mem_unit) / 4).max(64 << 20)
}

impl Inner {
    /// Everything up to this epoch has been folded.
    #[inline]
    pub fn folded(&self) -> u64 {
        self.folded.load(Acquire)
    }

    /// Every group of an epoch up to this one is durable.
    #[inline]
    pub fn committed(&self) -> u64 {
        self.committed.load(SeqCst)
    }

    pub fn set_committed(&self, epoch: u64) {
        self.committed.fetch_max(epoch, SeqCst);
    }

    pub fn set_folded(&self, epoch: u64) {
        self.folded.fetch_max(epoch, Release);
    }

    /// EIO once the volume is closed or shut down.
    #[inline]
    pub fn check_alive(&self) -> Result<()> {
        if self.state.load(Relaxed) == RUNNING { Ok(()) } else { Err(Error::Posix(libc::EIO)) }
    }

    /// EROFS on a read-only volume, also one that an error of its devices made so (SEMANTICS E2);
    /// EIO on a stopped one.
    #[inline]
    pub fn writable(&self) -> Result<()> {
        self.check_alive()?;
        if self.options.read_only || self.store.is_broken() { Err(Error::Posix(libc::EROFS)) } else { Ok(()) }
    }

    /// What a call answers that promises durability: EIO on a volume that an error made read-only
    /// (SEMANTICS E2).
    pub fn promised<T>(&self, r: Result<T>) -> Result<T> {
        r.map_err(|e| if self.store.is_broken() { Error::Posix(libc::EIO) } else { e })
    }

    /// The lane whose log the calling thread's operations go to: its own.
    #[inline]
    pub fn log_lane(&self) -> usize {
        if self.one_list.off() { 0 } else { self.lanes.mine() }
    }

    /// Lanes below this one may hold groups (`writeback::commit`, 6).
    #[inline]
    pub fn lanes_in_use(&self) -> usize {
        // Acquire: pairs with the Release in `take_into_use`. Who sees the lane in use because
        // another thread brought a higher one is behind that thread's hold of `commit`, too.
        self.in_use.load(Acquire)
    }

    /// Before the first operation in a lane. The caller holds no lane.
    #[cold]
    pub fn take_into_use(&self, lane: usize) {
        let _no_seal = self.commit.lock();
        // Release: see `lanes_in_use`.
        self.in_use.fetch_max(lane + 1, Release);
    }

    /// Counts cells made or dropped by this thread.
    #[inline]
    pub fn count_cells(&self, by: i64) {
        let c = &self.lanes.shared(self.lanes.mine()).cells;
        // Mostly written by the lane's own thread; a shared lane needs the atomic.
        c.fetch_add(by, Relaxed);
    }

    /// Counts bytes of names brought into memory by this thread.
    #[inline]
    pub fn count_names(&self, by: i64) {
        self.lanes.shared(self.lanes.mine()).names.fetch_add(by, Relaxed);
    }

    /// Bytes of names brought into memory so far.
    pub fn names_brought(&self) -> i64 {
        (0..self.lanes.len()).map(|l| self.lanes.shared(l).names.load(Relaxed)).sum()
    }

    /// Bytes of names in memory, about: not less than there are.
    pub fn name_bytes(&self) -> i64 {
        self.names_brought() - self.names_gone.load(Relaxed)
    }

    /// Cells in memory, about.
    pub fn cells_in_memory(&self) -> i64 {
        (0..self.lanes.len()).map(|l| self.lanes.shared(l).cells.load(Relaxed)).sum()
    }

    fn close(&self) -> Result<()> {
        let _one = self.closing.lock();
        if self.state.load(SeqCst) == STOPPED {
            self.store.release();
            return Ok(());
        }
        self.background.stop();
        let r = if self.options.read_only {
            Ok(Ok(()))
        } else {
            // A file that cannot be written holds back neither the others nor the names; the caller
            // hears of it at the end.
            let content = self.reap_for_close().and(self.write_back_all(false));
            self.checkpoint().map(|_| content)
        };
        self.state.store(STOPPED, SeqCst);
        let closed = match r {
            Ok(content) => self.store.close().map_err(Error::from).and(content),
            Err(e) => {
                self.store.shutdown();
                Err(e)
            }
        };
        self.store.release();
        closed
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(e) = self.close() {
            tracing::error!(
                "closing the volume failed: {e}; what was synced is safe and will be recovered at the next mount"
            );
        }
    }
}
