//! link(2): another name for an inode.

use super::{Op, perm, posix};
use crate::core::Core;
use crate::core::space;
use crate::error::Result;
use crate::memfs::Inode;
use crate::memfs::dir::{ALIVE, DEAD, Entry, Found, hash_name, relax};
use crate::memfs::inode::LINKABLE;
use crate::ops::resolve;
use crate::{Cred, FileKind, Ino};
use crossbeam_epoch::Guard;
use lanefs_format::LINK_MAX;
use lanefs_format::record::Effect;
use lanefs_sync::clock::coarse_realtime_ns;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Names `inode` also `name` in `parent`. Of inodes without names only those of O_TMPFILE may
/// get one (LINKABLE).
///
/// ENOSPC: the caller tries again when something was freed ([`space::with_space`]).
///
/// No key of the old name is read: what must hold is that the inode has a link now (or never
/// lost one). The link is added by a compare-exchange that refuses zero, after this lane's bit
/// is in the inode's mask; an unlink that takes the old name after that finds the bit, and its
/// fsync waits for this lane (closure, invariant 3).
pub(crate) fn link(
    core: &Core,
    cred: &Cred,
    inode: &Inode,
    parent: Ino,
    name: &[u8],
    guard: &Guard,
) -> Result<()> {
    perm::check_name(name)?;
    if name == b"." || name == b".." {
        return posix(libc::EEXIST);
    }
    let hash = hash_name(core.memfs.hash_key, name);
    let mut turn = 0;
    loop {
        let (pinode, pdir) = resolve::find_dir(core, parent, guard)?;
        match pdir.lookup(hash, name, guard) {
            Found::Name(..) => return posix(libc::EEXIST),
            Found::NotLoaded => {
                resolve::load_bucket(core, pinode, pdir, hash, guard)?;
                continue;
            }
            Found::Absent => {}
        }
        perm::check(pinode, cred, perm::W | perm::X)?;
        // As Linux: only now, behind EEXIST and EACCES.
        perm::check_flags(inode)?;
        if inode.kind == FileKind::Dir {
            return posix(libc::EPERM);
        }
        core.writable()?;
        if pdir.state.load(SeqCst) == DEAD {
            return posix(libc::ENOENT);
        }
        let promised = space::reserve_name(core, cred.claimant(), name)?;
        let now = coarse_realtime_ns();
        let mut op = Op::begin(core);
        let mut entry = Entry::new(0, name, inode.ino, inode.kind, 0, 0, 0);
        let leaf = pdir.lock(hash, guard).make_space(hash, || core.journal.folded());
        let (old, cookie) = leaf.place(hash, name);
        let fits = pdir.state.load(SeqCst) == ALIVE
            && leaf.is_complete()
            && old.is_none_or(|e| e.target().is_none());
        let Some(cookie) = cookie.filter(|_| fits) else {
            drop(leaf);
            drop(op);
            space::unreserve(core, promised);
            relax(&mut turn);
            continue;
        };
        debug_assert_eq!(cookie & !7, hash, "the name would not be found under its hash");
        inode.named_by(op.lane, 0);
        pdir.named_by(hash, op.lane, 0);
        if let Err(e) = add_link(inode) {
            space::unreserve(core, promised);
            return Err(e);
        }
        let v = op.version(leaf.last_ts());
        debug_assert!(v.epoch >= inode.born, "inode {} has a name before it was made", inode.ino);
        inode.named_by(op.lane, v.epoch);
        pdir.named_by(hash, op.lane, v.epoch);
        match old {
            Some(e) => {
                op.note_change(e.touch(v.epoch, op.lane));
                e.set_target(Some((inode.ino, inode.kind)));
            }
            None => {
                entry.cookie = cookie;
                entry.born.store(v.epoch, Relaxed);
                entry.touch(v.epoch, op.lane);
                core.journal.count_names(Entry::bytes(entry.name.as_slice().len()) as i64);
                leaf.insert(entry);
            }
        }
        leaf.stamp(v.epoch, v.ts);
        op.append(
            v,
            &[Effect::Set { dir: parent, cookie, name, ino: inode.ino, old: Ino::NONE, kind: inode.kind }],
        );
        drop(leaf);
        op.changed(inode, now);
        pinode.note_change(pdir, cookie, now, 0);
        op.dirty_dir(pinode, pdir, hash);
        return Ok(());
    }
}

/// Counts another name of an inode. EMLINK: it has as many as it may. ENOENT: it has none, and is
/// to stay without.
#[inline]
fn add_link(inode: &Inode) -> Result<()> {
    debug_assert_ne!(inode.kind, FileKind::Dir, "directory {} gets another name", inode.ino);
    // SeqCst, as the count of `lose_link` and the reaper's look: behind the lane's bit.
    let mut links = inode.nlink.load(SeqCst);
    loop {
        if links >= LINK_MAX {
            return posix(libc::EMLINK);
        }
        if links == 0 && !inode.has(LINKABLE) {
            return posix(libc::ENOENT);
        }
        match inode.nlink.compare_exchange(links, links + 1, SeqCst, SeqCst) {
            Ok(_) => break,
            Err(n) => links = n,
        }
    }
    inode.clear_if_set(LINKABLE);
    Ok(())
}
