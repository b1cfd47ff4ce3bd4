//! The inode table: inode number -> inode, a radix tree read without locks. Chunks hold 128
//! neighbours, as a block of the inode table does, so the creates of one lane stay in lines of its
//! own.

use super::inode::{EVICTED, FREED, FROZEN, Inode};
use crossbeam_epoch::Guard;
use lanefs_format::{INOS_PER_CHUNK, Ino};
use lanefs_sync::ablation::{OneLock, Technique};
use lanefs_sync::prefetch;
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::sync::atomic::{
    AtomicPtr,
    Ordering::{AcqRel, Acquire, Relaxed},
};

const WIDTH: usize = 1 << 14;

#[repr(align(64))]
struct Chunk {
    /// An inode is put in by `insert` and taken out by `remove`, each by compare-exchange. AcqRel
    /// in `insert` is the partner of the Acquire loads of those who look an inode up: they find it
    /// whole. In `remove` it orders the marks of the inode before its slot is free for the next;
    /// a failure there is not looked at (Relaxed).
    inodes: [AtomicPtr<Inode>; INOS_PER_CHUNK as usize],
}

struct Level<T> {
    /// Written once each, by the compare-exchange in `child`: AcqRel, the partner of the Acquire
    /// loads on the way down.
    slots: [AtomicPtr<T>; WIDTH],
}

/// Inode numbers below this fit in the table: 2^35.
pub(crate) const MAX_INO: u64 = (WIDTH * WIDTH) as u64 * INOS_PER_CHUNK;

pub(crate) struct InodeTable {
    root: Box<Level<Level<Chunk>>>,
    one_group: OneLock,
}

/// Allocates a structure that is made of null pointers only, without touching its pages.
fn zeroed<T>() -> Box<T> {
    let layout = Layout::new::<T>();
    debug_assert!(layout.size() > 0 && layout.size().is_multiple_of(size_of::<AtomicPtr<T>>()));
    // SAFETY: T is Chunk or Level, arrays of AtomicPtr, for which all-zero bytes are null pointers;
    // the layout is T's.
    unsafe {
        let p = alloc_zeroed(layout).cast::<T>();
        if p.is_null() {
            handle_alloc_error(layout);
        }
        Box::from_raw(p)
    }
}

/// Returns the child a slot points at, made if missing.
fn child<T>(slot: &AtomicPtr<T>) -> &T {
    let p = slot.load(Acquire);
    if !p.is_null() {
        // SAFETY: set once by the compare-exchange below, freed only by the table's Drop.
        return unsafe { &*p };
    }
    let fresh = Box::into_raw(zeroed::<T>());
    match slot.compare_exchange(std::ptr::null_mut(), fresh, AcqRel, Acquire) {
        // SAFETY: just published.
        Ok(_) => unsafe { &*fresh },
        // SAFETY: `fresh` was not published; `other` was.
        Err(other) => unsafe {
            drop(Box::from_raw(fresh));
            &*other
        },
    }
}

impl InodeTable {
    pub fn new() -> InodeTable {
        InodeTable { root: zeroed(), one_group: OneLock::of(Technique::CellGroups) }
    }

    fn slot(&self, ino: Ino) -> Option<&AtomicPtr<Inode>> {
        let c = ino.chunk() as usize;
        // SAFETY: set once to a leaked Box, freed only by Drop.
        let mid = unsafe { self.root.slots.get(c / WIDTH)?.load(Acquire).as_ref()? };
        // SAFETY: as above.
        let chunk = unsafe { mid.slots[c % WIDTH].load(Acquire).as_ref()? };
        Some(&chunk.inodes[ino.slot()])
    }

    /// Returns the inode of `ino`, if it is in memory. An inode the reclaimer had marked is kept.
    #[inline]
    pub fn get<'g>(&self, ino: Ino, _guard: &'g Guard) -> Option<&'g Inode> {
        let _group = self.one_group.read();
        let slot = self.slot(ino)?;
        // SAFETY: inodes are unlinked before they are handed to the collector; the guard is pinned.
        let inode = unsafe { slot.load(Acquire).as_ref()? };
        debug_assert_eq!(inode.ino, ino, "an inode in the slot of another");
        let f = inode.life.load(Acquire);
        let marked = f & (FROZEN | EVICTED) != 0;
        if marked && (f & EVICTED != 0 || inode.clear(FROZEN) & EVICTED != 0) {
            return None;
        }
        Some(inode)
    }

    /// Returns the inode of `ino` whatever its marks, which stay as they are: for the reclaimer.
    pub fn peek<'g>(&self, ino: Ino, _guard: &'g Guard) -> Option<&'g Inode> {
        // SAFETY: as in `get`.
        let inode = unsafe { self.slot(ino)?.load(Acquire).as_ref() };
        debug_assert!(inode.is_none_or(|i| i.ino == ino), "an inode in the slot of another");
        inode
    }

    /// Asks for what is looked at of an inode that ends, if it is in memory, and waits for nothing.
    #[inline]
    pub fn expect(&self, ino: Ino, _guard: &Guard) {
        // SAFETY: as in `get`.
        let inode = self.slot(ino).and_then(|slot| unsafe { slot.load(Acquire).as_ref() });
        if let Some(inode) = inode {
            prefetch(&inode.life);
            prefetch(&inode.nlink);
            prefetch(&inode.body);
            prefetch(&inode.sync_lock);
        }
    }

    /// Puts an inode in, unless there is one already, which is returned then.
    pub fn insert<'g>(&self, inode: Box<Inode>, guard: &'g Guard) -> &'g Inode {
        let ino = inode.ino;
        debug_assert!(!ino.is_none() && ino.0 < MAX_INO, "{} has no slot", ino.0);
        debug_assert!(!inode.has(FROZEN | EVICTED | FREED), "a new inode that is to leave memory");
        let c = ino.chunk() as usize;
        let mid = child(&self.root.slots[(c / WIDTH).min(WIDTH - 1)]);
        let chunk = child(&mid.slots[c % WIDTH]);
        let slot = &chunk.inodes[ino.slot()];
        let p = Box::into_raw(inode);
        loop {
            let put = {
                let _group = self.one_group.write();
                slot.compare_exchange(std::ptr::null_mut(), p, AcqRel, Acquire)
            };
            match put {
                // SAFETY: published; freed only through the collector.
                Ok(_) => return unsafe { &*p },
                Err(_) => {
                    if let Some(other) = self.get(ino, guard) {
                        // SAFETY: `p` was not published.
                        drop(unsafe { Box::from_raw(p) });
                        return other;
                    }
                    // An evicted inode is about to leave the slot.
                    lanefs_sync::schedule::yield_now();
                }
            }
        }
    }

    /// Takes an inode out (it is EVICTED or FREED) and frees it when no reader can see it.
    pub fn remove(&self, inode: &Inode, guard: &Guard) {
        debug_assert!(inode.has(EVICTED | FREED), "somebody may find it, and use it");
        let Some(slot) = self.slot(inode.ino) else { return };
        let p = std::ptr::from_ref(inode).cast_mut();
        let _group = self.one_group.write();
        if slot.compare_exchange(p, std::ptr::null_mut(), AcqRel, Relaxed).is_ok() {
            // SAFETY: `p` came from Box::into_raw in `insert`, is unreachable now, and only one
            // compare-exchange wins.
            unsafe { guard.defer_unchecked(move || drop(Box::from_raw(p))) };
        }
    }

    /// Calls `f` with the inodes of up to `chunks` chunks from chunk `from` on; returns where to go
    /// on (0: from the start).
    pub fn walk<'g>(&self, from: u64, chunks: u64, guard: &'g Guard, f: &mut dyn FnMut(&'g Inode)) -> u64 {
        let _ = guard;
        debug_assert!(from <= (WIDTH * WIDTH) as u64 && chunks > 0);
        let mut seen = 0;
        let mut c = from as usize;
        while c < WIDTH * WIDTH {
            // SAFETY: as in `slot`.
            let Some(mid) = (unsafe { self.root.slots[c / WIDTH].load(Acquire).as_ref() }) else {
                c = (c / WIDTH + 1) * WIDTH;
                continue;
            };
            // SAFETY: as in `slot`.
            if let Some(chunk) = unsafe { mid.slots[c % WIDTH].load(Acquire).as_ref() } {
                for s in &chunk.inodes {
                    // SAFETY: as in `get`.
                    if let Some(inode) = unsafe { s.load(Acquire).as_ref() } {
                        debug_assert_eq!(inode.ino.chunk(), c as u64, "an inode in another's chunk");
                        f(inode);
                    }
                }
                seen += 1;
            }
            c += 1;
            if seen >= chunks {
                debug_assert!(c as u64 > from, "the walk stands still");
                return c as u64;
            }
        }
        0
    }
}

impl Drop for InodeTable {
    fn drop(&mut self) {
        // Relaxed: nobody else is left, and whoever gave us the table ordered what came before.
        for m in &self.root.slots {
            let m = m.load(Relaxed);
            if m.is_null() {
                continue;
            }
            // SAFETY: `&mut self`: no reader is left; everything here came from Box::into_raw and
            // is reachable once.
            unsafe {
                for c in &(*m).slots {
                    let c = c.load(Relaxed);
                    if c.is_null() {
                        continue;
                    }
                    for inode in &(*c).inodes {
                        let inode = inode.load(Relaxed);
                        if !inode.is_null() {
                            drop(Box::from_raw(inode));
                        }
                    }
                    drop(Box::from_raw(c));
                }
                drop(Box::from_raw(m));
            }
        }
    }
}
