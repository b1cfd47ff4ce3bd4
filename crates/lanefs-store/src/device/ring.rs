//! Performing a list of reads and writes on a file: through io_uring, or one `pread`/`pwrite` at a
//! time. A list that is one request is never worth a ring.
//!
//! Each thread has a ring of its own, made on first use and shared by all devices the thread uses;
//! so no two threads meet here. Requests of one call go out with one `io_uring_enter` that also
//! waits for the answers.
//!
//! Invariants:
//! 1. No call returns or unwinds while the kernel may still use a buffer of it: every entry the
//!    kernel took has been answered. Where that cannot be had, the process ends.
//! 2. At most [`ENTRIES`] requests are in flight, so neither queue of the ring overflows.
//! 3. An answer that is short, or means "try again", puts the rest of its request back in line; a
//!    request ends with all its bytes moved or with an error. ECANCELED means that, too: nobody
//!    here cancels, but the kernel does what it finds no worker for, and it makes no worker for a
//!    thread that has a signal to take.
//! 4. Neighbours on the device go out as one request: a file system under an image pays for each
//!    request, most of all in a hole. What such a request leaves undone, be it after an error, goes
//!    out again alone.
//!
//! A ring belongs to the process that made it: the child of a fork has no mapping of it, makes
//! another one, and takes nothing down.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;

use io_uring::{IoUring, opcode, squeue, types};
use lanefs_format::BLOCK_SIZE;
use lanefs_sync::fork::Process;
use smallvec::SmallVec;

/// Requests in flight at once.
const ENTRIES: u32 = 64;
/// The most bytes asked for at once; the kernel's own limit is a little below 2 GiB.
const MAX_BYTES: usize = 1 << 30;
/// Bytes and ops that go out as one request.
const MERGED_BYTES: usize = 1 << 20;
const MERGED_OPS: usize = 256;
/// The number of times a request is repeated after "try again" before that counts as an error.
const MAX_RETRIES: u32 = 10_000;

const _: () = assert!(MERGED_BYTES <= MAX_BYTES && MAX_BYTES <= i32::MAX as usize, "an answer is an i32");
const _: () = assert!(MERGED_OPS <= libc::UIO_MAXIOV as usize, "as many pieces as one call takes");

/// One read or write, and how far it has got.
#[derive(Debug)]
pub(super) struct Op {
    ptr: *mut u8,
    len: usize,
    pub(super) offset: u64,
    write: bool,
    done: usize,
    retries: u32,
    /// The errno it ended with; 0 while all is well.
    pub(super) errno: i32,
}

impl Op {
    pub(super) fn read(offset: u64, to: &mut [u8]) -> Op {
        Op { ptr: to.as_mut_ptr(), len: to.len(), offset, write: false, done: 0, retries: 0, errno: 0 }
    }

    pub(super) fn write(offset: u64, from: &[u8]) -> Op {
        // The pointer is only ever read through: `write` decides.
        let ptr = from.as_ptr().cast_mut();
        Op { ptr, len: from.len(), offset, write: true, done: 0, retries: 0, errno: 0 }
    }

    /// Checks, in debug builds, that it has not got further than its end, and that an error is one.
    fn check_invariants(&self) {
        debug_assert!(self.done <= self.len, "{} of {} bytes", self.done, self.len);
        debug_assert!(self.errno >= 0, "errno {}", self.errno);
        debug_assert!(self.retries <= MAX_RETRIES, "{} retries", self.retries);
    }

    fn piece(&self) -> libc::iovec {
        libc::iovec { iov_base: self.ptr.cast(), iov_len: self.len }
    }

    fn unfinished(&self) -> bool {
        self.errno == 0 && self.done < self.len
    }

    /// Returns whether it is in whole blocks, in memory and on the device.
    pub(super) fn is_aligned(&self) -> bool {
        [self.ptr.addr(), self.len, self.offset as usize].iter().all(|n| n.is_multiple_of(BLOCK_SIZE))
    }

    /// Returns whether it moved all its bytes, or failed.
    pub(super) fn is_over(&self) -> bool {
        !self.unfinished()
    }

    /// Returns where the rest begins in memory, how much of it to ask for now, and where it begins
    /// on the device.
    fn rest(&self) -> (*mut u8, usize, u64) {
        debug_assert!(self.unfinished(), "nothing is left of it");
        let n = (self.len - self.done).min(MAX_BYTES);
        (self.ptr.wrapping_add(self.done), n, self.offset + self.done as u64)
    }

    /// Takes the kernel's answer: bytes moved, or an errno negated.
    fn answer(&mut self, result: i64) {
        debug_assert!(self.unfinished(), "an answer to what was not asked for");
        match result {
            0 => self.errno = if self.write { libc::ENOSPC } else { libc::ENODATA },
            n if n > 0 => self.done = self.len.min(self.done + n as usize),
            e => match -e as i32 {
                libc::EINTR | libc::EAGAIN | libc::ECANCELED if self.retries < MAX_RETRIES => {
                    self.retries += 1;
                    if self.retries > 8 {
                        std::thread::yield_now();
                    }
                }
                errno => self.errno = errno,
            },
        }
        self.check_invariants();
    }
}

/// Performs `ops` one after the other with system calls.
///
/// # Safety
/// The memory that the ops were made of is still borrowed: exclusively for reads.
pub(super) unsafe fn run_sync(fd: RawFd, ops: &mut [Op]) {
    for op in ops {
        while op.unfinished() {
            let (ptr, len, offset) = op.rest();
            let offset = offset as libc::off64_t;
            // SAFETY: `rest` lies within the memory the op was made of, which the caller keeps
            // borrowed.
            let n = unsafe {
                if op.write {
                    libc::pwrite64(fd, ptr.cast(), len, offset)
                } else {
                    libc::pread64(fd, ptr.cast(), len, offset)
                }
            };
            let errno = || std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            op.answer(if n < 0 { -i64::from(errno()) } else { n as i64 });
        }
    }
}

/// Returns whether `ops` are one piece of the device, which one request moves.
pub(super) fn is_one(ops: &[Op]) -> bool {
    !ops.is_empty() && neighbours(ops, 0) == ops.len()
}

/// Performs ops that are one piece ([`is_one`]) by one system call: there is nothing that a ring
/// could do meanwhile, and what the kernel does not finish at once (writes to a file, mostly) it
/// hands to a thread of its own there.
///
/// # Safety
/// As for [`run_sync`].
pub(super) unsafe fn run_one(fd: RawFd, ops: &mut [Op]) {
    debug_assert!(is_one(ops), "{} ops that are not one piece", ops.len());
    if ops.len() > 1 {
        let mut pieces: SmallVec<[libc::iovec; 16]> = ops.iter().map(Op::piece).collect();
        let n = join(&mut pieces) as libc::c_int;
        let pieces = pieces.as_ptr();
        let offset = ops[0].offset as libc::off64_t;
        // SAFETY: each piece is the memory of an op, which the caller keeps borrowed.
        let moved = unsafe {
            match ops[0].write {
                true => libc::pwritev64(fd, pieces, n, offset),
                false => libc::preadv64(fd, pieces, n, offset),
            }
        };
        answer_all(ops, moved as i64);
    }
    // All of a single one, and what is left of several: there an error finds its op.
    // SAFETY: the caller's promise is passed on.
    unsafe { run_sync(fd, ops) }
}

/// Performs `ops` one piece of the device after the other.
///
/// # Safety
/// As for [`run_sync`].
pub(super) unsafe fn run_in_turn(fd: RawFd, mut ops: &mut [Op]) {
    while !ops.is_empty() {
        let (piece, rest) = ops.split_at_mut(neighbours(ops, 0));
        // SAFETY: the caller's promise is passed on.
        unsafe { run_one(fd, piece) };
        ops = rest;
    }
}

enum Slot {
    Unmade,
    Ready(Box<Made>),
    Unavailable,
}

/// A ring, of the process that made it: the child of a fork has no mapping there, or another one.
struct Made {
    ring: ManuallyDrop<IoUring>,
    process: Process,
}

impl Drop for Made {
    fn drop(&mut self) {
        if self.process.is_current() {
            // SAFETY: it is dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.ring) };
        }
    }
}

thread_local! {
    static RING: RefCell<Slot> = const { RefCell::new(Slot::Unmade) };
}

/// Returns whether this thread has, or can have, a ring.
pub(super) fn available() -> bool {
    RING.try_with(|r| r.try_borrow_mut().is_ok_and(|mut slot| ready(&mut slot).is_some())).unwrap_or(false)
}

/// Performs `ops` together through this thread's ring. Answers false if there is none; then some
/// ops may be unfinished, none is in flight, and [`run_sync`] can finish them.
///
/// # Safety
/// As for [`run_sync`].
pub(super) unsafe fn run(fd: RawFd, ops: &mut [Op]) -> bool {
    let done = RING.try_with(|r| {
        let Ok(mut slot) = r.try_borrow_mut() else { return false };
        let Some(ring) = ready(&mut slot) else { return false };
        // SAFETY: the caller's promise is passed on.
        let ok = unsafe { drive(ring, fd, ops) };
        if !ok {
            *slot = Slot::Unavailable;
        }
        ok
    });
    // An error: the thread is ending and its ring is gone.
    done.unwrap_or(false)
}

fn ready(slot: &mut Slot) -> Option<&mut IoUring> {
    if matches!(slot, Slot::Ready(made) if !made.process.is_current()) {
        *slot = Slot::Unmade;
    }
    if let Slot::Unmade = slot {
        *slot = match make() {
            Ok(ring) => {
                let process = Process::current();
                Slot::Ready(Box::new(Made { ring: ManuallyDrop::new(ring), process }))
            }
            Err(e) => {
                tracing::debug!("io_uring is not available ({e}); using pread and pwrite");
                Slot::Unavailable
            }
        };
    }
    match slot {
        Slot::Ready(made) => Some(&mut made.ring),
        _ => None,
    }
}

/// Returns a ring that has proved itself: some sandboxes allow making one but not using it.
fn make() -> std::io::Result<IoUring> {
    // Completions are run by the thread itself when it waits: no interrupts between cores.
    let mut ring: IoUring = IoUring::builder()
        .dontfork()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(ENTRIES)
        .or_else(|_| IoUring::builder().dontfork().build(ENTRIES))?;
    // SAFETY: a no-op refers to no memory.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }.map_err(std::io::Error::other)?;
    while let Err(e) = ring.submit_and_wait(1) {
        if e.kind() != std::io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
    let answer = ring.completion().next();
    match answer {
        Some(c) if c.result() == 0 => Ok(ring),
        Some(c) => Err(std::io::Error::from_raw_os_error(-c.result())),
        None => Err(std::io::Error::other("no completion")),
    }
}

/// Returns how many ops from `first` on are one piece of the device, in the same direction, as far
/// as one request may go.
fn neighbours(ops: &[Op], first: usize) -> usize {
    debug_assert!(first < ops.len(), "op {first} of {}", ops.len());
    let fresh = |o: &Op| o.unfinished() && o.done == 0;
    if !fresh(&ops[first]) {
        return 1;
    }
    let (mut n, mut bytes) = (1, ops[first].len);
    while let Some(next) = ops.get(first + n) {
        let last = &ops[first + n - 1];
        bytes += next.len;
        if !fresh(next)
            || next.write != last.write
            || next.offset != last.offset + last.len as u64
            || bytes > MERGED_BYTES
            || n == MERGED_OPS
        {
            break;
        }
        n += 1;
    }
    debug_assert!((1..=MERGED_OPS).contains(&n) && first + n <= ops.len(), "{n} ops from {first} on");
    debug_assert!(ops[first..first + n].iter().all(|o| o.write == ops[first].write), "both directions");
    n
}

/// Makes one of pieces that lie beside each other in memory too; returns how many are left, at the
/// front.
fn join(pieces: &mut [libc::iovec]) -> usize {
    let bytes = |pieces: &[libc::iovec]| pieces.iter().map(|p| p.iov_len).sum::<usize>();
    let before = if cfg!(debug_assertions) { bytes(pieces) } else { 0 };
    let mut last = 0;
    for i in 1..pieces.len() {
        let next = pieces[i];
        if pieces[last].iov_base.wrapping_byte_add(pieces[last].iov_len) == next.iov_base {
            pieces[last].iov_len += next.iov_len;
        } else {
            last += 1;
            pieces[last] = next;
        }
    }
    let left = pieces.len().min(last + 1);
    debug_assert_eq!(bytes(&pieces[..left]), before, "a byte was lost, or is there twice");
    left
}

/// Takes the kernel's answer to a request made of several ops. Those left unfinished are asked for
/// again, one by one: so an error finds the op it belongs to.
fn answer_all(ops: &mut [Op], result: i64) {
    let mut moved = usize::try_from(result).unwrap_or(0);
    debug_assert!(ops.len() > 1, "a single op takes its answer itself");
    debug_assert!(ops.iter().all(|o| o.done == 0 && o.errno == 0), "an op that was begun goes alone (4)");
    for op in ops {
        let n = moved.min(op.len);
        op.done = n;
        moved -= n;
        op.check_invariants();
    }
}

/// Returns the request for an op and those behind it that go with it: one piece each.
#[inline]
fn entry_of(fd: RawFd, op: &Op, pieces: &mut [libc::iovec]) -> squeue::Entry {
    let fd = types::Fd(fd);
    let (ptr, len, offset) = op.rest();
    if pieces.len() > 1 {
        let (m, pieces) = (join(pieces) as u32, pieces.as_ptr());
        if op.write {
            opcode::Writev::new(fd, pieces, m).offset(offset).build()
        } else {
            opcode::Readv::new(fd, pieces, m).offset(offset).build()
        }
    } else if op.write {
        opcode::Write::new(fd, ptr, len as u32).offset(offset).build()
    } else {
        opcode::Read::new(fd, ptr, len as u32).offset(offset).build()
    }
}

/// Performs all ops, by the rules at the head of the file. Returns false if the ring refuses to
/// work and nothing is in flight.
///
/// # Safety
/// As for [`run_sync`].
unsafe fn drive(ring: &mut IoUring, fd: RawFd, ops: &mut [Op]) -> bool {
    let mut again: SmallVec<[usize; 8]> = SmallVec::new();
    // One for each op and never moved: the kernel reads them while a request is in flight.
    let mut pieces: SmallVec<[libc::iovec; 16]> = ops.iter().map(Op::piece).collect();
    let mut next = 0;
    let mut in_flight = 0usize;
    loop {
        while in_flight < ENTRIES as usize {
            let (i, n) = match again.pop() {
                Some(i) => (i, 1),
                None if next < ops.len() => {
                    let n = neighbours(ops, next);
                    next += n;
                    (next - n, n)
                }
                None => break,
            };
            debug_assert!(n >= 1 && i + n <= ops.len(), "{n} of {} ops from {i} on", ops.len());
            if !ops[i].unfinished() {
                continue;
            }
            let entry = entry_of(fd, &ops[i], &mut pieces[i..i + n]);
            // SAFETY: the memory stays borrowed, and the pieces stay where they are, until this
            // function returns, and it returns only when the entry has been answered (invariant 1).
            if unsafe { ring.submission().push(&entry.user_data((n as u64) << 32 | i as u64)) }.is_err() {
                again.extend(i..i + n);
                break;
            }
            in_flight += 1;
        }
        debug_assert!(in_flight <= ENTRIES as usize, "{in_flight} requests in a ring of {ENTRIES} (2)");
        if in_flight == 0 {
            debug_assert!(
                !again.is_empty() || ops.iter().all(|o| !o.unfinished()),
                "an op was forgotten (3)"
            );
            return again.is_empty();
        }
        if let Err(e) = ring.submit_and_wait(in_flight) {
            match e.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::EBUSY) => std::thread::yield_now(),
                // Nothing was taken: the caller may drop the ring and go on without.
                _ if ring.submission().len() == in_flight => return false,
                _ => {
                    eprintln!("lanefs: io_uring_enter failed with requests in flight: {e}");
                    std::process::abort();
                }
            }
        }
        for c in ring.completion() {
            debug_assert!(in_flight > 0, "an answer to what was not asked for");
            in_flight -= 1;
            let (i, n) = (c.user_data() as u32 as usize, (c.user_data() >> 32) as usize);
            debug_assert!(n >= 1 && i + n <= ops.len(), "an answer to {n} ops from {i} on");
            match n {
                1 => ops[i].answer(i64::from(c.result())),
                _ => answer_all(&mut ops[i..i + n], i64::from(c.result())),
            }
            again.extend((i..i + n).filter(|i| ops[*i].unfinished()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn neighbours_in_memory_are_one_piece() {
        let memory = [0_u8; 64];
        let piece = |(at, len): (usize, usize)| libc::iovec {
            iov_base: memory.as_ptr().wrapping_add(at).cast_mut().cast(),
            iov_len: len,
        };
        let joined = |of: &[(usize, usize)]| {
            let mut pieces: Vec<libc::iovec> = of.iter().copied().map(piece).collect();
            let n = join(&mut pieces);
            let at = |p: &libc::iovec| (p.iov_base.addr() - memory.as_ptr().addr(), p.iov_len);
            pieces[..n].iter().map(at).collect::<Vec<_>>()
        };
        assert_eq!(joined(&[]), []);
        assert_eq!(joined(&[(8, 4)]), [(8, 4)]);
        assert_eq!(joined(&[(0, 4), (4, 4), (8, 8)]), [(0, 16)]);
        assert_eq!(joined(&[(0, 4), (8, 4), (12, 4), (4, 4), (16, 4)]), [(0, 4), (8, 8), (4, 4), (16, 4)]);
    }

    #[test]
    fn more_requests_than_the_ring_holds() {
        let file = tempfile::tempfile().unwrap();
        let n = 3 * ENTRIES as usize + 1;
        let data: Vec<[u8; 512]> = (0..n).map(|i| [i as u8; 512]).collect();
        let mut ops: Vec<Op> = data.iter().enumerate().map(|(i, d)| Op::write(i as u64 * 512, d)).collect();
        // SAFETY: `data` outlives the call.
        assert!(unsafe { run(file.as_raw_fd(), &mut ops) } || !available());
        let mut back = vec![[0; 512]; n];
        let mut ops: Vec<Op> =
            back.iter_mut().enumerate().map(|(i, d)| Op::read(i as u64 * 512, d)).collect();
        // SAFETY: `back` is exclusively borrowed by the ops alone and outlives the call.
        assert!(unsafe { run(file.as_raw_fd(), &mut ops) } || !available());
        assert!(ops.iter().all(|o| o.errno == 0));
        drop(ops);
        assert!(!available() || back == data);
    }

    #[test]
    fn short_answers_are_continued_and_the_end_is_an_error() {
        let mut buf = [0; 100];
        let mut op = Op::read(1000, &mut buf);
        op.answer(40);
        assert!(op.unfinished());
        assert_eq!((op.rest().1, op.rest().2), (60, 1040));
        for errno in [libc::EINTR, libc::ECANCELED] {
            op.answer(-i64::from(errno));
            assert!(op.unfinished(), "errno {errno} is none of the device");
        }
        op.answer(60);
        assert!(!op.unfinished() && op.errno == 0);
        let mut op = Op::read(0, &mut buf);
        op.answer(0);
        assert_eq!(op.errno, libc::ENODATA);
        let mut op = Op::write(0, &buf);
        op.answer(-i64::from(libc::EIO));
        assert_eq!(op.errno, libc::EIO);
        let mut op = Op::write(0, &buf);
        for _ in 0..=MAX_RETRIES {
            op.answer(-i64::from(libc::EAGAIN));
        }
        assert_eq!(op.errno, libc::EAGAIN);
    }

    #[test]
    fn a_bad_descriptor_is_an_error_of_each_request() {
        let data = [1; 512];
        for sync in [true, false] {
            let mut ops = [Op::write(0, &data), Op::write(512, &data)];
            // SAFETY: `data` outlives the call.
            unsafe {
                if sync || !run(-1, &mut ops) {
                    run_sync(-1, &mut ops);
                }
            }
            assert!(ops.iter().all(|o| o.errno == libc::EBADF));
        }
    }

    #[test]
    fn neighbours_go_together_and_each_gets_its_own_answer() {
        use std::os::unix::fs::FileExt;
        let file = tempfile::tempfile().unwrap();
        let data: Vec<Vec<u8>> = (0..40_u8).map(|i| vec![i; 512 * (1 + usize::from(i) % 3)]).collect();
        let (mut ops, mut offset) = (Vec::new(), 0);
        for (i, d) in data.iter().enumerate() {
            // A gap now and then.
            offset += u64::from(i % 7 == 6) * 512;
            ops.push(Op::write(offset, d));
            offset += d.len() as u64;
        }
        assert_eq!((neighbours(&ops, 0), neighbours(&ops, 5), neighbours(&ops, 6)), (6, 1, 7));
        let places: Vec<(u64, usize)> = ops.iter().map(|o| (o.offset, o.len)).collect();
        // SAFETY: `data` outlives the call.
        if !unsafe { run(file.as_raw_fd(), &mut ops) } {
            return; // no rings here
        }
        assert!(ops.iter().all(|o| o.errno == 0 && o.done == o.len));
        for ((offset, len), d) in places.iter().zip(&data) {
            let mut back = vec![0; *len];
            file.read_exact_at(&mut back, *offset).unwrap();
            assert_eq!(&back, d, "at {offset}");
        }
        // The file ends in the middle of the fourth of ten: those before are whole, those behind
        // have failed.
        file.set_len(3 * 512 + 100).unwrap();
        for ring in [true, false] {
            let mut back = vec![[0xee; 512]; 10];
            let mut ops: Vec<Op> =
                back.iter_mut().enumerate().map(|(i, b)| Op::read(i as u64 * 512, b)).collect();
            assert!(is_one(&ops));
            // SAFETY: `back` is exclusively borrowed by the ops alone and outlives the calls.
            unsafe {
                match ring {
                    true => assert!(run(file.as_raw_fd(), &mut ops)),
                    false => run_one(file.as_raw_fd(), &mut ops),
                }
            }
            let answers: Vec<(usize, i32)> = ops.iter().map(|o| (o.done, o.errno)).collect();
            let gone = libc::ENODATA;
            assert_eq!(answers[..5], [(512, 0), (512, 0), (512, 0), (100, gone), (0, gone)]);
            assert!(answers[4..].iter().all(|a| *a == (0, gone)));
        }
    }

    #[test]
    fn one_piece_is_written_by_one_call() {
        use std::os::unix::fs::FileExt;
        let file = tempfile::tempfile().unwrap();
        let data: Vec<Vec<u8>> = (0..5_u8).map(|i| vec![i + 1; 512 * (1 + usize::from(i))]).collect();
        let mut ops: Vec<Op> = Vec::new();
        for d in &data {
            ops.push(Op::write(ops.last().map_or(512, |o| o.offset + o.len as u64), d));
        }
        assert!(is_one(&ops) && !is_one(&[]));
        // SAFETY: `data` outlives the call.
        unsafe { run_one(file.as_raw_fd(), &mut ops) };
        assert!(ops.iter().all(|o| o.errno == 0 && o.done == o.len));
        let mut back = vec![0; data.concat().len()];
        file.read_exact_at(&mut back, 512).unwrap();
        assert_eq!(back, data.concat());
    }
}
