//! Extended attributes: getxattr, setxattr, listxattr, removexattr.

use super::perm::{self, R, W};
use super::rights::Rights;
use super::{Op, posix};
use crate::acl::{ACCESS as ACCESS_ACL, DEFAULT as DEFAULT_ACL};
use crate::core::Core;
use crate::core::space::{blocks_of_xattrs, promise_of_xattrs};
use crate::error::Result;
use crate::memfs::Inode;
use crate::memfs::inode::{HAS_XATTRS, PRIVILEGED, XATTR_DIRTY};
use crate::memfs::xattr::{XATTR_NAME_MAX, XATTR_VALUE_MAX, Xattrs};
use crate::ops::rights;
use crate::{Cred, FileKind};
use crossbeam_epoch::Guard;
use lanefs_format::XATTR_BLOB_MAX;
use lanefs_format::record::NEW_XATTRS_MAX;
use lanefs_format::xattrs::{self, ACL_PREFIX, CAPABILITY, CAPABILITY_MAX};
use lanefs_sync::clock::coarse_realtime_ns;
use std::sync::atomic::Ordering::Relaxed;

/// Checks that the caller may use a name at all, and has what changing it takes: ownership or write
/// permission.
fn check(inode: &Inode, cred: &Cred, name: &[u8], write: bool) -> Result<()> {
    if name.is_empty() {
        return posix(libc::ERANGE);
    }
    if name.len() > XATTR_NAME_MAX {
        return posix(libc::ERANGE);
    }
    if write {
        perm::check_flags(inode)?;
    }
    let has = |p: &[u8]| name.starts_with(p);
    // As Linux has it: a name that is a prefix alone is refused after permissions are checked.
    let whole = || {
        if name.ends_with(b".") && name.iter().filter(|b| **b == b'.').count() == 1 {
            posix(libc::EINVAL)
        } else {
            Ok(())
        }
    };
    if has(b"user.") {
        // Only files and directories have user attributes; in a sticky directory only the owner
        // changes them.
        if !matches!(inode.kind, FileKind::File | FileKind::Dir) {
            return posix(if write { libc::EPERM } else { libc::ENODATA });
        }
        if write && inode.kind == FileKind::Dir && inode.mode() & libc::S_ISVTX != 0 {
            perm::check_owner(inode, cred)?;
        }
        return perm::check(inode, cred, if write { W } else { R }).and_then(|()| whole());
    }
    if has(b"trusted.") {
        return if cred.is_root() || cred.prechecked {
            whole()
        } else {
            posix(if write { libc::EPERM } else { libc::ENODATA })
        };
    }
    if has(b"security.") {
        return if write && !cred.is_root() && !cred.prechecked { posix(libc::EPERM) } else { whole() };
    }
    if name == ACCESS_ACL || name == DEFAULT_ACL {
        if name == DEFAULT_ACL && inode.kind != FileKind::Dir {
            return posix(if write { libc::EACCES } else { libc::ENODATA });
        }
        return if write { perm::check_owner(inode, cred) } else { Ok(()) };
    }
    posix(libc::EOPNOTSUPP)
}

/// The longest ACL: a new directory gets the default one twice, with its name in one group.
const ACL_MAX: usize = 3800;

const _: () = assert!(
    Xattrs::bytes(ACCESS_ACL, &[0; ACL_MAX]) + Xattrs::bytes(DEFAULT_ACL, &[0; ACL_MAX]) <= NEW_XATTRS_MAX,
    "a new directory's two ACLs"
);
const _: () = assert!(XATTR_VALUE_MAX + XATTR_NAME_MAX < XATTR_BLOB_MAX, "one attribute fits");
const _: () = assert!(DEFAULT_ACL.len() <= XATTR_NAME_MAX && XATTR_NAME_MAX <= u8::MAX as usize);

/// Encodes the attributes that a new inode of this kind has from the start. ENOSPC if the group
/// that makes the inode cannot hold them.
pub(crate) fn first(cred: &Cred, kind: FileKind, list: &[(&[u8], &[u8])]) -> Result<Vec<u8>> {
    let mut all = Xattrs::default();
    for (name, value) in list {
        let has = |p: &[u8]| name.starts_with(p) && name.len() > p.len();
        match name.len() {
            1..=XATTR_NAME_MAX => {}
            _ => return posix(libc::ERANGE),
        }
        if has(b"user.") {
            if !matches!(kind, FileKind::File | FileKind::Dir) {
                return posix(libc::EPERM);
            }
        } else if has(b"trusted.") || has(b"security.") {
            if !cred.is_root() && !cred.prechecked {
                return posix(libc::EPERM);
            }
        } else if *name == DEFAULT_ACL && kind != FileKind::Dir {
            return posix(libc::EACCES);
        } else if *name != DEFAULT_ACL && *name != ACCESS_ACL {
            return posix(libc::EOPNOTSUPP);
        }
        all = all.with(name, Some(value)).map_err(crate::Error::Posix)?;
    }
    if all.encoded().len() > NEW_XATTRS_MAX {
        return posix(libc::ENOSPC);
    }
    debug_assert!(Xattrs::decode(all.encoded()).is_some(), "the new inode would lose them");
    debug_assert_eq!(all.names().count() == 0, list.is_empty(), "{} were given", list.len());
    Ok(all.encoded().to_vec())
}

/// Returns the inode's attributes, read from the store if need be; `None`: there are none. Writes
/// nothing if they are in memory.
fn load_xattrs<'g>(core: &Core, inode: &'g Inode, guard: &'g Guard) -> Result<Option<&'g Xattrs>> {
    loop {
        if let Some(x) = inode.xattrs.get(guard) {
            return Ok(Some(x));
        }
        if !inode.has(HAS_XATTRS) {
            return Ok(None);
        }
        let Some(image) = core.store.load_inode(inode.ino)? else { return posix(libc::ESTALE) };
        let Some(loaded) = Xattrs::decode(&image.xattrs) else {
            let why = "its extended attributes are malformed".into();
            return Err(lanefs_store::StoreError::BadInode { ino: inode.ino, why }.into());
        };
        let l = inode.xattrs.lock();
        // Whoever was faster may have changed them since.
        if inode.xattrs.get(guard).is_none() {
            inode.xattrs.publish(&l, loaded, guard);
        }
    }
}

/// Returns whether an attribute gives rights, or takes them: ACLs, and the capabilities that a
/// program runs with.
fn is_right(name: &[u8]) -> bool {
    debug_assert!(!name.is_empty(), "an attribute has a name");
    name.starts_with(ACL_PREFIX) || name == CAPABILITY
}

/// Replaces them by what `f` makes of them, and mode and owner as `also` says. Where an attribute
/// is a right, in an ordered volume, all that is one operation of the log (ops::rights).
fn change_xattrs(
    core: &Core,
    inode: &Inode,
    name: &[u8],
    also: &Rights,
    f: impl Fn(&Xattrs) -> std::result::Result<Xattrs, i32>,
) -> Result<()> {
    debug_assert!((1..=XATTR_NAME_MAX).contains(&name.len()), "a name that was not checked");
    let guard = crossbeam_epoch::pin();
    let none = Xattrs::default();
    loop {
        // Read before the lock is taken, which is held over no I/O.
        load_xattrs(core, inode, &guard)?;
        let l = inode.xattrs.lock();
        let now = match inode.xattrs.get(&guard) {
            Some(x) => x,
            None if inode.has(HAS_XATTRS) => continue,
            None => &none,
        };
        let new = f(now).map_err(crate::Error::Posix)?;
        // Before it is there: who writes looks for the mark, and then for the attribute.
        if new.get(CAPABILITY).is_some() {
            inode.set(PRIVILEGED);
        }
        if !(core.is_ordered() && is_right(name)) {
            inode.xattrs.publish(&l, new, &guard);
            drop(l);
            rights::set_rights(core, inode, also);
            return Ok(());
        }
        let listed = xattrs::rights(new.encoded(), inode.kind == FileKind::File);
        debug_assert!(listed.is_some(), "they were encoded by this crate");
        let publish = || inode.xattrs.publish(&l, new, &guard);
        if rights::try_rights(core, inode, also, Some(&listed.unwrap_or_default()), publish) {
            return Ok(());
        }
        drop(l);
        rights::wait_for_rights(core, inode);
    }
}

/// Returns the value of an attribute. ENODATA: there is none.
pub(crate) fn get_xattr(core: &Core, cred: &Cred, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
    check(inode, cred, name, false)?;
    let guard = crossbeam_epoch::pin();
    match load_xattrs(core, inode, &guard)?.and_then(|x| x.get(name)) {
        Some(v) => Ok(v.to_vec()),
        None => posix(libc::ENODATA),
    }
}

/// Returns the names of the attributes that the caller may know of.
pub(crate) fn list_xattrs(core: &Core, cred: &Cred, inode: &Inode) -> Result<Vec<Vec<u8>>> {
    let guard = crossbeam_epoch::pin();
    let Some(x) = load_xattrs(core, inode, &guard)? else { return Ok(Vec::new()) };
    let all = cred.is_root() || cred.prechecked;
    Ok(x.names().filter(|n| all || !n.starts_with(b"trusted.")).map(<[u8]>::to_vec).collect())
}

/// Sets an attribute. Returns false if the volume has no space for it now. Where the inode has too
/// many the error is ENOSPC: no space helps.
pub(crate) fn set_xattr(
    core: &Core,
    cred: &Cred,
    inode: &Inode,
    (name, value): (&[u8], &[u8]),
    flags: i32,
) -> Result<bool> {
    set_with(core, cred, inode, (name, value), flags, &Rights::default())
}

/// Sets an attribute, and mode and owner in the same change. Returns false, as [`set_xattr`], when
/// nothing of it was done.
pub(crate) fn set_with(
    core: &Core,
    cred: &Cred,
    inode: &Inode,
    (name, value): (&[u8], &[u8]),
    flags: i32,
    also: &Rights,
) -> Result<bool> {
    check(inode, cred, name, true)?;
    core.writable()?;
    if flags & !(libc::XATTR_CREATE | libc::XATTR_REPLACE) != 0 {
        return posix(libc::EINVAL);
    }
    if value.len() > XATTR_VALUE_MAX {
        return posix(libc::E2BIG);
    }
    if name.starts_with(ACL_PREFIX) && value.len() > ACL_MAX {
        return posix(libc::ENOSPC);
    }
    // The kernel takes some lengths alone. Empty they are in no list of rights.
    if name == CAPABILITY && !(1..=CAPABILITY_MAX).contains(&value.len()) {
        return posix(libc::EINVAL);
    }
    // What fails changes nothing, and is answered without the lock.
    let fits = |x: &Xattrs| match x.get(name) {
        Some(_) if flags & libc::XATTR_CREATE != 0 => Err(libc::EEXIST),
        None if flags & libc::XATTR_REPLACE != 0 => Err(libc::ENODATA),
        _ => Ok(()),
    };
    let blocks = {
        let guard = crossbeam_epoch::pin();
        let none = Xattrs::default();
        let now = load_xattrs(core, inode, &guard)?.unwrap_or(&none);
        fits(now).map_err(crate::Error::Posix)?;
        // A list of attributes outside the inode is written anew whole. At most so long,
        // whatever this one's name had.
        let before = now.encoded().len();
        promise_of_xattrs(core, before, before + Xattrs::bytes(name, value))
    };
    if blocks > 0 && !core.store.reserve_nodes(core.journal.lanes.mine(), blocks, cred.claimant()) {
        return Ok(false);
    }
    let set = change_xattrs(core, inode, name, also, |x| {
        fits(x)?;
        x.with(name, Some(value))
    });
    if set.is_ok() {
        xattrs_changed(core, inode);
    }
    if blocks > 0 {
        hand_over_xattrs(core, inode, set.is_ok(), blocks);
    }
    set.map(|()| true)
}

/// Removes an attribute; an ACL need not be there, as in the kernel's file systems. Returns false
/// if there is no space to write the others anew: as [`set_xattr`].
pub(crate) fn remove_xattr(core: &Core, cred: &Cred, inode: &Inode, name: &[u8]) -> Result<bool> {
    remove_with(core, cred, inode, name, &Rights::default())
}

/// Removes an attribute, and changes mode and owner with it, also if there was none.
pub(crate) fn remove_with(
    core: &Core,
    cred: &Cred,
    inode: &Inode,
    name: &[u8],
    also: &Rights,
) -> Result<bool> {
    check(inode, cred, name, true)?;
    core.writable()?;
    match remove(core, inode, name, also) {
        // Not any more, where somebody else was faster.
        Err(e) if name.starts_with(ACL_PREFIX) && e.errno() == libc::ENODATA => {
            rights::set_rights(core, inode, also);
            Ok(true)
        }
        done => done,
    }
}

/// Takes from a file the capabilities that programs run with, as every change of content does.
/// ENOSPC: there is no space to write its other attributes anew.
pub(crate) fn drop_capability(core: &Core, inode: &Inode) -> Result<()> {
    debug_assert!(inode.has(PRIVILEGED), "it is looked for where it may be");
    match remove(core, inode, CAPABILITY, &Rights::default()) {
        Ok(true) => Ok(()),
        Ok(false) => posix(libc::ENOSPC),
        Err(e) if e.errno() == libc::ENODATA => Ok(()),
        Err(e) => Err(e),
    }
}

/// Removes an attribute, whoever asks. ENODATA: there is none.
fn remove(core: &Core, inode: &Inode, name: &[u8], also: &Rights) -> Result<bool> {
    let blocks = {
        let guard = crossbeam_epoch::pin();
        let now = load_xattrs(core, inode, &guard)?;
        let Some((now, value)) = now.and_then(|x| Some((x, x.get(name)?))) else {
            return posix(libc::ENODATA);
        };
        blocks_of_xattrs(now.encoded().len().saturating_sub(Xattrs::bytes(name, value)))
    };
    // What is left is written anew, and gives its old blocks back: possible on a full volume
    // too.
    let lane = core.journal.lanes.mine();
    let all = blocks * core.store.metadata_copies();
    if let Some(got) = (0..all).find(|_| !core.store.reserve_rewrite(lane)) {
        debug_assert!(got < all, "{got} of {all} blocks, and no more are needed");
        core.store.unreserve(lane, got);
        return Ok(false);
    }
    let removed = change_xattrs(core, inode, name, also, |x| match x.get(name) {
        Some(_) => x.with(name, None),
        None => Err(libc::ENODATA),
    });
    if removed.is_ok() {
        xattrs_changed(core, inode);
    }
    if blocks > 0 {
        hand_over_xattrs(core, inode, removed.is_ok(), blocks);
    }
    removed.map(|()| true)
}

/// Gives the store attributes that may take `blocks`, so that the checkpoint which
/// gives the promise back is the one that writes them.
fn hand_over_xattrs(core: &Core, inode: &Inode, changed: bool, blocks: u64) {
    debug_assert!(blocks > 0, "attributes that are promised nothing");
    if changed
        && let Some(persistence) = core.persistence()
        && let Err(e) = persistence.write_attributes(inode)
    {
        // They are dirty still; who syncs gets the error.
        tracing::debug!("attributes of inode {}: {e}", inode.ino);
    }
    core.budget.count_xattr_blocks(blocks);
    core.journal.lanes.shared(core.journal.lanes.mine()).look.store(true, Relaxed);
    let mut op = Op::begin(core);
    let epoch = core.journal.epochs.current();
    op.log.promise(epoch, blocks);
}

/// Marks an inode whose attributes were changed just now.
fn xattrs_changed(core: &Core, inode: &Inode) {
    core.journal.changed(inode, false, coarse_realtime_ns(), XATTR_DIRTY);
}
