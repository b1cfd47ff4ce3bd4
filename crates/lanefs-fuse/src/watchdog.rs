//! A process that cuts the connection when the one that serves it was killed and cannot end.
//!
//! The kernel ends a connection when the last descriptor of it is closed, and a killed process
//! closes its descriptors when the last of its threads is gone. But a thread that is in a call by
//! which the kernel writes back pages of this very mount ([`crate::aside`], umount(2), syncfs(2))
//! waits for WRITE requests, which nobody serves any more; no signal ends that wait. So the
//! process never ends, the connection neither, and every program on the mount waits with it.
//! Somebody else has to cut the connection, and that is all this process is for:
//!
//! G1 *Whose end it sees.* It is a child of the thread that starts it, and has the kernel send it a
//!    signal when that thread ends (PR_SET_PDEATHSIG). That thread lives as long as the mount, and
//!    never waits for the mount while that is served; so it ends as soon as it is killed, whatever
//!    the others are in. Nothing is polled.
//! G2 *What is no reason.* It has one end of a socket whose other end the server alone has. That is
//!    closed together with the descriptors of /dev/fuse, or before when the mount was taken down:
//!    then there is nothing to do, and it ends. After the signal it waits [`GRACE`] for that.
//! G3 *What it does.* Else it writes to the connection's `abort` ([`crate::control`]), which was
//!    opened before the mount served. Every request is answered with an error then, so the thread
//!    that waited goes on to its end, and with it the process, its lock of the image too.
//! G4 *What it has.* Two descriptors more than these two: /dev/null for 0 to 2, and the one that
//!    signals are read from. No lock, no image, no terminal, no working directory, no second
//!    thread. It is forked while the server has neither threads nor a volume, and allocates
//!    nothing: its memory is what it touches of a process that has just begun.
//! G5 *What ends it.* Signals but SIGKILL are blocked, so that what ends a server, or a terminal,
//!    does not end it. Root's is passed over by the kernel when memory is short (`oom_score_adj`).
//!    When it is killed the server goes on without.
//!
//! What it does not see: a server that dumps core ends none of its threads before all have stopped.

use crate::control::Abort;
use crate::passing;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, WaitOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// The time that a killed server gets to end by itself.
const GRACE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The signal by which the kernel tells of the server's end.
const DEATH: libc::c_int = libc::SIGUSR1;

/// The name of the process; the kernel keeps 15 bytes.
const NAME: &std::ffi::CStr = c"lanefs-watchdog";

const _: () = assert!(NAME.count_bytes() <= 15);

/// A process that waits for the end of this one. Dropping it lets it go, and waits for its end.
#[derive(Debug)]
pub struct Watchdog {
    socket: UnixStream,
    process: Pid,
}

impl Watchdog {
    /// Starts the process. To be called before any other thread is started, by a thread that lives
    /// as long as what it is to watch over, and before anything is open that it must not have.
    ///
    /// # Errors
    /// Of fork(2); EBUSY if there are other threads.
    pub fn start() -> io::Result<Watchdog> {
        if std::fs::read_dir("/proc/self/task")?.count() != 1 {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        let (mine, theirs) = UnixStream::pair()?;
        // A server that was started without stdin puts something else there later.
        let mine = UnixStream::from(rustix::io::fcntl_dupfd_cloexec(&mine, SOCKET)?);
        debug_assert!(mine.as_raw_fd() >= SOCKET, "it stays open");
        let server = std::process::id();
        // SAFETY: no other thread exists, so the child's memory is whole.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => run(&theirs, server),
            child => match Pid::from_raw(child) {
                Some(process) => Ok(Watchdog { socket: mine, process }),
                None => Err(io::Error::other("a process without a number")),
            },
        }
    }

    /// Has it watch over the connection that `abort` cuts. When this returns it does.
    ///
    /// # Errors
    /// Those of the socket; it may have been killed.
    pub(crate) fn watch(&self, abort: &Abort) -> io::Result<()> {
        passing::send(&self.socket, abort.as_fd())?;
        let mut answer = [1];
        (&self.socket).read_exact(&mut answer)?;
        debug_assert_eq!(answer, [0], "it says nothing else");
        Ok(())
    }

    /// Has it wait for the end of this process, whatever becomes of this.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        // Somebody may have stopped it: then it ends some time later, and this process need not
        // wait. Where a program has the kernel wait for its children there is nothing to wait for.
        if let Ok(ends) = rustix::process::pidfd_open(self.process, PidfdFlags::empty()) {
            let _ = poll(&mut [readable(&ends)], Some(&GRACE));
        }
        let _ = rustix::process::waitpid(Some(self.process), WaitOptions::NOHANG);
    }
}

/// The child: it never returns, and never unwinds into the server's frames.
extern "C" fn run(socket: &UnixStream, server: u32) -> ! {
    debug_assert_ne!(std::process::id(), server, "the server goes on");
    let code = i32::from(guard(socket.as_fd(), server).is_err());
    // SAFETY: ends the process, without what the server wants done at its own end.
    unsafe { libc::_exit(code) }
}

/// Guards one connection of the process `server`.
fn guard(socket: BorrowedFd<'_>, server: u32) -> io::Result<()> {
    let signals = prepare(socket)?;
    // SAFETY: `prepare` has put it there, and nothing else here has it.
    let socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(SOCKET) });
    let Some(abort) = passing::receive(&socket)?.map(Abort::from) else { return Ok(()) };
    (&socket).write_all(&[0])?;
    debug_assert!(abort.as_fd().as_raw_fd() > SOCKET && signals.as_raw_fd() > SOCKET);
    loop {
        let mut both = [readable(&socket), readable(&signals)];
        wait(&mut both, None)?;
        if !both[0].revents().is_empty() {
            return Ok(()); // G2
        }
        if died(&signals, server)? {
            break;
        }
    }
    let mut ends = [readable(&socket)];
    match wait(&mut ends, Some(&GRACE))? {
        0 => abort.cut(), // G3
        _ => Ok(()),
    }
}

/// The number of the socket in the child.
const SOCKET: libc::c_int = 3;

fn readable(fd: &impl AsFd) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::IN)
}

/// Waits for the descriptors, and returns how many have something to say.
fn wait(fds: &mut [PollFd<'_>], most: Option<&Timespec>) -> io::Result<usize> {
    debug_assert!(!fds.is_empty(), "nothing would end the wait");
    loop {
        match poll(fds, most) {
            Err(rustix::io::Errno::INTR) => {}
            done => return Ok(done?),
        }
    }
}

/// Reads a signal; true if the kernel sent it for the server's end, and nobody else did.
fn died(signals: &OwnedFd, server: u32) -> io::Result<bool> {
    let mut bytes = [0; size_of::<libc::signalfd_siginfo>()];
    let n = rustix::io::read(signals, &mut bytes)?;
    if n < bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    // SAFETY: any bytes make one, and there are enough.
    let info: libc::signalfd_siginfo = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
    Ok(info.ssi_signo == DEATH as u32 && info.ssi_pid == server)
}

/// Leaves all that was the server's but the socket, and returns what signals are read from (G1, G4,
/// G5).
fn prepare(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let done = |r: libc::c_int| if r < 0 { Err(io::Error::last_os_error()) } else { Ok(r) };
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialised by the first call and read by the second; prctl takes numbers
    // and a string that ends in NUL.
    unsafe {
        done(libc::sigfillset(set.as_mut_ptr()))?;
        done(libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()))?;
        done(libc::prctl(libc::PR_SET_PDEATHSIG, DEATH, 0, 0, 0))?;
        done(libc::prctl(libc::PR_SET_NAME, NAME.as_ptr(), 0, 0, 0))?;
    }
    // Whoever ended in the meantime had no mount yet: then the socket says so.
    rustix::process::setsid()?;
    rustix::process::chdir(c"/")?;
    let close = |first: u32, last: u32| {
        // SAFETY: closes descriptors of this process, of which nothing is used any more but what is
        // left open here.
        match unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // Above the numbers that are given out below.
    let kept = rustix::io::fcntl_dupfd_cloexec(socket, SOCKET + 1)?;
    debug_assert!(kept.as_raw_fd() > SOCKET);
    close(0, SOCKET as u32)?;
    // SAFETY: opens by a path that ends in NUL, and duplicates numbers that are open.
    unsafe {
        let null = done(libc::open(c"/dev/null".as_ptr(), libc::O_RDWR))?;
        debug_assert!(null < SOCKET, "these were just closed");
        for number in 0..SOCKET {
            if number != null {
                done(libc::dup2(null, number))?;
            }
        }
        done(libc::dup2(kept.as_raw_fd(), SOCKET))?;
    }
    close(SOCKET as u32 + 1, u32::MAX)?;
    std::mem::forget(kept); // has just been closed
    // Best effort: only root may.
    let score =
        rustix::fs::open(c"/proc/self/oom_score_adj", rustix::fs::OFlags::WRONLY, rustix::fs::Mode::empty());
    if let Ok(score) = score {
        let _ = rustix::io::write(&score, b"-1000");
    }
    // SAFETY: reads the set, which is initialised; the descriptor is new.
    unsafe {
        let fd = done(libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}
