//! Reading, writing, positions, sizes and syncing of open files.

use crate::attributes::errno;
use crate::dispatch::by_fd;
use crate::hook::hook;
use crate::raw::sys;
use crate::shared;
use crate::table::{Description, is_ours};
use lanefs::FileKind;
use libc::{iovec, off_t, size_t, ssize_t};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// The most bytes that the kernel moves in one call.
const MOST: usize = 0x7fff_f000;

/// Returns what a system call of the library itself has answered.
fn told(result: isize) -> Result<ssize_t, c_int> {
    if result < 0 { Err(crate::hook::errno()) } else { Ok(result) }
}

/// Reads at a position, or at the descriptor's own.
pub fn read_to(d: &Description, bufs: &mut [&mut [u8]], at: Option<off_t>) -> Result<ssize_t, c_int> {
    if d.path_only() {
        return Err(libc::EBADF);
    }
    let _held = at.is_none().then(|| d.position.lock().unwrap_or_else(PoisonError::into_inner));
    if let Some(fd) = d.successor().filter(|_| at.is_none()) {
        let mut done = 0;
        for buf in bufs {
            // SAFETY: the pointer and the length are those of the buffer.
            match told(unsafe { sys!(libc::SYS_read, fd, buf.as_mut_ptr(), buf.len()) }) {
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
                Ok(n) => {
                    done += n;
                    if (n as usize) < buf.len() {
                        break;
                    }
                }
            }
        }
        return Ok(done);
    }
    let from = match at {
        Some(at) => u64::try_from(at).map_err(|_| libc::EINVAL)?,
        None => d.file.lseek(0, libc::SEEK_CUR).map_err(errno)?,
    };
    shared::flush(&d.file)?;
    let mut done = 0;
    if bufs.is_empty() {
        // The errors of a call that moves nothing are those of one that does.
        d.file.read_at(&mut [], from).map_err(errno)?;
    }
    for buf in bufs {
        match d.file.read_at(buf, from + done as u64) {
            Err(e) if done == 0 => return Err(errno(e)),
            Err(_) => break,
            Ok(n) => {
                done += n;
                if n < buf.len() {
                    break;
                }
            }
        }
    }
    if at.is_none() && done > 0 {
        d.file.lseek((from + done as u64) as off_t, libc::SEEK_SET).map_err(errno)?;
    }
    Ok(done as ssize_t)
}

/// Writes at a position, or at the descriptor's own; to the end if it was opened so.
pub fn write_from(d: &Description, buf: &[u8], at: Option<off_t>) -> Result<ssize_t, c_int> {
    if d.path_only() {
        return Err(libc::EBADF);
    }
    let _held = at.is_none().then(|| d.position.lock().unwrap_or_else(PoisonError::into_inner));
    if let Some(fd) = d.successor().filter(|_| at.is_none()) {
        // SAFETY: the pointer and the length are those of the buffer.
        return told(unsafe { sys!(libc::SYS_write, fd, buf.as_ptr(), buf.len()) });
    }
    let appends = d.appends();
    let to = match at {
        Some(at) => u64::try_from(at).map_err(|_| libc::EINVAL)?,
        None if appends => 0,
        None => d.file.lseek(0, libc::SEEK_CUR).map_err(errno)?,
    };
    let (to, n) = match appends {
        true => (d.file.append(buf).map_err(errno)?, buf.len()),
        false => (to, d.file.write_at(buf, to).map_err(errno)?),
    };
    shared::written(&d.file, &buf[..n], to)?;
    if at.is_none() && n > 0 {
        d.file.lseek((to + n as u64) as off_t, libc::SEEK_SET).map_err(errno)?;
    }
    Ok(n as ssize_t)
}

/// Returns the caller's buffer.
///
/// # Safety
/// That of read(2): the buffer may be written, and is of so many bytes.
unsafe fn into<'a>(buf: *mut c_void, len: size_t) -> &'a mut [u8] {
    if buf.is_null() || len == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(buf.cast(), len.min(MOST)) }
}

/// Returns the caller's buffer.
///
/// # Safety
/// That of write(2): the buffer may be read, and is of so many bytes.
unsafe fn from<'a>(buf: *const c_void, len: size_t) -> &'a [u8] {
    if buf.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(buf.cast(), len.min(MOST)) }
}

/// Returns the caller's vector of buffers.
///
/// # Safety
/// That of readv(2).
unsafe fn vector<'a>(iov: *const iovec, count: c_int) -> Result<&'a [iovec], c_int> {
    if !(0..=1024).contains(&count) {
        return Err(libc::EINVAL);
    }
    if iov.is_null() || count == 0 {
        return Ok(&[]);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(iov, count as usize) })
}

/// Reads into a vector.
///
/// # Safety
/// That of readv(2).
unsafe fn scatter(
    d: &Description,
    iov: *const iovec,
    count: c_int,
    at: Option<off_t>,
) -> Result<ssize_t, c_int> {
    // SAFETY: the caller's promise.
    let mut bufs: Vec<&mut [u8]> =
        unsafe { vector(iov, count)?.iter().map(|v| into(v.iov_base, v.iov_len)).collect() };
    read_to(d, &mut bufs, at)
}

/// Writes a vector, as one piece.
///
/// # Safety
/// That of writev(2).
unsafe fn gather(
    d: &Description,
    iov: *const iovec,
    count: c_int,
    at: Option<off_t>,
) -> Result<ssize_t, c_int> {
    // SAFETY: the caller's promise.
    let bufs: Vec<&[u8]> =
        unsafe { vector(iov, count)?.iter().map(|v| from(v.iov_base, v.iov_len)).collect() };
    write_from(d, &bufs.concat(), at)
}

/// Moves the position.
fn seek(d: &Description, offset: off_t, whence: c_int) -> Result<off_t, c_int> {
    if d.path_only() {
        return Err(libc::EBADF);
    }
    let _held = d.position.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(fd) = d.successor() {
        // SAFETY: lseek takes any numbers.
        return told(unsafe { sys!(libc::SYS_lseek, fd, offset, whence) }).map(|at| at as off_t);
    }
    if d.kind == FileKind::Dir && whence == libc::SEEK_SET && offset >= 0 {
        d.listed.store(offset as u64, Ordering::Relaxed);
        return Ok(offset);
    }
    d.file.lseek(offset, whence).map(|at| at as off_t).map_err(errno)
}

/// Allocates space, or gives it back.
fn allocate(d: &Description, mode: c_int, offset: off_t, len: off_t) -> Result<c_int, c_int> {
    let (Ok(offset), Ok(len)) = (u64::try_from(offset), u64::try_from(len)) else {
        return Err(libc::EINVAL);
    };
    shared::flush(&d.file)?;
    d.file.allocate(mode, offset, len).map_err(errno)?;
    shared::changed(d.file.ino(), offset..offset.saturating_add(len)).map(|()| 0)
}

/// Returns an offset if it is one that preadv2 takes: -1 stands for the position.
fn offset2(offset: off_t) -> Option<off_t> {
    (offset != -1).then_some(offset)
}

hook! {
    /// Reads.
    fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
        if !is_ours(fd) { return real(fd, buf, len); }
        by_fd(&CALL, fd, |_, d| read_to(d, &mut [into(buf, len)], None))
    }
    /// Reads, with the check of fortified programs.
    fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, space: size_t) -> ssize_t {
        if len > space || !is_ours(fd) { return real(fd, buf, len, space); }
        by_fd(&CALL, fd, |_, d| read_to(d, &mut [into(buf, len)], None))
    }
    /// Reads at an offset.
    fn pread(fd: c_int, buf: *mut c_void, len: size_t, at: off_t) -> ssize_t {
        if !is_ours(fd) { return real(fd, buf, len, at); }
        by_fd(&CALL, fd, |_, d| read_to(d, &mut [into(buf, len)], Some(at)))
    }
    /// Reads at an offset.
    fn pread64(fd: c_int, buf: *mut c_void, len: size_t, at: off_t) -> ssize_t {
        if !is_ours(fd) { return real(fd, buf, len, at); }
        by_fd(&CALL, fd, |_, d| read_to(d, &mut [into(buf, len)], Some(at)))
    }
    /// Reads at an offset, with the check of fortified programs.
    fn __pread_chk(fd: c_int, buf: *mut c_void, len: size_t, at: off_t, space: size_t) -> ssize_t {
        if len > space || !is_ours(fd) { return real(fd, buf, len, at, space); }
        by_fd(&CALL, fd, |_, d| read_to(d, &mut [into(buf, len)], Some(at)))
    }
    /// Reads at an offset, with the check of fortified programs.
    fn __pread64_chk(fd: c_int, buf: *mut c_void, len: size_t, at: off_t, space: size_t) -> ssize_t {
        if len > space || !is_ours(fd) { return real(fd, buf, len, at, space); }
        by_fd(&CALL, fd, |_, d| read_to(d, &mut [into(buf, len)], Some(at)))
    }
    /// Writes.
    fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
        if !is_ours(fd) { return real(fd, buf, len); }
        by_fd(&CALL, fd, |_, d| write_from(d, from(buf, len), None))
    }
    /// Writes at an offset.
    fn pwrite(fd: c_int, buf: *const c_void, len: size_t, at: off_t) -> ssize_t {
        if !is_ours(fd) { return real(fd, buf, len, at); }
        by_fd(&CALL, fd, |_, d| write_from(d, from(buf, len), Some(at)))
    }
    /// Writes at an offset.
    fn pwrite64(fd: c_int, buf: *const c_void, len: size_t, at: off_t) -> ssize_t {
        if !is_ours(fd) { return real(fd, buf, len, at); }
        by_fd(&CALL, fd, |_, d| write_from(d, from(buf, len), Some(at)))
    }
    /// Reads into several buffers.
    fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
        if !is_ours(fd) { return real(fd, iov, count); }
        by_fd(&CALL, fd, |_, d| scatter(d, iov, count, None))
    }
    /// Writes several buffers.
    fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
        if !is_ours(fd) { return real(fd, iov, count); }
        by_fd(&CALL, fd, |_, d| gather(d, iov, count, None))
    }
    /// Reads into several buffers at an offset.
    fn preadv(fd: c_int, iov: *const iovec, count: c_int, at: off_t) -> ssize_t {
        if !is_ours(fd) { return real(fd, iov, count, at); }
        by_fd(&CALL, fd, |_, d| scatter(d, iov, count, Some(at)))
    }
    /// Reads into several buffers at an offset.
    fn preadv64(fd: c_int, iov: *const iovec, count: c_int, at: off_t) -> ssize_t {
        if !is_ours(fd) { return real(fd, iov, count, at); }
        by_fd(&CALL, fd, |_, d| scatter(d, iov, count, Some(at)))
    }
    /// Writes several buffers at an offset.
    fn pwritev(fd: c_int, iov: *const iovec, count: c_int, at: off_t) -> ssize_t {
        if !is_ours(fd) { return real(fd, iov, count, at); }
        by_fd(&CALL, fd, |_, d| gather(d, iov, count, Some(at)))
    }
    /// Writes several buffers at an offset.
    fn pwritev64(fd: c_int, iov: *const iovec, count: c_int, at: off_t) -> ssize_t {
        if !is_ours(fd) { return real(fd, iov, count, at); }
        by_fd(&CALL, fd, |_, d| gather(d, iov, count, Some(at)))
    }
    /// Reads into several buffers at an offset or the position; hints are not looked at.
    fn preadv2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
        if !is_ours(fd) { return real(fd, iov, count, at, flags); }
        by_fd(&CALL, fd, |_, d| scatter(d, iov, count, offset2(at)))
    }
    /// Reads into several buffers at an offset or the position.
    fn preadv64v2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
        if !is_ours(fd) { return real(fd, iov, count, at, flags); }
        by_fd(&CALL, fd, |_, d| scatter(d, iov, count, offset2(at)))
    }
    /// Writes several buffers at an offset or the position; with RWF_DSYNC and RWF_SYNC durably.
    fn pwritev2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
        if !is_ours(fd) { return real(fd, iov, count, at, flags); }
        by_fd(&CALL, fd, |_, d| write_synced(d, iov, count, at, flags, &CALL))
    }
    /// Writes several buffers at an offset or the position.
    fn pwritev64v2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
        if !is_ours(fd) { return real(fd, iov, count, at, flags); }
        by_fd(&CALL, fd, |_, d| write_synced(d, iov, count, at, flags, &CALL))
    }
    /// Moves the position.
    fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
        if !is_ours(fd) { return real(fd, offset, whence); }
        by_fd(&CALL, fd, |_, d| seek(d, offset, whence))
    }
    /// Moves the position.
    fn lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t {
        if !is_ours(fd) { return real(fd, offset, whence); }
        by_fd(&CALL, fd, |_, d| seek(d, offset, whence))
    }
    /// Makes a file durable.
    fn fsync(fd: c_int) -> c_int {
        if !is_ours(fd) { return real(fd); }
        by_fd(&CALL, fd, |_, d| {
            shared::flush(&d.file)?;
            d.file.sync_all().map(|()| 0).map_err(errno)
        })
    }
    /// Makes the content of a file durable.
    fn fdatasync(fd: c_int) -> c_int {
        if !is_ours(fd) { return real(fd); }
        by_fd(&CALL, fd, |_, d| {
            shared::flush(&d.file)?;
            d.file.sync_data().map(|()| 0).map_err(errno)
        })
    }
    /// Makes everything of the file's volume durable.
    fn syncfs(fd: c_int) -> c_int {
        if !is_ours(fd) { return real(fd); }
        by_fd(&CALL, fd, |v, _| {
            shared::flush_all()?;
            v.sync().map(|()| 0).map_err(errno)
        })
    }
    /// Makes everything durable, the volume too if it is open.
    fn sync() -> () {
        if crate::volume::is_open() && super::open::is_usable() {
            // sync(2) answers nothing.
            let _ = crate::volume::serve(&CALL, |v| shared::flush_all().and(v.sync().map_err(errno)));
        }
        real()
    }
    /// Has a range written out soon, which the volume does by itself; who waits for it gets it
    /// durable.
    fn sync_file_range(fd: c_int, at: off_t, len: off_t, flags: c_uint) -> c_int {
        if !is_ours(fd) { return real(fd, at, len, flags); }
        by_fd(&CALL, fd, |_, d| match flags & libc::SYNC_FILE_RANGE_WAIT_AFTER {
            0 => Ok(0),
            _ => d.file.sync_data().map(|()| 0).map_err(errno),
        })
    }
    /// Sets the size.
    fn ftruncate(fd: c_int, len: off_t) -> c_int {
        if !is_ours(fd) { return real(fd, len); }
        by_fd(&CALL, fd, |_, d| set_len(d, len))
    }
    /// Sets the size.
    fn ftruncate64(fd: c_int, len: off_t) -> c_int {
        if !is_ours(fd) { return real(fd, len); }
        by_fd(&CALL, fd, |_, d| set_len(d, len))
    }
    /// Allocates.
    fn fallocate(fd: c_int, mode: c_int, at: off_t, len: off_t) -> c_int {
        if !is_ours(fd) { return real(fd, mode, at, len); }
        by_fd(&CALL, fd, |_, d| allocate(d, mode, at, len))
    }
    /// Allocates.
    fn fallocate64(fd: c_int, mode: c_int, at: off_t, len: off_t) -> c_int {
        if !is_ours(fd) { return real(fd, mode, at, len); }
        by_fd(&CALL, fd, |_, d| allocate(d, mode, at, len))
    }
    /// Allocates; answers the errno itself.
    fn posix_fallocate(fd: c_int, at: off_t, len: off_t) -> c_int {
        if !is_ours(fd) { return real(fd, at, len); }
        match by_fd(&CALL, fd, |_, d| Ok(allocate(d, 0, at, len).err().unwrap_or(0))) {
            -1 => crate::hook::errno(),
            errno => errno,
        }
    }
    /// Allocates; answers the errno itself.
    fn posix_fallocate64(fd: c_int, at: off_t, len: off_t) -> c_int {
        posix_fallocate(fd, at, len)
    }
    /// Takes advice, which changes nothing here.
    fn posix_fadvise(fd: c_int, at: off_t, len: off_t, advice: c_int) -> c_int {
        if !is_ours(fd) { return real(fd, at, len, advice); }
        let known = (0..=5).contains(&advice) && len >= 0;
        match by_fd(&CALL, fd, |_, _| Ok(if known { 0 } else { libc::EINVAL })) {
            -1 => crate::hook::errno(),
            errno => errno,
        }
    }
    /// Takes advice, which changes nothing here.
    fn posix_fadvise64(fd: c_int, at: off_t, len: off_t, advice: c_int) -> c_int {
        posix_fadvise(fd, at, len, advice)
    }
    /// Reads ahead, which the volume does by itself.
    fn readahead(fd: c_int, at: off_t, len: size_t) -> ssize_t {
        if !is_ours(fd) { return real(fd, at, len); }
        by_fd(&CALL, fd, |_, _| Ok(0))
    }
}

/// Writes a vector, durably if that is asked.
///
/// # Safety
/// That of pwritev2(2).
unsafe fn write_synced(
    d: &Description,
    iov: *const iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
    call: &'static crate::report::Call,
) -> Result<ssize_t, c_int> {
    if flags & !(libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC) != 0 {
        return Err(call.refuse(libc::EOPNOTSUPP));
    }
    // SAFETY: the caller's promise.
    let n = unsafe { gather(d, iov, count, offset2(at))? };
    if flags & libc::RWF_SYNC != 0 {
        d.file.sync_all().map_err(errno)?;
    } else if flags & libc::RWF_DSYNC != 0 {
        d.file.sync_data().map_err(errno)?;
    }
    Ok(n)
}

fn set_len(d: &Description, len: off_t) -> Result<c_int, c_int> {
    if d.path_only() {
        return Err(libc::EBADF);
    }
    let len = u64::try_from(len).map_err(|_| libc::EINVAL)?;
    d.file.set_len(len).map_err(errno)?;
    shared::changed(d.file.ino(), 0..0).map(|()| 0)
}
