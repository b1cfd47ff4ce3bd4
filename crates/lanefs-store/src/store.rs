//! The store: the one door of the layer above. What it promises is in docs/DESIGN.md. What is
//! called here is done in the layers below, which [`crate`] lists.

use crate::api::*;
use crate::device::Device;
use crate::engine::Engine;
use crate::engine::change::Change;
use crate::engine::checkpoint::Seal;
use crate::engine::commit::{EpochWrite, EpochWritten};
use crate::error::{Result, StoreError};
use crate::fsck::audit::{Audit, audit};
use crate::fsck::scrub::{Scrub, ScrubCursor, ScrubStep};
use crate::groups::Groups;
use crate::log::admission::Admitted;
use crate::log::space::{Claimant, parts_of_inode};
use crate::recovery;
use crate::report::StoreReport;
use lanefs_format::{Attrs, Ino};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// An open volume's log-structured store.
pub struct Store {
    pub(crate) engine: Engine,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({})", self.engine.log.volume)
    }
}

impl Store {
    /// Returns whether a device may hold a volume, or belong to one: whether a superblock is found
    /// at its beginning, or where volumes have copies, or it cannot be read.
    pub fn may_be_on(device: &dyn Device) -> bool {
        crate::log::superblocks::may_hold_volume(device)
    }

    /// Makes a new, empty volume on `devices`. Nothing is written if it cannot be: EINVAL.
    pub fn format(devices: &[Arc<dyn Device>], options: &FormatOptions) -> Result<()> {
        recovery::make::format(devices, options)
    }

    /// Returns whether the volume on `devices` was closed and needs no recovery. Reads three blocks
    /// or so.
    pub fn was_closed(devices: Vec<Arc<dyn Device>>) -> Result<bool> {
        recovery::was_closed(devices)
    }

    /// Opens a volume, recovering it first when it was not closed.
    pub fn open(devices: Vec<Arc<dyn Device>>, options: &OpenOptions) -> Result<(Arc<Store>, OpenReport)> {
        let (engine, report) = recovery::open(devices, options)?;
        engine.log.io.keep_reserve();
        Ok((Arc::new(Store { engine }), report))
    }

    // ---- the volume ----

    /// Returns what is fixed or slow to change.
    pub fn info(&self) -> VolumeInfo {
        let g = &self.engine.log.segments.geometry;
        let superblock = self.engine.superblock();
        VolumeInfo {
            uuid: self.engine.log.volume.0,
            label: superblock.label.clone(),
            hash_key: self.engine.hash_key,
            total_blocks: superblock.devices.iter().map(|d| d.blocks + superblock.far_blocks()).sum(),
            segment_blocks: g.segment_blocks,
            segments: u64::from(g.usable()),
            metadata_copies: g.copies,
            mlogs: self.engine.log.mlogs.len(),
            devices: self.engine.log.io.devices().len(),
            mount_generation: self.engine.log.mount.load(Ordering::Relaxed),
            last_epoch: self.engine.log.epoch.load(Ordering::Relaxed),
            last_ts: self.engine.totals.last_ts.load(Ordering::Relaxed),
            next_chunk: self.engine.totals.next_chunk.load(Ordering::Relaxed),
            read_only: self.engine.log.read_only || self.engine.log.io.is_broken(),
        }
    }

    /// Returns the bytes of a segment, and of all of them.
    pub fn segment_bytes(&self) -> (u64, u64) {
        self.engine.log.segment_bytes()
    }

    /// Returns how often the blocks of the tree lie on the devices.
    pub fn metadata_copies(&self) -> u64 {
        self.engine.log.metadata_copies()
    }

    /// Returns whether this volume can keep space for preallocated pages: those made before it was
    /// part of the format cannot.
    pub fn has_preallocation(&self) -> bool {
        self.engine.superblock().has_preallocation()
    }

    /// Gives the volume another name for people, of at most 64 bytes. Durable when it returns;
    /// after a power loss before that it has the old one or the new one.
    ///
    /// # Errors
    /// EINVAL: too long, or with control characters. EROFS, EIO.
    pub fn set_label(&self, label: &str) -> Result<()> {
        Change(&self.engine).set_label(label)
    }

    /// Makes the volume's last device larger: an image file is made `bytes` long; without them all
    /// of the device is used, which was made longer before. The space is there at once. After a
    /// power loss before this returns the volume has the old size or the new one.
    ///
    /// # Errors
    /// EINVAL: it is larger than that, so little more would be of no use, the device is not that
    /// long, or another one than the last was made longer. EROFS; EIO, ENOSPC.
    pub fn grow(&self, bytes: Option<u64>) -> Result<Grown> {
        Change(&self.engine).grow(bytes)
    }

    /// Adds a device to the volume, behind the others, and returns the bytes of all devices before
    /// and now. Its space is used at once. What lies on it is lost. Durable when this returns;
    /// after a power loss before that the volume has the device or not, and opening it says which
    /// if that is not the devices that were given.
    ///
    /// # Errors
    /// EINVAL: it holds a volume, and `force` is not given; it is too small, or a device of the
    /// volume already; or there are as many as there can be. EROFS; EIO, ENOSPC.
    pub fn add_device(&self, device: Arc<dyn Device>, force: bool) -> Result<Grown> {
        Change(&self.engine).add_device(device, force)
    }

    /// Puts another device in the place of number `n`: what lies on it is copied, while others go
    /// on to read and write, and then it is let go of, and says no more that it belongs to one.
    /// `progress` gets how many bytes of how many were copied, when nothing is locked. Durable when
    /// this returns; after a power loss before that the volume is as it was or as it is to be, and
    /// opening it says so if that is not the devices that were given.
    ///
    /// # Errors
    /// EINVAL: there is no such device; the new one is smaller, holds a volume, and `force` is not
    /// given, or is a device of this one; the devices are being changed. EROFS. EIO, ENOSPC: those
    /// of the new device. All is as before then.
    pub fn replace_device(
        &self,
        n: usize,
        device: Arc<dyn Device>,
        force: bool,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Replaced> {
        Change(&self.engine).replace_device(n, device, force, progress)
    }

    /// Makes the last device smaller, an image file `bytes` long, and returns its size before and
    /// now. What lies behind the new end is moved first, while others go on to read and write;
    /// `fold` makes a checkpoint that folds, and is called now and then, when nothing is locked.
    /// After a power loss before this returns the volume has the old size or the new one.
    ///
    /// # Errors
    /// ENOSPC: what lives does not fit; the message has the smallest size that is possible now.
    /// EINVAL: it is not larger than that; the devices are being changed; what lies there cannot be
    /// moved. EROFS; EIO. All is as before then.
    pub fn shrink_device(&self, bytes: u64, fold: &dyn Fn() -> Result<()>) -> Result<Grown> {
        Change(&self.engine).shrink(bytes, fold)
    }

    /// Removes the last device from the volume, as [`Store::shrink_device`] makes it smaller, and
    /// returns the bytes of all devices before and now. When this returns the device is let go of,
    /// and nothing on it says any more that it belongs to a volume.
    ///
    /// # Errors
    /// As [`Store::shrink_device`]. EINVAL: it is the only one.
    pub fn remove_device(&self, fold: &dyn Fn() -> Result<()>) -> Result<Grown> {
        Change(&self.engine).remove_device(fold)
    }

    /// Returns the names of the devices, in order.
    pub fn device_names(&self) -> Vec<String> {
        self.engine.log.io.devices().iter().map(|d| d.name().to_string()).collect()
    }

    // ---- space ----

    /// Returns the number of blocks users can fill when nothing is stored.
    pub fn blocks_for_users(&self) -> u64 {
        self.engine.log.space.total()
    }

    /// Returns how many blocks users can fill, and how many of them are free or promised.
    pub fn space(&self) -> SpaceUsage {
        let later = self.engine.log.space.later();
        let free = self.engine.log.space.free_exact().saturating_add_unsigned(later);
        SpaceUsage {
            total: self.engine.log.space.total(),
            free: free.max(0).unsigned_abs(),
            later: later.min(free.max(0).unsigned_abs()),
            reserved: self.engine.log.space.reserved().max(0) as u64,
            inodes: self.engine.totals.inodes(),
        }
    }

    /// Returns how many blocks are promised and not yet written, and how many are free beside, at
    /// the least: lanes keep what they have at hand. Writes nothing, unless nothing is free.
    pub fn promised_and_free(&self) -> (u64, u64) {
        let space = &self.engine.log.space;
        debug_assert!(space.total() > 0, "a volume for nobody");
        (space.reserved().max(0).unsigned_abs(), space.free_about(0).max(0).unsigned_abs())
    }

    /// Returns the blocks that are promised to root alone: a five hundred and twelfth of what users
    /// can fill, at most 64 MiB.
    pub fn left_to_root(&self) -> u64 {
        self.engine.log.space.left_to_root()
    }

    /// Has `groups` say how many groups of 64 pages side by side, of those that were promised and
    /// are not written yet, may need a node of a map each. Asked where little is free, with locks
    /// of pages held: it may take none.
    pub fn count_groups(&self, groups: Box<dyn Fn() -> u64 + Send + Sync>) {
        self.engine.log.space.count_groups(groups);
    }

    /// Returns whether so many blocks are free for a claimant at this moment. By one load, unless
    /// few are.
    #[inline]
    pub fn has_for(&self, who: Claimant, blocks: u64) -> bool {
        self.engine.log.space.has_for(who, blocks)
    }

    /// Reserves space for `blocks` pages, as root. True means they can always be written. Nothing
    /// is promised while a host is short ([`Store::is_host_short`]).
    pub fn reserve(&self, lane: usize, blocks: u64) -> bool {
        self.reserve_for(lane, blocks, Claimant::Root)
    }

    /// Does the same for a claimant.
    pub fn reserve_for(&self, lane: usize, blocks: u64, who: Claimant) -> bool {
        debug_assert!(i64::try_from(blocks).is_ok(), "{blocks} blocks are more than are counted");
        self.may_promise() && self.engine.log.space.reserve(lane, blocks, who)
    }

    /// Reserves space for `blocks` pages that somebody has accepted already: also while a host is
    /// short.
    pub fn reserve_accepted(&self, lane: usize, blocks: u64) -> bool {
        debug_assert!(i64::try_from(blocks).is_ok(), "{blocks} blocks are more than are counted");
        !self.engine.log.read_only && self.engine.log.space.reserve(lane, blocks, Claimant::Root)
    }

    /// Returns whether the file system that holds a sparse image has refused a write for want of
    /// space, and has none again: then nothing new is to be begun, and what was begun waits.
    #[inline]
    pub fn is_host_short(&self) -> bool {
        self.engine.log.io.host.is_short()
    }

    /// Returns whether a host is short, or has so little left that what is freed is worth a
    /// checkpoint.
    pub fn is_host_low(&self) -> bool {
        (0..self.engine.log.io.devices().len()).any(|d| self.engine.log.io.is_host_low(d))
    }

    /// Looks whether a host that was short has space again, unless that was done a moment ago;
    /// returns whether none is short. The caller holds no lock.
    #[cold]
    pub fn look_for_host_space(&self) -> bool {
        debug_assert!(!self.engine.log.read_only || !self.is_host_short(), "nothing is written");
        self.engine.log.io.look_at_hosts();
        self.engine.log.io.look_now_and_then()
    }

    /// Asks whether so many pages may be written now, for whoever is about to capture them. They,
    /// or the first of them, count as under way as long as the answer lives. `None`: a host has
    /// little space left; the caller lets go of its locks, and waits ([`Store::wait_for_host`]).
    /// `in_seal`: a seal waits for all of these, and uses some of what is kept for such a time.
    #[inline]
    pub fn admit(&self, pages: u64, in_seal: bool) -> Option<Admitted<'_>> {
        self.engine.log.io.admit(pages, in_seal)
    }

    /// Returns whether what [`Store::admit`] is asked for is counted: few pages are admitted at a
    /// time then. Else it lets everything through.
    #[inline]
    pub fn counts_admissions(&self) -> bool {
        self.engine.log.io.counts_admissions()
    }

    /// Returns whether a checkpoint finds the space that it needs in what is kept of a host that is
    /// short. `ends`: blocks of inodes that ended and are not folded.
    pub fn fits_reserve(&self, ends: u64) -> bool {
        self.engine.fits_reserve(ends)
    }

    /// Waits until no host is short, for whoever has much to write and holds no lock; until that
    /// moment at most, if there is one. The seal of a checkpoint, which gives the host its space,
    /// does not wait.
    ///
    /// # Errors
    /// ENOSPC: the moment has come. The store was stopped meanwhile.
    #[inline]
    pub fn wait_for_host(&self, until: Option<Instant>) -> Result<()> {
        if self.is_host_short() && !self.engine.in_checkpoint() {
            self.engine.log.io.wait_for_space(until)
        } else {
            Ok(())
        }
    }

    /// Notes that the volume is about to be closed, which nobody can speed up by deleting files: a
    /// message says so, if that waits for space on a host.
    pub fn about_to_close(&self) {
        self.engine.log.io.host.closing();
    }

    /// Returns whether pages that have a block are to be written over without a promise: little is
    /// free, and nobody waits for a host.
    #[inline]
    pub fn lends(&self) -> bool {
        self.engine.log.space.lends() && self.may_promise()
    }

    /// Returns whether the page has a block, which it gives back when it is written; false also if
    /// that would have to be read.
    pub fn has_block(&self, ino: Ino, page: u64) -> bool {
        self.engine.inodes.has_block(ino, page)
    }

    /// Returns whether the page has no block, and space for one is kept, which it takes when it is
    /// written; false also if its map would have to be read, or nothing is promised now.
    pub fn keeps(&self, ino: Ino, page: u64) -> bool {
        self.may_promise() && self.engine.inodes.keeps(ino, page)
    }

    /// Reserves space for a stored page that is cut or blanked in part: also where nothing is free,
    /// unless many of them wait to be written back.
    pub fn reserve_rewrite(&self, lane: usize) -> bool {
        !self.engine.log.read_only && self.engine.log.space.reserve_rewrite(lane)
    }

    /// Returns whether the maps of pages that are not written back yet have space: pages in so many
    /// groups, each within one node of its file's map. An estimate, by what one line says.
    pub fn has_space_for_maps(&self, groups: u64) -> bool {
        self.engine.log.space.has_space_for_maps(groups)
    }

    /// Gives reserved space back.
    pub fn unreserve(&self, lane: usize, blocks: u64) {
        self.engine.log.space.unreserve(lane, blocks);
    }

    /// Returns the parts of a block that a new inode is to be promised, of
    /// [`crate::PARTS_OF_BLOCK`]: small inodes share blocks. `bytes` are those of its target and
    /// its first attributes.
    pub fn parts_of_inode(&self, is_dir: bool, bytes: usize) -> u64 {
        parts_of_inode(self.engine.inodes.packed, is_dir, bytes)
    }

    /// Reserves space for `nodes` blocks of the tree, with their copies.
    pub fn reserve_nodes(&self, lane: usize, nodes: u64, who: Claimant) -> bool {
        self.reserve_for(lane, nodes * self.engine.log.metadata_copies(), who)
    }

    /// Reserves space for a page where nothing is free, if so much was removed from blocks that
    /// others share.
    #[cold]
    pub fn reserve_last_page(&self, lane: usize) -> bool {
        self.may_promise() && self.engine.log.space.reserve_taken_out(lane, 1)
    }

    /// Returns whether space may be promised to what is new.
    fn may_promise(&self) -> bool {
        !self.engine.log.read_only && !self.is_host_short()
    }

    /// Does the same for a block of the tree, with its copies.
    #[cold]
    pub fn reserve_last_node(&self, lane: usize) -> bool {
        let blocks = self.engine.log.metadata_copies();
        self.may_promise() && self.engine.log.space.reserve_taken_out(lane, blocks)
    }

    /// Gives such space back.
    pub fn unreserve_nodes(&self, lane: usize, nodes: u64) {
        self.engine.log.space.unreserve(lane, nodes * self.engine.log.metadata_copies());
    }

    /// Returns the number of blocks of the segments that are free now.
    pub fn free_segment_blocks(&self) -> u64 {
        self.engine.log.free_segment_blocks()
    }

    /// Returns how many threads large work is worth that others than its callers wait for: no more
    /// than there are processors and mlogs, or [`OpenOptions::threads`].
    pub fn threads(&self) -> usize {
        let threads = self.engine.log.threads();
        debug_assert!(threads > 0, "nobody does the work");
        threads
    }

    /// Returns what a background thread acts on.
    pub fn pressure(&self) -> Pressure {
        self.engine.pressure()
    }

    /// Makes a checkpoint if so many nodes of maps are dirty that what is free would not do for
    /// many more. Called before pages are unmapped, which makes the nodes at the ends of each range
    /// dirty, by whoever holds nothing that a checkpoint needs.
    pub fn watch_nodes(&self) -> Result<()> {
        self.engine.watch_nodes()
    }

    /// Looks at that now and then, and makes a checkpoint. Called before a transaction that goes
    /// with an epoch, by whoever holds nothing that a checkpoint needs; the others do it by
    /// themselves.
    pub fn watch_metadata(&self, lane: usize) -> Result<()> {
        self.engine.watch_metadata(lane)
    }

    // ---- inodes ----

    /// Returns an inode's durable and submitted state; `None` if the store does not know it.
    pub fn load_inode(&self, ino: Ino) -> Result<Option<InodeImage>> {
        self.engine.inodes.image(ino, &self.engine.log.io)
    }

    /// Fills each block of `pages`, from page `first` on; every block is verified. A hole is zeros,
    /// and is marked as one.
    pub fn read_pages(&self, ino: Ino, first: u64, pages: &mut [PageRead<'_>]) -> Result<()> {
        self.engine.read_pages(ino, first, pages)
    }

    /// Returns the first page at or after `page` that holds data.
    pub fn next_data(&self, ino: Ino, page: u64) -> Result<Option<u64>> {
        self.engine.inodes.next_data(ino, page, &self.engine.log.io)
    }

    /// Returns the first page at or after `page` that holds none.
    pub fn next_hole(&self, ino: Ino, page: u64) -> Result<Option<u64>> {
        self.engine.inodes.next_hole(ino, page, &self.engine.log.io)
    }

    /// Returns the folded bucket of directory `dir` that covers `cookie`.
    pub fn load_bucket(&self, dir: Ino, cookie: u64) -> Result<BucketImage> {
        self.engine.inodes.bucket(dir, cookie, &self.engine.log.io)
    }

    /// Returns the state of a chunk of inode numbers in the inode table.
    pub fn chunk_usage(&self, chunk: u64) -> Result<ChunkUsage> {
        self.engine.inodes.table.chunk_usage(chunk, &self.engine.log.io)
    }

    /// Makes holes of pages of `ino`; on disk with the inode's next update. The attributes take
    /// effect with it, but of the size only what makes the file shorter than it was last submitted.
    #[inline]
    pub fn unmap(&self, lane: usize, ino: Ino, pages: Range<u64>, cut: Option<&Cut<'_>>) -> Result<()> {
        self.engine.inodes.unmap(&self.engine.log, lane, ino, pages, cut)
    }

    /// Makes pages of `ino` read as zeros and keeps their space for them, as one step: preallocated
    /// pages that are not written. On disk with the inode's next update, as are the attributes
    /// ([`Store::unmap`]). [`StoreError::NoSpace`], before anything is changed, if some have
    /// neither a block nor space, nor pages between them and what is preallocated (an inode has two
    /// ranges), and there is not as much.
    pub fn zero(&self, lane: usize, ino: Ino, pages: Range<u64>, cut: &Cut<'_>, who: Claimant) -> Result<()> {
        self.engine.inodes.zero(&self.engine.log, lane, ino, pages, cut, who)
    }

    /// Keeps space for these pages, those that have a block excepted; returns for how many more.
    /// [`StoreError::NoSpace`] if there is not as much; of more than 4 GiB some may have been
    /// preallocated before, if others took the rest meanwhile. On disk with the inode's next
    /// update; the attributes are asked for only if the store has none yet.
    pub fn preallocate(
        &self,
        lane: usize,
        ino: Ino,
        pages: Range<u64>,
        attrs: &dyn Fn() -> Attrs,
        who: Claimant,
    ) -> Result<u64> {
        if self.is_host_short() {
            return Err(StoreError::NoSpace);
        }
        self.engine.inodes.preallocate(&self.engine.log, lane, ino, pages, attrs, who)
    }

    /// Returns whether a page has a block or space kept for one: writing it takes nothing from what
    /// is free, but for a while.
    pub fn has_room(&self, ino: Ino, page: u64) -> Result<bool> {
        self.engine.inodes.has_room(ino, page, &self.engine.log.io)
    }

    /// Returns whether the inode has preallocated pages, and space for each of its first `pages`,
    /// and for the next one if any behind these are preallocated: where it is written next there is
    /// space, but for what goes on behind all of these.
    pub fn is_backed(&self, ino: Ino, pages: u64) -> Result<bool> {
        self.engine.inodes.is_backed(ino, pages, &self.engine.log.io)
    }

    /// Returns for how many other pages [`Store::preallocate`] of these would keep space: an inode
    /// has two ranges of preallocated pages at most, and of three two become one.
    pub fn kept_between(&self, ino: Ino, pages: &Range<u64>) -> Result<u64> {
        self.engine.inodes.kept_between(ino, pages, &self.engine.log.io)
    }

    /// Returns how many of these pages have a block, or space kept for one.
    pub fn room_in(&self, ino: Ino, pages: Range<u64>) -> Result<u64> {
        self.engine.inodes.room_in(ino, pages, &self.engine.log.io)
    }

    /// Returns the memory of inodes and inode table, in bytes, about; not that of the cache of node
    /// blocks.
    pub fn memory(&self) -> usize {
        self.engine.inodes.memory()
    }

    /// Returns how much of it a checkpoint has to write before it can leave, about: the inodes that
    /// changed.
    pub fn dirty_memory(&self) -> usize {
        self.engine.inodes.cache.dirty_memory()
    }

    /// Gives up what is clean of inodes and inode table, if they take more memory than
    /// `OpenOptions::memory_bytes`.
    pub fn shrink(&self) {
        self.engine.inodes.shrink();
        self.engine.log.shrink();
    }

    /// Drops the memory of an inode that has nothing unwritten.
    pub fn forget_inode(&self, ino: Ino) {
        self.engine.inodes.cache.forget(ino);
    }

    // ---- transactions, epochs, checkpoints ----

    /// Writes a transaction in one trip; returns when what was promised holds.
    #[inline]
    pub fn submit(&self, tx: Transaction) -> Result<()> {
        self.submit_and(tx, || {})
    }

    /// As [`Store::submit`]; calls `begun` as soon as the store has the transaction, maybe before
    /// its pages are written: what is submitted from then on comes after it. (Again, if a durable
    /// one had no space for its batch and is tried again.)
    #[inline]
    pub fn submit_and(&self, tx: Transaction, begun: impl FnMut()) -> Result<()> {
        self.engine.run_transaction(tx, begun)
    }

    /// Commits an epoch: `parts` are the record groups by lane. Durable when this returns. Epochs
    /// come in order. It does not wait for a checkpoint. After [`StoreError::NoSpace`] nothing of
    /// the epoch is in the log, and it can be committed again.
    pub fn commit_epoch(&self, epoch: u64, parts: Vec<(usize, Vec<u8>)>) -> Result<()> {
        self.engine.commit_epoch(epoch, parts)
    }

    /// Gives an epoch its places, and with it a transaction, whose groups are empty: both are
    /// written by one request and made durable by one flush, which [`EpochWrite::finish`] does.
    /// `parts` are the record groups by lane, those of one lane in their order; what fills half of
    /// its buffer is kept where it lies, the rest is copied. Epochs come in order, so the caller
    /// has a lock of its own, which it may let go of before it writes. `None` if the epoch is
    /// empty: then nothing of the transaction is begun either. It waits neither for space nor for a
    /// checkpoint. After [`StoreError::NoSpace`] nothing was begun, and the epoch can be begun
    /// again.
    pub fn begin_epoch(
        &self,
        epoch: u64,
        parts: &[(usize, Groups)],
        with: Option<&mut Transaction>,
    ) -> Result<Option<EpochWrite<'_>>> {
        self.engine.begin_epoch(epoch, parts, with)
    }

    /// Notes that an epoch is durable, and so are all before it.
    pub fn publish_epoch(&self, written: EpochWritten) {
        self.engine.publish_epoch(written);
    }

    /// Frees space for the commit of an epoch of about so many bytes, if there is little. It may
    /// wait for a checkpoint, so the caller holds nothing that a seal takes. `hard`: a commit has
    /// found no space. ENOSPC: what is committed has to be folded, or there is none to be had.
    pub fn free_space_for_epoch(&self, bytes: u64, hard: bool) -> Result<()> {
        self.engine.free_space_for_epoch(bytes, hard)
    }

    /// Returns whether so much waits for a fold that only a fold gives space.
    pub fn waits_long_for_fold(&self) -> bool {
        self.engine.unfolded.waits_long(&self.engine.log.segments)
    }

    /// Takes note that inodes of so many parts of blocks ([`Store::parts_of_inode`]) that the
    /// groups of `epoch` make were ended by groups of a later epoch: no fold makes them, as long as
    /// it folds both. Both are committed, and no checkpoint was handed the one without the other.
    pub fn cancel_unfolded(&self, epoch: u64, parts: u64) {
        self.engine.unfolded.cancel(&self.engine.log, epoch, parts);
    }

    /// Writes a mark into each log to which nothing was added since the last call: after that,
    /// damage to what it holds cannot be taken for something that never arrived. Called now and
    /// then, it writes nothing while nothing happens.
    pub fn mark_quiet_logs(&self) -> Result<()> {
        self.engine.mark_quiet_logs()
    }

    /// Makes a new root; `seal` seals and commits the epoch and hands over what to fold. One at a
    /// time.
    pub fn checkpoint(&self, seal: impl FnOnce() -> Result<FoldInput>) -> Result<CheckpointDone> {
        self.engine.checkpoint(seal, Seal::Behind)
    }

    /// Makes a new root that has what was committed already, of which `committed` returns a part or
    /// all: nothing is sealed. What is not folded is written again in the log, so this frees less
    /// than [`Store::checkpoint`] does, and more than a checkpoint of the store's own.
    pub fn fold_committed(&self, committed: impl FnOnce() -> Result<FoldInput>) -> Result<CheckpointDone> {
        self.engine.checkpoint(committed, Seal::Before)
    }

    /// Returns the epoch up to which everything is folded in memory, and will be on disk with the
    /// next checkpoint: also what one folded that failed later. It must not be handed over again,
    /// with what came after: changes that take each other back are left out of a fold.
    pub fn folded_epoch(&self) -> u64 {
        // Relaxed: asked in a seal, by the thread that may write it.
        self.engine.totals.folded.load(Ordering::Relaxed)
    }

    /// Moves live blocks until the next checkpoint would leave `target_free_segments` free.
    pub fn clean(&self, target_free_segments: u64) -> Result<CleanReport> {
        self.engine.clean(target_free_segments)
    }

    /// Returns what all rounds of cleaning did since the store was opened.
    pub fn cleaned(&self) -> CleanReport {
        self.engine.maintenance.lock().cleaned
    }

    /// Returns the figures of the volume at this moment, and of what was done since it was opened.
    /// Looks at each segment and waits for nobody.
    pub fn report(&self) -> StoreReport {
        self.engine.report()
    }

    /// Discards what is free in a range on the devices; the range and the answer are in bytes,
    /// counted through all devices in order. `None` if no device can discard.
    pub fn trim(&self, range: Range<u64>) -> Result<Option<u64>> {
        self.engine.log.check_writable()?;
        self.engine.log.trim_free(range)
    }

    // ---- health and the end ----

    /// Compares about `budget` blocks with their sums, from `from` on.
    ///
    /// # Errors
    /// If the store is closed or was stopped. Damage is no error.
    pub fn scrub(&self, from: ScrubCursor, budget: u64) -> Result<ScrubStep> {
        Scrub(&self.engine).scrub(from, budget)
    }

    /// Walks the whole tree after a checkpoint and compares it with the marks. Slow; for tests and
    /// for `fsck`. Only while nothing else changes the store.
    pub fn audit(&self) -> Result<Audit> {
        audit(&self.engine)
    }

    /// Returns the error that made the store read-only, if there was one: then nothing may be
    /// acknowledged any more.
    pub fn healthy(&self) -> Result<()> {
        self.engine.log.io.check()
    }

    /// Returns whether an error made the store read-only.
    pub fn is_broken(&self) -> bool {
        self.engine.log.io.is_broken()
    }

    /// Stops as a crash would: nothing more reaches a device.
    pub fn shutdown(&self) {
        self.engine.log.io.fail(&StoreError::Invalid("it was shut down".into()));
    }

    /// Lets go of the devices, so that others may open them: the volume is closed or was shut down.
    pub fn release(&self) {
        self.engine.log.io.devices().iter().for_each(|d| d.release());
    }

    /// Makes the final checkpoint, with the clean mark. Everything was folded and submitted before.
    pub fn close(&self) -> Result<()> {
        self.engine.close()
    }
}
