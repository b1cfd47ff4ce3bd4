//! Faulty devices, between LaneFS and the recorder: they must be caught, whatever LaneFS
//! does.

use super::system::{LaneFs, Live, System};
use lanefs_store::Result as StoreResult;
use lanefs_store::device::{Device, ReadReq, WriteReq};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A mistake that a device makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceFault {
    /// Flushes are answered and not done.
    NoFlush,
    /// Every second flush is not done.
    EverySecondFlush,
    /// A flush is answered at once and done before the next request.
    LateFlush,
    /// The last block of every submission of several blocks is not written.
    ShortWrite,
    /// Every sixteenth write is not done.
    LostWrite,
    /// Every sixteenth write goes to the next block.
    MisdirectedWrite,
}

impl DeviceFault {
    /// All of them.
    pub const ALL: [DeviceFault; 6] = [
        DeviceFault::NoFlush,
        DeviceFault::EverySecondFlush,
        DeviceFault::LateFlush,
        DeviceFault::ShortWrite,
        DeviceFault::LostWrite,
        DeviceFault::MisdirectedWrite,
    ];
}

#[derive(Debug)]
struct FaultyDevice {
    inner: Arc<dyn Device>,
    fault: DeviceFault,
    // Relaxed throughout: only a count of requests.
    count: AtomicU64,
    owed: Mutex<bool>,
}

impl FaultyDevice {
    fn nth(&self, n: u64) -> bool {
        self.count.fetch_add(1, Ordering::Relaxed) % n == n - 1
    }

    fn pay(&self) -> StoreResult<()> {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut *owed) { self.inner.flush() } else { Ok(()) }
    }
}

impl Device for FaultyDevice {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn read(&self, reqs: &mut [ReadReq<'_>]) -> StoreResult<()> {
        self.inner.read(reqs)
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> StoreResult<()> {
        match self.fault {
            DeviceFault::LateFlush => {
                self.inner.write(reqs)?;
                self.pay()
            }
            DeviceFault::LostWrite if self.nth(16) => Ok(()),
            DeviceFault::ShortWrite => {
                let (last, others) = reqs.split_last().map_or((None, reqs), |(l, o)| (Some(l), o));
                if !others.is_empty() {
                    self.inner.write(others)?;
                }
                match last {
                    Some(r) if r.data.len() > 4096 => {
                        let data = &r.data[..r.data.len() - 4096];
                        self.inner.write(&[WriteReq { offset: r.offset, data }])
                    }
                    Some(r) if others.is_empty() => self.inner.write(std::slice::from_ref(r)),
                    _ => Ok(()),
                }
            }
            DeviceFault::MisdirectedWrite if self.nth(16) => {
                let end = |r: &WriteReq<'_>| r.offset + 4096 + r.data.len() as u64 <= self.inner.size();
                let moved: Vec<WriteReq<'_>> = reqs
                    .iter()
                    .map(|r| WriteReq { offset: r.offset + if end(r) { 4096 } else { 0 }, data: r.data })
                    .collect();
                self.inner.write(&moved)
            }
            _ => self.inner.write(reqs),
        }
    }
    fn flush(&self) -> StoreResult<()> {
        match self.fault {
            DeviceFault::NoFlush => Ok(()),
            DeviceFault::EverySecondFlush if self.nth(2) => Ok(()),
            DeviceFault::LateFlush => {
                self.pay()?;
                *self.owed.lock().unwrap_or_else(PoisonError::into_inner) = true;
                Ok(())
            }
            _ => self.inner.flush(),
        }
    }
    fn discard(&self, offset: u64, len: u64) -> StoreResult<()> {
        self.inner.discard(offset, len)
    }
}

/// LaneFS on faulty devices.
#[derive(Debug)]
pub struct OnFaultyDevice {
    /// The system that is told lies.
    pub system: LaneFs,
    /// Which.
    pub fault: DeviceFault,
}

impl System for OnFaultyDevice {
    fn format(&self, devices: &[Arc<dyn Device>]) -> Result<(), String> {
        self.system.format(devices)
    }
    fn open(&self, devices: Vec<Arc<dyn Device>>) -> Result<Box<dyn Live>, String> {
        let fault = |inner| {
            let d =
                FaultyDevice { inner, fault: self.fault, count: AtomicU64::new(0), owed: Mutex::new(false) };
            Arc::new(d) as Arc<dyn Device>
        };
        self.system.open(devices.into_iter().map(fault).collect())
    }
}
