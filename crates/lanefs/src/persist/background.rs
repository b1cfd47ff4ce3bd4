//! The thread that does the work nobody asked for: reaping, writing back, committing,
//! checkpointing, cleaning, reclaiming. (Files that grow fast are written back by another,
//! [`super::ahead`].)

use crate::core::memory;
use crate::core::memory::INODE_COST;
use crate::core::space;
use crate::error::Result;
use crate::persist::Persist;
use crate::persist::ahead;
use crate::persist::checkpoint;
use crate::persist::commit;
use crate::persist::reaper;
use crate::persist::reclaim;
use crate::persist::writeback;
use lanefs_store::Pressure;
use lanefs_sync::lock::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The time between two looks of the thread.
const TICK: Duration = Duration::from_millis(200);
/// The same while so much is logged between two looks that a commit is due at each.
const BUSY_TICK: Duration = Duration::from_millis(20);
/// Log to recover after a crash above which a checkpoint is due.
const LOG_LIMIT: u64 = 512 << 20;
/// A checkpoint is due after this long if anything was committed.
const CHECKPOINT_AFTER: Duration = Duration::from_secs(30);
/// Bytes of groups that are committed, stay in memory until they are folded, and are worth a
/// checkpoint when nobody changes anything.
pub(super) const QUIET_BYTES: usize = 4 << 20;
/// The time since the last checkpoint after which that is.
pub(super) const QUIET_AFTER: Duration = Duration::from_secs(5);

const _: () = assert!(BUSY_TICK.as_millis() < TICK.as_millis());
const _: () = assert!(TICK.as_millis() < QUIET_AFTER.as_millis(), "a quiet time spans several rounds");
const _: () = assert!(QUIET_AFTER.as_millis() < CHECKPOINT_AFTER.as_millis(), "else it would never be due");
const _: () = assert!((QUIET_BYTES as u64) < LOG_LIMIT, "else the log would be too long before");

/// The background thread and what it shares with those who wake it. On lines of its own: the
/// allocator would put beside it what has other writers.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Background {
    thread: Mutex<Option<JoinHandle<()>>>,
    /// It is time to end. Written once, by who ends the thread, before it wakes it. SeqCst: it
    /// happens once, and who finds it set starts to wait for no round any more.
    stop: AtomicBool,
    woken: Mutex<bool>,
    wake: Condvar,
    /// Much is logged between two rounds. Written and read by the background thread, and by calls
    /// of `Volume::tick`. Relaxed: a hint how long to sleep.
    busy: AtomicBool,
    /// Wakes those who wait for a round.
    rounds: Condvar,
    pub(super) last_checkpoint: Mutex<Option<Instant>>,
    /// When it was last looked whether the logs are quiet.
    last_mark: Mutex<Option<Instant>>,
}

impl Background {
    /// Wakes the thread for a round, unless it has been woken.
    pub fn wake(&self) {
        let mut w = self.woken.lock();
        if !*w {
            *w = true;
            self.wake.notify_one();
        }
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

    /// Returns whether there is a thread that does the work.
    pub fn is_running(&self) -> bool {
        self.thread.lock().is_some() && !self.stop.load(Ordering::SeqCst)
    }

    /// Ends the threads and waits for them.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake();
        let t = self.thread.lock().take();
        if let Some(t) = t
            && t.thread().id() != std::thread::current().id()
        {
            let _ = t.join();
        }
        debug_assert!(!self.is_running(), "who waits for a round would wait in vain");
    }
}

/// Starts the background threads, unless the options forbid it.
pub(crate) fn start_background(persist: &Arc<Persist>) -> Result<()> {
    if !persist.options.background || persist.options.read_only {
        return Ok(());
    }
    let (weak, background) = (Arc::downgrade(persist), persist.background.clone());
    let t = std::thread::Builder::new()
        .name("lanefs".into())
        .spawn(move || run(&weak, &background))
        .map_err(|e| crate::Error::Posix(e.raw_os_error().unwrap_or(libc::EAGAIN)))?;
    let before = persist.background.thread.lock().replace(t);
    debug_assert!(before.is_none(), "a volume has one such thread");
    drop(before);
    ahead::start_ahead(persist).map_err(|e| crate::Error::Posix(e.raw_os_error().unwrap_or(libc::EAGAIN)))?;
    Ok(())
}

/// Does one round. `all`: does everything that could be done, whatever its age (tests and
/// simulation).
pub(crate) fn tick(persist: &Persist, all: bool) -> Result<()> {
    if persist.options.read_only {
        return Ok(());
    }
    // Nothing was changed since the last commit: looked at before there is another one.
    let is_quiet = persist.journal.open_log_bytes() == 0;
    reaper::reap(persist, all)?;
    writeback::collect_dirty(persist);
    let over = memory::meta_is_over(persist);
    // Inodes that are dirty (an access time is enough) cannot leave memory.
    let dirty = persist.flush.lock().queue.len() * INODE_COST;
    let expire = match all || persist.memfs.frames.over_background() || over && exceeds_share(persist, dirty)
    {
        true => Duration::ZERO,
        false => persist.options.dirty_expire,
    };
    write_back_old(persist, expire);
    let lane = persist.journal.lanes.mine();
    persist.memfs.frames.reclaim(lane, persist.memfs.frames.frames() / 64);
    memory::update_throttle(persist);
    let (last, bytes) = {
        let b = persist.journal.backlog.lock();
        (b.last, b.bytes)
    };
    // An epoch without names is next to nothing.
    let mut worked = commit_if_due(persist, last, all)? && !is_quiet;
    let p = persist.store.pressure();
    let low = p.free_segments < p.low_water;
    let due = is_checkpoint_due(persist, &p, bytes, is_quiet);
    // What keeps the cleaner from going on must not keep the checkpoint: that frees what was
    // emptied before.
    let cleaned = match low && p.free_segments + p.pending_segments < p.low_water {
        true => persist.store.clean(p.low_water * 2).map(drop),
        false => Ok(()),
    };
    if over {
        persist.store.shrink();
    }
    if due || low || space::log_needs_fold(persist) || over && is_memory_held(persist) || all {
        fold_and_collect(persist)?;
        worked = true;
    }
    if over {
        reclaim::reclaim_inodes(persist);
    }
    memory::update_throttle(persist);
    if let Some(give_back) = persist.options.at_rest.filter(|_| worked) {
        give_back();
    }
    mark_quiet_logs(persist, all)?;
    Ok(cleaned?)
}

/// Commits the running epoch if much is logged or the `last` commit is long ago; returns whether it
/// was. `all`: in any case.
fn commit_if_due(persist: &Persist, last: Option<Instant>, all: bool) -> Result<bool> {
    let busy = persist.journal.open_log_bytes() > memory::commit_bytes(persist);
    persist.background.busy.store(busy, Ordering::Relaxed);
    let due = all || busy || last.is_none_or(|t| t.elapsed() >= persist.options.commit_interval);
    if due {
        commit::seal_and_commit(persist)?;
        reaper::release_cancelled(persist);
        persist.journal.let_go_of_committed();
    }
    Ok(due)
}

/// Returns whether a checkpoint is due for the log that has to be recovered without it, or for what
/// it gives back. `bytes`: those of groups that wait for it. `is_quiet`: nobody changes anything.
fn is_checkpoint_due(persist: &Persist, p: &Pressure, bytes: usize, is_quiet: bool) -> bool {
    let since = persist.background.last_checkpoint.lock().get_or_insert_with(Instant::now).elapsed();
    // Promises to inodes that may be gone already: a checkpoint gives them back before somebody
    // has to wait for them.
    let space = persist.store.space();
    let short = space.reserved > space.free && bytes > 0;
    let quiet = is_quiet && bytes > QUIET_BYTES && since > QUIET_AFTER;
    let old = (bytes > 0 || p.log_bytes > 0) && since > CHECKPOINT_AFTER;
    p.log_bytes > LOG_LIMIT || old || quiet || short
}

/// Returns whether much of the memory, which exceeds its share, can be freed only behind a
/// checkpoint: what is logged, written back but not synced, or not yet in the tree.
fn is_memory_held(persist: &Persist) -> bool {
    let written = persist.flush.lock().written() * INODE_COST;
    let held = persist.journal.log_bytes() + written + persist.store.dirty_memory();
    // Little of that may keep much: then callers wait for nothing else.
    let stuck = || memory::is_tight(persist) && persist.reclaim.lock().fruitless && held > 0;
    exceeds_share(persist, held) || stuck()
}

/// Makes a checkpoint, and frees the memory of what it folded.
fn fold_and_collect(persist: &Persist) -> Result<()> {
    // Else it writes the inodes of files that are gone, and the next one frees them.
    reaper::reap_for_checkpoint(persist)?;
    checkpoint::checkpoint(persist)?;
    persist.reclaim.lock().fruitless = false;
    // What was removed is free memory only once the collector has come to it, which nothing
    // but use turns. Twice: the collector's own lists are let go of in the first.
    reclaim::collect_all();
    reclaim::collect_all();
    *persist.background.last_checkpoint.lock() = Some(Instant::now());
    Ok(())
}

/// Has logs marked that stay as they are for as long as commits are apart: see the store.
fn mark_quiet_logs(persist: &Persist, all: bool) -> Result<()> {
    let mut last = persist.background.last_mark.lock();
    let now = Instant::now();
    if !all && now.duration_since(*last.get_or_insert(now)) >= persist.options.commit_interval {
        *last = Some(now);
        persist.store.mark_quiet_logs()?;
    }
    Ok(())
}

/// Returns whether so much is worth a round of its own to get it out of memory.
fn exceeds_share(persist: &Persist, bytes: usize) -> bool {
    bytes > (persist.budget.meta_limit / 4) as usize
}

/// Writes back what has been dirty for `age`.
fn write_back_old(persist: &Persist, age: Duration) {
    let old = persist.flush.lock().queue.iter().take_while(|d| d.0.elapsed() >= age).count();
    if old > 0 {
        // A page budget per round keeps the thread responsive; the rest follows in the next
        // one.
        writeback::write_back_some(persist, 64 * 1024);
    }
}

/// Does round after round, as the thread, until that is stopped or the volume is gone.
fn run(weak: &Weak<Persist>, background: &Background) {
    loop {
        let Some(persist) = weak.upgrade() else { return };
        debug_assert!(!crossbeam_epoch::is_pinned(), "a round keeps the collector from going on");
        if persist.background.stop.load(Ordering::SeqCst) {
            return;
        }
        if let Err(e) = tick(&persist, false) {
            if persist.check_alive().is_err() {
                return;
            }
            tracing::error!("background work: {e}");
        }
        let hurry = memory::callers_wait(&persist);
        // The wait keeps nothing alive but the condition itself.
        drop(persist);
        background.rounds.notify_all();
        let pause = match hurry {
            true => Duration::from_millis(1),
            false if background.busy.load(Ordering::Relaxed) => BUSY_TICK,
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
