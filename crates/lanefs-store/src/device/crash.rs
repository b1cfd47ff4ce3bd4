//! The contents that the medium may have after a crash, from the log of a recording.
//!
//! The crash happens at an *instant* of the log. A write is then one of:
//! 1. *unborn*: issued at or after the instant; it is not on the medium;
//! 2. *durable*: answered before a flush of its device was issued, and that flush was answered
//!    before the instant; it is on the medium whole;
//! 3. *pending*: all others; any subset of its 512-byte sectors is on the medium, independent of
//!    all other writes.
//!
//! Images apply what is on the medium in the order of issue. This leaves out no content that a
//! sector can have: whatever hides a pending sector under a later pending one is the same as
//! leaving the later one out. A discard is a pending or durable write of zeros, and may always be
//! left out, since it is a hint.

use lanefs_sync::random::Rng;
use std::sync::Arc;

use super::memory::{MemoryDevice, MemoryImage};
use super::recording::{Log, Payload, WriteRecord};
use crate::error::{Result, StoreError};

/// Bytes that a device writes whole or not at all.
pub const SECTOR: u64 = 512;
const _: () = assert!((lanefs_format::BLOCK_SIZE as u64).is_multiple_of(SECTOR));

/// The fate of one pending write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing of it is on the medium.
    Lost,
    /// All of it is.
    Whole,
    /// Its first so many sectors are.
    Prefix(u64),
    /// Sector `i` is if bit `i % 64` of word `i / 64` is set.
    Sectors(Vec<u64>),
}

impl Fate {
    fn has(&self, sector: u64) -> bool {
        match self {
            Fate::Lost => false,
            Fate::Whole => true,
            Fate::Prefix(n) => sector < *n,
            Fate::Sectors(bits) => {
                bits.get((sector / 64) as usize).is_some_and(|w| w >> (sector % 64) & 1 == 1)
            }
        }
    }
}

/// A crash at an instant of a log.
#[derive(Debug)]
pub struct Crash<'a> {
    log: &'a Log,
    at: u64,
    /// Indices into `log.writes`.
    durable: Vec<usize>,
    pending: Vec<usize>,
}

impl<'a> Crash<'a> {
    /// Returns the crash just before event `at` of `log`; `log.now` is the crash after everything.
    pub fn new(log: &'a Log, at: u64) -> Crash<'a> {
        // Of the flushes of a device that were answered in time, the one issued last covers the
        // most.
        let mut last_flush: Vec<u64> = Vec::new();
        for f in log.flushes.iter().filter(|f| f.completed.is_some_and(|c| c < at)) {
            if last_flush.len() <= f.device {
                last_flush.resize(f.device + 1, 0);
            }
            last_flush[f.device] = last_flush[f.device].max(f.issued);
        }
        let (mut durable, mut pending) = (Vec::new(), Vec::new());
        for (i, w) in log.writes.iter().enumerate().filter(|(_, w)| w.issued < at) {
            let flush = last_flush.get(w.device).copied().unwrap_or(0);
            if w.completed.is_some_and(|done| done < flush) { durable.push(i) } else { pending.push(i) }
        }
        Crash { log, at, durable, pending }
    }

    /// Returns all instants at which the set of durable or pending writes, or what was promised,
    /// differs from the instant before: after each event.
    pub fn instants(log: &Log) -> impl Iterator<Item = u64> + use<> {
        0..=log.now
    }

    /// Returns the instant.
    pub fn at(&self) -> u64 {
        self.at
    }
    /// Returns the writes that are on the medium, as indices into the log's writes.
    pub fn durable(&self) -> &[usize] {
        &self.durable
    }
    /// Returns the writes that may be on the medium, as indices into the log's writes.
    pub fn pending(&self) -> &[usize] {
        &self.pending
    }
    /// Returns the marks made before the crash: what was promised by then.
    pub fn marks(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let at = self.at;
        self.log.marks.iter().take_while(move |(m, _)| *m < at).map(|(_, text)| &**text)
    }

    /// Returns the devices after the crash. `bases` is what they held before the log began, in the
    /// recorder's order; `fate` decides for each pending write, given its place among
    /// [`Crash::pending`].
    pub fn build(
        &self,
        bases: &[Arc<MemoryImage>],
        mut fate: impl FnMut(usize, &WriteRecord) -> Fate,
    ) -> Result<Vec<MemoryDevice>> {
        debug_assert!(self.durable.is_sorted() && self.pending.is_sorted(), "in the order of issue");
        let devices = bases.iter().map(|b| b.fork()).collect::<Result<Vec<_>>>()?;
        let (mut durable, mut pending) =
            (self.durable.iter().peekable(), self.pending.iter().enumerate().peekable());
        loop {
            // Both lists are sorted: merge them into the order of issue.
            let next_durable = durable.peek().map_or(usize::MAX, |i| **i);
            let next_pending = pending.peek().map_or(usize::MAX, |(_, i)| **i);
            let (i, fate) = if next_durable < next_pending {
                durable.next();
                (next_durable, Fate::Whole)
            } else if let Some((place, &i)) = pending.next() {
                (i, fate(place, &self.log.writes[i]))
            } else {
                return Ok(devices);
            };
            let w = &self.log.writes[i];
            debug_assert!(w.issued < self.at, "write {i} was issued after the crash at {}", self.at);
            let device = devices.get(w.device).ok_or_else(|| {
                StoreError::Invalid(format!(
                    "the log names device {}, but {} images were given",
                    w.device,
                    bases.len()
                ))
            })?;
            apply(device, w, &fate)?;
        }
    }

    /// Returns the devices with each pending write whole (bit set) or lost, for [`subsets`].
    pub fn build_subset(&self, bases: &[Arc<MemoryImage>], subset: &[bool]) -> Result<Vec<MemoryDevice>> {
        self.build(
            bases,
            |place, _| {
                if subset.get(place).copied().unwrap_or(false) { Fate::Whole } else { Fate::Lost }
            },
        )
    }

    /// Returns the devices with pending writes lost, whole, cut off or torn in pieces, as `seed`
    /// decides.
    pub fn build_random(&self, bases: &[Arc<MemoryImage>], seed: u64) -> Result<Vec<MemoryDevice>> {
        let mut r = Rng::at(seed);
        self.build(bases, |_, w| {
            let sectors = w.payload.len().div_ceil(SECTOR);
            match r.bits() % 8 {
                0..=2 => Fate::Lost,
                3..=5 => Fate::Whole,
                6 => Fate::Prefix(r.bits() % (sectors + 1)),
                _ => Fate::Sectors((0..sectors.div_ceil(64)).map(|_| r.bits()).collect()),
            }
        })
    }
}

fn apply(d: &MemoryDevice, w: &WriteRecord, fate: &Fate) -> Result<()> {
    let len = w.payload.len();
    let put = |from: u64, to: u64| match &w.payload {
        Payload::Bytes(b) => d.poke(w.offset + from, &b[from as usize..to as usize]),
        Payload::Discard(_) => (from..to)
            .step_by(4096)
            .try_for_each(|at| d.poke(w.offset + at, &[0; 4096][..(to - at).min(4096) as usize])),
    };
    match fate {
        Fate::Lost => Ok(()),
        Fate::Whole => put(0, len),
        _ => (0..len.div_ceil(SECTOR))
            .filter(|&s| fate.has(s))
            .try_for_each(|s| put(s * SECTOR, ((s + 1) * SECTOR).min(len))),
    }
}

/// Returns subsets of `n` pending writes: all of them if there are at most `limit`, otherwise none,
/// all, each alone, each missing, each prefix in order of issue, and random ones, `limit` in total.
pub fn subsets(n: usize, limit: usize, seed: u64) -> Box<dyn Iterator<Item = Vec<bool>>> {
    if n < 20 && 1 << n <= limit {
        return Box::new((0..1u32 << n).map(move |bits| (0..n).map(|i| bits >> i & 1 == 1).collect()));
    }
    let mut r = Rng::at(seed);
    let fixed = [vec![false; n], vec![true; n]].into_iter();
    let alone = (0..n).map(move |k| (0..n).map(|i| i == k).collect());
    let missing = (0..n).map(move |k| (0..n).map(|i| i != k).collect());
    let prefixes = (1..n).map(move |k| (0..n).map(|i| i < k).collect());
    let random = std::iter::repeat_with(move || (0..n).map(|_| r.bits() & 1 == 0).collect());
    Box::new(fixed.chain(alone).chain(missing).chain(prefixes).chain(random).take(limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, Recorder, RecordingDevice, WriteReq};

    fn write(d: &dyn Device, block: u64, fill: u8) {
        d.write(&[WriteReq { offset: block * 4096, data: &[fill; 4096] }]).unwrap();
    }

    fn byte(d: &MemoryDevice, at: u64) -> u8 {
        let mut b = [0];
        d.peek(at, &mut b).unwrap();
        b[0]
    }

    fn recorded() -> (RecordingDevice<MemoryDevice>, Arc<MemoryImage>) {
        let d = MemoryDevice::new(1 << 16).unwrap();
        d.poke(15 * 4096, &[99; 4096]).unwrap();
        let base = MemoryImage::capture(&d).unwrap();
        (RecordingDevice::new(d), base)
    }

    #[test]
    fn only_a_flush_issued_after_the_answer_makes_durable() {
        let (d, base) = recorded();
        write(&d, 0, 1); // events 0, 1
        d.flush().unwrap(); // 2, 3
        write(&d, 1, 2); // 4, 5
        let log = d.recorder().log();
        let sets = |at| {
            let c = Crash::new(&log, at);
            (c.durable().to_vec(), c.pending().to_vec())
        };
        assert_eq!(sets(0), (vec![], vec![]));
        for at in 1..=3 {
            assert_eq!(sets(at), (vec![], vec![0]), "{at}");
        }
        assert_eq!(sets(4), (vec![0], vec![]));
        assert_eq!(sets(log.now), (vec![0], vec![1]));
        let c = Crash::new(&log, log.now);
        let after = c.build(std::slice::from_ref(&base), |_, _| Fate::Lost).unwrap();
        assert_eq!([byte(&after[0], 0), byte(&after[0], 4096), byte(&after[0], 15 * 4096)], [1, 0, 99]);
        assert!(c.build(&[], |_, _| Fate::Lost).is_err());
    }

    #[test]
    fn a_write_that_is_out_during_a_flush_is_not_covered() {
        let (d, _) = recorded();
        write(&d, 0, 1);
        d.flush().unwrap();
        let mut log = d.recorder().log();
        // The answer came while the flush was out.
        log.writes[0].completed = Some(2);
        log.flushes[0].issued = 1;
        assert_eq!(Crash::new(&log, log.now).pending(), [0]);
        // Or never.
        log.writes[0].completed = None;
        log.flushes[0].issued = 2;
        assert_eq!(Crash::new(&log, log.now).pending(), [0]);
    }

    #[test]
    fn a_flush_covers_its_own_device_only() {
        let r = Recorder::new();
        let a = r.wrap(MemoryDevice::new(1 << 16).unwrap());
        let b = r.wrap(MemoryDevice::new(1 << 16).unwrap());
        write(&a, 0, 1);
        write(&b, 0, 2);
        b.flush().unwrap();
        r.mark("b is safe");
        let log = r.log();
        let c = Crash::new(&log, log.now);
        assert_eq!((c.durable(), c.pending()), (&[1][..], &[0][..]));
        assert_eq!(c.marks().collect::<Vec<_>>(), ["b is safe"]);
        assert_eq!(Crash::new(&log, log.now - 1).marks().count(), 0);
        let zeros = MemoryImage::zeros(1 << 16).unwrap();
        let after = c.build_subset(&[zeros.clone(), zeros], &[false]).unwrap();
        assert_eq!((byte(&after[0], 0), byte(&after[1], 0)), (0, 2));
    }

    #[test]
    fn pending_writes_are_torn_at_sectors_and_later_ones_lie_above() {
        let (d, base) = recorded();
        write(&d, 15, 1);
        d.flush().unwrap();
        write(&d, 15, 2);
        write(&d, 15, 3);
        d.discard(15 * 4096, 4096).unwrap();
        let log = d.recorder().log();
        let c = Crash::new(&log, log.now);
        let fates = [Fate::Prefix(2), Fate::Sectors(vec![0b1010_0001]), Fate::Sectors(vec![0b0100_0000])];
        let after = c.build(&[base], |place, _| fates[place].clone()).unwrap();
        let sectors: Vec<u8> = (0..8).map(|s| byte(&after[0], 15 * 4096 + s * 512 + 511)).collect();
        assert_eq!(sectors, [3, 2, 1, 1, 1, 3, 0, 3]);
    }

    #[test]
    fn subsets_are_complete_when_they_can_be() {
        let all: std::collections::HashSet<_> = subsets(4, 16, 0).collect();
        assert_eq!(all.len(), 16);
        assert_eq!(subsets(0, 1, 0).collect::<Vec<_>>(), [vec![]]);
        let some: Vec<_> = subsets(100, 500, 7).collect();
        assert_eq!(some.len(), 500);
        assert_eq!(some, subsets(100, 500, 7).collect::<Vec<_>>());
        assert!(some.contains(&vec![true; 100]) && some.contains(&vec![false; 100]));
    }

    #[test]
    fn a_seed_always_gives_the_same_image() {
        let (d, base) = recorded();
        for i in 0..10 {
            write(&d, i, i as u8 + 1);
        }
        let log = d.recorder().log();
        let c = Crash::new(&log, log.now);
        let image = |seed| c.build_random(std::slice::from_ref(&base), seed).unwrap()[0].to_vec();
        assert!(image(1) == image(1));
        assert!(image(1) != image(2));
    }
}
