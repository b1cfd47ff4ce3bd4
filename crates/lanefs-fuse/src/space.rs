//! Space for what the kernel gathers: with the writeback cache a write is answered before this side
//! hears of it, and FUSE has no call that would ask for space first. So the kernel is kept from
//! gathering more than there is space for, and is made to ask where little is left.
//!
//! R1 *What the kernel may hold.* `held` bounds the unwritten pages of this mount: the kernel makes
//!    who writes wait beyond it (a strict limit of its bdi, `/sys/class/bdi/*/max_bytes`; measured:
//!    writes of 64 MiB under a limit of 32 MiB never had more than that unwritten). While a volume
//!    has more space than the kernel may hold of all mounts together, nothing is limited. Below
//!    that the limit is a quarter of the space. A mount that may not set the limit has that of the
//!    kernel for ordinary users' mounts, 1 % of what all may hold.
//! R2 *Scarce.* When the space is less than what the kernel may hold and [`Space::reserve`]
//!    together, each write(2) to a file that is open for writing is asked for: the attributes of
//!    such files are dropped, and the kernel fetches them before it takes the next write (with the
//!    handle: GETATTR of a program comes without). Before that is answered the file's pages are
//!    written back, and what was written since is charged. Where the reserve is not free then the
//!    answer is ENOSPC, and so is the write's. What drops the attributes comes before each answer
//!    that carries some: the kernel does not believe those then.
//! R3 The reserve is what calls of write(2) under way may have brought in since they were asked
//!    for: one call of [`Space::reserve`] bytes, or several that are smaller. It is not available
//!    to users (`f_bavail`), nor to what is not written through the kernel's cache (R8). A call
//!    that is larger may lose its end: the next call, fsync and close report it.
//! R4 A file is made only where the reserve is free: its first write is not asked for. Root makes
//!    files where it is not: of these the kernel is told to gather nothing, so that each write
//!    hears at once whether there is space. These may use the reserve up. (Not those that are there
//!    and are opened: their times would not be seen to move.)
//! R5 Pages of a map are dirtied without a word. Their space is not promised; msync and fsync
//!    report it.
//! R6 A file that was preallocated, up to its end or behind it (FALLOC_FL_KEEP_SIZE), and has space
//!    for all that lies before that, is written whether the reserve is free or not, until what was
//!    preallocated is used up. A call that goes on behind that takes from the reserve, once; the
//!    next is refused. What it finds no space for is lost as by R3.
//! R7 The last of the volume is left to root (SEMANTICS D8), and to others nothing is what would
//!    not leave that beside the reserve. Who asks is looked up at the calling thread; of whom
//!    nothing can be known is taken for root.
//! R8 *What goes past the kernel's cache*: writes with O_DIRECT, preallocation, copies, names,
//!    attributes. It takes space at once, which the kernel may have been given already for what it
//!    gathered. So where less than [`Space::most`], the reserve and one part more would be left,
//!    space counts as scarce from then on (R2), and what the kernel holds of files that are open
//!    for writing is called in first, unless none was written since that was last done. Then the
//!    reserve has to be free beside what the call takes, or it is ENOSPC. One such call at a time.

use crate::translate::root;
use crate::wire::Errno;
use lanefs::{Ino, Stat, Volume};
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Bytes that a thread lets pass between two looks at the space.
const BETWEEN: u64 = 256 << 10;
/// The bytes that the kernel may hold if it does not state its limit.
const UNKNOWN: u64 = 256 << 20;
/// The least and the most of [`Space::part`].
const PART: std::ops::RangeInclusive<u64> = 1 << 20..=64 << 20;

// Between two looks a thread uses up less than the smallest reserve.
const _: () = assert!(BETWEEN < 2 * *PART.start());

/// The space of a mount, and what the kernel may gather of it.
pub(crate) struct Space {
    volume: Volume,
    /// Whether the kernel gathers writes.
    gathers: bool,
    /// A part of the volume that scales with it: half of the reserve.
    part: u64,
    /// Whether the kernel has to ask before each write (R2). Stored under `looking`, loaded by who
    /// serves requests. Relaxed: it stands for itself alone, and an answer that comes a moment too
    /// late is paid from the reserve.
    scarce: AtomicBool,
    /// The bytes that the kernel may hold (R1). Stored before the mount serves (`begin`) and then
    /// under `looking`, where alone it is loaded. Relaxed: the lock orders it,
    /// and `bdi` behind it what `begin` stored.
    held: AtomicU64,
    /// The most bytes that the kernel may have gathered: the largest limit since it was last called
    /// in (R8). Stored under `looking`, loaded by who takes space. Relaxed: a limit that is lowered
    /// a moment later is paid from the reserve.
    most: AtomicU64,
    /// How often somebody was let through who may write through the kernel's cache while space was
    /// scarce, and the value of that before what the kernel held was last called in. Relaxed: who
    /// is let through in the moment between has the reserve.
    let_through: AtomicU64,
    flushed: AtomicU64,
    bdi: OnceLock<Bdi>,
    /// Held by who looks at the space and sets the limit.
    looking: Mutex<()>,
    /// Held by who takes space past the kernel's cache where it is scarce (R8).
    taking: Mutex<()>,
}

/// The kernel's knobs for the mount.
struct Bdi {
    dir: PathBuf,
    /// The bytes that it may hold without a limit of our own.
    whole: u64,
    /// Whether the limit can be set.
    ours: bool,
}

thread_local! {
    /// The bytes that this thread let pass since it last looked.
    static PASSED: Cell<u64> = const { Cell::new(0) };
}

impl Space {
    /// Makes the state for a volume; `gathers`: the kernel gathers writes.
    pub(crate) fn new(volume: Volume, gathers: bool) -> Space {
        let size = volume.statfs().map_or(0, |s| s.blocks * 4096);
        Space {
            volume,
            gathers,
            part: (size / 64).clamp(*PART.start(), *PART.end()),
            scarce: AtomicBool::new(false),
            held: AtomicU64::new(UNKNOWN),
            most: AtomicU64::new(UNKNOWN),
            let_through: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            bdi: OnceLock::new(),
            looking: Mutex::new(()),
            taking: Mutex::new(()),
        }
    }

    /// Returns the bytes kept back for what the kernel is about to gather.
    pub(crate) fn reserve(&self) -> u64 {
        debug_assert!(PART.contains(&self.part));
        if self.gathers { 2 * self.part } else { 0 }
    }

    /// Begins to set limits by the knobs in `dir`; the mount serves.
    pub(crate) fn begin(&self, dir: PathBuf) {
        let read = || std::fs::read_to_string(dir.join("max_bytes")).ok()?.trim().parse::<u64>().ok();
        let whole = read().filter(|w| *w > 0).unwrap_or(UNKNOWN);
        let ours = std::fs::write(dir.join("strict_limit"), "0").is_ok();
        self.held.store(whole, Ordering::Relaxed);
        let first = self.bdi.set(Bdi { dir, whole, ours }).is_ok();
        debug_assert!(first, "a mount begins to serve once");
        self.look();
        // Nothing is gathered yet.
        self.most.store(self.held.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Returns whether the kernel has to ask before each write.
    pub(crate) fn is_scarce(&self) -> bool {
        self.gathers && self.scarce.load(Ordering::Relaxed)
    }

    /// Takes note that about `bytes` were used. True if the kernel has to ask from now on, and had
    /// not before.
    pub(crate) fn took(&self, bytes: u64) -> bool {
        if !self.gathers {
            return false;
        }
        debug_assert!(PASSED.get() < BETWEEN, "a look is overdue");
        let passed = PASSED.get().saturating_add(bytes);
        let looks = passed >= BETWEEN;
        PASSED.set(if looks { 0 } else { passed });
        looks && self.look()
    }

    /// Looks at the space, and sets limits by it. True if it has become scarce.
    pub(crate) fn look(&self) -> bool {
        let Ok(_looking) = self.looking.try_lock() else { return false };
        let (Ok(free), Some(bdi)) = (self.volume.free_now(), self.bdi.get()) else { return false };
        if !self.gathers {
            return false;
        }
        let kept = self.reserve() + self.part;
        let space = free.saturating_sub(kept);
        let was = self.scarce.load(Ordering::Relaxed);
        let scarce = if bdi.ours {
            // Where there is space for all that the kernel holds of all mounts, there is no limit.
            let held = if space / 2 > bdi.whole { bdi.whole } else { (space / 4).max(self.part) };
            debug_assert!(held >= self.part.min(bdi.whole), "the kernel could not gather at all");
            let now = self.held.load(Ordering::Relaxed);
            if held.abs_diff(now) > now / 8 || (held == bdi.whole) != (now == bdi.whole) {
                self.limit(bdi, held);
            }
            space / 4 < if was { 2 * self.part } else { self.part }
        } else {
            let held = self.held.load(Ordering::Relaxed);
            space < if was { held + held / 4 } else { held }
        };
        // What was made scarce for one who takes much stays so until that is done.
        let scarce = scarce || was && self.taking.try_lock().is_err();
        self.scarce.store(scarce, Ordering::Relaxed);
        if scarce && !was {
            self.let_through.fetch_add(1, Ordering::Relaxed);
        }
        scarce && !was
    }

    /// Returns whether so many bytes may be taken past the kernel's cache with nothing done first
    /// (R8). By one load, unless few are free.
    pub(crate) fn has_beside(&self, bytes: u64) -> bool {
        if !self.gathers || self.bdi.get().is_none() {
            return true;
        }
        let kept = self.most.load(Ordering::Relaxed) + self.reserve() + self.part;
        debug_assert!(kept > self.reserve(), "nothing is left for what is gathered");
        self.volume.has_for_users(bytes.saturating_add(kept))
    }

    /// Waits for the turn of one who takes space past the kernel's cache (R8).
    pub(crate) fn taking(&self) -> MutexGuard<'_, ()> {
        self.taking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has space count as scarce; true if it had not.
    pub(crate) fn becomes_scarce(&self) -> bool {
        debug_assert!(self.gathers, "nothing is gathered");
        let became = !self.scarce.swap(true, Ordering::Relaxed);
        if became {
            self.let_through.fetch_add(1, Ordering::Relaxed);
        }
        became
    }

    /// Takes note that somebody may write through the kernel's cache from now on.
    pub(crate) fn lets_through(&self) {
        debug_assert!(self.gathers || !self.is_scarce(), "space is scarce for nobody");
        if self.is_scarce() {
            self.let_through.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Calls in what the kernel may have gathered: `flush` has it written back. Not if nobody was
    /// let through since that was last done.
    pub(crate) fn flush_gathered(&self, flush: impl FnOnce()) {
        debug_assert!(self.taking.try_lock().is_err(), "one at a time");
        let now = self.let_through.load(Ordering::Relaxed);
        if now == self.flushed.load(Ordering::Relaxed) {
            return;
        }
        debug_assert!(self.is_scarce(), "more would be gathered meanwhile, and nobody asks");
        flush();
        self.flushed.store(now, Ordering::Relaxed);
        let _looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        self.most.store(self.held.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Has the kernel hold at most `held` bytes.
    fn limit(&self, bdi: &Bdi, held: u64) {
        debug_assert!(bdi.ours, "the limit cannot be set");
        debug_assert!(held > 0, "0 stands for no limit of the kernel's");
        let strict = if held == bdi.whole { "0" } else { "1" };
        let bytes = held.to_string();
        for (knob, value) in [("strict_limit", strict), ("max_bytes", &bytes)] {
            if let Err(e) = std::fs::write(bdi.dir.join(knob), value) {
                tracing::debug!("{}: {knob}: {e}", bdi.dir.display());
            }
        }
        self.held.store(held, Ordering::Relaxed);
        self.most.fetch_max(held, Ordering::Relaxed);
    }

    /// Returns the attributes of an inode.
    pub(crate) fn stat(&self, ino: Ino) -> Result<Stat, Errno> {
        Ok(self.volume.node_stat(ino)?)
    }

    /// Sets the flags of an inode.
    pub(crate) fn set_flags(&self, ino: Ino, flags: u32) -> Result<(), Errno> {
        Ok(self.volume.node_set_flags(&root(), ino, flags)?)
    }

    /// Returns whether the file may be written where the reserve is not free (R6).
    pub(crate) fn is_backed(&self, ino: Ino) -> bool {
        self.volume.node_is_backed(ino)
    }

    /// Returns whether the reserve is free, also after what was deleted was given back; beside what
    /// is left to root, unless it is root who asks.
    pub(crate) fn has_reserve(&self, for_root: bool) -> bool {
        self.has_reserve_beside(0, for_root)
    }

    /// Does the same for who takes so many bytes.
    pub(crate) fn has_reserve_beside(&self, bytes: u64, for_root: bool) -> bool {
        debug_assert!(self.gathers || self.reserve() == 0, "kept back for nobody");
        self.volume.has_space(self.reserve().saturating_add(bytes), for_root)
    }
}

#[cfg(test)]
mod tests {
    use super::Space;
    use lanefs::{MountOptions, Volume};
    use std::sync::Arc;

    /// Somebody who looked meanwhile would have had the kernel gather again without asking.
    #[test]
    fn space_stays_scarce_while_somebody_takes_much() {
        let disk = lanefs_store::device::MemoryDevice::new(64 << 20).unwrap();
        let disk: Arc<dyn lanefs_store::device::Device> = Arc::new(disk);
        lanefs_store::Store::format(std::slice::from_ref(&disk), &lanefs_store::FormatOptions::default())
            .unwrap();
        let options = MountOptions { background: false, ..MountOptions::default() };
        let space = Space::new(Volume::open_devices(vec![disk], &options).unwrap(), true);
        let knobs = tempfile::tempdir().unwrap();
        std::fs::write(knobs.path().join("max_bytes"), "100000000").unwrap();
        std::fs::write(knobs.path().join("strict_limit"), "0").unwrap();
        space.begin(knobs.path().into());
        assert!(!space.is_scarce() && space.has_beside(1 << 20) && !space.has_beside(48 << 20));
        let taking = space.taking();
        assert!(space.becomes_scarce() && !space.becomes_scarce());
        space.look();
        assert!(space.is_scarce());
        let mut flushed = 0;
        (0..2).for_each(|_| space.flush_gathered(|| flushed += 1));
        assert_eq!(flushed, 1, "nobody was let through since");
        space.lets_through();
        space.flush_gathered(|| flushed += 1);
        assert_eq!(flushed, 2, "somebody may have written");
        drop(taking);
        space.look();
        assert!(!space.is_scarce());
    }
}
