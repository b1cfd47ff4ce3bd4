//! Changing attributes: chmod, chown, utimens, truncate by path or number.

use super::perm::{self, W};
use super::posix;
use super::rights::Rights;
use crate::core::Core;
use crate::error::Result;
use crate::memfs::Inode;
use crate::memfs::inode::{APPEND, DATASYNC, IMMUTABLE, PRIVILEGED};
use crate::ops::content;
use crate::ops::{rights, xattr};
use crate::stat::{SetAttr, SetTime};
use crate::{Cred, FileKind};
use lanefs_sync::clock::coarse_realtime_ns;

/// Changes attributes: checks, then changes all that is asked or nothing.
pub(crate) fn set_attr(
    core: &Core,
    cred: &Cred,
    inode: &Inode,
    set: &SetAttr,
    through_handle: bool,
) -> Result<()> {
    let change = |r: &Rights| {
        rights::set_rights(core, inode, r);
        Ok(true)
    };
    set_attr_by(core, cred, inode, set, through_handle, change).map(|_| ())
}

/// Changes attributes, mode and owner by `change`. Returns false, behind a new size alone, where
/// that did.
#[inline(always)]
pub(crate) fn set_attr_by(
    core: &Core,
    cred: &Cred,
    inode: &Inode,
    set: &SetAttr,
    through_handle: bool,
    change: impl FnOnce(&Rights) -> Result<bool>,
) -> Result<bool> {
    core.writable()?;
    check_change(cred, inode, set, through_handle)?;
    // On a mount the kernel does, where that is a call of a program.
    if inode.has(PRIVILEGED) && !cred.prechecked && inode.kind != FileKind::Dir {
        let takes = set.size.is_some() || set.uid.is_some() || set.gid.is_some();
        takes.then(|| xattr::drop_capability(core, inode)).transpose()?;
    }
    if let Some(size) = set.size {
        content::truncate(core, inode, size)?;
    }
    debug_assert!(set.size.is_none() || inode.data().is_some(), "inode {} has no content", inode.ino);
    // Behind what may take long: others' changes meanwhile are not followed by an earlier time.
    let now = coarse_realtime_ns();
    let chown = set.uid.is_some() || set.gid.is_some();
    let touches_inode = set.mode.is_some() || chown || set.size.is_some() || set.kill_priv;
    // A group the caller is not in must not become a privilege.
    let stranger = |gid| !cred.is_root() && !cred.prechecked && !cred.in_group(gid);
    let mode = set.mode.map(|m| {
        let m = inode.kind.mode_bits() | m & 0o7777;
        if stranger(set.gid.unwrap_or_else(|| inode.gid())) { m & !libc::S_ISGID } else { m }
    });
    let drops = mode.is_none() && (chown || set.kill_priv || set.size.is_some() && !cred.is_root());
    let drops = drops && inode.kind != FileKind::Dir;
    debug_assert!(mode.is_none_or(|m| FileKind::from_mode(m) == Some(inode.kind)), "chmod changes the kind");
    // The group is that of the file as it was. Who is prechecked states it.
    let drop = drops.then(|| perm::dropping(!set.kill_sgid && !stranger(inode.gid())));
    if !change(&Rights { mode, uid: set.uid, gid: set.gid, drop })? {
        return Ok(false);
    }
    let at = |t: Option<SetTime>| {
        t.map(|t| match t {
            SetTime::Now => now,
            SetTime::At(ns) => ns,
        })
    };
    // A time that the caller chose, or one beside it, goes into the inode; the clock's where the
    // lane stamps.
    let chosen = set.mtime.is_some() || set.ctime.is_some();
    if chosen {
        inode.set_explicit(at(set.mtime).or(set.size.map(|_| now)), set.ctime, now);
    }
    if set.atime.is_some() {
        inode.set_times(at(set.atime), None, None);
    }
    let flags = if set.size.is_some() { DATASYNC } else { 0 };
    if set.ctime.is_none() && (touches_inode || set.atime.is_some() || set.mtime.is_some()) {
        core.journal.changed(inode, set.size.is_some() && !chosen, now, flags);
    } else {
        core.journal.dirty_inode(inode, flags);
    }
    Ok(true)
}

/// Checks that the caller may change all of this.
#[inline]
fn check_change(cred: &Cred, inode: &Inode, set: &SetAttr, through_handle: bool) -> Result<()> {
    if let Some(size) = set.size {
        if inode.kind == FileKind::Dir {
            return posix(libc::EISDIR);
        }
        if inode.data().is_none() {
            return posix(libc::EINVAL);
        }
        if size > lanefs_format::MAX_FILE_SIZE {
            return posix(libc::EFBIG);
        }
        if !through_handle {
            perm::check(inode, cred, W)?;
        }
    }
    if inode.has_flag(IMMUTABLE | APPEND) {
        check_flags(inode, set, through_handle)?;
    }
    if set.mode.is_some() {
        if inode.kind == FileKind::Symlink {
            return posix(libc::EOPNOTSUPP);
        }
        perm::check_owner(inode, cred)?;
    }
    if set.uid.is_some() || set.gid.is_some() {
        check_chown(inode, cred, set)?;
    }
    if set.atime.is_some() || set.mtime.is_some() {
        let exact = |t: Option<SetTime>| matches!(t, Some(SetTime::At(_)));
        if exact(set.atime) || exact(set.mtime) || set.atime.is_none() != set.mtime.is_none() {
            perm::check_owner(inode, cred)?;
        } else if perm::check_owner(inode, cred).is_err() {
            perm::check(inode, cred, W)?;
        }
    }
    Ok(())
}

/// Checks a change of an inode that is immutable, or only grows: EPERM where it may not be changed
/// so.
///
/// A kernel that caches writes keeps times and hands them over later, alone and with the ctime;
/// that is no change of attributes. Without a handle it hands over the ctime, and the mtime as it
/// is here. Two times at the present are a `touch`, which who may append may do too; such a kernel
/// sends its own idea of the present, twice.
fn check_flags(inode: &Inode, set: &SetAttr, through_handle: bool) -> Result<()> {
    let changes = set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || set.size.is_some();
    let handed_over = |t: SetTime| through_handle || t == SetTime::At(inode.stat().mtime);
    if !changes && set.atime.is_none() && set.ctime.is_some() && set.mtime.is_none_or(handed_over) {
        return Ok(());
    }
    if !changes && set.kill_priv && set.atime.is_none() && set.mtime.is_none() {
        // A write does that, and it was allowed.
        return Ok(());
    }
    let now = set.mtime == Some(SetTime::Now) || set.ctime.is_some_and(|c| set.mtime == Some(SetTime::At(c)));
    let touches = !changes && set.atime == Some(SetTime::Now) && now;
    if touches && !inode.has_flag(IMMUTABLE) { Ok(()) } else { posix(libc::EPERM) }
}

/// Checks a chown(2): the superuser may do anything; an owner may hand the file to a group of
/// theirs.
fn check_chown(inode: &Inode, cred: &Cred, set: &SetAttr) -> Result<()> {
    debug_assert!(set.uid.is_some() || set.gid.is_some(), "no owner is changed");
    if cred.is_root() || cred.prechecked {
        return Ok(());
    }
    let keeps_owner = set.uid.is_none_or(|u| u == inode.uid());
    let gid_ok = set.gid.is_none_or(|g| g == inode.gid() || cred.in_group(g));
    if cred.uid == inode.uid() && keeps_owner && gid_ok { Ok(()) } else { posix(libc::EPERM) }
}
