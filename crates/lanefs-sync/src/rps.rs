//! The reader pass-through semaphore (Max, section 4.1): many readers that never meet, and now and
//! then a writer that excludes them all.
//!
//! A reader counts itself in on its own lane's line and looks at the writers' word, which hardly
//! ever changes; it writes nothing that another lane reads, until there is a writer. A lane's owner
//! counts in `solo`, by plain load and store, since nobody else writes it; guests of the lane share
//! `many`. Readers and writers pass a full fence between what they store and what they look at.
//! (Max lets the scheduler pass it for its readers, and a process can do that by membarrier(2). But
//! then each write interrupts every processor that runs a thread of the process, for microseconds,
//! whatever it does, while a fence costs a reader some nanoseconds of a transaction:
//! docs/DESIGN.md.)
//!
//! Reader, in:   count in (I); fence; `writer` clear -> inside.  Set -> out again, wait until it is
//!               clear, repeat.
//! Reader, out:  count out (O); fence; `writer` set -> fence; if no lane counts anybody,
//!               `departed += 1` and wake.
//! Writer, in:   lock `writing`; set `writer`; fence; repeat { note `departed`; no lane counts
//!               anybody -> inside; sleep while `departed` is as noted }.
//! Writer, out:  clear `writer`; wake all; unlock `writing`.
//!
//! 1. **Exclusion.** By the fence pair, either the reader sees `writer` set, or the writer's look
//!    sees the reader's I. In the first case the reader goes out again without having been inside;
//!    in the second the writer waits for its O.
//! 2. **No lost wake.** Let the writer sleep because it saw reader R counted in. R's O is not seen
//!    by that look, so by the fence pair R's second look at `writer` sees it set. Among the readers
//!    that see it set on their way out take the one whose second fence comes last: it sees all the
//!    others' O, and those of readers that did not see `writer`, whose fence came before the
//!    writer's. So it finds nobody and bumps `departed` after the writer noted it: the sleep ends,
//!    or does not begin.
//! 3. **Nested reads.** A thread that is inside may read again even while a writer waits: it only
//!    counts one up, and does not look at `writer`. An owner knows it is inside by its own `solo`;
//!    a guest by a thread-local list.
//! 4. **Self-deadlock panics.** A thread that writes while it reads, or reads or writes while it
//!    writes, could only wait for itself: it panics instead.
//! 5. A writer that waits holds up new readers, so readers cannot starve it. Nothing here is fair
//!    among writers.
//!
//! Happens-before: O is a Release (or later in a release sequence by the same lane's users) that
//! the writer's look acquires, so the writer sees what readers did; clearing `writer` is a Release
//! that I's look acquires.

use crate::ablation::{Switch, Technique};
use crate::lane_ids::{LaneIds, Seat};
use crate::primitive::{
    AtomicU32, AtomicU64, CachePadded, FutexWord, Mutex, MutexGuard, Ordering, SPINS, fence, full_fence,
    per_thread, spin_loop, thread_token,
};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

/// The semaphore. See the essay at the head of the file.
pub struct Rps {
    ids: Arc<LaneIds>,
    serial: u64,
    one_count: Switch,
    slots: Box<[CachePadded<Slot>]>,
    /// 1 while a writer is inside or waiting. Written by writers, with `writing` locked: set
    /// Relaxed, before the fence; cleared with Release, the partner of the Acquire load in
    /// `enter`. The other loads are Relaxed: the fence orders that of a reader on its way out
    /// (2), and `enter` repeats that of who waits.
    writer: CachePadded<FutexWord>,
    writers: CachePadded<Writers>,
}

/// A lane's readers. In: Relaxed, the fence orders it. Out: Release, the partner of the
/// writer's Acquire load in `occupied`.
#[derive(Default)]
struct Slot {
    /// Reads of the lane's owner; written by it alone.
    solo: AtomicU32,
    /// Reads of the lane's guests; written by read-modify-write.
    many: AtomicU32,
}

/// The part that only writers, and readers that meet one, touch.
struct Writers {
    /// Departures that a writer was woken for. Written by readers on their way out, with Release:
    /// the partner of the Acquire load in `write`.
    departed: FutexWord,
    writing: Mutex<()>,
    /// `thread_token` of the thread inside or waiting to be, else 0. Written with `writing` locked.
    /// Relaxed: a thread only compares it with its own token, and reads its own stores.
    thread: AtomicU64,
}

per_thread! {
    /// The semaphores in which this thread reads as a guest, with its depth.
    static GUEST: RefCell<Vec<(u64, u32)>> = const { RefCell::new(Vec::new()) };
}

impl Rps {
    /// Makes a semaphore over this set of seats.
    pub fn new(ids: Arc<LaneIds>) -> Self {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let slots = (0..ids.len()).map(|_| CachePadded::default()).collect();
        Self {
            ids,
            // Relaxed: the numbers only have to differ.
            serial: NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            one_count: Switch::of(Technique::PassThrough),
            slots,
            writer: CachePadded::new(FutexWord::new(0)),
            writers: CachePadded::new(Writers {
                departed: FutexWord::new(0),
                writing: Mutex::new(()),
                thread: AtomicU64::new(0),
            }),
        }
    }

    /// Returns the seat at which the calling thread counts itself in.
    #[inline]
    fn seat(&self) -> Seat {
        if self.one_count.off() { Seat { lane: 0, owner: false } } else { self.ids.seat() }
    }

    /// Enters as a reader; waits while a writer is inside or waiting, unless this thread reads
    /// already.
    ///
    /// # Panics
    /// If this thread is the writer.
    #[inline]
    pub fn read(&self) -> RpsReadGuard<'_> {
        let seat = self.seat();
        let slot = &self.slots[seat.lane];
        if seat.owner {
            // Relaxed: this thread alone writes `solo` (a former owner's stores happen before the
            // seat was taken).
            let depth = slot.solo.load(Ordering::Relaxed);
            debug_assert_ne!(depth, u32::MAX, "reads are nested without end");
            if depth > 0 {
                slot.solo.store(depth + 1, Ordering::Relaxed);
            } else {
                self.enter(
                    || slot.solo.store(1, Ordering::Relaxed),
                    || slot.solo.store(0, Ordering::Release),
                );
            }
        } else {
            self.read_as_guest(slot);
        }
        RpsReadGuard { rps: self, seat, _not_send: PhantomData }
    }

    #[cold]
    fn read_as_guest(&self, slot: &Slot) {
        let nested = with_guest_depth(self.serial, |depth| {
            *depth += 1;
            *depth > 1
        });
        if nested {
            slot.many.fetch_add(1, Ordering::Relaxed);
        } else {
            // Relaxed in: the fence orders it. Release out: hands the section on to the
            // writer.
            self.enter(
                || _ = slot.many.fetch_add(1, Ordering::Relaxed),
                || _ = slot.many.fetch_sub(1, Ordering::Release),
            );
        }
    }

    #[inline]
    fn enter(&self, count_in: impl Fn(), count_out: impl Fn()) {
        loop {
            count_in();
            full_fence();
            // Acquire: pairs with the Release that clears the word, so the reader sees what the
            // writer did.
            let writer = self.writer.load(Ordering::Acquire);
            debug_assert!(writer <= 1, "one writer at a time");
            if writer == 0 {
                return;
            }
            count_out();
            self.wake_writer();
            self.wait_for_writer();
        }
    }

    #[cold]
    fn wait_for_writer(&self) {
        // Relaxed: if this thread put its token there, it reads its own store.
        let writer = self.writers.thread.load(Ordering::Relaxed);
        assert_ne!(writer, thread_token() as u64, "a thread may not read where it writes");
        for _ in 0..SPINS {
            if self.writer.load(Ordering::Relaxed) == 0 {
                return;
            }
            spin_loop();
        }
        // Relaxed: `enter` looks again, with Acquire.
        while self.writer.load(Ordering::Relaxed) != 0 {
            self.writer.wait(1);
        }
    }

    /// Returns whether any lane counts a reader in.
    fn occupied(&self) -> bool {
        // Acquire: pairs with the Release on the readers' way out.
        self.slots
            .iter()
            .any(|slot| slot.solo.load(Ordering::Acquire) != 0 || slot.many.load(Ordering::Acquire) != 0)
    }

    /// Wakes a waiting writer, if this reader is the last one on its way out (2).
    #[cold]
    fn wake_writer(&self) {
        // SeqCst: of several readers on their way out the last must see the others gone.
        fence(Ordering::SeqCst);
        if !self.occupied() {
            // Release: the writer acquires it with its look at `departed`.
            self.writers.departed.fetch_add(1, Ordering::Release);
            self.writers.departed.wake_one();
        }
    }

    /// Returns whether the calling thread is inside as a reader.
    pub fn is_reading(&self) -> bool {
        let seat = self.seat();
        if seat.owner {
            // Relaxed: this thread's own word.
            self.slots[seat.lane].solo.load(Ordering::Relaxed) > 0
        } else {
            with_guest_depth(self.serial, |depth| *depth > 0)
        }
    }

    /// Enters as the writer: waits until every reader is out and keeps further ones from coming in.
    ///
    /// # Panics
    /// If this thread is a reader or the writer already: it would wait for itself.
    pub fn write(&self) -> RpsWriteGuard<'_> {
        let token = thread_token() as u64;
        assert!(!self.is_reading(), "a thread may not write where it reads");
        assert_ne!(self.writers.thread.load(Ordering::Relaxed), token, "a thread may not write twice");
        let writing = self.writers.writing.lock();
        // Relaxed, both: the mutex orders the writers.
        debug_assert_eq!(self.writers.thread.load(Ordering::Relaxed), 0, "the last writer is still inside");
        debug_assert_eq!(self.writer.load(Ordering::Relaxed), 0, "the last writer left the word set");
        self.writers.thread.store(token, Ordering::Relaxed);
        // Relaxed: the fence orders it before the looks below.
        self.writer.store(1, Ordering::Relaxed);
        full_fence();
        let mut spins = SPINS;
        loop {
            // Acquire: who reads a departure sees the count that went before it.
            let departed = self.writers.departed.load(Ordering::Acquire);
            if !self.occupied() {
                break;
            }
            if spins > 0 {
                spins -= 1;
                spin_loop();
            } else {
                self.writers.departed.wait(departed);
            }
        }
        RpsWriteGuard { rps: self, _writing: writing }
    }
}

/// Runs `act` on this thread's depth as a guest reader of one semaphore. Where the thread-local is
/// gone already (a thread in its last moments) every read counts as the first.
fn with_guest_depth<R>(serial: u64, act: impl FnOnce(&mut u32) -> R) -> R {
    let mut act = Some(act);
    let result = GUEST.try_with(|list| {
        let mut list = list.borrow_mut();
        debug_assert!(list.iter().all(|entry| entry.1 > 0), "who is out is on the list");
        let position = list.iter().position(|entry| entry.0 == serial).unwrap_or_else(|| {
            list.push((serial, 0));
            list.len() - 1
        });
        let result = act.take().map(|act| act(&mut list[position].1));
        if list[position].1 == 0 {
            list.swap_remove(position);
        }
        result
    });
    match (result, act) {
        (Ok(Some(result)), _) => result,
        (_, Some(act)) => act(&mut 0),
        (_, None) => unreachable!("`act` was run and its result lost"),
    }
}

/// A reader inside; goes out on drop.
pub struct RpsReadGuard<'a> {
    rps: &'a Rps,
    seat: Seat,
    // The owner's count is written with plain stores by its thread alone.
    _not_send: PhantomData<*const ()>,
}

impl Drop for RpsReadGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        let slot = &self.rps.slots[self.seat.lane];
        // Release: hands the section on to the writer that reads the count.
        let outermost = if self.seat.owner {
            let depth = slot.solo.load(Ordering::Relaxed);
            debug_assert!(depth > 0, "the owner went out more often than in");
            slot.solo.store(depth - 1, Ordering::Release);
            depth == 1
        } else {
            let outermost = with_guest_depth(self.rps.serial, |depth| {
                *depth = depth.saturating_sub(1);
                *depth == 0
            });
            let before = slot.many.fetch_sub(1, Ordering::Release);
            debug_assert!(before > 0, "guests went out more often than in");
            outermost
        };
        if outermost {
            full_fence();
            // Relaxed: the fence pair orders it (2).
            if self.rps.writer.load(Ordering::Relaxed) != 0 {
                self.rps.wake_writer();
            }
        }
    }
}

/// The writer inside; goes out on drop.
pub struct RpsWriteGuard<'a> {
    rps: &'a Rps,
    // Dropped last: the next writer comes in after the word is clear.
    _writing: MutexGuard<'a, ()>,
}

impl Drop for RpsWriteGuard<'_> {
    fn drop(&mut self) {
        // Relaxed, both: this thread's own stores.
        debug_assert_eq!(
            self.rps.writers.thread.load(Ordering::Relaxed),
            thread_token() as u64,
            "another thread is the writer"
        );
        debug_assert_eq!(self.rps.writer.load(Ordering::Relaxed), 1, "readers were let in meanwhile");
        self.rps.writers.thread.store(0, Ordering::Relaxed);
        // Release: pairs with the Acquire in `enter`.
        self.rps.writer.store(0, Ordering::Release);
        self.rps.writer.wake_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    #[test]
    fn a_writer_excludes_readers_also_when_they_share_lanes() {
        let rps = Rps::new(LaneIds::new(2));
        let pair = (AtomicU64::new(0), AtomicU64::new(0));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let _inside = rps.read();
                        let first = pair.0.load(Ordering::Relaxed);
                        let _nested = rps.read();
                        assert_eq!(first, pair.1.load(Ordering::Relaxed), "a writer was inside");
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..400 {
                        let _inside = rps.write();
                        pair.0.fetch_add(1, Ordering::Relaxed);
                        std::thread::yield_now();
                        pair.1.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            while pair.1.load(Ordering::Relaxed) < 800 {
                std::thread::sleep(Duration::from_millis(1));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_nested_read_passes_a_waiting_writer() {
        let rps = Rps::new(LaneIds::new(1));
        let (rps, in_as_owner) = (&rps, &AtomicBool::new(false));
        // One thread owns the only lane, this one is its guest.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _seat = rps.ids.seat();
                in_as_owner.store(true, Ordering::Release);
                for _ in 0..3 {
                    let outer = rps.read();
                    std::thread::sleep(Duration::from_millis(5));
                    let inner = rps.read();
                    drop(outer);
                    drop(inner);
                }
            });
            while !in_as_owner.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            scope.spawn(|| (0..20).for_each(|_| drop(rps.write())));
            for _ in 0..3 {
                let outer = rps.read();
                std::thread::sleep(Duration::from_millis(5));
                drop((rps.read(), outer));
            }
        });
        assert!(!rps.is_reading() && !rps.occupied());
    }

    #[test]
    #[should_panic(expected = "may not write where it reads")]
    fn writing_while_reading_panics() {
        let rps = Rps::new(LaneIds::new(1));
        let _read = rps.read();
        let _write = rps.write();
    }

    #[test]
    #[should_panic(expected = "may not read where it writes")]
    fn reading_while_writing_panics() {
        let rps = Rps::new(LaneIds::new(1));
        let _write = rps.write();
        let _read = rps.read();
    }
}
