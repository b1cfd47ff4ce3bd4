//! Work that several threads share.

use super::FsckOptions;
use lanefs_sync::SignalsBlocked;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::Builder;

/// Returns the number of threads that read.
pub(super) fn threads(o: &FsckOptions) -> usize {
    match o.threads {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        n => n,
    }
}

/// Runs `f` on 0..n from several threads.
pub(super) fn in_parallel(threads: usize, n: usize, f: impl Fn(usize) + Sync) {
    // The first number that no thread has taken; all threads add to it. Relaxed: it only hands out
    // work, and the scope joins the threads.
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let i = next.fetch_add(1, Relaxed);
            if i >= n {
                return;
            }
            f(i);
        }
    };
    std::thread::scope(|s| {
        let blocked = SignalsBlocked::new();
        for _ in 1..threads.min(n) {
            if Builder::new().spawn_scoped(s, work).is_err() {
                break; // no more threads can be had: those that there are do it
            }
        }
        drop(blocked);
        work();
    });
}
