//! Descriptors: copies, closing, flags, and what ioctl knows of files.

use super::{locks, open, standard};
use crate::attributes::errno;
use crate::dispatch::{by_any_fd, by_fd, is_path_only};
use crate::hook::{answer, hook};
use crate::report::Call;
use crate::table::{self, is_ours};
use crate::{placeholder, volume};
use lanefs::{FileKind, WriteLife};
use std::ffi::{c_int, c_uint, c_ulong};
use std::sync::atomic::Ordering;

/// Flags of an open file that F_SETFL changes.
const CHANGEABLE: c_int =
    libc::O_APPEND | libc::O_ASYNC | libc::O_DIRECT | libc::O_NOATIME | libc::O_NONBLOCK;

/// F_GET_RW_HINT, F_SET_RW_HINT, F_GET_FILE_RW_HINT and F_SET_FILE_RW_HINT.
const GET_HINT: c_int = 1035;
const SET_HINT: c_int = 1036;
const GET_FILE_HINT: c_int = 1037;
const SET_FILE_HINT: c_int = 1038;

/// Has a number be the volume's no more, as it is about to be closed.
fn let_go(fd: c_int) {
    if volume::is_owner() {
        let old = table::remove(fd);
        // The last descriptor frees the file, which is a call on the volume.
        if volume::is_inside() {
            std::mem::forget(old);
        } else if let Some(old) = old {
            static CALL: Call = Call::new("close");
            // Nothing fails in letting go.
            let _ = volume::serve(&CALL, |_| {
                drop(old);
                Ok(())
            });
        }
    } else {
        table::forget(fd);
    }
}

/// Makes a copy of a descriptor of the volume.
fn copy(call: &'static Call, fd: c_int, at_least: c_int, close_on_exec: bool) -> c_int {
    answer(volume::serve(call, |_| open::number(table::get(fd).ok_or(libc::EBADF)?, at_least, close_on_exec)))
}

/// Makes `to` a copy of `from`; `real` has the kernel do it.
fn copy_onto(call: &'static Call, from: c_int, to: c_int, real: impl FnOnce() -> c_int) -> c_int {
    if placeholder::is_own(to) && volume::is_owner() {
        return answer(Err(call.refuse(libc::EBUSY)));
    }
    if !is_ours(from) {
        if is_ours(to) && from != to {
            // Only if the kernel does it: a bad `from` leaves `to` open.
            // SAFETY: F_GETFD takes any number.
            if unsafe { crate::raw::sys!(libc::SYS_fcntl, from, libc::F_GETFD) } >= 0 {
                let_go(to);
            }
        }
        return real();
    }
    if from == to || !volume::is_owner() {
        return real();
    }
    let Some(description) = table::get(from) else { return real() };
    if is_ours(to) {
        let_go(to);
    }
    let result = real();
    if result >= 0 {
        let _ = table::set(result, description);
        standard::redirected(result);
        call.served();
    }
    result
}

hook! {
    /// Closes.
    fn close(fd: c_int) -> c_int {
        if is_ours(fd) {
            let_go(fd);
        } else if placeholder::is_own(fd) && volume::is_owner() {
            return answer(Err(libc::EBADF));
        }
        real(fd)
    }
    /// Closes a range, but for what the library needs itself.
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
            table::in_range(first, last).for_each(let_go);
        }
        if !volume::is_owner() || first > last {
            return real(first, last, flags);
        }
        let mut from = first;
        for own in placeholder::owned().into_iter().map(|fd| fd as c_uint) {
            if own < from || own > last {
                continue;
            }
            if own > from && real(from, own - 1, flags) < 0 {
                return -1;
            }
            from = own + 1;
        }
        if from > last { 0 } else { real(from, last, flags) }
    }
    /// Closes everything from a number on.
    fn closefrom(first: c_int) -> () {
        close_range(first.max(0) as c_uint, c_uint::MAX, 0);
    }
    /// Makes a copy.
    fn dup(fd: c_int) -> c_int {
        if !is_ours(fd) { return real(fd); }
        copy(&CALL, fd, 0, false)
    }
    /// Makes a copy of a given number.
    fn dup2(from: c_int, to: c_int) -> c_int {
        copy_onto(&CALL, from, to, || real(from, to))
    }
    /// Makes a copy of a given number.
    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
        if from == to { return real(from, to, flags); }
        copy_onto(&CALL, from, to, || real(from, to, flags))
    }
    /// Does what fcntl(2) does; the argument is read only where that reads it.
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        if !is_ours(fd) { return real(fd, command, argument); }
        match command {
            libc::F_GETFD | libc::F_SETFD => real(fd, command, argument),
            _ => control(&CALL, fd, command, argument),
        }
    }
    /// Does what fcntl(2) does.
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
        if !is_ours(fd) { return real(fd, command, argument); }
        match command {
            libc::F_GETFD | libc::F_SETFD => real(fd, command, argument),
            _ => control(&CALL, fd, command, argument),
        }
    }
    /// Takes or gives back the lock of the whole file.
    fn flock(fd: c_int, operation: c_int) -> c_int {
        if !is_ours(fd) { return real(fd, operation); }
        by_fd(&CALL, fd, |_, d| locks::whole(d, operation))
    }
    /// Takes or gives back a lock from the position on.
    fn lockf(fd: c_int, command: c_int, len: libc::off_t) -> c_int {
        if !is_ours(fd) { return real(fd, command, len); }
        by_fd(&CALL, fd, |_, d| locks::from_position(d, command, len))
    }
    /// Takes or gives back a lock from the position on.
    fn lockf64(fd: c_int, command: c_int, len: libc::off_t) -> c_int {
        lockf(fd, command, len)
    }
    /// Answers the few requests that files know.
    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
        if !is_ours(fd) { return real(fd, request, argument); }
        const FIOCLEX: c_ulong = 0x5451;
        const FIONCLEX: c_ulong = 0x5450;
        match request {
            FIOCLEX | FIONCLEX if !is_path_only(&CALL, fd) => {
                let flag = if request == FIOCLEX { libc::FD_CLOEXEC } else { 0 };
                crate::raw::sys!(libc::SYS_fcntl, fd, libc::F_SETFD, flag) as c_int
            }
            _ => by_fd(&CALL, fd, |volume, d| request_of_file(&CALL, volume, d, request, argument)),
        }
    }
    /// Returns whether it is a terminal: no.
    fn isatty(fd: c_int) -> c_int {
        if !is_ours(fd) { return real(fd); }
        crate::hook::set_errno(if is_path_only(&CALL, fd) { libc::EBADF } else { libc::ENOTTY });
        0
    }
    /// Asks for the settings of a terminal, which it is not.
    fn tcgetattr(fd: c_int, to: *mut libc::termios) -> c_int {
        if !is_ours(fd) { return real(fd, to); }
        answer(Err(if is_path_only(&CALL, fd) { libc::EBADF } else { libc::ENOTTY }))
    }
}

/// Does what fcntl(2) does on a descriptor of the volume.
///
/// # Safety
/// The argument is what fcntl(2) takes with the command.
unsafe fn control(call: &'static Call, fd: c_int, command: c_int, argument: usize) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            copy(call, fd, argument as c_int, command == libc::F_DUPFD_CLOEXEC)
        }
        libc::F_GETFL => by_any_fd(call, fd, |_, d| Ok(d.flags.load(Ordering::Relaxed))),
        libc::F_SETFL => by_fd(call, fd, |_, d| {
            let now = d.flags.load(Ordering::Relaxed);
            d.flags.store(now & !CHANGEABLE | argument as c_int & CHANGEABLE, Ordering::Relaxed);
            Ok(0)
        }),
        libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW
        | libc::F_OFD_GETLK => by_fd(call, fd, |_, d| {
            // SAFETY: the caller's promise: with these it is a flock or NULL.
            let Some(lock) = (unsafe { (argument as *mut libc::flock).as_mut() }) else {
                return Err(libc::EFAULT);
            };
            locks::range(d, command, lock)
        }),
        _ if is_path_only(call, fd) => answer(Err(libc::EBADF)),
        libc::F_GETOWN => answer(Ok(0)),
        // How long what is written will live. There is one for each file, none for a descriptor.
        SET_HINT | SET_FILE_HINT => by_fd(call, fd, |_, d| {
            // SAFETY: the caller's promise: with these it points to a u64, or is NULL.
            let number = unsafe { (argument as *const u64).as_ref() }.ok_or(libc::EFAULT)?;
            d.file.set_write_life(WriteLife::from_hint(*number).ok_or(libc::EINVAL)?);
            Ok(0)
        }),
        GET_HINT | GET_FILE_HINT => by_fd(call, fd, |_, d| {
            // SAFETY: as above.
            unsafe { crate::attributes::put(argument as *mut u64, d.file.write_life().hint()) }
        }),
        _ => answer(Err(call.refuse(libc::EINVAL))),
    }
}

/// Answers an ioctl.
///
/// # Safety
/// The argument is what ioctl(2) takes with the request.
unsafe fn request_of_file(
    call: &'static Call,
    volume: &lanefs::Volume,
    d: &table::Description,
    request: c_ulong,
    argument: usize,
) -> Result<c_int, c_int> {
    const GET_FLAGS: c_ulong = 0x8008_6601;
    const SET_FLAGS: c_ulong = 0x4008_6602;
    const GET_VERSION: c_ulong = 0x8008_7601;
    const GET_FS_UUID: c_ulong = 0x8011_1500;
    const GET_FS_LABEL: c_ulong = 0x8100_9431;
    match request {
        libc::FIONREAD if d.kind == FileKind::File => {
            let size = d.file.stat().map_err(errno)?.size as i64;
            let at = d.file.lseek(0, libc::SEEK_CUR).map_err(errno)? as i64;
            // SAFETY: the caller's promise: it is a pointer to an int.
            unsafe { crate::attributes::put(argument as *mut c_int, (size - at) as c_int) }
        }
        libc::FIONBIO => Ok(0),
        GET_FLAGS => {
            let flags = d.file.inode_flags().map_err(errno)?;
            // SAFETY: the caller's promise: the kernel writes an int.
            unsafe { crate::attributes::put(argument as *mut c_uint, flags) }
        }
        SET_FLAGS => {
            // SAFETY: the caller's promise: the kernel reads an int.
            let flags = unsafe { (argument as *const c_uint).as_ref() }.ok_or(libc::EFAULT)?;
            let cred = volume::view(volume).cred();
            d.file.set_inode_flags(cred, *flags).map(|()| 0).map_err(errno)
        }
        // The command's number says a long, and programs give an int.
        GET_VERSION => {
            let stat = d.file.stat().map_err(errno)?;
            let generation = volume.handle_generation(&stat);
            // SAFETY: the caller's promise: the kernel's file systems write an int.
            unsafe { crate::attributes::put(argument as *mut c_uint, generation) }
        }
        GET_FS_UUID => {
            let uuid = volume.info().uuid;
            let mut told = [uuid.len() as u8; 17];
            told[1..].copy_from_slice(&uuid);
            // SAFETY: the caller's promise: it is a `struct fsuuid2`.
            unsafe { crate::attributes::put(argument as *mut [u8; 17], told) }
        }
        GET_FS_LABEL => {
            let mut told = [0u8; 256];
            told.iter_mut().zip(volume.info().label.bytes()).for_each(|(t, b)| *t = b);
            // SAFETY: the caller's promise: the kernel writes so many bytes.
            unsafe { crate::attributes::put(argument as *mut [u8; 256], told) }
        }
        // A clone of blocks: programs copy then.
        0x4004_9409 | 0x4020_940d => Err(libc::EOPNOTSUPP),
        _ => Err(call.refuse(libc::ENOTTY)),
    }
}
