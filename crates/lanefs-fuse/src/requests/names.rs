//! Names: looking them up, making, moving and removing them.

use super::{MADE, Wire, rights};
use crate::adaptor::Adaptor;
use crate::aside::{Job, What};
use crate::blocking_hook::about_to_wait_for_requests;
use crate::renaming::Renaming;
use crate::taking::needs_space;
use crate::translate::root;
use crate::wire::abi::op;
use crate::wire::rdev_from_kernel;
use crate::wire::{Answer, Errno, Origin, Reply, Request};
use lanefs::{FileKind, Ino, NewInodeAttrs, Result, Stat};
use std::sync::Arc;

pub(super) fn lookup(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
    let name = req.args().name()?;
    // These two the kernel asks for when a file handle leads to an inode that it has forgotten.
    if name == b"." || name == b".." {
        return lookup_kept(adaptor, req, name, reply);
    }
    match adaptor.volume.node_lookup(&req.cred(), req.ino, name) {
        Ok(stat) => adaptor.enter(&stat, reply),
        Err(e) if e.errno() == libc::ENOENT => reply.no_entry(adaptor.ttl),
        Err(e) => Err(e.into()),
    }
}

/// Answers with the inode itself, of any kind, or a directory's parent; ESTALE if the inode has no
/// name any more, whoever may have it open. Whether the number is used again since the handle was
/// made the kernel sees from the generation.
fn lookup_kept(adaptor: &Adaptor, req: &Request<'_>, name: &[u8], reply: &mut Reply) -> Wire<()> {
    debug_assert!(name == b"." || name == b"..");
    let stat = adaptor.volume.node_stat(req.ino)?;
    if stat.nlink == 0 {
        return Err(Errno(libc::ESTALE));
    }
    match name {
        b"." => adaptor.enter(&stat, reply),
        _ => adaptor.enter(&adaptor.volume.node_lookup(&req.cred(), req.ino, name)?, reply),
    }
}

/// Makes a node with `make`, which gets the attributes of a new inode, and answers with its entry.
fn make(
    adaptor: &Adaptor,
    (parent, name): (Ino, &[u8]),
    (mode, umask): (u32, u32),
    is_dir: bool,
    reply: &mut Reply,
    make: impl FnOnce(NewInodeAttrs<'_>) -> Result<Stat>,
) -> Wire<()> {
    needs_space(adaptor, reply, MADE)?;
    let inherited = rights::inherit(&adaptor.volume, parent, mode, umask, is_dir)?;
    let stat = make(NewInodeAttrs { mode: inherited.mode, xattrs: &inherited.xattrs() })?;
    adaptor.took_space(MADE);
    debug_assert_eq!(stat.kind == FileKind::Dir, is_dir, "mknod makes no directory");
    adaptor.sync_parent_dirs(&[(parent, name)])?;
    adaptor.enter(&stat, reply)
}

/// Serves FORGET and BATCH_FORGET.
pub(super) fn forget(adaptor: &Adaptor, req: &Request<'_>) -> Wire<()> {
    let mut a = req.args();
    if req.op == op::FORGET {
        forgotten(adaptor, req.ino, a.u64()?);
        return Ok(());
    }
    let count = a.u32()?;
    a.skip(4)?;
    for _ in 0..count {
        let (ino, times) = (Ino(a.u64()?), a.u64()?);
        forgotten(adaptor, ino, times);
    }
    Ok(())
}

/// Takes note that the kernel has forgotten `times` answers about an inode.
fn forgotten(adaptor: &Adaptor, ino: Ino, times: u64) {
    if adaptor.known.forget(ino, times) {
        adaptor.sync_errors.forget(ino);
    }
}

pub(super) fn readlink(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
    reply.put(&adaptor.volume.node_readlink(req.ino)?)
}

pub(super) fn mknod(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
    let mut a = req.args();
    let (mode, rdev, umask) = (a.u32()?, a.u32()?, a.u32()?);
    a.skip(4)?;
    let name = a.name()?;
    make(adaptor, (req.ino, name), (mode, umask), false, reply, |birth| {
        adaptor.volume.node_mknod(&req.cred(), req.ino, name, birth, rdev_from_kernel(rdev))
    })
}

pub(super) fn mkdir(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
    let mut a = req.args();
    let (mode, umask, name) = (a.u32()?, a.u32()?, a.name()?);
    make(adaptor, (req.ino, name), (mode, umask), true, reply, |birth| {
        adaptor.volume.node_mkdir(&req.cred(), req.ino, name, birth)
    })
}

pub(super) fn symlink(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
    let mut a = req.args();
    let (name, target) = (a.name()?, a.name()?);
    needs_space(adaptor, reply, MADE)?;
    let stat = adaptor.volume.node_symlink(&req.cred(), req.ino, name, target)?;
    adaptor.took_space(MADE);
    debug_assert_eq!(stat.kind, FileKind::Symlink);
    adaptor.sync_parent_dirs(&[(req.ino, name)])?;
    adaptor.enter(&stat, reply)
}

pub(super) fn link(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
    let mut a = req.args();
    let (target, name) = (Ino(a.u64()?), a.name()?);
    needs_space(adaptor, reply, MADE)?;
    // The kernel may not tell whose credential it is.
    if rights::leaves_last(&adaptor.volume, req, 1) && !adaptor.volume.has_space(1, false) {
        return Err(Errno(libc::ENOSPC));
    }
    let stat = adaptor.volume.node_link(&req.cred(), target, req.ino, name)?;
    debug_assert_eq!(stat.ino, target, "a link is another name of the same inode");
    adaptor.sync_parent_dirs(&[(req.ino, name)])?;
    adaptor.enter(&stat, reply)
}

pub(super) fn unlink(adaptor: &Adaptor, req: &Request<'_>) -> Wire<()> {
    let name = req.args().name()?;
    adaptor.volume.node_unlink(&req.cred(), req.ino, name)?;
    adaptor.sync_parent_dirs(&[(req.ino, name)])
}

pub(super) fn rmdir(adaptor: &Adaptor, req: &Request<'_>) -> Wire<()> {
    let name = req.args().name()?;
    adaptor.volume.node_rmdir(&req.cred(), req.ino, name)?;
    adaptor.sync_parent_dirs(&[(req.ino, name)])
}

/// Serves RENAME and RENAME2.
pub(super) fn rename(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply, origin: &Origin) -> Wire<()> {
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
    if let Some(ino) = held_and_replaces(adaptor, (req.ino, name), (to, to_name), flags) {
        debug_assert!(flags & libc::RENAME_EXCHANGE == 0, "nothing is replaced by an exchange");
        match origin {
            Origin::Device(device) => {
                reply.answer = Answer::Elsewhere;
                let what = What::Rename(Box::new(Renaming {
                    volume: adaptor.volume.clone(),
                    cred: req.cred(),
                    from: (req.ino, name.to_vec()),
                    to: (to, to_name.to_vec()),
                    flags,
                    durable: adaptor.dirsync,
                }));
                let device = Arc::clone(device);
                return adaptor.aside.answer(Job { ino, what, unique: req.unique, device });
            }
            Origin::Ring | Origin::Guest => {
                about_to_wait_for_requests();
                adaptor.aside.flush_kernel_pages(ino);
            }
        }
    }
    adaptor.volume.node_rename(&req.cred(), req.ino, name, to, to_name, flags)?;
    adaptor.sync_parent_dirs(&[(req.ino, name), (to, to_name)])
}

/// Returns the file that is to replace another if it is open for writing, so that the kernel may
/// hold pages of it (A6 of [`crate::aside`]). Where files are opened without a request the kernel
/// gathers nothing (N4 of `content`).
fn held_and_replaces(adaptor: &Adaptor, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: u32) -> Option<Ino> {
    if adaptor.stateless || adaptor.guest || flags & (libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE) != 0 {
        return None;
    }
    let find = |(dir, name): (Ino, &[u8])| adaptor.volume.node_lookup(&root(), dir, name).ok();
    let ino = find(from)?.ino;
    if !adaptor.handles.is_written(ino) {
        return None;
    }
    // The names are as they were sent, whatever they are: one that cannot be is found nowhere.
    find(to).filter(|replaced| replaced.kind == FileKind::File && replaced.ino != ino).map(|_| ino)
}
