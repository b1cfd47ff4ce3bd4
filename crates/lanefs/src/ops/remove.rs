//! Removing names: unlink and rmdir.

use super::{Op, perm, posix, short_lived};
use crate::core::{Core, space};
use crate::error::{Error, Result};
use crate::memfs::Inode;
use crate::memfs::dir::{ALIVE, DEAD, DYING, Dir, Found, NotEmpty, hash_name, relax};
use crate::oplog::buffer::SoleGroup;
use crate::oplog::lane::Orphan;
use crate::oplog::short_lived::ShortLife;
use crate::ops::resolve;
use crate::{Cred, FileKind, Ino};
use crossbeam_epoch::Guard;
use lanefs_format::record::Effect;
use lanefs_sync::clock::coarse_realtime_ns;
use std::sync::atomic::Ordering::SeqCst;

/// Bytes of files, of one or of many, that are worth a wake of the thread that ends them (some 5
/// us): what it takes to clear as many frames that were never used is fifty times as much.
const MUCH: u64 = 1 << 20;

/// A name about to be changed, as it was found without locks.
pub(crate) struct Seen<'g> {
    pub pinode: &'g Inode,
    pub pdir: &'g Dir,
    pub hash: u64,
    pub target: Option<(&'g Inode, FileKind)>,
}

/// Looks at `name` of `parent` (step 0): loads the bucket and the inode it names.
pub(crate) fn look_up_name<'g>(core: &Core, parent: Ino, name: &[u8], guard: &'g Guard) -> Result<Seen<'g>> {
    let (pinode, pdir) = resolve::find_dir(core, parent, guard)?;
    let hash = hash_name(core.memfs.hash_key, name);
    let mut turn = 0;
    loop {
        let target = match pdir.lookup(hash, name, guard) {
            Found::Absent => None,
            Found::NotLoaded => {
                resolve::load_bucket(core, pinode, pdir, hash, guard)?;
                continue;
            }
            Found::Name(ino, kind) => match resolve::find(core, ino, guard) {
                Ok(c) => Some((c, kind)),
                // Removed meanwhile: the name will be gone at the next look, or else the
                // directory is damaged.
                Err(e) if e.errno() == libc::ESTALE && turn < 1000 => {
                    relax(&mut turn);
                    continue;
                }
                Err(Error::Posix(libc::ESTALE)) => {
                    let why = format!(
                        "the entry {} names an inode that does not exist",
                        String::from_utf8_lossy(name)
                    );
                    return Err(lanefs_store::StoreError::BadInode { ino: parent, why }.into());
                }
                Err(e) => return Err(e),
            },
        };
        let seen = Seen { pinode, pdir, hash, target };
        seen.check_invariants();
        return Ok(seen);
    }
}

impl Seen<'_> {
    /// Checks that the parts belong together.
    fn check_invariants(&self) {
        let dir = self.pinode.dir();
        debug_assert!(dir.is_some_and(|d| std::ptr::eq(d, self.pdir)), "another inode's directory");
        let own = self.target.filter(|t| t.0.ino == self.pinode.ino);
        debug_assert!(own.is_none_or(|t| std::ptr::eq(t.0, self.pinode)), "an inode is in memory twice");
    }
}

/// Waits until nobody is removing the directory; ENOENT if it is gone.
#[inline]
pub(crate) fn check_dir_alive(dir: &Dir) -> Result<()> {
    let mut turn = 0;
    loop {
        match dir.state.load(SeqCst) {
            ALIVE => return Ok(()),
            DEAD => return posix(libc::ENOENT),
            _ => relax(&mut turn),
        }
    }
}

/// Does what unlink(2) does.
pub(crate) fn unlink(core: &Core, cred: &Cred, parent: Ino, name: &[u8], guard: &Guard) -> Result<()> {
    check_last(name, libc::EISDIR)?;
    let mut turn = 0;
    loop {
        let s = look_up_name(core, parent, name, guard)?;
        perm::check(s.pinode, cred, perm::X)?;
        let Some((victim, kind)) = s.target else { return posix(libc::ENOENT) };
        perm::check_removal(s.pinode, victim, cred)?;
        core.writable()?;
        if kind == FileKind::Dir {
            return posix(libc::EISDIR);
        }
        let now = coarse_realtime_ns();
        let mut op = Op::begin(core);
        let leaf = s.pdir.lock(s.hash, guard);
        let Some(e) = leaf.find(s.hash, name).filter(|e| e.target() == Some((victim.ino, kind))) else {
            drop(leaf);
            drop(op);
            relax(&mut turn);
            continue;
        };
        debug_assert_eq!(e.cookie & !7, s.hash, "the name lies under another hash");
        victim.note_lane(op.lane, 0);
        s.pdir.named_by(s.hash, op.lane, 0);
        let v = op.version(leaf.last_ts());
        debug_assert!(v.epoch >= victim.born, "inode {} loses a name before it was made", victim.ino);
        victim.note_lane(op.lane, v.epoch);
        s.pdir.named_by(s.hash, op.lane, v.epoch);
        let cookie = e.cookie;
        let removed = leaf.remove(e, v.epoch, op.lane);
        op.log.thin(parent);
        leaf.stamp(v.epoch, v.ts);
        op.note_removed(removed);
        let group = op.append(v, &[Effect::Clr { dir: parent, cookie, name, old: victim.ino, kind }]);
        drop(leaf);
        let orphan = lose_link_by(&mut op, victim, v.epoch, group, now);
        let is_due = orphan.is_some_and(|o| leave(&mut op, victim, o, name));
        s.pinode.note_change(s.pdir, cookie, now, 0);
        op.dirty_dir(s.pinode, s.pdir, s.hash);
        finish(op);
        if is_due {
            short_lived::end_some(core, guard);
        }
        return Ok(());
    }
}

/// Ends an operation that took names, and has the reaper end files soon if much content went with
/// them. Nothing may be locked.
pub(crate) fn finish(mut op: Op<'_>) {
    let core = op.core;
    let ends_much = op.log.ended_bytes >= MUCH;
    if ends_much {
        op.log.ended_bytes = 0;
    }
    drop(op);
    if ends_much {
        core.end_soon();
    }
}

/// Returns whether an inode has so much content that its end is worth a wake of another thread.
pub(crate) fn has_much(inode: &Inode) -> bool {
    inode.data().is_some_and(|d| d.size() >= MUCH)
}

/// Leaves a file to whoever ends it: the lane itself, if it made the file in this epoch, or the
/// reaper. Returns whether it is time to end some.
#[inline]
fn leave(op: &mut Op<'_>, victim: &Inode, orphan: Orphan, name: &[u8]) -> bool {
    if orphan.removal != SoleGroup::NONE && short_lived::is_as_made(victim) {
        let promised = space::bytes_of_file(op.core, name) as u32;
        return op.log.short_lived.add(ShortLife { ino: orphan.ino, removal: orphan.removal, promised });
    }
    op.log.orphans.push(orphan);
    false
}

/// Takes a link from a file; without any left it is an orphan. More than the group of an unlink(2)
/// names the file.
pub(crate) fn lose_link(op: &mut Op<'_>, victim: &Inode, epoch: u64, now: i64) {
    let orphan = lose_link_by(op, victim, epoch, SoleGroup::NONE, now);
    op.log.orphans.extend(orphan);
}

/// Takes a link from a file; without any left it is an orphan, which is returned. `removal`: the
/// group that says so, if it says nothing else.
#[inline]
fn lose_link_by(op: &mut Op<'_>, victim: &Inode, epoch: u64, removal: SoleGroup, now: i64) -> Option<Orphan> {
    debug_assert!(epoch > op.core.journal.folded(), "the loss of epoch {epoch} is logged just now");
    let made = victim.sole_group().place();
    let both_here = victim.born == epoch && made.is_some_and(|made| made.0 == op.lane);
    // SeqCst: pairs with the compare-exchange of link(2), which refuses an inode without names, and
    // with the reaper's look.
    let was_last = victim.nlink.fetch_sub(1, SeqCst) == 1;
    let removal = if was_last && both_here { removal } else { SoleGroup::NONE };
    if removal == SoleGroup::NONE {
        victim.named_by(op.lane, epoch);
    }
    if !was_last {
        op.changed(victim, now);
        return None;
    }
    op.log.ended_bytes += victim.data().map_or(0, |d| d.size().min(MUCH));
    // Who holds it open sees the time; nothing of it is written any more.
    victim.set_times(None, None, Some(now));
    Some(Orphan { ino: victim.ino, removal })
}

/// Does what rmdir(2) does.
pub(crate) fn rmdir(core: &Core, cred: &Cred, parent: Ino, name: &[u8], guard: &Guard) -> Result<()> {
    match name {
        b"." => return posix(libc::EINVAL),
        b".." => return posix(libc::ENOTEMPTY),
        _ => perm::check_name(name)?,
    }
    let mut turn = 0;
    // ENOTEMPTY without a lock rests on the name and on those below it: it is answered only of one
    // moment.
    let mut careful = false;
    loop {
        let moment = careful.then(|| resolve::watch(core, &[(parent, name)], guard)).transpose()?;
        let s = look_up_name(core, parent, name, guard)?;
        perm::check(s.pinode, cred, perm::X)?;
        let Some((victim, kind)) = s.target else { return posix(libc::ENOENT) };
        perm::check_removal(s.pinode, victim, cred)?;
        core.writable()?;
        let Some(vdir) = victim.dir() else { return posix(libc::ENOTDIR) };
        if vdir.has_names(guard) {
            if moment.is_some_and(|m| m.holds()) {
                return posix(libc::ENOTEMPTY);
            }
            careful = true;
            relax(&mut turn);
            continue;
        }
        resolve::load_all(core, victim, vdir, guard)?;
        let now = coarse_realtime_ns();
        let mut op = Op::begin(core);
        let leaf = s.pdir.lock(s.hash, guard);
        let Some(e) = leaf.find(s.hash, name).filter(|e| e.target() == Some((victim.ino, kind))) else {
            drop(leaf);
            drop(op);
            relax(&mut turn);
            continue;
        };
        let highest = match close_empty(vdir, guard) {
            Ok(ts) => ts,
            Err(NotEmpty::HasNames) => return posix(libc::ENOTEMPTY),
            Err(_) => {
                drop(leaf);
                drop(op);
                relax(&mut turn);
                continue;
            }
        };
        victim.named_by(op.lane, 0);
        s.pdir.named_by(s.hash, op.lane, 0);
        debug_assert_eq!(vdir.state.load(SeqCst), DYING, "names may be added to it");
        let v = op.version(leaf.last_ts().max(highest));
        victim.named_by(op.lane, v.epoch);
        s.pdir.named_by(s.hash, op.lane, v.epoch);
        let cookie = e.cookie;
        // What lanes remember of paths through it ends with this (memfs::paths).
        let moves = core.memfs.paths.moves(victim.ino);
        let removed = leaf.remove(e, v.epoch, op.lane);
        op.note_removed(removed);
        op.log.thin(parent);
        leaf.stamp(v.epoch, v.ts);
        op.append(v, &[Effect::Clr { dir: parent, cookie, name, old: victim.ino, kind }]);
        drop(leaf);
        drop(moves);
        retire_dir(&mut op, victim, vdir, now);
        s.pinode.note_change(s.pdir, cookie, now, -1);
        op.dirty_dir(s.pinode, s.pdir, s.hash);
        return Ok(());
    }
}

/// Retires a directory that was closed by [`close_empty`] and has lost its name.
pub(crate) fn retire_dir(op: &mut Op<'_>, victim: &Inode, vdir: &Dir, now: i64) {
    debug_assert_eq!(vdir.state.load(SeqCst), DYING, "directory {} was not closed", victim.ino);
    debug_assert!(victim.dir().is_some_and(|d| std::ptr::eq(d, vdir)), "another inode's directory");
    victim.set_times(None, None, Some(now));
    victim.nlink.store(0, SeqCst);
    vdir.state.store(DEAD, SeqCst);
    op.log.orphans.push(Orphan { ino: victim.ino, removal: SoleGroup::NONE });
}

/// Marks a directory DYING and checks that it is empty. On success nothing can be added any more;
/// the caller makes it DEAD.
pub(crate) fn close_empty(dir: &Dir, guard: &Guard) -> Result<u64, NotEmpty> {
    if dir.state.compare_exchange(ALIVE, DYING, SeqCst, SeqCst).is_err() {
        return Err(NotEmpty::Busy);
    }
    let r = dir.check_empty(guard);
    if r.is_err() {
        dir.state.store(ALIVE, SeqCst);
    }
    r
}

/// Refuses `.` and `..` as the last component.
fn check_last(name: &[u8], errno: i32) -> Result<()> {
    if name == b"." || name == b".." { posix(errno) } else { perm::check_name(name) }
}
