//! Opening: from an inode to a claim on it.

use super::create::{self, Made, Spec};
use super::perm::{self, R, W};
use super::{attr, resolve};
use crate::core::Core;
use crate::error::{Error, Result, posix};
use crate::memfs::Inode;
use crate::memfs::inode::{APPEND, EVICTED, FREED};
use crate::{Cred, FileKind, Ino, SetAttr};
use crossbeam_epoch::Guard;
use std::sync::atomic::Ordering;

/// The number of times that an inode is looked up again which is evicted between two looks.
const EVICTIONS: usize = 100;
/// The number of times that a name is made or opened again which others remove and make.
const TURNS: usize = 1000;

/// Returns whether the access mode of `flags` allows writing.
fn writes(flags: i32) -> bool {
    matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR)
}

/// Returns the flags that count: with O_PATH those of the walk alone, as for open(2).
pub(crate) fn counting(flags: i32) -> i32 {
    let counting = match flags & libc::O_PATH {
        0 => flags,
        _ => flags & (libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC),
    };
    debug_assert_eq!(counting & !flags, 0, "a flag that nobody gave");
    counting
}

/// Returns the permissions that an open with `flags` needs.
fn wanted(flags: i32) -> u32 {
    debug_assert!(flags & libc::O_PATH == 0, "a path needs none");
    let mut m = match flags & libc::O_ACCMODE {
        libc::O_WRONLY => W,
        libc::O_RDWR => R | W,
        _ => R,
    };
    if flags & libc::O_TRUNC != 0 {
        m |= W;
    }
    debug_assert!(m & !(R | W) == 0 && m != 0, "a file is opened for {m}");
    debug_assert!(!writes(flags) || m & W != 0, "writing needs no permission");
    m
}

/// An inode held by an open slot of the calling thread's lane: neither the reaper nor the reclaimer
/// ends it. The slot is given back when this is dropped, unless it is kept.
pub(crate) struct Claim<'c> {
    core: &'c Core,
    pub inode: &'c Inode,
    pub lane: usize,
    slot: usize,
}

impl<'c> Claim<'c> {
    /// Keeps the slot for a handle, which gives it back.
    pub fn keep(self) -> (&'c Inode, usize) {
        debug_assert!(!self.inode.has(EVICTED), "inode {} is claimed", self.inode.ino);
        let kept = (self.inode, self.slot);
        std::mem::forget(self);
        kept
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.core.journal.lanes.shared(self.lane).slots.give_back(self.slot);
    }
}

/// Claims an inode. ESTALE if it ended, or left memory.
#[inline]
pub(crate) fn claim<'c>(core: &'c Core, inode: &'c Inode) -> Result<Claim<'c>> {
    let lane = core.journal.lanes.mine();
    debug_assert!(!inode.ino.is_none(), "0 marks a free slot");
    let slot = core.journal.lanes.shared(lane).slots.take(inode.ino);
    let claim = Claim { core, inode, lane, slot };
    // SeqCst: after the slot's store (persist::reaper, 3).
    if inode.life.load(Ordering::SeqCst) & (FREED | EVICTED) != 0 {
        return posix(libc::ESTALE);
    }
    Ok(claim)
}

/// Opens an inode by number.
pub(crate) fn open<'c>(
    core: &'c Core,
    cred: &Cred,
    ino: Ino,
    flags: i32,
    guard: &'c Guard,
) -> Result<Claim<'c>> {
    for _ in 0..EVICTIONS {
        let inode = resolve::find(core, ino, guard)?;
        check_open(core, cred, inode, flags)?;
        match claim(core, inode) {
            // Evicted between the two looks: the next look loads it again.
            Err(Error::Posix(libc::ESTALE)) if !inode.has(FREED) => {}
            Err(e) => return Err(e),
            Ok(claim) => {
                debug_assert_eq!(claim.inode.ino, ino, "another inode was found");
                if flags & libc::O_TRUNC != 0 && inode.kind == FileKind::File {
                    let set = SetAttr { size: Some(0), ..Default::default() };
                    attr::set_attr(core, cred, inode, &set, true)?;
                }
                return Ok(claim);
            }
        }
    }
    posix(libc::ESTALE)
}

/// Checks that an inode may be opened with `flags`.
fn check_open(core: &Core, cred: &Cred, inode: &Inode, flags: i32) -> Result<()> {
    match inode.kind {
        FileKind::Dir if writes(flags) || flags & (libc::O_CREAT | libc::O_TRUNC) != 0 => {
            return posix(libc::EISDIR);
        }
        k if k != FileKind::Dir && flags & libc::O_DIRECTORY != 0 => return posix(libc::ENOTDIR),
        // It is to be looked at: any kind, and nothing of it is used that a right is needed for.
        _ if flags & libc::O_PATH != 0 => return core.check_alive(),
        FileKind::Symlink => return posix(libc::ELOOP),
        _ => {}
    }
    perm::check(inode, cred, wanted(flags))?;
    let grows_only = flags & (libc::O_APPEND | libc::O_TRUNC) == libc::O_APPEND;
    if wanted(flags) & W != 0 && !grows_only && inode.has_flag(APPEND) {
        return posix(libc::EPERM);
    }
    // Pipes and devices are the kernel's; a mount never asks. As for a socket: there is nothing
    // to be opened.
    if !matches!(inode.kind, FileKind::File | FileKind::Dir) {
        return posix(libc::ENXIO);
    }
    if flags & libc::O_NOATIME != 0 {
        perm::check_owner(inode, cred)?;
    }
    if writes(flags) || flags & libc::O_TRUNC != 0 {
        core.writable()?;
    }
    core.check_alive()
}

/// Creates or opens `name` in `parent` as open(2) does with O_CREAT. Returns whether it was made,
/// too.
pub(crate) fn create<'c>(
    core: &'c Core,
    cred: &Cred,
    (parent, name): resolve::At<'_>,
    spec: &Spec<'_>,
    flags: i32,
    guard: &'c Guard,
) -> Result<(Claim<'c>, bool)> {
    debug_assert_eq!(spec.kind, FileKind::File, "open(2) makes files");
    for _ in 0..TURNS {
        match create::make(core, cred, parent, name, spec, guard)? {
            Made::New(inode) => match claim(core, inode) {
                Ok(claim) => return Ok((claim, true)),
                Err(Error::Posix(libc::ESTALE)) => return posix(libc::ENOENT),
                Err(e) => return Err(e),
            },
            Made::Exists(..) if flags & libc::O_EXCL != 0 => return posix(libc::EEXIST),
            Made::Exists(_, FileKind::Symlink) => return posix(libc::ELOOP),
            Made::Exists(ino, _) => match open(core, cred, ino, flags, guard) {
                Ok(claim) => return Ok((claim, false)),
                // Removed between the look and the open: try to make it again.
                Err(Error::Posix(libc::ESTALE)) => {}
                Err(e) => return Err(e),
            },
        }
    }
    posix(libc::ESTALE)
}
