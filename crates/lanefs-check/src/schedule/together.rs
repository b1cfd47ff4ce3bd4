//! Threads on the same names: is there an order that explains what they saw?
//!
//! A call takes effect at one moment between its call and its answer. So there must be an order of all calls that keeps each thread's own
//! order, puts a call that was answered before another was made before it, and gives in the model every answer that was given, and at the
//! end the tree that is there. The search tries all orders that fit; with two or three calls a thread these are few.
//!
//! A path is looked up name by name, as Linux does it, and not in one moment. A call whose directory is moved or removed meanwhile may
//! find itself in a directory that is gone (ENOENT) or is now called otherwise; and link(2) of a file that is replaced or unlinked meanwhile
//! finds a file without a name (ENOENT). Such a failure counts as no call at all; and if with that no order is found, the schedule is not
//! judged here.

use super::*;
use crate::model::Model;
use std::collections::BTreeMap;

/// The names that the threads meet on.
const PATHS: [&str; 6] = ["/s/a", "/s/b", "/s/d", "/s/d/a", "/s/e", "/s/e/b"];

/// What is there before.
fn prepare() -> Vec<Op> {
    let file = |path: &str| Op::Mknod { path: path.into(), mode: libc::S_IFREG | 0o644 };
    vec![
        Op::Mkdir { path: "/s".into(), mode: 0o755 },
        Op::Mkdir { path: "/s/d".into(), mode: 0o755 },
        Op::Mkdir { path: "/s/e".into(), mode: 0o755 },
        file("/s/a"),
        file("/s/d/a"),
    ]
}

fn call(rng: &mut Rng) -> Op {
    let a = (*rng.pick(&PATHS)).into();
    let b = (*rng.pick(&PATHS)).into();
    match rng.below(16) {
        0 | 1 => Op::Mknod { path: a, mode: libc::S_IFREG | 0o644 },
        2 => Op::Mkdir { path: a, mode: 0o755 },
        3 | 4 => Op::Unlink { path: a },
        5 | 6 => Op::Rmdir { path: a },
        7 | 8 => Op::Link { old: a, new: b },
        9 => Op::Rename { old: a, new: b, flags: libc::RENAME_EXCHANGE },
        10 => Op::Rename { old: a, new: b, flags: libc::RENAME_NOREPLACE },
        11 => Op::Lstat { path: a },
        _ => Op::Rename { old: a, new: b, flags: 0 },
    }
}

/// A call, when it was made and answered, and whether it succeeded. Which of several errors is told is another test's business.
struct Made {
    op: Op,
    called: u64,
    answered: u64,
    done: bool,
}

pub(super) fn run(seed: u64, live: &Live, counts: &mut Counts, crashes: &mut u64) -> Result<(), Violation> {
    let mut rng = Rng::new(seed ^ 0x7063);
    let system = system(seed);
    let n = 2 + rng.below(3) as usize;
    let each = if n == 4 { 2 } else { 3 };
    let work: Vec<Vec<Op>> = (0..n).map(|_| (0..each).map(|_| call(&mut rng)).collect()).collect();
    let mut model = Model::new();
    let mut main = VolumeTarget::new(live.volume.clone(), None);
    for h in HOMES {
        model.apply(Who::Root, &Op::Mkdir { path: h.into(), mode: 0o755 });
    }
    for op in prepare() {
        model.apply(Who::Root, &op);
        must(&mut main, op)?;
    }
    let turn = Turn::new(seed, n + 1);
    let running = AtomicUsize::new(n);
    let made: Vec<Vec<Made>> = std::thread::scope(|s| {
        let threads: Vec<_> = work
            .iter()
            .enumerate()
            .map(|(me, ops)| {
                let (turn, running) = (&turn, &running);
                s.spawn(move || {
                    let mut t = VolumeTarget::new(live.volume.clone(), None);
                    turn.run(me, || {
                        let made = ops.iter().map(|op| {
                            let called = live.recorder.mark("");
                            let done = !matches!(t.call(Who::Root, op), Answer::Fail(_));
                            let answered = live.recorder.mark("");
                            Made { op: op.clone(), called, answered, done }
                        });
                        let made = made.collect();
                        // Relaxed: one thread runs at a time.
                        running.fetch_sub(1, Ordering::Relaxed);
                        made
                    })
                })
            })
            .collect();
        let (turn, running) = (&turn, &running);
        let rounds = rng.below(3);
        let rest = s.spawn(move || turn.run(n, || maintain(&live.volume, running, rounds)));
        let lost = |_| broken("panic", "a thread died".into());
        let made = threads.into_iter().map(|t| t.join().map_err(lost)).collect::<Result<Vec<_>, _>>();
        rest.join().map_err(lost)??;
        made
    })?;
    *counts = turn.counts();
    let seen = tree(&mut |op| main.call(Who::Root, &op))?;
    let mut at = vec![0; n];
    if !explained(&model, &made, &mut at, &seen) && !made.iter().flatten().any(|m| moved(m, &made)) {
        return Err(broken("linear", format!("no order explains {}; found {seen:?}", story(&made))));
    }
    must(&mut main, Op::Sync)?;
    let log = live.recorder.log();
    live.volume.shutdown();
    let (image, how) = crashed(&log, &live.base, log.now, &mut rng);
    *crashes += 1;
    let mut found =
        system.open(plain(&[image])).map_err(|e| broken("R1", format!("recovery failed, {how}: {e}")))?;
    let after = tree(&mut |op| found.call(Who::Root, &op))?;
    found.kill();
    if after != seen {
        let what = format!("after sync and a crash {after:?} instead of {seen:?}; {}", story(&made));
        return Err(broken("C2", what));
    }
    Ok(())
}

fn story(made: &[Vec<Made>]) -> String {
    let one = |m: &Made| {
        let word = if m.done { "ok" } else { "failed" };
        format!("{}..{} {:?} {word}", m.called, m.answered, m.op)
    };
    let threads: Vec<String> =
        made.iter().map(|t| t.iter().map(one).collect::<Vec<_>>().join(", ")).collect();
    threads.join(" || ")
}

/// Path to mode, number of names, and the first path of the same inode.
type Tree = BTreeMap<String, (u32, u32, String)>;

fn tree(ask: &mut dyn FnMut(Op) -> Answer) -> Result<Tree, Violation> {
    let mut out = Tree::new();
    let mut first: BTreeMap<u64, String> = BTreeMap::new();
    let mut todo = vec!["/s".to_string()];
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

/// Whether the calls from `at` on, in some order, lead to `end`.
fn explained(model: &Model, made: &[Vec<Made>], at: &mut [usize], end: &Tree) -> bool {
    // No call may come before one that was answered before it was made.
    let bound = (0..made.len()).filter_map(|t| made[t].get(at[t])).map(|m| m.answered).min();
    let Some(bound) = bound else {
        let mut m = model.clone();
        return tree(&mut |op| m.apply(Who::Root, &op)).is_ok_and(|t| t == *end);
    };
    (0..made.len()).any(|t| {
        let Some(next) = made[t].get(at[t]).filter(|m| m.called < bound) else { return false };
        let mut m = model.clone();
        let done = !matches!(m.apply(Who::Root, &next.op), Answer::Fail(_));
        m.take_changes();
        let m = match (done, next.done) {
            (a, b) if a == b => m,
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
        | Op::Lstat { path } => vec![&path.0],
        _ => Vec::new(),
    }
}

/// Whether a directory on a call's way, or the file that it links, was moved, replaced or removed by a call that overlapped it.
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
