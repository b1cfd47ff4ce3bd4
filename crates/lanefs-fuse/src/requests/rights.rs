//! Rules about modes and ACLs that FUSE leaves to the file system.
//!
//! With KILLPRIV_V2 the file system clears setuid and setgid. The kernel states when, but for
//! fallocate and copy_file_range: there the caller is looked up. So it is for setgid of what the
//! group may not execute, which one of the file's group leaves: the kernel tells one group of the
//! caller, and flags a change of owner whoever makes it.
//!
//! It flags one that chown(2) does not make, too: an overlay gives what it copies up its mode
//! first, and then its owner, which clears nothing. What tells them apart is the time of the
//! change: only chown(2) sets it, and the kernel hands it over where it keeps the times of files,
//! as it does where it gathers writes. Elsewhere the file shows it: an overlay copies to one
//! without a name.

use super::Wire;
use crate::adaptor::Adaptor;
use crate::translate::root;
use crate::wire::Request;
use crate::wire::abi::fattr;
use lanefs::acl::{self, Acl};
use lanefs::{FileKind, Ino, Result, SetAttr, Volume};

/// The bits of a mode that make a program run as somebody else.
const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;

/// Returns the mode and the ACLs of a file about to be made in `parent`.
pub(super) fn inherit(
    volume: &Volume,
    parent: Ino,
    mode: u32,
    umask: u32,
    is_dir: bool,
) -> Wire<acl::Inherited> {
    let default = match volume.node_getxattr(&root(), parent, acl::DEFAULT) {
        Ok(value) => Acl::decode(&value),
        Err(e) if matches!(e.errno(), libc::ENODATA | libc::EOPNOTSUPP) => None,
        Err(e) => return Err(e.into()),
    };
    let inherited = match default {
        Some(default) => default.inherit(mode, is_dir),
        None => acl::Inherited { mode: mode & !umask, access: None, default: None },
    };
    debug_assert_eq!(inherited.mode & !mode, 0, "more than who makes the file asked for");
    debug_assert!(is_dir || inherited.default.is_none(), "only directories hand an ACL down");
    Ok(inherited)
}

/// Returns whether setgid goes from a file with this mode and group though the group may not
/// execute it. Few files have such a mode; only of them it is asked who changes them.
fn kills_sgid(req: &Request<'_>, mode: u32, gid: u32) -> bool {
    mode & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID && req.is_outside(gid) && !req.keeps_set_ids()
}

/// Clears setuid and setgid if the file has them. The kernel hears of it before the request is
/// answered: by a mode that it believes somebody would be root who is not.
///
/// Where the kernel keeps the times of files it has changed the ctime itself, and hands it over
/// unless it was that before: a later one would stay here, and never be shown.
pub(super) fn kill_priv(adaptor: &Adaptor, req: &Request<'_>, target: Ino) -> Result<()> {
    let stat = adaptor.volume.node_stat(target)?;
    debug_assert_eq!(stat.ino, target);
    if stat.mode & SET_ID == 0 {
        return Ok(());
    }
    let kill_sgid = kills_sgid(req, stat.mode, stat.gid);
    if stat.mode & (libc::S_ISUID | libc::S_IXGRP) == 0 && !kill_sgid {
        return Ok(());
    }
    debug_assert!(!kill_sgid || stat.mode & libc::S_ISGID != 0, "there is none to go");
    let ctime = (adaptor.writeback && stat.kind == FileKind::File).then_some(stat.ctime);
    let kill = SetAttr { kill_priv: true, kill_sgid, ctime, ..SetAttr::default() };
    adaptor.volume.node_setattr(&root(), target, &kill)?;
    adaptor.aside.attributes_changed(target);
    Ok(())
}

/// Has the kernel ask for the mode again that an ACL changed. It forgets the one it had when it
/// gets the answer; but what it asked for before that, and is told of the mode as it was, it would
/// take behind it, and keep. A message to forget makes that count for nothing.
pub(super) fn acl_changed(adaptor: &Adaptor, ino: Ino) {
    debug_assert!(!ino.is_none(), "no inode has an ACL");
    adaptor.aside.attributes_changed(ino);
}

/// Returns whether so many bytes more would be of what is left to root, and somebody else asks for
/// them. Only then it is asked who that is.
pub(super) fn leaves_last(volume: &Volume, req: &Request<'_>, bytes: u64) -> bool {
    !volume.has_for_users(bytes) && req.is_user()
}

/// Clears setuid and setgid if the file has them and who changes it may not keep them.
pub(super) fn kill_priv_of(adaptor: &Adaptor, req: &Request<'_>, target: Ino) -> Result<()> {
    // Few files have these bits; only of them it is asked who changes them.
    if adaptor.volume.node_stat(target)?.mode & SET_ID == 0 || req.keeps_set_ids() {
        return Ok(());
    }
    kill_priv(adaptor, req, target)
}

/// Returns the mode that a file keeps, with setuid and setgid, through a change of owner that
/// nobody asked for by chown(2); `None`: it is another change, or the file has no such mode.
pub(super) fn kept_mode(adaptor: &Adaptor, req: &Request<'_>, valid: u32) -> Wire<Option<u32>> {
    let has = |flags: u32| valid & flags != 0;
    if !has(fattr::UID | fattr::GID) || !has(fattr::KILL_SUIDGID) || has(fattr::SIZE | fattr::MODE) {
        return Ok(None);
    }
    let stat = adaptor.volume.node_stat(req.ino)?;
    debug_assert_eq!(stat.ino, req.ino);
    if stat.mode & SET_ID == 0 || stat.kind != FileKind::File {
        return Ok(None);
    }
    let keeps = match adaptor.writeback {
        true => !has(fattr::CTIME),
        false => stat.nlink == 0 && req.keeps_set_ids(),
    };
    Ok(keeps.then_some(stat.mode & 0o7777))
}

/// States what becomes of setgid where the kernel has setuid and setgid cleared with a change.
pub(super) fn with_sgid(volume: &Volume, req: &Request<'_>, set: SetAttr) -> Result<SetAttr> {
    if !set.kill_priv {
        return Ok(set);
    }
    let stat = volume.node_stat(req.ino)?;
    debug_assert_eq!(stat.ino, req.ino);
    Ok(SetAttr { kill_sgid: kills_sgid(req, stat.mode, stat.gid), ..set })
}

/// Sets the access ACL of a request's inode: the mode follows it, and an ACL that is no more than
/// the mode is not kept. `kill_sgid`: whether setgid goes, if the kernel states it.
pub(super) fn set_access_acl(
    volume: &Volume,
    req: &Request<'_>,
    value: &[u8],
    kill_sgid: Option<bool>,
) -> Wire<()> {
    let kill_sgid = match kill_sgid {
        Some(stated) => stated,
        None => req.uid != 0 && req.gid != volume.node_stat(req.ino)?.gid,
    };
    Ok(volume.node_set_access_acl(&root(), req.ino, value, kill_sgid)?)
}
