//! Waiting for descriptors: a file of the volume is always ready, as regular files are. One that
//! was opened with O_PATH is left to the kernel, whose descriptor was opened so, too.

use crate::dispatch::is_path_only;
use crate::hook::{answer, hook};
use crate::report::Call;
use crate::table::is_ours;
use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use std::ffi::{c_int, c_short};

/// What a file is ready for.
const READY: c_short = libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM;

/// Returns whether a descriptor is a file of the volume that can be ready.
fn is_ready(call: &'static Call, fd: c_int) -> bool {
    is_ours(fd) && !is_path_only(call, fd)
}

/// Polls: the volume's are ready, the others are asked by `real`, which waits for nothing if there
/// are ready ones.
///
/// # Safety
/// That of poll(2).
unsafe fn poll_with(
    call: &'static Call,
    fds: *mut pollfd,
    count: nfds_t,
    real: impl FnOnce(*mut pollfd, bool) -> c_int,
) -> c_int {
    if fds.is_null() || count == 0 {
        return real(fds, false);
    }
    // SAFETY: the caller's promise.
    let fds_here = unsafe { std::slice::from_raw_parts_mut(fds, count as usize) };
    if !fds_here.iter().any(|f| is_ours(f.fd)) {
        return real(fds, false);
    }
    let mut others: Vec<pollfd> = fds_here.to_vec();
    let mut ready = 0;
    for (here, other) in fds_here.iter_mut().zip(&mut others) {
        if is_ready(call, here.fd) {
            other.fd = -1;
            here.revents = here.events & READY;
            ready += c_int::from(here.revents != 0);
        }
    }
    let told = real(others.as_mut_ptr(), ready > 0);
    if told < 0 {
        return told;
    }
    for (here, other) in fds_here.iter_mut().zip(&others).filter(|(h, o)| h.fd == o.fd) {
        here.revents = other.revents;
    }
    told + ready
}

/// Does the same for select(2).
///
/// # Safety
/// That of select(2).
unsafe fn select_with(
    call: &'static Call,
    count: c_int,
    sets: [*mut fd_set; 3],
    real: impl FnOnce(bool) -> c_int,
) -> c_int {
    let numbers = 0..count.clamp(0, libc::FD_SETSIZE as c_int);
    // SAFETY: the caller's promise; the numbers are within the sets.
    unsafe {
        let mut ours: Vec<(usize, c_int)> = Vec::new();
        for (i, set) in sets.iter().enumerate().filter(|(_, s)| !s.is_null()) {
            ours.extend(
                numbers
                    .clone()
                    .filter(|fd| libc::FD_ISSET(*fd, *set) && is_ready(call, *fd))
                    .map(|fd| (i, fd)),
            );
        }
        if ours.is_empty() {
            return real(false);
        }
        for (i, fd) in &ours {
            libc::FD_CLR(*fd, sets[*i]);
        }
        // A file has no exceptional condition.
        ours.retain(|(i, _)| *i < 2);
        let told = real(!ours.is_empty());
        if told < 0 {
            return told;
        }
        for (i, fd) in &ours {
            libc::FD_SET(*fd, sets[*i]);
        }
        told + ours.len() as c_int
    }
}

/// A time that waits for nothing.
static NOW: timespec = timespec { tv_sec: 0, tv_nsec: 0 };

hook! {
    /// Waits for descriptors.
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        poll_with(&CALL, fds, count, |f, now| real(f, count, if now { 0 } else { timeout }))
    }
    /// Waits for descriptors, with the check of fortified programs.
    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, have: usize) -> c_int {
        if have / size_of::<pollfd>() < count as usize { return real(fds, count, timeout, have); }
        poll(fds, count, timeout)
    }
    /// Waits for descriptors and signals.
    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        poll_with(&CALL, fds, count, |f, now| real(f, count, if now { &raw const NOW } else { timeout }, mask))
    }
    /// Waits for descriptors and signals, with the check of fortified programs.
    fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, have: usize) -> c_int {
        if have / size_of::<pollfd>() < count as usize { return real(fds, count, timeout, mask, have); }
        ppoll(fds, count, timeout, mask)
    }
    /// Waits for descriptors.
    fn select(count: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int {
        let mut now_time = timeval { tv_sec: 0, tv_usec: 0 };
        select_with(&CALL, count, [r, w, e], |now| {
            real(count, r, w, e, if now { &raw mut now_time } else { timeout })
        })
    }
    /// Waits for descriptors and signals.
    fn pselect(count: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        select_with(&CALL, count, [r, w, e], |now| {
            real(count, r, w, e, if now { &raw const NOW } else { timeout }, mask)
        })
    }
    /// Enters a descriptor to be waited for; a regular file is not one, as the kernel says.
    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        if is_ours(epoll) { return answer(Err(libc::EINVAL)); }
        if !is_ready(&CALL, fd) { return real(epoll, operation, fd, event); }
        answer(Err(libc::EPERM))
    }
}
