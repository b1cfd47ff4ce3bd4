//! This module decides whether two calls commute: by the reference model, in both orders, with what
//! is durable afterwards.
//!
//! *Times.* The instant that a call stores is the clock's to choose, not before the call and never
//! before what is stored already (SEMANTICS T1), as in COMMUTER's model, where it is a free
//! variable that must not go backwards. So two calls that both store "now" in one inode leave the
//! later instant in either order, and commute if nothing else tells them apart; were it otherwise,
//! two creates in one directory would not commute. A call that *reports* times does not commute
//! with one that stores them: between them the clock may be looked at. What an implementation does
//! of this is another matter: [`stamps_one_inode`] says which tests ask for one inode's times from
//! both, and the figures are told with and without them.

use super::test_case::Test;
use lanefs_lab_model::model::{Change, Content, Id, Inode, Model, Persist};
use lanefs_lab_model::op::{Op, Outcome, Who};
use std::collections::{BTreeMap, BTreeSet};

/// The effects of one call on the model.
struct Did {
    outcome: Outcome,
    changes: Vec<Change>,
    /// Inodes there were before, that took a time from the clock; not directories that only gained
    /// or lost a name.
    stamped: BTreeSet<Id>,
}

fn apply(m: &mut Model, op: &Op) -> Did {
    let before: BTreeMap<Id, _> = m.inodes.iter().map(|(id, n)| (*id, n.mtime)).collect();
    let outcome = m.apply(Who::Root, op);
    let changes = m.take_changes();
    let of = |c: &Change| match c {
        Change::Entry { old, new, .. } => [*old, *new],
        Change::Attr { id, .. } | Change::Size { id, .. } | Change::Page { id, .. } => [Some(*id), None],
        _ => [None, None],
    };
    let mut stamped: BTreeSet<Id> =
        changes.iter().flat_map(of).flatten().filter(|id| before.contains_key(id)).collect();
    // A truncation to the same size says nothing but the time.
    let timed = |id: &Id, n: &Inode| !n.is_dir() && before.get(id).is_some_and(|t| *t != n.mtime);
    stamped.extend(m.inodes.iter().filter(|(id, n)| timed(id, n)).map(|(id, _)| *id));
    Did { outcome, changes, stamped }
}

/// The model after the set-up; an error if a call of it fails.
pub fn prepare(test: &Test) -> Result<Model, String> {
    let mut m = Model::new();
    for op in test.setup.iter().flat_map(|p| &p.1) {
        if let Outcome::Fail(e) = m.apply(Who::Root, op) {
            return Err(format!("{op:?} of the set-up fails with {}", lanefs_lab_model::op::errno_name(e)));
        }
        m.take_changes();
    }
    Ok(m)
}

/// Returns whether both calls store the clock's time in one inode, which is not a directory that
/// only gains or loses a name.
pub fn stamps_one_inode(test: &Test) -> Result<bool, String> {
    let m = prepare(test)?;
    let stamped = |op: &Op| apply(&mut m.clone(), op).stamped;
    Ok(!stamped(&test.ops[0]).is_disjoint(&stamped(&test.ops[1])))
}

/// Returns whether the test's calls commute.
pub fn commutes(test: &Test) -> Result<bool, String> {
    let m = prepare(test)?;
    let [a, b] = &test.ops;
    let (mut one, mut two) = (m.clone(), m.clone());
    let (a1, b1) = (apply(&mut one, a), apply(&mut one, b));
    let (b2, a2) = (apply(&mut two, b), apply(&mut two, a));
    let made = |d: &Did| {
        d.changes.iter().find_map(|c| match c {
            Change::New { id, .. } => Some(*id),
            _ => None,
        })
    };
    // New inodes are told apart by who made them.
    let map1 = Renumber([made(&a1), made(&b1)]);
    let map2 = Renumber([made(&a2), made(&b2)]);
    Ok(map1.outcome(&a1.outcome) == map2.outcome(&a2.outcome)
        && map1.outcome(&b1.outcome) == map2.outcome(&b2.outcome)
        && same_state(&one, &map1, &two, &map2)
        && !sees_times(&a1, &b1)
        && !sees_times(&b2, &a2)
        && !promises(&m, &a1, &b1)
        && !promises(&m, &b2, &a2))
}

/// Inodes made by call 0 and 1, which have other numbers in the other order.
struct Renumber([Option<Id>; 2]);

impl Renumber {
    fn id(&self, id: Id) -> Id {
        self.0.iter().position(|n| *n == Some(id)).map_or(id, |who| (1 << 40) + who as u64)
    }

    fn outcome(&self, o: &Outcome) -> Outcome {
        let mut o = o.clone();
        match &mut o {
            Outcome::Attr(a) => a.id.0 = self.id(a.id.0),
            Outcome::List(l) => l.values_mut().for_each(|v| v.1 = self.id(v.1)),
            _ => {}
        }
        o
    }
}

fn same_state(a: &Model, ma: &Renumber, b: &Model, mb: &Renumber) -> bool {
    let handles = |m: &Model, r: &Renumber| -> BTreeMap<u8, (Id, i32, u64)> {
        m.handles.iter().map(|(fd, h)| (*fd, (r.id(h.id), h.flags, h.cursor))).collect()
    };
    if handles(a, ma) != handles(b, mb) || a.inodes.len() != b.inodes.len() {
        return false;
    }
    let by_id: BTreeMap<Id, &lanefs_lab_model::model::Inode> =
        b.inodes.iter().map(|(id, n)| (mb.id(*id), n)).collect();
    a.inodes.iter().all(|(id, x)| {
        let Some(y) = by_id.get(&ma.id(*id)) else { return false };
        let plain = (x.mode, x.uid, x.gid, x.links, x.opens, x.linkable, x.atime, x.mtime)
            == (y.mode, y.uid, y.gid, y.links, y.opens, y.linkable, y.atime, y.mtime);
        plain
            && x.xattrs == y.xattrs
            && match (&x.content, &y.content) {
                (Content::File(p), Content::File(q)) => p.size == q.size && p.map == q.map,
                (Content::Dir { entries: e, parent: p }, Content::Dir { entries: f, parent: q }) => {
                    let list = |e: &BTreeMap<lanefs_lab_model::op::Name, Id>, r: &Renumber| -> Vec<_> {
                        e.iter().map(|(n, id)| (n.clone(), r.id(*id))).collect()
                    };
                    ma.id(*p) == mb.id(*q) && list(e, ma) == list(f, mb)
                }
                (Content::Symlink(s), Content::Symlink(t)) => s == t,
                (Content::Other, Content::Other) => true,
                _ => false,
            }
    })
}

/// Returns whether one call reports an inode whose ctime the other changed. (mtime and atime are in
/// the outcome.)
fn sees_times(x: &Did, y: &Did) -> bool {
    let seen = |o: &Outcome, changes: &[Change]| {
        let Outcome::Attr(a) = o else { return false };
        changes.iter().any(|c| match c {
            Change::Entry { dir, old, new, .. } => {
                *dir == a.id.0 || *old == Some(a.id.0) || *new == Some(a.id.0)
            }
            Change::Attr { id, .. } | Change::Size { id, .. } | Change::Page { id, .. } => *id == a.id.0,
            _ => false,
        })
    };
    seen(&x.outcome, &y.changes) || seen(&y.outcome, &x.changes)
}

/// Returns whether the second call promises to have made durable something of what the first one
/// changed (docs/SEMANTICS.md, C3, F2 and F7: a time is durable with what it came with). All before
/// them was durable, so the closure C2 adds nothing. In the other order nothing of the kind is
/// promised.
fn promises(before: &Model, first: &Did, second: &Did) -> bool {
    let covers_group = |id: Id| {
        first.changes.iter().any(|c| match c {
            Change::Entry { dir, old, new, .. } => *dir == id || *old == Some(id) || *new == Some(id),
            Change::New { id: n, .. } => *n == id,
            _ => false,
        })
    };
    for p in &second.changes {
        let Change::Persist(p) = p else { continue };
        match p {
            Persist::All if !first.stamped.is_empty() => return true,
            Persist::Inode(id) if first.stamped.contains(id) => return true,
            _ => {}
        }
        for c in &first.changes {
            let (group, of, attr) = match c {
                Change::Entry { .. } | Change::New { .. } | Change::Moved { .. } => (true, 0, false),
                Change::Attr { id, .. } => (false, *id, true),
                Change::Size { id, .. } | Change::Page { id, .. } => (false, *id, false),
                Change::Persist(_) => continue,
            };
            let covered = match *p {
                Persist::All => true,
                Persist::Inode(id) => {
                    if group {
                        covers_group(id)
                    } else {
                        of == id
                    }
                }
                Persist::Data(id) => {
                    if group {
                        covers_group(id)
                    } else {
                        of == id && !attr
                    }
                }
            };
            if covered && has_effect(before, c) {
                return true;
            }
        }
    }
    false
}

/// Returns whether a change makes a difference to the content that was there.
fn has_effect(before: &Model, c: &Change) -> bool {
    let file = |id: &Id| match before.inodes.get(id).map(|n| &n.content) {
        Some(Content::File(p)) => Some(p),
        _ => None,
    };
    match c {
        Change::Size { id, size, .. } => file(id).is_none_or(|p| p.size != *size),
        Change::Page { id, page, bytes, .. } => file(id).is_none_or(|p| p.map.get(page) != bytes.as_ref()),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conflicts::call::Call;
    use crate::conflicts::test_case::SETUP;

    fn test(setup: Vec<Op>, a: Op, b: Op) -> Test {
        Test { calls: (Call::Stat, Call::Stat), number: 0, setup: vec![(SETUP, setup)], ops: [a, b] }
    }

    #[test]
    fn times_are_the_clock_s_to_choose_and_promised_by_fsync() {
        let open = Op::Open { fd: 1, path: "/f".into(), flags: libc::O_CREAT | libc::O_RDWR, mode: 0o644 };
        let chmod = || Op::Chmod { path: "/f".into(), mode: 0o644 };
        let go = |a: Op, b: Op| {
            let t = test(vec![open.clone(), Op::Sync], a, b);
            (commutes(&t).unwrap(), stamps_one_inode(&t).unwrap())
        };
        // Two changes that end alike, and store a time each.
        assert_eq!(go(chmod(), chmod()), (true, true));
        assert_eq!(go(Op::Truncate { path: "/f".into(), size: 0 }, chmod()), (true, true));
        // fsync promises the time of a change before it, even of one that changes nothing else;
        // fdatasync does not.
        assert_eq!(go(chmod(), Op::Fsync { fd: 1 }), (false, false));
        assert_eq!(go(Op::Truncate { path: "/f".into(), size: 0 }, Op::Fsync { fd: 1 }), (false, false));
        assert_eq!(go(chmod(), Op::Fdatasync { fd: 1 }), (true, false));
        // Who reports a time sees the order.
        assert_eq!(go(chmod(), Op::Stat { path: "/f".into() }), (false, false));
        // Two names of one directory: its time is the later one either way, and no file's.
        let mk = |n: &str| Op::Mkdir { path: n.into(), mode: 0o755 };
        assert_eq!(go(mk("/a"), mk("/b")), (true, false));
    }
}
