//! Breadth first through all states of a program, crashing each.

use super::*;
use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// The findings of an exploration.
#[derive(Clone, Debug)]
pub struct Exploration {
    /// Distinct states.
    pub states: usize,
    /// No state was left out.
    pub exhausted: bool,
    /// The rule that was broken, and the steps that lead there.
    pub broken: Option<(String, Vec<String>)>,
}

/// A quick hash for the many small numbers of a state.
#[derive(Default)]
struct Quick(u64);

impl Hasher for Quick {
    fn finish(&self) -> u64 {
        let z = (self.0 ^ (self.0 >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        z ^ (z >> 32)
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }
    fn write_u8(&mut self, i: u8) {
        self.write_u64(u64::from(i));
    }
    fn write_u16(&mut self, i: u16) {
        self.write_u64(u64::from(i));
    }
    fn write_u64(&mut self, i: u64) {
        self.0 = lanefs_sync::random::spread(self.0.rotate_left(7) ^ i);
    }
    fn write_usize(&mut self, i: usize) {
        self.write_u64(i as u64);
    }
}

fn fingerprint(s: &State) -> u64 {
    let mut h = Quick::default();
    s.hash(&mut h);
    h.finish()
}

/// The names of the steps that these choices among the next states lead through.
fn names(p: &Program, m: Fault, choices: &[u16]) -> Vec<String> {
    let p = Program { named: true, ..p.clone() };
    let mut state = State::new(&p);
    let mut out = Vec::new();
    for &c in choices {
        let Some((label, next)) = state.next(&p, m).into_iter().nth(usize::from(c)) else { break };
        out.push(label);
        match next {
            Ok(s) => state = s,
            Err(_) => break,
        }
    }
    out
}

/// Explores up to `limit` states.
pub fn explore(p: &Program, m: Fault, limit: usize) -> Exploration {
    let first = State::new(p);
    let mut seen: HashSet<u64, BuildHasherDefault<Quick>> = HashSet::default();
    seen.insert(fingerprint(&first));
    // Of each state the one it was reached from, and which of its next states it is.
    let mut parents: Vec<(u32, u16)> = vec![(0, 0)];
    let mut queue = VecDeque::from([(0u32, first)]);
    let trace = |parents: &Vec<(u32, u16)>, mut at: u32| {
        let mut steps = Vec::new();
        while at != 0 {
            let (parent, step) = parents[at as usize];
            steps.push(step);
            at = parent;
        }
        steps.reverse();
        names(p, m, &steps)
    };
    while let Some((id, state)) = queue.pop_front() {
        for (nth, (_, next)) in state.next(p, m).into_iter().enumerate() {
            let wrong = match &next {
                Ok(s) => {
                    if !seen.insert(fingerprint(s)) {
                        continue;
                    }
                    // Only what changes the medium or what was promised changes what a crash
                    // leaves.
                    let same =
                        s.parts == state.parts && s.batches == state.batches && s.groups == state.groups;
                    if same { None } else { s.crash(p, m).err() }
                }
                Err(e) => Some(e.clone()),
            };
            let child = parents.len() as u32;
            parents.push((id, nth as u16));
            if let Some(e) = wrong {
                let steps = trace(&parents, child);
                return Exploration { states: seen.len(), exhausted: false, broken: Some((e, steps)) };
            }
            if let Ok(s) = next {
                queue.push_back((child, s));
            }
        }
        if seen.len() > limit {
            return Exploration { states: seen.len(), exhausted: false, broken: None };
        }
    }
    Exploration { states: seen.len(), exhausted: true, broken: None }
}

/// Looks for what a planted mistake breaks: all programs a little, then further.
pub fn hunt(m: Fault, limit: usize) -> Option<(String, Vec<String>)> {
    let all = super::programs::scripted();
    let mut least = 3_000;
    loop {
        if let Some(found) = all.iter().find_map(|p| explore(p, m, least.min(limit)).broken) {
            return Some(found);
        }
        if least >= limit {
            return None;
        }
        least *= 4;
    }
}
