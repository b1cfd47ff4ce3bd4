//! Threads that take turns: lane 0 and 1 of a test, and the lane of its set-up.

use super::trace;
use std::sync::mpsc::{Sender, channel};

type Job = Box<dyn FnOnce() + Send>;

/// A thread that does what it is given, one thing at a time.
#[derive(Debug)]
pub struct Lane {
    jobs: Option<Sender<Job>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Lane {
    /// Starts one that can record.
    pub fn start(name: &str) -> Result<Lane, String> {
        let (jobs, inbox) = channel::<Job>();
        let (ready, told) = channel();
        let thread = std::thread::Builder::new()
            .name(name.into())
            .stack_size(8 << 20)
            .spawn(move || {
                let _ = ready.send(trace::setup());
                for job in inbox {
                    job();
                }
            })
            .map_err(|e| e.to_string())?;
        told.recv().map_err(|e| e.to_string())??;
        Ok(Lane { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Gives it something to do.
    pub fn spawn(&self, f: impl FnOnce() + Send + 'static) {
        if let Some(j) = &self.jobs {
            let _ = j.send(Box::new(f));
        }
    }

    /// Does something there and waits for the answer; `Err` if it panicked.
    pub fn call<R: Send + 'static>(&self, f: impl FnOnce() -> R + Send + 'static) -> Result<R, String> {
        let (tell, told) = channel();
        self.spawn(move || {
            let r = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
            let _ = tell.send(r.map_err(|_| "the lane's thread panicked".to_string()));
        });
        told.recv().map_err(|e| e.to_string())?
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}
