//! An open volume: what every operation reaches, and its life from open to close.

use crate::core::{Budget, Core, Journal, memory, space};
use crate::devices;
use crate::error::{Error, Result};
use crate::memfs::MemFs;
use crate::opened::{self, Opened};
use crate::persist::{
    AwaitHandedOver, Persist, background, checkpoint, fold, free, host, service, writeback,
};
use crate::report::{self, Report};
use crate::stat::StatFs;
use crate::{CreateOptions, Cred, Fs, MountOptions};
use lanefs_format::Ino;
use lanefs_format::name_hash::name_hash;
use lanefs_store::device::{Device, FileDevice, MemoryDevice};
use lanefs_store::{Claimant, CleanReport, Grown, OpenReport, Replaced, Store, VolumeInfo};
use lanefs_sync::lane_ids::LaneIds;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;

/// An open volume; cheap to clone. When the last clone and the last [`crate::File`] are gone it is
/// closed cleanly; [`Volume::close`] does the same at once and returns how it went. Calls by inode
/// number are in [`crate::node`]; every call that has a result may answer the errors of [every
/// call](crate::error#every-call).
///
/// After fork(2) the volume stays the parent's: in a child every call is EIO, and what it drops is
/// left alone. It may open other volumes. (vfork and a clone(2) that libc does not know of are not
/// noticed: a child of these must not call.)
#[derive(Clone)]
pub struct Volume(pub(crate) Arc<Opened>);

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").field("info", &self.0.persist.store.info()).finish_non_exhaustive()
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
    /// - ENOENT: there is no such file. EACCES, EROFS and others: those of the system, from
    ///   opening it.
    /// - EINVAL: no LaneFS volume; a device that is missing or belongs to another one.
    /// - EIO, EUCLEAN: a device failed, or what recovery needs is damaged; the message has what to
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
        debug_assert!((1..=lanefs_sync::MAX_LANES).contains(&lanes), "{lanes} lanes");
        debug_assert!(cache >= 512 << 10, "an eighth of the least that is asked for: {cache} are left");
        let (store, report) = Store::open(
            devices,
            &lanefs_store::OpenOptions {
                read_only: options.read_only,
                mlogs: options.mlogs,
                cache_bytes: (cache / 16) as usize,
                memory_bytes: (cache / 8) as usize,
                lanes,
                accept_loss: false,
                threads: match options.threads {
                    0 => usize::from(!options.background),
                    n => n,
                },
            },
        )?;
        let info = store.info();
        let pages = match options.frames {
            0 => cache / 2,
            n => (n as u64).saturating_mul(lanefs_format::BLOCK_SIZE as u64),
        };
        let memfs = MemFs::new(lanes, pages, info.hash_key)?;
        let journal = Journal::new(LaneIds::new(lanes), &info, &options);
        let budget = Budget::new(store.space().total, cache / 16 * 5);
        let core = Core::new(store, options, memfs, journal, budget);
        let persist = Arc::new(Persist::new(core, report, info.segment_blocks));
        service::serve(&persist);
        if !persist.options.read_only {
            fold::find_first_numbers(&persist);
        }
        background::start_background(&persist)?;
        debug_assert_eq!(persist.journal.lanes.len(), lanes, "the lanes are those of the store");
        let anchors = opened::anchors(&persist, lanes);
        Ok(Volume(Arc::new(Opened { persist, anchors })))
    }

    /// Makes a volume in memory, its root owned by the calling process, gone when it is closed, of
    /// `bytes` bytes with all that it needs for itself.
    ///
    /// # Errors
    /// EINVAL: not a multiple of 4096, or too small. ENOMEM, EAGAIN: as [`Volume::open`].
    pub fn in_memory(bytes: u64) -> Result<Volume> {
        let dev: Arc<dyn Device> = Arc::new(MemoryDevice::new(bytes)?);
        CreateOptions::new().format(std::slice::from_ref(&dev))?;
        Volume::open_devices(vec![dev], &MountOptions::default())
    }

    /// Returns the bytes of memory that inodes, names, logged changes and the store's inodes take,
    /// about. File pages are not in it: they have a share of the budget of their own, which is
    /// taken when the volume is opened.
    pub fn memory(&self) -> u64 {
        memory::meta_bytes(&self.0.persist)
    }

    /// Returns the volume as this credential may see it.
    pub fn as_user(&self, cred: Cred) -> Fs {
        Fs::new(self.clone(), cred)
    }

    /// Returns the volume as the calling process may see it.
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
        let persist = &self.0.persist;
        persist.check_alive()?;
        persist.promised(writeback::sync_all(persist))
    }

    /// Returns sizes and counts, in blocks of 4096 bytes. EIO once the volume is closed. What was
    /// removed and nobody has open counts as free: if that is much, a checkpoint is made first.
    pub fn statfs(&self) -> Result<StatFs> {
        let persist = &self.0.persist;
        persist.check_alive()?;
        if let Err(e) = free::free_removed(persist) {
            // What cannot be freed is not free, and does not count as that.
            tracing::debug!("freeing what was removed: {e}");
        }
        let s = persist.store.space();
        let id = persist.store.info().uuid;
        let fsid = u64::from_le_bytes([id[0], id[1], id[2], id[3], id[4], id[5], id[6], id[7]]);
        Ok(StatFs {
            blocks: s.total,
            free: s.free,
            available: s.free.saturating_sub(persist.store.left_to_root()),
            files: s.inodes.saturating_add(s.free),
            files_free: s.free,
            name_max: lanefs_format::NAME_MAX as u32,
            fsid,
        })
    }

    /// Returns the bytes that are free for users at this moment, while what was removed is not all
    /// given back: for a caller that looks often. EIO once the volume is closed.
    pub fn free_now(&self) -> Result<u64> {
        let persist = &self.0.persist;
        persist.check_alive()?;
        if persist.store.is_host_short() {
            return Ok(0);
        }
        let space = persist.store.space();
        let free = (space.free - space.later).saturating_sub(persist.store.left_to_root());
        Ok(free * lanefs_format::BLOCK_SIZE as u64)
    }

    /// Returns whether users may fill so many bytes more at this moment, while what was removed is
    /// not all given back. By one load, unless few are free.
    #[inline]
    pub fn has_for_users(&self, bytes: u64) -> bool {
        self.0.persist.store.has_for(Claimant::User, bytes.div_ceil(lanefs_format::BLOCK_SIZE as u64))
    }

    /// Returns whether there is space for so many bytes more at this moment, of what users may fill
    /// or of all (`for_root`); also after what was deleted was given back, which may take long. It
    /// is kept for nobody. True once the volume is closed: then calls fail.
    pub fn has_space(&self, bytes: u64, for_root: bool) -> bool {
        let persist = &self.0.persist;
        let blocks = bytes.div_ceil(lanefs_format::BLOCK_SIZE as u64);
        debug_assert!(blocks >= bytes / lanefs_format::BLOCK_SIZE as u64, "{blocks} hold {bytes} bytes");
        let who = if for_root { Claimant::Root } else { Claimant::User };
        let fits = || {
            let lane = persist.journal.lanes.mine();
            let fits = persist.store.reserve_for(lane, blocks, who);
            if fits {
                persist.store.unreserve(lane, blocks);
            }
            fits
        };
        if persist.check_alive().is_err() || fits() {
            return true;
        }
        let mut tries = 0;
        loop {
            if space::free_space(persist) && fits() {
                return true;
            }
            tries += 1;
            if !space::comes_back(persist, tries) {
                return false;
            }
        }
    }

    /// Makes the volume larger while it is used, and returns the size in bytes of its last device
    /// before and now: an image file is made `bytes` long; without them all of the device is used,
    /// which was made longer before. The space is there when this returns, durably; after a power
    /// loss before that the volume has the old size or the new one.
    ///
    /// # Errors
    /// - EINVAL: the device is larger than that, so little more adds nothing, the device is not
    ///   that long, or another one than the last was made longer. The message has which.
    /// - EROFS where it was opened for reading only; EIO, ENOSPC: those of the device.
    pub fn grow(&self, bytes: Option<u64>) -> Result<Grown> {
        let persist = &self.0.persist;
        persist.check_alive()?;
        let grown = persist.promised(persist.store.grow(bytes).map_err(Error::from))?;
        debug_assert!(grown.before <= grown.after, "it is not made smaller: {grown:?}");
        Ok(grown)
    }

    /// Does as [`Volume::grow`] if `image` is the volume's last device, or none of them as far as
    /// that is known.
    ///
    /// # Errors
    /// EINVAL: it is another one; the message names the one that can grow. And those of
    /// [`Volume::grow`].
    pub fn grow_device(&self, image: &Path, bytes: Option<u64>) -> Result<Grown> {
        let names = self.0.persist.store.device_names();
        match devices::place_of(image, &names) {
            Some(n) if n + 1 < names.len() => Err(devices::not_the_last(image, &names, "grow")),
            _ => self.grow(bytes),
        }
    }

    /// Makes the volume smaller while it is used, and returns the size in bytes of its last device
    /// before and now: an image file is cut off there. What lies behind is moved first. Durable
    /// when it returns; after a power loss before that the volume has the old size or the new one.
    ///
    /// # Errors
    /// - ENOSPC: what the volume holds does not fit; the message has the smallest size that is
    ///   possible.
    /// - EINVAL: it is not larger than that; its devices are being changed by another call; what
    ///   lies there cannot be moved.
    /// - EROFS where it was opened for reading only; EIO: those of the device.
    pub fn shrink(&self, bytes: u64) -> Result<Grown> {
        let persist = &self.0.persist;
        persist.check_alive()?;
        devices::before_less(persist);
        let done = persist.store.shrink_device(bytes, &devices::fold(persist)).map_err(Error::from);
        let done = persist.promised(done)?;
        debug_assert!(done.after < done.before, "it is made smaller: {done:?}");
        Ok(done)
    }

    /// Adds an image file or a block device to the volume while it is used, behind its others, and
    /// returns the bytes of all devices before and now. What it holds is lost. Its space is there
    /// when this returns, durably. From then on the volume is opened with it too; after a power
    /// loss before that with it or without, and opening says which if that is not what was given.
    ///
    /// # Errors
    /// - EINVAL: it holds a volume, and `force` is not given; it is too small; there are as many
    ///   devices as there can be.
    /// - EBUSY: somebody has it open. ENOENT, EACCES and others: those of the system, from opening
    ///   it.
    /// - EROFS where the volume was opened for reading only; EIO, ENOSPC: those of the device.
    pub fn add_device(&self, image: &Path, force: bool) -> Result<Grown> {
        self.0.persist.check_alive()?;
        self.0.persist.writable()?;
        self.add_open_device(Arc::new(FileDevice::open(image, false)?), force)
    }

    /// Does the same with a device that the caller has opened. Errors as [`Volume::add_device`].
    pub fn add_open_device(&self, device: Arc<dyn Device>, force: bool) -> Result<Grown> {
        let persist = &self.0.persist;
        persist.check_alive()?;
        persist.writable()?;
        persist.promised(persist.store.add_device(device, force).map_err(Error::from))
    }

    /// Removes the volume's last device while it is used, and returns the bytes of all devices
    /// before and now. What lies on it is moved first. Durable when it returns; then the device is
    /// let go of, and says no more that it belongs to a volume. After a power loss before that the
    /// volume has it or not, and opening says which if that is not what was given.
    ///
    /// # Errors
    /// - EINVAL: it is not the last device, or the only one; the message says which can be removed.
    ///   And those of [`Volume::shrink`].
    pub fn remove_device(&self, image: &Path) -> Result<Grown> {
        let persist = &self.0.persist;
        persist.check_alive()?;
        let names = persist.store.device_names();
        if devices::place_of(image, &names).is_none_or(|n| n + 1 < names.len()) {
            return Err(devices::not_the_last(image, &names, "be removed"));
        }
        devices::before_less(persist);
        persist.promised(persist.store.remove_device(&devices::fold(persist)).map_err(Error::from))
    }

    /// Puts an image file or a block device in the place of one of the volume's devices while it is
    /// used. What lies on that is copied; then it is let go of, and says no more that it belongs to
    /// a volume. What `new` holds is lost. From then on the volume is opened with it; what it has
    /// more is not used, but [`Volume::grow`] takes it if it is the last one. Durable when it
    /// returns; after a power loss before that the volume lies on the one or on the other, and
    /// opening says so if that is not what was given. `progress` gets how many bytes of how many
    /// were copied.
    ///
    /// What cannot be read of the old device is counted, and reading what lies there fails as
    /// before (EIO); that of a tree that is there twice is healed.
    ///
    /// # Errors
    /// - EINVAL: `image` is no device of the volume; `new` is smaller than it, or holds a volume
    ///   and `force` is not given; the devices are being changed by another call.
    /// - EBUSY: somebody has `new` open. ENOENT, EACCES and others: those of the system, from
    ///   opening it.
    /// - EROFS where the volume was opened for reading only; EIO, ENOSPC: those of `new`. All is as
    ///   before then.
    pub fn replace_device(
        &self,
        image: &Path,
        new: &Path,
        force: bool,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Replaced> {
        self.0.persist.check_alive()?;
        self.0.persist.writable()?;
        self.must_have_device(image)?;
        self.replace_with_open_device(image, Arc::new(FileDevice::open(new, false)?), force, progress)
    }

    /// Checks that this image file or block device is one of the volume's.
    ///
    /// # Errors
    /// EINVAL where it is not; the message says which the volume has.
    pub fn must_have_device(&self, image: &Path) -> Result<()> {
        let names = self.device_names();
        debug_assert!(!names.is_empty(), "a volume without a device");
        devices::must_be_of(image, &names).map(drop)
    }

    /// Does the same as [`Volume::replace_device`] with a device that the caller has opened, with
    /// the same errors.
    pub fn replace_with_open_device(
        &self,
        image: &Path,
        device: Arc<dyn Device>,
        force: bool,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Replaced> {
        let persist = &self.0.persist;
        persist.check_alive()?;
        persist.writable()?;
        let n = devices::must_be_of(image, &persist.store.device_names())?;
        // One that panics is not asked again, and its caller gets that when the devices are as they
        // should be.
        let panicked = Cell::new(None);
        let told = |done, of| {
            let was = panicked.take();
            panicked.set(was.or_else(|| catch_unwind(AssertUnwindSafe(|| progress(done, of))).err()));
        };
        let done = persist.store.replace_device(n, device, force, &told).map_err(Error::from);
        if let Some(panic) = panicked.take() {
            resume_unwind(panic);
        }
        let done = persist.promised(done)?;
        debug_assert!(done.unreadable <= done.copied, "more is lost than there was: {done:?}");
        Ok(done)
    }

    /// Returns the names of the volume's devices, in order.
    pub fn device_names(&self) -> Vec<String> {
        self.0.persist.store.device_names()
    }

    /// Gives the volume another name for people, of at most 64 bytes; durable when this returns.
    ///
    /// # Errors
    /// EINVAL: too long, or with control characters. EROFS where the volume was opened for reading
    /// only; EIO.
    pub fn set_label(&self, label: &str) -> Result<()> {
        let persist = &self.0.persist;
        persist.check_alive()?;
        persist.promised(persist.store.set_label(label).map_err(Error::from))
    }

    /// Returns what is fixed or slow to change of the volume; also once it is closed.
    pub fn info(&self) -> VolumeInfo {
        self.0.persist.store.info()
    }

    /// Returns what opening the volume found and did.
    pub fn open_report(&self) -> &OpenReport {
        &self.0.persist.report
    }

    /// Does one round of background work: reaps, writes back what is old, commits, makes a
    /// checkpoint and cleans, as needed. For a caller that opened the volume without
    /// [`MountOptions::background`]. Errors as [`Volume::sync`].
    pub fn tick(&self) -> Result<()> {
        let persist = &self.0.persist;
        persist.check_alive()?;
        persist.promised(background::tick(persist, true))
    }

    /// Makes a checkpoint now: all operations on names that returned before, and what was written
    /// back, are durable when it returns, and recovery begins there. Dirty content is not written:
    /// that is [`Volume::sync`].
    ///
    /// # Errors
    /// As [`Volume::sync`]; EROFS where the volume was opened for reading only.
    pub fn checkpoint(&self) -> Result<()> {
        let persist = &self.0.persist;
        persist.check_alive()?;
        persist.promised(host::when_there_is_space(persist, || checkpoint::checkpoint(persist)).map(drop))
    }

    /// Gives the devices back what is free: holes are punched into images, and solid state disks
    /// may use the blocks. After a checkpoint, so that what was removed before counts as free.
    /// `range` is in bytes, counted through all devices in order; only what lies in it whole, by
    /// segments, is given back. Returns how many bytes were.
    ///
    /// # Errors
    /// - EOPNOTSUPP: no device of the volume can discard.
    /// - EINVAL: the range begins behind the last segment or is shorter than a block.
    /// - EROFS: the volume was opened for reading only. And those of [`Volume::checkpoint`].
    pub fn trim(&self, range: std::ops::Range<u64>) -> Result<u64> {
        let persist = &self.0.persist;
        persist.check_alive()?;
        persist.writable()?;
        let (_, all) = persist.store.segment_bytes();
        if range.start >= all || range.end.saturating_sub(range.start) < lanefs_format::BLOCK_SIZE as u64 {
            return Err(Error::Posix(libc::EINVAL));
        }
        self.checkpoint()?;
        persist.store.trim(range)?.ok_or(Error::Posix(libc::EOPNOTSUPP))
    }

    /// Returns the bytes of a segment, the least that is discarded at once.
    pub fn segment_bytes(&self) -> u64 {
        self.0.persist.store.segment_bytes().0
    }

    /// Returns what the cleaner did since the volume was opened.
    pub fn cleaned(&self) -> CleanReport {
        self.0.persist.store.cleaned()
    }

    /// Returns the figures of the volume at this moment, and of what was done since it was opened:
    /// space, memory, segments, logs, what was written and why. No call counts anything for it.
    /// EIO once the volume is closed.
    pub fn report(&self) -> Result<Report> {
        let persist = &self.0.persist;
        persist.check_alive()?;
        Ok(report::report(persist))
    }

    /// Stops the volume as a crash would: nothing more reaches the device, every call fails with
    /// EIO. What was durable is found when it is opened again.
    pub fn shutdown(&self) {
        if self.0.persist.is_inherited() {
            return;
        }
        self.0.persist.stop();
        self.0.persist.store.shutdown();
    }

    /// Returns whether something waits for space on the host of a sparse image: the file system
    /// that holds it is full, and writes that need space are refused.
    pub fn waits_for_host(&self) -> bool {
        self.0.persist.store.is_host_short()
    }

    /// Returns what a front end puts into a file handle beside the number of an inode: another one
    /// for each use of the number (but for one in 2^32), the same as long as the file exists. A use
    /// that a crash took, with its generation, is another one than that which comes then: the time
    /// of its making goes in. From the handles of other files it cannot be told, so that who may
    /// not look a file up cannot make its handle either: it is a keyed hash, by the secret of the
    /// volume.
    pub fn handle_generation(&self, stat: &crate::Stat) -> u32 {
        debug_assert!(stat.ino.0 != 0, "a handle of no inode");
        // No name of a directory, whose hashes readers of listings see: none has a slash.
        let mut bytes = [b'/'; 21];
        bytes[1..9].copy_from_slice(&stat.ino.0.to_le_bytes());
        bytes[9..13].copy_from_slice(&stat.generation.to_le_bytes());
        bytes[13..].copy_from_slice(&stat.btime.to_le_bytes());
        (name_hash(self.0.persist.memfs.hash_key, &bytes) >> 24) as u32
    }

    /// Keeps inodes for front ends that hand out inode numbers: an inode without a name and without
    /// an open handle is not freed while `keeps` returns true for it, or panics. Asked between
    /// reaping rounds, never while a caller waits; `None` keeps nothing. After a crash nobody knows
    /// such inodes any more, and recovery frees them.
    pub fn keep_unnamed(&self, keeps: Option<Box<dyn Fn(Ino) -> bool + Send + Sync>>) {
        let persist = &self.0.persist;
        let mut keeper = persist.keeper.lock();
        persist.set_known_outside(keeps.is_some());
        *keeper = keeps;
    }

    /// Has the background count content of these inodes as half a minute older than it is: for
    /// front ends whose kernel gathers writes ([`crate::File::write_back_at`]), and hands over what
    /// a file has that is still open when it has lain so long. With the default
    /// [`MountOptions::dirty_expire`] it is written within [`MountOptions::commit_interval`].
    /// `open` names the files that are open for writing; it is asked between rounds, never while a
    /// caller waits. `None` ends this.
    pub fn write_gathered(&self, open: Option<Box<dyn Fn() -> Vec<Ino> + Send + Sync>>) {
        *self.0.persist.gathered.lock() = open;
    }

    /// Has whoever makes a file durable wait for writes that are still being handed over: for front
    /// ends whose kernel hands a growing file over in several requests at a time, which end in any
    /// order ([`crate::File::write_back_at`]). `wait` gets ranges inside the file that no write has
    /// reached yet, and returns when all that was written to them before the call has been handed
    /// over; what is missing of them then is a hole that was left on purpose. It is called with no
    /// lock held, also by threads that commit for others, so it has to end; one that panics has
    /// ended. `None`: from then on such a range is a hole 10 ms after it came.
    pub fn await_handed_over(&self, wait: Option<AwaitHandedOver>) {
        *self.0.persist.handed_over.lock() = wait;
    }

    /// Syncs, writes the final checkpoint with the clean mark and releases the devices. Later calls
    /// fail with EIO, but another close does nothing. All that returned before is durable when this
    /// returns. While the host of a sparse image has no space it waits; [`Volume::shutdown`] ends
    /// that, as a crash would.
    ///
    /// # Errors
    /// EIO, ENOSPC: as [`Volume::sync`]. The volume is closed all the same, as by a crash: what was
    /// synced is recovered when it is opened again.
    pub fn close(&self) -> Result<()> {
        let persist = &self.0.persist;
        persist.promised(service::close(persist))
    }
}

/// Returns a quarter of the memory that this process may use: the machine's, or its control
/// group's.
fn default_cache() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = info.totalram * u64::from(info.mem_unit);
    debug_assert!(machine > 0, "this runs in some memory");
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let limit = memory_limit(&read("/proc/self/cgroup").unwrap_or_default(), read);
    match limit.filter(|limit| *limit < machine) {
        // Where little is allowed what else a process takes counts, too.
        Some(limit) => (limit / 4).max(8 << 20),
        None => (machine / 4).max(64 << 20),
    }
}

/// Returns the least memory that the control groups allow which /proc/self/cgroup names, and those
/// above them. `read` reads a file.
fn memory_limit(groups: &str, read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let limits = groups.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (controllers, path) = (fields.nth(1).unwrap_or(""), fields.next().unwrap_or(""));
        // Version 2 has one line, without controllers; of version 1 each hierarchy has a line.
        let (base, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            c if c.split(',').any(|c| c == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => ("", ""),
        };
        let above = std::path::Path::new(path).ancestors().filter(|_| !base.is_empty());
        let of = |group: &std::path::Path| {
            let group = group.to_str()?.trim_end_matches('/');
            read(&format!("{base}{group}/{file}"))?.trim().parse::<u64>().ok()
        };
        debug_assert_eq!(base.is_empty(), file.is_empty(), "a hierarchy and its file");
        above.filter_map(of).collect::<Vec<_>>()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::memory_limit;

    #[test]
    fn the_memory_that_control_groups_allow_is_known() {
        let files = [
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "1000\n"),
            ("/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "900\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        let read = |path: &str| files.iter().find(|f| f.0 == path).map(|f| f.1.to_string());
        assert_eq!(memory_limit("0::/a/b\n", read), Some(1000));
        assert_eq!(memory_limit("5:cpu,memory:/c\n4:pids:/a\n", read), Some(900));
        assert_eq!(memory_limit("5:memory:/\n0::/x\n", read), Some(9_223_372_036_854_771_712));
        assert_eq!(memory_limit("4:pids:/a\n", read), None);
    }
}
