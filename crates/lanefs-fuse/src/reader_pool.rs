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
//! C5 While one caller alone sends requests ([`crate::lone_caller`]) one thread is wanted: the
//!    others stand by after their next request. That ends with the first request of another caller,
//!    before it is served; when that one has several requests under way, for long; and when a
//!    thread is about to wait for requests. (Not every wait is announced: a lock that somebody
//!    holds who waits. So several callers are to have several threads.)

use crate::blocking_hook::{self, Wait};
use lanefs_sync::CachePadded;
use std::sync::atomic::{AtomicU32, Ordering};
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
    /// How many are to read: all that may, or one (C5).
    wanted: usize,
    /// The caller that a thread took for the only one, and the number of that thread.
    supposed: Option<(u32, usize)>,
    /// Suppositions still to be passed over: one caller had several requests under way.
    passed_over: u32,
    ended: bool,
}

/// Suppositions of one caller that are passed over when it had several requests under way: each
/// stands for dozens of requests.
const PASSED_OVER: u32 = 64;

/// What a thread does after a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// It reads another.
    Read,
    /// It reads another, and nobody else does (C5).
    ReadAlone,
    /// The connection has ended.
    End,
}

impl State {
    /// Asserts the invariants of a pool of which `most` threads may read.
    fn check_invariants(&self, most: usize) {
        debug_assert!(self.wanted == most || self.wanted == 1);
        debug_assert!(self.reading <= most, "more read than may");
        debug_assert!(self.called <= self.standing_by, "somebody is called who does not stand by");
        debug_assert!(self.called <= self.reading, "who is called is counted as reading");
        debug_assert!(
            self.reading >= self.wanted || self.standing_by == self.called,
            "somebody stands by though too few read (C2, C3)"
        );
    }

    /// Calls as many as are too few; returns how many.
    fn call(&mut self) -> usize {
        let too_few = self.wanted.saturating_sub(self.reading).min(self.standing_by - self.called);
        self.called += too_few;
        self.reading += too_few;
        debug_assert!(self.called <= self.standing_by, "more are called than stand by");
        too_few
    }
}

/// The threads of a mount that may read requests, and how many of them do.
pub(crate) struct ReaderPool {
    state: Mutex<State>,
    call: Condvar,
    most: usize,
    /// The caller for whom one thread is wanted though several may read; 0: several are wanted.
    /// Written under the lock of `state`, loaded by each thread for each request; alone in its
    /// line, which is written when that changes. Relaxed: who acts on it takes the lock.
    lone: CachePadded<AtomicU32>,
}

impl ReaderPool {
    /// Makes a pool of which `most` threads are to read.
    pub(crate) fn new(most: usize) -> ReaderPool {
        let most = most.max(1);
        ReaderPool {
            state: Mutex::new(State { wanted: most, ..State::default() }),
            call: Condvar::new(),
            most,
            lone: CachePadded::default(),
        }
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
        blocking_hook::set(move |wait| pool.leave(wait));
        self.read_or_stand_by(self.state())
    }

    /// Reads if there are too few that do (C3), else stands by. False if the connection has ended.
    fn read_or_stand_by(&self, mut s: MutexGuard<'_, State>) -> bool {
        if s.reading < s.wanted {
            s.reading += 1;
            s.check_invariants(self.most);
            return !s.ended;
        }
        s.standing_by += 1;
        s.check_invariants(self.most);
        while s.called == 0 && !s.ended {
            s = self.call.wait(s).unwrap_or_else(|e| e.into_inner());
        }
        s.standing_by -= 1;
        if s.called > 0 {
            s.called -= 1; // whoever called has counted this thread
        }
        s.check_invariants(self.most);
        !s.ended
    }

    /// Decides what this thread does after a request; called after each.
    pub(crate) fn done(&self) -> Next {
        let goes_on = if blocking_hook::has_waited() {
            self.read_or_stand_by(self.state())
        } else if self.lone() != 0 {
            let mut s = self.state();
            if s.reading <= s.wanted {
                return if s.wanted < self.most { Next::ReadAlone } else { Next::Read };
            }
            s.reading -= 1;
            self.read_or_stand_by(s)
        } else {
            true
        };
        if goes_on { Next::Read } else { Next::End }
    }

    /// Returns the caller for whom one thread is wanted though several may read (C5); 0: several
    /// are.
    pub(crate) fn lone(&self) -> u32 {
        self.lone.load(Ordering::Relaxed)
    }

    /// Has one thread read, for caller `tid`, if two threads after each other took it for the only
    /// one: of two callers that take turns each thread may see one. `thread`: the number of this
    /// one.
    pub(crate) fn narrow(&self, tid: u32, thread: usize) {
        debug_assert!(tid != 0, "the kernel is no caller");
        let mut s = self.state();
        if s.passed_over > 0 {
            s.passed_over -= 1;
            return;
        }
        let supposed = s.supposed.replace((tid, thread));
        let agree = supposed.is_some_and(|(caller, by)| caller == tid && by != thread);
        if agree && self.most > 1 {
            s.wanted = 1;
            self.lone.store(tid, Ordering::Relaxed);
        }
        s.check_invariants(self.most);
    }

    /// Has as many read as may: there are several callers.
    pub(crate) fn widen(&self) {
        self.widen_and_call(self.state());
    }

    /// Has as many read as may, and for long: the one caller has several requests under way.
    pub(crate) fn widen_for_long(&self) {
        let mut s = self.state();
        s.passed_over = PASSED_OVER;
        self.widen_and_call(s);
    }

    /// Does it, for a caller that holds the lock.
    fn widen_and_call(&self, mut s: MutexGuard<'_, State>) {
        (s.wanted, s.supposed) = (self.most, None);
        self.lone.store(0, Ordering::Relaxed);
        self.call_more(s);
    }

    /// Calls as many as are too few.
    fn call_more(&self, mut s: MutexGuard<'_, State>) {
        let called = s.call();
        s.check_invariants(self.most);
        drop(s);
        (0..called).for_each(|_| self.call.notify_one());
    }

    /// Lets those who stand by go: the connection has ended (C4).
    pub(crate) fn end(&self) {
        self.state().ended = true;
        self.call.notify_all();
    }

    /// Takes this thread off those that read, and calls another if that leaves too few (C2).
    fn leave(&self, wait: Wait) {
        let mut s = self.state();
        if wait != Wait::RequestsToo {
            debug_assert!(s.reading > s.called, "this thread reads, and nobody has to call it");
            s.reading -= 1;
        }
        match wait {
            Wait::Device => self.call_more(s),
            Wait::Requests | Wait::RequestsToo => self.widen_and_call(s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocking_hook::{about_to_wait, about_to_wait_for_requests};
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
                        goes_on = pool.done() != Next::End;
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

    /// The time after which a thread that was to come never will.
    const LONG: std::time::Duration = std::time::Duration::from_secs(60);

    /// Waits until something is so.
    fn until(is_so: impl Fn() -> bool) {
        let begun = std::time::Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < LONG, "it never came to that");
            std::thread::yield_now();
        }
    }

    /// What a thread that reads is told: the caller, and what it has to wait for.
    type Told = std::sync::mpsc::Sender<(u32, Option<Wait>)>;

    #[test]
    fn one_reads_for_a_lone_caller_and_several_as_soon_as_another_comes() {
        let pool = Arc::new(ReaderPool::new(3));
        let (reading, readers) = channel::<(Told, Next)>();
        let threads: Vec<_> = (0..6)
            .map(|thread| {
                let (pool, reading) = (Arc::clone(&pool), reading.clone());
                std::thread::spawn(move || {
                    let mut next = if pool.join() { Next::Read } else { Next::End };
                    while next != Next::End {
                        let (told, request) = channel();
                        if reading.send((told, next)).is_err() {
                            return;
                        }
                        let Ok((tid, waits)) = request.recv() else { return };
                        match pool.lone() {
                            0 => pool.narrow(tid, thread),
                            lone if lone != tid => pool.widen(),
                            _ => {}
                        }
                        match waits {
                            Some(Wait::Device) => about_to_wait(),
                            Some(Wait::Requests) => about_to_wait_for_requests(),
                            Some(Wait::RequestsToo) => {
                                about_to_wait();
                                about_to_wait_for_requests();
                            }
                            None => {}
                        }
                        next = pool.done();
                    }
                })
            })
            .collect();
        drop(reading);
        let come = |n: usize| (0..n).map(|_| readers.recv_timeout(LONG).unwrap()).collect::<Vec<_>>();
        let mut three = come(3);
        for turn in 0..50 {
            // Two take 7 for the only caller: the second stands by, and so does one more.
            three.remove(0).0.send((7, None)).unwrap();
            three.extend(come(1));
            three.remove(0).0.send((7, None)).unwrap();
            three.remove(0).0.send((7, None)).unwrap();
            let (mut last, _) = three.pop().unwrap();
            for n in 0..10 {
                // Who waits for the device has another read in its place.
                last.send((7, Some(Wait::Device).filter(|_| n % 3 == 0))).unwrap();
                let next;
                (last, next) = readers.recv_timeout(LONG).unwrap();
                assert!(matches!(next, Next::ReadAlone | Next::Read), "the others are on their way");
            }
            until(|| pool.state().reading == 1);
            last.send((7, None)).unwrap();
            let next;
            (last, next) = readers.recv_timeout(LONG).unwrap();
            assert_eq!((next, pool.lone()), (Next::ReadAlone, 7));
            // Another comes, or a thread waits for requests: before that is answered three read.
            let several = [(8, None), (7, Some(Wait::Requests)), (7, Some(Wait::RequestsToo))];
            last.send(several[turn % several.len()]).unwrap();
            three = come(3);
            assert_eq!(pool.lone(), 0);
            // The callers take turns, and each thread sees one.
            let mut turns = 0..10;
            while turns.next().is_some() {
                for caller in [11, 12] {
                    three.remove(0).0.send((caller, None)).unwrap();
                    three.extend(come(1));
                }
                assert_eq!(pool.lone(), 0, "two callers");
            }
        }
        pool.widen_for_long();
        for _ in 0..PASSED_OVER / 2 {
            for _ in 0..2 {
                three.remove(0).0.send((7, None)).unwrap();
                three.extend(come(1));
            }
        }
        assert_eq!(pool.lone(), 0, "it has several under way");
        three.remove(0).0.send((7, None)).unwrap();
        three.extend(come(1));
        three.remove(0).0.send((7, None)).unwrap();
        until(|| pool.lone() == 7);
        pool.end();
        drop((three, readers));
        threads.into_iter().for_each(|t| t.join().unwrap());
    }
}
