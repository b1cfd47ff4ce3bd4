//! Streams of the C library on files of the volume.
//!
//! The C library's streams make system calls that no hook sees. A stream on a file of the volume is
//! one with functions of its own (fopencookie); its number is written where the C library keeps
//! those of files, so that `fileno` finds it.

use super::descriptors::{close, dup, dup2};
use super::open::{open_at, openat};
use super::transfer::{lseek, read, write};
use crate::hook::{answer, hook, set_errno};
use crate::itself;
use crate::report::Call;
use crate::route::{Route, route};
use crate::table::{self, is_ours};
use libc::{FILE, off64_t, size_t, ssize_t};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};

/// Where a stream of the GNU C library keeps its number: since its version 2.1.
const NUMBER_AT: usize = 112;

/// The functions of a stream.
#[repr(C)]
struct Functions {
    read: extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    fn __fpurge(stream: *mut FILE);
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

/// The open streams of the volume, and what they were opened for.
static STREAMS: Mutex<Option<HashMap<usize, c_int>>> = Mutex::new(None);

/// What the stream knows: its descriptor, as a number.
fn number(cookie: *mut c_void) -> c_int {
    cookie as usize as c_int
}

extern "C" fn stream_read(cookie: *mut c_void, buf: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library's stream gives a buffer of so many bytes.
    unsafe { read(number(cookie), buf.cast(), len) }
}

extern "C" fn stream_write(cookie: *mut c_void, buf: *const c_char, len: size_t) -> ssize_t {
    let mut done = 0;
    while done < len {
        // SAFETY: as above.
        match unsafe { write(number(cookie), buf.add(done).cast(), len - done) } {
            n @ 1.. => done += n as usize,
            _ => break,
        }
    }
    done as ssize_t
}

extern "C" fn stream_seek(cookie: *mut c_void, offset: *mut off64_t, whence: c_int) -> c_int {
    // SAFETY: the C library's stream gives a pointer to an offset.
    unsafe {
        let at = lseek(number(cookie), *offset, whence);
        if at < 0 {
            return -1;
        }
        *offset = at;
    }
    0
}

extern "C" fn stream_close(cookie: *mut c_void) -> c_int {
    let fd = number(cookie);
    if let Some(streams) = STREAMS.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        streams.retain(|_, n| *n != fd);
    }
    // SAFETY: close takes any number.
    unsafe { close(fd) }
}

/// The flags of open(2) and the letters that fopencookie takes, of a stream's mode.
fn mode_of(mode: &[u8]) -> Result<(c_int, &'static CStr), c_int> {
    let letters = mode.split(|b| *b == b',').next().unwrap_or_default();
    let plus = letters.contains(&b'+');
    let (flags, plain, both) = match letters.first() {
        Some(b'r') => (0, c"r", c"r+"),
        Some(b'w') => (libc::O_CREAT | libc::O_TRUNC, c"w", c"w+"),
        Some(b'a') => (libc::O_CREAT | libc::O_APPEND, c"a", c"a+"),
        _ => return Err(libc::EINVAL),
    };
    let access = match (plus, letters[0]) {
        (true, _) => libc::O_RDWR,
        (false, b'r') => libc::O_RDONLY,
        _ => libc::O_WRONLY,
    };
    let exclusive = if letters.contains(&b'x') { libc::O_EXCL } else { 0 };
    let close_on_exec = if letters.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    Ok((flags | access | exclusive | close_on_exec, if plus { both } else { plain }))
}

/// Makes a stream on a descriptor of the volume.
fn stream_on(fd: c_int, letters: &'static CStr) -> *mut FILE {
    let functions =
        Functions { read: stream_read, write: stream_write, seek: stream_seek, close: stream_close };
    // SAFETY: the functions take what the C library gives them; the number lies within a stream.
    unsafe {
        let stream = fopencookie(fd as usize as *mut c_void, letters.as_ptr(), functions);
        if stream.is_null() {
            return stream;
        }
        *stream.byte_add(NUMBER_AT).cast::<c_int>() = fd;
        let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
        streams.get_or_insert_default().insert(stream as usize, fd);
        stream
    }
}

/// Makes a stream in place of a standard one.
pub fn make_standard(fd: c_int, for_reading: bool) -> *mut FILE {
    stream_on(fd, if for_reading { c"r" } else { c"w" })
}

/// Opens a file of the volume and makes a stream; `None`: the path is not the volume's.
///
/// # Safety
/// The strings end in a NUL.
unsafe fn open_stream(call: &'static Call, path: *const c_char, mode: *const c_char) -> Option<*mut FILE> {
    if path.is_null() || mode.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let at = (libc::AT_FDCWD, path);
        if matches!(route(at.0, CStr::from_ptr(path)), Route::Host) && itself::descriptor(at, 0).is_none() {
            return None;
        }
        let (flags, letters) = match mode_of(CStr::from_ptr(mode).to_bytes()) {
            Ok(mode) => mode,
            Err(errno) => return Some(answer(Err(errno))),
        };
        let fd = open_at(call, (libc::AT_FDCWD, path), flags, 0o666, |d, p| {
            // A path that leads out of the volume.
            openat(d, p, flags, 0o666)
        });
        if fd < 0 {
            return Some(std::ptr::null_mut());
        }
        if !is_ours(fd) {
            return Some(libc::fdopen(fd, letters.as_ptr()));
        }
        if letters == c"a" {
            lseek(fd, 0, libc::SEEK_END);
        }
        let stream = stream_on(fd, letters);
        if stream.is_null() {
            close(fd);
        }
        Some(stream)
    }
}

/// Opens another file on a stream. One of the volume keeps its functions, which serve a descriptor
/// of the host too; a standard stream of the host is replaced by one of the volume.
///
/// # Safety
/// That of freopen(3).
unsafe fn open_again(
    call: &'static Call,
    (path, mode): (*const c_char, *const c_char),
    stream: *mut FILE,
    real: impl FnOnce() -> *mut FILE,
) -> *mut FILE {
    // SAFETY: the caller's promise; the standard streams are variables of the C library that a
    // program may set.
    unsafe {
        let old = {
            let streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
            streams.as_ref().and_then(|s| s.get(&(stream as usize))).copied()
        };
        if old.is_none()
            && (path.is_null() || matches!(route(libc::AT_FDCWD, CStr::from_ptr(path)), Route::Host))
        {
            return real();
        }
        let is_standard = [stdin, stdout, stderr].contains(&stream);
        if path.is_null() || (old.is_none() && !is_standard) {
            // Another mode for the same file; or a stream of the host, whose address is the
            // caller's, and the C library's functions would be at work behind it.
            return answer(Err(call.refuse(libc::EOPNOTSUPP)));
        }
        let (flags, letters) = match mode_of(CStr::from_ptr(mode).to_bytes()) {
            Ok(mode) => mode,
            Err(errno) => return answer(Err(errno)),
        };
        libc::fflush(stream);
        let fd = openat(libc::AT_FDCWD, path, flags, 0o666);
        if fd < 0 {
            return std::ptr::null_mut();
        }
        let number = old.unwrap_or_else(|| libc::fileno(stream));
        dup2(fd, number);
        close(fd);
        if letters == c"a" {
            lseek(number, 0, libc::SEEK_END);
        }
        let new = stream_on(number, letters);
        if new.is_null() {
            return new;
        }
        if old.is_some() {
            // The stream keeps its address, and takes the rights of the new one, which goes
            // without its descriptor.
            __fpurge(stream);
            libc::clearerr(stream);
            const RIGHTS: c_int = 0x4 | 0x8 | 0x1000;
            let here = stream.cast::<c_int>();
            *here = *here & !RIGHTS | *new.cast::<c_int>() & RIGHTS;
            let kept = dup(number);
            libc::fclose(new);
            dup2(kept, number);
            close(kept);
            let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
            streams.get_or_insert_default().insert(stream as usize, number);
            return stream;
        }
        if stream == stdin {
            stdin = new;
        } else if stream == stdout {
            stdout = new;
        } else {
            stderr = new;
        }
        new
    }
}

hook! {
    /// Opens a stream.
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
        match open_stream(&CALL, path, mode) { Some(stream) => stream, None => real(path, mode) }
    }
    /// Opens a stream.
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
        match open_stream(&CALL, path, mode) { Some(stream) => stream, None => real(path, mode) }
    }
    /// Makes a stream on a descriptor.
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        if !is_ours(fd) { return real(fd, mode); }
        let (flags, letters) = match mode_of(CStr::from_ptr(mode).to_bytes()) {
            Ok(mode) => mode,
            Err(errno) => return answer(Err(errno)),
        };
        let Some(description) = table::get(fd) else {
            set_errno(libc::EIO);
            return std::ptr::null_mut();
        };
        let have = description.flags.load(std::sync::atomic::Ordering::Relaxed);
        let (have_access, want) = (have & libc::O_ACCMODE, flags & libc::O_ACCMODE);
        if have_access != libc::O_RDWR && have_access != want {
            return answer(Err(libc::EINVAL));
        }
        if flags & libc::O_APPEND != 0 {
            description.flags.fetch_or(libc::O_APPEND, std::sync::atomic::Ordering::Relaxed);
        }
        CALL.served();
        stream_on(fd, letters)
    }
    /// Opens another file on a stream.
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        open_again(&CALL, (path, mode), stream, || real(path, mode, stream))
    }
    /// Opens another file on a stream.
    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        open_again(&CALL, (path, mode), stream, || real(path, mode, stream))
    }
    /// Formats onto a descriptor.
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
        if !is_ours(fd) { return real(fd, format, arguments); }
        unsafe extern "C" {
            fn vasprintf(to: *mut *mut c_char, format: *const c_char, arguments: *mut c_void) -> c_int;
        }
        let mut text = std::ptr::null_mut();
        let len = vasprintf(&raw mut text, format, arguments);
        if len < 0 {
            return len;
        }
        let written = stream_write(fd as usize as *mut c_void, text, len as usize);
        libc::free(text.cast());
        if written < len as ssize_t { -1 } else { len }
    }
    /// Formats onto a descriptor, with the check of fortified programs.
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
        if !is_ours(fd) { return real(fd, flag, format, arguments); }
        vdprintf(fd, format, arguments)
    }
}
