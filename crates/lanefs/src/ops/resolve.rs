//! From names to inodes: loading what is not in memory, and walking paths.

mod plain;

use super::perm::{self, X};
use super::posix;
use crate::core::Core;
use crate::core::memory;
use crate::error::{Error, Result};
use crate::memfs::dir::{Dir, Found, Moment, Step, hash_name, relax};
use crate::memfs::inode::{FREED, FUTURE, HAS_XATTRS, PRIVILEGED};
use crate::memfs::{Body, Inode, data::FileData};
use crate::{Cred, FileKind, Ino};
use crossbeam_epoch::Guard;
use lanefs_format::ROOT_INO;
use lanefs_format::xattrs::{self, CAPABILITY};
use lanefs_sync::clock::coarse_realtime_ns;
use std::borrow::Cow;

/// Symbolic links followed in one path before ELOOP, as in Linux.
const MAX_LINKS: u32 = 40;
/// The longest path, in bytes.
const PATH_MAX: usize = 4095;

const _: () = assert!(PATH_MAX + 1 == libc::PATH_MAX as usize, "as Linux, which counts the NUL");
const _: () = assert!(lanefs_format::SYMLINK_MAX <= PATH_MAX, "a link can be walked");

/// The place to which a path leads.
pub(crate) struct Resolved<'p> {
    /// The directory that holds the last component.
    pub parent: Ino,
    /// The last component; empty if the path names the start itself (`/`, `..`). Borrowed from the
    /// path, unless it stands in a symbolic link.
    pub name: Cow<'p, [u8]>,
    /// The inode that it names now; unknown with [`Last::Place`].
    pub target: Option<(Ino, FileKind)>,
    /// The path ended in `/`: only a directory will do.
    pub must_be_dir: bool,
}

impl Resolved<'_> {
    /// Returns why there is nothing under this name.
    pub fn missing(&self) -> Error {
        Error::Posix(if self.name.len() > lanefs_format::NAME_MAX {
            libc::ENAMETOOLONG
        } else {
            libc::ENOENT
        })
    }

    /// Checks that a walk stopped at a component, or at the directory where it began.
    fn check_invariants(&self) {
        debug_assert!(!self.name.contains(&b'/'), "several components are left");
        debug_assert!(!matches!(&*self.name, b"." | b".."), "a walk goes through these");
        let itself = Some((self.parent, FileKind::Dir));
        debug_assert!(!self.name.is_empty() || self.target == itself, "a path without a name");
    }
}

/// The components of a path, without empty ones and `.`.
struct Components<'p>(&'p [u8]);

impl<'p> Components<'p> {
    /// Takes the next component off.
    #[inline]
    fn next(&mut self) -> Option<&'p [u8]> {
        loop {
            let start = self.0.iter().position(|b| *b != b'/')?;
            let path = &self.0[start..];
            let (name, rest) = path.split_at(path.iter().position(|b| *b == b'/').unwrap_or(path.len()));
            self.0 = rest;
            debug_assert!(!name.is_empty() && !name.contains(&b'/'), "no component");
            if name != b"." {
                return Some(name);
            }
        }
    }

    /// Returns whether no component is left.
    #[inline]
    fn is_over(&self) -> bool {
        self.0.is_empty() || Components(self.0).next().is_none()
    }
}

/// The ways in which a walk treats the last component.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Last {
    /// Looks it up and follows it if it is a symbolic link.
    Follow,
    /// The same for who would make a file there: a link that asks for a directory is EISDIR.
    Create,
    /// Looks it up.
    Look,
    /// Leaves it to the caller, who will look anyway. Of a path that can only name a directory it
    /// is looked up all the same.
    Place,
}

impl Last {
    /// Returns whether a symbolic link in the last component is followed.
    pub fn follows(self) -> bool {
        matches!(self, Last::Follow | Last::Create)
    }
}

/// Returns the inode of `ino`, loaded if need be. ESTALE if there is no such inode.
#[inline]
pub(crate) fn find<'g>(core: &Core, ino: Ino, guard: &'g Guard) -> Result<&'g Inode> {
    match core.memfs.inodes.get(ino, guard) {
        Some(c) if !c.has(FREED) => Ok(c),
        Some(_) => posix(libc::ESTALE),
        None => load(core, ino, guard),
    }
}

/// Returns a directory's inode. ENOTDIR for other kinds.
#[inline]
pub(crate) fn find_dir<'g>(core: &Core, ino: Ino, guard: &'g Guard) -> Result<(&'g Inode, &'g Dir)> {
    let c = find(core, ino, guard)?;
    debug_assert_eq!(c.ino, ino, "another inode lies in its place");
    c.dir().map(|d| (c, d)).ok_or(Error::Posix(libc::ENOTDIR))
}

/// Loads an inode from the store.
#[cold]
fn load<'g>(core: &Core, ino: Ino, guard: &'g Guard) -> Result<&'g Inode> {
    core.check_alive()?;
    if ino.is_none() || ino.0 >= crate::memfs::table::MAX_INO {
        return posix(libc::ESTALE);
    }
    // One loader per inode at a time, and no eviction meanwhile: what the store returns is not
    // older than any inode was.
    let _one = core.memfs.load_locks[ino.0 as usize % core.memfs.load_locks.len()].lock();
    if let Some(c) = core.memfs.inodes.get(ino, guard) {
        return if c.has(FREED) { posix(libc::ESTALE) } else { Ok(c) };
    }
    if core.memfs.dead.lock().contains(&ino.0) {
        return posix(libc::ESTALE);
    }
    let Some(image) = core.store.load_inode(ino)? else { return posix(libc::ESTALE) };
    let Some(kind) = image.attrs.kind() else {
        return Err(
            lanefs_store::StoreError::BadInode { ino, why: "its mode names no file type".into() }.into()
        );
    };
    let (size, blocks, behind) = (image.attrs.size, image.blocks, image.behind);
    let body = match kind {
        FileKind::File => {
            // SAFETY: the inode is boxed in `Inode::new` below and never moves out of its box (D8).
            let data = unsafe { FileData::new(size, blocks, behind) };
            if image.unwritten > 0 {
                data.note_kept();
            }
            Body::File(data)
        }
        FileKind::Symlink => Body::Link(load_target(core, ino, size)?),
        FileKind::Dir => Body::Dir(Dir::new(false)),
        _ => Body::None,
    };
    let inode = Inode::new(
        ino,
        kind,
        &image.attrs,
        image.nlink,
        image.parent,
        body,
        (core.journal.lanes.mine(), &core.memfs.stamps),
    );
    if image.attrs.mtime > coarse_realtime_ns() {
        inode.set(FUTURE);
    }
    if !image.xattrs.is_empty() {
        inode.set(HAS_XATTRS);
        if xattrs::has(&image.xattrs, CAPABILITY) {
            inode.set(PRIVILEGED);
        }
    }
    debug_assert!(inode.born == 0 && !inode.has_dirty(), "inode {ino} is as the store has it");
    core.journal.count_inodes(1);
    if ino.0 & 255 == 255 && memory::meta_is_over(core) {
        memory::update_throttle(core);
        core.wake_persistence();
    }
    let made = std::ptr::from_ref(&*inode);
    let inode = core.memfs.inodes.insert(inode, guard);
    debug_assert!(std::ptr::eq(made, inode), "two loaded inode {ino} at a time");
    Ok(inode)
}

/// Looks `name` up in a directory, loading its bucket if need be. Writes nothing when it is in
/// memory.
#[inline]
pub(crate) fn lookup(
    core: &Core,
    inode: &Inode,
    dir: &Dir,
    name: &[u8],
    guard: &Guard,
) -> Result<Option<(Ino, FileKind)>> {
    let hash = hash_name(core.memfs.hash_key, name);
    loop {
        match dir.lookup(hash, name, guard) {
            Found::Name(ino, kind) => return Ok(Some((ino, kind))),
            Found::Absent => return Ok(None),
            Found::NotLoaded => load_bucket(core, inode, dir, hash, guard)?,
        }
    }
}

/// Brings the folded bucket that covers `cookie` into memory. The caller holds no lock.
#[cold]
pub(crate) fn load_bucket(core: &Core, inode: &Inode, dir: &Dir, cookie: u64, guard: &Guard) -> Result<()> {
    debug_assert!(inode.dir().is_some_and(|d| std::ptr::eq(d, dir)), "another inode's directory");
    debug_assert!(cookie < 1 << 63, "{cookie:#x} is no place in a directory");
    let mut turn = 0;
    loop {
        core.check_alive()?;
        let stamp = dir.load_stamp();
        let b = core.store.load_bucket(inode.ino, cookie)?;
        let entries: Vec<_> = b.entries.iter().map(|e| (e.cookie, e.ino, e.kind, &*e.name)).collect();
        let bucket = crate::memfs::dir::Bucket { lowest: b.low, highest: b.high, entries: &entries };
        let (whole, bytes) = dir.install(cookie, &bucket, stamp, guard);
        if bytes > 0 {
            core.journal.count_names(bytes as i64);
            // Who lists everything outruns the background, which looks five times a second.
            let mine = core
                .journal
                .lanes
                .shared(core.journal.lanes.mine())
                .names
                .load(std::sync::atomic::Ordering::Relaxed);
            if (mine ^ (mine - bytes as i64)) >> 17 != 0 && memory::meta_is_over(core) {
                memory::update_throttle(core);
                core.wake_persistence();
            }
        }
        if whole {
            return Ok(());
        }
        // This leaf was evicted, or cleared of tombstones, since the store was asked.
        relax(&mut turn);
    }
}

/// Loads every bucket of a directory, as far as rmdir must know them to call it empty.
pub(crate) fn load_all(core: &Core, inode: &Inode, dir: &Dir, guard: &Guard) -> Result<()> {
    let mut out = Vec::new();
    let mut at = 0;
    loop {
        match dir.list_leaf(at, &mut out, guard) {
            Step::End => return Ok(()),
            Step::Next(_) if !out.is_empty() => return Ok(()),
            Step::Next(n) => {
                debug_assert!(n > at, "a listing goes back from {at} to {n}");
                at = n;
            }
            Step::NotLoaded(c) => load_bucket(core, inode, dir, c, guard)?,
        }
    }
}

/// Returns the target of a symbolic link. EINVAL: the inode is none.
pub(crate) fn link_target(inode: &Inode) -> Result<Vec<u8>> {
    match &inode.body {
        // The kind first: a file's body lies on a line that extending it writes.
        _ if inode.kind != FileKind::Symlink => posix(libc::EINVAL),
        Body::Link(t) => {
            debug_assert!((1..=lanefs_format::SYMLINK_MAX).contains(&t.len()), "a link of {} bytes", t.len());
            Ok(t.to_vec())
        }
        _ => posix(libc::EINVAL),
    }
}

/// Reads a symbolic link's target from the store.
fn load_target(core: &Core, ino: Ino, size: u64) -> Result<Box<[u8]>> {
    if size == 0 || size > lanefs_format::SYMLINK_MAX as u64 {
        return Err(lanefs_store::StoreError::BadInode {
            ino,
            why: format!("a symbolic link of {size} bytes"),
        }
        .into());
    }
    let mut page = lanefs_format::Block::zeroed();
    core.store.read_pages(ino, 0, &mut [lanefs_store::PageRead { block: &mut page, hole: false }])?;
    Ok(page.0[..size as usize].into())
}

/// A path, and the directory in which it begins if it is relative. Handed over by reference: a walk
/// has few registers to spare.
pub(crate) struct Way<'p> {
    pub start: Ino,
    pub path: &'p [u8],
}

/// Walks a path. The last component need not exist.
pub(crate) fn resolve<'p>(
    core: &Core,
    cred: &Cred,
    way: &Way<'p>,
    last: Last,
    guard: &Guard,
) -> Result<Resolved<'p>> {
    debug_assert!(!way.start.is_none(), "a walk begins nowhere");
    if way.path.len() <= PATH_MAX
        && let Some(r) = plain::walk_plain(core, cred, way, last, guard)
    {
        r.check_invariants();
        return Ok(r);
    }
    let r = resolve_at(core, cred, way.start, way.path, last, &mut 0, guard);
    r.iter().for_each(Resolved::check_invariants);
    r
}

/// Walks a path that begins in `start` if it is relative; `links` counts the symbolic links that
/// were followed.
fn resolve_at<'p>(
    core: &Core,
    cred: &Cred,
    start: Ino,
    path: &'p [u8],
    wanted: Last,
    links: &mut u32,
    guard: &Guard,
) -> Result<Resolved<'p>> {
    if path.is_empty() {
        return posix(libc::ENOENT);
    }
    if path.len() > PATH_MAX {
        return posix(libc::ENAMETOOLONG);
    }
    let mut dir = if path[0] == b'/' { ROOT_INO } else { start };
    // A path that ends in `.` enters the directory before it.
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |i| i + 1);
    let enters = path[..end].ends_with(b".") && (end < 2 || path[end - 2] == b'/');
    let must_be_dir = path.ends_with(b"/") || enters;
    let not_a_dir = if wanted == Last::Create { libc::EISDIR } else { libc::ENOTDIR };
    let mut rest = Components(path);
    while let Some(name) = rest.next() {
        let (inode, d) = find_dir(core, dir, guard)
            .map_err(|e| if e.errno() == libc::ESTALE { Error::Posix(libc::ENOENT) } else { e })?;
        perm::check(inode, cred, X)?;
        let last = rest.is_over();
        if name.len() > lanefs_format::NAME_MAX {
            // The last component's length is for whoever uses it: rename first wants to know
            // whether there is a source.
            return if last {
                Ok(Resolved { parent: dir, name: name.into(), target: None, must_be_dir })
            } else {
                posix(libc::ENAMETOOLONG)
            };
        }
        if name == b".." {
            // Acquire: pairs with the Release of the rename that moved the directory.
            dir = Ino(inode.parent.load(std::sync::atomic::Ordering::Acquire));
            continue;
        }
        if last && wanted == Last::Place && !must_be_dir {
            return Ok(Resolved { parent: dir, name: name.into(), target: None, must_be_dir });
        }
        let target = lookup(core, inode, d, name, guard)?;
        match target {
            Some((ino, FileKind::Symlink)) if !last || wanted.follows() || must_be_dir => {
                *links += 1;
                if *links > MAX_LINKS {
                    return posix(libc::ELOOP);
                }
                let link = link_target(find(core, ino, guard)?)?;
                let there = if last && wanted == Last::Create { wanted } else { Last::Follow };
                let r = resolve_at(core, cred, dir, &link, there, links, guard)?;
                if last {
                    if must_be_dir && r.target.is_some_and(|t| t.1 != FileKind::Dir) {
                        return posix(not_a_dir);
                    }
                    return Ok(Resolved {
                        name: r.name.into_owned().into(),
                        must_be_dir: must_be_dir || r.must_be_dir,
                        ..r
                    });
                }
                dir = match r.target {
                    Some((ino, FileKind::Dir)) => ino,
                    Some(_) => return posix(libc::ENOTDIR),
                    None => return Err(r.missing()),
                };
            }
            _ if last => {
                if must_be_dir && target.is_some_and(|t| t.1 != FileKind::Dir) {
                    return posix(not_a_dir);
                }
                if let Some((ino, _)) = target
                    && enters
                {
                    perm::check(find(core, ino, guard)?, cred, X)?;
                }
                return Ok(Resolved { parent: dir, name: name.into(), target, must_be_dir });
            }
            Some((ino, FileKind::Dir)) => dir = ino,
            Some(_) => return posix(libc::ENOTDIR),
            None => return posix(libc::ENOENT),
        }
    }
    Ok(Resolved { parent: dir, name: Cow::Borrowed(&[]), target: Some((dir, FileKind::Dir)), must_be_dir })
}

/// The place of a name: its directory and its bytes.
pub(crate) type At<'a> = (Ino, &'a [u8]);

/// Begins to watch the moment at which these names are looked at.
pub(crate) fn watch<'g>(core: &Core, names: &[At<'_>], guard: &'g Guard) -> Result<Moment<'g>> {
    debug_assert!((1..=2).contains(&names.len()), "{} names at one moment", names.len());
    let mut watched = smallvec::SmallVec::<[_; 2]>::new();
    for (parent, name) in names {
        watched.push((find_dir(core, *parent, guard)?.1, hash_name(core.memfs.hash_key, name)));
    }
    Ok(Moment::begin(watched, guard))
}
