//! This module makes allocations, starts of threads and reservations of address space fail.
//! Programs that want it have [`Failing`] as their allocator; until [`begin`] nothing fails and
//! nothing is counted.
//!
//! Of one process, so statics. Deciding allocates nothing: atomics, and a flag of the thread that
//! needs no initialisation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The requests that fail in a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// Nothing: a run that only counts.
    Nothing,
    /// The N-th allocation.
    Once,
    /// The N-th allocation and all after it.
    ForGood,
    /// The start of the N-th thread.
    Thread,
    /// The start of the N-th thread and of all after it.
    Threads,
    /// Address space beyond N steps of [`SPACE`] more than there was at the mark.
    Space,
}

/// A step of [`Fault::Space`].
pub const SPACE: u64 = 192 << 10;

impl Fault {
    /// All that fail.
    pub const ALL: [Fault; 5] = [Fault::Once, Fault::ForGood, Fault::Thread, Fault::Threads, Fault::Space];

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Nothing => "nothing",
            Fault::Once => "once",
            Fault::ForGood => "for-good",
            Fault::Thread => "thread",
            Fault::Threads => "threads",
            Fault::Space => "space",
        }
    }

    /// The fault of this name.
    pub fn named(name: &str) -> Result<Fault, String> {
        let all = Fault::ALL.into_iter().chain([Fault::Nothing]);
        all.into_iter().find(|f| f.name() == name).ok_or("no such fault".into())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One kind of request: how many there were since the mark, and which fail. Relaxed everywhere: the
/// counts order nothing.
struct Requests {
    seen: AtomicU64,
    /// The first that fails.
    from: AtomicU64,
    /// The first that does not any more.
    to: AtomicU64,
}

impl Requests {
    const fn new() -> Requests {
        Requests { seen: AtomicU64::new(0), from: AtomicU64::new(u64::MAX), to: AtomicU64::new(u64::MAX) }
    }
    fn fails(&self) -> bool {
        let n = self.seen.fetch_add(1, Relaxed);
        n >= self.from.load(Relaxed) && n < self.to.load(Relaxed)
    }
    fn begin(&self, range: Option<(u64, u64)>) {
        let (from, to) = range.unwrap_or((u64::MAX, u64::MAX));
        self.seen.store(0, Relaxed);
        self.from.store(from, Relaxed);
        self.to.store(to, Relaxed);
    }
    fn failed(&self) -> u64 {
        let (seen, from) = (self.seen.load(Relaxed), self.from.load(Relaxed));
        seen.min(self.to.load(Relaxed)).saturating_sub(from)
    }
}

static ALLOCATIONS: Requests = Requests::new();
static THREADS: Requests = Requests::new();

thread_local! {
    /// The thread is in the checker's own code, which is neither counted nor failed.
    static EXEMPT: Cell<bool> = const { Cell::new(false) };
}

/// From now on requests are counted, and the N-th (from 0) fails. `Err`: the address space cannot
/// be limited.
pub fn begin(fault: Fault, n: u64) -> Result<(), String> {
    let range = match fault {
        Fault::Once | Fault::Thread => Some((n, n + 1)),
        Fault::ForGood | Fault::Threads => Some((n, u64::MAX)),
        Fault::Nothing | Fault::Space => None,
    };
    let threads = matches!(fault, Fault::Thread | Fault::Threads);
    THREADS.begin(range.filter(|_| threads));
    ALLOCATIONS.begin(range.filter(|_| !threads));
    if fault == Fault::Space { limit_space(n * SPACE) } else { Ok(()) }
}

/// Allocations and starts of threads since the mark, and how many of both failed.
pub fn counted() -> (u64, u64, u64) {
    let (a, t) = (&ALLOCATIONS, &THREADS);
    (a.seen.load(Relaxed), t.seen.load(Relaxed), a.failed() + t.failed())
}

fn limit_space(more: u64) -> Result<(), String> {
    let text = std::fs::read_to_string("/proc/self/statm").map_err(|e| e.to_string())?;
    let pages: u64 = text.split(' ').next().and_then(|w| w.parse().ok()).ok_or("statm")?;
    let most = pages * rustix::param::page_size() as u64 + more;
    let limit = libc::rlimit { rlim_cur: most, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: setrlimit reads one rlimit through the pointer, which is valid for that.
    let done = unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().to_string()) }
}

/// Runs the checker's own code: what the calling thread asks for meanwhile is neither counted nor
/// failed.
pub fn exempt<R>(f: impl FnOnce() -> R) -> R {
    /// Puts back what was.
    struct Back(bool);
    impl Drop for Back {
        fn drop(&mut self) {
            EXEMPT.set(self.0);
        }
    }
    let _back = Back(EXEMPT.replace(true));
    f()
}

/// Returns whether the thread that is about to be started must fail to start. It is meant for
/// stand-ins of the C library's `pthread_create`.
pub fn no_thread() -> bool {
    !EXEMPT.get() && THREADS.fails()
}

/// The system's allocator, which fails where it is told to.
pub struct Failing;

fn none() -> bool {
    !EXEMPT.get() && ALLOCATIONS.fails()
}

// SAFETY: every call is passed on to the system's allocator with the arguments it came with, or
// answered by null, which `GlobalAlloc` allows for any request and which leaves the memory of a
// reallocation as it was; deciding touches atomics and a thread-local without initialisation and
// without a destructor only, and allocates nothing.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        if none() {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's obligations are the same.
        unsafe { System.alloc(l) }
    }
    unsafe fn alloc_zeroed(&self, l: Layout) -> *mut u8 {
        if none() {
            return std::ptr::null_mut();
        }
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(l) }
    }
    unsafe fn realloc(&self, p: *mut u8, l: Layout, size: usize) -> *mut u8 {
        if none() {
            return std::ptr::null_mut();
        }
        // SAFETY: as above.
        unsafe { System.realloc(p, l, size) }
    }
    unsafe fn dealloc(&self, p: *mut u8, l: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(p, l) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requests_that_were_asked_for_fail() {
        let r = Requests::new();
        assert!((0..5).all(|_| !r.fails()) && r.failed() == 0);
        r.begin(Some((2, 3)));
        assert_eq!((0..5).map(|_| r.fails()).collect::<Vec<_>>(), [false, false, true, false, false]);
        assert_eq!(r.failed(), 1);
        r.begin(Some((2, u64::MAX)));
        assert_eq!((0..5).map(|_| r.fails()).collect::<Vec<_>>(), [false, false, true, true, true]);
        assert_eq!(r.failed(), 3);
        r.begin(Some((9, 10)));
        assert!((0..5).all(|_| !r.fails()) && r.failed() == 0);
    }
}
