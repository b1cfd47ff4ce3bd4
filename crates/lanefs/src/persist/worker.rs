//! A thread that does round after round, of what its volume has to do.

use super::Persist;
use crate::error::{Error, Result};
use lanefs_sync::SignalsBlocked;
use lanefs_sync::lock::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The time after which an error is told again that all rounds meet.
const TELL_AGAIN: Duration = Duration::from_secs(600);

/// The thread, and what wakes it.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Worker {
    thread: Mutex<Option<JoinHandle<()>>>,
    /// It is time to end. Written once, by who ends the thread, before it wakes it. SeqCst: it
    /// happens once, and who finds it set starts to wait for no round any more.
    stop: AtomicBool,
    woken: Mutex<bool>,
    wake: Condvar,
    /// Wakes those who wait for a round.
    rounds: Condvar,
}

impl Worker {
    /// Wakes the thread for a round, unless it has been woken.
    pub fn wake(&self) {
        let mut w = self.woken.lock();
        if !*w {
            *w = true;
            self.wake.notify_one();
        }
    }

    /// Wakes the thread and waits for the end of a round, that long at most.
    pub fn wake_and_wait(&self, long: Duration) {
        self.wake();
        let mut w = self.woken.lock();
        self.rounds.wait_for(&mut w, long);
    }

    /// Returns whether there is a thread that does rounds.
    pub fn is_running(&self) -> bool {
        self.thread.lock().is_some() && !self.stop.load(Ordering::SeqCst)
    }

    /// Ends the thread and waits for it, unless this is it.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake();
        let t = self.thread.lock().take();
        if let Some(t) = t
            && t.thread().id() != std::thread::current().id()
        {
            let _ = t.join();
        }
        debug_assert!(!self.is_running(), "who waits for a round would wait in vain");
    }
}

/// What a thread does again and again.
#[derive(Clone, Copy)]
pub(super) struct Rounds {
    /// One round.
    pub round: fn(&Persist) -> Result<()>,
    /// Returns how long it waits for the next one, unless it is woken.
    pub pause: fn(&Persist) -> Duration,
}

/// Starts the thread of `worker`, which does rounds until it is stopped.
pub(super) fn start(
    persist: &Arc<Persist>,
    name: &str,
    worker: &Arc<Worker>,
    rounds: Rounds,
) -> std::io::Result<()> {
    let (weak, own) = (Arc::downgrade(persist), worker.clone());
    let _blocked = SignalsBlocked::new();
    let t = std::thread::Builder::new().name(name.into()).spawn(move || run(&weak, &own, rounds))?;
    let before = worker.thread.lock().replace(t);
    debug_assert!(before.is_none(), "a worker has one thread");
    drop(before);
    Ok(())
}

/// The errors of a thread's rounds, of which one that stays is told once in a while: rounds come
/// five times a second.
#[derive(Default)]
struct Told(Option<(String, Instant)>);

impl Told {
    /// Returns whether an error is to be told at `now`: another one than the last that was, or long
    /// after that.
    fn is_news(&mut self, e: &Error, now: Instant) -> bool {
        let text = e.to_string();
        debug_assert!(!text.is_empty(), "an error without a word");
        let same = |(last, at): &(String, Instant)| *last == text && now.duration_since(*at) < TELL_AGAIN;
        let news = !self.0.as_ref().is_some_and(same);
        if news {
            self.0 = Some((text, now));
        }
        news
    }
}

/// Does round after round, as the thread, until that is stopped or the volume is gone.
fn run(weak: &Weak<Persist>, worker: &Worker, rounds: Rounds) {
    let mut told = Told::default();
    loop {
        let Some(persist) = weak.upgrade() else { return };
        debug_assert!(!crossbeam_epoch::is_pinned(), "a round keeps the collector from going on");
        if worker.stop.load(Ordering::SeqCst) {
            return;
        }
        if let Err(e) = (rounds.round)(&persist) {
            if persist.check_alive().is_err() {
                return;
            }
            if told.is_news(&e, Instant::now()) {
                tracing::error!("background work: {e}");
            }
        }
        let pause = (rounds.pause)(&persist);
        // The wait keeps nothing alive but the condition itself.
        drop(persist);
        worker.rounds.notify_all();
        let mut w = worker.woken.lock();
        if !*w {
            worker.wake.wait_for(&mut w, pause);
        }
        *w = false;
        drop(w);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A volume that had gone read-only said so five times a second, of each thread: 170 MB a day.
    #[test]
    fn an_error_that_stays_is_told_once_in_ten_minutes() {
        let (mut told, start) = (Told::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let (broken, full) = (Error::Posix(libc::EROFS), Error::Posix(libc::ENOSPC));
        assert!(told.is_news(&broken, after(0)));
        assert!((1..600).all(|n| !told.is_news(&broken, after(n))));
        assert!(told.is_news(&broken, after(600)) && !told.is_news(&broken, after(601)));
        assert!(told.is_news(&full, after(602)) && told.is_news(&broken, after(603)));
    }
}
