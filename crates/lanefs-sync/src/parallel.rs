//! Work that several threads share.

use crate::SignalsBlocked;
use crate::lock::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::Builder;

/// Returns the number of processors that this process may use. Asked once: the answer takes files
/// of the system to be read.
pub fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
}

/// [`share_early`] was called. Relaxed: who sees it late shares out later.
static EARLY: AtomicBool = AtomicBool::new(false);

/// Has work be shared out among threads from a few pieces on, for as long as the process lives: a
/// checker's small volumes take the ways of large ones then.
pub fn share_early() {
    EARLY.store(true, Relaxed);
}

/// Returns from how many pieces on work is shared out: `usual`, or `few` behind [`share_early`].
pub fn share_from(usual: usize, few: usize) -> usize {
    debug_assert!(few <= usual, "{few} pieces are no fewer than {usual}");
    if EARLY.load(Relaxed) { few } else { usual }
}

/// Runs `f` on 0..n from several threads.
pub fn in_parallel(threads: usize, n: usize, f: impl Fn(usize) + Sync) {
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

/// Runs `f` on each piece of some work, with a thread for each if there are several; returns what
/// came of them, in their order.
pub fn map<T: Send, R: Send>(work: Vec<T>, f: impl Fn(T) -> R + Sync) -> Vec<R> {
    map_with(work.len(), work, f)
}

/// Does that with so many threads, which take one piece after the other.
pub fn map_with<T: Send, R: Send>(threads: usize, work: Vec<T>, f: impl Fn(T) -> R + Sync) -> Vec<R> {
    if work.len() < 2 || threads < 2 {
        return work.into_iter().map(f).collect();
    }
    let pieces: Vec<_> = work.into_iter().map(|w| Mutex::new((Some(w), None))).collect();
    in_parallel(threads, pieces.len(), |n| {
        let piece = pieces[n].lock().0.take();
        debug_assert!(piece.is_some(), "piece {n} was given out twice");
        let done = piece.map(&f);
        pieces[n].lock().1 = done;
    });
    pieces.into_iter().filter_map(|p| p.into_inner().1).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn results_come_in_the_order_of_the_work() {
        for n in 0..9 {
            let squares: Vec<usize> = (0..n).map(|i| i * i).collect();
            assert_eq!(super::map((0..n).collect(), |i| i * i), squares);
            assert_eq!(super::map_with(2, (0..n).collect(), |i| i * i), squares);
        }
    }
}
