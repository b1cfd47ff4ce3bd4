//! The threads that serve requests over io_uring: for each processor the kernel may have, some with
//! an entry each in that processor's queue ([`crate::wire::ring`]).
//!
//! A thread stays on its queue's processor: the caller goes to sleep there when it has sent its
//! request, so the two change places without waking another processor. The kernel prefers the entry
//! that became free last, so one caller alone finds the same warm thread.
//!
//! T1 A thread that waits has no entry free, and only the threads of its queue serve it. When the
//!    last of them goes away to wait for the device, another is started as long as there are fewer
//!    than the limit; then requests wait for those who are away.
//! T2 Before a thread waits for requests of the kernel, another of its queue has its entry
//!    registered and does not wait for requests, whatever the limit: they may come to this queue.
//!    Before, because the kernel gives a new entry only what comes after it.
//! T3 The kernel uses the rings when each queue has an entry, and holds requests back until then.
//!    If a queue gets none the kernel is made to go on without them ([`ring::disable`]), and all
//!    requests come over /dev/fuse.

use crate::adaptor::Adaptor;
use crate::blocking_hook::{self, Wait, about_to_wait_for_requests};
use crate::idle::Pace;
use crate::options::RingThreads;
use crate::readers::{Serving, perform};
use crate::taking::with_found;
use crate::wire::ring::{self, Entry};
use crate::wire::{Answer, Device, Origin};
use lanefs_sync::SignalsBlocked;
use std::cell::Cell;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::Builder;

/// The state that the threads of all queues share.
struct RingShared {
    adaptor: Arc<Adaptor>,
    device: Arc<Device>,
    /// Bytes of an entry's payload.
    payload: usize,
    /// The most threads of a queue, but for T2.
    limit: usize,
    /// The threads not yet waited for.
    threads: Mutex<Vec<Serving>>,
}

/// The numbers of threads of one queue.
#[derive(Default)]
struct Count {
    /// All that run, or are about to.
    threads: usize,
    /// Of all, those whose entries are registered.
    registered: usize,
    /// Of the registered, those whose request waits for something.
    away: usize,
    /// Of those away, the ones that wait for requests.
    stuck: usize,
}

impl Count {
    /// Asserts that each number counts some of those that the one before counts.
    fn check_invariants(&self) {
        debug_assert!(self.registered <= self.threads, "an entry without a thread");
        debug_assert!(self.away <= self.registered, "only who has an entry serves, and waits");
        debug_assert!(self.stuck <= self.away);
    }
}

/// The threads of one queue.
struct QueueThreads {
    shared: Arc<RingShared>,
    queue: u16,
    count: Mutex<Count>,
    /// Notified when a thread has begun, has ended, or could not be started.
    begun: Condvar,
}

thread_local! {
    /// Whether this thread waits for requests.
    static STUCK: Cell<bool> = const { Cell::new(false) };
}

/// Locks a mutex, also after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Counts and lists are whole between two statements.
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// The threads of all queues, each with its entry registered.
pub(crate) struct Rings {
    shared: Arc<RingShared>,
}

impl Rings {
    /// Starts the threads of all queues. With an error rings cannot be had, and the kernel goes on
    /// without them (T3); threads that have started end with the connection.
    pub(crate) fn start(
        adaptor: &Arc<Adaptor>,
        device: &Arc<Device>,
        payload: usize,
        size: RingThreads,
    ) -> (Rings, io::Result<()>) {
        debug_assert!((1..=size.limit).contains(&size.first));
        let shared = Arc::new(RingShared {
            adaptor: Arc::clone(adaptor),
            device: Arc::clone(device),
            payload,
            limit: size.limit,
            threads: Mutex::default(),
        });
        let started = (0..ring::queues()).try_for_each(|queue| {
            let queue = u16::try_from(queue).map_err(io::Error::other)?;
            let threads = Arc::new(QueueThreads {
                shared: Arc::clone(&shared),
                queue,
                count: Mutex::default(),
                begun: Condvar::new(),
            });
            threads.start(size.first)
        });
        if started.is_err() {
            ring::disable(device);
        }
        (Rings { shared }, started)
    }

    /// Waits until all have ended; the first error of any.
    pub(crate) fn wait(&self) -> io::Result<()> {
        let mut result = Ok(());
        // Whoever starts another does so before its own end.
        while let Some(thread) = { lock(&self.shared.threads).pop() } {
            result = result.and(ended(thread));
        }
        result
    }
}

/// Waits for a serving thread.
pub(crate) fn ended(thread: Serving) -> io::Result<()> {
    thread.join().unwrap_or_else(|_| Err(io::Error::other("a serving thread of the mount panicked")))
}

impl QueueThreads {
    /// Starts the first `n` threads; an error if not one of them has an entry.
    fn start(self: &Arc<QueueThreads>, n: usize) -> io::Result<()> {
        let (reports, started) = channel();
        for _ in 0..n.max(1) {
            lock(&self.count).threads += 1;
            self.add(Some(reports.clone()));
        }
        drop(reports);
        let mut results: Vec<io::Result<()>> = started.iter().collect();
        debug_assert_eq!(results.len(), n.max(1), "each thread reports once");
        match results.iter().position(|r| r.is_ok()) {
            Some(_) => {
                for e in results.iter().filter_map(|r| r.as_ref().err()) {
                    tracing::warn!("a ring of processor {}: {e}", self.queue);
                }
                Ok(())
            }
            None => results.pop().unwrap_or_else(|| Err(io::Error::other("no thread was started"))),
        }
    }

    /// Starts a thread, which has been counted. It reports whether its entry was registered.
    fn add(self: &Arc<QueueThreads>, report: Option<Sender<io::Result<()>>>) {
        let threads = Arc::clone(self);
        let refused = report.clone();
        let _blocked = SignalsBlocked::new();
        let started =
            Builder::new().name(format!("lanefs-ring-{}", self.queue)).spawn(move || threads.run(report));
        match started {
            Ok(thread) => lock(&self.shared.threads).push(thread),
            Err(e) => {
                self.left(false);
                match refused {
                    Some(report) => drop(report.send(Err(e))),
                    None => tracing::warn!("a further thread for processor {}: {e}", self.queue),
                }
            }
        }
    }

    /// Runs a thread: registers an entry, reports how that went, and serves until the connection
    /// has ended.
    fn run(self: &Arc<QueueThreads>, report: Option<Sender<io::Result<()>>>) -> io::Result<()> {
        let entry = self.enter();
        let registered = match &entry {
            Ok(_) => Ok(()),
            Err(e) => Err(io::Error::new(e.kind(), e.to_string())),
        };
        match (report, &registered) {
            (Some(report), _) => drop(report.send(registered)),
            (None, Err(e)) => tracing::warn!("a further ring of processor {}: {e}", self.queue),
            _ => {}
        }
        // The error has been reported.
        let Ok(mut entry) = entry else {
            self.left(false);
            return Ok(());
        };
        {
            let mut count = lock(&self.count);
            count.registered += 1;
            count.check_invariants();
        }
        self.begun.notify_all();
        let threads = Arc::clone(self);
        blocking_hook::set(move |wait| threads.away(wait));
        let result = self.serve(&mut entry);
        self.left(true);
        result.inspect_err(|e| self.shared.adaptor.serving_failed(e))
    }

    /// Takes a thread that has ended off the counts.
    fn left(&self, registered: bool) {
        let mut count = lock(&self.count);
        count.threads -= 1;
        count.registered -= usize::from(registered);
        count.check_invariants();
        drop(count);
        self.begun.notify_all();
    }

    /// Binds this thread to the queue's processor and registers an entry.
    fn enter(&self) -> io::Result<Entry> {
        stay_on(self.queue);
        let mut entry = Entry::new(Arc::clone(&self.shared.device), self.queue, self.shared.payload)?;
        entry.register()?;
        Ok(entry)
    }

    /// Serves requests until the connection has ended.
    fn serve(&self, entry: &mut Entry) -> io::Result<()> {
        let adaptor = &self.shared.adaptor;
        let mine = adaptor.counts.thread();
        let mut pace = Pace::default();
        while entry.fetch()? {
            debug_assert!(!STUCK.get(), "it waits for requests, and has got one");
            let (request, mut reply) = entry.open()?;
            let mut result = perform(adaptor, &mine, &request, &mut reply, &Origin::Ring);
            if let Answer::Again(bytes) = reply.answer {
                about_to_wait_for_requests();
                reply.answer = Answer::Now;
                let again = || perform(adaptor, &mine, &request, &mut reply, &Origin::Ring);
                let for_root = !request.is_user();
                result = adaptor.aside.with_space(bytes, for_root, |found| with_found(found, again));
            }
            debug_assert_ne!(reply.answer, Answer::Elsewhere);
            // The kernel waits for the answer of a request it has handed over, whatever becomes of
            // the caller.
            if result.is_err() {
                adaptor.undo(&mut reply);
            }
            let len = reply.finish(request.unique, result).len();
            // Before anything can fail: a thread that ends is not away.
            if blocking_hook::has_waited() {
                let mut count = lock(&self.count);
                count.away -= 1;
                count.stuck -= usize::from(STUCK.replace(false));
                count.check_invariants();
            }
            adaptor.idle.iter().for_each(|idle| idle.served(&mut pace));
            entry.answer(len)?;
        }
        Ok(())
    }

    /// Has others serve the queue while this thread waits (T1, T2).
    fn away(self: &Arc<QueueThreads>, wait: Wait) {
        let mut count = lock(&self.count);
        if wait != Wait::RequestsToo {
            debug_assert!(count.away < count.registered, "this thread serves, and is not away yet");
            count.away += 1;
        }
        if wait == Wait::Device {
            if count.away >= count.threads && count.threads < self.shared.limit {
                count.threads += 1;
                drop(count);
                self.add(None);
            }
            return;
        }
        STUCK.set(true);
        count.stuck += 1;
        count.check_invariants();
        while count.stuck >= count.registered {
            let before = count.registered;
            count.threads += 1;
            drop(count);
            self.add(None);
            count = lock(&self.count);
            while count.registered == before && count.threads > before {
                count = self.begun.wait(count).unwrap_or_else(|e| e.into_inner());
            }
            if count.registered <= before {
                // Better to risk waiting for each other than never to answer; what failed has been
                // reported.
                break;
            }
        }
    }
}

/// Keeps this thread on a processor, if that one is there and may be used.
fn stay_on(processor: u16) {
    let mut set = rustix::thread::CpuSet::new();
    if usize::from(processor) < rustix::thread::CpuSet::MAX_CPU {
        set.set(processor.into());
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}
