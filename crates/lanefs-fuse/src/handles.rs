//! Open files by the 64-bit handle the kernel keeps for us.
//!
//! A handle is the address of the open file. Looking it up writes nothing and shares nothing, so
//! reads and writes of different (and of the same) files never meet here.
//!
//! H1 A handle is given out once, by [`Handles::insert`], and reaches the kernel in the answer to
//!    OPEN or CREATE.
//! H2 Requests come only from the kernel's side of our own connection, and it sends a handle only
//!    in requests on that open file. RELEASE is the last of them: it is sent when the file has no
//!    user left, after every other request with that handle was answered.
//! H3 So between H1 and RELEASE the address is valid, and [`Handles::remove`], called for RELEASE
//!    alone, has no concurrent reader.
//!
//! A virtual machine's kernel is not believed: whatever it sends is no address, and it may send
//! the RELEASE of a handle beside a READ. Its handles are numbers, which are looked up, and who
//! serves a request keeps the open file alive ([`Held`]).
//!
//! Each handle also stands in a shard's set, so that files the kernel never released (the
//! connection was cut) are closed with the mount. A thread inserts into its own shard; the lock is
//! shared only when another thread releases.

use lanefs::{File, Ino};
use lanefs_sync::random::spread;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const SHARDS: usize = 64;

// `Handles::inodes` takes as many bits of a hash.
const _: () = assert!(SHARDS == 1 << (64 - 58));

/// The blocks of a file of whose pages the kernel may have the first (W9 of `requests::content`): a
/// page, in units of `st_blocks`.
pub(crate) const ASSUMED: u64 = 8;

const _: () = assert!(ASSUMED * 512 == 4096);

/// An open file.
pub(crate) struct Handle {
    pub file: File,
    /// The shard whose set the handle stands in.
    shard: usize,
    /// Whether the file may be written through this handle.
    pub writes: bool,
    /// Whether the kernel was told to read and write past its cache, whatever the flags say.
    pub past_cache: bool,
    /// If so, the name by which the file was made, and its directory.
    made: Option<(Ino, Vec<u8>)>,
    /// Set if what it reads and writes goes past the kernel's cache, by O_DIRECT or since the
    /// kernel was told so.
    direct: Option<Arc<CachedReads>>,
}

/// The way of what is read and written through a handle.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// By the kernel's cache.
    ByCache,
    /// With O_DIRECT, as the program wants it.
    Direct,
    /// Past the kernel's cache, since the kernel was told so. The name by which the file was made,
    /// and its directory, if it has one.
    PastCache(Option<(Ino, Vec<u8>)>),
}

/// A mark of a file that is open with O_DIRECT: whether the kernel may have read pages of it into
/// its cache since somebody opened it so.
///
/// Stored by who serves a READ through the cache ([`Handles::is_read_into_cache`]), before it reads
/// the pages; loaded by who serves a WRITE past the cache ([`Handle::may_be_cached`]), after it has
/// written them. Both SeqCst, partners of each other: of a READ and a WRITE at a time, either the
/// load sees the store, or the pages are read as they were written.
#[derive(Default)]
pub(crate) struct CachedReads(AtomicBool);

#[repr(align(128))]
#[derive(Default)]
/// Handles that are open.
struct Shard(Mutex<HashSet<u64>>);

/// Open files by numbers, which are a multiple of [`SHARDS`] apart.
#[repr(align(128))]
#[derive(Default)]
struct Numbers(Mutex<NumberedFiles>);

#[derive(Default)]
struct NumberedFiles {
    /// How many were given out.
    given: u64,
    open: HashMap<u64, Arc<Handle>>,
}

/// The most files that a guest may have open, of those that one thread has opened.
const NUMBERED_MOST: usize = 1 << 18;

/// The open file of a handle, for as long as a request is served.
pub(crate) enum Held<'h> {
    /// That of an address (H3).
    Lent(&'h Handle),
    /// That of a number.
    Shared(Arc<Handle>),
}

impl Deref for Held<'_> {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        match self {
            Held::Lent(handle) => handle,
            Held::Shared(handle) => handle,
        }
    }
}

/// Handles of one inode.
#[derive(Default)]
struct Opened {
    /// The number of those that may write.
    writers: u32,
    /// The number of those that were opened with O_DIRECT.
    direct: u32,
    /// The mark that these share, while there are any.
    reads: Option<Arc<CachedReads>>,
}

/// Inodes that may be written, or are read and written past the kernel's cache.
#[repr(align(128))]
#[derive(Default)]
struct Inodes(Mutex<HashMap<Ino, Opened>>);

/// The open files of a mount.
pub(crate) struct Handles {
    shards: Vec<Shard>,
    /// `None`: handles are addresses.
    numbers: Option<Vec<Numbers>>,
    /// Shared with who asks for those that are open while it must keep no file open.
    inodes: Arc<Vec<Inodes>>,
    /// The number of handles with O_DIRECT. On a line of its own: every read looks at it.
    ///
    /// Changed by who inserts or removes such a handle, under the lock of its inode's shard; loaded
    /// by who serves a READ. All Relaxed, it hands over nothing: a handle that is being opened has
    /// not written yet, and before the kernel sends its first write it waits for reads that it
    /// sent.
    direct: Apart<AtomicUsize>,
}

#[repr(align(128))]
#[derive(Default)]
/// A value on a cache line of its own.
struct Apart<T>(T);

/// Returns the inodes that may be written.
fn written(shards: &[Inodes]) -> Vec<Ino> {
    debug_assert_eq!(shards.len(), SHARDS);
    let mut all = Vec::new();
    for shard in shards {
        let inodes = shard.0.lock().unwrap_or_else(|e| e.into_inner());
        all.extend(inodes.iter().filter(|(_, o)| o.writers > 0).map(|(ino, _)| *ino));
    }
    all
}

/// Returns the shard of the calling thread.
fn my_shard() -> usize {
    // Relaxed: any spread will do, and nothing is handed over.
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    MINE.with(|m| *m)
}

impl Handle {
    /// Returns whether a write through this handle goes to the kernel's cache.
    pub(crate) fn gathers(&self) -> bool {
        self.writes && self.direct.is_none()
    }

    /// Returns whether pages that this handle has just written past the kernel's cache may be in
    /// it, as they were before. True also if the handle became one with O_DIRECT by fcntl(2).
    pub(crate) fn may_be_cached(&self) -> bool {
        debug_assert!(self.writes, "it has just written");
        self.direct.as_ref().is_none_or(|reads| reads.0.load(Ordering::SeqCst))
    }
}

impl Opened {
    /// Asserts the invariants of an inode that stands in the table.
    fn check_invariants(&self) {
        debug_assert!(self.writers > 0 || self.direct > 0, "an inode without a handle that counts");
        debug_assert_eq!(self.reads.is_some(), self.direct > 0, "the mark is kept while somebody needs it");
    }
}

impl Shard {
    /// Locks the set.
    fn set(&self) -> std::sync::MutexGuard<'_, HashSet<u64>> {
        // A panic while the lock was held left a whole set: insertion and removal are single steps.
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Numbers {
    /// Locks the files.
    fn files(&self) -> std::sync::MutexGuard<'_, NumberedFiles> {
        // A panic while the lock was held left a whole map, and a number is at most not given out.
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Handles {
    /// Makes an empty table whose handles are numbers: whatever is sent for one is looked up.
    pub(crate) fn numbered() -> Handles {
        let mut handles = Handles::new();
        handles.numbers = Some((0..SHARDS).map(|_| Numbers::default()).collect());
        debug_assert!(handles.numbers.as_ref().is_some_and(|n| n.len() == SHARDS));
        handles
    }

    /// Makes an empty table.
    pub(crate) fn new() -> Handles {
        Handles {
            numbers: None,
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            inodes: Arc::new((0..SHARDS).map(|_| Inodes::default()).collect()),
            direct: Apart::default(),
        }
    }

    /// Locks the shard of an inode.
    fn inodes(&self, ino: Ino) -> std::sync::MutexGuard<'_, HashMap<Ino, Opened>> {
        // Lanes make inodes in runs: the shard is chosen by a hash of the number, so that lanes
        // seldom meet.
        let shard = (spread(ino.0) >> 58) as usize % SHARDS;
        self.inodes[shard].0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns whether the kernel may hold unwritten pages of a file.
    pub(crate) fn is_written(&self, ino: Ino) -> bool {
        self.inodes(ino).get(&ino).is_some_and(|o| o.writers > 0)
    }

    /// Returns the inodes that the kernel may hold unwritten pages of.
    pub(crate) fn written(&self) -> Vec<Ino> {
        written(&self.inodes)
    }

    /// Returns a function that does the same, and keeps no file open.
    pub(crate) fn all_written(&self) -> impl Fn() -> Vec<Ino> + Send + Sync + use<> {
        let inodes = Arc::clone(&self.inodes);
        move || written(&inodes)
    }

    /// Takes note that the kernel is about to read pages of a file into its cache. Called before
    /// they are read: whoever writes them past the cache either sees this afterwards, or has
    /// written before they are read.
    pub(crate) fn is_read_into_cache(&self, ino: Ino) {
        if self.direct.0.load(Ordering::Relaxed) > 0
            && let Some(reads) = self.inodes(ino).get(&ino).and_then(|o| o.reads.as_ref())
        {
            reads.0.store(true, Ordering::SeqCst);
        }
    }

    /// Keeps `file`, which is read and written by this `way`, and returns its handle, never 0.
    /// `None` if a guest has too many open.
    pub(crate) fn insert(&self, file: File, way: Way) -> Option<u64> {
        let direct = way != Way::ByCache;
        let shard = my_shard();
        debug_assert!(shard < SHARDS);
        if let Some(numbers) = &self.numbers
            && numbers[shard].files().open.len() >= NUMBERED_MOST
        {
            return None;
        }
        let writes = file.flags() & libc::O_ACCMODE != libc::O_RDONLY;
        let mut reads = None;
        if writes || direct {
            let mut inodes = self.inodes(file.ino());
            let opened = inodes.entry(file.ino()).or_default();
            opened.writers += u32::from(writes);
            if direct {
                opened.direct += 1;
                reads = Some(Arc::clone(opened.reads.get_or_insert_default()));
                self.direct.0.fetch_add(1, Ordering::Relaxed);
            }
            opened.check_invariants();
        }
        let (past_cache, made) = match way {
            Way::PastCache(made) => (true, made),
            _ => (false, None),
        };
        let opened = Handle { file, shard, writes, past_cache, made, direct: reads };
        if let Some(numbers) = &self.numbers {
            let mut files = numbers[shard].files();
            files.given += 1;
            let number = files.given * SHARDS as u64 + shard as u64;
            let before = files.open.insert(number, Arc::new(opened));
            debug_assert!(before.is_none() && number != 0, "a number is given out once");
            return Some(number);
        }
        let handle = Box::into_raw(Box::new(opened)) as u64;
        debug_assert_ne!(handle, 0, "0 stands for no open file");
        let fresh = self.shards[shard].set().insert(handle);
        debug_assert!(fresh, "a handle is given out once (H1)");
        Some(handle)
    }

    /// Returns the shard of a number.
    fn numbered_at(numbers: &[Numbers], handle: u64) -> &Numbers {
        debug_assert_eq!(numbers.len(), SHARDS);
        &numbers[(handle % SHARDS as u64) as usize]
    }

    /// Returns the open file of a handle number; `None` for 0, which stands for no open file.
    ///
    /// # Safety
    /// `handle` came with a request of the kernel (H2) and the returned reference is not used after
    /// that request was answered. Of a table of numbers nothing is asked.
    pub(crate) unsafe fn get(&self, handle: u64) -> Option<Held<'_>> {
        if handle == 0 {
            return None;
        }
        if let Some(numbers) = &self.numbers {
            let files = Handles::numbered_at(numbers, handle).files();
            debug_assert!(files.open.len() as u64 <= files.given, "more are open than were given out");
            return files.open.get(&handle).map(|h| Held::Shared(Arc::clone(h)));
        }
        // SAFETY: by H1-H3 the address of a live `Handle`; nobody holds it mutably.
        let found = unsafe { &*(handle as *const Handle) };
        debug_assert!(found.shard < SHARDS, "no handle of ours lies there");
        Some(Held::Lent(found))
    }

    /// Closes the file of a handle. Returns the name by which it was made, and its directory, if it
    /// went past the kernel's cache.
    ///
    /// # Safety
    /// `handle` came with RELEASE. Of a table of numbers nothing is asked.
    pub(crate) unsafe fn remove(&self, handle: u64) -> Option<(Ino, Vec<u8>)> {
        if handle == 0 {
            return None;
        }
        if let Some(numbers) = &self.numbers {
            let gone = Handles::numbered_at(numbers, handle).files().open.remove(&handle);
            gone.iter().for_each(|h| self.no_longer_open(h));
            return None;
        }
        // SAFETY: H3: live until here, and no other request holds it.
        let mut boxed = unsafe { Box::from_raw(handle as *mut Handle) };
        let kept = self.shards[boxed.shard].set().remove(&handle);
        debug_assert!(kept, "a handle is released once (H2)");
        self.no_longer_open(&boxed);
        boxed.made.take()
    }

    /// Closes all files of a table of numbers: the guest that had them open is gone.
    pub(crate) fn close_numbered(&self) {
        for numbers in self.numbers.iter().flatten() {
            let open = std::mem::take(&mut numbers.files().open);
            open.values().for_each(|h| self.no_longer_open(h));
        }
    }

    /// Takes a handle that was released off the counts of its inode.
    fn no_longer_open(&self, handle: &Handle) {
        if !handle.writes && handle.direct.is_none() {
            return;
        }
        let mut inodes = self.inodes(handle.file.ino());
        debug_assert!(inodes.contains_key(&handle.file.ino()), "it was counted when it was opened");
        if let Entry::Occupied(mut opened) = inodes.entry(handle.file.ino()) {
            let o = opened.get_mut();
            o.writers -= u32::from(handle.writes);
            if handle.direct.is_some() {
                let all = self.direct.0.fetch_sub(1, Ordering::Relaxed);
                debug_assert!(all > 0, "fewer handles in all than of one inode");
                o.direct -= 1;
                if o.direct == 0 {
                    o.reads = None;
                }
            }
            if o.writers == 0 && o.direct == 0 {
                opened.remove();
            } else {
                o.check_invariants();
            }
        }
    }
}

impl Drop for Handles {
    /// Closes what the kernel did not release.
    fn drop(&mut self) {
        for (index, shard) in self.shards.iter().enumerate() {
            for handle in shard.set().drain() {
                // SAFETY: whoever answers requests holds the `Handles`, so none is in progress;
                // `remove` took out of the set what it freed.
                let boxed = unsafe { Box::from_raw(handle as *mut Handle) };
                debug_assert_eq!(boxed.shard, index);
            }
        }
    }
}
