//! Writing ahead: the pages of a file that grows go to the device while more come in, so that the
//! fsync at the end, or the pressure of dirty pages, finds little left.
//!
//! Whenever a write carries a file's end across a multiple of [`STEP`], the file is handed to a
//! thread of its own, which writes back what is dirty of it: clean pages, not durable ones
//! (`unsynced`). Only growth counts: pages written again and again are not written back each time,
//! and small files not at all. The writer waits for nothing; a file whose lock somebody has is left
//! to that one.
//!
//! Who keeps the pages itself is another matter, be it a kernel that hands over hundreds of MiB of
//! its cache, or a program that writes with O_DIRECT: there what is written again counts too, and
//! when a file is [`LAG`] steps behind since somebody last began to write it back, who brings more
//! writes back first: else each of these pages takes a frame, mostly one that the system has to
//! clear before its first use.

use crate::memfs::Cell;
use crate::volume::Inner;
use crate::writeback::background::Background;
use crate::writeback::capture::{For, With};
use lanefs_format::Ino;
use lanefs_sync::lock::{Condvar, Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

/// Bytes by which a file grows before it is written ahead.
const STEP: u64 = 4 << 20;
/// Steps that a file may be behind before a kernel's cache that is handed over waits for it.
const LAG: u32 = 4;
/// The most pages written at a turn: an fsync that comes meanwhile waits for them.
const TURN: usize = 4096;

/// Files whose growth is counted, at most.
const GROWN: usize = 256;

#[derive(Default)]
struct Queue {
    files: VecDeque<Ino>,
    /// By how many steps a file has grown since somebody last began to write it back.
    grown: HashMap<Ino, u32>,
    stop: bool,
}

/// The files that have grown, and the thread that writes them.
#[derive(Default)]
pub(crate) struct Ahead {
    queue: Mutex<Queue>,
    wake: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The thread holds the volume.
    busy: AtomicBool,
}

impl Ahead {
    /// The next file; `None` when it is time to end.
    fn next(&self) -> Option<Ino> {
        let mut q = self.queue.lock();
        loop {
            if q.stop {
                return None;
            }
            if let Some(ino) = q.files.pop_front() {
                return Some(ino);
            }
            self.wake.wait(&mut q);
        }
    }

    /// Whether the thread holds the volume just now.
    pub fn is_busy(&self) -> bool {
        self.busy.load(SeqCst)
    }

    /// Ends the thread and waits for it.
    pub fn stop(&self) {
        self.queue.lock().stop = true;
        self.wake.notify_all();
        if let Some(t) = self.thread.lock().take()
            && t.thread().id() != std::thread::current().id()
        {
            let _ = t.join();
        }
    }
}

impl Inner {
    /// Starts the thread.
    pub(super) fn start_ahead(self: &Arc<Inner>) -> std::io::Result<()> {
        let (weak, background) = (Arc::downgrade(self), self.background.clone());
        let t =
            std::thread::Builder::new().name("lanefs-ahead".into()).spawn(move || run(&weak, &background))?;
        *self.background.ahead.thread.lock() = Some(t);
        Ok(())
    }

    /// Hands a file over of which `bytes` up to `end` were written, if it is time. `once`: the
    /// caller holds no lock and has the pages still; it waits for the file when that is far behind.
    #[inline]
    pub(crate) fn has_grown(&self, cell: &Cell, end: u64, bytes: usize, once: bool) {
        if end / STEP != (end - bytes as u64) / STEP && self.hand_over(cell.ino) > LAG && once {
            lanefs_sync::about_to_wait();
            self.write_back_grown(cell, cell.sync_lock.lock());
        }
    }

    /// Returns by how many steps the file is behind.
    #[cold]
    fn hand_over(&self, ino: Ino) -> u32 {
        if !self.options.background {
            return 0;
        }
        let ahead = &self.background.ahead;
        let mut q = ahead.queue.lock();
        if q.grown.len() >= GROWN {
            // Counts of files that others wrote back are left behind. Without them a writer waits a
            // few steps later.
            q.grown.clear();
        }
        let steps = q.grown.entry(ino).or_default();
        *steps += 1;
        let steps = *steps;
        if !q.files.contains(&ino) {
            q.files.push_back(ino);
            drop(q);
            ahead.wake.notify_one();
        }
        steps
    }

    fn write_ahead(&self, ino: Ino) {
        let guard = crossbeam_epoch::pin();
        let Some(cell) = self.cells.get(ino, &guard) else { return self.is_written(ino) };
        // What has no name is not wanted on the device yet.
        // Relaxed: a name that goes meanwhile only makes the work useless.
        if cell.nlink.load(Relaxed) == 0 || !cell.has_dirty() {
            return self.is_written(ino);
        }
        let Some(l) = cell.sync_lock.try_lock() else { return };
        // It grew by many steps before this thread came to it, and grows no more, perhaps: nobody
        // would hand the rest over.
        if self.write_back_grown(cell, l) >= TURN && cell.has_dirty() {
            let mut q = self.background.ahead.queue.lock();
            if !q.files.contains(&ino) {
                q.files.push_back(ino);
            }
        }
    }

    /// Somebody begins to write the file back, or nothing of it is to be written.
    fn is_written(&self, ino: Ino) {
        self.background.ahead.queue.lock().grown.remove(&ino);
    }

    /// Returns the pages written.
    fn write_back_grown<'c>(&self, cell: &'c Cell, l: MutexGuard<'c, ()>) -> usize {
        self.is_written(cell.ino);
        let written = self.write_back_cell(cell, l, For::Later, With::Nothing, TURN).unwrap_or_else(|e| {
            tracing::warn!("writing inode {} ahead failed: {e}", cell.ino);
            0
        });
        if cell.has_dirty() {
            self.dirty_cell(cell, 0);
        }
        written
    }
}

fn run(weak: &Weak<Inner>, background: &Background) {
    while let Some(ino) = background.ahead.next() {
        background.ahead.busy.store(true, SeqCst);
        let Some(v) = weak.upgrade() else { return };
        if v.check_alive().is_err() {
            return;
        }
        v.write_ahead(ino);
        drop(v);
        background.ahead.busy.store(false, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MountOptions, Volume};
    use lanefs_store::device::{Device, MemoryDevice};
    use lanefs_store::{FormatOptions, Store};

    /// The thread came late: the file had grown by more than a turn, and did not grow any more.
    #[test]
    fn what_a_turn_leaves_of_a_file_is_not_left_for_good() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(128 << 20).unwrap());
        Store::format(std::slice::from_ref(&device), &FormatOptions::default()).unwrap();
        let options = MountOptions { background: false, cache_size: 256 << 20, ..MountOptions::default() };
        let v = Volume::open_devices(vec![device], &options).unwrap();
        let f = v.fs().create("/f").unwrap();
        let pages = 2 * TURN + TURN / 2;
        for n in 0..pages {
            f.write_all_at(&[1; 4096], n as u64 * 4096).unwrap();
        }
        let (inner, ino) = (&v.0.inner, f.stat().unwrap().ino);
        let (mut turns, mut next) = (0, Some(ino));
        while let Some(ino) = next {
            inner.write_ahead(ino);
            turns += 1;
            next = inner.background.ahead.queue.lock().files.pop_front();
        }
        let left =
            inner.cells.get(ino, &crossbeam_epoch::pin()).and_then(|c| c.data()).map(|d| d.dirty_pages());
        assert_eq!((turns, left), (3, Some(0)));
    }
}
