//! Permissions: the rules of POSIX mode bits, ownership, sticky directories and setuid
//! clearing.

use crate::error::{Error, Result};
use crate::memfs::Inode;
use crate::memfs::inode::{APPEND, IMMUTABLE};
use crate::{Cred, FileKind};

/// Permission to read, write and execute or search, as in `access(2)`.
pub(crate) const R: u32 = 4;
pub(crate) const W: u32 = 2;
pub(crate) const X: u32 = 1;

const _: () = assert!(R == libc::R_OK as u32 && W == libc::W_OK as u32 && X == libc::X_OK as u32);
const _: () = assert!(libc::S_IRUSR == R << 6 && libc::S_IXGRP == X << 3 && libc::S_IWOTH == W);

/// Returns an error of POSIX, in short.
fn err<T>(errno: i32) -> Result<T> {
    Err(Error::Posix(errno))
}

/// Checks that the caller may do what `mask` names: EPERM if the inode is immutable and `mask` has
/// [`W`]; EACCES unless the mode bits allow `mask`.
#[inline]
pub(crate) fn check(inode: &Inode, cred: &Cred, mask: u32) -> Result<()> {
    debug_assert!(mask & !(R | W | X) == 0, "{mask:o} is no permission");
    // For everybody, and before the mode, as Linux has it. A kernel in front of us knows nothing of
    // flags.
    if mask & W != 0 && inode.has_flag(IMMUTABLE) {
        return err(libc::EPERM);
    }
    if cred.prechecked {
        return Ok(());
    }
    if cred.is_root() {
        // The superuser may do all but execute what nobody may execute. (Where that is not asked,
        // the mode is not looked at: the line is one that changes of the inode write.)
        return if mask & X != 0 && inode.kind != FileKind::Dir && inode.mode() & 0o111 == 0 {
            err(libc::EACCES)
        } else {
            Ok(())
        };
    }
    let mode = inode.mode();
    let bits = if cred.uid == inode.uid() {
        mode >> 6
    } else if cred.in_group(inode.gid()) {
        mode >> 3
    } else {
        mode
    };
    if bits & mask == mask { Ok(()) } else { err(libc::EACCES) }
}

/// Returns whether the caller may search every directory, whatever its mode.
#[inline]
pub(crate) fn may_search_all(cred: &Cred) -> bool {
    cred.prechecked || cred.is_root()
}

/// Checks that the caller owns the inode: else EPERM.
pub(crate) fn check_owner(inode: &Inode, cred: &Cred) -> Result<()> {
    if cred.prechecked || cred.is_root() || cred.uid == inode.uid() { Ok(()) } else { err(libc::EPERM) }
}

/// Checks that the inode may get other attributes and names: EPERM for everybody if it is immutable
/// or only grows.
pub(crate) fn check_flags(inode: &Inode) -> Result<()> {
    if inode.has_flag(IMMUTABLE | APPEND) { err(libc::EPERM) } else { Ok(()) }
}

/// Checks that the caller may remove or replace `victim` in `dir`: EACCES without write permission;
/// EPERM in another's sticky directory, and where the flags of one of the two forbid it.
pub(crate) fn check_removal(dir: &Inode, victim: &Inode, cred: &Cred) -> Result<()> {
    debug_assert_eq!(dir.kind, FileKind::Dir, "names of inode {}", dir.ino);
    check(dir, cred, W | X)?;
    if dir.has_flag(APPEND) {
        return err(libc::EPERM);
    }
    check_flags(victim)?;
    if cred.prechecked || cred.is_root() || dir.mode() & libc::S_ISVTX == 0 {
        return Ok(());
    }
    if cred.uid == victim.uid() || cred.uid == dir.uid() { Ok(()) } else { err(libc::EPERM) }
}

/// Returns mode, owner and group of an inode made in `dir`: a setgid directory hands on its group,
/// and itself to subdirectories. Who is not in that group makes no setgid program; of a prechecked
/// caller, whose groups are not known here, that has been seen to.
pub(crate) fn born(dir: &Inode, cred: &Cred, mode: u32, kind: FileKind) -> (u32, u32, u32) {
    debug_assert_eq!(dir.kind, FileKind::Dir, "inode {} hands nothing on", dir.ino);
    let mut mode = (mode & 0o7777) | kind.mode_bits();
    let mut gid = cred.gid;
    if dir.mode() & libc::S_ISGID != 0 {
        gid = dir.gid();
        if kind == FileKind::Dir {
            mode |= libc::S_ISGID;
        } else if mode & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID | libc::S_IXGRP
            && !cred.is_root()
            && !cred.prechecked
            && !cred.in_group(gid)
        {
            mode &= !libc::S_ISGID;
        }
    }
    debug_assert_eq!(FileKind::from_mode(mode), Some(kind), "mode {mode:o}");
    (mode, cred.uid, gid)
}

/// Returns what becomes of a mode when somebody writes who may not keep it privileged. `in_group`:
/// who does it is in the file's group.
pub(crate) fn dropping(in_group: bool) -> fn(u32) -> u32 {
    if in_group { without_execution } else { without_set_id }
}

/// Returns the mode after a write by one of the file's group: setuid goes, and setgid where it
/// means execution.
fn without_execution(mode: u32) -> u32 {
    let m = if mode & libc::S_IXGRP != 0 { without_set_id(mode) } else { mode & !libc::S_ISUID };
    debug_assert!(m & !mode == 0 && m & libc::S_ISUID == 0, "{mode:o} became {m:o}");
    debug_assert_eq!(m & 0o1777, mode & 0o1777, "a write takes nothing but privilege");
    m
}

/// Returns the mode after a write by one outside the file's group: setuid and setgid go.
fn without_set_id(mode: u32) -> u32 {
    let m = mode & !(libc::S_ISUID | libc::S_ISGID);
    debug_assert_eq!(m & 0o1777, mode & 0o1777, "a write takes nothing but privilege");
    m
}

/// Checks a name for a new entry: EINVAL, ENOENT or ENAMETOOLONG for what is none.
#[inline]
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() {
        return err(libc::ENOENT);
    }
    if name.len() > lanefs_format::NAME_MAX {
        return err(libc::ENAMETOOLONG);
    }
    if name.iter().any(|b| *b == 0 || *b == b'/') {
        return err(libc::EINVAL);
    }
    Ok(())
}
