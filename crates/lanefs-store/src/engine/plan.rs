//! From record groups to what has to change: the plan of a fold, and the absorption of an epoch
//! before it is committed.
//!
//! Groups come in any order, and a group may come more than once (from several fsync batches).
//! Effects are gathered by key and put in the order of their versions, so that repeats fall
//! together; per key the last writer wins. Link deltas follow from the first `old` and the last
//! `ino` of each key (see `lanefs_format::record`), so they count every name once, however many
//! effects were absorbed and however often a group came.

use crate::error::{Result, StoreError};
use lanefs_format::record::{self, Effect};
use lanefs_format::{FileKind, Ino, Version};
use lanefs_sync::random::spread;

/// The net change of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyChange<'a> {
    /// The directory.
    pub dir: Ino,
    /// The entry's place in it.
    pub cookie: u64,
    /// Its name.
    pub name: &'a [u8],
    /// The inode that it named before all this; none if it did not exist.
    pub old: Ino,
    /// The inode that it names now; `None` if it is gone.
    pub new: Option<(Ino, FileKind)>,
    /// The kind of what is gone, when `new` is `None`.
    pub kind: FileKind,
    /// When the last change was.
    pub version: Version,
}

/// An inode to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewInode<'a> {
    /// Its number.
    pub ino: Ino,
    /// The directory it was made in; none for a file without a name.
    pub parent: Ino,
    /// Its generation.
    pub generation: u32,
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u64,
    /// When it was made.
    pub time: i64,
    /// A symbolic link's target.
    pub target: &'a [u8],
    /// Its extended attributes from the start.
    pub xattrs: &'a [u8],
    /// [`Plan::rights`] has all that changes of its mode, owner and ACLs.
    pub logged: bool,
    /// When it was made, in the order of operations.
    pub version: Version,
}

/// The rights of an inode: its mode and owner, and its ACLs if they changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RightsChange<'a> {
    /// Its number.
    pub ino: Ino,
    /// Its generation.
    pub generation: u32,
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Its ACLs, encoded as a list of extended attributes, if they were changed.
    pub acls: Option<&'a [u8]>,
    /// When the last change was.
    pub version: Version,
}

/// The work of a fold. All lists are sorted: changes by (directory, cookie), the others by inode
/// number.
#[derive(Default, Debug)]
pub struct Plan<'a> {
    /// Net changes of directory entries; keys that end as they began are left out.
    pub changes: Vec<KeyChange<'a>>,
    /// Inodes to be made: those that are not dead as well.
    pub news: Vec<NewInode<'a>>,
    /// Inodes whose numbers are free, with the generation that ended. Also those that were never
    /// made on disk.
    pub dead: Vec<(Ino, u32)>,
    /// Directories that moved, with their last parent.
    pub parents: Vec<(Ino, Ino)>,
    /// Inodes whose mode, owner or ACLs changed, as they are at last; but for those that are dead
    /// as well.
    pub rights: Vec<RightsChange<'a>>,
    /// The highest timestamp of any group.
    pub last_ts: u64,
    /// Groups read, repeats included.
    pub groups: u64,
    /// Names that were given to an inode which was not made by the same operation: links and
    /// renames. Repeats, and what was taken back, included.
    pub given: u64,
}

impl<'a> Plan<'a> {
    /// Returns the changes of one directory after the other.
    pub fn by_dir(&self) -> impl Iterator<Item = &[KeyChange<'a>]> {
        self.changes.chunk_by(|a, b| a.dir == b.dir)
    }

    /// Returns names gained or lost by each inode, if not zero. Directories too (one name each).
    pub fn links(&self) -> Vec<(Ino, i64)> {
        let lost = self.changes.iter().map(|c| (c.old, -1)).filter(|l| !l.0.is_none());
        let gained = self.changes.iter().filter_map(|c| c.new).map(|n| (n.0, 1));
        sum(lost.chain(gained).collect())
    }

    /// Checks, in debug builds, that all lists are in order, that no key ends as it began, and that
    /// what is dead is neither made nor changed.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let key = |c: &KeyChange<'a>| (c.dir, c.cookie, c.name);
        debug_assert!(
            self.changes.is_sorted_by(|a, b| key(a) < key(b)),
            "a key changes twice, or out of order"
        );
        debug_assert!(
            self.changes.iter().all(|c| c.old != c.new.map_or(Ino::NONE, |n| n.0)),
            "a key ends as it began"
        );
        let use_of = |n: &NewInode<'a>| (n.ino, n.generation);
        debug_assert!(self.news.is_sorted_by(|a, b| use_of(a) < use_of(b)), "an inode is made twice");
        debug_assert!(self.dead.is_sorted_by(|a, b| a < b), "an inode dies twice");
        debug_assert!(self.parents.is_sorted_by(|a, b| a.0 < b.0), "a directory moves twice");
        let rights_of = |r: &RightsChange<'a>| (r.ino, r.generation);
        debug_assert!(self.rights.is_sorted_by(|a, b| rights_of(a) < rights_of(b)), "rights change twice");
        let is_dead = |of: (Ino, u32)| self.dead.binary_search(&of).is_ok();
        debug_assert!(!self.news.iter().any(|n| is_dead(use_of(n))), "an inode is made that is dead");
        debug_assert!(!self.rights.iter().any(|r| is_dead(rights_of(r))), "a dead inode has rights");
    }

    /// Returns whether nothing has to be done.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
            && self.news.is_empty()
            && self.dead.is_empty()
            && self.parents.is_empty()
            && self.rights.is_empty()
    }
}

/// Bytes of a group that removes a name of some ten bytes.
const TYPICAL_GROUP: usize = 72;

/// Bytes of groups of which it is worth counting what they hold before it is read.
const COUNTED: usize = 1 << 20;

/// Adds the keys and the new inodes of a group.
fn count((keys, news): (usize, usize), g: record::Group<'_>) -> (usize, usize) {
    g.effects().flatten().fold((keys, news), |(keys, news), e| match e {
        Effect::Set { .. } | Effect::Clr { .. } => (keys + 1, news),
        Effect::New { .. } => (keys, news + 1),
        _ => (keys, news),
    })
}

/// One SET or CLR.
type Step<'a> = KeyChange<'a>;

/// Makes the plan for all groups in `buffers` that `keep` accepts. Names are borrowed from the
/// buffers. A malformed group is an error: buffers are either our own or were checked against their
/// batch's checksum.
pub fn plan<'a>(
    buffers: impl IntoIterator<Item = &'a [u8]>,
    keep: impl FnMut(&Version) -> bool,
) -> Result<Plan<'a>> {
    let mut p = plan_unsorted(buffers, keep)?;
    // A change is more than twice as long as its key.
    p.changes.sort_by_cached_key(|s| (s.dir, s.cookie, s.name));
    p.check_invariants();
    Ok(p)
}

/// Does as [`plan`], but for the order of the changes.
fn plan_unsorted<'a>(
    buffers: impl IntoIterator<Item = &'a [u8]>,
    mut keep: impl FnMut(&Version) -> bool,
) -> Result<Plan<'a>> {
    let mut p = Plan::default();
    let buffers: Vec<&[u8]> = buffers.into_iter().collect();
    // A group with one change takes about as many bytes; capacity for all at once is cheaper than
    // growing into new pages again and again.
    let bytes = buffers.iter().map(|b| b.len()).sum::<usize>();
    let mut steps: Vec<Step<'a>> = Vec::new();
    if bytes < COUNTED {
        steps.reserve(bytes / TYPICAL_GROUP);
        p.news.reserve(bytes / TYPICAL_GROUP / 2);
    } else {
        // Of many, twice what is needed would be much: they are counted before.
        let (keys, news) = buffers.iter().flat_map(|b| record::groups(b)).flatten().fold((0, 0), count);
        steps.reserve(keys);
        p.news.reserve(news);
    }
    let mut parents: Vec<(Ino, Version, Ino)> = Vec::new();
    let bad = |e: record::RecordError| StoreError::Invalid(format!("a namespace record cannot be read: {e}"));
    for buf in buffers {
        for g in record::groups(buf) {
            let g = g.map_err(bad)?;
            let version = g.version;
            if !keep(&version) {
                continue;
            }
            p.groups += 1;
            p.last_ts = p.last_ts.max(version.ts);
            for e in g.effects() {
                match e.map_err(bad)? {
                    Effect::Set { dir, cookie, name, ino, old, kind } => {
                        let is_new = p.news.last().is_some_and(|n| n.ino == ino && n.version == version);
                        p.given += u64::from(!is_new);
                        steps.push(Step { dir, cookie, name, old, new: Some((ino, kind)), kind, version });
                    }
                    Effect::Clr { dir, cookie, name, old, kind } => {
                        steps.push(Step { dir, cookie, name, old, new: None, kind, version });
                    }
                    Effect::New { ino, parent, generation, mode, uid, gid, rdev, time, target, logged } => {
                        p.news.push(NewInode {
                            ino,
                            parent,
                            generation,
                            mode,
                            uid,
                            gid,
                            rdev,
                            time,
                            target,
                            xattrs: &[],
                            logged,
                            version,
                        });
                    }
                    Effect::Xattrs { ino, xattrs } => {
                        if let Some(n) = p.news.last_mut().filter(|n| n.ino == ino && n.version == version) {
                            n.xattrs = xattrs;
                        }
                    }
                    Effect::Rights { ino, generation, mode, uid, gid, acls } => {
                        p.rights.push(RightsChange { ino, generation, mode, uid, gid, acls, version });
                    }
                    Effect::Dead { ino, generation } => p.dead.push((ino, generation)),
                    Effect::Parent { ino, parent } => parents.push((ino, version, parent)),
                }
            }
        }
    }
    keep_net_changes(&mut steps)?;
    p.changes = steps;
    p.dead.sort_unstable();
    p.dead.dedup();
    p.news.sort_unstable_by_key(|n| (n.ino, n.generation));
    p.news.dedup_by_key(|n| (n.ino, n.generation));
    let dead = &p.dead;
    p.news.retain(|n| dead.binary_search(&(n.ino, n.generation)).is_err());
    keep_last_rights(&mut p);
    parents.sort_unstable();
    // The last of each directory wins.
    p.parents = parents.chunk_by(|a, b| a.0 == b.0).filter_map(|c| c.last()).map(|l| (l.0, l.2)).collect();
    Ok(p)
}

/// Keeps of the changes of rights of each inode the last, with the last ACLs.
fn keep_last_rights(p: &mut Plan<'_>) {
    p.rights.sort_unstable_by_key(|r| (r.ino, r.generation, r.version));
    p.rights.dedup_by(|next, r| {
        let same = (next.ino, next.generation) == (r.ino, r.generation);
        if same {
            *r = RightsChange { acls: next.acls.or(r.acls), ..*next };
        }
        same
    });
    let dead = &p.dead;
    p.rights.retain(|r| dead.binary_search(&(r.ino, r.generation)).is_err());
}

/// Steps of one key, as places in the list of steps: the first and the last that came.
#[derive(Clone, Copy)]
struct Chain {
    first: u32,
    last: u32,
}

const NO_STEP: u32 = u32::MAX;

/// Returns the steps strung together by directory and cookie, in the order they came: an
/// open-addressed table of chains. Most keys have one step; a name that is made and removed all day
/// has thousands, which sorting everything would compare over and over.
fn string_up(steps: &[Step<'_>]) -> (Vec<Chain>, Vec<u32>) {
    let mut table = vec![Chain { first: NO_STEP, last: NO_STEP }; (steps.len() * 2).next_power_of_two()];
    let mut next = vec![NO_STEP; steps.len()];
    debug_assert!(table.len() > steps.len(), "no place is free: who looks for one never ends");
    let mask = table.len() - 1;
    for (i, s) in steps.iter().enumerate() {
        // The upper half of a product depends on all bits; cookies are hashes, cut at the low end.
        let mixed = spread(s.cookie ^ s.dir.0.rotate_left(40));
        let mut at = (mixed >> 32) as usize & mask;
        loop {
            let c = &mut table[at];
            let Some(f) = steps.get(c.first as usize) else {
                *c = Chain { first: i as u32, last: i as u32 };
                break;
            };
            debug_assert!((c.last as usize) < i, "a chain of steps that come later");
            if (f.dir, f.cookie) == (s.dir, s.cookie) {
                next[c.last as usize] = i as u32;
                c.last = i as u32;
                break;
            }
            at = (at + 1) & mask;
        }
    }
    (table, next)
}

/// Keeps the net change of each key, in the place of its last step, so that there is no second list
/// of them. In the order of these.
fn keep_net_changes(steps: &mut Vec<Step<'_>>) -> Result<()> {
    if steps.len() >= NO_STEP as usize {
        return Err(StoreError::Invalid(format!("{} changes in one fold", steps.len())));
    }
    // The last step of each key that does not end as it began, and what the key named before.
    let mut kept: Vec<(u32, Ino)> = Vec::with_capacity(steps.len());
    let (table, next) = string_up(steps);
    let mut chain: Vec<u32> = Vec::new();
    let of = |i: &u32| &steps[*i as usize];
    for c in table.iter().filter(|c| c.first != NO_STEP) {
        chain.clear();
        let mut at = c.first;
        while at != NO_STEP {
            chain.push(at);
            at = next[at as usize];
        }
        // Two names may have had one cookie after the other, so the name is part of the key. One
        // lane's steps come in order.
        if !chain.is_sorted_by_key(|i| (of(i).name, of(i).version)) {
            chain.sort_unstable_by_key(|i| (of(i).name, of(i).version));
        }
        debug_assert!(
            chain.iter().all(|i| (of(i).dir, of(i).cookie) == (of(&c.first).dir, of(&c.first).cookie))
        );
        for chain in chain.chunk_by(|a, b| of(a).name == of(b).name) {
            let (Some(first), Some(last)) = (chain.first(), chain.last()) else { continue };
            let old = of(first).old;
            if old != of(last).new.map_or(Ino::NONE, |n| n.0) {
                kept.push((*last, old));
            }
        }
    }
    drop((table, next));
    kept.sort_unstable();
    debug_assert!(kept.is_sorted_by(|a, b| a.0 < b.0), "a step is the last of two keys");
    for (to, &(from, old)) in kept.iter().enumerate() {
        debug_assert!(to <= from as usize, "step {from} would be written over before it is read");
        steps[to] = Step { old, ..steps[from as usize] };
    }
    steps.truncate(kept.len());
    Ok(())
}

fn sum(mut list: Vec<(Ino, i64)>) -> Vec<(Ino, i64)> {
    debug_assert!(list.iter().all(|l| !l.0.is_none()), "a name of no inode is counted");
    list.sort_unstable();
    list.chunk_by(|a, b| a.0 == b.0)
        .filter_map(|c| c.first().map(|f| (f.0, c.iter().map(|x| x.1).sum())))
        .filter(|x: &(Ino, i64)| x.1 != 0)
        .collect()
}

/// Returns the groups of one epoch, all of them, in as few bytes as have the same effect (section
/// "Absorption" of the design): keys that end as they began leave nothing, nor do inodes that were
/// made and died, but for their DEAD, by which the store learns that the number is free. The result
/// is valid only as a whole, as a commit makes it. Never empty where there was a group: an fsync
/// may have logged a part of the epoch, which only the commit of the whole undoes.
pub fn absorb(buffers: &[&[u8]]) -> Result<Vec<u8>> {
    let p = plan_unsorted(buffers.iter().copied(), |_| true)?;
    let mut effects: Vec<(Version, Effect<'_>)> = Vec::with_capacity(p.changes.len() + p.news.len());
    let mut first = Version { epoch: u64::MAX, ..Default::default() };
    if let Some(g) = buffers.iter().flat_map(|b| record::groups(b)).next() {
        first = g.map_err(|e| StoreError::Invalid(e.to_string()))?.version;
    }
    for n in &p.news {
        let NewInode { ino, parent, generation, mode, uid, gid, rdev, time, target, .. } = *n;
        let NewInode { xattrs, logged, version, .. } = *n;
        let new = Effect::New { ino, parent, generation, mode, uid, gid, rdev, time, target, logged };
        effects.push((version, new));
        if !xattrs.is_empty() {
            effects.push((version, Effect::Xattrs { ino, xattrs }));
        }
    }
    for c in &p.changes {
        let KeyChange { dir, cookie, name, old, new, kind, version } = *c;
        effects.push((
            version,
            match new {
                Some((ino, kind)) => Effect::Set { dir, cookie, name, ino, old, kind },
                None => Effect::Clr { dir, cookie, name, old, kind },
            },
        ));
    }
    for r in &p.rights {
        let RightsChange { ino, generation, mode, uid, gid, acls, version } = *r;
        effects.push((version, Effect::Rights { ino, generation, mode, uid, gid, acls }));
    }
    effects.sort_by_key(|e| e.0);
    let mut out = Vec::with_capacity(effects.len() * TYPICAL_GROUP);
    let mut group: Vec<Effect<'_>> = Vec::new();
    for run in effects.chunk_by(|a, b| a.0 == b.0) {
        group.clear();
        group.extend(run.iter().map(|e| e.1));
        record::encode_group(&mut out, run[0].0, &group);
    }
    // What has no version of its own to keep travels under the highest timestamp seen.
    let late = Version { ts: p.last_ts, ..first };
    let rest: Vec<Effect<'_>> = (p.dead.iter().map(|&(ino, generation)| Effect::Dead { ino, generation }))
        .chain(p.parents.iter().map(|&(ino, parent)| Effect::Parent { ino, parent }))
        .collect();
    for chunk in rest.chunks(256) {
        record::encode_group(&mut out, late, chunk);
    }
    if out.is_empty() && p.groups > 0 {
        record::encode_group(&mut out, late, &[]);
    }
    debug_assert_eq!(out.is_empty(), p.groups == 0, "an epoch of {} groups", p.groups);
    debug_assert!(record::groups(&out).all(|g| g.is_ok()), "what was absorbed cannot be read");
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const F: FileKind = FileKind::File;

    fn v(ts: u64) -> Version {
        Version { epoch: 1, ts, lane: 0 }
    }
    fn set(cookie: u64, name: &'static [u8], ino: u64, old: u64) -> Effect<'static> {
        Effect::Set { dir: Ino(1), cookie, name, ino: Ino(ino), old: Ino(old), kind: F }
    }
    fn clr(cookie: u64, name: &'static [u8], old: u64) -> Effect<'static> {
        Effect::Clr { dir: Ino(1), cookie, name, old: Ino(old), kind: F }
    }
    fn new(ino: u64) -> Effect<'static> {
        Effect::New {
            ino: Ino(ino),
            parent: Ino(1),
            generation: 1,
            mode: libc::S_IFREG,
            uid: 0,
            gid: 0,
            rdev: 0,
            time: 0,
            target: b"",
            logged: false,
        }
    }
    fn groups(list: &[(u64, &[Effect<'_>])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (ts, e) in list {
            record::encode_group(&mut out, v(*ts), e);
        }
        out
    }

    #[test]
    fn links_that_come_and_go_leave_the_names_that_stay() {
        // ScaleFS's trap: absorbing [link a, unlink a, link b, link a, unlink a] left a and lost b.
        let b = groups(&[
            (1, &[set(8, b"a", 20, 0)]),
            (2, &[clr(8, b"a", 20)]),
            (3, &[set(16, b"b", 20, 0)]),
            (4, &[set(8, b"a", 20, 0)]),
            (5, &[clr(8, b"a", 20)]),
        ]);
        for bytes in [b.clone(), absorb(&[&b]).unwrap()] {
            let p = plan([&bytes[..]], |_| true).unwrap();
            assert_eq!(p.changes.len(), 1);
            assert_eq!((p.changes[0].name, p.changes[0].new), (&b"b"[..], Some((Ino(20), F))));
            assert_eq!(p.links(), [(Ino(20), 1)]);
        }
    }

    #[test]
    fn order_and_repeats_do_not_matter() {
        let a = groups(&[(1, &[new(30), set(8, b"a", 30, 20)])]);
        let b = groups(&[(2, &[set(16, b"b", 30, 21), clr(8, b"a", 30)])]);
        let p = plan([&b[..], &a, &b, &a], |_| true).unwrap();
        // Rename over an existing name: a is gone (it named 20 on disk), b names 30 instead of 21.
        assert_eq!(p.links(), [(Ino(20), -1), (Ino(21), -1), (Ino(30), 1)]);
        assert_eq!(p.news.len(), 1);
        assert_eq!(p.changes.len(), 2);
        assert_eq!((p.changes[0].new, p.changes[0].old), (None, Ino(20)));
        assert_eq!((p.changes[1].new, p.changes[1].old), (Some((Ino(30), F)), Ino(21)));
    }

    #[test]
    fn what_was_made_and_died_leaves_only_its_number() {
        let b = groups(&[
            (1, &[new(30), set(8, b"a", 30, 0)]),
            (2, &[clr(8, b"a", 30)]),
            (3, &[Effect::Dead { ino: Ino(30), generation: 1 }]),
        ]);
        let absorbed = absorb(&[&b]).unwrap();
        assert!(absorbed.len() < 48, "{}", absorbed.len());
        let p = plan([&absorbed[..]], |_| true).unwrap();
        assert!(p.news.is_empty() && p.changes.is_empty() && p.links().is_empty());
        assert_eq!(p.dead, [(Ino(30), 1)]);
    }

    #[test]
    fn an_epoch_that_ends_as_it_began_still_has_a_group_to_commit() {
        let b = groups(&[(1, &[set(8, b"a", 20, 0)]), (2, &[clr(8, b"a", 20)])]);
        let absorbed = absorb(&[&b]).unwrap();
        let p = plan([&absorbed[..]], |_| true).unwrap();
        assert_eq!((p.groups, p.last_ts, p.is_empty()), (1, 2, true));
        assert!(absorb(&[]).unwrap().is_empty());
    }

    #[test]
    fn the_last_move_of_a_directory_wins() {
        let d = FileKind::Dir;
        let mv = |from: u64, to: u64| {
            [
                Effect::Set { dir: Ino(to), cookie: 8, name: b"d", ino: Ino(40), old: Ino::NONE, kind: d },
                Effect::Clr { dir: Ino(from), cookie: 8, name: b"d", old: Ino(40), kind: d },
                Effect::Parent { ino: Ino(40), parent: Ino(to) },
            ]
        };
        let b = groups(&[(2, &mv(2, 3)), (1, &mv(1, 2))]);
        let p = plan([&b[..]], |_| true).unwrap();
        assert_eq!(p.parents, [(Ino(40), Ino(3))]);
        assert!(p.links().is_empty());
        assert_eq!(p.by_dir().count(), 2);
        let p2 = plan([&absorb(&[&b]).unwrap()[..]], |_| true).unwrap().parents;
        assert_eq!(p2, [(Ino(40), Ino(3))]);
    }

    #[test]
    fn filtered_groups_do_not_count() {
        let b = groups(&[(1, &[set(8, b"a", 20, 0)]), (9, &[clr(8, b"a", 20)])]);
        let p = plan([&b[..]], |v| v.ts < 5).unwrap();
        assert_eq!(p.links(), [(Ino(20), 1)]);
        assert_eq!((p.groups, p.last_ts), (1, 1));
    }

    #[test]
    fn a_name_that_takes_over_a_cookie_is_another_key() {
        let b = groups(&[(1, &[clr(8, b"a", 20)]), (2, &[set(8, b"b", 21, 0)])]);
        for bytes in [b.clone(), absorb(&[&b]).unwrap()] {
            let p = plan([&bytes[..]], |_| true).unwrap();
            let all: Vec<_> = p.changes.iter().map(|c| (c.name, c.new.map(|n| n.0))).collect();
            assert_eq!(all, [(&b"a"[..], None), (b"b", Some(Ino(21)))]);
            assert_eq!(p.links(), [(Ino(20), -1), (Ino(21), 1)]);
        }
    }

    /// A name space in small: what the groups do one by one.
    #[derive(Clone, PartialEq, Debug, Default)]
    struct World {
        names: BTreeMap<Vec<u8>, Ino>,
        links: BTreeMap<Ino, i64>,
        alive: BTreeSet<Ino>,
    }

    impl World {
        fn apply(&mut self, e: &Effect<'_>) {
            let (name, old, new) = match *e {
                Effect::Set { name, ino, old, .. } => (name, old, Some(ino)),
                Effect::Clr { name, old, .. } => (name, old, None),
                Effect::New { ino, .. } => {
                    self.alive.insert(ino);
                    return;
                }
                Effect::Dead { ino, .. } => {
                    self.alive.remove(&ino);
                    return;
                }
                Effect::Parent { .. } | Effect::Xattrs { .. } | Effect::Rights { .. } => return,
            };
            let before = match new {
                Some(i) => self.names.insert(name.to_vec(), i),
                None => self.names.remove(name),
            };
            assert_eq!(before.unwrap_or_default(), old, "the record says what was there");
            for (i, n) in [(old, -1), (new.unwrap_or_default(), 1)] {
                *self.links.entry(i).or_default() += n;
            }
            self.links.retain(|i, n| *n != 0 && !i.is_none());
        }
    }

    const NAMES: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"e", b"f"];

    proptest! {
        /// Absorbing any history, in one epoch or in two, leaves the same world as the history
        /// itself.
        #[test]
        fn absorption_has_the_same_effect(
            steps in prop::collection::vec((0..4u8, 0..6usize, 0..6usize), 0..120),
            cut in 0..120usize,
            shared in 1..8u64,
        ) {
            let cookie = |n: usize| n as u64 % shared;
            let mut world = World::default();
            let mut ops: Vec<Vec<u8>> = Vec::new();
            let mut next = 20;
            for (what, a, b) in steps {
                let at = |n: usize| world.names.get(NAMES[n]).map_or(0, |i| i.0);
                let (ia, ib) = (at(a), at(b));
                let mut effects = match what {
                    0 if ia == 0 => {
                        next += 1;
                        vec![new(next), set(cookie(a), NAMES[a], next, 0)]
                    }
                    1 if ia != 0 => vec![clr(cookie(a), NAMES[a], ia)],
                    2 if ia != 0 && ib == 0 => vec![set(cookie(b), NAMES[b], ia, 0)],
                    3 if ia != 0 && ia != ib => vec![set(cookie(b), NAMES[b], ia, ib), clr(cookie(a), NAMES[a], ia)],
                    _ => continue,
                };
                effects.iter().for_each(|e| world.apply(e));
                let gone = world.alive.iter().filter(|i| !world.links.contains_key(i));
                let gone: Vec<_> = gone.map(|i| Effect::Dead { ino: *i, generation: 1 }).collect();
                gone.iter().for_each(|e| world.apply(e));
                effects.extend(gone);
                ops.push(groups(&[(ops.len() as u64 + 1, &effects)]));
            }
            let cut = cut.min(ops.len());
            let mut again = World::default();
            for half in [&ops[..cut], &ops[cut..]] {
                // The parts of an epoch come in any order.
                let parts: Vec<&[u8]> = half.iter().rev().map(|b| &b[..]).collect();
                let out = absorb(&parts).unwrap();
                // At most the header of the group that the DEADs travel in is new.
                prop_assert!(out.len() <= parts.iter().map(|b| b.len()).sum::<usize>() + record::GROUP_HEADER);
                for g in record::groups(&out) {
                    g.unwrap().effects().for_each(|e| again.apply(&e.unwrap()));
                }
                let (p, q) = (plan(parts, |_| true).unwrap(), plan([&out[..]], |_| true).unwrap());
                prop_assert_eq!((p.links(), p.dead, p.changes.len()), (q.links(), q.dead, q.changes.len()));
            }
            prop_assert_eq!(again, world);
        }
    }
}
