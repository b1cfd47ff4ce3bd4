//! Directories, read by inode number.

use super::Wire;
use crate::adaptor::Adaptor;
use crate::wire::{Reply, Request};
use lanefs::{FileKind, Ino};

/// Entries read from a directory at a time for readdirplus, so that no lock of the directory is
/// held while their attributes are fetched.
const PLUS_STEP: usize = 32;

pub(super) fn readdir(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
    let mut a = req.args();
    a.skip(8)?; // the handle
    let (offset, size) = (a.u64()?, a.u32()? as usize);
    adaptor
        .volume
        .node_readdir(req.ino, offset, &mut |e| reply.dirent(size, e.ino, e.cookie, e.kind, e.name))?;
    Ok(())
}

pub(super) fn readdirplus(adaptor: &Adaptor, req: &Request<'_>, reply: &mut Reply) -> Wire<()> {
    let mut a = req.args();
    a.skip(8)?;
    let (mut cookie, size) = (a.u64()?, a.u32()? as usize);
    let mut entries: Vec<(Ino, u64, FileKind, Vec<u8>)> = Vec::with_capacity(PLUS_STEP);
    loop {
        entries.clear();
        adaptor.volume.node_readdir(req.ino, cookie, &mut |e| {
            entries.push((e.ino, e.cookie, e.kind, e.name.to_vec()));
            entries.len() < PLUS_STEP
        })?;
        debug_assert!(entries.len() <= PLUS_STEP, "the listing went on after it was told to stop");
        for (ino, next, kind, name) in &entries {
            cookie = *next;
            let stat = match adaptor.volume.node_stat(*ino) {
                Ok(stat) => Some(adaptor.entry_for_kernel(&stat)),
                // Removed since it was listed.
                Err(e) if matches!(e.errno(), libc::ESTALE | libc::ENOENT) => continue,
                // A damaged inode: lookup will report it; the listing shows its name.
                Err(_) => None,
            };
            if !reply.dirent_plus(size, (*ino, *next, *kind, name), stat.as_ref(), adaptor.ttl) {
                return Ok(());
            }
            // The kernel takes no notice of the attributes of these two.
            if stat.is_some() && name != b"." && name != b".." {
                adaptor.known.count(*ino);
                reply.entered.push(*ino);
            }
        }
        if entries.len() < PLUS_STEP {
            return Ok(());
        }
    }
}
