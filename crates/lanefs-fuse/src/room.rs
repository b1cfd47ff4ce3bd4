//! Room for what the kernel gathers: with the writeback cache a write is answered before this side
//! hears of it, and FUSE has no call that would ask for room first. So the kernel is kept from
//! gathering more than there is room for, and is made to ask where little is left.
//!
//! R1 *What the kernel may hold.* `held` bounds the unwritten pages of this mount: the kernel makes
//!    who writes wait beyond it (a strict limit of its bdi, `/sys/class/bdi/*/max_bytes`; measured:
//!    writes of 64 MiB under a limit of 32 MiB never had more than that unwritten). While a volume
//!    has more room than the kernel may hold of all mounts together, nothing is limited. Below that
//!    the limit is a quarter of the room. A mount that may not set the limit has that of the kernel
//!    for ordinary users' mounts, 1 % of what all may hold.
//! R2 *Scarce.* When the room is less than what the kernel may hold and [`Room::reserve`] together,
//!    each write(2) to a file that is open for writing is asked for: the attributes of such files
//!    are dropped, and the kernel fetches them before it takes the next write (with the handle:
//!    GETATTR of a program comes without). Before that is answered the file's pages are written
//!    back, and what was written since is charged. Where the reserve is not free then the answer is
//!    ENOSPC, and so is the write's. What drops the attributes comes before each answer that
//!    carries some: the kernel does not believe those then.
//! R3 The reserve is what calls of write(2) under way may have brought in since they were asked
//!    for: one call of [`Room::reserve`] bytes, or several that are smaller. It is not available to
//!    users (`f_bavail`), and is used up by what is not written through the kernel's cache. A call
//!    that is larger may lose its end: the next call, fsync and close tell.
//! R4 A file is made only where the reserve is free: its first write is not asked for.
//! R5 Pages of a map are dirtied without a word. Their room is not promised; msync and fsync tell.
//! R6 A file that was preallocated up to its end, and has room for all that lies before that, is
//!    written whether the reserve is free or not, until what was preallocated is used up. A call
//!    that goes on behind its end takes from the reserve, once; the next is refused. One that was
//!    preallocated behind its end is not among them: what is lent for its pages may be short in the
//!    middle of a call, and a file is not found with a size that it never had (SEMANTICS F2).

use crate::wire::Errno;
use lanefs::{Ino, Stat, Volume};
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

/// Bytes that a thread lets pass between two looks at the room.
const BETWEEN: u64 = 256 << 10;
/// What the kernel may hold if it does not say.
const UNKNOWN: u64 = 256 << 20;

pub(crate) struct Room {
    volume: Volume,
    /// The kernel gathers writes.
    gathers: bool,
    /// A part of the volume that scales with it: half of the reserve.
    part: u64,
    scarce: AtomicBool,
    /// What the kernel may hold. Relaxed, as `scarce`: they are looked at again before they matter.
    held: AtomicU64,
    bdi: OnceLock<Bdi>,
    looking: Mutex<()>,
}

/// The kernel's knobs for the mount.
struct Bdi {
    dir: PathBuf,
    /// What it may hold without a limit of our own.
    whole: u64,
    /// The limit can be set.
    ours: bool,
}

thread_local! {
    static PASSED: Cell<u64> = const { Cell::new(0) };
}

impl Room {
    pub(crate) fn new(volume: Volume, gathers: bool) -> Room {
        let size = volume.statfs().map_or(0, |s| s.blocks * 4096);
        Room {
            volume,
            gathers,
            part: (size / 64).clamp(1 << 20, 64 << 20),
            scarce: AtomicBool::new(false),
            held: AtomicU64::new(UNKNOWN),
            bdi: OnceLock::new(),
            looking: Mutex::new(()),
        }
    }

    /// Bytes kept back for what the kernel is about to gather.
    pub(crate) fn reserve(&self) -> u64 {
        if self.gathers { 2 * self.part } else { 0 }
    }

    /// Told where the knobs are; the mount serves.
    pub(crate) fn begin(&self, dir: PathBuf) {
        let read = || std::fs::read_to_string(dir.join("max_bytes")).ok()?.trim().parse::<u64>().ok();
        let whole = read().filter(|w| *w > 0).unwrap_or(UNKNOWN);
        let ours = std::fs::write(dir.join("strict_limit"), "0").is_ok();
        self.held.store(whole, Relaxed);
        let _ = self.bdi.set(Bdi { dir, whole, ours });
        self.look();
    }

    /// Whether the kernel has to ask before each write.
    pub(crate) fn is_scarce(&self) -> bool {
        self.gathers && self.scarce.load(Relaxed)
    }

    /// `bytes` were taken, about. True if the kernel has to ask from now on, and had not before.
    pub(crate) fn took(&self, bytes: u64) -> bool {
        if !self.gathers {
            return false;
        }
        let passed = PASSED.get() + bytes;
        let looks = passed >= BETWEEN;
        PASSED.set(if looks { 0 } else { passed });
        looks && self.look()
    }

    /// Looks at the room, and sets limits by it. True if it has become scarce.
    pub(crate) fn look(&self) -> bool {
        let Ok(_looking) = self.looking.try_lock() else { return false };
        let (Ok(free), Some(bdi)) = (self.volume.free_now(), self.bdi.get()) else { return false };
        if !self.gathers {
            return false;
        }
        let kept = self.reserve() + self.part;
        let room = free.saturating_sub(kept);
        let was = self.scarce.load(Relaxed);
        let scarce = if bdi.ours {
            // Where all that the kernel holds of all mounts finds room, there is no limit.
            let held = if room / 2 > bdi.whole { bdi.whole } else { (room / 4).max(self.part) };
            let now = self.held.load(Relaxed);
            if held.abs_diff(now) > now / 8 || (held == bdi.whole) != (now == bdi.whole) {
                self.limit(bdi, held);
            }
            room / 4 < if was { 2 * self.part } else { self.part }
        } else {
            let held = self.held.load(Relaxed);
            room < if was { held + held / 4 } else { held }
        };
        self.scarce.store(scarce, Relaxed);
        scarce && !was
    }

    fn limit(&self, bdi: &Bdi, held: u64) {
        let strict = if held == bdi.whole { "0" } else { "1" };
        let bytes = held.to_string();
        for (knob, value) in [("strict_limit", strict), ("max_bytes", &bytes)] {
            if let Err(e) = std::fs::write(bdi.dir.join(knob), value) {
                tracing::debug!("{}: {knob}: {e}", bdi.dir.display());
            }
        }
        self.held.store(held, Relaxed);
    }

    pub(crate) fn stat(&self, ino: Ino) -> Result<Stat, Errno> {
        Ok(self.volume.node_stat(ino)?)
    }

    /// Whether the file may be written where the reserve is not free (R6).
    pub(crate) fn is_backed(&self, ino: Ino) -> bool {
        self.volume.node_is_backed(ino)
    }

    /// Whether the reserve is free, also after what was deleted was given back.
    pub(crate) fn has_reserve(&self) -> bool {
        self.volume.has_room(self.reserve())
    }
}
