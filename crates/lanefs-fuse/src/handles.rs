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

use lanefs::{File, Ino};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const SHARDS: usize = 64;

struct Handle {
    file: File,
    shard: usize,
    /// The inode, if the file may be written through this handle.
    writes: Option<Ino>,
}

#[repr(align(128))]
#[derive(Default)]
struct Shard(Mutex<HashSet<u64>>);

/// How many handles may write, by inode.
#[repr(align(128))]
#[derive(Default)]
struct Writers(Mutex<HashMap<Ino, u32>>);

pub(crate) struct Handles {
    shards: Vec<Shard>,
    writers: Vec<Writers>,
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
        Handles {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            writers: (0..SHARDS).map(|_| Writers::default()).collect(),
        }
    }

    fn writers(&self, ino: Ino) -> std::sync::MutexGuard<'_, HashMap<Ino, u32>> {
        // Lanes make inodes in runs: the shard is chosen by a hash of the number, so that lanes seldom meet.
        let shard = (ino.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58) as usize % SHARDS;
        self.writers[shard].0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Whether the kernel may hold unwritten pages of a file.
    pub(crate) fn is_written(&self, ino: Ino) -> bool {
        self.writers(ino).contains_key(&ino)
    }

    /// Keeps `file` and returns its handle, never 0.
    pub(crate) fn insert(&self, file: File) -> u64 {
        let shard = my_shard();
        let writes = (file.flags() & libc::O_ACCMODE != libc::O_RDONLY).then(|| file.ino());
        if let Some(ino) = writes {
            *self.writers(ino).entry(ino).or_default() += 1;
        }
        let handle = Box::into_raw(Box::new(Handle { file, shard, writes })) as u64;
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
        if let Some(ino) = boxed.writes
            && let Entry::Occupied(mut count) = self.writers(ino).entry(ino)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl Drop for Handles {
    /// Closes what the kernel did not release.
    fn drop(&mut self) {
        for shard in &self.shards {
            for handle in shard.set().drain() {
                // SAFETY: whoever answers requests holds the `Handles`, so none is in progress; `remove` took out
                // of the set what it freed.
                drop(unsafe { Box::from_raw(handle as *mut Handle) });
            }
        }
    }
}
