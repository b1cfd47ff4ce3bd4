//! From record groups to what has to change: the plan of a fold, and the absorption of an epoch
//! before it is committed.
//!
//! Groups come in any order, and a group may come more than once (from several fsync batches).
//! Effects are gathered by key and put in the order of their versions, so that repeats fall
//! together; per key the last writer wins. Link deltas follow from the first `old` and the last
//! `ino` of each key (see `lanefs_format::record`), so they count every name once, however many
//! effects were absorbed and however often a group came.

use crate::engine::ordered::{BlockNumbers, Ordered, Part, Run};
use crate::engine::sorted::{cuts, merged, pieces};
use crate::error::{Result, StoreError};
use lanefs_format::dir_bucket::ENTRY_HEADER;
use lanefs_format::record::{self, Effect};
use lanefs_format::{FileKind, Ino, Version};
use lanefs_sync::parallel;
use lanefs_sync::prefetch;
use std::sync::atomic::{AtomicUsize, Ordering};

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
    pub changes: Ordered<KeyChange<'a>>,
    /// Where the changes of each directory end.
    dirs: Vec<usize>,
    /// Inodes to be made: those that are not dead as well.
    pub news: Ordered<NewInode<'a>>,
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
    /// Bytes that the changes take out of buckets, less those that they put in.
    pub taken_out: i64,
}

impl<'a> Plan<'a> {
    /// Returns the changes of one directory after the other.
    pub fn by_dir(&self) -> impl Iterator<Item = Run<'_, KeyChange<'a>>> {
        let starts = std::iter::once(0).chain(self.dirs.iter().copied());
        starts.zip(&self.dirs).map(|(from, to)| self.changes.all().range(from..*to))
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
            self.changes.iter().is_sorted_by(|a, b| key(a) < key(b)),
            "a key changes twice, or out of order"
        );
        debug_assert!(
            self.changes.iter().all(|c| c.old != c.new.map_or(Ino::NONE, |n| n.0)),
            "a key ends as it began"
        );
        let of_one = |r: Run<'_, KeyChange<'a>>| r.iter().is_sorted_by(|a, b| a.dir == b.dir);
        debug_assert!(self.by_dir().all(of_one), "changes of two directories");
        debug_assert_eq!(self.dirs.last().copied().unwrap_or(0), self.changes.len(), "changes of none");
        debug_assert!(self.news.iter().is_sorted_by(|a, b| use_of(a) < use_of(b)), "an inode is made twice");
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

/// Steps that are asked for before they are looked at.
const AHEAD: usize = 12;

/// The most threads that make a plan: what each has read is merged with what the others have.
const PIECES_MAX: usize = 16;

/// Returns how many bytes of groups are worth a thread.
fn shared_from() -> usize {
    if cfg!(test) { 1 << 7 } else { parallel::share_from(1 << 20, 1 << 6) }
}

/// Returns how many steps, or new inodes, are worth several threads.
fn merged_from() -> usize {
    if cfg!(test) { 4 } else { parallel::share_from(1 << 15, 4) }
}

/// One SET or CLR.
type Step<'a> = KeyChange<'a>;

/// What some groups say: a part of a plan.
struct Gathered<'n, 'a> {
    /// All but the changes, the new inodes and the parents.
    plan: Plan<'a>,
    /// In the order they came.
    steps: Part<'n, Step<'a>>,
    news: Part<'n, NewInode<'a>>,
    parents: Vec<(Ino, Version, Ino)>,
    /// Where each step and each new inode is, in the order of their keys.
    places: Vec<Place>,
    uses: Vec<Use>,
}

/// The key of a step but for its name, and the step's number: steps of one key are in the order
/// they came.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    dir: Ino,
    cookie: u64,
    step: u32,
}

/// The number and generation of a new inode, and where it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Use {
    ino: Ino,
    generation: u32,
    at: u32,
}

/// A change that is left of the steps of a key: the last of them.
struct Net {
    step: u32,
    dir: Ino,
    /// Bytes that it takes out of a bucket.
    taken_out: i64,
}

/// What is left of some keys, in their order.
#[derive(Default)]
struct NetChanges {
    net: Vec<Net>,
    /// The last steps of keys that had several, with what these named before the first.
    earlier: Vec<(u32, Ino)>,
}

/// Makes the plan for all groups in `buffers`, with so many threads if it is worth it. Names are
/// borrowed from the buffers. A malformed group is an error: buffers are either our own or were
/// checked against their batch's checksum.
pub fn plan<'a>(buffers: impl IntoIterator<Item = &'a [u8]>, threads: usize) -> Result<Plan<'a>> {
    let buffers: Vec<&[u8]> = buffers.into_iter().filter(|b| !b.is_empty()).collect();
    let bytes = buffers.iter().map(|b| b.len()).sum::<usize>();
    let threads = threads.clamp(1, PIECES_MAX);
    let readers = threads.min(buffers.len()).min(bytes / shared_from()).max(1);
    debug_assert!((1..=threads).contains(&readers), "{readers} readers of {} buffers", buffers.len());
    let lists = Lists::default();
    // Each takes the next buffer: a thread that gets less of a processor reads less. Relaxed: it
    // only hands them out.
    let next = AtomicUsize::new(0);
    let taken = || buffers.get(next.fetch_add(1, Ordering::Relaxed)).copied();
    let parts =
        parallel::map((0..readers).collect(), |_| gather(&lists, bytes / readers, std::iter::from_fn(taken)));
    let p = arrange(parts.into_iter().collect::<Result<_>>()?, false, threads);
    p.check_invariants();
    Ok(p)
}

/// The lists that the threads of a plan make together.
#[derive(Default)]
struct Lists {
    steps: BlockNumbers,
    news: BlockNumbers,
}

/// Reads groups, of about so many bytes.
fn gather<'n, 'a>(
    lists: &'n Lists,
    bytes: usize,
    buffers: impl Iterator<Item = &'a [u8]>,
) -> Result<Gathered<'n, 'a>> {
    let expected = bytes / TYPICAL_GROUP;
    let mut g = Gathered {
        plan: Plan::default(),
        steps: Part::new(&lists.steps, expected),
        news: Part::new(&lists.news, expected / 2),
        parents: Vec::new(),
        places: Vec::new(),
        uses: Vec::new(),
    };
    let p = &mut g.plan;
    let (steps, news) = (&mut g.steps, &mut g.news);
    let bad = |e: record::RecordError| StoreError::Invalid(format!("a namespace record cannot be read: {e}"));
    for group in buffers.flat_map(record::groups) {
        let group = group.map_err(bad)?;
        let version = group.version;
        p.groups += 1;
        p.last_ts = p.last_ts.max(version.ts);
        for e in group.effects() {
            match e.map_err(bad)? {
                Effect::Set { dir, cookie, name, ino, old, kind } => {
                    let is_new = news.last_mut().is_some_and(|n| n.ino == ino && n.version == version);
                    p.given += u64::from(!is_new);
                    steps.push(Step { dir, cookie, name, old, new: Some((ino, kind)), kind, version });
                }
                Effect::Clr { dir, cookie, name, old, kind } => {
                    steps.push(Step { dir, cookie, name, old, new: None, kind, version });
                }
                Effect::New { ino, parent, generation, mode, uid, gid, rdev, time, target, logged } => {
                    news.push(NewInode {
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
                    if let Some(n) = news.last_mut().filter(|n| n.ino == ino && n.version == version) {
                        n.xattrs = xattrs;
                    }
                }
                Effect::Rights { ino, generation, mode, uid, gid, acls } => {
                    p.rights.push(RightsChange { ino, generation, mode, uid, gid, acls, version });
                }
                Effect::Dead { ino, generation } => p.dead.push((ino, generation)),
                Effect::Parent { ino, parent } => g.parents.push((ino, version, parent)),
            }
        }
    }
    if !lists.steps.suffice() || !lists.news.suffice() {
        return Err(StoreError::Invalid(format!("{} changes in one fold", steps.len().max(news.len()))));
    }
    g.places.reserve_exact(steps.len());
    g.places.extend(steps.iter().map(|(step, s)| Place { dir: s.dir, cookie: s.cookie, step }));
    g.places.sort_unstable();
    g.uses.reserve_exact(news.len());
    g.uses.extend(news.iter().map(|(at, n)| Use { ino: n.ino, generation: n.generation, at }));
    // Stable: a lane gives its numbers out in runs.
    g.uses.sort();
    p.dead.sort_unstable();
    Ok(g)
}

/// Returns what tells one use of an inode number from others.
fn use_of(n: &NewInode<'_>) -> (Ino, u32) {
    (n.ino, n.generation)
}

/// Makes a plan of its parts, with so many threads if it is worth it. `as_they_came`: the changes
/// are in the order of the last steps, not of their keys.
fn arrange<'a>(parts: Vec<Gathered<'_, 'a>>, as_they_came: bool, threads: usize) -> Plan<'a> {
    debug_assert!(!as_they_came || parts.len() < 2, "steps of several parts are in no order");
    let mut p = Plan::default();
    let (mut places, mut uses, mut parents) = (Vec::new(), Vec::new(), Vec::new());
    let (mut steps, mut news) = (Vec::new(), Vec::new());
    for mut g in parts {
        p.last_ts = p.last_ts.max(g.plan.last_ts);
        p.groups += g.plan.groups;
        p.given += g.plan.given;
        p.rights.append(&mut g.plan.rights);
        p.dead.append(&mut g.plan.dead);
        places.push(g.places);
        uses.push(g.uses);
        parents.append(&mut g.parents);
        steps.push(g.steps);
        news.push(g.news);
    }
    (p.changes, p.news) = (Ordered::new(steps), Ordered::new(news));
    let key = |place: &Place| (place.dir, place.cookie);
    let shares = pieces(&places, &cuts_of(&places, threads, key), key);
    let done = parallel::map(shares, |s| net_changes(&p.changes, &merged(&s, |place| *place)));
    for &(step, old) in done.iter().flat_map(|d| &d.earlier) {
        p.changes.item_mut(step).old = old;
    }
    let mut net: Vec<Vec<Net>> = done.into_iter().map(|d| d.net).collect();
    p.taken_out = net.iter().flatten().map(|n| n.taken_out).sum();
    match as_they_came {
        true => net.iter_mut().for_each(|n| n.sort_unstable_by_key(|n| n.step)),
        false => p.dirs = ends_of_dirs(&net),
    }
    p.changes.arrange(net.iter().flatten().map(|n| n.step).collect());
    // Stable: it finds the parts, and merges them.
    p.dead.sort();
    p.dead.dedup();
    let key = |u: &Use| (u.ino, u.generation);
    let shares = pieces(&uses, &cuts_of(&uses, threads, key), key);
    let kept = parallel::map(shares, |s| live_uses(&merged(&s, |u| *u), &p.news, &p.dead));
    p.news.arrange(kept.concat());
    keep_last_rights(&mut p);
    parents.sort_unstable();
    // The last of each directory wins.
    p.parents = parents.chunk_by(|a, b| a.0 == b.0).filter_map(|c| c.last()).map(|l| (l.0, l.2)).collect();
    p
}

/// Returns where lists are cut for so many threads, if they are worth several.
fn cuts_of<T, K: Ord + Copy>(lists: &[Vec<T>], threads: usize, key: impl Fn(&T) -> K) -> Vec<K> {
    let lens: Vec<usize> = lists.iter().map(Vec::len).collect();
    let threads = if lens.iter().sum::<usize>() < merged_from() { 1 } else { threads.clamp(1, PIECES_MAX) };
    cuts(&lens, |list, at| key(&lists[list][at]), threads)
}

/// Returns where the changes of each directory end.
fn ends_of_dirs(net: &[Vec<Net>]) -> Vec<usize> {
    let (mut ends, mut end, mut last) = (Vec::new(), 0, Ino::NONE);
    for n in net.iter().flatten() {
        if n.dir != last && end > 0 {
            ends.push(end);
        }
        (end, last) = (end + 1, n.dir);
    }
    ends.extend((end > 0).then_some(end));
    debug_assert!(ends.is_sorted_by(|a, b| a < b), "a directory without changes");
    ends
}

/// Returns where the inodes are that are made and not dead, each once: where it was made first, for
/// whoever reads a group first gives it the lower number.
fn live_uses(uses: &[Use], news: &Ordered<NewInode<'_>>, dead: &[(Ino, u32)]) -> Vec<u32> {
    debug_assert!(uses.is_sorted() && dead.is_sorted(), "what is made, or dead, is out of order");
    let first = uses.first().map_or(0, |u| dead.partition_point(|d| *d < (u.ino, u.generation)));
    let mut dead = dead[first..].iter().peekable();
    let uses = uses.chunk_by(|a, b| (a.ino, a.generation) == (b.ino, b.generation));
    let uses = uses.filter_map(|same| match same {
        [one] => Some(one),
        several => several.iter().min_by_key(|u| news.item(u.at).version),
    });
    let live = uses.filter(|u| {
        while dead.next_if(|d| **d < (u.ino, u.generation)).is_some() {}
        dead.peek().is_none_or(|d| **d != (u.ino, u.generation))
    });
    live.map(|u| u.at).collect()
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

/// Returns what is left of each key that does not end as it began, in the order of the keys.
fn net_changes(steps: &Ordered<Step<'_>>, places: &[Place]) -> NetChanges {
    debug_assert!(places.is_sorted(), "steps of one key do not follow each other");
    let mut left = NetChanges { net: Vec::with_capacity(places.len()), earlier: Vec::new() };
    let mut keep = |step: u32, first: &Step<'_>, last: &Step<'_>| {
        if first.old != last.new.map_or(Ino::NONE, |n| n.0) {
            let bytes = (ENTRY_HEADER + last.name.len()) as i64;
            let taken_out = match (first.old.is_none(), last.new.is_none()) {
                (true, false) => -bytes,
                (false, true) => bytes,
                _ => 0,
            };
            left.net.push(Net { step, dir: last.dir, taken_out });
            if first.old != last.old {
                left.earlier.push((step, first.old));
            }
        }
    };
    let mut chain: Vec<(u32, &Step<'_>)> = Vec::new();
    let mut at = 0;
    while let Some(first) = places.get(at) {
        if let Some(next) = places.get(at + AHEAD) {
            prefetch(steps.item(next.step));
        }
        let key = |p: &&Place| (p.dir, p.cookie) == (first.dir, first.cookie);
        let number = places[at..].iter().take_while(key).count();
        let same = &places[at..at + number];
        at += number;
        if let [one] = same {
            let step = steps.item(one.step);
            keep(one.step, step, step);
            continue;
        }
        chain.clear();
        chain.extend(same.iter().map(|p| (p.step, steps.item(p.step))));
        // Two names may have had one cookie after the other, so the name is part of the key. One
        // lane's steps come in order.
        if !chain.is_sorted_by_key(|c| (c.1.name, c.1.version)) {
            chain.sort_by_key(|c| (c.1.name, c.1.version));
        }
        for chain in chain.chunk_by(|a, b| a.1.name == b.1.name) {
            if let (Some(first), Some(last)) = (chain.first(), chain.last()) {
                keep(last.0, first.1, last.1);
            }
        }
    }
    left
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
    // That order is about the one of their versions.
    let lists = Lists::default();
    let bytes = buffers.iter().map(|b| b.len()).sum();
    let p = arrange(vec![gather(&lists, bytes, buffers.iter().copied())?], true, 1);
    let mut effects: Vec<(Version, Effect<'_>)> = Vec::with_capacity(p.changes.len() + p.news.len());
    let mut first = Version { epoch: u64::MAX, ..Default::default() };
    if let Some(g) = buffers.iter().flat_map(|b| record::groups(b)).next() {
        first = g.map_err(|e| StoreError::Invalid(e.to_string()))?.version;
    }
    for n in p.news.iter() {
        let NewInode { ino, parent, generation, mode, uid, gid, rdev, time, target, .. } = *n;
        let NewInode { xattrs, logged, version, .. } = *n;
        let new = Effect::New { ino, parent, generation, mode, uid, gid, rdev, time, target, logged };
        effects.push((version, new));
        if !xattrs.is_empty() {
            effects.push((version, Effect::Xattrs { ino, xattrs }));
        }
    }
    for c in p.changes.iter() {
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
            let p = plan([&bytes[..]], 1).unwrap();
            assert_eq!(p.changes.len(), 1);
            let c = p.changes.all().first().unwrap();
            assert_eq!((c.name, c.new), (&b"b"[..], Some((Ino(20), F))));
            assert_eq!(p.links(), [(Ino(20), 1)]);
        }
    }

    #[test]
    fn order_and_repeats_do_not_matter() {
        let a = groups(&[(1, &[new(30), set(8, b"a", 30, 20)])]);
        let b = groups(&[(2, &[set(16, b"b", 30, 21), clr(8, b"a", 30)])]);
        let p = plan([&b[..], &a, &b, &a], 1).unwrap();
        // Rename over an existing name: a is gone (it named 20 on disk), b names 30 instead of 21.
        assert_eq!(p.links(), [(Ino(20), -1), (Ino(21), -1), (Ino(30), 1)]);
        assert_eq!(p.news.len(), 1);
        let changes: Vec<_> = p.changes.iter().map(|c| (c.new, c.old)).collect();
        assert_eq!(changes, [(None, Ino(20)), (Some((Ino(30), F)), Ino(21))]);
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
        let p = plan([&absorbed[..]], 1).unwrap();
        assert!(p.news.is_empty() && p.changes.is_empty() && p.links().is_empty());
        assert_eq!(p.dead, [(Ino(30), 1)]);
    }

    #[test]
    fn an_epoch_that_ends_as_it_began_still_has_a_group_to_commit() {
        let b = groups(&[(1, &[set(8, b"a", 20, 0)]), (2, &[clr(8, b"a", 20)])]);
        let absorbed = absorb(&[&b]).unwrap();
        let p = plan([&absorbed[..]], 1).unwrap();
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
        let p = plan([&b[..]], 1).unwrap();
        assert_eq!(p.parents, [(Ino(40), Ino(3))]);
        assert!(p.links().is_empty());
        assert_eq!(p.by_dir().count(), 2);
        let p2 = plan([&absorb(&[&b]).unwrap()[..]], 1).unwrap().parents;
        assert_eq!(p2, [(Ino(40), Ino(3))]);
    }

    #[test]
    fn a_name_that_takes_over_a_cookie_is_another_key() {
        let b = groups(&[(1, &[clr(8, b"a", 20)]), (2, &[set(8, b"b", 21, 0)])]);
        for bytes in [b.clone(), absorb(&[&b]).unwrap()] {
            let p = plan([&bytes[..]], 1).unwrap();
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
        /// Several threads find what one does, however the groups are divided among them.
        #[test]
        fn a_plan_is_the_same_whoever_makes_it(
            steps in prop::collection::vec((1..20u64, 1..6u64, 0..4usize, 20..40u64, 0..3u8), 0..300),
            each in 1..40usize,
            threads in 2..9usize,
        ) {
            let groups: Vec<Vec<u8>> = (1..).zip(&steps).map(|(ts, &(at, dir, name, ino, what))| {
                let (dir, cookie, name, ino, kind) = (Ino(dir), at % 7, NAMES[name], Ino(ino), F);
                let old = Ino(at + 20);
                groups(&[(ts, &match what {
                    0 => vec![new(ino.0), Effect::Set { dir, cookie, name, ino, old: Ino::NONE, kind }],
                    1 => vec![Effect::Clr { dir, cookie, name, old, kind }, Effect::Parent { ino, parent: dir }],
                    _ => vec![Effect::Set { dir, cookie, name, ino, old, kind }, Effect::Dead { ino: old, generation: 1 }],
                })])
            }).collect();
            let buffers: Vec<Vec<u8>> = groups.chunks(each).map(<[Vec<u8>]>::concat).collect();
            let one = plan(buffers.iter().map(|b| &b[..]), 1).unwrap();
            let several = plan(buffers.iter().map(|b| &b[..]), threads).unwrap();
            let all = |p: &Plan<'_>| {
                let lists = (p.changes.iter().collect::<Vec<_>>(), p.news.iter().collect::<Vec<_>>());
                let lists = format!("{lists:?} {:?} {:?} {:?} {:?}", p.dirs, p.dead, p.parents, p.rights);
                (lists, p.last_ts, p.groups, p.given, p.taken_out)
            };
            prop_assert_eq!(all(&one), all(&several));
        }

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
                let (p, q) = (plan(parts, 1).unwrap(), plan([&out[..]], 1).unwrap());
                prop_assert_eq!((p.links(), p.dead, p.changes.len()), (q.links(), q.dead, q.changes.len()));
            }
            prop_assert_eq!(again, world);
        }
    }
}
