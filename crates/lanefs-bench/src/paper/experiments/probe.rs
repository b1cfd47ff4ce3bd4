//! A target that looks at each call of a workload: how long it takes, how much of that the calling
//! thread waits; or that leaves out what makes files durable.
//!
//! Only calls within [`Workload::operate`] count: set-ups and refills are the same calls and belong
//! to nobody. The counts are the thread's own until its worker ends.

use crate::clock::clock;
use crate::cost::Traffic;
use crate::error::{Op, Res};
use crate::name::Name;
use crate::processors::Helpers;
use crate::runner::{CellOutcome, Plan, run};
use crate::target::{Target, TargetFile};
use crate::workload::{Cx, Workload};
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The calls that are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A file is opened, and made if it is missing.
    Create,
    /// A file is removed.
    Unlink,
    /// A file or directory is made durable.
    Sync,
    /// All others.
    Other,
}

/// How many there are.
const CALLS: usize = 4;

/// What was counted of one kind of call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// How many calls.
    pub calls: u64,
    /// Nanoseconds they took.
    pub ns: u64,
    /// Nanoseconds of them that the thread was not running, where that was asked for.
    pub waited_ns: u64,
}

/// What was counted of all kinds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    calls: [Counted; CALLS],
    /// Nanoseconds of whole operations.
    pub ns: u64,
}

impl Counts {
    /// Returns those of a kind.
    pub fn of(&self, call: Call) -> Counted {
        self.calls[call as usize]
    }

    /// Adds others.
    pub fn add(&mut self, other: &Counts) {
        self.ns += other.ns;
        for (mine, theirs) in self.calls.iter_mut().zip(&other.calls) {
            mine.calls += theirs.calls;
            mine.ns += theirs.ns;
            mine.waited_ns += theirs.waited_ns;
        }
    }
}

thread_local! {
    /// Whether the thread is within an operation.
    static WITHIN: Cell<bool> = const { Cell::new(false) };
    static COUNTS: RefCell<Counts> = const {
        RefCell::new(Counts { calls: [Counted { calls: 0, ns: 0, waited_ns: 0 }; CALLS], ns: 0 })
    };
}

/// What is done with calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing is.
    Plain,
    /// They are timed.
    Times,
    /// They are timed, and the thread's own processor time is read before and after.
    Waits,
    /// What makes durable is left out.
    WithoutSync,
}

/// A target and what is done with its calls.
pub struct Probe<'a, T> {
    target: &'a mut T,
    look: Look,
    counts: Mutex<Counts>,
}

/// A file of such a target.
pub struct ProbeFile<F> {
    file: F,
    look: Look,
}

/// Returns the nanoseconds this thread has run.
fn ran() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    (t.tv_sec * 1_000_000_000 + t.tv_nsec) as u64
}

/// Makes a call and counts it.
#[inline]
fn look<R>(look: Look, call: Call, f: impl FnOnce() -> R) -> R {
    if matches!(look, Look::Plain | Look::WithoutSync) || !WITHIN.get() {
        return f();
    }
    let clock = clock();
    let ran_before = if look == Look::Waits { ran() } else { 0 };
    let before = clock.now();
    let done = f();
    let took = clock.ns((clock.now() - before).saturating_sub(clock.overhead));
    let ran = if look == Look::Waits { ran() - ran_before } else { took };
    COUNTS.with_borrow_mut(|counts| {
        let c = &mut counts.calls[call as usize];
        c.calls += 1;
        c.ns += took;
        // Reading the thread's clock is work too: what is within its noise is no waiting.
        c.waited_ns += took.saturating_sub(ran);
    });
    done
}

impl<F: TargetFile> TargetFile for ProbeFile<F> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Op<usize> {
        look(self.look, Call::Other, || self.file.read_at(buf, offset))
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> Op<usize> {
        look(self.look, Call::Other, || self.file.write_at(buf, offset))
    }
    fn write(&self, buf: &[u8]) -> Op<usize> {
        look(self.look, Call::Other, || self.file.write(buf))
    }
    fn rewind(&self) -> Op<()> {
        self.file.rewind()
    }
    fn size(&self) -> Op<u64> {
        self.file.size()
    }
    fn set_len(&self, size: u64) -> Op<()> {
        look(self.look, Call::Other, || self.file.set_len(size))
    }
    fn sync(&self) -> Op<()> {
        if self.look == Look::WithoutSync {
            return Ok(());
        }
        look(self.look, Call::Sync, || self.file.sync())
    }
    fn sync_data(&self) -> Op<()> {
        if self.look == Look::WithoutSync {
            return Ok(());
        }
        look(self.look, Call::Sync, || self.file.sync_data())
    }
    fn set_life(&self, is_short: bool) -> Op<()> {
        self.file.set_life(is_short)
    }
}

impl<T: Target> Target for Probe<'_, T> {
    type File = ProbeFile<T::File>;

    fn prefix(&self) -> &Name {
        self.target.prefix()
    }
    fn open(&self, path: &Name, how: i32) -> Op<ProbeFile<T::File>> {
        let call = if how & libc::O_CREAT != 0 { Call::Create } else { Call::Other };
        let file = look(self.look, call, || self.target.open(path, how))?;
        Ok(ProbeFile { file, look: self.look })
    }
    fn stat(&self, path: &Name) -> Op<u64> {
        look(self.look, Call::Other, || self.target.stat(path))
    }
    fn mkdir(&self, path: &Name) -> Op<()> {
        look(self.look, Call::Other, || self.target.mkdir(path))
    }
    fn unlink(&self, path: &Name) -> Op<()> {
        look(self.look, Call::Unlink, || self.target.unlink(path))
    }
    fn rmdir(&self, path: &Name) -> Op<()> {
        look(self.look, Call::Other, || self.target.rmdir(path))
    }
    fn rename(&self, old: &Name, new: &Name) -> Op<()> {
        look(self.look, Call::Other, || self.target.rename(old, new))
    }
    fn read_dir(&self, path: &Name, f: impl FnMut(&[u8], bool)) -> Op<u64> {
        look(self.look, Call::Other, || self.target.read_dir(path, f))
    }
    fn sync_dir(&self, path: &Name) -> Op<()> {
        if self.look == Look::WithoutSync {
            return Ok(());
        }
        look(self.look, Call::Sync, || self.target.sync_dir(path))
    }
    fn statfs(&self) -> Op<u64> {
        look(self.look, Call::Other, || self.target.statfs())
    }
    fn set_times_now(&self, path: &Name) -> Op<()> {
        look(self.look, Call::Other, || self.target.set_times_now(path))
    }
    fn traffic(&self) -> Option<Traffic> {
        self.target.traffic()
    }
    fn processes(&self) -> bool {
        false // the counts are this process's
    }
    fn place(&self) -> Option<PathBuf> {
        self.target.place()
    }
    fn quiesce(&self) -> Res<()> {
        self.target.quiesce()
    }
    fn helpers(&self) -> Helpers {
        self.target.helpers()
    }
    fn enter(&mut self) -> Res<()> {
        self.target.enter()
    }
    fn leave(&mut self) -> Res<()> {
        self.target.leave()
    }
}

/// A worker whose operations are looked at.
struct Watched<W>(W);

impl<'a, T: Target, W: Workload<Probe<'a, T>>> Workload<Probe<'a, T>> for Watched<W> {
    const ALONE: bool = W::ALONE;

    fn shared(cx: &Cx<'_, Probe<'a, T>>) -> Res<()> {
        W::shared(cx)
    }
    fn prepare(cx: &Cx<'_, Probe<'a, T>>, id: usize) -> Res<Self> {
        COUNTS.set(Counts::default());
        W::prepare(cx, id).map(Watched)
    }
    #[inline]
    fn operate(&mut self, target: &Probe<'a, T>) -> Op<u32> {
        debug_assert!(!WITHIN.get(), "an operation within another");
        let clock = clock();
        let before = clock.now();
        WITHIN.set(true);
        let done = self.0.operate(target);
        WITHIN.set(false);
        let took = clock.ns(clock.now() - before);
        COUNTS.with_borrow_mut(|counts| counts.ns += took);
        done
    }
    fn refill(&mut self, cx: &Cx<'_, Probe<'a, T>>) -> Res<()> {
        self.0.refill(cx)
    }
    fn finish(self, cx: &Cx<'_, Probe<'a, T>>) -> Res<()> {
        let mine = COUNTS.take();
        cx.target.counts.lock().unwrap_or_else(PoisonError::into_inner).add(&mine);
        self.0.finish(cx)
    }
}

/// Runs a workload once on a target whose calls are looked at.
pub fn probed<'a, T: Target, W: Workload<Probe<'a, T>>>(
    target: &'a mut T,
    how: Look,
    plan: &Plan,
) -> Res<(CellOutcome, Counts)> {
    let mut probe = Probe { target, look: how, counts: Mutex::new(Counts::default()) };
    let outcome = run::<Probe<'a, T>, Watched<W>>(&mut probe, plan)?;
    let counts = *probe.counts.lock().unwrap_or_else(PoisonError::into_inner);
    Ok((outcome, counts))
}
