//! Image files and block devices.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use smallvec::SmallVec;

use super::lock::ImageLock;
use super::ring::{self, Op};
use super::{Device, Host, ReadReq, WriteReq, check_range, io_error};
use crate::error::{Result, StoreError};
use lanefs_format::{BLOCK_SIZE, Block};
use lanefs_sync::fork::Process;

/// `BLKGETSIZE64`: the size of a block device in bytes.
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272u32 as libc::Ioctl;
/// `BLKDISCARD`: discards a range of a block device.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// The ways in which a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileOptions {
    /// Shares the image with other readers and never writes.
    pub read_only: bool,
    /// Goes past the page cache where the file system can.
    pub direct: bool,
    /// Uses io_uring where the kernel can.
    pub io_uring: bool,
    /// Keeps the kernel from mounting a block device while it is open. Without it the device must
    /// be in nobody's use when it is opened, and the lock keeps out who asks for it; the kernel may
    /// mount it then, which keeps out the others.
    pub exclusive: bool,
}

impl Default for FileOptions {
    /// Returns the fastest ways; the environment may forbid them for tests: `LANEFS_IO_URING=0`,
    /// `LANEFS_O_DIRECT=0`.
    fn default() -> FileOptions {
        let on = |name| std::env::var_os(name).is_none_or(|v| v != "0");
        let (direct, io_uring) = (on("LANEFS_O_DIRECT"), on("LANEFS_IO_URING"));
        FileOptions { read_only: false, direct, io_uring, exclusive: true }
    }
}

/// An image file or a block device, locked against other users for as long as it lives.
///
/// A write of the list is one trip: all requests are given to the kernel at once and waited for at
/// once.
#[derive(Debug)]
pub struct FileDevice {
    // Declared before the lock, so closed before the lock goes.
    file: OwnedFd,
    lock: ImageLock,
    name: String,
    /// Bytes. Written by [`Device::lengthen`] and [`Device::shorten`] alone. Relaxed: who was given
    /// an offset behind the old end got it from somebody who saw the new one.
    size: AtomicU64,
    block_device: bool,
    /// All of the image had blocks of the file system under it when it was opened. They are kept:
    /// who gave them wants no holes that each write to them has to fill again.
    full: bool,
    read_only: bool,
    direct: bool,
    io_uring: bool,
    /// Requests whose memory was not aligned and had to be copied. Only misuse writes here.
    /// Relaxed: a count that orders nothing.
    bounced: AtomicU64,
    /// Who opened it.
    process: Process,
}

impl FileDevice {
    /// Opens an existing image file or block device.
    pub fn open(path: impl AsRef<Path>, read_only: bool) -> Result<FileDevice> {
        FileDevice::open_with(path, FileOptions { read_only, ..FileOptions::default() })
    }

    /// Opens an existing image file or block device in a chosen way.
    pub fn open_with(path: impl AsRef<Path>, options: FileOptions) -> Result<FileDevice> {
        let path = path.as_ref();
        FileDevice::open_as(path, path.display().to_string(), options)
    }

    /// Does so with another name in messages.
    pub(super) fn open_as(path: &Path, name: String, options: FileOptions) -> Result<FileDevice> {
        let no = |why: String| StoreError::NotAVolume { device: name.clone(), why };
        let stat = rustix::fs::stat(path).map_err(|e| refused(&name, e))?;
        let block_device = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => false,
            FileType::BlockDevice => true,
            _ => return Err(no("neither a file nor a block device; name an image".into())),
        };
        let (file, direct) = open_descriptor(path, block_device, options).map_err(|e| match e {
            Errno::BUSY if block_device => ImageLock::in_use(&name, &stat),
            e => refused(&name, e),
        })?;
        let lock = ImageLock::take(file.as_fd(), &name, options.read_only)?;
        if !block_device && let Some(other) = attached_as(&stat, options.read_only) {
            return Err(no(format!(
                "attached as {other}, which others may write to; name that instead, or detach it: `losetup -d {other}`"
            )));
        }
        if block_device {
            nobody_has_what_is_behind(&stat, options.read_only)?;
            if !options.read_only && is_read_only(&stat) {
                return Err(refused(&name, Errno::ROFS));
            }
        }
        let size = size_of_medium(&file, block_device)
            .map_err(|e| io_error(&name, "asking for the size", 0, e.raw_os_error(), &e.to_string()))?;
        if size == 0 {
            return Err(StoreError::NoImage { device: name, why: "empty", errno: libc::EINVAL });
        }
        if size < BLOCK_SIZE as u64 {
            return Err(no(format!("{size} bytes are not enough for a volume; name another image")));
        }
        if !block_device && !options.read_only {
            may_be_written_to(&name, size)?;
        }
        let size = size - size % BLOCK_SIZE as u64;
        let mut d = FileDevice {
            io_uring: options.io_uring && !is_without_rings(&file) && ring::available(),
            file,
            lock,
            name,
            size: AtomicU64::new(size),
            block_device,
            full: !block_device && (stat.st_blocks as u64).saturating_mul(512) >= stat.st_size as u64,
            read_only: options.read_only,
            direct,
            bounced: AtomicU64::new(0),
            process: Process::current(),
        };
        // Some file systems take O_DIRECT and then refuse the I/O, or want more alignment than a
        // block.
        if d.direct && d.probe() == Err(libc::EINVAL) {
            let flags = rustix::fs::fcntl_getfl(&d.file)
                .and_then(|f| rustix::fs::fcntl_setfl(&d.file, f.difference(OFlags::DIRECT)));
            flags.map_err(|e| io_error(&d.name, "open", 0, e.raw_os_error(), &e.to_string()))?;
            d.direct = false;
        }
        debug_assert!(d.size() > 0 && d.size().is_multiple_of(BLOCK_SIZE as u64), "{} bytes", d.size());
        debug_assert_eq!(d.lock.is_shared(), d.read_only, "who writes has the image alone");
        Ok(d)
    }

    /// Returns whether this is the file that the system describes so, by whichever name: the same
    /// inode, or the same block device.
    pub fn is_described_by(&self, its: &rustix::fs::Statx) -> bool {
        let Ok(mine) = rustix::fs::fstat(&self.file) else { return false };
        let is = |number: u64, (major, minor): (u32, u32)| {
            (rustix::fs::major(number), rustix::fs::minor(number)) == (major, minor)
        };
        let kind = |mode: u32| FileType::from_raw_mode(mode);
        debug_assert!(matches!(kind(mine.st_mode), FileType::RegularFile | FileType::BlockDevice));
        if kind(mine.st_mode) != kind(its.stx_mode.into()) {
            return false;
        }
        match self.block_device {
            true => is(mine.st_rdev, (its.stx_rdev_major, its.stx_rdev_minor)),
            false => mine.st_ino == its.stx_ino && is(mine.st_dev, (its.stx_dev_major, its.stx_dev_minor)),
        }
    }

    /// Returns whether I/O goes past the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }
    /// Returns whether I/O goes through io_uring.
    pub fn uses_io_uring(&self) -> bool {
        self.io_uring
    }
    /// Returns how many requests had to be copied since their memory was not aligned; 0 if all
    /// callers do well.
    pub fn bounced(&self) -> u64 {
        self.bounced.load(Ordering::Relaxed) // see the field
    }
    /// Returns the lock that keeps others away.
    pub fn lock(&self) -> &ImageLock {
        &self.lock
    }

    fn probe(&self) -> std::result::Result<(), i32> {
        let mut b = Block::zeroed();
        let mut op = [Op::read(0, &mut b.0)];
        // SAFETY: `b` is exclusively borrowed by the op alone and outlives the call.
        unsafe { ring::run_sync(self.file.as_raw_fd(), &mut op) };
        if op[0].errno == 0 { Ok(()) } else { Err(op[0].errno) }
    }

    /// Performs all and answers with the first error.
    ///
    /// # Safety
    /// The memory that the ops were made of is still borrowed: exclusively for reads.
    unsafe fn run(&self, what: &'static str, ops: &mut [Op]) -> Result<()> {
        self.refuse_children(what)?;
        debug_assert!(!self.direct || ops.iter().all(Op::is_aligned), "O_DIRECT takes no such request");
        lanefs_sync::about_to_wait();
        let fd = self.file.as_raw_fd();
        // SAFETY: the caller's promise is passed on.
        unsafe {
            if ring::is_one(ops) {
                ring::run_one(fd, ops);
            } else if !(self.io_uring && ring::run(fd, ops)) {
                ring::run_in_turn(fd, ops);
            }
        }
        debug_assert!(ops.iter().all(Op::is_over), "an op has neither moved all its bytes nor failed");
        match ops.iter().find(|o| o.errno != 0) {
            None => Ok(()),
            Some(o) => Err(self.error(what, o.offset, Errno::from_raw_os_error(o.errno))),
        }
    }

    /// Refuses what the child of a fork asks for: it would write over what its parent has written
    /// since.
    fn refuse_children(&self, what: &'static str) -> Result<()> {
        let why = "it was opened before a fork, and is the parent's; the child can open other volumes";
        let refused = || Err(io_error(&self.name, what, 0, libc::EIO, why));
        if self.process.is_current() { Ok(()) } else { refused() }
    }

    fn error(&self, what: &'static str, offset: u64, e: Errno) -> StoreError {
        // Behind its end a block device has no space, says the kernel. No host is full for that,
        // and waiting helps nobody.
        let e = if e == Errno::NOSPC && self.has_become_smaller() { Errno::NODATA } else { e };
        let text = match e {
            Errno::NODATA if self.block_device => "the device ends here: it has become smaller".to_string(),
            Errno::NODATA => "the device ends here: it was truncated".to_string(),
            Errno::FBIG => format!("beyond what this process may write; {LIMIT}"),
            e => e.to_string(),
        };
        io_error(&self.name, what, offset, e.raw_os_error(), &text)
    }

    /// Returns whether this is a block device that is not as long as it was.
    fn has_become_smaller(&self) -> bool {
        self.block_device && size_of_medium(&self.file, true).is_ok_and(|now| now < self.size())
    }

    fn is_misaligned(&self, data: &[u8]) -> bool {
        let bad = self.direct && !data.as_ptr().addr().is_multiple_of(BLOCK_SIZE);
        if bad {
            // Relaxed: see the field.
            self.bounced.fetch_add(1, Ordering::Relaxed);
        }
        bad
    }
}

impl Device for FileDevice {
    fn size(&self) -> u64 {
        // Relaxed: see the field.
        self.size.load(Ordering::Relaxed)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn read(&self, reqs: &mut [ReadReq<'_>]) -> Result<()> {
        let mut ops: SmallVec<[Op; 16]> = SmallVec::new();
        let mut bounce: SmallVec<[(usize, Aligned); 0]> = SmallVec::new();
        for (i, r) in reqs.iter_mut().enumerate() {
            check_range(self, "read", r.offset, r.data.len())?;
            if self.is_misaligned(r.data) {
                bounce.push((i, Aligned::new(r.data.len())));
            } else {
                ops.push(Op::read(r.offset, r.data));
            }
        }
        for (i, b) in &mut bounce {
            ops.push(Op::read(reqs[*i].offset, b.bytes_mut()));
        }
        debug_assert_eq!(ops.len(), reqs.len(), "each request is one op");
        // SAFETY: `reqs` and `bounce` are exclusively borrowed by this function, outlive the call,
        // and each part of them is in one op.
        let done = unsafe { self.run("read", &mut ops) };
        for (i, b) in &mut bounce {
            reqs[*i].data.copy_from_slice(b.bytes_mut());
        }
        done
    }

    fn write(&self, reqs: &[WriteReq<'_>]) -> Result<()> {
        if self.read_only && !reqs.is_empty() {
            return Err(self.error("write", reqs[0].offset, Errno::ROFS));
        }
        let mut ops: SmallVec<[Op; 16]> = SmallVec::new();
        let mut bounce: SmallVec<[Aligned; 0]> = SmallVec::new();
        for r in reqs {
            check_range(self, "write", r.offset, r.data.len())?;
            if self.is_misaligned(r.data) {
                let mut b = Aligned::new(r.data.len());
                b.bytes_mut().copy_from_slice(r.data);
                // The vector may move; the blocks it points to do not.
                ops.push(Op::write(r.offset, b.bytes_mut()));
                bounce.push(b);
            } else {
                ops.push(Op::write(r.offset, r.data));
            }
        }
        debug_assert_eq!(ops.len(), reqs.len(), "each request is one op");
        // SAFETY: `reqs` is borrowed and `bounce` owned until this function returns.
        unsafe { self.run("write", &mut ops) }
    }

    fn flush(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.refuse_children("flush")?;
        // Not repeated after EINTR as other calls are: after a failed flush the kernel may have
        // forgotten which pages were dirty, so only success is success. fdatasync does not answer
        // EINTR on local file systems.
        rustix::fs::fdatasync(&self.file).map_err(|e| self.error("flush", 0, e))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let n = usize::try_from(len).map_err(|_| self.error("discard", offset, Errno::INVAL))?;
        check_range(self, "discard", offset, n)?;
        if n == 0 {
            return Ok(());
        }
        if self.read_only {
            return Err(self.error("discard", offset, Errno::ROFS));
        }
        self.refuse_children("discard")?;
        let done = if self.full {
            Ok(())
        } else if self.block_device {
            discard_blocks(&self.file, offset, len)
        } else {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&self.file, flags, offset, len)
        };
        match done {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INTR | Errno::NOTTY | Errno::PERM) => Ok(()),
            r => r.map_err(|e| self.error("discard", offset, e)),
        }
    }

    /// Makes a file longer; a block device is as long as it is.
    fn lengthen(&self, bytes: u64) -> Result<()> {
        let fail = |e| self.error("change of the size", bytes, e);
        if !self.block_device && file_size(&self.file).map_err(fail)? < bytes {
            if self.read_only {
                return Err(fail(Errno::ROFS));
            }
            may_be_written_to(&self.name, bytes)?;
            rustix::fs::ftruncate(&self.file, bytes).map_err(|e| match e {
                Errno::FBIG | Errno::INVAL => StoreError::NotOpened {
                    device: self.name.clone(),
                    why: cannot_be_made(bytes, e),
                    errno: e.raw_os_error(),
                },
                e => fail(e),
            })?;
            // The new length is durable before anything relies on it.
            rustix::fs::fsync(&self.file).map_err(fail)?;
        }
        let size = size_of_medium(&self.file, self.block_device).map_err(fail)?;
        self.size.store(size - size % BLOCK_SIZE as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Cuts a file off; a block device is as long as it is.
    fn shorten(&self, bytes: u64) -> Result<()> {
        let fail = |e| self.error("change of the size", bytes, e);
        if !self.block_device && !self.read_only && file_size(&self.file).map_err(fail)? > bytes {
            // A request that is late is refused, and does not make the file longer again.
            self.size.store(bytes - bytes % BLOCK_SIZE as u64, Ordering::Relaxed);
            debug_assert!(bytes > 0, "nothing would be left");
            rustix::fs::ftruncate(&self.file, bytes).map_err(fail)?;
            rustix::fs::fsync(&self.file).map_err(fail)?;
        }
        Ok(())
    }

    fn discards(&self) -> bool {
        !self.read_only && !self.full && (!self.block_device || block_device_discards(&self.file))
    }

    fn host(&self) -> Option<&dyn Host> {
        (!self.read_only && !self.full && !self.block_device).then_some(self)
    }

    /// Lets go of the medium. The descriptor keeps its number, which a request that is late may
    /// still use, and stands for a file that can be neither read nor written.
    fn release(&self) {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let done = rustix::fs::open("/", flags, Mode::empty()).and_then(|nothing| {
            // SAFETY: both descriptors are open, and `self.file` goes on owning its number, which
            // stands for another file now. Nobody assumes of it that it is the image: what is read
            // and written is checked for errors alone.
            let r = unsafe { libc::dup3(nothing.as_raw_fd(), self.file.as_raw_fd(), libc::O_CLOEXEC) };
            if r < 0 { Err(last_errno()) } else { Ok(()) }
        });
        if let Err(e) = done {
            tracing::warn!("{}: is let go of only when the process ends: {e}", self.name);
        }
    }
}

impl Host for FileDevice {
    fn back(&self, offset: u64, len: u64) -> Result<()> {
        debug_assert!(!self.read_only && !self.block_device, "{}: is no sparse file of ours", self.name);
        let n = usize::try_from(len).map_err(|_| self.error("allocation", offset, Errno::INVAL))?;
        check_range(self, "allocation", offset, n)?;
        if n == 0 {
            return Ok(());
        }
        rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, offset, len)
            .map_err(|e| self.error("allocation", offset, e))
    }

    /// Returns what a file of this process's user may still take.
    fn free(&self) -> Option<u64> {
        let s = rustix::fs::fstatfs(&self.file).ok()?;
        let blocks = if rustix::process::geteuid().is_root() { s.f_bfree } else { s.f_bavail };
        debug_assert!(blocks <= s.f_blocks, "{blocks} of {} blocks are free", s.f_blocks);
        Some(blocks.saturating_mul(u64::try_from(s.f_bsize).ok()?))
    }

    fn place(&self) -> Option<String> {
        let dev = rustix::fs::fstat(&self.file).ok()?.st_dev;
        mount_of(&format!("{}:{}", libc::major(dev), libc::minor(dev)))
    }
}

/// Returns where the file system with this device number is mounted, or one of the places.
fn mount_of(dev: &str) -> Option<String> {
    debug_assert!(dev.contains(':'), "{dev} is no device number");
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let places = table.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(2);
        let (number, _root, place) = (words.next()?, words.next()?, words.next()?);
        (number == dev).then_some(place)
    });
    // The shortest: others are bound to a part of it.
    places.min_by_key(|p| p.len()).map(|p| p.replace("\\040", " "))
}

/// What to do about the limit of a file's size.
const LIMIT: &str = "raise that limit (`ulimit -f unlimited`, or LimitFSIZE= of systemd)";

/// Returns why a file is not made so long.
pub(super) fn cannot_be_made(bytes: u64, e: Errno) -> String {
    format!("cannot be made {bytes} bytes long: {e}; choose a smaller size or another file system")
}

/// Refuses an image of so many bytes if the process may not write files that are so long. It would
/// be ended by a signal when it first writes behind its limit, or fail with what it had accepted.
pub(super) fn may_be_written_to(name: &str, bytes: u64) -> Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    match limit.filter(|limit| *limit < bytes) {
        None => Ok(()),
        Some(limit) => Err(StoreError::NotOpened {
            device: name.into(),
            why: format!("an image of {bytes} bytes, and this process may write files of {limit}; {LIMIT}"),
            errno: libc::EFBIG,
        }),
    }
}

/// The offset in a file from which a loop device has it that only stands for it: behind all that a
/// file may have, so that it has no bytes.
pub const STANDS_FOR: u64 = i64::MAX as u64 & !(BLOCK_SIZE as u64 - 1);

/// A loop device that a file is attached to.
struct LoopDevice {
    path: String,
    /// What the system tells of it.
    about: PathBuf,
}

impl LoopDevice {
    /// Returns the loop devices that a file is attached to.
    fn all_of(file: &rustix::fs::Stat) -> impl Iterator<Item = LoopDevice> {
        let (dev, ino) = (file.st_dev, file.st_ino);
        let all = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let all = all.map(|e| (e.file_name(), e.path()));
        all.filter(|(name, _)| name.as_encoded_bytes().starts_with(b"loop")).filter_map(
            move |(name, about)| {
                let other = rustix::fs::stat(LoopDevice::backing(&about)?).ok()?;
                let device = LoopDevice { path: format!("/dev/{}", name.display()), about };
                ((other.st_dev, other.st_ino) == (dev, ino)).then_some(device)
            },
        )
    }

    /// Returns the file behind the loop device of which a folder of the system tells.
    fn backing(about: &Path) -> Option<String> {
        let file = std::fs::read_to_string(about.join("loop/backing_file")).ok()?;
        Some(file.trim_end_matches('\n').into())
    }

    /// Returns which bytes of the file a loop device has; all, if the system does not tell.
    fn part(about: &Path) -> Range<u64> {
        let number = |name: &str| {
            let text = std::fs::read_to_string(about.join("loop").join(name)).ok();
            text.and_then(|t| t.trim_end().parse::<u64>().ok()).unwrap_or(0)
        };
        let (from, limit) = (number("offset"), number("sizelimit"));
        // Without a limit it ends with the file.
        let part = from..if limit == 0 { u64::MAX } else { from.saturating_add(limit) };
        debug_assert!(!part.is_empty(), "a loop device of no bytes: {part:?}");
        part
    }

    fn is_read_only(&self) -> bool {
        std::fs::read_to_string(self.about.join("ro")).is_ok_and(|ro| ro.trim() == "1")
    }
}

/// Returns the loop device that a file is attached to, if that has bytes of it, and may be written
/// to or is to be read only and the file is not.
fn attached_as(file: &rustix::fs::Stat, read_only: bool) -> Option<String> {
    let other = LoopDevice::all_of(file).find(|other| {
        LoopDevice::part(&other.about).start < STANDS_FOR && !(read_only && other.is_read_only())
    });
    other.map(|other| other.path)
}

/// Checks that nobody has what lies behind a loop device by another name of it: the file, or
/// another loop device that has some of the same bytes. Two of them at once would write over each
/// other.
fn nobody_has_what_is_behind(device: &rustix::fs::Stat, read_only: bool) -> Result<()> {
    let (major, minor) = (libc::major(device.st_rdev), libc::minor(device.st_rdev));
    let about = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let Some(file) = LoopDevice::backing(&about) else { return Ok(()) };
    // A file without a name, or one of another name space: nobody finds it by that.
    let Ok(stat) = rustix::fs::stat(&*file) else { return Ok(()) };
    debug_assert!(!file.is_empty(), "a loop device has a file");
    let part = LoopDevice::part(&about);
    let others = LoopDevice::all_of(&stat).filter(|other| {
        let theirs = LoopDevice::part(&other.about);
        let is_own = rustix::fs::stat(&*other.path).is_ok_and(|s| s.st_rdev == device.st_rdev);
        !is_own && theirs.start < part.end && part.start < theirs.end
    });
    for name in std::iter::once(file).chain(others.map(|other| other.path)) {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        // Who may not open it cannot ask whether it is locked.
        if let Ok(other) = rustix::fs::open(&*name, flags, Mode::empty()) {
            // It is let go of at once: who opens it later finds this device attached, or locked.
            ImageLock::take(other.as_fd(), &name, read_only)?;
        }
    }
    Ok(())
}

/// Memory aligned to a block, for requests whose memory is not.
#[derive(Debug)]
struct Aligned {
    blocks: Vec<Block>,
}

impl Aligned {
    /// Makes `len` bytes of zeros, which are whole blocks.
    fn new(len: usize) -> Aligned {
        debug_assert!(len.is_multiple_of(BLOCK_SIZE), "{len} bytes are not whole blocks");
        Aligned { blocks: vec![Block([0; BLOCK_SIZE]); len / BLOCK_SIZE] }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.blocks.len() * BLOCK_SIZE;
        debug_assert!(self.blocks.as_ptr().addr().is_multiple_of(BLOCK_SIZE), "a block lies aligned");
        // SAFETY: blocks are exactly their bytes (`repr(C)`, size = alignment = BLOCK_SIZE), so the
        // vector's elements are `len` initialised bytes in a row, borrowed as `self` is.
        unsafe { std::slice::from_raw_parts_mut(self.blocks.as_mut_ptr().cast(), len) }
    }
}

const _: () = assert!(size_of::<Block>() == BLOCK_SIZE && align_of::<Block>() == BLOCK_SIZE);

/// Opens a file, and returns whether that is with O_DIRECT.
fn open_descriptor(
    path: &Path,
    block_device: bool,
    options: FileOptions,
) -> rustix::io::Result<(OwnedFd, bool)> {
    let mut flags = if options.read_only { OFlags::RDONLY } else { OFlags::RDWR } | OFlags::CLOEXEC;
    if block_device && !options.read_only {
        // Refused by the kernel while the block device is mounted or in another one.
        flags |= OFlags::EXCL;
    }
    let open = |flags| rustix::fs::open(path, flags, Mode::empty());
    if flags.contains(OFlags::EXCL) && !options.exclusive {
        let _claim = open(flags)?;
        flags.remove(OFlags::EXCL);
    }
    if options.direct {
        match open(flags | OFlags::DIRECT) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {}
            opened => return opened.map(|fd| (fd, true)),
        }
    }
    open(flags).map(|fd| (fd, false))
}

/// Returns whether a block device takes no writes. The kernel opens it for writing all the same.
fn is_read_only(stat: &rustix::fs::Stat) -> bool {
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    std::fs::read(format!("/sys/dev/block/{major}:{minor}/ro")).is_ok_and(|ro| ro.starts_with(b"1"))
}

/// Returns the error for a file that the kernel does not open.
fn refused(name: &str, e: Errno) -> StoreError {
    let (device, errno) = (name.into(), e.raw_os_error());
    match e {
        Errno::NOENT => StoreError::NoImage { device, why: "does not exist", errno },
        e => StoreError::NotOpened { device, why: open_hint(e), errno },
    }
}

fn open_hint(e: Errno) -> String {
    match e {
        Errno::ACCESS => "permission denied; check the owner and mode of the image".into(),
        Errno::PERM => "may not be written to: is it immutable (`lsattr`)? Open it read-only".into(),
        Errno::ROFS => "read-only, or on a read-only file system; open it read-only (`-o ro`)".into(),
        e => format!("cannot be opened: {e}"),
    }
}

/// Returns whether a file is written and read without rings.
///
/// One in the system's memory: nothing is waited for there but the copy, and the kernel hands a
/// write that comes by a ring to a thread of its own, whose wake costs more.
///
/// One on a FUSE file system, whose server may take a part of a write. Linux 6.18 goes on behind
/// all of it then where the write came by a ring, and says that it was whole: what it skipped is
/// lost (seen with fio, too).
fn is_without_rings(fd: &OwnedFd) -> bool {
    const RAMFS_MAGIC: libc::c_long = 0x8584_58f6;
    const FUSE_MAGIC: libc::c_long = 0x6573_5546;
    let without = [libc::TMPFS_MAGIC, RAMFS_MAGIC, FUSE_MAGIC];
    rustix::fs::fstatfs(fd).is_ok_and(|s| without.contains(&s.f_type))
}

fn size_of_medium(fd: &OwnedFd, block_device: bool) -> rustix::io::Result<u64> {
    if block_device { block_device_size(fd) } else { file_size(fd) }
}

fn file_size(fd: &OwnedFd) -> rustix::io::Result<u64> {
    Ok(rustix::fs::fstat(fd)?.st_size as u64)
}

fn block_device_size(fd: &OwnedFd) -> rustix::io::Result<u64> {
    let mut size = 0u64;
    // SAFETY: BLKGETSIZE64 stores one u64 through the pointer, which is valid for that.
    let r = unsafe { libc::ioctl(fd.as_raw_fd(), BLKGETSIZE64, &raw mut size) };
    if r == 0 { Ok(size) } else { Err(last_errno()) }
}

/// Returns whether a block device, or that which it is a part of, can discard, as the kernel shows.
fn block_device_discards(fd: &OwnedFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(fd) else { return false };
    let (major, minor) = (libc::major(stat.st_rdev), libc::minor(stat.st_rdev));
    ["queue", "../queue"].iter().any(|queue| {
        std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{queue}/discard_max_bytes"))
            .is_ok_and(|bytes| bytes.trim_end() != "0")
    })
}

fn discard_blocks(fd: &OwnedFd, offset: u64, len: u64) -> rustix::io::Result<()> {
    let range = [offset, len];
    // SAFETY: BLKDISCARD reads two u64 through the pointer, which is valid for that.
    let r = unsafe { libc::ioctl(fd.as_raw_fd(), BLKDISCARD, range.as_ptr()) };
    if r == 0 { Ok(()) } else { Err(last_errno()) }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
