//! A pool of threads of which few read requests at a time.
//!
//! Requests are spread by the kernel over all threads that wait for one, in turn. So a single
//! caller whose calls are answered from memory would wake a cold thread each time, and a call that
//! sends two requests would wake two. Therefore few threads read, one per two cores (the callers
//! need the others) and at least two, and the rest stand by for those that have to wait for the
//! device.
//!
//! C1 `reading` counts the threads that read, or do what they have read without having to wait.
//! C2 A thread that is about to wait leaves, and if that leaves too few, one that stands by is
//!    called to read.
//! C3 When it is done it reads again if there are too few, else it stands by.
//! C4 Once the connection has ended nobody stands by any more.

use crate::blocking_hook;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// The numbers of threads in each state.
#[derive(Default)]
struct State {
    /// Those that read (C1).
    reading: usize,
    /// Those that stand by.
    standing_by: usize,
    /// Calls not yet followed. Who is called is among `reading` already.
    called: usize,
    ended: bool,
}

impl State {
    /// Asserts the invariants of a pool of which `wanted` threads are to read.
    fn check_invariants(&self, wanted: usize) {
        debug_assert!(self.reading <= wanted, "more read than are wanted");
        debug_assert!(self.called <= self.standing_by, "somebody is called who does not stand by");
        debug_assert!(self.called <= self.reading, "who is called is counted as reading");
        debug_assert!(
            self.reading == wanted || self.standing_by == self.called,
            "somebody stands by though too few read (C2, C3)"
        );
    }
}

/// The threads of a mount that may read requests, and how many of them do.
pub(crate) struct ReaderPool {
    state: Mutex<State>,
    call: Condvar,
    wanted: usize,
}

impl ReaderPool {
    /// Makes a pool of which `wanted` threads are to read.
    pub(crate) fn new(wanted: usize) -> ReaderPool {
        ReaderPool { state: Mutex::default(), call: Condvar::new(), wanted: wanted.max(1) }
    }

    /// Locks the state.
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held left whole counts.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Makes this thread one of them. Returns true if it is to read, false if the connection ended
    /// before it was wanted.
    pub(crate) fn join(self: &Arc<Self>) -> bool {
        let pool = Arc::clone(self);
        blocking_hook::set(move |_| pool.leave());
        self.read_or_stand_by()
    }

    /// Reads if there are too few that do (C3), else stands by. False if the connection has ended.
    fn read_or_stand_by(&self) -> bool {
        let mut s = self.state();
        if s.reading < self.wanted {
            s.reading += 1;
            s.check_invariants(self.wanted);
            return !s.ended;
        }
        s.standing_by += 1;
        s.check_invariants(self.wanted);
        while s.called == 0 && !s.ended {
            s = self.call.wait(s).unwrap_or_else(|e| e.into_inner());
        }
        s.standing_by -= 1;
        if s.called > 0 {
            s.called -= 1; // whoever called has counted this thread
        }
        s.check_invariants(self.wanted);
        !s.ended
    }

    /// Decides what this thread does after a request; called after each. True if it is to read
    /// another, false if the connection ended.
    pub(crate) fn done(&self) -> bool {
        if blocking_hook::has_waited() { self.read_or_stand_by() } else { true }
    }

    /// Lets those who stand by go: the connection has ended (C4).
    pub(crate) fn end(&self) {
        self.state().ended = true;
        self.call.notify_all();
    }

    /// Takes this thread off those that read, and calls another if that leaves too few (C2).
    fn leave(&self) {
        let mut s = self.state();
        debug_assert!(s.reading > s.called, "this thread reads, and nobody has to call it");
        s.reading -= 1;
        if s.reading < self.wanted && s.standing_by > s.called {
            s.called += 1;
            s.reading += 1;
            s.check_invariants(self.wanted);
            drop(s);
            self.call.notify_one();
        } else {
            s.check_invariants(self.wanted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocking_hook::about_to_wait;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc::channel;

    #[test]
    fn somebody_reads_whoever_waits_and_all_go_at_the_end() {
        let pool = Arc::new(ReaderPool::new(1));
        let (reading, told) = channel();
        let at_once = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (pool, reading, at_once) = (Arc::clone(&pool), reading.clone(), Arc::clone(&at_once));
                std::thread::spawn(move || {
                    let mut goes_on = pool.join();
                    while goes_on {
                        assert!(at_once.fetch_add(1, SeqCst) < 1, "more read than are wanted");
                        let (answer, go) = channel();
                        if reading.send(answer).is_err() {
                            return;
                        }
                        // "Reads": waits to be told whether the request makes it wait.
                        let waits: bool = go.recv().unwrap_or(false);
                        at_once.fetch_sub(1, SeqCst);
                        if waits {
                            about_to_wait();
                            about_to_wait();
                        }
                        goes_on = pool.done();
                    }
                })
            })
            .collect();
        drop(reading);
        // Whatever its requests make it do, there is always exactly one who reads.
        for n in 0..1000 {
            told.recv().unwrap().send(n % 3 != 0).unwrap();
        }
        pool.end();
        drop(told);
        for t in threads {
            t.join().unwrap();
        }
    }
}
