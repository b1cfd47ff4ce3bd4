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
//!    signals are read from; with G6 one more. No lock, no image, no terminal, no working
//!    directory, no second thread. It is forked while the server has neither threads nor a volume,
//!    and allocates nothing: its memory is what it touches of a process that has just begun.
//! G5 *What ends it.* Signals but SIGKILL are blocked, so that what ends a server, or a terminal,
//!    does not end it. Root's is passed over by the kernel when memory is short (`oom_score_adj`).
//!    When it is killed the server goes on without.
//! G6 *Whom it holds back.* With `auto_unmount` fusermount3 waits at a socket for the end of all
//!    who have the other end, then opens the mount point, and unmounts if that says ENOTCONN. The
//!    kernel closes a killed server's descriptors first and takes its rings down some time later:
//!    meanwhile the answer is ECANCELED, and fusermount3 would end for good. So this process has
//!    that end of the socket too. When the server ends without a word it opens the mount point
//!    itself, until the answer is the right one, or no error, or [`LONGEST`] has passed. A server
//!    that goes in peace has fusermount3 unmount, and says a byte before it closes.
//!
//! What it does not see: a server that dumps core ends none of its threads before all have stopped.

use crate::control::Abort;
use crate::passing;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, WaitOptions};
use std::ffi::CStr;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The time that a killed server gets to end by itself.
const GRACE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The time for which fusermount3 is held back at the most: the kernel takes rings down in less.
const LONGEST: Duration = Duration::from_secs(10);

/// The signal by which the kernel tells of the server's end.
const DEATH: libc::c_int = libc::SIGUSR1;

/// The name of the process; the kernel keeps 15 bytes.
const NAME: &CStr = c"lanefs-watchdog";

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

    /// Has it watch over the connection that `abort` cuts, and hold back who waits to unmount. When
    /// this returns it does.
    ///
    /// # Errors
    /// Those of the socket; it may have been killed.
    pub(crate) fn watch(&self, abort: Option<&Abort>, held: Option<Held<'_>>) -> io::Result<()> {
        let (length, mountpoint) = match held {
            None => (0, &[][..]),
            Some(held) if held.mountpoint.len() > MOST => return Err(io::ErrorKind::InvalidInput.into()),
            Some(held) => (held.mountpoint.len() as u16, held.mountpoint),
        };
        let mut socket = &self.socket;
        let [low, high] = length.to_ne_bytes();
        socket.write_all(&[u8::from(abort.is_some()), low, high])?;
        socket.write_all(mountpoint)?;
        for fd in abort.map(Abort::as_fd).into_iter().chain(held.map(|held| held.waiting)) {
            passing::send(&self.socket, fd)?;
        }
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

/// What is held back of an unmount.
#[derive(Clone, Copy)]
pub(crate) struct Held<'a> {
    /// The end of the socket whose close fusermount3 waits for.
    pub waiting: BorrowedFd<'a>,
    /// The mount point's absolute path.
    pub mountpoint: &'a [u8],
}

/// The longest path, without its NUL.
const MOST: usize = libc::PATH_MAX as usize - 1;

impl Drop for Watchdog {
    fn drop(&mut self) {
        // It may have been killed.
        let _ = rustix::net::send(&self.socket, &[0], rustix::net::SendFlags::NOSIGNAL);
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
    let mut path = [0; MOST + 1];
    let Some(charge) = Charge::receive(&socket, &mut path)? else { return Ok(()) };
    (&socket).write_all(&[0])?;
    debug_assert!(signals.as_raw_fd() > SOCKET);
    loop {
        let mut both = [readable(&socket), readable(&signals)];
        wait(&mut both, None)?;
        if !both[0].revents().is_empty() {
            return charge.end(&socket); // G2
        }
        if died(&signals, server)? {
            break;
        }
    }
    let mut ends = [readable(&socket)];
    if wait(&mut ends, Some(&GRACE))? == 0
        && let Some(abort) = &charge.abort
    {
        abort.cut()?; // G3
    }
    charge.end(&socket)
}

/// What the process is given to see to.
struct Charge<'a> {
    /// Cuts the connection.
    abort: Option<Abort>,
    /// The socket that fusermount3 waits at, and the mount point.
    held: Option<(OwnedFd, &'a CStr)>,
}

impl<'a> Charge<'a> {
    /// Takes what [`Watchdog::watch`] sends, with the mount point in `path`; `None` if the server
    /// never comes to that.
    fn receive(mut socket: &UnixStream, path: &'a mut [u8; MOST + 1]) -> io::Result<Option<Charge<'a>>> {
        let mut head = [0; 3];
        match socket.read_exact(&mut head) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let length = usize::from(u16::from_ne_bytes([head[1], head[2]]));
        let mountpoint = path.get_mut(..length).ok_or(io::ErrorKind::InvalidData)?;
        socket.read_exact(mountpoint)?;
        debug_assert!(length <= MOST && path[length] == 0, "a NUL ends it");
        let abort = if head[0] == 1 { passing::receive(socket)?.map(Abort::from) } else { None };
        let waiting = if length > 0 { passing::receive(socket)? } else { None };
        let held = waiting.zip(CStr::from_bytes_until_nul(path).ok());
        Ok(Some(Charge { abort, held }))
    }

    /// Ends the watch when the server has gone, with a byte or without (G6).
    fn end(self, mut socket: &UnixStream) -> io::Result<()> {
        let Some((waiting, mountpoint)) = self.held else { return Ok(()) };
        let in_peace = socket.read(&mut [0]).is_ok_and(|read| read > 0);
        let begun = Instant::now();
        while !in_peace && begun.elapsed() < LONGEST && !has_ended(mountpoint) {
            poll(&mut [], Some(&NAP))?;
        }
        drop(waiting);
        Ok(())
    }
}

/// Returns whether whoever opens the mount point is told that nobody serves it, or finds another
/// there. Waits for the connection's end if that has not begun.
fn has_ended(mountpoint: &CStr) -> bool {
    debug_assert!(mountpoint.to_bytes().starts_with(b"/"), "the working directory is the root");
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOCTTY | OFlags::CLOEXEC;
    match open(mountpoint, flags, Mode::empty()) {
        Ok(_) | Err(rustix::io::Errno::NOTCONN | rustix::io::Errno::NOENT) => true,
        Err(_) => false,
    }
}

/// The time between two looks at the mount point.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

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
