//! Calls of the kernel that may wait for other requests, made by a thread of their own.
//!
//! The kernel drops pages, when it is asked to, under their locks, and writes back first what is
//! dirty: it waits for READ and WRITE requests, which the threads that take requests must be free
//! to serve. And to drop a name it takes the lock of the directory, which a caller may hold who
//! waits for one of us. So:
//!
//! A1 *Seeking.* The kernel asks us where data is without writing back first, and would
//!    learn that what it has gathered is a hole. While anybody has a file open for writing, its
//!    pages are written back before the answer. (Files open only for reading have no unwritten
//!    pages: closing writes them back.) Where nobody knows who has it open: while the kernel may
//!    have pages of it.
//! A2 *Writes past the cache.* Of an asynchronous O_DIRECT write the kernel drops the pages before
//!    it sends the request, and not again when that is answered: what somebody read meanwhile into
//!    its cache would stay there. If anybody may have, the pages are dropped here once more, before
//!    the answer.
//! A3 *Names.* Where a change of a directory was made and the call fails all the same, what the
//!    kernel believes of the name is dropped. That waits until nobody has the directory locked: for
//!    the answer to the caller, and to others whose requests may wait here. So another thread does
//!    it, for which nobody waits.
//!
//! A4 *Space.* Where little space is left, a file's pages are written back before its next write is
//!    taken ([`crate::space`]).
//!
//! A5 *Flags.* Where files are opened without a request a file that becomes immutable takes no page
//!    of the kernel's cache any more. So those that it has are written back before.
//!
//! A6 *Replacing.* A file that is renamed over another is found whole after a crash (SEMANTICS F5),
//!    and that includes what the kernel has gathered of it: while anybody has it open for writing,
//!    its pages are written back before the rename. (A file that was closed has none.)
//!
//! A7 *Holes.* The kernel drops the pages of a range that is punched or zeroed when the call has
//!    succeeded. Where it failed a part may be gone all the same, so they are dropped then. The
//!    caller's locks keep nobody from that, but what the request has waited for may, so nobody
//!    waits for it.
//!
//! A8 *Pieces.* The kernel hands a growing file over in several requests at a time. Who makes it
//!    durable must know whether a range that no write has reached yet is a hole, or late: the
//!    kernel is asked to drop its pages, and has handed over what was written when it has done so.
//!    Somebody who commits for others may ask, so each question has a thread of its own, and is
//!    given up after [`LONGEST`]: the piece may wait for memory that the commit is to free.
//!
//! A9 *Taking.* Where little space is left, what takes some past the kernel's cache waits until the
//!    kernel has handed over what it gathered of all files (R8 of [`crate::space`]).
//!
//! No signal ends such a call: it waits until the requests are served, or the connection is cut. A
//! server that is killed in one cannot end by itself; its watchdog cuts then ([`crate::watchdog`]).
//!
//! A virtual machine's kernel can be told none of this; what is done instead stands in
//! [`crate::guest`].
//!
//! A request that came through a ring has to be answered by the thread that has it; there another
//! thread is started where none is left (`rings`), and it makes the calls of A1, A2, A4 to A6 and
//! A9 itself.

use crate::blocking_hook::{PATIENCE, about_to_wait_for_requests};
use crate::handles::{ASSUMED, Handles};
use crate::renaming::{Renamed, Renaming};
use crate::space::Space;
use crate::wire::{Caller, Device, Errno, Reply, ReplyBuffer};
use lanefs::{File, Ino};
use lanefs_sync::SignalsBlocked;
use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How long is waited for a piece of a file that grows (A8).
const LONGEST: Duration = Duration::from_secs(5);

/// A request that is answered when pages were written back.
pub(crate) struct Job {
    pub ino: Ino,
    pub what: What,
    /// The number of the request to answer.
    pub unique: u64,
    /// The descriptor it came from: the kernel takes the answer nowhere else.
    pub device: Arc<Device>,
}

/// The content of an answer.
pub(crate) enum What {
    /// The position of data or of a hole (A1). `made`: the open file, where requests have no
    /// handle.
    Seek { handle: u64, made: Option<Box<File>>, offset: i64, whence: i32 },
    /// The number of bytes that were written (A2).
    Written { offset: u64, bytes: u32 },
    /// The attributes, for who is about to write (A4).
    Attributes { ttl: Duration, caller: Caller },
    /// That these flags were set (A5).
    Flags(u32),
    /// That the file was renamed (A6).
    Rename(Box<Renaming>),
}

/// Something for which somebody waits.
enum Errand {
    Answer(Job),
    /// A request is to be done once more (A9).
    Again(Again),
}

/// Something that the kernel is to drop, for which nobody waits.
enum Stale {
    /// The name in the directory (A3).
    Name(Ino, Vec<u8>),
    /// The pages of the file (A7).
    Pages(Ino),
}

/// A request that waits for space (A9).
struct Again {
    bytes: u64,
    for_root: bool,
    /// Does it, and answers: whether there is space.
    then: Box<dyn FnOnce(bool) + Send>,
}

/// A thread that has a queue.
struct Worker<T> {
    running: Mutex<Option<(Sender<T>, JoinHandle<()>)>>,
}

/// The threads; started when they are first needed.
pub(crate) struct Aside {
    handles: Arc<Handles>,
    space: Arc<Space>,
    /// `None`: the kernel cannot be told anything.
    device: Option<Arc<Device>>,
    errands: Worker<Errand>,
    stale: Arc<Worker<Stale>>,
}

impl<T: Send + 'static> Worker<T> {
    fn new() -> Worker<T> {
        Worker { running: Mutex::new(None) }
    }

    /// Gives the thread something to do. `work` is what it does with its queue.
    fn send(
        &self,
        name: &str,
        thing: T,
        work: impl FnOnce(Receiver<T>) + Send + 'static,
    ) -> Result<(), Errno> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.is_none() {
            let (things, queue) = channel::<T>();
            let _blocked = SignalsBlocked::new();
            let thread = Builder::new().name(name.into()).spawn(move || {
                // As who serves requests does: some of what is done here waits for the device.
                lanefs::set_patience(Some(PATIENCE));
                work(queue);
            });
            *running = Some((things, thread.map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EIO)))?));
        }
        debug_assert!(running.is_some(), "{name} was started");
        match &*running {
            Some((things, _)) => things.send(thing).map_err(|_| Errno(libc::EIO)),
            None => Err(Errno(libc::EIO)),
        }
    }

    /// Waits until all is done that it was given.
    fn stop(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((things, thread)) = running {
            drop(things);
            let _ = thread.join();
        }
    }
}

impl Worker<Stale> {
    /// Has the kernel drop something, some time.
    fn drop_soon(&self, device: &Arc<Device>, stale: Stale) {
        let (device, ino) = (Arc::clone(device), stale.ino());
        let sent = self.send("lanefs-stale", stale, move |queue| {
            for stale in queue {
                match stale {
                    Stale::Name(dir, name) => drop_name(&device, dir, &name),
                    Stale::Pages(ino) => flush_kernel_pages(&device, ino),
                }
            }
        });
        if sent.is_err() {
            tracing::warn!("inode {}: what the kernel believes of it may be wrong", ino.0);
        }
    }
}

impl Stale {
    /// Returns the inode that it is about.
    fn ino(&self) -> Ino {
        let (Stale::Name(ino, _) | Stale::Pages(ino)) = self;
        debug_assert!(ino.0 != 0, "a change of no inode");
        *ino
    }
}

/// Returns the position of the data or the hole.
fn seek(
    handles: &Handles,
    handle: u64,
    made: Option<Box<File>>,
    offset: i64,
    whence: i32,
) -> Result<u64, Errno> {
    if let Some(file) = made {
        return Ok(file.lseek(offset, whence)?);
    }
    // SAFETY: the handle of a request that is answered after this.
    let handle = unsafe { handles.get(handle) }.ok_or(Errno(libc::EBADF))?;
    Ok(handle.file.lseek(offset, whence)?)
}

/// Renames. Of a change that may be lost what the kernel has of the directories is dropped, and the
/// names are added to `changed`.
fn rename(device: &Device, renaming: &Renaming, changed: &mut Vec<(Ino, Vec<u8>)>) -> Result<(), Errno> {
    debug_assert!(changed.is_empty(), "names of the job before");
    match renaming.make() {
        Renamed::Done => Ok(()),
        Renamed::Refused(e) => Err(e),
        Renamed::NotDurable(e) => {
            for (dir, name) in renaming.names() {
                drop_attributes(device, dir);
                changed.push((dir, name.to_vec()));
            }
            Err(e)
        }
    }
}

/// Does what is in the queue, until nothing comes any more.
fn run(
    queue: &Receiver<Errand>,
    mine: &Arc<Device>,
    handles: &Handles,
    space: &Space,
    stale: &Worker<Stale>,
) {
    let mut bytes = ReplyBuffer::new(256);
    let mut changed = Vec::new();
    for errand in queue {
        let job = match errand {
            Errand::Answer(job) => job,
            Errand::Again(Again { bytes, for_root, then }) => {
                let taking = space.taking();
                then(make_space(mine, handles, space, bytes, for_root));
                drop(taking);
                space.look();
                continue;
            }
        };
        let mut reply = Reply::over(bytes.bytes());
        debug_assert!(job.ino.0 != 0, "a request about no inode");
        let result = match job.what {
            What::Seek { handle, made, offset, whence } => {
                flush_kernel_pages(&job.device, job.ino);
                seek(handles, handle, made, offset, whence).and_then(|at| reply.u64(at))
            }
            What::Attributes { ttl, caller } => ask(&job.device, space, (job.ino, caller), ttl, &mut reply),
            What::Flags(flags) => {
                flush_kernel_pages(&job.device, job.ino);
                let set = space.set_flags(job.ino, flags);
                drop_attributes(&job.device, job.ino);
                set.and_then(|()| reply.put(&[0; 16]))
            }
            What::Rename(renaming) => {
                flush_kernel_pages(&job.device, job.ino);
                rename(&job.device, &renaming, &mut changed)
            }
            What::Written { offset, bytes } => {
                drop_pages(&job.device, job.ino, offset, bytes);
                reply.u32(bytes).and_then(|()| reply.u32(0))
            }
        };
        debug_assert!(reply.entered.is_empty() && reply.opened.is_none(), "nobody would undo it");
        if let Err(e) = job.device.send(reply.finish(job.unique, result)) {
            tracing::warn!("answering a request about inode {}: {e}", job.ino.0);
        }
        changed.drain(..).for_each(|(dir, name)| stale.drop_soon(mine, Stale::Name(dir, name)));
    }
}

/// Has the kernel drop what it believes of a name (A3).
fn drop_name(device: &Device, dir: Ino, name: &[u8]) {
    if let Err(e) = device.drop_name(dir, name) {
        tracing::warn!("directory {}: a name was not dropped: {e}", dir.0);
    }
}

/// Has the kernel write back and drop the pages of a file.
fn flush_kernel_pages(device: &Device, ino: Ino) {
    if let Err(e) = device.flush_kernel_pages(ino) {
        tracing::warn!("inode {}: its unwritten pages were not written back: {e}", ino.0);
    }
}

/// Has the kernel ask for the attributes again.
fn drop_attributes(device: &Device, ino: Ino) {
    if let Err(e) = device.drop_attributes(ino) {
        tracing::warn!("inode {}: the kernel may believe old attributes: {e}", ino.0);
    }
}

/// Has the kernel write back the pages of a file, and puts its attributes for who is about to write
/// it. ENOSPC if there is no space for that, and it is not about to read.
fn ask(
    device: &Device,
    space: &Space,
    (ino, caller): (Ino, Caller),
    ttl: Duration,
    reply: &mut Reply,
) -> Result<(), Errno> {
    flush_kernel_pages(device, ino);
    space.look();
    if space.is_scarce() {
        if !space.is_backed(ino) && !space.has_reserve(caller.is_root) && !caller.reads() {
            return Err(Errno(libc::ENOSPC));
        }
        // It asks before the next write, too.
        if let Err(e) = device.drop_attributes(ino) {
            tracing::warn!("inode {}: the kernel may write without asking: {e}", ino.0);
        }
    }
    space.lets_through();
    let mut stat = space.stat(ino)?;
    // W9 of `requests::content`: somebody is about to write to it.
    stat.blocks = stat.blocks.max(ASSUMED);
    reply.attr_out(&stat, ttl)
}

/// Calls in what the kernel has gathered, and returns whether there is space for so many bytes
/// beside the reserve (A9). The caller has the turn of who takes space.
fn make_space(device: &Device, handles: &Handles, space: &Space, bytes: u64, for_root: bool) -> bool {
    debug_assert!(space.reserve() > 0, "nothing is gathered, and nobody asks");
    if space.becomes_scarce() {
        handles.written().into_iter().for_each(|ino| drop_attributes(device, ino));
    }
    space.flush_gathered(|| handles.written().into_iter().for_each(|ino| flush_kernel_pages(device, ino)));
    space.has_reserve_beside(bytes, for_root)
}

/// Has the kernel drop the pages of a range.
fn drop_pages(device: &Device, ino: Ino, offset: u64, bytes: u32) {
    if bytes > 0
        && let Err(e) = device.drop_pages(ino, offset, u64::from(bytes))
    {
        tracing::warn!("inode {}: stale pages may stay in the kernel's cache: {e}", ino.0);
    }
}

/// Waits until the kernel has handed over what was written to these ranges of a file (A8).
pub(crate) fn await_pieces(device: &Arc<Device>, ino: Ino, ranges: &[Range<u64>]) {
    debug_assert!(!ranges.is_empty() && ino.0 != 0, "nothing is missing");
    about_to_wait_for_requests();
    let (device, ranges) = (Arc::clone(device), ranges.to_vec());
    let (told, done) = channel::<()>();
    let ask = move || {
        for range in ranges {
            if let Err(e) = device.drop_pages(ino, range.start, range.end - range.start) {
                tracing::warn!("inode {}: whether more of it comes is not known: {e}", ino.0);
            }
        }
        drop(told);
    };
    let blocked = SignalsBlocked::new();
    let asks = Builder::new().name("lanefs-pieces".into()).spawn(ask).is_ok();
    drop(blocked);
    if !asks || done.recv_timeout(LONGEST) == Err(RecvTimeoutError::Timeout) {
        tracing::warn!("inode {}: what is late is taken for a hole", ino.0);
    }
}

impl Aside {
    /// Makes the queues; the threads are started when they are first needed.
    pub(crate) fn new(handles: Arc<Handles>, space: Arc<Space>, device: Option<Arc<Device>>) -> Aside {
        Aside { handles, space, device, errands: Worker::new(), stale: Arc::new(Worker::new()) }
    }

    /// Has the kernel write back or drop the pages, then answers.
    pub(crate) fn answer(&self, job: Job) -> Result<(), Errno> {
        self.send(Errand::Answer(job))
    }

    /// Has the kernel drop what it believes of a name, some time (A3).
    pub(crate) fn forget(&self, dir: Ino, name: &[u8]) {
        debug_assert!(!name.is_empty(), "a change of this name was made");
        if let Some(device) = &self.device {
            self.stale.drop_soon(device, Stale::Name(dir, name.to_vec()));
        }
    }

    /// Has the kernel drop the pages of a file, some time (A7).
    pub(crate) fn drop_pages_soon(&self, ino: Ino) {
        if let Some(device) = &self.device {
            self.stale.drop_soon(device, Stale::Pages(ino));
        }
    }

    /// Gives the thread something to do.
    fn send(&self, errand: Errand) -> Result<(), Errno> {
        let mine = self.device.clone().ok_or(Errno(libc::EIO))?;
        let (handles, space, stale) =
            (Arc::clone(&self.handles), Arc::clone(&self.space), Arc::clone(&self.stale));
        self.errands.send("lanefs-aside", errand, move |queue| run(&queue, &mine, &handles, &space, &stale))
    }

    /// Has the kernel write back and drop the pages of the file, and waits for that.
    pub(crate) fn flush_kernel_pages(&self, ino: Ino) {
        if let Some(device) = &self.device {
            flush_kernel_pages(device, ino);
        }
    }

    /// Has the kernel write back the pages of a file, and puts its attributes for who is about to
    /// write it. ENOSPC if there is no space for that.
    pub(crate) fn ask(
        &self,
        ino: Ino,
        caller: Caller,
        ttl: Duration,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let device = self.device.as_ref().ok_or(Errno(libc::EIO))?;
        ask(device, &self.space, (ino, caller), ttl, reply)
    }

    /// Calls in what the kernel has gathered, and has `then` told whether there is space for so
    /// many bytes (A9).
    pub(crate) fn again(
        &self,
        bytes: u64,
        for_root: bool,
        then: impl FnOnce(bool) + Send + 'static,
    ) -> Result<(), Errno> {
        debug_assert!(self.device.is_some(), "a kernel that cannot be told gathers nothing");
        self.send(Errand::Again(Again { bytes, for_root, then: Box::new(then) }))
    }

    /// Does the same, and waits for it: the thread that asks serves a ring.
    pub(crate) fn with_space<T>(&self, bytes: u64, for_root: bool, then: impl FnOnce(bool) -> T) -> T {
        debug_assert!(self.device.is_some(), "a kernel that cannot be told gathers nothing");
        let taking = self.space.taking();
        let found = match &self.device {
            Some(device) => make_space(device, &self.handles, &self.space, bytes, for_root),
            None => true,
        };
        let done = then(found);
        drop(taking);
        self.space.look();
        done
    }

    /// Has the kernel drop the pages of a range, and waits for that.
    pub(crate) fn drop_pages(&self, ino: Ino, offset: u64, bytes: u32) {
        if let Some(device) = &self.device {
            drop_pages(device, ino, offset, bytes);
        }
    }

    /// Has the kernel ask for the attributes again. It waits for nothing, so anybody may call it,
    /// also within a request.
    pub(crate) fn attributes_changed(&self, ino: Ino) {
        if let Some(device) = &self.device {
            drop_attributes(device, ino);
        }
    }

    /// Waits for the answers still due. No request comes any more.
    pub(crate) fn stop(&self) {
        self.errands.stop();
        self.stale.stop();
    }
}
