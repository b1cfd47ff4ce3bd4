//! FUSE over io_uring: an entry of one of the kernel's queues.
//!
//! The kernel keeps a queue of requests for each processor and hands a request to an entry of the
//! queue of the processor it was made on. An entry is a header and a payload in memory of ours,
//! registered once (REGISTER). The command that registers it completes when a request has been put
//! there; COMMIT_AND_FETCH answers that request and waits for the next, all in one system call.
//!
//! Here an entry has a ring of its own and belongs to one thread:
//!
//! R1 The kernel writes into an entry's memory only while a command of it is under way. From
//!    [`Entry::fetch`] to the next submission none is, and the memory is ours alone.
//! R2 A command is under way from its submission to its completion (`waiting`). While one is, the
//!    memory stays mapped.
//! R3 A thread that is busy has no command under way, so the kernel gives it no request: nothing
//!    queues behind a request that waits for the device as long as the queue has another entry.
//! R4 What the kernel has left to do for a command it does when this thread enters or leaves the
//!    kernel (COOP_TASKRUN), and by itself once this thread is gone. Under DEFER_TASKRUN it would
//!    wait for this thread to ask for completions, which nobody does in a server that was killed;
//!    and as long as another thread of it waits for the mount ([`crate::aside`]) the ring is not
//!    closed. Whatever came for such an entry would never be answered, not even when the connection
//!    is cut.
//! R5 ECANCELED is the end of a ring here, and no accident as it may be in the ring of a device
//!    (lanefs-store, `device::ring`). There the kernel says so of what it had to hand to a worker
//!    and found none for: it makes none for a thread that has a signal to take. A command of FUSE
//!    goes to no worker: what would send it there is EAGAIN, the answer to one that comes before
//!    INIT was answered, and entries are made behind that. Of what it has taken, the kernel says
//!    ECANCELED where the thread of the entry is ending or the ring is being closed, and ENOTCONN
//!    where it takes back a command without a request (Linux 6.14 and later: `fuse_uring_cmd`,
//!    `fuse_uring_send_in_task`, `fuse_uring_cancel`). So a signal ends none.
//!
//! FORGET and INTERRUPT come over /dev/fuse also then, and so does what was sent before the queues
//! were ready.

use super::abi::{IN_HEADER, OUT_HEADER, ring};
use super::{Device, Reply, ReplyBuffer, Request};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::Arc;

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// The offset of the payload; before it lie the header, the vector that names both, and an answer's
/// header.
const PAYLOAD: usize = 4096;
/// The offset of the vector that names header and payload.
const VECTOR: usize = 512;
/// The answer to a request that has a payload is at most an extended attribute.
const SIDE: usize = 68 << 10;

const _: () = assert!(PAYLOAD.is_multiple_of(4096), "a device reads into the payload");
const _: () = assert!(SIDE >= 64 << 10, "the longest extended attribute");

/// The memory of an entry that the kernel reads and writes.
struct Memory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory, owned by whoever owns this.
unsafe impl Send for Memory {}

impl Memory {
    /// Maps memory for a payload of `payload` bytes.
    fn new(payload: usize) -> io::Result<Memory> {
        let len = PAYLOAD + payload.next_multiple_of(4096);
        debug_assert!(payload > 0 && len.is_multiple_of(4096));
        // SAFETY: a fresh mapping where the kernel likes refers to no memory of this process.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        debug_assert!(base.addr().get().is_multiple_of(4096), "a mapping begins with a page");
        Ok(Memory { base, len })
    }

    /// Returns the header's page up to where an answer's header stands, and the rest from there on.
    fn split(&mut self) -> (&mut [u8], &mut [u8]) {
        let front = PAYLOAD - OUT_HEADER;
        debug_assert!(self.len >= PAYLOAD + 4096);
        // SAFETY: two parts of the mapping that do not overlap, borrowed as long as this is; R1
        // keeps the kernel out meanwhile, because a command is submitted only through the same
        // `&mut`.
        unsafe {
            (
                std::slice::from_raw_parts_mut(self.base.as_ptr(), front),
                std::slice::from_raw_parts_mut(self.base.as_ptr().add(front), self.len - front),
            )
        }
    }

    /// Returns the address of the byte at `at`, as the kernel takes it.
    fn address(&self, at: usize) -> u64 {
        debug_assert!(at < self.len);
        self.base.as_ptr().addr() as u64 + at as u64
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`; no borrow of it outlives this.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// One entry of a queue; to be made and used by one thread.
pub(crate) struct Entry {
    ring: Ring,
    device: Arc<Device>,
    /// `None` once it had to be left to the kernel (R2).
    memory: Option<Memory>,
    /// The buffer for answers to requests that have a payload, which may not be overwritten before
    /// it is dealt with.
    side: ReplyBuffer,
    queue: u16,
    /// Whether a command is under way.
    waiting: bool,
    /// Whether it completed while it was being submitted.
    arrived: bool,
    /// The kernel's number of the request in the memory.
    commit: u64,
    /// Whether its answer is put together in `side`.
    aside: bool,
}

/// Returns how many queues the kernel asks for: one for each processor it may ever have.
pub(crate) fn queues() -> usize {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    count(&list).unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
}

/// Returns the length of a list such as `0-3,8`.
fn count(list: &str) -> Option<usize> {
    list.trim().split(',').try_fold(0, |n, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        Some(n + (last + 1).checked_sub(first)?)
    })
}

/// Returns the size of an entry's memory, in bytes, if its payload has `payload`.
pub(crate) fn entry_bytes(payload: usize) -> u64 {
    (PAYLOAD + payload.next_multiple_of(4096) + SIDE) as u64
}

/// Makes a ring as entries need it (R4). An error means that io_uring cannot be used here.
fn make() -> io::Result<Ring> {
    IoUring::builder().dontfork().setup_single_issuer().setup_coop_taskrun().build(2)
}

/// Checks that this process may use io_uring at all: some sandboxes forbid it.
pub(crate) fn probe() -> io::Result<()> {
    make().map(drop)
}

/// Has the kernel go on without rings, when some could not be registered: until then it holds
/// requests back.
pub(crate) fn disable(device: &Arc<Device>) {
    // No machine has a processor of this number; whatever is wrong with a registration, the kernel
    // takes it for the end of them.
    let refused = Entry::new(Arc::clone(device), u16::MAX, 4096).and_then(|mut e| e.register());
    if refused.is_ok() {
        tracing::error!("the kernel took a queue that cannot be");
    }
}

impl Entry {
    /// Makes an entry of queue `queue` with `payload` bytes, not yet registered.
    pub fn new(device: Arc<Device>, queue: u16, payload: usize) -> io::Result<Entry> {
        let (ring, memory) = (make()?, Memory::new(payload)?);
        debug_assert_eq!((memory.len + SIDE) as u64, entry_bytes(payload), "what the budget counts");
        Ok(Entry {
            ring,
            device,
            memory: Some(memory),
            side: ReplyBuffer::new(SIDE),
            queue,
            waiting: false,
            arrived: false,
            commit: 0,
            aside: false,
        })
    }

    /// Asserts that the kernel has no command of this entry, so that the memory is ours (R1).
    fn check_idle(&self) {
        debug_assert!(!self.waiting, "a command is under way: the kernel may write at any time");
        debug_assert!(self.memory.is_some(), "it is left to the kernel only at the end (R2)");
    }

    /// Returns the memory, unless it was left to the kernel.
    fn memory(&mut self) -> io::Result<&mut Memory> {
        self.memory.as_mut().ok_or_else(|| io::Error::other("the entry is closed"))
    }

    /// Puts a command in line. `commit` is the number of the request that it answers, `vector` the
    /// address of what it registers; 0 for none.
    fn command(&mut self, op: u32, commit: u64, vector: u64) -> io::Result<()> {
        self.check_idle();
        debug_assert!(!self.arrived, "the request that arrived was not fetched");
        debug_assert_eq!(op == ring::REGISTER, vector != 0, "only a registration names the memory");
        let mut bytes = [0; 80];
        bytes[8..16].copy_from_slice(&commit.to_ne_bytes());
        bytes[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        let fd = types::Fd(self.device.as_fd().as_raw_fd());
        let mut entry = opcode::UringCmd80::new(fd, op).cmd(bytes);
        if vector != 0 {
            entry = entry.addr(Some(vector));
        }
        let mut entry = entry.build();
        if vector != 0 {
            // The crate has no word for the length of what `addr` points to.
            // SAFETY: an `Entry128` is the kernel's 128-byte submission (repr(C), asserted below),
            // whose u32 at 24 is `len`.
            unsafe { (&raw mut entry).cast::<u8>().add(24).cast::<u32>().write(2) };
        }
        // SAFETY: what the command refers to is this entry's memory, which R2 keeps, and a
        // descriptor the entry holds open.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        self.waiting = true;
        Ok(())
    }

    /// Registers the entry with the kernel. An error is the kernel's refusal.
    pub fn register(&mut self) -> io::Result<()> {
        let memory = self.memory()?;
        let (len, at) = (memory.len, [memory.address(0), memory.address(PAYLOAD), memory.address(VECTOR)]);
        debug_assert!(at.iter().all(|a| a.is_multiple_of(8)));
        let (front, _) = memory.split();
        let vector = [at[0], ring::HEADER as u64, at[1], (len - PAYLOAD) as u64];
        for (to, word) in front[VECTOR..].chunks_exact_mut(8).zip(vector) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        self.command(ring::REGISTER, 0, at[2])?;
        self.submit(0)?;
        // A refusal is there at once.
        debug_assert!(self.waiting);
        match self.completed() {
            None => Ok(()),
            Some(0) => {
                self.arrived = true;
                Ok(())
            }
            Some(e) => Err(io::Error::from_raw_os_error(-e)),
        }
    }

    /// Hands in what is in line, and waits until `wait_for` commands have completed.
    fn submit(&mut self, wait_for: usize) -> io::Result<()> {
        debug_assert!(self.waiting, "nothing would ever complete");
        debug_assert!(wait_for <= 1, "an entry has one command at a time");
        loop {
            match self.ring.submit_and_wait(wait_for) {
                Ok(_) => return Ok(()),
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {
                    // A signal; its handler may have run in the middle of the wait, the command is
                    // under way still.
                    if wait_for == 0 && self.ring.submission().is_empty() {
                        return Ok(());
                    }
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Returns the result of a command that has completed, if one has.
    fn completed(&mut self) -> Option<i32> {
        let result = self.ring.completion().next()?.result();
        debug_assert!(self.waiting, "a command completes once");
        self.waiting = false;
        Some(result)
    }

    /// Waits for a request, after [`Entry::register`] or [`Entry::answer`], and hands in that
    /// answer. False when the connection has ended.
    pub fn fetch(&mut self) -> io::Result<bool> {
        debug_assert_ne!(self.waiting, self.arrived, "a command is under way, or has brought a request");
        if std::mem::take(&mut self.arrived) {
            return Ok(true);
        }
        loop {
            if let Some(result) = self.completed() {
                return match -result {
                    0 => Ok(true),
                    // R5.
                    libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED | libc::ENODEV => Ok(false),
                    e => Err(io::Error::from_raw_os_error(e)),
                };
            }
            self.submit(1)?;
        }
    }

    /// Returns the request that [`Entry::fetch`] brought, and the answer to be put together.
    pub fn open(&mut self) -> io::Result<(Request<'_>, Reply<'_>)> {
        let bad = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's ring gave no request");
        self.check_idle();
        let memory = self.memory.as_mut().ok_or_else(bad)?;
        let (front, back) = memory.split();
        let word = |at: usize| u32::from_ne_bytes([front[at], front[at + 1], front[at + 2], front[at + 3]]);
        let (low, high) = (word(ring::COMMIT_ID), word(ring::COMMIT_ID + 4));
        // The kernel's u64, in this machine's order of bytes.
        self.commit = if cfg!(target_endian = "little") {
            u64::from(low) | u64::from(high) << 32
        } else {
            u64::from(high) | u64::from(low) << 32
        };
        let size = word(ring::PAYLOAD_SIZE) as usize;
        let head = &front[..IN_HEADER];
        let first = &front[ring::ARGUMENT..ring::ARGUMENT + ring::ARGUMENT_SIZE];
        self.aside = size != 0;
        Ok(if self.aside {
            let payload = back.get(OUT_HEADER..OUT_HEADER + size).ok_or_else(bad)?;
            (Request::decode_parts(head, first, payload).ok_or_else(bad)?, Reply::over(self.side.bytes()))
        } else {
            (Request::decode_parts(head, first, &[]).ok_or_else(bad)?, Reply::over(back))
        })
    }

    /// Answers the opened request by the first `len` bytes of the [`Reply`]'s buffer, its
    /// header included. It goes with the next [`Entry::fetch`].
    pub fn answer(&mut self, len: usize) -> io::Result<()> {
        self.check_idle();
        debug_assert!(len >= OUT_HEADER, "an answer begins with its header");
        let (commit, aside) = (self.commit, self.aside);
        let memory = self.memory.as_mut().ok_or_else(|| io::Error::other("the entry is closed"))?;
        let (front, back) = memory.split();
        debug_assert!(len <= back.len());
        if aside {
            debug_assert!(len <= OUT_HEADER + SIDE);
            back[..len].copy_from_slice(&self.side.bytes()[..len]);
        }
        front[..OUT_HEADER].copy_from_slice(&back[..OUT_HEADER]);
        let size = (len - OUT_HEADER) as u32;
        front[ring::PAYLOAD_SIZE..ring::PAYLOAD_SIZE + 4].copy_from_slice(&size.to_ne_bytes());
        self.command(ring::COMMIT_AND_FETCH, commit, 0)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // R2: a command that is still under way ends at some time after the ring is closed.
        if self.waiting
            && let Some(memory) = self.memory.take()
        {
            std::mem::forget(memory);
        }
    }
}

const _: () = assert!(size_of::<squeue::Entry128>() == 128);
const _: () = assert!(IN_HEADER <= ring::ARGUMENT && OUT_HEADER <= ring::ARGUMENT);
const _: () = assert!(ring::ARGUMENT + ring::ARGUMENT_SIZE <= ring::COMMIT_ID);
const _: () = assert!(ring::COMMIT_ID + 8 <= ring::PAYLOAD_SIZE && ring::PAYLOAD_SIZE + 4 <= ring::HEADER);
const _: () = assert!(ring::HEADER <= VECTOR && VECTOR + 32 <= PAYLOAD - OUT_HEADER);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted() {
        assert_eq!(count("0-1\n"), Some(2));
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("0-3,8,10-11"), Some(7));
        for bad in ["", "x", "3-1", "1-"] {
            assert_eq!(count(bad), None, "{bad}");
        }
        assert!(queues() >= 1);
    }
}
