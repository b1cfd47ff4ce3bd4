//! The threads that serve one queue.
//!
//! One thread is woken by the guest (the vhost crate's, which waits for the queue's eventfd): it
//! *takes* requests out of the queue, and serves them itself, so that what is answered from memory
//! wakes nobody. When a request is about to wait for the device another takes its place:
//!
//! L1 `taking` counts the threads that take requests: the first one unless it waits, and those
//!    that stand in for it. Every thread that takes has taken all there are before it sleeps, and
//!    is woken by the next.
//! L2 A thread that is about to wait does not take any more. If nobody else does, one that stands
//!    by is called, or a further one is started as long as there are fewer than the limit; else
//!    requests wait until one comes back.
//! L3 The first thread takes again as soon as it comes back. Another comes back to take if nobody
//!    does. Where more than one takes, a stand-in that finds the queue empty stands by.
//! L4 A stand-in is woken by the queue's eventfd too, by each write to it (EPOLLET), and leaves it
//!    to the first thread to read it.
//! L5 The guest is asked not to wake anybody while somebody takes. Whoever finds the queue empty
//!    asks to be woken, and then looks once more: so of all threads the last to sleep has asked.
//! L6 A request is counted as under way from before it is taken until it is answered, so a queue
//!    that is not ready any more and has none under way is at rest.

use crate::chain::Chain;
use lanefs_fuse::guest::{self, Guest, GuestThread};
use lanefs_sync::SignalsBlocked;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};
use vhost_user_backend::{VringMutex, VringT};
use virtio_queue::{DescriptorChain, QueueOwnedT};
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};

/// The guest's memory, as the virtual machine gave it last.
pub(crate) type Memory = GuestMemoryAtomic<GuestMemoryMmap>;
type View = <Memory as GuestAddressSpace>::T;

/// The numbers of threads in each state.
#[derive(Default)]
struct State {
    /// Those that take (L1).
    taking: usize,
    /// Stand-ins that stand by.
    standing_by: usize,
    /// Calls not yet followed. Who is called is among `taking` already.
    called: usize,
    /// Stand-ins in all.
    stand_ins: usize,
    /// Requests under way (L6).
    under_way: usize,
    ended: bool,
}

impl State {
    /// Asserts the invariants.
    fn check_invariants(&self) {
        debug_assert!(self.called <= self.standing_by, "somebody is called who does not stand by");
        debug_assert!(self.called <= self.taking, "who is called is counted as taking");
        debug_assert!(self.standing_by <= self.stand_ins);
        debug_assert!(self.taking <= self.stand_ins + 1, "more take than there are");
    }
}

/// What a thread serves by.
struct Worker {
    thread: GuestThread,
    chain: Chain,
    request: Vec<u8>,
}

/// One queue.
pub(crate) struct Line {
    guest: Arc<Guest>,
    memory: Memory,
    /// The number of the queue.
    number: usize,
    /// The most threads.
    limit: usize,
    /// The queue; known when it was first used.
    vring: OnceLock<VringMutex>,
    /// What the first thread serves by.
    first: Mutex<Option<Worker>>,
    state: Mutex<State>,
    /// Notified when a stand-in is called, and at the end.
    call: Condvar,
    /// Notified when no request is under way.
    idle: Condvar,
    /// Written to when stand-ins are to look whether they are needed.
    recall: OwnedFd,
    stand_ins: Mutex<Vec<JoinHandle<()>>>,
}

/// Locks a mutex, also after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Counts and lists are whole between two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What wakes a stand-in: the queue's eventfd, and the recall.
struct Bell(OwnedFd);

impl Bell {
    /// Makes it. What is written from now on wakes.
    fn new(vring: &VringMutex, recall: &OwnedFd) -> io::Result<Bell> {
        let bell = epoll::create(CreateFlags::CLOEXEC)?;
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&bell, recall, EventData::new_u64(0), flags)?;
        let queue = vring.get_ref();
        if let Some(kick) = queue.get_kick() {
            // SAFETY: the eventfd is open while the queue is locked, and so for this call.
            let kick = unsafe { BorrowedFd::borrow_raw(kick.as_raw_fd()) };
            epoll::add(&bell, kick, EventData::new_u64(1), flags)?;
        }
        Ok(Bell(bell))
    }

    /// Waits for it. It may ring for nothing.
    fn wait(&self) -> io::Result<()> {
        let mut events = [std::mem::MaybeUninit::uninit(); 2];
        match epoll::wait(&self.0, &mut events, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

impl Worker {
    fn new(guest: &Arc<Guest>) -> Worker {
        let request = vec![0; guest.request_bytes()];
        Worker { thread: guest.thread(), chain: Chain::default(), request }
    }

    /// Serves what a chain asks for, and returns the bytes of the answer.
    fn serve(&mut self, chain: DescriptorChain<View>, memory: &GuestMemoryMmap) -> usize {
        if !self.chain.read(chain) {
            return 0;
        }
        let Some(request) = self.chain.copy_request(memory, &mut self.request) else { return 0 };
        let answer = self.thread.serve(request, self.chain.capacity());
        self.chain.copy_answer(memory, answer)
    }
}

impl Line {
    /// Makes the line of queue `number`, for at most `limit` threads.
    pub fn new(guest: &Arc<Guest>, memory: &Memory, number: usize, limit: usize) -> io::Result<Line> {
        debug_assert!(limit > 0, "somebody has to serve");
        Ok(Line {
            guest: Arc::clone(guest),
            memory: memory.clone(),
            number,
            limit,
            vring: OnceLock::new(),
            first: Mutex::default(),
            state: Mutex::new(State { taking: 1, ..State::default() }),
            call: Condvar::new(),
            idle: Condvar::new(),
            recall: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stand_ins: Mutex::default(),
        })
    }

    /// Serves what is in the queue; called by the first thread, always the same.
    pub fn kicked(self: &Arc<Line>, vring: &VringMutex) {
        self.vring.get_or_init(|| vring.clone());
        let mut first = lock(&self.first);
        let worker = first.get_or_insert_with(|| {
            let line = Arc::downgrade(self);
            guest::on_wait(move || line.upgrade().iter().for_each(Line::leave));
            Worker::new(&self.guest)
        });
        let whole = self.serve_all(vring, worker, || {
            let mut state = lock(&self.state);
            state.taking += 1;
            state.check_invariants();
            if state.taking > 1 {
                // Only that it is written counts; the number never comes near its end.
                let _ = rustix::io::write(&self.recall, &1_u64.to_ne_bytes());
            }
            true
        });
        debug_assert!(whole, "the first thread goes on (L3)");
    }

    /// Serves what is in the queue until it is empty. `came_back` is called when a request made
    /// this thread wait: whether it goes on taking. False if it does not.
    fn serve_all(
        &self,
        vring: &VringMutex,
        worker: &mut Worker,
        mut came_back: impl FnMut() -> bool,
    ) -> bool {
        loop {
            // An error here or below: the queue is not ready any more.
            let _ = vring.disable_notification();
            while self.serve_one(vring, worker) {
                if guest::has_waited() && !came_back() {
                    return false;
                }
            }
            // L5.
            if !vring.enable_notification().unwrap_or(false) || lock(&self.state).ended {
                return true;
            }
        }
    }

    /// Takes a request and serves it. False if there is none.
    fn serve_one(&self, vring: &VringMutex, worker: &mut Worker) -> bool {
        {
            let mut state = lock(&self.state);
            if state.ended {
                return false;
            }
            state.under_way += 1;
        }
        let taken = self.take(vring);
        let was_there = taken.is_some();
        if let Some((chain, view)) = taken {
            let head = chain.head_index();
            let len = worker.serve(chain, &view);
            give_back(vring, head, len);
        }
        let mut state = lock(&self.state);
        state.under_way -= 1;
        if state.under_way == 0 {
            self.idle.notify_all();
        }
        was_there
    }

    /// Takes the next chain out of the queue, with the memory that it lies in.
    fn take(&self, vring: &VringMutex) -> Option<(DescriptorChain<View>, View)> {
        let mut queue = vring.get_mut();
        let view = self.memory.memory();
        let chain = queue.get_queue_mut().iter(view.clone()).ok()?.next()?;
        Some((chain, view))
    }

    /// Has another thread take, because this one is about to wait (L2).
    fn leave(self: &Arc<Line>) {
        let mut state = lock(&self.state);
        debug_assert!(state.taking > 0, "this thread takes, and has not left yet");
        state.taking -= 1;
        if state.taking > 0 || state.ended {
            return;
        }
        if state.standing_by > state.called {
            (state.called, state.taking) = (state.called + 1, 1);
            state.check_invariants();
            self.call.notify_one();
        } else if state.stand_ins + 1 < self.limit {
            (state.stand_ins, state.taking) = (state.stand_ins + 1, 1);
            state.check_invariants();
            drop(state);
            self.start();
        }
    }

    /// Starts a stand-in, which has been counted.
    fn start(self: &Arc<Line>) {
        let line = Arc::clone(self);
        let _blocked = SignalsBlocked::new();
        match Builder::new().name(format!("lanefs-queue-{}", self.number)).spawn(move || line.stand_in()) {
            Ok(thread) => lock(&self.stand_ins).push(thread),
            Err(e) => {
                tracing::warn!("a further thread for queue {}: {e}", self.number);
                let mut state = lock(&self.state);
                (state.stand_ins, state.taking) = (state.stand_ins - 1, state.taking - 1);
            }
        }
    }

    /// Runs a stand-in, until the end.
    fn stand_in(self: &Arc<Line>) {
        let line = Arc::downgrade(self);
        guest::on_wait(move || line.upgrade().iter().for_each(Line::leave));
        let mut worker = Worker::new(&self.guest);
        loop {
            self.take_place(&mut worker);
            let mut state = lock(&self.state);
            state.standing_by += 1;
            state.check_invariants();
            while state.called == 0 && !state.ended {
                state = self.call.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.standing_by -= 1;
            if state.ended {
                return;
            }
            state.called -= 1; // whoever called has counted this thread
            state.check_invariants();
        }
    }

    /// Takes requests until somebody else does.
    fn take_place(&self, worker: &mut Worker) {
        // Before the queue is emptied, so that whatever comes later wakes.
        let bell = self.vring.get().map(|vring| Bell::new(vring, &self.recall).map(|bell| (vring, bell)));
        let Some(Ok((vring, bell))) = bell else {
            if let Some(Err(e)) = bell {
                tracing::warn!("queue {} waits for one thread: {e}", self.number);
            }
            lock(&self.state).taking -= 1;
            return;
        };
        loop {
            let goes_on = self.serve_all(vring, worker, || {
                let mut state = lock(&self.state);
                let wanted = state.taking == 0;
                state.taking += usize::from(wanted);
                state.check_invariants();
                wanted
            });
            if !goes_on {
                return;
            }
            {
                let mut state = lock(&self.state);
                debug_assert!(state.taking > 0, "this thread does");
                if state.taking > 1 || state.ended {
                    state.taking -= 1;
                    return;
                }
            }
            if let Err(e) = bell.wait() {
                tracing::warn!("queue {} waits for one thread: {e}", self.number);
                lock(&self.state).taking -= 1;
                return;
            }
        }
    }

    /// Waits until no request is under way; the queue gives none any more (L6).
    pub fn wait_until_idle(&self) {
        let mut state = lock(&self.state);
        while state.under_way > 0 {
            state = self.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Has nobody take requests any more.
    pub fn stop(&self) {
        lock(&self.state).ended = true;
        self.call.notify_all();
        let _ = rustix::io::write(&self.recall, &1_u64.to_ne_bytes());
    }

    /// Waits for the stand-ins, which were stopped.
    pub fn end(&self) {
        debug_assert!(lock(&self.state).ended, "they would not end");
        while let Some(thread) = { lock(&self.stand_ins).pop() } {
            if thread.join().is_err() {
                tracing::error!("a thread of queue {} panicked", self.number);
            }
        }
    }
}

/// Gives a chain back to the guest, with `len` bytes of an answer, and tells it if it wants that.
fn give_back(vring: &VringMutex, head: u16, len: usize) {
    debug_assert!(u32::try_from(len).is_ok(), "an answer is shorter");
    let mut queue = vring.get_mut();
    // An error: the guest has named a descriptor that there is not, or the queue is gone. There is
    // nobody to tell.
    let _ = queue.add_used(head, len as u32);
    if queue.needs_notification().unwrap_or(true) {
        let _ = queue.signal_used_queue();
    }
}
