//! Names: looking them up, making, moving and removing them.

use super::Wire;
use crate::adaptor::Adaptor;
use crate::wire::abi::op;
use crate::wire::rdev_from_kernel;
use crate::wire::{Errno, Reply, Request};
use lanefs::Ino;

impl Adaptor {
    pub(super) fn lookup(&self, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
        let name = req.args().name()?;
        // These two the kernel asks for when a file handle leads to an inode that it has forgotten.
        if name == b"." || name == b".." {
            return self.lookup_kept(req, name, reply);
        }
        match self.volume.node_lookup(&req.cred(), req.ino, name) {
            Ok(stat) => self.enter(&stat, reply),
            Err(e) if e.errno() == libc::ENOENT => reply.no_entry(self.ttl),
            Err(e) => Err(e.into()),
        }
    }

    /// The inode itself, of any kind, or a directory's parent; ESTALE if the inode has no name any
    /// more, whoever may have it open. Whether the number is used again since the handle was made
    /// the kernel tells by the generation.
    fn lookup_kept(&self, req: &Request<'_>, name: &[u8], reply: &mut Reply) -> Wire<()> {
        let stat = self.volume.node_stat(req.ino)?;
        if stat.nlink == 0 {
            return Err(Errno(libc::ESTALE));
        }
        match name {
            b"." => self.enter(&stat, reply),
            _ => self.enter(&self.volume.node_lookup(&req.cred(), req.ino, name)?, reply),
        }
    }

    /// FORGET and BATCH_FORGET.
    pub(super) fn forget(&self, req: &Request<'_>) -> Wire<()> {
        let mut a = req.args();
        if req.op == op::FORGET {
            self.known.forget(req.ino, a.u64()?);
            return Ok(());
        }
        let count = a.u32()?;
        a.skip(4)?;
        for _ in 0..count {
            let (ino, times) = (Ino(a.u64()?), a.u64()?);
            self.known.forget(ino, times);
        }
        Ok(())
    }

    pub(super) fn readlink(&self, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
        reply.put(&self.volume.node_readlink(req.ino)?)
    }

    pub(super) fn mknod(&self, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
        let mut a = req.args();
        let (mode, rdev, umask) = (a.u32()?, a.u32()?, a.u32()?);
        a.skip(4)?;
        let name = a.name()?;
        self.make((req.ino, name), (mode, umask), false, reply, |birth| {
            self.volume.node_mknod(&req.cred(), req.ino, name, birth, rdev_from_kernel(rdev))
        })
    }

    pub(super) fn mkdir(&self, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
        let mut a = req.args();
        let (mode, umask, name) = (a.u32()?, a.u32()?, a.name()?);
        self.make((req.ino, name), (mode, umask), true, reply, |birth| {
            self.volume.node_mkdir(&req.cred(), req.ino, name, birth)
        })
    }

    pub(super) fn symlink(&self, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
        let mut a = req.args();
        let (name, target) = (a.name()?, a.name()?);
        let stat = self.volume.node_symlink(&req.cred(), req.ino, name, target)?;
        self.sync_parent_dirs(&[(req.ino, name)])?;
        self.enter(&stat, reply)
    }

    pub(super) fn link(&self, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
        let mut a = req.args();
        let (target, name) = (Ino(a.u64()?), a.name()?);
        let stat = self.volume.node_link(&req.cred(), target, req.ino, name)?;
        self.sync_parent_dirs(&[(req.ino, name)])?;
        self.enter(&stat, reply)
    }

    pub(super) fn unlink(&self, req: &Request<'_>) -> Wire<()> {
        let name = req.args().name()?;
        self.volume.node_unlink(&req.cred(), req.ino, name)?;
        self.sync_parent_dirs(&[(req.ino, name)])
    }

    pub(super) fn rmdir(&self, req: &Request<'_>) -> Wire<()> {
        let name = req.args().name()?;
        self.volume.node_rmdir(&req.cred(), req.ino, name)?;
        self.sync_parent_dirs(&[(req.ino, name)])
    }

    /// RENAME and RENAME2.
    pub(super) fn rename(&self, req: &Request<'_>) -> Wire<()> {
        let mut a = req.args();
        let to = Ino(a.u64()?);
        let flags = if req.op == op::RENAME2 {
            let flags = a.u32()?;
            a.skip(4)?;
            flags
        } else {
            0
        };
        let (name, to_name) = (a.name()?, a.name()?);
        self.volume.node_rename(&req.cred(), req.ino, name, to, to_name, flags)?;
        self.sync_parent_dirs(&[(req.ino, name), (to, to_name)])
    }
}
