//! The thread that does the work nobody asked for: reaping, writing back, committing,
//! checkpointing, cleaning, reclaiming. (Files that grow fast are written back by another,
//! [`super::ahead`].)

use crate::error::Result;
use crate::memfs::data::Writeback;
use crate::volume::Inner;
use crate::writeback::ahead::Ahead;
use crate::writeback::page_store::Pressure;
use crate::writeback::reclaim::CELL_COST;
use lanefs_sync::CachePadded;
use lanefs_sync::lock::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the thread looks.
const TICK: Duration = Duration::from_millis(200);
/// Groups logged and not committed after which a commit is due, or an eighth of the metadata's
/// share of the budget: what an epoch holds is absorbed in one go, out of the processor's cache if
/// it is more.
const COMMIT_BYTES: usize = 8 << 20;
/// How often the thread looks while that much is logged between two looks.
const BUSY_TICK: Duration = Duration::from_millis(20);
/// Log to recover after a crash above which a checkpoint is due.
const LOG_LIMIT: u64 = 512 << 20;
/// A checkpoint is due after this long if anything was committed.
const CHECKPOINT_AFTER: Duration = Duration::from_secs(30);
/// Bytes of groups that are committed, stay in memory until they are folded, and are worth a
/// checkpoint when nobody changes anything.
pub(super) const QUIET_BYTES: usize = 4 << 20;
/// How long after the last checkpoint.
pub(super) const QUIET_AFTER: Duration = Duration::from_secs(5);

/// On lines of its own: creators read `tight`, and whatever the allocator would put beside it has
/// other writers.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Background {
    thread: Mutex<Option<JoinHandle<()>>>,
    stop: AtomicBool,
    woken: Mutex<bool>,
    wake: Condvar,
    /// Metadata exceeds its share: creators wait. Written by the background thread, and by creators
    /// that find it so.
    tight: CachePadded<AtomicBool>,
    /// Much is logged between two rounds. Written and read by the background thread.
    busy: AtomicBool,
    rounds: Condvar,
    pub(super) last_checkpoint: Mutex<Option<Instant>>,
    /// When it was last looked whether the logs are quiet.
    last_mark: Mutex<Option<Instant>>,
    pub ahead: Ahead,
}

impl Background {
    pub fn wake(&self) {
        let mut w = self.woken.lock();
        if !*w {
            *w = true;
            self.wake.notify_one();
        }
    }

    /// Whether creators should wait. One relaxed load of a line that is written on change only.
    #[inline]
    pub fn meta_is_tight(&self) -> bool {
        self.tight.load(Relaxed)
    }

    /// Wakes the thread and waits for a round of it, a moment at most.
    pub fn wake_and_wait(&self) {
        lanefs_sync::about_to_wait();
        if self.thread.lock().is_none() {
            return;
        }
        self.wake();
        let mut w = self.woken.lock();
        self.rounds.wait_for(&mut w, Duration::from_millis(50));
    }

    /// Whether there is a thread that does the work.
    pub fn is_running(&self) -> bool {
        self.thread.lock().is_some() && !self.stop.load(SeqCst)
    }

    /// Ends the threads and waits for them.
    pub fn stop(&self) {
        self.stop.store(true, SeqCst);
        self.wake();
        self.ahead.stop();
        let t = self.thread.lock().take();
        if let Some(t) = t
            && t.thread().id() != std::thread::current().id()
        {
            let _ = t.join();
        }
    }
}

impl Inner {
    /// Starts the background thread, unless the options say no, and tells the frame pool whom to
    /// call.
    pub(crate) fn start_background(self: &Arc<Inner>) -> Result<()> {
        let pressure: Arc<dyn Writeback> = Arc::new(Pressure(Arc::downgrade(self)));
        self.frames.set_writeback(pressure);
        if !self.options.background || self.options.read_only {
            return Ok(());
        }
        let (weak, background) = (Arc::downgrade(self), self.background.clone());
        let t = std::thread::Builder::new()
            .name("lanefs".into())
            .spawn(move || run(&weak, &background))
            .map_err(|e| crate::Error::Posix(e.raw_os_error().unwrap_or(libc::EAGAIN)))?;
        *self.background.thread.lock() = Some(t);
        self.start_ahead().map_err(|e| crate::Error::Posix(e.raw_os_error().unwrap_or(libc::EAGAIN)))?;
        Ok(())
    }

    /// One round. `all`: do everything that could be done, whatever its age (tests and simulation).
    pub(crate) fn tick(&self, all: bool) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        // Nothing was changed since the last commit: looked at before there is another one.
        let is_quiet = self.open_log_bytes() == 0;
        self.reap(all)?;
        self.collect_dirty();
        let over = self.meta_is_over();
        // Cells that are dirty (an access time is enough) cannot leave memory.
        let dirty = self.flush.lock().queue.len() * CELL_COST;
        let expire = match all || self.frames.over_background() || over && self.exceeds_share(dirty) {
            true => Duration::ZERO,
            false => self.options.dirty_expire,
        };
        self.write_back_old(expire);
        let lane = self.lanes.mine();
        self.frames.reclaim(lane, self.frames.frames() / 64);
        self.update_throttle();
        let (last, bytes) = {
            let b = self.commit.lock();
            (b.last, b.bytes)
        };
        let busy = self.open_log_bytes() > self.commit_bytes();
        self.background.busy.store(busy, Relaxed);
        let mut worked = false;
        if all || busy || last.is_none_or(|t| t.elapsed() >= self.options.commit_interval) {
            self.seal_and_commit()?;
            self.release_cancelled();
            // An epoch without names is next to nothing.
            worked = !is_quiet;
            self.let_go_of_committed();
        }
        let p = self.store.pressure();
        let since = self.background.last_checkpoint.lock().get_or_insert_with(Instant::now).elapsed();
        let low = p.free_segments < p.low_water;
        // Promises to inodes that may be gone already: a checkpoint gives them back before somebody
        // has to wait for them.
        let space = self.store.space();
        let crowded = space.reserved > space.free && bytes > 0;
        let quiet = is_quiet && bytes > QUIET_BYTES && since > QUIET_AFTER;
        let due =
            p.log_bytes > LOG_LIMIT || (bytes > 0 || p.log_bytes > 0) && since > CHECKPOINT_AFTER || quiet;
        // What keeps the cleaner from going on must not keep the checkpoint: that frees what was
        // emptied before.
        let cleaned = match low && p.free_segments + p.pending_segments < p.low_water {
            true => self.store.clean(p.low_water * 2).map(drop),
            false => Ok(()),
        };
        if over {
            self.store.shrink();
        }
        // What is logged, written back but not synced, or not yet in the tree cannot leave memory
        // before a checkpoint.
        let written = self.flush.lock().written() * CELL_COST;
        let held = self.log_bytes() + written + self.store.dirty_memory();
        // Little of that may keep much: then callers wait for nothing else.
        let stuck = over && self.is_tight() && self.reclaim.lock().fruitless && held > 0;
        if due || low || crowded || self.log_needs_fold() || over && self.exceeds_share(held) || stuck || all
        {
            // Else it writes the inodes of files that are gone, and the next one frees them.
            self.reap_for_checkpoint()?;
            self.checkpoint()?;
            self.reclaim.lock().fruitless = false;
            // What was removed is free memory only once the collector has come to it, which nothing
            // but use turns. Twice: the collector's own lists are let go of in the first.
            super::reclaim::collect_all();
            super::reclaim::collect_all();
            *self.background.last_checkpoint.lock() = Some(Instant::now());
            worked = true;
        }
        if over {
            self.reclaim_cells();
        }
        self.update_throttle();
        if let Some(give_back) = self.options.at_rest.filter(|_| worked) {
            give_back();
        }
        self.mark_quiet_logs(all)?;
        Ok(cleaned?)
    }

    /// Has logs marked that stay as they are for as long as commits are apart: see the store.
    fn mark_quiet_logs(&self, all: bool) -> Result<()> {
        let mut last = self.background.last_mark.lock();
        let now = Instant::now();
        if !all && now.duration_since(*last.get_or_insert(now)) >= self.options.commit_interval {
            *last = Some(now);
            self.store.mark_quiet_logs()?;
        }
        Ok(())
    }

    /// Whether so much is worth a round of its own to get it out of memory.
    fn exceeds_share(&self, bytes: usize) -> bool {
        bytes > (self.meta_budget / 4) as usize
    }

    /// Bytes logged after which a commit is due.
    pub(super) fn commit_bytes(&self) -> usize {
        COMMIT_BYTES.min((self.meta_budget / 8) as usize)
    }

    /// Says whether creators have to wait. Called by the background before and after the work that
    /// makes room, and by creators now and then.
    pub(crate) fn update_throttle(&self) {
        self.background.tight.store(self.is_tight(), Relaxed);
    }

    /// Metadata exceeds its share by much.
    pub(super) fn is_tight(&self) -> bool {
        self.meta_bytes() > self.meta_budget + self.meta_budget / 8
    }

    /// Writes back what has been dirty for `age`.
    fn write_back_old(&self, age: Duration) {
        let old = self.flush.lock().queue.iter().take_while(|d| d.0.elapsed() >= age).count();
        if old > 0 {
            // A page budget per round keeps the thread responsive; the rest follows in the next
            // one.
            self.write_back_some(64 * 1024);
        }
    }
}

fn run(weak: &Weak<Inner>, background: &Background) {
    loop {
        let Some(v) = weak.upgrade() else { return };
        if v.background.stop.load(SeqCst) {
            return;
        }
        if let Err(e) = v.tick(false) {
            if v.check_alive().is_err() {
                return;
            }
            tracing::error!("background work: {e}");
        }
        // The wait keeps nothing alive but the condition itself.
        drop(v);
        background.rounds.notify_all();
        let pause = match background.meta_is_tight() {
            true => Duration::from_millis(1),
            false if background.busy.load(Relaxed) => BUSY_TICK,
            false => TICK,
        };
        let mut w = background.woken.lock();
        if !*w {
            background.wake.wait_for(&mut w, pause);
        }
        *w = false;
        drop(w);
    }
}
