//! Names: directories, links, renames, by path.

use crate::answer::{Failure, count, status};
use crate::args::{bytes_mut, handle, text};
use crate::lanefs_volume;
use libc::{c_char, c_int, c_void};

/// `lanefs_rename`: do not replace what the new name names (EEXIST).
pub const LANEFS_RENAME_NOREPLACE: u32 = 1;
/// `lanefs_rename`: exchange the two.
pub const LANEFS_RENAME_EXCHANGE: u32 = 2;

/// Makes a directory, as mkdir(2).
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_mkdir(volume: *const lanefs_volume, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: the caller's promise.
    status(|| Ok(unsafe { handle(volume) }?.fs.mkdir(unsafe { text(path) }?, mode)?))
}

/// Removes an empty directory, as rmdir(2).
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_rmdir(volume: *const lanefs_volume, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    status(|| Ok(unsafe { handle(volume) }?.fs.rmdir(unsafe { text(path) }?)?))
}

/// Removes a name of a file, as unlink(2).
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_unlink(volume: *const lanefs_volume, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    status(|| Ok(unsafe { handle(volume) }?.fs.unlink(unsafe { text(path) }?)?))
}

/// Renames, as renameat2(2): `flags` is 0, `LANEFS_RENAME_NOREPLACE` or `LANEFS_RENAME_EXCHANGE`.
/// After a crash it is there whole or not at all, and what replaced a file has its content.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_rename(
    volume: *const lanefs_volume,
    old_path: *const c_char,
    new_path: *const c_char,
    flags: u32,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, old, new) = unsafe { (handle(volume)?, text(old_path)?, text(new_path)?) };
        // What a mount takes beyond them, such as a whiteout, is not promised here.
        if flags & !(LANEFS_RENAME_NOREPLACE | LANEFS_RENAME_EXCHANGE) != 0 {
            return Err(Failure::Argument(
                libc::EINVAL,
                "flags are 0, LANEFS_RENAME_NOREPLACE or LANEFS_RENAME_EXCHANGE",
            ));
        }
        Ok(volume.fs.rename2(old, new, flags)?)
    })
}

/// Gives a file another name, as link(2): a symbolic link at `old_path` is not followed.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_link(
    volume: *const lanefs_volume,
    old_path: *const c_char,
    new_path: *const c_char,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, old, new) = unsafe { (handle(volume)?, text(old_path)?, text(new_path)?) };
        Ok(volume.fs.link(old, new)?)
    })
}

/// Makes a symbolic link to `target`, as symlink(2).
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_symlink(
    volume: *const lanefs_volume,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, target, path) = unsafe { (handle(volume)?, text(target)?, text(path)?) };
        Ok(volume.fs.symlink(target, path)?)
    })
}

/// Puts the target of a symbolic link into `buf`, as readlink(2), without a zero behind it, cut off
/// at `size`; returns how many bytes that is.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_readlink(
    volume: *const lanefs_volume,
    path: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> i64 {
    count(|| {
        // SAFETY: the caller's promise.
        let (volume, path, buf) =
            unsafe { (handle(volume)?, text(path)?, bytes_mut(buf.cast::<c_void>(), size)?) };
        if buf.is_empty() {
            return Err(Failure::Argument(libc::EINVAL, "a buffer of no bytes"));
        }
        let target = volume.fs.readlink(path)?;
        let n = target.len().min(buf.len());
        buf[..n].copy_from_slice(&target[..n]);
        Ok(n as u64)
    })
}
