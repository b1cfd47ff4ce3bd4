//! An open file.

pub(crate) mod opening;
mod own_space;
mod std_io;

use crate::core::memory;
use crate::core::page_store;
use crate::core::space;
use crate::error::{Error, Result};
use crate::locks::RangeLock;
use crate::memfs::Inode;
use crate::memfs::data::{FileData, ReadAhead};
use crate::memfs::inode::{APPEND, ENDED, EVICTED, IMMUTABLE, Line};
use crate::opened::Anchor;
use crate::ops::acl;
use crate::ops::attr;
use crate::ops::content;
use crate::ops::content::Writer;
use crate::ops::flags;
use crate::ops::link;
use crate::ops::open::Claim;
use crate::ops::remove;
use crate::persist::Persist;
use crate::persist::fsync;
use crate::stat::Stat;
use crate::{Cred, FileKind, Metadata, SetAttr, WriteLife, locks};
use lanefs_format::{BLOCK_SIZE, Ino, MAX_FILE_SIZE};
use lanefs_store::Claimant;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// No group of a file's.
const NO_GROUP: u32 = u32::MAX;

/// An open file or directory: what a descriptor is to the kernel. Send and Sync; positional calls
/// run in parallel.
///
/// Offsets and lengths are bytes. Every call may answer the errors of [every
/// call](crate::error#every-call); with the calls stands what is particular to them. It can be
/// given to whatever takes `std::io`'s `Read`, `Write` and `Seek`, or Unix's `FileExt`: they have
/// the same calls with errors of `std::io`. After a crash, what [`File::sync_all`] acknowledged is
/// there, and the rest as in [content and attributes](crate#content-and-attributes). A file whose
/// last name is gone lives until its last handle is dropped.
#[repr(C)]
pub struct File {
    anchor: Arc<Anchor>,
    inode: NonNull<Inode>,
    /// The lane and the number of the open slot that keeps the inode.
    lane: u16,
    slot: u32,
    /// The flags of `open(2)`.
    flags: i32,
    /// Writes leave setuid and setgid alone.
    privileged: bool,
    /// Who pays for what writes add.
    claimant: Claimant,
    /// The file's group when it was opened, if who opened it is in it; else [`NO_GROUP`].
    group: u32,
    /// What is written is written back while the file grows. Relaxed: a hint, for writes that begin
    /// later.
    writes_ahead: AtomicBool,
    /// From here on lies what calls through the handle write, apart from what all calls read.
    cursor_line: Line,
    /// The position of `read`, `write` and `lseek`, at most the largest size. Written by these.
    /// Relaxed: who shares a handle between threads orders them.
    cursor: AtomicU64,
    ahead: ReadAhead,
    errors_line: Line,
    /// The errors of the inode that the handle has reported. Written by syncs. Relaxed: of two
    /// syncs at a time either may report an error, or both.
    errors_seen: AtomicU32,
    /// An advisory lock was taken through this handle. Written by the calls that take one. Relaxed:
    /// read by the drop alone, which has the handle to itself.
    locked: AtomicBool,
}

// SAFETY: the inode is made of atomics and locks, so it may be shared and used from any thread; the
// open slot keeps it in place until the drop.
unsafe impl Send for File {}
// SAFETY: as above; the handle's own fields are atomics.
unsafe impl Sync for File {}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("ino", &self.ino()).field("flags", &self.flags).finish_non_exhaustive()
    }
}

impl File {
    /// Makes a handle of a claim, which keeps the claim's slot.
    fn new(anchor: Arc<Anchor>, claim: Claim<'_>, flags: i32, cred: &Cred) -> File {
        let lane = claim.lane;
        let (inode, slot) = claim.keep();
        debug_assert!(u16::try_from(lane).is_ok() && u32::try_from(slot).is_ok(), "{lane}, {slot}");
        debug_assert!(lane < anchor.persist.journal.lanes.len(), "a slot of lane {lane}");
        File {
            anchor,
            inode: NonNull::from(inode),
            lane: lane as u16,
            slot: slot as u32,
            flags,
            privileged: cred.is_root(),
            claimant: cred.claimant(),
            group: Some(inode.gid()).filter(|g| cred.in_group(*g)).unwrap_or(NO_GROUP),
            writes_ahead: AtomicBool::new(true),
            cursor_line: Line,
            cursor: AtomicU64::new(0),
            ahead: ReadAhead::new(),
            errors_line: Line,
            errors_seen: AtomicU32::new(inode.errors.sample()),
            locked: AtomicBool::new(false),
        }
    }

    /// Returns the inode that the handle keeps.
    pub(crate) fn inode(&self) -> &Inode {
        // SAFETY: while our open slot names the inode, the inode is neither evicted nor freed
        // (oplog::slots, persist::{reaper, reclaim}), and the anchor keeps the table that owns
        // it.
        let inode = unsafe { self.inode.as_ref() };
        debug_assert!(!inode.has(EVICTED | ENDED), "inode {} is open, and left memory", inode.ino);
        inode
    }

    /// Returns the volume behind the handle.
    pub(crate) fn persist(&self) -> &Persist {
        &self.anchor.persist
    }

    /// Returns the flags it was opened with, as in `open(2)`.
    pub fn flags(&self) -> i32 {
        self.flags
    }

    /// Returns the content. EISDIR, EINVAL: there is none.
    fn data(&self) -> Result<&FileData> {
        match self.inode().data() {
            Some(d) => Ok(d),
            None if self.inode().kind == FileKind::Dir => Err(Error::Posix(libc::EISDIR)),
            None => Err(Error::Posix(libc::EINVAL)),
        }
    }

    /// Returns whether it was opened with O_PATH: to be looked at, neither read nor written.
    fn is_path(&self) -> bool {
        self.flags & libc::O_PATH != 0
    }

    /// Returns the content, for reading.
    fn readable(&self) -> Result<&FileData> {
        if self.flags & libc::O_ACCMODE == libc::O_WRONLY || self.is_path() {
            return Err(Error::Posix(libc::EBADF));
        }
        self.persist().check_alive()?;
        self.data()
    }

    /// Returns the content, for writing.
    fn writable(&self) -> Result<&FileData> {
        if self.is_path() || !matches!(self.flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR) {
            return Err(Error::Posix(libc::EBADF));
        }
        self.data()
    }

    /// Leaves setuid and setgid alone in what is done through this handle, as the superuser's
    /// handles do: for a front end whose kernel decides when they go.
    pub fn keep_privilege(&mut self) {
        self.privileged = true;
    }

    /// Has writes go to their offsets, however the handle was opened: for a front end whose kernel
    /// knows where the end is.
    pub fn never_append(&mut self) {
        self.flags &= !libc::O_APPEND;
    }

    /// Says whether what is written through this handle from now on is written back while the file
    /// grows, as it is at first. Without, for a file that will be removed soon, as the log of a
    /// database: only by a sync, under pressure or when it is [`crate::MountOptions::dirty_expire`]
    /// old. So what is removed before that never goes to the device, and a sync of much takes
    /// longer. Changes no promise.
    pub fn set_write_ahead(&self, ahead: bool) {
        self.writes_ahead.store(ahead, Ordering::Relaxed);
    }

    /// Says how long what is written to the file, through any handle, will be wanted, as
    /// `F_SET_RW_HINT` of `fcntl(2)` does: what dies soon is put where it dies together, which
    /// leaves the cleaner less to move. [`WriteLife::Short`] is apart from the rest, and so are
    /// [`WriteLife::Long`] and [`WriteLife::Extreme`], which lie with what the cleaner found to
    /// stay; the others are as if nothing had been said.
    ///
    /// It holds for what goes to the device from now on, which may have been written before. It is
    /// not durable, and no longer than the inode stays in memory: until the volume is closed, or
    /// until memory is wanted and no handle is open. It changes no promise.
    ///
    /// ```no_run
    /// # fn main() -> lanefs::Result<()> {
    /// # let volume = lanefs::Volume::open(&["disk.lane"], &lanefs::MountOptions::default())?;
    /// use lanefs::{OpenOptions, WriteLife};
    ///
    /// let sorted = volume.fs().open("/run-17.tmp", OpenOptions::new().write(true).create(true))?;
    /// sorted.set_write_life(WriteLife::Short);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_write_life(&self, life: WriteLife) {
        self.inode().set_write_life(life);
    }

    /// Returns what [`File::set_write_life`] has said last, of this file by whichever handle.
    pub fn write_life(&self) -> WriteLife {
        self.inode().write_life()
    }

    /// Returns its inode number.
    pub fn ino(&self) -> Ino {
        self.inode().ino
    }

    /// Returns its attributes. EIO once the volume is closed.
    pub fn stat(&self) -> Result<Stat> {
        self.persist().check_alive()?;
        Ok(self.inode().stat())
    }

    /// Returns its attributes, as `std::fs` has them. EIO once the volume is closed.
    pub fn metadata(&self) -> Result<Metadata> {
        self.stat().map(Metadata::from)
    }

    /// Changes attributes, as `fchmod`, `fchown`, `futimens` and `ftruncate` do: all that is asked,
    /// or nothing. Durable as [attributes](crate#content-and-attributes) are; a truncation as
    /// [`crate::Fs::truncate`].
    ///
    /// # Errors
    /// - EBADF: opened with O_PATH; a size, and the handle is not open for writing. EFBIG: a size
    ///   of more than 2^63-1.
    /// - EPERM, EACCES: as [`crate::Fs::chmod`], [`crate::Fs::chown`] and [`crate::Fs::set_times`].
    /// - EROFS: the volume was opened for reading only. ENOSPC, ENOMEM, EIO: as
    ///   [`crate::Fs::truncate`].
    pub fn set_attr(&self, cred: &Cred, set: &SetAttr) -> Result<Stat> {
        if self.is_path() {
            return Err(Error::Posix(libc::EBADF));
        }
        if set.size.is_some() {
            self.writable()?;
        }
        space::change_with_space(self.persist(), || {
            acl::set_attr(self.persist(), cred, self.inode(), set, true)
        })?;
        self.stat()
    }

    /// Returns the flags of the inode, of [`crate::inode_flags`].
    ///
    /// # Errors
    /// Those of [`crate::Volume::node_flags`].
    pub fn inode_flags(&self) -> Result<u32> {
        flags::inode_flags(self.persist(), self.inode())
    }

    /// Sets the flags of the inode; errors and crash as [`crate::Volume::node_set_flags`].
    pub fn set_inode_flags(&self, cred: &Cred, flags: u32) -> Result<()> {
        flags::set_inode_flags(self.persist(), cred, self.inode(), flags)
    }

    /// Reads at `offset` without moving the cursor; less than asked only at the end of the file or
    /// before what cannot be read; 0 at and behind the end. With O_DIRECT as
    /// [`File::read_uncached_at`].
    ///
    /// # Errors
    /// EBADF: not open for reading. EISDIR: a directory. EIO: the device failed, or what it gave is
    /// not what was written.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.read_where(buf, offset, self.flags & libc::O_DIRECT != 0)
    }

    /// Does what [`File::read_at`] does, for a caller that keeps what it reads, as a kernel does:
    /// where `offset`, `buf`'s address and its length are multiples of 4096, pages that are not in
    /// memory are read into `buf` and not kept here too. Errors as [`File::read_at`].
    pub fn read_uncached_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.read_where(buf, offset, true)
    }

    /// Does what [`File::read_at`] does without waiting for a device, as `preadv2(2)` with
    /// RWF_NOWAIT; `None`, and `buf` holds anything, if part of it is not in memory. Errors as
    /// [`File::read_at`], but EIO.
    pub fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> Result<Option<usize>> {
        let read = content::read_cached(self.persist(), self.inode(), self.readable()?, offset, buf);
        if read.is_some_and(|n| n > 0) && self.flags & libc::O_NOATIME == 0 {
            content::touch_atime(self.persist(), self.inode());
        }
        Ok(read)
    }

    /// Reads at `offset`; `kept`: the caller keeps what it reads.
    fn read_where(&self, buf: &mut [u8], offset: u64, kept: bool) -> Result<usize> {
        let data = self.readable()?;
        let n = content::read_data(self.persist(), self.inode(), data, offset, buf, &self.ahead, kept)?;
        if n > 0 && self.flags & libc::O_NOATIME == 0 {
            content::touch_atime(self.persist(), self.inode());
        }
        Ok(n)
    }

    /// Writes at `offset` without moving the cursor (at the end with O_APPEND); less than asked if
    /// the volume fills up or the file reaches 2^63-1 bytes. Durable when it returns only with
    /// O_SYNC or O_DSYNC; else as [content](crate#content-and-attributes): after a crash each page
    /// of 4 KiB has its part of the write whole or not at all, one page without another. With
    /// O_DIRECT whole pages as [`File::write_uncached_at`].
    ///
    /// # Errors
    /// - EBADF: not open for writing. EROFS: the volume was opened for reading only.
    /// - EFBIG: `offset` is 2^63-1 or more.
    /// - ENOSPC: no space for the first page. ENOMEM: no memory, as nothing that is dirty could be
    ///   written back for a long time.
    /// - EIO: a page written in part cannot be read. With O_SYNC and O_DSYNC also those of
    ///   [`File::sync_all`].
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        self.write_where((self.flags & libc::O_APPEND == 0).then_some(offset), buf).map(|w| w.1)
    }

    /// Does what [`File::write_at`] does, for a caller that keeps what it has written, as a kernel
    /// does: the pages leave memory once they are written back. Errors and crash as
    /// [`File::write_at`], but that a file which has become immutable takes it: see
    /// [`File::may_write`].
    pub fn write_uncached_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        let (data, writer) = (self.writable()?, Writer { keeps_pages: true, ..self.writer() });
        self.write_as(data, (self.flags & libc::O_APPEND == 0).then_some(offset), buf, writer).map(|w| w.1)
    }

    /// Writes at `offset`, never appends, and leaves mtime, ctime, setuid and setgid alone: for a
    /// front end whose kernel caches writes, keeps these itself and hands them over by
    /// [`crate::SetAttr`]. The pages leave memory once they are written back: the kernel has them
    /// too. However the handle was opened, and never durable by itself: O_SYNC is the kernel's
    /// business.
    ///
    /// # Errors
    /// EISDIR: a directory. Else as [`File::write_at`] without EBADF.
    pub fn write_back_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        let data = self.data()?;
        let writer = Writer {
            keeps_times: true,
            keeps_pages: true,
            privileged: true,
            group: NO_GROUP,
            writes_ahead: true,
            any_order: true,
            claimant: Claimant::Root,
        };
        content::write_data(self.persist(), self.inode(), data, Some(offset), buf, writer).map(|w| w.1)
    }

    /// Does what [`File::write_at`] does, at the end if `offset` is `None`, and leaves the last of
    /// the volume to root, who has opened the file for somebody else.
    ///
    /// # Errors
    /// Those of [`File::write_at`].
    pub fn write_for_user(&self, buf: &[u8], offset: Option<u64>) -> Result<usize> {
        let data = self.writable()?;
        self.may_write()?;
        let writer = Writer { claimant: Claimant::User, ..self.writer() };
        self.write_as(data, offset, buf, writer).map(|w| w.1)
    }

    /// Returns how an ordinary write through the handle is done.
    fn writer(&self) -> Writer {
        Writer {
            keeps_times: false,
            keeps_pages: false,
            privileged: self.privileged,
            group: self.group,
            writes_ahead: self.writes_ahead.load(Ordering::Relaxed),
            any_order: false,
            claimant: self.claimant,
        }
    }

    /// Writes at `offset`, or at the end; returns where and how much.
    fn write_where(&self, offset: Option<u64>, buf: &[u8]) -> Result<(u64, usize)> {
        // Of pages written in part the rest would be read again each time.
        let whole = |o: u64| (o | buf.len() as u64).is_multiple_of(BLOCK_SIZE as u64);
        let keeps_pages = self.flags & libc::O_DIRECT != 0 && offset.is_some_and(whole);
        let data = self.writable()?;
        self.may_write()?;
        self.write_as(data, offset, buf, Writer { keeps_pages, ..self.writer() })
    }

    /// Checks that the file may be written at all, now: EPERM if it has become immutable since it
    /// was opened.
    pub fn may_write(&self) -> Result<()> {
        if self.inode().has_flag(IMMUTABLE) { Err(Error::Posix(libc::EPERM)) } else { Ok(()) }
    }

    /// Writes as `writer`, and durably if the handle was opened so.
    fn write_as(
        &self,
        data: &FileData,
        offset: Option<u64>,
        buf: &[u8],
        writer: Writer,
    ) -> Result<(u64, usize)> {
        let r = content::write_data(self.persist(), self.inode(), data, offset, buf, writer)?;
        debug_assert!(offset.is_none_or(|o| r.0 == o) && r.1 <= buf.len(), "{r:?} for {offset:?}");
        if self.flags & libc::O_DSYNC != 0 {
            self.sync(self.flags & libc::O_SYNC != libc::O_SYNC)?;
        }
        Ok(r)
    }

    /// Writes all of `buf` at `offset`. Errors and crash as [`File::write_at`], also after a part
    /// was written, which stays: ENOSPC if only part of it fits.
    pub fn write_all_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match self.write_at(&buf[done..], offset + done as u64)? {
                0 => return Err(Error::Posix(libc::ENOSPC)),
                n => done += n,
            }
        }
        Ok(())
    }

    /// Fills `buf` from `offset`. Errors as [`File::read_at`]; [`Error::UnexpectedEnd`] if the file
    /// ends before.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match self.read_at(&mut buf[done..], offset + done as u64)? {
                0 => return Err(Error::UnexpectedEnd),
                n => done += n,
            }
        }
        Ok(())
    }

    /// Reads all from `offset` to the end and appends it to `out`, as it is while it is read;
    /// returns how many bytes that is. Errors as [`File::read_at`]; what was read before stays in
    /// `out`.
    pub fn read_to_end_at(&self, out: &mut Vec<u8>, offset: u64) -> Result<usize> {
        let begin = out.len();
        // One byte more than there is, so that the end is found without more memory for it.
        let expected = self.inode().size().saturating_sub(offset).min(MAX_FILE_SIZE) as usize;
        out.try_reserve(expected.saturating_add(1)).map_err(|_| Error::Posix(libc::ENOMEM))?;
        loop {
            let done = out.len();
            out.resize(out.capacity().max(done + 4096).min(done + (1 << 20)), 0);
            let n = self.read_at(&mut out[done..], offset + (done - begin) as u64);
            out.truncate(done + n.as_ref().map_or(0, |n| *n));
            debug_assert!(out.len() >= done && done >= begin, "bytes were lost again");
            if n? == 0 {
                return Ok(done - begin);
            }
        }
    }

    /// Reads at the cursor and moves it. Errors as [`File::read_at`].
    pub fn read(&self, buf: &mut [u8]) -> Result<usize> {
        let at = self.position();
        let n = self.read_at(buf, at)?;
        self.move_to(at, at + n as u64);
        Ok(n)
    }

    /// Writes at the cursor (at the end with O_APPEND) and moves it behind what was written. Errors
    /// and crash as [`File::write_at`].
    pub fn write(&self, buf: &[u8]) -> Result<usize> {
        let from = self.position();
        let at = (self.flags & libc::O_APPEND == 0).then_some(from);
        let (at, n) = self.write_where(at, buf)?;
        // A write of nothing moves nothing, also with O_APPEND.
        if n > 0 {
            self.move_to(from, at + n as u64);
        }
        Ok(n)
    }

    /// Returns where the cursor is.
    fn position(&self) -> u64 {
        let at = self.cursor.load(Ordering::Relaxed);
        debug_assert!(at <= MAX_FILE_SIZE, "the cursor is at {at}");
        at
    }

    /// Moves the cursor; where it stays, nothing is written, so that threads which share the handle
    /// share no line.
    #[inline]
    fn move_to(&self, from: u64, to: u64) {
        debug_assert!(to <= MAX_FILE_SIZE, "the cursor moves to {to}");
        if from != to {
            self.cursor.store(to, Ordering::Relaxed);
        }
    }

    /// Reads into several buffers at `offset`, as `preadv(2)`; returns how many bytes in all.
    /// Errors as [`File::read_at`].
    pub fn read_vectored_at(&self, bufs: &mut [std::io::IoSliceMut<'_>], offset: u64) -> Result<usize> {
        let mut done = 0;
        for b in bufs {
            let n = match self.read_at(b, offset + done as u64) {
                Err(e) if done == 0 => return Err(e),
                Err(_) => break, // the reader gets it when it comes back for the rest
                Ok(n) => n,
            };
            debug_assert!(n <= b.len(), "{n} bytes in a buffer of {}", b.len());
            done += n;
            if n < b.len() {
                break;
            }
        }
        Ok(done)
    }

    /// Writes several buffers at `offset` (at the end with O_APPEND, as one append), as
    /// `pwritev(2)`; returns how many bytes in all. Errors and crash as [`File::write_at`].
    pub fn write_vectored_at(&self, bufs: &[std::io::IoSlice<'_>], offset: u64) -> Result<usize> {
        let all: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
        self.write_at(&all, offset)
    }

    /// Appends, and returns the offset written at. Appends of one call are never mixed with
    /// others'. Errors and crash as [`File::write_at`]; ENOSPC also if only part was written, which
    /// stays.
    pub fn append(&self, buf: &[u8]) -> Result<u64> {
        let (at, n) = self.write_where(None, buf)?;
        if n < buf.len() { Err(Error::Posix(libc::ENOSPC)) } else { Ok(at) }
    }

    /// Moves the cursor as `lseek(2)`: whence is `libc::SEEK_SET`, `SEEK_CUR`, `SEEK_END`,
    /// `SEEK_DATA` or `SEEK_HOLE`; returns the new cursor. Data and holes are found by pages of
    /// 4096 bytes.
    ///
    /// # Errors
    /// - EINVAL: another whence, or a place before the start or behind 2^63-1.
    /// - ENXIO: `SEEK_DATA` or `SEEK_HOLE` from the end on or before the start, or no data follows.
    ///   EISDIR: these two of a directory. EBADF: opened with O_PATH.
    pub fn lseek(&self, offset: i64, whence: i32) -> Result<u64> {
        if self.is_path() {
            return Err(Error::Posix(libc::EBADF));
        }
        self.persist().check_alive()?;
        let base = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => self.position(),
            libc::SEEK_END => self.inode().size(),
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                let at = self.seek_hole_data(offset, whence == libc::SEEK_DATA)?;
                self.move_to(self.position(), at);
                return Ok(at);
            }
            _ => return Err(Error::Posix(libc::EINVAL)),
        };
        let to = base
            .checked_add_signed(offset)
            .filter(|t| *t <= MAX_FILE_SIZE)
            .ok_or(Error::Posix(libc::EINVAL))?;
        self.move_to(self.position(), to);
        Ok(to)
    }

    /// Finds data or a hole from `offset` on.
    fn seek_hole_data(&self, offset: i64, data_wanted: bool) -> Result<u64> {
        debug_assert!(!self.is_path(), "inode {} was opened to be looked at", self.ino());
        let data = self.data()?;
        let off = u64::try_from(offset).ok().filter(|o| *o < data.size()).ok_or(Error::Posix(libc::ENXIO))?;
        let ctx = page_store::data_ctx(self.persist(), self.inode());
        let found = if data_wanted { data.seek_data(&ctx, off) } else { data.seek_hole(&ctx, off) };
        debug_assert!(!found.as_ref().is_ok_and(|at| *at < off), "{found:?} lies before {off}");
        found
    }

    /// Sets the size in bytes, as `ftruncate(2)`. Crash as [`crate::Fs::truncate`].
    ///
    /// # Errors
    /// EINVAL: not open for writing. EFBIG, ENOSPC, ENOMEM, EIO, EROFS: as [`crate::Fs::truncate`].
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.writable().map_err(|e| if e.errno() == libc::EBADF { Error::Posix(libc::EINVAL) } else { e })?;
        let kill_sgid = !self.privileged && self.inode().gid() != self.group;
        let set = SetAttr { size: Some(size), kill_sgid, ..Default::default() };
        let cred = Cred {
            prechecked: true,
            ..if self.privileged { Cred::root() } else { Cred::user(u32::MAX, u32::MAX, &[]) }
        };
        attr::set_attr(self.persist(), &cred, self.inode(), &set, true)
    }

    /// Allocates as `fallocate(2)`, with the kernel's mode bits: allocate, KEEP_SIZE, PUNCH_HOLE,
    /// ZERO_RANGE. Allocation checks that there is space; a log-structured volume cannot keep it
    /// for the file. Durable as [content](crate#content-and-attributes) is: after a crash each page
    /// of the range is as it was before or as it was then.
    ///
    /// # Errors
    /// - EBADF: not open for writing. EROFS: the volume was opened for reading only.
    /// - EINVAL: `len` is 0. EFBIG: the range ends behind 2^63-1. EOPNOTSUPP: other modes, and
    ///   PUNCH_HOLE without KEEP_SIZE.
    /// - ENOSPC: no space for the range, or to rewrite a page of which part becomes zeros. ENOMEM,
    ///   EIO: such a page cannot be had.
    pub fn allocate(&self, mode: i32, offset: u64, len: u64) -> Result<()> {
        self.allocate_as(mode, offset, len, self.writer())
    }

    /// Does what [`File::allocate`] does, for a front end that opened the file as root for somebody
    /// else. `keeps_times`: mtime, ctime, setuid and setgid are left alone, as by
    /// [`File::write_back_at`]; `for_root`: else the last of the volume is left to root.
    ///
    /// # Errors
    /// Those of [`File::allocate`].
    pub fn allocate_for(
        &self,
        mode: i32,
        offset: u64,
        len: u64,
        keeps_times: bool,
        for_root: bool,
    ) -> Result<()> {
        let claimant = if for_root { self.claimant } else { Claimant::User };
        self.allocate_as(mode, offset, len, Writer { keeps_times, claimant, ..self.writer() })
    }

    /// Allocates as `writer`.
    fn allocate_as(&self, mode: i32, offset: u64, len: u64, writer: Writer) -> Result<()> {
        if len == 0 {
            return Err(Error::Posix(libc::EINVAL));
        }
        self.writable()?;
        self.may_write()?;
        if mode & !libc::FALLOC_FL_KEEP_SIZE != 0 && self.inode().has_flag(APPEND) {
            return Err(Error::Posix(libc::EPERM));
        }
        content::allocate(self.persist(), self.inode(), mode, offset, len, writer)
    }

    /// Makes content, attributes and names durable, as fsync, and what these names need
    /// ([names](crate#names)); of a directory its entries. An error of an earlier background write
    /// is returned here, once per handle. On a volume opened for reading only there is nothing to
    /// do.
    ///
    /// # Errors
    /// - EIO: a write or a flush failed, now or before, and what was to be durable may not be. It
    ///   stays readable until the volume is closed.
    /// - ENOSPC: the file system under an image is full, and the thread has no patience
    ///   ([`crate::set_patience`]); or the volume is, and the log has no space for attributes of so
    ///   many inodes at once.
    pub fn sync_all(&self) -> Result<()> {
        self.sync(false)
    }

    /// Makes content, size and names durable, as fdatasync; times, mode, owner and extended
    /// attributes need not be. Errors as [`File::sync_all`].
    pub fn sync_data(&self) -> Result<()> {
        self.sync(true)
    }

    /// Makes it durable; `data_only`: as fdatasync.
    fn sync(&self, data_only: bool) -> Result<()> {
        let r = self.persist().promised(fsync::fsync(self.persist(), self.inode(), data_only));
        let before = self.errors_seen.load(Ordering::Relaxed);
        let mut seen = before;
        let e = self.inode().errors.check_and_advance(&mut seen);
        if seen != before {
            self.errors_seen.store(seen, Ordering::Relaxed);
        }
        match e {
            Some(e) => r.and(Err(Error::Posix(e))),
            None => r,
        }
    }

    /// Returns whether it is a file of that volume.
    pub(crate) fn is_of(&self, volume: &Persist) -> bool {
        std::ptr::eq(self.persist(), volume)
    }

    /// Copies as `copy_file_range(2)` from this file to `to`, of this volume or another, whose
    /// O_APPEND does not count; returns bytes copied, fewer than `len` at the end of this file or
    /// if writing fails half-way. Crash as [`File::write_at`].
    ///
    /// # Errors
    /// EINVAL: overlapping ranges of one file. Else those of [`File::read_at`] of this file, and of
    /// [`File::write_at`] of `to`.
    pub fn copy_range_to(&self, offset: u64, to: &File, to_offset: u64, len: u64) -> Result<u64> {
        self.copy_as(offset, to, to_offset, len, |part, at| to.write_where(Some(at), part).map(|w| w.1))
    }

    /// Does what [`File::copy_range_to`] does, and writes as [`File::write_back_at`] does.
    ///
    /// # Errors
    /// Those of [`File::copy_range_to`].
    pub fn copy_range_back_to(&self, offset: u64, to: &File, to_offset: u64, len: u64) -> Result<u64> {
        self.copy_as(offset, to, to_offset, len, |part, at| to.write_back_at(part, at))
    }

    /// Copies a range, whose parts `put` writes.
    fn copy_as(
        &self,
        offset: u64,
        to: &File,
        to_offset: u64,
        len: u64,
        put: impl Fn(&[u8], u64) -> Result<usize>,
    ) -> Result<u64> {
        self.readable()?;
        // As the kernel: what there is to copy is counted when the call begins. A copy to behind
        // the end of the same file would find more and more.
        let len = len.min(self.inode().size().saturating_sub(offset));
        if to.is_of(self.persist())
            && self.ino() == to.ino()
            && offset < to_offset.saturating_add(len)
            && to_offset < offset.saturating_add(len)
        {
            return Err(Error::Posix(libc::EINVAL));
        }
        to.may_write()?;
        let mut buf = vec![0u8; (len.min(1 << 20)) as usize];
        let mut done = 0u64;
        while done < len {
            let want = buf.len().min((len - done) as usize);
            let n = match self.read_at(&mut buf[..want], offset + done) {
                Err(e) if done == 0 => return Err(e),
                Err(_) => break, // as above: what was copied counts
                Ok(n) => n,
            };
            if n == 0 {
                break;
            }
            let w = match put(&buf[..n], to_offset + done) {
                Ok(w) => w,
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            };
            debug_assert!(w <= n && n <= want, "{w} of {n} bytes, {want} were wanted");
            done += w as u64;
            if w < n {
                break;
            }
        }
        debug_assert!(done <= len, "{done} bytes of {len}");
        Ok(done)
    }

    /// Gives an unnamed file (O_TMPFILE) or any open file a name: `linkat` with AT_EMPTY_PATH.
    /// Durable as [names](crate#names) are.
    ///
    /// # Errors
    /// Those of [new names](crate::error#new-names), and
    /// - EPERM: a directory. EMLINK: it has 65,000 names.
    /// - ENOENT: its names are gone, or it was made with O_EXCL to stay without.
    /// - ENOTDIR, ESTALE: `parent` is no directory, or gone.
    pub fn link_to(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<()> {
        memory::slow_down_meta(self.persist());
        space::with_space(self.persist(), || {
            link::link(self.persist(), cred, self.inode(), parent, name, &crossbeam_epoch::pin())
        })
    }

    /// Takes an advisory lock of the whole file, as `flock(2)`; see [`locks::Lock`]. What the
    /// handle held is let go first, also if the call fails.
    ///
    /// # Errors
    /// EWOULDBLOCK: `wait` is false and it is taken. EBADF: opened with O_PATH. No other; a closed
    /// volume makes no difference.
    pub fn lock(&self, kind: locks::Lock, wait: bool) -> Result<()> {
        if self.is_path() {
            return Err(Error::Posix(libc::EBADF));
        }
        self.locked.store(true, Ordering::Relaxed);
        self.persist().locks.lock(self.ino(), self.owner(), kind, wait)
    }

    /// Gives the advisory lock of the whole file back, if the handle has it.
    pub fn unlock(&self) {
        self.persist().locks.unlock(self.ino(), self.owner());
    }

    /// Takes an advisory lock of a range of bytes in place of what this handle holds there, as
    /// `fcntl(2)` with F_OFD_SETLK(W); an end of `u64::MAX` is that of the file, wherever it comes
    /// to be. The lock is this handle's (see [`locks`]).
    ///
    /// # Errors
    /// - EAGAIN: `wait` is false and another handle holds part of it. EDEADLK: waiting would be in
    ///   a circle.
    /// - EBADF: a shared lock without reading, or an exclusive one without writing. EINVAL: an
    ///   empty range.
    pub fn lock_range(&self, range: Range<u64>, kind: locks::Lock, wait: bool) -> Result<()> {
        let mode = self.flags & libc::O_ACCMODE;
        let lacks = if kind == locks::Lock::Shared { libc::O_WRONLY } else { libc::O_RDONLY };
        if mode == lacks || self.is_path() {
            return Err(Error::Posix(libc::EBADF));
        }
        if range.is_empty() {
            return Err(Error::Posix(libc::EINVAL));
        }
        self.locked.store(true, Ordering::Relaxed);
        self.persist().locks.lock_range(self.ino(), self.owner(), &RangeLock { range, kind }, wait)
    }

    /// Gives back what this handle holds of a range of bytes; the rest stays.
    pub fn unlock_range(&self, range: Range<u64>) {
        self.persist().locks.unlock_range(self.ino(), self.owner(), &range);
    }

    /// Returns the first lock of another handle (by its start) that [`File::lock_range`] would have
    /// to wait for, as F_OFD_GETLK.
    pub fn test_range(&self, range: Range<u64>, kind: locks::Lock) -> Option<RangeLock> {
        self.persist().locks.test_range(self.ino(), self.owner(), &RangeLock { range, kind })
    }

    /// Returns the owner of this handle's locks: the handle itself, as with `flock(2)`.
    fn owner(&self) -> u64 {
        u64::from(self.lane) << 32 | u64::from(self.slot)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let persist = &self.anchor.persist;
        if persist.is_inherited() {
            // A lock may be that of a thread which is not there.
            return;
        }
        if self.locked.load(Ordering::Relaxed) {
            persist.locks.unlock(self.inode().ino, self.owner());
            persist.locks.unlock_range(self.inode().ino, self.owner(), &(0..u64::MAX));
        }
        // Before the slot goes, which keeps the inode.
        let ends_much = persist.keeps_much.load(Ordering::Relaxed)
            && self.inode().links() == 0
            && remove::has_much(self.inode());
        persist.journal.lanes.shared(usize::from(self.lane)).slots.give_back(self.slot as usize);
        if ends_much {
            persist.background.end_soon();
        }
    }
}
