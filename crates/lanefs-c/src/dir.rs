//! Directory streams.

use crate::answer::{Failure, Outcome, count, status};
use crate::args::{Out, handle, text};
use crate::lanefs_volume;
use lanefs::{FileKind, ReadDir};
use libc::{c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

/// An open directory. Threads that share it get each entry once, one or the other.
pub struct lanefs_dir {
    entries: Mutex<ReadDir>,
}

/// An entry of a directory.
#[repr(C)]
pub struct lanefs_dirent {
    /// Inode number.
    pub ino: u64,
    /// Kind of file, as `d_type`: `DT_REG`, `DT_DIR`, ...
    pub kind: u32,
    /// Length of the name.
    pub length: u32,
    /// The name, and a zero behind it.
    pub name: [c_char; 256],
}

/// Begins to list a directory, as opendir(3).
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_opendir(
    volume: *const lanefs_volume,
    path: *const c_char,
    dir: *mut *mut lanefs_dir,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (out, volume, path) = unsafe { (Out::new(dir)?, handle(volume)?, text(path)?) };
        let entries = Mutex::new(volume.fs.read_dir(path)?);
        out.put(Box::into_raw(Box::new(lanefs_dir { entries })));
        Ok(())
    })
}

/// Puts the next entry into `entry` and returns 1; returns 0 behind the last. `.` and `..` are not
/// listed.
///
/// # Safety
/// As `lanefs_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_readdir(dir: *const lanefs_dir, entry: *mut lanefs_dirent) -> c_int {
    let more = count(|| {
        // SAFETY: the caller's promise.
        let (out, dir) = unsafe { (Out::new(entry)?, handle(dir)?) };
        let next = dir.entries.lock().unwrap_or_else(PoisonError::into_inner).next();
        match next.transpose()? {
            None => Ok(0),
            Some(e) => {
                out.put(self::entry(e.ino().0, e.file_type(), e.name().as_bytes())?);
                Ok(1)
            }
        }
    });
    more as c_int
}

/// Returns an entry as C has it.
fn entry(ino: u64, kind: FileKind, name: &[u8]) -> Outcome<lanefs_dirent> {
    let kind = match kind {
        FileKind::File => libc::DT_REG,
        FileKind::Dir => libc::DT_DIR,
        FileKind::Symlink => libc::DT_LNK,
        FileKind::Char => libc::DT_CHR,
        FileKind::BlockDev => libc::DT_BLK,
        FileKind::Fifo => libc::DT_FIFO,
        FileKind::Socket => libc::DT_SOCK,
    };
    let mut out = lanefs_dirent { ino, kind: kind.into(), length: name.len() as u32, name: [0; 256] };
    if name.len() >= out.name.len() {
        return Err(Failure::Argument(libc::EUCLEAN, "a name of more than 255 bytes"));
    }
    for (to, from) in out.name.iter_mut().zip(name) {
        *to = *from as c_char;
    }
    Ok(out)
}

/// Closes a directory.
///
/// # Safety
/// A handle that was not closed, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lanefs_closedir(dir: *mut lanefs_dir) -> c_int {
    status(|| {
        if !dir.is_null() {
            // SAFETY: made by `lanefs_opendir`, and the caller closes it once.
            drop(unsafe { Box::from_raw(dir) });
        }
        Ok(())
    })
}
