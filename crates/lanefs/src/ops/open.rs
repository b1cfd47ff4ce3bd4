//! Opening, and what an open file does with its content.

use super::create::{Made, Spec};
use super::perm::{self, R, W};
use super::posix;
use crate::error::{Error, Result};
use crate::file::File;
use crate::memfs::Cell;
use crate::memfs::cell::{DATASYNC, EVICTED, FREED};
use crate::memfs::data::{FileData, ReadAhead};
use crate::volume::{Inner, Root};
use crate::{Cred, FileKind, Ino};
use crossbeam_epoch::Guard;
use lanefs_sync::clock::coarse_realtime_ns;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

/// Whether the access mode of `flags` allows writing.
fn writes(flags: i32) -> bool {
    matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR)
}

/// The permissions an open with `flags` needs.
fn wanted(flags: i32) -> u32 {
    let mut m = match flags & libc::O_ACCMODE {
        libc::O_WRONLY => W,
        libc::O_RDWR => R | W,
        _ => R,
    };
    if flags & libc::O_TRUNC != 0 {
        m |= W;
    }
    m
}

impl Root {
    /// A handle on a cell: takes an open slot in this lane, so that neither the reaper nor the reclaimer ends the cell.
    pub(crate) fn handle(&self, cell: &Cell, cred: &Cred, flags: i32) -> Result<File> {
        let lane = self.inner.lanes.mine();
        let slots = &self.inner.lanes.shared(lane).slots;
        let slot = slots.take(cell.ino);
        // SeqCst: after the slot's store (reaper, 3).
        if cell.flags.load(SeqCst) & (FREED | EVICTED) != 0 {
            slots.give_back(slot);
            return posix(libc::ESTALE);
        }
        Ok(File::new(Arc::clone(&self.anchors[lane]), cell, lane, slot, flags, cred))
    }

    /// Opens an inode by number.
    pub(crate) fn open_ino(&self, cred: &Cred, ino: Ino, flags: i32, guard: &Guard) -> Result<File> {
        for _ in 0..100 {
            let cell = self.inner.cell(ino, guard)?;
            self.check_open(cred, cell, flags)?;
            match self.handle(cell, cred, flags) {
                // Evicted between the two looks: the next look loads it again.
                Err(Error::Posix(libc::ESTALE)) if !cell.has(FREED) => continue,
                Err(e) => return Err(e),
                Ok(f) => {
                    if flags & libc::O_TRUNC != 0 && cell.kind == FileKind::File {
                        self.inner.truncate_open(cell, cred)?;
                    }
                    return Ok(f);
                }
            }
        }
        posix(libc::ESTALE)
    }

    fn check_open(&self, cred: &Cred, cell: &Cell, flags: i32) -> Result<()> {
        match cell.kind {
            FileKind::Symlink => return posix(libc::ELOOP),
            FileKind::Dir if writes(flags) || flags & libc::O_CREAT != 0 => return posix(libc::EISDIR),
            k if k != FileKind::Dir && flags & libc::O_DIRECTORY != 0 => return posix(libc::ENOTDIR),
            _ => {}
        }
        perm::check(cell, cred, wanted(flags))?;
        if flags & libc::O_NOATIME != 0 {
            perm::check_owner(cell, cred)?;
        }
        if writes(flags) || flags & libc::O_TRUNC != 0 {
            self.inner.writable()?;
        }
        self.inner.check_alive()
    }

    /// Creates or opens `name` in `parent` as open(2) does with O_CREAT. Says whether it was made.
    pub(crate) fn create_at(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        mode: u32,
        flags: i32,
        guard: &Guard,
    ) -> Result<(File, bool)> {
        let spec = Spec { kind: FileKind::File, mode, rdev: 0, target: b"" };
        for _ in 0..1000 {
            match self.inner.make(cred, parent, name, &spec, guard)? {
                Made::New(cell) => match self.handle(cell, cred, flags) {
                    Ok(f) => return Ok((f, true)),
                    Err(Error::Posix(libc::ESTALE)) => return posix(libc::ENOENT),
                    Err(e) => return Err(e),
                },
                Made::Exists(..) if flags & libc::O_EXCL != 0 => return posix(libc::EEXIST),
                Made::Exists(ino, FileKind::Symlink) => {
                    let _ = ino;
                    return posix(libc::ELOOP);
                }
                Made::Exists(ino, _) => match self.open_ino(cred, ino, flags, guard) {
                    Ok(f) => return Ok((f, false)),
                    // Removed between the look and the open: try to make it again.
                    Err(Error::Posix(libc::ESTALE)) => continue,
                    Err(e) => return Err(e),
                },
            }
        }
        posix(libc::ESTALE)
    }
}

impl Inner {
    fn truncate_open(&self, cell: &Cell, cred: &Cred) -> Result<()> {
        let set = crate::SetAttr { size: Some(0), ..Default::default() };
        self.set_attr(cred, cell, &set, true)
    }

    /// Reads a file's content.
    pub(crate) fn read_data(
        &self,
        cell: &Cell,
        data: &FileData,
        off: u64,
        buf: &mut [u8],
        ahead: &ReadAhead,
    ) -> Result<usize> {
        data.read(&self.data_ctx(cell.ino), off, buf, ahead)
    }

    /// Moves the access time, as relatime does.
    pub(crate) fn touch_atime(&self, cell: &Cell) {
        let now = coarse_realtime_ns();
        if cell.wants_atime(now) && !self.options.read_only {
            cell.set_times(Some(now), None, None);
            self.dirty_cell(cell, 0);
        }
    }

    /// Writes at `offset`, or at the end if that is `None`; returns where and how much. `keep_times`: see [`File::write_back_at`].
    pub(crate) fn write_data(
        &self,
        cell: &Cell,
        data: &FileData,
        offset: Option<u64>,
        buf: &[u8],
        keep_times: bool,
        privileged: bool,
    ) -> Result<(u64, usize)> {
        self.writable()?;
        let ctx = self.data_ctx(cell.ino);
        let attempt = || match offset {
            Some(o) => data.write(&ctx, o, buf).map(|w| (o, w)),
            None => data.append(&ctx, buf),
        };
        let (at, w) = match attempt() {
            Err(e) if e.errno() == libc::ENOSPC && self.relieve(true) => attempt()?,
            r => r?,
        };
        if w.bytes > 0 {
            if !keep_times {
                let now = coarse_realtime_ns();
                cell.set_times(None, Some(now), Some(now));
                if !privileged && cell.mode() & (libc::S_ISUID | libc::S_ISGID) != 0 {
                    let l = cell.attr_lock.lock();
                    cell.set_owner_mode(&l, perm::without_privilege(cell.mode()), cell.uid(), cell.gid());
                }
            }
            self.dirty_cell(cell, if w.extended { DATASYNC } else { 0 });
        }
        Ok((at, w.bytes))
    }

    /// Sets the size of a file.
    pub(crate) fn truncate(&self, cell: &Cell, size: u64) -> Result<()> {
        let Some(data) = cell.data() else { return posix(libc::EINVAL) };
        let now = coarse_realtime_ns();
        let mut attrs = cell.attrs();
        (attrs.size, attrs.mtime, attrs.ctime) = (size, now, now);
        let ctx = self.data_ctx(cell.ino);
        match data.truncate(&ctx, size, Some(&attrs)) {
            Err(e) if e.errno() == libc::ENOSPC && self.relieve(true) => data.truncate(&ctx, size, Some(&attrs)),
            r => r,
        }
    }

    /// `fallocate(2)`.
    pub(crate) fn allocate(&self, cell: &Cell, mode: i32, offset: u64, len: u64) -> Result<()> {
        let Some(data) = cell.data() else {
            return posix(if cell.kind == FileKind::Dir { libc::EISDIR } else { libc::ENODEV });
        };
        self.writable()?;
        if len == 0 {
            return posix(libc::EINVAL);
        }
        Self::check_range(offset, len)?;
        let keep = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let ctx = self.data_ctx(cell.ino);
        let now = coarse_realtime_ns();
        let attrs = cell.attrs();
        match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => match data.allocate(&ctx, offset, len, keep) {
                Err(e) if e.errno() == libc::ENOSPC && self.relieve(true) => {
                    data.allocate(&ctx, offset, len, keep)?
                }
                r => r?,
            },
            libc::FALLOC_FL_PUNCH_HOLE if keep => data.punch_hole(&ctx, offset, len, Some(&attrs))?,
            libc::FALLOC_FL_ZERO_RANGE => data.zero_range(&ctx, offset, len, keep, Some(&attrs))?,
            _ => return posix(libc::EOPNOTSUPP),
        }
        cell.set_times(None, (!keep || mode & libc::FALLOC_FL_KEEP_SIZE != mode).then_some(now), Some(now));
        self.dirty_cell(cell, DATASYNC);
        Ok(())
    }

    /// Reserves the block of a new inode. ENOSPC.
    pub(crate) fn reserve_inode(&self) -> Result<()> {
        if self.store.reserve(self.lanes.mine(), 1)
            || self.relieve(false) && self.store.reserve(self.lanes.mine(), 1)
        {
            Ok(())
        } else {
            posix(libc::ENOSPC)
        }
    }

    pub(crate) fn unreserve_inode(&self) {
        self.store.unreserve(self.lanes.mine(), 1);
    }

    /// The volume is full: makes what was deleted count as free. False if there was nothing to gain. The caller holds no lock.
    /// `wait`: it is not pinned either, so the grace of what was just deleted may be waited for.
    #[cold]
    pub(crate) fn relieve(&self, wait: bool) -> bool {
        let before = self.store.space().free;
        if self.reap(wait).is_err() || self.checkpoint().is_err() {
            return false;
        }
        self.store.space().free > before
    }
}
