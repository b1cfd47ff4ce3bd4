//! The usual path: plain names, directories that are in memory, no link on the way. What is not of
//! this kind, and every error, is the business of the long walk in [`super`], which begins
//! anew. Of a path whose way the lane remembers (`memfs::paths`) only the last component is looked
//! up.

use super::{Last, Resolved, Way};
use crate::core::Core;
use crate::memfs::dir::{At, Found, hash_name};
use crate::memfs::inode::FREED;
use crate::memfs::paths::{self, Dirs, Known};
use crate::memfs::trails::Place;
use crate::ops::perm::{self, X};
use crate::{Cred, FileKind, Ino};
use crossbeam_epoch::Guard;
use lanefs_format::NAME_MAX;

/// Returns where the first `/` is, or the end. Eight bytes at a time: names are short, and a call
/// of the C library's search costs more than they do.
#[inline(always)]
fn slash(path: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let mut at = 0;
    while let Some(eight) = path[at..].first_chunk::<8>() {
        // A byte that is `/` becomes zero, and the lowest zero byte gets its top bit; bits above it
        // may lie.
        let x = u64::from_le_bytes(*eight) ^ (ONES * b'/' as u64);
        let hit = x.wrapping_sub(ONES) & !x & (ONES << 7);
        if hit != 0 {
            let found = at + hit.trailing_zeros() as usize / 8;
            debug_assert_eq!(path[found], b'/');
            return found;
        }
        at += 8;
    }
    while at < path.len() && path[at] != b'/' {
        at += 1;
    }
    at
}

/// Walks a path, which begins at the root if it is absolute, or leaves it to the long walk
/// (`None`). Writes nothing but what the lane remembers.
#[inline]
pub(super) fn walk_plain<'p>(
    core: &Core,
    cred: &Cred,
    way: &Way<'p>,
    wanted: Last,
    guard: &Guard,
) -> Option<Resolved<'p>> {
    let mut path = way.path;
    while let [b'/', after @ ..] = path {
        path = after;
    }
    let mut way = Way { path, ..*way };
    if has_way(path)
        && perm::may_search_all(cred)
        && let Some((known, last)) = paths::Way::split(way.start, path)
    {
        let lane = core.journal.lanes.mine();
        let place = core.memfs.trails.ask(lane, known.hash_of(path));
        match core.memfs.paths.get(lane, &known) {
            Known::To(dir) => {
                way = Way { start: dir, path: last };
                return walk(core, cred, &way, wanted, guard, place, |_| ());
            }
            Known::Nothing { again: true } => {
                return walk_twice(core, cred, &way, (&known, lane), wanted, guard);
            }
            Known::Nothing { again: false } => {}
        }
    }
    walk(core, cred, &way, wanted, guard, None, |_| ())
}

/// Returns whether a path has three components, or may have: two before the last one.
#[inline(always)]
fn has_way(path: &[u8]) -> bool {
    match path.get(slash(path) + 1..) {
        Some(rest) => slash(rest) < rest.len(),
        None => false,
    }
}

/// Walks a path, and remembers its way.
#[cold]
fn walk_twice<'p>(
    core: &Core,
    cred: &Cred,
    way: &Way<'p>,
    (known, lane): (&paths::Way, usize),
    wanted: Last,
    guard: &Guard,
) -> Option<Resolved<'p>> {
    let mut dirs = Dirs::new();
    let mut found = walk(core, cred, way, wanted, guard, None, |dir| dirs.push(dir))?;
    core.memfs.paths.remember(lane, known, &dirs, || {
        let mut now = Dirs::new();
        match walk(core, cred, way, wanted, guard, None, |dir| now.push(dir)) {
            Some(r) => found = r,
            None => return false,
        }
        now == dirs
    });
    Some(found)
}

/// Walks a path from its start on, tells `through` of each further directory, and notes in `trail`
/// where the memory of the last two components lies.
#[inline(always)]
fn walk<'p>(
    core: &Core,
    cred: &Cred,
    way: &Way<'p>,
    wanted: Last,
    guard: &Guard,
    trail: Option<Place>,
    mut through: impl FnMut(Ino),
) -> Option<Resolved<'p>> {
    let (mut rest, mut dir) = (way.path, way.start);
    let mut at = At::default();
    loop {
        while let [b'/', after @ ..] = rest {
            rest = after;
        }
        let end = slash(rest);
        let (name, after) = rest.split_at(end);
        if name.is_empty() || name.len() > NAME_MAX || name[0] == b'.' && name.len() <= 2 {
            return None;
        }
        let inode = core.memfs.inodes.get(dir, guard)?;
        let index = inode.dir()?;
        if inode.has(FREED) || perm::check(inode, cred, X).is_err() {
            return None;
        }
        let last = after.is_empty();
        if last && wanted == Last::Place {
            return Some(Resolved { parent: dir, name: name.into(), target: None, must_be_dir: false });
        }
        let target = match index.lookup_at(hash_name(core.memfs.hash_key, name), name, &mut at, guard) {
            Found::Name(ino, kind) => Some((ino, kind)),
            Found::Absent => None,
            Found::NotLoaded => return None,
        };
        match target {
            Some((_, FileKind::Symlink)) if !last || wanted.follows() => return None,
            _ if last => {
                if let (Some(place), Some((ino, _))) = (trail, target)
                    && let Some(found) = core.memfs.inodes.peek(ino, guard)
                {
                    core.memfs.trails.note(place, inode, &at, found);
                }
                return Some(Resolved { parent: dir, name: name.into(), target, must_be_dir: false });
            }
            Some((ino, FileKind::Dir)) => {
                through(ino);
                dir = ino;
            }
            _ => return None,
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::slash;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finds_the_first_slash(path in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'/'), Just(b'.'), Just(b'0')], 0..40)) {
            prop_assert_eq!(slash(&path), path.iter().position(|b| *b == b'/').unwrap_or(path.len()));
        }
    }
}
