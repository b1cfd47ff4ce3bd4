//! Attributes, of files and of the volume.

use super::{MADE, Wire, rights};
use crate::adaptor::Adaptor;
use crate::aside::{Job, What};
use crate::blocking_hook::about_to_wait_for_requests;
use crate::taking::needs_space;
use crate::translate::root;
use crate::wire::abi::*;
use crate::wire::{Answer, Errno, Origin, Reply, Request};
use lanefs::acl::{self, Acl};
use lanefs::{Cred, FileKind, SetAttr, SetTime, Stat, times};
use std::sync::Arc;

/// Returns the attributes of an open file, or of an inode.
fn stat(adaptor: &Adaptor, req: &Request<'_>, flags: u32, handle: u64) -> Wire<Stat> {
    if flags & GETATTR_FH != 0
        && let Ok(handle) = adaptor.handle(handle)
    {
        return Ok(handle.file.stat()?);
    }
    let stat = adaptor.volume.node_stat(req.ino)?;
    debug_assert_eq!(stat.ino, req.ino);
    Ok(stat)
}

pub(super) fn getattr(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply, origin: &Origin) -> Wire<()> {
    let mut a = req.args();
    let flags = a.u32()?;
    a.skip(4)?;
    let handle = a.u64()?;
    // With a handle the kernel asks, for who is about to write.
    if flags & GETATTR_FH != 0
        && (adaptor.closing.has_begun() || adaptor.space.is_scarce())
        && adaptor.handle(handle).is_ok_and(|h| h.gathers())
    {
        return ask(adaptor, req, reply, origin);
    }
    let stat = stat(adaptor, req, flags, handle)?;
    let (stat, holds) = adaptor.attributes_for_kernel(&stat);
    reply.attr_out(&stat, if flags & GETATTR_FH != 0 { adaptor.holds_for_handle(holds) } else { holds })
}

/// Answers who is about to write to a file through the kernel's cache while space is scarce or the
/// mount is about to end.
fn ask(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply, origin: &Origin) -> Wire<()> {
    if adaptor.closing.has_begun() {
        return Err(Errno(libc::EIO));
    }
    match origin {
        Origin::Device(device) => {
            reply.answer = Answer::Elsewhere;
            let what = What::Attributes { ttl: adaptor.ttl, caller: req.caller() };
            let device = Arc::clone(device);
            adaptor.aside.answer(Job { ino: req.ino, what, unique: req.unique, device })
        }
        // A guest gathers nothing, and its mount does not end that way.
        Origin::Ring | Origin::Guest => {
            about_to_wait_for_requests();
            adaptor.aside.ask(req.ino, req.caller(), adaptor.ttl, reply)
        }
    }
}

pub(super) fn statx(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
    let mut a = req.args();
    let flags = a.u32()?;
    a.skip(4)?;
    let stat = stat(adaptor, req, flags, a.u64()?)?;
    let (stat, holds) = adaptor.attributes_for_kernel(&stat);
    reply.statx_out(&stat, holds)
}

pub(super) fn setattr(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
    let mut a = req.args();
    let valid = a.u32()?;
    a.skip(4)?;
    let handle = a.u64()?;
    let size = a.u64()?;
    a.skip(8)?; // the owner of locks
    let seconds = [a.i64()?, a.i64()?, a.i64()?];
    let ns = [a.u32()?, a.u32()?, a.u32()?];
    let mode = a.u32()?;
    a.skip(4)?;
    let (uid, gid) = (a.u32()?, a.u32()?);
    let has = |flag: u32| valid & flag != 0;
    let at = |n: usize| times::number(seconds[n], ns[n]);
    let time = |set: u32, now: u32, n: usize| match (has(set), has(now)) {
        (false, _) => None,
        (true, true) => Some(SetTime::Now),
        (true, false) => Some(SetTime::At(at(n))),
    };
    let set = SetAttr {
        mode: has(fattr::MODE).then_some(mode),
        uid: has(fattr::UID).then_some(uid),
        gid: has(fattr::GID).then_some(gid),
        size: has(fattr::SIZE).then_some(size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, 0),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, 1),
        ctime: has(fattr::CTIME).then(|| at(2)),
        kill_priv: has(fattr::KILL_SUIDGID),
        kill_sgid: false,
    };
    let set = match rights::kept_mode(adaptor, req, valid)? {
        Some(mode) => SetAttr { mode: Some(mode), kill_priv: false, ..set },
        None => set,
    };
    let set = rights::with_sgid(&adaptor.volume, req, set)?;
    let set = match set.size {
        Some(size) if adaptor.writeback && !has(fattr::MTIME) => of_same_size(adaptor, req, size, set)?,
        _ => set,
    };
    let times = SetAttr { mtime: set.mtime, ctime: set.ctime, ..SetAttr::default() };
    let stat = if has(fattr::FH) && set == times && !adaptor.stateless {
        // The times that the kernel kept for who wrote.
        adaptor.handle(handle)?.file.set_attr(&root(), &set)?
    } else {
        adaptor.volume.node_setattr_and_acl(&root(), req.ino, &set)?
    };
    let (stat, holds) = adaptor.attributes_for_kernel(&stat);
    reply.attr_out(&stat, if has(fattr::FH) { adaptor.holds_for_handle(holds) } else { holds })
}

/// Returns the change that truncate(2) to a new size asks for where the kernel keeps the times of
/// files: it hands these over with a size that differs. With the same one it hands over none, and
/// goes on showing those that it has, so they stay here, too.
fn of_same_size(adaptor: &Adaptor, req: &Request<'_>, size: u64, set: SetAttr) -> Wire<SetAttr> {
    let stat = adaptor.volume.node_stat(req.ino)?;
    debug_assert!(set.mtime.is_none(), "the kernel handed a time over");
    if stat.size != size || stat.kind != FileKind::File {
        return Ok(set);
    }
    Ok(SetAttr { mtime: Some(SetTime::At(stat.mtime)), ctime: set.ctime.or(Some(stat.ctime)), ..set })
}

pub(super) fn statfs(adaptor: &Adaptor, reply: &mut Reply) -> Wire<()> {
    let s = adaptor.volume.statfs()?;
    debug_assert!(s.files_free <= s.files);
    let available = s.available.saturating_sub(adaptor.space.reserve() / 4096);
    for w in [s.blocks, s.free, available, s.files, s.files_free] {
        reply.u64(w)?;
    }
    for w in [4096, s.name_max, 4096, 0] {
        reply.u32(w)?;
    }
    reply.put(&[0; 24])
}

pub(super) fn setxattr(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
    let mut a = req.args();
    let (size, flags) = (a.u32()?, a.u32()? as i32);
    let mut kill_sgid = None;
    if adaptor.setxattr_ext {
        kill_sgid = Some(a.u32()? & SETXATTR_ACL_KILL_SGID != 0);
        a.skip(4)?;
    }
    debug_assert_eq!(kill_sgid.is_some(), adaptor.setxattr_ext, "as was agreed at INIT");
    let name = a.name()?;
    let value = a.bytes(size as usize)?;
    needs_space(adaptor, reply, u64::from(size) + MADE)?;
    // The kernel may not tell whose credential it is.
    if rights::leaves_last(&adaptor.volume, req, size.into()) && !adaptor.volume.has_space(1, false) {
        return Err(Errno(libc::ENOSPC));
    }
    match name {
        acl::ACCESS => {
            rights::set_access_acl(&adaptor.volume, req, value, kill_sgid)?;
            rights::acl_changed(adaptor, req.ino);
            Ok(())
        }
        acl::DEFAULT if Acl::decode(value).is_none() => Err(Errno(libc::EINVAL)),
        _ => Ok(adaptor.volume.node_setxattr(&req.cred(), req.ino, name, value, flags)?),
    }
}

pub(super) fn getxattr(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
    let mut a = req.args();
    let size = a.u32()?;
    a.skip(4)?;
    value(&adaptor.volume.node_getxattr(&req.cred(), req.ino, a.name()?)?, size, reply)
}

pub(super) fn listxattr(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
    let size = req.args().u32()?;
    let mut list = Vec::new();
    for name in adaptor.volume.node_listxattr(&root(), req.ino)? {
        // The kernel refuses to others what these are, but does not leave their names out.
        // By the number alone: an overlay asks as root for a caller who is not, and copies them.
        if name.starts_with(b"trusted.") && req.user() != Some(0) {
            continue;
        }
        list.extend(name);
        list.push(0);
    }
    debug_assert!(list.last().is_none_or(|b| *b == 0), "each name ends in a zero");
    value(&list, size, reply)
}

pub(super) fn removexattr(adaptor: &Adaptor, req: &Request<'_>) -> Wire<()> {
    let name = req.args().name()?;
    adaptor.volume.node_removexattr(&req.cred(), req.ino, name)?;
    if name == acl::ACCESS {
        rights::acl_changed(adaptor, req.ino);
    }
    Ok(())
}

pub(super) fn access(adaptor: &Adaptor, req: &Request<'_>) -> Wire<()> {
    let who = Cred { prechecked: false, ..req.cred() };
    debug_assert!(!who.prechecked, "access(2) asks what nobody has checked");
    Ok(adaptor.volume.node_access(&who, req.ino, req.args().u32()? as i32)?)
}

/// Answers with a value, or only its size if the caller asked for that.
fn value(value: &[u8], size: u32, reply: &mut Reply) -> Wire<()> {
    debug_assert_eq!(reply.len(), 0, "the value is the whole answer");
    match size {
        0 => {
            reply.u32(value.len() as u32)?;
            reply.u32(0)
        }
        _ if value.len() <= size as usize => reply.put(value),
        _ => Err(Errno(libc::ERANGE)),
    }
}
