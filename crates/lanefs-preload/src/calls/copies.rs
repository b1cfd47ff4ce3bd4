//! Copies between descriptors, of which at least one is the volume's.

use super::transfer::{read_to, write_from};
use crate::attributes::errno;
use crate::hook::{Answer, answer, hook};
use crate::raw::sys;
use crate::report::Call;
use crate::table::{self, Description, is_ours};
use crate::{shared, volume};
use libc::{off_t, size_t, ssize_t};
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// Bytes that are moved at once.
const PIECE: usize = 256 << 10;

/// One end of a copy.
enum End {
    Ours(Arc<Description>),
    Host(c_int),
}

impl End {
    fn of(fd: c_int) -> Result<End, c_int> {
        if is_ours(fd) { Ok(End::Ours(table::get(fd).ok_or(libc::EBADF)?)) } else { Ok(End::Host(fd)) }
    }

    fn read(&self, buf: &mut [u8], at: Option<off_t>) -> Result<usize, c_int> {
        match (self, at) {
            (End::Ours(d), at) => read_to(d, &mut [buf], at).map(|n| n as usize),
            (End::Host(fd), Some(at)) => {
                // SAFETY: the pointer and the length are the buffer's.
                told(unsafe { sys!(libc::SYS_pread64, *fd, buf.as_mut_ptr(), buf.len(), at) })
            }
            (End::Host(fd), None) => {
                // SAFETY: as above.
                told(unsafe { sys!(libc::SYS_read, *fd, buf.as_mut_ptr(), buf.len()) })
            }
        }
    }

    fn write(&self, buf: &[u8], at: Option<off_t>) -> Result<usize, c_int> {
        match (self, at) {
            (End::Ours(d), at) => write_from(d, buf, at).map(|n| n as usize),
            (End::Host(fd), Some(at)) => {
                // SAFETY: the pointer and the length are the buffer's.
                told(unsafe { sys!(libc::SYS_pwrite64, *fd, buf.as_ptr(), buf.len(), at) })
            }
            // SAFETY: as above.
            (End::Host(fd), None) => told(unsafe { sys!(libc::SYS_write, *fd, buf.as_ptr(), buf.len()) }),
        }
    }

    /// Returns whether what was read and not written can be read again.
    fn can_go_back(&self) -> bool {
        match self {
            End::Ours(_) => true,
            // SAFETY: lseek takes any number.
            End::Host(fd) => unsafe { sys!(libc::SYS_lseek, *fd, 0, libc::SEEK_CUR) >= 0 },
        }
    }

    fn go_back(&self, by: usize) {
        let by = -(by as i64);
        match self {
            End::Ours(d) => drop(d.file.lseek(by, libc::SEEK_CUR)),
            // SAFETY: lseek takes any number.
            End::Host(fd) => drop(unsafe { sys!(libc::SYS_lseek, *fd, by, libc::SEEK_CUR) }),
        }
    }
}

fn told(n: isize) -> Result<usize, c_int> {
    usize::try_from(n).map_err(|_| crate::hook::errno())
}

/// Moves bytes until the source ends, as many as were asked for are moved, or an end takes no more.
fn pump(
    from: &End,
    to: &End,
    (mut read_at, mut write_at): (Option<off_t>, Option<off_t>),
    len: usize,
) -> Result<usize, c_int> {
    let mut buf = vec![0; PIECE.min(len)];
    let mut done = 0;
    // Of a pipe or a socket only what is there is taken: more might never come.
    let once = !from.can_go_back();
    while done < len {
        let want = buf.len().min(len - done);
        let n = match from.read(&mut buf[..want], read_at) {
            Err(e) if done == 0 => return Err(e),
            Ok(n) if n > 0 => n,
            _ => break,
        };
        let mut put = 0;
        let mut failed = None;
        while put < n && failed.is_none() {
            match to.write(&buf[put..n], write_at) {
                Ok(0) => failed = Some(libc::EIO),
                Ok(w) => {
                    put += w;
                    write_at = write_at.map(|at| at + w as off_t);
                }
                Err(e) => failed = Some(e),
            }
        }
        done += put;
        read_at = read_at.map(|at| at + put as off_t);
        if let Some(e) = failed {
            if read_at.is_none() {
                from.go_back(n - put);
            }
            return if done == 0 { Err(e) } else { Ok(done) };
        }
        if once {
            break;
        }
    }
    Ok(done)
}

/// Copies, with offsets that the caller keeps or that are the descriptors'.
///
/// # Safety
/// The offsets are NULL or may be read and written.
unsafe fn copy(
    call: &'static Call,
    (from, read_at): (c_int, *mut off_t),
    (to, write_at): (c_int, *mut off_t),
    len: size_t,
) -> ssize_t {
    answer(volume::serve(call, |_| {
        let (source, target) = (End::of(from)?, End::of(to)?);
        // SAFETY: the caller's promise.
        let (mut a, mut b) = unsafe { (read_at.as_mut(), write_at.as_mut()) };
        let at = (a.as_deref().copied(), b.as_deref().copied());
        let n = match (&source, &target, at) {
            (End::Ours(f), End::Ours(t), (Some(f_at), Some(t_at))) if !t.appends() => {
                let f_at = u64::try_from(f_at).map_err(|_| libc::EINVAL)?;
                let t_at = u64::try_from(t_at).map_err(|_| libc::EINVAL)?;
                shared::flush(&f.file)?;
                shared::flush(&t.file)?;
                let n = f.file.copy_range_to(f_at, &t.file, t_at, len as u64).map_err(errno)?;
                shared::changed(t.file.ino(), t_at..t_at + n)?;
                n as usize
            }
            _ => pump(&source, &target, at, len)?,
        };
        for at in [&mut a, &mut b].into_iter().flatten() {
            **at += n as off_t;
        }
        Ok(n as ssize_t)
    }))
}

hook! {
    /// Copies from a file to a descriptor.
    fn sendfile(to: c_int, from: c_int, at: *mut off_t, len: size_t) -> ssize_t {
        if !is_ours(to) && !is_ours(from) { return real(to, from, at, len); }
        copy(&CALL, (from, at), (to, std::ptr::null_mut()), len)
    }
    /// Copies from a file to a descriptor.
    fn sendfile64(to: c_int, from: c_int, at: *mut off_t, len: size_t) -> ssize_t {
        sendfile(to, from, at, len)
    }
    /// Copies a range of a file.
    fn copy_file_range(from: c_int, read_at: *mut off_t, to: c_int, write_at: *mut off_t, len: size_t, flags: c_uint) -> ssize_t {
        if !is_ours(to) && !is_ours(from) { return real(from, read_at, to, write_at, len, flags); }
        if flags != 0 { return answer(Err(libc::EINVAL)); }
        for fd in [from, to].into_iter().filter(|fd| is_ours(*fd)) {
            match table::get(fd).map(|d| (d.kind, d.appends() && fd == to)) {
                Some((lanefs::FileKind::Dir, _)) => return answer(Err(libc::EISDIR)),
                Some((_, true)) => return answer(Err(libc::EBADF)),
                _ => {}
            }
        }
        copy(&CALL, (from, read_at), (to, write_at), len)
    }
    /// Copies between a pipe and a file.
    fn splice(from: c_int, read_at: *mut off_t, to: c_int, write_at: *mut off_t, len: size_t, flags: c_uint) -> ssize_t {
        if !is_ours(to) && !is_ours(from) { return real(from, read_at, to, write_at, len, flags); }
        if is_ours(to) && is_ours(from) { return answer(Err(libc::EINVAL)); }
        copy(&CALL, (from, read_at), (to, write_at), len)
    }
    /// Copies between pipes, which files of the volume are not.
    fn tee(from: c_int, to: c_int, len: size_t, flags: c_uint) -> ssize_t {
        if !is_ours(to) && !is_ours(from) { return real(from, to, len, flags); }
        ssize_t::FAILED.min(answer(Err(libc::EINVAL)))
    }
}
