//! A target that counts the bytes that its user writes, with a device that somebody counts.

use crate::cost::Traffic;
use crate::error::{Op, Res};
use crate::name::Name;
use crate::processors::Helpers;
use crate::target::{Target, TargetFile};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A target, and what was written to its files. The count is added to by all workers and read
/// between phases. Relaxed: it is a figure that orders nothing.
pub struct Metered<T> {
    inner: T,
    written: Arc<AtomicU64>,
}

/// A file of such a target.
pub struct MeteredFile<F> {
    inner: F,
    written: Arc<AtomicU64>,
}

impl<T> Metered<T> {
    /// Counts what is written through this target from now on.
    pub fn new(inner: T) -> Metered<T> {
        Metered { inner, written: Arc::default() }
    }

    /// Counts for the same user what is written through another target.
    pub fn beside(&self, inner: T) -> Metered<T> {
        Metered { inner, written: self.written.clone() }
    }

    /// Returns the target itself.
    pub fn inner(&self) -> &T {
        &self.inner
    }

    /// Returns the bytes that were written so far.
    pub fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }
}

impl<F> MeteredFile<F> {
    fn count(&self, done: Op<usize>) -> Op<usize> {
        done.inspect(|&n| {
            self.written.fetch_add(n as u64, Relaxed);
        })
    }
}

impl<F: TargetFile> TargetFile for MeteredFile<F> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Op<usize> {
        self.inner.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> Op<usize> {
        self.count(self.inner.write_at(buf, offset))
    }
    fn write(&self, buf: &[u8]) -> Op<usize> {
        self.count(self.inner.write(buf))
    }
    fn rewind(&self) -> Op<()> {
        self.inner.rewind()
    }
    fn size(&self) -> Op<u64> {
        self.inner.size()
    }
    fn set_len(&self, size: u64) -> Op<()> {
        self.inner.set_len(size)
    }
    fn sync(&self) -> Op<()> {
        self.inner.sync()
    }
    fn sync_data(&self) -> Op<()> {
        self.inner.sync_data()
    }
    fn set_life(&self, is_short: bool) -> Op<()> {
        self.inner.set_life(is_short)
    }
}

impl<T: Target> Target for Metered<T> {
    type File = MeteredFile<T::File>;

    fn prefix(&self) -> &Name {
        self.inner.prefix()
    }
    fn open(&self, path: &Name, flags: i32) -> Op<MeteredFile<T::File>> {
        Ok(MeteredFile { inner: self.inner.open(path, flags)?, written: self.written.clone() })
    }
    fn stat(&self, path: &Name) -> Op<u64> {
        self.inner.stat(path)
    }
    fn mkdir(&self, path: &Name) -> Op<()> {
        self.inner.mkdir(path)
    }
    fn unlink(&self, path: &Name) -> Op<()> {
        self.inner.unlink(path)
    }
    fn rmdir(&self, path: &Name) -> Op<()> {
        self.inner.rmdir(path)
    }
    fn rename(&self, old: &Name, new: &Name) -> Op<()> {
        self.inner.rename(old, new)
    }
    fn read_dir(&self, path: &Name, f: impl FnMut(&[u8], bool)) -> Op<u64> {
        self.inner.read_dir(path, f)
    }
    fn sync_dir(&self, path: &Name) -> Op<()> {
        self.inner.sync_dir(path)
    }
    fn statfs(&self) -> Op<u64> {
        self.inner.statfs()
    }
    fn set_times_now(&self, path: &Name) -> Op<()> {
        self.inner.set_times_now(path)
    }
    fn traffic(&self) -> Option<Traffic> {
        self.inner.traffic()
    }
    fn processes(&self) -> bool {
        // Another process would count for itself.
        false
    }
    fn place(&self) -> Option<PathBuf> {
        self.inner.place()
    }
    fn quiesce(&self) -> Res<()> {
        self.inner.quiesce()
    }
    fn helpers(&self) -> Helpers {
        self.inner.helpers()
    }
    fn enter(&mut self) -> Res<()> {
        self.inner.enter()
    }
    fn leave(&mut self) -> Res<()> {
        self.inner.leave()
    }
}
