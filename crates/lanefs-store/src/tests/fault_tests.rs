//! Everything that a device or a full volume can refuse is refused once: the N-th read, write or
//! flush of a history and of the opening after it, and the N-th block that a checkpoint or the
//! cleaner asks for. The caller hears of it and tries again, as far as the store goes on. Then:
//!
//! 1. What is read of the store is what was written (`Model::check_now`).
//! 2. Whatever it takes for free is written over, as others might. Then it crashes, or is closed.
//! 3. What is found when it is opened holds everything that was acknowledged, passes its audit, and
//!    does so once more when all is written over that is free by *its* tables; and fsck has nothing
//!    to say.
//!
//! The histories are those of the crash tests (`tests/it/model.rs`), on volumes so small that
//! checkpoints with and without a fold, with what they carry over, and cleaning come every few
//! calls; with next to no cache, so that everything is read again and again.
//!
//! docs/TESTING.md says which mistakes it is known to find.

use crate::common::*;
use crate::device::{Device, Fault, FaultyDevice, Kind, MemoryDevice, MemoryImage, Plan, WriteReq};
use crate::fsck::{self, FsckOptions};
use crate::log::segment::State;
use crate::model::{Model, Told, Watch};
use crate::testing::leave;
use crate::*;
use lanefs_sync::random::Rng;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What is done.
#[derive(Clone, Copy, Debug)]
struct History {
    bytes: u64,
    /// Copies of the tree.
    copies: u32,
    /// Files to begin with.
    crowd: u64,
    steps: u64,
    seed: u64,
}

/// What is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refused {
    Nothing,
    /// The N-th request of a kind while it is worked on.
    Request(Kind, u64),
    /// The same while the volume is opened after a crash.
    WhenOpened(Kind, u64),
    /// In the N-th call that may make a checkpoint, every block behind so many.
    Room {
        call: u64,
        blocks: u32,
    },
}

impl Refused {
    /// The history ends as soon as what was refused is done: so it is with every second one.
    fn ends_it(self) -> bool {
        match self {
            Refused::Nothing | Refused::WhenOpened(..) => false,
            Refused::Request(_, nth) => nth % 2 == 0,
            Refused::Room { blocks, .. } => blocks % 2 == 0,
        }
    }
}

/// What a history made of it.
#[derive(Default)]
struct Outcome {
    /// Requests by kind: while it was worked on, and while it was opened.
    requests: [[u64; 4]; 2],
    calls: u64,
    /// Something was refused.
    refused: bool,
}

/// Hears what is acknowledged, and refuses room.
#[derive(Default)]
struct Watcher {
    acked: RefCell<Vec<String>>,
    calls: Cell<u64>,
    room: Option<(u64, u32)>,
    refused: Cell<bool>,
}

impl Watch for Watcher {
    fn acked(&self, what: String) {
        self.acked.borrow_mut().push(what);
    }

    fn around(&self, s: &Store, call: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let n = self.calls.replace(self.calls.get() + 1);
        let Some((_, blocks)) = self.room.filter(|r| r.0 == n) else { return call() };
        let claimed = leave(s, blocks);
        let r = call();
        claimed.into_iter().for_each(|seg| s.engine.log.segments.release(seg));
        self.refused.set(matches!(r, Err(StoreError::NoSpace)));
        r
    }
}

fn options() -> OpenOptions {
    OpenOptions { cache_bytes: 0, memory_bytes: 1 << 12, threads: 1, ..OpenOptions::default() }
}

/// Writes over all that the store takes for free.
fn scribble(s: &Store, d: &dyn Device) {
    let mut claimed = Vec::new();
    while let Some(seg) =
        (0..s.engine.log.segments.devices()).find_map(|d| s.engine.log.segments.claim(d, State::Chain, 0))
    {
        claimed.push(seg);
    }
    let size = s.engine.log.segments.geometry.segment_blocks;
    for &seg in &claimed {
        let offset = s.engine.log.segments.geometry.addr(seg, 0).offset();
        d.write(&[WriteReq { offset, data: &vec![0xee; size as usize * BLOCK_SIZE] }]).unwrap();
    }
    claimed.into_iter().for_each(|seg| s.engine.log.segments.release(seg));
}

/// Judges what is left on a medium.
fn judge(m: &Model, told: &Told, left: &Arc<MemoryImage>, context: &str) {
    let d: Dev = Arc::new(left.fork().unwrap());
    let open = |how: &str| match Store::open(vec![d.clone()], &options()) {
        Ok((s, _)) => {
            m.check(&s, told, &format!("{context}, {how}"));
            s
        }
        Err(e) => panic!("{context}, {how}: {e}"),
    };
    let s = open("opened");
    scribble(&s, &*d);
    drop(s);
    let s = open("opened again");
    s.close().unwrap();
    drop(s);
    let report = fsck::check(vec![d.clone()], &FsckOptions { threads: 1, ..FsckOptions::default() }, &|_| ());
    assert_eq!(report.unwrap().problems, [], "{context}: fsck");
}

fn run(base: &Arc<MemoryImage>, h: History, refused: Refused) -> Outcome {
    let faulty = Arc::new(FaultyDevice::<MemoryDevice>::new(base.fork().unwrap(), Plan::none()));
    let d: Dev = faulty.clone();
    let (s, _) = Store::open(vec![d], &options()).unwrap();
    let mut w = Watcher::default();
    let fault = |kind, nth| Plan::none().nth(kind, nth, Fault::Error(libc::EIO));
    faulty.set_plan(match refused {
        Refused::Request(kind, nth) => fault(kind, nth),
        _ => Plan::none(),
    });
    if let Refused::Room { call, blocks } = refused {
        w.room = Some((call, blocks));
    }
    let (mut m, mut r) = (Model::new(&s), Rng::new(h.seed));
    let is_refused = |w: &Watcher| w.refused.get() || !faulty.fired().is_empty();
    let mut work = || -> Result<()> {
        m.crowd(&s, h.crowd, &w)?;
        for _ in 0..h.steps {
            m.step(&s, &mut r, &w)?;
            // What comes later may hide what is wrong.
            if refused.ends_it() && is_refused(&w) {
                break;
            }
        }
        Ok(())
    };
    let worked = work();
    let mut out = Outcome { calls: w.calls.get(), ..Outcome::default() };
    out.requests[0] = faulty.requests();
    let mut was_refused = is_refused(&w);
    assert!(worked.is_ok() || was_refused, "{:?}", worked.err());
    faulty.set_plan(Plan::none());
    let told = |w: &Watcher| Told::new(w.acked.borrow().iter().map(|s| &**s));
    if worked.is_ok() {
        m.check_now(&s, "at work");
    }
    scribble(&s, faulty.inner());
    let crashed = MemoryImage::capture(faulty.inner()).unwrap();
    if worked.is_ok() && !matches!(refused, Refused::WhenOpened(..)) {
        s.close().unwrap();
        drop(s);
        judge(&m, &told(&w), &MemoryImage::capture(faulty.inner()).unwrap(), "closed");
    }
    // Opening, and what is left of that.
    let plan = match refused {
        Refused::WhenOpened(kind, nth) => fault(kind, nth),
        _ => Plan::none(),
    };
    let opened = Arc::new(FaultyDevice::<MemoryDevice>::new(crashed.fork().unwrap(), plan));
    let first = Store::open(vec![opened.clone() as Dev], &options());
    out.requests[1] = opened.requests();
    was_refused |= !opened.fired().is_empty();
    assert!(first.is_ok() || was_refused, "{:?}", first.err());
    opened.set_plan(Plan::none());
    if let Ok((s, _)) = &first
        && s.healthy().is_ok()
    {
        m.check(s, &told(&w), "opened");
        scribble(s, opened.inner());
    }
    drop(first);
    judge(&m, &told(&w), &MemoryImage::capture(opened.inner()).unwrap(), "crashed");
    out.refused = was_refused;
    out
}

/// Runs one case; what is wrong with it.
fn fails(base: &Arc<MemoryImage>, h: History, refused: Refused) -> std::result::Result<Outcome, String> {
    catch_unwind(AssertUnwindSafe(|| run(base, h, refused))).map_err(|e| {
        let text = e.downcast_ref::<String>().cloned().or(e.downcast_ref::<&str>().map(|s| s.to_string()));
        format!("{h:?}, {refused:?}: {}", text.unwrap_or_default())
    })
}

/// Every case of a history, or one in so many of each kind. `LANEFS_FAULTS` says otherwise, 1 for
/// all; `LANEFS_FAULT` names one, as a failure prints it.
fn every_one(h: History, one_in: u64) {
    let one_in = std::env::var("LANEFS_FAULTS").ok().and_then(|s| s.parse().ok()).unwrap_or(one_in);
    let only = std::env::var("LANEFS_FAULT").ok();
    let base = MemoryImage::capture(&*fresh_with(h.bytes, h.copies)).unwrap();
    let all = run(&base, h, Refused::Nothing);
    let mut cases = Vec::new();
    for kind in [Kind::Read, Kind::Write, Kind::Flush] {
        let of = |requests: &[u64; 4]| requests[kind as usize];
        cases.extend((0..of(&all.requests[0])).map(|n| Refused::Request(kind, n)));
        cases.extend((0..of(&all.requests[1])).map(|n| Refused::WhenOpened(kind, n)));
    }
    let mut pick = Rng::new(h.seed);
    cases.retain(|c| match &only {
        Some(o) => format!("{c:?}") == *o,
        None => pick.below(one_in) == 0,
    });
    let (mut bad, mut refused, mut total) = (Vec::new(), 0, cases.len());
    let mut take = |r: std::result::Result<Outcome, String>| match r {
        Ok(o) => {
            refused += u64::from(o.refused);
            o.refused
        }
        Err(e) => {
            eprintln!("{e}");
            bad.push(e);
            true
        }
    };
    for c in cases {
        take(fails(&base, h, c));
    }
    // Of each call that makes checkpoints, room for no block, for one, and so on until it has
    // enough.
    for call in 0..all.calls {
        let mut blocks = 0;
        loop {
            let c = Refused::Room { call, blocks };
            if only.as_ref().is_none_or(|o| format!("{c:?}") == *o) {
                total += 1;
                if !take(fails(&base, h, c)) {
                    break;
                }
            } else if blocks > 2000 {
                break;
            }
            blocks += 1 + if only.is_none() { pick.below(one_in) as u32 } else { 0 };
        }
    }
    println!(
        "{h:?}: {:?} requests, {} calls; {total} cases, {refused} refused, {} bad",
        all.requests,
        all.calls,
        bad.len()
    );
    assert!(bad.is_empty(), "{} of {total} cases; the first: {}", bad.len(), bad[0]);
    assert!(refused > 0 || only.is_some());
}

#[test]
fn whatever_is_refused_once_while_room_is_short_costs_nothing_that_was_acknowledged() {
    every_one(History { bytes: 1_600 << 10, copies: 1, crowd: 0, steps: 100, seed: 1 }, 40);
}

#[test]
fn whatever_is_refused_once_on_a_volume_with_several_leaves_costs_nothing_that_was_acknowledged() {
    every_one(History { bytes: 6 << 20, copies: 1, crowd: 0, steps: 140, seed: 2 }, 40);
}

#[test]
fn whatever_is_refused_once_on_a_volume_with_two_copies_of_its_tree_costs_nothing_that_was_acknowledged() {
    every_one(History { bytes: 2 << 20, copies: 2, crowd: 0, steps: 100, seed: 4 }, 40);
}

#[test]
#[ignore = "takes minutes"]
fn whatever_is_refused_once_among_many_files_costs_nothing_that_was_acknowledged() {
    every_one(History { bytes: 16 << 20, copies: 1, crowd: 290, steps: 60, seed: 3 }, 120);
}
