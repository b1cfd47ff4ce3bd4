//! The words the layer above speaks with the store: options, transactions, images and reports.

use crate::groups::Groups;
use crate::page_image::PageImage;
use lanefs_format::{Attrs, Block, BucketEntry, Ino};
use std::fmt;

/// Options for making a volume.
#[derive(Clone)]
pub struct FormatOptions {
    /// A name for people, at most 64 bytes.
    pub label: String,
    /// Blocks in a segment: a power of two from 16 to 512. Small volumes get smaller segments by
    /// themselves.
    pub segment_blocks: u32,
    /// Independent logs used at a mount that does not ask for another number, at most 128; 0 for
    /// one per CPU, at most 16. A small volume is used with fewer: see [`FormatOptions::mlogs_on`].
    pub mlogs: u32,
    /// The volume's identity; a random one if none is given.
    pub uuid: Option<[u8; 16]>,
    /// The key of the directory hash; a random one if none is given.
    pub hash_key: Option<[u64; 2]>,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Permission bits of the root directory.
    pub mode: u32,
    /// Times of the root directory, nanoseconds since 1970; the present if none is given.
    pub time: Option<i64>,
    /// The number of copies of the tree's blocks (inodes, maps, directories, tables; not file data)
    /// on the devices: 1, or 2, so that the damage of one block loses nothing.
    pub metadata_copies: u32,
    /// Small inodes share blocks. Versions that do not know it cannot open the volume; without,
    /// each inode takes a block of its own.
    pub packed_inodes: bool,
    /// Overwrite a volume that is already there.
    pub force: bool,
}

/// A word in place of a key in messages: they go where the key must not.
struct Secret;

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl fmt::Debug for FormatOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FormatOptions")
            .field("label", &self.label)
            .field("segment_blocks", &self.segment_blocks)
            .field("mlogs", &self.mlogs)
            .field("uuid", &self.uuid)
            .field("hash_key", &self.hash_key.map(|_| Secret))
            .field("uid", &self.uid)
            .field("gid", &self.gid)
            .field("mode", &self.mode)
            .field("time", &self.time)
            .field("metadata_copies", &self.metadata_copies)
            .field("packed_inodes", &self.packed_inodes)
            .field("force", &self.force)
            .finish()
    }
}

impl Default for FormatOptions {
    fn default() -> Self {
        FormatOptions {
            label: String::new(),
            segment_blocks: 512,
            mlogs: 0,
            uuid: None,
            hash_key: None,
            uid: 0,
            gid: 0,
            mode: 0o755,
            time: None,
            metadata_copies: 1,
            packed_inodes: true,
            force: false,
        }
    }
}

impl FormatOptions {
    /// Returns the default, with a root directory that belongs to the calling process.
    pub fn for_caller() -> FormatOptions {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        FormatOptions { uid, gid, ..FormatOptions::default() }
    }
}

/// Options for opening a volume.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Write nothing at all; recovery, when needed, happens in memory only.
    pub read_only: bool,
    /// mlogs to write to; 0 for the volume's own number.
    pub mlogs: usize,
    /// Bytes of verified node blocks kept in memory.
    pub cache_bytes: usize,
    /// Bytes of inodes and inode table kept in memory while nothing is unwritten of them. What is
    /// unwritten is kept beyond that, and [`Store::memory`](crate::Store::memory) shows when a
    /// checkpoint is due for it.
    pub memory_bytes: usize,
    /// Lanes of the space counter; 0 for as many as there are.
    pub lanes: usize,
    /// Go on where the log shows that a device lost what it had acknowledged. Otherwise that is an
    /// error of opening.
    pub accept_loss: bool,
    /// Threads that check the data of the logs while the volume is opened, and that make a large
    /// fold, of which there are no more than logs. 0: twice the processors, at most 16, for the
    /// check, and the processors for a fold.
    pub threads: usize,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            read_only: false,
            mlogs: 0,
            cache_bytes: 16 << 20,
            memory_bytes: 64 << 20,
            lanes: 0,
            accept_loss: false,
            threads: 0,
        }
    }
}

/// The result of opening a volume: what was found and done.
#[derive(Clone, Debug, Default)]
pub struct OpenReport {
    /// The volume had been closed; nothing was scanned.
    pub clean: bool,
    /// Blocks of the logs looked at.
    pub blocks_scanned: u64,
    /// Valid batches found.
    pub batches: u64,
    /// Batches dropped because their data did not reach the medium.
    pub batches_dropped: u64,
    /// Batches, epochs and checkpoints that were acknowledged, as later batches show, and are not
    /// there.
    pub lost: u64,
    /// The last committed epoch without a gap.
    pub epoch: u64,
    /// Operations (record groups) applied.
    pub groups: u64,
    /// Inode updates replayed.
    pub inode_updates: u64,
    /// Unlinked inodes that were freed.
    pub orphans_freed: u64,
    /// Nanoseconds recovery took.
    pub nanos: u64,
}

/// Facts of an open volume that never change, or slowly.
#[derive(Clone)]
pub struct VolumeInfo {
    /// The volume's identity.
    pub uuid: [u8; 16],
    /// Its name for people.
    pub label: String,
    /// The key of the directory hash.
    pub hash_key: [u64; 2],
    /// Blocks of all devices.
    pub total_blocks: u64,
    /// Blocks of a segment.
    pub segment_blocks: u32,
    /// Segments of all devices.
    pub segments: u64,
    /// The number of copies of the tree's blocks on the devices.
    pub metadata_copies: u32,
    /// mlogs in use.
    pub mlogs: usize,
    /// Devices.
    pub devices: usize,
    /// The number of times the volume was opened for writing.
    pub mount_generation: u64,
    /// The last epoch folded or committed; the first epoch of this mount is the next.
    pub last_epoch: u64,
    /// The highest timestamp on disk.
    pub last_ts: u64,
    /// Inode chunks from this one on have never been used.
    pub next_chunk: u64,
    /// Opened without the right to write.
    pub read_only: bool,
}

impl fmt::Debug for VolumeInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeInfo")
            .field("uuid", &self.uuid)
            .field("label", &self.label)
            .field("hash_key", &Secret)
            .field("total_blocks", &self.total_blocks)
            .field("segment_blocks", &self.segment_blocks)
            .field("segments", &self.segments)
            .field("metadata_copies", &self.metadata_copies)
            .field("mlogs", &self.mlogs)
            .field("devices", &self.devices)
            .field("mount_generation", &self.mount_generation)
            .field("last_epoch", &self.last_epoch)
            .field("last_ts", &self.last_ts)
            .field("next_chunk", &self.next_chunk)
            .field("read_only", &self.read_only)
            .finish()
    }
}

/// The sizes of a volume's last device, or of the only one, that was to grow: the bytes that belong
/// to the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grown {
    /// The size before.
    pub before: u64,
    /// The size now; the same if the device is not longer than that.
    pub after: u64,
}

/// What was done to replace a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// Bytes that were copied.
    pub copied: u64,
    /// Of these what the old device did not give. Reading what lies there fails as before (EIO).
    pub unreadable: u64,
}

/// Space, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceUsage {
    /// Blocks users can fill.
    pub total: u64,
    /// Of these, neither used nor promised.
    pub free: u64,
    /// Of these again, those that nobody is promised before the next checkpoint: it makes durable
    /// what gave them back.
    pub later: u64,
    /// Promised by [`crate::Store::reserve`] and not yet written.
    pub reserved: u64,
    /// Inodes in use.
    pub inodes: u64,
}

/// An inode as the last fold left it, with the updates submitted since.
#[derive(Clone, Debug)]
pub struct InodeImage {
    /// Its attributes.
    pub attrs: Attrs,
    /// Names of it in folded directories; for a directory 2 plus its folded subdirectories.
    pub nlink: u32,
    /// A directory's parent; otherwise where it was made.
    pub parent: Ino,
    /// Pages that are stored, a tail counting as one, and those for which space is kept.
    pub blocks: u64,
    /// Preallocated pages behind its end.
    pub behind: u64,
    /// Preallocated pages that have no block.
    pub unwritten: u64,
    /// Extended attributes, as the layer above encoded them.
    pub xattrs: Vec<u8>,
}

/// One page to be read.
#[derive(Debug)]
pub struct PageRead<'a> {
    /// The buffer for the bytes.
    pub block: &'a mut Block,
    /// Set by the read: nothing is stored here and no space is kept, the bytes are zeros.
    pub hole: bool,
}

/// A folded bucket of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketImage {
    /// The lowest cookie the bucket covers.
    pub low: u64,
    /// The highest cookie it covers, inclusive.
    pub high: u64,
    /// Its entries in cookie order.
    pub entries: Vec<BucketEntry>,
}

/// The state of one chunk of inode numbers in the inode table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkUsage {
    /// Bit n: the chunk's n-th number is in use.
    pub used: u128,
    /// The generation the next (or present) use of each number has.
    pub generations: [u32; 128],
}

/// All that is written in one trip.
#[derive(Debug, Default)]
pub struct Transaction {
    /// The caller's lane: chooses the mlog.
    pub lane: usize,
    /// Return only when all of it survives a crash.
    pub durable: bool,
    /// Record groups (see [`lanefs_format::record`]) that become durable with the inodes.
    pub groups: Vec<u8>,
    /// Inodes and pages.
    pub inodes: Vec<InodeUpdate>,
    /// The caller makes a checkpoint that folds what is committed, and tries again, when it is told
    /// that there is no space.
    pub folds: bool,
}

/// Attributes of an inode that change when pages are taken away from it.
#[derive(Clone, Copy)]
pub struct Cut<'a> {
    /// Its size, if that is what is cut: then the caller keeps all others from changing it. A hole
    /// gives none, since the file may grow and be written back while the hole is made.
    pub size: Option<u64>,
    /// Its mtime and ctime, if they change.
    pub time: Option<i64>,
    /// Its attributes, asked for only if the store has none yet.
    pub attrs: &'a dyn Fn() -> Attrs,
}

/// The time for which what is written is expected to be wanted. It decides which blocks lie
/// together, and nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Life {
    /// Soon overwritten or removed.
    Short = 0,
    /// Nothing is known of it.
    #[default]
    Usual = 1,
    /// It stays.
    Long = 2,
}

impl Life {
    /// All of them, by their numbers.
    pub const ALL: [Life; 3] = [Life::Short, Life::Usual, Life::Long];
}

/// New state of one inode.
#[derive(Debug)]
pub struct InodeUpdate {
    /// Which inode.
    pub ino: Ino,
    /// Its attributes, captured whole.
    pub attrs: Attrs,
    /// All changes of its rights (mode, owner, ACLs, capabilities) are told by RIGHTS in the log:
    /// once a fold has made the inode they stay here as the folds have them, whatever `attrs` and
    /// `xattrs` say, which may be older than the last fold.
    pub rights_logged: bool,
    /// Of the attributes only kind and size count; the others stay as the store has them. Only
    /// for an inode of which an update was submitted before, or that a fold has made.
    pub size_only: bool,
    /// Its extended attributes if they changed.
    pub xattrs: Option<Vec<u8>>,
    /// Dirty pages by page number, ascending. A last page that is short enough may be stored in the
    /// inode block.
    pub pages: Vec<(u64, PageImage)>,
    /// Dirty pages behind these, inside the size, come with later updates: till then the size grows
    /// to the end of these at most, so that it never shows what is not there (SEMANTICS F9).
    pub more: bool,
    /// Blocks reserved for these pages; given back here and what is really used is charged.
    pub reserved: u32,
    /// How long these pages are expected to be wanted.
    pub life: Life,
}

/// The input of a checkpoint's fold.
#[derive(Debug, Default)]
pub struct FoldInput {
    /// Everything up to this epoch is committed and in `groups` or folded already.
    pub epoch: u64,
    /// Buffers of record groups, in any order. A checkpoint that fails forgets them: its caller has
    /// kept them, and hands them to the next.
    pub groups: Vec<Groups>,
}

/// The result of a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct CheckpointDone {
    /// The epoch folded.
    pub epoch: u64,
    /// Inode numbers that may be used again, and the generation their next use has.
    pub freed: Vec<(Ino, u32)>,
    /// Inodes without names that are still in use.
    pub orphans: u64,
}

/// The result of a round of cleaning.
#[derive(Clone, Copy, Debug, Default)]
pub struct CleanReport {
    /// Segments emptied; the next checkpoint frees them.
    pub segments: u64,
    /// Data blocks moved.
    pub moved: u64,
    /// Node blocks marked for rewriting by the next checkpoint.
    pub marked: u64,
}

/// The figures that a background thread acts on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pressure {
    /// Bytes written to the log since the last checkpoint: what a recovery would have to look at.
    pub log_bytes: u64,
    /// Segments free now.
    pub free_segments: u64,
    /// Segments that the next checkpoint will free.
    pub pending_segments: u64,
    /// All segments.
    pub segments: u64,
    /// Below this many free segments they are few: twice what is kept back, about.
    pub low_water: u64,
    /// Below this many free segments, make a checkpoint in the background: `low_water`, or less
    /// where data goes to slack. It frees what died, and finds the slack there is.
    pub checkpoint_below: u64,
    /// Below this many free segments, those counted that the next checkpoint frees, clean before
    /// it: less than `low_water` where data goes to slack, or will behind that checkpoint.
    pub clean_below: u64,
    /// Clean until so many are free, or will be.
    pub clean_to: u64,
    /// Writers are about to clean themselves.
    pub urgent: bool,
}
