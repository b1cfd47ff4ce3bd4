//! Which memory two recordings share with at least one write.

use super::trace::{Access, Recording, WRITE};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Bytes of a cache line, as it is counted.
pub const LINE: usize = 64;

/// Spreads line numbers; nobody chooses them to do harm.
#[derive(Default)]
pub struct LineHasher(u64);

impl Hasher for LineHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
}

/// A map by line.
pub type LineMap<T> = HashMap<usize, T, BuildHasherDefault<LineHasher>>;

#[derive(Clone, Copy, Default)]
struct Masks {
    read: [u64; 2],
    write: [u64; 2],
}

/// A shared place: two accesses, at least one of which writes.
#[derive(Clone, Copy, Debug)]
pub struct Conflict {
    /// The line.
    pub line: usize,
    /// They share a byte, not only the line.
    pub bytes: bool,
    /// The first lane's access.
    pub a: Access,
    /// The second lane's.
    pub b: Access,
}

/// The cache lines that two recordings share.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// Lines shared with a write; those with a common byte first.
    pub lines: Vec<(usize, bool)>,
}

impl Shared {
    /// Returns whether some byte is shared.
    pub fn by_bytes(&self) -> bool {
        self.lines.iter().any(|l| l.1)
    }
    /// Returns whether some line is shared.
    pub fn by_lines(&self) -> bool {
        !self.lines.is_empty()
    }
}

/// The parts of an access by line: line and the mask of its bytes.
pub fn parts(a: &Access) -> impl Iterator<Item = (usize, u64)> + use<> {
    let (start, end) = (a.addr, a.addr + a.size as usize);
    (start / LINE..end.div_ceil(LINE)).map(move |line| {
        let from = start.saturating_sub(line * LINE);
        let to = (end - line * LINE).min(LINE);
        (line, (u64::MAX >> (LINE - (to - from))) << from)
    })
}

/// Compares two recordings.
pub fn shared(a: &Recording, b: &Recording) -> Shared {
    let mut map: LineMap<Masks> = LineMap::default();
    for (who, r) in [a, b].into_iter().enumerate() {
        for x in &r.accesses {
            for (line, mask) in parts(x) {
                if who == 1 && !map.contains_key(&line) {
                    continue;
                }
                let m = map.entry(line).or_default();
                if x.kind & WRITE != 0 { m.write[who] |= mask } else { m.read[who] |= mask }
            }
        }
    }
    let mut lines: Vec<(usize, bool)> = map
        .into_iter()
        .filter_map(|(line, m)| {
            let all = [m.read[0] | m.write[0], m.read[1] | m.write[1]];
            let both = all[0] != 0 && all[1] != 0;
            let line_conflict = both && (m.write[0] | m.write[1]) != 0;
            line_conflict.then_some((line, m.write[0] & all[1] | m.write[1] & all[0] != 0))
        })
        .collect();
    lines.sort_by_key(|l| (!l.1, l.0));
    Shared { lines }
}

/// The accesses behind each shared line: for each, a writing pair if there is one, with a common
/// byte if there is one.
pub fn explain(a: &Recording, b: &Recording, shared: &Shared) -> Vec<Conflict> {
    let mut out = Vec::new();
    for &(line, bytes) in &shared.lines {
        let of = |r: &Recording| -> Vec<(Access, u64)> {
            let on = |x: &Access| parts(x).find(|p| p.0 == line).map(|p| p.1);
            r.accesses.iter().filter_map(|x| on(x).map(|m| (*x, m))).collect()
        };
        let (xs, ys) = (of(a), of(b));
        let pairs = xs.iter().flat_map(|x| ys.iter().map(move |y| (x, y)));
        let best = pairs
            .filter(|(x, y)| (x.0.kind | y.0.kind) & WRITE != 0 && (!bytes || x.1 & y.1 != 0))
            .max_by_key(|(x, y)| (x.0.kind & WRITE) + (y.0.kind & WRITE));
        if let Some((x, y)) = best {
            out.push(Conflict { line, bytes, a: x.0, b: y.0 });
        }
    }
    out
}
