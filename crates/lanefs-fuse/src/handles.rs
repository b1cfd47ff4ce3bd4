//! Open files by the 64-bit handle the kernel keeps for us.
//!
//! A handle is the address of the open file. Looking it up writes nothing and shares nothing, so reads and writes
//! of different (and of the same) files never meet here.
//!
//! H1 A handle is given out once, by [`Handles::insert`], and reaches the kernel in the answer to OPEN or CREATE.
//! H2 Requests come only from the kernel's side of our own connection, and it sends a handle only in requests on that
//!    open file. RELEASE is the last of them: it is sent when the file has no user left, after every other request
//!    with that handle was answered.
//! H3 So between H1 and RELEASE the address is valid, and [`Handles::remove`], called for RELEASE alone, has no
//!    concurrent reader.
//!
//! Each handle also stands in a shard's set, so that files the kernel never released (the connection was cut) are
//! closed with the mount. A thread inserts into its own shard; the lock is shared only when another thread releases.

use lanefs::File;
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const SHARDS: usize = 64;

struct Handle {
    file: File,
    shard: usize,
}

#[repr(align(128))]
#[derive(Default)]
struct Shard(Mutex<HashSet<u64>>);

pub(crate) struct Handles {
    shards: Vec<Shard>,
}

fn my_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        // Relaxed: any spread will do.
        static MINE: usize = NEXT.fetch_add(1, Relaxed) % SHARDS;
    }
    MINE.with(|m| *m)
}

impl Shard {
    fn set(&self) -> std::sync::MutexGuard<'_, HashSet<u64>> {
        // A panic while the lock was held left a whole set: insertion and removal are single steps.
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Handles {
    pub(crate) fn new() -> Handles {
        Handles { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }

    /// Keeps `file` and returns its handle, never 0.
    pub(crate) fn insert(&self, file: File) -> u64 {
        let shard = my_shard();
        let handle = Box::into_raw(Box::new(Handle { file, shard })) as u64;
        self.shards[shard].set().insert(handle);
        handle
    }

    /// The open file of a handle; `None` for 0, which stands for no open file.
    ///
    /// # Safety
    /// `handle` came with a request of the kernel (H2) and the returned reference is not used after that
    /// request was answered.
    pub(crate) unsafe fn get(&self, handle: u64) -> Option<&File> {
        if handle == 0 {
            return None;
        }
        // SAFETY: by H1-H3 the address of a live `Handle`; nobody holds it mutably.
        Some(unsafe { &(*(handle as *const Handle)).file })
    }

    /// Closes the file of a handle.
    ///
    /// # Safety
    /// `handle` came with RELEASE.
    pub(crate) unsafe fn remove(&self, handle: u64) {
        if handle == 0 {
            return;
        }
        // SAFETY: H3: live until here, and no other request holds it.
        let boxed = unsafe { Box::from_raw(handle as *mut Handle) };
        self.shards[boxed.shard].set().remove(&handle);
    }

    /// Closes what the kernel did not release. No request may be in progress.
    pub(crate) fn clear(&mut self) {
        for shard in &self.shards {
            for handle in shard.set().drain() {
                // SAFETY: `&mut self` and H3: no request is in progress, and `remove` took out what it freed.
                drop(unsafe { Box::from_raw(handle as *mut Handle) });
            }
        }
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        self.clear();
    }
}
