//! The places of blocks: segments, the mlogs that fill them, the way to the devices, and space.

pub(crate) mod account;
pub(crate) mod admission;
pub(crate) mod beside;
pub(crate) mod buckets;
pub(crate) mod census;
pub(crate) mod data_heads;
pub(crate) mod discard;
pub(crate) mod figures;
pub(crate) mod geometry;
pub(crate) mod heat;
pub(crate) mod io;
pub(crate) mod listing;
pub(crate) mod maintained;
pub(crate) mod members;
pub(crate) mod message;
pub(crate) mod mlog;
pub(crate) mod neighbours;
mod node_cache;
pub(crate) mod one_log;
pub(crate) mod pool;
pub(crate) mod reserve;
pub(crate) mod section;
pub(crate) mod segment;
pub(crate) mod slack;
pub(crate) mod slots;
pub(crate) mod space;
pub(crate) mod summaries;
pub(crate) mod superblocks;
pub(crate) mod usage_table;
pub(crate) mod withdrawal;

use crate::api::OpenOptions;
use crate::device::Device;
use crate::error::{Result, StoreError};
use io::Io;
use lanefs_format::Block;
use lanefs_format::batch::Context;
use lanefs_format::header::Stamp;
use lanefs_format::slot::Slot;
use lanefs_format::superblock::{Superblock, Uuid};
use lanefs_sync::lock::Mutex;
use lanefs_sync::{CachePadded, MAX_LANES};
use mlog::Mlog;
use one_log::OneLog;
use section::Sections;
use segment::SegmentTable;
use space::Space;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The log of an open volume. It gives out places and writes, and does not know what refers to a
/// block.
pub(crate) struct Log {
    pub io: Io,
    pub segments: Arc<SegmentTable>,
    pub mlogs: Vec<Mlog>,
    pub space: Space,
    pub sections: Sections,
    pub one_log: OneLog,
    /// The volume's identity.
    pub volume: Uuid,
    /// The volume's secret, folded to a word.
    secret: u64,
    pub read_only: bool,
    /// See `OpenOptions::threads`.
    pub threads: usize,
    /// This mount's generation. Written once, by the thread that opens the volume, before anybody
    /// else has it: so all accesses are Relaxed.
    pub mount: AtomicU64,
    /// Generation of the slot that was made durable last. Written by checkpoints, behind the flush.
    /// Relaxed: a batch that names an older one claims less. On a line of its own: every call reads
    /// what lies beside it.
    pub slot_in_force: CachePadded<AtomicU64>,
    /// The next chain sequence. Written by whoever opens a segment of a chain, and at open.
    /// Relaxed: uniqueness comes from the read-modify-write, and the order along a chain from its
    /// mutex.
    pub next_seq: CachePadded<AtomicU64>,
    /// The checkpoint that captures what is done now; grows at each position P, by the RPS writer.
    /// Relaxed: the RPS orders it for who reads inside a section; all others hold the maintenance
    /// lock.
    pub checkpoint_number: CachePadded<AtomicU64>,
    /// The last epoch committed or folded. Written when one is published, and by folds. Relaxed: it
    /// goes into stamps and reports, and decides nothing.
    pub epoch: CachePadded<AtomicU64>,
    /// The memory of the blocks of the last large messages, for the next ones
    /// ([`Log::encode_all`]). Taken by commits and by nothing that is small.
    blocks: CachePadded<Mutex<Vec<Vec<Block>>>>,
}

impl Log {
    /// Returns how many threads large work behind the lanes is worth: no more than there are logs
    /// to write to. A volume that is opened to start none has one.
    pub fn threads(&self) -> usize {
        let most = if self.threads == 0 { lanefs_sync::parallel::processors() } else { self.threads };
        most.min(self.mlogs.len()).max(1)
    }

    /// Makes the log of a volume. It is used with fewer mlogs than it was made for if it is small.
    pub fn new(
        devices: Vec<Arc<dyn Device>>,
        superblock: &Superblock,
        segments: SegmentTable,
        slot: &Slot,
        options: &OpenOptions,
    ) -> Log {
        let usable = segments.geometry.usable();
        let wanted = if options.mlogs > 0 { options.mlogs } else { superblock.mlogs as usize };
        let n = space::fitting_mlogs(wanted, usable);
        let small = usable < 96 * n as u32;
        let packed = superblock.has_packed_inodes();
        let lanes = if options.lanes > 0 { options.lanes } else { MAX_LANES };
        let device_count = devices.len();
        let read_only = options.read_only || superblock.read_only();
        let hash = superblock.hash_key;
        debug_assert_eq!(segments.devices(), device_count, "the table is of other devices");
        debug_assert!(device_count > 0, "a volume lies on a device");
        segments.set_reserved_segments(space::segments_held_back(usable, n) * 3 / 5);
        let segments = Arc::new(segments);
        let geometry = &segments.geometry;
        let io = Io::new(devices, options.cache_bytes, read_only).of(superblock);
        Log {
            space: Space::new(usable, geometry.segment_blocks, geometry.copies, n, lanes),
            mlogs: (0..n).map(|i| Mlog::new(i, i % device_count, small).with_packs(packed)).collect(),
            io: io.with_segments(&segments),
            sections: Sections::new(lanes),
            one_log: OneLog::new(),
            volume: superblock.volume,
            secret: hash[0] ^ hash[1].rotate_left(29),
            read_only,
            threads: options.threads,
            mount: AtomicU64::new(slot.mount),
            slot_in_force: CachePadded::new(AtomicU64::new(slot.generation)),
            next_seq: CachePadded::new(AtomicU64::new(slot.next_seq.max(1))),
            checkpoint_number: CachePadded::new(AtomicU64::new(1)),
            epoch: CachePadded::new(AtomicU64::new(slot.folded_epoch)),
            blocks: Default::default(),
            segments,
        }
    }

    /// Has the mlogs take segments of the devices that there are now, by turns.
    pub fn spread_mlogs(&self) {
        let devices = self.segments.devices();
        debug_assert!(devices > 0, "a volume lies on a device");
        self.mlogs.iter().for_each(|m| m.set_device(m.id % devices));
    }

    /// Returns the context of the blocks of a segment with this chain sequence.
    pub fn context(&self, seq: u64) -> Context {
        Context { mount: self.mount.load(Ordering::Relaxed), seq, secret: self.secret }
    }

    /// Returns the birth marks of a block that is written now.
    pub fn stamp(&self, sequence: u64) -> Stamp {
        let v = &self.volume.0;
        Stamp {
            mount: self.mount.load(Ordering::Relaxed),
            epoch: self.epoch.load(Ordering::Relaxed),
            sequence,
            volume: u64::from_le_bytes([v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]]),
        }
    }

    /// Returns an error if nothing may be written: for good, or since a close.
    pub fn check_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(StoreError::OpenedReadOnly);
        }
        // Relaxed: refuses early; who comes too late for it is refused in the section.
        if self.sections.closing.load(Ordering::Relaxed) {
            return Err(StoreError::Closed);
        }
        self.io.check()
    }

    /// Returns the number of blocks of the segments that are free now.
    pub fn free_segment_blocks(&self) -> u64 {
        u64::from(self.segments.free_count()) * u64::from(self.segments.geometry.segment_blocks)
    }

    /// Empties the list of slack, and what the mlogs hold of it, under the maintenance lock: nobody
    /// is given a block of a full segment behind this (`slack`, 4).
    pub fn let_go_of_slack(&self) {
        // First, or an mlog would take more.
        if !self.segments.slack.clear() {
            return;
        }
        self.mlogs.iter().for_each(|m| m.let_go_of_slack(&self.segments));
        debug_assert_eq!(self.segments.slack.blocks(), 0, "the list was made anew meanwhile");
    }

    /// Returns how often the blocks of the tree lie on the devices.
    pub fn metadata_copies(&self) -> u64 {
        u64::from(self.segments.geometry.copies)
    }

    /// Returns the bytes of a segment, and of all of them.
    pub fn segment_bytes(&self) -> (u64, u64) {
        let one = u64::from(self.segments.geometry.segment_blocks) << lanefs_format::BLOCK_SHIFT;
        (one, one * u64::from(self.segments.len()))
    }
}
