//! A device that breaks as planned.
//!
//! A [`Plan`] is a list of [`Rule`]s. Each request of a call is counted by kind (the third write
//! request, the second flush) and shown to the rules in order; the first rule that matches, and has
//! not yet done all it was to do, decides the fault. Everything that fired is kept in a list, so a
//! failing test can report what was done to it.

use lanefs_sync::random::Rng;
use std::ops::Range;
use std::time::Duration;

use lanefs_sync::lock::Mutex;

use super::crash::SECTOR;
use super::{Device, Host, ReadReq, WriteReq, io_error};
use crate::error::Result;
use lanefs_format::BLOCK_SIZE;

/// A kind of request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// One request of a `read`.
    Read,
    /// One request of a `write`.
    Write,
    /// A flush.
    Flush,
    /// A discard.
    Discard,
}

/// When a rule applies. All that are given must hold.
#[derive(Clone, Debug, Default)]
pub struct When {
    /// From the request of its kind with this number on, counted from 0.
    pub nth: u64,
    /// Only requests that overlap these bytes. Flushes never match a range.
    pub range: Option<Range<u64>>,
    /// Only one in so many, by the plan's seed.
    pub one_in: Option<u64>,
    /// At most so many times; 0 is without limit.
    pub times: u64,
}

/// A thing that goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The request fails with this errno (EIO, ENOSPC, ...) and does nothing.
    Error(i32),
    /// A write or a flush is answered with success and does nothing.
    Lost,
    /// A write goes, or a read comes, from so many blocks away (held to the device).
    Misdirected(i64),
    /// This bit of the request's bytes is flipped: on its way to the medium, or only in what is
    /// read.
    BitFlip(u64),
    /// Only the first so many sectors are written; the answer is success.
    Torn(u64),
    /// Only the first so many sectors are written; the answer is EIO.
    Short(u64),
    /// The request takes this much longer.
    Delay(Duration),
}

/// A fault and when it happens.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Which requests.
    pub kind: Kind,
    /// When.
    pub when: When,
    /// What.
    pub fault: Fault,
}

/// The things that go wrong, and when.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The rules, tried in order.
    pub rules: Vec<Rule>,
    /// Decides [`When::one_in`].
    pub seed: u64,
}

impl Plan {
    /// Returns a plan that does nothing.
    pub fn none() -> Plan {
        Plan::default()
    }

    /// Gives the `nth` request of its kind (from 0) `fault`, once.
    #[must_use]
    pub fn nth(self, kind: Kind, nth: u64, fault: Fault) -> Plan {
        self.rule(kind, When { nth, times: 1, ..When::default() }, fault)
    }

    /// Gives every request that overlaps `range` `fault`.
    #[must_use]
    pub fn range(self, kind: Kind, range: Range<u64>, fault: Fault) -> Plan {
        self.rule(kind, When { range: Some(range), ..When::default() }, fault)
    }

    /// Adds a rule.
    #[must_use]
    pub fn rule(mut self, kind: Kind, when: When, fault: Fault) -> Plan {
        self.rules.push(Rule { kind, when, fault });
        self
    }

    /// Returns a plan of one fault in about `one_in` reads and writes, of every kind in turn, as
    /// `seed` decides.
    pub fn seeded(seed: u64, one_in: u64) -> Plan {
        let mut r = Rng::at(seed);
        let mut plan = Plan { rules: Vec::new(), seed: r.bits() };
        for kind in [Kind::Read, Kind::Write] {
            let faults = [
                Fault::Error(libc::EIO),
                Fault::Misdirected((r.bits() % 16) as i64 - 8),
                Fault::BitFlip(r.bits() % (BLOCK_SIZE as u64 * 8)),
                Fault::Lost,
                Fault::Torn(r.bits() % 8),
                Fault::Short(r.bits() % 8),
            ];
            let usable = if kind == Kind::Read { &faults[..3] } else { &faults[..] };
            for &fault in usable {
                let one_in = Some(one_in.max(1).saturating_mul(usable.len() as u64));
                plan = plan.rule(kind, When { one_in, ..When::default() }, fault);
            }
        }
        plan
    }
}

/// A fault that happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fired {
    /// To what.
    pub kind: Kind,
    /// To the which of its kind.
    pub nth: u64,
    /// Where.
    pub offset: u64,
    /// What.
    pub fault: Fault,
}

#[derive(Debug)]
struct State {
    plan: Plan,
    fired_of: Vec<u64>,
    counts: [u64; 4],
    random: Rng,
    fired: Vec<Fired>,
}

/// A device that breaks as planned.
#[derive(Debug)]
pub struct FaultyDevice<D> {
    inner: D,
    state: Mutex<State>,
}

impl<D: Device> FaultyDevice<D> {
    /// Wraps `inner`.
    pub fn new(inner: D, plan: Plan) -> FaultyDevice<D> {
        FaultyDevice { inner, state: Mutex::new(State::new(plan)) }
    }
    /// Replaces the plan; counting starts anew, the list of what fired goes on.
    pub fn set_plan(&self, plan: Plan) {
        let mut s = self.state.lock();
        let fired = std::mem::take(&mut s.fired);
        *s = State { fired, ..State::new(plan) };
    }
    /// Returns what happened so far.
    pub fn fired(&self) -> Vec<Fired> {
        self.state.lock().fired.clone()
    }
    /// Returns how many requests of each [`Kind`] there were since the plan was set.
    pub fn requests(&self) -> [u64; 4] {
        self.state.lock().counts
    }
    /// Returns the device inside.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Returns the fault for the next request of a kind. A delay is waited for here, without the
    /// lock.
    fn fault(&self, kind: Kind, offset: u64, len: u64) -> Option<Fault> {
        let fault = self.state.lock().decide(kind, offset, len)?;
        if let Fault::Delay(d) = fault {
            std::thread::sleep(d);
            return None;
        }
        Some(fault)
    }

    fn failed(&self, what: &'static str, offset: u64, errno: i32) -> Result<()> {
        Err(io_error(
            self.inner.name(),
            what,
            offset,
            errno,
            &std::io::Error::from_raw_os_error(errno).to_string(),
        ))
    }

    /// Returns `offset` moved by `blocks`, and so far back that `len` bytes fit.
    fn elsewhere(&self, offset: u64, len: u64, blocks: i64) -> u64 {
        let last = self.inner.size().saturating_sub(len);
        offset.saturating_add_signed(blocks.saturating_mul(BLOCK_SIZE as i64)).min(last)
    }

    fn read_one(&self, r: &mut ReadReq<'_>) -> Result<()> {
        let len = r.data.len() as u64;
        match self.fault(Kind::Read, r.offset, len) {
            Some(Fault::Error(e)) => self.failed("read", r.offset, e),
            Some(Fault::Misdirected(blocks)) => {
                let offset = self.elsewhere(r.offset, len, blocks);
                self.inner.read(&mut [ReadReq { offset, data: r.data }])
            }
            Some(Fault::BitFlip(bit)) => {
                self.inner.read(&mut [ReadReq { offset: r.offset, data: r.data }])?;
                flip(r.data, bit);
                Ok(())
            }
            _ => self.inner.read(&mut [ReadReq { offset: r.offset, data: r.data }]),
        }
    }

    fn write_one(&self, r: &WriteReq<'_>) -> Result<()> {
        let len = r.data.len() as u64;
        match self.fault(Kind::Write, r.offset, len) {
            Some(Fault::Error(e)) => self.failed("write", r.offset, e),
            Some(Fault::Lost) => Ok(()),
            Some(Fault::Misdirected(blocks)) => {
                let offset = self.elsewhere(r.offset, len, blocks);
                self.inner.write(&[WriteReq { offset, data: r.data }])
            }
            Some(Fault::BitFlip(bit)) => {
                let mut data = r.data.to_vec();
                flip(&mut data, bit);
                self.inner.write(&[WriteReq { offset: r.offset, data: &data }])
            }
            Some(Fault::Torn(sectors)) => self.write_part(r, sectors),
            Some(Fault::Short(sectors)) => {
                self.write_part(r, sectors)?;
                self.failed("write", r.offset, libc::EIO)
            }
            _ => self.inner.write(std::slice::from_ref(r)),
        }
    }

    /// Writes the first `sectors` of a request and keeps the rest as it was.
    fn write_part(&self, r: &WriteReq<'_>, sectors: u64) -> Result<()> {
        let n = r.data.len().min(usize::try_from(sectors.saturating_mul(SECTOR)).unwrap_or(usize::MAX));
        debug_assert!(n == r.data.len() || (n as u64).is_multiple_of(SECTOR), "a sector is written in part");
        let mut old = vec![0; r.data.len()];
        self.inner.read(&mut [ReadReq { offset: r.offset, data: &mut old }])?;
        old[..n].copy_from_slice(&r.data[..n]);
        self.inner.write(&[WriteReq { offset: r.offset, data: &old }])
    }
}

/// Flips one bit, the number taken modulo the bits there are.
fn flip(data: &mut [u8], bit: u64) {
    if !data.is_empty() {
        let bit = bit % (data.len() as u64 * 8);
        data[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

impl State {
    fn new(plan: Plan) -> State {
        State {
            fired_of: vec![0; plan.rules.len()],
            counts: [0; 4],
            random: Rng::at(plan.seed),
            fired: Vec::new(),
            plan,
        }
    }

    fn decide(&mut self, kind: Kind, offset: u64, len: u64) -> Option<Fault> {
        debug_assert_eq!(self.fired_of.len(), self.plan.rules.len(), "a count for each rule");
        let nth = self.counts[kind as usize];
        self.counts[kind as usize] += 1;
        for (rule, fired) in self.plan.rules.iter().zip(&mut self.fired_of) {
            let w = &rule.when;
            let here = w.range.as_ref().is_none_or(|r| {
                kind != Kind::Flush && offset < r.end && r.start < offset.saturating_add(len)
            });
            if rule.kind != kind || nth < w.nth || w.times != 0 && *fired >= w.times || !here {
                continue;
            }
            if w.one_in.is_some_and(|n| !self.random.bits().is_multiple_of(n.max(1))) {
                continue;
            }
            *fired += 1;
            debug_assert!(w.times == 0 || *fired <= w.times, "{rule:?} fired {fired} times");
            self.fired.push(Fired { kind, nth, offset, fault: rule.fault });
            return Some(rule.fault);
        }
        None
    }
}

impl<D: Device> Device for FaultyDevice<D> {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn read(&self, reqs: &mut [ReadReq<'_>]) -> Result<()> {
        // Like a real device: the others are performed even if one fails.
        reqs.iter_mut().map(|r| self.read_one(r)).fold(Ok(()), Result::and)
    }

    fn write(&self, reqs: &[WriteReq<'_>]) -> Result<()> {
        reqs.iter().map(|r| self.write_one(r)).fold(Ok(()), Result::and)
    }

    fn flush(&self) -> Result<()> {
        match self.fault(Kind::Flush, 0, 0) {
            Some(Fault::Error(e)) => self.failed("flush", 0, e),
            Some(Fault::Lost) => Ok(()),
            _ => self.inner.flush(),
        }
    }

    // `needs_flush` stays true, so that flushes come here and can fail.

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        match self.fault(Kind::Discard, offset, len) {
            Some(Fault::Error(e)) => self.failed("discard", offset, e),
            Some(Fault::Lost) => Ok(()),
            _ => self.inner.discard(offset, len),
        }
    }

    fn host(&self) -> Option<&dyn Host> {
        self.inner.host()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{MemoryDevice, conformance};
    use lanefs_format::Block;

    const B: u64 = BLOCK_SIZE as u64;

    fn device(plan: Plan) -> FaultyDevice<MemoryDevice> {
        FaultyDevice::new(MemoryDevice::new(64 * B).unwrap(), plan)
    }

    fn write(d: &dyn Device, block: u64, fill: u8) -> Result<()> {
        d.write(&[WriteReq { offset: block * B, data: &Block([fill; BLOCK_SIZE]).0 }])
    }

    fn read(d: &dyn Device, block: u64) -> Result<Box<Block>> {
        let mut b = Block::zeroed();
        d.read(&mut [ReadReq { offset: block * B, data: &mut b.0 }])?;
        Ok(b)
    }

    #[test]
    fn without_faults_it_behaves_as_a_device() {
        conformance::check(&device(Plan::none()));
    }

    #[test]
    fn the_nth_request_fails_once() {
        let d = device(
            Plan::none()
                .nth(Kind::Write, 1, Fault::Error(libc::ENOSPC))
                .nth(Kind::Read, 0, Fault::Error(libc::EIO))
                .nth(Kind::Flush, 2, Fault::Error(libc::EIO)),
        );
        let results: Vec<_> = (0..4).map(|i| write(&d, i, 1).map_err(|e| e.errno())).collect();
        assert_eq!(results, [Ok(()), Err(libc::ENOSPC), Ok(()), Ok(())]);
        assert_eq!(read(&d, 1).unwrap_err().errno(), libc::EIO);
        assert_eq!(read(&d, 1).unwrap().0, [0; BLOCK_SIZE]);
        let flushes: Vec<_> = (0..4).map(|_| d.flush().is_ok()).collect();
        assert_eq!(flushes, [true, true, false, true]);
        assert_eq!(d.requests(), [2, 4, 4, 0]);
        let fired: Vec<_> = d.fired().iter().map(|f| (f.kind, f.nth)).collect();
        assert_eq!(fired, [(Kind::Write, 1), (Kind::Read, 0), (Kind::Flush, 2)]);
    }

    #[test]
    fn one_bad_request_does_not_keep_the_others_back() {
        let d = device(Plan::none().nth(Kind::Write, 0, Fault::Error(libc::EIO)));
        let b = Block([5; BLOCK_SIZE]);
        let reqs = [WriteReq { offset: 0, data: &b.0 }, WriteReq { offset: B, data: &b.0 }];
        assert!(d.write(&reqs).is_err());
        assert_eq!((read(&d, 0).unwrap().0[0], read(&d, 1).unwrap().0[0]), (0, 5));
    }

    #[test]
    fn a_range_fails_always() {
        let d = device(Plan::none().range(Kind::Read, 3 * B..5 * B, Fault::Error(libc::EIO)));
        for _ in 0..2 {
            let bad: Vec<_> = (0..8).filter(|&i| read(&d, i).is_err()).collect();
            assert_eq!(bad, [3, 4]);
        }
        let mut big = vec![0; 4 * BLOCK_SIZE];
        assert!(d.read(&mut [ReadReq { offset: 0, data: &mut big }]).is_err());
    }

    #[test]
    fn writes_go_wrong_without_a_word() {
        let plan = |fault| Plan::none().nth(Kind::Write, 1, fault);
        let after = |fault| {
            let d = device(plan(fault));
            write(&d, 10, 1).unwrap();
            write(&d, 10, 0xff).unwrap();
            let at = |i| read(&d, i).unwrap();
            (at(10), at(12))
        };
        let (old, new) = ([1; BLOCK_SIZE], [0xff; BLOCK_SIZE]);
        assert!(after(Fault::Lost).0.0 == old);
        let (here, there) = after(Fault::Misdirected(2));
        assert!(here.0 == old && there.0 == new);
        let flipped = after(Fault::BitFlip(4096 + 3)).0;
        assert_eq!(flipped.0[512], 0xff ^ 8);
        assert_eq!(flipped.0.iter().filter(|&&b| b != 0xff).count(), 1);
        let torn = after(Fault::Torn(3)).0;
        assert!(torn.0[..1536] == new[..1536] && torn.0[1536..] == old[1536..]);
        let d = device(plan(Fault::Short(1)));
        write(&d, 0, 1).unwrap();
        assert!(write(&d, 0, 2).is_err());
        assert_eq!((read(&d, 0).unwrap().0[511], read(&d, 0).unwrap().0[512]), (2, 1));
    }

    #[test]
    fn reads_go_wrong_without_a_word_and_the_medium_is_well() {
        let d = device(Plan::none().nth(Kind::Read, 0, Fault::Misdirected(-100)).nth(
            Kind::Read,
            1,
            Fault::BitFlip(0),
        ));
        write(&d, 0, 7).unwrap();
        write(&d, 9, 8).unwrap();
        assert_eq!(read(&d, 9).unwrap().0[0], 7);
        assert_eq!(read(&d, 9).unwrap().0[0], 9);
        assert_eq!(read(&d, 9).unwrap().0[0], 8);
    }

    #[test]
    fn a_misdirected_request_stays_on_the_device() {
        let d = device(Plan::none().range(Kind::Write, 0..64 * B, Fault::Misdirected(i64::MAX)));
        write(&d, 0, 1).unwrap();
        assert_eq!(read(&d, 63).unwrap().0[0], 1);
    }

    #[test]
    fn a_delay_is_only_late() {
        let late = Duration::from_millis(20);
        let d = device(Plan::none().nth(Kind::Write, 0, Fault::Delay(late)));
        let start = std::time::Instant::now();
        write(&d, 0, 1).unwrap();
        assert!(start.elapsed() >= late);
        assert_eq!(read(&d, 0).unwrap().0[0], 1);
    }

    #[test]
    fn a_seed_always_breaks_the_same() {
        let run = |seed| {
            let d = device(Plan::seeded(seed, 10));
            for i in 0..400 {
                let _ = write(&d, i % 64, i as u8);
                let _ = read(&d, i % 64);
            }
            d.fired()
        };
        let (a, b) = (run(1), run(2));
        assert_eq!(a, run(1));
        assert_ne!(a, b);
        assert!((30..200).contains(&a.len()), "{}", a.len());
        let d = device(Plan::seeded(1, 1));
        d.set_plan(Plan::none());
        write(&d, 0, 1).unwrap();
        assert!(d.fired().is_empty());
    }
}
