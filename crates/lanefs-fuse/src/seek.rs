//! SEEK_DATA and SEEK_HOLE in files the kernel holds unwritten pages of.
//!
//! The kernel asks us where data is without writing back first, and would be told that what it has gathered is a hole.
//! So while anybody has a file open for writing, its pages are called in before the answer: an invalidation makes the
//! kernel write them back. It waits for WRITE requests, which the threads that read /dev/fuse must be free to serve, so
//! this happens on a thread of its own. A request that came through a ring has to be answered by the thread that has it; there
//! another thread is started where none is left (`rings`). (Files open only for reading have no unwritten pages: closing writes them back.)

use crate::handles::Handles;
use crate::wire::{Device, Errno, Reply, room};
use lanefs::Ino;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

pub(crate) struct Job {
    pub ino: Ino,
    pub handle: u64,
    pub offset: i64,
    pub whence: i32,
    /// Of the request to answer.
    pub unique: u64,
    /// Where it came from: the kernel takes the answer nowhere else.
    pub device: Arc<Device>,
}

type Running = (Sender<Job>, JoinHandle<()>);

/// The thread that seeks; started when it is first needed.
pub(crate) struct Seeker {
    handles: Arc<Handles>,
    device: Arc<Device>,
    running: Mutex<Option<Running>>,
}

/// Where the data or the hole is.
pub(crate) fn answer(handles: &Handles, handle: u64, offset: i64, whence: i32) -> Result<u64, Errno> {
    // SAFETY: the handle of a request that is answered after this.
    let file = unsafe { handles.get(handle) }.ok_or(Errno(libc::EBADF))?;
    Ok(file.seek(offset, whence)?)
}

fn call_in(device: &Device, ino: Ino) {
    if let Err(e) = device.call_in(ino) {
        tracing::warn!("inode {}: its unwritten pages were not called in: {e}", ino.0);
    }
}

impl Seeker {
    pub(crate) fn new(handles: Arc<Handles>, device: Arc<Device>) -> Seeker {
        Seeker { handles, device, running: Mutex::new(None) }
    }

    /// Has the kernel write back the pages of the file, then answers.
    pub(crate) fn seek(&self, job: Job) -> Result<(), Errno> {
        let mut running = self.running.lock().unwrap_or_else(|e| e.into_inner());
        if running.is_none() {
            *running = Some(self.start().map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EIO)))?);
        }
        match &*running {
            Some((jobs, _)) => jobs.send(job).map_err(|_| Errno(libc::EIO)),
            None => Err(Errno(libc::EIO)),
        }
    }

    /// Has the kernel write back the pages of the file, and waits for that.
    pub(crate) fn call_in(&self, ino: Ino) {
        call_in(&self.device, ino);
    }

    fn start(&self) -> io::Result<Running> {
        let (jobs, queue) = channel::<Job>();
        let (handles, device) = (Arc::clone(&self.handles), Arc::clone(&self.device));
        let thread = std::thread::Builder::new().name("lanefs-seek".into()).spawn(move || {
            let mut bytes = room(64);
            for job in queue {
                call_in(&device, job.ino);
                let mut reply = Reply::over(bytes.bytes());
                let result =
                    answer(&handles, job.handle, job.offset, job.whence).and_then(|at| reply.u64(at));
                if let Err(e) = job.device.send(reply.finish(job.unique, result)) {
                    tracing::warn!("answering lseek: {e}");
                }
            }
        })?;
        Ok((jobs, thread))
    }

    /// Waits for the answers still due. No request comes any more.
    pub(crate) fn stop(&self) {
        let running = self.running.lock().unwrap_or_else(|e| e.into_inner()).take();
        if let Some((jobs, thread)) = running {
            drop(jobs);
            let _ = thread.join();
        }
    }
}
