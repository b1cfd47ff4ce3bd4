//! From a recording to the contents of the medium that are judged.
//!
//! The fault model is that of [`crate::crash::states`]. That enumerates every event of a short
//! script; a recording has thousands of flushes, so here the moments that can show a loss are
//! taken, as many as there is time for:
//!
//! - before the answer of a flush, when most is volatile; after it, when most became durable; and
//!   after each word of a worker;
//! - at each of them: nothing that is volatile, all that was answered, and seeded parts of the
//!   volatile blocks, one of which may be torn.
//!
//! Images apply what is there in the order of issue: an older write that became durable, or
//! survived, after a newer one of the same block lies under it.

use super::record::Recording;
use crate::crash::image::{BLOCK, Image, Shared};
use lanefs_lab_model::generate::Rng;
use lanefs_store::device::{Crash, Payload};
use std::collections::HashMap;

/// A content of the medium.
#[derive(Debug)]
pub struct State {
    /// It.
    pub image: Image,
    /// The instant of the crash.
    pub at: u64,
    /// The part of the volatile blocks that is there, in words.
    pub how: String,
}

/// The choice of the volatile blocks that a state has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Nothing volatile.
    Durable,
    /// The volatile blocks that were answered.
    Answered,
    /// Part of the volatile blocks, from this seed.
    Part(u64),
}

/// Which moments to try.
#[derive(Debug)]
pub struct Plan(Vec<(u64, Kind)>);

impl Plan {
    /// About `most` states of a recording, from the first "ready" on, in order of their instants.
    pub fn new(recording: &Recording, most: usize, rng: &mut Rng) -> Plan {
        let log = &recording.log;
        let from = log.marks.iter().find(|(_, m)| m.ends_with(" ready")).map_or(log.now, |(at, _)| *at);
        let mut all: Vec<(u64, Kind)> = Vec::new();
        for f in &log.flushes {
            let Some(done) = f.completed.filter(|c| *c > from) else { continue };
            all.push((done + 1, Kind::Durable));
            for n in 0..3 {
                all.push((done, Kind::Part(rng.bits() << 2 | n)));
            }
        }
        for (at, _) in log.marks.iter().filter(|(at, _)| *at >= from) {
            all.push((at + 1, Kind::Durable));
            all.push((at + 1, Kind::Answered));
            all.push((at + 1, Kind::Part(rng.bits())));
        }
        while all.len() > most {
            let out = rng.below(all.len() as u64) as usize;
            all.swap_remove(out);
        }
        all.sort_unstable();
        Plan(all)
    }

    /// States to come.
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Calls `visit` with every `of`th state from the `first` on, in order of the instants, until
    /// it answers false.
    pub fn visit(
        &self,
        recording: &Recording,
        (first, of): (usize, usize),
        visit: &mut dyn FnMut(State) -> bool,
    ) {
        let mut medium = Medium::new(recording);
        for (at, kind) in self.0.iter().skip(first).step_by(of) {
            let crash = Crash::new(&recording.log, *at);
            medium.advance(&crash);
            if !visit(medium.state(&crash, *kind)) {
                return;
            }
        }
    }
}

/// The durable content of the device, as it moves forward in time.
struct Medium<'a> {
    recording: &'a Recording,
    durable: Image,
    applied: Vec<bool>,
    /// The write that each durable block comes from.
    top: HashMap<usize, usize>,
}

impl<'a> Medium<'a> {
    fn new(recording: &'a Recording) -> Medium<'a> {
        let applied = vec![false; recording.log.writes.len()];
        Medium { recording, durable: recording.base.clone(), applied, top: HashMap::new() }
    }

    /// The blocks of a write, with their place.
    fn blocks(&self, write: usize) -> impl Iterator<Item = (usize, [u8; BLOCK])> + use<'a> {
        let w = &self.recording.log.writes[write];
        (0..w.payload.len() as usize / BLOCK).map(|i| {
            let mut block = [0; BLOCK];
            if let Payload::Bytes(b) = &w.payload {
                block.copy_from_slice(&b[i * BLOCK..(i + 1) * BLOCK]);
            }
            (w.offset as usize / BLOCK + i, block)
        })
    }

    /// Takes in what is durable now.
    fn advance(&mut self, crash: &Crash<'_>) {
        for &w in crash.durable() {
            if std::mem::replace(&mut self.applied[w], true) {
                continue;
            }
            for (block, bytes) in self.blocks(w) {
                if self.top.get(&block).is_none_or(|t| *t < w) {
                    self.top.insert(block, w);
                    self.durable.put_shared(block, Shared::new(bytes));
                }
            }
        }
    }

    fn state(&self, crash: &Crash<'_>, kind: Kind) -> State {
        let mut image = self.durable.clone();
        let log = &self.recording.log;
        let mut rng = Rng::new(if let Kind::Part(seed) = kind { seed } else { 0 });
        // How likely a block is there: half, few are missing, few are there, or a prefix in order
        // of issue.
        let (style, cut) = (rng.below(5), rng.below(crash.pending().len() as u64 + 1) as usize);
        let torn = rng.one_in(3);
        let (mut there, mut of) = (0, 0);
        for (place, &w) in crash.pending().iter().enumerate() {
            let answered = log.writes[w].completed.is_some_and(|c| c < crash.at());
            for (block, bytes) in self.blocks(w) {
                of += 1;
                let keep = match (kind, style) {
                    (Kind::Durable, _) => false,
                    (Kind::Answered, _) => answered,
                    (_, 0 | 1) => rng.one_in(2),
                    (_, 2) => !rng.one_in(8),
                    (_, 3) => rng.one_in(8),
                    _ => place < cut,
                };
                if !keep || self.top.get(&block).is_some_and(|t| *t > w) {
                    continue;
                }
                there += 1;
                let tear = torn && matches!(kind, Kind::Part(_)) && rng.one_in(6);
                match tear {
                    true => image.put(block, &bytes, rng.bits() as u8),
                    false => image.put_shared(block, Shared::new(bytes)),
                }
            }
        }
        State { image, at: crash.at(), how: format!("{kind:?}, {there} of {of} volatile blocks") }
    }
}
