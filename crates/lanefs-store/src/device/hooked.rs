//! A device in the middle of whose requests something else is done: for tests of what two calls do
//! to each other, without a clock.

use lanefs_sync::lock::Mutex;

use super::{Device, Host, Kind, ReadReq, WriteReq};
use crate::error::Result;

type Hook = Mutex<Option<Box<dyn FnOnce() -> Result<()> + Send>>>;

/// Does what it was given to do before the next read, write or flush goes on to the device below,
/// in the thread that asks for it.
#[derive(Default)]
pub struct HookedDevice<D> {
    inner: D,
    read: Hook,
    write: Hook,
    flush: Hook,
    discard: Hook,
}

impl<D: Device> HookedDevice<D> {
    /// Wraps `inner`; so far nothing is done.
    pub fn new(inner: D) -> HookedDevice<D> {
        let none = || Mutex::new(None);
        HookedDevice { inner, read: none(), write: none(), flush: none(), discard: none() }
    }

    /// Returns the device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Calls `f` before the next call of this kind, once. If it fails, so does the call, and
    /// nothing is done.
    pub fn before(&self, kind: Kind, f: impl FnOnce() -> Result<()> + Send + 'static) {
        *self.hook(kind).lock() = Some(Box::new(f));
    }

    /// Returns whether nothing waits for a call of this kind.
    pub fn is_done(&self, kind: Kind) -> bool {
        self.hook(kind).lock().is_none()
    }

    fn hook(&self, kind: Kind) -> &Hook {
        match kind {
            Kind::Read => &self.read,
            Kind::Write => &self.write,
            Kind::Flush => &self.flush,
            Kind::Discard => &self.discard,
        }
    }

    /// Calls what was given for this kind. It may ask the device itself: the hook's lock is given
    /// back before.
    fn call(&self, kind: Kind) -> Result<()> {
        let f = self.hook(kind).lock().take();
        f.map_or(Ok(()), |f| f())
    }
}

impl<D: Device> std::fmt::Debug for HookedDevice<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl<D: Device> Device for HookedDevice<D> {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn name(&self) -> &str {
        self.inner.name()
    }
    /// Returns true, always: a device in memory needs no flush, and what waits for one would never
    /// be done.
    fn needs_flush(&self) -> bool {
        true
    }
    fn read(&self, reqs: &mut [ReadReq<'_>]) -> Result<()> {
        self.call(Kind::Read)?;
        self.inner.read(reqs)
    }
    fn write(&self, reqs: &[WriteReq<'_>]) -> Result<()> {
        self.call(Kind::Write)?;
        self.inner.write(reqs)
    }
    fn flush(&self) -> Result<()> {
        self.call(Kind::Flush)?;
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.call(Kind::Discard)?;
        self.inner.discard(offset, len)
    }
    fn host(&self) -> Option<&dyn Host> {
        self.inner.host()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{MemoryDevice, conformance};
    use crate::error::StoreError;
    use std::sync::Arc;

    #[test]
    fn it_is_a_device_and_does_what_it_was_told_once() {
        let d = Arc::new(HookedDevice::new(MemoryDevice::new(1 << 20).unwrap()));
        conformance::check(&*d);
        let again = d.clone();
        d.before(Kind::Write, move || again.write(&[]));
        assert!(!d.is_done(Kind::Write) && d.is_done(Kind::Flush));
        d.flush().unwrap();
        assert!(!d.is_done(Kind::Write));
        d.write(&[]).unwrap();
        assert!(d.is_done(Kind::Write));
        d.before(Kind::Flush, || Err(StoreError::Invalid("told to".into())));
        d.flush().unwrap_err();
        d.flush().unwrap();
    }
}
