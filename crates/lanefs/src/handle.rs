//! Opening: from a cell to a handle.

use crate::error::{Error, Result, posix};
use crate::file::File;
use crate::memfs::Cell;
use crate::memfs::cell::{APPEND, EVICTED, FREED};
use crate::ops::create::{Made, Spec};
use crate::ops::perm::{self, R, W};
use crate::volume::Root;
use crate::{Cred, FileKind, Ino};
use crossbeam_epoch::Guard;
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
    /// A handle on a cell: takes an open slot in this lane, so that neither the reaper nor the
    /// reclaimer ends the cell.
    pub(crate) fn handle(&self, cell: &Cell, cred: &Cred, flags: i32) -> Result<File> {
        let lane = self.inner.lanes.mine();
        let slots = &self.inner.lanes.shared(lane).slots;
        let slot = slots.take(cell.ino);
        // SeqCst: after the slot's store (reaper, 3).
        if cell.life.load(SeqCst) & (FREED | EVICTED) != 0 {
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
            FileKind::Dir if writes(flags) || flags & (libc::O_CREAT | libc::O_TRUNC) != 0 => {
                return posix(libc::EISDIR);
            }
            k if k != FileKind::Dir && flags & libc::O_DIRECTORY != 0 => return posix(libc::ENOTDIR),
            FileKind::Symlink => return posix(libc::ELOOP),
            _ => {}
        }
        perm::check(cell, cred, wanted(flags))?;
        let grows_only = flags & (libc::O_APPEND | libc::O_TRUNC) == libc::O_APPEND;
        if wanted(flags) & W != 0 && !grows_only && cell.has_flag(APPEND) {
            return posix(libc::EPERM);
        }
        // Pipes and devices are the kernel's; a mount never asks. As for a socket: there is nothing
        // to be opened.
        if !matches!(cell.kind, FileKind::File | FileKind::Dir) {
            return posix(libc::ENXIO);
        }
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
        spec: &Spec<'_>,
        flags: i32,
        guard: &Guard,
    ) -> Result<(File, bool)> {
        for _ in 0..1000 {
            match self.inner.make(cred, parent, name, spec, guard)? {
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
