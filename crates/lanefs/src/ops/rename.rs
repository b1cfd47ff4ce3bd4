//! rename(2) and renameat2(2): within and across directories, over existing names, NOREPLACE,
//! EXCHANGE and WHITEOUT.
//!
//! One group carries the whole rename, the replaced target included (O3). Both leaves are locked in
//! order and `raised`, so that no lookup sees it half done. Directories move between directories
//! only under the volume's move lock, which makes the ancestor check hold (O7); their groups carry
//! PARENT, which makes every fsync that meets them commit the epoch instead. A file renamed over
//! another goes on the lane's list of those whose content must be durable before the rename is (F5,
//! persist::replaced).

use super::create::{Spec, born};
use super::remove::{Seen, close_empty};
use super::resolve::At;
use super::{Op, perm, posix};
use crate::core::Core;
use crate::core::host::{HostWait, is_host_pending};
use crate::core::space;
use crate::error::Result;
use crate::memfs::Inode;
use crate::memfs::dir::{ALIVE, Entry, LockedPair, NotEmpty, relax};
use crate::ops::create;
use crate::ops::remove;
use crate::ops::resolve;
use crate::ops::rights;
use crate::{Cred, FileKind, Ino};
use crossbeam_epoch::Guard;
use lanefs_format::ROOT_INO;
use lanefs_format::record::Effect;
use lanefs_sync::clock::coarse_realtime_ns;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// The variant of a rename: what it does beside moving a name.
#[derive(Clone, Copy)]
struct How {
    exchange: bool,
    noreplace: bool,
    whiteout: bool,
}

impl How {
    /// Reads flags. EINVAL: some are not known, or not together.
    fn of(flags: u32) -> Result<How> {
        let has = |flag: u32| flags & flag != 0;
        let (exchange, noreplace) = (has(libc::RENAME_EXCHANGE), has(libc::RENAME_NOREPLACE));
        let how = How { exchange, noreplace, whiteout: has(libc::RENAME_WHITEOUT) };
        let known = libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE | libc::RENAME_WHITEOUT;
        if flags & !known != 0 || exchange && (noreplace || how.whiteout) {
            return posix(libc::EINVAL);
        }
        debug_assert!(!how.exchange || !how.whiteout, "both leave something in the old place");
        Ok(how)
    }
}

/// Checks flags of renameat2(2): EINVAL if some are not known, or not together.
pub(crate) fn check_flags(flags: u32) -> Result<()> {
    How::of(flags).map(drop)
}

/// The inode that RENAME_WHITEOUT leaves in the old place: a character device 0/0, by which an
/// overlay knows that a name of the layer below is gone.
const WHITEOUT: Spec<'_> = Spec { kind: FileKind::Char, mode: 0, rdev: 0, target: b"", xattrs: b"" };

/// The end of an attempt.
enum Tried {
    Done,
    /// The names are not as they were seen: look again.
    Moved,
    /// A seal is about to come: make the content of what moves durable, then try again.
    FlushFirst,
    /// The rights of what moves have to be committed before its content can be durable
    /// (ops::rights).
    Commit,
}

/// A rename as it is tried: the names, what was seen of them, and the variant.
struct Attempt<'a> {
    from: At<'a>,
    to: At<'a>,
    s: Seen<'a>,
    t: Seen<'a>,
    how: How,
}

/// Does what renameat2(2) does.
pub(crate) fn rename(
    core: &Core,
    cred: &Cred,
    from: At<'_>,
    to: At<'_>,
    flags: u32,
    guard: &Guard,
) -> Result<()> {
    let how = How::of(flags)?;
    let How { exchange, noreplace, whiteout } = how;
    for n in [from.1, to.1] {
        if n == b"." || n == b".." {
            return posix(libc::EBUSY);
        }
        perm::check_name(n)?;
    }
    let mut turn = 0;
    let mut flushed = None;
    let mut wait = HostWait::default();
    // Against changes of rights that come faster than they are committed.
    let mut _held = None;
    // An answer that rests on both looks, and on no lock, is given only if both are of one
    // moment. Few answers are of that kind, so the moment is watched only once one was found.
    let mut careful = false;
    loop {
        if from == to {
            // The name itself: nothing to do if it exists.
            return match (remove::look_up_name(core, from.0, from.1, guard)?.target, noreplace) {
                (None, _) => posix(libc::ENOENT),
                (_, true) => posix(libc::EEXIST),
                _ => Ok(()),
            };
        }
        let moment = careful.then(|| resolve::watch(core, &[from, to], guard)).transpose()?;
        let s = remove::look_up_name(core, from.0, from.1, guard)?;
        let t = remove::look_up_name(core, to.0, to.1, guard)?;
        perm::check(s.pinode, cred, perm::X)?;
        perm::check(t.pinode, cred, perm::X)?;
        let Some((moved, _)) = s.target else { return posix(libc::ENOENT) };
        let dir_moves = moved.kind == FileKind::Dir && from.0 != to.0
            || exchange && from.0 != to.0 && t.target.is_some_and(|x| x.1 == FileKind::Dir);
        let _move = dir_moves.then(|| core.memfs.move_lock.lock());
        let answer = match may_rename(core, cred, &s, &t, exchange, noreplace, guard) {
            Ok(()) if t.target.is_some_and(|x| x.0.ino == moved.ino) && !exchange => Some(Ok(())),
            Ok(()) => None,
            Err(e) => Some(Err(e)),
        };
        if let Some(answer) = answer {
            if moment.is_some_and(|m| m.holds()) {
                return answer;
            }
            careful = true;
            relax(&mut turn);
            continue;
        }
        remove::check_dir_alive(s.pdir)?;
        remove::check_dir_alive(t.pdir)?;
        debug_assert!(from != to, "a name is moved onto itself");
        debug_assert!(!dir_moves || core.memfs.move_lock.is_locked(), "O7: another move may come between");
        let who = cred.claimant();
        // What replaces a name takes no space, so that a full volume can still replace files.
        let promised = match t.target {
            None if whiteout => space::reserve_inode(core, who, to.1, WHITEOUT.space())?,
            Some(_) if whiteout => space::reserve_inode(core, who, b"", WHITEOUT.space())?,
            None => space::reserve_longer_name(core, who, from.1, to.1)?,
            Some(_) => 0,
        };
        let attempt = Attempt { from, to, s, t, how };
        let tried = try_rename(core, cred, &attempt, flushed, guard);
        if !matches!(tried, Ok(Tried::Done)) {
            space::unreserve(core, promised);
        }
        match tried? {
            Tried::Done => return Ok(()),
            Tried::Moved => {
                drop(_move);
                relax(&mut turn);
            }
            Tried::FlushFirst => {
                drop(_move);
                match super::persistence(core)?.flush_before_rename(moved) {
                    // The seal is not to come, and the next try finds none announced.
                    Err(e) if is_host_pending(&e) => wait.pause(core)?,
                    Err(e) if e.errno() != libc::ENOSPC => return Err(e),
                    _ => flushed = Some(moved.ino),
                }
            }
            Tried::Commit => {
                drop(_move);
                _held = Some(rights::hold_rights(moved));
                match super::persistence(core)?.commit_rights(moved) {
                    Err(e) if is_host_pending(&e) => wait.pause(core)?,
                    r => r?,
                }
            }
        }
    }
}

/// Makes the checks that need no lock (the move lock is held if a directory changes parents).
fn may_rename(
    core: &Core,
    cred: &Cred,
    s: &Seen<'_>,
    t: &Seen<'_>,
    exchange: bool,
    noreplace: bool,
    guard: &Guard,
) -> Result<()> {
    let Some((moved, kind)) = s.target else { return posix(libc::ENOENT) };
    if t.target.is_some() && noreplace {
        return posix(libc::EEXIST);
    }
    if t.target.is_none() && exchange {
        return posix(libc::ENOENT);
    }
    // In the order of Linux: loops, then permissions, then kinds.
    let dir = kind == FileKind::Dir;
    if dir && is_within(core, t.pinode, moved.ino, guard)? {
        return posix(libc::EINVAL);
    }
    if let Some((victim, FileKind::Dir)) = t.target
        && s.pinode.ino != t.pinode.ino
        && is_within(core, s.pinode, victim.ino, guard)?
    {
        return posix(if exchange { libc::EINVAL } else { libc::ENOTEMPTY });
    }
    if t.target.is_some_and(|v| v.0.ino == moved.ino) {
        return Ok(());
    }
    core.writable()?;
    perm::check_removal(s.pinode, moved, cred)?;
    match t.target {
        None => perm::check(t.pinode, cred, perm::W | perm::X)?,
        Some((victim, vkind)) => {
            perm::check_removal(t.pinode, victim, cred)?;
            match (dir, vkind == FileKind::Dir) {
                (true, false) if !exchange => return posix(libc::ENOTDIR),
                (false, true) if !exchange => return posix(libc::EISDIR),
                _ => {}
            }
        }
    }
    // Moving a directory elsewhere changes its `..`.
    if s.pinode.ino != t.pinode.ino {
        if dir {
            perm::check(moved, cred, perm::W)?;
        }
        if let Some((victim, FileKind::Dir)) = t.target
            && exchange
        {
            perm::check(victim, cred, perm::W)?;
        }
    }
    match t.target {
        Some((victim, FileKind::Dir)) if !exchange => {
            let Some(d) = victim.dir() else { return Ok(()) };
            if d.has_names(guard) {
                return posix(libc::ENOTEMPTY);
            }
            resolve::load_all(core, victim, d, guard)
        }
        _ => Ok(()),
    }
}

/// Returns whether directory `inode` is `top` or lies below it.
fn is_within(core: &Core, inode: &Inode, top: Ino, guard: &Guard) -> Result<bool> {
    let mut at = inode.ino;
    loop {
        if at == top {
            return Ok(true);
        }
        if at == ROOT_INO || at.is_none() {
            return Ok(false);
        }
        // Acquire: pairs with the Release of the rename that moved the directory.
        at = Ino(resolve::find(core, at, guard)?.parent.load(Acquire));
    }
}

/// Does steps 1 to 7. `flushed`: the inode whose content this call has made durable.
fn try_rename(
    core: &Core,
    cred: &Cred,
    attempt: &Attempt<'_>,
    flushed: Option<Ino>,
    guard: &Guard,
) -> Result<Tried> {
    let Attempt { s, t, how, .. } = attempt;
    let Some((moved, kind)) = s.target else { return Ok(Tried::Moved) };
    let mut op = Op::begin(core);
    let unflushed =
        kind == FileKind::File && !how.exchange && t.target.is_some() && flushed != Some(moved.ino);
    if unflushed && op.log.seals_ahead > 0 {
        return Ok(Tried::FlushFirst);
    }
    let mut left = match how.whiteout {
        true => Some(create::fresh_inode(core, &mut op, cred, s.pinode, &WHITEOUT)?.0),
        false => None,
    };
    let r = rename_locked(&mut op, attempt, unflushed, &mut left, guard);
    debug_assert!(left.is_none() || !matches!(r, Ok(Tried::Done)), "the whiteout was not left");
    if let Some(inode) = left {
        debug_assert_eq!(inode.born, 0, "the log makes inode {}", inode.ino);
        // Nobody has seen it.
        op.give_back(inode.ino);
    }
    remove::finish(op);
    r
}

/// Does steps 2 to 7. `unflushed`: the content of what moves must be durable before the rename is.
/// `left`: an inode for the old name, which is taken when the names change.
#[inline]
fn rename_locked(
    op: &mut Op<'_>,
    attempt: &Attempt<'_>,
    unflushed: bool,
    left: &mut Option<Box<Inode>>,
    guard: &Guard,
) -> Result<Tried> {
    let &Attempt { from, to, ref s, ref t, how: How { exchange, .. } } = attempt;
    let core = op.core;
    let Some((moved, kind)) = s.target else { return Ok(Tried::Moved) };
    let now = coarse_realtime_ns();
    let mut entry = Entry::new(0, to.1, moved.ino, kind, 0, 0, 0);
    let mut pair = LockedPair::lock((from.0, s.pdir, s.hash), (to.0, t.pdir, t.hash), guard);
    if !pair.has_space(|| core.journal.folded()) {
        return Ok(Tried::Moved);
    }
    let Some(src) = pair.a().find(s.hash, from.1).filter(|e| e.target() == Some((moved.ino, kind))) else {
        return Ok(Tried::Moved);
    };
    let (dst, cookie) = pair.b().place(t.hash, to.1);
    let there = dst.and_then(|e| e.target());
    if there != t.target.map(|(c, k)| (c.ino, k)) || !pair.b().is_complete() {
        return Ok(Tried::Moved);
    }
    if s.pdir.state.load(SeqCst) != ALIVE || t.pdir.state.load(SeqCst) != ALIVE {
        return Ok(Tried::Moved);
    }
    let Some(cookie) = cookie else { return posix(libc::ENOSPC) };
    debug_assert_eq!(cookie & !7, t.hash, "the new name would not be found under its hash");
    debug_assert_eq!(src.cookie & !7, s.hash, "the old name lies under another hash");
    debug_assert!(!exchange || there.is_some(), "there is nothing to exchange");
    let mut floor = pair.a().last_ts().max(pair.b().last_ts());
    let victim = t.target.filter(|_| !exchange);
    if let Some(d) = victim.and_then(|v| v.0.dir()) {
        match close_empty(d, guard) {
            Ok(ts) => floor = floor.max(ts),
            Err(NotEmpty::HasNames) => return posix(libc::ENOTEMPTY),
            Err(_) => return Ok(Tried::Moved),
        }
    }
    let others = [Some(moved), t.target.map(|x| x.0)];
    for c in others.into_iter().flatten() {
        c.named_by(op.lane, 0);
    }
    s.pdir.named_by(s.hash, op.lane, 0);
    t.pdir.named_by(t.hash, op.lane, 0);
    if unflushed && !rights::owe_content(core, moved) {
        return Ok(Tried::Commit);
    }
    debug_assert!(!unflushed || op.log.seals_ahead == 0, "a seal has come by the lane's list");
    let v = op.version(floor);
    debug_assert!(v.epoch >= moved.born, "inode {} moves before it was made", moved.ino);
    for c in others.into_iter().flatten() {
        c.named_by(op.lane, v.epoch);
    }
    s.pdir.named_by(s.hash, op.lane, v.epoch);
    t.pdir.named_by(t.hash, op.lane, v.epoch);
    let left = left.take().map(|mut inode| {
        // Relaxed: nobody else has the inode yet.
        inode.lanes.store(1 << (op.lane & 63), Relaxed);
        inode.epoch.store(v.epoch, Relaxed);
        inode.born = v.epoch;
        core.memfs.inodes.insert(inode, guard)
    });
    debug_assert!(left.is_none_or(|inode| inode.born == v.epoch), "another inode has the number");
    // Until the names are changed: what lanes remember of paths through a directory ends with this
    // (memfs::paths).
    let is_dir = |x: &(Ino, FileKind)| x.1 == FileKind::Dir;
    let moves =
        [Some((moved.ino, kind)), there].map(|x| x.filter(is_dir).map(|dir| core.memfs.paths.moves(dir.0)));
    // From here to the end of the scope lookups of either name wait.
    pair.raise();
    match dst {
        Some(e) => {
            op.note_change(e.touch(v.epoch, op.lane));
            e.set_target(Some((moved.ino, kind)));
        }
        None => {
            entry.cookie = cookie;
            entry.born.store(v.epoch, Relaxed);
            entry.touch(v.epoch, op.lane);
            core.journal.count_names(Entry::bytes(entry.name.as_slice().len()) as i64);
            pair.b().insert(entry);
        }
    }
    let old = there.map_or(Ino::NONE, |x| x.0);
    let set = Effect::Set { dir: to.0, cookie, name: to.1, ino: moved.ino, old, kind };
    let src_cookie = src.cookie;
    let comes = left.map(|inode| (inode.ino, inode.kind));
    let back = match there.filter(|_| exchange).or(comes) {
        Some((ino, k)) => {
            op.note_change(src.touch(v.epoch, op.lane));
            src.set_target(Some((ino, k)));
            Effect::Set { dir: from.0, cookie: src_cookie, name: from.1, ino, old: moved.ino, kind: k }
        }
        None => {
            op.note_removed(pair.a().remove(src, v.epoch, op.lane));
            op.log.thin(from.0);
            Effect::Clr { dir: from.0, cookie: src_cookie, name: from.1, old: moved.ino, kind }
        }
    };
    debug_assert!(v.ts > pair.a().last_ts().max(pair.b().last_ts()), "the keys' timestamps go back");
    pair.a().stamp(v.epoch, v.ts);
    pair.b().stamp(v.epoch, v.ts);
    let mut effects = smallvec::SmallVec::<[Effect<'_>; 4]>::from_slice(&[set, back]);
    if let Some(inode) = left {
        effects.insert(0, born(inode.ino, from.0, &inode.attrs(), b"", core.is_ordered()));
    }
    let across = from.0 != to.0;
    if across && kind == FileKind::Dir {
        debug_assert!(core.memfs.move_lock.is_locked(), "O7: a directory moves beside another");
        // Release: who finds the new parent finds the names that were changed before.
        moved.parent.store(to.0.0, Release);
        effects.push(Effect::Parent { ino: moved.ino, parent: to.0 });
    }
    if across
        && exchange
        && let Some((c, FileKind::Dir)) = t.target
    {
        c.parent.store(from.0.0, Release);
        effects.push(Effect::Parent { ino: c.ino, parent: from.0 });
    }
    debug_assert!(!effects.spilled(), "{} effects", effects.len());
    op.append(v, &effects);
    if unflushed {
        op.log.replaced.push(moved.ino);
    }
    drop(pair);
    drop(moves);
    if let Some(inode) = left {
        core.journal.count_inodes(1);
        if inode.inode_flags() != 0 {
            op.dirty(inode, 0);
        }
    }
    after_rename(op, attempt, (src_cookie, cookie), v.epoch, now);
    Ok(Tried::Done)
}

/// Stores times and subdirectory counts, and ends the replaced inode: nothing here decides an
/// outcome.
fn after_rename(
    op: &mut Op<'_>,
    Attempt { s, t, how, .. }: &Attempt<'_>,
    (src_cookie, cookie): (u64, u64),
    epoch: u64,
    now: i64,
) {
    debug_assert!(epoch > op.core.journal.folded(), "the rename was logged just now");
    let is_dir = |x: Option<(&Inode, FileKind)>| i32::from(x.is_some_and(|x| x.1 == FileKind::Dir));
    let (m, v) = (is_dir(s.target), is_dir(t.target));
    s.pinode.note_change(s.pdir, src_cookie, now, if how.exchange { v - m } else { -m });
    t.pinode.note_change(t.pdir, cookie, now, m - v);
    op.dirty_dir(s.pinode, s.pdir, s.hash);
    op.dirty_dir(t.pinode, t.pdir, t.hash);
    if let Some((moved, _)) = s.target {
        op.changed(moved, now);
    }
    match t.target {
        Some((c, _)) if how.exchange => {
            op.changed(c, now);
        }
        Some((c, FileKind::Dir)) => {
            if let Some(d) = c.dir() {
                remove::retire_dir(op, c, d, now);
            }
        }
        Some((c, _)) => remove::lose_link(op, c, epoch, now),
        None => {}
    }
}
