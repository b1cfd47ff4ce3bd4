//! Writing ahead: the pages of a file that grows go to the device while more come in, so that the
//! fsync at the end, or the pressure of dirty pages, finds little left.
//!
//! Whenever a write carries a file's end across a multiple of [`STEP`], the file is handed to a
//! thread of its own, which writes back what is dirty of it: clean pages, not durable ones
//! (`unsynced`). Only growth counts: pages written again and again are not written back each time,
//! and small files not at all. The writer waits for nothing; a file whose lock somebody has is left
//! to that one. Where the host of an image has no space the pages stay dirty, for the background.
//!
//! A caller that keeps the pages itself is another matter, be it a kernel that hands over hundreds
//! of MiB of its cache, or a program that writes with O_DIRECT: there what is written again counts
//! too, and when a file is [`LAG`] steps behind since somebody last began to write it back, who
//! brings more writes back first: else each of these pages takes a frame, mostly one that the
//! system has to clear before its first use. Where a host is short it is memory that holds that
//! caller back, not the file's lock: whoever has that may wait for space on the host.

use crate::core::STEP;
use crate::core::host::is_host_pending;
use crate::memfs::Inode;
use crate::persist::Persist;
use crate::persist::capture::{For, With};
use crate::persist::writeback;
use lanefs_format::{BLOCK_SIZE, Ino};
use lanefs_sync::SignalsBlocked;
use lanefs_sync::lock::{Condvar, Mutex, MutexGuard, try_lock_for};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Steps that a file may be behind before a kernel's cache that is handed over waits for it.
const LAG: u32 = 4;
/// The most pages written at a turn: an fsync that comes meanwhile waits for them.
const TURN: usize = 4096;

/// Files whose growth is counted, at most.
const GROWN: usize = 256;

/// How long a writer waits for a file's lock before it looks at the hosts.
const LOOK: Duration = Duration::from_millis(10);

const _: () = assert!((TURN * BLOCK_SIZE) as u64 >= STEP, "a turn writes as much as a step");

/// The files that wait for the thread.
#[derive(Default)]
struct Queue {
    /// The files to be written, each once, the first that grew first.
    files: VecDeque<Ino>,
    /// By how many steps a file has grown since somebody last began to write it back.
    grown: HashMap<Ino, u32>,
    /// It is time to end.
    stop: bool,
}

impl Queue {
    /// Puts a file at the end, unless it waits already; returns whether it did not.
    fn add(&mut self, ino: Ino) -> bool {
        debug_assert!(!ino.is_none(), "no inode has grown");
        let is_new = !self.files.contains(&ino);
        if is_new {
            self.files.push_back(ino);
        }
        self.check_invariants();
        is_new
    }

    /// Checks the bounds of what is kept.
    fn check_invariants(&self) {
        debug_assert!(self.grown.len() <= GROWN, "{} files are counted", self.grown.len());
        let ends = (self.files.front(), self.files.back());
        debug_assert!(self.files.len() < 2 || ends.0 != ends.1, "a file waits twice");
    }
}

/// The files that have grown, and the thread that writes them.
#[derive(Default)]
pub(crate) struct Ahead {
    queue: Mutex<Queue>,
    wake: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Ahead {
    /// Waits for the next file and takes it; `None` when it is time to end.
    fn next(&self) -> Option<Ino> {
        let mut q = self.queue.lock();
        loop {
            q.check_invariants();
            if q.stop {
                return None;
            }
            if let Some(ino) = q.files.pop_front() {
                return Some(ino);
            }
            self.wake.wait(&mut q);
        }
    }

    /// Returns whether the file is so far behind that who hands over more waits for it.
    #[cfg(test)]
    pub(super) fn is_far_behind(&self, ino: Ino) -> bool {
        self.queue.lock().grown.get(&ino).is_some_and(|steps| *steps > LAG)
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

/// Starts the thread.
pub(super) fn start_ahead(persist: &Arc<Persist>) -> std::io::Result<()> {
    let (weak, ahead) = (Arc::downgrade(persist), persist.ahead.clone());
    let _blocked = SignalsBlocked::new();
    let t = std::thread::Builder::new().name("lanefs-ahead".into()).spawn(move || run(&weak, &ahead))?;
    let before = persist.ahead.thread.lock().replace(t);
    debug_assert!(before.is_none(), "a volume has one such thread");
    drop(before);
    Ok(())
}

/// Takes note that a file's end has moved by a step. `wait`: the caller holds no lock and has the
/// pages still; it waits for the file when that is far behind.
pub(crate) fn has_grown(persist: &Persist, inode: &Inode, wait: bool) {
    // Where a host is short, memory is what holds the caller back: see `persist::host`.
    if hand_over(persist, inode.ino) > LAG && wait && !persist.store.is_host_short() {
        lanefs_sync::about_to_wait();
        if let Some(l) = lock_unless_host_short(persist, inode) {
            write_back_grown(persist, inode, l);
        }
    }
}

/// Takes the lock of a file for its writeback, unless a host becomes short meanwhile.
fn lock_unless_host_short<'c>(persist: &Persist, inode: &'c Inode) -> Option<MutexGuard<'c, ()>> {
    debug_assert!(persist.options.background, "nobody writes ahead");
    loop {
        let l = try_lock_for(&inode.sync_lock, LOOK);
        if l.is_some() || persist.store.is_host_short() {
            return l;
        }
    }
}

/// Returns by how many steps the file is behind.
#[cold]
fn hand_over(persist: &Persist, ino: Ino) -> u32 {
    if !persist.options.background {
        return 0;
    }
    let ahead = &persist.ahead;
    let mut q = ahead.queue.lock();
    if q.grown.len() >= GROWN {
        // Counts of files that others wrote back are left behind. Without them a writer waits a
        // few steps later.
        q.grown.clear();
    }
    let steps = q.grown.entry(ino).or_default();
    *steps += 1;
    let steps = *steps;
    if q.add(ino) {
        drop(q);
        ahead.wake.notify_one();
    }
    debug_assert!(steps > 0, "it has grown by this one");
    steps
}

/// Writes back a file that has grown, unless somebody has its lock.
fn write_ahead(persist: &Persist, ino: Ino) {
    let guard = crossbeam_epoch::pin();
    let Some(inode) = persist.memfs.inodes.get(ino, &guard) else { return is_written(persist, ino) };
    // What has no name is not wanted on the device yet.
    // Relaxed: a name that goes meanwhile only makes the work useless.
    if inode.nlink.load(Ordering::Relaxed) == 0 || !inode.has_dirty() {
        return is_written(persist, ino);
    }
    if persist.store.is_host_short() {
        return; // Whoever syncs it waits, or the background writes it when there is space.
    }
    let Some(l) = inode.sync_lock.try_lock() else { return };
    // It grew by many steps before this thread came to it, and grows no more, perhaps: nobody
    // would hand the rest over.
    if write_back_grown(persist, inode, l) >= TURN && inode.has_dirty() {
        persist.ahead.queue.lock().add(ino);
    }
}

/// Forgets by how much a file has grown: somebody begins to write it back, or nothing of it is to
/// be written.
fn is_written(persist: &Persist, ino: Ino) {
    persist.ahead.queue.lock().grown.remove(&ino);
}

/// Writes back a turn of a file; returns how many pages that is.
fn write_back_grown<'c>(persist: &Persist, inode: &'c Inode, l: MutexGuard<'c, ()>) -> usize {
    debug_assert!(inode.data().is_some(), "inode {} has no pages", inode.ino);
    is_written(persist, inode.ino);
    let written = writeback::write_back_inode(persist, inode, l, For::Later, With::Nothing, TURN)
        .unwrap_or_else(|e| {
            // The background writes it when a host has space for it.
            if !is_host_pending(&e) {
                tracing::warn!("writing inode {} ahead failed: {e}", inode.ino);
            }
            0
        });
    if inode.has_dirty() {
        persist.journal.dirty_inode(inode, 0);
    }
    written
}

/// Writes file after file, as the thread, until that is stopped or the volume is gone.
fn run(weak: &Weak<Persist>, ahead: &Ahead) {
    while let Some(ino) = ahead.next() {
        let Some(persist) = weak.upgrade() else { return };
        if persist.check_alive().is_err() {
            return;
        }
        write_ahead(&persist, ino);
        drop(persist);
        debug_assert!(!crossbeam_epoch::is_pinned(), "the thread keeps the collector from going on");
    }
}

#[cfg(test)]
mod tests {
    use super::write_ahead;
    use super::*;
    use crate::{MountOptions, Volume};
    use lanefs_store::device::{Device, MemoryDevice};
    use lanefs_store::{FormatOptions, Store};

    /// The thread came late: the file had grown by more than a turn, and did not grow any more.
    #[test]
    fn what_a_turn_leaves_of_a_file_is_not_left_for_good() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20).unwrap());
        Store::format(std::slice::from_ref(&device), &FormatOptions::default()).unwrap();
        let options = MountOptions { background: false, cache_size: 256 << 20, ..MountOptions::default() };
        let v = Volume::open_devices(vec![device], &options).unwrap();
        let f = v.fs().create("/f").unwrap();
        let pages = 2 * TURN + TURN / 2;
        for n in 0..pages {
            f.write_all_at(&[1; 4096], n as u64 * 4096).unwrap();
        }
        let (inner, ino) = (&v.0.persist, f.stat().unwrap().ino);
        let (mut turns, mut next) = (0, Some(ino));
        while let Some(ino) = next {
            write_ahead(inner, ino);
            turns += 1;
            next = inner.ahead.queue.lock().files.pop_front();
        }
        let left = inner
            .memfs
            .inodes
            .get(ino, &crossbeam_epoch::pin())
            .and_then(|c| c.data())
            .map(|d| d.dirty_pages());
        assert_eq!((turns, left), (3, Some(0)));
    }
}
