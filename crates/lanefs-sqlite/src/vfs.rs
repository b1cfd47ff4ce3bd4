//! The VFS: opening, removing and naming files. What is no file of a volume (time, random numbers,
//! libraries, temporary files without a name) is left to SQLite's own VFS.

use crate::api::{self, ApiRoutines, File, Symbol, Vfs};
use crate::file::{OpenFile, State};
use crate::host::Known;
use crate::names;
use crate::volumes::{self, Parameters};
use lanefs::{Fs, OpenOptions};
use libc::{c_char, c_int, c_void};
use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

/// The longest name that SQLite may hand over: an image's, and a path's in the volume.
const LONGEST_NAME: c_int = 8192;

/// Makes the VFS known to an SQLite, if it is not.
///
/// # Safety
/// A place for a message, and the table of SQLite's functions, which stays for good.
pub unsafe fn make_known(message: *mut *mut c_char, api: *const ApiRoutines) -> c_int {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    // SAFETY: the caller's promise.
    let Some(api) = (unsafe { api.as_ref() }) else { return api::ERROR };
    // SAFETY: functions of SQLite, called as it says.
    unsafe {
        if (api.libversion_number)() < api::LEAST_VERSION {
            let text = c"lanefs needs SQLite 3.32 or later".as_ptr();
            if !message.is_null() {
                *message = (api.mprintf)(c"%s".as_ptr(), text);
            }
            return api::ERROR;
        }
        let _guard = volumes::locked(&ONE_AT_A_TIME);
        if !(api.vfs_find)(c"lanefs".as_ptr()).is_null() {
            return api::OK;
        }
        let base = (api.vfs_find)(std::ptr::null());
        if base.is_null() {
            return api::ERROR;
        }
        // Both stay for good, as SQLite wants it of a VFS.
        let known: &'static Known = Box::leak(Box::new(Known { api, base }));
        let ours = size_of::<OpenFile>() as c_int;
        let vfs = Box::leak(Box::new(Vfs {
            version: 2,
            file_bytes: ours.max((*base).file_bytes),
            longest_name: LONGEST_NAME,
            next: std::ptr::null_mut(),
            name: c"lanefs".as_ptr(),
            data: std::ptr::from_ref(known).cast_mut().cast(),
            open,
            delete,
            access,
            full_pathname,
            dl_open,
            dl_error,
            dl_sym,
            dl_close,
            randomness,
            sleep,
            current_time,
            last_error: Some(last_error),
            current_time_int64: Some(current_time_int64),
            system_calls: [std::ptr::null(); 3],
        }));
        (api.vfs_register)(vfs, 0)
    }
}

/// Returns the SQLite that a VFS belongs to.
unsafe fn known(vfs: *mut Vfs) -> &'static Known {
    // SAFETY: made by `make_known`, for good.
    unsafe { &*(*vfs).data.cast::<Known>() }
}

/// Returns a name as text; one that is not UTF-8 is none of ours.
unsafe fn name<'a>(name: *const c_char) -> Option<&'a str> {
    // SAFETY: NULL, or SQLite's text.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_str().ok()).flatten()
}

/// Does what a call asks for; a message goes to the log, a panic is the error `code` too.
fn answer(known: &Known, code: c_int, f: impl FnOnce() -> Result<c_int, String>) -> c_int {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(answer)) => answer,
        Ok(Err(message)) => {
            known.tell(code, &message);
            code
        }
        Err(_) => code,
    }
}

unsafe extern "C" fn open(
    vfs: *mut Vfs,
    full: *const c_char,
    file: *mut File,
    flags: c_int,
    opened_as: *mut c_int,
) -> c_int {
    // SAFETY: SQLite's arguments, as sqlite3.h has them.
    unsafe {
        (*file).methods = std::ptr::null();
        let known = known(vfs);
        if full.is_null() {
            // Temporary, and of this connection alone.
            return ((*known.base).open)(known.base, full, file, flags, opened_as);
        }
        let code = api::CANTOPEN;
        answer(known, code, || {
            let text = name(full).ok_or("a name that is not UTF-8")?;
            let (state, writable) = open_file(known, text, &known.parameters(full), flags)?;
            if !opened_as.is_null() {
                let mode = if writable { api::OPEN_READWRITE } else { api::OPEN_READONLY };
                *opened_as = flags & !(api::OPEN_READWRITE | api::OPEN_READONLY) | mode;
            }
            state.put(file);
            Ok(api::OK)
        })
    }
}

/// Opens a file by its full name; returns also whether it may be written.
fn open_file(
    known: &'static Known,
    full: &str,
    parameters: &Parameters,
    flags: c_int,
) -> Result<(State, bool), String> {
    let (key, path) = names::split(full).ok_or_else(|| format!("{full}: no name of a volume"))?;
    let volume = volumes::open(key, parameters)?;
    let fs = &volume.opened.fs;
    let has = |flag: c_int| flags & flag != 0;
    let mut options = OpenOptions::new();
    options.read(true).write(has(api::OPEN_READWRITE)).mode(mode(fs, path, flags));
    options.create(has(api::OPEN_CREATE)).create_new(has(api::OPEN_CREATE) && has(api::OPEN_EXCLUSIVE));
    let mut writable = has(api::OPEN_READWRITE);
    let file = match fs.open(path, &options) {
        // As SQLite's own VFS: what may not be written is read.
        Err(e) if writable && matches!(e.errno(), libc::EACCES | libc::EROFS | libc::EPERM) => {
            writable = false;
            fs.open(path, OpenOptions::new().read(true)).map_err(|_| e)
        }
        opened => opened,
    };
    let file = match file {
        Ok(file) if file.metadata().is_ok_and(|m| m.is_file()) => Ok(file),
        Ok(_) => Err(format!("{full}: no file")),
        Err(e) => Err(format!("{full}: {e}")),
    };
    let file = match file {
        Ok(file) => file,
        Err(message) => {
            // The first error is the one to tell.
            let _ = volume.end();
            return Err(message);
        }
    };
    if has(api::OPEN_DELETEONCLOSE) {
        // The file lives until its handle is dropped.
        let _ = fs.unlink(path);
    }
    let database = has(api::OPEN_MAIN_DB).then(|| volume.opened.database(file.ino()));
    Ok((State::new(file, path, volume, database, known), writable))
}

/// Returns the mode of a file that is made: of a journal that of its database.
fn mode(fs: &Fs, path: &str, flags: c_int) -> u32 {
    let database = match flags & (api::OPEN_MAIN_JOURNAL | api::OPEN_WAL) {
        0 => None,
        api::OPEN_WAL => path.strip_suffix("-wal"),
        _ => path.strip_suffix("-journal"),
    };
    database.and_then(|d| fs.stat(d).ok()).map_or(0o644, |s| s.mode & 0o777)
}

unsafe extern "C" fn delete(vfs: *mut Vfs, full: *const c_char, sync_dir: c_int) -> c_int {
    // SAFETY: SQLite's arguments.
    unsafe {
        let known = known(vfs);
        answer(known, api::IOERR_DELETE, || {
            let full = name(full).ok_or("a name that is not UTF-8")?;
            let (key, path) = names::split(full).ok_or("no name of a volume")?;
            let Some(opened) = volumes::find(key) else { return Ok(api::IOERR_DELETE_NOENT) };
            match opened.fs.unlink(path) {
                Err(e) if e.errno() == libc::ENOENT => return Ok(api::IOERR_DELETE_NOENT),
                Err(e) => return Err(format!("{full}: {e}")),
                Ok(()) => {}
            }
            // The removal of a journal is what commits. SQLite has it synced with
            // `synchronous=EXTRA` alone: elsewhere a killed process leaves the removal to the
            // kernel. Here it would be undone, so it is synced wherever the database was.
            let database = path.strip_suffix("-journal");
            if !database.is_some_and(|d| opened.take_synced(d)) && sync_dir == 0 {
                return Ok(api::OK);
            }
            let dir = path.rfind('/').map_or("/", |at| &path[..at.max(1)]);
            match opened.fs.open_dir(dir).and_then(|d| d.sync_all()) {
                Ok(()) => Ok(api::OK),
                Err(e) => {
                    known.tell(api::IOERR_DIR_FSYNC, &format!("{full}: {e}"));
                    Ok(api::IOERR_DIR_FSYNC)
                }
            }
        })
    }
}

unsafe extern "C" fn access(vfs: *mut Vfs, full: *const c_char, what: c_int, is: *mut c_int) -> c_int {
    // SAFETY: SQLite's arguments.
    unsafe {
        *is = 0;
        answer(known(vfs), api::IOERR_ACCESS, || {
            let full = name(full).ok_or("a name that is not UTF-8")?;
            let (key, path) = names::split(full).ok_or("no name of a volume")?;
            let Some(opened) = volumes::find(key) else { return Ok(api::OK) };
            let found = match what {
                // An empty file counts as none, as with SQLite's own VFS.
                api::ACCESS_EXISTS => match opened.fs.stat(path) {
                    Ok(s) => Ok(!s.kind.is_file() || s.size > 0),
                    Err(e) => Err(e),
                },
                api::ACCESS_READWRITE => opened.fs.access(path, libc::R_OK | libc::W_OK).map(|()| true),
                _ => opened.fs.access(path, libc::R_OK).map(|()| true),
            };
            *is = match found {
                Ok(found) => c_int::from(found),
                Err(e) if matches!(e.errno(), libc::ENOENT | libc::ENOTDIR | libc::EACCES | libc::EROFS) => 0,
                Err(e) => return Err(format!("{full}: {e}")),
            };
            Ok(api::OK)
        })
    }
}

unsafe extern "C" fn full_pathname(
    vfs: *mut Vfs,
    given: *const c_char,
    size: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: SQLite's arguments: a name with its parameters, and a place of `size` bytes.
    unsafe {
        let known = known(vfs);
        answer(known, api::CANTOPEN, || {
            let volume = known.parameters(given).volume;
            let given = name(given).ok_or("a name that is not UTF-8")?;
            let full = names::full(given, volume.as_deref())?;
            if full.len() >= size.max(0) as usize {
                return Err(format!("{full}: too long"));
            }
            std::ptr::copy_nonoverlapping(full.as_ptr(), out.cast::<u8>(), full.len());
            *out.add(full.len()) = 0;
            Ok(api::OK)
        })
    }
}

unsafe extern "C" fn dl_open(vfs: *mut Vfs, name: *const c_char) -> *mut c_void {
    // SAFETY: passed on as it came, here and below.
    unsafe {
        let base = known(vfs).base;
        ((*base).dl_open)(base, name)
    }
}

unsafe extern "C" fn dl_error(vfs: *mut Vfs, size: c_int, message: *mut c_char) {
    // SAFETY: as above.
    unsafe {
        let base = known(vfs).base;
        ((*base).dl_error)(base, size, message);
    }
}

unsafe extern "C" fn dl_sym(vfs: *mut Vfs, library: *mut c_void, name: *const c_char) -> Symbol {
    // SAFETY: as above.
    unsafe {
        let base = known(vfs).base;
        ((*base).dl_sym)(base, library, name)
    }
}

unsafe extern "C" fn dl_close(vfs: *mut Vfs, library: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        let base = known(vfs).base;
        ((*base).dl_close)(base, library);
    }
}

unsafe extern "C" fn randomness(vfs: *mut Vfs, size: c_int, out: *mut c_char) -> c_int {
    // SAFETY: as above.
    unsafe {
        let base = known(vfs).base;
        ((*base).randomness)(base, size, out)
    }
}

unsafe extern "C" fn sleep(vfs: *mut Vfs, microseconds: c_int) -> c_int {
    // SAFETY: as above.
    unsafe {
        let base = known(vfs).base;
        ((*base).sleep)(base, microseconds)
    }
}

unsafe extern "C" fn current_time(vfs: *mut Vfs, out: *mut f64) -> c_int {
    // SAFETY: as above.
    unsafe {
        let base = known(vfs).base;
        ((*base).current_time)(base, out)
    }
}

unsafe extern "C" fn last_error(vfs: *mut Vfs, size: c_int, out: *mut c_char) -> c_int {
    // SAFETY: as above.
    unsafe {
        let base = known(vfs).base;
        (*base).last_error.map_or(api::OK, |f| f(base, size, out))
    }
}

unsafe extern "C" fn current_time_int64(vfs: *mut Vfs, out: *mut i64) -> c_int {
    // SAFETY: as above; versions before 2 have the time in days.
    unsafe {
        let base = known(vfs).base;
        if let (true, Some(f)) = ((*base).version >= 2, (*base).current_time_int64) {
            return f(base, out);
        }
        let mut days = 0.0;
        let code = ((*base).current_time)(base, &raw mut days);
        *out = (days * 86_400_000.0) as i64;
        code
    }
}
