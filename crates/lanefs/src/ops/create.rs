//! Making inodes: create, mkdir, mknod, symlink, O_TMPFILE.

use super::perm::{self, W, X};
use super::{Op, posix};
use crate::core::Core;
use crate::core::space;
use crate::core::space::blocks_of_xattrs;
use crate::error::Result;
use crate::memfs::cell::HAS_XATTRS;
use crate::memfs::dir::{ALIVE, DEAD, Dir, Entry, Found, hash_name, relax};
use crate::memfs::xattr::Xattrs;
use crate::memfs::{Body, Cell, data::FileData};
use crate::ops::resolve;
use crate::{Cred, FileKind, Ino};
use crossbeam_epoch::Guard;
use lanefs_format::record::Effect;
use lanefs_format::{Attrs, INLINE_MAX, SYMLINK_MAX, inode_flags};
use lanefs_sync::clock::coarse_realtime_ns;
use std::sync::atomic::Ordering::*;

/// Flags that a directory hands on to what is made in it.
const INHERITED: u32 = inode_flags::NODUMP | inode_flags::NOATIME;

/// What is to be made.
pub(crate) struct Spec<'a> {
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    pub rdev: u64,
    /// A symbolic link's target.
    pub target: &'a [u8],
    /// Its first extended attributes, encoded.
    pub xattrs: &'a [u8],
}

impl Spec<'_> {
    /// Blocks it takes beside the inode's own.
    fn blocks(&self) -> u64 {
        u64::from(self.target.len() > INLINE_MAX) + blocks_of_xattrs(self.xattrs.len())
    }
}

/// How it went.
pub(crate) enum Made<'g> {
    New(&'g Cell),
    /// The name exists.
    Exists(Ino, FileKind),
}

/// The effect that makes an inode.
pub(crate) fn born<'a>(ino: Ino, parent: Ino, a: &Attrs, target: &'a [u8], logged: bool) -> Effect<'a> {
    Effect::New {
        ino,
        parent,
        generation: a.generation,
        mode: a.mode,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        time: a.btime,
        target,
        logged,
    }
}

/// Makes an inode named `name` in `parent`, unless the name exists.
pub(crate) fn make<'g>(
    core: &Core,
    cred: &Cred,
    parent: Ino,
    name: &[u8],
    spec: &Spec<'_>,
    guard: &'g Guard,
) -> Result<Made<'g>> {
    perm::check_name(name)?;
    if spec.target.len() > SYMLINK_MAX {
        return posix(libc::ENAMETOOLONG);
    }
    if name == b"." || name == b".." {
        return Ok(Made::Exists(parent, FileKind::Dir));
    }
    let hash = hash_name(core.memfs.hash_key, name);
    let mut turn = 0;
    loop {
        // Step 0: everything that can fail or wait, without a lock.
        let (pcell, pdir) = resolve::find_dir(core, parent, guard)?;
        match pdir.lookup(hash, name, guard) {
            Found::Name(ino, kind) => return Ok(Made::Exists(ino, kind)),
            Found::NotLoaded => {
                resolve::load_bucket(core, pcell, pdir, hash, guard)?;
                continue;
            }
            Found::Absent => {}
        }
        perm::check(pcell, cred, W | X)?;
        core.writable()?;
        match pdir.state.load(SeqCst) {
            ALIVE => {}
            DEAD => return posix(libc::ENOENT),
            _ => {
                relax(&mut turn);
                continue;
            }
        }
        let room = space::reserve_name(core, name, spec.blocks())?;
        if let Err(e) = space::reserve_inode(core) {
            space::unreserve_name(core, room);
            return Err(e);
        }
        let mut op = Op::begin(core);
        let (cell, attrs) = match fresh_inode(core, &mut op, cred, pcell, spec) {
            Ok(c) => c,
            Err(e) => {
                space::unreserve_inode(core);
                space::unreserve_name(core, room);
                return Err(e);
            }
        };
        let entry = Entry::new(0, name, cell.ino, spec.kind, 0, 0, 0);
        match enter(core, &mut op, pcell, pdir, hash, entry, cell, &attrs, spec, guard) {
            Some(cell) => return Ok(Made::New(cell)),
            // The name appeared, the bucket left memory, or the directory is going: look again.
            None => {
                drop(op);
                space::unreserve_inode(core);
                space::unreserve_name(core, room);
                relax(&mut turn);
            }
        }
    }
}

/// A cell for a new inode, with its number, not yet visible to anybody.
pub(crate) fn fresh_inode(
    core: &Core,
    op: &mut Op<'_>,
    cred: &Cred,
    parent: &Cell,
    spec: &Spec<'_>,
) -> Result<(Box<Cell>, Attrs)> {
    let (ino, generation) = op.number()?;
    let (mode, uid, gid) = perm::born(parent, cred, spec.mode, spec.kind);
    let now = coarse_realtime_ns();
    let size = spec.target.len() as u64;
    let attrs = Attrs {
        mode,
        uid,
        gid,
        flags: parent.inode_flags() & INHERITED,
        rdev: spec.rdev,
        size,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        generation,
    };
    let body = match spec.kind {
        // SAFETY: the cell is boxed in `Cell::new` below and never moves out of its box (D8).
        FileKind::File => Body::File(unsafe { FileData::new(0, 0, 0) }),
        FileKind::Symlink => Body::Link(spec.target.into()),
        FileKind::Dir => Body::Dir(Dir::new(true)),
        _ => Body::None,
    };
    let links = if spec.kind == FileKind::Dir { 2 } else { 1 };
    let cell = Cell::new(ino, spec.kind, &attrs, links, parent.ino, body, (op.lane, &core.memfs.stamps));
    // Not dirty: the group that makes the inode has them, and so will the tree when it is
    // folded.
    if let Some(x) = Some(spec.xattrs).filter(|x| !x.is_empty()).and_then(Xattrs::decode) {
        cell.xattrs.publish(&cell.xattrs.lock(), x, &crossbeam_epoch::pin());
        cell.set(HAS_XATTRS);
    }
    Ok((cell, attrs))
}

/// Steps 2 to 7 of a creation; `None` if the look before was too early.
#[allow(clippy::boxed_local)]
fn enter<'g>(
    core: &Core,
    op: &mut Op<'_>,
    pcell: &'g Cell,
    pdir: &'g Dir,
    hash: u64,
    mut entry: Box<Entry>,
    mut cell: Box<Cell>,
    attrs: &Attrs,
    spec: &Spec<'_>,
    guard: &'g Guard,
) -> Option<&'g Cell> {
    let leaf = pdir.lock(hash, guard).make_room(hash, || core.journal.folded());
    let (old, cookie) = leaf.place(hash, entry.name.as_slice());
    let state = pdir.state.load(SeqCst);
    let Some(cookie) =
        cookie.filter(|_| state == ALIVE && leaf.is_complete() && old.is_none_or(|e| e.target().is_none()))
    else {
        drop(leaf);
        op.give_back(cell.ino);
        return None;
    };
    cell.lanes.store(1 << (op.lane & 63), Relaxed);
    pdir.named_by(hash, op.lane, 0);
    let v = op.version(leaf.last_ts());
    cell.epoch.store(v.epoch, Relaxed);
    cell.born = v.epoch;
    pdir.named_by(hash, op.lane, v.epoch);
    let ino = cell.ino;
    let cell = core.memfs.cells.insert(cell, guard);
    let name = match old {
        Some(e) => {
            e.touch(v.epoch, op.lane);
            e.set_target(Some((ino, spec.kind)));
            e.name.as_slice()
        }
        None => {
            entry.cookie = cookie;
            entry.born.store(v.epoch, Relaxed);
            entry.touch(v.epoch, op.lane);
            leaf.insert(entry).name.as_slice()
        }
    };
    leaf.stamp(v.epoch, v.ts);
    let dir = pcell.ino;
    let new = born(ino, dir, attrs, spec.target, core.is_ordered());
    let set = Effect::Set { dir, cookie, name, ino, old: Ino::NONE, kind: spec.kind };
    if spec.xattrs.is_empty() {
        op.append(v, &[new, set]);
    } else {
        op.append(v, &[new, Effect::Xattrs { ino, xattrs: spec.xattrs }, set]);
    }
    drop(leaf);
    if attrs.flags != 0 {
        // The group does not tell of flags.
        op.dirty(cell, 0);
    }
    pcell.note_change(pdir, cookie, attrs.btime, i32::from(spec.kind == FileKind::Dir));
    op.dirty_dir(pcell, pdir, hash);
    core.journal.count_cells(1);
    core.journal.count_names(Entry::bytes(name.len()) as i64);
    Some(cell)
}

/// A file without a name. It is an orphan from the start, kept by its open handle.
pub(crate) fn make_unnamed<'g>(
    core: &Core,
    cred: &Cred,
    parent: Ino,
    spec: &Spec<'_>,
    guard: &'g Guard,
) -> Result<&'g Cell> {
    let (pcell, _) = resolve::find_dir(core, parent, guard)?;
    perm::check(pcell, cred, W | X)?;
    core.writable()?;
    let room = space::reserve_blocks(core, spec.blocks())?;
    if let Err(e) = space::reserve_inode(core) {
        space::unreserve_name(core, room);
        return Err(e);
    }
    let mut op = Op::begin(core);
    let (mut cell, attrs) = fresh_inode(core, &mut op, cred, pcell, spec).inspect_err(|_| {
        space::unreserve_inode(core);
        space::unreserve_name(core, room);
    })?;
    cell.nlink.store(0, Relaxed);
    cell.lanes.store(1 << (op.lane & 63), Relaxed);
    let v = op.version(0);
    cell.epoch.store(v.epoch, Relaxed);
    cell.born = v.epoch;
    let cell = core.memfs.cells.insert(cell, guard);
    let new = born(cell.ino, Ino::NONE, &attrs, b"", core.is_ordered());
    if spec.xattrs.is_empty() {
        op.append(v, &[new]);
    } else {
        op.append(v, &[new, Effect::Xattrs { ino: cell.ino, xattrs: spec.xattrs }]);
    }
    if attrs.flags != 0 {
        op.dirty(cell, 0);
    }
    core.journal.count_cells(1);
    Ok(cell)
}

/// Tells the reaper of a file without a name, once its handle holds it.
pub(crate) fn note_unnamed(core: &Core, cell: &Cell) {
    let mut op = Op::begin(core);
    let epoch = core.journal.epochs.current();
    op.log.orphans.push((epoch, cell.ino));
}
