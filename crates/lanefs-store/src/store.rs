//! The store: the one door of the layer above. What it promises is in docs/DESIGN.md.
//!
//! What is where: a transaction's way to disk in `transaction`, epoch commits in `commit`,
//! checkpoints in `checkpoint` with the fold in `fold`, opening in `recovery`, the cleaner in
//! `cleaner`. This file holds the state they share and the way in and out of the reader section;
//! reading is in `reading`.
//!
//! Locks, in the order they are taken: the maintenance lock (checkpoint, cleaner); inodes by
//! ascending inode number; a reader section of `rps`; an mlog's mutex. The RPS writer takes none of
//! the others inside.

use crate::api::*;
use crate::device::Device;
use crate::engine::commits::Commits;
use crate::engine::maintenance::Maintenance;
use crate::error::{Result, StoreError};
use crate::inodes::cache::{CachedInode, InodeCache, InodeEntry};
use crate::log::io::Io;
use crate::log::mlog::Mlog;
use crate::log::segment::SegmentTable;
use crate::log::space::Space;
use crate::tree::inode_state::InodeState;
use crate::tree::inode_table::InodeTable;
use lanefs_format::batch::Context;
use lanefs_format::header::Stamp;
use lanefs_format::superblock::{Superblock, Uuid};
use lanefs_format::{Attrs, Ino};
use lanefs_sync::lock::{Mutex, MutexGuard};
use lanefs_sync::{CachePadded, Rps, RpsReadGuard};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// An open volume's log-structured store.
pub struct Store {
    pub(crate) io: Io,
    /// The volume's identity.
    pub(crate) volume: Uuid,
    /// Key of the hash that makes cookies of names.
    hash_key: [u64; 2],
    /// As it is on the medium. Replaced, under the maintenance lock, when the label or the size
    /// changes. On a line of its own: a checkpoint locks it, and every batch reads what lies beside
    /// it.
    pub(crate) superblock: CachePadded<Mutex<Arc<Superblock>>>,
    pub(crate) read_only: bool,
    /// See `OpenOptions::accept_loss`.
    pub(crate) accept_loss: bool,
    /// See `OpenOptions::threads`.
    pub(crate) threads: usize,
    /// See `OpenOptions::memory_bytes`.
    pub(crate) memory_bytes: usize,
    pub(crate) segments: SegmentTable,
    pub(crate) mlogs: Vec<Mlog>,
    pub(crate) space: Space,
    pub(crate) cache: InodeCache,
    pub(crate) inodes: InodeTable,
    pub(crate) rps: Rps,
    flights: Box<[CachePadded<Flights>]>,
    /// Which counter of `flights` new transactions use. Changed only by the RPS writer.
    phase: CachePadded<AtomicUsize>,
    /// The last position is recorded: nothing enters behind it. Written once, by the RPS writer.
    pub(crate) closing: AtomicBool,
    /// The volume's secret, folded to a word.
    secret: u64,
    /// This mount's generation; set once, before anything is written.
    pub(crate) mount: AtomicU64,
    /// Generation of the slot that was made durable last.
    pub(crate) slot_in_force: AtomicU64,
    /// The next chain sequence.
    pub(crate) next_seq: CachePadded<AtomicU64>,
    /// The checkpoint that captures what is done now; grows at each position P, by the RPS writer.
    pub(crate) checkpoint_number: CachePadded<AtomicU64>,
    /// The last epoch committed or folded.
    pub(crate) epoch: CachePadded<AtomicU64>,
    /// See [`Store::folded_epoch`]. Written under the maintenance lock.
    pub(crate) folded: AtomicU64,
    pub(crate) last_ts: AtomicU64,
    pub(crate) next_chunk: AtomicU64,
    pub(crate) inode_count: CachePadded<AtomicU64>,
    /// Preallocated pages without a block, in the inode blocks on disk. Written by whoever writes
    /// these: the holder of the maintenance lock.
    pub(crate) unwritten: CachePadded<AtomicI64>,
    pub(crate) commits: CachePadded<Mutex<Commits>>,
    /// The sum of what is cancelled of them. Written after a commit; read by every 32nd transaction
    /// of a lane.
    pub(crate) cancelled: CachePadded<AtomicU64>,
    pub(crate) maintenance: CachePadded<Mutex<Maintenance>>,
    /// Dirty inodes that the last checkpoint in place left: their NEW is not folded.
    pub(crate) dirty_floor: CachePadded<AtomicUsize>,
    /// The thread inside [`Store::checkpoint`], which may write (its seal) while it holds the
    /// maintenance lock.
    sealer: CachePadded<AtomicUsize>,
}

/// A lane's transactions under way, by phase, and how many it has begun.
#[derive(Default)]
struct Flights {
    out: [AtomicI64; 2],
    begun: AtomicU64,
}

/// A reader section of the store: allocations inside are all before, or all behind, any
/// checkpoint's position.
pub(crate) struct Section<'a> {
    _reader: RpsReadGuard<'a>,
    flight: Flight<'a>,
    store: &'a Store,
}

impl<'a> Section<'a> {
    /// An error behind the position of a close.
    pub fn check(&self) -> Result<()> {
        // Relaxed: it is written by the RPS writer, whose exit orders it before this section.
        if self.store.closing.load(Ordering::Relaxed) { Err(StoreError::Closed) } else { Ok(()) }
    }
    /// Ends the section; the flight goes on until its writes are answered.
    pub fn leave(self) -> Flight<'a> {
        self.flight
    }
}

/// A transaction whose writes are not answered yet.
pub(crate) struct Flight<'a>(&'a AtomicI64);

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        // Release, with the acquire in `drain`: what was written is answered before the count says
        // so.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({})", self.volume)
    }
}

/// What a core is made of.
pub(crate) struct Parts {
    pub devices: Vec<Arc<dyn Device>>,
    pub superblock: Superblock,
    pub segments: SegmentTable,
    pub inodes: InodeTable,
    pub mlogs: usize,
    pub maintenance: Maintenance,
    pub options: OpenOptions,
}

impl Store {
    pub(crate) fn assemble(p: Parts) -> Store {
        let usable = p.segments.geometry.usable();
        let wanted = if p.options.mlogs > 0 { p.options.mlogs } else { p.mlogs };
        let n = crate::log::space::fitting_mlogs(wanted, usable);
        let small = usable < 96 * n as u32;
        let lanes = if p.options.lanes > 0 { p.options.lanes } else { lanefs_sync::MAX_LANES };
        let devices = p.devices.len();
        let read_only = p.options.read_only || p.superblock.read_only();
        let hash = p.superblock.hash_key;
        let slot = &p.maintenance.slot;
        let free = AtomicU64::new(slot.next_seq.max(1));
        p.segments.set_reserved_segments(crate::log::space::segments_held_back(usable, n) * 3 / 5);
        Store {
            space: Space::new(
                usable,
                p.segments.geometry.segment_blocks,
                p.segments.geometry.copies,
                n,
                lanes,
            ),
            mlogs: (0..n).map(|i| Mlog::new(i, i % devices, small)).collect(),
            io: Io::new(p.devices, p.options.cache_bytes, read_only).of(&p.superblock),
            read_only,
            accept_loss: p.options.accept_loss,
            threads: p.options.threads,
            memory_bytes: p.options.memory_bytes,
            rps: Rps::new(lanefs_sync::LaneIds::new(lanefs_sync::MAX_LANES)),
            flights: (0..lanes).map(|_| CachePadded::new(Flights::default())).collect(),
            phase: CachePadded::new(AtomicUsize::new(0)),
            closing: AtomicBool::new(false),
            secret: hash[0] ^ hash[1].rotate_left(29),
            mount: AtomicU64::new(slot.mount),
            slot_in_force: AtomicU64::new(slot.generation),
            next_seq: CachePadded::new(free),
            checkpoint_number: CachePadded::new(AtomicU64::new(1)),
            epoch: CachePadded::new(AtomicU64::new(slot.folded_epoch)),
            folded: AtomicU64::new(slot.folded_epoch),
            last_ts: AtomicU64::new(slot.last_ts),
            next_chunk: AtomicU64::new(slot.next_chunk),
            inode_count: CachePadded::new(AtomicU64::new(slot.inodes)),
            unwritten: CachePadded::new(AtomicI64::new(slot.unwritten as i64)),
            commits: CachePadded::new(Mutex::new(Commits::new(slot.folded_epoch))),
            cancelled: CachePadded::new(AtomicU64::new(0)),
            cache: InodeCache::new(),
            inodes: p.inodes,
            volume: p.superblock.volume,
            hash_key: hash,
            superblock: CachePadded::new(Mutex::new(Arc::new(p.superblock))),
            segments: p.segments,
            maintenance: CachePadded::new(Mutex::new(p.maintenance)),
            dirty_floor: CachePadded::new(AtomicUsize::new(0)),
            sealer: CachePadded::new(AtomicUsize::new(0)),
        }
    }

    /// The superblock as it is on the medium.
    pub(crate) fn superblock(&self) -> Arc<Superblock> {
        self.superblock.lock().clone()
    }

    pub(crate) fn context(&self, seq: u64) -> Context {
        Context { mount: self.mount.load(Ordering::Relaxed), seq, secret: self.secret }
    }

    pub(crate) fn stamp(&self, sequence: u64) -> Stamp {
        let v = &self.volume.0;
        Stamp {
            mount: self.mount.load(Ordering::Relaxed),
            epoch: self.epoch.load(Ordering::Relaxed),
            sequence,
            volume: u64::from_le_bytes([v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]]),
        }
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(StoreError::ReadOnly { why: "it was opened for reading only".into() });
        }
        // Relaxed: refuses early; who comes too late for it is refused in the section.
        if self.closing.load(Ordering::Relaxed) {
            return Err(StoreError::Closed);
        }
        self.io.check()
    }

    // ---- the reader section ----

    /// Enters a reader section on behalf of `lane`.
    pub(crate) fn enter(&self, lane: usize) -> Section<'_> {
        let reader = self.rps.read();
        let f = &self.flights[lane % self.flights.len()];
        // Relaxed: the phase changes only while no reader is inside, and the RPS orders the count
        // before a drain.
        let out = &f.out[self.phase.load(Ordering::Relaxed)];
        out.fetch_add(1, Ordering::Relaxed);
        f.begun.fetch_add(1, Ordering::Relaxed);
        Section { _reader: reader, flight: Flight(out), store: self }
    }

    /// Transactions begun on behalf of `lane`.
    pub(crate) fn begun(&self, lane: usize) -> u64 {
        self.flights[lane % self.flights.len()].begun.load(Ordering::Relaxed)
    }

    /// Waits until all transactions that entered before this call have their writes answered. `f`
    /// runs while none is inside the section. Only under the maintenance lock.
    pub(crate) fn drain(&self, f: impl FnOnce()) {
        let old = {
            let _writer = self.rps.write();
            f();
            let old = self.phase.load(Ordering::Relaxed);
            self.phase.store(old ^ 1, Ordering::Relaxed);
            old
        };
        let mut spins = 0u32;
        while self.flights.iter().any(|x| x.out[old].load(Ordering::Acquire) != 0) {
            spins += 1;
            if spins < 100 {
                lanefs_sync::schedule::yield_now();
            } else {
                lanefs_sync::schedule::sleep(Duration::from_micros(50));
            }
        }
    }

    // ---- inodes ----

    fn load_inner(&self, ino: Ino) -> Result<Option<InodeEntry>> {
        let e = self.inodes.lookup(ino, &self.io)?;
        if e.block.is_none() {
            return Ok(None);
        }
        Ok(Some(InodeEntry::new(InodeState::load(ino, e.block, &self.io)?, true)))
    }

    /// Returns an inode; `None` if neither the table nor an update knows it.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Option<Arc<CachedInode>>> {
        self.cache.get_or_load(ino, || self.load_inner(ino))
    }

    /// Returns an inode that is being updated; one whose NEW is not folded yet is made.
    pub(crate) fn inode_or_new(&self, ino: Ino, attrs: &Attrs) -> Result<Arc<CachedInode>> {
        let inode = self.cache.get_or_load(ino, || {
            Ok(Some(match self.load_inner(ino)? {
                Some(i) => i,
                None => InodeEntry::new(InodeState::new(ino, *attrs, Ino::NONE), false),
            }))
        })?;
        inode.ok_or_else(|| StoreError::Invalid(format!("inode {ino} does not exist")))
    }

    // ---- what the layer above calls ----

    /// What is fixed or slow to change.
    pub fn info(&self) -> VolumeInfo {
        let g = &self.segments.geometry;
        let superblock = self.superblock();
        VolumeInfo {
            uuid: self.volume.0,
            label: superblock.label.clone(),
            hash_key: self.hash_key,
            total_blocks: superblock.devices.iter().map(|d| d.blocks + superblock.far_blocks()).sum(),
            segment_blocks: g.segment_blocks,
            segments: u64::from(g.usable()),
            metadata_copies: g.copies,
            mlogs: self.mlogs.len(),
            devices: self.io.devices().len(),
            mount_generation: self.mount.load(Ordering::Relaxed),
            last_epoch: self.epoch.load(Ordering::Relaxed),
            last_ts: self.last_ts.load(Ordering::Relaxed),
            next_chunk: self.next_chunk.load(Ordering::Relaxed),
            read_only: self.read_only || self.io.is_broken(),
        }
    }

    /// Blocks users can fill when nothing is stored.
    pub fn blocks_for_users(&self) -> u64 {
        self.space.total()
    }

    /// Room.
    pub fn space(&self) -> SpaceUsage {
        SpaceUsage {
            total: self.space.total(),
            free: self.space.free_exact().max(0) as u64,
            reserved: self.space.reserved().max(0) as u64,
            inodes: self.inodes_counted(),
        }
    }

    /// Promises room for `blocks` pages. True means they can always be written.
    pub fn reserve(&self, lane: usize, blocks: u64) -> bool {
        !self.read_only && self.space.reserve(lane, blocks)
    }

    /// Promises room for a stored page that is cut or blanked in part: also where nothing is free,
    /// unless many of them wait to be written back.
    pub fn reserve_rewrite(&self, lane: usize) -> bool {
        !self.read_only && self.space.reserve_rewrite(lane)
    }

    /// Gives a promise back.
    pub fn unreserve(&self, lane: usize, blocks: u64) {
        self.space.unreserve(lane, blocks);
    }

    /// Promises room for `nodes` blocks of the tree, with their copies.
    pub fn reserve_nodes(&self, lane: usize, nodes: u64) -> bool {
        self.reserve(lane, nodes * self.metadata_copies())
    }

    /// Gives such a promise back.
    pub fn unreserve_nodes(&self, lane: usize, nodes: u64) {
        self.space.unreserve(lane, nodes * self.metadata_copies());
    }

    /// How often the blocks of the tree lie on the devices.
    pub fn metadata_copies(&self) -> u64 {
        u64::from(self.segments.geometry.copies)
    }

    /// Pages of `ino` that are holes from now on; on disk with the inode's next update. The
    /// attributes take effect with it, but of the size only what makes the file shorter than it was
    /// last submitted.
    pub fn unmap(&self, lane: usize, ino: Ino, pages: Range<u64>, cut: Option<&Cut<'_>>) -> Result<()> {
        self.unmap_pages(lane, ino, pages, cut)
    }

    /// Writes a transaction in one trip; returns when what was promised holds.
    pub fn submit(&self, tx: Transaction) -> Result<()> {
        self.run_transaction(tx)
    }

    /// Makes a new root; `seal` seals and commits the epoch and hands over what to fold. One at a
    /// time.
    pub fn checkpoint(&self, seal: impl FnOnce() -> Result<FoldInput>) -> Result<CheckpointDone> {
        self.check_writable()?;
        let mut m = self.maintenance.lock();
        // Relaxed: only this thread compares it with its own token.
        self.sealer.store(lanefs_sync::primitive::thread_token(), Ordering::Relaxed);
        let r = self.run_checkpoint(&mut m, Some(seal), false);
        self.sealer.store(0, Ordering::Relaxed);
        r
    }

    /// Moves live blocks until the next checkpoint would leave `target_free_segments` free.
    pub fn clean(&self, target_free_segments: u64) -> Result<CleanReport> {
        let mut m = self.maintenance.lock();
        self.check_writable()?;
        self.clean_until(&mut m, target_free_segments, false)
    }

    /// Tells the devices that what is free in a range is not needed; the range and the answer are
    /// in bytes, counted through all devices in order. `None` if no device can take notice.
    pub fn trim(&self, range: Range<u64>) -> Result<Option<u64>> {
        self.check_writable()?;
        self.trim_free(range)
    }

    /// Bytes of a segment, and of all of them.
    pub fn segment_bytes(&self) -> (u64, u64) {
        let one = u64::from(self.segments.geometry.segment_blocks) << lanefs_format::BLOCK_SHIFT;
        (one, one * u64::from(self.segments.len()))
    }

    /// Stops as a crash would: nothing more reaches a device.
    pub fn shutdown(&self) {
        self.io.fail(&StoreError::Invalid("it was shut down".into()));
    }

    /// Lets go of the devices, so that others may open them: the volume is closed or was shut down.
    pub fn release(&self) {
        self.io.devices().iter().for_each(|d| d.release());
    }

    /// Final checkpoint with the clean mark. Everything was folded and submitted before.
    pub fn close(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        let mut m = self.maintenance.lock();
        if !m.closed {
            m.closing = true;
            let none: Option<fn() -> Result<FoldInput>> = None;
            self.run_checkpoint(&mut m, none, true)?;
            self.io.flush(1)?; // The slot's twin.
            m.closed = true;
        }
        Ok(())
    }

    /// Whether the caller is the seal of a checkpoint: it cannot wait for room and may use what is
    /// kept back.
    pub(crate) fn in_checkpoint(&self) -> bool {
        self.sealer.load(Ordering::Relaxed) == lanefs_sync::primitive::thread_token()
    }

    /// The maintenance lock; `None` if the caller's own thread holds it, or if it cannot be had for
    /// very long.
    pub(crate) fn try_maintenance(&self) -> Option<MutexGuard<'_, Maintenance>> {
        if self.in_checkpoint() {
            return None;
        }
        lanefs_sync::lock::try_lock_for(&self.maintenance, Duration::from_secs(10))
    }
}
