//! Making inodes: create, mkdir, mknod, symlink, O_TMPFILE.

use super::perm::{self, W, X};
use super::{Op, posix};
use crate::core::Core;
use crate::core::space;
use crate::core::space::{NewInode, blocks_of_xattrs};
use crate::error::{Error, Result};
use crate::memfs::dir::{ALIVE, DEAD, Dir, Entry, Found, hash_name, relax};
use crate::memfs::inode::{HAS_XATTRS, PRIVILEGED};
use crate::memfs::xattr::Xattrs;
use crate::memfs::{Body, Inode, data::FileData};
use crate::oplog::buffer::SoleGroup;
use crate::oplog::lane::Orphan;
use crate::ops::resolve;
use crate::{Cred, FileKind, Ino};
use crossbeam_epoch::Guard;
use lanefs_format::record::{Effect, NEW_XATTRS_MAX};
use lanefs_format::xattrs::CAPABILITY;
use lanefs_format::{Attrs, INLINE_MAX, SYMLINK_MAX, inode_flags};
use lanefs_sync::clock::coarse_realtime_ns;
use std::sync::atomic::Ordering;

/// Flags that a directory hands on to what is made in it.
const INHERITED: u32 = inode_flags::NODUMP | inode_flags::NOATIME;

const _: () =
    assert!(INHERITED & (inode_flags::IMMUTABLE | inode_flags::APPEND) == 0, "a new file is filled");

/// The specification of an inode that is to be made.
pub(crate) struct Spec<'a> {
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// The number of a device; else 0.
    pub rdev: u64,
    /// A symbolic link's target.
    pub target: &'a [u8],
    /// Its first extended attributes, encoded.
    pub xattrs: &'a [u8],
}

impl Spec<'static> {
    /// Returns what mknod(2) makes with these arguments. Errors as [`crate::Volume::node_mknod`]'s.
    pub(crate) fn of_node(cred: &Cred, mode: u32, rdev: u64) -> Result<Spec<'static>> {
        let kind = match mode & libc::S_IFMT {
            0 => FileKind::File,
            _ => FileKind::from_mode(mode).ok_or(Error::Posix(libc::EINVAL))?,
        };
        match kind {
            FileKind::Dir => return posix(libc::EPERM),
            FileKind::Symlink => return posix(libc::EINVAL),
            // A whiteout is nobody's device: as Linux, anybody may make one.
            FileKind::Char if rdev == 0 => {}
            FileKind::Char | FileKind::BlockDev if !cred.is_root() && !cred.prechecked => {
                return posix(libc::EPERM);
            }
            _ => {}
        }
        debug_assert!(!matches!(kind, FileKind::Dir | FileKind::Symlink), "{kind:?} was refused");
        let rdev = if matches!(kind, FileKind::Char | FileKind::BlockDev) { rdev } else { 0 };
        Ok(Spec { kind, mode, rdev, target: b"", xattrs: b"" })
    }
}

impl Spec<'_> {
    /// Returns what it takes of the volume.
    pub(super) fn space(&self) -> NewInode {
        self.check_invariants();
        let is_outside = self.target.len() > INLINE_MAX;
        NewInode {
            is_dir: self.kind == FileKind::Dir,
            bytes: if is_outside { 0 } else { self.target.len() } + self.xattrs.len(),
            blocks: u64::from(is_outside) + blocks_of_xattrs(self.xattrs.len()),
        }
    }

    /// Checks that one inode can be all of this.
    fn check_invariants(&self) {
        let is_link = self.kind == FileKind::Symlink;
        debug_assert_eq!(is_link, !self.target.is_empty(), "a target of {} bytes", self.target.len());
        debug_assert!(self.target.len() <= SYMLINK_MAX, "a target of {} bytes", self.target.len());
        debug_assert!(self.xattrs.len() <= NEW_XATTRS_MAX, "attributes of {} bytes", self.xattrs.len());
        let is_device = matches!(self.kind, FileKind::Char | FileKind::BlockDev);
        debug_assert!(is_device || self.rdev == 0, "{:?} is no device", self.kind);
    }
}

/// The result of making an inode.
pub(crate) enum Made<'g> {
    New(&'g Inode),
    /// The name exists.
    Exists(Ino, FileKind),
}

/// Returns the effect that makes an inode.
pub(crate) fn born<'a>(ino: Ino, parent: Ino, a: &Attrs, target: &'a [u8], logged: bool) -> Effect<'a> {
    debug_assert!(!ino.is_none() && ino != parent, "inode {ino} in {parent}");
    debug_assert!(a.kind().is_some(), "recovery takes the kind from the mode {:o}", a.mode);
    debug_assert!(a.generation > 0, "inode {ino} would be no use of its number");
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

/// Makes a named inode that is not opened, unless the volume is full.
pub(crate) fn make_new<'g>(
    core: &Core,
    cred: &Cred,
    at: (Ino, &[u8]),
    spec: &Spec<'_>,
    guard: &'g Guard,
) -> Result<&'g Inode> {
    match make(core, cred, at.0, at.1, spec, guard)? {
        Made::New(c) => {
            debug_assert!(c.kind == spec.kind && c.rdev == spec.rdev, "inode {} was made", c.ino);
            Ok(c)
        }
        Made::Exists(..) => posix(libc::EEXIST),
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
    debug_assert!(hash & HASH_ENDS == 0, "{hash:#x} is no place in a directory");
    let mut turn = 0;
    loop {
        // Step 0: everything that can fail or wait, without a lock.
        let (pinode, pdir) = resolve::find_dir(core, parent, guard)?;
        let found = if pdir.lacks(hash, guard) { Found::Absent } else { pdir.lookup(hash, name, guard) };
        match found {
            Found::Name(ino, kind) => return Ok(Made::Exists(ino, kind)),
            Found::NotLoaded => {
                resolve::load_bucket(core, pinode, pdir, hash, guard)?;
                continue;
            }
            Found::Absent => {}
        }
        perm::check(pinode, cred, W | X)?;
        core.writable()?;
        match pdir.state.load(Ordering::SeqCst) {
            ALIVE => {}
            DEAD => return posix(libc::ENOENT),
            _ => {
                relax(&mut turn);
                continue;
            }
        }
        let promised = space::reserve_inode(core, cred.claimant(), name, spec.space())?;
        let mut op = Op::begin(core);
        let (inode, attrs) = match fresh_inode(core, &mut op, cred, pinode, spec) {
            Ok(c) => c,
            Err(e) => {
                space::unreserve(core, promised);
                return Err(e);
            }
        };
        let entry = Entry::new(0, name, inode.ino, spec.kind, 0, 0, 0);
        match enter(&mut op, Place { pinode, pdir, hash }, entry, inode, &attrs, spec, guard) {
            Some(inode) => return Ok(Made::New(inode)),
            // The name appeared, the bucket left memory, or the directory is going: look again.
            None => {
                drop(op);
                space::unreserve(core, promised);
                relax(&mut turn);
            }
        }
    }
}

/// The bits of a cookie that no hash of a name has: the top one, and those that tell names of one
/// hash apart.
const HASH_ENDS: u64 = 1 << 63 | 7;

/// Makes a new inode with its number, not yet visible to anybody.
pub(crate) fn fresh_inode(
    core: &Core,
    op: &mut Op<'_>,
    cred: &Cred,
    parent: &Inode,
    spec: &Spec<'_>,
) -> Result<(Box<Inode>, Attrs)> {
    debug_assert_eq!(parent.kind, FileKind::Dir, "what is made in inode {}", parent.ino);
    spec.check_invariants();
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
        // SAFETY: the inode is boxed in `Inode::new` below and never moves out of its box (D8).
        FileKind::File => Body::File(unsafe { FileData::new(0, 0, 0) }),
        FileKind::Symlink => Body::Link(spec.target.into()),
        FileKind::Dir => Body::Dir(Dir::new(true)),
        _ => Body::None,
    };
    let links = if spec.kind == FileKind::Dir { 2 } else { 1 };
    let inode = Inode::new(ino, spec.kind, &attrs, links, parent.ino, body, (op.lane, &core.memfs.stamps));
    // Not dirty: the group that makes the inode has them, and so will the tree when it is
    // folded.
    if let Some(x) = Some(spec.xattrs).filter(|x| !x.is_empty()).and_then(Xattrs::decode) {
        let marks = if x.get(CAPABILITY).is_some() { HAS_XATTRS | PRIVILEGED } else { HAS_XATTRS };
        inode.xattrs.publish(&inode.xattrs.lock(), x, &crossbeam_epoch::pin());
        inode.set(marks);
    }
    debug_assert_eq!(spec.xattrs.is_empty(), !inode.has(HAS_XATTRS), "they were encoded by this crate");
    debug_assert_eq!(inode.size() == size, spec.kind != FileKind::Dir, "{} bytes", inode.size());
    Ok((inode, attrs))
}

/// The place where a name is entered.
#[derive(Clone, Copy)]
struct Place<'g> {
    pinode: &'g Inode,
    pdir: &'g Dir,
    hash: u64,
}

/// Does steps 2 to 7 of a creation; returns `None` if the look before was too early.
#[allow(clippy::boxed_local)]
fn enter<'g>(
    op: &mut Op<'_>,
    Place { pinode, pdir, hash }: Place<'g>,
    mut entry: Box<Entry>,
    mut inode: Box<Inode>,
    attrs: &Attrs,
    spec: &Spec<'_>,
    guard: &'g Guard,
) -> Option<&'g Inode> {
    let core = op.core;
    debug_assert!(pinode.dir().is_some_and(|d| std::ptr::eq(d, pdir)), "another inode's directory");
    debug_assert!(inode.born == 0 && inode.ino != pinode.ino, "inode {} is new", inode.ino);
    let leaf = pdir.lock(hash, guard).make_space(hash, || core.journal.folded());
    let (old, cookie) = leaf.place(hash, entry.name.as_slice());
    let state = pdir.state.load(Ordering::SeqCst);
    let Some(cookie) =
        cookie.filter(|_| state == ALIVE && leaf.is_complete() && old.is_none_or(|e| e.target().is_none()))
    else {
        drop(leaf);
        op.give_back(inode.ino);
        return None;
    };
    debug_assert_eq!(cookie & !7, hash, "the name would not be found under its hash");
    // Relaxed: nobody else has the inode yet.
    inode.lanes.store(1 << (op.lane & 63), Ordering::Relaxed);
    pdir.named_by(hash, op.lane, 0);
    let v = op.version(leaf.last_ts());
    inode.epoch.store(v.epoch, Ordering::Relaxed);
    inode.born = v.epoch;
    pdir.named_by(hash, op.lane, v.epoch);
    let ino = inode.ino;
    let inode = core.memfs.inodes.insert(inode, guard);
    debug_assert_eq!(inode.born, v.epoch, "another inode has the number {ino}");
    let name = match old {
        Some(e) => {
            op.note_change(e.touch(v.epoch, op.lane));
            e.set_target(Some((ino, spec.kind)));
            e.name.as_slice()
        }
        None => {
            entry.cookie = cookie;
            entry.born.store(v.epoch, Ordering::Relaxed);
            entry.touch(v.epoch, op.lane);
            leaf.insert(entry).name.as_slice()
        }
    };
    leaf.stamp(v.epoch, v.ts);
    let dir = pinode.ino;
    let new = born(ino, dir, attrs, spec.target, core.is_ordered());
    let set = Effect::Set { dir, cookie, name, ino, old: Ino::NONE, kind: spec.kind };
    let group = match spec.xattrs.is_empty() {
        true => op.append(v, &[new, set]),
        false => op.append(v, &[new, Effect::Xattrs { ino, xattrs: spec.xattrs }, set]),
    };
    inode.set_sole_group(group);
    drop(leaf);
    if attrs.flags != 0 {
        // The group does not hold flags.
        op.dirty(inode, 0);
    }
    pinode.note_change(pdir, cookie, attrs.btime, i32::from(spec.kind == FileKind::Dir));
    op.dirty_dir(pinode, pdir, hash);
    core.journal.count_inodes(1);
    core.journal.count_names(Entry::bytes(name.len()) as i64);
    Some(inode)
}

/// Makes a file without a name. It is an orphan from the start, kept by its open handle.
pub(crate) fn make_unnamed<'g>(
    core: &Core,
    cred: &Cred,
    parent: Ino,
    spec: &Spec<'_>,
    guard: &'g Guard,
) -> Result<&'g Inode> {
    let (pinode, pdir) = resolve::find_dir(core, parent, guard)?;
    perm::check(pinode, cred, W | X)?;
    core.writable()?;
    if pdir.state.load(Ordering::SeqCst) == DEAD {
        return posix(libc::ENOENT);
    }
    let promised = space::reserve_inode(core, cred.claimant(), b"", spec.space())?;
    let mut op = Op::begin(core);
    let (mut inode, attrs) = fresh_inode(core, &mut op, cred, pinode, spec).inspect_err(|_| {
        space::unreserve(core, promised);
    })?;
    // Relaxed: nobody else has the inode yet.
    inode.nlink.store(0, Ordering::Relaxed);
    inode.lanes.store(1 << (op.lane & 63), Ordering::Relaxed);
    let v = op.version(0);
    inode.epoch.store(v.epoch, Ordering::Relaxed);
    inode.born = v.epoch;
    let ino = inode.ino;
    let inode = core.memfs.inodes.insert(inode, guard);
    debug_assert_eq!(inode.born, v.epoch, "another inode has the number {ino}");
    let new = born(inode.ino, Ino::NONE, &attrs, b"", core.is_ordered());
    if spec.xattrs.is_empty() {
        op.append(v, &[new]);
    } else {
        op.append(v, &[new, Effect::Xattrs { ino: inode.ino, xattrs: spec.xattrs }]);
    }
    if attrs.flags != 0 {
        op.dirty(inode, 0);
    }
    core.journal.count_inodes(1);
    Ok(inode)
}

/// Hands a file without a name to the reaper, once its handle holds it.
pub(crate) fn note_unnamed(core: &Core, inode: &Inode) {
    debug_assert!(inode.born > 0, "inode {} was made in this mount", inode.ino);
    let mut op = Op::begin(core);
    op.log.orphans.push(Orphan { ino: inode.ino, removal: SoleGroup::NONE });
}
