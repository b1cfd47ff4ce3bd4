//! Open files: reading, writing, making durable.

use crate::answer::{Failure, Outcome, count, status};
use crate::args::{Out, bytes, bytes_mut, handle, offset, opened, text};
use crate::{lanefs_volume, spare};
use lanefs::{File, OpenOptions, WriteLife};
use libc::{c_char, c_int, c_void, iovec};
use std::io::{IoSlice, IoSliceMut};

/// An open file. Any number of threads may use it; they share its position.
pub struct lanefs_file {
    pub(crate) file: File,
}

/// Opens a file, as open(2), with its flags (`O_CREAT`, `O_EXCL`, `O_TRUNC`, `O_APPEND`,
/// `O_NOFOLLOW`, `O_DIRECTORY`, `O_TMPFILE`, `O_SYNC`, `O_DSYNC`, `O_DIRECT`, `O_NOATIME`,
/// `O_PATH`); `mode` is that of a file that is made.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_open(
    volume: *const lanefs_volume,
    path: *const c_char,
    flags: c_int,
    mode: u32,
    file: *mut *mut lanefs_file,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (out, volume, path) = unsafe { (Out::new(file)?, handle(volume)?, text(path)?) };
        if flags & libc::O_ACCMODE == libc::O_ACCMODE {
            return Err(Failure::Argument(libc::EINVAL, "O_RDONLY, O_WRONLY or O_RDWR, no two of them"));
        }
        let file = volume.fs.open(path, &OpenOptions { flags, mode })?;
        out.put(Box::into_raw(Box::write(spare::take(), lanefs_file { file })));
        Ok(())
    })
}

/// Closes a file, whatever it returns; its locks go with it. Nothing becomes durable by it.
///
/// # Safety
/// A handle that was not closed, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_close(file: *mut lanefs_file) -> c_int {
    status(|| {
        if !file.is_null() {
            // SAFETY: made by `lanefs_open`, and the caller closes it once; its memory is kept for
            // the next file when its content is gone.
            unsafe {
                file.drop_in_place();
                spare::keep(Box::from_raw(file.cast()));
            }
        }
        Ok(())
    })
}

/// Reads at the position, and moves it; returns how many bytes, 0 at the end.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_read(file: *const lanefs_file, buf: *mut c_void, len: usize) -> i64 {
    // SAFETY: the caller's promise.
    count(|| Ok(unsafe { handle(file)?.file.read(bytes_mut(buf, len)?) }? as u64))
}

/// Reads at an offset, as pread(2).
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_pread(
    file: *const lanefs_file,
    buf: *mut c_void,
    len: usize,
    at: i64,
) -> i64 {
    // SAFETY: the caller's promise.
    count(|| Ok(unsafe { handle(file)?.file.read_at(bytes_mut(buf, len)?, offset(at)?) }? as u64))
}

/// Reads at an offset as `lanefs_pread` does, if it need not wait for a device, as preadv2(2) with
/// `RWF_NOWAIT`: a caller asks for the rest in a thread that may wait, or for several places at
/// once.
///
/// EAGAIN: part of it is not in memory; what `buf` holds is undefined.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_pread_nowait(
    file: *const lanefs_file,
    buf: *mut c_void,
    len: usize,
    at: i64,
) -> i64 {
    count(|| {
        // SAFETY: the caller's promise.
        let (file, buf) = unsafe { (handle(file)?, bytes_mut(buf, len)?) };
        let read = file.file.read_cached_at(buf, offset(at)?)?;
        read.map(|n| n as u64).ok_or(Failure::Argument(libc::EAGAIN, "not all of it is in memory"))
    })
}

/// Writes at the position (at the end with `O_APPEND`), and moves it; returns how many bytes, fewer
/// than `len` only where the volume is full.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_write(file: *const lanefs_file, buf: *const c_void, len: usize) -> i64 {
    // SAFETY: the caller's promise.
    count(|| Ok(unsafe { handle(file)?.file.write(bytes(buf, len)?) }? as u64))
}

/// Writes at an offset (at the end with `O_APPEND`), as pwrite(2).
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_pwrite(
    file: *const lanefs_file,
    buf: *const c_void,
    len: usize,
    at: i64,
) -> i64 {
    // SAFETY: the caller's promise.
    count(|| Ok(unsafe { handle(file)?.file.write_at(bytes(buf, len)?, offset(at)?) }? as u64))
}

/// The most buffers of one call, as on Linux.
const MOST: usize = 1024;

/// Returns the buffers that an array names.
unsafe fn buffers<'a>(buffers: *const iovec, n: c_int) -> Outcome<&'a [iovec]> {
    match usize::try_from(n) {
        Ok(0) => Ok(&[]),
        Ok(n) if n <= MOST && !buffers.is_null() => {
            // SAFETY: not NULL; the caller's array has as many.
            Ok(unsafe { std::slice::from_raw_parts(buffers, n) })
        }
        Ok(n) if n <= MOST => Err(Failure::Argument(libc::EFAULT, "the array of buffers is NULL")),
        _ => Err(Failure::Argument(libc::EINVAL, "more than 1024 buffers, or fewer than none")),
    }
}

/// Reads into several buffers, as preadv2(2): at `at`, or at the position if that is -1.
///
/// # Safety
/// As `lanefs_format`; the buffers do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_readv(
    file: *const lanefs_file,
    buffers: *const iovec,
    n: c_int,
    at: i64,
) -> i64 {
    count(|| {
        // SAFETY: the caller's promise.
        let (file, all) = unsafe { (handle(file)?, self::buffers(buffers, n)?) };
        let mut parts = Vec::with_capacity(all.len());
        for b in all {
            // SAFETY: the caller's promise.
            parts.push(IoSliceMut::new(unsafe { bytes_mut(b.iov_base, b.iov_len) }?));
        }
        if at != -1 {
            return Ok(file.file.read_vectored_at(&mut parts, offset(at)?)? as u64);
        }
        let from = file.file.lseek(0, libc::SEEK_CUR)?;
        let done = file.file.read_vectored_at(&mut parts, from)? as u64;
        file.file.lseek((from + done) as i64, libc::SEEK_SET)?;
        Ok(done)
    })
}

/// Writes several buffers, as pwritev2(2): at `at`, or at the position if that is -1; at the end
/// with `O_APPEND`, in one step.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_writev(
    file: *const lanefs_file,
    buffers: *const iovec,
    n: c_int,
    at: i64,
) -> i64 {
    count(|| {
        // SAFETY: the caller's promise.
        let (file, all) = unsafe { (handle(file)?, self::buffers(buffers, n)?) };
        let mut parts = Vec::with_capacity(all.len());
        for b in all {
            // SAFETY: the caller's promise.
            parts.push(IoSlice::new(unsafe { bytes(b.iov_base, b.iov_len) }?));
        }
        if at != -1 {
            return Ok(file.file.write_vectored_at(&parts, offset(at)?)? as u64);
        }
        // In one step, as an append has to be.
        let whole: Vec<u8> = parts.iter().flat_map(|p| p.iter().copied()).collect();
        Ok(file.file.write(&whole)? as u64)
    })
}

/// Moves the position, as lseek(2), also to data and holes (`SEEK_DATA`, `SEEK_HOLE`); returns
/// where it is.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_lseek(file: *const lanefs_file, offset: i64, whence: c_int) -> i64 {
    // SAFETY: the caller's promise.
    count(|| Ok(unsafe { handle(file) }?.file.lseek(offset, whence)?))
}

/// Makes content, attributes and names of a file durable, as fsync(2). A new file needs no fsync of
/// its directory.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_fsync(file: *const lanefs_file) -> c_int {
    // SAFETY: the caller's promise.
    status(|| Ok(unsafe { handle(file) }?.file.sync_all()?))
}

/// Makes content, size and names of a file durable, as fdatasync(2).
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_fdatasync(file: *const lanefs_file) -> c_int {
    // SAFETY: the caller's promise.
    status(|| Ok(unsafe { handle(file) }?.file.sync_data()?))
}

/// How long what is written will be wanted: nobody has said anything, as with
/// `RWH_WRITE_LIFE_NOT_SET`. The numbers are those of `F_SET_RW_HINT`.
pub const LANEFS_LIFE_NOT_SET: c_int = 0;
/// There is nothing to say, as with `RWH_WRITE_LIFE_NONE`.
pub const LANEFS_LIFE_NONE: c_int = 1;
/// It will soon be overwritten or removed, as with `RWH_WRITE_LIFE_SHORT`.
pub const LANEFS_LIFE_SHORT: c_int = 2;
/// Between the two, as with `RWH_WRITE_LIFE_MEDIUM`.
pub const LANEFS_LIFE_MEDIUM: c_int = 3;
/// It stays for long, as with `RWH_WRITE_LIFE_LONG`.
pub const LANEFS_LIFE_LONG: c_int = 4;
/// It stays for as long as anything does, as with `RWH_WRITE_LIFE_EXTREME`.
pub const LANEFS_LIFE_EXTREME: c_int = 5;

fn life(number: c_int) -> Result<WriteLife, Failure> {
    u64::try_from(number)
        .ok()
        .and_then(WriteLife::from_hint)
        .ok_or(Failure::Argument(libc::EINVAL, "lives are 0 to 5, those of F_SET_RW_HINT"))
}

/// Says how long what is written to the file, through any handle, will be wanted
/// (`LANEFS_LIFE_NOT_SET` to `LANEFS_LIFE_EXTREME`), as `F_SET_RW_HINT` of fcntl(2) does. What is
/// `LANEFS_LIFE_SHORT` is put apart, where it dies together, and so is what is `LANEFS_LIFE_LONG`
/// or `LANEFS_LIFE_EXTREME`: the cleaner has less to move. It is not durable, and kept no longer
/// than the file is in memory. It changes no promise.
///
/// EINVAL: another number.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_set_write_life(file: *const lanefs_file, number: c_int) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let file = unsafe { opened(file) }?;
        file.file.set_write_life(life(number)?);
        Ok(())
    })
}

/// Returns what `lanefs_set_write_life` has said of the file last, through any handle.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_write_life(file: *const lanefs_file) -> i64 {
    // SAFETY: the caller's promise.
    count(|| Ok(unsafe { opened(file) }?.file.write_life().hint()))
}

/// Does what `lanefs_set_write_life` does, and more for `LANEFS_LIFE_SHORT`, for the log of a
/// database: what is written through this handle from now on is not written back while the file
/// grows, so that what is removed soon never goes to the device. No hint changes what a sync
/// promises.
///
/// EINVAL: another number.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_write_hint(file: *const lanefs_file, hint: c_int) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let file = unsafe { opened(file) }?;
        let life = life(hint)?;
        file.file.set_write_ahead(life != WriteLife::Short);
        file.file.set_write_life(life);
        Ok(())
    })
}

/// Sets the size, as ftruncate(2).
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_ftruncate(file: *const lanefs_file, size: i64) -> c_int {
    // SAFETY: the caller's promise.
    status(|| Ok(unsafe { handle(file) }?.file.set_len(offset(size)?)?))
}

/// Keeps space for a range, punches a hole or writes zeros, as fallocate(2) with its modes 0,
/// `FALLOC_FL_KEEP_SIZE`, `FALLOC_FL_PUNCH_HOLE` and `FALLOC_FL_ZERO_RANGE`.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_fallocate(file: *const lanefs_file, mode: c_int, at: i64, len: i64) -> c_int {
    // SAFETY: the caller's promise.
    status(|| Ok(unsafe { handle(file) }?.file.allocate(mode, offset(at)?, offset(len)?)?))
}
