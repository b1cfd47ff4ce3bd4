//! Counts of the requests that were served, by kind, and of the bytes that they moved.
//!
//! Each thread counts in a shard of its own, so counting makes no two threads meet. The counters
//! are Relaxed: each stands for itself, and a sum taken while requests are served is a sum of what
//! was counted so far.

use crate::wire::abi::op;
use crate::wire::{Reply, Request};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The number of kinds that are told apart; all higher ones are counted as kind 0.
const KINDS: usize = 64;
const SHARDS: usize = 16;

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

/// The counters of the threads of a shard.
#[repr(align(128))]
struct Shard {
    requests: [AtomicU64; KINDS],
    received: AtomicU64,
    answered: AtomicU64,
}

/// What a mount counts.
pub(crate) struct Counts(Vec<Shard>);

/// The requests that a mount has served since it was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Requests {
    by_kind: [u64; KINDS],
    /// The bytes of requests behind their headers: names, and what is written.
    pub received: u64,
    /// The bytes of answers behind their headers: attributes, listings, and what is read.
    pub answered: u64,
}

/// Returns the shard of the calling thread.
fn my_shard() -> usize {
    // Relaxed: any spread will do, and nothing is handed over.
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Relaxed) % SHARDS;
    }
    MINE.with(|m| *m)
}

impl Counts {
    /// Makes counters that have counted nothing.
    pub(crate) fn new() -> Counts {
        let shard = || Shard {
            requests: [const { AtomicU64::new(0) }; KINDS],
            received: AtomicU64::new(0),
            answered: AtomicU64::new(0),
        };
        Counts((0..SHARDS).map(|_| shard()).collect())
    }

    /// Counts a request that is about to be answered.
    pub(crate) fn count(&self, request: &Request<'_>, reply: &Reply<'_>) {
        debug_assert_eq!(self.0.len(), SHARDS);
        let shard = &self.0[my_shard()];
        let kind = if (request.op as usize) < KINDS { request.op as usize } else { 0 };
        shard.requests[kind].fetch_add(1, Relaxed);
        shard.received.fetch_add(request.args().len() as u64, Relaxed);
        shard.answered.fetch_add(reply.len() as u64, Relaxed);
    }

    /// Returns what was counted so far.
    pub(crate) fn all(&self) -> Requests {
        let mut all = Requests { by_kind: [0; KINDS], received: 0, answered: 0 };
        for shard in &self.0 {
            all.by_kind.iter_mut().zip(&shard.requests).for_each(|(sum, n)| *sum += n.load(Relaxed));
            all.received += shard.received.load(Relaxed);
            all.answered += shard.answered.load(Relaxed);
        }
        all
    }
}

impl Requests {
    /// Returns what was served since `before`.
    pub fn since(&self, before: &Requests) -> Requests {
        let mut by_kind = self.by_kind;
        by_kind.iter_mut().zip(&before.by_kind).for_each(|(n, b)| *n -= b);
        debug_assert!(self.received >= before.received && self.answered >= before.answered);
        Requests {
            by_kind,
            received: self.received - before.received,
            answered: self.answered - before.answered,
        }
    }

    /// Returns how often each kind came that came at all, by its name in the kernel's sources.
    pub fn by_kind(&self) -> Vec<(&'static str, u64)> {
        let name = |kind: usize| NAMES.iter().find(|n| n.0 as usize == kind).map_or("other", |n| n.1);
        let came = self.by_kind.iter().enumerate().filter(|(_, n)| **n > 0);
        debug_assert!(NAMES.windows(2).all(|n| n[0].0 < n[1].0), "each kind has one name");
        came.map(|(kind, n)| (name(kind), *n)).collect()
    }

    /// Returns how many requests there were that somebody waited for.
    pub fn waited_for(&self) -> u64 {
        self.by_kind.iter().sum::<u64>() - self.not_waited_for()
    }

    /// Returns how many requests there were that nobody waited for.
    pub fn not_waited_for(&self) -> u64 {
        let sum = NOT_WAITED_FOR.iter().map(|kind| self.by_kind[*kind as usize]).sum();
        debug_assert!(sum <= self.by_kind.iter().sum(), "a part of all");
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
        let counts = Counts::new();
        let count = |op: u32, body: &[u8]| {
            let bytes = request(op, body);
            let mut buffer = ReplyBuffer::new(64);
            let mut reply = Reply::over(buffer.bytes());
            reply.u64(7).unwrap();
            counts.count(&Request::decode(&bytes).unwrap(), &reply);
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
}
