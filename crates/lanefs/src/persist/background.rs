//! The work that nobody asked for, and the threads that do it.
//!
//! One thread ends inodes and commits. Another writes back, folds, cleans and reclaims, which may
//! take seconds: commits go on beside it, and what is logged is durable within the time that was
//! promised, whatever the other is at. (Files that grow fast are written back by a third,
//! [`super::ahead`].)

use crate::core::memory;
use crate::core::memory::INODE_COST;
use crate::core::space;
use crate::error::Result;
use crate::persist::Persist;
use crate::persist::ahead;
use crate::persist::checkpoint;
use crate::persist::commit;
use crate::persist::host;
use crate::persist::reaper;
use crate::persist::reclaim;
use crate::persist::worker::{self, Rounds, Worker};
use crate::persist::writeback;
use lanefs_format::Ino;
use lanefs_store::Pressure;
use lanefs_sync::lock::Mutex;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time between two looks of a thread.
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

/// The segments that are worth a checkpoint where the host of an image has little space left.
const WORTH_FOR_HOST: u64 = 8;
/// The time between two such checkpoints.
const HOST_AFTER: Duration = Duration::from_millis(500);
/// The time for which Linux keeps what was written to a file that stays open, by default
/// (`vm.dirty_expire_centisecs`).
const KERNEL_HOLDS: Duration = Duration::from_secs(30);
/// Checkpoints for the sake of content alone take one part of so many of all time.
const PART_OF_TIME: u32 = 20;

const _: () = assert!(BUSY_TICK.as_millis() < TICK.as_millis());
const _: () = assert!(TICK.as_millis() < QUIET_AFTER.as_millis(), "a quiet time spans several rounds");
const _: () = assert!(QUIET_AFTER.as_millis() < CHECKPOINT_AFTER.as_millis(), "else it would never be due");
const _: () = assert!((QUIET_BYTES as u64) < LOG_LIMIT, "else the log would be too long before");

/// The background threads and what they share with those who wake them. On lines of its own: the
/// allocator would put beside it what has other writers.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Background {
    /// Ends inodes and commits.
    committer: Arc<Worker>,
    /// Writes back, folds, cleans and reclaims. What it does may take seconds.
    folder: Arc<Worker>,
    /// Much is logged between two rounds. Written by the committer, and by calls of `Volume::tick`;
    /// read by both threads. Relaxed: a hint how long to sleep.
    busy: AtomicBool,
    /// Inodes with much content wait for their end. Set by who takes its last name or closes it,
    /// taken by the committer. Relaxed: it comes with a wake, whose lock orders it, and a round
    /// that misses it is late, not wrong.
    much_ended: AtomicBool,
    /// Commits that had something to write. Written by who commits because it is due. Relaxed: the
    /// folder compares it with what it was.
    changes: AtomicU64,
    /// What `changes` was at the folder's last round.
    changes_seen: Mutex<u64>,
    pub(super) last_checkpoint: Mutex<Option<Instant>>,
    /// Nanoseconds that the last checkpoint took. Written by the folder, and by calls of
    /// `Volume::tick`. Relaxed: a hint how often there may be one.
    took: AtomicU64,
    /// When it was last looked whether the logs are quiet.
    last_mark: Mutex<Option<Instant>>,
    /// When it was last looked what a kernel has gathered.
    last_hastened: Mutex<Option<Instant>>,
}

impl Background {
    /// Wakes the threads for a round, unless they have been woken.
    pub fn wake(&self) {
        self.committer.wake();
        self.folder.wake();
    }

    /// Wakes the thread that ends inodes, for much content of one or of many: its memory is wanted
    /// sooner than at the next look.
    pub fn end_soon(&self) {
        self.much_ended.store(true, Ordering::Relaxed);
        self.committer.wake();
    }

    /// Wakes the threads and waits for a round of the one that frees memory and space, a moment at
    /// most.
    pub fn wake_and_wait(&self) {
        lanefs_sync::about_to_wait();
        if !self.is_running() {
            return;
        }
        self.committer.wake();
        self.folder.wake_and_wait(Duration::from_millis(50));
    }

    /// Returns whether there are threads that do the work.
    pub fn is_running(&self) -> bool {
        self.folder.is_running()
    }

    /// Ends the threads and waits for them.
    pub fn stop(&self) {
        self.committer.stop();
        self.folder.stop();
        debug_assert!(!self.is_running(), "who waits for a round would wait in vain");
    }
}

/// Starts the background threads, unless the options forbid it.
pub(crate) fn start_background(persist: &Arc<Persist>) -> Result<()> {
    if !persist.options.background || persist.options.read_only {
        return Ok(());
    }
    let start = || {
        worker::start(
            persist,
            "lanefs",
            &persist.background.folder,
            Rounds { round: |p| fold_round(p, false), pause },
        )?;
        worker::start(
            persist,
            "lanefs-log",
            &persist.background.committer,
            Rounds { round: |p| commit_round(p, false), pause },
        )?;
        ahead::start_ahead(persist)
    };
    start().map_err(|e| crate::Error::Posix(e.raw_os_error().unwrap_or(libc::EAGAIN)))
}

/// Returns how long a thread that has done a round waits for the next.
fn pause(persist: &Persist) -> Duration {
    match memory::callers_wait(persist) {
        true => Duration::from_millis(1),
        false if persist.background.busy.load(Ordering::Relaxed) => BUSY_TICK,
        false => TICK,
    }
}

/// Does one round of all threads. `all`: does everything that could be done, whatever its age
/// (tests and simulation).
pub(crate) fn tick(persist: &Persist, all: bool) -> Result<()> {
    commit_round(persist, all)?;
    fold_round(persist, all)
}

/// Does one round of the thread that ends inodes and commits.
fn commit_round(persist: &Persist, all: bool) -> Result<()> {
    if persist.options.read_only {
        return Ok(());
    }
    match all || !persist.background.much_ended.swap(false, Ordering::Relaxed) {
        true => reaper::reap(persist, all)?,
        false => reaper::reap_soon(persist)?,
    };
    // A volume that was opened just now is as if it had committed then.
    let last = *persist.journal.backlog.lock().last.get_or_insert_with(Instant::now);
    commit_if_due(persist, last, all)
}

/// Does one round of the thread that writes back, folds, cleans and reclaims.
fn fold_round(persist: &Persist, all: bool) -> Result<()> {
    if persist.options.read_only {
        return Ok(());
    }
    writeback::collect_dirty(persist);
    let over = memory::meta_is_over(persist);
    // Inodes that are dirty (an access time is enough) cannot leave memory.
    let dirty = persist.flush.lock().queue.len() * INODE_COST;
    let expire = match all || persist.memfs.frames.over_background() || over && exceeds_share(persist, dirty)
    {
        true => Duration::ZERO,
        false => persist.options.dirty_expire,
    };
    let short = !persist.store.look_for_host_space();
    if !short {
        write_back_old(persist, expire);
    }
    let lane = persist.journal.lanes.mine();
    persist.memfs.frames.reclaim(lane, persist.memfs.frames.frames() / 64);
    memory::update_throttle(persist);
    let bytes = persist.journal.backlog.lock().bytes;
    let is_quiet = is_quiet(persist);
    let p = persist.store.pressure();
    let low = p.free_segments < p.checkpoint_below;
    let due = is_checkpoint_due(persist, &p, bytes, is_quiet) || is_due_for_host(persist, &p, bytes, short);
    // What keeps the cleaner from going on must not keep the checkpoint: that frees what was
    // emptied before.
    let cleaned = match low && p.free_segments + p.pending_segments < p.clean_below {
        true => persist.store.clean(p.clean_to).map(drop),
        false => Ok(()),
    };
    if over {
        persist.store.shrink();
    }
    let mut worked = !is_quiet;
    let held = (over || memory::meta_is_near(persist)) && is_memory_held(persist);
    // What would wait for the host in the middle would hold up the removals that come then.
    let waits = short && !all && !persist.store.fits_reserve(persist.reaper.lock().blocks());
    if (due || low || space::log_needs_fold(persist) || held) && !waits || all {
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

/// Returns whether nothing was logged since the folder's last round.
fn is_quiet(persist: &Persist) -> bool {
    let background = &persist.background;
    let now = background.changes.load(Ordering::Relaxed);
    let before = std::mem::replace(&mut *background.changes_seen.lock(), now);
    debug_assert!(before <= now, "commits are only added");
    before == now && persist.journal.open_log_bytes() == 0
}

/// Commits the running epoch if much is logged or the `last` commit is long ago. `all`: in any
/// case.
fn commit_if_due(persist: &Persist, last: Instant, all: bool) -> Result<()> {
    let busy = memory::is_commit_due(persist);
    persist.background.busy.store(busy, Ordering::Relaxed);
    let due = all || busy || last.elapsed() >= persist.options.commit_interval;
    if due {
        let is_logged = persist.journal.open_log_bytes() > 0;
        persist.background.changes.fetch_add(u64::from(is_logged), Ordering::Relaxed);
        if host::put_off(commit::seal_and_commit(persist))?.is_none() {
            return Ok(());
        }
        reaper::release_cancelled(persist);
        persist.journal.let_go_of_committed();
    }
    Ok(())
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
    p.log_bytes > LOG_LIMIT || old || quiet || short || is_content_due(persist, since)
}

/// Returns whether content that was written back waits for a checkpoint, which alone makes it
/// durable, and none was made for as long as commits are apart; or longer, where they take so long
/// that they would be more than a part of all time. `since`: the time since the last one.
fn is_content_due(persist: &Persist, since: Duration) -> bool {
    let took = Duration::from_nanos(persist.background.took.load(Ordering::Relaxed));
    let pause = persist.options.commit_interval.max(PART_OF_TIME * took).min(CHECKPOINT_AFTER);
    since > pause && persist.flush.lock().written() > 0
}

/// Returns whether a checkpoint is due for what it gives back to the host of a sparse image, which
/// is short, or has little left.
fn is_due_for_host(persist: &Persist, p: &Pressure, bytes: usize, short: bool) -> bool {
    let since = persist.background.last_checkpoint.lock().map_or(Duration::MAX, |at| at.elapsed());
    let frees = p.pending_segments >= WORTH_FOR_HOST || short && (bytes > 0 || p.pending_segments > 0);
    since > HOST_AFTER && frees && (short || persist.store.is_host_low())
}

/// Returns whether much of the memory, which exceeds its share or will, can be freed only behind a
/// checkpoint: what is logged, written back but not synced, or not yet in the tree.
fn is_memory_held(persist: &Persist) -> bool {
    let written = persist.flush.lock().written() * INODE_COST;
    let held = memory::held_by_log(persist) + written + persist.store.dirty_memory();
    // Little of that may keep much: then callers wait for nothing else.
    let stuck = || memory::is_tight(persist) && persist.reclaim.lock().fruitless && held > 0;
    exceeds_share(persist, held) || stuck()
}

/// Makes a checkpoint, and frees the memory of what it folded.
fn fold_and_collect(persist: &Persist) -> Result<()> {
    let began = Instant::now();
    // Else it writes the inodes of files that are gone, and the next one frees them.
    reaper::reap_for_checkpoint(persist)?;
    if host::put_off(checkpoint::checkpoint(persist))?.is_none() {
        *persist.background.last_checkpoint.lock() = Some(Instant::now());
        return Ok(());
    }
    persist.background.took.store(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
    persist.reclaim.lock().fruitless = false;
    // What was removed is free memory only once the collector has come to it, which nothing
    // but use turns. Twice: the collector's own lists are let go of in the first.
    reclaim::collect_all(persist.store.threads());
    reclaim::collect_all(persist.store.threads());
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

/// Writes back what has been dirty for `age`, and with it what will have been soon: a few at each
/// round would be many small writes.
fn write_back_old(persist: &Persist, age: Duration) {
    hasten_gathered(persist);
    let old = {
        let q = persist.flush.lock();
        let older = |age: Duration| q.queue.iter().take_while(|d| d.0.elapsed() >= age).count();
        match older(age) {
            0 => 0,
            _ => older(age.saturating_sub(persist.options.commit_interval.min(age / 2))),
        }
    };
    if old > 0 {
        // A page budget per round keeps the thread responsive; the rest follows in the next
        // one.
        let _ = writeback::write_back_first(persist, old, 64 * 1024);
    }
}

/// Has content counted as old that a kernel has gathered and then handed over, though its file is
/// still open: it has lain there. Once in the time between commits.
fn hasten_gathered(persist: &Persist) {
    let gathered = persist.gathered.lock();
    let Some(gathered) = &*gathered else { return };
    let mut last = persist.background.last_hastened.lock();
    let now = Instant::now();
    if now.duration_since(*last.get_or_insert(now)) < persist.options.commit_interval {
        return;
    }
    *last = Some(now);
    // One that panics has named none, and does not end the thread.
    let named = catch_unwind(AssertUnwindSafe(gathered)).unwrap_or_default();
    let inodes: HashSet<Ino> = named.into_iter().collect();
    let lain = persist.options.dirty_expire.min(KERNEL_HOLDS);
    if let Some(since) = now.checked_sub(lain).filter(|_| !inodes.is_empty()) {
        persist.flush.lock().hasten(&inodes, since);
    }
}

#[cfg(test)]
mod tests {
    use super::CHECKPOINT_AFTER;
    use crate::persist::testing::{undisturbed, volume};
    use crate::{MountOptions, OpenOptions, Volume};
    use lanefs_store::device::{Device, MemoryDevice};
    use lanefs_store::{FormatOptions, Store};
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::{Duration, Instant};

    /// A program that makes and removes large files wrote each new one into memory that was never
    /// used, while that of the others waited for two rounds of the background. Many small ones make
    /// a large one.
    #[test]
    fn the_memory_of_a_large_file_is_free_with_the_round_that_its_end_asks_for() {
        undisturbed(large_files_end);
    }

    fn large_files_end() -> Result<(), String> {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20).unwrap());
        Store::format(std::slice::from_ref(&device), &FormatOptions::default()).unwrap();
        let options = MountOptions { background: false, ..MountOptions::default() };
        let v = Volume::open_devices(vec![device], &options).unwrap();
        let (fs, persist) = (v.fs(), &v.0.persist);
        let is_asked = || persist.background.much_ended.load(Ordering::Relaxed);
        let attached = || persist.memfs.frames.attached_frames();
        let ends = |what: &str, frames: usize, most: usize| {
            assert!(is_asked() && attached() >= frames, "{what}: {} frames", attached());
            super::commit_round(persist, false).unwrap();
            assert!(!is_asked(), "{what}: the round has heard");
            if attached() < most { Ok(()) } else { Err(format!("{what}: {} frames", attached())) }
        };
        let much = vec![7; 4 << 20];
        fs.write("/a", &much).unwrap();
        fs.unlink("/a").unwrap();
        ends("a name is removed", 1024, 16)?;
        fs.write("/a", &much).unwrap();
        fs.write("/b", b"1").unwrap();
        fs.rename("/b", "/a").unwrap();
        ends("another file has the name", 1024, 16)?;
        fs.write("/c", &much).unwrap();
        let file = fs.open("/c", OpenOptions::new().read(true)).unwrap();
        fs.unlink("/c").unwrap();
        super::commit_round(persist, false).unwrap();
        assert!(attached() >= 1024, "it is open");
        drop(file);
        ends("the last handle is closed", 1024, 16)?;
        fs.unlink("/a").unwrap();
        assert!(!is_asked(), "a small file is not worth a wake");
        for n in 0..63 {
            fs.write(format!("/{n}"), &much[..16 << 10]).unwrap();
        }
        (0..63).for_each(|n| fs.unlink(format!("/{n}")).unwrap());
        assert!(!is_asked(), "nor are some");
        fs.write("/b", &much[..16 << 10]).unwrap();
        fs.write("/a", b"1").unwrap();
        fs.rename("/a", "/b").unwrap();
        ends("many are", 256, 64)
    }

    /// Names came with the checkpoint, the content of a file after it: nothing was logged any more,
    /// so nothing made the content durable, however long the volume was left alone.
    #[test]
    fn what_was_written_back_is_durable_though_nothing_is_logged_behind_it() {
        let (v, device) = volume(16);
        let (fs, persist) = (v.fs(), &v.0.persist);
        let content = vec![7; 20_000];
        fs.write("/f", &content).unwrap();
        v.checkpoint().unwrap();
        super::writeback::collect_dirty(persist);
        super::write_back_old(persist, Duration::ZERO);
        *persist.background.last_checkpoint.lock() = Some(Instant::now());
        super::fold_round(persist, false).unwrap();
        assert!(persist.flush.lock().written() > 0, "a checkpoint for each file would be too many");
        let at = Instant::now().checked_sub(persist.options.commit_interval);
        *persist.background.last_checkpoint.lock() = at;
        super::fold_round(persist, false).unwrap();
        assert_eq!(persist.flush.lock().written(), 0);
        let left = device.after_crash();
        assert!(left.fs().read("/f").unwrap() == content);
    }

    /// A kernel that gathers writes hands over what is as old as content may be. It waited as long
    /// here once more, where its file was still open.
    #[test]
    fn what_a_kernel_has_gathered_of_an_open_file_is_written_with_the_next_commit() {
        let (v, _) = volume(16);
        let (fs, persist) = (v.fs(), &v.0.persist);
        let dirty = |name: &str| {
            fs.stat(name).is_ok_and(|s| {
                let guard = crossbeam_epoch::pin();
                persist.memfs.inodes.get(s.ino, &guard).is_some_and(|i| i.has_dirty())
            })
        };
        let round = |past: Duration| {
            let at = Instant::now().checked_sub(past);
            *persist.background.last_hastened.lock() = at;
            super::writeback::collect_dirty(persist);
            super::write_back_old(persist, persist.options.dirty_expire);
        };
        let content = vec![7; 20_000];
        fs.write("/closed", &content).unwrap();
        fs.write("/open", &content).unwrap();
        let open = fs.stat("/open").unwrap().ino;
        round(persist.options.commit_interval);
        assert!(dirty("/open") && dirty("/closed"), "no kernel gathers anything");
        v.write_gathered(Some(Box::new(move || vec![open])));
        round(Duration::ZERO);
        assert!(dirty("/open"), "it was looked just now");
        round(persist.options.commit_interval);
        assert!(!dirty("/open"), "it is old");
        assert!(dirty("/closed"), "it was handed over when it was closed, and may be gone soon");
    }

    /// A file that was made just now was written with each that was old, and removed a moment
    /// later.
    #[test]
    fn what_is_young_is_not_written_with_what_is_old() {
        let (v, _) = volume(16);
        let (fs, persist) = (v.fs(), &v.0.persist);
        let ages = [("/old", 30), ("/nearly", 27), ("/young", 1)].map(|(name, seconds)| {
            fs.write(name, vec![7; 20_000]).unwrap();
            super::writeback::collect_dirty(persist);
            let at = Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
            (at, fs.stat(name).unwrap().ino)
        });
        persist.flush.lock().queue = ages.into();
        super::write_back_old(persist, persist.options.dirty_expire);
        let left: Vec<_> = persist.flush.lock().queue.iter().map(|d| d.1).collect();
        assert_eq!(left, [ages[2].1]);
    }

    /// A fold may take seconds. What was logged meanwhile was committed behind it.
    #[test]
    fn commits_go_on_beside_a_checkpoint() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20).unwrap());
        Store::format(std::slice::from_ref(&device), &FormatOptions::default()).unwrap();
        let options = MountOptions { commit_interval: Duration::from_millis(10), ..MountOptions::default() };
        let v = Volume::open_devices(vec![device], &options).unwrap();
        let (fs, persist) = (v.fs(), &v.0.persist);
        let is_committed = |name: &str| {
            fs.create(name).unwrap();
            let epoch = persist.journal.epochs.current();
            persist.background.wake();
            (0..6000).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                persist.journal.committed() >= epoch
            })
        };
        assert!(is_committed("/a"));
        // As long as this is held, the thread that folds is in the middle of it.
        let held = persist.checkpointing.lock();
        let Some(before) = Instant::now().checked_sub(CHECKPOINT_AFTER * 2) else { return };
        *persist.background.last_checkpoint.lock() = Some(before);
        for name in ["/b", "/c", "/d"] {
            assert!(is_committed(name), "{name} waits for the checkpoint");
            std::thread::sleep(Duration::from_millis(300));
        }
        drop(held);
        v.close().unwrap();
    }
}
