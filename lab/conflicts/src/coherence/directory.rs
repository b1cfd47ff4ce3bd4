//! A directory of private caches without limit: MESI, line by line.

use crate::conflicts::overlap::LineMap;
use crate::conflicts::trace::{Access, WRITE};

/// The machine's shape and what a line's way costs. What is assumed if nobody says otherwise is a
/// Xeon E7 of ten cores at 2.13 GHz: 109 cycles for a line that another core of the socket has
/// changed, 289 from the next socket (David, Guerraoui, Trigonakis, SOSP'13, table 2).
#[derive(Clone, Copy, Debug, serde::Serialize, clap::Args)]
pub struct Costs {
    /// Nanoseconds to fetch a line from a core of the same socket
    #[arg(long = "near", value_name = "NS", default_value_t = 51.0)]
    pub near_ns: f64,
    /// Nanoseconds to fetch it from another socket
    #[arg(long = "far", value_name = "NS", default_value_t = 136.0)]
    pub far_ns: f64,
    /// Cores of a socket; lanes fill one socket after the other
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    pub socket: usize,
}

fn at_least_one(word: &str) -> Result<usize, String> {
    word.parse::<usize>().map(|n| n.max(1)).map_err(|e| e.to_string())
}

impl Costs {
    fn between(&self, a: usize, b: usize) -> f64 {
        if a / self.socket == b / self.socket { self.near_ns } else { self.far_ns }
    }
}

/// Some of up to 256 caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Caches([u128; 2]);

impl Caches {
    fn one(cache: usize) -> Caches {
        let mut one = Caches::default();
        one.0[cache / 128] = 1 << (cache % 128);
        one
    }
    fn has(self, cache: usize) -> bool {
        self.0[cache / 128] >> (cache % 128) & 1 == 1
    }
    fn with(self, other: Caches) -> Caches {
        Caches([self.0[0] | other.0[0], self.0[1] | other.0[1]])
    }
    fn without(self, other: Caches) -> Caches {
        Caches([self.0[0] & !other.0[0], self.0[1] & !other.0[1]])
    }
    fn is_empty(self) -> bool {
        self == Caches::default()
    }
    fn all(self) -> impl Iterator<Item = usize> {
        (0..256).filter(move |n| self.has(*n))
    }
}

/// The state of a cache line: the caches that hold it, and its transfers.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// Lanes whose caches hold it.
    holders: Caches,
    /// Lanes that ever held it: a first read of what nobody has changed since is a miss on one core
    /// too, and not counted.
    known: Caches,
    /// The lane that holds it alone and may have changed it.
    owner: Option<u8>,
    dirty: bool,
    /// Transfers that follow each other: each needs the line to leave where it was changed, or
    /// every other copy to go.
    pub serial: u64,
    /// Nanoseconds those took.
    pub busy_ns: f64,
    /// Copies of a line that nobody changed: caches serve them side by side.
    pub copies: u64,
    /// The last write, and the access that first made the line travel after one.
    last_write: Option<Access>,
    /// The two accesses of the first transfer.
    pub cause: Option<[Access; 2]>,
}

/// All lines.
#[derive(Debug, Default)]
pub struct Directory {
    lines: LineMap<Line>,
    /// The lane of the background, if there is one.
    pub background: Option<usize>,
    /// Nanoseconds that all operations waited for lines.
    pub waited_ns: f64,
    /// Nanoseconds that the background waited for lines.
    pub background_waited_ns: f64,
}

impl Directory {
    /// Lane `lane` touches `line`.
    pub fn touch(&mut self, lane: usize, line: usize, access: &Access, costs: &Costs) {
        let l = self.lines.entry(line).or_default();
        let (me, write) = (Caches::one(lane), access.kind & WRITE != 0);
        let others = l.holders.without(me);
        let mine = l.holders.has(lane);
        let has_others = !others.is_empty();
        // From the owner, or from the farthest holder: all of them have to answer.
        let from = |l: &Line| match l.owner {
            Some(o) => costs.between(o.into(), lane),
            None => others.all().map(|n| costs.between(n, lane)).fold(0.0, f64::max),
        };
        let waited = match self.background == Some(lane) {
            true => &mut self.background_waited_ns,
            false => &mut self.waited_ns,
        };
        let serial = if write { has_others } else { !mine && l.owner.is_some() && l.dirty };
        if serial {
            let ns = from(l);
            l.serial += 1;
            l.busy_ns += ns;
            *waited += ns;
            if l.cause.is_none() {
                l.cause = Some([l.last_write.unwrap_or(*access), *access]);
            }
        } else if !mine && has_others && l.known.has(lane) {
            let ns = from(l);
            l.copies += 1;
            *waited += ns;
        }
        l.known = l.known.with(me);
        if write {
            (l.holders, l.owner, l.dirty) = (me, Some(lane as u8), true);
            l.last_write = Some(*access);
        } else if !mine {
            l.holders = l.holders.with(me);
            // The first reader has it alone; the second leaves it shared and clean.
            (l.owner, l.dirty) = if has_others { (None, false) } else { (Some(lane as u8), false) };
        }
    }

    /// Forgets the counts, not the caches.
    pub fn begin(&mut self) {
        (self.waited_ns, self.background_waited_ns) = (0.0, 0.0);
        for l in self.lines.values_mut() {
            (l.serial, l.busy_ns, l.copies, l.cause) = (0, 0.0, 0, None);
        }
    }

    /// The lines that travelled, with their numbers.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &Line)> {
        self.lines.iter().filter(|l| l.1.serial + l.1.copies > 0).map(|(n, l)| (*n, l))
    }

    /// The lines that travelled, the busiest first.
    pub fn travelled(&self) -> Vec<(usize, &Line)> {
        let mut all: Vec<_> = self.lines().collect();
        all.sort_by(|a, b| b.1.busy_ns.total_cmp(&a.1.busy_ns).then(a.0.cmp(&b.0)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(steps: &[(usize, bool)]) -> (u64, u64, f64) {
        let mut d = Directory::default();
        let costs = Costs { near_ns: 1.0, far_ns: 10.0, socket: 2 };
        for (lane, write) in steps {
            d.touch(*lane, 7, &Access::example(7 * 64, u16::from(*write) * WRITE), &costs);
        }
        let l = &d.lines[&7];
        (l.serial, l.copies, d.waited_ns)
    }

    #[test]
    fn what_the_background_waits_for_is_counted_apart() {
        let mut d = Directory { background: Some(128), ..Directory::default() };
        let costs = Costs { near_ns: 1.0, far_ns: 10.0, socket: 2 };
        for (lane, kind) in [(0, WRITE), (128, WRITE), (0, WRITE), (0, WRITE), (127, WRITE)] {
            d.touch(lane, 7, &Access::example(7 * 64, kind), &costs);
        }
        assert_eq!((d.background_waited_ns, d.waited_ns, d.lines[&7].serial), (10.0, 20.0, 3));
    }

    #[test]
    fn lines_travel_as_mesi_says() {
        // Alone: nothing travels. First reads of what nobody changed: not counted.
        assert_eq!(run(&[(0, false), (0, true), (0, true)]), (0, 0, 0.0));
        assert_eq!(run(&[(0, false), (1, false), (1, false), (0, false)]), (0, 0, 0.0));
        // A write takes the line from all others; a read after it brings it back, the next reader
        // that lost it copies.
        assert_eq!(run(&[(0, false), (1, false), (0, true)]), (1, 0, 1.0));
        assert_eq!(run(&[(0, false), (1, false), (1, true), (0, false), (1, false)]), (2, 0, 2.0));
        let both = [(0, false), (1, false), (3, true), (0, false), (1, false)];
        assert_eq!(run(&both), (2, 1, 10.0 + 10.0 + 10.0));
        assert_eq!(run(&[(0, true), (1, false), (0, false)]), (1, 0, 1.0));
        assert_eq!(run(&[(0, true), (1, true), (0, true), (1, true)]), (3, 0, 3.0));
        // The next socket is farther; of several holders the farthest counts.
        assert_eq!(run(&[(0, true), (2, true)]), (1, 0, 10.0));
        assert_eq!(run(&[(0, false), (1, false), (2, false), (0, true)]), (1, 0, 10.0));
    }
}
