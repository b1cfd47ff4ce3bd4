//! Counts of the requests that were served, by kind, of the bytes that they moved, and, while
//! somebody asks for it, of the time that they took.
//!
//! Each serving thread has counters of its own, which it alone writes; whoever asks adds them up.
//! They are Relaxed: each stands for itself, and a sum taken while requests are served is a sum of
//! what was counted so far.
//!
//! Nothing is timed unless somebody has asked within the last seconds ([`Counts::watch`]): until
//! then a request costs one load of a word that is written when that changes. The thread that
//! finds, by a clock that it has read anyway, that the time is over switches it off.

use crate::wire::abi::op;
use crate::wire::{Reply, Request};
use lanefs_sync::CachePadded;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The number of kinds that are told apart; all higher ones are counted as kind 0.
const KINDS: usize = 64;

/// The kinds that a mount meets, by their names in the kernel's sources.
const NAMES: &[(u32, &str)] = &[
    (op::LOOKUP, "LOOKUP"),
    (op::FORGET, "FORGET"),
    (op::GETATTR, "GETATTR"),
    (op::SETATTR, "SETATTR"),
    (op::READLINK, "READLINK"),
    (op::SYMLINK, "SYMLINK"),
    (op::MKNOD, "MKNOD"),
    (op::MKDIR, "MKDIR"),
    (op::UNLINK, "UNLINK"),
    (op::RMDIR, "RMDIR"),
    (op::RENAME, "RENAME"),
    (op::LINK, "LINK"),
    (op::OPEN, "OPEN"),
    (op::READ, "READ"),
    (op::WRITE, "WRITE"),
    (op::STATFS, "STATFS"),
    (op::RELEASE, "RELEASE"),
    (op::FSYNC, "FSYNC"),
    (op::SETXATTR, "SETXATTR"),
    (op::GETXATTR, "GETXATTR"),
    (op::LISTXATTR, "LISTXATTR"),
    (op::REMOVEXATTR, "REMOVEXATTR"),
    (op::FLUSH, "FLUSH"),
    (op::OPENDIR, "OPENDIR"),
    (op::READDIR, "READDIR"),
    (op::RELEASEDIR, "RELEASEDIR"),
    (op::FSYNCDIR, "FSYNCDIR"),
    (op::ACCESS, "ACCESS"),
    (op::CREATE, "CREATE"),
    (op::INTERRUPT, "INTERRUPT"),
    (op::DESTROY, "DESTROY"),
    (op::IOCTL, "IOCTL"),
    (op::BATCH_FORGET, "BATCH_FORGET"),
    (op::FALLOCATE, "FALLOCATE"),
    (op::READDIRPLUS, "READDIRPLUS"),
    (op::RENAME2, "RENAME2"),
    (op::LSEEK, "LSEEK"),
    (op::COPY_FILE_RANGE, "COPY_FILE_RANGE"),
    (op::SYNCFS, "SYNCFS"),
    (op::TMPFILE, "TMPFILE"),
    (op::STATX, "STATX"),
];

/// The kinds that no program waits for. (Of a mounted block device an older kernel waits for
/// RELEASE.)
const NOT_WAITED_FOR: &[u32] = &[op::FORGET, op::BATCH_FORGET, op::INTERRUPT, op::RELEASE, op::RELEASEDIR];

const _: () = assert!(op::STATX < KINDS as u32, "every kind that is served has its counter");

/// Latencies are told apart by powers of two, and each of these in so many equal parts.
const PARTS: usize = 4;
/// Those below 2^10 ns share a bucket, and so do those from 2^36 ns (69 s) on.
const FIRST: u32 = 10;
const LAST: u32 = 36;
/// The buckets of a histogram.
const BUCKETS: usize = (LAST - FIRST) as usize * PARTS + 2;

const _: () = assert!(PARTS.is_power_of_two() && 1 << FIRST >= PARTS);

/// Returns the bucket of a latency.
fn bucket_of(nanos: u64) -> usize {
    let power = (nanos | 1).ilog2();
    if power < FIRST {
        return 0;
    }
    if power >= LAST {
        return BUCKETS - 1;
    }
    let part = (nanos >> (power - PARTS.ilog2())) as usize % PARTS;
    let bucket = 1 + (power - FIRST) as usize * PARTS + part;
    debug_assert!(nanos < upper_ns(bucket) && nanos >= upper_ns(bucket - 1), "{nanos} ns in {bucket}");
    bucket
}

/// Returns the nanoseconds below which the latencies of a bucket lie; those of the last have no
/// bound.
fn upper_ns(bucket: usize) -> u64 {
    debug_assert!(bucket < BUCKETS, "bucket {bucket} of {BUCKETS}");
    if bucket == BUCKETS - 1 {
        return u64::MAX;
    }
    let (power, part) = (FIRST + (bucket / PARTS) as u32, (bucket % PARTS) as u64);
    (PARTS as u64 + part) << (power - PARTS.ilog2())
}

/// The latencies of one kind of requests.
struct Latencies {
    buckets: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

/// The counters of one kind of requests.
#[derive(Default)]
struct Kind {
    requests: AtomicU64,
    received: AtomicU64,
    answered: AtomicU64,
    /// Made by the first request of the kind that is timed.
    latencies: OnceLock<Box<Latencies>>,
}

/// Adds to a counter of which the calling thread is the only writer.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

/// The counters of a thread, on lines of their own.
#[repr(align(128))]
struct Shard([Kind; KINDS]);

/// What a mount counts.
pub(crate) struct Counts {
    /// The counters of all threads that ever served it.
    threads: Mutex<Vec<Arc<Shard>>>,
    /// Until when requests are timed, in nanoseconds since `made`; 0 while none is. Written by who
    /// asks, and by the thread that finds the time over; read by each request. Relaxed: a request
    /// more or less is timed.
    timed_until: CachePadded<AtomicU64>,
    made: Instant,
}

/// The counters of one serving thread. Who has it is the only one who counts in it.
pub(crate) struct ThreadCounts {
    shard: Arc<Shard>,
    counts: Arc<Counts>,
}

/// The sums of one kind.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Sums {
    pub requests: u64,
    pub received: u64,
    pub answered: u64,
    /// Empty if none was timed.
    buckets: Vec<u64>,
    /// Nanoseconds that those took which were timed.
    pub nanos: u64,
}

impl Sums {
    /// Returns the buckets that are not empty, ascending: the bound below which their latencies
    /// lie, and how many there are. `None` if none was timed.
    pub fn buckets(&self) -> Option<Vec<(u64, u64)>> {
        debug_assert!(self.buckets.is_empty() || self.buckets.len() == BUCKETS, "a histogram cut short");
        let timed: u64 = self.buckets.iter().sum();
        let filled = self.buckets.iter().enumerate().filter(|(_, n)| **n > 0);
        (timed > 0).then(|| filled.map(|(bucket, n)| (upper_ns(bucket), *n)).collect())
    }
}

/// The requests that a mount has served since it was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Requests {
    by_kind: Vec<Sums>,
    /// The bytes of requests behind their headers: names, and what is written.
    pub received: u64,
    /// The bytes of answers behind their headers: attributes, listings, and what is read.
    pub answered: u64,
}

impl Latencies {
    fn new() -> Box<Latencies> {
        Box::new(Latencies { buckets: [const { AtomicU64::new(0) }; BUCKETS], nanos: AtomicU64::new(0) })
    }
}

impl ThreadCounts {
    /// Returns the time, if requests are timed; for [`ThreadCounts::count`].
    #[inline]
    pub(crate) fn begin(&self) -> Option<Instant> {
        // Relaxed: see the field.
        (self.counts.timed_until.load(Relaxed) != 0).then(Instant::now)
    }

    /// Counts a request that is about to be answered and was begun then.
    pub(crate) fn count(&self, request: &Request<'_>, reply: &Reply<'_>, begun: Option<Instant>) {
        let kind = if (request.op as usize) < KINDS { request.op as usize } else { 0 };
        let kind = &self.shard.0[kind];
        add(&kind.requests, 1);
        add(&kind.received, request.args().len() as u64);
        add(&kind.answered, reply.len() as u64);
        if let Some(begun) = begun {
            self.time(kind, begun);
        }
        debug_assert!(kind.requests.load(Relaxed) > 0, "somebody else counts here");
    }

    #[cold]
    fn time(&self, kind: &Kind, begun: Instant) {
        let now = Instant::now();
        let nanos = u64::try_from(now.duration_since(begun).as_nanos()).unwrap_or(u64::MAX);
        let latencies = kind.latencies.get_or_init(Latencies::new);
        add(&latencies.buckets[bucket_of(nanos)], 1);
        add(&latencies.nanos, nanos);
        let until = self.counts.timed_until.load(Relaxed);
        if until != 0 && until < self.counts.nanos_at(now) {
            // Unless somebody has just asked.
            let _ = self.counts.timed_until.compare_exchange(until, 0, Relaxed, Relaxed);
        }
    }
}

impl Counts {
    /// Makes counters that have counted nothing.
    pub(crate) fn new() -> Counts {
        Counts { threads: Mutex::default(), timed_until: CachePadded::default(), made: Instant::now() }
    }

    /// Makes the counters of a thread that begins to serve.
    pub(crate) fn thread(self: &Arc<Counts>) -> ThreadCounts {
        debug_assert_eq!(align_of::<Shard>(), 128, "threads would share lines");
        let shard = Arc::new(Shard(std::array::from_fn(|_| Kind::default())));
        // A panic while the lock was held left a whole list.
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&shard));
        debug_assert_eq!(Arc::strong_count(&shard), 2, "another thread counts here");
        ThreadCounts { shard, counts: Arc::clone(self) }
    }

    /// Returns the nanoseconds since the mount was made.
    fn nanos_at(&self, now: Instant) -> u64 {
        u64::try_from(now.duration_since(self.made).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Has requests timed for so long, or for as long as somebody else has asked.
    pub(crate) fn watch(&self, time: Duration) {
        let until = self.nanos_at(Instant::now() + time.min(WATCHED)).max(1);
        debug_assert!(until != 0, "it stands for none");
        let before = self.timed_until.fetch_max(until, Relaxed);
        debug_assert!(before == 0 || self.is_timed(), "what was timed goes on");
    }

    /// Returns whether requests are timed.
    pub(crate) fn is_timed(&self) -> bool {
        let until = self.timed_until.load(Relaxed);
        until != 0 && until >= self.nanos_at(Instant::now())
    }

    /// Returns the time since the mount was made.
    pub(crate) fn age(&self) -> Duration {
        self.made.elapsed()
    }

    /// Returns what was counted so far.
    pub(crate) fn all(&self) -> Requests {
        let mut by_kind = vec![Sums::default(); KINDS];
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for thread in &threads {
            for (sum, kind) in by_kind.iter_mut().zip(&thread.0) {
                sum.requests += kind.requests.load(Relaxed);
                sum.received += kind.received.load(Relaxed);
                sum.answered += kind.answered.load(Relaxed);
                if let Some(latencies) = kind.latencies.get() {
                    sum.buckets.resize(BUCKETS, 0);
                    let buckets = sum.buckets.iter_mut().zip(&latencies.buckets);
                    buckets.for_each(|(sum, n)| *sum += n.load(Relaxed));
                    sum.nanos += latencies.nanos.load(Relaxed);
                }
            }
        }
        let received = by_kind.iter().map(|k| k.received).sum();
        let answered = by_kind.iter().map(|k| k.answered).sum();
        Requests { by_kind, received, answered }
    }
}

/// The longest time that one call has requests timed.
const WATCHED: Duration = Duration::from_secs(3600);

impl Requests {
    /// Returns what was served since `before`.
    pub fn since(&self, before: &Requests) -> Requests {
        debug_assert!(self.received >= before.received && self.answered >= before.answered);
        let each = self.by_kind.iter().zip(&before.by_kind);
        let by_kind = each
            .map(|(now, then)| Sums {
                requests: now.requests - then.requests,
                received: now.received - then.received,
                answered: now.answered - then.answered,
                buckets: (now.buckets.iter().enumerate())
                    .map(|(i, n)| n - then.buckets.get(i).copied().unwrap_or(0))
                    .collect(),
                nanos: now.nanos - then.nanos,
            })
            .collect();
        Requests {
            by_kind,
            received: self.received - before.received,
            answered: self.answered - before.answered,
        }
    }

    /// Returns the kinds that came at all, by their names in the kernel's sources.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, &Sums)> {
        debug_assert!(NAMES.windows(2).all(|n| n[0].0 < n[1].0), "each kind has one name");
        let name = |kind: usize| NAMES.iter().find(|n| n.0 as usize == kind).map_or("other", |n| n.1);
        let came = self.by_kind.iter().enumerate().filter(|(_, k)| k.requests > 0);
        came.map(move |(kind, sums)| (name(kind), sums))
    }

    /// Returns how often each kind came that came at all, by its name in the kernel's sources.
    pub fn by_kind(&self) -> Vec<(&'static str, u64)> {
        self.named().map(|(name, sums)| (name, sums.requests)).collect()
    }

    /// Returns how many requests there were that somebody waited for.
    pub fn waited_for(&self) -> u64 {
        self.by_kind.iter().map(|k| k.requests).sum::<u64>() - self.not_waited_for()
    }

    /// Returns how many requests there were that nobody waited for.
    pub fn not_waited_for(&self) -> u64 {
        let sum = NOT_WAITED_FOR.iter().map(|kind| self.by_kind[*kind as usize].requests).sum();
        debug_assert!(sum <= self.by_kind.iter().map(|k| k.requests).sum(), "a part of all");
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ReplyBuffer;

    fn request(op: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 40];
        bytes[..4].copy_from_slice(&(40 + body.len() as u32).to_ne_bytes());
        bytes[4..8].copy_from_slice(&op.to_ne_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn requests_are_told_apart_by_kind_and_by_who_waits() {
        let counts = Arc::new(Counts::new());
        let threads = [counts.thread(), counts.thread()];
        let count = |op: u32, body: &[u8]| {
            let bytes = request(op, body);
            let mut buffer = ReplyBuffer::new(64);
            let mut reply = Reply::over(buffer.bytes());
            reply.u64(7).unwrap();
            threads[body.len() % 2].count(&Request::decode(&bytes).unwrap(), &reply, None);
        };
        count(op::LOOKUP, b"name\0");
        let before = counts.all();
        [op::WRITE, op::WRITE, op::RELEASE, op::BATCH_FORGET, 9999].iter().for_each(|op| count(*op, b"xy"));
        let since = counts.all().since(&before);
        assert_eq!(since.by_kind(), [("other", 1), ("WRITE", 2), ("RELEASE", 1), ("BATCH_FORGET", 1)]);
        assert_eq!((since.waited_for(), since.not_waited_for()), (3, 2));
        assert_eq!((since.received, since.answered), (10, 40));
        assert_eq!((before.received, before.waited_for()), (5, 1));
    }

    #[test]
    fn each_latency_lies_in_its_bucket() {
        let mut last = 0;
        for bucket in 0..BUCKETS - 1 {
            let end = upper_ns(bucket);
            assert!(end > last && (bucket == 0 || end - last <= last / 4), "{last} to {end}");
            assert_eq!((bucket_of(last), bucket_of(end - 1)), (bucket, bucket));
            last = end;
        }
        assert_eq!((bucket_of(last), bucket_of(u64::MAX)), (BUCKETS - 1, BUCKETS - 1));
    }

    #[test]
    fn requests_are_timed_only_while_somebody_asks() {
        let counts = Arc::new(Counts::new());
        let mine = counts.thread();
        let bytes = request(op::READ, b"");
        let serve = || {
            let begun = mine.begin();
            let mut buffer = ReplyBuffer::new(64);
            mine.count(&Request::decode(&bytes).unwrap(), &Reply::over(buffer.bytes()), begun);
            begun.is_some()
        };
        let timed = |r: &Requests| r.named().next().unwrap().1.buckets();
        assert!(!serve() && timed(&counts.all()).is_none());
        counts.watch(Duration::from_secs(60));
        let before = counts.all();
        assert!(serve() && serve() && counts.is_timed());
        let since = counts.all().since(&before);
        assert_eq!(since.by_kind(), [("READ", 2)]);
        assert_eq!(timed(&since).unwrap().iter().map(|b| b.1).sum::<u64>(), 2);
        // Time is over: the request that finds that is the last one timed.
        counts.timed_until.store(1, Relaxed);
        assert!(!counts.is_timed() && serve() && !serve());
        // A shorter look does not end a longer one.
        counts.watch(Duration::from_secs(60));
        counts.watch(Duration::ZERO);
        assert!(counts.is_timed());
    }
}
