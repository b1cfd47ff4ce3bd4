//! Mappings. A private one, and a shared one of a file that is open for reading only, is a copy of
//! the content as it is then; a shared one of a file that may be written is in [`crate::shared`].

use super::transfer::read_to;
use crate::attributes::errno;
use crate::hook::{answer, hook};
use crate::raw::sys;
use crate::shared::{self, Wanted};
use crate::table::{self, Description, is_ours};
use crate::volume;
use lanefs::{FileKind, Volume};
use libc::{off_t, size_t};
use std::ffi::{c_int, c_void};

/// Maps a copy of a range of a file.
fn map(volume: &Volume, d: &Description, w: &Wanted) -> Result<*mut c_void, c_int> {
    let access = d.flags.load(std::sync::atomic::Ordering::Relaxed) & libc::O_ACCMODE;
    let is_shared = w.flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
    if d.path_only() {
        return Err(libc::EBADF);
    }
    if d.kind != FileKind::File {
        return Err(libc::ENODEV);
    }
    if access == libc::O_WRONLY {
        return Err(libc::EACCES);
    }
    if w.len == 0 || w.offset < 0 || w.offset % 4096 != 0 {
        return Err(libc::EINVAL);
    }
    match (is_shared, access) {
        (false, _) => map_private(d, w),
        (true, libc::O_RDWR) => shared::map(volume, d.file.ino(), w),
        _ if w.protection & libc::PROT_WRITE != 0 => Err(libc::EACCES),
        _ => map_shared(d, w),
    }
}

/// Fills memory with a range of a file; behind its end it stays as it is.
fn fill(d: &Description, memory: &mut [u8], offset: off_t) -> Result<(), c_int> {
    let mut done = 0;
    while done < memory.len() {
        let to = memory.len().min(done + (1 << 30));
        match read_to(d, &mut [&mut memory[done..to]], Some(offset + done as off_t))? {
            0 => break,
            n => done += n as usize,
        }
    }
    Ok(())
}

fn map_private(d: &Description, w: &Wanted) -> Result<*mut c_void, c_int> {
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    // Only what the kernel knows of anonymous memory.
    let flags = w.flags & !libc::MAP_TYPE | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the caller of mmap asks for this range; the file's content goes into what the kernel
    // gives.
    unsafe {
        let memory = sys!(libc::SYS_mmap, w.at, w.len, rw, flags, -1i32, 0);
        if memory == -1 {
            return Err(crate::hook::errno());
        }
        let memory = memory as *mut u8;
        if let Err(e) = fill(d, std::slice::from_raw_parts_mut(memory, w.len), w.offset) {
            sys!(libc::SYS_munmap, memory, w.len);
            return Err(e);
        }
        if w.protection != rw {
            sys!(libc::SYS_mprotect, memory, w.len, w.protection);
        }
        Ok(memory.cast())
    }
}

/// Maps a copy through a descriptor that cannot write, so that nobody can make the mapping
/// writable.
fn map_shared(d: &Description, w: &Wanted) -> Result<*mut c_void, c_int> {
    let size = d.file.stat().map_err(errno)?.size;
    let len = size.saturating_sub(w.offset as u64).min(w.len as u64) as usize;
    // SAFETY: the calls take strings that end in a NUL and descriptors that are this function's;
    // the memory that is filled was mapped for that.
    unsafe {
        let file = libc::memfd_create(c"lanefs-mmap".as_ptr(), libc::MFD_CLOEXEC);
        if file < 0 {
            return Err(crate::hook::errno());
        }
        let result = (|| {
            // As long as the pages of the file: behind them there is nothing.
            let whole = len.next_multiple_of(4096);
            if sys!(libc::SYS_ftruncate, file, whole) != 0 {
                return Err(crate::hook::errno());
            }
            if len > 0 {
                let rw = libc::PROT_READ | libc::PROT_WRITE;
                let memory = sys!(libc::SYS_mmap, 0, whole, rw, libc::MAP_SHARED, file, 0);
                if memory == -1 {
                    return Err(crate::hook::errno());
                }
                let filled = fill(d, std::slice::from_raw_parts_mut(memory as *mut u8, len), w.offset);
                sys!(libc::SYS_munmap, memory, whole);
                filled?;
            }
            let path = format!("/proc/self/fd/{file}\0");
            let flags = libc::O_RDONLY | libc::O_CLOEXEC;
            let reader = sys!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags);
            if reader < 0 {
                return Err(libc::ENODEV);
            }
            let memory = sys!(libc::SYS_mmap, w.at, w.len, w.protection, w.flags, reader, 0);
            let failed = crate::hook::errno();
            sys!(libc::SYS_close, reader);
            if memory == -1 { Err(failed) } else { Ok(memory as *mut c_void) }
        })();
        sys!(libc::SYS_close, file);
        result
    }
}

hook! {
    /// Maps.
    fn mmap(at: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void {
        if flags & libc::MAP_ANONYMOUS != 0 || !is_ours(fd) {
            return real(at, len, protection, flags, fd, offset);
        }
        let wanted = Wanted { at, len, protection, flags, offset };
        match volume::serve(&CALL, |v| map(v, &*table::get(fd).ok_or(libc::EBADF)?, &wanted)) {
            Ok(memory) => memory,
            Err(errno) => {
                answer::<c_int>(Err(errno));
                libc::MAP_FAILED
            }
        }
    }
    /// Unmaps.
    fn munmap(at: *mut c_void, len: size_t) -> c_int {
        let range = at as usize..(at as usize).saturating_add(len.next_multiple_of(4096));
        if !shared::is_mapped(&range) || !volume::is_owner() || volume::is_inside() {
            return real(at, len);
        }
        // Before the memory goes to somebody else.
        let result = real(at, len);
        if result == 0 {
            // What cannot be written back stays to be tried again.
            let _ = volume::serve(&CALL, |_| {
                shared::unmapped(&range);
                Ok(())
            });
        }
        result
    }
    /// Gets what was stored in a mapping into the file, durably if it is waited for.
    fn msync(at: *mut c_void, len: size_t, flags: c_int) -> c_int {
        let range = at as usize..(at as usize).saturating_add(len);
        if !shared::is_mapped(&range) || !volume::is_owner() {
            return real(at, len, flags);
        }
        answer(volume::serve(&CALL, |v| {
            shared::flush_all()?;
            if flags & libc::MS_SYNC != 0 {
                v.sync().map_err(errno)?;
            }
            Ok(0)
        }))
    }
    /// Maps.
    fn mmap64(at: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void {
        mmap(at, len, protection, flags, fd, offset)
    }
}
