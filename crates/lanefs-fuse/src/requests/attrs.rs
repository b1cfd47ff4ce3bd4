//! Attributes, of files and of the volume.

use super::Wire;
use crate::acl::{self, Acl};
use crate::adaptor::Adaptor;
use crate::aside::{Job, What};
use crate::blocking_hook::about_to_wait_for_requests;
use crate::handles::Handle;
use crate::translate::root;
use crate::wire::abi::*;
use crate::wire::{Answer, Errno, Origin, Reply, Request};
use lanefs::{Cred, SetAttr, SetTime, Stat, times};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

impl Adaptor {
    fn stat(&self, req: &Request<'_>, flags: u32, handle: u64) -> Wire<Stat> {
        if flags & GETATTR_FH != 0
            && let Ok(file) = self.file(handle)
        {
            return Ok(file.stat()?);
        }
        Ok(self.volume.node_stat(req.ino)?)
    }

    pub(super) fn getattr(&self, req: &Request<'_>, reply: &mut Reply, origin: &Origin) -> Wire<()> {
        let mut a = req.args();
        let flags = a.u32()?;
        a.skip(4)?;
        let handle = a.u64()?;
        // With a handle the kernel asks, for who is about to write.
        if flags & GETATTR_FH != 0
            && (self.closing.begun.load(SeqCst) || self.room.is_scarce())
            && self.handle(handle).is_ok_and(Handle::gathers)
        {
            return self.ask(req, reply, origin);
        }
        let stat = self.stat(req, flags, handle)?;
        let (stat, holds) = self.told(&stat);
        reply.attr_out(&stat, if flags & GETATTR_FH != 0 { self.ttl } else { holds })
    }

    /// Somebody is about to write to a file through the kernel's cache, and room is scarce or the
    /// mount is about to end.
    fn ask(&self, req: &Request<'_>, reply: &mut Reply, origin: &Origin) -> Wire<()> {
        if self.closing.begun.load(SeqCst) {
            return Err(Errno(libc::EIO));
        }
        match origin {
            Origin::Device(device) => {
                reply.answer = Answer::Elsewhere;
                let (device, what) = (Arc::clone(device), What::Attributes { ttl: self.ttl });
                self.aside.answer(Job { ino: req.ino, what, unique: req.unique, device })
            }
            Origin::Ring => {
                about_to_wait_for_requests();
                self.aside.ask(req.ino, self.ttl, reply)
            }
        }
    }

    pub(super) fn statx(&self, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
        let mut a = req.args();
        let flags = a.u32()?;
        a.skip(4)?;
        let stat = self.stat(req, flags, a.u64()?)?;
        let (stat, holds) = self.told(&stat);
        reply.statx_out(&stat, holds)
    }

    pub(super) fn setattr(&self, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
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
        };
        let times = SetAttr { mtime: set.mtime, ctime: set.ctime, ..SetAttr::default() };
        let stat = if has(fattr::FH) && set == times {
            // Those that the kernel kept for who wrote.
            self.file(handle)?.set_attr(&root(), &set)?
        } else {
            self.change(req.ino, &set)?
        };
        let (stat, holds) = self.told(&stat);
        reply.attr_out(&stat, if has(fattr::FH) { self.ttl } else { holds })
    }

    pub(super) fn statfs(&self, reply: &mut Reply) -> Wire<()> {
        let s = self.volume.statfs()?;
        let available = s.free.saturating_sub(self.room.reserve() / 4096);
        for w in [s.blocks, s.free, available, s.files, s.files_free] {
            reply.u64(w)?;
        }
        for w in [4096, s.name_max, 4096, 0] {
            reply.u32(w)?;
        }
        reply.put(&[0; 24])
    }

    pub(super) fn setxattr(&self, req: &Request<'_>) -> Wire<()> {
        let mut a = req.args();
        let (size, flags) = (a.u32()?, a.u32()? as i32);
        let mut kill_sgid = None;
        if self.setxattr_ext {
            kill_sgid = Some(a.u32()? & SETXATTR_ACL_KILL_SGID != 0);
            a.skip(4)?;
        }
        let name = a.name()?;
        let value = a.bytes(size as usize)?;
        match name {
            acl::ACCESS => self.set_access_acl(req, value, flags, kill_sgid),
            acl::DEFAULT if Acl::decode(value).is_none() => Err(Errno(libc::EINVAL)),
            _ => Ok(self.volume.node_setxattr(&req.cred(), req.ino, name, value, flags)?),
        }
    }

    pub(super) fn getxattr(&self, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
        let mut a = req.args();
        let size = a.u32()?;
        a.skip(4)?;
        value(&self.volume.node_getxattr(&req.cred(), req.ino, a.name()?)?, size, reply)
    }

    pub(super) fn listxattr(&self, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
        let size = req.args().u32()?;
        let mut list = Vec::new();
        for name in self.volume.node_listxattr(&root(), req.ino)? {
            // The kernel refuses to others what these are, but does not leave their names out.
            if name.starts_with(b"trusted.") && req.user() != Some(0) {
                continue;
            }
            list.extend(name);
            list.push(0);
        }
        value(&list, size, reply)
    }

    pub(super) fn removexattr(&self, req: &Request<'_>) -> Wire<()> {
        Ok(self.volume.node_removexattr(&req.cred(), req.ino, req.args().name()?)?)
    }

    pub(super) fn access(&self, req: &Request<'_>) -> Wire<()> {
        let who = Cred { prechecked: false, ..req.cred() };
        Ok(self.volume.node_access(&who, req.ino, req.args().u32()? as i32)?)
    }
}

/// Answers with a value, or only its size if the caller asked for that.
fn value(value: &[u8], size: u32, reply: &mut Reply) -> Wire<()> {
    match size {
        0 => {
            reply.u32(value.len() as u32)?;
            reply.u32(0)
        }
        _ if value.len() <= size as usize => reply.put(value),
        _ => Err(Errno(libc::ERANGE)),
    }
}
