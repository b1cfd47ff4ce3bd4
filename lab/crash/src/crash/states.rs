//! From the log of a recording to the contents the medium may have after a crash: the levels L1 to
//! L3.
//!
//! # The fault model
//!
//! 1. The crash comes at an *instant* between two events of the log. A write issued later is not
//!    there.
//! 2. A write that was answered before a flush of its device was *issued*, and that flush was
//!    answered before the instant, is there. A write answered while a flush was out is not covered
//!    by it.
//! 3. Of every other write any subset of its 512-byte sectors is there, independent of all other
//!    writes. Where two of them overlap, either may lie above.
//! 4. A discard leaves zeros or what was there.
//! 5. Each device fails by itself: a flush covers the writes of its own device only.
//!
//! Writes are taken apart into blocks of 4 KiB, so that a submission of many blocks may arrive in
//! any part. At an instant with `n` volatile blocks:
//!
//! - L1, at every event: all blocks answered so far are there and no other.
//! - L2, before the answer of each flush, at each answer to the program, and at the end: every
//!   subset if `n <= 8`; otherwise none, all, each alone, each missing, pairs missing, prefixes in
//!   order of issue, and seeded samples.
//! - L3, at the same instants: one block torn after each of its sectors and at random, with all
//!   others there and with none.

use super::image::{BLOCK, Image, Shared};
use lanefs_lab_model::generate::Rng;
use lanefs_store::device::{Crash, Log, Payload};
use std::sync::Arc;

/// The number of states to try.
#[derive(Clone, Copy, Debug)]
pub struct Levels {
    /// Every subset up to so many volatile blocks.
    pub all_subsets: usize,
    /// Seeded subsets beyond that.
    pub samples: usize,
    /// The number of volatile blocks to tear at an instant; 0: no tears.
    pub tears: usize,
    /// Of how many blocks every two are missing together, where not every subset is tried.
    pub pairs: usize,
    /// If not every subset is tried: each block alone, each missing, and every prefix; without it
    /// none of these, and no crash at the other instants.
    pub each: bool,
    /// For the samples.
    pub seed: u64,
}

impl Levels {
    /// Little more than CrashMonkey does: what was answered, what is durable, all, and one random
    /// subset. For so many workloads that more of each would take days.
    pub const BRIEF: Levels = Levels { all_subsets: 1, samples: 1, tears: 0, pairs: 0, each: false, seed: 1 };
    /// A first look: the whole run in few states.
    pub const QUICK: Levels = Levels { all_subsets: 4, samples: 2, tears: 1, pairs: 0, each: true, seed: 1 };
    /// For runs of a few minutes.
    pub const SHORT: Levels =
        Levels { all_subsets: 6, samples: 12, tears: 4, pairs: 12, each: true, seed: 1 };
    /// For runs of hours.
    pub const LONG: Levels =
        Levels { all_subsets: 8, samples: 64, tears: 16, pairs: 12, each: true, seed: 1 };
}

/// One volatile block: where it belongs and what it holds.
#[derive(Clone, Debug)]
struct Piece {
    device: usize,
    block: usize,
    bytes: Arc<Shared>,
}

/// The blocks of each write of a log.
fn pieces(log: &Log) -> Vec<Vec<Piece>> {
    let zeros = Shared::new([0; BLOCK]);
    let of_write = |w: &lanefs_store::device::WriteRecord| {
        let n = w.payload.len() as usize / BLOCK;
        let piece = |i: usize| {
            let bytes = match &w.payload {
                Payload::Bytes(b) => {
                    let mut block = [0; BLOCK];
                    block.copy_from_slice(&b[i * BLOCK..(i + 1) * BLOCK]);
                    Shared::new(block)
                }
                Payload::Discard(_) => zeros.clone(),
            };
            Piece { device: w.device, block: w.offset as usize / BLOCK + i, bytes }
        };
        (0..n).map(piece).collect()
    };
    log.writes.iter().map(of_write).collect()
}

/// [`State::how`] of the state in which all writes that were answered are there, and no other.
pub const WHAT_WAS_ANSWERED: &str = "what was answered";

/// A content of all devices, and how it came about.
#[derive(Clone, Debug)]
pub struct State {
    /// The devices.
    pub devices: Vec<Image>,
    /// The instant of the crash.
    pub at: u64,
    /// In words: what of the volatile blocks is there.
    pub how: String,
    /// If all that was answered is there and nothing else, as when only the process died: what the
    /// medium holds for certain, and what lies in the volatile caches, in order: device, block and
    /// content.
    pub cached: Option<Cached>,
}

/// The durable content of each device, and the blocks that are only in the caches.
pub type Cached = (Vec<Image>, Vec<(usize, usize, Arc<Shared>)>);

impl State {
    /// Tells states apart.
    pub fn hash(&self) -> u64 {
        self.devices.iter().fold(0, |h, d| h.rotate_left(17).wrapping_mul(31) ^ d.hash())
    }
}

/// Calls `visit` with every state of a log at the levels asked for, in order of the instant, until
/// it answers false. `bases` is what the devices held before the log, `answers` the instants at
/// which the program had an answer; crashes before `from` are left out.
pub fn enumerate(
    log: &Log,
    bases: &[Image],
    answers: &[u64],
    from: u64,
    levels: &Levels,
    visit: &mut dyn FnMut(State) -> bool,
) {
    let blocks = pieces(log);
    let mut durable = bases.to_vec();
    let mut applied = vec![false; log.writes.len()];
    let mut instants: Vec<(u64, bool)> = Vec::new();
    for w in &log.writes {
        instants.extend(w.completed.map(|c| (c + 1, false)));
    }
    for f in &log.flushes {
        instants.extend(f.completed.map(|c| (c, true)));
        instants.extend(f.completed.map(|c| (c + 1, false)));
    }
    instants.extend(answers.iter().map(|a| (a + 1, true)));
    instants.push((log.now, true));
    instants.sort_by_key(|(at, deep)| (*at, !deep));
    instants.dedup_by_key(|i| i.0);
    if !levels.each {
        // All others come before an answer or behind the last.
        instants.retain(|(_, deep)| *deep);
    }
    for (at, deep) in instants {
        let crash = Crash::new(log, at);
        for &w in crash.durable() {
            if !std::mem::replace(&mut applied[w], true) {
                for p in &blocks[w] {
                    durable[p.device].put_shared(p.block, p.bytes.clone());
                }
            }
        }
        if at < from {
            continue;
        }
        let all: Vec<&Piece> = crash.pending().iter().flat_map(|w| &blocks[*w]).collect();
        let answered: Vec<bool> = crash
            .pending()
            .iter()
            .flat_map(|w| {
                let done = log.writes[*w].completed.is_some_and(|c| c < at);
                blocks[*w].iter().map(move |_| done)
            })
            .collect();
        let build = |keep: &dyn Fn(usize) -> u8, how: String| {
            let mut devices = durable.clone();
            for (i, p) in all.iter().enumerate() {
                match keep(i) {
                    0 => {}
                    0xff => devices[p.device].put_shared(p.block, p.bytes.clone()),
                    sectors => devices[p.device].put(p.block, p.bytes.bytes(), sectors),
                }
            }
            State { devices, at, how, cached: None }
        };
        let whole = |b: bool| if b { 0xff } else { 0 };
        let mut alive = build(&|i| whole(answered[i]), WHAT_WAS_ANSWERED.into());
        let cached = all.iter().zip(&answered).filter(|(_, a)| **a);
        let cached: Vec<_> = cached.map(|(p, _)| (p.device, p.block, p.bytes.clone())).collect();
        if !cached.is_empty() {
            alive.cached = Some((durable.clone(), cached));
        }
        if !visit(alive) {
            return;
        }
        if deep && !deeply(all.len(), at, levels, &build, visit) {
            return;
        }
    }
}

/// Makes a state from the sectors to keep of each volatile block.
type Build<'a> = dyn Fn(&dyn Fn(usize) -> u8, String) -> State + 'a;

/// L2 and L3 at one instant with `n` volatile blocks.
fn deeply(
    n: usize,
    at: u64,
    levels: &Levels,
    build: &Build<'_>,
    visit: &mut dyn FnMut(State) -> bool,
) -> bool {
    let whole = |b: bool| if b { 0xff } else { 0 };
    let mut rng = Rng::new(levels.seed ^ at.wrapping_mul(0x1234_5678_9abc_def1));
    if n <= levels.all_subsets {
        for set in 0..1u32 << n {
            let how = format!("of {n} volatile blocks the set {set:#b}");
            if !visit(build(&|i| whole(set >> i & 1 == 1), how)) {
                return false;
            }
        }
    } else {
        let mut go = |keep: &dyn Fn(usize) -> bool, how: String| visit(build(&|i| whole(keep(i)), how));
        if !go(&|_| false, format!("none of {n} volatile blocks"))
            || !go(&|_| true, format!("all {n} blocks"))
        {
            return false;
        }
        for k in 0..if levels.each { n } else { 0 } {
            if !go(&|i| i == k, format!("of {n} volatile blocks only number {k}"))
                || !go(&|i| i != k, format!("all but number {k} of {n} volatile blocks"))
                || !go(&|i| i < k, format!("the first {k} of {n} volatile blocks"))
            {
                return false;
            }
        }
        for k in 0..n.min(levels.pairs) {
            for l in 0..k {
                let (k, l) = (n - 1 - k, n - 1 - l);
                if !go(&|i| i != k && i != l, format!("all but {k} and {l} of {n} volatile blocks")) {
                    return false;
                }
            }
        }
        for _ in 0..levels.samples {
            let bits: Vec<u64> = (0..n.div_ceil(64)).map(|_| rng.bits()).collect();
            let how = format!("of {n} volatile blocks the random set {bits:x?}");
            if !go(&|i| bits[i / 64] >> (i % 64) & 1 == 1, how) {
                return false;
            }
        }
    }
    for t in 0..n.min(levels.tears) {
        let k = if n <= levels.tears { t } else { rng.below(n as u64) as usize };
        let mut masks: Vec<u8> = (1..8).map(|s| (1u8 << s) - 1).collect();
        masks.extend([rng.bits() as u8, !1]);
        for m in masks {
            for others in [true, false] {
                let how = format!(
                    "sectors {m:#010b} of block {k} of {n} volatile ones, {} of the others",
                    if others { "all" } else { "none" }
                );
                if !visit(build(&|i| if i == k { m } else { whole(others) }, how)) {
                    return false;
                }
            }
        }
    }
    true
}

/// Puts these writes of the log, whole and in this order, onto the images.
pub fn apply_whole(log: &Log, writes: &[usize], images: &mut [Image]) {
    for w in writes.iter().filter_map(|w| log.writes.get(*w)) {
        for i in 0..w.payload.len() as usize / BLOCK {
            let at = w.offset as usize / BLOCK + i;
            match &w.payload {
                Payload::Bytes(b) => images[w.device].put(at, &b[i * BLOCK..(i + 1) * BLOCK], 0xff),
                Payload::Discard(_) => images[w.device].put(at, &[0; BLOCK], 0xff),
            }
        }
    }
}
