//! A device that writes down what is done to it, so that a crash at any instant can be replayed
//! (see `crash.rs`).
//!
//! One [`Recorder`] numbers the events of all devices of a volume with one count, its *instants*:
//! instant `n` lies between event `n - 1` and event `n`. The issue and the completion of a request
//! are two events. An issue is written down before the request goes to the device, a completion
//! after it came back; so in the log a request is never shorter than it was, and no write seems to
//! be covered by a flush that did not cover it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lanefs_sync::lock::Mutex;

use super::{Device, ReadReq, WriteReq};
use crate::error::Result;

/// Collects the events of one or several devices.
#[derive(Debug, Default)]
pub struct Recorder {
    log: Mutex<Log>,
    /// Devices wrapped so far. Written by [`Recorder::wrap`] alone. Relaxed: only uniqueness
    /// counts.
    devices: AtomicU64,
}

/// The events, in the order of issue.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// The instant after the last event.
    pub now: u64,
    /// Writes and discards.
    pub writes: Vec<WriteRecord>,
    /// Reads.
    pub reads: Vec<ReadRecord>,
    /// Flushes.
    pub flushes: Vec<FlushRecord>,
    /// Notes of the caller, each with its instant.
    pub marks: Vec<(u64, Mark)>,
    /// Counts.
    pub counters: Counters,
}

/// A note of the caller in the log.
pub type Mark = Arc<str>;

/// The amounts of what was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Write requests.
    pub writes: u64,
    /// Bytes of these.
    pub bytes_written: u64,
    /// Read requests.
    pub reads: u64,
    /// Bytes of these.
    pub bytes_read: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Times a caller waited for a device: calls of `write`, `read` and `flush`.
    pub trips: u64,
}

/// One request of a submission.
#[derive(Clone, Debug)]
pub struct WriteRecord {
    /// Which of the recorder's devices.
    pub device: usize,
    /// The submission it was part of: the instant at which that was issued.
    pub issued: u64,
    /// When the whole submission was answered with success.
    pub completed: Option<u64>,
    /// The thread that issued it, see [`thread_id`].
    pub thread: u64,
    /// Byte offset on the device.
    pub offset: u64,
    /// What.
    pub payload: Payload,
}

/// The change that a [`WriteRecord`] makes to its range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Writes these bytes.
    Bytes(Arc<[u8]>),
    /// Discards so many: afterwards they may be zeros or what they were.
    Discard(u64),
}

impl Payload {
    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        match self {
            Payload::Bytes(b) => b.len() as u64,
            Payload::Discard(n) => *n,
        }
    }
    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One read request.
#[derive(Clone, Copy, Debug)]
pub struct ReadRecord {
    /// Which of the recorder's devices.
    pub device: usize,
    /// When it was issued.
    pub issued: u64,
    /// The thread that issued it.
    pub thread: u64,
    /// Byte offset on the device.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// One flush.
#[derive(Clone, Copy, Debug)]
pub struct FlushRecord {
    /// Which of the recorder's devices.
    pub device: usize,
    /// When it was issued.
    pub issued: u64,
    /// When it was answered with success.
    pub completed: Option<u64>,
    /// The thread that issued it.
    pub thread: u64,
}

/// Returns a small number for the calling thread, the same for as long as the thread lives.
pub fn thread_id() -> u64 {
    /// The next number. Written by each thread once. Relaxed: only uniqueness counts.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static ID: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    ID.try_with(|id| *id).unwrap_or(0)
}

impl Log {
    /// Checks, in debug builds, that the last event of each list lies before now, that lists are in
    /// the order of issue, and that the counts are those of the lists.
    fn check_invariants(&self) {
        debug_assert!(self.writes.last().is_none_or(|w| w.issued < self.now), "a write after now");
        debug_assert!(self.reads.last().is_none_or(|r| r.issued < self.now), "a read after now");
        debug_assert!(self.flushes.last().is_none_or(|f| f.issued < self.now), "a flush after now");
        debug_assert!(self.marks.last().is_none_or(|m| m.0 < self.now), "a mark after now");
        let c = &self.counters;
        debug_assert_eq!(c.writes + c.discards, self.writes.len() as u64, "writes and discards");
        debug_assert_eq!((c.reads, c.flushes), (self.reads.len() as u64, self.flushes.len() as u64));
    }
}

impl Recorder {
    /// Returns a recorder with an empty log.
    pub fn new() -> Arc<Recorder> {
        Arc::default()
    }

    /// Wraps `inner`, the recorder's next device: 0, 1, ...
    pub fn wrap<D: Device>(self: &Arc<Self>, inner: D) -> RecordingDevice<D> {
        // Relaxed: see the field.
        let index = self.devices.fetch_add(1, Ordering::Relaxed) as usize;
        RecordingDevice { inner, index, recorder: self.clone() }
    }

    /// Writes a note into the log, for instance "fsync of /a answered". Returns its instant.
    pub fn mark(&self, text: impl Into<Mark>) -> u64 {
        self.event(|at, log| log.marks.push((at, text.into()))).0
    }

    /// Returns a copy of the log.
    pub fn log(&self) -> Log {
        self.log.lock().clone()
    }

    /// Empties the log, and returns it as it was until now. Only while no request is out.
    pub fn take_log(&self) -> Log {
        std::mem::take(&mut self.log.lock())
    }

    /// Returns the counts alone.
    pub fn counters(&self) -> Counters {
        self.log.lock().counters
    }

    /// Appends one event.
    fn event<T>(&self, f: impl FnOnce(u64, &mut Log) -> T) -> (u64, T) {
        let mut log = self.log.lock();
        let at = log.now;
        log.now += 1;
        let done = (at, f(at, &mut log));
        log.check_invariants();
        done
    }
}

/// A device whose requests a [`Recorder`] writes down.
#[derive(Debug)]
pub struct RecordingDevice<D> {
    inner: D,
    index: usize,
    recorder: Arc<Recorder>,
}

impl<D: Device> RecordingDevice<D> {
    /// Returns a recorded device with a recorder of its own.
    pub fn new(inner: D) -> RecordingDevice<D> {
        Recorder::new().wrap(inner)
    }
    /// Returns the recorder.
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }
    /// Returns the device inside.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Performs `what`, whose `n` write records `issue` makes, and notes its success.
    fn recorded_write(
        &self,
        records: Vec<(u64, Payload)>,
        trip: bool,
        what: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let (device, thread) = (self.index, thread_id());
        let (_, range) = self.recorder.event(|issued, log| {
            let first = log.writes.len();
            debug_assert!(log.writes.last().is_none_or(|w| w.issued < issued), "out of the order of issue");
            log.counters.trips += u64::from(trip);
            for (offset, payload) in records {
                match &payload {
                    Payload::Bytes(b) => {
                        log.counters.writes += 1;
                        log.counters.bytes_written += b.len() as u64;
                    }
                    Payload::Discard(_) => log.counters.discards += 1,
                }
                log.writes.push(WriteRecord { device, issued, completed: None, thread, offset, payload });
            }
            first..log.writes.len()
        });
        what()?;
        self.recorder.event(|at, log| {
            for w in log.writes.get_mut(range).into_iter().flatten() {
                debug_assert!(w.issued < at && w.completed.is_none(), "an answer to {w:?} at {at}");
                debug_assert_eq!((w.device, w.thread), (device, thread), "an answer to another's request");
                w.completed = Some(at);
            }
        });
        Ok(())
    }
}

impl<D: Device> Device for RecordingDevice<D> {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn read(&self, reqs: &mut [ReadReq<'_>]) -> Result<()> {
        let (device, thread) = (self.index, thread_id());
        self.recorder.event(|issued, log| {
            log.counters.trips += 1;
            for r in reqs.iter() {
                let len = r.data.len() as u64;
                log.counters.reads += 1;
                log.counters.bytes_read += len;
                log.reads.push(ReadRecord { device, issued, thread, offset: r.offset, len });
            }
        });
        self.inner.read(reqs)
    }

    fn write(&self, reqs: &[WriteReq<'_>]) -> Result<()> {
        let records = reqs.iter().map(|r| (r.offset, Payload::Bytes(r.data.into()))).collect();
        self.recorded_write(records, true, || self.inner.write(reqs))
    }

    fn flush(&self) -> Result<()> {
        let (device, thread) = (self.index, thread_id());
        let (_, i) = self.recorder.event(|issued, log| {
            log.counters.trips += 1;
            log.counters.flushes += 1;
            log.flushes.push(FlushRecord { device, issued, completed: None, thread });
            log.flushes.len() - 1
        });
        self.inner.flush()?;
        self.recorder.event(|at, log| {
            if let Some(f) = log.flushes.get_mut(i) {
                debug_assert!(f.issued < at && f.completed.is_none(), "an answer to {f:?} at {at}");
                debug_assert_eq!((f.device, f.thread), (device, thread), "an answer to another's flush");
                f.completed = Some(at);
            }
        });
        Ok(())
    }

    // `needs_flush` stays true: what is recorded is a device that could lose its cache.

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.recorded_write(vec![(offset, Payload::Discard(len))], false, || self.inner.discard(offset, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{MemoryDevice, conformance};

    #[test]
    fn behaves_as_a_device() {
        conformance::check(&RecordingDevice::new(MemoryDevice::new(1 << 20).unwrap()));
    }

    #[test]
    fn everything_is_written_down_in_order() {
        let r = Recorder::new();
        let a = r.wrap(MemoryDevice::new(1 << 16).unwrap());
        let b = r.wrap(MemoryDevice::new(1 << 16).unwrap());
        let (one, two) = ([1; 4096], [2; 8192]);
        a.write(&[WriteReq { offset: 0, data: &one }, WriteReq { offset: 8192, data: &two }]).unwrap();
        r.mark("half");
        b.flush().unwrap();
        a.discard(4096, 4096).unwrap();
        assert!(a.write(&[WriteReq { offset: 1 << 16, data: &one }]).is_err());
        let mut buf = [0; 4096];
        b.read(&mut [ReadReq { offset: 4096, data: &mut buf }]).unwrap();
        let log = r.log();
        let writes: Vec<_> =
            log.writes.iter().map(|w| (w.device, w.issued, w.completed, w.offset, w.payload.len())).collect();
        assert_eq!(
            writes,
            [
                (0, 0, Some(1), 0, 4096),
                (0, 0, Some(1), 8192, 8192),
                (0, 5, Some(6), 4096, 4096),
                (0, 7, None, 1 << 16, 4096),
            ]
        );
        assert_eq!(log.writes[1].payload, Payload::Bytes(two.as_slice().into()));
        assert_eq!(&*log.marks[0].1, "half");
        assert_eq!(log.marks[0].0, 2);
        let f = log.flushes[0];
        assert_eq!((f.device, f.issued, f.completed), (1, 3, Some(4)));
        assert_eq!((log.reads[0].device, log.reads[0].offset), (1, 4096));
        let c = Counters {
            writes: 3,
            bytes_written: 16384,
            reads: 1,
            bytes_read: 4096,
            flushes: 1,
            discards: 1,
            trips: 4,
        };
        assert_eq!(log.counters, c);
        assert_eq!(r.take_log().now, 9);
        assert_eq!(r.log().now, 0);
        assert!(a.needs_flush());
    }

    #[test]
    fn threads_are_told_apart() {
        let d = RecordingDevice::new(MemoryDevice::new(1 << 16).unwrap());
        std::thread::scope(|s| {
            for t in 0..4u64 {
                let d = &d;
                s.spawn(move || {
                    for _ in 0..20 {
                        d.write(&[WriteReq { offset: t * 4096, data: &[t as u8; 4096] }]).unwrap();
                    }
                });
            }
        });
        let log = d.recorder().log();
        for w in &log.writes {
            assert!(w.completed.unwrap() > w.issued);
            let same: Vec<_> = log.writes.iter().filter(|o| o.thread == w.thread).collect();
            assert_eq!(same.len(), 20);
            assert!(same.iter().all(|o| o.offset == w.offset));
            assert!(same.windows(2).all(|p| p[0].completed.unwrap() < p[1].issued));
        }
    }
}
