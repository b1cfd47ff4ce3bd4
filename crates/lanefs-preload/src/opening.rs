//! Opening a path of a view, without a descriptor.

use crate::attributes::errno;
use crate::shared;
use crate::table::Description;
use lanefs::fs::Dir;
use lanefs::{File, FileKind, Fs, OpenOptions, Volume};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64};
use std::sync::{Arc, Mutex};

/// Flags that the library takes as they are.
const PASSED: c_int = libc::O_TMPFILE
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_NOFOLLOW
    | libc::O_DIRECTORY
    | libc::O_DIRECT
    | libc::O_NOATIME
    | libc::O_PATH;
/// Flags that F_GETFL does not show.
const UNSEEN: c_int = libc::O_CREAT | libc::O_EXCL | libc::O_NOCTTY | libc::O_TRUNC | libc::O_CLOEXEC;

/// Opens a path of a view.
pub fn open(fs: &Fs, path: &[u8], flags: c_int, mode: u32) -> Result<Description, c_int> {
    let path_only = flags & libc::O_PATH != 0;
    let flags = if path_only {
        flags & (libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC)
    } else {
        flags
    };
    let access = flags & libc::O_ACCMODE;
    if access == libc::O_ACCMODE {
        return Err(libc::EINVAL);
    }
    // Of a file without a name it says that it never gets one.
    let nameless = if flags & libc::O_TMPFILE == libc::O_TMPFILE { flags & libc::O_EXCL } else { 0 };
    let mut options = OpenOptions::new();
    options
        .read(access != libc::O_WRONLY)
        .write(access != libc::O_RDONLY)
        .create(flags & libc::O_CREAT != 0)
        .mode(mode & 0o7777)
        .custom_flags(flags & PASSED | nameless);
    if flags & libc::O_APPEND != 0 && access != libc::O_RDONLY {
        options.append(true);
    }
    if flags & libc::O_TRUNC != 0 {
        options.truncate(true);
    }
    if flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0 {
        options.create_new(true);
    }
    let mut file = fs.open(path, &options).map_err(errno)?;
    // The front end looks at O_APPEND, which may be changed.
    file.never_append();
    // Opened once: another one may take the name.
    let mut description = description(file, flags)?;
    if flags & libc::O_TRUNC != 0 {
        shared::changed(description.file.ino(), 0..0)?;
    }
    description.path = path.to_vec();
    if description.kind == FileKind::Dir {
        description.dir = Some(Dir::of(fs, description.file.clone()).map_err(errno)?);
    }
    Ok(description)
}

/// Opens what a description refers to once more, as by its link in /proc.
pub fn again(volume: &Volume, fs: &Fs, d: &Description, flags: c_int) -> Result<Description, c_int> {
    let flags = match flags & libc::O_PATH {
        0 => flags,
        _ => flags & (libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC),
    };
    if flags & libc::O_ACCMODE == libc::O_ACCMODE {
        return Err(libc::EINVAL);
    }
    if flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0 {
        return Err(libc::EEXIST);
    }
    let passed = PASSED & !(libc::O_TMPFILE & !libc::O_DIRECTORY) | libc::O_ACCMODE | libc::O_TRUNC;
    let mut file = volume.node_open(fs.cred(), d.file.ino(), flags & passed).map_err(errno)?;
    file.never_append();
    let mut again = description(file, flags)?;
    if flags & libc::O_TRUNC != 0 {
        shared::changed(again.file.ino(), 0..0)?;
    }
    again.path.clone_from(&d.path);
    if again.kind == FileKind::Dir {
        again.dir = Some(Dir::of(fs, again.file.clone()).map_err(errno)?);
    }
    Ok(again)
}

/// Describes an open file that was opened with these flags, without a path.
pub fn description(file: File, flags: c_int) -> Result<Description, c_int> {
    let kind = file.stat().map_err(errno)?.kind;
    Ok(Description {
        file: Arc::new(file),
        kind,
        dir: None,
        flags: AtomicI32::new(flags & !UNSEEN),
        position: Mutex::new(()),
        listed: AtomicU64::new(0),
        path: Vec::new(),
        locked: AtomicBool::new(false),
        successor: AtomicI32::new(-1),
    })
}

/// Opens a directory by its path, to go into it: for that it need not be readable.
pub fn directory(fs: &Fs, path: &[u8]) -> Result<Description, c_int> {
    open(fs, path, libc::O_PATH | libc::O_DIRECTORY, 0)
}
