//! SEEK_DATA and SEEK_HOLE in files the kernel holds unwritten pages of.
//!
//! The kernel asks us where data is without writing back first, and would be told that what it has gathered is a hole.
//! So while anybody has a file open for writing, its pages are called in before the answer: an invalidation makes the
//! kernel write them back. It waits for WRITE requests, which the reader threads must be free to serve, so
//! this happens on a thread of its own. (Files open only for reading have no unwritten pages: closing writes them back.)

use crate::handles::Handles;
use crate::translate::errno;
use fuser::{Errno, INodeNo, Notifier, ReplyLseek};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

struct Job {
    target: INodeNo,
    handle: u64,
    offset: i64,
    whence: i32,
    reply: ReplyLseek,
}

type Running = (Sender<Job>, JoinHandle<()>);

/// The thread that seeks; started when it is first needed.
pub(crate) struct Seeker {
    handles: Arc<Handles>,
    notifier: Arc<OnceLock<Notifier>>,
    running: Mutex<Option<Running>>,
}

/// Answers `lseek` of an open file.
pub(crate) fn answer(handles: &Handles, handle: u64, offset: i64, whence: i32, reply: ReplyLseek) {
    // SAFETY: the handle of the request that `reply` belongs to, which is answered below.
    let result = match unsafe { handles.get(handle) } {
        Some(file) => file.seek(offset, whence).map_err(errno),
        None => Err(Errno::EBADF),
    };
    match result {
        Ok(at) => reply.offset(at as i64),
        Err(e) => reply.error(e),
    }
}

impl Seeker {
    pub(crate) fn new(handles: Arc<Handles>, notifier: Arc<OnceLock<Notifier>>) -> Seeker {
        Seeker { handles, notifier, running: Mutex::new(None) }
    }

    /// Has the kernel write back the pages of `target`, then answers.
    pub(crate) fn seek(&self, target: INodeNo, handle: u64, offset: i64, whence: i32, reply: ReplyLseek) {
        let mut running = self.running.lock().unwrap_or_else(|e| e.into_inner());
        if running.is_none() {
            match self.start() {
                Ok(started) => *running = Some(started),
                Err(e) => return reply.error(e.into()),
            }
        }
        if let Some((jobs, _)) = &*running
            && let Err(unsent) = jobs.send(Job { target, handle, offset, whence, reply })
        {
            unsent.0.reply.error(Errno::EIO);
        }
    }

    fn start(&self) -> std::io::Result<Running> {
        let (jobs, queue) = channel::<Job>();
        let (handles, notifier) = (Arc::clone(&self.handles), Arc::clone(&self.notifier));
        let thread = std::thread::Builder::new().name("lanefs-seek".into()).spawn(move || {
            for job in queue {
                if let Some(notifier) = notifier.get()
                    && let Err(e) = notifier.inval_inode(job.target, 0, 0)
                {
                    tracing::warn!("inode {}: its unwritten pages were not called in: {e}", job.target.0);
                }
                answer(&handles, job.handle, job.offset, job.whence, job.reply);
            }
        })?;
        Ok((jobs, thread))
    }

    /// Waits for the answers still due. No request comes any more.
    pub(crate) fn stop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(|e| e.into_inner()).take();
        if let Some((jobs, thread)) = running {
            drop(jobs);
            let _ = thread.join();
        }
    }
}
