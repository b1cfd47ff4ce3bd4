//! Threads on the same names: is there an order that explains what they saw?
//!
//! A call takes effect at one moment between its call and its answer. So there must be an order of
//! all calls that keeps each thread's own order, puts a call that was answered before another was
//! made before it, and gives in the model every answer that was given, and at the end the tree that
//! is there. The search tries all orders that fit; with two or three calls a thread these are few.
//!
//! A path is looked up name by name, as Linux does it, and not in one moment. A call whose
//! directory is moved or removed meanwhile may find itself in a directory that is gone (ENOENT) or
//! is now called otherwise; and link(2), as that of Linux, looks up the file first and then gives
//! it a name, so the old name may be gone or another's by then. Such a failure counts as no call at
//! all; and if with that no order is found, the schedule is not judged here. Half of the schedules
//! have files alone, in one directory, of which some names are of one file: there every answer but
//! link's must be explained.

use super::*;
use lanefs_lab_model::model::Model;
use std::collections::BTreeMap;

/// The directory that the closed volume has: its names come into memory in the middle of the calls.
pub(super) const COLD: &str = "/s";
/// The directory that is made before the calls: its names are in memory and not folded.
const WARM: &str = "/w";

/// The names that the threads meet on, directories among them.
const TREE: [&str; 6] = ["a", "b", "d", "d/a", "e", "e/b"];
/// Names of files alone, of which two are of one file: no call on them has a directory that another
/// moves, so every answer must be explained.
const FLAT: [&str; 4] = ["a", "f", "b", "g"];
/// Names that no call touches: every listing tells of them.
const KEPT: [&str; 6] = ["k0", "k1", "k2", "k3", "k4", "k5"];

/// Returns the calls that make the tree in directory `top` before the schedule. The mode of a file
/// tells which it is.
pub(super) fn prepare(top: &str) -> Vec<Op> {
    let path = |name: &str| format!("{top}/{name}");
    let file = |name: &str, mode| Op::Mknod { path: path(name).as_str().into(), mode: libc::S_IFREG | mode };
    let dir = |name: &str| Op::Mkdir { path: path(name).as_str().into(), mode: 0o755 };
    let mut all = vec![Op::Mkdir { path: top.into(), mode: 0o755 }, dir("d"), dir("e")];
    all.extend([file("a", 0o644), file("d/a", 0o600), file("b", 0o604)]);
    all.push(Op::Link { old: path("a").as_str().into(), new: path("f").as_str().into() });
    all.extend(KEPT.map(|name| file(name, 0o444)));
    all
}

/// One call on some of `names` in `top`; a file that it makes gets a mode of its own.
fn call(rng: &mut Rng, top: &str, names: &[&str], fresh: &mut u32) -> Op {
    let mut name = || format!("{top}/{}", rng.pick(names)).as_str().into();
    let (a, b) = (name(), name());
    let flat = names.len() == FLAT.len();
    *fresh += 1;
    match rng.below(20) {
        0 | 1 => Op::Mknod { path: a, mode: libc::S_IFREG | *fresh },
        2 | 3 if flat => Op::Link { old: a, new: b },
        2 => Op::Mkdir { path: a, mode: 0o755 },
        3 => Op::Rmdir { path: a },
        4 | 5 => Op::Unlink { path: a },
        6 if !flat => Op::Rmdir { path: a },
        6 | 7 | 8 => Op::Link { old: a, new: b },
        9 | 10 => Op::Rename { old: a, new: b, flags: libc::RENAME_EXCHANGE },
        11 => Op::Rename { old: a, new: b, flags: libc::RENAME_NOREPLACE },
        12 => Op::Rename { old: a, new: b, flags: libc::RENAME_WHITEOUT },
        13 | 14 => Op::Lstat { path: a },
        15 => Op::Readdir { path: top.into() },
        _ => Op::Rename { old: a, new: b, flags: 0 },
    }
}

/// A call, when it was made and answered, whether it succeeded, and which file it saw. Which of
/// several errors is told is another test's business; and how many names a file has is not told in
/// the same moment as which those are.
struct Made {
    op: Op,
    called: u64,
    answered: u64,
    done: bool,
    /// The mode that lstat told.
    mode: Option<u32>,
}

/// Returns whether the call succeeded, and the mode that it returned.
fn gist(answer: &Answer) -> (bool, Option<u32>) {
    match answer {
        Answer::Fail(_) => (false, None),
        Answer::Attr(a) => (true, Some(a.mode)),
        _ => (true, None),
    }
}

/// A listing tells of every name that is there throughout, and of none that nobody ever made.
fn judge_listing(answer: &Answer) -> Result<(), Violation> {
    let Answer::List(names) = answer else { return Ok(()) };
    let known = |n: &str| KEPT.contains(&n) || FLAT.contains(&n) || TREE.contains(&n);
    let missing = KEPT.iter().find(|k| !names.contains_key(&(**k).into()));
    let odd = names.keys().find(|n| !std::str::from_utf8(&n.0).is_ok_and(known));
    match (missing, odd) {
        (None, None) => Ok(()),
        wrong => Err(broken(
            "N1",
            format!("a listing without a name that is there, or with one that is not: {wrong:?}"),
        )),
    }
}

pub(super) fn run(seed: u64, live: &Live, counts: &mut Counts, crashes: &mut u64) -> Result<(), Violation> {
    let mut rng = Rng::new(seed ^ 0x7063);
    let system = system(seed);
    let n = 2 + rng.below(3) as usize;
    let each = if n == 4 { 2 } else { 3 };
    let top = if rng.one_in(2) { COLD } else { WARM };
    let names: &[&str] = if rng.one_in(2) { &FLAT } else { &TREE };
    let mut fresh = 0;
    let work: Vec<Vec<Op>> =
        (0..n).map(|_| (0..each).map(|_| call(&mut rng, top, names, &mut fresh)).collect()).collect();
    let mut model = Model::new();
    let mut main = VolumeTarget::new(live.volume.clone(), None);
    for h in HOMES {
        model.apply(Who::Root, &Op::Mkdir { path: h.into(), mode: 0o755 });
    }
    for op in prepare(top) {
        model.apply(Who::Root, &op);
        if top == WARM {
            must(&mut main, op)?;
        }
    }
    let rounds = rng.below(3);
    let start = || VolumeTarget::new(live.volume.clone(), None);
    let made = in_turns(seed, live, &work, rounds, counts, start, |t, op| {
        let called = live.recorder.mark("");
        let answer = t.call(Who::Root, op);
        let answered = live.recorder.mark("");
        judge_listing(&answer)?;
        let (done, mode) = gist(&answer);
        Ok(Made { op: op.clone(), called, answered, done, mode })
    })?;
    let seen = tree(top, &mut |op| main.call(Who::Root, &op))?;
    let mut at = vec![0; n];
    if !explained(&model, &made, &mut at, (top, &seen)) && !made.iter().flatten().any(|m| moved(m, &made)) {
        return Err(broken("linear", format!("no order explains {}; found {seen:?}", transcript(&made))));
    }
    must(&mut main, Op::Sync)?;
    let log = live.recorder.log();
    live.volume.shutdown();
    let (image, how) = crashed(&log, &live.base, log.now, &mut rng);
    *crashes += 1;
    let mut found =
        system.open(plain(&[image])).map_err(|e| broken("R1", format!("recovery failed, {how}: {e}")))?;
    let after = tree(top, &mut |op| found.call(Who::Root, &op))?;
    found.kill();
    if after != seen {
        let what = format!("after sync and a crash {after:?} instead of {seen:?}; {}", transcript(&made));
        return Err(broken("C2", what));
    }
    Ok(())
}

fn transcript(made: &[Vec<Made>]) -> String {
    let one = |m: &Made| {
        let word = match m.mode {
            Some(mode) => format!("{mode:o}"),
            None => if m.done { "ok" } else { "failed" }.to_string(),
        };
        format!("{}..{} {:?} {word}", m.called, m.answered, m.op)
    };
    let threads: Vec<String> =
        made.iter().map(|t| t.iter().map(one).collect::<Vec<_>>().join(", ")).collect();
    threads.join(" || ")
}

/// Path to mode, number of names, and the first path of the same inode.
type Tree = BTreeMap<String, (u32, u32, String)>;

fn tree(top: &str, ask: &mut dyn FnMut(Op) -> Answer) -> Result<Tree, Violation> {
    let mut out = Tree::new();
    let mut first: BTreeMap<u64, String> = BTreeMap::new();
    let mut todo = vec![top.to_string()];
    while let Some(path) = todo.pop() {
        let Answer::Attr(a) = ask(Op::Lstat { path: path.clone().into() }) else {
            return Err(broken("N1", format!("{path} is listed and cannot be looked at")));
        };
        if let Answer::List(names) = ask(Op::Readdir { path: path.clone().into() }) {
            todo.extend(names.keys().rev().map(|n| format!("{path}/{}", n.0.escape_ascii())));
            if out.len() > 100 {
                return Err(broken("N4", "directories without end".into()));
            }
        }
        let same = first.entry(a.id.0).or_insert_with(|| path.clone()).clone();
        out.insert(path, (a.mode, a.nlink, same));
    }
    Ok(out)
}

/// Returns whether the calls from `at` on, in some order, lead to `end`.
fn explained(model: &Model, made: &[Vec<Made>], at: &mut [usize], end: (&str, &Tree)) -> bool {
    // No call may come before one that was answered before it was made.
    let bound = (0..made.len()).filter_map(|t| made[t].get(at[t])).map(|m| m.answered).min();
    let Some(bound) = bound else {
        let mut m = model.clone();
        return tree(end.0, &mut |op| m.apply(Who::Root, &op)).is_ok_and(|t| t == *end.1);
    };
    (0..made.len()).any(|t| {
        let Some(next) = made[t].get(at[t]).filter(|m| m.called < bound) else { return false };
        let mut m = model.clone();
        let (done, mode) = gist(&m.apply(Who::Root, &next.op));
        m.take_changes();
        let m = match (done, next.done) {
            (a, b) if a == b && mode == next.mode => m,
            (true, false) if moved(next, made) => model.clone(),
            _ => return false,
        };
        at[t] += 1;
        let found = explained(&m, made, at, end);
        at[t] -= 1;
        found
    })
}

/// The paths of a call.
fn paths(op: &Op) -> Vec<&[u8]> {
    match op {
        Op::Rename { old, new, .. } | Op::Link { old, new } => vec![&old.0, &new.0],
        Op::Mknod { path, .. }
        | Op::Mkdir { path, .. }
        | Op::Unlink { path }
        | Op::Rmdir { path }
        | Op::Lstat { path }
        | Op::Readdir { path } => vec![&path.0],
        _ => Vec::new(),
    }
}

/// Returns whether a directory on a call's way, or the file that it links, was moved, replaced or
/// removed by a call that overlapped it.
fn moved(m: &Made, made: &[Vec<Made>]) -> bool {
    let mover =
        |o: &&Made| o.done && matches!(o.op, Op::Rename { .. } | Op::Rmdir { .. } | Op::Unlink { .. });
    let linked = match &m.op {
        Op::Link { old, .. } => Some(&old.0),
        _ => None,
    };
    let above = |dir: &[u8], path: &[u8]| {
        path.starts_with(dir) && path.get(dir.len()) == Some(&b'/') || linked.is_some_and(|l| *l == dir)
    };
    made.iter()
        .flatten()
        .filter(mover)
        .filter(|o| o.called < m.answered && m.called < o.answered && o.called != m.called)
        .any(|o| paths(&o.op).iter().any(|dir| paths(&m.op).iter().any(|path| above(dir, path))))
}
