//! Descriptors of the kernel that stand for the volume's, and those that the library needs itself.

use crate::raw::sys;
use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// The lowest number of the library's own descriptors, if the limit allows: programs count theirs
/// from 0, and some expect the next to be free.
const HIGH: c_int = 512;

/// The library's own descriptors, which no call of the program closes; -1: none. Written when they
/// are opened. Relaxed: a number is opened before it is entered.
static OWN: [AtomicI32; 256] = [const { AtomicI32::new(-1) }; 256];
/// The places of it that were ever used, from the first on.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Returns the places that may hold one.
fn places() -> &'static [AtomicI32] {
    &OWN[..USED.load(Ordering::Relaxed)]
}

static FILE: OnceLock<c_int> = OnceLock::new();

/// Returns where the library's own descriptors begin.
fn high() -> c_int {
    // SAFETY: getrlimit writes one rlimit through the pointer.
    let limit = unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 { limit.rlim_cur } else { 256 }
    };
    HIGH.min(c_int::try_from(limit / 2).unwrap_or(HIGH))
}

/// Makes a descriptor one of the library's own: gives it a high number. Returns that, or the old
/// one where it cannot be moved.
pub fn own(fd: c_int) -> c_int {
    // SAFETY: the descriptor was just opened by the library, and nobody else knows its number.
    let to = unsafe {
        let to = sys!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, high()) as c_int;
        if to >= 0 {
            sys!(libc::SYS_close, fd);
            to
        } else {
            fd
        }
    };
    note(to);
    to
}

/// Enters a descriptor as the library's own.
pub fn note(fd: c_int) {
    for (i, place) in OWN.iter().enumerate() {
        // Before the number is there: who looks for it looks so far.
        USED.fetch_max(i + 1, Ordering::Relaxed);
        if place.compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

/// Has a number be the library's own no more, as it is about to be closed.
pub fn disown(fd: c_int) {
    for place in places() {
        let _ = place.compare_exchange(fd, -1, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Returns whether a descriptor is the library's own.
#[inline]
pub fn is_own(fd: c_int) -> bool {
    // Numbers below are the program's, but for a small limit.
    fd >= 64 && places().iter().any(|p| p.load(Ordering::Relaxed) == fd)
}

/// Returns the library's own descriptors in order.
pub fn owned() -> Vec<c_int> {
    let mut all: Vec<c_int> =
        places().iter().map(|p| p.load(Ordering::Relaxed)).filter(|fd| *fd >= 0).collect();
    all.sort_unstable();
    all
}

/// Returns the numbers below [`high`] that are free, taken, so that what is opened now gets higher
/// ones. Given back by [`give_back`].
pub fn take_low() -> Vec<c_int> {
    let (high, file) = (high(), file());
    let mut taken = Vec::new();
    loop {
        // SAFETY: duplicates a descriptor that the library keeps.
        let fd = unsafe { sys!(libc::SYS_fcntl, file, libc::F_DUPFD_CLOEXEC, 0) as c_int };
        if fd < 0 {
            return taken;
        }
        taken.push(fd);
        if fd >= high {
            return taken;
        }
    }
}

/// Gives back what [`take_low`] took.
pub fn give_back(taken: Vec<c_int>) {
    for fd in taken {
        // SAFETY: the descriptor was made by `take_low`, and is known to nobody else.
        unsafe { sys!(libc::SYS_close, fd) };
    }
}

/// Returns the descriptor of which those of the volume are copies: an empty file without a name,
/// opened so that it can be neither read nor written (P1).
pub fn file() -> c_int {
    *FILE.get_or_init(|| {
        // SAFETY: both calls take strings that end in a NUL; the descriptors are the library's.
        unsafe {
            let made = libc::memfd_create(c"lanefs".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            if made < 0 {
                return -1;
            }
            // Who opens it anew past the library must not believe that something was written.
            let seals = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
            sys!(libc::SYS_fcntl, made, libc::F_ADD_SEALS, seals);
            let path = format!("/proc/self/fd/{made}\0");
            let flags = libc::O_PATH | libc::O_CLOEXEC;
            let opened = sys!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) as c_int;
            if opened >= 0 {
                sys!(libc::SYS_close, made);
                return own(opened);
            }
            // Without /proc: a file that can be read, is empty, and never changes.
            own(made)
        }
    })
}

/// Makes a descriptor of the kernel that stands for one of the volume.
///
/// # Errors
/// EMFILE: the process has as many as it may.
pub fn number(at_least: c_int, close_on_exec: bool) -> Result<c_int, c_int> {
    let how = if close_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    // SAFETY: duplicates a descriptor that the library keeps.
    let fd = unsafe { sys!(libc::SYS_fcntl, file(), how, at_least) as c_int };
    if fd < 0 { Err(crate::hook::errno()) } else { Ok(fd) }
}

/// Returns whether a descriptor is a copy of such a file, of this program or the one before it.
pub fn is_one(fd: c_int) -> bool {
    let link = format!("/proc/self/fd/{fd}\0");
    let mut name = [0u8; 16];
    // SAFETY: the kernel writes at most so many bytes; the path ends in a NUL.
    let n =
        unsafe { sys!(libc::SYS_readlinkat, libc::AT_FDCWD, link.as_ptr(), name.as_mut_ptr(), name.len()) };
    n > 0 && name.starts_with(b"/memfd:lanefs ")
}

/// Moves the kernel's working directory to a directory that was removed, so that a relative path
/// which reaches the kernel names nothing.
///
/// # Errors
/// EACCES: no directory can be made for that.
pub fn leave_host_directory() -> Result<(), c_int> {
    static NOWHERE: OnceLock<c_int> = OnceLock::new();
    let dir = *NOWHERE.get_or_init(|| {
        for place in ["/tmp", "/dev/shm", "/var/tmp", "/run"] {
            let name = format!("{place}/lanefs-{}-{:p}\0", std::process::id(), &NOWHERE);
            // SAFETY: the calls take a string that ends in a NUL; the descriptor is the library's.
            unsafe {
                let name = name.as_ptr();
                if sys!(libc::SYS_mkdirat, libc::AT_FDCWD, name, 0o700) != 0 {
                    continue;
                }
                let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
                let fd = sys!(libc::SYS_openat, libc::AT_FDCWD, name, flags) as c_int;
                sys!(libc::SYS_unlinkat, libc::AT_FDCWD, name, libc::AT_REMOVEDIR);
                if fd >= 0 {
                    return own(fd);
                }
            }
        }
        -1
    });
    // SAFETY: fchdir takes any number.
    if unsafe { sys!(libc::SYS_fchdir, dir) } == 0 { Ok(()) } else { Err(libc::EACCES) }
}
